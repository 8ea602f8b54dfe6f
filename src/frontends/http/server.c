#include "frontends/http/server.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"

#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define INBUF_FIRST (8u << 10)
#define READ_BUDGET (1u << 20)       /* bytes taken from one connection before others get a turn */
#define MAX_PIPELINE_OUT (64u << 10) /* the next pipelined request waits until less is unsent */
#define MAX_IOV 64
#define SCRATCH (64u << 10)
#define SPARE_REQUESTS 64
#define TICK_SECS 5
#define STALL_NS (300ull * 1000000000u) /* silence in the middle of a request or a reply */
#define LINGER_NS (30ull * 1000000000u) /* reading away what a refused client still sends */

/* ---- structures ---- */

/* Bytes read and not yet consumed; requests point into it, hence the count. */
typedef struct nrd_http_inbuf {
    atomic_int refs;
    size_t cap, len;
    char data[];
} inbuf;

/* Output that the socket did not take yet. */
typedef struct segment {
    struct segment *next;
    void (*done)(void *arg);
    void *arg;
    int n, i; /* iov[i..n) is left */
    struct iovec iov[];
} segment;

typedef enum {
    READ_HEAD,    /* waiting for a request head */
    READ_INPLACE, /* body goes on in the same buffer */
    READ_BODY,    /* body goes to its own buffer */
    READ_CHUNKED,
    BUSY,    /* the handler has the request */
    CLOSING, /* output is being sent, then the connection ends */
    LINGER,  /* our side is shut, the rest of the input is read away */
} conn_state;

struct nrd_http_conn {
    nrd_http_loop *loop;
    nrd_http_conn *prev, *next; /* all connections of the loop */
    int fd;
    struct event ev_read, ev_closed, ev_write;
    bool on_read, on_closed, on_write;
    bool dead; /* fd is closed; freed when depth is 0 */
    int depth; /* callers that still use the struct */
    conn_state state;
    bool in_process;
    bool close_after, linger_after;
    inbuf *in;
    size_t start;   /* first unconsumed byte of in */
    size_t scanned; /* nrd_http_find_head's memory, relative to start */
    nrd_http_request *req;
    size_t body_len, body_cap;
    nrd_http_chunks chunks;
    segment *out, **out_tail;
    size_t out_bytes;
    uint64_t active_ns; /* last progress in either direction */
};

struct nrd_http_loop {
    nrd_http_server *server;
    struct event_base *base;
    pthread_t thread;
    bool started;
    int wake_fd;
    struct event *ev_wake, *ev_tick;
    _Atomic(nrd_http_task *) inbox; /* newest first */
    nrd_http_conn *conns;
    atomic_size_t n_conns;
    uint64_t now_ns; /* refreshed at each wake-up */
    nrd_http_request *spare;
    int n_spare;
    bool draining;
    bool stop;
    nrd_http_task drain_task, stop_task;
    char scratch[SCRATCH];
};

struct nrd_http_server {
    nrd_http_config cfg;
    int port;
    struct evconnlistener *listener; /* on loop 0 */
    struct event *ev_accept_again;
    nrd_http_loop *loops;
    int n_loops;
};

static _Thread_local nrd_http_loop *here; /* the loop that this thread runs, if any */

static void process(nrd_http_conn *c);
static void update_reading(nrd_http_conn *c);

/* ---- buffers and requests ---- */

static inbuf *inbuf_new(size_t cap)
{
    inbuf *b = malloc(sizeof *b + cap);
    if (b) {
        atomic_init(&b->refs, 1);
        b->cap = cap;
        b->len = 0;
    }
    return b;
}

static void inbuf_unref(inbuf *b)
{
    if (b && atomic_fetch_sub_explicit(&b->refs, 1, memory_order_acq_rel) == 1) {
        free(b);
    }
}

static nrd_http_request *request_new(nrd_http_conn *c)
{
    nrd_http_loop *l = c->loop;
    nrd_http_request *req = l->spare;
    if (req) {
        l->spare = (nrd_http_request *)req->gone_arg;
        l->n_spare--;
    } else if (!(req = malloc(sizeof *req))) {
        return NULL;
    }
    atomic_init(&req->refs, 1);
    req->body = NULL;
    req->body_n = 0;
    req->begin_ns = req->ready_ns = l->now_ns;
    req->user = l->server->cfg.user;
    req->on_gone = NULL;
    req->gone_arg = NULL;
    req->loop = l;
    req->conn = c;
    req->in = NULL;
    req->own_body = NULL;
    req->streaming = false;
    return req;
}

void nrd_http_request_ref(nrd_http_request *req)
{
    atomic_fetch_add_explicit(&req->refs, 1, memory_order_relaxed);
}

