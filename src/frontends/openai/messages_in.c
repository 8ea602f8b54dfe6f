/* SPDX-License-Identifier: Apache-2.0
 * A body of Anthropic's /v1/messages as one of /v1/chat/completions.
 * Source: Anthropic's API reference (create a message, count tokens). */
#include "frontends/openai/internal.h"

#include <stdio.h>
#include <string.h>

enum { IN_BODY = 64, IN_MESSAGE = 128, IN_BLOCK = 192 }; /* bytes of "messages.NUMBER.content.NUMBER.content.NUMBER" */

/* A block with a picture, as a part of the chat's content. */
static nrd_error *put_image_block(nrd_str *out, const nrd_json *block, const char *field)
{
    const nrd_json *source = nrd_json_get(block, "source");
    if (strcmp(nrd_json_get_str(source, "type", ""), "base64") != 0) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, field, "has the type '%.40s' and a source of the type '%.40s'; pictures are "
                              "taken as base64 and not fetched from addresses", nrd_json_get_str(block, "type", ""),
                              nrd_json_get_str(source, "type", ""));
    }
    return nrd_oai_put_image_url(out, nrd_json_get(source, "data"), field);
}

/* A text, or a list of blocks of text, as the chat's content. `at`: where it stands in the body. shows: blocks may be
 * pictures. */
static nrd_error *put_text(nrd_str *out, const nrd_json *v, const char *at, bool shows)
{
    if (nrd_json_is(v, NRD_JSON_STRING)) {
        nrd_json_put(out, v, -1);
        return NULL;
    }
    if (!nrd_json_is(v, NRD_JSON_ARRAY)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, at, "must be a string or a list of blocks");
    }
    nrd_str_putc(out, '[');
    for (size_t i = 0, n = 0; i < v->n; i++) {
        const nrd_json *text = nrd_json_get(&v->child[i], "text");
        const char *type = nrd_json_get_str(&v->child[i], "type", "");
        char field[IN_BLOCK];
        snprintf(field, sizeof field, "%s.%zu", at, i);
        if (shows && !strcmp(type, "image")) {
            nrd_str_puts(out, n++ ? "," : "");
            NRD_TRY(put_image_block(out, &v->child[i], field));
            continue;
        }
        if (strcmp(type, "text") != 0 || !nrd_json_is(text, NRD_JSON_STRING)) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, field, "has the type '%.40s'; only text is supported", type);
        }
        nrd_str_puts(out, n++ ? "," : "");
        nrd_str_puts(out, "{\"type\":\"text\",\"text\":");
        nrd_json_put(out, text, -1);
        nrd_str_putc(out, '}');
    }
    nrd_str_putc(out, ']');
    return NULL;
}

static void next_message(nrd_str *out, const char *role)
{
    nrd_str_printf(out, out->data[out->len - 1] == '[' ? "{\"role\":\"%s\"" : ",{\"role\":\"%s\"", role);
}

/* The answers of tools are messages of their own, before what the user says. */
static nrd_error *put_results(nrd_str *out, const nrd_json *blocks, const char *at)
{
    for (size_t i = 0; i < blocks->n; i++) {
        const nrd_json *b = &blocks->child[i], *content = nrd_json_get(b, "content");
        const nrd_json *id = nrd_json_get(b, "tool_use_id");
        char field[IN_MESSAGE];
        if (strcmp(nrd_json_get_str(b, "type", ""), "tool_result") != 0) {
            continue;
        }
        snprintf(field, sizeof field, "%s.%zu.tool_use_id", at, i);
        if (!nrd_json_is(id, NRD_JSON_STRING)) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be the id of a tool_use block");
        }
        next_message(out, "tool");
        nrd_oai_put_member(out, "tool_call_id", id);
        nrd_oai_put_key(out, "content");
        if (nrd_oai_given(content)) {
            snprintf(field, sizeof field, "%s.%zu.content", at, i);
            NRD_TRY(put_text(out, content, field, true));
        } else {
            nrd_str_puts(out, "\"\"");
        }
        nrd_str_putc(out, '}');
    }
    return NULL;
}

