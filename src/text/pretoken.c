/* Pre-tokenizers. See pretoken.h. */
#include "text/pretoken.h"

#include "base/error.h"
#include "text/normalize.h"

#include <string.h>

struct run {
    const struct pretokenizer *pretokenizer;
    struct pretoken_scratch *scratch;
    struct regex_matcher *matcher;
    pretoken_emit *emit;
    void *arg;
    struct ferry_error *err;
    size_t n_given;                        /* bytes of the text before the first step */
    size_t limit;                          /* for each count below */
    size_t n_seen[PRETOKEN_STEPS_MAX + 1]; /* bytes that reached a step, and emit */
};

/* One step at work on one text: joins match events to pieces by the step's behaviour. */
struct splitter {
    struct run *run;
    const char *text;
    int step_index;
    enum pretoken_behavior behavior;
    bool invert;
    bool at_start;
    bool has_pending;
    bool pending_match;
    bool previous_match;
    size_t pending_start;
    size_t pending_end;
};

static enum ferry_status run_step(struct run *run, int step_index, const char *text, size_t n_bytes,
                                  bool at_start);

void pretoken_scratch_fini(struct pretoken_scratch *scratch)
{
    for (int i = 0; i < PRETOKEN_STEPS_MAX; i++)
        bytes_fini(&scratch->text[i]);
}

static enum ferry_status pass_on(const struct splitter *s, size_t start, size_t end)
{
    if (start == end)
        return FERRY_OK;
    return run_step(s->run, s->step_index + 1, s->text + start, end - start,
                    s->at_start && start == 0);
}

static enum ferry_status flush(struct splitter *s)
{
    if (!s->has_pending)
        return FERRY_OK;
    s->has_pending = false;
    return pass_on(s, s->pending_start, s->pending_end);
}

/* The next stretch of the text and whether the pattern matched it. */
static enum ferry_status event(struct splitter *s, size_t start, size_t end, bool is_match)
{
    bool joins = false;

    is_match = is_match != s->invert;
    switch (s->behavior) {
    case PRETOKEN_ISOLATED:
        return pass_on(s, start, end);
    case PRETOKEN_REMOVED:
        return is_match ? FERRY_OK : pass_on(s, start, end);
    case PRETOKEN_CONTIGUOUS:
        joins = is_match == s->previous_match;
        break;
    case PRETOKEN_MERGED_WITH_PREVIOUS:
        joins = is_match && !s->previous_match;
        break;
    case PRETOKEN_MERGED_WITH_NEXT:
        joins = s->pending_match && !is_match;
        break;
    }
    if (!joins || !s->has_pending) {
        enum ferry_status st = flush(s);
        if (st != FERRY_OK)
            return st;
        s->pending_start = start;
    }
    s->has_pending = true;
    s->pending_end = end;
    s->pending_match = is_match;
    s->previous_match = is_match;
    return FERRY_OK;
}

static enum ferry_status split_by_regex(struct splitter *s, const struct regex *regex,
                                        size_t n_bytes)
{
    struct regex_cursor cursor = {0};
    size_t done = 0;
    size_t start;
    size_t end;
    enum ferry_status st;

    while ((st = regex_next(regex, s->run->matcher, s->text, n_bytes, &cursor, &start, &end,
                            s->run->err)) == FERRY_OK) {
        if (start != done)
            st = event(s, done, start, false);
        if (st == FERRY_OK)
            st = event(s, start, end, true);
        if (st != FERRY_OK) {
            regex_cursor_fini(&cursor);
            return st;
        }
        done = end;
    }
    if (st != FERRY_EOF)
        return st;
    st = done < n_bytes ? event(s, done, n_bytes, false) : FERRY_OK;
    return st == FERRY_OK ? flush(s) : st;
}

static bool is_match_code(const struct pretoken_step *step, int32_t code)
{
    switch (step->kind) {
    case PRETOKEN_DIGITS:
        return unicode_is_numeric(code);
    case PRETOKEN_PUNCTUATION:
        return unicode_is_punctuation(code);
    case PRETOKEN_WHITESPACE_SPLIT:
        return unicode_is_space(code);
    default:
        return code == step->replacement;
    }
}

static enum ferry_status split_by_character(struct splitter *s, const struct pretoken_step *step,
                                            size_t n_bytes)
{
    size_t done = 0;
    enum ferry_status st = FERRY_OK;

    for (size_t i = 0; i < n_bytes && st == FERRY_OK;) {
        int32_t code;
        size_t size = utf8_decode(s->text + i, n_bytes - i, &code);
        if (is_match_code(step, code)) {
            if (done < i)
                st = event(s, done, i, false);
            if (st == FERRY_OK)
                st = event(s, i, i + size, true);
            done = i + size;
        }
        i += size;
    }
    if (st == FERRY_OK && done < n_bytes)
        st = event(s, done, n_bytes, false);
    return st == FERRY_OK ? flush(s) : st;
}

