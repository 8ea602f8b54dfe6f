/* SPDX-License-Identifier: Apache-2.0
 * POST /v2/models/M[/versions/V]/generate and .../generate_stream: one flat JSON object in, one
 * flat JSON object out, or a stream of server-sent events.
 *
 * Mapping  A key that is an input of the model becomes a tensor, `id` the request id, the members
 *          of `parameters` and every other key become request parameters.
 * Source   Triton's generate extension. */
#include "base/json.h"
#include "frontends/http/call.h"
#include "frontends/http/handlers.h"
#include "frontends/http/lease.h"
#include "frontends/http/load_report.h"
#include "frontends/http/work.h"
#include "frontends/common/tensor_json.h"

#include <stdio.h>
#include <string.h>

#define MAX_KEYS 256 /* of an answer */

/* ---- reading the request ---- */

static nrd_error *no_fit(const char *name)
{
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "The schema can not convert input '%s' to tensor with proper shape", name);
}

/* The metadata's shape with its dynamic dimensions filled in for `count` elements: fixed ones
 * divide, the innermost dynamic one takes what is left, the others become 1. */
static nrd_error *fit_shape(const nrd_model_input *in, size_t count, int64_t *dims)
{
    for (size_t i = 0; i < in->n_dims; i++) {
        dims[i] = in->dims[i];
        if (dims[i] != -1) {
            if (dims[i] <= 0 || count % (size_t)dims[i] != 0) {
                return no_fit(in->name);
            }
            count /= (size_t)dims[i];
        }
    }
    for (size_t i = in->n_dims; i-- > 0;) {
        if (dims[i] == -1) {
            dims[i] = (int64_t)count;
            count = 1;
        }
    }
    return count == 1 ? NULL : no_fit(in->name);
}

static nrd_error *of_input(const char *name, nrd_error *err)
{
    return nrd_error_wrap(err, "input '%s'", name);
}

static nrd_error *set_input(nrd_http_call *call, const nrd_json *value, const nrd_model_input *in)
{
    const size_t count = nrd_json_is(value, NRD_JSON_ARRAY) ? value->n : 1;
    int64_t dims[NRD_INFER_MAX_DIMS];
    size_t size;

    if (in->n_dims > NRD_INFER_MAX_DIMS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "input '%s' has more than %d dimensions", in->name,
                          NRD_INFER_MAX_DIMS);
    }
    NRD_TRY(of_input(in->name, nrd_tensor_json_size(value, in->type, count, &size)));
    NRD_TRY(fit_shape(in, count, dims));
    char *bytes;
    NRD_TRY(nrd_infer_room(&call->infer, size, "an input", &bytes));
    NRD_TRY(of_input(in->name, nrd_tensor_json_read(value, in->name, in->type, bytes, size)));
    NRD_TRY(nrd_infer_add_input(&call->infer, in->name, in->type, dims, in->n_dims));
    return nrd_infer_append(&call->infer, in->name, bytes, size);
}

static nrd_error *set_value(nrd_http_call *call, const nrd_json *value, const nrd_model_info *model)
{
    const nrd_model_input *in = nrd_model_info_input(model, value->key);
    if (in) {
        return set_input(call, value, in);
    }
    /* Also a parameter like any other, which it alone is in Triton. */
    if (strcmp(value->key, "timeout") == 0 && value->type == NRD_JSON_INT && value->i > 0) {
        nrd_infer_end_within(&call->infer, (uint64_t)value->i);
    }
    return nrd_http_set_parameter(call, value->key, value);
}

static nrd_error *set_id(nrd_http_call *call, const nrd_json *id)
{
    if (!nrd_json_is(id, NRD_JSON_STRING) || strlen(id->str) != id->n) {
        return nrd_errorf(NRD_ERR_INTERNAL,
                          "Unable to parse 'id': attempt to access JSON non-string as string");
    }
    return nrd_from_triton(TRITONSERVER_InferenceRequestSetId(call->infer.request, id->str));
}

