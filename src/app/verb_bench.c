/* ferry bench: prompt and generation speed, medians and spread, beside this machine's read
 * bandwidth. Prompts are random ids, every sequence its own: one repeated token would collapse the
 * routing and flatter the result. */
#include "app/app.h"
#include "app/bench_exchange.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/size.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES_MAX = 16, REPS_MAX = 100 };

struct bench_options {
    struct shared_options shared;
    size_t n_prompt, n_generate, n_reps;
    size_t batches[BATCHES_MAX];
    size_t n_batches;
};

enum { KEY_BATCH = 0x200, KEY_REPS };

static const struct argp_option OPTIONS[] = {
    {"prompt", 'p', "N", 0, "Prompt tokens (default 512)", 1},
    {"generate", 'n', "N", 0, "Generated tokens (default 64)", 1},
    {"batch", KEY_BATCH, "1,4,16", 0,
     "Sequences generated together, one or several counts (default 1)", 1},
    {"reps", KEY_REPS, "N", 0, "Repetitions (default 3)", 1},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct bench_options *o = state->input;
    bool good = true;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->shared;
        return 0;
    case 'p':
        good = parse_size(arg, 0, 1u << 20, &o->n_prompt);
        break;
    case 'n':
        good = parse_size(arg, 0, 1u << 20, &o->n_generate);
        break;
    case KEY_BATCH:
        good = parse_sizes(arg, 1, 256, BATCHES_MAX, o->batches, &o->n_batches);
        break;
    case KEY_REPS:
        good = parse_size(arg, 1, REPS_MAX, &o->n_reps);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    if (!good)
        flag_failure(state, OPTIONS, key, arg, "is not a number (or list of numbers) in range");
    return 0;
}

/* Samples of one figure, tokens per second. */
struct samples {
    double values[REPS_MAX];
    size_t count;
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(struct samples *s)
{
    if (s->count == 0)
        return 0;
    qsort(s->values, s->count, sizeof s->values[0], compare);
    return s->count % 2 == 1 ? s->values[s->count / 2]
                             : (s->values[s->count / 2 - 1] + s->values[s->count / 2]) / 2;
}

/* Results of one run of the bench. */
struct result {
    struct samples pp;
    struct samples tg[BATCHES_MAX];
    double experts[BATCHES_MAX]; /* weight reads per layer and step */
    double bytes_per_token;      /* weights that one token reads */
    double gops_per_token;       /* multiplications and additions of one prompt token */
    double bandwidth;            /* GB/s */
    uint64_t allocations;        /* between decode steps; must be 0 */
};

static int32_t random_id(uint64_t seed, uint64_t i, size_t n_vocab)
{
    return (int32_t)((double)sampler_uniform(seed, 0, i) * (double)n_vocab);
}

/* What one token costs: bytes of weights in a decode step, multiplications and additions in a
 * prompt. */
static void count_work(const struct loaded *l, struct result *r)
{
    const struct model_config *c = model_config(l->model);
    double expert = 3.0 * (double)c->hidden * (double)c->expert_width, macs = 0;

    for (size_t layer = 0; layer < c->n_layers; layer++) {
        macs +=
            (double)c->hidden * (double)c->head_dim * (double)(2 * c->n_heads + 2 * c->n_kv_heads);
        if (c->layer_has_experts[layer])
            macs += (double)(c->router.n_experts * c->hidden) + expert * (double)c->router.top_k +
                    3.0 * (double)c->hidden * (double)c->shared_width;
        else
            macs += 3.0 * (double)c->hidden * (double)c->dense_width;
    }
    r->gops_per_token = 2e-9 * macs;
    r->bytes_per_token = (double)model_plan(l->model)->active_per_token;
}

static enum ferry_status keep_nothing(void *arg, size_t feed_index, size_t position,
                                      const float *logits)
{
    (void)arg;
    (void)feed_index;
    (void)position;
    (void)logits;
    return FERRY_OK;
}

static enum ferry_status bench_prompt(const struct bench_options *o, struct loaded *l,
                                      uint64_t seed, struct result *r, struct ferry_error *err)
{
    struct sequence *sequence = NULL;
    int32_t *ids = mem_array(o->n_prompt, sizeof *ids);

    if (ids == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "bench: no memory");
    for (size_t i = 0; i < o->n_prompt; i++)
        ids[i] = random_id(seed, i, model_config(l->model)->n_vocab);
    enum ferry_status st = sequence_open(l->engine, &sequence, err);
    if (st == FERRY_OK) {
        struct engine_feed feed = {sequence, ids, o->n_prompt, 1};
        uint64_t start = clock_now_ns();
        st = engine_feed(l->engine, &feed, 1, keep_nothing, NULL, err);
        if (r != NULL && r->pp.count < REPS_MAX)
            r->pp.values[r->pp.count++] =
                (double)o->n_prompt * 1e9 / (double)(clock_now_ns() - start);
        sequence_close(l->engine, sequence);
    }
    mem_free(ids);
    return st;
}

/* `batch` sequences, each of its own random ids, stepped together. */
static enum ferry_status bench_generate(const struct bench_options *o, struct loaded *l,
                                        uint64_t seed, size_t batch, size_t which, struct result *r,
                                        struct ferry_error *err)
{
    struct engine_feed feeds[256];
    int32_t ids[256];
    const struct exchange_ledger *ledger = model_ledger(l->model);
    uint64_t reads = ledger->weight_reads, layers = ledger->layers, start = 0, allocations = 0;
    enum ferry_status st = FERRY_OK;
    size_t n_open = 0;

