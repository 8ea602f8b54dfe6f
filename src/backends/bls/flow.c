/* SPDX-License-Identifier: Apache-2.0
 * One request of tensorrt_llm_bls. States: preprocessing -> (multimodal_encoders ->) tensorrt_llm -> postprocessing, one
 * answer at a time -> ended, with an error or the final flag. The sections below stand in the
 * reverse order, since each step starts the next. Everything runs in callbacks of the core; f->mu
 * guards what they share. */
#include "backends/bls/flow_internal.h"

#include "base/clock.h"
#include "base/str.h"
#include "nereid/llm_tensors.h"
#include "nereid/server.h"

#include <string.h>

/* ---- tensor maps ---- */

typedef struct map_row {
    const char *from, *to;
} map_row;

static const map_row to_pre[] = {
    {"text_input", "QUERY"},
    {"decoder_text_input", "DECODER_QUERY"},
    {"max_tokens", "REQUEST_OUTPUT_LEN"},
    {"bad_words", "BAD_WORDS_DICT"},
    {"stop_words", "STOP_WORDS_DICT"},
    {"embedding_bias_words", "EMBEDDING_BIAS_WORDS"},
    {"embedding_bias_weights", "EMBEDDING_BIAS_WEIGHTS"},
    {"end_id", "END_ID"},
    {"pad_id", "PAD_ID"},
    {"prompt_table_extra_id", "PROMPT_TABLE_EXTRA_ID"},
    {"image_bytes_input", "IMAGE_BYTES"},
    {"image_url_input", "IMAGE_URL"},
    {"image_input", "IMAGE"},
    {"video_bytes_input", "VIDEO_BYTES"},
};

static const char *const picture_inputs[] = {"image_bytes_input", "image_url_input", "image_input", "video_bytes_input"};

static const map_row encoders_to_llm[] = {
    {"OUT_PROMPT_EMBEDDING_TABLE", "prompt_embedding_table"},
    {"OUT_PROMPT_VOCAB_SIZE", "prompt_vocab_size"},
    {"OUT_IMAGE_SIZES", "image_sizes"},
};

static const map_row pre_to_llm[] = {
    {"INPUT_ID", "input_ids"},
    {"REQUEST_INPUT_LEN", "input_lengths"},
    {"REQUEST_OUTPUT_LEN", "request_output_len"},
    {"BAD_WORDS_IDS", "bad_words_list"},
    {"STOP_WORDS_IDS", "stop_words_list"},
    {"EMBEDDING_BIAS", "embedding_bias"},
    {"OUT_END_ID", "end_id"},
    {"OUT_PAD_ID", "pad_id"},
    {"DECODER_INPUT_ID", "decoder_input_ids"},
    {"REQUEST_DECODER_INPUT_LEN", "decoder_input_lengths"},
    {"OUT_PROMPT_TABLE_EXTRA_IDS", "prompt_table_extra_ids"},
    {"IMAGES", "image_files"},
};

/* What the client sends for tensorrt_llm itself; other inputs keep their name. */
static const map_row to_llm[] = {
    {"top_k", "runtime_top_k"},
    {"top_p", "runtime_top_p"},
    {"min_p", "runtime_min_p"},
    {"length_penalty", "len_penalty"},
    {"stream", "streaming"},
};

/* What repositories up to v0.13 pass through postprocessing; older ones cannot do without. */
static const map_row llm_to_post[] = {
    {"cum_log_probs", "CUM_LOG_PROBS"},         {"output_log_probs", "OUTPUT_LOG_PROBS"},
    {"context_logits", "CONTEXT_LOGITS"},       {"generation_logits", "GENERATION_LOGITS"},
    {"batch_index", "BATCH_INDEX"},
};

static const char *const own_inputs[] = {"num_draft_tokens", "use_draft_logits"};

