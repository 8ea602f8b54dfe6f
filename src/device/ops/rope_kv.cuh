/* SPDX-License-Identifier: Apache-2.0
 * rope_kv.cuh - what rope_kv's kernels share: parameters, scales of the cache, norms of heads in registers. */
#ifndef NRD_OPS_ROPE_KV_CUH
#define NRD_OPS_ROPE_KV_CUH

#include "device/cuda/kv_layout.cuh"
#include "device/ops/cluster.cuh"

struct rope_params {
    void *qkv;
    const int32_t *positions, *token_seq, *q_start, *ctx_len, *block_table;
    const int32_t *axes;      /* [tokens, NRD_ROPE_AXES], with pair_axis */
    const uint8_t *pair_axis; /* or NULL */
    const float *q_norm, *k_norm, *q_bias, *k_bias, *inv_freq;
    const float *kv_scales; /* as nrd_kv_layer has them; NULL: 1 */
    void *cache;
    kv_geom g;
    int table_stride, tree;
    int n_heads, rope, rot, n_blocks;
    float eps, rope_scale;
    /* only the plain kernel's: */
    int apart, center, late, q_length, q_offset, v_norm, q_only;
    float clip, q_beta;
};

/* What a head's keys, or values, are times before they become numbers of the cache. */
template <typename C> static __device__ __forceinline__ float kv_inverse(const rope_params &a, int i)
{
    return sizeof(C) > 1 ? 1.0f : fast_div(1.0f, kv_scale_at(a.kv_scales, i));
}
template <typename C> static __device__ __forceinline__ float k_inverse(const rope_params &a, int head)
{
    return kv_inverse<C>(a, head);
}
template <typename C> static __device__ __forceinline__ float v_inverse(const rope_params &a, int head)
{
    return kv_inverse<C>(a, a.g.n_kv + head);
}

/* Where pair i of token t is, which stands at pos. */
static __device__ __forceinline__ float place_of(const rope_params &a, int64_t t, int pos, int i)
{
    return (float)(a.pair_axis ? a.axes[t * NRD_ROPE_AXES + a.pair_axis[i]] : pos);
}

/* The bits of a number of the cache. */
template <typename C> static __device__ __forceinline__ uint32_t bits_of(C v)
{
    std::conditional_t<sizeof(C) == 1, uint8_t, uint16_t> u;
    memcpy(&u, &v, sizeof u);
    return u;
}

/* RMS norm of the heads that a warp's lanes hold, LANES a head: eight elements of each half. w_lo, w_hi: this
 * lane's weights; has_w: its head has any. All lanes take part. */
template <int HD>
static __device__ __forceinline__ void norm_heads(float *lo, float *hi, const float *w_lo, const float *w_hi,
                                                  bool has_w, float eps)
{
    constexpr int LANES = HD / 16;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        sum += lo[k] * lo[k] + hi[k] * hi[k];
    }
#pragma unroll
    for (int o = LANES / 2; o > 0; o >>= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, o);
    }
    const float inv = rsqrtf(sum / (float)HD + eps);
    if (has_w) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            lo[k] *= inv * w_lo[k];
            hi[k] *= inv * w_hi[k];
        }
    }
}

/* rope_kv.cu: what kernels take. */
nrd_error *nrd_cuda_rope_params(const nrd_rope_kv_args *a, rope_params *out);

/* rope_kv_single.cu: the first n tokens, each of a sequence of its own. Whole heads of 64 or 128 are turned in pairs
 * (i, i + head_dim / 2). */
template <typename T, typename C> nrd_error *nrd_cuda_rope_single(nrd_stream *s, const rope_params &p, int n);

#endif
