/* SPDX-License-Identifier: Apache-2.0
 * POST /v2/models/M[/versions/V]/infer: JSON and binary tensors in, JSON and binary tensors out. */
#include "base/json.h"
#include "frontends/common/inflate.h"
#include "frontends/common/tensor_json.h"
#include "frontends/common/tensor_text.h"
#include "frontends/http/call.h"
#include "frontends/http/handlers.h"
#include "frontends/http/lease.h"
#include "frontends/http/work.h"

#include <stdio.h>
#include <string.h>

#define MAX_PIECES 62 /* of one reply: the JSON and binary outputs; further ones are put together into the last */

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

/* The value of a parameter that has a meaning; the words for wrong types are Triton's. */
static nrd_error *read_known(const nrd_json *params, const nrd_json *v, nrd_infer_param what,
                             nrd_infer_value *out)
{
    bool has;
    switch (what) {
    case NRD_INFER_SEQUENCE_START:
    case NRD_INFER_SEQUENCE_END:
        out->type = NRD_VALUE_BOOL;
        return opt_bool(params, v->key, &out->v.b);
    case NRD_INFER_SEQUENCE_ID:
        if (!as_u64(v, &out->v.u) && !nrd_json_is(v, NRD_JSON_STRING)) {
            return nrd_errorf(NRD_ERR_INTERNAL, "Unable to parse 'sequence_id': attempt to access "
                                                "JSON non-string as string");
        }
        out->type = NRD_VALUE_UINT;
        if (nrd_json_is(v, NRD_JSON_STRING)) {
            out->type = NRD_VALUE_TEXT;
            out->v.s = v->str;
        }
        return NULL;
    default:
        out->type = NRD_VALUE_UINT;
        return opt_u64(params, v->key, &out->v.u, &has);
    }
}

static nrd_error *read_parameter(nrd_http_call *call, const nrd_json *params, const nrd_json *v)
{
    const nrd_infer_param what = nrd_infer_param_of(v->key);
    nrd_infer_value value = {0};
    bool on;

    if (strcmp(v->key, "binary_data_output") == 0) {
        NRD_TRY(opt_bool(params, v->key, &on));
        call->default_kind = on ? NRD_OUTPUT_BINARY : NRD_OUTPUT_JSON;
        return NULL;
    }
    if (what == NRD_INFER_RESERVED) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "parameter keys starting with 'triton_' are reserved "
                          "for Triton usage and should not be specified.");
    }
    if (what == NRD_INFER_CUSTOM) {
        return nrd_http_set_parameter(call, v->key, v);
    }
    NRD_TRY(read_known(params, v, what, &value));
    return nrd_infer_set(&call->infer, what, v->key, value);
}

static nrd_error *read_id_and_parameters(nrd_http_call *call, const nrd_json *root)
{
    const nrd_json *params = nrd_json_get(root, "parameters");
    const char *id;

    if (nrd_json_get(root, "id")) {
        NRD_TRY(member_string(root, "id", &id));
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetId(call->infer.request, id)));
    }
    if (!params) {
        return NULL;
    }
    if (!nrd_json_is(params, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "failed to get request params.: attempt to get "
                                            "members for non-object");
    }
    for (size_t i = 0; i < params->n; i++) {
        NRD_TRY(read_parameter(call, params, &params->child[i]));
    }
    return NULL;
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

static nrd_error *read_range(const nrd_json *params, nrd_infer_range *out)
{
    bool has;
    NRD_TRY(member_string(params, "shared_memory_region", &out->region));
    NRD_TRY(opt_u64(params, "shared_memory_offset", &out->offset, &has));
    return opt_u64(params, "shared_memory_byte_size", &out->size, &has);
}

static nrd_error *read_shm_input(nrd_http_call *call, const char *name, const nrd_json *params)
{
    nrd_infer_range range = {0};
    NRD_TRY(read_range(params, &range));
    return nrd_infer_append_shared(&call->infer, name, &range);
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
        return nrd_infer_append(&call->infer, name, NULL, 0);
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
    char *bytes;
    NRD_TRY(nrd_infer_room(&call->infer, size, "an input", &bytes));
    NRD_TRY(slice ? nrd_tensor_text_read(slice, name, type, bytes, size)
                  : nrd_tensor_json_read(data, name, type, bytes, size));
    return nrd_infer_append(&call->infer, name, bytes, size);
}

