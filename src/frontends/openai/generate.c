/* SPDX-License-Identifier: Apache-2.0
 * Choices: one request to the model for each, ids back into text, stop strings. */
#include "frontends/openai/responses.h"

#include "base/clock.h"
#include "frontends/http/lease.h"
#include "nereid/llm_tensors.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

/* ---- to the model ---- */

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
    NRD_TRY(nrd_oai_add(call, "random_seed", TRITONSERVER_TYPE_UINT64, one, 2, &seed, sizeof seed));
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
        NRD_TRY(nrd_oai_add_i32(call, r->model, "min_length", r->min_tokens));
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

static int asked_top(const nrd_oai_request *r)
{
    return r->n_top > 0 ? r->n_top : 1;
}

static nrd_error *fill(nrd_http_call *call, const nrd_oai_choice *c, int turn)
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
            call->infer.request, "top_logprobs", asked_top(r))));
    }
    if (r->n_prompt_top >= 0 && r->n_images > 0) {
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

/* ---- from the model ---- */

typedef struct piece {
    const int32_t *ids;
    size_t n_ids;
    const float *log_probs;
    size_t n_log_probs;
    const int32_t *top_ids;
    const float *top_log_probs;
    size_t n_top_ids, n_top_log_probs;
    nrd_oai_probs prompt;
    float cum_log_prob;
    int32_t reused_blocks, tokens_per_block;
    int64_t prompt_tokens;
    int64_t finish_reason; /* nrd_finish_reason, 0: not given */
    int64_t arrival_ns, first_token_ns, last_token_ns;
} piece;

nrd_error *nrd_oai_output_get(TRITONSERVER_InferenceResponse *response, uint32_t i,
                              nrd_oai_output *out)
{
    const int64_t *shape;
    uint64_t n_dims;
    TRITONSERVER_MemoryType memory;
    int64_t memory_id;
    void *user;
    return nrd_from_triton(
        TRITONSERVER_InferenceResponseOutput(response, i, &out->name, &out->type, &shape, &n_dims,
                                             &out->base, &out->bytes, &memory, &memory_id, &user));
}

/* The error of a response, with the word that the model gives for its reason. */
static nrd_error *response_error(TRITONSERVER_InferenceResponse *response)
{
    static const char *const reasons[] = {NRD_LLM_PROMPT_TOO_LONG};
    nrd_error *err = nrd_oai_plain_error(nrd_infer_response_error(response));
    uint32_t n = 0;

    if (err) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_InferenceResponseParameterCount(response, &n)));
    }
    for (uint32_t i = 0; i < n; i++) {
        const char *name;
        TRITONSERVER_ParameterType type;
        const void *value;
        nrd_error *other = nrd_from_triton(
            TRITONSERVER_InferenceResponseParameter(response, i, &name, &type, &value));
        for (size_t k = 0; !other && k < sizeof reasons / sizeof reasons[0]; k++) {
            if (!strcmp(name, NRD_LLM_ERROR_REASON) && type == TRITONSERVER_PARAMETER_STRING &&
                !strcmp(value, reasons[k])) {
                err = nrd_error_because(err, reasons[k]);
            }
        }
        nrd_error_free(other);
    }
    return err;
}

