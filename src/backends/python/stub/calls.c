/* SPDX-License-Identifier: Apache-2.0
 * Calls to the server: entries of a ring, and slots in which answers arrive. */
#include "backends/python/stub/stub.h"

#include <limits.h>
#include <pthread.h>

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER; /* guards the ring's producing end */
/* Free slots, in which no thread waits for an answer; guarded by mu. */
static pthread_cond_t slot_free = PTHREAD_COND_INITIALIZER;
static uint16_t free_slots[NRD_PY_SLOTS];
static size_t n_free;

static void push_entry(const nrd_py_entry *e)
{
    nrd_py_control *c = nrd_stub.map.ctl;
    pthread_mutex_lock(&mu);
    for (;;) {
        uint32_t head = atomic_load(&c->call_head), tail = atomic_load(&c->call_tail);
        if (tail - head < NRD_PY_CALLS) {
            c->calls[tail % NRD_PY_CALLS] = *e;
            atomic_store(&c->call_tail, tail + 1);
            break;
        }
        if (atomic_load(&c->server_gone)) {
            break;
        }
        atomic_store(&c->call_space, 1);
        nrd_py_sleep(&c->call_head, head, 100);
    }
    pthread_mutex_unlock(&mu);
    if (atomic_load(&c->call_sleepers)) {
        nrd_py_wake(&c->call_tail, INT_MAX);
    }
}

static uint32_t slot_take(void)
{
    pthread_mutex_lock(&mu);
    while (n_free == 0) {
        pthread_cond_wait(&slot_free, &mu);
    }
    uint32_t slot = free_slots[--n_free];
    pthread_mutex_unlock(&mu);
    atomic_store(&nrd_stub.map.ctl->slots[slot].done, 0);
    return slot;
}

static void slot_give(uint32_t slot)
{
    pthread_mutex_lock(&mu);
    free_slots[n_free++] = (uint16_t)slot;
    pthread_cond_signal(&slot_free);
    pthread_mutex_unlock(&mu);
}

typedef struct {
    uint32_t failed;
    uint64_t a, offset, bytes;
} answer;

static bool can_call(void)
{
    if (!nrd_stub.connected || nrd_stub.forked) {
        nrd_stub_fail("This process is not a model instance of the server.");
        return false;
    }
    return true;
}

/* Raises the error of a failed answer. */
static bool check_answer(const answer *a)
{
    if (!a->failed) {
        return true;
    }
    PyObject *text = nrd_stub_take_text(a->offset, a->bytes);
    if (text) {
        PyErr_SetObject(nrd_stub_exception, text);
        Py_DECREF(text);
    }
    return false;
}

/* Sends a call and waits for its answer, without Python's lock; raises the error that it is. */
static bool call(nrd_py_entry e, answer *out)
{
    bool ok = true;
    Py_BEGIN_ALLOW_THREADS
    e.slot = slot_take();
    nrd_py_slot *s = &nrd_stub.map.ctl->slots[e.slot];
    push_entry(&e);
    while (!atomic_load(&s->done)) {
        if (atomic_load(&nrd_stub.map.ctl->server_gone)) {
            ok = false;
            break;
        }
        nrd_py_sleep(&s->done, 0, 500);
    }
    if (ok) {
        *out = (answer){s->failed, s->a, s->offset, s->bytes};
        slot_give(e.slot);
    } /* else nobody will answer in this slot, and it is lost with the channel */
    Py_END_ALLOW_THREADS
    if (!ok) {
        nrd_stub_fail("The server has closed the channel to this model.");
    }
    return ok && check_answer(out);
}

/* Reads (type, a, b, body), what a call says, and puts the body into shared memory. */
static bool parse_call(PyObject *args, nrd_py_entry *out)
{
    unsigned long type;
    unsigned long long a = 0, b = 0;
    const char *s = NULL;
    Py_ssize_t n = 0;
    uint64_t offset;

    if (!PyArg_ParseTuple(args, "kKK|y#", &type, &a, &b, &s, &n) || !can_call() ||
        !nrd_stub_put_text(s, n, &offset)) {
        return false;
    }
    *out = (nrd_py_entry){.type = (uint32_t)type, .slot = NRD_PY_NO_SLOT, .a = a, .b = b};
    out->offset = offset;
    out->bytes = (uint64_t)n;
    return true;
}

