/* SPDX-License-Identifier: Apache-2.0
 * Answers of tensorrt_llm on their way through postprocessing, one at a time, and to the client. */
#include "backends/bls/flow_internal.h"

#include "nereid/server.h"

#include <stdlib.h>
#include <string.h>

/* What repositories up to v0.13 pass through postprocessing; older ones cannot do without. */
static const nrd_bls_map_row llm_to_post[] = {
    {"cum_log_probs", "CUM_LOG_PROBS"},         {"output_log_probs", "OUTPUT_LOG_PROBS"},
    {"context_logits", "CONTEXT_LOGITS"},       {"generation_logits", "GENERATION_LOGITS"},
    {"batch_index", "BATCH_INDEX"},
};

static const char *const llm_to_client[] = {
    "cum_log_probs",         "output_log_probs",          "context_logits",
    "generation_logits",     "batch_index",               "sequence_index",
    "kv_cache_reused_blocks", "kv_cache_alloc_new_blocks", "kv_cache_alloc_total_blocks",
    "arrival_time_ns",       "first_scheduled_time_ns",   "first_token_time_ns",
    "last_token_time_ns",    "acceptance_rate",           "total_accepted_draft_tokens",
    "total_draft_tokens",    "num_input_tokens",          "num_output_tokens",
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

TRITONSERVER_Error *nrd_bls_add_llm_outputs(bls_flow *f, TRITONSERVER_InferenceRequest *r)
{
    static const char *const always[] = {"output_ids", "sequence_length"};

    for (size_t i = 0; i < COUNT(always); i++) {
        NRD_TB_TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(r, always[i]));
    }
    for (size_t i = 0; i < COUNT(llm_to_client); i++) {
        const char *post = nrd_bls_map_name(llm_to_post, COUNT(llm_to_post), llm_to_client[i]);
        bool is_passed = post && nrd_tb_config_has_input(f->steps[NRD_BLS_POST], post);
        if (is_passed || nrd_tb_wants(f->request, llm_to_client[i])) {
            NRD_TB_TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(r, llm_to_client[i]));
        }
    }
    return nrd_tb_config_has_output(f->steps[NRD_BLS_LLM], "stream_state")
               ? TRITONSERVER_InferenceRequestAddRequestedOutput(r, "stream_state")
               : NULL;
}

void nrd_bls_answer_free(answer *a)
{
    if (a->response) {
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(a->response), "response");
    }
    free(a->ids);
    free(a);
}

static TRITONSERVER_Error *forward(bls_flow *f, TRITONBACKEND_Response *t, const nrd_tb_tensor *from,
                                   const char *name)
{
    void *out;
    if (!nrd_tb_wants(f->request, name)) {
        return NULL;
    }
    NRD_TB_TRY(nrd_tb_output(t, name, from->dtype, from->shape, from->n_dims, from->bytes,
                             &out));
    if (from->bytes) {
        memcpy(out, from->data, from->bytes);
    }
    return NULL;
}

static bool is_timed_out(TRITONSERVER_InferenceResponse *r)
{
    uint32_t n = 0;
    bool yes = false;
    TRITONSERVER_Error *err = TRITONSERVER_InferenceResponseParameterCount(r, &n);
    for (uint32_t i = 0; !err && i < n && !yes; i++) {
        const char *name;
        TRITONSERVER_ParameterType type;
        const void *value;
        err = TRITONSERVER_InferenceResponseParameter(r, i, &name, &type, &value);
        yes = !err && type == TRITONSERVER_PARAMETER_BOOL && !strcmp(name, NRD_SERVER_TIMED_OUT) &&
              *(const bool *)value;
    }
    TRITONSERVER_ErrorDelete(err);
    return yes;
}

void nrd_bls_flow_answer(bls_flow *f, answer *a)
{
    pthread_mutex_lock(&f->mu);
    f->head = f->tail = a;
    f->llm_done = true;
    pthread_mutex_unlock(&f->mu);
    nrd_bls_post_next(f);
}

/* An output of the answer; with drafts some are of all steps together. */
static bool answer_output(const bls_flow *f, const answer *a, const char *name, nrd_tb_tensor *out)
{
    return (f->drafts && nrd_bls_drafts_output(f->drafts, name, out)) ||
           nrd_tb_inner_find(a->response, name, out);
}

