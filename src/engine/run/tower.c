/* SPDX-License-Identifier: Apache-2.0
 * The class token and the positions are the same for every picture: they lie ready as the state before the first layer, and
 * the patches' products are the delta that the norm behind it adds. From there on layers are those of an encoder of text.
 * Where squares of patches are pooled, patches go through the layers in another order, in which they have no part but by
 * their positions: first the first one of each square, then the second one, and so on. The sum over squares is one of
 * blocks of rows then, and the norm behind it makes no difference between sum and mean, but for its epsilon.
 * Heads of other widths than kernels are fast for (72 of SigLIP) have zeros behind their numbers.
 * Keys and values of one layer are kept as a cache keeps them, of one sequence that is as long as the picture; the next
 * layer overwrites them. */
#include "engine/run/tower.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/extra_product.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define POOL "vision tower"

enum { N_PADDED = 7 }; /* weights and biases of q, k, v, and the weight behind attention */

typedef struct layer {
    nrd_extra_weight norm1, norm1_bias, norm2, norm2_bias;
    nrd_extra_product qkv, dense, up, down;
    uint8_t *padded[N_PADDED]; /* host; NULL: as they came */
} layer;

struct nrd_tower {
    nrd_runner *r;
    nrd_vision_spec s;
    const nrd_vision *from;
    uint64_t bytes;
    int32_t n, n_patches, n_class; /* tokens: class, then patches */
    int32_t head_dim; /* with zeros up to a width that the device's fast kernels know */
    layer *layers; /* [s.n_layers] */
    nrd_extra_product patch, project1, project2;
    nrd_extra_weight pre_norm, pre_norm_bias, post_norm, post_norm_bias, pool_norm;
    float *pool_weight;  /* [hidden] host, of pool_norm */
    uint8_t *projection; /* [decoder's hidden, hidden] host, of project1 with pool_norm */
    void *start; /* [n, hidden] positions, and the class token in its row */
    void *pixels; /* [n_patches, 3 * patch_size^2] */
    void *x, *delta, *normed, *qkv, *att, *up, *mid;
    nrd_extra_input in;
    float *scale; /* [n] of F8 */
    int32_t *arrays; /* of the view */
    nrd_batch_view view;
    nrd_kv_layer kv;
    uint8_t *staged; /* [n_patches, 3 * patch_size^2] host */
};

/* ---- weights ---- */

static const nrd_weight *find(const nrd_tower *t, const char *stem, const char *part)
{
    char name[128];
    snprintf(name, sizeof name, "%s.%s", stem, part);
    return nrd_vision_weight(t->from, name);
}

static nrd_error *load_norm(nrd_tower *t, const char *stem, nrd_extra_weight *weight, nrd_extra_weight *bias)
{
    NRD_TRY(nrd_extra_weight_load(t->r, find(t, stem, "weight"), false, POOL, weight));
    NRD_TRY(nrd_extra_weight_load(t->r, find(t, stem, "bias"), false, POOL, bias));
    t->bytes += weight->bytes + bias->bytes;
    return NULL;
}

static nrd_error *load_product(nrd_tower *t, const char *stem, nrd_extra_product *p)
{
    const int32_t i = p->product.n;
    NRD_TRY(nrd_extra_product_add(t->r, find(t, stem, "weight"), find(t, stem, "bias"), POOL, p));
    t->bytes += p->weight[i].bytes + p->bias[i].bytes;
    return NULL;
}

/* n_rows * n_heads pieces of `piece` numbers each, with zeros behind; *keep owns them. */
static nrd_error *pad(const nrd_tower *t, nrd_weight *w, int64_t n_rows, int64_t piece, int64_t wide, uint8_t **keep)
{
    const size_t bytes = w->data_bytes / (size_t)(w->rows * w->cols), n = (size_t)n_rows * (size_t)t->s.n_heads;
    const size_t from = (size_t)piece * bytes, to = (size_t)wide * bytes;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(*keep, n * to, err, fail);
    for (size_t i = 0; i < n; i++) {
        memcpy(*keep + i * to, (const uint8_t *)w->data + i * from, from);
    }
    w->data = *keep;
    w->data_bytes = n * to;
fail:
    return err;
}

