/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/local.h - requests that the server asks itself: the same handlers, no connection.
 *
 * Purpose   Lines of batches go through the code of the endpoints without a socket. A handler sees a request
 *           whose answer goes to done() instead of to a client. A request of a client can go on as one, too.
 * Owner     start and cancel: any thread. done: the loop thread that ran it.
 * Units     Bytes.
 * Errors    cancel: out of memory. A handler's errors are answers with their status.
 * Lifetime  The struct is the caller's, borrowed from start until done, which is called once for each start.
 *           All must have ended before the server is freed.
 */
#ifndef NRD_FRONTENDS_HTTP_LOCAL_H
#define NRD_FRONTENDS_HTTP_LOCAL_H

#include "frontends/http/server.h"

typedef struct nrd_http_local {
    /* of the caller, before start */
    const char *path;          /* of the endpoint, with the slash; a constant */
    void (*handle)(void *user, nrd_http_request *req);
    void *user;
    int key;                   /* for whom: the place of an API key, -1: nobody's */
    uint64_t group;            /* what is cancelled together */
    /* status 0: it was cancelled; else the answer, of which it may take the memory. */
    void (*done)(struct nrd_http_local *l, int status, nrd_str *body);
    /* The pieces of a streamed answer, whose end is done() with an empty body; NULL: there are no streams. */
    void (*wrote)(struct nrd_http_local *l, const void *data, size_t n);
    void *arg;

    /* private to local.c */
    nrd_http_task task;
    nrd_http_request *req;
    nrd_http_loop *loop;
    char *body;
    size_t body_n;
    struct nrd_http_local *prev, *next; /* of the loop; its thread alone */
} nrd_http_local;

/* A bit of the groups of requests that were adopted: those that are started count from 1. */
#define NRD_HTTP_LOCAL_ADOPTED (1ull << 63)

/* Takes the body (malloc). The loops take turns. */
void nrd_http_local_start(nrd_http_server *s, nrd_http_local *l, char *body, size_t n);
/* The request, whose body was read, goes on without its client, on its loop, as one that was started with `l` (of which
 * done, wrote, key and group are set). *out is a request of its own for the client, who waits for its answer. Loop
 * thread of the request. */
nrd_error *nrd_http_local_adopt(nrd_http_request *req, nrd_http_local *l, nrd_http_request **out) NRD_MUST_USE;
/* Ends those of the group that are not answered: soon each of them is done, with status 0 where the answer had
 * not come before. */
nrd_error *nrd_http_local_cancel(nrd_http_server *s, uint64_t group) NRD_MUST_USE;
/* The same on one loop, as l->loop: any thread. */
nrd_error *nrd_http_local_cancel_on(nrd_http_loop *loop, uint64_t group) NRD_MUST_USE;
/* Whether the request came so; *out_key: for whom. */
bool nrd_http_is_local(const nrd_http_request *req, int *out_key);

#endif