void nrd_http_request_unref(nrd_http_request *req)
{
    if (!req || atomic_fetch_sub_explicit(&req->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    inbuf_unref(req->in);
    free(req->own_body);
    nrd_http_loop *l = here;
    if (l && l == req->loop && l->n_spare < SPARE_REQUESTS) {
        req->gone_arg = l->spare; /* the list of spares is linked here */
        l->spare = req;
        l->n_spare++;
        return;
    }
    free(req);
}

bool nrd_http_is_gone(const nrd_http_request *req)
{
    return req->conn == NULL;
}

/* ---- end of a connection ---- */

static void segment_free(segment *s)
{
    if (s->done) {
        s->done(s->arg);
    }
    free(s);
}

/* ev_closed is edge-triggered: with the level form a reset would be reported again and again
 * while nobody reads. */
static void want(struct event *ev, bool *is_on, bool on)
{
    if (on != *is_on) {
        (void)(on ? event_add(ev, NULL) : event_del(ev));
        *is_on = on;
    }
}

static void conn_release(nrd_http_conn *c)
{
    if (c->depth == 0 && c->dead) {
        free(c);
    }
}

static void conn_close(nrd_http_conn *c)
{
    nrd_http_loop *l = c->loop;
    if (c->dead) {
        return;
    }
    c->dead = true;
    want(&c->ev_read, &c->on_read, false);
    want(&c->ev_closed, &c->on_closed, false);
    want(&c->ev_write, &c->on_write, false);
    close(c->fd);
    *(c->prev ? &c->prev->next : &l->conns) = c->next;
    if (c->next) {
        c->next->prev = c->prev;
    }
    while (c->out) {
        segment *s = c->out;
        c->out = s->next;
        segment_free(s);
    }
    inbuf_unref(c->in);
    c->in = NULL;
    nrd_http_request *req = c->req;
    c->req = NULL;
    if (req) {
        req->conn = NULL;
        if (c->state == BUSY && req->on_gone) {
            req->on_gone(req, req->gone_arg);
        }
        nrd_http_request_unref(req);
    }
    atomic_fetch_sub(&l->n_conns, 1);
}

/* Everything is sent and the connection shall end. Closing a socket with unread input makes the
 * kernel send a reset, which can destroy the reply on its way; so that input is read away first. */
static void conn_finish(nrd_http_conn *c)
{
    if (c->linger_after) {
        c->state = LINGER;
        shutdown(c->fd, SHUT_WR);
        c->active_ns = c->loop->now_ns;
        update_reading(c);
        return;
    }
    conn_close(c);
}

/* ---- output ---- */

static ssize_t send_some(int fd, struct iovec *iov, int n)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n};
    ssize_t r;
    do {
        r = sendmsg(fd, &m, MSG_NOSIGNAL);
    } while (r < 0 && errno == EINTR);
    return r;
}

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

static size_t iov_bytes(const struct iovec *iov, int from, int n)
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
    size_t copy = i < n_copy ? iov_bytes(iov, i, n_copy) : 0;
    segment *s = malloc(sizeof *s + (size_t)(n - i + 1) * sizeof *s->iov + copy);
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
    *c->out_tail = s;
    c->out_tail = &s->next;
    return true;
}