static nrd_error *load_padded(nrd_tower *t, layer *y, const char *stem, int k, nrd_extra_product *p)
{
    const int64_t dim = t->s.hidden / t->s.n_heads, wide = t->head_dim, width = wide * t->s.n_heads;
    nrd_weight w = *find(t, stem, "weight"), b = *find(t, stem, "bias");
    const int32_t i = p->product.n;

    if (k < 3) { /* rows of q, k, v */
        NRD_TRY(pad(t, &w, 1, dim * w.cols, wide * w.cols, &y->padded[2 * k]));
        NRD_TRY(pad(t, &b, 1, dim, wide, &y->padded[2 * k + 1]));
        w.rows = b.cols = width;
    } else {
        NRD_TRY(pad(t, &w, w.rows, dim, wide, &y->padded[2 * k]));
        w.cols = width;
    }
    NRD_TRY(nrd_extra_product_add(t->r, &w, &b, POOL, p));
    t->bytes += p->weight[i].bytes + p->bias[i].bytes;
    return NULL;
}

static nrd_error *load_layer(nrd_tower *t, int32_t i)
{
    static const char *const names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj",
                                        "mlp.fc1", "mlp.fc2"};
    layer *y = &t->layers[i];
    nrd_extra_product *const to[] = {&y->qkv, &y->qkv, &y->qkv, &y->dense, &y->up, &y->down};
    char stem[96];

    snprintf(stem, sizeof stem, "encoder.layers.%d.layer_norm1", i);
    NRD_TRY(load_norm(t, stem, &y->norm1, &y->norm1_bias));
    snprintf(stem, sizeof stem, "encoder.layers.%d.layer_norm2", i);
    NRD_TRY(load_norm(t, stem, &y->norm2, &y->norm2_bias));
    for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
        snprintf(stem, sizeof stem, "encoder.layers.%d.%s", i, names[k]);
        const bool is_padded = k < 4 && t->head_dim * t->s.n_heads != t->s.hidden;
        NRD_TRY(is_padded ? load_padded(t, y, stem, (int)k, to[k]) : load_product(t, stem, to[k]));
    }
    return NULL;
}

/* Gemma's norms store their weight less 1. The decoder scales all its embeddings, and shall not scale a picture's rows. */
static nrd_error *load_pool_norm(nrd_tower *t)
{
    const nrd_weight *from = nrd_vision_weight(t->from, "projector.mm_soft_emb_norm.weight");
    const float scale = t->r->spec->embed_scale > 0 ? t->r->spec->embed_scale : 1;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->pool_weight, t->s.hidden, err, fail);
    nrd_weight_row(from, 0, t->pool_weight);
    for (int32_t i = 0; i < t->s.hidden; i++) {
        t->pool_weight[i] = (1 + t->pool_weight[i]) / scale;
    }
    nrd_weight w = *from;
    w.dtype = NRD_DTYPE_F32;
    w.data = t->pool_weight;
    w.data_bytes = (size_t)t->s.hidden * sizeof *t->pool_weight;
    err = nrd_extra_weight_load(t->r, &w, false, POOL, &t->pool_norm);
    t->bytes += t->pool_norm.bytes;
fail:
    return err;
}

/* Stored as it is multiplied from the right: rows become columns. */
static nrd_error *load_projection(nrd_tower *t)
{
    const nrd_weight *from = nrd_vision_weight(t->from, "projector.mm_input_projection_weight");
    const size_t rows = (size_t)from->rows, cols = (size_t)from->cols, bytes = from->data_bytes / (rows * cols);
    const uint8_t *data = from->data;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->projection, from->data_bytes, err, fail);
    for (size_t i = 0; i < rows * cols; i++) {
        memcpy(t->projection + (i % cols * rows + i / cols) * bytes, data + i * bytes, bytes);
    }
    nrd_weight w = *from;
    w.rows = from->cols;
    w.cols = from->rows;
    w.data = t->projection;
    err = nrd_extra_product_add(t->r, &w, NULL, POOL, &t->project1);
    t->bytes += t->project1.weight[0].bytes;
