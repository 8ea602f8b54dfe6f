#include "frontends/http/api.h"

#include "base/json.h"
#include "base/log.h"
#include "base/mem.h"
#include "frontends/http/call.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define JSON_TYPE "application/json"
#define PLAIN_TYPE "text/plain"    /* what Triton says where it names no type */
#define MAX_JSON_VALUES (1u << 22) /* of one body: 160 MB; long tensors are not counted */
#define CUDA_HANDLE_BYTES 64       /* sizeof(cudaIpcMemHandle_t) */
#define MAX_BACKGROUND 16          /* model loads and unloads at the same time */

/* ---- errors ---- */

nrd_error *nrd_http_from_triton(TRITONSERVER_Error *e)
{
    if (!e) {
        return NULL;
    }
    /* The codes are equal by number (base/error.h). */
    nrd_error *err =
        nrd_errorf((nrd_error_code)TRITONSERVER_ErrorCode(e), "%s", TRITONSERVER_ErrorMessage(e));
    TRITONSERVER_ErrorDelete(e);
    return err;
}

int nrd_http_status(nrd_error_code code)
{
    switch (code) {
    case NRD_ERR_INTERNAL:
        return 500;
    case NRD_ERR_NOT_FOUND:
        return 404;
    case NRD_ERR_UNAVAILABLE:
        return 503;
    case NRD_ERR_UNSUPPORTED:
        return 501;
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

static void reply_plain_error(nrd_http_request *req, int status, const char *message)
{
    nrd_str s = {0};
    nrd_str_puts(&s, "{\"error\":");
    nrd_json_put_cstr(&s, message);
    nrd_str_putc(&s, '}');
    nrd_http_reply(req, status, PLAIN_TYPE, NULL, s.data, s.len);
    nrd_str_fini(&s);
}

void nrd_http_fail_plain(nrd_http_request *req, nrd_error *err)
{
    reply_plain_error(req, nrd_http_status(nrd_error_get_code(err)), nrd_error_message(err));
    nrd_error_free(err);
}

static void finish(nrd_http_request *req, nrd_error *err)
{
    if (err) {
        nrd_http_fail(req, err);
    } else {
        nrd_http_reply(req, 200, JSON_TYPE, NULL, NULL, 0);
    }
}

/* Answers with a JSON document of the core. Takes both always. */
static void reply_message(nrd_http_request *req, TRITONSERVER_Error *e, TRITONSERVER_Message *m)
{
    const char *text;
    size_t n;
    nrd_error *err = nrd_http_from_triton(e);
    if (!err) {
        err = nrd_http_from_triton(TRITONSERVER_MessageSerializeToJson(m, &text, &n));
    }
    if (err) {
        nrd_http_fail(req, err);
    } else {
        nrd_http_reply(req, 200, JSON_TYPE, NULL, text, n);
    }
    if (m) {
        nrd_error_free(nrd_http_from_triton(TRITONSERVER_MessageDelete(m)));
    }
}

nrd_error *nrd_http_parse_version(const char *text, int64_t *out)
{
    long long v = -1;
    if (text && (!nrd_parse_i64(text, &v) || v < 0)) { /* routes take digits only: too large */
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "failed to get model version from specified version string '%s' "
                          "(details: stol), version should be an integral value > 0",
                          text);
    }
    *out = v;
    return NULL;
}

nrd_error *nrd_http_parse_json(nrd_json_doc **out, const char *text, size_t n)
{
    const nrd_json_limits limits = {.max_nodes = MAX_JSON_VALUES};
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

/* ---- health and metadata ---- */

static void on_health(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    bool ok = false;
    (void)route;
    const bool live = req->head.path.n && req->head.path.p[req->head.path.n - 1] == 'e';
    nrd_error *err = nrd_http_from_triton(live ? TRITONSERVER_ServerIsLive(api->server, &ok)
                                               : TRITONSERVER_ServerIsReady(api->server, &ok));
    if (err) {
        nrd_http_fail_plain(req, err);
        return;
    }
    ok = ok && (live || !atomic_load(&api->draining));
    nrd_http_reply(req, ok ? 200 : 400, PLAIN_TYPE, NULL, NULL, 0);
}

static void on_server(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    TRITONSERVER_Message *m = NULL;
    (void)route;
    TRITONSERVER_Error *e = TRITONSERVER_ServerMetadata(api->server, &m);
    reply_message(req, e, m);
}

static void on_model_ready(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    bool ready = false;
    int64_t version;
    nrd_error *err = nrd_http_parse_version(route->version, &version);
    if (!err) {
        err = nrd_http_from_triton(
            TRITONSERVER_ServerModelIsReady(api->server, route->model, version, &ready));
    }
    if (err) {
        nrd_http_fail_plain(req, err);
    } else if (!ready) {
        reply_plain_error(req, 400, "Model version not ready");
    } else {
        nrd_http_reply(req, 200, PLAIN_TYPE, NULL, NULL, 0);
    }
}

static void on_model(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    TRITONSERVER_Message *m = NULL;
    int64_t version;
    nrd_error *err = nrd_http_parse_version(route->version, &version);
    if (err) {
        nrd_http_fail(req, err);
        return;
    }
    TRITONSERVER_Error *e =
        TRITONSERVER_ServerModelMetadata(api->server, route->model, version, &m);
    reply_message(req, e, m);
}

static void on_config(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    TRITONSERVER_Message *m = NULL;
    int64_t version;
    nrd_error *err = nrd_http_parse_version(route->version, &version);
    if (err) {
        nrd_http_fail(req, err);
        return;
    }
    TRITONSERVER_Error *e =
        TRITONSERVER_ServerModelConfig(api->server, route->model, version, 1, &m);
    reply_message(req, e, m);
}

static void on_stats(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    TRITONSERVER_Message *m = NULL;
    int64_t version;
    nrd_error *err = nrd_http_parse_version(route->version, &version);
    if (err) {
        nrd_http_fail(req, err);
        return;
    }
    TRITONSERVER_Error *e = TRITONSERVER_ServerModelStatistics(
        api->server, route->model ? route->model : "", version, &m);
    reply_message(req, e, m);
}

static void on_infer(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_infer(api, req, route);
}

static void on_generate(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_generate(api, req, route, false);
}

static void on_generate_stream(nrd_http_api *api, nrd_http_request *req,
                               const nrd_http_route *route)
{
    nrd_http_generate(api, req, route, true);
}

/* ---- repository ---- */

/* The body as JSON, or NULL without a body. */
static nrd_error *optional_json(const nrd_http_request *req, nrd_json_doc **out)
{
    *out = NULL;
    return req->body_n ? nrd_http_parse_json(out, req->body, req->body_n) : NULL;
}

static nrd_error *member_bool(const nrd_json *object, const char *key, bool *out)
{
    const nrd_json *v = nrd_json_get(object, key);
    if (v && !nrd_json_is(v, NRD_JSON_BOOL)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-boolean as boolean");
    }
    *out = nrd_json_bool(v, *out);
    return NULL;
}

static void on_index(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_json_doc *doc = NULL;
    TRITONSERVER_Message *m = NULL;
    bool ready = false;
    (void)route;
    nrd_error *err = optional_json(req, &doc);
    if (!err) {
        err = member_bool(nrd_json_root(doc), "ready", &ready);
    }
    nrd_json_doc_free(doc);
    if (err) {
        nrd_http_fail(req, err);
        return;
    }
    TRITONSERVER_Error *e =
        TRITONSERVER_ServerModelIndex(api->server, ready ? TRITONSERVER_INDEX_FLAG_READY : 0, &m);
    reply_message(req, e, m);
}

/* Loading may take minutes, so it runs on its own thread; the answer comes back as a task. */
typedef struct background {
    nrd_http_task task;
    nrd_http_api *api;
    nrd_http_request *req; /* shares */
    char *model;
    nrd_json_doc *doc; /* owns; may be NULL */
    bool load, dependents;
    nrd_error *result;
} background;

static atomic_int n_background;

static int base64_digit(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* Decodes in the standard alphabet; line breaks are skipped, '=' ends. false: another character. */
static bool base64_decode(const char *in, size_t n, char *out, size_t *out_n)
{
    uint32_t acc = 0;
    unsigned bits = 0;
    *out_n = 0;
    for (size_t i = 0; i < n && in[i] != '='; i++) {
        if (in[i] == '\n' || in[i] == '\r') {
            continue;
        }
        int d = base64_digit(in[i]);
        if (d < 0) {
            return false;
        }
        acc = acc << 6 | (uint32_t)d;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            out[(*out_n)++] = (char)(acc >> bits & 0xff);
        }
    }
    return true;
}

static nrd_error *load_parameter(const nrd_json *v, nrd_arena *arena, TRITONSERVER_Parameter **out)
{
    if (!nrd_json_is(v, NRD_JSON_STRING)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-string as string");
    }
    if (strcmp(v->key, "config") == 0) {
        *out = TRITONSERVER_ParameterNew(v->key, TRITONSERVER_PARAMETER_STRING, v->str);
        return NULL;
    }
    if (strncmp(v->key, "file:", 5) == 0) {
        size_t n;
        char *bytes = nrd_arena_alloc(arena, v->n + 1);
        if (!bytes) {
            return nrd_error_no_memory();
        }
        if (!base64_decode(v->str, v->n, bytes, &n)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "load parameter '%s' is not base64", v->key);
        }
        *out = TRITONSERVER_ParameterBytesNew(v->key, bytes, n);
        return NULL;
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG,
                      "unknown load parameter '%s', expected 'config' or 'file:<path>'", v->key);
}

static nrd_error *load(background *b)
{
    const nrd_json *params = nrd_json_get(nrd_json_root(b->doc), "parameters");
    size_t n = nrd_json_is(params, NRD_JSON_OBJECT) ? params->n : 0, made = 0;
    TRITONSERVER_Parameter **list = NULL;
    nrd_error *err = NULL;
    nrd_arena arena;

    nrd_arena_init(&arena);
    if (params && !nrd_json_is(params, NRD_JSON_OBJECT)) {
        err = nrd_errorf(NRD_ERR_INTERNAL, "attempt to get members for non-object");
        goto out;
    }
    NRD_NEW_GOTO(list, n, err, out);
    for (; made < n; made++) {
        NRD_TRY_GOTO(load_parameter(&params->child[made], &arena, &list[made]), err, out);
        if (!list[made]) {
            err = nrd_errorf(NRD_ERR_INTERNAL, "unexpected error on creating Triton parameter");
            goto out;
        }
    }
    err = nrd_http_from_triton(TRITONSERVER_ServerLoadModelWithParameters(
        b->api->server, b->model, (const TRITONSERVER_Parameter **)list, n));

out:
    for (size_t i = 0; i < made; i++) {
        TRITONSERVER_ParameterDelete(list[i]);
    }
    free(list);
    nrd_arena_fini(&arena);
    return err;
}

static void run_background_done(nrd_http_task *task)
{
    background *b = (background *)(void *)task;
    finish(b->req, b->result);
    nrd_http_request_unref(b->req);
    nrd_json_doc_free(b->doc);
    free(b->model);
    free(b);
}

static void *background_main(void *arg)
{
    background *b = arg;
    b->result =
        b->load ? load(b)
                : nrd_http_from_triton(
                      b->dependents
                          ? TRITONSERVER_ServerUnloadModelAndDependents(b->api->server, b->model)
                          : TRITONSERVER_ServerUnloadModel(b->api->server, b->model));
    b->task.run = run_background_done;
    atomic_fetch_sub(&n_background, 1);
    nrd_http_post(b->req->loop, &b->task);
    return NULL;
}

static void start_background(background *b)
{
    pthread_t thread;
    pthread_attr_t attr;
    bool ok = false;
    if (atomic_fetch_add(&n_background, 1) < MAX_BACKGROUND) {
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        ok = pthread_create(&thread, &attr, background_main, b) == 0;
        pthread_attr_destroy(&attr);
    }
    if (!ok) {
        atomic_fetch_sub(&n_background, 1);
        b->result = nrd_errorf(NRD_ERR_UNAVAILABLE, "too many model loads at the same time");
        run_background_done(&b->task);
    }
}

static void control(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route,
                    bool is_load)
{
    nrd_error *err = NULL;
    background *b = NULL;

    if (route->region) { /* the repository's name */
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "'repository_name' specification is not supported");
        goto fail;
    }
    NRD_NEW_GOTO(b, 1, err, fail);
    b->api = api;
    b->load = is_load;
    NRD_TRY_GOTO(optional_json(req, &b->doc), err, fail);
    if (!is_load) {
        NRD_TRY_GOTO(member_bool(nrd_json_get(nrd_json_root(b->doc), "parameters"),
                                 "unload_dependents", &b->dependents),
                     err, fail);
    }
    b->model = nrd_xstrdup(route->model);
    b->req = req;
    nrd_http_request_ref(req);
    start_background(b);
    return;

fail:
    if (b) {
        nrd_json_doc_free(b->doc);
        free(b);
    }
    nrd_http_fail(req, err);
}

