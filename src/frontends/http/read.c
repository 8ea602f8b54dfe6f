/* SPDX-License-Identifier: Apache-2.0
 * Input: from bytes to requests. */
#include "frontends/http/conn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BODY_FIRST (256u << 10)
#define CHUNKED_FIRST 4096u

static void fail(nrd_http_conn *c, int status, const char *message)
{
    const nrd_http_config *cfg = &c->loop->server->cfg;
    cfg->fail(c->req, status, message, cfg->user);
}

/* Refuses the request that is being read and ends the connection after the reply. */
static void refuse(nrd_http_conn *c, int status, const char *message)
{
    if (!c->req && !(c->req = nrd_http_request_new(c->loop, c))) {
        nrd_http_conn_close(c);
        return;
    }
    if (c->req->in_pieces && c->req->on_gone) { /* the handler waits for a piece that will not come */
        void (*on_gone)(nrd_http_request *, void *) = c->req->on_gone;
        c->req->on_gone = NULL;
        on_gone(c->req, c->req->gone_arg);
    }
    c->req->head.method = NRD_HTTP_POST; /* the reply has a body */
    c->req->head.http_1_0 = false;
    c->close_after = true;
    c->linger_after = true;
    c->state = BUSY;
    fail(c, status, message);
}

static void refuse_size(nrd_http_conn *c, uint64_t n)
{
    char text[192];
    /* Triton's words and status for a body over the limit. */
    snprintf(text, sizeof text,
             "request body size of %llu bytes exceeds the maximum allowed input size of %zu bytes. "
             "Use --http-max-input-size to increase the limit.",
             (unsigned long long)n, c->loop->server->cfg.max_body_bytes);
    refuse(c, 400, text);
}

/* Room for more input while no request is being handled: moves or grows the buffer. */
static bool make_room(nrd_http_conn *c)
{
    nrd_http_inbuf *b = c->in;
    size_t keep = b ? b->len - c->start : 0;
    if (b && b->len < b->cap && (b->cap - b->len >= 1024 || c->start == 0)) {
        return true;
    }
    if (b && atomic_load_explicit(&b->refs, memory_order_acquire) == 1 && keep < b->cap / 2) {
        memmove(b->data, b->data + c->start, keep);
    } else {
        size_t cap = NRD_HTTP_INBUF_FIRST;
        while (cap < keep * 2) {
            cap *= 2;
        }
        nrd_http_inbuf *bigger = nrd_http_inbuf_new(cap);
        if (!bigger) {
            return false;
        }
        if (keep) {
            memcpy(bigger->data, b->data + c->start, keep);
        }
        nrd_http_inbuf_unref(b);
        c->in = b = bigger;
    }
    b->len = keep;
    c->start = 0;
    return true;
}

/* Back to an empty buffer at its beginning when nothing unread is left. */
static void recycle_inbuf(nrd_http_conn *c)
{
    if (c->in && c->start == c->in->len &&
        atomic_load_explicit(&c->in->refs, memory_order_acquire) == 1) {
        c->in->len = c->start = 0;
    }
}

static bool may_ask_late(const nrd_http_conn *c)
{
    const char *prefix = c->loop->server->cfg.drain_prefix;
    const nrd_view path = c->req->head.path;
    const size_t n = strlen(prefix);
    return path.n >= n && memcmp(path.p, prefix, n) == 0;
}

static void dispatch(nrd_http_conn *c)
{
    nrd_http_server *s = c->loop->server;
    c->state = c->body_open ? HELD : BUSY;
    c->req->ready_ns = c->loop->now_ns;
    if (!c->req->head.keep_alive || c->late) {
        c->close_after = true;
    }
    if (c->late && !may_ask_late(c)) {
        fail(c, 503, c->loop->draining ? "the server is shutting down" : "no descriptor for a connection, try later");
        return;
    }
    s->cfg.handle(c->req, s->cfg.user);
}

static void send_continue(nrd_http_conn *c)
{
    struct iovec iov = {(void *)(uintptr_t) "HTTP/1.1 100 Continue\r\n\r\n", 25};
    nrd_http_conn_send(c, &iov, 1, 1, NULL, NULL);
}

