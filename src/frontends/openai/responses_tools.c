/* SPDX-License-Identifier: Apache-2.0
 * Tools of /v1/responses as functions of chat/completions, and calls of them as the client knows them. A custom tool,
 * whose input is a text, is a function with one argument; a tool of a namespace is a function with both names. Tools
 * that a server would call itself are left out, and named in the warning: agents list them without need.
 * Source: OpenAI's API reference (tools of a response; custom and namespace tools). */
#include "frontends/openai/responses.h"

#include "base/names.h"

#include <stdio.h>
#include <string.h>

enum { AT = 64 }; /* bytes of "tools.NUMBER.tools.NUMBER" */

static const char separator[] = "__"; /* between a namespace and a name */

typedef struct writer {
    nrd_oai_request *r;
    nrd_str *out;
    nrd_str marks; /* members of r->resp.tools */
    nrd_names *allowed; /* what tool_choice lets be called; NULL: all */
    size_t n;
} writer;

static void join_name(nrd_str *out, const char *space, const char *name)
{
    nrd_str_puts(out, space);
    nrd_str_puts(out, space[0] && !nrd_str_has_suffix(space, separator) ? separator : "");
    nrd_str_puts(out, name);
}

nrd_error *nrd_resp_put_called_name(nrd_str *out, const nrd_json *item)
{
    nrd_str full = {0};
    join_name(&full, nrd_json_get_str(item, "namespace", ""), nrd_json_get_str(item, "name", ""));
    nrd_json_put_string(out, nrd_str_cstr(&full), full.len);
    nrd_error *err = nrd_str_error(&full);
    nrd_str_fini(&full);
    return err;
}

/* ---- from the body ---- */

/* What a custom tool's input must look like stands where the model reads it. */
static nrd_error *put_custom_members(nrd_str *out, const nrd_json *t)
{
    const nrd_json *format = nrd_json_get(t, "format");
    const char *definition = nrd_json_get_str(format, "definition", NULL);
    nrd_str text = {0};

    nrd_str_puts(&text, nrd_json_get_str(t, "description", ""));
    if (definition) {
        nrd_str_printf(&text, "%sThe input follows this grammar (%s):\n", text.len ? "\n\n" : "", nrd_json_get_str(format, "syntax", "lark"));
        nrd_str_puts(&text, definition);
    }
    nrd_str_puts(out, ",\"description\":");
    nrd_json_put_string(out, nrd_str_cstr(&text), text.len);
    nrd_str_puts(out, ",\"parameters\":{\"type\":\"object\",\"properties\":{\"input\":{\"type\":\"string\"}},\"required\":[\"input\"],"
                      "\"additionalProperties\":false}");
    nrd_error *err = nrd_str_error(&text);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *put_function(writer *w, const nrd_json *t, const char *space, bool custom, const char *at)
{
    const nrd_json *name = nrd_json_get(t, "name"), *parameters = nrd_json_get(t, "parameters");
    nrd_str full = {0};

    if (!nrd_json_is(name, NRD_JSON_STRING)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, at, "must have a name");
    }
    if (w->allowed && !nrd_names_have(w->allowed, name->str, strlen(name->str))) {
        return NULL;
    }
    join_name(&full, space, name->str);
    nrd_str_puts(w->out, w->n++ ? "," : "");
    nrd_str_puts(w->out, "{\"type\":\"function\",\"function\":{\"name\":");
    nrd_json_put_string(w->out, nrd_str_cstr(&full), full.len);
    nrd_error *err = nrd_str_error(&full);
    if (!err && custom) {
        err = put_custom_members(w->out, t);
    } else if (!err) {
        if (nrd_oai_given(nrd_json_get(t, "description"))) {
            nrd_oai_put_member(w->out, "description", nrd_json_get(t, "description"));
        }
        if (nrd_oai_given(parameters)) {
            nrd_oai_put_member(w->out, "parameters", parameters);
        }
    }
    nrd_str_puts(w->out, "}}");
    if (custom || space[0]) {
        nrd_str_puts(&w->marks, w->marks.len ? "," : "{");
        nrd_json_put_string(&w->marks, nrd_str_cstr(&full), full.len);
        nrd_str_puts(&w->marks, ":{\"name\":");
        nrd_json_put(&w->marks, name, -1);
        nrd_str_puts(&w->marks, ",\"namespace\":");
        nrd_json_put_cstr(&w->marks, space);
        nrd_str_printf(&w->marks, ",\"custom\":%s}", custom ? "true" : "false");
    }
    nrd_str_fini(&full);
    return err;
}

