/* SPDX-License-Identifier: Apache-2.0
 * short_conv, ssm, delta_rule, rg_lru, gated_norm: layers that remember a sequence in a float32 state.
 * Shapes    as in nereid/device.h; sequences of any length side by side, tokens of each one after the other.
 * Work      short_conv: a thread a channel of 32 tokens. ssm: a warp a row of a head's state, up to eight numbers a lane
 *           in registers. delta_rule: a block a head of a sequence, its state in shared memory, a thread a column.
 *           gated_norm: a block a group of a token. rg_lru: a block a head of a sequence, a thread a channel; matrices are
 *           read once for eight tokens. Prompts of ssm and delta_rule: recurrent_chunk.cu.
 * Bound     decode: the state, read and written once; rg_lru's prompts: the chain of tokens (no chunked form).
 */
#include "device/ops/recurrent.cuh"

#include <limits.h>

extern "C" {
#include "base/dtype.h"
}

static nrd_error *check(const char *op, const nrd_batch_view *b, nrd_dtype act, bool fits)
{
    if (!is_act_dtype(act) || !fits || (b && b->tree_mask)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: %s: activations of %s%s%s", op, nrd_dtype_name(act),
                          fits ? "" : ", sizes beyond the limits", b && b->tree_mask ? ", token trees" : "");
    }
    return b && b->n_tokens > 0 && !b->state_slot ? nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: %s: no state_slot", op) : NULL;
}

/* ---- short_conv ---- */

enum { CONV_PIECE = 32 }; /* tokens; more than a kernel looks back */

struct conv_params {
    seq_view v;
    const void *x, *in_gate, *out_gate;
    int64_t x_stride;
    int channels, kernel, silu, n_seqs;
    int pieces; /* a block is a piece of a sequence; 0: a whole one, of at most CONV_PIECE tokens */
    const float *weight, *bias;
    float *state;
    void *out;
};

template <typename T> static __device__ __forceinline__ float conv_input(const conv_params &a, int64_t t, int c)
{
    const int64_t at = t * a.x_stride + c;
    const float u = to_f(((const T *)a.x)[at]);
    return a.in_gate ? u * to_f(((const T *)a.in_gate)[at]) : u;
}

/* The sequence and the piece of it that a block has. Pieces of sequence s begin at s + q_start[s] / CONV_PIECE: there is
 * room for all of them, and nothing in some places. */
static __device__ __forceinline__ int piece_of(const conv_params &a, int block, int *out_piece)
{
    int low = 0, high = a.n_seqs - 1;
    if (!a.pieces) {
        *out_piece = 0;
        return block;
    }
    while (low < high) {
        const int mid = (low + high + 1) / 2;
        if (mid + a.v.q_start[mid] / CONV_PIECE <= block) {
            low = mid;
        } else {
            high = mid - 1;
        }
    }
    *out_piece = block - low - a.v.q_start[low] / CONV_PIECE;
    return low;
}

/* The thread of a sequence's first piece also leaves the state behind its last token: no other one may touch the slot. */
template <typename T> static __global__ void __launch_bounds__(128) short_conv_kernel(conv_params a)
{
    const int c = blockIdx.x * blockDim.x + threadIdx.x, back = a.kernel - 1;
    float w[NRD_SHORT_CONV_MAX], h[NRD_SHORT_CONV_MAX];
    int piece;

    pdl_wait();
    pdl_go();
    const seq_range r = range_of(a.v, piece_of(a, blockIdx.y, &piece));
    const int from = r.first + piece * CONV_PIECE, end = min(r.end, from + CONV_PIECE);
    if (c >= a.channels || from >= end) {
        return;
    }
    float *state = a.state + ((int64_t)(r.slot < 0 ? 0 : r.slot) * back) * a.channels + c;
#pragma unroll
    for (int k = 0; k < NRD_SHORT_CONV_MAX; k++) {
        w[k] = k < a.kernel ? a.weight[(int64_t)c * a.kernel + k] : 0.0f;
        h[k] = 0.0f;
        if (k < back && piece > 0) {
            h[k] = conv_input<T>(a, from - back + k, c);
        } else if (k < back && !r.begins) {
            h[k] = state[(int64_t)k * a.channels];
        }
    }
    const float bias = a.bias ? a.bias[c] : 0.0f;
    for (int64_t t = from; t < end; t++) {
        const float u = conv_input<T>(a, t, c);
        float y = bias;
#pragma unroll
        for (int k = 0; k < NRD_SHORT_CONV_MAX; k++) {
            if (k < back) {
                y += w[k] * h[k];
                h[k] = k + 1 < back ? h[k + 1 < NRD_SHORT_CONV_MAX ? k + 1 : k] : u;
            } else if (k == back) {
                y += w[k] * u;
            }
        }
        y = a.silu ? silu(y) : y;
        if (a.out_gate) {
            y *= to_f(((const T *)a.out_gate)[t * a.x_stride + c]);
        }
        ((T *)a.out)[t * a.channels + c] = from_f<T>(y);
    }
#pragma unroll
    for (int k = 0; k < NRD_SHORT_CONV_MAX; k++) {
        if (r.slot >= 0 && k < back && piece == 0) {
            state[(int64_t)k * a.channels] = end < r.end ? conv_input<T>(a, r.end - back + k, c) : h[k];
        }
    }
}

