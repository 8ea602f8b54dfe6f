/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/grid.h - the numbers that a quantized weight can hold, and those nearest to given ones.
 *
 * Purpose   number = scale * (code - zero), with a scale (and a zero) for each group of columns of a row; or E4M3 or E2M1
 *           times a scale. Scales are numbers of scale_dtype, so that files hold them as they are.
 * Owner     Pure functions, any thread.
 * Lifetime  nrd_qrows owns its arrays.
 * Sources   Open Compute Project, Microscaling Formats (2023), for E2M1 and E8M0.
 */
#ifndef NRD_TOOLS_QUANTIZE_GRID_H
#define NRD_TOOLS_QUANTIZE_GRID_H

#include "base/error.h"
#include "nereid/dtype.h"

#include <stdbool.h>
#include <stdint.h>

#define NRD_QGRID_ROWS (-1)
#define NRD_QGRID_ALL (-1)

typedef struct nrd_qgrid {
    int bits;              /* of a code: 2 to 8 */
    bool symmetric;        /* zero is in the middle of the codes */
    bool is_float;         /* codes are E4M3 (8 bits) or E2M1 (4 bits), whose zero is 0 */
    int64_t group;         /* columns that share a scale; NRD_QGRID_ROWS: all of a row */
    int64_t row_group;     /* rows that share it, too; 0: one; NRD_QGRID_ALL: all */
    nrd_dtype scale_dtype; /* F32, F16 or BF16; U8: E8M0, a power of two; F8_E4M3: times scale_unit; NONE: not chosen yet */
    uint8_t least_zero;    /* that a file can hold; 0 or 1 */
    float scale_unit;
} nrd_qgrid;

typedef struct nrd_qrows {
    int64_t rows, cols, n_groups;
    uint8_t *codes; /* [rows, cols] */
    float *scales;  /* [rows, n_groups] */
    uint8_t *zeros; /* [rows, n_groups] */
} nrd_qrows;

nrd_error *nrd_qrows_init(nrd_qrows *q, const nrd_qgrid *g, int64_t rows, int64_t cols) NRD_MUST_USE;
void nrd_qrows_fini(nrd_qrows *q);

/* Scale and zero whose numbers fill [low, high], which holds 0. */
void nrd_qgrid_over(const nrd_qgrid *g, float low, float high, float *scale, uint8_t *zero);
/* A number of scale_dtype that is near, above 0 and finite. Powers of two: the one that cuts off less than rounding would. */
float nrd_qgrid_scale(const nrd_qgrid *g, float scale);
/* The scale that is best, of those that a file can hold, where a sum of squares has this slope and bend in it; *change: what it
 * grows by. False: it stays. */
bool nrd_qgrid_better_scale(const nrd_qgrid *g, float *scale, double slope, double bend, float *change);
uint8_t nrd_qgrid_code(const nrd_qgrid *g, float x, float scale, uint8_t zero);
float nrd_qgrid_number(const nrd_qgrid *g, uint8_t code, float scale, uint8_t zero);

/* Row groups [from, to) of w[q->rows][q->cols], each block of row_group rows and group columns with the scale that its range
 * fills. */
void nrd_qgrid_round_blocks(const nrd_qgrid *g, const float *w, int64_t from, int64_t to, nrd_qrows *q);
/* Rows that share scales, and how many such groups q has. */
int64_t nrd_qgrid_row_group(const nrd_qgrid *g, const nrd_qrows *q);
int64_t nrd_qgrid_n_row_groups(const nrd_qgrid *g, const nrd_qrows *q);
/* out[cols] */
void nrd_qgrid_row(const nrd_qgrid *g, const nrd_qrows *q, int64_t row, float *out);

#endif
