/* SPDX-License-Identifier: Apache-2.0
 * identity - the smallest backend: every output is a copy of the input at the same place.
 *
 * Read it first, copy it to start a new one. It shows the whole life: a model state made from the
 * configuration, requests answered one by one inside one execution, statistics for each request
 * and for the batch.
 *
 * Model parameters (all optional):
 *   execute_delay_ms   sleep that long before answering; ends early when every request is cancelled
 *   responses          answers per request, when the model is decoupled (default 1)
 */
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"

#include "nereid/server.h"
#include "triton/core/tritonbackend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct identity {
    char **outputs; /* names, in the order of the configuration */
    char **inputs;  /* the input that output i copies */
    size_t n;
    uint64_t delay_ms;
    bool batching, decoupled;
    uint32_t n_responses;
} identity;

/* Passes an error of the core up. */
#define TRY(expr)                                                                                  \
    do {                                                                                           \
        TRITONSERVER_Error *try_err_ = (expr);                                                     \
        if (try_err_) {                                                                            \
            return try_err_;                                                                       \
        }                                                                                          \
    } while (0)

static TRITONSERVER_Error *to_core(nrd_error *err)
{
    TRITONSERVER_Error *e =
        err ? TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)nrd_error_triton_code(err),
                                    nrd_error_message(err))
            : NULL;
    nrd_error_free(err);
    return e;
}

static void log_and_drop(TRITONSERVER_Error *err, const char *what)
{
    if (err) {
        char text[512];
        snprintf(text, sizeof text, "%s: %s", what, TRITONSERVER_ErrorMessage(err));
        TRITONSERVER_ErrorDelete(
            TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, text));
        TRITONSERVER_ErrorDelete(err);
    }
}

/* ---- model ---- */

static uint64_t parameter(const nrd_json *config, const char *name, uint64_t fallback)
{
    const nrd_json *p = nrd_json_get(nrd_json_get(config, "parameters"), name);
    unsigned long long v;
    return nrd_parse_u64(nrd_json_get_str(p, "string_value", ""), &v) ? v : fallback;
}

static TRITONSERVER_Error *no_memory(void)
{
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE, "out of memory");
}

static void state_free(identity *s)
{
    if (!s) {
        return;
    }
    for (size_t i = 0; i < s->n; i++) {
        free(s->outputs[i]);
        free(s->inputs[i]);
    }
    free(s->outputs);
    free(s->inputs);
    free(s);
}

static TRITONSERVER_Error *state_new(identity **out, const nrd_json *config)
{
    const nrd_json *ins = nrd_json_get(config, "input"), *outs = nrd_json_get(config, "output");
    size_t n = nrd_json_len(outs);
    identity *s;

    if (nrd_json_len(ins) < n) {
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG,
                                     "identity: every output needs an input at the same place");
    }
    s = calloc(1, sizeof *s);
    if (!s || !(s->outputs = calloc(n + 1, sizeof *s->outputs)) ||
        !(s->inputs = calloc(n + 1, sizeof *s->inputs))) {
        state_free(s);
        return no_memory();
    }
    for (; s->n < n; s->n++) {
        const nrd_json *in = nrd_json_at(ins, s->n), *o = nrd_json_at(outs, s->n);
        s->outputs[s->n] = strdup(nrd_json_get_str(o, "name", ""));
        s->inputs[s->n] = strdup(nrd_json_get_str(in, "name", ""));
        if (!s->outputs[s->n] || !s->inputs[s->n]) {
            s->n++; /* one of them may be there */
            state_free(s);
            return no_memory();
        }
    }
    s->batching = nrd_json_get_int(config, "max_batch_size", 0) > 0;
    s->delay_ms = parameter(config, "execute_delay_ms", 0);
    s->n_responses = (uint32_t)parameter(config, "responses", 1);
    s->decoupled =
        nrd_json_get_bool(nrd_json_get(config, "model_transaction_policy"), "decoupled", false);
    *out = s;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *model)
{
    TRITONSERVER_Message *message = NULL;
    nrd_json_doc *doc = NULL;
    identity *state = NULL;
    const char *text;
    size_t len;
    TRITONSERVER_Error *err;

    TRY(TRITONBACKEND_ModelConfig(model, 1, &message));
    err = TRITONSERVER_MessageSerializeToJson(message, &text, &len);
    if (!err) {
        err = to_core(nrd_json_parse(&doc, text, len, NULL));
    }
    if (!err) {
        err = state_new(&state, nrd_json_root(doc));
    }
    if (!err) {
        err = TRITONBACKEND_ModelSetState(model, state);
    }
    nrd_json_doc_free(doc);
    TRITONSERVER_ErrorDelete(TRITONSERVER_MessageDelete(message));
    return err;
}

