/* SPDX-License-Identifier: Apache-2.0
 * TRITONBACKEND API: what backends call about themselves, requests and responses. The functions
 * about models and instances are with those objects, in model.c and instance.c. */
#include "core/api.h"
#include "core/backend_internal.h"
#include "core/cancel.h"
#include "core/config/config.h"
#include "core/model_internal.h"
#include "core/request.h"
#include "core/request_internal.h"
#include "core/response.h"
#include "core/response_internal.h"
#include "core/types.h"

#include "base/error.h"
#include "base/mem.h"
#include "nereid/server.h"

#include <stdlib.h>
#include <string.h>

/* ---- TRITONBACKEND: backend ---- */

static nrd_backend *b_of(TRITONBACKEND_Backend *b)
{
    return (nrd_backend *)(void *)b;
}

TRITONSERVER_Error *TRITONBACKEND_BackendName(TRITONBACKEND_Backend *backend, const char **name)
{
    *name = b_of(backend)->name;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_BackendConfig(TRITONBACKEND_Backend *backend,
                                                TRITONSERVER_Message **backend_config)
{
    *backend_config = (TRITONSERVER_Message *)(void *)&b_of(backend)->config;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_BackendExecutionPolicy(TRITONBACKEND_Backend *backend,
                                                         TRITONBACKEND_ExecutionPolicy *policy)
{
    *policy = b_of(backend)->policy;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_BackendSetExecutionPolicy(TRITONBACKEND_Backend *backend,
                                                            TRITONBACKEND_ExecutionPolicy policy)
{
    b_of(backend)->policy = policy;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_BackendArtifacts(TRITONBACKEND_Backend *backend,
                                                   TRITONBACKEND_ArtifactType *artifact_type,
                                                   const char **location)
{
    *artifact_type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
    *location = b_of(backend)->dir;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_BackendMemoryManager(TRITONBACKEND_Backend *backend,
                                                       TRITONBACKEND_MemoryManager **manager)
{
    *manager = (TRITONBACKEND_MemoryManager *)(void *)backend; /* stateless; any non-NULL handle */
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_BackendState(TRITONBACKEND_Backend *backend, void **state)
{
    *state = b_of(backend)->state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_BackendSetState(TRITONBACKEND_Backend *backend, void *state)
{
    b_of(backend)->state = state;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
    TRITONBACKEND_BackendAttribute *backend_attributes, const TRITONSERVER_InstanceGroupKind kind,
    const uint64_t count, const uint64_t *device_ids, const uint64_t id_count)
{
    static const Inference__ModelInstanceGroup__Kind kinds[] = {
        INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_AUTO,
        INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_CPU,
        INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_GPU,
        INFERENCE__MODEL_INSTANCE_GROUP__KIND__KIND_MODEL};
    nrd_backend *b = (nrd_backend *)(void *)backend_attributes;

    nrd_preferred_group *groups = realloc(b->groups, (b->n_groups + 1) * sizeof *groups);
    b->groups = groups ? groups : b->groups;
    int32_t *gpus = groups ? calloc(id_count + 1, sizeof *gpus) : NULL;
    if (!gpus) {
        return as_api(nrd_error_no_memory());
    }
    nrd_preferred_group *g = &b->groups[b->n_groups++];
    memset(g, 0, sizeof *g);
    g->kind = kinds[(unsigned)kind < 4 ? (unsigned)kind : 0];
    g->count = (int32_t)count;
    g->n_gpus = id_count;
    g->gpus = gpus;
    for (uint64_t i = 0; i < id_count; i++) {
        g->gpus[i] = (int32_t)device_ids[i];
    }
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
    TRITONBACKEND_BackendAttribute *backend_attributes, bool enabled)
{
    ((nrd_backend *)(void *)backend_attributes)->parallel_loading = enabled;
    return NULL;
}

/* ---- TRITONBACKEND: inputs ---- */

TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *input, const char **name,
                                                  TRITONSERVER_DataType *datatype,
                                                  const int64_t **shape, uint32_t *dims_count,
                                                  uint64_t *byte_size, uint32_t *buffer_count)
{
    const nrd_input *in = (const nrd_input *)(void *)input;
    if (name) {
        *name = in->name;
    }
    if (datatype) {
        *datatype = in->dtype;
    }
    if (shape) {
        *shape = in->dims;
    }
    if (dims_count) {
        *dims_count = in->n_dims;
    }
    if (byte_size) {
        *byte_size = in->byte_size;
    }
    if (buffer_count) {
        *buffer_count = in->n_segments;
    }
    return NULL;
}

TRITONSERVER_Error *
TRITONBACKEND_InputPropertiesForHostPolicy(TRITONBACKEND_Input *input, const char *host_policy_name,
                                           const char **name, TRITONSERVER_DataType *datatype,
                                           const int64_t **shape, uint32_t *dims_count,
                                           uint64_t *byte_size, uint32_t *buffer_count)
{
    (void)host_policy_name; /* no input has data of its own for a policy: the common data serves */
    return TRITONBACKEND_InputProperties(input, name, datatype, shape, dims_count, byte_size,
                                         buffer_count);
}

static nrd_error *segment_at(const nrd_input *in, uint32_t index, const nrd_segment **out)
{
    if (index >= in->n_segments) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "out of bounds index %u: input '%s' has %u buffers",
                          index, in->name, in->n_segments);
    }
    *out = &in->segments[index];
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *input, const uint32_t index,
                                              const void **buffer, uint64_t *buffer_byte_size,
                                              TRITONSERVER_MemoryType *memory_type,
                                              int64_t *memory_type_id)
{
    const nrd_segment *s = NULL;
    *buffer = NULL;
    *buffer_byte_size = 0;
    NRD_API_TRY(segment_at((const nrd_input *)(void *)input, index, &s));
    *buffer = s->base;
    *buffer_byte_size = s->attr.byte_size;
    *memory_type = s->attr.memory_type;
    *memory_type_id = s->attr.memory_type_id;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_InputBufferForHostPolicy(
    TRITONBACKEND_Input *input, const char *host_policy_name, const uint32_t index,
    const void **buffer, uint64_t *buffer_byte_size, TRITONSERVER_MemoryType *memory_type,
    int64_t *memory_type_id)
{
    (void)host_policy_name;
    return TRITONBACKEND_InputBuffer(input, index, buffer, buffer_byte_size, memory_type,
                                     memory_type_id);
}

TRITONSERVER_Error *
TRITONBACKEND_InputBufferAttributes(TRITONBACKEND_Input *input, const uint32_t index,
                                    const void **buffer,
                                    TRITONSERVER_BufferAttributes **buffer_attributes)
{
    const nrd_segment *s = NULL;
    *buffer = NULL;
    NRD_API_TRY(segment_at((const nrd_input *)(void *)input, index, &s));
    *buffer = s->base;
    *buffer_attributes = (TRITONSERVER_BufferAttributes *)(uintptr_t)&s->attr;
    return NULL;
}

/* ---- TRITONBACKEND: outputs ---- */

TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *output, void **buffer,
                                               const uint64_t buffer_byte_size,
                                               TRITONSERVER_MemoryType *memory_type,
                                               int64_t *memory_type_id)
{
    nrd_output *o = (nrd_output *)(void *)output;
    *buffer = NULL;
    NRD_API_TRY(nrd_output_alloc(o, buffer_byte_size, memory_type, memory_type_id));
    *buffer = o->base;
    return NULL;
}

TRITONSERVER_Error *
TRITONBACKEND_OutputBufferAttributes(TRITONBACKEND_Output *output,
                                     TRITONSERVER_BufferAttributes **buffer_attributes)
{
    nrd_output *o = (nrd_output *)(void *)output;
    *buffer_attributes = (TRITONSERVER_BufferAttributes *)(void *)&o->attr;
    return NULL;
}

/* ---- TRITONBACKEND: requests ---- */

static nrd_request *r_of(TRITONBACKEND_Request *r)
{
    return (nrd_request *)(void *)r;
}

TRITONSERVER_Error *TRITONBACKEND_RequestId(TRITONBACKEND_Request *request, const char **id)
{
    *id = r_of(request)->id;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestIsCancelled(TRITONBACKEND_Request *request,
                                                     bool *is_cancelled)
{
    *is_cancelled = nrd_request_is_cancelled(r_of(request));
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request *request, uint64_t *id)
{
    return TRITONSERVER_InferenceRequestCorrelationId(
        (TRITONSERVER_InferenceRequest *)(void *)request, id);
}

TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request *request,
                                                             const char **id)
{
    return TRITONSERVER_InferenceRequestCorrelationIdString(
        (TRITONSERVER_InferenceRequest *)(void *)request, id);
}

TRITONSERVER_Error *
TRITONBACKEND_InferenceRequestTimeoutMicroseconds(TRITONBACKEND_Request *request, uint64_t *timeout)
{
    *timeout = r_of(request)->timeout_us;
    return NULL;
}

void nrd_backend_request_times(TRITONBACKEND_Request *request, uint64_t *out_start_by_ns,
                               uint64_t *out_end_by_ns)
{
    const nrd_request *r = r_of(request);
    *out_start_by_ns = r->start_by_ns;
    *out_end_by_ns = nrd_request_end_by(r);
}

void nrd_backend_claim_join(nrd_claim *c, TRITONBACKEND_Request *request)
{
    nrd_claim_enter(c, nrd_cancel_account(r_of(request)->cancel));
}

void nrd_backend_request_join(TRITONSERVER_InferenceRequest *inner, TRITONBACKEND_Request *outer)
{
    nrd_request_set_account((nrd_request *)(void *)inner, nrd_cancel_account(r_of(outer)->cancel));
}

TRITONSERVER_Error *TRITONBACKEND_RequestFlags(TRITONBACKEND_Request *request, uint32_t *flags)
{
    *flags = r_of(request)->flags;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request *request,
                                                        uint32_t *count)
{
    *count = r_of(request)->params.n;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestParameter(TRITONBACKEND_Request *request,
                                                   const uint32_t index, const char **key,
                                                   TRITONSERVER_ParameterType *type,
                                                   const void **vvalue)
{
    const nrd_params *l = &r_of(request)->params;
    if (index >= l->n) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "out of bounds index %u: request has %u parameters", index, l->n));
    }
    *key = l->items[index].name;
    *type = l->items[index].type;
    *vvalue = nrd_param_value(&l->items[index]);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request *request, uint32_t *count)
{
    *count = r_of(request)->n_inputs;
    return NULL;
}

static nrd_error *input_at(nrd_request *r, uint32_t index, nrd_input **out)
{
    *out = NULL;
    if (index >= r->n_inputs) {
        return nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                  "out of bounds index %u: request has %u inputs", index,
                                  r->n_inputs);
    }
    *out = r->inputs[index];
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestInputName(TRITONBACKEND_Request *request,
                                                   const uint32_t index, const char **input_name)
{
    nrd_input *in;
    *input_name = NULL;
    NRD_API_TRY(input_at(r_of(request), index, &in));
    *input_name = in->name;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestInput(TRITONBACKEND_Request *request, const char *name,
                                               TRITONBACKEND_Input **input)
{
    nrd_input *in = nrd_request_find_input(r_of(request), name);
    *input = (TRITONBACKEND_Input *)(void *)in;
    return in ? NULL
              : as_api(nrd_request_errorf(r_of(request), NRD_ERR_INVALID_ARG,
                                          "unknown request input name %s", name));
}

TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(TRITONBACKEND_Request *request,
                                                      const uint32_t index,
                                                      TRITONBACKEND_Input **input)
{
    nrd_input *in;
    *input = NULL;
    NRD_API_TRY(input_at(r_of(request), index, &in));
    *input = (TRITONBACKEND_Input *)(void *)in;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *request,
                                                     uint32_t *count)
{
    const nrd_request *r = r_of(request);
    *count = r->is_null ? 0 : r->n_outputs ? r->n_outputs : (uint32_t)r->model->config->n_output;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *request,
                                                    const uint32_t index, const char **output_name)
{
    const nrd_request *r = r_of(request);
    uint32_t n;

    *output_name = NULL;
    TRITONBACKEND_RequestOutputCount(request, &n);
    if (index >= n) {
        return as_api(nrd_request_errorf(r, NRD_ERR_INVALID_ARG,
                                         "out of bounds index %u: request has %u requested outputs",
                                         index, n));
    }
    *output_name = r->n_outputs ? r->outputs[index] : r->model->config->output[index]->name;
    return NULL;
}

TRITONSERVER_Error *
TRITONBACKEND_RequestOutputBufferProperties(TRITONBACKEND_Request *request, const char *name,
                                            size_t *byte_size, TRITONSERVER_MemoryType *memory_type,
                                            int64_t *memory_type_id)
{
    nrd_request *r = r_of(request);
    const nrd_allocator *a = (const nrd_allocator *)(void *)r->allocator;

    if (r->core_buffers) {
        *memory_type = TRITONSERVER_MEMORY_CPU;
        *memory_type_id = 0;
        return NULL;
    }
    if (!a || !a->query_fn) {
        return as_api(
            nrd_request_errorf(r, NRD_ERR_UNAVAILABLE, "Output properties are not available"));
    }
    return a->query_fn(r->allocator, r->allocator_userp, name, byte_size, memory_type,
                       memory_type_id);
}

TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request,
                                                 uint32_t release_flags)
{
    return as_api(nrd_request_try_release(r_of(request), release_flags));
}

TRITONSERVER_Error *TRITONBACKEND_RequestTrace(TRITONBACKEND_Request *request,
                                               TRITONSERVER_InferenceTrace **trace)
{
    *trace = (TRITONSERVER_InferenceTrace *)(void *)r_of(request)->trace;
    return NULL;
}

/* ---- TRITONBACKEND: factories and responses ---- */

static nrd_factory *f_of(TRITONBACKEND_ResponseFactory *f)
{
    return (nrd_factory *)(void *)f;
}

static nrd_response *resp_of(TRITONBACKEND_Response *r)
{
    return (nrd_response *)(void *)r;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryNew(TRITONBACKEND_ResponseFactory **factory,
                                                     TRITONBACKEND_Request *request)
{
    *factory = (TRITONBACKEND_ResponseFactory *)(void *)nrd_factory_ref(r_of(request)->factory);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryDelete(TRITONBACKEND_ResponseFactory *factory)
{
    nrd_factory_unref(f_of(factory));
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseFactorySendFlags(TRITONBACKEND_ResponseFactory *factory,
                                                           const uint32_t send_flags)
{
    nrd_factory_send_flags(f_of(factory), send_flags);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseFactoryIsCancelled(TRITONBACKEND_ResponseFactory *factory,
                                                             bool *is_cancelled)
{
    *is_cancelled = nrd_cancel_is_set(f_of(factory)->cancel);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **response,
                                              TRITONBACKEND_Request *request)
{
    *response = (TRITONBACKEND_Response *)(void *)nrd_response_new_or_reserve(r_of(request)->factory);
    return *response ? NULL : as_api(nrd_error_no_memory());
}

TRITONSERVER_Error *TRITONBACKEND_ResponseNewFromFactory(TRITONBACKEND_Response **response,
                                                         TRITONBACKEND_ResponseFactory *factory)
{
    *response = (TRITONBACKEND_Response *)(void *)nrd_response_new_or_reserve(f_of(factory));
    return *response ? NULL : as_api(nrd_error_no_memory());
}

TRITONSERVER_Error *TRITONBACKEND_ResponseDelete(TRITONBACKEND_Response *response)
{
    nrd_response_free(resp_of(response));
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseSetStringParameter(TRITONBACKEND_Response *response,
                                                             const char *name, const char *value)
{
    return as_api(
        nrd_params_set(&resp_of(response)->params, name, TRITONSERVER_PARAMETER_STRING, value));
}

TRITONSERVER_Error *TRITONBACKEND_ResponseSetIntParameter(TRITONBACKEND_Response *response,
                                                          const char *name, const int64_t value)
{
    return as_api(
        nrd_params_set(&resp_of(response)->params, name, TRITONSERVER_PARAMETER_INT, &value));
}

TRITONSERVER_Error *TRITONBACKEND_ResponseSetBoolParameter(TRITONBACKEND_Response *response,
                                                           const char *name, const bool value)
{
    return as_api(
        nrd_params_set(&resp_of(response)->params, name, TRITONSERVER_PARAMETER_BOOL, &value));
}

TRITONSERVER_Error *TRITONBACKEND_ResponseSetDoubleParameter(TRITONBACKEND_Response *response,
                                                             const char *name, const double value)
{
    return as_api(
        nrd_params_set(&resp_of(response)->params, name, TRITONSERVER_PARAMETER_DOUBLE, &value));
}

TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *response,
                                                 TRITONBACKEND_Output **output, const char *name,
                                                 const TRITONSERVER_DataType datatype,
                                                 const int64_t *shape, const uint32_t dims_count)
{
    nrd_output *o = NULL;
    *output = NULL;
    NRD_API_TRY(nrd_response_add_output(&o, resp_of(response), name, datatype, shape, dims_count));
    *output = (TRITONBACKEND_Output *)(void *)o;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *response,
                                               const uint32_t send_flags, TRITONSERVER_Error *error)
{
    const nrd_error *e = from_api(error);
    nrd_response_send(resp_of(response), send_flags,
                      e ? nrd_errorf(nrd_error_get_code(e), "%s", nrd_error_message(e)) : NULL);
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_InferenceResponseOutputByName(TRITONBACKEND_Response *response,
                                                                const char *name,
                                                                TRITONSERVER_DataType *datatype,
                                                                const int64_t **shape,
                                                                uint64_t *dim_count)
{
    const nrd_response *r = resp_of(response);
    for (uint32_t i = 0; i < r->n_outputs; i++) {
        if (strcmp(r->outputs[i]->name, name) == 0) {
            *datatype = r->outputs[i]->dtype;
            *shape = r->outputs[i]->dims;
            *dim_count = r->outputs[i]->n_dims;
            return NULL;
        }
    }
    return as_api(nrd_errorf(NRD_ERR_NOT_FOUND, "Output name %s not found.", name));
}

TRITONSERVER_Error *TRITONBACKEND_InferenceResponseOutput(TRITONBACKEND_Response *response,
                                                          const uint32_t index, const char **name,
                                                          TRITONSERVER_DataType *datatype,
                                                          const int64_t **shape,
                                                          uint64_t *dim_count)
{
    const nrd_response *r = resp_of(response);
    if (index >= r->n_outputs) {
        return as_api(nrd_errorf(NRD_ERR_INVALID_ARG,
                                 "out of bounds index %u: response has %u outputs", index,
                                 r->n_outputs));
    }
    *name = r->outputs[index]->name;
    *datatype = r->outputs[index]->dtype;
    *shape = r->outputs[index]->dims;
    *dim_count = r->outputs[index]->n_dims;
    return NULL;
}