static nrd_error *read_piece(TRITONSERVER_InferenceResponse *response, piece *p)
{
    uint32_t n = 0;
    const int32_t *length = NULL;

    memset(p, 0, sizeof *p);
    NRD_TRY(response_error(response));
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseOutputCount(response, &n)));
    for (uint32_t i = 0; i < n; i++) {
        nrd_oai_output o;
        NRD_TRY(nrd_oai_output_get(response, i, &o));
        if (!strcmp(o.name, "output_ids")) {
            p->ids = o.base;
            p->n_ids = o.bytes / sizeof *p->ids;
        } else if (!strcmp(o.name, "sequence_length") && o.bytes >= sizeof *length) {
            length = o.base;
        } else if (!strcmp(o.name, "output_log_probs")) {
            p->log_probs = o.base;
            p->n_log_probs = o.bytes / sizeof *p->log_probs;
        } else if (!strcmp(o.name, "top_log_prob_ids")) {
            p->top_ids = o.base;
            p->n_top_ids = o.bytes / sizeof *p->top_ids;
        } else if (!strcmp(o.name, "top_log_probs")) {
            p->top_log_probs = o.base;
            p->n_top_log_probs = o.bytes / sizeof *p->top_log_probs;
        } else if (!strcmp(o.name, "prompt_log_probs")) {
            p->prompt.log_probs = o.base;
            p->prompt.n = o.bytes / sizeof *p->prompt.log_probs;
        } else if (!strcmp(o.name, "prompt_log_prob_ranks")) {
            p->prompt.ranks = o.base;
        } else if (!strcmp(o.name, "prompt_top_log_prob_ids")) {
            p->prompt.top_ids = o.base;
        } else if (!strcmp(o.name, "prompt_top_log_probs")) {
            p->prompt.top_log_probs = o.base;
        } else if (!strcmp(o.name, "cum_log_probs") && o.bytes >= sizeof p->cum_log_prob) {
            p->cum_log_prob = *(const float *)o.base;
        } else if (!strcmp(o.name, "kv_cache_reused_blocks") && o.bytes >= sizeof p->reused_blocks) {
            p->reused_blocks = *(const int32_t *)o.base;
        } else if (!strcmp(o.name, "arrival_time_ns") && o.bytes >= sizeof p->arrival_ns) {
            p->arrival_ns = *(const int64_t *)o.base;
        } else if (!strcmp(o.name, "first_token_time_ns") && o.bytes >= sizeof p->first_token_ns) {
            p->first_token_ns = *(const int64_t *)o.base;
        } else if (!strcmp(o.name, "last_token_time_ns") && o.bytes >= sizeof p->last_token_ns) {
            p->last_token_ns = *(const int64_t *)o.base;
        }
    }
    if (length && *length >= 0 && (size_t)*length < p->n_ids) {
        p->n_ids = (size_t)*length;
    }
    if (p->n_log_probs > p->n_ids) { /* a stream's answers have those of all tokens so far */
        p->log_probs += p->n_log_probs - p->n_ids;
        p->n_log_probs = p->n_ids;
    }
    NRD_TRY(nrd_from_triton(TRITONSERVER_InferenceResponseParameterCount(response, &n)));
    for (uint32_t i = 0; i < n; i++) {
        const char *name;
        TRITONSERVER_ParameterType type;
        const void *value;
        NRD_TRY(nrd_from_triton(
            TRITONSERVER_InferenceResponseParameter(response, i, &name, &type, &value)));
        if (!strcmp(name, NRD_LLM_FINISH_REASON) && type == TRITONSERVER_PARAMETER_INT) {
            p->finish_reason = *(const int64_t *)value;
        }
        if (!strcmp(name, NRD_LLM_TOKENS_PER_BLOCK) && type == TRITONSERVER_PARAMETER_INT) {
            p->tokens_per_block = (int32_t)*(const int64_t *)value;
        }
        if (!strcmp(name, NRD_LLM_PROMPT_TOKENS) && type == TRITONSERVER_PARAMETER_INT) {
            p->prompt_tokens = *(const int64_t *)value;
        }
    }
    return NULL;
}

static bool is_end(const nrd_oai_request *r, int32_t id)
{
    size_t n = 0;
    const int32_t *stops = nrd_tokenizer_stop_ids(r->model->tokenizer, &n);
    bool end = !r->ignore_eos && id == nrd_tokenizer_eos_id(r->model->tokenizer);
    for (size_t i = 0; i < n && !r->ignore_eos; i++) {
        end = end || stops[i] == id;
    }
    for (size_t i = 0; i < r->stop_ids.n; i++) {
        end = end || r->stop_ids.ids[i] == id;
    }
    return end;
}

static bool grow(void **p, size_t n, size_t size)
{
    void *fresh = realloc(*p, n * size);
    *p = fresh ? fresh : *p;
    return fresh != NULL;
}

