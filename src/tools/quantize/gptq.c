/* SPDX-License-Identifier: Apache-2.0
 * The factor. With A = gram matrix and J the reversal of rows: the Cholesky factor L of J A J gives A = R R^T with the
 * upper R = J L J, so that U = R^-1 is the upper factor of A^-1, with no inverse of A in between. Rows are computed from
 * the left: those below a block of BLOCK are independent of each other.
 *
 * The rounding. Columns come in blocks as well: within a block each column corrects those behind it in the block, and
 * behind the block all at once, as one product. */
#include "tools/quantize/gptq.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

enum { BLOCK = 64, TRIES = 6 };
/* Of each column's own square, is added to it. Covariances that a few thousand tokens show are partly chance, and text to come
 * has others; this lets columns make up for each other by a tenth less. */
#define OWN_SHARE 0.1f

static double dot(const double *a, const double *b, int64_t n)
{
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        s0 += a[i] * b[i];
        s1 += a[i + 1] * b[i + 1];
        s2 += a[i + 2] * b[i + 2];
        s3 += a[i + 3] * b[i + 3];
    }
    for (; i < n; i++) {
        s0 += a[i] * b[i];
    }
    return s0 + s1 + (s2 + s3);
}

typedef struct factoring {
    double *a;       /* [n, n]: the lower factor takes the place of the matrix */
    double *inverse; /* [n, n]: row j is column j of the factor's inverse */
    int64_t n, first, end;
} factoring;

static void rows_below(void *user, int64_t from, int64_t to)
{
    factoring *f = user;
    for (int64_t i = f->end + from; i < f->end + to; i++) {
        double *row = f->a + i * f->n;
        for (int64_t j = f->first; j < f->end; j++) {
            const double *other = f->a + j * f->n;
            row[j] = (row[j] - dot(row, other, j)) / other[j];
        }
    }
}

/* False: not positive definite. */
static bool cholesky(factoring *f, nrd_qmath *m)
{
    for (f->first = 0; f->first < f->n; f->first = f->end) {
        f->end = f->n - f->first < BLOCK ? f->n : f->first + BLOCK;
        for (int64_t i = f->first; i < f->end; i++) {
            double *row = f->a + i * f->n;
            for (int64_t j = f->first; j < i; j++) {
                row[j] = (row[j] - dot(row, f->a + j * f->n, j)) / f->a[j * f->n + j];
            }
            const double d = row[i] - dot(row, row, i);
            if (!(d > 0)) {
                return false;
            }
            row[i] = sqrt(d);
        }
        nrd_qmath_each(m, f->n - f->end, rows_below, f);
    }
    return true;
}

static void inverse_columns(void *user, int64_t from, int64_t to)
{
    factoring *f = user;
    for (int64_t j = from; j < to; j++) {
        double *column = f->inverse + j * f->n;
        column[j] = 1 / f->a[j * f->n + j];
        for (int64_t i = j + 1; i < f->n; i++) {
            const double *row = f->a + i * f->n;
            column[i] = -dot(row + j, column + j, i - j) / row[i];
        }
    }
}

/* ---- order ---- */

typedef struct sized {
    float size;
    int32_t column;
} sized;

static int larger_first(const void *a, const void *b)
{
    const sized *x = a, *y = b;
    return x->size != y->size ? (x->size < y->size) - (x->size > y->size) : (x->column > y->column) - (x->column < y->column);
}

static nrd_error *make_order(nrd_gptq *q, bool by_size)
{
    nrd_error *err = NULL;
    sized *list = NULL;
    const size_t n = (size_t)q->n;

    NRD_NEW_GOTO(list, n, err, done);
    for (int64_t i = 0; i < q->n; i++) {
        list[i] = (sized){q->importance[i], (int32_t)i};
    }
    if (by_size) {
        qsort(list, n, sizeof *list, larger_first);
    }
    for (int64_t i = 0; i < q->n; i++) {
        q->order[i] = list[i].column;
    }
done:
    free(list);
    return err;
}

/* The gram matrix in the order of rounding, reversed, its diagonal raised. */
static void fill(const nrd_gptq *q, const float *gram, double *a)
{
    const int64_t n = q->n;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = 0; k <= i; k++) {
            const int32_t r = q->order[n - 1 - i], c = q->order[n - 1 - k];
            a[i * n + k] = (double)gram[(int64_t)r * n + c] + (double)(i == k ? q->raise[r] : 0);
        }
    }
}

