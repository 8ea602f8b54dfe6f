/* SPDX-License-Identifier: Apache-2.0
 * Gemma 4's tower (2026). Heads of q, k and v are normed, and so is what attention and MLP add to the state. Half of a head turns by a
 * patch's column, the other half by its row, each as two halves: its numbers are sorted so that the columns of both are the first half,
 * as rope_kv has pairs. The mean of a square's states, without a norm of its own, becomes a row through one product.
 * Where heads are made wider by zeros, their mean square is that of more numbers: weights and epsilon of the norms make up for it, and
 * the product behind attention for that of the values, which has no weight.
 * Where numbers around products have bounds (clipped), each product goes by itself, since those that read the same may have others. */
#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/tower_internal.h"
#include "engine/run/operations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights ---- */

/* The number of a head that is number i of a sorted one of `dim`: halves of the column's pairs were side by side. */
static int32_t sorted(int32_t i, int32_t dim)
{
    static const int32_t from[] = {0, 2, 1, 3};
    return from[i / (dim / 4)] * (dim / 4) + i % (dim / 4);
}

/* A copy of q's or k's product with sorted heads; *keep owns it. */
static nrd_error *sort_heads(const nrd_tower *t, nrd_weight *w, uint8_t **keep)
{
    const size_t row = w->data_bytes / (size_t)w->rows, dim = (size_t)(t->s.hidden / t->s.n_heads);
    nrd_error *err = NULL;

    NRD_NEW_GOTO(*keep, w->data_bytes, err, fail);
    for (size_t i = 0; i < (size_t)w->rows; i++) {
        const size_t from = i / dim * dim + (size_t)sorted((int32_t)(i % dim), (int32_t)dim);
        memcpy(*keep + i * row, (const uint8_t *)w->data + from * row, row);
    }
    w->data = *keep;
fail:
    return err;
}

/* The same of a head's norm, with zeros up to the device's width. */
static nrd_error *load_head_norm(nrd_tower *t, const char *stem, uint8_t **keep, nrd_extra_weight *to)
{
    const int32_t dim = t->s.hidden / t->s.n_heads, wide = t->head_dim;
    nrd_weight w = *nrd_tower_find(t, stem, "weight");
    float *row = NULL, *out = NULL;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(row, dim, err, done);
    NRD_NEW_GOTO(out, wide, err, done);
    *keep = (uint8_t *)out;
    nrd_weight_row(&w, 0, row);
    for (int32_t i = 0; i < dim; i++) {
        out[i] = row[sorted(i, dim)] * sqrtf((float)dim / (float)wide);
    }
    w.dtype = NRD_DTYPE_F32;
    w.data = out;
    w.cols = wide;
    w.data_bytes = (size_t)wide * sizeof *out;
    err = nrd_extra_weight_load(t->r, &w, NRD_TOWER_POOL, to);
    t->bytes += to->bytes;
done:
    free(row);
    return err;
}

/* What is behind attention; the values that it reads are too large where heads were made wider. */
static nrd_error *load_dense(nrd_tower *t, nrd_tower_layer *y, const char *stem)
{
    const int32_t dim = t->s.hidden / t->s.n_heads;
    nrd_error *err = NULL;
    float *by = NULL;

    if (dim == t->head_dim) {
        return nrd_tower_load_product(t, stem, &y->dense);
    }
    NRD_NEW_GOTO(by, t->s.hidden, err, done);
    for (int32_t i = 0; i < t->s.hidden; i++) {
        by[i] = sqrtf((float)dim / (float)t->head_dim);
    }
    err = nrd_tower_load_scaled(t, y, stem, by, false, &y->dense);
done:
    free(by);
    return err;
}