static void on_load(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    control(api, req, route, true);
}

static void on_unload(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    control(api, req, route, false);
}

/* ---- log settings ---- */

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
    return nrd_http_from_triton(set(NULL, v->boolean)); /* NULL options: the running core */
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
        NRD_TRY(nrd_http_from_triton(TRITONSERVER_ServerOptionsSetLogVerbose(NULL, (int)v->i)));
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
        NRD_TRY(nrd_http_from_triton(TRITONSERVER_ServerOptionsSetLogFormat(
            NULL, iso ? TRITONSERVER_LOG_ISO8601 : TRITONSERVER_LOG_DEFAULT)));
    }
    return NULL;
}

static void on_logging(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_str out = {0};
    (void)route;
    if (req->head.method == NRD_HTTP_POST) {
        nrd_json_doc *doc = NULL;
        nrd_error *err = nrd_http_parse_json(&doc, req->body, req->body_n);
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
    nrd_http_reply(req, 200, JSON_TYPE, NULL, out.data, out.len);
    nrd_str_fini(&out);
}

/* ---- trace settings ---- */

static void on_trace(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;
    nrd_str out = {0};
    bool ready = false;

    if (route->model) {
        err = nrd_http_from_triton(
            TRITONSERVER_ServerModelIsReady(api->server, route->model, -1, &ready));
        if (err || !ready) {
            nrd_error_free(err);
            nrd_http_fail(req, nrd_errorf(NRD_ERR_INVALID_ARG, "Request for unknown model : %s",
                                          route->model));
            return;
        }
    }
    if (req->head.method == NRD_HTTP_POST) {
        err = nrd_http_parse_json(&doc, req->body, req->body_n);
        if (!err) {
            err = nrd_tracer_update(api->tracer, route->model, nrd_json_root(doc));
        }
        nrd_json_doc_free(doc);
        if (err) {
            nrd_http_fail(req, err);
            return;
        }
    }
    nrd_tracer_put_settings(api->tracer, route->model, &out);
    nrd_http_reply(req, 200, JSON_TYPE, NULL, out.data, out.len);
    nrd_str_fini(&out);
}

/* ---- shared memory ---- */

static void on_shm_status(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_str out = {0};
    nrd_error *err = nrd_shm_status(api->shm, route->region, &out);
    if (err) {
        nrd_http_fail(req, err);
    } else {
        nrd_http_reply(req, 200, JSON_TYPE, NULL, out.data, out.len);
    }
    nrd_str_fini(&out);
}

static nrd_error *register_shm(nrd_http_api *api, nrd_http_request *req,
                               const nrd_http_route *route)
{
    nrd_json_doc *doc = NULL;
    if (!route->region) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "'region name' is necessary to register system shared memory region");
    }
    NRD_TRY(nrd_http_parse_json(&doc, req->body, req->body_n));
    const nrd_json *root = nrd_json_root(doc);
    const nrd_json *size = nrd_json_get(root, "byte_size"), *offset = nrd_json_get(root, "offset");
    const char *key = nrd_json_get_str(root, "key", NULL);
    nrd_error *err;
    if (!key) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "Shared memory register request has no 'key' field");
    } else if (!size) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "Shared memory register request has no 'byte_size' field");
    } else if (!nrd_json_is(size, NRD_JSON_INT) || size->i < 0 ||
               (offset && (!nrd_json_is(offset, NRD_JSON_INT) || offset->i < 0))) {
        err = nrd_errorf(NRD_ERR_INTERNAL,
                         "attempt to access JSON non-unsigned-integer as unsigned-integer");
    } else {
        err = nrd_shm_register(api->shm, route->region, key, offset ? (uint64_t)offset->i : 0,
                               (uint64_t)size->i);
    }
    nrd_json_doc_free(doc);
    return err;
}