static void send_text(bls_flow *f, const answer *a, TRITONSERVER_InferenceResponse *post)
{
    TRITONBACKEND_Response *t = NULL;
    nrd_tb_tensor text, extra;
    TRITONSERVER_Error *err = TRITONBACKEND_ResponseNewFromFactory(&t, f->factory);

    if (!err && !nrd_tb_inner_find(post, "OUTPUT", &text)) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "postprocessing gave no OUTPUT");
    }
    if (!err) {
        err = forward(f, t, &text, "text_output");
    }
    for (size_t i = 0; !err && i < COUNT(llm_to_client); i++) {
        if (answer_output(f, a, llm_to_client[i], &extra)) {
            err = forward(f, t, &extra, llm_to_client[i]);
        }
    }
    if (!err && is_timed_out(a->response)) {
        err = TRITONBACKEND_ResponseSetBoolParameter(t, NRD_SERVER_TIMED_OUT, true);
    }
    if (err) {
        if (t) {
            nrd_tb_log_error(TRITONBACKEND_ResponseDelete(t), "response");
        }
        nrd_bls_flow_end(f, err);
        return;
    }
    uint32_t flags = f->model->config.decoupled ? 0 : TRITONSERVER_RESPONSE_COMPLETE_FINAL;
    f->has_answered = true;
    nrd_tb_log_error(TRITONBACKEND_ResponseSend(t, flags, NULL), "cannot send a response");
}

static void on_post(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    bls_flow *f = user;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);

    if (response) {
        pthread_mutex_lock(&f->mu);
        answer *a = f->head;
        bool over = f->is_over;
        pthread_mutex_unlock(&f->mu);
        if (!err && !over && a) {
            send_text(f, a, response);
        }
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(response), "response");
    }
    if (err) {
        nrd_bls_flow_end(f, err);
    }
    if (!(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)) {
        return;
    }
    pthread_mutex_lock(&f->mu);
    answer *done = f->head;
    f->head = done->next;
    f->tail = f->head ? f->tail : NULL;
    f->post_runs = false;
    pthread_mutex_unlock(&f->mu);
    nrd_bls_answer_free(done);
    nrd_bls_post_next(f);
}

static TRITONSERVER_Error *start_post(bls_flow *f, const answer *a)
{
    TRITONSERVER_InferenceRequest *r = NULL;
    const nrd_tb_config *step = f->steps[NRD_BLS_POST];
    nrd_tb_tensor ids, lengths, t;
    TRITONSERVER_Error *err = nrd_bls_inner_new(f, "postprocessing", on_post, nrd_bls_request_released, f, &r);

    if (!err && (!nrd_tb_inner_find(a->response, "output_ids", &ids) ||
                 !nrd_tb_inner_find(a->response, "sequence_length", &lengths))) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s gave no output_ids or sequence_length",
                            f->model->llm_name);
    }
    if (!err && a->ids) {
        ids.shape = a->shape;
        ids.data = (const void *)a->ids;
        ids.bytes = (size_t)a->length * sizeof *a->ids;
        lengths.shape = a->length_shape;
        lengths.data = (const void *)&a->length;
    }
    if (!err) {
        err = nrd_bls_add_input(r, step, "TOKENS_BATCH", &ids);
    }
    if (!err) {
        err = nrd_bls_add_input(r, step, "SEQUENCE_LENGTH", &lengths);
    }
    if (!err && !a->ids && nrd_tb_config_has_input(step, "STREAM_STATE") &&
        nrd_tb_inner_find(a->response, "stream_state", &t)) {
        err = nrd_bls_add_input(r, step, "STREAM_STATE", &t);
    }
    for (size_t i = 0; !err && i < COUNT(llm_to_post); i++) {
        if (nrd_tb_config_has_input(step, llm_to_post[i].to) &&
            answer_output(f, a, llm_to_post[i].from, &t)) {
            err = nrd_bls_add_input(r, step, llm_to_post[i].to, &t);
        }
    }
    return nrd_bls_inner_send(f, r, err);
}

void nrd_bls_post_next(bls_flow *f)
{
    nrd_bls_flow_ref(f); /* nrd_bls_flow_end may drop the last one */
    for (;;) {
        pthread_mutex_lock(&f->mu);
        answer *a = f->post_runs ? NULL : f->head;
        bool ended = !f->post_runs && !f->head && f->llm_done;
        bool over = f->is_over;
        f->post_runs |= a && !over;
        if (a && over) { /* an error or a dead client: drop what waits */
            f->head = a->next;
            f->tail = f->head ? f->tail : NULL;
        }
        pthread_mutex_unlock(&f->mu);
        if (a && over) {
            nrd_bls_answer_free(a);
            continue;
        }
        if (a) {
            TRITONSERVER_Error *err = start_post(f, a);
            if (!err) {
                break;
            }
            nrd_bls_flow_end(f, err);
            pthread_mutex_lock(&f->mu);
            f->post_runs = false;
            pthread_mutex_unlock(&f->mu);
            continue;
        }
        if (ended) {
            nrd_bls_flow_end(f, NULL);
        }
        break;
    }
    nrd_bls_flow_unref(f);
}
