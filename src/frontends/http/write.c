/* SPDX-License-Identifier: Apache-2.0
 * Output: what the socket does not take at once waits in segments. */
#include "frontends/http/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Moves i and the first piece on by r bytes. */
static void advance(struct iovec *iov, int n, int *i, size_t r)
{
    while (*i < n && r >= iov[*i].iov_len) {
        r -= iov[*i].iov_len;
        (*i)++;
    }
    if (*i < n) {
        iov[*i].iov_base = (char *)iov[*i].iov_base + r;
        iov[*i].iov_len -= r;
    }
}

size_t nrd_http_iov_bytes(const struct iovec *iov, int from, int n)
{
    size_t sum = 0;
    for (int i = from; i < n; i++) {
        sum += iov[i].iov_len;
    }
    return sum;
}

/* Keeps iov[i..n). The first n_copy pieces are copied, the others borrowed until done(arg). */
static bool queue_rest(nrd_http_conn *c, const struct iovec *iov, int i, int n, int n_copy,
                       void (*done)(void *arg), void *arg)
{
    size_t copy = i < n_copy ? nrd_http_iov_bytes(iov, i, n_copy) : 0;
    nrd_http_segment *s = malloc(sizeof *s + (size_t)(n - i + 1) * sizeof *s->iov + copy);
    if (!s) {
        return false;
    }
    char *room = (char *)&s->iov[n - i + 1];
    s->next = NULL;
    s->done = done;
    s->arg = arg;
    s->i = 0;
    s->n = 0;
    for (; i < n; i++) {
        s->iov[s->n] = iov[i];
        if (i < n_copy && iov[i].iov_len) {
            memcpy(room, iov[i].iov_base, iov[i].iov_len);
            s->iov[s->n].iov_base = room;
            room += iov[i].iov_len;
        }
        c->out_bytes += iov[i].iov_len;
        s->n++;
    }
    c->n_out++;
    *c->out_tail = s;
    c->out_tail = &s->next;
    return true;
}

/* Sends now what the socket takes, keeps the rest in order. done(arg) is always called once. */
void nrd_http_conn_send(nrd_http_conn *c, struct iovec *iov, int n, int n_copy,
                        void (*done)(void *arg), void *arg)
{
    int i = 0;
    if (!c->out) {
        ssize_t r = nrd_http_conn_sendv(c, iov, n);
        if (r < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            goto broken;
        }
        if (r > 0) {
            c->active_ns = c->loop->now_ns;
            c->moved += (size_t)r;
            advance(iov, n, &i, (size_t)r);
        }
        if (i == n) {
            if (done) {
                done(arg);
            }
            return;
        }
    }
    if (!queue_rest(c, iov, i, n, n_copy, done, arg)) {
        goto broken;
    }
    nrd_http_conn_want(&c->ev_closed, &c->on_closed, false);
    nrd_http_conn_want(&c->ev_write, &c->on_write, true);
    return;

broken:
    if (done) {
        done(arg);
    }
    nrd_http_conn_close(c);
}

bool nrd_http_conn_flush(nrd_http_conn *c)
{
    while (c->out) {
        struct iovec iov[NRD_HTTP_MAX_IOV];
        int n = 0;
        for (nrd_http_segment *s = c->out; s && n < NRD_HTTP_MAX_IOV; s = s->next) {
            for (int i = s->i; i < s->n && n < NRD_HTTP_MAX_IOV; i++) {
                iov[n++] = s->iov[i];
            }
        }
        ssize_t r = nrd_http_conn_sendv(c, iov, n);
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return false;
        }
        if (r < 0) {
            nrd_http_conn_close(c);
            return false;
        }
        c->active_ns = c->loop->now_ns;
        c->moved += (size_t)r;
        c->out_bytes -= (size_t)r;
        size_t left = (size_t)r;
        while (c->out) {
            nrd_http_segment *s = c->out;
            size_t have = nrd_http_iov_bytes(s->iov, s->i, s->n);
            if (left < have) {
                advance(s->iov, s->n, &s->i, left);
                break;
            }
            left -= have;
            c->out = s->next;
            c->n_out--;
            nrd_http_segment_free(s);
        }
    }
    c->out_tail = &c->out;
    nrd_http_conn_want(&c->ev_write, &c->on_write, false);
    return true;
}
