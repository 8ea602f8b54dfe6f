/* POST /v2/models/M[/versions/V]/infer: JSON and binary tensors in, JSON and binary tensors out. */
#include "base/json.h"
#include "frontends/http/call.h"
#include "frontends/common/classify.h"
#include "frontends/http/handlers.h"
#include "frontends/common/tensor_json.h"
#include "frontends/common/tensor_text.h"

#include <stdio.h>
#include <string.h>

#define MAX_DIMS 64
#define MAX_OUTPUTS 62 /* pieces of one reply: the JSON and each binary output */

/* ---- reading the request ---- */

static nrd_error *member_string(const nrd_json *object, const char *key, const char **out)
{
    const nrd_json *v = nrd_json_get(object, key);
    if (!v) {
        return nrd_errorf(NRD_ERR_INTERNAL,
                          "Unable to parse '%s': attempt to access non-existing object member '%s'",
                          key, key);
    }
    if (!nrd_json_is(v, NRD_JSON_STRING) || strlen(v->str) != v->n) {
        return nrd_errorf(NRD_ERR_INTERNAL,
                          "Unable to parse '%s': attempt to access JSON non-string as string", key);
    }
    *out = v->str;
    return NULL;
}

static nrd_error *member_array(const nrd_json *object, const char *key, const nrd_json **out)
{
    *out = nrd_json_get(object, key);
    if (!*out) {
        return nrd_errorf(NRD_ERR_INTERNAL,
                          "Unable to parse '%s': attempt to access non-existing object member '%s'",
                          key, key);
    }
    if (!nrd_json_is(*out, NRD_JSON_ARRAY)) {
        return nrd_errorf(NRD_ERR_INTERNAL,
                          "Unable to parse '%s': attempt to access JSON non-array as array", key);
    }
    return NULL;
}

static bool as_u64(const nrd_json *v, uint64_t *out)
{
    if (nrd_json_is(v, NRD_JSON_UINT)) {
        *out = v->u;
        return true;
    }
    if (nrd_json_is(v, NRD_JSON_INT) && v->i >= 0) {
        *out = (uint64_t)v->i;
        return true;
    }
    return false;
}

/* Optional unsigned and boolean members; *has tells whether the key is there. */
static nrd_error *opt_u64(const nrd_json *object, const char *key, uint64_t *out, bool *has)
{
    const nrd_json *v = nrd_json_get(object, key);
    *has = v != NULL;
    *out = 0;
    if (v && !as_u64(v, out)) {
        return nrd_errorf(NRD_ERR_INTERNAL,
                          "Unable to parse '%s': attempt to access JSON non-unsigned-integer as "
                          "unsigned-integer",
                          key);
    }
    return NULL;
}

static nrd_error *opt_bool(const nrd_json *object, const char *key, bool *out)
{
    const nrd_json *v = nrd_json_get(object, key);
    *out = false;
    if (v && !nrd_json_is(v, NRD_JSON_BOOL)) {
        return nrd_errorf(NRD_ERR_INTERNAL,
                          "Unable to parse '%s': attempt to access JSON non-boolean as boolean",
                          key);
    }
    *out = nrd_json_bool(v, false);
    return NULL;
}

static nrd_error *set_sequence_id(nrd_http_call *call, const nrd_json *v)
{
    uint64_t id;
    if (as_u64(v, &id)) {
        return nrd_from_triton(
            TRITONSERVER_InferenceRequestSetCorrelationId(call->irequest, id));
    }
    if (!nrd_json_is(v, NRD_JSON_STRING)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "Unable to parse 'sequence_id': attempt to access "
                                            "JSON non-string as string");
    }
    return nrd_from_triton(
        TRITONSERVER_InferenceRequestSetCorrelationIdString(call->irequest, v->str));
}

