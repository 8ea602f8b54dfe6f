/* SPDX-License-Identifier: Apache-2.0
 * left[row] = A (w - rounded), A the raised gram matrix, is kept beside the codes, turned: it says what each column's best
 * number is. Columns come in blocks: within a block the processor moves the codes of a group and then its scale, each knowing of those before it,
 * and what the block's changes mean for all columns is one product of the device. */
#include "tools/quantize/refine.h"

#include "base/mem.h"
#include "tools/quantize/lanes.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 5, BLOCK = NRD_QBLOCK };

typedef struct refining {
    nrd_qmath *m;
    const nrd_qgrid *g;
    const float *w;     /* [rows, n] */
    const float *gram;  /* [n, n] */
    const float *raise; /* [n] */
    nrd_qrows *q;
    const nrd_lane_ops *ops;
    uint8_t *codes; /* [n, rows], q's turned */
    int64_t group;
    nrd_qplace raised;  /* [n, n] */
    nrd_qplace left;    /* [n, rows] */
    nrd_qplace change;  /* [BLOCK, rows] */
    nrd_qplace spread;  /* [n, rows], of groups that are wider than a block: a group's numbers for scale 1, times the matrix */
    /* of a block */
    int64_t first, width;
    float corner[BLOCK * BLOCK + NRD_QLANES]; /* [width, width] of the raised matrix; sums read up to 7 numbers behind it */
    const float *lies;  /* [width, rows] left */
    float *moves;       /* [width, rows] by how much less the weights are off */
    const float *times; /* [width, rows] of spread */
    double *slope, *bend; /* [rows] of a wide group */
} refining;

static void take_block(refining *r, int64_t first, int64_t most)
{
    const int64_t n = r->q->cols;
    r->first = first;
    r->width = n - first < most ? n - first : most;
    for (int64_t i = 0; i < r->width; i++) {
        memcpy(r->corner + i * BLOCK, r->gram + (first + i) * n + first, (size_t)r->width * sizeof *r->corner);
        r->corner[i * BLOCK + i] += r->raise[first + i];
    }
}

/* to [n, rows] gets the block's columns of the matrix times change, and what was there. */
static nrd_error *add_block(refining *r, const nrd_qplace *to, float alpha, bool add)
{
    const nrd_matmul_args a = {
        .m = r->q->cols, .n = r->q->rows, .k = r->width,
        .a = r->raised.p + r->first, .a_stride = r->q->cols,
        .b = r->change.p, .b_stride = r->q->rows, .b_turned = true, .dtype = NRD_DTYPE_F32,
        .c = to->p, .c_stride = r->q->rows, .alpha = alpha, .add = add,
    };
    return nrd_qmath_add(r->m, &a);
}

/* change gets what `fn` writes to r->moves for all rows; then it is added. */
static nrd_error *each_block(refining *r, void (*fn)(void *user, int64_t from, int64_t to), const nrd_qplace *to, float alpha, bool add)
{
    NRD_TRY(nrd_qplace_room(r->m, &r->change, 0, r->width, 1, &r->moves));
    nrd_qmath_each(r->m, r->q->rows, fn, r);
    NRD_TRY(nrd_qplace_put(r->m, &r->change, 0, r->width, r->moves));
    return add_block(r, to, alpha, add);
}

static void turn_codes(void *user, int64_t from, int64_t to)
{
    refining *r = user;
    for (int64_t c = 0; c < r->q->cols; c++) {
        for (int64_t row = from; row < to; row++) {
            r->codes[c * r->q->rows + row] = r->q->codes[row * r->q->cols + c];
        }
    }
}

static void turn_codes_back(void *user, int64_t from, int64_t to)
{
    refining *r = user;
    for (int64_t row = from; row < to; row++) {
        for (int64_t c = 0; c < r->q->cols; c++) {
            r->q->codes[row * r->q->cols + c] = r->codes[c * r->q->rows + row];
        }
    }
}

/* What rows are off by. */
static void off_rows(void *user, int64_t from, int64_t to)
{
    refining *r = user;
    const int64_t rows = r->q->rows;

    for (int64_t i = 0; i < r->width; i++) {
        const int64_t c = r->first + i;
        for (int64_t row = from; row < to; row++) {
            const int64_t at = row * r->q->n_groups + c / r->group;
            r->moves[i * rows + row] = r->w[row * r->q->cols + c] -
                                       nrd_qgrid_number(r->g, r->codes[c * rows + row], r->q->scales[at], r->q->zeros[at]);
        }
    }
}

/* ---- codes, and scales of groups within a block ---- */

