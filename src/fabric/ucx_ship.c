/* Lanes whose two ends have a ring each: ranges of the sender's ring travel as active messages to
 * the same place of the receiver's, and what was released travels back as credits.
 *
 * Why here: this is the road between hosts. The engine notes how far it has written or read; then
 * it sends a small message itself if it can, and the fabric's thread does the rest. Whatever was
 * committed while that was busy goes as one message.
 * It must not know what the bytes mean; of a ring's layout it knows that messages never wrap, so
 * that a commit across the end leaves a rest unused, which begins with a marker of LANE_ALIGN
 * bytes.
 *
 * The head moves only to where a message ends: the receiver takes half a message for nonsense. */
#include "base/alloc.h"
#include "base/clock.h"
#include "fabric/ucx_impl.h"

#include <string.h>

/* Of one active message at most: with its headers it fits into a receive buffer of UCX's TCP
 * (UCX_TCP_RX_SEG_SIZE, 64 KiB), so that it is sent from where it lies and copied once. */
enum { CHUNK_BYTES = 60 << 10 };
static const uint64_t CREDIT_NS = 20000000u; /* that a small credit may wait */

static void ship_out(struct transport_conn *conn, uint32_t channel);

/* ---- engine ---- */

void ucx_committed(void *arg, struct lane *lane, uint64_t from, uint64_t to)
{
    struct ucx_outlet *out = arg;
    size_t left = lane->ring_bytes - (size_t)(from & (lane->ring_bytes - 1));

    /* The next one can be written only when all before the end of this lap was sent and released:
     * so ucx_ship, which sees it by the store below, never finds one of a later lap. */
    if (to - from > left)
        atomic_store_explicit(&out->pad_from, from, memory_order_relaxed);
    /* Pairs with the load in next_target: the ring's bytes are visible to who sees this. In one
     * order with `asleep`: either ucx_ship_due sees this, or ucx_nudge sees the sleeper. */
    atomic_store(&out->committed, to);
    struct transport *transport = out->conn->owner;
    if (to - from > CHUNK_BYTES || !ucx_try_lock(transport)) {
        ucx_nudge(transport);
        return;
    }
    if (out->sent == from) /* nothing larger waits before it */
        ship_out(out->conn, (uint32_t)(out - out->conn->lanes.out));
    bool rest = out->sent != to || out->conn->failed;
    ucx_unlock(transport);
    if (rest)
        ucx_nudge(transport);
}

/* Whether the sender should hear now how far the receiver is. Otherwise credits gather. */
static bool credit_presses(const struct ucx_inlet *in)
{
    uint64_t ring = in->ring_bytes;
    uint64_t released = atomic_load(&in->released);
    uint64_t lag = released - atomic_load(&in->credited);
    uint64_t landed = atomic_load(&in->landed);

    if (lag >= ring / 4)
        return true;
    if (lag == 0 || released != landed)
        return false;
    /* All is read: nothing else will come of itself. What the sender may want at most is half a
     * ring and the rest of this lap before it. */
    uint64_t left = ring - (landed & (ring - 1));
    uint64_t wanted = left < ring / 2 ? left + ring / 2 : ring / 2;
    return ring - lag < wanted;
}

void ucx_released(void *arg, struct lane *lane, uint64_t tail)
{
    struct ucx_inlet *in = arg;

    (void)lane;
    if (!atomic_load_explicit(&in->travels, memory_order_relaxed))
        return;
    /* Pairs with the load in may_land: what is given back is no longer read. */
    atomic_store(&in->released, tail);
    if (credit_presses(in))
        ucx_nudge(in->conn->owner);
}

/* ---- out ---- */

static bool next_target(struct ucx_outlet *out)
{
    if (out->sent == out->target)
        out->target = atomic_load(&out->committed);
    return out->sent != out->target;
}

