/* SPDX-License-Identifier: Apache-2.0
 * Swin (Liu et al., 2021), as Donut and Nougat have it: patches attend within windows, which in every other layer are moved by half of one,
 * with a bias by how far they are apart; between stages four patches become one of twice the width. Products and norms run on the device, a
 * band of windows at a time; attention within windows, a small part of the work, runs here on the host. */
#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/tower_internal.h"
#include "engine/run/operations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of norms that are in no layer: torch's own. */
#define OTHER_EPS 1e-5f

typedef struct swin_layer {
    nrd_extra_weight norm1, norm1_bias, norm2, norm2_bias;
    nrd_extra_product qkv, dense, up, down;
    float *bias; /* [heads, 2 window - 1, 2 window - 1] host */
} swin_layer;

typedef struct swin_stage {
    int32_t height, width, hidden, heads, depth;
    swin_layer *layers; /* [depth] */
    nrd_extra_weight merge_norm, merge_norm_bias;
    nrd_extra_product reduce;
} swin_stage;

struct nrd_tower_swin {
    swin_stage stages[NRD_VISION_MAX_STAGES];
    void *next;      /* [patches / 4, 4 * hidden of a stage]: squares of patches, device */
    float *qkv;      /* [band, 3 * hidden] host */
    float *scores;   /* [window^2] */
    uint8_t *packed; /* host: a band, or squares of patches, as activations */
    float *row;      /* [hidden of the last stage] */
};

/* Tokens of a band of windows. */
static size_t band_of(const nrd_tower *t, const swin_stage *g)
{
    return (size_t)t->s.swin.window * (size_t)g->width;
}

/* ---- weights ---- */

static nrd_error *load_bias(nrd_tower *t, const char *at, int32_t heads, float **out)
{
    char name[128];
    nrd_error *err = NULL;

    snprintf(name, sizeof name, "%s.attention.self.relative_position_bias_table", at);
    const nrd_weight *w = nrd_vision_weight(t->from, name);
    NRD_NEW_GOTO(*out, (size_t)(w->rows * heads), err, fail);
    for (int64_t i = 0; i < w->rows; i++) {
        float row[1 << 12]; /* heads, as they are bounded */
        nrd_weight_row(w, i, row);
        for (int32_t h = 0; h < heads; h++) {
            (*out)[h * w->rows + i] = row[h];
        }
    }
fail:
    return err;
}

static nrd_error *load_layer(nrd_tower *t, const char *at, int32_t heads, swin_layer *y)
{
    const struct {
        const char *name;
        nrd_extra_product *to;
    } products[] = {{"attention.self.query", &y->qkv}, {"attention.self.key", &y->qkv}, {"attention.self.value", &y->qkv},
                    {"attention.output.dense", &y->dense}, {"intermediate.dense", &y->up}, {"output.dense", &y->down}};
    char stem[96];

    snprintf(stem, sizeof stem, "%s.layernorm_before", at);
    NRD_TRY(nrd_tower_load_norm(t, stem, &y->norm1, &y->norm1_bias));
    snprintf(stem, sizeof stem, "%s.layernorm_after", at);
    NRD_TRY(nrd_tower_load_norm(t, stem, &y->norm2, &y->norm2_bias));
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        snprintf(stem, sizeof stem, "%s.%s", at, products[i].name);
        NRD_TRY(nrd_tower_load_product(t, stem, products[i].to));
    }
    return load_bias(t, at, heads, &y->bias);
}

static nrd_error *load_stage(nrd_tower *t, int32_t i, swin_stage *g)
{
    nrd_error *err = NULL;
    char at[64];

    NRD_NEW_GOTO(g->layers, g->depth, err, fail);
    for (int32_t k = 0; k < g->depth; k++) {
        snprintf(at, sizeof at, "encoder.layers.%d.blocks.%d", i, k);
        NRD_TRY(load_layer(t, at, g->heads, &g->layers[k]));
    }
    if (i + 1 == t->s.swin.n_stages) {
        return NULL;
    }
    snprintf(at, sizeof at, "encoder.layers.%d.downsample.norm", i);
    NRD_TRY(nrd_tower_load_norm(t, at, &g->merge_norm, &g->merge_norm_bias));
    snprintf(at, sizeof at, "encoder.layers.%d.downsample.reduction", i);
    err = nrd_tower_load_product(t, at, &g->reduce);
fail:
    return err;
}