static nrd_error *read_parameter(nrd_http_call *call, const nrd_json *params, const nrd_json *v,
                                 uint32_t *flags)
{
    TRITONSERVER_InferenceRequest *r = call->irequest;
    const char *key = v->key;
    bool on, has;
    uint64_t n;

    if (strcmp(key, "sequence_id") == 0) {
        return set_sequence_id(call, v);
    }
    if (strcmp(key, "sequence_start") == 0 || strcmp(key, "sequence_end") == 0) {
        NRD_TRY(opt_bool(params, key, &on));
        if (on) {
            *flags |= key[9] == 's' ? TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
                                    : TRITONSERVER_REQUEST_FLAG_SEQUENCE_END;
        }
        return NULL;
    }
    if (strcmp(key, "priority") == 0) {
        NRD_TRY(opt_u64(params, key, &n, &has));
        return nrd_from_triton(TRITONSERVER_InferenceRequestSetPriorityUInt64(r, n));
    }
    if (strcmp(key, "timeout") == 0) {
        NRD_TRY(opt_u64(params, key, &n, &has));
        return nrd_from_triton(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(r, n));
    }
    if (strcmp(key, "binary_data_output") == 0) {
        NRD_TRY(opt_bool(params, key, &on));
        call->default_kind = on ? NRD_OUTPUT_BINARY : NRD_OUTPUT_JSON;
        return NULL;
    }
    if (strncmp(key, "triton_", 7) == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "parameter keys starting with 'triton_' are reserved "
                          "for Triton usage and should not be specified.");
    }
    return nrd_http_set_parameter(r, key, v);
}

static nrd_error *read_id_and_parameters(nrd_http_call *call, const nrd_json *root)
{
    const nrd_json *params = nrd_json_get(root, "parameters");
    uint32_t flags = 0;
    const char *id;

    if (nrd_json_get(root, "id")) {
        NRD_TRY(member_string(root, "id", &id));
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetId(call->irequest, id)));
    }
    if (!params) {
        return NULL;
    }
    if (!nrd_json_is(params, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "failed to get request params.: attempt to get "
                                            "members for non-object");
    }
    for (size_t i = 0; i < params->n; i++) {
        NRD_TRY(read_parameter(call, params, &params->child[i], &flags));
    }
    return nrd_from_triton(TRITONSERVER_InferenceRequestSetFlags(call->irequest, flags));
}

/* Exactly one source of data. */
static nrd_error *check_sources(bool data, bool binary, bool shm)
{
    if (data + binary + shm == 1) {
        return NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "Input must set only one of the following fields: 'data', 'binary_data_size' "
                      "in 'parameters', 'shared_memory_region' in 'parameters'. But%s%s%s%s",
                      data || binary || shm ? " set" : " no field is set", data ? " 'data'" : "",
                      binary ? " 'binary_data_size'" : "", shm ? " 'shared_memory_region'" : "");
}

static nrd_error *append(nrd_http_call *call, const char *name, const void *base, size_t n)
{
    return nrd_from_triton(TRITONSERVER_InferenceRequestAppendInputData(
        call->irequest, name, base, n, TRITONSERVER_MEMORY_CPU, 0));
}

static nrd_error *read_shm_range(nrd_http_call *call, const nrd_json *params,
                                 nrd_shm_region **out_region, void **out_base, size_t *out_size)
{
    const char *region;
    uint64_t offset, size;
    bool has;
    NRD_TRY(member_string(params, "shared_memory_region", &region));
    NRD_TRY(opt_u64(params, "shared_memory_offset", &offset, &has));
    NRD_TRY(opt_u64(params, "shared_memory_byte_size", &size, &has));
    *out_size = (size_t)size;
    return nrd_shm_get(call->api->shm, region, offset, size, out_region, out_base);
}

static nrd_error *read_shm_input(nrd_http_call *call, const char *name, const nrd_json *params)
{
    nrd_http_region_use *use = nrd_arena_alloc(&call->arena, sizeof *use);
    void *base;
    size_t size;
    if (!use) {
        return nrd_error_no_memory();
    }
    NRD_TRY(read_shm_range(call, params, &use->region, &base, &size));
    use->next = call->regions;
    call->regions = use;
    if (nrd_shm_is_cuda(use->region)) {
        void *copy = nrd_arena_alloc(&call->arena, size + 1);
        if (!copy) {
            return nrd_error_no_memory();
        }
        NRD_TRY(nrd_shm_cuda_read(use->region, base, copy, size));
        base = copy;
    }
    return append(call, name, base, size);
}

/* What belongs to one body while it is read. */
typedef struct reading {
    const char *model;
    const char *rest; /* binary part of the body, and what of it is left */
    size_t rest_n;
    const nrd_tensor_slice *slices; /* long arrays that were cut out of the JSON */
    size_t n_slices;
} reading;

