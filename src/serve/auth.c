/* API keys. See auth.h. */
#include "serve/auth.h"

#include "base/alloc.h"
#include "base/error.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <string.h>

struct auth {
    size_t n;
    unsigned char digests[AUTH_KEYS_MAX][AUTH_DIGEST_BYTES];
};

static enum ferry_status add(struct auth *auth, const char *line, size_t size, size_t n_line,
                             struct ferry_error *err)
{
    while (size > 0 && (line[size - 1] == '\r' || line[size - 1] == ' ' || line[size - 1] == '\t'))
        size--;
    while (size > 0 && (line[0] == ' ' || line[0] == '\t')) {
        line++;
        size--;
    }
    if (size == 0 || line[0] == '#')
        return FERRY_OK;
    if (size > AUTH_KEY_BYTES_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "API keys: line %zu has %zu bytes, at most %d",
                          n_line, size, AUTH_KEY_BYTES_MAX);
    for (size_t i = 0; i < size; i++) {
        if (line[i] <= ' ' || line[i] > '~')
            return FERRY_FAIL(err, FERRY_ERR_ARG,
                              "API keys: line %zu has a space or a byte that is not ASCII", n_line);
    }
    if (auth->n == AUTH_KEYS_MAX)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "API keys: more than %d", AUTH_KEYS_MAX);
    (void)SHA256((const unsigned char *)line, size, auth->digests[auth->n++]);
    return FERRY_OK;
}

enum ferry_status auth_create(struct auth **ret_auth, const char *text, size_t n_bytes,
                              struct ferry_error *err)
{
    struct auth *auth = mem_zero(sizeof *auth);
    enum ferry_status st = FERRY_OK;
    size_t n_line = 0;

    if (auth == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "API keys: no memory");
    while (n_bytes > 0 && st == FERRY_OK) {
        const char *end = memchr(text, '\n', n_bytes);
        size_t size = end != NULL ? (size_t)(end - text) : n_bytes;
        st = add(auth, text, size, ++n_line, err);
        size += end != NULL;
        text += size;
        n_bytes -= size;
    }
    if (st == FERRY_OK && auth->n == 0)
        st = FERRY_FAIL(err, FERRY_ERR_ARG, "API keys: there is none; write one a line");
    if (st != FERRY_OK) {
        auth_destroy(auth);
        return st;
    }
    *ret_auth = auth;
    return FERRY_OK;
}

void auth_destroy(struct auth *auth)
{
    mem_free(auth);
}

int auth_find(const struct auth *auth, const char *key, size_t n_bytes)
{
    unsigned char digest[AUTH_DIGEST_BYTES];
    int found = -1;

    if (n_bytes > AUTH_KEY_BYTES_MAX)
        return -1;
    (void)SHA256((const unsigned char *)key, n_bytes, digest);
    for (size_t i = 0; i < auth->n; i++) {
        /* No branch on the outcome: the time tells the number of keys, nothing else. */
        int differs = CRYPTO_memcmp(digest, auth->digests[i], sizeof digest) != 0;
        int mask = -(1 - differs);
        found = (found & ~mask) | ((int)i & mask);
    }
    return found;
}

const unsigned char *auth_cache_key(const struct auth *auth, int index)
{
    return auth->digests[index];
}
