/* Whole checkpoints: files of the reference writers, splits, stale and hostile indexes, files that
 * change, no memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/alloc.h"
#include "file/checkpoint.h"
#include "file/fault.h"
#include "file/gguf.h"
#include "make.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DATA FERRY_SOURCE_DIR "/tests/data/file/"

static struct dir dir;
static struct gguf_spec spec;
static struct bytes file;

static struct checkpoint *open_good(const char *path)
{
    struct checkpoint *c = NULL;
    struct ferry_error err = {0};
    if (checkpoint_open(&c, path, &err) != FERRY_OK)
        fail_msg("%s: %s", path, err.msg);
    return c;
}

static void expect_refused(const char *path, enum ferry_status status, const char *says)
{
    struct checkpoint *c = NULL;
    struct ferry_error err = {0};
    enum ferry_status st = checkpoint_open(&c, path, &err);
    if (st != status || strstr(err.msg, says) == NULL || c != NULL)
        fail_msg("%s: %s \"%s\" (expected %s \"%s\")", path, ferry_status_name(st), err.msg,
                 ferry_status_name(status), says);
}

/* The three tensors and the keys that tools/make_file_fixtures.py wrote. */
static void check_gguf(struct checkpoint *c)
{
    const struct gguf_meta *meta = checkpoint_meta(c);
    struct gguf_string s;
    uint64_t n = 0;
    double eps = 0.0;

    assert_int_equal(checkpoint_format(c), CHECKPOINT_FORMAT_GGUF);
    assert_null(checkpoint_config(c));
    assert_int_equal(checkpoint_n_tensors(c), 3);
    assert_int_equal(checkpoint_tensor_bytes(c), 920);
    assert_string_equal(checkpoint_tensor(c, 0)->name, "blk.0.attn_norm.weight");
    assert_string_equal(checkpoint_tensor(c, 2)->name, "token_embd.weight");
    const struct checkpoint_tensor *t = checkpoint_find(c, "blk.0.ffn_gate_exps.weight");
    assert_non_null(t);
    assert_int_equal(t->dtype, DTYPE_Q8_0);
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->dims[0], 3);
    assert_int_equal(t->dims[1], 4);
    assert_int_equal(t->dims[2], 32);
    assert_int_equal(t->size_bytes, 3 * 4 * 34);
    t = checkpoint_take(c, "blk.0.attn_norm.weight");
    assert_true(t->taken);
    for (size_t i = 0; i < 32; i++) {
        float x;
        memcpy(&x, (const unsigned char *)t->data + 4 * i, sizeof x);
        assert_true(x == (float)i / 2.0f);
    }
    assert_null(checkpoint_take(c, "blk.1.attn_norm.weight"));
    assert_null(checkpoint_find(c, ""));
    assert_true(gguf_get_string(meta, "general.architecture", &s, NULL));
    assert_memory_equal(s.data, "qwen3moe", 8);
    assert_true(gguf_get_u64(meta, "test.u64", &n, NULL));
    assert_true(n == (UINT64_C(1) << 63) + 5);
    assert_true(gguf_get_f64(meta, "qwen3moe.attention.layer_norm_rms_epsilon", &eps, NULL));
    assert_true((float)eps == 1e-6f);
    s = gguf_array_string(meta, "tokenizer.ggml.tokens", 2);
    assert_int_equal(s.size, 5);
    assert_memory_equal(s.data, "\u00e9\u6f22", 5);
    assert_int_equal(gguf_array_i64(meta, "tokenizer.ggml.token_type", 3), -4);
    assert_true(gguf_array_f64(meta, "tokenizer.ggml.scores", 1) == -1.25);
    for (size_t i = 0; i < checkpoint_n_tensors(c); i++)
        checkpoint_forget_pages(c);
    assert_int_equal(checkpoint_recheck(c, NULL), FERRY_OK);
}

