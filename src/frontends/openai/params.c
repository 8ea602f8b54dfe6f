/* SPDX-License-Identifier: Apache-2.0
 * The body of a request -> nrd_oai_request. */
#include "frontends/openai/params.h"

#include "base/limits.h"
#include "nereid/llm_tensors.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

/* ---- which fields there are ---- */

enum { IN_CHAT = 1, IN_COMPLETIONS = 2, IN_BOTH = 3 };

static const struct {
    const char *name;
    int where;
    const char *refused; /* the reason; NULL: read below, or without effect */
} fields[] = {
    {"model", IN_BOTH, NULL},
    {"messages", IN_CHAT, NULL},
    {"prompt", IN_COMPLETIONS, NULL},
    {"max_tokens", IN_BOTH, NULL},
    {"max_completion_tokens", IN_CHAT, NULL},
    {"temperature", IN_BOTH, NULL},
    {"top_p", IN_BOTH, NULL},
    {"n", IN_BOTH, NULL},
    {"best_of", IN_COMPLETIONS, NULL},
    {"stop", IN_BOTH, NULL},
    {"seed", IN_BOTH, NULL},
    {"stream", IN_BOTH, NULL},
    {"stream_options", IN_BOTH, NULL},
    {"logprobs", IN_BOTH, NULL},
    {"top_logprobs", IN_CHAT, NULL},
    {"logit_bias", IN_BOTH, NULL},
    {"presence_penalty", IN_BOTH, NULL},
    {"frequency_penalty", IN_BOTH, NULL},
    {"echo", IN_COMPLETIONS, NULL},
    {"tools", IN_CHAT, NULL},
    {"tool_choice", IN_CHAT, NULL},
    {"parallel_tool_calls", IN_CHAT, NULL},
    {"response_format", IN_BOTH, NULL},
    {"reasoning_effort", IN_CHAT, NULL},
    {"reasoning", IN_CHAT, NULL},
    {"thinking", IN_CHAT, NULL},
    {"thinking_token_budget", IN_CHAT, NULL},
    {"thinking_budget", IN_CHAT, NULL},
    {"thinking_budget_tokens", IN_CHAT, NULL},
    {"reasoning_budget_tokens", IN_CHAT, NULL},
    {"top_k", IN_BOTH, NULL},
    {"min_p", IN_BOTH, NULL},
    {"repetition_penalty", IN_BOTH, NULL},
    {"min_tokens", IN_BOTH, NULL},
    {"ignore_eos", IN_BOTH, NULL},
    {"priority", IN_BOTH, NULL},
    {"cache_salt", IN_BOTH, NULL},
    {"return_timings", IN_BOTH, NULL},
    {"return_tokens_as_token_ids", IN_BOTH, NULL},
    {"truncate_prompt_tokens", IN_BOTH, NULL},
    {"add_special_tokens", IN_BOTH, NULL},
    {"return_token_ids", IN_BOTH, NULL},
    {"include_reasoning", IN_CHAT, NULL},
    {"reasoning_format", IN_CHAT, NULL},
    {"separate_reasoning", IN_CHAT, NULL},
    {"max_time", IN_BOTH, NULL},
    {"stop_token_ids", IN_BOTH, NULL},
    {"bad_words", IN_BOTH, NULL},
    {"allowed_token_ids", IN_BOTH, NULL},
    {"skip_special_tokens", IN_BOTH, NULL},
    {"include_stop_str_in_output", IN_BOTH, NULL},
    {"add_generation_prompt", IN_CHAT, NULL},
    {"continue_final_message", IN_CHAT, NULL},
    {"chat_template_kwargs", IN_CHAT, NULL},
    {"modalities", IN_CHAT, NULL},
    {"suffix", IN_COMPLETIONS, NULL},
    {"prompt_logprobs", IN_BOTH, NULL},
    {"chat_template", IN_CHAT, "a request cannot bring its own template"},
    {"functions", IN_CHAT, "use tools"},
    {"function_call", IN_CHAT, "use tool_choice"},
    {"audio", IN_CHAT, "there is no audio here"},
    {"prediction", IN_CHAT, "predicted outputs are not supported"},
    {"web_search_options", IN_CHAT, "there is no web search here"},
    {"beam_width", IN_COMPLETIONS, NULL},
    {"length_penalty", IN_COMPLETIONS, NULL},
    {"early_stopping", IN_COMPLETIONS, NULL},
    {"no_repeat_ngram_size", IN_COMPLETIONS, NULL},
    {"use_beam_search", IN_BOTH, "beam search is offered by the v2 endpoints"},
    {"guided_json", IN_BOTH, NULL},
    {"guided_regex", IN_BOTH, NULL},
    {"guided_choice", IN_BOTH, NULL},
    {"structural_tag", IN_BOTH, NULL},
    {"guided_grammar", IN_BOTH, NULL},
    {"structured_outputs", IN_BOTH, NULL},
    /* without effect: who asks, and where OpenAI keeps or counts it */
    {"user", IN_BOTH, NULL},
    {"metadata", IN_BOTH, NULL},
    {"store", IN_BOTH, NULL},
    {"service_tier", IN_BOTH, NULL},
    {"safety_identifier", IN_BOTH, NULL},
    {"prompt_cache_key", IN_BOTH, NULL},
    {"prompt_cache_retention", IN_BOTH, NULL},
    {"prompt_cache_options", IN_BOTH, NULL},
};

