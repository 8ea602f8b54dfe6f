/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/pack.h - a quantized module as tensors of compressed-tensors, or of GPTQ (pack_gptq.h).
 *
 * Purpose   "pack-quantized": weight_packed int32 [out, words] (codes along a row from the lowest bits of a word up),
 *           weight_scale [out, groups], weight_shape int64 [2], and with zero points weight_zero_point int32 [words,
 *           groups], packed along the rows. "int-quantized": weight int8, weight_scale [out, 1]. "float-quantized":
 *           weight E4M3, weight_scale [out, 1].
 * Owner     Pure functions, any thread; m's threads share the work.
 * Lifetime  Tensors own names and data.
 * Sources   neuralmagic/compressed-tensors, its compressors (facts of the format).
 */
#ifndef NRD_TOOLS_QUANTIZE_PACK_H
#define NRD_TOOLS_QUANTIZE_PACK_H

#include "base/error.h"
#include "base/str.h"
#include "formats/safetensors.h"
#include "tools/quantize/layer.h"

#include <stddef.h>
#include <stdint.h>

#define NRD_QPACK_WORDS "pack-quantized" /* as nrd_qscheme.format */
#define NRD_QPACK_FLOATS "float-quantized"

typedef struct nrd_qtensor {
    char *name;
    nrd_dtype dtype;
    int n_dims;
    int64_t dims[NRD_SAFETENSORS_MAX_DIMS];
    void *data;
    size_t bytes;
} nrd_qtensor;

enum { NRD_QTENSORS = 4 };

nrd_error *nrd_qpack(nrd_qmath *m, const nrd_qresult_module *y, const char *format, nrd_qtensor out[NRD_QTENSORS],
                     int *out_n) NRD_MUST_USE;
/* Floats as `dtype`, which is F32, F16 or BF16. *out owned by the caller. */
nrd_error *nrd_qpack_floats(const float *x, size_t n, nrd_dtype dtype, void **out) NRD_MUST_USE;
void nrd_qtensors_fini(nrd_qtensor *t, int n);

/* Modules that have one grid. */
typedef struct nrd_qpack_group {
    nrd_qgrid grid;
    nrd_qround inputs;  /* of those who follow the configuration */
    bool static_inputs; /* one scale for all tokens, a tensor of each module */
    const char **targets; /* names of modules; NULL: all */
    size_t n_targets;
    const char *format;   /* NULL: the folder's, which says enough */
} nrd_qpack_group;

/* format: of the folder; of groups with formats of their own it is mixed. The member quantization_config of config.json, without its name. ignored: names of modules that stay; an LM head that is not
 * quantized is one of them, also where it is the embedding and has no tensor. cache: the type that its scales are for; NONE:
 * there are none. */
void nrd_qpack_config(nrd_str *out, const char *format, const nrd_qpack_group *groups, size_t n_groups, const char *const *ignored,
                      size_t n_ignored, bool with_head, nrd_dtype cache);

#endif
