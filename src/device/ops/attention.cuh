/* SPDX-License-Identifier: Apache-2.0
 * attention.cuh - what the attention kernels share: parameters, stores, warp-level mma. */
#ifndef NRD_OPS_ATTENTION_CUH
#define NRD_OPS_ATTENTION_CUH

#include "device/cuda/kv_layout.cuh"
#include "device/ops/common.cuh"

struct attn_params {
    const void *q;
    void *out;
    const void *cache;
    const int32_t *positions, *token_seq, *q_start, *ctx_len, *block_table;
    const uint32_t *tree_mask;
    kv_geom g;
    int64_t q_stride;
    int table_stride, tree_words, n_seqs;
    int n_heads, group, o_dtype, window, n_sink, ahead, chunked;
    const float *alibi, *sink_logits, *rel_bias;
    int rel_back, rel_ahead;
    const float *kv_scales; /* as nrd_kv_layer has them; NULL: 1 */
    float scale, softcap;
};

static inline attn_params attn_params_of(const nrd_attention_args *a, void *out, nrd_dtype o_dtype)
{
    const nrd_batch_view *b = a->batch;
    attn_params p = {};

    p.q = a->q;
    p.out = out;
    p.cache = a->kv.base;
    p.positions = b->positions;
    p.token_seq = b->token_seq;
    p.q_start = b->q_start;
    p.ctx_len = b->ctx_len;
    p.block_table = b->block_table;
    p.tree_mask = b->tree_mask;
    p.g = kv_geom_of(&a->kv);
    p.q_stride = a->q_stride ? a->q_stride : (int64_t)a->n_heads * a->kv.head_dim;
    p.table_stride = b->block_table_stride;
    p.tree_words = b->tree_mask_words;
    p.n_seqs = b->n_seqs;
    p.n_heads = a->n_heads;
    p.group = a->n_heads / a->kv.n_kv_heads;
    p.o_dtype = o_dtype;
    p.window = a->window;
    p.n_sink = a->n_sink;
    p.ahead = a->ahead;
    p.chunked = a->chunked;
    p.alibi = a->alibi;
    p.sink_logits = a->sink_logits;
    p.rel_bias = a->rel_bias;
    p.rel_back = a->rel_back;
    p.rel_ahead = a->rel_ahead;
    p.scale = a->scale;
    p.softcap = a->softcap;
    p.kv_scales = kv_scales_of(&a->kv);
    return p;
}

/* What the cached numbers of a head's keys, or values, are times. They lie there since the weights were loaded, so that nothing is
 * waited for. */
static __device__ __forceinline__ float k_scale_of(const attn_params &a, int kvh) { return kv_scale_at(a.kv_scales, kvh); }
static __device__ __forceinline__ float v_scale_of(const attn_params &a, int kvh)
{
    return kv_scale_at(a.kv_scales, a.g.n_kv + kvh);
}

/* The last position that is too far behind `pos`; below 0: none is. */
static __device__ __forceinline__ int last_unseen(const attn_params &a, int pos)
{
    return a.window <= 0 ? -1 : a.chunked ? pos - pos % a.window - 1 : pos - a.window;
}

/* The softmax's denominator: sum, which is relative to e^top or, LOG2, to 2^top, with the head's sink. One far above
 * all scores makes it infinite, so that nothing is left of the values. */
template <bool LOG2>
static __device__ __forceinline__ float with_sink(const attn_params &a, int head, float top, float sum)
{
    if (a.sink_logits) {
        const float x = a.sink_logits[head];
        sum += LOG2 ? exp2f(x * 1.4426950408889634f - top) : __expf(x - top);
    }
    return sum;
}

/* Where a head's biases of distances are, its own position's; NULL: there are none. */
static __device__ __forceinline__ const float *rel_bias_of(const attn_params &a, int head)
{
    return a.rel_bias ? a.rel_bias + (int64_t)head * (a.rel_back + a.rel_ahead + 1) + a.rel_back : NULL;
}

static __device__ __forceinline__ float rel_bias_at(const attn_params &a, const float *of, int distance)
{
    return of[max(-a.rel_back, min(a.rel_ahead, distance))];
}

