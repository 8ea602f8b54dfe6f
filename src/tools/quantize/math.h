/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/math.h - matrix products of a device, and loops over the processor's threads.
 *
 * Purpose   Calibration and search are products of large matrices in float32: the device has them. Matrices are in the host's
 *           memory; of a device with its own they are copied there and back.
 * Owner     One thread calls; each() runs the function on several.
 * Errors    UNAVAILABLE: no memory or threads. UNSUPPORTED: no such device.
 */
#ifndef NRD_TOOLS_QUANTIZE_MATH_H
#define NRD_TOOLS_QUANTIZE_MATH_H

#include "base/error.h"
#include "nereid/device.h"

#include <stdint.h>

typedef struct nrd_qmath nrd_qmath;

/* device: as nrd_device_open takes it. n_threads 0: one for each core; of a device with memory of its own the share-th of n_shares gets its
 * part of them. */
nrd_error *nrd_qmath_open(nrd_qmath **out, const char *device, int32_t n_threads, int share, int n_shares) NRD_MUST_USE;
void nrd_qmath_close(nrd_qmath *m);
/* How many rows a product of large matrices should have at least, so that moving them takes little of its time. */
int64_t nrd_qmath_good_rows(const nrd_qmath *m);

bool nrd_qmath_is_far(const nrd_qmath *m); /* the device has memory of its own */
uint64_t nrd_qmath_free_bytes(const nrd_qmath *m); /* of it, now */
int nrd_qmath_threads(const nrd_qmath *m);

/* A matrix [rows][cols] that many products take; it is borrowed until unload. Zeroed: nothing to unload. */
typedef struct nrd_qmatrix {
    nrd_weight w;
    bool owned; /* by the device */
} nrd_qmatrix;
nrd_error *nrd_qmatrix_load(nrd_qmath *m, const float *w, int64_t rows, int64_t cols, nrd_qmatrix *out) NRD_MUST_USE;
/* y[n][rows] = x[n][cols] times its transpose. */
nrd_error *nrd_qmatrix_times(nrd_qmath *m, const nrd_qmatrix *w, const float *x, int64_t n, float *y) NRD_MUST_USE;
void nrd_qmatrix_unload(nrd_qmath *m, nrd_qmatrix *x);

/* A matrix [rows][cols] where the device computes; of a CPU that is the host's memory. Zeroed: nothing to free. */
typedef struct nrd_qplace {
    float *p;
    int64_t rows, cols;
} nrd_qplace;
nrd_error *nrd_qplace_new(nrd_qmath *m, int64_t rows, int64_t cols, nrd_qplace *out) NRD_MUST_USE; /* all 0 */
void nrd_qplace_free(nrd_qmath *m, nrd_qplace *x);
/* Rows to be read or changed; valid until the next call for the same slot, of NRD_QPLACE_SLOTS. What was changed is put back. */
enum { NRD_QPLACE_SLOTS = 3 };
nrd_error *nrd_qplace_rows(nrd_qmath *m, const nrd_qplace *x, int64_t row, int64_t n, int slot, float **out) NRD_MUST_USE;
/* The same without what they hold. */
nrd_error *nrd_qplace_room(nrd_qmath *m, const nrd_qplace *x, int64_t row, int64_t n, int slot, float **out) NRD_MUST_USE;
nrd_error *nrd_qplace_put(nrd_qmath *m, nrd_qplace *x, int64_t row, int64_t n, const float *rows) NRD_MUST_USE;
nrd_error *nrd_qplace_read(nrd_qmath *m, const nrd_qplace *x, float *out) NRD_MUST_USE; /* all of it */
/* *out: these bytes of the device's memory, in slot 0. */
nrd_error *nrd_qmath_fetch(nrd_qmath *m, const void *there, size_t bytes, const void **out) NRD_MUST_USE;
/* The same to be changed, until it is returned. */
nrd_error *nrd_qmath_take(nrd_qmath *m, void *there, size_t bytes, void **out) NRD_MUST_USE;
nrd_error *nrd_qmath_return(nrd_qmath *m, void *there, size_t bytes, const void *from) NRD_MUST_USE;
/* What is computed there: see nrd_matmul_args, on a CPU of float32. All are in the device's memory. */
nrd_error *nrd_qmath_add(nrd_qmath *m, const nrd_matmul_args *a) NRD_MUST_USE;

/* fn for ranges that together are [0, n), on all threads. */
void nrd_qmath_each(nrd_qmath *m, int64_t n, void (*fn)(void *user, int64_t from, int64_t to), void *user);
/* out[cols][rows] = x[rows][cols], the other way round. */
void nrd_qmath_turn(nrd_qmath *m, const float *x, int64_t rows, int64_t cols, float *out);

/* The sum over rows r of d[r] G d[r]: what products with inputs whose gram matrix (sum of x x^T) is G are off by, squared
 * and summed, where weights are off by d[rows][columns of G]. Not negative. */
nrd_error *nrd_qmath_error(nrd_qmath *m, const float *d, int64_t rows, const nrd_qmatrix *gram, double *out) NRD_MUST_USE;

#endif
