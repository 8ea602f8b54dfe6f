/* SPDX-License-Identifier: Apache-2.0
 * engine/run/parcel.h - the KV cache of a prompt on its way from one engine to another.
 *
 * Purpose   Disaggregated serving: the blocks that one runner filled, in host memory, which another runner puts into
 *           blocks of its own. What lies inside a block is the device's affair, so both must be of one shape.
 * Owner     give: the loop thread of the engine that computed. A parcel is constant afterwards, and belongs to one
 *           thread at a time. The taking runner reads it from submit until the step is over.
 * Units     Blocks of nrd_runner_config.block_tokens tokens, all layers.
 * Errors    NO_MEMORY; an error of the device means that it is lost.
 */
#ifndef NRD_ENGINE_RUN_PARCEL_H
#define NRD_ENGINE_RUN_PARCEL_H

#include "engine/kv_cache.h"
#include "engine/run/runner.h"

typedef struct nrd_kv_parcel {
    int32_t n_blocks;
    uint8_t *data; /* owns; layer after layer, [n_blocks] blocks each; zeros where the table had none (window) */
} nrd_kv_parcel;

/* What two caches must have in common. */
typedef struct nrd_kv_shape {
    bool host_is_device;
    nrd_dtype dtype;
    int32_t block_tokens, n_layers;
    int32_t window, n_sink; /* which blocks of a long prompt are there */
    uint64_t layers;        /* a digest of heads, sizes and scales of every layer */
} nrd_kv_shape;

void nrd_runner_kv_shape(const nrd_runner *r, nrd_kv_shape *out);
/* Copies the first n_blocks of a table whose steps are over, and waits for the copy. Not with several ranks. */
nrd_error *nrd_runner_give_blocks(nrd_runner *r, const nrd_kv_table *t, int32_t n_blocks, nrd_kv_parcel *out) NRD_MUST_USE;
void nrd_kv_parcel_fini(nrd_kv_parcel *p); /* an empty one is fine */

#endif
