/* SPDX-License-Identifier: Apache-2.0
 * net/http.h - one request over HTTP, with libcurl: what the plug-ins that go out share.
 *
 * Owner     A handle belongs to one thread at a time.
 * Errors    UNAVAILABLE: no complete answer came (name, connection, TLS, time limit, cut off). A status that
 *           is not 2xx is no error here: see the reply.
 * Limits    10 s for a connection; an answer from which nothing comes for 30 s has ended. Redirections are
 *           not followed: they would carry signatures and tokens elsewhere.
 */
#ifndef NRD_NET_HTTP_H
#define NRD_NET_HTTP_H

#include "base/error.h"
#include "base/str.h"

#include <stdint.h>

typedef struct nrd_http_handle nrd_http_handle;

/* Takes bytes of a 2xx answer; false: no more of it is wanted. */
typedef bool (*nrd_http_sink)(void *user, const void *data, size_t n);
/* A field of the answer's head; both end with a NUL, a value above 4 KiB is cut. */
typedef void (*nrd_http_field)(void *user, const char *name, const char *value);

typedef struct nrd_http_reply {
    long status;       /* known before the first byte goes to the sink */
    nrd_str body;      /* without a sink, and of what is not 2xx; at most max_body bytes */
    uint64_t total;    /* of Content-Range; UINT64_MAX without */
    uint64_t first;    /* byte that it begins with; UINT64_MAX without */
    bool is_cut;       /* the body was longer than max_body */
} nrd_http_reply;

typedef struct nrd_http_ask {
    const char *url;
    const char *const *fields; /* "Name: value", ended by NULL */
    const char *post;          /* a form; NULL: GET */
    nrd_http_sink sink;        /* NULL: the body goes into the reply */
    void *user;
    nrd_http_field field;      /* NULL: nobody asks */
    void *field_user;
    size_t max_body;
    const char *ca_file;       /* who signs servers; NULL: as the system says */
    long connect_ms;           /* 0: the usual limit */
    long stall_secs;           /* 0: the usual limit */
} nrd_http_ask;

nrd_error *nrd_http_handle_new(nrd_http_handle **out) NRD_MUST_USE;
void nrd_http_handle_free(nrd_http_handle *h); /* NULL is fine */
/* Fills the reply, which the caller ends with nrd_http_reply_fini also on errors. */
nrd_error *nrd_http_do(nrd_http_handle *h, const nrd_http_ask *ask, nrd_http_reply *reply) NRD_MUST_USE;
void nrd_http_reply_fini(nrd_http_reply *reply);

/* Waits before attempt 1, 2, …: 0.2 s, 0.4 s, at most 3.2 s. */
void nrd_http_pause(unsigned attempt);

enum { NRD_HTTP_ATTEMPTS = 5 }; /* as often may a request bring nothing before it is given up */

#endif