static bool is_document(const nrd_json *block)
{
    return !strcmp(nrd_json_get_str(block, "type", ""), "document");
}

/* The text of a document, behind its title. */
static void add_document(nrd_str *text, const nrd_json *block)
{
    const nrd_json *title = nrd_json_get(block, "title"), *data = nrd_json_get(nrd_json_get(block, "source"), "data");
    if (nrd_json_is(title, NRD_JSON_STRING)) {
        nrd_str_append(text, title->str, title->n);
        nrd_str_putc(text, '\n');
    }
    nrd_str_append(text, data->str, data->n);
}

static nrd_error *put_document(nrd_str *out, const nrd_json *block)
{
    nrd_str text = {0};
    add_document(&text, block);
    nrd_str_puts(out, "{\"type\":\"text\",\"text\":");
    nrd_json_put_string(out, nrd_str_cstr(&text), text.len);
    nrd_str_putc(out, '}');
    nrd_error *err = nrd_str_error(&text);
    nrd_str_fini(&text);
    return err;
}

/* The blocks of one type joined, documents as text, as a member of the message; nothing where there is none. */
static nrd_error *put_joined(nrd_str *out, const nrd_json *blocks, const char *type, const char *member)
{
    nrd_str text = {0};
    bool any = false;
    for (size_t i = 0; i < blocks->n; i++) {
        const nrd_json *s = nrd_json_get(&blocks->child[i], type); /* text: text, thinking: thinking */
        if (is_document(&blocks->child[i]) && !strcmp(type, "text")) {
            nrd_str_puts(&text, any ? "\n" : "");
            add_document(&text, &blocks->child[i]);
            any = true;
            continue;
        }
        if (!strcmp(nrd_json_get_str(&blocks->child[i], "type", ""), type) && nrd_json_is(s, NRD_JSON_STRING)) {
            nrd_str_puts(&text, any ? "\n" : "");
            nrd_str_append(&text, s->str, s->n);
            any = true;
        }
    }
    if (any) {
        nrd_oai_put_key(out, member);
        nrd_json_put_string(out, nrd_str_cstr(&text), text.len);
    }
    nrd_error *err = nrd_str_error(&text);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *put_uses(nrd_str *out, const nrd_json *blocks, const char *at)
{
    size_t n = 0;
    for (size_t i = 0; i < blocks->n; i++) {
        const nrd_json *b = &blocks->child[i], *input = nrd_json_get(b, "input");
        if (strcmp(nrd_json_get_str(b, "type", ""), "tool_use") != 0) {
            continue;
        }
        if (!nrd_json_get_str(b, "id", NULL) || !nrd_json_get_str(b, "name", NULL) ||
            !nrd_json_is(input, NRD_JSON_OBJECT)) {
            char field[IN_MESSAGE];
            snprintf(field, sizeof field, "%s.%zu", at, i);
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "a tool_use block needs id, name and input (an object)");
        }
        nrd_str_puts(out, n++ ? "," : ",\"tool_calls\":[");
        nrd_str_puts(out, "{\"type\":\"function\"");
        nrd_oai_put_member(out, "id", nrd_json_get(b, "id"));
        nrd_str_puts(out, ",\"function\":{");
        nrd_oai_put_member(out, "name", nrd_json_get(b, "name"));
        nrd_oai_put_member(out, "arguments", input);
        nrd_str_puts(out, "}}");
    }
    nrd_str_puts(out, n ? "]" : "");
    return NULL;
}

