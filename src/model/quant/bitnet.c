/* SPDX-License-Identifier: Apache-2.0
 * BitNet b1.58 (Ma et al., 2024) as transformers keeps it: numbers of -1, 0 and 1 with one scale.
 *   weight        U8 [out / 4, in]: four rows in a byte, out / 4 rows apart, the first in the lowest bits, as 0, 1 and 2
 *   weight_scale  one number, by which the product is divided (linear_class "bitlinear") or multiplied ("autobitlinear")
 * With quantization_mode "online" weights are as they were trained, and become such numbers when they are read: their mean magnitude
 * is the scale, rounded to their own type as there.
 * bitnet.cpp's GGUF files (type I2_S): 128 numbers of a row in 32 bytes, those of the first quarter in the highest bits, and one scale
 * behind the whole matrix, as published files have them. Its other orders, of rows by fours and of ARM, cannot be told from it.
 * Inputs are rounded to int8 there, token by token; here as for other weights of 4 bits. */
#include "base/dtype.h"
#include "formats/gguf.h"
#include "model/quant/quant.h"

#include <math.h>
#include <string.h>

enum { ROWS_PER_BYTE = 4, TOP = 2, AT_ONCE = 256 };
#define LEAST_MEAN 1e-5f

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

/* A matrix of -1, 0 and 1 with one scale, whose rows and columns are known. */
static nrd_error *as_ternary(nrd_quant_weight *w, void (*unpack)(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out))
{
    w->bits = 2;
    w->top = TOP;
    w->zero_point = 1;
    w->codes_of = unpack;
    w->row_group = w->rows;
    return nrd_quant_groups(w, -1);
}

/* ---- online ---- */

/* Up to AT_ONCE of the weight's numbers from `at` on; how many. */
static int64_t some(const nrd_src_tensor *t, int64_t at, int64_t end, float *out)
{
    const int64_t n = end - at < AT_ONCE ? end - at : AT_ONCE;
    (void)nrd_dequantize_row(t->dtype, (const uint8_t *)t->data + (size_t)at * nrd_dtype_block_bytes(t->dtype), out, n);
    return n;
}

static void rounded(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const int64_t end = (row0 + n) * w->cols;
    float x[AT_ONCE];

    for (int64_t at = row0 * w->cols, k; at < end; at += k) {
        k = some(&w->codes, at, end, x);
        for (int64_t i = 0; i < k; i++) {
            const float v = rintf(x[i] * w->rounds_by);
            *out++ = v >= 1 ? 2 : v <= -1 ? 0 : 1;
        }
    }
}

static nrd_error *weight_online(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    float x[AT_ONCE];
    double sum = 0;

    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    w->rows = w->codes.dims[0];
    w->cols = w->codes.dims[1];
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_NONE, w->rows, w->cols));
    for (int64_t at = 0, n = w->rows * w->cols, k; at < n; at += k) {
        k = some(&w->codes, at, n, x);
        for (int64_t i = 0; i < k; i++) {
            sum += fabs((double)x[i]);
        }
    }
    const double mean = sum / (double)(w->rows * w->cols);
    if (!isfinite(mean)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has numbers that are not finite", w->codes.name);
    }
    uint8_t own[4];
    w->rounds_by = 1 / fmaxf((float)mean, LEAST_MEAN);
    w->scale_factor = 1 / w->rounds_by;
    (void)nrd_quantize_row(w->codes.dtype, &w->scale_factor, own, 1);
    (void)nrd_dequantize_row(w->codes.dtype, own, &w->scale_factor, 1);
    return as_ternary(w, rounded);
}

/* Products, but for the output's and those of modules that are left out. */
static bool is_product(nrd_quant *q, const nrd_src_tensor *t)
{
    const nrd_json *left_out = nrd_json_get(nrd_quant_settings_of(q)->layers, "modules_to_not_convert");
    const size_t len = strlen(t->name), stem = nrd_str_has_suffix(t->name, ".weight") ? len - strlen(".weight") : 0;

    if (!stem || t->n_dims != 2 || nrd_str_has_suffix(t->name, "embed_tokens.weight") || nrd_str_has_suffix(t->name, "lm_head.weight")) {
        return false;
    }
    for (size_t i = 0; i < nrd_json_len(left_out); i++) {
        const char *name = nrd_json_str(nrd_json_at(left_out, i), "");
        const char *at = *name ? strstr(t->name, name) : NULL;
        const size_t n = strlen(name);
        if (at && (at == t->name || at[-1] == '.') && (at[n] == '.' || (size_t)(at - t->name) + n == stem)) {
            return false;
        }
    }
    return true;
}

