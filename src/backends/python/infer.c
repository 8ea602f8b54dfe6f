/* SPDX-License-Identifier: Apache-2.0
 * Inferences that a model asks the server for.
 *
 * Life of one: start -> responses (any thread) -> release (any thread). The answer to a request
 * that is not decoupled waits for both, because its inputs may lie in the model's memory. Responses
 * of a decoupled one wait in a list until the model asks for the next. Outputs are written straight
 * into the server's half of the shared memory. */
#include "backends/python/backend.h"

#include "base/log.h"
#include "base/str.h"

#include <stdio.h>
#include <string.h>

typedef struct waiting {
    struct waiting *next;
    uint64_t offset, bytes;
} waiting;

struct nrd_py_infer {
    nrd_py_infer *next; /* in the connection's table, which counts one */
    nrd_py_conn *conn;
    uint64_t id;
    bool decoupled;
    nrd_py_entry input;     /* the stub's message, its again after the release */
    TRITONSERVER_InferenceRequest *request; /* until it is released and answered, so that it can
                                             * be cancelled all the time. guarded by conn->mu */
    int refs;               /* guarded by conn->mu, like everything below */
    waiting *first, **last; /* responses that the stub has not asked for yet */
    waiting *spare;         /* for the error where memory for a response is missing */
    uint32_t slot;          /* who waits, or NRD_PY_NO_SLOT */
    bool over;              /* the last response is in the list or was given */
    bool dropped;
    bool released;
    bool final;             /* no more callbacks with responses */
    bool ended;             /* the stub was told that there is nothing more */
};

/* An output buffer in the server's half. */
typedef struct output {
    uint64_t offset;
    bool is_given; /* part of a message: the stub's from then on */
} output;

/* ---- buffers ---- */

static TRITONSERVER_Error *buffer_alloc(TRITONSERVER_ResponseAllocator *allocator, const char *name,
                                        size_t bytes, TRITONSERVER_MemoryType type, int64_t type_id,
                                        void *user, void **buffer, void **buffer_user,
                                        TRITONSERVER_MemoryType *actual_type, int64_t *actual_id)
{
    nrd_py_infer *f = user;
    (void)allocator, (void)name, (void)type, (void)type_id;
    *actual_type = TRITONSERVER_MEMORY_CPU;
    *actual_id = 0;
    *buffer = *buffer_user = NULL;
    if (bytes == 0) {
        return NULL;
    }
    uint64_t offset = nrd_py_heap_alloc(f->conn->heap, bytes);
    output *o = offset ? calloc(1, sizeof *o) : NULL;
    if (!o) {
        if (offset) {
            nrd_py_heap_release(f->conn->heap, offset);
        }
        return nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE,
                             "Failed to allocate shared memory for an output.");
    }
    o->offset = offset;
    *buffer = f->conn->map.base + offset;
    *buffer_user = o;
    return NULL;
}

static TRITONSERVER_Error *buffer_release(TRITONSERVER_ResponseAllocator *allocator, void *buffer,
                                          void *buffer_user, size_t bytes,
                                          TRITONSERVER_MemoryType type, int64_t type_id)
{
    (void)allocator, (void)buffer, (void)bytes, (void)type, (void)type_id;
    free(buffer_user);
    return NULL;
}

TRITONSERVER_Error *nrd_py_infer_allocator(TRITONSERVER_ResponseAllocator **out)
{
    return TRITONSERVER_ResponseAllocatorNew(out, buffer_alloc, buffer_release, NULL);
}

/* ---- table ---- */

static void put_locked(nrd_py_infer *f, bool *out_last)
{
    *out_last = --f->refs == 0;
}

static void infer_free(nrd_py_infer *f)
{
    nrd_py_conn *c = f->conn;
    while (f->first) {
        waiting *w = f->first;
        f->first = w->next;
        nrd_py_heap_release(c->heap, w->offset);
        free(w);
    }
    free(f->spare);
    free(f);
    pthread_mutex_lock(&c->mu);
    c->n_infers--;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->mu);
}

