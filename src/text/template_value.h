/* Values of a chat template while it runs: Python's types as far as templates use them, strings
 * with a record of which of their bytes the template wrote, and memory with a cap.
 *
 * Why here: provenance must survive every operation, so it lives in the string itself, not in the
 * operations. It must not know syntax. Nobody outside `text` includes this. */
#ifndef TEXT_TEMPLATE_VALUE_H
#define TEXT_TEMPLATE_VALUE_H

#include "base/arena.h"
#include "ferry/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tpl_kind {
    TPL_MISSING, /* no value at all; never seen by a template */
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STRING,
    TPL_SEQ,
    TPL_DICT,
    TPL_NAMESPACE,
    TPL_LOOP,
    TPL_MACRO,
    TPL_METHOD,   /* of a string, dict or list, bound to it */
    TPL_FUNCTION, /* one of the globals */
};

/* UTF-8. mask [size]: 1 where the template wrote the byte, 0 where user data did; NULL: all bytes
 * are what tpl_value.trusted says. */
struct tpl_string {
    const char *data;
    const uint8_t *mask;
    size_t size;
};

struct tpl_value {
    enum tpl_kind kind;
    bool trusted; /* strings without a mask, numbers */
    bool markup;  /* a string that is HTML (safe, escape): what is added to it is escaped */
    union {
        bool b;
        int64_t i;
        double f;
        struct tpl_string s;
        struct tpl_seq *seq;
        struct tpl_dict *dict; /* DICT, NAMESPACE */
        struct tpl_loop *loop;
        struct tpl_macro *macro;
        struct tpl_method *method;
        int function;
        const struct tpl_hint *hint; /* UNDEFINED */
    } u;
};

enum tpl_seq_kind {
    TPL_LIST,
    TPL_TUPLE,
    TPL_RANGE,
    TPL_VIEW,      /* keys(), values(), items() of a dict: no index */
    TPL_GENERATOR, /* no length, no index, read once */
};

struct tpl_seq {
    enum tpl_seq_kind kind;
    struct tpl_value *items; /* [n] */
    size_t n;
    size_t taken;  /* GENERATOR: items that were read */
    int64_t start; /* RANGE, for printing */
    int64_t stop;
    int64_t step;
};

/* Insertion order, as Python's. */
struct tpl_dict {
    struct tpl_value *keys; /* [n] */
    struct tpl_value *values;
    size_t n;
    size_t capacity;
};

struct tpl_method {
    struct tpl_value self;
    int index; /* in the table of template_method.c */
};

/* Why a value is undefined; the message is made when it is needed. */
struct tpl_hint {
    const char *message;    /* whole message, or NULL: */
    struct tpl_value owner; /* MISSING: a variable */
    struct tpl_value name;
};

/* Memory of one template or one rendering: an arena cut finely, with a cap. */
struct tpl_pool {
    struct arena arena;
    char *at;
    size_t left;
    size_t limit; /* bytes */
    bool over;    /* the limit was met */
};

void tpl_pool_init(struct tpl_pool *pool, const char *name, size_t limit);
void tpl_pool_fini(struct tpl_pool *pool);

/* 16-byte aligned, undefined contents; NULL when out of memory or over the limit (then pool->over).
 * n_bytes 0 gives a valid pointer. */
void *tpl_pool_get(struct tpl_pool *pool, size_t n_bytes);

/* One rendering. */
struct tpl_run {
    struct tpl_pool pool;
    uint64_t steps_left;
    int depth; /* of the evaluation and of walks over values */
    int line;  /* of the node at work */
    enum ferry_status status;
    struct ferry_error *err;
    int64_t now_s;
    size_t output_limit;
    const struct template *t;
    struct tpl_value *globals; /* [names] variables of the caller, MISSING when there is none */
    struct tpl_builder *out;   /* where output goes */
};

/* Records the first error, "template line N: ..."; always false. */
bool tpl_fail(struct tpl_run *run, enum ferry_status status, const char *format, ...)
    FERRY_PRINTF(3, 4);
