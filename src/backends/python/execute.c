/* SPDX-License-Identifier: Apache-2.0
 * Executions: requests to the stub, responses back, and what a request's sender does later. */
#include "backends/python/backend.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

enum { STATE_FLAGS = 0xff, STATE_TAKEN = 256 };

/* ---- the table of requests ---- */

static nrd_py_request **bucket(nrd_py_conn *c, uint64_t id)
{
    return &c->requests[id % PY_TABLE];
}

/* NULL: no memory. */
static nrd_py_request *request_add(nrd_py_conn *c, TRITONBACKEND_Request *request)
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

static nrd_py_request *request_get(nrd_py_conn *c, uint64_t id)
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

static void request_put(nrd_py_conn *c, nrd_py_request *r)
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

/* Takes a request out of the table, if it is still there. */
static void request_remove(nrd_py_conn *c, nrd_py_request *r)
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
        request_put(c, r);
    }
}

/* The request's factory, made while the request is still ours. */
static TRITONSERVER_Error *request_factory(nrd_py_conn *c, nrd_py_request *r)
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

/* ---- requests to messages ---- */

static void put_parameters(nrd_py_writer *w, TRITONBACKEND_Request *request, uint32_t n)
{
    nrd_str json = {0};
    nrd_str_putc(&json, '{');
    for (uint32_t i = 0; i < n; i++) {
        const char *key = NULL;
        TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_INT;
        const void *value = NULL;
        TRITONSERVER_Error *err = TRITONBACKEND_RequestParameter(request, i, &key, &type, &value);
        if (err) {
            nrd_tb_log_error(err, "reading a request parameter");
            continue;
        }
        if (json.len > 1) {
            nrd_str_putc(&json, ',');
        }
        nrd_json_put_cstr(&json, key);
        nrd_str_putc(&json, ':');
        switch (type) {
        case TRITONSERVER_PARAMETER_INT:
            nrd_str_printf(&json, "%lld", (long long)*(const int64_t *)value);
            break;
        case TRITONSERVER_PARAMETER_BOOL:
            nrd_str_puts(&json, *(const bool *)value ? "true" : "false");
            break;
        case TRITONSERVER_PARAMETER_DOUBLE:
            nrd_json_put_double(&json, *(const double *)value);
            break;
        default:
            nrd_json_put_cstr(&json, value);
            break;
        }
    }
    nrd_str_putc(&json, '}');
    nrd_py_put_str(w, json.data, json.len);
    w->failed = w->failed || json.no_memory;
    nrd_str_fini(&json);
}

static TRITONSERVER_Error *put_input(nrd_py_message *m, TRITONBACKEND_Request *request, uint32_t i)
{
    TRITONBACKEND_Input *input = NULL;
    const char *name = NULL;
    TRITONSERVER_DataType dtype;
    const int64_t *shape = NULL;
    uint32_t n_dims = 0, n_buffers = 0;
    uint64_t bytes = 0, done = 0;

    NRD_TB_TRY(TRITONBACKEND_RequestInputByIndex(request, i, &input));
    NRD_TB_TRY(
        TRITONBACKEND_InputProperties(input, &name, &dtype, &shape, &n_dims, &bytes, &n_buffers));
    if (n_dims > NRD_PY_MAX_DIMS) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED, "input '%s' has too many dimensions",
                             name);
    }
    nrd_py_message_tensor(m, name, strlen(name), dtype, shape, n_dims, bytes);
    for (uint32_t b = 0; b < n_buffers; b++) {
        const void *buffer = NULL;
        uint64_t part = 0;
        TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_CPU;
        int64_t place_id = 0;
        NRD_TB_TRY(TRITONBACKEND_InputBuffer(input, b, &buffer, &part, &place, &place_id));
        if (place == TRITONSERVER_MEMORY_GPU) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_UNSUPPORTED,
                                 "input '%s' is in GPU memory, which the Python backend cannot read",
                                 name);
        }
        nrd_py_message_data(m, buffer, part);
        done += part;
    }
    if (done != bytes && !m->w.failed) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "input '%s' has %llu bytes of %llu", name,
                             (unsigned long long)done, (unsigned long long)bytes);
    }
    return NULL;
}

