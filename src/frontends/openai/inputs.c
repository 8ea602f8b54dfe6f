/* SPDX-License-Identifier: Apache-2.0
 * A choice of a request -> what the model is asked. */
#include "frontends/openai/generate.h"

#include "nereid/llm_tensors.h"

#include <string.h>

nrd_error *nrd_oai_add(nrd_http_call *call, const char *name, TRITONSERVER_DataType type,
                      const int64_t *shape, size_t n_dims, const void *data, size_t bytes)
{
    return nrd_infer_add_copy(&call->infer, name, type, shape, n_dims, data, bytes);
}

nrd_error *nrd_oai_add_i32(nrd_http_call *call, const nrd_oai_model *m, const char *name, int64_t value)
{
    const int64_t shape[] = {1, 1};
    int32_t v = (int32_t)value;
    bool is_unsigned = m->unsigned_inputs && strcmp(name, "input_lengths") != 0; /* the one that was not */
    return nrd_oai_add(call, name, is_unsigned ? TRITONSERVER_TYPE_UINT32 : TRITONSERVER_TYPE_INT32, shape, 2, &v,
                       sizeof v);
}

static nrd_error *add_f32(nrd_http_call *call, const char *name, double value)
{
    const int64_t shape[] = {1, 1};
    float v = (float)value;
    return nrd_oai_add(call, name, TRITONSERVER_TYPE_FP32, shape, 2, &v, sizeof v);
}

nrd_error *nrd_oai_add_background(nrd_http_call *call)
{
    int key;
    return nrd_http_is_local(call->req, &key)
               ? nrd_from_triton(TRITONSERVER_InferenceRequestSetBoolParameter(call->infer.request, NRD_LLM_BACKGROUND, true))
               : NULL;
}

nrd_error *nrd_oai_add_bool(nrd_http_call *call, const char *name, bool value)
{
    const int64_t shape[] = {1, 1};
    uint8_t v = value;
    return nrd_oai_add(call, name, TRITONSERVER_TYPE_BOOL, shape, 2, &v, sizeof v);
}

/* Ids that end an answer beside the end id, each a phrase of one. [1, 2, n] */
static nrd_error *add_stop_ids(nrd_http_call *call, const nrd_oai_request *r)
{
    size_t n = 0, n_own = r->stop_ids.n;
    const int32_t *stops = nrd_tokenizer_stop_ids(r->model->tokenizer, &n);
    n = r->ignore_eos ? 0 : n;
    size_t all = n + n_own;
    const int64_t shape[] = {1, 2, (int64_t)all};
    if (all == 0 || !r->model->stop_words) { /* without them take_ids ends the answer */
        return NULL;
    }
    int32_t *v = calloc(2 * all, sizeof *v);
    if (!v) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < all; i++) {
        v[i] = i < n ? stops[i] : r->stop_ids.ids[i - n];
        v[all + i] = (int32_t)i + 1;
    }
    nrd_error *err = nrd_oai_add(call, "stop_words_list", TRITONSERVER_TYPE_INT32, shape, 3, v,
                         2 * all * sizeof *v);
    free(v);
    return err;
}

/* A string tensor of one element. */
static nrd_error *add_string(nrd_http_call *call, const char *name, const char *s, size_t n)
{
    const int64_t shape[] = {1, 1};
    uint32_t len = (uint32_t)n;
    nrd_str bytes = {0};
    nrd_str_append(&bytes, &len, sizeof len);
    nrd_str_append(&bytes, s, n);
    nrd_error *err = nrd_str_error(&bytes);
    if (!err) {
        err = nrd_oai_add(call, name, TRITONSERVER_TYPE_BYTES, shape, 2, bytes.data, bytes.len);
    }
    nrd_str_fini(&bytes);
    return err;
}

static nrd_error *add_guide(nrd_http_call *call, const nrd_oai_request *r)
{
    if (!r->guide_type) {
        return NULL;
    }
    NRD_TRY(add_string(call, "guided_decoding_guide_type", r->guide_type, strlen(r->guide_type)));
    return add_string(call, "guided_decoding_guide", nrd_str_cstr(&r->guide), r->guide.len);
}

static int32_t end_id(const nrd_oai_request *r)
{
    return r->ignore_eos ? -1 : nrd_tokenizer_eos_id(r->model->tokenizer);
}

