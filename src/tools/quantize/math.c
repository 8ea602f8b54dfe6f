/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/math.h"

#include "base/mem.h"
#include "device/cpu/threads.h"
#include "device/device.h"
#include "tools/quantize/lanes.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 256 };
enum { NEAR_ROWS = 512, FAR_ROWS = 4096 }; /* of a product at a time; far: 4,096 of 14,336 columns are 235 MB to a GPU, and work of 1.7 TFLOP there */
enum { PIECES = 8 }; /* of a loop for each thread, since they do not run alike */
#define POOL "quantize"

struct nrd_qmath {
    nrd_device *dev;
    nrd_stream *stream;
    bool is_far; /* the device has memory of its own */
    float *x, *y;
    size_t x_bytes, y_bytes;
    float *slots[NRD_QPLACE_SLOTS]; /* the host's, of rows of a far place */
    size_t slot_bytes[NRD_QPLACE_SLOTS];
    nrd_threads *threads; /* a layer has thousands of short loops: threads made for each would take longer than they */
};

static int32_t threads_of(const nrd_qmath *m, const nrd_device_info *info, int32_t asked, int n_shares)
{
    const int64_t n = (asked > 0 ? asked : m->is_far ? (int64_t)sysconf(_SC_NPROCESSORS_ONLN) : info->n_threads) / n_shares;
    return n < 1 ? 1 : n > MAX_THREADS ? (int32_t)MAX_THREADS : (int32_t)n;
}