static const nrd_tensor_slice *find_slice(const reading *r, size_t input)
{
    for (size_t i = 0; i < r->n_slices; i++) {
        if (r->slices[i].input == input) {
            return &r->slices[i];
        }
    }
    return NULL;
}

static nrd_error *read_json_input(nrd_http_call *call, const nrd_json *input, const char *name,
                                  TRITONSERVER_DataType type, size_t count,
                                  const nrd_tensor_slice *slice)
{
    const nrd_json *data;
    size_t size;
    if (count == 0) {
        return append(call, name, NULL, 0);
    }
    NRD_TRY(member_array(input, "data", &data));
    NRD_TRY(nrd_tensor_json_size(data, type, count, &size));
    if (size > (size_t)call->api->options->http_max_input_bytes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "JSON input '%s' has a byte_size (%zu bytes) that exceeds the maximum "
                          "allowed value of %lld bytes. Use --http-max-input-size to increase the "
                          "limit.",
                          name, size, (long long)call->api->options->http_max_input_bytes);
    }
    char *bytes = nrd_arena_alloc(&call->arena, size ? size : 1);
    if (!bytes) {
        return nrd_error_no_memory();
    }
    NRD_TRY(slice ? nrd_tensor_text_read(slice, name, type, bytes, size)
                  : nrd_tensor_json_read(data, name, type, bytes, size));
    return append(call, name, bytes, size);
}

static nrd_error *read_binary_input(nrd_http_call *call, const char *name, uint64_t size,
                                    reading *r)
{
    if (size == 0) {
        return append(call, name, NULL, 0);
    }
    if (size > r->rest_n) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "unexpected size for input '%s', expecting %llu additional bytes for model "
            "'%s'",
            name, (unsigned long long)(size - r->rest_n), r->model);
    }
    NRD_TRY(append(call, name, r->rest, (size_t)size));
    r->rest += size;
    r->rest_n -= (size_t)size;
    return NULL;
}

static nrd_error *read_input(nrd_http_call *call, const nrd_json *inputs, size_t i_input,
                             reading *r)
{
    const nrd_json *input = &inputs->child[i_input];
    const nrd_json *params = nrd_json_get(input, "parameters"), *shape;
    const nrd_json *region = nrd_json_get(params, "shared_memory_region");
    int64_t dims[MAX_DIMS];
    const char *name, *type_name;
    uint64_t binary_size;
    bool has_binary;
    size_t count = 0;

    NRD_TRY(opt_u64(params, "binary_data_size", &binary_size, &has_binary));
    NRD_TRY(check_sources(nrd_json_get(input, "data") != NULL, has_binary, region != NULL));
    NRD_TRY(member_string(input, "name", &name));
    NRD_TRY(member_string(input, "datatype", &type_name));
    TRITONSERVER_DataType type = TRITONSERVER_StringToDataType(type_name);
    NRD_TRY(member_array(input, "shape", &shape));
    if (shape->n > MAX_DIMS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Unable to parse 'shape': more than %d dimensions",
                          MAX_DIMS);
    }
    for (size_t i = 0; i < shape->n; i++) {
        if (!nrd_json_is(&shape->child[i], NRD_JSON_INT) || shape->child[i].i < 0) {
            return nrd_errorf(NRD_ERR_INTERNAL, "Unable to parse 'shape': attempt to access JSON "
                                                "non-unsigned-integer as unsigned-integer");
        }
        dims[i] = shape->child[i].i;
    }
    if (!nrd_tensor_count(dims, shape->n, &count)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "shape of input '%s' overflows", name);
    }
    NRD_TRY(nrd_from_triton(
        TRITONSERVER_InferenceRequestAddInput(call->irequest, name, type, dims, shape->n)));
    if (has_binary) {
        return read_binary_input(call, name, binary_size, r);
    }
    return region ? read_shm_input(call, name, params)
                  : read_json_input(call, input, name, type, count, find_slice(r, i_input));
}

