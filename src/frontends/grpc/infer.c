#include "frontends/grpc/infer.h"

#include "base/clock.h"

#include <string.h>

#define MAX_DIMS 64

/* A shared-memory region that an input borrows. */
struct nrd_grpc_region_use {
    nrd_grpc_region_use *next;
    nrd_shm_region *region;
};

/* ---- life ---- */

nrd_error *nrd_grpc_infer_new(nrd_grpc_infer **out, nrd_grpc_call *call, grpc_byte_buffer *payload)
{
    nrd_grpc_infer *infer = calloc(1, sizeof *infer);
    *out = infer;
    if (!infer) {
        return nrd_error_no_memory();
    }
    infer->call = call;
    nrd_grpc_call_ref(call);
    nrd_arena_init(&infer->arena);
    atomic_init(&infer->refs, 1);
    infer->bytes = grpc_empty_slice();
    return nrd_grpc_infer_decode(infer, payload);
}

void nrd_grpc_infer_ref(nrd_grpc_infer *infer)
{
    atomic_fetch_add_explicit(&infer->refs, 1, memory_order_relaxed);
}

void nrd_grpc_infer_unref(nrd_grpc_infer *infer)
{
    if (!infer || atomic_fetch_sub_explicit(&infer->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (infer->request) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_InferenceRequestDelete(infer->request)));
    }
    for (nrd_grpc_output *o = infer->outputs; o; o = o->next) {
        nrd_shm_put(infer->call->service->shm, o->region);
    }
    for (nrd_grpc_region_use *u = infer->regions; u; u = u->next) {
        nrd_shm_put(infer->call->service->shm, u->region);
    }
    if (infer->counted) {
        nrd_limit_give(infer->call->service->limit);
    }
    nrd_arena_fini(&infer->arena);
    grpc_slice_unref(infer->bytes);
    nrd_trace_unref(infer->trace);
    nrd_grpc_call_unref(infer->call);
    free(infer);
}

void nrd_grpc_infer_cancel(nrd_grpc_infer *infer)
{
    if (atomic_load(&infer->submitted)) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_InferenceRequestCancel(infer->request)));
    }
}

const char *nrd_grpc_infer_id(const nrd_grpc_infer *infer)
{
    return infer && infer->message ? infer->message->id : "";
}

nrd_error *nrd_grpc_response_error(TRITONSERVER_InferenceResponse *response)
{
    return nrd_from_triton(TRITONSERVER_InferenceResponseError(response));
}

void nrd_grpc_response_delete(TRITONSERVER_InferenceResponse *response)
{
    if (response) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_InferenceResponseDelete(response)));
    }
}

/* ---- parameters ---- */

static nrd_error *bad_type(const char *name, const char *want)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG, "invalid value type for '%s' parameter, expected %s.",
                      name, want);
}

#define P_BOOL INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_BOOL_PARAM
#define P_INT INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_INT64_PARAM
#define P_TEXT INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_STRING_PARAM
#define P_DOUBLE INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_DOUBLE_PARAM
#define P_UINT INFERENCE__INFER_PARAMETER__PARAMETER_CHOICE_UINT64_PARAM

static nrd_error *set_custom(TRITONSERVER_InferenceRequest *request, const char *name,
                             const Inference__InferParameter *p)
{
    switch (p->parameter_choice_case) {
    case P_INT:
        return nrd_from_triton(
            TRITONSERVER_InferenceRequestSetIntParameter(request, name, p->int64_param));
    case P_BOOL:
        return nrd_from_triton(
            TRITONSERVER_InferenceRequestSetBoolParameter(request, name, p->bool_param != 0));
    case P_TEXT:
        return nrd_from_triton(
            TRITONSERVER_InferenceRequestSetStringParameter(request, name, p->string_param));
    case P_DOUBLE:
        return nrd_from_triton(
            TRITONSERVER_InferenceRequestSetDoubleParameter(request, name, p->double_param));
    default:
        return bad_type(name, "int64_param, bool_param, string_param or double_param");
    }
}

