/* Values of chat templates. See template_value.h. */
#include "text/template_value.h"

#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"
#include "text/template_ops.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { POOL_CHUNK = 1 << 14, POOL_ALIGN = 16, BYTES_PER_STEP = 64 };

void tpl_pool_init(struct tpl_pool *pool, const char *name, size_t limit)
{
    *pool = (struct tpl_pool){.limit = limit};
    arena_init(&pool->arena, name);
}

void tpl_pool_fini(struct tpl_pool *pool)
{
    arena_fini(&pool->arena);
}

void *tpl_pool_get(struct tpl_pool *pool, size_t n_bytes)
{
    size_t need;

    if (!round_up_size(max_size(n_bytes, 1), POOL_ALIGN, &need))
        return NULL;
    if (need > pool->left) {
        size_t chunk = max_size(need, POOL_CHUNK);
        if (pool->arena.used > pool->limit || chunk > pool->limit - pool->arena.used) {
            pool->over = true;
            return NULL;
        }
        char *block = arena_alloc(&pool->arena, chunk);
        if (block == NULL)
            return NULL;
        if (chunk > POOL_CHUNK) /* a block of its own: the open chunk stays open */
            return block;
        pool->at = block;
        pool->left = chunk;
    }
    char *p = pool->at;
    pool->at += need;
    pool->left -= need;
    return p;
}

bool tpl_fail(struct tpl_run *run, enum ferry_status status, const char *format, ...)
{
    char text[400];
    va_list args;

    if (run->status != FERRY_OK)
        return false;
    run->status = status;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    (void)FERRY_FAIL(run->err, status, "chat template line %d: %s", run->line, text);
    return false;
}

bool tpl_no_memory(struct tpl_run *run)
{
    if (run->pool.over)
        return tpl_fail(run, FERRY_ERR_LIMIT,
                        "its values need more than %zu bytes (limit); shorten the messages",
                        run->pool.limit);
    return tpl_fail(run, FERRY_ERR_NOMEM, "out of memory");
}

bool tpl_work(struct tpl_run *run, uint64_t steps)
{
    if (steps > run->steps_left)
        return tpl_fail(run, FERRY_ERR_LIMIT,
                        "too much work (limit of evaluation steps); shorten the messages");
    run->steps_left -= steps;
    return true;
}

bool tpl_work_bytes(struct tpl_run *run, size_t n_bytes)
{
    return tpl_work(run, n_bytes / BYTES_PER_STEP);
}

bool tpl_enter(struct tpl_run *run)
{
    if (run->depth >= LIMIT_TEMPLATE_RUN_DEPTH)
        return tpl_fail(run, FERRY_ERR_LIMIT, "nested more than %d deep (limit)",
                        (int)LIMIT_TEMPLATE_RUN_DEPTH);
    run->depth++;
    return true;
}

void tpl_leave(struct tpl_run *run)
{
    run->depth--;
}

void *tpl_get(struct tpl_run *run, size_t n_bytes)
{
    void *p = tpl_pool_get(&run->pool, n_bytes);

    if (p == NULL)
        (void)tpl_no_memory(run);
    return p;
}

void *tpl_array(struct tpl_run *run, size_t n, size_t size)
{
    size_t n_bytes;

    if (!mul_size(n, size, &n_bytes)) {
        run->pool.over = true;
        (void)tpl_no_memory(run);
        return NULL;
    }
    if (!tpl_work_bytes(run, n_bytes))
        return NULL;
    void *p = tpl_get(run, n_bytes);
    if (p != NULL)
        memset(p, 0, n_bytes);
    return p;
}

struct tpl_value tpl_none(void)
{
    return (struct tpl_value){.kind = TPL_NONE};
}

struct tpl_value tpl_bool(bool b)
{
    return (struct tpl_value){.kind = TPL_BOOL, .u.b = b};
}

struct tpl_value tpl_int(int64_t i, bool trusted)
{
    return (struct tpl_value){.kind = TPL_INT, .trusted = trusted, .u.i = i};
}

struct tpl_value tpl_float(double f, bool trusted)
{
    return (struct tpl_value){.kind = TPL_FLOAT, .trusted = trusted, .u.f = f};
}

struct tpl_value tpl_bytes(const char *data, size_t size, bool trusted)
{
    return (struct tpl_value){
        .kind = TPL_STRING, .trusted = trusted, .u.s = {.data = data, .size = size}};
}

struct tpl_value tpl_text(const char *text, bool trusted)
{
    return tpl_bytes(text, strlen(text), trusted);
}

bool tpl_undefined(struct tpl_run *run, const struct tpl_value *owner, const struct tpl_value *name,
                   struct tpl_value *ret)
{
    struct tpl_hint *hint = tpl_get(run, sizeof *hint);

    if (hint == NULL)
        return false;
    *hint = (struct tpl_hint){.name = *name};
    if (owner != NULL)
        hint->owner = *owner;
    *ret = (struct tpl_value){.kind = TPL_UNDEFINED, .u.hint = hint};
    return true;
}

