/* SPDX-License-Identifier: Apache-2.0
 * The JSON of answers, whole and in chunks. */
#include "frontends/openai/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void put_head(nrd_str *o, const nrd_oai_request *r, bool chunk)
{
    nrd_str_printf(o, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", r->id,
                   !r->chat ? "text_completion"
                   : chunk  ? "chat.completion.chunk"
                            : "chat.completion",
                   (long long)r->created);
    nrd_json_put_cstr(o, r->model->name);
}

/* Without pictures it is known before the model says so. */
long long nrd_oai_prompt_tokens(const nrd_oai_choice *c)
{
    return c->r->n_images + c->r->n_videos > 0 && c->n_prompt > 0 ? (long long)c->n_prompt : (long long)c->prompt->n;
}

long long nrd_oai_cached_tokens(const nrd_oai_choice *c)
{
    const long long n = nrd_oai_prompt_tokens(c);
    return c->n_cached < n ? c->n_cached : n;
}

long long nrd_oai_used_tokens(const nrd_oai_request *r)
{
    long long n = 0;
    for (size_t i = 0; r->choices && i < r->n_prompts; i++) {
        const nrd_oai_choice *c = &r->choices[i * (size_t)r->best_of];
        n += c->n_tokens > 0 || (r->only_prompt && c->done) ? nrd_oai_prompt_tokens(c) : 0;
    }
    for (int i = 0; r->choices && i < r->n_choices; i++) {
        n += r->choices[i].n_tokens;
    }
    return n;
}

static void put_usage(nrd_str *o, const nrd_oai_request *r)
{
    long long prompt = 0, completion = 0, cached = 0;
    for (size_t i = 0; i < r->n_prompts; i++) {
        prompt += nrd_oai_prompt_tokens(&r->choices[i * (size_t)r->best_of]);
        cached += nrd_oai_cached_tokens(&r->choices[i * (size_t)r->best_of]);
    }
    for (int i = 0; i < r->n_choices; i++) {
        completion += r->choices[i].n_tokens;
    }
    nrd_str_printf(o, "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld", prompt, completion,
                   prompt + completion);
    if (r->model->outputs & 1u << OAI_REUSED_BLOCKS) {
        nrd_str_printf(o, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld}", cached);
    }
    if (r->return_timings && (r->model->outputs & 1u << OAI_FIRST_TIME)) {
        nrd_str_puts(o, ",\"timings\":[");
        for (int i = 0; i < r->n_choices; i++) {
            const nrd_oai_choice *c = &r->choices[i];
            nrd_str_printf(o, "%s{\"arrival_ns\":%lld,\"first_token_ns\":%lld,\"last_token_ns\":%lld}",
                           i ? "," : "", (long long)c->arrival_ns, (long long)c->first_token_ns,
                           (long long)c->last_token_ns);
        }
        nrd_str_putc(o, ']');
    }
    nrd_str_putc(o, '}');
}

/* ---- ids, as vLLM tells them ---- */

static void put_ids(nrd_str *o, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        nrd_str_printf(o, i ? ",%d" : "%d", ids[i]);
    }
}

static void put_prompt_ids(nrd_str *o, const nrd_ids *prompt)
{
    nrd_str_puts(o, ",\"prompt_token_ids\":[");
    put_ids(o, prompt->ids, prompt->n);
    nrd_str_putc(o, ']');
}

/* Members of a choice: the ids of the answer from `from` on. In completions those of the prompt stand here too. */
static void put_choice_ids(nrd_str *o, const nrd_oai_choice *c, size_t from, bool with_prompt)
{
    if (!c->r->token_ids) {
        return;
    }
    if (with_prompt && !c->r->chat) {
        put_prompt_ids(o, c->prompt);
    }
    nrd_str_puts(o, ",\"token_ids\":[");
    const size_t n = from < c->ids.n ? c->ids.n - from : 0;
    put_ids(o, n > 0 ? c->ids.ids + from : NULL, n);
    if (c->ended && from <= c->ids.n) {
        nrd_str_printf(o, n > 0 ? ",%d" : "%d", c->end_token);
    }
    nrd_str_putc(o, ']');
}

/* The same of what was not told in the stream so far. */
static void put_new_ids(nrd_str *o, nrd_oai_choice *c, bool first)
{
    put_choice_ids(o, c, c->n_ids_sent, first);
    c->n_ids_sent = c->ids.n + c->ended;
}

