/* SPDX-License-Identifier: Apache-2.0
 * The items of a /v1/responses conversation: as messages of the chat, and as they are listed. */
#include "frontends/openai/responses.h"

#include <stdio.h>
#include <string.h>

enum { FIELD = 96, PART_FIELD = FIELD + 24 }; /* bytes of "input.NUMBER.content", with ".NUMBER" */

const char *nrd_resp_suffix(const nrd_oai_request *r)
{
    return r->id + strlen(r->form->id_prefix);
}

/* ---- as messages ---- */

static void begin_message(nrd_resp_messages *w, const char *role)
{
    nrd_str_printf(w->out, "%s{\"role\":\"%s\"", w->any ? "," : "", role);
    w->any = true;
}

/* Writes what the assistant said so far. */
static void end_turn(nrd_resp_messages *w)
{
    if (w->reasoning.len + w->calls.len + w->content.len > 0) {
        begin_message(w, "assistant");
        if (w->reasoning.len > 0) {
            nrd_oai_put_key(w->out, "reasoning_content");
            nrd_str_put(w->out, &w->reasoning);
        }
        if (w->content.len > 0) {
            nrd_oai_put_key(w->out, "content");
            nrd_str_put(w->out, &w->content);
        }
        if (w->calls.len > 0) {
            nrd_str_puts(w->out, ",\"tool_calls\":[");
            nrd_str_put(w->out, &w->calls);
            nrd_str_putc(w->out, ']');
        }
        nrd_str_putc(w->out, '}');
    }
    if (w->reasoning.no_memory || w->content.no_memory || w->calls.no_memory) {
        nrd_str_spoil(w->out);
    }
    nrd_str_clear(&w->reasoning);
    nrd_str_clear(&w->content);
    nrd_str_clear(&w->calls);
}

nrd_error *nrd_resp_end_items(nrd_resp_messages *w)
{
    end_turn(w);
    nrd_str_fini(&w->reasoning);
    nrd_str_fini(&w->content);
    nrd_str_fini(&w->calls);
    return nrd_str_error(w->out);
}

void nrd_resp_put_text(nrd_resp_messages *w, const char *role, const nrd_json *text)
{
    end_turn(w);
    begin_message(w, role);
    nrd_oai_put_member(w->out, "content", text);
    nrd_str_putc(w->out, '}');
}

/* Appends a text, or the joined texts of a list of parts, as a JSON string. The first part has the number `first` in the body. */
static nrd_error *put_item_text(nrd_str *out, const nrd_json *v, const char *at, size_t first)
{
    static const char *const types[] = {"input_text", "output_text", "text", "reasoning_text", "summary_text"};
    nrd_str text = {0};

    if (nrd_json_is(v, NRD_JSON_STRING)) {
        nrd_json_put(out, v, -1);
        return NULL;
    }
    if (!nrd_json_is(v, NRD_JSON_ARRAY)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, at, "must be a string or a list of parts");
    }
    for (size_t i = 0; i < v->n; i++) {
        const char *type = nrd_json_get_str(&v->child[i], "type", "");
        const bool refusal = !strcmp(type, "refusal");
        const nrd_json *s = nrd_json_get(&v->child[i], refusal ? "refusal" : "text");
        size_t k = 0;
        while (k < sizeof types / sizeof types[0] && strcmp(types[k], type) != 0) {
            k++;
        }
        if ((k == sizeof types / sizeof types[0] && !refusal) || !nrd_json_is(s, NRD_JSON_STRING)) {
            char field[PART_FIELD];
            snprintf(field, sizeof field, "%s.%zu", at, first + i);
            nrd_str_fini(&text);
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, field, "has the type '%.40s'; only parts with a text are "
                                                              "supported", type);
        }
        nrd_str_puts(&text, i ? "\n" : "");
        nrd_str_append(&text, s->str, s->n);
    }
    nrd_json_put_string(out, nrd_str_cstr(&text), text.len);
    nrd_error *err = nrd_str_error(&text);
    nrd_str_fini(&text);
    return err;
}

static bool is_picture(const nrd_json *part)
{
    return !strcmp(nrd_json_get_str(part, "type", ""), "input_image");
}

static bool has_pictures(const nrd_json *content)
{
    for (size_t i = 0; nrd_json_is(content, NRD_JSON_ARRAY) && i < content->n; i++) {
        if (is_picture(&content->child[i])) {
            return true;
        }
    }
    return false;
}