static void infer_put(nrd_py_infer *f)
{
    bool last;
    pthread_mutex_lock(&f->conn->mu);
    put_locked(f, &last);
    pthread_mutex_unlock(&f->conn->mu);
    if (last) {
        infer_free(f);
    }
}

static nrd_py_infer *find_locked(nrd_py_conn *c, uint64_t id)
{
    nrd_py_infer *f = c->infers[id % PY_TABLE];
    while (f && f->id != id) {
        f = f->next;
    }
    return f;
}

static void remove_locked(nrd_py_infer *f, bool *out_last)
{
    *out_last = false;
    for (nrd_py_infer **p = &f->conn->infers[f->id % PY_TABLE]; *p; p = &(*p)->next) {
        if (*p == f) {
            *p = f->next;
            put_locked(f, out_last);
            return;
        }
    }
}

/* ---- responses to messages ---- */

static void put_parameters(nrd_py_writer *w, TRITONSERVER_InferenceResponse *response,
                           TRITONSERVER_Error **err)
{
    nrd_str json = {0};
    uint32_t n = 0;
    nrd_str_putc(&json, '{');
    *err = TRITONSERVER_InferenceResponseParameterCount(response, &n);
    for (uint32_t i = 0; i < n && !*err; i++) {
        const char *key = NULL;
        TRITONSERVER_ParameterType type = TRITONSERVER_PARAMETER_INT;
        const void *v = NULL;
        *err = TRITONSERVER_InferenceResponseParameter(response, i, &key, &type, &v);
        if (*err) {
            break;
        }
        nrd_py_put_parameter(&json, key, type, v);
    }
    nrd_str_putc(&json, '}');
    nrd_py_put_str(w, json.data, json.len);
    w->failed = w->failed || json.no_memory;
    nrd_str_fini(&json);
}

static TRITONSERVER_Error *put_outputs(nrd_py_message *m, TRITONSERVER_InferenceResponse *response)
{
    uint32_t n = 0;
    NRD_TB_TRY(TRITONSERVER_InferenceResponseOutputCount(response, &n));
    nrd_py_put_u32(&m->w, n);
    for (uint32_t i = 0; i < n; i++) {
        const char *name = NULL;
        TRITONSERVER_DataType dtype;
        const int64_t *shape = NULL;
        uint64_t n_dims = 0;
        const void *base = NULL;
        size_t bytes = 0;
        TRITONSERVER_MemoryType type;
        int64_t type_id = 0;
        void *user = NULL;
        NRD_TB_TRY(TRITONSERVER_InferenceResponseOutput(response, i, &name, &dtype, &shape, &n_dims,
                                                        &base, &bytes, &type, &type_id, &user));
        output *o = user;
        if (o && bytes) {
            o->is_given = true; /* the message gives it back if it cannot be finished */
            nrd_py_message_tensor_at(m, name, strlen(name), dtype, shape, (uint32_t)n_dims, bytes,
                                     NRD_PY_DATA_BLOCK, o->offset);
        } else {
            nrd_py_message_tensor(m, name, strlen(name), dtype, shape, (uint32_t)n_dims, 0);
        }
    }
    return NULL;
}

static void give_back_outputs(nrd_py_conn *c, TRITONSERVER_InferenceResponse *response)
{
    uint32_t n = 0;
    TRITONSERVER_Error *err = TRITONSERVER_InferenceResponseOutputCount(response, &n);
    for (uint32_t i = 0; i < n && !err; i++) {
        const char *name = NULL;
        TRITONSERVER_DataType dtype;
        const int64_t *shape = NULL;
        uint64_t n_dims = 0;
        const void *base = NULL;
        size_t bytes = 0;
        TRITONSERVER_MemoryType type;
        int64_t type_id = 0;
        void *user = NULL;
        err = TRITONSERVER_InferenceResponseOutput(response, i, &name, &dtype, &shape, &n_dims, &base,
                                                   &bytes, &type, &type_id, &user);
        output *o = user;
        if (!err && o && !o->is_given) {
            nrd_py_heap_release(c->heap, o->offset);
        }
    }
    if (err) {
        TRITONSERVER_ErrorDelete(err);
    }
}

