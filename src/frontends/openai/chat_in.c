/* SPDX-License-Identifier: Apache-2.0
 * Messages and tools of a chat -> the prompt, through the model's template. */
#include "frontends/openai/params.h"

#include <string.h>

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
        return nrd_oai_bad("continue_final_message", "needs a last message whose content is text");
    }
    nrd_str_append(out, content->str, content->n);
    return nrd_str_error(out);
}

/* A template would write what is of another type, or nothing. */
static nrd_error *check_calls(const nrd_json *calls, size_t index)
{
    bool ok = calls->type == NRD_JSON_ARRAY;
    for (size_t i = 0; ok && i < calls->n; i++) {
        ok = nrd_json_is(nrd_json_get(nrd_json_get(&calls->child[i], "function"), "name"), NRD_JSON_STRING);
    }
    return ok ? NULL : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "messages", "tool_calls of message %zu must be a list of calls with a function.name", index);
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
        } else if (!strcmp(v->key, "content") && v->type != NRD_JSON_STRING) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "messages", "content of message %zu must be a string or a list of parts", index);
        } else if (!strcmp(v->key, "tool_calls")) {
            NRD_TRY(check_calls(v, index));
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

/* Members of `properties` and definitions have names of their own; what `const` and the like hold is no schema. */
typedef enum { A_SCHEMA, ITS_MEMBERS, A_VALUE } schema_part;

static schema_part part_at(const char *key)
{
    static const char *const maps[] = {"properties", "$defs", "definitions"};
    static const char *const values[] = {"const", "enum", "default", "example", "examples"};
    schema_part part = A_SCHEMA;

    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++) {
        part = strcmp(key, maps[i]) == 0 ? ITS_MEMBERS : part;
    }
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        part = strcmp(key, values[i]) == 0 ? A_VALUE : part;
    }
    return part;
}

/* A tool's schema as alternative `place` of a guide: references within it lead from its own root. */
static void put_schema(nrd_str *out, const nrd_json *v, schema_part part, size_t place)
{
    if (part == A_VALUE || (v->type != NRD_JSON_OBJECT && v->type != NRD_JSON_ARRAY)) {
        nrd_json_put(out, v, -1);
        return;
    }
    const bool is_object = v->type == NRD_JSON_OBJECT;
    nrd_str_putc(out, is_object ? '{' : '[');
    for (size_t i = 0; i < v->n; i++) {
        const nrd_json *c = &v->child[i];
        nrd_str_puts(out, i ? "," : "");
        if (is_object) {
            nrd_json_put_string(out, c->key, c->key_len);
            nrd_str_putc(out, ':');
        }
        if (is_object && part == A_SCHEMA && !strcmp(c->key, "$ref") && nrd_json_str(c, "")[0] == '#') {
            nrd_str ref = {0};
            nrd_str_printf(&ref, "#/anyOf/%zu/properties/arguments%s", place, c->str + 1);
            nrd_json_put_string(out, nrd_str_cstr(&ref), ref.len);
            nrd_error *err = nrd_str_error(&ref);
            if (err) {
                nrd_str_spoil(out);
            }
            nrd_error_free(err);
            nrd_str_fini(&ref);
        } else {
            put_schema(out, c, is_object && part == A_SCHEMA ? part_at(c->key) : A_SCHEMA, place);
        }
    }
    nrd_str_putc(out, is_object ? '}' : ']');
}

/* A call that must come is bound to {"name": ..., "arguments": ...} of the tool, or of one of them; the
 * answer is then read as any other call. */
static nrd_error *force_call(nrd_oai_request *r, const char *name)
{
    nrd_str *out = &r->guide;
    size_t n = 0;

    NRD_TRY(nrd_oai_set_guide(r, "json_schema", "tool_choice"));
    r->guide_field = "tools"; /* whose schemas it is made of */
    r->begins_bound = true;
    nrd_str_puts(out, "{\"anyOf\":[");
    for (size_t i = 0; i < r->tools->n; i++) {
        const nrd_json *f = nrd_json_get(&r->tools->child[i], "function");
        const nrd_json *p = nrd_json_get(f, "parameters");
        if (name && strcmp(name, nrd_json_get_str(f, "name", "")) != 0) {
            continue;
        }
        nrd_str_puts(out, n ? ",{" : "{");
        nrd_str_puts(out, "\"type\":\"object\",\"properties\":{\"name\":{\"const\":");
        nrd_json_put_cstr(out, nrd_json_get_str(f, "name", ""));
        nrd_str_puts(out, "},\"arguments\":");
        if (p && p->type == NRD_JSON_OBJECT && p->n > 0) {
            put_schema(out, p, A_SCHEMA, n);
        } else {
            nrd_str_puts(out, "{\"type\":\"object\"}");
        }
        nrd_str_puts(out, "},\"required\":[\"name\",\"arguments\"]}");
        n++;
    }
    nrd_str_puts(out, "]}");
    return n ? NULL : nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tool_choice", "there is no tool '%.60s'", name);
}

