/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/drafter.h - a second, small network that guesses what the first one will say.
 *
 * Purpose   Guesses are greedy: with temperature too a guess holds where the model's own draw is the same token
 *           (verify.h), so that answers are those without drafts, with the same seeds.
 * Cache     The network has memory of its own for a KV cache, in blocks of the same numbers and sizes as the model's:
 *           a sequence's table serves both, and what the model takes back of a draft is taken back here by itself.
 *           It computes a sequence only when a draft is worth it, all that it has missed in one pass (proposer.h,
 *           `lag`). For each block it is kept how many of its first tokens this network has computed, so that prompts
 *           that share blocks share them here as well. Copies and moves of blocks are not followed: such blocks are
 *           computed again.
 * Order     For every plan, in their order: nrd_sched_plan, nrd_drafter_run, nrd_runner_submit. A guess of n tokens
 *           takes n passes over all sequences that have a draft; they are over when run returns.
 * Owner     The engine loop thread; proposers may be made on any thread, and are freed before the drafter.
 * Errors    Of the device: it is lost then.
 * Sources   Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", ICML 2023.
 */
#ifndef NRD_ENGINE_SPECULATE_DRAFTER_H
#define NRD_ENGINE_SPECULATE_DRAFTER_H

#include "engine/run/runner.h"
#include "engine/scheduler.h"
#include "engine/speculate/proposer.h"

typedef struct nrd_drafter nrd_drafter;

typedef struct nrd_drafter_config {
    int32_t max_draft;   /* tokens of a draft, at most NRD_MAX_PASSES */
    int32_t pass_tokens; /* of one pass; the runner's max_tokens, at least max_entries */
    int32_t max_entries; /* sequences of a step; the runner's max_entries */
    int32_t max_context; /* tokens of a sequence; longer ones have no drafts any more */
    int32_t n_blocks, block_tokens; /* of the cache on the device; the runner has memory for them */
    bool ahead; /* a pass may be enqueued before the last one is over */
    const struct nrd_step_costs *model_costs; /* what steps of the model take, */
    float share;                              /* and how much of that a pass may: weights against weights */
} nrd_drafter_config;

/* Borrows the runner. */
nrd_error *nrd_drafter_new(nrd_drafter **out, nrd_runner *runner, const nrd_drafter_config *cfg) NRD_MUST_USE;
void nrd_drafter_free(nrd_drafter *d); /* NULL is fine */
/* For one sequence of one beam whose tokens are all of the vocabulary. */
nrd_error *nrd_proposer_of_drafter(nrd_proposer **out, nrd_drafter *d) NRD_MUST_USE;
size_t nrd_proposer_drafter_bytes(void);
/* Writes the guesses of the plan's drafts behind the known tokens of their sequences. */
nrd_error *nrd_drafter_run(nrd_drafter *d, const nrd_plan *p) NRD_MUST_USE;

#endif
