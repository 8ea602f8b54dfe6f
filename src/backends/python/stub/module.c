/* c_python_backend_utils - the part of the stub process that is written in C.
 *
 * Purpose   Tensors over shared memory (NumPy views through __array_struct__, DLPack capsules), and
 *           the two ends of the channel to the server: commands in, calls out. Everything that a
 *           model sees besides Tensor is Python (triton_python_backend_utils.py).
 *
 *           Built against the stable ABI of Python 3.8, so one file serves every later version, and
 *           without NumPy's headers: an array is read and made through its array interface, whose
 *           layout is fixed.
 * Owner     Python's lock guards the objects; the channel has locks of its own, and no wait holds
 *           Python's lock.
 * Lifetime  An input array keeps its bytes: array -> view -> block, and the block goes back to the
 *           server when the last of them is gone.
 * Sources   numpy.org "The array interface protocol" version 3; dmlc/dlpack version 0 (DLManagedTensor).
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03080000
#include <Python.h>

#include "backends/python/ipc.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* Exported by every CPython since 3.3 and part of the stable ABI since 3.10. */
extern const char *PyUnicode_AsUTF8AndSize(PyObject *unicode, Py_ssize_t *size);

/* TRITONSERVER_DataType; the extension knows no Triton header. */
enum {
    TYPE_BOOL = 1,
    TYPE_UINT8,
    TYPE_UINT16,
    TYPE_UINT32,
    TYPE_UINT64,
    TYPE_INT8,
    TYPE_INT16,
    TYPE_INT32,
    TYPE_INT64,
    TYPE_FP16,
    TYPE_FP32,
    TYPE_FP64,
    TYPE_BYTES,
    TYPE_BF16,
};

typedef struct {
    char kind; /* array interface: 'b', 'u', 'i', 'f'; 0: no NumPy form */
    uint8_t bytes;
    uint8_t dl_code;
} type_info;

enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };

static const type_info types[] = {
    [TYPE_BOOL] = {'b', 1, DL_BOOL},   [TYPE_UINT8] = {'u', 1, DL_UINT},
    [TYPE_UINT16] = {'u', 2, DL_UINT}, [TYPE_UINT32] = {'u', 4, DL_UINT},
    [TYPE_UINT64] = {'u', 8, DL_UINT}, [TYPE_INT8] = {'i', 1, DL_INT},
    [TYPE_INT16] = {'i', 2, DL_INT},   [TYPE_INT32] = {'i', 4, DL_INT},
    [TYPE_INT64] = {'i', 8, DL_INT},   [TYPE_FP16] = {'f', 2, DL_FLOAT},
    [TYPE_FP32] = {'f', 4, DL_FLOAT},  [TYPE_FP64] = {'f', 8, DL_FLOAT},
    [TYPE_BYTES] = {0, 0, 0},          [TYPE_BF16] = {0, 2, DL_BFLOAT},
};
enum { N_TYPES = sizeof types / sizeof types[0] };

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

/* DLPack. */
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
typedef struct dl_managed {
    dl_tensor t;
    void *ctx;
    void (*deleter)(struct dl_managed *);
} dl_managed;
enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3 };

/* ---- the channel ---- */

static struct {
    bool connected;
    bool forked; /* a child of this process must not touch the channel */
    nrd_py_map map;
    nrd_py_heap *heap;
    nrd_py_returner to_server;
    uint32_t command_seen, aux_seen;
    bool remote; /* the server can read this process' memory */

    pthread_mutex_t mu;       /* guards the producing end of the ring and the free slots */
    pthread_cond_t slot_free;
    uint16_t free_slots[NRD_PY_SLOTS];
    size_t n_free;

    PyObject *held; /* what the last reply borrows from, until the server has read it */
    nrd_py_message execute_message; /* memory kept between replies */
} g = {.mu = PTHREAD_MUTEX_INITIALIZER, .slot_free = PTHREAD_COND_INITIALIZER};

static uint64_t probe_word = NRD_PY_PROBE;
static int watch_fd = -1;

static PyObject *model_exception; /* TritonModelException */
static PyObject *make_request;    /* Python callables, set by bind() */
static PyObject *numpy_asarray, *numpy_empty, *numpy_ndarray, *numpy_ascontiguous;
static PyObject *name_array_struct, *name_outputs, *name_error, *name_parameters, *name_code,
    *name_message;
static PyObject *tensor_type, *block_type, *view_type;

static PyObject *fail(const char *text)
{
    PyErr_SetString(model_exception, text);
    return NULL;
}

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
        atomic_fetch_add(&g.map.ctl->heartbeat, 1);
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

/* A child of the model ends by a signal as any process does: its pool would wait for it for ever. */
static void in_child(void)
{
    static const int signals[] = {SIGINT, SIGTERM};
    struct sigaction act;

    g.forked = true;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        if (sigaction(signals[i], NULL, &act) == 0 && act.sa_handler == do_nothing) {
            act.sa_handler = SIG_DFL;
            sigaction(signals[i], &act, NULL);
        }
    }
}

/* ---- blocks ---- */

typedef struct {
    PyObject_HEAD
    uint64_t offset;
    bool own; /* in the stub's half */
} Block;

static PyObject *block_new(uint64_t offset, bool own)
{
    Block *b = PyObject_New(Block, (PyTypeObject *)block_type);
    if (b) {
        b->offset = offset;
        b->own = own;
    } else if (own) {
        nrd_py_heap_release(g.heap, offset);
    } else {
        nrd_py_return(&g.to_server, offset);
    }
    return (PyObject *)b;
}

