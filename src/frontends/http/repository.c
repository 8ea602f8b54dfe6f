/* SPDX-License-Identifier: Apache-2.0
 * The model repository: index, load, unload. */
#include "frontends/http/handlers.h"
#include "frontends/http/lease.h"

#include "base/log.h"
#include "base/mem.h"
#include "base/base64.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

enum { MAX_PLAIN_LOAD = 32 }; /* bytes: clients send {} or {"parameters": {}} with a load without parameters */

#define MAX_BACKGROUND 16 /* model loads and unloads at the same time */

void nrd_http_on_index(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    nrd_json_doc *doc = NULL;
    TRITONSERVER_Message *m = NULL;
    bool ready = false;
    (void)route;
    nrd_error *err = req->body_n ? nrd_http_order_json(req, &doc) : NULL;
    if (!err) {
        err = nrd_http_member_bool(nrd_json_root(doc), "ready", &ready);
    }
    nrd_json_doc_free(doc);
    if (err) {
        nrd_http_fail(req, err);
        return;
    }
    TRITONSERVER_Error *e =
        TRITONSERVER_ServerModelIndex(api->server, ready ? TRITONSERVER_INDEX_FLAG_READY : 0, &m);
    nrd_http_reply_message(req, e, m);
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

static nrd_error *load_parameter(nrd_claim *claim, const nrd_json *v, nrd_arena *arena, TRITONSERVER_Parameter **out)
{
    if (!nrd_json_is(v, NRD_JSON_STRING)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "attempt to access JSON non-string as string");
    }
    if (strlen(v->key) != v->key_len) { /* what is behind it would be lost without a word */
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the name of load parameter '%s' goes on behind a zero byte", v->key);
    }
    if (strcmp(v->key, "config") == 0) {
        *out = TRITONSERVER_ParameterNew(v->key, TRITONSERVER_PARAMETER_STRING, v->str);
        return NULL;
    }
    if (strncmp(v->key, "file:", 5) == 0) {
        size_t n;
        NRD_TRY(nrd_claim_bytes(claim, v->n, "its files"));
        char *bytes = nrd_arena_alloc(arena, v->n + 1);
        if (!bytes) {
            return nrd_error_no_memory();
        }
        if (!nrd_base64_decode(v->str, v->n, bytes, &n)) {
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
    NRD_TRY(nrd_http_optional_json(b->req, &b->doc)); /* it may hold whole models: not for the loop */
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
        NRD_TRY_GOTO(load_parameter(&b->req->claim, &params->child[made], &arena, &list[made]), err, out);
        if (!list[made]) {
            err = nrd_error_no_memory();
            goto out;
        }
    }
    err = nrd_from_triton(TRITONSERVER_ServerLoadModelWithParameters(
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
    nrd_http_finish(b->req, b->result);
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
                : nrd_from_triton(
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

static void leased(void *user, nrd_http_request *req, nrd_error *err)
{
    (void)user;
    nrd_http_finish(req, err);
}

/* A model that comes and goes by the requests for it: an order about it goes the same way. */
static void control_switched(nrd_switcher *s, nrd_switch_model *m, nrd_http_request *req, bool is_load)
{
    if (!is_load) {
        nrd_http_finish(req, nrd_switcher_drop(s, m));
    } else if (req->body_n > MAX_PLAIN_LOAD) {
        nrd_http_fail(req, nrd_errorf(NRD_ERR_UNSUPPORTED, "model '%s' is one of several, which are loaded as their files say: "
                                                           "without parameters", nrd_switch_name(m)));
    } else {
        nrd_http_lease(s, req, m, NRD_SWITCH_DEFAULT, leased, NULL);
    }
}

static void control(nrd_http_api *api, nrd_http_request *req, const nrd_http_route *route,
                    bool is_load)
{
    nrd_error *err = NULL;
    background *b = NULL;

    nrd_switcher *s = api->front->switcher;
    nrd_switch_model *m = s ? nrd_switcher_find(s, route->model) : NULL;
    if (m) {
        control_switched(s, m, req, is_load);
        return;
    }
    if (route->region) { /* the repository's name */
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "'repository_name' specification is not supported");
        goto fail;
    }
    NRD_NEW_GOTO(b, 1, err, fail);
    b->api = api;
    b->load = is_load;
    if (!is_load) {
        if (req->body_n) {
            NRD_TRY_GOTO(nrd_http_order_json(req, &b->doc), err, fail);
        }
        NRD_TRY_GOTO(nrd_http_member_bool(nrd_json_get(nrd_json_root(b->doc), "parameters"),
                                          "unload_dependents", &b->dependents),
                     err, fail);
    }
    b->model = strdup(route->model);
    if (!b->model) {
        err = nrd_error_no_memory();
        goto fail;
    }
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

void nrd_http_on_load(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    control(api, req, route, true);
}

void nrd_http_on_unload(void *user, nrd_http_request *req, const nrd_http_route *route)
{
    nrd_http_api *api = user;
    control(api, req, route, false);
}