static void on_shm_register(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    finish(req, register_shm(api, req, route));
}

static void on_shm_unregister(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    finish(req, nrd_shm_unregister(api->shm, route->region));
}

static void on_cuda_status(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    (void)api;
    if (route->region) {
        nrd_http_fail(req,
                      nrd_errorf(NRD_ERR_NOT_FOUND,
                                 "Unable to find cuda shared memory region: '%s'", route->region));
        return;
    }
    nrd_http_reply(req, 200, JSON_TYPE, NULL, "[]", 2);
}

/* Requests are checked as where there is a GPU; none is registered. */
static nrd_error *register_cuda(const nrd_http_request *req, const nrd_http_route *route)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;
    size_t n;

    if (!route->region) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "'region name' is necessary to register cuda shared memory region");
    }
    NRD_TRY(nrd_http_parse_json(&doc, req->body, req->body_n));
    const nrd_json *handle = nrd_json_get(nrd_json_root(doc), "raw_handle");
    const nrd_json *b64 = nrd_json_get(handle, "b64");
    char *bytes = nrd_xmalloc((nrd_json_is(b64, NRD_JSON_STRING) ? b64->n : 0) + 1);
    if (!handle) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "Shared memory register request has no 'raw_handle' field");
    } else if (!nrd_json_is(b64, NRD_JSON_STRING) || !base64_decode(b64->str, b64->n, bytes, &n) ||
               n != CUDA_HANDLE_BYTES) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t");
    } else {
        err = nrd_errorf(NRD_ERR_INVALID_ARG,
                         "failed to register CUDA shared memory region: '%s', GPUs not supported",
                         route->region);
    }
    free(bytes);
    nrd_json_doc_free(doc);
    return err;
}