static bool error_message(nrd_py_conn *c, const char *text, uint32_t code, waiting *w)
{
    nrd_py_message m = {0};
    nrd_py_message_begin(&m, c->heap, c->map.base);
    nrd_py_put_u8(&m.w, 1);
    nrd_py_put_u8(&m.w, NRD_PY_RESPONSE_ERROR);
    nrd_py_put_u32(&m.w, code);
    nrd_py_put_cstr(&m.w, text);
    bool ok = nrd_py_message_finish(&m, &w->offset, &w->bytes);
    nrd_py_message_fini(&m);
    return ok;
}

static bool end_message(nrd_py_conn *c, waiting *w)
{
    nrd_py_message m = {0};
    nrd_py_message_begin(&m, c->heap, c->map.base);
    nrd_py_put_u8(&m.w, 1);
    nrd_py_put_u8(&m.w, NRD_PY_RESPONSE_NONE);
    bool ok = nrd_py_message_finish(&m, &w->offset, &w->bytes);
    nrd_py_message_fini(&m);
    return ok;
}

/* A message of a response; `response` may be NULL: the stream ends without one. */
static bool response_message(nrd_py_infer *f, TRITONSERVER_InferenceResponse *response, bool last,
                             waiting *w)
{
    nrd_py_conn *c = f->conn;
    nrd_py_message m = {0};
    TRITONSERVER_Error *err = NULL;

    if (!response && !f->decoupled) {
        return error_message(c, "Unexpected empty response.", TRITONSERVER_ERROR_INTERNAL, w);
    }
    if (response) {
        TRITONSERVER_Error *e = TRITONSERVER_InferenceResponseError(response);
        if (e) {
            bool ok = error_message(c, TRITONSERVER_ErrorMessage(e),
                                    (uint32_t)TRITONSERVER_ErrorCode(e), w);
            if (ok && !last) {
                c->map.base[w->offset + sizeof(uint64_t)] = 0;
            }
            TRITONSERVER_ErrorDelete(e);
            return ok;
        }
    }
    nrd_py_message_begin(&m, c->heap, c->map.base);
    nrd_py_put_u8(&m.w, last);
    nrd_py_put_u8(&m.w, NRD_PY_RESPONSE_OK);
    if (response) {
        put_parameters(&m.w, response, &err);
        if (!err) {
            err = put_outputs(&m, response);
        }
    } else {
        nrd_py_put_cstr(&m.w, "");
        nrd_py_put_u32(&m.w, 0);
    }
    m.w.failed = m.w.failed || err;
    bool ok = nrd_py_message_finish(&m, &w->offset, &w->bytes);
    nrd_py_message_fini(&m);
    if (!ok) {
        ok = error_message(c, err ? TRITONSERVER_ErrorMessage(err)
                                  : "Failed to allocate shared memory for a response.",
                           TRITONSERVER_ERROR_INTERNAL, w);
    }
    if (err) {
        TRITONSERVER_ErrorDelete(err);
    }
    return ok;
}

/* ---- giving responses to the stub ---- */

/* Gives the oldest response to the waiting call of the stub, if there is one. Called after every
 * change. */
static void deliver(nrd_py_infer *f)
{
    nrd_py_conn *c = f->conn;
    waiting *w = NULL;
    uint32_t slot = NRD_PY_NO_SLOT;
    bool end = false;

    pthread_mutex_lock(&c->mu);
    if (f->slot != NRD_PY_NO_SLOT && f->first && (f->decoupled || f->released)) {
        w = f->first;
        f->first = w->next;
        if (!f->first) {
            f->last = &f->first;
        }
        slot = f->slot;
        f->slot = NRD_PY_NO_SLOT;
    } else if (f->slot != NRD_PY_NO_SLOT && !f->first && f->over) {
        end = true;
        slot = f->slot;
        f->slot = NRD_PY_NO_SLOT;
    }
    pthread_mutex_unlock(&c->mu);
    waiting ending = {0};
    if (end && end_message(c, &ending)) {
        nrd_py_answer(c, slot, f->id, ending.offset, ending.bytes);
    }
    if (w) {
        nrd_py_answer(c, slot, f->decoupled ? f->id : 0, w->offset, w->bytes);
        free(w);
    }
}

