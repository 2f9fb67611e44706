/* Reading a configuration from a text or a GGUF description, for the tests of config*.c: every case
 * is one base configuration with members added, replaced or taken away. Test code only. */
#ifndef TESTS_UNIT_MODEL_CONFIG_CASE_H
#define TESTS_UNIT_MODEL_CONFIG_CASE_H

#include "tests/unit/unit.h"

#include "make.h"
#include "model/config.h"

#include <string.h>

struct config_case {
    struct arena arena;
    struct model_config config;
    struct ferry_error err;
    enum ferry_status status;
};

static inline void read_case(struct config_case *c, const char *path)
{
    struct checkpoint *checkpoint = NULL;

    *c = (struct config_case){0};
    arena_init(&c->arena, "test");
    if (checkpoint_open(&checkpoint, path, &c->err) != FERRY_OK)
        fail_msg("%s", c->err.msg);
    c->status = model_config_read(&c->config, checkpoint, &c->arena, &c->err);
    checkpoint_close(checkpoint);
}

/* `json` with the members of `changes` set (null: removed). Borrowed texts; the result is read into
 * c, whose arena the caller ends. */
static inline void read_json(struct config_case *c, const char *json, const char *changes)
{
    struct dir dir;
    struct bytes file;
    json_t *base = json_loads(json, 0, NULL), *more = json_loads(changes, 0, NULL);
    const char *key;
    json_t *value;

    assert_non_null(base);
    if (more == NULL)
        fail_msg("not JSON: %s", changes);
    json_object_foreach(more, key, value)
    {
        if (json_is_string(value) && strcmp(json_string_value(value), "(absent)") == 0)
            (void)json_object_del(base, key);
        else
            (void)json_object_set(base, key, value);
    }
    char *text = json_dumps(base, 0);
    dir_make(&dir);
    dir_write_text(&dir, "config.json", text);
    make_safetensors(&file, "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    dir_write(&dir, "model.safetensors", file.data, file.size);
    read_case(c, dir.path);
    dir_remove(&dir);
    free(text);
    json_decref(base);
    json_decref(more);
}

/* Fails unless the case ended with `status` and a message that names `what`. */
static inline void expect(struct config_case *c, enum ferry_status status, const char *what,
                          const char *input)
{
    if (c->status != status || strstr(c->err.msg, what) == NULL)
        fail_msg("%s: status %d, message '%s'; wanted %d and '%s'", input, c->status, c->err.msg,
                 status, what);
    assert_null(strchr(c->err.msg, '\n'));
    arena_fini(&c->arena);
}

#endif
