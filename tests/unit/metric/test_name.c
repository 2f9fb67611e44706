/* Unit tests of metric/name.c: each naming rule accepts what it should and says why it refuses. */
#include "../unit.h"

#include "metric/metric.h"
#include "metric/name.h"

#include <math.h>
#include <string.h>

static const double BOUNDS[] = {0.1, 1.0};

static struct metric_spec spec_of(enum metric_type type, const char *name)
{
    struct metric_spec spec = {.type = type, .name = name, .help = "Help."};

    if (type == METRIC_TYPE_HISTOGRAM) {
        spec.bounds = BOUNDS;
        spec.n_bounds = 2;
    }
    return spec;
}

static void good_names_pass(void **state)
{
    static const struct {
        enum metric_type type;
        const char *name;
    } GOOD[] = {
        {METRIC_TYPE_COUNTER, "ferry_tokens_total"},
        {METRIC_TYPE_COUNTER, "ferry_expert_busy_seconds_total"},
        {METRIC_TYPE_COUNTER, "ferry_link_sent_bytes_total"},
        {METRIC_TYPE_GAUGE, "ferry_kv_used_ratio"},
        {METRIC_TYPE_GAUGE, "ferry_resident_bytes"},
        {METRIC_TYPE_GAUGE, "up"},
        {METRIC_TYPE_GAUGE, "count"},
        {METRIC_TYPE_GAUGE, "ferry_build_info"},
        {METRIC_TYPE_GAUGE, "ferry_count_of_things"},
        {METRIC_TYPE_GAUGE, "ferry_total_tokens"},
        {METRIC_TYPE_GAUGE, "ferry_news"}, /* holds "ns" and "us" only inside words */
        {METRIC_TYPE_HISTOGRAM, "ferry_ttft_seconds"},
        {METRIC_TYPE_HISTOGRAM, "ferry_p99_x1"},
    };
    struct ferry_error err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(GOOD); i++) {
        struct metric_spec spec = spec_of(GOOD[i].type, GOOD[i].name);
        if (metric_spec_check(&spec, &err) != FERRY_OK)
            fail_msg("%s", err.msg);
    }
}

static void bad_names_are_refused_with_the_rule(void **state)
{
    static const struct {
        enum metric_type type;
        const char *name, *says;
    } BAD[] = {
        {METRIC_TYPE_GAUGE, NULL, "empty"},
        {METRIC_TYPE_GAUGE, "", "empty"},
        {METRIC_TYPE_GAUGE, "ferry:tokens", "colons"},
        {METRIC_TYPE_GAUGE, "Ferry_tokens", "lower-case"},
        {METRIC_TYPE_GAUGE, "ferryTokens", "lower-case"},
        {METRIC_TYPE_GAUGE, "9tokens", "lower-case"},
        {METRIC_TYPE_GAUGE, "_tokens", "lower-case"},
        {METRIC_TYPE_GAUGE, "tokens_", "lower-case"},
        {METRIC_TYPE_GAUGE, "ferry__tokens", "lower-case"},
        {METRIC_TYPE_GAUGE, "ferry-tokens", "lower-case"},
        {METRIC_TYPE_GAUGE, "ferry tokens", "lower-case"},
        {METRIC_TYPE_GAUGE, "ferry_\xC3\xA9", "lower-case"},
        {METRIC_TYPE_COUNTER, "ferry_tokens", "end in _total"},
        {METRIC_TYPE_COUNTER, "ferry_total_tokens", "end in _total"},
        {METRIC_TYPE_COUNTER, "total", "end in _total"},
        {METRIC_TYPE_GAUGE, "ferry_tokens_total", "end in _total"},
        {METRIC_TYPE_HISTOGRAM, "ferry_wait_seconds_total", "end in _total"},
        {METRIC_TYPE_HISTOGRAM, "ferry_wait_ms", "write seconds"},
        {METRIC_TYPE_COUNTER, "ferry_wait_us_total", "write seconds"},
        {METRIC_TYPE_GAUGE, "ns_left", "write seconds"},
        {METRIC_TYPE_GAUGE, "ferry_kv_mib", "write bytes"},
        {METRIC_TYPE_GAUGE, "ferry_kv_used_percent", "write ratio"},
        {METRIC_TYPE_GAUGE, "ferry_kv_gauge", "write no type"},
        {METRIC_TYPE_COUNTER, "ferry_counter_x_total", "write no type"},
        {METRIC_TYPE_GAUGE, "ferry_bytes_used", "comes last"},
        {METRIC_TYPE_COUNTER, "ferry_seconds_busy_total", "comes last"},
        {METRIC_TYPE_GAUGE, "ferry_bytes_total_x", "comes last"},
        {METRIC_TYPE_GAUGE, "ferry_token_count", "histograms"},
        {METRIC_TYPE_GAUGE, "ferry_x_sum", "histograms"},
        {METRIC_TYPE_HISTOGRAM, "ferry_x_bucket", "histograms"},
        {METRIC_TYPE_GAUGE, "ferry_x_created", "histograms"},
    };
    struct ferry_error err;

    (void)state;
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        struct metric_spec spec = spec_of(BAD[i].type, BAD[i].name);
        memset(&err, 0, sizeof err);
        assert_int_equal(metric_spec_check(&spec, NULL), FERRY_ERR_ARG);
        assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_ARG);
        if (strstr(err.msg, BAD[i].says) == NULL)
            fail_msg("case %zu: '%s' does not say '%s'", i, err.msg, BAD[i].says);
    }
}

