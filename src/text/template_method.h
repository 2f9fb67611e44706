/* Methods of strings, dicts and lists, and the members of loop and namespace objects.
 *
 * Why here: `owner.name` finds these before it looks for a key. Methods that would change a dict or
 * a list are not there, as in the sandbox that transformers uses. Nobody outside `text` includes
 * this. */
#ifndef TEXT_TEMPLATE_METHOD_H
#define TEXT_TEMPLATE_METHOD_H

#include "text/template_value.h"

struct tpl_keyword {
    struct tpl_value name;
    struct tpl_value value;
};

/* Arguments of a call. */
struct tpl_args {
    struct tpl_value *values; /* [n] by position */
    size_t n;
    struct tpl_keyword *keywords; /* [n_keywords] */
    size_t n_keywords;
};

/* A running loop. */
struct tpl_loop {
    struct tpl_value *items; /* [n] */
    size_t n;
    size_t index;
    size_t depth;             /* 0 for the outermost */
    struct tpl_value changed; /* arguments of the last loop.changed() */
};

/* Member `name` of owner by attribute; *ret MISSING when there is none. */
bool tpl_find_member(struct tpl_run *run, const struct tpl_value *owner,
                     const struct tpl_value *name, struct tpl_value *ret);

bool tpl_call_method(struct tpl_run *run, const struct tpl_method *method,
                     const struct tpl_args *args, struct tpl_value *ret);

/* Puts arguments into ret [n_names] by position and by name (MISSING where none was given); `what`
 * is named in errors. */
bool tpl_bind(struct tpl_run *run, const struct tpl_args *args, const char *what,
              const char *const *names, size_t n_names, struct tpl_value *ret);

/* Joins items with a separator: items that are not strings are an error (all: they are printed). */
bool tpl_join(struct tpl_run *run, const struct tpl_value *separator, const struct tpl_value *items,
              size_t n, bool all, struct tpl_value *ret);

#endif
