/* SPDX-License-Identifier: Apache-2.0
 * model/spec_recurrent.h - layers that remember a sequence in a state, as part of a network's description.
 *
 * Purpose   Checks, JSON and sizes of nrd_recurrent_spec, for model/spec.c, and what a state takes.
 * Owner     Pure functions, any thread.
 * Errors    INVALID_ARG names the field and the range; UNSUPPORTED what cannot be combined with such layers.
 */
#ifndef NRD_MODEL_SPEC_RECURRENT_H
#define NRD_MODEL_SPEC_RECURRENT_H

#include "model/spec.h"

nrd_error *nrd_recurrent_spec_check(const nrd_model_spec *spec) NRD_MUST_USE;
void nrd_recurrent_spec_put(const nrd_recurrent_spec *r, nrd_str *out);
/* `o` NULL: there are none. */
nrd_error *nrd_recurrent_spec_read(const nrd_json *o, nrd_recurrent_spec *out) NRD_MUST_USE;

/* Numbers of a row behind the layer's first product, and of that product's main part alone. */
int64_t nrd_recurrent_row(const nrd_model_spec *spec);
int64_t nrd_recurrent_in(const nrd_model_spec *spec);
int64_t nrd_recurrent_channels(const nrd_model_spec *spec); /* of the convolution */
int64_t nrd_recurrent_inner(const nrd_model_spec *spec);    /* what the last product reads */
/* Numbers that a layer keeps of a sequence: of the convolution, and of what is behind it. */
int64_t nrd_recurrent_conv_state(const nrd_model_spec *spec);
int64_t nrd_recurrent_state(const nrd_model_spec *spec);
/* Bytes of one sequence's state, in all layers; 0: no layer has one. */
uint64_t nrd_recurrent_bytes(const nrd_model_spec *spec);
/* What snapshots of states take where nothing is asked for: four for each of max_batch_size sequences, but no large part
 * of the memory. */
uint64_t nrd_recurrent_cache_bytes(const nrd_model_spec *spec, int32_t max_batch_size, uint64_t mem_free_bytes);

#endif
