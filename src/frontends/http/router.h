/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/router.h - which handler answers which URL: how a front end adds its endpoints.
 *
 * Purpose   Tables of routes over nrd_http_server (server.h). A front end with a port of its own
 *           makes a router, adds its table and gives nrd_http_router_handle to the server; one that
 *           shares the port of the HTTP service adds its table to nrd_http_api_router(api) before
 *           nrd_http_api_listen.
 * Owner     Built by one thread; read-only once the server runs, then used by its loop threads.
 * Errors    Answered here: 404 for an unknown path, 405 for another method, 403 where a restricted
 *           group asks for a header that is not there, for a Host that is not the server's and for
 *           orders from pages of another origin (origin.h), 401 without an API key (keys.h).
 * Lifetime  Tables and `user` are borrowed until the server is freed.
 *
 * A handler gets the request with its whole body (req->body, body_n), its header fields
 * (nrd_http_find_field(&req->head, name)) and what the path named (route). It runs on a loop
 * thread and must not block. It answers at once with nrd_http_reply*, or later: it takes a
 * reference, sets req->on_gone (the client went away: cancel the work), and answers from a task
 * posted to req->loop with one nrd_http_reply, or nrd_http_stream_begin, _write..., _end. A stream
 * is chunked; for server-sent events the content type is text/event-stream and each write one
 * "data: ...\n\n". A client that does not read is cut off at NRD_HTTP_MAX_STREAM_BACKLOG unsent
 * bytes (on_gone is called), so a stream needs no flow control of its own.
 */
#ifndef NRD_FRONTENDS_HTTP_ROUTER_H
#define NRD_FRONTENDS_HTTP_ROUTER_H

#include "frontends/common/keys.h"
#include "frontends/http/server.h"
#include "frontends/options.h"

/* What a path named. Strings live in `text`; an absent part is NULL. */
typedef struct nrd_http_route {
    const char *model, *version, *region;
    char text[1024];
} nrd_http_route;

typedef void nrd_http_handler(void *user, nrd_http_request *req, const nrd_http_route *route);
typedef void nrd_http_failer(nrd_http_request *req, int status, const char *message); /* answers with an error */

#define NRD_HTTP_ON_GET (1u << NRD_HTTP_GET)
#define NRD_HTTP_ON_POST (1u << NRD_HTTP_POST)
#define NRD_HTTP_ON_HEAD (1u << NRD_HTTP_HEAD)
#define NRD_HTTP_ON_OTHER (1u << NRD_HTTP_OTHER) /* look at req->head.method_name */
/* Beside NRD_HTTP_ON_POST: a form with files (multipart/form-data) comes in pieces, after the checks above */
#define NRD_HTTP_IN_PIECES (1u << 8)

typedef struct nrd_http_route_row {
    /* Parts between slashes, without the first slash: words, or {m} model, {v} version (digits
     * only), {r} region; {m*} takes the rest of the path, slashes included. "" is the root. */
    const char *pattern;
    unsigned methods;  /* NRD_HTTP_ON_* */
    const char *group; /* as --http-restricted-api names it; NULL: never restricted */
    nrd_http_handler *handle;
    nrd_http_handler *refuse; /* answers 405 to other methods; NULL: {"error": "Method Not Allowed"} */
} nrd_http_route_row;

/* For `refuse`: 405 as text/plain, as Triton answers in some places. */
nrd_http_handler nrd_http_refuse_method;

typedef struct nrd_http_router nrd_http_router;

/* The options say which groups are restricted, which hosts and origins are known. Both are borrowed. */
nrd_error *nrd_http_router_new(nrd_http_router **out, const nrd_options *options,
                               nrd_keys *keys) NRD_MUST_USE;
void nrd_http_router_free(nrd_http_router *r); /* NULL is fine */
/* Adds a table; earlier tables and rows win. Every handler of the table gets `user`. fail: answers what the router refuses for
 * these paths, but for 401, and bodies that the server refuses; NULL: nrd_http_reply_error. */
nrd_error *nrd_http_router_add(nrd_http_router *r, const nrd_http_route_row *rows, size_t n, void *user,
                               nrd_http_failer *fail) NRD_MUST_USE;
/* Whether some row for this path, which begins with a slash, takes the method. */
bool nrd_http_router_takes(const nrd_http_router *r, nrd_view path, nrd_http_method method);
/* The place of the key that a request brings as "Authorization: Bearer KEY" or "x-api-key: KEY", or -1. */
int nrd_http_key(nrd_keys *keys, const nrd_http_request *req);
/* For nrd_http_config: handle = nrd_http_router_handle, in_pieces, fail, user = the router. */
void nrd_http_router_handle(nrd_http_request *req, void *router);
void nrd_http_router_fail(nrd_http_request *req, int status, const char *message, void *router);
bool nrd_http_router_in_pieces(const nrd_http_request *req, void *router);

#endif
