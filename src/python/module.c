/* SPDX-License-Identifier: Apache-2.0
 * The module: its functions, its start. */
#include "python/module.h"

#include <stdlib.h>

static PyObject *m_version(PyObject *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
    return PyUnicode_FromString(nrd_version());
}

static PyObject *m_features(PyObject *self, PyObject *ignored)
{
    (void)self;
    (void)ignored;
    return PyUnicode_FromString(nrd_features());
}

/* describe(engine folder): what the model is, as JSON */
static PyObject *m_describe(PyObject *module, PyObject *args)
{
    const char *dir;
    char *json = NULL;
    nrd_error *err;
    (void)module;

    if (!PyArg_ParseTuple(args, "s", &dir)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    err = nrd_exec_describe(dir, &json);
    Py_END_ALLOW_THREADS
    if (err) {
        return nrd_py_raise(err);
    }
    PyObject *text = PyUnicode_FromString(json);
    free(json);
    return text;
}

static PyMethodDef methods[] = {
    {"error", nrd_py_error, METH_VARARGS, "error(code, message, reason): the exception that says this."},
    {"version", m_version, METH_NOARGS, "The version and commit of the library."},
    {"describe", m_describe, METH_VARARGS, "describe(engine folder): what the model is, as JSON."},
    {"put_times", nrd_py_put_times, METH_VARARGS, "put_times(chat, videos, group): the chat with a place for each group of frames."},
    {"features", m_features, METH_NOARGS, "What this build and this processor have."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "_nereid",
                                        .m_doc = "The C part of the module nereid.",
                                        .m_size = -1,
                                        .m_methods = methods};

PyMODINIT_FUNC PyInit__nereid(void);

PyMODINIT_FUNC PyInit__nereid(void)
{
    PyObject *m = PyModule_Create(&module_def);
    if (m && nrd_py_init_errors(m) && nrd_py_init_executor(m) && nrd_py_init_text(m) &&
        nrd_py_init_path(m)) {
        return m;
    }
    Py_XDECREF(m);
    return NULL;
}
