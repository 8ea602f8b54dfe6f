/* SPDX-License-Identifier: Apache-2.0
 * act: out = f(x) or f(x[:inter]) * x[inter:], of x or of its rows times a number each, or of what lies above a row's mean by so many
 * deviations; or out = x with its columns in another order, or times a number each. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

float nrd_act_value(nrd_act_kind kind, float f)
{
    double x = (double)f;

    switch (kind) {
    case NRD_ACT_SILU:
        return (float)(x / (1.0 + exp(-x)));
    case NRD_ACT_GELU_TANH:
        return (float)(0.5 * x * (1.0 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))));
    case NRD_ACT_GELU_ERF:
        return (float)(0.5 * x * (1.0 + erf(x * 0.7071067811865476)));
    case NRD_ACT_RELU:
        return f > 0 ? f : 0;
    case NRD_ACT_RELU2:
        return f > 0 ? f * f : 0;
    case NRD_ACT_CLAMPED_SWIGLU:
        x = fmin(x, (double)NRD_SWIGLU_LIMIT);
        return (float)(x / (1.0 + exp(-(double)NRD_SWIGLU_ALPHA * x)));
    case NRD_ACT_QUICK_GELU:
        return (float)(x / (1.0 + exp(-(double)NRD_QUICK_GELU_ALPHA * x)));
    default:
        return f;
    }
}

static float xielu(const nrd_act_args *a, float f)
{
    const double x = (double)f, low = fmin(x, (double)NRD_XIELU_EPS);
    return (float)(0.5 * x + (x > 0 ? (double)a->xielu_p * x * x : (double)a->xielu_n * (expm1(low) - x)));
}

/* The other half of a gated pair, as the first is multiplied by it. */
static float other_half(nrd_act_kind kind, float up)
{
    return kind == NRD_ACT_CLAMPED_SWIGLU ? fminf(fmaxf(up, -NRD_SWIGLU_LIMIT), NRD_SWIGLU_LIMIT) + 1 : up;
}

nrd_error *nrd_act_check(const nrd_act_args *a)
{
    if (a->n_tokens < 0 || a->inter <= 0 || (a->n_tokens > 0 && (!a->x || !a->out))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "act: %d tokens of %d", a->n_tokens, a->inter);
    }
    if ((unsigned)a->kind > NRD_ACT_QUICK_GELU || (a->kind == NRD_ACT_CLAMPED_SWIGLU && !a->gated) ||
        (a->kind == NRD_ACT_XIELU && a->gated)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "act: kind %d%s", (int)a->kind, a->gated ? ", gated" : "");
    }
    if (a->in_scale && !a->in_scale_id) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "act: scales of rows without their numbers");
    }
    if ((a->up || a->cutoff > 0) && (!a->gated || a->in_scale || a->kind == NRD_ACT_CLAMPED_SWIGLU)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "act: factors of their own and cutoffs go with a gate and without scales of rows");
    }
    if ((a->up && a->up_stride < a->inter) || !(a->cutoff >= 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "act: factors %lld apart, a cutoff of %g", (long long)a->up_stride, (double)a->cutoff);
    }
    if ((a->order || a->columns) && (a->kind != NRD_ACT_NONE || a->gated || a->in_scale)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "act: another order and numbers of columns go with no function");
    }
    if (a->order && a->out_dtype == NRD_DTYPE_F8_E4M3) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "act: another order of columns does not go to %s", nrd_dtype_name(NRD_DTYPE_F8_E4M3));
    }
    if (!nrd_is_float_dtype(a->act_dtype) || nrd_row_bytes(a->out_dtype, a->inter) == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "act: %s to %s", nrd_dtype_name(a->act_dtype),
                          nrd_dtype_name(a->out_dtype));
    }
    return NULL;
}

/* What is taken off the n numbers from x[at] on. */
static double cutoff_of(const nrd_act_args *a, int64_t at, int64_t n)
{
    double mean = 0, square = 0;

    for (int64_t i = 0; i < n; i++) {
        mean += (double)nrd_load_f32(a->act_dtype, a->x, at + i) / (double)n;
    }
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)nrd_load_f32(a->act_dtype, a->x, at + i) - mean;
        square += d * d / (double)n;
    }
    return mean + (double)a->cutoff * sqrt(square);
}

void nrd_act_ref(const nrd_act_args *a)
{
    int64_t n = a->inter, stride = a->gated && !a->up ? 2 * n : n;
    float *y = nrd_xmalloc((size_t)n * 4);

    for (int64_t t = 0; t < a->n_tokens; t++) {
        const float mul = a->in_scale ? a->in_scale[a->in_scale_id[t]] : 1;
        const double cut = a->cutoff > 0 ? cutoff_of(a, t * stride, n) : 0;
        for (int64_t i = 0; i < n; i++) {
            float x = nrd_load_f32(a->act_dtype, a->x, t * stride + (a->order ? a->order[i] : i)) * mul;
            x = a->cutoff > 0 ? (float)fmax((double)x - cut, 0) : x;
            y[i] = a->kind == NRD_ACT_XIELU ? xielu(a, x) : nrd_act_value(a->kind, x);
            if (a->gated) {
                const float up = a->up ? nrd_load_f32(a->act_dtype, a->up, t * a->up_stride + i)
                                       : nrd_load_f32(a->act_dtype, a->x, t * stride + n + i);
                y[i] *= other_half(a->kind, up * mul);
            }
            y[i] *= a->columns ? a->columns[i] : 1;
        }
        nrd_store_row(a->out_dtype, a->out, t, n, y, a->out_row_scale);
    }
    free(y);
}
