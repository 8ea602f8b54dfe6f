/* SPDX-License-Identifier: Apache-2.0
 * tools/quantize/speed.h - what a model's speed follows from before anything is timed.
 *
 * Purpose   The next token of one sequence reads every weight that takes part once. Memory is the limit then, on GPUs and on
 *           most CPUs, so that the time of a token goes with these bytes.
 * Owner     Pure function, any thread.
 * Errors    What opening the engine says.
 */
#ifndef NRD_TOOLS_QUANTIZE_SPEED_H
#define NRD_TOOLS_QUANTIZE_SPEED_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Bytes of weights that a token reads, as the engine in this folder (of one rank) keeps them. Of an embedding that is no LM
 * head it reads a row, which is not counted; of a mixture of experts those that a token gets. on_cpu: FP8 as bfloat16. */
nrd_error *nrd_qspeed_token_bytes(uint64_t *out, const char *engine, bool on_cpu) NRD_MUST_USE;

#endif
