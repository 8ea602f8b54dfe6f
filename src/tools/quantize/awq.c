/* SPDX-License-Identifier: Apache-2.0
 * The error of a product is d G d, where d is what a row of weights is off by and G the gram matrix of its inputs
 * (math.h), so that no activations need be kept. The search looks at some rows of each weight: they are alike. */
#include "tools/quantize/awq.h"

#include "base/mem.h"
#include "tools/quantize/nearest.h"

#include <math.h>
#include <stdlib.h>

enum { STEPS = 20, MAX_ROWS = 128 };
#define LEAST 1e-4f

typedef struct search {
    const nrd_qgrid *g;
    int64_t cols;
    const float *w; /* [rows, cols] */
    const float *scales;
    const float *importance; /* [cols] of the scaled weights' columns */
    float *off;     /* [rows, cols] what the rounded ones are off by */
    _Atomic bool lost;
} search;

nrd_error *nrd_awq_share(const nrd_qproducts *p, float *v)
{
    nrd_error *err = NULL;
    double *sums = NULL;
    int64_t *n = NULL;

    if (!p->shared) {
        return NULL;
    }
    NRD_NEW_GOTO(sums, p->n_shared, err, done);
    NRD_NEW_GOTO(n, p->n_shared, err, done);
    for (int64_t c = 0; c < p->cols; c++) {
        sums[p->shared[c]] += (double)v[c];
        n[p->shared[c]]++;
    }
    for (int64_t c = 0; c < p->cols; c++) {
        v[c] = (float)(sums[p->shared[c]] / (double)n[p->shared[c]]);
    }
done:
    free(sums);
    free(n);
    return err;
}

void nrd_awq_normalize(float *s, const nrd_qinput *in)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < in->cols; i++) {
        s[i] = s[i] > LEAST ? s[i] : LEAST;
        if (in->max_abs[i] > 0) {
            sum += log((double)s[i]);
            n++;
        }
    }
    const float by = n > 0 ? (float)exp(sum / (double)n) : 1;
    for (int64_t i = 0; i < in->cols; i++) {
        s[i] /= by;
    }
}

static void round_rows(void *user, int64_t from, int64_t to)
{
    search *s = user;
    const int64_t n = (to - from) * s->cols;
    float *scaled = malloc((size_t)n * sizeof *scaled);
    nrd_qrows q;
    nrd_error *err = nrd_qrows_init(&q, s->g, to - from, s->cols);

    if (scaled && !err) {
        for (int64_t i = 0; i < n; i++) {
            scaled[i] = s->w[from * s->cols + i] * s->scales[i % s->cols];
        }
        nrd_qrows_round(s->g, scaled, s->importance, 0, to - from, &q);
    }
    for (int64_t r = from; r < to && scaled && !err; r++) {
        const float *w = s->w + r * s->cols;
        float *off = s->off + r * s->cols;
        nrd_qgrid_row(s->g, &q, r - from, off);
        for (int64_t c = 0; c < s->cols; c++) {
            off[c] = off[c] / s->scales[c] - w[c];
        }
    }
    s->lost = s->lost || !scaled || err;
    free(scaled);
    nrd_qrows_fini(&q);
    nrd_error_free(err);
}

/* At most MAX_ROWS of each weight, evenly. */
static nrd_error *some_rows(const nrd_qproducts *p, float **out, int64_t *out_n)
{
    nrd_error *err = NULL;
    float *rows = NULL;
    int64_t n = 0;

    NRD_NEW_GOTO(rows, p->n * MAX_ROWS * p->cols, err, done);
    for (int k = 0; k < p->n; k++) {
        const int64_t step = (p->rows[k] + MAX_ROWS - 1) / MAX_ROWS;
        for (int64_t r = 0; r < p->rows[k]; r += step) {
            memcpy(rows + n++ * p->cols, p->w[k] + r * p->cols, (size_t)p->cols * sizeof *rows);
        }
    }
done:
    *out = rows;
    *out_n = n;
    return err;
}

nrd_error *nrd_awq_scales(nrd_qmath *m, const nrd_qgrid *g, const nrd_qproducts *p, const nrd_qinput *in,
                          float *out_scales, double *out_exponent)
{
    nrd_error *err = NULL;
    float *mean = NULL, *scales = NULL, *importance = NULL, *rows = NULL, *off = NULL;
    int64_t n_rows = 0;
    double least = INFINITY;
    nrd_qmatrix gram = {0};

    NRD_NEW_GOTO(mean, p->cols, err, done);
    NRD_NEW_GOTO(scales, p->cols, err, done);
    NRD_NEW_GOTO(importance, p->cols, err, done);
    NRD_TRY_GOTO(some_rows(p, &rows, &n_rows), err, done);
    NRD_NEW_GOTO(off, n_rows * p->cols, err, done);
    NRD_TRY_GOTO(nrd_qmatrix_load(m, in->gram, p->cols, p->cols, &gram), err, done);
    for (int64_t c = 0; c < p->cols; c++) {
        mean[c] = in->sum_abs[c] / (float)in->n_tokens;
    }
    NRD_TRY_GOTO(nrd_awq_share(p, mean), err, done);
    for (int k = 0; k < STEPS; k++) {
        const double a = (double)k / STEPS;
        double e;
        for (int64_t c = 0; c < p->cols; c++) {
            scales[c] = powf(mean[c], (float)a);
        }
        nrd_awq_normalize(scales, in);
        for (int64_t c = 0; c < p->cols; c++) {
            importance[c] = in->gram[c * p->cols + c] / (scales[c] * scales[c]);
        }
        search s = {.g = g, .cols = p->cols, .w = rows, .scales = scales, .importance = importance, .off = off};
        nrd_qmath_each(m, n_rows, round_rows, &s);
        if (s.lost) {
            err = nrd_error_no_memory();
            goto done;
        }
        NRD_TRY_GOTO(nrd_qmath_error(m, off, n_rows, &gram, &e), err, done);
        if (e < least) {
            least = e;
            *out_exponent = a;
            memcpy(out_scales, scales, (size_t)p->cols * sizeof *scales);
        }
    }
done:
    nrd_qmatrix_unload(m, &gram);
    free(mean);
    free(scales);
    free(importance);
    free(rows);
    free(off);
    return err;
}