/* Room for one more token's probabilities. */
static nrd_error *reserve_token(nrd_oai_choice *c)
{
    const size_t k = (size_t)c->r->n_top, cap = c->n_log_cap ? 2 * c->n_log_cap : 64;
    if (c->n_log_probs < c->n_log_cap) {
        return NULL;
    }
    if (!grow((void **)&c->log_probs, cap, sizeof *c->log_probs) ||
        !grow((void **)&c->offsets, cap, sizeof *c->offsets) ||
        !grow((void **)&c->top_ids, cap * k + 1, sizeof *c->top_ids) ||
        !grow((void **)&c->top_log_probs, cap * k + 1, sizeof *c->top_log_probs)) {
        return nrd_error_no_memory();
    }
    c->n_log_cap = cap;
    return NULL;
}

/* Keeps token i of a piece. */
static nrd_error *add_token(nrd_oai_choice *c, const piece *p, size_t i)
{
    size_t k = (size_t)c->r->n_top, stride = (size_t)asked_top(c->r);
    NRD_TRY(reserve_token(c));
    for (size_t j = 0; j < k; j++) {
        size_t at = i * stride + j;
        bool has = at < p->n_top_ids && at < p->n_top_log_probs;
        c->top_ids[c->n_log_probs * k + j] = has ? p->top_ids[at] : -1;
        c->top_log_probs[c->n_log_probs * k + j] = has ? p->top_log_probs[at] : 0;
    }
    c->log_probs[c->n_log_probs] = i < p->n_log_probs ? p->log_probs[i] : 0;
    c->offsets[c->n_log_probs++] = (uint32_t)c->text.len;
    nrd_ids_push(&c->ids, p->ids[i]);
    return nrd_ids_error(&c->ids);
}

/* Ends the text before the first stop string. `from`: where a new one can begin at the earliest. */
static bool cut_at_stop(nrd_oai_choice *c, size_t from)
{
    const nrd_oai_request *r = c->r;
    size_t best = SIZE_MAX, end = 0;
    for (size_t i = 0; i < r->n_stops && c->text.len > 0; i++) {
        size_t n = r->stops[i].n, start = from > n ? from - n : 0;
        const char *hit = memmem(c->text.data + start, c->text.len - start, r->stops[i].s, n);
        size_t at = hit ? (size_t)(hit - c->text.data) : SIZE_MAX;
        if (at < best) {
            best = at;
            end = at + n;
            c->stop = (int)i;
        }
    }
    if (best == SIZE_MAX) {
        return false;
    }
    c->text.len = r->include_stop ? end : best;
    c->text.data[c->text.len] = '\0';
    return true;
}

static nrd_error *text_error(const nrd_oai_choice *c)
{
    return c->harmony && nrd_harmony_no_memory(c->harmony) ? nrd_error_no_memory() : nrd_str_error(&c->text);
}

static nrd_error *take_ids(nrd_oai_choice *c, const piece *p)
{
    NRD_TRY(nrd_oai_take_prompt_probs(c, &p->prompt));
    if (c->r->only_prompt) {
        return NULL;
    }
    for (size_t i = 0; i < p->n_ids && !c->finish; i++) {
        const size_t before = c->text.len;
        c->n_tokens++;
        if (is_end(c->r, p->ids[i])) {
            c->finish = "stop";
            c->ended = true;
            c->end_token = p->ids[i];
            break;
        }
        NRD_TRY(add_token(c, p, i));
        if (c->harmony) {
            nrd_harmony_push(c->harmony, p->ids[i], &c->text);
        } else {
            nrd_detok_push(c->detok, p->ids[i], &c->text);
        }
        NRD_TRY(text_error(c));
        if (cut_at_stop(c, before)) {
            c->finish = "stop";
            c->cut = true;
        }
    }
    return NULL;
}

/* ---- the end ---- */

static void release_choice(nrd_oai_choice *c)
{
    nrd_detok_free(c->detok);
    nrd_harmony_free(c->harmony);
    nrd_str_fini(&c->text);
    nrd_ids_fini(&c->ids);
    free(c->log_probs);
    free(c->top_ids);
    free(c->top_log_probs);
    free(c->offsets);
    free((void *)(uintptr_t)c->prompt_probs.log_probs);
}

