/* Flags that all verbs share, and small parsers for flag values. See app.h. */
#include "app/app.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/log.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool parse_size(const char *text, size_t min, size_t max, size_t *ret)
{
    char *end = NULL;

    if (!isdigit((unsigned char)text[0]))
        return false;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != 0 || value < min || value > max)
        return false;
    *ret = (size_t)value;
    return true;
}

bool parse_sizes(const char *text, size_t min, size_t max, size_t most, size_t *ret_values,
                 size_t *ret_n)
{
    size_t count = 0;

    for (;;) {
        char item[24];
        size_t n = strcspn(text, ",");
        if (n >= sizeof item || count == most)
            return false;
        memcpy(item, text, n);
        item[n] = 0;
        if (!parse_size(item, min, max, &ret_values[count++]))
            return false;
        if (text[n] == 0)
            break;
        text += n + 1;
    }
    *ret_n = count;
    return true;
}

bool parse_double(const char *text, double *ret)
{
    char *end = NULL;

    errno = 0;
    double value = strtod(text, &end);
    if (end == text || *end != 0 || !isfinite(value))
        return false;
    *ret = value;
    return true;
}

enum ferry_status parse_ids(const char *text, size_t n_bytes, struct token_ids *ids,
                            struct ferry_error *err)
{
    size_t i = 0;

    while (i < n_bytes) {
        if (text[i] == ',' || isspace((unsigned char)text[i])) {
            i++;
            continue;
        }
        size_t start = i;
        int64_t value = 0;
        while (i < n_bytes && isdigit((unsigned char)text[i]) && value <= INT32_MAX)
            value = value * 10 + (text[i++] - '0');
        bool ended = i == n_bytes || text[i] == ',' || isspace((unsigned char)text[i]);
        if (i == start || value > INT32_MAX || !ended)
            return FERRY_FAIL(
                err, FERRY_ERR_FORMAT, "token ids: no whole number in 0..%d at byte %zu: '%.*s'",
                INT32_MAX, start, (int)(n_bytes - start < 16 ? n_bytes - start : 16), text + start);
        if (!token_ids_append(ids, (int32_t)value))
            return FERRY_FAIL(err, FERRY_ERR_NOMEM, "token ids: no memory");
    }
    return FERRY_OK;
}

enum ferry_status read_file(const char *path, char **ret_text, size_t *ret_size,
                            struct ferry_error *err)
{
    bool standard = strcmp(path, "-") == 0;
    FILE *f = standard ? stdin : fopen(path, "re");
    size_t size = 0, capacity = 64 << 10;
    char *text = mem_alloc(capacity);
    enum ferry_status st = FERRY_OK;

    if (f == NULL) {
        st = FERRY_FAIL(err, FERRY_ERR_NOT_FOUND, "cannot open '%s': %s", path, strerror(errno));
        goto out;
    }
    for (;;) {
        if (text == NULL) {
            st = FERRY_FAIL(err, FERRY_ERR_NOMEM, "'%s': no memory for %zu bytes", path, capacity);
            goto out;
        }
        size += fread(text + size, 1, capacity - 1 - size, f);
        if (size < capacity - 1)
            break;
        char *grown = mem_resize(text, size, capacity * 2);
        if (grown == NULL)
            mem_free(text);
        text = grown;
        capacity *= 2;
    }
    if (ferror(f)) {
        st = FERRY_FAIL(err, FERRY_ERR_IO, "cannot read '%s': %s", path, strerror(errno));
        goto out;
    }
    text[size] = 0;
    *ret_text = text;
    *ret_size = size;
    text = NULL;
out:
    if (f != NULL && !standard)
        (void)fclose(f);
    mem_free(text);
    return st;
}

enum ferry_status read_ids(const char *list, const char *path, struct token_ids *ids,
                           struct ferry_error *err)
{
    char *text = NULL;
    size_t size = 0;

    if (list != NULL)
        return parse_ids(list, strlen(list), ids, err);
    enum ferry_status st = read_file(path, &text, &size, err);
    if (st == FERRY_OK)
        st = parse_ids(text, size, ids, err);
    mem_free(text);
    return st;
}

enum {
    KEY_THREADS = 't',
    KEY_CONTEXT = 'c',
    KEY_CHUNK = 0x100,
    KEY_LEVEL,
    KEY_KV,
    KEY_NO_REPACK,
    KEY_REPACK,
    KEY_RANKS,
    KEY_COMBINE,
    KEY_PLACEMENT,
    KEY_REPLICAS,
    KEY_LISTEN,
    KEY_JOIN,
    KEY_SEAT,
    KEY_GROUP_KEY,
    KEY_BATCHES,
    KEY_BUNDLE,
    KEY_JSON,
};