bool tpl_undefined_because(struct tpl_run *run, const char *message, struct tpl_value *ret)
{
    struct tpl_hint *hint = tpl_get(run, sizeof *hint);

    if (hint == NULL)
        return false;
    *hint = (struct tpl_hint){.message = message};
    *ret = (struct tpl_value){.kind = TPL_UNDEFINED, .u.hint = hint};
    return true;
}

bool tpl_fail_undefined(struct tpl_run *run, const struct tpl_value *value)
{
    const struct tpl_hint *hint = value->u.hint;

    if (hint->message != NULL)
        return tpl_fail(run, FERRY_ERR_ARG, "%s", hint->message);
    const struct tpl_value *name = &hint->name;
    if (name->kind != TPL_STRING)
        return tpl_fail(run, FERRY_ERR_ARG, "a %s has no such element",
                        tpl_type_name(&hint->owner));
    int n = (int)min_size(name->u.s.size, 80);
    if (hint->owner.kind == TPL_MISSING)
        return tpl_fail(run, FERRY_ERR_ARG, "'%.*s' is undefined", n, name->u.s.data);
    if (hint->owner.kind == TPL_NONE)
        return tpl_fail(run, FERRY_ERR_ARG, "None has no attribute '%.*s'", n, name->u.s.data);
    return tpl_fail(run, FERRY_ERR_ARG, "'%s object' has no attribute '%.*s'",
                    tpl_type_name(&hint->owner), n, name->u.s.data);
}

struct tpl_value tpl_sub(const struct tpl_value *s, size_t start, size_t end)
{
    struct tpl_value sub = *s;

    sub.u.s.data = s->u.s.data + start;
    sub.u.s.size = end - start;
    if (s->u.s.mask != NULL)
        sub.u.s.mask = s->u.s.mask + start;
    return sub;
}

bool tpl_is_trusted(const struct tpl_value *s, size_t at)
{
    return s->u.s.mask == NULL ? s->trusted : s->u.s.mask[at] != 0;
}

bool tpl_is_text(const struct tpl_value *value, const char *text)
{
    return value->kind == TPL_STRING && value->u.s.size == strlen(text) &&
           memcmp(value->u.s.data, text, value->u.s.size) == 0;
}

const char *tpl_type_name(const struct tpl_value *value)
{
    static const char *const NAMES[] = {
        [TPL_MISSING] = "missing",  [TPL_UNDEFINED] = "Undefined",
        [TPL_NONE] = "NoneType",    [TPL_BOOL] = "bool",
        [TPL_INT] = "int",          [TPL_FLOAT] = "float",
        [TPL_STRING] = "str",       [TPL_DICT] = "dict",
        [TPL_SEQ] = "list",         [TPL_NAMESPACE] = "Namespace",
        [TPL_LOOP] = "LoopContext", [TPL_MACRO] = "Macro",
        [TPL_METHOD] = "method",    [TPL_FUNCTION] = "function",
    };
    static const char *const SEQUENCES[] = {
        [TPL_LIST] = "list",       [TPL_TUPLE] = "tuple",         [TPL_RANGE] = "range",
        [TPL_VIEW] = "dict_items", [TPL_GENERATOR] = "generator",
    };

    return value->kind == TPL_SEQ ? SEQUENCES[value->u.seq->kind] : NAMES[value->kind];
}

struct tpl_seq *tpl_seq_new(struct tpl_run *run, enum tpl_seq_kind kind, size_t n)
{
    struct tpl_seq *seq = tpl_get(run, sizeof *seq);

    if (seq == NULL)
        return NULL;
    *seq = (struct tpl_seq){.kind = kind, .n = n};
    seq->items = tpl_array(run, n, sizeof *seq->items);
    return seq->items == NULL ? NULL : seq;
}

struct tpl_value tpl_seq_value(struct tpl_seq *seq)
{
    return (struct tpl_value){.kind = TPL_SEQ, .u.seq = seq};
}

bool tpl_pair(struct tpl_run *run, const struct tpl_value *first, const struct tpl_value *second,
              struct tpl_value *ret)
{
    struct tpl_seq *seq = tpl_seq_new(run, TPL_TUPLE, 2);

    if (seq == NULL)
        return false;
    seq->items[0] = *first;
    seq->items[1] = *second;
    *ret = tpl_seq_value(seq);
    return true;
}

struct tpl_dict *tpl_dict_new(struct tpl_run *run, size_t capacity)
{
    struct tpl_dict *dict = tpl_get(run, sizeof *dict);

    if (dict == NULL)
        return NULL;
    *dict = (struct tpl_dict){.capacity = capacity};
    dict->keys = tpl_array(run, capacity, sizeof *dict->keys);
    dict->values = tpl_array(run, capacity, sizeof *dict->values);
    return dict->keys == NULL || dict->values == NULL ? NULL : dict;
}

struct tpl_value tpl_dict_value(struct tpl_dict *dict)
{
    return (struct tpl_value){.kind = TPL_DICT, .u.dict = dict};
}

