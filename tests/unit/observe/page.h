/* What the tests of metric pages share: a page as a string, and how often a text stands in it. Test
 * code only. */
#ifndef TESTS_UNIT_OBSERVE_PAGE_H
#define TESTS_UNIT_OBSERVE_PAGE_H

#include "tests/unit/unit.h"

#include "observe/exposition.h"

#include <string.h>

/* The page so far as a string, borrowed until the next call; a page that failed fails the test. */
static inline const char *page_text(struct exposition *e)
{
    static char text[1 << 20];

    assert_false(e->failed);
    assert_true(e->size < sizeof text);
    if (e->size > 0)
        memcpy(text, e->text, e->size);
    text[e->size] = 0;
    return text;
}

static inline size_t times_in(const char *text, const char *what)
{
    size_t n = 0;

    for (const char *at = strstr(text, what); at != NULL; at = strstr(at + 1, what))
        n++;
    return n;
}

/* line: without its end. */
static inline void assert_line(const char *page, const char *line)
{
    char wanted[1024];

    (void)snprintf(wanted, sizeof wanted, "%s\n", line);
    const char *at = strstr(page, wanted);
    while (at != NULL && at != page && at[-1] != '\n')
        at = strstr(at + 1, wanted);
    if (at == NULL)
        fail_msg("no line '%s' in\n%s", line, page);
}

/* Registers or fails the test. */
static inline struct metric *add_metric(struct metric_registry *registry, struct metric_spec spec)
{
    struct metric *metric = NULL;
    struct ferry_error err = {0};

    if (metric_register(registry, &spec, &metric, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return metric;
}

static inline struct metric_registry *new_registry(void)
{
    struct metric_registry *registry = NULL;
    struct ferry_error err = {0};

    assert_int_equal(metric_registry_create(&registry, &err), FERRY_OK);
    return registry;
}

#endif
