/* Small tokenizers for the tests of src/text: documents and GGUF metadata made in memory. */
#ifndef TESTS_TEXT_SMALL_H
#define TESTS_TEXT_SMALL_H

#include "../unit.h"

#include "text/tokenizer.h"
#include "text/unicode.h"

/* Random numbers from a counter: the same for the same start. */
static inline uint32_t small_random(uint64_t *counter)
{
    uint64_t x = (*counter += 0x9E3779B97F4A7C15U);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
    return (uint32_t)(x >> 32);
}

/* A tokenizer.json; every field may be NULL (left out of the file). */
struct small {
    const char *normalizer;     /* JSON */
    const char *pre_tokenizer;  /* JSON */
    const char *post_processor; /* JSON */
    const char *decoder;        /* JSON */
    const char *added;          /* entries of added_tokens */
    const char *vocab;          /* entries of model.vocab; NULL: the byte alphabet, ids 0..255, then
                                   what the merges make */
    const char *const *merges;  /* "a b", ended by NULL */
    const char *model;          /* more members of model, each with a comma behind it */
};

#define BYTE_LEVEL                                                                            \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":" \
    "true}"
#define BYTE_LEVEL_DECODER "{\"type\":\"ByteLevel\"}"

/* Writes the document; ended by 0 behind size. */
void small_json(const struct small *small, struct bytes *ret);

/* Makes the tokenizer and fails the test when that fails. */
struct tokenizer *small_tokenizer(const struct small *small);

/* Expects creation to fail with status and a message that holds `part`. */
void expect_refused(const struct small *small, enum ferry_status status, const char *part);

/* Expects the ids of text, given as "1 2 3". */
void expect_ids(const struct tokenizer *tokenizer, const char *text, bool parse_special,
                const char *ids);
void expect_ids_n(const struct tokenizer *tokenizer, const char *text, size_t n_bytes,
                  bool add_special, bool parse_special, const char *ids);

/* Expects decode(encode(text)) to be text, by the whole list and piece by piece. */
void expect_round_trip(const struct tokenizer *tokenizer, const char *text, size_t n_bytes);

/* Expects the text of ids [n]. */
void expect_text(const struct tokenizer *tokenizer, const int32_t *ids, size_t n, bool skip_special,
                 const char *text);

/* GGUF keys, written one after another; then the file. */
struct small_gguf {
    struct bytes keys;
    uint64_t n_keys;
};
void gguf_put_string(struct small_gguf *gguf, const char *key, const char *value);
void gguf_put_u32(struct small_gguf *gguf, const char *key, uint32_t value);
void gguf_put_bool(struct small_gguf *gguf, const char *key, bool value);
void gguf_put_strings(struct small_gguf *gguf, const char *key, const char *const *values,
                      size_t n);
void gguf_put_i32s(struct small_gguf *gguf, const char *key, const int32_t *values, size_t n);
void gguf_put_f32s(struct small_gguf *gguf, const char *key, const float *values, size_t n);
void gguf_write(struct small_gguf *gguf, struct bytes *ret); /* keys are freed */

#endif
