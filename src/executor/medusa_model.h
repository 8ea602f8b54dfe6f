/* SPDX-License-Identifier: Apache-2.0
 * executor/medusa_model.h - the Medusa heads of an executor (speculative_config, method medusa; decoding_mode medusa).
 *
 * Purpose   Opens them beside the model, on the same device. Every function does nothing where there are none (x->medusa is
 *           NULL), but for the proposer.
 * Order     open -> (the cache is sized) -> start -> run for every plan, proposers -> close.
 * Owner     The thread that opens and closes the executor; run: its loop thread; proposers: any thread.
 * Errors    NOT_FOUND, INVALID_ARG: no such heads, heads of another model, choices that are no tree. UNSUPPORTED: pipeline
 *           stages.
 */
#ifndef NRD_EXECUTOR_MEDUSA_MODEL_H
#define NRD_EXECUTOR_MEDUSA_MODEL_H

#include "base/error.h"
#include "engine/scheduler.h"
#include "engine/speculate/medusa.h"
#include "nereid/executor.h"

/* The runner is there. */
nrd_error *nrd_exec_medusa_open(nrd_exec *x, const char *engine_dir) NRD_MUST_USE;
/* The scheduler is there. Adds to weight_bytes of the executor's info. */
nrd_error *nrd_exec_medusa_start(nrd_exec *x) NRD_MUST_USE;
nrd_error *nrd_exec_medusa_proposer(const nrd_exec *x, nrd_proposer **out) NRD_MUST_USE;
/* Between nrd_sched_plan and nrd_runner_submit: the plan's trees get their tokens. */
nrd_error *nrd_exec_medusa_run(nrd_exec *x, const nrd_plan *p) NRD_MUST_USE;
void nrd_exec_medusa_close(nrd_exec *x); /* after the last sequence is freed, before the runner */

#endif
