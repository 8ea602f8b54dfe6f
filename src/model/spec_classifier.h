/* SPDX-License-Identifier: Apache-2.0
 * model/spec_classifier.h - the part of nrd_model_spec for a head that gives numbers to labels.
 *
 * Purpose   Checks, JSON in config.json of checkpoints and engines in both directions, and what config.json of
 *           a Hugging Face folder says about labels.
 * Owner     Pure functions, any thread.
 * Errors    INVALID_ARG and UNSUPPORTED name the key.
 * Sources   transformers: PretrainedConfig (id2label, num_labels, problem_type) and the functions that its
 *           text-classification pipeline takes; sentence-transformers: CrossEncoder's activation_fn.
 */
#ifndef NRD_MODEL_SPEC_CLASSIFIER_H
#define NRD_MODEL_SPEC_CLASSIFIER_H

#include "base/json.h"
#include "base/str.h"
#include "model/spec.h"

nrd_error *nrd_classifier_spec_check(const nrd_model_spec *spec) NRD_MUST_USE;
void nrd_classifier_spec_put(const nrd_classifier_spec *c, nrd_str *out); /* an object */
nrd_error *nrd_classifier_spec_read(const nrd_json *object, nrd_classifier_spec *out) NRD_MUST_USE;

/* The labels' names as a JSON list. */
void nrd_classifier_put_labels(const nrd_classifier_spec *c, nrd_str *out);
const char *nrd_label_function_name(nrd_label_function f); /* "softmax", "sigmoid", "none" */

/* Labels, their number and functions by a config.json; the head's shape is the family's. */
/* The same of a model that says yes or no: one label, whose number is that of the only token, or of the second less the
 * first's. */
void nrd_classifier_from_tokens(nrd_classifier_spec *out, const int32_t *ids, int n);
/* By the class that a folder names ("torch.nn.modules.linear.Identity"), or what follows from the labels (NULL). */
nrd_error *nrd_classifier_pair_function(nrd_classifier_spec *c, const char *name) NRD_MUST_USE;
nrd_error *nrd_classifier_from_hf(nrd_classifier_spec *out, const nrd_json *config) NRD_MUST_USE;

#endif
