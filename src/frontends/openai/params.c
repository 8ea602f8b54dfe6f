/* SPDX-License-Identifier: Apache-2.0
 * The body of a request -> nrd_oai_request. */
#include "frontends/openai/internal.h"

#include "base/limits.h"
#include "nereid/llm_tensors.h"

#include <math.h>
#include <string.h>
#include <sys/random.h>

static nrd_error *bad(const char *name, const char *why)
{
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, name, "%s", why);
}

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
            return bad("stop", "must be a string or a list of strings");
        }
        if (s->n > 0) {
            r->stops[r->n_stops].s = s->str;
            r->stops[r->n_stops++].n = s->n;
        }
    }
    if (ids && ids->type != NRD_JSON_NULL) {
        if (!nrd_json_is(ids, NRD_JSON_ARRAY) || ids->n > 64) {
            return bad("stop_token_ids", "must be a list of at most 64 ids");
        }
        for (size_t i = 0; i < ids->n; i++) {
            int64_t id = nrd_json_int(&ids->child[i], -1);
            if (id < 0 || id >= nrd_tokenizer_vocab_size(r->model->tokenizer)) {
                return bad("stop_token_ids", "holds an id that the model does not know");
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
        return bad("logit_bias", "must be an object of token ids and numbers");
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
            return bad("logit_bias", "values must be from -100 to 100");
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
        return bad("prompt_logprobs", "is for whole answers; leave out stream");
    }
    if (r->echo && r->log_probs && r->prompt_probs && top != r->n_top) {
        return bad("prompt_logprobs", "must be logprobs where the prompt is echoed");
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
            return bad("top_logprobs", "needs logprobs: true");
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
            return bad("cache_salt", "must be a string of 1 to 1024 bytes without zeros");
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
    if (options && options->type != NRD_JSON_NULL) {
        if (!r->stream) {
            return bad("stream_options", "only with stream: true");
        }
        NRD_TRY(nrd_oai_get_bool(options, "include_usage", &r->include_usage));
        NRD_TRY(nrd_oai_get_bool(options, "continuous_usage_stats", &r->running_usage));
        r->running_usage = r->running_usage && r->include_usage; /* as in vLLM */
    }
    r->n = (int)n;
    r->best_of = best_of > 0 ? (int)best_of : r->n;
    if (r->best_of < r->n) {
        return bad("best_of", "must not be less than n");
    }
    if (r->best_of > r->n && r->stream) {
        return bad("best_of", "must equal n while streaming");
    }
    if (seed && seed->type != NRD_JSON_NULL) {
        if (seed->type != NRD_JSON_INT && seed->type != NRD_JSON_UINT) {
            return bad("seed", "must be a whole number");
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

/* ---- structured output ---- */

static nrd_error *set_guide(nrd_oai_request *r, const char *type, const char *field)
{
    if (r->guide_type) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "the text is already bound by another field");
    }
    r->guide_type = type;
    return NULL;
}

/* "a" | "b" as a grammar. */
static nrd_error *put_choices(nrd_str *out, const nrd_json *list)
{
    if (!nrd_json_is(list, NRD_JSON_ARRAY) || list->n == 0) {
        return bad("guided_choice", "must be a list of strings");
    }
    nrd_str_puts(out, "root ::= ");
    for (size_t i = 0; i < list->n; i++) {
        const nrd_json *s = &list->child[i];
        if (!nrd_json_is(s, NRD_JSON_STRING)) {
            return bad("guided_choice", "must be a list of strings");
        }
        nrd_str_puts(out, i ? " | \"" : "\"");
        for (size_t k = 0; k < s->n; k++) {
            if ((unsigned char)s->str[k] < 0x20) {
                nrd_str_printf(out, "\\x%02x", (unsigned)s->str[k]);
            } else {
                nrd_str_printf(out, s->str[k] == '"' || s->str[k] == '\\' ? "\\%c" : "%c", s->str[k]);
            }
        }
        nrd_str_putc(out, '"');
    }
    return NULL;
}

static nrd_error *read_format(nrd_oai_request *r, const nrd_json *format)
{
    const char *type = nrd_json_get_str(format, "type", "");
    if (!strcmp(type, "text")) {
        return NULL;
    }
    if (!strcmp(type, "json_object")) {
        return set_guide(r, "json", "response_format");
    }
    if (!strcmp(type, "json_schema")) {
        const nrd_json *schema = nrd_json_get(nrd_json_get(format, "json_schema"), "schema");
        if (!schema) {
            return bad("response_format", "json_schema.schema is missing");
        }
        nrd_json_put(&r->guide, schema, -1);
        return set_guide(r, "json_schema", "response_format");
    }
    if (!strcmp(type, "structural_tag")) {
        nrd_json_put(&r->guide, format, -1);
        return set_guide(r, "structural_tag", "response_format");
    }
    return bad("response_format", "type must be text, json_object, json_schema or structural_tag");
}

/* Text that is bound only behind a trigger may have reasoning before it. What is not right about the guide is
 * said where it is compiled. */
static bool begins_free(const nrd_oai_request *r)
{
    const nrd_json_limits limits = {.max_depth = 128};
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, r->guide.data, r->guide.len, &limits);
    const nrd_json *root = err ? NULL : nrd_json_root(doc), *format = nrd_json_get(root, "format");
    const char *type = format ? nrd_json_get_str(format, "type", "") : "triggered_tags";
    const bool is_free = !strcmp(type, "any_text") || !strcmp(type, "dispatch") ||
                         (!strcmp(type, "triggered_tags") && !nrd_json_get_bool(format, "at_least_one", false));

    nrd_error_free(err);
    nrd_json_doc_free(doc);
    return is_free;
}

static nrd_error *read_guides(nrd_oai_request *r, const nrd_json *root)
{
    static const struct {
        const char *field, *inner, *type;
        enum { AS_TEXT, AS_JSON, AS_CHOICES } form;
    } rows[] = {
        {"guided_json", "json", "json_schema", AS_JSON},
        {"guided_regex", "regex", "regex", AS_TEXT},
        {"guided_grammar", "grammar", "ebnf_grammar", AS_TEXT},
        {"guided_choice", "choice", "ebnf_grammar", AS_CHOICES},
        {"structural_tag", "structural_tag", "structural_tag", AS_JSON},
    };
    const nrd_json *format = nrd_json_get(root, "response_format");
    const nrd_json *nested = nrd_json_get(root, "structured_outputs");

    if (format && format->type != NRD_JSON_NULL) {
        NRD_TRY(read_format(r, format));
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const nrd_json *v = nrd_json_get(root, rows[i].field);
        v = v ? v : nrd_json_get(nested, rows[i].inner);
        if (!v || v->type == NRD_JSON_NULL) {
            continue;
        }
        NRD_TRY(set_guide(r, rows[i].type, rows[i].field));
        if (rows[i].form == AS_CHOICES) {
            NRD_TRY(put_choices(&r->guide, v));
        } else if (v->type == NRD_JSON_STRING) {
            nrd_str_append(&r->guide, v->str, v->n);
        } else if (rows[i].form == AS_JSON) {
            nrd_json_put(&r->guide, v, -1);
        } else {
            return bad(rows[i].field, "must be a string");
        }
    }
    if (r->guide.len > 0 && memchr(r->guide.data, '\0', r->guide.len)) {
        return bad(r->guide_type, "must not hold the character NUL");
    }
    r->begins_bound = r->guide_type && !(!strcmp(r->guide_type, "structural_tag") && begins_free(r));
    return NULL;
}

/* ---- messages ---- */

/* The next member is an object's first. */
static bool ends_open(const nrd_str *out)
{
    return out->len > 0 && out->data[out->len - 1] == '{';
}

static void put_members(nrd_str *out, const nrd_json *object, const char *except)
{
    bool first = ends_open(out);
    for (size_t i = 0; i < object->n; i++) {
        const nrd_json *v = &object->child[i];
        if (strcmp(v->key, except) != 0) {
            nrd_str_puts(out, first ? "" : ",");
            first = false;
            nrd_json_put_string(out, v->key, v->key_len);
            nrd_str_putc(out, ':');
            nrd_json_put(out, v, -1);
        }
    }
}

/* Parts of text become one: templates for text read nothing else. */
static nrd_error *join_parts(nrd_str *text, const nrd_json *parts, size_t index)
{
    for (size_t i = 0; i < parts->n; i++) {
        const nrd_json *p = &parts->child[i], *s = nrd_json_get(p, "text");
        const char *type = nrd_json_get_str(p, "type", "");
        if (strcmp(type, "text") != 0 || !nrd_json_is(s, NRD_JSON_STRING)) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "messages",
                              "message %zu has a part of type '%.40s'; only text is "
                              "supported", index, type);
        }
        if (i > 0) {
            nrd_str_putc(text, '\n');
        }
        nrd_str_append(text, s->str, s->n);
    }
    return nrd_str_error(text);
}