static nrd_error *set_nested(nrd_http_call *call, const nrd_json *object,
                             const nrd_model_info *model)
{
    if (nrd_model_info_input(model, object->key)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "Keyword '%s' for nested schema also given as input tensor name",
                          object->key);
    }
    if (!nrd_json_is(object, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INTERNAL,
                          "Expected JSON object for keyword: '%s': attempt to access JSON "
                          "non-object as object",
                          object->key);
    }
    for (size_t i = 0; i < object->n; i++) {
        nrd_error *err = set_value(call, &object->child[i], model);
        if (err) {
            return nrd_error_wrap(err, "Converting keyword: '%s'", object->key);
        }
    }
    return NULL;
}

static nrd_error *read_document(nrd_http_call *call, const nrd_json *root,
                                const nrd_model_info *model)
{
    if (!nrd_json_is(root, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "attempt to get members for non-object");
    }
    for (size_t i = 0; i < root->n; i++) {
        const nrd_json *v = &root->child[i];
        if (strcmp(v->key, "parameters") == 0) {
            NRD_TRY(set_nested(call, v, model));
        } else if (strcmp(v->key, "id") == 0) {
            NRD_TRY(set_id(call, v));
            if (nrd_model_info_input(model, "id")) {
                NRD_TRY(set_value(call, v, model));
            }
        } else {
            NRD_TRY(set_value(call, v, model));
        }
    }
    return NULL;
}

/* ---- writing an answer: keys in alphabetical order ---- */

typedef enum { KEY_TEXT, KEY_PARAMETER, KEY_OUTPUT } key_kind;

typedef struct answer_key {
    const char *name;
    key_kind kind;
    uint32_t index;
    const char *text;
} answer_key;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const answer_key *)a)->name, ((const answer_key *)b)->name);
}

static bool add_key(answer_key *keys, size_t *n, const char *name, key_kind kind, uint32_t index,
                    const char *text)
{
    for (size_t i = 0; i < *n; i++) {
        if (strcmp(keys[i].name, name) == 0) {
            return true; /* reserved names win, then parameters, then outputs */
        }
    }
    if (*n == MAX_KEYS) {
        return false;
    }
    keys[(*n)++] = (answer_key){name, kind, index, text};
    return true;
}

static nrd_error *put_output(nrd_str *out, nrd_http_call *call,
                             TRITONSERVER_InferenceResponse *response, uint32_t index)
{
    nrd_infer_tensor t;
    size_t count;

    NRD_TRY(nrd_infer_read_tensor(&call->infer, response, index, &t));
    if (!nrd_tensor_count(t.shape, t.n_dims, &count)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "shape of output '%s' is invalid", t.name);
    }
    nrd_json_put_cstr(out, t.name);
    nrd_str_putc(out, ':');
    return nrd_tensor_json_write(out, t.name, t.type, t.base, t.size, count, true);
}

static nrd_error *put_key(nrd_str *out, nrd_http_call *call,
                          TRITONSERVER_InferenceResponse *response, const answer_key *key)
{
    const char *name;
    TRITONSERVER_ParameterType type;
    const void *value;

    switch (key->kind) {
    case KEY_TEXT:
        nrd_json_put_cstr(out, key->name);
        nrd_str_putc(out, ':');
        nrd_json_put_cstr(out, key->text);
        return NULL;
    case KEY_PARAMETER:
        NRD_TRY(nrd_from_triton(
            TRITONSERVER_InferenceResponseParameter(response, key->index, &name, &type, &value)));
        return nrd_http_put_parameter(out, name, type, value);
    case KEY_OUTPUT:
        break;
    }
    return put_output(out, call, response, key->index);
}

static nrd_error *collect_keys(nrd_http_call *call, TRITONSERVER_InferenceResponse *response,
                               answer_key *keys, size_t *n)
{
    uint32_t count = 0;
    bool fits = true;

    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseParameterCount(response, &count)));
    for (uint32_t i = 0; i < count; i++) {
        const char *name;
        TRITONSERVER_ParameterType type;
        const void *value;
        NRD_TRY(nrd_from_triton(
            TRITONSERVER_InferenceResponseParameter(response, i, &name, &type, &value)));
        fits = fits && add_key(keys, n, name, KEY_PARAMETER, i, NULL);
    }
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(response, &count)));
    for (uint32_t i = 0; i < count; i++) {
        nrd_infer_tensor t;
        NRD_TRY(nrd_infer_read_tensor(&call->infer, response, i, &t));
        fits = fits && add_key(keys, n, t.name, KEY_OUTPUT, i, NULL);
    }
    return fits ? NULL
                : nrd_errorf(NRD_ERR_UNSUPPORTED, "more than %d values in one answer", MAX_KEYS);
}