/* Then the server may copy small tensors on the thread that has received them. */
bool nrd_backend_never_blocks(TRITONBACKEND_Model *model)
{
    void *state = NULL;
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelState(model, &state));
    const identity *s = state;
    return s && s->delay_ms == 0 && !s->decoupled;
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *model)
{
    void *state = NULL;
    TRY(TRITONBACKEND_ModelState(model, &state));
    if (state) {
        state_free(state);
    }
    return NULL;
}

/* ---- execution ---- */

static bool all_cancelled(TRITONBACKEND_Request **requests, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bool cancelled = false;
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestIsCancelled(requests[i], &cancelled));
        if (!cancelled) {
            return false;
        }
    }
    return true;
}

static void wait_a_while(const identity *s, TRITONBACKEND_Request **requests, uint32_t n)
{
    uint64_t end = nrd_now_ns() + s->delay_ms * 1000000u;
    while (nrd_now_ns() < end && !all_cancelled(requests, n)) {
        struct timespec t = {.tv_nsec = 1000000};
        nanosleep(&t, NULL);
    }
}

static TRITONSERVER_Error *copy_tensor(TRITONBACKEND_Request *request,
                                       TRITONBACKEND_Response *response, const char *input_name,
                                       const char *output_name)
{
    TRITONBACKEND_Input *in;
    TRITONBACKEND_Output *out;
    TRITONSERVER_DataType dtype;
    const int64_t *shape;
    uint32_t n_dims, n_buffers;
    uint64_t size;
    TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_CPU;
    int64_t place_id = 0;
    void *to;

    TRY(TRITONBACKEND_RequestInput(request, input_name, &in));
    TRY(TRITONBACKEND_InputProperties(in, NULL, &dtype, &shape, &n_dims, &size, &n_buffers));
    TRY(TRITONBACKEND_ResponseOutput(response, &out, output_name, dtype, shape, n_dims));
    TRY(TRITONBACKEND_OutputBuffer(out, &to, size, &place, &place_id));
    if (place == TRITONSERVER_MEMORY_GPU) {
        return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED,
                                     "identity: cannot write to GPU memory");
    }
    for (uint32_t i = 0; i < n_buffers; i++) {
        const void *from;
        uint64_t part;
        TRITONSERVER_MemoryType from_place = TRITONSERVER_MEMORY_CPU;
        int64_t from_id = 0;
        TRY(TRITONBACKEND_InputBuffer(in, i, &from, &part, &from_place, &from_id));
        if (from_place == TRITONSERVER_MEMORY_GPU) {
            return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNSUPPORTED,
                                         "identity: cannot read GPU memory");
        }
        memcpy(to, from, part);
        to = (char *)to + part;
    }
    return NULL;
}

static bool is_wanted(TRITONBACKEND_Request *request, const char *output)
{
    uint32_t n = 0;
    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestOutputCount(request, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *name = NULL;
        TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestOutputName(request, i, &name));
        if (name && strcmp(name, output) == 0) {
            return true;
        }
    }
    return false;
}

static bool is_given(TRITONBACKEND_Request *request, const char *input)
{
    TRITONBACKEND_Input *in = NULL;
    TRITONSERVER_Error *err = TRITONBACKEND_RequestInput(request, input, &in);
    TRITONSERVER_ErrorDelete(err);
    return !err;
}

