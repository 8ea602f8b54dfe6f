/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/input.h"

#include "base/dtype.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static nrd_error *begin(nrd_qinput *in, nrd_qmath *m, int64_t cols)
{
    nrd_error *err = NULL;
    in->cols = cols;
    NRD_NEW_GOTO(in->sum_abs, cols, err, fail);
    NRD_NEW_GOTO(in->max_abs, cols, err, fail);
    if (nrd_qmath_is_far(m)) {
        return nrd_qplace_new(m, cols, cols, &in->sums);
    }
    NRD_NEW_GOTO(in->gram, cols * cols, err, fail);
fail:
    return err;
}

/* Part of turning rows into columns and of adding a product to the sum. */
typedef struct shared_work {
    const float *x;
    float *turned, *to;
    const float *part;
    int64_t n, cols;
} shared_work;

static void turn(void *user, int64_t from, int64_t to)
{
    const shared_work *w = user;
    for (int64_t c = from; c < to; c++) {
        for (int64_t t = 0; t < w->n; t++) {
            w->turned[c * w->n + t] = w->x[t * w->cols + c];
        }
    }
}

static void add_rows(void *user, int64_t from, int64_t to)
{
    const shared_work *w = user;
    for (int64_t i = from * w->cols; i < to * w->cols; i++) {
        w->to[i] += w->part[i];
    }
}

/* x[n][cols] to the gram matrix. */
static nrd_error *add_gram(nrd_qinput *in, nrd_qmath *m, const float *x, int64_t n)
{
    nrd_error *err = NULL;
    const int64_t cols = in->cols, step = cols < nrd_qmath_good_rows(m) ? cols : nrd_qmath_good_rows(m);
    float *part = NULL;
    nrd_qmatrix columns = {0};
    shared_work w = {.x = x, .n = n, .cols = cols};

    NRD_NEW_GOTO(w.turned, cols * n, err, done);
    NRD_NEW_GOTO(part, step * cols, err, done);
    nrd_qmath_each(m, cols, turn, &w);
    NRD_TRY_GOTO(nrd_qmatrix_load(m, w.turned, cols, n, &columns), err, done);
    for (int64_t at = 0; at < cols; at += step) {
        const int64_t rows = cols - at < step ? cols - at : step;
        NRD_TRY_GOTO(nrd_qmatrix_times(m, &columns, w.turned + at * n, rows, part), err, done);
        w.part = part;
        w.to = in->gram + at * cols;
        nrd_qmath_each(m, rows, add_rows, &w);
    }
done:
    nrd_qmatrix_unload(m, &columns);
    free(w.turned);
    free(part);
    return err;
}

/* ---- sizes ---- */

enum { PIECE = 128 }; /* of columns: 4,096 are pieces for 32 threads */

static int64_t number_bytes(nrd_dtype t)
{
    return t == NRD_DTYPE_F32 ? 4 : 2;
}

typedef struct sizes {
    nrd_qinput *in;
    const uint8_t *x;
    nrd_dtype dtype;
    int64_t n;
} sizes;

/* For pieces of columns. Loops over a whole piece have a length that the compiler knows: they are vectors then. */
static void add_sizes(void *user, int64_t from, int64_t to)
{
    const sizes *s = user;
    const int64_t cols = s->in->cols, size = number_bytes(s->dtype);

    for (int64_t first = from * PIECE; first < to * PIECE && first < cols; first += PIECE) {
        const int64_t n = cols - first < PIECE ? cols - first : PIECE;
        float row[PIECE] = {0}, sum[PIECE] = {0}, max[PIECE] = {0};
        memcpy(sum, s->in->sum_abs + first, (size_t)n * sizeof *sum);
        memcpy(max, s->in->max_abs + first, (size_t)n * sizeof *max);
        for (int64_t t = 0; t < s->n; t++) {
            const uint8_t *x = s->x + (t * cols + first) * size;
            if (s->dtype == NRD_DTYPE_BF16 && n == PIECE) {
                uint16_t half[PIECE];
                uint32_t bits[PIECE];
                memcpy(half, x, sizeof half);
                for (int c = 0; c < PIECE; c++) {
                    bits[c] = (uint32_t)half[c] << 16;
                }
                memcpy(row, bits, sizeof row);
            } else {
                NRD_ASSERT(nrd_dequantize_row(s->dtype, x, row, n), "inputs are of a float type");
            }
            for (int c = 0; c < PIECE; c++) {
                const float a = fabsf(row[c]);
                sum[c] += a;
                max[c] = a > max[c] ? a : max[c];
            }
        }
        memcpy(s->in->sum_abs + first, sum, (size_t)n * sizeof *sum);
        memcpy(s->in->max_abs + first, max, (size_t)n * sizeof *max);
    }
}

/* ---- rows ---- */

