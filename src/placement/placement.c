/* Placements: making them, asking them, dealing out orphans. See placement.h. */
#include "placement/placement.h"

#include "base/alloc.h"
#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"
#include "placement/inside.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <string.h>

/* ---- building ---- */

enum ferry_status placement_start(struct placement **ret, size_t n_layers, size_t n_experts,
                                  size_t n_seats, struct ferry_error *err)
{
    size_t n = 0;

    if (n_seats == 0 || n_seats > LIMIT_SEATS)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT, "placement: %zu seats, wanted 1 to %d", n_seats,
                          LIMIT_SEATS);
    if (n_layers == 0 || n_layers > LIMIT_LAYERS || n_experts == 0 || n_experts > LIMIT_EXPERTS ||
        !mul_size(n_layers, n_experts, &n) || n > LIMIT_EXPERTS_TOTAL)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                          "placement: %zu layers of %zu experts; from 1 to %d layers of up to %d "
                          "experts are possible, %d experts in all",
                          n_layers, n_experts, LIMIT_LAYERS, LIMIT_EXPERTS, LIMIT_EXPERTS_TOTAL);
    struct placement *p = mem_zero(sizeof *p);
    if (p == NULL)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "placement: no memory");
    p->n_layers = n_layers;
    p->n_experts = n_experts;
    p->n_seats = n_seats;
    p->listed = mem_array(n, sizeof *p->listed);
    p->first = mem_array(n + 1, sizeof *p->first);
    if (p->listed == NULL || p->first == NULL) {
        placement_destroy(p);
        return FERRY_FAIL(err, FERRY_ERR_NOMEM,
                          "placement: no memory for %zu layers of %zu experts", n_layers,
                          n_experts);
    }
    *ret = p;
    return FERRY_OK;
}

enum ferry_status placement_add(struct placement *p, size_t index, const unsigned char *seats,
                                size_t n, struct ferry_error *err)
{
    char *all = (char *)p->seats;

    FERRY_ASSERT(index < p->n_layers * p->n_experts);
    FERRY_ASSERT(p->first[index] == p->n_seats_used);
    if (!mem_reserve(&all, p->n_seats_used, &p->capacity, n, 256))
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "placement: no memory for %zu seats",
                          p->n_seats_used + n);
    p->seats = (unsigned char *)all;
    for (size_t i = 0; i < n; i++) {
        FERRY_ASSERT(seats[i] < p->n_seats);
        FERRY_ASSERT((p->listed[index] >> seats[i] & 1) == 0);
        p->listed[index] |= (uint64_t)1 << seats[i];
        p->seats[p->n_seats_used++] = seats[i];
    }
    p->first[index + 1] = (uint32_t)p->n_seats_used; /* at most LIMIT_EXPERTS_TOTAL * LIMIT_SEATS */
    return FERRY_OK;
}

/* Shape, then for every expert the number of its seats and the seats in order. */
static bool hash_into(EVP_MD_CTX *context, const struct placement *p, unsigned char digest[32])
{
    static const char NAME[] = "ferry placement 1";
    const uint64_t shape[3] = {p->n_layers, p->n_experts, p->n_seats};
    unsigned char bytes[24];
    unsigned n_digest = 0;

    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(shape[i / 8] >> 8 * (i % 8));
    bool good = EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1 &&
                EVP_DigestUpdate(context, NAME, sizeof NAME) == 1 &&
                EVP_DigestUpdate(context, bytes, sizeof bytes) == 1;
    for (size_t i = 0; i < p->n_layers * p->n_experts && good; i++) {
        unsigned char n = (unsigned char)(p->first[i + 1] - p->first[i]);
        good = EVP_DigestUpdate(context, &n, 1) == 1 &&
               EVP_DigestUpdate(context, p->seats + p->first[i], n) == 1;
    }
    return good && EVP_DigestFinal_ex(context, digest, &n_digest) == 1 && n_digest == 32;
}

enum ferry_status placement_finish(struct placement *p, struct ferry_error *err)
{
    static const char DIGITS[] = "0123456789abcdef";
    unsigned char digest[32];
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good = context != NULL && hash_into(context, p, digest);