nrd_error *nrd_tower_swin_load(nrd_tower *t)
{
    const nrd_vision_swin *w = &t->s.swin;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->swin, 1, err, fail);
    NRD_TRY(nrd_tower_load_product(t, "embeddings.patch_embeddings.projection", &t->patch));
    NRD_TRY(nrd_tower_load_norm(t, "embeddings.norm", &t->pre_norm, &t->pre_norm_bias));
    for (int32_t i = 0; i < w->n_stages; i++) {
        swin_stage *g = &t->swin->stages[i];
        *g = (swin_stage){.height = w->height >> i, .width = w->width >> i, .hidden = w->hidden << i, .heads = w->heads[i], .depth = w->depths[i]};
        NRD_TRY(load_stage(t, i, g));
    }
fail:
    return err;
}

static void free_layer(nrd_tower *t, swin_layer *y)
{
    nrd_extra_weight *const norms[] = {&y->norm1, &y->norm1_bias, &y->norm2, &y->norm2_bias};
    nrd_extra_product *const products[] = {&y->qkv, &y->dense, &y->up, &y->down};

    for (size_t i = 0; i < 4; i++) {
        nrd_extra_weight_unload(t->r, norms[i]);
        nrd_extra_product_unload(t->r, products[i]);
    }
    free(y->bias);
}

void nrd_tower_swin_free(nrd_tower *t)
{
    nrd_tower_swin *w = t->swin;

    for (int32_t i = 0; w && i < NRD_VISION_MAX_STAGES; i++) {
        swin_stage *g = &w->stages[i];
        for (int32_t k = 0; g->layers && k < g->depth; k++) {
            free_layer(t, &g->layers[k]);
        }
        free(g->layers);
        nrd_extra_weight_unload(t->r, &g->merge_norm);
        nrd_extra_weight_unload(t->r, &g->merge_norm_bias);
        nrd_extra_product_unload(t->r, &g->reduce);
    }
    if (w) {
        nrd_run_free(t->r, w->next);
        free(w->qkv);
        free(w->scores);
        free(w->packed);
        free(w->row);
    }
    free(w);
    t->swin = NULL;
}

/* ---- memory ---- */

/* Bytes that a token of a stage has as the input of a product at most. */
static size_t widest(const swin_stage *g)
{
    size_t bytes = g->reduce.product.in_row_bytes;
    for (int32_t k = 0; k < g->depth; k++) {
        const swin_layer *y = &g->layers[k];
        bytes = nrd_tower_more(bytes, nrd_tower_more(y->qkv.product.in_row_bytes, y->dense.product.in_row_bytes));
        bytes = nrd_tower_more(bytes, nrd_tower_more(y->up.product.in_row_bytes, y->down.product.in_row_bytes));
    }
    return bytes;
}