/* The bounds of product `k`, whose name without its end is `stem`. Heads that are filled up with zeros keep them only if these are within. */
static nrd_error *load_bounds(const nrd_tower *t, nrd_tower_layer *y, const char *stem, int k)
{
    const bool padded = t->head_dim != t->s.hidden / t->s.n_heads && (k <= NRD_TOWER_V || k == NRD_TOWER_O);
    float *const b = y->bounds[k];
    char name[112];

    for (int i = 0; i < NRD_VISION_N_BOUNDS; i++) {
        snprintf(name, sizeof name, "%s.%s", stem, nrd_vision_bounds[i]);
        nrd_weight_row(nrd_vision_weight(t->from, name), 0, &b[i]);
    }
    for (int i = 0; i < NRD_VISION_N_BOUNDS; i += 2) {
        if (!(b[i] <= b[i + 1]) || (padded && (b[i] > 0 || b[i + 1] < 0))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "vision tower: the bounds of '%s' are %g and %g, expected two numbers%s", stem,
                              (double)b[i], (double)b[i + 1], padded ? " with 0 between" : ", the smaller one first");
        }
    }
    return NULL;
}

static nrd_error *load_all_bounds(nrd_tower *t, nrd_tower_layer *y, int32_t layer)
{
    static const char *const names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj",
                                        "self_attn.o_proj", "mlp.down_proj"};
    const float wider = sqrtf((float)t->head_dim * (float)t->s.n_heads / (float)t->s.hidden);
    char stem[96];

    if (!t->r->dev->ops->clamp) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this vision tower needs bounds around products, which the device has not; use --device cpu");
    }
    for (int k = 0; k < NRD_TOWER_N_PRODUCTS; k++) {
        snprintf(stem, sizeof stem, "encoder.layers.%d.%s", layer, names[k]);
        NRD_TRY(load_bounds(t, y, stem, k));
    }
    y->bounds[NRD_TOWER_O][0] *= wider; /* what is behind attention is larger by as much */
    y->bounds[NRD_TOWER_O][1] *= wider;
    return NULL;
}

static nrd_error *load_layer(nrd_tower *t, int32_t i)
{
    nrd_tower_layer *y = &t->layers[i];
    const bool apart = t->s.clipped;
    const struct {
        const char *name;
        nrd_extra_weight *to;
    } norms[] = {{"input_layernorm", &y->norm1}, {"post_attention_layernorm", &y->behind1},
                 {"pre_feedforward_layernorm", &y->norm2}, {"post_feedforward_layernorm", &y->behind2}};
    const struct {
        const char *name;
        nrd_extra_product *to;
    } mlp[] = {{"mlp.gate_proj.linear", apart ? &y->parts[NRD_TOWER_GATE] : &y->up},
               {"mlp.up_proj.linear", apart ? &y->parts[NRD_TOWER_UP] : &y->up},
               {"mlp.down_proj.linear", &y->down}};
    char stem[96];

    for (size_t k = 0; k < sizeof norms / sizeof norms[0]; k++) {
        snprintf(stem, sizeof stem, "encoder.layers.%d.%s", i, norms[k].name);
        NRD_TRY(nrd_tower_load_norm(t, stem, norms[k].to, &y->norm1_bias));
    }
    for (int k = 0; k < 3; k++) {
        snprintf(stem, sizeof stem, "encoder.layers.%d.self_attn.%c_proj.linear", i, "qkv"[k]);
        nrd_weight w = *nrd_tower_find(t, stem, "weight");
        NRD_TRY(k < 2 ? sort_heads(t, &w, &y->sorted[k]) : NULL);
        NRD_TRY(nrd_tower_load_heads(t, y, w, NULL, k, apart ? &y->parts[k] : &y->qkv));
    }
    for (int k = 0; k < 2; k++) {
        snprintf(stem, sizeof stem, "encoder.layers.%d.self_attn.%c_norm", i, "qk"[k]);
        NRD_TRY(load_head_norm(t, stem, &y->sorted[2 + k], k ? &y->k_norm : &y->q_norm));
    }
    snprintf(stem, sizeof stem, "encoder.layers.%d.self_attn.o_proj.linear", i);
    NRD_TRY(load_dense(t, y, stem));
    for (size_t k = 0; k < sizeof mlp / sizeof mlp[0]; k++) {
        snprintf(stem, sizeof stem, "encoder.layers.%d.%s", i, mlp[k].name);
        NRD_TRY(nrd_tower_load_product(t, stem, mlp[k].to));
    }
    return apart ? load_all_bounds(t, y, i) : NULL;
}

