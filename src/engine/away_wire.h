/* What the engines of a group's ranks say to each other: answers that are computed elsewhere.
 *
 * Inside of the room. A message is hostile until away_wire_read has checked it; what the numbers
 * mean for a model is checked by request_create, as for any client. */
#ifndef ENGINE_AWAY_WIRE_H
#define ENGINE_AWAY_WIRE_H

#include "engine/logprobs.h"
#include "engine/sampler.h"
#include "ferry/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum away_type {
    AWAY_HELLO,  /* this rank computes answers for others */
    AWAY_START,  /* compute this one; ids follow, in as many messages as they need */
    AWAY_MORE,   /* further ids of a START */
    AWAY_TOKEN,  /* its next token */
    AWAY_FAILED, /* it cannot be computed there */
    AWAY_CANCEL, /* forget it */
    AWAY_HOLD,   /* its reader does not keep up, or does again */
    AWAY_CHECK,  /* nothing has come for a while: FAILED is the answer when it is not there */
    AWAY_TYPES,
};

enum {
    AWAY_MESSAGE_MAX = 32 << 10, /* bytes of one message */
    AWAY_BIASES_MAX = 1024,      /* more stay where they are */
};

struct away_hello {
    uint64_t n_slots, n_valid, max_ids; /* answers at once; ids that are sampled; of a sequence */
};

struct away_start {
    uint64_t n_ids, n_answered, max_tokens, n_valid;
    uint64_t n_biases; /* follow the struct */
    uint64_t top_k, seed, n_top_logprobs;
    float temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t choice;
    uint8_t ignore_eos, logprobs, unused[2];
    unsigned char cache_key[32];
};

struct away_token {
    uint64_t n_ids; /* of the answer with its prompt, before this token */
    struct logprobs logprobs;
    int32_t token;
    uint32_t has_logprobs;
};

struct away_message {
    enum away_type type;
    uint64_t id; /* of the attempt, unique at who asked */
    union {
        struct away_hello hello;
        struct away_start start;
        struct away_token token;
        bool hold;
        uint64_t offset; /* MORE: of the first id */
    };
    const struct logit_bias *biases; /* START; may be unaligned: copy */
    const int32_t *ids;              /* START, MORE: the same */
    size_t n_ids;
};

/* Points into data. FERRY_ERR_FORMAT. */
enum ferry_status away_wire_read(struct away_message *ret, const void *data, size_t n_bytes,
                                 struct ferry_error *err) FERRY_MUST_CHECK;

/* Writes a message into `to` [AWAY_MESSAGE_MAX]; START and MORE with as many of ids [n_ids] as fit:
 * *ret_n_ids. Returns its bytes. */
size_t away_wire_write(const struct away_message *message, void *to, size_t *ret_n_ids);

#endif
