/* SPDX-License-Identifier: Apache-2.0
 * copy_blocks: whole KV blocks of each layer, pair after pair. */
#include "device/ops/ops.h"

#include <string.h>

nrd_error *nrd_copy_blocks_check(const nrd_copy_blocks_args *a)
{
    if (a->n_layers < 0 || a->n_pairs < 0 || (a->n_layers > 0 && (!a->src || !a->dst)) ||
        (a->n_pairs > 0 && !a->pairs)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "copy_blocks: %d layers, %d pairs", a->n_layers, a->n_pairs);
    }
    for (int32_t l = 0; l < a->n_layers; l++) {
        const nrd_kv_layer *s = &a->src[l], *d = &a->dst[l];
        if (s->dtype != d->dtype || s->block_tokens != d->block_tokens ||
            s->n_kv_heads != d->n_kv_heads || s->head_dim != d->head_dim || !s->base || !d->base) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "copy_blocks: pools of layer %d differ in shape", l);
        }
        for (int32_t p = 0; p < a->n_pairs; p++) {
            if (a->pairs[2 * p] < 0 || a->pairs[2 * p] >= s->n_blocks || a->pairs[2 * p + 1] < 0 ||
                a->pairs[2 * p + 1] >= d->n_blocks) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "copy_blocks: pair (%d, %d) outside the pool",
                                  a->pairs[2 * p], a->pairs[2 * p + 1]);
            }
        }
    }
    return NULL;
}

void nrd_copy_blocks_ref(const nrd_copy_blocks_args *a)
{
    for (int32_t l = 0; l < a->n_layers; l++) {
        const nrd_kv_layer *s = &a->src[l], *d = &a->dst[l];
        size_t n = nrd_kv_block_bytes(s->dtype, s->block_tokens, s->n_kv_heads, s->head_dim);
        for (int32_t p = 0; p < a->n_pairs; p++) {
            memmove((char *)d->base + (size_t)a->pairs[2 * p + 1] * n,
                    (const char *)s->base + (size_t)a->pairs[2 * p] * n, n);
        }
    }
}
