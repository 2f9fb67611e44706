/* Unit tests of metric/metric.c: registration, order, values, out of memory, and no update lost
 * with four writers and a reader. Meant to run under the thread sanitizer too. */
#include "../unit.h"

#include "base/alloc.h"
#include "metric/metric.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>

static const double BOUNDS[] = {0.5, 1.0, 2.5};

static struct metric_registry *registry_of(void)
{
    struct metric_registry *registry = NULL;
    assert_int_equal(metric_registry_create(&registry, NULL), FERRY_OK);
    return registry;
}

static struct metric *add(struct metric_registry *registry, struct metric_spec spec)
{
    struct metric *metric = NULL;
    struct ferry_error err;

    if (metric_register(registry, &spec, &metric, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    return metric;
}

static struct metric *counter(struct metric_registry *registry, const char *name)
{
    return add(registry, (struct metric_spec){METRIC_TYPE_COUNTER, .name = name, .help = "H."});
}

static struct metric *gauge(struct metric_registry *registry, const char *name)
{
    return add(registry, (struct metric_spec){METRIC_TYPE_GAUGE, .name = name, .help = "H."});
}

static struct metric *histogram(struct metric_registry *registry, const char *name)
{
    return add(registry, (struct metric_spec){METRIC_TYPE_HISTOGRAM, .name = name, .help = "H.",
                                              .bounds = BOUNDS, .n_bounds = 3});
}

static void counters_count(void **state)
{
    struct metric_registry *registry = registry_of();
    struct metric *tokens = counter(registry, "tokens_total");
    struct metric *busy =
        add(registry, (struct metric_spec){METRIC_TYPE_COUNTER, .name = "busy_seconds_total",
                                           .help = "H.", .unit = 1e-9});

    (void)state;
    assert_true(metric_value(tokens) == 0.0);
    metric_add(tokens, 3);
    metric_add(tokens, 0);
    metric_add(tokens, 4);
    assert_int_equal(metric_counts(tokens), 7);
    assert_true(metric_value(tokens) == 7.0);
    metric_add(busy, 1500000000);
    assert_int_equal(metric_counts(busy), 1500000000);
    assert_true(fabs(metric_value(busy) - 1.5) < 1e-12);
    metric_registry_destroy(registry);
}

static void gauges_go_both_ways(void **state)
{
    struct metric_registry *registry = registry_of();
    struct metric *g = gauge(registry, "waiting");

    (void)state;
    assert_true(metric_value(g) == 0.0);
    metric_set(g, -2.5);
    assert_true(metric_value(g) == -2.5);
    metric_shift(g, 4.0);
    metric_shift(g, -1.0);
    assert_true(metric_value(g) == 0.5);
    metric_set(g, INFINITY);
    assert_true(isinf(metric_value(g)));
    metric_registry_destroy(registry);
}

static void histograms_sort_by_upper_bound(void **state)
{
    static const double VALUES[] = {-1.0, 0.5, 0.50000001, 1.0, 2.5, 2.6, INFINITY, -INFINITY, 0.0};
    struct metric_registry *registry = registry_of();
    struct metric *h = histogram(registry, "wait_seconds");
    uint64_t buckets[4];
    double sum = -1.0;

    (void)state;
    assert_int_equal(metric_buckets(h, buckets, &sum), 0);
    assert_true(sum == 0.0);
    for (size_t i = 0; i < 6; i++)
        metric_observe(h, VALUES[i]);
    metric_observe(h, NAN);
    assert_int_equal(metric_buckets(h, buckets, &sum), 6);
    assert_int_equal(buckets[0], 2);
    assert_int_equal(buckets[1], 2);
    assert_int_equal(buckets[2], 1);
    assert_int_equal(buckets[3], 1);
    assert_true(fabs(sum - 6.10000001) < 1e-12);
    assert_int_equal(metric_registry_invalid(registry), 1);
    for (size_t i = 6; i < COUNT_OF(VALUES); i++)
        metric_observe(h, VALUES[i]);
    assert_int_equal(metric_buckets(h, buckets, &sum), 9);
    assert_int_equal(buckets[0], 4);
    assert_int_equal(buckets[3], 2);
    metric_registry_destroy(registry);
}

static void null_metrics_are_ignored(void **state)
{
    (void)state;
    metric_add(NULL, 1);
    metric_set(NULL, 1);
    metric_shift(NULL, 1);
    metric_observe(NULL, 1);
    metric_registry_destroy(NULL);
}

static void order_is_by_first_registration_of_the_name(void **state)
{
    static const char *const ORDER[] = {"b_total/x", "b_total/y", "b_total/z", "a/", "c_seconds/"};
    struct metric_registry *registry = registry_of();
    char name[16] = "b_total", label[16] = "kind", value[2] = "x", help[16] = "H.";
    struct metric_label labels[] = {{label, value}};
    struct metric_spec spec = {METRIC_TYPE_COUNTER, .name = name, .help = help, .labels = labels,
                               .n_labels = 1};
    size_t i = 0;

    (void)state;
    assert_null(metric_first(registry));
    (void)add(registry, spec);
    (void)gauge(registry, "a");
    value[0] = 'y';
    (void)add(registry, spec);
    (void)histogram(registry, "c_seconds");
    value[0] = 'z';
    (void)add(registry, spec);
    metric_registry_seal(registry);
    memset(name, 'X', 7); /* everything was copied */
    memset(label, 'X', 4);
    memset(help, 'X', 2);
    value[0] = '?';
    for (const struct metric *m = metric_first(registry); m != NULL; m = metric_next(m), i++) {
        const struct metric_spec *info = metric_info(m);
        char text[64];
        assert_true(i < COUNT_OF(ORDER));
        (void)snprintf(text, sizeof text, "%s/%s", info->name,
                       info->n_labels > 0 ? info->labels[0].value : "");
        assert_string_equal(text, ORDER[i]);
        assert_string_equal(info->help, "H.");
        assert_true(info->unit == 1.0);
        if (info->n_labels > 0)
            assert_string_equal(info->labels[0].name, "kind");
        if (info->type == METRIC_TYPE_HISTOGRAM) {
            assert_int_equal(info->n_bounds, 3);
            assert_memory_equal(info->bounds, BOUNDS, sizeof BOUNDS);
        }
    }
    assert_int_equal(i, COUNT_OF(ORDER));
    assert_int_equal(metric_registry_count(registry), COUNT_OF(ORDER));
    metric_registry_destroy(registry);
}

static void refuse(struct metric_registry *registry, struct metric_spec spec, const char *says)
{
    struct metric *const untouched = (struct metric *)(uintptr_t)64;
    struct metric *metric = untouched;
    struct ferry_error err = {0};
    size_t before = metric_registry_count(registry);

    assert_int_equal(metric_register(registry, &spec, &metric, &err), FERRY_ERR_ARG);
    if (strstr(err.msg, says) == NULL)
        fail_msg("'%s' does not say '%s'", err.msg, says);
    assert_ptr_equal(metric, untouched);
    assert_int_equal(metric_registry_count(registry), before);
}

static void contradictions_are_refused(void **state)
{
    struct metric_registry *registry = registry_of();
    const struct metric_label one[] = {{"layer", "1"}, {"rank", "0"}};
    const struct metric_label two[] = {{"layer", "2"}, {"rank", "0"}};
    const struct metric_label swapped[] = {{"rank", "0"}, {"layer", "3"}};
    const double other_bounds[] = {0.5, 1.0, 3.0};
    struct metric_spec base = {METRIC_TYPE_GAUGE, .name = "x", .help = "H.", .labels = one,
                               .n_labels = 2};
    struct metric_spec spec = base;

    (void)state;
    (void)add(registry, base);
    refuse(registry, base, "same label values");
    spec.labels = two;
    spec.help = "Other.";
    refuse(registry, spec, "help text");
    spec.help = "H.";
    spec.n_labels = 1;
    refuse(registry, spec, "number of labels");
    spec.n_labels = 2;
    spec.labels = swapped;
    refuse(registry, spec, "label names");
    spec.labels = two;
    spec.type = METRIC_TYPE_HISTOGRAM;
    spec.bounds = BOUNDS;
    spec.n_bounds = 3;
    refuse(registry, spec, "type");
    spec.name = "h";
    (void)add(registry, spec);
    spec.labels = one;
    spec.bounds = other_bounds;
    refuse(registry, spec, "bounds");
    spec.n_bounds = 2;
    refuse(registry, spec, "bounds");
    spec = (struct metric_spec){METRIC_TYPE_COUNTER, .name = "t_total", .help = "H."};
    (void)add(registry, spec);
    refuse(registry, spec, "same label values");
    spec.unit = 0.5;
    refuse(registry, spec, "unit");
    spec.name = "not valid";
    refuse(registry, spec, "lower-case");
    metric_registry_seal(registry);
    spec.name = "late_total";
    refuse(registry, spec, "sealed");
    metric_registry_destroy(registry);
}

static void number_of_metrics_is_limited(void **state)
{
    struct metric_registry *registry = registry_of();
    char value[16];
    struct metric_label labels[] = {{"expert", value}};
    struct metric_spec spec = {METRIC_TYPE_COUNTER, .name = "x_total", .help = "H.",
                               .labels = labels, .n_labels = 1};
    struct metric *metric = NULL;
    struct ferry_error err;

    (void)state;
    for (int i = 0; i < METRIC_SERIES_MAX; i++) {
        (void)snprintf(value, sizeof value, "%d", i);
        assert_int_equal(metric_register(registry, &spec, &metric, &err), FERRY_OK);
    }
    (void)snprintf(value, sizeof value, "more");
    assert_int_equal(metric_register(registry, &spec, &metric, &err), FERRY_ERR_LIMIT);
    metric_registry_destroy(registry);
}

static void every_failed_allocation_is_clean(void **state)
{
    struct ferry_error err;
    bool done = false;

    (void)state;
    for (uint64_t n = 1; !done; n++) {
        struct metric_registry *registry = NULL;
        size_t n_good = 0;
        char value[16];
        struct metric_label labels[] = {{"expert", value}};
        struct metric_spec spec = {METRIC_TYPE_HISTOGRAM, .name = "x",   .help = "H.",
                                   .labels = labels,      .n_labels = 1, .bounds = BOUNDS,
                                   .n_bounds = 3};
        done = true;
        mem_fail_after(n);
        if (metric_registry_create(&registry, &err) != FERRY_OK) {
            assert_int_equal(err.status, FERRY_ERR_NOMEM);
            assert_null(registry);
            done = false;
            mem_fail_after(0);
            continue;
        }
        for (int i = 0; i < 600; i++) {
            struct metric *metric = NULL;
            (void)snprintf(value, sizeof value, "%d", i);
            enum ferry_status st = metric_register(registry, &spec, &metric, &err);
            if (st == FERRY_OK) {
                metric_observe(metric, 1.0);
                n_good++;
            } else {
                assert_int_equal(st, FERRY_ERR_NOMEM);
                assert_null(metric);
                done = false;
            }
        }
        mem_fail_after(0);
        size_t n_seen = 0;
        for (const struct metric *m = metric_first(registry); m != NULL; m = metric_next(m)) {
            uint64_t buckets[4];
            double sum = 0;
            assert_int_equal(metric_buckets(m, buckets, &sum), 1);
            n_seen++;
        }
        assert_int_equal(n_seen, n_good);
        assert_int_equal(metric_registry_count(registry), n_good);
        metric_registry_destroy(registry);
        assert_true(n < 100);
        /* The arena retries a failed large block with a small one: not every n shows. */
        if (n < 12)
            done = false;
    }
}

/* ---- threads ---- */

enum { N_WRITERS = 4 };
#ifdef FERRY_SANITIZED
enum { N_UPDATES = 20000 };
#else
enum { N_UPDATES = 100000 };
#endif

struct shared {
    struct metric_registry *registry;
    struct metric *counter, *gauge, *histogram;
    atomic_int n_running;
};

static void *write_many(void *arg)
{
    struct shared *s = arg;

    for (int i = 0; i < N_UPDATES; i++) {
        metric_add(s->counter, 2);
        metric_shift(s->gauge, i % 2 == 0 ? 3.0 : -1.0);
        metric_observe(s->histogram, (double)(i % 4));
    }
    atomic_fetch_sub(&s->n_running, 1);
    return NULL;
}

static void no_update_is_lost(void **state)
{
    struct shared s = {.registry = registry_of()};
    pthread_t threads[N_WRITERS];
    uint64_t last_counts = 0, last_n = 0, buckets[4], last_buckets[4] = {0};
    double sum = 0, last_sum = 0;

    (void)state;
    s.counter = counter(s.registry, "x_total");
    s.gauge = gauge(s.registry, "y");
    s.histogram = histogram(s.registry, "z");
    metric_registry_seal(s.registry);
    atomic_store(&s.n_running, N_WRITERS);
    for (int i = 0; i < N_WRITERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_many, &s), 0);
    while (atomic_load(&s.n_running) > 0) { /* a reader never sees anything go back */
        uint64_t counts = metric_counts(s.counter);
        uint64_t n = metric_buckets(s.histogram, buckets, &sum);
        assert_true(counts >= last_counts && counts % 2 == 0);
        assert_true(n >= last_n && sum >= last_sum);
        assert_int_equal(n, buckets[0] + buckets[1] + buckets[2] + buckets[3]);
        for (int i = 0; i < 4; i++)
            assert_true(buckets[i] >= last_buckets[i]);
        memcpy(last_buckets, buckets, sizeof buckets);
        last_counts = counts;
        last_n = n;
        last_sum = sum;
    }
    for (int i = 0; i < N_WRITERS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    const uint64_t n = (uint64_t)N_WRITERS * N_UPDATES;
    assert_int_equal(metric_counts(s.counter), 2 * n);
    assert_true(metric_value(s.gauge) == (double)n);
    assert_int_equal(metric_buckets(s.histogram, buckets, &sum), n);
    for (int i = 0; i < 4; i++)
        assert_int_equal(buckets[i], n / 4);
    assert_true(sum == 1.5 * (double)n);
    metric_registry_destroy(s.registry);
}

static void misuse(void)
{
    const struct rlimit none = {0, 0};
    struct metric_registry *registry = NULL;
    struct metric *metric = NULL;
    struct metric_spec spec = {METRIC_TYPE_GAUGE, .name = "x", .help = "H."};

    (void)setrlimit(RLIMIT_CORE, &none);
    (void)signal(SIGABRT, SIG_DFL);
    if (metric_registry_create(&registry, NULL) == FERRY_OK &&
        metric_register(registry, &spec, &metric, NULL) == FERRY_OK)
        metric_add(metric, 1);
}

static void wrong_type_is_caught(void **state)
{
    char text[400];

    (void)state;
    int status = run_in_child(misuse, text, sizeof text);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGABRT);
    assert_non_null(strstr(text, "METRIC_TYPE_COUNTER"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_count),
        cmocka_unit_test(gauges_go_both_ways),
        cmocka_unit_test(histograms_sort_by_upper_bound),
        cmocka_unit_test(null_metrics_are_ignored),
        cmocka_unit_test(order_is_by_first_registration_of_the_name),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(number_of_metrics_is_limited),
        cmocka_unit_test(every_failed_allocation_is_clean),
        cmocka_unit_test(no_update_is_lost),
        cmocka_unit_test(wrong_type_is_caught),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
