/* Manifests: what is written is read back, a model without one has none, and whatever else the file
 * holds is refused by name. */
#include "make.h"

#include "base/whole_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[96];

static enum ferry_status read_text(struct expert_manifest **ret, const char *text, size_t n,
                                   struct ferry_error *err)
{
    struct expert_manifest_shape shape = make_shape();
    /* In place: file systems bring what was truncated and written anew to disk at once. */
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_int_equal(write(fd, text, n), n);
    assert_int_equal(ftruncate(fd, (off_t)n), 0);
    assert_int_equal(close(fd), 0);
    return expert_manifest_read(ret, path, &shape, err);
}

static void what_is_written_is_read(void **state)
{
    struct expert_store *store = make_store(false);
    struct expert_manifest *m = make_manifest(store), *n = NULL;
    struct expert_manifest_shape shape = make_shape();
    struct ferry_error err = {0};
    char hex[65];

    (void)state;
    (void)unlink(path);
    assert_int_equal(expert_manifest_write(m, path, &err), FERRY_OK);
    assert_int_equal(expert_manifest_write(m, path, &err), FERRY_ERR_ARG);
    if (expert_manifest_read(&n, path, &shape, &err) != FERRY_OK)
        fail_msg("%s", err.msg);
    for (size_t l = 0; l < LAYERS; l += 2) {
        for (size_t e = 0; e < EXPERTS; e++) {
            expert_store_hash(store, l, e, hex);
            assert_string_equal(expert_manifest_hash(m, l, e), hex);
            assert_string_equal(expert_manifest_hash(n, l, e), hex);
        }
    }
    assert_string_equal(expert_manifest_hash(n, 1, 0), "");
    assert_int_equal(strlen(expert_manifest_root(m)), 64);
    assert_string_equal(expert_manifest_root(m), expert_manifest_root(n));
    expert_manifest_destroy(n);
    /* The root is about every expert, and the model. */
    struct expert_manifest *other = NULL;
    file[file_offset(2, 5)] ^= 1;
    other = make_manifest(store);
    assert_string_not_equal(expert_manifest_root(m), expert_manifest_root(other));
    expert_manifest_destroy(other);
    file[file_offset(2, 5)] ^= 1;
    shape.model_hash = "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    assert_int_equal(expert_manifest_create(&other, &shape, hash_of_store, store, &err), FERRY_OK);
    assert_string_not_equal(expert_manifest_root(m), expert_manifest_root(other));
    expert_manifest_destroy(other);
    n = NULL;
    assert_int_equal(expert_manifest_read(&n, path, &shape, &err), FERRY_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "is of model 0011223344556677..., the one here is ff112"));
    assert_null(n);
    expert_manifest_destroy(m);
    expert_manifest_destroy(NULL);
    expert_store_destroy(store);
}

static void no_file_is_no_manifest(void **state)
{
    struct expert_manifest_shape shape = make_shape();
    struct expert_manifest *m = (void *)path;
    struct ferry_error err = {0};

    (void)state;
    assert_int_equal(expert_manifest_read(&m, "/nonexistent/manifest", &shape, &err), FERRY_OK);
    assert_null(m);
    assert_int_equal(err.msg[0], 0);
    assert_int_equal(expert_manifest_read(&m, "/", &shape, &err), FERRY_ERR_FORMAT);
}

static void places_follow_the_checkpoint(void **state)
{
    static const char *const PLACES[][2] = {
        {FERRY_SOURCE_DIR "/tests/data/file/tiny.gguf",
         FERRY_SOURCE_DIR "/tests/data/file/tiny.gguf.ferry.json"},
        {FERRY_SOURCE_DIR "/tests/data/file/split-00001-of-00002.gguf",
         FERRY_SOURCE_DIR "/tests/data/file/split-00001-of-00002.gguf.ferry.json"},
        {FERRY_SOURCE_DIR "/tests/data/file/hf",
         FERRY_SOURCE_DIR "/tests/data/file/hf/ferry-manifest.json"}};

    (void)state;
    for (size_t i = 0; i < COUNT_OF(PLACES); i++) {
        struct checkpoint *checkpoint = NULL;
        assert_int_equal(checkpoint_open(&checkpoint, PLACES[i][0], NULL), FERRY_OK);
        char *place = expert_manifest_path(checkpoint);
        assert_string_equal(place, PLACES[i][1]);
        mem_free(place);
        mem_fail_after(1);
        assert_null(expert_manifest_path(checkpoint));
        mem_fail_after(0);
        checkpoint_close(checkpoint);
    }
}

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HEAD                                                                           \
    "{\"version\": 1, \"model\": \"00112233445566778899aabbccddeeff001122334455667788" \
    "99aabbccddeeff\", \"experts\": ["