void nrd_oai_request_free(nrd_oai_request *r)
{
    for (int i = 0; i < r->n_choices; i++) {
        release_choice(&r->choices[i]);
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        nrd_ids_fini(&r->prompts[i]);
        nrd_str_fini(&r->echoes[i]);
    }
    free(r->choices);
    free(r->extra);
    nrd_str_fini(&r->unknown);
    nrd_str_fini(&r->guide);
    nrd_str_fini(&r->reasoning);
    nrd_str_fini(&r->logit_bias);
    nrd_str_fini(&r->allowed);
    nrd_str_fini(&r->shown);
    nrd_str_fini(&r->images);
    nrd_str_fini(&r->out);
    nrd_ids_fini(&r->stop_ids);
    nrd_ids_fini(&r->bad_ids);
    nrd_ids_fini(&r->bad_ends);
    nrd_str_fini(&r->llama.fields);
    nrd_str_fini(&r->resp.echoed);
    nrd_str_fini(&r->resp.input);
    nrd_json_doc_free(r->resp.tools);
    nrd_response_store_give_back(r->o->kept, r->resp.previous);
    nrd_bg_release(r->resp.job);
    nrd_json_doc_free(r->doc);
    nrd_oai_model_unref(r->model);
    free(r);
}

void nrd_oai_request_unref(nrd_oai_request *r)
{
    if (--r->refs > 0) {
        return;
    }
    atomic_fetch_sub(&r->o->n_running, 1);
    if (r->turns) {
        nrd_oai_give_place(r->o, r->turns, nrd_oai_used_tokens(r));
    }
    nrd_http_request_unref(r->req);
    nrd_oai_request_free(r);
}

static void cancel_choice(nrd_oai_choice *c)
{
    if (c->call) {
        nrd_infer_cancel(&c->call->infer);
    }
}

static void cancel_all(nrd_oai_request *r)
{
    for (int i = 0; i < r->n_choices; i++) {
        cancel_choice(&r->choices[i]);
    }
}

static void on_gone(nrd_http_request *req, void *arg)
{
    (void)req;
    cancel_all(arg);
}

/* One error answers for all choices; in a stream it is its last event. Takes err. */
static void fail(nrd_oai_request *r, nrd_error *err)
{
    if (r->failed || nrd_http_is_gone(r->req)) {
        nrd_error_free(err);
        r->failed = true;
        return;
    }
    r->failed = true;
    if (r->resp.job) {
        nrd_resp_fail_job(r, nrd_error_message(err));
    }
    if (r->streaming) {
        nrd_str_clear(&r->out);
        if (r->form->put_failure) {
            r->form->put_failure(&r->out, r, nrd_error_message(err));
        } else {
            nrd_str_puts(&r->out, r->form->before_error);
            r->form->put_error(&r->out, nrd_oai_status(err), nrd_error_message(err), NULL, nrd_error_reason(err));
            nrd_str_puts(&r->out, r->form->after_error);
        }
        nrd_http_stream_put(r->req, &r->out);
        nrd_http_stream_end(r->req);
        nrd_error_free(err);
    } else {
        nrd_oai_fail(r->req, err, r->extra);
    }
    r->req->on_gone = NULL;
    cancel_all(r);
}

static nrd_error *finish_choice(nrd_oai_choice *c)
{
    nrd_oai_request *r = c->r;
    size_t before = c->text.len;
    if (!c->cut) {
        if (c->harmony) {
            nrd_harmony_end(c->harmony, &c->text);
        } else {
            nrd_detok_flush(c->detok, &c->text);
        }
        c->cut = cut_at_stop(c, before);
    }
    if (!c->finish) {
        c->finish = c->cut ? "stop" : "length";
    }
    c->done = true;
    r->n_done++;
    return text_error(c);
}

static void put_answer(void *arg)
{
    nrd_oai_request *r = arg;
    r->form->put_answer(r);
}

