/* The pipeline parts of tokenizer.json: normalizer, pre_tokenizer, post_processor, decoder.
 *
 * Why apart from from_json.c: these are lists of typed steps; every type and option that is not
 * handled is refused by name, never skipped. It must not know vocabularies. */
#include "text/from_json.h"

#include "base/error.h"

#include <string.h>

typedef enum ferry_status step_reader(const struct json_reader *reader, const json_t *value,
                                      const char *type, void *target);

/* Calls read for a step, or for each step of a "Sequence" of them whose list has that key. */
static enum ferry_status for_each_step(const struct json_reader *reader, const json_t *value,
                                       const char *what, const char *list_key, step_reader *read,
                                       void *target, int depth)
{
    if (value == NULL || json_is_null(value))
        return FERRY_OK;
    const char *type = json_string_value(json_object_get(value, "type"));
    if (type == NULL || depth == 0)
        return json_malformed(reader, what);
    if (strcmp(type, "Sequence") != 0)
        return read(reader, value, type, target);
    const json_t *list = json_object_get(value, list_key);
    if (!json_is_array(list))
        return json_malformed(reader, what);
    for (size_t i = 0; i < json_array_size(list); i++) {
        enum ferry_status st =
            for_each_step(reader, json_array_get(list, i), what, list_key, read, target, depth - 1);
        if (st != FERRY_OK)
            return st;
    }
    return FERRY_OK;
}

enum { NESTING_MAX = 4 };

static enum ferry_status too_many(const struct json_reader *reader, const char *what, int limit)
{
    return FERRY_FAIL(reader->err, FERRY_ERR_LIMIT, "tokenizer.json: more than %d steps in %s",
                      limit, what);
}

/* {"String": s} or {"Regex": s}. */
static enum ferry_status read_pattern(const struct json_reader *reader, const json_t *object,
                                      struct regex **ret)
{
    const json_t *pattern = json_object_get(object, "pattern");
    const json_t *literal = json_object_get(pattern, "String");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *text = literal != NULL ? literal : regex;

    if (!json_is_string(text) || (literal != NULL && regex != NULL))
        return json_malformed(reader, "pattern");
    return tokenizer_add_regex(reader->tokenizer, literal != NULL, json_string_value(text),
                               json_string_length(text), ret, reader->err);
}

/* Copies a string field into the arena. */
static enum ferry_status read_content(const struct json_reader *reader, const json_t *object,
                                      const char *key, const char **ret, size_t *ret_size)
{
    const char *text;
    enum ferry_status st = json_read_string(reader, object, key, &text, ret_size);

    if (st != FERRY_OK)
        return st;
    if (text == NULL)
        return json_malformed(reader, key);
    *ret = arena_strndup(&reader->tokenizer->arena, text, *ret_size);
    return *ret == NULL ? json_no_memory(reader) : FERRY_OK;
}

/* A string field of exactly one character. */
static enum ferry_status read_character(const struct json_reader *reader, const json_t *object,
                                        const char *key, int32_t *ret)
{
    const char *text;
    size_t size;
    enum ferry_status st = json_read_string(reader, object, key, &text, &size);

    if (st != FERRY_OK)
        return st;
    if (text == NULL || size == 0 || utf8_decode(text, size, ret) != size)
        return json_malformed(reader, key);
    return FERRY_OK;
}

static enum ferry_status read_normalizer_step(const struct json_reader *reader, const json_t *value,
                                              const char *type, void *target)
{
    static const struct {
        const char *name;
        enum normalize_kind kind;
    } KINDS[] = {
        {"NFC", NORMALIZE_NFC},         {"NFD", NORMALIZE_NFD},
        {"NFKC", NORMALIZE_NFKC},       {"NFKD", NORMALIZE_NFKD},
        {"Prepend", NORMALIZE_PREPEND}, {"Replace", NORMALIZE_REPLACE},
        {"Strip", NORMALIZE_STRIP},     {"Lowercase", NORMALIZE_LOWERCASE},
    };
    struct normalizer *normalizer = target;
    size_t k = 0;
    enum ferry_status st = FERRY_OK;

    while (k < sizeof KINDS / sizeof KINDS[0] && strcmp(KINDS[k].name, type) != 0)
        k++;
    if (k == sizeof KINDS / sizeof KINDS[0])
        return json_unsupported(reader, "normalizer", type);
    if (normalizer->n_steps == NORMALIZE_STEPS_MAX)
        return too_many(reader, "normalizer", NORMALIZE_STEPS_MAX);
    struct normalize_step *step = &normalizer->steps[normalizer->n_steps];
    step->kind = KINDS[k].kind;
    if (step->kind == NORMALIZE_PREPEND)
        st = read_content(reader, value, "prepend", &step->content, &step->content_size);
    if (step->kind == NORMALIZE_REPLACE) {
        st = read_pattern(reader, value, &step->regex);
        if (st == FERRY_OK)
            st = read_content(reader, value, "content", &step->content, &step->content_size);
    }
    if (step->kind == NORMALIZE_STRIP) {
        st = json_read_bool(reader, value, "strip_left", true, &step->left);
        if (st == FERRY_OK)
            st = json_read_bool(reader, value, "strip_right", true, &step->right);
    }
    normalizer->n_steps++;
    return st;
}

