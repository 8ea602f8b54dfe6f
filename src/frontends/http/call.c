#include "frontends/http/call.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/pool.h"

#include <string.h>

/* ---- life ---- */

nrd_error *nrd_http_call_new(nrd_http_call **out, nrd_http_api *api, nrd_http_request *req,
                             const char *model, int64_t version)
{
    nrd_http_call *call = nrd_pool_zget(sizeof *call);
    *out = NULL;
    call->api = api;
    call->req = req;
    nrd_http_request_ref(req);
    nrd_arena_init(&call->arena);
    atomic_init(&call->refs, 1);
    atomic_init(&call->n_messages, 0);
    nrd_error *err = nrd_from_triton(
        TRITONSERVER_InferenceRequestNew(&call->irequest, api->server, model, version));
    if (err) {
        nrd_http_call_unref(call);
        return err;
    }
    err = nrd_limit_take(api->limit);
    if (err) {
        nrd_http_call_unref(call);
        return err;
    }
    call->counted = true;
    const nrd_view *parent = nrd_http_find_field(&req->head, "traceparent");
    call->trace =
        nrd_tracer_sample(api->tracer, model, parent ? parent->p : NULL, parent ? parent->n : 0);
    *out = call;
    return NULL;
}

void nrd_http_call_ref(nrd_http_call *call)
{
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
}

/* Any thread: the core may release the request last. */
void nrd_http_call_unref(nrd_http_call *call)
{
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (call->irequest) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_InferenceRequestDelete(call->irequest)));
    }
    for (nrd_http_output *o = call->outputs; o; o = o->next) {
        nrd_shm_put(call->api->shm, o->region);
    }
    for (nrd_http_region_use *u = call->regions; u; u = u->next) {
        nrd_shm_put(call->api->shm, u->region);
    }
    if (call->counted) {
        nrd_limit_give(call->api->limit);
    }
    nrd_arena_fini(&call->arena);
    nrd_str_fini(&call->text);
    free(call->inflated);
    nrd_trace_unref(call->trace);
    nrd_http_request_unref(call->req);
    nrd_pool_put(call, sizeof *call);
}

void nrd_http_call_abandon(nrd_http_call *call)
{
    nrd_trace_not_taken(call->trace);
    nrd_http_call_unref(call);
}

void nrd_http_response_delete(TRITONSERVER_InferenceResponse *response)
{
    if (response) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_InferenceResponseDelete(response)));
    }
}

/* ---- the client is gone ---- */

static void cancel(nrd_http_request *req, void *arg)
{
    nrd_http_call *call = arg;
    (void)req;
    nrd_error_free(nrd_from_triton(TRITONSERVER_InferenceRequestCancel(call->irequest)));
}

/* ---- callbacks of the core: any thread ---- */

static void on_release(TRITONSERVER_InferenceRequest *irequest, const uint32_t flags, void *userp)
{
    (void)irequest;
    if (flags & TRITONSERVER_REQUEST_RELEASE_ALL) {
        nrd_http_call_unref(userp);
    }
}

