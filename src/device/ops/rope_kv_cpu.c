/* SPDX-License-Identifier: Apache-2.0
 * rope_kv on the CPU: a task is some neighbouring tokens, whose K lie in the same cache lines.
 * Bound: memory, and the scattered store of K. */
#include "device/cpu/cpu.h"

#include <math.h>
#include <string.h>

enum { TASK_TOKENS = 16 };

/* Asks for the cache lines that a token will write for one head; NULL: none. K of one token lies in a line of its own
 * for every two d, so waiting for them one after the other is what rope_kv of many sequences takes. Into L2: L1 has
 * fewer lines under way at a time. Always inline: gcc takes a function of nothing but prefetches for one
 * without effects, and leaves its calls out. */
static inline __attribute__((always_inline)) void ask_for(const nrd_kv_layer *kv, int32_t head, char *cache, int32_t in)
{
    const size_t elem = kv->dtype == NRD_DTYPE_F32 ? 4 : kv->dtype == NRD_DTYPE_I8 ? 1 : 2, n = (size_t)kv->head_dim * elem;

    if (cache) {
        const char *k = cache + (size_t)nrd_kv_k_index(kv, head, in, 0) * elem;
        const char *v = cache + (size_t)nrd_kv_v_index(kv, head, in, 0) * elem;
        for (size_t at = 0; at < n * NRD_KV_GROUP; at += 64) {
            __builtin_prefetch(k + at, 1, 2);
        }
        for (size_t at = 0; at < n; at += 64) {
            __builtin_prefetch(v + at, 1, 2);
        }
    }
}

static char *cache_of(const nrd_rope_kv_args *a, int32_t t, int32_t *in)
{
    const nrd_batch_view *b = a->batch;
    int32_t slot = nrd_kv_slot(b, t), bt = a->kv.block_tokens;
    int32_t block = b->block_table[(int64_t)b->token_seq[t] * b->block_table_stride + slot / bt];

    *in = slot % bt;
    return block >= 0 && block < a->kv.n_blocks
               ? (char *)a->kv.base +
                     (size_t)block * nrd_kv_block_bytes(a->kv.dtype, bt, a->kv.n_kv_heads, a->kv.head_dim)
               : NULL;
}

static void clip_row(float *x, int32_t n, float clip)
{
    for (int32_t i = 0; i < n; i++) {
        x[i] = fminf(fmaxf(x[i], -clip), clip);
    }
}

/* Cosines and sines of token t. Pairs of one axis that follow each other are computed together; text is at one place on
 * all axes. */
static void angles(nrd_cpu_run *r, const nrd_rope_kv_args *a, int32_t t, float *cs, float *sn)
{
    const int32_t half = a->rotary_dim / 2, *axes = a->batch->axes;

    if (!a->pair_axis) {
        r->k->rope_angles(a->batch->positions[t], a->inv_freq, half, a->rope_scale, cs, sn);
        return;
    }
    axes += (int64_t)t * NRD_ROPE_AXES;
    for (int32_t from = 0, to; from < half; from = to) {
        const int32_t pos = axes[a->pair_axis[from]];
        for (to = from + 1; to < half && axes[a->pair_axis[to]] == pos; to++) {
        }
        r->k->rope_angles(pos, a->inv_freq + from, to - from, a->rope_scale, cs + from, sn + from);
    }
}

/* The norms of heads as float32. */
typedef struct {
    const float *weight[2], *bias[2]; /* of q and of k */
    const float *ones;                /* as many as a head has numbers */
} head_norms;

/* Where n numbers lie as float32: where they are, or in `room`, filled if told to. */
static const float *floats_of(const nrd_weight *w, int32_t n, bool fill, float *room)
{
    if (w && w->dtype == NRD_DTYPE_F32) {
        return w->data;
    }
    for (int32_t i = 0; w && fill && i < n; i++) {
        room[i] = nrd_weight_at(w, i);
    }
    return room;
}

/* room: for the weights and the biases of q_width and k_width numbers and a head's ones; what a thread put there stays for
 * its other tasks. */
