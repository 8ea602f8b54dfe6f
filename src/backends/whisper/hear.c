/* SPDX-License-Identifier: Apache-2.0
 * One request of whisper_bls: to tensorrt_llm, and its answers back as text. */
#include "backends/whisper/hear.h"

#include "base/clock.h"
#include "base/str.h"
#include "nereid/llm_tensors.h"

#include <ctype.h>
#include <string.h>

enum { N_NUMBERS = 6 }; /* inputs of tensorrt_llm that hold one */

typedef struct hearing {
    nrd_tb_flight flight; /* first: the watch hands it back */
    nrd_hear_model *model;
    TRITONBACKEND_ModelInstance *instance;
    TRITONBACKEND_Request *request;
    TRITONBACKEND_ResponseFactory *factory;
    uint64_t start_ns;
    nrd_hear_ask ask;     /* until the inner request is released, as numbers */
    int32_t numbers[N_NUMBERS];
    nrd_ids answer;       /* ids so far; of the callbacks, which come one after the other */
    bool said_end;

    pthread_mutex_t mu;
    int refs;             /* itself until it is over, and the inner request; guarded by mu, as all below */
    TRITONSERVER_InferenceRequest *inner; /* while in flight: to cancel */
    bool is_over, has_failed;
} hearing;

/* ---- life ---- */

static void unref(hearing *h)
{
    pthread_mutex_lock(&h->mu);
    const int refs = --h->refs;
    pthread_mutex_unlock(&h->mu);
    if (refs) {
        return;
    }
    nrd_tb_inner_over(h->instance, h->request, h->factory, !h->has_failed, h->start_ns);
    nrd_hear_ask_fini(&h->ask);
    nrd_ids_fini(&h->answer);
    pthread_mutex_destroy(&h->mu);
    free(h);
}

/* The client has gone. */
static void cancel(nrd_tb_flight *flight)
{
    hearing *h = (hearing *)flight;
    pthread_mutex_lock(&h->mu);
    if (h->inner) {
        nrd_tb_log_error(TRITONSERVER_InferenceRequestCancel(h->inner), "cancel");
    }
    pthread_mutex_unlock(&h->mu);
}

static bool is_over(hearing *h)
{
    pthread_mutex_lock(&h->mu);
    const bool over = h->is_over;
    pthread_mutex_unlock(&h->mu);
    return over;
}

/* Ends the request once. With an error, which it takes, that is the last answer; else it has been sent, or the flag is. */
static void end(hearing *h, TRITONSERVER_Error *err, bool is_sent)
{
    pthread_mutex_lock(&h->mu);
    const bool first = !h->is_over;
    h->is_over = true;
    h->has_failed |= err != NULL;
    if (first && err && h->inner) { /* the rest is not needed; this only sets a flag, so the lock may be held */
        nrd_tb_log_error(TRITONSERVER_InferenceRequestCancel(h->inner), "cancel");
    }
    pthread_mutex_unlock(&h->mu);
    if (!first) {
        TRITONSERVER_ErrorDelete(err);
        return;
    }
    if (err) {
        nrd_tb_send_last(h->factory, err);
    } else if (!is_sent) {
        nrd_tb_log_error(TRITONBACKEND_ResponseFactorySendFlags(h->factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL),
                         "cannot end a stream");
    }
    nrd_tb_inflight_remove(&h->model->inflight, &h->flight);
    unref(h);
}

/* ---- answers ---- */

/* The text of all ids so far, without marks, times and the space in front. */
static TRITONSERVER_Error *send_text(hearing *h, uint32_t flags)
{
    static const int64_t shape[] = {1, 1};
    const uint32_t n_dims = h->model->config.max_batch_size > 0 ? 2 : 1;
    TRITONBACKEND_Response *response = NULL;
    nrd_str text = {0};
    void *to = NULL;

    TRITONSERVER_Error *err = nrd_tb_error(nrd_whisper_text(h->model->whisper, h->answer.ids, h->answer.n, &text));
    const char *s = nrd_str_cstr(&text);
    size_t n = text.len;
    for (; n > 0 && isspace((unsigned char)*s); s++) {
        n--;
    }
    for (; n > 0 && isspace((unsigned char)s[n - 1]); n--) {
    }
    const uint32_t length = (uint32_t)n;
    err = err ? err : TRITONBACKEND_ResponseNewFromFactory(&response, h->factory);
    err = err ? err : nrd_tb_output(response, "TRANSCRIPTS", TRITONSERVER_TYPE_BYTES, shape, n_dims, sizeof length + n, &to);
    if (!err) {
        memcpy(to, &length, sizeof length);
        memcpy((char *)to + sizeof length, s, n);
        nrd_tb_log_error(TRITONBACKEND_ResponseSend(response, flags, NULL), "cannot send a response");
    } else if (response) {
        nrd_tb_log_error(TRITONBACKEND_ResponseDelete(response), "response");
    }
    nrd_str_fini(&text);
    return err;
}