static nrd_error *set_priority(TRITONSERVER_InferenceRequest *request,
                               const Inference__InferParameter *p)
{
    uint64_t v;
    if (p->parameter_choice_case == P_UINT) {
        v = p->uint64_param;
    } else if (p->parameter_choice_case != P_INT) {
        return bad_type("priority", "int64_param or uint64_param");
    } else if (p->int64_param < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "invalid value for 'priority', expected value >= 0.");
    } else {
        v = (uint64_t)p->int64_param;
    }
    return nrd_from_triton(TRITONSERVER_InferenceRequestSetPriorityUInt64(request, v));
}

static nrd_error *set_parameter(nrd_grpc_infer *infer, const char *name,
                                const Inference__InferParameter *p, uint32_t *flags)
{
    static const Inference__InferParameter none = INFERENCE__INFER_PARAMETER__INIT;
    TRITONSERVER_InferenceRequest *request = infer->request;

    p = p ? p : &none;
    if (strcmp(name, "sequence_id") == 0) {
        if (p->parameter_choice_case == P_TEXT) {
            return nrd_from_triton(
                TRITONSERVER_InferenceRequestSetCorrelationIdString(request, p->string_param));
        }
        if (p->parameter_choice_case != P_INT) {
            return bad_type(name, "int64_param or string_param");
        }
        return nrd_from_triton(
            TRITONSERVER_InferenceRequestSetCorrelationId(request, (uint64_t)p->int64_param));
    }
    const bool start = strcmp(name, "sequence_start") == 0;
    if (start || strcmp(name, "sequence_end") == 0) {
        if (p->parameter_choice_case != P_BOOL) {
            return bad_type(name, "bool_param");
        }
        if (p->bool_param) {
            *flags |= start ? TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
                            : TRITONSERVER_REQUEST_FLAG_SEQUENCE_END;
        }
        return NULL;
    }
    if (strcmp(name, "priority") == 0) {
        return set_priority(request, p);
    }
    if (strcmp(name, "timeout") == 0) {
        if (p->parameter_choice_case != P_INT) {
            return bad_type(name, "int64_param");
        }
        return nrd_from_triton(
            TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, (uint64_t)p->int64_param));
    }
    if (strcmp(name, "triton_enable_empty_final_response") == 0) {
        if (p->parameter_choice_case != P_BOOL) {
            return bad_type(name, "bool_param");
        }
        infer->want_empty_final = p->bool_param != 0;
        return NULL;
    }
    if (strncmp(name, "triton_", 7) == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "parameter keys starting with 'triton_' are reserved for Triton usage. "
                          "Only the following keys starting with 'triton_' are allowed: "
                          "triton_enable_empty_final_response");
    }
    return set_custom(request, name, p);
}

/* Metadata that matches --grpc-header-forward-pattern, as string parameters. */
static nrd_error *forward_metadata(nrd_grpc_infer *infer)
{
    const nrd_grpc_call *call = infer->call;
    if (!call->service->forward) {
        return NULL;
    }
    for (size_t i = 0; i < call->metadata.count; i++) {
        const grpc_metadata *m = &call->metadata.metadata[i];
        char *name = nrd_arena_strndup(&infer->arena, (const char *)GRPC_SLICE_START_PTR(m->key),
                                       GRPC_SLICE_LENGTH(m->key));
        char *value = nrd_arena_strndup(&infer->arena, (const char *)GRPC_SLICE_START_PTR(m->value),
                                        GRPC_SLICE_LENGTH(m->value));
        if (!name || !value) {
            return nrd_error_no_memory();
        }
        if (nrd_header_pattern_matches(call->service->forward, name, strlen(name))) {
            NRD_TRY(nrd_from_triton(
                TRITONSERVER_InferenceRequestSetStringParameter(infer->request, name, value)));
        }
    }
    return NULL;
}

/* ---- inputs ---- */

typedef Inference__ModelInferRequest__InferInputTensor input_tensor;