static nrd_error *check_blocks(const nrd_json *blocks, bool user, const char *at)
{
    static const char *const of_user[] = {"text", "tool_result", "image", "document", NULL};
    static const char *const of_assistant[] = {"text", "tool_use", "thinking", "redacted_thinking", NULL};
    for (size_t i = 0; i < blocks->n; i++) {
        const nrd_json *b = &blocks->child[i];
        const char *type = nrd_json_get_str(b, "type", ""), *const *known = user ? of_user : of_assistant;
        char field[IN_MESSAGE];
        while (*known && strcmp(*known, type) != 0) {
            known++;
        }
        snprintf(field, sizeof field, "%s.%zu", at, i);
        if (!*known) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, field, "has the type '%.40s'; %s", type,
                                  user ? "only text, image, document and tool_result are supported here"
                                       : "only text, tool_use and thinking are supported here");
        }
        const nrd_json *source = nrd_json_get(b, "source");
        if (is_document(b) && (strcmp(nrd_json_get_str(source, "type", ""), "text") != 0 ||
                               !nrd_json_is(nrd_json_get(source, "data"), NRD_JSON_STRING))) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, field, "has the type 'document' and a source of the type '%.40s'; documents are "
                                  "taken as text, with a source of the type text and data", nrd_json_get_str(source, "type", ""));
        }
        if (!strcmp(type, "text") && !nrd_json_is(nrd_json_get(b, "text"), NRD_JSON_STRING)) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "the field text must be a string");
        }
    }
    return NULL;
}

static bool has_images(const nrd_json *blocks)
{
    for (size_t i = 0; i < blocks->n; i++) {
        if (!strcmp(nrd_json_get_str(&blocks->child[i], "type", ""), "image")) {
            return true;
        }
    }
    return false;
}

/* Text and pictures in their order. */
static nrd_error *put_parts(nrd_str *out, const nrd_json *blocks, const char *at)
{
    nrd_oai_put_key(out, "content");
    nrd_str_putc(out, '[');
    for (size_t i = 0, n = 0; i < blocks->n; i++) {
        const nrd_json *b = &blocks->child[i];
        const char *type = nrd_json_get_str(b, "type", "");
        char field[IN_BLOCK];
        if (!strcmp(type, "tool_result")) {
            continue;
        }
        nrd_str_puts(out, n++ ? "," : "");
        if (!strcmp(type, "text")) {
            nrd_str_puts(out, "{\"type\":\"text\",\"text\":");
            nrd_json_put(out, nrd_json_get(b, "text"), -1);
            nrd_str_putc(out, '}');
            continue;
        }
        if (is_document(b)) {
            NRD_TRY(put_document(out, b));
            continue;
        }
        snprintf(field, sizeof field, "%s.%zu", at, i);
        NRD_TRY(put_image_block(out, b, field));
    }
    nrd_str_putc(out, ']');
    return NULL;
}

static nrd_error *put_turn(nrd_str *out, const nrd_json *m, size_t index)
{
    const char *role = nrd_json_get_str(m, "role", "");
    const nrd_json *content = nrd_json_get(m, "content");
    const bool user = !strcmp(role, "user"), blocks = nrd_json_is(content, NRD_JSON_ARRAY);
    char at[IN_BODY];

    snprintf(at, sizeof at, "messages.%zu.role", index);
    if (!user && strcmp(role, "assistant") != 0) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, at, "is '%.40s'; roles are user and assistant, and what the system "
                                                       "says is in system", role);
    }
    snprintf(at, sizeof at, "messages.%zu.content", index);
    if (!blocks && !nrd_json_is(content, NRD_JSON_STRING)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, at, "must be a string or a list of blocks");
    }
    if (!blocks) {
        next_message(out, role);
        nrd_oai_put_member(out, "content", content);
        nrd_str_putc(out, '}');
        return NULL;
    }
    NRD_TRY(check_blocks(content, user, at));
    bool only_results = user && content->n > 0;
    for (size_t i = 0; i < content->n && user; i++) {
        only_results = only_results && !strcmp(nrd_json_get_str(&content->child[i], "type", ""), "tool_result");
    }
    if (user) {
        NRD_TRY(put_results(out, content, at));
    }
    if (only_results) {
        return NULL;
    }
    next_message(out, role);
    NRD_TRY(user && has_images(content) ? put_parts(out, content, at) : put_joined(out, content, "text", "content"));
    if (!user) {
        NRD_TRY(put_joined(out, content, "thinking", "reasoning_content"));
        NRD_TRY(put_uses(out, content, at));
    }
    nrd_str_putc(out, '}');
    return NULL;
}

