/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/refine.h - rounded weights moved to where their products are least off.
 *
 * Purpose   What a row is off by in all its products, squared, is d G d: d what its weights are off by, G the gram matrix of
 *           the inputs. Rounding column by column (gptq.h) sees each column once, with scales from before. Here both move
 *           in turn: each code to the one that is best while all others stay, each scale to the least squares of its group.
 *           Neither step makes the sum larger.
 * Owner     One thread calls.
 * Errors    UNAVAILABLE: no memory.
 * Sources   Behdin et al., QuantEase (2023), for coordinate descent over codes. Scales: least squares, as for any basis.
 */
#ifndef NRD_TOOLS_QUANTIZE_REFINE_H
#define NRD_TOOLS_QUANTIZE_REFINE_H

#include "base/error.h"
#include "tools/quantize/grid.h"
#include "tools/quantize/math.h"

#include <stdint.h>

/* w [q->rows, q->cols] are the weights that q stands for; gram [cols, cols]; raise [cols], all above 0, is added to its
 * diagonal: what calibration saw little of keeps weights near to what they were. q is changed; its zeros stay. */
nrd_error *nrd_qrefine(nrd_qmath *m, const nrd_qgrid *g, const float *w, const float *gram, const float *raise,
                       nrd_qrows *q) NRD_MUST_USE;

#endif
