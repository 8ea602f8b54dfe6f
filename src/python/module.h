/* SPDX-License-Identifier: Apache-2.0
 * python/module.h - _nereid, the part of the module `nereid` that is written in C.
 *
 * Purpose   The executor API (nereid/executor.h), tokenizers and the way from a model's path to its engine,
 *           as Python sees them: dictionaries and bytes in, tuples out. What users touch is Python
 *           (src/python/nereid), which gives names, defaults and documentation.
 *           Built against the stable ABI of Python 3.8, so one file serves every later version.
 * Owner     Python's lock guards the objects and is held in every function here; nothing that waits, reads
 *           files or runs the engine holds it. Objects may be used from any number of threads.
 * Errors    NULL or false, and a Python exception is set. A PyObject * is a new reference.
 * Lifetime  close() of an Executor waits until no other thread is in it. In a child of fork() the engine's
 *           threads do not exist: there every method raises, and nothing is closed.
 */
#ifndef NRD_PYTHON_MODULE_H
#define NRD_PYTHON_MODULE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x03080000
#include <Python.h>

#include "base/error.h"
#include "nereid/executor.h"

#include <stdbool.h>

/* Exported by every CPython since 3.3 and part of the stable ABI since 3.10. */
extern const char *PyUnicode_AsUTF8AndSize(PyObject *unicode, Py_ssize_t *size);

/* ---- errors.c ---- */

/* Raises what the engine said and frees it; NULL. The exception has the members `code` (a number of
 * TRITONSERVER_Error_Code) and `reason` (a word or None). */
PyObject *nrd_py_raise(nrd_error *err);
/* (code, message, reason) of an error, which stays the caller's; None for NULL. */
PyObject *nrd_py_error_tuple(const nrd_error *err);
bool nrd_py_init_errors(PyObject *module);
/* error(code, message, reason) of the module: the exception that says this. */
PyObject *nrd_py_error(PyObject *module, PyObject *args);
/* A type made from a spec, added to the module. */
bool nrd_py_add_type(PyObject *module, const char *name, PyType_Spec *spec);

/* ---- fields.c: dictionaries into structures ---- */

typedef enum {
    NRD_PY_I32, /* also for enumerations */
    NRD_PY_I64,
    NRD_PY_U64,
    NRD_PY_F32,
    NRD_PY_F64,
    NRD_PY_BOOL,
    NRD_PY_STR,   /* const char *, borrowed from the text object */
    NRD_PY_DTYPE, /* nrd_dtype by its name */
    NRD_PY_OTHER, /* known, but not for this function */
} nrd_py_kind;

typedef struct nrd_py_field {
    const char *name;
    nrd_py_kind kind;
    size_t offset;
} nrd_py_field;

/* Writes the members of `dict` into a structure; None leaves its default. A name that no row has: TypeError. */
bool nrd_py_fill(PyObject *dict, const nrd_py_field *rows, size_t n, void *to);
/* The bytes under a name: *out NULL where there are none. `item`: bytes of an element, which their number must be
 * a multiple of. */
bool nrd_py_bytes(PyObject *dict, const char *name, size_t item, const void **out, size_t *out_n);

/* ---- config.c, request.c, response.c ---- */

/* Strings and lists are borrowed from the dictionary. */
bool nrd_py_config(PyObject *dict, nrd_exec_config *out);

/* What a request borrows besides bytes. */
typedef struct nrd_py_request {
    nrd_exec_request r;
    nrd_kv_retention_range *ranges;
    nrd_exec_image *images; /* and the frames of all videos behind them */
    nrd_exec_video *videos;
} nrd_py_request;
/* `info`: of the executor, for sizes that a request's arrays must have. After a failure nothing is to free. */
bool nrd_py_request_read(PyObject *dict, const nrd_exec_info *info, nrd_py_request *out);
void nrd_py_request_free(nrd_py_request *q);

/* ---- pictures.c ---- */

/* "images": [bytes], "videos": [(frames a second, [bytes])] */
bool nrd_py_pictures(PyObject *dict, nrd_py_request *q);

PyObject *nrd_py_response(const nrd_exec_response *r);
PyObject *nrd_py_iter_stats(const nrd_iter_stats *s);
PyObject *nrd_py_info(const nrd_exec_info *info);

/* ---- the types ---- */

PyObject *nrd_py_put_times(PyObject *module, PyObject *args);
bool nrd_py_init_executor(PyObject *module);
bool nrd_py_init_text(PyObject *module);
bool nrd_py_init_path(PyObject *module);

#endif
