/* SPDX-License-Identifier: Apache-2.0
 * backends/python/stub/stub.h - c_python_backend_utils, the part of the stub process written in C.
 *
 * Purpose   Tensors over shared memory (NumPy views through __array_struct__, DLPack capsules), and
 *           the two ends of the channel to the server: commands in, calls out. Everything that a
 *           model sees besides Tensor is Python (triton_python_backend_utils.py).
 *
 *           Built against the stable ABI of Python 3.8, so one file serves every later version, and
 *           without NumPy's headers: an array is read and made through its array interface, whose
 *           layout is fixed.
 * Owner     Python's lock guards the objects and is held in every function here; the channel has
 *           locks of its own, and no wait holds Python's lock.
 * Errors    false or NULL, and a Python exception is set. A PyObject * is a new reference.
 * Lifetime  An input array keeps its bytes: array -> view -> block, and the block goes back to the
 *           server when the last of them is gone.
 * Sources   numpy.org "The array interface protocol" version 3; dmlc/dlpack version 0
 * (DLManagedTensor).
 */
#ifndef NRD_BACKENDS_PYTHON_STUB_STUB_H
#define NRD_BACKENDS_PYTHON_STUB_STUB_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03080000
#include <Python.h>

#include "backends/python/ipc.h"
#include "triton/core/tritonserver.h"

/* Exported by every CPython since 3.3 and part of the stable ABI since 3.10. */
extern const char *PyUnicode_AsUTF8AndSize(PyObject *unicode, Py_ssize_t *size);

/* ---- error.c ---- */

extern PyObject *nrd_stub_exception;       /* TritonModelException */
PyObject *nrd_stub_fail(const char *text); /* raises it; NULL */

/* Each adds its file's types and functions to the module; module.c calls them. */
bool nrd_stub_init_array(void);
bool nrd_stub_init_calls(PyObject *module);
bool nrd_stub_init_channel(PyObject *module);
bool nrd_stub_init_commands(PyObject *module);
bool nrd_stub_init_error(PyObject *module);
bool nrd_stub_init_message(void);
bool nrd_stub_init_tensor(PyObject *module); /* tensor_type.c */

/* ---- channel.c ---- */

typedef struct nrd_stub_channel {
    bool connected;
    bool forked; /* a child of this process must not touch the channel */
    bool remote; /* the server can read this process' memory */
    nrd_py_map map;
    nrd_py_heap *heap;
    nrd_py_returner to_server;
} nrd_stub_channel;

extern nrd_stub_channel nrd_stub; /* set by connect and at a fork, else read alone */

/* Takes the block at `offset` always: it goes back to its owner, the stub's half (`own`) or the
 * server, with the object. */
PyObject *nrd_stub_block_new(uint64_t offset, bool own);
/* Copies a text into a block of the stub's half; *out_offset 0 for an empty one. */
bool nrd_stub_put_text(const char *s, Py_ssize_t n, uint64_t *out_offset);
/* The text of a block of the server, which goes back; "" when it cannot be read. */
PyObject *nrd_stub_take_text(uint64_t offset, uint64_t bytes);

/* ---- tensor.c ---- */

typedef struct nrd_stub_tensor {
    PyObject_HEAD
    PyObject *name;
    uint32_t dtype, n_dims; /* TRITONSERVER_DataType */
    int64_t *dims;
    void *data;
    uint64_t bytes;
    PyObject *owner;            /* keeps `data` alive: block, array */
    PyObject *numpy;            /* the array, once somebody asked for it or gave it */
    struct nrd_stub_dlpack *dl; /* the same for memory that came through DLPack */
} nrd_stub_tensor;

extern PyObject *nrd_stub_tensor_type;

/* A tensor without data; `dims` has room for n_dims and is the caller's to fill. */
nrd_stub_tensor *nrd_stub_tensor_alloc(PyObject *name, uint32_t dtype, uint32_t n_dims);
PyObject *nrd_stub_tensor_dims(const nrd_stub_tensor *t); /* a list */
bool nrd_stub_check_name(PyObject *name);                 /* of a tensor: text, not empty */
/* false, without an exception: more than fit into 64 bits, or a negative dimension. */
bool nrd_stub_count_elements(const int64_t *dims, uint32_t n, uint64_t *out);

/* ---- array.c ---- */

typedef struct nrd_stub_type {
    char kind;     /* array interface: 'b', 'u', 'i', 'f'; 0: no NumPy form */
    uint8_t bytes; /* 0: of no fixed size */
    uint8_t dl_code;
} nrd_stub_type;

enum { NRD_STUB_N_TYPES = TRITONSERVER_TYPE_BF16 + 1 };
enum { NRD_DL_INT = 0, NRD_DL_UINT = 1, NRD_DL_FLOAT = 2, NRD_DL_BFLOAT = 4, NRD_DL_BOOL = 6 };

extern const nrd_stub_type nrd_stub_types[NRD_STUB_N_TYPES]; /* by TRITONSERVER_DataType */

bool nrd_stub_bind_numpy(PyObject *numpy); /* the module */
int nrd_stub_is_array(PyObject *object);   /* -1: raised */
/* A tensor over the memory of an array, which it shares, or, for strings, of their bytes. */
PyObject *nrd_stub_array_to_tensor(PyObject *name, PyObject *array);
/* An array over the memory of a tensor, which shares `owner`, or, for strings, of bytes objects. */
PyObject *nrd_stub_tensor_to_array(const nrd_stub_tensor *t, PyObject *owner);

/* ---- dlpack.c ---- */

bool nrd_stub_is_cpu(const nrd_stub_tensor *t);
void nrd_stub_drop_dlpack(nrd_stub_tensor *t); /* tells who gave the memory */
/* Methods of Tensor. */
PyObject *nrd_stub_to_dlpack(PyObject *self, PyObject *ignored);
PyObject *nrd_stub_dlpack(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *nrd_stub_dlpack_device(PyObject *self, PyObject *ignored);
PyObject *nrd_stub_from_dlpack(PyObject *self, PyObject *args);

/* ---- message.c ---- */

void nrd_stub_bind_requests(PyObject *factory); /* the callable that makes InferenceRequests */
/* Those outputs of a response that are among `names`. *out_held: the server will read memory that
 * the tensors own, which must live until it has. */
bool nrd_stub_put_response(nrd_py_message *m, PyObject *response, PyObject *names, bool *out_held);
/* A request of the model to another one, as the tuple that _infer takes. */
bool nrd_stub_put_infer(nrd_py_message *m, PyObject *request, bool decoupled);
bool nrd_stub_finish(nrd_py_message *m, uint64_t *out_offset, uint64_t *out_bytes);
/* Requests of an execute command, as a list. Always takes the message. */
PyObject *nrd_stub_get_requests(uint64_t offset, uint64_t bytes);
/* (outputs, code, message, parameters, last) of a response, or None: the stream has ended. Takes
 * the message always. */
PyObject *nrd_stub_get_response(uint64_t offset, uint64_t bytes);

#endif
