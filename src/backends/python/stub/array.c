/* SPDX-License-Identifier: Apache-2.0
 * NumPy arrays: views of a tensor's memory, and tensors over an array's. */
#include "backends/python/stub/stub.h"

#include <stdlib.h>
#include <string.h>

const nrd_stub_type nrd_stub_types[NRD_STUB_N_TYPES] = {
    [TRITONSERVER_TYPE_BOOL] = {'b', 1, NRD_DL_BOOL},
    [TRITONSERVER_TYPE_UINT8] = {'u', 1, NRD_DL_UINT},
    [TRITONSERVER_TYPE_UINT16] = {'u', 2, NRD_DL_UINT},
    [TRITONSERVER_TYPE_UINT32] = {'u', 4, NRD_DL_UINT},
    [TRITONSERVER_TYPE_UINT64] = {'u', 8, NRD_DL_UINT},
    [TRITONSERVER_TYPE_INT8] = {'i', 1, NRD_DL_INT},
    [TRITONSERVER_TYPE_INT16] = {'i', 2, NRD_DL_INT},
    [TRITONSERVER_TYPE_INT32] = {'i', 4, NRD_DL_INT},
    [TRITONSERVER_TYPE_INT64] = {'i', 8, NRD_DL_INT},
    [TRITONSERVER_TYPE_FP16] = {'f', 2, NRD_DL_FLOAT},
    [TRITONSERVER_TYPE_FP32] = {'f', 4, NRD_DL_FLOAT},
    [TRITONSERVER_TYPE_FP64] = {'f', 8, NRD_DL_FLOAT},
    [TRITONSERVER_TYPE_BYTES] = {0, 0, 0},
    [TRITONSERVER_TYPE_BF16] = {0, 2, NRD_DL_BFLOAT},
};

/* The array interface as a C structure. */
typedef struct {
    int two, nd;
    char typekind;
    int itemsize, flags;
    Py_intptr_t *shape, *strides;
    void *data;
    PyObject *descr;
} array_struct;

enum {
    ARRAY_C_CONTIGUOUS = 0x1,
    ARRAY_ALIGNED = 0x100,
    ARRAY_NOTSWAPPED = 0x200,
    ARRAY_WRITEABLE = 0x400,
};

static PyObject *numpy_asarray, *numpy_empty, *numpy_ndarray, *numpy_ascontiguous;
static PyObject *name_array_struct;
static PyObject *view_type;

/* ---- views: what a NumPy array has as its base ---- */

typedef struct {
    PyObject_HEAD
    PyObject *owner;
    void *data;
    uint32_t dtype, n_dims;
    int64_t *dims;
} View;