static const char *const llm_to_client[] = {
    "cum_log_probs",         "output_log_probs",          "context_logits",
    "generation_logits",     "batch_index",               "sequence_index",
    "kv_cache_reused_blocks", "kv_cache_alloc_new_blocks", "kv_cache_alloc_total_blocks",
    "arrival_time_ns",       "first_scheduled_time_ns",   "first_token_time_ns",
    "last_token_time_ns",    "acceptance_rate",           "total_accepted_draft_tokens",
    "total_draft_tokens",    "num_input_tokens",          "num_output_tokens",
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

static const char *map_name(const map_row *map, size_t n, const char *from)
{
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(map[i].from, from)) {
            return map[i].to;
        }
    }
    return NULL;
}

/* ---- life ---- */

void nrd_bls_flow_unref(bls_flow *f)
{
    pthread_mutex_lock(&f->mu);
    int refs = --f->refs;
    pthread_mutex_unlock(&f->mu);
    if (refs) {
        return;
    }
    TRITONSERVER_InferenceResponse *kept[] = {f->pre, f->seen};
    for (size_t i = 0; i < COUNT(kept); i++) {
        nrd_tb_log_error(kept[i] ? TRITONSERVER_InferenceResponseDelete(kept[i]) : NULL, "response");
    }
    nrd_tb_inner_over(f->instance, f->request, f->factory, !f->has_failed, f->start_ns);
    nrd_tb_inputs_fini(&f->inputs);
    pthread_mutex_destroy(&f->mu);
    nrd_bls_drafts_free(f->drafts);
    free(f->buffer);
    free(f);
}

void nrd_bls_flow_ref(bls_flow *f)
{
    pthread_mutex_lock(&f->mu);
    f->refs++;
    pthread_mutex_unlock(&f->mu);
}

/* Ends the flow once: with an error (which it takes), or the final flag alone where answers have
 * already been sent. Later callbacks find is_over and only clean up. */
void nrd_bls_flow_end(bls_flow *f, TRITONSERVER_Error *err)
{
    pthread_mutex_lock(&f->mu);
    bool first = !f->is_over;
    f->is_over = true;
    f->has_failed |= err != NULL;
    TRITONSERVER_InferenceRequest *llm = err ? f->llm_request : NULL;
    if (llm && first) { /* the rest is not needed; this only sets a flag, so the lock may be held */
        nrd_tb_log_error(TRITONSERVER_InferenceRequestCancel(llm), "cancel");
    }
    pthread_mutex_unlock(&f->mu);
    bool decoupled = f->model->config.decoupled;
    if (first && (err || (!decoupled && !f->has_answered))) { /* tensorrt_llm may answer emptily */
        nrd_tb_send_last(f->factory, err);
        err = NULL;
    } else if (first && decoupled) {
        nrd_tb_log_error(TRITONBACKEND_ResponseFactorySendFlags(f->factory,
                                                                TRITONSERVER_RESPONSE_COMPLETE_FINAL),
                         "cannot end a stream");
    }
    TRITONSERVER_ErrorDelete(err);
    if (first) {
        nrd_tb_inflight_remove(&f->model->inflight, &f->flight);
        nrd_bls_flow_unref(f);
    }
}

/* The client has gone. */
static void cancel(nrd_tb_flight *flight)
{
    bls_flow *f = (bls_flow *)flight;
    pthread_mutex_lock(&f->mu);
    if (f->llm_request) {
        nrd_tb_log_error(TRITONSERVER_InferenceRequestCancel(f->llm_request), "cancel");
    }
    pthread_mutex_unlock(&f->mu);
}

/* ---- inner requests ---- */

void nrd_bls_request_over(bls_flow *f, TRITONSERVER_InferenceRequest *r)
{
    pthread_mutex_lock(&f->mu);
    if (f->llm_request == r) {
        f->llm_request = NULL;
    }
    pthread_mutex_unlock(&f->mu);
    nrd_tb_log_error(TRITONSERVER_InferenceRequestDelete(r), "request");
    nrd_bls_flow_unref(f);
}

static void request_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *user)
{
    if (flags & TRITONSERVER_REQUEST_RELEASE_ALL) {
        nrd_bls_request_over(user, request);
    }
}

