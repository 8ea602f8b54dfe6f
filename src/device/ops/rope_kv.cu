/* rope_kv: RMS norm of q and k heads (optional), rotary embedding (Su et al. 2021), K and V into the
 * paged cache.
 * Shapes    qkv [n_tokens, (n_heads + 2 n_kv_heads) head_dim] act dtype, q rotated in place; cache
 *           blocks as kv_layout.cuh says, f32, fp16, bf16, F8 or I8.
 * Work      blockIdx.x a token, blockIdx.y a slice of its heads; a warp takes a head at a time; the
 *           token's cosines and sines are computed once a block.
 * Bound     memory, below 500 tokens the launch.
 * A token goes to the cache slot of its position; in a token tree, where siblings share a position,
 * to ctx_len - q_len + its index.
 * Measured  NVIDIA H200, 2048 tokens of 32 + 2 x 8 heads x 128: 1.21 TB/s (27 %); 1..16 tokens 2.1 us
 *           (2026-11-21, make gpu-bench).
 */
#include "device/cuda/kv_layout.cuh"
#include "device/ops/common.cuh"

struct rope_params {
    void *qkv;
    const int32_t *positions, *token_seq, *q_start, *ctx_len, *block_table;
    const float *q_norm, *k_norm, *inv_freq;
    void *cache;
    kv_geom g;
    int table_stride, tree;
    int n_heads, rope, rot, n_blocks;
    float eps, rope_scale, k_inv, v_inv; /* 1 / k_scale, 1 / v_scale */
};

template <typename T, typename C> static __global__ void __launch_bounds__(256) rope_kv_kernel(
    rope_params a)
{
    extern __shared__ float smem[]; /* cos [rot/2], sin [rot/2], a row of head_dim for each warp */
    const int t = blockIdx.x, hd = a.g.hd, half = a.rot / 2;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    float *cs = smem, *sn = smem + half, *row = smem + 2 * half + warp * hd;

    /* The step's arrays were uploaded before any kernel of the step began; only qkv is waited for. */
    const int pos = a.positions[t], seq = a.token_seq[t];
    if (a.rope != NRD_ROPE_NONE) {
        for (int i = threadIdx.x; i < half; i += blockDim.x) {
            float sin_v, cos_v;
            sincosf((float)pos * a.inv_freq[i], &sin_v, &cos_v);
            cs[i] = cos_v * a.rope_scale;
            sn[i] = sin_v * a.rope_scale;
        }
    }
    __syncthreads();

    int slot = pos;
    if (a.tree) {
        const int q0 = a.q_start[seq];
        slot = a.ctx_len[seq] - (a.q_start[seq + 1] - q0) + (t - q0);
    }
    const int64_t block = a.block_table[(int64_t)seq * a.table_stride + slot / a.g.bt];
    const int in_block = slot % a.g.bt, n_kv = a.g.n_kv;
    const bool keep = block >= 0 && block < a.n_blocks;
    C *cache = (C *)a.cache + (keep ? block : 0) * a.g.block_elems;
    pdl_wait();
    pdl_go();
    T *qkv = (T *)a.qkv + (int64_t)t * (a.n_heads + 2 * n_kv) * hd;

    for (int h = blockIdx.y * n_warps + warp; h < a.n_heads + 2 * n_kv; h += gridDim.y * n_warps) {
        T *x = qkv + (int64_t)h * hd;
        const bool is_q = h < a.n_heads, is_v = h >= a.n_heads + n_kv;
        if (is_v) {
            for (int i = lane; i < hd && keep; i += 32) {
                cache[kv_v_at(a.g, h - a.n_heads - n_kv, in_block, i)] =
                    from_f<C>(to_f(x[i]) * a.v_inv);
            }
            continue;
        }
        const float *w = is_q ? a.q_norm : a.k_norm;
        float sum = 0.0f;
        for (int i = lane; i < hd; i += 32) {
            const float v = to_f(x[i]);
            row[i] = v;
            sum += v * v;
        }
        if (w) {
            const float inv = rsqrtf(warp_reduce<op_sum>(sum) / (float)hd + a.eps);
            for (int i = lane; i < hd; i += 32) {
                row[i] *= inv * w[i];
            }
        }
        __syncwarp();
        for (int i = lane; i < hd; i += 32) {
            float v = row[i];
            if (a.rope == NRD_ROPE_NEOX && i < a.rot) {
                const int j = i < half ? i : i - half;
                v = i < half ? v * cs[j] - row[i + half] * sn[j] : v * cs[j] + row[j] * sn[j];
            } else if (a.rope == NRD_ROPE_INTERLEAVED && i < a.rot) {
                const int j = i >> 1;
                v = (i & 1) == 0 ? v * cs[j] - row[i + 1] * sn[j] : v * cs[j] + row[i - 1] * sn[j];
            }
            if (is_q) {
                x[i] = from_f<T>(v);
            } else if (keep) {
                cache[kv_k_at(a.g, h - a.n_heads, in_block, i)] = from_f<C>(v * a.k_inv);
            }
        }
        __syncwarp();
    }
}