void nrd_oai_note_name(nrd_oai_request *r, const char *name, size_t n)
{
    bool plain = n > 0 && n < 64 && r->unknown.len < 512;
    for (size_t c = 0; c < n && plain; c++) { /* it goes into a header */
        plain = name[c] > ' ' && name[c] < 0x7f;
    }
    if (plain) {
        nrd_str_printf(&r->unknown, r->unknown.len ? ", %s" : "%s", name);
    }
}

void nrd_oai_note_unknown(nrd_oai_request *r, const nrd_json *v)
{
    nrd_oai_note_name(r, v->key, v->key_len);
}

static nrd_error *check_fields(nrd_oai_request *r, const nrd_json *root)
{
    for (size_t i = 0; i < root->n; i++) {
        const nrd_json *v = &root->child[i];
        size_t k = 0, n = sizeof fields / sizeof fields[0];
        while (k < n && !(fields[k].where & (r->chat ? IN_CHAT : IN_COMPLETIONS) &&
                          !strcmp(fields[k].name, v->key))) {
            k++;
        }
        if (k < n && fields[k].refused && v->type != NRD_JSON_NULL) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, v->key, "%s", fields[k].refused);
        }
        if (k == n) {
            nrd_oai_note_unknown(r, v);
        }
    }
    return NULL;
}

/* ---- sampling ---- */

static nrd_error *read_stops(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *v = nrd_json_get(root, "stop"), *ids = nrd_json_get(root, "stop_token_ids");
    size_t n = nrd_json_is(v, NRD_JSON_ARRAY) ? v->n : v && v->type != NRD_JSON_NULL ? 1 : 0;

    if (n > OAI_MAX_STOPS) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "stop", "at most %d strings", OAI_MAX_STOPS);
    }
    for (size_t i = 0; i < n; i++) {
        const nrd_json *s = v->type == NRD_JSON_ARRAY ? &v->child[i] : v;
        if (!nrd_json_is(s, NRD_JSON_STRING)) {
            return nrd_oai_bad("stop", "must be a string or a list of strings");
        }
        if (s->n > 0) {
            r->stops[r->n_stops].s = s->str;
            r->stops[r->n_stops++].n = s->n;
        }
    }
    if (ids && ids->type != NRD_JSON_NULL) {
        if (!nrd_json_is(ids, NRD_JSON_ARRAY) || ids->n > 64) {
            return nrd_oai_bad("stop_token_ids", "must be a list of at most 64 ids");
        }
        for (size_t i = 0; i < ids->n; i++) {
            int64_t id = nrd_json_int(&ids->child[i], -1);
            if (id < 0 || id >= nrd_tokenizer_vocab_size(r->model->tokenizer)) {
                return nrd_oai_bad("stop_token_ids", "holds an id that the model does not know");
            }
            nrd_ids_push(&r->stop_ids, (int32_t)id);
        }
    }
    return nrd_ids_error(&r->stop_ids);
}

