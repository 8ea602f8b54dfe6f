/* SPDX-License-Identifier: Apache-2.0
 * AMD Quark. What a module has says how its weight is quantized:
 *   weight E4M3 [out, in]       weight_scale one number, [out], or one for each block of block_size
 *   weight U8 [out, in / 2]     E2M1, the lower nibble first; weight_scale E8M0 or floats [out, in / 32] (MXFP4)
 *   weight I8 [out, in]         weight_scale one number or [out]; weight_zero_point I8 alike
 *   weight I32 [in, out / 8]    groups of 4 bits, int4 or uint4: eight rows in a word, in the order 0 2 4 6 1 3 5 7 with pack_method
 *                               "reorder", else in their own; weight_scale [groups, out], weight_zero_point I32 [groups, out / 8]
 * Source: amd-quark 0.13, torch/utils/pack.py and torch/export. */
#include "model/quant/quant.h"

#include <string.h>

static const uint8_t reordered[8] = {0, 4, 1, 5, 2, 6, 3, 7}, in_order[8] = {0, 1, 2, 3, 4, 5, 6, 7};

/* The code of a row: signed ones become those of their order. */
static int at_row(const nrd_quant_weight *w, const void *words, int64_t first, int64_t row)
{
    const uint8_t *place = w->is_reordered ? reordered : in_order;
    const unsigned v = nrd_quant_word(words, first + row / 8) >> (4 * place[row % 8]) & 15;
    return (int)(w->is_signed ? v ^ 8 : v);
}

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    for (int64_t c = 0; c < w->cols; c++) {
        for (int64_t r = 0; r < n; r++) {
            out[r * w->cols + c] = (uint8_t)at_row(w, w->codes.data, c * (w->rows / 8), row0 + r);
        }
    }
}

static int zero_of(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return at_row(w, w->zeros.data, group * (w->rows / 8), row);
}

static nrd_error *weight_nibbles(nrd_quant *q, nrd_quant_weight *w)
{
    const nrd_quant_settings *s = nrd_quant_settings_of(q);

    if (w->codes.dims[1] > INT32_MAX / 8) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld columns", w->codes.name, (long long)w->codes.dims[1]);
    }
    w->cols = w->codes.dims[0];
    w->rows = w->codes.dims[1] * 8;
    w->bits = 4;
    w->zero_point = s->is_signed ? 8 : 0;
    w->is_signed = s->is_signed;
    w->is_reordered = !s->by_rows;
    w->codes_of = codes_of;
    w->scale_row = 1;
    w->scale_group = w->rows;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_I32, w->cols, w->rows / 8));
    NRD_TRY(nrd_quant_own_groups(w, s));
    NRD_TRY(nrd_quant_shape(&w->scales, NRD_DTYPE_NONE, w->n_groups, w->rows));
    if (w->zeros.data) {
        w->zero_of = zero_of;
        return nrd_quant_shape(&w->zeros, NRD_DTYPE_I32, w->n_groups, w->rows / 8);
    }
    return s->is_signed ? NULL : nrd_errorf(NRD_ERR_NOT_FOUND, "tensor '%s' has no 'weight_zero_point' beside it, which uint4 needs", w->codes.name);
}

static nrd_error *weight_quark(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const nrd_quant_settings *s = nrd_quant_settings_of(q);
    nrd_src_tensor ignored;

    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    NRD_TRY(nrd_quant_take(q, stem, ".weight_scale", w, &w->scales));
    nrd_quant_try(q, stem, ".weight_scale_2", w, &ignored);
    if (ignored.data) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s': weights that were quantized twice are not read", ignored.name);
    }
    nrd_quant_try(q, stem, ".weight_zero_point", w, &w->zeros);
    nrd_quant_try(q, stem, ".input_scale", w, &ignored);
    nrd_quant_try(q, stem, ".input_zero_point", w, &ignored);
    nrd_quant_try(q, stem, ".output_scale", w, &ignored);
    nrd_quant_try(q, stem, ".output_zero_point", w, &ignored);
    switch (w->codes.dtype) {
    case NRD_DTYPE_F8_E4M3:
        return nrd_quant_fp8_values(w, s);
    case NRD_DTYPE_U8:
        NRD_TRY(nrd_quant_take_fp4(w));
        return nrd_quant_spread(w, w->scales.dtype == NRD_DTYPE_U8 ? NRD_DTYPE_U8 : NRD_DTYPE_NONE, s);
    case NRD_DTYPE_I8:
        NRD_TRY(nrd_quant_int8(w, s));
        return nrd_quant_int8_zeros(w);
    case NRD_DTYPE_I32:
        return weight_nibbles(q, w);
    default:
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s' has type %s, expected float8_e4m3fn, uint8, int8 or int32", w->codes.name,
                          w->codes.type_name);
    }
}

