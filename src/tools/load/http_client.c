/* SPDX-License-Identifier: Apache-2.0
 * Connections and their requests: see http_client.h. */
#include "tools/load/http_client.h"

#include <stdio.h>
#include <string.h>

nrd_error *nrd_http_add_header(nrd_str *headers, const char *option, const char *value)
{
    const char *colon = strchr(value, ':');
    if (!colon || colon == value || strpbrk(value, "\r\n")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "--%s: expected \"NAME: VALUE\", got '%s'", option, value);
    }
    nrd_str_puts(headers, value);
    nrd_str_puts(headers, "\r\n");
    return NULL;
}

#ifndef NRD_HAVE_EVENT

static bool open_none(void **out, const nrd_client_config *c, char *why, size_t n_why)
{
    (void)c;
    *out = NULL;
    snprintf(why, n_why, "this build was made without libevent, which speaking HTTP needs");
    return false;
}

const nrd_client_ops nrd_http_carrier = {.open = open_none};

#else

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "tls/tls.h"
#include "tools/load/http_reader.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

typedef struct http_client http_client;

typedef struct conn {
    http_client *client;
    struct bufferevent *bev;
    struct conn *before, *after; /* of all */
    struct conn *next_idle;
    nrd_http_reader reader;
    void *tag;
    const char *body; /* of the request under way; NULL: idle */
    size_t n_body, n_answers;
    bool has_bytes; /* of the answer under way */
} conn;

struct http_client {
    nrd_client_config c; /* of its strings only ca_cert is used again */
    struct event_base *base;
    struct event *clock;
    char *host, *ca_cert, *head; /* head: all of a request's but the length */
    struct sockaddr_storage address;
    socklen_t n_address;
    const nrd_tls_ops *tls;
    conn *all, *idle;
    size_t n_connections;
};

/* ---- connections ---- */

static void conn_free(conn *c)
{
    http_client *h = c->client;
    for (conn **p = &h->idle; *p; p = &(*p)->next_idle) {
        if (*p == c) {
            *p = c->next_idle;
            break;
        }
    }
    if (c->before) {
        c->before->after = c->after;
    } else {
        h->all = c->after;
    }
    if (c->after) {
        c->after->before = c->before;
    }
    if (c->bev) {
        bufferevent_free(c->bev);
    }
    nrd_http_reader_fini(&c->reader);
    free(c);
}

static void send_request(conn *c)
{
    char length[64];
    const int n = snprintf(length, sizeof length, "Content-Length: %zu\r\n\r\n", c->n_body);
    struct evbuffer *out = bufferevent_get_output(c->bev);
    nrd_http_reader_begin(&c->reader);
    c->has_bytes = false;
    evbuffer_add(out, c->client->head, strlen(c->client->head));
    evbuffer_add(out, length, (size_t)n);
    evbuffer_add(out, c->body, c->n_body);
}

/* The answer has ended, one way or the other. `keeps`: the connection is good for another request. */
static void finish(conn *c, const char *why, bool keeps)
{
    http_client *h = c->client;
    void *tag = c->tag;
    const int status = c->reader.status;

    c->body = NULL;
    c->n_answers++;
    if (keeps) {
        c->next_idle = h->idle;
        h->idle = c;
    } else {
        conn_free(c);
    }
    h->c.end(tag, status, why);
}

static void on_piece(void *arg, const char *data, size_t n)
{
    conn *c = arg;
    c->client->c.piece(c->tag, c->reader.status, data, n);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    conn *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    size_t n;

    while ((n = evbuffer_get_contiguous_space(in)) > 0) {
        size_t used = 0;
        if (!c->body) { /* nobody asked for this */
            conn_free(c);
            return;
        }
        c->has_bytes = true;
        const bool is_fine = nrd_http_reader_feed(
            &c->reader, (const char *)evbuffer_pullup(in, (ev_ssize_t)n), n, &used);
        evbuffer_drain(in, used);
        if (!is_fine) {
            finish(c, c->reader.error, false);
            return;
        }
        if (c->reader.state == NRD_HTTP_DONE) {
            const bool keeps = !c->reader.closes;
            const bool is_empty = evbuffer_get_length(in) == 0;
            finish(c, NULL, keeps && is_empty);
            if (!keeps || !is_empty) {
                return;
            }
        }
    }
}