nrd_error *nrd_qmath_open(nrd_qmath **out, const char *device, int32_t n_threads, int share, int n_shares)
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
    if (m->is_far && !m->dev->ops->matmul) {
        err = nrd_errorf(NRD_ERR_UNSUPPORTED, "the device '%s' does not multiply matrices of float32", info.name);
        goto fail;
    }
    NRD_TRY_GOTO(nrd_threads_new(&m->threads, threads_of(m, &info, n_threads, n_shares), share, n_shares), err, fail);
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
    for (int i = 0; m && i < NRD_QPLACE_SLOTS; i++) {
        if (m->slots[i]) {
            m->dev->ops->free(m->dev, NRD_MEM_HOST, m->slots[i]);
        }
    }
    if (m) {
        nrd_threads_free(m->threads);
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

bool nrd_qmath_is_far(const nrd_qmath *m)
{
    return m->is_far;
}

uint64_t nrd_qmath_free_bytes(const nrd_qmath *m)
{
    nrd_device_info info;

    m->dev->ops->get_info(m->dev, &info);
    return info.mem_free_bytes;
}

int nrd_qmath_threads(const nrd_qmath *m)
{
    return nrd_threads_size(m->threads);
}

/* Memory that grows to `bytes`. */
static nrd_error *grow(nrd_qmath *m, nrd_mem_kind kind, float **p, size_t *have, size_t bytes)
{
    void *room = NULL;

    if (bytes <= *have) {
        return NULL;
    }
    if (*p) {
        m->dev->ops->free(m->dev, kind, *p);
    }
    *p = NULL;
    *have = 0;
    NRD_TRY(m->dev->ops->alloc(m->dev, &room, kind, bytes, POOL));
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
        NRD_TRY(grow(m, NRD_MEM_DEVICE, &m->x, &m->x_bytes, (size_t)step * x_row));
        NRD_TRY(grow(m, NRD_MEM_DEVICE, &m->y, &m->y_bytes, (size_t)step * y_row));
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

/* ---- places ---- */

nrd_error *nrd_qplace_new(nrd_qmath *m, int64_t rows, int64_t cols, nrd_qplace *out)
{
    void *room = NULL;

    *out = (nrd_qplace){0};
    NRD_TRY(m->dev->ops->alloc(m->dev, &room, NRD_MEM_DEVICE, (size_t)rows * (size_t)cols * sizeof *out->p, POOL));
    *out = (nrd_qplace){room, rows, cols};
    return NULL;
}

void nrd_qplace_free(nrd_qmath *m, nrd_qplace *x)
{
    if (x->p) {
        m->dev->ops->free(m->dev, NRD_MEM_DEVICE, x->p);
    }
    *x = (nrd_qplace){0};
}

nrd_error *nrd_qplace_room(nrd_qmath *m, const nrd_qplace *x, int64_t row, int64_t n, int slot, float **out)
{
    *out = x->p + row * x->cols;
    if (!m->is_far) {
        return NULL;
    }
    NRD_TRY(grow(m, NRD_MEM_HOST, &m->slots[slot], &m->slot_bytes[slot], (size_t)n * (size_t)x->cols * sizeof **out));
    *out = m->slots[slot];
    return NULL;
}

nrd_error *nrd_qplace_rows(nrd_qmath *m, const nrd_qplace *x, int64_t row, int64_t n, int slot, float **out)
{
    NRD_TRY(nrd_qplace_room(m, x, row, n, slot, out));
    if (!m->is_far) {
        return NULL;
    }
    NRD_TRY(m->dev->ops->copy(m->stream, *out, x->p + row * x->cols, (size_t)n * (size_t)x->cols * sizeof **out));
    return m->dev->ops->stream_sync(m->stream);
}

nrd_error *nrd_qplace_put(nrd_qmath *m, nrd_qplace *x, int64_t row, int64_t n, const float *rows)
{
    const size_t bytes = (size_t)n * (size_t)x->cols * sizeof *rows;
    float *there = x->p + row * x->cols;

    if (rows == there) {
        return NULL;
    }
    if (!m->is_far) {
        memcpy(there, rows, bytes);
        return NULL;
    }
    NRD_TRY(m->dev->ops->copy(m->stream, there, rows, bytes));
    return m->dev->ops->stream_sync(m->stream);
}

nrd_error *nrd_qplace_read(nrd_qmath *m, const nrd_qplace *x, float *out)
{
    NRD_TRY(m->dev->ops->copy(m->stream, out, x->p, (size_t)(x->rows * x->cols) * sizeof *out));
    return m->dev->ops->stream_sync(m->stream);
}

nrd_error *nrd_qmath_fetch(nrd_qmath *m, const void *there, size_t bytes, const void **out)
{
    *out = there;
    if (!m->is_far) {
        return NULL;
    }
    NRD_TRY(grow(m, NRD_MEM_HOST, &m->slots[0], &m->slot_bytes[0], bytes));
    *out = m->slots[0];
    NRD_TRY(m->dev->ops->copy(m->stream, m->slots[0], there, bytes));
    return m->dev->ops->stream_sync(m->stream);
}

nrd_error *nrd_qmath_take(nrd_qmath *m, void *there, size_t bytes, void **out)
{
    const void *unused;
    NRD_TRY(nrd_qmath_fetch(m, there, bytes, &unused));
    *out = m->is_far ? m->slots[0] : there;
    return NULL;
}

nrd_error *nrd_qmath_return(nrd_qmath *m, void *there, size_t bytes, const void *from)
{
    if (from == there) {
        return NULL;
    }
    NRD_TRY(m->dev->ops->copy(m->stream, there, from, bytes));
    return m->dev->ops->stream_sync(m->stream);
}

/* [n][k] with rows side by side, as it lies or made in `room`. */
static const float *gathered(const float *x, int64_t stride, bool turned, int64_t n, int64_t k, float *room)
{
    if (!turned && stride == k) {
        return x;
    }
    for (int64_t i = 0; !turned && i < n; i++) {
        memcpy(room + i * k, x + i * stride, (size_t)k * sizeof *x);
    }
    for (int64_t l = 0; turned && l < k; l++) {
        for (int64_t i = 0; i < n; i++) {
            room[i * k + l] = x[l * stride + i];
        }
    }
    return room;
}

typedef struct addition {
    const nrd_matmul_args *p;
    const float *part; /* [.., n] from row `first` on */
    int64_t first;
} addition;

static void add_rows(void *user, int64_t from, int64_t to)
{
    const addition *a = user;
    const int64_t n = a->p->n;
    for (int64_t i = from; i < to; i++) {
        const float *part = a->part + i * n;
        float *c = a->p->c + (a->first + i) * a->p->c_stride;
        for (int64_t j = 0; j < n; j++) {
            c[j] = a->p->alpha * part[j] + (a->p->add ? c[j] : 0);
        }
    }
}

/* By linear(), in pieces of rows. */
static nrd_error *add_near(nrd_qmath *m, const nrd_matmul_args *p)
{
    nrd_error *err = NULL;
    const int64_t step = p->m < NEAR_ROWS ? p->m : NEAR_ROWS;
    float *b_room = NULL, *a_room = NULL, *part = NULL;
    nrd_qmatrix w = {0};

    NRD_NEW_GOTO(b_room, p->n * p->k, err, done);
    NRD_NEW_GOTO(a_room, step * p->k, err, done);
    NRD_NEW_GOTO(part, step * p->n, err, done);
    NRD_TRY_GOTO(nrd_qmatrix_load(m, gathered(p->b, p->b_stride, p->b_turned, p->n, p->k, b_room), p->n, p->k, &w), err, done);
    for (int64_t at = 0; at < p->m; at += step) {
        const int64_t rows = p->m - at < step ? p->m - at : step;
        const float *a = (const float *)p->a + (p->a_turned ? at : at * p->a_stride);
        NRD_TRY_GOTO(nrd_qmatrix_times(m, &w, gathered(a, p->a_stride, p->a_turned, rows, p->k, a_room), rows, part), err, done);
        addition sum = {p, part, at};
        nrd_qmath_each(m, rows, add_rows, &sum);
    }
done:
    nrd_qmatrix_unload(m, &w);
    free(b_room);
    free(a_room);
    free(part);
    return err;
}

nrd_error *nrd_qmath_add(nrd_qmath *m, const nrd_matmul_args *a)
{
    if (a->m == 0 || a->n == 0) {
        return NULL;
    }
    return m->is_far ? m->dev->ops->matmul(m->stream, a) : add_near(m, a);
}

typedef struct shared_loop {
    void (*fn)(void *user, int64_t from, int64_t to);
    void *user;
    int64_t n, step;
    _Atomic int64_t next;
} shared_loop;

static void take_ranges(void *user, nrd_thread *self)
{
    shared_loop *l = user;

    (void)self;
    for (int64_t from; (from = atomic_fetch_add(&l->next, l->step)) < l->n;) {
        l->fn(l->user, from, from + l->step < l->n ? from + l->step : l->n);
    }
}

void nrd_qmath_each(nrd_qmath *m, int64_t n, void (*fn)(void *user, int64_t from, int64_t to), void *user)
{
    const int64_t threads = nrd_threads_size(m->threads), step = n / (threads * PIECES) + 1;
    shared_loop l = {.fn = fn, .user = user, .n = n, .step = step};

    if (n >= threads * NRD_QLANES) { /* rows that are rounded together are not parted */
        l.step = (step + NRD_QLANES - 1) / NRD_QLANES * NRD_QLANES;
    }
    if (n > 0) {
        nrd_threads_run(m->threads, take_ranges, &l);
    }
}

typedef struct turning {
    const float *x;
    float *out;
    int64_t rows, cols;
} turning;

/* Columns, by blocks that a cache holds on both sides. */
static void turn_columns(void *user, int64_t from, int64_t to)
{
    enum { BLOCK = 32 };
    const turning *t = user;

    for (int64_t at = 0; at < t->rows; at += BLOCK) {
        const int64_t end = at + BLOCK < t->rows ? at + BLOCK : t->rows;
        for (int64_t c = from; c < to; c++) {
            for (int64_t r = at; r < end; r++) {
                t->out[c * t->rows + r] = t->x[r * t->cols + c];
            }
        }
    }
}

void nrd_qmath_turn(nrd_qmath *m, const float *x, int64_t rows, int64_t cols, float *out)
{
    turning t = {x, out, rows, cols};
    nrd_qmath_each(m, cols, turn_columns, &t);
}

/* ---- sums ---- */

typedef struct row_products {
    const float *d, *y;
    int64_t cols;
    double *sums; /* [rows] */
} row_products;

static void multiply_rows(void *user, int64_t from, int64_t to)
{
    const row_products *p = user;
    for (int64_t r = from; r < to; r++) {
        const float *d = p->d + r * p->cols, *y = p->y + r * p->cols;
        float sum = 0;
        for (int64_t c = 0; c < p->cols; c++) {
            sum += d[c] * y[c];
        }
        p->sums[r] = (double)sum;
    }
}

nrd_error *nrd_qmath_error(nrd_qmath *m, const float *d, int64_t rows, const nrd_qmatrix *gram, double *out)
{
    nrd_error *err = NULL;
    const int64_t cols = gram->w.cols, step = rows < nrd_qmath_good_rows(m) ? rows : nrd_qmath_good_rows(m);
    row_products p = {.cols = cols};
    float *y = NULL, *own = NULL;

    *out = 0;
    if (m->is_far) { /* what lies in slot 0 is over: nobody reads rows and sums up at once */
        NRD_TRY_GOTO(grow(m, NRD_MEM_HOST, &m->slots[0], &m->slot_bytes[0], (size_t)(step * cols) * sizeof *y), err, done);
        y = m->slots[0];
    } else {
        NRD_NEW_GOTO(own, step * cols, err, done);
        y = own;
    }
    NRD_NEW_GOTO(p.sums, step, err, done);
    for (int64_t at = 0; at < rows && !err; at += step) {
        const int64_t n = rows - at < step ? rows - at : step;
        NRD_TRY_GOTO(nrd_qmatrix_times(m, gram, d + at * cols, n, y), err, done);
        p.d = d + at * cols;
        p.y = y;
        nrd_qmath_each(m, n, multiply_rows, &p);
        for (int64_t i = 0; i < n; i++) {
            *out += p.sums[i];
        }
    }
    *out = *out > 0 ? *out : 0;
done:
    free(own);
    free(p.sums);
    return err;
}
