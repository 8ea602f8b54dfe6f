/* SPDX-License-Identifier: Apache-2.0
 * What messages to and from the server say: requests, responses and their tensors. */
#include "backends/python/stub/stub.h"

#include <string.h>

static PyObject *make_request;
static PyObject *name_outputs, *name_error, *name_parameters, *name_code, *name_message;

/* ---- writing ---- */

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
    int ok = PyObject_IsInstance(object, nrd_stub_tensor_type);
    if (ok <= 0) {
        if (ok == 0) {
            nrd_stub_fail("Output tensor for inference response should not be empty.");
        }
        return false;
    }
    const nrd_stub_tensor *t = (nrd_stub_tensor *)object;
    const char *name = PyUnicode_AsUTF8AndSize(t->name, &n);
    const uint8_t *data = t->data, *file = nrd_stub.map.base;
    if (!name) {
        return false;
    }
    if (may_borrow && t->bytes && data > file && data < file + nrd_stub.map.bytes) {
        nrd_py_message_tensor_at(m, name, (size_t)n, t->dtype, t->dims, t->n_dims, t->bytes,
                                 NRD_PY_DATA_BORROWED, (uint64_t)(data - file));
        *out_held = true;
    } else if (may_be_remote && nrd_stub.remote && t->bytes > NRD_PY_INLINE) {
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
    if (!PyObject_IsInstance(output, nrd_stub_tensor_type)) {
        return true; /* put_tensor says what is wrong */
    }
    return PySequence_Contains(names, ((nrd_stub_tensor *)output)->name) == 1;
}

static bool put_error(nrd_py_writer *w, PyObject *error)
{
    PyObject *code = PyObject_GetAttr(error, name_code);
    PyObject *text = PyObject_GetAttr(error, name_message);
    bool ok = code && text;
    if (ok) {
        nrd_py_put_u8(w, NRD_PY_RESPONSE_ERROR);
        nrd_py_put_u32(w, (uint32_t)PyLong_AsLong(code));
        ok = put_unicode(w, text) && !PyErr_Occurred();
    }
    Py_XDECREF(code);
    Py_XDECREF(text);
    return ok;
}

bool nrd_stub_put_response(nrd_py_message *m, PyObject *response, PyObject *names, bool *out_held)
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
    nrd_py_put_u8(&m->w, NRD_PY_RESPONSE_OK);
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

bool nrd_stub_put_infer(nrd_py_message *m, PyObject *q, bool decoupled)
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

bool nrd_stub_finish(nrd_py_message *m, uint64_t *offset, uint64_t *bytes)
{
    if (!nrd_py_message_finish(m, offset, bytes)) {
        nrd_stub_fail("Failed to allocate shared memory: the message and its tensors do not fit.");
        return false;
    }
    return true;
}

/* ---- reading ---- */

static PyObject *get_unicode(nrd_py_reader *r)
{
    size_t n;
    const char *s = nrd_py_get_str(r, &n);
    return PyUnicode_DecodeUTF8(s, (Py_ssize_t)n, "replace");
}

/* A tensor of a message. `block` owns the message. */
static PyObject *tensor_from_message(const nrd_py_tensor *w, PyObject *block)
{
    PyObject *name = PyUnicode_FromString(w->name);
    nrd_stub_tensor *t = name ? nrd_stub_tensor_alloc(name, w->dtype, w->n_dims) : NULL;
    uint64_t count = 0;

    Py_XDECREF(name);
    if (w->how == NRD_PY_DATA_BLOCK) {
        block = nrd_stub_block_new(w->where, false);
    } else {
        Py_XINCREF(block);
    }
    if (!t || !block) {
        Py_XDECREF((PyObject *)t);
        Py_XDECREF(block);
        return NULL;
    }
    memcpy(t->dims, w->dims, w->n_dims * sizeof *t->dims);
    t->data = nrd_stub.map.base + w->where;
    t->bytes = w->bytes;
    t->owner = block;
    if (w->dtype == 0 || w->dtype >= NRD_STUB_N_TYPES ||
        !nrd_stub_count_elements(t->dims, t->n_dims, &count) ||
        (nrd_stub_types[w->dtype].bytes && count * nrd_stub_types[w->dtype].bytes != w->bytes)) {
        Py_DECREF((PyObject *)t);
        PyErr_Format(nrd_stub_exception,
                     "Tensor '%s' has %llu bytes, which is not what its shape needs.", w->name,
                     (unsigned long long)w->bytes);
        return NULL;
    }
    return (PyObject *)t;
}

/* Always takes the item. */
static bool list_take(PyObject *list, PyObject *item)
{
    const bool ok = item && PyList_Append(list, item) == 0;
    Py_XDECREF(item);
    return ok;
}

static PyObject *get_tensors(nrd_py_reader *r, uint64_t data_at, PyObject *block)
{
    uint32_t n = nrd_py_get_u32(r);
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list && i < n; i++) {
        nrd_py_tensor w;
        PyObject *t = NULL;
        if (nrd_py_get_tensor(r, &nrd_stub.map, data_at, &w)) {
            t = tensor_from_message(&w, block);
        } else if (!PyErr_Occurred()) {
            nrd_stub_fail("Message of the server cannot be read.");
        }
        if (!list_take(list, t)) {
            Py_CLEAR(list);
        }
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
        if (!list_take(names, get_unicode(r))) {
            Py_CLEAR(names);
        }
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

PyObject *nrd_stub_get_requests(uint64_t offset, uint64_t bytes)
{
    nrd_py_reader r;
    uint64_t data_at;
    PyObject *block = nrd_stub_block_new(offset, false), *list = block ? PyList_New(0) : NULL;
    if (!list) {
        Py_XDECREF(block);
        return NULL;
    }
    nrd_py_reader_begin(&r, &data_at, &nrd_stub.map, offset, bytes);
    uint32_t n = nrd_py_get_u32(&r);
    for (uint32_t i = 0; list && i < n; i++) {
        if (!list_take(list, get_request(&r, data_at, block))) {
            Py_CLEAR(list);
        }
    }
    Py_DECREF(block);
    return list;
}

PyObject *nrd_stub_get_response(uint64_t offset, uint64_t bytes)
{
    nrd_py_reader r;
    uint64_t data_at;
    PyObject *block = nrd_stub_block_new(offset, false), *result = NULL;
    if (!block) {
        return NULL;
    }
    nrd_py_reader_begin(&r, &data_at, &nrd_stub.map, offset, bytes);
    int last = nrd_py_get_u8(&r);
    int kind = nrd_py_get_u8(&r);
    if (kind == NRD_PY_RESPONSE_ERROR) {
        unsigned long code = nrd_py_get_u32(&r);
        PyObject *text = get_unicode(&r);
        if (text) {
            result = Py_BuildValue("([]kNsi)", code, text, "", last);
        }
    } else if (kind == NRD_PY_RESPONSE_OK) {
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

void nrd_stub_bind_requests(PyObject *factory)
{
    Py_INCREF(factory);
    Py_XDECREF(make_request);
    make_request = factory;
}

bool nrd_stub_init_message(void)
{
    name_outputs = PyUnicode_InternFromString("_outputs");
    name_error = PyUnicode_InternFromString("_error");
    name_parameters = PyUnicode_InternFromString("_parameters");
    name_code = PyUnicode_InternFromString("_code");
    name_message = PyUnicode_InternFromString("_message");
    return name_outputs && name_error && name_parameters && name_code && name_message;
}
