/* SPDX-License-Identifier: Apache-2.0
 * engine/run/parcel.h - the KV cache of a prompt on its way from one engine to another.
 *
 * Purpose   Disaggregated serving: the blocks that one runner filled, in host memory, which another runner puts into
 *           blocks of its own. What lies inside a block is the device's affair, so both must be of one shape.
 *           Of several ranks each has a share: rank 0's lies in the parcel, the others' in memory that all of them reach
 *           (parcel_place.h). The share of rank r goes to rank r, so both engines must be divided alike.
 * Owner     give: the loop thread of the engine that computed. A parcel is constant afterwards, and belongs to one
 *           thread at a time. The taking runner reads it from submit until the step is over.
 * Units     Blocks of nrd_runner_config.block_tokens tokens, all layers.
 * Errors    NO_MEMORY; an error of the device means that it is lost.
 */
#ifndef NRD_ENGINE_RUN_PARCEL_H
#define NRD_ENGINE_RUN_PARCEL_H

#include "engine/kv_cache.h"
#include "engine/run/parcel_place.h"
#include "engine/run/runner.h"

typedef struct nrd_kv_parcel {
    int32_t n_blocks;
    uint8_t *data; /* owns; layer after layer, [n_blocks] blocks each; zeros where the table had none (window) */
    nrd_parcel_place
        place; /* owns; the other ranks' shares, each in the same order; none: there is one rank */
} nrd_kv_parcel;

/* What rank 0 tells the others to put there: blocks of their caches. */
typedef struct nrd_give_order {
    nrd_parcel_place place;
    int32_t n_blocks, blocks[]; /* as in the table */
} nrd_give_order;

/* What two caches must have in common. */
typedef struct nrd_kv_shape {
    bool host_is_device;
    nrd_dtype dtype;
    int32_t block_tokens, n_layers;
    int32_t window, n_sink; /* which blocks of a long prompt are there */
    int32_t tp_size, pp_size; /* what else is here is rank 0's */
    uint64_t layers;        /* a digest of heads, sizes and scales of every layer */
} nrd_kv_shape;

void nrd_runner_kv_shape(const nrd_runner *r, nrd_kv_shape *out);
/* Copies this rank's share of the first n_blocks of a table whose steps are over, and waits for the copy. */
nrd_error *nrd_runner_give_blocks(nrd_runner *r, const nrd_kv_table *t, int32_t n_blocks, nrd_kv_parcel *out) NRD_MUST_USE;
/* A rank above 0: the same for an nrd_give_order of so many bytes, behind the steps that it followed. What does not work is told
 * in the place, an error means that the device is lost. */
nrd_error *nrd_runner_give_share(nrd_runner *r, const void *order, size_t bytes) NRD_MUST_USE;
void nrd_kv_parcel_fini(nrd_kv_parcel *p); /* an empty one is fine */

#endif
