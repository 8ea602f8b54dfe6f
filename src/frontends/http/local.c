/* SPDX-License-Identifier: Apache-2.0
 * A list of each loop holds what it asked itself and what is not answered. A request may live on after its
 * answer or its end, as one whose client has gone. */
#include "frontends/http/local.h"

#include "frontends/http/conn.h"

#include <stdlib.h>
#include <string.h>

/* From the list and from its request. The request may be freed by this. */
static void leave(nrd_http_local *l)
{
    nrd_http_request *req = l->req;
    *(l->prev ? &l->prev->next : &l->loop->locals) = l->next;
    if (l->next) {
        l->next->prev = l->prev;
    }
    l->req = NULL;
    req->local = NULL;
    nrd_http_request_unref(req);
}

static void end(nrd_http_local *l)
{
    nrd_http_request *req = l->req;
    void (*on_gone)(nrd_http_request *, void *) = req->on_gone;
    nrd_str nothing = {0};

    nrd_http_request_ref(req);
    leave(l);
    if (on_gone) {
        on_gone(req, req->gone_arg);
    }
    nrd_http_request_unref(req);
    l->done(l, 0, &nothing);
}

void nrd_http_local_answer(nrd_http_request *req, int status, const struct iovec *parts, int n_parts)
{
    nrd_http_local *l = req->local;
    nrd_str body = {0};

    for (int i = 0; i < n_parts; i++) {
        nrd_str_append(&body, parts[i].iov_base, parts[i].iov_len);
    }
    leave(l);
    l->done(l, body.no_memory ? 503 : status, &body);
    nrd_str_fini(&body);
}

/* Into the list of its loop. The request's reference is the list's. */
static void enter(nrd_http_local *l, nrd_http_request *req)
{
    req->local = l;
    l->req = req;
    l->prev = NULL;
    l->next = l->loop->locals;
    if (l->next) {
        l->next->prev = l;
    }
    l->loop->locals = l;
}

static void run_start(nrd_http_task *task)
{
    nrd_http_local *l = (nrd_http_local *)(void *)((char *)task - offsetof(nrd_http_local, task));
    nrd_http_loop *loop = l->loop;
    nrd_http_request *req = nrd_http_request_new(loop, NULL);

    if (!req) {
        nrd_str nothing = {0};
        free(l->body);
        l->done(l, 503, &nothing);
        return;
    }
    memset(&req->head, 0, offsetof(nrd_http_head, fields));
    req->head.method = NRD_HTTP_POST;
    req->head.method_name = (nrd_view){"POST", 4};
    req->head.path = (nrd_view){l->path, strlen(l->path)};
    req->body = req->own_body = l->body;
    req->body_n = l->body_n;
    l->body = NULL;
    enter(l, req);
    l->handle(l->user, req);
}

void nrd_http_local_start(nrd_http_server *s, nrd_http_local *l, char *body, size_t n)
{
    static atomic_uint turn;

    l->task.run = run_start;
    l->loop = &s->loops[atomic_fetch_add(&turn, 1) % (unsigned)s->n_loops];
    l->body = body;
    l->body_n = n;
    nrd_http_post(l->loop, &l->task);
}

nrd_error *nrd_http_local_adopt(nrd_http_request *req, nrd_http_local *l, nrd_http_request **out)
{
    nrd_http_conn *c = req->conn;
    nrd_http_request *client = c ? nrd_http_request_new(req->loop, c) : NULL;

    NRD_ASSERT(!c || !c->body_open, "the body was read");
    *out = client;
    if (!client) {
        return c ? nrd_error_no_memory() : nrd_errorf(NRD_ERR_UNAVAILABLE, "the client is gone");
    }
    memcpy(&client->head, &req->head, offsetof(nrd_http_head, fields));
    client->head.n_fields = 0; /* they were looked at */
    client->in = req->in; /* which the head points into */
    atomic_fetch_add_explicit(&client->in->refs, 1, memory_order_relaxed);
    client->begin_ns = req->begin_ns;
    client->ready_ns = req->ready_ns;
    c->req = client;
    req->conn = NULL;
    l->loop = req->loop;
    enter(l, req); /* with the reference that the connection had */
    return NULL;
}

typedef struct order {
    nrd_http_task task;
    nrd_http_loop *loop;
    uint64_t group;
} order;

static void run_cancel(nrd_http_task *task)
{
    order *o = (order *)(void *)task;
    bool found = true;

    while (found) { /* done may start others, which are not in the list yet */
        found = false;
        for (nrd_http_local *l = o->loop->locals; l; l = l->next) {
            if (l->group == o->group) {
                end(l);
                found = true;
                break;
            }
        }
    }
    free(o);
}

nrd_error *nrd_http_local_cancel_on(nrd_http_loop *loop, uint64_t group)
{
    order *o = calloc(1, sizeof *o);
    if (!o) {
        return nrd_error_no_memory();
    }
    o->task.run = run_cancel;
    o->loop = loop;
    o->group = group;
    nrd_http_post(loop, &o->task);
    return NULL;
}

nrd_error *nrd_http_local_cancel(nrd_http_server *s, uint64_t group)
{
    for (int i = 0; i < s->n_loops; i++) {
        NRD_TRY(nrd_http_local_cancel_on(&s->loops[i], group));
    }
    return NULL;
}

void nrd_http_local_end_all(nrd_http_loop *loop)
{
    while (loop->locals) {
        end(loop->locals);
    }
}

bool nrd_http_is_local(const nrd_http_request *req, int *out_key)
{
    if (req->local) {
        *out_key = req->local->key;
    }
    return req->local != NULL;
}
