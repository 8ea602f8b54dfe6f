/* SPDX-License-Identifier: Apache-2.0
 * Pictures that are squares of one size.
 * The class token and the positions are the same for every picture: they lie ready as the state before the first layer, and
 * the patches' products are the delta that the norm behind it adds.
 * Where squares of patches are pooled, patches go through the layers in another order, in which they have no part but by
 * their positions: first the first one of each square, then the second one, and so on. The sum over squares is one of
 * blocks of rows then, and the norm behind it makes no difference between sum and mean, but for its epsilon. */
#include "base/mem.h"
#include "engine/run/tower_internal.h"
#include "engine/run/operations.h"

#include <stdlib.h>
#include <string.h>

/* The patch, by rows of the picture, that token i of the layers is; without the class token. */
static int32_t patch_at(const nrd_tower *t, int32_t i)
{
    const int32_t pool = t->s.pool, side = t->s.image_size / t->s.patch_size;

    if (t->s.shuffle > 1) { /* the patches of a square stand together */
        const int32_t m = t->s.shuffle, wide = side / m, one = i / (m * m), at = i % (m * m);
        return one < wide * wide ? (one / wide * m + at / m) * side + one % wide * m + at % m : nrd_tower_border_patch(side, m, i - wide * wide * m * m);
    }
    if (pool < 2) {
        return i;
    }
    const int32_t squares = side / pool, square = i % (squares * squares), in = i / (squares * squares);
    return (square / squares * pool + in / pool) * side + square % squares * pool + in % pool;
}

/* The state before the patches are added. */
static nrd_error *make_start(nrd_tower *t)
{
    const size_t hidden = (size_t)t->s.hidden, bytes = (size_t)t->n * hidden * t->r->act_bytes;
    const nrd_weight *positions = nrd_vision_weight(t->from, "embeddings.position_embedding.weight");
    const nrd_weight *class = nrd_vision_weight(t->from, "embeddings.class_embedding");
    nrd_error *err = NULL;
    uint8_t *host = NULL;
    float *row = NULL, *first = NULL, *spread = NULL;

    NRD_NEW_GOTO(host, bytes, err, done);
    NRD_NEW_GOTO(row, hidden, err, done);
    NRD_NEW_GOTO(first, hidden, err, done);
    if (class) {
        nrd_weight_row(class, 0, first);
    }
    if (t->s.resampled) {
        NRD_NEW_GOTO(spread, (size_t)t->n * hidden, err, done);
        NRD_TRY_GOTO(nrd_tower_spread_square(positions, t->s.image_size / t->s.patch_size, spread), err, done);
    }
    for (int32_t i = 0; i < t->n && spread; i++) {
        nrd_tower_row(t, spread + (size_t)i * hidden, hidden, host + (size_t)i * hidden * t->r->act_bytes);
    }
    for (int32_t i = 0; i < t->n && !spread; i++) {
        nrd_weight_row(positions, i < t->n_class ? i : t->n_class + patch_at(t, i - t->n_class), row);
        for (size_t k = 0; k < hidden && i < t->n_class; k++) {
            row[k] += first[k];
        }
        nrd_tower_row(t, row, hidden, host + (size_t)i * hidden * t->r->act_bytes);
    }
    NRD_TRY_GOTO(nrd_run_alloc(t->r, &t->start, bytes, 1, NRD_TOWER_POOL), err, done);
    err = nrd_run_upload(t->r, t->start, host, bytes);
done:
    free(host);
    free(row);
    free(first);
    free(spread);
    return err;
}

/* One sequence of n tokens, and the blocks of one layer. */
static nrd_error *make_view(nrd_tower *t)
{
    nrd_runner *r = t->r;
    const int32_t bt = r->cfg.block_tokens, n_blocks = (t->n + bt - 1) / bt, head_dim = t->head_dim;
    const size_t n = (size_t)t->n, count = 2 * n + 3 + (size_t)n_blocks;
    nrd_error *err = NULL;
    int32_t *host = NULL;
    void *p = NULL;

    NRD_NEW_GOTO(host, count, err, done);
    for (int32_t i = 0; i < t->n; i++) {
        host[i] = i; /* and which sequence: 0 */
    }
    host[2 * n + 1] = t->n; /* q_start: 0, n */
    host[2 * n + 2] = t->n; /* ctx_len */
    for (int32_t i = 0; i < n_blocks; i++) {
        host[2 * n + 3 + (size_t)i] = i;
    }
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, count, sizeof *host, NRD_TOWER_POOL), err, done);
    t->arrays = p;
    NRD_TRY_GOTO(nrd_run_upload(r, t->arrays, host, count * sizeof *host), err, done);
    t->view = (nrd_batch_view){.n_tokens = t->n,
                               .n_seqs = 1,
                               .max_q_len = t->n,
                               .max_ctx_len = t->n,
                               .positions = t->arrays,
                               .token_seq = t->arrays + n,
                               .q_start = t->arrays + 2 * n,
                               .ctx_len = t->arrays + 2 * n + 2,
                               .block_table = t->arrays + 2 * n + 3,
                               .block_table_stride = n_blocks};
    t->kv = (nrd_kv_layer){.dtype = r->act, .n_blocks = n_blocks, .block_tokens = bt, .n_kv_heads = t->s.n_heads,
                           .head_dim = head_dim};
    err = nrd_run_alloc(r, &t->kv.base, (size_t)n_blocks, r->dev->ops->kv_block_bytes(r->dev, r->act, bt, t->s.n_heads, head_dim),
                        NRD_TOWER_POOL);
