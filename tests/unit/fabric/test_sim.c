/* The transport `sim` under the contract of all transports. */
#include "transport_contract.h"

int main(void)
{
    const struct contract_setup setup = {
        .ops = &transport_sim,
        .listen = {"alpha", "beta", "gamma"},
        .nowhere = "nobody",
        .hub = true,
        .sim = true,
        .latency_ns = 20000,
        .bytes_per_ns = 0.125,
        .strict_offers = true,
        .n_messages = 20000,
    };

    return transport_contract_run(&setup);
}
