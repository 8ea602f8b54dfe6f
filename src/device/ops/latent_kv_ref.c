/* SPDX-License-Identifier: Apache-2.0
 * latent_kv: rotary embedding of the queries' last parts, norm and rotary embedding of a token's latent row, and the
 * row into the cache. Angles as in rope_kv. */
#include "device/ops/ops.h"

#include <math.h>

static nrd_error *check_sizes(const nrd_latent_kv_args *a)
{
    const nrd_kv_layer *kv = &a->kv;

    if (kv->n_kv_heads != 0 || kv->block_tokens <= 0 || !kv->base || a->n_heads <= 0 || a->nope_dim < 0 ||
        a->nope_dim > NRD_LATENT_MAX_HEAD_DIM || a->rope_dim <= 0 || a->rope_dim > NRD_LATENT_MAX_ROPE_DIM ||
        a->rope_dim % 2 || kv->head_dim <= a->rope_dim || kv->head_dim - a->rope_dim > NRD_LATENT_MAX_RANK) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent_kv: %d heads of %d and %d, rows of %d, %d kv heads, blocks of %d",
                          a->n_heads, a->nope_dim, a->rope_dim, kv->head_dim, kv->n_kv_heads, kv->block_tokens);
    }
    if (!nrd_is_float_dtype(a->act_dtype) || !nrd_is_float_dtype(kv->dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "latent_kv: activations of type %s, a cache of type %s",
                          nrd_dtype_name(a->act_dtype), nrd_dtype_name(kv->dtype));
    }
    return NULL;
}

nrd_error *nrd_latent_kv_check(const nrd_latent_kv_args *a)
{
    const nrd_batch_view *b = a->batch;
    const nrd_weight *w = a->norm;

    if (!b || b->n_tokens < 0 || b->n_seqs < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent_kv: no batch");
    }
    if (b->n_tokens == 0) {
        return NULL;
    }
    if (!a->q || !a->latent || !b->positions || !b->token_seq || !b->block_table || !a->inv_freq ||
        (a->rope != NRD_ROPE_NEOX && a->rope != NRD_ROPE_INTERLEAVED)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent_kv: q, latent rows, frequencies and the batch arrays are needed");
    }
    NRD_TRY(check_sizes(a));
    if (!w || w->rows * w->cols != a->kv.head_dim - a->rope_dim || !nrd_is_float_dtype(w->dtype) || !w->data) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "latent_kv: no norm of %d float elements", a->kv.head_dim - a->rope_dim);
    }
    return NULL;
}

static void rotate(const nrd_latent_kv_args *a, int32_t pos, float *x)
{
    const int32_t half = a->rope_dim / 2;

    for (int32_t i = 0; i < half; i++) {
        float angle = (float)pos * a->inv_freq[i];
        float c = cosf(angle) * a->rope_scale, s = sinf(angle) * a->rope_scale;
        int32_t p = a->rope == NRD_ROPE_NEOX ? i : 2 * i, q = a->rope == NRD_ROPE_NEOX ? i + half : 2 * i + 1;
        float u = x[p], v = x[q];
        x[p] = u * c - v * s;
        x[q] = u * s + v * c;
    }
}

/* The token's row as it is cached, before it is rounded. */
static void row_of(const nrd_latent_kv_args *a, int32_t t, float *x)
{
    const int32_t rank = a->kv.head_dim - a->rope_dim;
    double square = 0;

    for (int32_t i = 0; i < a->kv.head_dim; i++) {
        x[i] = nrd_load_f32(a->act_dtype, a->latent, (int64_t)t * a->kv.head_dim + i);
    }
    for (int32_t i = 0; i < rank; i++) {
        square += (double)x[i] * (double)x[i];
    }
    const double scale = 1.0 / sqrt(square / rank + (double)a->norm_eps);
    for (int32_t i = 0; i < rank; i++) {
        x[i] = (float)((double)x[i] * scale * (double)nrd_weight_at(a->norm, i));
    }
    rotate(a, a->batch->positions[t], x + rank);
}

void nrd_latent_kv_ref(const nrd_latent_kv_args *a)
{
    const nrd_batch_view *b = a->batch;
    const nrd_kv_layer *kv = &a->kv;
    const int32_t width = a->nope_dim + a->rope_dim;
    float x[NRD_LATENT_MAX_RANK + NRD_LATENT_MAX_ROPE_DIM];

    for (int32_t t = 0; t < b->n_tokens; t++) {
        const int32_t slot = nrd_kv_slot(b, t);
        const int32_t block = b->block_table[(int64_t)b->token_seq[t] * b->block_table_stride + slot / kv->block_tokens];
        for (int32_t h = 0; h < a->n_heads; h++) {
            const int64_t at = ((int64_t)t * a->n_heads + h) * width + a->nope_dim;
            for (int32_t i = 0; i < a->rope_dim; i++) {
                x[i] = nrd_load_f32(a->act_dtype, a->q, at + i);
            }
            rotate(a, b->positions[t], x);
            for (int32_t i = 0; i < a->rope_dim; i++) {
                nrd_store_f32(a->act_dtype, a->q, at + i, x[i]);
            }
        }
        if (block < 0 || block >= kv->n_blocks) {
            continue;
        }
        row_of(a, t, x);
        for (int32_t i = 0; i < kv->head_dim; i++) {
            const int64_t row = (int64_t)block * kv->block_tokens + slot % kv->block_tokens;
            nrd_store_f32(kv->dtype, kv->base, row * kv->head_dim + i, x[i]);
        }
    }
}
