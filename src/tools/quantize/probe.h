/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/probe.h - inputs of one product as they are behind rounding, where the product reads them.
 *
 * Purpose   While the float model runs, one product's input gets the numbers that rounding to 8 bits would leave, so that what the model
 *           then says tells what that rounding costs.
 * Owner     Pure functions, any thread (nrd_qprobe_round: that of its nrd_qmath).
 * Errors    UNAVAILABLE: no memory.
 */
#ifndef NRD_TOOLS_QUANTIZE_PROBE_H
#define NRD_TOOLS_QUANTIZE_PROBE_H

#include "base/error.h"
#include "nereid/executor.h"
#include "tools/quantize/math.h"
#include "tools/quantize/scheme.h"

#include <stdint.h>

/* Rounding moves a number by so many times what it would: what the model says must move by more than the rounding of its own type, and
 * the divergence grows with the square. */
#define NRD_QPROBE_BY 4.0f

typedef struct nrd_qprobe {
    int32_t layer;
    nrd_exec_product product;
    nrd_qround how;
    const float *scales; /* [cols] that inputs are divided by before they are rounded */
    float most;          /* the largest number, so divided, where all tokens have one step; 0: each has its own */
} nrd_qprobe;

/* x to the nearest number of steps. */
float nrd_qprobe_number(nrd_qround how, float x, float step);
/* The step of inputs whose largest number is `most`. */
float nrd_qprobe_step(nrd_qround how, float most);
/* x[n][cols] of dtype in the device's memory, changed there. */
nrd_error *nrd_qprobe_round(const nrd_qprobe *p, nrd_qmath *m, void *x, nrd_dtype dtype, int64_t n, int64_t cols) NRD_MUST_USE;

#endif
