/* SPDX-License-Identifier: Apache-2.0
 * Heads for labels on the host. Sums run in lanes of their own, which compilers turn into vectors; a head of 768
 * numbers takes about 0.1 ms. */
#include "executor/classifier.h"

#include "base/mem.h"
#include "model/needs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LANES = 16 };

typedef enum { ACT_TANH, ACT_GELU, ACT_GELU_TANH, ACT_RELU, ACT_SILU } act_kind;

struct nrd_classifier {
    int32_t hidden, rows, n_labels;
    bool difference;
    act_kind act;
    float eps;
    float *dense, *dense_bias, *norm, *norm_bias, *out, *out_bias; /* NULL: there is none */
    float *mid, *numbers;                                          /* [hidden], [rows] scratch */
};

static act_kind act_of(const char *name)
{
    static const char *const names[] = {"tanh", "gelu", "gelu_tanh", "relu", "silu"};
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++) {
        if (!strcmp(name, names[i])) {
            return (act_kind)i;
        }
    }
    return ACT_TANH; /* without a dense product it is not looked at */
}

/* A weight in float32; NULL where the engine has none, which nrd_needs_check has settled. */
static nrd_error *take(const nrd_engine *e, const char *name, float **out)
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

nrd_error *nrd_classifier_new(nrd_classifier **out, const nrd_engine *e)
{
    const nrd_model_spec *m = nrd_engine_spec(e);
    const nrd_classifier_spec *s = &m->classifier;
    nrd_error *err = NULL;
    nrd_classifier *c = NULL;

    *out = NULL;
    if (s->n_labels == 0) {
        return NULL;
    }
    NRD_NEW_GOTO(c, 1, err, fail);
    c->hidden = m->hidden;
    c->n_labels = s->n_labels;
    c->difference = s->difference;
    c->rows = (int32_t)nrd_dim_of(m, NRD_DIM_LABELS);
    c->act = act_of(s->act);
    c->eps = m->norm_eps;
    NRD_NEW_GOTO(c->mid, c->hidden, err, fail);
    NRD_NEW_GOTO(c->numbers, c->rows, err, fail);
    NRD_TRY_GOTO(take(e, NRD_CLASSIFIER "dense.weight", &c->dense), err, fail);
    NRD_TRY_GOTO(take(e, NRD_CLASSIFIER "dense.bias", &c->dense_bias), err, fail);
    NRD_TRY_GOTO(take(e, NRD_CLASSIFIER "norm.weight", &c->norm), err, fail);
    NRD_TRY_GOTO(take(e, NRD_CLASSIFIER "norm.bias", &c->norm_bias), err, fail);
    NRD_TRY_GOTO(take(e, NRD_CLASSIFIER "out.weight", &c->out), err, fail);
    NRD_TRY_GOTO(take(e, NRD_CLASSIFIER "out.bias", &c->out_bias), err, fail);
    *out = c;
    return NULL;

fail:
    nrd_classifier_free(c);
    return err;
}

void nrd_classifier_free(nrd_classifier *c)
{
    if (c) {
        free(c->dense);
        free(c->dense_bias);
        free(c->norm);
        free(c->norm_bias);
        free(c->out);
        free(c->out_bias);
        free(c->mid);
        free(c->numbers);
        free(c);
    }
}

int32_t nrd_classifier_labels(const nrd_classifier *c)
{
    return c ? c->n_labels : 0;
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

static void product(const float *w, const float *bias, const float *x, int32_t rows, int32_t cols, float *y)
{
    for (int32_t i = 0; i < rows; i++) {
        y[i] = dot(w + (size_t)i * (size_t)cols, x, cols) + (bias ? bias[i] : 0);
    }
}

static float activate(act_kind act, float x)
{
    switch (act) {
    case ACT_TANH:
        return tanhf(x);
    case ACT_GELU:
        return 0.5f * x * (1 + erff(x * 0.70710678f));
    case ACT_GELU_TANH:
        return 0.5f * x * (1 + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case ACT_RELU:
        return x > 0 ? x : 0;
    case ACT_SILU:
        return x / (1 + expf(-x));
    }
    return x;
}

static void normalize(const nrd_classifier *c, float *x)
{
    double mean = 0, square = 0;

    for (int32_t i = 0; i < c->hidden; i++) {
        mean += (double)x[i];
    }
    mean /= c->hidden;
    for (int32_t i = 0; i < c->hidden; i++) {
        square += ((double)x[i] - mean) * ((double)x[i] - mean);
    }
    const double scale = 1 / sqrt(square / c->hidden + (double)c->eps);
    for (int32_t i = 0; i < c->hidden; i++) {
        x[i] = (float)(((double)x[i] - mean) * scale) * c->norm[i] + (c->norm_bias ? c->norm_bias[i] : 0);
    }
}

void nrd_classifier_run(nrd_classifier *c, const float *state, float *out)
{
    const float *x = state;

    if (c->dense) {
        product(c->dense, c->dense_bias, x, c->hidden, c->hidden, c->mid);
        for (int32_t i = 0; i < c->hidden; i++) {
            c->mid[i] = activate(c->act, c->mid[i]);
        }
        x = c->mid;
    }
    if (c->norm) {
        if (x != c->mid) {
            memcpy(c->mid, x, (size_t)c->hidden * sizeof *x);
        }
        normalize(c, c->mid);
        x = c->mid;
    }
    product(c->out, c->out_bias, x, c->rows, c->hidden, c->numbers);
    if (c->difference) {
        c->numbers[0] = c->numbers[1] - c->numbers[0];
    }
    memcpy(out, c->numbers, (size_t)c->n_labels * sizeof *out);
}