nrd_error *nrd_cuda_short_conv(nrd_stream *s, const nrd_short_conv_args *a)
{
    NRD_TRY(check("short_conv", a->batch, a->act_dtype, a->kernel >= 2 && a->kernel <= NRD_SHORT_CONV_MAX));
    const nrd_batch_view *b = a->batch;
    const bool pieces = b->max_q_len > CONV_PIECE;
    const conv_params p = {view_of(b), a->x, a->in_gate, a->out_gate, a->x_stride, a->channels, a->kernel,
                           a->act == NRD_ACT_SILU, b->n_seqs, pieces, a->weight, a->bias, a->state, a->out};
    const dim3 grid((unsigned)((a->channels + 127) / 128), (unsigned)(b->n_seqs + (pieces ? b->n_tokens / CONV_PIECE : 0)));
    if (a->batch->n_tokens == 0) {
        return NULL;
    }
    ACT_TYPE(a->act_dtype, return launch(s, short_conv_kernel<T>, grid, dim3(128), 0, p));
}

/* Are there prompts that take less time in chunks? Their bits depend on where a step cuts them. */
static bool in_chunks(const nrd_batch_view *b, bool deterministic)
{
    return b->max_q_len >= RECURRENT_CHUNK_MIN && !deterministic;
}

/* ---- ssm ---- */

enum { SSM_WARPS = 4, SSM_LANES = NRD_SSM_MAX_STATE / 32 };

struct ssm_params {
    seq_view v;
    const void *x, *b, *c, *dt;
    int64_t x_stride, bc_stride, dt_stride;
    int n_heads, head_dim, heads_a_group, n_state;
    int most; /* sequences of more new tokens are another kernel's */
    const float *a, *d, *dt_bias;
    int a_of_states;
    float dt_min, dt_max;
    float *state;
    void *out;
};

template <typename T> static __global__ void __launch_bounds__(32 * SSM_WARPS) ssm_kernel(ssm_params a)
{
    const int lane = threadIdx.x & 31, n = a.n_state;
    const int64_t rows = (int64_t)a.n_heads * a.head_dim;
    const int64_t row = (int64_t)blockIdx.x * SSM_WARPS + (threadIdx.x >> 5); /* of all heads' */

    pdl_wait();
    pdl_go();
    const seq_range r = range_of(a.v, blockIdx.y);
    if (row >= rows || r.first >= r.end || r.end - r.first > a.most) {
        return;
    }
    const int head = (int)(row / a.head_dim);
    const int64_t group = (int64_t)(head / a.heads_a_group) * n;
    float *state = a.state + ((int64_t)(r.slot < 0 ? 0 : r.slot) * rows + row) * n;
    float h[SSM_LANES], rate[SSM_LANES];
#pragma unroll
    for (int k = 0; k < SSM_LANES; k++) {
        const int i = lane + 32 * k;
        h[k] = i < n && !r.begins ? state[i] : 0.0f;
        rate[k] = i < n ? a.a_of_states ? a.a[(int64_t)head * n + i] : a.a[head] : 0.0f;
    }
    const float d = a.d[head], dt_bias = a.dt_bias[head];
    for (int64_t t = r.first; t < r.end; t++) {
        const float x = to_f(((const T *)a.x)[t * a.x_stride + row]);
        const float dt = softplus(to_f(((const T *)a.dt)[t * a.dt_stride + head]) + dt_bias);
        const float step = fminf(fmaxf(dt, a.dt_min), a.dt_max), in = step * x;
        const T *b = (const T *)a.b + t * a.bc_stride + group, *c = (const T *)a.c + t * a.bc_stride + group;
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < SSM_LANES; k++) {
            const int i = lane + 32 * k;
            if (i < n) {
                h[k] = __expf(step * rate[k]) * h[k] + in * to_f(b[i]);
                sum += h[k] * to_f(c[i]);
            }
        }
        sum = warp_reduce<op_sum>(sum);
        if (lane == 0) {
            ((T *)a.out)[t * rows + row] = from_f<T>(sum + d * x);
        }
    }
