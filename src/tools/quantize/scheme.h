/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/scheme.h - what the names of --qformat mean.
 *
 * Purpose   A name says how weights are chosen (method), on which grid they lie, and how others, who follow the
 *           configuration, round activations.
 * Owner     Constant data, any thread.
 * Errors    UNSUPPORTED names a format that exists elsewhere and is not made here; INVALID_ARG a word that is none.
 */
#ifndef NRD_TOOLS_QUANTIZE_SCHEME_H
#define NRD_TOOLS_QUANTIZE_SCHEME_H

#include "base/error.h"
#include "tools/quantize/grid.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    NRD_QMETHOD_COPY,   /* nothing is quantized */
    NRD_QMETHOD_RTN,    /* round to nearest */
    NRD_QMETHOD_AWQ,
    NRD_QMETHOD_GPTQ,
    NRD_QMETHOD_SMOOTH, /* SmoothQuant */
} nrd_qmethod;

/* How those who follow the configuration round activations, to 8 bits. */
typedef enum {
    NRD_QROUND_NOT,
    NRD_QROUND_INT8,
    NRD_QROUND_E4M3,
} nrd_qround;

typedef struct nrd_qscheme {
    const char *name;
    const char *summary;
    nrd_qmethod method;
    nrd_qgrid grid;      /* group -1: a scale for each row; 0: groups, as --awq_block_size says; else so many columns */
    nrd_qround inputs;
    const char *format;  /* of compressed-tensors */
    bool static_inputs;  /* one calibrated scale for all tokens of an input, not one for each */
} nrd_qscheme;

nrd_error *nrd_qscheme_find(const char *name, nrd_qscheme *out) NRD_MUST_USE;
static inline bool nrd_qscheme_is_calibrated(const nrd_qscheme *s)
{
    return s->method > NRD_QMETHOD_RTN || s->static_inputs;
}

#endif
