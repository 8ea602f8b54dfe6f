/* SPDX-License-Identifier: Apache-2.0
 * One request of tensorrt_llm_bls. States: preprocessing -> (multimodal_encoders ->) tensorrt_llm -> postprocessing, one
 * answer at a time (post.c) -> ended, with an error or the final flag. The sections below stand in the
 * reverse order, since each step starts the next. Everything runs in callbacks of the core; f->mu
 * guards what they share. */
#include "backends/bls/flow_internal.h"

#include "base/clock.h"

#include <string.h>

static const char *const picture_inputs[] = {"image_bytes_input", "image_url_input", "image_input", "video_bytes_input"};

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* The client has gone. */
static void cancel(nrd_tb_flight *flight)
{
    bls_flow *f = (bls_flow *)flight;
    pthread_mutex_lock(&f->mu);
    if (f->llm_request) {
        nrd_tb_log_error(TRITONSERVER_InferenceRequestCancel(f->llm_request), "cancel");
    }
    pthread_mutex_unlock(&f->mu);
}

/* ---- step 2: tensorrt_llm ---- */

/* accumulate_tokens: this answer shows everything generated so far. */
static TRITONSERVER_Error *accumulate(bls_flow *f, answer *a)
{
    nrd_tb_tensor ids;
    if (!nrd_tb_inner_find(a->response, "output_ids", &ids) || ids.n_dims != 3) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s gave no output_ids", f->model->llm_name);
    }
    if (ids.shape[0] != 1 || ids.shape[1] != 1) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "accumulate_tokens needs a batch of 1 and a beam width of 1");
    }
    int32_t n = (int32_t)(ids.bytes / sizeof *f->buffer);
    const size_t bytes = (size_t)(f->n_buffer + n) * sizeof *f->buffer;
    int32_t *grown = realloc(f->buffer, bytes > 0 ? bytes : 1);
    if (!grown) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    f->buffer = grown;
    if (n) {
        memcpy(f->buffer + f->n_buffer, ids.data, ids.bytes);
    }
    f->n_buffer += n;
    a->ids = malloc(bytes > 0 ? bytes : 1);
    if (!a->ids) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    if (f->n_buffer) {
        memcpy(a->ids, f->buffer, (size_t)f->n_buffer * sizeof *a->ids);
    }
    a->length = f->n_buffer;
    a->shape[0] = a->shape[1] = a->length_shape[0] = a->length_shape[1] = 1;
    a->shape[2] = f->n_buffer;
    return NULL;
}

static void on_llm(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    bls_flow *f = user;
    bool is_last = flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);
    uint32_t n_outputs = 0;

    nrd_bls_flow_ref(f);
    if (response && !err) {
        err = TRITONSERVER_InferenceResponseOutputCount(response, &n_outputs);
    }
    answer *a = NULL;
    if (response && !err && n_outputs > 0) {
        a = calloc(1, sizeof *a);
        err = a ? NULL : nrd_tb_error(nrd_error_no_memory());
    }
    if (a) {
        a->response = response;
        response = NULL;
        if (f->model->accumulate_tokens && f->model->config.decoupled && f->is_streaming) {
            err = accumulate(f, a);
        }
    }
    if (response) {
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(response), "response");
    }
    pthread_mutex_lock(&f->mu);
    f->llm_done |= is_last;
    if (a && !err) {
        if (f->tail) {
            f->tail->next = a;
        } else {
            f->head = a;
        }
        f->tail = a;
        a = NULL;
    }
    pthread_mutex_unlock(&f->mu);
    if (a) {
        nrd_bls_answer_free(a);
    }
    if (err) {
        nrd_bls_flow_end(f, err);
    }
    nrd_bls_post_next(f);
    nrd_bls_flow_unref(f);
}

static void start_llm(bls_flow *f)
{
    TRITONSERVER_InferenceRequest *r = NULL;
    TRITONSERVER_Error *err = nrd_bls_request_new(f, f->model->llm_name, on_llm, nrd_bls_request_released, f, &r);

    if (!err) {
        err = nrd_bls_add_llm_inputs(f, r, NRD_BLS_LLM, NULL, 0);
    }
    if (!err) {
        err = nrd_bls_add_llm_outputs(f, r);
    }
    nrd_bls_request_send(f, r, err);
}

static void start_second(bls_flow *f)
{
    if (f->drafts) {
        nrd_bls_drafts_start(f);
    } else {
        start_llm(f);
    }
}

/* ---- between them: multimodal_encoders, where there are pictures ---- */

static bool has_pictures(const bls_flow *f)
{
    for (size_t i = 0; i < COUNT(picture_inputs); i++) {
        if (nrd_tb_find(&f->inputs, picture_inputs[i])) {
            return true;
        }
    }
    return false;
}

static void on_encoders(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    bls_flow *f = user;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);

    (void)flags;
    if (!response) { /* a flag alone: it sends exactly one answer */
        return;
    }
    f->seen = response;
    if (err) {
        nrd_bls_flow_end(f, err);
    } else {
        start_second(f);
    }
}

