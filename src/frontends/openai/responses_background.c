/* SPDX-License-Identifier: Apache-2.0
 * /v1/responses with background: the request lets its client go and is made on; what is asked of it meanwhile.
 * Source: OpenAI's guide to background mode. */
#include "frontends/openai/background.h"
#include "frontends/openai/responses.h"

#include <string.h>

/* ---- the request ---- */

typedef struct run { /* of a request without a client */
    nrd_http_local local; /* first: a pointer to it is one to the run */
    nrd_bg_job *job; /* shares until it is over */
} run;

static void on_done(nrd_http_local *l, int status, nrd_str *body)
{
    run *w = (run *)(void *)l;
    (void)status;
    (void)body; /* the answer is kept, or why there is none */
    nrd_bg_over(w->job);
    free(w);
}

static void on_wrote(nrd_http_local *l, const void *data, size_t n)
{
    nrd_bg_write(((run *)(void *)l)->job, data, n);
}

void nrd_resp_cancel_run(void *handle)
{
    run *w = handle;
    nrd_error_free(nrd_http_local_cancel_on(w->local.loop, w->local.group)); /* without memory it ends by itself */
}

nrd_error *nrd_resp_take_job(nrd_oai_request *r)
{
    nrd_str object = {0};
    nrd_resp_put(&object, r, NULL, "queued", NULL);
    nrd_error *err = nrd_background_add(r->o->background, r->key, r->id, &object, &r->resp.input, r->stream, &r->resp.job);
    nrd_str_fini(&object);
    return err;
}

/* ---- a stream of its events ---- */

typedef struct follower {
    nrd_http_task task; /* first: a pointer to it is one to the follower */
    nrd_bg_reader reader;
    nrd_http_loop *loop;   /* of req */
    nrd_http_request *req; /* shares; NULL: it is over */
} follower;

static void follow_over(follower *f)
{
    nrd_http_request *req = f->req;
    f->req = NULL;
    req->on_gone = NULL;
    if (!nrd_bg_detach(&f->reader)) {
        free(f); /* else its task does */
    }
    nrd_http_request_unref(req);
}

static void on_gone(nrd_http_request *req, void *arg)
{
    (void)req;
    follow_over(arg);
}

/* On the loop of the one who reads. */
static void run_follow(nrd_http_task *task)
{
    follower *f = (follower *)(void *)task;
    nrd_str events = {0};

    if (!f->req) {
        free(f);
        return;
    }
    nrd_http_request *req = f->req;
    nrd_http_request_ref(req); /* a write may find the client gone */
    const bool last = nrd_bg_read(&f->reader, &events);
    if (events.len > 0 || events.no_memory) {
        nrd_http_stream_put(req, &events);
    }
    if (last && !nrd_http_is_gone(req)) {
        follow_over(f);
        nrd_http_stream_end(req);
    }
    nrd_http_request_unref(req);
    nrd_str_fini(&events);
}

static void on_wake(nrd_bg_reader *r)
{
    follower *f = (follower *)(void *)((char *)r - offsetof(follower, reader));
    nrd_http_post(f->loop, &f->task);
}

/* Begins to answer req with the events from number `from` on. *found false: there is no such job. */
static nrd_error *follow(nrd_openai *o, nrd_http_request *req, int key, const char *id, size_t from, const char *extra, bool *found)
{
    follower *f = calloc(1, sizeof *f);
    *found = true;
    if (!f) {
        return nrd_error_no_memory();
    }
    f->task.run = run_follow;
    f->reader.wake = on_wake;
    f->loop = req->loop;
    f->req = req;
    nrd_error *err = nrd_background_attach(o->background, key, id, from, &f->reader, found);
    if (err || !*found) {
        free(f);
        return err;
    }
    nrd_http_request_ref(req);
    req->on_gone = on_gone;
    req->gone_arg = f;
    nrd_http_stream_begin(req, 200, nrd_oai_form_responses.stream_type, extra);
    return NULL;
}

nrd_error *nrd_resp_detach(nrd_oai_request *r)
{
    static _Atomic uint64_t n_groups;
    nrd_http_request *client = NULL;
    nrd_str first = {0};
    bool found;
    run *w = calloc(1, sizeof *w);
    if (!w) {
        return nrd_error_no_memory();
    }
    w->job = r->resp.job;
    w->local = (nrd_http_local){.key = r->key, .group = atomic_fetch_add(&n_groups, 1) | NRD_HTTP_LOCAL_ADOPTED,
                                .done = on_done, .wrote = r->stream ? on_wrote : NULL};
    nrd_resp_put(&first, r, NULL, "queued", NULL);
    nrd_error *err = nrd_http_local_adopt(r->req, &w->local, &client);
    if (err) {
        nrd_str_fini(&first);
        free(w);
        return err;
    }
    r->resp.detached = true;
    r->streaming = r->stream;
    nrd_bg_run(w->job, w);
    if (r->stream) {
        nrd_error *lost = follow(r->o, client, r->key, r->id, 0, r->extra, &found);
        if (lost || !found) {
            nrd_oai_fail(client, lost ? lost : nrd_error_no_memory(), r->extra);
        }
        nrd_str_clear(&first);
        nrd_resp_put_queued(&first, &r->choices[0]);
        nrd_http_stream_put(r->req, &first);
    } else {
        nrd_http_reply_str(client, 200, "application/json", r->extra, &first);
    }
    nrd_str_fini(&first);
    return NULL;
}

/* ---- questions ---- */

bool nrd_resp_is_streamed(const nrd_http_request *req)
{
    char value[8];
    return nrd_oai_query(req, "stream", value, sizeof value) && strcmp(value, "false") != 0;
}

static nrd_error *read_after(const nrd_http_request *req, size_t *out)
{
    char value[24];
    long long after = -1;
    if (nrd_oai_query(req, "starting_after", value, sizeof value) && (!nrd_parse_i64(value, &after) || after < 0)) {
        return nrd_oai_errorf(NRD_ERR_INVALID_ARG, "starting_after", "must be the number of an event, 0 or more");
    }
    *out = (size_t)(after + 1);
    return NULL;
}

void nrd_resp_follow(nrd_openai *o, nrd_http_request *req, const char *id)
{
    char *extra = NULL;
    size_t from = 0;
    bool found = true;

    if (!nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    nrd_error *err = read_after(req, &from);
    err = err ? err : follow(o, req, nrd_oai_key(o, req), id, from, extra, &found);
    if (!err && !found) {
        nrd_kept_response *kept = nrd_response_store_find(o->kept, nrd_oai_key(o, req), id);
        err = kept ? nrd_oai_errorf(NRD_ERR_UNSUPPORTED, "stream", "the events of an answer are kept only where it was made with "
                                    "background and stream, and until others need their place")
                   : nrd_error_because(nrd_errorf(NRD_ERR_NOT_FOUND, NRD_RESP_NOT_KEPT, id), "response_not_found");
        nrd_response_store_give_back(o->kept, kept);
    }
    if (err) {
        nrd_oai_fail(req, err, extra);
    }
    free(extra);
}
