/* Names of shards: patterns, paths, indexes that lead out of the folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/limits.h"
#include "file/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct arena arena;

static void test_paths(void **state)
{
    (void)state;
    assert_string_equal(shards_dir_of(&arena, "a.gguf"), ".");
    assert_string_equal(shards_dir_of(&arena, "/a.gguf"), "/");
    assert_string_equal(shards_dir_of(&arena, "x/y/a.gguf"), "x/y");
    assert_string_equal(shards_join(&arena, "x/y", "z"), "x/y/z");
    assert_string_equal(shards_gguf_path(&arena, "d/m-00001-of-00012.gguf", 12),
                        "d/m-00012-of-00012.gguf");
}

static void test_split_name(void **state)
{
    static const struct {
        const char *name;
        bool ok;
        unsigned no, count;
    } CASES[] = {
        {"m-00001-of-00003.gguf", true, 1, 3},
        {"-00003-of-00003.gguf", true, 3, 3},
        {"m-00004-of-00003.gguf", false, 0, 0},
        {"m-00000-of-00003.gguf", false, 0, 0},
        {"m-0001-of-00003.gguf", false, 0, 0},
        {"m-00001-of-00003.safetensors", false, 0, 0},
        {"m-00001-of-0000x.gguf", false, 0, 0},
        {"m_00001-of-00003.gguf", false, 0, 0},
        {".gguf", false, 0, 0},
        {"", false, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        unsigned no = 0;
        unsigned count = 0;
        size_t stem = 0;
        assert_int_equal(shards_split_name(CASES[i].name, ".gguf", &no, &count, &stem),
                         CASES[i].ok);
        assert_int_equal(no, CASES[i].no);
        assert_int_equal(count, CASES[i].count);
        if (CASES[i].ok)
            assert_int_equal(stem, strlen(CASES[i].name) - strlen("-00001-of-00003.gguf"));
    }
}

static enum ferry_status from_index(const char *text, struct shard_list *list,
                                    struct ferry_error *err)
{
    json_t *json = json_loads(text, 0, NULL);
    assert_non_null(json);
    enum ferry_status st = shards_from_index(list, &arena, json, err);
    json_decref(json);
    return st;
}

static void test_index(void **state)
{
    struct shard_list list = {0};

    (void)state;
    assert_int_equal(from_index("{\"weight_map\":{\"x\":\"b.safetensors\",\"y\":\"a.safetensors\","
                                "\"z\":\"b.safetensors\"}}",
                                &list, NULL),
                     FERRY_OK);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.names[0], "a.safetensors");
    assert_string_equal(list.names[1], "b.safetensors");
}

static void test_index_rejected(void **state)
{
    static const char *const NAMES[] = {
        "\"../a.safetensors\"",
        "\"/a.safetensors\"",
        "\"a/b.safetensors\"",
        "\"..\"",
        "\".\"",
        "\"\"",
        "\".a.safetensors\"",
        "\"a\\\\b.safetensors\"",
        "\"a.bin\"",
        "\"a\\u001b.safetensors\"",
        "7",
        "null",
        "[\"a.safetensors\"]",
    };
    struct shard_list list = {0};
    struct ferry_error err = {0};
    char text[400];

    (void)state;
    for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
        (void)snprintf(text, sizeof text, "{\"weight_map\":{\"t\":%s}}", NAMES[i]);
        if (from_index(text, &list, &err) != FERRY_ERR_FORMAT || strstr(err.msg, "'t'") == NULL)
            fail_msg("%s: %s", NAMES[i], err.msg);
    }
    (void)snprintf(text, sizeof text, "{\"weight_map\":{\"t\":\"%0280d.safetensors\"}}", 1);
    assert_int_equal(from_index(text, &list, &err), FERRY_ERR_FORMAT);
    assert_int_equal(from_index("{}", &list, &err), FERRY_ERR_FORMAT);
    assert_int_equal(from_index("{\"weight_map\":[]}", &list, &err), FERRY_ERR_FORMAT);
    assert_int_equal(from_index("{\"weight_map\":{}}", &list, &err), FERRY_ERR_FORMAT);
    assert_null(list.names);
}

static void test_index_too_long(void **state)
{
    struct shard_list list = {0};
    struct ferry_error err = {0};

    (void)state;
    json_t *index = json_object();
    json_t *map = json_object();
    for (int i = 0; i <= LIMIT_SHARDS; i++) {
        char name[40];
        (void)snprintf(name, sizeof name, "%d.safetensors", i);
        assert_int_equal(json_object_set_new(map, name, json_string(name)), 0);
    }
    assert_int_equal(json_object_set_new(index, "weight_map", map), 0);
    assert_int_equal(shards_from_index(&list, &arena, index, &err), FERRY_ERR_LIMIT);
    assert_non_null(strstr(err.msg, "4096"));
    json_decref(index);
}

static int set_up(void **state)
{
    (void)state;
    arena_init(&arena, "test");
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_fini(&arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),          cmocka_unit_test(test_split_name),
        cmocka_unit_test(test_index),          cmocka_unit_test(test_index_rejected),
        cmocka_unit_test(test_index_too_long),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
