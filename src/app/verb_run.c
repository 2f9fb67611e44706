/* ferry run: one answer (-p, --ids), or a prompt in the terminal. Text is continued as it stands:
 * chat templates come with the server. */
#include "app/app.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/size.h"
#include "text/utf8.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

struct run_options {
    struct shared_options shared;
    const char *prompt, *prompt_file, *ids, *ids_file;
    size_t n_tokens; /* at most; SIZE_MAX: until the context is full */
    double temperature, top_p, min_p;
    size_t top_k;
    size_t seed;
    bool seed_given, ignore_eos, special;
    const char *stops[TEXT_STOPS_MAX];
    size_t n_stops;
};

enum {
    KEY_PROMPT_FILE = 0x200,
    KEY_IDS,
    KEY_IDS_FILE,
    KEY_GREEDY,
    KEY_TEMPERATURE,
    KEY_TOP_K,
    KEY_TOP_P,
    KEY_MIN_P,
    KEY_SEED,
    KEY_IGNORE_EOS,
    KEY_SPECIAL,
    KEY_STOP,
};

static const struct argp_option OPTIONS[] = {
    {"prompt", 'p', "TEXT", 0,
     "Continue this text and stop; without it, lines are read from the terminal", 1},
    {"prompt-file", KEY_PROMPT_FILE, "F", 0, "The same from a file; '-' is standard input", 1},
    {"ids", KEY_IDS, "1,2,3", 0, "Token ids instead of text", 1},
    {"ids-file", KEY_IDS_FILE, "F", 0, "File of token ids", 1},
    {"tokens", 'n', "N", 0, "Tokens of an answer at most (default 256)", 1},
    {"greedy", KEY_GREEDY, NULL, 0, "Always the most likely token (the same as --temperature 0)",
     2},
    {"temperature", KEY_TEMPERATURE, "X", 0, "Randomness (default 0.7)", 2},
    {"top-k", KEY_TOP_K, "N", 0, "Only the N most likely tokens (default: all)", 2},
    {"top-p", KEY_TOP_P, "X", 0,
     "Only the most likely tokens that together have probability X (default 0.95)", 2},
    {"min-p", KEY_MIN_P, "X", 0, "Only tokens at least X times as likely as the best (default 0)",
     2},
    {"seed", KEY_SEED, "N", 0,
     "Seed; the same seed gives the same answer (default: drawn and printed)", 2},
    {"stop", KEY_STOP, "TEXT", 0, "End the answer before this text; may be given several times", 2},
    {"ignore-eos", KEY_IGNORE_EOS, NULL, 0, "Go on after an end-of-text token", 2},
    {"special", KEY_SPECIAL, NULL, 0, "Recognise control tokens in the prompt", 2},
    {0},
};

static void parse_number(struct argp_state *state, const char *arg, double *ret)
{
    if (!parse_double(arg, ret))
        argp_failure(state, EXIT_USAGE, 0, "'%s' is not a number", arg);
}

