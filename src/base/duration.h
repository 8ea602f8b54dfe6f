/* SPDX-License-Identifier: Apache-2.0
 * base/duration.h - lengths of time as text: seconds, or as Go's time.ParseDuration writes them.
 * Owner     No state; any thread. */
#ifndef NRD_BASE_DURATION_H
#define NRD_BASE_DURATION_H

#include <stdbool.h>
#include <stdint.h>

#define NRD_DURATION_FOREVER UINT64_MAX

/* "300" (seconds), "5m", "1h30m", "1.5h", "500ms"; below 0 ("-1", "-1m"), or of more than 30 years:
 * NRD_DURATION_FOREVER. Nanoseconds. False: it is none; *out_ns stays. */
bool nrd_parse_duration(const char *text, uint64_t *out_ns);
uint64_t nrd_duration_of(double seconds); /* the same of a number */

#endif
