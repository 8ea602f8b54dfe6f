/* SPDX-License-Identifier: Apache-2.0
 * A picture as its whole and as tiles (Liu et al., LLaVA-NeXT, 2024; Li et al., LLaVA-OneVision, 2024; Abdin et al., Phi-3-vision, 2024). The rows of all tiles
 * lie side by side as the tiles do; those that show nothing of the picture are left out, and behind each line comes a row
 * that is learned. Where there are too many, they are shrunk before that (bilinear, corners not on corners). So is a frame of a video, which
 * is one tile, to half, and the learned row is behind the last one (LLaVA-OneVision). */
#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/tower_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The rows of all tiles, and what is made of them. */
typedef struct mosaic {
    const nrd_tower *t;
    const nrd_vision_tiles *tiles;
    const uint8_t *rows; /* [tiles, base rows, hidden] */
    int32_t side;        /* rows on a side of a tile */
    size_t row;          /* bytes */
} mosaic;

/* The row at (y, x) of those that are kept. */
static const uint8_t *row_at(const mosaic *m, int32_t y, int32_t x)
{
    const int32_t down = m->tiles->top + y, right = m->tiles->left + x;
    const int32_t tile = down / m->side * m->tiles->wide + right / m->side;
    const int32_t in = down % m->side * m->side + right % m->side;
    return m->rows + (size_t)(tile * m->side * m->side + in) * m->row;
}

static void load_row(const mosaic *m, int32_t y, int32_t x, float *out)
{
    nrd_dequantize_row(m->t->r->act, row_at(m, y, x), out, m->t->r->spec->hidden);
}

/* Where pixel i of `to` is among `from`, and the one behind it. */
static float place(int32_t i, int32_t from, int32_t to, int32_t *first, int32_t *second)
{
    const float at = fmaxf(0, ((float)i + 0.5f) * (float)from / (float)to - 0.5f);
    *first = (int32_t)at < from ? (int32_t)at : from - 1;
    *second = *first + 1 < from ? *first + 1 : *first;
    return at - (float)*first;
}

/* The weighted sum of the four rows around (y, x) of the shrunk ones. room: [2, hidden] */
static void shrunk_row(const mosaic *m, int32_t y, int32_t x, float *room, uint8_t *out)
{
    const size_t hidden = (size_t)m->t->r->spec->hidden;
    float *sum = room, *row = room + hidden;
    int32_t ys[2], xs[2];
    const float dy = place(y, m->tiles->kept_high, m->tiles->rows_high, &ys[0], &ys[1]);
    const float dx = place(x, m->tiles->kept_wide, m->tiles->rows_wide, &xs[0], &xs[1]);

    memset(sum, 0, hidden * sizeof *sum);
    for (int k = 0; k < 4; k++) {
        const float w = (k / 2 ? dy : 1 - dy) * (k % 2 ? dx : 1 - dx);
        load_row(m, ys[k / 2], xs[k % 2], row);
        for (size_t c = 0; c < hidden; c++) {
            sum[c] += w * row[c];
        }
    }
    nrd_tower_row(m->t, sum, hidden, out);
}

/* Lines of rows, each with the learned one behind it; newline NULL: without. */
static void put_lines(const mosaic *m, const uint8_t *newline, float *room, uint8_t *out)
{
    const nrd_vision_tiles *t = m->tiles;
    const bool shrinks = t->rows_high != t->kept_high || t->rows_wide != t->kept_wide;

    for (int32_t y = 0; y < t->rows_high; y++) {
        for (int32_t x = 0; x < t->rows_wide; x++, out += m->row) {
            if (shrinks) {
                shrunk_row(m, y, x, room, out);
            } else {
                memcpy(out, row_at(m, y, x), m->row);
            }
        }
        if (newline) {
            memcpy(out, newline, m->row);
            out += m->row;
        }
    }
}

/* The rows of one tile after the other, then those of the whole (InternVL, Idefics3). */
static nrd_error *run_in_turn(nrd_tower *t, const float *pixels, size_t n, size_t numbers, size_t bytes, uint8_t *rows)
{
    for (size_t i = 0; i < n; i++) {
        NRD_TRY(nrd_tower_fixed_run(t, pixels + (1 + i) * numbers, rows + i * bytes));
    }
    return nrd_tower_fixed_run(t, pixels, rows + n * bytes);
}

