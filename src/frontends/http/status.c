/* SPDX-License-Identifier: Apache-2.0
 * Errors as answers, and the documents that several handlers read or send. */
#include "frontends/http/handlers.h"

#include "base/limits.h"

#include <string.h>

#define MAX_JSON_VALUES ((size_t)NRD_LIMIT_JSON_VALUES)

int nrd_http_status(nrd_error_code code)
{
    switch (code) {
    case NRD_ERR_INTERNAL:
        return 500;
    case NRD_ERR_NOT_FOUND:
        return 404;
    case NRD_ERR_UNAVAILABLE:
    case NRD_ERR_NO_MEMORY:
        return 503;
    case NRD_ERR_UNSUPPORTED:
        return 501;
    case NRD_ERR_UNAUTHENTICATED:
        return 401;
    case NRD_ERR_UNKNOWN: /* Triton has no status of its own for these */
    case NRD_ERR_INVALID_ARG:
    case NRD_ERR_ALREADY_EXISTS:
    case NRD_ERR_CANCELLED:
        break;
    }
    return 400;
}

void nrd_http_fail(nrd_http_request *req, nrd_error *err)
{
    nrd_http_reply_error(req, nrd_http_status(nrd_error_get_code(err)), nrd_error_message(err));
    nrd_error_free(err);
}

void nrd_http_fail_plain(nrd_http_request *req, nrd_error *err)
{
    nrd_http_reply_plain_error(req, nrd_http_status(nrd_error_get_code(err)),
                               nrd_error_message(err));
    nrd_error_free(err);
}

void nrd_http_finish(nrd_http_request *req, nrd_error *err)
{
    if (err) {
        nrd_http_fail(req, err);
    } else {
        nrd_http_reply(req, 200, NRD_HTTP_JSON, NULL, NULL, 0);
    }
}

/* Answers with a JSON document of the core. Always takes both. */
void nrd_http_reply_message(nrd_http_request *req, TRITONSERVER_Error *e, TRITONSERVER_Message *m)
{
    const char *text;
    size_t n;
    nrd_error *err = nrd_from_triton(e);
    if (!err) {
        err = nrd_from_triton(TRITONSERVER_MessageSerializeToJson(m, &text, &n));
    }
    if (err) {
        nrd_http_fail(req, err);
    } else {
        nrd_http_reply(req, 200, NRD_HTTP_JSON, NULL, text, n);
    }
    if (m) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_MessageDelete(m)));
    }
}

nrd_error *nrd_http_parse_version(const char *text, int64_t *out)
{
    /* routes take digits only, so what is wrong with one is its size */
    return nrd_parse_version(text, 0, " (details: stol)", out);
}

nrd_error *nrd_http_parse_json(nrd_json_doc **out, nrd_claim *claim, const char *text, size_t n)
{
    /* As Triton's reader; a server writes NaN and Infinity itself where a tensor holds them. */
    const nrd_json_limits limits = {.max_nodes = MAX_JSON_VALUES, .special = true};
    *out = NULL;
    NRD_TRY(nrd_claim_json(claim, text, n, MAX_JSON_VALUES));
    nrd_error *err = nrd_json_parse(out, text ? text : "", n, &limits);
    if (!err) {
        return NULL;
    }
    nrd_error *named = /* status 500, as in Triton */
        nrd_errorf(NRD_ERR_INTERNAL, "failed to parse the request JSON buffer: %s",
                   nrd_error_message(err));
    nrd_error_free(err);
    return named;
}

nrd_error *nrd_http_order_json(nrd_http_request *req, nrd_json_doc **out)
{
    *out = NULL;
    if (req->body_n > NRD_LIMIT_ORDER_TEXT) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the body has %zu bytes, an order may have %d", req->body_n,
                          NRD_LIMIT_ORDER_TEXT);
    }
    return nrd_http_parse_json(out, &req->claim, req->body, req->body_n);
}

/* The body as JSON, or NULL without a body. */
nrd_error *nrd_http_optional_json(nrd_http_request *req, nrd_json_doc **out)
{
    *out = NULL;
    return req->body_n ? nrd_http_parse_json(out, &req->claim, req->body, req->body_n) : NULL;
}

nrd_error *nrd_http_member_bool(const nrd_json *object, const char *key, bool *out)
{
    const nrd_json *v = nrd_json_get(object, key);
    if (v && !nrd_json_is(v, NRD_JSON_BOOL)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-boolean as boolean");
    }
    *out = nrd_json_bool(v, *out);
    return NULL;
}
