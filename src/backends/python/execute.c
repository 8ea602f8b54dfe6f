/* SPDX-License-Identifier: Apache-2.0
 * Executions: requests to the stub, responses back. */
#include "backends/python/backend.h"

#include "base/clock.h"

#include <stdlib.h>

enum { STATE_FLAGS = 0xff, STATE_TAKEN = 256 };

typedef struct batch {
    nrd_py_instance *in;
    nrd_py_conn *conn;
    TRITONBACKEND_Request **requests;
    uint32_t n;
    nrd_py_request **open; /* what the stub knows of them; NULL before that */
    uint32_t *release;  /* flags */
    bool *ok;
    uint64_t total, start, compute_start, compute_end;
    bool replied; /* the stub took part, whatever it said */
} batch;

static TRITONSERVER_Error *count_batch(batch *b)
{
    int64_t max = b->in->model->config.max_batch_size;
    for (uint32_t i = 0; i < b->n; i++) {
        TRITONBACKEND_Input *input = NULL;
        const int64_t *shape = NULL;
        uint32_t n_dims = 0, n_inputs = 0;
        if (max <= 0) {
            b->total++;
            continue;
        }
        NRD_TB_TRY(TRITONBACKEND_RequestInputCount(b->requests[i], &n_inputs));
        if (n_inputs == 0) {
            b->total++;
            continue;
        }
        NRD_TB_TRY(TRITONBACKEND_RequestInputByIndex(b->requests[i], 0, &input));
        NRD_TB_TRY(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &n_dims, NULL, NULL));
        b->total += n_dims > 0 && shape[0] > 0 ? (uint64_t)shape[0] : 1;
    }
    if (b->total > 1 && max > 0 && b->total > (uint64_t)max) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                             "batch size %llu for '%s', max allowed is %lld",
                             (unsigned long long)b->total, b->in->name, (long long)max);
    }
    return NULL;
}

static TRITONSERVER_Error *write_batch(batch *b, uint64_t *out_offset, uint64_t *out_bytes)
{
    nrd_py_conn *c = b->conn;
    nrd_py_message *m = &c->message;

    nrd_py_message_begin(m, c->heap, c->map.base);
    nrd_py_put_u32(&m->w, b->n);
    for (uint32_t i = 0; i < b->n; i++) {
        TRITONSERVER_Error *err = nrd_py_put_request(m, b->open[i]);
        if (err) {
            m->w.failed = true; /* gives back the blocks */
            nrd_py_message_finish(m, out_offset, out_bytes);
            return err;
        }
    }
    if (!nrd_py_message_finish(m, out_offset, out_bytes)) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                             "Failed to allocate shared memory for the requests of '%s'.",
                             b->in->name);
    }
    return NULL;
}

/* Answers request i from the reply, or finds out that an answer follows later. */
static void read_answer(batch *b, uint32_t i, nrd_py_reader *r, uint64_t data_at)
{
    nrd_py_conn *c = b->conn;
    nrd_py_request *q = b->open[i];
    TRITONBACKEND_Response *response = NULL;
    uint32_t state = nrd_py_get_u32(r);
    uint8_t kind = nrd_py_get_u8(r);
    bool reschedule = (state & STATE_FLAGS) == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE;

    if (r->bad) {
        return;
    }
    b->release[i] = reschedule ? TRITONSERVER_REQUEST_RELEASE_RESCHEDULE
                               : TRITONSERVER_REQUEST_RELEASE_ALL;
    b->ok[i] = true;
    pthread_mutex_lock(&c->mu);
    bool closed = q->closed;
    bool keep = kind == NRD_PY_RESPONSE_NONE && !closed && !reschedule && (state & STATE_TAKEN);
    if (!keep) {
        q->closed = true;
    }
    pthread_mutex_unlock(&c->mu);
    if (kind != NRD_PY_RESPONSE_NONE) {
        TRITONSERVER_Error *err =
            closed ? NULL : TRITONBACKEND_ResponseNew(&response, b->requests[i]);
        if (err) {
            nrd_tb_log_error(err, "Fail to create response");
            nrd_py_request_end_bare(c, q);
        }
        err = nrd_py_read_response(c, r, data_at, kind, response);
        if (response) { /* an answer that is a TritonError is an answer: a success in statistics */
            nrd_py_send_response(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, err);
        } else if (err) {
            TRITONSERVER_ErrorDelete(err);
        }
    } else if (keep) {
        nrd_tb_log_error(nrd_py_request_factory(c, q), "keeping a request open");
    } else if (!closed && !reschedule) {
        b->ok[i] = false;
        nrd_tb_send_error(b->requests[i],
                          nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                        "Model '%s' returned no response for a request and did not "
                                        "take its response sender.",
                                        b->in->name));
    }
}

static TRITONSERVER_Error *read_batch(batch *b, const nrd_py_reply *reply)
{
    nrd_py_conn *c = b->conn;
    nrd_py_reader r;
    uint64_t data_at;

    if (reply->failed) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "%.*s", (int)reply->bytes,
                             reply->bytes ? (const char *)c->map.base + reply->offset : "");
    }
    nrd_py_reader_begin(&r, &data_at, &c->map, reply->offset, reply->bytes);
    if (nrd_py_get_u32(&r) != b->n) {
        r.bad = true;
    }
    for (uint32_t i = 0; i < b->n && !r.bad; i++) {
        read_answer(b, i, &r, data_at);
    }
    return r.bad ? nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                 "A message of stub '%s' cannot be read.", c->name)
                 : NULL;
}

static void wait_drained(nrd_py_conn *c)
{
    pthread_mutex_lock(&c->mu);
    while (!c->drained) {
        pthread_cond_wait(&c->changed, &c->mu);
    }
    pthread_mutex_unlock(&c->mu);
}