static nrd_error *add_sampling(nrd_http_call *call, const nrd_oai_choice *c, int turn)
{
    const nrd_oai_request *r = c->r;
    const int64_t one[] = {1, 1};
    uint64_t seed = r->seed + (uint64_t)turn; /* choices differ, and are the same another time */

    if (r->temperature > 0) {
        NRD_TRY(add_f32(call, "temperature", r->temperature));
        NRD_TRY(add_f32(call, "runtime_top_p", r->top_p > 0 ? r->top_p : 1e-6));
        if (r->top_k > 0) {
            NRD_TRY(nrd_oai_add_i32(call, r->model, "runtime_top_k", r->top_k));
        }
    } else {
        NRD_TRY(nrd_oai_add_i32(call, r->model, "runtime_top_k", 1));
    }
    NRD_TRY(nrd_oai_add(call, r->model->short_names ? "seed" : "random_seed", TRITONSERVER_TYPE_UINT64, one, 2, &seed, sizeof seed));
    if (r->min_p > 0) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetDoubleParameter(call->infer.request, NRD_LLM_MIN_P,
                                                                                r->min_p)));
    }
    if (r->presence > 0 || r->presence < 0) {
        NRD_TRY(add_f32(call, "presence_penalty", r->presence));
    }
    if (r->frequency > 0 || r->frequency < 0) {
        NRD_TRY(add_f32(call, "frequency_penalty", r->frequency));
    }
    if (r->repetition > 1 || r->repetition < 1) {
        NRD_TRY(add_f32(call, "repetition_penalty", r->repetition));
    }
    if (r->min_tokens > 0) {
        NRD_TRY(nrd_oai_add_i32(call, r->model, r->model->short_names ? "min_tokens" : "min_length", r->min_tokens));
    }
    if (r->allowed.len > 0) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetStringParameter(call->infer.request, NRD_LLM_ALLOWED,
                                                                                nrd_str_cstr(&r->allowed))));
    }
    return r->logit_bias.len == 0
               ? NULL
               : nrd_from_triton(TRITONSERVER_InferenceRequestSetStringParameter(
                     call->infer.request, "logit_bias", nrd_str_cstr(&r->logit_bias)));
}

/* The request's words, and tokens that the model's makers never want. [1, 2, n]: ids, and where phrases end (-1: no more) */
static nrd_error *add_bad_words(nrd_http_call *call, const nrd_oai_request *r)
{
    const nrd_generation *g = r->model->search;
    const size_t n_never = g ? (size_t)g->n_suppressed : 0, n = n_never + r->bad_ids.n;
    const int64_t shape[] = {1, 2, (int64_t)n};

    if (n == 0 || !r->model->bad_words) {
        return NULL;
    }
    int32_t *v = calloc(2 * n, sizeof *v);
    if (!v) {
        return nrd_error_no_memory();
    }
    for (size_t i = 0; i < n; i++) {
        const size_t word = i - n_never;
        v[i] = i < n_never ? g->suppressed[i] : r->bad_ids.ids[word];
        v[n + i] = i < n_never ? (int32_t)i + 1 : word < r->bad_ends.n ? (int32_t)n_never + r->bad_ends.ids[word] : -1;
    }
    nrd_error *err = nrd_oai_add(call, "bad_words_list", TRITONSERVER_TYPE_INT32, shape, 3, v, 2 * n * sizeof *v);
    free(v);
    return err;
}

static nrd_error *add_search(nrd_http_call *call, const nrd_oai_request *r)
{
    const nrd_generation *g = r->model->search;
    TRITONSERVER_InferenceRequest *to = call->infer.request;

    if (r->search.no_repeat_ngram_size > 0) {
        NRD_TRY(nrd_oai_add_i32(call, r->model, "no_repeat_ngram_size", r->search.no_repeat_ngram_size));
    }
    NRD_TRY(add_bad_words(call, r));
    if (!g) {
        return NULL;
    }
    if (g->forced_eos_id >= 0 && g->forced_eos_id == end_id(r)) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetBoolParameter(to, NRD_LLM_FORCED_END, true)));
    }
    if (r->search.beams <= 1) {
        return NULL;
    }
    NRD_TRY(nrd_oai_add_i32(call, r->model, "beam_width", r->search.beams));
    NRD_TRY(add_f32(call, "len_penalty", r->search.length_penalty));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetIntParameter(to, NRD_LLM_EARLY_STOPPING, r->search.early_stopping)));
    return nrd_from_triton(TRITONSERVER_InferenceRequestSetBoolParameter(to, NRD_LLM_GENERATE_SCORES, true));
}

