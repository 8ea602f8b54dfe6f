/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/awq.h - scales that protect the columns which matter.
 *
 * Purpose   A column that is multiplied by s before it is rounded, and whose input is divided by s, is rounded s times as
 *           finely. AWQ takes s = (mean |x|)^a and looks for the exponent a in [0, 1) with which the products are least
 *           off.
 * Owner     Pure functions, any thread (AWQ: that of its nrd_qmath).
 * Sources   Lin et al., AWQ (MLSys 2024).
 */
#ifndef NRD_TOOLS_QUANTIZE_AWQ_H
#define NRD_TOOLS_QUANTIZE_AWQ_H

#include "base/error.h"
#include "tools/quantize/grid.h"
#include "tools/quantize/input.h"
#include "tools/quantize/math.h"

/* out_scales[cols], all above 0. out_exponent: the a that was taken; 0: no scale is better than one of these. */
nrd_error *nrd_awq_scales(nrd_qmath *m, const nrd_qgrid *g, const nrd_qproducts *p, const nrd_qinput *in,
                          float *out_scales, double *out_exponent) NRD_MUST_USE;

/* ---- scales of any method (smooth.h) ---- */

/* Columns that share a scale get the mean of theirs, v[cols]. */
nrd_error *nrd_awq_share(const nrd_qproducts *p, float *v) NRD_MUST_USE;
/* The geometric mean of s[in->cols] becomes 1, so that neither weights nor inputs leave the range of 16 bits, and a norm that keeps its
 * numbers less 1 keeps them finely. Columns that no input reaches have the least of all scales and do not count: a few of them
 * would move all others far from 1. */
void nrd_awq_normalize(float *s, const nrd_qinput *in);

#endif
