/* SPDX-License-Identifier: Apache-2.0
 * model/hf_keys.h - single keys of config.json of Hugging Face folders.
 *
 * Purpose   For all who read such a file: a key under each of its names, with a default, within its limits. `keys`: names
 *           apart by '|', of which the first that has a value is taken; null is no value.
 * Owner     Pure functions, any thread; what is returned borrows from the document.
 * Errors    INVALID_ARG names the key and what was expected; UNSUPPORTED what cannot be computed.
 */
#ifndef NRD_MODEL_HF_KEYS_H
#define NRD_MODEL_HF_KEYS_H

#include "base/error.h"
#include "base/json.h"
#include "model/spec.h"

#include <stdint.h>

#define NRD_HF_REQUIRED INT64_MAX /* as a fallback: a missing key is an error */
const nrd_json *nrd_hf_get(const nrd_json *config, const char *keys); /* NULL: none, or null */
nrd_error *nrd_hf_int(const nrd_json *config, const char *keys, int64_t fallback,
                      int32_t *out) NRD_MUST_USE;
/* UNSUPPORTED where a key is there and true (or not null, or not 0). */
nrd_error *nrd_hf_refuse(const nrd_json *config, const char *key) NRD_MUST_USE;
/* A scale that must be above 0; out stays as it is where there is no key. */
nrd_error *nrd_hf_scale(const nrd_json *config, const char *key, double *out) NRD_MUST_USE;
/* INVALID_ARG: the member `value` of an object must be what `expected` says. */
nrd_error *nrd_hf_wrong_value(const nrd_json *value, const char *expected) NRD_MUST_USE;
/* layer_types: which layers slide. */
nrd_error *nrd_hf_layer_types(nrd_model_spec *spec, const nrd_json *types) NRD_MUST_USE;

#endif
