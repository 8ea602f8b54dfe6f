/* SPDX-License-Identifier: Apache-2.0
 * The port of Amazon SageMaker: /ping, /invocations for one model, /models for many. */
#include "frontends/hosted/hosted.h"

#include "base/env.h"
#include "base/mem.h"
#include "frontends/hosted/models.h"
#include "frontends/http/handlers.h"

#include <string.h>

#define BINARY_TYPE "application/vnd.sagemaker-triton.binary+json;json-header-size="

struct nrd_sagemaker {
    nrd_http_api api; /* its router and port are this one's */
    nrd_hosted_models *models;
    bool ping_live;
    nrd_http_handler *invoke;
    const char *model;
};

static void on_ping(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_sagemaker *s = user;
    bool ok = false;
    (void)route;
    nrd_error *err = nrd_from_triton(s->ping_live ? TRITONSERVER_ServerIsLive(s->api.server, &ok)
                                                  : TRITONSERVER_ServerIsReady(s->api.server, &ok));
    ok = !err && ok && (s->ping_live || !atomic_load(&s->api.draining));
    nrd_error_free(err);
    nrd_http_reply(req, ok ? 200 : 400, NRD_HTTP_PLAIN, NULL, NULL, 0);
}

static void invoke(nrd_sagemaker *s, nrd_http_request *req, const char *model, nrd_http_handler *handle)
{
    nrd_http_route route = {0};
    const size_t n = strlen(model);

    if (n >= sizeof route.text) {
        nrd_http_reply_error(req, 400, "the name of the model is too long");
        return;
    }
    memcpy(route.text, model, n + 1);
    route.model = route.text;
    handle(&s->api, req, &route);
}

static void on_invocations(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_sagemaker *s = user;
    (void)route;
    invoke(s, req, s->model, s->invoke);
}

static void on_models(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_sagemaker *s = user;
    (void)route;
    if (req->head.method == NRD_HTTP_GET) {
        nrd_hosted_models_list(s->models, req);
    } else {
        nrd_hosted_models_load(s->models, req);
    }
}

static void on_model(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_sagemaker *s = user;
    if (req->head.method == NRD_HTTP_GET) {
        nrd_hosted_models_show(s->models, req, route->model);
    } else if (nrd_view_is(req->head.method_name, "DELETE")) {
        nrd_hosted_models_unload(s->models, req, route->model);
    } else {
        nrd_http_reply_error(req, 400, "expected GET or DELETE");
    }
}

static void on_invoke(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_sagemaker *s = user;
    char *target = nrd_hosted_models_target(s->models, req, route->model);
    if (target) {
        invoke(s, req, target, nrd_http_on_infer);
        free(target);
    }
}

static const nrd_http_route_row routes[] = {
    {"ping", NRD_HTTP_ON_GET, "health", on_ping, nrd_http_refuse_method},
    {"invocations", NRD_HTTP_ON_POST, "inference", on_invocations, nrd_http_refuse_method},
    {"models", NRD_HTTP_ON_GET | NRD_HTTP_ON_POST, "model-repository", on_models, nrd_http_refuse_method},
    {"models/{m}", NRD_HTTP_ON_GET | NRD_HTTP_ON_OTHER, "model-repository", on_model, nrd_http_refuse_method},
    {"models/{m}/invoke", NRD_HTTP_ON_POST, "inference", on_invoke, nrd_http_refuse_method},
};

static nrd_error *read_environment(nrd_sagemaker *s)
{
    const char *ping = nrd_env("SAGEMAKER_TRITON_PING_MODE", "ready");
    const char *type = nrd_env("SAGEMAKER_TRITON_INFERENCE_TYPE", "infer");

    s->model = nrd_env("SAGEMAKER_TRITON_DEFAULT_MODEL_NAME", "unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME");
    s->ping_live = strcmp(ping, "live") == 0;
    s->invoke = strcmp(type, "infer") == 0             ? nrd_http_on_infer
                : strcmp(type, "generate") == 0        ? nrd_http_on_generate
                : strcmp(type, "generate_stream") == 0 ? nrd_http_on_generate_stream
                                                       : NULL;
    if (!s->ping_live && strcmp(ping, "ready") != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "SAGEMAKER_TRITON_PING_MODE must be ready or live, got '%s'", ping);
    }
    if (!s->invoke) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "SAGEMAKER_TRITON_INFERENCE_TYPE: Server has invalid inference type '%s'. Must be one of: infer, "
                          "generate, generate_stream.",
                          type);
    }
    return NULL;
}

nrd_error *nrd_sagemaker_start(nrd_sagemaker **out, nrd_front *front)
{
    const nrd_options *o = front->options;
    nrd_error *err = NULL;
    nrd_sagemaker *s = NULL;

    *out = NULL;
    NRD_NEW_GOTO(s, 1, err, fail);
    s->api = (nrd_http_api){.front = front, .server = front->core, .options = o, .binary_type = BINARY_TYPE};
    NRD_TRY_GOTO(read_environment(s), err, fail);
    NRD_TRY_GOTO(nrd_hosted_models_new(&s->models, front->core), err, fail);
    NRD_TRY_GOTO(nrd_http_router_new(&s->api.router, o, front->keys), err, fail);
    NRD_TRY_GOTO(nrd_http_router_add(s->api.router, routes, sizeof routes / sizeof *routes, s, NULL), err, fail);
    const nrd_http_config cfg = {.name = "SageMaker", .address = o->http_address, .port = (int)o->sagemaker_port,
                                 .tls = front->tls, .trusted = &o->trusted_proxies, .n_threads = (int)o->sagemaker_threads,
                                 .max_connections = (size_t)o->http_max_connections,
                                 .idle_secs = (unsigned)o->http_idle_secs,
                                 .max_body_bytes = (size_t)o->http_max_input_bytes, .drain_prefix = "/ping",
                                 .handle = nrd_http_router_handle, .user = s->api.router};
    NRD_TRY_GOTO(nrd_http_server_start(&s->api.http, &cfg), err, fail);
    *out = s;
    return NULL;

fail:
    nrd_sagemaker_free(s);
    return err;
}

int nrd_sagemaker_port(const nrd_sagemaker *s)
{
    return nrd_http_server_port(s->api.http);
}

void nrd_sagemaker_drain(nrd_sagemaker *s)
{
    if (s) {
        nrd_http_api_drain(&s->api);
    }
}

size_t nrd_sagemaker_connections(const nrd_sagemaker *s)
{
    return s ? nrd_http_api_connections(&s->api) : 0;
}

void nrd_sagemaker_free(nrd_sagemaker *s)
{
    if (s) {
        nrd_http_server_free(s->api.http);
        nrd_http_router_free(s->api.router);
        nrd_hosted_models_free(s->models);
        free(s);
    }
}