/* Lines of the tiles' rows, a row that is learned, lines of the whole's (Phi-3-vision). */
static nrd_error *run_separated(nrd_tower *t, const float *pixels, const nrd_vision_tiles *tiles, uint8_t *rows)
{
    const size_t row = (size_t)t->r->spec->hidden * t->r->act_bytes, base = (size_t)nrd_vision_n_base_rows(&t->s);
    const size_t n = (size_t)(tiles->high * tiles->wide), numbers = 3 * (size_t)t->s.image_size * (size_t)t->s.image_size;
    const int32_t side = t->s.image_size / t->s.patch_size / t->s.shuffle;
    const nrd_vision_tiles one = {.high = 1, .wide = 1, .kept_high = side, .kept_wide = side, .rows_high = side, .rows_wide = side};
    const size_t lines = (size_t)tiles->rows_high * (size_t)(tiles->rows_wide + 1) * row;
    mosaic m = {.t = t, .tiles = tiles, .side = side, .row = row};
    nrd_error *err = NULL;
    uint8_t *all = NULL, *newline = NULL;
    float *learned = NULL;

    NRD_NEW_GOTO(learned, t->project1.product.cols, err, done);
    NRD_NEW_GOTO(newline, row, err, done);
    NRD_NEW_GOTO(all, (1 + n) * base * row, err, done);
    nrd_weight_row(nrd_vision_weight(t->from, "sub_GN"), 0, learned);
    NRD_TRY_GOTO(nrd_tower_fixed_project(t, learned, newline), err, done);
    nrd_weight_row(nrd_vision_weight(t->from, "glb_GN"), 0, learned);
    NRD_TRY_GOTO(nrd_tower_fixed_project(t, learned, rows + lines), err, done);
    for (size_t i = 0; i <= n; i++) {
        NRD_TRY_GOTO(nrd_tower_fixed_run(t, pixels + i * numbers, all + i * base * row), err, done);
    }
    m.rows = all + base * row;
    put_lines(&m, newline, NULL, rows);
    m.rows = all;
    m.tiles = &one;
    put_lines(&m, newline, NULL, rows + lines + row);
done:
    free(all);
    free(newline);
    free(learned);
    return err;
}

/* A frame's rows, [base rows, hidden], shrunk; room: [2, hidden] */
static void put_frame(const mosaic *m, const uint8_t *frame, const uint8_t *newline, float *room, uint8_t *out)
{
    const int32_t half = nrd_vision_frame_side(&m->t->s);
    const nrd_vision_tiles one = {.high = 1, .wide = 1, .kept_high = m->side, .kept_wide = m->side, .rows_high = half, .rows_wide = half};
    const mosaic of_frame = {.t = m->t, .tiles = &one, .rows = frame, .side = m->side, .row = m->row};

    put_lines(&of_frame, NULL, room, out);
    if (newline) {
        memcpy(out + (size_t)half * (size_t)half * m->row, newline, m->row);
    }
}

nrd_error *nrd_tower_tiles_run(nrd_tower *t, const float *pixels, nrd_vision_grid grid, uint8_t *rows)
{
    const nrd_vision_tiles *const tiles = &grid.tiles;
    const size_t hidden = (size_t)t->r->spec->hidden, row = hidden * t->r->act_bytes, base = (size_t)nrd_vision_n_base_rows(&t->s);
    const size_t n = (size_t)(tiles->high * tiles->wide), numbers = 3 * (size_t)t->s.image_size * (size_t)t->s.image_size;
    mosaic m = {.t = t, .tiles = tiles, .side = t->s.image_size / t->s.patch_size, .row = row};
    nrd_error *err = NULL;
    uint8_t *all = NULL, *newline = NULL;
    float *room = NULL;

    if (t->s.separated) {
        return run_separated(t, pixels, tiles, rows);
    }
    if (t->s.tiles_first) {
        return run_in_turn(t, pixels, n, numbers, base * row, rows);
    }
    NRD_NEW_GOTO(room, 2 * hidden, err, done);
    NRD_NEW_GOTO(newline, row, err, done);
    nrd_weight_row(nrd_vision_weight(t->from, "image_newline"), 0, room);
    nrd_tower_row(t, room, hidden, newline);
    if (grid.frames > 0) {
        NRD_NEW_GOTO(all, base * row, err, done);
        NRD_TRY_GOTO(nrd_tower_fixed_run(t, pixels, all), err, done);
        put_frame(&m, all, grid.ends ? newline : NULL, room, rows);
        goto done;
    }
    NRD_TRY_GOTO(nrd_tower_fixed_run(t, pixels, rows), err, done);
    if (n == 0) {
        memcpy(rows + base * row, newline, row);
        goto done;
    }
    NRD_NEW_GOTO(all, n * base * row, err, done);
    for (size_t i = 0; i < n; i++) {
        NRD_TRY_GOTO(nrd_tower_fixed_run(t, pixels + (1 + i) * numbers, all + i * base * row), err, done);
    }
    m.rows = all;
    put_lines(&m, newline, room, rows + base * row);
done:
    free(all);
    free(newline);
    free(room);
    return err;
}