#pragma unroll
    for (int k = 0; k < SSM_LANES; k++) {
        if (r.slot >= 0 && lane + 32 * k < n) {
            state[lane + 32 * k] = h[k];
        }
    }
}

nrd_error *nrd_cuda_ssm(nrd_stream *s, const nrd_ssm_args *a)
{
    NRD_TRY(check("ssm", a->batch, a->act_dtype, a->n_state >= 1 && a->n_state <= NRD_SSM_MAX_STATE));
    bool chunks = false;
    if (a->batch->n_tokens == 0) {
        return NULL;
    }
    if (in_chunks(a->batch, a->deterministic) && !a->a_of_states) {
        NRD_TRY(nrd_cuda_ssm_chunks(s, a, &chunks));
    }
    const ssm_params p = {view_of(a->batch), a->x, a->b, a->c, a->dt, a->x_stride, a->bc_stride, a->dt_stride, a->n_heads,
                          a->head_dim, a->n_heads / a->n_groups, a->n_state, chunks ? RECURRENT_CHUNK_MIN - 1 : INT_MAX, a->a,
                          a->d, a->dt_bias, a->a_of_states, a->dt_min, a->dt_max, a->state, a->out};
    const int64_t rows = (int64_t)a->n_heads * a->head_dim;
    const dim3 grid((unsigned)((rows + SSM_WARPS - 1) / SSM_WARPS), (unsigned)a->batch->n_seqs);
    ACT_TYPE(a->act_dtype, return launch(s, ssm_kernel<T>, grid, dim3(32 * SSM_WARPS), 0, p));
}

/* ---- delta_rule ---- */

struct delta_params {
    seq_view v;
    const void *q, *k, *val, *alpha, *beta;
    int64_t qkv_stride, gate_stride;
    int n_heads, n_k_heads, heads_a_key, k_dim, v_dim; /* heads_a_key: 0: key heads take turns */
    int most;       /* sequences of more new tokens are another kernel's */
    float beta_top; /* 1, or 2 */
    const float *a, *dt_bias;
    float *state;
    void *out;
};

/* out = x / |x| * scale, by the whole block; the barrier behind it is the caller's. */
template <typename T>
static __device__ __forceinline__ void unit_row(const T *x, int n, float scale, float *out, float *red)
{
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        const float v = to_f(x[i]);
        sum += v * v;
    }
    const float f = scale * rsqrtf(block_reduce<op_sum>(sum, red) + 1e-6f);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        out[i] = to_f(x[i]) * f;
    }
}

template <typename T> static __global__ void __launch_bounds__(NRD_DELTA_MAX_DIM) delta_kernel(delta_params a)
{
    extern __shared__ float room[];
    __shared__ float red[32];
    const int head = blockIdx.x, nk = a.k_dim, nv = a.v_dim, j = threadIdx.x;
    float *q = room, *k = q + nk, *h = k + nk; /* h: [k_dim][v_dim] */

    pdl_wait();
    pdl_go();
    const seq_range r = range_of(a.v, blockIdx.y);
    if (r.first >= r.end || r.end - r.first > a.most) {
        return;
    }
    float *state = a.state + ((int64_t)(r.slot < 0 ? 0 : r.slot) * a.n_heads + head) * nk * nv;
    const float rate = a.a[head], dt_bias = a.dt_bias[head], q_scale = rsqrtf((float)nk);
    for (int i = 0; i < nk && j < nv; i++) { /* a column is its thread's own */
        h[i * nv + j] = r.begins ? 0.0f : state[(int64_t)i * nv + j];
    }
    const int64_t key_head = a.heads_a_key > 0 ? head / a.heads_a_key : head % a.n_k_heads;
    for (int64_t t = r.first; t < r.end; t++) {
        const int64_t key = t * a.qkv_stride + key_head * nk, gate = t * a.gate_stride + head;
        __syncthreads(); /* q and k are still read */
        unit_row((const T *)a.q + key, nk, q_scale, q, red);
        unit_row((const T *)a.k + key, nk, 1.0f, k, red);
        __syncthreads();
        if (j < nv) {
            const float decay = __expf(rate * softplus(to_f(((const T *)a.alpha)[gate]) + dt_bias));
            const float beta = a.beta_top / (1.0f + __expf(-to_f(((const T *)a.beta)[gate])));
            float known = 0.0f, sum = 0.0f;
            for (int i = 0; i < nk; i++) {
                known += h[i * nv + j] * k[i];
            }
            const float v = to_f(((const T *)a.val)[t * a.qkv_stride + (int64_t)head * nv + j]);
            const float change = (v - known * decay) * beta;
            for (int i = 0; i < nk; i++) {
                const float x = decay * h[i * nv + j] + k[i] * change;
                h[i * nv + j] = x;
                sum += x * q[i];
            }
            ((T *)a.out)[(t * a.n_heads + head) * nv + j] = from_f<T>(sum);
        }
    }
    for (int i = 0; i < nk && j < nv && r.slot >= 0; i++) {
        state[(int64_t)i * nv + j] = h[i * nv + j];
    }
}