static nrd_error *read_binary_input(nrd_http_call *call, const char *name, uint64_t size,
                                    reading *r)
{
    if (size == 0) {
        return nrd_infer_append(&call->infer, name, NULL, 0);
    }
    if (size > r->rest_n) {
        return nrd_errorf(
            NRD_ERR_INVALID_ARG,
            "unexpected size for input '%s', expecting %llu additional bytes for model "
            "'%s'",
            name, (unsigned long long)(size - r->rest_n), r->model);
    }
    NRD_TRY(nrd_infer_append(&call->infer, name, r->rest, (size_t)size));
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
    int64_t dims[NRD_INFER_MAX_DIMS];
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
    if (shape->n > NRD_INFER_MAX_DIMS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Unable to parse 'shape': more than %d dimensions",
                          NRD_INFER_MAX_DIMS);
    }
    for (size_t i = 0; i < shape->n; i++) {
        if (!nrd_json_is(&shape->child[i], NRD_JSON_INT) || shape->child[i].i < 0) {
            return nrd_errorf(NRD_ERR_INTERNAL, "Unable to parse 'shape': attempt to access JSON "
                                                "non-unsigned-integer as unsigned-integer");
        }
        dims[i] = shape->child[i].i;
    }
    if (!nrd_tensor_count(dims, shape->n, &count)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "invalid shape for input '%s': it causes total element count to exceed maximum size of %lld", name,
                          (long long)INT64_MAX);
    }
    NRD_TRY(nrd_infer_add_input(&call->infer, name, type, dims, shape->n));
    if (has_binary) {
        return read_binary_input(call, name, binary_size, r);
    }
    return region ? read_shm_input(call, name, params)
                  : read_json_input(call, input, name, type, count, find_slice(r, i_input));
}

static nrd_error *read_output(nrd_http_call *call, const nrd_json *output)
{
    const nrd_json *params = nrd_json_get(output, "parameters");
    const nrd_json *classes = nrd_json_get(params, "classification");
    const bool shm = nrd_json_get(params, "shared_memory_region") != NULL;
    nrd_infer_range range = {0};
    uint64_t n_classes = 0;
    const char *name;
    bool binary;

    NRD_TRY(member_string(output, "name", &name));
    if (classes && !as_u64(classes, &n_classes)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "Unable to set 'classification': attempt to access "
                                            "JSON non-unsigned-integer as unsigned-integer");
    }
    NRD_TRY(opt_bool(params, "binary_data", &binary));
    if (shm && classes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Output can't set both 'shared_memory_region' and 'classification'");
    }
    if (shm && binary) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Output can't set both 'shared_memory_region' and 'binary_data'");
    }
    if (shm) {
        NRD_TRY(read_range(params, &range));
    }
    return nrd_infer_add_output(&call->infer, name, n_classes, &range,
                                binary ? NRD_OUTPUT_BINARY : NRD_OUTPUT_JSON);
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

/* The length in the content type of a port that says it there; false: the whole body is JSON. */
static nrd_error *typed_length(const char *binary_type, const nrd_http_request *req, nrd_view *out, bool *has)
{
    const nrd_view *type = nrd_http_find_field(&req->head, "Content-Type");
    const size_t n = strlen(binary_type);
    const char *at = type ? memmem(type->p, type->n, binary_type, n) : NULL;

    *has = at != NULL;
    if (at && at != type->p) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expect MIME type for binary data starts with '%s', got: %.*s", binary_type,
                          (int)type->n, type->p);
    }
    if (at) {
        *out = (nrd_view){at + n, type->n - n};
    }
    return NULL;
}