done:
    free(host);
    return err;
}

nrd_error *nrd_tower_fixed_init(nrd_tower *t)
{
    t->n = nrd_vision_n_states(&t->s);
    NRD_TRY(make_start(t));
    NRD_TRY(make_view(t));
    return t->s.latent ? nrd_tower_latent_init(t) : t->s.resampled ? nrd_tower_resampler_init(t) : t->s.queries.n ? nrd_tower_queries_init(t) : NULL;
}

/* Pixels by patches, as the first product's weights lie: channel, row, column. */
static void cut(const nrd_tower *t, const float *pixels)
{
    const size_t size = (size_t)t->s.image_size, p = (size_t)t->s.patch_size, side = size / p;
    for (size_t i = 0; i < side * side; i++) {
        for (size_t k = 0; k < 3 * p; k++) { /* rows of a patch, of one channel after the other */
            const size_t at = (size_t)patch_at(t, (int32_t)i), channel = k / p, y = at / side * p + k % p, x = at % side * p;
            nrd_tower_row(t, pixels + (channel * size + y) * size + x, p, t->staged + (i * 3 * p * p + k * p) * t->r->act_bytes);
        }
    }
}

static nrd_error *enter(nrd_tower *t, const float *pixels)
{
    nrd_runner *r = t->r;
    const size_t row = (size_t)t->s.hidden * r->act_bytes;

    cut(t, pixels);
    NRD_TRY(nrd_run_upload(r, t->pixels, t->staged, (size_t)(t->n - t->n_class) * (size_t)t->patch.product.cols * r->act_bytes));
    NRD_TRY(r->dev->ops->copy(r->stream, t->x, t->start, (size_t)t->n * row));
    NRD_TRY(t->n_class ? r->dev->ops->fill(r->stream, t->delta, 0, (size_t)t->n_class * row) : NULL);
    NRD_TRY(nrd_extra_multiply(r, &t->patch.product, &t->in, t->pixels, (t->n - t->n_class),
                               (uint8_t *)t->delta + (size_t)t->n_class * row, r->act, 0));
    return nrd_tower_has_pre_norm(t) ? nrd_tower_norm(t, true, &t->pre_norm, &t->pre_norm_bias, true, NULL)
                          : nrd_tower_norm(t, true, NULL, NULL, false, NULL);
}

/* Two products of n rows, into delta. */
static nrd_error *project_rows(nrd_tower *t, const void *rows, int32_t n)
{
    NRD_TRY(nrd_extra_multiply(t->r, &t->project1.product, &t->in, rows, n, t->up, t->r->act, 0));
    NRD_TRY(nrd_tower_activate(t, t->s.projector_act, false, n, t->project1.product.rows, &t->project2.product));
    return nrd_tower_multiply(t, &t->project2, t->mid, n, t->delta);
}

/* … of the states that are the decoder's, or of n squares of them side by side. */
static nrd_error *project(nrd_tower *t, int32_t n)
{
    const int32_t first = t->n - n * (t->s.shuffle ? t->s.shuffle * t->s.shuffle : 1);

    NRD_TRY(nrd_tower_norm(t, true, NULL, NULL, false, NULL));
    return project_rows(t, (uint8_t *)t->x + (size_t)first * (size_t)t->s.hidden * t->r->act_bytes, n);
}

