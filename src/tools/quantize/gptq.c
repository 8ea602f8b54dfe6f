/* SPDX-License-Identifier: Apache-2.0
 * The error of a row is d A d, d what its numbers are off by and A the raised gram matrix. With A = U^T U, U upper, that is
 * |U d|^2, and number k of U d has what the columns from k on are off by: rounded from the last to the first, each column goes
 * to the number that brings its own one nearest to 0, by d of those behind it. That is what GPTQ's corrections come to, without an
 * inverse of A.
 *
 * Factor and rounding go in blocks of columns: within a block on the processor, and what a block means for all others is one
 * product of the device. */
#include "tools/quantize/gptq.h"

#include "base/mem.h"
#include "tools/quantize/lanes.h"
#include "tools/quantize/nearest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = NRD_QBLOCK, TRIES = 6 };
/* Of each column's own square, is added to it. Covariances that a few thousand tokens show are partly chance, and text to come
 * has others; this lets columns make up for each other by a tenth less. */
#define OWN_SHARE 0.1f

typedef struct factoring {
    const nrd_gptq *q;
    const float *gram;
    float *rows; /* [width, n] of the matrix, then of the factor */
    int64_t n, first, end;
    double corner[BLOCK * BLOCK]; /* the factor on the diagonal, upper */
} factoring;

/* Upper factor of the block on the diagonal. False: not positive definite. */
static bool factor_corner(factoring *f)
{
    const int64_t width = f->end - f->first;

    for (int64_t k = 0; k < width; k++) {
        double *row = f->corner + k * BLOCK;
        for (int64_t c = k; c < width; c++) {
            double v = (double)f->rows[k * f->n + f->first + c];
            for (int64_t i = 0; i < k; i++) {
                v -= f->corner[i * BLOCK + k] * f->corner[i * BLOCK + c];
            }
            row[c] = v;
        }
        if (!(row[k] > 0)) {
            return false;
        }
        const double d = sqrt(row[k]);
        for (int64_t c = k; c < width; c++) {
            row[c] /= d;
        }
    }
    return true;
}

/* The block's rows of the factor, for some columns behind it. */
static void factor_rows(void *user, int64_t from, int64_t to)
{
    factoring *f = user;
    const int64_t width = f->end - f->first;

    for (int64_t k = 0; k < width; k++) {
        float *row = f->rows + k * f->n + f->end;
        for (int64_t i = 0; i < k; i++) {
            const float u = (float)f->corner[i * BLOCK + k], *above = f->rows + i * f->n + f->end;
            for (int64_t c = from; c < to; c++) {
                row[c] -= u * above[c];
            }
        }
        const float by = (float)(1 / f->corner[k * BLOCK + k]);
        for (int64_t c = from; c < to; c++) {
            row[c] *= by;
        }
    }
}

/* Takes the block's part from the rows below it. */
static nrd_error *take_from_rest(factoring *f, nrd_qmath *m, const nrd_qplace *x)
{
    const float *behind = x->p + f->first * f->n + f->end;
    const nrd_matmul_args a = {
        .m = f->n - f->end, .n = f->n - f->end, .k = f->end - f->first,
        .a = behind, .a_stride = f->n, .a_turned = true,
        .b = behind, .b_stride = f->n, .b_turned = true, .dtype = NRD_DTYPE_F32,
        .c = x->p + f->end * f->n + f->end, .c_stride = f->n, .alpha = -1, .add = true,
    };
    return nrd_qmath_add(m, &a);
}

/* *is_done false: not positive definite. */
static nrd_error *factorize(factoring *f, nrd_gptq *q, nrd_qmath *m, bool *is_done)
{
    *is_done = false;
    for (f->first = 0; f->first < f->n; f->first = f->end) {
        f->end = f->n - f->first < BLOCK ? f->n : f->first + BLOCK;
        const int64_t width = f->end - f->first;
        NRD_TRY(nrd_qplace_rows(m, &q->factor, f->first, width, 0, &f->rows));
        if (!factor_corner(f)) {
            return NULL;
        }
        nrd_qmath_each(m, f->n - f->end, factor_rows, f);
        float *corner = q->corners + f->first * BLOCK;
        for (int64_t k = 0; k < width; k++) {
            for (int64_t i = 0; i <= k; i++) {
                corner[k * BLOCK + i] = (float)f->corner[i * BLOCK + k];
                f->rows[i * f->n + f->first + k] = corner[k * BLOCK + i];
            }
        }
        NRD_TRY(nrd_qplace_put(m, &q->factor, f->first, width, f->rows));
        NRD_TRY(take_from_rest(f, m, &q->factor));
    }
    *is_done = true;
    return NULL;
}

