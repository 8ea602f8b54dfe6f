/* SPDX-License-Identifier: Apache-2.0
 * The port of Google's Vertex AI: the routes that it names in the environment. A prediction goes to the
 * default model, or, with the header X-Vertex-Ai-Triton-Redirect, to the endpoint of /v2 that it names. */
#include "frontends/hosted/hosted.h"

#include "base/env.h"
#include "base/mem.h"
#include "base/str.h"
#include "frontends/http/handlers.h"
#include "frontends/metrics/server.h"

#include <string.h>

#define BINARY_TYPE "application/vnd.vertex-ai-triton.binary+json;json-header-size="
enum { N_ROUTES = 2 };

struct nrd_vertex {
    nrd_http_api api;        /* its router and port are this one's */
    nrd_http_router *v2;     /* owns: the endpoints of the HTTP service */
    nrd_http_route_row routes[N_ROUTES];
    char *health, *predict;  /* owns: patterns */
    char model[1024];
};

/* The request as it would have come to the HTTP service. */
static void redirect(nrd_vertex *v, nrd_http_request *req, nrd_view to)
{
    static const char *const metrics = "metrics";

    if (nrd_view_is(to, metrics)) {
        nrd_metrics_answer(req, v->api.server, NULL);
        return;
    }
    /* Before a value stands ':' or a space, in the request's own memory; nobody reads that line again. */
    char *slash = (char *)(uintptr_t)(to.p - 1);
    *slash = '/';
    req->head.path = (nrd_view){slash, to.n + 1};
    req->head.method =
        nrd_http_router_takes(v->v2, req->head.path, NRD_HTTP_POST) ? NRD_HTTP_POST : NRD_HTTP_GET;
    nrd_http_router_handle(req, v->v2);
}

static void on_predict(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_vertex *v = user;
    const nrd_view *to = nrd_http_find_field(&req->head, "X-Vertex-Ai-Triton-Redirect");
    nrd_http_route model = {0};
    (void)route;

    if (to && to->n == 0) {
        nrd_http_reply_plain_error(req, 404, "Not Found"); /* the header is there and names nothing */
        return;
    }
    if (to) {
        redirect(v, req, *to);
        return;
    }
    memcpy(model.text, v->model, sizeof model.text);
    model.model = model.text;
    nrd_http_on_infer(&v->api, req, &model);
}

static void on_health(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_vertex *v = user;
    bool ok = false;
    (void)route;
    nrd_error *err = nrd_from_triton(TRITONSERVER_ServerIsReady(v->api.server, &ok));
    ok = !err && ok && !atomic_load(&v->api.draining);
    nrd_error_free(err);
    nrd_http_reply(req, ok ? 200 : 400, NRD_HTTP_PLAIN, NULL, NULL, 0);
}

/* ---- the default model ---- */

static nrd_error *choose_model(nrd_vertex *v, const nrd_json *index, const char *wanted)
{
    size_t n = 0;
    const char *found = NULL;

    for (size_t i = 0; i < nrd_json_len(index); i++) {
        const char *name = nrd_json_get_str(nrd_json_at(index, i), "name", "");
        n++;
        found = !wanted[0] || strcmp(name, wanted) == 0 ? name : found;
    }
    if (!wanted[0] && n != 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Expect the model repository contains only a single model if default model "
                                               "is not specified");
    }
    if (!found) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "Expect the default model '%s' is loaded", wanted);
    }
    if (strlen(found) >= sizeof v->model) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the name of the default model is too long");
    }
    memcpy(v->model, found, strlen(found) + 1);
    return NULL;
}