static nrd_error *read_bias(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *v = nrd_json_get(root, "logit_bias");
    if (!v || v->type == NRD_JSON_NULL) {
        return NULL;
    }
    if (v->type != NRD_JSON_OBJECT) {
        return nrd_oai_bad("logit_bias", "must be an object of token ids and numbers");
    }
    if (v->n > NRD_LIMIT_LOGIT_BIAS) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "logit_bias", "has %zu entries, at most %d are allowed",
                              (size_t)v->n, NRD_LIMIT_LOGIT_BIAS);
    }
    for (size_t i = 0; i < v->n; i++) {
        long long id;
        double x = nrd_json_num(&v->child[i], NAN);
        if (!nrd_parse_i64(v->child[i].key, &id) || id < 0 ||
            id >= nrd_tokenizer_vocab_size(r->model->tokenizer)) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "logit_bias", "'%.40s' is no token id of this model",
                              v->child[i].key);
        }
        if (!(x >= -100 && x <= 100)) {
            return nrd_oai_bad("logit_bias", "values must be from -100 to 100");
        }
    }
    if (v->n > 0) {
        nrd_json_put(&r->logit_bias, v, 0);
    }
    return NULL;
}

/* With echo the prompt's tokens are in the list of logprobs; prompt_logprobs is vLLM's, a list of its own. */
static nrd_error *read_prompt_logprobs(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *v = nrd_json_get(root, "prompt_logprobs");
    int64_t top = -1;

    NRD_TRY(nrd_oai_get_int(root, "prompt_logprobs", 0, 20, &top));
    r->prompt_probs = v && v->type != NRD_JSON_NULL;
    if (r->prompt_probs && r->stream) {
        return nrd_oai_bad("prompt_logprobs", "is for whole answers; leave out stream");
    }
    if (r->echo && r->log_probs && r->prompt_probs && top != r->n_top) {
        return nrd_oai_bad("prompt_logprobs", "must be logprobs where the prompt is echoed");
    }
    r->n_prompt_top = r->echo && r->log_probs ? r->n_top : (int)top;
    return NULL;
}

static nrd_error *read_logprobs(nrd_oai_request *r, const nrd_json *root)
{
    int64_t top = 0;
    if (!r->chat) { /* a number: that many alternatives beside the token */
        const nrd_json *v = nrd_json_get(root, "logprobs");
        r->log_probs = v && v->type != NRD_JSON_NULL;
        NRD_TRY(nrd_oai_get_int(root, "logprobs", 0, 20, &top));
    } else {
        NRD_TRY(nrd_oai_get_bool(root, "logprobs", &r->log_probs));
        NRD_TRY(nrd_oai_get_int(root, "top_logprobs", 0, 20, &top));
        if (top > 0 && !r->log_probs) {
            return nrd_oai_bad("top_logprobs", "needs logprobs: true");
        }
    }
    r->n_top = (int)top;
    return read_prompt_logprobs(r, root);
}

static nrd_error *read_salt(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *salt = nrd_json_get(root, "cache_salt");

    if (salt && !nrd_json_is(salt, NRD_JSON_NULL)) {
        if (!nrd_json_is(salt, NRD_JSON_STRING) || salt->n == 0 || salt->n > NRD_LIMIT_CACHE_SALT ||
            strlen(salt->str) != salt->n) {
            return nrd_oai_bad("cache_salt", "must be a string of 1 to 1024 bytes without zeros");
        }
        r->cache_salt = salt->str;
    }
    return NULL;
}

