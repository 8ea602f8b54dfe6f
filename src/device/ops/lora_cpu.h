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

/* Vectors of columns that four rows of y take side by side: what fits the registers. */
#if NRD_ISA >= 2
enum { LORA_ADD_VECTORS = 2 };
#else
enum { LORA_ADD_VECTORS = 1 };
#endif

/* V vectors of columns of T rows of y from column i on; one alone as far as `left` goes. */
NRD_KERNEL void lora_add_of(nrd_dtype t, int T, int V, const void *b, int64_t b_stride, int32_t rank, const float *h,
                            int64_t h_stride, int64_t i, int64_t left, float *y, int64_t y_stride)
{
    vf sum[NRD_LORA_DOT_TOKENS][4];

    for (int n = 0; n < T; n++) {
        for (int v = 0; v < V; v++) {
            sum[n][v] = lora_load(NRD_DTYPE_F32, y, n * y_stride + i + 16 * v, left);
        }
    }
    for (int64_t r = 0; r < rank; r++) {
        vf w[4];
        NRD_UNROLL
        for (int v = 0; v < V; v++) {
            w[v] = lora_load(t, b, r * b_stride + i + 16 * v, left);
        }
        NRD_UNROLL
        for (int n = 0; n < T; n++) {
            vf x = vf_set1(h[n * h_stride + r]);
            NRD_UNROLL
            for (int v = 0; v < V; v++) {
                sum[n][v] = vf_fma(w[v], x, sum[n][v]);
            }
        }
    }
    for (int n = 0; n < T; n++) {
        for (int v = 0; v < V; v++) {
            float *to = y + n * y_stride + i + 16 * v;
            if (left >= 16) {
                vf_store(to, sum[n][v]);
            } else {
                vf_store_n(to, sum[n][v], (int)left);
            }
        }
    }
}

NRD_KERNEL void lora_add_rows(nrd_dtype t, int T, int V, const void *b, int64_t b_stride, int32_t rank, const float *h,
                              int64_t h_stride, int64_t n, float *y, int64_t y_stride)
{
    int64_t i = 0;
    for (; i + 16 * V <= n; i += 16 * V) {
        lora_add_of(t, T, V, b, b_stride, rank, h, h_stride, i, 16, y, y_stride);
    }
    for (; i < n; i += 16) {
        lora_add_of(t, T, 1, b, b_stride, rank, h, h_stride, i, n - i, y, y_stride);
    }
}

NRD_KERNEL void lora_add_typed(nrd_dtype t, const void *b, int64_t b_stride, int32_t rank, const float *h,
                               int64_t h_stride, int32_t n_tokens, int64_t n, float *y, int64_t y_stride)
{
    int32_t k = 0;
    for (; k + NRD_LORA_DOT_TOKENS <= n_tokens; k += NRD_LORA_DOT_TOKENS) {
        lora_add_rows(t, NRD_LORA_DOT_TOKENS, LORA_ADD_VECTORS, b, b_stride, rank, h + k * h_stride, h_stride, n, y + k * y_stride,
                      y_stride);
    }
    for (; k < n_tokens; k++) {
        lora_add_rows(t, 1, 4, b, b_stride, rank, h + k * h_stride, h_stride, n, y + k * y_stride, y_stride);
    }
}

static void lora_add(nrd_dtype t, const void *b, int64_t b_stride, int32_t rank, const float *h, int64_t h_stride,
                     int32_t n_tokens, int64_t n, float *y, int64_t y_stride)
{
    if (t == NRD_DTYPE_F32) {
        lora_add_typed(NRD_DTYPE_F32, b, b_stride, rank, h, h_stride, n_tokens, n, y, y_stride);
    } else if (t == NRD_DTYPE_F16) {
        lora_add_typed(NRD_DTYPE_F16, b, b_stride, rank, h, h_stride, n_tokens, n, y, y_stride);
    } else {
        lora_add_typed(NRD_DTYPE_BF16, b, b_stride, rank, h, h_stride, n_tokens, n, y, y_stride);
    }
}