nrd_error *nrd_tower_fixed_project(nrd_tower *t, const float *numbers, void *row)
{
    nrd_runner *r = t->r;
    const size_t n = (size_t)t->project1.product.cols;
    nrd_error *err = NULL;
    uint8_t *host = NULL;

    NRD_NEW_GOTO(host, n * r->act_bytes, err, done);
    nrd_tower_row(t, numbers, n, host);
    NRD_TRY_GOTO(nrd_run_upload(r, t->x, host, n * r->act_bytes), err, done);
    NRD_TRY_GOTO(project_rows(t, t->x, 1), err, done);
    NRD_TRY_GOTO(r->dev->ops->copy(r->stream, row, t->delta, (size_t)r->spec->hidden * r->act_bytes), err, done);
    err = r->dev->ops->stream_sync(r->stream);
done:
    free(host);
    return err;
}

/* A norm and two products of n squares' states side by side. */
static nrd_error *project_squares(nrd_tower *t, int32_t n)
{
    nrd_runner *r = t->r;
    uint8_t *squares = (uint8_t *)t->x + (size_t)t->n_class * (size_t)t->s.hidden * r->act_bytes;
    const bool has_border = t->s.image_size / t->s.patch_size % t->s.shuffle != 0;
    nrd_norm_args a = {
        .kind = NRD_NORM_LAYER,
        .eps = t->s.merge_eps,
        .n_tokens = n,
        .hidden = t->s.hidden * t->s.shuffle * t->s.shuffle,
        .residual = has_border ? t->qkv : squares,
        .weight = &t->post_norm.w,
        .bias = &t->post_norm_bias.w,
        .out = t->normed,
        .out_dtype = r->act,
        .act_dtype = r->act,
    };

    NRD_TRY(nrd_tower_norm(t, true, NULL, NULL, false, NULL));
    NRD_TRY(has_border ? nrd_tower_fill_border(t, squares, t->qkv) : NULL);
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return project_rows(t, t->normed, n);
}

/* A norm of each state, and one product of n squares' states side by side. */
static nrd_error *project_once(nrd_tower *t, int32_t n)
{
    NRD_TRY(nrd_tower_norm(t, true, &t->post_norm, &t->post_norm_bias, false, NULL));
    return nrd_extra_multiply(t->r, &t->project1.product, &t->in, t->normed, n, t->delta, t->r->act, 0);
}

/* The norm of the sum of n blocks of rows, and a product of it. The epsilon is that of their mean. */
static nrd_error *pool(nrd_tower *t, int32_t n)
{
    nrd_runner *r = t->r;
    const size_t block = (size_t)n * (size_t)t->s.hidden * r->act_bytes;
    const int32_t n_blocks = t->s.pool * t->s.pool;
    nrd_norm_args a = {
        .kind = NRD_NORM_RMS,
        .eps = t->s.norm_eps * (float)n_blocks * (float)n_blocks,
        .n_tokens = n,
        .hidden = t->s.hidden,
        .residual = t->normed,
        .weight = &t->pool_norm.w,
        .out = t->att,
        .out_dtype = r->act,
        .act_dtype = r->act,
    };

    NRD_TRY(nrd_tower_norm(t, true, &t->post_norm, &t->post_norm_bias, false, NULL));
    for (int32_t i = 1; i < n_blocks; i++) {
        a.delta = (uint8_t *)t->normed + (size_t)i * block;
        NRD_TRY(r->dev->ops->norm(r->stream, &a));
    }
    if (n_blocks == 1) {
        NRD_TRY(r->dev->ops->norm(r->stream, &a));
    }
    return nrd_extra_multiply(r, &t->project1.product, &t->in, t->att, n, t->delta, r->act, 0);
}

nrd_error *nrd_tower_fixed_run(nrd_tower *t, const float *pixels, void *rows)
{
    nrd_runner *r = t->r;
    const int32_t n = nrd_vision_n_base_rows(&t->s);
    bool has_delta = false;

    NRD_TRY(enter(t, pixels));
    if (t->s.post_normed) {
        return nrd_tower_cogvlm_run(t, rows);
    }
    NRD_TRY(nrd_tower_layers(t, &has_delta));
    NRD_TRY(t->s.latent ? nrd_tower_latent_run(t) : t->s.resampled ? nrd_tower_resampler_run(t) : t->s.queries.n ? nrd_tower_queries_run(t) : t->s.pool ? pool(t, n) : t->s.one_product ? project_once(t, n) : t->s.shuffle && !t->s.separated ? project_squares(t, n) : project(t, n));
    if (t->s.shuffle && t->s.image_size / t->s.patch_size % t->s.shuffle) {
        NRD_TRY(nrd_tower_sort_border(t, t->delta, rows));
    } else {
        NRD_TRY(r->dev->ops->copy(r->stream, rows, t->delta, (size_t)n * (size_t)r->spec->hidden * r->act_bytes));
    }
    return r->dev->ops->stream_sync(r->stream);
}
