/* SPDX-License-Identifier: Apache-2.0
 * engine/run/rope.h - tables of rotary positions, computed on the host and uploaded once.
 *
 * Owner     The runner, or a network that guesses.
 * Errors    INVALID_ARG: the engine lacks factors, or its rotary dimension is out of range.
 */
#ifndef NRD_ENGINE_RUN_ROPE_H
#define NRD_ENGINE_RUN_ROPE_H

#include "base/error.h"
#include "model/spec.h"
#include "nereid/device.h"

struct nrd_runner;

typedef struct nrd_rope_table {
    float *inv_freq; /* [rotary_dim / 2]; NULL: nothing is rotated */
    float scale;
} nrd_rope_table;

typedef struct nrd_ropes {
    nrd_rope_table all, local; /* local: of layers with a window, where these have their own */
    uint8_t *pair_axis;        /* [rotary_dim / 2] of `all`, or NULL: positions have one axis */
} nrd_ropes;

/* Needs the weights: some models keep their factors there. The caller frees inv_freq. */
nrd_error *nrd_run_init_rope(struct nrd_runner *r, const nrd_rope_spec *rope, nrd_rope_table *out) NRD_MUST_USE;
/* All of the runner's own. */
nrd_error *nrd_run_init_ropes(struct nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_ropes(struct nrd_runner *r);

#endif
