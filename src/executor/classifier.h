/* SPDX-License-Identifier: Apache-2.0
 * executor/classifier.h - numbers for labels from one state of a text.
 *
 * Purpose   The head of a model that was trained as a classifier or reranker (model/spec.h: nrd_classifier_spec),
 *           in float32 on the host: one or two small products a text, whatever the device.
 * Owner     Made when the engine is opened;
 *           its scratch is for one thread at a time, the engine loop.
 * Errors    NOT_FOUND / INVALID_ARG name the weight.
 */
#ifndef NRD_EXECUTOR_CLASSIFIER_H
#define NRD_EXECUTOR_CLASSIFIER_H

#include "model/engine.h"

typedef struct nrd_classifier nrd_classifier;

/* Copies the engine's weights. *out is NULL where the model has no such head. */
nrd_error *nrd_classifier_new(nrd_classifier **out, const nrd_engine *engine) NRD_MUST_USE;
void nrd_classifier_free(nrd_classifier *c);

int32_t nrd_classifier_labels(const nrd_classifier *c); /* how many; 0: c is NULL */
/* state: [hidden], behind the model's last norm; out: [labels], which may be the same memory. */
void nrd_classifier_run(nrd_classifier *c, const float *state, float *out);

#endif
