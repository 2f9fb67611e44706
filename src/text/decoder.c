/* Decoders. See decoder.h. Source of the rules: `tokenizers`, decoders. */
#include "text/decoder.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/size.h"
#include "text/normalize.h"

#include <string.h>

bool decoder_list_append(struct decoder_list *list, const char *text, size_t n_bytes)
{
    if (list->n == list->capacity) {
        size_t capacity = max_size(list->capacity * 2, 64);
        size_t n_bytes_new;
        if (!mul_size(capacity, sizeof *list->ends, &n_bytes_new))
            return false;
        size_t *ends = mem_resize(list->ends, list->n * sizeof *ends, n_bytes_new);
        if (ends == NULL)
            return false;
        list->ends = ends;
        list->capacity = capacity;
    }
    if (!bytes_append(&list->text, text, n_bytes))
        return false;
    list->ends[list->n++] = list->text.size;
    return true;
}

void decoder_list_fini(struct decoder_list *list)
{
    bytes_fini(&list->text);
    mem_free(list->ends);
    *list = (struct decoder_list){0};
}

/* A token all of whose characters belong to the byte alphabet becomes those bytes, others stay. */
static bool byte_level(const char *text, size_t n_bytes, struct bytes *out)
{
    size_t begin = out->size;

    for (size_t i = 0; i < n_bytes;) {
        int32_t code;
        i += utf8_decode(text + i, n_bytes - i, &code);
        int byte = byte_level_to_byte(code);
        if (byte < 0) {
            out->size = begin;
            return bytes_append(out, text, n_bytes);
        }
        char c = (char)byte;
        if (!bytes_append(out, &c, 1))
            return false;
    }
    return true;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

static bool byte_fallback(const char *text, size_t n_bytes, struct bytes *out)
{
    if (n_bytes == 6 && memcmp(text, "<0x", 3) == 0 && text[5] == '>' && hex(text[3]) >= 0 &&
        hex(text[4]) >= 0) {
        char byte = (char)(hex(text[3]) * 16 + hex(text[4]));
        return bytes_append(out, &byte, 1);
    }
    return bytes_append(out, text, n_bytes);
}

static bool metaspace(const struct decoder_step *step, const char *text, size_t n_bytes,
                      bool is_first, struct bytes *out)
{
    for (size_t i = 0; i < n_bytes;) {
        int32_t code;
        size_t size = utf8_decode(text + i, n_bytes - i, &code);
        bool ok = true;
        if (code != step->code)
            ok = bytes_append(out, text + i, size);
        else if (!is_first || !step->drop_first)
            ok = bytes_append(out, " ", 1);
        if (!ok)
            return false;
        i += size;
    }
    return true;
}

static bool strip(const struct decoder_step *step, const char *text, size_t n_bytes,
                  struct bytes *out)
{
    char mark[4];
    size_t size = utf8_encode(step->code, mark);

    for (size_t i = 0; i < step->start; i++) {
        if (n_bytes < size || memcmp(text, mark, size) != 0)
            break;
        text += size;
        n_bytes -= size;
    }
    for (size_t i = 0; i < step->stop; i++) {
        if (n_bytes < size || memcmp(text + n_bytes - size, mark, size) != 0)
            break;
        n_bytes -= size;
    }
    return bytes_append(out, text, n_bytes);
}

static enum ferry_status no_memory(struct ferry_error *err)
{
    return FERRY_FAIL(err, FERRY_ERR_NOMEM, "tokenizer: no memory to decode");
}

/* Appends what a pattern leaves of the text or puts there, up to the limit of one decoding. */
static enum ferry_status put(struct bytes *out, const char *text, size_t n_bytes,
                             const struct decoder_list *list, struct ferry_error *err)
{
    if (n_bytes > list->limit - min_size(out->size, list->limit))
        return normalize_over(list->n_given, "decoder", err);
    return bytes_append(out, text, n_bytes) ? FERRY_OK : no_memory(err);
}

/* Ill-formed UTF-8 is possible here (single bytes of byte fallback); patterns skip such strings:
 * the reference would have replaced the bytes, so nothing could match in them. */
static enum ferry_status replace(const struct decoder_step *step, struct regex_matcher *matcher,
                                 const char *text, size_t n_bytes, struct bytes *out,
                                 const struct decoder_list *list, struct ferry_error *err)
{
    struct regex_cursor cursor = {0};
    size_t done = 0;
    size_t start;
    size_t end;
    enum ferry_status st = FERRY_EOF;

    if (utf8_valid_size(text, n_bytes) == n_bytes) {
        while ((st = regex_next(step->regex, matcher, text, n_bytes, &cursor, &start, &end, err)) ==
               FERRY_OK) {
            st = put(out, text + done, start - done, list, err);
            if (st == FERRY_OK)
                st = put(out, step->content, step->content_size, list, err);
            if (st != FERRY_OK) {
                regex_cursor_fini(&cursor);
                return st;
            }
            done = end;
        }
    }
    if (st != FERRY_EOF)
        return st;
    return put(out, text + done, n_bytes - done, list, err);
}

static enum ferry_status run_on_token(const struct decoder_step *step,
                                      struct regex_matcher *matcher, const char *text,
                                      size_t n_bytes, bool is_first, struct bytes *out,
                                      const struct decoder_list *list, struct ferry_error *err)
{
    bool ok = true;

    switch (step->kind) {
    case DECODER_BYTE_LEVEL:
        ok = byte_level(text, n_bytes, out);
        break;
    case DECODER_BYTE_FALLBACK:
        ok = byte_fallback(text, n_bytes, out);
        break;
    case DECODER_STRIP:
        ok = strip(step, text, n_bytes, out);
        break;
    case DECODER_METASPACE:
        ok = metaspace(step, text, n_bytes, is_first, out);
        break;
    case DECODER_REPLACE:
        return replace(step, matcher, text, n_bytes, out, list, err);
    case DECODER_FUSE:
        ok = bytes_append(out, text, n_bytes);
        break;
    }
    return ok ? FERRY_OK : no_memory(err);
}

/* Runs one step over all strings of the list. */
static enum ferry_status run_step(const struct decoder_step *step, struct regex_matcher *matcher,
                                  struct decoder_list *list, bool in_middle,
                                  struct ferry_error *err)
{
    const char *text = list->text.size == 0 ? "" : list->text.data;
    struct bytes out = {0};
    size_t begin = 0;

    for (size_t i = 0; i < list->n; i++) {
        size_t end = list->ends[i];
        enum ferry_status st = run_on_token(step, matcher, text + begin, end - begin,
                                            i == 0 && !in_middle, &out, list, err);
        if (st != FERRY_OK) {
            bytes_fini(&out);
            return st;
        }
        begin = end;
        list->ends[i] = out.size;
    }
    bytes_fini(&list->text);
    list->text = out;
    if (step->kind == DECODER_FUSE || step->kind == DECODER_BYTE_LEVEL) {
        if (list->n > 0)
            list->ends[0] = out.size;
        list->n = list->n > 0;
    }
    return FERRY_OK;
}

static enum ferry_status join_by_space(struct decoder_list *list, struct ferry_error *err)
{
    const char *text = list->text.size == 0 ? "" : list->text.data;
    struct bytes out = {0};
    size_t begin = 0;

    for (size_t i = 0; i < list->n; i++) {
        if ((i > 0 && !bytes_append(&out, " ", 1)) ||
            !bytes_append(&out, text + begin, list->ends[i] - begin)) {
            bytes_fini(&out);
            return no_memory(err);
        }
        begin = list->ends[i];
    }
    bytes_fini(&list->text);
    list->text = out;
    return FERRY_OK;
}

enum ferry_status decoder_run(const struct decoder *decoder, struct regex_matcher *matcher,
                              struct decoder_list *list, bool in_middle, struct ferry_error *err)
{
    bool fused = false;

    if (decoder->join_by_space)
        return join_by_space(list, err);
    list->n_given = list->text.size;
    list->limit = normalize_limit(list->text.size);
    for (int i = 0; i < decoder->n_steps; i++) {
        const struct decoder_step *step = &decoder->steps[i];
        if (step->kind == DECODER_FUSE || step->kind == DECODER_BYTE_LEVEL)
            fused = true;
        if (step->kind == DECODER_STRIP && fused && in_middle)
            continue;
        enum ferry_status st = run_step(step, matcher, list, in_middle, err);
        if (st != FERRY_OK)
            return st;
    }
    return FERRY_OK;
}