/* Where JSON ends and binary begins. */
static nrd_error *header_length(const nrd_http_api *api, const nrd_http_request *req, size_t body_n, size_t *out)
{
    const nrd_view *v = nrd_http_find_field(&req->head, "Inference-Header-Content-Length");
    nrd_view typed;
    bool has = false;
    uint64_t n;
    *out = body_n;
    if (api->binary_type) {
        NRD_TRY(typed_length(api->binary_type, req, &typed, &has));
        v = has ? &typed : NULL;
    }
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

    NRD_TRY(header_length(call->api, call->req, n, &json_n));
    if (json_n == 0) { /* the whole body is the one input */
        call->default_kind = NRD_OUTPUT_BINARY;
        NRD_TRY(nrd_from_triton(
            TRITONSERVER_InferenceRequestAddRawInput(call->infer.request, "raw_input")));
        return nrd_infer_append(&call->infer, "raw_input", n ? body : NULL, n);
    }
    r.rest = body + json_n;
    r.rest_n = n - json_n;
    if (json_n > NRD_TENSOR_TEXT_MIN) {
        NRD_TRY(nrd_claim_bytes(&call->infer.claim, json_n, "its JSON"));
        copy = malloc(json_n);
        r.n_slices = copy ? nrd_tensor_text_cut(body, json_n, copy, slices) : 0;
    }
    nrd_error *err = nrd_http_parse_json(&doc, &call->infer.claim, r.n_slices ? copy : body, json_n);
    free(copy);
    if (!err) {
        err = read_document(call, nrd_json_root(doc), &r);
    }
    nrd_json_doc_free(doc);
    return err;
}

/* ---- writing the answer ---- */

typedef struct answer {
    nrd_http_call *call; /* shares while a worker writes */
    nrd_str *json;
    struct iovec parts[MAX_PIECES + 1];
    int n_parts; /* parts[0] is kept for the JSON */
    nrd_str packed; /* what is sent instead of the parts, where it was compressed */
    size_t json_n;
} answer;

static nrd_error *put_binary(answer *a, const nrd_infer_tensor *t)
{
    nrd_str *rest = &a->call->rest;

    nrd_str_printf(a->json, ",\"parameters\":{\"binary_data_size\":%zu}", t->size);
    if (t->size && a->n_parts < MAX_PIECES) {
        a->parts[a->n_parts++] = (struct iovec){(void *)(uintptr_t)t->base, t->size};
    } else if (t->size) {
        NRD_TRY(nrd_infer_claim_answer(&a->call->infer, t->size));
        nrd_str_append(rest, t->base, t->size);
    }
    return nrd_str_error(rest);
}

static nrd_error *put_data(answer *a, nrd_output_kind kind, const nrd_infer_tensor *t)
{
    size_t count;
    if (t->shared) {
        return NULL;
    }
    if (kind == NRD_OUTPUT_BINARY) {
        return put_binary(a, t);
    }
    if (!nrd_tensor_count(t->shape, t->n_dims, &count)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "shape of output '%s' is invalid", t->name);
    }
    nrd_str_puts(a->json, ",\"data\":");
    return nrd_tensor_json_write(a->json, t->name, t->type, t->base, t->size, count, false);
}

static nrd_error *put_output(nrd_http_call *call, TRITONSERVER_InferenceResponse *response,
                             uint32_t i, answer *a)
{
    nrd_infer_tensor t;
    nrd_error *err = nrd_infer_read_tensor(&call->infer, response, i, &t);
    if (!err && t.classes.data) { /* they are sent after this */
        t.base = nrd_arena_strndup(&call->infer.arena, t.classes.data, t.size);
        err = t.base ? NULL : nrd_error_no_memory();
    }
    nrd_infer_tensor_fini(&t);
    NRD_TRY(err);
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
    NRD_TRY(put_data(a, t.asked ? (nrd_output_kind)t.asked->form : call->default_kind, &t));
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
    return nrd_str_error(json);
}

/* The reply is sent: output buffers go back, the call loses its hold. */
static void answer_sent(void *arg)
{
    nrd_http_call *call = arg;
    nrd_infer_response_delete(call->response);
    call->response = NULL;
    nrd_infer_unref(&call->infer);
}

