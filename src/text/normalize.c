/* Normalizers. See normalize.h. */
#include "text/normalize.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/size.h"

#include <string.h>
#include <utf8proc.h>

enum {
    DECOMPOSED_MAX = 32,     /* code points one code point may become (18 today) */
    INSERTION_SORT_MAX = 24, /* marks; longer runs are sorted by counting */
    CLASSES = 256,
};

/* What a step writes to: the next text, and how long it may become. */
struct target {
    struct bytes *out;
    size_t n_given; /* bytes of the text before the first step */
    size_t limit;
    bool over; /* the limit, not memory, stopped it */
};

static bool put(struct target *target, const void *data, size_t n)
{
    if (n > target->limit - target->out->size) {
        target->over = true;
        return false;
    }
    return bytes_append(target->out, data, n);
}

static bool put_code(struct target *target, int32_t code)
{
    char text[4];
    return put(target, text, utf8_encode(code, text));
}

size_t normalize_limit(size_t n_bytes)
{
    size_t base = max_size(n_bytes, LIMIT_TEXT_FLOOR);
    return base > LIMIT_TEXT / LIMIT_TEXT_GROWTH ? LIMIT_TEXT : base * LIMIT_TEXT_GROWTH;
}

enum ferry_status normalize_over(size_t n_bytes, const char *part, struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                      "tokenizer: its %s makes more than %zu bytes of a text of %zu (limit: %d "
                      "times as many, or %d when that is more; %d in all); use another tokenizer "
                      "file or shorter texts",
                      part, normalize_limit(n_bytes), n_bytes, (int)LIMIT_TEXT_GROWTH,
                      LIMIT_TEXT_GROWTH * LIMIT_TEXT_FLOOR, (int)LIMIT_TEXT);
}

/* Why put failed. */
static enum ferry_status refused(const struct target *target, struct ferry_error *err)
{
    if (target->over)
        return normalize_over(target->n_given, "normalizer", err);
    return FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer: no memory for normalised text");
}

void normalize_scratch_fini(struct normalize_scratch *scratch)
{
    bytes_fini(&scratch->out[0]);
    bytes_fini(&scratch->out[1]);
    mem_free(scratch->codes);
    *scratch = (struct normalize_scratch){0};
}

static bool reserve_codes(struct normalize_scratch *scratch, size_t used, size_t n)
{
    size_t need;
    size_t old_bytes;
    size_t new_bytes;

    if (!add_size(used, n, &need))
        return false;
    if (need <= scratch->capacity)
        return true;
    size_t capacity = max_size(need, scratch->capacity * 2);
    if (!mul_size(scratch->capacity, sizeof *scratch->codes, &old_bytes) ||
        !mul_size(capacity, sizeof *scratch->codes, &new_bytes))
        return false;
    int32_t *codes = mem_resize(scratch->codes, old_bytes, new_bytes);
    if (codes == NULL)
        return false;
    scratch->codes = codes;
    scratch->capacity = capacity;
    return true;
}

static unsigned combining_class(int32_t code)
{
    if (code < 0x300)
        return 0;
    return (unsigned)utf8proc_get_property(code)->combining_class & (CLASSES - 1);
}

/* Stable sort of n marks by combining class; temp has room for n. */
static void sort_marks(int32_t *codes, size_t n, int32_t *temp)
{
    if (n <= INSERTION_SORT_MAX) {
        for (size_t i = 1; i < n; i++) {
            int32_t code = codes[i];
            size_t j = i;
            for (; j > 0 && combining_class(codes[j - 1]) > combining_class(code); j--)
                codes[j] = codes[j - 1];
            codes[j] = code;
        }
        return;
    }
    size_t starts[CLASSES + 1] = {0};
    for (size_t i = 0; i < n; i++)
        starts[combining_class(codes[i]) + 1]++;
    for (size_t i = 0; i < CLASSES; i++)
        starts[i + 1] += starts[i];
    for (size_t i = 0; i < n; i++)
        temp[starts[combining_class(codes[i])]++] = codes[i];
    memcpy(codes, temp, n * sizeof *codes);
}

