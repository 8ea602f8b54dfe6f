/* SPDX-License-Identifier: Apache-2.0
 * Whether the server answers, and how busy it is, at the paths of vLLM and llama.cpp.
 * Source: the references of both servers. */
#include "frontends/metrics/server.h"
#include "frontends/openai/internal.h"

/* Asked by machines: no key, any method that the routes have. */
void nrd_oai_on_health(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    const nrd_openai *o = user;
    bool ready = false;
    (void)route;
    nrd_error *err = nrd_from_triton(TRITONSERVER_ServerIsReady(o->api->server, &ready));
    nrd_error_free(err);
    if (ready) {
        nrd_http_reply(req, 200, "application/json", NULL, "{\"status\":\"ok\"}", 15);
    } else {
        static const char text[] = "{\"error\":{\"code\":503,\"message\":\"Not ready: models are being loaded, or the server is "
                                   "ending\",\"type\":\"unavailable_error\"}}";
        nrd_http_reply(req, 503, "application/json", NULL, text, sizeof text - 1);
    }
}

static nrd_error *put_load(nrd_oai_question *q)
{
    nrd_str_printf(&q->out, "{\"server_load\":%d}", atomic_load(&q->o->n_running));
    return NULL;
}

void nrd_oai_on_load(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    (void)route;
    nrd_oai_ask(user, req, NULL, put_load);
}

/* What the metrics port tells, and the same under vLLM's names; here it asks for a key where there are any. */
void nrd_oai_on_metrics(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_openai *o = user;
    char *extra = NULL;
    (void)route;
    if (!nrd_oai_admit(o, req, false, &extra)) {
        return;
    }
    if (o->api->options->allow_metrics) {
        nrd_metrics_answer(req, o->api->server, o->api->front->models);
    } else {
        nrd_oai_fail(req, nrd_error_because(nrd_errorf(NRD_ERR_NOT_FOUND, "There are no metrics: they were turned off with "
                                                                          "--allow-metrics=false"), "metrics_off"), extra);
    }
    free(extra);
}

void nrd_oai_on_reset_prefix_cache(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    char *extra = NULL;
    (void)route;
    if (nrd_oai_admit(user, req, false, &extra)) {
        nrd_oai_fail(req, nrd_errorf(NRD_ERR_UNSUPPORTED, "The prefix cache is emptied with its model only, by loading it again "
                                                          "(/v2/repository/models/NAME/load); cache_salt keeps requests apart"),
                     extra);
    }
    free(extra);
}