template <typename T, typename C>
static nrd_error *rope_launch(nrd_stream *s, const rope_params &p, int n_tokens)
{
    const int heads = p.n_heads + 2 * p.g.n_kv;
    /* Few tokens: spread a token's heads over blocks. 8 warps a block. */
    int slices = (heads + 7) / 8;
    while (slices > 1 && (int64_t)slices * n_tokens > 8 * s->dev->n_sm) {
        slices = (slices + 1) / 2;
    }
    const size_t smem = sizeof(float) * ((size_t)(p.rot / 2) * 2 + (size_t)p.g.hd * 8);
    return launch(s, rope_kv_kernel<T, C>, dim3((unsigned)n_tokens, (unsigned)slices), dim3(256), smem,
                  p);
}

nrd_error *op_rope_kv(nrd_stream *s, const nrd_rope_kv_args *a)
{
    const nrd_batch_view *b = a->batch;
    rope_params p = {};

    p.g = kv_geom_of(&a->kv);
    if (!is_act_dtype(a->act_dtype) || p.g.block_elems == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: rope_kv of dtype %d into a cache of dtype %d",
                          (int)a->act_dtype, (int)a->kv.dtype);
    }
    if ((a->rope != NRD_ROPE_NONE &&
         (!a->inv_freq || a->rotary_dim > a->kv.head_dim || a->rotary_dim % 2 != 0)) ||
        (a->q_norm && a->q_norm->dtype != NRD_DTYPE_F32) ||
        (a->k_norm && a->k_norm->dtype != NRD_DTYPE_F32) || a->kv.block_tokens <= 0 ||
        a->kv.head_dim <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: rope_kv: rotary_dim %d of head_dim %d, norms "
                                               "must come from weight_load",
                          a->rotary_dim, a->kv.head_dim);
    }
    if (b->n_tokens <= 0) {
        return NULL;
    }
    const bool scaled = a->kv.dtype == NRD_DTYPE_F8_E4M3 || a->kv.dtype == NRD_DTYPE_I8;
    p.qkv = a->qkv;
    p.positions = b->positions;
    p.token_seq = b->token_seq;
    p.q_start = b->q_start;
    p.ctx_len = b->ctx_len;
    p.block_table = b->block_table;
    p.table_stride = b->block_table_stride;
    p.tree = b->tree_mask != NULL;
    p.q_norm = a->q_norm ? (const float *)a->q_norm->data : NULL;
    p.k_norm = a->k_norm ? (const float *)a->k_norm->data : NULL;
    p.inv_freq = a->inv_freq;
    p.cache = a->kv.base;
    p.n_heads = a->n_heads;
    p.rope = a->rope;
    p.rot = a->rope == NRD_ROPE_NONE ? 0 : a->rotary_dim;
    p.n_blocks = a->kv.n_blocks;
    p.eps = a->norm_eps;
    p.rope_scale = a->rope_scale;
    p.k_inv = scaled && a->kv.k_scale > 0.0f ? 1.0f / a->kv.k_scale : 1.0f;
    p.v_inv = scaled && a->kv.v_scale > 0.0f ? 1.0f / a->kv.v_scale : 1.0f;
    switch (a->kv.dtype) {
    case NRD_DTYPE_F32:
        ACT_TYPE(a->act_dtype, return (rope_launch<T, float>(s, p, b->n_tokens)));
    case NRD_DTYPE_F16:
        ACT_TYPE(a->act_dtype, return (rope_launch<T, f16>(s, p, b->n_tokens)));
    case NRD_DTYPE_BF16:
        ACT_TYPE(a->act_dtype, return (rope_launch<T, bf16>(s, p, b->n_tokens)));
    case NRD_DTYPE_F8_E4M3:
        ACT_TYPE(a->act_dtype, return (rope_launch<T, f8>(s, p, b->n_tokens)));
    default:
        ACT_TYPE(a->act_dtype, return (rope_launch<T, int8_t>(s, p, b->n_tokens)));
    }
}
