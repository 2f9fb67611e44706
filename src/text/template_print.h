/* Values to text: Python's str() and repr(), and JSON as json.dumps writes it.
 *
 * Why here: what {{ }} prints must equal Python byte for byte. Bytes that come from a string keep
 * their origin; all that is put around them counts as user data. Nobody outside `text` includes
 * this. */
#ifndef TEXT_TEMPLATE_PRINT_H
#define TEXT_TEMPLATE_PRINT_H

#include "text/template_value.h"

bool tpl_print(struct tpl_run *run, struct tpl_builder *out, const struct tpl_value *value);
bool tpl_repr(struct tpl_run *run, struct tpl_builder *out, const struct tpl_value *value);

/* repr() of a double: the shortest text that reads back as it. */
enum { TPL_DOUBLE_TEXT = 32 };
void tpl_double_text(double f, char ret[TPL_DOUBLE_TEXT]);

struct tpl_json_options {
    bool ensure_ascii;
    bool sort_keys;
    bool has_indent;
    struct tpl_value indent;         /* a string, one level; with has_indent */
    struct tpl_value item_separator; /* strings */
    struct tpl_value key_separator;
};
bool tpl_json(struct tpl_run *run, struct tpl_builder *out, const struct tpl_value *value,
              const struct tpl_json_options *options);

#endif
