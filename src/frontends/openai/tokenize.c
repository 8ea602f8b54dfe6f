/* SPDX-License-Identifier: Apache-2.0
 * POST /tokenize and /detokenize, as vLLM and llama.cpp have them: {prompt or messages, add_special_tokens,
 * return_token_strs} is vLLM's, {content, add_special, parse_special, with_pieces} llama.cpp's. The model may
 * be left out where one is served. */
#include "frontends/openai/internal.h"

#include "base/utf8.h"

#include <string.h>

static nrd_error *read_messages(nrd_oai_question *q, nrd_oai_model *m, nrd_ids *ids)
{
    nrd_str text = {0};
    nrd_error *err = nrd_oai_question_prompt(q, m, &text);

    err = err ? err : nrd_tokenizer_encode(m->tokenizer, nrd_str_cstr(&text), text.len, NRD_ENCODE_PARSE_SPECIAL, ids);
    nrd_str_fini(&text);
    return err;
}

static nrd_error *read_text(nrd_oai_question *q, nrd_oai_model *m, nrd_ids *ids)
{
    const nrd_json *root = nrd_json_root(q->doc);
    const nrd_json *content = nrd_json_get(root, "content"), *prompt = nrd_json_get(root, "prompt");
    bool add = !content, parse = true;

    NRD_TRY(nrd_oai_get_bool(root, content ? "add_special" : "add_special_tokens", &add));
    NRD_TRY(nrd_oai_get_bool(root, "parse_special", &parse));
    const uint32_t how = (add ? NRD_ENCODE_ADD_SPECIAL : 0) | (parse || !content ? NRD_ENCODE_PARSE_SPECIAL : 0);
    if (content) {
        return nrd_oai_mixed_ids(m, content, "content", how, ids);
    }
    if (nrd_json_get(root, "messages")) {
        return read_messages(q, m, ids);
    }
    if (nrd_json_is(prompt, NRD_JSON_STRING)) {
        return nrd_tokenizer_encode(m->tokenizer, prompt->str, prompt->n, how, ids);
    }
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "prompt", "must be a string, or give messages, or content");
}

static bool is_text(const char *s, size_t n)
{
    uint32_t cp = 0;
    for (size_t i = 0; i < n && cp != NRD_UTF8_BAD;) {
        i += nrd_utf8_next(s + i, n - i, &cp);
    }
    return cp != NRD_UTF8_BAD;
}

/* The text of a token; bytes that are no text by themselves come as numbers. */
static void put_piece(nrd_str *out, const nrd_oai_model *m, int32_t id)
{
    size_t n = 0;
    const char *s = nrd_tokenizer_token_bytes(m->tokenizer, id, &n);
    if (!s || n == 0) { /* special tokens have their written form */
        s = nrd_tokenizer_token(m->tokenizer, id, &n);
    }
    if (s && is_text(s, n)) {
        nrd_json_put_string(out, s, n);
        return;
    }
    for (size_t i = 0; s && i < n; i++) {
        nrd_str_printf(out, i ? ",%d" : "[%d", (int)(unsigned char)s[i]);
    }
    nrd_str_puts(out, s && n ? "]" : "[]");
}

static nrd_error *tokenize(nrd_oai_question *q)
{
    const nrd_json *root = nrd_json_root(q->doc);
    bool pieces = false, strings = false;
    nrd_str *out = &q->out;
    nrd_oai_model *m = NULL;
    nrd_ids ids = {0};

    NRD_TRY(nrd_oai_get_bool(root, "with_pieces", &pieces));
    NRD_TRY(nrd_oai_get_bool(root, "return_token_strs", &strings));
    NRD_TRY(nrd_oai_find_only(q->o, q->req, nrd_json_get(root, "model"), &m));
    nrd_error *err = read_text(q, m, &ids);
    nrd_str_printf(out, "{\"count\":%zu,\"tokens\":[", ids.n);
    for (size_t i = 0; i < ids.n; i++) {
        nrd_str_printf(out, pieces ? "%s{\"id\":%d" : "%s%d", i ? "," : "", ids.ids[i]);
        if (pieces) {
            nrd_str_puts(out, ",\"piece\":");
            put_piece(out, m, ids.ids[i]);
            nrd_str_putc(out, '}');
        }
    }
    nrd_str_putc(out, ']');
    if (strings) {
        nrd_str_puts(out, ",\"token_strs\":[");
        for (size_t i = 0; i < ids.n; i++) {
            size_t n = 0;
            const char *s = nrd_tokenizer_token(m->tokenizer, ids.ids[i], &n);
            nrd_str_puts(out, i ? "," : "");
            nrd_json_put_string(out, s ? s : "", s ? n : 0);
        }
        nrd_str_putc(out, ']');
    }
    nrd_str_putc(out, '}');
    nrd_oai_model_unref(m);
    nrd_ids_fini(&ids);
    return err;
}

static nrd_error *detokenize(nrd_oai_question *q)
{
    const nrd_json *root = nrd_json_root(q->doc);
    nrd_str *out = &q->out;
    const nrd_json *tokens = nrd_json_get(root, "tokens");
    nrd_oai_model *m = NULL;
    nrd_ids ids = {0};
    nrd_str text = {0};

    if (!nrd_json_is(tokens, NRD_JSON_ARRAY)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tokens", "must be a list of token ids");
    }
    NRD_TRY(nrd_oai_find_only(q->o, q->req, nrd_json_get(root, "model"), &m));
    for (size_t i = 0; i < tokens->n; i++) {
        int64_t id = nrd_json_int(&tokens->child[i], -1);
        if (id < 0 || id >= nrd_tokenizer_vocab_size(m->tokenizer)) {
            nrd_ids_fini(&ids);
            nrd_oai_model_unref(m);
            return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "tokens", "element %zu is no id of this model", i);
        }
        nrd_ids_push(&ids, (int32_t)id);
    }
    nrd_error *err = nrd_ids_error(&ids);
    nrd_tokenizer_decode(m->tokenizer, ids.ids, ids.n, 0, &text);
    err = err ? err : nrd_str_error(&text);
    nrd_str_puts(out, "{\"prompt\":"); /* vLLM's word, and llama.cpp's */
    nrd_json_put_string(out, nrd_str_cstr(&text), text.len);
    nrd_str_puts(out, ",\"content\":");
    nrd_json_put_string(out, nrd_str_cstr(&text), text.len);
    nrd_str_putc(out, '}');
    nrd_oai_model_unref(m);
    nrd_ids_fini(&ids);
    nrd_str_fini(&text);
    return err;
}

void nrd_oai_on_tokenize(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, tokenize);
}

void nrd_oai_on_detokenize(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, detokenize);
}
