/* SPDX-License-Identifier: Apache-2.0
 * POST /tokenize {model, prompt | messages, add_special_tokens, add_generation_prompt} and
 * POST /detokenize {model, tokens}, as vLLM has them. */
#include "frontends/openai/internal.h"

#include <string.h>

static nrd_error *tokenize(nrd_oai_question *q)
{
    const nrd_json *root = nrd_json_root(q->doc);
    nrd_str *out = &q->out;
    const nrd_json *prompt = nrd_json_get(root, "prompt"), *messages = nrd_json_get(root, "messages");
    nrd_oai_model *m = NULL;
    nrd_ids ids = {0};
    nrd_str text = {0};
    nrd_error *err = NULL;

    NRD_TRY(nrd_oai_find_model(q->o, nrd_json_get_str(root, "model", ""), &m));
    if (messages) {
        if (!m->chat) {
            err = nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "messages", "%s", m->chat_error);
            goto done;
        }
        const nrd_chat_input in = {
            .messages = messages,
            .tools = nrd_json_get(root, "tools"),
            .variables = nrd_json_get(root, "chat_template_kwargs"),
            .add_generation_prompt = nrd_json_get_bool(root, "add_generation_prompt", true)};
        NRD_TRY_GOTO(nrd_chat_render(m->chat, &in, &text), err, done);
        NRD_TRY_GOTO(nrd_tokenizer_encode(m->tokenizer, nrd_str_cstr(&text), text.len,
                                          NRD_ENCODE_PARSE_SPECIAL, &ids), err, done);
    } else if (nrd_json_is(prompt, NRD_JSON_STRING)) {
        uint32_t flags = NRD_ENCODE_PARSE_SPECIAL;
        flags |= nrd_json_get_bool(root, "add_special_tokens", true) ? NRD_ENCODE_ADD_SPECIAL : 0;
        NRD_TRY_GOTO(nrd_tokenizer_encode(m->tokenizer, prompt->str, prompt->n, flags, &ids), err,
                     done);
    } else {
        err = nrd_oai_errorf(NRD_ERR_INVALID_ARG, "prompt", "must be a string, or give messages");
        goto done;
    }
    nrd_str_printf(out, "{\"count\":%zu,\"tokens\":[", ids.n);
    for (size_t i = 0; i < ids.n; i++) {
        nrd_str_printf(out, i ? ",%d" : "%d", ids.ids[i]);
    }
    nrd_str_puts(out, "]}");
done:
    nrd_oai_model_unref(m);
    nrd_ids_fini(&ids);
    nrd_str_fini(&text);
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
    NRD_TRY(nrd_oai_find_model(q->o, nrd_json_get_str(root, "model", ""), &m));
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
    nrd_str_puts(out, "{\"prompt\":");
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
