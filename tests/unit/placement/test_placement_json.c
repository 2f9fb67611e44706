/* Placement files: what is written is read back equal, and whatever else a file holds is refused
 * with layer and expert. */
#include "tests/unit/unit.h"

#include "base/alloc.h"
#include "base/limits.h"
#include "base/whole_file.h"
#include "file/json.h"
#include "placement/placement.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char path[96];

/* A model of 3 layers (the middle one without experts) of 2 experts, 3 seats. */
static const bool HAS[3] = {true, false, true};

static const char GOOD[] = "{\"version\": 1, \"layers\": ["
                           "{\"experts\": [[2, 0], [1]], \"layer\": 2},"
                           "{\"layer\": 0, \"experts\": [[0], [0, 1, 2]]}]}";

static const char NAME[] = "plan.json";

/* As the command does with a file. */
static enum ferry_status read_shape(struct placement **ret, const char *text, size_t n,
                                    const bool *has, size_t n_layers, size_t n_experts,
                                    size_t n_seats, struct ferry_error *err)
{
    json_t *json = NULL;
    enum ferry_status st = json_parse(&json, text, n, LIMIT_JSON_VALUES, NAME, err);

    if (st == FERRY_OK)
        st = placement_from_json(ret, json, NAME, has, n_layers, n_experts, n_seats, err);
    json_decref(json);
    return st;
}

static enum ferry_status read_text(struct placement **ret, const char *text, size_t n,
                                   struct ferry_error *err)
{
    return read_shape(ret, text, n, HAS, 3, 2, 3, err);
}

