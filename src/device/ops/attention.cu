/* SPDX-License-Identifier: Apache-2.0
 * attention: which kernel takes which sequence, and the plain one for everything unusual.
 *
 *   attention_one.cu       one sequence's one new token, over up to 512 of 16 bits
 *   attention_decode.cu    few new tokens: 16 rows (token x head of the group) at the most
 *   attention_prefill.cu   more of them
 *   attention_decode_ring.cu  single tokens of many sequences, of long contexts, or on few multiprocessors beside prompts
 *   attention_any (here)   f32 and int8 caches, token trees, odd head sizes, `deterministic`, and few new tokens
 *                          with biases of positions or distances, or tokens ahead: one block
 *                          a (token, head), warps take every fourth position. Right, not fast.
 * A row of F8 needs all its heads for its scale: those go to scratch and row_quant follows, which starts early: 4 to 5 us for 1,024
 * rows. Tried: who stores a token's last heads (a counter a token) quantizes its row: 1,024 x 64..128 74 us in place of 66 in
 * attention_decode_ring.cu, 128 x 128..256 28 and 25; in attention_prefill_hopper.cu the row's registers spill.
 */
#include <limits.h>

#include "device/cuda/kv_layout.cuh"
#include "device/ops/attention.cuh"
#include "device/ops/attention_decode.cuh"

template <typename T, typename C>
static __global__ void __launch_bounds__(128) attention_any_kernel(attn_params a, int min_rows, int max_rows)
{
    constexpr int MAX_D = 16; /* head_dim <= 512 */
    extern __shared__ float smem[];
    const int t = blockIdx.x, head = blockIdx.y, hd = a.g.hd;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float *q = smem, *o_s = smem + hd; /* [hd], [4][hd] */
    __shared__ float m_s[4], l_s[4];

    pdl_wait();
    pdl_go();
    const int seq = a.token_seq[t], q0 = a.q_start[seq], q_len = a.q_start[seq + 1] - q0;
    if (q_len * a.group < min_rows || q_len * a.group > max_rows) {
        return; /* another kernel's */
    }
    const int ctx = a.ctx_len[seq], pos = a.positions[t], kvh = head / a.group;
    const int32_t *table = a.block_table + (int64_t)seq * a.table_stride;
    for (int i = threadIdx.x; i < hd; i += blockDim.x) {
        q[i] = to_f(((const T *)a.q)[t * a.q_stride + (int64_t)head * hd + i]);
    }
    __syncthreads();
    float m = -INFINITY, l = 0.0f, o[MAX_D];
#pragma unroll
    for (int i = 0; i < MAX_D; i++) {
        o[i] = 0.0f;
    }
    const int fresh = ctx - q_len, unseen = last_unseen(a, pos);
    const int end = a.tree_mask ? ctx : min(pos + a.ahead + 1, ctx);
    const float slope = a.alibi ? a.alibi[head] : 0.0f;
    const float *rel = rel_bias_of(a, head);
    const float s_mul = a.scale * k_scale_of(a, kvh);
    for (int p = warp; p < end; p += 4) {
        int at = p; /* new tokens of a tree lie by index, their positions are their own */
        bool seen = true;
        if (a.tree_mask && p >= fresh) {
            const int j = p - fresh;
            seen = a.tree_mask[(int64_t)t * a.tree_words + j / 32] >> (j % 32) & 1;
            at = a.positions[q0 + j];
        }
        seen = seen && (at > unseen || at < a.n_sink);
        const int block = seen ? table[p / a.g.bt] : -1;
        if (block < 0) {
            continue;
        }
        const C *kv = (const C *)a.cache + (int64_t)block * a.g.block_elems;
        float s = 0.0f;
        for (int d = lane; d < hd; d += 32) {
            s += q[d] * to_f(kv[kv_k_at(a.g, kvh, p % a.g.bt, d)]);
        }
        s = warp_reduce<op_sum>(s) * s_mul;
        if (a.softcap > 0.0f) {
            s = a.softcap * tanhf(s / a.softcap);
        }
        s -= slope * (float)abs(at - pos);
        if (rel) {
            s += rel_bias_at(a, rel, at - pos);
        }
        const float m_new = fmaxf(m, s), fix = __expf(m - m_new), w = __expf(s - m_new);
        l = l * fix + w;
        m = m_new;
#pragma unroll
        for (int i = 0; i < MAX_D; i++) {
            const int d = lane + 32 * i;
            if (d < hd) {
                o[i] = o[i] * fix + w * to_f(kv[kv_v_at(a.g, kvh, p % a.g.bt, d)]);
            }
        }
    }
    if (lane == 0) {
        m_s[warp] = m;
        l_s[warp] = l;
    }
#pragma unroll
    for (int i = 0; i < MAX_D; i++) {
        const int d = lane + 32 * i;
        if (d < hd) {
            o_s[warp * hd + d] = o[i];
        }
    }
    __syncthreads();
    const float top = fmaxf(fmaxf(m_s[0], m_s[1]), fmaxf(m_s[2], m_s[3]));
    float sum = 0.0f, w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = m_s[i] == -INFINITY ? 0.0f : __expf(m_s[i] - top);
        sum += w[i] * l_s[i];
    }
    const float inv = sum > 0.0f ? v_scale_of(a, kvh) / with_sink<false>(a, head, top, sum) : 0.0f;
    for (int d = threadIdx.x; d < hd; d += blockDim.x) {
        float v = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v += w[i] * o_s[i * hd + d];
        }
        attn_store(a, ((int64_t)t * a.n_heads + head) * hd + d, v * inv);
    }
}

