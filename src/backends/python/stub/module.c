/* SPDX-License-Identifier: Apache-2.0
 * The module and its start. */
#include "backends/python/stub/stub.h"

/* bind(make_request, numpy) */
static PyObject *m_bind(PyObject *self, PyObject *args)
{
    PyObject *factory, *numpy;
    (void)self;
    if (!PyArg_ParseTuple(args, "OO", &factory, &numpy)) {
        return NULL;
    }
    nrd_stub_bind_requests(factory);
    if (!nrd_stub_bind_numpy(numpy)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"_bind", m_bind, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_def = {.m_base = PyModuleDef_HEAD_INIT,
                                        .m_name = "c_python_backend_utils",
                                        .m_size = -1,
                                        .m_methods = module_methods};

PyMODINIT_FUNC PyInit_c_python_backend_utils(void);

PyMODINIT_FUNC PyInit_c_python_backend_utils(void)
{
    PyObject *module = PyModule_Create(&module_def);
    if (!module) {
        return NULL;
    }
    if (!nrd_stub_init_error(module) || !nrd_stub_init_channel(module) || !nrd_stub_init_array() || !nrd_stub_init_tensor(module) ||
        !nrd_stub_init_message() || !nrd_stub_init_commands(module) || !nrd_stub_init_calls(module)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
