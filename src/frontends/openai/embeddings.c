/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/embeddings {model, input, encoding_format, dimensions}: one request to the model for each
 * input, whose answer is a vector; vectors leave with length 1. */
#include "frontends/openai/internal.h"

#include "base/base64.h"
#include "base/clock.h"

#include <math.h>
#include <string.h>

typedef struct embed_request embed_request;

typedef struct embed_input {
    embed_request *r;
    nrd_ids ids;
    nrd_http_call *call; /* shares while it runs */
    float *vector;       /* [n] once it is known */
    size_t n;
} embed_input;

struct embed_request {
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    nrd_oai_model *model;
    nrd_json_doc *doc;
    char *extra;
    nrd_error *err; /* of reading the body */
    nrd_str out;    /* the answer */
    bool base64, failed, ollama;
    uint64_t begun_ns;
    int64_t dimensions; /* 0: not said */
    embed_input *inputs;
    size_t n_inputs, n_done, n_active;
    int refs; /* one for each running call and one for the handler; loop thread only */
};

static void unref(embed_request *r)
{
    if (--r->refs > 0) {
        return;
    }
    for (size_t i = 0; i < r->n_inputs; i++) {
        nrd_ids_fini(&r->inputs[i].ids);
        free(r->inputs[i].vector);
    }
    free(r->inputs);
    free(r->extra);
    nrd_str_fini(&r->out);
    nrd_oai_model_unref(r->model);
    nrd_json_doc_free(r->doc);
    nrd_http_request_unref(r->req);
    free(r);
}

static void cancel_all(embed_request *r)
{
    for (size_t i = 0; i < r->n_inputs; i++) {
        if (r->inputs[i].call) {
            nrd_infer_cancel(&r->inputs[i].call->infer);
        }
    }
}

static void on_gone(nrd_http_request *req, void *arg)
{
    (void)req;
    cancel_all(arg);
}

/* The first error answers. Takes err. */
static void fail(embed_request *r, nrd_error *err)
{
    if (r->failed || nrd_http_is_gone(r->req)) {
        nrd_error_free(err);
    } else {
        nrd_oai_fail(r->req, err, r->extra);
    }
    r->failed = true;
    r->req->on_gone = NULL;
    cancel_all(r);
}

/* ---- the body ---- */

static nrd_error *bad_input(void)
{
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "input", "must be a string, a list of strings, a list of token "
                                           "ids or a list of such lists");
}

static nrd_error *add_input(embed_request *r, const nrd_json *v)
{
    const nrd_tokenizer *t = r->model->tokenizer;
    embed_input *in = &r->inputs[r->n_inputs++];
    in->r = r;
    if (v->type == NRD_JSON_STRING) {
        NRD_TRY(nrd_oai_check_prompt(r->model, v->n, "input"));
        NRD_TRY(nrd_tokenizer_encode(t, v->str, v->n,
                                     NRD_ENCODE_ADD_SPECIAL | NRD_ENCODE_PARSE_SPECIAL, &in->ids));
    } else if (v->type == NRD_JSON_ARRAY) {
        for (size_t i = 0; i < v->n; i++) {
            int64_t id = v->child[i].type == NRD_JSON_INT ? v->child[i].i : -1;
            if (id < 0 || id >= nrd_tokenizer_vocab_size(t)) {
                return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "input",
                                  "holds something that is no token id of this model");
            }
            nrd_ids_push(&in->ids, (int32_t)id);
        }
    } else {
        return bad_input();
    }
    NRD_TRY(nrd_ids_error(&in->ids));
    return in->ids.n > 0 ? NULL
                         : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "input", "element %zu has no token",
                                      r->n_inputs - 1);
}

static nrd_error *read_inputs(embed_request *r, const nrd_json *v)
{
    bool list = nrd_json_is(v, NRD_JSON_ARRAY) && v->n > 0 && !nrd_json_is_number(&v->child[0]);
    size_t n = list ? v->n : 1;
    if (!v || (v->type != NRD_JSON_STRING && v->type != NRD_JSON_ARRAY)) {
        return bad_input();
    }
    if (n > OAI_MAX_INPUTS) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "input", "at most %d in one request", OAI_MAX_INPUTS);
    }
    r->inputs = calloc(n, sizeof *r->inputs);
    if (!r->inputs) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < n; i++) {
        NRD_TRY(add_input(r, list ? &v->child[i] : v));
    }
    return NULL;
}