TRITONSERVER_Error *nrd_bls_add_input(TRITONSERVER_InferenceRequest *r, const nrd_tb_config *step,
                                     const char *name, const tensor *t)
{
    int64_t shape[NRD_TB_MAX_DIMS];
    uint32_t n_dims = nrd_bls_wire_shape(step, name, t->shape, (uint32_t)t->n_dims, shape);

    NRD_TB_TRY(TRITONSERVER_InferenceRequestAddInput(r, name, t->dtype, shape, n_dims));
    return TRITONSERVER_InferenceRequestAppendInputData(r, name, t->data, t->bytes,
                                                        TRITONSERVER_MEMORY_CPU, 0);
}

static tensor from_input(const nrd_tb_tensor *t)
{
    return (tensor){t->name, t->dtype, t->shape, t->n_dims, t->data, t->bytes};
}

static TRITONSERVER_Error *get_output(TRITONSERVER_InferenceResponse *r, uint32_t i, tensor *t)
{
    nrd_tb_tensor out;
    NRD_TB_TRY(nrd_tb_inner_output(r, i, &out));
    *t = from_input(&out);
    return NULL;
}

bool nrd_bls_find_output(TRITONSERVER_InferenceResponse *r, const char *name, tensor *out)
{
    nrd_tb_tensor t;
    const bool found = nrd_tb_inner_find(r, name, &t);
    if (found) {
        *out = from_input(&t);
    }
    return found;
}

static TRITONSERVER_Error *new_request(bls_flow *f, const char *model,
                                       TRITONSERVER_InferenceResponseCompleteFn_t on_response,
                                       TRITONSERVER_InferenceRequestReleaseFn_t on_release, void *release_user,
                                       TRITONSERVER_InferenceRequest **out)
{
    NRD_TB_TRY(nrd_tb_inner_request(out, f->model->config.server, model, f->request));
    NRD_TB_TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(*out, on_release, release_user));
    return TRITONSERVER_InferenceRequestSetResponseCallback(*out, f->model->allocator, NULL, on_response, f);
}

/* Sends or, on error, deletes the request. */
static TRITONSERVER_Error *submit(bls_flow *f, TRITONSERVER_InferenceRequest *r, TRITONSERVER_Error *err)
{
    if (!err) {
        nrd_bls_flow_ref(f);
        err = TRITONSERVER_ServerInferAsync(f->model->config.server, r, NULL);
        if (err) {
            nrd_bls_flow_unref(f);
        }
    }
    if (err && r) {
        pthread_mutex_lock(&f->mu);
        if (f->llm_request == r) {
            f->llm_request = NULL;
        }
        pthread_mutex_unlock(&f->mu);
        nrd_tb_log_error(TRITONSERVER_InferenceRequestDelete(r), "request");
    }
    return err;
}

/* ---- step 3: postprocessing, one answer at a time ---- */

static void answer_free(answer *a)
{
    if (a->response) {
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(a->response), "response");
    }
    free(a->ids);
    free(a);
}

static void post_next(bls_flow *f);

static TRITONSERVER_Error *forward(bls_flow *f, TRITONBACKEND_Response *t, const tensor *from,
                                   const char *name)
{
    void *out;
    if (!nrd_tb_wants(f->request, name)) {
        return NULL;
    }
    NRD_TB_TRY(nrd_tb_output(t, name, from->dtype, from->shape, (uint32_t)from->n_dims, from->bytes,
                             &out));
    if (from->bytes) {
        memcpy(out, from->data, from->bytes);
    }
    return NULL;
}

static bool is_timed_out(TRITONSERVER_InferenceResponse *r)
{
    uint32_t n = 0;
    bool yes = false;
    TRITONSERVER_Error *err = TRITONSERVER_InferenceResponseParameterCount(r, &n);
    for (uint32_t i = 0; !err && i < n && !yes; i++) {
        const char *name;
        TRITONSERVER_ParameterType type;
        const void *value;
        err = TRITONSERVER_InferenceResponseParameter(r, i, &name, &type, &value);
        yes = !err && type == TRITONSERVER_PARAMETER_BOOL && !strcmp(name, NRD_SERVER_TIMED_OUT) &&
              *(const bool *)value;
    }
    TRITONSERVER_ErrorDelete(err);
    return yes;
}

