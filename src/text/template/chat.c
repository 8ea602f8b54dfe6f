/* SPDX-License-Identifier: Apache-2.0
 * Puts the variables of a conversation together (messages, tools, special tokens) and renders the
 * model's template with them. */
#include "text/template/chat.h"

#include "base/mem.h"

#include <string.h>

struct nrd_chat {
    const nrd_tokenizer *t;
    nrd_template *plain, *with_tools; /* with_tools: NULL where the model has one template */
};

void nrd_chat_free(nrd_chat *c)
{
    if (c) {
        nrd_template_free(c->plain);
        nrd_template_free(c->with_tools);
        free(c);
    }
}

/* Gemma 3's template marks a picture's place with one word, and its processor writes more there before the prompt is
 * encoded: empty lines around it, the word of the picture's tokens, an end. Here the template writes it all, so that words
 * which users write stay theirs. */
static const char gemma_mark[] = "<start_of_image>";
static const char gemma_picture[] = "\n\n<start_of_image><image_soft_token><end_of_image>\n\n";

static bool has_gemma_pictures(const nrd_tokenizer *t)
{
    static const char *const words[] = {"<start_of_image>", "<image_soft_token>", "<end_of_image>"};
    bool all = true;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        all = all && nrd_tokenizer_token_id(t, words[i], strlen(words[i])) >= 0;
    }
    return all;
}

static nrd_error *compile(nrd_template **out, const nrd_tokenizer *t, const char *text)
{
    nrd_str whole = {0};
    nrd_error *err = NULL;

    if (has_gemma_pictures(t) && !strstr(text, "<image_soft_token>")) {
        for (const char *p; (p = strstr(text, gemma_mark)) != NULL; text = p + sizeof gemma_mark - 1) {
            nrd_str_append(&whole, text, (size_t)(p - text));
            nrd_str_puts(&whole, gemma_picture);
        }
    }
    nrd_str_puts(&whole, text);
    err = nrd_str_error(&whole);
    err = err ? err : nrd_template_compile(out, nrd_str_cstr(&whole), whole.len);
    nrd_str_fini(&whole);
    return err;
}

nrd_error *nrd_chat_open(nrd_chat **out, const nrd_tokenizer *t, const char *override)
{
    const char *text = override ? override : nrd_tokenizer_chat_template(t);
    const char *tools = override ? NULL : nrd_tokenizer_tool_template(t);
    nrd_error *err = NULL;
    nrd_chat *c = NULL;

    *out = NULL;
    if (!text) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "the model has no chat template; --chat-template takes a file, or one of " NRD_CHAT_TEMPLATE_NAMES);
    }
    NRD_NEW_GOTO(c, 1, err, fail);
    c->t = t;
    NRD_TRY_GOTO(compile(&c->plain, t, text), err, fail);
    if (tools) {
        NRD_TRY_GOTO(compile(&c->with_tools, t, tools), err, fail);
    }
    *out = c;
    return NULL;

fail:
    nrd_chat_free(c);
    return nrd_error_wrap(err, "chat template");
}

bool nrd_chat_takes_tools(const nrd_chat *c)
{
    return c->with_tools || nrd_template_mentions(c->plain, "tools");
}

/* Variables are put together as JSON text: it happens once a request and keeps one owner. */
static void put_token(nrd_str *o, const nrd_tokenizer *t, const char *name, int32_t id)
{
    size_t n;
    const char *s = id >= 0 ? nrd_tokenizer_token(t, id, &n) : NULL;
    if (s) {
        nrd_str_printf(o, "\"%s\":", name);
        nrd_json_put_string(o, s, n);
        nrd_str_putc(o, ',');
    }
}

static void put_member(nrd_str *o, bool *first, const char *key, size_t key_n, const nrd_json *value)
{
    nrd_str_puts(o, *first ? "" : ",");
    *first = false;
    nrd_json_put_string(o, key, key_n);
    nrd_str_putc(o, ':');
    nrd_json_put(o, value, -1);
}

static nrd_error *put_message(nrd_str *o, const nrd_json *m, size_t index)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const nrd_json *reasoning = NULL;
    bool first = true;

    if (!nrd_json_is(m, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "messages[%zu] is no object", index);
    }
    for (int i = 0; i < 3 && !reasoning; i++) {
        const nrd_json *v = nrd_json_get(m, names[i]);
        reasoning = v && v->type != NRD_JSON_NULL ? v : NULL;
    }
    nrd_str_putc(o, '{');
    if (reasoning && !nrd_json_get(m, "thinking")) {
        put_member(o, &first, "thinking", 8, reasoning);
    }
    for (size_t i = 0; i < m->n; i++) {
        const nrd_json *v = &m->child[i];
        if (v->type != NRD_JSON_NULL && strcmp(v->key, "reasoning_content") != 0) {
            put_member(o, &first, v->key, v->key_len, v);
        }
    }
    if (reasoning) {
        put_member(o, &first, "reasoning_content", 17, reasoning);
    }
    nrd_str_putc(o, '}');
    return NULL;
}

static void put_or_null(nrd_str *o, const char *name, const nrd_json *v)
{
    nrd_str_printf(o, "\"%s\":", name);
    if (v) {
        nrd_json_put(o, v, -1);
    } else {
        nrd_str_puts(o, "null");
    }
    nrd_str_putc(o, ',');
}

static nrd_error *put_variables(nrd_str *o, const nrd_chat *c, const nrd_chat_input *in)
{
    bool first = true;
    nrd_str_putc(o, '{');
    put_token(o, c->t, "bos_token", nrd_tokenizer_bos_id(c->t));
    put_token(o, c->t, "eos_token", nrd_tokenizer_eos_id(c->t));
    put_token(o, c->t, "pad_token", nrd_tokenizer_pad_id(c->t));
    put_token(o, c->t, "unk_token", nrd_tokenizer_unk_id(c->t));
    put_or_null(o, "tools", in->tools);
    put_or_null(o, "documents", in->documents);
    for (size_t i = 0; i < nrd_json_len(in->variables); i++) {
        const nrd_json *v = &in->variables->child[i];
        if (v->key && strcmp(v->key, "messages") != 0 && strcmp(v->key, "tools") != 0) {
            first = true;
            put_member(o, &first, v->key, v->key_len, v);
            nrd_str_putc(o, ',');
        }
    }
    nrd_str_printf(o, "\"add_generation_prompt\":%s,\"messages\":[",
                   in->add_generation_prompt ? "true" : "false");
    for (size_t i = 0; i < in->messages->n; i++) {
        nrd_str_puts(o, i ? "," : "");
        NRD_TRY(put_message(o, &in->messages->child[i], i));
    }
    nrd_str_puts(o, "]}");
    return NULL;
}

nrd_error *nrd_chat_render(const nrd_chat *c, const nrd_chat_input *in, nrd_str *out)
{
    nrd_str vars = {0};
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;

    if (!nrd_json_is(in->messages, NRD_JSON_ARRAY) || in->messages->n == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "messages must be a list with at least one message");
    }
    NRD_TRY_GOTO(put_variables(&vars, c, in), err, done);
    NRD_TRY_GOTO(nrd_str_error(&vars), err, done);
    NRD_TRY_GOTO(nrd_json_parse(&doc, nrd_str_cstr(&vars), vars.len, NULL), err, done);
    err = nrd_template_render(in->tools && c->with_tools ? c->with_tools : c->plain,
                              nrd_json_root(doc), in->now, NULL, out);
done:
    nrd_json_doc_free(doc);
    nrd_str_fini(&vars);
    return err;
}