static void post(void *client, void *tag, const char *body, size_t n);

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    conn *c = arg;
    http_client *h = c->client;
    const int socket_error = EVUTIL_SOCKET_ERROR();
    char why[200] = "";

    if (what & BEV_EVENT_CONNECTED) {
        const int one = 1;
        (void)setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        return;
    }
    if (!c->body) {
        conn_free(c); /* an idle one that the server has closed */
        return;
    }
    if (what & BEV_EVENT_TIMEOUT) {
        snprintf(why, sizeof why, "no answer for %g s", h->c.timeout_s);
        finish(c, why, false);
        return;
    }
    if ((what & BEV_EVENT_EOF) && nrd_http_reader_close(&c->reader)) {
        finish(c, NULL, false);
        return;
    }
    if (!c->has_bytes &&
        c->n_answers > 0) { /* closed between two requests: once more on a new one */
        void *tag = c->tag;
        const char *body = c->body;
        const size_t n_body = c->n_body;
        conn_free(c);
        post(h, tag, body, n_body);
        return;
    }
    if (h->tls) {
        h->tls->client_why(bev, why, sizeof why);
    }
    if (!why[0]) {
        snprintf(why, sizeof why, "%s",
                 what & BEV_EVENT_EOF ? "the server closed the connection"
                                      : evutil_socket_error_to_string(socket_error));
    }
    finish(c, why, false);
}

static struct bufferevent *connect_bev(http_client *h, char *why, size_t n)
{
    struct bufferevent *bev = h->tls ? h->tls->client_new(h->base, h->host, h->ca_cert, why, n)
                                     : bufferevent_socket_new(h->base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (bev &&
        bufferevent_socket_connect(bev, (struct sockaddr *)&h->address, (int)h->n_address) != 0) {
        snprintf(why, n, "no connection: %s", evutil_socket_error_to_string(EVUTIL_SOCKET_ERROR()));
        bufferevent_free(bev);
        bev = NULL;
    }
    return bev;
}

static void post(void *client, void *tag, const char *body, size_t n)
{
    http_client *h = client;
    conn *c = h->idle;

    if (c) {
        h->idle = c->next_idle;
        c->next_idle = NULL;
    } else {
        char why[200] = "no connection";
        struct bufferevent *bev = connect_bev(h, why, sizeof why);
        if (!bev) {
            h->c.end(tag, 0, why);
            return;
        }
        c = nrd_xcalloc(1, sizeof *c);
        *c = (conn){
            .client = h, .bev = bev, .after = h->all, .reader = {.piece = on_piece, .arg = c}};
        if (h->all) {
            h->all->before = c;
        }
        h->all = c;
        h->n_connections++;
        const struct timeval limit = {
            (time_t)h->c.timeout_s,
            (suseconds_t)((h->c.timeout_s - (double)(time_t)h->c.timeout_s) * 1e6)};
        bufferevent_setcb(bev, on_read, NULL, on_event, c);
        bufferevent_set_timeouts(bev, &limit, &limit);
        (void)bufferevent_enable(bev, EV_READ | EV_WRITE);
    }
    c->tag = tag;
    c->body = body;
    c->n_body = n;
    send_request(c);
}

/* ---- the client ---- */

static void on_clock(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what, (void)arg; /* ends the wait */
}

static void wait_for(void *client, uint64_t until_ns)
{
    http_client *h = client;
    const uint64_t now = nrd_now_ns();
    if (until_ns <= now) {
        (void)event_base_loop(h->base, EVLOOP_NONBLOCK);
        return;
    }
    const uint64_t us = (until_ns - now + 999) / 1000;
    const struct timeval limit = {(time_t)(us / 1000000), (suseconds_t)(us % 1000000)};
    evtimer_add(h->clock, &limit);
    (void)event_base_loop(h->base, EVLOOP_ONCE);
}

static size_t connections(const void *client)
{
    return ((const http_client *)client)->n_connections;
}

static nrd_error *find_address(http_client *h, int port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    /* Servers listen on IPv4 more often than on both. */
    const char *host = strcmp(h->host, "localhost") == 0 ? "127.0.0.1" : h->host;
    const int status = getaddrinfo(host, service, &hints, &found);
    if (status != 0) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "%s: %s", h->host, gai_strerror(status));
    }
    memcpy(&h->address, found->ai_addr, found->ai_addrlen);
    h->n_address = found->ai_addrlen;
    freeaddrinfo(found);
    return NULL;
}

