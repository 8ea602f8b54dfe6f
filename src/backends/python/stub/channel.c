/* SPDX-License-Identifier: Apache-2.0
 * The channel: its memory file, the watcher that keeps the heartbeat, and blocks of memory. */
#include "backends/python/stub/stub.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

nrd_stub_channel nrd_stub;

static uint64_t probe_word = NRD_PY_PROBE;
static int watch_fd = -1;
static PyObject *block_type;

/* Counts the heartbeat and ends the process when the server's end of the socket is gone. Runs
 * without Python's lock, so a model that never gives it up is alive, and one that is stopped is
 * not. */
static void *watch(void *arg)
{
    (void)arg;
    prctl(PR_SET_NAME, "nrd_watch");
    for (;;) {
        struct pollfd p = {.fd = watch_fd, .events = POLLIN};
        int n = poll(&p, 1, 200);
        atomic_fetch_add(&nrd_stub.map.ctl->heartbeat, 1);
        if (n > 0 && (p.revents & (POLLHUP | POLLERR | POLLIN))) {
            _exit(1);
        }
        if (n < 0 && errno != EINTR) {
            _exit(1);
        }
    }
    return NULL;
}

static void do_nothing(int number)
{
    (void)number;
}

/* A child of the model ends by a signal as any process does: its pool would wait for ever. */
static void in_child(void)
{
    static const int signals[] = {SIGINT, SIGTERM};
    struct sigaction act;

    nrd_stub.forked = true;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        if (sigaction(signals[i], NULL, &act) == 0 && act.sa_handler == do_nothing) {
            act.sa_handler = SIG_DFL;
            sigaction(signals[i], &act, NULL);
        }
    }
}

/* connect(memory fd, socket fd): maps the channel, starts the watcher. */
static PyObject *m_connect(PyObject *self, PyObject *args)
{
    int fd, sock;
    pthread_t thread;

    (void)self;
    if (!PyArg_ParseTuple(args, "ii", &fd, &sock)) {
        return NULL;
    }
    if (nrd_stub.connected) {
        return nrd_stub_fail("connect: already connected");
    }
    if (!nrd_py_map_open(&nrd_stub.map, fd)) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    close(fd);
    nrd_py_control *c = nrd_stub.map.ctl;
    nrd_stub.heap = nrd_py_heap_new(nrd_stub.map.base, c->stub_base, c->half_bytes, &c->to_stub);
    if (!nrd_stub.heap) {
        return PyErr_NoMemory();
    }
    nrd_py_returner_init(&nrd_stub.to_server, &c->to_server);
    c->probe = (uint64_t)(uintptr_t)&probe_word;
    pthread_atfork(NULL, NULL, in_child);
    /* A terminal's Ctrl-C reaches every process; this one ends when the server says so. */
    struct sigaction act = {.sa_handler = do_nothing, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    watch_fd = sock;
    nrd_stub.connected = true;
    if (pthread_create(&thread, NULL, watch, NULL) != 0) {
        return nrd_stub_fail("cannot start the watcher thread");
    }
    pthread_detach(thread);
    Py_RETURN_NONE;
}

static PyObject *m_set_remote(PyObject *self, PyObject *args)
{
    int on;
    (void)self;
    if (!PyArg_ParseTuple(args, "p", &on)) {
        return NULL;
    }
    nrd_stub.remote = on;
    Py_RETURN_NONE;
}

static PyObject *m_is_child(PyObject *self, PyObject *ignored)
{
    (void)self, (void)ignored;
    return PyBool_FromLong(nrd_stub.forked || !nrd_stub.connected);
}

/* Bytes of the stub's half that are in use; for tests and for watching leaks. */
static PyObject *m_used_memory(PyObject *self, PyObject *ignored)
{
    (void)self, (void)ignored;
    return PyLong_FromUnsignedLongLong(nrd_stub.heap ? nrd_py_heap_used(nrd_stub.heap) : 0);
}

static PyObject *m_free_memory(PyObject *self, PyObject *ignored)
{
    (void)self, (void)ignored;
    if (!nrd_stub.heap) {
        return PyLong_FromLong(0);
    }
    return PyLong_FromUnsignedLongLong(nrd_stub.map.ctl->half_bytes -
                                       nrd_py_heap_used(nrd_stub.heap));
}

/* ---- blocks ---- */

typedef struct {
    PyObject_HEAD
    uint64_t offset;
    bool own; /* in the stub's half */
} Block;

PyObject *nrd_stub_block_new(uint64_t offset, bool own)
{
    Block *b = PyObject_New(Block, (PyTypeObject *)block_type);
    if (b) {
        b->offset = offset;
        b->own = own;
    } else if (own) {
        nrd_py_heap_release(nrd_stub.heap, offset);
    } else {
        nrd_py_return(&nrd_stub.to_server, offset);
    }
    return (PyObject *)b;
}

static void block_dealloc(PyObject *self)
{
    Block *b = (Block *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (!nrd_stub.forked) {
        if (b->own) {
            nrd_py_heap_release(nrd_stub.heap, b->offset);
        } else {
            nrd_py_return(&nrd_stub.to_server, b->offset);
        }
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot block_slots[] = {{Py_tp_dealloc, block_dealloc}, {0, NULL}};
static PyType_Spec block_spec = {"c_python_backend_utils._Block", sizeof(Block), 0,
                                 Py_TPFLAGS_DEFAULT, block_slots};

bool nrd_stub_put_text(const char *s, Py_ssize_t n, uint64_t *out_offset)
{
    *out_offset = 0;
    if (n > 0) {
        *out_offset = nrd_py_heap_alloc(nrd_stub.heap, (uint64_t)n);
        if (!*out_offset) {
            nrd_stub_fail("Failed to allocate shared memory for a text.");
            return false;
        }
        memcpy(nrd_stub.map.base + *out_offset, s, (size_t)n);
    }
    return true;
}

PyObject *nrd_stub_take_text(uint64_t offset, uint64_t bytes)
{
    PyObject *text = NULL;
    if (nrd_py_map_has(&nrd_stub.map, offset, bytes)) {
        text = PyUnicode_DecodeUTF8((const char *)nrd_stub.map.base + offset, (Py_ssize_t)bytes,
                                    "replace");
    }
    if (offset) {
        nrd_py_return(&nrd_stub.to_server, offset);
    }
    return text ? text : PyUnicode_FromString("");
}

bool nrd_stub_init_channel(PyObject *module)
{
    static PyMethodDef functions[] = {
        {"_connect", m_connect, METH_VARARGS, NULL},
        {"_set_remote", m_set_remote, METH_VARARGS, NULL},
        {"_is_child", m_is_child, METH_NOARGS, NULL},
        {"_used_memory", m_used_memory, METH_NOARGS, NULL},
        {"_free_memory", m_free_memory, METH_NOARGS, NULL},
        {NULL, NULL, 0, NULL},
    };

    block_type = PyType_FromSpec(&block_spec);
    return block_type && PyModule_AddFunctions(module, functions) == 0;
}
