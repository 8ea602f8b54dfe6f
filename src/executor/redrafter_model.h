/* SPDX-License-Identifier: Apache-2.0
 * executor/redrafter_model.h - the recurrent drafter of an executor (speculative_config, method redrafter; decoding_mode redrafter).
 *
 * Purpose   Opens it beside the model, on the same device. Every function does nothing where there is none (x->redrafter is
 *           NULL), but for the proposer.
 * Order     read -> (the runner is made) -> open -> (the cache is sized) -> start -> run for every plan, proposers -> close.
 * Owner     The thread that opens and closes the executor; run: its loop thread; proposers: any thread.
 * Errors    NOT_FOUND, INVALID_ARG: no such drafter, one of another model, a search that is too wide. UNSUPPORTED: pipeline stages.
 */
#ifndef NRD_EXECUTOR_REDRAFTER_MODEL_H
#define NRD_EXECUTOR_REDRAFTER_MODEL_H

#include "base/error.h"
#include "engine/scheduler.h"
#include "engine/speculate/redrafter.h"
#include "nereid/executor.h"

/* The engine is open. Completes x->speculative by what the drafter was converted for. */
nrd_error *nrd_exec_redrafter_read(nrd_exec *x, const char *engine_dir) NRD_MUST_USE;
/* The runner is there. */
nrd_error *nrd_exec_redrafter_open(nrd_exec *x) NRD_MUST_USE;
/* The scheduler is there. Adds to weight_bytes of the executor's info. */
nrd_error *nrd_exec_redrafter_start(nrd_exec *x) NRD_MUST_USE;
nrd_error *nrd_exec_redrafter_proposer(const nrd_exec *x, nrd_proposer **out) NRD_MUST_USE;
/* Between nrd_sched_plan and nrd_runner_submit: the plan's trees get their tokens. */
nrd_error *nrd_exec_redrafter_run(nrd_exec *x, const nrd_plan *p) NRD_MUST_USE;
void nrd_exec_redrafter_close(nrd_exec *x); /* after the last sequence is freed, before the runner */

#endif
