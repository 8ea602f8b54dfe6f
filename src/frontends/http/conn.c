/* SPDX-License-Identifier: Apache-2.0
 * Connections and requests: what they hold, which events they wait for, and their end. */
#include "frontends/http/conn.h"

#include "base/pool.h"
#include "frontends/http/forwarded.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

nrd_http_inbuf *nrd_http_inbuf_new(size_t cap)
{
    nrd_http_inbuf *b = malloc(sizeof *b + cap);
    if (b) {
        atomic_init(&b->refs, 1);
        b->cap = cap;
        b->len = 0;
    }
    return b;
}

void nrd_http_inbuf_unref(nrd_http_inbuf *b)
{
    if (b && atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1) {
        free(b);
    }
}

static const nrd_networks nobody;

static const nrd_networks *trusted_of(const nrd_http_request *req)
{
    const nrd_networks *t = req->loop->server->cfg.trusted;
    return t ? t : &nobody;
}

static nrd_address peer_of(const nrd_http_request *req)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof a;

    return req->conn && getpeername(req->conn->fd, (struct sockaddr *)&a, &n) == 0 ? nrd_address_of((const struct sockaddr *)&a)
                                                                                   : (nrd_address){{0}};
}

nrd_address nrd_http_client(const nrd_http_request *req)
{
    const nrd_address peer = peer_of(req);
    return nrd_http_forwarded_for(&req->head, &peer, trusted_of(req));
}

const char *nrd_http_proto(const nrd_http_request *req)
{
    const nrd_address peer = peer_of(req);
    return nrd_http_forwarded_proto(&req->head, &peer, trusted_of(req));
}

nrd_http_request *nrd_http_request_new(nrd_http_loop *l, nrd_http_conn *c)
{
    nrd_http_request *req = l->spare;
    if (req) {
        l->spare = (nrd_http_request *)req->gone_arg;
        l->n_spare--;
    } else {
        req = nrd_pool_get(sizeof *req);
        if (!req) {
            return NULL;
        }
    }
    atomic_init(&req->refs, 1);
    req->head.path = (nrd_view){0};
    req->body = NULL;
    req->body_n = 0;
    req->in_pieces = false;
    req->on_piece = NULL;
    req->piece_arg = NULL;
    req->local = NULL;
    req->begin_ns = req->ready_ns = l->now_ns;
    req->user = l->server->cfg.user;
    req->on_gone = NULL;
    req->gone_arg = NULL;
    req->on_free = NULL;
    req->loop = l;
    req->conn = c;
    req->in = NULL;
    req->own_body = NULL;
    req->claim = (nrd_claim){0};
    req->streaming = false;
    req->warning = NULL;
    return req;
}

void nrd_http_request_ref(nrd_http_request *req)
{
    atomic_fetch_add_explicit(&req->refs, 1, memory_order_relaxed);
}

void nrd_http_warn(nrd_http_request *req, const char *fmt, ...)
{
    char *text = NULL;
    va_list args;

    va_start(args, fmt);
    const int n = vasprintf(&text, fmt, args);
    va_end(args);
    if (n < 0) {
        return; /* without memory the answer comes without it */
    }
    for (char *p = text; *p; p++) {
        *p = *p < ' ' || *p > '~' ? '.' : *p;
    }
    free(req->warning);
    req->warning = text;
}

