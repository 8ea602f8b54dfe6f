/* SPDX-License-Identifier: Apache-2.0
 * Outputs of an inference: which are asked for, where the core puts them, how they are read. */
#include "base/pool.h"
#include "frontends/common/classify.h"
#include "frontends/common/infer.h"

#include <stdlib.h>
#include <string.h>

nrd_infer_output *nrd_infer_find_output(const nrd_infer *i, const char *name)
{
    nrd_infer_output *o = i->outputs;
    while (o && strcmp(o->name, name) != 0) {
        o = o->next;
    }
    return o;
}

nrd_error *nrd_infer_add_output(nrd_infer *i, const char *name, uint64_t n_classes,
                                const nrd_infer_range *range, int form)
{
    if (nrd_infer_find_output(i, name)) { /* in which of two forms? Newer Triton refuses it in these words */
        return nrd_errorf(NRD_ERR_INVALID_ARG, "output '%s' already exists in request", name);
    }
    NRD_TRY(
        nrd_from_triton(TRITONSERVER_InferenceRequestAddRequestedOutput(i->request, name)));
    nrd_infer_output *o = nrd_arena_alloc(&i->arena, sizeof *o);
    const char *copy = nrd_arena_strndup(&i->arena, name, strlen(name));
    if (!o || !copy) {
        return nrd_error_no_memory();
    }
    *o = (nrd_infer_output){.name = copy, .n_classes = n_classes, .form = form};
    if (range && range->region) {
        o->shared = true;
        o->size_bytes = (size_t)range->size;
        NRD_TRY(nrd_shm_get(i->front->shm, range->region, range->offset, range->size, &o->region,
                            &o->base));
    }
    o->next = i->outputs;
    i->outputs = o;
    return NULL;
}

/* ---- memory: called on the core's threads ---- */

/* Takes err. */
static TRITONSERVER_Error *to_triton(nrd_error *err)
{
    TRITONSERVER_Error *e = TRITONSERVER_ErrorNew(
        (TRITONSERVER_Error_Code)nrd_error_triton_code(err), nrd_error_message(err));
    nrd_error_free(err);
    return e;
}

static TRITONSERVER_Error *too_small(const nrd_infer_output *o, size_t need)
{
    return to_triton(nrd_errorf(NRD_ERR_INTERNAL,
                                "shared memory size specified with the request for output '%s' (%zu bytes) "
                                "should be at least %zu bytes to hold the results",
                                o->name, o->size_bytes, need));
}

/* What a buffer's user pointer says of it; that of a large one is the inference, which it holds. */
static char in_region, is_small;

static nrd_error *claim_tensor(nrd_infer *i, size_t bytes)
{
    if (bytes < NRD_CLAIM_LEAST) {
        return NULL;
    }
    nrd_claim_follow(&i->tensors, i->request);
    NRD_TRY(nrd_claim_bytes(&i->tensors, bytes, "its answer"));
    nrd_infer_ref(i);
    return NULL;
}

static void give_tensor(nrd_infer *i, size_t bytes)
{
    if (bytes >= NRD_CLAIM_LEAST) {
        nrd_claim_give(&i->tensors, bytes);
        nrd_infer_unref(i);
    }
}

