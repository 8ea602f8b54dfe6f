/* SPDX-License-Identifier: Apache-2.0
 * A number that is rounded to the nearest of a grid with steps of d is off by d^2 / 12, squared, whatever the others are off by.
 * The step of a token is its largest number over 127, that of a row of weights likewise. So with inputs x / s and weights w s the
 * products are off by
 *     sum_t max_c (x_tc / s_c)^2 sum_c s_c^2 |w_c|^2  +  sum_r max_c (w_rc s_c)^2 sum_c sum_t x_tc^2 / s_c^2
 * over 12 * 127^2, for inputs and for weights. Each token counts by 1 / |x|^2: what it is off by is as bad as it is large beside the
 * token itself, and a few tokens are a thousand times as large as all others.
 *
 * The logarithms of s take steps along the gradient, from the best of SmoothQuant's own scales on. */
#include "tools/quantize/smooth.h"

#include "base/mem.h"
#include "tools/quantize/awq.h"
#include "tools/quantize/gptq.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 120, MAX_ROWS = 1024, LANES = 16 };
/* The first step's length in log s; later ones are shorter, to 0 at the last. */
#define FIRST_STEP 0.08f

nrd_error *nrd_smooth_scales(const nrd_qproducts *p, const nrd_qinput *in, double alpha, float *out_scales)
{
    for (int64_t c = 0; c < p->cols; c++) {
        float most = 0;
        for (int k = 0; k < p->n; k++) {
            for (int64_t r = 0; r < p->rows[k]; r++) {
                const float a = fabsf(p->w[k][r * p->cols + c]);
                most = a > most ? a : most;
            }
        }
        const float x = in->max_abs[c] > 1e-5f ? in->max_abs[c] : 1e-5f;
        most = most > 1e-5f ? most : 1e-5f;
        out_scales[c] = powf(x, (float)alpha) / powf(most, (float)(1 - alpha));
    }
    /* Their inverse goes into a norm or a weight, which keep 16 bits: the size of all has no effect, the spread has. */
    NRD_TRY(nrd_awq_share(p, out_scales));
    nrd_awq_normalize(out_scales, in);
    return NULL;
}

/* Rows of sizes that take their step from the largest of them. */
typedef struct points {
    float *x; /* [n, cols] none below 0 */
    float *weights; /* [n] */
    int64_t n, cols;
    const float *by; /* [cols] that x are multiplied by */
    float *most;     /* [n] the largest product of a row, and where */
    int32_t *at;
} points;

typedef struct search {
    nrd_qmath *m;
    const nrd_qproducts *p;
    int64_t cols, n_free; /* scales that are free: those that columns share once */
    points x, w;
    float *x2, *w2; /* [cols] sums of squares, of x each by its token's weight */
    double w_share;
    float *s, *inverse;   /* [cols] */
    float *log_s, *gradient, *mean, *square; /* [n_free] */
} search;

static int64_t free_of(const nrd_qproducts *p, int64_t c)
{
    return p->shared ? p->shared[c] : c;
}

static void find_largest(void *user, int64_t from, int64_t to)
{
    const points *p = user;
    for (int64_t i = from; i < to; i++) {
        const float *x = p->x + i * p->cols;
        float lane[LANES] = {0}, most = 0;
        int64_t c = 0;
        for (; c + LANES <= p->cols; c += LANES) {
            for (int k = 0; k < LANES; k++) {
                const float y = x[c + k] * p->by[c + k];
                lane[k] = y > lane[k] ? y : lane[k];
            }
        }
        for (; c < p->cols; c++) {
            const float y = x[c] * p->by[c];
            lane[0] = y > lane[0] ? y : lane[0];
        }
        for (int k = 0; k < LANES; k++) {
            most = lane[k] > most ? lane[k] : most;
        }
        int64_t at = 0;
        while (at + 1 < p->cols && x[at] * p->by[at] != most) {
            at++;
        }
        p->most[i] = most;
        p->at[i] = (int32_t)at;
    }
}

static nrd_error *init_points(points *p, int64_t n, int64_t cols)
{
    nrd_error *err = NULL;
    p->cols = cols;
    NRD_NEW_GOTO(p->x, n * cols, err, fail);
    NRD_NEW_GOTO(p->weights, n, err, fail);
    NRD_NEW_GOTO(p->most, n, err, fail);
    NRD_NEW_GOTO(p->at, n, err, fail);
fail:
    return err;
}

