/* SPDX-License-Identifier: Apache-2.0
 * Pictures of Llama 3.2 Vision (Llama team, 2024): as many tiles as there may be go through the layers together, those that the picture has
 * not as zeros, each filled up with states to a multiple of 8. What is there and what fills up see each other, and so does what is there
 * itself; what fills up does not see its like.
 *
 * In the layers stand first the states of the picture's tiles, then what fills up tiles, then the tiles that it has not. So attention is that of
 * two sequences over one cache: the first sees all of it, the second one its beginning. A state's row is made of the
 * last layer's output and the input of some before: the sum of a product of each. */
#include "base/mem.h"
#include "engine/run/tower_internal.h"
#include "engine/run/operations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FRAME_EPS 1e-5f /* of the norms around the layers, whatever that of the layers is */

/* How many there are of a picture. */
typedef struct counts {
    int32_t tiles, states, filled, real; /* tiles it has; states of one; what fills one up; states of its tiles */
    int32_t id;                          /* of the tiles' shape */
} counts;

static counts counts_of(const nrd_tower *t, const nrd_vision_tiles *tiles)
{
    counts c = {.tiles = tiles->high * tiles->wide, .states = nrd_vision_n_states(&t->s)};

    c.filled = nrd_vision_n_padded(&t->s) - c.states;
    c.real = c.tiles * c.states;
    for (int32_t i = 0; i < t->s.n_layouts; i++) {
        c.id = t->s.layouts[i].high == tiles->high && t->s.layouts[i].wide == tiles->wide ? 1 + i : c.id;
    }
    return c;
}

/* ---- weights ---- */

static float gate_of(const nrd_tower *t, const char *name)
{
    float v = 0;
    nrd_weight_row(nrd_vision_weight(t->from, name), 0, &v);
    return tanhf(v);
}

/* What a global layer adds is multiplied by tanh of a number. */
static nrd_error *load_gated(nrd_tower *t, nrd_tower_layer *y, const char *layer, bool of_mlp, nrd_extra_product *to)
{
    nrd_error *err = NULL;
    float *by = NULL;
    char name[128];

    NRD_NEW_GOTO(by, t->s.hidden, err, done);
    snprintf(name, sizeof name, "%s.%s", layer, of_mlp ? "gate_ffn" : "gate_attn");
    const float gate = gate_of(t, name);
    for (int32_t i = 0; i < t->s.hidden; i++) {
        by[i] = gate;
    }
    snprintf(name, sizeof name, "%s.%s", layer, of_mlp ? "mlp.fc2" : "self_attn.o_proj");
    err = nrd_tower_load_scaled(t, y, name, by, of_mlp, to);
done:
    free(by);
    return err;
}

static nrd_error *load_layer(nrd_tower *t, nrd_tower_layer *y, const char *layer, bool global)
{
    static const char *const names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.fc1", "mlp.fc2"};
    nrd_extra_product *const to[] = {&y->qkv, &y->qkv, &y->qkv, &y->dense, &y->up, &y->down};
    char stem[96];

    snprintf(stem, sizeof stem, "%s.input_layernorm", layer);
    NRD_TRY(nrd_tower_load_norm(t, stem, &y->norm1, &y->norm1_bias));
    snprintf(stem, sizeof stem, "%s.post_attention_layernorm", layer);
    NRD_TRY(nrd_tower_load_norm(t, stem, &y->norm2, &y->norm2_bias));
    for (int k = 0; k < 6; k++) {
        snprintf(stem, sizeof stem, "%s.%s", layer, names[k]);
        if (global && (k == 3 || k == 5)) {
            NRD_TRY(load_gated(t, y, layer, k == 5, to[k]));
            continue;
        }
        NRD_TRY(k < 4 ? nrd_tower_load_heads(t, y, *nrd_tower_find(t, stem, "weight"), NULL, k, to[k]) : nrd_tower_load_product(t, stem, to[k]));
    }
    return NULL;
}