static nrd_error *put_content_parts(nrd_str *out, const nrd_json *parts, size_t index)
{
    nrd_str text = {0};
    nrd_error *err = join_parts(&text, parts, index);
    nrd_json_put_string(out, nrd_str_cstr(&text), text.len);
    nrd_str_fini(&text);
    return err;
}

/* A message's content as it is, a text or parts of text. */
static nrd_error *append_content(nrd_str *out, const nrd_json *content, size_t index)
{
    if (nrd_json_is(content, NRD_JSON_ARRAY)) {
        return join_parts(out, content, index);
    }
    if (!nrd_json_is(content, NRD_JSON_STRING)) {
        return bad("continue_final_message", "needs a last message whose content is text");
    }
    nrd_str_append(out, content->str, content->n);
    return nrd_str_error(out);
}

/* Arguments come as text; templates write them as JSON values. */
static void put_calls(nrd_str *out, const nrd_json *calls)
{
    nrd_str_putc(out, '[');
    for (size_t i = 0; i < calls->n; i++) {
        const nrd_json *c = &calls->child[i], *f = nrd_json_get(c, "function");
        const nrd_json *arguments = nrd_json_get(f, "arguments");
        nrd_json_doc *doc = NULL;
        if (nrd_json_is(arguments, NRD_JSON_STRING)) {
            nrd_error *err = nrd_json_parse(&doc, arguments->str, arguments->n, NULL);
            if (err && nrd_error_get_code(err) == NRD_ERR_NO_MEMORY) {
                nrd_str_spoil(out);
            }
            nrd_error_free(err); /* what is no JSON stays text */
            arguments = doc ? nrd_json_root(doc) : arguments;
        }
        nrd_str_puts(out, i ? ",{" : "{");
        if (nrd_json_is(c, NRD_JSON_OBJECT)) {
            put_members(out, c, "function");
        }
        if (nrd_json_is(f, NRD_JSON_OBJECT)) {
            nrd_str_puts(out, ends_open(out) ? "\"function\":{" : ",\"function\":{");
            put_members(out, f, "arguments");
            if (arguments) {
                nrd_str_puts(out, ends_open(out) ? "\"arguments\":" : ",\"arguments\":");
                nrd_json_put(out, arguments, -1);
            }
            nrd_str_putc(out, '}');
        }
        nrd_str_putc(out, '}');
        nrd_json_doc_free(doc);
    }
    nrd_str_putc(out, ']');
}