/* ---- whole answers ---- */

static void put_message(nrd_str *o, nrd_oai_choice *c)
{
    nrd_str calls = {0};
    nrd_oai_parsed p;

    nrd_oai_split(c, c->text.len, true, false, &calls, &p);
    nrd_str_puts(o, "{\"role\":\"assistant\",\"content\":");
    if (p.n_calls > 0 && p.n_content == 0) {
        nrd_str_puts(o, "null");
    } else {
        nrd_json_put_string(o, p.content, p.n_content);
    }
    nrd_str_puts(o, ",\"refusal\":null");
    if (p.n_reasoning > 0 && !c->r->hide_reasoning) {
        nrd_str_puts(o, ",\"reasoning_content\":");
        nrd_json_put_string(o, p.reasoning, p.n_reasoning);
    }
    if (p.n_calls > 0) {
        nrd_str_puts(o, ",\"tool_calls\":[");
        nrd_str_put(o, &calls);
        nrd_str_putc(o, ']');
        c->finish = "tool_calls";
    }
    nrd_str_putc(o, '}');
    nrd_str_fini(&calls);
}

/* The end of a choice. OpenAI has no word for time that is over: it is a length that the client asked for, with
 * vLLM's field for what exactly. */
static void put_finish(nrd_str *o, const nrd_oai_choice *c, const char *finish)
{
    if (!finish) {
        nrd_str_puts(o, ",\"finish_reason\":null}");
        return;
    }
    const bool timed_out = c->timed_out && !strcmp(finish, "length");
    nrd_str_printf(o, ",\"finish_reason\":\"%s\"%s}", finish, timed_out ? ",\"stop_reason\":\"timeout\"" : "");
}

static void put_choice(nrd_str *o, nrd_oai_choice *c, int index)
{
    const nrd_oai_request *r = c->r;
    nrd_str_printf(o, "{\"index\":%d,", index);
    if (r->chat) {
        nrd_str_puts(o, "\"message\":");
        put_message(o, c);
    } else {
        const nrd_str *echo = &r->echoes[c->index / r->best_of];
        nrd_str text = {0};
        if (r->echo) {
            nrd_str_append(&text, nrd_str_cstr(echo), echo->len);
        }
        nrd_str_append(&text, nrd_str_cstr(&c->text), c->text.len);
        nrd_str_puts(o, "\"text\":");
        nrd_json_put_string(o, nrd_str_cstr(&text), text.len);
        if (text.no_memory) {
            nrd_str_spoil(o);
        }
        nrd_str_fini(&text);
    }
    nrd_str_puts(o, ",\"logprobs\":");
    nrd_oai_put_choice_log_probs(o, c, 0, true);
    if (r->prompt_probs && !r->chat) {
        nrd_str_puts(o, ",\"prompt_logprobs\":");
        nrd_oai_put_prompt_probs(o, c);
    }
    put_choice_ids(o, c, 0, true);
    put_finish(o, c, c->finish);
}

static double score(const nrd_oai_choice *c)
{
    return c->n_tokens > 0 ? (double)c->cum_log_prob / c->n_tokens : -INFINITY;
}

size_t nrd_oai_answer_bytes(const nrd_oai_request *r)
{
    size_t n = r->resp.echoed.len;
    for (int i = 0; i < r->n_choices; i++) {
        const nrd_oai_choice *c = &r->choices[i];
        /* a token's probability with its bytes, and that of each alternative: about 80 bytes */
        n += c->text.len + (r->log_probs ? c->n_log_probs * (size_t)(1 + r->n_top) * 80 : 0);
        n += c->prompt_probs.n * (size_t)(1 + r->n_prompt_top) * 80;
    }
    return n;
}

