/* Python's operators on the values of a chat template: truth, equality, order, arithmetic, members,
 * slices, iteration.
 *
 * Why here: expressions, filters and tests share them. All return false after an error, with the
 * error recorded in the run. Nobody outside `text` includes this. */
#ifndef TEXT_TEMPLATE_OPS_H
#define TEXT_TEMPLATE_OPS_H

#include "text/template_value.h"

bool tpl_truth(const struct tpl_value *value);
bool tpl_is_number(const struct tpl_value *value); /* bool, int, float */

/* Integer value of an int or bool; false for everything else (no error). */
bool tpl_as_int(const struct tpl_value *value, int64_t *ret);

bool tpl_equal(struct tpl_run *run, const struct tpl_value *a, const struct tpl_value *b,
               bool *ret);

/* *ret < 0, 0, > 0; 2 when unordered (NaN). Types that Python does not order are an error. */
bool tpl_compare(struct tpl_run *run, const struct tpl_value *a, const struct tpl_value *b,
                 int *ret);

/* One comparison, op a token kind or OPERAND_*. */
bool tpl_compare_by(struct tpl_run *run, int op, const struct tpl_value *a,
                    const struct tpl_value *b, bool *ret);

bool tpl_contains(struct tpl_run *run, const struct tpl_value *item, const struct tpl_value *in,
                  bool *ret);

/* a op b, op a token kind. */
bool tpl_binary(struct tpl_run *run, int op, const struct tpl_value *a, const struct tpl_value *b,
                struct tpl_value *ret);
bool tpl_negate(struct tpl_run *run, const struct tpl_value *a, struct tpl_value *ret);

/* owner.name and owner[key] by jinja2's rules: the other kind of look-up second, undefined when
 * both find nothing. */
bool tpl_getattr(struct tpl_run *run, const struct tpl_value *owner, const struct tpl_value *name,
                 struct tpl_value *ret);
bool tpl_getitem(struct tpl_run *run, const struct tpl_value *owner, const struct tpl_value *key,
                 struct tpl_value *ret);

/* owner[start:stop:step]; NULL: left out. */
bool tpl_slice(struct tpl_run *run, const struct tpl_value *owner, const struct tpl_value *start,
               const struct tpl_value *stop, const struct tpl_value *step, struct tpl_value *ret);

/* Fills order [n] with the indices of keys [n] in ascending (reverse: descending) order, stable. */
bool tpl_sort(struct tpl_run *run, const struct tpl_value *keys, size_t n, bool reverse,
              size_t *order);

/* Length as len() gives it. */
bool tpl_length(struct tpl_run *run, const struct tpl_value *value, size_t *ret);

/* All items that iterating over a value gives; uses up a generator. Borrowed. */
bool tpl_iterate(struct tpl_run *run, const struct tpl_value *value, struct tpl_value **ret_items,
                 size_t *ret_n);

#endif
