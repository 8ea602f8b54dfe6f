/* SPDX-License-Identifier: Apache-2.0
 * kv_layout.cuh - where an element lies inside a KV block.
 *
 * A block of one layer holds K then V. With e = 16 bytes' worth of elements (8 for 16-bit types):
 *   K [n_kv_heads][head_dim / e][block_tokens][e]      V [n_kv_heads][block_tokens / e][head_dim][e]
 * Eight rows of a 16-byte column are 128 consecutive bytes: one coalesced line for the B operand of
 * mma.sync straight from memory, and a core matrix of wgmma without swizzle (PTX ISA 9.7.15, "Shared
 * Memory Matrix Layout") after a plain bulk copy. V has tokens innermost because they are the
 * reduction dimension of P V. e falls to 1 where a dimension is no multiple of it.
 * A block of latent rows (no heads) is [block_tokens][head_dim].
 */
#ifndef NRD_CUDA_KV_LAYOUT_CUH
#define NRD_CUDA_KV_LAYOUT_CUH

#include "nereid/device.h"

static inline __host__ __device__ int kv_elem_bytes(nrd_dtype t)
{
    return t == NRD_DTYPE_F32 ? 4
           : t == NRD_DTYPE_F16 || t == NRD_DTYPE_BF16 ? 2
           : t == NRD_DTYPE_F8_E4M3 || t == NRD_DTYPE_I8 ? 1
                                                         : 0;
}

struct kv_geom {
    int bt, hd, n_kv; /* tokens in a block, head dimension, heads */
    int ek, ev;       /* elements of a unit in K and in V */
    int64_t block_elems;
};

static inline kv_geom kv_geom_of(const nrd_kv_layer *kv)
{
    const int eb = kv_elem_bytes(kv->dtype), e = eb ? 16 / eb : 1;
    kv_geom g;
    g.bt = kv->block_tokens;
    g.hd = kv->head_dim;
    g.n_kv = kv->n_kv_heads;
    g.ek = g.hd % e == 0 ? e : 1;
    g.ev = g.bt % e == 0 ? e : 1;
    const int64_t bytes = (g.n_kv == 0 ? 1 : 2 * g.n_kv) * (int64_t)g.bt * g.hd * eb;
    g.block_elems = eb ? ((bytes + 255) & ~(int64_t)255) / eb : 0;
    return g;
}

/* Those of a cache whose numbers have any; NULL: 1. */
static inline const float *kv_scales_of(const nrd_kv_layer *kv)
{
    return kv_elem_bytes(kv->dtype) == 1 ? kv->scales : NULL;
}

static __device__ __forceinline__ float kv_scale_at(const float *scales, int i)
{
    return scales ? __ldg(scales + i) : 1.0f;
}

/* Offsets in elements inside a block. */
static inline __host__ __device__ int64_t kv_k_at(const kv_geom &g, int head, int tok, int d)
{
    return ((int64_t)(head * (g.hd / g.ek) + d / g.ek) * g.bt + tok) * g.ek + d % g.ek;
}

static inline __host__ __device__ int64_t kv_v_at(const kv_geom &g, int head, int tok, int d)
{
    return (int64_t)g.n_kv * g.bt * g.hd +
           ((int64_t)(head * (g.bt / g.ev) + tok / g.ev) * g.hd + d) * g.ev + tok % g.ev;
}

#endif
