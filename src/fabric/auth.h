/* Both ends of a connection prove that they have the group's key, before anything else is said.
 *
 * Why here: a lane offer is the right to write into this process' memory, so it goes to nobody who
 * has not proven the key, and nobody takes one from who has not. It must not know seats or terms.
 *
 * The dialler sends a nonce; who was dialled answers with its own nonce and
 * HMAC-SHA-256(key, "ferry group 1 listener" + both nonces); the dialler checks it and answers with
 * HMAC-SHA-256(key, "ferry group 1 dialler" + both nonces). The roles are in the text, so that no
 * proof can be sent back to who made it; the nonces are new for every connection, so that none can
 * be used twice. What follows on the connection is neither encrypted nor signed: a private network
 * is assumed. */
#ifndef FABRIC_AUTH_H
#define FABRIC_AUTH_H

#include "fabric/wire.h"
#include "ferry/status.h"

#include <stdbool.h>
#include <stddef.h>

enum auth_role { AUTH_DIALLER, AUTH_LISTENER };

/* Fills a buffer with random bytes of the kernel. FERRY_ERR_IO. Any thread. */
enum ferry_status auth_random(void *ret_bytes, size_t n_bytes,
                              struct ferry_error *err) FERRY_MUST_CHECK;

/* The proof of a role over the dialler's and the listener's nonce. n_key may be 0. Errors:
 * FERRY_ERR_INTERNAL (libcrypto). Any thread. */
enum ferry_status auth_prove(const void *key, size_t n_key, enum auth_role role,
                             const unsigned char dialler[WIRE_NONCE_BYTES],
                             const unsigned char listener[WIRE_NONCE_BYTES],
                             unsigned char ret_mac[WIRE_MAC_BYTES],
                             struct ferry_error *err) FERRY_MUST_CHECK;

/* Whether mac is that proof; takes the same time wherever they differ. */
bool auth_check(const void *key, size_t n_key, enum auth_role role,
                const unsigned char dialler[WIRE_NONCE_BYTES],
                const unsigned char listener[WIRE_NONCE_BYTES],
                const unsigned char mac[WIRE_MAC_BYTES]);

/* Whether "host:port" names this machine alone (127.0.0.0/8, ::1, localhost): what a group without
 * a key is confined to. */
bool auth_is_loopback(const char *address);

#endif
