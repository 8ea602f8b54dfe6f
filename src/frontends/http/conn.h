/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/conn.h - connections and loops from inside: for the files that make up the server.
 *
 * Purpose   One connection is a state machine: read.c turns bytes into requests, reply.c answers,
 *           write.c sends, both through transport.c; handshake.c agrees on TLS; conn.c ends it;
 *           events.c makes it and calls these when something happens; loop.c gives it a thread, inbox.c the tasks of others, accept.c accepts.
 * Owner     The loop's thread, for everything here except nrd_http_post.
 * Lifetime  A caller that may see the connection die raises `depth` meanwhile and calls
 *           nrd_http_conn_release at its end; the struct is freed by the last of them.
 */
#ifndef NRD_FRONTENDS_HTTP_CONN_H
#define NRD_FRONTENDS_HTTP_CONN_H

#include "frontends/http/server.h"
#include "frontends/http/spare.h"
#include "tls/tls.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <pthread.h>

#define NRD_HTTP_INBUF_FIRST (8u << 10)
#define NRD_HTTP_MAX_IOV 64
#define NRD_HTTP_SCRATCH (64u << 10)
#define NRD_HTTP_SPARE_REQUESTS 64
/* The next pipelined request waits until less than this is unsent. */
#define NRD_HTTP_MAX_PIPELINE_OUT (64u << 10)

/* Bytes read and not yet consumed; requests point into it, hence the count. */
typedef struct nrd_http_inbuf {
    atomic_int refs;
    size_t cap, len;
    char data[];
} nrd_http_inbuf;

/* Output that the socket did not take yet. */
typedef struct nrd_http_segment {
    struct nrd_http_segment *next;
    void (*done)(void *arg);
    void *arg;
    int n, i; /* iov[i..n) is left */
    struct iovec iov[];
} nrd_http_segment;

typedef enum {
    READ_HEAD,    /* waiting for a request head */
    READ_INPLACE, /* body goes on in the same buffer */
    READ_BODY,    /* body goes to its own buffer */
    READ_CHUNKED,
    READ_PIECE, /* a piece of the body goes to its own buffer */
    HELD,       /* the handler works on a piece, or has not asked for one; nothing is read meanwhile */
    BUSY,    /* the handler has the request */
    CLOSING, /* output is being sent, then the connection ends */
    LINGER,  /* our side is shut, the rest of the input is read away */
    HANDSHAKE, /* TLS is being agreed on; then READ_HEAD */
} nrd_http_conn_state;

struct nrd_http_conn {
    nrd_http_loop *loop;
    nrd_http_conn *prev, *next; /* all connections of the loop */
    int fd;
    void *tls; /* owns; NULL: the bytes are sent as they are */
    bool hello_seen, read_wants_write; /* of TLS */
    /* ev_closed is edge-triggered: with the level form a reset would be reported again and again as long as the
     * connection is not read. */
    struct event ev_read, ev_closed, ev_write;
    bool on_read, on_closed, on_write;
    bool dead; /* fd is closed; freed when depth is 0 */
    int depth; /* callers that still use the struct */
    nrd_http_conn_state state;
    bool in_process;
    bool close_after, linger_after;
    bool input_ended; /* the client sends nothing more, but may wait for answers */
    bool late; /* it came when the loop drained, or on a reserved descriptor: it may ask for health only */
    nrd_http_inbuf *in;
    size_t start;   /* first unconsumed byte of in */
    size_t scanned; /* nrd_http_find_head's memory, relative to start */
    nrd_http_request *req;
    size_t body_len, body_cap;
    uint64_t body_left; /* of a body in pieces that is not chunked: bytes that are still to come */
    bool body_open;     /* of a body in pieces: its last piece was not read yet */
    nrd_http_chunks chunks;
    nrd_http_segment *out, **out_tail;
    size_t out_bytes, n_out;          /* unsent bytes and their segments */
    uint64_t active_ns;               /* last progress in either direction */
    uint64_t moved;                   /* bytes in both directions */
    uint64_t window_ns, window_moved; /* since when it stands in the middle of something; 0: not */
};

struct nrd_http_loop {
    nrd_http_server *server;
    struct event_base *base;
    pthread_t thread;
    bool started;
    int wake_fd;
    struct event *ev_wake, *ev_tick;
    _Atomic(nrd_http_task *) inbox; /* newest first */
    atomic_int n_posting;           /* threads within nrd_http_post */
    nrd_http_conn *conns;
    struct nrd_http_local *locals; /* requests of this server itself that are not answered yet */
    atomic_size_t n_conns; /* without the late ones */
    int n_late;
    uint64_t now_ns; /* refreshed at each wake-up */
    nrd_http_request *spare;
    int n_spare;
    bool draining;
    bool stop;
    nrd_http_task drain_task, stop_task, pulse_task;
    atomic_bool pulse_waits; /* pulse_task is in the inbox */
    char scratch[NRD_HTTP_SCRATCH];
};

