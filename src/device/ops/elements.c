/* SPDX-License-Identifier: Apache-2.0
 * Rows and elements of activations and weights, one at a time: what every reference is made of. */
#include "device/ops/ops.h"

#include <math.h>
#include <string.h>

bool nrd_is_float_dtype(nrd_dtype t)
{
    return t == NRD_DTYPE_F32 || t == NRD_DTYPE_F16 || t == NRD_DTYPE_BF16;
}

float nrd_load_f32(nrd_dtype t, const void *base, int64_t i)
{
    uint16_t h;

    if (t == NRD_DTYPE_F32) {
        float f;
        memcpy(&f, (const char *)base + i * 4, 4);
        return f;
    }
    memcpy(&h, (const char *)base + i * 2, 2);
    return t == NRD_DTYPE_F16 ? nrd_f16_to_f32(h) : nrd_bf16_to_f32(h);
}

void nrd_store_f32(nrd_dtype t, void *base, int64_t i, float v)
{
    if (t == NRD_DTYPE_F32) {
        memcpy((char *)base + i * 4, &v, 4);
        return;
    }
    uint16_t h = t == NRD_DTYPE_F16 ? nrd_f32_to_f16(v) : nrd_f32_to_bf16(v);
    memcpy((char *)base + i * 2, &h, 2);
}

size_t nrd_row_bytes(nrd_dtype t, int64_t cols)
{
    switch (t) {
    case NRD_DTYPE_F32:
        return (size_t)cols * 4;
    case NRD_DTYPE_F16:
    case NRD_DTYPE_BF16:
        return (size_t)cols * 2;
    case NRD_DTYPE_F8_E4M3:
        return (size_t)cols;
    case NRD_DTYPE_ACT_Q8:
        return nrd_act_q8_row_bytes(cols);
    default:
        return 0;
    }
}

static void q8_quantize(const float *x, int64_t cols, void *row)
{
    int64_t n = nrd_act_q8_blocks(cols);
    int8_t *q = row;
    float *scale = (float *)((char *)row + n * 32);
    int16_t *sum = (int16_t *)(void *)(scale + n);

    for (int64_t b = 0; b < n; b++) {
        int64_t len = cols - b * 32 < 32 ? cols - b * 32 : 32;
        float peak = 0;
        for (int64_t i = 0; i < len; i++) {
            float v = fabsf(x[b * 32 + i]);
            peak = v > peak ? v : peak;
        }
        float inv = peak > 0 ? 127.0f / peak : 0;
        scale[b] = peak / 127.0f;
        sum[2 * b] = sum[2 * b + 1] = 0;
        for (int64_t i = 0; i < 32; i++) {
            float v = i < len ? x[b * 32 + i] * inv : 0;
            int r = v >= 127.0f ? 127 : v <= -127.0f ? -127 : v == v ? (int)lrintf(v) : 0;
            q[b * 32 + i] = (int8_t)r;
            sum[2 * b + i / 16] = (int16_t)(sum[2 * b + i / 16] + r);
        }
    }
}

void nrd_act_q8_dequantize(const void *row, int64_t cols, float *x)
{
    const int8_t *q = row;
    const float *scale = (const float *)((const char *)row + nrd_act_q8_blocks(cols) * 32);

    for (int64_t i = 0; i < cols; i++) {
        x[i] = scale[i / 32] * (float)q[i];
    }
}

void nrd_load_row(nrd_dtype t, const void *base, int64_t i, int64_t cols, const float *row_scale,
                  float *dst)
{
    const char *row = (const char *)base + (size_t)i * nrd_row_bytes(t, cols);

    if (t == NRD_DTYPE_ACT_Q8) {
        nrd_act_q8_dequantize(row, cols, dst);
    } else if (t == NRD_DTYPE_F8_E4M3) {
        float scale = row_scale ? row_scale[i] : 1.0f;
        for (int64_t k = 0; k < cols; k++) {
            dst[k] = nrd_f8e4m3_to_f32((uint8_t)row[k]) * scale;
        }
    } else {
        for (int64_t k = 0; k < cols; k++) {
            dst[k] = nrd_load_f32(t, row, k);
        }
    }
}

void nrd_store_row(nrd_dtype t, void *base, int64_t i, int64_t cols, const float *src,
                   float *row_scale)
{
    char *row = (char *)base + (size_t)i * nrd_row_bytes(t, cols);

    if (t == NRD_DTYPE_ACT_Q8) {
        q8_quantize(src, cols, row);
    } else if (t == NRD_DTYPE_F8_E4M3) {
        float inv = 1.0f;
        if (row_scale) {
            float peak = 0;
            for (int64_t k = 0; k < cols; k++) {
                peak = fabsf(src[k]) > peak ? fabsf(src[k]) : peak;
            }
            row_scale[i] = peak > 0 ? peak / 448.0f : 1.0f;
            inv = 1.0f / row_scale[i];
        }
        for (int64_t k = 0; k < cols; k++) {
            row[k] = (char)nrd_f32_to_f8e4m3(src[k] * inv);
        }
    } else {
        for (int64_t k = 0; k < cols; k++) {
            nrd_store_f32(t, row, k, src[k]);
        }
    }
}

