/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/layer_internal.h - a layer while it is quantized, for the files that move scales in it. */
#ifndef NRD_TOOLS_QUANTIZE_LAYER_INTERNAL_H
#define NRD_TOOLS_QUANTIZE_LAYER_INTERNAL_H

#include "tools/quantize/gptq.h"
#include "tools/quantize/layer.h"

typedef struct nrd_qwork {
    nrd_qmath *math;
    const nrd_qsettings *settings;
    const nrd_model_spec *spec; /* as wide as this layer */
    const nrd_qlayer *layer;
    nrd_qinput *inputs;
    nrd_qcache *cache; /* NULL: none is calibrated */
    nrd_qresult *out;
    nrd_gptq factor; /* of the input whose modules are being rounded */
} nrd_qwork;

/* ---- layer_floats.c ---- */

/* A tensor as float32, which the caller owns; turned: [in, out] becomes [out, in]. INVALID_ARG: a number is not finite; UNSUPPORTED: its type is not read. */
nrd_error *nrd_qwork_read(nrd_qmath *m, const nrd_src_tensor *src, bool turned, float **out) NRD_MUST_USE;
/* The numbers of a tensor of this layer that takes a scale; they are written instead of the source's. */
nrd_error *nrd_qwork_floats(nrd_qwork *w, const nrd_src_tensor *src, bool turned, float **out) NRD_MUST_USE;
/* Row r of what makes an input, over s[first + r]; nothing where the maker has no source. */
nrd_error *nrd_qwork_divide(nrd_qwork *w, const nrd_qmaker *maker, const float *s) NRD_MUST_USE;

/* ---- layer_cache.c ---- */

/* Makes keys even, and where no method scales what goes into the product behind attention the values as well. */
nrd_error *nrd_qwork_even_cache(nrd_qwork *w, bool values) NRD_MUST_USE;
/* The scales of what is left. */
nrd_error *nrd_qwork_scale_cache(nrd_qwork *w) NRD_MUST_USE;

#endif
