/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/lanes.h - the loops that rounding spends its time in, for 16 rows at a time.
 *
 * Purpose   What is done to a row's columns one after the other is the same for all rows: 16 of them go through the columns
 *           together, a row a lane. The numbers are those of each row alone, whatever the processor.
 * Owner     Pure functions, any thread.
 */
#ifndef NRD_TOOLS_QUANTIZE_LANES_H
#define NRD_TOOLS_QUANTIZE_LANES_H

#include "tools/quantize/grid.h"

#include <stdint.h>

enum {
    NRD_QBLOCK = 128,    /* columns that are rounded together, before others are told */
    NRD_QLANES = 16,     /* rows */
};

/* One number of each row, a code or a zero, too. */
typedef float nrd_lanes __attribute__((vector_size(4 * NRD_QLANES)));

typedef struct nrd_lane_block {
    int64_t width, group;  /* columns; group: of move, at most so many share a scale */
    const float *corner;   /* [width][NRD_QBLOCK], and for move 7 numbers more that mean nothing */
    nrd_lanes x[NRD_QBLOCK], w[NRD_QBLOCK], codes[NRD_QBLOCK];
    nrd_lanes scale[NRD_QBLOCK], zero[NRD_QBLOCK]; /* of each column; of move: of each group */
} nrd_lane_block;

typedef double nrd_wide_lanes __attribute__((vector_size(8 * NRD_QLANES)));

typedef struct nrd_lane_ops {
    /* low and high get the least and the largest of x [n], and what they were. */
    void (*range)(const nrd_lanes *x, int64_t n, nrd_lanes *low, nrd_lanes *high);
    /* To each of n_tries sums is added what x [n] is off by with that scale and zero, squared and weighted. */
    void (*errors)(const nrd_qgrid *g, const nrd_lanes *x, int64_t n, const float *importance, int n_tries, const nrd_lanes *scales,
                   const nrd_lanes *zeros, nrd_wide_lanes *sums);
    void (*codes)(const nrd_qgrid *g, const nrd_lanes *x, int64_t n, const nrd_lanes *scale, const nrd_lanes *zero,
                  nrd_lanes *codes);
    /* Columns from the last to the first (gptq.h). x: what each is owed, then what it is off by. corner: the factor, turned. */
    void (*round)(const nrd_qgrid *g, nrd_lane_block *b);
    /* Codes move, and behind each group its scale where `scales` (refine.h). x: what is left; w: 0, then by how much less the weights
     * are off. corner: the raised matrix. */
    void (*move)(const nrd_qgrid *g, nrd_lane_block *b, bool scales);
} nrd_lane_ops;

/* Those for this processor. */
const nrd_lane_ops *nrd_lane_ops_best(void);

#endif