template <typename T, typename C>
static nrd_error *any_launch(nrd_stream *s, const attn_params &p, int n_tokens, int min_rows, int max_rows)
{
    return launch(s, attention_any_kernel<T, C>, dim3((unsigned)n_tokens, (unsigned)p.n_heads),
                  dim3(128), (size_t)p.g.hd * 5 * sizeof(float), p, min_rows, max_rows);
}

static nrd_error *attention_any(nrd_stream *s, const nrd_attention_args *a, void *out,
                                nrd_dtype o_dtype, int min_rows, int max_rows)
{
    const attn_params p = attn_params_of(a, out, o_dtype);
    const int n = a->batch->n_tokens;

    switch (a->kv.dtype) {
    case NRD_DTYPE_F32:
        ACT_TYPE(a->act_dtype, return (any_launch<T, float>(s, p, n, min_rows, max_rows)));
    case NRD_DTYPE_F16:
        ACT_TYPE(a->act_dtype, return (any_launch<T, f16>(s, p, n, min_rows, max_rows)));
    case NRD_DTYPE_BF16:
        ACT_TYPE(a->act_dtype, return (any_launch<T, bf16>(s, p, n, min_rows, max_rows)));
    case NRD_DTYPE_F8_E4M3:
        ACT_TYPE(a->act_dtype, return (any_launch<T, f8>(s, p, n, min_rows, max_rows)));
    default:
        ACT_TYPE(a->act_dtype, return (any_launch<T, int8_t>(s, p, n, min_rows, max_rows)));
    }
}

/* Single tokens wait for memory, prompts for the tensor cores: side by side on multiprocessors of their own they take hardly longer
 * than the longer of the two. What this costs was measured on an H200 (2026-11-30, test_ops --speed): what one multiprocessor reads
 * and multiplies in attention_decode_ring.cu, what fork and join and a later start cost, and: */
#define RING_SM_RATE 89e9
#define FORK_SECONDS 6e-6
#define WORTH_SECONDS 5e-6
enum { SHARE_STEP = 4, SHARE_LEAST = 8, LONG_CONTEXT = 4096, SHORT_CONTEXT = 512 };

static const struct share_costs {
    double flops;   /* of one multiprocessor in attention_prefill_hopper.cu */
    double piece;   /* seconds of start and end of 128 rows there */
    double pair;    /* seconds of start and end of a sequence's KV head in the ring */
    double beside;  /* how much longer the ring takes beside prompts */
    double in_turn; /* how much longer both take one after the other than memory and multiprocessors do */
    int spare;      /* multiprocessors more than memory can feed that still pay */
} of_short = {4.3e12, 3.3e-6, 0.26e-6, 1.15, 1.25, 6}, of_long = {3.8e12, 0, 0, 1, 1, SHARE_STEP};

static double single_bytes(const nrd_attention_args *a)
{
    return (double)a->batch->single_ctx * 2.0 * a->kv.n_kv_heads * a->kv.head_dim;
}

/* Seconds that the prompts take on one multiprocessor. */
static double prompt_work(const nrd_attention_args *a, const share_costs *c)
{
    const nrd_batch_view *b = a->batch;
    const double rows = (double)(b->n_tokens - b->n_single) * a->n_heads;
    const double pieces = rows / 128 + (double)(b->n_seqs - b->n_single) * a->kv.n_kv_heads / 2; /* the last of a prompt is not full */

    return 4.0 * (double)b->prompt_pairs * a->n_heads * a->kv.head_dim / c->flops + pieces * c->piece;
}