enum ferry_status json_read_normalizer(const struct json_reader *reader, const json_t *value)
{
    return for_each_step(reader, value, "normalizer", "normalizers", read_normalizer_step,
                         &reader->tokenizer->normalizer, NESTING_MAX);
}

/* Where a list of pre-tokenizers is being built. */
struct pretoken_target {
    struct pretokenizer *pretokenizer;
    bool byte_level;
};

static enum ferry_status add_pretoken(const struct json_reader *reader,
                                      struct pretoken_target *target,
                                      const struct pretoken_step *step)
{
    if (target->pretokenizer->n_steps == PRETOKEN_STEPS_MAX)
        return too_many(reader, "pre_tokenizer", PRETOKEN_STEPS_MAX);
    target->pretokenizer->steps[target->pretokenizer->n_steps++] = *step;
    return FERRY_OK;
}

static enum ferry_status read_behavior(const struct json_reader *reader, const json_t *value,
                                       enum pretoken_behavior fallback, enum pretoken_behavior *ret)
{
    static const char *const NAMES[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name;
    size_t size;
    enum ferry_status st = json_read_string(reader, value, "behavior", &name, &size);

    *ret = fallback;
    if (st != FERRY_OK || name == NULL)
        return st;
    for (int i = 0; i < 5; i++) {
        if (strcmp(NAMES[i], name) == 0) {
            *ret = (enum pretoken_behavior)i;
            return FERRY_OK;
        }
    }
    return json_unsupported(reader, "split behavior", name);
}

static enum ferry_status read_split(const struct json_reader *reader, const json_t *value,
                                    struct pretoken_target *target)
{
    struct pretoken_step step = {.kind = PRETOKEN_SPLIT};

    if (json_object_get(value, "behavior") == NULL)
        return json_malformed(reader, "behavior");
    enum ferry_status st = read_pattern(reader, value, &step.regex);
    if (st == FERRY_OK)
        st = read_behavior(reader, value, PRETOKEN_ISOLATED, &step.behavior);
    if (st == FERRY_OK)
        st = json_read_bool(reader, value, "invert", false, &step.invert);
    return st == FERRY_OK ? add_pretoken(reader, target, &step) : st;
}

static enum ferry_status add_regex_step(const struct json_reader *reader, const char *pattern,
                                        enum pretoken_behavior behavior, bool invert,
                                        struct pretoken_target *target)
{
    struct pretoken_step step = {.kind = PRETOKEN_SPLIT, .behavior = behavior, .invert = invert};
    enum ferry_status st = tokenizer_add_regex(reader->tokenizer, false, pattern, strlen(pattern),
                                               &step.regex, reader->err);
    return st == FERRY_OK ? add_pretoken(reader, target, &step) : st;
}

static enum ferry_status read_byte_level(const struct json_reader *reader, const json_t *value,
                                         struct pretoken_target *target)
{
    static const char GPT2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                               "|\\s+(?!\\S)|\\s+";
    struct pretoken_step step = {.kind = PRETOKEN_PREFIX_SPACE};
    bool prefix;
    bool use_regex;
    enum ferry_status st = json_read_bool(reader, value, "add_prefix_space", true, &prefix);

    if (st == FERRY_OK)
        st = json_read_bool(reader, value, "use_regex", true, &use_regex);
    if (st == FERRY_OK && prefix)
        st = add_pretoken(reader, target, &step);
    if (st == FERRY_OK && use_regex)
        st = add_regex_step(reader, GPT2, PRETOKEN_ISOLATED, false, target);
    target->byte_level = true;
    return st;
}

static enum ferry_status read_metaspace(const struct json_reader *reader, const json_t *value,
                                        struct pretoken_target *target)
{
    struct pretoken_step step = {.kind = PRETOKEN_METASPACE};
    const char *scheme;
    size_t size;
    bool prefix = true;
    enum ferry_status st = read_character(reader, value, "replacement", &step.replacement);