    EVP_MD_CTX_free(context);
    if (!good)
        return FERRY_FAIL(err, FERRY_ERR_NOMEM, "placement: no memory to hash it");
    for (size_t i = 0; i < 32; i++) {
        p->hash[2 * i] = DIGITS[digest[i] >> 4];
        p->hash[2 * i + 1] = DIGITS[digest[i] & 15];
    }
    return FERRY_OK;
}

/* Seats of expert `index`, n of them, primary first. */
typedef void seats_fn(const struct placement *p, size_t index, size_t n, uint64_t seed,
                      unsigned char *ret_seats);

static enum ferry_status fill(struct placement **ret, size_t n_layers, size_t n_experts,
                              size_t n_seats, size_t n_replicas, uint64_t seed, seats_fn *seats_of,
                              struct ferry_error *err)
{
    struct placement *p = NULL;
    unsigned char seats[LIMIT_SEATS];

    if (n_replicas == 0)
        return FERRY_FAIL(err, FERRY_ERR_LIMIT,
                          "placement: 0 replicas would leave every expert without a holder");
    enum ferry_status st = placement_start(&p, n_layers, n_experts, n_seats, err);
    size_t n = min_size(n_replicas, n_seats);
    for (size_t i = 0; st == FERRY_OK && i < n_layers * n_experts; i++) {
        seats_of(p, i, n, seed, seats);
        st = placement_add(p, i, seats, n, err);
    }
    if (st == FERRY_OK)
        st = placement_finish(p, err);
    if (st != FERRY_OK) {
        placement_destroy(p);
        return st;
    }
    *ret = p;
    return FERRY_OK;
}

static void next_in_turn(const struct placement *p, size_t index, size_t n, uint64_t seed,
                         unsigned char *ret_seats)
{
    size_t primary = index % p->n_experts * p->n_seats / p->n_experts;

    (void)seed;
    for (size_t i = 0; i < n; i++)
        ret_seats[i] = (unsigned char)((primary + i) % p->n_seats);
}

/* Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014: the mix of
 * SplitMix64, over a counter. */