static TRITONSERVER_Error *alloc_output(TRITONSERVER_ResponseAllocator *allocator,
                                        const char *tensor_name, size_t byte_size,
                                        TRITONSERVER_MemoryType memory_type, int64_t memory_type_id,
                                        void *userp, void **buffer, void **buffer_userp,
                                        TRITONSERVER_MemoryType *actual_memory_type,
                                        int64_t *actual_memory_type_id)
{
    nrd_infer *i = userp;
    nrd_infer_output *o = nrd_infer_find_output(i, tensor_name);

    (void)allocator;
    (void)memory_type;
    (void)memory_type_id;
    *buffer = NULL;
    *buffer_userp = NULL;
    *actual_memory_type = TRITONSERVER_MEMORY_CPU;
    *actual_memory_type_id = 0;
    if (o && o->shared && byte_size > o->size_bytes) {
        return too_small(o, byte_size);
    }
    if (o && o->shared && !nrd_infer_is_copied(i, o->region)) {
        *buffer = o->base;
        *buffer_userp = &in_region;
    } else if (byte_size > 0) {
        nrd_error *err = claim_tensor(i, byte_size);
        if (err) {
            return to_triton(err);
        }
        *buffer_userp = byte_size < NRD_CLAIM_LEAST ? (void *)&is_small : i;
        *buffer = byte_size <= NRD_POOL_MAX ? nrd_pool_get(byte_size) : malloc(byte_size);
        if (!*buffer) {
            give_tensor(i, byte_size);
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
    if (buffer_userp != &in_region) {
        nrd_pool_put(buffer, byte_size);
    }
    if (buffer_userp && buffer_userp != &in_region && buffer_userp != &is_small) {
        give_tensor(buffer_userp, byte_size);
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

nrd_error *nrd_infer_allocator_new(TRITONSERVER_ResponseAllocator **out)
{
    NRD_TRY(nrd_from_triton(
        TRITONSERVER_ResponseAllocatorNew(out, alloc_output, free_output, NULL)));
    return nrd_from_triton(TRITONSERVER_ResponseAllocatorSetQueryFunction(*out, query_output));
}

/* ---- reading ---- */

/* The k best classes of each row take the place of the tensor. */
static nrd_error *to_classes(nrd_infer *i, TRITONSERVER_InferenceResponse *response, uint32_t index,
                             nrd_infer_tensor *t)
{
    const char *model;
    int64_t version;
    uint32_t flags = 0;
    size_t k = 0;

    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseModel(response, &model, &version)));
    NRD_TRY(nrd_from_triton(TRITONSERVER_ServerModelBatchProperties(i->front->core, model, version,
                                                                    &flags, NULL)));
    const bool batched = t->n_dims > 0 && (flags & TRITONSERVER_BATCH_FIRST_DIM) != 0;
    const int64_t n_rows = batched ? t->shape[0] : 1;
    NRD_TRY(nrd_classify(&t->classes, response, index, t->type, t->base, t->size, (size_t)n_rows,
                         t->asked->n_classes, &k));
    t->class_shape[0] = batched ? n_rows : (int64_t)k;
    t->class_shape[1] = (int64_t)k;
    t->shape = t->class_shape;
    t->n_dims = batched ? 2 : 1;
    t->type = TRITONSERVER_TYPE_BYTES;
    t->base = nrd_str_cstr(&t->classes);
    t->size = t->classes.len;
    return NULL;
}

nrd_error *nrd_infer_get_tensor(TRITONSERVER_InferenceResponse *response, uint32_t index, nrd_infer_tensor *out)
{
    TRITONSERVER_MemoryType memory_type;
    int64_t memory_id;
    void *userp;

    *out = (nrd_infer_tensor){0};
    return nrd_from_triton(TRITONSERVER_InferenceResponseOutput(
        response, index, &out->name, &out->type, &out->shape, &out->n_dims, &out->base, &out->size,
        &memory_type, &memory_id, &userp));
}

const void *nrd_infer_find_parameter(TRITONSERVER_InferenceResponse *response, const char *name, TRITONSERVER_ParameterType type)
{
    uint32_t n = 0;
    nrd_error *err = nrd_from_triton(TRITONSERVER_InferenceResponseParameterCount(response, &n));
    const void *found = NULL;

    for (uint32_t i = 0; !err && !found && i < n; i++) {
        const char *its_name;
        TRITONSERVER_ParameterType its_type;
        const void *value;
        err = nrd_from_triton(TRITONSERVER_InferenceResponseParameter(response, i, &its_name, &its_type, &value));
        found = !err && its_type == type && !strcmp(its_name, name) ? value : NULL;
    }
    nrd_error_free(err);
    return found;
}

nrd_error *nrd_infer_read_tensor(nrd_infer *i, TRITONSERVER_InferenceResponse *response,
                                 uint32_t index, nrd_infer_tensor *out)
{
    NRD_TRY(nrd_infer_get_tensor(response, index, out));
    const nrd_infer_output *o = out->asked = nrd_infer_find_output(i, out->name);
    out->shared = o && o->shared;
    if (o && nrd_infer_is_copied(i, o->region)) {
        NRD_TRY(nrd_shm_write(o->region, o->base, out->base, out->size));
    }
    return o && o->n_classes ? to_classes(i, response, index, out) : NULL;
}

void nrd_infer_tensor_fini(nrd_infer_tensor *t)
{
    nrd_str_fini(&t->classes);
}