static void run_message(nrd_http_task *task)
{
    nrd_http_message *m = (nrd_http_message *)(void *)task;
    nrd_http_call *call = m->call;
    TRITONSERVER_InferenceResponse *response = m->response;
    const bool final = (m->flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;

    if (m != &call->first && m != &call->last) {
        free(m);
    }
    if (final) {
        call->req->on_gone = NULL; /* nothing is left to cancel */
        if (call->trace) {
            nrd_trace_stamp(call->trace, "HTTP_SEND_START", nrd_now_ns());
        }
    }
    call->on_response(call, response, final);
    if (final) {
        if (call->trace) {
            nrd_trace_stamp(call->trace, "HTTP_SEND_END", nrd_now_ns());
        }
        nrd_http_call_unref(call);
    }
}

static void on_complete(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp)
{
    nrd_http_call *call = userp;
    const bool final = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
    /* Responses of one request come one after the other; only the places differ. */
    if (call->trace) {
        nrd_trace_stamp(call->trace, "INFER_RESPONSE_COMPLETE", nrd_now_ns());
    }
    nrd_http_message *m = final                                         ? &call->last
                          : atomic_fetch_add(&call->n_messages, 1) == 0 ? &call->first
                                                                        : nrd_xmalloc(sizeof *m);
    m->task.run = run_message;
    m->call = call;
    m->response = response;
    m->flags = flags;
    nrd_http_post(call->req->loop, &m->task);
}

nrd_error *nrd_http_call_submit(nrd_http_call *call)
{
    nrd_error *err = nrd_from_triton(
        TRITONSERVER_InferenceRequestSetReleaseCallback(call->irequest, on_release, call));
    if (!err) {
        err = nrd_from_triton(TRITONSERVER_InferenceRequestSetResponseCallback(
            call->irequest, call->api->allocator, call, on_complete, call));
    }
    if (err) {
        return err;
    }
    nrd_http_call_ref(call); /* one for the release, one for the final response */
    nrd_trace_stamp(call->trace, "HTTP_RECV_START", call->req->begin_ns);
    nrd_trace_stamp(call->trace, "HTTP_RECV_END", call->req->ready_ns);
    err = nrd_from_triton(TRITONSERVER_ServerInferAsync(call->api->server, call->irequest,
                                                             nrd_trace_of(call->trace)));
    if (err) {
        nrd_http_call_unref(call);
        return err;
    }
    /* Still on the loop thread: run_message has not run yet, so the call is alive. */
    call->req->gone_arg = call;
    call->req->on_gone = cancel;
    if (nrd_http_is_gone(call->req)) {
        cancel(call->req, call);
    }
    return NULL;
}

/* ---- output memory: called on the core's threads ---- */

nrd_http_output *nrd_http_call_output(const nrd_http_call *call, const char *name)
{
    nrd_http_output *o = call->outputs;
    while (o && strcmp(o->name, name) != 0) {
        o = o->next;
    }
    return o;
}

static TRITONSERVER_Error *alloc_output(TRITONSERVER_ResponseAllocator *allocator,
                                        const char *tensor_name, size_t byte_size,
                                        TRITONSERVER_MemoryType memory_type, int64_t memory_type_id,
                                        void *userp, void **buffer, void **buffer_userp,
                                        TRITONSERVER_MemoryType *actual_memory_type,
                                        int64_t *actual_memory_type_id)
{
    nrd_http_call *call = userp;
    nrd_http_output *o = nrd_http_call_output(call, tensor_name);

    (void)allocator;
    (void)memory_type;
    (void)memory_type_id;
    *buffer = NULL;
    *buffer_userp = NULL;
    *actual_memory_type = TRITONSERVER_MEMORY_CPU;
    *actual_memory_type_id = 0;
    if (o && o->kind == NRD_OUTPUT_SHM) {
        if (byte_size > o->size_bytes) {
            nrd_str text = {0};
            nrd_str_printf(&text,
                           "shared memory size specified with the request for output '%s' (%zu "
                           "bytes) should be at least %zu bytes to hold the results",
                           tensor_name, o->size_bytes, byte_size);
            TRITONSERVER_Error *err =
                TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, nrd_str_cstr(&text));
            nrd_str_fini(&text);
            return err;
        }
        if (!nrd_shm_is_cuda(o->region)) { /* else it is copied there at the end */
            *buffer = o->base;
            *buffer_userp = o;
            return NULL;
        }
    }
    if (byte_size > 0) {
        *buffer = byte_size <= NRD_POOL_MAX ? nrd_pool_get(byte_size) : malloc(byte_size);
        if (!*buffer) {
            return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_UNAVAILABLE,
                                         "out of memory for an output tensor");
        }
    }
    return NULL;
}

static TRITONSERVER_Error *free_output(TRITONSERVER_ResponseAllocator *allocator, void *buffer,
                                       void *buffer_userp, size_t byte_size,
                                       TRITONSERVER_MemoryType memory_type, int64_t memory_type_id)
{
    (void)allocator;
    (void)memory_type;
    (void)memory_type_id;
    if (!buffer_userp) { /* else it lies in shared memory */
        nrd_pool_put(buffer, byte_size);
    }
    return NULL;
}

