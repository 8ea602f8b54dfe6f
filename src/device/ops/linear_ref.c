/* SPDX-License-Identifier: Apache-2.0
 * linear: y[t, :] = concat_p(W_p x[t] + b_p), softcapped if asked. Sums in double. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

nrd_error *nrd_linear_check(const nrd_linear_args *a)
{
    if (a->n_tokens < 0 || a->n_parts < 1 || a->n_parts > NRD_LINEAR_MAX_PARTS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "linear: %d tokens, %d parts", a->n_tokens, a->n_parts);
    }
    if (a->n_tokens > 0 && (!a->x || !a->y)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "linear: x and y are needed");
    }
    for (int32_t p = 0; p < a->n_parts; p++) {
        const nrd_weight *b = a->bias[p];
        if (!a->w[p] || a->w[p]->cols != a->w[0]->cols || a->w[p]->cols <= 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "linear: part %d has another number of columns", p);
        }
        NRD_TRY(nrd_weight_check(a->w[p], "linear"));
        if (b && (b->rows * b->cols != a->w[p]->rows || !b->data || !nrd_is_float_dtype(b->dtype))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "linear: bias of %lld %s elements for %lld rows",
                              (long long)(b->rows * b->cols), nrd_dtype_name(b->dtype),
                              (long long)a->w[p]->rows);
        }
    }
    if (nrd_row_bytes(a->x_dtype, a->w[0]->cols) == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "linear: input type %s", nrd_dtype_name(a->x_dtype));
    }
    if (!nrd_is_float_dtype(a->y_dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "linear: output type %s", nrd_dtype_name(a->y_dtype));
    }
    return NULL;
}

void nrd_linear_ref(const nrd_linear_args *a)
{
    int64_t cols = a->w[0]->cols, stride = 0, at = 0;
    float *w = nrd_xmalloc((size_t)cols * 4);
    float *x = nrd_xmalloc((size_t)cols * 4 * (size_t)(a->n_tokens > 0 ? a->n_tokens : 1));

    for (int32_t p = 0; p < a->n_parts; p++) {
        stride += a->w[p]->rows;
    }
    for (int32_t t = 0; t < a->n_tokens; t++) {
        nrd_load_row(a->x_dtype, a->x, t, cols, a->x_row_scale, x + t * cols);
    }
    for (int32_t p = 0; p < a->n_parts; p++) {
        for (int64_t r = 0; r < a->w[p]->rows; r++) {
            nrd_weight_row(a->w[p], r, w);
            for (int32_t t = 0; t < a->n_tokens; t++) {
                double sum = 0;
                for (int64_t k = 0; k < cols; k++) {
                    sum += (double)w[k] * (double)x[t * cols + k];
                }
                if (a->bias[p]) {
                    sum += (double)nrd_weight_at(a->bias[p], r);
                }
                if (a->softcap > 0) {
                    sum = (double)a->softcap * tanh(sum / (double)a->softcap);
                }
                nrd_store_f32(a->y_dtype, a->y, t * stride + at + r, (float)sum);
            }
        }
        at += a->w[p]->rows;
    }
    free(w);
    free(x);
}