/* Room for `need` bytes of the body; more, up to `most` (SIZE_MAX: not known), so that it is seldom asked for. Only what has come
 * takes memory: a client that promises much and sends nothing takes none from others. */
static bool body_room(nrd_http_conn *c, size_t need, size_t most)
{
    size_t cap = c->body_cap ? c->body_cap * 2 : most < SIZE_MAX ? BODY_FIRST : CHUNKED_FIRST;
    if (need <= c->body_cap) {
        return true;
    }
    cap = cap > most ? most : cap;
    cap = cap < need ? need : cap;
    nrd_error *err = nrd_claim_bytes(&c->req->claim, cap - c->body_cap, "its body");
    if (err) {
        refuse(c, nrd_error_get_code(err) == NRD_ERR_INVALID_ARG ? 400 : 503, nrd_error_message(err));
        nrd_error_free(err);
        return false;
    }
    char *p = realloc(c->req->own_body, cap);
    if (!p) {
        refuse(c, 503, "out of memory for the request body");
        return false;
    }
    c->req->own_body = p;
    c->body_cap = cap;
    return true;
}

static bool append_body(nrd_http_conn *c, const char *data, size_t n)
{
    if (!body_room(c, c->body_len + n, SIZE_MAX)) {
        return false;
    }
    memcpy(c->req->own_body + c->body_len, data, n);
    c->body_len += n;
    return true;
}

/* ---- bodies in pieces ---- */

static void hand_on(nrd_http_conn *c, bool last)
{
    nrd_http_request *req = c->req;
    c->body_open = !last;
    c->state = last ? BUSY : HELD;
    nrd_http_conn_update_reading(c);
    req->on_piece(req, req->piece_arg, req->own_body, c->body_len, last);
}

static void took_piece(nrd_http_conn *c, size_t n)
{
    c->body_len += n;
    c->body_left -= n;
    if (c->body_left == 0 || c->body_len == c->body_cap) {
        hand_on(c, c->body_left == 0);
    }
}

/* Decodes what was read; the rest behind the end of the body is the next request. */
static void feed_chunks(nrd_http_conn *c, const char *data, size_t n)
{
    const char *piece;
    size_t piece_n;
    for (;;) {
        switch (nrd_http_chunks_next(&c->chunks, &data, &n, &piece, &piece_n)) {
        case NRD_CHUNKS_MORE:
            if (c->body_open && c->body_len >= NRD_HTTP_PIECE) {
                hand_on(c, false);
            }
            return;
        case NRD_CHUNKS_ERROR:
            refuse(c, 400, "malformed chunked body");
            return;
        case NRD_CHUNKS_DATA:
            if (!c->body_open && piece_n > c->loop->server->cfg.max_body_bytes - c->body_len) {
                refuse_size(c, c->body_len + piece_n);
                return;
            }
            if (!append_body(c, piece, piece_n)) {
                return;
            }
            break;
        case NRD_CHUNKS_DONE:
            if (!c->body_open) {
                c->req->body = c->req->own_body;
                c->req->body_n = c->body_len;
            }
            if (data >= c->in->data && data <= c->in->data + c->in->len) {
                c->start = (size_t)(data - c->in->data); /* the whole body was in the buffer */
            } else {
                nrd_http_inbuf *b =
                    nrd_http_inbuf_new(n > NRD_HTTP_INBUF_FIRST ? n : NRD_HTTP_INBUF_FIRST);
                if (!b) {
                    nrd_http_conn_close(c);
                    return;
                }
                memcpy(b->data, data, n);
                b->len = n;
                nrd_http_inbuf_unref(c->in);
                c->in = b;
                c->start = 0;
            }
            if (c->body_open) {
                hand_on(c, true);
            } else {
                dispatch(c);
            }
            return;
        }
    }
}

/* The handler is asked before the body is read: it answers, or asks for the first piece. */
static void begin_pieces(nrd_http_conn *c)
{
    c->req->in_pieces = true;
    c->body_open = true;
    c->body_left = c->req->head.content_length;
    memset(&c->chunks, 0, sizeof c->chunks);
    dispatch(c);
}

