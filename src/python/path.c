/* SPDX-License-Identifier: Apache-2.0
 * _nereid.ModelPath: the engine and the tokenizer of what a user named. */
#include "python/module.h"

#include "executor/model_path.h"

typedef struct model_path {
    PyObject_HEAD
    nrd_model_path m;
} model_path;

static int path_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    model_path *p = (model_path *)self;
    const char *path, *device;
    nrd_engine_asked asked = {0};
    nrd_model_path m;
    nrd_error *err;
    (void)kwargs;

    if (!PyArg_ParseTuple(args, "sziii", &path, &device, &asked.tp_size, &asked.pp_size, &asked.moe_ep_size)) {
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    err = nrd_model_path_open(&m, path, device, asked);
    Py_END_ALLOW_THREADS
    if (err) {
        nrd_py_raise(err);
        return -1;
    }
    nrd_model_path_close(&p->m); /* of an earlier __init__ */
    p->m = m;
    return 0;
}

static PyObject *path_close(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    nrd_model_path_close(&((model_path *)self)->m);
    Py_RETURN_NONE;
}

static PyObject *path_engine(PyObject *self, void *ignored)
{
    (void)ignored;
    return Py_BuildValue("z", ((model_path *)self)->m.engine);
}

static PyObject *path_tokenizer(PyObject *self, void *ignored)
{
    (void)ignored;
    return Py_BuildValue("z", ((model_path *)self)->m.tokenizer);
}

static void path_dealloc(PyObject *self)
{
    PyObject *type = (PyObject *)Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_free);
    nrd_model_path_close(&((model_path *)self)->m);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"close", path_close, METH_NOARGS, "Removes the engine's folder where it is a temporary one."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef members[] = {
    {"engine", path_engine, NULL, "The folder of the engine.", NULL},
    {"tokenizer", path_tokenizer, NULL, "Where a tokenizer should be.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "ModelPath(path, device, tp_size, pp_size, moe_ep_size)"},
    {Py_tp_init, path_init},
    {Py_tp_dealloc, path_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_getset, members},
    {0, NULL},
};

static PyType_Spec spec = {"_nereid.ModelPath", sizeof(model_path), 0, Py_TPFLAGS_DEFAULT, slots};

bool nrd_py_init_path(PyObject *module)
{
    return nrd_py_add_type(module, "ModelPath", &spec);
}
