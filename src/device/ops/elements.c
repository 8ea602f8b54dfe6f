/* SPDX-License-Identifier: Apache-2.0
 * Rows and elements of activations, one at a time: what every reference is made of. */
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