void nrd_bls_flow_answer(bls_flow *f, answer *a)
{
    pthread_mutex_lock(&f->mu);
    f->head = f->tail = a;
    f->llm_done = true;
    pthread_mutex_unlock(&f->mu);
    post_next(f);
}

/* An output of the answer; with drafts some are of all steps together. */
static bool answer_output(const bls_flow *f, const answer *a, const char *name, tensor *out)
{
    return (f->drafts && nrd_bls_drafts_output(f->drafts, name, out)) ||
           nrd_bls_find_output(a->response, name, out);
}

static void send_text(bls_flow *f, const answer *a, TRITONSERVER_InferenceResponse *post)
{
    TRITONBACKEND_Response *t = NULL;
    tensor text, extra;
    TRITONSERVER_Error *err = TRITONBACKEND_ResponseNewFromFactory(&t, f->factory);

    if (!err && !nrd_bls_find_output(post, "OUTPUT", &text)) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "postprocessing gave no OUTPUT");
    }
    if (!err) {
        err = forward(f, t, &text, "text_output");
    }
    for (size_t i = 0; !err && i < COUNT(llm_to_client); i++) {
        if (answer_output(f, a, llm_to_client[i], &extra)) {
            err = forward(f, t, &extra, llm_to_client[i]);
        }
    }
    if (!err && is_timed_out(a->response)) {
        err = TRITONBACKEND_ResponseSetBoolParameter(t, NRD_SERVER_TIMED_OUT, true);
    }
    if (err) {
        if (t) {
            nrd_tb_log_error(TRITONBACKEND_ResponseDelete(t), "response");
        }
        nrd_bls_flow_end(f, err);
        return;
    }
    uint32_t flags = f->model->config.decoupled ? 0 : TRITONSERVER_RESPONSE_COMPLETE_FINAL;
    f->has_answered = true;
    nrd_tb_log_error(TRITONBACKEND_ResponseSend(t, flags, NULL), "cannot send a response");
}

static void on_post(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    bls_flow *f = user;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);

    if (response) {
        pthread_mutex_lock(&f->mu);
        answer *a = f->head;
        bool over = f->is_over;
        pthread_mutex_unlock(&f->mu);
        if (!err && !over && a) {
            send_text(f, a, response);
        }
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(response), "response");
    }
    if (err) {
        nrd_bls_flow_end(f, err);
    }
    if (!(flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL)) {
        return;
    }
    pthread_mutex_lock(&f->mu);
    answer *done = f->head;
    f->head = done->next;
    f->tail = f->head ? f->tail : NULL;
    f->post_runs = false;
    pthread_mutex_unlock(&f->mu);
    answer_free(done);
    post_next(f);
}

static TRITONSERVER_Error *start_post(bls_flow *f, const answer *a)
{
    TRITONSERVER_InferenceRequest *r = NULL;
    const nrd_tb_config *step = f->steps[NRD_BLS_POST];
    tensor ids, lengths, t;
    TRITONSERVER_Error *err = new_request(f, "postprocessing", on_post, request_released, f, &r);

    if (!err && (!nrd_bls_find_output(a->response, "output_ids", &ids) ||
                 !nrd_bls_find_output(a->response, "sequence_length", &lengths))) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s gave no output_ids or sequence_length",
                            f->model->llm_name);
    }
    if (!err && a->ids) {
        ids.shape = a->shape;
        ids.data = a->ids;
        ids.bytes = (size_t)a->length * sizeof *a->ids;
        lengths.shape = a->length_shape;
        lengths.data = &a->length;
    }
    if (!err) {
        err = nrd_bls_add_input(r, step, "TOKENS_BATCH", &ids);
    }
    if (!err) {
        err = nrd_bls_add_input(r, step, "SEQUENCE_LENGTH", &lengths);
    }
    if (!err && !a->ids && nrd_tb_config_has_input(step, "STREAM_STATE") &&
        nrd_bls_find_output(a->response, "stream_state", &t)) {
        err = nrd_bls_add_input(r, step, "STREAM_STATE", &t);
    }
    for (size_t i = 0; !err && i < COUNT(llm_to_post); i++) {
        if (nrd_tb_config_has_input(step, llm_to_post[i].to) &&
            answer_output(f, a, llm_to_post[i].from, &t)) {
            err = nrd_bls_add_input(r, step, llm_to_post[i].to, &t);
        }
    }
    return submit(f, r, err);
}