static TRITONSERVER_Error *query_output(TRITONSERVER_ResponseAllocator *allocator, void *userp,
                                        const char *tensor_name, size_t *byte_size,
                                        TRITONSERVER_MemoryType *memory_type,
                                        int64_t *memory_type_id)
{
    (void)allocator;
    (void)userp;
    (void)tensor_name;
    (void)byte_size;
    *memory_type = TRITONSERVER_MEMORY_CPU;
    *memory_type_id = 0;
    return NULL;
}

nrd_error *nrd_http_allocator_new(TRITONSERVER_ResponseAllocator **out)
{
    NRD_TRY(nrd_from_triton(
        TRITONSERVER_ResponseAllocatorNew(out, alloc_output, free_output, NULL)));
    return nrd_from_triton(TRITONSERVER_ResponseAllocatorSetQueryFunction(*out, query_output));
}

/* ---- parameters ---- */

nrd_error *nrd_http_put_parameter(nrd_str *out, const char *name, TRITONSERVER_ParameterType type,
                                  const void *value)
{
    nrd_json_put_cstr(out, name);
    nrd_str_putc(out, ':');
    switch (type) {
    case TRITONSERVER_PARAMETER_BOOL:
        nrd_str_puts(out, *(const bool *)value ? "true" : "false");
        return NULL;
    case TRITONSERVER_PARAMETER_INT:
        nrd_str_printf(out, "%lld", (long long)*(const int64_t *)value);
        return NULL;
    case TRITONSERVER_PARAMETER_STRING:
        nrd_json_put_cstr(out, value);
        return NULL;
    case TRITONSERVER_PARAMETER_DOUBLE:
        nrd_json_put_double(out, *(const double *)value);
        return NULL;
    case TRITONSERVER_PARAMETER_BYTES:
        break;
    }
    return nrd_errorf(
        NRD_ERR_UNSUPPORTED,
        "Response parameter '%s' has type 'TRITONSERVER_PARAMETER_BYTES' which is not "
        "currently supported",
        name);
}

nrd_error *nrd_http_set_parameter(TRITONSERVER_InferenceRequest *irequest, const char *name,
                                  const nrd_json *value)
{
    TRITONSERVER_Error *err;
    switch (value->type) {
    case NRD_JSON_STRING:
        if (strlen(value->str) != value->n) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "parameter '%s' contains a NUL character", name);
        }
        err = TRITONSERVER_InferenceRequestSetStringParameter(irequest, name, value->str);
        break;
    case NRD_JSON_INT:
        err = TRITONSERVER_InferenceRequestSetIntParameter(irequest, name, value->i);
        break;
    case NRD_JSON_BOOL:
        err = TRITONSERVER_InferenceRequestSetBoolParameter(irequest, name, value->boolean);
        break;
    case NRD_JSON_UINT:
    case NRD_JSON_REAL:
        err =
            TRITONSERVER_InferenceRequestSetDoubleParameter(irequest, name, nrd_json_num(value, 0));
        break;
    default:
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "parameter '%s' has invalid type. It should be either 'int', 'bool', or "
                          "'string'.",
                          name);
    }
    return nrd_from_triton(err);
}

nrd_error *nrd_http_forward_headers(nrd_http_call *call)
{
    const nrd_http_head *h = &call->req->head;
    if (!call->api->forward) {
        return NULL;
    }
    for (size_t i = 0; i < h->n_fields; i++) {
        char name[256], *value;
        const nrd_http_field *f = &h->fields[i];
        if (f->name.n >= sizeof name) {
            continue;
        }
        memcpy(name, f->name.p, f->name.n);
        name[f->name.n] = '\0';
        if (!nrd_header_pattern_matches(call->api->forward, name, f->name.n)) {
            continue;
        }
        /* Triton hands on the blanks before the end of the line, which is in the same buffer */
        size_t n = f->value.n;
        while (f->value.p[n] == ' ' || f->value.p[n] == '\t') {
            n++;
        }
        value = nrd_arena_strndup(&call->arena, f->value.p, n);
        if (!value) {
            return nrd_error_no_memory();
        }
        NRD_TRY(nrd_from_triton(
            TRITONSERVER_InferenceRequestSetStringParameter(call->irequest, name, value)));
    }
    return NULL;
}
