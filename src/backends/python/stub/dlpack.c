/* SPDX-License-Identifier: Apache-2.0
 * DLPack: tensors from and for other frameworks, without a copy. */
#include "backends/python/stub/stub.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t device_type, device_id;
} dl_device;
typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_type;
typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_type dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} dl_tensor;
typedef struct nrd_stub_dlpack {
    dl_tensor t;
    void *ctx;
    void (*deleter)(struct nrd_stub_dlpack *);
} dl_managed;
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 };

static dl_device device_of(const nrd_stub_tensor *t)
{
    return t->dl ? t->dl->t.device : (dl_device){DL_CPU, 0};
}

bool nrd_stub_is_cpu(const nrd_stub_tensor *t)
{
    return device_of(t).device_type != DL_CUDA;
}

void nrd_stub_drop_dlpack(nrd_stub_tensor *t)
{
    if (t->dl && t->dl->deleter) {
        t->dl->deleter(t->dl);
    }
}

static void dl_release(dl_managed *m)
{
    PyGILState_STATE state = PyGILState_Ensure(); /* frameworks delete from any thread */
    Py_XDECREF((PyObject *)m->ctx);
    free(m);
    PyGILState_Release(state);
}

static void capsule_release(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) { /* nobody took it */
        dl_managed *m = PyCapsule_GetPointer(capsule, "dltensor");
        m->deleter(m);
    }
}

PyObject *nrd_stub_to_dlpack(PyObject *self, PyObject *ignored)
{
    nrd_stub_tensor *t = (nrd_stub_tensor *)self;
    (void)ignored;
    if (t->dtype == TRITONSERVER_TYPE_BYTES) {
        return nrd_stub_fail("DLPack does not have support for string tensors.");
    }
    dl_managed *m = calloc(1, sizeof *m + 2 * t->n_dims * sizeof(int64_t));
    if (!m) {
        return PyErr_NoMemory();
    }
    int64_t *shape = (int64_t *)(m + 1), *strides = shape + t->n_dims, stride = 1;
    for (uint32_t i = t->n_dims; i-- > 0;) {
        shape[i] = t->dims[i];
        strides[i] = stride;
        stride *= t->dims[i];
    }
    m->t.data = t->data;
    m->t.device = device_of(t);
    m->t.ndim = (int32_t)t->n_dims;
    m->t.dtype.code = nrd_stub_types[t->dtype].dl_code;
    m->t.dtype.bits = (uint8_t)(nrd_stub_types[t->dtype].bytes * 8);
    m->t.dtype.lanes = 1;
    m->t.shape = shape;
    m->t.strides = strides;
    m->ctx = self;
    m->deleter = dl_release;
    PyObject *capsule = PyCapsule_New(m, "dltensor", capsule_release);
    if (!capsule) {
        free(m);
        return NULL;
    }
    Py_INCREF(self);
    return capsule;
}

/* Newer callers ask with max_version, dl_device and copy; the old capsule answers them too. */
PyObject *nrd_stub_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    return nrd_stub_to_dlpack(self, NULL);
}

PyObject *nrd_stub_dlpack_device(PyObject *self, PyObject *ignored)
{
    const dl_device device = device_of((nrd_stub_tensor *)self);
    (void)ignored;
    return Py_BuildValue("(ii)", (int)device.device_type, (int)device.device_id);
}

static uint32_t dtype_of_dl(dl_type d)
{
    if (d.lanes != 1) {
        nrd_stub_fail("DLPack tensors with more than one lane are not supported.");
        return 0;
    }
    if (d.code == NRD_DL_UINT && d.bits == 1) {
        return TRITONSERVER_TYPE_BOOL; /* older producers */
    }
    for (uint32_t i = TRITONSERVER_TYPE_BOOL; i < NRD_STUB_N_TYPES; i++) {
        if (nrd_stub_types[i].bytes && nrd_stub_types[i].dl_code == d.code &&
            nrd_stub_types[i].bytes * 8 == d.bits) {
            return i;
        }
    }
    PyErr_Format(nrd_stub_exception, "DLPack data type with code %d and %d bits is not supported.",
                 (int)d.code, (int)d.bits);
    return 0;
}