/* As a part of chat/completions. Whoever reads that knows the model, and whether it sees. */
static nrd_error *put_picture(nrd_resp_messages *w, const nrd_json *part, const char *at)
{
    const nrd_json *url = nrd_json_get(part, "image_url");

    if (!nrd_json_is(url, NRD_JSON_STRING) || strncmp(url->str, "data:", 5) != 0) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, at, "has the type 'input_image' and no image_url of the form data:image/…;base64,…; "
                              "pictures are not fetched from addresses, and not of a file_id");
    }
    nrd_str_puts(w->out, "{\"type\":\"image_url\"");
    nrd_oai_put_member(w->out, "image_url", url);
    nrd_str_putc(w->out, '}');
    return NULL;
}

/* Texts and pictures in their order. */
static nrd_error *put_seen(nrd_resp_messages *w, const nrd_json *content, const char *at)
{
    nrd_str_putc(w->out, '[');
    for (size_t i = 0; i < content->n; i++) {
        const nrd_json *part = &content->child[i];
        char field[PART_FIELD];
        snprintf(field, sizeof field, "%s.%zu", at, i);
        nrd_str_puts(w->out, i ? "," : "");
        if (is_picture(part)) {
            NRD_TRY(put_picture(w, part, field));
            continue;
        }
        const nrd_json one = {.type = NRD_JSON_ARRAY, .n = 1, .child = &content->child[i]};
        nrd_str_puts(w->out, "{\"type\":\"text\",\"text\":");
        NRD_TRY(put_item_text(w->out, &one, at, i));
        nrd_str_putc(w->out, '}');
    }
    nrd_str_putc(w->out, ']');
    return NULL;
}

static nrd_error *put_said(nrd_resp_messages *w, const nrd_json *item, const char *at)
{
    static const char *const roles[] = {"user", "system", "developer", "assistant"};
    const char *role = nrd_json_get_str(item, "role", "");
    char field[FIELD];
    size_t k = 0;

    while (k < 4 && strcmp(roles[k], role) != 0) {
        k++;
    }
    if (k == 4) {
        snprintf(field, sizeof field, "%s.role", at);
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "is '%.40s'; roles are user, assistant, system and developer",
                              role);
    }
    snprintf(field, sizeof field, "%s.content", at);
    if (k == 3) {
        if (w->content.len + w->calls.len > 0) {
            end_turn(w);
        }
        return put_item_text(&w->content, nrd_json_get(item, "content"), field, 0);
    }
    end_turn(w);
    begin_message(w, role);
    nrd_oai_put_key(w->out, "content");
    NRD_TRY(k == 0 && has_pictures(nrd_json_get(item, "content")) ? put_seen(w, nrd_json_get(item, "content"), field)
                                                                  : put_item_text(w->out, nrd_json_get(item, "content"), field, 0));
    nrd_str_putc(w->out, '}');
    return NULL;
}

/* What a model thought is in content here; other servers have only a summary of it. */
static nrd_error *put_thought(nrd_resp_messages *w, const nrd_json *item, const char *at)
{
    const nrd_json *content = nrd_json_get(item, "content");
    const bool has_content = nrd_json_len(content) > 0;
    const nrd_json *text = has_content ? content : nrd_json_get(item, "summary");
    char field[FIELD];

    end_turn(w);
    snprintf(field, sizeof field, has_content ? "%s.content" : "%s.summary", at);
    return nrd_json_len(text) > 0 ? put_item_text(&w->reasoning, text, field, 0) : NULL;
}

static nrd_error *need_string(const nrd_json *item, const char *name, const char *at)
{
    char field[FIELD];
    if (nrd_json_is(nrd_json_get(item, name), NRD_JSON_STRING)) {
        return NULL;
    }
    snprintf(field, sizeof field, "%s.%s", at, name);
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a string");
}

static nrd_error *put_called(nrd_resp_messages *w, const nrd_json *item, const char *at)
{
    const bool custom = !strcmp(nrd_json_get_str(item, "type", ""), "custom_tool_call");
    const char *const needed[] = {"call_id", "name", custom ? "input" : "arguments"};
    nrd_str *o = &w->calls, input = {0};
    for (size_t i = 0; i < 3; i++) {
        NRD_TRY(need_string(item, needed[i], at));
    }
    nrd_str_puts(o, o->len ? ",{\"type\":\"function\"" : "{\"type\":\"function\"");
    nrd_oai_put_member(o, "id", nrd_json_get(item, "call_id"));
    nrd_str_puts(o, ",\"function\":{");
    nrd_oai_put_key(o, "name");
    NRD_TRY(nrd_resp_put_called_name(o, item));
    if (custom) { /* the function's one argument */
        nrd_str_puts(&input, "{\"input\":");
        nrd_json_put(&input, nrd_json_get(item, "input"), -1);
        nrd_str_putc(&input, '}');
        nrd_oai_put_key(o, "arguments");
        nrd_json_put_string(o, nrd_str_cstr(&input), input.len);
        if (input.no_memory) {
            nrd_str_spoil(o);
        }
        nrd_str_fini(&input);
    } else {
        nrd_oai_put_member(o, "arguments", nrd_json_get(item, "arguments"));
    }
    nrd_str_puts(o, "}}");
    return NULL;
}