/* Canonical ordering over n decomposed code points; room for n more behind them. */
static void order_marks(int32_t *codes, size_t n)
{
    size_t i = 0;

    while (i < n) {
        if (combining_class(codes[i]) == 0) {
            i++;
            continue;
        }
        size_t begin = i;
        while (i < n && combining_class(codes[i]) != 0)
            i++;
        if (i - begin > 1)
            sort_marks(codes + begin, i - begin, codes + n);
    }
}

/* Normal form of text, appended to the target. The text is a whole block: nothing before or behind
 * it can compose with it. */
static bool normal_form(struct normalize_scratch *scratch, const char *text, size_t n_bytes,
                        utf8proc_option_t options, struct target *out)
{
    size_t n = 0;

    while (n_bytes > 0) {
        int32_t code;
        size_t size = utf8_decode(text, n_bytes, &code);
        if (!reserve_codes(scratch, n, DECOMPOSED_MAX))
            return false;
        int last_boundclass = 0;
        utf8proc_ssize_t made = utf8proc_decompose_char(code, scratch->codes + n, DECOMPOSED_MAX,
                                                        options, &last_boundclass);
        if (made < 0 || made > DECOMPOSED_MAX)
            return false;
        n += (size_t)made;
        text += size;
        n_bytes -= size;
    }
    if (!reserve_codes(scratch, n, n))
        return false;
    order_marks(scratch->codes, n);
    if ((options & UTF8PROC_COMPOSE) != 0) {
        utf8proc_ssize_t composed =
            utf8proc_normalize_utf32(scratch->codes, (utf8proc_ssize_t)n, options);
        n = composed < 0 ? 0 : (size_t)composed;
    }
    for (size_t i = 0; i < n; i++) {
        if (!put_code(out, scratch->codes[i]))
            return false;
    }
    return true;
}

/* End of the block of non-ASCII characters at pos: the next ASCII or inert character. */
static size_t block_end(const char *text, size_t pos, size_t n_bytes)
{
    while (pos < n_bytes && (unsigned char)text[pos] >= 0x80) {
        int32_t code;
        size_t size = utf8_decode(text + pos, n_bytes - pos, &code);
        if (unicode_is_inert(code))
            break;
        pos += size;
    }
    return pos;
}

/* ASCII characters never compose with what stands before them, inert ones with nothing: text is cut
 * in front of the former and around the latter, and runs of ASCII are copied. */
static bool normal_form_blocks(struct normalize_scratch *scratch, const char *text, size_t n_bytes,
                               utf8proc_option_t options, struct target *out)
{
    size_t pos = 0;

    while (pos < n_bytes) {
        size_t end = pos;
        while (end < n_bytes && (unsigned char)text[end] < 0x80)
            end++;
        size_t plain = end == n_bytes || end == pos ? end : end - 1;
        if (!put(out, text + pos, plain - pos))
            return false;
        pos = plain;
        end = block_end(text, end, n_bytes);
        if (!normal_form(scratch, text + pos, end - pos, options, out))
            return false;
        pos = end;
        if (pos == n_bytes || (unsigned char)text[pos] < 0x80)
            continue;
        int32_t code;
        size_t size = utf8_decode(text + pos, n_bytes - pos, &code);
        if (!put(out, text + pos, size))
            return false;
        pos += size;
    }
    return true;
}

/* Whether the normal form is surely the text itself: no character from U+0300 on (lead byte 0xCC)
 * for NFC, nothing but ASCII for the others. */
static bool is_normal(const char *text, size_t n_bytes, enum normalize_kind kind)
{
    unsigned char limit = kind == NORMALIZE_NFC ? 0xCC : 0x80;
    for (size_t i = 0; i < n_bytes; i++) {
        if ((unsigned char)text[i] >= limit)
            return false;
    }
    return true;
}

static utf8proc_option_t form_options(enum normalize_kind kind)
{
    unsigned options = UTF8PROC_STABLE;
    bool compose = kind == NORMALIZE_NFC || kind == NORMALIZE_NFKC;

    options |= compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (kind == NORMALIZE_NFKC || kind == NORMALIZE_NFKD)
        options |= UTF8PROC_COMPAT;
    return (utf8proc_option_t)options;
}