static void send_answer(void *arg, bool ran)
{
    nrd_oai_request *r = arg;
    if (ran) {
        nrd_http_reply_str(r->req, 200, "application/json", r->extra, &r->out);
    } else {
        fail(r, nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down"));
    }
    nrd_oai_request_unref(r);
}

/* The whole answer, when all choices are done; a long one is written by a worker. */
static void answer(nrd_oai_request *r)
{
    nrd_error *full = nrd_claim_bytes(&r->req->claim, nrd_oai_answer_bytes(r), "its answer");
    if (full) {
        fail(r, full);
        return;
    }
    r->refs++;
    if (nrd_oai_answer_bytes(r) > NRD_HTTP_LONG_TEXT) {
        nrd_error *err = nrd_http_work(r->o->api->front->workers, r->req, put_answer, send_answer, r);
        if (!err) {
            return;
        }
        nrd_error_free(err); /* no worker has time: the loop writes it */
    }
    put_answer(r);
    send_answer(r, true);
}

static void on_response(nrd_http_call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    nrd_oai_choice *c = call->user;
    nrd_oai_request *r = c->r;
    nrd_error *err = NULL;
    piece p;

    if (response && !r->failed) {
        err = read_piece(response, &p);
        if (!err) {
            c->cum_log_prob = p.cum_log_prob;
            c->n_prompt = p.prompt_tokens > 0 ? p.prompt_tokens : c->n_prompt;
            c->n_cached = p.tokens_per_block > 0 ? p.reused_blocks * p.tokens_per_block : c->n_cached;
            if (p.last_token_ns > 0) {
                c->arrival_ns = p.arrival_ns;
                c->first_token_ns = p.first_token_ns;
                c->last_token_ns = p.last_token_ns;
            }
            if (!c->first_ns) {
                c->first_ns = nrd_now_ns();
                nrd_bg_begun(r->resp.job);
            }
            bool had_finish = c->finish != NULL;
            err = take_ids(c, &p);
            if (!c->finish && (p.finish_reason == NRD_FINISH_END_ID || p.finish_reason == NRD_FINISH_STOP_WORDS)) {
                c->finish = "stop"; /* a guide's text that was complete needs no end token */
            }
            c->timed_out = p.finish_reason == NRD_FINISH_TIMED_OUT && !c->finish;
            if (c->finish && !had_finish && !final) {
                cancel_choice(c);
            }
        } else if (c->finish) { /* it was cancelled after its stop string */
            nrd_error_free(err);
            err = NULL;
        }
    }
    if (final) {
        c->call = NULL;
        r->n_active--;
        r->req->on_gone = r->n_active > 0 && !r->failed ? on_gone : NULL;
        r->req->gone_arg = r;
        err = err ? err : nrd_http_call_error(call);
        if (!err && !r->failed) {
            err = finish_choice(c);
        }
    }
    if (err) {
        fail(r, err);
    }
    if (!r->failed && !nrd_http_is_gone(r->req)) {
        err = r->stream ? nrd_oai_chunk(c) : NULL;
        if (err) {
            fail(r, err);
        } else if (r->n_done == r->n_choices) {
            if (r->stream) {
                nrd_oai_last_chunks(r);
            } else {
                answer(r);
            }
        }
    }
    nrd_infer_response_delete(response);
    if (final) {
        nrd_oai_request_unref(r);
    }
}

/* ---- the handlers ---- */

static nrd_error *start_choice(nrd_oai_choice *c, int turn)
{
    nrd_oai_request *r = c->r;
    nrd_http_call *call = NULL;
    NRD_TRY(nrd_http_call_new(&call, r->o->api, r->req, r->model->llm, -1));
    call->on_response = on_response;
    call->user = c;
    nrd_error *err = fill(call, c, turn);
    if (!err) {
        err = nrd_http_call_submit(call);
    }
    if (err) {
        nrd_http_call_abandon(call);
        return err;
    }
    c->call = call;
    r->refs++;
    r->n_active++;
    return NULL;
}

static nrd_error *start(nrd_oai_request *r)
{
    r->n_choices = (int)r->n_prompts * r->best_of;
    r->choices = calloc((size_t)r->n_choices, sizeof *r->choices);
    if (!r->choices) {
        r->n_choices = 0;
        return nrd_error_no_memory();
    }
    for (int i = 0; i < r->n_choices; i++) {
        nrd_oai_choice *c = &r->choices[i];
        bool keep = r->has_tools || !r->skip_special || (r->chat && r->model->has_channels); /* markers may be special tokens */
        c->r = r;
        c->index = i;
        c->prompt = &r->prompts[i / r->best_of];
        c->detok = nrd_detok_new(r->model->tokenizer, keep ? 0 : NRD_DECODE_SKIP_SPECIAL);
        if (!c->detok) {
            return nrd_error_no_memory();
        }
        if (r->chat && r->model->is_harmony && r->skip_special) {
            c->harmony = nrd_harmony_new(&r->model->harmony, r->model->tokenizer, r->tools, c->prompt);
            if (!c->harmony) {
                return nrd_error_no_memory();
            }
        }
    }
    if (r->n_choices > 1 && getrandom(&r->group, sizeof r->group, 0) != (ssize_t)sizeof r->group) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cannot get random numbers");
    }
    nrd_claim_open(&r->req->claim); /* all choices are one request */
    for (int i = 0; i < r->n_choices; i++) {
        NRD_TRY(start_choice(&r->choices[i], i % r->best_of));
    }
    r->req->on_gone = on_gone;
    r->req->gone_arg = r;
    if (nrd_http_is_gone(r->req)) {
        cancel_all(r);
    }
    return NULL;
}

