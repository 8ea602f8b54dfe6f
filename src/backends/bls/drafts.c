/* SPDX-License-Identifier: Apache-2.0
 * A round: the draft model proposes tokens, tensorrt_llm keeps those that it would have written and adds
 * one. Each round's prompt is the answer so far, whose blocks both models have in their prefix caches. */
#include "backends/bls/drafts_internal.h"

#include "nereid/llm_tensors.h"

#include <limits.h>
#include <string.h>

/* Inputs of one request, which must outlive it. */
typedef struct round_inputs {
    bls_flow *flow;
    TRITONSERVER_InferenceResponse *draft; /* whose logits are sent; owns; NULL: none */
    int32_t length, n_new, min_length;
    uint8_t yes, no;
    int32_t n_draft;
    int32_t ids[]; /* the prompt, then the draft's tokens */
} round_inputs;

/* Inputs that a round sets itself. */
static const char *const own[] = {
    "input_ids", "input_lengths", "request_output_len", "min_length", "min_tokens", "streaming", "exclude_input_in_output",
    "return_context_logits", "return_generation_logits", "draft_input_ids", "draft_logits",
    "return_perf_metrics", "return_kv_cache_reuse_stats"};
/* And what the draft model is not asked for. */
static const char *const of_target[] = {
    "input_ids", "input_lengths", "request_output_len", "min_length", "min_tokens", "streaming", "exclude_input_in_output",
    "return_context_logits", "return_generation_logits", "draft_input_ids", "draft_logits",
    "return_perf_metrics", "return_kv_cache_reuse_stats", "return_log_probs", "draft_acceptance_threshold"};

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- what the client asks for ---- */

static int64_t number(const bls_flow *f, const char *name, int64_t otherwise)
{
    const nrd_tb_tensor *t = nrd_tb_find(&f->inputs, name);
    int64_t v = otherwise;
    return t && nrd_tb_get_i64(t, 0, &v) ? v : otherwise;
}

/* What has no meaning over several steps. */
static TRITONSERVER_Error *check(const bls_flow *f)
{
    static const char *const single[] = {"beam_width", "num_return_sequences"};
    static const char *const flags[] = {"return_context_logits", "return_generation_logits", "return_num_input_tokens",
                                        "return_num_output_tokens"};
    const nrd_tb_tensor *text = nrd_tb_find(&f->inputs, "text_input");

    if (!f->model->draft_name) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "cannot perform speculative decoding without draft model");
    }
    if (text && text->n_elements > 1) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "speculative decoding is not supported with batch size > 1");
    }
    for (size_t i = 0; i < COUNT(single); i++) {
        if (number(f, single[i], 1) > 1) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "num_draft_tokens needs %s 1, got %lld", single[i],
                                 (long long)number(f, single[i], 1));
        }
    }
    for (size_t i = 0; i < COUNT(flags); i++) {
        if (number(f, flags[i], 0)) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s is not supported with num_draft_tokens",
                                 flags[i]);
        }
    }
    if (nrd_tb_find(&f->inputs, "guided_decoding_guide_type")) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "guided_decoding_guide_type is not supported with num_draft_tokens");
    }
    return NULL;
}

TRITONSERVER_Error *nrd_bls_drafts_new(bls_flow *f)
{
    const int64_t n = number(f, "num_draft_tokens", 0);
    const int64_t min_length = number(f, "min_tokens", number(f, "min_length", 0)); /* the newer name first */

    if (n <= 0) {
        return NULL;
    }
    NRD_TB_TRY(check(f));
    f->drafts = calloc(1, sizeof *f->drafts);
    if (!f->drafts) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    f->drafts->max_prompt = INT32_MAX;
    f->drafts->n_draft = n < INT32_MAX ? (int32_t)n : INT32_MAX;
    f->drafts->use_logits = number(f, "use_draft_logits", 0) != 0;
    f->drafts->min_length = min_length < 0 ? 0 : min_length < INT32_MAX ? (int32_t)min_length : INT32_MAX;
    return NULL;
}

/* ---- a request of a round ---- */

