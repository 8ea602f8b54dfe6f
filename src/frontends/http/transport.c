/* SPDX-License-Identifier: Apache-2.0
 * Bytes in and out of a connection: of the socket as they are, or through TLS. */
#include "frontends/http/conn.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define TLS_RECORD (16u << 10) /* what TLS encrypts at once, at most */

ssize_t nrd_http_conn_recv(nrd_http_conn *c, void *to, size_t n)
{
    ssize_t r;
    if (!c->tls) {
        do {
            r = recv(c->fd, to, n, 0);
        } while (r < 0 && errno == EINTR);
        return r;
    }
    r = nrd_tls_functions(c->loop->server->cfg.tls)->read(c->tls, to, n);
    if (r >= 0) {
        return r;
    }
    if (r == NRD_TLS_WANT_WRITE) { /* a message of TLS itself does not fit into the socket */
        c->read_wants_write = true;
        nrd_http_conn_want(&c->ev_closed, &c->on_closed, false);
        nrd_http_conn_want(&c->ev_write, &c->on_write, true);
    }
    errno = r == NRD_TLS_FAILED ? EPROTO : EAGAIN;
    return -1;
}

/* The next bytes for one record: pieces that follow each other are put together in buf, so that a head
 * and a short body are one. */
static const void *next_record(const struct iovec *iov, int n, int i, size_t at, char *buf, size_t *out_n)
{
    size_t have = 0;

    if (iov[i].iov_len - at >= TLS_RECORD) {
        *out_n = TLS_RECORD;
        return (const char *)iov[i].iov_base + at;
    }
    for (; i < n && have < TLS_RECORD; i++, at = 0) {
        const size_t left = iov[i].iov_len - at, part = left < TLS_RECORD - have ? left : TLS_RECORD - have;
        if (part > 0) {
            memcpy(buf + have, (const char *)iov[i].iov_base + at, part);
        }
        have += part;
    }
    *out_n = have;
    return buf;
}

static ssize_t send_tls(nrd_http_conn *c, const struct iovec *iov, int n)
{
    const nrd_tls_ops *tls = nrd_tls_functions(c->loop->server->cfg.tls);
    char buf[TLS_RECORD];
    ssize_t sum = 0;
    size_t at = 0;
    int i = 0;

    for (;;) {
        while (i < n && at >= iov[i].iov_len) {
            at -= iov[i++].iov_len;
        }
        if (i == n) {
            return sum;
        }
        size_t len;
        const void *from = next_record(iov, n, i, at, buf, &len);
        const ssize_t r = tls->write(c->tls, from, len);
        if (r > 0) {
            sum += r;
            at += (size_t)r;
        } else if (r == NRD_TLS_WANT_WRITE) {
            errno = EAGAIN;
            return sum > 0 ? sum : -1;
        } else {
            errno = EPIPE;
            return -1;
        }
    }
}

ssize_t nrd_http_conn_sendv(nrd_http_conn *c, struct iovec *iov, int n)
{
    /* As many pieces as a flush takes: what TLS did not take must come again with nothing less. */
    const int some = n < NRD_HTTP_MAX_IOV ? n : NRD_HTTP_MAX_IOV;
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)some};
    ssize_t r;

    if (c->tls) {
        return send_tls(c, iov, some);
    }
    do {
        r = sendmsg(c->fd, &m, MSG_NOSIGNAL);
    } while (r < 0 && errno == EINTR);
    return r;
}

bool nrd_http_conn_has_pending(const nrd_http_conn *c)
{
    return c->tls && nrd_tls_functions(c->loop->server->cfg.tls)->has_pending(c->tls);
}

void nrd_http_conn_end_tls(nrd_http_conn *c)
{
    if (c->tls) {
        nrd_tls_functions(c->loop->server->cfg.tls)->conn_free(c->tls, !c->out); /* not after half an answer */
        c->tls = NULL;
    }
}