static __device__ __forceinline__ void attn_store(const attn_params &a, int64_t at, float v)
{
    if (a.o_dtype == NRD_DTYPE_BF16) {
        ((bf16 *)a.out)[at] = from_f<bf16>(v);
    } else if (a.o_dtype == NRD_DTYPE_F16) {
        ((f16 *)a.out)[at] = from_f<f16>(v);
    } else {
        ((float *)a.out)[at] = v;
    }
}

static __device__ __forceinline__ void attn_store2(const attn_params &a, int64_t at, float v0, float v1)
{
    if (a.o_dtype == NRD_DTYPE_BF16) {
        *(__nv_bfloat162 *)((bf16 *)a.out + at) = __floats2bfloat162_rn(v0, v1);
    } else if (a.o_dtype == NRD_DTYPE_F16) {
        *(__half2 *)((f16 *)a.out + at) = __floats2half2_rn(v0, v1);
    } else {
        *(float2 *)((float *)a.out + at) = make_float2(v0, v1);
    }
}

/* D (16 x 8, f32) += A (16 x 16) B (16 x 8). */
template <bool BF>
static __device__ __forceinline__ void mma16(float *d, uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1)
{
    if constexpr (BF) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                     "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
}

/* An 8 x 8 matrix of 16-bit elements, lane 4 r + c holding columns 2c and 2c + 1 of row r, transposed. */
static __device__ __forceinline__ uint32_t transpose8(uint32_t v)
{
    uint32_t r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}

/* Four numbers as e4m3, the first in the lowest byte. */
static __device__ __forceinline__ uint32_t pack4_f8(float a, float b, float c, float d)
{
    const uint32_t lo = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
    const uint32_t hi = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, __NV_E4M3);
    return lo | hi << 16;
}

template <bool BF> static __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    uint32_t r;
    if constexpr (BF) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    }
    return r;
}

/* Four e4m3 in a word -> two registers of f16 pairs. */
static __device__ __forceinline__ void f8_to_f16(uint32_t w, uint32_t *lo, uint32_t *hi)
{
#if __CUDA_ARCH__ >= 890
    asm("{\n.reg .b16 a, b;\nmov.b32 {a, b}, %2;\ncvt.rn.f16x2.e4m3x2 %0, a;\n"
        "cvt.rn.f16x2.e4m3x2 %1, b;\n}"
        : "=r"(*lo), "=r"(*hi)
        : "r"(w));
#else
    /* e4m3 and f16 differ by exponent bias 8: shift into place and multiply by 2^8 (exact). */
    const uint32_t a = (w & 0xff) | (w & 0xff00) << 8, b = (w >> 16 & 0xff) | (w >> 24) << 16;
    const uint32_t fa = (a & 0x00800080) << 8 | (a & 0x007f007f) << 7;
    const uint32_t fb = (b & 0x00800080) << 8 | (b & 0x007f007f) << 7;
    const __half2 k = __floats2half2_rn(256.0f, 256.0f);
    __half2 ha, hb;
    memcpy(&ha, &fa, 4);
    memcpy(&hb, &fb, 4);
    ha = __hmul2(ha, k);
    hb = __hmul2(hb, k);
    memcpy(lo, &ha, 4);
    memcpy(hi, &hb, 4);
#endif
}

/* Four numbers of 8 bits of a cache in a word -> two registers of f16 pairs, exact. */
template <typename C> static __device__ __forceinline__ void to_f16(uint32_t w, uint32_t *lo, uint32_t *hi)
{
    if constexpr (std::is_same<C, int8_t>::value) { /* 1024 + (x + 128) has the bits 0x64 and x + 128 */
        const __half2 less = __floats2half2_rn(1152.0f, 1152.0f);
        const uint32_t u = w ^ 0x80808080u;
        __half2 a, b;
        *lo = __byte_perm(u, 0x64646464u, 0x4140);
        *hi = __byte_perm(u, 0x64646464u, 0x4342);
        memcpy(&a, lo, 4);
        memcpy(&b, hi, 4);
        a = __hsub2(a, less);
        b = __hsub2(b, less);
        memcpy(lo, &a, 4);
        memcpy(hi, &b, 4);
    } else {
        f8_to_f16(w, lo, hi);
    }
}

#endif
