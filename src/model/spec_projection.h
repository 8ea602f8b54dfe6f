/* SPDX-License-Identifier: Apache-2.0
 * model/spec_projection.h - the part of nrd_model_spec for products behind the pooled state.
 *
 * Purpose   Checks, JSON in config.json of checkpoints and engines in both directions, and the config.json of a module Dense of
 *           sentence-transformers.
 * Owner     Pure functions, any thread.
 * Errors    INVALID_ARG and UNSUPPORTED name the key.
 */
#ifndef NRD_MODEL_SPEC_PROJECTION_H
#define NRD_MODEL_SPEC_PROJECTION_H

#include "base/json.h"
#include "base/str.h"
#include "model/spec.h"

nrd_error *nrd_projection_spec_check(const nrd_model_spec *spec) NRD_MUST_USE;
void nrd_projection_spec_put(const nrd_model_spec *spec, nrd_str *out); /* a list of objects */
nrd_error *nrd_projection_spec_read(const nrd_json *list, nrd_model_spec *spec) NRD_MUST_USE;
/* One more projection, of `size` numbers. */
nrd_error *nrd_projection_add(nrd_model_spec *spec, int64_t size, bool bias, const char *act) NRD_MUST_USE;
/* One more projection, as the module's configuration says. */
nrd_error *nrd_projection_from_dense(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;

#endif
