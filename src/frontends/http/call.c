/* SPDX-License-Identifier: Apache-2.0
 * One inference by HTTP. Life: new -> fill (read the body, on a worker when it is long) -> submit
 * -> each response is posted to the loop thread -> freed after release and last response. A closed
 * connection cancels it. Called by the handlers of infer and generate. */
#include "frontends/http/call.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/pool.h"
#include "frontends/http/work.h"

#include <string.h>

/* ---- life ---- */

/* Any thread: the core may release the request last. */
static void destroy(nrd_infer *i)
{
    nrd_http_call *call = (nrd_http_call *)(void *)i;
    nrd_str_fini(&call->text);
    nrd_str_fini(&call->rest);
    nrd_error_free(call->err);
    nrd_model_info_unref(call->info);
    free(call->inflated);
    nrd_http_request_unref(call->req);
    nrd_pool_put(call, sizeof *call);
}

static void on_response(nrd_infer *i, TRITONSERVER_InferenceResponse *response, bool final);

nrd_error *nrd_http_call_new(nrd_http_call **out, nrd_http_api *api, nrd_http_request *req,
                             const char *model, int64_t version)
{
    nrd_http_call *call = nrd_pool_zget(sizeof *call);
    *out = NULL;
    if (!call) {
        return nrd_error_no_memory();
    }
    nrd_infer_init(&call->infer, api->front, destroy);
    call->infer.on_response = on_response;
    call->api = api;
    call->req = req;
    nrd_http_request_ref(req);
    atomic_init(&call->n_messages, 0);
    atomic_init(&call->lost, false);
    nrd_claim_join(&call->infer.claim, &req->claim);
    nrd_error *err = nrd_infer_open(&call->infer, model, version);
    if (err) {
        nrd_infer_unref(&call->infer);
        return err;
    }
    const nrd_view *parent = nrd_http_find_field(&req->head, "traceparent");
    nrd_infer_trace(&call->infer, model, parent ? parent->p : NULL, parent ? parent->n : 0);
    *out = call;
    return NULL;
}

void nrd_http_call_abandon(nrd_http_call *call)
{
    nrd_trace_not_taken(call->infer.trace);
    nrd_infer_unref(&call->infer);
}

bool nrd_http_call_admit(nrd_http_call *call)
{
    const nrd_front *front = call->api->front;
    nrd_str text = {0}, extra = {0};

    if (!front->quotas) {
        return true;
    }
    const nrd_refusal r = nrd_infer_admit(&call->infer, nrd_http_key(front->keys, call->req));
    if (!r.why) {
        return true;
    }
    nrd_str_printf(&text, "{\"error\":\"%s\"}", r.why);
    nrd_str_printf(&extra, "Retry-After: %d\r\n", r.after_secs);
    nrd_http_reply_str(call->req, 429, "application/json", extra.no_memory ? NULL : extra.data, &text);
    nrd_str_fini(&extra);
    nrd_str_fini(&text);
    nrd_http_call_abandon(call);
    return false;
}

/* ---- the client is gone ---- */

static void cancel(nrd_http_request *req, void *arg)
{
    nrd_http_call *call = arg;
    (void)req;
    nrd_infer_cancel(&call->infer);
}

/* ---- responses ---- */

static void run_message(nrd_http_task *task)
{
    nrd_http_message *m = (nrd_http_message *)(void *)task;
    nrd_http_call *call = m->call;
    TRITONSERVER_InferenceResponse *response = m->response;
    const bool final = m->final;

    if (m != &call->first && m != &call->last) {
        free(m);
    }
    if (final) {
        call->req->on_gone = NULL; /* nothing is left to cancel */
        if (call->infer.trace) {
            nrd_trace_stamp(call->infer.trace, "HTTP_SEND_START", nrd_now_ns());
        }
    }
    if (final && atomic_load(&call->lost)) { /* whatever comes last: the answer has a hole */
        nrd_infer_response_delete(response);
        response = NULL;
    }
    call->on_response(call, response, final);
    if (final) {
        if (call->infer.trace) {
            nrd_trace_stamp(call->infer.trace, "HTTP_SEND_END", nrd_now_ns());
        }
        nrd_infer_unref(&call->infer);
    }
}

/* Any thread. Responses of one request come one after the other; only the places differ. */
static void on_response(nrd_infer *i, TRITONSERVER_InferenceResponse *response, bool final)
{
    nrd_http_call *call = (nrd_http_call *)(void *)i;
    nrd_http_message *m = final                                         ? &call->last
                          : atomic_fetch_add(&call->n_messages, 1) == 0 ? &call->first
                                                                        : malloc(sizeof *m);
    if (!m) { /* what follows is of no use any more */
        atomic_store(&call->lost, true);
        nrd_infer_response_delete(response);
        nrd_infer_cancel(i);
        return;
    }
    m->task.run = run_message;
    m->call = call;
    m->response = response;
    m->final = final;
    nrd_http_post(call->req->loop, &m->task);
}

