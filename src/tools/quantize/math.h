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
#include "nereid/device.h"

#include <stdint.h>

typedef struct nrd_qmath nrd_qmath;

nrd_error *nrd_qmath_open(nrd_qmath **out, int32_t n_threads) NRD_MUST_USE; /* 0: one for each core */
void nrd_qmath_close(nrd_qmath *m);
/* Rows of a product at a time; with fewer, moving large matrices takes more of its time. */
enum { NRD_QMATH_ROWS = 512 };

/* A matrix [rows][cols] that many products take; it is borrowed until unload. Zeroed: nothing to unload. */
typedef struct nrd_qmatrix {
    nrd_weight w;
    bool owned; /* by the device */
} nrd_qmatrix;
nrd_error *nrd_qmatrix_load(nrd_qmath *m, const float *w, int64_t rows, int64_t cols, nrd_qmatrix *out) NRD_MUST_USE;
/* y[n][rows] = x[n][cols] times its transpose. */
nrd_error *nrd_qmatrix_times(nrd_qmath *m, const nrd_qmatrix *w, const float *x, int64_t n, float *y) NRD_MUST_USE;
void nrd_qmatrix_unload(nrd_qmath *m, nrd_qmatrix *x);

/* y[n][rows] = x[n][cols] times the transpose of w[rows][cols]. */
nrd_error *nrd_qmath_product(nrd_qmath *m, const float *x, int64_t n, const float *w, int64_t rows, int64_t cols,
                             float *y) NRD_MUST_USE;
/* fn for ranges that together are [0, n), on all threads. */
void nrd_qmath_each(nrd_qmath *m, int64_t n, void (*fn)(void *user, int64_t from, int64_t to), void *user);

/* The sum over rows r of d[r] G d[r]: what products with inputs whose gram matrix (sum of x x^T) is G are off by, squared
 * and summed, where weights are off by d[rows][columns of G]. Not negative. */
nrd_error *nrd_qmath_error(nrd_qmath *m, const float *d, int64_t rows, const nrd_qmatrix *gram, double *out) NRD_MUST_USE;

#endif
