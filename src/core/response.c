/* SPDX-License-Identifier: Apache-2.0
 * Responses and their factory. A factory belongs to one request and outlives it while answers may
 * come. With preserve_ordering, responses that are too early wait in a list until those of earlier
 * requests were sent. Memory of outputs comes from the client's allocator. */
#include "core/response.h"

#include "core/api.h"
#include "core/cancel.h"
#include "core/claim.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/model.h"
#include "core/model_internal.h"
#include "core/model_metrics.h"
#include "core/request_internal.h"
#include "core/response_internal.h"
#include "core/response_order.h"
#include "core/trace.h"
#include "core/types.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/pool.h"
#include "nereid/server.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- factories ---- */

nrd_factory *nrd_factory_new(const nrd_request *r)
{
    nrd_factory *f = nrd_pool_zget(sizeof *f);
    nrd_response *reserve = nrd_pool_zget(sizeof *reserve);
    char *id = nrd_pool_strdup(r->id);
    if (!f || !reserve || !id) {
        nrd_pool_put(f, sizeof *f);
        nrd_pool_put(reserve, sizeof *reserve);
        nrd_pool_strput(id);
        return NULL;
    }
    atomic_init(&f->refs, 1);
    f->reserve = reserve;
    f->model = nrd_model_ref(r->model);
    f->model_version = r->model->version;
    f->id = id;
    f->allocator = r->allocator;
    f->allocator_userp = r->allocator_userp;
    f->core_buffers = r->core_buffers;
    f->response_fn = r->response_fn;
    f->response_userp = r->response_userp;
    f->cancel = nrd_cancel_ref(r->cancel);
    f->trace = nrd_trace_share(r->trace);
    f->start_ns = r->start_ns;
    atomic_fetch_add(&f->model->ctx->n_in_flight, 1);
    atomic_fetch_add(&f->model->n_in_flight, 1);
    return f;
}

nrd_factory *nrd_factory_ref(nrd_factory *f)
{
    atomic_fetch_add_explicit(&f->refs, 1, memory_order_relaxed);
    return f;
}

void nrd_factory_unref(nrd_factory *f)
{
    if (!f || atomic_fetch_sub(&f->refs, 1) != 1) {
        return;
    }
    nrd_factory_leave_order(f);
    free(f->cache_key);
    nrd_buf_unref(f->cache_question);
    nrd_trace_unshare(f->trace);
    nrd_cancel_unref(f->cancel);
    nrd_pool_strput(f->id);
    nrd_pool_put(f->reserve, sizeof *f->reserve);
    atomic_fetch_sub(&f->model->ctx->n_in_flight, 1);
    atomic_fetch_sub(&f->model->n_in_flight, 1);
    nrd_model_unref(f->model);
    nrd_pool_put(f, sizeof *f);
}

nrd_error *nrd_factory_join_order(nrd_factory *f, nrd_response_order *o)
{
    if (o && !f->order) {
        f->order_entry = nrd_response_order_join(o);
        if (!f->order_entry) {
            return nrd_error_no_memory();
        }
        f->order = nrd_response_order_ref(o);
    }
    return NULL;
}

void nrd_factory_leave_order(nrd_factory *f)
{
    nrd_response_order *o = f->order;

    f->order = NULL;
    if (o) {
        nrd_response_order_leave(o, &f->order_entry);
        nrd_response_order_unref(o);
    }
}

void nrd_factory_deliver(nrd_factory *f, nrd_response *r, uint32_t flags)
{
    f->response_fn((TRITONSERVER_InferenceResponse *)(void *)r, flags, f->response_userp);
    nrd_factory_unref(f);
}

static void push_in_order(nrd_factory *f, nrd_response *r, uint32_t flags)
{
    if (!r && !(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)) {
        return; /* it tells nothing */
    }
    if (!nrd_response_order_push(f->order, &f->order_entry, nrd_factory_ref(f), r, flags,
                                 r ? &r->order_item : NULL)) {
        NRD_LOG_ERROR("a response after the last one of its request; dropped");
        nrd_response_free(r);
        nrd_factory_unref(f);
    }
}

