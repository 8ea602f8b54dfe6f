/* SPDX-License-Identifier: Apache-2.0
 * Answers of /v1/responses: the items that a model wrote, and the object around them.
 * Source: OpenAI's API reference (the response object). */
#include "frontends/openai/responses.h"

#include <string.h>

bool nrd_resp_has_message(const nrd_oai_parsed *p)
{
    return p->n_content > 0 || (p->n_calls == 0 && p->n_reasoning == 0);
}

/* Time that is over has no word: it is a number of tokens that was asked for. */
const char *nrd_resp_status(const nrd_oai_choice *c)
{
    return !strcmp(c->finish, "length") ? "incomplete" : "completed";
}

/* ---- items ---- */

/* Whether token i stands before the text of the message: it is the reasoning's, or a mark. */
static bool is_before_content(const nrd_resp_parts *p, size_t i)
{
    const nrd_oai_choice *c = p->c;
    if (!c->harmony) {
        return c->offsets[i] < (size_t)(p->spans.content - nrd_str_cstr(&c->text));
    }
    return (i + 1 < c->n_log_probs ? c->offsets[i + 1] : c->text.len) == 0;
}

void nrd_resp_put_log_probs(nrd_str *o, const nrd_resp_parts *p, size_t from)
{
    const nrd_oai_choice *c = p->c;
    while (from < c->n_log_probs && is_before_content(p, from)) {
        from++;
    }
    if (c->r->log_probs) {
        nrd_oai_put_log_probs(o, c, from, false);
    } else {
        nrd_str_puts(o, "[]");
    }
}

static void put_reasoning(nrd_str *o, const nrd_resp_parts *p, bool begun)
{
    nrd_str_puts(o, ",\"summary\":[],\"content\":[");
    if (!begun) {
        nrd_str_puts(o, "{\"type\":\"reasoning_text\",\"text\":");
        nrd_json_put_string(o, p->spans.reasoning, p->spans.n_reasoning);
        nrd_str_putc(o, '}');
    }
    nrd_str_putc(o, ']');
}

static void put_message(nrd_str *o, const nrd_resp_parts *p, bool begun)
{
    nrd_str_puts(o, ",\"role\":\"assistant\",\"content\":[");
    if (!begun) {
        nrd_str_puts(o, "{\"type\":\"output_text\",\"text\":");
        nrd_json_put_string(o, p->spans.content, p->spans.n_content);
        nrd_str_puts(o, ",\"annotations\":[],\"logprobs\":");
        nrd_resp_put_log_probs(o, p, 0);
        nrd_str_putc(o, '}');
    }
    nrd_str_putc(o, ']');
}

static void put_call(nrd_str *o, const nrd_oai_request *r, const nrd_json *call, bool begun)
{
    const bool custom = nrd_resp_is_custom(r, call);

    nrd_str_puts(o, ",\"call_id\":");
    nrd_json_put(o, nrd_json_get(call, "id"), -1);
    nrd_resp_put_name(o, r, call);
    nrd_oai_put_key(o, custom ? "input" : "arguments");
    if (begun) {
        nrd_str_puts(o, "\"\"");
    } else if (custom) {
        nrd_resp_put_input(o, call);
    } else {
        nrd_json_put(o, nrd_json_get(nrd_json_get(call, "function"), "arguments"), -1);
    }
}

void nrd_resp_put_id(nrd_str *o, const nrd_oai_request *r, nrd_resp_kind kind, size_t n)
{
    static const char *const prefixes[] = {
        [NRD_RESP_REASONING] = "rs", [NRD_RESP_MESSAGE] = "msg", [NRD_RESP_CALL] = "fc"};
    nrd_str_printf(o, "%s_%s", prefixes[kind], nrd_resp_suffix(r));
    if (kind == NRD_RESP_CALL) {
        nrd_str_printf(o, "_%zu", n);
    }
}

void nrd_resp_put_item(nrd_str *o, const nrd_resp_parts *p, nrd_resp_kind kind, size_t n, const char *status)
{
    static const char *const types[] = {
        [NRD_RESP_REASONING] = "reasoning", [NRD_RESP_MESSAGE] = "message", [NRD_RESP_CALL] = "function_call"};
    const bool begun = !strcmp(status, "in_progress");

    nrd_str_puts(o, "{\"id\":\"");
    nrd_resp_put_id(o, p->c->r, kind, n);
    const nrd_json *call = kind == NRD_RESP_CALL ? nrd_json_at(p->calls, n) : NULL;
    nrd_str_printf(o, "\",\"type\":\"%s\",\"status\":\"%s\"",
                   call && nrd_resp_is_custom(p->c->r, call) ? "custom_tool_call" : types[kind], status);
    if (kind == NRD_RESP_REASONING) {
        put_reasoning(o, p, begun);
    } else if (kind == NRD_RESP_MESSAGE) {
        put_message(o, p, begun);
    } else {
        put_call(o, p->c->r, call, begun);
    }
    nrd_str_putc(o, '}');
}