static nrd_error *find_model(nrd_vertex *v, const char *wanted)
{
    TRITONSERVER_Message *index = NULL;
    nrd_json_doc *doc = NULL;
    const char *text = NULL;
    size_t n = 0;
    nrd_error *err = nrd_from_triton(TRITONSERVER_ServerModelIndex(v->api.server, TRITONSERVER_INDEX_FLAG_READY, &index));

    err = err ? err : nrd_from_triton(TRITONSERVER_MessageSerializeToJson(index, &text, &n));
    err = err ? err : nrd_json_parse(&doc, text, n, NULL);
    err = err ? err : choose_model(v, nrd_json_root(doc), wanted);
    nrd_json_doc_free(doc);
    if (index) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_MessageDelete(index)));
    }
    return err;
}

/* ---- life ---- */

static nrd_error *read_route(char **out, const char *variable, const char *said)
{
    const char *path = nrd_env(variable, "");

    if (!path[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s is not defined for Vertex AI endpoint", said);
    }
    if (path[0] != '/' || strpbrk(path, "{}?# ")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be a path that begins with '/', got '%s'", variable, path);
    }
    *out = strdup(path + 1);
    return *out ? NULL : nrd_error_no_memory();
}

nrd_error *nrd_vertex_start(nrd_vertex **out, nrd_front *front)
{
    const nrd_options *o = front->options;
    nrd_error *err = NULL;
    nrd_vertex *v = NULL;

    *out = NULL;
    NRD_NEW_GOTO(v, 1, err, fail);
    v->api = (nrd_http_api){.front = front, .server = front->core, .options = o, .binary_type = BINARY_TYPE};
    NRD_TRY_GOTO(read_route(&v->predict, "AIP_PREDICT_ROUTE", "API_PREDICT_ROUTE"), err, fail); /* so Triton says it */
    NRD_TRY_GOTO(read_route(&v->health, "AIP_HEALTH_ROUTE", "AIP_HEALTH_ROUTE"), err, fail);
    NRD_TRY_GOTO(find_model(v, o->vertex_model), err, fail);
    v->routes[0] = (nrd_http_route_row){v->health, NRD_HTTP_ON_GET, "health", on_health, nrd_http_refuse_method};
    v->routes[1] = (nrd_http_route_row){v->predict, NRD_HTTP_ON_POST, "inference", on_predict, nrd_http_refuse_method};
    NRD_TRY_GOTO(nrd_http_router_new(&v->api.router, o, front->keys), err, fail);
    NRD_TRY_GOTO(nrd_http_router_add(v->api.router, v->routes, N_ROUTES, v, NULL), err, fail);
    NRD_TRY_GOTO(nrd_http_router_new(&v->v2, o, front->keys), err, fail);
    NRD_TRY_GOTO(nrd_http_router_add(v->v2, nrd_http_routes, nrd_http_n_routes, &v->api, NULL), err, fail);
    const nrd_http_config cfg = {.name = "Vertex AI", .address = o->http_address, .port = (int)o->vertex_port,
                                 .tls = front->tls, .trusted = &o->trusted_proxies, .n_threads = (int)o->vertex_threads,
                                 .max_connections = (size_t)o->http_max_connections,
                                 .idle_secs = (unsigned)o->http_idle_secs,
                                 .max_body_bytes = (size_t)o->http_max_input_bytes,
                                 .handle = nrd_http_router_handle, .user = v->api.router};
    NRD_TRY_GOTO(nrd_http_server_start(&v->api.http, &cfg), err, fail);
    *out = v;
    return NULL;

fail:
    nrd_vertex_free(v);
    return err;
}

int nrd_vertex_port(const nrd_vertex *v)
{
    return nrd_http_server_port(v->api.http);
}

void nrd_vertex_drain(nrd_vertex *v)
{
    if (v) {
        nrd_http_api_drain(&v->api);
    }
}

size_t nrd_vertex_connections(const nrd_vertex *v)
{
    return v ? nrd_http_api_connections(&v->api) : 0;
}

void nrd_vertex_free(nrd_vertex *v)
{
    if (v) {
        nrd_http_server_free(v->api.http);
        nrd_http_router_free(v->api.router);
        nrd_http_router_free(v->v2);
        free(v->health);
        free(v->predict);
        free(v);
    }
}