/* What happens around every call of the response callback. */
static void deliver(nrd_factory *f, nrd_response *r, uint32_t flags)
{
    bool final = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;

    if (r && !atomic_load_explicit(&f->first_sent, memory_order_relaxed) &&
        !atomic_exchange(&f->first_sent, true)) {
        nrd_model_metrics_first_response(f->model->metrics, f->start_ns);
    }
    if (r && f->trace) {
        nrd_trace_outputs(f->trace, r);
    }
    if (final) {
        if (atomic_exchange(&f->final_sent, true)) {
            NRD_LOG_ERROR("model '%s' sent a second final response for request '%s'; dropped",
                          f->model->name, f->id);
            nrd_response_free(r);
            return;
        }
        if (f->trace) {
            nrd_trace_report(f->trace, TRITONSERVER_TRACE_REQUEST_END, nrd_now_ns());
        }
    }
    if (r && f->cache_key && !nrd_response_is_timed_out(r)) {
        f->keep_fn(f, r);
    }
    if (f->order) {
        push_in_order(f, r, flags);
    } else {
        f->response_fn((TRITONSERVER_InferenceResponse *)(void *)r, flags, f->response_userp);
    }
}

void nrd_factory_send_flags(nrd_factory *f, uint32_t flags)
{
    nrd_factory_ref(f); /* the callback may drop the last other share */
    deliver(f, NULL, flags);
    nrd_factory_unref(f);
}

/* ---- responses ---- */

nrd_error *nrd_response_set_timed_out(nrd_response *r)
{
    const bool yes = true;
    return nrd_params_set(&r->params, NRD_SERVER_TIMED_OUT, TRITONSERVER_PARAMETER_BOOL, &yes);
}

bool nrd_response_is_timed_out(const nrd_response *r)
{
    bool yes = false;
    for (uint32_t i = 0; i < r->params.n && !yes; i++) {
        const nrd_param *p = &r->params.items[i];
        yes = p->type == TRITONSERVER_PARAMETER_BOOL && p->b && !strcmp(p->name, NRD_SERVER_TIMED_OUT);
    }
    return yes;
}

nrd_response *nrd_response_new(nrd_factory *f)
{
    nrd_response *r = nrd_pool_zget(sizeof *r);
    if (r) {
        r->factory = nrd_factory_ref(f);
    }
    return r;
}

static nrd_response *take_reserve(nrd_factory *f)
{
    if (atomic_exchange(&f->reserve_used, true)) {
        return NULL;
    }
    *f->reserve = (nrd_response){
        .factory = nrd_factory_ref(f), .error = nrd_error_no_memory(), .is_reserve = true};
    return f->reserve;
}

nrd_response *nrd_response_new_or_reserve(nrd_factory *f)
{
    nrd_response *r = nrd_response_new(f);
    return r ? r : take_reserve(f);
}

void nrd_factory_send_error(nrd_factory *f, uint32_t flags, nrd_error *err)
{
    nrd_response *r = nrd_response_new_or_reserve(f);
    if (r) {
        nrd_response_send(r, flags, err);
    } else { /* an error is already on its way */
        nrd_error_free(err);
        nrd_factory_send_flags(f, flags);
    }
}

static void output_free(nrd_output *o)
{
    const nrd_factory *f = o->response->factory;

    if (o->buf) {
        nrd_buf_unref(o->buf);
    } else if (o->has_buffer && (o->base || o->buffer_userp)) {
        const nrd_allocator *a = (const nrd_allocator *)(void *)f->allocator;
        TRITONSERVER_Error *err =
            a->release_fn ? a->release_fn(f->allocator, o->base, o->buffer_userp, o->attr.byte_size,
                                          o->attr.memory_type, o->attr.memory_type_id)
                          : NULL;
        if (err) {
            NRD_LOG_ERROR("releasing the buffer of output '%s': %s", o->name,
                          nrd_error_message(from_api(err)));
            nrd_error_free(from_api(err));
        }
    }
    nrd_pool_strput(o->name);
    nrd_pool_put(o, sizeof *o);
}

