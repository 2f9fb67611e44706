/* Small tokenizers. See small.h. */
#include "small.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

static void put(struct bytes *b, const char *text)
{
    assert_true(bytes_append(b, text, strlen(text)));
}

static void put_member(struct bytes *b, const char *key, const char *json)
{
    if (json == NULL)
        return;
    put(b, "\"");
    put(b, key);
    put(b, "\":");
    put(b, json);
    put(b, ",");
}

static void put_escaped(struct bytes *b, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '"' || text[i] == '\\')
            put(b, "\\");
        assert_true(bytes_append(b, text + i, 1));
    }
}

static void put_alphabet(struct bytes *b, const char *const *merges)
{
    int id = 0;
    char number[32];

    for (; id < 256; id++) {
        char text[4];
        size_t n = utf8_encode(byte_level_from_byte((unsigned char)id), text);
        put(b, id == 0 ? "\"" : ",\"");
        put_escaped(b, text, n);
        (void)snprintf(number, sizeof number, "\":%d", id);
        put(b, number);
    }
    for (; merges != NULL && *merges != NULL; merges++, id++) {
        const char *space = strchr(*merges, ' ');
        put(b, ",\"");
        put_escaped(b, *merges, (size_t)(space - *merges));
        put_escaped(b, space + 1, strlen(space + 1));
        (void)snprintf(number, sizeof number, "\":%d", id);
        put(b, number);
    }
}

void small_json(const struct small *small, struct bytes *ret)
{
    put(ret, "{");
    put_member(ret, "normalizer", small->normalizer);
    put_member(ret, "pre_tokenizer", small->pre_tokenizer);
    put_member(ret, "post_processor", small->post_processor);
    put_member(ret, "decoder", small->decoder);
    put(ret, "\"added_tokens\":[");
    put(ret, small->added == NULL ? "" : small->added);
    put(ret, "],\"model\":{\"type\":\"BPE\",");
    put(ret, small->model == NULL ? "" : small->model);
    put(ret, "\"vocab\":{");
    if (small->vocab == NULL)
        put_alphabet(ret, small->merges);
    else
        put(ret, small->vocab);
    put(ret, "},\"merges\":[");
    for (const char *const *m = small->merges; m != NULL && *m != NULL; m++) {
        put(ret, m == small->merges ? "\"" : ",\"");
        put_escaped(ret, *m, strlen(*m));
        put(ret, "\"");
    }
    put(ret, "]}}");
    assert_true(bytes_append(ret, "", 1));
    ret->size--;
}

struct tokenizer *small_tokenizer(const struct small *small)
{
    struct tokenizer *tokenizer = NULL;
    struct ferry_error err = {0};
    struct bytes json = {0};

