/* SPDX-License-Identifier: Apache-2.0
 * The life of a request that asks for one vector an input. */
#include "frontends/openai/pooled.h"

#include "base/clock.h"
#include "nereid/llm_tensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void nrd_pooled_unref(nrd_pooled *r)
{
    if (--r->refs > 0) {
        return;
    }
    if (r->kind->fini) {
        r->kind->fini(r);
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
    nrd_oai_give_place(r->o, r->req, r->quota);
    nrd_http_request_unref(r->req);
    free(r);
}

static void cancel_all(nrd_pooled *r)
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
static void fail(nrd_pooled *r, nrd_error *err)
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

/* ---- for the kinds ---- */

nrd_error *nrd_pooled_reserve(nrd_pooled *r, size_t n, const char *field)
{
    if (n > OAI_MAX_INPUTS) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "at most %d in one request", OAI_MAX_INPUTS);
    }
    r->inputs = calloc(n > 0 ? n : 1, sizeof *r->inputs);
    if (!r->inputs) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < n; i++) {
        r->inputs[i].r = r;
    }
    r->n_inputs = n;
    return NULL;
}

nrd_error *nrd_pooled_encode(const nrd_pooled *r, const nrd_json *text, const char *field, nrd_ids *out)
{
    NRD_TRY(nrd_oai_check_prompt(r->model, text->n, field));
    return nrd_tokenizer_encode(r->model->tokenizer, text->str, text->n, NRD_ENCODE_PARSE_SPECIAL, out);
}

nrd_error *nrd_pooled_take_ids(const nrd_pooled *r, const nrd_json *list, const char *field, nrd_ids *out)
{
    for (size_t i = 0; i < list->n; i++) {
        int64_t id = list->child[i].type == NRD_JSON_INT ? list->child[i].i : -1;
        if (id < 0 || id >= nrd_tokenizer_vocab_size(r->model->tokenizer)) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "holds something that is no token id of this model");
        }
        nrd_ids_push(out, (int32_t)id);
    }
    return nrd_ids_error(out);
}

nrd_error *nrd_pooled_limit(const nrd_pooled *r, const nrd_json *root, size_t *out)
{
    static const char field[] = "truncate_prompt_tokens";
    const nrd_json *v = nrd_json_get(root, field);

    *out = 0;
    if (!nrd_oai_given(v)) {
        return NULL;
    }
    int64_t n = v->type == NRD_JSON_INT ? v->i : 0;
    if (n < -1 || n == 0 || n > INT32_MAX) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a number of tokens, or -1 for the model's most");
    }
    if (n < 0 && r->model->max_tokens == 0) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, field, "-1: how many tokens this model takes is not known here; "
                              "give a number");
    }
    *out = (size_t)(n < 0 ? r->model->max_tokens : n);
    return NULL;
}

nrd_error *nrd_pooled_frame(nrd_pooled *r, const nrd_ids *a, const nrd_ids *b, size_t limit, nrd_pooled_input *in)
{
    const size_t special = nrd_tokenizer_n_special(r->model->tokenizer, b != NULL);
    nrd_ids first = *a, second = b ? *b : (nrd_ids){0}; /* borrowed, and made shorter */

    if (limit > 0 && limit <= special) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "truncate_prompt_tokens", "must leave room for the %zu special tokens "
                              "of an input, got %zu", special, limit);
    }
    if (limit > 0) {
        nrd_tokenizer_cut_longest(&first.n, &second.n, limit - special);
    }
    return nrd_tokenizer_frame(r->model->tokenizer, &first, b ? &second : NULL, &in->ids, &in->second_from);
}

void nrd_pooled_note_unknown(nrd_pooled *r, const nrd_json *root, const char *const *known)
{
    nrd_str names = {0};
    for (size_t i = 0; i < root->n; i++) {
        const nrd_json *v = &root->child[i];
        bool plain = v->key_len > 0 && v->key_len < 64 && names.len < 512;
        for (size_t k = 0; known[k]; k++) {
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

size_t nrd_pooled_n_tokens(const nrd_pooled *r)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_inputs; i++) {
        n += r->inputs[i].ids.n;
    }
    return n;
}

void nrd_pooled_put_usage(const nrd_pooled *r, nrd_str *out)
{
    const size_t n = nrd_pooled_n_tokens(r);
    nrd_str_printf(out, "\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}", n, n);
}

void nrd_pooled_apply(const char *function, float *v, size_t n)
{
    double sum = 0;
    float most = n > 0 ? v[0] : 0;

    if (!strcmp(function, "sigmoid")) {
        for (size_t i = 0; i < n; i++) {
            v[i] = (float)(1 / (1 + exp(-(double)v[i])));
        }
        return;
    }
    if (strcmp(function, "softmax") != 0) {
        return;
    }
    for (size_t i = 1; i < n; i++) {
        most = v[i] > most ? v[i] : most;
    }
    for (size_t i = 0; i < n; i++) {
        sum += exp((double)v[i] - (double)most);
    }
    for (size_t i = 0; i < n; i++) {
        v[i] = (float)(exp((double)v[i] - (double)most) / sum);
    }
}

/* ---- the answer ---- */

/* On the loop or on a worker. */
static void put_answer(void *arg)
{
    nrd_pooled *r = arg;
    r->kind->put(r);
}

static void send_answer(void *arg, bool ran)
{
    nrd_pooled *r = arg;
    if (ran) {
        nrd_http_reply_str(r->req, 200, "application/json", r->extra, &r->out);
    } else {
        fail(r, nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down"));
    }
    nrd_pooled_unref(r);
}

/* A long one is written by a worker. */
static void answer(nrd_pooled *r)
{
    const size_t bytes = r->kind->answer_bytes(r);
    nrd_error *err = nrd_claim_bytes(&r->req->claim, bytes, "its answer");
    if (err) {
        fail(r, err);
        return;
    }
    r->refs++;
    nrd_http_work_if(bytes > NRD_HTTP_LONG_TEXT, r->o->api->front->workers, r->req, put_answer, send_answer, r);
}

/* ---- the model ---- */

/* Keeps the numbers of one input. */
static nrd_error *keep(nrd_pooled_input *in, const float *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(v[i])) {
            return nrd_errorf(NRD_ERR_INTERNAL, "The model gave a number that is not finite.");
        }
    }
    free(in->vector);
    in->vector = calloc(n > 0 ? n : 1, sizeof *in->vector);
    if (!in->vector) {
        return nrd_error_no_memory();
    }
    memcpy(in->vector, v, n * sizeof *v);
    in->n = n;
    return in->r->kind->keep ? in->r->kind->keep(in) : NULL;
}