static void on_cuda_register(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route)
{
    (void)api;
    finish(req, register_cuda(req, route));
}

static void on_cuda_unregister(nrd_http_api *api, nrd_http_request *req,
                               const nrd_http_route *route)
{
    (void)api;
    (void)route;
    finish(req, NULL); /* there is none, as in Triton */
}

/* ---- routes ---- */

#define GET_ (1u << NRD_HTTP_GET)
#define POST_ (1u << NRD_HTTP_POST)

typedef struct route_row {
    const char *pattern; /* {m} model, {v} version, {r} region or repository */
    unsigned methods;
    const char *api; /* for --http-restricted-api */
    void (*handle)(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route);
} route_row;

static const route_row routes[] = {
    {"v2/models/{m}/infer", POST_, "inference", on_infer},
    {"v2/models/{m}/versions/{v}/infer", POST_, "inference", on_infer},
    {"v2/models/{m}/generate", POST_, "inference", on_generate},
    {"v2/models/{m}/versions/{v}/generate", POST_, "inference", on_generate},
    {"v2/models/{m}/generate_stream", POST_, "inference", on_generate_stream},
    {"v2/models/{m}/versions/{v}/generate_stream", POST_, "inference", on_generate_stream},
    {"v2/health/live", GET_, "health", on_health},
    {"v2/health/ready", GET_, "health", on_health},
    {"v2/models/{m}/ready", GET_, "health", on_model_ready},
    {"v2/models/{m}/versions/{v}/ready", GET_, "health", on_model_ready},
    {"v2", GET_, "metadata", on_server},
    {"v2/models/stats", GET_, "statistics", on_stats}, /* before {m}: "stats" is no model here */
    {"v2/models/{m}", GET_, "metadata", on_model},
    {"v2/models/{m}/versions/{v}", GET_, "metadata", on_model},
    {"v2/models/{m}/config", GET_, "model-config", on_config},
    {"v2/models/{m}/versions/{v}/config", GET_, "model-config", on_config},
    {"v2/models/{m}/stats", GET_, "statistics", on_stats},
    {"v2/models/{m}/versions/{v}/stats", GET_, "statistics", on_stats},
    {"v2/models/{m}/trace/setting", GET_ | POST_, "trace", on_trace},
    {"v2/trace/setting", GET_ | POST_, "trace", on_trace},
    {"v2/logging", GET_ | POST_, "logging", on_logging},
    {"v2/repository/index", POST_, "model-repository", on_index},
    {"v2/repository/{r}/index", POST_, "model-repository", on_index},
    {"v2/repository/models/{m}/load", POST_, "model-repository", on_load},
    {"v2/repository/models/{m}/unload", POST_, "model-repository", on_unload},
    {"v2/repository/{r}/models/{m}/load", POST_, "model-repository", on_load},
    {"v2/repository/{r}/models/{m}/unload", POST_, "model-repository", on_unload},
    {"v2/systemsharedmemory/status", GET_, "shared-memory", on_shm_status},
    {"v2/systemsharedmemory/unregister", POST_, "shared-memory", on_shm_unregister},
    {"v2/systemsharedmemory/register", POST_, "shared-memory", on_shm_register},
    {"v2/systemsharedmemory/region/{r}/status", GET_, "shared-memory", on_shm_status},
    {"v2/systemsharedmemory/region/{r}/register", POST_, "shared-memory", on_shm_register},
    {"v2/systemsharedmemory/region/{r}/unregister", POST_, "shared-memory", on_shm_unregister},
    {"v2/cudasharedmemory/status", GET_, "shared-memory", on_cuda_status},
    {"v2/cudasharedmemory/unregister", POST_, "shared-memory", on_cuda_unregister},
    {"v2/cudasharedmemory/register", POST_, "shared-memory", on_cuda_register},
    {"v2/cudasharedmemory/region/{r}/status", GET_, "shared-memory", on_cuda_status},
    {"v2/cudasharedmemory/region/{r}/register", POST_, "shared-memory", on_cuda_register},
    {"v2/cudasharedmemory/region/{r}/unregister", POST_, "shared-memory", on_cuda_unregister},
};

