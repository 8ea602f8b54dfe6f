/* SPDX-License-Identifier: Apache-2.0
 * engine/prefix_tree.h - which full KV blocks hold which token prefixes.
 *
 * Purpose   A tree of blocks: a node is one block of exactly block_tokens tokens, its path from the
 *           root spells a prefix. Structure only: reference counts, eviction order and the blocks
 *           themselves belong to kv_cache.
 * Owner     The engine loop thread, through kv_cache. Not thread-safe.
 * Units     A node's number is the number of its block. `extra` are per-token 64-bit ids that must
 *           also match (prompt tables), NULL = all zero. Root keys tell worlds apart that must not
 *           share (adapter, cache salt).
 * Errors    Only creation can fail. Nothing allocates afterwards.
 * Sources   Radix-tree reuse of KV: RadixAttention (Zheng et al., 2024, section 3); one node a
 *           block as in paged caches.
 */
#ifndef NRD_ENGINE_PREFIX_TREE_H
#define NRD_ENGINE_PREFIX_TREE_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct nrd_prefix nrd_prefix;

typedef struct nrd_prefix_key {
    uint64_t a, b;
} nrd_prefix_key;

nrd_error *nrd_prefix_new(nrd_prefix **out, int32_t n_blocks, int32_t block_tokens) NRD_MUST_USE;
void nrd_prefix_free(nrd_prefix *t);

/* The child of `parent` (-1: a first block of the world `key`) that holds exactly these
 * block_tokens tokens; -1: none. */
int32_t nrd_prefix_find(const nrd_prefix *t, int32_t parent, const nrd_prefix_key *key,
                        const int32_t *tokens, const uint64_t *extra);
/* The child that shares the longest beginning with tokens[0..n), n < block_tokens allowed; -1: no
 * child shares any. Looks at a bounded number of children. */
int32_t nrd_prefix_find_partial(const nrd_prefix *t, int32_t parent, const nrd_prefix_key *key,
                                const int32_t *tokens, const uint64_t *extra, int32_t n,
                                int32_t *out_common);
/* Adds `block` under `parent`; the pair (parent, tokens) must not be there yet. */
void nrd_prefix_insert(nrd_prefix *t, int32_t block, int32_t parent, const nrd_prefix_key *key,
                       const int32_t *tokens, const uint64_t *extra);
/* Removes a node without children. */
void nrd_prefix_remove(nrd_prefix *t, int32_t block);
/* The node `from`, with its place and children, is `to` from now on; `to` must not be a node. */
void nrd_prefix_move(nrd_prefix *t, int32_t from, int32_t to);

bool nrd_prefix_has(const nrd_prefix *t, int32_t block);
int32_t nrd_prefix_parent(const nrd_prefix *t, int32_t block);      /* -1: a first block */
int32_t nrd_prefix_first_child(const nrd_prefix *t, int32_t block); /* -1: none */
void nrd_prefix_check(const nrd_prefix *t); /* asserts the invariants; slow */

#endif
