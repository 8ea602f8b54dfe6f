/* SPDX-License-Identifier: Apache-2.0
 * frontends/openai/responses.h - what the files of OpenAI's /v1/responses share.
 *
 * Purpose   responses_in.c turns a body into one of chat/completions, with responses_items.c for the items
 *           of the conversation and responses_tools.c for tools; responses_out.c writes the answer, responses_stream.c its events,
 *           responses_form.c names these; responses.c answers about kept ones; responses_background.c makes those that no
 *           client waits for.
 * Owner     As internal.h says for forms.
 * Sources   OpenAI's API reference (responses, streaming events of responses).
 */
#ifndef NRD_FRONTENDS_OPENAI_RESPONSES_H
#define NRD_FRONTENDS_OPENAI_RESPONSES_H

#include "frontends/openai/internal.h"
#include "frontends/openai/response_store.h"

/* What whoever names an id that is not here is told. */
#define NRD_RESP_NOT_KEPT                                                                          \
    "there is no response '%.60s': it was never kept, was deleted, or has made room for later ones"

/* ---- responses_items.c ---- */

/* A list of the chat's messages that is being written. What the assistant said and called in a row is
 * one message there. */
typedef struct nrd_resp_messages {
    nrd_str *out; /* borrows; behind the list's bracket */
    nrd_str reasoning, calls;
    nrd_str content;  /* JSON */
    bool any; /* something was written */
} nrd_resp_messages;

/* `at`: where the list stands in the body, for errors. */
nrd_error *nrd_resp_put_items(nrd_resp_messages *w, const nrd_json *items, const char *at) NRD_MUST_USE;
void nrd_resp_put_text(nrd_resp_messages *w, const char *role, const nrd_json *text); /* text: a string */
nrd_error *nrd_resp_end_items(nrd_resp_messages *w) NRD_MUST_USE; /* writes what is left; frees */
const char *nrd_resp_suffix(const nrd_oai_request *r); /* of its id, which the ids of its items end with too */
/* The items as they are told to clients, each with an id that is made of `id`. */
void nrd_resp_list_items(nrd_str *out, const nrd_json *input, const char *id);

/* ---- responses_tools.c ---- */
/* The members tools and tool_choice of the chat; r->resp.tools gets what functions were called in the body. */
nrd_error *nrd_resp_put_tools(nrd_oai_request *r, nrd_str *out, const nrd_json *root) NRD_MUST_USE;
/* As JSON, the function's name for a call or a choice that has a name and maybe a namespace. */
nrd_error *nrd_resp_put_called_name(nrd_str *out, const nrd_json *item) NRD_MUST_USE;
/* Of a call as nrd_oai_parse writes it: */
bool nrd_resp_is_custom(const nrd_oai_request *r, const nrd_json *call); /* of a custom tool */
void nrd_resp_put_name(nrd_str *o, const nrd_oai_request *r, const nrd_json *call); /* the members name and namespace */
void nrd_resp_put_input(nrd_str *o, const nrd_json *call); /* as JSON, the text for a custom tool */

/* ---- responses_in.c ---- */
nrd_error *nrd_oai_responses_convert(nrd_oai_request *r, const nrd_json *root, nrd_str *out) NRD_MUST_USE;

/* ---- responses_out.c ---- */

/* What of an answer is there. */
typedef struct nrd_resp_parts {
    const nrd_oai_choice *c;
    nrd_oai_parsed spans; /* of its text */
    const nrd_json *calls; /* a list as nrd_oai_parse writes it; NULL: none */
} nrd_resp_parts;

typedef enum { NRD_RESP_REASONING = 1, NRD_RESP_MESSAGE, NRD_RESP_CALL } nrd_resp_kind;

void nrd_resp_put_id(nrd_str *o, const nrd_oai_request *r, nrd_resp_kind kind, size_t n); /* of an item; n: which call */
/* Whether a message is among the items: there is always something. */
bool nrd_resp_has_message(const nrd_oai_parsed *p);
/* One item; n: which of the calls. With status "in_progress" it is empty. */
void nrd_resp_put_item(nrd_str *o, const nrd_resp_parts *p, nrd_resp_kind kind, size_t n, const char *status);
/* The log probabilities of the tokens of the text, from token `from` on, as a list; empty unless asked for. */
void nrd_resp_put_log_probs(nrd_str *o, const nrd_resp_parts *p, size_t from);
/* The whole object. parts NULL: nothing is said yet. error: of a failed answer; NULL: none. */
void nrd_resp_put(nrd_str *o, const nrd_oai_request *r, const nrd_resp_parts *parts, const char *status,
                  const char *error);
const char *nrd_resp_status(const nrd_oai_choice *c); /* of one that has ended */
/* Keeps the answer, if that was asked for. */
nrd_error *nrd_resp_keep(nrd_oai_request *r, const char *answer, size_t n) NRD_MUST_USE;
/* The answer that is made in the background ends with this error. */
void nrd_resp_fail_job(nrd_oai_request *r, const char *message);

/* ---- responses_background.c ---- */
/* In the background: a place is taken before the request starts (r->resp.job); then its client is answered, or follows
 * the events, and the request goes on alone. Loop thread. */
nrd_error *nrd_resp_take_job(nrd_oai_request *r) NRD_MUST_USE;
nrd_error *nrd_resp_detach(nrd_oai_request *r) NRD_MUST_USE;
void nrd_resp_cancel_run(void *handle); /* of nrd_background_new */
bool nrd_resp_is_streamed(const nrd_http_request *req); /* the query asks for events */
void nrd_resp_follow(nrd_openai *o, nrd_http_request *req, const char *id); /* and gets them */

/* ---- responses_stream.c ---- */
void nrd_resp_put_queued(nrd_str *o, nrd_oai_choice *c); /* the first events of an answer in the background */
void nrd_resp_put_chunk(nrd_str *o, nrd_oai_choice *c);
void nrd_resp_put_failure(nrd_str *o, const nrd_oai_request *r, const char *message);

#endif
