/* Loading a model for a verb, and how verbs end. See app.h. */
#include "app/app.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/size.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CONTEXT_DEFAULT = 4096, STEP_DEFAULT = 512 };

/* Tokens of one sequence: what the verb needs, else --context, else the trained length up to a
 * default. */
static enum ferry_status pick_context(const struct shared_options *options,
                                      const struct load_request *request,
                                      const struct model_config *config, size_t *ret_context,
                                      struct ferry_error *err)
{
    if (request->context > 0 && options->context > 0 && options->context < request->context)
        return FERRY_FAIL(err, FERRY_ERR_CONTEXT_FULL,
                          "%zu tokens are needed, --context allows %zu", request->context,
                          options->context);
    *ret_context = request->context > 0   ? request->context
                   : options->context > 0 ? options->context
                                          : min_size(config->context, CONTEXT_DEFAULT);
    if (*ret_context > LIMIT_CONTEXT)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "a context of %zu tokens is over the limit of %d",
                          *ret_context, LIMIT_CONTEXT);
    if (*ret_context > config->context)
        LOG_WARNING("a context of %zu tokens is longer than the %zu that the model was trained for",
                    *ret_context, config->context);
    return FERRY_OK;
}

/* Step sizes by the flags; the configuration is read for them alone, the model reads its own. */
static enum ferry_status pick_sizes(struct loaded *loaded, const struct shared_options *options,
                                    const struct load_request *request, struct model_options *model,
                                    size_t *ret_context, struct ferry_error *err)
{
    struct model_config config;
    struct arena arena;

    arena_init(&arena, "config");
    enum ferry_status st = model_config_read(&config, loaded->checkpoint, &arena, err);
    if (st == FERRY_OK)
        st = pick_context(options, request, &config, ret_context, err);
    if (st == FERRY_OK) {
        size_t chunk = options->prefill_chunk == 0 ? STEP_DEFAULT : options->prefill_chunk;
        /* Ranks must have the same, whatever each is used for. */
        if (!group_wanted(&options->group) || chunk == SIZE_MAX)
            chunk = min_size(chunk, *ret_context);
        model->step_tokens = max_size(chunk, max_size(request->n_sequences, 1));
        /* A batch must fit into one step: otherwise every expert would be read more than once. */
        model->step_logits =
            max_size(engine_logit_rows(model->step_tokens, config.n_vocab), request->n_sequences);
    }
    arena_fini(&arena);
    return st;
}

/* KV pages of a server: whole contexts of all sequences, or what fits beside the weights into most
 * of the memory that is free; one whole context in any case. */
static size_t pick_pages(const struct loaded *loaded, const struct shared_options *options,
                         const struct load_request *request, size_t context)
{
    const struct model_plan *plan = model_plan(loaded->model);
    double available = (double)proc_kb("/proc/meminfo", "MemAvailable") * 1024 * 0.85 /
                       (double)group_ranks_here(&options->group);
    double page = (double)plan->kv_per_token * KERNEL_KV_CHUNK;
    size_t one = div_up(context, KERNEL_KV_CHUNK), all = one * request->n_sequences;

    if (request->kv_tokens > 0)
        return max_size(div_up(request->kv_tokens, KERNEL_KV_CHUNK), 1);
    if (!request->fit_kv || available == 0)
        return 0;
    double left =
        available - (double)plan->weights_packed - (double)plan->room_packed - (double)plan->step;
    if (left >= page * (double)all)
        return all;
    return max_size(left > 0 ? (size_t)(left / page) : 0, one);
}

/* Refuses what would not fit, before the kernel's out-of-memory killer does. Who founds a group
 * counts the other ranks of this machine too: they hold as much, and take it at the same time. */
static enum ferry_status check_memory(const struct loaded *loaded,
                                      const struct group_options *group,
                                      const struct engine_options *engine, struct ferry_error *err)
{
    const struct model_plan *plan = model_plan(loaded->model);
    size_t n_ranks = group->join == NULL ? group_ranks_here(group) : 1;
    double need = (double)plan->weights_packed + (double)plan->room_packed + (double)plan->step;
    double available = (double)proc_kb("/proc/meminfo", "MemAvailable") * 1024;
    char a[32], b[32];

    need *= (double)n_ranks;
    if (engine != NULL) /* the others have KV only when they make answers */
        need += (double)engine_bytes(loaded->model, engine) *
                (double)(group->parallel > 0 ? n_ranks : 1);
    if (available == 0 || need <= available)
        return FERRY_OK;
    return FERRY_FAIL(
        err, FERRY_ERR_NOMEM,
        "this needs %s%s and %s are available; try --no-repack, a smaller --context "
        "or --prefill-chunk%s ('ferry inspect' has the table)",
        bytes_text(need, a), n_ranks > 1 ? " in all ranks" : "", bytes_text(available, b),
        engine != NULL && engine->n_sequences > 1 ? ", --parallel or --kv-tokens" : "");
}