void nrd_http_request_unref(nrd_http_request *req)
{
    if (!req || atomic_fetch_sub_explicit(&req->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    nrd_http_inbuf_unref(req->in);
    free(req->own_body);
    free(req->warning);
    nrd_claim_give_all(&req->claim);
    if (req->on_free) {
        req->on_free(req->free_arg);
    }
    nrd_http_loop *l = nrd_http_here;
    if (l && l == req->loop && l->n_spare < NRD_HTTP_SPARE_REQUESTS) {
        req->gone_arg = l->spare; /* the list of spares is linked here */
        l->spare = req;
        l->n_spare++;
        return;
    }
    nrd_pool_put(req, sizeof *req);
}

bool nrd_http_is_gone(const nrd_http_request *req)
{
    return req->conn == NULL && req->local == NULL;
}

void nrd_http_segment_free(nrd_http_segment *s)
{
    if (s->done) {
        s->done(s->arg);
    }
    free(s);
}

void nrd_http_conn_release(nrd_http_conn *c)
{
    if (c->depth == 0 && c->dead) {
        free(c);
    }
}

void nrd_http_conn_close(nrd_http_conn *c)
{
    nrd_http_loop *l = c->loop;
    if (c->dead) {
        return;
    }
    c->dead = true;
    nrd_http_conn_want(&c->ev_read, &c->on_read, false);
    nrd_http_conn_want(&c->ev_closed, &c->on_closed, false);
    nrd_http_conn_want(&c->ev_write, &c->on_write, false);
    nrd_http_conn_end_tls(c);
    close(c->fd);
    *(c->prev ? &c->prev->next : &l->conns) = c->next;
    if (c->next) {
        c->next->prev = c->prev;
    }
    while (c->out) {
        nrd_http_segment *s = c->out;
        c->out = s->next;
        nrd_http_segment_free(s);
    }
    nrd_http_inbuf_unref(c->in);
    c->in = NULL;
    nrd_http_request *req = c->req;
    c->req = NULL;
    if (req) {
        req->conn = NULL;
        if ((c->state == BUSY || req->in_pieces) && req->on_gone) {
            req->on_gone(req, req->gone_arg);
        }
        nrd_http_request_unref(req);
    }
    if (c->late) {
        l->n_late--;
    } else {
        atomic_fetch_sub(&l->n_conns, 1);
    }
}

/* Input is read when there is a place for it; otherwise only the end of the connection is
 * watched. */
void nrd_http_conn_update_reading(nrd_http_conn *c)
{
    bool reading = true, watching = false;
    if (c->dead) {
        return;
    }
    switch (c->state) {
    case READ_HEAD:
        reading = c->out_bytes <= NRD_HTTP_MAX_PIPELINE_OUT;
        watching = !reading;
        break;
    case BUSY:
        /* Pipelined bytes go behind the current request; its buffer must not move. */
        reading = c->in && c->in->len < c->in->cap;
        watching = !reading;
        break;
    case CLOSING:
    case HELD:
        reading = false;
        break;
    case LINGER:
    case HANDSHAKE:
        break;
    default:
        break;
    }
    if (c->input_ended) { /* the end would be told again and again; a reset comes as a new event */
        reading = false;
        watching = c->state == BUSY;
    }
    /* libevent cannot mix edge and level on one descriptor: who is added to the other would have its kind, and what one
     * reading leaves behind would never be told. While output waits, sending tells. */
    watching = watching && !c->on_write;
    if (!watching) {
        nrd_http_conn_want(&c->ev_closed, &c->on_closed, false);
    }
    nrd_http_conn_want(&c->ev_read, &c->on_read, reading);
    if (watching) {
        nrd_http_conn_want(&c->ev_closed, &c->on_closed, true);
    }
    if (reading && nrd_http_conn_has_pending(c)) {
        event_active(&c->ev_read, EV_READ, 0);
    }
}

/* Everything is sent and the connection shall end. Closing a socket with unread input makes the
 * kernel send a reset, which can destroy the reply on its way; so that input is read away first, unless
 * its end was read already: that is told once, and would be waited for until the time is over. */
void nrd_http_conn_finish(nrd_http_conn *c)
{
    if (c->linger_after && !c->input_ended) {
        c->state = LINGER;
        nrd_http_conn_end_tls(c);
        shutdown(c->fd, SHUT_WR);
        c->active_ns = c->loop->now_ns;
        nrd_http_conn_update_reading(c);
        return;
    }
    nrd_http_conn_close(c);
}
