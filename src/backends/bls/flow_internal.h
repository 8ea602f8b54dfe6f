/* SPDX-License-Identifier: Apache-2.0
 * backends/bls/flow_internal.h - a request on its way, for the files that move it.
 *
 * Purpose   flow.c goes from model to model; drafts.c stands in the place of its second step where a draft
 *           model proposes tokens: it asks the two models in turns and leaves one answer. Each uses what stands before it:
 *           life.c, requests.c, post.c, drafts.c, flow.c.
 */
#ifndef NRD_BACKENDS_BLS_FLOW_INTERNAL_H
#define NRD_BACKENDS_BLS_FLOW_INTERNAL_H

#include "backends/bls/drafts.h"
#include "backends/bls/flow.h"

typedef struct answer { /* of tensorrt_llm, waiting for its text */
    struct answer *next;
    TRITONSERVER_InferenceResponse *response;
    int32_t *ids;        /* owns; accumulate_tokens and drafts: in place of output_ids */
    int64_t shape[3], length_shape[2];
    int32_t length;
} answer;

struct bls_flow {
    nrd_tb_flight flight; /* first: the watch hands it back */
    bls_model *model;
    TRITONBACKEND_ModelInstance *instance;
    TRITONBACKEND_Request *request;
    TRITONBACKEND_ResponseFactory *factory;
    nrd_tb_inputs inputs;
    uint64_t start_ns;

    pthread_mutex_t mu;
    int refs;            /* the flow itself + every inner request; guarded by mu, as all below */
    TRITONSERVER_InferenceRequest *llm_request; /* while in flight: to cancel */
    TRITONSERVER_InferenceResponse *pre, *seen; /* of preprocessing and encoders: kept until tensorrt_llm has released its inputs */
    answer *head, *tail;
    bool post_runs, llm_done, is_over, has_failed, has_answered, is_streaming;
    int32_t *buffer;     /* accumulate_tokens */
    int32_t n_buffer;
    const nrd_tb_config *steps[NRD_BLS_N_STEPS]; /* borrows from model->steps; of the draft model where it is used */
    bls_drafts *drafts; /* owns; NULL: no draft model is asked */
};

/* ---- life.c ---- */

void nrd_bls_flow_ref(bls_flow *f);
void nrd_bls_flow_unref(bls_flow *f);
/* Ends the flow once, with an error (which it takes) or the final flag. */
void nrd_bls_flow_end(bls_flow *f, TRITONSERVER_Error *err);
/* A request to a step: its id is the client's. Deleted by nrd_bls_inner_send on error. */
TRITONSERVER_Error *nrd_bls_inner_new(bls_flow *f, const char *model,
                                      TRITONSERVER_InferenceResponseCompleteFn_t on_response,
                                      TRITONSERVER_InferenceRequestReleaseFn_t on_release, void *release_user,
                                      TRITONSERVER_InferenceRequest **out);
/* Sends it; where `err` is one, which it gives back, or sending fails, deletes it. */
TRITONSERVER_Error *nrd_bls_inner_send(bls_flow *f, TRITONSERVER_InferenceRequest *r, TRITONSERVER_Error *err);
/* What every on_release does at its end. */
void nrd_bls_request_over(bls_flow *f, TRITONSERVER_InferenceRequest *r);
/* on_release that does nothing else; user: the flow. */
void nrd_bls_request_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *user);
/* In the shape that the step declares. Borrows t->data until the request is released. */
TRITONSERVER_Error *nrd_bls_add_input(TRITONSERVER_InferenceRequest *r, const nrd_tb_config *step,
                                      const char *name, const nrd_tb_tensor *t);

/* ---- requests.c ---- */

typedef struct nrd_bls_map_row {
    const char *from, *to;
} nrd_bls_map_row;
extern const nrd_bls_map_row nrd_bls_to_pre[]; /* inputs of preprocessing; ends with NULL */
/* NULL: no row, of n or up to the one that ends the map. */
const char *nrd_bls_map_name(const nrd_bls_map_row *map, size_t n, const char *from);
/* A request to an inner model: its id, timeout and salts are the client's. Deleted by the caller on error. */
TRITONSERVER_Error *nrd_bls_request_new(bls_flow *f, const char *model,
                                        TRITONSERVER_InferenceResponseCompleteFn_t on_response,
                                        TRITONSERVER_InferenceRequestReleaseFn_t on_release, void *release_user,
                                        TRITONSERVER_InferenceRequest **out);
/* Sends a request that can be cancelled, or deletes it and ends the flow with `err`, which it takes. False: it
 * was not sent, and on_release is not called. */
bool nrd_bls_request_send(bls_flow *f, TRITONSERVER_InferenceRequest *r, TRITONSERVER_Error *err);
/* What preprocessing and the client have for that step, without the inputs named in skip (n). */
TRITONSERVER_Error *nrd_bls_add_llm_inputs(bls_flow *f, TRITONSERVER_InferenceRequest *r, nrd_bls_step step,
                                           const char *const *skip, size_t n);

/* ---- post.c ---- */

/* The outputs that the client or postprocessing asks for. */
TRITONSERVER_Error *nrd_bls_add_llm_outputs(bls_flow *f, TRITONSERVER_InferenceRequest *r);
void nrd_bls_answer_free(answer *a);
/* Starts the next waiting answer; when none is left and tensorrt_llm is done, ends the flow. */
void nrd_bls_post_next(bls_flow *f);
/* The only answer of tensorrt_llm: goes through postprocessing, then the flow ends. Takes a. */
void nrd_bls_flow_answer(bls_flow *f, answer *a);

#endif