/* Sends one response; with an error in it when copying did not work out. */
static bool answer(const identity *s, TRITONBACKEND_Request *request, uint32_t flags)
{
    TRITONBACKEND_Response *response = NULL;
    TRITONSERVER_Error *err = TRITONBACKEND_ResponseNew(&response, request);
    bool ok, cancelled = false;

    if (err) {
        log_and_drop(err, "identity: making a response");
        return false;
    }
    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestIsCancelled(request, &cancelled));
    if (cancelled) {
        err = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_CANCELLED, "Request was cancelled");
    }
    for (size_t i = 0; i < s->n && !err; i++) {
        if (is_wanted(request, s->outputs[i]) && is_given(request, s->inputs[i])) {
            err = copy_tensor(request, response, s->inputs[i], s->outputs[i]);
        }
    }
    ok = !err;
    log_and_drop(TRITONBACKEND_ResponseSend(response, flags, err), "identity: sending a response");
    TRITONSERVER_ErrorDelete(err);
    return ok;
}

static bool answer_decoupled(const identity *s, TRITONBACKEND_Request *request)
{
    TRITONBACKEND_ResponseFactory *factory = NULL;
    TRITONSERVER_Error *err = TRITONBACKEND_ResponseFactoryNew(&factory, request);
    bool ok = !err;

    if (err) {
        log_and_drop(err, "identity: making a response factory");
        return false;
    }
    for (uint32_t i = 0; i < s->n_responses && ok; i++) {
        ok = answer(s, request, 0);
    }
    log_and_drop(
        TRITONBACKEND_ResponseFactorySendFlags(factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL),
        "identity: ending a response");
    log_and_drop(TRITONBACKEND_ResponseFactoryDelete(factory), "identity: deleting a factory");
    return ok;
}

/* The first dimension of any input is the request's part of the batch. */
static uint64_t batch_of(TRITONBACKEND_Request *request)
{
    TRITONBACKEND_Input *in = NULL;
    const int64_t *shape = NULL;
    uint32_t n_dims = 0;

    TRITONSERVER_ErrorDelete(TRITONBACKEND_RequestInputByIndex(request, 0, &in));
    if (in) {
        TRITONSERVER_ErrorDelete(
            TRITONBACKEND_InputProperties(in, NULL, NULL, &shape, &n_dims, NULL, NULL));
    }
    return n_dims > 0 && shape[0] > 0 ? (uint64_t)shape[0] : 1;
}

/* Writes to the verbose log that an execution begins. */
static void log_begin(TRITONBACKEND_Model *model, TRITONBACKEND_ModelInstance *instance, uint32_t n)
{
    char line[256];
    const char *model_name = "", *name = "";

    if (!TRITONSERVER_LogIsEnabled(TRITONSERVER_LOG_VERBOSE)) {
        return;
    }
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelName(model, &model_name));
    TRITONSERVER_ErrorDelete(TRITONBACKEND_ModelInstanceName(instance, &name));
    snprintf(line, sizeof line, "model %s, instance %s, executing %u requests", model_name, name, n);
    TRITONSERVER_ErrorDelete(
        TRITONSERVER_LogMessage(TRITONSERVER_LOG_VERBOSE, __FILE__, __LINE__, line));
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *instance,
                                                       TRITONBACKEND_Request **requests,
                                                       const uint32_t request_count)
{
    uint64_t start = nrd_now_ns(), end;
    TRITONBACKEND_Model *model;
    void *state;
    uint64_t total = 0;

    TRY(TRITONBACKEND_ModelInstanceModel(instance, &model));
    TRY(TRITONBACKEND_ModelState(model, &state));
    const identity *s = state;
    log_begin(model, instance, request_count);
    if (s->delay_ms > 0) {
        wait_a_while(s, requests, request_count);
    }
    uint64_t compute_start = nrd_now_ns();
    for (uint32_t i = 0; i < request_count; i++) {
        TRITONBACKEND_Request *r = requests[i];
        bool ok = s->decoupled ? answer_decoupled(s, r)
                               : answer(s, r, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
        total += s->batching ? batch_of(r) : 1;
        end = nrd_now_ns();
        log_and_drop(TRITONBACKEND_ModelInstanceReportStatistics(instance, r, ok, start,
                                                                 compute_start, end, nrd_now_ns()),
                     "identity: reporting statistics");
        log_and_drop(TRITONBACKEND_RequestRelease(r, TRITONSERVER_REQUEST_RELEASE_ALL),
                     "identity: releasing a request");
    }
    end = nrd_now_ns();
    log_and_drop(TRITONBACKEND_ModelInstanceReportBatchStatistics(instance, total, start,
                                                                  compute_start, end, end),
                 "identity: reporting statistics");
    return NULL;
}