static nrd_error *append(nrd_grpc_infer *infer, const char *name, const void *base, size_t n)
{
    return nrd_from_triton(TRITONSERVER_InferenceRequestAppendInputData(
        infer->request, name, base, n, TRITONSERVER_MEMORY_CPU, 0));
}

/* Reads shared_memory_region, _offset and _byte_size; *region is NULL without them. */
#define READ_SHM(io, region_name, offset, size)                                                    \
    for (size_t i_ = 0; i_ < (io)->n_parameters; i_++) {                                           \
        NRD_TRY(read_shm_parameter((io)->parameters[i_]->key, (io)->parameters[i_]->value,         \
                                   &(region_name), &(offset), &(size)));                           \
    }

static nrd_error *read_shm_parameter(const char *name, const Inference__InferParameter *p,
                                     const char **region, uint64_t *offset, uint64_t *size)
{
    if (strcmp(name, "shared_memory_region") == 0) {
        if (!p || p->parameter_choice_case != P_TEXT) {
            return bad_type(name, "string_param");
        }
        *region = p->string_param;
        return NULL;
    }
    const bool is_offset = strcmp(name, "shared_memory_offset") == 0;
    if (!is_offset && strcmp(name, "shared_memory_byte_size") != 0) {
        return NULL;
    }
    if (!p || p->parameter_choice_case != P_INT || p->int64_param < 0) {
        return bad_type(name, "non-negative int64_param");
    }
    *(is_offset ? offset : size) = (uint64_t)p->int64_param;
    return NULL;
}

static nrd_error *append_shm(nrd_grpc_infer *infer, const char *name, const char *region,
                             uint64_t offset, uint64_t size)
{
    void *base;
    nrd_grpc_region_use *use = nrd_arena_alloc(&infer->arena, sizeof *use);
    if (!use) {
        return nrd_error_no_memory();
    }
    NRD_TRY(nrd_shm_get(infer->call->service->shm, region, offset, size, &use->region, &base));
    use->next = infer->regions;
    infer->regions = use;
    if (nrd_shm_is_cuda(use->region)) {
        void *copy = nrd_arena_alloc(&infer->arena, (size_t)size + 1);
        if (!copy) {
            return nrd_error_no_memory();
        }
        NRD_TRY(nrd_shm_cuda_read(use->region, base, copy, (size_t)size));
        base = copy;
    }
    return append(infer, name, base, (size_t)size);
}

/* What one list of InferTensorContents holds, and the datatypes it is for. */
typedef struct contents_list {
    const void *data;
    size_t n, width; /* elements, bytes of one */
    TRITONSERVER_DataType types[3];
} contents_list;

/* Integers of 8 and 16 bits travel as 32 bits; a value that does not fit is refused. */
static nrd_error *narrow(nrd_grpc_infer *infer, const char *name, const contents_list *l,
                         size_t width, bool is_signed, const void **out)
{
    unsigned char *p = nrd_arena_alloc(&infer->arena, l->n * width);
    if (!p) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < l->n; i++) {
        const int64_t v =
            is_signed ? ((const int32_t *)l->data)[i] : (int64_t)((const uint32_t *)l->data)[i];
        const int64_t top = is_signed ? (INT64_C(1) << (8 * width - 1)) : INT64_C(1) << (8 * width);
        if (v >= top || v < (is_signed ? -top : 0)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "value %lld of input tensor '%s' does not fit its datatype",
                              (long long)v, name);
        }
        memcpy(p + i * width, &v, width); /* little-endian: the low bytes come first */
    }
    *out = p;
    return NULL;
}

/* protobuf-c keeps a bool in an int; tensors have one byte for each. */
static nrd_error *pack_bools(nrd_grpc_infer *infer, const contents_list *l, const void **out)
{
    const protobuf_c_boolean *in = l->data;
    unsigned char *p = nrd_arena_alloc(&infer->arena, l->n);
    if (!p) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < l->n; i++) {
        p[i] = in[i] != 0;
    }
    *out = p;
    return NULL;
}