/* A patch's numbers come by row, column and channel in the file, here by channel, row and column. */
static nrd_error *load_patch(nrd_tower *t)
{
    const nrd_weight *from = nrd_vision_weight(t->from, "patch_embedder.input_proj.weight");
    const size_t rows = (size_t)from->rows, cols = (size_t)from->cols, bytes = from->data_bytes / (rows * cols), n = cols / 3;
    const uint8_t *data = from->data;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->projection, from->data_bytes, err, fail);
    for (size_t i = 0; i < rows * cols; i++) {
        const size_t c = i % cols;
        memcpy(t->projection + i * bytes, data + (i / cols * cols + c % n * 3 + c / n) * bytes, bytes);
    }
    nrd_weight w = *from;
    w.data = t->projection;
    err = nrd_extra_product_add(t->r, &w, NULL, NRD_TOWER_POOL, &t->patch);
    t->bytes += t->patch.weight[0].bytes;
fail:
    return err;
}

nrd_error *nrd_tower_gemma4_load(nrd_tower *t)
{
    NRD_TRY(load_patch(t));
    for (int32_t i = 0; i < t->s.n_layers; i++) {
        NRD_TRY(load_layer(t, i));
    }
    return nrd_tower_load_product(t, "projector.embedding_projection", &t->project1);
}

/* ---- layers ---- */

/* x += the norm of delta, by a weight of its own; and the norm of that, as `next` wants it, or, NULL, as activations. weight NULL: none. */
static nrd_error *add_normed(nrd_tower *t, const nrd_extra_weight *of_delta, const nrd_extra_weight *weight, const nrd_product *next)
{
    nrd_norm_args a = {
        .kind = NRD_NORM_RMS,
        .eps = t->s.norm_eps,
        .n_tokens = t->n,
        .hidden = t->s.hidden,
        .delta = t->delta,
        .delta_weight = of_delta ? &of_delta->w : NULL,
        .residual = t->x,
        .weight = weight ? &weight->w : NULL,
        .out = t->normed,
        .out_dtype = next ? next->in_dtype : t->r->act,
        .out_row_scale = next && next->in_row_scale ? t->scale : NULL,
        .act_dtype = t->r->act,
    };
    return t->r->dev->ops->norm(t->r->stream, &a);
}

/* x [n, width] between two bounds, into rows of `stride` numbers. */
static nrd_error *clamp(nrd_tower *t, const float bounds[2], const void *x, int64_t width, void *out, int64_t stride)
{
    const nrd_clamp_args a = {.n_tokens = t->n, .width = (int32_t)width, .x = x, .out = out, .out_stride = stride, .low = bounds[0],
                              .high = bounds[1], .dtype = t->r->act};
    return t->r->dev->ops->clamp(t->r->stream, &a);
}

/* Part k of the layer: `from` [n, hidden] through one product, whose rows begin at number `first` of the rows of `to`. room: [n, its rows] */
static nrd_error *multiply_part(nrd_tower *t, const nrd_tower_layer *y, int k, const void *from, void *to, int64_t first, int64_t stride,
                                void *room)
{
    const nrd_product *p = &y->parts[k].product;

    NRD_TRY(clamp(t, y->bounds[k], from, p->cols, t->att, p->cols));
    NRD_TRY(nrd_extra_multiply(t->r, p, &t->in, t->att, t->n, room, t->r->act, 0));
    return clamp(t, y->bounds[k] + 2, room, p->rows, (uint8_t *)to + (size_t)first * t->r->act_bytes, stride);
}

/* The same of a product that reads what no other one does: from and to keep their shapes. */
static nrd_error *multiply_between(nrd_tower *t, const nrd_extra_product *p, const float *bounds, void *from, void *to)
{
    NRD_TRY(clamp(t, bounds, from, p->product.cols, from, p->product.cols));
    NRD_TRY(nrd_extra_multiply(t->r, &p->product, &t->in, from, t->n, to, t->r->act, 0));
    return clamp(t, bounds + 2, to, p->product.rows, to, p->product.rows);
}

