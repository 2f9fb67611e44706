/* Ranks as processes: this side's transport with one connection per peer process, and the peers,
 * which are this test program started again. Test code only. */
#ifndef TESTS_UNIT_FABRIC_UCX_PEER_H
#define TESTS_UNIT_FABRIC_UCX_PEER_H

#include "../unit.h"
#include "base/clock.h"
#include "fabric/transport.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { PEER_RING = 64 << 10, PEER_LINKS = 8 };
#ifdef FERRY_SANITIZED
enum { RSS_SLACK_KIB = 1 << 20 }; /* a sanitizer keeps what was freed */
#else
enum { RSS_SLACK_KIB = 2048 };
#endif

/* A connection of either side. */
struct link {
    struct side *side;
    struct transport_conn *conn; /* NULL: free */
    bool open, ready;            /* connected; lanes are there */
    _Atomic bool lost;           /* with `reason` before it */
    bool offered;
    size_t n_pings; /* control messages other than the offer */
    uint64_t lost_ns;
    char reason[200];
    /* Traffic: numbered messages, filled by number. */
    uint64_t next_out[LANE_N_CHANNELS], next_in[LANE_N_CHANNELS], n_bad;
};

struct side {
    struct transport *transport;
    struct lane_bell *bell;
    char address[TRANSPORT_ADDRESS_MAX];
    struct link links[PEER_LINKS];
    bool bare;           /* no lanes are offered */
    bool empty_is_legal; /* of control messages */
    bool echo;           /* control messages go back */
    size_t ring_bytes;
};

/* Opens this side; fails the test when it cannot. */
void side_open(struct side *side);
void side_close(struct side *side);
void side_connect(struct side *side, const char *address);
void link_close(struct link *link, bool keep_lanes);
/* The only open link that is ready and not lost, or NULL. */
struct link *side_ready(struct side *side);

/* Sends and takes what can be sent and taken now; true when anything was. */
bool link_pump(struct link *link);

/* Two sides in this process with a link between them, their lanes ready; and polls of both. */
struct both {
    struct side near, far; /* near has connected */
    struct link *out, *in; /* near's and far's end */
};
void both_open(struct both *both);
void both_close(struct both *both);
void both_turn(struct both *both);
#define BOTH_WAIT(both, condition)                                       \
    do {                                                                 \
        uint64_t wait_end = clock_now_ns() + 5000000000ull * patience(); \
        while (!(condition)) {                                           \
            if (clock_now_ns() > wait_end)                               \
                fail_msg("not within 5 s: %s", #condition);              \
            both_turn(both);                                             \
        }                                                                \
    } while (0)

/* Starts this program as `peer MODE ADDRESS`. */
pid_t peer_start(const char *mode, const char *address);
/* kill -9 and reap. */
void peer_kill(pid_t pid);
/* In main: runs the peer when the arguments say so and does not return. */
void peer_main(int argc, char **argv);

/* Whether a process exists that the watch names; open descriptors; RssAnon in KiB; files of UCX in
 * /dev/shm; all of this process. */
size_t count_descriptors(void);
size_t rss_anon_kib(void);
size_t count_shm_files(void);
/* Longer under sanitizers. */
uint64_t patience(void);

/* What stands where, to stderr: for a test that fails. */
void side_print(const struct side *side);

/* Polls until the condition holds; fails the test at the deadline. */
#define SIDE_WAIT(side, ms, condition)                                               \
    do {                                                                             \
        uint64_t wait_end = clock_now_ns() + 1000000ull * (uint64_t)(ms)*patience(); \
        while (!(condition)) {                                                       \
            if (clock_now_ns() > wait_end) {                                         \
                side_print(side);                                                    \
                fail_msg("not within %d ms: %s", (int)(ms), #condition);             \
            }                                                                        \
            transport_ucx.poll((side)->transport, 1000000);                          \
        }                                                                            \
    } while (0)

#endif