    if (st == FERRY_OK)
        st = json_read_bool(reader, value, "split", true, &step.split);
    if (st == FERRY_OK)
        st = json_read_bool(reader, value, "add_prefix_space", true, &prefix);
    if (st == FERRY_OK)
        st = json_read_string(reader, value, "prepend_scheme", &scheme, &size);
    if (st != FERRY_OK)
        return st;
    if (scheme == NULL) /* files of before the scheme */
        step.prepend = prefix ? PRETOKEN_PREPEND_ALWAYS : PRETOKEN_PREPEND_NEVER;
    else if (strcmp(scheme, "always") == 0)
        step.prepend = PRETOKEN_PREPEND_ALWAYS;
    else if (strcmp(scheme, "first") == 0)
        step.prepend = PRETOKEN_PREPEND_FIRST;
    else if (strcmp(scheme, "never") == 0)
        step.prepend = PRETOKEN_PREPEND_NEVER;
    else
        return json_unsupported(reader, "prepend_scheme", scheme);
    return add_pretoken(reader, target, &step);
}

static enum ferry_status read_digits(const struct json_reader *reader, const json_t *value,
                                     struct pretoken_target *target)
{
    struct pretoken_step step = {.kind = PRETOKEN_DIGITS};
    bool individual;
    enum ferry_status st = json_read_bool(reader, value, "individual_digits", false, &individual);

    step.behavior = individual ? PRETOKEN_ISOLATED : PRETOKEN_CONTIGUOUS;
    return st == FERRY_OK ? add_pretoken(reader, target, &step) : st;
}

static enum ferry_status read_punctuation(const struct json_reader *reader, const json_t *value,
                                          struct pretoken_target *target)
{
    struct pretoken_step step = {.kind = PRETOKEN_PUNCTUATION};
    enum ferry_status st = read_behavior(reader, value, PRETOKEN_ISOLATED, &step.behavior);

    return st == FERRY_OK ? add_pretoken(reader, target, &step) : st;
}

/* \w of Rust's regex package, which this step is written with: joiners, no Latin-1 numbers. */
#define WORD                                                                                      \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{200C}\\x{200D}\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}" \
    "\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"

static enum ferry_status read_pretoken_step(const struct json_reader *reader, const json_t *value,
                                            const char *type, void *target_of_list)
{
    struct pretoken_target *target = target_of_list;
    struct pretoken_step space = {.kind = PRETOKEN_WHITESPACE_SPLIT, .behavior = PRETOKEN_REMOVED};

    /* ByteLevel changes the text to its alphabet; we keep bytes, so nothing may come after it. */
    if (target->byte_level)
        return json_unsupported(reader, "pre_tokenizer after ByteLevel", type);
    if (strcmp(type, "Split") == 0)
        return read_split(reader, value, target);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(reader, value, target);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(reader, value, target);
    if (strcmp(type, "Digits") == 0)
        return read_digits(reader, value, target);
    if (strcmp(type, "Punctuation") == 0)
        return read_punctuation(reader, value, target);
    if (strcmp(type, "Whitespace") == 0)
        return add_regex_step(reader, "[" WORD "]+|[^" WORD "\\s]+", PRETOKEN_REMOVED, true,
                              target);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_pretoken(reader, target, &space);
    return json_unsupported(reader, "pre_tokenizer", type);
}

enum ferry_status json_read_pretokenizer(const struct json_reader *reader, const json_t *value,
                                         bool *ret_byte_level)
{
    struct pretoken_target target = {.pretokenizer = &reader->tokenizer->pretokenizer};
    enum ferry_status st = for_each_step(reader, value, "pre_tokenizer", "pretokenizers",
                                         read_pretoken_step, &target, NESTING_MAX);
    *ret_byte_level = target.byte_level;
    return st;
}

static enum ferry_status read_decoder_strip(const struct json_reader *reader, const json_t *value,
                                            struct decoder_step *step)
{
    const json_t *start = json_object_get(value, "start");
    const json_t *stop = json_object_get(value, "stop");

