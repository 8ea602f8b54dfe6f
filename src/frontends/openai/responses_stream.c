/* SPDX-License-Identifier: Apache-2.0
 * The events of a streamed /v1/responses: the answer begins, its items come one after the other, each with
 * its beginning, its pieces and its end, and the last event holds the whole answer.
 * Source: OpenAI's API reference (streaming events of responses). */
#include "frontends/openai/responses.h"

#include <string.h>

/* nrd_oai_choice.open_block is an nrd_resp_kind, or 0. */

static void begin_event(nrd_str *o, nrd_oai_choice *c, const char *name)
{
    nrd_str_printf(o, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%lld", name, name, (long long)c->n_events++);
}

static void end_event(nrd_str *o)
{
    nrd_str_puts(o, "}\n\n");
}

/* An event about item number c->n_blocks, which is the n-th call where it is one. */
static void begin_of_item(nrd_str *o, nrd_oai_choice *c, const char *name, nrd_resp_kind kind, size_t n)
{
    begin_event(o, c, name);
    nrd_str_printf(o, ",\"output_index\":%d,\"item_id\":\"", c->n_blocks);
    nrd_resp_put_id(o, c->r, kind, n);
    nrd_str_putc(o, '"');
}

static void put_item_event(nrd_str *o, const nrd_resp_parts *p, nrd_oai_choice *c, nrd_resp_kind kind, size_t n,
                           const char *status)
{
    begin_event(o, c, !strcmp(status, "in_progress") ? "response.output_item.added" : "response.output_item.done");
    nrd_str_printf(o, ",\"output_index\":%d,\"item\":", c->n_blocks);
    nrd_resp_put_item(o, p, kind, n, status);
    end_event(o);
}

static void put_part_event(nrd_str *o, const nrd_resp_parts *p, nrd_oai_choice *c, nrd_resp_kind kind, bool ends)
{
    const bool thought = kind == NRD_RESP_REASONING;
    begin_of_item(o, c, ends ? "response.content_part.done" : "response.content_part.added", kind, 0);
    nrd_str_printf(o, ",\"content_index\":0,\"part\":{\"type\":\"%s\",\"text\":", thought ? "reasoning_text" : "output_text");
    nrd_json_put_string(o, thought ? p->spans.reasoning : p->spans.content,
                        !ends ? 0 : thought ? p->spans.n_reasoning : p->spans.n_content);
    if (!thought) {
        nrd_str_puts(o, ",\"annotations\":[],\"logprobs\":");
        nrd_resp_put_log_probs(o, p, ends ? 0 : c->n_log_probs);
    }
    nrd_str_putc(o, '}');
    end_event(o);
}

/* Ends the reasoning or the message that is open. */
static void end_item(nrd_str *o, const nrd_resp_parts *p, nrd_oai_choice *c, const char *status)
{
    const nrd_resp_kind kind = (nrd_resp_kind)c->open_block;
    const bool thought = kind == NRD_RESP_REASONING;
    if (c->open_block == 0) {
        return;
    }
    begin_of_item(o, c, thought ? "response.reasoning_text.done" : "response.output_text.done", kind, 0);
    nrd_str_puts(o, ",\"content_index\":0,\"text\":");
    nrd_json_put_string(o, thought ? p->spans.reasoning : p->spans.content,
                        thought ? p->spans.n_reasoning : p->spans.n_content);
    if (!thought) {
        nrd_str_puts(o, ",\"logprobs\":");
        nrd_resp_put_log_probs(o, p, 0);
    }
    end_event(o);
    put_part_event(o, p, c, kind, true);
    put_item_event(o, p, c, kind, 0, status);
    c->n_blocks++;
    c->open_block = 0;
}

static void begin_item(nrd_str *o, const nrd_resp_parts *p, nrd_oai_choice *c, nrd_resp_kind kind)
{
    if (c->open_block == (int)kind) {
        return;
    }
    end_item(o, p, c, "completed");
    put_item_event(o, p, c, kind, 0, "in_progress");
    put_part_event(o, p, c, kind, false);
    c->open_block = (int)kind;
}

static void put_delta(nrd_str *o, const nrd_resp_parts *p, nrd_oai_choice *c, nrd_resp_kind kind, const char *text, size_t n)
{
    const bool thought = kind == NRD_RESP_REASONING;
    if (n == 0) {
        return;
    }
    begin_item(o, p, c, kind);
    begin_of_item(o, c, thought ? "response.reasoning_text.delta" : "response.output_text.delta", kind, 0);
    nrd_str_puts(o, ",\"content_index\":0,\"delta\":");
    nrd_json_put_string(o, text, n);
    if (!thought) {
        nrd_str_puts(o, ",\"logprobs\":");
        nrd_resp_put_log_probs(o, p, c->n_log_sent);
        c->n_log_sent = c->n_log_probs;
    }
    end_event(o);
}

/* A call comes in one piece, at its end. */
static void put_calls(nrd_str *o, const nrd_resp_parts *p, nrd_oai_choice *c)
{
    for (size_t i = 0; i < nrd_json_len(p->calls); i++) {
        const nrd_json *call = nrd_json_at(p->calls, i), *arguments = nrd_json_get(nrd_json_get(call, "function"), "arguments");
        put_item_event(o, p, c, NRD_RESP_CALL, i, "in_progress");
        if (nrd_resp_is_custom(c->r, call)) {
            begin_of_item(o, c, "response.custom_tool_call_input.delta", NRD_RESP_CALL, i);
            nrd_oai_put_key(o, "delta");
            nrd_resp_put_input(o, call);
            end_event(o);
            begin_of_item(o, c, "response.custom_tool_call_input.done", NRD_RESP_CALL, i);
            nrd_oai_put_key(o, "input");
            nrd_resp_put_input(o, call);
        } else {
            begin_of_item(o, c, "response.function_call_arguments.delta", NRD_RESP_CALL, i);
            nrd_oai_put_member(o, "delta", arguments);
            end_event(o);
            begin_of_item(o, c, "response.function_call_arguments.done", NRD_RESP_CALL, i);
            nrd_resp_put_name(o, c->r, call);
            nrd_oai_put_member(o, "arguments", arguments);
        }
        end_event(o);
        put_item_event(o, p, c, NRD_RESP_CALL, i, "completed");
        c->n_blocks++;
    }
}

static void put_state(nrd_str *o, nrd_oai_choice *c, const char *name, const char *status)
{
    begin_event(o, c, name);
    nrd_str_puts(o, ",\"response\":");
    nrd_resp_put(o, c->r, NULL, status, NULL);
    end_event(o);
}

void nrd_resp_put_queued(nrd_str *o, nrd_oai_choice *c)
{
    put_state(o, c, "response.created", "queued");
    put_state(o, c, "response.queued", "queued");
}

static void put_beginning(nrd_str *o, nrd_oai_choice *c)
{
    if (!c->r->resp.job) {
        put_state(o, c, "response.created", "in_progress");
    }
    put_state(o, c, "response.in_progress", "in_progress");
}

static void put_end(nrd_str *o, const nrd_resp_parts *p, nrd_oai_choice *c)
{
    const char *status = nrd_resp_status(c);
    begin_event(o, c, !strcmp(status, "completed") ? "response.completed" : "response.incomplete");
    nrd_str_puts(o, ",\"response\":");
    const size_t begin = o->len;
    nrd_resp_put(o, c->r, p, status, NULL);
    nrd_error *err = nrd_str_error(o);
    err = err ? err : nrd_resp_keep(c->r, o->data + begin, o->len - begin);
    if (err) {
        nrd_str_spoil(o);
    }
    nrd_error_free(err);
    end_event(o);
}

void nrd_resp_put_chunk(nrd_str *o, nrd_oai_choice *c)
{
    nrd_str calls = {0};
    nrd_oai_delta d;
    nrd_json_doc *doc = NULL;

    if (!c->begun) {
        c->begun = true;
        put_beginning(o, c);
    }
    nrd_oai_next_delta(c, &calls, &d);
    if (d.n_calls > 0) {
        doc = nrd_oai_read_calls(o, &calls);
    }
    const nrd_resp_parts p = {.c = c, .spans = d.all, .calls = doc ? nrd_json_root(doc) : NULL};
    if (c->n_content_sent == d.n_content) { /* there is one item of reasoning: what follows the message is told at the end */
        put_delta(o, &p, c, NRD_RESP_REASONING, d.reasoning, d.n_reasoning);
    }
    put_delta(o, &p, c, NRD_RESP_MESSAGE, d.content, d.n_content);
    if (c->done) {
        if (c->open_block == 0 && nrd_resp_has_message(&d.all)) { /* as in a whole answer: an empty one */
            begin_item(o, &p, c, NRD_RESP_MESSAGE);
        }
        end_item(o, &p, c, d.n_calls > 0 ? "completed" : nrd_resp_status(c));
        put_calls(o, &p, c);
        put_end(o, &p, c);
    }
    nrd_json_doc_free(doc);
    nrd_str_fini(&calls);
}

void nrd_resp_put_failure(nrd_str *o, const nrd_oai_request *r, const char *message)
{
    begin_event(o, &r->choices[0], "response.failed");
    nrd_str_puts(o, ",\"response\":");
    nrd_resp_put(o, r, NULL, "failed", message);
    end_event(o);
}