/* Sends now what the socket takes, keeps the rest in order. done(arg) is always called once. */
static void conn_send(nrd_http_conn *c, struct iovec *iov, int n, int n_copy,
                      void (*done)(void *arg), void *arg)
{
    int i = 0;
    if (!c->out) {
        ssize_t r = send_some(c->fd, iov, n);
        if (r < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
            goto broken;
        }
        if (r > 0) {
            c->active_ns = c->loop->now_ns;
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
    want(&c->ev_closed, &c->on_closed, false);
    want(&c->ev_write, &c->on_write, true);
    return;

broken:
    if (done) {
        done(arg);
    }
    conn_close(c);
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
        want(&c->ev_read, &c->on_read, false);
        want(&c->ev_closed, &c->on_closed, false);
        if (!c->out) {
            conn_finish(c);
        }
        return;
    }
    c->state = READ_HEAD;
    if (!c->in_process) {
        process(c);
    }
}

static const char *status_text(int status)
{
    switch (status) {
    case 200:
        return "OK";
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

/* Head of a reply in the loop's scratch buffer. length < 0: a stream. */
static size_t put_head(nrd_http_conn *c, int status, const char *content_type, const char *extra,
                       int64_t length)
{
    char *p = c->loop->scratch, *end = p + SCRATCH;
    const bool close_it = c->close_after || c->loop->draining;
    int n = snprintf(p, SCRATCH, "HTTP/1.1 %d %s\r\n", status, status_text(status));
    p += n;
    if (content_type) {
        p += snprintf(p, (size_t)(end - p), "Content-Type: %s\r\n", content_type);
    }
    if (length >= 0) {
        p += snprintf(p, (size_t)(end - p), "Content-Length: %lld\r\n", (long long)length);
    } else if (!c->req->head.http_1_0) {
        p += snprintf(p, (size_t)(end - p), "Transfer-Encoding: chunked\r\n");
    }
    if (close_it) {
        p += snprintf(p, (size_t)(end - p), "Connection: close\r\n");
    } else if (c->req && c->req->head.http_1_0) {
        p += snprintf(p, (size_t)(end - p), "Connection: keep-alive\r\n");
    }
    p += snprintf(p, (size_t)(end - p), "%s\r\n", extra ? extra : "");
    NRD_ASSERT(p < end, "header lines of a reply are short");
    return (size_t)(p - c->loop->scratch);
}

void nrd_http_replyv(nrd_http_request *req, int status, const char *content_type, const char *extra,
                     const struct iovec *parts, int n_parts, void (*done)(void *arg), void *arg)
{
    struct iovec iov[MAX_IOV + 1];
    nrd_http_conn *c = req->conn;

    NRD_ASSERT(n_parts >= 0 && n_parts <= MAX_IOV, "a reply has few pieces");
    if (!c) {
        if (done) {
            done(arg);
        }
        return;
    }
    c->depth++;
    size_t total = iov_bytes(parts, 0, n_parts);
    iov[0].iov_base = c->loop->scratch;
    iov[0].iov_len = put_head(c, status, content_type, extra, (int64_t)total);
    if (req->head.method == NRD_HTTP_HEAD) {
        n_parts = 0;
    }
    for (int i = 0; i < n_parts; i++) {
        iov[i + 1] = parts[i];
    }
    /* A reply with an owner is borrowed; without one everything unsent is copied. */
    conn_send(c, iov, n_parts + 1, done ? 1 : n_parts + 1, done, arg);
    end_request(c);
    c->depth--;
    conn_release(c);
}

void nrd_http_reply(nrd_http_request *req, int status, const char *content_type, const char *extra,
                    const void *body, size_t n)
{
    struct iovec part = {(void *)(uintptr_t)body, n};
    nrd_http_replyv(req, status, content_type, extra, &part, n ? 1 : 0, NULL, NULL);
}

void nrd_http_reply_error(nrd_http_request *req, int status, const char *message)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"error\":");
    nrd_json_put_cstr(&s, message);
    nrd_str_putc(&s, '}');
    nrd_http_reply(req, status, "application/json", NULL, s.data, s.len);
    nrd_str_fini(&s);
}

void nrd_http_stream_begin(nrd_http_request *req, int status, const char *content_type)
{
    nrd_http_conn *c = req->conn;
    if (!c) {
        return;
    }
    c->depth++;
    if (req->head.http_1_0) {
        c->close_after = true; /* without chunks only the end of the connection ends the body */
    }
    struct iovec iov = {c->loop->scratch, 0};
    req->streaming = true;
    iov.iov_len = put_head(c, status, content_type, NULL, -1);
    conn_send(c, &iov, 1, 1, NULL, NULL);
    c->depth--;
    conn_release(c);
}

void nrd_http_stream_write(nrd_http_request *req, const void *data, size_t n)
{
    nrd_http_conn *c = req->conn;
    if (!c || n == 0 || req->head.method == NRD_HTTP_HEAD) {
        return;
    }
    NRD_ASSERT(req->streaming, "stream_begin comes first");
    c->depth++;
    char size[24];
    const bool chunked = !req->head.http_1_0;
    int size_n = chunked ? snprintf(size, sizeof size, "%zx\r\n", n) : 0;
    struct iovec iov[3] = {{size, (size_t)size_n},
                           {(void *)(uintptr_t)data, n},
                           {(void *)(uintptr_t) "\r\n", chunked ? 2u : 0u}};
    conn_send(c, iov, 3, 3, NULL, NULL);
    if (!c->dead && c->out_bytes > NRD_HTTP_MAX_STREAM_BACKLOG) {
        NRD_LOG_WARN("a client does not read its stream: connection closed with %zu bytes unsent",
                     c->out_bytes);
        conn_close(c);
    }
    c->depth--;
    conn_release(c);
}

void nrd_http_stream_end(nrd_http_request *req)
{
    nrd_http_conn *c = req->conn;
    if (!c) {
        return;
    }
    c->depth++;
    if (!req->head.http_1_0 && req->head.method != NRD_HTTP_HEAD) {
        struct iovec iov = {(void *)(uintptr_t) "0\r\n\r\n", 5};
        conn_send(c, &iov, 1, 1, NULL, NULL);
    }
    end_request(c);
    c->depth--;
    conn_release(c);
}

static void flush(nrd_http_conn *c)
{
    while (c->out) {
        struct iovec iov[MAX_IOV];
        int n = 0;
        for (segment *s = c->out; s && n < MAX_IOV; s = s->next) {
            for (int i = s->i; i < s->n && n < MAX_IOV; i++) {
                iov[n++] = s->iov[i];
            }
        }
        ssize_t r = send_some(c->fd, iov, n);
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        }
        if (r < 0) {
            conn_close(c);
            return;
        }
        c->active_ns = c->loop->now_ns;
        c->out_bytes -= (size_t)r;
        size_t left = (size_t)r;
        while (c->out) {
            segment *s = c->out;
            size_t have = iov_bytes(s->iov, s->i, s->n);
            if (left < have) {
                advance(s->iov, s->n, &s->i, left);
                break;
            }
            left -= have;
            c->out = s->next;
            segment_free(s);
        }
    }
    c->out_tail = &c->out;
    want(&c->ev_write, &c->on_write, false);
    if (c->state == CLOSING) {
        conn_finish(c);
    } else if (c->state == READ_HEAD) {
        process(c); /* a pipelined request may have waited for this */
    } else {
        update_reading(c);
    }
}

