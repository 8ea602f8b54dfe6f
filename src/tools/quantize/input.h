/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/input.h - what calibration keeps of the vectors that go into a product.
 *
 * Purpose   Sums over all tokens: enough for most methods here, whatever the number of tokens. What rounding does to a token itself
 *           they do not tell; for that some tokens are kept.
 * Owner     One thread adds; then any may read.
 */
#ifndef NRD_TOOLS_QUANTIZE_INPUT_H
#define NRD_TOOLS_QUANTIZE_INPUT_H

#include "base/error.h"
#include "tools/quantize/math.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_qinput {
    int64_t cols, n_tokens; /* n_tokens 0: nothing was seen, the arrays are NULL */
    float *gram;    /* [cols, cols] sum of x x^T */
    float *sum_abs; /* [cols] sum of |x| */
    float *max_abs; /* [cols] */
    bool keeps_rows; /* set before the first add: */
    float *rows;     /* [n_rows, cols] some of the x, evenly, the first of a text among them; else NULL */
    int64_t n_rows;
    /* private: the gram matrix until the last add, on a device with memory of its own; else rows that are not in it yet */
    nrd_qplace sums;
    float *held; /* [nrd_qmath_good_rows, cols], or NULL */
    int64_t n_held;
    int64_t row_step; /* every so many a row is kept */
} nrd_qinput;

/* x[n][cols] of dtype (F32; on a GPU F16 or BF16 too), in the device's memory; the first call says how many columns there are. */
nrd_error *nrd_qinput_add(nrd_qinput *in, nrd_qmath *m, const void *x, nrd_dtype dtype, int64_t n, int64_t cols) NRD_MUST_USE;
/* Behind the last add, before the sums are read. */
nrd_error *nrd_qinput_finish(nrd_qinput *in, nrd_qmath *m) NRD_MUST_USE;
/* As if each x had been divided by s[cols]. */
void nrd_qinput_divide(nrd_qinput *in, nrd_qmath *m, const float *s);
void nrd_qinput_fini(nrd_qinput *in, nrd_qmath *m);
enum { NRD_QINPUT_ROWS = 512 }; /* at most that many are kept */
double nrd_qinput_bytes(const nrd_qmath *m, int64_t cols, bool keeps_rows); /* that one takes, 0 columns: none */

/* Products that read one input: their weights [rows][cols], and which columns must get the same scale because what makes
 * them is used several times (queries that share a value head). */
enum { NRD_QPRODUCTS_MAX = 8 };
typedef struct nrd_qproducts {
    int n;
    const float *w[NRD_QPRODUCTS_MAX];
    int64_t rows[NRD_QPRODUCTS_MAX];
    int64_t cols;
    const int32_t *shared; /* [cols] number of the scale below n_shared; NULL: each column its own */
    int64_t n_shared;
} nrd_qproducts;

#endif