static void parse_count(struct argp_state *state, const char *arg, size_t min, size_t *ret)
{
    if (!parse_size(arg, min, SIZE_MAX / 2, ret))
        argp_failure(state, EXIT_USAGE, 0, "'%s' is not a whole number in %zu..%zu", arg, min,
                     SIZE_MAX / 2);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct run_options *o = state->input;

    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->shared;
        return 0;
    case 'p':
        o->prompt = arg;
        return 0;
    case KEY_PROMPT_FILE:
        o->prompt_file = arg;
        return 0;
    case KEY_IDS:
        o->ids = arg;
        return 0;
    case KEY_IDS_FILE:
        o->ids_file = arg;
        return 0;
    case 'n':
        if (!parse_size(arg, 1, LIMIT_CONTEXT, &o->n_tokens))
            argp_failure(state, EXIT_USAGE, 0, "'%s' is not a whole number in 1..%d", arg,
                         LIMIT_CONTEXT);
        return 0;
    case KEY_GREEDY:
        o->temperature = 0;
        return 0;
    case KEY_TEMPERATURE:
        parse_number(state, arg, &o->temperature);
        return 0;
    case KEY_TOP_K:
        parse_count(state, arg, 0, &o->top_k);
        return 0;
    case KEY_TOP_P:
        parse_number(state, arg, &o->top_p);
        return 0;
    case KEY_MIN_P:
        parse_number(state, arg, &o->min_p);
        return 0;
    case KEY_SEED:
        parse_count(state, arg, 0, &o->seed);
        o->seed_given = true;
        return 0;
    case KEY_IGNORE_EOS:
        o->ignore_eos = true;
        return 0;
    case KEY_SPECIAL:
        o->special = true;
        return 0;
    case KEY_STOP:
        if (arg[0] == 0)
            argp_failure(state, EXIT_USAGE, 0, "an empty --stop would end every answer");
        if (o->n_stops == TEXT_STOPS_MAX)
            argp_failure(state, EXIT_USAGE, 0, "more than %d stop texts", TEXT_STOPS_MAX);
        o->stops[o->n_stops++] = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Ctrl-C stops the answer, not the program: the handler is installed while an answer is made, and
 * read between steps. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

/* One answer being made. */
struct answer {
    const struct run_options *options;
    struct loaded *loaded;
    struct sampler *sampler;
    struct sampler_options sampling;
    struct token_ids ids; /* prompt and answer */
    size_t n_prompt;
    int32_t next;
    struct text_stream text; /* whole characters, stop texts */
    char *shown;             /* what the stream gave out, for --json */
    size_t shown_size, shown_capacity;
    bool stream; /* print pieces as they come */
    const char *finish;
    double prompt_seconds, token_seconds;
    uint64_t reads_before, layers_before;
};

static enum ferry_status take_token(void *arg, size_t feed_index, size_t position,
                                    const float *logits)
{
    struct answer *a = arg;

    (void)feed_index;
    a->next =
        sampler_sample(a->sampler, &a->sampling, logits, a->ids.ids, a->n_prompt, position + 1);
    return FERRY_OK;
}

/* Keeps text for the JSON answer: the same bytes that a terminal would have got. */
static enum ferry_status keep_text(struct answer *a, const char *text, size_t size,
                                   struct ferry_error *err)
{
    if (a->shown == NULL || size > a->shown_capacity - a->shown_size) {
        size_t capacity = 2 * (a->shown_size + size) + 8 * (a->ids.capacity - a->n_prompt) + 64;
        char *grown = mem_resize(a->shown, a->shown_size, capacity);
        if (grown == NULL)
            return FERRY_FAIL(err, FERRY_ERR_NOMEM, "answer: no memory for its text");
        a->shown = grown;
        a->shown_capacity = capacity;
    }
    if (size > 0)
        memcpy(a->shown + a->shown_size, text, size);
    a->shown_size += size;
    return FERRY_OK;
}

/* Passes one token's bytes through the text stream and shows what may be shown; id -1 is the end.
 */
static enum ferry_status print_piece(struct answer *a, int32_t id, struct ferry_error *err)
{
    const char *piece = NULL, *text = NULL;
    size_t piece_size = 0, size = 0;

    if (a->loaded->tokenizer == NULL)
        return FERRY_OK;
    if (id >= 0)
        piece = tokenizer_piece(a->loaded->tokenizer, id, true, &piece_size);
    enum ferry_status st = id >= 0
                               ? text_stream_push(&a->text, piece, piece_size, &text, &size, err)
                               : text_stream_finish(&a->text, &text, &size, err);
    if (st != FERRY_OK || size == 0)
        return st;
    if (!a->stream)
        return keep_text(a, text, size, err);
    if (fwrite(text, 1, size, stdout) != size || fflush(stdout) != 0)
        return FERRY_FAIL(err, FERRY_ERR_IO, "cannot write the answer: %s", strerror(errno));
    return FERRY_OK;
}

static enum ferry_status append(struct token_ids *ids, int32_t id, struct ferry_error *err)
{
    if (ids->count == ids->capacity)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "answer: no room for another token");
    ids->ids[ids->count++] = id;
    return FERRY_OK;
}

/* Room for the whole answer at once: nothing is allocated between two decode steps. */
static enum ferry_status reserve(struct token_ids *ids, size_t n_more, struct ferry_error *err)
{
    int32_t *grown =
        mem_resize(ids->ids, ids->count * sizeof *grown, (ids->count + n_more + 1) * sizeof *grown);

    if (grown == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "answer: no memory for %zu tokens", n_more);
    ids->ids = grown;
    ids->capacity = ids->count + n_more + 1;
    return FERRY_OK;
}

