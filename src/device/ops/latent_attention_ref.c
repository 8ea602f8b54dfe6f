/* SPDX-License-Identifier: Apache-2.0
 * latent_attention: each head's keys and values are made of the cached rows, as the definition says, in double. Blocks
 * of the table that are -1 are skipped. No visible token: zeros. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

static nrd_error *check_map(const nrd_weight *w, const char *name, int64_t rows, int64_t cols)
{
    if (!w || !w->data || !nrd_is_float_dtype(w->dtype) || w->layout != NRD_LAYOUT_ROWS || w->rows != rows ||
        w->cols != cols) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent_attention: %s must be rows of a float type, [%lld, %lld]", name,
                          (long long)rows, (long long)cols);
    }
    return NULL;
}

static nrd_error *check_sizes(const nrd_latent_attention_args *a)
{
    const nrd_kv_layer *kv = &a->kv;
    const int32_t rank = kv->head_dim - a->rope_dim;

    if (kv->n_kv_heads != 0 || kv->block_tokens <= 0 || !kv->base || a->n_heads <= 0 || a->nope_dim <= 0 ||
        a->nope_dim > NRD_LATENT_MAX_HEAD_DIM || a->v_dim <= 0 || a->v_dim > NRD_LATENT_MAX_HEAD_DIM || a->rope_dim <= 0 ||
        a->rope_dim > NRD_LATENT_MAX_ROPE_DIM || rank <= 0 || rank > NRD_LATENT_MAX_RANK) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent_attention: %d heads of %d, %d and %d, rows of %d, %d kv heads, "
                          "blocks of %d", a->n_heads, a->nope_dim, a->rope_dim, a->v_dim, kv->head_dim, kv->n_kv_heads,
                          kv->block_tokens);
    }
    if (!nrd_is_float_dtype(a->act_dtype) || !nrd_is_float_dtype(kv->dtype) ||
        nrd_row_bytes(a->out_dtype, (int64_t)a->n_heads * a->v_dim) == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "latent_attention: %s to %s, a cache of type %s", nrd_dtype_name(a->act_dtype),
                          nrd_dtype_name(a->out_dtype), nrd_dtype_name(kv->dtype));
    }
    NRD_TRY(check_map(a->k_b, "k_b", (int64_t)a->n_heads * a->nope_dim, rank));
    return check_map(a->v_b, "v_b", (int64_t)a->n_heads * a->v_dim, rank);
}

nrd_error *nrd_latent_attention_check(const nrd_latent_attention_args *a)
{
    const nrd_batch_view *b = a->batch;

    if (!b || b->n_tokens < 0 || b->n_seqs < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent_attention: no batch");
    }
    if (b->n_tokens == 0) {
        return NULL;
    }
    if (!a->q || !a->out || !b->positions || !b->q_start || !b->token_seq || !b->ctx_len || !b->block_table) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent_attention: q, out and the batch arrays are needed");
    }
    if (b->tree_mask && b->tree_mask_words <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent_attention: tree mask of %d words", b->tree_mask_words);
    }
    return check_sizes(a);
}

/* out[n, rows] = the rows [row0, row0 + rows) of w times each of n cached rows. */
static void expand(const nrd_weight *w, int64_t row0, int32_t rows, const float *cached, int32_t width, int32_t n, double *out)
{
    float *m = nrd_xmalloc((size_t)w->cols * sizeof *m);

    for (int32_t i = 0; i < rows; i++) {
        for (int64_t k = 0; k < w->cols; k++) {
            m[k] = nrd_weight_at(w, (row0 + i) * w->cols + k);
        }
        for (int32_t p = 0; p < n; p++) {
            double sum = 0;
            for (int64_t k = 0; k < w->cols; k++) {
                sum += (double)m[k] * (double)cached[(int64_t)p * width + k];
            }
            out[(int64_t)p * rows + i] = sum;
        }
    }
    free(m);
}

/* What the heads of a sequence look at. */
typedef struct context {
    const nrd_latent_attention_args *a;
    int32_t seq;
    float *rows;           /* [ctx_len, head_dim] as they are cached */
    double *keys, *values; /* of one head: [ctx_len, nope_dim], [ctx_len, v_dim] */
    double *score;         /* [ctx_len] */
} context;

static bool is_there(const context *c, int32_t p)
{
    const nrd_batch_view *b = c->a->batch;
    return b->block_table[(int64_t)c->seq * b->block_table_stride + p / c->a->kv.block_tokens] >= 0;
}

