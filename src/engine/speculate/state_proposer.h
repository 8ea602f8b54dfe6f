/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/state_proposer.h - what proposers share that guess with a network.
 *
 * Purpose   Whose guesses a plan's draft is of; and for networks that read nothing but the state of which the model chose the last token
 *           (Medusa heads, a ReDrafter): where that state is, whether it is still there, and which drafts of a plan they have to fill.
 * Owner     The engine loop thread.
 */
#ifndef NRD_ENGINE_SPECULATE_STATE_PROPOSER_H
#define NRD_ENGINE_SPECULATE_STATE_PROPOSER_H

#include "engine/scheduler.h"
#include "engine/speculate/budget.h"
#include "engine/speculate/proposer.h"

/* The entry's proposer where the network with these passes guesses for it; NULL: guesses come from elsewhere. */
static inline nrd_proposer *nrd_proposer_of_entry(const nrd_plan_entry *e, const nrd_step_costs *passes)
{
    nrd_proposer *p = e->seq->spec.proposer;
    return p && p->passes == passes ? p : NULL;
}

/* First member of such a network's own structure. */
typedef struct nrd_state_proposer {
    nrd_proposer base;
    nrd_token_tree tree;
    uint64_t step; /* that its state is of: */
    int32_t token; /* of this one of the step's tokens; -1: there is none */
} nrd_state_proposer;

/* likely, passes, n_passes: as in nrd_proposer. Freed by free(). */
void nrd_state_proposer_init(nrd_state_proposer *p, const float *likely, const nrd_step_costs *passes, int32_t n_passes);
/* The state of the sequence's last token was made by the step `last_step`. */
bool nrd_state_proposer_has_state(const nrd_state_proposer *p, const nrd_seq *q, uint64_t last_step);

/* Drafts of a plan that one network fills. */
typedef struct nrd_state_drafts {
    uint64_t last_step; /* the last one that runs or is over: whose states are there */
    int32_t *tokens;    /* [max_entries] packed tokens of it, of whose states the drafts go on */
    const nrd_plan_entry **entries; /* [max_entries] */
    int32_t n;
} nrd_state_drafts;

nrd_error *nrd_state_drafts_init(nrd_state_drafts *d, int32_t max_entries) NRD_MUST_USE;
void nrd_state_drafts_fini(nrd_state_drafts *d);
/* Those of the plan with this network's proposers. */
void nrd_state_drafts_collect(nrd_state_drafts *d, const nrd_plan *p, const nrd_step_costs *passes);

#endif