/* Ids of answers that are kept open them: nobody should guess one. */
static void put_id(char *out, size_t n, const char *prefix, uint64_t now_ns)
{
    static _Atomic uint64_t counter;
    uint64_t drawn;
    if (getrandom(&drawn, sizeof drawn, GRND_NONBLOCK) != (ssize_t)sizeof drawn) {
        drawn = now_ns; /* early at boot */
    }
    snprintf(out, n, "%s%016llx%08llx", prefix, (unsigned long long)drawn,
             (unsigned long long)(atomic_fetch_add(&counter, 1) & 0xffffffffu));
}

/* On the loop or on a worker. */
static void read_request(void *arg)
{
    nrd_oai_request *r = arg;
    if (!r->doc) {
        r->err = nrd_oai_body(r->req, &r->doc);
    }
    if (!r->err) {
        r->err = nrd_oai_read_form(r, &r->req->claim);
    }
    if (!r->err && r->unknown.len > 0 && !r->unknown.no_memory) {
        r->extra = nrd_oai_warn_unknown(r->extra, r->unknown.data);
    }
}

/* Back on the loop. */
static void begin(void *arg, bool ran)
{
    nrd_oai_request *r = arg;
    nrd_error *err = r->err;
    r->err = NULL;
    if (!ran && !err) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    if (!err && !nrd_http_is_gone(r->req)) {
        err = r->resp.background ? nrd_resp_take_job(r) : NULL;
        err = err ? err : start(r);
        err = err || !r->resp.background ? err : nrd_resp_detach(r);
    }
    if (err) {
        fail(r, err);
    }
    nrd_oai_request_unref(r);
}

static void generate(nrd_openai *o, nrd_http_request *req, char *extra, nrd_json_doc *doc, const nrd_oai_what *what)
{
    const nrd_oai_form *form = what->form;
    const uint64_t now_ns = nrd_wall_ns();

    nrd_oai_request *r = calloc(1, sizeof *r);
    if (!r) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        nrd_json_doc_free(doc);
        free(extra);
        return;
    }
    if (!nrd_oai_take_place(o, req, extra, &r->turns)) {
        nrd_json_doc_free(doc);
        free(extra);
        free(r);
        return;
    }
    atomic_fetch_add(&o->n_running, 1);
    r->o = o;
    r->req = req;
    r->form = form;
    r->chat = form->is_chat;
    r->extra = extra;
    r->doc = doc;
    r->load_ns = nrd_http_lease_waited_ns(req);
    r->key = nrd_oai_key(o, req);
    r->refs = 1;
    nrd_http_request_ref(req);
    r->begun_ns = nrd_now_ns();
    r->created = (int64_t)(now_ns / 1000000000u);
    put_id(r->id, sizeof r->id, form->id_prefix, now_ns);
    nrd_oai_work(o, req, &r->doc, &r->err, read_request, begin, r);
}

void nrd_oai_generate(nrd_openai *o, nrd_http_request *req, const nrd_oai_form *form)
{
    char *extra = NULL;
    if (nrd_oai_admit(o, req, true, &extra)) {
        nrd_oai_pass(o, req, extra, (nrd_oai_what){.form = form}, generate);
    }
}

void nrd_oai_on_chat(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_generate(user, req, &nrd_oai_form_chat);
}

void nrd_oai_on_completions(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_generate(user, req, &nrd_oai_form_text);
}