fail:
    return err;
}

static nrd_error *load_all(nrd_tower *t)
{
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->layers, t->s.n_layers, err, fail);
    NRD_TRY(load_product(t, "embeddings.patch_embedding", &t->patch));
    NRD_TRY(t->s.has_class ? load_norm(t, "pre_layrnorm", &t->pre_norm, &t->pre_norm_bias) : NULL);
    for (int32_t i = 0; i < t->s.n_layers; i++) {
        NRD_TRY(load_layer(t, i));
    }
    if (t->s.pool) {
        NRD_TRY(load_norm(t, "post_layernorm", &t->post_norm, &t->post_norm_bias));
        NRD_TRY(load_pool_norm(t));
        return load_projection(t);
    }
    NRD_TRY(load_product(t, "projector.linear_1", &t->project1));
    return load_product(t, "projector.linear_2", &t->project2);
fail:
    return err;
}

/* ---- memory ---- */

static size_t most(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t widest_input(const nrd_tower *t)
{
    size_t bytes = most(t->patch.product.in_row_bytes, most(t->project1.product.in_row_bytes, t->project2.product.in_row_bytes));
    for (int32_t i = 0; i < t->s.n_layers; i++) {
        const layer *y = &t->layers[i];
        bytes = most(bytes, most(most(y->qkv.product.in_row_bytes, y->dense.product.in_row_bytes),
                                 most(y->up.product.in_row_bytes, y->down.product.in_row_bytes)));
    }
    return bytes;
}

static void to_act(const nrd_tower *t, const float *row, size_t n, uint8_t *to)
{
    if (t->r->act == NRD_DTYPE_F32) {
        memcpy(to, row, n * sizeof *row);
    } else {
        nrd_quantize_row(t->r->act, row, to, (int64_t)n);
    }
}

/* The patch, by rows of the picture, that token i of the layers is; without the class token. */
static int32_t patch_at(const nrd_tower *t, int32_t i)
{
    const int32_t pool = t->s.pool, side = t->s.image_size / t->s.patch_size;

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
    float *row = NULL, *first = NULL;

    NRD_NEW_GOTO(host, bytes, err, done);
    NRD_NEW_GOTO(row, hidden, err, done);
    NRD_NEW_GOTO(first, hidden, err, done);
    if (class) {
        nrd_weight_row(class, 0, first);
    }
    for (int32_t i = 0; i < t->n; i++) {
        nrd_weight_row(positions, i < t->n_class ? i : t->n_class + patch_at(t, i - t->n_class), row);
        for (size_t k = 0; k < hidden && i < t->n_class; k++) {
            row[k] += first[k];
        }
        to_act(t, row, hidden, host + (size_t)i * hidden * t->r->act_bytes);
    }
    NRD_TRY_GOTO(nrd_run_alloc(t->r, &t->start, bytes, 1, POOL), err, done);
    err = nrd_run_upload(t->r, t->start, host, bytes);
done:
    free(host);
    free(row);
    free(first);
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
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, count, sizeof *host, POOL), err, done);
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
                           .head_dim = head_dim, .k_scale = 1, .v_scale = 1};
    err = nrd_run_alloc(r, &t->kv.base, (size_t)n_blocks, r->dev->ops->kv_block_bytes(r->dev, r->act, bt, t->s.n_heads, head_dim),
                        POOL);
done:
    free(host);
    return err;
}

