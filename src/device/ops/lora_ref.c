/* SPDX-License-Identifier: Apache-2.0
 * lora: y[t, row0_p + i] += scale * sum_r B[i, r] sum_k A[r, k] x[t, k], A and B of token t's adapter; then its gain.
 * Sums in double; y is rounded once for each part. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <stdlib.h>

static nrd_error *check_parts(const nrd_lora_args *a)
{
    if (a->n_parts < 1 || a->n_parts > NRD_LORA_MAX_PARTS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lora: %d parts", a->n_parts);
    }
    for (int32_t p = 0; p < a->n_parts; p++) {
        int64_t first = a->part[p].row0, n = a->part[p].n_rows;
        if (first < 0 || n < 0 || first + n > a->y_stride) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "lora: part %d has rows [%lld, %lld) of %lld", p, (long long)first,
                              (long long)(first + n), (long long)a->y_stride);
        }
    }
    return NULL;
}

nrd_error *nrd_lora_check(const nrd_lora_args *a)
{
    if (a->n_tokens < 0 || a->cols <= 0 || a->max_rank < 1 || a->max_rank > NRD_LORA_MAX_RANK) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lora: %d tokens, %lld columns, rank %d", a->n_tokens,
                          (long long)a->cols, a->max_rank);
    }
    if (a->n_tokens > 0 && (!a->token_slot || !a->pairs || !a->x || !a->y || !a->hidden)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "lora: token_slot, pairs, x, y and hidden are needed");
    }
    if (nrd_row_bytes(a->x_dtype, a->cols) == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "lora: input type %s", nrd_dtype_name(a->x_dtype));
    }
    if (!nrd_is_float_dtype(a->y_dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "lora: output type %s", nrd_dtype_name(a->y_dtype));
    }
    return check_parts(a);
}

static void add_pair(const nrd_lora_args *a, int32_t token, int32_t part, const nrd_lora_pair *w, const float *x)
{
    nrd_dtype t = (nrd_dtype)w->dtype;
    int64_t n = a->part[part].n_rows, at = token * a->y_stride + a->part[part].row0;
    double *h = nrd_xcalloc((size_t)w->rank, sizeof *h);

    for (int64_t r = 0; r < w->rank; r++) {
        for (int64_t k = 0; k < a->cols; k++) {
            h[r] += (double)nrd_load_f32(t, w->a, r * a->cols + k) * (double)x[k];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t r = 0; r < w->rank; r++) {
            sum += h[r] * (double)nrd_load_f32(t, w->b, r * n + i);
        }
        double y = (double)nrd_load_f32(a->y_dtype, a->y, at + i) + (double)w->scale * sum;
        if (w->gain) {
            y = y * (double)w->gain[i] + (double)w->gain[n + i];
        }
        nrd_store_f32(a->y_dtype, a->y, at + i, (float)y);
    }
    free(h);
}

void nrd_lora_ref(const nrd_lora_args *a)
{
    float *x = nrd_xmalloc((size_t)a->cols * sizeof *x);

    for (int32_t t = 0; t < a->n_tokens; t++) {
        if (a->token_slot[t] < 0) {
            continue;
        }
        nrd_load_row(a->x_dtype, a->x, t, a->cols, a->x_row_scale, x);
        for (int32_t p = 0; p < a->n_parts; p++) {
            const nrd_lora_pair *w = &a->pairs[a->token_slot[t] * a->slot_stride + p];
            if (w->rank > 0) {
                add_pair(a, t, p, w, x);
            }
        }
    }
    free(x);
}
