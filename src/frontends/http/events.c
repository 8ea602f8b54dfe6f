/* SPDX-License-Identifier: Apache-2.0
 * What the event loop tells of a connection: bytes have come, there is room for more, it has ended. */
#include "frontends/http/conn.h"

#include "base/clock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BUDGET (1u << 20) /* bytes taken from one connection before others get a turn */

static void on_end_of_input(nrd_http_conn *c)
{
    if (c->input_ended) {
        return; /* told again */
    }
    c->input_ended = true;
    if (c->state == BUSY && nrd_http_conn_probe(c)) {
        nrd_http_conn_update_reading(c);
    } else if (c->state == READ_HEAD) {
        nrd_http_conn_process(c); /* it may wait for the rest of a reply, or of several */
    } else if (c->state != CLOSING) {
        nrd_http_conn_close(c);
    }
}

static void on_read(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_conn *c = arg;
    size_t budget = READ_BUDGET;
    bool got = false;

    (void)fd;
    (void)what;
    nrd_http_loop_awake(c->loop);
    c->active_ns = c->state == LINGER || c->state == HANDSHAKE ? c->active_ns : c->loop->now_ns;
    c->depth++;
    if (c->state == HANDSHAKE && !nrd_http_conn_handshake(c)) {
        goto done;
    }
    c->in_process = true; /* replies sent from inside do not recurse into nrd_http_conn_process() */
    while (!c->dead && c->on_read) {
        char *to;
        size_t room;
        if (!nrd_http_conn_read_target(c, &to, &room)) {
            if (c->state == READ_HEAD) {
                nrd_http_conn_close(c); /* no memory */
            }
            break;
        }
        ssize_t r = nrd_http_conn_recv(c, to, room);
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            break;
        }
        if (r <= 0) {
            r == 0 ? on_end_of_input(c) : nrd_http_conn_close(c);
            break;
        }
        got = true;
        c->moved += (size_t)r;
        nrd_http_conn_took(c, to, (size_t)r);
        /* A short read has emptied the socket; asking again would cost a system call. Of TLS it is the
         * end of a record. */
        if (((size_t)r < room && !c->tls) || (size_t)r >= budget) {
            break;
        }
        budget -= (size_t)r;
    }
    c->in_process = false;
    if (!c->dead && c->state == READ_HEAD && got) {
        nrd_http_conn_process(c);
    } else {
        nrd_http_conn_update_reading(c);
    }
done:
    c->depth--;
    nrd_http_conn_release(c);
}

static void on_closed(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_conn *c = arg;
    int error = 0;
    socklen_t n = sizeof error;
    nrd_http_loop_awake(c->loop);
    c->depth++;
    if (what & EV_CLOSED) {
        on_end_of_input(c);
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error != 0) {
        nrd_http_conn_close(c); /* a reset is reported as readable */
    }
    c->depth--;
    nrd_http_conn_release(c);
}

/* All output is gone: what waited for that. */
static void sent_all(nrd_http_conn *c)
{
    if (c->state == CLOSING) {
        nrd_http_conn_finish(c);
    } else if (c->state == READ_HEAD) {
        nrd_http_conn_process(c); /* a pipelined request may have waited for this */
    } else {
        nrd_http_conn_update_reading(c);
    }
}

static void on_write(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_conn *c = arg;
    (void)fd;
    (void)what;
    nrd_http_loop_awake(c->loop);
    if (c->state == HANDSHAKE || c->read_wants_write) {
        c->read_wants_write = false;
        if (c->on_read) {
            event_active(&c->ev_read, EV_READ, 0);
        }
        if (c->state == HANDSHAKE) {
            nrd_http_conn_want(&c->ev_write, &c->on_write, false); /* the handshake asks again */
            return;
        }
    }
    c->depth++;
    if (nrd_http_conn_flush(c)) {
        sent_all(c);
    }
    c->depth--;
    nrd_http_conn_release(c);
}

void nrd_http_conn_new(nrd_http_loop *l, int fd, bool late)
{
    int one = 1;
    nrd_http_conn *c = calloc(1, sizeof *c);
    if (!c) {
        close(fd);
        atomic_fetch_sub(&l->n_conns, 1);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->loop = l;
    c->fd = fd;
    c->out_tail = &c->out;
    c->active_ns = nrd_now_ns();
    if (late) {
        c->late = true;
        l->n_late++;
        atomic_fetch_sub(&l->n_conns, 1);
    }
    event_assign(&c->ev_read, l->base, fd, EV_READ | EV_PERSIST, on_read, c);
    event_assign(&c->ev_closed, l->base, fd, EV_READ | EV_CLOSED | EV_ET | EV_PERSIST,
                 on_closed, c);
    event_assign(&c->ev_write, l->base, fd, EV_WRITE | EV_PERSIST, on_write, c);
    if (l->server->cfg.tls) {
        c->state = HANDSHAKE;
        c->tls = nrd_tls_conn_new(l->server->cfg.tls, fd);
    }
    c->next = l->conns;
    if (l->conns) {
        l->conns->prev = c;
    }
    l->conns = c;
    if (c->state == HANDSHAKE && !c->tls) {
        nrd_http_conn_close(c); /* no memory */
        nrd_http_conn_release(c);
        return;
    }
    nrd_http_conn_update_reading(c);
}
