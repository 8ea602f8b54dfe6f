/* SPDX-License-Identifier: Apache-2.0
 * Commands of the server and the replies to them. */
#include "backends/python/stub/stub.h"

static uint32_t command_seen, aux_seen;
static nrd_py_message execute_message; /* memory kept between replies */
static PyObject *held; /* what the last reply borrows from, until the server has read it */

/* wait() -> (type, payload): a list of requests for EXECUTE, else text. */
static PyObject *m_wait(PyObject *self, PyObject *ignored)
{
    nrd_py_channel *c = &nrd_stub.map.ctl->command;
    bool got = false;

    (void)self, (void)ignored;
    while (!got) {
        /* What the last reply borrows is dropped as soon as the server has read it. */
        bool holds = held != NULL;
        Py_BEGIN_ALLOW_THREADS
        got = nrd_py_await(c, command_seen, holds ? 5 : -1);
        Py_END_ALLOW_THREADS
        if (holds && atomic_load(&nrd_stub.map.ctl->reply_read) ==
                         atomic_load(&nrd_stub.map.ctl->reply.seq)) {
            Py_CLEAR(held);
        }
    }
    command_seen++;
    uint32_t type = c->type;
    uint64_t offset = c->offset, bytes = c->bytes;
    PyObject *payload = type == NRD_PY_CMD_EXECUTE ? nrd_stub_get_requests(offset, bytes)
                                                   : nrd_stub_take_text(offset, bytes);
    return payload ? Py_BuildValue("(kN)", (unsigned long)type, payload) : NULL;
}

/* reply(type, failed, text) */
static PyObject *m_reply(PyObject *self, PyObject *args)
{
    unsigned long type;
    int failed;
    const char *s;
    Py_ssize_t n;
    uint64_t offset;

    (void)self;
    if (!PyArg_ParseTuple(args, "kps#", &type, &failed, &s, &n) ||
        !nrd_stub_put_text(s, n, &offset)) {
        return NULL;
    }
    nrd_py_post(&nrd_stub.map.ctl->reply, (uint32_t)type, (uint32_t)failed, offset, (uint64_t)n);
    Py_RETURN_NONE;
}

/* reply_execute(states, responses, names): per request (release flags, sender was taken), a
 * response or None, and the names of its requested outputs. */
static PyObject *m_reply_execute(PyObject *self, PyObject *args)
{
    PyObject *states, *responses, *names;
    nrd_py_message *m = &execute_message;
    uint64_t offset, bytes;
    bool borrows = false;

    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", &states, &responses, &names)) {
        return NULL;
    }
    Py_ssize_t n = PyList_Size(states);
    if (n < 0 || PyList_Size(responses) != n || PyList_Size(names) != n) {
        return nrd_stub_fail("reply_execute: lists of different lengths");
    }
    nrd_py_message_begin(m, nrd_stub.heap, nrd_stub.map.base);
    nrd_py_put_u32(&m->w, (uint32_t)n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *response = PyList_GetItem(responses, i);
        unsigned long state = PyLong_AsUnsignedLong(PyList_GetItem(states, i));
        nrd_py_put_u32(&m->w, (uint32_t)state);
        if (response == Py_None) {
            nrd_py_put_u8(&m->w, NRD_PY_RESPONSE_NONE);
        } else if (!nrd_stub_put_response(m, response, PyList_GetItem(names, i), &borrows)) {
            /* blocks in it are few and stay used */
            nrd_py_message_begin(m, nrd_stub.heap, nrd_stub.map.base);
            return NULL;
        }
    }
    if (!nrd_stub_finish(m, &offset, &bytes)) {
        return NULL;
    }
    if (borrows) {
        Py_INCREF(responses);
        Py_XDECREF(held);
        held = responses;
    }
    nrd_py_post(&nrd_stub.map.ctl->reply, NRD_PY_CMD_EXECUTE, 0, offset, bytes);
    Py_RETURN_NONE;
}

/* The second channel: readiness questions beside a running command. */
static PyObject *m_aux_wait(PyObject *self, PyObject *ignored)
{
    bool got = false;
    (void)self, (void)ignored;
    Py_BEGIN_ALLOW_THREADS
    while (!got) {
        got = nrd_py_await(&nrd_stub.map.ctl->aux, aux_seen, -1);
    }
    Py_END_ALLOW_THREADS
    aux_seen++;
    Py_RETURN_NONE;
}

static PyObject *m_aux_reply(PyObject *self, PyObject *args)
{
    int failed;
    const char *s;
    Py_ssize_t n;
    uint64_t offset;
    (void)self;
    if (!PyArg_ParseTuple(args, "ps#", &failed, &s, &n) || !nrd_stub_put_text(s, n, &offset)) {
        return NULL;
    }
    nrd_py_post(&nrd_stub.map.ctl->aux_reply, NRD_PY_CMD_READY, (uint32_t)failed, offset,
                (uint64_t)n);
    Py_RETURN_NONE;
}

bool nrd_stub_init_commands(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"_wait", m_wait, METH_NOARGS, NULL},
        {"_reply", m_reply, METH_VARARGS, NULL},
        {"_reply_execute", m_reply_execute, METH_VARARGS, NULL},
        {"_aux_wait", m_aux_wait, METH_NOARGS, NULL},
        {"_aux_reply", m_aux_reply, METH_VARARGS, NULL},
        {NULL, NULL, 0, NULL},
    };

    return PyModule_AddFunctions(module, functions) == 0;
}