/* Starts the next waiting answer; when none is left and tensorrt_llm is done, ends the flow. */
static void post_next(bls_flow *f)
{
    nrd_bls_flow_ref(f); /* nrd_bls_flow_end may drop the last one */
    for (;;) {
        pthread_mutex_lock(&f->mu);
        answer *a = f->post_runs ? NULL : f->head;
        bool ended = !f->post_runs && !f->head && f->llm_done;
        bool over = f->is_over;
        f->post_runs |= a && !over;
        if (a && over) { /* an error or a dead client: drop what waits */
            f->head = a->next;
            f->tail = f->head ? f->tail : NULL;
        }
        pthread_mutex_unlock(&f->mu);
        if (a && over) {
            answer_free(a);
            continue;
        }
        if (a) {
            TRITONSERVER_Error *err = start_post(f, a);
            if (!err) {
                break;
            }
            nrd_bls_flow_end(f, err);
            pthread_mutex_lock(&f->mu);
            f->post_runs = false;
            pthread_mutex_unlock(&f->mu);
            continue;
        }
        if (ended) {
            nrd_bls_flow_end(f, NULL);
        }
        break;
    }
    nrd_bls_flow_unref(f);
}

/* ---- step 2: tensorrt_llm ---- */

/* accumulate_tokens: this answer shows everything generated so far. */
static TRITONSERVER_Error *accumulate(bls_flow *f, answer *a)
{
    tensor ids;
    if (!nrd_bls_find_output(a->response, "output_ids", &ids) || ids.n_dims != 3) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s gave no output_ids", f->model->llm_name);
    }
    if (ids.shape[0] != 1 || ids.shape[1] != 1) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "accumulate_tokens needs a batch of 1 and a beam width of 1");
    }
    int32_t n = (int32_t)(ids.bytes / sizeof *f->buffer);
    const size_t bytes = (size_t)(f->n_buffer + n) * sizeof *f->buffer;
    int32_t *grown = realloc(f->buffer, bytes > 0 ? bytes : 1);
    if (!grown) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    f->buffer = grown;
    if (n) {
        memcpy(f->buffer + f->n_buffer, ids.data, ids.bytes);
    }
    f->n_buffer += n;
    a->ids = malloc(bytes > 0 ? bytes : 1);
    if (!a->ids) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    if (f->n_buffer) {
        memcpy(a->ids, f->buffer, (size_t)f->n_buffer * sizeof *a->ids);
    }
    a->length = f->n_buffer;
    a->shape[0] = a->shape[1] = a->length_shape[0] = a->length_shape[1] = 1;
    a->shape[2] = f->n_buffer;
    return NULL;
}

static void on_llm(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    bls_flow *f = user;
    bool is_last = flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);
    uint32_t n_outputs = 0;

    nrd_bls_flow_ref(f);
    if (response && !err) {
        err = TRITONSERVER_InferenceResponseOutputCount(response, &n_outputs);
    }
    answer *a = NULL;
    if (response && !err && n_outputs > 0) {
        a = calloc(1, sizeof *a);
        err = a ? NULL : nrd_tb_error(nrd_error_no_memory());
    }
    if (a) {
        a->response = response;
        response = NULL;
        if (f->model->accumulate_tokens && f->model->config.decoupled && f->is_streaming) {
            err = accumulate(f, a);
        }
    }
    if (response) {
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(response), "response");
    }
    pthread_mutex_lock(&f->mu);
    f->llm_done |= is_last;
    if (a && !err) {
        if (f->tail) {
            f->tail->next = a;
        } else {
            f->head = a;
        }
        f->tail = a;
        a = NULL;
    }
    pthread_mutex_unlock(&f->mu);
    if (a) {
        answer_free(a);
    }
    if (err) {
        nrd_bls_flow_end(f, err);
    }
    post_next(f);
    nrd_bls_flow_unref(f);
}

