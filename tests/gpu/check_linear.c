/* SPDX-License-Identifier: Apache-2.0
 * linear against plain loops: 16-bit and F8 weights, quantized ones, deterministic mode. */
#include "gpu_check.h"

/* ---- linear ---- */

/* Runs the product: all elements must be finite, those at at[0..m) those wanted. */
static void linear_sampled(const char *name, const nrd_linear_args *a, size_t all, const size_t *at,
                           const double *want, size_t m, double limit)
{
    OK(dev->ops->linear(st, a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(a->y_dtype, a->y, NULL, (size_t)a->n_tokens, all / (size_t)a->n_tokens);
    float *g = malloc(m * sizeof *g);
    double bad = 0;
    for (size_t i = 0; i < all; i++) {
        bad += isfinite(got[i]) ? 0 : 1;
    }
    for (size_t i = 0; i < m; i++) {
        g[i] = got[at[i]];
    }
    verdict(name, bad > 0 ? NAN : distance(g, want, m), limit);
    free(got);
    free(g);
}

static void check_linear(nrd_dtype t, nrd_dtype y_t, int n, int n_parts, const int *rows, int cols,
                         bool bias, float softcap, bool deterministic)
{
    test_weight w[4], b[4];
    nrd_linear_args a = {.n_tokens = n, .x_dtype = t, .n_parts = n_parts,
                         .y_dtype = y_t, .softcap = softcap, .deterministic = deterministic};
    void *x = random_host(t, (size_t)n * (size_t)cols, 1.0f);
    float *xs = malloc((size_t)n * 4);
    size_t total = 0;
    char name[160];

    for (int i = 0; i < n; i++) {
        xs[i] = 0.5f + uniform();
    }
    for (int i = 0; i < n_parts; i++) {
        weight_random(&w[i], t, rows[i], cols, 1.0f, true);
        a.w[i] = &w[i].dev;
        if (bias) {
            weight_random(&b[i], NRD_DTYPE_F32, rows[i], 1, 10.0f, false);
            a.bias[i] = &b[i].dev;
        }
        total += (size_t)rows[i];
    }
    void *dx = dev_put(x, (size_t)n * (size_t)cols * elem(t));
    float *dxs = dev_put(xs, (size_t)n * 4);
    void *y = poisoned((size_t)n * total * elem(y_t) + 64);
    a.x = dx;
    a.x_row_scale = t == NRD_DTYPE_F8_E4M3 ? dxs : NULL;
    a.y = y;
    /* a sample of the elements exact */
    const size_t all = (size_t)n * total, m = all < 3000 ? all : 3000;
    size_t *at = malloc(m * sizeof *at);
    double *want = malloc(m * sizeof *want);
    for (size_t i = 0; i < m; i++) {
        at[i] = m == all ? i : rng() % all;
        const size_t tok = at[i] / total;
        size_t r = at[i] % total;
        int p = 0;
        double sum = 0;
        while (r >= (size_t)rows[p]) {
            r -= (size_t)rows[p++];
        }
        for (int c = 0; c < cols; c++) {
            sum += (double)get(t, x, tok * (size_t)cols + (size_t)c) * weight_at(&w[p], (int64_t)r, c);
        }
        sum *= t == NRD_DTYPE_F8_E4M3 ? (double)xs[tok] : 1.0;
        sum += bias ? weight_at(&b[p], (int64_t)r, 0) : 0.0;
        want[i] = softcap > 0 ? (double)softcap * tanh(sum / (double)softcap) : sum;
    }
    /* F8 products are summed with fewer bits by the tensor cores (fast accumulation) */
    const double limit = fmax(out_eps(y_t), t == NRD_DTYPE_F8_E4M3 ? 4e-3 : 0) + (bias && softcap > 0 ? 2e-3 : 0);
    snprintf(name, sizeof name, "linear %s -> %s, %d x (%d parts, first %d) x %d%s%s%s",
             nrd_dtype_name(t), nrd_dtype_name(y_t), n, n_parts, rows[0], cols, bias ? " bias" : "",
             softcap > 0 ? " cap" : "", deterministic ? " det" : "");
    linear_sampled(name, &a, all, at, want, m, limit);
    if (!deterministic && dev->ops->linear_tune) { /* with the kernels that were fastest */
        OK(dev->ops->linear_tune(st, &a, dx, 0.1));
        OK(dev->ops->copy(st, dx, x, (size_t)n * (size_t)cols * elem(t)));
        OK(dev->ops->copy(st, dxs, xs, (size_t)n * 4));
        OK(dev->ops->fill(st, y, 0xff, all * elem(y_t)));
        snprintf(name + strlen(name), sizeof name - strlen(name), " tuned");
        linear_sampled(name, &a, all, at, want, m, limit);
    }
    for (int i = 0; i < n_parts; i++) {
        weight_gone(&w[i]);
        if (bias) {
            weight_gone(&b[i]);
        }
    }
    dev_free(dx);
    dev_free(dxs);
    dev_free(y);
    free(x);
    free(xs);
    free(at);
    free(want);
}

void all_linear(void)
{
    static const nrd_dtype types[] = {NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3, NRD_DTYPE_F16, NRD_DTYPE_F32};
    static const int tokens[] = {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 130, 300};

    for (int t = 0; t < 4; t++) {
        for (int i = 0; i < 13; i++) {
            const int one[] = {rnd(1, 700)}, three[] = {1024, 256, 256};
            check_linear(types[t], types[t] == NRD_DTYPE_F32 ? NRD_DTYPE_F32 : NRD_DTYPE_BF16, tokens[i],
                         3, three, 1024, i % 2, 0, false);
            check_linear(types[t], NRD_DTYPE_F32, tokens[i], 1, one, 16 * rnd(1, 90), i % 3 == 0,
                         i % 2 ? 30.0f : 0, false);
        }
        const int odd[] = {37};
        check_linear(types[t], NRD_DTYPE_F32, 5, 1, odd, 35, true, 0, false); /* no library, no TMA */
    }
    check_linear(NRD_DTYPE_BF16, NRD_DTYPE_F32, 100, 1, (const int[]){777}, 512, true, 0, true);
    check_linear(NRD_DTYPE_F8_E4M3, NRD_DTYPE_BF16, 100, 2, (const int[]){512, 640}, 512, true, 0, true);
    check_linear(NRD_DTYPE_F16, NRD_DTYPE_F16, 3, 1, (const int[]){640}, 512, true, 0, false);
    if (!small_only) {
        for (int n = 1; n <= 256; n *= 4) {
            check_linear(NRD_DTYPE_BF16, NRD_DTYPE_BF16, n, 2, (const int[]){14336, 14336}, 4096, false, 0,
                         false);
            check_linear(NRD_DTYPE_F8_E4M3, NRD_DTYPE_BF16, n, 1, (const int[]){4096}, 14336, false, 0,
                         false);
        }
    }
}

/* Weights of 4 and 8 bits: parts of some formats, loaded once for products of many numbers of rows. */
typedef struct quantized {
    test_weight w[4], b[4];
    int n_parts, cols, total, rows[4];
} quantized;

static void quantized_up(quantized *q, const nrd_dtype *types, int n_parts, const int *rows, int cols)
{
    size_t row_bytes;
    bool row_scale = true;

    memset(q, 0, sizeof *q);
    q->n_parts = n_parts;
    q->cols = cols;
    for (int i = 0; i < n_parts; i++) {
        test_weight *w = &q->w[i];
        if (nrd_dtype_is_quant(types[i])) {
            weight_blocks(w, types[i], rows[i], cols, 1.0f);
        } else {
            weight_random(w, types[i], rows[i], cols, 1.0f, true);
        }
        if (dev->ops->linear_input(dev, &w->dev, NRD_DTYPE_F32, &row_bytes, &row_scale) != NRD_DTYPE_BF16 ||
            row_bytes != (size_t)cols * 2 || row_scale) {
            verdict("linear_input of a quantized weight", NAN, 0);
        }
        weight_random(&q->b[i], NRD_DTYPE_F32, rows[i], 1, 10.0f, false);
        q->rows[i] = rows[i];
        q->total += rows[i];
    }
}

static void quantized_gone(quantized *q)
{
    for (int i = 0; i < q->n_parts; i++) {
        weight_gone(&q->w[i]);
        weight_gone(&q->b[i]);
    }
}

/* Weights whose numbers a product takes as the file means them; the others are rounded to bf16 first. */
static bool takes_exact(const test_weight *w, int n, bool deterministic)
{
    const nrd_dtype t = w->host.dtype;
    return w->dev.dtype != NRD_DTYPE_BF16 &&
           (t == NRD_DTYPE_I8 || (n <= 16 && !deterministic &&
                                  (t == NRD_DTYPE_Q4_0 || t == NRD_DTYPE_Q4_1 || t == NRD_DTYPE_Q4_K)));
}

/* One number of x W^T, as the device multiplies weights for n rows of x. */
static double quantized_at(const quantized *q, const void *x, size_t token, int row, bool bias, int n,
                           bool deterministic)
{
    double sum = 0;
    int p = 0;

    while (row >= q->rows[p]) {
        row -= q->rows[p++];
    }
    const test_weight *w = &q->w[p];
    const bool exact = takes_exact(w, n, deterministic);
    for (int c = 0; c < q->cols; c++) {
        const double v = weight_at(w, row, c);
        sum += (double)get(NRD_DTYPE_BF16, x, token * (size_t)q->cols + (size_t)c) *
               (exact ? v : (double)round_to(NRD_DTYPE_BF16, (float)v));
    }
    return sum + (bias ? weight_at(&q->b[p], row, 0) : 0.0);
}

static void check_quantized(const quantized *q, nrd_dtype y_t, int n, bool bias, float softcap, bool deterministic)
{
    nrd_linear_args a = {.n_tokens = n, .x_dtype = NRD_DTYPE_BF16, .n_parts = q->n_parts,
                         .y_dtype = y_t, .softcap = softcap, .deterministic = deterministic};
    const size_t total = (size_t)q->total, all = (size_t)n * total;
    void *x = random_host(NRD_DTYPE_BF16, (size_t)n * (size_t)q->cols, 1.0f);
    void *dx = dev_put(x, (size_t)n * (size_t)q->cols * 2), *y = poisoned(all * elem(y_t) + 64);
    const char *first = nrd_dtype_name(q->w[0].host.dtype);
    char name[200];

    for (int i = 0; i < q->n_parts; i++) {
        a.w[i] = &q->w[i].dev;
        a.bias[i] = bias ? &q->b[i].dev : NULL;
    }
    a.x = dx;
    a.y = y;
    OK(dev->ops->linear(st, &a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(y_t, y, NULL, (size_t)n, total);
    size_t m = (size_t)(1000000 / q->cols); /* numbers to look at, corners first */
    m = m < 200 ? 200 : m > 2000 ? 2000 : m;
    m = m > all ? all : m;
    float *g = malloc(m * 4);
    double *want = malloc(m * sizeof *want), bad = 0;
    for (size_t i = 0; i < all; i++) {
        bad += isfinite(got[i]) ? 0 : 1;
    }
    for (size_t i = 0; i < m; i++) {
        const size_t at = m == all ? i : i == 0 ? all - 1 : i == 1 ? total - 1 : i == 2 ? all - total : rng() % all;
        const double sum = quantized_at(q, x, at / total, (int)(at % total), bias, n, deterministic);
        want[i] = softcap > 0 ? (double)softcap * tanh(sum / (double)softcap) : sum;
        g[i] = got[at];
    }
    snprintf(name, sizeof name, "linear %s%s%s -> %s, %d x (%d parts, first %d) x %d%s%s%s", first,
             q->n_parts > 1 ? " .. " : "",
             q->n_parts > 1 ? nrd_dtype_name(q->w[q->n_parts - 1].host.dtype) : "", nrd_dtype_name(y_t), n,
             q->n_parts, q->rows[0], q->cols, bias ? " bias" : "", softcap > 0 ? " cap" : "",
             deterministic ? " det" : "");
    /* Where scale times number has few bits the rounding to bf16 is the reference's; elsewhere a few go to
     * the other neighbour. */
    bool same = true;
    for (int i = 0; i < q->n_parts; i++) {
        const nrd_dtype t = q->w[i].host.dtype;
        same = same && (takes_exact(&q->w[i], n, deterministic) || t == NRD_DTYPE_Q4_0 || t == NRD_DTYPE_Q5_0 || t == NRD_DTYPE_Q8_0 || t == NRD_DTYPE_I8);
    }
    verdict(name, bad > 0 ? NAN : distance(g, want, m),
            fmax(out_eps(y_t), same ? 1e-4 : 2.5e-3) + (softcap > 0 ? 2e-3 : 0));
    dev_free(dx);
    dev_free(y);
    free(x);
    free(got);
    free(g);
    free(want);
}

void all_quantized(void)
{
    static const nrd_dtype types[] = {NRD_DTYPE_Q4_0, NRD_DTYPE_Q4_1, NRD_DTYPE_Q4_K, NRD_DTYPE_Q8_0, NRD_DTYPE_Q6_K,
                                      NRD_DTYPE_I8,   NRD_DTYPE_Q5_0, NRD_DTYPE_Q5_1, NRD_DTYPE_Q5_K};
    static const int tokens[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  11, 13,  15,  16,  17,
                                 24, 31, 32, 33, 47, 63, 64, 65, 97, 128, 129, 200, 257, 300};
    enum { N = sizeof tokens / sizeof *tokens };
    quantized q;

    for (int t = 0; t < 9; t++) {
        const nrd_dtype same[] = {types[t], types[t], types[t]};
        const int block = nrd_dtype_block(types[t]), three[] = {1024, 256, 250};
        quantized_up(&q, same, 3, three, 1024);
        for (int i = 0; i < N; i++) {
            check_quantized(&q, i % 2 ? NRD_DTYPE_BF16 : NRD_DTYPE_F16, tokens[i], i % 2, 0, i % 5 == 4);
        }
        quantized_gone(&q);
        for (int i = 0; i < N; i += i < 8 ? 1 : 2) {
            const int one[] = {rnd(1, 700)};
            quantized_up(&q, same, 1, one, block * rnd(1, 2560 / block));
            check_quantized(&q, NRD_DTYPE_F32, tokens[i], i % 3 == 0, i % 4 == 2 ? 30.0f : 0, i % 7 == 3);
            quantized_gone(&q);
        }
        if (!small_only) {
            quantized_up(&q, same, 2, (const int[]){14336, 14336}, 4096);
            for (int n = 1; n <= 256; n *= 4) {
                check_quantized(&q, NRD_DTYPE_BF16, n, false, 0, false);
            }
            quantized_gone(&q);
            quantized_up(&q, same, 1, (const int[]){4096}, 14336);
            for (int n = 2; n <= 512; n *= 4) {
                check_quantized(&q, NRD_DTYPE_F32, n, false, 0, n == 32);
            }
            quantized_gone(&q);
        }
    }
    if (!small_only) {
        quantized_up(&q, (const nrd_dtype[]){NRD_DTYPE_Q4_K}, 1, (const int[]){128256}, 1024);
        check_quantized(&q, NRD_DTYPE_F32, 9, false, 0, false);
        quantized_gone(&q);
        quantized_up(&q, (const nrd_dtype[]){NRD_DTYPE_Q4_0}, 1, (const int[]){64}, 53248);
        check_quantized(&q, NRD_DTYPE_F32, 16, true, 0, false);
        quantized_gone(&q);
    }
    /* as files mix them; one part that is kept as bf16 */
    static const nrd_dtype mixed[][3] = {{NRD_DTYPE_Q4_K, NRD_DTYPE_Q4_K, NRD_DTYPE_Q6_K},
                                         {NRD_DTYPE_Q4_K, NRD_DTYPE_Q3_K, NRD_DTYPE_Q5_K},
                                         {NRD_DTYPE_Q2_K, NRD_DTYPE_Q2_K, NRD_DTYPE_Q3_K},
                                         {NRD_DTYPE_IQ4_XS, NRD_DTYPE_IQ4_NL, NRD_DTYPE_Q5_K}};
    for (int i = 0; i < 16; i++) {
        const int rows[] = {512, 128, 136}, n[] = {1, 9, 33, 150};
        quantized_up(&q, mixed[i / 4], 3, rows, 768);
        check_quantized(&q, i % 2 ? NRD_DTYPE_BF16 : NRD_DTYPE_F32, n[i % 4], i % 3 != 0, 0, i == 2);
        quantized_gone(&q);
    }
    /* columns that no wide load divides, rows of y that no wide store divides */
    quantized_up(&q, (const nrd_dtype[]){NRD_DTYPE_I8}, 1, (const int[]){37}, 35);
    for (int n = 1; n <= 139; n += 23) {
        check_quantized(&q, NRD_DTYPE_F32, n, true, 0, n == 70);
    }
    quantized_gone(&q);
}

/* A row's result must not depend on its neighbours when that was asked for. */
void check_deterministic(nrd_dtype t)
{
    enum { N = 300, ROWS = 300, COLS = 1280 };
    static const int counts[] = {1, 6, 12, 30, 60, 130, 1};
    test_weight w;
    void *x = random_host(NRD_DTYPE_BF16, (size_t)N * COLS, 1.0f);
    float *all, *some;

    if (nrd_dtype_is_quant(t)) {
        weight_blocks(&w, t, ROWS, COLS, 1.0f);
    } else {
        weight_random(&w, t, ROWS, COLS, 1.0f, true);
    }
    void *dx = dev_put(x, (size_t)N * COLS * 2), *y = poisoned((size_t)N * ROWS * 4);
    nrd_linear_args a = {.n_tokens = N, .x = dx, .x_dtype = NRD_DTYPE_BF16,
                         .n_parts = 1, .w = {&w.dev}, .y = y, .y_dtype = NRD_DTYPE_F32,
                         .deterministic = true};
    OK(dev->ops->linear(st, &a));
    all = fetch(NRD_DTYPE_F32, y, NULL, N, ROWS);
    for (int i = 0; i < (int)(sizeof counts / sizeof *counts); i++) {
        const int at = i * 28, n = counts[i];
        a.x = (const char *)dx + (size_t)at * COLS * 2;
        a.n_tokens = n;
        OK(dev->ops->linear(st, &a));
        some = fetch(NRD_DTYPE_F32, y, NULL, (size_t)n, ROWS);
        verdict("linear deterministic",
                memcmp(some, all + (size_t)at * ROWS, (size_t)n * ROWS * 4) ? 1 : 0, 0);
        free(some);
    }
    free(all);
    free(x);
    dev_free(dx);
    dev_free(y);
    weight_gone(&w);
}