/* Columns of the projector's weight: those of the last output, or of taken state k, which stand by turns. */
static nrd_error *load_part(nrd_tower *t, int32_t k, const nrd_weight *from, const nrd_weight *bias, nrd_extra_product *to)
{
    const size_t bytes = from->data_bytes / (size_t)(from->rows * from->cols), hidden = (size_t)t->s.hidden, cols = (size_t)from->cols;
    const size_t n_taken = (size_t)t->s.n_taken;
    const uint8_t *data = from->data;
    nrd_error *err = NULL;
    nrd_weight w = *from;
    uint8_t *host = NULL;

    NRD_NEW_GOTO(host, (size_t)from->rows * hidden * bytes, err, fail);
    t->parts[k] = host;
    for (size_t row = 0; row < (size_t)from->rows; row++) {
        for (size_t c = 0; c < hidden; c++) {
            const size_t at = k == 0 ? c : hidden + c * n_taken + (size_t)(k - 1);
            memcpy(host + (row * hidden + c) * bytes, data + (row * cols + at) * bytes, bytes);
        }
    }
    w.cols = t->s.hidden;
    w.data = host;
    w.data_bytes = (size_t)from->rows * hidden * bytes;
    err = nrd_extra_product_add(t->r, &w, k == 0 ? bias : NULL, NRD_TOWER_POOL, to);
    t->bytes += to->weight[0].bytes + to->bias[0].bytes;
fail:
    return err;
}

nrd_error *nrd_tower_mllama_load(nrd_tower *t)
{
    const nrd_weight *projector = nrd_vision_weight(t->from, "projector.weight"), *bias = nrd_vision_weight(t->from, "projector.bias");
    char layer[48];

    NRD_TRY(nrd_extra_product_add(t->r, nrd_vision_weight(t->from, "patch_embedding.weight"), NULL, NRD_TOWER_POOL, &t->patch));
    t->bytes += t->patch.weight[0].bytes;
    NRD_TRY(nrd_tower_load_norm(t, "layernorm_pre", &t->pre_norm, &t->pre_norm_bias));
    NRD_TRY(nrd_tower_load_norm(t, "layernorm_post", &t->post_norm, &t->post_norm_bias));
    for (int32_t i = 0; i < nrd_tower_n_layers(t); i++) {
        const bool global = i >= t->s.n_layers;
        snprintf(layer, sizeof layer, "%s.layers.%d", global ? "global_transformer" : "transformer", global ? i - t->s.n_layers : i);
        NRD_TRY(load_layer(t, &t->layers[i], layer, global));
    }
    for (int32_t k = 0; k <= t->s.n_taken; k++) {
        NRD_TRY(load_part(t, k, projector, bias, k == 0 ? &t->project1 : &t->project_taken[k - 1]));
    }
    return NULL;
}

/* ---- memory ---- */

/* Numbers of both views: for each positions, sequence of each token, starts and lengths; and a table of two sequences. */
static size_t n_numbers(const nrd_tower *t, int32_t n_blocks)
{
    return 4 * (size_t)t->most + 5 + 3 + 2 * (size_t)n_blocks;
}

static nrd_batch_view view_at(const nrd_tower *t, int32_t n_seqs, size_t at, size_t numbers, const int32_t *table, int32_t n_blocks)
{
    const size_t n = (size_t)t->most;
    return (nrd_batch_view){.n_tokens = t->most,
                            .n_seqs = n_seqs,
                            .max_q_len = t->most,
                            .max_ctx_len = t->most,
                            .positions = t->arrays + at,
                            .token_seq = t->arrays + at + n,
                            .q_start = t->arrays + numbers,
                            .ctx_len = t->arrays + numbers + n_seqs + 1,
                            .block_table = table,
                            .block_table_stride = n_blocks};
}

