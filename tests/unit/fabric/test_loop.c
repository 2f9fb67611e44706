/* The transport `loop` under the contract of all transports. */
#include "transport_contract.h"

int main(void)
{
    const struct contract_setup setup = {
        .ops = &transport_loop,
        .listen = {"alpha", "beta", "gamma"},
        .nowhere = "nobody",
        .hub = true,
        .strict_offers = true,
        .quarantines = true,
        .n_messages = 100000,
    };

    return transport_contract_run(&setup);
}