static void delete_request(nrd_py_infer *f)
{
    TRITONSERVER_InferenceRequest *q = NULL;
    pthread_mutex_lock(&f->conn->mu);
    if (f->released && f->final) {
        q = f->request;
        f->request = NULL;
    }
    pthread_mutex_unlock(&f->conn->mu);
    if (q) {
        nrd_tb_log_error(TRITONSERVER_InferenceRequestDelete(q),
                         "Failed to delete inference request");
    }
}

static void on_response(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *user)
{
    nrd_py_infer *f = user;
    nrd_py_conn *c = f->conn;
    bool final = flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL;
    waiting *w = calloc(1, sizeof *w);
    const bool lost = !w;
    bool ok = false;

    pthread_mutex_lock(&c->mu);
    bool wanted = !f->over && !f->dropped && !atomic_load(&c->dead);
    if (lost) {
        w = f->spare;
        f->spare = NULL;
    }
    pthread_mutex_unlock(&c->mu);
    if (lost && wanted) { /* nothing comes behind this error: an answer with a gap would look whole */
        ok = w && error_message(c, "out of memory", TRITONSERVER_ERROR_UNAVAILABLE, w);
    } else if (wanted && (response || final)) {
        ok = response_message(f, response, final || !f->decoupled, w);
    }
    if (response) {
        give_back_outputs(c, response);
        nrd_tb_log_error(TRITONSERVER_InferenceResponseDelete(response),
                         "Failed to release BLS inference response");
    }
    pthread_mutex_lock(&c->mu);
    if (ok && !f->dropped) {
        *f->last = w;
        f->last = &w->next;
        w = NULL;
    }
    f->over = f->over || final || lost || (ok && !f->decoupled);
    f->final = final;
    pthread_mutex_unlock(&c->mu);
    if (w) {
        if (ok) {
            nrd_py_heap_release(c->heap, w->offset);
        }
        free(w);
    }
    delete_request(f);
    deliver(f);
    if (final) {
        infer_put(f); /* the callbacks' share */
    }
}

/* Forgets an inference once neither the server nor the stub needs it. */
static void forget(nrd_py_infer *f)
{
    bool last = false;
    pthread_mutex_lock(&f->conn->mu);
    if (f->released && (f->dropped || !f->decoupled)) {
        remove_locked(f, &last);
    }
    pthread_mutex_unlock(&f->conn->mu);
    if (last) {
        infer_free(f);
    }
}

/* ---- the stub's message ---- */

typedef struct asked { /* the fixed part of the stub's message */
    const char *id, *correlation, *model, *parameters;
    uint64_t correlation_number, timeout, trace;
    int64_t version;
    uint32_t flags;
} asked;

static asked read_asked(nrd_py_reader *r)
{
    asked a = {0};
    a.id = nrd_py_get_str(r, NULL);
    if (nrd_py_get_u8(r)) {
        a.correlation = nrd_py_get_str(r, NULL);
    } else {
        a.correlation_number = nrd_py_get_u64(r);
    }
    a.model = nrd_py_get_str(r, NULL);
    a.version = (int64_t)nrd_py_get_u64(r);
    a.flags = nrd_py_get_u32(r);
    a.timeout = nrd_py_get_u64(r);
    a.parameters = nrd_py_get_str(r, NULL);
    (void)nrd_py_get_u32(r); /* preferred memory: there is host memory only */
    (void)nrd_py_get_u64(r);
    a.trace = nrd_py_get_u64(r);
    return a;
}