/* n rows of the block, from `row` on. */
static inline void take_rows(const refining *r, int64_t row, int64_t n, nrd_lane_block *b)
{
    const int64_t rows = r->q->rows, first_group = r->first / r->group;
    for (int64_t i = 0; i < b->width; i++) {
        const uint8_t *codes = r->codes + (r->first + i) * rows + row;
        b->w[i] = (nrd_lanes){0};
        for (int64_t k = 0; k < n; k++) {
            b->x[i][k] = r->lies[i * rows + row + k];
            b->codes[i][k] = (float)codes[k];
        }
    }
    for (int64_t j = 0; j * b->group < b->width; j++) {
        for (int64_t k = 0; k < n; k++) {
            const int64_t at = (row + k) * r->q->n_groups + first_group + j;
            b->scale[j][k] = r->q->scales[at];
            b->zero[j][k] = (float)r->q->zeros[at];
        }
    }
}

static inline void put_rows(const refining *r, int64_t row, int64_t n, const nrd_lane_block *b)
{
    const int64_t rows = r->q->rows, first_group = r->first / r->group;
    for (int64_t i = 0; i < b->width; i++) {
        uint8_t *codes = r->codes + (r->first + i) * rows + row;
        for (int64_t k = 0; k < n; k++) {
            r->moves[i * rows + row + k] = b->w[i][k];
            codes[k] = (uint8_t)b->codes[i][k];
        }
    }
    for (int64_t j = 0; j * b->group < b->width; j++) {
        for (int64_t k = 0; k < n; k++) {
            r->q->scales[(row + k) * r->q->n_groups + first_group + j] = b->scale[j][k];
        }
    }
}

static void move_block(refining *r, int64_t from, int64_t to, bool scales)
{
    nrd_lane_block b = {.width = r->width, .group = r->group < r->width ? r->group : r->width, .corner = r->corner};

    for (int64_t row = from, n; row < to; row += n) {
        n = to - row;
        if (n < NRD_QLANES) {
            take_rows(r, row, n, &b);
            r->ops->move(r->g, &b, scales);
            put_rows(r, row, n, &b);
        } else { /* a number that the compiler knows */
            n = NRD_QLANES;
            take_rows(r, row, NRD_QLANES, &b);
            r->ops->move(r->g, &b, scales);
            put_rows(r, row, NRD_QLANES, &b);
        }
    }
}

static void move_codes_of_rows(void *user, int64_t from, int64_t to)
{
    move_block(user, from, to, false);
}

static void move_both_of_rows(void *user, int64_t from, int64_t to)
{
    move_block(user, from, to, true);
}

/* All blocks once. */
static nrd_error *pass(refining *r, bool scales)
{
    const int64_t most = r->group < BLOCK ? BLOCK / r->group * r->group : BLOCK;
    float *lies;

    for (int64_t at = 0; at < r->q->cols; at += r->width) {
        take_block(r, at, most);
        NRD_TRY(nrd_qplace_rows(r->m, &r->left, r->first, r->width, 0, &lies));
        r->lies = lies;
        NRD_TRY(each_block(r, scales ? move_both_of_rows : move_codes_of_rows, &r->left, -1, true));
    }
    return NULL;
}

/* ---- scales of groups that are wider than a block ---- */

static void take_units(void *user, int64_t from, int64_t to)
{
    refining *r = user;
    const int64_t rows = r->q->rows, group = r->first / r->group;
    for (int64_t i = 0; i < r->width; i++) {
        for (int64_t row = from; row < to; row++) {
            r->moves[i * rows + row] =
                nrd_qgrid_number(r->g, r->codes[(r->first + i) * rows + row], 1, r->q->zeros[row * r->q->n_groups + group]);
        }
    }
}

static void add_slopes(void *user, int64_t from, int64_t to)
{
    refining *r = user;
    const int64_t rows = r->q->rows;
    take_units(r, from, to);
    for (int64_t i = 0; i < r->width; i++) {
        for (int64_t row = from; row < to; row++) {
            const float unit = r->moves[i * rows + row];
            r->slope[row] += (double)(unit * r->lies[i * rows + row]);
            r->bend[row] += (double)(unit * r->times[i * rows + row]);
        }
    }
}

/* slope becomes what the scale grows by. */
static void choose_changes(refining *r, int64_t k)
{
    for (int64_t row = 0; row < r->q->rows; row++) {
        float change = 0;
        const bool grows = nrd_qgrid_better_scale(r->g, &r->q->scales[row * r->q->n_groups + k], r->slope[row], r->bend[row], &change);
        r->slope[row] = grows ? (double)change : 0;
    }
}

static void take_changes(void *user, int64_t from, int64_t to)
{
    refining *r = user;
    take_units(r, from, to);
    for (int64_t i = 0; i < r->width; i++) {
        for (int64_t row = from; row < to; row++) {
            r->moves[i * r->q->rows + row] *= (float)r->slope[row];
        }
    }
}

