/* Added tokens. See added.h. Source of the rules: `tokenizers`, AddedVocabulary::find_matches. */
#include "text/added.h"

#include "base/size.h"
#include "text/unicode.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const struct added_pattern *x = a;
    const struct added_pattern *y = b;
    int order = memcmp(x->text, y->text, min_size(x->size, y->size));

    if (order != 0)
        return order;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    /* Equal texts: tokens lie in one array, in the order given. */
    return x->token < y->token ? -1 : x->token > y->token;
}

bool added_set_init(struct added_set *set, struct arena *arena, struct added_pattern *patterns,
                    size_t n)
{
    *set = (struct added_set){.patterns = arena_array(arena, n, sizeof *patterns)};
    if (set->patterns == NULL)
        return false;
    if (n > 0)
        qsort(patterns, n, sizeof *patterns, compare);
    for (size_t i = 0; i < n; i++) {
        const struct added_pattern *last = &set->patterns[set->n - (set->n > 0)];
        if (set->n > 0 && last->size == patterns[i].size &&
            memcmp(last->text, patterns[i].text, last->size) == 0)
            continue;
        set->patterns[set->n++] = patterns[i];
    }
    size_t i = 0;
    for (int byte = 0; byte < 256; byte++) {
        set->first[byte] = (uint32_t)i;
        while (i < set->n && (unsigned char)set->patterns[i].text[0] == byte)
            i++;
    }
    set->first[256] = (uint32_t)i;
    return true;
}

/* First pattern in [low, high) whose byte at depth is not below `byte`; all are longer than
 * depth. */
static size_t lower_bound(const struct added_set *set, size_t low, size_t high, size_t depth,
                          unsigned byte)
{
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)set->patterns[middle].text[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Longest pattern that text [n > 0] begins with, NULL when there is none. */
static const struct added_pattern *longest_at(const struct added_set *set, const char *text,
                                              size_t n)
{
    const struct added_pattern *best = NULL;
    size_t low = set->first[(unsigned char)text[0]];
    size_t high = set->first[(unsigned char)text[0] + 1];

    for (size_t depth = 1; low < high; depth++) {
        if (set->patterns[low].size == depth)
            best = &set->patterns[low++];
        if (depth == n || low == high)
            break;
        unsigned byte = (unsigned char)text[depth];
        low = lower_bound(set, low, high, depth, byte);
        high = lower_bound(set, low, high, depth, byte + 1);
    }
    return best;
}

static size_t space_before(const char *text, size_t end)
{
    while (end > 0) {
        size_t begin = end - 1;
        while (begin > 0 && ((unsigned char)text[begin] & 0xC0) == 0x80)
            begin--;
        int32_t code;
        (void)utf8_decode(text + begin, end - begin, &code);
        if (!unicode_is_space(code))
            break;
        end = begin;
    }
    return end;
}

static size_t space_behind(const char *text, size_t start, size_t n_bytes)
{
    while (start < n_bytes) {
        int32_t code;
        size_t size = utf8_decode(text + start, n_bytes - start, &code);
        if (!unicode_is_space(code))
            break;
        start += size;
    }
    return start;
}

static bool is_single_word(const char *text, size_t n_bytes, size_t start, size_t end)
{
    int32_t code;

    if (start > 0) {
        size_t begin = start - 1;
        while (begin > 0 && ((unsigned char)text[begin] & 0xC0) == 0x80)
            begin--;
        (void)utf8_decode(text + begin, start - begin, &code);
        if (unicode_is_word(code))
            return false;
    }
    if (end < n_bytes) {
        (void)utf8_decode(text + end, n_bytes - end, &code);
        if (unicode_is_word(code))
            return false;
    }
    return true;
}

/* Where the trusted bytes around `at` end, `at` itself when it is not trusted; *ret_next is where
 * the next trusted byte behind that is (or SIZE_MAX). */
static size_t trusted_end(const struct added_trust *trust, size_t at, size_t *ret_next)
{
    size_t low = 0;
    size_t high = trust->n;
    size_t place = at + trust->offset;

    while (low < high) { /* first span that ends behind the place */
        size_t middle = low + (high - low) / 2;
        if (trust->spans[middle].end <= place)
            low = middle + 1;
        else
            high = middle;
    }
    bool inside = low < trust->n && trust->spans[low].start <= place;
    size_t next = low + inside;
    *ret_next = next < trust->n ? trust->spans[next].start - trust->offset : SIZE_MAX;
    return inside ? trust->spans[low].end - trust->offset : at;
}

/* The pattern that counts at i, NULL when there is none; *ret_end is where to search on. A match
 * that does not count still hides what overlaps it, as in the reference; one that does not count
 * for lack of trust hides nothing that is trusted. */
static const struct added_pattern *match(const struct added_set *set, const char *text,
                                         size_t n_bytes, size_t i, bool parse_special,
                                         const struct added_trust *trust, size_t *ret_end)
{
    unsigned char byte = (unsigned char)text[i];
    const struct added_pattern *found =
        set->first[byte] == set->first[byte + 1] ? NULL : longest_at(set, text + i, n_bytes - i);

    *ret_end = i + (found == NULL ? 1 : found->size);
    if (found == NULL || !found->token->special)
        return found;
    if (!parse_special)
        return NULL;
    if (trust == NULL)
        return found;
    size_t next;
    size_t end = trusted_end(trust, i, &next);
    if (*ret_end <= end)
        return found;
    found = end > i ? longest_at(set, text + i, end - i) : NULL;
    *ret_end = found != NULL ? i + found->size : min_size(*ret_end, next);
    return found;
}

/* Next match that counts, stretched over white space as its token wants. */
static bool find(const struct added_set *set, const char *text, size_t n_bytes, bool parse_special,
                 struct added_cursor *cursor, struct added_piece *ret)
{
    size_t i = cursor->search;

    while (i < n_bytes) {
        size_t start = i;
        size_t end;
        const struct added_pattern *found =
            match(set, text, n_bytes, i, parse_special, cursor->trust, &end);
        i = end;
        if (found == NULL)
            continue;
        const struct added_token *token = found->token;
        if (token->single_word && !is_single_word(text, n_bytes, start, end))
            continue;
        if (token->lstrip)
            start = max_size(space_before(text, start), cursor->done);
        if (token->rstrip)
            end = space_behind(text, end, n_bytes);
        cursor->search = i;
        *ret = (struct added_piece){token, start, end};
        return true;
    }
    cursor->search = n_bytes;
    return false;
}

bool added_next(const struct added_set *set, const char *text, size_t n_bytes, bool parse_special,
                struct added_cursor *cursor, struct added_piece *ret_piece)
{
    struct added_piece found;

    if (cursor->queued.token != NULL) {
        *ret_piece = cursor->queued;
        cursor->queued.token = NULL;
        return true;
    }
    if (set->n == 0 || !find(set, text, n_bytes, parse_special, cursor, &found)) {
        if (cursor->done >= n_bytes)
            return false;
        *ret_piece = (struct added_piece){NULL, cursor->done, n_bytes};
        cursor->done = n_bytes;
        cursor->search = n_bytes;
        return true;
    }
    size_t done = cursor->done;
    cursor->done = found.end;
    if (done >= found.start) {
        *ret_piece = found;
        return true;
    }
    *ret_piece = (struct added_piece){NULL, done, found.start};
    cursor->queued = found;
    return true;
}