enum ferry_status loaded_open(struct loaded *loaded, const struct shared_options *options,
                              const struct load_request *request, struct ferry_error *err)
{
    struct device_options device = {group_threads(options), options->level};
    struct model_options model = {.no_repack = options->no_repack,
                                  .kv_dtype = options->kv,
                                  .combine_bf16 = options->combine_bf16,
                                  .micro_batches = options->micro_batches,
                                  .bundle_bytes = options->bundle_bytes};
    struct engine_options engine = {.n_sequences = request->n_sequences};
    uint64_t start = clock_now_ns();

    enum ferry_status st = checkpoint_open(&loaded->checkpoint, options->model, err);
    if (st == FERRY_OK)
        st = device_create_cpu(&loaded->device, &device, err);
    if (st == FERRY_OK && request->tokenizer)
        st = tokenizer_create(&loaded->tokenizer, loaded->checkpoint, err);
    else if (st == FERRY_OK && request->any_tokenizer &&
             tokenizer_create(&loaded->tokenizer, loaded->checkpoint, &loaded->tokenizer_error) !=
                 FERRY_OK)
        LOG_DEBUG("no tokenizer: %s", loaded->tokenizer_error.msg);
    /* What was parsed and is no longer needed, whatever the verb: headers, config.json, and most of
     * all tokenizer.json, 60 MB for 150,000 tokens. */
    mem_trim();
    if (st == FERRY_OK)
        st = pick_sizes(loaded, options, request, &model, &engine.context, err);
    if (st == FERRY_OK)
        st = model_open(&loaded->model, loaded->checkpoint, loaded->device, &model, err);
    if (st == FERRY_OK && request->weights && group_wanted(&options->group))
        st = group_open(&loaded->group, options, loaded->model, err);
    if (st == FERRY_OK)
        engine.n_pages = pick_pages(loaded, options, request, engine.context);
    if (st == FERRY_OK && engine.n_pages > 0 && engine.n_pages * KERNEL_KV_CHUNK < engine.context) {
        size_t held = engine.n_pages * KERNEL_KV_CHUNK; /* of all sequences, so of one, too */
        LOG_WARNING("the context is %zu tokens instead of %zu: --kv-tokens holds no more", held,
                    engine.context);
        engine.context = held;
    }
    if (st == FERRY_OK && request->weights)
        st = check_memory(loaded, &options->group, request->n_sequences > 0 ? &engine : NULL, err);
    if (st == FERRY_OK && request->weights)
        st = model_load(loaded->model, err);
    if (st == FERRY_OK && request->n_sequences > 0)
        st = engine_create(&loaded->engine, loaded->model, &engine, err);
    if (loaded->group != NULL && !request->scheduler)
        group_set_scheduler(loaded->group, NULL);
    if (st == FERRY_OK && loaded->group != NULL)
        st = group_start(loaded->group, err);
    loaded->load_seconds = (double)(clock_now_ns() - start) * 1e-9;
    return st;
}

/* What went differently than asked is said, whatever the verb (law 5). */
static void warn_counters(const struct model *model)
{
    const struct model_counters *c = model_counters(model);

    if (c->kv_overflows > 0)
        LOG_WARNING("%llu keys or values did not fit the KV cache's number format; use --kv bf16",
                    (unsigned long long)c->kv_overflows);
    if (c->steps_retried > 0)
        LOG_WARNING("%llu steps were void and repeated", (unsigned long long)c->steps_retried);
}

void loaded_close(struct loaded *loaded)
{
    if (loaded->model != NULL)
        warn_counters(loaded->model);
    engine_destroy(loaded->engine);
    model_destroy(loaded->model);
    group_close(loaded->group);
    tokenizer_destroy(loaded->tokenizer);
    device_destroy(loaded->device);
    checkpoint_close(loaded->checkpoint);
    *loaded = (struct loaded){0};
}

uint64_t proc_kb(const char *path, const char *key)
{
    char line[256];
    unsigned long long value = 0;
    FILE *f = fopen(path, "re");

    if (f == NULL)
        return 0;
    while (fgets(line, sizeof line, f) != NULL) {
        if (strncmp(line, key, strlen(key)) == 0 &&
            sscanf(line + strlen(key), ": %llu", &value) == 1)
            break;
    }
    (void)fclose(f);
    return value;
}

int fail(enum ferry_status status, const struct ferry_error *err)
{
    (void)fflush(stdout);
    LOG_ERROR("%s", err->msg[0] != 0 ? err->msg : ferry_status_text(status));
    return EXIT_FAILED;
}

int print_json(json_t *json)
{
    int code = EXIT_GOOD;

    if (json == NULL || json_dumpf(json, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) != 0) {
        LOG_ERROR("cannot write JSON");
        code = EXIT_FAILED;
    }
    (void)fputc('\n', stdout);
    json_decref(json);
    return code;
}

const char *bytes_text(double n_bytes, char text[32])
{
    static const char *const UNITS[] = {"B", "kB", "MB", "GB", "TB"};
    int unit = 0;

    while (n_bytes >= 1000 && unit < 4) {
        n_bytes /= 1000;
        unit++;
    }
    (void)snprintf(text, 32, unit > 0 ? "%.2f %s" : "%.0f %s", n_bytes, UNITS[unit]);
    return text;
}
