/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/disaggregated/flow.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

#define PARAMS "context_phase_params"

typedef struct flow {
    nrd_tb_flight flight; /* first: the watch hands it back */
    nrd_disagg_model *model;
    TRITONBACKEND_ModelInstance *instance;
    TRITONBACKEND_Request *request;
    TRITONBACKEND_ResponseFactory *factory;
    nrd_tb_inputs inputs;
    uint64_t start_ns;

    pthread_mutex_t mu;
    int refs; /* the flow itself + two of every inner request: its release, its last answer; guarded by mu, as all below */
    TRITONSERVER_InferenceRequest *inner;    /* while in flight: to cancel */
    TRITONSERVER_InferenceResponse *context; /* kept until the generation model has released its inputs */
    bool is_gone, is_over, has_failed, has_answered;
} flow;

/* ---- life ---- */

static void unref(flow *f)
{
    pthread_mutex_lock(&f->mu);
    const int refs = --f->refs;
    pthread_mutex_unlock(&f->mu);
    if (refs) {
        return;
    }
    nrd_tb_log_error(f->context ? TRITONSERVER_InferenceResponseDelete(f->context) : NULL, "response");
    nrd_tb_inner_over(f->instance, f->request, f->factory, !f->has_failed, f->start_ns);
    nrd_tb_inputs_fini(&f->inputs);
    pthread_mutex_destroy(&f->mu);
    free(f);
}

/* Ends the flow once: with an error (which it takes), or the final flag where answers have been sent. */
static void end(flow *f, TRITONSERVER_Error *err)
{
    const bool decoupled = f->model->config.decoupled;

    pthread_mutex_lock(&f->mu);
    const bool first = !f->is_over;
    f->is_over = true;
    f->has_failed |= err != NULL;
    if (first && err && f->inner) { /* only sets a flag, so the lock may be held */
        nrd_tb_log_error(TRITONSERVER_InferenceRequestCancel(f->inner), "cancel");
    }
    pthread_mutex_unlock(&f->mu);
    if (!first) {
        TRITONSERVER_ErrorDelete(err);
        return;
    }
    if (err || (!decoupled && !f->has_answered)) {
        nrd_tb_send_last(f->factory, err);
    } else if (decoupled) {
        nrd_tb_log_error(TRITONBACKEND_ResponseFactorySendFlags(f->factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL),
                         "cannot end a stream");
    }
    nrd_tb_inflight_remove(&f->model->inflight, &f->flight);
    unref(f);
}

/* The client has gone. */
static void cancel(nrd_tb_flight *flight)
{
    flow *f = (flow *)flight;

    pthread_mutex_lock(&f->mu);
    f->is_gone = true;
    if (f->inner) {
        nrd_tb_log_error(TRITONSERVER_InferenceRequestCancel(f->inner), "cancel");
    }
    pthread_mutex_unlock(&f->mu);
}

/* ---- inner requests ---- */

static void on_release(TRITONSERVER_InferenceRequest *r, const uint32_t flags, void *user)
{
    flow *f = user;

    if (flags & TRITONSERVER_REQUEST_RELEASE_ALL) {
        pthread_mutex_lock(&f->mu);
        f->inner = f->inner == r ? NULL : f->inner;
        pthread_mutex_unlock(&f->mu);
        nrd_tb_log_error(TRITONSERVER_InferenceRequestDelete(r), "request");
        unref(f);
    }
}

/* What the client says besides the inputs: salts, biases and the like. */
static TRITONSERVER_Error *pass_parameters(flow *f, TRITONSERVER_InferenceRequest *r)
{
    uint32_t n = 0;

    NRD_TB_TRY(TRITONBACKEND_RequestParameterCount(f->request, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *key;
        TRITONSERVER_ParameterType type;
        const void *v;
        NRD_TB_TRY(TRITONBACKEND_RequestParameter(f->request, i, &key, &type, &v));
        if (!strcmp(key, "request_type")) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "request_type belongs to the models '%s' and '%s': '%s' sets it",
                                 f->model->context, f->model->generation, f->model->config.name);
        }
        switch (type) {
        case TRITONSERVER_PARAMETER_STRING:
            NRD_TB_TRY(TRITONSERVER_InferenceRequestSetStringParameter(r, key, v));
            break;
        case TRITONSERVER_PARAMETER_INT:
            NRD_TB_TRY(TRITONSERVER_InferenceRequestSetIntParameter(r, key, *(const int64_t *)v));
            break;
        case TRITONSERVER_PARAMETER_BOOL:
            NRD_TB_TRY(TRITONSERVER_InferenceRequestSetBoolParameter(r, key, *(const bool *)v));
            break;
        case TRITONSERVER_PARAMETER_DOUBLE:
            NRD_TB_TRY(TRITONSERVER_InferenceRequestSetDoubleParameter(r, key, *(const double *)v));
            break;
        default:
            break; /* bytes: no model of ours has any */
        }
    }
    return NULL;
}