static void test_gguf(void **state)
{
    char one[65];
    char split[65];

    (void)state;
    struct checkpoint *c = open_good(DATA "tiny.gguf");
    check_gguf(c);
    assert_int_equal(checkpoint_n_files(c), 1);
    assert_string_equal(checkpoint_dir(c) + strlen(checkpoint_dir(c)) - 4, "file");
    checkpoint_header_hash(c, one);
    checkpoint_close(c);
    c = open_good(DATA "split-00001-of-00002.gguf");
    check_gguf(c);
    assert_int_equal(checkpoint_n_files(c), 2);
    assert_string_equal(checkpoint_first_file(c), DATA "split-00001-of-00002.gguf");
    checkpoint_header_hash(c, split);
    checkpoint_close(c);
    assert_string_equal(one, split); /* sharding is no part of the model */
    expect_refused(DATA "split-00002-of-00002.gguf", FERRY_ERR_ARG,
                   "is shard 2 of 2; give the first");
}

static void test_safetensors(void **state)
{
    float x;

    (void)state;
    struct checkpoint *c = open_good(DATA "hf");
    assert_int_equal(checkpoint_format(c), CHECKPOINT_FORMAT_SAFETENSORS);
    assert_null(checkpoint_meta(c));
    assert_string_equal(json_string_value(json_object_get(checkpoint_config(c), "model_type")),
                        "qwen3_moe");
    assert_int_equal(checkpoint_n_files(c), 2);
    assert_int_equal(checkpoint_n_stale(c), 2);
    assert_int_equal(checkpoint_n_tensors(c), 4);
    assert_string_equal(checkpoint_dir(c), DATA "hf");
    const struct checkpoint_tensor *t = checkpoint_take(c, "model.embed_tokens.weight");
    assert_int_equal(t->dtype, DTYPE_F16);
    assert_int_equal(t->dims[0], 6);
    assert_int_equal(t->dims[1], 32);
    t = checkpoint_find(c, "scalar");
    assert_int_equal(t->n_dims, 0);
    memcpy(&x, t->data, sizeof x);
    assert_true(x == 3.5f);
    t = checkpoint_find(c, "none");
    assert_string_equal(t->file, "model-00002-of-00002.safetensors");
    assert_int_equal(t->size_bytes, 0);
    checkpoint_close(c);
    c = open_good(DATA "tiny.safetensors");
    assert_int_equal(checkpoint_n_tensors(c), 4);
    assert_int_equal(checkpoint_n_stale(c), 0);
    checkpoint_close(c);
    expect_refused(DATA "hf/model-00001-of-00002.safetensors", FERRY_ERR_ARG,
                   "is file 1 of 2; give the folder");
}

#define TENSOR(name) "{\"" name "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"

static void write_safetensors(const char *name, const char *header)
{
    make_safetensors(&file, header, 4);
    dir_write(&dir, name, file.data, file.size);
}

static void test_folders(void **state)
{
    (void)state;
    expect_refused(dir_path(&dir, "none"), FERRY_ERR_NOT_FOUND, "no such file");
    expect_refused(dir.path, FERRY_ERR_NOT_FOUND, "needs its config.json");
    dir_write_text(&dir, "config.json", "{\"a\":1");
    expect_refused(dir.path, FERRY_ERR_FORMAT, "config.json: bad JSON");
    dir_write_text(&dir, "config.json", "{\"a\":1}");
    expect_refused(dir.path, FERRY_ERR_NOT_FOUND, "neither model.safetensors nor");
    dir_write_text(&dir, "notes.txt", "hello");
    expect_refused(dir_path(&dir, "notes.txt"), FERRY_ERR_FORMAT, "neither a GGUF nor");
    dir_write_text(&dir, "bad.gguf", "hello");
    expect_refused(dir_path(&dir, "bad.gguf"), FERRY_ERR_FORMAT, "does not begin with 'GGUF'");
    write_safetensors("model.safetensors", TENSOR("t"));
    checkpoint_close(open_good(dir.path));
    /* As transformers has it, the single file comes first. */
    dir_write_text(&dir, "model.safetensors.index.json", "not JSON");
    checkpoint_close(open_good(dir.path));
    (void)unlink(dir_path(&dir, "model.safetensors"));
    expect_refused(dir.path, FERRY_ERR_FORMAT, "index.json: bad JSON");
}

