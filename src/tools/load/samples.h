/* SPDX-License-Identifier: Apache-2.0
 * tools/load/samples.h - many measured values and what is said of them.
 *
 * Purpose   Collects values while a load runs; sorts them once at the end. Percentiles are those of the
 *           nearest rank (sorted[ceil(p * n) - 1]), so that each is a value that was really measured.
 * Owner     One thread.
 * Units     Whatever the caller adds; load tools add milliseconds.
 */
#ifndef NRD_TOOLS_LOAD_SAMPLES_H
#define NRD_TOOLS_LOAD_SAMPLES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct nrd_samples {
    float *v; /* owned */
    size_t n, cap;
    bool is_sorted;
} nrd_samples;

void nrd_samples_add(nrd_samples *s, double v);
void nrd_samples_fini(nrd_samples *s);
/* percent 0..100; 0: the smallest. 0 where there are none. Sorts. */
double nrd_samples_at(nrd_samples *s, double percent);
double nrd_samples_mean(const nrd_samples *s);
double
nrd_samples_deviation(const nrd_samples *s); /* of these values, not an estimate for others */

#endif