static TRITONSERVER_Error *add_input(TRITONSERVER_InferenceRequest *r, const nrd_tb_tensor *t)
{
    NRD_TB_TRY(TRITONSERVER_InferenceRequestAddInput(r, t->name, t->dtype, t->shape, t->n_dims));
    return TRITONSERVER_InferenceRequestAppendInputData(r, t->name, t->data, t->bytes, TRITONSERVER_MEMORY_CPU, 0);
}

/* The client's request to one of both models, without its outputs. */
static TRITONSERVER_Error *new_request(flow *f, const char *model, const char *kind, TRITONSERVER_InferenceResponseCompleteFn_t on_response,
                                       TRITONSERVER_InferenceRequest **out)
{
    NRD_TB_TRY(nrd_tb_inner_request(out, f->model->config.server, model, f->request));
    NRD_TB_TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(*out, on_release, f));
    NRD_TB_TRY(TRITONSERVER_InferenceRequestSetResponseCallback(*out, f->model->allocator, NULL, on_response, f));
    NRD_TB_TRY(pass_parameters(f, *out));
    NRD_TB_TRY(TRITONSERVER_InferenceRequestSetStringParameter(*out, "request_type", kind));
    for (uint32_t i = 0; i < f->inputs.n; i++) {
        NRD_TB_TRY(add_input(*out, &f->inputs.t[i]));
    }
    return nrd_tb_inner_timeout(*out, f->request, f->start_ns);
}

/* Sends the request, or deletes it and ends the flow with err. Takes both. */
static void send(flow *f, TRITONSERVER_InferenceRequest *r, TRITONSERVER_Error *err)
{
    if (!err) {
        pthread_mutex_lock(&f->mu);
        f->inner = r;
        f->refs += 2;
        pthread_mutex_unlock(&f->mu);
        err = TRITONSERVER_ServerInferAsync(f->model->config.server, r, NULL);
        if (!err) {
            return;
        }
        pthread_mutex_lock(&f->mu);
        f->inner = NULL;
        f->refs -= 2; /* not the last: the flow is not over */
        pthread_mutex_unlock(&f->mu);
    }
    nrd_tb_log_error(r ? TRITONSERVER_InferenceRequestDelete(r) : NULL, "request");
    end(f, err);
}

/* ---- second step: the generation model ---- */

/* All that it sends: it was asked for what the client wants. */
static TRITONSERVER_Error *forward(TRITONSERVER_InferenceResponse *from, TRITONBACKEND_Response *to)
{
    uint32_t n = 0;
    void *buffer;

    NRD_TB_TRY(TRITONSERVER_InferenceResponseOutputCount(from, &n));
    for (uint32_t i = 0; i < n; i++) {
        nrd_tb_tensor t;
        NRD_TB_TRY(nrd_tb_inner_output(from, i, &t));
        NRD_TB_TRY(nrd_tb_output(to, t.name, t.dtype, t.shape, t.n_dims, t.bytes, &buffer));
        if (t.bytes > 0) {
            memcpy(buffer, t.data, t.bytes);
        }
    }
    NRD_TB_TRY(TRITONSERVER_InferenceResponseParameterCount(from, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *name;
        TRITONSERVER_ParameterType type;
        const void *v;
        NRD_TB_TRY(TRITONSERVER_InferenceResponseParameter(from, i, &name, &type, &v));
        NRD_TB_TRY(type == TRITONSERVER_PARAMETER_BOOL     ? TRITONBACKEND_ResponseSetBoolParameter(to, name, *(const bool *)v)
                   : type == TRITONSERVER_PARAMETER_INT    ? TRITONBACKEND_ResponseSetIntParameter(to, name, *(const int64_t *)v)
                   : type == TRITONSERVER_PARAMETER_STRING ? TRITONBACKEND_ResponseSetStringParameter(to, name, v)
                                                           : NULL);
    }
    return NULL;
}

static TRITONSERVER_Error *answer(flow *f, TRITONSERVER_InferenceResponse *from)
{
    TRITONBACKEND_Response *to = NULL;

    NRD_TB_TRY(TRITONBACKEND_ResponseNewFromFactory(&to, f->factory));
    TRITONSERVER_Error *err = forward(from, to);
    if (err) {
        nrd_tb_log_error(TRITONBACKEND_ResponseDelete(to), "response");
        return err;
    }
    f->has_answered = true;
    return TRITONBACKEND_ResponseSend(to, f->model->config.decoupled ? 0 : TRITONSERVER_RESPONSE_COMPLETE_FINAL, NULL);
}

static void on_generation(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    flow *f = user;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);

    pthread_mutex_lock(&f->mu);
    const bool over = f->is_over;
    pthread_mutex_unlock(&f->mu);
    if (response && !err && !over) {
        err = answer(f, response);
    }
    nrd_tb_log_error(response ? TRITONSERVER_InferenceResponseDelete(response) : NULL, "response");
    if (err || (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)) {
        end(f, err);
    }
    if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) {
        unref(f);
    }
}

