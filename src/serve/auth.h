/* API keys: who may ask, and whose prefixes are shared.
 *
 * Why here: keys are compared in one place, in constant time. It must not know HTTP. Const after
 * create. */
#ifndef SERVE_AUTH_H
#define SERVE_AUTH_H

#include "ferry/status.h"

#include <stddef.h>

enum { AUTH_KEYS_MAX = 1024, AUTH_KEY_BYTES_MAX = 512, AUTH_DIGEST_BYTES = 32 };

struct auth;

/* text [n_bytes]: one key a line; empty lines and lines that begin with # are passed over. No key
 * at all is FERRY_ERR_ARG: whoever gives a file wants one. Keys are not kept, only their SHA-256.
 * FERRY_ERR_LIMIT, FERRY_ERR_NOMEM. */
enum ferry_status auth_create(struct auth **ret_auth, const char *text, size_t n_bytes,
                              struct ferry_error *err) FERRY_MUST_CHECK;
void auth_destroy(struct auth *auth);

/* Index of the key, -1 when it is none. All keys are compared, whichever fits. */
int auth_find(const struct auth *auth, const char *key, size_t n_bytes);

/* [AUTH_DIGEST_BYTES] under which prefixes of this key's prompts are shared. */
const unsigned char *auth_cache_key(const struct auth *auth, int index);

#endif