static void test_index(void **state)
{
    (void)state;
    dir_write_text(&dir, "config.json", "{}");
    write_safetensors("a.safetensors", TENSOR("t"));
    write_safetensors("b.safetensors", TENSOR("u"));
    dir_write_text(&dir, "model.safetensors.index.json",
                   "{\"weight_map\":{\"t\":\"a.safetensors\",\"u\":\"b.safetensors\"}}");
    struct checkpoint *c = open_good(dir.path);
    assert_int_equal(checkpoint_n_tensors(c), 2);
    assert_int_equal(checkpoint_n_stale(c), 0);
    checkpoint_close(c);
    write_safetensors("b.safetensors", TENSOR("t"));
    expect_refused(dir.path, FERRY_ERR_FORMAT, "tensor 't' is in two files: ");
    (void)unlink(dir_path(&dir, "b.safetensors"));
    expect_refused(dir.path, FERRY_ERR_NOT_FOUND, "names 2 files, one is missing");
    expect_refused(dir.path, FERRY_ERR_NOT_FOUND, "b.safetensors: no such file");
    dir_write_text(&dir, "model.safetensors.index.json",
                   "{\"weight_map\":{\"t\":\"../a.safetensors\"}}");
    expect_refused(dir.path, FERRY_ERR_FORMAT, "not a plain .safetensors name");
}

/* Writes shard `no` (from 0) of `count`, holding the tensor `name`. */
static void write_shard(const char *file_name, uint64_t no, uint64_t count, uint64_t total,
                        const char *name)
{
    gguf_spec_init(&spec);
    gguf_spec_key(&spec, "split.no", GGUF_TYPE_U16, no, 2);
    gguf_spec_key(&spec, "split.count", GGUF_TYPE_U16, count, 2);
    gguf_spec_key(&spec, "split.tensors.count", GGUF_TYPE_I32, total, 4);
    spec.n_tensors = spec.n_written = 1;
    spec.tensors[0].name = name;
    spec.data_bytes = 256;
    gguf_spec_write(&spec, &file);
    dir_write(&dir, file_name, file.data, file.size);
}

static void test_splits(void **state)
{
    char first[512];

    (void)state;
    (void)snprintf(first, sizeof first, "%s", dir_path(&dir, "m-00001-of-00002.gguf"));
    write_shard("m-00001-of-00002.gguf", 0, 2, 2, "x");
    expect_refused(first, FERRY_ERR_NOT_FOUND, "m-00002-of-00002.gguf: no such file");
    write_shard("m-00002-of-00002.gguf", 1, 2, 2, "y");
    struct checkpoint *c = open_good(first);
    assert_int_equal(checkpoint_n_tensors(c), 2);
    checkpoint_close(c);
    write_shard("m-00002-of-00002.gguf", 1, 2, 2, "x");
    expect_refused(first, FERRY_ERR_FORMAT, "tensor 'x' is in two files");
    write_shard("m-00002-of-00002.gguf", 0, 2, 2, "y");
    expect_refused(first, FERRY_ERR_FORMAT, "says it is shard 1 of 2, its name says 2 of 2");
    write_shard("m-00002-of-00002.gguf", 1, 3, 2, "y");
    expect_refused(first, FERRY_ERR_FORMAT, "says it is shard 2 of 3, its name says 2 of 2");
    write_shard("m-00002-of-00002.gguf", 1, 2, 2, "y");
    write_shard("m-00001-of-00002.gguf", 0, 2, 3, "x");
    expect_refused(first, FERRY_ERR_FORMAT,
                   "split.tensors.count is 3, the 2 shards hold 2 tensors");
    write_shard("m-00001-of-00002.gguf", 0, 0, 3, "x");
    expect_refused(first, FERRY_ERR_FORMAT, "split.no 0 and split.count 0");
    write_shard("m-00001-of-00002.gguf", 0, 5000, 3, "x");
    expect_refused(first, FERRY_ERR_LIMIT, "split.count is 5000, the limit is 4096");
    gguf_spec_init(&spec);
    gguf_spec_key(&spec, "split.count", GGUF_TYPE_U16, 2, 2);
    gguf_spec_write(&spec, &file);
    dir_write(&dir, "m-00001-of-00002.gguf", file.data, file.size);
    expect_refused(first, FERRY_ERR_FORMAT, "split.tensors.count is missing");
    write_shard("other.gguf", 0, 2, 2, "x");
    expect_refused(dir_path(&dir, "other.gguf"), FERRY_ERR_FORMAT,
                   "must end in -00001-of-00002.gguf");
    gguf_spec_init(&spec);
    gguf_spec_key_string(&spec, "split.count", "2");
    gguf_spec_write(&spec, &file);
    dir_write(&dir, "other.gguf", file.data, file.size);
    expect_refused(dir_path(&dir, "other.gguf"), FERRY_ERR_FORMAT, "wrong type");
    gguf_spec_init(&spec);
    spec.n_tensors = spec.n_written = spec.data_bytes = 0;
    gguf_spec_write(&spec, &file);
    dir_write(&dir, "other.gguf", file.data, file.size);
    c = open_good(dir_path(&dir, "other.gguf"));
    assert_null(checkpoint_find(c, "x"));
    checkpoint_close(c);
}

