/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/math.h"

#include "base/mem.h"
#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_THREADS = 256, PIECES = 8 };
enum { NEAR_ROWS = 512, FAR_ROWS = 4096 }; /* of a product at a time; far: 4,096 of 14,336 columns are 235 MB to a GPU, and work of 1.7 TFLOP there */
#define POOL "quantize"

struct nrd_qmath {
    nrd_device *dev;
    nrd_stream *stream;
    bool is_far; /* the device has memory of its own */
    float *x, *y;
    size_t x_bytes, y_bytes;
    int32_t n_threads;
};

static int32_t threads_of(const nrd_qmath *m, const nrd_device_info *info, int32_t asked)
{
    const int64_t n = asked > 0 ? asked : m->is_far ? (int64_t)sysconf(_SC_NPROCESSORS_ONLN) : info->n_threads;
    return n < 1 ? 1 : n > MAX_THREADS ? (int32_t)MAX_THREADS : (int32_t)n;
}

nrd_error *nrd_qmath_open(nrd_qmath **out, const char *device, int32_t n_threads)
{
    nrd_error *err = NULL;
    nrd_qmath *m = NULL;
    nrd_device_info info;
    const nrd_device_config config = {.n_threads = n_threads};

    *out = NULL;
    NRD_NEW_GOTO(m, 1, err, fail);
    NRD_TRY_GOTO(nrd_device_open(&m->dev, device, &config), err, fail);
    NRD_TRY_GOTO(m->dev->ops->stream_new(m->dev, &m->stream), err, fail);
    m->dev->ops->get_info(m->dev, &info);
    m->is_far = !info.host_is_device;
    m->n_threads = threads_of(m, &info, n_threads);
    *out = m;
    return NULL;

fail:
    nrd_qmath_close(m);
    return err;
}

void nrd_qmath_close(nrd_qmath *m)
{
    if (m && m->x) {
        m->dev->ops->free(m->dev, NRD_MEM_DEVICE, m->x);
    }
    if (m && m->y) {
        m->dev->ops->free(m->dev, NRD_MEM_DEVICE, m->y);
    }
    if (m && m->stream) {
        m->dev->ops->stream_free(m->stream);
    }
    if (m && m->dev) {
        m->dev->ops->close(m->dev);
    }
    free(m);
}

int64_t nrd_qmath_good_rows(const nrd_qmath *m)
{
    return m->is_far ? FAR_ROWS : NEAR_ROWS;
}

/* Device memory that grows to `bytes`. */
static nrd_error *grow(nrd_qmath *m, float **p, size_t *have, size_t bytes)
{
    void *room = NULL;

    if (bytes <= *have) {
        return NULL;
    }
    if (*p) {
        m->dev->ops->free(m->dev, NRD_MEM_DEVICE, *p);
    }
    *p = NULL;
    *have = 0;
    NRD_TRY(m->dev->ops->alloc(m->dev, &room, NRD_MEM_DEVICE, bytes, POOL));
    *p = room;
    *have = bytes;
    return NULL;
}

nrd_error *nrd_qmatrix_times(nrd_qmath *m, const nrd_qmatrix *matrix, const float *x, int64_t n, float *y)
{
    const nrd_weight *w = &matrix->w;
    const nrd_device_ops *ops = m->dev->ops;
    const int64_t step = n < nrd_qmath_good_rows(m) ? n : nrd_qmath_good_rows(m);
    const size_t x_row = (size_t)w->cols * sizeof *x, y_row = (size_t)w->rows * sizeof *y;

    if (m->is_far) {
        NRD_TRY(grow(m, &m->x, &m->x_bytes, (size_t)step * x_row));
        NRD_TRY(grow(m, &m->y, &m->y_bytes, (size_t)step * y_row));
    }
    for (int64_t at = 0; at < n; at += step) {
        const int64_t rows = n - at < step ? n - at : step;
        nrd_linear_args a = {
            .n_tokens = (int32_t)rows,
            .x = m->is_far ? m->x : x + at * w->cols,
            .x_dtype = NRD_DTYPE_F32,
            .n_parts = 1,
            .w = {w},
            .y = m->is_far ? m->y : y + at * w->rows,
            .y_dtype = NRD_DTYPE_F32,
        };
        NRD_TRY(m->is_far ? ops->copy(m->stream, m->x, x + at * w->cols, (size_t)rows * x_row) : NULL);
        NRD_TRY(ops->linear(m->stream, &a));
        NRD_TRY(m->is_far ? ops->copy(m->stream, y + at * w->rows, m->y, (size_t)rows * y_row) : NULL);
        NRD_TRY(ops->stream_sync(m->stream));
    }
    return NULL;
}