nrd_error *nrd_http_call_submit(nrd_http_call *call)
{
    nrd_trace_stamp(call->infer.trace, "HTTP_RECV_START", call->req->begin_ns);
    nrd_trace_stamp(call->infer.trace, "HTTP_RECV_END", call->req->ready_ns);
    NRD_TRY(nrd_infer_submit(&call->infer));
    /* Still on the loop thread: run_message has not run yet. */
    call->req->gone_arg = call;
    call->req->on_gone = cancel;
    if (nrd_http_is_gone(call->req)) {
        cancel(call->req, call);
    }
    nrd_infer_unref(&call->infer);
    return NULL;
}

nrd_error *nrd_http_call_error(nrd_http_call *call)
{
    return atomic_load(&call->lost) ? nrd_error_no_memory() : NULL;
}

/* ---- from the body to the core ---- */

static void read_body(void *arg)
{
    nrd_http_call *call = arg;
    call->err = call->read(call);
}

static void body_read(void *arg, bool ran)
{
    nrd_http_call *call = arg;
    nrd_http_request *req = call->req;
    nrd_error *err = call->err;

    call->err = NULL;
    if (!ran && !err) {
        err = nrd_errorf(NRD_ERR_UNAVAILABLE, "the request was given up");
    }
    if (!err) {
        err = nrd_http_call_submit(call);
    }
    if (err) {
        const bool parsing = call->parsing;
        nrd_http_request_ref(req); /* until here the call holds it */
        nrd_http_call_abandon(call);
        (parsing ? nrd_http_fail : nrd_http_fail_plain)(req, err);
        nrd_http_request_unref(req);
    }
}

void nrd_http_call_read(nrd_http_call *call, nrd_error *(*read)(nrd_http_call *call), bool is_long)
{
    call->read = read;
    if (is_long) { /* from here on the call is the worker's */
        nrd_error *err =
            nrd_http_work(call->api->front->workers, call->req, read_body, body_read, call);
        if (!err) {
            return;
        }
        call->err = err;
    } else {
        read_body(call);
    }
    body_read(call, true);
}

/* ---- parameters ---- */

nrd_error *nrd_http_put_parameter(nrd_str *out, const char *name, TRITONSERVER_ParameterType type,
                                  const void *value)
{
    nrd_json_put_cstr(out, name);
    nrd_str_putc(out, ':');
    switch (type) {
    case TRITONSERVER_PARAMETER_BOOL:
        nrd_str_puts(out, *(const bool *)value ? "true" : "false");
        return NULL;
    case TRITONSERVER_PARAMETER_INT:
        nrd_str_printf(out, "%lld", (long long)*(const int64_t *)value);
        return NULL;
    case TRITONSERVER_PARAMETER_STRING:
        nrd_json_put_cstr(out, value);
        return NULL;
    case TRITONSERVER_PARAMETER_DOUBLE:
        nrd_json_put_double(out, *(const double *)value);
        return NULL;
    case TRITONSERVER_PARAMETER_BYTES:
        break;
    }
    return nrd_errorf(
        NRD_ERR_UNSUPPORTED,
        "Response parameter '%s' has type 'TRITONSERVER_PARAMETER_BYTES' which is not "
        "currently supported",
        name);
}

nrd_error *nrd_http_set_parameter(nrd_http_call *call, const char *name, const nrd_json *value)
{
    nrd_infer_value v = {0};
    switch (value->type) {
    case NRD_JSON_STRING:
        if (strlen(value->str) != value->n) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "parameter '%s' contains a NUL character", name);
        }
        v.type = NRD_VALUE_TEXT;
        v.v.s = value->str;
        break;
    case NRD_JSON_INT:
        v.type = NRD_VALUE_INT;
        v.v.i = value->i;
        break;
    case NRD_JSON_BOOL:
        v.type = NRD_VALUE_BOOL;
        v.v.b = value->boolean;
        break;
    case NRD_JSON_UINT:
    case NRD_JSON_REAL:
        v.type = NRD_VALUE_REAL;
        v.v.d = nrd_json_num(value, 0);
        break;
    default:
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "parameter '%s' has invalid type. It should be either 'int', 'bool', or "
                          "'string'.",
                          name);
    }
    return nrd_infer_set(&call->infer, NRD_INFER_CUSTOM, name, v);
}

nrd_error *nrd_http_forward_headers(nrd_http_call *call)
{
    NRD_TRY(nrd_infer_whose(&call->infer, nrd_http_key(call->api->front->keys, call->req)));
    const nrd_view *deadline = nrd_http_find_field(&call->req->head, "x-request-deadline");
    if (deadline) {
        NRD_TRY(nrd_infer_deadline(&call->infer, deadline->p, deadline->n));
    }
    const nrd_http_head *h = &call->req->head;
    for (size_t i = 0; call->api->forward && i < h->n_fields; i++) {
        const nrd_http_field *f = &h->fields[i];
        /* Triton hands on the blanks before the end of the line, which is in the same buffer */
        size_t n = f->value.n;
        while (f->value.p[n] == ' ' || f->value.p[n] == '\t') {
            n++;
        }
        NRD_TRY(nrd_infer_forward(&call->infer, call->api->forward, f->name.p, f->name.n,
                                  f->value.p, n));
    }
    return NULL;
}