static nrd_error *alloc_all(nrd_tower *t)
{
    nrd_runner *r = t->r;
    const size_t n = (size_t)t->n, hidden = (size_t)t->s.hidden, heads = (size_t)t->s.n_heads * (size_t)t->head_dim,
                 out = (size_t)r->spec->hidden,
                 inter = most((size_t)t->s.inter, out), patch = (size_t)t->patch.product.cols, act = r->act_bytes;
    const struct {
        void **to;
        size_t count, bytes;
    } rows[] = {
        {&t->pixels, (size_t)t->n_patches * patch, act},
        {&t->x, n * hidden, act},
        {&t->delta, n * most(hidden, out), act},
        {&t->normed, n, most(hidden * act, widest_input(t))},
        {&t->qkv, n * heads * 3, act},
        {&t->att, n, most(heads * act, widest_input(t))},
        {&t->up, n * inter, act},
        {&t->mid, n, most(inter * act, widest_input(t))},
        {&t->in.rows, n, widest_input(t)},
    };
    nrd_error *err = NULL;
    void *p = NULL;

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        NRD_TRY(nrd_run_alloc(r, rows[i].to, rows[i].count, rows[i].bytes, POOL));
    }
    NRD_TRY(nrd_run_alloc(r, &p, n, sizeof *t->scale, POOL));
    t->scale = t->in.row_scale = p;
    NRD_NEW_GOTO(t->staged, (size_t)t->n_patches * patch * act, err, fail);
    NRD_TRY(make_start(t));
    NRD_TRY(make_view(t));
    const size_t widest = most(most(heads * 3, inter), patch);
    return nrd_run_advised(r->dev->ops->reserve(r->stream, t->n, nrd_run_max_rows(r), (int32_t)widest, t->n, 1), "workspace");
fail:
    return err;
}

/* ---- one picture ---- */

static nrd_error *norm(nrd_tower *t, bool has_delta, const nrd_extra_weight *weight, const nrd_extra_weight *bias, bool to_residual,
                       const nrd_product *next)
{
    nrd_norm_args a = {
        .kind = NRD_NORM_LAYER,
        .eps = t->s.norm_eps,
        .n_tokens = t->n,
        .hidden = t->s.hidden,
        .delta = has_delta ? t->delta : NULL,
        .residual = t->x,
        .weight = weight ? &weight->w : NULL,
        .bias = bias ? &bias->w : NULL,
        .to_residual = to_residual,
        .out = t->normed,
        .out_dtype = next ? next->in_dtype : t->r->act,
        .out_row_scale = next && next->in_row_scale ? t->scale : NULL,
        .act_dtype = t->r->act,
    };
    return t->r->dev->ops->norm(t->r->stream, &a);
}

static nrd_error *activate(nrd_tower *t, nrd_act_kind kind, int32_t n, int64_t width, const nrd_product *next)
{
    nrd_act_args a = {
        .kind = kind,
        .n_tokens = n,
        .inter = (int32_t)width,
        .x = t->up,
        .act_dtype = t->r->act,
        .out = t->mid,
        .out_dtype = next->in_dtype,
        .out_row_scale = next->in_row_scale ? t->scale : NULL,
    };
    return t->r->dev->ops->act(t->r->stream, &a);
}

static nrd_error *multiply(nrd_tower *t, const nrd_extra_product *p, const void *x, int32_t n, void *y)
{
    nrd_linear_args l = nrd_run_product_args(t->r, &p->product, x, n, y, t->r->act, 0);
    l.x_row_scale = p->product.in_row_scale ? t->scale : NULL;
    return t->r->dev->ops->linear(t->r->stream, &l);
}

/* From qkv to what the product behind it reads, in att. */
static nrd_error *attend(nrd_tower *t, const nrd_product *next)
{
    nrd_runner *r = t->r;
    nrd_rope_kv_args k = {
        .batch = &t->view,
        .qkv = t->qkv,
        .act_dtype = r->act,
        .n_heads = t->s.n_heads,
        .rope = NRD_ROPE_NONE,
        .rope_scale = 1,
        .kv = t->kv,
    };
    nrd_attention_args a = {
        .batch = &t->view,
        .q = t->qkv,
        .q_stride = 3 * (int64_t)t->s.n_heads * t->head_dim,
        .out = t->att,
        .act_dtype = r->act,
        .out_dtype = next->in_dtype,
        .out_row_scale = next->in_row_scale ? t->scale : NULL,
        .n_heads = t->s.n_heads,
        .scale = (float)(1 / sqrt((double)(t->s.hidden / t->s.n_heads))),
        .ahead = t->n,
        .kv = t->kv,
        .deterministic = r->cfg.deterministic,
    };
    NRD_TRY(r->dev->ops->rope_kv(r->stream, &k));
    return r->dev->ops->attention(r->stream, &a);
}