/* ---- order ---- */

typedef struct sized {
    float size;
    int32_t column;
} sized;

static int smaller_first(const void *a, const void *b)
{
    const sized *x = a, *y = b;
    return x->size != y->size ? (x->size > y->size) - (x->size < y->size) : (x->column < y->column) - (x->column > y->column);
}

static nrd_error *make_order(nrd_gptq *q, bool by_size)
{
    nrd_error *err = NULL;
    sized *list = NULL;
    const size_t n = (size_t)q->n;

    NRD_NEW_GOTO(list, n, err, done);
    for (int64_t i = 0; i < q->n; i++) {
        const int64_t c = q->n - 1 - i;
        list[i] = (sized){q->importance[c], (int32_t)c};
    }
    if (by_size) {
        qsort(list, n, sizeof *list, smaller_first);
    }
    for (int64_t i = 0; i < q->n; i++) {
        q->order[i] = list[i].column;
    }
done:
    free(list);
    return err;
}

/* Rows of the gram matrix in the order of rounding, the diagonal raised. */
static void order_rows(void *user, int64_t from, int64_t to)
{
    factoring *f = user;
    const int32_t *order = f->q->order;
    for (int64_t i = from; i < to; i++) {
        const int32_t r = order[f->first + i];
        const float *row = f->gram + (int64_t)r * f->n;
        float *out = f->rows + i * f->n;
        for (int64_t k = 0; k < f->n; k++) {
            out[k] = row[order[k]];
        }
        out[f->first + i] += f->q->raise[r];
    }
}

static nrd_error *fill(factoring *f, nrd_gptq *q, nrd_qmath *m)
{
    for (f->first = 0; f->first < f->n; f->first = f->end) {
        f->end = f->n - f->first < BLOCK ? f->n : f->first + BLOCK;
        NRD_TRY(nrd_qplace_room(m, &q->factor, f->first, f->end - f->first, 0, &f->rows));
        nrd_qmath_each(m, f->end - f->first, order_rows, f);
        NRD_TRY(nrd_qplace_put(m, &q->factor, f->first, f->end - f->first, f->rows));
    }
    return NULL;
}

nrd_error *nrd_gptq_init(nrd_gptq *q, nrd_qmath *m, const float *gram, int64_t n, double damping, bool by_size)
{
    nrd_error *err = NULL;
    factoring *f = NULL;
    double mean = 0;
    bool is_done = false;

    *q = (nrd_gptq){.n = n};
    NRD_NEW_GOTO(f, 1, err, fail);
    f->q = q;
    f->gram = gram;
    f->n = n;
    NRD_NEW_GOTO(q->order, n, err, fail);
    NRD_NEW_GOTO(q->importance, n, err, fail);
    NRD_NEW_GOTO(q->counts, n, err, fail);
    NRD_NEW_GOTO(q->raise, n, err, fail);
    NRD_NEW_GOTO(q->corners, (n + BLOCK - 1) / BLOCK * BLOCK * BLOCK, err, fail);
    for (int64_t i = 0; i < n; i++) {
        q->importance[i] = gram[i * n + i];
        mean += (double)gram[i * n + i] / (double)n;
    }
    if (!isfinite(mean)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the inputs of a product are no numbers");
        goto fail;
    }
    for (int64_t i = 0; i < n; i++) {
        q->counts[i] = q->importance[i] + (float)mean;
    }
    NRD_TRY_GOTO(nrd_qplace_new(m, n, n, &q->factor), err, fail);
    NRD_TRY_GOTO(make_order(q, by_size), err, fail);
    mean = mean > 0 ? mean : 1; /* no input at all: every rounding is as good as any other */
    for (int i = 0; i < TRIES && !is_done; i++, damping *= 10) {
        for (int64_t c = 0; c < n; c++) {
            q->raise[c] = (float)damping * (float)mean + OWN_SHARE * q->importance[c];
        }
        NRD_TRY_GOTO(fill(f, q, m), err, fail);
        NRD_TRY_GOTO(factorize(f, q, m, &is_done), err, fail);
    }
    if (!is_done) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the gram matrix of a product's inputs has no Cholesky factor");
    }
fail:
    free(f);
    if (err) {
        nrd_gptq_fini(q, m);
    }
    return err;
}