/* GPT-OSS's template takes a text or reasoning beside a call, not both. */
static bool is_one_too_many(const nrd_oai_request *r, const nrd_json *m, const char *key)
{
    const nrd_json *content = nrd_json_get(m, "content");
    const bool thought = !strcmp(key, "reasoning_content") || !strcmp(key, "reasoning") || !strcmp(key, "thinking");
    return thought && r->model->is_harmony && nrd_json_len(nrd_json_get(m, "tool_calls")) > 0 && content && content->n > 0 &&
           content->type != NRD_JSON_NULL;
}

static nrd_error *put_message(nrd_oai_request *r, nrd_str *out, const nrd_json *m, size_t index)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    const char *role = nrd_json_get_str(m, "role", "");
    size_t k = 0;

    while (k < 5 && strcmp(roles[k], role) != 0) {
        k++;
    }
    if (k == 5) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "messages", "message %zu has the role '%.40s'; roles are "
                          "system, developer, user, assistant and tool", index, role);
    }
    nrd_str_printf(out, "{\"role\":\"%s\"", k == 1 ? "system" : role);
    for (size_t i = 0; i < m->n; i++) {
        const nrd_json *v = &m->child[i];
        if (!strcmp(v->key, "role") || v->type == NRD_JSON_NULL || is_one_too_many(r, m, v->key)) {
            continue;
        }
        nrd_str_putc(out, ',');
        nrd_json_put_string(out, v->key, v->key_len);
        nrd_str_putc(out, ':');
        if (!strcmp(v->key, "content") && k == 4 && v->type == NRD_JSON_ARRAY && nrd_oai_takes_pictures(r->model)) {
            NRD_TRY(nrd_oai_put_tool_parts(r, out, v, index));
        } else if (!strcmp(v->key, "content") && nrd_oai_takes_pictures(r->model)) {
            NRD_TRY(nrd_oai_put_picture_parts(r, out, v, index));
        } else if (!strcmp(v->key, "content") && v->type == NRD_JSON_ARRAY) {
            NRD_TRY(put_content_parts(out, v, index));
        } else if (!strcmp(v->key, "tool_calls") && v->type == NRD_JSON_ARRAY) {
            put_calls(out, v);
        } else {
            nrd_json_put(out, v, -1);
        }
    }
    const nrd_json *content = nrd_json_get(m, "content");
    if (!content || content->type == NRD_JSON_NULL) { /* an assistant that only called tools */
        if (k != 3) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "messages", "message %zu has no content", index);
        }
        nrd_str_puts(out, ",\"content\":\"\"");
    }
    nrd_str_putc(out, '}');
    return NULL;
}