/* A stage has a quarter of the patches of the one before, and twice their width: a band has as many numbers in all of them. */
nrd_error *nrd_tower_swin_init(nrd_tower *t)
{
    nrd_runner *r = t->r;
    nrd_tower_swin *w = t->swin;
    const swin_stage *first = &w->stages[0];
    const size_t n = (size_t)first->height * (size_t)first->width, hidden = (size_t)first->hidden, act = r->act_bytes;
    const size_t band = band_of(t, first), inter = (size_t)t->s.swin.mlp_ratio * hidden, last = (size_t)t->s.hidden;
    size_t in = band * t->patch.product.in_row_bytes;
    nrd_error *err = NULL;
    void *p = NULL;

    for (int32_t i = 0; i < t->s.swin.n_stages; i++) {
        in = nrd_tower_more(in, band_of(t, &w->stages[i]) * widest(&w->stages[i]));
    }
    const struct {
        void **to;
        size_t count, bytes;
    } rows[] = {
        {&t->x, n * hidden, act},
        {&t->delta, n * hidden, act},
        {&w->next, n * hidden, act},
        {&t->pixels, band * (size_t)t->patch.product.cols, act},
        {&t->normed, band * hidden, act},
        {&t->qkv, band * 3 * hidden, act},
        {&t->att, band * hidden, act},
        {&t->up, band * inter, act},
        {&t->mid, nrd_tower_more(band * inter * act, in), 1},
        {&t->in.rows, in, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        NRD_TRY(nrd_run_alloc(r, rows[i].to, rows[i].count, rows[i].bytes, NRD_TOWER_POOL));
    }
    NRD_TRY(nrd_run_alloc(r, &p, band, sizeof *t->scale, NRD_TOWER_POOL));
    t->scale = t->in.row_scale = p;
    NRD_NEW_GOTO(w->qkv, band * 3 * hidden, err, fail);
    NRD_NEW_GOTO(w->scores, (size_t)t->s.swin.window * (size_t)t->s.swin.window, err, fail);
    NRD_NEW_GOTO(w->row, last, err, fail);
    NRD_NEW_GOTO(w->packed, nrd_tower_more(nrd_tower_more(band * 3 * hidden, n * hidden), band * (size_t)t->patch.product.cols) * act, err, fail);
    NRD_NEW_GOTO(t->staged, n * hidden * act, err, fail);
    return nrd_run_advised(r->dev->ops->reserve(r->stream, (int32_t)band, nrd_run_max_rows(r), (int32_t)((size_t)t->s.swin.mlp_ratio * last), (int32_t)band, 1), "workspace");
fail:
    return err;
}

/* ---- attention within windows ---- */

/* Whether two places of a moved picture's side lie together in it, where they are not from its two ends. */
static int region(int32_t i, int32_t n, int32_t window, int32_t shift)
{
    return shift > 0 ? (i >= n - window) + (i >= n - shift) : 0;
}

/* One head of one query: place `q` of the window at column x0 of a band, which begins at row y0. out: [head]. */
static void attend_one(const nrd_tower *t, const swin_stage *g, const float *bias, int32_t y0, int32_t x0, int32_t q, int32_t head, int32_t shift,
                       float *out)
{
    const int32_t side = t->s.swin.window, dim = g->hidden / g->heads, n = side * side;
    const size_t stride = 3 * (size_t)g->hidden, width = (size_t)g->width;
    const int32_t qy = q / side, qx = q % side;
    const float scale = 1 / sqrtf((float)dim);
    const int of = region(y0 + qy, g->height, side, shift) * 3 + region(x0 + qx, g->width, side, shift);
    float *scores = t->swin->scores, most = -INFINITY, sum = 0;
    const float *rows = t->swin->qkv + (size_t)head * (size_t)dim;
    const float *query = rows + ((size_t)qy * width + ((size_t)(x0 + qx + shift)) % width) * stride;

    for (int32_t k = 0; k < n; k++) {
        const int32_t ky = k / side, kx = k % side;
        const float *key = rows + ((size_t)ky * width + ((size_t)(x0 + kx + shift)) % width) * stride + g->hidden;
        float dot = 0;
        for (int32_t d = 0; d < dim; d++) {
            dot += query[d] * key[d];
        }
        const bool apart = region(y0 + ky, g->height, side, shift) * 3 + region(x0 + kx, g->width, side, shift) != of;
        scores[k] = dot * scale + bias[(qy - ky + side - 1) * (2 * side - 1) + qx - kx + side - 1] - (apart ? 100 : 0);
        most = scores[k] > most ? scores[k] : most;
    }
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int32_t k = 0; k < n; k++) {
        const float p = expf(scores[k] - most);
        const float *value = rows + ((size_t)(k / side) * width + ((size_t)(x0 + k % side + shift)) % width) * stride + 2 * (size_t)g->hidden;
        sum += p;
        for (int32_t d = 0; d < dim; d++) {
            out[d] += p * value[d];
        }
    }
    for (int32_t d = 0; d < dim; d++) {
        out[d] /= sum;
    }
}