static nrd_error *read_sampling(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *seed = nrd_json_get(root, "seed"), *options = nrd_json_get(root, "stream_options");
    const nrd_sampling *s = &r->model->sampling;
    int64_t n = 1, best_of = 0;

    r->temperature = s->temperature;
    r->top_p = s->top_p;
    r->min_p = s->min_p;
    r->top_k = s->top_k;
    r->repetition = s->repetition_penalty;
    r->max_tokens = r->chat ? OAI_MAX_NEW_TOKENS : 16;
    r->skip_special = r->parallel_tool_calls = true;
    NRD_TRY(nrd_oai_get_num(root, "temperature", 0, 2, &r->temperature));
    NRD_TRY(nrd_oai_get_num(root, "top_p", 0, 1, &r->top_p));
    NRD_TRY(nrd_oai_get_num(root, "min_p", 0, 1, &r->min_p));
    NRD_TRY(nrd_oai_get_num(root, "presence_penalty", -2, 2, &r->presence));
    NRD_TRY(nrd_oai_get_num(root, "frequency_penalty", -2, 2, &r->frequency));
    NRD_TRY(nrd_oai_get_num(root, "repetition_penalty", 0.01, 10, &r->repetition));
    NRD_TRY(nrd_oai_get_int(root, "top_k", -1, INT32_MAX, &r->top_k));
    NRD_TRY(nrd_oai_get_bool(root, "echo", &r->echo));
    NRD_TRY(nrd_oai_get_int(root, "max_tokens", r->echo ? 0 : 1, OAI_MAX_NEW_TOKENS, &r->max_tokens));
    r->only_prompt = r->max_tokens == 0;
    r->max_tokens += r->only_prompt;
    if (r->chat) {
        NRD_TRY(nrd_oai_get_int(root, "max_completion_tokens", 1, OAI_MAX_NEW_TOKENS, &r->max_tokens));
        NRD_TRY(nrd_oai_get_bool(root, "parallel_tool_calls", &r->parallel_tool_calls));
    } else {
        NRD_TRY(nrd_oai_get_int(root, "best_of", 1, OAI_MAX_CHOICES, &best_of));
    }
    NRD_TRY(nrd_oai_get_int(root, "min_tokens", 0, OAI_MAX_NEW_TOKENS, &r->min_tokens));
    NRD_TRY(nrd_oai_get_int(root, "n", 1, OAI_MAX_CHOICES, &n));
    NRD_TRY(nrd_oai_get_int(root, "priority", 0, UINT32_MAX, &r->priority));
    NRD_TRY(nrd_oai_get_num(root, "max_time", 0.001, OAI_MAX_TIME_S, &r->max_time_s));
    NRD_TRY(nrd_oai_get_bool(root, "ignore_eos", &r->ignore_eos));
    NRD_TRY(nrd_oai_get_bool(root, "return_timings", &r->return_timings));
    NRD_TRY(nrd_oai_get_bool(root, "return_tokens_as_token_ids", &r->tokens_as_ids));
    r->add_special = !r->chat; /* a chat's template has them */
    NRD_TRY(nrd_oai_get_bool(root, "add_special_tokens", &r->add_special));
    NRD_TRY(nrd_oai_get_bool(root, "return_token_ids", &r->token_ids));
    NRD_TRY(r->chat ? nrd_oai_read_reasoning_place(r, root) : NULL);
    NRD_TRY(nrd_oai_get_bool(root, "skip_special_tokens", &r->skip_special));
    NRD_TRY(nrd_oai_get_bool(root, "include_stop_str_in_output", &r->include_stop));
    NRD_TRY(nrd_oai_get_bool(root, "stream", &r->stream));
    NRD_TRY(nrd_oai_check_object(options, "stream_options"));
    if (nrd_oai_given(options)) {
        if (!r->stream) {
            return nrd_oai_bad("stream_options", "only with stream: true");
        }
        NRD_TRY(nrd_oai_get_bool(options, "include_usage", &r->include_usage));
        NRD_TRY(nrd_oai_get_bool(options, "continuous_usage_stats", &r->running_usage));
        r->running_usage = r->running_usage && r->include_usage; /* as in vLLM */
    }
    r->n = (int)n;
    r->best_of = best_of > 0 ? (int)best_of : r->n;
    if (r->best_of < r->n) {
        return nrd_oai_bad("best_of", "must not be less than n");
    }
    if (r->best_of > r->n && r->stream) {
        return nrd_oai_bad("best_of", "must equal n while streaming");
    }
    if (seed && seed->type != NRD_JSON_NULL) {
        if (seed->type != NRD_JSON_INT && seed->type != NRD_JSON_UINT) {
            return nrd_oai_bad("seed", "must be a whole number");
        }
        r->seed = seed->u;
    } else if (getrandom(&r->seed, sizeof r->seed, 0) != (ssize_t)sizeof r->seed) {
        return nrd_errorf(NRD_ERR_INTERNAL, "no random numbers from the system");
    }
    NRD_TRY(read_salt(r, root));
    NRD_TRY(read_stops(r, root));
    NRD_TRY(nrd_oai_read_bad_words(r, root));
    NRD_TRY(nrd_oai_read_allowed(r, root));
    NRD_TRY(read_bias(r, root));
    return read_logprobs(r, root);
}

