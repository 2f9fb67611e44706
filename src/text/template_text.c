/* String operations of chat templates. See template_text.h. */
#include "text/template_text.h"

#include "base/size.h"
#include "text/unicode.h"

#include <string.h>
#include <utf8proc.h>

bool tpl_is_space(int32_t code)
{
    return (code >= 0x1C && code <= 0x1F) || unicode_is_space(code);
}

size_t tpl_space_size(const char *s, size_t n)
{
    size_t at = 0;

    while (at < n) {
        int32_t code;
        size_t size = utf8_decode(s + at, n - at, &code);
        if (!tpl_is_space(code))
            break;
        at += size;
    }
    return at;
}

/* Offset of the character that ends at `end` > 0. */
static size_t char_before(const char *s, size_t end)
{
    size_t at = end - 1;

    while (at > 0 && ((unsigned char)s[at] & 0xC0) == 0x80)
        at--;
    return at;
}

size_t tpl_rstrip_size(const char *s, size_t n)
{
    while (n > 0) {
        int32_t code;
        size_t at = char_before(s, n);
        (void)utf8_decode(s + at, n - at, &code);
        if (!tpl_is_space(code))
            break;
        n = at;
    }
    return n;
}

size_t tpl_count_chars(const char *s, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

size_t tpl_char_offset(const char *s, size_t n, size_t index)
{
    size_t at = 0;

    for (; at < n; at++) {
        if (((unsigned char)s[at] & 0xC0) == 0x80)
            continue;
        if (index-- == 0)
            break;
    }
    return at;
}

size_t tpl_find(struct tpl_run *run, const struct tpl_string *s, const struct tpl_string *needle,
                size_t from, bool *ret_ok)
{
    *ret_ok = true;
    if (from > s->size || needle->size > s->size - from)
        return SIZE_MAX;
    const char *found = memmem(s->data + from, s->size - from, needle->data, needle->size);
    size_t end = found == NULL ? s->size : (size_t)(found - s->data);
    *ret_ok = tpl_work_bytes(run, end - from);
    return found == NULL || !*ret_ok ? SIZE_MAX : end;
}

size_t tpl_find_last(struct tpl_run *run, const struct tpl_string *s,
                     const struct tpl_string *needle, bool *ret_ok)
{
    size_t work = s->size;

    /* A comparison at every place, each of up to the needle's length. */
    *ret_ok = tpl_work(run, mul_size(work, needle->size / 64 + 1, &work) ? work / 8 : UINT64_MAX);
    if (!*ret_ok || needle->size > s->size)
        return SIZE_MAX;
    for (size_t at = s->size - needle->size + 1; at-- > 0;) {
        if (memcmp(s->data + at, needle->data, needle->size) == 0)
            return at;
    }
    return SIZE_MAX;
}

static bool has_char(const struct tpl_string *chars, const char *c, size_t size)
{
    int32_t code;

    if (chars == NULL) {
        (void)utf8_decode(c, size, &code);
        return tpl_is_space(code);
    }
    return size == 1 ? memchr(chars->data, c[0], chars->size) != NULL
                     : memmem(chars->data, chars->size, c, size) != NULL;
}

bool tpl_strip(struct tpl_run *run, const struct tpl_value *s, const struct tpl_string *chars,
               bool left, bool right, struct tpl_value *ret)
{
    const char *data = s->u.s.data;
    size_t start = 0;
    size_t end = s->u.s.size;
    size_t n_chars = chars == NULL ? 1 : chars->size + 1;

    while (left && start < end) {
        int32_t code;
        size_t size = utf8_decode(data + start, end - start, &code);
        if (!has_char(chars, data + start, size))
            break;
        start += size;
    }
    while (right && end > start) {
        size_t at = char_before(data, end);
        if (!has_char(chars, data + at, end - at))
            break;
        end = at;
    }
    size_t work = s->u.s.size - (end - start);
    if (!mul_size(work, n_chars, &work) || !tpl_work_bytes(run, work))
        return tpl_work(run, UINT64_MAX);
    *ret = tpl_sub(s, start, end);
    return true;
}

/* The pieces of a string: counted in a first pass, so that a list that is too large costs nothing
 * and any other is made once; then kept. */
struct pieces {
    struct tpl_run *run;
    const struct tpl_value *s;
    const struct tpl_string *separator; /* NULL: white space */
    int64_t max;                        /* < 0: no limit */
    struct tpl_seq *seq;                /* NULL: in the first pass */
    size_t n;
};

static bool pieces_add(struct pieces *p, size_t start, size_t end)
{
    if (p->seq != NULL) {
        p->seq->items[p->n++] = tpl_sub(p->s, start, end);
        return true;
    }
    if (++p->n > p->run->pool.limit / sizeof *p->seq->items) {
        p->run->pool.over = true;
        return tpl_no_memory(p->run);
    }
    return tpl_work(p->run, 1);
}

static bool pieces_make(struct pieces *p, bool (*cut)(struct pieces *p), struct tpl_value *ret)
{
    if (!cut(p) || !tpl_work_bytes(p->run, p->s->u.s.size))
        return false;
    p->seq = tpl_seq_new(p->run, TPL_LIST, p->n);
    p->n = 0;
    if (p->seq == NULL || !cut(p))
        return false;
    *ret = tpl_seq_value(p->seq);
    return true;
}

/* Offset of the first white space at or behind `at`. */
static size_t word_end(const struct tpl_string *s, size_t at)
{
    while (at < s->size) {
        int32_t code;
        size_t size = utf8_decode(s->data + at, s->size - at, &code);
        if (tpl_is_space(code))
            break;
        at += size;
    }
    return at;
}

static bool split_words(struct pieces *p)
{
    const struct tpl_string *s = &p->s->u.s;
    int64_t max = p->max;
    size_t at = tpl_space_size(s->data, s->size);

    while (at < s->size) {
        size_t end = word_end(s, at);
        if (max == 0)
            end = s->size; /* the rest as it is */
        max -= max > 0;
        if (!pieces_add(p, at, end))
            return false;
        at = end + tpl_space_size(s->data + end, s->size - end);
    }
    return true;
}

static bool split_at(struct pieces *p)
{
    const struct tpl_string *s = &p->s->u.s;
    int64_t max = p->max;
    bool ok = true;

    for (size_t at = 0;;) {
        size_t found = max == 0 ? SIZE_MAX : tpl_find(p->run, s, p->separator, at, &ok);
        if (!ok || !pieces_add(p, at, found == SIZE_MAX ? s->size : found))
            return false;
        if (found == SIZE_MAX)
            return true;
        at = found + p->separator->size;
        max -= max > 0;
    }
}

bool tpl_split(struct tpl_run *run, const struct tpl_value *s, const struct tpl_string *separator,
               int64_t max, struct tpl_value *ret)
{
    struct pieces p = {.run = run, .s = s, .separator = separator, .max = max};

    if (separator != NULL && separator->size == 0)
        return tpl_fail(run, FERRY_ERR_ARG, "split: empty separator");
    return pieces_make(&p, separator == NULL ? split_words : split_at, ret);
}

static void reverse(struct tpl_seq *seq)
{
    for (size_t i = 0; i < seq->n / 2; i++) {
        struct tpl_value kept = seq->items[i];
        seq->items[i] = seq->items[seq->n - 1 - i];
        seq->items[seq->n - 1 - i] = kept;
    }
}

static bool rsplit_words(struct pieces *p)
{
    const struct tpl_string *s = &p->s->u.s;
    int64_t max = p->max;
    size_t end = tpl_rstrip_size(s->data, s->size);

    while (end > 0) {
        size_t at = end;
        while (at > 0) {
            int32_t code;
            size_t before = char_before(s->data, at);
            (void)utf8_decode(s->data + before, at - before, &code);
            if (tpl_is_space(code))
                break;
            at = before;
        }
        if (max == 0)
            at = 0;
        max -= max > 0;
        if (!pieces_add(p, at, end))
            return false;
        end = tpl_rstrip_size(s->data, at);
    }
    return true;
}

static bool rsplit_at(struct pieces *p)
{
    struct tpl_string rest = p->s->u.s;
    int64_t max = p->max;
    bool ok = true;

    for (;;) {
        size_t found = max == 0 ? SIZE_MAX : tpl_find_last(p->run, &rest, p->separator, &ok);
        if (!ok || !pieces_add(p, found == SIZE_MAX ? 0 : found + p->separator->size, rest.size))
            return false;
        if (found == SIZE_MAX)
            return true;
        rest.size = found;
        max -= max > 0;
    }
}

bool tpl_rsplit(struct tpl_run *run, const struct tpl_value *s, const struct tpl_string *separator,
                int64_t max, struct tpl_value *ret)
{
    struct pieces p = {.run = run, .s = s, .separator = separator, .max = max};

    if (separator != NULL && separator->size == 0)
        return tpl_fail(run, FERRY_ERR_ARG, "rsplit: empty separator");
    if (!pieces_make(&p, separator == NULL ? rsplit_words : rsplit_at, ret))
        return false;
    reverse(p.seq);
    return true;
}

static bool is_line_end(int32_t code)
{
    return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

static bool cut_lines(struct pieces *p, bool keep_ends)
{
    const struct tpl_string *s = &p->s->u.s;
    size_t start = 0;

    for (size_t at = 0; at < s->size;) {
        int32_t code;
        size_t size = utf8_decode(s->data + at, s->size - at, &code);
        size_t end = at;
        at += size;
        if (!is_line_end(code))
            continue;
        if (code == '\r' && at < s->size && s->data[at] == '\n')
            at++;
        if (!pieces_add(p, start, keep_ends ? at : end))
            return false;
        start = at;
    }
    return start == s->size || pieces_add(p, start, s->size);
}

static bool lines_with_ends(struct pieces *p)
{
    return cut_lines(p, true);
}

static bool lines_without_ends(struct pieces *p)
{
    return cut_lines(p, false);
}

bool tpl_splitlines(struct tpl_run *run, const struct tpl_value *s, bool keep_ends,
                    struct tpl_value *ret)
{
    struct pieces p = {.run = run, .s = s};

    return pieces_make(&p, keep_ends ? lines_with_ends : lines_without_ends, ret);
}

/* new_text between all characters and at both ends. */
static bool replace_empty(struct tpl_run *run, const struct tpl_value *s,
                          const struct tpl_value *new_text, int64_t max, struct tpl_builder *b)
{
    size_t at = 0;

    while (max != 0) {
        if (!tpl_work(run, 1) || !tpl_put_string(run, b, new_text))
            return false;
        max -= max > 0;
        if (at == s->u.s.size)
            return true;
        int32_t code;
        size_t size = utf8_decode(s->u.s.data + at, s->u.s.size - at, &code);
        struct tpl_value c = tpl_sub(s, at, at + size);
        if (!tpl_put_string(run, b, &c))
            return false;
        at += size;
    }
    struct tpl_value rest = tpl_sub(s, at, s->u.s.size);
    return tpl_put_string(run, b, &rest);
}

bool tpl_replace(struct tpl_run *run, const struct tpl_value *s, const struct tpl_value *old,
                 const struct tpl_value *new_text, int64_t max, struct tpl_value *ret)
{
    struct tpl_builder b = {0};
    size_t at = 0;
    bool ok = true;

    if (old->u.s.size == 0) {
        ok = replace_empty(run, s, new_text, max, &b);
        *ret = tpl_built(&b);
        return ok;
    }
    for (;;) {
        size_t found = max == 0 ? SIZE_MAX : tpl_find(run, &s->u.s, &old->u.s, at, &ok);
        if (!ok || !tpl_work(run, 1))
            return false;
        if (found == SIZE_MAX && at == 0) {
            *ret = *s;
            return true;
        }
        struct tpl_value piece = tpl_sub(s, at, found == SIZE_MAX ? s->u.s.size : found);
        if (!tpl_put_string(run, &b, &piece))
            return false;
        if (found == SIZE_MAX)
            break;
        if (!tpl_put_string(run, &b, new_text))
            return false;
        at = found + old->u.s.size;
        max -= max > 0;
    }
    *ret = tpl_built(&b);
    return true;
}

bool tpl_escape(struct tpl_run *run, const struct tpl_value *s, struct tpl_value *ret)
{
    static const char FROM[] = "&<>'\"";
    static const char *const TO[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct tpl_builder b = {0};
    size_t start = 0;

    if (s->markup) {
        *ret = *s;
        return true;
    }
    if (!tpl_work(run, 1 + s->u.s.size / 4))
        return false;
    for (size_t at = 0; at <= s->u.s.size; at++) {
        char c = at < s->u.s.size ? s->u.s.data[at] : 0;
        const char *found = c == 0 ? NULL : strchr(FROM, c);
        if (found == NULL && at < s->u.s.size)
            continue;
        struct tpl_value plain = tpl_sub(s, start, at);
        if (!tpl_put_string(run, &b, &plain))
            return false;
        if (found != NULL &&
            !tpl_put(run, &b, TO[found - FROM], strlen(TO[found - FROM]), tpl_is_trusted(s, at)))
            return false;
        start = at + 1;
    }
    *ret = tpl_built(&b);
    ret->markup = true;
    return true;
}

/* Characters whose upper, title or lower case is more than one character, or which utf8proc maps
 * differently: code, then upper, title, lower. Made by tools/oracle_template/case_table.py. */
struct special_case {
    int32_t code;
    const char *upper;
    const char *title;
    const char *lower;
};
static const struct special_case SPECIAL[] = {
#include "text/template_case.inc"
};

enum mapping { MAP_UPPER, MAP_TITLE, MAP_LOWER };

static const struct special_case *find_special(int32_t code)
{
    size_t low = 0;
    size_t high = sizeof SPECIAL / sizeof SPECIAL[0];

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (SPECIAL[middle].code < code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof SPECIAL / sizeof SPECIAL[0] && SPECIAL[low].code == code ? &SPECIAL[low]
                                                                                 : NULL;
}

static bool put_mapped(struct tpl_run *run, struct tpl_builder *b, int32_t code,
                       enum mapping mapping, bool trusted)
{
    char text[4];

    if (code < 0x80) { /* most text; the general way takes ten times as long */
        bool is_letter = (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
        text[0] = (char)(!is_letter ? code : mapping == MAP_LOWER ? code | 0x20 : code & ~0x20);
        return tpl_put(run, b, text, 1, trusted);
    }
    const struct special_case *special = find_special(code);
    if (special != NULL) {
        const char *to = mapping == MAP_UPPER   ? special->upper
                         : mapping == MAP_TITLE ? special->title
                                                : special->lower;
        return tpl_put(run, b, to, strlen(to), trusted);
    }
    int32_t to = mapping == MAP_UPPER   ? utf8proc_toupper(code)
                 : mapping == MAP_TITLE ? utf8proc_totitle(code)
                                        : utf8proc_tolower(code);
    return tpl_put(run, b, text, utf8_encode(to, text), trusted);
}

static bool is_upper_or_title(int32_t code)
{
    utf8proc_category_t category = utf8proc_category(code);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LT;
}

/* Lowercase, Uppercase or Titlecase, as far as str.title needs it. */
static bool is_cased(int32_t code)
{
    if (code < 0x80)
        return (code >= 'a' && code <= 'z') || (code >= 'A' && code <= 'Z');
    return is_upper_or_title(code) || utf8proc_category(code) == UTF8PROC_CATEGORY_LL ||
           utf8proc_islower(code) || utf8proc_isupper(code) || utf8proc_toupper(code) != code ||
           utf8proc_tolower(code) != code;
}

/* Marks and the like that do not end a word for the final sigma. */
static bool is_case_ignorable(int32_t code)
{
    utf8proc_category_t c = utf8proc_category(code);
    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK || code == '\'' || code == '.' ||
           code == ':' || code == 0xB7 || code == 0x387 || code == 0x2018 || code == 0x2019 ||
           code == 0x2024 || code == 0x2027;
}

/* Whether the capital sigma at [at, at + 2) ends a word: a cased letter before it, none behind. */
static bool is_final_sigma(const struct tpl_string *s, size_t at)
{
    int32_t code = 0;
    size_t before = at;
    size_t behind = at + 2;

    do {
        if (before == 0)
            return false;
        size_t end = before;
        before = char_before(s->data, end);
        (void)utf8_decode(s->data + before, end - before, &code);
    } while (is_case_ignorable(code));
    if (!is_cased(code))
        return false;
    for (; behind < s->size;) {
        behind += utf8_decode(s->data + behind, s->size - behind, &code);
        if (!is_case_ignorable(code))
            return !is_cased(code);
    }
    return true;
}

static bool ends_filter_word(int32_t code)
{
    return tpl_is_space(code) || (code > 0 && code < 0x80 && strchr("-({[<", (int)code) != NULL);
}

bool tpl_change_case(struct tpl_run *run, const struct tpl_value *s, enum tpl_case how,
                     struct tpl_value *ret)
{
    struct tpl_builder b = {0};
    bool in_word = false;

    if (!tpl_work(run, s->u.s.size / 4) || !tpl_reserve(run, &b, s->u.s.size))
        return false;
    for (size_t at = 0; at < s->u.s.size;) {
        int32_t code;
        size_t size = utf8_decode(s->u.s.data + at, s->u.s.size - at, &code);
        bool trusted = tpl_is_trusted(s, at);
        enum mapping mapping = how == TPL_UPPER ? MAP_UPPER : MAP_LOWER;
        if (!in_word && (how == TPL_TITLE || how == TPL_CAPITALIZE))
            mapping = MAP_TITLE;
        else if (!in_word && how == TPL_TITLE_FILTER)
            mapping = MAP_UPPER;
        bool ok = mapping == MAP_LOWER && code == 0x3A3 && is_final_sigma(&s->u.s, at)
                      ? tpl_put(run, &b, "\317\202", 2, trusted)
                      : put_mapped(run, &b, code, mapping, trusted);
        if (!ok)
            return false;
        in_word = how == TPL_TITLE          ? is_cased(code)
                  : how == TPL_TITLE_FILTER ? !ends_filter_word(code)
                                            : true;
        at += size;
    }
    *ret = tpl_built(&b);
    return true;
}

/* Characters of category No that are digits to Python (Numeric_Type=Digit). */
static bool is_other_digit(int32_t code)
{
    static const int32_t RANGES[][2] = {
        {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
        {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
        {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
        {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
        {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A},
    };

    for (size_t i = 0; i < sizeof RANGES / sizeof RANGES[0]; i++) {
        if (code >= RANGES[i][0] && code <= RANGES[i][1])
            return true;
    }
    return false;
}

static bool fits(int32_t code, enum tpl_question question)
{
    utf8proc_category_t c = utf8proc_category(code);
    bool is_letter = c != UTF8PROC_CATEGORY_CN && c <= UTF8PROC_CATEGORY_LO;

    switch (question) {
    case TPL_IS_ALPHA:
        return is_letter;
    case TPL_IS_DIGIT:
        return c == UTF8PROC_CATEGORY_ND || is_other_digit(code);
    case TPL_IS_ALNUM:
        return is_letter || unicode_is_numeric(code);
    default:
        return tpl_is_space(code);
    }
}

bool tpl_ask(const struct tpl_string *s, enum tpl_question question)
{
    bool any_cased = false;

    for (size_t at = 0; at < s->size;) {
        int32_t code;
        at += utf8_decode(s->data + at, s->size - at, &code);
        if (question == TPL_IS_UPPER || question == TPL_IS_LOWER) {
            bool upper = is_upper_or_title(code) || utf8proc_isupper(code);
            bool lower = utf8proc_category(code) == UTF8PROC_CATEGORY_LL || utf8proc_islower(code);
            if (question == TPL_IS_UPPER ? lower || utf8proc_category(code) == UTF8PROC_CATEGORY_LT
                                         : upper)
                return false;
            any_cased = any_cased || upper || lower;
        } else if (!fits(code, question)) {
            return false;
        }
    }
    return question == TPL_IS_UPPER || question == TPL_IS_LOWER ? any_cased : s->size > 0;
}
