/* SPDX-License-Identifier: Apache-2.0
 * Squares of patches that become rows, where the patches on a side are no multiple of theirs (VILA). In the layers the whole squares come
 * first, then those at the right from the top down, those below from the left on, and the one in the corner. Behind the layers what these
 * lack is filled up with zeros, and their rows take their places among the others. */
#include "engine/run/tower_internal.h"

/* The squares of a tower. */
typedef struct border {
    int32_t side, m, n, rest; /* patches on a side; of a square; whole squares on a side; patches of the border, less than m */
} border;

static border border_of(int32_t side, int32_t m)
{
    return (border){side, m, side / m, side % m};
}

/* Patches of square k of the border, down and across, and the upper left one. */
static void square_at(const border *b, int32_t k, int32_t *high, int32_t *wide, int32_t *top, int32_t *left)
{
    const bool right = k < b->n, corner = k == 2 * b->n;
    *high = right ? b->m : b->rest;
    *wide = right || corner ? b->rest : b->m;
    *top = (right ? k : b->n) * b->m;
    *left = (right || corner ? b->n : k - b->n) * b->m;
}

int32_t nrd_tower_border_patch(int32_t side, int32_t m, int32_t i)
{
    const border b = border_of(side, m);
    int32_t high, wide, top, left, k = 0;

    for (square_at(&b, 0, &high, &wide, &top, &left); i >= high * wide; square_at(&b, k, &high, &wide, &top, &left)) {
        i -= high * wide;
        k++;
    }
    return (top + i / wide) * side + left + i % wide;
}

nrd_error *nrd_tower_fill_border(nrd_tower *t, const void *states, void *squares)
{
    const nrd_device_ops *ops = t->r->dev->ops;
    const border b = border_of(t->s.image_size / t->s.patch_size, t->s.shuffle);
    const size_t row = (size_t)t->s.hidden * t->r->act_bytes, whole = (size_t)(b.n * b.n * b.m * b.m) * row;
    const uint8_t *from = (const uint8_t *)states + whole;
    uint8_t *to = (uint8_t *)squares + whole;

    NRD_TRY(whole ? ops->copy(t->r->stream, squares, states, whole) : NULL);
    NRD_TRY(ops->fill(t->r->stream, to, 0, (size_t)((2 * b.n + 1) * b.m * b.m) * row));
    for (int32_t k = 0; k <= 2 * b.n; k++) {
        int32_t high, wide, top, left;
        square_at(&b, k, &high, &wide, &top, &left);
        for (int32_t y = 0; y < high; y++) {
            NRD_TRY(ops->copy(t->r->stream, to + (size_t)(y * b.m) * row, from, (size_t)wide * row));
            from += (size_t)wide * row;
        }
        to += (size_t)(b.m * b.m) * row;
    }
    return NULL;
}

nrd_error *nrd_tower_sort_border(nrd_tower *t, const void *from, void *rows)
{
    const nrd_device_ops *ops = t->r->dev->ops;
    const border b = border_of(t->s.image_size / t->s.patch_size, t->s.shuffle);
    const size_t row = (size_t)t->r->spec->hidden * t->r->act_bytes, line = (size_t)b.n * row;
    const uint8_t *right = (const uint8_t *)from + (size_t)b.n * line;
    uint8_t *to = rows;

    for (int32_t y = 0; y < b.n; y++) {
        NRD_TRY(ops->copy(t->r->stream, to, (const uint8_t *)from + (size_t)y * line, line));
        NRD_TRY(ops->copy(t->r->stream, to + line, right + (size_t)y * row, row));
        to += line + row;
    }
    return ops->copy(t->r->stream, to, right + line, line + row); /* those below, and the corner */
}
