/* Reading tokenizer.json. See from_json.c. Nobody outside `text` includes this. */
#ifndef TEXT_FROM_JSON_H
#define TEXT_FROM_JSON_H

#include "text/tokenizer_impl.h"

#include <jansson.h>

/* What a reader of one file carries around. */
struct json_reader {
    struct tokenizer *tokenizer;
    struct ferry_error *err;
};

/* "tokenizer: X is not supported" for a field of the file. */
enum ferry_status json_unsupported(const struct json_reader *reader, const char *what,
                                   const char *value);
enum ferry_status json_malformed(const struct json_reader *reader, const char *what);
enum ferry_status json_no_memory(const struct json_reader *reader);

/* Field readers: absent or null gives the default; another type is FERRY_ERR_FORMAT. Strings are
 * borrowed from the document. */
enum ferry_status json_read_bool(const struct json_reader *reader, const json_t *object,
                                 const char *key, bool fallback, bool *ret);
enum ferry_status json_read_string(const struct json_reader *reader, const json_t *object,
                                   const char *key, const char **ret, size_t *ret_size);

/* The parts (json_steps.c). Each takes the value of its key, NULL or null when absent. */
enum ferry_status json_read_normalizer(const struct json_reader *reader, const json_t *value);
enum ferry_status json_read_pretokenizer(const struct json_reader *reader, const json_t *value,
                                         bool *ret_byte_level);
enum ferry_status json_read_decoder(const struct json_reader *reader, const json_t *value);
enum ferry_status json_read_post_processor(const struct json_reader *reader, const json_t *value);

#endif
