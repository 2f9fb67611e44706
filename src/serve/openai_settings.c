/* Settings of an answer. See openai_settings.h. */
#include "serve/openai_settings.h"

#include "base/alloc.h"
#include "base/size.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ID_DIGITS_MAX = 10 };

static enum ferry_status parse_sampling(const struct fields *f, struct sampler_options *s)
{
    int64_t top_k = 0;
    const struct {
        const char *name;
        double min, max;
        float *value;
    } REALS[] = {
        {"temperature", 0, 2, &s->temperature},
        {"top_p", 0, 1, &s->top_p},
        {"min_p", 0, 1, &s->min_p},
        {"repetition_penalty", 0.01, 100, &s->repetition_penalty},
        {"presence_penalty", -2, 2, &s->presence_penalty},
        {"frequency_penalty", -2, 2, &s->frequency_penalty},
    };
    enum ferry_status st = FERRY_OK;

    for (size_t i = 0; i < sizeof REALS / sizeof REALS[0] && st == FERRY_OK; i++)
        st = field_real(f, REALS[i].name, REALS[i].min, REALS[i].max, REALS[i].value);
    if (st == FERRY_OK)
        st = field_int(f, "top_k", -1, INT32_MAX, &top_k);
    if (st == FERRY_OK)
        s->top_k = top_k > 0 ? (size_t)top_k : 0; /* -1 and 0: all */
    return st;
}

/* An id as JSON has it in keys: decimal, without signs, spaces or leading zeros, so that no id can
 * come twice. */
static bool parse_id(const char *text, size_t n_vocab, int32_t *ret)
{
    int64_t id = 0;
    size_t n = strnlen(text, ID_DIGITS_MAX + 1);

    if (n == 0 || n > ID_DIGITS_MAX || (n > 1 && text[0] == '0'))
        return false;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        id = 10 * id + (text[i] - '0');
    }
    if (id > INT32_MAX || (n_vocab > 0 && (uint64_t)id >= n_vocab))
        return false;
    *ret = (int32_t)id;
    return true;
}

static enum ferry_status parse_biases(const struct fields *f, const struct openai_limits *limits,
                                      struct openai_request *r)
{
    json_t *object = NULL;
    const char *key;
    json_t *value;

    enum ferry_status st = field_object(f, "logit_bias", &object);
    size_t n = json_object_size(object);
    if (st != FERRY_OK || n == 0)
        return st;
    if (n > OPENAI_BIASES_MAX)
        return field_fail(f, "logit_bias", FERRY_ERR_LIMIT, "has %zu entries; the most are %d", n,
                          (int)OPENAI_BIASES_MAX);
    r->biases = mem_array(n, sizeof *r->biases);
    if (r->biases == NULL)
        return openai_error_set(f->err, FERRY_ERR_NOMEM, "out of memory");
    r->sampling.biases = r->biases;
    struct fields inner = {object, "logit_bias.", f->err};
    json_object_foreach(object, key, value)
    {
        struct logit_bias *bias = &r->biases[r->sampling.n_biases++];
        if (!parse_id(key, limits->n_vocab, &bias->id))
            return field_fail(f, "logit_bias", FERRY_ERR_ARG,
                              "has a key that is no token id of this model; keys are ids as "
                              "decimal strings, below %zu",
                              limits->n_vocab > 0 ? limits->n_vocab : (size_t)INT32_MAX);
        if (json_is_null(value))
            return field_fail(&inner, key, FERRY_ERR_ARG, "must be a number, not null");
        st = field_real(&inner, key, -100, 100, &bias->bias);
        if (st != FERRY_OK)
            return st;
    }
    return FERRY_OK;
}

static enum ferry_status add_stop(const struct fields *f, const char *name, const json_t *value,
                                  struct openai_request *r)
{
    if (!json_is_string(value))
        return field_fail(f, name, FERRY_ERR_ARG, "must be a string");
    size_t n = json_string_length(value);
    if (n == 0)
        return field_fail(f, name, FERRY_ERR_ARG, "must not be empty");
    if (n > OPENAI_STOP_BYTES_MAX)
        return field_fail(f, name, FERRY_ERR_LIMIT, "has %zu bytes; the most are %d", n,
                          (int)OPENAI_STOP_BYTES_MAX);
    r->stops[r->n_stops++] = json_string_value(value);
    return FERRY_OK;
}

static enum ferry_status parse_stops(const struct fields *f, struct openai_request *r)
{
    const json_t *value = field_get(f, "stop");
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    enum ferry_status st = FERRY_OK;

    if (value == NULL || n == 0)
        return FERRY_OK;
    if (n > OPENAI_STOPS_MAX)
        return field_fail(f, "stop", FERRY_ERR_LIMIT, "has %zu strings; the most are %d", n,
                          (int)OPENAI_STOPS_MAX);
    if (!json_is_array(value) && !json_is_string(value))
        return field_fail(f, "stop", FERRY_ERR_ARG, "must be a string or an array of strings");
    r->stops = mem_array(n, sizeof *r->stops);
    if (r->stops == NULL)
        return openai_error_set(f->err, FERRY_ERR_NOMEM, "out of memory");
    if (json_is_string(value))
        return add_stop(f, "stop", value, r);
    for (size_t i = 0; i < n && st == FERRY_OK; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "stop[%zu]", i);
        st = add_stop(f, name, json_array_get(value, i), r);
    }
    return st;
}

