/* Proofs by HMAC-SHA-256 through libcrypto. See auth.h. */
#include "fabric/auth.h"

#include "base/error.h"

#include <errno.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <string.h>
#include <sys/random.h>

enum ferry_status auth_random(void *ret_bytes, size_t n_bytes, struct ferry_error *err)
{
    unsigned char *at = ret_bytes;

    while (n_bytes > 0) {
        ssize_t n = getrandom(at, n_bytes, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return FERRY_FAIL(err, FERRY_ERR_IO, "fabric: the kernel gives no random numbers");
        at += n;
        n_bytes -= (size_t)n;
    }
    return FERRY_OK;
}

enum ferry_status auth_prove(const void *key, size_t n_key, enum auth_role role,
                             const unsigned char dialler[WIRE_NONCE_BYTES],
                             const unsigned char listener[WIRE_NONCE_BYTES],
                             unsigned char ret_mac[WIRE_MAC_BYTES], struct ferry_error *err)
{
    static const char *const ROLES[] = {"ferry group 1 dialler", "ferry group 1 listener"};
    unsigned char text[64 + 2 * WIRE_NONCE_BYTES];
    size_t n = strlen(ROLES[role]) + 1; /* with its 0: no text is the beginning of another */
    unsigned n_mac = 0;

    memcpy(text, ROLES[role], n);
    memcpy(text + n, dialler, WIRE_NONCE_BYTES);
    memcpy(text + n + WIRE_NONCE_BYTES, listener, WIRE_NONCE_BYTES);
    n += 2 * (size_t)WIRE_NONCE_BYTES;
    if (n_key > INT_MAX ||
        HMAC(EVP_sha256(), n_key > 0 ? key : "", (int)n_key, text, n, ret_mac, &n_mac) == NULL ||
        n_mac != WIRE_MAC_BYTES)
        return FERRY_FAIL(err, FERRY_ERR_INTERNAL, "fabric: libcrypto has no HMAC-SHA-256");
    return FERRY_OK;
}

bool auth_check(const void *key, size_t n_key, enum auth_role role,
                const unsigned char dialler[WIRE_NONCE_BYTES],
                const unsigned char listener[WIRE_NONCE_BYTES],
                const unsigned char mac[WIRE_MAC_BYTES])
{
    unsigned char wanted[WIRE_MAC_BYTES];

    if (auth_prove(key, n_key, role, dialler, listener, wanted, NULL) != FERRY_OK)
        return false;
    return CRYPTO_memcmp(wanted, mac, sizeof wanted) == 0;
}

bool auth_is_loopback(const char *address)
{
    const char *colon = strrchr(address, ':');
    size_t n = colon != NULL ? (size_t)(colon - address) : strlen(address);

    if (n == 9 && memcmp(address, "localhost", 9) == 0)
        return true;
    if ((n == 5 && memcmp(address, "[::1]", 5) == 0) || (n == 3 && memcmp(address, "::1", 3) == 0))
        return true;
    if (n < 7 || n > 15 || memcmp(address, "127.", 4) != 0)
        return false;
    for (size_t i = 0; i < n; i++) { /* "127.example.org" is a name */
        if (address[i] != '.' && (address[i] < '0' || address[i] > '9'))
            return false;
    }
    return true;
}
