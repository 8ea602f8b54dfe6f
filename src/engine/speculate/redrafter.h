/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/redrafter.h - drafts of a recurrent drafter: a beam search of its own, whose beams are verified as a tree.
 *
 * Purpose   The drafter goes on from the state of which the model chose a token, and from that token. Of each level the tokens of the
 *           likeliest n_beams paths are taken one token further, `length` tokens deep. Of all tokens that the search has found the
 *           likeliest are verified: beams that begin alike share their beginning, and where that saves nodes, the next best
 *           tokens have them.
 * Order     For every plan, in their order: nrd_sched_plan, nrd_redrafter_run, nrd_runner_submit.
 * Owner     The engine loop thread; proposers may be made on any thread, and are freed before.
 * Errors    Of the device: it is lost then.
 * Sources   Cheng et al., "Recurrent Drafter for Fast Speculative Decoding in Large Language Models", 2024.
 */
#ifndef NRD_ENGINE_SPECULATE_REDRAFTER_H
#define NRD_ENGINE_SPECULATE_REDRAFTER_H

#include "engine/run/redrafter_net.h"
#include "engine/scheduler.h"
#include "engine/speculate/budget.h"
#include "engine/speculate/proposer.h"

typedef struct nrd_redrafter nrd_redrafter;

typedef struct nrd_redrafter_config {
    int32_t max_draft;       /* nodes, at most n_beams * length */
    int32_t n_beams, length; /* at most NRD_REDRAFTER_MAX_BEAMS, _MAX_LEN; the net names n_beams tokens of each row */
    int32_t max_rows;        /* of a pass: drafts of a step together have no more nodes */
    int32_t max_entries;
    const nrd_step_costs *model_costs;
    float share; /* how much of a step of the model a pass may take, before one was measured */
} nrd_redrafter_config;

/* Borrows the net. */
nrd_error *nrd_redrafter_new(nrd_redrafter **out, nrd_redrafter_net *net, const nrd_redrafter_config *cfg) NRD_MUST_USE;
void nrd_redrafter_free(nrd_redrafter *m); /* NULL is fine */
nrd_error *nrd_proposer_of_redrafter(nrd_proposer **out, nrd_redrafter *m) NRD_MUST_USE;
size_t nrd_proposer_redrafter_bytes(void);
/* Fills the trees of the plan's drafts. */
nrd_error *nrd_redrafter_run(nrd_redrafter *m, const nrd_plan *p) NRD_MUST_USE;

#endif