/* ---- prompts of completions ---- */

static nrd_error *add_prompt(nrd_oai_request *r, const nrd_json *p)
{
    const nrd_tokenizer *t = r->model->tokenizer;
    if (r->n_prompts == OAI_MAX_PROMPTS) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "prompt", "at most %d prompts", OAI_MAX_PROMPTS);
    }
    nrd_ids *ids = &r->prompts[r->n_prompts];
    nrd_str *echo = &r->echoes[r->n_prompts++];
    if (p->type == NRD_JSON_STRING) {
        NRD_TRY(nrd_oai_check_prompt(r->model, p->n, "prompt"));
        nrd_str_append(echo, p->str, p->n);
        NRD_TRY(nrd_str_error(echo));
        return nrd_tokenizer_encode(t, p->str, p->n,
                                    (r->add_special ? NRD_ENCODE_ADD_SPECIAL : 0) | NRD_ENCODE_PARSE_SPECIAL, ids);
    }
    for (size_t i = 0; i < p->n; i++) {
        int64_t id = p->child[i].type == NRD_JSON_INT ? p->child[i].i : -1;
        if (id < 0 || id >= nrd_tokenizer_vocab_size(t)) {
            return nrd_oai_bad("prompt", "holds something that is no token id of this model");
        }
        nrd_ids_push(ids, (int32_t)id);
    }
    NRD_TRY(nrd_ids_error(ids));
    nrd_tokenizer_decode(t, ids->ids, ids->n, 0, echo);
    return nrd_str_error(echo);
}

/* A text between the prompt and the suffix. */
static nrd_error *read_middle(nrd_oai_request *r, const nrd_json *prompt, const nrd_json *suffix)
{
    const nrd_oai_fim fim = {.prefix = prompt, .suffix = suffix, .prefix_field = "prompt", .suffix_field = "suffix"};
    if (!nrd_json_is(suffix, NRD_JSON_STRING)) {
        return nrd_oai_bad("suffix", "must be a string");
    }
    if (!nrd_json_is(prompt, NRD_JSON_STRING)) {
        return nrd_oai_bad("prompt", "must be one string where there is a suffix");
    }
    r->n_prompts = 1;
    nrd_str_append(&r->echoes[0], prompt->str, prompt->n);
    NRD_TRY(nrd_str_error(&r->echoes[0]));
    NRD_TRY(nrd_oai_fim_prompt(r->model, &fim, &r->prompts[0]));
    return nrd_oai_fim_ends(r);
}