/* The stub's message and the blocks in it are the stub's again. */
static void give_back_input(nrd_py_conn *c, const nrd_py_entry *e)
{
    nrd_py_reader r;
    uint64_t data_at;
    nrd_py_reader_begin(&r, &data_at, &c->map, e->offset, e->bytes);
    (void)read_asked(&r);
    uint32_t n = nrd_py_get_u32(&r);
    for (uint32_t i = 0; i < n && !r.bad; i++) {
        (void)nrd_py_get_str(&r, NULL);
    }
    n = nrd_py_get_u32(&r);
    for (uint32_t i = 0; i < n && !r.bad; i++) {
        nrd_py_tensor t;
        if (nrd_py_get_tensor(&r, &c->map, data_at, &t) && t.how == NRD_PY_DATA_BLOCK) {
            nrd_py_return(&c->to_stub, t.where);
        }
    }
    nrd_py_return(&c->to_stub, e->offset);
}

static void on_release(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *user)
{
    nrd_py_infer *f = user;
    nrd_py_conn *c = f->conn;

    if (!request || /* rescheduled: it comes back */ !(flags & TRITONSERVER_REQUEST_RELEASE_ALL)) {
        return;
    }
    pthread_mutex_lock(&c->mu);
    f->released = true;
    pthread_mutex_unlock(&c->mu);
    delete_request(f);
    give_back_input(c, &f->input);
    deliver(f);
    forget(f);
    infer_put(f); /* the request's share */
}

/* ---- start ---- */

static TRITONSERVER_Error *set_parameters(TRITONSERVER_InferenceRequest *q, const char *text)
{
    nrd_json_doc *doc = NULL;
    TRITONSERVER_Error *err = NULL;
    size_t n = strlen(text);
    if (n <= 2) {
        return NULL;
    }
    NRD_TB_TRY(nrd_tb_error(nrd_json_parse(&doc, text, n, NULL)));
    const nrd_json *root = nrd_json_root(doc);
    for (size_t i = 0; i < nrd_json_len(root) && !err; i++) {
        const nrd_json *v = nrd_json_at(root, i);
        if (v->type == NRD_JSON_STRING) {
            err = TRITONSERVER_InferenceRequestSetStringParameter(q, v->key, v->str);
        } else if (v->type == NRD_JSON_INT) {
            err = TRITONSERVER_InferenceRequestSetIntParameter(q, v->key, v->i);
        } else if (v->type == NRD_JSON_BOOL) {
            err = TRITONSERVER_InferenceRequestSetBoolParameter(q, v->key, v->boolean);
        } else {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                "Unsupported value type on parameters");
        }
    }
    nrd_json_doc_free(doc);
    return err;
}

static TRITONSERVER_Error *check_model(nrd_py_infer *f, const asked *a)
{
    bool ready = false;
    uint32_t policy = 0;
    NRD_TB_TRY(TRITONSERVER_ServerModelIsReady(f->conn->server, a->model, a->version, &ready));
    if (!ready) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                             "Failed for execute the inference request. Model '%s' is not ready.",
                             a->model);
    }
    NRD_TB_TRY(TRITONSERVER_ServerModelTransactionProperties(f->conn->server, a->model, a->version,
                                                             &policy, NULL));
    if (!f->decoupled && (policy & TRITONSERVER_TXN_DECOUPLED)) {
        return nrd_tb_errorf(
            TRITONSERVER_ERROR_INTERNAL,
            "Model %s is using the decoupled. The current BLS request call doesn't support models "
            "using the decoupled transaction policy. Please use 'decoupled=True' argument to the "
            "'exec' or 'async_exec' calls for decoupled models.'",
            a->model);
    }
    return NULL;
}