static void fini_points(points *p)
{
    free(p->x);
    free(p->weights);
    free(p->most);
    free(p->at);
}

/* The kept rows of the inputs; with one scale for all tokens that of the largest numbers seen. */
static nrd_error *take_inputs(search *s, const nrd_qinput *in, bool one_scale)
{
    points *p = &s->x;
    double sum = 0;

    NRD_TRY(init_points(p, in->n_rows > 0 ? in->n_rows : 1, s->cols));
    for (int64_t t = 0; t < in->n_rows; t++) {
        const float *row = in->rows + t * s->cols;
        double square = 0;
        for (int64_t c = 0; c < s->cols; c++) {
            square += (double)row[c] * (double)row[c];
        }
        const float weight = square > 0 ? (float)(1 / square) : 0;
        for (int64_t c = 0; c < s->cols; c++) {
            p->x[t * s->cols + c] = fabsf(row[c]);
            s->x2[c] += weight * row[c] * row[c];
        }
        p->weights[t] = weight;
        sum += (double)weight;
    }
    p->n = in->n_rows;
    if (one_scale) {
        p->n = 1;
        p->weights[0] = (float)sum;
        memcpy(p->x, in->max_abs, (size_t)s->cols * sizeof *p->x);
    }
    return NULL;
}

/* At most MAX_ROWS of each weight, evenly; with one scale for all rows a row of the largest numbers of each weight. */
static nrd_error *take_weights(search *s, bool one_scale)
{
    const nrd_qproducts *p = s->p;
    points *to = &s->w;
    int64_t n = 0;

    for (int k = 0; k < p->n; k++) {
        n += one_scale ? 1 : p->rows[k] < MAX_ROWS ? p->rows[k] : MAX_ROWS;
    }
    NRD_TRY(init_points(to, n, s->cols));
    for (int k = 0; k < p->n; k++) {
        const int64_t step = (p->rows[k] + MAX_ROWS - 1) / MAX_ROWS, first = to->n;
        for (int64_t r = 0; r < p->rows[k]; r++) {
            const float *row = p->w[k] + r * s->cols;
            const bool is_kept = one_scale ? r == 0 : r % step == 0;
            to->n += is_kept;
            float *x = to->x + (to->n - 1) * s->cols;
            for (int64_t c = 0; c < s->cols; c++) {
                const float a = fabsf(row[c]);
                s->w2[c] += a * a;
                x[c] = is_kept || (one_scale && a > x[c]) ? a : x[c];
            }
        }
        for (int64_t i = first; i < to->n; i++) {
            to->weights[i] = (float)p->rows[k] / (float)(to->n - first);
        }
    }
    return NULL;
}

/* The sum of the points' weighted squares. */
static double sum_largest(const search *s, points *p, const float *by)
{
    double sum = 0;
    p->by = by;
    nrd_qmath_each(s->m, p->n, find_largest, p);
    for (int64_t i = 0; i < p->n; i++) {
        sum += (double)p->weights[i] * (double)p->most[i] * (double)p->most[i];
    }
    return sum;
}

/* What the products are off by with s->s, times 12 * 127^2; s->gradient: of its logarithm by those of the scales. */
static double look(search *s)
{
    double sum_x = 0, sum_w = 0;

    for (int64_t c = 0; c < s->cols; c++) {
        const double square = (double)s->s[c] * (double)s->s[c];
        s->inverse[c] = 1 / s->s[c];
        sum_w += square * (double)s->w2[c];
        sum_x += (double)s->x2[c] / square;
    }
    const double steps_x = sum_largest(s, &s->x, s->inverse), steps_w = s->w_share * sum_largest(s, &s->w, s->s);
    const double all = steps_x * sum_w + steps_w * sum_x;

    memset(s->gradient, 0, (size_t)s->n_free * sizeof *s->gradient);
    if (!(all > 0)) {
        return 0;
    }
    for (int64_t c = 0; c < s->cols; c++) {
        const double square = (double)s->s[c] * (double)s->s[c];
        s->gradient[free_of(s->p, c)] += (float)(2 * (steps_x * square * (double)s->w2[c] - steps_w * (double)s->x2[c] / square) / all);
    }
    for (int64_t t = 0; t < s->x.n; t++) {
        const double most = (double)s->x.most[t];
        s->gradient[free_of(s->p, s->x.at[t])] -= (float)(2 * (double)s->x.weights[t] * most * most * sum_w / all);
    }
    for (int64_t r = 0; r < s->w.n; r++) {
        const double most = (double)s->w.most[r];
        s->gradient[free_of(s->p, s->w.at[r])] += (float)(2 * s->w_share * (double)s->w.weights[r] * most * most * sum_x / all);
    }
    return all;
}

