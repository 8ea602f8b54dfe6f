/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/eagle.h - guesses of EAGLE heads: which of a sequence's places they have computed, and passes for a draft.
 *
 * Purpose   The heads' layer reads the states that the model had at a sequence's tokens, and guesses what comes behind them.
 *           A draft is a chain of the best tokens, or a tree (eagle_tree.h) of the likeliest or of those that choices name. As
 *           with all proposers what holds is what the model says itself, so that answers are those without drafts.
 * Cache     States, keys and values lie in blocks of the same numbers and sizes as the model's cache. The states of every token
 *           are kept, when its step is over; the layer computes a sequence only when a draft is worth it, all that it has missed in one
 *           pass (proposer.h, `lag`). For each block it is kept of how many of its first tokens there are states, and how
 *           many places the layer has computed. Copies of blocks take states along; blocks that come back from host memory have none, and
 *           a sequence with such blocks goes on without drafts. Where texts part at the end of a block that they share, its last
 *           place is computed again for the newer one.
 * Order     For every plan, in their order: nrd_sched_plan, nrd_eagle_keep, nrd_eagle_run, nrd_runner_submit.
 * Owner     The engine loop thread; proposers may be made on any thread, and are freed before.
 * Errors    Of the device: it is lost then.
 * Sources   Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", ICML 2024; Li et al.,
 *           "EAGLE-2", EMNLP 2024.
 */
#ifndef NRD_ENGINE_SPECULATE_EAGLE_H
#define NRD_ENGINE_SPECULATE_EAGLE_H

#include "engine/run/eagle_net.h"
#include "engine/scheduler.h"
#include "engine/speculate/eagle_tree.h"
#include "engine/speculate/proposer.h"

typedef struct nrd_eagle nrd_eagle;

typedef struct nrd_eagle_config {
    int32_t max_draft;   /* tokens of a draft, at most NRD_MAX_PASSES, or nodes of a tree */
    int32_t depth;       /* of trees; 0: drafts are chains */
    int32_t top_k;       /* of trees without choices: tokens of a level that are given to the heads */
    const nrd_medusa_choices *choices; /* max_draft nodes; NULL: the likeliest. Borrows */
    int32_t n_best;      /* as the net's; a chain takes 1, a tree top_k or the choices' ranks */
    int32_t max_rows;    /* as the net's: of a pass; drafts of a step have no more tokens */
    int32_t pass_tokens; /* of one pass; as the net's max_tokens, at least max_entries */
    int32_t max_entries; /* sequences of a step */
    int32_t step_tokens; /* of a step of the model */
    int32_t max_context; /* tokens of a sequence */
    int32_t n_blocks, block_tokens; /* of the cache on the device */
    const struct nrd_step_costs *model_costs; /* what steps of the model take, */
    float share;                              /* and how much of that a pass may: weights against weights */
} nrd_eagle_config;

/* Borrows the net. */
nrd_error *nrd_eagle_new(nrd_eagle **out, nrd_eagle_net *net, const nrd_eagle_config *cfg) NRD_MUST_USE;
void nrd_eagle_free(nrd_eagle *e); /* NULL is fine */
/* For one sequence of one beam whose tokens are all of the vocabulary. */
nrd_error *nrd_proposer_of_eagle(nrd_proposer **out, nrd_eagle *e) NRD_MUST_USE;
size_t nrd_proposer_eagle_bytes(bool trees);
/* Keeps the states of the step before. */
nrd_error *nrd_eagle_keep(nrd_eagle *e, const nrd_plan *p) NRD_MUST_USE;
/* Writes the guesses of the plan's drafts behind the known tokens of their sequences. */
nrd_error *nrd_eagle_run(nrd_eagle *e, const nrd_plan *p) NRD_MUST_USE;

#endif