/* Bytes of outputs that are written as JSON or compressed, which takes time; small ones do not count. */
static size_t written_bytes(nrd_http_call *call)
{
    uint32_t n = 0;
    size_t bytes = 0;
    nrd_error *err =
        nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(call->response, &n));
    for (uint32_t i = 0; i < n && !err; i++) {
        nrd_infer_tensor t;
        err = nrd_infer_get_tensor(call->response, i, &t);
        if (err || t.size <= NRD_HTTP_LONG_TEXT / 4 / MAX_PIECES) {
            continue; /* many such ones are not long */
        }
        const nrd_infer_output *o = nrd_infer_find_output(&call->infer, t.name);
        const bool text = (o ? o->form : (int)call->default_kind) == NRD_OUTPUT_JSON;
        const bool counts = call->reply_encoding != NRD_ENCODING_IDENTITY || text;
        bytes += counts && !(o && o->shared) ? t.size : 0;
    }
    nrd_error_free(err); /* it comes again where the answer is written */
    return bytes;
}

/* On the loop or on a worker. */
static void write_answer(void *arg)
{
    answer *a = arg;
    nrd_http_call *call = a->call;

    call->err = nrd_infer_claim_answer(&call->infer, 4 * written_bytes(call));
    call->err = call->err ? call->err : put_answer(call, call->response, a);
    if (call->err) {
        return;
    }
    if (call->rest.len > 0) {
        a->parts[a->n_parts++] = (struct iovec){call->rest.data, call->rest.len};
    }
    a->parts[0].iov_base = a->json->data;
    a->parts[0].iov_len = a->json_n = a->json->len;
    if (call->reply_encoding != NRD_ENCODING_IDENTITY) {
        nrd_error *err = nrd_http_deflate(&a->packed, call->reply_encoding, a->parts, a->n_parts);
        if (err) { /* sent unpacked */
            nrd_error_free(err);
            call->reply_encoding = NRD_ENCODING_IDENTITY;
        }
    }
}

/* On the loop. Takes the answer's hold on the call. */
static void send_answer(answer *a)
{
    nrd_http_call *call = a->call;
    char extra[128] = "";
    size_t used = 0;
    const bool binary = a->n_parts > 1;

    nrd_infer_let_go(&call->infer);
    if (call->err) {
        nrd_http_fail_plain(call->req, call->err);
        call->err = NULL;
        answer_sent(call);
        return;
    }
    const char *type = binary ? "application/octet-stream" : "application/json";
    char own_type[160];
    if (binary && call->api->binary_type) {
        snprintf(own_type, sizeof own_type, "%s%zu", call->api->binary_type, a->json_n);
        type = own_type;
    } else if (binary) {
        used = (size_t)snprintf(extra, sizeof extra, "Inference-Header-Content-Length: %zu\r\n",
                                a->json_n);
    }
    if (call->reply_encoding != NRD_ENCODING_IDENTITY) {
        snprintf(extra + used, sizeof extra - used, "Content-Encoding: %s\r\n",
                 nrd_http_encoding_name(call->reply_encoding));
        nrd_http_reply(call->req, 200, type, extra, a->packed.data, a->packed.len);
        answer_sent(call);
        return;
    }
    nrd_http_replyv(call->req, 200, type, extra, a->parts, a->n_parts, answer_sent, call);
}

