/* SPDX-License-Identifier: Apache-2.0
 * Bodies of Ollama's /api/chat and /api/generate as those of /v1/chat/completions and /v1/completions.
 * Source: Ollama's API reference (chat, generate, the parameters of a Modelfile). */
#include "frontends/openai/internal.h"

#include <stdio.h>
#include <string.h>

/* Not absent, and not the empty value that clients send for that. */
static bool has_value(const nrd_json *v)
{
    return nrd_oai_given(v) && !((v->type == NRD_JSON_STRING || v->type == NRD_JSON_ARRAY) && v->n == 0);
}

static nrd_error *put_options(nrd_oai_request *r, nrd_str *out, const nrd_json *options)
{
    static const char *const names[][2] = {
        {"temperature", "temperature"}, {"top_k", "top_k"}, {"top_p", "top_p"}, {"min_p", "min_p"},
        {"seed", "seed"}, {"stop", "stop"}, {"repeat_penalty", "repetition_penalty"},
        {"presence_penalty", "presence_penalty"}, {"frequency_penalty", "frequency_penalty"}};
    /* how the machine is used, which is not a request's to say here */
    static const char *const without_effect[] = {"num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread",
                                                 "use_mmap", "use_mlock", "numa", "low_vram", "num_predict", NULL};
    const nrd_json *most = nrd_json_get(options, "num_predict");

    if (nrd_oai_given(options) && options->type != NRD_JSON_OBJECT) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "options", "must be an object");
    }
    for (size_t i = 0; i < nrd_json_len(options); i++) {
        const nrd_json *v = &options->child[i];
        size_t k = 0, w = 0;
        while (k < sizeof names / sizeof names[0] && strcmp(names[k][0], v->key) != 0) {
            k++;
        }
        while (without_effect[w] && strcmp(without_effect[w], v->key) != 0) {
            w++;
        }
        if (k < sizeof names / sizeof names[0]) {
            nrd_oai_put_member(out, names[k][1], v);
        } else if (!without_effect[w]) {
            nrd_oai_note_unknown(r, v);
        }
    }
    if (nrd_oai_given(most) && !(most->type == NRD_JSON_INT && (most->i == -1 || most->i == -2))) { /* those: no limit */
        nrd_oai_put_member(out, "max_tokens", most);
    } else if (!r->chat) { /* the other API has a small one there */
        nrd_oai_put_key(out, "max_tokens");
        nrd_str_put_i64(out, OAI_MAX_NEW_TOKENS);
    }
    return NULL;
}

static nrd_error *put_bound(nrd_str *out, const nrd_json *format)
{
    if (!has_value(format)) {
        return NULL;
    }
    if (format->type == NRD_JSON_OBJECT) {
        nrd_str_puts(out, ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{");
        nrd_oai_put_member(out, "schema", format);
        nrd_str_puts(out, "}}");
    } else if (!strcmp(nrd_json_str(format, ""), "json")) {
        nrd_str_puts(out, ",\"response_format\":{\"type\":\"json_object\"}");
    } else {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "format", "must be json or a JSON schema");
    }
    return NULL;
}

static nrd_error *put_think(nrd_str *out, const nrd_json *think)
{
    if (nrd_json_is(think, NRD_JSON_BOOL)) {
        nrd_str_printf(out, ",\"chat_template_kwargs\":{\"enable_thinking\":%s}", think->boolean ? "true" : "false");
    } else if (nrd_json_is(think, NRD_JSON_STRING)) {
        nrd_oai_put_member(out, "reasoning_effort", think);
    } else if (nrd_oai_given(think)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "think", "must be true, false, low, medium or high");
    }
    return NULL;
}

/* Log probabilities; of a text that is continued the other API has one number for both. */
static nrd_error *put_log_probs(const nrd_oai_request *r, nrd_str *out, const nrd_json *root)
{
    const nrd_json *top = nrd_json_get(root, "top_logprobs");
    bool asked = false;

    NRD_TRY(nrd_oai_get_bool(root, "logprobs", &asked));
    if (asked) {
        nrd_oai_put_key(out, "logprobs");
        nrd_str_puts(out, r->chat ? "true" : "");
        if (!r->chat && nrd_oai_given(top)) {
            nrd_json_put(out, top, -1);
        } else if (!r->chat) {
            nrd_str_putc(out, '0');
        } else if (nrd_oai_given(top)) {
            nrd_oai_put_member(out, "top_logprobs", top);
        }
    }
    return NULL;
}

