/* SPDX-License-Identifier: Apache-2.0
 * tools/load/model_inputs.h - which inputs a server's model has, asked before it is put under load.
 *
 * Purpose   Repositories differ in names (min_length up to v0.19, min_tokens after it), and tensors that a model does not
 *           have are refused. Asked by HTTP, or over gRPC where the API has its plug-in.
 * Owner     The caller; one request and its answer, within the call.
 * Errors    UNAVAILABLE: no answer, or one that is no model's metadata.
 */
#ifndef NRD_TOOLS_LOAD_MODEL_INPUTS_H
#define NRD_TOOLS_LOAD_MODEL_INPUTS_H

#include "tools/load/api.h"
#include "tools/load/client.h"

/* names[0..n), n at most 32: those that a->model has get their bit in out_has, bit i for names[i]. Of `server` the url,
 * headers, certificate and time limit are taken. */
nrd_error *nrd_load_find_inputs(const nrd_api *a, const nrd_client_config *server, const char *const *names, size_t n,
                                uint32_t *out_has) NRD_MUST_USE;

#endif