static void on_write(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_conn *c = arg;
    (void)fd;
    (void)what;
    c->loop->now_ns = nrd_now_ns();
    c->depth++;
    flush(c);
    c->depth--;
    conn_release(c);
}

/* ---- input ---- */

/* Refuses the request that is being read and ends the connection after the reply. */
static void refuse(nrd_http_conn *c, int status, const char *message)
{
    if (!c->req && !(c->req = request_new(c))) {
        conn_close(c);
        return;
    }
    c->req->head.method = NRD_HTTP_POST; /* the reply has a body */
    c->req->head.http_1_0 = false;
    c->close_after = true;
    c->linger_after = true;
    c->state = BUSY;
    nrd_http_reply_error(c->req, status, message);
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
    inbuf *b = c->in;
    size_t keep = b ? b->len - c->start : 0;
    if (b && b->len < b->cap && (b->cap - b->len >= 1024 || c->start == 0)) {
        return true;
    }
    if (b && atomic_load_explicit(&b->refs, memory_order_acquire) == 1 && keep < b->cap / 2) {
        memmove(b->data, b->data + c->start, keep);
    } else {
        size_t cap = INBUF_FIRST;
        while (cap < keep * 2) {
            cap *= 2;
        }
        inbuf *bigger = inbuf_new(cap);
        if (!bigger) {
            return false;
        }
        if (keep) {
            memcpy(bigger->data, b->data + c->start, keep);
        }
        inbuf_unref(b);
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

static void dispatch(nrd_http_conn *c)
{
    nrd_http_server *s = c->loop->server;
    c->state = BUSY;
    c->req->ready_ns = c->loop->now_ns;
    if (!c->req->head.keep_alive) {
        c->close_after = true;
    }
    s->cfg.handle(c->req, s->cfg.user);
}

static void send_continue(nrd_http_conn *c)
{
    struct iovec iov = {(void *)(uintptr_t) "HTTP/1.1 100 Continue\r\n\r\n", 25};
    conn_send(c, &iov, 1, 1, NULL, NULL);
}

static bool append_body(nrd_http_conn *c, const char *data, size_t n)
{
    size_t need = c->body_len + n;
    if (need > c->body_cap) {
        size_t cap = c->body_cap ? c->body_cap * 2 : 4096;
        cap = cap < need ? need : cap;
        char *p = realloc(c->req->own_body, cap);
        if (!p) {
            refuse(c, 503, "out of memory for the request body");
            return false;
        }
        c->req->own_body = p;
        c->body_cap = cap;
    }
    memcpy(c->req->own_body + c->body_len, data, n);
    c->body_len += n;
    return true;
}

/* Decodes what was read; the rest behind the end of the body is the next request. */
static void feed_chunks(nrd_http_conn *c, const char *data, size_t n)
{
    const char *piece;
    size_t piece_n;
    for (;;) {
        switch (nrd_http_chunks_next(&c->chunks, &data, &n, &piece, &piece_n)) {
        case NRD_CHUNKS_MORE:
            return;
        case NRD_CHUNKS_ERROR:
            refuse(c, 400, "malformed chunked body");
            return;
        case NRD_CHUNKS_DATA:
            if (piece_n > c->loop->server->cfg.max_body_bytes - c->body_len) {
                refuse_size(c, c->body_len + piece_n);
                return;
            }
            if (!append_body(c, piece, piece_n)) {
                return;
            }
            break;
        case NRD_CHUNKS_DONE:
            c->req->body = c->req->own_body;
            c->req->body_n = c->body_len;
            if (data >= c->in->data && data <= c->in->data + c->in->len) {
                c->start = (size_t)(data - c->in->data); /* the whole body was in the buffer */
            } else {
                inbuf *b = inbuf_new(n > INBUF_FIRST ? n : INBUF_FIRST);
                if (!b) {
                    conn_close(c);
                    return;
                }
                memcpy(b->data, data, n);
                b->len = n;
                inbuf_unref(c->in);
                c->in = b;
                c->start = 0;
            }
            dispatch(c);
            return;
        }
    }
}

/* The head is parsed and consumed: decides where the body goes. */
static void begin_body(nrd_http_conn *c)
{
    nrd_http_request *req = c->req;
    const nrd_http_head *h = &req->head;
    inbuf *b = c->in;
    size_t have = b->len - c->start;
    size_t max = c->loop->server->cfg.max_body_bytes;

    c->body_len = c->body_cap = 0;
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
        req->own_body = malloc(n);
        if (!req->own_body) {
            refuse(c, 503, "out of memory for the request body");
            return;
        }
        memcpy(req->own_body, b->data + c->start, have);
        req->body = req->own_body;
        req->body_n = n;
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
    size_t n = nrd_http_find_head(c->in->data + c->start, avail, &c->scanned);
    if (n == 0 || n > NRD_HTTP_MAX_HEAD) {
        if (n || avail > NRD_HTTP_MAX_HEAD) {
            refuse(c, 431, "request header fields too large");
        }
        return false;
    }
    c->scanned = 0;
    c->req = request_new(c);
    if (!c->req) {
        conn_close(c);
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

/* Works off what has been read, as long as requests are complete and the output keeps up. */
static void process(nrd_http_conn *c)
{
    c->in_process = true;
    c->depth++;
    while (!c->dead && c->state == READ_HEAD && c->out_bytes <= MAX_PIPELINE_OUT) {
        recycle_inbuf(c);
        if (!c->in || c->start == c->in->len || !begin_request(c)) {
            break;
        }
    }
    c->in_process = false;
    if (!c->dead) {
        if (c->state == READ_HEAD && c->loop->draining && !c->out &&
            (!c->in || c->start == c->in->len)) {
            conn_close(c); /* idle while the server stops */
        } else {
            update_reading(c);
        }
    }
    c->depth--;
    conn_release(c);
}

/* Input is read when there is a place for it; otherwise only the end of the connection is
 * watched. */
static void update_reading(nrd_http_conn *c)
{
    bool reading = true, watching = false;
    if (c->dead) {
        return;
    }
    switch (c->state) {
    case READ_HEAD:
        reading = c->out_bytes <= MAX_PIPELINE_OUT;
        watching = !reading;
        break;
    case BUSY:
        /* Pipelined bytes go behind the current request; its buffer must not move. */
        reading = c->in && c->in->len < c->in->cap;
        watching = !reading;
        break;
    case CLOSING:
        reading = false;
        break;
    default:
        break;
    }
    want(&c->ev_read, &c->on_read, reading);
    /* libevent cannot mix edge and level on one descriptor; while output waits, sending tells. */
    want(&c->ev_closed, &c->on_closed, watching && !c->on_write);
}

/* Where the next bytes go. */
static bool read_target(nrd_http_conn *c, char **out, size_t *out_room)
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
        *out_room = c->req->body_n - c->body_len;
        return true;
    default:
        *out = c->loop->scratch;
        *out_room = SCRATCH;
        return true;
    }
}

/* n bytes have arrived at the place that read_target gave. */
static void took(nrd_http_conn *c, char *data, size_t n)
{
    switch (c->state) {
    case READ_HEAD:
        c->in->len += n;
        process(c);
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
        if (c->body_len == c->req->body_n) {
            dispatch(c);
        }
        break;
    case READ_CHUNKED:
        /* The scratch buffer is also used for replies: nothing is sent before the body ends. */
        feed_chunks(c, data, n);
        break;
    case CLOSING:
    case LINGER:
        break;
    }
}

static void on_end_of_input(nrd_http_conn *c)
{
    if (c->state == READ_HEAD && c->out) {
        c->close_after = true; /* the client waits for the rest of a reply */
        c->state = CLOSING;
        update_reading(c);
        return;
    }
    conn_close(c);
}

static void on_read(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_conn *c = arg;
    size_t budget = READ_BUDGET;

    (void)fd;
    (void)what;
    c->loop->now_ns = nrd_now_ns();
    c->active_ns = c->state == LINGER ? c->active_ns : c->loop->now_ns;
    c->depth++;
    c->in_process = true; /* replies sent from inside do not recurse into process() */
    while (!c->dead && c->on_read) {
        char *to;
        size_t room;
        if (!read_target(c, &to, &room)) {
            if (c->state == READ_HEAD) {
                conn_close(c); /* no memory */
            }
            break;
        }
        ssize_t r = recv(c->fd, to, room, 0);
        if (r < 0 && errno == EINTR) {
            continue;
        }
        if (r < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            break;
        }
        if (r <= 0) {
            r == 0 ? on_end_of_input(c) : conn_close(c);
            break;
        }
        took(c, to, (size_t)r);
        /* A short read has emptied the socket; asking again would cost a system call. */
        if ((size_t)r < room || (size_t)r >= budget) {
            break;
        }
        budget -= (size_t)r;
    }
    c->in_process = false;
    if (!c->dead) {
        if (c->state == READ_HEAD) {
            process(c);
        } else {
            update_reading(c);
        }
    }
    c->depth--;
    conn_release(c);
}

static void on_closed(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_conn *c = arg;
    int error = 0;
    socklen_t n = sizeof error;
    c->loop->now_ns = nrd_now_ns();
    c->depth++;
    if (what & EV_CLOSED) {
        on_end_of_input(c);
    } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) == 0 && error != 0) {
        conn_close(c); /* a reset is reported as readable */
    }
    c->depth--;
    conn_release(c);
}