/* Next part of a path, without slashes. false at the end. */
static bool next_part(nrd_view *rest, nrd_view *part)
{
    if (!rest->p) {
        return false;
    }
    const char *slash = memchr(rest->p, '/', rest->n);
    part->p = rest->p;
    part->n = slash ? (size_t)(slash - rest->p) : rest->n;
    rest->p = slash ? slash + 1 : NULL;
    rest->n = slash ? rest->n - part->n - 1 : 0;
    return true;
}

static bool matches(const char *pattern, nrd_view path, nrd_http_route *out)
{
    nrd_view want = {pattern, strlen(pattern)}, p, w;
    size_t used = 0;
    out->model = out->version = out->region = NULL;
    while (next_part(&want, &w)) {
        if (!next_part(&path, &p) || p.n == 0) {
            return false;
        }
        if (w.p[0] != '{') {
            if (w.n != p.n || memcmp(w.p, p.p, w.n) != 0) {
                return false;
            }
            continue;
        }
        char *text = out->text + used;
        if (!nrd_http_unescape(p, text, sizeof out->text - used)) {
            return false;
        }
        used += strlen(text) + 1;
        *(w.p[1] == 'm' ? &out->model : w.p[1] == 'v' ? &out->version : &out->region) = text;
        for (const char *d = text; w.p[1] == 'v' && *d; d++) {
            if (*d < '0' || *d > '9') {
                return false; /* Triton's route takes digits only */
            }
        }
    }
    return path.p == NULL;
}

