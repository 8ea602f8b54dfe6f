/* SPDX-License-Identifier: Apache-2.0
 * latent.cuh - elements of any float type, for the kernels of latent attention: what their types are is known at run
 * time and the same for all threads, and they read memory through shared memory once. */
#ifndef NRD_OPS_LATENT_CUH
#define NRD_OPS_LATENT_CUH

#include "device/cuda/kv_layout.cuh"
#include "device/ops/common.cuh"

static __device__ __forceinline__ float load_any(nrd_dtype t, const void *p, int64_t i)
{
    return t == NRD_DTYPE_BF16  ? to_f(((const bf16 *)p)[i])
           : t == NRD_DTYPE_F16 ? to_f(((const f16 *)p)[i])
                                : ((const float *)p)[i];
}

static __device__ __forceinline__ void store_any(nrd_dtype t, void *p, int64_t i, float v)
{
    if (t == NRD_DTYPE_BF16) {
        ((bf16 *)p)[i] = from_f<bf16>(v);
    } else if (t == NRD_DTYPE_F16) {
        ((f16 *)p)[i] = from_f<f16>(v);
    } else {
        ((float *)p)[i] = v;
    }
}

/* Eight neighbours; their place is a multiple of 16 bytes. */
static __device__ __forceinline__ void load8_any(nrd_dtype t, const void *p, int64_t i, float *v)
{
    if (t == NRD_DTYPE_BF16) {
        load8((const bf16 *)p + i, v);
    } else if (t == NRD_DTYPE_F16) {
        load8((const f16 *)p + i, v);
    } else {
        load8((const float *)p + i, v);
    }
}

static inline nrd_error *latent_sizes_check(const char *what, const nrd_kv_layer *kv, int n_heads, int nope, int rope, int v)
{
    const int rank = kv->head_dim - rope;

    if (kv->n_kv_heads != 0 || kv->block_tokens <= 0 || n_heads <= 0 || n_heads > 4096 || nope <= 0 ||
        nope > NRD_LATENT_MAX_HEAD_DIM || v <= 0 || v > NRD_LATENT_MAX_HEAD_DIM || rope <= 0 || rope % 2 ||
        rope > NRD_LATENT_MAX_ROPE_DIM || rank <= 0 || rank > NRD_LATENT_MAX_RANK || !is_act_dtype(kv->dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: %s: %d heads of %d, %d and %d over rows of %d of dtype %d", what, n_heads,
                          nope, rope, v, kv->head_dim, (int)kv->dtype);
    }
    return NULL;
}

#endif
