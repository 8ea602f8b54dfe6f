/* SPDX-License-Identifier: Apache-2.0
 * tools/bench_steps.h - how long an engine's steps take, for `nereid simulate`. */
#ifndef NRD_TOOLS_BENCH_STEPS_H
#define NRD_TOOLS_BENCH_STEPS_H

#include "nereid/executor.h"
#include "tools/step_table.h"

/* Measures and prints the table. Prompts take the place of whatever else the engine could do: nobody else may use it.
 * max_sequences: rows of the last level; max_context: of the longest (0: what fits). */
nrd_error *nrd_bench_steps(nrd_exec *x, int32_t max_sequences, int32_t max_context, nrd_step_table *out) NRD_MUST_USE;

#endif
