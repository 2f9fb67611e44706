/* Naming rules of metrics and labels, as Prometheus' own linter has them. Inner header of the room.
 */
#ifndef METRIC_NAME_H
#define METRIC_NAME_H

#include "metric/metric.h"

/* OK, or FERRY_ERR_ARG / FERRY_ERR_LIMIT with the rule that `spec` breaks, in name, help, labels or
 * bounds. Looks at nothing but spec. */
enum ferry_status metric_spec_check(const struct metric_spec *spec,
                                    struct ferry_error *err) FERRY_MUST_CHECK;

#endif