nrd_error *nrd_cuda_delta_rule(nrd_stream *s, const nrd_delta_rule_args *a)
{
    NRD_TRY(check("delta_rule", a->batch, a->act_dtype, a->v_dim >= 1 && a->v_dim <= NRD_DELTA_MAX_DIM));
    const dim3 grid((unsigned)a->n_heads, (unsigned)a->batch->n_seqs), block((unsigned)((a->v_dim + 31) / 32 * 32));
    const size_t bytes = (size_t)(2 + a->v_dim) * (size_t)a->k_dim * sizeof(float);
    if (bytes + 256 > s->dev->smem_max) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: delta_rule: a state of %d x %d is larger than shared memory", a->k_dim,
                          a->v_dim);
    }
    bool chunks = false;
    if (a->batch->n_tokens == 0) {
        return NULL;
    }
    if (in_chunks(a->batch, a->deterministic)) {
        NRD_TRY(nrd_cuda_delta_chunks(s, a, &chunks));
    }
    const delta_params p = {view_of(a->batch), a->q, a->k, a->v, a->alpha, a->beta, a->qkv_stride, a->gate_stride,
                            a->n_heads, a->n_k_heads, a->keys_by_turns ? 0 : a->n_heads / a->n_k_heads, a->k_dim, a->v_dim,
                            chunks ? RECURRENT_CHUNK_MIN - 1 : INT_MAX, a->twice ? 2.0f : 1.0f, a->a, a->dt_bias, a->state,
                            a->out};
    ACT_TYPE(a->act_dtype, return launch(s, delta_kernel<T>, grid, block, bytes, p));
}

/* ---- rg_lru ---- */

enum { LRU_TOKENS = 8 };

struct lru_params {
    seq_view v;
    const void *x, *gate;
    int64_t gate_stride;
    int n_heads, dim;
    const float *in_weight, *in_bias, *decay_weight, *decay_bias, *decay;
    float *state;
    void *out;
};

static __device__ __forceinline__ float sigmoid(float x)
{
    return 1.0f / (1.0f + __expf(-x));
}

