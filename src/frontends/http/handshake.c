/* SPDX-License-Identifier: Apache-2.0
 * The beginning of a connection with TLS. */
#include "frontends/http/conn.h"

#include "base/limits.h"

#include <errno.h>
#include <sys/socket.h>

#define TLS_HANDSHAKE 0x16 /* the first byte of a client that speaks TLS */

/* The one mistake that is easily made: http:// where it should be https://. */
static void refuse_plain(nrd_http_conn *c)
{
    static const char text[] = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\n"
                               "Content-Length: 65\r\nConnection: close\r\n\r\n"
                               "{\"error\":\"this port speaks TLS: use https:// instead of http://\"}";
    _Static_assert(sizeof "{\"error\":\"this port speaks TLS: use https:// instead of http://\"}" - 1 == 65,
                   "the length above");
    nrd_http_conn_end_tls(c);
    (void)!send(c->fd, text, sizeof text - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    c->linger_after = true;
    nrd_http_conn_finish(c);
}

/* false: nothing has come; the connection may have ended. */
static bool see_first_byte(nrd_http_conn *c)
{
    unsigned char first;
    ssize_t r;

    if (c->hello_seen) {
        return true;
    }
    do {
        r = recv(c->fd, &first, 1, MSG_PEEK);
    } while (r < 0 && errno == EINTR);
    if (r == 0 || (r < 0 && errno != EAGAIN && errno != EWOULDBLOCK)) {
        nrd_http_conn_close(c);
    } else if (r > 0 && first >= 'A' && first <= 'Z') {
        refuse_plain(c);
    } else if (r > 0 && first != TLS_HANDSHAKE) {
        nrd_http_conn_close(c);
    } else {
        c->hello_seen = r > 0;
    }
    return c->hello_seen;
}

bool nrd_http_conn_handshake(nrd_http_conn *c)
{
    if (!see_first_byte(c)) {
        return false;
    }
    const int r = nrd_tls_functions(c->loop->server->cfg.tls)->handshake(c->tls);
    if (r == 1) {
        c->state = READ_HEAD;
        c->active_ns = c->loop->now_ns;
        nrd_http_conn_want(&c->ev_write, &c->on_write, false);
        return true;
    }
    if (r == NRD_TLS_WANT_READ || r == NRD_TLS_WANT_WRITE) {
        nrd_http_conn_want(&c->ev_write, &c->on_write, r == NRD_TLS_WANT_WRITE);
    } else {
        nrd_http_conn_close(c);
    }
    return false;
}

bool nrd_http_conn_handshake_is_late(const nrd_http_conn *c)
{
    return c->state == HANDSHAKE &&
           c->loop->now_ns - c->active_ns > NRD_LIMIT_TLS_HANDSHAKE_SECS * 1000000000ull;
}
