/* SPDX-License-Identifier: Apache-2.0
 * engine/state_cache.h - which copy of a recurrent state belongs to which block of the prefix tree.
 *
 * Purpose   Layers with a state can go on only from a state that was kept: a snapshot is the state of a sequence behind
 *           the last token of a block. Bookkeeping only; the runner owns the memory that the numbers name.
 * Owner     The engine loop thread, through kv_cache. Not thread-safe.
 * Lifetime  A snapshot is free, taken (a step is to fill it), or kept: a block has it. A kept one is taken when free
 *           ones run out, the longest unused first, and is free again when its block leaves the tree. Steps that still
 *           read or write it come earlier on the same stream than those of who takes it, so order protects both.
 * Errors    Only creation can fail. Nothing allocates afterwards.
 */
#ifndef NRD_ENGINE_STATE_CACHE_H
#define NRD_ENGINE_STATE_CACHE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_states nrd_states;

nrd_error *nrd_states_new(nrd_states **out, int32_t n_states, int32_t n_blocks) NRD_MUST_USE;
void nrd_states_free(nrd_states *s);

int32_t nrd_states_take(nrd_states *s); /* -1: all are taken */
/* A taken one becomes the block's. False: the block has one already, and the snapshot is free again. */
bool nrd_states_keep(nrd_states *s, int32_t state, int32_t block);
void nrd_states_give_back(nrd_states *s, int32_t state); /* a taken one */

int32_t nrd_states_of(const nrd_states *s, int32_t block); /* -1: none */
void nrd_states_use(nrd_states *s, int32_t state);         /* a sequence goes on from it */
void nrd_states_drop(nrd_states *s, int32_t block);        /* the block has none any more */
void nrd_states_drop_unused(nrd_states *s, int32_t block); /* … unless a sequence went on from it */
void nrd_states_move(nrd_states *s, int32_t from, int32_t to); /* the block `to` stands for `from` */

int32_t nrd_states_n_kept(const nrd_states *s);
void nrd_states_check(const nrd_states *s, int32_t n_taken); /* asserts the invariants; slow */

#endif
