/* SPDX-License-Identifier: Apache-2.0
 * How long an answer may reason before it must come to its point: the fields of several APIs that say so, and what the
 * model is told. What it does then is in engine/decode/reasoning.c.
 * Sources: vLLM's thinking_token_budget, llama.cpp's reasoning_budget_tokens, SGLang's thinking_budget, Anthropic's
 * thinking.budget_tokens, OpenRouter's reasoning.max_tokens, OpenAI's reasoning_effort. */
#include "frontends/openai/internal.h"

#include <string.h>

static const char think[] = "<think>", end_think[] = "</think>", close_think[] = "\n</think>\n\n";
static const char harmony_think[] = "<|channel|>analysis<|message|>", harmony_end[] = "<|end|>",
                  harmony_close[] = "<|end|><|start|>assistant" NRD_HARMONY_FINAL;

/* ---- the budget ---- */

/* Tokens of the efforts that OpenAI has names for, as Google's Gemini takes them; what is not here has no limit. */
static const struct {
    const char *effort;
    int64_t budget;
} efforts[] = {{"none", 0}, {"minimal", 512}, {"low", 1024}, {"medium", 8192}, {"high", 24576}};

static bool template_has(const nrd_oai_request *r, const char *word)
{
    const char *text = nrd_tokenizer_chat_template(r->model->tokenizer);
    return text && strstr(text, word);
}

/* The field (of an object, or of the body) with a number of tokens; -1 is no limit, as is a missing one. */
static nrd_error *read_one(const nrd_json *in, const char *name, const char *field, int64_t *out)
{
    const nrd_json *v = nrd_json_get(in, name);
    if (!nrd_oai_given(v)) {
        return NULL;
    }
    if (v->type != NRD_JSON_INT || v->i < -1 || v->i > OAI_MAX_NEW_TOKENS) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a number of tokens from 0 to %d, or -1: no limit", OAI_MAX_NEW_TOKENS);
    }
    *out = v->i;
    return NULL;
}

const char *nrd_oai_effort(const nrd_json *root)
{
    const nrd_json *v = nrd_json_get(root, "reasoning_effort");
    v = nrd_oai_given(v) ? v : nrd_json_get(nrd_json_get(root, "reasoning"), "effort");
    return nrd_json_is(v, NRD_JSON_STRING) ? v->str : NULL;
}

bool nrd_oai_thinks_not(const nrd_json *root)
{
    const char *effort = nrd_oai_effort(root);
    const nrd_json *enabled = nrd_json_get(nrd_json_get(root, "reasoning"), "enabled");
    return (effort && !strcmp(effort, "none")) || (nrd_json_is(enabled, NRD_JSON_BOOL) && !enabled->boolean) ||
           !strcmp(nrd_json_get_str(nrd_json_get(root, "thinking"), "type", ""), "disabled");
}

nrd_error *nrd_oai_read_budget(const nrd_oai_request *r, const nrd_json *root, int64_t *out)
{
    static const char *const fields[] = {"thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget"};
    const nrd_json *reasoning = nrd_json_get(root, "reasoning"), *thinking = nrd_json_get(root, "thinking");
    const char *effort = nrd_oai_effort(root);

    *out = -1;
    for (size_t i = 0; effort && !template_has(r, "reasoning_effort") && i < sizeof efforts / sizeof efforts[0]; i++) {
        *out = strcmp(effort, efforts[i].effort) == 0 ? efforts[i].budget : *out;
    }
    *out = nrd_oai_thinks_not(root) ? 0 : *out;
    NRD_TRY(nrd_oai_check_object(reasoning, "reasoning"));
    NRD_TRY(nrd_oai_check_object(thinking, "thinking"));
    NRD_TRY(nrd_oai_check_string(nrd_json_get(root, "reasoning_effort"), "reasoning_effort"));
    NRD_TRY(nrd_oai_check_string(nrd_json_get(reasoning, "effort"), "reasoning.effort"));
    NRD_TRY(nrd_oai_check_string(nrd_json_get(thinking, "type"), "thinking.type"));
    NRD_TRY(read_one(nrd_json_get(root, "chat_template_kwargs"), "thinking_budget", "chat_template_kwargs.thinking_budget", out));
    NRD_TRY(read_one(reasoning, "max_tokens", "reasoning.max_tokens", out));
    NRD_TRY(read_one(thinking, "budget_tokens", "thinking.budget_tokens", out));
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        NRD_TRY(read_one(root, fields[i], fields[i], out));
    }
    return NULL;
}