static nrd_error *read_output(nrd_http_call *call, const nrd_json *output)
{
    const nrd_json *params = nrd_json_get(output, "parameters");
    const bool shm = nrd_json_get(params, "shared_memory_region") != NULL;
    nrd_http_output *o = nrd_arena_alloc(&call->arena, sizeof *o);
    const char *name;
    bool binary, has;

    if (!o) {
        return nrd_error_no_memory();
    }
    memset(o, 0, sizeof *o);
    NRD_TRY(member_string(output, "name", &name));
    const nrd_json *classes = nrd_json_get(params, "classification");
    has = classes != NULL;
    if (has && !as_u64(classes, &o->n_classes)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "Unable to set 'classification': attempt to access "
                                            "JSON non-unsigned-integer as unsigned-integer");
    }
    NRD_TRY(opt_bool(params, "binary_data", &binary));
    if (shm && has) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Output can't set both 'shared_memory_region' and 'classification'");
    }
    if (shm && binary) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Output can't set both 'shared_memory_region' and 'binary_data'");
    }
    NRD_TRY(nrd_from_triton(
        TRITONSERVER_InferenceRequestAddRequestedOutput(call->irequest, name)));
    if (nrd_http_call_output(call, name)) {
        return NULL; /* the first mention decides, as in Triton */
    }
    o->name = nrd_arena_strndup(&call->arena, name, strlen(name));
    if (!o->name) {
        return nrd_error_no_memory();
    }
    o->kind = shm ? NRD_OUTPUT_SHM : binary ? NRD_OUTPUT_BINARY : NRD_OUTPUT_JSON;
    if (shm) {
        NRD_TRY(read_shm_range(call, params, &o->region, &o->base, &o->size_bytes));
    }
    o->next = call->outputs;
    call->outputs = o;
    return NULL;
}

static nrd_error *read_document(nrd_http_call *call, const nrd_json *root, reading *r)
{
    const nrd_json *inputs, *outputs;
    NRD_TRY(read_id_and_parameters(call, root));
    NRD_TRY(member_array(root, "inputs", &inputs));
    for (size_t i = 0; i < inputs->n; i++) {
        NRD_TRY(read_input(call, inputs, i, r));
    }
    if (r->rest_n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "unexpected additional input data for model '%s'",
                          r->model);
    }
    if (!nrd_json_get(root, "outputs")) {
        return NULL;
    }
    NRD_TRY(member_array(root, "outputs", &outputs));
    if (outputs->n > MAX_OUTPUTS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "more than %d outputs requested", MAX_OUTPUTS);
    }
    for (size_t i = 0; i < outputs->n; i++) {
        NRD_TRY(read_output(call, &outputs->child[i]));
    }
    return NULL;
}

/* Also one that is negative or too large for any type. */
static bool is_integer(nrd_view v)
{
    size_t i = v.n > 0 && v.p[0] == '-';
    const size_t first = i;
    while (i < v.n && v.p[i] >= '0' && v.p[i] <= '9') {
        i++;
    }
    return i > first && i == v.n;
}

/* Inference-Header-Content-Length: where JSON ends and binary begins. */
static nrd_error *header_length(const nrd_http_request *req, size_t body_n, size_t *out)
{
    const nrd_view *v = nrd_http_find_field(&req->head, "Inference-Header-Content-Length");
    uint64_t n;
    *out = body_n;
    if (!v) {
        return NULL;
    }
    const bool fits = nrd_view_u64(*v, &n);
    if (!fits && !is_integer(*v)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Unable to parse Inference-Header-Content-Length, got: %.*s", (int)v->n,
                          v->p);
    }
    if (!fits || n > body_n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "inference header size should be in range (0, %zu), got: %.*s", body_n,
                          (int)v->n, v->p);
    }
    *out = (size_t)n;
    return NULL;
}

