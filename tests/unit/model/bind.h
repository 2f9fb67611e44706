/* A tiny checkpoint opened as a model in one line, for the tests of weights, model and forward.
 * Test code only. */
#ifndef TESTS_UNIT_MODEL_BIND_H
#define TESTS_UNIT_MODEL_BIND_H

#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "model/model.h"
#include "tests/support/tiny.h"

#include <stdlib.h>
#include <string.h>

struct opened {
    char folder[128];
    struct checkpoint *checkpoint;
    struct device *device;
    struct model *model;
    struct ferry_error err;
    enum ferry_status status;
    struct kv_pool *pool;
    unsigned char *pages[4];
};

static const struct model_options DEFAULTS = {
    .step_tokens = 256, .step_logits = 256, .kv_dtype = DTYPE_F32};

/* Writes, opens and loads; `status` and `err` say how that ended. */
static inline void open_tiny(struct opened *o, const struct tiny_options *tiny,
                             const struct model_options *options)
{
    const struct device_options device = {2, cpu_best_level()};

    *o = (struct opened){0};
    (void)snprintf(o->folder, sizeof o->folder, "%s", tiny_write(tiny));
    if (checkpoint_open(&o->checkpoint, o->folder, &o->err) != FERRY_OK ||
        device_create_cpu(&o->device, &device, &o->err) != FERRY_OK)
        fail_msg("%s", o->err.msg);
    o->status = model_create(&o->model, o->checkpoint, o->device, options, &o->err);
    if (o->status != FERRY_OK)
        return;
    if (kv_pool_create(&o->pool, model_config(o->model), options->kv_dtype, 4, &o->err) != FERRY_OK)
        fail_msg("%s", o->err.msg);
    for (size_t i = 0; i < 4; i++)
        o->pages[i] = kv_pool_get(o->pool);
}

static inline void close_tiny(struct opened *o)
{
    kv_pool_destroy(o->pool);
    model_destroy(o->model);
    device_destroy(o->device);
    checkpoint_close(o->checkpoint);
    tiny_remove(o->folder);
}

static inline void open_good(struct opened *o, const struct tiny_options *tiny,
                             const struct model_options *options)
{
    open_tiny(o, tiny, options);
    if (o->status != FERRY_OK)
        fail_msg("%s: %s", tiny->arch, o->err.msg);
}

/* One run from position `first`, all logits. */
static inline enum ferry_status step(struct opened *o, const int32_t *ids, size_t n, size_t first,
                                     float *logits)
{
    const struct model_run run = {ids, n, first, o->pages, n};
    return model_step(o->model, &run, 1, logits, &o->err);
}

static inline void step_good(struct opened *o, const int32_t *ids, size_t n, float *logits)
{
    if (step(o, ids, n, 0, logits) != FERRY_OK)
        fail_msg("%s", o->err.msg);
}

static const char *const ARCHS[] = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe"};

#endif
