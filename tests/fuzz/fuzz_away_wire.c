/* Any bytes as a message between engines: what is refused must say why in one line; what is
 * accepted points to bytes of the message only, and written again gives the same message.
 *
 * Input: one message. It is read at an odd address too, since nothing aligns what comes. */
#include "fuzz.h"

#include "base/assert.h"
#include "engine/away_wire.h"

#include <string.h>

static _Alignas(16) unsigned char copy[AWAY_MESSAGE_MAX + 1];
static unsigned char again[AWAY_MESSAGE_MAX];
static int32_t ids[AWAY_MESSAGE_MAX];
static struct logit_bias biases[AWAY_BIASES_MAX];

static bool lies_in(const void *part, size_t part_bytes, const void *whole, size_t whole_bytes)
{
    const unsigned char *a = part, *b = whole;
    return part_bytes == 0 || (a >= b && a + part_bytes <= b + whole_bytes);
}

static void use(const unsigned char *data, size_t size)
{
    struct ferry_error err = {0};
    struct away_message m;
    size_t n_ids = 0;

    if (away_wire_read(&m, data, size, &err) != FERRY_OK) {
        FERRY_ASSERT(err.msg[0] != 0 && strchr(err.msg, '\n') == NULL);
        return;
    }
    size_t n_biases = m.type == AWAY_START ? (size_t)m.start.n_biases : 0;
    FERRY_ASSERT(lies_in(m.ids, m.n_ids * sizeof *ids, data, size));
    FERRY_ASSERT(lies_in(m.biases, n_biases * sizeof *biases, data, size));
    if (m.n_ids > 0)
        memcpy(ids, m.ids, m.n_ids * sizeof *ids);
    if (n_biases > 0)
        memcpy(biases, m.biases, n_biases * sizeof *biases);
    m.ids = ids;
    m.biases = biases;
    size_t n = away_wire_write(&m, again, &n_ids);
    FERRY_ASSERT(n == size && n_ids == m.n_ids);
    if (m.type == AWAY_HOLD) /* any number but 0 holds */
        FERRY_ASSERT(memcmp(again, data, size - sizeof(uint32_t)) == 0);
    else
        FERRY_ASSERT(memcmp(again, data, size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > AWAY_MESSAGE_MAX)
        return 0;
    for (size_t at = 0; at < 2; at++) {
        if (size > 0)
            memcpy(copy + at, data, size);
        use(copy + at, size);
    }
    return 0;
}
