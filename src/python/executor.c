/* SPDX-License-Identifier: Apache-2.0
 * _nereid.Executor: an nrd_exec. */
#include "python/module.h"

#include "base/clock.h"

#include <time.h>
#include <unistd.h>

/* How long a wait goes without looking for Ctrl-C, and for another thread's close(). */
enum { SLICE_US = 50000, MAX_RESPONSES = 256, MAX_STATS = 64 };

typedef struct executor {
    PyObject_HEAD
    nrd_exec *x; /* NULL: closed */
    nrd_exec_info info;
    pid_t pid;    /* that opened it */
    int32_t busy; /* threads inside, which hold no lock; changed under Python's lock */
    bool closing;
} executor;

static bool enter(executor *e)
{
    if (!e->x || e->closing) {
        PyErr_SetString(PyExc_ValueError, "the executor is closed");
        return false;
    }
    if (e->pid != getpid()) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this executor was opened before fork(): its threads are in the parent "
                        "alone; open one in each process");
        return false;
    }
    e->busy++;
    return true;
}

static PyObject *leave(executor *e, PyObject *result)
{
    e->busy--;
    return result;
}

/* What an error-or-nothing function gave. */
static PyObject *nothing(nrd_error *err)
{
    if (err) {
        return nrd_py_raise(err);
    }
    Py_RETURN_NONE;
}

static int executor_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    executor *e = (executor *)self;
    PyObject *dict;
    const char *path;
    nrd_exec_config c;
    nrd_exec *x = NULL;
    nrd_error *err;
    (void)kwargs;

    if (!PyArg_ParseTuple(args, "sO!", &path, &PyDict_Type, &dict) || !nrd_py_config(dict, &c)) {
        return -1;
    }
    if (e->x) {
        PyErr_SetString(PyExc_ValueError, "the executor is open");
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    err = nrd_exec_open(&x, path, &c);
    Py_END_ALLOW_THREADS
    if (err) {
        nrd_py_raise(err);
        return -1;
    }
    e->x = x;
    e->pid = getpid();
    e->info = (nrd_exec_info){.size = sizeof e->info};
    nrd_exec_get_info(x, &e->info);
    return 0;
}

static PyObject *executor_enqueue(PyObject *self, PyObject *dict)
{
    executor *e = (executor *)self;
    nrd_py_request q;
    nrd_error *err;
    uint64_t id = 0;

    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "expected a dictionary");
        return NULL;
    }
    if (!enter(e)) {
        return NULL;
    }
    PyObject *held =
        PyDict_Values(dict); /* whoever changes the dictionary meanwhile frees nothing */
    if (!held || !nrd_py_request_read(dict, &e->info, &q)) {
        Py_XDECREF(held);
        return leave(e, NULL);
    }
    Py_BEGIN_ALLOW_THREADS
    err = nrd_exec_enqueue(e->x, &q.r, &id);
    Py_END_ALLOW_THREADS
    nrd_py_request_free(&q);
    Py_DECREF(held);
    return leave(e, err ? nrd_py_raise(err) : PyLong_FromUnsignedLongLong(id));
}

static PyObject *list_of(nrd_exec_response **got, int32_t n)
{
    PyObject *list = PyList_New(n);
    for (int32_t i = 0; i < n; i++) {
        PyObject *item = list ? nrd_py_response(got[i]) : NULL;
        if (list && (!item || PyList_SetItem(list, i, item) != 0)) {
            Py_CLEAR(list);
        }
        nrd_exec_response_free(got[i]);
    }
    return list;
}

/* await(max, timeout_us): a list, empty on time-out and after shutdown. */
static PyObject *executor_await(PyObject *self, PyObject *args)
{
    executor *e = (executor *)self;
    nrd_exec_response *got[MAX_RESPONSES];
    nrd_error *err = NULL;
    int32_t n = 0;
    int max = 0;
    long long timeout_us = -1;

    if (!PyArg_ParseTuple(args, "iL", &max, &timeout_us) || !enter(e)) {
        return NULL;
    }
    max = max < 1 ? 1 : max > MAX_RESPONSES ? MAX_RESPONSES : max;
    const uint64_t start = nrd_now_ns();
    for (;;) {
        const int64_t gone = (int64_t)((nrd_now_ns() - start) / 1000);
        const int64_t left = timeout_us < 0 ? SLICE_US : timeout_us - gone;
        Py_BEGIN_ALLOW_THREADS
        err = nrd_exec_await(e->x, got, max, left < 0 ? 0 : left < SLICE_US ? left : SLICE_US, &n);
        Py_END_ALLOW_THREADS
        if (err || n > 0 || e->closing || nrd_exec_is_done(e->x) ||
            (timeout_us >= 0 && left <= SLICE_US)) {
            break;
        }
        if (PyErr_CheckSignals() != 0) {
            return leave(e, NULL);
        }
    }
    return leave(e, err ? nrd_py_raise(err) : list_of(got, n));
}

