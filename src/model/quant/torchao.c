/* SPDX-License-Identifier: Apache-2.0
 * torchao's tensors as it lays them out for safetensors files, a weight's parts beside where the weight would be:
 *   _weight_qdata E4M3 [out, in]   Float8Tensor: _weight_scale [out, 1], one number or one for each block
 *   _weight_qdata I8 [out, in]     Int8Tensor and IntxUnpackedToInt8Tensor: _weight_scale [out, groups], _weight_zero_point alike, I8 or
 *                                  floats. Which bits the numbers have is said by `weight_dtype` in config.json.
 * _weight_act_pre_scale multiplies the input. Int4Tensor and others that are packed for a kernel are refused.
 * Source: torchao 0.18, prototype/safetensors and quantization/quantize_/workflows. */
#include "model/quant/quant.h"

#include <string.h>

#define PART "._weight_"

enum { MAX_DEPTH = 16 };

/* Scale and zero point that is no whole number. */
static nrd_scale_and_min affine_of(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const int64_t i = (w->row_group ? row / w->row_group : row) * w->scale_row + group * w->scale_group;
    const float scale = nrd_quant_element(&w->scales, i);
    return (nrd_scale_and_min){scale, -scale * (nrd_quant_element(&w->zeros, i) + (float)w->zero_point)};
}

static bool is_float(const nrd_src_tensor *t)
{
    return t->dtype == NRD_DTYPE_F32 || t->dtype == NRD_DTYPE_F16 || t->dtype == NRD_DTYPE_BF16;
}

static nrd_error *weight_integers(nrd_quant_weight *w, const nrd_quant_settings *s)
{
    NRD_TRY(nrd_quant_int8(w, s));
    w->bits = s->bits;
    w->zero_point = 1 << (s->bits - 1);
    if (!w->zeros.data || !is_float(&w->zeros)) {
        return nrd_quant_int8_zeros(w);
    }
    if (w->zeros.n_dims != w->scales.n_dims || memcmp(w->zeros.dims, w->scales.dims, sizeof w->zeros.dims) != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has another shape than '%s'", w->zeros.name, w->scales.name);
    }
    w->affine_of = affine_of;
    return NULL;
}

static nrd_error *weight_torchao(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_quant_settings s = *nrd_quant_settings_of(q);
    nrd_src_tensor ignored;

    NRD_TRY(nrd_quant_take(q, stem, PART "qdata", w, &w->codes));
    if (w->codes.dtype != NRD_DTYPE_I8 && w->codes.dtype != NRD_DTYPE_F8_E4M3) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s' has type %s; of torchao int8 and float8_e4m3fn are read, not what is packed for a "
                          "kernel", w->codes.name, w->codes.type_name);
    }
    NRD_TRY(nrd_quant_take(q, stem, PART "scale", w, &w->scales));
    nrd_quant_try(q, stem, PART "zero_point", w, &w->zeros);
    nrd_quant_try(q, stem, PART "act_quant_scale", w, &ignored);
    nrd_quant_try(q, stem, PART "act_quant_zero_point", w, &ignored);
    w->rows = w->codes.dims[0];
    w->cols = w->codes.dims[1];
    if (w->codes.dtype == NRD_DTYPE_F8_E4M3) {
        s.block_rows = s.block_cols = w->scales.dims[0] > 0 && w->rows % w->scales.dims[0] == 0 ? w->rows / w->scales.dims[0] : 0;
        NRD_TRY(nrd_quant_fp8_values(w, &s));
    } else if (w->scales.n_dims == 2 && w->scales.dims[0] != w->rows && w->scales.dims[1] == w->rows) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s': an Int4Tensor of torchao is not read; known are Int8Tensor, IntxUnpackedToInt8Tensor "
                          "and Float8Tensor", w->codes.name);
    } else {
        NRD_TRY(weight_integers(w, &s));
    }
    return nrd_quant_columns(q, stem, PART "act_pre_scale", w);
}

/* The most bits that any configuration in it gives whole numbers; 0: none does. */
static int most_bits(const nrd_json *o, int depth)
{
    const nrd_json *data = nrd_json_get(o, "_data");
    const char *type = nrd_json_get_str(o, "_type", ""), *dtype = nrd_json_get_str(nrd_json_get(data, "weight_dtype"), "_data", "");
    const bool is_int = !strncmp(dtype, "int", 3) && dtype[3] >= '1' && dtype[3] <= '8' && !dtype[4];
    int most = strstr(type, "Int8Weight") ? 8 : is_int ? dtype[3] - '0' : 0;

    for (size_t i = 0; i < nrd_json_len(o) && depth < MAX_DEPTH; i++) {
        const int bits = most_bits(&o->child[i], depth + 1);
        most = bits > most ? bits : most;
    }
    return most;
}

static nrd_error *open_torchao(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_json *type = nrd_json_get(config, "quant_type");
    const int bits = most_bits(type, 0);

    s->bits = bits ? bits : 8;
    s->int8_inputs = !strcmp(nrd_json_get_str(nrd_json_get(type, "default"), "_type", ""), "Int8DynamicActivationInt8WeightConfig");
    return NULL;
}

const nrd_quant_reader nrd_quant_torchao = {"torchao", {PART "qdata"}, open_torchao, weight_torchao};