static nrd_error *put_messages(nrd_str *out, const nrd_json *root)
{
    const nrd_json *messages = nrd_json_get(root, "messages"), *system = nrd_json_get(root, "system");

    if (!nrd_json_is(messages, NRD_JSON_ARRAY) || messages->n == 0) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "messages", "must be a list with at least one message");
    }
    nrd_oai_put_key(out, "messages");
    nrd_str_putc(out, '[');
    if (nrd_oai_given(system)) {
        next_message(out, "system");
        nrd_oai_put_key(out, "content");
        NRD_TRY(put_text(out, system, "system", false));
        nrd_str_putc(out, '}');
    }
    for (size_t i = 0; i < messages->n; i++) {
        NRD_TRY(put_turn(out, &messages->child[i], i));
    }
    nrd_str_putc(out, ']');
    const nrd_json *last = &messages->child[messages->n - 1];
    if (!strcmp(nrd_json_get_str(last, "role", ""), "assistant")) { /* the answer goes on where it ends */
        nrd_str_puts(out, ",\"continue_final_message\":true");
    }
    return NULL;
}

/* Tools that Anthropic's server would call, or whose form its models know, are left out and named in the warning. */
static nrd_error *put_tools(nrd_oai_request *r, nrd_str *out, const nrd_json *tools)
{
    if (!nrd_oai_given(tools)) {
        return NULL;
    }
    if (tools->type != NRD_JSON_ARRAY) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tools", "must be a list");
    }
    nrd_oai_put_key(out, "tools");
    nrd_str_putc(out, '[');
    for (size_t i = 0, n = 0; i < tools->n; i++) {
        const nrd_json *t = &tools->child[i], *schema = nrd_json_get(t, "input_schema");
        const char *type = nrd_json_get_str(t, "type", "custom");
        char at[IN_BODY];
        snprintf(at, sizeof at, "tools.%zu", i);
        if (strcmp(type, "custom") != 0 && type[0]) {
            nrd_str name = {0};
            nrd_str_printf(&name, "%s.%s", at, type);
            nrd_oai_note_name(r, nrd_str_cstr(&name), name.len);
            nrd_error *err = nrd_str_error(&name);
            nrd_str_fini(&name);
            NRD_TRY(err);
            continue;
        }
        if (!nrd_json_get_str(t, "name", NULL) || !nrd_json_is(schema, NRD_JSON_OBJECT)) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, at, "must have a name and an input_schema (an object)");
        }
        nrd_str_puts(out, n++ ? ",{" : "{");
        nrd_str_puts(out, "\"type\":\"function\",\"function\":{");
        nrd_oai_put_member(out, "name", nrd_json_get(t, "name"));
        if (nrd_oai_given(nrd_json_get(t, "description"))) {
            nrd_oai_put_member(out, "description", nrd_json_get(t, "description"));
        }
        nrd_oai_put_member(out, "parameters", schema);
        nrd_str_puts(out, "}}");
    }
    nrd_str_putc(out, ']');
    return NULL;
}