/* space: the namespace that it stands in; "": none. */
static nrd_error *put_tool(writer *w, const nrd_json *t, const char *space, const char *at)
{
    const char *type = nrd_json_get_str(t, "type", "");
    const nrd_json *inner = nrd_json_get(t, "tools");

    if (!strcmp(type, "function") || !strcmp(type, "custom")) {
        return put_function(w, t, space, type[0] == 'c', at);
    }
    if (!strcmp(type, "namespace") && !space[0]) {
        const char *name = nrd_json_get_str(t, "name", "");
        if (!name[0] || !nrd_json_is(inner, NRD_JSON_ARRAY)) {
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, at, "a namespace must have a name and tools");
        }
        for (size_t i = 0; i < inner->n; i++) {
            char field[AT];
            snprintf(field, sizeof field, "%s.tools.%zu", at, i);
            NRD_TRY(put_tool(w, &inner->child[i], name, field));
        }
        return NULL;
    }
    if (!type[0]) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, at, "must have a type: function, custom or namespace");
    }
    nrd_str name = {0};
    nrd_str_printf(&name, "%s.%s", at, type);
    nrd_oai_note_name(w->r, nrd_str_cstr(&name), name.len);
    nrd_error *err = nrd_str_error(&name);
    nrd_str_fini(&name);
    return err;
}

static nrd_error *put_functions(nrd_oai_request *r, nrd_str *out, const nrd_json *tools, nrd_names *allowed)
{
    writer w = {.r = r, .out = out, .allowed = allowed};
    nrd_error *err = NULL;

    if (!nrd_oai_given(tools)) {
        return NULL;
    }
    if (tools->type != NRD_JSON_ARRAY) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tools", "must be a list");
    }
    nrd_oai_put_key(out, "tools");
    nrd_str_putc(out, '[');
    for (size_t i = 0; i < tools->n && !err; i++) {
        char at[AT];
        snprintf(at, sizeof at, "tools.%zu", i);
        err = put_tool(&w, &tools->child[i], "", at);
    }
    nrd_str_putc(out, ']');
    nrd_str_puts(&w.marks, w.marks.len ? "}" : "");
    err = err ? err : nrd_str_error(&w.marks);
    if (!err && w.marks.len > 0) {
        err = nrd_json_parse(&r->resp.tools, w.marks.data, w.marks.len, NULL);
    }
    nrd_str_fini(&w.marks);
    return err;
}

/* The names of tools, and of those in namespaces. */
static nrd_error *add_names(nrd_names *out, const nrd_json *tools)
{
    for (size_t i = 0; nrd_json_is(tools, NRD_JSON_ARRAY) && i < tools->n; i++) {
        const char *name = nrd_json_get_str(&tools->child[i], "name", "");
        NRD_TRY(nrd_names_add(out, name, strlen(name)));
        NRD_TRY(add_names(out, nrd_json_get(&tools->child[i], "tools")));
    }
    return NULL;
}

