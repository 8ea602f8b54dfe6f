/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/workers.h - threads that share the ranges of a loop, and wait between loops.
 *
 * Purpose   A layer has thousands of short loops: threads that are made for each would take longer than the loops.
 * Owner     One thread at a time calls.
 * Errors    None behind open: with fewer threads than asked for it takes longer.
 */
#ifndef NRD_TOOLS_QUANTIZE_WORKERS_H
#define NRD_TOOLS_QUANTIZE_WORKERS_H

#include "base/error.h"

#include <stdint.h>

typedef struct nrd_qworkers nrd_qworkers;

nrd_error *nrd_qworkers_open(nrd_qworkers **out, int32_t n_threads) NRD_MUST_USE; /* the caller is one of them */
void nrd_qworkers_close(nrd_qworkers *w);                                         /* NULL is fine */
/* fn for ranges that together are [0, n), on all threads. */
void nrd_qworkers_each(nrd_qworkers *w, int64_t n, void (*fn)(void *user, int64_t from, int64_t to), void *user);

#endif