static void round_free(round_inputs *in)
{
    if (in->draft) {
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(in->draft), "response");
    }
    free(in);
}

static void on_release(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *user)
{
    round_inputs *in = user;
    if (flags & TRITONSERVER_REQUEST_RELEASE_ALL) {
        bls_flow *f = in->flow;
        round_free(in);
        nrd_bls_request_over(f, request);
    }
}

/* A copy of the answer so far and of the draft's n tokens; NULL without memory. */
static round_inputs *round_new(bls_flow *f, const int32_t *draft, int32_t n)
{
    const bls_drafts *d = f->drafts;
    const size_t n_ids = (size_t)d->n_ids;
    round_inputs *in = malloc(sizeof *in + (n_ids + (size_t)n) * sizeof *in->ids);

    if (!in) {
        return NULL;
    }
    *in = (round_inputs){.flow = f, .length = d->n_ids, .yes = 1, .n_draft = n};
    memcpy(in->ids, d->ids, n_ids * sizeof *in->ids);
    if (n > 0) {
        memcpy(in->ids + n_ids, draft, (size_t)n * sizeof *in->ids);
    }
    return in;
}

static TRITONSERVER_Error *add(TRITONSERVER_InferenceRequest *r, const nrd_tb_config *step, const char *name,
                               TRITONSERVER_DataType dtype, int64_t n, const void *data)
{
    const int64_t shape[] = {1, n};
    const nrd_tb_tensor t = {name, dtype, shape, 2, data, (size_t)n * TRITONSERVER_DataTypeByteSize(dtype), n};
    return nrd_tb_config_has_input(step, name) ? nrd_bls_add_input(r, step, name, &t) : NULL;
}

static TRITONSERVER_Error *add_round(TRITONSERVER_InferenceRequest *r, const nrd_tb_config *step,
                                     const round_inputs *in, bool wants_logits)
{
    const TRITONSERVER_DataType i32 = TRITONSERVER_TYPE_INT32, flag = TRITONSERVER_TYPE_BOOL;

    NRD_TB_TRY(add(r, step, "input_ids", i32, in->length, in->ids));
    NRD_TB_TRY(add(r, step, "input_lengths", i32, 1, &in->length));
    NRD_TB_TRY(add(r, step, "request_output_len", i32, 1, &in->n_new));
    NRD_TB_TRY(add(r, step, "min_length", i32, 1, &in->min_length));
    NRD_TB_TRY(add(r, step, "min_tokens", i32, 1, &in->min_length));
    NRD_TB_TRY(add(r, step, "streaming", flag, 1, &in->no));
    NRD_TB_TRY(add(r, step, "return_generation_logits", flag, 1, wants_logits ? &in->yes : &in->no));
    NRD_TB_TRY(TRITONSERVER_InferenceRequestSetBoolParameter(r, NRD_LLM_EXCLUDE_INPUT, true));
    return TRITONSERVER_InferenceRequestSetBoolParameter(r, NRD_LLM_PERF_METRICS, true); /* why it ended */
}

/* ---- the draft's tokens ---- */

/* A parameter of a response, a whole number. */
static int64_t parameter(TRITONSERVER_InferenceResponse *r, const char *wanted, int64_t otherwise)
{
    uint32_t n = 0;
    int64_t v = otherwise;
    TRITONSERVER_Error *err = r ? TRITONSERVER_InferenceResponseParameterCount(r, &n) : NULL;
    for (uint32_t i = 0; !err && i < n; i++) {
        const char *name;
        TRITONSERVER_ParameterType type;
        const void *value;
        err = TRITONSERVER_InferenceResponseParameter(r, i, &name, &type, &value);
        if (!err && type == TRITONSERVER_PARAMETER_INT && !strcmp(name, wanted)) {
            v = *(const int64_t *)value;
        }
    }
    TRITONSERVER_ErrorDelete(err);
    return v;
}

/* Prompts that both models take. */
static void keep_limit(bls_drafts *d)
{
    const int64_t limit = parameter(d->response, NRD_LLM_MAX_INPUT, INT32_MAX);
    d->max_prompt = limit < d->max_prompt ? (int32_t)limit : d->max_prompt;
}

