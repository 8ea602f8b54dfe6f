/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/math.h"

#include "base/mem.h"
#include "device/device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { MAX_THREADS = 256, PIECES = 8 };

struct nrd_qmath {
    nrd_device *dev;
    nrd_stream *stream;
    int32_t n_threads;
};

nrd_error *nrd_qmath_open(nrd_qmath **out, int32_t n_threads)
{
    nrd_error *err = NULL;
    nrd_qmath *m = NULL;
    nrd_device_info info;
    const nrd_device_config config = {.n_threads = n_threads};

    *out = NULL;
    NRD_NEW_GOTO(m, 1, err, fail);
    NRD_TRY_GOTO(nrd_cpu_open(&m->dev, &config), err, fail);
    NRD_TRY_GOTO(m->dev->ops->stream_new(m->dev, &m->stream), err, fail);
    m->dev->ops->get_info(m->dev, &info);
    m->n_threads = info.n_threads < 1 ? 1 : info.n_threads > MAX_THREADS ? (int32_t)MAX_THREADS : info.n_threads;
    *out = m;
    return NULL;

fail:
    nrd_qmath_close(m);
    return err;
}

void nrd_qmath_close(nrd_qmath *m)
{
    if (m && m->stream) {
        m->dev->ops->stream_free(m->stream);
    }
    if (m && m->dev) {
        m->dev->ops->close(m->dev);
    }
    free(m);
}

nrd_error *nrd_qmatrix_times(nrd_qmath *m, const nrd_qmatrix *matrix, const float *x, int64_t n, float *y)
{
    const nrd_weight *w = &matrix->w;

    for (int64_t at = 0; at < n; at += NRD_QMATH_ROWS) {
        nrd_linear_args a = {
            .n_tokens = (int32_t)(n - at < NRD_QMATH_ROWS ? n - at : NRD_QMATH_ROWS),
            .x = x + at * w->cols,
            .x_dtype = NRD_DTYPE_F32,
            .n_parts = 1,
            .w = {w},
            .y = y + at * w->rows,
            .y_dtype = NRD_DTYPE_F32,
        };
        NRD_TRY(m->dev->ops->linear(m->stream, &a));
        NRD_TRY(m->dev->ops->stream_sync(m->stream));
    }
    return NULL;
}

nrd_error *nrd_qmatrix_load(nrd_qmath *m, const float *w, int64_t rows, int64_t cols, nrd_qmatrix *out)
{
    const nrd_weight from = {.dtype = NRD_DTYPE_F32, .rows = rows, .cols = cols, .data = w, .scale = 1,
                             .data_bytes = (uint64_t)rows * (uint64_t)cols * 4};

    *out = (nrd_qmatrix){0};
    return m->dev->ops->weight_load(m->stream, &from, true, &out->w, &out->owned);
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
    const int64_t cols = gram->w.cols, step = rows < NRD_QMATH_ROWS ? rows : NRD_QMATH_ROWS;
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
