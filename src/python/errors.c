/* SPDX-License-Identifier: Apache-2.0
 * The module's exceptions. */
#include "python/module.h"

#include <string.h>

static PyObject *error_type, *invalid_type, *not_found_type, *unavailable_type, *unsupported_type;

static PyObject *type_of(int code)
{
    switch (code) {
    case NRD_ERR_INVALID_ARG:
        return invalid_type;
    case NRD_ERR_NOT_FOUND:
        return not_found_type;
    case NRD_ERR_UNAVAILABLE:
        return unavailable_type;
    case NRD_ERR_UNSUPPORTED:
        return unsupported_type;
    default:
        return error_type;
    }
}

static PyObject *text_or_none(const char *text)
{
    if (!text) {
        Py_RETURN_NONE;
    }
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

PyObject *nrd_py_error_tuple(const nrd_error *err)
{
    if (!err) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(iNN)", nrd_exec_error_code(err),
                         text_or_none(nrd_exec_error_message(err)),
                         text_or_none(nrd_exec_error_reason(err)));
}

/* error(code, message, reason): the exception that says this. */
static PyObject *make_error(int code, PyObject *message, PyObject *reason)
{
    PyObject *e = PyObject_CallFunctionObjArgs(type_of(code), message, NULL);
    PyObject *number = PyLong_FromLong(code);
    if (!e || !number || PyObject_SetAttrString(e, "code", number) != 0 ||
        PyObject_SetAttrString(e, "reason", reason) != 0) {
        Py_CLEAR(e);
    }
    Py_XDECREF(number);
    return e;
}

PyObject *nrd_py_raise(nrd_error *err)
{
    const int code = nrd_exec_error_code(err);
    PyObject *message = text_or_none(nrd_exec_error_message(err));
    PyObject *reason = text_or_none(nrd_exec_error_reason(err));
    const bool no_memory = nrd_error_get_code(err) == NRD_ERR_NO_MEMORY;

    nrd_exec_error_free(err);
    if (no_memory) {
        PyErr_NoMemory();
    } else if (message && reason) {
        PyObject *e = make_error(code, message, reason);
        if (e) {
            PyErr_SetObject((PyObject *)Py_TYPE(e), e);
            Py_DECREF(e);
        }
    }
    Py_XDECREF(message);
    Py_XDECREF(reason);
    return NULL;
}

PyObject *nrd_py_error(PyObject *self, PyObject *args)
{
    PyObject *message, *reason;
    int code = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "iOO", &code, &message, &reason)) {
        return NULL;
    }
    return make_error(code, message, reason);
}

bool nrd_py_add_type(PyObject *module, const char *name, PyType_Spec *spec)
{
    PyObject *type = PyType_FromSpec(spec);
    if (type && PyModule_AddObject(module, name, type) == 0) {
        return true;
    }
    Py_XDECREF(type);
    return false;
}

/* An exception that is one of ours and, for those who know no Nereid, one of Python's own. */
static PyObject *add_error(PyObject *module, const char *name, const char *full, const char *doc,
                           PyObject *base, PyObject *second)
{
    PyObject *bases = second ? PyTuple_Pack(2, base, second) : PyTuple_Pack(1, base);
    PyObject *type = bases ? PyErr_NewExceptionWithDoc(full, doc, bases, NULL) : NULL;
    Py_XDECREF(bases);
    Py_XINCREF(type); /* one for the module, one for this file */
    if (!type || PyModule_AddObject(module, name, type) != 0 ||
        PyObject_SetAttrString(type, "code", Py_None) != 0 ||
        PyObject_SetAttrString(type, "reason", Py_None) != 0) {
        return NULL;
    }
    return type;
}

bool nrd_py_init_errors(PyObject *m)
{
    return (error_type = add_error(m, "Error", "nereid.Error",
                                   "What the engine says when it cannot do something: "
                                   "its text, `code` and `reason`.",
                                   PyExc_RuntimeError, NULL)) &&
           (invalid_type = add_error(m, "InvalidArgumentError", "nereid.InvalidArgumentError",
                                     "A field is out of its limits; the text names both.",
                                     error_type, PyExc_ValueError)) &&
           (not_found_type = add_error(m, "NotFoundError", "nereid.NotFoundError",
                                       "A file or an adapter that is not there.", error_type,
                                       PyExc_LookupError)) &&
           (unavailable_type =
                add_error(m, "UnavailableError", "nereid.UnavailableError",
                          "The queue is full, or the engine was lost.", error_type, NULL)) &&
           (unsupported_type =
                add_error(m, "UnsupportedError", "nereid.UnsupportedError",
                          "What this version has not got.", error_type, PyExc_NotImplementedError));
}
