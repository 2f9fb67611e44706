/* SHA-256 through libcrypto. See hash.h. */
#include "file/hash.h"

#include "base/alloc.h"

#include <openssl/evp.h>
#include <string.h>

struct hash {
    EVP_MD_CTX *context;
    bool ok;
};

struct hash *hash_create(void)
{
    struct hash *hash = mem_zero(sizeof *hash);

    if (hash == NULL)
        return NULL;
    hash->context = EVP_MD_CTX_new();
    hash->ok = hash->context != NULL && EVP_DigestInit_ex(hash->context, EVP_sha256(), NULL) == 1;
    return hash;
}

void hash_destroy(struct hash *hash)
{
    if (hash == NULL)
        return;
    EVP_MD_CTX_free(hash->context);
    mem_free(hash);
}

void hash_raw(struct hash *hash, const void *data, size_t n_bytes)
{
    hash->ok = hash->ok && EVP_DigestUpdate(hash->context, data, n_bytes) == 1;
}

void hash_u64(struct hash *hash, uint64_t n)
{
    unsigned char bytes[8];

    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)(n >> (8 * i));
    hash_raw(hash, bytes, sizeof bytes);
}

void hash_bytes(struct hash *hash, const void *data, size_t n_bytes)
{
    hash_u64(hash, n_bytes);
    hash_raw(hash, data, n_bytes);
}

void hash_text(struct hash *hash, const char *text)
{
    hash_bytes(hash, text, strlen(text));
}

static int on_json(const char *text, size_t n_bytes, void *arg)
{
    hash_raw(arg, text, n_bytes);
    return 0;
}

void hash_json(struct hash *hash, const json_t *json)
{
    /* JSON ends by itself: no length is needed in front. */
    if (json_dump_callback(json, on_json, hash, JSON_COMPACT | JSON_SORT_KEYS) != 0)
        hash->ok = false;
}

bool hash_finish(struct hash *hash, char ret_hex[65])
{
    static const char DIGITS[] = "0123456789abcdef";
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n = 0;

    if (!hash->ok || EVP_DigestFinal_ex(hash->context, digest, &n) != 1 || n != 32)
        return false;
    for (size_t i = 0; i < n; i++) {
        ret_hex[2 * i] = DIGITS[digest[i] >> 4];
        ret_hex[2 * i + 1] = DIGITS[digest[i] & 15];
    }
    ret_hex[64] = 0;
    return true;
}