bool tpl_no_memory(struct tpl_run *run);

/* Spends steps; false (and an error) when none are left. */
bool tpl_work(struct tpl_run *run, uint64_t steps);

/* Spends what copying n_bytes costs. */
bool tpl_work_bytes(struct tpl_run *run, size_t n_bytes);

/* Goes one level deeper; false (and an error) at LIMIT_TEMPLATE_RUN_DEPTH. Every true needs a
 * tpl_leave. */
bool tpl_enter(struct tpl_run *run);
void tpl_leave(struct tpl_run *run);

/* Memory of the rendering; NULL after an error. Array: n * size bytes, zeroed. */
void *tpl_get(struct tpl_run *run, size_t n_bytes);
void *tpl_array(struct tpl_run *run, size_t n, size_t size);

/* Plain values. tpl_text borrows a C string. */
struct tpl_value tpl_none(void);
struct tpl_value tpl_bool(bool b);
struct tpl_value tpl_int(int64_t i, bool trusted);
struct tpl_value tpl_float(double f, bool trusted);
struct tpl_value tpl_bytes(const char *data, size_t size, bool trusted);
struct tpl_value tpl_text(const char *text, bool trusted);

/* An undefined value: variable `name`, or member `name` of owner. False: out of memory. */
bool tpl_undefined(struct tpl_run *run, const struct tpl_value *owner, const struct tpl_value *name,
                   struct tpl_value *ret);
bool tpl_undefined_because(struct tpl_run *run, const char *message, struct tpl_value *ret);

/* Fails with the message of an undefined value. */
bool tpl_fail_undefined(struct tpl_run *run, const struct tpl_value *value);

/* Bytes [start, end) of a string. */
struct tpl_value tpl_sub(const struct tpl_value *s, size_t start, size_t end);
bool tpl_is_trusted(const struct tpl_value *s, size_t at);
bool tpl_is_text(const struct tpl_value *value, const char *text);

/* Python's names: 'str', 'int', 'list', 'dict', ... */
const char *tpl_type_name(const struct tpl_value *value);

/* A list of n items (undefined contents), or another sequence; NULL after an error. */
struct tpl_seq *tpl_seq_new(struct tpl_run *run, enum tpl_seq_kind kind, size_t n);
struct tpl_value tpl_seq_value(struct tpl_seq *seq);
bool tpl_pair(struct tpl_run *run, const struct tpl_value *first, const struct tpl_value *second,
              struct tpl_value *ret);

struct tpl_dict *tpl_dict_new(struct tpl_run *run, size_t capacity);
struct tpl_value tpl_dict_value(struct tpl_dict *dict);

/* Value of a key, NULL when it is not there; costs steps. *ret_ok false after an error. */
struct tpl_value *tpl_dict_find(struct tpl_run *run, const struct tpl_dict *dict,
                                const struct tpl_value *key, bool *ret_ok);
bool tpl_dict_set(struct tpl_run *run, struct tpl_dict *dict, const struct tpl_value *key,
                  const struct tpl_value *value);

/* Growing string with its mask, in the run's memory. {0} to start. limit 0: memory only. */
struct tpl_builder {
    char *data;
    uint8_t *mask;
    size_t size;
    size_t capacity;
    bool any_trusted;
    bool any_user;
};

bool tpl_put(struct tpl_run *run, struct tpl_builder *b, const char *data, size_t n, bool trusted);
bool tpl_put_text(struct tpl_run *run, struct tpl_builder *b, const char *text);
bool tpl_put_string(struct tpl_run *run, struct tpl_builder *b, const struct tpl_value *s);
/* The string so many times; what cannot fit fails before anything is copied. */
bool tpl_put_times(struct tpl_run *run, struct tpl_builder *b, const struct tpl_value *s,
                   uint64_t times);
/* Room for n more bytes, for who knows what comes. */
bool tpl_reserve(struct tpl_run *run, struct tpl_builder *b, size_t n);
struct tpl_value tpl_built(const struct tpl_builder *b);

#endif