/* ---- connections ---- */

static void conn_new(nrd_http_loop *l, int fd)
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
    event_assign(&c->ev_read, l->base, fd, EV_READ | EV_PERSIST, on_read, c);
    event_assign(&c->ev_closed, l->base, fd, EV_READ | EV_CLOSED | EV_ET | EV_PERSIST, on_closed,
                 c);
    event_assign(&c->ev_write, l->base, fd, EV_WRITE | EV_PERSIST, on_write, c);
    c->next = l->conns;
    if (l->conns) {
        l->conns->prev = c;
    }
    l->conns = c;
    update_reading(c);
}

typedef struct hand_over {
    nrd_http_task task;
    nrd_http_loop *loop;
    int fd;
} hand_over;

static void run_hand_over(nrd_http_task *task)
{
    hand_over *h = (hand_over *)(void *)task;
    if (h->loop->draining) {
        close(h->fd);
        atomic_fetch_sub(&h->loop->n_conns, 1);
    } else {
        conn_new(h->loop, h->fd);
    }
    free(h);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *addr,
                      int addr_n, void *arg)
{
    nrd_http_server *s = arg;
    nrd_http_loop *best = &s->loops[0];
    (void)listener;
    (void)addr;
    (void)addr_n;
    for (int i = 1; i < s->n_loops; i++) {
        if (atomic_load(&s->loops[i].n_conns) < atomic_load(&best->n_conns)) {
            best = &s->loops[i];
        }
    }
    atomic_fetch_add(&best->n_conns, 1);
    if (best == here) {
        conn_new(best, fd);
        return;
    }
    hand_over *h = malloc(sizeof *h);
    if (!h) {
        close(fd);
        atomic_fetch_sub(&best->n_conns, 1);
        return;
    }
    h->task.run = run_hand_over;
    h->loop = best;
    h->fd = fd;
    nrd_http_post(best, &h->task);
}

