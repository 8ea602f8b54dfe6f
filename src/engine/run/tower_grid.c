/* SPDX-License-Identifier: Apache-2.0
 * Pictures that keep their shape (Wang et al., Qwen2-VL, 2024; Bai et al., Qwen2.5-VL, 2025). merge x merge patches, a
 * square, become one row of the decoder, and stand together in the layers; a half of a head's pairs turns by a patch's
 * row, the other half by its column. With windows squares are sorted by the window that they are in, so that a window is
 * a run of tokens, and in most layers a sequence of its own; the rows are sorted back in the end.
 * Qwen3-VL adds learned positions, a square of them that is spread over the picture (bilinear, corners on corners), and
 * rows of the decoder have parts that other layers' states are made into (Meng et al., DeepStack, 2024). */
#include "base/mem.h"
#include "engine/run/tower_internal.h"
#include "engine/run/operations.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Windows of a picture have at most so many; sides of pictures are at most 200 to 1, and by rounding to squares some 300. */
static int32_t count_most_windows(const nrd_tower *t)
{
    const double squares = (double)(t->most / nrd_tower_merged(t)), window = t->s.window;
    return t->s.window > 0 ? (int32_t)(squares / (window * window) + (18 * sqrt(squares) + 3) / window) + 1 : 1;
}

static nrd_error *make_angles(nrd_tower *t)
{
    const int32_t pairs = t->s.hidden / t->s.n_heads / 2, half = pairs / 2;
    float inv_freq[NRD_SPEC_MAX_ROTARY / 2] = {0};
    uint8_t axis[NRD_SPEC_MAX_ROTARY / 2] = {0};
    void *p = NULL;

    for (int32_t i = 0; i < pairs; i++) {
        const double between = t->s.turns_by_turns && i >= half ? 0.5 : 0;
        inv_freq[i] = (float)(1 / pow(t->s.rope_base, (i % half + between) / half));
        axis[i] = (i < half) == t->s.sandwiched ? 1 : 0; /* Gemma 4's columns come first */
    }
    NRD_TRY(nrd_run_alloc(t->r, &p, sizeof inv_freq, 1, NRD_TOWER_POOL));
    t->inv_freq = p;
    NRD_TRY(nrd_run_alloc(t->r, &p, sizeof axis, 1, NRD_TOWER_POOL));
    t->pair_axis = p;
    NRD_TRY(nrd_run_upload(t->r, t->inv_freq, inv_freq, sizeof inv_freq));
    return nrd_run_upload(t->r, t->pair_axis, axis, sizeof axis);
}

/* Numbers of a view's arrays: of so many tokens, sequences and blocks of one. */
static size_t count_numbers(size_t n, size_t n_seqs, size_t stride)
{
    return 2 * n + 2 * n_seqs + 1 + n_seqs * stride;
}

nrd_error *nrd_tower_grid_init(nrd_tower *t)
{
    nrd_runner *r = t->r;
    const int32_t bt = r->cfg.block_tokens, in_window = t->s.window * t->s.window * nrd_tower_merged(t);
    const size_t n = (size_t)t->most, squares = n / (size_t)nrd_tower_merged(t), blocks = (n + (size_t)bt - 1) / (size_t)bt;
    nrd_error *err = NULL;
    void *p = NULL;

    t->most_windows = count_most_windows(t);
    const size_t windows = (size_t)t->most_windows, stride = (size_t)((in_window + bt - 1) / bt);
    const size_t count = n * NRD_ROPE_AXES + count_numbers(n, 1, blocks) + count_numbers(n, windows, stride);
    const size_t n_blocks = blocks + (t->s.window > 0 ? windows : 0);
    NRD_NEW_GOTO(t->host_arrays, count, err, fail);
    NRD_NEW_GOTO(t->order, squares, err, fail);
    NRD_NEW_GOTO(t->rows, squares * (size_t)r->spec->hidden * r->act_bytes, err, fail);
    if (t->s.positions_side || t->s.sandwiched) {
        NRD_NEW_GOTO(t->spread, n * (size_t)t->s.hidden * r->act_bytes, err, fail);
    }
    NRD_TRY(nrd_run_alloc(r, &p, count, sizeof *t->arrays, NRD_TOWER_POOL));
    t->arrays = p;
    t->kv = (nrd_kv_layer){.dtype = r->act, .n_blocks = (int32_t)n_blocks, .block_tokens = bt, .n_kv_heads = t->s.n_heads,
                           .head_dim = t->head_dim};
    NRD_TRY(nrd_run_alloc(r, &t->kv.base, n_blocks,
                          r->dev->ops->kv_block_bytes(r->dev, r->act, bt, t->s.n_heads, t->head_dim), NRD_TOWER_POOL));
    return make_angles(t);
fail:
    return err;
}