uint64_t nrd_weight_bytes(nrd_dtype t, uint32_t layout, int64_t rows, int64_t cols)
{
    size_t n;

    if (rows < 0 || cols < 0 || (cols > 0 && rows > INT64_MAX / 8 / cols)) {
        return 0;
    }
    if (layout == NRD_LAYOUT_TILE16) {
        return (uint64_t)((rows + 15) / 16) * nrd_tile16_bytes(t, cols);
    }
    if (layout != NRD_LAYOUT_ROWS || cols % nrd_dtype_block(t) ||
        !nrd_dtype_bytes(t, (uint64_t)(rows * cols), &n)) {
        return 0;
    }
    return n;
}

nrd_error *nrd_weight_check(const nrd_weight *w, const char *what)
{
    bool known = w->dtype == NRD_DTYPE_I8 || w->dtype == NRD_DTYPE_F8_E4M3 ||
                 nrd_is_float_dtype(w->dtype) || nrd_dtype_is_quant(w->dtype) || nrd_dtype_is_packed(w->dtype);

    if (!known) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: weights of type %s are not computed", what,
                          nrd_dtype_name(w->dtype));
    }
    if (w->rows < 0 || w->cols < 0 || (!w->data && w->rows * w->cols > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: weight [%lld, %lld] without data", what,
                          (long long)w->rows, (long long)w->cols);
    }
    const int64_t n = nrd_weight_n_stacked(w);
    if (w->n_stacked < 0 || w->rows % n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: weight [%lld, %lld] cannot be a stack of %d", what,
                          (long long)w->rows, (long long)w->cols, w->n_stacked);
    }
    uint64_t need = (uint64_t)n * nrd_weight_bytes(w->dtype, w->layout, w->rows / n, w->cols);
    if (need == 0 && w->rows * w->cols > 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: no layout %u for a %s weight [%lld, %lld]", what,
                          w->layout, nrd_dtype_name(w->dtype), (long long)w->rows,
                          (long long)w->cols);
    }
    if (w->data_bytes < need) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: weight [%lld, %lld] of %s needs %llu bytes, has %llu",
                          what, (long long)w->rows, (long long)w->cols, nrd_dtype_name(w->dtype),
                          (unsigned long long)need, (unsigned long long)w->data_bytes);
    }
    if (w->dtype == NRD_DTYPE_I8 && !w->scales) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: int8 weight without row scales", what);
    }
    return NULL;
}

nrd_weight nrd_weight_of_stack(const nrd_weight *w, int64_t i)
{
    const int64_t n = nrd_weight_n_stacked(w), rows = w->rows / n;
    nrd_weight one = *w;

    one.rows = rows;
    one.data_bytes = nrd_weight_bytes(w->dtype, w->layout, rows, w->cols);
    one.data = (const char *)w->data + (size_t)i * one.data_bytes;
    one.scales = w->scales ? (const float *)w->scales + i * rows : NULL;
    one.n_stacked = 1;
    return one;
}

void nrd_weight_row(const nrd_weight *w, int64_t row, float *dst)
{
    if (w->n_stacked > 1) {
        const int64_t rows = w->rows / w->n_stacked;
        nrd_weight one = nrd_weight_of_stack(w, row / rows);
        nrd_weight_row(&one, row % rows, dst);
        return;
    }
    if (w->layout == NRD_LAYOUT_TILE16) {
        const char *tile = (const char *)w->data + (size_t)(row / 16) * nrd_tile16_bytes(w->dtype, w->cols);
        nrd_tile16_unpack_row(w->dtype, tile, w->cols, (int)(row % 16), dst);
    } else if (w->dtype == NRD_DTYPE_I8) {
        const int8_t *q = (const int8_t *)w->data + row * w->cols;
        for (int64_t k = 0; k < w->cols; k++) {
            dst[k] = (float)q[k];
        }
    } else {
        size_t bytes = (size_t)(w->cols / nrd_dtype_block(w->dtype)) * nrd_dtype_block_bytes(w->dtype);
        nrd_dequantize_row(w->dtype, (const char *)w->data + (size_t)row * bytes, dst, w->cols);
    }
    float scale = w->scales ? ((const float *)w->scales)[row] : 1.0f;
    if (w->dtype == NRD_DTYPE_F8_E4M3) {
        scale *= w->scale;
    }
    if (scale != 1.0f) {
        for (int64_t k = 0; k < w->cols; k++) {
            dst[k] *= scale;
        }
    }
}

float nrd_weight_at(const nrd_weight *w, int64_t i)
{
    return nrd_load_f32(w->dtype, w->data, i);
}