/* The ids of an answer without beams, as many as its length says. */
static TRITONSERVER_Error *ids_of(TRITONSERVER_InferenceResponse *r, const char *model, const int32_t **out,
                                  int32_t *out_n)
{
    nrd_tb_tensor ids, length;

    *out_n = 0;
    if (!r) {
        return NULL;
    }
    if (!nrd_tb_inner_find(r, "output_ids", &ids) || !nrd_tb_inner_find(r, "sequence_length", &length) ||
        ids.bytes / sizeof **out > INT32_MAX || length.bytes < sizeof *out_n) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s gave no output_ids or sequence_length", model);
    }
    const int32_t n = *(const int32_t *)(const void *)length.data, n_all = (int32_t)(ids.bytes / sizeof **out);
    *out = (const void *)ids.data;
    *out_n = n < 0 ? 0 : n < n_all ? n : n_all;
    return NULL;
}

static void on_target(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user);

/* [1, n, vocabulary] of [1, 1, n, vocabulary], or nothing where the draft model gave none. */
static TRITONSERVER_Error *add_logits(TRITONSERVER_InferenceRequest *r, const nrd_tb_config *step,
                                      const round_inputs *in)
{
    nrd_tb_tensor t;
    if (!in->draft || !nrd_tb_inner_find(in->draft, "generation_logits", &t) || t.n_dims != 4 ||
        t.shape[2] < in->n_draft) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "use_draft_logits: the draft model gave no generation_logits");
    }
    const int64_t shape[] = {1, in->n_draft, t.shape[3]};
    t.bytes = t.bytes / (size_t)t.shape[2] * (size_t)in->n_draft;
    t.shape = shape;
    t.n_dims = 3;
    return nrd_bls_add_input(r, step, "draft_logits", &t);
}

/* draft: the response whose tokens are verified, NULL: none. Always takes it. */
static void ask_target(bls_flow *f, TRITONSERVER_InferenceResponse *draft, const int32_t *ids, int32_t n)
{
    bls_drafts *d = f->drafts;
    const nrd_tb_config *step = f->steps[NRD_BLS_LLM];
    TRITONSERVER_InferenceRequest *r = NULL;
    const int32_t n_answer = d->n_ids - d->n_prompt;
    round_inputs *in = round_new(f, ids, n);

    if (!in) {
        if (draft) {
            nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(draft), "response");
        }
        nrd_bls_flow_end(f, nrd_tb_error(nrd_error_no_memory()));
        return;
    }
    in->draft = draft;
    d->has_draft = n > 0;
    in->n_new = d->n_asked = d->is_rest ? d->max_ids - d->n_ids : n + 1;
    in->min_length = d->min_length > n_answer ? d->min_length - n_answer : 0;
    TRITONSERVER_Error *err = nrd_bls_request_new(f, f->model->llm_name, on_target, on_release, in, &r);
    err = err ? err : nrd_bls_add_llm_inputs(f, r, NRD_BLS_LLM, own, COUNT(own));
    err = err ? err : add_round(r, step, in, false);
    if (n > 0) {
        err = err ? err : add(r, step, "draft_input_ids", TRITONSERVER_TYPE_INT32, n, in->ids + in->length);
        err = err || !d->use_logits ? err : add_logits(r, step, in);
    }
    err = err ? err : nrd_bls_add_llm_outputs(f, r);
    if (!nrd_bls_request_send(f, r, err)) {
        round_free(in);
    }
}