    if (!json_is_integer(start) || !json_is_integer(stop) || json_integer_value(start) < 0 ||
        json_integer_value(stop) < 0 || json_integer_value(start) > INT32_MAX ||
        json_integer_value(stop) > INT32_MAX)
        return json_malformed(reader, "Strip decoder");
    step->start = (size_t)json_integer_value(start);
    step->stop = (size_t)json_integer_value(stop);
    return read_character(reader, value, "content", &step->code);
}

static enum ferry_status read_decoder_metaspace(const struct json_reader *reader,
                                                const json_t *value, struct decoder_step *step)
{
    const char *scheme;
    size_t size;
    bool prefix = true;
    enum ferry_status st = read_character(reader, value, "replacement", &step->code);

    if (st == FERRY_OK)
        st = json_read_bool(reader, value, "add_prefix_space", true, &prefix);
    if (st == FERRY_OK)
        st = json_read_string(reader, value, "prepend_scheme", &scheme, &size);
    if (st == FERRY_OK)
        step->drop_first = scheme == NULL ? prefix : strcmp(scheme, "never") != 0;
    return st;
}

static enum ferry_status read_decoder_step(const struct json_reader *reader, const json_t *value,
                                           const char *type, void *target)
{
    static const char *const NAMES[] = {"ByteLevel", "ByteFallback", "Fuse",
                                        "Strip",     "Replace",      "Metaspace"};
    struct decoder *decoder = target;
    int kind = 0;
    enum ferry_status st = FERRY_OK;

    while (kind < 6 && strcmp(NAMES[kind], type) != 0)
        kind++;
    if (kind == 6)
        return json_unsupported(reader, "decoder", type);
    if (decoder->n_steps == DECODER_STEPS_MAX)
        return too_many(reader, "decoder", DECODER_STEPS_MAX);
    struct decoder_step *step = &decoder->steps[decoder->n_steps++];
    step->kind = (enum decoder_kind)kind;
    if (step->kind == DECODER_STRIP)
        st = read_decoder_strip(reader, value, step);
    if (step->kind == DECODER_METASPACE)
        st = read_decoder_metaspace(reader, value, step);
    if (step->kind == DECODER_REPLACE) {
        st = read_pattern(reader, value, &step->regex);
        if (st == FERRY_OK)
            st = read_content(reader, value, "content", &step->content, &step->content_size);
    }
    return st;
}

enum ferry_status json_read_decoder(const struct json_reader *reader, const json_t *value)
{
    struct decoder *decoder = &reader->tokenizer->decoder;

    decoder->join_by_space = value == NULL || json_is_null(value);
    return for_each_step(reader, value, "decoder", "decoders", read_decoder_step, decoder,
                         NESTING_MAX);
}

/* Adds the ids that a template names to what stands before or after the text. */
static enum ferry_status add_template_token(const struct json_reader *reader, const json_t *value,
                                            const json_t *special, bool is_suffix)
{
    struct tokenizer *tokenizer = reader->tokenizer;
    const char *name = json_string_value(json_object_get(special, "id"));
    const json_t *entry =
        json_object_get(json_object_get(value, "special_tokens"), name == NULL ? "" : name);
    const json_t *ids = json_object_get(entry, "ids");

    if (!json_is_array(ids))
        return json_malformed(reader, "post_processor template");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        int *n = is_suffix ? &tokenizer->n_suffix : &tokenizer->n_prefix;
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) > INT32_MAX)
            return json_malformed(reader, "post_processor template");
        if (*n == TOKENIZER_FIXES_MAX)
            return too_many(reader, "post_processor", TOKENIZER_FIXES_MAX);
        int32_t *fixes = is_suffix ? tokenizer->suffix : tokenizer->prefix;
        fixes[(*n)++] = (int32_t)json_integer_value(id);
    }
    return FERRY_OK;
}

static enum ferry_status read_template(const struct json_reader *reader, const json_t *value)
{
    const json_t *single = json_object_get(value, "single");
    int n_texts = 0;

    if (!json_is_array(single))
        return json_malformed(reader, "post_processor template");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *part = json_array_get(single, i);
        const json_t *special = json_object_get(part, "SpecialToken");
        const json_t *sequence = json_object_get(part, "Sequence");
        if (json_is_object(sequence)) {
            const char *id = json_string_value(json_object_get(sequence, "id"));
            if (id == NULL || strcmp(id, "A") != 0 || n_texts++ > 0)
                return json_unsupported(reader, "post_processor template", "sequence");
            continue;
        }
        if (!json_is_object(special))
            return json_malformed(reader, "post_processor template");
        enum ferry_status st = add_template_token(reader, value, special, n_texts > 0);
        if (st != FERRY_OK)
            return st;
    }
    return n_texts == 1 ? FERRY_OK : json_malformed(reader, "post_processor template");
}

static enum ferry_status read_post_step(const struct json_reader *reader, const json_t *value,
                                        const char *type, void *target)
{
    bool *has_template = target;

    if (strcmp(type, "ByteLevel") == 0) /* moves offsets only */
        return FERRY_OK;
    if (strcmp(type, "TemplateProcessing") != 0)
        return json_unsupported(reader, "post_processor", type);
    if (*has_template)
        return json_unsupported(reader, "post_processor", "a second template");
    *has_template = true;
    return read_template(reader, value);
}

enum ferry_status json_read_post_processor(const struct json_reader *reader, const json_t *value)
{
    bool has_template = false;

    return for_each_step(reader, value, "post_processor", "processors", read_post_step,
                         &has_template, NESTING_MAX);
}