static nrd_error *run_layer(nrd_tower *t, const layer *y, bool has_delta)
{
    NRD_TRY(norm(t, has_delta, &y->norm1, &y->norm1_bias, false, &y->qkv.product));
    NRD_TRY(multiply(t, &y->qkv, t->normed, t->n, t->qkv));
    NRD_TRY(attend(t, &y->dense.product));
    NRD_TRY(multiply(t, &y->dense, t->att, t->n, t->delta));
    NRD_TRY(norm(t, true, &y->norm2, &y->norm2_bias, false, &y->up.product));
    NRD_TRY(multiply(t, &y->up, t->normed, t->n, t->up));
    NRD_TRY(activate(t, t->s.act, t->n, t->s.inter, &y->down.product));
    return multiply(t, &y->down, t->mid, t->n, t->delta);
}

/* Pixels by patches, as the first product's weights lie: channel, row, column. */
static void cut(const nrd_tower *t, const float *pixels)
{
    const size_t size = (size_t)t->s.image_size, p = (size_t)t->s.patch_size, side = size / p;
    for (size_t i = 0; i < side * side; i++) {
        for (size_t k = 0; k < 3 * p; k++) { /* rows of a patch, of one channel after the other */
            const size_t at = (size_t)patch_at(t, (int32_t)i), channel = k / p, y = at / side * p + k % p, x = at % side * p;
            to_act(t, pixels + (channel * size + y) * size + x, p, t->staged + (i * 3 * p * p + k * p) * t->r->act_bytes);
        }
    }
}

static nrd_error *enter(nrd_tower *t, const float *pixels)
{
    nrd_runner *r = t->r;
    const size_t row = (size_t)t->s.hidden * r->act_bytes;

    cut(t, pixels);
    NRD_TRY(nrd_run_upload(r, t->pixels, t->staged, (size_t)t->n_patches * (size_t)t->patch.product.cols * r->act_bytes));
    NRD_TRY(r->dev->ops->copy(r->stream, t->x, t->start, (size_t)t->n * row));
    NRD_TRY(t->n_class ? r->dev->ops->fill(r->stream, t->delta, 0, (size_t)t->n_class * row) : NULL);
    NRD_TRY(nrd_extra_multiply(r, &t->patch.product, &t->in, t->pixels, t->n_patches,
                               (uint8_t *)t->delta + (size_t)t->n_class * row, r->act, 0));
    return t->s.has_class ? norm(t, true, &t->pre_norm, &t->pre_norm_bias, true, NULL) : norm(t, true, NULL, NULL, false, NULL);
}

/* Two products of the states that are the decoder's. */
static nrd_error *project(nrd_tower *t, int32_t n)
{
    nrd_runner *r = t->r;
    const size_t skipped = (size_t)(t->n - n) * (size_t)t->s.hidden * r->act_bytes;

    NRD_TRY(norm(t, true, NULL, NULL, false, NULL));
    NRD_TRY(nrd_extra_multiply(r, &t->project1.product, &t->in, (uint8_t *)t->x + skipped, n, t->up, r->act, 0));
    NRD_TRY(activate(t, t->s.projector_act, n, t->project1.product.rows, &t->project2.product));
    return multiply(t, &t->project2, t->mid, n, t->delta);
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

    NRD_TRY(norm(t, true, &t->post_norm, &t->post_norm_bias, false, NULL));
    for (int32_t i = 1; i < n_blocks; i++) {
        a.delta = (uint8_t *)t->normed + (size_t)i * block;
        NRD_TRY(r->dev->ops->norm(r->stream, &a));
    }
    if (n_blocks == 1) {
        NRD_TRY(r->dev->ops->norm(r->stream, &a));
    }
    return nrd_extra_multiply(r, &t->project1.product, &t->in, t->att, n, t->delta, r->act, 0);
}

