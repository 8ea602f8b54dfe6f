/* SPDX-License-Identifier: Apache-2.0
 * engine/run/head.h - from the last layer's states to logits, vectors and chosen tokens.
 *
 * Owner     The engine loop thread.
 */
#ifndef NRD_ENGINE_RUN_HEAD_H
#define NRD_ENGINE_RUN_HEAD_H

#include "engine/run/runner_internal.h"

/* ---- head.c, pooled.c: the first call of a step has has_delta, which adds the last delta to all rows ---- */

/* The final norm of some rows of x, as the head wants them. */
nrd_error *nrd_run_final_norm(nrd_runner *r, int32_t n_tokens, bool has_delta,
                              const int32_t *row_ids, int32_t n_rows) NRD_MUST_USE;
/* Logits of some rows of x. */
nrd_error *nrd_run_head(nrd_runner *r, int32_t n_tokens, bool has_delta, const int32_t *row_ids,
                        int32_t n_rows) NRD_MUST_USE;
/* Prompt positions whose logits or states are wanted, told through the configuration's callbacks;
 * waits for each group. *has_delta becomes false where any were. */
nrd_error *nrd_run_context_rows(nrd_runner *r, const nrd_plan *p, bool *has_delta) NRD_MUST_USE;
/* The same for context_row of sequences, from a packed batch. */
nrd_error *nrd_run_context_row(nrd_runner *r, const nrd_plan *p, const nrd_batch *b, bool *has_delta) NRD_MUST_USE;
/* The final norm of some rows of x as float32, into the memory of the logits. */
nrd_error *nrd_run_states(nrd_runner *r, int32_t n_tokens, bool has_delta, const int32_t *row_ids, int32_t n_rows) NRD_MUST_USE;
/* How many rows that memory takes at a time: the same number in all ranks. */
int32_t nrd_run_group_rows(const nrd_runner *r, bool of_states);
/* Sums of the states that a step's sequences want, on their way to the host; *has_delta as above. */
nrd_error *nrd_run_pool(nrd_runner *r, const nrd_plan *p, nrd_pooled *o, bool *has_delta) NRD_MUST_USE;
void nrd_run_tell_pooled(const nrd_runner *r, const nrd_pooled *o); /* the step has ended */
void nrd_run_pooled_fini(nrd_runner *r, nrd_pooled *o);
/* Rows [at, at + n) of x through the head, or only through the final norm, in the groups of
 * nrd_run_context_rows and nrd_run_pool, for the ranks that do not see what comes out. */
nrd_error *nrd_run_head_rows(nrd_runner *r, int32_t n_tokens, bool of_states, int32_t at, int32_t n,
                             bool *has_delta) NRD_MUST_USE;
/* The entry's positions [*first, *end) whose states are wanted; false: none are. */
bool nrd_run_state_range(const nrd_plan_entry *e, int32_t *first, int32_t *end);
/* The end of an entry's positions that belong to the prompt. */
int32_t nrd_run_prompt_end(const nrd_plan_entry *e);
/* Positions [first, end) of those of this step whose logits are wanted (want_context_rows); false: none. */
bool nrd_run_context_range(const nrd_plan_entry *e, int32_t *first, int32_t *end);

/* ---- choices.c ---- */

nrd_error *nrd_run_outputs_init(nrd_runner *r, nrd_outputs *o) NRD_MUST_USE;
void nrd_run_outputs_fini(nrd_runner *r, nrd_outputs *o);
nrd_error *nrd_run_choose(nrd_runner *r, const nrd_batch *b, const nrd_outputs *o) NRD_MUST_USE;
/* Whether only the choice of tokens reads the logits, and all its arguments are known before they
 * are computed: then head and choice can be one operation. */
bool nrd_run_only_chosen(const nrd_runner *r, const nrd_plan *p, const nrd_batch *b);
/* Head and choice, by a device that need not store the logits. */
nrd_error *nrd_run_head_choose(nrd_runner *r, int32_t n_tokens, bool has_delta, const nrd_batch *b,
                               const nrd_outputs *o) NRD_MUST_USE;
/* Keeps the logits of choices that asked for them. */
nrd_error *nrd_run_keep_choices(nrd_runner *r, const nrd_plan *p, nrd_outputs *o) NRD_MUST_USE;
/* From `mem` of this or the other buffer's outputs (same layout) to this one's host memory. */
nrd_error *nrd_run_download(nrd_runner *r, const nrd_batch *b, nrd_outputs *o,
                            const uint8_t *mem) NRD_MUST_USE;

#endif