#define ENTRY(layer, expert) \
    "{\"layer\": " layer ", \"expert\": " expert ", \"sha256\": \"" HEX "\"}"

static void refuse(const char *text, const char *what)
{
    struct expert_manifest *m = NULL;
    struct ferry_error err = {0};

    enum ferry_status st = read_text(&m, text, strlen(text), &err);
    if (st != FERRY_ERR_FORMAT || strstr(err.msg, what) == NULL || strstr(err.msg, path) == NULL)
        fail_msg("%s: status %d, '%s'; wanted '%s'", text, st, err.msg, what);
    assert_null(m);
}

static void hostile_files_are_refused(void **state)
{
    (void)state;
    refuse("", "bad JSON");
    refuse("7", "bad JSON");
    refuse("[]", "is no manifest");
    refuse("{}", "is no manifest");
    refuse("{\"version\": 1, \"model\": \"" HEX "\"}", "is no manifest");
    refuse("{\"version\": 1, \"model\": \"" HEX "0\", \"experts\": []}", "is no manifest");
    refuse("{\"version\": 1, \"model\": 7, \"experts\": []}", "is no manifest");
    refuse("{\"version\": 2, \"model\": \"" HEX "\", \"experts\": []}", "version 2");
    refuse("{\"version\": 1, \"model\": \"" HEX "\", \"experts\": []}", "is of model 01234567");
    refuse("{\"version\": 1, \"model\": \"" HEX "\", \"experts\": [], \"e\": 1}",
           "unknown key 'e'");
    refuse(HEAD "]}", "expert 0 of layer 0 is missing");
    refuse(HEAD ENTRY("0", "0") "]}", "expert 1 of layer 0 is missing");
    refuse(HEAD "0]}", "element 0 of");
    refuse(HEAD ENTRY("0", "0") ", []]}", "element 1 of");
    refuse(HEAD ENTRY("0", "-1") "]}", "element 0 of");
    refuse(HEAD ENTRY("0.0", "0") "]}", "element 0 of");
    refuse(HEAD ENTRY("0", "6") "]}", "no expert 6 in layer 0");
    refuse(HEAD ENTRY("1", "0") "]}", "no expert 0 in layer 1");
    refuse(HEAD ENTRY("3", "0") "]}", "no expert 0 in layer 3");
    refuse(HEAD ENTRY("9223372036854775807", "0") "]}", "in layer 9223372036854775807");
    refuse(HEAD ENTRY("0", "0") "," ENTRY("0", "0") "]}", "expert 0 of layer 0 is listed twice");
    refuse(HEAD "{\"layer\": 0, \"expert\": 0, \"sha256\": \"\"}]}", "element 0 of");
    refuse(HEAD
           "{\"layer\": 0, \"expert\": 0, \"sha256\": \"0123456789ABCDEF0123456789abcdef01234567"
           "89abcdef0123456789abcdef\"}]}",
           "element 0 of");
    refuse(HEAD "{\"layer\": 0, \"expert\": 0, \"sha256\": \"" HEX "\", \"x\": 1}]}",
           "unknown key 'x'");
}