nrd_error *nrd_tower_mllama_init(nrd_tower *t)
{
    nrd_runner *r = t->r;
    const int32_t bt = r->cfg.block_tokens, n_blocks = (t->most + bt - 1) / bt;
    const size_t n = (size_t)t->most, count = n_numbers(t, n_blocks);
    nrd_error *err = NULL;
    void *p = NULL;

    t->n = t->most;
    NRD_NEW_GOTO(t->host_arrays, count, err, fail);
    NRD_NEW_GOTO(t->spread, n * (size_t)t->s.hidden * r->act_bytes, err, fail);
    NRD_TRY(nrd_run_alloc(r, &t->taken, (size_t)(t->s.n_taken + 1) * n, (size_t)t->s.hidden * r->act_bytes, NRD_TOWER_POOL));
    NRD_TRY(nrd_run_alloc(r, &p, count, sizeof *t->arrays, NRD_TOWER_POOL));
    t->arrays = p;
    const int32_t *table = t->arrays + 4 * n + 8;
    t->view = view_at(t, 1, 0, 4 * n, table, n_blocks);
    t->seen = view_at(t, 2, 2 * n, 4 * n + 3, table, n_blocks);
    t->kv = (nrd_kv_layer){.dtype = r->act, .n_blocks = n_blocks, .block_tokens = bt, .n_kv_heads = t->s.n_heads,
                           .head_dim = t->head_dim};
    err = nrd_run_alloc(r, &t->kv.base, (size_t)n_blocks, r->dev->ops->kv_block_bytes(r->dev, r->act, bt, t->s.n_heads, t->head_dim),
                        NRD_TOWER_POOL);
fail:
    return err;
}

static nrd_error *fill_views(nrd_tower *t, const counts *c)
{
    const int32_t stride = t->view.block_table_stride;
    const size_t n = (size_t)t->n;
    int32_t *h = t->host_arrays, *ends = h + 4 * n;

    for (int32_t i = 0; i < t->n; i++) {
        h[i] = i;
        h[n + (size_t)i] = 0;
        h[2 * n + (size_t)i] = (i < c->real ? t->n : c->real) - 1; /* each sees its sequence's whole cache */
        h[3 * n + (size_t)i] = i < c->real ? 0 : 1;
    }
    memcpy(ends, (const int32_t[]){0, t->n, t->n, 0, c->real, t->n, t->n, c->real}, 8 * sizeof *ends);
    for (int32_t i = 0; i < 2 * stride; i++) {
        ends[8 + i] = i % stride;
    }
    return nrd_run_upload(t->r, t->arrays, h, n_numbers(t, stride) * sizeof *h);
}

/* ---- before the layers ---- */

/* The row of state s of tile j in the layers. */
static size_t place_of(const nrd_tower *t, const counts *c, int32_t j, int32_t s)
{
    return (size_t)(j * c->states + s + (j < c->tiles ? 0 : t->s.most_tiles * c->filled));
}

/* Positions, the class token and numbers of each tile, in `spread`. */
static nrd_error *make_start(nrd_tower *t, const counts *c)
{
    const int32_t hidden = t->s.hidden, tiles = t->s.most_tiles;
    const float at_gate = gate_of(t, "gated_positional_embedding.gate"), tile_gate = gate_of(t, "pre_tile_positional_embedding.gate");
    nrd_error *err = NULL;
    float *class = NULL, *position = NULL, *in_tile = NULL, *of_tile = NULL, *row = NULL;

    NRD_NEW_GOTO(class, hidden, err, done);
    NRD_NEW_GOTO(position, hidden, err, done);
    NRD_NEW_GOTO(row, hidden, err, done);
    NRD_NEW_GOTO(of_tile, (size_t)tiles * (size_t)hidden, err, done);
    NRD_NEW_GOTO(in_tile, (size_t)tiles * (size_t)c->states * (size_t)hidden, err, done);
    nrd_weight_row(nrd_vision_weight(t->from, "class_embedding"), 0, class);
    nrd_weight_row(nrd_vision_weight(t->from, "pre_tile_positional_embedding.embedding.weight"), c->id, of_tile);
    nrd_weight_row(nrd_vision_weight(t->from, "gated_positional_embedding.tile_embedding.weight"), c->id, in_tile);
    const nrd_weight *positions = nrd_vision_weight(t->from, "gated_positional_embedding.embedding");
    for (int32_t s = 0; s < c->states; s++) {
        nrd_weight_row(positions, s, position);
        for (int32_t j = 0; j < tiles; j++) {
            const float *own = in_tile + ((size_t)j * (size_t)c->states + (size_t)s) * (size_t)hidden;
            for (int32_t i = 0; i < hidden; i++) {
                const float first = s == 0 ? class[i] : tile_gate * of_tile[(size_t)j * (size_t)hidden + (size_t)i];
                row[i] = first + (1 - at_gate) * position[i] + at_gate * own[i];
            }
            nrd_tower_row(t, row, (size_t)hidden, t->spread + place_of(t, c, j, s) * (size_t)hidden * t->r->act_bytes);
        }
    }
done:
    free(class);
    free(position);
    free(in_tile);
    free(of_tile);
    free(row);
    return err;
}

