/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/tree.h - several continuations at once: tokens that may follow, as a tree.
 *
 * Purpose   Continuations that begin alike share their first tokens. A step computes all nodes, each of which sees the
 *           known tokens, the nodes above it and itself (nrd_batch_view.tree_mask), and makes a choice behind each. The
 *           path from the root along these choices is what holds. Children of one node have different tokens, so there is
 *           at most one such path.
 * Order     A node's number is above its parent's: the first n nodes are a tree, whatever n is.
 * Owner     A proposer; pure functions.
 * Units     Nodes; node -1 is the root, the last known token. Choices: [1 + n], behind the root and behind each node.
 * Sources   Miao et al., "SpecInfer", ASPLOS 2024; Cai et al., "Medusa", ICML 2024, section 2.1.2.
 */
#ifndef NRD_ENGINE_SPECULATE_TREE_H
#define NRD_ENGINE_SPECULATE_TREE_H

#include <stdbool.h>
#include <stdint.h>

enum { NRD_MAX_TREE = 256 };

typedef struct nrd_token_tree {
    int32_t n;
    int32_t ids[NRD_MAX_TREE];
    int16_t parent[NRD_MAX_TREE];
    int16_t depth[NRD_MAX_TREE]; /* 1: behind the last known token */
} nrd_token_tree;

/* The child of `parent` with this token among the first n nodes; -1: none. */
int32_t nrd_tree_child(const nrd_token_tree *t, int32_t n, int32_t parent, int32_t id);
/* The same, made where there is none and fewer than `max` nodes are. -1: no room. */
int32_t nrd_tree_add(nrd_token_tree *t, int32_t max, int32_t parent, int32_t id);
/* Each of the first n nodes has one child, the next: causal order is all they need. */
bool nrd_tree_is_chain(const nrd_token_tree *t, int32_t n);
/* The tokens down to a node, its own the last: depth[node] of them. */
void nrd_tree_path(const nrd_token_tree *t, int32_t node, int32_t *out_ids);
/* Sets the bits of what a node sees where the tree's node 0 is new token n_before of its sequence. */
void nrd_tree_see(const nrd_token_tree *t, int32_t node, int32_t n_before, uint32_t *row);
/* Whether the choices lead from the root to this node. */
bool nrd_tree_holds(const nrd_token_tree *t, const int32_t *choices, int32_t node);

#endif
