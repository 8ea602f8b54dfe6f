/* SPDX-License-Identifier: Apache-2.0
 * engine/run/kv_pools.h - the memory of the KV cache.
 *
 * Purpose   One array of blocks for each layer with attention on the device, and one in host memory where the cache has
 *           host blocks; and the copies of blocks that a plan asks for.
 * Owner     The runner; the engine loop thread.
 * Lifetime  Allocated once the runner is made and what is left of the memory is known; freed with the runner.
 */
#ifndef NRD_ENGINE_RUN_KV_POOLS_H
#define NRD_ENGINE_RUN_KV_POOLS_H

#include "base/error.h"
#include "nereid/device.h"

struct nrd_runner;
struct nrd_plan;

/* All zero: there is none yet. */
typedef struct nrd_kv_pools {
    nrd_kv_layer *layers, *host_layers; /* [n_layers]; host_layers NULL: there are no host blocks */
    int32_t n_layers;                   /* with attention */
    int32_t n_own;                      /* of them, the first, have memory of their own; the others use the first one's */
    int32_t n_blocks;                   /* on the device: numbers of blocks from here on are host ones */
} nrd_kv_pools;

/* Instead of nrd_runner_alloc_kv: one memory for all layers, whose keys are of no use behind their layer. */
nrd_error *nrd_run_alloc_shared_kv(struct nrd_runner *r, int32_t n_blocks) NRD_MUST_USE;
void nrd_run_free_kv(struct nrd_runner *r);
/* The plan's moves of tokens, then its copies in their order. */
nrd_error *nrd_run_copy_blocks(struct nrd_runner *r, const struct nrd_plan *p) NRD_MUST_USE;

#endif