/* How many multiprocessors the single tokens of a mixed step get beside its prompts; 0: one after
 * the other. */
static int ring_share(const nrd_stream *s, const nrd_attention_args *a)
{
    const nrd_batch_view *b = a->batch;
    const share_costs *c = b->single_ctx <= (int64_t)SHORT_CONTEXT * b->n_single ? &of_short : &of_long;
    const int n_sm = s->dev->n_sm;
    const double memory = single_bytes(a) / s->dev->mem_rate, prompts = prompt_work(a, c);
    const double ring = single_bytes(a) / RING_SM_RATE + (double)b->n_single * a->kv.n_kv_heads * c->pair;
    double best = c->in_turn * (memory + prompts / n_sm) - WORTH_SECONDS - FORK_SECONDS;
    int share = 0;

    /* an int8 cache loses by it: 512 x 1,500 beside 4 x 1,000 take 425 us, in turn 401 */
    if (b->single_ctx <= 0 || b->prompt_pairs <= 0 || b->n_single >= b->n_seqs || a->kv.dtype == NRD_DTYPE_I8) {
        return 0;
    }
    /* many more than memory can feed would only take from the prompts */
    for (int n = SHARE_LEAST; n <= n_sm / 2 && ring / (n - c->spare) > memory; n += SHARE_STEP) {
        const double t = fmax(fmax(memory, c->beside * ring / n), prompts / (n_sm - n));
        if (t < best) {
            best = t;
            share = n;
        }
    }
    return share;
}

/* Rows [from, to) of `rows`, of the activations' type, to a->out in F8. */
static nrd_error *quant_rows(nrd_stream *s, const nrd_attention_args *a, const void *rows, int from, int to)
{
    const int64_t cols = (int64_t)a->n_heads * a->kv.head_dim, first = from * cols;
    return nrd_cuda_row_quant(s, (const char *)rows + first * (a->act_dtype == NRD_DTYPE_F32 ? 4 : 2), a->act_dtype, to - from,
                              (int)cols, (char *)a->out + first, a->out_row_scale + from);
}

/* Single tokens beside prompts, as ring_share says; F8 rows, too. */
static nrd_error *attention_both(nrd_stream *s, const nrd_attention_args *a, void *out,
                                 nrd_dtype o_dtype, int share, bool *done)
{
    const int n_single = a->batch->n_single;
    const bool quant = a->out_dtype == NRD_DTYPE_F8_E4M3;
    nrd_stream *side = NULL;

    NRD_TRY(nrd_cuda_stream_fork(s, &side));
    nrd_error *err = nrd_cuda_attention_ring(side, a, out, o_dtype, n_single, share);
    if (!err) {
        err = nrd_cuda_attention_prefill_hopper(s, a, out, o_dtype, n_single, s->dev->n_sm - share, done);
    }
    if (!err && *done && quant) {
        err = quant_rows(side, a, out, 0, n_single);
    }
    if (!err && *done && quant) {
        err = quant_rows(s, a, out, n_single, a->batch->n_tokens);
    }
    nrd_error *joined = nrd_cuda_stream_join(s); /* also after an error */
    if (err) {
        nrd_error_free(joined);
        return err;
    }
    return joined;
}

/* Where the ring's kernel reads faster: half as many pairs of a sequence and a KV head as it has warps, whatever the contexts (1,024
 * sequences of 64 to 128 tokens: 60 us in place of 87, of 256 to 512 207, 212), since a recorded step goes on with longer contexts than
 * it was recorded with; or contexts so long that its start does not count. */
static bool ring_alone(const nrd_stream *s, const nrd_attention_args *a, nrd_dtype o_dtype, int n)
{
    const nrd_batch_view *b = a->batch;
    const bool many = (int64_t)n * a->kv.n_kv_heads * 2 >= (int64_t)s->dev->n_sm * RING_WARPS;
    const bool is_long = b->single_ctx >= (int64_t)LONG_CONTEXT * n && single_bytes(a) > 100e-6 * s->dev->mem_rate;
    return (many || is_long) && nrd_cuda_attention_ring_fits(s, a, o_dtype, n);
}