/* What a group of modules has for its weights: null, or one specification. */
static nrd_error *read_weights(nrd_quant_settings *s, const nrd_json *layer)
{
    static const char *const known[] = {"fp8_e4m3", "fp4", "int4", "uint4", "int8"};
    const nrd_json *weight = nrd_json_get(layer, "weight"), *dtype = nrd_json_get(weight, "dtype"), *block = nrd_json_get(weight, "block_size");
    const char *name = nrd_json_str(dtype, "");
    const bool is_4 = !strcmp(name, "int4") || !strcmp(name, "uint4");
    bool is_known = false;
    int64_t group;

    if (!weight || nrd_json_is(weight, NRD_JSON_NULL)) {
        return NULL;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        is_known = is_known || !strcmp(name, known[i]);
    }
    if (!is_known) {
        return nrd_quant_refuse("weight.dtype", dtype ? dtype : weight, "fp8_e4m3, fp4, int4, uint4, int8");
    }
    const char *scheme = nrd_json_get_str(weight, "qscheme", "");
    if ((is_4 && strcmp(scheme, "per_group") != 0) || (!strcmp(name, "int8") && !strcmp(scheme, "per_group"))) {
        return nrd_quant_refuse("weight.qscheme", nrd_json_get(weight, "qscheme"), is_4 ? "per_group, of 4 bits" : "per_tensor, per_channel, of int8");
    }
    if (is_4) {
        if (s->bits == 4 && s->is_signed != !strcmp(name, "int4")) {
            return nrd_quant_refuse("weight.dtype", dtype, "one of int4 and uint4");
        }
        s->bits = 4;
        s->is_signed = !strcmp(name, "int4");
    }
    NRD_TRY(nrd_quant_int(weight, "group_size", 0, -1, INT32_MAX, &group));
    if (group > 0) {
        s->by_shape = s->by_shape || (s->group_size > 0 && s->group_size != group);
        s->group_size = s->group_size > 0 ? s->group_size : group;
    }
    if (nrd_json_len(block) == 2) {
        s->block_rows = nrd_json_int(nrd_json_at(block, 0), 0);
        s->block_cols = nrd_json_int(nrd_json_at(block, 1), 0);
        if (s->block_rows < 1 || s->block_cols < 1 || s->block_rows > INT32_MAX || s->block_cols > INT32_MAX) {
            return nrd_quant_refuse("weight.block_size", block, "two numbers above 0");
        }
    }
    return NULL;
}

/* Rotations turn the input of a product; other algorithms changed weights alone. */
static nrd_error *check_algorithms(const nrd_json *algorithms)
{
    for (size_t i = 0; i < nrd_json_len(algorithms); i++) {
        const nrd_json *name = nrd_json_get(nrd_json_at(algorithms, i), "name");
        if (!strcmp(nrd_json_str(name, ""), "rotation") || !strcmp(nrd_json_str(name, ""), "quarot")) {
            return nrd_quant_refuse("algo_config", name, "algorithms that leave inputs as they are");
        }
    }
    return NULL;
}

static nrd_error *open_quark(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_json *export = nrd_json_get(config, "export"), *layers = nrd_json_get(config, "layer_quant_config");
    const nrd_json *algorithms = nrd_json_get(config, "algo_config");

    export = export ? export : nrd_json_get(config, "json_export_config");
    const nrd_json *order = nrd_json_get(export, "pack_method"), *format = nrd_json_get(export, "weight_format");
    const char *name = nrd_json_str(order, "reorder");
    if (strcmp(name, "reorder") != 0 && strcmp(name, "order") != 0) {
        return nrd_quant_refuse("pack_method", order, "reorder, order");
    }
    if (strcmp(nrd_json_str(format, "real_quantized"), "real_quantized") != 0) {
        return nrd_quant_refuse("weight_format", format, "real_quantized");
    }
    s->by_rows = !strcmp(name, "order");
    NRD_TRY(read_weights(s, nrd_json_get(config, "global_quant_config")));
    for (size_t i = 0; i < nrd_json_len(layers) && nrd_json_is(layers, NRD_JSON_OBJECT); i++) {
        NRD_TRY(read_weights(s, &layers->child[i]));
    }
    return nrd_json_is(algorithms, NRD_JSON_ARRAY) ? check_algorithms(algorithms) : NULL;
}

const nrd_quant_reader nrd_quant_quark = {"quark", {".weight_scale"}, open_quark, weight_quark};