static nrd_error *read_prompts(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *p = nrd_json_get(root, "prompt"), *suffix = nrd_json_get(root, "suffix");
    if (nrd_oai_given(suffix)) {
        return read_middle(r, p, suffix);
    }
    if (nrd_json_is(p, NRD_JSON_STRING)) {
        NRD_TRY(add_prompt(r, p));
    } else if (nrd_json_is(p, NRD_JSON_ARRAY) && p->n > 0) {
        if (nrd_json_is_number(&p->child[0])) {
            NRD_TRY(add_prompt(r, p));
        } else {
            for (size_t i = 0; i < p->n; i++) {
                if (p->child[i].type != NRD_JSON_STRING && p->child[i].type != NRD_JSON_ARRAY) {
                    return nrd_oai_bad("prompt", "must be a string, a list of strings or token ids");
                }
                NRD_TRY(add_prompt(r, &p->child[i]));
            }
        }
    } else {
        return nrd_oai_bad("prompt", "must be a string, a list of strings or token ids");
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        if (r->prompts[i].n == 0 && nrd_tokenizer_bos_id(r->model->tokenizer) >= 0) {
            nrd_ids_push(&r->prompts[i], nrd_tokenizer_bos_id(r->model->tokenizer));
            NRD_TRY(nrd_ids_error(&r->prompts[i]));
        }
        if (r->prompts[i].n == 0) {
            return nrd_oai_bad("prompt", "has no token");
        }
    }
    return NULL;
}

/* vLLM's field: of a prompt that has more tokens the last ones are kept; -1: as many as leave room for the answer. */
static nrd_error *cut_prompts(nrd_oai_request *r, const nrd_json *root)
{
    const char *field = "truncate_prompt_tokens";
    const int64_t most = r->model->context_length;
    int64_t n = 0;

    NRD_TRY(nrd_oai_get_int(root, field, -1, INT32_MAX, &n));
    if (!nrd_oai_given(nrd_json_get(root, field))) {
        return NULL;
    }
    if (n == 0 || (n < 0 && most < 2) || r->n_images + r->n_videos > 0) {
        return nrd_oai_bad(field, r->n_images + r->n_videos > 0 ? "is not for prompts with pictures"
                          : n == 0        ? "must be a number of tokens, or -1 for what the model takes"
                                          : "-1: how many tokens this model takes is not known here; give a number");
    }
    const int64_t beside = r->max_tokens < most ? r->max_tokens : 1; /* tokens of the answer */
    const size_t kept = (size_t)(n < 0 ? most - beside : n);
    for (size_t i = 0; i < r->n_prompts; i++) {
        nrd_ids *p = &r->prompts[i];
        if (p->n > kept) {
            memmove(p->ids, p->ids + (p->n - kept), kept * sizeof *p->ids);
            p->n = kept;
            nrd_str_clear(&r->echoes[i]);
            nrd_tokenizer_decode(r->model->tokenizer, p->ids, p->n, 0, &r->echoes[i]);
            NRD_TRY(nrd_str_error(&r->echoes[i]));
        }
    }
    return NULL;
}

/* Where any name means the one model, none does as well. */
static nrd_error *find_model(nrd_oai_request *r, const nrd_json *name)
{
    if (!nrd_json_is(name, NRD_JSON_STRING) && (nrd_oai_given(name) || !nrd_oai_takes_any_name(r->o, r->req))) {
        return nrd_oai_bad("model", nrd_oai_given(name) ? "must be the name of a model" : "is missing, and this server has not one model alone: GET /v1/models lists them");
    }
    return r->model ? NULL : nrd_oai_find_only(r->o, r->req, name, &r->model); /* the form may have asked already */
}

nrd_error *nrd_oai_read(nrd_oai_request *r, const nrd_json *root)
{
    NRD_TRY(find_model(r, nrd_json_get(root, "model")));
    NRD_TRY(check_fields(r, root));
    NRD_TRY(read_sampling(r, root));
    NRD_TRY(nrd_oai_read_guides(r, root));
    NRD_TRY(nrd_oai_read_search(r, root));
    NRD_TRY(r->chat ? nrd_oai_read_chat(r, root) : read_prompts(r, root));
    NRD_TRY(cut_prompts(r, root));
    NRD_TRY(nrd_str_error(&r->guide));
    if (r->n_prompts * (size_t)r->best_of > OAI_MAX_CHOICES) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "n", "at most %d answers in one request",
                          OAI_MAX_CHOICES);
    }
    return NULL;
}