/* Both names of one setting; a client that sends both must mean one number. */
static enum ferry_status parse_length(const struct fields *f, struct openai_request *r)
{
    size_t first = 0;
    size_t second = 0;

    enum ferry_status st = field_size(f, "max_tokens", 1, INT32_MAX, &first);
    if (st == FERRY_OK)
        st = field_size(f, "max_completion_tokens", 1, INT32_MAX, &second);
    if (st != FERRY_OK)
        return st;
    if (first != 0 && second != 0 && first != second)
        return field_fail(f, "max_completion_tokens", FERRY_ERR_ARG,
                          "is %zu, but max_tokens is %zu; send one of them", second, first);
    r->max_tokens = max_size(first, second);
    return FERRY_OK;
}

static enum ferry_status parse_choices(const struct fields *f, struct openai_request *r)
{
    enum ferry_status st = field_size(f, "n", 1, OPENAI_CHOICES_MAX, &r->n_choices);
    size_t best_of = r->n_choices;
    if (st == FERRY_OK)
        st = field_size(f, "best_of", 1, OPENAI_ANSWERS_MAX, &best_of);
    if (st == FERRY_OK && best_of != r->n_choices)
        st = field_fail(f, "best_of", FERRY_ERR_UNSUPPORTED,
                        "must equal n (%zu): this server does not rank answers", r->n_choices);
    return st;
}

static enum ferry_status parse_logprobs(const struct fields *f, struct openai_request *r)
{
    if (r->kind == OPENAI_COMPLETION) {
        r->logprobs = field_get(f, "logprobs") != NULL;
        return field_size(f, "logprobs", 0, OPENAI_TOP_LOGPROBS_MAX, &r->n_top_logprobs);
    }
    enum ferry_status st = field_bool(f, "logprobs", &r->logprobs);
    if (st == FERRY_OK)
        st = field_size(f, "top_logprobs", 0, OPENAI_TOP_LOGPROBS_MAX, &r->n_top_logprobs);
    if (st == FERRY_OK && r->n_top_logprobs > 0 && !r->logprobs)
        st = field_fail(f, "top_logprobs", FERRY_ERR_ARG, "needs logprobs to be true");
    return st;
}

static enum ferry_status parse_stream(const struct fields *f, struct openai_request *r)
{
    json_t *options = NULL;
    bool each = false;

    enum ferry_status st = field_bool(f, "stream", &r->stream);
    if (st == FERRY_OK)
        st = field_object(f, "stream_options", &options);
    if (st != FERRY_OK || options == NULL)
        return st;
    if (!r->stream)
        return field_fail(f, "stream_options", FERRY_ERR_ARG, "needs stream to be true");
    struct fields inner = {options, "stream_options.", f->err};
    st = field_bool(&inner, "include_usage", &r->include_usage);
    if (st == FERRY_OK)
        st = field_bool(&inner, "continuous_usage_stats", &each);
    if (st == FERRY_OK && each)
        st = field_fail(&inner, "continuous_usage_stats", FERRY_ERR_UNSUPPORTED,
                        "is not supported; include_usage gives the numbers at the end");
    return st;
}

static enum ferry_status parse_seed(const struct fields *f, struct openai_request *r)
{
    int64_t seed = 0;

    enum ferry_status st = field_int(f, "seed", INT64_MIN, INT64_MAX, &seed);
    r->has_seed = field_get(f, "seed") != NULL;
    r->sampling.seed = (uint64_t)seed;
    return st;
}

enum ferry_status openai_settings_parse(const struct fields *fields,
                                        const struct openai_limits *limits,
                                        struct openai_request *request)
{
    enum ferry_status st = parse_sampling(fields, &request->sampling);

    if (st == FERRY_OK)
        st = parse_biases(fields, limits, request);
    if (st == FERRY_OK)
        st = parse_stops(fields, request);
    if (st == FERRY_OK)
        st = parse_length(fields, request);
    if (st == FERRY_OK)
        st = parse_choices(fields, request);
    if (st == FERRY_OK)
        st = parse_logprobs(fields, request);
    if (st == FERRY_OK)
        st = parse_stream(fields, request);
    if (st == FERRY_OK)
        st = parse_seed(fields, request);
    if (st == FERRY_OK)
        st = field_bool(fields, "ignore_eos", &request->ignore_eos);
    if (st == FERRY_OK && request->kind == OPENAI_COMPLETION)
        st = field_bool(fields, "echo", &request->echo);
    if (st == FERRY_OK && request->echo && request->logprobs)
        st = field_fail(fields, "echo", FERRY_ERR_UNSUPPORTED,
                        "cannot go with logprobs: those of prompts are not computed");
    return st;
}