static head_norms read_norms(nrd_cpu_run *r, const nrd_cpu_cmd *c, int32_t q_width, int32_t k_width, float *room)
{
    const nrd_rope_kv_args *a = &c->u.rope_kv;
    const bool fill = r->owner != c;
    float *k = room + q_width, *ones = k + k_width, *bias = ones + a->kv.head_dim;

    for (int32_t i = 0; fill && a->v_norm && i < a->kv.head_dim; i++) {
        ones[i] = 1;
    }
    r->owner = c;
    return (head_norms){{floats_of(a->q_norm, q_width, fill, room), floats_of(a->k_norm, k_width, fill, k)},
                        {floats_of(a->q_norm_bias, q_width, fill, bias), floats_of(a->k_norm_bias, k_width, fill, bias + q_width)},
                        ones};
}

/* A token's heads of q and k in place; cs, sn: its angles. */
static void turn_heads(nrd_cpu_run *r, const nrd_rope_kv_args *a, int32_t pos, float *row, const head_norms *n, const float *cs,
                       const float *sn)
{
    const int32_t dim = a->kv.head_dim, n_kv = a->q_only ? 0 : a->kv.n_kv_heads;
    const nrd_norm_kind kind = a->center_norm ? NRD_NORM_LAYER : NRD_NORM_RMS;
    const float grow = nrd_rope_kv_q_scale(a, pos);

    for (int32_t h = 0; h < a->n_heads + n_kv; h++) {
        const bool is_q = h < a->n_heads, normed = !a->wide_norm && (is_q ? a->q_norm : a->k_norm) != NULL;
        const int64_t at = a->apart_norm ? (int64_t)(is_q ? h : h - a->n_heads) * dim : 0;
        const float *w = n->weight[!is_q] + at, *bias = (is_q ? a->q_norm_bias : a->k_norm_bias) ? n->bias[!is_q] + at : NULL;
        float *x = row + (int64_t)h * dim;
        if (normed && !a->late_norm) {
            r->k->norm_row(kind, a->norm_eps, dim, x, w, bias, x);
        }
        if (a->clip > 0) {
            clip_row(x, dim, a->clip);
        }
        if (a->rope != NRD_ROPE_NONE) {
            r->k->rope_head(x, a->rope, a->rotary_dim / 2, cs, sn);
        }
        if (normed && a->late_norm) {
            r->k->norm_row(kind, a->norm_eps, dim, x, w, bias, x);
        }
        if (is_q && a->q_scale_beta > 0) {
            r->k->scale_row(x, grow, NULL, dim);
        }
    }
    for (int32_t h = 0; a->v_norm && h < n_kv; h++) {
        float *x = row + (int64_t)(a->n_heads + n_kv + h) * dim;
        r->k->norm_row(NRD_NORM_RMS, a->norm_eps, dim, x, n->ones, NULL, x);
    }
    if (a->clip > 0) {
        clip_row(row + (int64_t)(a->n_heads + n_kv) * dim, n_kv * dim, a->clip);
    }
}

/* All heads of q, or of k, of a token in place. square: of all ranks' heads; NULL: these are all. */
static void norm_wide(nrd_cpu_run *r, const nrd_rope_kv_args *a, const float *square, int32_t n, const float *w, float *x)
{
    if (!square) {
        r->k->norm_row(NRD_NORM_RMS, a->norm_eps, n, x, w, NULL, x);
        return;
    }
    const float scale = (float)(1.0 / sqrt((double)*square / ((double)n * a->wide_ranks) + (double)a->norm_eps));
    for (int32_t i = 0; i < n; i++) {
        x[i] = x[i] * scale * w[i];
    }
}

