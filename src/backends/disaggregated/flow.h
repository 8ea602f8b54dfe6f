/* SPDX-License-Identifier: Apache-2.0
 * backends/disaggregated/flow.h - one request on its way through two models: one computes its prompt, the other goes on.
 *
 * Purpose   The client's request goes to the context model as context_only; with the parameters of that answer it goes to
 *           the generation model as generation_only, whose answers are the client's. By callbacks: no thread waits for a
 *           request.
 * Owner     flow.mu guards what callbacks (threads of the core) share. No lock is held over a call into the server that
 *           can call back.
 * Source    The published model disaggregated_serving_bls, v0.15 to v0.19: its parameters, inputs and outputs.
 */
#ifndef NRD_BACKENDS_DISAGGREGATED_FLOW_H
#define NRD_BACKENDS_DISAGGREGATED_FLOW_H

#include "backends/util/inner.h"

typedef struct nrd_disagg_model {
    nrd_tb_config config;
    TRITONSERVER_ResponseAllocator *allocator;
    const char *context, *generation; /* names of models; borrow from config */
    nrd_tb_inflight inflight;
} nrd_disagg_model;

/* Always takes the request: an error becomes its answer. */
void nrd_disagg_start(nrd_disagg_model *m, TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request);

#endif