/* Adds an answer's ids. *out_new: it had some. */
static TRITONSERVER_Error *take(hearing *h, TRITONSERVER_InferenceResponse *response, bool *out_new)
{
    nrd_tb_tensor ids, length;
    int64_t n = INT64_MAX, id = 0;

    *out_new = false;
    if (!nrd_tb_inner_find(response, "output_ids", &ids)) {
        return NULL; /* the last one of a stream may be empty */
    }
    if (nrd_tb_inner_find(response, "sequence_length", &length)) {
        nrd_tb_get_i64(&length, 0, &n);
    }
    for (int64_t i = 0; i < n && !h->said_end && nrd_tb_get_i64(&ids, i, &id); i++) {
        h->said_end = id == nrd_tokenizer_eos_id(h->model->tokenizer);
        if (!h->said_end) {
            nrd_ids_push(&h->answer, (int32_t)id);
            *out_new = true;
        }
    }
    return nrd_tb_error(nrd_ids_error(&h->answer));
}

static void on_response(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    hearing *h = user;
    const bool is_last = flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL, decoupled = h->model->config.decoupled;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);
    bool is_new = false;

    if (response && !err && !is_over(h)) {
        err = take(h, response, &is_new);
    }
    if (response) {
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(response), "response");
    }
    if (!err && !is_over(h) && (decoupled ? is_new : is_last)) {
        err = send_text(h, decoupled ? 0 : TRITONSERVER_RESPONSE_COMPLETE_FINAL);
    }
    if (err || is_last) {
        end(h, err, !decoupled);
    }
}

/* ---- the request to tensorrt_llm ---- */

static void on_release(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *user)
{
    hearing *h = user;
    if (!(flags & TRITONSERVER_REQUEST_RELEASE_ALL)) {
        return;
    }
    pthread_mutex_lock(&h->mu);
    h->inner = NULL;
    pthread_mutex_unlock(&h->mu);
    nrd_tb_log_error(TRITONSERVER_InferenceRequestDelete(request), "request");
    unref(h);
}

static TRITONSERVER_Error *add(TRITONSERVER_InferenceRequest *r, const nrd_tb_config *llm, const char *name,
                               TRITONSERVER_DataType type, const int64_t *shape, uint32_t n_dims, const void *data, size_t bytes)
{
    if (!nrd_tb_config_has_input(llm, name)) {
        return NULL;
    }
    NRD_TB_TRY(TRITONSERVER_InferenceRequestAddInput(r, name, type, shape, n_dims));
    return TRITONSERVER_InferenceRequestAppendInputData(r, name, data, bytes, TRITONSERVER_MEMORY_CPU, 0);
}

/* What one request needs beside the features and lists; borrowed until it is released. */
static TRITONSERVER_Error *add_numbers(hearing *h, TRITONSERVER_InferenceRequest *r, const nrd_tb_config *llm)
{
    static const int64_t one[] = {1, 1};
    static const bool yes = true, no = false;
    const int32_t context = nrd_whisper_max_tokens(h->model->whisper), n = (int32_t)h->ask.prompt.n;
    const int32_t eos = nrd_tokenizer_eos_id(h->model->tokenizer);
    const struct {
        const char *name;
        int32_t value;
    } numbers[N_NUMBERS] = {
        {"input_lengths", n},
        {"request_output_len", context - n < context / 2 ? context - n : context / 2},
        {"end_id", eos},
        {"pad_id", eos},
        {"encoder_output_lengths", (h->ask.n_frames + 1) / 2},
        {"runtime_top_k", 1},
    };
    const bool *streams = h->model->config.decoupled && llm->decoupled ? &yes : &no;

    for (size_t i = 0; i < N_NUMBERS; i++) {
        h->numbers[i] = numbers[i].value;
        NRD_TB_TRY(add(r, llm, numbers[i].name, TRITONSERVER_TYPE_INT32, one, 2, &h->numbers[i], sizeof h->numbers[i]));
    }
    return add(r, llm, "streaming", TRITONSERVER_TYPE_BOOL, one, 2, streams, sizeof *streams);
}

static TRITONSERVER_Error *fill(hearing *h, TRITONSERVER_InferenceRequest *r, const nrd_tb_config *llm)
{
    static const char *const outputs[] = {"output_ids", "sequence_length"};
    const nrd_hear_ask *a = &h->ask;
    const int64_t heard[] = {1, a->n_frames, h->model->n_mels}, ids[] = {1, (int64_t)a->prompt.n};
    const int64_t words[] = {1, 2, (int64_t)a->bad_words.n / 2};

    NRD_TB_TRY(add(r, llm, "encoder_input_features", a->half ? TRITONSERVER_TYPE_FP16 : TRITONSERVER_TYPE_FP32, heard, 3,
                   a->features, a->feature_bytes));
    NRD_TB_TRY(add(r, llm, "input_ids", TRITONSERVER_TYPE_INT32, ids, 2, a->prompt.ids, a->prompt.n * sizeof *a->prompt.ids));
    if (a->bad_words.n > 0) {
        NRD_TB_TRY(add(r, llm, "bad_words_list", TRITONSERVER_TYPE_INT32, words, 3, a->bad_words.ids,
                       a->bad_words.n * sizeof *a->bad_words.ids));
    }
    NRD_TB_TRY(add_numbers(h, r, llm));
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        NRD_TB_TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(r, outputs[i]));
    }
    return TRITONSERVER_InferenceRequestSetBoolParameter(r, NRD_LLM_EXCLUDE_INPUT, true);
}