static void answer_written(void *arg, bool ran)
{
    answer *a = arg;
    if (!ran && !a->call->err) {
        a->call->err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    nrd_str packed = a->packed; /* the answer lies in the call's memory */
    send_answer(a);
    nrd_str_fini(&packed);
}

/* Whether writing takes more than the loop's other connections should wait for: a number's digits take
 * about four times its bytes. */
static bool is_long_answer(nrd_http_call *call)
{
    return written_bytes(call) > NRD_HTTP_LONG_TEXT / 4;
}

static void answer_call(nrd_http_call *call)
{
    answer here = {.call = call, .json = &call->text, .n_parts = 1}, *a;

    nrd_infer_ref(&call->infer); /* answer_sent drops it */
    if (is_long_answer(call) && (a = nrd_arena_alloc(&call->infer.arena, sizeof *a)) != NULL) {
        *a = here;
        nrd_error *err =
            nrd_http_work(call->api->front->workers, call->req, write_answer, answer_written, a);
        if (!err) {
            return;
        }
        nrd_error_free(err); /* no worker has time: the loop does it */
    }
    write_answer(&here);
    send_answer(&here);
    nrd_str_fini(&here.packed);
}

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    nrd_error *err = NULL;

    if (response) {
        call->n_responses++;
        nrd_infer_response_delete(call->response);
        call->response = response;
    }
    if (!final) {
        return;
    }
    if (!nrd_http_is_gone(call->req)) {
        err = nrd_http_call_error(call);
        err = err                      ? err
              : call->n_responses == 1
                  ? nrd_infer_response_error(call->response)
                  : nrd_errorf(NRD_ERR_INTERNAL, "expected a single response, got %d",
                               call->n_responses);
        err = err ? err : nrd_infer_check_regions(&call->infer);
        if (!err) {
            answer_call(call);
            return;
        }
    }
    nrd_infer_let_go(&call->infer);
    nrd_infer_response_delete(call->response);
    call->response = NULL;
    if (err) {
        nrd_http_fail_plain(call->req, err);
    }
}

/* ---- the handler ---- */

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
    NRD_TRY(nrd_inflate(&call->inflated, out_n, &call->infer.claim, e == NRD_ENCODING_GZIP,
                        req->body ? req->body : "", req->body_n, (size_t)call->api->options->http_max_input_bytes,
                        "http-max-input-size"));
    *out = call->inflated;
    return NULL;
}

/* On the loop or on a worker: everything between the body and the core. */
static nrd_error *read_body(nrd_http_call *call)
{
    const char *body;
    size_t n, header_n;
    NRD_TRY(body_of(call, &body, &n));
    NRD_TRY(header_length(call->api, call->req, n, &header_n));
    call->parsing = true;
    if (!call->model) {
        return nrd_error_no_memory();
    }
    NRD_TRY(read_request(call, body, n, call->model));
    return nrd_http_forward_headers(call);
}

static bool is_long_request(const nrd_http_api *api, const nrd_http_request *req)
{
    size_t json_n = req->body_n;
    nrd_error_free(header_length(api, req, req->body_n, &json_n));
    return json_n > NRD_HTTP_LONG_TEXT ||
           nrd_http_content_encoding(nrd_http_find_field(&req->head, "Content-Encoding")) !=
               NRD_ENCODING_IDENTITY;
}

void nrd_http_on_infer(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    nrd_http_call *call = NULL;
    nrd_error *err = NULL;
    int64_t version;

    if (nrd_http_waits_for_model(api, req, route, nrd_http_on_infer)) {
        return;
    }
    if (nrd_http_content_encoding(nrd_http_find_field(&req->head, "Content-Encoding")) ==
        NRD_ENCODING_UNKNOWN) {
        static const char text[] = "{\"error\":\"Unsupported compression type\"}";
        nrd_http_reply(req, nrd_http_status(NRD_ERR_UNSUPPORTED), "text/plain",
                       "Accept-Encoding: gzip, deflate\r\n", text, sizeof text - 1);
        return;
    }
    NRD_TRY_GOTO(nrd_http_parse_version(route->version, &version), err, fail);
    NRD_TRY_GOTO(nrd_http_call_new(&call, api, req, route->model, version), err, fail);
    if (!nrd_http_call_admit(call)) {
        return;
    }
    if (call->infer.decoupled) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "HTTP end point doesn't support models with decoupled "
                                              "transaction policy");
        goto fail;
    }
    call->on_response = on_response;
    call->default_kind = NRD_OUTPUT_JSON;
    if (!api->binary_type) { /* the services there know of no compression */
        call->reply_encoding =
            nrd_http_accept_encoding(nrd_http_find_field(&req->head, "Accept-Encoding"));
    }
    call->model = route->model;
    const bool is_long = is_long_request(api, req);
    call->model = is_long ? nrd_arena_strndup(&call->infer.arena, route->model,
                                              strlen(route->model))
                          : route->model;
    nrd_http_call_read(call, read_body, is_long);
    return;

fail:
    if (call) {
        nrd_http_call_abandon(call);
    }
    nrd_http_fail_plain(req, err);
}
