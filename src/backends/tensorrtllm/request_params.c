/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/tensorrtllm/request_params.h"

#include "backends/tensorrtllm/llm.h"
#include "base/limits.h"
#include "nereid/llm_tensors.h"

#include <stddef.h>
#include <string.h>

typedef struct param {
    const char *key;
    TRITONSERVER_ParameterType type;
    const void *value; /* of the request */
    size_t field;      /* of nrd_exec_request; read by those readers below that serve several */
} param;

/* What is known only when all parameters have been read. */
typedef struct reading {
    nrd_arena *arena;
    nrd_exec_request *e;
    const char *salt, *salt_of_key, *allowed, *adapter_dir;
} reading;

static TRITONSERVER_Error *must_be(const param *p, const char *what)
{
    return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s must be %s", p->key, what);
}

static void *field_of(const param *p, const reading *r)
{
    return (char *)r->e + p->field;
}

/* ---- of one type ---- */

static TRITONSERVER_Error *read_flag(const param *p, reading *r)
{
    if (p->type != TRITONSERVER_PARAMETER_BOOL) {
        return must_be(p, "true or false");
    }
    *(bool *)field_of(p, r) = *(const bool *)p->value;
    return NULL;
}

/* How many: the executor refuses those that it cannot give, -1 among them. */
static TRITONSERVER_Error *read_count(const param *p, reading *r)
{
    if (p->type != TRITONSERVER_PARAMETER_INT) {
        return must_be(p, "a whole number");
    }
    const int64_t n = *(const int64_t *)p->value;
    *(int32_t *)field_of(p, r) = n < 0 || n > INT32_MAX ? -1 : (int32_t)n;
    return NULL;
}

/* A number that stands for somebody: all of its bits count. */
static TRITONSERVER_Error *read_number(const param *p, reading *r)
{
    if (p->type != TRITONSERVER_PARAMETER_INT) {
        return must_be(p, "a whole number");
    }
    *(uint64_t *)field_of(p, r) = (uint64_t)*(const int64_t *)p->value;
    return NULL;
}

/* A token id or a place. */
static TRITONSERVER_Error *read_index(const param *p, reading *r)
{
    const int64_t v = p->type == TRITONSERVER_PARAMETER_INT ? *(const int64_t *)p->value : -1;
    if (v < 0 || v >= INT32_MAX) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s must be a whole number from 0 to %d", p->key, INT32_MAX - 1);
    }
    *(int32_t *)field_of(p, r) = (int32_t)v;
    return NULL;
}

/* ---- of one parameter ---- */

static TRITONSERVER_Error *read_prompt_logprobs(const param *p, reading *r)
{
    r->e->return_prompt_log_probs = true;
    return read_count(p, r);
}

/* Times begin behind the token that says that there are none. */
static TRITONSERVER_Error *read_no_times(const param *p, reading *r)
{
    NRD_TB_TRY(read_index(p, r));
    r->e->first_time_id++;
    return NULL;
}

static TRITONSERVER_Error *read_background(const param *p, reading *r)
{
    if (p->type != TRITONSERVER_PARAMETER_BOOL) {
        return must_be(p, "true or false");
    }
    r->e->priority = *(const bool *)p->value ? 0 : r->e->priority;
    return NULL;
}

static TRITONSERVER_Error *read_early_stopping(const param *p, reading *r)
{
    const int64_t v = p->type == TRITONSERVER_PARAMETER_INT    ? *(const int64_t *)p->value
                      : p->type == TRITONSERVER_PARAMETER_BOOL ? *(const bool *)p->value
                                                               : -1;
    if (v < 0 || v > 2) {
        return must_be(p, "0, 1, 2, true or false");
    }
    r->e->sampling.early_stopping = (int32_t)v;
    return NULL;
}

static TRITONSERVER_Error *read_min_p(const param *p, reading *r)
{
    if (p->type != TRITONSERVER_PARAMETER_DOUBLE && p->type != TRITONSERVER_PARAMETER_INT) {
        return must_be(p, "a number");
    }
    r->e->sampling.min_p = p->type == TRITONSERVER_PARAMETER_INT ? (float)*(const int64_t *)p->value
                                                                 : (float)*(const double *)p->value;
    return NULL;
}