static nrd_error *read_url(http_client *h, const nrd_client_config *c)
{
    nrd_str full = {0}, head = {0};
    nrd_error *err = NULL;

    nrd_str_puts(&full, strstr(c->url, "://") ? "" : "http://");
    nrd_str_puts(&full, c->url);
    struct evhttp_uri *uri = evhttp_uri_parse(nrd_str_cstr(&full));
    const char *scheme = uri ? evhttp_uri_get_scheme(uri) : NULL,
               *host = uri ? evhttp_uri_get_host(uri) : NULL;
    if (!scheme || !host || !host[0]) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is no URL", c->url);
    } else if (strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s': only http:// and https:// are spoken here",
                         c->url);
    } else if (strcmp(scheme, "https") == 0 && (err = nrd_tls_load(&h->tls))) {
        /* no TLS in this build */
    } else {
        const size_t n = strlen(host);
        const int given = evhttp_uri_get_port(uri), port = given > 0 ? given : h->tls ? 443 : 80;
        const char *prefix = evhttp_uri_get_path(uri) ? evhttp_uri_get_path(uri) : "";
        size_t n_prefix = strlen(prefix);
        while (n_prefix > 0 && prefix[n_prefix - 1] == '/') {
            n_prefix--;
        }
        h->host = host[0] == '[' && host[n - 1] == ']' ? nrd_xstrndup(host + 1, n - 2)
                                                       : nrd_xstrdup(host);
        nrd_str_printf(
            &head, "%s %.*s%s HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: application/json\r\n%s",
            c->gets ? "GET" : "POST", (int)n_prefix, prefix, c->path, host, port, c->headers);
        h->head = nrd_str_steal(&head);
        err = find_address(h, port);
    }
    if (uri) {
        evhttp_uri_free(uri);
    }
    nrd_str_fini(&full);
    return err;
}

static void free_client(void *client)
{
    http_client *h = client;
    while (h->all) {
        conn_free(h->all);
    }
    if (h->clock) {
        event_free(h->clock);
    }
    if (h->base) {
        event_base_free(h->base);
    }
    free(h->host);
    free(h->ca_cert);
    free(h->head);
    free(h);
}

static bool open_client(void **out, const nrd_client_config *c, char *why, size_t n_why)
{
    http_client *h = nrd_xcalloc(1, sizeof *h);
    struct event_config *options = event_config_new();

    *out = NULL;
    h->c = *c;
    h->ca_cert = c->ca_cert ? nrd_xstrdup(c->ca_cert) : NULL;
    if (options) { /* arrivals closer than a millisecond are kept apart */
        (void)event_config_set_flag(options, EVENT_BASE_FLAG_PRECISE_TIMER);
        h->base = event_base_new_with_config(options);
        event_config_free(options);
    }
    h->clock = h->base ? evtimer_new(h->base, on_clock, NULL) : NULL;
    nrd_error *err = h->clock ? read_url(h, c) : nrd_error_no_memory();
    if (err) {
        snprintf(why, n_why, "%s", nrd_error_message(err));
        nrd_error_free(err);
        free_client(h);
        return false;
    }
    *out = h;
    return true;
}

const nrd_client_ops nrd_http_carrier = {open_client, free_client, post, wait_for, connections};

#endif
