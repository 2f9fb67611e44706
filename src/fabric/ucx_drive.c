/* The engine's thread at work for the transport `ucx`: it sends what it has just committed, and
 * moves data while it waits.
 *
 * Why here: between hosts a message that goes by way of the fabric's thread wakes three threads,
 * and a rank that waits has nothing better to do. Only where no rank of this host is in the group:
 * those ring the bell, on which a thread can sleep only by itself. While it computes, and for
 * everything but data, there is the fabric's thread as ever (ucx.c). One lock keeps the two apart;
 * the engine's thread never waits for it. It must not know what is in a ring. */
#include "base/clock.h"
#include "base/cpu.h"
#include "fabric/ucx_impl.h"

#include <time.h>
#include <unistd.h>

static const uint64_t BUSY_NS = 30000; /* until a lock that somebody holds is tried again */

void ucx_lock(struct transport *transport)
{
    atomic_fetch_add(&transport->wanted, 1);
    (void)pthread_mutex_lock(&transport->lock);
    atomic_fetch_sub(&transport->wanted, 1);
}

void ucx_unlock(struct transport *transport)
{
    (void)pthread_mutex_unlock(&transport->lock);
}

/* A mutex is not fair: who spins leaves it to who waits. */
bool ucx_try_lock(struct transport *transport)
{
    return atomic_load(&transport->wanted) == 0 && pthread_mutex_trylock(&transport->lock) == 0;
}

struct lane_bell *ucx_bell(struct transport *transport)
{
    return (struct lane_bell *)(void *)transport->bell.region->data;
}

bool ucx_wait(struct pollfd *fds, size_t n, uint64_t timeout_ns)
{
    const struct timespec timeout = {.tv_sec = (time_t)(timeout_ns / 1000000000u),
                                     .tv_nsec = (long)(timeout_ns % 1000000000u)};

    return ppoll(fds, n, &timeout, NULL) > 0;
}

void ucx_ring(struct transport *transport)
{
    const uint64_t one = 1;

    /* In one order with `block`: it sees the ring, or this sees that it polls. */
    lane_bell_ring(ucx_bell(transport));
    if (atomic_load(&transport->polls) && write(transport->ring_fd, &one, sizeof one) < 0)
        return; /* the counter is full: it is readable, which is all that is wanted */
}

bool ucx_move_data(struct transport *transport)
{
    bool any = ucx_worker_progress(transport);

    if (transport->has_landed) {
        transport->has_landed = false;
        ucx_ring(transport);
    }
    return any;
}

static bool is_rung(struct transport *transport, uint32_t seen)
{
    return lane_bell_rings(ucx_bell(transport)) != seen;
}

/* Data, on the engine's thread. What else a broken connection needs is the other thread's. */
static void try_move(struct transport *transport)
{
    if (!ucx_try_lock(transport))
        return;
    if (ucx_move_data(transport))
        ucx_ship(transport); /* what could not be sent before, and credits */
    bool broken = transport->has_failed;
    ucx_unlock(transport);
    if (broken)
        ucx_nudge(transport);
}

/* Sleeps until data has come, or somebody rings. */
static void block(struct transport *transport, uint32_t seen, uint64_t timeout_ns)
{
    bool armed = false, busy = true;
    uint64_t count;

    atomic_store(&transport->polls, true);
    if (!is_rung(transport, seen)) {
        if (ucx_try_lock(transport)) {
            armed = ucx_worker_may_sleep(transport);
            busy = false;
            ucx_unlock(transport);
        }
        if (busy && timeout_ns > BUSY_NS)
            timeout_ns = BUSY_NS;
        if (armed || busy) {
            struct pollfd fds[] = {{.fd = transport->ring_fd, .events = POLLIN},
                                   {.fd = transport->worker_fd, .events = POLLIN}};
            if (ucx_wait(fds, armed ? 2 : 1, timeout_ns) && fds[0].revents != 0 &&
                read(transport->ring_fd, &count, sizeof count) < 0)
                count = 0; /* nobody else reads it: it cannot be */
        }
    }
    atomic_store(&transport->polls, false);
}

static void drive(struct transport *transport, uint32_t seen, uint64_t timeout_ns)
{
    uint64_t begin_ns = clock_now_ns(), waited_ns = 0;

    while (!is_rung(transport, seen) && waited_ns < timeout_ns) {
        try_move(transport);
        if (is_rung(transport, seen))
            break;
        if (waited_ns < transport->spin_ns)
            cpu_relax();
        else
            block(transport, seen, timeout_ns - waited_ns);
        waited_ns = clock_now_ns() - begin_ns;
    }
}

void ucx_sleep(struct transport *transport, uint32_t seen, uint64_t timeout_ns)
{
    if (!atomic_load(&transport->travels) || atomic_load(&transport->n_near) > 0 ||
        atomic_exchange(&transport->driven, true)) {
        lane_bell_sleep(ucx_bell(transport), seen, timeout_ns);
        return;
    }
    atomic_fetch_add(&transport->drives, 1);
    drive(transport, seen, timeout_ns);
    atomic_store(&transport->driven, false);
    if (atomic_exchange(&transport->deaf, false))
        ucx_nudge(transport);
}