static TRITONSERVER_Error *add_outputs(flow *f, TRITONSERVER_InferenceRequest *r)
{
    uint32_t n = 0;

    NRD_TB_TRY(TRITONBACKEND_RequestOutputCount(f->request, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *name;
        NRD_TB_TRY(TRITONBACKEND_RequestOutputName(f->request, i, &name));
        NRD_TB_TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(r, name));
    }
    return NULL;
}

/* A client that has gone meanwhile has its request sent too, and then cancelled: so what waits for it is freed at once. */
static void start_generation(flow *f, const nrd_tb_tensor *params)
{
    TRITONSERVER_InferenceRequest *r = NULL;
    TRITONSERVER_Error *err = new_request(f, f->model->generation, "generation_only", on_generation, &r);

    err = err ? err : add_input(r, params);
    err = err ? err : add_outputs(f, r);
    send(f, r, err);
    pthread_mutex_lock(&f->mu);
    if (f->is_gone && f->inner) {
        nrd_tb_log_error(TRITONSERVER_InferenceRequestCancel(f->inner), "cancel");
    }
    pthread_mutex_unlock(&f->mu);
}

/* ---- first step: the context model ---- */

static TRITONSERVER_Error *find_params(flow *f, TRITONSERVER_InferenceResponse *response, nrd_tb_tensor *params)
{
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);

    if (!err && !nrd_tb_inner_find(response, PARAMS, params)) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "model '%s' gave no " PARAMS, f->model->context);
    }
    return err;
}

static void on_context(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    flow *f = user;
    nrd_tb_tensor params;

    pthread_mutex_lock(&f->mu);
    const bool is_first = !f->context && !f->is_over;
    if (response && is_first) {
        f->context = response;
    }
    pthread_mutex_unlock(&f->mu);
    if (response && is_first) {
        TRITONSERVER_Error *err = find_params(f, response, &params);
        if (err) {
            end(f, err);
        } else {
            start_generation(f, &params);
        }
    } else if (response) {
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(response), "response");
    } else if (is_first && (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)) {
        end(f, nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "model '%s' gave no answer", f->model->context));
    }
    if (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) {
        unref(f);
    }
}

static void start_context(flow *f)
{
    TRITONSERVER_InferenceRequest *r = NULL;
    TRITONSERVER_Error *err = nrd_tb_inputs_read(&f->inputs, f->request);
    const nrd_tb_tensor *ids = err ? NULL : nrd_tb_find(&f->inputs, "input_ids");

    if (ids && f->model->config.decoupled && ids->n_dims > 1 && ids->shape[0] > 1) { /* each row would have an answer of its own */
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "input_ids has %lld rows; a decoupled model takes one a request",
                            (long long)ids->shape[0]);
    }
    err = err ? err : new_request(f, f->model->context, "context_only", on_context, &r);
    static const char *const outputs[] = {PARAMS, "output_ids", "sequence_length"}; /* the others the model cannot do without */
    for (size_t i = 0; !err && i < sizeof outputs / sizeof *outputs; i++) {
        err = TRITONSERVER_InferenceRequestAddRequestedOutput(r, outputs[i]);
    }
    send(f, r, err);
}

void nrd_disagg_start(nrd_disagg_model *m, TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request)
{
    flow *f = calloc(1, sizeof *f);
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
    start_context(f);
}
