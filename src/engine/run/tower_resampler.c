/* SPDX-License-Identifier: Apache-2.0
 * Queries that read a tower's states once (Qwen-VL; Bai et al., 2023): one attention whose keys know where in the picture they are, and no
 * residual. Positions of keys are the same for all pictures: what the product makes of them is added to its result. */
#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/operations.h"
#include "engine/run/tower_queries.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct nrd_tower_resampler {
    nrd_extra_product narrow; /* from the tower's width to that of the queries; n 0: they are alike */
    nrd_extra_product q, kv, dense;
    nrd_extra_weight norm, norm_bias;
    void *seen;      /* [states, hidden] normed */
    void *shift;     /* [states, 2 * hidden] what positions add to keys, and zeros */
    bool has_shift;
};

/* ---- positions ---- */

/* The four rows around the middle of part i of n, among `from`, and their weights (Keys, 1981; a = -0.75). */
static void taps(int32_t i, int32_t from, int32_t n, int32_t at[4], float weight[4])
{
    const double a = -0.75, middle = (i + 0.5) * from / n - 0.5, first = floor(middle), t = middle - first;

    for (int k = 0; k < 4; k++) {
        const int32_t row = (int32_t)first + k - 1;
        const double d = fabs(t - (k - 1));
        at[k] = row < 0 ? 0 : row < from ? row : from - 1;
        weight[k] = (float)(d <= 1 ? ((a + 2) * d - (a + 3)) * d * d + 1 : ((a * d - 5 * a) * d + 8 * a) * d - 4 * a);
    }
}

nrd_error *nrd_tower_spread_square(const nrd_weight *square, int32_t side, float *to)
{
    const int64_t cols = square->cols;
    const int32_t from = (int32_t)lround(sqrt((double)square->rows));
    nrd_error *err = NULL;
    float *row = NULL;

    NRD_NEW_GOTO(row, cols, err, done);
    for (int32_t i = 0; i < side * side; i++) {
        int32_t ys[4], xs[4];
        float high[4], wide[4], *out = to + (size_t)i * (size_t)cols;
        taps(i / side, from, side, ys, high);
        taps(i % side, from, side, xs, wide);
        memset(out, 0, (size_t)cols * sizeof *out);
        for (int k = 0; k < 16; k++) {
            const float w = high[k / 4] * wide[k % 4];
            nrd_weight_row(square, (int64_t)ys[k / 4] * from + xs[k % 4], row);
            for (int64_t c = 0; c < cols; c++) {
                out[c] += w * row[c];
            }
        }
    }
done:
    free(row);
    return err;
}

/* ---- weights ---- */

/* Part `first`, of `n` parts in a row, of the stacked weight or bias of q, k and v. */
static nrd_weight part_of(const nrd_weight *w, int first, int n)
{
    const size_t bytes = w->data_bytes / 3;
    nrd_weight part = *w;

    part.data = (const uint8_t *)w->data + (size_t)first * bytes;
    part.data_bytes = (size_t)n * bytes;
    if (w->rows == 1) {
        part.cols = w->cols / 3 * n;
    } else {
        part.rows = w->rows / 3 * n;
    }
    return part;
}

static nrd_error *load_stacked(nrd_tower *t, int first, int n, nrd_extra_product *to)
{
    const nrd_weight *all = nrd_vision_weight(t->from, "attn_pool.attn.in_proj_weight");
    const nrd_weight weight = part_of(all, first, n), bias = part_of(nrd_vision_weight(t->from, "attn_pool.attn.in_proj_bias"), first, n);

    NRD_TRY(nrd_extra_product_add(t->r, &weight, &bias, NRD_TOWER_POOL, to));
    t->bytes += nrd_extra_product_bytes(to);
    return NULL;
}

/* Stored as it is multiplied from the right: rows become columns. */
static nrd_error *load_last(nrd_tower *t)
{
    const nrd_weight *from = nrd_vision_weight(t->from, "proj");
    const size_t rows = (size_t)from->rows, cols = (size_t)from->cols, bytes = from->data_bytes / (rows * cols);
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->projection, from->data_bytes, err, fail);
    for (size_t i = 0; i < rows * cols; i++) {
        memcpy(t->projection + (i % cols * rows + i / cols) * bytes, (const uint8_t *)from->data + i * bytes, bytes);
    }
    nrd_weight w = *from;
    w.rows = from->cols;
    w.cols = from->rows;
    w.data = t->projection;
    err = nrd_extra_product_add(t->r, &w, NULL, NRD_TOWER_POOL, &t->project1);
    t->bytes += nrd_extra_product_bytes(&t->project1);
