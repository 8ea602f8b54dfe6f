/* SPDX-License-Identifier: Apache-2.0
 * linear_sample: linear and sample of its results; with a rough weight in two steps.
 * Shapes    x bf16 [n, K]; W bf16 [rows, K], rough the same in 8 bits; logits f32 [n, stride].
 * Work      The rough product writes all logits. bounds_kernel: of each row and each of 256 chunks of the
 *           vocabulary the highest lower bound. The k-th highest of these is at most the row's k-th best logit, since
 *           it is k different tokens'. exact_kernel: a block for each chunk lists the tokens whose upper bound is as high,
 *           gives them the product with W, a warp each, and all others minus infinity. sample then chooses as ever.
 *           No list can be too short and the host is not asked: with bounds that say nothing every token is computed,
 *           which costs W once more for each row.
 * Rows      nrd_rough_is_plain; of others every token is computed exactly.
 * Bound     memory: the rough weight, 8.5 bits a number, and 12 bytes a logit.
 * Measured  NVIDIA H200, 128,256 x 4096, random: greedy 151 us for a row, 157 for 8, 175 for 16 (linear and sample: 254, 251, 269);
 *           top-k 50 225, 285, 342 (309, 312, 345): where more tokens are left each row reads its own of them
 *           (2026-11-28, make gpu-bench OP=head).
 */
#include "device/ops/common.cuh"
#include "device/ops/wq.cuh"

enum { CHUNKS = 256, THREADS = 256, LIST = 1024 };
static_assert((int)CHUNKS == (int)THREADS && (int)NRD_ROUGH_MOST_K <= (int)CHUNKS, "a thread for each chunk, a chunk for each of the best");

struct rough_params {
    const bf16 *x, *w;
    const float *error;
    const nrd_sample_row *rows;
    float *logits, *tops, *lengths; /* tops [n, CHUNKS]: the highest lower bounds; lengths [n]: of x */
    int64_t stride;
    int vocab, cols, chunk;
    float softcap, slack;
};

static __global__ void __launch_bounds__(THREADS) bounds_kernel(rough_params a)
{
    __shared__ float red[32];
    const int row = blockIdx.y, tid = threadIdx.x;
    const int from = (int)blockIdx.x * a.chunk, end = min(from + a.chunk, a.vocab);
    const bf16 *x = a.x + (int64_t)row * a.cols;
    const float *logits = a.logits + row * a.stride;
    float squares = 0.0f, top = -INFINITY;

    pdl_wait();
    pdl_go();
    for (int k = tid * 8; k < a.cols; k += THREADS * 8) {
        float v[8];
        load8(x + k, v);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            squares = fmaf(v[i], v[i], squares);
        }
    }
    /* a sum of so few float32 numbers is off by less than this */
    const float length = sqrtf(block_reduce<op_sum>(squares, red)) * 1.0005f;
    for (int id = from + tid; id < end; id += THREADS) {
        const float v = logits[id], lo = v - fmaf(a.error[id], length, a.slack);
        top = v < 3.4e38f ? fmaxf(top, lo) : top; /* not of what is no number either */
    }
    top = block_reduce<op_max>(top, red);
    if (tid == 0) {
        a.tops[row * CHUNKS + blockIdx.x] = top;
        if (blockIdx.x == 0) {
            a.lengths[row] = length;
        }
    }
}

/* The k-th highest of the row's CHUNKS lower bounds; the block's threads are as many. */
static __device__ __forceinline__ float limit_of(const rough_params &a, int row, int k, float *all, float *red)
{
    const float mine = a.tops[row * CHUNKS + threadIdx.x];
    if (k == 1) {
        return block_reduce<op_max>(mine, red);
    }
    all[threadIdx.x] = mine;
    if (threadIdx.x == 0) {
        red[0] = -INFINITY;
    }
    __syncthreads();
    int before = 0;
    for (int i = 0; i < CHUNKS; i++) {
        before += all[i] > mine || (all[i] == mine && i < (int)threadIdx.x);
    }
    if (before == k - 1) {
        red[0] = mine;
    }
    __syncthreads();
    return red[0];
}

/* A row of W times x, by a warp; all lanes get it. */
static __device__ __forceinline__ float dot(const bf16 *w, const bf16 *x, int cols)
{
    float sum = 0.0f;
#pragma unroll 4
    for (int k = (int)(threadIdx.x & 31) * 8; k < cols; k += 256) {
        float vw[8], vx[8];
        load8(w + k, vw);
        load8(x + k, vx);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum = fmaf(vw[i], vx[i], sum);
        }
    }
    return warp_reduce<op_sum>(sum);
}

