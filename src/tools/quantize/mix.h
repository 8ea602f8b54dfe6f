/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/mix.h - which modules get 8 bits where most get 4; where most get 8, which stay as they are, or have inputs that do.
 *
 * Purpose   A budget of bits a weight is spent where it helps most. Of inputs of 8 bits the model itself says what rounding costs
 *           (probe.h), where there are no experts; else the calibration says what each product is off by with
 *           weights to the nearest, as a share of its result, and of 8 bits with its inputs rounded as well, behind
 *           SmoothQuant's scales; how much that matters is estimated by how large what its block
 *           (attention, or MLP) adds, behind the norm where one follows it, is beside all that blocks added before. Most error for a weight goes first. Modules
 *           that read one input are chosen together, and all experts of a layer, so that their weights can stay one matrix.
 * Owner     One thread chooses; then any may read.
 * Errors    INVALID_ARG: a budget that the narrow format alone exceeds. Else what the calibration says.
 */
#ifndef NRD_TOOLS_QUANTIZE_MIX_H
#define NRD_TOOLS_QUANTIZE_MIX_H

#include "base/error.h"
#include "tools/quantize/calibrate.h"
#include "tools/quantize/layer.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct nrd_qmix {
    bool *wide;    /* [n_layers, NRD_PRODUCTS] */
    int wide_bits; /* 8: as int8_wo, or 16: those stay as they are */
    size_t n, n_wide; /* products that have modules; those that are wide */
    double bits;   /* a weight, scales and zero points counted; a number of inputs, where that is what they differ in */
} nrd_qmix;

/* s: the settings that the others are quantized with. c keeps rows of inputs where s rounds inputs to 8 bits beside weights of 8;
 * then its statistics are forgotten behind it, so that the layers' own begin from what the model says. */
nrd_error *nrd_qmix_choose(nrd_qmix *out, nrd_qmath *m, const nrd_qsettings *s, const nrd_qmodules *q, nrd_qcalibration *c,
                           double bits) NRD_MUST_USE;
void nrd_qmix_fini(nrd_qmix *m);

/* The product that a module belongs to; -1: to none whose inputs are known. */
int nrd_qmix_product_of(const nrd_qmodule *y);
/* Whether a module is as int8_wo instead, and whether it stays as it is. m NULL: no. */
bool nrd_qmix_is_wide(const nrd_qmix *m, const nrd_qmodule *y);
bool nrd_qmix_leaves(const nrd_qmix *m, const nrd_qmodule *y);

#endif
