/* SPDX-License-Identifier: Apache-2.0
 * BitNet b1.58 (Ma et al., 2024) as transformers keeps it: numbers of -1, 0 and 1 with one scale.
 *   weight        U8 [out / 4, in]: four rows in a byte, out / 4 rows apart, the first in the lowest bits, as 0, 1 and 2
 *   weight_scale  one number, by which the product is divided (linear_class "bitlinear") or multiplied ("autobitlinear")
 * Inputs are rounded to int8 there, token by token; here as for other weights of 4 bits. */
#include "model/quant/quant.h"

#include <string.h>

enum { ROWS_PER_BYTE = 4, TOP = 2 };

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const int64_t part = w->rows / ROWS_PER_BYTE;

    for (int64_t r = row0; r < row0 + n; r++) {
        const uint8_t *src = (const uint8_t *)w->codes.data + r % part * w->cols;
        const int shift = (int)(r / part) * 2;
        for (int64_t c = 0; c < w->cols; c++) {
            *out++ = src[c] >> shift & 3;
        }
    }
}

static nrd_error *weight_bitnet(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_src_tensor scale;

    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    NRD_TRY(nrd_quant_take(q, stem, ".weight_scale", w, &scale));
    if (w->codes.dims[0] > INT32_MAX / ROWS_PER_BYTE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld rows", w->codes.name, (long long)w->codes.dims[0]);
    }
    w->rows = w->codes.dims[0] * ROWS_PER_BYTE;
    w->cols = w->codes.dims[1];
    w->bits = 2;
    w->top = TOP;
    w->zero_point = 1;
    w->codes_of = codes_of;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_U8, w->rows / ROWS_PER_BYTE, w->cols));
    NRD_TRY(nrd_quant_number(&scale, &w->scale_factor));
    w->scale_factor = nrd_quant_settings_of(q)->divides ? 1 / w->scale_factor : w->scale_factor;
    w->row_group = w->rows;
    return nrd_quant_groups(w, -1);
}

static nrd_error *open_bitnet(nrd_quant *q, const nrd_json *config)
{
    const nrd_json *kind = nrd_json_get(config, "linear_class"), *mode = nrd_json_get(config, "quantization_mode");
    const char *name = nrd_json_str(kind, "bitlinear");
    const bool is_auto = !strcmp(name, "autobitlinear");

    if (!is_auto && strcmp(name, "bitlinear") != 0) {
        return nrd_quant_refuse("linear_class", kind, "bitlinear, autobitlinear");
    }
    if (is_auto && strcmp(nrd_json_str(mode, "offline"), "offline") != 0) {
        return nrd_quant_refuse("quantization_mode", mode, "offline; weights of \"online\" are rounded for each step");
    }
    if (nrd_json_get_bool(config, "use_rms_norm", false)) {
        return nrd_quant_refuse("use_rms_norm", nrd_json_get(config, "use_rms_norm"), "false");
    }
    nrd_quant_settings_of(q)->divides = !is_auto;
    return NULL;
}

const nrd_quant_reader nrd_quant_bitnet = {"bitnet", {".weight_scale"}, open_bitnet, weight_bitnet};