/* One head of token t. */
static void attend(const context *c, int32_t t, int32_t h, float *out)
{
    const nrd_latent_attention_args *a = c->a;
    const nrd_attention_args see = {.batch = a->batch, .window = a->window, .n_sink = a->n_sink};
    const int32_t width = a->kv.head_dim, rank = width - a->rope_dim, n = a->batch->ctx_len[c->seq];
    const int64_t q = ((int64_t)t * a->n_heads + h) * (a->nope_dim + a->rope_dim);
    double peak = -INFINITY, total = 0, sum[NRD_LATENT_MAX_HEAD_DIM] = {0};

    for (int32_t p = 0; p < n; p++) {
        c->score[p] = -INFINITY;
        if (!is_there(c, p) || !nrd_attention_sees(&see, c->seq, t, p)) {
            continue;
        }
        double dot = 0;
        for (int32_t i = 0; i < a->nope_dim; i++) {
            dot += (double)nrd_load_f32(a->act_dtype, a->q, q + i) * c->keys[(int64_t)p * a->nope_dim + i];
        }
        for (int32_t i = 0; i < a->rope_dim; i++) {
            dot += (double)nrd_load_f32(a->act_dtype, a->q, q + a->nope_dim + i) * (double)c->rows[(int64_t)p * width + rank + i];
        }
        c->score[p] = dot * (double)a->scale;
        peak = c->score[p] > peak ? c->score[p] : peak;
    }
    for (int32_t p = 0; p < n; p++) {
        const double e = c->score[p] == -INFINITY ? 0 : exp(c->score[p] - peak);
        total += e;
        for (int32_t i = 0; e > 0 && i < a->v_dim; i++) {
            sum[i] += e * c->values[(int64_t)p * a->v_dim + i];
        }
    }
    for (int32_t i = 0; i < a->v_dim; i++) {
        out[i] = total > 0 ? (float)(sum[i] / total) : 0.0f;
    }
}

static void read_rows(const context *c)
{
    const nrd_latent_attention_args *a = c->a;
    const nrd_batch_view *b = a->batch;
    const nrd_kv_layer *kv = &a->kv;

    for (int32_t p = 0; p < b->ctx_len[c->seq]; p++) {
        const int32_t block = b->block_table[(int64_t)c->seq * b->block_table_stride + p / kv->block_tokens];
        const int64_t at = ((int64_t)block * kv->block_tokens + p % kv->block_tokens) * kv->head_dim;
        for (int32_t i = 0; i < kv->head_dim; i++) {
            c->rows[(int64_t)p * kv->head_dim + i] = block >= 0 ? nrd_load_f32(kv->dtype, kv->base, at + i) : 0;
        }
    }
}

void nrd_latent_attention_ref(const nrd_latent_attention_args *a)
{
    const nrd_batch_view *b = a->batch;
    const int64_t width = (int64_t)a->n_heads * a->v_dim;
    context c = {.a = a};
    size_t ctx = 1;

    for (int32_t s = 0; s < b->n_seqs; s++) {
        ctx = (size_t)b->ctx_len[s] > ctx ? (size_t)b->ctx_len[s] : ctx;
    }
    c.rows = nrd_xmalloc(ctx * (size_t)a->kv.head_dim * sizeof *c.rows);
    c.keys = nrd_xmalloc(ctx * (size_t)a->nope_dim * sizeof *c.keys);
    c.values = nrd_xmalloc(ctx * (size_t)a->v_dim * sizeof *c.values);
    c.score = nrd_xmalloc(ctx * sizeof *c.score);
    float *out = nrd_xmalloc((size_t)b->n_tokens * (size_t)width * sizeof *out);
    for (c.seq = 0; c.seq < b->n_seqs; c.seq++) {
        const int32_t n = b->ctx_len[c.seq];
        read_rows(&c);
        for (int32_t h = 0; h < a->n_heads; h++) {
            expand(a->k_b, (int64_t)h * a->nope_dim, a->nope_dim, c.rows, a->kv.head_dim, n, c.keys);
            expand(a->v_b, (int64_t)h * a->v_dim, a->v_dim, c.rows, a->kv.head_dim, n, c.values);
            for (int32_t t = b->q_start[c.seq]; t < b->q_start[c.seq + 1]; t++) {
                attend(&c, t, h, out + t * width + (int64_t)h * a->v_dim);
            }
        }
    }
    for (int32_t t = 0; t < b->n_tokens; t++) {
        nrd_store_row(a->out_dtype, a->out, t, width, out + t * width, a->out_row_scale);
    }
    free(c.rows);
    free(c.keys);
    free(c.values);
    free(c.score);
    free(out);
}