/* A call that must come is bound to {"name": ..., "arguments": ...} of the tool, or of one of them; the
 * answer is then read as any other call. Definitions move to where references look for them. */
static nrd_error *force_call(nrd_oai_request *r, const char *name)
{
    static const char *const defs[] = {"$defs", "definitions"};
    nrd_str *out = &r->guide;
    bool any = false;

    NRD_TRY(set_guide(r, "json_schema", "tool_choice"));
    r->begins_bound = true;
    nrd_str_puts(out, "{\"anyOf\":[");
    for (size_t i = 0; i < r->tools->n; i++) {
        const nrd_json *f = nrd_json_get(&r->tools->child[i], "function");
        const nrd_json *p = nrd_json_get(f, "parameters");
        if (name && strcmp(name, nrd_json_get_str(f, "name", "")) != 0) {
            continue;
        }
        nrd_str_puts(out, any ? ",{" : "{");
        any = true;
        nrd_str_puts(out, "\"type\":\"object\",\"properties\":{\"name\":{\"const\":");
        nrd_json_put_cstr(out, nrd_json_get_str(f, "name", ""));
        nrd_str_puts(out, "},\"arguments\":");
        if (p && p->type == NRD_JSON_OBJECT && p->n > 0) {
            nrd_str_putc(out, '{');
            for (size_t k = 0, n = 0; k < p->n; k++) {
                const nrd_json *v = &p->child[k];
                if (strcmp(v->key, defs[0]) != 0 && strcmp(v->key, defs[1]) != 0) {
                    nrd_str_puts(out, n++ ? "," : "");
                    nrd_json_put_string(out, v->key, v->key_len);
                    nrd_str_putc(out, ':');
                    nrd_json_put(out, v, -1);
                }
            }
            nrd_str_putc(out, '}');
        } else {
            nrd_str_puts(out, "{\"type\":\"object\"}");
        }
        nrd_str_puts(out, "},\"required\":[\"name\",\"arguments\"]}");
    }
    nrd_str_putc(out, ']');
    for (int d = 0; d < 2; d++) {
        nrd_str_printf(out, ",\"%s\":{", defs[d]);
        for (size_t i = 0, n = 0; i < r->tools->n; i++) {
            const nrd_json *p = nrd_json_get(nrd_json_get(&r->tools->child[i], "function"), "parameters");
            const nrd_json *list = nrd_json_get(p, defs[d]);
            for (size_t k = 0; k < nrd_json_len(list) && nrd_json_is(list, NRD_JSON_OBJECT); k++) {
                nrd_str_puts(out, n++ ? "," : "");
                nrd_json_put_string(out, list->child[k].key, list->child[k].key_len);
                nrd_str_putc(out, ':');
                nrd_json_put(out, &list->child[k], -1);
            }
        }
        nrd_str_putc(out, '}');
    }
    nrd_str_putc(out, '}');
    return any ? NULL : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tool_choice", "there is no tool '%.60s'", name);
}

static nrd_error *read_tools(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *tools = nrd_json_get(root, "tools"), *choice = nrd_json_get(root, "tool_choice");
    const char *word = nrd_json_is(choice, NRD_JSON_STRING) ? choice->str : "auto";
    const char *forced = nrd_json_get_str(nrd_json_get(choice, "function"), "name", NULL);

    if ((choice && choice->type == NRD_JSON_OBJECT && !forced) ||
        (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0 && strcmp(word, "required") != 0)) {
        return bad("tool_choice", "must be none, auto, required or a tool");
    }
    if ((forced || !strcmp(word, "required")) && nrd_json_len(tools) == 0) {
        return bad("tool_choice", "there are no tools to choose from");
    }
    if (!tools || tools->type == NRD_JSON_NULL || !strcmp(word, "none")) {
        return NULL;
    }
    if (tools->type != NRD_JSON_ARRAY) {
        return bad("tools", "must be a list");
    }
    for (size_t i = 0; i < tools->n; i++) {
        const nrd_json *f = nrd_json_get(&tools->child[i], "function");
        if (strcmp(nrd_json_get_str(&tools->child[i], "type", ""), "function") != 0 ||
            !nrd_json_get_str(f, "name", NULL)) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tools",
                              "element %zu must have type function and a function.name", i);
        }
    }
    r->tools = tools->n > 0 ? tools : NULL;
    r->has_tools = tools->n > 0;
    if (r->has_tools && !nrd_chat_takes_tools(r->model->chat)) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "tools",
                          "the chat template of this model does not take tools");
    }
    return forced || !strcmp(word, "required") ? force_call(r, forced) : NULL;
}