static void put_answer(nrd_oai_request *r)
{
    nrd_str *o = &r->out;
    int index = 0;

    put_head(o, r, false);
    if (r->token_ids && r->chat) {
        put_prompt_ids(o, &r->prompts[0]);
    }
    nrd_str_puts(o, ",\"choices\":[");
    for (size_t p = 0; p < r->n_prompts; p++) {
        bool used[OAI_MAX_CHOICES] = {false};
        for (int k = 0; k < r->n; k++) { /* the n best of best_of, in order of their scores */
            int best = -1;
            for (int i = 0; i < r->best_of; i++) {
                const nrd_oai_choice *c = &r->choices[(int)p * r->best_of + i];
                if (!used[i] && (best < 0 || (r->best_of > r->n &&
                                              score(c) > score(&r->choices[(int)p * r->best_of + best])))) {
                    best = i;
                }
            }
            used[best] = true;
            nrd_str_puts(o, index ? "," : "");
            put_choice(o, &r->choices[(int)p * r->best_of + best], index++);
        }
    }
    nrd_str_puts(o, "],\"usage\":");
    put_usage(o, r);
    if (r->prompt_probs && r->chat) {
        nrd_str_puts(o, ",\"prompt_logprobs\":");
        nrd_oai_put_prompt_probs(o, &r->choices[0]);
    }
    nrd_str_puts(o, ",\"system_fingerprint\":null}");
}

/* ---- streams ---- */

static void begin_event(nrd_str *o, const nrd_oai_request *r)
{
    nrd_str_puts(o, "data: ");
    put_head(o, r, true);
    nrd_str_puts(o, ",\"choices\":[");
}

/* What one choice has used so far. */
static void put_running_usage(nrd_str *o, const nrd_oai_choice *c)
{
    const long long prompt = nrd_oai_prompt_tokens(c);
    nrd_str_printf(o, "{\"prompt_tokens\":%lld,\"completion_tokens\":%d,\"total_tokens\":%lld}", prompt, c->n_tokens,
                   prompt + c->n_tokens);
}

static void end_event(nrd_str *o, const nrd_oai_choice *c)
{
    const nrd_oai_request *r = c->r;
    nrd_str_putc(o, ']');
    if (r->token_ids && r->chat && !c->begun) {
        put_prompt_ids(o, c->prompt);
    }
    if (r->running_usage) {
        nrd_str_puts(o, ",\"usage\":");
        put_running_usage(o, c);
    } else if (r->include_usage) {
        nrd_str_puts(o, ",\"usage\":null");
    }
    nrd_str_puts(o, "}\n\n");
}

/* A chunk of a chat; `delta` holds the members of the delta. */
static void put_delta(nrd_str *o, nrd_oai_choice *c, const nrd_str *delta, const char *finish)
{
    begin_event(o, c->r);
    nrd_str_printf(o, "{\"index\":%d,\"delta\":{", c->index);
    nrd_str_put(o, delta);
    nrd_str_puts(o, "},\"logprobs\":");
    if (c->n_log_sent < c->n_log_probs && !finish) {
        nrd_oai_put_choice_log_probs(o, c, c->n_log_sent, false);
        c->n_log_sent = c->n_log_probs;
    } else {
        nrd_str_puts(o, "null");
    }
    if (c->begun) {
        put_new_ids(o, c, false);
    }
    put_finish(o, c, finish);
    end_event(o, c);
}

static void put_text_chunk(nrd_str *o, nrd_oai_choice *c, const char *text, size_t n, bool is_echo,
                           const char *finish)
{
    begin_event(o, c->r);
    nrd_str_printf(o, "{\"index\":%d,\"text\":", c->index);
    nrd_json_put_string(o, text, n);
    nrd_str_puts(o, ",\"logprobs\":");
    nrd_oai_put_choice_log_probs(o, c, c->n_log_sent, is_echo);
    c->n_log_sent = c->n_log_probs;
    put_new_ids(o, c, c->n_ids_sent == 0);
    put_finish(o, c, finish);
    end_event(o, c);
}