static bool is_among(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!strcmp(name, list[i])) {
            return true;
        }
    }
    return false;
}

/* The input's name in tensorrt_llm; NULL: it is not for it. What the client sends for preprocessing goes to
 * tensorrt_llm where preprocessing does not take it: an end_id does up to v0.7. */
static const char *llm_name_of(const bls_flow *f, const char *from)
{
    const char *pre = map_name(to_pre, COUNT(to_pre), from);
    const char *name = map_name(to_llm, COUNT(to_llm), from);

    if ((pre && nrd_tb_config_has_input(f->steps[NRD_BLS_PRE], pre)) ||
        is_among(from, own_inputs, COUNT(own_inputs))) {
        return NULL;
    }
    return name ? name : from;
}

TRITONSERVER_Error *nrd_bls_add_llm_inputs(bls_flow *f, TRITONSERVER_InferenceRequest *r, nrd_bls_step which,
                                           const char *const *skip, size_t n_skip)
{
    const nrd_tb_config *step = f->steps[which];
    tensor t;
    uint32_t n = 0;

    NRD_TB_TRY(TRITONSERVER_InferenceResponseOutputCount(f->pre, &n));
    for (uint32_t i = 0; i < n; i++) {
        NRD_TB_TRY(get_output(f->pre, i, &t));
        const char *name = map_name(pre_to_llm, COUNT(pre_to_llm), t.name);
        const bool is_seen = f->seen && !strcmp(t.name, "IMAGES"); /* they come as rows */
        if (name && !is_seen && nrd_tb_config_has_input(step, name) && !is_among(name, skip, n_skip)) {
            NRD_TB_TRY(nrd_bls_add_input(r, step, name, &t));
        }
    }
    for (size_t i = 0; i < COUNT(encoders_to_llm) && f->seen; i++) {
        if (nrd_bls_find_output(f->seen, encoders_to_llm[i].from, &t)) {
            NRD_TB_TRY(nrd_bls_add_input(r, step, encoders_to_llm[i].to, &t));
        }
    }
    for (uint32_t i = 0; i < f->inputs.n; i++) {
        const char *name = llm_name_of(f, f->inputs.t[i].name);
        bool goes = name && !is_among(name, skip, n_skip) &&
                    (which == NRD_BLS_LLM || nrd_tb_config_has_input(step, name));
        if (goes) {
            t = from_input(&f->inputs.t[i]);
            NRD_TB_TRY(nrd_bls_add_input(r, step, name, &t));
        }
    }
    return NULL;
}

TRITONSERVER_Error *nrd_bls_add_llm_outputs(bls_flow *f, TRITONSERVER_InferenceRequest *r)
{
    static const char *const always[] = {"output_ids", "sequence_length"};

    for (size_t i = 0; i < COUNT(always); i++) {
        NRD_TB_TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(r, always[i]));
    }
    for (size_t i = 0; i < COUNT(llm_to_client); i++) {
        const char *post = map_name(llm_to_post, COUNT(llm_to_post), llm_to_client[i]);
        bool is_passed = post && nrd_tb_config_has_input(f->steps[NRD_BLS_POST], post);
        if (is_passed || nrd_tb_wants(f->request, llm_to_client[i])) {
            NRD_TB_TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(r, llm_to_client[i]));
        }
    }
    return nrd_tb_config_has_output(f->steps[NRD_BLS_LLM], "stream_state")
               ? TRITONSERVER_InferenceRequestAddRequestedOutput(r, "stream_state")
               : NULL;
}

