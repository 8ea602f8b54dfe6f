/* SPDX-License-Identifier: Apache-2.0
 * Tensor: a name, a shape and memory that something else owns. */
#include "backends/python/stub/stub.h"

PyObject *nrd_stub_tensor_type;

nrd_stub_tensor *nrd_stub_tensor_alloc(PyObject *name, uint32_t dtype, uint32_t n_dims)
{
    nrd_stub_tensor *t = PyObject_New(nrd_stub_tensor, (PyTypeObject *)nrd_stub_tensor_type);
    if (!t) {
        return NULL;
    }
    Py_INCREF(name);
    t->name = name;
    t->dtype = dtype;
    t->n_dims = n_dims;
    t->data = NULL;
    t->bytes = 0;
    t->owner = t->numpy = NULL;
    t->dl = NULL;
    t->dims = PyMem_Malloc((n_dims + 1) * sizeof *t->dims);
    if (!t->dims) {
        Py_DECREF((PyObject *)t);
        return (nrd_stub_tensor *)PyErr_NoMemory();
    }
    return t;
}

bool nrd_stub_count_elements(const int64_t *dims, uint32_t n, uint64_t *out)
{
    uint64_t count = 1;
    for (uint32_t i = 0; i < n; i++) {
        if (dims[i] < 0 || __builtin_mul_overflow(count, (uint64_t)dims[i], &count)) {
            return false;
        }
    }
    *out = count;
    return true;
}

bool nrd_stub_check_name(PyObject *name)
{
    Py_ssize_t n = 0;
    if (!PyUnicode_AsUTF8AndSize(name, &n)) {
        return false;
    }
    if (n == 0) {
        nrd_stub_fail("Tensor name cannot be an empty string.");
        return false;
    }
    return true;
}

PyObject *nrd_stub_tensor_dims(const nrd_stub_tensor *t)
{
    PyObject *list = PyList_New((Py_ssize_t)t->n_dims);
    for (uint32_t i = 0; list && i < t->n_dims; i++) {
        PyObject *d = PyLong_FromLongLong(t->dims[i]);
        if (!d) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SetItem(list, (Py_ssize_t)i, d);
    }
    return list;
}
