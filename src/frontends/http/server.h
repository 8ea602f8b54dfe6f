/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/server.h - connections and event loops; knows HTTP, knows nothing of models.
 *
 * Purpose   Accepts connections, reads requests with limits, hands each to one handler, writes the
 *           reply. Used by the HTTP service and the metrics service.
 * Owner     Each loop thread owns its connections and their requests. Every function with a
 *           request runs on that request's loop thread; nrd_http_post and nrd_http_request_unref
 *           may be called from any thread.
 * Units     Bytes.
 * Errors    UNAVAILABLE when the address cannot be bound. Bad requests are answered here with
 *           {"error":"..."} and never reach the handler.
 * Lifetime  A request is shared: the connection holds it until the reply has ended or the client is
 *           gone; a handler that answers later takes its own reference. Buffers (head, body) live
 *           as long as the request.
 *
 * Life of a request
 *   handler(req) is called once, with the whole body read. It answers at once with nrd_http_reply,
 *   or keeps a reference and answers later from a task posted to the loop (nrd_http_post): either
 *   nrd_http_reply once, or stream_begin, stream_write..., stream_end. When the client disappears
 *   first, on_gone is called once; replies after that are dropped.
 *   Where config.in_pieces says so, the handler is called before the body is read. It answers at once, or
 *   asks for one piece after the other with nrd_http_read_body; while it works on one, nothing is read.
 *   A request may also come from the server itself: http/local.h.
 */
#ifndef NRD_FRONTENDS_HTTP_SERVER_H
#define NRD_FRONTENDS_HTTP_SERVER_H

#include "base/error.h"
#include "base/str.h"
#include "frontends/common/claim.h"
#include "frontends/common/network.h"
#include "frontends/http/parser.h"
#include "tls/tls.h"

#include <stdatomic.h>
#include <sys/uio.h>

/* A stream whose client does not read may hold back this much (and then one more piece) before it
 * is cut off. */
#define NRD_HTTP_MAX_STREAM_BACKLOG (16u << 20)
/* A body that is read in pieces comes in such of this size; where it is chunked, a piece may be longer by what
 * was read at once. */
#define NRD_HTTP_PIECE (256u << 10)

typedef struct nrd_http_server nrd_http_server;
typedef struct nrd_http_loop nrd_http_loop;
typedef struct nrd_http_conn nrd_http_conn;
typedef struct nrd_http_request nrd_http_request;

struct nrd_http_request {
    nrd_http_head head;
    const char *body; /* NULL when body_n is 0 */
    size_t body_n;
    bool in_pieces; /* the body is still to be read: nrd_http_read_body */
    void *user;                  /* of the config */
    uint64_t begin_ns, ready_ns; /* steady clock: head read, body read */

    /* Set by a handler that answers later: the client is gone, whatever runs may be cancelled. */
    void (*on_gone)(nrd_http_request *req, void *arg);
    void *gone_arg;
    /* Called once, with the request's memory, on any thread; NULL: nothing. What a request holds to its end. */
    void (*on_free)(void *arg);
    void *free_arg;
    void (*on_piece)(nrd_http_request *req, void *arg, const char *data, size_t n, bool last);
    void *piece_arg;
    char *warning; /* owned; the value of a header of its answer: nrd_http_warn */

    /* private to the files of conn.h */
    atomic_int refs;
    nrd_http_loop *loop;
    nrd_http_conn *conn; /* NULL once the reply has ended or the client is gone */
    struct nrd_http_local *local; /* as conn, of a request that came from this server; else NULL */
    struct nrd_http_inbuf *in;
    char *own_body;
    nrd_claim claim; /* memory that is taken for it until it is freed; also of handlers */
    bool streaming;
};

typedef struct nrd_http_config {
    const char *name; /* in log lines: "HTTP" */
    const char *address;
    int port; /* 0: any free port */
    bool reuse_port;
    int listening; /* borrows: a socket that listens, instead of address and port; 0: none */
    nrd_tls *tls; /* borrows; NULL: not encrypted */
    const nrd_networks *trusted; /* borrows: proxies (forwarded.h); NULL: none */
    int n_threads;
    size_t max_body_bytes;
    size_t max_connections; /* one more is answered 503 and closed; 0: any number */
    /* A connection that stands in the middle of a request or a reply must move min_rate bytes a
     * second over each stall_secs, or it is closed. 0: 120 s, 1024. */
    unsigned stall_secs, min_rate;
    /* A connection that has waited this long for its next request is closed. 0: it may stay. When
     * the process has no descriptor for a new connection, the longest idle one of a loop is closed
     * at once; where a loop has no idle one, the new connection may ask for paths with drain_prefix,
     * one request, and gets 503 for others. */
    unsigned idle_secs;
    /* Once it drains, new connections may ask for paths that begin so, and get 503 for others; they
     * do not count as connections. NULL: the port closes. */
    const char *drain_prefix;
    void (*handle)(nrd_http_request *req, void *user);
    /* Whether the body of this request, whose head has been read, goes to the handler in pieces. NULL: never. */
    bool (*in_pieces)(const nrd_http_request *req, void *user);
    /* Answers with an error in the form that clients of this path know; the path is empty where its line was not read.
     * NULL: nrd_http_reply_error. */
    void (*fail)(nrd_http_request *req, int status, const char *message, void *user);
    void *user;
    bool no_port; /* requests come from this server alone (http/local.h) */
} nrd_http_config;