static nrd_error *check_images(const nrd_oai_request *r, const nrd_json *images, const char *field)
{
    if (!nrd_oai_takes_pictures(r->model)) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, field, "this model takes text alone");
    }
    return nrd_json_is(images, NRD_JSON_ARRAY) ? NULL : nrd_oai_errorf(NRD_ERR_INVALID_ARG, field, "must be a list of pictures in base64");
}

/* The pictures of a message and then its text, as its content. */
static nrd_error *put_content(const nrd_oai_request *r, nrd_str *out, const nrd_json *text, const nrd_json *images, const char *field)
{
    NRD_TRY(check_images(r, images, field));
    nrd_oai_put_key(out, "content");
    nrd_str_putc(out, '[');
    for (size_t i = 0; i < images->n; i++) {
        NRD_TRY(nrd_oai_put_image_url(out, &images->child[i], field));
        nrd_str_putc(out, ',');
    }
    nrd_str_puts(out, "{\"type\":\"text\",\"text\":");
    if (nrd_json_is(text, NRD_JSON_STRING)) {
        nrd_json_put(out, text, -1);
    } else {
        nrd_str_puts(out, "\"\"");
    }
    nrd_str_puts(out, "}]");
    return NULL;
}

static nrd_error *put_turns(const nrd_oai_request *r, nrd_str *out, const nrd_json *messages)
{
    if (!nrd_json_is(messages, NRD_JSON_ARRAY) || messages->n == 0) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "messages", "must be a list with at least one message");
    }
    nrd_oai_put_key(out, "messages");
    nrd_str_putc(out, '[');
    for (size_t i = 0; i < messages->n; i++) {
        const nrd_json *m = &messages->child[i];
        const bool sees = has_value(nrd_json_get(m, "images"));
        char at[64];
        snprintf(at, sizeof at, "messages.%zu.images", i);
        nrd_str_puts(out, i ? ",{" : "{");
        if (sees) {
            NRD_TRY(put_content(r, out, nrd_json_get(m, "content"), nrd_json_get(m, "images"), at));
        }
        for (size_t k = 0; nrd_json_is(m, NRD_JSON_OBJECT) && k < m->n; k++) {
            const nrd_json *v = &m->child[k];
            if (strcmp(v->key, "images") != 0 && !(sees && !strcmp(v->key, "content"))) {
                nrd_oai_put_member(out, !strcmp(v->key, "thinking")    ? "reasoning_content"
                                        : !strcmp(v->key, "tool_name") ? "name"
                                                                       : v->key, v);
            }
        }
        nrd_str_putc(out, '}');
    }
    nrd_str_putc(out, ']');
    return NULL;
}

nrd_error *nrd_oai_ollama_find(nrd_openai *o, nrd_http_request *req, const nrd_json *name, nrd_oai_model **out)
{
    static const char latest[] = ":latest";
    if (!nrd_json_is(name, NRD_JSON_STRING)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "model", "must be the name of a model");
    }
    nrd_error *err = nrd_oai_find_model(o, name->str, out);
    if (err && nrd_error_get_code(err) == NRD_ERR_NOT_FOUND && nrd_str_has_suffix(name->str, latest)) {
        char *bare = strndup(name->str, name->n - (sizeof latest - 1));
        nrd_error *other = bare ? nrd_oai_find_model(o, bare, out) : nrd_error_no_memory();
        free(bare);
        nrd_error_free(other ? other : err);
        err = other ? err : NULL;
    }
    if (err && req && nrd_error_get_code(err) == NRD_ERR_NOT_FOUND) { /* whatever it is called */
        nrd_error_free(err);
        err = nrd_oai_find_asked(o, req, name->str, out);
    }
    return err;
}

