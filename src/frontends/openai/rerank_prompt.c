/* SPDX-License-Identifier: Apache-2.0
 * Prompts of rerankers that say yes or no. Qwen3-Reranker's is the one that its authors publish with the model; another
 * model's is what its chat template makes of a message of the role "query" and one of the role "document", as
 * sentence-transformers has it. */
#include "frontends/openai/pooled.h"

#include <string.h>

static const char qwen_before[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    "Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
static const char qwen_behind[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
static const char qwen_task[] = "Given a web search query, retrieve relevant passages that answer the query";

static nrd_error *encode(const nrd_pooled *r, const char *s, size_t n, nrd_ids *out)
{
    NRD_TRY(nrd_oai_check_prompt(r->model, n, "documents"));
    return nrd_tokenizer_encode(r->model->tokenizer, s, n, NRD_ENCODE_PARSE_SPECIAL, out);
}

static nrd_error *too_long(size_t limit, size_t least)
{
    return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "truncate_prompt_tokens", "must leave room for the %zu tokens around query and "
                          "document, got %zu", least, limit);
}

/* What does not fit is cut off the document's end. */
static nrd_error *qwen(nrd_pooled *r, const nrd_rerank_texts *t, size_t limit, nrd_pooled_input *in)
{
    nrd_ids body = {0}, behind = {0};
    nrd_str text = {0};
    nrd_error *err = NULL;

    nrd_str_puts(&text, "<Instruct>: ");
    if (t->task) {
        nrd_str_append(&text, t->task->str, t->task->n);
    } else {
        nrd_str_puts(&text, qwen_task);
    }
    nrd_str_puts(&text, "\n<Query>: ");
    nrd_str_append(&text, t->query->str, t->query->n);
    nrd_str_puts(&text, "\n<Document>: ");
    nrd_str_append(&text, t->document->str, t->document->n);
    NRD_TRY_GOTO(nrd_str_error(&text), err, done);
    NRD_TRY_GOTO(encode(r, text.data, text.len, &body), err, done);
    NRD_TRY_GOTO(encode(r, qwen_behind, sizeof qwen_behind - 1, &behind), err, done);
    NRD_TRY_GOTO(encode(r, qwen_before, sizeof qwen_before - 1, &in->ids), err, done);
    const size_t around = in->ids.n + behind.n;
    if (limit > 0 && limit <= around) {
        err = too_long(limit, around);
        goto done;
    }
    body.n = limit > 0 && body.n > limit - around ? limit - around : body.n;
    nrd_ids_append(&in->ids, body.ids, body.n);
    nrd_ids_append(&in->ids, behind.ids, behind.n);
    err = nrd_ids_error(&in->ids);
done:
    nrd_ids_fini(&body);
    nrd_ids_fini(&behind);
    nrd_str_fini(&text);
    return err;
}

static void put_message(nrd_str *o, const char *role, const nrd_json *text)
{
    nrd_str_printf(o, "{\"role\":\"%s\",\"content\":", role);
    nrd_json_put_string(o, text->str, text->n);
    nrd_str_putc(o, '}');
}

static nrd_error *by_template(nrd_pooled *r, const nrd_rerank_texts *t, size_t limit, nrd_pooled_input *in)
{
    nrd_json_doc *messages = NULL;
    nrd_str text = {0};
    nrd_error *err = NULL;

    if (!r->model->chat) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "model", "'%.80s' says yes or no and has no chat template to ask it with",
                              r->model->name);
    }
    if (limit > 0 || t->task) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, limit > 0 ? "truncate_prompt_tokens" : "instruction",
                              "does not go with a chat template");
    }
    nrd_str_putc(&text, '[');
    put_message(&text, "query", t->query);
    nrd_str_putc(&text, ',');
    put_message(&text, "document", t->document);
    nrd_str_putc(&text, ']');
    NRD_TRY_GOTO(nrd_str_error(&text), err, done);
    NRD_TRY_GOTO(nrd_json_parse(&messages, text.data, text.len, NULL), err, done);
    nrd_str_clear(&text);
    const nrd_chat_input chat = {.messages = nrd_json_root(messages)};
    NRD_TRY_GOTO(nrd_error_at(nrd_chat_render(r->model->chat, &chat, &text), "documents"), err, done);
    err = encode(r, nrd_str_cstr(&text), text.len, &in->ids);
done:
    nrd_json_doc_free(messages);
    nrd_str_fini(&text);
    return err;
}

/* Clients of vLLM write Qwen's prompt themselves, in two halves. */
static bool is_ready(const nrd_json *query)
{
    return memmem(query->str, query->n, "<|im_start|>", 12) != NULL;
}

nrd_error *nrd_pooled_frame_prompt(nrd_pooled *r, const nrd_rerank_texts *t, size_t limit, nrd_pooled_input *in)
{
    nrd_ids a = {0}, b = {0};
    nrd_error *err;

    if (strcmp(r->model->prompt, "qwen3") != 0) {
        return by_template(r, t, limit, in);
    }
    if (!is_ready(t->query)) {
        return qwen(r, t, limit, in);
    }
    err = nrd_pooled_encode(r, t->query, "query", &a);
    err = err ? err : nrd_pooled_encode(r, t->document, "documents", &b);
    err = err ? err : nrd_pooled_frame(r, &a, &b, limit, in);
    nrd_ids_fini(&a);
    nrd_ids_fini(&b);
    return err;
}
