/* SPDX-License-Identifier: Apache-2.0
 * model/spec_moe.h - the part of a network's description that is about experts: its checks and its JSON.
 *
 * Purpose   For model/spec.c, which has all the rest.
 * Owner     Pure functions, any thread.
 * Errors    INVALID_ARG names the key, as it stands in config.json of Hugging Face folders, and what was expected.
 */
#ifndef NRD_MODEL_SPEC_MOE_H
#define NRD_MODEL_SPEC_MOE_H

#include "model/spec.h"

/* Nothing is asked of a network without experts. */
nrd_error *nrd_moe_spec_check(const nrd_model_spec *spec) NRD_MUST_USE;
/* Appends a JSON object. */
void nrd_moe_spec_put(const nrd_moe_spec *moe, nrd_str *out);
/* Fills spec->moe and has_experts; an object that is not there: a network without experts. */
nrd_error *nrd_moe_spec_read(const nrd_json *object, nrd_model_spec *spec) NRD_MUST_USE;

#endif
