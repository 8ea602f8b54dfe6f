/* SPDX-License-Identifier: Apache-2.0
 * Health, metadata, configuration and statistics: what the core answers at once. */
#include "frontends/http/handlers.h"

void nrd_http_on_health(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    bool ok = false;
    (void)route;
    const bool live = req->head.path.n && req->head.path.p[req->head.path.n - 1] == 'e';
    nrd_error *err = nrd_from_triton(live ? TRITONSERVER_ServerIsLive(api->server, &ok)
                                               : TRITONSERVER_ServerIsReady(api->server, &ok));
    if (err) {
        nrd_http_fail_plain(req, err);
        return;
    }
    ok = ok && (live || !atomic_load(&api->draining));
    nrd_http_reply(req, ok ? 200 : 400, NRD_HTTP_PLAIN, NULL, NULL, 0);
}

void nrd_http_on_server(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    TRITONSERVER_Message *m = NULL;
    (void)route;
    TRITONSERVER_Error *e = TRITONSERVER_ServerMetadata(api->server, &m);
    nrd_http_reply_message(req, e, m);
}

void nrd_http_on_model_ready(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    bool ready = false;
    int64_t version;
    nrd_error *err = nrd_http_parse_version(route->version, &version);
    if (!err) {
        err = nrd_from_triton(
            TRITONSERVER_ServerModelIsReady(api->server, route->model, version, &ready));
    }
    if (err) {
        nrd_http_fail_plain(req, err);
    } else if (!ready) {
        nrd_http_reply_plain_error(req, 400, "Model version not ready");
    } else {
        nrd_http_reply(req, 200, NRD_HTTP_PLAIN, NULL, NULL, 0);
    }
}

typedef TRITONSERVER_Error *ask_fn(TRITONSERVER_Server *server, const char *model, int64_t version, TRITONSERVER_Message **out);

static void answer_about(void *user, nrd_http_request *req, const nrd_http_route *route, ask_fn *ask)
{
    nrd_http_api *api = user;
    TRITONSERVER_Message *m = NULL;
    int64_t version;
    nrd_error *err = nrd_http_parse_version(route->version, &version);
    if (err) {
        nrd_http_fail(req, err);
        return;
    }
    TRITONSERVER_Error *e = ask(api->server, route->model ? route->model : "", version, &m);
    nrd_http_reply_message(req, e, m);
}

static TRITONSERVER_Error *config_of(TRITONSERVER_Server *server, const char *model, int64_t version, TRITONSERVER_Message **out)
{
    return TRITONSERVER_ServerModelConfig(server, model, version, 1, out);
}

void nrd_http_on_model(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    answer_about(user, req, route, TRITONSERVER_ServerModelMetadata);
}

void nrd_http_on_config(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    answer_about(user, req, route, config_of);
}

void nrd_http_on_stats(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    answer_about(user, req, route, TRITONSERVER_ServerModelStatistics);
}
