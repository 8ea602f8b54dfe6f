/* SPDX-License-Identifier: Apache-2.0
 * left[row] = A (w - rounded), A the raised gram matrix, is kept beside the codes, turned: it says what each column's best
 * number is. Columns come in blocks: within a block the processor moves the codes of a group and then its scale, each knowing of those before it,
 * and what the block's changes mean for all columns is one product of the device. */
#include "tools/quantize/refine.h"

#include "base/mem.h"
#include "tools/quantize/block.h"

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
    nrd_qblock_add *add;
    int64_t group;
    nrd_qplace raised;  /* [n, n] */
    nrd_qplace left;    /* [n, rows] */
    nrd_qplace change;  /* [BLOCK, rows] */
    nrd_qplace spread;  /* [n, rows], of groups that are wider than a block: a group's numbers for scale 1, times the matrix */
    /* of a block */
    int64_t first, width;
    float corner[BLOCK * BLOCK]; /* [width, width] of the raised matrix */
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

/* What rows are off by. */
static void off_rows(void *user, int64_t from, int64_t to)
{
    refining *r = user;
    const int64_t cols = r->q->cols;
    nrd_qblock_tile off;

    for (int64_t row = from, n; row < to; row += n) {
        n = to - row < NRD_QBLOCK_ROWS ? to - row : NRD_QBLOCK_ROWS;
        for (int64_t k = 0; k < n; k++) {
            for (int64_t i = 0; i < r->width; i++) {
                const int64_t c = r->first + i, at = (row + k) * r->q->n_groups + c / r->group, is = (row + k) * cols + c;
                off[k][i] = r->w[is] - nrd_qgrid_number(r->g, r->q->codes[is], r->q->scales[at], r->q->zeros[at]);
            }
        }
        nrd_qblock_put(off, r->q->rows, row, n, r->width, r->moves);
    }
}

/* ---- codes ---- */

/* Of a row, columns [from, to) of a block. */
static void move_codes(refining *r, int64_t row, int64_t from, int64_t to, float *left, float *moves)
{
    uint8_t *codes = r->q->codes + row * r->q->cols + r->first;
    for (int64_t c = from; c < to; c++) {
        const float *column = r->corner + c * BLOCK;
        const int64_t at = row * r->q->n_groups + (r->first + c) / r->group;
        const float scale = r->q->scales[at], is = nrd_qgrid_number(r->g, codes[c], scale, r->q->zeros[at]);
        const uint8_t code = nrd_qgrid_code(r->g, is + left[c] / column[c], scale, r->q->zeros[at]);
        const float change = nrd_qgrid_number(r->g, code, scale, r->q->zeros[at]) - is;
        if (change == 0) {
            continue;
        }
        codes[c] = code;
        moves[c] += change;
        r->add(left, column, -change);
    }
}

/* ---- scales ---- */

/* The scale that is best, of those that a file can hold; *change: what it grows by. False: it stays. */
static bool better_scale(const refining *r, float *scale, double slope, double bend, float *change)
{
    if (!(bend > 0)) {
        return false; /* all of the group is 0 */
    }
    const double want = (double)*scale + slope / bend;
    const float to = want > 0 ? nrd_qgrid_scale(r->g, (float)want) : *scale;
    const double by = (double)to - (double)*scale;
    if (!(by * (by * bend - 2 * slope) < 0)) {
        return false; /* what the file can hold is no nearer */
    }
    *scale = to;
    *change = (float)by;
    return true;
}

/* The scale of a group within the block, from column `from` on. */
static void move_scale(refining *r, int64_t row, int64_t from, int64_t width, float *left, float *moves)
{
    const uint8_t *codes = r->q->codes + row * r->q->cols + r->first;
    const int64_t at = row * r->q->n_groups + (r->first + from) / r->group;
    float units[BLOCK], times[BLOCK] = {0}, change;
    double slope = 0, bend = 0;

    for (int64_t c = 0; c < width; c++) {
        units[c] = nrd_qgrid_number(r->g, codes[from + c], 1, r->q->zeros[at]);
        r->add(times, r->corner + (from + c) * BLOCK, units[c]);
    }
    for (int64_t c = 0; c < width; c++) {
        slope += (double)(units[c] * left[from + c]);
        bend += (double)(units[c] * times[from + c]);
    }
    if (!better_scale(r, &r->q->scales[at], slope, bend, &change)) {
        return;
    }
    for (int64_t c = 0; c < width; c++) {
        moves[from + c] += change * units[c];
    }
    r->add(left, times, -change);
}

static void move_block(void *user, int64_t from, int64_t to, bool scales)
{
    refining *r = user;
    const int64_t rows = r->q->rows, step = scales ? r->group : r->width;
    nrd_qblock_tile left = {0}, moves;

    for (int64_t row = from, n; row < to; row += n) {
        n = to - row < NRD_QBLOCK_ROWS ? to - row : NRD_QBLOCK_ROWS;
        nrd_qblock_take(r->lies, rows, row, n, r->width, left);
        memset(moves, 0, sizeof moves);
        for (int64_t k = 0; k < n; k++) {
            for (int64_t c = 0, end; c < r->width; c = end) {
                end = r->width - c < step ? r->width : c + step;
                move_codes(r, row + k, c, end, left[k], moves[k]);
                if (scales) {
                    move_scale(r, row + k, c, end - c, left[k], moves[k]);
                }
            }
        }
        nrd_qblock_put(moves, rows, row, n, r->width, r->moves);
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
    for (int64_t row = from; row < to; row++) {
        const uint8_t *codes = r->q->codes + row * r->q->cols + r->first;
        const uint8_t zero = r->q->zeros[row * r->q->n_groups + r->first / r->group];
        for (int64_t i = 0; i < r->width; i++) {
            r->moves[i * r->q->rows + row] = nrd_qgrid_number(r->g, codes[i], 1, zero);
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
        const bool grows = better_scale(r, &r->q->scales[row * r->q->n_groups + k], r->slope[row], r->bend[row], &change);
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
    r->add = nrd_qblock_adder();
    r->group = g->group > 0 && g->group < n ? g->group : n;
    const bool is_wide = r->group > BLOCK;
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
done:
    if (r) {
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
