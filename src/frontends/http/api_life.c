/* SPDX-License-Identifier: Apache-2.0
 * Makes, opens and ends the HTTP service (api.h). */
#include "frontends/http/handlers.h"

#include "base/mem.h"

#include <stdlib.h>

nrd_error *nrd_http_api_new(nrd_http_api **out, nrd_front *front)
{
    const nrd_options *o = front->options;
    nrd_error *err = NULL;
    nrd_http_api *api = NULL;

    *out = NULL;
    NRD_NEW_GOTO(api, 1, err, fail);
    api->front = front;
    api->server = front->core;
    api->options = o;
    NRD_TRY_GOTO(nrd_header_pattern_new(&api->forward, "http-header-forward-pattern",
                                        o->http_forward_pattern),
                 err, fail);
    NRD_TRY_GOTO(nrd_http_router_new(&api->router, o, front->keys), err, fail);
    NRD_TRY_GOTO(nrd_http_router_add(api->router, nrd_http_routes, nrd_http_n_routes, api, NULL), err,
                 fail);
    *out = api;
    return NULL;

fail:
    nrd_http_api_free(api);
    return err;
}

nrd_http_router *nrd_http_api_router(nrd_http_api *api)
{
    return api->router;
}

nrd_error *nrd_http_api_listen(nrd_http_api *api)
{
    const nrd_options *o = api->options;
    const nrd_http_config cfg = {
        .name = "HTTP",
        .address = o->http_address,
        .port = (int)o->http_port,
        .reuse_port = o->reuse_http_port,
        .listening = o->http_socket,
        .tls = api->front->tls,
        .trusted = &api->options->trusted_proxies,
        .n_threads = (int)o->http_threads,
        .max_connections = (size_t)o->http_max_connections,
        .idle_secs = (unsigned)o->http_idle_secs,
        .max_body_bytes = (size_t)o->http_max_input_bytes,
        /* Who comes to a passed socket then waits for the next server. */
        .drain_prefix = o->http_socket ? NULL : "/v2/health/",
        .handle = nrd_http_router_handle,
        .in_pieces = nrd_http_router_in_pieces,
        .fail = nrd_http_router_fail,
        .user = api->router,
    };
    return nrd_http_server_start(&api->http, &cfg);
}

int nrd_http_api_port(const nrd_http_api *api)
{
    return nrd_http_server_port(api->http);
}

void nrd_http_api_drain(nrd_http_api *api)
{
    atomic_store(&api->draining, true);
    if (api->http) {
        nrd_http_server_drain(api->http);
    }
}

size_t nrd_http_api_connections(const nrd_http_api *api)
{
    return api->http ? nrd_http_server_connections(api->http) : 0;
}

bool nrd_http_api_responds(nrd_http_api *api)
{
    return !api->http || nrd_http_server_responds(api->http);
}

void nrd_http_api_free(nrd_http_api *api)
{
    if (!api) {
        return;
    }
    nrd_http_server_free(api->http);
    nrd_http_router_free(api->router);
    nrd_header_pattern_free(api->forward);
    free(api);
}
