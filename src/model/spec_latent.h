/* SPDX-License-Identifier: Apache-2.0
 * model/spec_latent.h - the part of a network's description that is about latent attention: its checks and its JSON.
 *
 * Purpose   For model/spec.c, which has all the rest.
 * Owner     Pure functions, any thread.
 * Errors    INVALID_ARG names the key, as it stands in config.json of Hugging Face folders, and what was expected;
 *           UNSUPPORTED what does not go together with latent attention.
 */
#ifndef NRD_MODEL_SPEC_LATENT_H
#define NRD_MODEL_SPEC_LATENT_H

#include "model/spec.h"

/* Nothing is asked of a network without latent attention. */
nrd_error *nrd_latent_spec_check(const nrd_model_spec *spec) NRD_MUST_USE;
/* Appends a JSON object. */
void nrd_latent_spec_put(const nrd_latent_spec *latent, nrd_str *out);
/* An object that is not there: no latent attention. */
nrd_error *nrd_latent_spec_read(const nrd_json *object, nrd_latent_spec *out) NRD_MUST_USE;

#endif
