/* Any bytes as a chat template and, behind the first byte 0, as the JSON of its variables: what is
 * accepted must render within its limits or say why not in one line, and never take a byte of user
 * data for its own. */
#include "fuzz.h"

#include "base/assert.h"
#include "text/template.h"
#include "text/unicode.h"

#include <string.h>

/* No template writes this character unless its source has it, spells it or copies user data. */
static const char CANARY[] = "\xF3\xB0\x82\x90"; /* U+F0090, private use */

static void check(const struct rendered *r, bool source_may_write_it)
{
    size_t end = 0;

    FERRY_ASSERT(r->text[r->n_bytes] == 0);
    FERRY_ASSERT(utf8_valid_size(r->text, r->n_bytes) == r->n_bytes);
    for (size_t i = 0; i < r->n_trusted; i++) {
        const struct text_span *span = &r->trusted[i];
        FERRY_ASSERT(span->start < span->end && span->end <= r->n_bytes);
        FERRY_ASSERT(i == 0 || span->start > end);
        end = span->end;
        FERRY_ASSERT(source_may_write_it || memmem(r->text + span->start, end - span->start, CANARY,
                                                   sizeof CANARY - 1) == NULL);
    }
}

static void render(const struct template *t, json_t *variables, bool source_may_write_it)
{
    struct template_limits limits = {
        .steps = 200000, .output_bytes = 1 << 18, .memory_bytes = 1 << 22, .now_s = 1764547200};
    struct rendered r = {0};
    struct ferry_error err = {0};

    if (template_render(t, variables, &limits, &r, &err) == FERRY_OK)
        check(&r, source_may_write_it);
    else
        FERRY_ASSERT(err.msg[0] != 0 && strchr(err.msg, '\n') == NULL && r.text == NULL);
    rendered_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct template *t = NULL;
    struct ferry_error err = {0};
    const uint8_t *end = size == 0 ? NULL : memchr(data, 0, size);
    size_t n_source = end == NULL ? size : (size_t)(end - data);
    json_t *variables = NULL;

    if (template_create(&t, (const char *)data, n_source, &err) != FERRY_OK) {
        FERRY_ASSERT(t == NULL && err.msg[0] != 0 && strchr(err.msg, '\n') == NULL);
        return 0;
    }
    if (end != NULL)
        variables = json_loadb((const char *)end + 1, size - n_source - 1,
                               JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(variables)) {
        json_decref(variables);
        variables = json_object();
    }
    (void)json_object_set_new(variables, "x", json_string(CANARY));
    /* Backslashes may spell the character; bytes of it in the source are its own. */
    bool may_write_it =
        memchr(data, '\\', n_source) != NULL || memchr(data, 0xF3, n_source) != NULL;
    render(t, variables, may_write_it || end != NULL);
    if (end != NULL) { /* once more with nothing but the canary */
        json_decref(variables);
        variables = json_pack("{s:s, s:[{s:s, s:s}]}", "x", CANARY, "messages", "role", CANARY,
                              "content", CANARY);
        render(t, variables, may_write_it);
    }
    json_decref(variables);
    template_destroy(t);
    return 0;
}
