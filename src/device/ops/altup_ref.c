/* SPDX-License-Identifier: Apache-2.0
 * altup_predict, altup_correct, altup_match: several states of a token (Baykal et al., Alternating Updates, 2023). Sums are
 * in double. Bound: memory, each state is read and written once. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

static nrd_error *check_states(const char *op, int32_t n_tokens, int32_t hidden, int32_t n_states, nrd_dtype act)
{
    if (n_tokens < 0 || hidden <= 0 || n_states < 1 || n_states > NRD_ALTUP_MAX_STATES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: %d states (at most %d) of %d for each of %d tokens", op, n_states,
                          (int)NRD_ALTUP_MAX_STATES, hidden, n_tokens);
    }
    return nrd_is_float_dtype(act) ? NULL : nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: states of type %s", op, nrd_dtype_name(act));
}

nrd_error *nrd_altup_predict_check(const nrd_altup_predict_args *a)
{
    NRD_TRY(check_states("altup_predict", a->n_tokens, a->hidden, a->n_states, a->act_dtype));
    if (a->n_tokens > 0 && (!a->states || !a->router.norm || !a->router.router || !a->coefs || !a->active)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "altup_predict: states, router, coefs and active are needed");
    }
    return NULL;
}

nrd_error *nrd_altup_correct_check(const nrd_altup_correct_args *a)
{
    NRD_TRY(check_states("altup_correct", a->n_tokens, a->hidden, a->n_states, a->act_dtype));
    if (a->n_tokens > 0 && (!a->states || !a->x || !a->delta || !a->delta_weight || !a->router.norm || !a->router.router ||
                            !a->coefs || !a->scale || !a->out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "altup_correct: all arrays are needed");
    }
    return NULL;
}

nrd_error *nrd_altup_match_check(const nrd_altup_match_args *a)
{
    NRD_TRY(check_states("altup_match", a->n_tokens, a->hidden, a->n, a->act_dtype));
    if ((a->n_tokens > 0 && (!a->like || !a->x)) || !(a->floor > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "altup_match: like and x are needed, and a floor above 0, got %g", (double)a->floor);
    }
    return NULL;
}

static double mean_square(const float *x, int32_t n)
{
    double sum = 0;

    for (int32_t i = 0; i < n; i++) {
        sum += (double)x[i] * (double)x[i];
    }
    return sum / n;
}

/* m(x) */
static void route(const nrd_altup_router *r, const float *x, int32_t n, int32_t n_states, double *m)
{
    const double inv = 1.0 / sqrt(mean_square(x, n) + (double)r->eps);

    for (int32_t k = 0; k < n_states; k++) {
        double sum = 0;
        for (int32_t i = 0; i < n; i++) {
            sum += (double)x[i] * inv * (double)r->norm[i] * (double)r->router[(int64_t)k * n + i];
        }
        m[k] = tanh(sum / n);
    }
}

static double times(const float *coefs, const double *m, int32_t n)
{
    double sum = 0;

    for (int32_t k = 0; k < n; k++) {
        sum += (double)coefs[k] * m[k];
    }
    return sum;
}

void nrd_altup_predict_ref(const nrd_altup_predict_args *a)
{
    const int32_t n = a->n_states, h = a->hidden;
    float *x = nrd_xmalloc((size_t)(n + 1) * (size_t)h * sizeof *x), *y = x + (size_t)n * (size_t)h;
    double m[NRD_ALTUP_MAX_STATES];

    for (int64_t t = 0; t < a->n_tokens; t++) {
        for (int32_t p = 0; p < n; p++) {
            nrd_load_row(a->act_dtype, a->states, p * (int64_t)a->n_tokens + t, h, NULL, x + (int64_t)p * h);
        }
        route(&a->router, x, h, n, m);
        for (int32_t q = 0; q < n; q++) {
            for (int32_t i = 0; i < h; i++) {
                double sum = (double)x[(int64_t)q * h + i];
                for (int32_t p = 0; p < n; p++) {
                    sum += times(a->coefs + (q * n + p) * n, m, n) * (double)x[(int64_t)p * h + i];
                }
                y[i] = (float)sum;
            }
            nrd_store_row(a->act_dtype, a->states, q * (int64_t)a->n_tokens + t, h, y, NULL);
            if (q == 0) {
                nrd_store_row(a->act_dtype, a->active, t, h, y, NULL);
            }
        }
    }
    free(x);
}

void nrd_altup_correct_ref(const nrd_altup_correct_args *a)
{
    const int32_t n = a->n_states, h = a->hidden;
    float *x = nrd_xmalloc((size_t)h * 3 * sizeof *x), *made = x + h, *d = made + h;
    double m[NRD_ALTUP_MAX_STATES];

    for (int64_t t = 0; t < a->n_tokens; t++) {
        nrd_load_row(a->act_dtype, a->delta, t, h, NULL, d);
        nrd_load_row(a->act_dtype, a->x, t, h, NULL, x);
        const double inv = 1.0 / sqrt(mean_square(d, h) + (double)a->router.eps);
        for (int32_t i = 0; i < h; i++) {
            made[i] = (float)((double)x[i] * (double)a->x_scale + (double)d[i] * inv * (double)a->delta_weight[i]);
        }
        route(&a->router, made, h, n, m);
        nrd_load_row(a->act_dtype, a->states, t, h, NULL, d);
        for (int32_t i = 0; i < h; i++) {
            made[i] -= d[i]; /* what is new */
        }
        for (int32_t q = 0; q < n; q++) {
            const double share = 1 + times(a->coefs + q * n, m, n);
            nrd_load_row(a->act_dtype, a->states, q * (int64_t)a->n_tokens + t, h, NULL, x);
            for (int32_t i = 0; i < h; i++) {
                x[i] = (float)((double)x[i] + share * (double)made[i]);
            }
            nrd_store_row(a->act_dtype, a->states, q * (int64_t)a->n_tokens + t, h, x, NULL);
            for (int32_t i = 0; q == 0 && i < h; i++) {
                d[i] = x[i] * a->scale[i];
            }
        }
        nrd_store_row(a->act_dtype, a->out, t, h, d, NULL);
    }
    free(x);
}

void nrd_altup_match_ref(const nrd_altup_match_args *a)
{
    const int32_t h = a->hidden;
    float *x = nrd_xmalloc((size_t)h * 2 * sizeof *x), *sum = x + h;

    for (int64_t t = 0; t < a->n_tokens; t++) {
        nrd_load_row(a->act_dtype, a->like, t, h, NULL, sum);
        const double size = sqrt(mean_square(sum, h));
        for (int32_t j = 0; j < a->n; j++) {
            nrd_load_row(a->act_dtype, a->x, j * (int64_t)a->n_tokens + t, h, NULL, x);
            const double scale = size / sqrt(fmax(mean_square(x, h), (double)a->floor));
            for (int32_t i = 0; i < h; i++) {
                x[i] = (float)((double)x[i] * scale);
                sum[i] += x[i];
            }
            nrd_store_row(a->act_dtype, a->x, j * (int64_t)a->n_tokens + t, h, x, NULL);
        }
        for (int32_t i = 0; a->mean && i < h; i++) {
            sum[i] /= (float)(a->n + 1);
        }
        if (a->mean) {
            nrd_store_row(a->act_dtype, a->mean, t, h, sum, NULL);
        }
    }
    free(x);
}
