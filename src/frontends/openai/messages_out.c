/* SPDX-License-Identifier: Apache-2.0
 * Answers of Anthropic's /v1/messages: whole, as a stream of events, and errors.
 * Source: Anthropic's API reference (messages, streaming messages, errors). */
#include "frontends/openai/internal.h"

#include <string.h>

enum { NO_BLOCK, THINKING, TEXT }; /* nrd_oai_choice.open_block */

static void put_usage(nrd_str *o, const nrd_oai_choice *c)
{
    const long long prompt = nrd_oai_prompt_tokens(c), cached = nrd_oai_cached_tokens(c);
    nrd_str_printf(o,
                   "{\"input_tokens\":%lld,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%lld,"
                   "\"output_tokens\":%d}",
                   prompt - cached, cached, c->n_tokens);
}

/* Time that is over has no word: it is a number of tokens that was asked for. */
static void put_stop(nrd_str *o, const nrd_oai_choice *c)
{
    const bool cut = c->cut && !strcmp(c->finish, "stop");
    nrd_str_printf(o, "\"stop_reason\":\"%s\",\"stop_sequence\":",
                   !strcmp(c->finish, "tool_calls") ? "tool_use"
                   : !strcmp(c->finish, "length")   ? "max_tokens"
                   : cut                            ? "stop_sequence"
                                                    : "end_turn");
    if (cut) {
        nrd_json_put_string(o, c->r->stops[c->stop].s, c->r->stops[c->stop].n);
    } else {
        nrd_str_puts(o, "null");
    }
}

static void put_head(nrd_str *o, const nrd_oai_request *r)
{
    nrd_str_printf(o, "{\"id\":\"%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", r->id);
    nrd_json_put_cstr(o, r->model->name);
}

static void put_use(nrd_str *o, const nrd_json *call)
{
    nrd_str_puts(o, "{\"type\":\"tool_use\"");
    nrd_oai_put_member(o, "id", nrd_json_get(call, "id"));
    nrd_oai_put_member(o, "name", nrd_json_get(nrd_json_get(call, "function"), "name"));
    nrd_str_puts(o, ",\"input\":");
}

static void put_uses(nrd_str *o, const nrd_str *calls, bool any)
{
    nrd_json_doc *doc = nrd_oai_read_calls(o, calls);
    for (size_t i = 0; doc && i < nrd_json_len(nrd_json_root(doc)); i++) {
        const nrd_json *call = nrd_json_at(nrd_json_root(doc), i);
        const nrd_json *arguments = nrd_json_get(nrd_json_get(call, "function"), "arguments");
        nrd_str_puts(o, any || i ? "," : "");
        put_use(o, call);
        nrd_oai_put_arguments(o, nrd_json_str(arguments, ""), arguments ? arguments->n : 0);
        nrd_str_putc(o, '}');
    }
    nrd_json_doc_free(doc);
}

static void put_answer(nrd_oai_request *r)
{
    nrd_oai_choice *c = &r->choices[0];
    nrd_str *o = &r->out, calls = {0};
    nrd_oai_parsed p;

    nrd_oai_split(c, c->text.len, true, false, &calls, &p);
    put_head(o, r);
    nrd_str_puts(o, ",\"content\":[");
    if (p.n_reasoning > 0) {
        nrd_str_puts(o, "{\"type\":\"thinking\",\"thinking\":");
        nrd_json_put_string(o, p.reasoning, p.n_reasoning);
        nrd_str_puts(o, ",\"signature\":\"\"}");
    }
    const bool has_text = p.n_content > 0 || p.n_calls == 0;
    if (has_text) {
        nrd_str_puts(o, p.n_reasoning > 0 ? "," : "");
        nrd_str_puts(o, "{\"type\":\"text\",\"text\":");
        nrd_json_put_string(o, p.content, p.n_content);
        nrd_str_putc(o, '}');
    }
    if (p.n_calls > 0) {
        put_uses(o, &calls, has_text || p.n_reasoning > 0);
        c->finish = "tool_calls";
    }
    nrd_str_puts(o, "],");
    put_stop(o, c);
    nrd_str_puts(o, ",\"usage\":");
    put_usage(o, c);
    nrd_str_putc(o, '}');
    nrd_str_fini(&calls);
}

/* ---- streams ---- */

static void begin_event(nrd_str *o, const char *name)
{
    nrd_str_printf(o, "event: %s\ndata: {\"type\":\"%s\"", name, name);
}

static void end_block(nrd_str *o, nrd_oai_choice *c)
{
    if (c->open_block == THINKING) { /* clients wait for a signature; there is nobody here who would check one */
        begin_event(o, "content_block_delta");
        nrd_str_printf(o, ",\"index\":%d,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"\"}}\n\n",
                       c->n_blocks - 1);
    }
    if (c->open_block != NO_BLOCK) {
        begin_event(o, "content_block_stop");
        nrd_str_printf(o, ",\"index\":%d}\n\n", c->n_blocks - 1);
    }
    c->open_block = NO_BLOCK;
}