/* One table for flags and environment: FERRY_THREADS is --threads. */
static const struct {
    int key;
    const char *variable;
} VARIABLES[] = {
    {KEY_THREADS, "FERRY_THREADS"},
    {KEY_CONTEXT, "FERRY_CONTEXT"},
    {KEY_CHUNK, "FERRY_PREFILL_CHUNK"},
    {KEY_LEVEL, "FERRY_CPU_LEVEL"},
    {KEY_KV, "FERRY_KV"},
    {KEY_NO_REPACK, "FERRY_NO_REPACK"},
    {KEY_RANKS, "FERRY_RANKS"},
    {KEY_COMBINE, "FERRY_COMBINE"},
    {KEY_PLACEMENT, "FERRY_PLACEMENT"},
    {KEY_REPLICAS, "FERRY_REPLICAS"},
    {KEY_GROUP_KEY, "FERRY_GROUP_KEY_FILE"},
};

static const struct argp_option SHARED[] = {
    {"threads", KEY_THREADS, "N", 0, "Compute threads (default: all processors)", 10},
    {"context", KEY_CONTEXT, "N", 0,
     "Tokens of one sequence at most (default: what the model was trained for, up to 4096)", 10},
    {"prefill-chunk", KEY_CHUNK, "N|all", 0,
     "Prompt tokens of one step (default 512); no effect on the answer", 10},
    {"cpu-level", KEY_LEVEL, "ref|avx2", 0,
     "Instruction set (default: the best this machine has); no effect on the answer", 10},
    {"kv", KEY_KV, "f16|bf16|f32", 0, "Number format of the KV cache (default f16)", 10},
    {"combine", KEY_COMBINE, "f32|bf16", 0,
     "Number format of sums of expert outputs (default f32; bf16 halves what comes back from other "
     "ranks and changes the answer's bits)",
     10},
    {"no-repack", KEY_NO_REPACK, NULL, 0, "Compute from the file's layout: slower, half the memory",
     10},
    {"repack", KEY_REPACK, NULL, 0, "Repack weights for speed (the default)", 10},
    {"json", KEY_JSON, NULL, 0, "Print JSON (not for serve: it has /metrics and --access-log)", 10},
    {NULL, 0, NULL, 0, "Expert parallelism (no effect on the answer):", 11},
    {"ranks", KEY_RANKS, "N", 0,
     "Ranks that share the experts (default 1): starts N - 1 more processes here, unless --listen "
     "or "
     "--join is given",
     11},
    {"placement", KEY_PLACEMENT, "FILE", 0,
     "Who holds which expert: a plan's JSON file, 'contiguous' (the default) or 'random:SEED'", 11},
    {"replicas", KEY_REPLICAS, "N", 0, "Ranks that hold each expert (default 1)", 11},
    {"listen", KEY_LISTEN, "HOST:PORT", 0,
     "Found a group of --ranks N that others join at this address; with --join: this rank's own "
     "(default: loopback, or when it joins another host with a key, the best one of this host)",
     11},
    {"join", KEY_JOIN, "HOST:PORT", 0, "Join a group by any member's address", 11},
    {"seat", KEY_SEAT, "N", 0, "Seat to take in the group (default: any free one)", 11},
    {"group-key-file", KEY_GROUP_KEY, "FILE", 0,
     "Secret that all ranks must have; needed beyond loopback", 11},
    {"bundle-bytes", KEY_BUNDLE, "N", 0,
     "Bytes that must be saved for rows to cross to another host once and be passed on there "
     "(default 32768)",
     11},
    {"micro-batches", KEY_BATCHES, "1|2", 0,
     "Parts that a step is cut into, so that one computes while the other's rows travel (default: "
     "2 "
     "when many rows go to other hosts)",
     11},
    {0},
};

