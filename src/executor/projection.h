/* SPDX-License-Identifier: Apache-2.0
 * executor/projection.h - the vector of a text from its pooled state, where a model has products behind it
 * (model/spec.h: nrd_projection_spec), in float32 on the host.
 *
 * Owner     Made when the engine is opened; its scratch is for one thread at a time, the engine loop.
 * Errors    INVALID_ARG names the weight.
 */
#ifndef NRD_EXECUTOR_PROJECTION_H
#define NRD_EXECUTOR_PROJECTION_H

#include "model/engine.h"

typedef struct nrd_projection nrd_projection;

/* Copies the engine's weights. *out is NULL where the model has no such products. */
nrd_error *nrd_projection_new(nrd_projection **out, const nrd_engine *engine) NRD_MUST_USE;
void nrd_projection_free(nrd_projection *p);

int32_t nrd_projection_size(const nrd_projection *p); /* numbers of a vector; 0: p is NULL */
/* state: [hidden]; out: [size], which may be the same memory. */
void nrd_projection_run(nrd_projection *p, const float *state, float *out);

#endif
