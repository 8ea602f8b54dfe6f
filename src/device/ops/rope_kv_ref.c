/* SPDX-License-Identifier: Apache-2.0
 * rope_kv: norm of q and k, by heads or of all heads, bounds, rotary embedding (Su et al. 2021), scale of q by its
 * position, K and V into the cache.
 * Angles: position, or that on the pair's axis, * inv_freq in float32, cos and sin of that, times rope_scale. */
#include "device/ops/ops.h"

#include "base/mem.h"

#include <math.h>
#include <stdlib.h>

static nrd_error *check_head_norm(const nrd_weight *w, int32_t dim)
{
    if (w && (w->rows * w->cols != dim || !nrd_is_float_dtype(w->dtype) || !w->data)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: norm of %lld %s elements for %d",
                          (long long)(w->rows * w->cols), nrd_dtype_name(w->dtype), dim);
    }
    return NULL;
}

nrd_error *nrd_rope_kv_check(const nrd_rope_kv_args *a)
{
    const nrd_kv_layer *kv = &a->kv;
    const nrd_batch_view *b = a->batch;

    if (!b || b->n_tokens < 0 || b->n_seqs < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: no batch");
    }
    if (b->n_tokens == 0) {
        return NULL;
    }
    if (!a->qkv || !b->positions || !b->token_seq || !b->block_table) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: qkv, positions, token_seq and block_table are needed");
    }
    if (kv->n_kv_heads <= 0 || kv->head_dim <= 0 || kv->block_tokens <= 0 || !kv->base ||
        a->n_heads < 0 || a->n_heads % kv->n_kv_heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: %d heads over %d kv heads of %d, blocks of %d",
                          a->n_heads, kv->n_kv_heads, kv->head_dim, kv->block_tokens);
    }
    if (a->rope != NRD_ROPE_NONE && (a->rotary_dim <= 0 || a->rotary_dim > kv->head_dim ||
                                     a->rotary_dim % 2 || !a->inv_freq)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: rotary size %d of head size %d", a->rotary_dim,
                          kv->head_dim);
    }
    if (a->pair_axis && !b->axes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: pairs that turn by axes, and no positions on them");
    }
    if (!nrd_is_float_dtype(a->act_dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "rope_kv: activations of type %s",
                          nrd_dtype_name(a->act_dtype));
    }
    if ((a->wide_norm && (a->apart_norm || a->center_norm || a->late_norm)) || (a->late_norm && a->clip > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: forms of norms and bounds that exclude each other");
    }
    if ((a->q_norm_bias && !a->q_norm) || (a->k_norm_bias && !a->k_norm) || ((a->q_norm_bias || a->k_norm_bias) && !a->center_norm)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: biases of norms of another kind than layer norms");
    }
    if (a->q_only && (a->wide_norm || a->n_heads == 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: queries alone, %d heads%s", a->n_heads, a->wide_norm ? ", a norm over all" : "");
    }
    if (a->wide_squares && (!a->wide_norm || a->wide_ranks < 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: sums of squares of %d ranks", a->wide_ranks);
    }
    if (a->q_scale_beta > 0 && (a->q_scale_length <= 0 || a->q_scale_offset < 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope_kv: queries scaled by positions from %d on in steps of %d",
                          a->q_scale_offset, a->q_scale_length);
    }
    const bool whole = a->wide_norm || a->apart_norm;
    const int32_t q = whole ? a->n_heads * kv->head_dim : kv->head_dim, k = whole ? kv->n_kv_heads * kv->head_dim : kv->head_dim;
    NRD_TRY(check_head_norm(a->q_norm, q));
    NRD_TRY(check_head_norm(a->k_norm, k));
    NRD_TRY(check_head_norm(a->q_norm_bias, q));
    return check_head_norm(a->k_norm_bias, k);
}

float nrd_rope_kv_q_scale(const nrd_rope_kv_args *a, int32_t pos)
{
    if (!(a->q_scale_beta > 0)) {
        return 1;
    }
    const int64_t steps = ((int64_t)pos + a->q_scale_offset) / a->q_scale_length;
    return (float)(1 + (double)a->q_scale_beta * log(1 + (double)steps));
}

/* x[n] with the weights from w[at] on, or without any, and the biases from b[at] on. */
static void head_norm(const nrd_weight *w, const nrd_weight *b, int64_t at, float eps, bool center, int32_t n, float *x)
{
    double square = 0, mean = 0;

    for (int32_t i = 0; center && i < n; i++) {
        mean += (double)x[i] / n;
    }
    for (int32_t i = 0; i < n; i++) {
        square += ((double)x[i] - mean) * ((double)x[i] - mean);
    }
    double scale = 1.0 / sqrt(square / n + (double)eps);
    for (int32_t i = 0; i < n; i++) {
        x[i] = (float)(((double)x[i] - mean) * scale * (w ? (double)nrd_weight_at(w, at + i) : 1) +
                       (b ? (double)nrd_weight_at(b, at + i) : 0));
    }
}

/* All heads of q, or of k, of a token; x: room for them. square: of all ranks' heads; NULL: these are all. */
static void wide_norm(const nrd_rope_kv_args *a, const nrd_weight *w, const float *square, int64_t at, int32_t n, float *x)
{
    for (int32_t i = 0; i < n; i++) {
        x[i] = nrd_load_f32(a->act_dtype, a->qkv, at + i);
    }
    if (square) {
        const double scale = 1.0 / sqrt((double)*square / ((double)n * a->wide_ranks) + (double)a->norm_eps);
        for (int32_t i = 0; i < n; i++) {
            x[i] = (float)((double)x[i] * scale * (double)nrd_weight_at(w, i));
        }
    } else {
        head_norm(w, NULL, 0, a->norm_eps, false, n, x);
    }
    for (int32_t i = 0; i < n; i++) {
        nrd_store_f32(a->act_dtype, a->qkv, at + i, x[i]);
    }
}

/* Of token t. */
static void rotate(const nrd_rope_kv_args *a, int32_t t, float *x)
{
    int32_t half = a->rotary_dim / 2;

    for (int32_t i = 0; a->rope != NRD_ROPE_NONE && i < half; i++) {
        const int32_t pos = a->pair_axis ? a->batch->axes[(int64_t)t * NRD_ROPE_AXES + a->pair_axis[i]] : a->batch->positions[t];
        float angle = (float)pos * a->inv_freq[i];
        float c = cosf(angle) * a->rope_scale, s = sinf(angle) * a->rope_scale;
        int32_t p = a->rope == NRD_ROPE_NEOX ? i : 2 * i, q = a->rope == NRD_ROPE_NEOX ? i + half : 2 * i + 1;
        float u = x[p], v = x[q];
        x[p] = u * c - v * s;
        x[q] = u * s + v * c;
    }
}

/* Head `head` of q or k of token t in place, all but what goes over all heads. */
static void one_head(const nrd_rope_kv_args *a, bool is_q, int32_t head, int32_t t, float *x)
{
    const nrd_weight *norm = a->wide_norm ? NULL : is_q ? a->q_norm : a->k_norm, *bias = is_q ? a->q_norm_bias : a->k_norm_bias;
    const int32_t dim = a->kv.head_dim;
    const int64_t at = a->apart_norm ? (int64_t)head * dim : 0;

    if (norm && !a->late_norm) {
        head_norm(norm, bias, at, a->norm_eps, a->center_norm, dim, x);
    }
    for (int32_t d = 0; a->clip > 0 && d < dim; d++) {
        x[d] = fminf(fmaxf(x[d], -a->clip), a->clip);
    }
    rotate(a, t, x);
    if (norm && a->late_norm) {
        head_norm(norm, bias, at, a->norm_eps, a->center_norm, dim, x);
    }
    for (int32_t d = 0; is_q && a->q_scale_beta > 0 && d < dim; d++) {
        x[d] *= nrd_rope_kv_q_scale(a, a->batch->positions[t]);
    }
}

void nrd_rope_kv_ref(const nrd_rope_kv_args *a)
{
    const nrd_batch_view *b = a->batch;
    const nrd_kv_layer *kv = &a->kv;
    const int32_t dim = kv->head_dim, n_kv = a->q_only ? 0 : kv->n_kv_heads;
    const size_t block_bytes = nrd_kv_block_bytes(kv->dtype, kv->block_tokens, kv->n_kv_heads, dim);
    float *x = nrd_xmalloc((size_t)(a->wide_norm ? a->n_heads * dim : dim) * 4);

    for (int32_t t = 0; t < b->n_tokens; t++) {
        int64_t row = (int64_t)t * (a->n_heads + 2 * n_kv) * dim;
        int32_t slot = nrd_kv_slot(b, t);
        int32_t block = b->block_table[(int64_t)b->token_seq[t] * b->block_table_stride + slot / kv->block_tokens];
        char *cache = block >= 0 && block < kv->n_blocks ? (char *)kv->base + (size_t)block * block_bytes : NULL;
        if (a->wide_norm && a->q_norm) {
            wide_norm(a, a->q_norm, a->wide_squares ? a->wide_squares + 2 * (int64_t)t : NULL, row, a->n_heads * dim, x);
        }
        if (a->wide_norm && a->k_norm) {
            wide_norm(a, a->k_norm, a->wide_squares ? a->wide_squares + 2 * (int64_t)t + 1 : NULL, row + (int64_t)a->n_heads * dim,
                      n_kv * dim, x);
        }
        for (int32_t h = 0; h < a->n_heads + 2 * n_kv; h++) {
            bool is_q = h < a->n_heads, is_v = h >= a->n_heads + n_kv;
            int32_t head = is_v ? h - a->n_heads - n_kv : is_q ? h : h - a->n_heads;
            for (int32_t d = 0; d < dim; d++) {
                x[d] = nrd_load_f32(a->act_dtype, a->qkv, row + (int64_t)h * dim + d);
            }
            if (!is_v) {
                one_head(a, is_q, head, t, x);
            }
            if (is_v && a->v_norm) {
                head_norm(NULL, NULL, 0, a->norm_eps, false, dim, x);
            }
            for (int32_t d = 0; is_v && a->clip > 0 && d < dim; d++) {
                x[d] = fminf(fmaxf(x[d], -a->clip), a->clip);
            }
            for (int32_t d = 0; d < dim; d++) {
                if (is_q) {
                    nrd_store_f32(a->act_dtype, a->qkv, row + (int64_t)h * dim + d, x[d]);
                } else if (cache) {
                    int32_t in = slot % kv->block_tokens;
                    int64_t i = is_v ? nrd_kv_v_index(kv, head, in, d) : nrd_kv_k_index(kv, head, in, d);
                    nrd_kv_store(kv->dtype, cache, i, nrd_kv_scale(kv, head, is_v), x[d]);
                }
            }
        }
    }
    free(x);
}

/* ---- head_squares ---- */

nrd_error *nrd_head_squares_check(const nrd_head_squares_args *a)
{
    if (a->n_tokens < 0 || a->n_heads < 1 || a->n_kv_heads < 1 || a->head_dim < 1 || (a->n_tokens > 0 && (!a->qkv || !a->out))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "head_squares: %d tokens of %d and %d heads of %d", a->n_tokens, a->n_heads,
                          a->n_kv_heads, a->head_dim);
    }
    return nrd_is_float_dtype(a->act_dtype)
               ? NULL
               : nrd_errorf(NRD_ERR_UNSUPPORTED, "head_squares of %s", nrd_dtype_name(a->act_dtype));
}

void nrd_head_squares_ref(const nrd_head_squares_args *a)
{
    const int64_t n[2] = {(int64_t)a->n_heads * a->head_dim, (int64_t)a->n_kv_heads * a->head_dim};

    for (int32_t t = 0; t < a->n_tokens; t++) {
        int64_t at = (int64_t)t * (n[0] + 2 * n[1]);
        for (int part = 0; part < 2; at += n[part], part++) {
            double sum = 0;
            for (int64_t i = 0; i < n[part]; i++) {
                const double x = (double)nrd_load_f32(a->act_dtype, a->qkv, at + i);
                sum += x * x;
            }
            a->out[2 * (int64_t)t + part] = (float)sum;
        }
    }
}