/* Pixels of a tile by patches, as the first product's weights lie: channel, row, column. */
static void cut(const nrd_tower *t, const float *pixels)
{
    const size_t size = (size_t)t->s.image_size, p = (size_t)t->s.patch_size, side = size / p;
    for (size_t i = 0; i < side * side; i++) {
        for (size_t k = 0; k < 3 * p; k++) {
            const size_t channel = k / p, y = i / side * p + k % p, x = i % side * p;
            nrd_tower_row(t, pixels + (channel * size + y) * size + x, p, t->staged + (i * 3 * p * p + k * p) * t->r->act_bytes);
        }
    }
}

/* x = norm(x + delta), or of x alone. */
static nrd_error *frame(nrd_tower *t, bool has_delta, const nrd_extra_weight *weight, const nrd_extra_weight *bias)
{
    const nrd_norm_args a = {
        .kind = NRD_NORM_LAYER,
        .eps = FRAME_EPS,
        .n_tokens = t->n,
        .hidden = t->s.hidden,
        .delta = has_delta ? t->delta : NULL,
        .residual = t->x,
        .weight = &weight->w,
        .bias = &bias->w,
        .to_residual = true,
        .out = t->normed,
        .out_dtype = t->r->act,
        .act_dtype = t->r->act,
    };
    return t->r->dev->ops->norm(t->r->stream, &a);
}

static nrd_error *enter(nrd_tower *t, const counts *c, const float *pixels)
{
    nrd_runner *r = t->r;
    const size_t row = (size_t)t->s.hidden * r->act_bytes, numbers = 3 * (size_t)t->s.image_size * (size_t)t->s.image_size;
    const int32_t n_patches = c->states - 1;

    NRD_TRY(make_start(t, c));
    NRD_TRY(nrd_run_upload(r, t->x, t->spread, (size_t)t->n * row));
    NRD_TRY(r->dev->ops->fill(r->stream, t->delta, 0, (size_t)t->n * row));
    for (int32_t j = 0; j < c->tiles; j++) {
        cut(t, pixels + (size_t)j * numbers);
        NRD_TRY(nrd_run_upload(r, t->pixels, t->staged, (size_t)n_patches * (size_t)t->patch.product.cols * r->act_bytes));
        NRD_TRY(nrd_extra_multiply(r, &t->patch.product, &t->in, t->pixels, n_patches, (uint8_t *)t->delta + (size_t)(j * c->states + 1) * row,
                                   r->act, 0));
    }
    NRD_TRY(frame(t, true, &t->pre_norm, &t->pre_norm_bias));
    return r->dev->ops->fill(r->stream, (uint8_t *)t->x + (size_t)c->real * row, 0, (size_t)(t->s.most_tiles * c->filled) * row);
}

/* ---- the layers and behind ---- */

static nrd_error *run_layers(nrd_tower *t, const counts *c)
{
    const size_t bytes = (size_t)c->real * (size_t)t->s.hidden * t->r->act_bytes;
    bool has_delta = false;
    int32_t taken = 0;

    for (int32_t i = 0; i < t->s.n_layers; i++) {
        if (taken < t->s.n_taken && t->s.taken_layers[taken] == i) {
            NRD_TRY(has_delta ? nrd_tower_norm(t, true, NULL, NULL, false, NULL) : NULL);
            NRD_TRY(t->r->dev->ops->copy(t->r->stream, (uint8_t *)t->taken + (size_t)taken++ * bytes, t->x, bytes));
            has_delta = false;
        }
        NRD_TRY(nrd_tower_layer_run(t, i, has_delta));
        has_delta = true;
    }
    return NULL;
}