fail:
    return err;
}

nrd_error *nrd_tower_resampler_load(nrd_tower *t)
{
    nrd_tower_resampler *p = NULL;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(t->queries, 1, err, fail);
    NRD_NEW_GOTO(t->resampler, 1, err, fail);
    p = t->resampler;
    NRD_TRY(t->s.hidden != t->s.queries.hidden ? nrd_tower_load_product(t, "attn_pool.kv_proj", &p->narrow) : NULL);
    NRD_TRY(nrd_tower_load_norm(t, "attn_pool.ln_kv", &p->norm, &p->norm_bias));
    NRD_TRY(load_stacked(t, 0, 1, &p->q));
    NRD_TRY(load_stacked(t, 1, 2, &p->kv));
    NRD_TRY(nrd_tower_load_product(t, "attn_pool.attn.out_proj", &p->dense));
    NRD_TRY(nrd_tower_load_norm(t, "post_layernorm", &t->post_norm, &t->post_norm_bias));
    err = load_last(t);
fail:
    return err;
}

/* ---- memory ---- */

/* Queries, normed and with their positions. */
static nrd_error *fill_start(nrd_tower *t)
{
    const nrd_weight *query = nrd_vision_weight(t->from, "attn_pool.query"), *place = nrd_vision_weight(t->from, "attn_pool.pos_embed");
    const size_t n = (size_t)t->s.queries.n, hidden = (size_t)t->s.queries.hidden, row = hidden * t->r->act_bytes;
    nrd_error *err = NULL;
    uint8_t *host = NULL;
    float *x = NULL; /* a query, its position, weight and bias of the norm */

    NRD_NEW_GOTO(host, n * row, err, done);
    NRD_NEW_GOTO(x, 4 * hidden, err, done);
    nrd_weight_row(nrd_vision_weight(t->from, "attn_pool.ln_q.weight"), 0, x + 2 * hidden);
    nrd_weight_row(nrd_vision_weight(t->from, "attn_pool.ln_q.bias"), 0, x + 3 * hidden);
    for (size_t i = 0; i < n; i++) {
        double mean = 0, square = 0;
        nrd_weight_row(query, (int64_t)i, x);
        nrd_weight_row(place, (int64_t)i, x + hidden);
        for (size_t c = 0; c < hidden; c++) {
            mean += x[c] / (double)hidden;
        }
        for (size_t c = 0; c < hidden; c++) {
            square += (x[c] - mean) * (x[c] - mean) / (double)hidden;
        }
        for (size_t c = 0; c < hidden; c++) {
            x[c] = (float)((x[c] - mean) / sqrt(square + (double)t->s.queries.norm_eps)) * x[2 * hidden + c] + x[3 * hidden + c] + x[hidden + c];
        }
        nrd_tower_row(t, x, hidden, host + i * row);
    }
    err = nrd_run_upload(t->r, t->queries->start, host, n * row);
done:
    free(host);
    free(x);
    return err;
}

nrd_error *nrd_tower_resampler_init(nrd_tower *t)
{
    nrd_tower_resampler *p = t->resampler;
    const nrd_extra_product *const all[] = {&p->narrow, &p->q, &p->kv, &p->dense, &t->project1};
    const size_t n = (size_t)t->n, hidden = (size_t)t->s.queries.hidden;
    size_t in_bytes = 0;

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        in_bytes = nrd_tower_more(in_bytes, all[i]->product.in_row_bytes);
    }
    NRD_TRY(nrd_queries_alloc(t, t->n, in_bytes));
    NRD_TRY(nrd_run_alloc(t->r, &p->seen, n * hidden, t->r->act_bytes, NRD_TOWER_POOL));
    NRD_TRY(nrd_run_alloc(t->r, &p->shift, n * hidden * 2, t->r->act_bytes, NRD_TOWER_POOL));
    return fill_start(t);
}

void nrd_tower_resampler_free(nrd_tower *t)
{
    nrd_tower_resampler *p = t->resampler;

    if (!p) {
        return;
    }
    nrd_extra_product_unload(t->r, &p->narrow);
    nrd_extra_product_unload(t->r, &p->q);
    nrd_extra_product_unload(t->r, &p->kv);
    nrd_extra_product_unload(t->r, &p->dense);
    nrd_extra_weight_unload(t->r, &p->norm);
    nrd_extra_weight_unload(t->r, &p->norm_bias);
    nrd_run_free(t->r, p->seen);
    nrd_run_free(t->r, p->shift);
    free(p);
    t->resampler = NULL;
}

