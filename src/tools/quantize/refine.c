/* SPDX-License-Identifier: Apache-2.0
 * left[row] = G (w - rounded) is kept beside the codes: it says what each column's best number is, and a column that does
 * not change costs nothing. Columns that change take a row of G from it; scales change a group of columns at once, so that
 * for all rows together it is one product. */
#include "tools/quantize/refine.h"

#include "base/mem.h"

#include <stdlib.h>

enum { ROUNDS = 5 };

typedef struct refining {
    const nrd_qgrid *g;
    const float *w;    /* [rows, n] */
    const float *gram; /* [n, n] */
    const float *raise; /* [n] */
    nrd_qrows *q;
    float *left;       /* [rows, n] */
    float *units;      /* [rows, width] a group's numbers for scale 1 */
    float *products;   /* [rows, n] those times the gram matrix */
    int64_t group, first, width;
} refining;

static int64_t scale_at(const refining *r, int64_t row, int64_t column)
{
    return row * r->q->n_groups + column / r->group;
}

/* What the rows are off by, where their products with the gram matrix go. */
static void off_rows(void *user, int64_t from, int64_t to)
{
    refining *r = user;
    const int64_t n = r->q->cols;
    for (int64_t row = from; row < to; row++) {
        float *off = r->products + row * n;
        nrd_qgrid_row(r->g, r->q, row, off);
        for (int64_t c = 0; c < n; c++) {
            off[c] = r->w[row * n + c] - off[c];
        }
    }
}

/* ---- codes ---- */

static void move_codes(void *user, int64_t from, int64_t to)
{
    refining *r = user;
    const int64_t n = r->q->cols;

    for (int64_t row = from; row < to; row++) {
        float *left = r->left + row * n;
        uint8_t *codes = r->q->codes + row * n;
        for (int64_t c = 0; c < n; c++) {
            const float *column = r->gram + c * n;
            const int64_t at = scale_at(r, row, c);
            const float scale = r->q->scales[at], is = nrd_qgrid_number(r->g, codes[c], scale, r->q->zeros[at]);
            const uint8_t code = nrd_qgrid_code(r->g, is + left[c] / (column[c] + r->raise[c]), scale, r->q->zeros[at]);
            const float change = nrd_qgrid_number(r->g, code, scale, r->q->zeros[at]) - is;
            if (change == 0) {
                continue;
            }
            codes[c] = code;
            for (int64_t i = 0; i < n; i++) {
                left[i] -= change * column[i];
            }
            left[c] -= change * r->raise[c];
        }
    }
}

/* ---- scales ---- */

static void take_units(void *user, int64_t from, int64_t to)
{
    refining *r = user;
    for (int64_t row = from; row < to; row++) {
        const uint8_t *codes = r->q->codes + row * r->q->cols + r->first, zero = r->q->zeros[scale_at(r, row, r->first)];
        for (int64_t i = 0; i < r->width; i++) {
            r->units[row * r->width + i] = nrd_qgrid_number(r->g, codes[i], 1, zero);
        }
    }
}

static void move_scale(refining *r, int64_t row)
{
    const int64_t n = r->q->cols;
    const float *u = r->units + row * r->width, *products = r->products + row * n;
    float *left = r->left + row * n, *scale = &r->q->scales[scale_at(r, row, r->first)];
    double slope = 0, bend = 0;

    for (int64_t i = 0; i < r->width; i++) {
        slope += (double)(u[i] * left[r->first + i]);
        bend += (double)(u[i] * products[r->first + i]) + (double)(r->raise[r->first + i] * u[i] * u[i]);
    }
    if (!(bend > 0)) {
        return; /* all of the group is 0 */
    }
    const double want = (double)*scale + slope / bend;
    const float to = want > 0 ? nrd_qgrid_scale(r->g, (float)want) : *scale;
    const double change = (double)to - (double)*scale;
    if (!(change * (change * bend - 2 * slope) < 0)) {
        return; /* what the file can hold is no nearer */
    }
    *scale = to;
    for (int64_t i = 0; i < n; i++) {
        left[i] -= (float)change * products[i];
    }
    for (int64_t i = 0; i < r->width; i++) {
        left[r->first + i] -= (float)change * r->raise[r->first + i] * u[i];
    }
}

static void move_scales_of_rows(void *user, int64_t from, int64_t to)
{
    for (int64_t row = from; row < to; row++) {
        move_scale(user, row);
    }
}

/* turned [n, group]: the group's columns of the gram matrix, which is symmetric. */
static nrd_error *move_scales(refining *r, nrd_qmath *m, float *turned)
{
    const int64_t n = r->q->cols;

    for (r->first = 0; r->first < n; r->first += r->width) {
        r->width = n - r->first < r->group ? n - r->first : r->group;
        for (int64_t i = 0; i < n; i++) {
            memcpy(turned + i * r->width, r->gram + i * n + r->first, (size_t)r->width * sizeof *turned);
        }
        nrd_qmath_each(m, r->q->rows, take_units, r);
        NRD_TRY(nrd_qmath_product(m, r->units, r->q->rows, turned, n, r->width, r->products));
        nrd_qmath_each(m, r->q->rows, move_scales_of_rows, r);
    }
    return NULL;
}

nrd_error *nrd_qrefine(nrd_qmath *m, const nrd_qgrid *g, const float *w, const float *gram, const float *raise, nrd_qrows *q)
{
    nrd_error *err = NULL;
    const int64_t n = q->cols, rows = q->rows, group = g->group > 0 && g->group < n ? g->group : n;
    refining r = {.g = g, .w = w, .gram = gram, .raise = raise, .q = q, .group = group};
    float *turned = NULL;

    NRD_NEW_GOTO(r.left, rows * n, err, done);
    NRD_NEW_GOTO(r.products, rows * n, err, done);
    NRD_NEW_GOTO(r.units, rows * group, err, done);
    NRD_NEW_GOTO(turned, n * group, err, done);
    nrd_qmath_each(m, rows, off_rows, &r);
    NRD_TRY_GOTO(nrd_qmath_product(m, r.products, rows, gram, n, n, r.left), err, done);
    for (int64_t i = 0; i < rows * n; i++) {
        r.left[i] += raise[i % n] * r.products[i];
    }
    for (int k = 0; k < ROUNDS; k++) {
        nrd_qmath_each(m, rows, move_codes, &r);
        NRD_TRY_GOTO(move_scales(&r, m, turned), err, done);
    }
    nrd_qmath_each(m, rows, move_codes, &r);
done:
    free(r.left);
    free(r.products);
    free(r.units);
    free(turned);
    return err;
}