nrd_error *nrd_qmatrix_load(nrd_qmath *m, const float *w, int64_t rows, int64_t cols, nrd_qmatrix *out)
{
    const nrd_weight from = {.dtype = NRD_DTYPE_F32, .rows = rows, .cols = cols, .data = w, .scale = 1,
                             .data_bytes = (uint64_t)rows * (uint64_t)cols * 4};

    *out = (nrd_qmatrix){0};
    NRD_TRY(m->dev->ops->weight_load(m->stream, &from, true, &out->w, &out->owned));
    return m->is_far ? m->dev->ops->stream_sync(m->stream) : NULL;
}

void nrd_qmatrix_unload(nrd_qmath *m, nrd_qmatrix *x)
{
    if (x->owned) {
        m->dev->ops->weight_unload(m->dev, &x->w);
    }
    *x = (nrd_qmatrix){0};
}

nrd_error *nrd_qmath_product(nrd_qmath *m, const float *x, int64_t n, const float *w, int64_t rows, int64_t cols, float *y)
{
    nrd_qmatrix loaded;

    nrd_error *err = nrd_qmatrix_load(m, w, rows, cols, &loaded);
    if (!err) {
        err = nrd_qmatrix_times(m, &loaded, x, n, y);
    }
    nrd_qmatrix_unload(m, &loaded);
    return err;
}

nrd_error *nrd_qmath_error(nrd_qmath *m, const float *d, int64_t rows, const nrd_qmatrix *gram, double *out)
{
    nrd_error *err = NULL;
    const int64_t cols = gram->w.cols, step = rows < nrd_qmath_good_rows(m) ? rows : nrd_qmath_good_rows(m);
    float *y = NULL;

    *out = 0;
    NRD_NEW_GOTO(y, step * cols, err, done);
    for (int64_t at = 0; at < rows && !err; at += step) {
        const int64_t n = rows - at < step ? rows - at : step;
        err = nrd_qmatrix_times(m, gram, d + at * cols, n, y);
        for (int64_t i = 0; i < n && !err; i++) {
            float sum = 0;
            for (int64_t c = 0; c < cols; c++) {
                sum += d[(at + i) * cols + c] * y[i * cols + c];
            }
            *out += (double)sum;
        }
    }
    *out = *out > 0 ? *out : 0;
done:
    free(y);
    return err;
}

/* ---- loops ---- */

typedef struct shared_loop {
    void (*fn)(void *user, int64_t from, int64_t to);
    void *user;
    int64_t n, step;
    _Atomic int64_t next;
} shared_loop;

static void *run_loop(void *arg)
{
    shared_loop *l = arg;
    for (int64_t from; (from = atomic_fetch_add(&l->next, l->step)) < l->n;) {
        l->fn(l->user, from, from + l->step < l->n ? from + l->step : l->n);
    }
    return NULL;
}

void nrd_qmath_each(nrd_qmath *m, int64_t n, void (*fn)(void *user, int64_t from, int64_t to), void *user)
{
    pthread_t threads[MAX_THREADS];
    int32_t started = 0;
    shared_loop l = {.fn = fn, .user = user, .n = n, .step = n / ((int64_t)m->n_threads * PIECES) + 1};

    while (started < m->n_threads - 1 && !pthread_create(&threads[started], NULL, run_loop, &l)) {
        started++;
    }
    run_loop(&l);
    for (int32_t i = 0; i < started; i++) {
        pthread_join(threads[i], NULL);
    }
}
