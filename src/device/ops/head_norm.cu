/* SPDX-License-Identifier: Apache-2.0
 * head_norm: RMS norm over all heads of q, and of k, of a token together (OLMo 2, MiniMax), in place before rope_kv.
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
};

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
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        sum += to_f(x[i]) * to_f(x[i]);
    }
    const float inv = rsqrtf(block_reduce<op_sum>(sum, red) / (float)n + a.eps);
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
        a->norm_eps};
    const dim3 grid((unsigned)a->batch->n_tokens, 2);

    ACT_TYPE(a->act_dtype, return launch(s, head_norm_kernel<T>, grid, dim3(256), 0, p));
}