static __device__ __forceinline__ float gelu_tanh(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

template <typename T> static __global__ void __launch_bounds__(NRD_RG_LRU_MAX_DIM) rg_lru_kernel(lru_params a)
{
    extern __shared__ float room[]; /* x: [dim][LRU_TOKENS] */
    const int head = blockIdx.x, dim = a.dim, j = threadIdx.x;
    const int64_t first = (int64_t)head * dim, width = (int64_t)a.n_heads * dim;

    pdl_wait();
    pdl_go();
    const seq_range r = range_of(a.v, blockIdx.y);
    if (r.first >= r.end) {
        return;
    }
    const bool has = j < dim;
    const int64_t c = first + (has ? j : 0);
    float *state = a.state + (int64_t)(r.slot < 0 ? 0 : r.slot) * width + c;
    const float *w_in = a.in_weight + first * dim + (has ? j : 0), *w_decay = a.decay_weight + first * dim + (has ? j : 0);
    const float rate = -8.0f * softplus(a.decay[c]), b_in = a.in_bias[c], b_decay = a.decay_bias[c];
    float h = has && !r.begins ? *state : 0.0f;
    for (int t0 = r.first; t0 < r.end; t0 += LRU_TOKENS) {
        const int n = min(LRU_TOKENS, r.end - t0);
        float in[LRU_TOKENS], decay[LRU_TOKENS];
        __syncthreads(); /* x of the tokens before is still read */
#pragma unroll
        for (int k = 0; k < LRU_TOKENS; k++) {
            if (has) {
                room[j * LRU_TOKENS + k] = k < n ? to_f(((const T *)a.x)[(t0 + k) * width + c]) : 0.0f;
            }
            in[k] = b_in;
            decay[k] = b_decay;
        }
        __syncthreads();
        for (int i = 0; has && i < dim; i++) {
            const float u = w_in[(int64_t)i * dim], v = w_decay[(int64_t)i * dim];
#pragma unroll
            for (int k = 0; k < LRU_TOKENS; k++) {
                in[k] += room[i * LRU_TOKENS + k] * u;
                decay[k] += room[i * LRU_TOKENS + k] * v;
            }
        }
#pragma unroll
        for (int k = 0; k < LRU_TOKENS; k++) {
            if (has && k < n) {
                const float x = sigmoid(in[k]) * room[j * LRU_TOKENS + k], log_a = rate * sigmoid(decay[k]);
                h = a.v.positions[t0 + k] == 0 ? x : __expf(log_a) * h + sqrtf(-expm1f(2.0f * log_a)) * x;
                const float g = to_f(((const T *)a.gate)[(t0 + k) * a.gate_stride + c]);
                ((T *)a.out)[(t0 + k) * width + c] = from_f<T>(h * gelu_tanh(g));
            }
        }
    }
    if (has && r.slot >= 0) {
        *state = h;
    }
}

nrd_error *nrd_cuda_rg_lru(nrd_stream *s, const nrd_rg_lru_args *a)
{
    NRD_TRY(check("rg_lru", a->batch, a->act_dtype, a->head_dim >= 1 && a->head_dim <= NRD_RG_LRU_MAX_DIM));
    const lru_params p = {view_of(a->batch), a->x, a->gate, a->gate_stride, a->n_heads, a->head_dim, a->in_weight, a->in_bias,
                          a->decay_weight, a->decay_bias, a->decay, a->state, a->out};
    const dim3 grid((unsigned)a->n_heads, (unsigned)a->batch->n_seqs), block((unsigned)((a->head_dim + 31) / 32 * 32));
    const size_t bytes = (size_t)LRU_TOKENS * (size_t)a->head_dim * sizeof(float); /* at most 32 KiB */
    if (a->batch->n_tokens == 0) {
        return NULL;
    }
    ACT_TYPE(a->act_dtype, return launch(s, rg_lru_kernel<T>, grid, block, bytes, p));
}

/* ---- gated_norm ---- */

struct gated_norm_params {
    const void *x, *gate;
    int64_t gate_stride;
    int width, group;
    const float *weight;
    int shared_weight, gate_first, gate_silu;
    float eps;
    void *out;
};

template <typename T> static __global__ void __launch_bounds__(256) gated_norm_kernel(gated_norm_params a)
{
    __shared__ float red[32];
    const int64_t t = blockIdx.x, from = (int64_t)blockIdx.y * a.group;

    pdl_wait();
    pdl_go();
    const T *x = (const T *)a.x + t * a.width + from, *gate = (const T *)a.gate + t * a.gate_stride + from;
    T *out = (T *)a.out + t * a.width + from;
    if (!a.weight) {
        for (int i = threadIdx.x; i < a.group; i += blockDim.x) {
            const float g = to_f(gate[i]);
            out[i] = from_f<T>(to_f(x[i]) * (a.gate_silu ? g : 1.0f) / (1.0f + __expf(-g)));
        }
        return;
    }
    const float *w = a.weight + (a.shared_weight ? 0 : from);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < a.group; i += blockDim.x) {
        const float u = a.gate_first ? to_f(x[i]) * silu(to_f(gate[i])) : to_f(x[i]);
        sum += u * u;
    }
    const float scale = rsqrtf(block_reduce<op_sum>(sum, red) / (float)a.group + a.eps);
    for (int i = threadIdx.x; i < a.group; i += blockDim.x) {
        out[i] = from_f<T>(to_f(x[i]) * silu(to_f(gate[i])) * scale * w[i]);
    }
}

nrd_error *nrd_cuda_gated_norm(nrd_stream *s, const nrd_gated_norm_args *a)
{
    NRD_TRY(check("gated_norm", NULL, a->act_dtype, a->width % a->n_groups == 0));
    const int group = a->width / a->n_groups;
    const gated_norm_params p = {a->x, a->gate, a->gate_stride, a->width, group, a->weight, a->shared_weight, a->gate_first,
                                 a->gate_silu, a->eps, a->out};
    const dim3 grid((unsigned)a->n_tokens, (unsigned)a->n_groups), block(group >= 256 ? 256 : (group + 31) / 32 * 32);
    if (a->n_tokens == 0) {
        return NULL;
    }
    ACT_TYPE(a->act_dtype, return launch(s, gated_norm_kernel<T>, grid, block, 0, p));
}