/* Binds, starts the threads. The config is copied; strings are borrowed until free. */
nrd_error *nrd_http_server_start(nrd_http_server **out, const nrd_http_config *cfg) NRD_MUST_USE;
int nrd_http_server_port(const nrd_http_server *s);

/* No new connections but for drain_prefix; idle ones are closed, busy ones after their current reply. */
void nrd_http_server_drain(nrd_http_server *s);
size_t nrd_http_server_connections(const nrd_http_server *s);
/* Whether every loop has turned since the last call: false where one hangs. One thread at a time. */
bool nrd_http_server_responds(nrd_http_server *s);
/* Closes what is left (on_gone is called), ends the threads. Tasks posted later are dropped, so
 * nothing that could still post may remain. NULL is fine. */
void nrd_http_server_free(nrd_http_server *s);

void nrd_http_request_ref(nrd_http_request *req);
void nrd_http_request_unref(nrd_http_request *req);
/* Its answer gets the header x-nereid-warning, besides what the handler gives it; what is no printable ASCII becomes a
 * point. By whoever works on the request, before it is answered; the last one stays. */
void nrd_http_warn(nrd_http_request *req, const char *fmt, ...) NRD_PRINTF(2, 3);

/* Asks for the next piece of the body: on_piece is called once on the loop thread, now or later, unless the
 * client is gone before. data[0..n) lives until the next call or the reply; `last`: the body ends with it. */
void nrd_http_read_body(nrd_http_request *req,
                        void (*on_piece)(nrd_http_request *req, void *arg, const char *data, size_t n, bool last),
                        void *arg);

/* Work for the loop thread. The task is borrowed until run(task) is called. */
typedef struct nrd_http_task {
    struct nrd_http_task *next;
    void (*run)(struct nrd_http_task *task);
} nrd_http_task;
void nrd_http_post(nrd_http_loop *loop, nrd_http_task *task);

/* Ends the request with one reply. content_type NULL: no such field. `extra` holds further header
 * lines, each with CRLF, or NULL. */
void nrd_http_reply(nrd_http_request *req, int status, const char *content_type, const char *extra,
                    const void *body, size_t n);
/* With a body that was built; where memory did not suffice for it, 503 that says so. */
void nrd_http_reply_str(nrd_http_request *req, int status, const char *content_type,
                        const char *extra, const nrd_str *body);
/* The same from several pieces that are not copied: done(arg) is called, now or later, when they
 * are no longer needed. At most 64 pieces. */
void nrd_http_replyv(nrd_http_request *req, int status, const char *content_type, const char *extra,
                     const struct iovec *parts, int n_parts, void (*done)(void *arg), void *arg);
/* {"error":"<message>"} */
void nrd_http_reply_error(nrd_http_request *req, int status, const char *message);
/* The same as text/plain: Triton names no type where it fails before or after reading JSON. */
void nrd_http_reply_plain_error(nrd_http_request *req, int status, const char *message);

/* A reply in pieces; `extra` as above. write sends nothing when the client is gone. */
void nrd_http_stream_begin(nrd_http_request *req, int status, const char *content_type,
                           const char *extra);
/* One event of a stream; where memory did not suffice for it, an event that says so. */
void nrd_http_stream_put(nrd_http_request *req, const nrd_str *event);
void nrd_http_stream_write(nrd_http_request *req, const void *data, size_t n);
void nrd_http_stream_end(nrd_http_request *req);
bool nrd_http_is_gone(const nrd_http_request *req);
/* Who asks, as far as trusted proxies say; without a connection that has addresses: unknown. And the scheme, "http" or
 * "https", as such a proxy says; NULL: it does not. */
nrd_address nrd_http_client(const nrd_http_request *req);
const char *nrd_http_proto(const nrd_http_request *req);

#endif
