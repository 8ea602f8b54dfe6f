/* SPDX-License-Identifier: Apache-2.0
 * formats/nemo_internal.h - the parts of the reader of .nemo archives: nemo.c (the archive), nemo_config.c (settings),
 * nemo_zarr.c (weights in folders of chunks). */
#ifndef NRD_FORMATS_NEMO_INTERNAL_H
#define NRD_FORMATS_NEMO_INTERNAL_H

#include "formats/nemo.h"

/* Sizes and form of the network, checked. Texts are literals. */
typedef struct nrd_nemo_config {
    int64_t layers, hidden, inter, heads, groups, head_dim, positions;
    double eps, rotary_part, rotary_base, interpolation;
    const char *act;      /* as config.json calls it */
    bool gated, bias, qkv_bias, tied, rotary, plus_one, rms;
} nrd_nemo_config;

nrd_error *nrd_nemo_read_config(nrd_nemo_config *out, const nrd_json *settings) NRD_MUST_USE;
/* vocab: rows of the embedding; dtype: of the weights. */
void nrd_nemo_put_config(const nrd_nemo_config *c, int64_t vocab, nrd_dtype dtype, nrd_str *out);

/* Gives each tensor of a folder NAME/.zarray, NAME/0.0 to `take`: those of layers, which are stacked, one by one with the layer in the
 * name. prefix: of the folders, with its '/'. *out_n counts them. */
typedef nrd_error *nrd_nemo_taker(void *user, const nrd_torch_tensor *tensor);
nrd_error *nrd_nemo_read_zarr(const nrd_tar *archive, const char *prefix, nrd_nemo_taker *take, void *user, size_t *out_n) NRD_MUST_USE;

#endif