static nrd_error *pack_strings(nrd_grpc_infer *infer, const contents_list *l, const void **out,
                               size_t *out_n)
{
    const ProtobufCBinaryData *in = l->data;
    size_t total = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (in[i].len > UINT32_MAX || !nrd_size_add(total, in[i].len + 4, &total)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "a string is longer than 4 GiB");
        }
    }
    unsigned char *p = nrd_arena_alloc(&infer->arena, total);
    if (!p) {
        return nrd_error_no_memory();
    }
    *out = p;
    *out_n = total;
    for (size_t i = 0; i < l->n; i++) {
        const uint32_t n = (uint32_t)in[i].len;
        memcpy(p, &n, 4);
        if (n) {
            memcpy(p + 4, in[i].data, n);
        }
        p += 4 + n;
    }
    return NULL;
}

static nrd_error *check_list(const nrd_grpc_infer *infer, const input_tensor *io,
                             const contents_list *l, TRITONSERVER_DataType type, bool seen)
{
    if (seen) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "unexpected explicit tensor data for input tensor '%s' for model '%s', "
                          "binary data was already supplied.",
                          io->name, infer->message->model_name);
    }
    for (size_t i = 0; i < 3; i++) {
        if (l->types[i] != TRITONSERVER_TYPE_INVALID && l->types[i] == type) {
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "unexpected explicit tensor data for input tensor '%s' for model '%s' of "
                      "type '%s', expected datatype '%s'",
                      io->name, infer->message->model_name,
                      TRITONSERVER_DataTypeString(l->types[0]), TRITONSERVER_DataTypeString(type));
}

static nrd_error *append_contents(nrd_grpc_infer *infer, const input_tensor *io,
                                  TRITONSERVER_DataType type)
{
    const Inference__InferTensorContents *c = io->contents;
    const contents_list lists[] = {
        {c->bool_contents, c->n_bool_contents, 1, {TRITONSERVER_TYPE_BOOL}},
        {c->int_contents,
         c->n_int_contents,
         4,
         {TRITONSERVER_TYPE_INT32, TRITONSERVER_TYPE_INT16, TRITONSERVER_TYPE_INT8}},
        {c->int64_contents, c->n_int64_contents, 8, {TRITONSERVER_TYPE_INT64}},
        {c->uint_contents,
         c->n_uint_contents,
         4,
         {TRITONSERVER_TYPE_UINT32, TRITONSERVER_TYPE_UINT16, TRITONSERVER_TYPE_UINT8}},
        {c->uint64_contents, c->n_uint64_contents, 8, {TRITONSERVER_TYPE_UINT64}},
        {c->fp32_contents, c->n_fp32_contents, 4, {TRITONSERVER_TYPE_FP32}},
        {c->fp64_contents, c->n_fp64_contents, 8, {TRITONSERVER_TYPE_FP64}},
        {c->bytes_contents, c->n_bytes_contents, 0, {TRITONSERVER_TYPE_BYTES}},
    };
    const void *base = NULL;
    size_t size = 0;
    bool seen = false;

    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        const contents_list *l = &lists[i];
        const size_t width = TRITONSERVER_DataTypeByteSize(type);
        if (l->n == 0) {
            continue;
        }
        NRD_TRY(check_list(infer, io, l, type, seen));
        seen = true;
        base = l->data;
        size = l->n * width; /* the message held as many elements, so this cannot overflow */
        if (type == TRITONSERVER_TYPE_BYTES) {
            NRD_TRY(pack_strings(infer, l, &base, &size));
        } else if (type == TRITONSERVER_TYPE_BOOL) {
            NRD_TRY(pack_bools(infer, l, &base));
        } else if (width < l->width) {
            NRD_TRY(
                narrow(infer, io->name, l, width, l->data == (const void *)c->int_contents, &base));
        }
    }
    return append(infer, io->name, base, size);
}

