/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/nearest.h - rows of weights to their nearest numbers, fitted group by group.
 *
 * Owner     Pure functions, any thread.
 */
#ifndef NRD_TOOLS_QUANTIZE_NEAREST_H
#define NRD_TOOLS_QUANTIZE_NEAREST_H

#include "tools/quantize/grid.h"

/* x [n][q->cols] becomes rows [row, row + n) of q. Without importance the range of a group fills the grid. With it ([q->cols], none
 * negative) smaller ranges are tried, too, and the one is taken whose errors, squared and weighted, are least. */
void nrd_qrows_round(const nrd_qgrid *g, const float *x, const float *importance, int64_t row, int64_t n, nrd_qrows *q);

#endif
