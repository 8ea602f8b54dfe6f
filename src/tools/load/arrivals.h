/* SPDX-License-Identifier: Apache-2.0
 * tools/load/arrivals.h - when requests of an open loop are sent.
 *
 * Purpose   In an open loop requests come when users come, whether or not earlier ones have been
 *           answered: with the same pause between them, as a Poisson process, or as a trace says.
 * Owner     One thread.
 * Units     Seconds since the first request may be sent.
 * Errors    INVALID_ARG: a line of the trace that cannot be read, with its number.
 * Lifetime  open/fini.
 */
#ifndef NRD_TOOLS_LOAD_ARRIVALS_H
#define NRD_TOOLS_LOAD_ARRIVALS_H

#include "base/error.h"
#include "tools/load/random.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct nrd_arrival {
    double at_s;
    int32_t n_in, n_out; /* tokens; 0: the trace does not say */
} nrd_arrival;

typedef struct nrd_arrivals {
    double rate; /* a second; not of a trace */
    bool is_constant;
    double last_s;
    nrd_random random;
    nrd_arrival *trace; /* [n_trace], owned; NULL: none */
    size_t n_trace, i_trace;
} nrd_arrivals;

/* Reads a trace: each line a number of seconds, or an object with "timestamp" (milliseconds, as in
 * published traces of services) and maybe "input_length" and "output_length". Times ascend; the
 * first one counts as 0. speed 2: twice as fast. At most 10 million lines. */
nrd_error *nrd_arrivals_read(nrd_arrivals *a, const char *path, double speed) NRD_MUST_USE;
void nrd_arrivals_start(nrd_arrivals *a, uint64_t seed); /* from the beginning */
/* The next one; INFINITY after the end of a trace. */
double nrd_arrivals_next(nrd_arrivals *a);
void nrd_arrivals_fini(nrd_arrivals *a);

#endif