/* ---- where the patches of a picture go ---- */

/* Squares sorted by windows; ends[k]: the squares up to the end of window k. Returns how many windows there are. */
static int32_t sort_squares(const nrd_tower *t, nrd_vision_grid grid, int32_t *ends)
{
    const int32_t height = grid.height / t->s.merge, width = grid.width / t->s.merge;
    const int32_t side = t->s.window > 0 ? t->s.window : height > width ? height : width;
    int32_t n = 0, n_windows = 0;

    for (int32_t y0 = 0; y0 < height; y0 += side) {
        for (int32_t x0 = 0; x0 < width; x0 += side) {
            for (int32_t y = y0; y < y0 + side && y < height; y++) {
                for (int32_t x = x0; x < x0 + side && x < width; x++) {
                    t->order[n++] = y * width + x;
                }
            }
            NRD_ASSERT(n_windows < t->most_windows, "sides of pictures are bounded");
            ends[n_windows++] = n;
        }
    }
    return n_windows;
}

/* Row and column of the patch that is token i. */
static void patch_at(const nrd_tower *t, nrd_vision_grid grid, int32_t i, int32_t *y, int32_t *x)
{
    const int32_t m = t->s.merge, width = grid.width / m, square = t->order[i / (m * m)], in = i % (m * m);
    *y = square / width * m + in / m;
    *x = square % width * m + in % m;
}

/* Sequences that end at ends[n_seqs], in squares, and blocks one behind the other; `at`: room of the host's arrays. Returns
 * what is behind the room that was used. */
static int32_t *fill_view(nrd_tower *t, nrd_batch_view *v, const int32_t *ends, int32_t n_seqs, int32_t *at)
{
    const int32_t bt = t->kv.block_tokens, m = nrd_tower_merged(t);
    int32_t longest = 0, n_blocks = 0;

    for (int32_t s = 0; s < n_seqs; s++) {
        const int32_t n = (ends[s] - (s > 0 ? ends[s - 1] : 0)) * m;
        longest = n > longest ? n : longest;
    }
    const int32_t stride = (longest + bt - 1) / bt;
    int32_t *positions = at, *token_seq = positions + t->n, *q_start = token_seq + t->n, *ctx = q_start + n_seqs + 1,
            *table = ctx + n_seqs;
    q_start[0] = 0;
    for (int32_t s = 0; s < n_seqs; s++) {
        q_start[s + 1] = ends[s] * m;
        ctx[s] = q_start[s + 1] - q_start[s];
        for (int32_t i = 0; i < ctx[s]; i++) {
            positions[q_start[s] + i] = i;
            token_seq[q_start[s] + i] = s;
        }
        for (int32_t k = 0; k < stride; k++) {
            table[s * stride + k] = k * bt < ctx[s] ? n_blocks++ : -1;
        }
    }
    NRD_ASSERT(n_blocks <= t->kv.n_blocks, "each window has one block that is not full at most");
    const int32_t *const base = t->arrays + (at - t->host_arrays);
    *v = (nrd_batch_view){.n_tokens = t->n,
                          .n_seqs = n_seqs,
                          .max_q_len = longest,
                          .max_ctx_len = longest,
                          .positions = base,
                          .axes = t->arrays,
                          .token_seq = base + (token_seq - at),
                          .q_start = base + (q_start - at),
                          .ctx_len = base + (ctx - at),
                          .block_table = base + (table - at),
                          .block_table_stride = stride};
    return table + (size_t)n_seqs * (size_t)stride;
}

