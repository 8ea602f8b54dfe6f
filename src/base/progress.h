/* SPDX-License-Identifier: Apache-2.0
 * base/progress.h - a bar with rate and time left for conversion, build, download and calibration.
 * On a terminal the line is redrawn at most 10 times a second; elsewhere there is a line every 10 seconds
 * and one at the end.
 * Owner: one thread. All calls accept NULL, which is also what a bar is without memory: nothing is drawn. */
#ifndef NRD_BASE_PROGRESS_H
#define NRD_BASE_PROGRESS_H

#include <stdint.h>

typedef struct nrd_progress nrd_progress;

nrd_progress *nrd_progress_new(const char *label, uint64_t total_bytes); /* to stderr */
nrd_progress *nrd_progress_new_of(const char *label, uint64_t total, const char *unit); /* "tokens" instead of bytes */
void nrd_progress_add(nrd_progress *p, uint64_t bytes);
void nrd_progress_skip(nrd_progress *p, uint64_t bytes); /* done before: they count, but not for the rate */
void nrd_progress_done(nrd_progress *p); /* prints the last state and frees */

#endif
