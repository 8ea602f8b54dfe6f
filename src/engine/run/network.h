/* SPDX-License-Identifier: Apache-2.0
 * engine/run/network.h - a runner as far as its layers run, which is all that an encoder is.
 *
 * Owner     The engine loop thread.
 * Errors    UNSUPPORTED: the device lacks what the network needs. UNAVAILABLE: no memory, with what to change.
 */
#ifndef NRD_ENGINE_RUN_NETWORK_H
#define NRD_ENGINE_RUN_NETWORK_H

#include "engine/run/runner_internal.h"

/* ---- features.c ---- */

/* UNSUPPORTED names what the network needs and the device has not. */
nrd_error *nrd_run_check_features(const nrd_runner *r) NRD_MUST_USE;
/* For networks that guess with the model's embedding in rank 0 alone. */
nrd_error *nrd_run_check_whole_embedding(const nrd_runner *r) NRD_MUST_USE;

/* ---- activations.c ---- */

nrd_error *nrd_run_init_activations(nrd_runner *r) NRD_MUST_USE;
void nrd_run_free_activations(nrd_runner *r);

/* ---- convolve.c ---- */

/* For a runner of an encoder that hears, with inputs of up to cfg.max_tokens states. */
nrd_error *nrd_run_convolve_init(nrd_runner *r) NRD_MUST_USE;
void nrd_run_convolve_fini(nrd_runner *r);
/* The states of features[n_frames, n_mels] before the first layer, into x from row `first` on: half as many as frames,
 * rounded up. Waits. */
nrd_error *nrd_run_convolve_frames(nrd_runner *r, const float *features, int32_t n_frames, int32_t first) NRD_MUST_USE;

/* ---- forward.c ---- */

/* Everything up to the last layer's delta, which is left for the final norm or not. */
nrd_error *nrd_run_layers(nrd_runner *r, const nrd_batch *b) NRD_MUST_USE;

/* ---- tune.c ---- */

/* Lets the device choose its kernels for every product and number of rows, within some seconds.
 * Needs the weights and activations; overwrites the latter. */
nrd_error *nrd_run_tune(nrd_runner *r) NRD_MUST_USE;

/* ---- network.c ---- */

/* A runner that only runs layers (nrd_run_layers), as an encoder's: without batches, choices and an encoder of its own.
 * cfg: as nrd_runner_new has it. */
nrd_error *nrd_run_open(nrd_runner **out, nrd_device *dev, const nrd_engine *engine, const nrd_runner_config *cfg) NRD_MUST_USE;
/* Waits. NULL is fine. */
void nrd_run_close(nrd_runner *r);

#endif
