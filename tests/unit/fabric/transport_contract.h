/* What every transport must do, as one group of test cases that runs over any of them.
 *
 * A test program of a transport fills a struct contract_setup and returns what
 * transport_contract_run returns. Test code only. */
#ifndef TESTS_UNIT_FABRIC_TRANSPORT_CONTRACT_H
#define TESTS_UNIT_FABRIC_TRANSPORT_CONTRACT_H

#include "fabric/transport.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct contract_setup {
    const struct transport_ops *ops;
    const char *listen[3]; /* of three ranks; with port 0, or names of a hub */
    const char *nowhere;   /* a legal address at which nobody listens */
    bool hub;              /* each case has a hub of its own; */
    bool sim;              /* this kind, with latency and rate */
    uint64_t latency_ns;
    double bytes_per_ns;
    bool strict_offers; /* an offer with any bit changed is refused; others may let some through */
    bool quarantines;   /* lanes closed with keep_lanes stay, while the peer lives, and are freed
                           when its transport is destroyed; otherwise only sums are checked */
    size_t n_messages;  /* of each direction in the long exchange */
};

/* Runs all cases; the number of those that failed. */
int transport_contract_run(const struct contract_setup *setup);

#endif