static enum ferry_status replace(const struct normalize_step *step, struct regex_matcher *matcher,
                                 const char *text, size_t n_bytes, struct target *out,
                                 struct ferry_error *err)
{
    struct regex_cursor cursor = {0};
    size_t done = 0;
    size_t start;
    size_t end;
    enum ferry_status st;

    while ((st = regex_next(step->regex, matcher, text, n_bytes, &cursor, &start, &end, err)) ==
           FERRY_OK) {
        if (!put(out, text + done, start - done) || !put(out, step->content, step->content_size)) {
            regex_cursor_fini(&cursor);
            return refused(out, err);
        }
        done = end;
    }
    if (st != FERRY_EOF)
        return st;
    return put(out, text + done, n_bytes - done) ? FERRY_OK : refused(out, err);
}

static bool lowercase(const char *text, size_t n_bytes, struct target *out)
{
    while (n_bytes > 0) {
        int32_t code;
        size_t size = utf8_decode(text, n_bytes, &code);
        bool ok = code == 0x130 ? put(out, "i\xCC\x87", 3) : put_code(out, utf8proc_tolower(code));
        if (!ok)
            return false;
        text += size;
        n_bytes -= size;
    }
    return true;
}

static void strip(const struct normalize_step *step, const char **text, size_t *n_bytes)
{
    int32_t code;

    while (step->left && *n_bytes > 0) {
        size_t size = utf8_decode(*text, *n_bytes, &code);
        if (!unicode_is_space(code))
            break;
        *text += size;
        *n_bytes -= size;
    }
    while (step->right && *n_bytes > 0) {
        size_t begin = *n_bytes - 1;
        while (begin > 0 && ((unsigned char)(*text)[begin] & 0xC0) == 0x80)
            begin--;
        (void)utf8_decode(*text + begin, *n_bytes - begin, &code);
        if (!unicode_is_space(code))
            break;
        *n_bytes = begin;
    }
}

/* Runs one step that writes new text to out. */
static enum ferry_status run_step(const struct normalize_step *step,
                                  struct normalize_scratch *scratch, struct regex_matcher *matcher,
                                  const char *text, size_t n_bytes, struct target *out,
                                  struct ferry_error *err)
{
    bool ok;

    switch (step->kind) {
    case NORMALIZE_REPLACE:
        return replace(step, matcher, text, n_bytes, out, err);
    case NORMALIZE_PREPEND:
        ok = n_bytes == 0 ||
             (put(out, step->content, step->content_size) && put(out, text, n_bytes));
        break;
    case NORMALIZE_LOWERCASE:
        ok = lowercase(text, n_bytes, out);
        break;
    default:
        ok = normal_form_blocks(scratch, text, n_bytes, form_options(step->kind), out);
        break;
    }
    return ok ? FERRY_OK : refused(out, err);
}

enum ferry_status normalize_run(const struct normalizer *normalizer,
                                struct normalize_scratch *scratch, struct regex_matcher *matcher,
                                const char *text, size_t n_bytes, const char **ret_text,
                                size_t *ret_size, struct ferry_error *err)
{
    struct target out = {.n_given = n_bytes, .limit = normalize_limit(n_bytes)};
    int which = 0;

    for (int i = 0; i < normalizer->n_steps; i++) {
        const struct normalize_step *step = &normalizer->steps[i];
        if (step->kind == NORMALIZE_STRIP) {
            strip(step, &text, &n_bytes);
            continue;
        }
        if (step->kind <= NORMALIZE_NFKD && is_normal(text, n_bytes, step->kind))
            continue;
        out.out = &scratch->out[which];
        out.out->size = 0;
        enum ferry_status st = run_step(step, scratch, matcher, text, n_bytes, &out, err);
        if (st != FERRY_OK)
            return st;
        text = out.out->size == 0 ? "" : out.out->data;
        n_bytes = out.out->size;
        which = 1 - which;
    }
    *ret_text = text;
    *ret_size = n_bytes;
    return FERRY_OK;
}
