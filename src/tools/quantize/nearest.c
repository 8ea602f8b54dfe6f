/* SPDX-License-Identifier: Apache-2.0
 * A group goes through in pieces of a block's columns, so that groups may be as wide as rows. */
#include "tools/quantize/nearest.h"

#include "tools/quantize/lanes.h"

#include <math.h>

enum { TRIES = 13, LANES = NRD_QLANES };
#define SHRINK_STEP 0.04f /* the smallest range that is tried is about half of all */

typedef struct nearest {
    const nrd_lane_ops *ops;
    const nrd_qgrid *g;
    const float *x; /* [n][cols] */
    const float *importance;
    int64_t row, n; /* of q, at most LANES of them */
    int64_t cols, from, to; /* columns of the group */
    nrd_lanes piece[NRD_QBLOCK], codes[NRD_QBLOCK];
    nrd_lanes scale, zero;
} nearest;

/* Columns from `at` on, as many as a block has; returns how many. */
static int64_t take_piece(nearest *s, int64_t at)
{
    const int64_t width = s->to - at < NRD_QBLOCK ? s->to - at : NRD_QBLOCK;
    for (int64_t i = 0; i < width; i++) {
        s->piece[i] = (nrd_lanes){0};
        for (int64_t k = 0; k < s->n; k++) {
            s->piece[i][k] = s->x[k * s->cols + at + i];
        }
    }
    return width;
}

static void over(const nearest *s, const nrd_lanes *low, const nrd_lanes *high, float part, nrd_lanes *scale, nrd_lanes *zero)
{
    for (int k = 0; k < LANES; k++) {
        float lane;
        uint8_t z;
        nrd_qgrid_over(s->g, (*low)[k] * part, (*high)[k] * part, &lane, &z);
        (*scale)[k] = lane;
        (*zero)[k] = (float)z;
    }
}

/* Of some ranges the one with the least errors. */
static void choose_range(nearest *s, const nrd_lanes *low, const nrd_lanes *high)
{
    nrd_lanes scales[TRIES], zeros[TRIES];
    nrd_wide_lanes sums[TRIES] = {{0}}, least;

    for (int t = 0; t < TRIES; t++) {
        over(s, low, high, 1 - (float)t * SHRINK_STEP, &scales[t], &zeros[t]);
    }
    for (int64_t at = s->from, width; at < s->to; at += width) {
        width = take_piece(s, at);
        s->ops->errors(s->g, s->piece, width, s->importance + at, TRIES, scales, zeros, sums);
    }
    least = (nrd_wide_lanes){0} + INFINITY;
    for (int t = 0; t < TRIES; t++) {
        for (int k = 0; k < LANES; k++) {
            if (sums[t][k] < least[k]) {
                least[k] = sums[t][k];
                s->scale[k] = scales[t][k];
                s->zero[k] = zeros[t][k];
            }
        }
    }
}

static void put_codes(nearest *s, int64_t at, int64_t width, nrd_qrows *q)
{
    s->ops->codes(s->g, s->piece, width, &s->scale, &s->zero, s->codes);
    for (int64_t k = 0; k < s->n; k++) {
        uint8_t *codes = q->codes + (s->row + k) * q->cols + at;
        for (int64_t i = 0; i < width; i++) {
            codes[i] = (uint8_t)s->codes[i][k];
        }
    }
}

static void round_group(nearest *s, int64_t group, nrd_qrows *q)
{
    /* 8 bits are fine enough for the largest number of a group, which a smaller range would cut off: texts where the column that it is for is
     * seldom large say it costs little, and then it makes the first token of all texts be off. And E4M3 gets no finer. */
    const bool keeps_all = s->g->bits == 8;
    nrd_lanes low = {0}, high = {0};

    for (int64_t at = s->from, width; at < s->to; at += width) {
        width = take_piece(s, at);
        s->ops->range(s->piece, width, &low, &high);
    }
    over(s, &low, &high, 1, &s->scale, &s->zero);
    if (s->importance && !keeps_all) {
        choose_range(s, &low, &high);
    }
    for (int64_t at = s->from, width; at < s->to; at += width) {
        width = take_piece(s, at);
        put_codes(s, at, width, q);
    }
    for (int64_t k = 0; k < s->n; k++) {
        q->scales[(s->row + k) * q->n_groups + group] = s->scale[k];
        q->zeros[(s->row + k) * q->n_groups + group] = (uint8_t)s->zero[k];
    }
}

void nrd_qrows_round(const nrd_qgrid *g, const float *x, const float *importance, int64_t row, int64_t n, nrd_qrows *q)
{
    const int64_t group = g->group > 0 ? g->group : q->cols;
    nearest s = {.ops = nrd_lane_ops_best(), .g = g, .importance = importance, .cols = q->cols};

    for (int64_t r = 0; r < n; r += LANES) {
        s.x = x + r * q->cols;
        s.row = row + r;
        s.n = n - r < LANES ? n - r : LANES;
        for (int64_t k = 0; k < q->n_groups; k++) {
            s.from = k * group;
            s.to = q->cols - s.from < group ? q->cols : s.from + group;
            round_group(&s, k, q);
        }
    }
}
