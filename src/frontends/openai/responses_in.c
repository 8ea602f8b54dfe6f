/* SPDX-License-Identifier: Apache-2.0
 * A body of OpenAI's /v1/responses as one of /v1/chat/completions.
 * Source: OpenAI's API reference (create a model response). */
#include "frontends/openai/responses.h"

#include <stdio.h>
#include <string.h>

enum { MAX_METADATA = 16, MAX_CHAIN = 4096 }; /* the latter: answers that one can go back to */

static nrd_error *wrong(const char *field, const char *why)
{
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "%s", why);
}

/* ---- what is not offered ---- */

/* What nobody waits for must be found later. */
static nrd_error *read_background(nrd_oai_request *r, const nrd_json *root)
{
    int key;

    NRD_TRY(nrd_oai_get_bool(root, "background", &r->resp.background));
    if (!r->resp.background || !r->req) {
        return NULL;
    }
    if (nrd_http_is_local(r->req, &key)) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "background", "must be false in a batch, which is made in the background itself");
    }
    if (!r->resp.store) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "background", "needs store: true; else nobody could get the answer");
    }
    const nrd_options *opt = r->o->api->options;
    if (opt->openai_background == 0 || opt->openai_responses_kept == 0) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "background", "was turned off with --%s=0",
                              opt->openai_background == 0 ? "openai-background" : "openai-responses-kept");
    }
    return NULL;
}

static nrd_error *refuse(const nrd_json *root)
{
    static const char *const fields[][2] = {
        {"conversation", "conversations are not kept here; use previous_response_id"},
        {"prompt", "prompts are not kept here; send instructions and input"},
        {"context_management", "the server does not shorten conversations"},
        {"moderation", "there is no moderation here"}};
    const nrd_json *truncation = nrd_json_get(root, "truncation");

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (nrd_oai_given(nrd_json_get(root, fields[i][0]))) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, fields[i][0], "%s", fields[i][1]);
        }
    }
    if (nrd_oai_given(truncation) && strcmp(nrd_json_str(truncation, ""), "disabled") != 0) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "truncation",
                              "must be disabled; what is too long for the model is an error");
    }
    return NULL;
}

/* ---- the conversation ---- */

/* The items of an answer and of what it answers, and before them those that it continues. */
static nrd_error *put_kept(nrd_resp_messages *w, const nrd_kept_response *last)
{
    const nrd_json_limits limits = {.max_depth = 64, .max_nodes = OAI_MAX_VALUES}; /* as of the bodies that it came in */
    const nrd_kept_response *chain[MAX_CHAIN];
    size_t n = 0;
    nrd_error *err = NULL;

    for (const nrd_kept_response *k = last; k; k = k->previous) {
        if (n == MAX_CHAIN) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "previous_response_id", "has more than %d answers before it",
                                  MAX_CHAIN);
        }
        chain[n++] = k;
    }
    while (n-- > 0 && !err) {
        nrd_json_doc *input = NULL, *answer = NULL;
        err = nrd_json_parse(&input, chain[n]->input.data, chain[n]->input.len, &limits);
        err = err ? err : nrd_json_parse(&answer, chain[n]->answer.data, chain[n]->answer.len, &limits);
        err = err ? err : nrd_resp_put_items(w, nrd_json_root(input), "previous_response_id.input");
        err = err ? err
                  : nrd_resp_put_items(w, nrd_json_get(nrd_json_root(answer), "output"), "previous_response_id.output");
        nrd_json_doc_free(input);
        nrd_json_doc_free(answer);
    }
    return err;
}

static nrd_error *find_previous(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *id = nrd_json_get(root, "previous_response_id");
    if (!nrd_oai_given(id)) {
        return NULL;
    }
    if (id->type != NRD_JSON_STRING) {
        return wrong("previous_response_id", "must be the id of a response");
    }
    r->resp.previous = nrd_response_store_find(r->o->kept, r->key, id->str);
    return r->resp.previous ? NULL
                            : nrd_error_because(nrd_oai_errorf(NRD_ERR_NOT_FOUND, "previous_response_id",
                                                               NRD_RESP_NOT_KEPT, id->str),
                                                "previous_response_not_found");
}

