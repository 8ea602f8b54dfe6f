/* SPDX-License-Identifier: Apache-2.0
 * The requests that a stub knows by number: their table, and what their senders do later. */
#include "backends/python/backend.h"

#include <stdlib.h>

/* ---- the table ---- */

static nrd_py_request **bucket(nrd_py_conn *c, uint64_t id)
{
    return &c->requests[id % PY_TABLE];
}

nrd_py_request *nrd_py_request_add(nrd_py_conn *c, TRITONBACKEND_Request *request)
{
    nrd_py_request *r = calloc(1, sizeof *r);
    if (!r) {
        return NULL;
    }
    TRITONSERVER_Error *err = TRITONBACKEND_RequestTrace(request, &r->trace);
    if (err) { /* not traced */
        TRITONSERVER_ErrorDelete(err);
        r->trace = NULL;
    }
    r->refs = 2; /* the table and the caller */
    r->request = request;
    pthread_mutex_lock(&c->mu);
    r->id = c->next_id++;
    r->next = *bucket(c, r->id);
    *bucket(c, r->id) = r;
    pthread_mutex_unlock(&c->mu);
    return r;
}

static nrd_py_request *get(nrd_py_conn *c, uint64_t id)
{
    pthread_mutex_lock(&c->mu);
    nrd_py_request *r = *bucket(c, id);
    while (r && r->id != id) {
        r = r->next;
    }
    if (r) {
        r->refs++;
    }
    pthread_mutex_unlock(&c->mu);
    return r;
}

void nrd_py_request_put(nrd_py_conn *c, nrd_py_request *r)
{
    pthread_mutex_lock(&c->mu);
    bool last = --r->refs == 0;
    pthread_mutex_unlock(&c->mu);
    if (last) {
        if (r->factory) {
            nrd_tb_log_error(TRITONBACKEND_ResponseFactoryDelete(r->factory), "response factory");
        }
        free(r);
    }
}

void nrd_py_request_remove(nrd_py_conn *c, nrd_py_request *r)
{
    bool found = false;
    pthread_mutex_lock(&c->mu);
    for (nrd_py_request **p = bucket(c, r->id); *p; p = &(*p)->next) {
        if (*p == r) {
            *p = r->next;
            found = true;
            break;
        }
    }
    pthread_mutex_unlock(&c->mu);
    if (found) {
        nrd_py_request_put(c, r);
    }
}

TRITONSERVER_Error *nrd_py_request_factory(nrd_py_conn *c, nrd_py_request *r)
{
    TRITONSERVER_Error *err = NULL;
    pthread_mutex_lock(&c->mu);
    if (!r->factory) {
        err = r->request ? TRITONBACKEND_ResponseFactoryNew(&r->factory, r->request)
                         : nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                         "Unable to send response. The request is no longer known.");
    }
    pthread_mutex_unlock(&c->mu);
    return err;
}

TRITONSERVER_InferenceTrace *nrd_py_request_trace(nrd_py_conn *c, uint64_t id)
{
    TRITONSERVER_InferenceTrace *trace = NULL;
    pthread_mutex_lock(&c->mu);
    for (nrd_py_request *r = *bucket(c, id); r; r = r->next) {
        if (r->id == id && r->request) {
            trace = r->trace;
        }
    }
    pthread_mutex_unlock(&c->mu);
    return trace;
}

void nrd_py_send_response(TRITONBACKEND_Response *response, uint32_t flags, TRITONSERVER_Error *err)
{
    nrd_tb_log_error(TRITONBACKEND_ResponseSend(response, flags, err), "failed sending response");
    if (err) {
        TRITONSERVER_ErrorDelete(err);
    }
}

/* ---- calls about a request ---- */

static TRITONSERVER_Error *closed_error(void)
{
    return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                         "Unable to send response. Response sender has been closed.");
}

void nrd_py_request_end_bare(nrd_py_conn *c, nrd_py_request *r)
{
    TRITONSERVER_Error *err = nrd_py_request_factory(c, r);
    if (!err) {
        err = TRITONBACKEND_ResponseFactorySendFlags(r->factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL);
    }
    nrd_tb_log_error(err, "ending a request of a Python model");
}

