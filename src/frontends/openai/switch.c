/* SPDX-License-Identifier: Apache-2.0
 * Orders about the models of a server that has several: vLLM's /sleep, /wake_up and /is_sleeping, llama.cpp's
 * /models/load and /models/unload.
 * Source: the references of both servers. */
#include "frontends/openai/internal.h"

#include "frontends/http/lease.h"


nrd_error *nrd_oai_needs_several(void)
{
    return nrd_errorf(NRD_ERR_UNSUPPORTED, "This server's models stay as they are. One that was started with several models, or as "
                                           "nereid serve MODEL --keep-alive -1, can change that");
}

/* The model of ?model=NAME; *out NULL: all. */
static nrd_error *asked_model(nrd_openai *o, const nrd_http_request *req, nrd_switch_model **out)
{
    char name[1024];

    *out = NULL;
    if (!nrd_oai_query(req, "model", name, sizeof name)) {
        return NULL;
    }
    *out = nrd_oai_switch_model(o, name);
    return *out ? NULL : nrd_oai_no_such_model(o, name);
}

/* ---- sleep and wake ---- */

typedef struct order {
    nrd_switch_ticket ticket;
    nrd_http_task task;
    nrd_openai *o;
    nrd_http_request *req; /* shares */
    char *extra;
    nrd_switch_model *model; /* NULL: all */
    bool wakes;
    nrd_switch_model *waking; /* of a wake: which is loaded now */
} order;

/* Takes err. */
static void order_end(order *w, nrd_error *err)
{
    w->req->on_gone = NULL;
    if (err) {
        nrd_oai_fail(w->req, err, w->extra);
    } else {
        nrd_http_reply(w->req, 200, "application/json", w->extra, "{}", 2);
    }
    nrd_http_request_unref(w->req);
    free(w->extra);
    free(w);
}

static void wake_next(order *w);

static void run_order(nrd_http_task *task)
{
    order *w = (order *)(void *)((char *)(void *)task - offsetof(order, task));
    nrd_error *err = w->ticket.err;
    if (w->wakes && !err) {
        nrd_switcher_release(w->o->api->front->switcher, w->waking, NRD_SWITCH_DEFAULT);
        wake_next(w);
    } else {
        order_end(w, err);
    }
}

static void on_ticket(nrd_switch_ticket *t)
{
    order *w = t->user;
    w->task.run = run_order;
    nrd_http_post(w->req->loop, &w->task);
}

/* The order stands, but nobody waits for its end. */
static void on_gone(nrd_http_request *req, void *arg)
{
    order *w = arg;
    (void)req;
    if (nrd_switcher_cancel(w->o->api->front->switcher, &w->ticket)) {
        order_end(w, nrd_errorf(NRD_ERR_CANCELLED, "the client has gone"));
    }
}

/* Loads what was loaded before the sleep, one after the other. */
static void wake_next(order *w)
{
    nrd_switcher *s = w->o->api->front->switcher;
    nrd_switch_model *m;
    while ((m = nrd_switcher_next(s, w->waking)) != NULL) {
        nrd_switch_info info;
        bool now = false;
        w->waking = m;
        nrd_switcher_info(s, m, &info);
        if ((w->model && w->model != m) || !info.was_ready || info.state == NRD_SWITCH_READY || nrd_http_is_gone(w->req)) {
            continue;
        }
        w->ticket = (nrd_switch_ticket){.done = on_ticket, .user = w};
        nrd_error *err = nrd_switcher_acquire(s, m, &w->ticket, &now);
        if (err) {
            order_end(w, err);
            return;
        }
        if (!now) {
            return; /* run_order goes on */
        }
        nrd_switcher_release(s, m, NRD_SWITCH_DEFAULT);
    }
    order_end(w, NULL);
}

static void give_order(nrd_openai *o, nrd_http_request *req, bool wakes)
{
    nrd_switcher *s = o->api->front->switcher;
    char *extra = NULL;
    bool now = false;

    if (!nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    order *w = calloc(1, sizeof *w);
    nrd_error *err = !w ? nrd_error_no_memory() : s ? NULL : nrd_oai_needs_several();
    if (!err) {
        err = asked_model(o, req, &w->model);
    }
    if (err) {
        nrd_oai_fail(req, err, extra);
        free(extra);
        free(w);
        return;
    }
    w->ticket = (nrd_switch_ticket){.done = on_ticket, .user = w};
    w->o = o;
    w->req = req;
    w->extra = extra;
    w->wakes = wakes;
    nrd_http_request_ref(req);
    req->on_gone = on_gone;
    req->gone_arg = w;
    if (wakes) {
        nrd_switcher_wake(s, w->model);
        wake_next(w);
        return;
    }
    err = nrd_switcher_sleep(s, w->model, &w->ticket, &now);
    if (err || now) {
        order_end(w, err);
    }
}

void nrd_oai_on_sleep(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    give_order(user, req, false);
}

void nrd_oai_on_wake_up(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    give_order(user, req, true);
}

static nrd_error *put_sleeping(nrd_oai_question *q)
{
    nrd_switcher *s = q->o->api->front->switcher;
    nrd_switch_model *m = NULL;
    if (s) {
        NRD_TRY(asked_model(q->o, q->req, &m));
    }
    nrd_str_puts(&q->out, s && nrd_switcher_is_asleep(s, m) ? "{\"is_sleeping\":true}" : "{\"is_sleeping\":false}");
    return NULL;
}

void nrd_oai_on_is_sleeping(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, put_sleeping);
}

/* ---- load and unload ---- */

static const char success[] = "{\"success\":true}";

typedef struct waiting_load {
    char *extra;
} waiting_load;

static void loaded(void *user, nrd_http_request *req, nrd_error *err)
{
    waiting_load *l = user;
    if (err) {
        nrd_oai_fail(req, err, l->extra);
    } else {
        nrd_http_reply(req, 200, "application/json", l->extra, success, sizeof success - 1);
    }
    free(l->extra);
    free(l);
}

static void change(nrd_openai *o, nrd_http_request *req, bool loads)
{
    nrd_switcher *s = o->api->front->switcher;
    nrd_json_doc *doc = NULL;
    nrd_switch_model *m = NULL;
    char *extra = NULL;

    if (!nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    waiting_load *l = calloc(1, sizeof *l);
    nrd_error *err = !l ? nrd_error_no_memory() : s ? NULL : nrd_oai_needs_several();
    if (!err && req->body_n > OAI_SHORT_BODY) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the body is longer than %d bytes", OAI_SHORT_BODY);
    }
    err = err ? err : nrd_oai_body(req, &doc);
    const char *name = err ? NULL : nrd_json_get_str(nrd_json_root(doc), "model", NULL);
    if (!err && !name) {
        err = nrd_oai_errorf(NRD_ERR_INVALID_ARG, "model", "must be the name of a model");
    }
    if (!err) {
        m = nrd_oai_switch_model(o, name);
        err = m ? NULL : nrd_oai_no_such_model(o, name);
    }
    nrd_json_doc_free(doc);
    if (!err && loads) {
        l->extra = extra;
        nrd_http_lease(s, req, m, NRD_SWITCH_DEFAULT, loaded, l);
        return;
    }
    err = err ? err : nrd_switcher_drop(s, m);
    if (err) {
        nrd_oai_fail(req, err, extra);
    } else {
        nrd_http_reply(req, 200, "application/json", extra, success, sizeof success - 1);
    }
    free(extra);
    free(l);
}

void nrd_oai_on_models_load(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    change(user, req, true);
}

void nrd_oai_on_models_unload(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    change(user, req, false);
}