static nrd_error *read_request(nrd_http_call *call, const char *body, size_t n, const char *model)
{
    nrd_tensor_slice slices[NRD_TENSOR_TEXT_MAX];
    reading r = {.model = model, .slices = slices};
    nrd_json_doc *doc = NULL;
    char *copy = NULL;
    size_t json_n;

    NRD_TRY(header_length(call->req, n, &json_n));
    if (json_n == 0) { /* the whole body is the one input */
        call->default_kind = NRD_OUTPUT_BINARY;
        NRD_TRY(nrd_from_triton(
            TRITONSERVER_InferenceRequestAddRawInput(call->irequest, "raw_input")));
        return append(call, "raw_input", n ? body : NULL, n);
    }
    r.rest = body + json_n;
    r.rest_n = n - json_n;
    if (json_n > NRD_TENSOR_TEXT_MIN && (copy = malloc(json_n)) != NULL) {
        r.n_slices = nrd_tensor_text_cut(body, json_n, copy, slices);
    }
    nrd_error *err = nrd_http_parse_json(&doc, r.n_slices ? copy : body, json_n);
    free(copy);
    if (!err) {
        err = read_document(call, nrd_json_root(doc), &r);
    }
    nrd_json_doc_free(doc);
    return err;
}

/* ---- writing the answer ---- */

typedef struct answer {
    nrd_str *json;
    struct iovec parts[MAX_OUTPUTS + 2];
    int n_parts; /* parts[0] is kept for the JSON */
} answer;

/* One output as it goes out: the model's own tensor or the classes made of it. */
typedef struct sending {
    const char *name;
    TRITONSERVER_DataType type;
    const int64_t *shape;
    uint64_t n_dims;
    const void *base;
    size_t size;
    int64_t class_shape[2];
} sending;

/* Replaces the tensor by its k best classes per row; the bytes lie in the call's arena. */
static nrd_error *to_classes(nrd_http_call *call, TRITONSERVER_InferenceResponse *response,
                             uint32_t i, uint64_t n_classes, sending *t)
{
    const char *model;
    int64_t version;
    uint32_t flags = 0;
    size_t n_rows = 1, k;
    nrd_str classes = {0};

    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseModel(response, &model, &version)));
    NRD_TRY(nrd_from_triton(
        TRITONSERVER_ServerModelBatchProperties(call->api->server, model, version, &flags, NULL)));
    const bool batched = t->n_dims > 0 && (flags & TRITONSERVER_BATCH_FIRST_DIM) != 0;
    if (batched) {
        n_rows = (size_t)t->shape[0];
    }
    nrd_error *err =
        nrd_classify(&classes, response, i, t->type, t->base, t->size, n_rows, n_classes, &k);
    char *bytes = err ? NULL : nrd_arena_alloc(&call->arena, classes.len + 1);
    if (!err && !bytes) {
        err = nrd_error_no_memory();
    }
    if (!err) {
        memcpy(bytes, nrd_str_cstr(&classes), classes.len);
        t->type = TRITONSERVER_TYPE_BYTES;
        t->base = bytes;
        t->size = classes.len;
        t->class_shape[0] = batched ? (int64_t)n_rows : (int64_t)k;
        t->class_shape[1] = (int64_t)k;
        t->shape = t->class_shape;
        t->n_dims = batched ? 2 : 1;
    }
    nrd_str_fini(&classes);
    return err;
}

static nrd_error *put_data(answer *a, nrd_output_kind kind, const sending *t)
{
    size_t count;
    if (kind == NRD_OUTPUT_BINARY) {
        nrd_str_printf(a->json, ",\"parameters\":{\"binary_data_size\":%zu}", t->size);
        if (t->size) {
            if (a->n_parts > MAX_OUTPUTS) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "more than %d binary outputs", MAX_OUTPUTS);
            }
            a->parts[a->n_parts].iov_base = (void *)(uintptr_t)t->base;
            a->parts[a->n_parts++].iov_len = t->size;
        }
    } else if (kind == NRD_OUTPUT_JSON) {
        if (!nrd_tensor_count(t->shape, t->n_dims, &count)) {
            return nrd_errorf(NRD_ERR_INTERNAL, "shape of output '%s' is invalid", t->name);
        }
        nrd_str_puts(a->json, ",\"data\":");
        return nrd_tensor_json_write(a->json, t->name, t->type, t->base, t->size, count, false);
    }
    return NULL;
}