/* Numbers of each tile are added, and the global layers run. */
static nrd_error *run_global(nrd_tower *t, const counts *c)
{
    const size_t hidden = (size_t)t->s.hidden, row = hidden * t->r->act_bytes;
    const float gate = gate_of(t, "post_tile_positional_embedding.gate");
    nrd_error *err = NULL;
    float *all = NULL;

    NRD_TRY(frame(t, true, &t->post_norm, &t->post_norm_bias));
    NRD_NEW_GOTO(all, (size_t)t->s.most_tiles * hidden, err, done);
    nrd_weight_row(nrd_vision_weight(t->from, "post_tile_positional_embedding.embedding.weight"), c->id, all);
    for (size_t i = 0; i < (size_t)t->s.most_tiles * hidden; i++) {
        all[i] *= gate;
    }
    for (int32_t j = 0; j < t->s.most_tiles; j++) {
        for (int32_t s = 0; s < c->states + c->filled; s++) {
            const size_t at = s < c->states ? place_of(t, c, j, s) : (size_t)(c->real + j * c->filled + s - c->states);
            nrd_tower_row(t, all + (size_t)j * hidden, hidden, t->spread + at * row);
        }
    }
    NRD_TRY_GOTO(nrd_run_upload(t->r, t->delta, t->spread, (size_t)t->n * row), err, done);
    for (int32_t i = t->s.n_layers; i < nrd_tower_n_layers(t); i++) {
        NRD_TRY_GOTO(nrd_tower_layer_run(t, i, true), err, done);
    }
    err = nrd_tower_norm(t, true, NULL, NULL, false, NULL);
done:
    free(all);
    return err;
}

/* up = the sum of the products, [c->real, decoder's hidden]. */
static nrd_error *project(nrd_tower *t, const counts *c)
{
    nrd_runner *r = t->r;
    const size_t bytes = (size_t)c->real * (size_t)t->s.hidden * r->act_bytes;

    NRD_TRY(nrd_extra_multiply(r, &t->project1.product, &t->in, t->x, c->real, t->up, r->act, 0));
    for (int32_t k = 0; k < t->s.n_taken; k++) {
        NRD_TRY(nrd_extra_multiply(r, &t->project_taken[k].product, &t->in, (uint8_t *)t->taken + (size_t)k * bytes, c->real, t->delta, r->act, 0));
        NRD_TRY(nrd_extra_add(r, t->up, t->delta, c->real, r->spec->hidden));
    }
    return NULL;
}

nrd_error *nrd_tower_mllama_run(nrd_tower *t, const float *pixels, const nrd_vision_tiles *tiles, uint8_t *rows)
{
    const counts c = counts_of(t, tiles);
    nrd_runner *r = t->r;
    const size_t hidden = (size_t)r->spec->hidden, row = hidden * r->act_bytes;
    nrd_error *err = NULL;
    float *token = NULL;

    NRD_NEW_GOTO(token, hidden, err, done);
    nrd_weight_row(nrd_vision_weight(t->from, "image_token"), 0, token);
    nrd_tower_row(t, token, hidden, rows);
    t->seen.max_q_len = c.real > t->n - c.real ? c.real : t->n - c.real;
    NRD_TRY_GOTO(fill_views(t, &c), err, done);
    NRD_TRY_GOTO(enter(t, &c, pixels), err, done);
    NRD_TRY_GOTO(run_layers(t, &c), err, done);
    NRD_TRY_GOTO(run_global(t, &c), err, done);
    NRD_TRY_GOTO(project(t, &c), err, done);
    NRD_TRY_GOTO(r->dev->ops->copy(r->stream, rows + row, t->up, (size_t)c.real * row), err, done);
    err = r->dev->ops->stream_sync(r->stream);
done:
    free(token);
    return err;
}
