/* SPDX-License-Identifier: Apache-2.0
 * norm: residual = (residual + norm?(delta)) * sum_scale; out = norm(residual). float32 inside; with a delta the residual
 * is rounded to the activation type before it is normed, as what the next layer will read. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

static nrd_error *check_vector(const nrd_weight *w, int32_t hidden, const char *what)
{
    if (w && (w->rows * w->cols != hidden || w->layout != NRD_LAYOUT_ROWS || !w->data)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "norm: %s of %lld elements for hidden size %d", what,
                          (long long)(w->rows * w->cols), hidden);
    }
    if (w && !nrd_is_float_dtype(w->dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "norm: %s of type %s", what, nrd_dtype_name(w->dtype));
    }
    return NULL;
}

nrd_error *nrd_norm_check(const nrd_norm_args *a)
{
    if (a->n_tokens < 0 || a->hidden <= 0 || (a->row_ids && a->n_rows < 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "norm: %d tokens of %d", a->n_tokens, a->hidden);
    }
    if (a->kind != NRD_NORM_RMS && a->kind != NRD_NORM_LAYER) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "norm: kind %d", (int)a->kind);
    }
    if (!nrd_is_float_dtype(a->act_dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "norm: activations of type %s",
                          nrd_dtype_name(a->act_dtype));
    }
    if (!isfinite(a->sum_scale)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "norm: sum_scale %g", (double)a->sum_scale);
    }
    if (a->n_tokens > 0 && (!a->residual || (a->weight && !a->out))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "norm: residual and out are needed");
    }
    if (a->weight && nrd_row_bytes(a->out_dtype, a->hidden) == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "norm: output type %s", nrd_dtype_name(a->out_dtype));
    }
    if (a->to_residual && (!a->weight || a->row_ids)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "norm: to_residual needs a weight and all rows");
    }
    NRD_TRY(check_vector(a->weight, a->hidden, "weight"));
    NRD_TRY(check_vector(a->bias, a->hidden, "bias"));
    return check_vector(a->delta_weight, a->hidden, "delta weight");
}

static void norm_row(nrd_norm_kind kind, float eps, int32_t n, const float *x, const nrd_weight *w,
                     const nrd_weight *b, float *y)
{
    double mean = 0, square = 0;

    if (kind == NRD_NORM_LAYER) {
        for (int32_t k = 0; k < n; k++) {
            mean += (double)x[k];
        }
        mean /= n;
    }
    for (int32_t k = 0; k < n; k++) {
        square += ((double)x[k] - mean) * ((double)x[k] - mean);
    }
    double scale = 1.0 / sqrt(square / n + (double)eps);
    for (int32_t k = 0; k < n; k++) {
        double v = ((double)x[k] - mean) * scale * (double)nrd_weight_at(w, k);
        y[k] = (float)(b ? v + (double)nrd_weight_at(b, k) : v);
    }
}

void nrd_norm_ref(const nrd_norm_args *a)
{
    int32_t n = a->hidden, n_out = a->row_ids ? a->n_rows : a->n_tokens;
    const float scale = nrd_norm_sum_scale(a);
    float *x = nrd_xmalloc((size_t)n * 8), *d = x + n;

    if (a->delta) {
        for (int32_t i = 0; i < a->n_tokens; i++) {
            nrd_load_row(a->act_dtype, a->delta, i, n, NULL, d);
            for (int32_t k = 0; a->pending.rows && k < n; k++) {
                d[k] *= a->pending.rows[i] * a->pending.columns[k];
            }
            if (a->delta_weight) {
                norm_row(a->kind, a->eps, n, d, a->delta_weight, NULL, d);
            }
            nrd_load_row(a->act_dtype, a->residual, i, n, NULL, x);
            for (int32_t k = 0; k < n; k++) {
                x[k] = (x[k] + d[k]) * scale;
            }
            nrd_store_row(a->act_dtype, a->residual, i, n, x, NULL);
        }
    }
    for (int32_t i = 0; a->weight && i < n_out; i++) {
        nrd_load_row(a->act_dtype, a->residual, a->row_ids ? a->row_ids[i] : i, n, NULL, x);
        norm_row(a->kind, a->eps, n, x, a->weight, a->bias, d);
        nrd_store_row(a->out_dtype, a->out, i, n, d, a->out_row_scale);
        if (a->to_residual) {
            nrd_store_row(a->act_dtype, a->residual, i, n, d, NULL);
        }
    }
    free(x);
}
