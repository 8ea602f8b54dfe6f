/* SPDX-License-Identifier: Apache-2.0
 * engine/speculate/medusa.h - guesses of Medusa heads: which of them make the tree, and the tree for each sequence.
 *
 * Purpose   Head h reads the state of which the model chose a token, and guesses the token h + 1 places behind that one.
 *           Choices say which combinations of the heads' best tokens are verified: the path 0, 2 is the first head's best
 *           token and behind it the second head's third best. Which of the choices a step computes is learned from how
 *           often each rank of each head was right.
 * Order     For every plan, in their order: nrd_sched_plan, nrd_medusa_run, nrd_runner_submit.
 * Owner     The engine loop thread; proposers may be made on any thread, and are freed before.
 * Errors    INVALID_ARG by field for choices; of the device: it is lost then.
 * Sources   Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", ICML 2024.
 */
#ifndef NRD_ENGINE_SPECULATE_MEDUSA_H
#define NRD_ENGINE_SPECULATE_MEDUSA_H

#include "engine/run/extra_heads.h"
#include "engine/scheduler.h"
#include "engine/speculate/budget.h"
#include "engine/speculate/proposer.h"

enum { NRD_MEDUSA_MAX_RANK = 20, NRD_MEDUSA_DEFAULT_NODES = 63 };

/* A tree without tokens. parent[i] < i; -1: the token that the model chose. */
typedef struct nrd_medusa_choices {
    int32_t n;
    int16_t parent[NRD_MAX_TREE], depth[NRD_MAX_TREE], rank[NRD_MAX_TREE];
} nrd_medusa_choices;

/* field: what gave them, for errors. Path i = ranks[i ? ends[i-1] : 0 .. ends[i]), in any order. Each path must have its beginning among them, none may come
 * twice, be longer than n_heads or have a rank of NRD_MEDUSA_MAX_RANK or more. n <= NRD_MAX_TREE. */
nrd_error *nrd_medusa_choices_of(nrd_medusa_choices *out, const char *field, const int32_t *ranks, const int32_t *ends, int32_t n,
                                 int32_t n_heads) NRD_MUST_USE;
/* The `n` likeliest paths where each head is right less often than the one before, and each rank than the better one. */
void nrd_medusa_choices_default(nrd_medusa_choices *out, int32_t n_heads, int32_t n);

/* How likely the token of a rank (0: the best) of a head is right, before anything was seen. */
float nrd_medusa_first_rate(int32_t head, int32_t rank);

typedef struct nrd_medusa nrd_medusa;

/* Borrows the heads. share: how much of a step of the model a pass of the heads may take, before one was measured. */
nrd_error *nrd_medusa_new(nrd_medusa **out, nrd_extra_heads *heads, const nrd_medusa_choices *choices, int32_t max_entries,
                          const nrd_step_costs *model_costs, float share) NRD_MUST_USE;
void nrd_medusa_free(nrd_medusa *m); /* NULL is fine */
nrd_error *nrd_proposer_of_medusa(nrd_proposer **out, nrd_medusa *m) NRD_MUST_USE;
size_t nrd_proposer_medusa_bytes(void);
/* Fills the trees of the plan's drafts. */
nrd_error *nrd_medusa_run(nrd_medusa *m, const nrd_plan *p) NRD_MUST_USE;

#endif
