/* SPDX-License-Identifier: Apache-2.0
 * /v1/batches, and how batches ask the endpoints. */
#include "frontends/openai/internal.h"

#include <string.h>

static nrd_error *put_list(nrd_oai_question *q)
{
    char owner[NRD_FILE_OWNER], after[64] = "";
    long long limit;

    NRD_TRY(nrd_oai_query_limit(q->req, 20, 100, &limit));
    (void)nrd_oai_query(q->req, "after", after, sizeof after);
    nrd_oai_owner(q->o, q->req, owner);
    return nrd_batches_list(q->o->batches, owner, after, (size_t)limit, &q->out);
}

static nrd_error *put_new(nrd_oai_question *q)
{
    char owner[NRD_FILE_OWNER];
    nrd_oai_owner(q->o, q->req, owner);
    return nrd_batches_create(q->o->batches, owner, nrd_json_root(q->doc), &q->out);
}

/* CORS asks before it sends JSON; a form or a plain text of another page comes without that. */
static bool is_foreign(nrd_openai *o, nrd_http_request *req)
{
    return req->head.method == NRD_HTTP_POST && nrd_oai_refuse_foreign(o, req, NULL);
}

void nrd_oai_on_batches(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    if (!is_foreign(user, req)) {
        nrd_oai_ask(user, req, NULL, req->head.method == NRD_HTTP_GET ? put_list : put_new);
    }
}

static nrd_error *put_one(nrd_oai_question *q)
{
    char owner[NRD_FILE_OWNER];
    nrd_oai_owner(q->o, q->req, owner);
    return nrd_batches_show(q->o->batches, owner, q->model, &q->out);
}

void nrd_oai_on_batch(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_oai_ask(user, req, route->model, put_one);
}

void nrd_oai_on_batch_cancel(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_openai *o = user;
    char owner[NRD_FILE_OWNER], *extra = NULL;
    nrd_str out = {0};

    if (is_foreign(o, req) || !nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    nrd_oai_owner(o, req, owner);
    nrd_error *err = nrd_batches_cancel(o->batches, owner, route->model, &out);
    if (err) {
        nrd_oai_fail(req, err, extra);
    } else {
        nrd_http_reply_str(req, 200, "application/json", extra, &out);
    }
    nrd_str_fini(&out);
    free(extra);
}

/* ---- the endpoints, in the order of nrd_batch_endpoint ---- */

static void ask_chat(void *user, nrd_http_request *req)
{
    nrd_oai_generate(user, req, &nrd_oai_form_chat);
}

static void ask_text(void *user, nrd_http_request *req)
{
    nrd_oai_generate(user, req, &nrd_oai_form_text);
}

static void ask_embeddings(void *user, nrd_http_request *req)
{
    nrd_oai_on_embeddings(user, req, NULL);
}

static void ask_response(void *user, nrd_http_request *req)
{
    nrd_oai_generate(user, req, &nrd_oai_form_responses);
}

nrd_batch_asks nrd_oai_asks(nrd_openai *o, nrd_http_server *server)
{
    return (nrd_batch_asks){.server = server, .handle = {ask_chat, ask_text, ask_embeddings, ask_response}, .user = o};
}
