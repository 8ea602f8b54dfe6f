/* SPDX-License-Identifier: Apache-2.0
 * engine/run/position_bias.h - what attention adds for the distance between two tokens: slopes (ALiBi), or a table (T5).
 *
 * Owner     The runner; computed on the host and uploaded once.
 */
#ifndef NRD_ENGINE_RUN_POSITION_BIAS_H
#define NRD_ENGINE_RUN_POSITION_BIAS_H

#include "base/error.h"

#include <stdint.h>

struct nrd_runner;

typedef struct nrd_position_bias {
    float *alibi; /* [n_heads] of this rank, or NULL */
    float *rel;   /* [n_heads, back + ahead + 1], or NULL */
    int32_t back, ahead;
} nrd_position_bias;

nrd_error *nrd_run_init_position_bias(struct nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_position_bias(struct nrd_runner *r);

#endif