/* The next piece: from out->sent to before the end of the lap, or of what was committed. */
static size_t cut_piece(const struct ucx_outlet *out, struct ucx_data *ret)
{
    uint64_t from = out->sent;
    uint64_t end = (from | (out->ring_bytes - 1)) + 1;
    uint64_t pad = atomic_load_explicit(&out->pad_from, memory_order_relaxed);
    bool padded = out->target > end && pad >= from && pad < end;
    uint64_t stop = padded ? pad + LANE_ALIGN : out->target < end ? out->target : end;
    size_t n_bytes = (size_t)(stop - from);
    bool last = n_bytes <= CHUNK_BYTES;

    if (!last)
        n_bytes = CHUNK_BYTES;
    ret->from = from;
    ret->next = last && padded ? end : from + n_bytes;
    ret->whole = last && !padded; /* a marker counts only with the message behind it */
    return n_bytes;
}

static void ship_out(struct transport_conn *conn, uint32_t channel)
{
    struct ucx_outlet *out = &conn->lanes.out[channel];

    while (!conn->failed && out->in_flight < UCX_IN_FLIGHT && next_target(out)) {
        struct ucx_send *send = mem_zero(sizeof *send);
        if (send == NULL)
            return; /* tried again with the next pass */
        struct ucx_data *data = &send->header.data;
        send->conn = conn;
        send->in_flight = &out->in_flight;
        size_t n_bytes = cut_piece(out, data);
        data->label = conn->peer;
        data->channel = channel;
        out->sent = data->next;
        ucx_endpoint_post(send, UCX_DATA, sizeof *data,
                          out->shared->ring + (data->from & (out->ring_bytes - 1)), n_bytes);
    }
}

static void send_credit(struct transport_conn *conn, uint32_t channel, uint64_t now_ns)
{
    struct ucx_inlet *in = &conn->lanes.in[channel];
    uint64_t released = atomic_load(&in->released);

    if (conn->failed || released == atomic_load(&in->credited) ||
        (!credit_presses(in) && now_ns - in->told_ns < CREDIT_NS))
        return;
    struct ucx_send *send = mem_zero(sizeof *send);
    if (send == NULL)
        return;
    send->conn = conn;
    send->header.credit =
        (struct ucx_credit){.label = conn->peer, .tail = released, .channel = channel};
    atomic_store(&in->credited, released);
    in->told_ns = now_ns;
    ucx_endpoint_post(send, UCX_CREDIT, sizeof send->header.credit, NULL, 0);
}

void ucx_ship(struct transport *transport)
{
    uint64_t now_ns = clock_now_ns();

    for (size_t i = 0; i < UCX_CONNS; i++) {
        struct transport_conn *conn = transport->conns[i];
        if (conn == NULL || !conn->lanes.accepted)
            continue;
        for (uint32_t channel = 0; channel < LANE_N_CHANNELS; channel++) {
            if (conn->lanes.window.region == NULL)
                ship_out(conn, channel);
            if (atomic_load(&conn->lanes.in[channel].travels))
                send_credit(conn, channel, now_ns);
        }
    }
}

bool ucx_ship_due(struct transport *transport)
{
    for (size_t i = 0; i < UCX_CONNS; i++) {
        struct transport_conn *conn = transport->conns[i];
        if (conn == NULL || !conn->lanes.accepted || conn->failed)
            continue;
        for (uint32_t channel = 0; channel < LANE_N_CHANNELS; channel++) {
            const struct ucx_outlet *out = &conn->lanes.out[channel];
            const struct ucx_inlet *in = &conn->lanes.in[channel];
            if (conn->lanes.window.region == NULL && out->in_flight < UCX_IN_FLIGHT &&
                out->sent != atomic_load(&out->committed))
                return true;
            if (atomic_load(&in->travels) && credit_presses(in))
                return true;
        }
    }
    return false;
}

/* ---- in ---- */

/* Whether the range is one that the sender may send now. */
static bool may_land(const struct ucx_inlet *in, const struct ucx_data *data, size_t n_bytes)
{
    uint64_t ring = in->ring_bytes;
    uint64_t end = (data->from | (ring - 1)) + 1;

    if (n_bytes == 0 || data->from % LANE_ALIGN != 0 || data->next % LANE_ALIGN != 0 ||
        data->next <= data->from || n_bytes > data->next - data->from || data->next > end ||
        (n_bytes < data->next - data->from && data->next != end))
        return false;
    if (data->from < atomic_load(&in->landed) || data->next - atomic_load(&in->released) > ring)
        return false;
    for (size_t i = 0; i < in->n_ranges; i++) {
        if (data->from < in->ranges[i].next && in->ranges[i].from < data->next)
            return false;
    }
    return true;
}