/* Sends the request, which on_release takes then. */
static TRITONSERVER_Error *send(hearing *h, const nrd_tb_config *llm)
{
    nrd_hear_model *m = h->model;
    TRITONSERVER_InferenceRequest *r = NULL;
    TRITONSERVER_Error *err = nrd_tb_inner_request(&r, m->config.server, m->llm_name, h->request);

    err = err ? err : nrd_tb_inner_timeout(r, h->request, h->start_ns);
    err = err ? err : TRITONSERVER_InferenceRequestSetReleaseCallback(r, on_release, h);
    err = err ? err : TRITONSERVER_InferenceRequestSetResponseCallback(r, m->allocator, NULL, on_response, h);
    err = err ? err : fill(h, r, llm);
    if (!err) {
        pthread_mutex_lock(&h->mu);
        h->refs++;
        h->inner = r;
        pthread_mutex_unlock(&h->mu);
        err = TRITONSERVER_ServerInferAsync(m->config.server, r, NULL);
        if (!err) {
            return NULL;
        }
        pthread_mutex_lock(&h->mu);
        h->refs--;
        h->inner = NULL;
        pthread_mutex_unlock(&h->mu);
    }
    if (r) {
        nrd_tb_log_error(TRITONSERVER_InferenceRequestDelete(r), "request");
    }
    return err;
}

/* What tensorrt_llm declares, read at the first request, as it may be loaded after this model. */
static TRITONSERVER_Error *find_llm(nrd_hear_model *m, const nrd_tb_config **out)
{
    nrd_tb_config *c = NULL;

    pthread_mutex_lock(&m->mu);
    *out = m->llm;
    pthread_mutex_unlock(&m->mu);
    if (*out) {
        return NULL;
    }
    NRD_TB_TRY(nrd_tb_inner_config(&c, m->config.server, m->llm_name));
    if (!nrd_tb_config_has_input(c, "encoder_input_features")) {
        nrd_tb_inner_config_free(c);
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "model '%s' has no input encoder_input_features: it hears nothing",
                             m->llm_name);
    }
    pthread_mutex_lock(&m->mu);
    nrd_tb_config *unused = m->llm ? c : NULL; /* another request was faster */
    m->llm = unused ? m->llm : c;
    *out = m->llm;
    pthread_mutex_unlock(&m->mu);
    nrd_tb_inner_config_free(unused);
    return NULL;
}

static bool wants_half(const nrd_tb_config *llm)
{
    const nrd_json *inputs = nrd_json_get(llm->root, "input");
    for (size_t i = 0; i < nrd_json_len(inputs); i++) {
        const nrd_json *t = nrd_json_at(inputs, i);
        if (!strcmp(nrd_json_get_str(t, "name", ""), "encoder_input_features")) {
            return !strcmp(nrd_json_get_str(t, "data_type", ""), "TYPE_FP16");
        }
    }
    return false;
}

static TRITONSERVER_Error *start(hearing *h)
{
    const nrd_tb_config *llm = NULL;
    nrd_tb_inputs in = {0};

    NRD_TB_TRY(find_llm(h->model, &llm));
    TRITONSERVER_Error *err = nrd_tb_inputs_read(&in, h->request);
    err = err ? err : nrd_hear_listen(h->model, &in, wants_half(llm), &h->ask);
    nrd_tb_inputs_fini(&in);
    return err ? err : send(h, llm);
}

void nrd_hear_start(nrd_hear_model *m, TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request)
{
    hearing *h = calloc(1, sizeof *h);
    TRITONSERVER_Error *err = h ? NULL : nrd_tb_error(nrd_error_no_memory());

    err = err ? err : TRITONBACKEND_ResponseFactoryNew(&h->factory, request);
    if (err) { /* nothing can be sent but through the request itself */
        nrd_tb_refuse(request, err);
        free(h);
        return;
    }
    pthread_mutex_init(&h->mu, NULL);
    h->refs = 1;
    h->model = m;
    h->instance = instance;
    h->request = request;
    h->start_ns = nrd_now_ns();
    h->flight = (nrd_tb_flight){.factory = h->factory, .cancel = cancel};
    nrd_tb_inflight_add(&m->inflight, &h->flight);
    err = start(h);
    if (err) {
        end(h, err, true);
    }
}