/* A band's q, k and v, in t->qkv, to what attention makes of them, in t->att. The band begins at row y0 of the moved picture. */
static nrd_error *attend(nrd_tower *t, const swin_stage *g, const swin_layer *y, int32_t y0, int32_t shift)
{
    nrd_runner *r = t->r;
    nrd_tower_swin *w = t->swin;
    const int32_t side = t->s.swin.window, dim = g->hidden / g->heads;
    const size_t band = band_of(t, g), hidden = (size_t)g->hidden, width = (size_t)g->width, table = (size_t)(2 * side - 1) * (size_t)(2 * side - 1);

    NRD_TRY(r->dev->ops->copy(r->stream, w->packed, t->qkv, band * 3 * hidden * r->act_bytes));
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    nrd_dequantize_row(r->act, w->packed, w->qkv, (int64_t)(band * 3 * hidden));
    for (int32_t x0 = 0; x0 < g->width; x0 += side) {
        for (int32_t q = 0; q < side * side; q++) {
            for (int32_t h = 0; h < g->heads; h++) {
                attend_one(t, g, y->bias + (size_t)h * table, y0, x0, q, h, shift, w->row + (size_t)h * (size_t)dim);
            }
            const size_t at = (size_t)(q / side) * width + (size_t)(x0 + q % side + shift) % width;
            nrd_tower_row(t, w->row, hidden, w->packed + at * hidden * r->act_bytes);
        }
    }
    return nrd_run_upload(r, t->att, w->packed, band * hidden * r->act_bytes);
}

/* ---- layers ---- */

static nrd_error *norm(nrd_tower *t, void *x, const void *delta, int32_t n, int32_t hidden, float eps, const nrd_extra_weight *weight,
                       const nrd_extra_weight *bias, void *out)
{
    const nrd_norm_args a = {
        .kind = NRD_NORM_LAYER,
        .eps = eps,
        .n_tokens = n,
        .hidden = hidden,
        .delta = delta,
        .residual = x,
        .weight = weight ? &weight->w : NULL,
        .bias = bias ? &bias->w : NULL,
        .out = out,
        .out_dtype = t->r->act,
        .act_dtype = t->r->act,
    };
    return t->r->dev->ops->norm(t->r->stream, &a);
}

static nrd_error *multiply(nrd_tower *t, const nrd_extra_product *p, const void *x, int32_t n, void *y)
{
    return nrd_extra_multiply(t->r, &p->product, &t->in, x, n, y, t->r->act, 0);
}

static void *rows_from(const nrd_tower *t, void *rows, size_t first, int32_t hidden)
{
    return (uint8_t *)rows + first * (size_t)hidden * t->r->act_bytes;
}

/* Attention of all bands, into delta. Rows of a moved band come from two ends of the picture at most. */
static nrd_error *windows(nrd_tower *t, const swin_stage *g, const swin_layer *y, int32_t shift)
{
    nrd_runner *r = t->r;
    const int32_t side = t->s.swin.window, n = (int32_t)band_of(t, g);
    const size_t width = (size_t)g->width, row = width * (size_t)g->hidden * r->act_bytes;

    for (int32_t y0 = 0; y0 < g->height; y0 += side) {
        for (int32_t i = 0; i < side; i++) {
            const size_t from = (size_t)((y0 + i + shift) % g->height) * width;
            NRD_TRY(norm(t, rows_from(t, t->x, from, g->hidden), NULL, g->width, g->hidden, t->s.norm_eps, &y->norm1, &y->norm1_bias,
                         rows_from(t, t->normed, (size_t)i * width, g->hidden)));
        }
        NRD_TRY(multiply(t, &y->qkv, t->normed, n, t->qkv));
        NRD_TRY(attend(t, g, y, y0, shift));
        NRD_TRY(multiply(t, &y->dense, t->att, n, t->up));
        for (int32_t i = 0; i < side; i++) {
            const size_t to = (size_t)((y0 + i + shift) % g->height) * width;
            NRD_TRY(r->dev->ops->copy(r->stream, rows_from(t, t->delta, to, g->hidden), rows_from(t, t->up, (size_t)i * width, g->hidden), row));
        }
    }
    return NULL;
}

static nrd_error *layer(nrd_tower *t, const swin_stage *g, const swin_layer *y, int32_t shift)
{
    const size_t n = (size_t)g->height * (size_t)g->width, band = band_of(t, g);
    const int32_t inter = g->hidden * t->s.swin.mlp_ratio;

    NRD_TRY(windows(t, g, y, shift));
    for (size_t from = 0; from < n; from += band) {
        const int32_t m = (int32_t)band;
        void *x = rows_from(t, t->x, from, g->hidden), *delta = rows_from(t, t->delta, from, g->hidden);
        NRD_TRY(norm(t, x, delta, m, g->hidden, t->s.norm_eps, &y->norm2, &y->norm2_bias, t->normed));
        NRD_TRY(multiply(t, &y->up, t->normed, m, t->up));
        NRD_TRY(nrd_tower_activate(t, t->s.act, false, m, inter, &y->down.product));
        NRD_TRY(nrd_tower_multiply(t, &y->down, t->mid, m, delta));
        NRD_TRY(norm(t, x, delta, m, g->hidden, 0, NULL, NULL, NULL));
    }
    return NULL;
}

