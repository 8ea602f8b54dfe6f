/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/tree_rates.h - how often the likeliest, the second likeliest ... node of a tree of guesses was right.
 *
 * Purpose   Trees whose form a network decides have no ranks that could be compared between steps; their nodes are sorted by how likely the
 *           network finds them, and the place in that order is what is learned about.
 * Owner     The engine loop thread.
 */
#ifndef NRD_ENGINE_SPECULATE_TREE_RATES_H
#define NRD_ENGINE_SPECULATE_TREE_RATES_H

#include "engine/speculate/proposer.h"

typedef struct nrd_tree_rates {
    float right[NRD_MAX_TREE];
    float likely[NRD_MAX_TREE]; /* the same, falling: nrd_proposer.likely */
} nrd_tree_rates;

/* first: of the likeliest node, before anything was seen. */
void nrd_tree_rates_init(nrd_tree_rates *r, float first);
void nrd_tree_rates_hear(nrd_tree_rates *r, const nrd_draft_outcome *o);

#endif
