/* SPDX-License-Identifier: Apache-2.0
 * _nereid.Tokenizer and _nereid.Detokenizer. */
#include "python/module.h"

#include "base/json.h"
#include "text/video_times.h"
#include "text/sampling.h"
#include "text/shared.h"

enum { MAX_TEXT_BYTES = 1 << 30 };

typedef struct tokenizer {
    PyObject_HEAD
    nrd_text *text;
    const nrd_tokenizer *t; /* borrows from text */
} tokenizer;

typedef struct detokenizer {
    PyObject_HEAD
    PyObject *owner; /* the tokenizer, which it borrows from */
    nrd_detok *d;
} detokenizer;

static int tokenizer_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    tokenizer *k = (tokenizer *)self;
    const char *path;
    nrd_text *text = NULL;
    nrd_error *err;
    (void)kwargs;

    if (!PyArg_ParseTuple(args, "s", &path)) {
        return -1;
    }
    if (k->text) { /* others may be reading it */
        PyErr_SetString(PyExc_ValueError, "the tokenizer is open");
        return -1;
    }
    Py_BEGIN_ALLOW_THREADS
    err = nrd_text_open(&text, path);
    Py_END_ALLOW_THREADS
    if (err) {
        nrd_py_raise(err);
        return -1;
    }
    k->text = text;
    k->t = nrd_text_tokenizer(text);
    return 0;
}

static bool is_open(const tokenizer *k)
{
    if (!k->t) {
        PyErr_SetString(PyExc_ValueError, "the tokenizer was not opened");
    }
    return k->t != NULL;
}

/* encode(text, add_special, parse_special): ids as bytes of 32-bit integers */
static PyObject *tokenizer_encode(PyObject *self, PyObject *args)
{
    tokenizer *k = (tokenizer *)self;
    const char *s;
    Py_ssize_t n;
    int add, parse;
    nrd_ids ids = {0};
    nrd_error *err;

    if (!PyArg_ParseTuple(args, "s#pp", &s, &n, &add, &parse) || !is_open(k)) {
        return NULL;
    }
    const uint32_t flags =
        (add ? NRD_ENCODE_ADD_SPECIAL : 0u) | (parse ? NRD_ENCODE_PARSE_SPECIAL : 0u);
    Py_BEGIN_ALLOW_THREADS
    err = nrd_tokenizer_encode(k->t, s, (size_t)n, flags, &ids);
    err = err ? err : nrd_ids_error(&ids);
    Py_END_ALLOW_THREADS
    PyObject *out = err ? nrd_py_raise(err)
                        : PyBytes_FromStringAndSize((const char *)ids.ids,
                                                    (Py_ssize_t)(ids.n * sizeof *ids.ids));
    nrd_ids_fini(&ids);
    return out;
}

/* The text, which is freed. */
static PyObject *take_text(nrd_str *s)
{
    nrd_error *err = nrd_str_error(s);
    PyObject *out = err ? nrd_py_raise(err)
                        : PyUnicode_DecodeUTF8(nrd_str_cstr(s), (Py_ssize_t)s->len, "replace");
    nrd_str_fini(s);
    return out;
}

/* Both take (ids as bytes of 32-bit integers, …). */
static bool get_ids(const char *data, Py_ssize_t n)
{
    (void)data;
    if (n % (Py_ssize_t)sizeof(int32_t) != 0) {
        PyErr_SetString(PyExc_ValueError, "ids must be whole 32-bit integers");
        return false;
    }
    return true;
}

