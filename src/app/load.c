/* Loading a model for a verb, and how verbs end. See app.h. */
#include "app/app.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/size.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { CONTEXT_DEFAULT = 4096, STEP_DEFAULT = 512 };

static enum ferry_status open_engine(struct loaded *l, const struct shared_options *options,
                                     const struct load_request *request, struct ferry_error *err)
{
    struct engine_options engine = {.n_sequences = request->n_sequences,
                                    .context = request->context};

    if (options->context > 0)
        engine.context = options->context;
    if (engine.context == 0)
        engine.context = min_size(model_config(l->model)->context, CONTEXT_DEFAULT);
    return engine_create(&l->engine, l->model, &engine, err);
}

enum ferry_status loaded_open(struct loaded *loaded, const struct shared_options *options,
                              const struct load_request *request, struct ferry_error *err)
{
    struct device_options device = {options->n_threads, options->level};
    struct model_options model = {.no_repack = options->no_repack, .kv_dtype = options->kv};
    uint64_t start = clock_now_ns();

    model.step_tokens = STEP_DEFAULT;
    if (options->prefill_chunk == SIZE_MAX)
        model.step_tokens = max_size(request->context, STEP_DEFAULT);
    else if (options->prefill_chunk > 0)
        model.step_tokens = options->prefill_chunk;
    model.step_tokens =
        max_size(model.step_tokens, max_size(request->n_sequences, request->step_tokens));
    enum ferry_status st = checkpoint_open(&loaded->checkpoint, options->model, err);
    if (st == FERRY_OK)
        st = device_create_cpu(&loaded->device, &device, err);
    if (st == FERRY_OK && request->tokenizer)
        st = tokenizer_create(&loaded->tokenizer, loaded->checkpoint, err);
    if (st == FERRY_OK) {
        struct model_config config;
        struct arena arena;
        arena_init(&arena, "config");
        st = model_config_read(&config, loaded->checkpoint, &arena, err);
        arena_fini(&arena);
        if (st == FERRY_OK)
            model.step_logits = engine_logit_rows(model.step_tokens, config.n_vocab);
    }
    if (st == FERRY_OK)
        st = model_open(&loaded->model, loaded->checkpoint, loaded->device, &model, err);
    if (st == FERRY_OK && request->weights)
        st = model_load(loaded->model, err);
    if (st == FERRY_OK && request->n_sequences > 0)
        st = open_engine(loaded, options, request, err);
    loaded->load_seconds = (double)(clock_now_ns() - start) * 1e-9;
    return st;
}

void loaded_close(struct loaded *loaded)
{
    engine_destroy(loaded->engine);
    model_destroy(loaded->model);
    tokenizer_destroy(loaded->tokenizer);
    device_destroy(loaded->device);
    checkpoint_close(loaded->checkpoint);
    *loaded = (struct loaded){0};
}

int fail(enum ferry_status status, const struct ferry_error *err)
{
    (void)fflush(stdout);
    LOG_ERROR("%s", err->msg[0] != 0 ? err->msg : ferry_status_text(status));
    return status == FERRY_ERR_ARG ? EXIT_USAGE : EXIT_FAILED;
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

int finish_output(int code)
{
    if (fflush(stdout) != 0 || ferror(stdout)) {
        LOG_ERROR("cannot write to standard output: %s", strerror(errno));
        return code == EXIT_GOOD ? EXIT_FAILED : code;
    }
    return code;
}
