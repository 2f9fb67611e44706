/* What travels between ranks: requests (rows and pairs) and replies (sums).
 *
 * Inside of the room. Everything that comes in is hostile: a peer may be of another build, broken,
 * or still writing. Request payload: A32 rows [n_rows], f32 rows [n_rows], pairs [n_pairs]; bundle:
 * the rows, members [n_groups], then for each member its rows' numbers among them and its pairs;
 * reply payload: one row of `hidden` values per group, f32 or bf16. A request that was passed on
 * names its origin and that rank's incarnation in the header. */
#ifndef EXCHANGE_WIRE_H
#define EXCHANGE_WIRE_H

#include "exchange/plan.h"
#include "fabric/fabric.h"

enum wire_kind {
    WIRE_ROWS,    /* request */
    WIRE_NONE,    /* request: this layer of this step has nothing for the receiver */
    WIRE_SUMS,    /* reply */
    WIRE_REFUSED, /* reply: not computed, ask somebody else */
    WIRE_BUNDLE,  /* request: rows for several ranks of the receiver's host */
    WIRE_KINDS,
    WIRE_KIND_MASK = 0xff,
    WIRE_A32 = 0x100, /* rows have this part */
    WIRE_F32 = 0x200,
    WIRE_BF16 = 0x400, /* sums are bf16 */
};

/* Sizes that both sides of a message know. */
struct wire_shape {
    size_t n_layers, n_experts, hidden, max_slots;
    size_t a32_bytes, f32_floats;
};

/* Bytes of one row with the parts that `flags` name. */
size_t wire_row_bytes(const struct wire_shape *shape, unsigned flags);

/* A request that was found to be sound. rows points into the message. */
struct wire_request {
    struct exchange_rows rows;
    size_t n_rows, n_pairs, n_groups;
};

/* Checks a ROWS message and copies its pairs (n_pairs <= shape->max_slots, checked) into `pairs`,
 * out of the sender's reach. FERRY_ERR_FORMAT: err says what no rank may send. */
enum ferry_status wire_request_read(struct wire_request *ret, struct exchange_pair *pairs,
                                    const struct wire_shape *shape,
                                    const struct fabric_message *message,
                                    struct ferry_error *err) FERRY_MUST_CHECK;

/* What a bundle holds for one seat: a request of its own. */
struct wire_member {
    uint64_t id; /* as in the header of a request, and so on */
    uint32_t n_rows, n_pairs, n_groups;
    uint16_t seat;
    uint16_t more;
};
_Static_assert(sizeof(struct wire_member) == 24, "travels between ranks");

/* A bundle whose sizes were found to be sound. rows and the members' data point into the message.
 */
struct wire_bundle {
    struct exchange_rows rows;
    size_t n_rows, n_members;
    struct wire_member members[LIMIT_SEATS];
    const unsigned char *data[LIMIT_SEATS]; /* uint32_t [n_rows], then pairs [n_pairs] */
};

size_t wire_bundle_bytes(const struct wire_shape *shape, unsigned flags, size_t n_rows,
                         const struct wire_member *members, size_t n_members);

/* Checks a BUNDLE and copies its members. FERRY_ERR_FORMAT. */
enum ferry_status wire_bundle_read(struct wire_bundle *ret, const struct wire_shape *shape,
                                   const struct fabric_message *message,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* Copies the numbers of member m's rows (n_rows <= shape->max_slots, checked) out of the sender's
 * reach. FERRY_ERR_FORMAT: one is no row of the bundle. */
enum ferry_status wire_member_rows(const struct wire_bundle *bundle, size_t m, uint32_t *ret_rows,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* Member m as a request: its pairs name rows of the bundle. row_numbers [n_rows of the member].
 * FERRY_ERR_FORMAT. */
enum ferry_status wire_member_read(struct wire_request *ret, struct exchange_pair *pairs,
                                   const struct wire_bundle *bundle, size_t m,
                                   const uint32_t *row_numbers, const struct wire_shape *shape,
                                   struct ferry_error *err) FERRY_MUST_CHECK;

/* Asks for the first lines of a message that was written by another processor: they come while the
 * rest is decided. */
void wire_ask_for(const void *data, size_t n_bytes);

/* Writes rows (numbers row_token [n_rows] of `rows`) and pairs into a reserved payload. stream:
 * past the own caches, without reading it first. Rows go over the device's threads. pairs NULL:
 * none. */
void wire_request_write(void *payload, struct device *device, const struct wire_shape *shape,
                        unsigned flags, const struct exchange_rows *rows, const uint32_t *row_token,
                        size_t n_rows, const struct exchange_pair *pairs, size_t n_pairs,
                        bool stream);

#endif
