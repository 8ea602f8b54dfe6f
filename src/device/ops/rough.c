/* SPDX-License-Identifier: Apache-2.0
 * The 8-bit stand-in of a matrix, and how far its products may be from the matrix's own.
 *
 * Bound     w . x and q . x' differ by (w - q) . x + q . (x - x'), so by |w - q| |x| + |q| |x - x'| at most (Cauchy and
 *           Schwarz). A device may round q to bfloat16 first: the larger of both distances counts. A float32 sum of n
 *           products is off by n 2^-24 of the sum of their sizes at most, which is no more than |w| |x|; both sums are
 *           given twice that, and 2^-15, since a matrix unit takes x as two bfloat16 numbers. */
#include "device/ops/ops.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 16, MAX_COLS = 1 << 16 };

bool nrd_rough_is_for(const nrd_weight *w)
{
    return nrd_is_float_dtype(w->dtype) && w->n_stacked <= 1 && w->cols % nrd_dtype_block(NRD_DTYPE_Q8_0) == 0 &&
           w->cols <= MAX_COLS && (w->layout == NRD_LAYOUT_ROWS || w->layout == NRD_LAYOUT_TILE16);
}

uint64_t nrd_rough_bytes(const nrd_weight *w)
{
    return nrd_weight_bytes(NRD_DTYPE_Q8_0, NRD_LAYOUT_ROWS, w->rows, w->cols);
}

/* Sums of squares, in pieces that a compiler takes side by side. A float32 sum of so many is off by less than 2^-12. */
enum { LANES = 16 };
typedef struct squares {
    float off[LANES], rounded_off[LANES], exact[LANES], rough[LANES];
} squares;

static double total(const float *lanes)
{
    double sum = 0;

    for (int i = 0; i < LANES; i++) {
        sum += (double)lanes[i];
    }
    return sum * (1 + 0x1p-12);
}

/* To bfloat16 and back; what is no number comes back as one, and is seen in the others. */
static float to_bf16(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    u = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Of cols numbers, a multiple of LANES. */
static void add_squares(const float *exact, const float *rough, int64_t cols, squares *s)
{
    for (int64_t k = 0; k < cols; k += LANES) {
        for (int i = 0; i < LANES; i++) {
            const float w = exact[k + i], q = rough[k + i], b = to_bf16(q);
            s->off[i] += (w - q) * (w - q);
            s->rounded_off[i] += (w - b) * (w - b);
            s->exact[i] += w * w;
            s->rough[i] += q * q;
        }
    }
}

static void bound_row(const squares *s, int64_t cols, float *out_error, float *out_length)
{
    const double off = total(s->off), rounded = total(s->rounded_off), exact = sqrt(total(s->exact));
    const double rough = sqrt(total(s->rough)) * (1 + 0x1p-8); /* also of numbers that were rounded up to bfloat16 */
    const double sum = (double)cols * 0x1p-23 + 0x1p-15;

    /* the small number: of squares too small for a float32 */
    *out_error = (float)((sqrt(off > rounded ? off : rounded) + sum * (exact + rough)) * (1 + 0x1p-20) + 1e-16);
    *out_length = (float)(rough * (1 + sum));
    if (!isfinite(*out_error) || !isfinite(*out_length)) {
        *out_error = INFINITY;
        *out_length = 0;
    }
}

/* Some of the rows, by one of several threads. */
typedef struct rows_of {
    const nrd_weight *w;
    uint8_t *rows;
    float *error, *length;
    int64_t from, to;
    pthread_t thread;
    bool started, no_memory;
} rows_of;

static void *make_rows(void *user)
{
    rows_of *o = user;
    const int64_t cols = o->w->cols;
    const size_t row_bytes = (size_t)nrd_weight_bytes(NRD_DTYPE_Q8_0, NRD_LAYOUT_ROWS, 1, cols);
    float *exact = malloc((size_t)cols * 2 * sizeof *exact);

    o->no_memory = !exact;
    for (int64_t r = o->from; exact && r < o->to; r++) {
        uint8_t *to = o->rows + (size_t)r * row_bytes;
        squares s = {0};
        nrd_weight_row(o->w, r, exact);
        (void)nrd_quantize_row(NRD_DTYPE_Q8_0, exact, to, cols);
        (void)nrd_dequantize_row(NRD_DTYPE_Q8_0, to, exact + cols, cols);
        add_squares(exact, exact + cols, cols, &s);
        bound_row(&s, cols, &o->error[r], &o->length[r]);
    }
    free(exact);
    return NULL;
}

nrd_error *nrd_rough_make(const nrd_weight *w, int32_t n_threads, void *rows, float *error, float *length)
{
    rows_of part[MAX_THREADS];
    const int32_t n = n_threads < 1 ? 1 : n_threads < MAX_THREADS ? n_threads : MAX_THREADS;
    bool no_memory = false;

    for (int32_t i = 0; i < n; i++) {
        part[i] = (rows_of){.w = w, .rows = rows, .error = error, .length = length, .from = w->rows * i / n, .to = w->rows * (i + 1) / n};
        part[i].started = i > 0 && pthread_create(&part[i].thread, NULL, make_rows, &part[i]) == 0;
    }
    for (int32_t i = 0; i < n; i++) {
        if (!part[i].started) {
            (void)make_rows(&part[i]);
        }
    }
    for (int32_t i = 0; i < n; i++) {
        if (part[i].started) {
            (void)pthread_join(part[i].thread, NULL);
        }
        no_memory = no_memory || part[i].no_memory;
    }
    return no_memory ? nrd_error_no_memory() : NULL;
}