void nrd_response_free(nrd_response *r)
{
    if (!r) {
        return;
    }
    for (uint32_t i = 0; i < r->n_outputs; i++) {
        output_free(r->outputs[i]);
    }
    nrd_pool_put(r->outputs, r->cap_outputs * sizeof *r->outputs);
    nrd_params_fini(&r->params);
    nrd_error_free(r->error);
    nrd_factory *f = r->factory;
    if (!r->is_reserve) {
        nrd_pool_put(r, sizeof *r);
    }
    nrd_factory_unref(f);
}

/* A backend speaks of the shape after the configuration's reshape, clients of the one before. */
static void undo_reshape(nrd_output *o, const nrd_model *m)
{
    const Inference__ModelOutput *c = m ? nrd_model_output(m, o->name) : NULL;
    const uint32_t first = m && m->config->max_batch_size > 0;
    int64_t variable[NRD_MAX_RANK];
    size_t n_variable = 0, used = 0;

    if (!c || !c->reshape || o->n_dims != first + c->reshape->n_shape ||
        first + c->n_dims > NRD_MAX_RANK) {
        return;
    }
    for (size_t i = 0; i < c->reshape->n_shape; i++) {
        if (c->reshape->shape[i] < 0) {
            variable[n_variable++] = o->dims[first + i];
        }
    }
    for (size_t i = 0; i < c->n_dims; i++) {
        o->dims[first + i] = c->dims[i] >= 0     ? c->dims[i]
                             : used < n_variable ? variable[used++]
                                                 : 1;
    }
    o->n_dims = first + (uint32_t)c->n_dims;
}

/* Room for one more. */
static bool reserve_output(nrd_response *r)
{
    if (r->n_outputs == r->cap_outputs) {
        const uint32_t cap = r->cap_outputs ? r->cap_outputs * 2 : 8;
        nrd_output **grown = nrd_pool_grow(r->outputs, r->cap_outputs * sizeof *r->outputs,
                                           cap * sizeof *r->outputs);
        if (!grown) {
            return false;
        }
        r->outputs = grown;
        r->cap_outputs = cap;
    }
    return true;
}

nrd_error *nrd_response_add_output(nrd_output **out, nrd_response *r, const char *name,
                                   TRITONSERVER_DataType dtype, const int64_t *dims, uint32_t n)
{
    if (n > NRD_MAX_RANK) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "output '%s' has %u dimensions, at most %d are supported", name, n,
                          (int)NRD_MAX_RANK);
    }
    nrd_output *o = nrd_pool_get(sizeof *o);
    char *copy = nrd_pool_strdup(name);
    if (!o || !copy || !reserve_output(r)) {
        nrd_pool_put(o, sizeof *o);
        nrd_pool_strput(copy);
        return nrd_error_no_memory();
    }
    memset(o, 0, offsetof(nrd_output, dims)); /* of the dimensions only the first n_dims count */
    memset((char *)o + offsetof(nrd_output, has_buffer), 0,
           sizeof *o - offsetof(nrd_output, has_buffer));
    o->response = r;
    o->name = copy;
    o->dtype = dtype;
    o->n_dims = n;
    if (n) {
        memcpy(o->dims, dims, n * sizeof *dims);
    }
    undo_reshape(o, r->factory->model);
    r->outputs[r->n_outputs++] = o;
    *out = o;
    return NULL;
}