static nrd_error *attend(nrd_tower *t, const nrd_tower_layer *y)
{
    nrd_runner *r = t->r;
    const int32_t dim = t->s.hidden / t->s.n_heads;
    const nrd_rope_kv_args k = {
        .batch = &t->view,
        .qkv = t->qkv,
        .act_dtype = r->act,
        .n_heads = t->s.n_heads,
        .q_norm = &y->q_norm.w,
        .k_norm = &y->k_norm.w,
        .norm_eps = t->s.norm_eps * (float)dim / (float)t->head_dim,
        .v_norm = true,
        .rope = NRD_ROPE_NEOX,
        .rotary_dim = dim,
        .inv_freq = t->inv_freq,
        .pair_axis = t->pair_axis,
        .rope_scale = 1,
        .kv = t->kv,
    };
    const nrd_attention_args a = {
        .batch = &t->view,
        .q = t->qkv,
        .q_stride = 3 * (int64_t)t->s.n_heads * t->head_dim,
        .out = t->att,
        .act_dtype = r->act,
        .out_dtype = t->s.clipped ? r->act : y->dense.product.in_dtype,
        .out_row_scale = !t->s.clipped && y->dense.product.in_row_scale ? t->scale : NULL,
        .n_heads = t->s.n_heads,
        .scale = 1,
        .ahead = t->n,
        .kv = t->kv,
        .deterministic = r->cfg.deterministic,
    };
    NRD_TRY(r->dev->ops->rope_kv(r->stream, &k));
    return r->dev->ops->attention(r->stream, &a);
}

/* From what is normed to what attention adds. */
static nrd_error *attention(nrd_tower *t, const nrd_tower_layer *y)
{
    const int64_t width = (int64_t)t->s.n_heads * t->head_dim;

    if (!t->s.clipped) {
        NRD_TRY(nrd_tower_multiply(t, &y->qkv, t->normed, t->n, t->qkv));
        NRD_TRY(attend(t, y));
        return nrd_tower_multiply(t, &y->dense, t->att, t->n, t->delta);
    }
    for (int k = NRD_TOWER_Q; k <= NRD_TOWER_V; k++) {
        NRD_TRY(multiply_part(t, y, k, t->normed, t->qkv, k * width, 3 * width, t->up));
    }
    NRD_TRY(attend(t, y));
    return multiply_between(t, &y->dense, y->bounds[NRD_TOWER_O], t->att, t->delta);
}

/* … to what the MLP adds. */
static nrd_error *mlp(nrd_tower *t, const nrd_tower_layer *y)
{
    const nrd_product plain = {.in_dtype = t->r->act};
    const int64_t inter = t->s.inter;

    if (!t->s.clipped) {
        NRD_TRY(nrd_tower_multiply(t, &y->up, t->normed, t->n, t->up));
        NRD_TRY(nrd_tower_activate(t, t->s.act, true, t->n, inter, &y->down.product));
        return nrd_tower_multiply(t, &y->down, t->mid, t->n, t->delta);
    }
    NRD_TRY(multiply_part(t, y, NRD_TOWER_GATE, t->normed, t->up, 0, 2 * inter, t->mid));
    NRD_TRY(multiply_part(t, y, NRD_TOWER_UP, t->normed, t->up, inter, 2 * inter, t->mid));
    NRD_TRY(nrd_tower_activate(t, t->s.act, true, t->n, inter, &plain));
    return multiply_between(t, &y->down, y->bounds[NRD_TOWER_DOWN], t->mid, t->delta);
}

nrd_error *nrd_tower_gemma4_layers(nrd_tower *t)
{
    const nrd_extra_weight *behind = NULL; /* of the delta: the first one is the patches */

    for (int32_t i = 0; i < t->s.n_layers; i++) {
        const nrd_tower_layer *y = &t->layers[i];
        NRD_TRY(add_normed(t, behind, &y->norm1, t->s.clipped ? NULL : &y->qkv.product));
        NRD_TRY(attention(t, y));
        NRD_TRY(add_normed(t, &y->behind1, &y->norm2, t->s.clipped ? NULL : &y->up.product));
        NRD_TRY(mlp(t, y));
        behind = &y->behind2;
    }
    return add_normed(t, behind, NULL, NULL);
}

/* ---- before and behind ---- */