static bool dl_is_contiguous(const dl_tensor *t)
{
    int64_t stride = 1;
    for (int32_t i = t->ndim; t->strides && i-- > 0;) {
        if (t->shape[i] == 0) {
            return true;
        }
        if (t->shape[i] != 1 && t->strides[i] != stride) {
            return false;
        }
        stride *= t->shape[i];
    }
    return true;
}

/* Is it memory that this process can read? */
static bool is_reachable(int device_type)
{
    if (device_type == DL_CUDA) {
        nrd_stub_fail(
            "DLPack capsule passed pointer to memory allocated on GPU device, when GPU is "
            "not available");
        return false;
    }
    if (device_type != DL_CPU && device_type != DL_CUDA_HOST) {
        PyErr_Format(nrd_stub_exception, "DLDevice type %d is not support by Python backend.",
                     device_type);
        return false;
    }
    return true;
}

static PyObject *from_capsule(PyObject *name, PyObject *capsule)
{
    dl_managed *m = PyCapsule_GetPointer(capsule, "dltensor");
    uint64_t count = 0;
    if (!m) {
        return NULL;
    }
    if (!dl_is_contiguous(&m->t)) {
        return nrd_stub_fail(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored "
            "in C-Order are supported.");
    }
    uint32_t dtype = is_reachable(m->t.device.device_type) ? dtype_of_dl(m->t.dtype) : 0;
    if (!dtype) {
        return NULL;
    }
    if (m->t.ndim < 0 || m->t.ndim > NRD_PY_MAX_DIMS ||
        !nrd_stub_count_elements(m->t.shape, (uint32_t)m->t.ndim, &count)) {
        return nrd_stub_fail("DLPack tensor has an impossible shape.");
    }
    nrd_stub_tensor *t = nrd_stub_tensor_alloc(name, dtype, (uint32_t)m->t.ndim);
    if (!t) {
        return NULL;
    }
    memcpy(t->dims, m->t.shape, (size_t)m->t.ndim * sizeof *t->dims);
    t->data = (uint8_t *)m->t.data + m->t.byte_offset;
    t->bytes = count * nrd_stub_types[dtype].bytes;
    if (PyCapsule_SetName(capsule, "used_dltensor") != 0) {
        Py_DECREF((PyObject *)t);
        return NULL;
    }
    t->dl = m;
    return (PyObject *)t;
}

PyObject *nrd_stub_from_dlpack(PyObject *self, PyObject *args)
{
    PyObject *name, *source;
    int type = 0, id = 0;

    (void)self;
    if (!PyArg_ParseTuple(args, "UO:from_dlpack", &name, &source) || !nrd_stub_check_name(name)) {
        return NULL;
    }
    if (PyCapsule_IsValid(source, "dltensor")) {
        return from_capsule(name, source);
    }
    if (!PyObject_HasAttrString(source, "__dlpack__") ||
        !PyObject_HasAttrString(source, "__dlpack_device__")) {
        return nrd_stub_fail(
            "Provided tensor is not supported. Tensor must be a DLPack capsule         or "
            "have `__dlpack__` and `__dlpack_device__` attributes");
    }
    PyObject *device = PyObject_CallMethod(source, "__dlpack_device__", NULL);
    if (!device) {
        return NULL;
    }
    PyObject *as_tuple = PySequence_Tuple(device);
    Py_DECREF(device);
    int ok = as_tuple && PyArg_ParseTuple(as_tuple, "ii", &type, &id);
    Py_XDECREF(as_tuple);
    if (!ok || !is_reachable(type)) {
        return NULL;
    }
    PyObject *method = PyObject_GetAttrString(source, "__dlpack__"), *none = PyTuple_New(0);
    PyObject *kw = Py_BuildValue("{s:O}", "stream", Py_None);
    PyObject *capsule = method && none && kw ? PyObject_Call(method, none, kw) : NULL;
    PyObject *t = capsule ? from_capsule(name, capsule) : NULL;
    Py_XDECREF(capsule);
    Py_XDECREF(kw);
    Py_XDECREF(none);
    Py_XDECREF(method);
    return t;
}