static void view_dealloc(PyObject *self)
{
    View *v = (View *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(v->owner);
    PyMem_Free(v->dims);
    PyObject_Free(self);
    Py_DECREF(type);
}

static void array_struct_free(PyObject *capsule)
{
    free(PyCapsule_GetPointer(capsule, NULL));
}

static PyObject *view_array_struct(PyObject *self, void *closure)
{
    static uint64_t nothing; /* tensors without elements need an address too */
    View *v = (View *)self;
    size_t n = v->n_dims;
    array_struct *a = calloc(1, sizeof *a + 2 * n * sizeof(Py_intptr_t));
    Py_intptr_t stride;

    (void)closure;
    if (!a) {
        return PyErr_NoMemory();
    }
    a->two = 2;
    a->nd = (int)n;
    a->typekind = nrd_stub_types[v->dtype].kind;
    a->itemsize = nrd_stub_types[v->dtype].bytes;
    a->flags = ARRAY_C_CONTIGUOUS | ARRAY_ALIGNED | ARRAY_NOTSWAPPED | ARRAY_WRITEABLE;
    a->shape = (Py_intptr_t *)(a + 1);
    a->strides = a->shape + n;
    a->data = v->data ? v->data : &nothing;
    stride = a->itemsize;
    for (size_t i = n; i-- > 0;) {
        a->shape[i] = (Py_intptr_t)v->dims[i];
        a->strides[i] = stride;
        stride *= (Py_intptr_t)v->dims[i];
    }
    PyObject *capsule = PyCapsule_New(a, NULL, array_struct_free);
    if (!capsule) {
        free(a);
    }
    return capsule;
}

static PyGetSetDef view_getset[] = {
    {"__array_struct__", view_array_struct, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot view_slots[] = {
    {Py_tp_dealloc, view_dealloc}, {Py_tp_getset, view_getset}, {0, NULL}};
static PyType_Spec view_spec = {"c_python_backend_utils._View", sizeof(View), 0, Py_TPFLAGS_DEFAULT,
                                view_slots};

static PyObject *plain_to_numpy(const nrd_stub_tensor *t, PyObject *owner)
{
    View *v = PyObject_New(View, (PyTypeObject *)view_type);
    if (!v) {
        return NULL;
    }
    Py_INCREF(owner);
    v->owner = owner;
    v->data = t->data;
    v->dtype = t->dtype;
    v->n_dims = t->n_dims;
    v->dims = PyMem_Malloc((t->n_dims + 1) * sizeof *v->dims);
    if (!v->dims) {
        Py_DECREF((PyObject *)v);
        return PyErr_NoMemory();
    }
    memcpy(v->dims, t->dims, t->n_dims * sizeof *v->dims);
    PyObject *array = PyObject_CallFunctionObjArgs(numpy_asarray, (PyObject *)v, NULL);
    Py_DECREF((PyObject *)v);
    return array;
}

/* Array interface of a NumPy array; the capsule keeps the structure alive. */
static array_struct *array_of(PyObject *array, PyObject **out_capsule)
{
    PyObject *capsule = PyObject_GetAttr(array, name_array_struct);
    array_struct *a = capsule ? PyCapsule_GetPointer(capsule, NULL) : NULL;
    if (!a || a->two != 2) {
        Py_XDECREF(capsule);
        if (!PyErr_Occurred()) {
            nrd_stub_fail("NumPy gave an array interface of an unknown version.");
        }
        return NULL;
    }
    *out_capsule = capsule;
    return a;
}

static uint32_t dtype_of(const array_struct *a)
{
    if (a->typekind == 'O' || a->typekind == 'S') {
        return TRITONSERVER_TYPE_BYTES;
    }
    if (a->itemsize > 1 && !(a->flags & ARRAY_NOTSWAPPED)) {
        return 0;
    }
    for (uint32_t i = TRITONSERVER_TYPE_BOOL; i < NRD_STUB_N_TYPES; i++) {
        if (nrd_stub_types[i].kind && nrd_stub_types[i].kind == a->typekind &&
            nrd_stub_types[i].bytes == a->itemsize) {
            return i;
        }
    }
    return 0;
}

/* ---- strings ---- */

/* Bytes of one element; *out_ref: what they belong to, where they are made for this. */
static bool bytes_part(PyObject *o, const char **out, Py_ssize_t *out_n, PyObject **out_ref)
{
    *out_ref = NULL;
    if (PyBytes_Check(o)) {
        return PyBytes_AsStringAndSize(o, (char **)(uintptr_t)out, out_n) == 0;
    }
    if (PyUnicode_Check(o)) {
        *out = PyUnicode_AsUTF8AndSize(o, out_n);
        return *out != NULL;
    }
    PyObject *text = PyObject_Str(o);
    *out_ref = text ? PyUnicode_AsUTF8String(text) : NULL;
    Py_XDECREF(text);
    return *out_ref && PyBytes_AsStringAndSize(*out_ref, (char **)(uintptr_t)out, out_n) == 0;
}

/* Length-prefixed form of a contiguous array of objects or of fixed-length bytes, at `to`; with
 * to == NULL it counts. */
static bool strings_put(const array_struct *a, uint64_t count, uint8_t *to, uint64_t room,
                        uint64_t *out_bytes)
{
    uint64_t total = 0;
    for (uint64_t i = 0; i < count; i++) {
        const char *s = NULL;
        Py_ssize_t n = 0;
        PyObject *ref = NULL;
        if (a->typekind == 'O') {
            PyObject *o = ((PyObject **)a->data)[i];
            if (!bytes_part(o ? o : Py_None, &s, &n, &ref)) {
                Py_XDECREF(ref);
                return false;
            }
        } else {
            s = (const char *)a->data + i * (uint64_t)a->itemsize;
            n = a->itemsize;
            while (n > 0 && s[n - 1] == '\0') { /* NumPy pads with zeros */
                n--;
            }
        }
        if ((uint64_t)n > UINT32_MAX) {
            Py_XDECREF(ref);
            nrd_stub_fail("A string of 4 GiB or more does not fit into a BYTES tensor.");
            return false;
        }
        if (to) {
            uint32_t length = (uint32_t)n;
            if (room - total < 4 + (uint64_t)n) { /* str() gave something else this time */
                Py_XDECREF(ref);
                nrd_stub_fail("An element changed while the tensor was made.");
                return false;
            }
            memcpy(to + total, &length, 4);
            memcpy(to + total + 4, s, (size_t)n);
        }
        total += 4 + (uint64_t)n;
        Py_XDECREF(ref);
    }
    *out_bytes = total;
    return true;
}

static bool tensor_take_strings(nrd_stub_tensor *t, const array_struct *a)
{
    uint64_t count = 0, bytes = 0;
    if (!nrd_stub_count_elements(t->dims, t->n_dims, &count) ||
        !strings_put(a, count, NULL, 0, &bytes)) {
        return false;
    }
    t->bytes = bytes;
    if (bytes == 0) {
        return true;
    }
    uint64_t offset =
        nrd_stub.connected && !nrd_stub.forked ? nrd_py_heap_alloc(nrd_stub.heap, bytes) : 0;
    if (offset) {
        t->owner = nrd_stub_block_new(offset, true);
        t->data = nrd_stub.map.base + offset;
    } else {
        t->owner = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
        t->data = t->owner ? PyBytes_AsString(t->owner) : NULL;
    }
    return t->owner && strings_put(a, count, t->data, bytes, &bytes);
}

static PyObject *strings_to_numpy(const nrd_stub_tensor *t)
{
    uint64_t count = 0, expected = 0;
    const uint8_t *p = t->data, *end = p + t->bytes;

    for (const uint8_t *q = p; q < end; count++) {
        uint32_t n;
        if ((size_t)(end - q) < 4) {
            return nrd_stub_fail("Invalid bytes tensor data: incomplete length field");
        }
        memcpy(&n, q, 4);
        q += 4;
        if (n > (size_t)(end - q)) {
            return nrd_stub_fail("Invalid bytes tensor data: string extends beyond buffer");
        }
        q += n;
    }
    if (!nrd_stub_count_elements(t->dims, t->n_dims, &expected) || expected != count) {
        PyErr_Format(PyExc_ValueError, "cannot reshape array of size %llu into its shape",
                     (unsigned long long)count);
        return NULL;
    }
    PyObject *shape = nrd_stub_tensor_dims(t);
    PyObject *array = shape ? PyObject_CallFunction(numpy_empty, "Os", shape, "O") : NULL;
    PyObject *capsule = NULL;
    array_struct *a = array ? array_of(array, &capsule) : NULL;
    Py_XDECREF(shape);
    if (!a) {
        Py_XDECREF(array);
        return NULL;
    }
    PyObject **items = a->data;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t n;
        memcpy(&n, p, 4);
        PyObject *o = PyBytes_FromStringAndSize((const char *)p + 4, (Py_ssize_t)n);
        if (!o) {
            Py_DECREF(capsule);
            Py_DECREF(array);
            return NULL;
        }
        Py_XDECREF(items[i]);
        items[i] = o;
        p += 4 + (uint64_t)n;
    }
    Py_DECREF(capsule);
    return array;
}

/* ---- between arrays and tensors ---- */

PyObject *nrd_stub_tensor_to_array(const nrd_stub_tensor *t, PyObject *owner)
{
    return t->dtype == TRITONSERVER_TYPE_BYTES ? strings_to_numpy(t) : plain_to_numpy(t, owner);
}

static bool tensor_set_array(nrd_stub_tensor *t, const array_struct *a, PyObject *array)
{
    uint64_t count = 0;
    for (int i = 0; i < a->nd; i++) {
        t->dims[i] = a->shape[i];
    }
    if (t->dtype == TRITONSERVER_TYPE_BYTES) {
        if (!tensor_take_strings(t, a)) {
            return false;
        }
    } else {
        if (!nrd_stub_count_elements(t->dims, t->n_dims, &count)) {
            nrd_stub_fail("The array is too large.");
            return false;
        }
        t->data = a->data;
        t->bytes = count * (uint64_t)a->itemsize;
        Py_INCREF(array);
        t->owner = array;
    }
    Py_INCREF(array);
    t->numpy = array;
    return true;
}

PyObject *nrd_stub_array_to_tensor(PyObject *name, PyObject *array)
{
    PyObject *capsule = NULL;
    nrd_stub_tensor *t = NULL;

    Py_INCREF(array);
    array_struct *a = array_of(array, &capsule);
    uint32_t dtype = a ? dtype_of(a) : 0;
    if (a && !dtype) {
        nrd_stub_fail("NumPy dtype is not supported.");
        goto done;
    }
    if (a && a->nd > NRD_PY_MAX_DIMS) {
        nrd_stub_fail("The array has too many dimensions.");
        goto done;
    }
    if (a && !(a->flags & ARRAY_C_CONTIGUOUS)) {
        PyObject *copy = PyObject_CallFunctionObjArgs(numpy_ascontiguous, array, NULL);
        Py_DECREF(capsule);
        capsule = NULL;
        Py_DECREF(array);
        array = copy;
        a = array ? array_of(array, &capsule) : NULL;
    }
    if (a) {
        t = nrd_stub_tensor_alloc(name, dtype, (uint32_t)a->nd);
        if (t && !tensor_set_array(t, a, array)) {
            Py_DECREF((PyObject *)t);
            t = NULL;
        }
    }
done:
    Py_XDECREF(capsule);
    Py_XDECREF(array);
    return (PyObject *)t;
}

int nrd_stub_is_array(PyObject *object)
{
    return PyObject_IsInstance(object, numpy_ndarray);
}

bool nrd_stub_bind_numpy(PyObject *numpy)
{
    numpy_asarray = PyObject_GetAttrString(numpy, "asarray");
    numpy_empty = PyObject_GetAttrString(numpy, "empty");
    numpy_ndarray = PyObject_GetAttrString(numpy, "ndarray");
    numpy_ascontiguous = PyObject_GetAttrString(numpy, "ascontiguousarray");
    return numpy_asarray && numpy_empty && numpy_ndarray && numpy_ascontiguous;
}

bool nrd_stub_init_array(void)
{
    view_type = PyType_FromSpec(&view_spec);
    name_array_struct = PyUnicode_InternFromString("__array_struct__");
    return view_type && name_array_struct;
}