static TRITONSERVER_Error *run_batch(batch *b)
{
    nrd_py_conn *c = b->conn;
    uint64_t offset = 0, bytes = 0;
    nrd_py_reply reply = {0};

    for (uint32_t i = 0; i < b->n; i++) {
        b->open[i] = nrd_py_request_add(c, b->requests[i]);
        if (!b->open[i]) {
            return nrd_tb_error(nrd_error_no_memory());
        }
    }
    NRD_TB_TRY(write_batch(b, &offset, &bytes));
    b->compute_start = nrd_now_ns();
    TRITONSERVER_Error *err = nrd_py_conn_command(c, NRD_PY_CMD_EXECUTE, offset, bytes, &reply);
    b->compute_end = nrd_now_ns();
    if (err) {
        wait_drained(c); /* what it had sent before counts */
        return err;
    }
    b->replied = true;
    err = read_batch(b, &reply);
    atomic_store(&c->map.ctl->reply_read, atomic_load(&c->map.ctl->reply.seq));
    if (reply.offset) {
        nrd_py_return(&c->to_stub, reply.offset);
    }
    return err;
}

/* Answers what is still open with `err` and forgets the requests that are over. */
static void settle(batch *b, const TRITONSERVER_Error *err)
{
    nrd_py_conn *c = b->conn;
    for (uint32_t i = 0; i < b->n; i++) {
        nrd_py_request *q = b->open ? b->open[i] : NULL;
        bool closed = false, answered = false;
        if (q) {
            pthread_mutex_lock(&c->mu);
            closed = q->closed;
            answered = q->answered;
            if (err) {
                q->closed = true;
            }
            pthread_mutex_unlock(&c->mu);
        }
        if (err) {
            b->ok[i] = false;
            b->release[i] = TRITONSERVER_REQUEST_RELEASE_ALL;
            TRITONSERVER_Error *e = (TRITONSERVER_Error *)(uintptr_t)err;
            if (!closed && answered && !c->decoupled) {
                /* A response went out before; a second one is not allowed. */
                nrd_tb_log_error(TRITONBACKEND_ResponseFactorySendFlags(
                                     q->factory, TRITONSERVER_RESPONSE_COMPLETE_FINAL),
                                 "ending a request");
            } else if (!closed) {
                nrd_tb_send_error(b->requests[i],
                                  TRITONSERVER_ErrorNew(TRITONSERVER_ErrorCode(e),
                                                        TRITONSERVER_ErrorMessage(e)));
            }
        }
        if (q) {
            pthread_mutex_lock(&c->mu);
            q->request = NULL;
            bool over = q->closed, orphan = !over && c->drained;
            pthread_mutex_unlock(&c->mu);
            if (orphan) { /* the process died after its reply: this is the only answer */
                nrd_py_request_close(c, q, nrd_py_conn_unhealthy(c));
            }
            if (over || orphan) {
                nrd_py_request_remove(c, q);
            }
            nrd_py_request_put(c, q);
        }
    }
}

static void report(batch *b)
{
    uint64_t end = nrd_now_ns();
    uint64_t compute_start = b->compute_start ? b->compute_start : end;
    uint64_t compute_end = b->compute_end ? b->compute_end : end;

    for (uint32_t i = 0; i < b->n; i++) {
        nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportStatistics(
                             b->in->handle, b->requests[i], b->ok[i], b->start, compute_start,
                             compute_end, end),
                         "failed reporting request statistics");
    }
    if (b->replied && b->total) {
        nrd_tb_log_error(TRITONBACKEND_ModelInstanceReportBatchStatistics(
                             b->in->handle, b->total, b->start, compute_start, compute_end, end),
                         "failed reporting batch statistics");
    }
}

static void release(batch *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        TRITONSERVER_Error *err = TRITONBACKEND_RequestRelease(b->requests[i], b->release[i]);
        if (!err) {
            continue;
        }
        bool again = b->release[i] == TRITONSERVER_REQUEST_RELEASE_RESCHEDULE;
        nrd_tb_log_error(err, "Failed to release request");
        if (again) {
            nrd_tb_log_error(
                TRITONBACKEND_RequestRelease(b->requests[i], TRITONSERVER_REQUEST_RELEASE_ALL),
                "Failed to release request");
        }
    }
}

TRITONSERVER_Error *nrd_py_execute(nrd_py_instance *in, TRITONBACKEND_Request **requests,
                                   uint32_t n)
{
    batch b = {.in = in, .requests = requests, .n = n, .start = nrd_now_ns()};

    b.release = calloc(n, sizeof *b.release);
    b.ok = calloc(n, sizeof *b.ok);
    b.open = calloc(n, sizeof(nrd_py_request *));
    if (!b.release || !b.ok || !b.open) {
        free(b.release);
        free(b.ok);
        free(b.open);
        return nrd_tb_error(nrd_error_no_memory()); /* the core answers the requests */
    }
    for (uint32_t i = 0; i < n; i++) {
        b.release[i] = TRITONSERVER_REQUEST_RELEASE_ALL;
    }
    pthread_mutex_lock(&in->mu);
    TRITONSERVER_Error *err = nrd_py_instance_revive(in);
    if (!err) {
        err = count_batch(&b);
    }
    if (!err) {
        b.conn = in->conn;
        err = run_batch(&b);
    }
    settle(&b, err);
    report(&b);
    release(&b);
    if (err) {
        TRITONSERVER_ErrorDelete(err);
    }
    pthread_mutex_unlock(&in->mu);
    free(b.release);
    free(b.ok);
    free(b.open);
    return NULL;
}
