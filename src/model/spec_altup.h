/* SPDX-License-Identifier: Apache-2.0
 * model/spec_altup.h - the part of a network's description that is about several states of a token, and about layers that share
 * keys and values or differ in width: its checks and its JSON.
 *
 * Purpose   For model/spec.c, which has all the rest.
 * Owner     Pure functions, any thread.
 * Errors    INVALID_ARG names the key, as it stands in config.json of Hugging Face folders, and what was expected;
 *           UNSUPPORTED what does not go together.
 */
#ifndef NRD_MODEL_SPEC_ALTUP_H
#define NRD_MODEL_SPEC_ALTUP_H

#include "model/spec.h"

/* Nothing is asked of a network whose tokens have one state and whose layers have their own keys and values. */
nrd_error *nrd_altup_spec_check(const nrd_model_spec *spec) NRD_MUST_USE;
/* Appends a JSON object; the layers' cutoffs belong to it. */
void nrd_altup_spec_put(const nrd_model_spec *spec, nrd_str *out);
/* An object that is not there: tokens have one state. n_layers is read before. */
nrd_error *nrd_altup_spec_read(const nrd_json *object, nrd_model_spec *out) NRD_MUST_USE;

#endif
