/* SPDX-License-Identifier: Apache-2.0
 * Weights: what they take, whether they are whole, and their rows, one at a time. */
#include "device/ops/ops.h"

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