/* Keeps what an inner request answers. True: it is over, and the flow goes on. An error says that it is of `what` the draft model. */
static bool take_response(bls_flow *f, TRITONSERVER_InferenceResponse *response, uint32_t flags, const char *what)
{
    bls_drafts *d = f->drafts;
    TRITONSERVER_Error *err = nrd_tb_inner_error(response);
    uint32_t n = 0;

    if (err && what) {
        TRITONSERVER_Error *whole = nrd_tb_errorf(TRITONSERVER_ErrorCode(err), "%s '%s': %s", what, f->model->draft_name, TRITONSERVER_ErrorMessage(err));
        TRITONSERVER_ErrorDelete(err);
        err = whole;
    }

    if (response && !err) {
        err = TRITONSERVER_InferenceResponseOutputCount(response, &n);
    }
    if (n > 0) { /* else a flag alone */
        TRITONSERVER_InferenceResponse *old = d->response;
        d->response = response;
        response = old;
    }
    if (response) {
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(response), "response");
    }
    if (err) {
        nrd_bls_flow_end(f, err);
    }
    pthread_mutex_lock(&f->mu);
    bool over = f->is_over;
    pthread_mutex_unlock(&f->mu);
    return (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) && !over;
}

static TRITONSERVER_InferenceResponse *give_response(bls_drafts *d)
{
    TRITONSERVER_InferenceResponse *r = d->response;
    d->response = NULL;
    return r;
}

static void on_draft(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    bls_flow *f = user;
    const int32_t *ids = NULL;
    int32_t n = 0;

    nrd_bls_flow_ref(f);
    if (take_response(f, response, flags, "draft model")) {
        TRITONSERVER_Error *err = ids_of(f->drafts->response, f->model->draft_name, &ids, &n);
        n = n < f->drafts->n_asked ? n : f->drafts->n_asked;
        keep_limit(f->drafts);
        if (err) {
            nrd_bls_flow_end(f, err);
        } else {
            ask_target(f, give_response(f->drafts), ids, n);
        }
    }
    nrd_bls_flow_unref(f);
}

static void ask_draft(bls_flow *f, int32_t n)
{
    bls_drafts *d = f->drafts;
    const nrd_tb_config *step = f->steps[NRD_BLS_DRAFT];
    TRITONSERVER_InferenceRequest *r = NULL;
    round_inputs *in = round_new(f, NULL, 0);

    if (!in) {
        nrd_bls_flow_end(f, nrd_tb_error(nrd_error_no_memory()));
        return;
    }
    in->n_new = in->min_length = d->n_asked = n;
    TRITONSERVER_Error *err = nrd_bls_request_new(f, f->model->draft_name, on_draft, on_release, in, &r);
    err = err ? err : nrd_bls_add_llm_inputs(f, r, NRD_BLS_DRAFT, of_target, COUNT(of_target));
    err = err ? err : add_round(r, step, in, d->use_logits);
    err = err ? err : TRITONSERVER_InferenceRequestAddRequestedOutput(r, "output_ids");
    err = err ? err : TRITONSERVER_InferenceRequestAddRequestedOutput(r, "sequence_length");
    if (d->use_logits) {
        err = err ? err : TRITONSERVER_InferenceRequestAddRequestedOutput(r, "generation_logits");
    }
    if (!nrd_bls_request_send(f, r, err)) {
        round_free(in);
    }
}

/* The answer so far is a round's prompt: before it grows past what is taken, one round without a draft gives the rest. */
static void next_round(bls_flow *f)
{
    bls_drafts *d = f->drafts;
    const int32_t room = d->max_ids - d->n_ids - 1; /* one token is tensorrt_llm's own */

    d->is_rest = d->max_prompt - d->n_ids <= d->n_draft;
    if (room > 0 && !d->is_rest) {
        ask_draft(f, d->n_draft < room ? d->n_draft : room);
    } else {
        ask_target(f, NULL, NULL, 0);
    }
}

/* ---- what tensorrt_llm keeps ---- */

/* Whether a phrase of [2, n] ends at ids[end), all of it in the answer. */
static bool ends_with(const bls_drafts *d, int32_t end, const int32_t *phrases, int64_t n)
{
    int32_t begin = 0;
    for (int64_t i = 0; i < n && phrases[n + i] > begin && phrases[n + i] <= n; i++) {
        const int32_t len = phrases[n + i] - begin;
        if (len <= end - d->n_prompt &&
            !memcmp(d->ids + end - len, phrases + begin, (size_t)len * sizeof *d->ids)) {
            return true;
        }
        begin = phrases[n + i];
    }
    return false;
}