/* Whose cached blocks may be used is the client's matter, not this model's. */
static TRITONSERVER_Error *pass_salts(bls_flow *f, TRITONSERVER_InferenceRequest *r)
{
    uint32_t n = 0;
    NRD_TB_TRY(TRITONBACKEND_RequestParameterCount(f->request, &n));
    for (uint32_t i = 0; i < n; i++) {
        const char *key;
        TRITONSERVER_ParameterType type;
        const void *value;
        NRD_TB_TRY(TRITONBACKEND_RequestParameter(f->request, i, &key, &type, &value));
        if (type == TRITONSERVER_PARAMETER_STRING &&
            (!strcmp(key, NRD_LLM_CACHE_SALT) || !strcmp(key, NRD_LLM_CACHE_SALT_OF_KEY))) {
            NRD_TB_TRY(TRITONSERVER_InferenceRequestSetStringParameter(r, key, value));
        }
    }
    return NULL;
}

TRITONSERVER_Error *nrd_bls_request_new(bls_flow *f, const char *model,
                                        TRITONSERVER_InferenceResponseCompleteFn_t on_response,
                                        TRITONSERVER_InferenceRequestReleaseFn_t on_release, void *release_user,
                                        TRITONSERVER_InferenceRequest **out)
{
    NRD_TB_TRY(new_request(f, model, on_response, on_release, release_user, out));
    NRD_TB_TRY(pass_salts(f, *out));
    return nrd_tb_inner_timeout(*out, f->request, f->start_ns);
}

bool nrd_bls_request_send(bls_flow *f, TRITONSERVER_InferenceRequest *r, TRITONSERVER_Error *err)
{
    pthread_mutex_lock(&f->mu);
    f->llm_request = err ? NULL : r;
    pthread_mutex_unlock(&f->mu);
    err = submit(f, r, err);
    if (err) {
        nrd_bls_flow_end(f, err);
    }
    return !err;
}

static void start_llm(bls_flow *f)
{
    TRITONSERVER_InferenceRequest *r = NULL;
    TRITONSERVER_Error *err = nrd_bls_request_new(f, f->model->llm_name, on_llm, request_released, f, &r);

    if (!err) {
        err = nrd_bls_add_llm_inputs(f, r, NRD_BLS_LLM, NULL, 0);
    }
    if (!err) {
        err = nrd_bls_add_llm_outputs(f, r);
    }
    nrd_bls_request_send(f, r, err);
}

static void start_second(bls_flow *f)
{
    if (f->drafts) {
        nrd_bls_drafts_start(f);
    } else {
        start_llm(f);
    }
}

/* ---- between them: multimodal_encoders, where there are pictures ---- */

static bool has_pictures(const bls_flow *f)
{
    for (size_t i = 0; i < COUNT(picture_inputs); i++) {
        if (nrd_tb_find(&f->inputs, picture_inputs[i])) {
            return true;
        }
    }
    return false;
}

static void on_encoders(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    bls_flow *f = user;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);

    (void)flags;
    if (!response) { /* a flag alone: it sends exactly one answer */
        return;
    }
    f->seen = response;
    if (err) {
        nrd_bls_flow_end(f, err);
    } else {
        start_second(f);
    }
}

static void start_encoders(bls_flow *f)
{
    const nrd_tb_config *step = f->steps[NRD_BLS_ENCODERS];
    const nrd_tb_tensor *scaled = nrd_tb_find(&f->inputs, "image_input");
    TRITONSERVER_InferenceRequest *r = NULL;
    tensor t;
    TRITONSERVER_Error *err = new_request(f, f->model->encoders_name, on_encoders, request_released, f, &r);

    if (!err && scaled) {
        t = from_input(scaled);
        err = nrd_bls_add_input(r, step, "IMAGE", &t);
    }
    if (!err && nrd_bls_find_output(f->pre, "IMAGES", &t)) {
        err = nrd_bls_add_input(r, step, "image_files", &t);
    }
    if (!err && nrd_bls_find_output(f->pre, "IS_VIDEO_INPUT", &t)) {
        err = nrd_bls_add_input(r, step, "is_video_input", &t);
    }
    err = submit(f, r, err);
    if (err) {
        nrd_bls_flow_end(f, err);
    }
}

/* ---- step 1: preprocessing ---- */

