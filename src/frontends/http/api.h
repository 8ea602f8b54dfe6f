/* SPDX-License-Identifier: Apache-2.0
 * frontends/http/api.h - the HTTP/REST service: Triton's v2 protocol over the in-process API.
 *
 * Purpose   The endpoints (routes.c is their table). infer.c and generate.c answer later through
 *           call.c; the rest answers at once, slow model loads from a thread of their own.
 * Owner     The handlers run on loop threads; nrd_http_api itself is read-only after start.
 * Errors    Handlers turn every error into {"error":"..."} with the status of its code.
 * Lifetime  new after the core server exists, listen; drain, then free before the core is deleted.
 *           Between new and listen other front ends may add routes to the same port.
 * Sources   KServe predict protocol v2 and Triton's extensions, as of server 2.51.
 */
#ifndef NRD_FRONTENDS_HTTP_API_H
#define NRD_FRONTENDS_HTTP_API_H

#include "base/error.h"
#include "base/json.h"
#include "frontends/common/error.h"
#include "frontends/common/front.h"
#include "frontends/common/header_pattern.h"
#include "frontends/http/router.h"
#include "frontends/options.h"
#include "triton/core/tritonserver.h"


typedef struct nrd_http_api nrd_http_api;

/* ---- for main.c ---- */
/* Borrows front until free. */
nrd_error *nrd_http_api_new(nrd_http_api **out, nrd_front *front) NRD_MUST_USE;
nrd_http_router *nrd_http_api_router(nrd_http_api *api);
nrd_error *nrd_http_api_listen(nrd_http_api *api) NRD_MUST_USE;
int nrd_http_api_port(const nrd_http_api *api);
void nrd_http_api_drain(nrd_http_api *api);
size_t nrd_http_api_connections(const nrd_http_api *api);
bool nrd_http_api_responds(nrd_http_api *api); /* as nrd_http_server_responds */
/* No request may be in flight in the core. NULL is fine. */
void nrd_http_api_free(nrd_http_api *api);

/* ---- for the files of this folder ---- */
struct nrd_http_api {
    nrd_front *front;            /* borrows until free */
    TRITONSERVER_Server *server; /* of front */
    const nrd_options *options;  /* of front */
    nrd_header_pattern *forward; /* owns; headers that become parameters; NULL: none */
    atomic_bool draining;
    /* Content type that says where binary data begins, followed by the length of the JSON before it, in
     * requests and answers; NULL: the header Inference-Header-Content-Length says so. */
    const char *binary_type;
    nrd_http_router *router; /* owns */
    nrd_http_server *http;   /* owns; NULL before listen */
};

int nrd_http_status(nrd_error_code code);
void nrd_http_fail(nrd_http_request *req, nrd_error *err); /* takes err; answers */
/* The same as text/plain: Triton names no type where it fails before or after reading JSON. */
void nrd_http_fail_plain(nrd_http_request *req, nrd_error *err);

/* -1 for an absent version. */
nrd_error *nrd_http_parse_version(const char *text, int64_t *out) NRD_MUST_USE;
/* The JSON of a whole body; the words are Triton's. The caller frees the document. */
/* claim: gets what the document takes. */
nrd_error *nrd_http_parse_json(nrd_json_doc **out, nrd_claim *claim, const char *text, size_t n) NRD_MUST_USE;

#endif