static nrd_error *alloc_from_client(nrd_output *o, size_t byte_size)
{
    nrd_factory *f = o->response->factory;
    const nrd_allocator *a = (const nrd_allocator *)(void *)f->allocator;

    if (!a) {
        return nrd_errorf(NRD_ERR_INTERNAL, "no response allocator was set for the request");
    }
    if (!o->response->started) {
        o->response->started = true;
        if (a->start_fn) {
            NRD_TRY(from_api(a->start_fn(f->allocator, f->allocator_userp)));
        }
    }
    NRD_TRY(from_api(a->alloc_fn(f->allocator, o->name, byte_size, o->attr.memory_type,
                                 o->attr.memory_type_id, f->allocator_userp, &o->base,
                                 &o->buffer_userp, &o->attr.memory_type, &o->attr.memory_type_id)));
    o->has_buffer = true;
    if (a->attr_fn) {
        NRD_TRY(from_api(a->attr_fn(f->allocator, o->name,
                                    (TRITONSERVER_BufferAttributes *)(void *)&o->attr,
                                    f->allocator_userp, o->buffer_userp)));
    }
    return NULL;
}

/* Of an inner request: counted with the request that it belongs to. */
static nrd_error *core_buffer(nrd_output *o, size_t byte_size)
{
    nrd_claim claim = {0};
    nrd_error *err = NULL;

    if (byte_size >= NRD_CLAIM_LEAST) {
        nrd_claim_enter(&claim, nrd_cancel_account(o->response->factory->cancel));
        err = nrd_claim_take(&claim, byte_size, o->name);
    }
    o->buf = err ? NULL : nrd_buf_new(byte_size);
    if (!o->buf) {
        nrd_server_unclaim(&claim, NRD_CLAIM_ALL);
        return err ? err : nrd_error_no_memory();
    }
    o->buf->claim = claim;
    return NULL;
}

nrd_error *nrd_output_alloc(nrd_output *o, size_t byte_size, TRITONSERVER_MemoryType *type,
                            int64_t *type_id)
{
    if (o->has_buffer) {
        return nrd_errorf(NRD_ERR_ALREADY_EXISTS, "buffer already allocated for output '%s'",
                          o->name);
    }
    o->attr.byte_size = byte_size;
    o->attr.memory_type = *type;
    o->attr.memory_type_id = *type_id;
    if (o->response->factory->core_buffers) {
        NRD_TRY(core_buffer(o, byte_size));
        o->base = byte_size ? o->buf->data : NULL;
        o->has_buffer = true;
        o->attr.memory_type = TRITONSERVER_MEMORY_CPU;
        o->attr.memory_type_id = 0;
    } else {
        NRD_TRY(alloc_from_client(o, byte_size));
    }
    *type = o->attr.memory_type;
    *type_id = o->attr.memory_type_id;
    return NULL;
}

void nrd_response_send(nrd_response *r, uint32_t flags, nrd_error *err)
{
    nrd_factory *f = nrd_factory_ref(r->factory);
    if (err && !r->is_reserve) {
        nrd_error_free(r->error);
        r->error = err;
    } else { /* the reserve says what it is for */
        nrd_error_free(err);
    }
    deliver(f, r, flags);
    nrd_factory_unref(f);
}

/* ---- TRITONSERVER: allocators ---- */

TRITONSERVER_Error *
TRITONSERVER_ResponseAllocatorNew(TRITONSERVER_ResponseAllocator **allocator,
                                  TRITONSERVER_ResponseAllocatorAllocFn_t alloc_fn,
                                  TRITONSERVER_ResponseAllocatorReleaseFn_t release_fn,
                                  TRITONSERVER_ResponseAllocatorStartFn_t start_fn)
{
    nrd_allocator *a = calloc(1, sizeof *a);
    *allocator = NULL;
    if (!a) {
        return as_api(nrd_error_no_memory());
    }
    a->alloc_fn = alloc_fn;
    a->release_fn = release_fn;
    a->start_fn = start_fn;
    *allocator = (TRITONSERVER_ResponseAllocator *)(void *)a;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    TRITONSERVER_ResponseAllocator *allocator,
    TRITONSERVER_ResponseAllocatorBufferAttributesFn_t buffer_attributes_fn)
{
    ((nrd_allocator *)(void *)allocator)->attr_fn = buffer_attributes_fn;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_ResponseAllocatorSetQueryFunction(TRITONSERVER_ResponseAllocator *allocator,
                                               TRITONSERVER_ResponseAllocatorQueryFn_t query_fn)
{
    ((nrd_allocator *)(void *)allocator)->query_fn = query_fn;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator *allocator)
{
    free(allocator);
    return NULL;
}

/* ---- TRITONSERVER: reading a response ---- */

static nrd_response *of_api(TRITONSERVER_InferenceResponse *r)
{
    return (nrd_response *)(void *)r;
}

static nrd_error *bad_index(uint32_t index, const char *what, uint32_t n)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "out of bounds index %u: response has %u %s", index, n,
                      what);
}

