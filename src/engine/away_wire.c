/* Encoding of messages between engines. See away_wire.h. All ranks of a group are of one byte order
 * and one build's numerics, so that structs travel as they are. */
#include "engine/away_wire.h"

#include "base/assert.h"
#include "base/error.h"
#include "base/size.h"

#include <string.h>

struct head {
    uint32_t version, type;
    uint64_t id;
};

enum { VERSION = 1 };

static size_t body_bytes(enum away_type type)
{
    switch (type) {
    case AWAY_HELLO:
        return sizeof(struct away_hello);
    case AWAY_START:
        return sizeof(struct away_start);
    case AWAY_MORE:
        return sizeof(uint64_t);
    case AWAY_TOKEN:
        return sizeof(struct away_token);
    case AWAY_HOLD:
        return sizeof(uint32_t);
    case AWAY_FAILED:
    case AWAY_CANCEL:
    case AWAY_CHECK:
    case AWAY_TYPES:
        break;
    }
    return 0;
}

static enum ferry_status read_start(struct away_message *m, const unsigned char *rest,
                                    size_t n_bytes, struct ferry_error *err)
{
    const struct away_start *s = &m->start;
    size_t biases = s->n_biases * sizeof *m->biases;

    if (s->n_biases > AWAY_BIASES_MAX || biases > n_bytes)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "start: %llu biases in %zu bytes",
                          (unsigned long long)s->n_biases, n_bytes);
    m->biases = (const struct logit_bias *)(const void *)rest;
    m->ids = (const int32_t *)(const void *)(rest + biases);
    m->n_ids = (n_bytes - biases) / sizeof *m->ids;
    if ((n_bytes - biases) % sizeof *m->ids != 0 || m->n_ids > s->n_ids)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "start: %zu bytes of ids for %llu",
                          n_bytes - biases, (unsigned long long)s->n_ids);
    return FERRY_OK;
}

enum ferry_status away_wire_read(struct away_message *ret, const void *data, size_t n_bytes,
                                 struct ferry_error *err)
{
    const unsigned char *bytes = data;
    struct head head;
    uint32_t hold = 0;

    *ret = (struct away_message){0};
    if (n_bytes < sizeof head || n_bytes > AWAY_MESSAGE_MAX)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "a message of %zu bytes", n_bytes);
    memcpy(&head, bytes, sizeof head);
    if (head.version != VERSION || head.type >= AWAY_TYPES)
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "a message of type %u, version %u", head.type,
                          head.version);
    ret->type = (enum away_type)head.type;
    ret->id = head.id;
    size_t body = body_bytes(ret->type), rest = n_bytes - sizeof head;
    bool is_open = ret->type == AWAY_START || ret->type == AWAY_MORE;
    if (rest < body || (!is_open && rest != body))
        return FERRY_FAIL(err, FERRY_ERR_FORMAT, "a message of type %u with %zu bytes", head.type,
                          rest);
    bytes += sizeof head;
    switch (ret->type) {
    case AWAY_HELLO:
        memcpy(&ret->hello, bytes, sizeof ret->hello);
        break;
    case AWAY_START:
        memcpy(&ret->start, bytes, sizeof ret->start);
        return read_start(ret, bytes + body, rest - body, err);
    case AWAY_MORE:
        memcpy(&ret->offset, bytes, sizeof ret->offset);
        ret->ids = (const int32_t *)(const void *)(bytes + body);
        ret->n_ids = (rest - body) / sizeof *ret->ids;
        if ((rest - body) % sizeof *ret->ids != 0 || ret->n_ids == 0)
            return FERRY_FAIL(err, FERRY_ERR_FORMAT, "more: %zu bytes of ids", rest - body);
        break;
    case AWAY_TOKEN:
        memcpy(&ret->token, bytes, sizeof ret->token);
        if (ret->token.logprobs.n_top > LOGPROBS_TOP_MAX)
            return FERRY_FAIL(err, FERRY_ERR_FORMAT, "token: %zu log-probabilities",
                              ret->token.logprobs.n_top);
        break;
    case AWAY_HOLD:
        memcpy(&hold, bytes, sizeof hold);
        ret->hold = hold != 0;
        break;
    case AWAY_FAILED:
    case AWAY_CANCEL:
    case AWAY_CHECK:
    case AWAY_TYPES:
        break;
    }
    return FERRY_OK;
}

size_t away_wire_write(const struct away_message *message, void *to, size_t *ret_n_ids)
{
    const struct head head = {VERSION, message->type, message->id};
    unsigned char *at = to;
    size_t body = body_bytes(message->type);

    memcpy(at, &head, sizeof head);
    at += sizeof head;
    switch (message->type) {
    case AWAY_HELLO:
        memcpy(at, &message->hello, sizeof message->hello);
        break;
    case AWAY_START:
        memcpy(at, &message->start, sizeof message->start);
        break;
    case AWAY_MORE:
        memcpy(at, &message->offset, sizeof message->offset);
        break;
    case AWAY_TOKEN:
        memcpy(at, &message->token, sizeof message->token);
        break;
    case AWAY_HOLD:
        memcpy(at, &(uint32_t){message->hold}, sizeof(uint32_t));
        break;
    case AWAY_FAILED:
    case AWAY_CANCEL:
    case AWAY_CHECK:
    case AWAY_TYPES:
        break;
    }
    at += body;
    if (message->type == AWAY_START && message->start.n_biases > 0) {
        FERRY_ASSERT(message->start.n_biases <= AWAY_BIASES_MAX);
        memcpy(at, message->biases, message->start.n_biases * sizeof *message->biases);
        at += message->start.n_biases * sizeof *message->biases;
    }
    if (message->type == AWAY_START || message->type == AWAY_MORE) {
        size_t room = AWAY_MESSAGE_MAX - (size_t)(at - (unsigned char *)to);
        *ret_n_ids = min_size(room / sizeof *message->ids, message->n_ids);
        memcpy(at, message->ids, *ret_n_ids * sizeof *message->ids);
        at += *ret_n_ids * sizeof *message->ids;
    }
    return (size_t)(at - (unsigned char *)to);
}