static nrd_error *check_modes(const nrd_json *root)
{
    const nrd_json *modes = nrd_json_get(root, "modalities");
    for (size_t i = 0; i < nrd_json_len(modes); i++) {
        if (strcmp(nrd_json_str(nrd_json_at(modes, i), ""), "text") != 0) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "modalities", "there is only text here");
        }
    }
    return NULL;
}

static nrd_error *render_messages(nrd_oai_request *r, const nrd_json *root, nrd_str *out)
{
    const nrd_json *messages = nrd_json_get(root, "messages");
    const nrd_json *kwargs = nrd_json_get(root, "chat_template_kwargs");
    const char *effort = nrd_oai_effort(root);
    nrd_str text = {0};
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;
    bool generation = true, go_on = false;

    if (!nrd_json_is(messages, NRD_JSON_ARRAY) || messages->n == 0) {
        return bad("messages", "must be a list with at least one message");
    }
    if (kwargs && kwargs->type == NRD_JSON_NULL) {
        kwargs = NULL;
    }
    if (kwargs && kwargs->type != NRD_JSON_OBJECT) {
        return bad("chat_template_kwargs", "must be an object");
    }
    NRD_TRY(nrd_oai_get_bool(root, "add_generation_prompt", &generation));
    NRD_TRY(nrd_oai_get_bool(root, "continue_final_message", &go_on));
    const nrd_json *last = &messages->child[messages->n - 1], *begun = nrd_json_get(last, "content");
    if (go_on && (messages->n < 2 || strcmp(nrd_json_get_str(last, "role", ""), "assistant") != 0)) {
        return bad("continue_final_message", "needs a last message of the assistant, and one before it");
    }
    nrd_str_puts(&text, "{\"messages\":[");
    for (size_t i = 0; i < messages->n - (go_on ? 1 : 0); i++) {
        nrd_str_puts(&text, i ? "," : "");
        NRD_TRY_GOTO(put_message(r, &text, &messages->child[i], i), err, done);
        if (i + 1 == messages->n || strcmp(nrd_json_get_str(&messages->child[i + 1], "role", ""), "tool") != 0) {
            nrd_oai_put_shown(r, &text); /* behind the answers of all tools */
        }
    }
    nrd_str_puts(&text, "],\"variables\":{");
    if (effort) {
        nrd_str_puts(&text, "\"reasoning_effort\":");
        nrd_json_put_cstr(&text, effort);
    }
    if (nrd_oai_thinks_not(root) && !nrd_json_get(kwargs, "enable_thinking")) {
        nrd_str_puts(&text, ends_open(&text) ? "\"enable_thinking\":false" : ",\"enable_thinking\":false");
    }
    if (kwargs) {
        put_members(&text, kwargs, "reasoning_effort");
    }
    nrd_str_puts(&text, "}}");
    NRD_TRY_GOTO(nrd_str_error(&text), err, done);
    NRD_TRY_GOTO(nrd_json_parse(&doc, text.data, text.len, NULL), err, done);
    const nrd_chat_input in = {.messages = nrd_json_get(nrd_json_root(doc), "messages"),
                               .variables = nrd_json_get(nrd_json_root(doc), "variables"),
                               .tools = r->tools,
                               .add_generation_prompt = generation || go_on}; /* an answer that goes on is one */
    err = nrd_error_at(nrd_error_wrap(nrd_chat_render(r->model->chat, &in, out), "messages"), "messages");
    if (go_on && !err) { /* the answer begins with this: it stands where the template lets the answer begin */
        nrd_str_puts(out, r->model->is_harmony ? NRD_HARMONY_FINAL : "");
        err = append_content(out, begun, messages->n - 1);
    }
done:
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    return err;
}

