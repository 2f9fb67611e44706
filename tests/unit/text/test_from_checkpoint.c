/* Which files a checkpoint's tokenizer comes from and which of them win. */
#include "../unit.h"

#include "file/checkpoint.h"
#include "small.h"

#include <stdlib.h>
#include <string.h>

static char dir[256];

static void write_file(const char *name, const void *data, size_t n)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

static void remove_file(const char *name)
{
    char path[512];

    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    (void)unlink(path);
}

static void make_dir(void)
{
    const char *base = getenv("TMPDIR");
    int n = snprintf(dir, sizeof dir, "%s/ferry-text-XXXXXX", base == NULL ? P_tmpdir : base);
    assert_in_range(n, 1, sizeof dir - 1);
    assert_non_null(mkdtemp(dir));
}

/* A folder with one tensor and the given tokenizer files. */
static void make_folder(void)
{
    static const struct small SMALL = {.pre_tokenizer = BYTE_LEVEL,
                                       .added =
                                           "{\"id\":256,\"content\":\"<s>\",\"special\":true},"
                                           "{\"id\":257,\"content\":\"</s>\",\"special\":true},"
                                           "{\"id\":258,\"content\":\"<eot>\",\"special\":true}"};
    static const char HEADER[] = "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    struct bytes json = {0};
    struct bytes tensors = {0};
    uint64_t size = sizeof HEADER - 1;

    make_dir();
    small_json(&SMALL, &json);
    write_file("tokenizer.json", json.data, json.size);
    bytes_fini(&json);
    assert_true(bytes_append(&tensors, &size, sizeof size) &&
                bytes_append(&tensors, HEADER, size) && bytes_append(&tensors, "\0\0\0\0", 4));
    write_file("model.safetensors", tensors.data, tensors.size);
    bytes_fini(&tensors);
    write_text("config.json", "{\"eos_token_id\":257}");
}

static const char *const FILES[] = {
    "tokenizer.json",      "model.safetensors",      "config.json", "tokenizer_config.json",
    "chat_template.jinja", "generation_config.json", "x.gguf"};

static void remove_folder(void)
{
    for (size_t i = 0; i < COUNT_OF(FILES); i++)
        remove_file(FILES[i]);
    assert_int_equal(rmdir(dir), 0);
}

static enum ferry_status create(struct tokenizer **ret, const char *name, struct ferry_error *err)
{
    struct checkpoint *checkpoint = NULL;
    char path[512];

    (void)snprintf(path, sizeof path, "%s%s%s", dir, name == NULL ? "" : "/",
                   name == NULL ? "" : name);
    assert_int_equal(checkpoint_open(&checkpoint, path, err), FERRY_OK);
    enum ferry_status st = tokenizer_create(ret, checkpoint, err);
    checkpoint_close(checkpoint);
    return st;
}

static void files_beside_the_weights(void **state)
{
    struct tokenizer *t = NULL;

    (void)state;
    make_folder();
    assert_int_equal(create(&t, NULL, NULL), FERRY_OK);
    assert_int_equal(tokenizer_eos(t), 257); /* config.json */
    assert_null(tokenizer_chat_template(t));
    expect_ids(t, "a<s>", true, "97 256");
    tokenizer_destroy(t);
    write_text("tokenizer_config.json",
               "{\"bos_token\":\"<s>\",\"eos_token\":\"<eot>\",\"chat_template\":\"old\"}");
    write_text("generation_config.json", "{\"eos_token_id\":[258,257,999999]}");
    assert_int_equal(create(&t, NULL, NULL), FERRY_OK);
    assert_int_equal(tokenizer_bos(t), 256);
    assert_int_equal(tokenizer_eos(t), 258); /* tokenizer_config.json wins */
    assert_true(tokenizer_is_eog(t, 257) && tokenizer_is_eog(t, 258));
    assert_false(tokenizer_is_eog(t, 999999));
    assert_string_equal(tokenizer_chat_template(t), "old");
    tokenizer_destroy(t);
    write_text("chat_template.jinja", "new");
    assert_int_equal(create(&t, NULL, NULL), FERRY_OK);
    assert_string_equal(tokenizer_chat_template(t), "new");
    tokenizer_destroy(t);
    remove_folder();
}

static void missing_or_damaged_files_are_named(void **state)
{
    struct tokenizer *t = NULL;
    struct ferry_error err = {0};

    (void)state;
    make_folder();
    write_text("generation_config.json", "{");
    assert_int_equal(create(&t, NULL, &err), FERRY_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "generation_config.json"));
    static const char *const NO_ID[] = {"\"x\"", "1.5", "[1,\"x\"]", "{}", "true"};
    for (size_t i = 0; i < COUNT_OF(NO_ID); i++) {
        char text[64];
        (void)snprintf(text, sizeof text, "{\"eos_token_id\":%s}", NO_ID[i]);
        write_text("generation_config.json", text);
        assert_int_equal(create(&t, NULL, &err), FERRY_ERR_FORMAT);
        assert_non_null(strstr(err.msg, "generation_config.json: eos_token_id"));
    }
    write_text("tokenizer_config.json", "[");
    assert_int_equal(create(&t, NULL, &err), FERRY_ERR_FORMAT);
    assert_non_null(strstr(err.msg, "tokenizer_config.json"));
    remove_file("tokenizer.json");
    assert_int_equal(create(&t, NULL, &err), FERRY_ERR_NOT_FOUND);
    assert_non_null(strstr(err.msg, "no tokenizer.json"));
    assert_null(t);
    remove_folder();
}

static void gguf_metadata_win_over_files(void **state)
{
    static const char *const TOKENS[] = {"x", "y", "xy"};
    static const char *const MERGES[] = {"x y"};
    struct small_gguf gguf = {.n_keys = 0};
    struct bytes file = {0};
    struct tokenizer *t = NULL;

    (void)state;
    make_folder();
    gguf_put_string(&gguf, "general.architecture", "qwen3moe");
    gguf_put_string(&gguf, "tokenizer.ggml.model", "gpt2");
    gguf_put_string(&gguf, "tokenizer.ggml.pre", "qwen2");
    gguf_put_strings(&gguf, "tokenizer.ggml.tokens", TOKENS, 3);
    gguf_put_strings(&gguf, "tokenizer.ggml.merges", MERGES, 1);
    gguf_write(&gguf, &file);
    write_file("x.gguf", file.data, file.size);
    bytes_fini(&file);
    assert_int_equal(create(&t, "x.gguf", NULL), FERRY_OK);
    expect_ids(t, "xyx", true, "2 0");
    tokenizer_destroy(t);
    remove_folder();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_beside_the_weights),
        cmocka_unit_test(missing_or_damaged_files_are_named),
        cmocka_unit_test(gguf_metadata_win_over_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