static nrd_error *add_inputs(nrd_grpc_infer *infer)
{
    const Inference__ModelInferRequest *m = infer->message;
    size_t n_raw = 0;

    for (size_t i = 0; i < m->n_inputs; i++) {
        const input_tensor *io = m->inputs[i];
        const TRITONSERVER_DataType type = TRITONSERVER_StringToDataType(io->datatype);
        const char *region = NULL;
        uint64_t offset = 0, size = 0;

        if (io->n_shape > MAX_DIMS) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "input '%s' has more than %d dimensions",
                              io->name, MAX_DIMS);
        }
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestAddInput(
            infer->request, io->name, type, io->shape, io->n_shape)));
        READ_SHM(io, region, offset, size);
        if (region) {
            if (io->contents) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "unexpected 'content' provided when using shared memory for "
                                  "input tensor '%s' for model '%s'",
                                  io->name, m->model_name);
            }
            NRD_TRY(append_shm(infer, io->name, region, offset, size));
        } else if (io->contents) {
            if (m->n_raw_input_contents) {
                return nrd_errorf(NRD_ERR_INVALID_ARG,
                                  "contents field must not be specified when using "
                                  "raw_input_contents for '%s' for model '%s'",
                                  io->name, m->model_name);
            }
            NRD_TRY(append_contents(infer, io, type));
        } else if (n_raw < m->n_raw_input_contents) {
            const ProtobufCBinaryData *raw = &m->raw_input_contents[n_raw++];
            NRD_TRY(append(infer, io->name, raw->data, raw->len));
        } else {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "unable to find data for input tensor '%s' for model '%s' in "
                              "request.",
                              io->name, m->model_name);
        }
    }
    return NULL;
}

/* ---- outputs ---- */

const nrd_grpc_output *nrd_grpc_infer_output(const nrd_grpc_infer *infer, const char *name)
{
    const nrd_grpc_output *o = infer->outputs;
    while (o && strcmp(o->name, name) != 0) {
        o = o->next;
    }
    return o;
}

static nrd_error *read_classes(const Inference__InferParameter *p, uint64_t *out)
{
    if (!p || p->parameter_choice_case != P_INT) {
        return bad_type("classification", "int64_param");
    }
    if (p->int64_param <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "invalid value for 'classification' parameter, expected >= 0");
    }
    *out = (uint64_t)p->int64_param;
    return NULL;
}

static nrd_error *add_outputs(nrd_grpc_infer *infer)
{
    const Inference__ModelInferRequest *m = infer->message;
    for (size_t i = 0; i < m->n_outputs; i++) {
        const Inference__ModelInferRequest__InferRequestedOutputTensor *io = m->outputs[i];
        const char *region = NULL;
        uint64_t offset = 0, size = 0, n_classes = 0;

        NRD_TRY(nrd_from_triton(
            TRITONSERVER_InferenceRequestAddRequestedOutput(infer->request, io->name)));
        READ_SHM(io, region, offset, size);
        for (size_t k = 0; k < io->n_parameters; k++) {
            if (strcmp(io->parameters[k]->key, "classification") == 0) {
                NRD_TRY(read_classes(io->parameters[k]->value, &n_classes));
            }
        }
        if (region && n_classes) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "output can't set both 'shared_memory_region' and 'classification'");
        }
        if ((!region && !n_classes) || nrd_grpc_infer_output(infer, io->name)) {
            continue; /* the first mention decides */
        }
        nrd_grpc_output *o = nrd_arena_alloc(&infer->arena, sizeof *o);
        if (!o) {
            return nrd_error_no_memory();
        }
        memset(o, 0, sizeof *o);
        o->name = io->name;
        o->n_classes = n_classes;
        o->size_bytes = (size_t)size;
        if (region) {
            NRD_TRY(
                nrd_shm_get(infer->call->service->shm, region, offset, size, &o->region, &o->base));
        }
        o->next = infer->outputs;
        infer->outputs = o;
    }
    return NULL;
}