/* A stop phrase may have begun in an earlier round, where tensorrt_llm sees it as prompt. */
static bool cut_at_stop(const bls_flow *f, int32_t from)
{
    bls_drafts *d = f->drafts;
    nrd_tb_tensor t;

    if (!nrd_tb_inner_find(f->pre, "STOP_WORDS_IDS", &t) || t.dtype != TRITONSERVER_TYPE_INT32) {
        return false;
    }
    const int64_t n = (int64_t)(t.bytes / sizeof *d->ids / 2);
    for (int32_t end = from + 1; end <= d->n_ids; end++) {
        if (ends_with(d, end, (const void *)t.data, n)) {
            d->n_ids = end;
            return true;
        }
    }
    return false;
}

static void count(bls_drafts *d, TRITONSERVER_InferenceResponse *r)
{
    nrd_tb_tensor proposed, accepted;

    if (nrd_tb_inner_find(r, "total_draft_tokens", &proposed) && proposed.bytes >= sizeof(int32_t) &&
        nrd_tb_inner_find(r, "total_accepted_draft_tokens", &accepted) && accepted.bytes >= sizeof(int32_t)) {
        d->has_counts = true;
        d->n_proposed += *(const int32_t *)(const void *)proposed.data;
        d->n_accepted += *(const int32_t *)(const void *)accepted.data;
        d->acceptance_rate = d->n_proposed > 0 ? (float)d->n_accepted / (float)d->n_proposed : 0;
    }
}

static void keep_times(bls_drafts *d, TRITONSERVER_InferenceResponse *r)
{
    nrd_tb_tensor t;
    bool all = !d->has_times;
    for (size_t i = 0; i < NRD_BLS_FIRST_TIMES && all; i++) {
        all = nrd_tb_inner_find(r, nrd_bls_first_times[i], &t) && t.bytes >= sizeof *d->first_times;
        if (all) {
            d->first_times[i] = *(const int64_t *)(const void *)t.data;
        }
    }
    d->has_times |= all;
}

/* Log probabilities of the n newest tokens. The sum of all is the model's own: its parts may be relative to the
 * tokens that sampling left, and the sum is not. */
static void keep_log_probs(bls_drafts *d, TRITONSERVER_InferenceResponse *r, int32_t n)
{
    nrd_tb_tensor t;
    if (nrd_tb_inner_find(r, "cum_log_probs", &t) && t.bytes >= sizeof d->cum_log_prob) {
        d->cum_log_prob += *(const float *)(const void *)t.data;
    }
    if (!nrd_tb_inner_find(r, "output_log_probs", &t) || t.bytes / sizeof *d->log_probs < (size_t)n) {
        return;
    }
    d->has_log_probs = true;
    for (int32_t i = 0; i < n && d->n_log_probs < d->max_ids - d->n_prompt; i++) {
        d->log_probs[d->n_log_probs++] = ((const float *)(const void *)t.data)[i];
    }
}

/* Appends a round's tokens. *done: the answer is complete. */
static TRITONSERVER_Error *keep(bls_flow *f, bool *done)
{
    bls_drafts *d = f->drafts;
    const int32_t before = d->n_ids;
    const int32_t *ids = NULL;
    int32_t n = 0;

    NRD_TB_TRY(ids_of(d->response, f->model->llm_name, &ids, &n));
    if (!d->response) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%s gave no answer", f->model->llm_name);
    }
    n = n < d->max_ids - d->n_ids ? n : d->max_ids - d->n_ids;
    memcpy(d->ids + d->n_ids, ids, (size_t)n * sizeof *ids);
    d->n_ids += n;
    const int64_t reason = parameter(d->response, NRD_LLM_FINISH_REASON, NRD_FINISH_NONE);
    keep_limit(d);
    *done = (n < d->n_asked && reason == NRD_FINISH_NONE) || d->is_rest || d->n_ids > d->max_prompt;
    *done = cut_at_stop(f, before) || *done || n == 0 || d->n_ids >= d->max_ids ||
            (reason != NRD_FINISH_NONE && reason != NRD_FINISH_LENGTH);
    count(d, d->response);
    keep_times(d, d->response);
    keep_log_probs(d, d->response, d->n_ids - before);
    return NULL;
}

