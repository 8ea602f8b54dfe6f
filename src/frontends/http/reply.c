/* SPDX-License-Identifier: Apache-2.0
 * Replies, whole or in pieces. */
#include "frontends/http/conn.h"
#include "frontends/http/local.h"

#include "base/json.h"
#include "base/log.h"

#include <stdio.h>
#include <string.h>

#define SEGMENT_COST 160 /* bytes of memory around each unsent piece */

static const char *status_text(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 204:
        return "No Content";
    case 304:
        return "Not Modified";
    case 400:
        return "Bad Request";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 413:
        return "Content Too Large";
    case 415:
        return "Unsupported Media Type";
    case 417:
        return "Expectation Failed";
    case 431:
        return "Request Header Fields Too Large";
    case 500:
        return "Internal Server Error";
    case 501:
        return "Not Implemented";
    case 503:
        return "Service Unavailable";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return "Status";
    }
}

/* The head as it is put together; every reply has one, so nothing is formatted. */
typedef struct head {
    char *p, *end;
} head;

static void put_text(head *h, const char *text)
{
    const size_t n = strlen(text);
    NRD_ASSERT(n < (size_t)(h->end - h->p), "header lines of a reply are short");
    memcpy(h->p, text, n);
    h->p += n;
}

static void put_number(head *h, uint64_t v)
{
    char digits[21]; /* of 2^64, and the end */
    char *at = digits + sizeof digits - 1;

    *at = '\0';
    do {
        *--at = (char)('0' + v % 10u);
        v /= 10u;
    } while (v);
    put_text(h, at);
}

/* Head of a reply in the loop's scratch buffer. length < 0: a stream. */
static size_t put_head(nrd_http_conn *c, int status, const char *content_type, const char *extra,
                       int64_t length)
{
    head h = {c->loop->scratch, c->loop->scratch + NRD_HTTP_SCRATCH};
    const bool close_it = c->close_after || c->loop->draining;

    put_text(&h, "HTTP/1.1 ");
    put_number(&h, (uint64_t)status);
    put_text(&h, " ");
    put_text(&h, status_text(status));
    put_text(&h, "\r\n");
    if (content_type) {
        put_text(&h, "Content-Type: ");
        put_text(&h, content_type);
        put_text(&h, "\r\n");
    }
    if (length >= 0 && status != 204 && status != 304) { /* these two have no body to measure */
        put_text(&h, "Content-Length: ");
        put_number(&h, (uint64_t)length);
        put_text(&h, "\r\n");
    } else if (length < 0 && !c->req->head.http_1_0) {
        put_text(&h, "Transfer-Encoding: chunked\r\n");
    }
    if (close_it) {
        put_text(&h, "Connection: close\r\n");
    } else if (c->req && c->req->head.http_1_0) {
        put_text(&h, "Connection: keep-alive\r\n");
    }
    put_text(&h, extra ? extra : "");
    if (c->req && c->req->warning) {
        put_text(&h, "x-nereid-warning: ");
        put_text(&h, c->req->warning);
        put_text(&h, "\r\n");
    }
    put_text(&h, "\r\n");
    return (size_t)(h.p - c->loop->scratch);
}

bool nrd_http_conn_probe(nrd_http_conn *c)
{
    /* RFC 9110 15.2: a client reads away interim answers that it did not ask for. Within a stream a
     * remark of its format. HTTP/1.0 knows neither. */
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n", remark[] = "3\r\n:\n\n\r\n";
    const char *text = c->req->streaming ? remark : interim;
    struct iovec iov = {(void *)(uintptr_t)text, strlen(text)};

    if (c->req->head.http_1_0) {
        return false;
    }
    if (!c->out) { /* else what waits tells the same */
        nrd_http_conn_send(c, &iov, 1, 1, NULL, NULL);
    }
    return true;
}

/* The reply is complete: on to the next request, or to the end of the connection. */
static void end_request(nrd_http_conn *c)
{
    nrd_http_request *req = c->req;
    if (!req) {
        return; /* the send above found the connection broken */
    }
    c->req = NULL;
    req->conn = NULL;
    nrd_http_request_unref(req);
    if (c->close_after || c->loop->draining) {
        c->state = CLOSING;
        nrd_http_conn_want(&c->ev_read, &c->on_read, false);
        nrd_http_conn_want(&c->ev_closed, &c->on_closed, false);
        if (!c->out) {
            nrd_http_conn_finish(c);
        }
        return;
    }
    c->state = READ_HEAD;
    if (!c->in_process) {
        nrd_http_conn_process(c);
    }
}