static __global__ void __launch_bounds__(THREADS) exact_kernel(rough_params a)
{
    __shared__ float red[32], all[CHUNKS];
    __shared__ int list[LIST], n_list;
    const int row = blockIdx.y, tid = threadIdx.x;
    const int from = (int)blockIdx.x * a.chunk, end = min(from + a.chunk, a.vocab);
    const bf16 *x = a.x + (int64_t)row * a.cols;
    float *logits = a.logits + row * a.stride;

    pdl_wait();
    pdl_go();
    const nrd_sample_row q = a.rows[row];
    const int k = q.temperature <= 0.0f || q.top_k == 1 ? 1 : q.top_k;
    const float limit = nrd_rough_is_plain(&q) ? limit_of(a, row, k, all, red) : -INFINITY, length = a.lengths[row];
    for (int at = from; at < end; at += LIST) {
        __syncthreads();
        if (tid == 0) {
            n_list = 0;
        }
        __syncthreads();
        for (int id = at + tid; id < min(at + (int)LIST, end); id += THREADS) {
            if (!(logits[id] + fmaf(a.error[id], length, a.slack) < limit)) { /* also where it is no number */
                list[atomicAdd(&n_list, 1)] = id;
            } else {
                logits[id] = -INFINITY;
            }
        }
        __syncthreads();
        for (int i = tid / 32; i < n_list; i += THREADS / 32) {
            const float v = dot(a.w + (int64_t)list[i] * a.cols, x, a.cols);
            if (tid % 32 == 0) {
                logits[list[i]] = a.softcap > 0.0f ? a.softcap * tanhf(v / a.softcap) : v;
            }
        }
    }
}

static bool takes_two_steps(const nrd_linear_args *l, const nrd_rough_weight *rough, const nrd_sample_args *a)
{
    return rough && l->n_parts == 1 && !l->bias[0] && l->x_dtype == NRD_DTYPE_BF16 && l->y_dtype == NRD_DTYPE_F32 &&
           l->w[0]->dtype == NRD_DTYPE_BF16 && l->w[0]->layout == NRD_LAYOUT_ROWS && l->w[0]->cols % 8 == 0 && l->x &&
           rough->w->layout == NRD_LAYOUT_WQ && rough->w->rows == l->w[0]->rows && rough->w->cols == l->w[0]->cols && a->n_top == 0 &&
           a->n_rows == l->n_tokens && a->n_rows > 0 && a->vocab <= l->w[0]->rows && a->vocab < 1 << 30 &&
           (size_t)a->n_rows * (CHUNKS + 1) * sizeof(float) <= SPLIT_WS_BYTES;
}

nrd_error *nrd_cuda_linear_sample(nrd_stream *s, const nrd_linear_args *l, const nrd_rough_weight *rough, const nrd_sample_args *a)
{
    nrd_linear_args first = *l;
    rough_params p = {};

    if (a->logits != l->y) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: linear_sample: the logits are not the results of linear");
    }
    if (!takes_two_steps(l, rough, a)) {
        NRD_TRY(nrd_cuda_linear(s, l));
        return nrd_cuda_sample(s, a);
    }
    first.w[0] = rough->w;
    NRD_TRY(nrd_cuda_stream_scratch(s));
    NRD_TRY(nrd_cuda_linear(s, &first));
    p.x = (const bf16 *)l->x;
    p.w = (const bf16 *)l->w[0]->data;
    p.error = rough->error;
    p.rows = a->rows;
    p.logits = (float *)l->y;
    p.tops = (float *)(void *)s->split_ws;
    p.lengths = p.tops + (size_t)a->n_rows * CHUNKS;
    p.stride = a->logits_stride ? a->logits_stride : a->vocab;
    p.vocab = a->vocab;
    p.cols = (int)l->w[0]->cols;
    p.chunk = (a->vocab + CHUNKS - 1) / CHUNKS;
    p.softcap = l->softcap;
    p.slack = l->softcap > 0.0f ? l->softcap * 0x1p-16f : 0.0f; /* what a computed tanh may be off */
    const dim3 grid(CHUNKS, (unsigned)a->n_rows);
    NRD_TRY(launch(s, bounds_kernel, grid, dim3(THREADS), 0, p));
    NRD_TRY(launch(s, exact_kernel, grid, dim3(THREADS), 0, p));
    return nrd_cuda_sample(s, a);
}
