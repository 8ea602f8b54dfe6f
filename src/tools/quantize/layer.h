/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/layer.h - the modules of one layer, quantized.
 *
 * Purpose   Reads the layer's weights as float32, moves scales between what makes an input and what reads it, rounds, and
 *           says how far off each module is. Needs the memory of one layer in float32, three times.
 * Owner     One thread calls.
 * Errors    INVALID_ARG names the tensor: numbers that are none.
 */
#ifndef NRD_TOOLS_QUANTIZE_LAYER_H
#define NRD_TOOLS_QUANTIZE_LAYER_H

#include "base/error.h"
#include "nereid/dtype.h"
#include "tools/quantize/cache.h"
#include "tools/quantize/grid.h"
#include "tools/quantize/input.h"
#include "tools/quantize/math.h"
#include "tools/quantize/modules.h"
#include "tools/quantize/scheme.h"

#include <stdbool.h>
#include <stddef.h>

struct nrd_qmix;

typedef struct nrd_qsettings {
    nrd_qscheme scheme;
    const struct nrd_qmix *mix; /* which modules are as int8_wo instead, or stay (mix.h); NULL: none */
    nrd_qgrid wide;    /* of those that get 8 bits */
    bool mixes_inputs; /* of 8 bits: those of the mix are as int8_wo, whose inputs are not rounded */
    double alpha;    /* SmoothQuant; below 0: scales are searched, and inputs have rows */
    double damping;  /* GPTQ */
    bool by_size;    /* GPTQ: columns with large inputs first */
    bool gptq;       /* SmoothQuant: GPTQ's rounding behind its scales */
    nrd_dtype cache_dtype; /* I8 or F8_E4M3: of the cache that scales are made for; NONE: of none */
} nrd_qsettings;

typedef struct nrd_qresult_module {
    const nrd_qmodule *module;
    float *w; /* [rows, cols] used on the way; NULL behind nrd_qlayer_quantize */
    nrd_qrows rows;
    nrd_qgrid grid;
    bool keeps_inputs; /* others of the format round theirs, this one has weights of 8 bits alone */
    float input_scale; /* of activations, where all tokens have one; 0: none */
    double error; /* of the products, over all inputs seen: |off|^2 / |result|^2; without inputs that of the weights */
    double power; /* |result|^2 over all inputs seen; without inputs |weights|^2 */
} nrd_qresult_module;

typedef struct nrd_qresult_tensor { /* what took a scale, and is not quantized */
    const nrd_src_tensor *src;
    bool turned;
    float *data; /* turned: [out, in] all the same */
} nrd_qresult_tensor;

typedef struct nrd_qresult {
    nrd_qresult_module *modules;
    size_t n;
    nrd_qresult_tensor *tensors;
    size_t n_tensors;
    float *cache_scales;   /* [2, n_cache_heads] of the layer's cache: of heads' keys, then of their values; NULL: none */
    int32_t n_cache_heads;
} nrd_qresult;

/* Modules [first, first + n) of q. layer: theirs, NULL for those of none. inputs [q->n_inputs], changed; NULL where
 * nothing was calibrated. cache: changed; NULL where no scales of a cache are wanted. */
nrd_error *nrd_qlayer_quantize(nrd_qresult *out, nrd_qmath *m, const nrd_qsettings *s, const nrd_qmodules *q, size_t first,
                               size_t n, const nrd_qlayer *layer, nrd_qinput *inputs, nrd_qcache *cache) NRD_MUST_USE;
void nrd_qresult_fini(nrd_qresult *r);

#endif