/* Names of unknown fields are listed in a header of the answer. */
static void note_unknown(embed_request *r, const nrd_json *root)
{
    static const char *const known[] = {"model", "input", "encoding_format", "dimensions", "user",
                                        /* Ollama's, without effect: nothing is cut, and models stay */
                                        "truncate", "options", "keep_alive"};
    const size_t n_known = r->ollama ? sizeof known / sizeof known[0] : 5;
    nrd_str names = {0};
    for (size_t i = 0; i < root->n; i++) {
        const nrd_json *v = &root->child[i];
        bool plain = v->key_len > 0 && v->key_len < 64 && names.len < 512;
        for (size_t k = 0; k < n_known; k++) {
            plain = plain && strcmp(v->key, known[k]) != 0;
        }
        for (size_t c = 0; c < v->key_len && plain; c++) {
            plain = v->key[c] > ' ' && v->key[c] < 0x7f;
        }
        if (plain) {
            nrd_str_printf(&names, names.len ? ", %s" : "%s", v->key);
        }
    }
    if (names.len > 0 && !names.no_memory) {
        r->extra = nrd_oai_warn_unknown(r->extra, names.data);
    }
    nrd_str_fini(&names);
}

static nrd_error *read_body(embed_request *r, nrd_openai *o, const nrd_json *root)
{
    const nrd_json *name = nrd_json_get(root, "model"), *d = nrd_json_get(root, "dimensions");
    const nrd_json *format = nrd_json_get(root, "encoding_format");

    if (!nrd_json_is(name, NRD_JSON_STRING)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "model", "must be the name of a model");
    }
    NRD_TRY(r->ollama ? nrd_oai_ollama_find(o, name, &r->model) : nrd_oai_find_model(o, name->str, &r->model));
    if (!r->model->pooling) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' gives no embeddings (embedding_pooling "
                          "is none)", name->str);
    }
    if (format && format->type != NRD_JSON_NULL) {
        const char *s = nrd_json_str(format, "");
        r->base64 = !strcmp(s, "base64");
        if (!r->base64 && strcmp(s, "float") != 0) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "encoding_format", "must be float or base64");
        }
    }
    if (d && d->type != NRD_JSON_NULL) {
        r->dimensions = nrd_json_int(d, 0);
        if (d->type != NRD_JSON_INT || r->dimensions < 1) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "dimensions", "must be a whole number from 1");
        }
    }
    note_unknown(r, root);
    return read_inputs(r, nrd_json_get(root, "input"));
}

/* ---- the answer ---- */

static void put_vector(const embed_request *r, nrd_str *out, const embed_input *in)
{
    if (r->base64) {
        nrd_str_putc(out, '"');
        nrd_base64_encode((const char *)in->vector, in->n * sizeof *in->vector, out);
        nrd_str_putc(out, '"');
        return;
    }
    for (size_t i = 0; i < in->n; i++) {
        nrd_str_putc(out, i ? ',' : '[');
        nrd_json_put_float(out, in->vector[i]);
    }
    nrd_str_putc(out, ']');
}

/* As Ollama's /api/embed has it. */
static void put_ollama(const embed_request *r, nrd_str *out)
{
    size_t n_tokens = 0;
    nrd_str_puts(out, "{\"model\":");
    nrd_json_put_cstr(out, r->model->name);
    nrd_str_puts(out, ",\"embeddings\":[");
    for (size_t i = 0; i < r->n_inputs; i++) {
        nrd_str_puts(out, i ? "," : "");
        put_vector(r, out, &r->inputs[i]);
        n_tokens += r->inputs[i].ids.n;
    }
    nrd_str_printf(out, "],\"total_duration\":%llu,\"load_duration\":0,\"prompt_eval_count\":%zu}",
                   (unsigned long long)(nrd_now_ns() - r->begun_ns), n_tokens);
}