static TRITONSERVER_Error *read_salt(const param *p, reading *r)
{
    if (p->type != TRITONSERVER_PARAMETER_STRING || strlen(p->value) > NRD_LIMIT_CACHE_SALT) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "%s must be a string of at most %d bytes", p->key, NRD_LIMIT_CACHE_SALT);
    }
    *(strcmp(p->key, NRD_LLM_CACHE_SALT) ? &r->salt_of_key : &r->salt) = p->value;
    return NULL;
}

static TRITONSERVER_Error *read_bias(const param *p, reading *r)
{
    return p->type == TRITONSERVER_PARAMETER_STRING ? nrd_llm_read_bias(p->value, r->arena, r->e) : must_be(p, "a string, a JSON object");
}

static TRITONSERVER_Error *read_allowed(const param *p, reading *r)
{
    if (p->type != TRITONSERVER_PARAMETER_STRING) {
        return must_be(p, "a string, a JSON list");
    }
    r->allowed = p->value;
    return NULL;
}

static TRITONSERVER_Error *read_reasoning(const param *p, reading *r)
{
    return p->type == TRITONSERVER_PARAMETER_STRING ? nrd_llm_read_reasoning(p->value, r->arena, r->e)
                                                    : must_be(p, "a string, a JSON object");
}

static TRITONSERVER_Error *read_images(const param *p, reading *r)
{
    return p->type == TRITONSERVER_PARAMETER_STRING ? nrd_llm_read_images(p->value, r->arena, r->e)
                                                    : must_be(p, "a string: base64, with commas between pictures");
}

static TRITONSERVER_Error *read_videos(const param *p, reading *r)
{
    return p->type == TRITONSERVER_PARAMETER_STRING ? nrd_llm_read_videos(p->value, r->arena, r->e)
                                                    : must_be(p, "a string: frames a second, a colon, frames as in images; semicolons between videos");
}

static TRITONSERVER_Error *read_adapter_dir(const param *p, reading *r)
{
    if (p->type != TRITONSERVER_PARAMETER_STRING) {
        return must_be(p, "a string, a folder");
    }
    r->adapter_dir = p->value;
    return NULL;
}

static TRITONSERVER_Error *read_request_type(const param *p, reading *r)
{
    const bool is_text = p->type == TRITONSERVER_PARAMETER_STRING;
    const char *value = is_text ? p->value : "";

    if (!strcmp(value, "context_only")) {
        r->e->kind = NRD_REQUEST_CONTEXT_ONLY;
    } else if (!strcmp(value, "generation_only")) {
        r->e->kind = NRD_REQUEST_GENERATION_ONLY;
    } else if (strcmp(value, "context_and_generation") != 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "request_type must be context_and_generation, context_only or generation_only%s%.40s",
                             is_text ? ", not " : "", value);
    }
    return NULL;
}

static TRITONSERVER_Error *read_pooling(const param *p, reading *r)
{
    static const struct {
        const char *name;
        nrd_pooling pooling;
    } ways[] = {
        {"last", NRD_POOLING_LAST},   {"mean", NRD_POOLING_MEAN},     {"first", NRD_POOLING_FIRST},
        {"model", NRD_POOLING_MODEL}, {"labels", NRD_POOLING_LABELS},
    };
    const bool is_text = p->type == TRITONSERVER_PARAMETER_STRING;

    for (size_t i = 0; is_text && i < sizeof ways / sizeof *ways; i++) {
        if (!strcmp(p->value, ways[i].name)) {
            r->e->pooling = ways[i].pooling;
            return NULL;
        }
    }
    return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "pooling must be last, mean, first, model or labels%s%.40s%s",
                         is_text ? ", not '" : "", is_text ? (const char *)p->value : "", is_text ? "'" : "");
}

#define FIELD(name) offsetof(nrd_exec_request, name)