nrd_error *nrd_tower_gemma4_positions(nrd_tower *t)
{
    const size_t hidden = (size_t)t->s.hidden, bytes = hidden * t->r->act_bytes;
    nrd_weight table = *nrd_vision_weight(t->from, "patch_embedder.position_embedding_table");
    nrd_error *err = NULL;
    float *sum = NULL;

    table.rows = 2 * (int64_t)t->s.n_positions; /* by columns of the picture, then by rows */
    table.cols = (int64_t)hidden;
    NRD_NEW_GOTO(sum, 2 * hidden, err, done);
    float *const row = sum + hidden;
    for (int32_t i = 0; i < t->n; i++) {
        const int32_t *at = t->host_arrays + (size_t)i * NRD_ROPE_AXES; /* row, column */
        nrd_weight_row(&table, at[1], sum);
        nrd_weight_row(&table, (int64_t)t->s.n_positions + at[0], row);
        for (size_t k = 0; k < hidden; k++) {
            sum[k] += row[k];
        }
        nrd_tower_row(t, sum, hidden, t->spread + (size_t)i * bytes);
    }
    err = nrd_run_upload(t->r, t->x, t->spread, (size_t)t->n * bytes);
done:
    free(sum);
    return err;
}

/* Row k of those that the projector reads: the mean of n states, standardized and normed. room: [2, hidden] */
static void mean_of(const nrd_tower *t, int32_t k, int32_t n, const float *bias, const float *scale, float *room)
{
    const size_t hidden = (size_t)t->s.hidden, bytes = hidden * t->r->act_bytes;
    const float embed = t->r->spec->embed_scale > 0 ? t->r->spec->embed_scale : 1; /* the decoder scales all its embeddings */
    float *const sum = room, *const row = room + hidden;
    double squares = 0;

    memset(sum, 0, hidden * sizeof *sum);
    for (int32_t i = 0; i < n; i++) {
        nrd_dequantize_row(t->r->act, t->spread + (size_t)(k * n + i) * bytes, row, (int64_t)hidden);
        for (size_t c = 0; c < hidden; c++) {
            sum[c] += row[c];
        }
    }
    for (size_t c = 0; c < hidden; c++) {
        sum[c] *= sqrtf((float)hidden) / (float)n;
        sum[c] = t->s.standardized ? (sum[c] - bias[c]) * scale[c] : sum[c];
        squares += (double)sum[c] * (double)sum[c];
    }
    const float by = (float)(1 / sqrt(squares / (double)hidden + (double)t->s.norm_eps)) / embed;
    for (size_t c = 0; c < hidden; c++) {
        sum[c] *= by;
    }
    nrd_tower_row(t, sum, hidden, t->spread + (size_t)k * bytes); /* it was read already */
}

nrd_error *nrd_tower_gemma4_rows(nrd_tower *t)
{
    nrd_runner *r = t->r;
    const int32_t n = t->s.merge * t->s.merge, n_rows = t->n / n;
    const size_t hidden = (size_t)t->s.hidden, bytes = hidden * r->act_bytes;
    nrd_error *err = NULL;
    float *room = NULL;

    NRD_NEW_GOTO(room, 4 * hidden, err, done);
    float *const bias = room + 2 * hidden, *const scale = room + 3 * hidden;
    if (t->s.standardized) {
        nrd_weight_row(nrd_vision_weight(t->from, "std_bias"), 0, bias);
        nrd_weight_row(nrd_vision_weight(t->from, "std_scale"), 0, scale);
    }
    NRD_TRY_GOTO(r->dev->ops->copy(r->stream, t->spread, t->x, (size_t)t->n * bytes), err, done);
    NRD_TRY_GOTO(r->dev->ops->stream_sync(r->stream), err, done);
    for (int32_t k = 0; k < n_rows; k++) {
        mean_of(t, k, n, bias, scale, room);
    }
    NRD_TRY_GOTO(nrd_run_upload(r, t->normed, t->spread, (size_t)n_rows * bytes), err, done);
    NRD_TRY_GOTO(nrd_extra_multiply(r, &t->project1.product, &t->in, t->normed, n_rows, t->delta, r->act, 0), err, done);
    NRD_TRY_GOTO(r->dev->ops->copy(r->stream, t->out, t->delta, (size_t)n_rows * (size_t)r->spec->hidden * r->act_bytes), err, done);
    err = r->dev->ops->stream_sync(r->stream);
done:
    free(room);
    return err;
}