static void begin_block(nrd_str *o, nrd_oai_choice *c, int kind)
{
    if (c->open_block == kind) {
        return;
    }
    end_block(o, c);
    begin_event(o, "content_block_start");
    nrd_str_printf(o, ",\"index\":%d,\"content_block\":%s}\n\n", c->n_blocks,
                   kind == TEXT ? "{\"type\":\"text\",\"text\":\"\"}"
                                : "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    c->n_blocks++;
    c->open_block = kind;
}

static void put_delta(nrd_str *o, nrd_oai_choice *c, int kind, const char *text, size_t n)
{
    const char *const word = kind == TEXT ? "text" : "thinking";
    if (n == 0) {
        return;
    }
    begin_block(o, c, kind);
    begin_event(o, "content_block_delta");
    nrd_str_printf(o, ",\"index\":%d,\"delta\":{\"type\":\"%s_delta\",\"%s\":", c->n_blocks - 1, word, word);
    nrd_json_put_string(o, text, n);
    nrd_str_puts(o, "}}\n\n");
}

/* A call comes in one piece: a block with one delta. */
static void put_call_blocks(nrd_str *o, nrd_oai_choice *c, const nrd_str *calls)
{
    nrd_json_doc *doc = nrd_oai_read_calls(o, calls);
    end_block(o, c);
    for (size_t i = 0; doc && i < nrd_json_len(nrd_json_root(doc)); i++) {
        const nrd_json *call = nrd_json_at(nrd_json_root(doc), i);
        const nrd_json *arguments = nrd_json_get(nrd_json_get(call, "function"), "arguments");
        nrd_str input = {0};
        nrd_oai_put_arguments(&input, nrd_json_str(arguments, ""), arguments ? arguments->n : 0);
        begin_event(o, "content_block_start");
        nrd_str_printf(o, ",\"index\":%d,\"content_block\":", c->n_blocks);
        put_use(o, call);
        nrd_str_puts(o, "{}}}\n\n");
        begin_event(o, "content_block_delta");
        nrd_str_printf(o, ",\"index\":%d,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":", c->n_blocks);
        nrd_json_put_string(o, nrd_str_cstr(&input), input.len);
        nrd_str_puts(o, "}}\n\n");
        begin_event(o, "content_block_stop");
        nrd_str_printf(o, ",\"index\":%d}\n\n", c->n_blocks++);
        if (input.no_memory) {
            nrd_str_spoil(o);
        }
        nrd_str_fini(&input);
    }
    nrd_json_doc_free(doc);
}

static void put_chunk(nrd_str *o, nrd_oai_choice *c)
{
    nrd_str calls = {0};
    nrd_oai_delta d;

    if (!c->begun) {
        c->begun = true;
        begin_event(o, "message_start");
        nrd_str_puts(o, ",\"message\":");
        put_head(o, c->r);
        nrd_str_puts(o, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
        put_usage(o, c);
        nrd_str_puts(o, "}}\n\n");
    }
    nrd_oai_next_delta(c, &calls, &d);
    put_delta(o, c, THINKING, d.reasoning, d.n_reasoning);
    put_delta(o, c, TEXT, d.content, d.n_content);
    if (c->done && c->n_content_sent == 0 && d.n_calls == 0) { /* as in a whole answer: there is a text, if an empty one */
        begin_block(o, c, TEXT);
    }
    if (d.n_calls > 0) {
        put_call_blocks(o, c, &calls);
    }
    if (c->done) {
        end_block(o, c);
        begin_event(o, "message_delta");
        nrd_str_puts(o, ",\"delta\":{");
        put_stop(o, c);
        nrd_str_puts(o, "},\"usage\":");
        put_usage(o, c);
        nrd_str_puts(o, "}\n\n");
    }
    nrd_str_fini(&calls);
}

static void put_last(nrd_str *o, const nrd_oai_request *r)
{
    (void)r;
    nrd_str_puts(o, "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
}

static void put_error(nrd_str *out, int status, const char *message, const char *param, const char *code)
{
    const char *type = status == 401                    ? "authentication_error"
                       : status == 403                  ? "permission_error"
                       : status == 404                  ? "not_found_error"
                       : status == 413                  ? "request_too_large"
                       : status == 429                  ? "rate_limit_error"
                       : status < 500                   ? "invalid_request_error"
                       : status == 503                  ? "overloaded_error"
                                                        : "api_error";
    (void)param; /* the message begins with it */
    (void)code;
    nrd_str_printf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    nrd_json_put_cstr(out, message);
    nrd_str_puts(out, "}}");
}

static const char *renamed[][2] = {{"stop", "stop_sequences"}, {"response_format", "output_config.format"}, {NULL, NULL}};

const nrd_oai_form nrd_oai_form_messages = {
    .is_chat = true,
    .id_prefix = "msg_",
    .stream_type = "text/event-stream; charset=utf-8",
    .before_error = "event: error\ndata: ",
    .after_error = "\n\n",
    .renamed = renamed,
    .convert = nrd_oai_messages_convert,
    .put_answer = put_answer,
    .put_chunk = put_chunk,
    .put_last = put_last,
    .put_error = put_error,
};