nrd_error *nrd_tower_run(nrd_tower *t, const float *pixels, void *rows)
{
    nrd_runner *r = t->r;
    const int32_t n = nrd_vision_n_rows(&t->s);

    NRD_TRY(enter(t, pixels));
    for (int32_t i = 0; i < t->s.n_layers; i++) {
        NRD_TRY(run_layer(t, &t->layers[i], i > 0));
    }
    NRD_TRY(t->s.pool ? pool(t, n) : project(t, n));
    NRD_TRY(r->dev->ops->copy(r->stream, rows, t->delta, (size_t)n * (size_t)r->spec->hidden * r->act_bytes));
    return r->dev->ops->stream_sync(r->stream);
}

/* ---- creation ---- */

static nrd_error *check(const nrd_tower *t)
{
    const nrd_device_ops *ops = t->r->dev->ops;
    const float scale = t->r->spec->embed_scale;

    if (!ops->has_feature || !ops->has_feature(t->r->dev, NRD_FEATURE_ENCODER)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a vision tower needs the layers of an encoder, which the device has not; use --device "
                          "cpu");
    }
    if (!t->s.pool && (scale < 0 || scale > 1 || (scale > 0 && scale < 1))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a vision tower before a decoder that scales its embeddings (%g) is not supported",
                          (double)scale);
    }
    return NULL;
}

nrd_error *nrd_tower_new(nrd_tower **out, nrd_runner *runner, const nrd_vision *from)
{
    nrd_device_info info;
    nrd_error *err = NULL;
    nrd_tower *t = NULL;

    *out = NULL;
    NRD_NEW_GOTO(t, 1, err, fail);
    t->r = runner;
    t->from = from;
    t->s = *nrd_vision_get_spec(from);
    t->n_patches = nrd_vision_n_patches(&t->s);
    t->n_class = t->s.has_class ? 1 : 0;
    t->n = t->n_class + t->n_patches;
    runner->dev->ops->get_info(runner->dev, &info);
    const int32_t step = info.host_is_device ? 16 : 64, dim = t->s.hidden / t->s.n_heads;
    t->head_dim = (dim + step - 1) / step * step;
    NRD_TRY_GOTO(check(t), err, fail);
    NRD_TRY_GOTO(load_all(t), err, fail);
    NRD_TRY_GOTO(alloc_all(t), err, fail);
    *out = t;
    return NULL;

fail:
    nrd_tower_free(t);
    return err;
}

static void unload_layer(nrd_tower *t, layer *y)
{
    nrd_extra_weight *const norms[] = {&y->norm1, &y->norm1_bias, &y->norm2, &y->norm2_bias};
    nrd_extra_product *const products[] = {&y->qkv, &y->dense, &y->up, &y->down};
    for (int k = 0; k < 4; k++) {
        nrd_extra_weight_unload(t->r, norms[k]);
        nrd_extra_product_unload(t->r, products[k]);
    }
    for (int k = 0; k < N_PADDED; k++) {
        free(y->padded[k]);
    }
}

void nrd_tower_free(nrd_tower *t)
{
    if (!t) {
        return;
    }
    for (int32_t i = 0; t->layers && i < t->s.n_layers; i++) {
        unload_layer(t, &t->layers[i]);
    }
    nrd_extra_product_unload(t->r, &t->patch);
    nrd_extra_product_unload(t->r, &t->project1);
    nrd_extra_product_unload(t->r, &t->project2);
    nrd_extra_weight *const norms[] = {&t->pre_norm, &t->pre_norm_bias, &t->post_norm, &t->post_norm_bias, &t->pool_norm};
    for (size_t i = 0; i < sizeof norms / sizeof norms[0]; i++) {
        nrd_extra_weight_unload(t->r, norms[i]);
    }
    void *mem[] = {t->start, t->pixels, t->x, t->delta, t->normed, t->qkv, t->att, t->up, t->mid, t->in.rows, t->scale, t->arrays,
                   t->kv.base};
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) {
        nrd_run_free(t->r, mem[i]);
    }
    free(t->layers);
    free(t->staged);
    free(t->pool_weight);
    free(t->projection);
    free(t);
}

uint64_t nrd_tower_bytes(const nrd_tower *t)
{
    return t->bytes;
}
