/* SPDX-License-Identifier: Apache-2.0
 * Elements of the KV cache of the CPU device. */
#include "device/ops/ops.h"

#include <math.h>

size_t nrd_kv_block_bytes(nrd_dtype t, int32_t block_tokens, int32_t n_kv_heads, int32_t head_dim)
{
    size_t elems = (size_t)n_kv_heads * 2 * (size_t)nrd_kv_head_elems(block_tokens, head_dim);

    if (n_kv_heads == 0) { /* latent rows */
        return nrd_is_float_dtype(t) ? (size_t)block_tokens * (size_t)head_dim * nrd_dtype_block_bytes(t) : 0;
    }
    if (t == NRD_DTYPE_I8) {
        return elems;
    }
    return nrd_is_float_dtype(t) ? elems * nrd_dtype_block_bytes(t) : 0;
}

float nrd_kv_load(nrd_dtype t, const void *block, int64_t i, float scale)
{
    return t == NRD_DTYPE_I8         ? (float)((const int8_t *)block)[i] * scale
           : t == NRD_DTYPE_F8_E4M3 ? nrd_load_f32(t, block, i) * scale
                                    : nrd_load_f32(t, block, i);
}

void nrd_kv_store(nrd_dtype t, void *block, int64_t i, float scale, float v)
{
    if (t == NRD_DTYPE_I8) {
        float q = v / scale;
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        ((int8_t *)block)[i] = (int8_t)(q == q ? lrintf(q) : 0);
    } else {
        nrd_store_f32(t, block, i, t == NRD_DTYPE_F8_E4M3 ? v / scale : v);
    }
}