static TRITONSERVER_Error *alloc_output(TRITONSERVER_ResponseAllocator *allocator,
                                        const char *tensor_name, size_t byte_size,
                                        TRITONSERVER_MemoryType memory_type, int64_t memory_type_id,
                                        void *userp, void **buffer, void **buffer_userp,
                                        TRITONSERVER_MemoryType *actual_memory_type,
                                        int64_t *actual_memory_type_id)
{
    const nrd_grpc_output *o = nrd_grpc_infer_output(userp, tensor_name);

    (void)allocator;
    (void)memory_type;
    (void)memory_type_id;
    *buffer = NULL;
    *buffer_userp = NULL;
    *actual_memory_type = TRITONSERVER_MEMORY_CPU;
    *actual_memory_type_id = 0;
    if (o && !o->region) {
        o = NULL;
    }
    if (o && byte_size > o->size_bytes) {
        nrd_str text = {0};
        nrd_str_printf(&text,
                       "shared memory size specified with the request for output '%s' (%zu bytes) "
                       "should be at least %zu bytes to hold the results",
                       tensor_name, o->size_bytes, byte_size);
        TRITONSERVER_Error *err =
            TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, nrd_str_cstr(&text));
        nrd_str_fini(&text);
        return err;
    }
    if (o && !nrd_shm_is_cuda(o->region)) { /* else it is copied there at the end */
        *buffer = o->base;
        *buffer_userp = (void *)(uintptr_t)o;
    } else if (byte_size > 0) {
        *buffer = malloc(byte_size);
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
    (void)byte_size;
    (void)memory_type;
    (void)memory_type_id;
    if (!buffer_userp) { /* else it lies in shared memory */
        free(buffer);
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

nrd_error *nrd_grpc_allocator_new(TRITONSERVER_ResponseAllocator **out)
{
    NRD_TRY(nrd_from_triton(
        TRITONSERVER_ResponseAllocatorNew(out, alloc_output, free_output, NULL)));
    return nrd_from_triton(TRITONSERVER_ResponseAllocatorSetQueryFunction(*out, query_output));
}

/* ---- to the core ---- */

static void on_release(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp)
{
    (void)request;
    if (flags & TRITONSERVER_REQUEST_RELEASE_ALL) {
        nrd_grpc_infer_unref(userp);
    }
}

static void on_complete(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp)
{
    nrd_grpc_infer *infer = userp;
    const bool final = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
    if (infer->trace) {
        nrd_trace_stamp(infer->trace, "INFER_RESPONSE_COMPLETE", nrd_now_ns());
    }
    infer->on_response(infer, response, final);
    if (final) {
        nrd_grpc_infer_unref(infer);
    }
}

nrd_error *nrd_grpc_infer_open(nrd_grpc_infer *infer)
{
    const nrd_grpc_service *s = infer->call->service;
    const Inference__ModelInferRequest *m = infer->message;
    uint32_t flags = 0;
    int64_t version;

    if (atomic_load(&s->draining)) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "GRPC server is shutting down and has stopped "
                                               "accepting new requests.");
    }
    NRD_TRY(nrd_grpc_parse_version(m->model_version, &version));
    NRD_TRY(nrd_from_triton(TRITONSERVER_ServerModelTransactionProperties(
        s->core, m->model_name, version, &flags, NULL)));
    NRD_TRY(nrd_limit_take(s->limit));
    infer->counted = true;
    infer->decoupled = (flags & TRITONSERVER_TXN_DECOUPLED) != 0;
    return nrd_from_triton(
        TRITONSERVER_InferenceRequestNew(&infer->request, s->core, m->model_name, version));
}

static nrd_error *fill(nrd_grpc_infer *infer)
{
    const Inference__ModelInferRequest *m = infer->message;
    uint32_t flags = 0;

    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetId(infer->request, m->id)));
    for (size_t i = 0; i < m->n_parameters; i++) {
        NRD_TRY(set_parameter(infer, m->parameters[i]->key, m->parameters[i]->value, &flags));
    }
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetFlags(infer->request, flags)));
    NRD_TRY(forward_metadata(infer));
    NRD_TRY(add_inputs(infer));
    return add_outputs(infer);
}