/* One of Adam's; number k of them, from 0. */
static void take_step(search *s, int k)
{
    const float keep_mean = 0.9f, keep_square = 0.999f;
    const float mean_share = 1 - powf(keep_mean, (float)(k + 1)), square_share = 1 - powf(keep_square, (float)(k + 1));
    const float length = FIRST_STEP * (1 - (float)k / STEPS);

    for (int64_t i = 0; i < s->n_free; i++) {
        const float g = s->gradient[i];
        s->mean[i] = keep_mean * s->mean[i] + (1 - keep_mean) * g;
        s->square[i] = keep_square * s->square[i] + (1 - keep_square) * g * g;
        s->log_s[i] -= length * (s->mean[i] / mean_share) / (sqrtf(s->square[i] / square_share) + 1e-12f);
    }
    for (int64_t c = 0; c < s->cols; c++) {
        s->s[c] = expf(s->log_s[free_of(s->p, c)]);
    }
}

static void keep_if_better(const search *s, double is, double *least, float *out_scales)
{
    if (is < *least) {
        *least = is;
        memcpy(out_scales, s->s, (size_t)s->cols * sizeof *out_scales);
    }
}

static nrd_error *run(search *s, const nrd_qinput *in, float *out_scales, double *out_error)
{
    double least = INFINITY, half = 0;

    for (int tenths = 3; tenths <= 9; tenths++) {
        NRD_TRY(nrd_smooth_scales(s->p, in, tenths / 10.0, s->s));
        const double is = look(s);
        half = tenths == 5 ? is : half;
        keep_if_better(s, is, &least, out_scales);
    }
    memcpy(s->s, out_scales, (size_t)s->cols * sizeof *out_scales);
    for (int64_t c = 0; c < s->cols; c++) {
        s->log_s[free_of(s->p, c)] = logf(s->s[c]);
    }
    for (int k = 0; k < STEPS; k++) {
        keep_if_better(s, look(s), &least, out_scales);
        take_step(s, k);
    }
    keep_if_better(s, look(s), &least, out_scales);
    *out_error = half > 0 ? least / half : 1;
    nrd_awq_normalize(out_scales, in);
    return NULL;
}

nrd_error *nrd_smooth_search(nrd_qmath *m, const nrd_qproducts *p, const nrd_qinput *in, const nrd_qsmoothing *how,
                             float *out_scales, double *out_error)
{
    nrd_error *err = NULL;
    search s = {.m = m, .p = p, .cols = p->cols, .n_free = p->shared ? p->n_shared : p->cols, .w_share = how->gptq ? NRD_GPTQ_SHARE : 1};

    NRD_NEW_GOTO(s.x2, s.cols, err, done);
    NRD_NEW_GOTO(s.w2, s.cols, err, done);
    NRD_NEW_GOTO(s.s, s.cols, err, done);
    NRD_NEW_GOTO(s.inverse, s.cols, err, done);
    NRD_NEW_GOTO(s.log_s, s.n_free, err, done);
    NRD_NEW_GOTO(s.gradient, s.n_free, err, done);
    NRD_NEW_GOTO(s.mean, s.n_free, err, done);
    NRD_NEW_GOTO(s.square, s.n_free, err, done);
    NRD_TRY_GOTO(take_inputs(&s, in, how->one_input_scale), err, done);
    NRD_TRY_GOTO(take_weights(&s, how->one_weight_scale), err, done);
    NRD_TRY_GOTO(run(&s, in, out_scales, out_error), err, done);
done:
    fini_points(&s.x);
    fini_points(&s.w);
    free(s.x2);
    free(s.w2);
    free(s.s);
    free(s.inverse);
    free(s.log_s);
    free(s.gradient);
    free(s.mean);
    free(s.square);
    return err;
}