    small_json(small, &json);
    if (tokenizer_create_json(&tokenizer, json.data, json.size, NULL, 0, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    bytes_fini(&json);
    return tokenizer;
}

void expect_refused(const struct small *small, enum ferry_status status, const char *part)
{
    struct tokenizer *tokenizer = NULL;
    struct ferry_error err = {0};
    struct bytes json = {0};

    small_json(small, &json);
    assert_int_equal(tokenizer_create_json(&tokenizer, json.data, json.size, NULL, 0, &err),
                     status);
    assert_null(tokenizer);
    if (strstr(err.msg, part) == NULL)
        fail_msg("\"%s\" does not hold \"%s\"", err.msg, part);
    assert_null(strchr(err.msg, '\n'));
    bytes_fini(&json);
}

void expect_ids_n(const struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                  bool add_special, bool parse_special, const char *ids)
{
    struct token_ids got = {0};
    struct ferry_error err = {0};
    char line[1024] = "";
    size_t used = 0;

    if (tokenizer_encode(tokenizer, text, n_bytes, add_special, parse_special, &got, &err) !=
        FERRY_OK)
        fail_msg("%s", err.msg);
    for (size_t i = 0; i < got.count; i++)
        used +=
            (size_t)snprintf(line + used, sizeof line - used, i == 0 ? "%d" : " %d", got.ids[i]);
    assert_string_equal(line, ids);
    token_ids_fini(&got);
}

void expect_ids(const struct tokenizer *tokenizer, const char *text, bool parse_special,
                const char *ids)
{
    expect_ids_n(tokenizer, text, strlen(text), false, parse_special, ids);
}

void expect_text(const struct tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special,
                 const char *text)
{
    char *got = NULL;
    size_t size = 0;

    assert_int_equal(tokenizer_decode(tokenizer, ids, n, skip_special, &got, &size, NULL),
                     FERRY_OK);
    assert_string_equal(got, text);
    assert_int_equal(size, strlen(text));
    mem_free(got);
}

void expect_round_trip(const struct tokenizer *tokenizer, const char *text, size_t n_bytes)
{
    struct token_ids ids = {0};
    char *got = NULL;
    size_t size = 0;
    size_t at = 0;

    assert_int_equal(tokenizer_encode(tokenizer, text, n_bytes, false, true, &ids, NULL), FERRY_OK);
    assert_int_equal(tokenizer_decode(tokenizer, ids.ids, ids.count, false, &got, &size, NULL),
                     FERRY_OK);
    assert_int_equal(size, n_bytes);
    assert_memory_equal(got, text, n_bytes);
    for (size_t i = 0; i < ids.count; i++) {
        size_t n;
        const char *piece = tokenizer_piece(tokenizer, ids.ids[i], false, &n);
        assert_true(at + n <= n_bytes);
        assert_memory_equal(piece, text + at, n);
        at += n;
    }
    assert_int_equal(at, n_bytes);
    mem_free(got);
    token_ids_fini(&ids);
}

enum { TYPE_U32 = 4, TYPE_I32 = 5, TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_STRING = 8, TYPE_ARRAY = 9 };

static void put_raw(struct bytes *b, const void *data, size_t n)
{
    assert_true(bytes_append(b, data, n));
}

static void put_text(struct bytes *b, const char *text)
{
    uint64_t size = strlen(text);
    put_raw(b, &size, sizeof size);
    put_raw(b, text, size);
}

static void put_key(struct small_gguf *gguf, const char *key, uint32_t type)
{
    put_text(&gguf->keys, key);
    put_raw(&gguf->keys, &type, sizeof type);
    gguf->n_keys++;
}

static void put_array(struct small_gguf *gguf, const char *key, uint32_t type, uint64_t n)
{
    put_key(gguf, key, TYPE_ARRAY);
    put_raw(&gguf->keys, &type, sizeof type);
    put_raw(&gguf->keys, &n, sizeof n);
}

void gguf_put_string(struct small_gguf *gguf, const char *key, const char *value)
{
    put_key(gguf, key, TYPE_STRING);
    put_text(&gguf->keys, value);
}

void gguf_put_u32(struct small_gguf *gguf, const char *key, uint32_t value)
{
    put_key(gguf, key, TYPE_U32);
    put_raw(&gguf->keys, &value, sizeof value);
}

void gguf_put_bool(struct small_gguf *gguf, const char *key, bool value)
{
    char byte = value;
    put_key(gguf, key, TYPE_BOOL);
    put_raw(&gguf->keys, &byte, 1);
}

void gguf_put_strings(struct small_gguf *gguf, const char *key, const char *const *values, size_t n)
{
    put_array(gguf, key, TYPE_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_text(&gguf->keys, values[i]);
}

void gguf_put_i32s(struct small_gguf *gguf, const char *key, const int32_t *values, size_t n)
{
    put_array(gguf, key, TYPE_I32, n);
    put_raw(&gguf->keys, values, n * sizeof *values);
}

void gguf_put_f32s(struct small_gguf *gguf, const char *key, const float *values, size_t n)
{
    put_array(gguf, key, TYPE_F32, n);
    put_raw(&gguf->keys, values, n * sizeof *values);
}

void gguf_write(struct small_gguf *gguf, struct bytes *ret)
{
    uint32_t version = 3;
    uint64_t n_tensors = 0;

    put_raw(ret, "GGUF", 4);
    put_raw(ret, &version, sizeof version);
    put_raw(ret, &n_tensors, sizeof n_tensors);
    put_raw(ret, &gguf->n_keys, sizeof gguf->n_keys);
    put_raw(ret, gguf->keys.data, gguf->keys.size);
    bytes_fini(&gguf->keys);
}