struct tpl_value *tpl_dict_find(struct tpl_run *run, const struct tpl_dict *dict,
                                const struct tpl_value *key, bool *ret_ok)
{
    *ret_ok = tpl_work(run, 1 + dict->n / 16);
    for (size_t i = 0; i < dict->n && *ret_ok; i++) {
        const struct tpl_value *at = &dict->keys[i];
        if (key->kind == TPL_STRING && at->kind == TPL_STRING) {
            if (at->u.s.size == key->u.s.size &&
                memcmp(at->u.s.data, key->u.s.data, key->u.s.size) == 0)
                return &dict->values[i];
            continue;
        }
        bool equal = false;
        *ret_ok = tpl_equal(run, at, key, &equal);
        if (equal)
            return &dict->values[i];
    }
    return NULL;
}

bool tpl_dict_set(struct tpl_run *run, struct tpl_dict *dict, const struct tpl_value *key,
                  const struct tpl_value *value)
{
    bool ok;
    struct tpl_value *found = tpl_dict_find(run, dict, key, &ok);

    if (!ok)
        return false;
    if (found != NULL) {
        *found = *value;
        return true;
    }
    if (dict->n == dict->capacity) {
        struct tpl_dict *grown = tpl_dict_new(run, dict->capacity * 2 + 4);
        if (grown == NULL)
            return false;
        if (dict->n > 0) {
            memcpy(grown->keys, dict->keys, dict->n * sizeof *dict->keys);
            memcpy(grown->values, dict->values, dict->n * sizeof *dict->values);
        }
        grown->n = dict->n;
        *dict = *grown;
    }
    dict->keys[dict->n] = *key;
    dict->values[dict->n++] = *value;
    return true;
}

bool tpl_reserve(struct tpl_run *run, struct tpl_builder *b, size_t n)
{
    size_t need;
    size_t doubled;

    if (!add_size(b->size, n, &need) || !mul_size(b->capacity, 2, &doubled)) {
        run->pool.over = true;
        return tpl_no_memory(run);
    }
    if (need <= b->capacity)
        return true;
    size_t capacity = max_size(need, max_size(doubled, 64));
    char *data = tpl_get(run, capacity);
    uint8_t *mask = tpl_get(run, capacity);
    if (data == NULL || mask == NULL || !tpl_work_bytes(run, b->size))
        return false;
    if (b->size > 0) {
        memcpy(data, b->data, b->size);
        memcpy(mask, b->mask, b->size);
    }
    b->data = data;
    b->mask = mask;
    b->capacity = capacity;
    return true;
}

bool tpl_put(struct tpl_run *run, struct tpl_builder *b, const char *data, size_t n, bool trusted)
{
    if (n == 0)
        return true;
    if (!tpl_work_bytes(run, n) || !tpl_reserve(run, b, n))
        return false;
    memcpy(b->data + b->size, data, n);
    memset(b->mask + b->size, trusted ? 1 : 0, n);
    b->size += n;
    b->any_trusted = b->any_trusted || trusted;
    b->any_user = b->any_user || !trusted;
    return true;
}

bool tpl_put_text(struct tpl_run *run, struct tpl_builder *b, const char *text)
{
    return tpl_put(run, b, text, strlen(text), false);
}

bool tpl_put_string(struct tpl_run *run, struct tpl_builder *b, const struct tpl_value *s)
{
    size_t n = s->u.s.size;

    if (s->u.s.mask == NULL)
        return tpl_put(run, b, s->u.s.data, n, s->trusted);
    if (n == 0)
        return true;
    if (!tpl_work_bytes(run, n) || !tpl_reserve(run, b, n))
        return false;
    memcpy(b->data + b->size, s->u.s.data, n);
    memcpy(b->mask + b->size, s->u.s.mask, n);
    b->size += n;
    b->any_trusted = true;
    b->any_user = true;
    return true;
}

bool tpl_put_times(struct tpl_run *run, struct tpl_builder *b, const struct tpl_value *s,
                   uint64_t times)
{
    size_t from = b->size;
    size_t total;

    if (times == 0 || s->u.s.size == 0)
        return true;
    if (!mul_size(s->u.s.size, times, &total) || total > run->pool.limit) {
        run->pool.over = true;
        return tpl_no_memory(run);
    }
    if (!tpl_reserve(run, b, total) || !tpl_work_bytes(run, total) || !tpl_put_string(run, b, s))
        return false;
    while (b->size - from < total) { /* what is there, once more */
        size_t n = min_size(b->size - from, total - (b->size - from));
        memcpy(b->data + b->size, b->data + from, n);
        memcpy(b->mask + b->size, b->mask + from, n);
        b->size += n;
    }
    return true;
}

struct tpl_value tpl_built(const struct tpl_builder *b)
{
    struct tpl_value s = tpl_bytes(b->size == 0 ? "" : b->data, b->size, !b->any_user);

    if (b->any_trusted && b->any_user)
        s.u.s.mask = b->mask;
    return s;
}