/* Every row_step-th of all tokens; when there is no room every second one goes, so that it does not matter how many come. */
static nrd_error *keep_rows(nrd_qinput *in, const uint8_t *x, nrd_dtype dtype, int64_t n)
{
    nrd_error *err = NULL;
    const int64_t cols = in->cols, row_bytes = cols * number_bytes(dtype);

    if (!in->rows) {
        NRD_NEW_GOTO(in->rows, NRD_QINPUT_ROWS * cols, err, fail);
        in->row_step = 1;
    }
    for (int64_t t = 0; t < n; t++) {
        if ((in->n_tokens + t) % in->row_step) {
            continue;
        }
        if (in->n_rows == NRD_QINPUT_ROWS) {
            for (in->n_rows = 1; 2 * in->n_rows < NRD_QINPUT_ROWS; in->n_rows++) {
                memcpy(in->rows + in->n_rows * cols, in->rows + 2 * in->n_rows * cols, (size_t)cols * sizeof *in->rows);
            }
            in->row_step *= 2; /* the row that comes is one of these, too: the number of rows is even */
        }
        NRD_ASSERT(nrd_dequantize_row(dtype, x + t * row_bytes, in->rows + in->n_rows++ * cols, cols), "inputs are of a float type");
    }
fail:
    return err;
}

/* ---- adding ---- */

/* Few rows wait for others: a product of them would be as long in moving the gram matrix. */
static nrd_error *add_near(nrd_qinput *in, nrd_qmath *m, const float *x, int64_t n)
{
    const int64_t most = nrd_qmath_good_rows(m), cols = in->cols;
    nrd_error *err = NULL;

    if (in->n_held == 0 && n >= most) {
        return add_gram(in, m, x, n);
    }
    if (!in->held) {
        NRD_NEW_GOTO(in->held, most * cols, err, done);
    }
    for (int64_t at = 0, k; at < n; at += k) {
        k = n - at < most - in->n_held ? n - at : most - in->n_held;
        memcpy(in->held + in->n_held * cols, x + at * cols, (size_t)(k * cols) * sizeof *x);
        in->n_held += k;
        if (in->n_held == most) {
            in->n_held = 0;
            NRD_TRY(add_gram(in, m, in->held, most));
        }
    }
done:
    return err;
}

static nrd_error *add_far(nrd_qinput *in, nrd_qmath *m, const void *x, nrd_dtype dtype, int64_t n)
{
    const nrd_matmul_args a = {
        .m = in->cols, .n = in->cols, .k = n, .a = x, .a_stride = in->cols, .a_turned = true, .b = x, .b_stride = in->cols,
        .b_turned = true, .dtype = dtype, .c = in->sums.p, .c_stride = in->cols, .alpha = 1, .add = true,
    };
    return nrd_qmath_add(m, &a);
}

nrd_error *nrd_qinput_add(nrd_qinput *in, nrd_qmath *m, const void *x, nrd_dtype dtype, int64_t n, int64_t cols)
{
    const void *here = x;

    if (!in->sum_abs) {
        NRD_TRY(begin(in, m, cols));
    }
    if (nrd_qmath_is_far(m)) {
        NRD_TRY(add_far(in, m, x, dtype, n));
        NRD_TRY(nrd_qmath_fetch(m, x, (size_t)(number_bytes(dtype) * cols * n), &here));
    } else {
        NRD_TRY(add_near(in, m, x, n));
    }
    sizes s = {.in = in, .x = here, .dtype = dtype, .n = n};
    nrd_qmath_each(m, (cols + PIECE - 1) / PIECE, add_sizes, &s);
    if (in->keeps_rows) {
        NRD_TRY(keep_rows(in, here, dtype, n));
    }
    in->n_tokens += n;
    return NULL;
}

nrd_error *nrd_qinput_finish(nrd_qinput *in, nrd_qmath *m)
{
    nrd_error *err = in->n_held > 0 ? add_gram(in, m, in->held, in->n_held) : NULL;

    free(in->held);
    in->held = NULL;
    in->n_held = 0;
    if (in->sums.p) {
        NRD_NEW_GOTO(in->gram, in->cols * in->cols, err, done);
        err = nrd_qplace_read(m, &in->sums, in->gram);
    }
done:
    nrd_qplace_free(m, &in->sums);
    return err;
}

typedef struct division {
    nrd_qinput *in;
    const float *s;
} division;

static void divide_rows(void *user, int64_t from, int64_t to)
{
    const division *d = user;
    const int64_t cols = d->in->cols;
    for (int64_t i = from; i < to; i++) {
        for (int64_t k = 0; k < cols; k++) {
            d->in->gram[i * cols + k] /= d->s[i] * d->s[k];
        }
    }
}

void nrd_qinput_divide(nrd_qinput *in, nrd_qmath *m, const float *s)
{
    division d = {in, s};
    if (!in->gram) {
        return;
    }
    nrd_qmath_each(m, in->cols, divide_rows, &d);
    for (int64_t i = 0; i < in->cols; i++) {
        in->sum_abs[i] /= s[i];
        in->max_abs[i] /= s[i];
        for (int64_t t = 0; t < in->n_rows; t++) {
            in->rows[t * in->cols + i] /= s[i];
        }
    }
}

void nrd_qinput_fini(nrd_qinput *in, nrd_qmath *m)
{
    nrd_qplace_free(m, &in->sums);
    free(in->gram);
    free(in->held);
    free(in->sum_abs);
    free(in->max_abs);
    free(in->rows);
    *in = (nrd_qinput){0};
}

double nrd_qinput_bytes(const nrd_qmath *m, int64_t cols, bool keeps_rows)
{
    const int64_t held = (nrd_qmath_is_far(m) ? 0 : nrd_qmath_good_rows(m)) + (keeps_rows ? NRD_QINPUT_ROWS : 0);
    return (double)cols * (double)(cols + held) * sizeof(float);
}