static nrd_error *put_answer(nrd_str *out, nrd_http_call *call,
                             TRITONSERVER_InferenceResponse *response)
{
    answer_key keys[MAX_KEYS];
    size_t n = 0;
    const char *id = "", *model;
    int64_t version;
    char version_text[24];

    NRD_TRY(nrd_infer_response_error(response));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseId(response, &id)));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseModel(response, &model, &version)));
    snprintf(version_text, sizeof version_text, "%lld", (long long)version);
    if (id && id[0]) {
        add_key(keys, &n, "id", KEY_TEXT, 0, id);
    }
    add_key(keys, &n, "model_name", KEY_TEXT, 0, model);
    add_key(keys, &n, "model_version", KEY_TEXT, 0, version_text);
    NRD_TRY(collect_keys(call, response, keys, &n));
    qsort(keys, n, sizeof *keys, by_name);
    nrd_str_putc(out, '{');
    for (size_t i = 0; i < n; i++) {
        if (i) {
            nrd_str_putc(out, ',');
        }
        NRD_TRY(put_key(out, call, response, &keys[i]));
    }
    nrd_str_putc(out, '}');
    return NULL;
}

/* Bytes of the tensors in an answer. */
static size_t output_bytes(TRITONSERVER_InferenceResponse *response)
{
    uint32_t n = 0;
    size_t bytes = 0;
    nrd_error *err = nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(response, &n));

    for (uint32_t i = 0; i < n && !err; i++) {
        nrd_infer_tensor t;
        err = nrd_infer_get_tensor(response, i, &t);
        bytes += err ? 0 : t.size;
    }
    nrd_error_free(err); /* it comes again where the answer is written */
    return bytes;
}

/* Fills call->text with one answer or error, framed as an event in a stream. Returns the status. */
static int build(nrd_http_call *call, TRITONSERVER_InferenceResponse *response)
{
    nrd_str *t = &call->text;
    int status = 200;
    nrd_str_clear(t);
    if (call->stream) {
        nrd_str_puts(t, "data: ");
    }
    nrd_error *err = put_answer(t, call, response);
    err = err ? err : nrd_str_error(t);
    if (err) {
        status = nrd_http_status(nrd_error_get_code(err));
        nrd_str_clear(t);
        nrd_str_puts(t, call->stream ? "data: " : "");
        nrd_str_puts(t, "{\"error\":");
        nrd_json_put_cstr(t, nrd_error_message(err));
        nrd_str_putc(t, '}');
        nrd_error_free(err);
    }
    if (call->stream) {
        nrd_str_puts(t, "\n\n");
    }
    return status;
}

static void on_stream_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response,
                               bool final)
{
    if (!nrd_http_is_gone(call->req)) {
        int status = response ? build(call, response) : 200;
        if (!call->started) { /* the first answer decides the status of the whole stream */
            call->started = true;
            nrd_str load = {0};
            nrd_http_put_load(&load, call->api, call->req);
            nrd_http_stream_begin(call->req, status, "text/event-stream; charset=utf-8", load.no_memory ? NULL : nrd_str_cstr(&load));
            nrd_str_fini(&load);
        }
        if (response) {
            nrd_http_stream_put(call->req, &call->text);
        }
        if (final) {
            if (nrd_http_call_error(call)) {
                nrd_str_spoil(&call->text);
                nrd_http_stream_put(call->req, &call->text);
            }
            nrd_http_stream_end(call->req);
        }
    }
    nrd_infer_response_delete(response);
}

/* ---- not streaming ---- */

static void build_one(void *arg)
{
    nrd_http_call *call = arg;
    const int status = build(call, call->response);
    call->status = call->first_is_empty ? 200 : status;
}