static nrd_error *place(nrd_tower *t, nrd_vision_grid grid)
{
    int32_t *at = t->host_arrays + (size_t)t->n * NRD_ROPE_AXES;
    const int32_t all = t->n / nrd_tower_merged(t);
    nrd_error *err = NULL;
    int32_t *ends = NULL;

    NRD_NEW_GOTO(ends, t->most_windows, err, done);
    const int32_t n_windows = sort_squares(t, grid, ends);
    for (int32_t i = 0; i < t->n; i++) {
        int32_t *axes = t->host_arrays + (size_t)i * NRD_ROPE_AXES;
        patch_at(t, grid, i, &axes[0], &axes[1]);
        axes[2] = 0;
    }
    at = fill_view(t, &t->view, &all, 1, at);
    if (t->s.window > 0) {
        at = fill_view(t, &t->windows, ends, n_windows, at);
    }
    err = nrd_run_upload(t->r, t->arrays, t->host_arrays, (size_t)(at - t->host_arrays) * sizeof *at);
done:
    free(ends);
    return err;
}

/* ---- one picture ---- */

/* Pixels by patches, as the first product's weights lie: channel, frame, row, column. Frames are those of a video, or all of them the picture. */
static void cut(const nrd_tower *t, const float *pixels, nrd_vision_grid grid)
{
    const size_t p = (size_t)t->s.patch_size, frames = (size_t)t->s.frames, act = t->r->act_bytes;
    const size_t height = (size_t)grid.height * p, width = (size_t)grid.width * p, numbers = 3 * frames * p * p;

    for (int32_t i = 0; i < t->n; i++) {
        int32_t y, x;
        patch_at(t, grid, i, &y, &x);
        for (size_t k = 0; k < 3 * frames * p; k++) { /* rows of a patch, of one channel and frame after the other */
            const size_t plane = (grid.frames > 0 ? k / p % frames * 3 : 0) + k / (frames * p), row = (size_t)y * p + k % p;
            nrd_tower_row(t, pixels + (plane * height + row) * width + (size_t)x * p, p,
                          t->staged + ((size_t)i * numbers + k * p) * act);
        }
    }
}

/* Learned positions of the picture's patches, and the patches as the delta behind them. */
static nrd_error *spread_positions(nrd_tower *t, nrd_vision_grid grid)
{
    const nrd_weight *table = nrd_vision_weight(t->from, "pos_embed.weight");
    const size_t hidden = (size_t)t->s.hidden, bytes = hidden * t->r->act_bytes;
    const int32_t side = t->s.positions_side;
    nrd_error *err = NULL;
    float *sum = NULL;

    NRD_NEW_GOTO(sum, 2 * hidden, err, done);
    float *const row = sum + hidden;
    for (int32_t i = 0; i < t->n; i++) {
        int32_t y, x;
        patch_at(t, grid, i, &y, &x);
        const float down = grid.height > 1 ? (float)y * (float)(side - 1) / (float)(grid.height - 1) : 0;
        const float right = grid.width > 1 ? (float)x * (float)(side - 1) / (float)(grid.width - 1) : 0;
        const int32_t y0 = (int32_t)down, x0 = (int32_t)right;
        memset(sum, 0, hidden * sizeof *sum);
        for (int k = 0; k < 4; k++) { /* the four around it */
            const float wy = k / 2 ? down - (float)y0 : 1 - (down - (float)y0), wx = k % 2 ? right - (float)x0 : 1 - (right - (float)x0);
            const int32_t at_y = y0 + k / 2 < side ? y0 + k / 2 : side - 1, at_x = x0 + k % 2 < side ? x0 + k % 2 : side - 1;
            nrd_weight_row(table, (int64_t)at_y * side + at_x, row);
            for (size_t c = 0; c < hidden; c++) {
                sum[c] += wy * wx * row[c];
            }
        }
        nrd_tower_row(t, sum, hidden, t->spread + (size_t)i * bytes);
    }
    err = nrd_run_upload(t->r, t->x, t->spread, (size_t)t->n * bytes);
done:
    free(sum);
    return err;
}

