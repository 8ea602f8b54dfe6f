/* SPDX-License-Identifier: Apache-2.0
 * Heads for labels on the host. */
#include "executor/classifier.h"

#include "base/mem.h"
#include "executor/dense.h"
#include "model/needs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct nrd_classifier {
    int32_t hidden, rows, n_labels;
    bool difference;
    nrd_dense_act act;
    float eps;
    float *dense, *dense_bias, *norm, *norm_bias, *out, *out_bias; /* NULL: there is none */
    float *mid, *numbers;                                          /* [hidden], [rows] scratch */
};

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
    c->act = nrd_dense_act_of(s->act);
    c->eps = m->norm_eps;
    NRD_NEW_GOTO(c->mid, c->hidden, err, fail);
    NRD_NEW_GOTO(c->numbers, c->rows, err, fail);
    NRD_TRY_GOTO(nrd_dense_take(e, NRD_CLASSIFIER "dense.weight", &c->dense), err, fail);
    NRD_TRY_GOTO(nrd_dense_take(e, NRD_CLASSIFIER "dense.bias", &c->dense_bias), err, fail);
    NRD_TRY_GOTO(nrd_dense_take(e, NRD_CLASSIFIER "norm.weight", &c->norm), err, fail);
    NRD_TRY_GOTO(nrd_dense_take(e, NRD_CLASSIFIER "norm.bias", &c->norm_bias), err, fail);
    NRD_TRY_GOTO(nrd_dense_take(e, NRD_CLASSIFIER "out.weight", &c->out), err, fail);
    NRD_TRY_GOTO(nrd_dense_take(e, NRD_CLASSIFIER "out.bias", &c->out_bias), err, fail);
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
        nrd_dense_product(c->dense, c->dense_bias, x, c->hidden, c->hidden, c->act, c->mid);
        x = c->mid;
    }
    if (c->norm) {
        if (x != c->mid) {
            memcpy(c->mid, x, (size_t)c->hidden * sizeof *x);
        }
        normalize(c, c->mid);
        x = c->mid;
    }
    nrd_dense_product(c->out, c->out_bias, x, c->rows, c->hidden, NRD_DENSE_NONE, c->numbers);
    if (c->difference) {
        c->numbers[0] = c->numbers[1] - c->numbers[0];
    }
    memcpy(out, c->numbers, (size_t)c->n_labels * sizeof *out);
}
