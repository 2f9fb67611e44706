/* linkemu: a switch in user space whose ports have a rate and whose wires have a delay.
 *
 * What: opens one TAP interface per host (each in the host's network namespace) and carries frames
 *       between them: a frame leaves its host at RATE, travels DELAY, and enters the other host at
 *       RATE. Offloads stay on: a large TCP segment crosses as one piece and is charged for the
 *       frames that it stands for, so that a gigabit costs a few percent of a processor.
 * Why here: the tests need delay, and many kernels come without netem. hosts.sh starts it.
 * Must not know: what the hosts are or say. A frame for a MAC address that no port has is dropped:
 *       hosts.sh cuts links that way.
 *
 * Usage: linkemu RATE_MBIT DELAY_US NETNS=IF=MAC NETNS=IF=MAC...   (NETNS: a name in /run/netns)
 * Prints "ready" when all ports are open; runs until it is killed. Exit 1 failed, 2 wrong usage. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum {
    PORTS_MAX = 16,
    FRAME_MAX = 65536 + 64,
    MAC_BYTES = 6,
    ETHERNET_EXTRA = 24, /* preamble, check sequence and gap: time on the wire, never in memory */
    ETHERNET_LEAST = 60,
    QUEUE_LEAST = 512 << 10,
};

static const uint64_t AHEAD_NS = 1000000; /* how far a port may have sent ahead of the clock */

struct frame {
    struct frame *next;
    uint64_t due_ns;
    size_t wire_bytes;
    size_t n_bytes; /* offload header and Ethernet frame */
    unsigned char data[];
};

struct port {
    int fd;
    unsigned char mac[MAC_BYTES];
    uint64_t up_free_ns, down_free_ns; /* when each direction's wire is free again */
    struct frame *first, **last;       /* on their way to this port, by due time */
    size_t queued;                     /* wire bytes of them */
    uint64_t dropped;
};

struct emulator {
    double ns_per_byte;
    uint64_t delay_ns;
    size_t queue_max;
    size_t n_ports;
    struct port ports[PORTS_MAX];
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static _Noreturn void fail(const char *what, const char *name)
{
    fprintf(stderr, "linkemu: %s %s: %s\n", what, name, strerror(errno));
    exit(1);
}

/* Opens a TAP inside a network namespace and comes back to the caller's. */
static int open_tap(const char *netns, const char *interface)
{
    char path[256];
    struct ifreq request;
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int there, fd;

    snprintf(path, sizeof path, "/run/netns/%s", netns);
    there = open(path, O_RDONLY | O_CLOEXEC);
    if (home < 0 || there < 0 || setns(there, CLONE_NEWNET) != 0)
        fail("cannot enter the network namespace", netns);
    fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        fail("cannot open", "/dev/net/tun");
    memset(&request, 0, sizeof request);
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    if (ioctl(fd, TUNSETIFF, &request) != 0)
        fail("cannot make the TAP interface", interface);
    if (ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN) != 0)
        fail("cannot set the offloads of", interface);
    if (setns(home, CLONE_NEWNET) != 0)
        fail("cannot come back from the network namespace", netns);
    close(home);
    close(there);
    return fd;
}

/* "NETNS=IF=MAC" becomes an open port. */
static void open_port(struct port *port, const char *text)
{
    char netns[128], interface[IFNAMSIZ];
    unsigned mac[MAC_BYTES];

    if (sscanf(text, "%127[^=]=%15[^=]=%2x:%2x:%2x:%2x:%2x:%2x", netns, interface, &mac[0], &mac[1],
               &mac[2], &mac[3], &mac[4], &mac[5]) != 8) {
        fprintf(stderr, "linkemu: '%s' is no port; want NETNS=IF=MAC\n", text);
        exit(2);
    }
    memset(port, 0, sizeof *port);
    for (size_t i = 0; i < MAC_BYTES; i++)
        port->mac[i] = (unsigned char)mac[i];
    port->last = &port->first;
    port->fd = open_tap(netns, interface);
}

/* Bytes that the frame takes on the wire, as the frames that the receiver's card would have seen.
 */
static size_t wire_bytes(const unsigned char *data, size_t n_bytes)
{
    struct virtio_net_hdr header;
    size_t length = n_bytes - sizeof header, n_frames = 1;

    memcpy(&header, data, sizeof header);
    if (header.gso_type != VIRTIO_NET_HDR_GSO_NONE && header.gso_size > 0 &&
        length > header.hdr_len) {
        n_frames = (length - header.hdr_len + header.gso_size - 1) / header.gso_size;
        length += (n_frames - 1) * header.hdr_len;
    }
    length = length < ETHERNET_LEAST ? ETHERNET_LEAST : length;
    return length + n_frames * ETHERNET_EXTRA;
}

static struct port *find_port(struct emulator *e, const unsigned char *mac)
{
    for (size_t i = 0; i < e->n_ports; i++) {
        if (memcmp(e->ports[i].mac, mac, MAC_BYTES) == 0)
            return &e->ports[i];
    }
    return NULL;
}