static enum ferry_status decode_loop(struct answer *a, struct sequence *sequence, size_t n_max,
                                     struct ferry_error *err)
{
    enum ferry_status st = FERRY_OK;

    a->finish = "length";
    for (size_t n = 0; st == FERRY_OK; n++) {
        bool ends = a->loaded->tokenizer != NULL && tokenizer_is_eog(a->loaded->tokenizer, a->next);
        if (ends && !a->options->ignore_eos) {
            a->finish = "stop";
            break;
        }
        if (n == n_max)
            break;
        st = append(&a->ids, a->next, err);
        if (st == FERRY_OK)
            st = print_piece(a, a->next, err);
        if (st == FERRY_OK && text_stream_stopped(&a->text)) {
            a->finish = "stop";
            break;
        }
        if (interrupted) {
            a->finish = "interrupted";
            break;
        }
        if (n + 1 == n_max)
            break;
        struct engine_feed feed = {sequence, &a->ids.ids[a->ids.count - 1], 1, 1};
        if (st == FERRY_OK)
            st = engine_feed(a->loaded->engine, &feed, 1, take_token, a, err);
        if (st == FERRY_ERR_CONTEXT_FULL) { /* a full context ends the answer, it is no error */
            a->finish = "context";
            return FERRY_OK;
        }
    }
    return st;
}

/* The prompt, a step at a time, so that Ctrl-C is heard in between. */
static enum ferry_status feed_prompt(struct answer *a, struct sequence *sequence,
                                     struct ferry_error *err)
{
    size_t step = model_options(a->loaded->model)->step_tokens;
    enum ferry_status st = FERRY_OK;

    for (size_t done = 0; done < a->n_prompt && st == FERRY_OK && !interrupted; done += step) {
        size_t n = min_size(step, a->n_prompt - done);
        struct engine_feed feed = {sequence, a->ids.ids + done, n, done + n == a->n_prompt};
        st = engine_feed(a->loaded->engine, &feed, 1, take_token, a, err);
    }
    return st;
}

static enum ferry_status generate(struct answer *a, struct ferry_error *err)
{
    struct sequence *sequence = NULL;
    const struct exchange_ledger *ledger = model_ledger(a->loaded->model);

    a->n_prompt = a->ids.count;
    if (a->n_prompt == 0)
        return FERRY_FAIL(err, FERRY_ERR_ARG,
                          "the prompt is empty and this tokenizer adds no BOS; give it some text");
    size_t context = engine_context(a->loaded->engine);
    if (a->n_prompt > context)
        return FERRY_FAIL(err, FERRY_ERR_CONTEXT_FULL,
                          "the prompt has %zu tokens and the context is %zu; shorten it or raise "
                          "--context",
                          a->n_prompt, context);
    size_t n_max = min_size(a->options->n_tokens, context);
    enum ferry_status st = reserve(&a->ids, n_max, err);
    if (st == FERRY_OK && !a->stream)
        st = keep_text(a, NULL, 0, err); /* takes its first room before the first step */
    if (st == FERRY_OK)
        st = sequence_open(a->loaded->engine, &sequence, err);
    if (st != FERRY_OK)
        return st;
    uint64_t start = clock_now_ns();
    st = feed_prompt(a, sequence, err);
    a->prompt_seconds = (double)(clock_now_ns() - start) * 1e-9;
    a->reads_before = ledger->weight_reads;
    a->layers_before = ledger->layers;
    a->finish = "interrupted";
    if (st == FERRY_OK && !interrupted) {
        start = clock_now_ns();
        st = decode_loop(a, sequence, n_max, err);
        if (st == FERRY_OK)
            st = print_piece(a, -1, err);
        a->token_seconds = (double)(clock_now_ns() - start) * 1e-9;
    }
    sequence_close(a->loaded->engine, sequence);
    return st;
}

static double per_second(size_t n, double seconds)
{
    return seconds > 0 ? (double)n / seconds : 0;
}

/* Distinct experts that a decode step touched, averaged over layers and steps. */
static double experts_used(const struct answer *a)
{
    const struct exchange_ledger *ledger = model_ledger(a->loaded->model);
    uint64_t layers = ledger->layers - a->layers_before;
    return layers > 0 ? (double)(ledger->weight_reads - a->reads_before) / (double)layers : 0;
}

