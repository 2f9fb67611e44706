/* Text to token ids and back, equal to the checkpoint's own tokenizer id for id.
 *
 * Why here: `engine` and `app` need ids; nobody else. It must not know models. Sources:
 * tokenizer.json (Hugging Face) or GGUF metadata. A tokenizer is const after create and may be used
 * from any thread; a scratch object belongs to one thread. */
#ifndef TEXT_TOKENIZER_H
#define TEXT_TOKENIZER_H

#include "ferry/status.h"
#include "file/checkpoint.h"
#include "text/template.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Growing list of ids; caller's storage: {0} to start, tokenizer_ids_fini to free. */
struct token_ids {
    int32_t *ids;
    size_t count;
    size_t capacity;
    size_t most; /* encoding stops with FERRY_ERR_CONTEXT_FULL beyond so many; 0: no limit */
};

/* From a checkpoint: tokenizer.json in its folder, else GGUF metadata. */
enum ferry_status tokenizer_create(struct tokenizer **ret_tokenizer,
                                   const struct checkpoint *checkpoint,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* From the bytes of a tokenizer.json (tests, fuzzers) and optional tokenizer_config.json bytes
 * (NULL, 0). */
enum ferry_status tokenizer_create_json(struct tokenizer **ret_tokenizer, const char *json,
                                        size_t n_bytes, const char *config_json,
                                        size_t config_bytes,
                                        struct ferry_error *err) FERRY_MUST_CHECK;
void tokenizer_destroy(struct tokenizer *tokenizer);

size_t tokenizer_n_vocab(const struct tokenizer *tokenizer); /* highest id + 1 */

/* Bytes of its tables: texts, vocabulary, merges, added tokens. */
size_t tokenizer_bytes(const struct tokenizer *tokenizer);

/* Appends the ids of text [n_bytes]. parse_special: control tokens in the text are recognised
 * (template text only, never user text); non-special added tokens always are. add_special: the
 * tokenizer's own BOS/EOS post-processing. Invalid UTF-8 is treated as U+FFFD replacement, as the
 * Hugging Face package does on decode("utf-8", "replace"). Errors: FERRY_ERR_NOMEM,
 * FERRY_ERR_LIMIT, FERRY_ERR_FORMAT; with ids->most, exactly when there would be more ids:
 * FERRY_ERR_CONTEXT_FULL, long before all of a long text was looked at. */
enum ferry_status tokenizer_encode(const struct tokenizer *tokenizer, const char *text,
                                   size_t n_bytes, bool add_special, bool parse_special,
                                   struct token_ids *ids, struct ferry_error *err) FERRY_MUST_CHECK;

/* Appends the ids of a rendered chat template, encoded as one text, so that harmless content gives
 * the ids of tokenizer_encode(..., false, true, ...) on it. Control tokens are recognised only
 * where every byte of them is trusted: the same text in user data stays ordinary text. Nothing is
 * put around it (templates write BOS themselves). Errors as tokenizer_encode. */
enum ferry_status tokenizer_encode_rendered(const struct tokenizer *tokenizer,
                                            const struct rendered *rendered, struct token_ids *ids,
                                            struct ferry_error *err) FERRY_MUST_CHECK;
void token_ids_fini(struct token_ids *ids);

/* False when out of memory. */
bool token_ids_append(struct token_ids *ids, int32_t id);

/* Bytes of one token as decoding emits them (byte-level and byte-fallback tokens undone; may be a
 * fragment of a character). Borrowed; *ret_size its length. Unknown ids give an empty string.
 * skip_special: special tokens give nothing. */
const char *tokenizer_piece(const struct tokenizer *tokenizer, int32_t id, bool skip_special,
                            size_t *ret_size);

/* The decoder over a list, equal to Hugging Face's decode(ids, skip_special_tokens) up to its
 * replacement of invalid UTF-8; text is 0-terminated, freed with mem_free. */
enum ferry_status tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t n,
                                   bool skip_special, char **ret_text, size_t *ret_size,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* Ids of the usual roles, -1 when there is none. is_eog: ends generation (EOS and the end-of-turn
 * tokens). */
int32_t tokenizer_bos(const struct tokenizer *tokenizer);
int32_t tokenizer_eos(const struct tokenizer *tokenizer);
bool tokenizer_is_eog(const struct tokenizer *tokenizer, int32_t id);
bool tokenizer_adds_bos(const struct tokenizer *tokenizer);

/* Id of an exact vocabulary or added-token string, -1 when absent. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *piece, size_t n_bytes);

/* The checkpoint's chat template (Jinja source), NULL when it has none; borrowed. */
const char *tokenizer_chat_template(const struct tokenizer *tokenizer);

#endif