void nrd_gptq_fini(nrd_gptq *q, nrd_qmath *m)
{
    free(q->order);
    free(q->importance);
    free(q->counts);
    free(q->raise);
    free(q->corners);
    nrd_qplace_free(m, &q->factor);
    *q = (nrd_gptq){0};
}

/* ---- rounding ---- */

typedef struct rounding {
    const nrd_gptq *q;
    const nrd_qgrid *g;
    const float *w;
    int64_t rows, first, end;
    const float *owed; /* [width, rows] of a block: what columns behind it have put into its numbers of U d */
    float *off;        /* [width, rows] what its columns are off by */
    nrd_qrows *out;
    const nrd_lane_ops *ops;
} rounding;

/* Scales from the weights as they are. */
static void choose_scales(void *user, int64_t from, int64_t to)
{
    rounding *r = user;
    nrd_qrows_round(r->g, r->w + from * r->q->n, r->q->counts, from, to - from, r->out);
}

/* Column i of the block, of n rows from `row` on; what lies behind them stays as it is and is not read. */
static void take_column(const rounding *r, int64_t row, int64_t n, int64_t i, nrd_lane_block *b)
{
    const int64_t cols = r->q->n, group = r->g->group > 0 ? r->g->group : cols, c = r->q->order[r->first + i];
    for (int64_t k = 0; k < n; k++) {
        const int64_t at = (row + k) * r->out->n_groups + c / group;
        b->x[i][k] = r->owed[i * r->rows + row + k];
        b->w[i][k] = r->w[(row + k) * cols + c];
        b->scale[i][k] = r->out->scales[at];
        b->zero[i][k] = (float)r->out->zeros[at];
    }
}

static void put_column(const rounding *r, int64_t row, int64_t n, int64_t i, const nrd_lane_block *b)
{
    const int64_t c = r->q->order[r->first + i];
    for (int64_t k = 0; k < n; k++) {
        r->off[i * r->rows + row + k] = b->x[i][k];
        r->out->codes[(row + k) * r->q->n + c] = (uint8_t)b->codes[i][k];
    }
}

static void round_block(void *user, int64_t from, int64_t to)
{
    rounding *r = user;
    nrd_lane_block b = {.width = r->end - r->first, .corner = r->q->corners + r->first * BLOCK};

    for (int64_t row = from, n; row < to; row += n) {
        n = to - row < NRD_QLANES ? to - row : NRD_QLANES;
        for (int64_t i = 0; i < b.width; i++) {
            take_column(r, row, n, i, &b);
        }
        r->ops->round(r->g, &b);
        for (int64_t i = 0; i < b.width; i++) {
            put_column(r, row, n, i, &b);
        }
    }
}

nrd_error *nrd_gptq_round(const nrd_gptq *q, nrd_qmath *m, const nrd_qgrid *g, const float *w, int64_t rows, nrd_qrows *out)
{
    nrd_error *err = NULL;
    const int64_t n = q->n;
    rounding r = {.q = q, .g = g, .w = w, .rows = rows, .out = out, .ops = nrd_lane_ops_best(), .end = n};
    nrd_qplace owed = {0}, off = {0};
    float *block;

    NRD_TRY_GOTO(nrd_qplace_new(m, n, rows, &owed), err, done);
    NRD_TRY_GOTO(nrd_qplace_new(m, BLOCK, rows, &off), err, done);
    nrd_qmath_each(m, rows, choose_scales, &r);
    for (; r.end > 0; r.end = r.first) {
        r.first = (r.end - 1) / BLOCK * BLOCK;
        NRD_TRY_GOTO(nrd_qplace_rows(m, &owed, r.first, r.end - r.first, 0, &block), err, done);
        r.owed = block;
        NRD_TRY_GOTO(nrd_qplace_room(m, &off, 0, r.end - r.first, 1, &r.off), err, done);
        nrd_qmath_each(m, rows, round_block, &r);
        NRD_TRY_GOTO(nrd_qplace_put(m, &off, 0, r.end - r.first, r.off), err, done);
        const nrd_matmul_args a = {
            .m = r.first, .n = rows, .k = r.end - r.first,
            .a = q->factor.p + r.first, .a_stride = n,
            .b = off.p, .b_stride = rows, .b_turned = true, .dtype = NRD_DTYPE_F32,
            .c = owed.p, .c_stride = rows, .alpha = 1, .add = true,
        };
        NRD_TRY_GOTO(nrd_qmath_add(m, &a), err, done);
    }
done:
    nrd_qplace_free(m, &owed);
    nrd_qplace_free(m, &off);
    return err;
}
