/* SHA-256 of a sequence of fields. Each field carries its length, so that no two sequences look
 * alike, unless hash_raw is asked for. It must not know what is hashed. */
#ifndef FILE_HASH_H
#define FILE_HASH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hash;

/* NULL when out of memory; a failure later is kept and told by hash_finish. */
struct hash *hash_create(void);
void hash_destroy(struct hash *hash);

/* Bytes as they are, without their length: where their number is known from elsewhere, or where
 * anyone's SHA-256 of them must be the same. */
void hash_raw(struct hash *hash, const void *data, size_t n_bytes);

void hash_bytes(struct hash *hash, const void *data, size_t n_bytes);
void hash_text(struct hash *hash, const char *text);
void hash_u64(struct hash *hash, uint64_t n);

/* Compact text with sorted keys, whatever the layout of the source. */
void hash_json(struct hash *hash, const json_t *json);

/* 64 lower-case hex digits and a 0; false (ret_hex untouched) when a step failed. */
bool hash_finish(struct hash *hash, char ret_hex[65]);

#endif