static void pass_range(struct ucx_inlet *in, const struct ucx_range *range)
{
    atomic_store(&in->landed, range->next);
    if (range->whole)
        in->head = range->next;
}

/* Takes those ranges whose turn it is now. */
static void pass_early(struct ucx_inlet *in)
{
    size_t i = 0;

    while (i < in->n_ranges) {
        if (in->ranges[i].from != atomic_load(&in->landed)) {
            i++;
            continue;
        }
        pass_range(in, &in->ranges[i]);
        in->ranges[i] = in->ranges[--in->n_ranges];
        i = 0;
    }
}

/* Copies a range to its place and moves the head over what is there without a gap. False: too much
 * has come before its turn, or there is no memory. */
static bool land(struct ucx_inlet *in, const struct ucx_data *data, const void *bytes,
                 size_t n_bytes)
{
    const struct ucx_range range = {
        .from = data->from, .next = data->next, .whole = data->whole != 0};
    uint64_t head = in->head;

    atomic_store(&in->travels, true);
    memcpy(in->shared->ring + (data->from & (in->ring_bytes - 1)), bytes, n_bytes);
    if (range.from != atomic_load(&in->landed)) {
        if (in->ranges == NULL)
            in->ranges = mem_array(UCX_RANGES, sizeof in->ranges[0]);
        if (in->ranges == NULL || in->n_ranges == UCX_RANGES)
            return false;
        in->ranges[in->n_ranges++] = range;
        return true;
    }
    pass_range(in, &range);
    pass_early(in);
    if (in->head != head) { /* pairs with the acquire in lane_take */
        atomic_store_explicit(&in->shared->head, in->head, memory_order_release);
        in->conn->owner->has_landed = true;
    }
    return true;
}

ucs_status_t ucx_on_data(void *arg, const void *header, size_t n_header, void *data, size_t n_bytes,
                         const ucp_am_recv_param_t *param)
{
    struct ucx_data said;

    if (n_header != sizeof said)
        return UCS_OK;
    memcpy(&said, header, sizeof said);
    struct transport_conn *conn = ucx_conn_find(arg, &said.label);
    if (conn == NULL)
        return UCS_OK;
    if (said.channel >= LANE_N_CHANNELS || !conn->lanes.offered ||
        (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 ||
        !may_land(&conn->lanes.in[said.channel], &said, n_bytes)) {
        ucx_conn_fail(conn, "it sends to a place of a lane where it may not");
        return UCS_OK;
    }
    if (!land(&conn->lanes.in[said.channel], &said, data, n_bytes))
        ucx_conn_fail(conn, "no memory for a range that came before its turn");
    return UCS_OK;
}

ucs_status_t ucx_on_credit(void *arg, const void *header, size_t n_header, void *data,
                           size_t n_bytes, const ucp_am_recv_param_t *param)
{
    struct ucx_credit said;

    (void)data;
    (void)n_bytes;
    (void)param;
    if (n_header != sizeof said)
        return UCS_OK;
    memcpy(&said, header, sizeof said);
    struct transport_conn *conn = ucx_conn_find(arg, &said.label);
    if (conn == NULL)
        return UCS_OK;
    struct ucx_outlet *out =
        said.channel < LANE_N_CHANNELS && conn->lanes.accepted && conn->lanes.window.region == NULL
            ? &conn->lanes.out[said.channel]
            : NULL;
    if (out == NULL || said.tail > out->sent || said.tail % LANE_ALIGN != 0) {
        ucx_conn_fail(conn, "it gives back what it was not sent");
        return UCS_OK;
    }
    if (said.tail <= out->tail) /* a newer one has overtaken it */
        return UCS_OK;
    out->tail = said.tail;
    /* Pairs with the acquire in lane_reserve. */
    atomic_store_explicit(&out->shared->tail, said.tail, memory_order_release);
    conn->owner->has_landed = true;
    return UCS_OK;
}
