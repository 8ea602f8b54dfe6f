/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/smooth.h - scales for products whose inputs are rounded to 8 bits as well.
 *
 * Purpose   A column's input is divided by s, its weights are multiplied by it. SmoothQuant takes s = max|x|^a / max|w|^(1-a).
 *           The search goes on from there: it makes least what both roundings, to the nearest, are expected to do to the
 *           products, by all columns' scales at once.
 * Owner     One thread calls.
 * Sources   Xiao et al., SmoothQuant (ICML 2023); Kingma and Ba, Adam (ICLR 2015), for the steps.
 */
#ifndef NRD_TOOLS_QUANTIZE_SMOOTH_H
#define NRD_TOOLS_QUANTIZE_SMOOTH_H

#include "base/error.h"
#include "tools/quantize/input.h"
#include "tools/quantize/math.h"

#include <stdbool.h>

/* out_scales[cols], all above 0. */
nrd_error *nrd_smooth_scales(const nrd_qproducts *p, const nrd_qinput *in, double alpha, float *out_scales) NRD_MUST_USE;

typedef struct nrd_qsmoothing {
    bool one_input_scale;  /* all tokens have one; else each its own */
    bool one_weight_scale; /* all rows of a weight have one */
    bool gptq;             /* weights are not rounded to the nearest, and are less off */
} nrd_qsmoothing;

/* The same by search; in->rows must be there. out_error: what the products are expected to be off by, over what they would be
 * with alpha 0.5; 1 or less. */
nrd_error *nrd_smooth_search(nrd_qmath *m, const nrd_qproducts *p, const nrd_qinput *in, const nrd_qsmoothing *how,
                             float *out_scales, double *out_error) NRD_MUST_USE;

#endif