static TRITONSERVER_Error *put_request(nrd_py_message *m, const nrd_py_request *r)
{
    TRITONBACKEND_Request *q = r->request;
    nrd_py_writer *w = &m->w;
    const char *text = NULL;
    uint64_t number = 0;
    uint32_t flags = 0, n = 0;

    nrd_py_put_u64(w, r->id);
    NRD_TB_TRY(TRITONBACKEND_RequestId(q, &text));
    nrd_py_put_cstr(w, text);
    TRITONSERVER_Error *err = TRITONBACKEND_RequestCorrelationId(q, &number);
    if (err) {
        TRITONSERVER_ErrorDelete(err);
        NRD_TB_TRY(TRITONBACKEND_RequestCorrelationIdString(q, &text));
        nrd_py_put_u8(w, 1);
        nrd_py_put_cstr(w, text);
    } else {
        nrd_py_put_u8(w, 0);
        nrd_py_put_u64(w, number);
    }
    NRD_TB_TRY(TRITONBACKEND_RequestFlags(q, &flags));
    nrd_py_put_u32(w, flags);
    NRD_TB_TRY(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(q, &number));
    nrd_py_put_u64(w, number);
    NRD_TB_TRY(TRITONBACKEND_RequestParameterCount(q, &n));
    put_parameters(w, q, n);
    NRD_TB_TRY(TRITONBACKEND_RequestOutputCount(q, &n));
    nrd_py_put_u32(w, n);
    for (uint32_t i = 0; i < n; i++) {
        NRD_TB_TRY(TRITONBACKEND_RequestOutputName(q, i, &text));
        nrd_py_put_cstr(w, text);
    }
    text = NULL;
    if (r->trace) {
        TRITONSERVER_Error *no_context = TRITONSERVER_InferenceTraceContext(r->trace, &text);
        if (no_context) {
            TRITONSERVER_ErrorDelete(no_context);
            text = NULL;
        }
    }
    nrd_py_put_u64(w, r->trace ? r->id : 0); /* the number is all that the stub needs */
    nrd_py_put_cstr(w, text);
    NRD_TB_TRY(TRITONBACKEND_RequestInputCount(q, &n));
    nrd_py_put_u32(w, n);
    for (uint32_t i = 0; i < n; i++) {
        NRD_TB_TRY(put_input(m, q, i));
    }
    return NULL;
}

/* ---- messages to responses ---- */

static TRITONSERVER_Error *read_remote(const nrd_py_conn *c, void *to, uint64_t address,
                                       uint64_t bytes)
{
    uint64_t done = 0;
    while (done < bytes) {
        struct iovec dst = {.iov_base = (uint8_t *)to + done, .iov_len = bytes - done};
        struct iovec src = {.iov_base = (void *)(uintptr_t)(address + done),
                            .iov_len = bytes - done};
        ssize_t n = process_vm_readv(c->pid, &dst, 1, &src, 1, 0);
        if (n <= 0) {
            return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                 "Failed to copy the output tensor to buffer: %s", strerror(errno));
        }
        done += (uint64_t)n;
    }
    return NULL;
}

static TRITONSERVER_Error *write_output(nrd_py_conn *c, TRITONBACKEND_Response *response,
                                        const nrd_py_tensor *t)
{
    void *buffer = NULL;
    TRITONSERVER_Error *err = nrd_tb_output(response, t->name, (TRITONSERVER_DataType)t->dtype,
                                            t->dims, t->n_dims, t->bytes, &buffer);
    if (!err && t->bytes && buffer) {
        if (t->how == NRD_PY_DATA_REMOTE) {
            err = read_remote(c, buffer, t->where, t->bytes);
        } else {
            memcpy(buffer, c->map.base + t->where, t->bytes);
        }
    }
    return err;
}

static TRITONSERVER_Error *set_parameters(TRITONBACKEND_Response *response, const char *text,
                                          size_t n)
{
    nrd_json_doc *doc = NULL;
    TRITONSERVER_Error *err = NULL;
    if (n <= 2) { /* {} */
        return NULL;
    }
    NRD_TB_TRY(nrd_tb_error(nrd_json_parse(&doc, text, n, NULL)));
    const nrd_json *root = nrd_json_root(doc);
    for (size_t i = 0; i < nrd_json_len(root) && !err; i++) {
        const nrd_json *v = nrd_json_at(root, i);
        switch (v->type) {
        case NRD_JSON_BOOL:
            err = TRITONBACKEND_ResponseSetBoolParameter(response, v->key, v->boolean);
            break;
        case NRD_JSON_INT:
            err = TRITONBACKEND_ResponseSetIntParameter(response, v->key, v->i);
            break;
        case NRD_JSON_STRING:
            err = TRITONBACKEND_ResponseSetStringParameter(response, v->key, v->str);
            break;
        default:
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                                "Unsupported value type on parameters");
            break;
        }
    }
    nrd_json_doc_free(doc);
    return err;
}