static nrd_error *move_wide_scale(refining *r, int64_t k)
{
    const int64_t from = k * r->group, to = from + r->group < r->q->cols ? from + r->group : r->q->cols;
    float *lies, *times;

    for (int64_t at = from; at < to; at += r->width) {
        take_block(r, at, to - at < BLOCK ? to - at : BLOCK);
        NRD_TRY(each_block(r, take_units, &r->spread, 1, at > from));
    }
    memset(r->slope, 0, (size_t)r->q->rows * sizeof *r->slope);
    memset(r->bend, 0, (size_t)r->q->rows * sizeof *r->bend);
    for (int64_t at = from; at < to; at += r->width) {
        take_block(r, at, to - at < BLOCK ? to - at : BLOCK);
        NRD_TRY(nrd_qplace_rows(r->m, &r->left, at, r->width, 0, &lies));
        NRD_TRY(nrd_qplace_rows(r->m, &r->spread, at, r->width, 1, &times));
        NRD_TRY(nrd_qplace_room(r->m, &r->change, 0, r->width, 2, &r->moves));
        r->lies = lies;
        r->times = times;
        nrd_qmath_each(r->m, r->q->rows, add_slopes, r);
    }
    choose_changes(r, k);
    for (int64_t at = from; at < to; at += r->width) {
        take_block(r, at, to - at < BLOCK ? to - at : BLOCK);
        NRD_TRY(each_block(r, take_changes, &r->left, -1, true));
    }
    return NULL;
}

/* ---- all ---- */

static nrd_error *begin(refining *r)
{
    const int64_t n = r->q->cols, rows = r->q->rows;

    NRD_TRY(nrd_qplace_new(r->m, n, n, &r->raised));
    NRD_TRY(nrd_qplace_new(r->m, n, rows, &r->left));
    NRD_TRY(nrd_qplace_new(r->m, BLOCK, rows, &r->change));
    for (int64_t at = 0; at < n; at += r->width) {
        float *raised;
        take_block(r, at, BLOCK);
        NRD_TRY(nrd_qplace_room(r->m, &r->raised, at, r->width, 0, &raised));
        memcpy(raised, r->gram + at * n, (size_t)(r->width * n) * sizeof *raised);
        for (int64_t i = 0; i < r->width; i++) {
            raised[i * n + at + i] += r->raise[at + i];
        }
        NRD_TRY(nrd_qplace_put(r->m, &r->raised, at, r->width, raised));
    }
    for (int64_t at = 0; at < n; at += r->width) {
        take_block(r, at, BLOCK);
        NRD_TRY(each_block(r, off_rows, &r->left, 1, true));
    }
    return NULL;
}

nrd_error *nrd_qrefine(nrd_qmath *m, const nrd_qgrid *g, const float *w, const float *gram, const float *raise, nrd_qrows *q)
{
    nrd_error *err = NULL;
    const int64_t n = q->cols;
    refining *r = NULL;

    NRD_NEW_GOTO(r, 1, err, done);
    r->m = m;
    r->g = g;
    r->w = w;
    r->gram = gram;
    r->raise = raise;
    r->q = q;
    r->ops = nrd_lane_ops_best();
    r->group = g->group > 0 && g->group < n ? g->group : n;
    const bool is_wide = r->group > BLOCK;
    NRD_NEW_GOTO(r->codes, n * q->rows, err, done);
    nrd_qmath_each(m, q->rows, turn_codes, r);
    NRD_TRY_GOTO(begin(r), err, done);
    if (is_wide) {
        NRD_TRY_GOTO(nrd_qplace_new(m, n, q->rows, &r->spread), err, done);
        NRD_NEW_GOTO(r->slope, q->rows, err, done);
        NRD_NEW_GOTO(r->bend, q->rows, err, done);
    }
    for (int k = 0; k < ROUNDS; k++) {
        NRD_TRY_GOTO(pass(r, !is_wide), err, done);
        for (int64_t group = 0; is_wide && group < q->n_groups; group++) {
            NRD_TRY_GOTO(move_wide_scale(r, group), err, done);
        }
    }
    NRD_TRY_GOTO(pass(r, false), err, done);
    nrd_qmath_each(m, q->rows, turn_codes_back, r);
done:
    if (r) {
        free(r->codes);
        nrd_qplace_free(m, &r->raised);
        nrd_qplace_free(m, &r->left);
        nrd_qplace_free(m, &r->change);
        nrd_qplace_free(m, &r->spread);
        free(r->slope);
        free(r->bend);
    }
    free(r);
    return err;
}
