/* The text format, byte for byte. */
#include "page.h"

#include "base/alloc.h"

#include <math.h>
#include <stdlib.h>

static void a_page_byte_for_byte(void **state)
{
    struct metric_registry *registry = new_registry();
    struct exposition e = {0};
    const double bounds[] = {0.001, 0.25, 1, 2560};
    struct metric_label stop[] = {{"reason", "stop"}}, other[] = {{"reason", "a\\b\"c"}};

    (void)state;
    struct metric *one = add_metric(registry, (struct metric_spec){.name = "ferry_x_total",
                                                                   .help = "X, by \\ way.",
                                                                   .labels = stop,
                                                                   .n_labels = 1});
    struct metric *gauge = add_metric(
        registry,
        (struct metric_spec){.type = METRIC_TYPE_GAUGE, .name = "ferry_g", .help = "A \"gauge\"."});
    struct metric *histogram =
        add_metric(registry, (struct metric_spec){.type = METRIC_TYPE_HISTOGRAM,
                                                  .name = "ferry_h_seconds",
                                                  .help = "H.",
                                                  .bounds = bounds,
                                                  .n_bounds = 4});
    /* Registered last, shown with the first of its name. */
    struct metric *two = add_metric(registry, (struct metric_spec){.name = "ferry_x_total",
                                                                   .help = "X, by \\ way.",
                                                                   .labels = other,
                                                                   .n_labels = 1});
    struct metric *time = add_metric(
        registry,
        (struct metric_spec){.name = "ferry_t_seconds_total", .help = "T.", .unit = 1e-9});
    metric_registry_seal(registry);
    metric_add(one, UINT64_MAX);
    metric_add(two, 3);
    metric_set(gauge, -2.5);
    metric_add(time, 1500000000);
    metric_observe(histogram, 0.001);
    metric_observe(histogram, 0.5);
    metric_observe(histogram, 1);
    metric_observe(histogram, 5000);
    exposition_registry(&e, registry);
    assert_string_equal(page_text(&e), "# HELP ferry_x_total X, by \\\\ way.\n"
                                       "# TYPE ferry_x_total counter\n"
                                       "ferry_x_total{reason=\"stop\"} 18446744073709551615\n"
                                       "ferry_x_total{reason=\"a\\\\b\\\"c\"} 3\n"
                                       "# HELP ferry_g A \"gauge\".\n"
                                       "# TYPE ferry_g gauge\n"
                                       "ferry_g -2.5\n"
                                       "# HELP ferry_h_seconds H.\n"
                                       "# TYPE ferry_h_seconds histogram\n"
                                       "ferry_h_seconds_bucket{le=\"0.001\"} 1\n"
                                       "ferry_h_seconds_bucket{le=\"0.25\"} 1\n"
                                       "ferry_h_seconds_bucket{le=\"1.0\"} 3\n"
                                       "ferry_h_seconds_bucket{le=\"2560.0\"} 3\n"
                                       "ferry_h_seconds_bucket{le=\"+Inf\"} 4\n"
                                       "ferry_h_seconds_sum 5001.501\n"
                                       "ferry_h_seconds_count 4\n"
                                       "# HELP ferry_t_seconds_total T.\n"
                                       "# TYPE ferry_t_seconds_total counter\n"
                                       "ferry_t_seconds_total 1.5\n");
    /* A second page of unchanged numbers is the same page. */
    struct exposition again = {0};
    exposition_registry(&again, registry);
    assert_int_equal(again.size, e.size);
    assert_memory_equal(again.text, e.text, e.size);
    exposition_fini(&again);
    exposition_fini(&e);
    assert_null(e.text);
    metric_registry_destroy(registry);
}

static void histograms_keep_their_labels(void **state)
{
    struct metric_registry *registry = new_registry();
    struct exposition e = {0};
    const double bounds[] = {1e-7, 1e22};
    struct metric_label labels[] = {{"a", "1"}, {"b", "2"}};
    struct metric_label others[] = {{"c", "3"}};

    (void)state;
    struct metric *m = add_metric(registry, (struct metric_spec){.type = METRIC_TYPE_HISTOGRAM,
                                                                 .name = "ferry_h",
                                                                 .help = "H.",
                                                                 .labels = labels,
                                                                 .n_labels = 2,
                                                                 .bounds = bounds,
                                                                 .n_bounds = 2});
    metric_registry_seal(registry);
    metric_observe(m, (double)INFINITY);
    exposition_metric(&e, "other:name", others, 1, m);
    assert_string_equal(page_text(&e), "other:name_bucket{c=\"3\",le=\"1e-07\"} 0\n"
                                       "other:name_bucket{c=\"3\",le=\"1e+22\"} 0\n"
                                       "other:name_bucket{c=\"3\",le=\"+Inf\"} 1\n"
                                       "other:name_sum{c=\"3\"} +Inf\n"
                                       "other:name_count{c=\"3\"} 1\n");
    e.size = 0;
    exposition_registry(&e, registry);
    assert_line(page_text(&e), "ferry_h_bucket{a=\"1\",b=\"2\",le=\"+Inf\"} 1");
    assert_line(page_text(&e), "ferry_h_count{a=\"1\",b=\"2\"} 1");
    exposition_fini(&e);
    metric_registry_destroy(registry);
}

