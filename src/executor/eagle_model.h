/* SPDX-License-Identifier: Apache-2.0
 * executor/eagle_model.h - the EAGLE heads of an executor (speculative_config, methods eagle and eagle3; decoding_mode eagle), or its
 * model's MTP layer (method mtp).
 *
 * Purpose   Opens them beside the model, on the same device; memory for their states, keys and values is counted with the model's KV
 *           cache, block by block. Every function does nothing where there are none (x->eagle is NULL), but for the proposer.
 * Order     read, before the model's runner -> open, behind it -> block_bytes -> (the cache is sized) -> start -> run for every plan,
 *           proposers -> close.
 * Owner     The thread that opens and closes the executor; run: its loop thread; proposers: any thread.
 * Errors    NOT_FOUND, INVALID_ARG: no such heads, heads of another model. UNSUPPORTED: several ranks, a model without such states.
 */
#ifndef NRD_EXECUTOR_EAGLE_MODEL_H
#define NRD_EXECUTOR_EAGLE_MODEL_H

#include "base/error.h"
#include "engine/run/runner.h"
#include "engine/scheduler.h"
#include "engine/speculate/proposer.h"
#include "nereid/executor.h"

/* Reads the heads, which are the engine's own where no path says others, and says which states of the model they need. */
nrd_error *nrd_exec_eagle_read(nrd_exec *x, const char *engine_dir, nrd_runner_taps *out) NRD_MUST_USE;
nrd_error *nrd_exec_eagle_open(nrd_exec *x) NRD_MUST_USE;
size_t nrd_exec_eagle_block_bytes(const nrd_exec *x);
/* The scheduler is there. Adds to weight_bytes and kv_cache_bytes of the executor's info. */
nrd_error *nrd_exec_eagle_start(nrd_exec *x) NRD_MUST_USE;
nrd_error *nrd_exec_eagle_proposer(const nrd_exec *x, nrd_proposer **out) NRD_MUST_USE;
/* Between nrd_sched_plan and nrd_runner_submit: the states of the step before are kept; the plan's drafts get their tokens. */
nrd_error *nrd_exec_eagle_keep(nrd_exec *x, const nrd_plan *p) NRD_MUST_USE;
nrd_error *nrd_exec_eagle_run(nrd_exec *x, const nrd_plan *p) NRD_MUST_USE;
void nrd_exec_eagle_close(nrd_exec *x); /* after the last sequence is freed, before the runner */

#endif
