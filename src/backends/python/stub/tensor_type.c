/* SPDX-License-Identifier: Apache-2.0
 * What Python sees of a tensor: the type, its methods, its end. */
#include "backends/python/stub/stub.h"

static void tensor_dealloc(PyObject *self)
{
    nrd_stub_tensor *t = (nrd_stub_tensor *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(t->numpy);
    Py_XDECREF(t->owner);
    nrd_stub_drop_dlpack(t);
    PyMem_Free(t->dims);
    Py_XDECREF(t->name);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyObject *tensor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keys[] = {"name", "numpy_array", NULL};
    PyObject *name, *array;

    (void)type;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UO:Tensor", keys, &name, &array)) {
        return NULL;
    }
    int is_array = nrd_stub_is_array(array);
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
    return nrd_stub_check_name(name) ? nrd_stub_array_to_tensor(name, array) : NULL;
}

static PyObject *tensor_name(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    Py_INCREF(((nrd_stub_tensor *)self)->name);
    return ((nrd_stub_tensor *)self)->name;
}

static PyObject *tensor_dtype(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLong(((nrd_stub_tensor *)self)->dtype);
}

static PyObject *tensor_is_cpu(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(nrd_stub_is_cpu((nrd_stub_tensor *)self));
}

static PyObject *tensor_shape(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    return nrd_stub_tensor_dims((nrd_stub_tensor *)self);
}

static PyObject *tensor_as_numpy(PyObject *self, PyObject *ignored)
{
    nrd_stub_tensor *t = (nrd_stub_tensor *)self;
    (void)ignored;
    if (!nrd_stub_is_cpu(t)) {
        return nrd_stub_fail("Tensor is stored in GPU and cannot be converted to NumPy.");
    }
    if (t->dtype == TRITONSERVER_TYPE_BF16) {
        return nrd_stub_fail(
            "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and "
            "from_dlpack() instead.");
    }
    if (!t->numpy) {
        /* Memory of a DLPack tensor goes when this object goes: the array then holds a new name for
         * it, which costs a cycle-free reference to the tensor itself. */
        PyObject *array = nrd_stub_tensor_to_array(t, t->owner ? t->owner : self);
        if (!array || !t->owner) {
            return array; /* not kept: the array refers to this tensor */
        }
        t->numpy = array;
    }
    Py_INCREF(t->numpy);
    return t->numpy;
}

static PyMethodDef tensor_methods[] = {
    {"name", tensor_name, METH_NOARGS, NULL},
    {"as_numpy", tensor_as_numpy, METH_NOARGS, NULL},
    {"triton_dtype", tensor_dtype, METH_NOARGS, NULL},
    {"shape", tensor_shape, METH_NOARGS, NULL},
    {"is_cpu", tensor_is_cpu, METH_NOARGS, NULL},
    {"to_dlpack", nrd_stub_to_dlpack, METH_NOARGS, NULL},
    {"from_dlpack", nrd_stub_from_dlpack, METH_VARARGS | METH_STATIC, NULL},
    {"__dlpack__", (PyCFunction)(void (*)(void))nrd_stub_dlpack, METH_VARARGS | METH_KEYWORDS,
     NULL},
    {"__dlpack_device__", nrd_stub_dlpack_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot tensor_slots[] = {
    {Py_tp_new, tensor_new},
    {Py_tp_dealloc, tensor_dealloc},
    {Py_tp_methods, tensor_methods},
    {0, NULL},
};
static PyType_Spec tensor_spec = {"c_python_backend_utils.Tensor", sizeof(nrd_stub_tensor), 0,
                                  Py_TPFLAGS_DEFAULT, tensor_slots};

bool nrd_stub_init_tensor(PyObject *module)
{
    nrd_stub_tensor_type = PyType_FromSpec(&tensor_spec);
    Py_XINCREF(nrd_stub_tensor_type); /* one for the module, one for this file */
    return nrd_stub_tensor_type && PyModule_AddObject(module, "Tensor", nrd_stub_tensor_type) == 0;
}