struct nrd_http_server {
    nrd_http_config cfg;
    int port;
    struct evconnlistener *listener; /* on loop 0 */
    struct event *ev_accept_again;
    nrd_http_spare spare; /* loop 0 */
    int next_to_shed;   /* the loop that makes room next: they take turns */
    uint64_t warned_ns; /* of that; once in a while */
    nrd_http_loop *loops;
    int n_loops;
};

extern _Thread_local nrd_http_loop *nrd_http_here; /* the loop that this thread runs, if any */

/* ---- loop.c ---- */
nrd_error *nrd_http_loop_init(nrd_http_loop *l, nrd_http_server *s) NRD_MUST_USE;
void *nrd_http_loop_main(void *loop); /* body of the thread */
/* Closes the connection that has waited longest for a request. false: none waits. */
bool nrd_http_loop_shed(nrd_http_loop *l);

/* ---- inbox.c ---- */
/* false: there is something to do, the loop must not sleep now. */
bool nrd_http_loop_fall_asleep(nrd_http_loop *l);
void nrd_http_loop_run_tasks(nrd_http_loop *l);
/* At the start of every event: the loop's time is read, and tasks need not ring any more. */
void nrd_http_loop_awake(nrd_http_loop *l);
void nrd_http_loop_wait_posts(nrd_http_loop *l); /* before free: until none will wake it */

/* ---- conn.c ---- */
nrd_http_inbuf *nrd_http_inbuf_new(size_t cap); /* NULL: no memory */
void nrd_http_inbuf_unref(nrd_http_inbuf *b);
nrd_http_request *nrd_http_request_new(nrd_http_loop *l, nrd_http_conn *c); /* c NULL: none. NULL: no memory */
void nrd_http_conn_release(nrd_http_conn *c);
void nrd_http_conn_close(nrd_http_conn *c);
/* Everything is sent and the connection shall end. */
void nrd_http_conn_finish(nrd_http_conn *c);
/* Adds or removes an event; *is_on remembers. */
static inline void nrd_http_conn_want(struct event *ev, bool *is_on, bool on)
{
    if (on != *is_on) {
        (void)(on ? event_add(ev, NULL) : event_del(ev));
        *is_on = on;
    }
}

/* Input is read when there is a place for it; otherwise only the end of the connection is watched. */
void nrd_http_conn_update_reading(nrd_http_conn *c);

/* ---- events.c ---- */
/* Takes fd always; n_conns counts it already. */
void nrd_http_conn_new(nrd_http_loop *l, int fd, bool late);

/* ---- transport.c ---- */
/* As recv and sendmsg; n pieces, or the first 64 of them. */
ssize_t nrd_http_conn_recv(nrd_http_conn *c, void *to, size_t n);
ssize_t nrd_http_conn_sendv(nrd_http_conn *c, struct iovec *iov, int n);
/* Input has been taken from the socket that no event will tell of. */
bool nrd_http_conn_has_pending(const nrd_http_conn *c);
/* Says the end where it can be said at once; what follows is not encrypted. */
void nrd_http_conn_end_tls(nrd_http_conn *c);

/* ---- handshake.c ---- */
/* Goes on with it. true: done, the state is READ_HEAD; else it waits, or the connection has ended. */
bool nrd_http_conn_handshake(nrd_http_conn *c);
bool nrd_http_conn_handshake_is_late(const nrd_http_conn *c);

/* ---- read.c ---- */
/* Where the next bytes go; false: nowhere. */
bool nrd_http_conn_read_target(nrd_http_conn *c, char **out, size_t *out_room);
/* n bytes have arrived there. */
void nrd_http_conn_took(nrd_http_conn *c, char *data, size_t n);
/* Works off what has been read, as long as requests are complete and the output keeps up. */
void nrd_http_conn_process(nrd_http_conn *c);

/* ---- write.c ---- */
/* Sends what waits. true: all of it is gone; else the connection may have ended. */
bool nrd_http_conn_flush(nrd_http_conn *c);
size_t nrd_http_iov_bytes(const struct iovec *iov, int from, int n);
void nrd_http_segment_free(nrd_http_segment *s);
/* Sends now what the socket takes, keeps the rest in order: the first n_copy pieces as copies, the
 * others borrowed until done(arg), which is always called once. */
void nrd_http_conn_send(nrd_http_conn *c, struct iovec *iov, int n, int n_copy,
                        void (*done)(void *arg), void *arg);

/* ---- local.c ---- */
/* The answer to a request without a connection. */
void nrd_http_local_answer(nrd_http_request *req, int status, const struct iovec *parts, int n_parts);
void nrd_http_local_end_all(nrd_http_loop *l);

/* ---- reply.c ---- */
/* Sends something without meaning, so that the system of a client that is gone says so. false: there is
 * nothing of that kind for this request. */
bool nrd_http_conn_probe(nrd_http_conn *c);

#endif
