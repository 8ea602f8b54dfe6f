/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/eagle_tree.h - a tree of guesses that grows level by level, each guess with its probability.
 *
 * Purpose   Behind each token that was given to the heads they name some candidates. Of a level's candidates the likeliest are given to
 *           the heads in turn, or those that choices name; of all candidates the likeliest, or the choices, make the draft.
 *           How likely: the product of the probabilities down the path.
 * Owner     A proposer; pure functions.
 * Sources   Li et al., "EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees", EMNLP 2024.
 */
#ifndef NRD_ENGINE_SPECULATE_EAGLE_TREE_H
#define NRD_ENGINE_SPECULATE_EAGLE_TREE_H

#include "engine/speculate/medusa.h"
#include "engine/speculate/tree.h"

enum { NRD_EAGLE_MAX_TOP_K = 20, NRD_EAGLE_MAX_DEPTH = 10 };
enum { NRD_EAGLE_MAX_CANDIDATES = (NRD_MAX_TREE + 1) * NRD_EAGLE_MAX_TOP_K };

typedef struct nrd_eagle_tree {
    int32_t n; /* candidates */
    int32_t ids[NRD_EAGLE_MAX_CANDIDATES];
    float likely[NRD_EAGLE_MAX_CANDIDATES]; /* as a logarithm */
    int16_t parent[NRD_EAGLE_MAX_CANDIDATES], depth[NRD_EAGLE_MAX_CANDIDATES], rank[NRD_EAGLE_MAX_CANDIDATES];
    nrd_token_tree given; /* to the heads, level by level */
    int16_t candidate[NRD_MAX_TREE]; /* of the given ones */
    int16_t chosen[NRD_MAX_TREE];    /* candidates of the choices, as far as they are known; -1: none */
} nrd_eagle_tree;

void nrd_eagle_tree_begin(nrd_eagle_tree *t);
/* Candidates behind a given one, -1: behind the known text; best first. */
void nrd_eagle_tree_add(nrd_eagle_tree *t, int32_t given, const int32_t *ids, const float *log_probs, int32_t n);
/* Gives the `k` likeliest candidates of a level (1: behind the known text); returns how many. */
int32_t nrd_eagle_tree_give(nrd_eagle_tree *t, int32_t depth, int32_t k);
/* The same of those of the first n choices that have others of them behind. */
int32_t nrd_eagle_tree_give_chosen(nrd_eagle_tree *t, const nrd_medusa_choices *c, int32_t n, int32_t depth);
/* The n likeliest candidates, parents first; fewer where there are not so many. */
void nrd_eagle_tree_best(const nrd_eagle_tree *t, int32_t n, nrd_token_tree *out);
/* The first n choices. Each must have its candidate. */
void nrd_eagle_tree_chosen(nrd_eagle_tree *t, const nrd_medusa_choices *c, int32_t n, nrd_token_tree *out);

#endif