static void run(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_rope_kv_args *a = &c->u.rope_kv;
    const nrd_batch_view *b = a->batch;
    const nrd_kv_layer *kv = &a->kv;
    int32_t dim = kv->head_dim, n_kv = a->q_only ? 0 : kv->n_kv_heads;
    int32_t from = task * c->i[0], to = from + c->i[0] < b->n_tokens ? from + c->i[0] : b->n_tokens;
    bool single = b->n_tokens == b->n_seqs; /* neighbours of one sequence write to the same lines */
    const bool whole = a->wide_norm || a->apart_norm;
    int32_t q_width = whole ? a->n_heads * dim : dim, k_width = whole ? n_kv * dim : dim;
    float *cs = (float *)(void *)r->scratch, *sn = cs + dim;
    const head_norms norms = read_norms(r, c, q_width, k_width, sn + dim);

    (void)phase;
    int32_t in, next_in = 0;
    char *cache = cache_of(a, from, &in), *next = NULL;
    for (int32_t h = 0; single && h < n_kv; h++) {
        ask_for(kv, h, cache, in);
    }
    for (int32_t t = from; t < to; t++) {
        float *row = (float *)a->qkv + (int64_t)t * (a->n_heads + 2 * n_kv) * dim;
        cache = cache_of(a, t, &in);
        next = single && t + 1 < to ? cache_of(a, t + 1, &next_in) : NULL;
        if (a->rope != NRD_ROPE_NONE) {
            angles(r, a, t, cs, sn);
        }
        const float *square = a->wide_squares ? a->wide_squares + 2 * (int64_t)t : NULL;
        if (a->wide_norm && a->q_norm) {
            norm_wide(r, a, square, q_width, norms.weight[0], row);
        }
        if (a->wide_norm && a->k_norm) {
            norm_wide(r, a, square ? square + 1 : NULL, k_width, norms.weight[1], row + (int64_t)a->n_heads * dim);
        }
        turn_heads(r, a, b->positions[t], row, &norms, cs, sn);
        for (int32_t h = 0; cache && h < n_kv; h++) {
            const float *k = row + (int64_t)(a->n_heads + h) * dim, *v = k + (int64_t)n_kv * dim;
            r->k->kv_store_head(kv->dtype, k, dim, nrd_kv_scale(kv, h, false), cache, nrd_kv_k_index(kv, h, in, 0), NRD_KV_GROUP);
            r->k->kv_store_head(kv->dtype, v, dim, nrd_kv_scale(kv, h, true), cache, nrd_kv_v_index(kv, h, in, 0), 1);
            ask_for(kv, h, next, next_in);
        }
    }
}

static const nrd_cpu_op op = {run};

nrd_error *nrd_rope_kv_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const nrd_rope_kv_args *a = &c->u.rope_kv;
    int32_t n = a->batch->n_tokens;

    if (a->act_dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: rope_kv on %s", nrd_dtype_name(a->act_dtype));
    }
    if (nrd_kv_block_bytes(a->kv.dtype, 1, 1, 1) == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: kv cache of type %s; float32, float16, bfloat16 and int8 are there",
                          nrd_dtype_name(a->kv.dtype));
    }
    c->op = &op;
    c->i[0] = n / (n_threads * 4) + 1 < TASK_TOKENS ? n / (n_threads * 4) + 1 : TASK_TOKENS;
    c->n_tasks[0] = (n + c->i[0] - 1) / c->i[0];
    size_t heads = a->wide_norm || a->apart_norm ? (size_t)(a->n_heads + a->kv.n_kv_heads) : 2;
    c->scratch_bytes = (size_t)a->kv.head_dim * 4 * (3 + (a->q_norm_bias || a->k_norm_bias ? 2 : 1) * heads);
    return NULL;
}

/* ---- head_squares ---- */

static void run_squares(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    const nrd_head_squares_args *a = &c->u.head_squares;
    const int32_t from = task * c->i[0], left = a->n_tokens - from, to = from + (left < c->i[0] ? left : c->i[0]);
    const int64_t row = (int64_t)(a->n_heads + 2 * a->n_kv_heads) * a->head_dim;

    (void)r;
    (void)phase;
    for (int32_t t = from; t < to; t++) {
        const float *x = (const float *)a->qkv + t * row;
        for (int k = 0; k < 2; k++) {
            const int64_t n = (int64_t)(k ? a->n_kv_heads : a->n_heads) * a->head_dim;
            double sum = 0;
            for (int64_t i = 0; i < n; i++) {
                sum += (double)x[i] * (double)x[i];
            }
            a->out[2 * (int64_t)t + k] = (float)sum;
            x += n;
        }
    }
}

static const nrd_cpu_op op_squares = {run_squares};

nrd_error *nrd_head_squares_cpu(nrd_cpu_cmd *c, int n_threads)
{
    const int32_t n = c->u.head_squares.n_tokens;

    if (c->u.head_squares.act_dtype != NRD_DTYPE_F32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cpu: head_squares of %s", nrd_dtype_name(c->u.head_squares.act_dtype));
    }
    c->op = &op_squares;
    c->i[0] = n / n_threads + 1;
    c->n_tasks[0] = (n + c->i[0] - 1) / c->i[0];
    return NULL;
}
