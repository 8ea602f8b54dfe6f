/* SPDX-License-Identifier: Apache-2.0
 * Pictures and videos of a request, which borrows their bytes from the dictionary; and their places in a chat. */
#include "python/module.h"

#include "base/limits.h"

static bool wrong(const char *want)
{
    PyErr_Format(PyExc_TypeError, "%s", want);
    return false;
}

/* A list under a name; *out NULL: there is none. */
static bool list_of(PyObject *dict, const char *name, Py_ssize_t most, PyObject **out, Py_ssize_t *n)
{
    PyObject *v = PyDict_GetItemString(dict, name);

    *out = v && v != Py_None ? v : NULL;
    *n = *out && PyList_Check(*out) ? PyList_Size(*out) : 0;
    if (*out && !PyList_Check(*out)) {
        PyErr_Format(PyExc_TypeError, "%s: expected a list", name);
        return false;
    }
    if (*n > most) {
        PyErr_Format(PyExc_ValueError, "%s: %zd of them, at most %zd are taken", name, *n, most);
        return false;
    }
    return true;
}

static bool read_all(PyObject *list, Py_ssize_t n, nrd_exec_image *out)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *v = PyList_GetItem(list, i);
        char *data = NULL;
        Py_ssize_t bytes = 0;
        if (!v || PyBytes_AsStringAndSize(v, &data, &bytes) != 0) {
            PyErr_Clear();
            return wrong("images and frames of videos: expected bytes");
        }
        out[i] = (nrd_exec_image){data, (size_t)bytes};
    }
    return true;
}

/* The frames of video i; n: how many. */
static bool frames_of(PyObject *videos, Py_ssize_t i, double *fps, PyObject **frames, Py_ssize_t *n)
{
    PyObject *pair = PyList_GetItem(videos, i);

    if (!pair || !PyTuple_Check(pair) || !PyArg_ParseTuple(pair, "dO", fps, frames) || !PyList_Check(*frames)) {
        PyErr_Clear();
        return wrong("videos: expected pairs of frames a second and a list of frames");
    }
    *n = PyList_Size(*frames);
    return true;
}

bool nrd_py_pictures(PyObject *dict, nrd_py_request *q)
{
    PyObject *images, *videos, *frames;
    Py_ssize_t n_images, n_videos, n, all;
    double fps;

    if (!list_of(dict, "images", NRD_LIMIT_IMAGES, &images, &n_images) ||
        !list_of(dict, "videos", NRD_LIMIT_VIDEO_FRAMES, &videos, &n_videos)) {
        return false;
    }
    all = n_images;
    for (Py_ssize_t i = 0; i < n_videos; i++) {
        if (!frames_of(videos, i, &fps, &frames, &n)) {
            return false;
        }
        if (n > NRD_LIMIT_VIDEO_FRAMES) {
            PyErr_Format(PyExc_ValueError, "videos: one has %zd frames, at most %d are taken", n, (int)NRD_LIMIT_VIDEO_FRAMES);
            return false;
        }
        all += n;
    }
    if (all == 0 && n_videos == 0) {
        return true;
    }
    q->images = PyMem_Malloc((size_t)(all + 1) * sizeof *q->images);
    q->videos = PyMem_Malloc((size_t)(n_videos + 1) * sizeof *q->videos);
    if (!q->images || !q->videos) {
        PyErr_NoMemory();
        return false;
    }
    if (!read_all(images, n_images, q->images)) {
        return false;
    }
    nrd_exec_image *at = q->images + n_images;
    for (Py_ssize_t i = 0; i < n_videos; i++, at += n) {
        if (!frames_of(videos, i, &fps, &frames, &n) || !read_all(frames, n, at)) {
            return false;
        }
        q->videos[i] = (nrd_exec_video){.frames = at, .n_frames = (int32_t)n, .fps = fps};
    }
    q->r.images = n_images > 0 ? q->images : NULL;
    q->r.n_images = (int32_t)n_images;
    q->r.videos = q->videos;
    q->r.n_videos = (int32_t)n_videos;
    return true;
}
