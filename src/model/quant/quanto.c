/* SPDX-License-Identifier: Apache-2.0
 * Quanto (optimum-quanto), as its models write themselves: quanto_qmap.json beside config.json names each module and its type, and parts
 * stand where the weight would:
 *   qint8, qfloat8   weight._data I8 or E4M3 [out, in], weight._scale [out, 1]
 *   qint4, qint2     weight._data._data U8 [groups * bits / 8, columns of a group]: groups through all rows; a byte has numbers of groups that
 *                    lie as many apart as it has rows, the first in the lowest bits. weight._scale and weight._shift [groups, 1]: a number is
 *                    scale * code - shift, of a shift that is no float scale * (code - shift)
 * How many columns a row has is not in the file where it has groups: config.json and the module's name say it.
 * Source: optimum-quanto 0.2.7, tensor/packed.py, tensor/grouped.py and tensor/qbits.py. */
#include "base/dtype.h"
#include "model/quant/quant.h"

#include <string.h>

#define PART ".weight._"

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const uint8_t *data = w->codes.data, mask = (uint8_t)((1u << w->bits) - 1);
    const int64_t step = w->codes.dims[0];

    for (int64_t at = row0 * w->n_groups; at < (row0 + n) * w->n_groups; at++) {
        const uint8_t *bytes = data + at % step * w->group;
        for (int64_t c = 0; c < w->group; c++) {
            *out++ = (uint8_t)(bytes[c] >> (at / step * w->bits)) & mask;
        }
    }
}

static nrd_scale_and_min affine_of(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const int64_t i = row * w->n_groups + group;
    const float scale = nrd_quant_element(&w->scales, i);
    const bool is_whole = w->zeros.dtype == NRD_DTYPE_U8 || w->zeros.dtype == NRD_DTYPE_I8;
    return (nrd_scale_and_min){scale, is_whole ? -scale * ((const int8_t *)w->zeros.data)[i] : -nrd_quant_element(&w->zeros, i)};
}

/* Groups; codes and scales were taken. */
static nrd_error *weight_groups(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_json *type = nrd_json_get(nrd_json_get(s->layers, stem), "weights");
    const int64_t groups = w->scales.dims[0], each = w->codes.dims[1];
    const int64_t cols = nrd_quant_columns_by_name(q, stem);

    NRD_TRY(nrd_quant_take(q, stem, PART "shift", w, &w->zeros));
    w->bits = !strcmp(nrd_json_str(type, ""), "qint4") ? 4 : !strcmp(nrd_json_str(type, ""), "qint2") ? 2 : 0;
    if (!w->bits) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "quanto_qmap.json: '%s' has weights '%s'; known with groups: qint4, qint2", stem,
                          nrd_json_str(type, nrd_json_type_name(type)));
    }
    if (!cols) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' of quanto: how many columns its groups are of is not known; known are q_proj, k_proj, v_proj, "
                          "qkv_proj, o_proj, gate_proj, up_proj, gate_up_proj, down_proj and lm_head, by config.json", stem);
    }
    if (w->codes.n_dims != 2 || each < 1 || groups < 1 || each > INT32_MAX || groups > INT32_MAX || cols % each || groups % (cols / each)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s': %lld groups of %lld columns do not fill rows of %lld", w->codes.name, (long long)groups,
                          (long long)each, (long long)cols);
    }
    w->cols = cols;
    w->rows = groups / (cols / each);
    w->codes_of = codes_of;
    w->affine_of = affine_of;
    NRD_TRY(nrd_quant_groups(w, each));
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_U8, (groups * w->bits + 7) / 8, each));
    NRD_TRY(nrd_quant_shape(&w->scales, NRD_DTYPE_NONE, groups, 1));
    const bool is_whole = w->zeros.dtype == NRD_DTYPE_U8 || w->zeros.dtype == NRD_DTYPE_I8;
    return nrd_quant_shape(&w->zeros, is_whole ? w->zeros.dtype : NRD_DTYPE_NONE, groups, 1);
}

static nrd_error *weight_quanto(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const nrd_quant_settings *s = nrd_quant_settings_of(q);
    nrd_src_tensor ignored;

    NRD_TRY(nrd_quant_take(q, stem, PART "scale", w, &w->scales));
    nrd_quant_try(q, stem, ".input_scale", w, &ignored);
    nrd_quant_try(q, stem, ".output_scale", w, &ignored);
    nrd_quant_try(q, stem, PART "data._data", w, &w->codes);
    if (w->codes.data) {
        return weight_groups(q, stem, w);
    }
    NRD_TRY(nrd_quant_take(q, stem, PART "data", w, &w->codes));
    return w->codes.dtype == NRD_DTYPE_I8 ? nrd_quant_int8(w, s) : nrd_quant_fp8_values(w, s);
}

static nrd_error *open_quanto(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings_of(q)->layers = config;
    return NULL;
}

const nrd_quant_reader nrd_quant_quanto = {"quanto", {PART "data", PART "data._data"}, open_quanto, weight_quanto};