nrd_error *nrd_oai_add_adapter(nrd_http_call *call, const nrd_oai_model *m)
{
    const int64_t shape[] = {1, 1};
    if (!m->adapter) {
        return NULL;
    }
    NRD_TRY(nrd_oai_add(call, "lora_task_id", TRITONSERVER_TYPE_UINT64, shape, 2, &m->adapter, sizeof m->adapter));
    return m->adapter_loads ? nrd_from_triton(TRITONSERVER_InferenceRequestSetStringParameter(
                                  call->infer.request, NRD_LLM_ADAPTER_DIR, m->adapter_dir))
                            : NULL;
}

nrd_error *nrd_oai_fill(nrd_http_call *call, const nrd_oai_choice *c, int turn)
{
    static const char *const switches[] = {NRD_LLM_EXCLUDE_INPUT, NRD_LLM_PERF_METRICS};
    const nrd_oai_request *r = c->r;
    const int64_t shape[] = {1, (int64_t)c->prompt->n};
    bool scores = r->log_probs || r->best_of > r->n;

    NRD_TRY(nrd_oai_add(call, "input_ids", TRITONSERVER_TYPE_INT32, shape, 2, c->prompt->ids,
                c->prompt->n * sizeof *c->prompt->ids));
    NRD_TRY(nrd_oai_add_i32(call, r->model, "input_lengths", (int64_t)c->prompt->n));
    NRD_TRY(nrd_oai_add_i32(call, r->model, "request_output_len", r->max_tokens));
    if (end_id(r) >= 0 || !r->model->unsigned_inputs) { /* none is the default */
        NRD_TRY(nrd_oai_add_i32(call, r->model, "end_id", end_id(r)));
    }
    NRD_TRY(nrd_oai_add_bool(call, "streaming", r->model->decoupled && r->search.beams <= 1));
    for (size_t i = 0; i < sizeof switches / sizeof switches[0]; i++) { /* not all releases have them as inputs */
        NRD_TRY(nrd_from_triton(
            TRITONSERVER_InferenceRequestSetBoolParameter(call->infer.request, switches[i], true)));
    }
    if (scores) {
        NRD_TRY(nrd_oai_add_bool(call, "return_log_probs", true));
    }
    NRD_TRY(nrd_oai_add_adapter(call, r->model));
    NRD_TRY(nrd_oai_add_background(call));
    NRD_TRY(add_stop_ids(call, r));
    NRD_TRY(add_guide(call, r));
    NRD_TRY(add_sampling(call, c, turn));
    NRD_TRY(add_search(call, r));
    if (r->log_probs) { /* with at least one alternative: then values are not relative to a cut set */
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetIntParameter(
            call->infer.request, "top_logprobs", nrd_oai_asked_top(r))));
    }
    if (r->n_prompt_top >= 0 && r->n_images + r->n_videos > 0) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "prompt_logprobs", "is not for prompts with pictures");
    }
    if (r->n_prompt_top >= 0) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetIntParameter(call->infer.request, NRD_LLM_PROMPT_LOGPROBS,
                                                                             r->n_prompt_top)));
    }
    if (r->reasoning.len > 0) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetStringParameter(call->infer.request, NRD_LLM_REASONING,
                                                                                nrd_str_cstr(&r->reasoning))));
    }
    if (r->n_images > 0) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetStringParameter(call->infer.request, NRD_LLM_IMAGES,
                                                                                nrd_str_cstr(&r->images))));
    }
    if (r->n_videos > 0) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetStringParameter(call->infer.request, NRD_LLM_VIDEOS,
                                                                                nrd_str_cstr(&r->videos))));
    }
    if (r->n_choices > 1) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetIntParameter(call->infer.request, NRD_LLM_GROUP,
                                                                             (int64_t)r->group)));
    }
    if (r->cache_salt) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetStringParameter(
            call->infer.request, NRD_LLM_CACHE_SALT, r->cache_salt)));
    }
    if (r->priority > 0) {
        NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetPriorityUInt64(
            call->infer.request, (uint64_t)r->priority)));
    }
    if (r->max_time_s > 0) {
        nrd_infer_end_within(&call->infer, (uint64_t)(r->max_time_s * 1e6));
    }
    for (size_t i = 0; i < (r->return_timings ? OAI_N_OUTPUTS : OAI_FIRST_TIME); i++) {
        NRD_TRY(r->model->outputs & 1u << i
                    ? nrd_from_triton(TRITONSERVER_InferenceRequestAddRequestedOutput(call->infer.request,
                                                                                      nrd_oai_outputs[i]))
                    : NULL);
    }
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceRequestSetId(call->infer.request, r->id)));
    return nrd_http_forward_headers(call);
}