static PyObject *executor_cancel(PyObject *self, PyObject *id)
{
    executor *e = (executor *)self;
    const unsigned long long n = PyLong_AsUnsignedLongLong(id);
    if (PyErr_Occurred() || !enter(e)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    nrd_exec_cancel(e->x, n);
    Py_END_ALLOW_THREADS
    return leave(e, nothing(NULL));
}

static PyObject *executor_shutdown(PyObject *self, PyObject *timeout_us)
{
    executor *e = (executor *)self;
    const long long t = PyLong_AsLongLong(timeout_us);
    nrd_error *err;
    if (PyErr_Occurred() || !enter(e)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    err = nrd_exec_shutdown(e->x, t);
    Py_END_ALLOW_THREADS
    return leave(e, nothing(err));
}

/* In a child of fork() nothing is closed: what would be waited for does not exist there. */
static void close_now(executor *e)
{
    nrd_exec *x = e->x;
    if (!x || e->closing || e->pid != getpid()) {
        return;
    }
    e->closing = true;
    Py_BEGIN_ALLOW_THREADS
    nrd_error_free(nrd_exec_shutdown(x, 0));
    Py_END_ALLOW_THREADS
    while (e->busy > 0) { /* they look every SLICE_US */
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        Py_END_ALLOW_THREADS
    }
    e->x = NULL;
    Py_BEGIN_ALLOW_THREADS
    nrd_exec_close(x);
    Py_END_ALLOW_THREADS
}

static PyObject *executor_close(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    close_now((executor *)self);
    Py_RETURN_NONE;
}

static PyObject *executor_health(PyObject *self, PyObject *ignored)
{
    executor *e = (executor *)self;
    (void)ignored;
    return enter(e) ? leave(e, nothing(nrd_exec_health(e->x))) : NULL;
}

static PyObject *executor_info(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return nrd_py_info(&((executor *)self)->info);
}

static PyObject *executor_stats(PyObject *self, PyObject *ignored)
{
    executor *e = (executor *)self;
    nrd_iter_stats got[MAX_STATS];
    PyObject *list = PyList_New(0);
    int32_t n = MAX_STATS;
    (void)ignored;

    if (!list || !enter(e)) {
        Py_XDECREF(list);
        return NULL;
    }
    while (list && n == MAX_STATS) {
        for (int32_t i = 0; i < MAX_STATS; i++) {
            got[i].size = sizeof got[i];
        }
        n = nrd_exec_take_iter_stats(e->x, got, MAX_STATS);
        for (int32_t i = 0; list && i < n; i++) {
            PyObject *item = nrd_py_iter_stats(&got[i]);
            if (!item || PyList_Append(list, item) != 0) {
                Py_CLEAR(list);
            }
            Py_XDECREF(item);
        }
    }
    return leave(e, list);
}

static PyObject *executor_lora_load(PyObject *self, PyObject *args)
{
    executor *e = (executor *)self;
    unsigned long long id;
    const char *dir;
    nrd_error *err;
    if (!PyArg_ParseTuple(args, "Ks", &id, &dir) || !enter(e)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    err = nrd_exec_lora_load(e->x, id, dir);
    Py_END_ALLOW_THREADS
    return leave(e, nothing(err));
}

static PyObject *executor_lora_unload(PyObject *self, PyObject *id)
{
    executor *e = (executor *)self;
    const unsigned long long n = PyLong_AsUnsignedLongLong(id);
    nrd_error *err;
    if (PyErr_Occurred() || !enter(e)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    err = nrd_exec_lora_unload(e->x, n);
    Py_END_ALLOW_THREADS
    return leave(e, nothing(err));
}

static void executor_dealloc(PyObject *self)
{
    PyObject *type = (PyObject *)Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_free);
    close_now((executor *)self);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"enqueue", executor_enqueue, METH_O, "enqueue(request): its id."},
    {"await_responses", executor_await, METH_VARARGS,
     "await_responses(max, timeout_us): a list of tuples."},
    {"cancel", executor_cancel, METH_O, "cancel(id)"},
    {"shutdown", executor_shutdown, METH_O,
     "shutdown(timeout_us): running requests may finish until then."},
    {"close", executor_close, METH_NOARGS, "Ends everything; waits for other threads' calls."},
    {"health", executor_health, METH_NOARGS, "Raises once the engine is lost."},
    {"info", executor_info, METH_NOARGS, "What was opened."},
    {"iter_stats", executor_stats, METH_NOARGS, "The records of steps that were not taken before."},
    {"lora_load", executor_lora_load, METH_VARARGS, "lora_load(id, dir)"},
    {"lora_unload", executor_lora_unload, METH_O, "lora_unload(id)"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Executor(engine_dir, config)"},
    {Py_tp_init, executor_init},
    {Py_tp_dealloc, executor_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"_nereid.Executor", sizeof(executor), 0, Py_TPFLAGS_DEFAULT, slots};

bool nrd_py_init_executor(PyObject *module)
{
    return nrd_py_add_type(module, "Executor", &spec);
}