/* On the loop or on a worker. */
static void put_answer(void *arg)
{
    embed_request *r = arg;
    nrd_str *out = &r->out;
    size_t n_tokens = 0;
    if (r->ollama) {
        put_ollama(r, out);
        return;
    }
    nrd_str_puts(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < r->n_inputs; i++) {
        nrd_str_printf(out, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "", i);
        put_vector(r, out, &r->inputs[i]);
        nrd_str_putc(out, '}');
        n_tokens += r->inputs[i].ids.n;
    }
    nrd_str_puts(out, "],\"model\":");
    nrd_json_put_cstr(out, r->model->name);
    nrd_str_printf(out, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", n_tokens, n_tokens);
}

static void send_answer(void *arg, bool ran)
{
    embed_request *r = arg;
    if (ran) {
        nrd_http_reply_str(r->req, 200, "application/json", r->extra, &r->out);
    } else {
        fail(r, nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down"));
    }
    unref(r);
}

/* A long one is written by a worker. */
static void answer(embed_request *r)
{
    size_t bytes = 0;

    for (size_t i = 0; i < r->n_inputs; i++) {
        bytes += r->inputs[i].n * 12; /* a number's digits; less in base64 */
    }
    nrd_error *err = nrd_claim_bytes(&r->req->claim, bytes, "its answer");
    if (err) {
        fail(r, err);
        return;
    }
    r->refs++;
    if (bytes > NRD_HTTP_LONG_TEXT) {
        err = nrd_http_work(r->o->api->front->workers, r->req, put_answer, send_answer, r);
        if (!err) {
            return;
        }
        nrd_error_free(err); /* no worker has time: the loop writes it */
    }
    put_answer(r);
    send_answer(r, true);
}

/* ---- the model ---- */

/* Keeps a vector of length 1 (one of zeros stays). */
static nrd_error *keep(embed_input *in, const float *v, size_t n)
{
    const embed_request *r = in->r;
    double sum = 0;
    if (r->dimensions > 0 && (size_t)r->dimensions != n) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "dimensions", "this model's embeddings have %zu and were not "
                          "trained to be cut", n);
    }
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(v[i])) {
            return nrd_errorf(NRD_ERR_INTERNAL, "The model gave an embedding that is not finite.");
        }
        sum += (double)v[i] * (double)v[i];
    }
    free(in->vector);
    in->vector = calloc(n > 0 ? n : 1, sizeof *in->vector);
    if (!in->vector) {
        return nrd_error_no_memory();
    }
    in->n = n;
    for (size_t i = 0; i < n && sum > 0; i++) {
        in->vector[i] = (float)((double)v[i] / sqrt(sum));
    }
    return NULL;
}

static nrd_error *read_response(embed_input *in, TRITONSERVER_InferenceResponse *response)
{
    uint32_t n = 0;
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseError(response)));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(response, &n)));
    for (uint32_t i = 0; i < n; i++) {
        nrd_oai_output o;
        NRD_TRY(nrd_oai_output_get(response, i, &o));
        if (!strcmp(o.name, "embedding") && o.type == TRITONSERVER_TYPE_FP32) {
            return keep(in, o.base, o.bytes / sizeof(float));
        }
    }
    return NULL;
}

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    embed_input *in = call->user;
    embed_request *r = in->r;
    nrd_error *err = response && !r->failed ? read_response(in, response) : NULL;

    if (final) {
        in->call = NULL;
        r->n_active--;
        r->req->on_gone = r->n_active > 0 && !r->failed ? on_gone : NULL;
        r->n_done++;
        if (!err && !in->vector) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "The model ended before it gave an embedding.");
        }
    }
    if (err) {
        fail(r, err);
    }
    if (!r->failed && r->n_done == r->n_inputs && !nrd_http_is_gone(r->req)) {
        answer(r);
    }
    nrd_infer_response_delete(response);
    if (final) {
        unref(r);
    }
}