static TRITONSERVER_Error *fill(nrd_py_infer *f, TRITONSERVER_InferenceRequest *q, const asked *a,
                                nrd_py_reader *r, uint64_t data_at)
{
    NRD_TB_TRY(TRITONSERVER_InferenceRequestSetId(q, a->id));
    if (a->correlation) {
        NRD_TB_TRY(TRITONSERVER_InferenceRequestSetCorrelationIdString(q, a->correlation));
    } else {
        NRD_TB_TRY(TRITONSERVER_InferenceRequestSetCorrelationId(q, a->correlation_number));
    }
    NRD_TB_TRY(TRITONSERVER_InferenceRequestSetFlags(q, a->flags));
    NRD_TB_TRY(TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(q, a->timeout));
    NRD_TB_TRY(TRITONSERVER_InferenceRequestSetReleaseCallback(q, on_release, f));
    NRD_TB_TRY(set_parameters(q, a->parameters));
    uint32_t n = nrd_py_get_u32(r);
    for (uint32_t i = 0; i < n && !r->bad; i++) {
        const char *name = nrd_py_get_str(r, NULL);
        NRD_TB_TRY(TRITONSERVER_InferenceRequestAddRequestedOutput(q, name));
    }
    n = nrd_py_get_u32(r);
    for (uint32_t i = 0; i < n && !r->bad; i++) {
        nrd_py_tensor t;
        if (!nrd_py_get_tensor(r, &f->conn->map, data_at, &t) || t.how == NRD_PY_DATA_REMOTE) {
            break;
        }
        NRD_TB_TRY(TRITONSERVER_InferenceRequestAddInput(
            q, t.name, (TRITONSERVER_DataType)t.dtype, t.dims, t.n_dims));
        NRD_TB_TRY(TRITONSERVER_InferenceRequestAppendInputData(
            q, t.name, f->conn->map.base + t.where, t.bytes, TRITONSERVER_MEMORY_CPU, 0));
    }
    if (r->bad) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "A message of stub '%s' cannot be read.",
                             f->conn->name);
    }
    return TRITONSERVER_InferenceRequestSetResponseCallback(q, f->conn->allocator, f, on_response,
                                                            f);
}

static TRITONSERVER_Error *begin(nrd_py_infer *f, const asked *a, nrd_py_reader *r,
                                 uint64_t data_at)
{
    nrd_py_conn *c = f->conn;
    TRITONSERVER_InferenceRequest *q = NULL;
    TRITONSERVER_InferenceTrace *child = NULL;

    NRD_TB_TRY(check_model(f, a));
    NRD_TB_TRY(TRITONSERVER_InferenceRequestNew(&q, c->server, a->model, a->version));
    TRITONSERVER_Error *err = fill(f, q, a, r, data_at);
    TRITONSERVER_InferenceTrace *trace = a->trace ? nrd_py_request_trace(c, a->trace) : NULL;
    if (!err && trace) {
        err = TRITONSERVER_InferenceTraceSpawnChildTrace(trace, &child);
    }
    if (!err) {
        pthread_mutex_lock(&c->mu);
        f->request = q;
        f->refs += 2; /* the request's share and the callbacks' */
        pthread_mutex_unlock(&c->mu);
        err = TRITONSERVER_ServerInferAsync(c->server, q, child);
        if (err) {
            pthread_mutex_lock(&c->mu);
            f->request = NULL;
            f->refs -= 2;
            pthread_mutex_unlock(&c->mu);
        }
    }
    if (err) {
        nrd_tb_log_error(TRITONSERVER_InferenceRequestDelete(q),
                         "Failed to delete inference request");
    }
    return err;
}