    for (; n_open < batch && st == FERRY_OK; n_open++) {
        struct sequence *sequence = NULL;
        st = sequence_open(l->engine, &sequence, err);
        feeds[n_open] = (struct engine_feed){sequence, &ids[n_open], 1, 1};
    }
    for (size_t step = 0; step <= o->n_generate && st == FERRY_OK; step++) {
        if (step == 1) { /* the first step is the prompt of one token: not counted */
            start = clock_now_ns();
            reads = ledger->weight_reads;
            layers = ledger->layers;
            allocations = mem_count_calls();
        }
        for (size_t b = 0; b < batch; b++)
            ids[b] = random_id(seed + 1 + b, step, model_config(l->model)->n_vocab);
        st = engine_feed(l->engine, feeds, batch, keep_nothing, NULL, err);
    }
    if (st == FERRY_OK && r != NULL && o->n_generate > 0) {
        struct samples *s = &r->tg[which];
        s->values[s->count++] =
            (double)(o->n_generate * batch) * 1e9 / (double)(clock_now_ns() - start);
        r->experts[which] = ledger->layers > layers ? (double)(ledger->weight_reads - reads) /
                                                          (double)(ledger->layers - layers)
                                                    : 0;
        if (l->group == NULL) /* its heartbeats allocate beside the steps, which do not */
            r->allocations += mem_count_calls() - allocations;
    }
    for (size_t b = 0; b < n_open; b++)
        sequence_close(l->engine, feeds[b].sequence);
    return st;
}

static json_t *samples_json(const struct samples *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->count; i++)
        (void)json_array_append_new(list, json_real(s->values[i]));
    return list;
}

static int print_result(const struct bench_options *o, const struct loaded *l, struct result *r)
{
    double pp = median(&r->pp);
    double limit = r->bandwidth * 1e9 / r->bytes_per_token;

    if (o->shared.json) {
        json_t *tg = json_array(), *tg_samples = json_array(), *experts = json_array(),
               *batches = json_array();
        double tg1 = 0;
        for (size_t i = 0; i < o->n_batches; i++) {
            double value = median(&r->tg[i]);
            tg1 = o->batches[i] == 1 ? value : tg1;
            (void)json_array_append_new(batches, json_integer((json_int_t)o->batches[i]));
            (void)json_array_append_new(tg, json_real(value));
            (void)json_array_append_new(tg_samples, samples_json(&r->tg[i]));
            (void)json_array_append_new(experts, json_real(r->experts[i]));
        }
        return print_json(json_pack(
            "{s:f, s:o, s:o, s:{s:o, s:o}, s:f, s:f, s:f, s:f, s:o, s:I, s:I, s:I, s:I, s:s, s:f}",
            "pp_tps", pp, "tg_tps", tg, "batch", batches, "samples", "pp", samples_json(&r->pp),
            "tg", tg_samples, "bytes_per_token", r->bytes_per_token, "gop_per_prompt_token",
            r->gops_per_token, "bandwidth_gb_s", r->bandwidth, "limit_share",
            limit > 0 ? tg1 / limit : 0, "experts_per_step", experts, "n_prompt",
            (json_int_t)o->n_prompt, "n_generate", (json_int_t)o->n_generate, "threads",
            (json_int_t)device_threads(l->device), "allocations", (json_int_t)r->allocations,
            "cpu_level", cpu_level_name(device_kernels(l->device)->level), "load_seconds",
            l->load_seconds));
    }
    (void)printf("%s, %d threads, %s kernels, loaded in %.1f s\n", model_config(l->model)->name,
                 device_threads(l->device), cpu_level_name(device_kernels(l->device)->level),
                 l->load_seconds);
    if (r->pp.count > 0)
        (void)printf("prompt %4zu          %8.2f t/s  (%.2f .. %.2f)  %.0f GOP/s\n", o->n_prompt,
                     pp, r->pp.values[0], r->pp.values[r->pp.count - 1], pp * r->gops_per_token);
    for (size_t i = 0; i < o->n_batches && o->n_generate > 0; i++) {
        double value = median(&r->tg[i]);
        (void)printf(
            "generate %2zu x %-5zu  %8.2f t/s  (%.2f .. %.2f)  %.1f experts per layer and step",
            o->batches[i], o->n_generate, value, r->tg[i].values[0],
            r->tg[i].values[r->tg[i].count - 1], r->experts[i]);
        if (o->batches[i] == 1)
            (void)printf(", %.0f %% of the bandwidth limit (%.1f GB/s, %.0f MB per token)",
                         100 * value / limit, r->bandwidth, r->bytes_per_token * 1e-6);
        (void)printf("\n");
    }
    if (r->allocations > 0)
        LOG_WARNING("%llu allocations between decode steps", (unsigned long long)r->allocations);
    return EXIT_GOOD;
}