/* What both have. */
static nrd_error *put_common(nrd_oai_request *r, nrd_str *out, const nrd_json *root)
{
    static const char *const special[] = {"messages", "prompt", "options", "format", "think", "system", "template", "raw",
                                          "images", "suffix", "context", "keep_alive", "stream", "logprobs",
                                          "top_logprobs",
                                          /* without effect: what is too long is an error */
                                          "truncate", "shift", NULL};
    static const char *const unknown[] = {"n", "best_of", "echo", "stream_options",
                                          "return_timings", "return_token_ids", "prompt_logprobs", "return_tokens_as_token_ids", "truncate_prompt_tokens", "add_special_tokens", "include_reasoning", "reasoning_format", "separate_reasoning", "max_tokens", "max_completion_tokens", "stop", "response_format",
                                          "chat_template_kwargs", "reasoning_effort", NULL};
    NRD_TRY(put_options(r, out, nrd_json_get(root, "options")));
    NRD_TRY(put_bound(out, nrd_json_get(root, "format")));
    NRD_TRY(put_log_probs(r, out, root));
    if (r->chat) {
        NRD_TRY(put_think(out, nrd_json_get(root, "think")));
    }
    const nrd_json *stream = nrd_json_get(root, "stream");
    if (nrd_oai_given(stream)) {
        nrd_oai_put_member(out, "stream", stream);
    } else {
        nrd_str_puts(out, ",\"stream\":true");
    }
    nrd_oai_put_rest(r, out, root, special, unknown);
    return NULL;
}

nrd_error *nrd_oai_ollama_chat(nrd_oai_request *r, const nrd_json *root, nrd_str *out)
{
    NRD_TRY(nrd_oai_ollama_find(r->o, r->req, nrd_json_get(root, "model"), &r->model));
    NRD_TRY(put_turns(r, out, nrd_json_get(root, "messages")));
    return put_common(r, out, root);
}

nrd_error *nrd_oai_ollama_generate(nrd_oai_request *r, const nrd_json *root, nrd_str *out)
{
    static const char *const refused[][2] = {
        {"template", "a request cannot bring its own template"},
        {"context", "send the conversation to /api/chat"}};
    const nrd_json *prompt = nrd_json_get(root, "prompt"), *system = nrd_json_get(root, "system");
    const nrd_json *suffix = nrd_json_get(root, "suffix");

    NRD_TRY(nrd_oai_ollama_find(r->o, r->req, nrd_json_get(root, "model"), &r->model));
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (has_value(nrd_json_get(root, refused[i][0]))) {
            return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, refused[i][0], "%s", refused[i][1]);
        }
    }
    const bool sees = has_value(nrd_json_get(root, "images"));
    if (!nrd_json_is(prompt, NRD_JSON_STRING)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "prompt", "must be a string");
    }
    if (nrd_oai_given(system) && system->type != NRD_JSON_STRING) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "system", "must be a string");
    }
    if (sees) {
        NRD_TRY(check_images(r, nrd_json_get(root, "images"), "images"));
    }
    bool raw = false;
    NRD_TRY(nrd_oai_get_bool(root, "raw", &raw));
    r->chat = r->model->chat && !raw && !has_value(suffix);
    if (r->chat) {
        nrd_oai_put_key(out, "messages");
        nrd_str_putc(out, '[');
        if (has_value(system)) {
            nrd_str_puts(out, "{\"role\":\"system\"");
            nrd_oai_put_member(out, "content", system);
            nrd_str_puts(out, "},");
        }
        nrd_str_puts(out, "{\"role\":\"user\"");
        if (sees) {
            NRD_TRY(put_content(r, out, prompt, nrd_json_get(root, "images"), "images"));
        } else {
            nrd_oai_put_member(out, "content", prompt);
        }
        nrd_str_puts(out, "}]");
    } else if (sees) {
        return nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "images", "pictures go with a chat template, not beside raw or suffix");
    } else {
        nrd_oai_put_member(out, "prompt", prompt);
        if (has_value(suffix)) {
            nrd_oai_put_member(out, "suffix", suffix);
        }
    }
    return put_common(r, out, root);
}