static void read_piece(nrd_http_conn *c)
{
    nrd_http_inbuf *b = c->in;
    const size_t have = b->len - c->start;
    const bool chunked = c->req->head.chunked;

    const size_t piece = c->body_left < NRD_HTTP_PIECE ? (size_t)c->body_left : NRD_HTTP_PIECE;
    c->body_len = 0;
    if (!chunked && !body_room(c, piece, piece)) { /* no later piece is longer */
        return;
    }
    c->state = chunked ? READ_CHUNKED : READ_PIECE;
    if (c->req->head.expect_continue && have == 0) {
        c->req->head.expect_continue = false;
        send_continue(c);
    }
    if (c->dead) {
        return;
    }
    if (chunked) {
        const size_t at = c->start;
        c->start = b->len;
        feed_chunks(c, b->data + at, have);
    } else if (have > 0) {
        const size_t room = c->body_left < c->body_cap ? (size_t)c->body_left : c->body_cap, n = have < room ? have : room;
        memcpy(c->req->own_body, b->data + c->start, n);
        c->start += n;
        took_piece(c, n);
    }
}

void nrd_http_read_body(nrd_http_request *req,
                        void (*on_piece)(nrd_http_request *req, void *arg, const char *data, size_t n, bool last),
                        void *arg)
{
    nrd_http_conn *c = req->conn;
    if (!c) {
        return;
    }
    NRD_ASSERT(c->state == HELD, "one piece is asked for at a time, and none behind the last");
    req->on_piece = on_piece;
    req->piece_arg = arg;
    c->depth++;
    read_piece(c);
    if (!c->dead) {
        nrd_http_conn_update_reading(c);
    }
    c->depth--;
    nrd_http_conn_release(c);
}

/* The head is parsed and consumed: decides where the body goes. */
static void begin_body(nrd_http_conn *c)
{
    nrd_http_request *req = c->req;
    const nrd_http_head *h = &req->head;
    nrd_http_inbuf *b = c->in;
    size_t have = b->len - c->start;
    size_t max = c->loop->server->cfg.max_body_bytes;

    c->body_len = c->body_cap = 0;
    c->body_open = false;
    if ((h->chunked || (h->has_length && h->content_length > 0)) && c->loop->server->cfg.in_pieces &&
        c->loop->server->cfg.in_pieces(req, c->loop->server->cfg.user)) {
        begin_pieces(c);
        return;
    }
    if (h->chunked) {
        memset(&c->chunks, 0, sizeof c->chunks);
        c->state = READ_CHUNKED;
        if (h->expect_continue && have == 0) {
            send_continue(c);
        }
        if (!c->dead) {
            size_t at = c->start;
            c->start = b->len;
            feed_chunks(c, b->data + at, have);
        }
        return;
    }
    if (!h->has_length || h->content_length == 0) {
        dispatch(c);
        return;
    }
    if (h->content_length > max) {
        refuse_size(c, h->content_length);
        return;
    }
    size_t n = (size_t)h->content_length;
    if (have >= n) {
        req->body = b->data + c->start;
        req->body_n = n;
        c->start += n;
        dispatch(c);
        return;
    }
    if (n <= b->cap - c->start) {
        req->body = b->data + c->start;
        req->body_n = n;
        c->state = READ_INPLACE;
    } else {
        if (!body_room(c, have + 1, n)) {
            return;
        }
        memcpy(req->own_body, b->data + c->start, have);
        c->body_len = have;
        c->start = b->len;
        c->state = READ_BODY;
    }
    if (h->expect_continue && have == 0) {
        send_continue(c);
    }
}

/* Parses one head if it is complete. false: nothing more can be done now. */
static bool begin_request(nrd_http_conn *c)
{
    const char *why;
    size_t avail = c->in->len - c->start;
    /* RFC 9112 2.2: an empty line before the request line is ignored. */
    while (avail >= 2 && memcmp(c->in->data + c->start, "\r\n", 2) == 0) {
        c->start += 2;
        avail -= 2;
        c->scanned = 0;
    }
    const size_t seen = c->scanned;
    size_t n = nrd_http_find_head(c->in->data + c->start, avail, &c->scanned);
    if (n == 0 && nrd_http_has_bare_lf(c->in->data + c->start, seen, avail)) {
        refuse(c, 400, "a line ends without a carriage return"); /* its end would never be found */
        return false;
    }
    if (n == 0 || n > NRD_HTTP_MAX_HEAD) {
        if (n || avail > NRD_HTTP_MAX_HEAD) {
            refuse(c, 431, "request header fields too large");
        }
        return false;
    }
    c->scanned = 0;
    c->req = nrd_http_request_new(c->loop, c);
    if (!c->req) {
        nrd_http_conn_close(c);
        return false;
    }
    atomic_fetch_add_explicit(&c->in->refs, 1, memory_order_relaxed);
    c->req->in = c->in;
    int status = nrd_http_parse_head(&c->req->head, c->in->data + c->start, n, &why);
    c->start += n;
    if (status) {
        refuse(c, status, why);
        return false;
    }
    begin_body(c);
    return true;
}