static void chat_chunk(nrd_str *o, nrd_oai_choice *c)
{
    nrd_str delta = {0}, calls = {0};
    nrd_oai_delta d;

    if (!c->begun) {
        nrd_str_puts(&delta, "\"role\":\"assistant\",\"content\":\"\"");
        size_t pending = c->n_log_probs; /* they go with the text */
        c->n_log_probs = c->n_log_sent;
        put_delta(o, c, &delta, NULL);
        c->n_log_probs = pending;
        c->begun = true;
        nrd_str_clear(&delta);
    }
    nrd_oai_next_delta(c, &calls, &d);
    if (d.n_reasoning > 0 && !c->r->hide_reasoning) {
        nrd_str_puts(&delta, "\"reasoning_content\":");
        nrd_json_put_string(&delta, d.reasoning, d.n_reasoning);
    }
    if (d.n_content > 0) {
        nrd_str_puts(&delta, delta.len ? ",\"content\":" : "\"content\":");
        nrd_json_put_string(&delta, d.content, d.n_content);
    }
    if (d.n_calls > 0) {
        nrd_str_puts(&delta, delta.len ? ",\"tool_calls\":[" : "\"tool_calls\":[");
        nrd_str_put(&delta, &calls);
        nrd_str_putc(&delta, ']');
    }
    if (delta.len > 0 || delta.no_memory) { /* what is missing spoils the chunk */
        put_delta(o, c, &delta, NULL);
        nrd_str_clear(&delta);
    }
    if (c->done) {
        put_delta(o, c, &delta, c->finish);
    }
    nrd_str_fini(&delta);
    nrd_str_fini(&calls);
}

static void text_chunk(nrd_str *o, nrd_oai_choice *c)
{
    const nrd_oai_request *r = c->r;
    size_t n = nrd_oai_certain(c);
    if (!c->begun && r->echo) {
        const nrd_str *echo = &r->echoes[c->index / r->best_of];
        size_t pending = c->n_log_probs;
        c->n_log_probs = c->n_log_sent;
        put_text_chunk(o, c, nrd_str_cstr(echo), echo->len, true, NULL);
        c->n_log_probs = pending;
    }
    c->begun = true;
    if (n > c->n_sent || c->done) {
        put_text_chunk(o, c, nrd_str_cstr(&c->text) + c->n_sent, n > c->n_sent ? n - c->n_sent : 0, false,
                       c->done ? c->finish : NULL);
        c->n_sent = n;
    }
}

nrd_error *nrd_oai_chunk(nrd_oai_choice *c)
{
    nrd_oai_request *r = c->r;
    if (!r->streaming) {
        r->streaming = true;
        nrd_http_stream_begin(r->req, 200, r->form->stream_type, r->extra);
    }
    nrd_str_clear(&r->out);
    r->form->put_chunk(&r->out, c);
    NRD_TRY(nrd_str_error(&r->out));
    if (r->out.len > 0) {
        nrd_http_stream_write(r->req, r->out.data, r->out.len);
    }
    return NULL;
}

static void put_last(nrd_str *o, const nrd_oai_request *r)
{
    if (r->include_usage) {
        begin_event(o, r);
        nrd_str_puts(o, "],\"usage\":");
        put_usage(o, r);
        nrd_str_puts(o, "}\n\n");
    }
    nrd_str_puts(o, "data: [DONE]\n\n");
}

void nrd_oai_last_chunks(nrd_oai_request *r)
{
    nrd_str_clear(&r->out);
    r->form->put_last(&r->out, r);
    nrd_http_stream_put(r->req, &r->out);
    nrd_http_stream_end(r->req);
}

void nrd_oai_put_error(nrd_str *out, int status, const char *message, const char *param, const char *code)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 404 ? "not_found_error"
                       : status == 429 ? "rate_limit_error"
                       : status < 500  ? "invalid_request_error"
                                       : "server_error";
    nrd_str_puts(out, "{\"error\":{\"message\":");
    nrd_json_put_cstr(out, message);
    nrd_str_printf(out, ",\"type\":\"%s\",\"param\":", type);
    if (param) {
        nrd_json_put_cstr(out, param);
    } else {
        nrd_str_puts(out, "null");
    }
    nrd_str_puts(out, ",\"code\":");
    if (code) {
        nrd_json_put_cstr(out, code);
    } else {
        nrd_str_puts(out, "null");
    }
    nrd_str_puts(out, "}}");
}

#define EVENTS                                                                                                       \
    .stream_type = "text/event-stream; charset=utf-8", .before_error = "data: ", .after_error = "\n\n",             \
    .put_answer = put_answer, .put_last = put_last, .put_error = nrd_oai_put_error

const nrd_oai_form nrd_oai_form_chat = {
    .is_chat = true, .id_prefix = "chatcmpl-", .put_chunk = chat_chunk, EVENTS};
const nrd_oai_form nrd_oai_form_text = {
    .is_chat = false, .id_prefix = "cmpl-", .put_chunk = text_chunk, EVENTS};
