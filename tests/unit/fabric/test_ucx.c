/* The transport `ucx` under the contract of all transports: with lanes in shared memory, and with
 * lanes that travel over TCP. */
#include "transport_contract.h"

#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    struct contract_setup setup = {
        .ops = &transport_ucx,
        .listen = {"127.0.0.1:0", "localhost:0", "127.0.0.1:0"},
        .nowhere = "127.0.0.1:1",
        .n_messages = 100000,
    };

    int n_failed = transport_contract_run(&setup);
    const struct contract_setup six = {
        .ops = &transport_ucx,
        .listen = {"[::1]:0", "[::1]:0", "[::1]:0"},
        .nowhere = "[::1]:1",
        .n_messages = 1000,
    };
    (void)printf("now over IPv6\n");
    n_failed += transport_contract_run(&six);
    (void)setenv("FERRY_FABRIC_NO_SHM", "1", 1);
    (void)printf("now over TCP\n");
    return n_failed + transport_contract_run(&setup);
}
