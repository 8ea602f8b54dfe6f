/* SPDX-License-Identifier: Apache-2.0
 * Low-rank pairs: the products of a few rows with a few tokens, and sums of a few rows. Bound: memory
 * of A and B, which are read once for each group of tokens. A row's sum has the same order of
 * additions for every number of tokens. */
#include "device/cpu/simd.h"
#include "device/ops/ops.h"

/* Sixteen elements of type T from element i on, as far as `left` goes; the others are 0. */
NRD_INLINE vf lora_load(nrd_dtype t, const void *p, int64_t i, int64_t left)
{
    uint16_t some[16] = {0};
    if (t == NRD_DTYPE_F32) {
        const float *x = (const float *)p + i;
        return left >= 16 ? vf_load(x) : vf_load_n(x, (int)left);
    }
    const uint16_t *x = (const uint16_t *)p + i;
    if (left < 16) {
        memcpy(some, x, (size_t)left * 2);
        x = some;
    }
    return t == NRD_DTYPE_F16 ? vf_load_f16(x) : vf_load_bf16(x);
}

/* R rows of a with T tokens. */
NRD_KERNEL void lora_dots_of(nrd_dtype t, int R, int T, const void *a, int64_t row, int64_t cols, const float *x,
                             int64_t x_stride, float *out, int64_t out_stride)
{
    vf sum[4][NRD_LORA_DOT_TOKENS];

    for (int r = 0; r < R; r++) {
        for (int n = 0; n < T; n++) {
            sum[r][n] = vf_zero();
        }
    }
    for (int64_t k = 0; k < cols; k += 16) {
        int64_t left = cols - k;
        vf v[NRD_LORA_DOT_TOKENS];
        NRD_UNROLL
        for (int n = 0; n < T; n++) {
            v[n] = lora_load(NRD_DTYPE_F32, x, n * x_stride + k, left);
        }
        NRD_UNROLL
        for (int r = 0; r < R; r++) {
            vf w = lora_load(t, a, (row + r) * cols + k, left);
            NRD_UNROLL
            for (int n = 0; n < T; n++) {
                sum[r][n] = vf_fma(w, v[n], sum[r][n]);
            }
        }
    }
    for (int r = 0; r < R; r++) {
        for (int n = 0; n < T; n++) {
            out[n * out_stride + row + r] = vf_sum(sum[r][n]);
        }
    }
}

NRD_KERNEL void lora_dots_typed(nrd_dtype t, const void *a, int32_t rank, int64_t cols, const float *x,
                                int64_t x_stride, int32_t n_tokens, float *out, int64_t out_stride)
{
    int64_t r = 0;
    if (n_tokens == NRD_LORA_DOT_TOKENS) {
        for (; r + 4 <= rank; r += 4) {
            lora_dots_of(t, 4, NRD_LORA_DOT_TOKENS, a, r, cols, x, x_stride, out, out_stride);
        }
        for (; r < rank; r++) {
            lora_dots_of(t, 1, NRD_LORA_DOT_TOKENS, a, r, cols, x, x_stride, out, out_stride);
        }
        return;
    }
    for (int32_t n = 0; n < n_tokens; n++) {
        for (r = 0; r + 4 <= rank; r += 4) {
            lora_dots_of(t, 4, 1, a, r, cols, x + n * x_stride, 0, out + n * out_stride, 0);
        }
        for (; r < rank; r++) {
            lora_dots_of(t, 1, 1, a, r, cols, x + n * x_stride, 0, out + n * out_stride, 0);
        }
    }
}

static void lora_dots(nrd_dtype t, const void *a, int32_t rank, int64_t cols, const float *x, int64_t x_stride,
                      int32_t n_tokens, float *out, int64_t out_stride)
{
    if (t == NRD_DTYPE_F32) {
        lora_dots_typed(NRD_DTYPE_F32, a, rank, cols, x, x_stride, n_tokens, out, out_stride);
    } else if (t == NRD_DTYPE_F16) {
        lora_dots_typed(NRD_DTYPE_F16, a, rank, cols, x, x_stride, n_tokens, out, out_stride);
    } else {
        lora_dots_typed(NRD_DTYPE_BF16, a, rank, cols, x, x_stride, n_tokens, out, out_stride);
    }
}

NRD_KERNEL void lora_add_typed(nrd_dtype t, const void *b, int64_t b_stride, int32_t rank, const float *h, int64_t n,
                               float *y)
{
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        vf s0 = vf_load(y + i), s1 = vf_load(y + i + 16), s2 = vf_load(y + i + 32), s3 = vf_load(y + i + 48);
        for (int64_t r = 0; r < rank; r++) {
            int64_t at = r * b_stride + i;
            vf w = vf_set1(h[r]);
            s0 = vf_fma(lora_load(t, b, at, 16), w, s0);
            s1 = vf_fma(lora_load(t, b, at + 16, 16), w, s1);
            s2 = vf_fma(lora_load(t, b, at + 32, 16), w, s2);
            s3 = vf_fma(lora_load(t, b, at + 48, 16), w, s3);
        }
        vf_store(y + i, s0);
        vf_store(y + i + 16, s1);
        vf_store(y + i + 32, s2);
        vf_store(y + i + 48, s3);
    }
    for (; i < n; i += 16) {
        int64_t left = n - i;
        vf sum = lora_load(NRD_DTYPE_F32, y, i, left);
        for (int64_t r = 0; r < rank; r++) {
            sum = vf_fma(lora_load(t, b, r * b_stride + i, left), vf_set1(h[r]), sum);
        }
        if (left >= 16) {
            vf_store(y + i, sum);
        } else {
            vf_store_n(y + i, sum, (int)left);
        }
    }
}

static void lora_add(nrd_dtype t, const void *b, int64_t b_stride, int32_t rank, const float *h, int64_t n, float *y)
{
    if (t == NRD_DTYPE_F32) {
        lora_add_typed(NRD_DTYPE_F32, b, b_stride, rank, h, n, y);
    } else if (t == NRD_DTYPE_F16) {
        lora_add_typed(NRD_DTYPE_F16, b, b_stride, rank, h, n, y);
    } else {
        lora_add_typed(NRD_DTYPE_BF16, b, b_stride, rank, h, n, y);
    }
}