static nrd_error *put_tool_choice(nrd_str *out, const nrd_json *choice)
{
    static const char *const words[][2] = {{"auto", "auto"}, {"any", "required"}, {"none", "none"}};
    const char *type = nrd_json_get_str(choice, "type", "");
    const nrd_json *name = nrd_json_get(choice, "name");
    size_t k = 0;

    if (!nrd_oai_given(choice)) {
        return NULL;
    }
    while (k < 3 && strcmp(words[k][0], type) != 0) {
        k++;
    }
    if (k < 3) {
        nrd_oai_put_key(out, "tool_choice");
        nrd_json_put_cstr(out, words[k][1]);
    } else if (!strcmp(type, "tool") && nrd_json_is(name, NRD_JSON_STRING)) {
        nrd_str_puts(out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{");
        nrd_oai_put_member(out, "name", name);
        nrd_str_puts(out, "}}");
    } else {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tool_choice", "must have the type auto, any, none, or tool with a "
                                                                  "name");
    }
    bool one_only = false;
    NRD_TRY(nrd_oai_get_bool(choice, "disable_parallel_tool_use", &one_only));
    if (one_only) {
        nrd_str_puts(out, ",\"parallel_tool_calls\":false");
    }
    return NULL;
}

/* Templates that can think say so with a variable; the others do not look at it. */
static nrd_error *put_thinking(nrd_str *out, const nrd_json *root)
{
    const nrd_json *v = nrd_json_get(root, "thinking");
    const char *type = nrd_json_get_str(v, "type", "");
    const bool on = !strcmp(type, "enabled") || !strcmp(type, "adaptive");

    if (nrd_oai_given(v) && !on && strcmp(type, "disabled") != 0) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "thinking", "must have the type enabled, adaptive or disabled");
    }
    if (nrd_oai_given(v) && !nrd_oai_given(nrd_json_get(root, "chat_template_kwargs"))) {
        nrd_str_printf(out, ",\"chat_template_kwargs\":{\"enable_thinking\":%s}", on ? "true" : "false");
    }
    if (nrd_oai_given(v)) {
        nrd_oai_put_member(out, "thinking", v);
    }
    return NULL;
}

static nrd_error *put_format(nrd_str *out, const nrd_json *root)
{
    const nrd_json *config = nrd_json_get(root, "output_config"), *format = nrd_json_get(config, "format");

    if (nrd_oai_given(config) && config->type != NRD_JSON_OBJECT) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "output_config", "must be an object");
    }
    if (nrd_oai_given(format)) {
        if (strcmp(nrd_json_get_str(format, "type", ""), "json_schema") != 0 || !nrd_json_get(format, "schema")) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "output_config.format",
                                  "must have the type json_schema and a schema");
        }
        nrd_str_puts(out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{");
        nrd_oai_put_member(out, "schema", nrd_json_get(format, "schema"));
        nrd_str_puts(out, "}}");
    }
    if (nrd_json_is(nrd_json_get(config, "effort"), NRD_JSON_STRING)) {
        nrd_oai_put_member(out, "reasoning_effort", nrd_json_get(config, "effort"));
    }
    return NULL;
}

nrd_error *nrd_oai_messages_convert(nrd_oai_request *r, const nrd_json *root, nrd_str *out)
{
    static const char *const special[] = {
        "messages", "system", "tools", "tool_choice", "stop_sequences", "thinking", "output_config",
        /* without effect: prompts share a cache here, and there is one place that answers */
        "cache_control", "inference_geo", "container", NULL};
    static const char *const unknown[] = {
        "n", "logprobs", "top_logprobs", "stream_options", "return_timings", "return_token_ids", "prompt_logprobs", "return_tokens_as_token_ids", "truncate_prompt_tokens", "add_special_tokens", "include_reasoning", "reasoning_format", "separate_reasoning", "stop", "max_completion_tokens",
        "response_format", "reasoning_effort", "parallel_tool_calls", "continue_final_message", "add_generation_prompt",
        NULL};
    const nrd_json *stops = nrd_json_get(root, "stop_sequences");

    if (!nrd_oai_given(nrd_json_get(root, "max_tokens")) && !r->only_counts) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "max_tokens", "is missing; it must be a whole number of at least 1");
    }
    if (nrd_json_len(nrd_json_get(root, "mcp_servers")) > 0) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "mcp_servers", "the server calls no tools itself");
    }
    NRD_TRY(put_messages(out, root));
    NRD_TRY(put_tools(r, out, nrd_json_get(root, "tools")));
    NRD_TRY(put_tool_choice(out, nrd_json_get(root, "tool_choice")));
    NRD_TRY(put_thinking(out, root));
    NRD_TRY(put_format(out, root));
    if (nrd_oai_given(stops) && stops->type != NRD_JSON_ARRAY) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "stop_sequences", "must be a list of strings");
    }
    if (nrd_oai_given(stops)) {
        nrd_oai_put_member(out, "stop", stops);
    }
    nrd_oai_put_rest(r, out, root, special, unknown);
    return NULL;
}
