/* Inside of the room: a placement under construction. */
#ifndef PLACEMENT_INSIDE_H
#define PLACEMENT_INSIDE_H

#include "base/limits.h"
#include "placement/placement.h"

#include <stddef.h>
#include <stdint.h>

struct placement {
    size_t n_layers, n_experts, n_seats;
    uint64_t *listed;     /* [n_layers, n_experts] bit per seat; 0: the layer has no experts */
    uint32_t *first;      /* [n_layers * n_experts + 1] where an expert's seats begin in `seats` */
    unsigned char *seats; /* [n_seats_used] seats in the plan's order, primary first */
    size_t n_seats_used, capacity;
    char hash[65];
};

/* Checks the shape and makes an empty placement; experts are then added in order, layer by layer,
 * and placement_finish ends it. FERRY_ERR_LIMIT, FERRY_ERR_NOMEM. */
enum ferry_status placement_start(struct placement **ret, size_t n_layers, size_t n_experts,
                                  size_t n_seats, struct ferry_error *err) FERRY_MUST_CHECK;

/* The seats of expert number `index` (layer * n_experts + expert), which follows the one added
 * before; n 0: its layer has no experts. Seats are distinct and below n_seats. FERRY_ERR_NOMEM. */
enum ferry_status placement_add(struct placement *placement, size_t index,
                                const unsigned char *seats, size_t n,
                                struct ferry_error *err) FERRY_MUST_CHECK;

/* All experts were added: computes the hash. FERRY_ERR_NOMEM. */
enum ferry_status placement_finish(struct placement *placement,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

#endif
