/* Inside of the exchange: building a step's plan. */
#ifndef EXCHANGE_PLAN_H
#define EXCHANGE_PLAN_H

#include "base/limits.h"
#include "exchange/exchange.h"

/* Fills the plan's arrays, which have room for n_tokens * top_k pairs. */
void plan_build(struct exchange_plan *plan, const int32_t *experts, const float *weights,
                size_t n_tokens, size_t top_k, size_t n_experts);

#endif