static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    /* Out of descriptors: retrying at once would spin, so wait a little. */
    nrd_http_server *s = arg;
    struct timeval pause = {0, 100000};
    NRD_LOG_WARN("%s service cannot accept a connection: %s", s->cfg.name, strerror(errno));
    evconnlistener_disable(listener);
    event_add(s->ev_accept_again, &pause);
}

static void on_accept_again(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_server *s = arg;
    (void)fd;
    (void)what;
    if (s->listener) {
        evconnlistener_enable(s->listener);
    }
}

/* ---- loops ---- */

void nrd_http_post(nrd_http_loop *l, nrd_http_task *task)
{
    nrd_http_task *old = atomic_load_explicit(&l->inbox, memory_order_relaxed);
    do {
        task->next = old;
    } while (!atomic_compare_exchange_weak_explicit(&l->inbox, &old, task, memory_order_release,
                                                    memory_order_relaxed));
    if (!old) { /* whoever finds it empty rings */
        uint64_t one = 1;
        ssize_t r;
        do {
            r = write(l->wake_fd, &one, sizeof one);
        } while (r < 0 && errno == EINTR);
    }
}

static void run_tasks(nrd_http_loop *l)
{
    nrd_http_task *t = atomic_exchange_explicit(&l->inbox, NULL, memory_order_acquire);
    nrd_http_task *in_order = NULL;
    while (t) {
        nrd_http_task *next = t->next;
        t->next = in_order;
        in_order = t;
        t = next;
    }
    while (in_order) {
        t = in_order;
        in_order = t->next; /* the task may be freed by its run */
        t->run(t);
    }
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_loop *l = arg;
    uint64_t n;
    (void)what;
    l->now_ns = nrd_now_ns();
    if (read(fd, &n, sizeof n) < 0 && errno != EAGAIN) {
        NRD_LOG_ERROR("wake-up descriptor: %s", strerror(errno));
    }
    run_tasks(l);
}