static void send_one(void *arg, bool ran)
{
    nrd_http_call *call = arg;
    if (ran) {
        nrd_str load = {0};
        nrd_http_put_load(&load, call->api, call->req);
        nrd_http_reply_str(call->req, call->status, "application/json", load.no_memory ? NULL : nrd_str_cstr(&load), &call->text);
        nrd_str_fini(&load);
    } else {
        nrd_http_fail(call->req, nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down"));
    }
    nrd_infer_response_delete(call->response);
    call->response = NULL;
    nrd_infer_unref(&call->infer);
}

/* The one answer; a worker writes a long one. */
static void answer(nrd_http_call *call)
{
    const size_t bytes = output_bytes(call->response);
    nrd_error *err = nrd_infer_claim_answer(&call->infer, 4 * bytes);

    if (err) {
        nrd_infer_response_delete(call->response);
        call->response = NULL;
        nrd_http_fail(call->req, err);
        return;
    }
    nrd_infer_ref(&call->infer); /* send_one drops it */
    nrd_http_work_if(bytes > NRD_HTTP_LONG_TEXT / 4, call->api->front->workers, call->req, build_one, send_one, call);
}

/* Exactly one answer with content. The status is that of the first answer, as in Triton, whose check comes
 * after the status line has been sent. */
static void on_single_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response,
                               bool final)
{
    static const char too_many[] =
        "{\"error\":\"generate expects model to produce exactly 1 response, use generate stream "
        "for model that generates various number of responses\"}";

    call->first_is_empty = call->started ? call->first_is_empty : !response;
    call->started = true;
    if (response && ++call->n_responses == 1) {
        call->response = response;
    } else {
        nrd_infer_response_delete(response);
    }
    if (!final) {
        return;
    }
    nrd_error *err = nrd_http_is_gone(call->req) ? nrd_error_no_memory() : nrd_http_call_error(call);
    if (!err && call->n_responses == 1) {
        answer(call);
        return;
    }
    if (!err) {
        int status = 200;
        if (call->response && !call->first_is_empty) {
            nrd_error *first = nrd_infer_response_error(call->response);
            status = first ? nrd_http_status(nrd_error_get_code(first)) : 200;
            nrd_error_free(first);
        }
        nrd_http_reply(call->req, status, "application/json", NULL, too_many, sizeof too_many - 1);
    }
    nrd_infer_response_delete(call->response);
    call->response = NULL;
    if (err) {
        nrd_http_fail(call->req, err); /* to nobody, where the client is gone */
    }
}

/* ---- the handler ---- */

/* On the loop or on a worker. */
static nrd_error *read_body(nrd_http_call *call)
{
    nrd_json_doc *doc = NULL;
    NRD_TRY(nrd_http_parse_json(&doc, &call->infer.claim, call->req->body, call->req->body_n));
    nrd_error *err = read_document(call, nrd_json_root(doc), call->info);
    nrd_json_doc_free(doc);
    return err ? err : nrd_http_forward_headers(call);
}

static void generate(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route,
                     bool stream)
{
    nrd_http_call *call = NULL;
    const nrd_model_info *model = NULL;
    nrd_error *err = NULL;
    int64_t version;

    NRD_TRY_GOTO(nrd_http_parse_version(route->version, &version), err, fail);
    NRD_TRY_GOTO(nrd_models_get(api->front->models, route->model, version, &model), err, fail);
    if (nrd_http_content_encoding(nrd_http_find_field(&req->head, "Content-Encoding")) !=
        NRD_ENCODING_IDENTITY) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "Unsupported content-encoding, only 'identity' is supported.");
        goto fail;
    }
    NRD_TRY_GOTO(nrd_http_call_new(&call, api, req, route->model, version), err, fail);
    if (!nrd_http_call_admit(call)) {
        nrd_model_info_unref(model);
        return;
    }
    call->stream = stream;
    call->on_response = stream ? on_stream_response : on_single_response;
    call->info = model;
    model = NULL;
    call->parsing = true;
    nrd_http_call_read(call, read_body, req->body_n > NRD_HTTP_LONG_TEXT);
    return;

fail:
    nrd_model_info_unref(model);
    if (call) {
        nrd_http_call_abandon(call);
    }
    nrd_http_fail(req, err);
}

void nrd_http_on_generate(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    if (!nrd_http_waits_for_model(user, req, route, nrd_http_on_generate)) {
        generate(user, req, route, false);
    }
}

void nrd_http_on_generate_stream(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    if (!nrd_http_waits_for_model(user, req, route, nrd_http_on_generate_stream)) {
        generate(user, req, route, true);
    }
}