static nrd_error *read_tools(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *tools = nrd_json_get(root, "tools"), *choice = nrd_json_get(root, "tool_choice");
    const char *word = nrd_json_is(choice, NRD_JSON_STRING) ? choice->str : "auto";
    const char *forced = nrd_json_get_str(nrd_json_get(choice, "function"), "name", NULL);

    if ((nrd_oai_given(choice) && choice->type != NRD_JSON_STRING && !forced) ||
        (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0 && strcmp(word, "required") != 0)) {
        return nrd_oai_bad("tool_choice", "must be none, auto, required or a tool");
    }
    if ((forced || !strcmp(word, "required")) && nrd_json_len(tools) == 0) {
        return nrd_oai_bad("tool_choice", "there are no tools to choose from");
    }
    if (!tools || tools->type == NRD_JSON_NULL || !strcmp(word, "none")) {
        return NULL;
    }
    if (tools->type != NRD_JSON_ARRAY) {
        return nrd_oai_bad("tools", "must be a list");
    }
    for (size_t i = 0; i < tools->n; i++) {
        const nrd_json *f = nrd_json_get(&tools->child[i], "function");
        if (strcmp(nrd_json_get_str(&tools->child[i], "type", ""), "function") != 0 ||
            !nrd_json_get_str(f, "name", NULL)) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tools",
                              "element %zu must have type function and a function.name", i);
        }
        const nrd_json *about = nrd_json_get(f, "description"), *p = nrd_json_get(f, "parameters");
        if ((nrd_oai_given(about) && about->type != NRD_JSON_STRING) || (nrd_oai_given(p) && p->type != NRD_JSON_OBJECT)) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tools", "element %zu must have a string as function.description, and an object as "
                                  "function.parameters", i);
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
        return nrd_oai_bad("messages", "must be a list with at least one message");
    }
    if (kwargs && kwargs->type == NRD_JSON_NULL) {
        kwargs = NULL;
    }
    if (kwargs && kwargs->type != NRD_JSON_OBJECT) {
        return nrd_oai_bad("chat_template_kwargs", "must be an object");
    }
    NRD_TRY(nrd_oai_get_bool(root, "add_generation_prompt", &generation));
    NRD_TRY(nrd_oai_get_bool(root, "continue_final_message", &go_on));
    const nrd_json *last = &messages->child[messages->n - 1], *begun = nrd_json_get(last, "content");
    if (go_on && (messages->n < 2 || strcmp(nrd_json_get_str(last, "role", ""), "assistant") != 0)) {
        return nrd_oai_bad("continue_final_message", "needs a last message of the assistant, and one before it");
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
    err = err ? err : nrd_oai_put_times(r, out);
    if (go_on && !err) { /* the answer begins with this: it stands where the template lets the answer begin */
        nrd_str_puts(out, r->model->is_harmony ? NRD_HARMONY_FINAL : "");
        err = append_content(out, begun, messages->n - 1);
    }
done:
    nrd_json_doc_free(doc);
    nrd_str_fini(&text);
    return err;
}

/* Why a model without a chat template answers no messages; one would not help where the model writes no text. */
static nrd_error *no_chat(const nrd_oai_model *m)
{
    if (m->is_encoder) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' is an encoder: it makes no text; ask /v1/embeddings, /v1/rerank or /classify", m->name);
    }
    if (m->whisper) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' is a speech model; ask /v1/audio/transcriptions", m->name);
    }
    return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "messages", "%s", m->chat_error);
}

nrd_error *nrd_oai_render(nrd_oai_request *r, const nrd_json *root, nrd_str *out)
{
    if (!r->model->chat) {
        return no_chat(r->model);
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

nrd_error *nrd_oai_read_chat(nrd_oai_request *r, const nrd_json *root)
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