/* ---- a picture ---- */

/* What the product of keys makes of the positions of states, without its bias. Before the first picture. */
static nrd_error *make_shift(nrd_tower *t)
{
    nrd_tower_resampler *p = t->resampler;
    nrd_runner *r = t->r;
    const size_t n = (size_t)t->n, hidden = (size_t)t->s.queries.hidden, row = hidden * r->act_bytes;
    const nrd_weight bias = part_of(nrd_vision_weight(t->from, "attn_pool.attn.in_proj_bias"), 1, 1);
    nrd_error *err = NULL;
    float *all = NULL, *b = NULL;
    uint8_t *host = NULL;

    NRD_NEW_GOTO(all, n * hidden, err, done);
    NRD_NEW_GOTO(b, 2 * hidden, err, done);
    NRD_NEW_GOTO(host, n * 2 * row, err, done);
    NRD_TRY_GOTO(nrd_tower_spread_square(nrd_vision_weight(t->from, "attn_pool.pos_embed"), t->s.image_size / t->s.patch_size, all), err, done);
    for (size_t i = 0; i < n; i++) {
        nrd_tower_row(t, all + i * hidden, hidden, host + i * row);
    }
    NRD_TRY_GOTO(nrd_run_upload(r, p->seen, host, n * row), err, done);
    NRD_TRY_GOTO(nrd_queries_multiply(t, &p->kv, p->seen, t->n, t->queries->kv), err, done);
    NRD_TRY_GOTO(r->dev->ops->copy(r->stream, host, t->queries->kv, n * 2 * row), err, done);
    NRD_TRY_GOTO(r->dev->ops->stream_sync(r->stream), err, done);
    nrd_weight_row(&bias, 0, b);
    for (size_t i = 0; i < n; i++) {
        uint8_t *at = host + i * 2 * row;
        nrd_dequantize_row(r->act, at, b + hidden, (int64_t)hidden);
        for (size_t c = 0; c < hidden; c++) {
            b[hidden + c] -= b[c];
        }
        nrd_tower_row(t, b + hidden, hidden, at);
        memset(at + row, 0, row);
    }
    NRD_TRY_GOTO(nrd_run_upload(r, p->shift, host, n * 2 * row), err, done);
    p->has_shift = true;
done:
    free(all);
    free(b);
    free(host);
    return err;
}

/* out [n, hidden] = the norm of rows; in_place: these, too. */
static nrd_error *norm(nrd_tower *t, void *rows, const nrd_extra_weight *weight, const nrd_extra_weight *bias, int32_t n, bool in_place, void *out)
{
    const nrd_norm_args a = {
        .kind = NRD_NORM_LAYER,
        .eps = t->s.queries.norm_eps,
        .n_tokens = n,
        .hidden = t->s.queries.hidden,
        .residual = rows,
        .weight = &weight->w,
        .bias = &bias->w,
        .to_residual = in_place,
        .out = out,
        .out_dtype = t->r->act,
        .act_dtype = t->r->act,
    };
    return t->r->dev->ops->norm(t->r->stream, &a);
}

nrd_error *nrd_tower_resampler_run(nrd_tower *t)
{
    nrd_tower_resampler *p = t->resampler;
    nrd_tower_queries *x = t->queries;
    const int32_t n = t->s.queries.n, hidden = t->s.queries.hidden;

    NRD_TRY(p->has_shift ? NULL : make_shift(t));
    NRD_TRY(nrd_tower_norm(t, true, NULL, NULL, false, NULL));
    NRD_TRY(p->narrow.product.n > 0
                ? nrd_queries_multiply(t, &p->narrow, t->x, t->n, p->seen)
                : t->r->dev->ops->copy(t->r->stream, p->seen, t->x, (size_t)t->n * (size_t)hidden * t->r->act_bytes));
    NRD_TRY(norm(t, p->seen, &p->norm, &p->norm_bias, t->n, true, x->kv));
    NRD_TRY(nrd_queries_multiply(t, &p->kv, p->seen, t->n, x->kv));
    NRD_TRY(nrd_extra_add(t->r, x->kv, p->shift, t->n, 2 * hidden));
    NRD_TRY(nrd_queries_multiply(t, &p->q, x->start, n, x->qkv));
    NRD_TRY(nrd_queries_read_states(t));
    NRD_TRY(nrd_queries_multiply(t, &p->dense, x->out, n, x->delta));
    NRD_TRY(norm(t, x->delta, &t->post_norm, &t->post_norm_bias, n, false, x->out));
    return nrd_queries_multiply(t, &t->project1, x->out, n, t->delta);
}