/* One flag or variable; *ret_why is set when the value is refused. */
static void apply(struct shared_options *o, int key, const char *text, const char **ret_why)
{
    size_t n = 0;

    switch (key) {
    case KEY_THREADS:
        if (!parse_size(text, 1, LIMIT_THREADS, &n))
            *ret_why = "is not a whole number in 1..1024";
        o->n_threads = (int)n;
        break;
    case KEY_CONTEXT:
        if (!parse_size(text, 1, LIMIT_CONTEXT, &o->context))
            *ret_why = "is not a whole number in 1..16777216";
        break;
    case KEY_CHUNK:
        if (strcmp(text, "all") == 0)
            o->prefill_chunk = SIZE_MAX;
        else if (!parse_size(text, 1, LIMIT_CONTEXT, &o->prefill_chunk))
            *ret_why = "is neither 'all' nor a whole number >= 1";
        break;
    case KEY_LEVEL:
        if (!cpu_level_parse(text, &o->level))
            *ret_why = "is neither 'ref' nor 'avx2'";
        else if (o->level > cpu_best_level())
            *ret_why = "is more than this processor has";
        break;
    case KEY_KV:
        if (!dtype_parse(text, &o->kv) ||
            (o->kv != DTYPE_F32 && o->kv != DTYPE_F16 && o->kv != DTYPE_BF16))
            *ret_why = "is none of f16, bf16, f32";
        break;
    case KEY_NO_REPACK:
        o->no_repack = text == NULL || strcmp(text, "0") != 0;
        break;
    case KEY_REPACK:
        o->no_repack = false;
        break;
    case KEY_RANKS:
        if (!parse_size(text, 1, LIMIT_SEATS, &o->group.n_ranks))
            *ret_why = "is not a whole number in 1..64";
        break;
    case KEY_REPLICAS:
        if (!parse_size(text, 1, LIMIT_SEATS, &o->group.n_replicas))
            *ret_why = "is not a whole number in 1..64";
        break;
    case KEY_SEAT:
        if (!parse_size(text, 0, LIMIT_SEATS - 1, &n))
            *ret_why = "is not a whole number in 0..63";
        o->group.seat = (int)n + 1;
        break;
    case KEY_PLACEMENT:
        o->group.placement = text;
        break;
    case KEY_LISTEN:
        o->group.listen = text;
        break;
    case KEY_JOIN:
        o->group.join = text;
        break;
    case KEY_GROUP_KEY:
        o->group.key_file = text;
        break;
    case KEY_BUNDLE:
        if (!parse_size(text, 1, SIZE_MAX, &o->bundle_bytes))
            *ret_why = "is not a whole number >= 1";
        break;
    case KEY_BATCHES:
        if (!parse_size(text, 1, 2, &o->micro_batches))
            *ret_why = "is neither 1 nor 2";
        break;
    case KEY_COMBINE:
        if (strcmp(text, "f32") != 0 && strcmp(text, "bf16") != 0)
            *ret_why = "is neither f32 nor bf16";
        o->combine_bf16 = strcmp(text, "bf16") == 0;
        break;
    case KEY_JSON:
        o->json = true;
        break;
    default:
        break;
    }
}

void shared_options_init(struct shared_options *options)
{
    *options = (struct shared_options){.level = cpu_best_level(), .kv = DTYPE_F16};
    for (size_t i = 0; i < sizeof VARIABLES / sizeof VARIABLES[0]; i++) {
        const char *value = getenv(VARIABLES[i].variable), *why = NULL;
        if (value == NULL || value[0] == 0)
            continue;
        apply(options, VARIABLES[i].key, value, &why);
        if (why != NULL && options->bad_variable == NULL) {
            options->bad_variable = VARIABLES[i].variable;
            options->bad_why = why;
        }
    }
}

bool parse_flags(const struct argp *argp, int argc, char **argv, struct shared_options *shared,
                 void *input)
{
    shared_options_init(shared);
    if (argp_parse(argp, argc, argv, 0, NULL, input) != 0)
        return false;
    if (shared->bad_variable == NULL)
        return true;
    LOG_ERROR("environment: %s='%s' %s", shared->bad_variable, getenv(shared->bad_variable),
              shared->bad_why);
    return false;
}

void flag_failure(const struct argp_state *state, const struct argp_option *options, int key,
                  const char *value, const char *format, ...)
{
    const struct argp_option *o = options;
    char why[200];
    va_list args;

    while (o->name != NULL && o->key != key)
        o++;
    va_start(args, format);
    (void)vsnprintf(why, sizeof why, format, args);
    va_end(args);
    argp_failure(state, EXIT_USAGE, 0, "--%s '%s' %s", o->name != NULL ? o->name : "?", value, why);
}

static const char *flag_name(int key)
{
    for (size_t i = 0; i < sizeof SHARED / sizeof SHARED[0]; i++) {
        if (SHARED[i].key == key && SHARED[i].name != NULL)
            return SHARED[i].name;
    }
    return "?";
}

static error_t parse_shared(int key, char *arg, struct argp_state *state)
{
    struct shared_options *options = state->input;
    const char *why = NULL;

    switch (key) {
    case KEY_THREADS:
    case KEY_CONTEXT:
    case KEY_CHUNK:
    case KEY_LEVEL:
    case KEY_KV:
    case KEY_NO_REPACK:
    case KEY_REPACK:
    case KEY_RANKS:
    case KEY_COMBINE:
    case KEY_PLACEMENT:
    case KEY_REPLICAS:
    case KEY_LISTEN:
    case KEY_JOIN:
    case KEY_SEAT:
    case KEY_GROUP_KEY:
    case KEY_BATCHES:
    case KEY_BUNDLE:
    case KEY_JSON:
        apply(options, key, arg, &why);
        if (why != NULL) {
            LOG_ERROR("--%s '%s' %s", flag_name(key), arg, why);
            exit(EXIT_USAGE);
        }
        return 0;
    case ARGP_KEY_ARG:
        if (options->model != NULL)
            return ARGP_ERR_UNKNOWN;
        options->model = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        LOG_ERROR("MODEL is missing; '%s --help' tells the usage", state->name);
        exit(EXIT_USAGE);
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp shared_argp = {.options = SHARED, .parser = parse_shared};