static const struct {
    const char *key;
    TRITONSERVER_Error *(*read)(const param *p, reading *r);
    size_t field;
} known[] = {
    {"deterministic", read_flag, FIELD(deterministic)},
    {"logit_bias", read_bias, 0},
    {"request_type", read_request_type, 0},
    {"top_logprobs", read_count, FIELD(n_top_logprobs)},
    {NRD_LLM_ADAPTER_DIR, read_adapter_dir, 0},
    {NRD_LLM_ALLOWED, read_allowed, 0},
    {NRD_LLM_BACKGROUND, read_background, 0},
    {NRD_LLM_CACHE_SALT, read_salt, 0},
    {NRD_LLM_CACHE_SALT_OF_KEY, read_salt, 0},
    {NRD_LLM_EARLY_STOPPING, read_early_stopping, 0},
    {NRD_LLM_EXCLUDE_INPUT, read_flag, FIELD(exclude_input_in_output)},
    {NRD_LLM_FLOW, read_number, FIELD(flow)},
    {NRD_LLM_FORCED_END, read_flag, FIELD(forced_end)},
    {NRD_LLM_GENERATE_SCORES, read_flag, FIELD(generate_scores)},
    {NRD_LLM_GROUP, read_number, FIELD(group)},
    {NRD_LLM_IMAGES, read_images, 0},
    {NRD_LLM_MAX_FIRST_TIME, read_index, FIELD(max_first_time)},
    {NRD_LLM_MIN_P, read_min_p, 0},
    {NRD_LLM_NO_SPEECH, read_index, FIELD(no_speech_id)},
    {NRD_LLM_NO_SPEECH_AT, read_index, FIELD(no_speech_at)},
    {NRD_LLM_NO_TIMES, read_no_times, FIELD(first_time_id)},
    {NRD_LLM_PERF_METRICS, read_flag, FIELD(return_perf_metrics)},
    {NRD_LLM_POOLING, read_pooling, 0},
    {NRD_LLM_PROMPT_LOGPROBS, read_prompt_logprobs, FIELD(n_top_prompt_logprobs)},
    {NRD_LLM_REASONING, read_reasoning, 0},
    {NRD_LLM_SECOND_FROM, read_index, FIELD(second_from)},
    {NRD_LLM_VIDEOS, read_videos, 0},
};

/* The client's, the key's, or both as one: a client may name its own, but cannot leave its key's world. */
static TRITONSERVER_Error *set_salt(const reading *r)
{
    if (!r->salt || !r->salt_of_key) {
        r->e->cache_salt = r->salt ? r->salt : r->salt_of_key;
        return NULL;
    }
    const size_t n = strlen(r->salt), n_key = strlen(r->salt_of_key);
    char *both = nrd_arena_alloc(r->arena, n_key + 1 + n + 1);
    if (!both) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    memcpy(both, r->salt_of_key, n_key);
    both[n_key] = '/';
    memcpy(both + n_key + 1, r->salt, n + 1);
    r->e->cache_salt = both;
    return NULL;
}

TRITONSERVER_Error *nrd_llm_read_request_params(TRITONBACKEND_Request *request, int32_t vocab, nrd_arena *arena, nrd_exec_request *e,
                                                const char **out_adapter_dir)
{
    reading r = {.arena = arena, .e = e};
    uint32_t n = 0;

    *out_adapter_dir = NULL;
    NRD_TB_TRY(TRITONBACKEND_RequestParameterCount(request, &n));
    for (uint32_t i = 0; i < n; i++) {
        param p = {0};
        NRD_TB_TRY(TRITONBACKEND_RequestParameter(request, i, &p.key, &p.type, &p.value));
        for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
            if (!strcmp(p.key, known[k].key)) {
                p.field = known[k].field;
                NRD_TB_TRY(known[k].read(&p, &r));
                break;
            }
        }
    }
    NRD_TB_TRY(r.allowed ? nrd_llm_allow_only(r.allowed, vocab, arena, e) : NULL);
    *out_adapter_dir = r.adapter_dir;
    return set_salt(&r);
}
