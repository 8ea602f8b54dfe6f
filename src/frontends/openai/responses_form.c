/* SPDX-License-Identifier: Apache-2.0
 * /v1/responses as a form: which functions read and write it. */
#include "frontends/openai/responses.h"

static void put_answer(nrd_oai_request *r)
{
    nrd_oai_choice *c = &r->choices[0];
    nrd_str calls = {0};
    nrd_resp_parts p = {.c = c};
    nrd_json_doc *doc = NULL;

    nrd_oai_split(c, c->text.len, true, false, &calls, &p.spans);
    if (p.spans.n_calls > 0) {
        doc = nrd_oai_read_calls(&r->out, &calls);
        p.calls = doc ? nrd_json_root(doc) : NULL;
        c->finish = "tool_calls";
    }
    nrd_resp_put(&r->out, r, &p, nrd_resp_status(c), NULL);
    nrd_error *err = nrd_str_error(&r->out);
    err = err ? err : nrd_resp_keep(r, r->out.data, r->out.len);
    if (err) {
        nrd_str_spoil(&r->out);
    }
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    nrd_str_fini(&calls);
}

static void put_last(nrd_str *out, const nrd_oai_request *r)
{
    (void)out; /* the last event holds the whole answer */
    (void)r;
}

static const char *renamed[][2] = {{"messages", "input"},
                                   {"max_completion_tokens", "max_output_tokens"},
                                   {"response_format", "text.format"},
                                   {"reasoning_effort", "reasoning.effort"},
                                   {NULL, NULL}};

const nrd_oai_form nrd_oai_form_responses = {
    .is_chat = true,
    .id_prefix = "resp_",
    .stream_type = "text/event-stream; charset=utf-8",
    .renamed = renamed,
    .convert = nrd_oai_responses_convert,
    .put_answer = put_answer,
    .put_chunk = nrd_resp_put_chunk,
    .put_last = put_last,
    .put_error = nrd_oai_put_error,
    .put_failure = nrd_resp_put_failure,
};