static void start_encoders(bls_flow *f)
{
    const nrd_tb_config *step = f->steps[NRD_BLS_ENCODERS];
    const nrd_tb_tensor *scaled = nrd_tb_find(&f->inputs, "image_input");
    TRITONSERVER_InferenceRequest *r = NULL;
    nrd_tb_tensor t;
    TRITONSERVER_Error *err = nrd_bls_inner_new(f, f->model->encoders_name, on_encoders, nrd_bls_request_released, f, &r);

    if (!err && scaled) {
        err = nrd_bls_add_input(r, step, "IMAGE", scaled);
    }
    if (!err && nrd_tb_inner_find(f->pre, "IMAGES", &t)) {
        err = nrd_bls_add_input(r, step, "image_files", &t);
    }
    if (!err && nrd_tb_inner_find(f->pre, "IS_VIDEO_INPUT", &t)) {
        err = nrd_bls_add_input(r, step, "is_video_input", &t);
    }
    err = nrd_bls_inner_send(f, r, err);
    if (err) {
        nrd_bls_flow_end(f, err);
    }
}

/* ---- step 1: preprocessing ---- */

static void on_pre(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    bls_flow *f = user;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);

    (void)flags;
    if (!response) { /* a flag alone: preprocessing sends exactly one answer */
        return;
    }
    f->pre = response;
    if (err) {
        nrd_bls_flow_end(f, err);
    } else if (f->steps[NRD_BLS_ENCODERS]) {
        start_encoders(f);
    } else {
        start_second(f);
    }
}

static TRITONSERVER_Error *validate(bls_flow *f)
{
    const nrd_tb_tensor *text = nrd_tb_find(&f->inputs, "text_input");
    const nrd_tb_tensor *max_tokens = nrd_tb_find(&f->inputs, "max_tokens");
    const nrd_tb_tensor *stream = nrd_tb_find(&f->inputs, "stream");
    int64_t v = 0;
    size_t offset = 0, n = 0;
    const char *s = NULL;
    bool bad = false;

    if (!text || !nrd_tb_next_string(text, &offset, &s, &n, &bad) || n == 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "text_input is required");
    }
    if (!max_tokens) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "max_tokens is required");
    }
    for (int64_t i = 0; i < max_tokens->n_elements; i++) {
        if (!nrd_tb_get_i64(max_tokens, i, &v) || v <= 0) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                                 "max_tokens must be a single value > 0");
        }
    }
    v = 0;
    f->is_streaming = stream && nrd_tb_get_i64(stream, 0, &v) && v != 0;
    if (f->is_streaming && !f->model->config.decoupled) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "Streaming is only supported in decoupled mode.");
    }
    return nrd_bls_drafts_new(f);
}

static TRITONSERVER_Error *start_pre(bls_flow *f)
{
    const nrd_tb_config *step = f->steps[NRD_BLS_PRE];
    TRITONSERVER_InferenceRequest *r = NULL;
    TRITONSERVER_Error *err = nrd_bls_inner_new(f, "preprocessing", on_pre, nrd_bls_request_released, f, &r);
    for (size_t i = 0; !err && nrd_bls_to_pre[i].from; i++) {
        const nrd_tb_tensor *in = nrd_tb_find(&f->inputs, nrd_bls_to_pre[i].from);
        if (in && nrd_tb_config_has_input(step, nrd_bls_to_pre[i].to)) {
            err = nrd_bls_add_input(r, step, nrd_bls_to_pre[i].to, in);
        }
    }
    return nrd_bls_inner_send(f, r, err);
}

void nrd_bls_flow_start(bls_model *m, TRITONBACKEND_ModelInstance *instance,
                        TRITONBACKEND_Request *request)
{
    bls_flow *f = calloc(1, sizeof *f);
    TRITONSERVER_Error *err = f ? TRITONBACKEND_ResponseFactoryNew(&f->factory, request) : nrd_tb_error(nrd_error_no_memory());

    if (err) { /* nothing can be sent but through the request itself */
        nrd_tb_refuse(request, err);
        free(f);
        return;
    }
    pthread_mutex_init(&f->mu, NULL);
    f->refs = 1;
    f->model = m;
    f->instance = instance;
    f->request = request;
    f->start_ns = nrd_now_ns();
    f->flight = (nrd_tb_flight){.factory = f->factory, .cancel = cancel};
    nrd_tb_inflight_add(&m->inflight, &f->flight);

    err = nrd_tb_inputs_read(&f->inputs, request);
    if (!err) {
        err = validate(f);
    }
    for (int i = 0; !err && i <= (f->drafts ? NRD_BLS_DRAFT : NRD_BLS_POST); i++) {
        err = nrd_bls_steps_get(&m->steps, (nrd_bls_step)i, &f->steps[i]);
    }
    if (!err && m->encoders_name && has_pictures(f)) {
        err = nrd_bls_steps_get(&m->steps, NRD_BLS_ENCODERS, &f->steps[NRD_BLS_ENCODERS]);
    }
    if (!err) {
        err = start_pre(f);
    }
    if (err) {
        nrd_bls_flow_end(f, err);
    }
}