/* Reads one response of a message into `response`; *out_error is the error that the model has set.
 * The reader always stands behind the response afterwards. */
static TRITONSERVER_Error *read_response(nrd_py_conn *c, nrd_py_reader *r, uint64_t data_at,
                                         uint8_t kind, TRITONBACKEND_Response *response)
{
    TRITONSERVER_Error *err = NULL;
    size_t n = 0;

    if (kind == NRD_PY_RESPONSE_ERROR) {
        uint32_t code = nrd_py_get_u32(r);
        const char *text = nrd_py_get_str(r, NULL);
        return TRITONSERVER_ErrorNew((TRITONSERVER_Error_Code)(code > 7 ? 1 : code), text);
    }
    const char *parameters = nrd_py_get_str(r, &n);
    if (response) {
        err = set_parameters(response, parameters, n);
    }
    uint32_t n_outputs = nrd_py_get_u32(r);
    for (uint32_t i = 0; i < n_outputs; i++) {
        nrd_py_tensor t;
        if (!nrd_py_get_tensor(r, &c->map, data_at, &t)) {
            break;
        }
        if (response && !err) {
            err = write_output(c, response, &t);
        }
        if (t.how == NRD_PY_DATA_BLOCK) {
            nrd_py_return(&c->to_stub, t.where);
        }
    }
    if (r->bad && !err) {
        err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "A message of stub '%s' cannot be read.",
                            c->name);
    }
    return err;
}

static void send_response(TRITONBACKEND_Response *response, uint32_t flags, TRITONSERVER_Error *err)
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

/* The last response of a request could not be made: the client hears that there are no more. */
static void end_bare(nrd_py_conn *c, nrd_py_request *r)
{
    TRITONSERVER_Error *err = request_factory(c, r);
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
    NRD_TB_TRY(request_factory(c, r));
    if (!e->offset) {
        return TRITONBACKEND_ResponseFactorySendFlags(r->factory, flags);
    }
    TRITONSERVER_Error *err = TRITONBACKEND_ResponseNewFromFactory(&response, r->factory);
    if (err && final) {
        end_bare(c, r);
    }
    NRD_TB_TRY(err);
    nrd_py_reader_begin(&reader, &data_at, &c->map, e->offset, e->bytes);
    uint8_t kind = nrd_py_get_u8(&reader);
    send_response(response, flags, read_response(c, &reader, data_at, kind, response));
    return NULL;
}

void nrd_py_request_send(nrd_py_conn *c, const nrd_py_entry *e)
{
    nrd_py_request *r = request_get(c, e->a);
    TRITONSERVER_Error *err = r ? send_later(c, r, e) : closed_error();

    if (e->offset) {
        nrd_py_return(&c->to_stub, e->offset);
    }
    if (r) {
        pthread_mutex_lock(&c->mu);
        bool over = r->closed && !r->request; /* an execution removes its own requests */
        pthread_mutex_unlock(&c->mu);
        if (over) {
            request_remove(c, r);
        }
        request_put(c, r);
    }
    if (err) {
        nrd_py_answer_error(c, e->slot, err);
    } else {
        nrd_py_answer(c, e->slot, 0, 0, 0);
    }
}

/* Ends a request with an error; only with the final flag when it was answered before and `err` is
 * NULL. Takes err. */
static void close_with(nrd_py_conn *c, nrd_py_request *r, TRITONSERVER_Error *err)
{
    pthread_mutex_lock(&c->mu);
    bool closed = r->closed;
    r->closed = true;
    pthread_mutex_unlock(&c->mu);
    TRITONSERVER_Error *failure = closed ? NULL : request_factory(c, r);
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
    nrd_py_request *r = request_get(c, id);
    if (!r) {
        return;
    }
    pthread_mutex_lock(&c->mu);
    bool answered = r->answered;
    pthread_mutex_unlock(&c->mu);
    close_with(c, r,
               answered ? NULL
                        : nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                        "Model '%s' has dropped the response sender of a request "
                                        "without sending a response.",
                                        c->name));
    pthread_mutex_lock(&c->mu);
    bool over = !r->request;
    pthread_mutex_unlock(&c->mu);
    if (over) {
        request_remove(c, r);
    }
    request_put(c, r);
}

void nrd_py_request_cancelled(nrd_py_conn *c, const nrd_py_entry *e)
{
    nrd_py_request *r = request_get(c, e->a);
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
        request_put(c, r);
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
            close_with(c, r, nrd_py_conn_unhealthy(c));
            request_remove(c, r);
            request_put(c, r);
        }
    }
}