/* NULL: allowed, else the header that the API asks for. */
static const char *restriction(const nrd_http_api *api, const char *name,
                               const nrd_http_request *req)
{
    const nrd_option_list *list = &api->options->http_restricted;
    for (size_t i = 0; i < list->n; i++) {
        const nrd_option_entry *e = &list->items[i];
        if (strcmp(e->name, name) == 0) {
            const nrd_view *v = nrd_http_find_field(&req->head, e->setting);
            return v && nrd_view_is(*v, e->value) ? NULL : e->setting;
        }
    }
    return NULL;
}

static void handle(nrd_http_request *req, void *user)
{
    nrd_http_api *api = user;
    nrd_http_route route;
    nrd_view path = {req->head.path.p + 1, req->head.path.n - 1}; /* begins with a slash */

    NRD_LOG_VERBOSE(1, "HTTP request: %.*s %.*s", (int)req->head.method_name.n,
                    req->head.method_name.p, (int)req->head.path.n, req->head.path.p);
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        const route_row *row = &routes[i];
        if (!matches(row->pattern, path, &route)) {
            continue;
        }
        const char *header = restriction(api, row->api, req);
        if (header) {
            nrd_str text = {0};
            nrd_str_printf(&text, "This API is restricted, expecting header '%s'", header);
            nrd_http_reply_error(req, 403, nrd_str_cstr(&text));
            nrd_str_fini(&text);
        } else if (!(row->methods & 1u << req->head.method)) {
            const bool plain = row->handle == on_infer || strcmp(row->api, "health") == 0;
            (plain ? reply_plain_error : nrd_http_reply_error)(req, 405, "Method Not Allowed");
        } else {
            row->handle(api, req, &route);
        }
        return;
    }
    reply_plain_error(req, 404, "Not Found");
}

