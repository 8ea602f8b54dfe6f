/* SPDX-License-Identifier: Apache-2.0
 * executor/draft_model.h - the second model of an executor, which guesses (speculative_config, method draft_model).
 *
 * Purpose   Opens it beside the model, on the same device; memory for its KV cache is counted with the model's, block by
 *           block. Every function does nothing where there is none (x->draft is NULL), but for the proposer.
 * Order     open -> (the cache is sized) -> start -> run for every plan, proposers -> close.
 * Owner     The thread that opens and closes the executor; run: its loop thread; proposers: any thread.
 * Errors    INVALID_ARG: no such model, another vocabulary. UNSUPPORTED: several ranks.
 */
#ifndef NRD_EXECUTOR_DRAFT_MODEL_H
#define NRD_EXECUTOR_DRAFT_MODEL_H

#include "base/error.h"
#include "engine/scheduler.h"
#include "engine/speculate/proposer.h"
#include "nereid/executor.h"

#include <stddef.h>
#include <stdint.h>

/* The model's engine is open, and its device. */
nrd_error *nrd_exec_draft_open(nrd_exec *x, const char *engine_dir) NRD_MUST_USE;
size_t nrd_exec_draft_block_bytes(const nrd_exec *x); /* of a block of the cache, all layers */
/* The cache's blocks are counted, and the scheduler is there. Adds to weight_bytes and kv_cache_bytes of the executor's
 * info. */
nrd_error *nrd_exec_draft_start(nrd_exec *x) NRD_MUST_USE;
nrd_error *nrd_exec_draft_proposer(const nrd_exec *x, nrd_proposer **out) NRD_MUST_USE;
/* Between nrd_sched_plan and nrd_runner_submit: the plan's drafts get their tokens. */
nrd_error *nrd_exec_draft_run(nrd_exec *x, const nrd_plan *p) NRD_MUST_USE;
void nrd_exec_draft_close(nrd_exec *x); /* after the last sequence is freed */

#endif