static bool waits_for_input(const nrd_http_conn *c)
{
    return c->state == READ_HEAD || c->state == READ_INPLACE || c->state == READ_BODY ||
           c->state == READ_CHUNKED || c->state == READ_PIECE;
}

/* Works off what has been read, as long as requests are complete and the output keeps up. */
void nrd_http_conn_process(nrd_http_conn *c)
{
    c->in_process = true;
    c->depth++;
    while (!c->dead && c->state == READ_HEAD && c->out_bytes <= NRD_HTTP_MAX_PIPELINE_OUT) {
        recycle_inbuf(c);
        if (!c->in || c->start == c->in->len || !begin_request(c)) {
            break;
        }
    }
    c->in_process = false;
    if (!c->dead) {
        if (c->state == READ_HEAD && c->loop->draining && !c->out &&
            (!c->in || c->start == c->in->len)) {
            nrd_http_conn_close(c); /* idle while the server stops */
        } else if (waits_for_input(c) && c->input_ended &&
                   c->out_bytes <= NRD_HTTP_MAX_PIPELINE_OUT) {
            /* Nothing complete is left to read, and nothing more will come. */
            c->close_after = true;
            c->state = CLOSING;
            c->out ? nrd_http_conn_update_reading(c) : nrd_http_conn_finish(c);
        } else {
            nrd_http_conn_update_reading(c);
        }
    }
    c->depth--;
    nrd_http_conn_release(c);
}

bool nrd_http_conn_read_target(nrd_http_conn *c, char **out, size_t *out_room)
{
    switch (c->state) {
    case READ_HEAD:
        if (!make_room(c)) {
            return false;
        }
        *out = c->in->data + c->in->len;
        *out_room = c->in->cap - c->in->len;
        return true;
    case READ_INPLACE:
    case BUSY:
        *out = c->in->data + c->in->len;
        *out_room = c->in->cap - c->in->len;
        return *out_room > 0;
    case READ_BODY:
        *out = c->req->own_body + c->body_len;
        *out_room = c->body_cap - c->body_len;
        return true;
    case READ_PIECE:
        *out = c->req->own_body + c->body_len;
        *out_room = c->body_cap - c->body_len;
        if (*out_room > c->body_left) {
            *out_room = (size_t)c->body_left;
        }
        return true;
    case HELD:
        return false;
    default:
        *out = c->loop->scratch;
        *out_room = NRD_HTTP_SCRATCH;
        return true;
    }
}

void nrd_http_conn_took(nrd_http_conn *c, char *data, size_t n)
{
    switch (c->state) {
    case READ_HEAD:
        c->in->len += n;
        nrd_http_conn_process(c);
        break;
    case BUSY:
        c->in->len += n;
        break;
    case READ_INPLACE:
        c->in->len += n;
        if (c->in->len - c->start >= c->req->body_n) {
            c->start += c->req->body_n;
            dispatch(c);
        }
        break;
    case READ_BODY:
        c->body_len += n;
        if (c->body_len == c->req->head.content_length) {
            c->req->body = c->req->own_body;
            c->req->body_n = c->body_len;
            dispatch(c);
        } else if (c->body_len == c->body_cap) {
            (void)body_room(c, c->body_len + 1, (size_t)c->req->head.content_length);
        }
        break;
    case READ_CHUNKED:
        /* The scratch buffer is also used for replies: nothing is sent before the body ends. */
        feed_chunks(c, data, n);
        break;
    case READ_PIECE:
        took_piece(c, n);
        break;
    case CLOSING:
    case HELD:
    case LINGER:
    case HANDSHAKE:
        break;
    }
}