nrd_error *nrd_gptq_init(nrd_gptq *q, nrd_qmath *m, const float *gram, int64_t n, double damping, bool by_size)
{
    nrd_error *err = NULL;
    factoring f = {.n = n};
    double mean = 0;
    bool is_done = false;

    *q = (nrd_gptq){.n = n};
    NRD_NEW_GOTO(q->order, n, err, fail);
    NRD_NEW_GOTO(q->importance, n, err, fail);
    NRD_NEW_GOTO(q->raise, n, err, fail);
    NRD_NEW_GOTO(q->factor, n * n, err, fail);
    NRD_NEW_GOTO(f.a, n * n, err, fail);
    NRD_NEW_GOTO(f.inverse, n * n, err, fail);
    for (int64_t i = 0; i < n; i++) {
        q->importance[i] = gram[i * n + i];
        mean += (double)gram[i * n + i] / (double)n;
    }
    if (!isfinite(mean)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the inputs of a product are no numbers");
        goto fail;
    }
    NRD_TRY_GOTO(make_order(q, by_size), err, fail);
    mean = mean > 0 ? mean : 1; /* no input at all: every rounding is as good as any other */
    for (int i = 0; i < TRIES && !is_done; i++, damping *= 10) {
        for (int64_t c = 0; c < n; c++) {
            q->raise[c] = (float)damping * (float)mean + OWN_SHARE * q->importance[c];
        }
        fill(q, gram, f.a);
        is_done = cholesky(&f, m);
    }
    if (!is_done) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the gram matrix of a product's inputs has no Cholesky factor");
        goto fail;
    }
    nrd_qmath_each(m, n, inverse_columns, &f);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t k = i; k < n; k++) {
            q->factor[i * n + k] = (float)f.inverse[(n - 1 - k) * n + n - 1 - i];
        }
    }
fail:
    free(f.a);
    free(f.inverse);
    if (err) {
        nrd_gptq_fini(q);
    }
    return err;
}

void nrd_gptq_fini(nrd_gptq *q)
{
    free(q->order);
    free(q->factor);
    free(q->importance);
    free(q->raise);
    *q = (nrd_gptq){0};
}

/* ---- rounding ---- */

typedef struct rounding {
    const nrd_gptq *q;
    const nrd_qgrid *g;
    const float *w;
    float *left;  /* [rows, n] what is still to be rounded, in the order of rounding */
    float *off;   /* [rows, BLOCK] of a block: what each column is off by, over its factor */
    nrd_qrows *out;
    int64_t first, end;
} rounding;

/* Scales from the weights as they are; columns in their order. */
static void begin_rows(void *user, int64_t from, int64_t to)
{
    rounding *r = user;
    const int64_t n = r->q->n;
    for (int64_t row = from; row < to; row++) {
        nrd_qgrid_round_row(r->g, r->w + row * n, r->q->importance, row, r->out);
        for (int64_t k = 0; k < n; k++) {
            r->left[row * n + k] = r->w[row * n + r->q->order[k]];
        }
    }
}

static void round_block(void *user, int64_t from, int64_t to)
{
    rounding *r = user;
    const int64_t n = r->q->n, group = r->g->group > 0 ? r->g->group : n, width = r->end - r->first;

    for (int64_t row = from; row < to; row++) {
        float *left = r->left + row * n, *off = r->off + row * width;
        for (int64_t k = r->first; k < r->end; k++) {
            const int64_t c = r->q->order[k], at = row * r->out->n_groups + c / group;
            const float scale = r->out->scales[at], *u = r->q->factor + k * n;
            const uint8_t zero = r->out->zeros[at], code = nrd_qgrid_code(r->g, left[k], scale, zero);
            r->out->codes[row * n + c] = code;
            const float e = (left[k] - nrd_qgrid_number(r->g, code, scale, zero)) / u[k];
            off[k - r->first] = e;
            for (int64_t i = k + 1; i < r->end; i++) {
                left[i] -= e * u[i];
            }
        }
    }
}

/* Takes what a block is off by from all columns behind it. */
static nrd_error *correct_rest(rounding *r, nrd_qmath *m, int64_t rows, float *turned, float *change)
{
    const int64_t n = r->q->n, width = r->end - r->first, rest = n - r->end;

    for (int64_t i = 0; i < rest; i++) {
        for (int64_t k = 0; k < width; k++) {
            turned[i * width + k] = r->q->factor[(r->first + k) * n + r->end + i];
        }
    }
    NRD_TRY(nrd_qmath_product(m, r->off, rows, turned, rest, width, change));
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < rest; i++) {
            r->left[row * n + r->end + i] -= change[row * rest + i];
        }
    }
    return NULL;
}

nrd_error *nrd_gptq_round(const nrd_gptq *q, nrd_qmath *m, const nrd_qgrid *g, const float *w, int64_t rows, nrd_qrows *out)
{
    nrd_error *err = NULL;
    rounding r = {.q = q, .g = g, .w = w, .out = out};
    float *turned = NULL, *change = NULL;

    NRD_NEW_GOTO(r.left, rows * q->n, err, done);
    NRD_NEW_GOTO(r.off, rows * BLOCK, err, done);
    NRD_NEW_GOTO(turned, q->n * BLOCK, err, done);
    NRD_NEW_GOTO(change, rows * q->n, err, done);
    nrd_qmath_each(m, rows, begin_rows, &r);
    for (r.first = 0; r.first < q->n; r.first = r.end) {
        r.end = q->n - r.first < BLOCK ? q->n : r.first + BLOCK;
        nrd_qmath_each(m, rows, round_block, &r);
        if (r.end < q->n) {
            NRD_TRY_GOTO(correct_rest(&r, m, rows, turned, change), err, done);
        }
    }
done:
    free(r.left);
    free(r.off);
    free(turned);
    free(change);
    return err;
}
