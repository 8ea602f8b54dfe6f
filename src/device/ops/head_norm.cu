/* SPDX-License-Identifier: Apache-2.0
 * head_norm: RMS norm over all heads of q, and of k, of a token together (OLMo 2, MiniMax), in place before rope_kv.
 * head_squares: the sums that it needs where ranks share the heads; all_reduce adds them up in between.
 * Shapes    qkv [n_tokens, (n_heads + 2 n_kv_heads) head_dim] act dtype; weights f32 [heads * head_dim].
 * Work      blockIdx.x a token, blockIdx.y q or k; the row is read twice, the second time from the L1.
 * Bound     memory, below 500 tokens the launch.
 */
#include "device/ops/common.cuh"

struct head_norm_params {
    void *qkv;
    const float *weight[2]; /* of q, of k; or NULL */
    int64_t row;            /* of qkv */
    int n[2];               /* numbers of q, of k */
    float eps;
    const float *squares; /* [n_tokens, 2] of all ranks; or NULL */
    float n_ranks;
};

/* The same in all threads. */
template <typename T> static __device__ __forceinline__ float square_sum(const T *x, int n, float *red)
{
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        sum += to_f(x[i]) * to_f(x[i]);
    }
    return block_reduce<op_sum>(sum, red);
}

template <typename T> static __global__ void __launch_bounds__(256) head_norm_kernel(head_norm_params a)
{
    __shared__ float red[32];
    const int part = blockIdx.y, n = a.n[part];
    const float *w = a.weight[part];

    pdl_wait();
    pdl_go();
    if (!w) {
        return;
    }
    T *x = (T *)a.qkv + blockIdx.x * a.row + (part ? a.n[0] : 0);
    const float all = a.squares ? a.squares[2 * blockIdx.x + part] : square_sum(x, n, red);
    const float inv = rsqrtf(all / ((float)n * a.n_ranks) + a.eps);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        x[i] = from_f<T>(to_f(x[i]) * inv * w[i]);
    }
}

nrd_error *nrd_cuda_head_norm(nrd_stream *s, const nrd_rope_kv_args *a)
{
    const int hd = a->kv.head_dim;
    const head_norm_params p = {
        a->qkv,
        {a->q_norm ? (const float *)a->q_norm->data : NULL, a->k_norm ? (const float *)a->k_norm->data : NULL},
        (int64_t)(a->n_heads + 2 * a->kv.n_kv_heads) * hd,
        {a->n_heads * hd, a->kv.n_kv_heads * hd},
        a->norm_eps,
        a->wide_squares,
        a->wide_squares ? (float)a->wide_ranks : 1.0f};
    const dim3 grid((unsigned)a->batch->n_tokens, 2);

    ACT_TYPE(a->act_dtype, return launch(s, head_norm_kernel<T>, grid, dim3(256), 0, p));
}

template <typename T>
static __global__ void __launch_bounds__(256) head_squares_kernel(const T *qkv, int n_q, int n_k, float *out)
{
    __shared__ float red[32];
    const int part = blockIdx.y;

    pdl_wait();
    pdl_go();
    const T *x = qkv + (int64_t)blockIdx.x * (n_q + 2 * n_k) + (part ? n_q : 0);
    const float sum = square_sum(x, part ? n_k : n_q, red);
    if (threadIdx.x == 0) {
        out[2 * blockIdx.x + part] = sum;
    }
}

nrd_error *nrd_cuda_head_squares(nrd_stream *s, const nrd_head_squares_args *a)
{
    const dim3 grid((unsigned)a->n_tokens, 2);

    if (!is_act_dtype(a->act_dtype) || a->n_tokens < 0 || a->n_heads < 1 || a->n_kv_heads < 1 || a->head_dim < 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: head_squares of dtype %d, %d and %d heads of %d", (int)a->act_dtype, a->n_heads,
                          a->n_kv_heads, a->head_dim);
    }
    if (a->n_tokens == 0) {
        return NULL;
    }
    ACT_TYPE(a->act_dtype, return launch(s, head_squares_kernel<T>, grid, dim3(256), 0, (const T *)a->qkv,
                                         a->n_heads * a->head_dim, a->n_kv_heads * a->head_dim, a->out));
}