/* ---- start and stop ---- */

nrd_error *nrd_http_api_start(nrd_http_api **out, TRITONSERVER_Server *server, const nrd_options *o,
                              nrd_tracer *tracer)
{
    nrd_error *err = NULL;
    nrd_http_api *api = NULL;

    *out = NULL;
    NRD_NEW_GOTO(api, 1, err, fail);
    api->server = server;
    api->options = o;
    api->tracer = tracer;
    if (o->http_forward_pattern[0]) {
        int rc =
            regcomp(&api->forward, o->http_forward_pattern, REG_EXTENDED | REG_ICASE | REG_NOSUB);
        if (rc != 0) {
            char text[128];
            regerror(rc, &api->forward, text, sizeof text);
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "--http-header-forward-pattern '%s': %s",
                             o->http_forward_pattern, text);
            goto fail;
        }
        api->has_forward = true;
    }
    NRD_TRY_GOTO(nrd_shm_new(&api->shm), err, fail);
    NRD_TRY_GOTO(nrd_http_allocator_new(&api->allocator), err, fail);
    nrd_http_config cfg = {
        .name = "HTTP",
        .address = o->http_address,
        .port = (int)o->http_port,
        .reuse_port = o->reuse_http_port,
        .n_threads = (int)o->http_threads,
        .max_body_bytes = (size_t)o->http_max_input_bytes,
        .handle = handle,
        .user = api,
    };
    NRD_TRY_GOTO(nrd_http_server_start(&api->http, &cfg), err, fail);
    *out = api;
    return NULL;

fail:
    nrd_http_api_free(api);
    return err;
}

int nrd_http_api_port(const nrd_http_api *api)
{
    return nrd_http_server_port(api->http);
}

void nrd_http_api_drain(nrd_http_api *api)
{
    atomic_store(&api->draining, true);
    nrd_http_server_drain(api->http);
}

size_t nrd_http_api_connections(const nrd_http_api *api)
{
    return nrd_http_server_connections(api->http);
}

void nrd_http_api_free(nrd_http_api *api)
{
    if (!api) {
        return;
    }
    nrd_http_server_free(api->http);
    if (api->allocator) {
        nrd_error_free(nrd_http_from_triton(TRITONSERVER_ResponseAllocatorDelete(api->allocator)));
    }
    nrd_shm_free(api->shm);
    if (api->has_forward) {
        regfree(&api->forward);
    }
    free(api);
}
