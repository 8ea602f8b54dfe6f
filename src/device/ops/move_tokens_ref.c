/* SPDX-License-Identifier: Apache-2.0
 * move_tokens: single tokens within the cache of each layer, pair after pair. */
#include "device/ops/ops.h"

#include "base/dtype.h"

#include <string.h>

nrd_error *nrd_move_tokens_check(const nrd_move_tokens_args *a)
{
    if (a->n_layers < 0 || a->n_pairs < 0 || (a->n_layers > 0 && !a->kv) || (a->n_pairs > 0 && !a->pairs)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "move_tokens: %d layers, %d pairs", a->n_layers, a->n_pairs);
    }
    for (int32_t l = 0; l < a->n_layers; l++) {
        const nrd_kv_layer *kv = &a->kv[l];
        const int64_t places = (int64_t)kv->n_blocks * kv->block_tokens;
        if (!kv->base || kv->block_tokens <= 0 || nrd_kv_block_bytes(kv->dtype, 1, 1, 1) == 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "move_tokens: the cache of layer %d has no memory or type", l);
        }
        for (int32_t p = 0; p < 2 * a->n_pairs; p++) {
            if (a->pairs[p] < 0 || a->pairs[p] >= places) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "move_tokens: place %d of a cache of %lld tokens", a->pairs[p],
                                  (long long)places);
            }
        }
    }
    return NULL;
}

static char *element(const nrd_kv_layer *kv, size_t block_bytes, size_t bytes, int32_t place, bool is_v, int32_t head,
                     int32_t d)
{
    const int32_t in = place % kv->block_tokens;
    const int64_t i = is_v ? nrd_kv_v_index(kv, head, in, d) : nrd_kv_k_index(kv, head, in, d);
    return (char *)kv->base + (size_t)(place / kv->block_tokens) * block_bytes + (size_t)i * bytes;
}

static void move_one(const nrd_kv_layer *kv, int32_t from, int32_t to)
{
    const size_t block_bytes = nrd_kv_block_bytes(kv->dtype, kv->block_tokens, kv->n_kv_heads, kv->head_dim);
    const size_t bytes = kv->dtype == NRD_DTYPE_I8 ? 1 : nrd_dtype_block_bytes(kv->dtype);

    if (kv->n_kv_heads == 0) {
        const size_t row = (size_t)kv->head_dim * bytes; /* blocks have nothing but rows */
        memmove((char *)kv->base + (size_t)to * row, (char *)kv->base + (size_t)from * row, row);
        return;
    }
    for (int32_t h = 0; h < kv->n_kv_heads; h++) {
        for (int32_t d = 0; d < kv->head_dim; d++) {
            for (int v = 0; v < 2; v++) {
                memmove(element(kv, block_bytes, bytes, to, v, h, d), element(kv, block_bytes, bytes, from, v, h, d), bytes);
            }
        }
    }
}

void nrd_move_tokens_ref(const nrd_move_tokens_args *a)
{
    for (int32_t l = 0; l < a->n_layers; l++) {
        for (int32_t p = 0; p < a->n_pairs; p++) {
            move_one(&a->kv[l], a->pairs[2 * p], a->pairs[2 * p + 1]);
        }
    }
}