static void lengths_are_limited(void **state)
{
    char name[METRIC_NAME_MAX + 2], text[METRIC_TEXT_MAX + 2];
    struct ferry_error err;

    (void)state;
    memset(name, 'a', sizeof name);
    memset(text, 'h', sizeof text);
    name[METRIC_NAME_MAX] = 0;
    text[METRIC_TEXT_MAX] = 0;
    struct metric_spec spec = spec_of(METRIC_TYPE_GAUGE, name);
    spec.help = text;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_OK);
    text[METRIC_TEXT_MAX] = 'h';
    text[METRIC_TEXT_MAX + 1] = 0;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_LIMIT);
    spec.help = "Help.";
    name[METRIC_NAME_MAX] = 'a';
    name[METRIC_NAME_MAX + 1] = 0;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_LIMIT);
}

static void texts_are_checked(void **state)
{
    struct ferry_error err;
    struct metric_spec spec = spec_of(METRIC_TYPE_GAUGE, "x");

    (void)state;
    spec.help = "";
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_ARG);
    spec.help = NULL;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_ARG);
    spec.help = "two\nlines";
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_ARG);
    assert_non_null(strstr(err.msg, "control characters"));
    assert_null(strchr(err.msg, '\n'));
    spec.help = "\xFF";
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_ARG);
    spec.help = "m\xC3\xA9trique \"quoted\" \\ back";
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_OK);
}

static void labels_are_checked(void **state)
{
    static const struct {
        struct metric_label label;
        const char *says;
    } BAD[] = {
        {{"Layer", "1"}, "lower-case"}, {{"__name", "1"}, "lower-case"},
        {{"", "1"}, "empty"},           {{NULL, "1"}, "empty"},
        {{"le", "1"}, "reserved"},      {{"quantile", "1"}, "reserved"},
        {{"layer", ""}, "empty"},       {{"layer", NULL}, "empty"},
        {{"layer", "\t"}, "control"},   {{"layer", "\xC3"}, "control"},
        {{"first", "1"}, "twice"},
    };
    struct metric_label many[METRIC_LABELS_MAX + 1];
    char names[METRIC_LABELS_MAX + 1][4];
    struct ferry_error err;
    struct metric_spec spec = spec_of(METRIC_TYPE_GAUGE, "x");

    (void)state;
    for (size_t i = 0; i < COUNT_OF(BAD); i++) {
        const struct metric_label labels[] = {{"first", "1"}, BAD[i].label};
        spec.labels = labels;
        spec.n_labels = 2;
        memset(&err, 0, sizeof err);
        assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_ARG);
        if (strstr(err.msg, BAD[i].says) == NULL)
            fail_msg("case %zu: '%s' does not say '%s'", i, err.msg, BAD[i].says);
    }
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        (void)snprintf(names[i], sizeof names[i], "l%zu", i);
        many[i] = (struct metric_label){names[i], "any value, \xE6\xB5\xB7"};
    }
    spec.labels = many;
    spec.n_labels = METRIC_LABELS_MAX;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_OK);
    spec.n_labels++;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_LIMIT);
}

static void bounds_and_unit_are_checked(void **state)
{
    const double same[] = {1, 1}, falling[] = {2, 1}, inf[] = {1, INFINITY}, nan[] = {NAN, 1};
    const double *const bad[] = {same, falling, inf, nan};
    double many[METRIC_BOUNDS_MAX + 1];
    struct ferry_error err;
    struct metric_spec spec = spec_of(METRIC_TYPE_HISTOGRAM, "x");

    (void)state;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        spec.bounds = bad[i];
        assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_ARG);
    }
    for (size_t i = 0; i < COUNT_OF(many); i++)
        many[i] = (double)i;
    spec.bounds = many;
    spec.n_bounds = METRIC_BOUNDS_MAX;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_OK);
    spec.n_bounds++;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_LIMIT);
    spec.n_bounds = 0;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_LIMIT);
    spec = spec_of(METRIC_TYPE_GAUGE, "x");
    spec.bounds = many;
    spec.n_bounds = 1;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_ARG);
    spec = spec_of(METRIC_TYPE_COUNTER, "x_total");
    const double units[] = {1e-9, -1, NAN, INFINITY};
    for (size_t i = 0; i < COUNT_OF(units); i++) {
        spec.unit = units[i];
        assert_int_equal(metric_spec_check(&spec, &err), i == 0 ? FERRY_OK : FERRY_ERR_ARG);
    }
    spec = spec_of(METRIC_TYPE_GAUGE, "x");
    spec.unit = 1e-9;
    assert_int_equal(metric_spec_check(&spec, &err), FERRY_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_names_pass),
        cmocka_unit_test(bad_names_are_refused_with_the_rule),
        cmocka_unit_test(lengths_are_limited),
        cmocka_unit_test(texts_are_checked),
        cmocka_unit_test(labels_are_checked),
        cmocka_unit_test(bounds_and_unit_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