static PyObject *tokenizer_decode(PyObject *self, PyObject *args)
{
    tokenizer *k = (tokenizer *)self;
    const char *data;
    Py_ssize_t n;
    int skip;
    nrd_str s = {0};

    if (!PyArg_ParseTuple(args, "y#p", &data, &n, &skip) || !is_open(k) || !get_ids(data, n)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    nrd_tokenizer_decode(k->t, (const int32_t *)(const void *)data, (size_t)n / sizeof(int32_t),
                         skip ? NRD_DECODE_SKIP_SPECIAL : 0u, &s);
    Py_END_ALLOW_THREADS
    return take_text(&s);
}

/* put_times(chat, [(frames, a second)], frames of a group): the chat with a place for each group (text/video_times.h) */
PyObject *nrd_py_put_times(PyObject *module, PyObject *args)
{
    const char *text;
    Py_ssize_t n, n_videos;
    PyObject *list;
    long long group;
    nrd_str s = {0};
    (void)module;

    if (!PyArg_ParseTuple(args, "s#OL", &text, &n, &list, &group)) {
        return NULL;
    }
    n_videos = PyList_Check(list) ? PyList_Size(list) : -1;
    nrd_video_time *times = n_videos >= 0 ? PyMem_Malloc((size_t)(n_videos + 1) * sizeof *times) : NULL;
    if (!times || group < 1) {
        PyMem_Free(times);
        PyErr_SetString(PyExc_ValueError, "put_times: expected a list of videos and groups of at least 1 frame");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n_videos; i++) {
        PyObject *pair = PyList_GetItem(list, i);
        long long n_frames = 0;
        if (!pair || !PyArg_ParseTuple(pair, "Ld", &n_frames, &times[i].fps)) {
            PyMem_Free(times);
            return NULL;
        }
        times[i].n_frames = n_frames;
    }
    nrd_str_append(&s, text, (size_t)n);
    nrd_error *err = nrd_video_put_times(&s, times, (size_t)n_videos, group);
    PyMem_Free(times);
    if (err) {
        nrd_str_fini(&s);
        return nrd_py_raise(err);
    }
    return take_text(&s);
}

/* chat(messages as JSON, add_generation_prompt): the prompt's text */
static PyObject *tokenizer_chat(PyObject *self, PyObject *args)
{
    tokenizer *k = (tokenizer *)self;
    const char *json;
    Py_ssize_t n;
    int add;
    const nrd_chat *chat = NULL;
    nrd_json_doc *doc = NULL;
    nrd_str s = {0};
    nrd_error *err;

    if (!PyArg_ParseTuple(args, "s#p", &json, &n, &add) || !is_open(k)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    err = nrd_json_parse(&doc, json, (size_t)n, NULL);
    err = err ? err : nrd_text_chat(k->text, &chat);
    if (!err) {
        const nrd_chat_input in = {.messages = nrd_json_root(doc),
                                   .add_generation_prompt = add != 0};
        err = nrd_chat_render(chat, &in, &s);
    }
    nrd_json_doc_free(doc);
    Py_END_ALLOW_THREADS
    if (err) {
        nrd_str_fini(&s);
        return nrd_py_raise(err);
    }
    return take_text(&s);
}

/* What the tokenizer's files say besides. */
static PyObject *tokenizer_facts(PyObject *self, PyObject *ignored)
{
    const tokenizer *k = (tokenizer *)self;
    size_t n = 0;
    (void)ignored;

    if (!is_open(k)) {
        return NULL;
    }
    const int32_t *ids = nrd_tokenizer_stop_ids(k->t, &n);
    const nrd_sampling s = nrd_tokenizer_sampling(k->t);
    PyObject *stops = PyBytes_FromStringAndSize((const char *)ids, (Py_ssize_t)(n * sizeof *ids));
    return Py_BuildValue("{s:i,s:i,s:i,s:i,s:s,s:O,s:N,s:d,s:d,s:d,s:d,s:i}", "vocab_size",
                         nrd_tokenizer_vocab_size(k->t), "bos_id", nrd_tokenizer_bos_id(k->t),
                         "eos_id", nrd_tokenizer_eos_id(k->t), "pad_id", nrd_tokenizer_pad_id(k->t),
                         "kind", nrd_tokenizer_kind(k->t), "has_chat_template",
                         nrd_tokenizer_chat_template(k->t) ? Py_True : Py_False, "stop_ids", stops,
                         "temperature", s.temperature, "top_p", s.top_p, "min_p", s.min_p,
                         "repetition_penalty", s.repetition_penalty, "top_k", s.top_k);
}

static void tokenizer_dealloc(PyObject *self)
{
    PyObject *type = (PyObject *)Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_free);
    nrd_text_close(((tokenizer *)self)->text);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef tokenizer_methods[] = {
    {"encode", tokenizer_encode, METH_VARARGS,
     "encode(text, add_special, parse_special): bytes of int32."},
    {"decode", tokenizer_decode, METH_VARARGS, "decode(ids, skip_special): a text."},
    {"chat", tokenizer_chat, METH_VARARGS, "chat(messages, add_generation_prompt): the prompt."},
    {"facts", tokenizer_facts, METH_NOARGS, "Special ids, and how the model wants to be sampled."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot tokenizer_slots[] = {
    {Py_tp_doc, "Tokenizer(path)"},
    {Py_tp_init, tokenizer_init},
    {Py_tp_dealloc, tokenizer_dealloc},
    {Py_tp_methods, tokenizer_methods},
    {0, NULL},
};

static PyType_Spec tokenizer_spec = {"_nereid.Tokenizer", sizeof(tokenizer), 0, Py_TPFLAGS_DEFAULT,
                                     tokenizer_slots};

/* ---- text piece by piece ---- */

static PyTypeObject *tokenizer_type;

static int detokenizer_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    detokenizer *d = (detokenizer *)self;
    PyObject *owner;
    int skip;
    (void)kwargs;

    if (!PyArg_ParseTuple(args, "O!p", tokenizer_type, &owner, &skip) ||
        !is_open((tokenizer *)owner)) {
        return -1;
    }
    if (d->d) {
        PyErr_SetString(PyExc_ValueError, "the detokenizer is open");
        return -1;
    }
    d->d = nrd_detok_new(((tokenizer *)owner)->t, skip ? NRD_DECODE_SKIP_SPECIAL : 0u);
    if (!d->d) {
        PyErr_NoMemory();
        return -1;
    }
    Py_INCREF(owner);
    d->owner = owner;
    return 0;
}

/* push(ids, last): the text that became certain. Python's lock is held: a piece is short. */
static PyObject *detokenizer_push(PyObject *self, PyObject *args)
{
    detokenizer *d = (detokenizer *)self;
    PyObject *list;
    int last;
    nrd_str s = {0};

    if (!PyArg_ParseTuple(args, "O!p", &PyList_Type, &list, &last)) {
        return NULL;
    }
    for (Py_ssize_t i = 0; d->d && i < PyList_Size(list); i++) {
        const long id = PyLong_AsLong(PyList_GetItem(list, i));
        if (id == -1 && PyErr_Occurred()) {
            nrd_str_fini(&s);
            return NULL;
        }
        nrd_detok_push(d->d, id < 0 || id > INT32_MAX ? -1 : (int32_t)id, &s);
    }
    if (d->d && last) {
        nrd_detok_flush(d->d, &s);
    }
    return take_text(&s);
}

static void detokenizer_dealloc(PyObject *self)
{
    PyObject *type = (PyObject *)Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot((PyTypeObject *)type, Py_tp_free);
    nrd_detok_free(((detokenizer *)self)->d);
    Py_XDECREF(((detokenizer *)self)->owner);
    release(self);
    Py_DECREF(type);
}

static PyMethodDef detokenizer_methods[] = {
    {"push", detokenizer_push, METH_VARARGS, "push(ids, last): the text that became certain."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot detokenizer_slots[] = {
    {Py_tp_doc, "Detokenizer(tokenizer, skip_special)"},
    {Py_tp_init, detokenizer_init},
    {Py_tp_dealloc, detokenizer_dealloc},
    {Py_tp_methods, detokenizer_methods},
    {0, NULL},
};

static PyType_Spec detokenizer_spec = {"_nereid.Detokenizer", sizeof(detokenizer), 0,
                                       Py_TPFLAGS_DEFAULT, detokenizer_slots};

bool nrd_py_init_text(PyObject *module)
{
    if (!nrd_py_add_type(module, "Tokenizer", &tokenizer_spec) ||
        !nrd_py_add_type(module, "Detokenizer", &detokenizer_spec)) {
        return false;
    }
    tokenizer_type = (PyTypeObject *)PyObject_GetAttrString(module, "Tokenizer");
    return tokenizer_type != NULL;
}
