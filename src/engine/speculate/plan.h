/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/plan.h - which sequences of a step have a draft, and how long.
 *
 * Purpose   The scheduler's part that has to do with drafts: asks proposers, weighs what they offer over all sequences
 *           (budget.h), takes blocks. Integers, and floats that follow from what steps took.
 * Owner     The scheduler; loop thread only.
 * Units     Tokens; blocks of the KV cache.
 */
#ifndef NRD_ENGINE_SPECULATE_PLAN_H
#define NRD_ENGINE_SPECULATE_PLAN_H

#include "engine/kv_cache.h"
#include "engine/sequence.h"
#include "engine/speculate/budget.h"

typedef struct nrd_draft_plan {
    nrd_step_costs costs;    /* of the network that verifies */
    nrd_draft_offer *offers; /* owns; [max_sequences] of the plan being made */
} nrd_draft_plan;

nrd_error *nrd_draft_plan_init(nrd_draft_plan *d, int32_t max_sequences) NRD_MUST_USE;
void nrd_draft_plan_fini(nrd_draft_plan *d);

/* The draft behind a piece of n tokens of a prompt (or of what is computed again), at most `max` tokens, no tree. They lie
 * in `tokens` behind the known ones. Returns how many. */
int32_t nrd_draft_behind_prompt(nrd_seq *q, int32_t n, int32_t max);
/* Whether the plan being made may give a running sequence a draft: it goes on by one token, or by what a recurrent state has to see
 * again and one token (sched.n_jump). */
bool nrd_draft_may_follow(const nrd_seq *q);
/* Of the running sequences from `first` on that may have one: writes their spec.n_draft. n_tokens: of the step without drafts; max_rows: choices behind drafts; room: tokens that drafts may
 * have; trees: they may be trees. */
void nrd_draft_weigh(nrd_draft_plan *d, nrd_seq *first, int32_t n_tokens, int32_t max_rows, int32_t room, bool trees);
/* Takes blocks for the first k tokens of the draft where so many are to be had, else there is no draft: n_room blocks
 * may be used. */
void nrd_draft_take(nrd_seq *q, nrd_kv *kv, int32_t n_room, int32_t k);

#endif