/* ---- executions ---- */

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
        TRITONSERVER_Error *err = put_request(m, b->open[i]);
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
            end_bare(c, q);
        }
        err = read_response(c, r, data_at, kind, response);
        if (response) { /* an answer that is a TritonError is an answer: a success in statistics */
            send_response(response, TRITONSERVER_RESPONSE_COMPLETE_FINAL, err);
        } else if (err) {
            TRITONSERVER_ErrorDelete(err);
        }
    } else if (keep) {
        nrd_tb_log_error(request_factory(c, q), "keeping a request open");
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
        b->open[i] = request_add(c, b->requests[i]);
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
                close_with(c, q, nrd_py_conn_unhealthy(c));
            }
            if (over || orphan) {
                request_remove(c, q);
            }
            request_put(c, q);
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

/* ---- the instance's process ---- */

TRITONSERVER_Error *nrd_py_instance_start(nrd_py_instance *in)
{
    nrd_py_model *m = in->model;
    nrd_py_conn *c = NULL;
    nrd_str args = {0};
    char *ready = NULL;

    NRD_TB_TRY(nrd_py_conn_start(&c, m, in->name));
    const struct {
        const char *key, *value;
    } texts[] = {
        {"model_config", m->config_text},
        {"model_instance_kind", in->kind},
        {"model_instance_name", in->name},
        {"model_repository", m->folder},
        {"model_name", m->config.name},
    };
    nrd_str_puts(&args, "{");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        nrd_json_put_cstr(&args, texts[i].key);
        nrd_str_putc(&args, ':');
        nrd_json_put_cstr(&args, texts[i].value);
        nrd_str_putc(&args, ',');
    }
    nrd_str_printf(&args,
                   "\"model_instance_device_id\":\"%d\",\"model_version\":\"%llu\","
                   "\"decoupled\":%s,\"remote\":%s}",
                   (int)in->device, (unsigned long long)m->config.version,
                   m->config.decoupled ? "true" : "false", c->remote ? "true" : "false");
    TRITONSERVER_Error *err = nrd_tb_error(nrd_str_error(&args));
    if (!err) {
        err = nrd_py_conn_text(c, NRD_PY_CMD_INITIALIZE, nrd_str_cstr(&args), &ready);
    }
    nrd_str_fini(&args);
    if (err) {
        NRD_LOG_INFO("Failed to initialize Python stub: %s", TRITONSERVER_ErrorMessage(err));
        nrd_py_conn_stop(c);
        return err;
    }
    c->initialized = true;
    c->has_ready = !strcmp(ready, "1");
    free(ready);
    pthread_mutex_lock(&in->conn_mu);
    in->conn = c;
    pthread_mutex_unlock(&in->conn_mu);
    pthread_mutex_lock(&c->mu);
    c->instance = in;
    pthread_mutex_unlock(&c->mu);
    return NULL;
}

/* A running process: the one that is there, or a new one in the place of a dead one. */
static TRITONSERVER_Error *revive(nrd_py_instance *in)
{
    nrd_py_conn *old = in->conn;
    if (old && !atomic_load(&old->dead)) {
        return NULL;
    }
    if (old) {
        pthread_mutex_lock(&in->conn_mu);
        in->conn = NULL;
        pthread_mutex_unlock(&in->conn_mu);
        nrd_py_conn_stop(old);
    }
    NRD_LOG_WARN("restarting the stub process of '%s'", in->name);
    return nrd_py_instance_start(in);
}

static void restart_over(nrd_py_instance *in)
{
    pthread_mutex_lock(&in->conn_mu);
    in->n_restarts--;
    pthread_cond_broadcast(&in->restarted);
    pthread_mutex_unlock(&in->conn_mu);
}

static void *restart(void *arg)
{
    nrd_py_instance *in = arg;
    pthread_mutex_lock(&in->mu);
    if (!in->ending && in->conn) { /* no connection: the last try did not work out */
        nrd_tb_log_error(revive(in), "restarting a stub process");
    }
    pthread_mutex_unlock(&in->mu);
    restart_over(in);
    return NULL;
}

void nrd_py_instance_await_restart(nrd_py_instance *in)
{
    pthread_mutex_lock(&in->conn_mu);
    in->n_restarts++;
    pthread_mutex_unlock(&in->conn_mu);
}

void nrd_py_instance_restart(nrd_py_instance *in)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, restart, in) == 0) {
        pthread_detach(thread);
    } else {
        restart_over(in); /* the next execution does it */
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
    TRITONSERVER_Error *err = revive(in);
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
