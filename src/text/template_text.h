/* Python's string operations on strings that remember who wrote each byte.
 *
 * Why here: methods and filters share them. All work on characters, as Python does; every byte of a
 * result keeps the origin of the byte it was made from. Nobody outside `text` includes this. */
#ifndef TEXT_TEMPLATE_TEXT_H
#define TEXT_TEMPLATE_TEXT_H

#include "text/template_value.h"

/* What str.isspace() says: White_Space and U+001C..U+001F. */
bool tpl_is_space(int32_t code);

/* Bytes of white space at the start of s [n]; bytes of s without the white space at its end. */
size_t tpl_space_size(const char *s, size_t n);
size_t tpl_rstrip_size(const char *s, size_t n);

/* Characters of s [n], well-formed UTF-8. */
size_t tpl_count_chars(const char *s, size_t n);

/* Offset of character `index` (0 .. number of characters). */
size_t tpl_char_offset(const char *s, size_t n, size_t index);

/* First (or last) offset of `needle` in s at or behind `from`, SIZE_MAX when there is none. Costs
 * steps; *ret_ok false after an error. */
size_t tpl_find(struct tpl_run *run, const struct tpl_string *s, const struct tpl_string *needle,
                size_t from, bool *ret_ok);
size_t tpl_find_last(struct tpl_run *run, const struct tpl_string *s,
                     const struct tpl_string *needle, bool *ret_ok);

/* Without the characters of `chars` (NULL: white space) at the chosen ends. */
bool tpl_strip(struct tpl_run *run, const struct tpl_value *s, const struct tpl_string *chars,
               bool left, bool right, struct tpl_value *ret);

/* split, rsplit (separator NULL: white space), splitlines: lists. max < 0: no limit. */
bool tpl_split(struct tpl_run *run, const struct tpl_value *s, const struct tpl_string *separator,
               int64_t max, struct tpl_value *ret);
bool tpl_rsplit(struct tpl_run *run, const struct tpl_value *s, const struct tpl_string *separator,
                int64_t max, struct tpl_value *ret);
bool tpl_splitlines(struct tpl_run *run, const struct tpl_value *s, bool keep_ends,
                    struct tpl_value *ret);

/* At most max (< 0: all) replacements. */
bool tpl_replace(struct tpl_run *run, const struct tpl_value *s, const struct tpl_value *old,
                 const struct tpl_value *new_text, int64_t max, struct tpl_value *ret);

/* The string as HTML: with & < > ' " escaped, unless it is HTML already. */
bool tpl_escape(struct tpl_run *run, const struct tpl_value *s, struct tpl_value *ret);

enum tpl_case {
    TPL_UPPER,
    TPL_LOWER,
    TPL_CAPITALIZE,   /* str.capitalize() */
    TPL_TITLE,        /* str.title(): words are runs of cased characters */
    TPL_TITLE_FILTER, /* the filter: words are cut at blanks, '-', '(', '{', '[' and '<' */
};

/* Case by utf8proc's simple mappings and Python's special ones (SpecialCasing of Unicode). */
bool tpl_change_case(struct tpl_run *run, const struct tpl_value *s, enum tpl_case how,
                     struct tpl_value *ret);

/* Questions of str: isupper, islower, isalpha, isdigit, isalnum, isspace. */
enum tpl_question {
    TPL_IS_UPPER,
    TPL_IS_LOWER,
    TPL_IS_ALPHA,
    TPL_IS_DIGIT,
    TPL_IS_ALNUM,
    TPL_IS_SPACE
};
bool tpl_ask(const struct tpl_string *s, enum tpl_question question);

#endif