static void print_closing_line(const struct answer *a, uint64_t seed)
{
    size_t n = a->ids.count - a->n_prompt;

    (void)fprintf(stderr,
                  "\n[%zu prompt tokens at %.1f t/s, %zu tokens at %.1f t/s, first after %.0f ms, "
                  "%.1f of %zu experts per layer",
                  a->n_prompt, per_second(a->n_prompt, a->prompt_seconds), n,
                  per_second(n > 0 ? n - 1 : 0, a->token_seconds), a->prompt_seconds * 1e3,
                  experts_used(a), model_config(a->loaded->model)->router.n_experts);
    if (a->options->temperature > 0)
        (void)fprintf(stderr, ", seed %llu", (unsigned long long)seed);
    (void)fprintf(stderr, "; %s]\n", a->finish);
}

static int print_answer_json(const struct answer *a, uint64_t seed)
{
    size_t n = a->ids.count - a->n_prompt;
    json_t *ids = json_array();

    for (size_t i = a->n_prompt; i < a->ids.count; i++)
        (void)json_array_append_new(ids, json_integer(a->ids.ids[i]));
    json_t *json =
        json_pack("{s:o, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:I, s:s}", "ids", ids, "finish_reason",
                  a->finish, "prompt_tokens", (json_int_t)a->n_prompt, "completion_tokens",
                  (json_int_t)n, "prompt_tps", per_second(a->n_prompt, a->prompt_seconds),
                  "completion_tps", per_second(n > 0 ? n - 1 : 0, a->token_seconds), "ttft_ms",
                  a->prompt_seconds * 1e3, "experts_per_step", experts_used(a), "seed",
                  (json_int_t)seed, "numerics", model_numerics(a->loaded->model));
    if (json != NULL && a->loaded->tokenizer != NULL)
        (void)json_object_set_new(json, "text",
                                  json_stringn(a->shown_size > 0 ? a->shown : "", a->shown_size));
    return print_json(json);
}

static struct sampler_options sampling_of(const struct run_options *o, uint64_t seed)
{
    return (struct sampler_options){.temperature = (float)o->temperature,
                                    .top_k = o->top_k,
                                    .top_p = (float)o->top_p,
                                    .min_p = (float)o->min_p,
                                    .repetition_penalty = 1,
                                    .seed = seed};
}

/* One prompt (text, or ids when text is NULL) from start to closing line. */
static enum ferry_status answer_one(const struct run_options *o, struct loaded *l, const char *text,
                                    size_t size, int *ret_code, struct ferry_error *err)
{
    struct answer a = {.options = o,
                       .loaded = l,
                       .stream = !o->shared.json && l->tokenizer != NULL,
                       .finish = "length"};
    uint64_t seed = o->seed;
    enum ferry_status st = FERRY_OK;

    if (!o->seed_given && getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
        seed = clock_now_ns();
    if (!o->seed_given)
        seed >>= 11; /* fits a JSON number */
    a.sampling = sampling_of(o, seed);
    st = sampler_create(&a.sampler, model_config(l->model)->n_vocab,
                        l->tokenizer != NULL ? tokenizer_n_vocab(l->tokenizer) : 0,
                        device_kernels(l->device), err);
    if (st == FERRY_OK)
        st = text_stream_init(&a.text, o->stops, o->n_stops, err);
    if (st == FERRY_OK && text != NULL)
        st = tokenizer_encode(l->tokenizer, text, size, true, o->special, &a.ids, err);
    else if (st == FERRY_OK)
        st = read_ids(o->ids, o->ids_file, &a.ids, err);
    if (st == FERRY_OK) {
        struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART}, before;
        interrupted = 0;
        (void)sigaction(SIGINT, &action, &before);
        st = generate(&a, err);
        (void)sigaction(SIGINT, &before, NULL);
    }
    if (st == FERRY_OK && strcmp(a.finish, "interrupted") == 0)
        *ret_code = EXIT_INTERRUPTED;
    if (st == FERRY_OK && o->shared.json) {
        int code = print_answer_json(&a, seed);
        *ret_code = code != EXIT_GOOD ? code : *ret_code;
    }
    if (st == FERRY_OK && !o->shared.json) {
        for (size_t i = a.n_prompt; l->tokenizer == NULL && i < a.ids.count; i++)
            (void)printf(i > a.n_prompt ? " %d" : "%d", a.ids.ids[i]);
        (void)printf("\n");
        (void)fflush(stdout);
        print_closing_line(&a, seed);
    }
    text_stream_fini(&a.text);
    mem_free(a.shown);
    sampler_destroy(a.sampler);
    token_ids_fini(&a.ids);
    return st;
}

