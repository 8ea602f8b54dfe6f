/* SPDX-License-Identifier: Apache-2.0
 * How long a request lives, and inner requests: what every step does with them. */
#include "backends/bls/flow_internal.h"

#include <stdlib.h>

/* ---- life ---- */

void nrd_bls_flow_unref(bls_flow *f)
{
    pthread_mutex_lock(&f->mu);
    int refs = --f->refs;
    pthread_mutex_unlock(&f->mu);
    if (refs) {
        return;
    }
    TRITONSERVER_InferenceResponse *kept[] = {f->pre, f->seen};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        nrd_tb_log_error(kept[i] ? TRITONSERVER_InferenceResponseDelete(kept[i]) : NULL, "response");
    }
    nrd_tb_inner_over(f->instance, f->request, f->factory, !f->has_failed, f->start_ns);
    nrd_tb_inputs_fini(&f->inputs);
    pthread_mutex_destroy(&f->mu);
    nrd_bls_drafts_free(f->drafts);
    free(f->buffer);
    free(f);
}

void nrd_bls_flow_ref(bls_flow *f)
{
    pthread_mutex_lock(&f->mu);
    f->refs++;
    pthread_mutex_unlock(&f->mu);
}

/* The final flag goes alone where answers have already been sent. Later callbacks find is_over and only clean up. */
void nrd_bls_flow_end(bls_flow *f, TRITONSERVER_Error *err)
{
    pthread_mutex_lock(&f->mu);
    bool first = !f->is_over;
    f->is_over = true;
    f->has_failed |= err != NULL;
    TRITONSERVER_InferenceRequest *llm = err ? f->llm_request : NULL;
    if (llm && first) { /* the rest is not needed; this only sets a flag, so the lock may be held */
        nrd_tb_log_error(TRITONSERVER_InferenceRequestCancel(llm), "cancel");
    }
    pthread_mutex_unlock(&f->mu);
    bool decoupled = f->model->config.decoupled;
    if (first && (err || (!decoupled && !f->has_answered))) { /* tensorrt_llm may answer emptily */
        nrd_tb_send_last(f->factory, err);
        err = NULL;
    } else if (first && decoupled) {
        nrd_tb_log_error(TRITONBACKEND_ResponseFactorySendFlags(f->factory,
                                                                TRITONSERVER_RESPONSE_COMPLETE_FINAL),
                         "cannot end a stream");
    }
    TRITONSERVER_ErrorDelete(err);
    if (first) {
        nrd_tb_inflight_remove(&f->model->inflight, &f->flight);
        nrd_bls_flow_unref(f);
    }
}

/* ---- inner requests ---- */

void nrd_bls_request_over(bls_flow *f, TRITONSERVER_InferenceRequest *r)
{
    pthread_mutex_lock(&f->mu);
    if (f->llm_request == r) {
        f->llm_request = NULL;
    }
    pthread_mutex_unlock(&f->mu);
    nrd_tb_log_error(TRITONSERVER_InferenceRequestDelete(r), "request");
    nrd_bls_flow_unref(f);
}

void nrd_bls_request_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *user)
{
    if (flags & TRITONSERVER_REQUEST_RELEASE_ALL) {
        nrd_bls_request_over(user, request);
    }
}

TRITONSERVER_Error *nrd_bls_add_input(TRITONSERVER_InferenceRequest *r, const nrd_tb_config *step,
                                     const char *name, const nrd_tb_tensor *t)
{
    int64_t shape[NRD_TB_MAX_DIMS];
    uint32_t n_dims = nrd_bls_wire_shape(step, name, t->shape, t->n_dims, shape);

    NRD_TB_TRY(TRITONSERVER_InferenceRequestAddInput(r, name, t->dtype, shape, n_dims));
    return TRITONSERVER_InferenceRequestAppendInputData(r, name, t->data, t->bytes,
                                                        TRITONSERVER_MEMORY_CPU, 0);
}

TRITONSERVER_Error *nrd_bls_inner_new(bls_flow *f, const char *model,
                                      TRITONSERVER_InferenceResponseCompleteFn_t on_response,
                                       TRITONSERVER_InferenceRequestReleaseFn_t on_release, void *release_user,
                                       TRITONSERVER_InferenceRequest **out)
{
    NRD_TB_TRY(nrd_tb_inner_request(out, f->model->config.server, model, f->request));
    NRD_TB_TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(*out, on_release, release_user));
    return TRITONSERVER_InferenceRequestSetResponseCallback(*out, f->model->allocator, NULL, on_response, f);
}

TRITONSERVER_Error *nrd_bls_inner_send(bls_flow *f, TRITONSERVER_InferenceRequest *r, TRITONSERVER_Error *err)
{
    if (!err) {
        nrd_bls_flow_ref(f);
        err = TRITONSERVER_ServerInferAsync(f->model->config.server, r, NULL);
        if (err) {
            nrd_bls_flow_unref(f);
        }
    }
    if (err && r) {
        pthread_mutex_lock(&f->mu);
        if (f->llm_request == r) {
            f->llm_request = NULL;
        }
        pthread_mutex_unlock(&f->mu);
        nrd_tb_log_error(TRITONSERVER_InferenceRequestDelete(r), "request");
    }
    return err;
}
