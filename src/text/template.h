/* Chat templates: the checkpoint's Jinja source, rendered as Python's jinja2 does in the settings
 * of Hugging Face transformers, with a record of which bytes the template itself wrote.
 *
 * Why here: the rendered text goes straight into a tokenizer, and only bytes of the template may
 * become control tokens (tokenizer_encode_rendered). It must not know models, HTTP or who asks.
 *
 * A template is const after create and may be used from any thread; rendering allocates its own
 * memory and releases it at the end. Both the source and the variables are hostile: nesting, work,
 * memory and sizes are bounded (struct template_limits, base/limits.h).
 *
 * What is trusted: literals of the source, variables that the caller names as trusted (bos_token
 * and its like), counters of loops, and the words system, user, assistant, tool, developer and
 * function as the `role` of a member of `messages` (some templates write '<|' + role + '|>').
 * Everything else is user data. Trust belongs to bytes: it survives slicing, strip, replace, join,
 * upper and all other operations. See docs/decisions/0004-chat-templates.md. */
#ifndef TEXT_TEMPLATE_H
#define TEXT_TEMPLATE_H

#include "ferry/status.h"
#include "text/span.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct template;

/* What one rendering may use. Zero fields take the default of template_limits_default. */
struct template_limits {
    uint64_t steps;      /* evaluation steps; copying counts one step per 64 bytes */
    size_t output_bytes; /* of the rendered text */
    size_t memory_bytes; /* of values on the way */
    int64_t now_s;       /* local time as seconds since 1970, for strftime_now; not a limit */
    /* Names of top-level variables whose strings count as the template's own; NULL: bos_token,
     * eos_token, pad_token, unk_token, sep_token, cls_token, mask_token. Ended by NULL. */
    const char *const *trusted_names;
};

/* The defaults, with now_s 0 (1970-01-01). */
struct template_limits template_limits_default(void);

/* A rendered text; caller's storage, {0} to start, rendered_fini to free. */
struct rendered {
    char *text; /* [n_bytes], UTF-8, then a 0 */
    size_t n_bytes;
    struct text_span *trusted; /* [n_trusted] ascending, disjoint, not empty, not touching */
    size_t n_trusted;
};

void rendered_fini(struct rendered *rendered);

/* Parses source [n_bytes] once. Errors: FERRY_ERR_FORMAT (syntax; line and what was met),
 * FERRY_ERR_UNSUPPORTED (a construct of jinja2 that is not handled; line and name),
 * FERRY_ERR_LIMIT (LIMIT_TEMPLATE_*), FERRY_ERR_NOMEM. */
enum ferry_status template_create(struct template **ret_template, const char *source,
                                  size_t n_bytes, struct ferry_error *err) FERRY_MUST_CHECK;
void template_destroy(struct template *t);

/* Renders with `variables`, an object: messages, tools, add_generation_prompt, bos_token, any
 * chat_template_kwargs. Borrowed, not modified. limits may be NULL. Untouched *ret on failure.
 * Errors: FERRY_ERR_ARG (raise_exception, with the template's own message; what Python would raise
 * an error for: adding a string to a number, an attribute of an undefined value), FERRY_ERR_LIMIT,
 * FERRY_ERR_NOMEM. Messages name the line of the template. Any thread. */
enum ferry_status template_render(const struct template *t, const json_t *variables,
                                  const struct template_limits *limits, struct rendered *ret,
                                  struct ferry_error *err) FERRY_MUST_CHECK;

/* Whether the source mentions a name (a variable, an attribute or a string literal that is exactly
 * it), so that callers can tell whether a template knows tools or enable_thinking. */
bool template_mentions(const struct template *t, const char *name);

#endif
