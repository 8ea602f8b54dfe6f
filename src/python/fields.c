/* SPDX-License-Identifier: Apache-2.0
 * Dictionaries of Python into structures of the executor API, by tables of their fields. */
#include "python/module.h"

#include "base/dtype.h"

#include <string.h>

static bool bad_type(const char *name, const char *want, PyObject *v)
{
    PyObject *type = PyObject_GetAttrString((PyObject *)Py_TYPE(v), "__name__");
    if (type) {
        PyErr_Format(PyExc_TypeError, "%s: expected %s, got %U", name, want, type);
        Py_DECREF(type);
    }
    return false;
}

/* An integer between two limits; a bool is one too. Whole-number objects of NumPy have __index__. */
static bool read_int(const char *name, PyObject *v, int64_t low, int64_t high, int64_t *out)
{
    PyObject *n = PyNumber_Index(v);
    int overflow = 0;
    if (!n) {
        PyErr_Clear();
        return bad_type(name, "a whole number", v);
    }
    const long long got = PyLong_AsLongLongAndOverflow(n, &overflow);
    Py_DECREF(n);
    if (overflow || got < low || got > high) {
        PyErr_Format(PyExc_OverflowError, "%s must be between %lld and %lld, got %S", name,
                     (long long)low, (long long)high, v);
        return false;
    }
    *out = got;
    return true;
}

static bool read_u64(const char *name, PyObject *v, uint64_t *out)
{
    PyObject *n = PyNumber_Index(v);
    if (!n) {
        PyErr_Clear();
        return bad_type(name, "a whole number", v);
    }
    *out = PyLong_AsUnsignedLongLong(n);
    Py_DECREF(n);
    if (PyErr_Occurred()) {
        PyErr_Format(PyExc_OverflowError, "%s must be between 0 and 2**64 - 1, got %S", name, v);
        return false;
    }
    return true;
}

static bool read_float(const char *name, PyObject *v, double *out)
{
    PyObject *f = PyNumber_Check(v) ? PyNumber_Float(v) : NULL;
    if (!f) {
        PyErr_Clear();
        return bad_type(name, "a number", v);
    }
    *out = PyFloat_AsDouble(f);
    Py_DECREF(f);
    return true;
}

static bool read_text(const char *name, PyObject *v, const char **out)
{
    Py_ssize_t n = 0;
    if (!PyUnicode_Check(v)) {
        return bad_type(name, "a text", v);
    }
    const char *s = PyUnicode_AsUTF8AndSize(v, &n);
    if (s && strlen(s) != (size_t)n) {
        PyErr_Format(PyExc_ValueError, "%s holds a character 0", name);
        return false;
    }
    *out = s;
    return s != NULL;
}

static bool read_dtype(const char *name, PyObject *v, nrd_dtype *out)
{
    const char *s;
    if (!read_text(name, v, &s)) {
        return false;
    }
    if (!nrd_dtype_parse(s, out)) {
        PyErr_Format(PyExc_ValueError, "%s: '%s' is no known element type", name, s);
        return false;
    }
    return true;
}

static bool set(const nrd_py_field *f, PyObject *v, void *base)
{
    void *to = (char *)base + f->offset;
    int64_t i = 0;
    double d = 0;
    int truth;

    switch (f->kind) {
    case NRD_PY_I32:
        return read_int(f->name, v, INT32_MIN, INT32_MAX, &i) &&
               (*(int32_t *)to = (int32_t)i, true);
    case NRD_PY_I64:
        return read_int(f->name, v, INT64_MIN, INT64_MAX, to);
    case NRD_PY_U64:
        return read_u64(f->name, v, to);
    case NRD_PY_F32:
        return read_float(f->name, v, &d) && (*(float *)to = (float)d, true);
    case NRD_PY_F64:
        return read_float(f->name, v, to);
    case NRD_PY_BOOL:
        truth = PyObject_IsTrue(v);
        *(bool *)to = truth > 0;
        return truth >= 0;
    case NRD_PY_STR:
        return read_text(f->name, v, to);
    case NRD_PY_DTYPE:
        return read_dtype(f->name, v, to);
    case NRD_PY_OTHER:
        break;
    }
    return true;
}

bool nrd_py_fill(PyObject *dict, const nrd_py_field *rows, size_t n, void *to)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;

    while (PyDict_Next(dict, &at, &key, &value)) {
        const char *name;
        size_t i = 0;
        if (!read_text("a name", key, &name)) {
            return false;
        }
        while (i < n && strcmp(rows[i].name, name) != 0) {
            i++;
        }
        if (i == n) {
            PyErr_Format(PyExc_TypeError, "'%s' is no known field", name);
            return false;
        }
        if (value != Py_None && !set(&rows[i], value, to)) {
            return false;
        }
    }
    return true;
}

bool nrd_py_bytes(PyObject *dict, const char *name, size_t item, const void **out, size_t *out_n)
{
    PyObject *v = PyDict_GetItemString(dict, name);
    char *data = NULL;
    Py_ssize_t n = 0;

    *out = NULL;
    *out_n = 0;
    if (!v || v == Py_None) {
        return true;
    }
    if (PyBytes_AsStringAndSize(v, &data, &n) != 0) {
        PyErr_Clear();
        return bad_type(name, "bytes", v);
    }
    if ((size_t)n % item != 0) {
        PyErr_Format(PyExc_ValueError, "%s has %zd bytes, which are no whole elements of %zu", name,
                     n, item);
        return false;
    }
    *out = data;
    *out_n = (size_t)n / item;
    return true;
}