/* ---- where an answer has it ---- */

nrd_error *nrd_oai_read_reasoning_place(nrd_oai_request *r, const nrd_json *root)
{
    const nrd_json *format = nrd_json_get(root, "reasoning_format");
    const char *word = nrd_json_str(format, "");
    bool included = true, separate = true;

    NRD_TRY(nrd_oai_get_bool(root, "include_reasoning", &included));
    NRD_TRY(nrd_oai_get_bool(root, "separate_reasoning", &separate));
    if (nrd_oai_given(format) && strcmp(word, "auto") != 0 && strcmp(word, "deepseek") != 0 && strcmp(word, "none") != 0) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "reasoning_format", "must be auto, deepseek or none");
    }
    r->hide_reasoning = !included;
    r->reasoning_in_content = !separate || !strcmp(word, "none");
    if (r->reasoning_in_content && r->hide_reasoning) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "include_reasoning", "must be true where the reasoning stays in the content");
    }
    if (r->reasoning_in_content && r->model->is_harmony) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, separate ? "reasoning_format" : "separate_reasoning",
                              "this model's reasoning is a message of its own");
    }
    return NULL;
}

/* ---- what the model is told ---- */

static nrd_error *put_mark(nrd_oai_request *r, const char *name, const char *text)
{
    nrd_ids ids = {0};
    nrd_error *err = nrd_tokenizer_encode(r->model->tokenizer, text, strlen(text), NRD_ENCODE_PARSE_SPECIAL, &ids);

    nrd_str_printf(&r->reasoning, ",\"%s\":[", name);
    for (size_t i = 0; i < ids.n; i++) {
        nrd_str_printf(&r->reasoning, i ? ",%d" : "%d", ids.ids[i]);
    }
    nrd_str_putc(&r->reasoning, ']');
    err = err ? err : nrd_ids_error(&ids);
    nrd_ids_fini(&ids);
    return err;
}

/* Blanks around the mark are what models write, where the tokenizer keeps the mark apart from them. */
static const char *closing(const nrd_oai_request *r)
{
    const nrd_tokenizer *t = r->model->tokenizer;
    nrd_ids mark = {0}, all = {0};
    bool apart = false;
    nrd_error *err = nrd_tokenizer_encode(t, end_think, sizeof end_think - 1, NRD_ENCODE_PARSE_SPECIAL, &mark);

    err = err ? err : nrd_tokenizer_encode(t, close_think, sizeof close_think - 1, NRD_ENCODE_PARSE_SPECIAL, &all);
    for (size_t i = 0; !err && mark.n > 0 && i + mark.n <= all.n; i++) {
        apart = apart || memcmp(all.ids + i, mark.ids, mark.n * sizeof *mark.ids) == 0;
    }
    nrd_error_free(err);
    nrd_ids_fini(&mark);
    nrd_ids_fini(&all);
    return apart ? close_think : end_think;
}

nrd_error *nrd_oai_keep_budget(nrd_oai_request *r, int64_t budget, nrd_str *prompt)
{
    const bool is_harmony = r->model->is_harmony;

    if (budget == 0 && r->think_open) {
        nrd_str_puts(prompt, close_think);
        r->think_open = false;
    }
    if (budget < 0 || r->guide_type) { /* the engine counts no budget beside a guide */
        return nrd_str_error(prompt);
    }
    nrd_str_printf(&r->reasoning, "{\"budget\":%lld,\"open\":%s", (long long)budget, r->think_open ? "true" : "false");
    NRD_TRY(put_mark(r, "begin", is_harmony ? harmony_think : think));
    NRD_TRY(put_mark(r, "end", is_harmony ? harmony_end : end_think));
    NRD_TRY(put_mark(r, "close", is_harmony ? harmony_close : closing(r)));
    nrd_str_putc(&r->reasoning, '}');
    nrd_error *err = nrd_str_error(&r->reasoning);
    return err ? err : nrd_str_error(prompt);
}