/* Shapes, names, types and configuration count; the bytes of weights do not. */
static void test_hash(void **state)
{
    char hex[5][65];

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        gguf_spec_init(&spec);
        if (i == 1)
            spec.tensors[2].dims[0] = 4;
        if (i == 2)
            gguf_spec_key(&spec, "extra", GGUF_TYPE_U8, 1, 1);
        if (i == 3)
            gguf_spec_key(&spec, "extra", GGUF_TYPE_U8, 2, 1);
        gguf_spec_write(&spec, &file);
        if (i == 4)
            file.data[file.size - 1] ^= 1;
        dir_write(&dir, "x.gguf", file.data, file.size);
        struct checkpoint *c = open_good(dir_path(&dir, "x.gguf"));
        checkpoint_header_hash(c, hex[i]);
        checkpoint_close(c);
        for (size_t k = 0; k < i && i < 4; k++)
            assert_string_not_equal(hex[i], hex[k]);
    }
    assert_string_equal(hex[4], hex[0]);
}

static void test_shrunk(void **state)
{
    struct ferry_error err = {0};
    const char *path = dir_path(&dir, "x.gguf");

    (void)state;
    gguf_spec_init(&spec);
    gguf_spec_write(&spec, &file);
    dir_write(&dir, "x.gguf", file.data, file.size);
    struct checkpoint *c = open_good(path);
    assert_int_equal(truncate(path, 500), 0);
    assert_int_equal(checkpoint_recheck(c, &err), FERRY_ERR_IO);
    assert_non_null(strstr(err.msg, "x.gguf: shrank from 778 to 500 bytes while in use"));
    checkpoint_close(c);
    expect_refused(path, FERRY_ERR_FORMAT, "truncated: tensor 'a' at offset 288");
}

/* The reader of a tensor whose file was cut after opening ends with a line, not a crash. */
static void test_shrunk_fault(void **state)
{
    static unsigned char zeros[8192];
    const char *path = dir_path(&dir, "m.safetensors");
    int status = 0;

    (void)state;
    dir_write_text(&dir, "config.json", "{}");
    make_safetensors(&file,
                     "{\"t\":{\"dtype\":\"F32\",\"shape\":[2048],\"data_offsets\":[0,8192]}}", 0);
    put(&file, zeros, sizeof zeros);
    dir_write(&dir, "m.safetensors", file.data, file.size);
    struct checkpoint *c = open_good(path);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct checkpoint_tensor *t = checkpoint_tensor(c, 0);
        if (fault_install() != 0 || truncate(path, 100) != 0)
            _exit(97);
        (void)close(STDERR_FILENO); /* test_fault.c looks at the line */
        volatile unsigned char sink = ((const unsigned char *)t->data)[8000];
        (void)sink;
        _exit(98);
    }
    assert_true(waitpid(pid, &status, 0) == pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    checkpoint_close(c);
}