static uint64_t mix(uint64_t x)
{
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* The first n cards of a deck of seats, shuffled by (seed, index) alone. */
static void drawn(const struct placement *p, size_t index, size_t n, uint64_t seed,
                  unsigned char *ret_seats)
{
    unsigned char deck[LIMIT_SEATS];

    for (size_t i = 0; i < p->n_seats; i++)
        deck[i] = (unsigned char)i;
    for (size_t i = 0; i < n; i++) {
        uint64_t draw = mix(mix(seed) ^ mix(index * LIMIT_SEATS + i));
        size_t k = i + (size_t)(draw % (p->n_seats - i));
        ret_seats[i] = deck[k];
        deck[k] = deck[i];
    }
}

enum ferry_status placement_contiguous(struct placement **ret, size_t n_layers, size_t n_experts,
                                       size_t n_seats, size_t n_replicas, struct ferry_error *err)
{
    return fill(ret, n_layers, n_experts, n_seats, n_replicas, 0, next_in_turn, err);
}

enum ferry_status placement_random(struct placement **ret, size_t n_layers, size_t n_experts,
                                   size_t n_seats, size_t n_replicas, uint64_t seed,
                                   struct ferry_error *err)
{
    return fill(ret, n_layers, n_experts, n_seats, n_replicas, seed, drawn, err);
}

enum ferry_status placement_only(struct placement **ret, const struct placement *from,
                                 const bool *layer_has_experts, struct ferry_error *err)
{
    struct placement *p = NULL;

    enum ferry_status st = placement_start(&p, from->n_layers, from->n_experts, from->n_seats, err);
    for (size_t i = 0; st == FERRY_OK && i < from->n_layers * from->n_experts; i++)
        st = placement_add(
            p, i, from->seats + from->first[i],
            layer_has_experts[i / from->n_experts] ? from->first[i + 1] - from->first[i] : 0, err);
    if (st == FERRY_OK)
        st = placement_finish(p, err);
    if (st != FERRY_OK) {
        placement_destroy(p);
        return st;
    }
    *ret = p;
    return FERRY_OK;
}

void placement_destroy(struct placement *p)
{
    if (p == NULL)
        return;
    mem_free(p->listed);
    mem_free(p->first);
    mem_free(p->seats);
    mem_free(p);
}

/* ---- asking ---- */

size_t placement_n_layers(const struct placement *placement)
{
    return placement->n_layers;
}

size_t placement_n_experts(const struct placement *placement)
{
    return placement->n_experts;
}

size_t placement_n_seats(const struct placement *placement)
{
    return placement->n_seats;
}

void placement_hash(const struct placement *placement, char ret_hex[65])
{
    memcpy(ret_hex, placement->hash, sizeof placement->hash);
}

uint64_t placement_listed(const struct placement *p, size_t layer, size_t expert)
{
    FERRY_ASSERT(layer < p->n_layers && expert < p->n_experts);
    return p->listed[layer * p->n_experts + expert];
}

/* Experts of a layer that each seat holds, [LIMIT_SEATS]. */
static void count_held(const struct placement *p, const uint64_t *listed, size_t *ret_held)
{
    memset(ret_held, 0, LIMIT_SEATS * sizeof *ret_held);
    for (size_t e = 0; e < p->n_experts; e++) {
        for (uint64_t seats = listed[e]; seats != 0; seats &= seats - 1)
            ret_held[__builtin_ctzll(seats)]++;
    }
}

/* The live seat that holds fewest, the lowest of several; it then holds one more. */
static uint64_t deal(size_t *held, uint64_t live)
{
    size_t best = (size_t)__builtin_ctzll(live);

    for (uint64_t seats = live & (live - 1); seats != 0; seats &= seats - 1) {
        size_t seat = (size_t)__builtin_ctzll(seats);
        best = held[seat] < held[best] ? seat : best;
    }
    held[best]++;
    return (uint64_t)1 << best;
}

static uint64_t known_seats(const struct placement *p, uint64_t live)
{
    return p->n_seats == 64 ? live : live & (((uint64_t)1 << p->n_seats) - 1);
}

/* Walks the layer as far as expert `last`, and returns its holders; ret_holders (may be NULL) gets
 * those of all on the way. */
static uint64_t holders_until(const struct placement *p, size_t layer, size_t last, uint64_t live,
                              uint64_t *ret_holders)
{
    const uint64_t *listed = p->listed + layer * p->n_experts;
    size_t held[LIMIT_SEATS];
    bool counted = false;
    uint64_t holders = 0;

    for (size_t e = 0; e <= last; e++) {
        holders = listed[e] & live;
        if (holders == 0 && live != 0 && listed[e] != 0) {
            if (!counted) /* most layers have no orphans */
                count_held(p, listed, held);
            counted = true;
            holders = deal(held, live);
        }
        if (ret_holders != NULL)
            ret_holders[e] = holders;
    }
    return holders;
}

uint64_t placement_holders(const struct placement *p, size_t layer, size_t expert, uint64_t live)
{
    uint64_t listed = placement_listed(p, layer, expert);

    live = known_seats(p, live);
    if ((listed & live) != 0 || listed == 0 || live == 0)
        return listed & live;
    return holders_until(p, layer, expert, live, NULL);
}

void placement_layer_holders(const struct placement *p, size_t layer, uint64_t live,
                             uint64_t *ret_holders)
{
    FERRY_ASSERT(layer < p->n_layers);
    (void)holders_until(p, layer, p->n_experts - 1, known_seats(p, live), ret_holders);
}

int placement_losses_survived(const struct placement *p, uint64_t live)
{
    int least = (int)p->n_seats;

    for (size_t i = 0; i < p->n_layers * p->n_experts; i++) {
        if (p->listed[i] == 0) /* its layer has no experts */
            continue;
        int n = __builtin_popcountll(p->listed[i] & known_seats(p, live));
        least = n < least ? n : least;
    }
    return least - 1;
}