/* Lines from the terminal; each is continued on its own. A bad one costs the exit code, not the
 * session. */
static enum ferry_status talk(const struct run_options *o, struct loaded *l, int *ret_code,
                              struct ferry_error *err)
{
    char *line = NULL;
    size_t capacity = 0;
    bool terminal = isatty(STDIN_FILENO) == 1;
    enum ferry_status st = FERRY_OK;
    ssize_t n;

    if (terminal)
        (void)fprintf(stderr,
                      "Type a text to be continued; Ctrl-C stops an answer, Ctrl-D leaves.\n");
    while (st != FERRY_ERR_IO) { /* nowhere to write to: the others are pointless, too */
        if (terminal)
            (void)fprintf(stderr, "> ");
        n = getline(&line, &capacity, stdin);
        if (n < 0 && ferror(stdin)) {
            st = FERRY_FAIL(err, FERRY_ERR_IO, "cannot read standard input: %s", strerror(errno));
            *ret_code = fail(st, err);
        }
        if (n < 0)
            break;
        size_t size = (size_t)n;
        int code = EXIT_GOOD;
        while (size > 0 && (line[size - 1] == '\n' || line[size - 1] == '\r'))
            size--;
        if (size == 0)
            continue;
        st = answer_one(o, l, line, size, &code, err);
        if (st != FERRY_OK)
            code = fail(st, err);
        if (code != EXIT_GOOD && code != EXIT_INTERRUPTED)
            *ret_code = code;
    }
    free(line); /* getline's own */
    return FERRY_OK;
}

static enum ferry_status run(struct run_options *o, int *ret_code, struct ferry_error *err)
{
    struct loaded loaded = {0};
    bool ids = o->ids != NULL || o->ids_file != NULL;
    struct load_request request = {
        .n_sequences = 1, .tokenizer = !ids, .any_tokenizer = true, .weights = true};
    char *file = NULL;
    size_t size = o->prompt != NULL ? strlen(o->prompt) : 0;

    enum ferry_status st = FERRY_OK;
    if (o->prompt_file != NULL)
        st = read_file(o->prompt_file, &file, &size, err);
    if (st == FERRY_OK)
        st = loaded_open(&loaded, &o->shared, &request, err);
    if (st == FERRY_OK && o->n_stops > 0 && loaded.tokenizer == NULL)
        st =
            FERRY_FAIL(err, FERRY_ERR_ARG, "--stop needs a tokenizer and this checkpoint has none");
    if (st == FERRY_OK && ids)
        st = answer_one(o, &loaded, NULL, 0, ret_code, err);
    else if (st == FERRY_OK && (o->prompt != NULL || file != NULL))
        st = answer_one(o, &loaded, file != NULL ? file : o->prompt, size, ret_code, err);
    else if (st == FERRY_OK)
        st = talk(o, &loaded, ret_code, err);
    mem_free(file);
    loaded_close(&loaded);
    return st;
}

int verb_run(int argc, char **argv)
{
    static const struct argp_child CHILDREN[] = {{&shared_argp, 0, NULL, 0}, {0}};
    static const struct argp ARGP = {
        OPTIONS,  parse, "MODEL", "Continues a text, once or line by line in the terminal.",
        CHILDREN, NULL,  NULL};
    struct run_options o = {.n_tokens = 256, .temperature = 0.7, .top_p = 0.95};
    struct ferry_error err = {0};
    int code = EXIT_GOOD;

    if (!parse_flags(&ARGP, argc, argv, &o.shared, &o))
        return EXIT_USAGE;
    if ((o.prompt != NULL) + (o.prompt_file != NULL) + (o.ids != NULL) + (o.ids_file != NULL) > 1) {
        LOG_ERROR("run takes one of -p, --prompt-file, --ids and --ids-file");
        return EXIT_USAGE;
    }
    struct sampler_options sampling = sampling_of(&o, o.seed);
    enum ferry_status st = sampler_options_check(&sampling, LIMIT_VOCAB, &err);
    if (st != FERRY_OK) {
        LOG_ERROR("%s", err.msg);
        return EXIT_USAGE;
    }
    st = run(&o, &code, &err);
    return st == FERRY_OK ? code : fail(st, &err);
}
