/* SPDX-License-Identifier: Apache-2.0
 * FP8 (E4M3) weights with float scales:
 *   "fp8" (DeepSeek, Qwen, transformers' fine-grained FP8)  weight [out, in] and weight_scale_inv, by which it is
 *   multiplied: one for each block of weight_block_size, or one for the weight
 *   "mxfp8"       alike, with E8M0 scales of 32 columns
 *   "fbgemm_fp8"  weight and weight_scale [out, 1]
 * Scales of activations are not needed: devices that multiply in FP8 find them for each token. */
#include "base/dtype.h"
#include "model/quant/quant.h"

#include <string.h>

static void values_of(const nrd_quant_weight *w, int64_t row, float *out)
{
    nrd_dequantize_row(NRD_DTYPE_F8_E4M3, (const uint8_t *)w->codes.data + row * w->cols, out, w->cols);
}

nrd_error *nrd_quant_take_fp8(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    static const char *const unused[] = {".input_scale", ".input_scale_ub", ".activation_scale", ".output_scale"};
    nrd_src_tensor ignored;

    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
        nrd_quant_try(q, stem, unused[i], w, &ignored);
    }
    return nrd_quant_fp8_values(w, nrd_quant_settings_of(q));
}

nrd_error *nrd_quant_fp8_values(nrd_quant_weight *w, const nrd_quant_settings *s)
{
    w->rows = w->codes.dims[0];
    w->cols = w->codes.dims[1];
    w->bits = 8;
    w->is_fp8 = true;
    w->values_of = values_of;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_F8_E4M3, w->rows, w->cols));
    /* scale_fmt ue8m0: exponents, or float32 that are powers of two */
    nrd_dtype scales = w->scales.dtype == NRD_DTYPE_U8 ? NRD_DTYPE_U8 : NRD_DTYPE_NONE;
    return nrd_quant_spread(w, scales, s);
}

static nrd_error *open_fp8(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_json *block = nrd_json_get(config, "weight_block_size"), *fmt = nrd_json_get(config, "fmt");

    if (strcmp(nrd_json_str(fmt, "e4m3"), "e4m3") != 0) {
        return nrd_quant_refuse("fmt", fmt, "e4m3");
    }
    if (!block || nrd_json_is(block, NRD_JSON_NULL)) {
        return NULL;
    }
    s->block_rows = nrd_json_int(nrd_json_at(block, 0), 0);
    s->block_cols = nrd_json_int(nrd_json_at(block, 1), 0);
    if (nrd_json_len(block) != 2 || s->block_rows < 1 || s->block_cols < 1 || s->block_rows > INT32_MAX ||
        s->block_cols > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "quantization_config: weight_block_size must be two numbers above 0, got "
                          "%lld and %lld", (long long)s->block_rows, (long long)s->block_cols);
    }
    return NULL;
}

static nrd_error *weight_fp8(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_quant_try(q, stem, ".weight_scale_inv", w, &w->scales);
    if (!w->scales.data) {
        NRD_TRY(nrd_quant_take(q, stem, ".weight_scale", w, &w->scales));
    }
    return nrd_quant_take_fp8(q, stem, w);
}

const nrd_quant_reader nrd_quant_fp8 = {"fp8", {".weight_scale_inv", ".weight_scale"}, open_fp8, weight_fp8};
const nrd_quant_reader nrd_quant_mxfp8 = {"mxfp8", {".weight_scale_inv", ".weight_scale"}, open_fp8, weight_fp8};
const nrd_quant_reader nrd_quant_fbgemm_fp8 = {"fbgemm_fp8", {".weight_scale"}, open_fp8, weight_fp8};