/* call(type, a, b, body) -> a */
static PyObject *m_call(PyObject *self, PyObject *args)
{
    nrd_py_entry e;
    answer out;

    (void)self;
    if (!parse_call(args, &e) || !call(e, &out)) {
        return NULL;
    }
    if (out.offset) {
        nrd_py_return(&nrd_stub.to_server, out.offset);
    }
    return PyLong_FromUnsignedLongLong(out.a);
}

/* post(type, a, b, body): nobody answers. */
static PyObject *m_post(PyObject *self, PyObject *args)
{
    nrd_py_entry e;

    (void)self;
    if (!parse_call(args, &e)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    push_entry(&e);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* send(request, flags, response or None, names) */
static PyObject *m_send(PyObject *self, PyObject *args)
{
    unsigned long long handle;
    unsigned long flags;
    PyObject *response, *names;
    uint64_t offset = 0, bytes = 0;
    bool held = false, ok = true;
    answer out;

    (void)self;
    if (!PyArg_ParseTuple(args, "KkOO", &handle, &flags, &response, &names) || !can_call()) {
        return NULL;
    }
    if (response != Py_None) {
        nrd_py_message m = {.w = {NULL, 0, 0, false}};
        nrd_py_message_begin(&m, nrd_stub.heap, nrd_stub.map.base);
        ok = nrd_stub_put_response(&m, response, names, &held) &&
             nrd_stub_finish(&m, &offset, &bytes);
        nrd_py_message_fini(&m);
    }
    nrd_py_entry e = {
        .type = NRD_PY_CALL_SEND, .a = handle, .b = flags, .offset = offset, .bytes = bytes};
    if (!ok || !call(e, &out)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* infer(request as a tuple, decoupled) -> (id, response) */
static PyObject *m_infer(PyObject *self, PyObject *args)
{
    PyObject *q;
    int decoupled;
    uint64_t offset = 0, bytes = 0;
    nrd_py_message m = {.w = {NULL, 0, 0, false}};
    answer out;

    (void)self;
    if (!PyArg_ParseTuple(args, "Op", &q, &decoupled) || !can_call()) {
        return NULL;
    }
    nrd_py_message_begin(&m, nrd_stub.heap, nrd_stub.map.base);
    bool ok = nrd_stub_put_infer(&m, q, decoupled) && nrd_stub_finish(&m, &offset, &bytes);
    nrd_py_message_fini(&m);
    nrd_py_entry e = {
        .type = NRD_PY_CALL_INFER, .b = (uint64_t)decoupled, .offset = offset, .bytes = bytes};
    if (!ok || !call(e, &out)) {
        return NULL;
    }
    PyObject *response = nrd_stub_get_response(out.offset, out.bytes);
    return response ? Py_BuildValue("(KN)", (unsigned long long)out.a, response) : NULL;
}

/* next(id) -> response */
static PyObject *m_next(PyObject *self, PyObject *args)
{
    unsigned long long id;
    answer out;
    (void)self;
    if (!PyArg_ParseTuple(args, "K", &id) || !can_call() ||
        !call((nrd_py_entry){.type = NRD_PY_CALL_NEXT, .a = id}, &out)) {
        return NULL;
    }
    return nrd_stub_get_response(out.offset, out.bytes);
}

bool nrd_stub_init_calls(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"_call", m_call, METH_VARARGS, NULL}, {"_post", m_post, METH_VARARGS, NULL},
        {"_send", m_send, METH_VARARGS, NULL}, {"_infer", m_infer, METH_VARARGS, NULL},
        {"_next", m_next, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL},
    };

    for (n_free = 0; n_free < NRD_PY_SLOTS; n_free++) {
        free_slots[n_free] = (uint16_t)(NRD_PY_SLOTS - 1 - n_free);
    }
    return PyModule_AddFunctions(module, functions) == 0;
}