/* Puts a frame that `from` has sent at t on its way, or drops it: unknown address, full queue. */
static void carry(struct emulator *e, struct port *from, const unsigned char *data, size_t n_bytes,
                  uint64_t t)
{
    const size_t on_wire = wire_bytes(data, n_bytes);
    const uint64_t takes = (uint64_t)((double)on_wire * e->ns_per_byte);
    const uint64_t leaves = from->up_free_ns > t ? from->up_free_ns : t;
    struct port *to = find_port(e, data + sizeof(struct virtio_net_hdr));
    uint64_t enters = leaves + e->delay_ns;
    struct frame *frame;

    from->up_free_ns = leaves + takes;
    if (to == NULL || to == from)
        return;
    if (to->queued + on_wire > e->queue_max) {
        to->dropped++;
        return;
    }
    frame = malloc(sizeof *frame + n_bytes);
    if (frame == NULL)
        fail("cannot allocate", "a frame");
    enters = to->down_free_ns > enters ? to->down_free_ns : enters;
    to->down_free_ns = enters + takes; /* both ends at once: the switch does not store whole ones */
    frame->next = NULL;
    frame->due_ns = to->down_free_ns;
    frame->wire_bytes = on_wire;
    frame->n_bytes = n_bytes;
    memcpy(frame->data, data, n_bytes);
    *to->last = frame;
    to->last = &frame->next;
    to->queued += on_wire;
}

/* Delivers what is due; returns when the next frame will be (UINT64_MAX: there is none). */
static uint64_t deliver(struct port *port)
{
    while (port->first != NULL && port->first->due_ns <= now_ns()) {
        struct frame *frame = port->first;

        if (write(port->fd, frame->data, frame->n_bytes) < 0)
            port->dropped++; /* the interface is down, or its host refuses the frame */
        port->queued -= frame->wire_bytes;
        port->first = frame->next;
        if (port->first == NULL)
            port->last = &port->first;
        free(frame);
    }
    return port->first == NULL ? UINT64_MAX : port->first->due_ns;
}

/* Takes what a port has sent, while it is not too far ahead; returns when it may go on. */
static uint64_t collect(struct emulator *e, struct port *port)
{
    static unsigned char data[FRAME_MAX];

    for (;;) {
        const uint64_t t = now_ns();
        ssize_t n;

        if (port->up_free_ns > t + AHEAD_NS)
            return port->up_free_ns - AHEAD_NS / 2;
        n = read(port->fd, data, sizeof data);
        if (n < (ssize_t)(sizeof(struct virtio_net_hdr) + 2 * MAC_BYTES))
            return 0;
        carry(e, port, data, (size_t)n, t);
    }
}

static _Noreturn void run(struct emulator *e)
{
    struct pollfd polls[PORTS_MAX];

    for (;;) {
        uint64_t next = UINT64_MAX, t;
        struct timespec wait;

        for (size_t i = 0; i < e->n_ports; i++) {
            const uint64_t again = collect(e, &e->ports[i]);

            polls[i] = (struct pollfd){again == 0 ? e->ports[i].fd : -1, POLLIN, 0};
            if (again != 0 && again < next)
                next = again;
        }
        for (size_t i = 0; i < e->n_ports; i++) {
            const uint64_t due = deliver(&e->ports[i]);

            next = due < next ? due : next;
        }
        t = now_ns();
        if (next <= t)
            continue;
        wait.tv_sec = (time_t)((next - t) / 1000000000u);
        wait.tv_nsec = (long)((next - t) % 1000000000u);
        (void)ppoll(polls, e->n_ports, next == UINT64_MAX ? NULL : &wait, NULL);
    }
}

/* A number in min..max; exits with one line when it is none. */
static double parse_number(const char *what, const char *text, double min, double max)
{
    char *end;
    const double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= min && value <= max)) {
        fprintf(stderr, "linkemu: %s wants %g..%g, got '%s'\n", what, min, max, text);
        exit(2);
    }
    return value;
}

int main(int argc, char **argv)
{
    static struct emulator e;
    const struct sched_param priority = {.sched_priority = 1};
    double rate, delay;

    if (argc < 5 || argc > 3 + PORTS_MAX) {
        fprintf(stderr, "usage: linkemu RATE_MBIT DELAY_US NETNS=IF=MAC... (2 to %d ports)\n",
                PORTS_MAX);
        return 2;
    }
    rate = parse_number("RATE_MBIT", argv[1], 0.1, 100000);
    delay = parse_number("DELAY_US", argv[2], 0, 10000000);
    e.ns_per_byte = 8000.0 / rate;
    e.delay_ns = (uint64_t)(delay * 1000.0);
    e.queue_max = QUEUE_LEAST + (size_t)(4.0 * delay * 1000.0 / e.ns_per_byte);
    e.n_ports = (size_t)argc - 3;
    for (size_t i = 0; i < e.n_ports; i++)
        open_port(&e.ports[i], argv[3 + i]);
    /* A wire does not wait for a processor; where the priority is refused, it does. */
    if (sched_setscheduler(0, SCHED_FIFO, &priority) != 0)
        fprintf(stderr, "linkemu: note: no real-time priority: %s\n", strerror(errno));
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    printf("ready\n");
    fflush(stdout);
    run(&e);
}