static nrd_error *fill(nrd_http_call *call, const embed_input *in)
{
    const nrd_oai_model *m = in->r->model;
    const int64_t shape[] = {1, (int64_t)in->ids.n};

    NRD_TRY(nrd_oai_add(call, "input_ids", TRITONSERVER_TYPE_INT32, shape, 2, in->ids.ids,
                        in->ids.n * sizeof *in->ids.ids));
    NRD_TRY(nrd_oai_add_i32(call, m, "input_lengths", (int64_t)in->ids.n));
    NRD_TRY(nrd_oai_add_i32(call, m, "request_output_len", 1));
    NRD_TRY(nrd_oai_add_adapter(call, m));
    NRD_TRY(nrd_oai_add_background(call));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetStringParameter(
        call->infer.request, "pooling", m->pooling)));
    for (size_t i = 0; i < 2; i++) { /* ids and their number */
        NRD_TRY(m->outputs & 1u << i ? nrd_from_triton(TRITONSERVER_InferenceRequestAddRequestedOutput(
                                           call->infer.request, nrd_oai_outputs[i]))
                                     : NULL);
    }
    return nrd_http_forward_headers(call);
}

static nrd_error *start_input(nrd_openai *o, embed_input *in)
{
    embed_request *r = in->r;
    nrd_http_call *call = NULL;
    NRD_TRY(nrd_http_call_new(&call, o->api, r->req, r->model->llm, -1));
    call->on_response = on_response;
    call->user = in;
    nrd_error *err = fill(call, in);
    if (!err) {
        err = nrd_http_call_submit(call);
    }
    if (err) {
        nrd_http_call_abandon(call);
        return err;
    }
    in->call = call;
    r->refs++;
    r->n_active++;
    return NULL;
}

static nrd_error *start(nrd_openai *o, embed_request *r)
{
    nrd_claim_open(&r->req->claim); /* all inputs are one request */
    for (size_t i = 0; i < r->n_inputs; i++) {
        NRD_TRY(start_input(o, &r->inputs[i]));
    }
    r->req->on_gone = on_gone;
    r->req->gone_arg = r;
    if (nrd_http_is_gone(r->req)) {
        cancel_all(r);
    }
    return NULL;
}

/* On the loop or on a worker. */
static void read_request(void *arg)
{
    embed_request *r = arg;
    if (!r->doc) {
        r->err = nrd_oai_body(r->req, &r->doc);
    }
    if (!r->err) {
        r->err = read_body(r, r->o, nrd_json_root(r->doc));
    }
}

/* Back on the loop. */
static void begin(void *arg, bool ran)
{
    embed_request *r = arg;
    nrd_error *err = r->err;
    r->err = NULL;
    if (!ran && !err) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    if (!err && !nrd_http_is_gone(r->req)) {
        err = start(r->o, r);
    }
    if (err) {
        fail(r, err);
    }
    unref(r);
}

static void embed(nrd_openai *o, nrd_http_request *req, char *extra, nrd_json_doc *doc, const nrd_oai_what *what)
{
    (void)what;
    embed_request *r = calloc(1, sizeof *r);
    if (!r) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        nrd_json_doc_free(doc);
        free(extra);
        return;
    }
    r->o = o;
    r->doc = doc;
    r->ollama = nrd_oai_form_of(req) == &nrd_oai_form_ollama_chat;
    r->begun_ns = nrd_now_ns();
    r->req = req;
    r->extra = extra;
    r->refs = 1;
    nrd_http_request_ref(req);
    if (nrd_oai_is_short(o, req, &r->doc, &r->err)) {
        if (!r->err) {
            read_request(r);
        }
        begin(r, true);
        return;
    }
    nrd_error *err = nrd_http_work(o->api->front->workers, req, read_request, begin, r);
    if (err) { /* else the request is the worker's */
        r->err = err;
        begin(r, true);
    }
}

void nrd_oai_on_embeddings(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_openai *o = user;
    char *extra = NULL;

    (void)route;
    if (nrd_oai_admit(o, req, true, &extra)) {
        nrd_oai_pass(o, req, extra, (nrd_oai_what){0}, embed);
    }
}