static nrd_error *put_output(nrd_http_call *call, TRITONSERVER_InferenceResponse *response,
                             uint32_t i, answer *a)
{
    TRITONSERVER_MemoryType memory_type;
    int64_t memory_id;
    void *userp;
    sending t;

    NRD_TRY(nrd_from_triton(
        TRITONSERVER_InferenceResponseOutput(response, i, &t.name, &t.type, &t.shape, &t.n_dims,
                                             &t.base, &t.size, &memory_type, &memory_id, &userp)));
    const nrd_http_output *o = nrd_http_call_output(call, t.name);
    if (o && nrd_shm_is_cuda(o->region)) {
        NRD_TRY(nrd_shm_cuda_write(o->region, o->base, t.base, t.size));
    }
    if (o && o->n_classes) {
        NRD_TRY(to_classes(call, response, i, o->n_classes, &t));
    }
    nrd_str_puts(a->json, i ? ",{\"name\":" : "{\"name\":");
    nrd_json_put_cstr(a->json, t.name);
    nrd_str_puts(a->json, ",\"datatype\":\"");
    nrd_str_puts(a->json, TRITONSERVER_DataTypeString(t.type));
    nrd_str_puts(a->json, "\",\"shape\":[");
    for (uint64_t d = 0; d < t.n_dims; d++) {
        if (d) {
            nrd_str_putc(a->json, ',');
        }
        nrd_str_put_i64(a->json, t.shape[d]);
    }
    nrd_str_putc(a->json, ']');
    NRD_TRY(put_data(a, o ? o->kind : call->default_kind, &t));
    nrd_str_putc(a->json, '}');
    return NULL;
}

static nrd_error *put_parameters(nrd_str *json, TRITONSERVER_InferenceResponse *response)
{
    uint32_t n = 0;
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseParameterCount(response, &n)));
    for (uint32_t i = 0; i < n; i++) {
        const char *name;
        TRITONSERVER_ParameterType type;
        const void *value;
        NRD_TRY(nrd_from_triton(
            TRITONSERVER_InferenceResponseParameter(response, i, &name, &type, &value)));
        nrd_str_puts(json, i ? "," : ",\"parameters\":{");
        NRD_TRY(nrd_http_put_parameter(json, name, type, value));
    }
    if (n) {
        nrd_str_putc(json, '}');
    }
    return NULL;
}

static nrd_error *put_answer(nrd_http_call *call, TRITONSERVER_InferenceResponse *response,
                             answer *a)
{
    const char *id = "", *model;
    int64_t version;
    uint32_t n = 0;
    nrd_str *json = a->json;

    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseId(response, &id)));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseModel(response, &model, &version)));
    nrd_str_reserve(json, 240); /* a small answer grows no more */
    nrd_str_putc(json, '{');
    if (id && id[0]) {
        nrd_str_puts(json, "\"id\":");
        nrd_json_put_cstr(json, id);
        nrd_str_putc(json, ',');
    }
    nrd_str_puts(json, "\"model_name\":");
    nrd_json_put_cstr(json, model);
    nrd_str_puts(json, ",\"model_version\":\"");
    nrd_str_put_i64(json, version);
    nrd_str_putc(json, '"');
    NRD_TRY(put_parameters(json, response));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(response, &n)));
    nrd_str_puts(json, ",\"outputs\":[");
    for (uint32_t i = 0; i < n; i++) {
        NRD_TRY(put_output(call, response, i, a));
    }
    nrd_str_puts(json, "]}");
    return NULL;
}

/* The reply is sent: output buffers go back, the call loses its hold. */
static void answer_sent(void *arg)
{
    nrd_http_call *call = arg;
    nrd_http_response_delete(call->response);
    call->response = NULL;
    nrd_http_call_unref(call);
}