/* With the prompt in front where a request without drafts has it there. */
static TRITONSERVER_Error *answer_whole(bls_flow *f)
{
    bls_drafts *d = f->drafts;
    const char *v = nrd_tb_config_param(f->steps[NRD_BLS_LLM], "exclude_input_in_output");
    const bool by_model = v && (!strcmp(v, "1") || !strcmp(v, "true") || !strcmp(v, "True") || !strcmp(v, "TRUE"));
    const bool bare = f->is_streaming || number(f, "exclude_input_in_output", by_model) != 0;
    const int32_t from = bare ? d->n_prompt : 0, n = d->n_ids - from;
    answer *a = calloc(1, sizeof *a);

    if (a) {
        a->ids = malloc((size_t)(n > 0 ? n : 1) * sizeof *a->ids);
    }
    if (!a || !a->ids) {
        free(a);
        return nrd_tb_error(nrd_error_no_memory());
    }
    memcpy(a->ids, d->ids + from, (size_t)n * sizeof *a->ids);
    a->length = n;
    a->shape[0] = a->shape[1] = a->length_shape[0] = a->length_shape[1] = 1;
    a->shape[2] = n;
    a->response = give_response(d);
    nrd_bls_flow_answer(f, a);
    return NULL;
}

static void on_target(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    bls_flow *f = user;
    bool done = false;

    nrd_bls_flow_ref(f);
    if (take_response(f, response, flags, f->drafts->has_draft ? "a draft of the model" : NULL)) {
        TRITONSERVER_Error *err = keep(f, &done);
        if (!err && done) {
            err = answer_whole(f);
        } else if (!err) {
            nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(give_response(f->drafts)), "response");
            next_round(f);
        }
        if (err) {
            nrd_bls_flow_end(f, err);
        }
    }
    nrd_bls_flow_unref(f);
}

/* ---- the beginning and the end ---- */

static TRITONSERVER_Error *begin(bls_flow *f)
{
    bls_drafts *d = f->drafts;
    const int64_t max_tokens = number(f, "max_tokens", 0);
    nrd_tb_tensor ids, length;

    if (!nrd_tb_inner_find(f->pre, "INPUT_ID", &ids) || !nrd_tb_inner_find(f->pre, "REQUEST_INPUT_LEN", &length) ||
        ids.dtype != TRITONSERVER_TYPE_INT32 || length.dtype != TRITONSERVER_TYPE_INT32 ||
        length.bytes < sizeof(int32_t)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "preprocessing gave no INPUT_ID or REQUEST_INPUT_LEN");
    }
    const int64_t n_all = (int64_t)(ids.bytes / sizeof *d->ids), n = *(const int32_t *)(const void *)length.data;
    if (n < 1 || n > n_all || n_all > INT32_MAX) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "text_input has %lld tokens, expected 1 to %lld",
                             (long long)n, (long long)n_all);
    }
    /* The engine ends an answer at its own limit: a large max_tokens is no reason to take memory. */
    const nrd_tb_tensor *given = nrd_tb_find(&f->inputs, "max_tokens");
    const int64_t limit = 1 << 20;
    if (!given || max_tokens > limit) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "max_tokens is %lld, with num_draft_tokens at most %lld", (long long)max_tokens,
                             (long long)limit);
    }
    d->n_prompt = d->n_ids = (int32_t)n;
    d->max_ids = n + max_tokens > INT32_MAX ? INT32_MAX : (int32_t)(n + max_tokens);
    d->ids = malloc((size_t)d->max_ids * sizeof *d->ids);
    d->log_probs = malloc((size_t)max_tokens * sizeof *d->log_probs);
    if (!d->ids || !d->log_probs) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    memcpy(d->ids, ids.data, (size_t)n * sizeof *d->ids);
    return NULL;
}

void nrd_bls_drafts_start(bls_flow *f)
{
    TRITONSERVER_Error *err = begin(f);
    if (err) {
        nrd_bls_flow_end(f, err);
    } else {
        next_round(f);
    }
}
