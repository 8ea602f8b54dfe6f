/* SPDX-License-Identifier: Apache-2.0
 * Log and trace settings while the server runs. */
#include "frontends/http/handlers.h"

#include "base/log.h"

#include <string.h>

static nrd_error *set_level(const nrd_json *doc, const char *key, nrd_log_level level,
                            TRITONSERVER_Error *(*set)(TRITONSERVER_ServerOptions *, bool))
{
    const nrd_json *v = nrd_json_get(doc, key);
    if (!v || nrd_json_is(v, NRD_JSON_NULL)) {
        return NULL;
    }
    if (!nrd_json_is(v, NRD_JSON_BOOL)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-boolean as boolean");
    }
    nrd_log_enable(level, v->boolean);
    return nrd_from_triton(set(NULL, v->boolean)); /* NULL options: the running core */
}

/* This program and the core library each have a log; both are set. */
static nrd_error *set_log(const nrd_json *doc)
{
    const nrd_json *v = nrd_json_get(doc, "log_file");
    if (v && !nrd_json_is(v, NRD_JSON_NULL)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "log file location can not be updated through network protocol");
    }
    NRD_TRY(set_level(doc, "log_info", NRD_LOG_LEVEL_INFO, TRITONSERVER_ServerOptionsSetLogInfo));
    NRD_TRY(
        set_level(doc, "log_warning", NRD_LOG_LEVEL_WARNING, TRITONSERVER_ServerOptionsSetLogWarn));
    NRD_TRY(
        set_level(doc, "log_error", NRD_LOG_LEVEL_ERROR, TRITONSERVER_ServerOptionsSetLogError));
    v = nrd_json_get(doc, "log_verbose_level");
    if (v && !nrd_json_is(v, NRD_JSON_NULL)) {
        if (!nrd_json_is(v, NRD_JSON_INT) || v->i < 0 || v->i > INT32_MAX) {
            return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-unsigned-integer as "
                                                "unsigned-integer");
        }
        nrd_log_set_verbose((int)v->i);
        NRD_TRY(nrd_from_triton(TRITONSERVER_ServerOptionsSetLogVerbose(NULL, (int)v->i)));
    }
    v = nrd_json_get(doc, "log_format");
    if (v && !nrd_json_is(v, NRD_JSON_NULL)) {
        const char *text = nrd_json_str(v, NULL);
        if (!text) {
            return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-string as string");
        }
        const bool iso = strcmp(text, "ISO8601") == 0;
        if (!iso && strcmp(text, "default") != 0) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "invalid argument for --log_format, got: %s",
                              text);
        }
        nrd_log_set_format(iso ? NRD_LOG_FORMAT_ISO8601 : NRD_LOG_FORMAT_DEFAULT);
        NRD_TRY(nrd_from_triton(TRITONSERVER_ServerOptionsSetLogFormat(
            NULL, iso ? TRITONSERVER_LOG_ISO8601 : TRITONSERVER_LOG_DEFAULT)));
    }
    return NULL;
}

void nrd_http_on_logging(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    nrd_str out = {0};
    (void)route;
    if (req->head.method == NRD_HTTP_POST) {
        nrd_json_doc *doc = NULL;
        nrd_error *err = nrd_http_order_json(req, &doc);
        if (!err) {
            err = set_log(nrd_json_root(doc));
        }
        nrd_json_doc_free(doc);
        if (err) {
            nrd_http_fail(req, err);
            return;
        }
    }
    nrd_str_puts(&out, "{\"log_file\":");
    nrd_json_put_cstr(&out, api->options->log_file);
    nrd_str_printf(&out,
                   ",\"log_info\":%s,\"log_warning\":%s,\"log_error\":%s,\"log_verbose_level\":%d,"
                   "\"log_format\":\"%s\"}",
                   nrd_log_is_enabled(NRD_LOG_LEVEL_INFO) ? "true" : "false",
                   nrd_log_is_enabled(NRD_LOG_LEVEL_WARNING) ? "true" : "false",
                   nrd_log_is_enabled(NRD_LOG_LEVEL_ERROR) ? "true" : "false", nrd_log_verbose(),
                   nrd_log_get_format() == NRD_LOG_FORMAT_ISO8601 ? "ISO8601" : "default");
    nrd_http_reply_str(req, 200, NRD_HTTP_JSON, NULL, &out);
    nrd_str_fini(&out);
}

void nrd_http_on_trace(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;
    nrd_str out = {0};
    bool ready = false;

    if (route->model) {
        err = nrd_from_triton(
            TRITONSERVER_ServerModelIsReady(api->server, route->model, -1, &ready));
        if (err || !ready) {
            nrd_error_free(err);
            nrd_http_fail(req, nrd_errorf(NRD_ERR_INVALID_ARG, "Request for unknown model : %s",
                                          route->model));
            return;
        }
    }
    if (req->head.method == NRD_HTTP_POST) {
        err = nrd_http_order_json(req, &doc);
        if (!err) {
            err = nrd_tracer_update(api->front->tracer, route->model, nrd_json_root(doc));
        }
        nrd_json_doc_free(doc);
        if (err) {
            nrd_http_fail(req, err);
            return;
        }
    }
    nrd_tracer_put_settings(api->front->tracer, route->model, &out);
    nrd_http_reply_str(req, 200, NRD_HTTP_JSON, NULL, &out);
    nrd_str_fini(&out);
}
