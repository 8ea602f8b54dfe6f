/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/math.h - matrix products of the CPU device, and loops over its threads.
 *
 * Purpose   Calibration and search are products of large matrices in float32: the device has them.
 * Owner     One thread calls; each() runs the function on several.
 * Errors    UNAVAILABLE: no memory or threads.
 */
#ifndef NRD_TOOLS_QUANTIZE_MATH_H
#define NRD_TOOLS_QUANTIZE_MATH_H

#include "base/error.h"

#include <stdint.h>

typedef struct nrd_qmath nrd_qmath;

nrd_error *nrd_qmath_open(nrd_qmath **out, int32_t n_threads) NRD_MUST_USE; /* 0: one for each core */
void nrd_qmath_close(nrd_qmath *m);

/* y[n][rows] = x[n][cols] times the transpose of w[rows][cols]. */
nrd_error *nrd_qmath_product(nrd_qmath *m, const float *x, int64_t n, const float *w, int64_t rows, int64_t cols,
                             float *y) NRD_MUST_USE;
/* fn for ranges that together are [0, n), on all threads. */
void nrd_qmath_each(nrd_qmath *m, int64_t n, void (*fn)(void *user, int64_t from, int64_t to), void *user);

/* The sum over rows r of d[r] G d[r]: what products with inputs whose gram matrix (sum of x x^T) is G are off by, squared
 * and summed, where weights are off by d[rows][cols]. Not negative. */
nrd_error *nrd_qmath_error(nrd_qmath *m, const float *d, int64_t rows, const float *gram, int64_t cols,
                           double *out) NRD_MUST_USE;

#endif