/* The states as the decoder's rows without a norm, or one state of each square first (Mistral 3). */
static nrd_error *put_plain(nrd_tower *t, bool has_delta)
{
    nrd_norm_args a = {
        .kind = NRD_NORM_RMS,
        .eps = t->s.merge_eps,
        .n_tokens = t->n,
        .hidden = t->s.hidden,
        .residual = t->x,
        .weight = &t->post_norm.w,
        .out = t->normed,
        .out_dtype = t->r->act,
        .act_dtype = t->r->act,
    };

    NRD_TRY(has_delta ? nrd_tower_norm(t, true, NULL, NULL, false, NULL) : NULL);
    if (t->s.merge == 1) {
        return nrd_tower_merge_part(t, t->x, &t->project1, &t->project2, 0);
    }
    NRD_TRY(t->r->dev->ops->norm(t->r->stream, &a));
    NRD_TRY(nrd_extra_multiply(t->r, &t->merge.product, &t->in, t->normed, t->n / nrd_tower_merged(t), t->att, t->r->act, 0));
    return nrd_tower_merge_part(t, t->att, &t->project1, &t->project2, 0);
}

/* The first product of patches: as the state, or as the delta behind positions, or normed. */
static nrd_error *enter(nrd_tower *t, nrd_vision_grid grid, bool *has_delta)
{
    nrd_runner *r = t->r;
    const bool apart = t->spread || t->s.pre_norm;

    NRD_TRY(t->s.sandwiched ? nrd_tower_gemma4_positions(t) : t->spread ? spread_positions(t, grid) : NULL);
    NRD_TRY(nrd_extra_multiply(r, &t->patch.product, &t->in, t->pixels, t->n, apart ? t->delta : t->x, r->act, 0));
    *has_delta = t->spread != NULL;
    if (!t->s.pre_norm) {
        return NULL;
    }
    NRD_TRY(r->dev->ops->fill(r->stream, t->x, 0, (size_t)t->n * (size_t)t->s.hidden * r->act_bytes));
    return nrd_tower_norm(t, true, &t->pre_norm, NULL, true, NULL);
}

nrd_error *nrd_tower_grid_run(nrd_tower *t, const float *pixels, nrd_vision_grid grid, void *rows)
{
    nrd_runner *r = t->r;
    bool has_delta = false;

    t->n = grid.height * grid.width;
    t->out = rows;
    NRD_ASSERT(t->n > 0 && t->n <= t->most && t->n % nrd_tower_merged(t) == 0, "pictures are fitted into the tower");
    NRD_TRY(place(t, grid));
    cut(t, pixels, grid);
    NRD_TRY(nrd_run_upload(r, t->pixels, t->staged, (size_t)t->n * (size_t)t->patch.product.cols * r->act_bytes));
    NRD_TRY(enter(t, grid, &has_delta));
    if (t->s.sandwiched) {
        NRD_TRY(nrd_tower_gemma4_layers(t));
        return nrd_tower_gemma4_rows(t);
    }
    NRD_TRY(nrd_tower_layers(t, &has_delta));
    if (t->s.plain) {
        return put_plain(t, has_delta);
    }
    NRD_TRY(nrd_tower_norm(t, has_delta, &t->post_norm, &t->post_norm_bias, false, NULL));
    return nrd_tower_merge_part(t, t->normed, &t->project1, &t->project2, 0);
}
