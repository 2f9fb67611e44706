/* Who holds which expert.
 *
 * Why here: the plan of a step, the expert store and the planner must give the same answer from the
 * same placement and the same set of live seats, without asking each other. It must not know
 * transports, weights or tokens. Immutable after creation; any thread. */
#ifndef PLACEMENT_PLACEMENT_H
#define PLACEMENT_PLACEMENT_H

#include "ferry/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct placement;

/* Expert e of every layer on seat e * n_seats / n_experts: contiguous ranges, which keep subtrees
 * of the combine tree together; ranges differ by one expert at most. n_replicas >= 1 seats hold
 * each (capped at n_seats): the next ones in turn. FERRY_ERR_NOMEM, FERRY_ERR_LIMIT. */
enum ferry_status placement_contiguous(struct placement **ret, size_t n_layers, size_t n_experts,
                                       size_t n_seats, size_t n_replicas,
                                       struct ferry_error *err) FERRY_MUST_CHECK;

/* Seats drawn by a counter-based generator; for tests and comparisons. Same seed, same placement.
 */
enum ferry_status placement_random(struct placement **ret, size_t n_layers, size_t n_experts,
                                   size_t n_seats, size_t n_replicas, uint64_t seed,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* `from` without the layers that have no experts (layer_has_experts [n_layers] is false): as it
 * would be read from a file. The two above list every layer, since they do not know the model;
 * writing and hashes want this one. FERRY_ERR_NOMEM. */
enum ferry_status placement_only(struct placement **ret, const struct placement *from,
                                 const bool *layer_has_experts,
                                 struct ferry_error *err) FERRY_MUST_CHECK;

/* A plan (docs/json/placement.schema.json): {"version": 1, "layers": [{"layer": 0, "experts":
 * [[seat, ...], ...]}, ...]}, a seat list per expert, primary first; layers without experts are
 * left out. `name` (the file's) starts every message, which says layer and expert; `json` is not
 * changed. layer_has_experts [n_layers]. Errors: FERRY_ERR_FORMAT (unknown keys too),
 * FERRY_ERR_ARG (not the model's shape, a seat >= n_seats, a seat twice), FERRY_ERR_LIMIT,
 * FERRY_ERR_NOMEM. */
enum ferry_status placement_from_json(struct placement **ret, json_t *json, const char *name,
                                      const bool *layer_has_experts, size_t n_layers,
                                      size_t n_experts, size_t n_seats,
                                      struct ferry_error *err) FERRY_MUST_CHECK;

/* Replaces the file as a whole. FERRY_ERR_IO, FERRY_ERR_NOMEM. */
enum ferry_status placement_write(const struct placement *placement, const char *path,
                                  struct ferry_error *err) FERRY_MUST_CHECK;

void placement_destroy(struct placement *placement);

size_t placement_n_layers(const struct placement *placement);
size_t placement_n_experts(const struct placement *placement);
size_t placement_n_seats(const struct placement *placement);

/* SHA-256 of the whole assignment, hex: equal for equal plans. */
void placement_hash(const struct placement *placement, char ret_hex[65]);

/* Seats that hold the expert while `live` (bit per seat) is the group, as a bit set: those listed
 * and live. None of them live: the one live seat that takes it over, the same for every caller:
 * orphans of a layer are dealt out in turn over the live seats, by fewest experts held (listed ones
 * and those dealt before), lowest seat first. 0 only when live is 0, or when the plan leaves the
 * layer out. Costs n_experts * n_seats for an orphan, else nothing. */
uint64_t placement_holders(const struct placement *placement, size_t layer, size_t expert,
                           uint64_t live);

/* The same for all experts of a layer in one walk; ret_holders [n_experts]. */
void placement_layer_holders(const struct placement *placement, size_t layer, uint64_t live,
                             uint64_t *ret_holders);

/* Seats that the plan lists, live or not. */
uint64_t placement_listed(const struct placement *placement, size_t layer, size_t expert);

/* How many seats of `live` the group may lose, whichever they are, before some expert has no
 * listed live holder (it would have to be loaded): the smallest count of listed live holders over
 * all experts, less one; -1: that is so already. */
int placement_losses_survived(const struct placement *placement, uint64_t live);

#endif