/* All items; the last one is where an answer was cut. */
static void put_items(nrd_str *o, const nrd_resp_parts *p, const char *status)
{
    const size_t n_calls = nrd_json_len(p->calls);
    const bool message = nrd_resp_has_message(&p->spans);

    if (p->spans.n_reasoning > 0) {
        nrd_resp_put_item(o, p, NRD_RESP_REASONING, 0, message || n_calls > 0 ? "completed" : status);
    }
    if (message) {
        nrd_str_puts(o, p->spans.n_reasoning > 0 ? "," : "");
        nrd_resp_put_item(o, p, NRD_RESP_MESSAGE, 0, n_calls > 0 ? "completed" : status);
    }
    for (size_t i = 0; i < n_calls; i++) {
        nrd_str_puts(o, i > 0 || message || p->spans.n_reasoning > 0 ? "," : "");
        nrd_resp_put_item(o, p, NRD_RESP_CALL, i, i + 1 < n_calls ? "completed" : status);
    }
}

/* ---- the object ---- */

static long long reasoning_tokens(const nrd_resp_parts *p)
{
    const size_t content = p->c->harmony ? 0 : (size_t)(p->spans.content - nrd_str_cstr(&p->c->text));
    long long n = 0;
    if (p->c->harmony) {
        return nrd_harmony_reasoning_tokens(p->c->harmony);
    }
    while (p->spans.n_reasoning > 0 && (size_t)n < p->c->n_log_probs &&
           (content == 0 || p->c->offsets[n] < content)) { /* 0: it never ended */
        n++;
    }
    return n;
}

static void put_usage(nrd_str *o, const nrd_resp_parts *p)
{
    const long long prompt = nrd_oai_prompt_tokens(p->c);
    nrd_str_printf(o,
                   "{\"input_tokens\":%lld,\"input_tokens_details\":{\"cached_tokens\":%lld,\"cache_write_tokens\":0},"
                   "\"output_tokens\":%d,\"output_tokens_details\":{\"reasoning_tokens\":%lld},\"total_tokens\":%lld}",
                   prompt, nrd_oai_cached_tokens(p->c), p->c->n_tokens, reasoning_tokens(p), prompt + p->c->n_tokens);
}

void nrd_resp_put(nrd_str *o, const nrd_oai_request *r, const nrd_resp_parts *parts, const char *status,
                  const char *error)
{
    nrd_str_printf(o, "{\"id\":\"%s\",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"model\":", r->id,
                   (long long)r->created, status);
    nrd_json_put_cstr(o, r->model->name);
    nrd_str_puts(o, ",\"error\":");
    if (error) {
        nrd_str_puts(o, "{\"code\":\"server_error\",\"message\":");
        nrd_json_put_cstr(o, error);
        nrd_str_putc(o, '}');
    } else {
        nrd_str_puts(o, "null");
    }
    nrd_str_puts(o, !strcmp(status, "incomplete") ? ",\"incomplete_details\":{\"reason\":\"max_output_tokens\"},"
                                                  : ",\"incomplete_details\":null,");
    nrd_str_put(o, &r->resp.echoed);
    nrd_str_puts(o, ",\"temperature\":");
    nrd_json_put_float(o, (float)r->temperature);
    nrd_str_puts(o, ",\"top_p\":");
    nrd_json_put_float(o, (float)r->top_p);
    nrd_str_printf(o, ",\"top_logprobs\":%d,\"output\":[", r->n_top);
    if (parts) {
        put_items(o, parts, status);
    }
    nrd_str_puts(o, "],\"usage\":");
    if (parts) {
        put_usage(o, parts);
    } else {
        nrd_str_puts(o, "null");
    }
    nrd_str_putc(o, '}');
}

void nrd_resp_fail_job(nrd_oai_request *r, const char *message)
{
    nrd_str object = {0};
    if (!r->resp.detached) { /* its client hears of it */
        nrd_bg_forget(r->resp.job);
        return;
    }
    nrd_resp_put(&object, r, NULL, "failed", message);
    nrd_bg_fail(r->resp.job, &object);
    nrd_str_fini(&object);
}

nrd_error *nrd_resp_keep(nrd_oai_request *r, const char *answer, size_t n)
{
    nrd_str copy = {0};
    if (!r->resp.store) {
        return NULL;
    }
    nrd_str_append(&copy, answer, n);
    nrd_error *err = nrd_str_error(&copy);
    if (r->resp.job) {
        err = err ? err : nrd_bg_complete(r->resp.job, r->resp.previous, &r->resp.input, &copy);
        if (err) {
            nrd_resp_fail_job(r, nrd_error_message(err));
        }
        nrd_error_free(err);
        err = NULL;
    } else {
        err = err ? err : nrd_response_store_add(r->o->kept, r->key, r->id, r->resp.previous, &r->resp.input, &copy);
    }
    nrd_str_fini(&copy);
    return err;
}
