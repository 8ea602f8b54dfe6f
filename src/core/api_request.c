/* SPDX-License-Identifier: Apache-2.0
 * TRITONSERVER API: building requests, sending them, cancelling them. */
#include "core/api.h"
#include "core/cancel.h"
#include "core/catalog.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/model.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/request_run.h"
#include "core/sched/worker.h"
#include "core/sched/workers.h"
#include "core/server.h"
#include "core/trace.h"
#include "core/types.h"
#include "core/wakeup.h"

#include "base/error.h"
#include "base/mem.h"
#include "base/pool.h"
#include "nereid/server.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static nrd_request *of_api(TRITONSERVER_InferenceRequest *r)
{
    return (nrd_request *)(void *)r;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestNew(TRITONSERVER_InferenceRequest **inference_request,
                                 TRITONSERVER_Server *server, const char *model_name,
                                 const int64_t model_version)
{
    const nrd_catalog *c = &nrd_server_context((nrd_server *)(void *)server)->catalog;
    nrd_model *m = NULL;

    *inference_request = NULL;
    NRD_API_TRY(c->get(&m, c->repo, model_name, model_version));
    *inference_request = (TRITONSERVER_InferenceRequest *)(void *)nrd_request_new(m, model_version);
    nrd_model_unref(m);
    return *inference_request ? NULL : as_api(nrd_error_no_memory());
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest *inference_request)
{
    nrd_request_free(of_api(inference_request));
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestId(TRITONSERVER_InferenceRequest *inference_request, const char **id)
{
    *id = of_api(inference_request)->id;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetId(TRITONSERVER_InferenceRequest *inference_request, const char *id)
{
    nrd_request *r = of_api(inference_request);
    char *copy = nrd_pool_strdup(id ? id : "");
    if (!copy) {
        return as_api(nrd_error_no_memory());
    }
    nrd_pool_strput(r->id);
    r->id = copy;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestFlags(TRITONSERVER_InferenceRequest *inference_request,
                                   uint32_t *flags)
{
    *flags = of_api(inference_request)->flags;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetFlags(TRITONSERVER_InferenceRequest *inference_request,
                                      uint32_t flags)
{
    of_api(inference_request)->flags = flags;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestCorrelationId(TRITONSERVER_InferenceRequest *inference_request,
                                           uint64_t *correlation_id)
{
    const nrd_request *r = of_api(inference_request);
    if (r->corr_str) {
        return as_api(nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                         "given request's correlation id is not an unsigned int"));
    }
    *correlation_id = r->corr_id;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestCorrelationIdString(TRITONSERVER_InferenceRequest *inference_request,
                                                 const char **correlation_id)
{
    const nrd_request *r = of_api(inference_request);
    if (!r->corr_str) {
        return as_api(nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                         "given request's correlation id is not a string"));
    }
    *correlation_id = r->corr_str;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetCorrelationId(TRITONSERVER_InferenceRequest *inference_request,
                                              uint64_t correlation_id)
{
    nrd_request *r = of_api(inference_request);
    free(r->corr_str);
    r->corr_str = NULL;
    r->corr_id = correlation_id;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetCorrelationIdString(
    TRITONSERVER_InferenceRequest *inference_request, const char *correlation_id)
{
    nrd_request *r = of_api(inference_request);
    enum { MAX_CORRELATION_ID = 128 }; /* the limit that clients know */
    if (strlen(correlation_id) > MAX_CORRELATION_ID) {
        return as_api(nrd_errorf(NRD_ERR_UNSUPPORTED,
                                 "string correlation ID cannot be longer than %d characters",
                                 (int)MAX_CORRELATION_ID));
    }
    char *copy = strdup(correlation_id);
    if (!copy) {
        return as_api(nrd_error_no_memory());
    }
    free(r->corr_str);
    r->corr_str = copy;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest *inference_request)
{
    nrd_request *r = of_api(inference_request);
    if (!r->cancel) {
        return as_api(nrd_errorf(NRD_ERR_INTERNAL,
                                 "It is not possible to cancel an inference request before calling "
                                 "TRITONSERVER_InferAsync."));
    }
    nrd_context *ctx = r->ctx; /* the request may be answered and freed as soon as it is cancelled */
    nrd_cancel_set(r->cancel);
    nrd_wakeup_signal(&ctx->housekeeping);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestIsCancelled(TRITONSERVER_InferenceRequest *inference_request,
                                         bool *is_cancelled)
{
    nrd_request *r = of_api(inference_request);
    if (!r->cancel) {
        return as_api(nrd_errorf(NRD_ERR_INTERNAL,
                                 "It is not possible to query cancellation status before calling "
                                 "TRITONSERVER_InferAsync."));
    }
    *is_cancelled = nrd_cancel_is_set(r->cancel);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestPriority(TRITONSERVER_InferenceRequest *inference_request,
                                      uint32_t *priority)
{
    uint64_t p = of_api(inference_request)->priority;
    *priority = p > UINT32_MAX ? UINT32_MAX : (uint32_t)p;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestPriorityUInt64(TRITONSERVER_InferenceRequest *inference_request,
                                            uint64_t *priority)
{
    *priority = of_api(inference_request)->priority;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetPriority(TRITONSERVER_InferenceRequest *inference_request,
                                         uint32_t priority)
{
    of_api(inference_request)->priority = priority;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetPriorityUInt64(TRITONSERVER_InferenceRequest *inference_request,
                                               uint64_t priority)
{
    of_api(inference_request)->priority = priority;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestTimeoutMicroseconds(TRITONSERVER_InferenceRequest *inference_request,
                                                 uint64_t *timeout_us)
{
    *timeout_us = of_api(inference_request)->timeout_us;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(
    TRITONSERVER_InferenceRequest *inference_request, uint64_t timeout_us)
{
    of_api(inference_request)->timeout_us = timeout_us;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestAddInput(TRITONSERVER_InferenceRequest *inference_request,
                                      const char *name, const TRITONSERVER_DataType datatype,
                                      const int64_t *shape, uint64_t dim_count)
{
    nrd_input *in;
    return as_api(
        nrd_request_add_input(&in, of_api(inference_request), name, datatype, shape, dim_count));
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestAddRawInput(TRITONSERVER_InferenceRequest *inference_request,
                                         const char *name)
{
    nrd_request *r = of_api(inference_request);
    nrd_input *in;

    if (r->n_inputs > 0) {
        return as_api(
            nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                               "raw input '%s' can't be added to request with other inputs", name));
    }
    NRD_API_TRY(nrd_request_add_input(&in, r, name, TRITONSERVER_TYPE_INVALID, NULL, 0));
    in->raw = true;
    return NULL;
}

static nrd_error *no_such_input(const nrd_request *r, const char *name)
{
    return nrd_request_errorf(r, NRD_ERR_INVALID_ARG, "input '%s' does not exist in request", name);
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestRemoveInput(TRITONSERVER_InferenceRequest *inference_request,
                                         const char *name)
{
    nrd_request *r = of_api(inference_request);
    for (uint32_t i = 0; i < r->n_inputs; i++) {
        if (strcmp(r->inputs[i]->name, name) == 0) {
            nrd_request_remove_input(r, i);
            return NULL;
        }
    }
    return as_api(no_such_input(r, name));
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestRemoveAllInputs(TRITONSERVER_InferenceRequest *inference_request)
{
    nrd_request *r = of_api(inference_request);
    while (r->n_inputs > 0) {
        nrd_request_remove_input(r, r->n_inputs - 1);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputData(
    TRITONSERVER_InferenceRequest *inference_request, const char *name, const void *base,
    size_t byte_size, TRITONSERVER_MemoryType memory_type, int64_t memory_type_id)
{
    nrd_attr attr = {
        .byte_size = byte_size, .memory_type = memory_type, .memory_type_id = memory_type_id};
    nrd_request *r = of_api(inference_request);
    nrd_input *in = nrd_request_find_input(r, name);

    if (!in) {
        return as_api(no_such_input(r, name));
    }
    return as_api(nrd_input_append(in, base, &attr, NULL));
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
    TRITONSERVER_InferenceRequest *inference_request, const char *name, const void *base,
    size_t byte_size, TRITONSERVER_MemoryType memory_type, int64_t memory_type_id,
    const char *host_policy_name)
{
    (void)base;
    (void)byte_size;
    (void)memory_type;
    (void)memory_type_id;
    return as_api(nrd_request_errorf(of_api(inference_request), NRD_ERR_UNSUPPORTED,
                                     "input '%s': data per host policy ('%s') is not supported",
                                     name, host_policy_name));
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    TRITONSERVER_InferenceRequest *inference_request, const char *name, const void *base,
    TRITONSERVER_BufferAttributes *buffer_attributes)
{
    nrd_request *r = of_api(inference_request);
    nrd_input *in = nrd_request_find_input(r, name);

    if (!in) {
        return as_api(no_such_input(r, name));
    }
    return as_api(nrd_input_append(in, base, (const nrd_attr *)(void *)buffer_attributes, NULL));
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestRemoveAllInputData(TRITONSERVER_InferenceRequest *inference_request,
                                                const char *name)
{
    nrd_request *r = of_api(inference_request);
    nrd_input *in = nrd_request_find_input(r, name);

    if (!in) {
        return as_api(no_such_input(r, name));
    }
    nrd_input_drop_data(in);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestAddRequestedOutput(TRITONSERVER_InferenceRequest *inference_request,
                                                const char *name)
{
    return as_api(nrd_request_add_output(of_api(inference_request), name));
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestRemoveRequestedOutput(TRITONSERVER_InferenceRequest *inference_request,
                                                   const char *name)
{
    nrd_request *r = of_api(inference_request);
    for (uint32_t i = 0; i < r->n_outputs; i++) {
        if (strcmp(r->outputs[i], name) == 0) {
            nrd_pool_strput(r->outputs[i]);
            r->n_outputs--;
            memmove(r->outputs + i, r->outputs + i + 1, (r->n_outputs - i) * sizeof *r->outputs);
            break;
        }
    }
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(
    TRITONSERVER_InferenceRequest *inference_request)
{
    nrd_request *r = of_api(inference_request);
    while (r->n_outputs > 0) {
        nrd_pool_strput(r->outputs[--r->n_outputs]);
    }
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetReleaseCallback(
    TRITONSERVER_InferenceRequest *inference_request,
    TRITONSERVER_InferenceRequestReleaseFn_t request_release_fn, void *request_release_userp)
{
    nrd_request *r = of_api(inference_request);
    r->release_fn = request_release_fn;
    r->release_userp = request_release_userp;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetResponseCallback(
    TRITONSERVER_InferenceRequest *inference_request,
    TRITONSERVER_ResponseAllocator *response_allocator, void *response_allocator_userp,
    TRITONSERVER_InferenceResponseCompleteFn_t response_fn, void *response_userp)
{
    nrd_request *r = of_api(inference_request);
    r->allocator = response_allocator;
    r->allocator_userp = response_allocator_userp;
    r->response_fn = response_fn;
    r->response_userp = response_userp;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetStringParameter(TRITONSERVER_InferenceRequest *request,
                                                const char *key, const char *value)
{
    return as_api(
        nrd_params_set(&of_api(request)->params, key, TRITONSERVER_PARAMETER_STRING, value));
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetIntParameter(TRITONSERVER_InferenceRequest *request,
                                             const char *key, const int64_t value)
{
    return as_api(
        nrd_params_set(&of_api(request)->params, key, TRITONSERVER_PARAMETER_INT, &value));
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetBoolParameter(TRITONSERVER_InferenceRequest *request,
                                              const char *key, const bool value)
{
    return as_api(
        nrd_params_set(&of_api(request)->params, key, TRITONSERVER_PARAMETER_BOOL, &value));
}

TRITONSERVER_Error *
TRITONSERVER_InferenceRequestSetDoubleParameter(TRITONSERVER_InferenceRequest *request,
                                                const char *key, const double value)
{
    return as_api(
        nrd_params_set(&of_api(request)->params, key, TRITONSERVER_PARAMETER_DOUBLE, &value));
}

void nrd_server_request_join(TRITONSERVER_InferenceRequest *request, nrd_claim *whole)
{
    nrd_request_set_account(of_api(request), nrd_account_of(whole));
}

void nrd_server_claim_join_request(nrd_claim *c, TRITONSERVER_InferenceRequest *request)
{
    nrd_claim_enter(c, nrd_cancel_account(of_api(request)->cancel));
}

void nrd_server_lend_thread(bool lent)
{
    nrd_lent_here()->is_lent = lent;
}

TRITONSERVER_Error *TRITONSERVER_ServerInferAsync(TRITONSERVER_Server *server,
                                                  TRITONSERVER_InferenceRequest *inference_request,
                                                  TRITONSERVER_InferenceTrace *trace)
{
    const nrd_server_state state = nrd_server_get_state((const nrd_server *)(void *)server);
    nrd_request *r = of_api(inference_request);
    nrd_error *err;

    /* While stopping, requests already accepted may need more (steps of a backend's own). */
    if (state != NRD_SERVER_READY && state != NRD_SERVER_EXITING) {
        return as_api(nrd_errorf(NRD_ERR_UNAVAILABLE, "Server not ready"));
    }
    r->trace = nrd_trace_share((nrd_trace *)(void *)trace);
    err = nrd_request_run(r);
    nrd_workers_run_lent();
    if (err) { /* undo the share without the release callback: the caller keeps the trace */
        nrd_trace_forget(r->trace);
        r->trace = NULL;
    }
    return as_api(err);
}
