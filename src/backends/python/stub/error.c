/* SPDX-License-Identifier: Apache-2.0
 * The exception that the module raises. */
#include "backends/python/stub/stub.h"

PyObject *nrd_stub_exception;

PyObject *nrd_stub_fail(const char *text)
{
    PyErr_SetString(nrd_stub_exception, text);
    return NULL;
}

bool nrd_stub_init_error(PyObject *module)
{
    nrd_stub_exception = PyErr_NewException("c_python_backend_utils.TritonModelException", NULL, NULL);
    Py_XINCREF(nrd_stub_exception); /* one for the module, one for this file */
    return nrd_stub_exception && PyModule_AddObject(module, "TritonModelException", nrd_stub_exception) == 0;
}
