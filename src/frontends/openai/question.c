/* SPDX-License-Identifier: Apache-2.0
 * Questions that are answered with one JSON text: models, tokens. They are worked on by a worker,
 * unless a short body asks about a model whose tokenizer is known to be open. */
#include "frontends/openai/internal.h"

#include <string.h>

static void release(nrd_oai_question *q)
{
    nrd_error_free(q->err);
    nrd_json_doc_free(q->doc);
    nrd_str_fini(&q->out);
    nrd_http_request_unref(q->req);
    free(q->model);
    free(q->extra);
    free(q);
}

static void put_answer(void *arg)
{
    nrd_oai_question *q = arg;
    if (!q->model && !q->doc) {
        q->err = nrd_oai_body(q->req, &q->doc);
    }
    if (!q->err) {
        q->err = q->put(q);
    }
}

static void answer(void *arg, bool ran)
{
    nrd_oai_question *q = arg;
    if (!ran && !q->err) {
        q->err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the server is shutting down");
    }
    if (q->err) {
        nrd_oai_fail(q->req, q->err, q->extra);
        q->err = NULL;
    } else {
        nrd_http_reply_str(q->req, 200, "application/json", q->extra, &q->out);
    }
    release(q);
}

/* Whether a request may be read on the loop: then the body is read, or *err says why not. */
static bool is_short(nrd_openai *o, nrd_http_request *req, nrd_json_doc **doc, nrd_error **err)
{
    *err = NULL;
    if (req->body_n > OAI_SHORT_BODY) {
        return false;
    }
    *err = *doc ? NULL : nrd_oai_body(req, doc);
    if (*err) {
        return true;
    }
    nrd_oai_model *m = nrd_oai_known_model(o, nrd_json_get_str(nrd_json_root(*doc), "model", ""));
    nrd_oai_model_unref(m);
    return m != NULL;
}

static void to_worker(nrd_openai *o, nrd_http_request *req, nrd_error **err, void (*work)(void *arg),
                      void (*done)(void *arg, bool ran), void *arg)
{
    nrd_error *full = nrd_http_work(o->api->front->workers, req, work, done, arg);
    if (full) { /* else arg is the worker's, and maybe gone */
        *err = full;
        done(arg, true);
    }
}

void nrd_oai_work(nrd_openai *o, nrd_http_request *req, nrd_json_doc **doc, nrd_error **err, void (*work)(void *arg),
                  void (*done)(void *arg, bool ran), void *arg)
{
    if (is_short(o, req, doc, err)) {
        if (!*err) {
            work(arg);
        }
        done(arg, true);
    } else {
        to_worker(o, req, err, work, done, arg);
    }
}

/* Takes extra and doc. */
static void ask(nrd_openai *o, nrd_http_request *req, char *extra, nrd_json_doc *doc, const char *model,
                nrd_error *(*put)(nrd_oai_question *q))
{
    nrd_oai_question *q = calloc(1, sizeof *q);
    if (!q) {
        nrd_oai_fail(req, nrd_error_no_memory(), extra);
        nrd_json_doc_free(doc);
        free(extra);
        return;
    }
    q->o = o;
    q->req = req;
    nrd_http_request_ref(req);
    q->extra = extra;
    q->doc = doc;
    q->put = put;
    if (nrd_oai_only_reads(req)) {
        q->model = strdup(model ? model : "");
        if (q->model) {
            to_worker(o, req, &q->err, put_answer, answer, q);
        } else {
            q->err = nrd_error_no_memory();
            answer(q, true);
        }
    } else {
        nrd_oai_work(o, req, &q->doc, &q->err, put_answer, answer, q);
    }
}

static void go(nrd_openai *o, nrd_http_request *req, char *extra, nrd_json_doc *doc, const nrd_oai_what *what)
{
    ask(o, req, extra, doc, NULL, what->put);
}

void nrd_oai_ask(nrd_openai *o, nrd_http_request *req, const char *model,
                 nrd_error *(*put)(nrd_oai_question *q))
{
    char *extra = NULL;
    if (!nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    if (nrd_oai_only_reads(req)) {
        ask(o, req, extra, NULL, model, put);
    } else {
        nrd_oai_pass(o, req, extra, (nrd_oai_what){.put = put}, go);
    }
}