/* What a manifest of this model can never have is not kept in memory. */
static void a_long_one_is_refused(void **state)
{
    enum { N = 20000, EACH = 3 };
    static const char HEAD_TEXT[] = HEAD;
    char *text = malloc(sizeof HEAD_TEXT + N * EACH);
    struct expert_manifest *m = NULL;
    struct ferry_error err = {0};
    size_t n = sizeof HEAD_TEXT - 1;

    (void)state;
    memcpy(text, HEAD_TEXT, n);
    for (size_t i = 0; i < N; i++, n += EACH)
        memcpy(text + n, "[],", EACH);
    text[n - 1] = ']';
    assert_int_equal(read_text(&m, text, n, &err), FERRY_ERR_LIMIT);
    assert_non_null(strstr(err.msg, path));
    free(text);
}

/* Nothing of a damaged manifest is believed that was not there, and nothing crashes. */
static void damaged_manifests_never_crash(void **state)
{
    static const char BYTES[] = "{}[],:\"0g \\\xff";
    struct expert_store *store = make_store(false);
    struct expert_manifest *m = make_manifest(store);
    struct ferry_error err = {0};
    char *text = NULL;
    size_t n = 0;

    (void)state;
    (void)unlink(path);
    assert_int_equal(expert_manifest_write(m, path, &err), FERRY_OK);
    assert_int_equal(whole_file_read(&text, &n, path, 1 << 20, &err), FERRY_OK);
    for (size_t i = 0; i < n; i++) {
        struct expert_manifest *got = NULL;
        if (i + 1 < n) /* without the last newline it is whole */
            assert_int_not_equal(read_text(&got, text, i, NULL), FERRY_OK);
        assert_null(got);
        char old = text[i];
        text[i] = BYTES[i % sizeof BYTES];
        if (read_text(&got, text, n, NULL) == FERRY_OK)
            expert_manifest_destroy(got);
        else
            assert_null(got);
        text[i] = old;
    }
    mem_free(text);
    expert_manifest_destroy(m);
    expert_store_destroy(store);
}

static void write_good(void)
{
    struct expert_store *store = make_store(false);
    struct expert_manifest *m = make_manifest(store);

    (void)unlink(path);
    assert_int_equal(expert_manifest_write(m, path, NULL), FERRY_OK);
    expert_manifest_destroy(m);
    expert_store_destroy(store);
}

static void no_hash(void *arg, size_t layer, size_t expert, char ret_hex[65])
{
    size_t *n_left = arg;

    memcpy(ret_hex, MODEL_HASH, 65);
    if ((*n_left)-- == 0 || layer == 1 || expert >= EXPERTS)
        ret_hex[0] = 0;
}

static void failures_leave_nothing_behind(void **state)
{
    struct expert_manifest_shape shape = make_shape();
    struct expert_manifest *m = NULL;
    struct ferry_error err = {0};
    uint64_t n = 0;

    (void)state;
    write_good();
    for (;;) {
        mem_fail_after(++n);
        enum ferry_status st = expert_manifest_read(&m, path, &shape, &err);
        mem_fail_after(0);
        if (st == FERRY_OK)
            break;
        assert_int_equal(st, FERRY_ERR_NOMEM);
        assert_null(m);
    }
    assert_true(n > 4);
    mem_fail_after(1);
    assert_int_equal(expert_manifest_write(m, path, &err), FERRY_ERR_NOMEM);
    mem_fail_after(0);
    assert_int_equal(expert_manifest_write(m, "/nonexistent/m", &err), FERRY_ERR_IO);
    expert_manifest_destroy(m);
    m = NULL;
    size_t n_left = 7;
    assert_int_equal(expert_manifest_create(&m, &shape, no_hash, &n_left, &err), FERRY_ERR_NOMEM);
    assert_non_null(strstr(err.msg, "expert 1 of layer 2"));
    assert_null(m);
}

static int make_file(void **state)
{
    (void)state;
    fill_file();
    (void)snprintf(path, sizeof path, "%s/ferry-manifest-XXXXXX",
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
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(no_file_is_no_manifest),
        cmocka_unit_test(places_follow_the_checkpoint),
        cmocka_unit_test(hostile_files_are_refused),
        cmocka_unit_test(a_long_one_is_refused),
        cmocka_unit_test(damaged_manifests_never_crash),
        cmocka_unit_test(failures_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