static nrd_error *put_result(nrd_resp_messages *w, const nrd_json *item, const char *at)
{
    char field[FIELD];
    NRD_TRY(need_string(item, "call_id", at));
    end_turn(w);
    begin_message(w, "tool");
    nrd_oai_put_member(w->out, "tool_call_id", nrd_json_get(item, "call_id"));
    nrd_oai_put_key(w->out, "content");
    snprintf(field, sizeof field, "%s.output", at);
    NRD_TRY(has_pictures(nrd_json_get(item, "output")) ? put_seen(w, nrd_json_get(item, "output"), field)
                                                       : put_item_text(w->out, nrd_json_get(item, "output"), field, 0));
    nrd_str_putc(w->out, '}');
    return NULL;
}

nrd_error *nrd_resp_put_items(nrd_resp_messages *w, const nrd_json *items, const char *at)
{
    static const struct {
        const char *type;
        nrd_error *(*put)(nrd_resp_messages *w, const nrd_json *item, const char *at);
    } kinds[] = {{"message", put_said},
                 {"function_call", put_called},
                 {"function_call_output", put_result},
                 {"custom_tool_call", put_called},
                 {"custom_tool_call_output", put_result},
                 {"reasoning", put_thought}};
    enum { N_KINDS = sizeof kinds / sizeof kinds[0] };
    for (size_t i = 0; i < items->n; i++) {
        const char *type = nrd_json_get_str(&items->child[i], "type", "message");
        char field[FIELD];
        size_t k = 0;
        while (k < N_KINDS && strcmp(kinds[k].type, type) != 0) {
            k++;
        }
        snprintf(field, sizeof field, "%s.%zu", at, i);
        if (k == N_KINDS) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, field, "has the type '%.40s'; items are message, function_call, "
                                                              "function_call_output, custom_tool_call, custom_tool_call_output "
                                                              "and reasoning here", type);
        }
        NRD_TRY(kinds[k].put(w, &items->child[i], field));
    }
    return NULL;
}

/* ---- as a list ---- */

/* An item with all that clients expect of it. */
static void list_item(nrd_str *out, const nrd_json *item, const char *id, size_t index)
{
    const nrd_json *content = nrd_json_get(item, "content");
    const char *type = nrd_json_get_str(item, "type", "message");
    const bool message = !strcmp(type, "message");

    nrd_str_puts(out, "{\"type\":");
    nrd_json_put_cstr(out, type);
    if (!nrd_json_is(nrd_json_get(item, "id"), NRD_JSON_STRING)) {
        nrd_str_printf(out, ",\"id\":\"%s_%s_%zu\"", message ? "msg" : "item", id, index);
    }
    if (!nrd_oai_given(nrd_json_get(item, "status"))) {
        nrd_str_puts(out, ",\"status\":\"completed\"");
    }
    for (size_t i = 0; i < item->n; i++) {
        const nrd_json *v = &item->child[i];
        if (!strcmp(v->key, "type") || v->type == NRD_JSON_NULL ||
            (!strcmp(v->key, "id") && v->type != NRD_JSON_STRING) ||
            (message && v == content && v->type == NRD_JSON_STRING)) {
            continue;
        }
        nrd_oai_put_member(out, v->key, v);
    }
    if (message && nrd_json_is(content, NRD_JSON_STRING)) {
        const bool said = !strcmp(nrd_json_get_str(item, "role", ""), "assistant");
        nrd_str_puts(out, said ? ",\"content\":[{\"type\":\"output_text\",\"annotations\":[]"
                               : ",\"content\":[{\"type\":\"input_text\"");
        nrd_oai_put_member(out, "text", content);
        nrd_str_puts(out, "}]");
    }
    nrd_str_putc(out, '}');
}

void nrd_resp_list_items(nrd_str *out, const nrd_json *input, const char *id)
{
    nrd_str_putc(out, '[');
    if (nrd_json_is(input, NRD_JSON_STRING)) {
        nrd_str_printf(out, "{\"type\":\"message\",\"id\":\"msg_%s_0\",\"status\":\"completed\",\"role\":\"user\","
                            "\"content\":[{\"type\":\"input_text\"", id);
        nrd_oai_put_member(out, "text", input);
        nrd_str_puts(out, "}]}");
    } else {
        for (size_t i = 0; i < input->n; i++) {
            nrd_str_puts(out, i ? "," : "");
            list_item(out, &input->child[i], id, i);
        }
    }
    nrd_str_putc(out, ']');
}