/* The number behind the last blank of the page. */
static double last_number(struct exposition *e)
{
    const char *text = page_text(e);
    return strtod(strrchr(text, ' ') + 1, NULL);
}

static void numbers_are_read_back(void **state)
{
    struct exposition e = {0};
    const double hard[] = {0,      0.1,  1.0 / 3,   5e-324, 1.7976931348623157e308,
                           1e15,   1e16, 0.1 + 0.2, -1e-9,  9007199254740993.0,
                           123456, 1e21};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(hard); i++) {
        exposition_value(&e, "x", NULL, 0, hard[i]);
        assert_true(last_number(&e) == hard[i]);
    }
    srand(1);
    for (size_t i = 0; i < 2000; i++) {
        double v = ldexp((double)rand() / RAND_MAX + (double)rand() / 1e18, rand() % 400 - 200);
        e.size = 0;
        exposition_value(&e, "x", NULL, 0, v);
        assert_true(last_number(&e) == v);
    }
    e.size = 0;
    exposition_value(&e, "x", NULL, 0, (double)NAN);
    exposition_value(&e, "x", NULL, 0, (double)INFINITY);
    exposition_value(&e, "x", NULL, 0, -(double)INFINITY);
    exposition_value(&e, "x", NULL, 0, 0.001);
    exposition_value(&e, "x", NULL, 0, 0.1);
    exposition_count(&e, "x", NULL, 0, 0);
    assert_string_equal(page_text(&e), "x NaN\nx +Inf\nx -Inf\nx 0.001\nx 0.1\nx 0\n");
    exposition_fini(&e);
}

/* A label's value that nobody checked must not spoil the page. */
static void hostile_label_values(void **state)
{
    struct exposition e = {0};
    char name[2000];

    (void)state;
    const struct metric_label bad = {"model", "a\nb} 7 # \"\\\xff\xc3 end"};
    exposition_count(&e, "x", &bad, 1, 1);
    assert_string_equal(page_text(&e), "x{model=\"a?b} 7 # \\\"\\\\?? end\"} 1\n");
    /* Long, with characters of three bytes across every place where a piece could be cut. */
    for (size_t shift = 0; shift < 3; shift++) {
        size_t n = 0;
        for (; n < shift; n++)
            name[n] = 'x';
        for (; n + 4 < sizeof name; n += 3)
            memcpy(name + n, "\xE2\x82\xAC", 3);
        name[n] = 0;
        const struct metric_label longer = {"model", name};
        e.size = 0;
        exposition_count(&e, "x", &longer, 1, 1);
        assert_null(strchr(page_text(&e), '?'));
        assert_int_equal(strncmp(page_text(&e) + strlen("x{model=\""), name, n), 0);
    }
    memset(name, 0x80, sizeof name - 1); /* continuation bytes only */
    name[sizeof name - 1] = 0;
    const struct metric_label broken = {"model", name};
    e.size = 0;
    exposition_count(&e, "x", &broken, 1, 1);
    assert_int_equal(times_in(page_text(&e), "?"), sizeof name - 1);
    const struct metric_label empty = {"model", ""};
    e.size = 0;
    exposition_count(&e, "x", &empty, 1, 1);
    assert_string_equal(page_text(&e), "x{model=\"\"} 1\n");
    exposition_fini(&e);
}

static void help_is_one_line(void **state)
{
    struct exposition e = {0};

    (void)state;
    exposition_family(&e, "x", METRIC_TYPE_GAUGE, "a\nb \\n \"c\"");
    assert_string_equal(page_text(&e), "# HELP x a\\nb \\\\n \"c\"\n# TYPE x gauge\n");
    exposition_fini(&e);
}

static void out_of_memory_stops_the_page(void **state)
{
    struct metric_registry *registry = new_registry();
    struct metric_label label = {"i", ""};
    char number[16];

    (void)state;
    label.value = number;
    for (int i = 0; i < 3000; i++) {
        (void)snprintf(number, sizeof number, "%d", i);
        (void)add_metric(registry, (struct metric_spec){.name = "ferry_long_name_total",
                                                        .help = "N.",
                                                        .labels = &label,
                                                        .n_labels = 1});
    }
    metric_registry_seal(registry);
    bool whole = false;
    for (uint64_t n = 1; n < 20 && !whole; n++) {
        struct exposition e = {0};
        mem_fail_after(n);
        exposition_registry(&e, registry);
        mem_fail_after(0);
        whole = !e.failed;
        assert_true(n > 1 || e.failed);
        if (whole) {
            assert_int_equal(times_in(page_text(&e), "\n"), 3002);
        } else {
            size_t size = e.size;
            exposition_count(&e, "x", NULL, 0,
                             1); /* there is memory again, but not for this page */
            assert_int_equal(e.size, size);
        }
        exposition_fini(&e);
    }
    assert_true(whole);
    metric_registry_destroy(registry);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_byte_for_byte),  cmocka_unit_test(histograms_keep_their_labels),
        cmocka_unit_test(numbers_are_read_back), cmocka_unit_test(hostile_label_values),
        cmocka_unit_test(help_is_one_line),      cmocka_unit_test(out_of_memory_stops_the_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