/* Ends connections that stand still in the middle of something. Idle ones may stay. */
static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    nrd_http_loop *l = arg;
    (void)fd;
    (void)what;
    l->now_ns = nrd_now_ns();
    for (nrd_http_conn *c = l->conns, *next; c; c = next) {
        next = c->next;
        uint64_t quiet = l->now_ns - c->active_ns;
        bool partial = c->state == READ_INPLACE || c->state == READ_BODY ||
                       c->state == READ_CHUNKED ||
                       (c->state == READ_HEAD && c->in && c->in->len > c->start);
        if ((c->state == LINGER && quiet > LINGER_NS) ||
            ((partial || c->out) && c->state != LINGER && quiet > STALL_NS)) {
            c->depth++;
            conn_close(c);
            c->depth--;
            conn_release(c);
        }
    }
}

static void run_drain(nrd_http_task *task)
{
    nrd_http_loop *l =
        (nrd_http_loop *)(void *)((char *)task - offsetof(nrd_http_loop, drain_task));
    l->draining = true;
    if (l == &l->server->loops[0] && l->server->listener) {
        evconnlistener_free(l->server->listener);
        l->server->listener = NULL;
    }
    for (nrd_http_conn *c = l->conns, *next; c; c = next) {
        next = c->next;
        if (c->state == LINGER ||
            (c->state == READ_HEAD && !c->out && (!c->in || c->start == c->in->len))) {
            c->depth++;
            conn_close(c);
            c->depth--;
            conn_release(c);
        }
    }
}

static void run_stop(nrd_http_task *task)
{
    nrd_http_loop *l = (nrd_http_loop *)(void *)((char *)task - offsetof(nrd_http_loop, stop_task));
    l->stop = true;
    event_base_loopbreak(l->base);
}

static void *loop_main(void *arg)
{
    nrd_http_loop *l = arg;
    here = l;
    l->now_ns = nrd_now_ns();
    while (!l->stop && event_base_loop(l->base, 0) == 0) {
    }
    while (l->conns) {
        nrd_http_conn *c = l->conns;
        c->depth++;
        conn_close(c);
        c->depth--;
        conn_release(c);
    }
    while (l->spare) {
        nrd_http_request *req = l->spare;
        l->spare = (nrd_http_request *)req->gone_arg;
        free(req);
    }
    l->n_spare = SPARE_REQUESTS; /* later unrefs free at once */
    return NULL;
}

/* ---- start and stop ---- */

static nrd_error *open_listener(nrd_http_server *s, int *out_fd)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char port[16];
    int one = 1, fd = -1, saved = 0;

    *out_fd = -1;
    snprintf(port, sizeof port, "%d", s->cfg.port);
    int rc = getaddrinfo(s->cfg.address, port, &hints, &list);
    if (rc != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "address '%s': %s", s->cfg.address,
                          gai_strerror(rc));
    }
    for (struct addrinfo *a = list; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol);
        if (fd < 0) {
            saved = errno;
            continue;
        }
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (s->cfg.reuse_port) {
            setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
        }
        if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 1024) != 0) {
            saved = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(list);
    if (fd < 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE,
                          saved == EADDRINUSE ? "Socket '%s:%d' already in use "
                                              : "Socket '%s:%d': %s",
                          s->cfg.address, s->cfg.port, strerror(saved));
    }
    struct sockaddr_storage bound;
    socklen_t n = sizeof bound;
    s->port = s->cfg.port;
    if (getsockname(fd, (struct sockaddr *)&bound, &n) == 0) {
        s->port = bound.ss_family == AF_INET6
                      ? ntohs(((struct sockaddr_in6 *)(void *)&bound)->sin6_port)
                      : ntohs(((struct sockaddr_in *)(void *)&bound)->sin_port);
    }
    *out_fd = fd;
    return NULL;
}