static void on_pre(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    bls_flow *f = user;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);

    (void)flags;
    if (!response) { /* a flag alone: preprocessing sends exactly one answer */
        return;
    }
    f->pre = response;
    if (err) {
        nrd_bls_flow_end(f, err);
    } else if (f->steps[NRD_BLS_ENCODERS]) {
        start_encoders(f);
    } else {
        start_second(f);
    }
}

static TRITONSERVER_Error *validate(bls_flow *f)
{
    const nrd_tb_tensor *text = nrd_tb_find(&f->inputs, "text_input");
    const nrd_tb_tensor *max_tokens = nrd_tb_find(&f->inputs, "max_tokens");
    const nrd_tb_tensor *stream = nrd_tb_find(&f->inputs, "stream");
    int64_t v = 0;
    size_t offset = 0, n = 0;
    const char *s = NULL;
    bool bad = false;

    if (!text || !nrd_tb_next_string(text, &offset, &s, &n, &bad) || n == 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "text_input is required");
    }
    if (!max_tokens) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "max_tokens is required");
    }
    for (int64_t i = 0; i < max_tokens->n_elements; i++) {
        if (!nrd_tb_get_i64(max_tokens, i, &v) || v <= 0) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                                 "max_tokens must be a single value > 0");
        }
    }
    v = 0;
    f->is_streaming = stream && nrd_tb_get_i64(stream, 0, &v) && v != 0;
    if (f->is_streaming && !f->model->config.decoupled) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "Streaming is only supported in decoupled mode.");
    }
    return nrd_bls_drafts_new(f);
}

static TRITONSERVER_Error *start_pre(bls_flow *f)
{
    const nrd_tb_config *step = f->steps[NRD_BLS_PRE];
    TRITONSERVER_InferenceRequest *r = NULL;
    TRITONSERVER_Error *err = new_request(f, "preprocessing", on_pre, request_released, f, &r);
    for (size_t i = 0; !err && i < COUNT(to_pre); i++) {
        const nrd_tb_tensor *in = nrd_tb_find(&f->inputs, to_pre[i].from);
        if (in && nrd_tb_config_has_input(step, to_pre[i].to)) {
            tensor t = from_input(in);
            err = nrd_bls_add_input(r, step, to_pre[i].to, &t);
        }
    }
    return submit(f, r, err);
}

void nrd_bls_flow_start(bls_model *m, TRITONBACKEND_ModelInstance *instance,
                        TRITONBACKEND_Request *request)
{
    bls_flow *f = calloc(1, sizeof *f);
    TRITONSERVER_Error *err;

    if (!f) {
        nrd_tb_send_error(request, nrd_tb_error(nrd_error_no_memory()));
        nrd_tb_log_error(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL),
                         "cannot release a request");
        return;
    }
    pthread_mutex_init(&f->mu, NULL);
    f->refs = 1;
    f->model = m;
    f->instance = instance;
    f->request = request;
    f->start_ns = nrd_now_ns();
    err = TRITONBACKEND_ResponseFactoryNew(&f->factory, request);
    if (err) { /* nothing can be sent but through the request itself */
        nrd_tb_send_error(request, err);
        nrd_tb_log_error(TRITONBACKEND_RequestRelease(request, TRITONSERVER_REQUEST_RELEASE_ALL),
                         "cannot release a request");
        pthread_mutex_destroy(&f->mu);
        free(f);
        return;
    }
    f->flight = (nrd_tb_flight){.factory = f->factory, .cancel = cancel};
    nrd_tb_inflight_add(&m->inflight, &f->flight);

    err = nrd_tb_inputs_read(&f->inputs, request);
    if (!err) {
        err = validate(f);
    }
    for (int i = 0; !err && i <= (f->drafts ? NRD_BLS_DRAFT : NRD_BLS_POST); i++) {
        err = nrd_bls_steps_get(&m->steps, (nrd_bls_step)i, &f->steps[i]);
    }
    if (!err && m->encoders_name && has_pictures(f)) {
        err = nrd_bls_steps_get(&m->steps, NRD_BLS_ENCODERS, &f->steps[NRD_BLS_ENCODERS]);
    }
    if (!err) {
        err = start_pre(f);
    }
    if (err) {
        nrd_bls_flow_end(f, err);
    }
}