/* ---- folders ---- */

static nrd_error *weight_bitnet(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_src_tensor scale;

    if (nrd_quant_settings_of(q)->is_anchor) {
        return weight_online(q, stem, w);
    }
    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    NRD_TRY(nrd_quant_take(q, stem, ".weight_scale", w, &scale));
    if (w->codes.dims[0] > INT32_MAX / ROWS_PER_BYTE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld rows", w->codes.name, (long long)w->codes.dims[0]);
    }
    w->rows = w->codes.dims[0] * ROWS_PER_BYTE;
    w->cols = w->codes.dims[1];
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_U8, w->rows / ROWS_PER_BYTE, w->cols));
    NRD_TRY(nrd_quant_number(&scale, &w->scale_factor));
    w->scale_factor = nrd_quant_settings_of(q)->divides ? 1 / w->scale_factor : w->scale_factor;
    return as_ternary(w, codes_of);
}

static nrd_error *open_bitnet(nrd_quant *q, const nrd_json *config)
{
    const nrd_json *kind = nrd_json_get(config, "linear_class"), *mode = nrd_json_get(config, "quantization_mode");
    const char *name = nrd_json_str(kind, "bitlinear");
    const bool is_auto = !strcmp(name, "autobitlinear");

    if (!is_auto && strcmp(name, "bitlinear") != 0) {
        return nrd_quant_refuse("linear_class", kind, "bitlinear, autobitlinear");
    }
    const char *when = nrd_json_str(mode, "offline");
    if (is_auto && strcmp(when, "offline") != 0 && strcmp(when, "online") != 0) {
        return nrd_quant_refuse("quantization_mode", mode, "offline, online");
    }
    if (nrd_json_get_bool(config, "use_rms_norm", false)) {
        return nrd_quant_refuse("use_rms_norm", nrd_json_get(config, "use_rms_norm"), "false");
    }
    nrd_quant_settings_of(q)->divides = !is_auto;
    if (is_auto && !strcmp(when, "online")) {
        nrd_quant_settings_of(q)->is_anchor = is_product;
        nrd_quant_settings_of(q)->layers = config;
    }
    return NULL;
}

/* ---- I2_S of bitnet.cpp's GGUF files ---- */

enum { I2_S_BLOCK = 128, I2_S_BYTES = 32 };

static void i2_s_codes(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const uint8_t *block = (const uint8_t *)w->codes.data + row0 * w->cols / 4;

    for (const uint8_t *end = block + n * w->cols / 4; block < end; block += I2_S_BYTES) {
        for (int i = 0; i < I2_S_BLOCK; i++) {
            *out++ = block[i % I2_S_BYTES] >> (6 - i / I2_S_BYTES * 2) & 3;
        }
    }
}

bool nrd_quant_is_i2_s(nrd_quant *q, const nrd_src_tensor *t)
{
    (void)q;
    return t->n_dims == 2 && !strcmp(t->type_name, NRD_GGUF_I2_S) && nrd_str_has_suffix(t->name, ".weight");
}

static nrd_error *weight_i2_s(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    w->rows = w->codes.dims[0];
    w->cols = w->codes.dims[1];
    NRD_ASSERT(w->codes.data_bytes == (size_t)(w->rows * w->cols / 4) + sizeof(float), "formats/gguf.c counts them");
    memcpy(&w->scale_factor, (const uint8_t *)w->codes.data + w->rows * w->cols / 4, sizeof(float));
    if (!isfinite(w->scale_factor) || w->scale_factor <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has the scale %g, expected a number above 0", w->codes.name,
                          (double)w->scale_factor);
    }
    return as_ternary(w, i2_s_codes);
}

const nrd_quant_reader nrd_quant_i2_s = {"i2_s", {NULL}, NULL, weight_i2_s};
const nrd_quant_reader nrd_quant_bitnet = {"bitnet", {".weight_scale"}, open_bitnet, weight_bitnet};