static TRITONSERVER_Error *send_later(nrd_py_conn *c, nrd_py_request *r, const nrd_py_entry *e)
{
    nrd_py_reader reader;
    uint64_t data_at;
    TRITONBACKEND_Response *response = NULL;
    uint32_t flags = (uint32_t)e->b;
    bool closed, final = flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL;

    pthread_mutex_lock(&c->mu);
    closed = r->closed;
    r->closed = r->closed || final;
    r->answered = r->answered || e->offset;
    pthread_mutex_unlock(&c->mu);
    if (closed) {
        return closed_error();
    }
    NRD_TB_TRY(nrd_py_request_factory(c, r));
    if (!e->offset) {
        return TRITONBACKEND_ResponseFactorySendFlags(r->factory, flags);
    }
    TRITONSERVER_Error *err = TRITONBACKEND_ResponseNewFromFactory(&response, r->factory);
    if (err && final) {
        nrd_py_request_end_bare(c, r);
    }
    NRD_TB_TRY(err);
    nrd_py_reader_begin(&reader, &data_at, &c->map, e->offset, e->bytes);
    uint8_t kind = nrd_py_get_u8(&reader);
    nrd_py_send_response(response, flags, nrd_py_read_response(c, &reader, data_at, kind, response));
    return NULL;
}

void nrd_py_request_send(nrd_py_conn *c, const nrd_py_entry *e)
{
    nrd_py_request *r = get(c, e->a);
    TRITONSERVER_Error *err = r ? send_later(c, r, e) : closed_error();

    if (e->offset) {
        nrd_py_return(&c->to_stub, e->offset);
    }
    if (r) {
        pthread_mutex_lock(&c->mu);
        bool over = r->closed && !r->request; /* an execution removes its own requests */
        pthread_mutex_unlock(&c->mu);
        if (over) {
            nrd_py_request_remove(c, r);
        }
        nrd_py_request_put(c, r);
    }
    if (err) {
        nrd_py_answer_error(c, e->slot, err);
    } else {
        nrd_py_answer(c, e->slot, 0, 0, 0);
    }
}

void nrd_py_request_close(nrd_py_conn *c, nrd_py_request *r, TRITONSERVER_Error *err)
{
    pthread_mutex_lock(&c->mu);
    bool closed = r->closed;
    r->closed = true;
    pthread_mutex_unlock(&c->mu);
    TRITONSERVER_Error *failure = closed ? NULL : nrd_py_request_factory(c, r);
    if (!closed && !failure && err) {
        nrd_tb_send_last(r->factory, err);
        err = NULL;
    } else if (!closed && !failure) {
        failure = TRITONBACKEND_ResponseFactorySendFlags(r->factory,
                                                         TRITONSERVER_RESPONSE_COMPLETE_FINAL);
    }
    nrd_tb_log_error(failure, "closing a request of a Python model");
    if (err) {
        TRITONSERVER_ErrorDelete(err);
    }
}

void nrd_py_request_drop(nrd_py_conn *c, uint64_t id)
{
    nrd_py_request *r = get(c, id);
    if (!r) {
        return;
    }
    pthread_mutex_lock(&c->mu);
    bool answered = r->answered;
    pthread_mutex_unlock(&c->mu);
    nrd_py_request_close(c, r,
               answered ? NULL
                        : nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                        "Model '%s' has dropped the response sender of a request "
                                        "without sending a response.",
                                        c->name));
    pthread_mutex_lock(&c->mu);
    bool over = !r->request;
    pthread_mutex_unlock(&c->mu);
    if (over) {
        nrd_py_request_remove(c, r);
    }
    nrd_py_request_put(c, r);
}

void nrd_py_request_cancelled(nrd_py_conn *c, const nrd_py_entry *e)
{
    nrd_py_request *r = get(c, e->a);
    bool cancelled = false;
    if (r) {
        TRITONSERVER_Error *err = NULL;
        pthread_mutex_lock(&c->mu); /* the request cannot be released meanwhile */
        if (r->request) {
            err = TRITONBACKEND_RequestIsCancelled(r->request, &cancelled);
        } else if (r->factory) {
            err = TRITONBACKEND_ResponseFactoryIsCancelled(r->factory, &cancelled);
        }
        pthread_mutex_unlock(&c->mu);
        nrd_tb_log_error(err, "asking whether a request is cancelled");
        nrd_py_request_put(c, r);
    }
    nrd_py_answer(c, e->slot, cancelled, 0, 0);
}

void nrd_py_requests_fail(nrd_py_conn *c)
{
    for (size_t i = 0; i < PY_TABLE; i++) {
        for (;;) {
            pthread_mutex_lock(&c->mu);
            nrd_py_request *r = c->requests[i];
            while (r && r->request) { /* still in an execution, which answers it */
                r = r->next;
            }
            if (r) {
                r->refs++;
            }
            pthread_mutex_unlock(&c->mu);
            if (!r) {
                break;
            }
            nrd_py_request_close(c, r, nrd_py_conn_unhealthy(c));
            nrd_py_request_remove(c, r);
            nrd_py_request_put(c, r);
        }
    }
}