static nrd_error *put_all(nrd_oai_request *r, nrd_resp_messages *w, const nrd_json *root)
{
    const nrd_json *instructions = nrd_json_get(root, "instructions"), *input = nrd_json_get(root, "input");

    if (nrd_oai_given(instructions) && instructions->type != NRD_JSON_STRING) {
        return wrong("instructions", "must be a string");
    }
    if (!nrd_json_is(input, NRD_JSON_STRING) && !(nrd_json_is(input, NRD_JSON_ARRAY) && input->n > 0)) {
        return wrong("input", "must be a string or a list of at least one item");
    }
    NRD_TRY(find_previous(r, root));
    if (nrd_oai_given(instructions)) {
        nrd_resp_put_text(w, "system", instructions);
    }
    NRD_TRY(put_kept(w, r->resp.previous));
    if (input->type == NRD_JSON_STRING) {
        nrd_resp_put_text(w, "user", input);
    } else {
        NRD_TRY(nrd_resp_put_items(w, input, "input"));
    }
    nrd_resp_list_items(&r->resp.input, input, nrd_resp_suffix(r));
    return nrd_str_error(&r->resp.input);
}

static nrd_error *put_conversation(nrd_oai_request *r, nrd_str *out, const nrd_json *root)
{
    nrd_resp_messages w = {.out = out};
    nrd_oai_put_key(out, "messages");
    nrd_str_putc(out, '[');
    nrd_error *err = put_all(r, &w, root), *other = nrd_resp_end_items(&w);
    nrd_str_putc(out, ']');
    if (err) {
        nrd_error_free(other);
        return err;
    }
    return other;
}

/* ---- the rest ---- */

static nrd_error *put_text_format(nrd_str *out, const nrd_json *root)
{
    const nrd_json *text = nrd_json_get(root, "text"), *format = nrd_json_get(text, "format");
    const char *type = nrd_json_get_str(format, "type", "");

    if (nrd_oai_given(text) && text->type != NRD_JSON_OBJECT) {
        return wrong("text", "must be an object");
    }
    if (!nrd_oai_given(format) || !strcmp(type, "text")) {
        return NULL;
    }
    if (!strcmp(type, "json_object")) {
        nrd_str_puts(out, ",\"response_format\":{\"type\":\"json_object\"}");
        return NULL;
    }
    if (strcmp(type, "json_schema") != 0) {
        return wrong("text.format", "must have the type text, json_object or json_schema");
    }
    if (!nrd_oai_given(nrd_json_get(format, "schema"))) {
        return wrong("text.format", "the schema is missing");
    }
    nrd_str_puts(out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{");
    nrd_oai_put_member(out, "schema", nrd_json_get(format, "schema"));
    nrd_str_puts(out, "}}");
    return NULL;
}

/* Templates that can think say so with a variable, or with the effort. */
static nrd_error *put_effort(nrd_str *out, const nrd_json *root)
{
    const nrd_json *reasoning = nrd_json_get(root, "reasoning"), *effort = nrd_json_get(reasoning, "effort");
    if (nrd_oai_given(reasoning) && reasoning->type != NRD_JSON_OBJECT) {
        return wrong("reasoning", "must be an object");
    }
    if (nrd_oai_given(effort) && effort->type != NRD_JSON_STRING) {
        return wrong("reasoning.effort", "must be a string");
    }
    if (nrd_oai_given(reasoning)) {
        nrd_oai_put_member(out, "reasoning", reasoning);
    }
    return NULL;
}

/* Of what could come besides, only log probabilities are made here. */
static nrd_error *put_scores(nrd_str *out, const nrd_json *root)
{
    const nrd_json *include = nrd_json_get(root, "include"), *top = nrd_json_get(root, "top_logprobs");
    bool asked = nrd_oai_given(top) && !(top->type == NRD_JSON_INT && top->i == 0);

    if (nrd_oai_given(include) && include->type != NRD_JSON_ARRAY) {
        return wrong("include", "must be a list of strings");
    }
    for (size_t i = 0; i < nrd_json_len(include); i++) {
        asked = asked || !strcmp(nrd_json_str(&include->child[i], ""), "message.output_text.logprobs");
    }
    if (asked) {
        nrd_str_puts(out, ",\"logprobs\":true");
        if (nrd_oai_given(top)) {
            nrd_oai_put_member(out, "top_logprobs", top);
        }
    }
    return NULL;
}

static nrd_error *check_metadata(const nrd_json *metadata)
{
    if (nrd_oai_given(metadata) && metadata->type != NRD_JSON_OBJECT) {
        return wrong("metadata", "must be an object of strings");
    }
    if (nrd_json_len(metadata) > MAX_METADATA) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "metadata", "has more than %d values", MAX_METADATA);
    }
    for (size_t i = 0; i < nrd_json_len(metadata); i++) {
        if (metadata->child[i].type != NRD_JSON_STRING) {
            return wrong("metadata", "must be an object of strings");
        }
    }
    return NULL;
}