static enum ferry_status bench(const struct bench_options *o, int *ret_code,
                               struct ferry_error *err)
{
    struct loaded loaded = {0};
    struct load_request request = {.context = max_size(o->n_prompt, o->n_generate + 1),
                                   .weights = true};
    struct result *r = mem_zero(sizeof *r);

    for (size_t i = 0; i < o->n_batches; i++)
        request.n_sequences = max_size(request.n_sequences, o->batches[i]);
    enum ferry_status st = r != NULL ? loaded_open(&loaded, &o->shared, &request, err)
                                     : FERRY_FAIL(err, FERRY_ERR_NOMEM, "bench: no memory");
    if (st == FERRY_OK) {
        count_work(&loaded, r);
        r->bandwidth = read_bandwidth(loaded.device);
    }
    struct bench_options warm = *o; /* the first pass touches every page and is thrown away */
    warm.n_prompt = min_size(o->n_prompt, 128);
    warm.n_generate = min_size(o->n_generate, 4);
    if (st == FERRY_OK && o->n_prompt > 0)
        st = bench_prompt(&warm, &loaded, 7, NULL, err);
    if (st == FERRY_OK && o->n_generate > 0)
        st = bench_generate(&warm, &loaded, 7, 1, 0, NULL, err);
    for (size_t rep = 0; rep < o->n_reps && st == FERRY_OK; rep++) {
        if (o->n_prompt > 0)
            st = bench_prompt(o, &loaded, 100 + rep, r, err);
        for (size_t i = 0; i < o->n_batches && o->n_generate > 0 && st == FERRY_OK; i++)
            st = bench_generate(o, &loaded, 1000 * (rep + 1), o->batches[i], i, r, err);
    }
    if (st == FERRY_OK)
        *ret_code = print_result(o, &loaded, r);
    loaded_close(&loaded);
    mem_free(r);
    return st;
}

int verb_bench(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&shared_argp, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        OPTIONS,
        parse,
        "MODEL",
        "Prompt and generation speed. 'ferry bench exchange' measures the exchange between ranks.",
        CHILDREN,
        NULL,
        NULL};
    struct bench_options o = {
        .n_prompt = 512, .n_generate = 64, .n_reps = 3, .batches = {1}, .n_batches = 1};
    struct ferry_error err = {0};
    int code = EXIT_GOOD;

    if (argc > 1 && strcmp(argv[1], "exchange") == 0) {
        static char name[] = "ferry bench exchange"; /* argp prints it in usage lines */
        argv[1] = name;
        return verb_bench_exchange(argc - 1, argv + 1);
    }
    if (!parse_flags(&ARGP, argc, argv, &o.shared, &o))
        return EXIT_USAGE;
    if (rank_under_mpirun(&o.shared, 0, &code))
        return code;
    enum ferry_status st = bench(&o, &code, &err);
    return st == FERRY_OK ? code : fail(st, &err);
}