static nrd_error *loop_init(nrd_http_loop *l, nrd_http_server *s)
{
    struct timeval tick = {TICK_SECS, 0};
    struct event_config *cfg = event_config_new();
    l->server = s;
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->drain_task.run = run_drain;
    l->stop_task.run = run_stop;
    if (cfg) {
        /* Other threads only write to wake_fd, so libevent needs no locks. */
        event_config_set_flag(cfg, EVENT_BASE_FLAG_NOLOCK);
        l->base = event_base_new_with_config(cfg);
        event_config_free(cfg);
    }
    if (!l->base || l->wake_fd < 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "event loop: %s", strerror(errno));
    }
    l->ev_wake = event_new(l->base, l->wake_fd, EV_READ | EV_PERSIST, on_wake, l);
    l->ev_tick = event_new(l->base, -1, EV_PERSIST, on_tick, l);
    if (!l->ev_wake || !l->ev_tick || event_add(l->ev_wake, NULL) != 0 ||
        event_add(l->ev_tick, &tick) != 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "event loop: cannot add its events");
    }
    return NULL;
}

nrd_error *nrd_http_server_start(nrd_http_server **out, const nrd_http_config *cfg)
{
    nrd_error *err = NULL;
    nrd_http_server *s = NULL;
    int fd = -1;

    *out = NULL;
    NRD_NEW_GOTO(s, 1, err, fail);
    s->cfg = *cfg;
    NRD_NEW_GOTO(s->loops, cfg->n_threads, err, fail);
    s->n_loops = cfg->n_threads;
    for (int i = 0; i < s->n_loops; i++) {
        s->loops[i].wake_fd = -1;
    }
    NRD_TRY_GOTO(open_listener(s, &fd), err, fail);
    for (int i = 0; i < s->n_loops; i++) {
        NRD_TRY_GOTO(loop_init(&s->loops[i], s), err, fail);
    }
    s->listener = evconnlistener_new(s->loops[0].base, on_accept, s,
                                     LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd);
    if (!s->listener) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "cannot listen on port %d", s->port);
        goto fail;
    }
    fd = -1; /* the listener owns it */
    evconnlistener_set_error_cb(s->listener, on_accept_error);
    s->ev_accept_again = event_new(s->loops[0].base, -1, 0, on_accept_again, s);
    for (int i = 0; i < s->n_loops; i++) {
        char name[16];
        if (pthread_create(&s->loops[i].thread, NULL, loop_main, &s->loops[i]) != 0) {
            err = nrd_errorf(NRD_ERR_INTERNAL, "cannot start a thread");
            goto fail;
        }
        s->loops[i].started = true;
        snprintf(name, sizeof name, "%.7s-%u", cfg->name, (unsigned)i % 1000u);
        pthread_setname_np(s->loops[i].thread, name);
    }
    *out = s;
    return NULL;

fail:
    if (fd >= 0) {
        close(fd);
    }
    nrd_http_server_free(s);
    return err;
}

int nrd_http_server_port(const nrd_http_server *s)
{
    return s->port;
}

void nrd_http_server_drain(nrd_http_server *s)
{
    for (int i = 0; i < s->n_loops; i++) {
        nrd_http_post(&s->loops[i], &s->loops[i].drain_task);
    }
}

size_t nrd_http_server_connections(const nrd_http_server *s)
{
    size_t n = 0;
    for (int i = 0; i < s->n_loops; i++) {
        n += atomic_load(&s->loops[i].n_conns);
    }
    return n;
}

void nrd_http_server_free(nrd_http_server *s)
{
    if (!s) {
        return;
    }
    for (int i = 0; i < s->n_loops; i++) {
        if (s->loops[i].started) {
            nrd_http_post(&s->loops[i], &s->loops[i].stop_task);
        }
    }
    for (int i = 0; i < s->n_loops; i++) {
        if (s->loops[i].started) {
            pthread_join(s->loops[i].thread, NULL);
        }
    }
    if (s->listener) {
        evconnlistener_free(s->listener);
    }
    if (s->ev_accept_again) {
        event_free(s->ev_accept_again);
    }
    for (int i = 0; i < s->n_loops; i++) {
        nrd_http_loop *l = &s->loops[i];
        if (l->ev_wake) {
            event_free(l->ev_wake);
        }
        if (l->ev_tick) {
            event_free(l->ev_tick);
        }
        if (l->base) {
            event_base_free(l->base);
        }
        if (l->wake_fd >= 0) {
            close(l->wake_fd);
        }
    }
    free(s->loops);
    free(s);
}