nrd_error *nrd_cuda_attention(nrd_stream *s, const nrd_attention_args *a)
{
    const nrd_batch_view *b = a->batch;
    const bool quant = a->out_dtype == NRD_DTYPE_F8_E4M3;
    const int cols = a->n_heads * a->kv.head_dim;
    const nrd_dtype o_dtype = quant ? a->act_dtype : a->out_dtype;
    void *out = a->out;

    if (!is_act_dtype(a->act_dtype) || kv_elem_bytes(a->kv.dtype) == 0 || a->kv.head_dim > 512 ||
        (quant ? a->out_row_scale == NULL : !is_act_dtype(a->out_dtype))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "cuda: attention of dtype %d over a cache of dtype %d, head_dim %d, to %d",
                          (int)a->act_dtype, (int)a->kv.dtype, a->kv.head_dim, (int)a->out_dtype);
    }
    if (a->kv.n_kv_heads <= 0 || a->n_heads % a->kv.n_kv_heads != 0 || a->kv.block_tokens <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: attention: %d heads over %d KV heads",
                          a->n_heads, a->kv.n_kv_heads);
    }
    if (b->n_tokens <= 0 || b->n_seqs <= 0) {
        return NULL;
    }
    if (quant) {
        NRD_TRY(nrd_cuda_stream_tmp(s, (size_t)b->n_tokens * (size_t)cols *
                                  (a->act_dtype == NRD_DTYPE_F32 ? 4 : 2), &out));
    }
    bool decoded = false, prefilled = false, quantized = false;
    const bool plain = !a->deterministic && !b->tree_mask;
    const int group = a->n_heads / a->kv.n_kv_heads, rows = b->max_q_len * group, few = nrd_cuda_attention_decode_rows(a);
    /* what the kernels for few tokens know */
    const bool causal = !a->deterministic && a->ahead == 0 && !a->alibi && !a->rel_bias && (!b->tree_mask || rows <= few);
    if (causal && group <= DECODE_ROWS && rows > few && b->n_single > 0 && b->n_single <= b->n_seqs) {
        /* Both kinds, and the caller says which is which: neither looks at the other's. */
        const int share = nrd_cuda_attention_ring_fits(s, a, o_dtype, b->n_single) ? ring_share(s, a) : 0;
        if (share > 0) {
            NRD_TRY(attention_both(s, a, out, o_dtype, share, &prefilled));
            quantized = prefilled;
        }
        if (!prefilled && ring_alone(s, a, o_dtype, b->n_single)) {
            decoded = true;
            NRD_TRY(nrd_cuda_attention_ring(s, a, out, o_dtype, b->n_single, s->dev->n_sm));
        } else if (!prefilled) {
            NRD_TRY(nrd_cuda_attention_decode(s, a, out, o_dtype, b->n_single, &decoded, NULL));
        }
        if (prefilled) {
            decoded = true;
        } else if (decoded && b->n_single == b->n_seqs) {
            prefilled = true;
        } else if (decoded) {
            NRD_TRY(nrd_cuda_attention_prefill(s, a, out, o_dtype, b->n_single, &prefilled));
            if (!prefilled) {
                decoded = false; /* the plain kernel takes all of them */
            }
        }
    } else if (causal) {
        if (!quant) {
            NRD_TRY(nrd_cuda_attention_one(s, a, &decoded));
            if (decoded) {
                return NULL;
            }
        }
        if (b->max_q_len == 1 && b->n_single == b->n_seqs && ring_alone(s, a, o_dtype, b->n_seqs)) {
            decoded = true;
            NRD_TRY(nrd_cuda_attention_ring(s, a, out, o_dtype, b->n_seqs, s->dev->n_sm));
        } else if (group <= DECODE_ROWS) {
            NRD_TRY(nrd_cuda_attention_decode(s, a, out, o_dtype, 0, &decoded, &quantized));
        }
        if (decoded && rows <= few) {
            prefilled = true; /* none of the other kind */
        } else if (decoded) {
            NRD_TRY(nrd_cuda_attention_prefill(s, a, out, o_dtype, 0, &prefilled));
        }
    }
    bool prompts = false; /* of a shape that decode does not know: single tokens are the plain kernel's */
    if (plain && !decoded && rows > DECODE_ROWS) {
        NRD_TRY(nrd_cuda_attention_prefill(s, a, out, o_dtype, 0, &prompts));
    }
    if (!prefilled) {
        NRD_TRY(attention_any(s, a, out, o_dtype, decoded ? DECODE_ROWS + 1 : 0,
                              prompts ? (int)DECODE_ROWS : INT_MAX));
    }
    if (quant && !(decoded && quantized)) {
        return quant_rows(s, a, out, 0, b->n_tokens);
    }
    return NULL;
}
