/* What the kernel knows of this process, read when the page is: memory, processor time,
 * descriptors, age.
 *
 * Why here: under the names that every Prometheus client uses, so that stock boards work. Must not
 * know what the process does. */
#ifndef OBSERVE_PROCESS_H
#define OBSERVE_PROCESS_H

#include "observe/exposition.h"

/* Appends process_* and ferry_uptime_seconds. What cannot be read is left out, never 0. Any
 * thread. */
void process_expose(struct exposition *e);

/* ---- inside, for tests ---- */

/* A value of a file in the manner of /proc/self/status ("VmRSS:   12 kB"), in bytes; NaN: no such
 * line or no number in it. */
double process_status_bytes(const char *text, const char *name);

/* Field `number` (from 1) of a file in the manner of /proc/self/stat, whose second field is a name
 * in brackets that may hold anything; NaN: no such field or no number. Fields 1 and 2 are not for
 * asking. */
double process_stat_field(const char *text, size_t number);

#endif