/* Spaces become the replacement character; it also goes in front when the scheme says so. */
static bool metaspace_text(const struct pretoken_step *step, const char *text, size_t n_bytes,
                           bool at_start, struct bytes *out)
{
    char mark[4];
    size_t mark_size = utf8_encode(step->replacement, mark);
    bool has_mark = n_bytes > 0 && (text[0] == ' ' ||
                                    (n_bytes >= mark_size && memcmp(text, mark, mark_size) == 0));
    bool wants = step->prepend == PRETOKEN_PREPEND_ALWAYS ||
                 (step->prepend == PRETOKEN_PREPEND_FIRST && at_start);

    out->size = 0;
    if (wants && !has_mark && !bytes_append(out, mark, mark_size))
        return false;
    for (size_t i = 0; i < n_bytes;) {
        const char *space = memchr(text + i, ' ', n_bytes - i);
        size_t end = space == NULL ? n_bytes : (size_t)(space - text);
        if (!bytes_append(out, text + i, end - i) ||
            (space != NULL && !bytes_append(out, mark, mark_size)))
            return false;
        i = end + 1;
    }
    return true;
}

static enum ferry_status no_memory(const struct run *run)
{
    return FERRY_FAIL(run->err, FERRY_ERR_NOMEM, "tokenizer: no memory for split text");
}

static enum ferry_status run_metaspace(struct run *run, int step_index, const char *text,
                                       size_t n_bytes, bool at_start)
{
    const struct pretoken_step *step = &run->pretokenizer->steps[step_index];
    struct bytes *out = &run->scratch->text[step_index];

    if (!metaspace_text(step, text, n_bytes, at_start, out))
        return no_memory(run);
    struct splitter s = {.run = run,
                         .text = out->data,
                         .step_index = step_index,
                         .behavior = PRETOKEN_MERGED_WITH_NEXT,
                         .at_start = at_start};
    return step->split ? split_by_character(&s, step, out->size) : pass_on(&s, 0, out->size);
}

static enum ferry_status run_prefix_space(struct run *run, int step_index, const char *text,
                                          size_t n_bytes, bool at_start)
{
    struct bytes *out = &run->scratch->text[step_index];

    if (text[0] == ' ')
        return run_step(run, step_index + 1, text, n_bytes, at_start);
    out->size = 0;
    if (!bytes_append(out, " ", 1) || !bytes_append(out, text, n_bytes))
        return no_memory(run);
    return run_step(run, step_index + 1, out->data, out->size, at_start);
}

static enum ferry_status run_step(struct run *run, int step_index, const char *text, size_t n_bytes,
                                  bool at_start)
{
    /* Metaspace and splits in turn could double the text at every other step. */
    if (n_bytes > run->limit - run->n_seen[step_index])
        return normalize_over(run->n_given, "pre-tokenizer", run->err);
    run->n_seen[step_index] += n_bytes;
    if (step_index == run->pretokenizer->n_steps)
        return run->emit(run->arg, text, n_bytes);
    const struct pretoken_step *step = &run->pretokenizer->steps[step_index];
    if (step->kind == PRETOKEN_METASPACE)
        return run_metaspace(run, step_index, text, n_bytes, at_start);
    if (step->kind == PRETOKEN_PREFIX_SPACE)
        return run_prefix_space(run, step_index, text, n_bytes, at_start);
    struct splitter s = {.run = run,
                         .text = text,
                         .step_index = step_index,
                         .behavior = step->behavior,
                         .invert = step->invert,
                         .at_start = at_start};
    if (step->kind == PRETOKEN_SPLIT)
        return split_by_regex(&s, step->regex, n_bytes);
    return split_by_character(&s, step, n_bytes);
}

enum ferry_status pretoken_run(const struct pretokenizer *pretokenizer,
                               struct pretoken_scratch *scratch, struct regex_matcher *matcher,
                               const char *text, size_t n_bytes, bool at_start, pretoken_emit *emit,
                               void *arg, struct ferry_error *err)
{
    struct run run = {.pretokenizer = pretokenizer,
                      .scratch = scratch,
                      .matcher = matcher,
                      .emit = emit,
                      .arg = arg,
                      .err = err,
                      .n_given = n_bytes,
                      .limit = normalize_limit(n_bytes)};
    return n_bytes == 0 ? FERRY_OK : run_step(&run, 0, text, n_bytes, at_start);
}
