/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/input.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static nrd_error *begin(nrd_qinput *in, int64_t cols)
{
    nrd_error *err = NULL;
    in->cols = cols;
    NRD_NEW_GOTO(in->gram, cols * cols, err, fail);
    NRD_NEW_GOTO(in->sum_abs, cols, err, fail);
    NRD_NEW_GOTO(in->max_abs, cols, err, fail);
fail:
    return err;
}

/* Part of turning rows into columns and of adding a product to the sum. */
typedef struct shared_work {
    const float *x;
    float *turned, *to;
    const float *part;
    int64_t n, cols;
} shared_work;

static void turn(void *user, int64_t from, int64_t to)
{
    const shared_work *w = user;
    for (int64_t c = from; c < to; c++) {
        for (int64_t t = 0; t < w->n; t++) {
            w->turned[c * w->n + t] = w->x[t * w->cols + c];
        }
    }
}

static void add_rows(void *user, int64_t from, int64_t to)
{
    const shared_work *w = user;
    for (int64_t i = from * w->cols; i < to * w->cols; i++) {
        w->to[i] += w->part[i];
    }
}

/* x[n][cols] to the gram matrix. */
static nrd_error *add_gram(nrd_qinput *in, nrd_qmath *m, const float *x, int64_t n)
{
    nrd_error *err = NULL;
    const int64_t cols = in->cols, step = cols < nrd_qmath_good_rows(m) ? cols : nrd_qmath_good_rows(m);
    float *part = NULL;
    nrd_qmatrix columns = {0};
    shared_work w = {.x = x, .n = n, .cols = cols};

    NRD_NEW_GOTO(w.turned, cols * n, err, done);
    NRD_NEW_GOTO(part, step * cols, err, done);
    nrd_qmath_each(m, cols, turn, &w);
    NRD_TRY_GOTO(nrd_qmatrix_load(m, w.turned, cols, n, &columns), err, done);
    for (int64_t at = 0; at < cols; at += step) {
        const int64_t rows = cols - at < step ? cols - at : step;
        NRD_TRY_GOTO(nrd_qmatrix_times(m, &columns, w.turned + at * n, rows, part), err, done);
        w.part = part;
        w.to = in->gram + at * cols;
        nrd_qmath_each(m, rows, add_rows, &w);
    }
done:
    nrd_qmatrix_unload(m, &columns);
    free(w.turned);
    free(part);
    return err;
}

static void add_sizes(nrd_qinput *in, const float *x, int64_t n)
{
    for (int64_t t = 0; t < n; t++) {
        for (int64_t c = 0; c < in->cols; c++) {
            const float a = fabsf(x[t * in->cols + c]);
            in->sum_abs[c] += a;
            in->max_abs[c] = a > in->max_abs[c] ? a : in->max_abs[c];
        }
    }
    in->n_tokens += n;
}

/* Few rows wait for others: a product of them would be as long in moving the gram matrix. */
nrd_error *nrd_qinput_add(nrd_qinput *in, nrd_qmath *m, const float *x, int64_t n, int64_t cols)
{
    const int64_t most = nrd_qmath_good_rows(m);
    nrd_error *err = NULL;

    if (!in->gram) {
        NRD_TRY(begin(in, cols));
    }
    add_sizes(in, x, n);
    if (in->n_held == 0 && n >= most) {
        return add_gram(in, m, x, n);
    }
    if (!in->held) {
        NRD_NEW_GOTO(in->held, most * cols, err, done);
    }
    for (int64_t at = 0, k; at < n; at += k) {
        k = n - at < most - in->n_held ? n - at : most - in->n_held;
        memcpy(in->held + in->n_held * cols, x + at * cols, (size_t)(k * cols) * sizeof *x);
        in->n_held += k;
        if (in->n_held == most) {
            in->n_held = 0;
            NRD_TRY(add_gram(in, m, in->held, most));
        }
    }
done:
    return err;
}

nrd_error *nrd_qinput_finish(nrd_qinput *in, nrd_qmath *m)
{
    nrd_error *err = in->n_held > 0 ? add_gram(in, m, in->held, in->n_held) : NULL;

    free(in->held);
    in->held = NULL;
    in->n_held = 0;
    return err;
}

void nrd_qinput_divide(nrd_qinput *in, const float *s)
{
    for (int64_t i = 0; i < in->cols && in->gram; i++) {
        for (int64_t k = 0; k < in->cols; k++) {
            in->gram[i * in->cols + k] /= s[i] * s[k];
        }
        in->sum_abs[i] /= s[i];
        in->max_abs[i] /= s[i];
    }
}

void nrd_qinput_fini(nrd_qinput *in)
{
    free(in->gram);
    free(in->held);
    free(in->sum_abs);
    free(in->max_abs);
    *in = (nrd_qinput){0};
}