/* x of a stage to x of the next one: of a square of patches the left column, from above, then the right one. */
static nrd_error *merge(nrd_tower *t, const swin_stage *g)
{
    nrd_runner *r = t->r;
    const size_t height = (size_t)g->height, width = (size_t)g->width, bytes = (size_t)g->hidden * r->act_bytes;
    const size_t n = height * width / 4, band = band_of(t, g) / 4;
    uint8_t *squares = t->staged;

    NRD_TRY(r->dev->ops->copy(r->stream, t->swin->packed, t->x, height * width * bytes));
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    for (size_t i = 0; i < 4 * n; i++) {
        const size_t square = i / 4, y = square / (width / 2) * 2 + i % 2, x = square % (width / 2) * 2 + i / 2 % 2;
        memcpy(squares + i * bytes, t->swin->packed + (y * width + x) * bytes, bytes);
    }
    NRD_TRY(nrd_run_upload(r, t->swin->next, squares, 4 * n * bytes));
    for (size_t from = 0; from < n; from += band) {
        const int32_t m = (int32_t)(n - from < band ? n - from : band);
        NRD_TRY(norm(t, rows_from(t, t->swin->next, from, 4 * g->hidden), NULL, m, 4 * g->hidden, OTHER_EPS, &g->merge_norm, &g->merge_norm_bias, t->normed));
        NRD_TRY(multiply(t, &g->reduce, t->normed, m, rows_from(t, t->x, from, 2 * g->hidden)));
    }
    return NULL;
}

/* ---- one page ---- */

/* Pixels by patches, as the product's weights lie: channel, row, column; normed into x, a band of rows at a time. */
static nrd_error *enter(nrd_tower *t, const float *pixels)
{
    nrd_runner *r = t->r;
    const swin_stage *g = &t->swin->stages[0];
    const size_t p = (size_t)t->s.patch_size, wide = (size_t)g->width, width = wide * p, plane = (size_t)g->height * p * width;
    const size_t numbers = 3 * p * p, band = band_of(t, g);

    for (size_t from = 0; from < (size_t)g->height * wide; from += band) {
        for (size_t i = 0; i < band; i++) {
            const float *corner = pixels + (from + i) / wide * p * width + (from + i) % wide * p;
            for (size_t k = 0; k < 3 * p; k++) {
                nrd_tower_row(t, corner + k / p * plane + k % p * width, p, t->swin->packed + (i * numbers + k * p) * r->act_bytes);
            }
        }
        NRD_TRY(nrd_run_upload(r, t->pixels, t->swin->packed, band * numbers * r->act_bytes));
        NRD_TRY(multiply(t, &t->patch, t->pixels, (int32_t)band, t->up));
        NRD_TRY(norm(t, t->up, NULL, (int32_t)band, g->hidden, OTHER_EPS, &t->pre_norm, &t->pre_norm_bias, rows_from(t, t->x, from, g->hidden)));
    }
    return NULL;
}

nrd_error *nrd_tower_swin_run(nrd_tower *t, const float *pixels, void *rows)
{
    nrd_runner *r = t->r;
    const nrd_vision_swin *w = &t->s.swin;
    const swin_stage *last = &t->swin->stages[w->n_stages - 1];

    NRD_TRY(enter(t, pixels));
    for (int32_t i = 0; i < w->n_stages; i++) {
        const swin_stage *g = &t->swin->stages[i];
        const bool one = (g->height < g->width ? g->height : g->width) <= w->window; /* a window on a side: nothing to move */
        for (int32_t k = 0; k < g->depth; k++) {
            NRD_TRY(layer(t, g, &g->layers[k], k % 2 && !one ? w->window / 2 : 0));
        }
        NRD_TRY(i + 1 < w->n_stages ? merge(t, g) : NULL);
    }
    NRD_TRY(r->dev->ops->copy(r->stream, rows, t->x, (size_t)last->height * (size_t)last->width * (size_t)last->hidden * r->act_bytes));
    return r->dev->ops->stream_sync(r->stream);
}