void nrd_http_replyv(nrd_http_request *req, int status, const char *content_type, const char *extra,
                     const struct iovec *parts, int n_parts, void (*done)(void *arg), void *arg)
{
    struct iovec iov[NRD_HTTP_MAX_IOV + 1];
    nrd_http_conn *c = req->conn;

    NRD_ASSERT(n_parts >= 0 && n_parts <= NRD_HTTP_MAX_IOV, "a reply has few pieces");
    if (!c) {
        if (req->local) {
            nrd_http_local_answer(req, status, parts, n_parts);
        }
        if (done) {
            done(arg);
        }
        return;
    }
    if (c->body_open) { /* nobody asks for the rest of the body any more */
        c->close_after = true;
        c->linger_after = true;
    }
    c->depth++;
    size_t total = nrd_http_iov_bytes(parts, 0, n_parts);
    iov[0].iov_base = c->loop->scratch;
    iov[0].iov_len = put_head(c, status, content_type, extra, (int64_t)total);
    if (req->head.method == NRD_HTTP_HEAD) {
        n_parts = 0;
    }
    for (int i = 0; i < n_parts; i++) {
        iov[i + 1] = parts[i];
    }
    /* A reply with an owner is borrowed; without one everything unsent is copied. */
    nrd_http_conn_send(c, iov, n_parts + 1, done ? 1 : n_parts + 1, done, arg);
    end_request(c);
    c->depth--;
    nrd_http_conn_release(c);
}

void nrd_http_reply(nrd_http_request *req, int status, const char *content_type, const char *extra,
                    const void *body, size_t n)
{
    struct iovec part = {(void *)(uintptr_t)body, n};
    nrd_http_replyv(req, status, content_type, extra, &part, n ? 1 : 0, NULL, NULL);
}

static const char no_memory[] = "{\"error\":\"out of memory\"}";

void nrd_http_reply_str(nrd_http_request *req, int status, const char *content_type,
                        const char *extra, const nrd_str *body)
{
    if (body->no_memory) {
        nrd_http_reply(req, 503, "application/json", NULL, no_memory, sizeof no_memory - 1);
    } else {
        nrd_http_reply(req, status, content_type, extra, body->data, body->len);
    }
}

static void reply_error(nrd_http_request *req, int status, const char *type, const char *message)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"error\":");
    nrd_json_put_cstr(&s, message);
    nrd_str_putc(&s, '}');
    nrd_http_reply_str(req, status, type, NULL, &s);
    nrd_str_fini(&s);
}

void nrd_http_reply_error(nrd_http_request *req, int status, const char *message)
{
    reply_error(req, status, "application/json", message);
}

void nrd_http_reply_plain_error(nrd_http_request *req, int status, const char *message)
{
    reply_error(req, status, "text/plain", message);
}

void nrd_http_stream_begin(nrd_http_request *req, int status, const char *content_type,
                           const char *extra)
{
    static const char no_stream[] = "{\"error\":\"a stream needs a connection\"}";
    nrd_http_conn *c = req->conn;
    if (!c) {
        if (req->local && !req->local->wrote) {
            nrd_http_reply(req, 400, NULL, NULL, no_stream, sizeof no_stream - 1);
        }
        return;
    }
    c->depth++;
    if (req->head.http_1_0) {
        c->close_after = true; /* without chunks only the end of the connection ends the body */
    }
    struct iovec iov = {c->loop->scratch, 0};
    req->streaming = true;
    iov.iov_len = put_head(c, status, content_type, extra, -1);
    nrd_http_conn_send(c, &iov, 1, 1, NULL, NULL);
    c->depth--;
    nrd_http_conn_release(c);
}

void nrd_http_stream_write(nrd_http_request *req, const void *data, size_t n)
{
    nrd_http_conn *c = req->conn;
    if (!c && n > 0 && req->local && req->local->wrote) {
        req->local->wrote(req->local, data, n);
    }
    if (!c || n == 0 || req->head.method == NRD_HTTP_HEAD) {
        return;
    }
    NRD_ASSERT(req->streaming, "stream_begin comes first");
    if (c->out_bytes + c->n_out * SEGMENT_COST > NRD_HTTP_MAX_STREAM_BACKLOG) {
        NRD_LOG_WARN("a client does not read its stream: connection closed with %zu bytes unsent",
                     c->out_bytes);
        c->depth++;
        nrd_http_conn_close(c);
        c->depth--;
        nrd_http_conn_release(c);
        return;
    }
    c->depth++;
    char size[24];
    const bool chunked = !req->head.http_1_0;
    int size_n = chunked ? snprintf(size, sizeof size, "%zx\r\n", n) : 0;
    struct iovec iov[3] = {{size, (size_t)size_n},
                           {(void *)(uintptr_t)data, n},
                           {(void *)(uintptr_t) "\r\n", chunked ? 2u : 0u}};
    nrd_http_conn_send(c, iov, 3, 3, NULL, NULL);
    c->depth--;
    nrd_http_conn_release(c);
}

void nrd_http_stream_put(nrd_http_request *req, const nrd_str *event)
{
    static const char lost[] = "data: {\"error\":\"out of memory\"}\n\n";
    if (event->no_memory) {
        nrd_http_stream_write(req, lost, sizeof lost - 1);
    } else {
        nrd_http_stream_write(req, event->data, event->len);
    }
}

void nrd_http_stream_end(nrd_http_request *req)
{
    nrd_http_conn *c = req->conn;
    if (!c) {
        if (req->local) {
            nrd_http_local_answer(req, 200, NULL, 0);
        }
        return;
    }
    c->depth++;
    if (!req->head.http_1_0 && req->head.method != NRD_HTTP_HEAD) {
        struct iovec iov = {(void *)(uintptr_t) "0\r\n\r\n", 5};
        nrd_http_conn_send(c, &iov, 1, 1, NULL, NULL);
    }
    end_request(c);
    c->depth--;
    nrd_http_conn_release(c);
}