void nrd_py_infer_start(nrd_py_conn *c, const nrd_py_entry *e)
{
    nrd_py_reader r;
    uint64_t data_at;
    nrd_py_infer *f = calloc(1, sizeof *f);
    waiting *spare = calloc(1, sizeof *spare);

    if (!f || !spare) {
        waiting none = {0};
        if (error_message(c, "out of memory", TRITONSERVER_ERROR_UNAVAILABLE, &none)) {
            nrd_py_answer(c, e->slot, 0, none.offset, none.bytes);
        }
        give_back_input(c, e);
        free(spare);
        free(f);
        return;
    }
    f->conn = c;
    f->spare = spare;
    f->decoupled = e->b != 0;
    f->refs = 2; /* the table and this function */
    f->slot = e->slot;
    f->last = &f->first;
    f->input = *e;
    pthread_mutex_lock(&c->mu);
    f->id = c->next_id++;
    f->next = c->infers[f->id % PY_TABLE];
    c->infers[f->id % PY_TABLE] = f;
    c->n_infers++;
    pthread_mutex_unlock(&c->mu);

    nrd_py_reader_begin(&r, &data_at, &c->map, e->offset, e->bytes);
    asked a = read_asked(&r);
    TRITONSERVER_Error *err = begin(f, &a, &r, data_at);
    if (err) {
        char *text = NULL;
        const bool made = asprintf(&text, "Model %s - Error when running inference: %s", a.model,
                                   TRITONSERVER_ErrorMessage(err)) >= 0;
        waiting *w = f->spare;
        bool ok = error_message(c, made ? text : TRITONSERVER_ErrorMessage(err), TRITONSERVER_ERROR_INTERNAL, w);
        give_back_input(c, e);
        pthread_mutex_lock(&c->mu);
        f->spare = NULL;
        f->over = f->released = true;
        if (ok) {
            *f->last = w;
            f->last = &w->next;
        } else {
            free(w);
        }
        pthread_mutex_unlock(&c->mu);
        deliver(f);
        forget(f);
        if (made) {
            free(text);
        }
        TRITONSERVER_ErrorDelete(err);
    }
    infer_put(f);
}

/* ---- calls about one ---- */

void nrd_py_infer_next(nrd_py_conn *c, const nrd_py_entry *e)
{
    pthread_mutex_lock(&c->mu);
    nrd_py_infer *f = find_locked(c, e->a);
    if (f) {
        f->refs++;
        f->slot = e->slot;
    }
    pthread_mutex_unlock(&c->mu);
    if (f) {
        deliver(f);
        infer_put(f);
        return;
    }
    waiting w = {0};
    if (end_message(c, &w)) {
        nrd_py_answer(c, e->slot, 0, w.offset, w.bytes);
    }
}

static void cancel(nrd_py_infer *f)
{
    /* The lock keeps the request from being deleted meanwhile; cancelling makes no callback. */
    TRITONSERVER_Error *err = NULL;
    pthread_mutex_lock(&f->conn->mu);
    if (f->request) {
        err = TRITONSERVER_InferenceRequestCancel(f->request);
    }
    pthread_mutex_unlock(&f->conn->mu);
    nrd_tb_log_error(err, "cancelling an inference");
}

void nrd_py_infer_cancel(nrd_py_conn *c, const nrd_py_entry *e)
{
    pthread_mutex_lock(&c->mu);
    nrd_py_infer *f = find_locked(c, e->a);
    if (f) {
        f->refs++;
    }
    pthread_mutex_unlock(&c->mu);
    if (f) {
        cancel(f);
        infer_put(f);
    }
    nrd_py_answer(c, e->slot, f != NULL, 0, 0);
}

void nrd_py_infer_drop(nrd_py_conn *c, uint64_t id)
{
    pthread_mutex_lock(&c->mu);
    nrd_py_infer *f = find_locked(c, id);
    if (f) {
        f->refs++;
        f->dropped = true;
    }
    pthread_mutex_unlock(&c->mu);
    if (f) {
        forget(f);
        infer_put(f);
    }
}

void nrd_py_infer_cancel_all(nrd_py_conn *c)
{
    for (size_t i = 0; i < PY_TABLE; i++) {
        for (;;) {
            pthread_mutex_lock(&c->mu);
            nrd_py_infer *f = c->infers[i];
            while (f && f->dropped) {
                f = f->next;
            }
            if (f) {
                f->refs++;
                f->dropped = true;
            }
            pthread_mutex_unlock(&c->mu);
            if (!f) {
                break;
            }
            cancel(f);
            forget(f);
            infer_put(f);
        }
    }
}