static nrd_error *read_response(nrd_pooled_input *in, TRITONSERVER_InferenceResponse *response)
{
    uint32_t n = 0;
    NRD_TRY(nrd_oai_plain_error(nrd_infer_response_error(response), NULL));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(response, &n)));
    for (uint32_t i = 0; i < n; i++) {
        nrd_infer_tensor o;
        NRD_TRY(nrd_infer_get_tensor(response, i, &o));
        if ((!strcmp(o.name, "embedding") || !strcmp(o.name, "label_logits")) && o.type == TRITONSERVER_TYPE_FP32) {
            return keep(in, o.base, o.size / sizeof(float));
        }
    }
    return NULL;
}

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    nrd_pooled_input *in = call->user;
    nrd_pooled *r = in->r;
    nrd_error *err = response && !r->failed ? read_response(in, response) : NULL;

    if (final) {
        in->call = NULL;
        r->n_active--;
        r->req->on_gone = r->n_active > 0 && !r->failed ? on_gone : NULL;
        r->n_done++;
        if (!err && !in->vector) {
            err = nrd_errorf(NRD_ERR_UNAVAILABLE, "The model ended before it answered.");
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
        nrd_pooled_unref(r);
    }
}

static nrd_error *fill(nrd_http_call *call, const nrd_pooled_input *in)
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
        call->infer.request, NRD_LLM_POOLING, in->r->pooling)));
    if (in->second_from > 0) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetIntParameter(
            call->infer.request, NRD_LLM_SECOND_FROM, (int64_t)in->second_from)));
    }
    for (size_t i = 0; i < 2; i++) { /* ids and their number */
        NRD_TRY(m->outputs & 1u << i ? nrd_from_triton(TRITONSERVER_InferenceRequestAddRequestedOutput(
                                           call->infer.request, nrd_oai_outputs[i]))
                                     : NULL);
    }
    return nrd_http_forward_headers(call);
}

static nrd_error *start_input(nrd_openai *o, nrd_pooled_input *in)
{
    nrd_pooled *r = in->r;
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

static nrd_error *start(nrd_openai *o, nrd_pooled *r)
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
    nrd_pooled *r = arg;
    if (!r->doc) {
        r->err = nrd_oai_body(r->req, &r->doc);
    }
    if (!r->err) {
        r->err = r->kind->read(r, nrd_json_root(r->doc));
    }
}

/* Back on the loop. */
static void begin(void *arg, bool ran)
{
    nrd_pooled *r = arg;
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
    nrd_pooled_unref(r);
}

static void go(nrd_openai *o, nrd_http_request *req, char *extra, nrd_json_doc *doc, const nrd_oai_what *what)
{
    nrd_pooled *r = calloc(1, what->pooled->bytes);
    if (!r) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        nrd_json_doc_free(doc);
        free(extra);
        return;
    }
    if (!nrd_oai_take_place(o, req, extra, &r->quota)) {
        nrd_json_doc_free(doc);
        free(extra);
        free(r);
        return;
    }
    r->kind = what->pooled;
    r->o = o;
    r->doc = doc;
    r->begun_ns = nrd_now_ns();
    r->req = req;
    r->extra = extra;
    r->refs = 1;
    nrd_http_request_ref(req);
    nrd_oai_work(o, req, &r->doc, &r->err, read_request, begin, r);
}

void nrd_pooled_run(nrd_openai *o, nrd_http_request *req, const nrd_pooled_kind *kind)
{
    char *extra = NULL;

    if (nrd_oai_admit(o, req, true, &extra)) {
        nrd_oai_pass(o, req, extra, (nrd_oai_what){.pooled = kind}, go);
    }
}