/* Members of the answer that repeat what was asked. Those of sampling are written with it: they may come
 * from the model. */
static void put_echoed(nrd_oai_request *r, const nrd_json *root)
{
    static const char *const members[][2] = {
        {"instructions", "null"}, {"max_output_tokens", "null"}, {"max_tool_calls", "null"}, {"metadata", "{}"},
        {"parallel_tool_calls", "true"}, {"previous_response_id", "null"}, {"prompt_cache_key", "null"},
        {"reasoning", "{\"effort\":null,\"summary\":null}"}, {"safety_identifier", "null"}, {"tool_choice", "\"auto\""},
        {"tools", "[]"}, {"user", "null"}};
    const nrd_json *text = nrd_json_get(root, "text");
    nrd_str *o = &r->resp.echoed;

    nrd_str_printf(o, "\"background\":%s,\"service_tier\":\"default\",\"truncation\":\"disabled\",\"store\":%s",
                   r->resp.background ? "true" : "false", r->resp.store ? "true" : "false");
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        const nrd_json *v = nrd_json_get(root, members[i][0]);
        if (nrd_oai_given(v)) {
            nrd_oai_put_member(o, members[i][0], v);
        } else {
            nrd_str_printf(o, ",\"%s\":%s", members[i][0], members[i][1]);
        }
    }
    nrd_str_puts(o, ",\"text\":{\"format\":");
    if (nrd_oai_given(nrd_json_get(text, "format"))) {
        nrd_json_put(o, nrd_json_get(text, "format"), -1);
    } else {
        nrd_str_puts(o, "{\"type\":\"text\"}");
    }
    if (nrd_oai_given(nrd_json_get(text, "verbosity"))) {
        nrd_oai_put_member(o, "verbosity", nrd_json_get(text, "verbosity"));
    }
    nrd_str_putc(o, '}');
}

nrd_error *nrd_oai_responses_convert(nrd_oai_request *r, const nrd_json *root, nrd_str *out)
{
    static const char *const special[] = {
        "input", "instructions", "previous_response_id", "tools", "tool_choice", "text", "reasoning", "include",
        "top_logprobs", "metadata", "store", "max_output_tokens",
        "background", "truncation", "conversation", "prompt", "context_management", "moderation",
        /* without effect: the server calls no tools itself, and sends nothing to hide lengths */
        "max_tool_calls", "stream_options", "background_options", NULL};
    static const char *const unknown[] = {
        "messages", "n", "logprobs", "return_timings", "return_token_ids", "prompt_logprobs", "return_tokens_as_token_ids", "truncate_prompt_tokens", "add_special_tokens", "include_reasoning", "reasoning_format", "separate_reasoning", "max_tokens", "max_completion_tokens", "response_format", "reasoning_effort",
        "continue_final_message", "add_generation_prompt", NULL};
    const nrd_json *most = nrd_json_get(root, "max_output_tokens"), *metadata = nrd_json_get(root, "metadata");
    int key;


    r->resp.store = !r->req || !nrd_http_is_local(r->req, &key); /* what a batch answers is in its file */
    NRD_TRY(nrd_oai_get_bool(root, "store", &r->resp.store));
    NRD_TRY(read_background(r, root));
    NRD_TRY(refuse(root));
    NRD_TRY(check_metadata(metadata));
    NRD_TRY(put_conversation(r, out, root));
    NRD_TRY(nrd_resp_put_tools(r, out, root));
    NRD_TRY(put_text_format(out, root));
    NRD_TRY(put_effort(out, root));
    NRD_TRY(put_scores(out, root));
    if (nrd_oai_given(most)) {
        nrd_oai_put_member(out, "max_completion_tokens", most);
    }
    put_echoed(r, root);
    NRD_TRY(nrd_str_error(&r->resp.echoed));
    nrd_oai_put_rest(r, out, root, special, unknown);
    return NULL;
}
