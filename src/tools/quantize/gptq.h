/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/gptq.h - rounding that lets later columns make up for what earlier ones are off by.
 *
 * Purpose   Columns are rounded one after the other, those with the largest inputs first; what a column's rounding changes
 *           in the products is taken back by the columns that are still free. Groups stay groups of neighbouring columns,
 *           with scales that are chosen before, so that files need no order of columns.
 * Owner     One thread calls.
 * Errors    INVALID_ARG: inputs that are no numbers. UNAVAILABLE: no memory, of the host or the device.
 * Sources   Frantar et al., GPTQ (ICLR 2023). That its steps are those of Babai's nearest plane, by the factor of the gram
 *           matrix itself: Chen et al., The Geometry of LLM Quantization (2025).
 */
#ifndef NRD_TOOLS_QUANTIZE_GPTQ_H
#define NRD_TOOLS_QUANTIZE_GPTQ_H

#include "base/error.h"
#include "tools/quantize/grid.h"
#include "tools/quantize/math.h"

#include <stdbool.h>
#include <stdint.h>

/* Of what 8 bits to the nearest are off by, squared, this rounding leaves: 0.14 to 0.31 by kinds of modules of Gemma 3 270M. */
#define NRD_GPTQ_SHARE 0.3

/* Of an input, for all weights that read it. */
typedef struct nrd_gptq {
    int64_t n;
    int32_t *order;    /* [n] columns; the last one is rounded first */
    float *importance; /* [n] of each column: the diagonal of the gram matrix */
    float *counts;     /* [n] when the range of a group is chosen: that, and the mean of all, since texts to come use other columns */
    float *raise;      /* [n] what was added to that for the factor, above 0 */
    nrd_qplace factor; /* [n, n] upper U with U^T U = the raised gram matrix, in that order; what is below the diagonal means nothing */
    float *corners;    /* [blocks, NRD_QBLOCK, NRD_QBLOCK] U on the diagonal, turned: row k has U[0 .. k][k], then zeros */
} nrd_gptq;

/* damping: of the mean of the diagonal, is added to it, besides a tenth of each column's own; it grows tenfold as often as the
 * matrix has no factor. */
nrd_error *nrd_gptq_init(nrd_gptq *q, nrd_qmath *m, const float *gram, int64_t n, double damping,
                         bool by_size) NRD_MUST_USE;
void nrd_gptq_fini(nrd_gptq *q, nrd_qmath *m);

/* w[rows][n] into out, which is init'ed for the same shape. */
nrd_error *nrd_gptq_round(const nrd_gptq *q, nrd_qmath *m, const nrd_qgrid *g, const float *w, int64_t rows,
                          nrd_qrows *out) NRD_MUST_USE;

#endif