static void block_dealloc(PyObject *self)
{
    Block *b = (Block *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (!g.forked) {
        if (b->own) {
            nrd_py_heap_release(g.heap, b->offset);
        } else {
            nrd_py_return(&g.to_server, b->offset);
        }
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot block_slots[] = {{Py_tp_dealloc, block_dealloc}, {0, NULL}};
static PyType_Spec block_spec = {"c_python_backend_utils._Block", sizeof(Block), 0,
                                 Py_TPFLAGS_DEFAULT, block_slots};

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
    a->typekind = types[v->dtype].kind;
    a->itemsize = types[v->dtype].bytes;
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

/* ---- tensors ---- */

typedef struct {
    PyObject_HEAD
    PyObject *name;
    uint32_t dtype, n_dims;
    int64_t *dims;
    void *data;
    uint64_t bytes;
    PyObject *owner;   /* keeps `data` alive: block, array */
    PyObject *numpy;   /* the array, once somebody asked for it or gave it */
    dl_managed *dl;    /* the same for memory that came through DLPack */
} Tensor;

static Tensor *tensor_alloc(PyObject *name, uint32_t dtype, uint32_t n_dims)
{
    Tensor *t = PyObject_New(Tensor, (PyTypeObject *)tensor_type);
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
        return (Tensor *)PyErr_NoMemory();
    }
    return t;
}

static void tensor_dealloc(PyObject *self)
{
    Tensor *t = (Tensor *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(t->numpy);
    Py_XDECREF(t->owner);
    if (t->dl && t->dl->deleter) {
        t->dl->deleter(t->dl);
    }
    PyMem_Free(t->dims);
    Py_XDECREF(t->name);
    PyObject_Free(self);
    Py_DECREF(type);
}

static bool count_elements(const int64_t *dims, uint32_t n, uint64_t *out)
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

/* Array interface of a NumPy array; the capsule keeps the structure alive. */
static array_struct *array_of(PyObject *array, PyObject **out_capsule)
{
    PyObject *capsule = PyObject_GetAttr(array, name_array_struct);
    array_struct *a = capsule ? PyCapsule_GetPointer(capsule, NULL) : NULL;
    if (!a || a->two != 2) {
        Py_XDECREF(capsule);
        if (!PyErr_Occurred()) {
            fail("NumPy gave an array interface of an unknown version.");
        }
        return NULL;
    }
    *out_capsule = capsule;
    return a;
}

static uint32_t dtype_of(const array_struct *a)
{
    if (a->typekind == 'O' || a->typekind == 'S') {
        return TYPE_BYTES;
    }
    if (a->itemsize > 1 && !(a->flags & ARRAY_NOTSWAPPED)) {
        return 0;
    }
    for (uint32_t i = TYPE_BOOL; i < N_TYPES; i++) {
        if (types[i].kind && types[i].kind == a->typekind && types[i].bytes == a->itemsize) {
            return i;
        }
    }
    return 0;
}

/* ---- strings ---- */

/* Writes one element, or only counts with to == NULL. `item` is a new reference to its bytes. */
static PyObject *bytes_of(PyObject *o)
{
    if (PyBytes_Check(o)) {
        Py_INCREF(o);
        return o;
    }
    PyObject *s = PyObject_Str(o);
    PyObject *b = s ? PyUnicode_AsUTF8String(s) : NULL;
    Py_XDECREF(s);
    return b;
}

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
    *out_ref = bytes_of(o);
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
            fail("A string of 4 GiB or more does not fit into a BYTES tensor.");
            return false;
        }
        if (to) {
            uint32_t length = (uint32_t)n;
            if (room - total < 4 + (uint64_t)n) { /* str() gave something else this time */
                Py_XDECREF(ref);
                fail("An element changed while the tensor was made.");
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

static bool tensor_take_strings(Tensor *t, const array_struct *a)
{
    uint64_t count = 0, bytes = 0;
    if (!count_elements(t->dims, t->n_dims, &count) || !strings_put(a, count, NULL, 0, &bytes)) {
        return false;
    }
    t->bytes = bytes;
    if (bytes == 0) {
        return true;
    }
    uint64_t offset = g.connected && !g.forked ? nrd_py_heap_alloc(g.heap, bytes) : 0;
    if (offset) {
        t->owner = block_new(offset, true);
        t->data = g.map.base + offset;
    } else {
        t->owner = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)bytes);
        t->data = t->owner ? PyBytes_AsString(t->owner) : NULL;
    }
    return t->owner && strings_put(a, count, t->data, bytes, &bytes);
}

static PyObject *strings_to_numpy(const Tensor *t)
{
    uint64_t count = 0, expected = 0;
    const uint8_t *p = t->data, *end = p + t->bytes;

    for (const uint8_t *q = p; q < end; count++) {
        uint32_t n;
        if ((size_t)(end - q) < 4) {
            return fail("Invalid bytes tensor data: incomplete length field");
        }
        memcpy(&n, q, 4);
        q += 4;
        if (n > (size_t)(end - q)) {
            return fail("Invalid bytes tensor data: string extends beyond buffer");
        }
        q += n;
    }
    if (!count_elements(t->dims, t->n_dims, &expected) || expected != count) {
        PyErr_Format(PyExc_ValueError, "cannot reshape array of size %llu into its shape",
                     (unsigned long long)count);
        return NULL;
    }
    PyObject *shape = PyTuple_New((Py_ssize_t)t->n_dims);
    for (uint32_t i = 0; shape && i < t->n_dims; i++) {
        PyObject *d = PyLong_FromLongLong(t->dims[i]);
        if (!d) {
            Py_DECREF(shape);
            return NULL;
        }
        PyTuple_SetItem(shape, (Py_ssize_t)i, d);
    }
    PyObject *array =
        shape ? PyObject_CallFunction(numpy_empty, "Os", shape, "O") : NULL, *capsule = NULL;
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

/* ---- Tensor(name, array) ---- */

static bool check_name(PyObject *name)
{
    Py_ssize_t n = 0;
    if (!PyUnicode_AsUTF8AndSize(name, &n)) {
        return false;
    }
    if (n == 0) {
        fail("Tensor name cannot be an empty string.");
        return false;
    }
    return true;
}

static bool tensor_set_array(Tensor *t, const array_struct *a, uint32_t dtype, PyObject *array)
{
    uint64_t count = 0;
    t->dtype = dtype;
    t->n_dims = (uint32_t)a->nd;
    for (int i = 0; i < a->nd; i++) {
        t->dims[i] = a->shape[i];
    }
    if (dtype == TYPE_BYTES) {
        if (!tensor_take_strings(t, a)) {
            return false;
        }
    } else {
        if (!count_elements(t->dims, t->n_dims, &count)) {
            fail("The array is too large.");
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

static PyObject *tensor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keys[] = {"name", "numpy_array", NULL};
    PyObject *name, *array, *capsule = NULL;
    Tensor *t = NULL;

    (void)type;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UO:Tensor", keys, &name, &array)) {
        return NULL;
    }
    int is_array = PyObject_IsInstance(array, numpy_ndarray);
    if (is_array <= 0) {
        if (is_array == 0) {
            PyErr_Format(PyExc_TypeError,
                         "__init__(): incompatible constructor arguments. The following argument "
                         "types are supported:\n    1. c_python_backend_utils.Tensor(arg0: str, "
                         "arg1: numpy.ndarray)\n\nInvoked with: %R, %R",
                         name, array);
        }
        return NULL;
    }
    if (!check_name(name)) {
        return NULL;
    }
    Py_INCREF(array);
    array_struct *a = array_of(array, &capsule);
    uint32_t dtype = a ? dtype_of(a) : 0;
    if (a && !dtype) {
        fail("NumPy dtype is not supported.");
        goto done;
    }
    if (a && a->nd > NRD_PY_MAX_DIMS) {
        fail("The array has too many dimensions.");
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
        t = tensor_alloc(name, dtype, (uint32_t)a->nd);
        if (t && !tensor_set_array(t, a, dtype, array)) {
            Py_DECREF((PyObject *)t);
            t = NULL;
        }
    }
done:
    Py_XDECREF(capsule);
    Py_XDECREF(array);
    return (PyObject *)t;
}

/* A tensor of a message. `block` owns the message. */
static PyObject *tensor_from_message(const nrd_py_tensor *w, PyObject *block)
{
    PyObject *name = PyUnicode_FromString(w->name);
    Tensor *t = name ? tensor_alloc(name, w->dtype, w->n_dims) : NULL;
    uint64_t count = 0;

    Py_XDECREF(name);
    if (w->how == NRD_PY_DATA_BLOCK) {
        block = block_new(w->where, false);
    } else {
        Py_XINCREF(block);
    }
    if (!t || !block) {
        Py_XDECREF((PyObject *)t);
        Py_XDECREF(block);
        return NULL;
    }
    memcpy(t->dims, w->dims, w->n_dims * sizeof *t->dims);
    t->data = g.map.base + w->where;
    t->bytes = w->bytes;
    t->owner = block;
    if (w->dtype == 0 || w->dtype >= N_TYPES || !count_elements(t->dims, t->n_dims, &count) ||
        (types[w->dtype].bytes && count * types[w->dtype].bytes != w->bytes)) {
        Py_DECREF((PyObject *)t);
        PyErr_Format(model_exception, "Tensor '%s' has %llu bytes, which is not what its shape needs.",
                     w->name, (unsigned long long)w->bytes);
        return NULL;
    }
    return (PyObject *)t;
}

static PyObject *tensor_name(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    Py_INCREF(((Tensor *)self)->name);
    return ((Tensor *)self)->name;
}

static PyObject *tensor_dtype(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLong(((Tensor *)self)->dtype);
}

static bool is_cpu(const Tensor *t)
{
    return !t->dl || t->dl->t.device.device_type != DL_CUDA;
}

static PyObject *tensor_is_cpu(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(is_cpu((Tensor *)self));
}

static PyObject *tensor_shape(PyObject *self, PyObject *ignored)
{
    const Tensor *t = (Tensor *)self;
    PyObject *list = PyList_New((Py_ssize_t)t->n_dims);
    (void)ignored;
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

static PyObject *plain_to_numpy(Tensor *t, PyObject *owner)
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

static PyObject *tensor_as_numpy(PyObject *self, PyObject *ignored)
{
    Tensor *t = (Tensor *)self;
    (void)ignored;
    if (!is_cpu(t)) {
        return fail("Tensor is stored in GPU and cannot be converted to NumPy.");
    }
    if (t->dtype == TYPE_BF16) {
        return fail("Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and "
                    "from_dlpack() instead.");
    }
    if (!t->numpy) {
        /* Memory of a DLPack tensor goes when this object goes: the array then holds a new name for
         * it, which costs a cycle-free reference to the tensor itself. */
        PyObject *array = t->dtype == TYPE_BYTES ? strings_to_numpy(t)
                                                 : plain_to_numpy(t, t->owner ? t->owner : self);
        if (!array || !t->owner) {
            return array; /* not kept: the array refers to this tensor */
        }
        t->numpy = array;
    }
    Py_INCREF(t->numpy);
    return t->numpy;
}

/* ---- DLPack ---- */

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

static PyObject *tensor_to_dlpack(PyObject *self, PyObject *ignored)
{
    Tensor *t = (Tensor *)self;
    (void)ignored;
    if (t->dtype == TYPE_BYTES) {
        return fail("DLPack does not have support for string tensors.");
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
    m->t.device.device_type = t->dl ? t->dl->t.device.device_type : DL_CPU;
    m->t.device.device_id = t->dl ? t->dl->t.device.device_id : 0;
    m->t.ndim = (int32_t)t->n_dims;
    m->t.dtype.code = types[t->dtype].dl_code;
    m->t.dtype.bits = (uint8_t)(types[t->dtype].bytes * 8);
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
static PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    return tensor_to_dlpack(self, NULL);
}

static PyObject *tensor_dlpack_device(PyObject *self, PyObject *ignored)
{
    const Tensor *t = (Tensor *)self;
    (void)ignored;
    return Py_BuildValue("(ii)", t->dl ? (int)t->dl->t.device.device_type : DL_CPU,
                         t->dl ? (int)t->dl->t.device.device_id : 0);
}

static uint32_t dtype_of_dl(dl_type d)
{
    if (d.lanes != 1) {
        fail("DLPack tensors with more than one lane are not supported.");
        return 0;
    }
    if (d.code == DL_UINT && d.bits == 1) {
        return TYPE_BOOL; /* older producers */
    }
    for (uint32_t i = TYPE_BOOL; i < N_TYPES; i++) {
        if (types[i].bytes && types[i].dl_code == d.code && types[i].bytes * 8 == d.bits) {
            return i;
        }
    }
    PyErr_Format(model_exception, "DLPack data type with code %d and %d bits is not supported.",
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

static PyObject *from_capsule(PyObject *name, PyObject *capsule)
{
    dl_managed *m = PyCapsule_GetPointer(capsule, "dltensor");
    uint64_t count = 0;
    if (!m) {
        return NULL;
    }
    if (!dl_is_contiguous(&m->t)) {
        return fail("DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored "
                    "in C-Order are supported.");
    }
    if (m->t.device.device_type == DL_CUDA) {
        return fail("DLPack capsule passed pointer to memory allocated on GPU device, when GPU is "
                    "not available");
    }
    if (m->t.device.device_type != DL_CPU && m->t.device.device_type != DL_CUDA_HOST) {
        PyErr_Format(model_exception, "DLDevice type %d is not support by Python backend.",
                     (int)m->t.device.device_type);
        return NULL;
    }
    uint32_t dtype = dtype_of_dl(m->t.dtype);
    if (!dtype) {
        return NULL;
    }
    if (m->t.ndim < 0 || m->t.ndim > NRD_PY_MAX_DIMS ||
        !count_elements(m->t.shape, (uint32_t)m->t.ndim, &count)) {
        return fail("DLPack tensor has an impossible shape.");
    }
    Tensor *t = tensor_alloc(name, dtype, (uint32_t)m->t.ndim);
    if (!t) {
        return NULL;
    }
    memcpy(t->dims, m->t.shape, (size_t)m->t.ndim * sizeof *t->dims);
    t->data = (uint8_t *)m->t.data + m->t.byte_offset;
    t->bytes = count * types[dtype].bytes;
    if (PyCapsule_SetName(capsule, "used_dltensor") != 0) {
        Py_DECREF((PyObject *)t);
        return NULL;
    }
    t->dl = m;
    return (PyObject *)t;
}

static PyObject *tensor_from_dlpack(PyObject *self, PyObject *args)
{
    PyObject *name, *source;
    int type = 0, id = 0;

    (void)self;
    if (!PyArg_ParseTuple(args, "UO:from_dlpack", &name, &source) || !check_name(name)) {
        return NULL;
    }
    if (PyCapsule_IsValid(source, "dltensor")) {
        return from_capsule(name, source);
    }
    if (!PyObject_HasAttrString(source, "__dlpack__") ||
        !PyObject_HasAttrString(source, "__dlpack_device__")) {
        return fail("Provided tensor is not supported. Tensor must be a DLPack capsule         or "
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
    if (!ok) {
        return NULL;
    }
    if (type == DL_CUDA) {
        return fail("DLPack capsule passed pointer to memory allocated on GPU device, when GPU is "
                    "not available");
    }
    if (type != DL_CPU && type != DL_CUDA_HOST) {
        PyErr_Format(model_exception, "DLDevice type %d is not support by Python backend.", type);
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

static PyMethodDef tensor_methods[] = {
    {"name", tensor_name, METH_NOARGS, NULL},
    {"as_numpy", tensor_as_numpy, METH_NOARGS, NULL},
    {"triton_dtype", tensor_dtype, METH_NOARGS, NULL},
    {"shape", tensor_shape, METH_NOARGS, NULL},
    {"is_cpu", tensor_is_cpu, METH_NOARGS, NULL},
    {"to_dlpack", tensor_to_dlpack, METH_NOARGS, NULL},
    {"from_dlpack", tensor_from_dlpack, METH_VARARGS | METH_STATIC, NULL},
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot tensor_slots[] = {
    {Py_tp_new, tensor_new},
    {Py_tp_dealloc, tensor_dealloc},
    {Py_tp_methods, tensor_methods},
    {0, NULL},
};
static PyType_Spec tensor_spec = {"c_python_backend_utils.Tensor", sizeof(Tensor), 0,
                                  Py_TPFLAGS_DEFAULT, tensor_slots};

/* ---- writing messages ---- */

static bool put_unicode(nrd_py_writer *w, PyObject *s)
{
    Py_ssize_t n = 0;
    const char *text = PyUnicode_AsUTF8AndSize(s, &n);
    if (!text) {
        return false;
    }
    nrd_py_put_str(w, text, (size_t)n);
    return true;
}

/* `*out_held`: the server will read memory that the tensor owns. */
static bool put_tensor(nrd_py_message *m, PyObject *object, bool may_borrow, bool may_be_remote,
                       bool *out_held)
{
    Py_ssize_t n = 0;
    int ok = PyObject_IsInstance(object, tensor_type);
    if (ok <= 0) {
        if (ok == 0) {
            fail("Output tensor for inference response should not be empty.");
        }
        return false;
    }
    const Tensor *t = (Tensor *)object;
    const char *name = PyUnicode_AsUTF8AndSize(t->name, &n);
    const uint8_t *data = t->data, *file = g.map.base;
    if (!name) {
        return false;
    }
    if (may_borrow && t->bytes && data > file && data < file + g.map.bytes) {
        nrd_py_message_tensor_at(m, name, (size_t)n, t->dtype, t->dims, t->n_dims, t->bytes,
                                 NRD_PY_DATA_BORROWED, (uint64_t)(data - file));
        *out_held = true;
    } else if (may_be_remote && g.remote && t->bytes > NRD_PY_INLINE) {
        nrd_py_message_tensor_at(m, name, (size_t)n, t->dtype, t->dims, t->n_dims, t->bytes,
                                 NRD_PY_DATA_REMOTE, (uint64_t)(uintptr_t)data);
        *out_held = true;
    } else {
        nrd_py_message_tensor(m, name, (size_t)n, t->dtype, t->dims, t->n_dims, t->bytes);
        nrd_py_message_data(m, data, t->bytes);
    }
    return true;
}

/* Is this output one of the requested names (a list or tuple of str)? */
static bool is_wanted(PyObject *output, PyObject *names)
{
    if (!PyObject_IsInstance(output, tensor_type)) {
        return true; /* put_tensor says what is wrong */
    }
    return PySequence_Contains(names, ((Tensor *)output)->name) == 1;
}

enum { RESPONSE_NONE = 0, RESPONSE_OK = 1, RESPONSE_ERROR = 2 };

static bool put_error(nrd_py_writer *w, PyObject *error)
{
    PyObject *code = PyObject_GetAttr(error, name_code);
    PyObject *text = PyObject_GetAttr(error, name_message);
    bool ok = code && text;
    if (ok) {
        nrd_py_put_u8(w, RESPONSE_ERROR);
        nrd_py_put_u32(w, (uint32_t)PyLong_AsLong(code));
        ok = put_unicode(w, text) && !PyErr_Occurred();
    }
    Py_XDECREF(code);
    Py_XDECREF(text);
    return ok;
}

static bool put_response(nrd_py_message *m, PyObject *response, PyObject *names, bool *out_held)
{
    PyObject *error = PyObject_GetAttr(response, name_error);
    PyObject *outputs = NULL, *parameters = NULL;
    bool ok = false;

    if (!error) {
        return false;
    }
    if (error != Py_None) {
        ok = put_error(&m->w, error);
        goto done;
    }
    outputs = PyObject_GetAttr(response, name_outputs);
    parameters = outputs ? PyObject_GetAttr(response, name_parameters) : NULL;
    if (!parameters) {
        goto done;
    }
    nrd_py_put_u8(&m->w, RESPONSE_OK);
    ok = put_unicode(&m->w, parameters);
    uint32_t n = 0;
    Py_ssize_t all = PyList_Size(outputs);
    size_t at = m->w.len;
    nrd_py_put_u32(&m->w, 0);
    for (Py_ssize_t i = 0; ok && i < all; i++) {
        PyObject *t = PyList_GetItem(outputs, i); /* borrowed */
        if (is_wanted(t, names)) {
            ok = put_tensor(m, t, true, true, out_held);
            n++;
        }
    }
    if (ok && !m->w.failed) {
        memcpy(m->w.data + at, &n, sizeof n);
    }
done:
    Py_DECREF(error);
    Py_XDECREF(outputs);
    Py_XDECREF(parameters);
    return ok && !PyErr_Occurred();
}

static bool finish(nrd_py_message *m, uint64_t *offset, uint64_t *bytes)
{
    if (!nrd_py_message_finish(m, offset, bytes)) {
        fail("Failed to allocate shared memory: the message and its tensors do not fit.");
        return false;
    }
    return true;
}

/* ---- reading messages ---- */

static PyObject *get_unicode(nrd_py_reader *r)
{
    size_t n;
    const char *s = nrd_py_get_str(r, &n);
    return PyUnicode_DecodeUTF8(s, (Py_ssize_t)n, "replace");
}

static PyObject *get_tensors(nrd_py_reader *r, uint64_t data_at, PyObject *block)
{
    uint32_t n = nrd_py_get_u32(r);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < n; i++) {
        nrd_py_tensor w;
        PyObject *t = NULL;
        if (nrd_py_get_tensor(r, &g.map, data_at, &w)) {
            t = tensor_from_message(&w, block);
        } else if (!PyErr_Occurred()) {
            fail("Message of the server cannot be read.");
        }
        if (!t || PyList_Append(list, t) != 0) {
            Py_XDECREF(t);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(t);
    }
    return list;
}

/* One request of an execute command, made by the Python function given to bind(). */
static PyObject *get_request(nrd_py_reader *r, uint64_t data_at, PyObject *block)
{
    unsigned long long handle = nrd_py_get_u64(r);
    PyObject *id = get_unicode(r), *correlation, *parameters, *names, *context, *inputs = NULL;
    PyObject *request = NULL;
    if (nrd_py_get_u8(r)) {
        correlation = get_unicode(r);
    } else {
        correlation = PyLong_FromUnsignedLongLong(nrd_py_get_u64(r));
    }
    unsigned long flags = nrd_py_get_u32(r);
    unsigned long long timeout = nrd_py_get_u64(r);
    parameters = get_unicode(r);
    uint32_t n_names = nrd_py_get_u32(r);
    names = PyList_New(0);
    for (uint32_t i = 0; names && !r->bad && i < n_names; i++) {
        PyObject *s = get_unicode(r);
        if (!s || PyList_Append(names, s) != 0) {
            Py_XDECREF(s);
            Py_DECREF(names);
            names = NULL;
            break;
        }
        Py_DECREF(s);
    }
    unsigned long long trace = nrd_py_get_u64(r);
    context = get_unicode(r);
    if (id && correlation && parameters && names && context) {
        inputs = get_tensors(r, data_at, block);
    }
    if (inputs) {
        request = PyObject_CallFunction(make_request, "KOOkKOOKOO", handle, id, correlation, flags,
                                        timeout, parameters, names, trace, context, inputs);
    }
    Py_XDECREF(id);
    Py_XDECREF(correlation);
    Py_XDECREF(parameters);
    Py_XDECREF(names);
    Py_XDECREF(context);
    Py_XDECREF(inputs);
    return request;
}

static PyObject *get_requests(uint64_t offset, uint64_t bytes)
{
    nrd_py_reader r;
    uint64_t data_at;
    PyObject *block = block_new(offset, false), *list = block ? PyList_New(0) : NULL;
    if (!list) {
        Py_XDECREF(block);
        return NULL;
    }
    nrd_py_reader_begin(&r, &data_at, &g.map, offset, bytes);
    uint32_t n = nrd_py_get_u32(&r);
    for (uint32_t i = 0; i < n; i++) {
        PyObject *request = get_request(&r, data_at, block);
        if (!request || PyList_Append(list, request) != 0) {
            Py_XDECREF(request);
            Py_DECREF(list);
            Py_DECREF(block);
            return NULL;
        }
        Py_DECREF(request);
    }
    Py_DECREF(block);
    return list;
}

/* (outputs, code, message, parameters, last) of a response, or None: the stream has ended. */
static PyObject *get_response(uint64_t offset, uint64_t bytes)
{
    nrd_py_reader r;
    uint64_t data_at;
    PyObject *block = block_new(offset, false), *result = NULL;
    if (!block) {
        return NULL;
    }
    nrd_py_reader_begin(&r, &data_at, &g.map, offset, bytes);
    int last = nrd_py_get_u8(&r);
    int kind = nrd_py_get_u8(&r);
    if (kind == RESPONSE_ERROR) {
        unsigned long code = nrd_py_get_u32(&r);
        PyObject *text = get_unicode(&r);
        if (text) {
            result = Py_BuildValue("([]kNsi)", code, text, "", last);
        }
    } else if (kind == RESPONSE_OK) {
        PyObject *parameters = get_unicode(&r);
        PyObject *outputs = parameters ? get_tensors(&r, data_at, block) : NULL;
        if (outputs) {
            result = Py_BuildValue("(NiONi)", outputs, 0, Py_None, parameters, last);
        } else {
            Py_XDECREF(parameters);
        }
    } else {
        Py_INCREF(Py_None);
        result = Py_None;
    }
    Py_DECREF(block);
    return result;
}

/* ---- commands ---- */

static PyObject *command_text(uint64_t offset, uint64_t bytes)
{
    PyObject *text = NULL;
    if (nrd_py_map_has(&g.map, offset, bytes)) {
        text = PyUnicode_DecodeUTF8((const char *)g.map.base + offset, (Py_ssize_t)bytes, "replace");
    }
    if (offset) {
        nrd_py_return(&g.to_server, offset);
    }
    return text ? text : PyUnicode_FromString("");
}

/* wait() -> (type, payload): a list of requests for EXECUTE, else text. */
static PyObject *m_wait(PyObject *self, PyObject *ignored)
{
    nrd_py_channel *c = &g.map.ctl->command;
    bool got = false;

    (void)self, (void)ignored;
    while (!got) {
        /* What the last reply borrows is dropped as soon as the server has read it. */
        bool holds = g.held != NULL;
        Py_BEGIN_ALLOW_THREADS
        got = nrd_py_await(c, g.command_seen, holds ? 5 : -1);
        Py_END_ALLOW_THREADS
        if (holds && atomic_load(&g.map.ctl->reply_read) == atomic_load(&g.map.ctl->reply.seq)) {
            Py_CLEAR(g.held);
        }
    }
    g.command_seen++;
    uint32_t type = c->type;
    uint64_t offset = c->offset, bytes = c->bytes;
    PyObject *payload =
        type == NRD_PY_CMD_EXECUTE ? get_requests(offset, bytes) : command_text(offset, bytes);
    return payload ? Py_BuildValue("(kN)", (unsigned long)type, payload) : NULL;
}

static bool put_text(const char *s, Py_ssize_t n, uint64_t *out_offset)
{
    *out_offset = 0;
    if (n > 0) {
        *out_offset = nrd_py_heap_alloc(g.heap, (uint64_t)n);
        if (!*out_offset) {
            fail("Failed to allocate shared memory for a text.");
            return false;
        }
        memcpy(g.map.base + *out_offset, s, (size_t)n);
    }
    return true;
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
    if (!PyArg_ParseTuple(args, "kps#", &type, &failed, &s, &n) || !put_text(s, n, &offset)) {
        return NULL;
    }
    nrd_py_post(&g.map.ctl->reply, (uint32_t)type, (uint32_t)failed, offset, (uint64_t)n);
    Py_RETURN_NONE;
}

/* reply_execute(states, responses, names): per request (release flags, sender was taken), a
 * response or None, and the names of its requested outputs. */
static PyObject *m_reply_execute(PyObject *self, PyObject *args)
{
    PyObject *states, *responses, *names;
    nrd_py_message *m = &g.execute_message;
    uint64_t offset, bytes;
    bool held = false;

    (void)self;
    if (!PyArg_ParseTuple(args, "OOO", &states, &responses, &names)) {
        return NULL;
    }
    Py_ssize_t n = PyList_Size(states);
    if (n < 0 || PyList_Size(responses) != n || PyList_Size(names) != n) {
        return fail("reply_execute: lists of different lengths");
    }
    nrd_py_message_begin(m, g.heap, g.map.base);
    nrd_py_put_u32(&m->w, (uint32_t)n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *response = PyList_GetItem(responses, i);
        unsigned long state = PyLong_AsUnsignedLong(PyList_GetItem(states, i));
        nrd_py_put_u32(&m->w, (uint32_t)state);
        if (response == Py_None) {
            nrd_py_put_u8(&m->w, RESPONSE_NONE);
        } else if (!put_response(m, response, PyList_GetItem(names, i), &held)) {
            nrd_py_message_begin(m, g.heap, g.map.base); /* blocks in it are few and stay used */
            return NULL;
        }
    }
    if (!finish(m, &offset, &bytes)) {
        return NULL;
    }
    if (held) {
        Py_INCREF(responses);
        Py_XDECREF(g.held);
        g.held = responses;
    }
    nrd_py_post(&g.map.ctl->reply, NRD_PY_CMD_EXECUTE, 0, offset, bytes);
    Py_RETURN_NONE;
}

/* The second channel: readiness questions beside a running command. */
static PyObject *m_aux_wait(PyObject *self, PyObject *ignored)
{
    bool got = false;
    (void)self, (void)ignored;
    Py_BEGIN_ALLOW_THREADS
    while (!got) {
        got = nrd_py_await(&g.map.ctl->aux, g.aux_seen, -1);
    }
    Py_END_ALLOW_THREADS
    g.aux_seen++;
    Py_RETURN_NONE;
}

static PyObject *m_aux_reply(PyObject *self, PyObject *args)
{
    int failed;
    const char *s;
    Py_ssize_t n;
    uint64_t offset;
    (void)self;
    if (!PyArg_ParseTuple(args, "ps#", &failed, &s, &n) || !put_text(s, n, &offset)) {
        return NULL;
    }
    nrd_py_post(&g.map.ctl->aux_reply, NRD_PY_CMD_READY, (uint32_t)failed, offset, (uint64_t)n);
    Py_RETURN_NONE;
}

/* ---- calls ---- */

enum { NO_SLOT = UINT32_MAX };

static void push_entry(const nrd_py_entry *e)
{
    nrd_py_control *c = g.map.ctl;
    pthread_mutex_lock(&g.mu);
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
    pthread_mutex_unlock(&g.mu);
    if (atomic_load(&c->call_sleepers)) {
        nrd_py_wake(&c->call_tail, INT_MAX);
    }
}

static uint32_t slot_take(void)
{
    pthread_mutex_lock(&g.mu);
    while (g.n_free == 0) {
        pthread_cond_wait(&g.slot_free, &g.mu);
    }
    uint32_t slot = g.free_slots[--g.n_free];
    pthread_mutex_unlock(&g.mu);
    atomic_store(&g.map.ctl->slots[slot].done, 0);
    return slot;
}

static void slot_give(uint32_t slot)
{
    pthread_mutex_lock(&g.mu);
    g.free_slots[g.n_free++] = (uint16_t)slot;
    pthread_cond_signal(&g.slot_free);
    pthread_mutex_unlock(&g.mu);
}

typedef struct {
    uint32_t failed;
    uint64_t a, offset, bytes;
} answer;

/* Sends a call and waits for its answer, without Python's lock. */
static bool call(uint32_t type, uint64_t a, uint64_t b, uint64_t offset, uint64_t bytes, answer *out)
{
    bool ok = true;
    Py_BEGIN_ALLOW_THREADS
    uint32_t slot = slot_take();
    nrd_py_slot *s = &g.map.ctl->slots[slot];
    nrd_py_entry e = {.type = type, .slot = slot, .a = a, .b = b, .offset = offset, .bytes = bytes};
    push_entry(&e);
    while (!atomic_load(&s->done)) {
        if (atomic_load(&g.map.ctl->server_gone)) {
            ok = false;
            break;
        }
        nrd_py_sleep(&s->done, 0, 500);
    }
    if (ok) {
        *out = (answer){s->failed, s->a, s->offset, s->bytes};
        slot_give(slot);
    } /* else nobody will answer in this slot, and it is lost with the channel */
    Py_END_ALLOW_THREADS
    if (!ok) {
        fail("The server has closed the channel to this model.");
    }
    return ok;
}

static bool can_call(void)
{
    if (!g.connected || g.forked) {
        fail("This process is not a model instance of the server.");
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
    PyObject *text = command_text(a->offset, a->bytes);
    if (text) {
        PyErr_SetObject(model_exception, text);
        Py_DECREF(text);
    }
    return false;
}

/* call(type, a, b, body) -> a */
static PyObject *m_call(PyObject *self, PyObject *args)
{
    unsigned long type;
    unsigned long long a = 0, b = 0;
    const char *s = NULL;
    Py_ssize_t n = 0;
    uint64_t offset;
    answer out;

    (void)self;
    if (!PyArg_ParseTuple(args, "kKK|y#", &type, &a, &b, &s, &n) || !can_call() ||
        !put_text(s, n, &offset) || !call((uint32_t)type, a, b, offset, (uint64_t)n, &out) ||
        !check_answer(&out)) {
        return NULL;
    }
    if (out.offset) {
        nrd_py_return(&g.to_server, out.offset);
    }
    return PyLong_FromUnsignedLongLong(out.a);
}

/* post(type, a, b, body): nobody answers. */
static PyObject *m_post(PyObject *self, PyObject *args)
{
    unsigned long type;
    unsigned long long a = 0, b = 0;
    const char *s = NULL;
    Py_ssize_t n = 0;
    uint64_t offset;

    (void)self;
    if (!PyArg_ParseTuple(args, "kKK|y#", &type, &a, &b, &s, &n) || !can_call() ||
        !put_text(s, n, &offset)) {
        return NULL;
    }
    nrd_py_entry e = {.type = (uint32_t)type, .slot = NO_SLOT, .a = a, .b = b, .offset = offset,
                      .bytes = (uint64_t)n};
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
        nrd_py_message_begin(&m, g.heap, g.map.base);
        ok = put_response(&m, response, names, &held) && finish(&m, &offset, &bytes);
        nrd_py_message_fini(&m);
    }
    if (!ok || !call(NRD_PY_CALL_SEND, handle, flags, offset, bytes, &out) || !check_answer(&out)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static bool put_infer(nrd_py_message *m, PyObject *q, bool decoupled)
{
    const char *id, *model, *text, *parameters;
    PyObject *correlation, *outputs, *inputs;
    long long version, device;
    unsigned long flags;
    unsigned long long timeout, trace;
    int memory;
    bool held = false;

    if (!PyArg_ParseTuple(q, "sOsLkKsOOiLK", &id, &correlation, &model, &version, &flags, &timeout,
                          &parameters, &outputs, &inputs, &memory, &device, &trace)) {
        return false;
    }
    nrd_py_writer *w = &m->w;
    nrd_py_put_cstr(w, id);
    if (PyUnicode_Check(correlation)) {
        text = PyUnicode_AsUTF8AndSize(correlation, NULL);
        if (!text) {
            return false;
        }
        nrd_py_put_u8(w, 1);
        nrd_py_put_cstr(w, text);
    } else {
        unsigned long long v = PyLong_AsUnsignedLongLong(correlation);
        if (PyErr_Occurred()) {
            return false;
        }
        nrd_py_put_u8(w, 0);
        nrd_py_put_u64(w, v);
    }
    nrd_py_put_cstr(w, model);
    nrd_py_put_u64(w, (uint64_t)version);
    nrd_py_put_u32(w, (uint32_t)flags);
    nrd_py_put_u64(w, timeout);
    nrd_py_put_cstr(w, parameters);
    nrd_py_put_u32(w, (uint32_t)memory);
    nrd_py_put_u64(w, (uint64_t)device);
    nrd_py_put_u64(w, trace);
    Py_ssize_t n = PyList_Size(outputs);
    nrd_py_put_u32(w, (uint32_t)n);
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!put_unicode(w, PyList_GetItem(outputs, i))) {
            return false;
        }
    }
    n = PyList_Size(inputs);
    nrd_py_put_u32(w, (uint32_t)n);
    /* The bytes must stay where the server sees them while the other model runs; a decoupled one
     * may still run when this call is over. */
    bool ok = n >= 0;
    for (Py_ssize_t i = 0; ok && i < n; i++) {
        ok = put_tensor(m, PyList_GetItem(inputs, i), !decoupled, false, &held);
    }
    return ok && !PyErr_Occurred();
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
    nrd_py_message_begin(&m, g.heap, g.map.base);
    bool ok = put_infer(&m, q, decoupled) && finish(&m, &offset, &bytes);
    nrd_py_message_fini(&m);
    if (!ok || !call(NRD_PY_CALL_INFER, 0, (uint64_t)decoupled, offset, bytes, &out) ||
        !check_answer(&out)) {
        return NULL;
    }
    PyObject *response = get_response(out.offset, out.bytes);
    return response ? Py_BuildValue("(KN)", (unsigned long long)out.a, response) : NULL;
}

/* next(id) -> response */
static PyObject *m_next(PyObject *self, PyObject *args)
{
    unsigned long long id;
    answer out;
    (void)self;
    if (!PyArg_ParseTuple(args, "K", &id) || !can_call() ||
        !call(NRD_PY_CALL_NEXT, id, 0, 0, 0, &out) || !check_answer(&out)) {
        return NULL;
    }
    return get_response(out.offset, out.bytes);
}

/* ---- start ---- */

/* connect(memory fd, socket fd): maps the channel, starts the watcher. */
static PyObject *m_connect(PyObject *self, PyObject *args)
{
    int fd, sock;
    pthread_t thread;

    (void)self;
    if (!PyArg_ParseTuple(args, "ii", &fd, &sock)) {
        return NULL;
    }
    if (g.connected) {
        return fail("connect: already connected");
    }
    if (!nrd_py_map_open(&g.map, fd)) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    close(fd);
    nrd_py_control *c = g.map.ctl;
    g.heap = nrd_py_heap_new(g.map.base, c->stub_base, c->half_bytes, &c->to_stub);
    if (!g.heap) {
        return PyErr_NoMemory();
    }
    nrd_py_returner_init(&g.to_server, &c->to_server);
    for (size_t i = 0; i < NRD_PY_SLOTS; i++) {
        g.free_slots[g.n_free++] = (uint16_t)(NRD_PY_SLOTS - 1 - i);
    }
    c->probe = (uint64_t)(uintptr_t)&probe_word;
    pthread_atfork(NULL, NULL, in_child);
    /* A terminal's Ctrl-C reaches every process; this one ends when the server says so. */
    struct sigaction act = {.sa_handler = do_nothing, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    watch_fd = sock;
    g.connected = true;
    if (pthread_create(&thread, NULL, watch, NULL) != 0) {
        return fail("cannot start the watcher thread");
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
    g.remote = on;
    Py_RETURN_NONE;
}

/* bind(make_request, numpy) */
static PyObject *m_bind(PyObject *self, PyObject *args)
{
    PyObject *factory, *numpy;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO", &factory, &numpy)) {
        return NULL;
    }
    Py_INCREF(factory);
    Py_XDECREF(make_request);
    make_request = factory;
    numpy_asarray = PyObject_GetAttrString(numpy, "asarray");
    numpy_empty = PyObject_GetAttrString(numpy, "empty");
    numpy_ndarray = PyObject_GetAttrString(numpy, "ndarray");
    numpy_ascontiguous = PyObject_GetAttrString(numpy, "ascontiguousarray");
    if (!numpy_asarray || !numpy_empty || !numpy_ndarray || !numpy_ascontiguous) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *m_is_child(PyObject *self, PyObject *ignored)
{
    (void)self, (void)ignored;
    return PyBool_FromLong(g.forked || !g.connected);
}

/* Bytes of the stub's half that are in use; for tests and for watching leaks. */
static PyObject *m_used_memory(PyObject *self, PyObject *ignored)
{
    (void)self, (void)ignored;
    return PyLong_FromUnsignedLongLong(g.heap ? nrd_py_heap_used(g.heap) : 0);
}

static PyObject *m_free_memory(PyObject *self, PyObject *ignored)
{
    (void)self, (void)ignored;
    if (!g.heap) {
        return PyLong_FromLong(0);
    }
    return PyLong_FromUnsignedLongLong(g.map.ctl->half_bytes - nrd_py_heap_used(g.heap));
}

static PyMethodDef module_methods[] = {
    {"_connect", m_connect, METH_VARARGS, NULL},
    {"_bind", m_bind, METH_VARARGS, NULL},
    {"_set_remote", m_set_remote, METH_VARARGS, NULL},
    {"_wait", m_wait, METH_NOARGS, NULL},
    {"_reply", m_reply, METH_VARARGS, NULL},
    {"_reply_execute", m_reply_execute, METH_VARARGS, NULL},
    {"_aux_wait", m_aux_wait, METH_NOARGS, NULL},
    {"_aux_reply", m_aux_reply, METH_VARARGS, NULL},
    {"_call", m_call, METH_VARARGS, NULL},
    {"_post", m_post, METH_VARARGS, NULL},
    {"_send", m_send, METH_VARARGS, NULL},
    {"_infer", m_infer, METH_VARARGS, NULL},
    {"_next", m_next, METH_VARARGS, NULL},
    {"_is_child", m_is_child, METH_NOARGS, NULL},
    {"_used_memory", m_used_memory, METH_NOARGS, NULL},
    {"_free_memory", m_free_memory, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "c_python_backend_utils", NULL, -1,
                                        module_methods, NULL, NULL, NULL, NULL};

static bool add(PyObject *module, const char *name, PyObject *object)
{
    if (!object) {
        return false;
    }
    Py_INCREF(object); /* one for the module, one for this file */
    return PyModule_AddObject(module, name, object) == 0;
}

PyMODINIT_FUNC PyInit_c_python_backend_utils(void);

PyMODINIT_FUNC PyInit_c_python_backend_utils(void)
{
    PyObject *module = PyModule_Create(&module_def);
    if (!module) {
        return NULL;
    }
    model_exception =
        PyErr_NewException("c_python_backend_utils.TritonModelException", NULL, NULL);
    tensor_type = PyType_FromSpec(&tensor_spec);
    block_type = PyType_FromSpec(&block_spec);
    view_type = PyType_FromSpec(&view_spec);
    name_array_struct = PyUnicode_InternFromString("__array_struct__");
    name_outputs = PyUnicode_InternFromString("_outputs");
    name_error = PyUnicode_InternFromString("_error");
    name_parameters = PyUnicode_InternFromString("_parameters");
    name_code = PyUnicode_InternFromString("_code");
    name_message = PyUnicode_InternFromString("_message");
    if (!add(module, "TritonModelException", model_exception) ||
        !add(module, "Tensor", tensor_type) || !block_type || !view_type || !name_array_struct ||
        !name_outputs || !name_error || !name_parameters || !name_code || !name_message) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
