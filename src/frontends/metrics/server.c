/* SPDX-License-Identifier: Apache-2.0 */
#include "frontends/metrics/server.h"

#include "base/str.h"
#include "frontends/http/api.h"
#include "frontends/metrics/vllm.h"

#include <string.h>

#define MEDIA_TYPE "text/plain; charset=utf-8"
#define MAX_BODY (1u << 20) /* a scrape has no body; something small is tolerated */

static void handle(nrd_http_request *req, void *user)
{
    if (req->head.method != NRD_HTTP_GET) {
        nrd_http_reply_plain_error(req, 405, "Method Not Allowed");
        return;
    }
    if (!nrd_view_is(req->head.path, "/metrics") && !nrd_view_is(req->head.path, "/metrics/")) {
        nrd_http_reply(req, 200, MEDIA_TYPE, NULL, "", 0); /* as Triton answers every other path */
        return;
    }
    nrd_metrics_answer(req, user, NULL);
}

static nrd_error *put_all(nrd_str *out, TRITONSERVER_Server *server, nrd_models *models)
{
    TRITONSERVER_Metrics *metrics = NULL;
    const char *text;
    size_t n;
    nrd_error *err = nrd_from_triton(TRITONSERVER_ServerMetrics(server, &metrics));
    if (!err) {
        err = nrd_from_triton(
            TRITONSERVER_MetricsFormatted(metrics, TRITONSERVER_METRIC_PROMETHEUS, &text, &n));
    }
    if (!err) {
        nrd_str_append(out, text, n);
    }
    if (!err && models) {
        err = nrd_vllm_put_metrics(out, server, models);
    }
    if (metrics) {
        nrd_error_free(nrd_from_triton(TRITONSERVER_MetricsDelete(metrics)));
    }
    return err ? err : nrd_str_error(out);
}

void nrd_metrics_answer(nrd_http_request *req, TRITONSERVER_Server *server, nrd_models *models)
{
    nrd_str all = {0};
    nrd_error *err = put_all(&all, server, models);
    if (err) {
        nrd_http_fail(req, err);
    } else {
        nrd_http_reply(req, 200, MEDIA_TYPE, NULL, nrd_str_cstr(&all), all.len);
    }
    nrd_str_fini(&all);
}

nrd_error *nrd_metrics_service_start(nrd_http_server **out, TRITONSERVER_Server *server,
                                     const nrd_options *o, nrd_tls *tls)
{
    nrd_http_config cfg = {
        .name = "metrics",
        .address = o->metrics_address,
        .port = (int)o->metrics_port,
        .listening = o->metrics_socket,
        .tls = o->metrics_use_ssl ? tls : NULL,
        .n_threads = 1,
        .max_body_bytes = MAX_BODY,
        .idle_secs = (unsigned)o->http_idle_secs,
        .handle = handle,
        .user = server,
    };
    return nrd_http_server_start(out, &cfg);
}