/* Takes up what may be called; all of it must be there. */
static nrd_error *read_allowed(nrd_names *out, const nrd_json *tools, const nrd_json *list)
{
    nrd_names known = {0};

    if (!nrd_json_is(list, NRD_JSON_ARRAY)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tool_choice.tools", "must be a list");
    }
    nrd_error *err = add_names(&known, tools);
    for (size_t i = 0; i < list->n && !err; i++) {
        const char *name = nrd_json_get_str(&list->child[i], "name", "");
        if (!nrd_names_have(&known, name, strlen(name))) {
            err = nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tool_choice", "there is no tool '%.60s'", name);
        } else {
            err = nrd_names_add(out, name, strlen(name));
        }
    }
    nrd_names_fini(&known);
    return err;
}

static nrd_error *put_choice(nrd_str *out, const nrd_json *tools, const nrd_json *choice, nrd_names *allowed)
{
    const char *type = nrd_json_get_str(choice, "type", ""), *mode = nrd_json_get_str(choice, "mode", "");

    if (!nrd_oai_given(choice)) {
        return NULL;
    }
    if (choice->type == NRD_JSON_STRING) {
        nrd_oai_put_member(out, "tool_choice", choice);
    } else if ((!strcmp(type, "function") || !strcmp(type, "custom")) && nrd_json_get_str(choice, "name", NULL)) {
        nrd_str_puts(out, ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":");
        NRD_TRY(nrd_resp_put_called_name(out, choice));
        nrd_str_puts(out, "}}");
    } else if (!strcmp(type, "allowed_tools") && (!strcmp(mode, "auto") || !strcmp(mode, "required"))) {
        NRD_TRY(read_allowed(allowed, tools, nrd_json_get(choice, "tools")));
        nrd_str_printf(out, ",\"tool_choice\":\"%s\"", mode);
    } else {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tool_choice", "must be none, auto, required, a function or custom tool, or "
                                                                  "allowed_tools");
    }
    return NULL;
}

nrd_error *nrd_resp_put_tools(nrd_oai_request *r, nrd_str *out, const nrd_json *root)
{
    const nrd_json *choice = nrd_json_get(root, "tool_choice"), *tools = nrd_json_get(root, "tools");
    const bool some = !strcmp(nrd_json_get_str(choice, "type", ""), "allowed_tools");
    nrd_names allowed = {0};

    nrd_error *err = put_choice(out, tools, choice, &allowed);
    err = err ? err : put_functions(r, out, tools, some ? &allowed : NULL);
    nrd_names_fini(&allowed);
    return err;
}

/* ---- into the answer ---- */

/* NULL: the client knows the function by its own name. */
static const nrd_json *mark_of(const nrd_oai_request *r, const nrd_json *call)
{
    const char *name = nrd_json_get_str(nrd_json_get(call, "function"), "name", "");
    return r->resp.tools ? nrd_json_get(nrd_json_root(r->resp.tools), name) : NULL;
}

bool nrd_resp_is_custom(const nrd_oai_request *r, const nrd_json *call)
{
    return nrd_json_get_bool(mark_of(r, call), "custom", false);
}

void nrd_resp_put_name(nrd_str *o, const nrd_oai_request *r, const nrd_json *call)
{
    const nrd_json *mark = mark_of(r, call);

    nrd_oai_put_member(o, "name", nrd_json_get(mark ? mark : nrd_json_get(call, "function"), "name"));
    if (nrd_json_get_str(mark, "namespace", "")[0]) {
        nrd_oai_put_member(o, "namespace", nrd_json_get(mark, "namespace"));
    }
}

void nrd_resp_put_input(nrd_str *o, const nrd_json *call)
{
    const nrd_json *text = nrd_json_get(nrd_json_get(call, "function"), "arguments");
    nrd_json_doc *doc = NULL;

    nrd_error_free(nrd_json_parse(&doc, nrd_json_str(text, ""), nrd_json_is(text, NRD_JSON_STRING) ? text->n : 0, NULL));
    const nrd_json *input = doc ? nrd_json_get(nrd_json_root(doc), "input") : NULL;
    nrd_json_put(o, nrd_json_is(input, NRD_JSON_STRING) ? input : text, -1);
    nrd_json_doc_free(doc);
}
