/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/http/lease.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* First it waits, then it is the lease. */
typedef struct lease {
    nrd_switch_ticket ticket;
    nrd_http_task task;
    nrd_switcher *switcher;
    nrd_switch_model *model;
    nrd_http_request *req; /* shares while it waits */
    uint64_t keep_ns, begun_ns, waited_ns;
    nrd_http_leased *then;
    void *user;
} lease;

static void give_back(void *arg)
{
    lease *l = arg;
    nrd_switcher_release(l->switcher, l->model, l->keep_ns);
    free(l);
}

/* Takes err. */
static void end_wait(lease *l, nrd_error *err)
{
    nrd_http_request *req = l->req;
    nrd_http_leased *then = l->then;
    void *user = l->user;

    req->on_gone = NULL;
    l->waited_ns = nrd_now_ns() - l->begun_ns;
    if (err) {
        free(l);
    } else {
        req->on_free = give_back;
        req->free_arg = l;
    }
    then(user, req, err);
    nrd_http_request_unref(req);
}

static void run_end(nrd_http_task *task)
{
    lease *l = (lease *)(void *)((char *)(void *)task - offsetof(lease, task));
    end_wait(l, l->ticket.err);
}

/* Any thread. */
static void on_ticket(nrd_switch_ticket *t)
{
    lease *l = t->user;
    l->task.run = run_end;
    nrd_http_post(l->req->loop, &l->task);
}

static void on_gone(nrd_http_request *req, void *arg)
{
    lease *l = arg;
    (void)req;
    if (nrd_switcher_cancel(l->switcher, &l->ticket)) { /* else its task is on the way */
        end_wait(l, nrd_errorf(NRD_ERR_CANCELLED, "the client has gone"));
    }
}

void nrd_http_lease(nrd_switcher *s, nrd_http_request *req, nrd_switch_model *m, uint64_t keep_ns,
                    nrd_http_leased *then, void *user)
{
    bool now = false;
    lease *l = calloc(1, sizeof *l);
    if (!l) {
        then(user, req, nrd_error_no_memory());
        return;
    }
    *l = (lease){.ticket = {.done = on_ticket, .user = l}, .switcher = s, .model = m, .req = req, .keep_ns = keep_ns,
                 .begun_ns = nrd_now_ns(), .then = then, .user = user};
    nrd_http_request_ref(req);
    req->on_gone = on_gone;
    req->gone_arg = l;
    nrd_error *err = nrd_switcher_acquire(s, m, &l->ticket, &now);
    if (err || now) {
        end_wait(l, err);
    }
}

static bool has_lease(const nrd_http_request *req)
{
    return req->on_free == give_back;
}

uint64_t nrd_http_lease_waited_ns(const nrd_http_request *req)
{
    return has_lease(req) ? ((const lease *)req->free_arg)->waited_ns : 0;
}

/* ---- paths with {m} ---- */

typedef struct waiting_route {
    nrd_http_api *api;
    nrd_http_handler *handler;
    nrd_http_route route;
} waiting_route;

static const char *moved(const char *part, const nrd_http_route *from, const nrd_http_route *to)
{
    return part ? to->text + (part - from->text) : NULL;
}

static void go_on(void *user, nrd_http_request *req, nrd_error *err)
{
    waiting_route *w = user;
    if (err) {
        nrd_http_fail(req, err);
    } else {
        w->handler(w->api, req, &w->route);
    }
    free(w);
}

bool nrd_http_waits_for_model(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route,
                              nrd_http_handler *handler)
{
    nrd_switcher *s = api->front->switcher;
    nrd_switch_model *m = s && route->model && !has_lease(req) ? nrd_switcher_find(s, route->model) : NULL;
    if (!m) {
        return false;
    }
    waiting_route *w = malloc(sizeof *w);
    if (!w) {
        nrd_http_fail(req, nrd_error_no_memory());
        return true;
    }
    *w = (waiting_route){.api = api, .handler = handler, .route = *route};
    w->route.model = moved(route->model, route, &w->route);
    w->route.version = moved(route->version, route, &w->route);
    w->route.region = moved(route->region, route, &w->route);
    nrd_http_lease(s, req, m, NRD_SWITCH_DEFAULT, go_on, w);
    return true;
}