static void plans_are_read(void **state)
{
    struct placement *p = NULL;
    struct ferry_error err = {0};

    (void)state;
    if (read_text(&p, GOOD, strlen(GOOD), &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(placement_n_layers(p), 3);
    assert_int_equal(placement_n_experts(p), 2);
    assert_int_equal(placement_listed(p, 0, 0), 1);
    assert_int_equal(placement_listed(p, 0, 1), 7);
    assert_int_equal(placement_listed(p, 1, 0), 0);
    assert_int_equal(placement_listed(p, 2, 0), 5);
    assert_int_equal(placement_listed(p, 2, 1), 2);
    assert_int_equal(placement_losses_survived(p, 7), 0);
    placement_destroy(p);
}

static void what_is_written_is_read(void **state)
{
    bool has[40];
    char want[65], got[65], *text = NULL;
    size_t n = 0;

    (void)state;
    for (size_t i = 0; i < 40; i++)
        has[i] = i % 5 != 0;
    for (size_t seats = 1; seats <= 64; seats += 9) {
        struct placement *all = NULL, *p = NULL, *q = NULL;
        assert_int_equal(placement_random(&all, 40, 130, seats, 3, seats, NULL), FERRY_OK);
        assert_int_equal(placement_only(&p, all, has, NULL), FERRY_OK);
        assert_int_equal(placement_write(p, path, NULL), FERRY_OK);
        assert_int_equal(whole_file_read(&text, &n, path, LIMIT_JSON_FILE, NULL), FERRY_OK);
        assert_int_equal(read_shape(&q, text, n, has, 40, 130, seats, NULL), FERRY_OK);
        mem_free(text);
        placement_hash(p, want);
        placement_hash(q, got);
        assert_string_equal(want, got);
        placement_destroy(all);
        placement_destroy(p);
        placement_destroy(q);
    }
}

static void refuse(const char *text, enum ferry_status want, const char *what)
{
    struct placement *p = NULL;
    struct ferry_error err = {0};

    enum ferry_status st = read_text(&p, text, strlen(text), &err);
    if (st != want || strstr(err.msg, what) == NULL || strstr(err.msg, NAME) == NULL)
        fail_msg("%s: status %d, '%s'; wanted '%s'", text, st, err.msg, what);
    assert_null(p);
}

static void hostile_files_are_refused(void **state)
{
    (void)state;
    refuse("", FERRY_ERR_FORMAT, "bad JSON");
    refuse("{\"version\": 1, \"layers\": [", FERRY_ERR_FORMAT, "line 1");
    refuse("[]", FERRY_ERR_FORMAT, "is no placement");
    refuse("{\"version\": 1}", FERRY_ERR_FORMAT, "is no placement");
    refuse("{\"version\": \"1\", \"layers\": []}", FERRY_ERR_FORMAT, "is no placement");
    refuse("{\"version\": 2, \"layers\": []}", FERRY_ERR_FORMAT, "version 2");
    refuse("{\"version\": 1, \"layers\": [], \"extra\": 0}", FERRY_ERR_FORMAT, "'extra'");
    refuse("{\"version\": 1, \"version\": 1, \"layers\": []}", FERRY_ERR_FORMAT, "bad JSON");
    refuse("{\"version\": 1, \"layers\": []}", FERRY_ERR_ARG, "layer 0 is missing");
#define LAYER0 "{\"version\": 1, \"layers\": [{\"layer\": 0, \"experts\": [[0],[1]]}"
    refuse(LAYER0 "]}", FERRY_ERR_ARG, "layer 2 is missing");
    refuse(LAYER0 ",7]}", FERRY_ERR_FORMAT, "element 1 of");
    refuse(LAYER0 ",{\"layer\": 2}]}", FERRY_ERR_FORMAT, "element 1 of");
    refuse(LAYER0 ",{\"layer\": 2.0, \"experts\": []}]}", FERRY_ERR_FORMAT, "element 1 of");
    refuse(LAYER0 ",{\"layer\": 2, \"experts\": [], \"x\\ny\": 1}]}", FERRY_ERR_FORMAT,
           "unknown key 'x?y'");
    refuse(LAYER0 ",{\"layer\": 3, \"experts\": []}]}", FERRY_ERR_ARG, "layer 3 is not in 0..2");
    refuse(LAYER0 ",{\"layer\": -1, \"experts\": []}]}", FERRY_ERR_ARG, "layer -1");
    refuse(LAYER0 ",{\"layer\": 1, \"experts\": [[0],[0]]}]}", FERRY_ERR_ARG, "layer 1 has no exp");
    refuse(LAYER0 ",{\"layer\": 0, \"experts\": [[0],[0]]}]}", FERRY_ERR_ARG, "layer 0 is listed");
    refuse(LAYER0 ",{\"layer\": 2, \"experts\": [[0]]}]}", FERRY_ERR_ARG, "lists 1 experts");
#define LAYER2(list) LAYER0 ",{\"layer\": 2, \"experts\": [[0]," list "]}]}"
    refuse(LAYER2("0"), FERRY_ERR_FORMAT, "layer 2 expert 1: wanted a list");
    refuse(LAYER2("[]"), FERRY_ERR_ARG, "layer 2 expert 1 has no seat");
    refuse(LAYER2("[3]"), FERRY_ERR_ARG, "layer 2 expert 1: seat 3 is not in 0..2");
    refuse(LAYER2("[-1]"), FERRY_ERR_ARG, "seat -1");
    refuse(LAYER2("[1,1]"), FERRY_ERR_ARG, "layer 2 expert 1: seat 1 is listed twice");
    refuse(LAYER2("[9223372036854775807]"), FERRY_ERR_ARG, "9223372036854775807");
    refuse(LAYER2("[92233720368547758070]"), FERRY_ERR_FORMAT, "bad JSON");
    refuse(LAYER2("[true]"), FERRY_ERR_FORMAT, "whole number");
    refuse(LAYER2("[0.5]"), FERRY_ERR_FORMAT, "whole number");
    /* More seats than there are: one of them is there twice. */
    refuse(LAYER2("[0,1,2,0,1,2,0,1,2,0,1,2]"), FERRY_ERR_ARG, "seat 0 is listed twice");
}

/* No prefix of a plan is one, and no single changed byte crashes. */
static void damaged_plans_never_crash(void **state)
{
    static const char BYTES[] = "{}[],:\"0-9 \\x\xff";
    char text[sizeof GOOD];
    size_t n = sizeof GOOD - 1;

    (void)state;
    for (size_t i = 0; i < n; i++) {
        struct placement *p = NULL;
        assert_int_not_equal(read_text(&p, GOOD, i, NULL), FERRY_OK);
        assert_null(p);
        for (size_t b = 0; b < sizeof BYTES; b++) {
            memcpy(text, GOOD, sizeof text);
            text[i] = BYTES[b];
            p = NULL;
            if (read_text(&p, text, n, NULL) == FERRY_OK)
                placement_destroy(p);
            else
                assert_null(p);
        }
    }
}

static void failures_leave_nothing_behind(void **state)
{
    struct placement *p = NULL;
    struct ferry_error err = {0};
    uint64_t n = 0;

    (void)state;
    assert_int_equal(read_shape(&p, GOOD, sizeof GOOD - 1, HAS, 3, 2, 65, &err), FERRY_ERR_LIMIT);
    assert_int_equal(read_text(&p, GOOD, sizeof GOOD - 1, NULL), FERRY_OK);
    placement_destroy(p);
    p = NULL;
    for (;;) {
        mem_fail_after(++n);
        enum ferry_status st = read_text(&p, GOOD, sizeof GOOD - 1, &err);
        mem_fail_after(0);
        if (st == FERRY_OK)
            break;
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_null(p);
    }
    assert_true(n > 5);
    for (n = 1; n <= 2; n++) { /* the text, then the name of the unfinished file */
        mem_fail_after(n);
        assert_int_equal(placement_write(p, path, &err), FERRY_ERR_NOMEM);
        mem_fail_after(0);
    }
    assert_int_equal(placement_write(p, "/nonexistent/plan.json", &err), FERRY_ERR_IO);
    placement_destroy(p);
}

static int make_file(void **state)
{
    (void)state;
    (void)snprintf(path, sizeof path, "%s/ferry-plan-XXXXXX",
                   getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_are_read),
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(hostile_files_are_refused),
        cmocka_unit_test(damaged_plans_never_crash),
        cmocka_unit_test(failures_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