static void send_answer(nrd_http_call *call, answer *a)
{
    char extra[128] = "";
    size_t used = 0;
    const bool binary = a->n_parts > 1;

    a->parts[0].iov_base = a->json->data;
    a->parts[0].iov_len = a->json->len;
    if (binary) {
        used = (size_t)snprintf(extra, sizeof extra, "Inference-Header-Content-Length: %zu\r\n",
                                a->json->len);
    }
    nrd_http_call_ref(call); /* answer_sent drops it */
    const char *type = binary ? "application/octet-stream" : "application/json";
    if (call->reply_encoding != NRD_ENCODING_IDENTITY) {
        nrd_str packed = {0};
        nrd_error *err = nrd_http_deflate(&packed, call->reply_encoding, a->parts, a->n_parts);
        if (!err) {
            snprintf(extra + used, sizeof extra - used, "Content-Encoding: %s\r\n",
                     nrd_http_encoding_name(call->reply_encoding));
            nrd_http_reply(call->req, 200, type, extra, packed.data, packed.len);
            nrd_str_fini(&packed);
            answer_sent(call);
            return;
        }
        nrd_error_free(err); /* sent unpacked */
    }
    nrd_http_replyv(call->req, 200, type, extra, a->parts, a->n_parts, answer_sent, call);
}

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    nrd_error *err = NULL;
    answer a = {.json = &call->text, .n_parts = 1};

    if (response) {
        call->n_responses++;
        nrd_http_response_delete(call->response);
        call->response = response;
    }
    if (!final) {
        return;
    }
    if (nrd_http_is_gone(call->req)) {
        nrd_http_response_delete(call->response);
        call->response = NULL;
        return;
    }
    if (call->n_responses != 1) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "expected a single response, got %d", call->n_responses);
    } else {
        err = nrd_from_triton(TRITONSERVER_InferenceResponseError(call->response));
        if (!err) {
            err = put_answer(call, call->response, &a);
        }
    }
    if (err) {
        nrd_http_response_delete(call->response);
        call->response = NULL;
        nrd_http_fail_plain(call->req, err);
        return;
    }
    send_answer(call, &a);
}

/* ---- the handler ---- */

static nrd_error *check_policy(nrd_http_api *api, const char *model, int64_t version)
{
    uint32_t flags = 0;
    NRD_TRY(nrd_from_triton(
        TRITONSERVER_ServerModelTransactionProperties(api->server, model, version, &flags, NULL)));
    if (flags & TRITONSERVER_TXN_DECOUPLED) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "HTTP end point doesn't support models with decoupled "
                          "transaction policy");
    }
    return NULL;
}

/* The body after decompression; the call owns the copy. */
static nrd_error *body_of(nrd_http_call *call, const char **out, size_t *out_n)
{
    nrd_http_request *req = call->req;
    nrd_http_encoding e =
        nrd_http_content_encoding(nrd_http_find_field(&req->head, "Content-Encoding"));
    *out = req->body;
    *out_n = req->body_n;
    if (e == NRD_ENCODING_IDENTITY) {
        return NULL;
    }
    NRD_TRY(nrd_http_inflate(&call->inflated, out_n, e, req->body ? req->body : "", req->body_n,
                             (size_t)call->api->options->http_max_input_bytes));
    *out = call->inflated;
    return NULL;
}

void nrd_http_on_infer(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    nrd_http_call *call = NULL;
    nrd_error *err = NULL;
    const char *body;
    size_t n, header_n;
    bool parsing = false;
    int64_t version;

    if (nrd_http_content_encoding(nrd_http_find_field(&req->head, "Content-Encoding")) ==
        NRD_ENCODING_UNKNOWN) {
        static const char text[] = "{\"error\":\"Unsupported compression type\"}";
        nrd_http_reply(req, nrd_http_status(NRD_ERR_UNSUPPORTED), "text/plain",
                       "Accept-Encoding: gzip, deflate\r\n", text, sizeof text - 1);
        return;
    }
    NRD_TRY_GOTO(nrd_http_parse_version(route->version, &version), err, fail);
    NRD_TRY_GOTO(check_policy(api, route->model, version), err, fail);
    NRD_TRY_GOTO(nrd_http_call_new(&call, api, req, route->model, version), err, fail);
    call->on_response = on_response;
    call->default_kind = NRD_OUTPUT_JSON;
    call->reply_encoding =
        nrd_http_accept_encoding(nrd_http_find_field(&req->head, "Accept-Encoding"));
    NRD_TRY_GOTO(body_of(call, &body, &n), err, fail);
    NRD_TRY_GOTO(header_length(req, n, &header_n), err, fail);
    parsing = true;
    NRD_TRY_GOTO(read_request(call, body, n, route->model), err, fail);
    NRD_TRY_GOTO(nrd_http_forward_headers(call), err, fail);
    NRD_TRY_GOTO(nrd_http_call_submit(call), err, fail);
    return;

fail:
    if (call) {
        nrd_http_call_abandon(call);
    }
    (parsing ? nrd_http_fail : nrd_http_fail_plain)(req, err);
}