nrd_error *nrd_oai_render(nrd_oai_request *r, const nrd_json *root, nrd_str *out)
{
    if (!r->model->chat) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "messages", "%s", r->model->chat_error);
    }
    NRD_TRY(check_modes(root));
    NRD_TRY(read_tools(r, root));
    return render_messages(r, root, out);
}

/* Bound text is a final message, without reasoning before it. A call ends an answer, whatever the model's files say. */
static nrd_error *end_as_harmony(nrd_oai_request *r, nrd_str *prompt)
{
    if (r->begins_bound && nrd_str_has_suffix(nrd_str_cstr(prompt), "<|start|>assistant")) {
        nrd_str_puts(prompt, NRD_HARMONY_FINAL);
    }
    if (!r->ignore_eos) {
        nrd_ids_push(&r->stop_ids, r->model->harmony.end_of_call);
        nrd_ids_push(&r->stop_ids, r->model->harmony.end_of_answer);
    }
    nrd_error *err = nrd_str_error(prompt);
    return err ? err : nrd_ids_error(&r->stop_ids);
}

static nrd_error *read_chat(nrd_oai_request *r, const nrd_json *root)
{
    nrd_str text = {0};
    nrd_error *err = NULL;
    int64_t budget;

    NRD_TRY_GOTO(nrd_oai_read_budget(r, root, &budget), err, done);
    NRD_TRY_GOTO(nrd_oai_render(r, root, &text), err, done);
    if (r->model->is_harmony) {
        NRD_TRY_GOTO(end_as_harmony(r, &text), err, done);
    }
    size_t n = text.len;
    while (n > 0 && strchr(" \n", text.data[n - 1])) {
        n--;
    }
    r->think_open = !r->begins_bound && n >= 7 && memcmp(text.data + n - 7, "<think>", 7) == 0;
    NRD_TRY_GOTO(nrd_oai_keep_budget(r, budget, &text), err, done);
    r->n_prompts = 1;
    NRD_TRY_GOTO(nrd_oai_check_prompt(r->model, text.len, "messages"), err, done);
    err = nrd_tokenizer_encode(r->model->tokenizer, nrd_str_cstr(&text), text.len,
                               (r->add_special ? NRD_ENCODE_ADD_SPECIAL : 0) | NRD_ENCODE_PARSE_SPECIAL, &r->prompts[0]);
done:
    nrd_str_fini(&text);
    return err;
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
            return bad("prompt", "holds something that is no token id of this model");
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
        return bad("suffix", "must be a string");
    }
    if (!nrd_json_is(prompt, NRD_JSON_STRING)) {
        return bad("prompt", "must be one string where there is a suffix");
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
                    return bad("prompt", "must be a string, a list of strings or token ids");
                }
                NRD_TRY(add_prompt(r, &p->child[i]));
            }
        }
    } else {
        return bad("prompt", "must be a string, a list of strings or token ids");
    }
    for (size_t i = 0; i < r->n_prompts; i++) {
        if (r->prompts[i].n == 0 && nrd_tokenizer_bos_id(r->model->tokenizer) >= 0) {
            nrd_ids_push(&r->prompts[i], nrd_tokenizer_bos_id(r->model->tokenizer));
            NRD_TRY(nrd_ids_error(&r->prompts[i]));
        }
        if (r->prompts[i].n == 0) {
            return bad("prompt", "has no token");
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
    if (n == 0 || (n < 0 && most < 2) || r->n_images > 0) {
        return bad(field, r->n_images > 0 ? "is not for prompts with pictures"
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
        return bad("model", "must be the name of a model");
    }
    return r->model ? NULL : nrd_oai_find_only(r->o, r->req, name, &r->model); /* the form may have asked already */
}

nrd_error *nrd_oai_read(nrd_oai_request *r, const nrd_json *root)
{
    NRD_TRY(find_model(r, nrd_json_get(root, "model")));
    NRD_TRY(check_fields(r, root));
    NRD_TRY(read_sampling(r, root));
    NRD_TRY(read_guides(r, root));
    NRD_TRY(nrd_oai_read_search(r, root));
    NRD_TRY(r->chat ? read_chat(r, root) : read_prompts(r, root));
    NRD_TRY(cut_prompts(r, root));
    NRD_TRY(nrd_str_error(&r->guide));
    if (r->n_prompts * (size_t)r->best_of > OAI_MAX_CHOICES) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "n", "at most %d answers in one request",
                          OAI_MAX_CHOICES);
    }
    return NULL;
}