TRITONSERVER_Error *
TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse *inference_response)
{
    nrd_response_free(of_api(inference_response));
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse *inference_response)
{
    const nrd_error *e = of_api(inference_response)->error;
    /* A copy: callers of the published interface delete what they get. */
    return e ? as_api(nrd_errorf(nrd_error_get_code(e), "%s", nrd_error_message(e))) : NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceResponseModel(TRITONSERVER_InferenceResponse *inference_response,
                                    const char **model_name, int64_t *model_version)
{
    const nrd_factory *f = of_api(inference_response)->factory;
    *model_name = f->model->name;
    *model_version = f->model_version;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceResponseId(TRITONSERVER_InferenceResponse *inference_response,
                                 const char **request_id)
{
    *request_id = of_api(inference_response)->factory->id;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceResponseParameterCount(TRITONSERVER_InferenceResponse *inference_response,
                                             uint32_t *count)
{
    *count = of_api(inference_response)->params.n;
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceResponseParameter(TRITONSERVER_InferenceResponse *inference_response,
                                        const uint32_t index, const char **name,
                                        TRITONSERVER_ParameterType *type, const void **vvalue)
{
    const nrd_params *l = &of_api(inference_response)->params;
    if (index >= l->n) {
        return as_api(bad_index(index, "parameters", l->n));
    }
    *name = l->items[index].name;
    *type = l->items[index].type;
    *vvalue = nrd_param_value(&l->items[index]);
    return NULL;
}

TRITONSERVER_Error *
TRITONSERVER_InferenceResponseOutputCount(TRITONSERVER_InferenceResponse *inference_response,
                                          uint32_t *count)
{
    *count = of_api(inference_response)->n_outputs;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutput(
    TRITONSERVER_InferenceResponse *inference_response, const uint32_t index, const char **name,
    TRITONSERVER_DataType *datatype, const int64_t **shape, uint64_t *dim_count, const void **base,
    size_t *byte_size, TRITONSERVER_MemoryType *memory_type, int64_t *memory_type_id, void **userp)
{
    const nrd_response *r = of_api(inference_response);
    if (index >= r->n_outputs) {
        return as_api(bad_index(index, "outputs", r->n_outputs));
    }
    const nrd_output *o = r->outputs[index];
    *name = o->name;
    *datatype = o->dtype;
    *shape = o->dims;
    *dim_count = o->n_dims;
    *base = o->base;
    *byte_size = o->attr.byte_size;
    *memory_type = o->attr.memory_type;
    *memory_type_id = o->attr.memory_type_id;
    *userp = o->buffer_userp;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutputClassificationLabel(
    TRITONSERVER_InferenceResponse *inference_response, const uint32_t index,
    const size_t class_index, const char **label)
{
    const nrd_response *r = of_api(inference_response);
    *label = NULL; /* no name: the class number stands for itself */
    if (index >= r->n_outputs) {
        return as_api(bad_index(index, "outputs", r->n_outputs));
    }
    const nrd_model *m = r->factory->model;
    for (size_t i = 0; i < m->n_labels; i++) {
        if (strcmp(m->config->output[i]->name, r->outputs[index]->name) == 0 &&
            class_index < m->labels[i].n) {
            *label = m->labels[i].items[class_index];
        }
    }
    return NULL;
}
