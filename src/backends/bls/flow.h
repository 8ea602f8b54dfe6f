/* SPDX-License-Identifier: Apache-2.0
 * backends/bls/flow.h - one request of the model "tensorrt_llm_bls" on its way through the others.
 *
 * Purpose   preprocessing (-> multimodal_encoders, of requests with pictures) -> tensorrt_llm -> postprocessing, driven by callbacks: no thread waits for
 *           a request, so the number of requests in flight is not bound by instances.
 * Life      flow_start sends the request to preprocessing; its answer goes to tensorrt_llm; each of
 *           its answers waits in a queue and passes postprocessing one after the other, so that pieces
 *           keep their order; the text goes to the client. After the last one, or an error, the Triton
 *           request is released and the flow freed when its last inner request has come back.
 * Owner     flow.mu guards everything that callbacks (threads of the core) share. No lock is held over
 *           a call into the server that can call back.
 */
#ifndef NRD_BACKENDS_BLS_FLOW_H
#define NRD_BACKENDS_BLS_FLOW_H

#include "backends/bls/steps.h"
#include "backends/util/util.h"

#include <pthread.h>

typedef struct bls_flow bls_flow;

typedef struct bls_model {
    nrd_tb_config config;
    TRITONSERVER_ResponseAllocator *allocator;
    char *llm_name, *draft_name; /* own; draft_name NULL: no drafts */
    char *encoders_name;         /* owns; makes rows of pictures; NULL: tensorrt_llm sees them itself */
    bool accumulate_tokens;
    nrd_tb_inflight inflight;
    nrd_bls_steps steps;
} bls_model;

/* Always takes the request: an error becomes its answer. */
void nrd_bls_flow_start(bls_model *m, TRITONBACKEND_ModelInstance *instance,
                        TRITONBACKEND_Request *request);

#endif