nrd_error *nrd_grpc_infer_submit(nrd_grpc_infer *infer)
{
    const nrd_grpc_service *s = infer->call->service;

    NRD_TRY(fill(infer));
    NRD_TRY(nrd_from_triton(
        TRITONSERVER_InferenceRequestSetReleaseCallback(infer->request, on_release, infer)));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetResponseCallback(
        infer->request, s->allocator, infer, on_complete, infer)));
    atomic_fetch_add(&infer->refs, 2); /* the release, the final response */
    const grpc_slice *parent = nrd_grpc_metadata(infer->call, "traceparent");
    infer->trace = nrd_tracer_sample(s->tracer, infer->message->model_name,
                                     parent ? (const char *)GRPC_SLICE_START_PTR(*parent) : NULL,
                                     parent ? GRPC_SLICE_LENGTH(*parent) : 0);
    if (infer->trace) {
        nrd_trace_stamp(infer->trace, "GRPC_WAITREAD_END", nrd_now_ns());
    }
    nrd_error *err = nrd_from_triton(
        TRITONSERVER_ServerInferAsync(s->core, infer->request, nrd_trace_of(infer->trace)));
    if (err) {
        nrd_trace_not_taken(infer->trace);
        atomic_fetch_sub(&infer->refs, 2);
    } else {
        atomic_store(&infer->submitted, true);
    }
    return err;
}

/* ---- ModelInfer ---- */

/* State of a unary call. The responses of one request come one after the other. */
typedef struct unary {
    nrd_grpc_infer *infer; /* shares */
    TRITONSERVER_InferenceResponse *response;
    int n_responses;
} unary;

static void unary_response(nrd_grpc_infer *infer, TRITONSERVER_InferenceResponse *response,
                           bool final)
{
    unary *u = infer->owner;
    grpc_byte_buffer *message = NULL;
    nrd_error *err;

    if (response) {
        u->n_responses++;
        nrd_grpc_response_delete(u->response);
        u->response = response;
    }
    if (!final) {
        return;
    }
    response = u->response;
    u->response = NULL;
    if (u->n_responses != 1) {
        nrd_grpc_response_delete(response);
        err = nrd_errorf(NRD_ERR_INTERNAL, "expected a single response, got %d", u->n_responses);
    } else {
        err = nrd_grpc_encode(infer, response, false, true, &message);
    }
    if (err) {
        nrd_grpc_fail(infer->call, err);
    } else {
        nrd_grpc_reply(infer->call, message);
    }
}

static void unary_closed(nrd_grpc_call *call, bool cancelled)
{
    unary *u = call->state;
    if (cancelled) {
        nrd_grpc_infer_cancel(u->infer);
    }
    nrd_grpc_infer_unref(u->infer);
}

static void unary_free(nrd_grpc_call *call)
{
    free(call->state);
}

void nrd_grpc_unary_infer(nrd_grpc_call *call)
{
    nrd_grpc_infer *infer = NULL;
    unary *u = calloc(1, sizeof *u);
    nrd_error *err = u ? NULL : nrd_error_no_memory();

    call->state = u;
    call->free_state = unary_free;
    if (!err) {
        err = nrd_grpc_infer_new(&infer, call, call->payload);
    }
    if (!err) {
        err = nrd_grpc_infer_open(infer);
    }
    if (!err && infer->decoupled) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "ModelInfer RPC doesn't support models with "
                                              "decoupled transaction policy");
    }
    if (!err) {
        infer->owner = u;
        infer->on_response = unary_response;
        err = nrd_grpc_infer_submit(infer);
    }
    if (err) {
        nrd_grpc_infer_unref(infer);
        nrd_grpc_fail(call, err);
        return;
    }
    /* The queue thread that runs this also takes the event of a lost peer, so not before now. Its
     * count on the inference ends with that event, which always comes. */
    u->infer = infer;
    call->closed = unary_closed;
}
