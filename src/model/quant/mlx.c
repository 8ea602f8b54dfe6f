/* SPDX-License-Identifier: Apache-2.0
 * MLX (Apple), as mlx-lm's folders have it: `quantization` in config.json with group_size, bits and mode, in the same object those of modules
 * that differ, by their names.
 *   affine  weight U32 [out, in * bits / 32]: codes of 2, 3, 4, 5, 6 or 8 bits along the columns, lowest bits first; scales and biases
 *           [out, groups]: a number is code * scale + bias. Embeddings are quantized, too
 *   mxfp4   weight U32 [out, in / 8]: E2M1, lowest bits first; scales U8 (E8M0) [out, in / 32]
 *   mxfp8   weight U32 [out, in / 4]: E4M3; scales likewise
 *   nvfp4   weight U32 [out, in / 8]: E2M1; scales U8 (E4M3) [out, in / 16]
 * Experts of a layer (switch_mlp) are one tensor, with a dimension in front: one matrix below the other here, which model/plan_sources.c
 * finds where its family has a module for each.
 * Source: what mlx 0.32's quantize gives; mlx-lm 0.28, models/switch_layers.py. */
#include "base/mem.h"
#include "model/quant/quant.h"

#include <string.h>

/* weight->more */
enum { BIASES };

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    for (int64_t r = row0; r < row0 + n; r++, out += w->cols) {
        nrd_quant_row_codes(w->codes.data, r * w->codes.dims[1], w->cols, w->bits, out);
    }
}

static nrd_scale_and_min affine_of(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const int64_t i = row * w->n_groups + group;
    return (nrd_scale_and_min){nrd_quant_element(&w->scales, i), nrd_quant_element(&w->more[BIASES], i)};
}

/* [experts, out, n] becomes [experts * out, n]. */
static nrd_error *as_rows(nrd_src_tensor *t)
{
    size_t rows;

    if (!t->data || t->n_dims != 3) {
        return NULL; /* two, or what nrd_quant_shape refuses */
    }
    if (!nrd_size_mul((size_t)t->dims[0], (size_t)t->dims[1], &rows) || rows > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld x %lld rows", t->name, (long long)t->dims[0], (long long)t->dims[1]);
    }
    t->dims[0] = (int64_t)rows;
    t->dims[1] = t->dims[2];
    t->n_dims = 2;
    return NULL;
}

static nrd_error *weight_affine(nrd_quant *q, const char *stem, int64_t bits, int64_t group_size, nrd_quant_weight *w)
{
    const int64_t words = w->codes.dims[1], groups = w->scales.dims[1];

    NRD_TRY(nrd_quant_take(q, stem, ".biases", w, &w->more[BIASES]));
    NRD_TRY(as_rows(&w->more[BIASES]));
    w->zeros = w->more[BIASES]; /* by which messages name them */
    w->rows = w->codes.dims[0];
    if (words < 1 || words > INT32_MAX || words * 32 % bits) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s': %lld words a row are not filled by numbers of %lld bits", w->codes.name,
                          (long long)words, (long long)bits);
    }
    w->cols = words * 32 / bits;
    w->bits = (int)bits;
    w->codes_of = codes_of;
    w->affine_of = affine_of;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_I32, w->rows, words));
    if (w->cols % group_size || groups != w->cols / group_size) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld groups; %lld columns of %lld bits in groups of %lld have %lld", w->scales.name,
                          (long long)groups, (long long)w->cols, (long long)bits, (long long)group_size, (long long)(w->cols / group_size));
    }
    NRD_TRY(nrd_quant_groups(w, group_size));
    NRD_TRY(nrd_quant_shape(&w->scales, NRD_DTYPE_NONE, w->rows, groups));
    return nrd_quant_shape(&w->more[BIASES], NRD_DTYPE_NONE, w->rows, groups);
}

/* Floats: the words are bytes of pairs, or of numbers. MXFP4 is multiplied as it is where it is experts'. */
static nrd_error *weight_floats(nrd_quant *q, const char *mode, bool are_experts, nrd_quant_weight *w)
{
    const nrd_quant_settings by_shape = {0};

    (void)q;
    if (w->codes.dims[1] > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld columns", w->codes.name, (long long)w->codes.dims[1]);
    }
    w->codes.dims[1] *= 4;
    if (!strcmp(mode, "mxfp8")) {
        w->codes.dtype = NRD_DTYPE_F8_E4M3;
        return nrd_quant_fp8_values(w, &by_shape);
    }
    w->codes.dtype = NRD_DTYPE_U8;
    NRD_TRY(nrd_quant_take_fp4(w));
    w->is_mxfp4 = are_experts && !strcmp(mode, "mxfp4") && w->cols % 32 == 0 && w->scales.dims[1] == w->cols / 32;
    if (!strcmp(mode, "nvfp4") && w->scales.dtype == NRD_DTYPE_U8) {
        w->scales.dtype = NRD_DTYPE_F8_E4M3;
    }
    return nrd_quant_spread(w, w->scales.dtype == NRD_DTYPE_F8_E4M3 ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_U8, &by_shape);
}

static nrd_error *weight_mlx(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const nrd_json *all = nrd_quant_settings_of(q)->layers, *own = nrd_json_get(all, stem);
    const nrd_json *o = nrd_json_is(own, NRD_JSON_OBJECT) ? own : all;
    const nrd_json *mode = nrd_json_get(o, "mode") ? nrd_json_get(o, "mode") : own ? NULL : nrd_json_get(all, "mode");
    const char *name = nrd_json_str(mode, "affine");
    int64_t bits, group_size;

    NRD_TRY(nrd_quant_int(o, "bits", 4, 2, 8, &bits));
    NRD_TRY(nrd_quant_int(o, "group_size", 64, 1, INT32_MAX, &group_size));
    if (bits == 7) {
        return nrd_quant_refuse("bits", nrd_json_get(o, "bits"), "2, 3, 4, 5, 6, 8");
    }
    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    NRD_TRY(nrd_quant_take(q, stem, ".scales", w, &w->scales));
    if (strcmp(w->codes.type_name, "U32") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has type %s, expected U32", w->codes.name, w->codes.type_name);
    }
    const bool are_experts = w->codes.n_dims == 3;
    NRD_TRY(as_rows(&w->codes));
    NRD_TRY(as_rows(&w->scales));
    if (w->codes.n_dims != 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %d dimensions, expected [out, words] or [experts, out, words]", w->codes.name,
                          w->codes.n_dims);
    }
    w->codes.dtype = NRD_DTYPE_I32;
    if (!strcmp(name, "affine")) {
        return weight_affine(q, stem, bits, group_size, w);
    }
    if (strcmp(name, "mxfp4") != 0 && strcmp(name, "mxfp8") != 0 && strcmp(name, "nvfp4") != 0) {
        return nrd_quant_refuse("mode", mode, "affine, mxfp4, mxfp8, nvfp4");
    }
    return weight_floats(q, name, are_experts, w);
}

static nrd_error *open_mlx(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings_of(q)->layers = config;
    return NULL;
}

const nrd_quant_reader nrd_quant_mlx = {"mlx", {".scales"}, open_mlx, weight_mlx};
