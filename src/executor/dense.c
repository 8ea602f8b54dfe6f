/* SPDX-License-Identifier: Apache-2.0 */
#include "executor/dense.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

nrd_dense_act nrd_dense_act_of(const char *name)
{
    static const char *const names[] = {"none", "tanh", "gelu", "gelu_tanh", "relu", "silu"};

    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++) {
        if (!strcmp(name, names[i])) {
            return (nrd_dense_act)i;
        }
    }
    return NRD_DENSE_NONE;
}

nrd_error *nrd_dense_take(const nrd_engine *e, const char *name, float **out)
{
    const nrd_weight *w = nrd_engine_weight(e, name);
    nrd_error *err = NULL;

    if (!w) {
        return NULL;
    }
    NRD_TRY(nrd_weight_check(w, name));
    NRD_NEW_GOTO(*out, (size_t)w->rows * (size_t)w->cols, err, fail);
    for (int64_t i = 0; i < w->rows; i++) {
        nrd_weight_row(w, i, *out + (size_t)i * (size_t)w->cols);
    }
fail:
    return err;
}

static float dot(const float *a, const float *b, int32_t n)
{
    float lanes[LANES] = {0}, sum = 0;
    int32_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        for (int k = 0; k < LANES; k++) {
            lanes[k] += a[i + k] * b[i + k];
        }
    }
    for (int k = 0; k < LANES; k++) {
        sum += lanes[k];
    }
    for (; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static float activate(nrd_dense_act act, float x)
{
    switch (act) {
    case NRD_DENSE_NONE:
        return x;
    case NRD_DENSE_TANH:
        return tanhf(x);
    case NRD_DENSE_GELU:
        return 0.5f * x * (1 + erff(x * 0.70710678f));
    case NRD_DENSE_GELU_TANH:
        return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case NRD_DENSE_RELU:
        return x > 0 ? x : 0;
    case NRD_DENSE_SILU:
        return x / (1 + expf(-x));
    }
    return x;
}

void nrd_dense_product(const float *w, const float *bias, const float *x, int32_t rows, int32_t cols, nrd_dense_act act, float *y)
{
    for (int32_t i = 0; i < rows; i++) {
        y[i] = activate(act, dot(w + (size_t)i * (size_t)cols, x, cols) + (bias ? bias[i] : 0));
    }
}