/* The linker sends the room's calls of the arena here: arenas take memory in large blocks and make
 * do with less, so that mem_fail_after alone reaches few of their callers. */
static uint64_t arena_calls_left = UINT64_MAX;
void *__real_arena_alloc(struct arena *arena, size_t n_bytes);
void *__real_arena_array(struct arena *arena, size_t n, size_t size);
char *__real_arena_strndup(struct arena *arena, const char *s, size_t n);
void *__wrap_arena_alloc(struct arena *arena, size_t n_bytes);
void *__wrap_arena_array(struct arena *arena, size_t n, size_t size);
char *__wrap_arena_strndup(struct arena *arena, const char *s, size_t n);

static bool arena_is_out(void)
{
    if (arena_calls_left == 0)
        return true;
    arena_calls_left--;
    return false;
}

void *__wrap_arena_alloc(struct arena *arena, size_t n_bytes)
{
    return arena_is_out() ? NULL : __real_arena_alloc(arena, n_bytes);
}

void *__wrap_arena_array(struct arena *arena, size_t n, size_t size)
{
    return arena_is_out() ? NULL : __real_arena_array(arena, n, size);
}

char *__wrap_arena_strndup(struct arena *arena, const char *s, size_t n)
{
    return arena_is_out() ? NULL : __real_arena_strndup(arena, s, n);
}

/* The arena gives out after n calls, for every n until opening succeeds. */
static void fail_arena(const char *path)
{
    uint64_t n = 0;
    enum ferry_status st = FERRY_ERR_NOMEM;

    for (; st != FERRY_OK && n < 2000; n++) {
        struct checkpoint *c = NULL;
        struct ferry_error err = {0};
        arena_calls_left = n;
        st = checkpoint_open(&c, path, &err);
        arena_calls_left = UINT64_MAX;
        if (st != FERRY_OK && st != FERRY_ERR_NOMEM)
            fail_msg("%llu calls: %s %s", (unsigned long long)n, ferry_status_name(st), err.msg);
        checkpoint_close(c);
    }
    assert_int_equal(st, FERRY_OK);
    assert_true(n > 10);
}

/* Every allocation of ours and of jansson fails once; nothing leaks (the sanitizer looks). */
static void fail_all(const char *path)
{
    uint64_t n_failed = 0;
    uint64_t in_a_row = 0;

    for (uint64_t n = 1; n < 2000 && in_a_row < 40; n++) {
        struct checkpoint *c = NULL;
        struct ferry_error err = {0};
        mem_fail_after(n);
        enum ferry_status st = checkpoint_open(&c, path, &err);
        mem_fail_after(0);
        /* Arenas retry with less. */
        if (st != FERRY_OK && st != FERRY_ERR_NOMEM)
            fail_msg("allocation %llu: %s %s", (unsigned long long)n, ferry_status_name(st),
                     err.msg);
        n_failed += st != FERRY_OK;
        in_a_row = st == FERRY_OK ? in_a_row + 1 : 0;
        checkpoint_close(c);
    }
    assert_int_equal(in_a_row, 40);
    assert_true(n_failed >= 5);
}

static void test_no_memory(void **state)
{
    (void)state;
    json_set_alloc_funcs(mem_alloc, mem_free);
    fail_all(DATA "split-00001-of-00002.gguf");
    fail_all(DATA "hf");
    fail_arena(DATA "split-00001-of-00002.gguf");
    fail_arena(DATA "hf");
    json_set_alloc_funcs(malloc, free);
}

static int set_up(void **state)
{
    (void)state;
    dir_make(&dir);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    dir_remove(&dir);
    return 0;
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf),      cmocka_unit_test(test_safetensors),
        IN_FOLDER(test_folders),          IN_FOLDER(test_index),
        IN_FOLDER(test_splits),           IN_FOLDER(test_hash),
        IN_FOLDER(test_shrunk),           IN_FOLDER(test_shrunk_fault),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
