/* gpu_check - every operation of a device plug-in against plain loops in double.
 *
 *   gpu_check build/lib/nereid_cuda.so [small] [SECTION]
 * Fresh random data for every case; outputs are filled with NaN bits before each call, so that an
 * element nobody wrote is an error. Tolerances: relative error of the whole result (root of sums of
 * squares), from the rounding of the output type: bf16 2^-9, fp16 2^-12, F8 2^-4, each times about 2.
 * `small` leaves out the large shapes (for memory checkers).
 */
#include "gpu.h"

static int failures, cases;
static bool small_only;

static void verdict(const char *name, double err, double limit)
{
    cases++;
    if (!(err <= limit)) { /* NaN fails */
        failures++;
        printf("  FAIL %s: error %.3g, limit %.3g\n", name, err, limit);
    }
}

static double out_eps(nrd_dtype t)
{
    return t == NRD_DTYPE_BF16 ? 4e-3 : t == NRD_DTYPE_F16 ? 1e-3 : t == NRD_DTYPE_F8_E4M3 ? 4e-2 : 2e-5;
}

/* ||got - want|| / ||want|| */
static double distance(const float *got, const double *want, size_t n)
{
    double d = 0, w = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(got[i])) {
            return NAN;
        }
        d += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        w += want[i] * want[i];
    }
    return sqrt(d / (w > 0 ? w : 1));
}

static void *poisoned(size_t bytes)
{
    void *p = dev_new(bytes);
    OK(dev->ops->fill(st, p, 0xff, bytes));
    return p;
}

/* Rows of an output type (F8 with scales) as floats. */
static float *fetch(nrd_dtype t, void *d, const float *d_scale, size_t rows, size_t cols)
{
    void *raw = malloc(rows * cols * elem(t));
    float *scale = malloc(rows * 4), *out = malloc(rows * cols * 4);

    dev_get(raw, d, rows * cols * elem(t));
    if (t == NRD_DTYPE_F8_E4M3) {
        dev_get(scale, d_scale, rows * 4);
    }
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            out[r * cols + c] = get(t, raw, r * cols + c) * (t == NRD_DTYPE_F8_E4M3 ? scale[r] : 1.0f);
        }
    }
    free(raw);
    free(scale);
    return out;
}

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

static void all_linear(void)
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

static void all_quantized(void)
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
                                         {NRD_DTYPE_Q2_K, NRD_DTYPE_Q2_K, NRD_DTYPE_Q3_K}};
    for (int i = 0; i < 12; i++) {
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
static void check_deterministic(nrd_dtype t)
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

/* ---- norm ---- */

static void check_norm(nrd_dtype t, nrd_dtype out_t, nrd_norm_kind kind, int n, int hidden, bool delta,
                       bool post, bool ids)
{
    const size_t all = (size_t)n * (size_t)hidden;
    const int n_out = ids ? (n + 1) / 2 : n;
    void *res = random_host(t, all, 2.0f), *del = random_host(t, all, 1.0f);
    int32_t *row_ids = malloc((size_t)n * 4);
    test_weight w, b, dw;
    char name[160];

    for (int i = 0; i < n; i++) {
        row_ids[i] = rnd(0, n - 1);
    }
    weight_random(&w, rng() % 2 ? NRD_DTYPE_BF16 : NRD_DTYPE_F32, hidden, 1, 1.0f, false);
    weight_random(&b, NRD_DTYPE_F32, hidden, 1, 1.0f, false);
    weight_random(&dw, NRD_DTYPE_F32, hidden, 1, 1.0f, false);
    void *d_res = dev_put(res, all * elem(t)), *d_del = dev_put(del, all * elem(t));
    int32_t *d_ids = dev_put(row_ids, (size_t)n * 4);
    void *out = poisoned((size_t)n_out * (size_t)hidden * elem(out_t));
    float *scale = poisoned((size_t)n_out * 4);
    nrd_norm_args a = {.kind = kind, .eps = 1e-5f, .n_tokens = n, .hidden = hidden,
                       .delta = delta ? d_del : NULL, .delta_weight = post ? &dw.dev : NULL,
                       .residual = d_res, .weight = &w.dev,
                       .bias = kind == NRD_NORM_LAYER ? &b.dev : NULL, .row_ids = ids ? d_ids : NULL,
                       .n_rows = n_out, .out = out, .out_dtype = out_t,
                       .out_row_scale = out_t == NRD_DTYPE_F8_E4M3 ? scale : NULL, .act_dtype = t};
    OK(dev->ops->norm(st, &a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(out_t, out, scale, (size_t)n_out, (size_t)hidden);
    float *got_res = fetch(t, d_res, NULL, (size_t)n, (size_t)hidden);
    double *want = malloc(all * sizeof *want), *want_res = malloc(all * sizeof *want_res);
    for (int i = 0; i < n; i++) {
        double sum = 0;
        const size_t at = (size_t)i * (size_t)hidden;
        for (int c = 0; c < hidden; c++) {
            const double d = (double)get(t, del, at + (size_t)c);
            sum += d * d;
        }
        for (int c = 0; c < hidden; c++) {
            double d = delta ? (double)get(t, del, at + (size_t)c) : 0;
            d *= delta && post ? weight_at(&dw, c, 0) / sqrt(sum / hidden + 1e-5) : 1;
            want_res[at + (size_t)c] = (double)get(t, res, at + (size_t)c) + d;
        }
    }
    for (int i = 0; i < n_out; i++) {
        const size_t from = (size_t)(ids ? row_ids[i] : i) * (size_t)hidden;
        double mean = 0, var = 0;
        for (int c = 0; c < hidden; c++) {
            mean += kind == NRD_NORM_LAYER ? (double)got_res[from + (size_t)c] / hidden : 0;
        }
        for (int c = 0; c < hidden; c++) {
            const double d = (double)got_res[from + (size_t)c] - mean;
            var += d * d / hidden;
        }
        for (int c = 0; c < hidden; c++) {
            want[(size_t)i * (size_t)hidden + (size_t)c] =
                ((double)got_res[from + (size_t)c] - mean) / sqrt(var + 1e-5) * weight_at(&w, c, 0) +
                (kind == NRD_NORM_LAYER ? weight_at(&b, c, 0) : 0);
        }
    }
    snprintf(name, sizeof name, "norm %d %s -> %s, %d x %d%s%s%s", (int)kind, nrd_dtype_name(t),
             nrd_dtype_name(out_t), n, hidden, delta ? " delta" : "", post ? " post" : "",
             ids ? " ids" : "");
    verdict(name, distance(got, want, (size_t)n_out * (size_t)hidden), out_eps(out_t));
    verdict("norm residual", distance(got_res, want_res, all), out_eps(t));
    weight_gone(&w);
    weight_gone(&b);
    weight_gone(&dw);
    dev_free(d_res);
    dev_free(d_del);
    dev_free(d_ids);
    dev_free(out);
    dev_free(scale);
    free(res);
    free(del);
    free(row_ids);
    free(got);
    free(got_res);
    free(want);
    free(want_res);
}

/* Rows alone, by fours and all together: a row's bits are the same. */
static void check_norm_alone(nrd_dtype t, nrd_dtype out_t, nrd_norm_kind kind, int hidden)
{
    enum { N = 19 };
    static const int steps[] = {1, 4, N};
    const size_t all = (size_t)N * (size_t)hidden, out_bytes = all * elem(out_t);
    void *res = random_host(t, all, 2.0f), *d_del, *first = NULL, *raw = malloc(out_bytes + N * 4);
    void *del = random_host(t, all, 1.0f);
    test_weight w, b;
    char name[120];

    weight_random(&w, NRD_DTYPE_F32, hidden, 1, 1.0f, false);
    weight_random(&b, NRD_DTYPE_F32, hidden, 1, 1.0f, false);
    d_del = dev_put(del, all * elem(t));
    for (int k = 0; k < 3; k++) {
        char *d_res = dev_put(res, all * elem(t)), *out = poisoned(out_bytes);
        float *scale = poisoned(N * 4);
        for (int r = 0; r < N; r += steps[k]) {
            const size_t at = (size_t)r * (size_t)hidden;
            nrd_norm_args a = {.kind = kind, .eps = 1e-5f, .hidden = hidden,
                               .n_tokens = r + steps[k] < N ? steps[k] : N - r,
                               .delta = (char *)d_del + at * elem(t), .residual = d_res + at * elem(t),
                               .weight = &w.dev, .bias = kind == NRD_NORM_LAYER ? &b.dev : NULL,
                               .out = out + at * elem(out_t), .out_dtype = out_t, .act_dtype = t,
                               .out_row_scale = out_t == NRD_DTYPE_F8_E4M3 ? scale + r : NULL};
            OK(dev->ops->norm(st, &a));
        }
        OK(dev->ops->stream_sync(st));
        memset(raw, 0, out_bytes + N * 4);
        dev_get(raw, out, out_bytes);
        if (out_t == NRD_DTYPE_F8_E4M3) {
            dev_get((char *)raw + out_bytes, scale, N * 4);
        }
        snprintf(name, sizeof name, "norm %d %s -> %s of %d, rows by %d", (int)kind, nrd_dtype_name(t),
                 nrd_dtype_name(out_t), hidden, steps[k]);
        if (first) {
            verdict(name, memcmp(first, raw, out_bytes + N * 4) ? 1 : 0, 0);
        } else {
            first = malloc(out_bytes + N * 4);
            memcpy(first, raw, out_bytes + N * 4);
        }
        dev_free(d_res);
        dev_free(out);
        dev_free(scale);
    }
    weight_gone(&w);
    weight_gone(&b);
    dev_free(d_del);
    free(res);
    free(del);
    free(raw);
    free(first);
}

static void all_norm(void)
{
    static const int hiddens[] = {1, 63, 640, 1024, 2056, 4096, 5120, 16384, 40000};
    static const nrd_dtype types[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F32};

    for (int i = 0; i < 9; i++) {
        for (int t = 0; t < 3; t++) {
            const int n = i < 7 ? rnd(1, 9) : 2;
            check_norm(types[t], types[t], NRD_NORM_RMS, n, hiddens[i], true, false, false);
            check_norm(types[t], NRD_DTYPE_F8_E4M3, NRD_NORM_RMS, n, hiddens[i], t != 0, t == 1, false);
            check_norm(types[t], NRD_DTYPE_BF16, NRD_NORM_LAYER, n, hiddens[i], false, false, true);
            check_norm(types[t], types[t], NRD_NORM_LAYER, n, hiddens[i], true, false, true);
            check_norm(types[t], NRD_DTYPE_F8_E4M3, NRD_NORM_RMS, rnd(1, 8), hiddens[i], true, false, t == 2);
            check_norm(types[t], types[t], NRD_NORM_LAYER, 1, hiddens[i], true, false, true);
            if (i < 8 && t < 2) {
                check_norm_alone(types[t], types[t], NRD_NORM_LAYER, hiddens[i]);
                check_norm_alone(types[t], types[1 - t], NRD_NORM_RMS, hiddens[i]);
                check_norm_alone(types[t], NRD_DTYPE_F8_E4M3, NRD_NORM_RMS, hiddens[i]);
            }
        }
    }
}

/* ---- act ---- */

static double act_want(nrd_act_kind kind, double x)
{
    switch (kind) {
    case NRD_ACT_SILU:
        return x / (1 + exp(-x));
    case NRD_ACT_GELU_TANH:
        return 0.5 * x * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
    case NRD_ACT_GELU_ERF:
        return 0.5 * x * (1 + erf(x / sqrt(2.0)));
    case NRD_ACT_RELU:
        return x > 0 ? x : 0;
    case NRD_ACT_RELU2:
        return x > 0 ? x * x : 0;
    default:
        return x;
    }
}

static void check_act(nrd_dtype t, nrd_dtype out_t, nrd_act_kind kind, bool gated, int n, int inter)
{
    const size_t width = (size_t)inter * (gated ? 2 : 1), all = (size_t)n * (size_t)inter;
    void *x = random_host(t, (size_t)n * width, 2.0f);
    void *dx = dev_put(x, (size_t)n * width * elem(t)), *out = poisoned(all * elem(out_t));
    float *scale = poisoned((size_t)n * 4);
    nrd_act_args a = {.kind = kind, .gated = gated, .n_tokens = n, .inter = inter,
                      .x = dx, .act_dtype = t, .out = out, .out_dtype = out_t,
                      .out_row_scale = out_t == NRD_DTYPE_F8_E4M3 ? scale : NULL};
    double *want = malloc(all * sizeof *want);
    char name[120];

    OK(dev->ops->act(st, &a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(out_t, out, scale, (size_t)n, (size_t)inter);
    for (size_t r = 0; r < (size_t)n; r++) {
        for (size_t c = 0; c < (size_t)inter; c++) {
            want[r * (size_t)inter + c] = act_want(kind, (double)get(t, x, r * width + c)) *
                                          (gated ? (double)get(t, x, r * width + (size_t)inter + c) : 1);
        }
    }
    snprintf(name, sizeof name, "act %d %s -> %s, %d x %d%s", (int)kind, nrd_dtype_name(t),
             nrd_dtype_name(out_t), n, inter, gated ? " gated" : "");
    verdict(name, distance(got, want, all), out_eps(out_t) + 2e-6);
    free(x);
    free(want);
    free(got);
    dev_free(dx);
    dev_free(out);
    dev_free(scale);
}

static void all_act(void)
{
    static const int inters[] = {3, 64, 1000, 4096, 14336, 28672, 40000};
    static const nrd_dtype types[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F32};
    for (int i = 0; i < 7; i++) {
        for (int t = 0; t < 3; t++) {
            for (int k = 0; k <= NRD_ACT_RELU2; k++) {
                check_act(types[t], k % 2 ? NRD_DTYPE_F8_E4M3 : types[(t + k) % 3], (nrd_act_kind)k,
                          (k + i) % 2 == 0, rnd(1, 4), inters[i]);
                check_act(types[t], NRD_DTYPE_F8_E4M3, (nrd_act_kind)k, (k + i) % 2 != 0, rnd(1, 9),
                          inters[i]);
            }
        }
    }
    if (!small_only) { /* many long rows */
        check_act(NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3, NRD_ACT_SILU, true, 700, 14336);
        check_act(NRD_DTYPE_F16, NRD_DTYPE_F8_E4M3, NRD_ACT_GELU_TANH, true, 531, 4104);
        check_act(NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3, NRD_ACT_RELU2, false, 300, 9000);
        check_act(NRD_DTYPE_F32, NRD_DTYPE_F8_E4M3, NRD_ACT_SILU, true, 297, 2048);
    }
}

/* ---- embed, weights ---- */

static void check_embed(nrd_dtype t, nrd_dtype out_t, int n, int vocab, int hidden, bool pos)
{
    test_weight table, pt;
    int32_t *ids = malloc((size_t)n * 4), *positions = malloc((size_t)n * 4), slots[4];
    const void **prompt = calloc((size_t)n, sizeof *prompt);
    void *rows = random_host(out_t, (size_t)n * (size_t)hidden, 1.0f);
    void *d_rows = dev_put(rows, (size_t)n * (size_t)hidden * elem(out_t));
    double *want = malloc((size_t)n * (size_t)hidden * sizeof *want);

    const bool prompts = rng() % 2;
    weight_random(&table, t, vocab, hidden, 1.0f, t == NRD_DTYPE_F8_E4M3); /* integers for linear() are its own */
    weight_random(&pt, NRD_DTYPE_F16, 64, hidden, 1.0f, false);
    for (int i = 0; i < 4; i++) {
        slots[i] = rnd(0, vocab - 1);
    }
    for (int i = 0; i < n; i++) {
        ids[i] = i % 3 == 1 ? -1 - rnd(0, 3) : i % 5 == 4 ? vocab + rnd(0, 9) : rnd(0, vocab - 1);
        positions[i] = rnd(0, 63);
        if (ids[i] >= vocab && i % 2 && prompts) {
            prompt[i] = (const char *)d_rows + (size_t)i * (size_t)hidden * elem(out_t);
        }
        for (int c = 0; c < hidden; c++) {
            const int32_t id = ids[i] < 0 ? slots[-1 - ids[i]] : ids[i] >= vocab ? 0 : ids[i];
            const size_t at = (size_t)i * (size_t)hidden + (size_t)c;
            want[at] = (prompt[i] ? (double)get(out_t, rows, at) : 3.0 * weight_at(&table, id, c)) +
                       (pos ? weight_at(&pt, positions[i], c) : 0);
        }
    }
    int32_t *d_ids = dev_put(ids, (size_t)n * 4), *d_pos = dev_put(positions, (size_t)n * 4);
    int32_t *d_slots = dev_put(slots, sizeof slots);
    const void **d_prompt = dev_put(prompt, (size_t)n * sizeof *prompt);
    void *out = poisoned((size_t)n * (size_t)hidden * elem(out_t));
    nrd_embed_args a = {.n_tokens = n, .hidden = hidden, .ids = d_ids,
                        .slot_tokens = d_slots, .table = &table.dev, .scale = 3.0f,
                        .pos_table = pos ? &pt.dev : NULL, .positions = d_pos,
                        .prompt_table = prompts ? d_prompt : NULL, .out = out, .out_dtype = out_t};
    OK(dev->ops->embed(st, &a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(out_t, out, NULL, (size_t)n, (size_t)hidden);
    verdict("embed", distance(got, want, (size_t)n * (size_t)hidden),
            out_eps(out_t) + (t == NRD_DTYPE_I8 ? 4e-3 : 0));
    weight_gone(&table);
    weight_gone(&pt);
    dev_free(d_ids);
    dev_free(d_pos);
    dev_free(d_slots);
    dev_free(d_prompt);
    dev_free(d_rows);
    dev_free(out);
    free(ids);
    free(positions);
    free(prompt);
    free(rows);
    free(got);
    free(want);
}

/* A weight of every format, seen through embed, against base/dtype.c. */
static void check_formats(void)
{
    for (int t = NRD_DTYPE_Q4_0; t <= NRD_DTYPE_Q6_K; t++) {
        enum { ROWS = 5, COLS = 512 };
        test_weight w = {.host = {.dtype = (nrd_dtype)t, .rows = ROWS, .cols = COLS}};
        size_t bytes;
        float *x = random_host(NRD_DTYPE_F32, ROWS * COLS, 1.0f), *deq = malloc(ROWS * COLS * 4);
        double *want = malloc(ROWS * COLS * sizeof *want);
        int32_t ids[ROWS] = {0, 1, 2, 3, 4};

        if (!nrd_dtype_bytes((nrd_dtype)t, COLS, &bytes)) {
            verdict(nrd_dtype_name((nrd_dtype)t), NAN, 0);
            continue;
        }
        char *q = malloc(bytes * ROWS);
        for (int r = 0; r < ROWS; r++) {
            if (!nrd_quantize_row((nrd_dtype)t, x + r * COLS, q + (size_t)r * bytes, COLS) ||
                !nrd_dequantize_row((nrd_dtype)t, q + (size_t)r * bytes, deq + r * COLS, COLS)) {
                printf("  FAIL no definition of %s\n", nrd_dtype_name((nrd_dtype)t));
                failures++;
            }
        }
        w.host.data = q;
        weight_up(&w, false);
        int32_t *d_ids = dev_put(ids, sizeof ids);
        void *out = poisoned(ROWS * COLS * 4);
        nrd_embed_args a = {.n_tokens = ROWS, .hidden = COLS, .ids = d_ids,
                            .table = &w.dev, .scale = 1.0f, .out = out, .out_dtype = NRD_DTYPE_F32};
        OK(dev->ops->embed(st, &a));
        float *got = fetch(NRD_DTYPE_F32, out, NULL, ROWS, COLS);
        for (int i = 0; i < ROWS * COLS; i++) {
            want[i] = (double)deq[i];
        }
        verdict(nrd_dtype_name((nrd_dtype)t), distance(got, want, ROWS * COLS), 4e-3);
        weight_gone(&w);
        dev_free(d_ids);
        dev_free(out);
        free(x);
        free(deq);
        free(got);
        free(want);
    }
}

/* ---- rope_kv and attention over one paged cache ---- */

enum { ATTN_SEQS = 48 };
typedef struct attn_case {
    nrd_dtype act, kv, out;
    int n_heads, n_kv, hd, bt, n_seqs;
    int q_len[ATTN_SEQS], ctx[ATTN_SEQS];
    int n_empty;                      /* the last so many singles have no memory: zero comes out */
    int64_t single_ctx, prompt_pairs; /* hints of the view, with `declare` */
    int window, n_sink;
    float softcap;
    bool tree, deterministic, qk_norm;
    bool declare; /* n_single of the batch view */
    nrd_rope_kind rope;
} attn_case;

static bool is_empty(const attn_case *c, int s)
{
    return c->ctx[s] == 1 && s < c->n_empty;
}

static void check_attention(const attn_case *c)
{
    const int row = (c->n_heads + 2 * c->n_kv) * c->hd, group = c->n_heads / c->n_kv;
    int n_tokens = 0, max_q = 0, max_ctx = 0, total = 0, n_blocks = 1, stride = 0;
    int32_t q_start[ATTN_SEQS + 1] = {0}, first[ATTN_SEQS + 1] = {0};
    const float k_scale = 0.05f, v_scale = 0.04f, scale = 1.0f / sqrtf((float)c->hd);
    const bool scaled = c->kv == NRD_DTYPE_F8_E4M3 || c->kv == NRD_DTYPE_I8;

    for (int s = 0; s < c->n_seqs; s++) {
        n_tokens += c->q_len[s];
        q_start[s + 1] = n_tokens;
        total += c->ctx[s];
        first[s + 1] = total;
        max_q = c->q_len[s] > max_q ? c->q_len[s] : max_q;
        max_ctx = c->ctx[s] > max_ctx ? c->ctx[s] : max_ctx;
        n_blocks += (c->ctx[s] + c->bt - 1) / c->bt;
    }
    stride = (max_ctx + c->bt - 1) / c->bt + 1;
    /* blocks in random order; those wholly out of every window are dropped */
    int32_t *table = malloc((size_t)(c->n_seqs * stride) * 4), *perm = malloc((size_t)n_blocks * 4);
    for (int i = 0; i < n_blocks; i++) {
        const int j = rnd(0, i);
        perm[i] = perm[j];
        perm[j] = i;
    }
    for (int s = 0, next = 0; s < c->n_seqs; s++) {
        for (int i = 0; i < stride; i++) {
            table[s * stride + i] = i * c->bt < c->ctx[s] && !is_empty(c, s) ? perm[next++] : -1;
        }
    }
    const size_t block_bytes = dev->ops->kv_block_bytes(dev, c->kv, c->bt, c->n_kv, c->hd);
    void *cache = poisoned(block_bytes * (size_t)n_blocks);
    float *inv_freq = malloc((size_t)c->hd * 2);
    const int rot = c->rope == NRD_ROPE_INTERLEAVED ? c->hd / 2 / 2 * 2 : c->hd;
    for (int i = 0; i < rot / 2; i++) {
        inv_freq[i] = powf(10000.0f, -2.0f * (float)i / (float)rot);
    }
    float *d_freq = dev_put(inv_freq, (size_t)(rot / 2) * 4);
    test_weight qn, kn;
    weight_random(&qn, NRD_DTYPE_F32, c->hd, 1, 1.0f, false);
    weight_random(&kn, NRD_DTYPE_F32, c->hd, 1, 1.0f, false);

    /* Every token of every context passes rope_kv: the old ones in one step, the new ones in another. */
    double *k_all = malloc((size_t)total * (size_t)(c->n_kv * c->hd) * sizeof *k_all);
    double *v_all = malloc((size_t)total * (size_t)(c->n_kv * c->hd) * sizeof *v_all);
    double *q_all = malloc((size_t)n_tokens * (size_t)(c->n_heads * c->hd) * sizeof *q_all);
    nrd_kv_layer kv = {.base = cache, .dtype = c->kv, .n_blocks = n_blocks, .block_tokens = c->bt,
                       .n_kv_heads = c->n_kv, .head_dim = c->hd, .k_scale = k_scale,
                       .v_scale = v_scale};
    int32_t *d_table = dev_put(table, (size_t)(c->n_seqs * stride) * 4);
    uint32_t *tree = malloc((size_t)n_tokens * 4);
    for (int s = 0, t = 0; s < c->n_seqs; s++) {
        for (int i = 0; i < c->q_len[s]; i++, t++) {
            tree[t] = ((uint32_t)rng() & ((1u << i) - 1)) | 1u << i;
        }
    }
    uint32_t *d_tree = dev_put(tree, (size_t)n_tokens * 4);
    void *d_qkv = NULL;
    nrd_batch_view view = {0};
    int32_t *d_pos = NULL, *d_seq = NULL, *d_start = NULL, *d_ctx = NULL, *pos_new = NULL;
    for (int step = 0; step < 2; step++) {
        int n = 0, t = 0;
        int32_t start[ATTN_SEQS + 1] = {0}, ctx[ATTN_SEQS];
        for (int s = 0; s < c->n_seqs; s++) {
            n += step ? c->q_len[s] : c->ctx[s] - c->q_len[s];
            start[s + 1] = n;
            ctx[s] = step ? c->ctx[s] : c->ctx[s] - c->q_len[s];
        }
        if (n == 0) {
            continue;
        }
        int32_t *pos = malloc((size_t)n * 4), *seq = malloc((size_t)n * 4);
        void *qkv = random_host(c->act, (size_t)n * (size_t)row, 1.0f);
        for (int s = 0; s < c->n_seqs; s++) {
            const int old = c->ctx[s] - c->q_len[s];
            for (int i = 0; i < (step ? c->q_len[s] : old); i++, t++) {
                const int slot = step ? old + i : i;
                /* in a tree siblings share a position */
                pos[t] = step && c->tree ? old + i / 2 : slot;
                seq[t] = s;
                for (int h = 0; h < c->n_heads + 2 * c->n_kv; h++) {
                    double x[512], sum = 0;
                    const bool is_q = h < c->n_heads, is_v = h >= c->n_heads + c->n_kv;
                    for (int d = 0; d < c->hd; d++) {
                        x[d] = (double)get(c->act, qkv, (size_t)t * (size_t)row + (size_t)(h * c->hd + d));
                        sum += x[d] * x[d];
                    }
                    if (c->qk_norm && !is_v) {
                        for (int d = 0; d < c->hd; d++) {
                            x[d] *= weight_at(is_q ? &qn : &kn, d, 0) / sqrt(sum / c->hd + 1e-6);
                        }
                    }
                    if (!is_v && c->rope != NRD_ROPE_NONE) {
                        for (int i2 = 0; i2 < rot / 2; i2++) {
                            const int a0 = c->rope == NRD_ROPE_NEOX ? i2 : 2 * i2;
                            const int a1 = c->rope == NRD_ROPE_NEOX ? i2 + rot / 2 : 2 * i2 + 1;
                            const double ang = (double)((float)pos[t] * inv_freq[i2]);
                            const double x0 = x[a0], x1 = x[a1];
                            x[a0] = x0 * cos(ang) - x1 * sin(ang);
                            x[a1] = x1 * cos(ang) + x0 * sin(ang);
                        }
                    }
                    for (int d = 0; d < c->hd; d++) {
                        if (is_q && step) {
                            q_all[(size_t)t * (size_t)(c->n_heads * c->hd) + (size_t)(h * c->hd + d)] =
                                (double)round_to(c->act, (float)x[d]);
                        } else if (!is_q) {
                            const double f = scaled ? (double)(is_v ? v_scale : k_scale) : 1.0;
                            const int kh = h - c->n_heads - (is_v ? c->n_kv : 0);
                            (is_v ? v_all : k_all)[((size_t)(first[s] + slot) * (size_t)c->n_kv +
                                                    (size_t)kh) * (size_t)c->hd + (size_t)d] =
                                (double)round_to(c->kv, (float)(x[d] / f)) * f;
                        }
                    }
                }
            }
        }
        dev_free(d_qkv);
        dev_free(d_pos);
        dev_free(d_seq);
        dev_free(d_start);
        dev_free(d_ctx);
        d_qkv = dev_put(qkv, (size_t)n * (size_t)row * elem(c->act));
        d_pos = dev_put(pos, (size_t)n * 4);
        d_seq = dev_put(seq, (size_t)n * 4);
        d_start = dev_put(start, sizeof start);
        d_ctx = dev_put(ctx, sizeof ctx);
        view = (nrd_batch_view){.n_tokens = n, .n_seqs = c->n_seqs, .max_q_len = step ? max_q : max_ctx,
                                .max_ctx_len = max_ctx, .positions = d_pos, .token_seq = d_seq,
                                .q_start = d_start, .ctx_len = d_ctx, .block_table = d_table,
                                .block_table_stride = stride, .tree_mask = step && c->tree ? d_tree : NULL,
                                .tree_mask_words = 1};
        /* sequences of one token at the front: declared, or for the device to find */
        while (step && c->declare && view.n_single < c->n_seqs && c->q_len[view.n_single] == 1) {
            view.n_single++;
        }
        if (view.n_single > 0) {
            view.single_ctx = c->single_ctx;
            view.prompt_pairs = c->prompt_pairs;
        }
        nrd_rope_kv_args a = {.batch = &view, .qkv = d_qkv, .act_dtype = c->act,
                              .n_heads = c->n_heads, .q_norm = c->qk_norm ? &qn.dev : NULL,
                              .k_norm = c->qk_norm ? &kn.dev : NULL, .norm_eps = 1e-6f, .rope = c->rope,
                              .rotary_dim = rot, .inv_freq = d_freq, .rope_scale = 1.0f, .kv = kv};
        OK(dev->ops->rope_kv(st, &a));
        OK(dev->ops->stream_sync(st));
        free(qkv);
        free(seq);
        free(pos_new);
        pos_new = pos;
    }
    /* now and then blocks before the window are gone */
    const int cols = c->n_heads * c->hd;
    void *out = poisoned((size_t)n_tokens * (size_t)cols * elem(c->out));
    float *out_scale = poisoned((size_t)n_tokens * 4);
    nrd_attention_args a = {.batch = &view, .q = d_qkv, .q_stride = row, .out = out,
                            .act_dtype = c->act, .out_dtype = c->out,
                            .out_row_scale = c->out == NRD_DTYPE_F8_E4M3 ? out_scale : NULL,
                            .n_heads = c->n_heads, .scale = scale, .softcap = c->softcap,
                            .window = c->window, .n_sink = c->n_sink, .kv = kv,
                            .deterministic = c->deterministic};
    OK(dev->ops->attention(st, &a));
    OK(dev->ops->stream_sync(st));
    float *got = fetch(c->out, out, out_scale, (size_t)n_tokens, (size_t)cols);
    double *want = calloc((size_t)n_tokens * (size_t)cols, sizeof *want);
    double *p = malloc((size_t)max_ctx * sizeof *p);
    for (int s = 0; s < c->n_seqs; s++) {
        const int old = c->ctx[s] - c->q_len[s];
        for (int i = 0; i < c->q_len[s] && !is_empty(c, s); i++) {
            const int t = q_start[s] + i, pos = pos_new[t];
            for (int h = 0; h < c->n_heads; h++) {
                const double *q = q_all + (size_t)t * (size_t)cols + (size_t)(h * c->hd);
                double top = -INFINITY, sum = 0;
                const int end = c->tree ? c->ctx[s] : pos + 1;
                for (int j = 0; j < end; j++) {
                    bool seen = c->window == 0 || j > pos - c->window || j < c->n_sink;
                    if (c->tree && j >= old) {
                        seen = tree[t] >> (j - old) & 1;
                    }
                    const double *k = k_all + ((size_t)(first[s] + j) * (size_t)c->n_kv +
                                               (size_t)(h / group)) * (size_t)c->hd;
                    double dot = 0;
                    for (int d = 0; d < c->hd; d++) {
                        dot += q[d] * k[d];
                    }
                    dot *= (double)scale;
                    if (c->softcap > 0) {
                        dot = (double)c->softcap * tanh(dot / (double)c->softcap);
                    }
                    p[j] = seen ? dot : -INFINITY;
                    top = fmax(top, p[j]);
                }
                for (int j = 0; j < end; j++) {
                    p[j] = exp(p[j] - top);
                    sum += p[j];
                }
                for (int j = 0; j < end; j++) {
                    const double *v = v_all + ((size_t)(first[s] + j) * (size_t)c->n_kv +
                                               (size_t)(h / group)) * (size_t)c->hd;
                    for (int d = 0; d < c->hd; d++) {
                        want[(size_t)t * (size_t)cols + (size_t)(h * c->hd + d)] += p[j] / sum * v[d];
                    }
                }
            }
        }
    }
    char name[200];
    snprintf(name, sizeof name,
             "attention %s kv %s -> %s, heads %d/%d x %d, block %d, %d seqs (%d of %d ..)%s%s%s%s",
             nrd_dtype_name(c->act), nrd_dtype_name(c->kv), nrd_dtype_name(c->out), c->n_heads, c->n_kv,
             c->hd, c->bt, c->n_seqs, c->q_len[0], c->ctx[0], c->window ? " window" : "",
             c->n_sink ? " sink" : "", c->softcap > 0 ? " cap" : "", c->tree ? " tree" : "");
    /* P is rounded to the 16-bit type of the tensor cores */
    const double p_eps = c->act == NRD_DTYPE_F32 ? 1e-4 : 4e-3;
    verdict(name, distance(got, want, (size_t)n_tokens * (size_t)cols), out_eps(c->out) + p_eps);
    dev_free(cache);
    dev_free(d_freq);
    dev_free(d_table);
    dev_free(d_tree);
    dev_free(d_qkv);
    dev_free(d_pos);
    dev_free(d_seq);
    dev_free(d_start);
    dev_free(d_ctx);
    dev_free(out);
    dev_free(out_scale);
    weight_gone(&qn);
    weight_gone(&kn);
    free(table);
    free(perm);
    free(inv_freq);
    free(k_all);
    free(v_all);
    free(q_all);
    free(tree);
    free(pos_new);
    free(got);
    free(want);
    free(p);
}

static void all_attention(void)
{
    static const nrd_dtype acts[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F32};
    static const int dims[] = {64, 128, 256, 80}, groups[] = {1, 2, 4, 8, 16, 3};
    const int n = small_only ? 40 : 160;

    for (int i = 0; i < n; i++) {
        const nrd_dtype act = acts[i % 10 < 7 ? 0 : i % 10 < 9 ? 1 : 2];
        attn_case c = {.act = act, .out = i % 4 == 3 ? NRD_DTYPE_F8_E4M3 : act,
                       .kv = i % 3 == 1 ? NRD_DTYPE_F8_E4M3 : i % 17 == 5 ? NRD_DTYPE_I8 : act,
                       .n_kv = rnd(1, 3), .hd = dims[i % 13 == 12 ? 3 : i % 3], .bt = 16 << rnd(0, 2),
                       .n_seqs = rnd(1, 5), .rope = (nrd_rope_kind)(i % 3), .qk_norm = i % 5 == 2};
        const int group = groups[rnd(0, 5)];
        c.n_heads = c.n_kv * group;
        c.softcap = i % 6 == 5 ? 20.0f : 0;
        c.window = i % 7 == 6 ? rnd(1, 150) : 0;
        c.n_sink = c.window && i % 2 ? rnd(1, 5) : 0;
        c.tree = i % 19 == 18;
        c.deterministic = i % 23 == 22;
        c.declare = i % 5 != 0;
        const int mode = i % 4; /* decode, prefill, mixed, few tokens */
        for (int s = 0; s < c.n_seqs; s++) {
            const int long_ctx = s == 0 && i % 8 == 0 ? (small_only ? 700 : 3000) : 300;
            c.ctx[s] = rnd(1, long_ctx);
            c.q_len[s] = mode == 0 || (mode == 2 && (i % 3 ? s % 2 == 0 : s < 2)) ? 1 : mode == 3 ? rnd(1, 6) : c.ctx[s];
            if (mode == 1 && s % 2 == 1) {
                c.q_len[s] = rnd(1, c.ctx[s]); /* a later chunk */
            }
            if (c.tree && c.q_len[s] > 16) {
                c.q_len[s] = 16;
            }
            c.q_len[s] = c.q_len[s] < c.ctx[s] ? c.q_len[s] : c.ctx[s];
            if (c.q_len[s] > 200) {
                c.q_len[s] = 200;
            }
        }
        check_attention(&c);
    }
}

/* Prompts of many tiles, whole and in chunks, alone and beside single tokens. */
static void long_prompts(void)
{
    for (int i = 0; i < 12; i++) {
        const nrd_dtype act = i % 5 == 4 ? NRD_DTYPE_F16 : NRD_DTYPE_BF16;
        attn_case c = {.act = act, .out = i % 4 == 3 ? NRD_DTYPE_F8_E4M3 : act,
                       .kv = i % 2 ? NRD_DTYPE_F8_E4M3 : act, .n_kv = 1 + i % 2,
                       .hd = i % 3 == 2 ? 64 : 128, .bt = i % 6 == 5 ? 32 : 64, .n_seqs = 2 + i % 4,
                       .rope = NRD_ROPE_NEOX, .qk_norm = i % 4 == 1, .declare = i % 3 != 0};
        c.n_heads = c.n_kv * (i % 3 == 1 ? 1 : 4);
        c.window = i == 6 ? 200 : 0;
        c.n_sink = i == 6 ? 3 : 0;
        c.softcap = i == 8 ? 15.0f : 0;
        for (int s = 0; s < c.n_seqs; s++) {
            c.ctx[s] = rnd(1, 900);
            c.q_len[s] = i % 2 && s < 2 ? 1 : i % 4 == 2 ? c.ctx[s] - c.ctx[s] / 3 : c.ctx[s];
        }
        check_attention(&c);
    }
}

/* Single tokens as the kernel for few multiprocessors takes them: alone, beside prompts with few or many
 * of the multiprocessors, filled up with sequences of no memory. What the step says about its work is
 * not true: that must change the way only. */
static void ring(void)
{
    static const int groups[] = {4, 1, 8, 5, 2};
    for (int i = 0; i < 30; i++) {
        const nrd_dtype act = i % 3 == 2 ? NRD_DTYPE_F16 : NRD_DTYPE_BF16;
        attn_case c = {.act = act, .out = i % 4 == 3 ? NRD_DTYPE_F8_E4M3 : act,
                       .kv = NRD_DTYPE_F8_E4M3, .n_kv = rnd(1, 3), .hd = 128, .bt = 64,
                       .n_seqs = i % 5 == 4 ? rnd(20, ATTN_SEQS) : rnd(1, 8),
                       .rope = NRD_ROPE_NEOX, .declare = true, .deterministic = i == 20};
        const int prompts = i % 2 == 0 ? 0 : c.n_seqs == 1 ? 0 : rnd(1, c.n_seqs > 3 ? 3 : c.n_seqs - 1);
        c.n_heads = c.n_kv * groups[i % 5];
        c.single_ctx = (int64_t)1 << 34;
        c.prompt_pairs = prompts == 0 ? 0 : (int64_t)1 << (i % 6 == 1 ? 34 : i % 6 == 3 ? 38 : 36);
        c.n_empty = i % 7 == 3 && c.n_seqs - prompts > 1 ? c.n_seqs - prompts : 0;
        for (int s = 0; s < c.n_seqs; s++) {
            const bool prompt = s >= c.n_seqs - prompts;
            c.ctx[s] = s == 0 && i % 3 == 0 ? rnd(1500, 3000) : rnd(1, prompt ? 500 : 300);
            c.ctx[s] = c.n_empty && !prompt && s % 3 == 1 ? 1 : c.ctx[s];
            c.q_len[s] = !prompt ? 1 : c.ctx[s] < 30 ? c.ctx[s] : rnd(20, c.ctx[s]);
        }
        check_attention(&c);
    }
}

/* One to nine sequences of one token: what a server with one user runs. */
static void few_tokens(void)
{
    static const int groups[] = {4, 1, 8, 5, 2}, contexts[] = {40, 300, 100, 2500, 700};
    for (int i = 0; i < (small_only ? 15 : 40); i++) {
        const nrd_dtype act = i % 3 == 2 ? NRD_DTYPE_F16 : NRD_DTYPE_BF16;
        attn_case c = {.act = act, .out = i % 5 ? NRD_DTYPE_F8_E4M3 : act,
                       .kv = i % 2 ? act : NRD_DTYPE_F8_E4M3, .n_kv = i % 4 ? rnd(1, 9) : 8,
                       .hd = i % 3 == 1 ? 64 : i % 13 == 12 ? 256 : 128, .bt = i % 4 == 1 ? 16 : 64,
                       .n_seqs = i % 2 ? 1 : rnd(1, 9), .rope = i % 11 == 10 ? NRD_ROPE_NONE : NRD_ROPE_NEOX,
                       .qk_norm = i % 6 == 5, .declare = i % 7 != 0};
        c.n_heads = c.n_kv * groups[rnd(0, 4)];
        c.window = i % 8 == 7 ? rnd(1, 400) : 0;
        c.n_sink = c.window ? rnd(0, 5) : 0;
        c.softcap = i % 9 == 8 ? 20.0f : 0;
        c.n_empty = i % 5 == 3 ? c.n_seqs : 0;
        for (int s = 0; s < c.n_seqs; s++) {
            c.ctx[s] = c.n_empty && s > 0 ? 1 : rnd(1, contexts[rnd(0, 4)]);
            c.ctx[s] = small_only && c.ctx[s] > 700 ? 700 : c.ctx[s];
            c.q_len[s] = 1;
        }
        check_attention(&c);
    }
}

/* Many (sequence, KV head) pairs: the kernel that gives each a single warp. */
static void many_pairs(void)
{
    for (int i = 0; i < 6; i++) {
        attn_case c = {.act = NRD_DTYPE_BF16, .out = NRD_DTYPE_BF16,
                       .kv = i % 2 ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_BF16, .n_kv = 220, .n_heads = 220 * (1 + i / 3),
                       .hd = i % 3 == 1 ? 128 : 64, .bt = 16 << (i % 3), .n_seqs = 8,
                       .rope = NRD_ROPE_NEOX, .window = i == 5 ? 70 : 0};
        c.declare = i % 2;
        for (int s = 0; s < 8; s++) {
            c.ctx[s] = rnd(1, 250);
            c.q_len[s] = i == 4 && s == 3 ? (c.ctx[s] < 30 ? c.ctx[s] : 30) : 1;
        }
        check_attention(&c);
    }
}

/* ---- sample, counts, copy_blocks, graphs ---- */

typedef struct candidate {
    float v;
    int id;
} candidate;

static int best_first(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->v != y->v ? (x->v > y->v ? -1 : 1) : x->id < y->id ? -1 : 1;
}

static void check_sample(int n_rows, int vocab, int kind)
{
    const int n_top = kind % 3 == 1 ? 4 : 0, slots = n_rows + 2;
    float *logits = malloc((size_t)n_rows * (size_t)vocab * 4), *bias = malloc((size_t)vocab * 4);
    uint32_t *mask = malloc(((size_t)vocab + 31) / 32 * 4);
    uint16_t *counts = calloc((size_t)slots * (size_t)vocab, 2);
    int32_t banned[20], *ids = malloc((size_t)n_rows * 4), *top = malloc((size_t)n_rows * 16);
    nrd_sample_row *rows = calloc((size_t)n_rows, sizeof *rows);
    float *lp = malloc((size_t)n_rows * 4), *lpn = malloc((size_t)n_rows * 4);
    float *top_lp = malloc((size_t)n_rows * 16);
    candidate *c = malloc((size_t)vocab * sizeof *c), *kept_ids = malloc((size_t)vocab * sizeof *c);

    for (size_t i = 0; i < (size_t)n_rows * (size_t)vocab; i++) {
        logits[i] = normal() * (kind % 4 == 3 ? 0.0f : 4.0f) + (kind % 4 == 3 ? (float)rnd(0, 3) : 0.0f);
    }
    for (int i = 0; i < vocab; i++) {
        bias[i] = normal();
        counts[rnd(0, slots - 1) * vocab + i] = (uint16_t)rnd(1, 3);
    }
    for (int i = 0; i < (vocab + 31) / 32; i++) {
        mask[i] = (uint32_t)rng();
    }
    for (int i = 0; i < 20; i++) {
        banned[i] = rnd(0, vocab - 1);
    }
    float *d_bias = dev_put(bias, (size_t)vocab * 4);
    uint32_t *d_mask = dev_put(mask, ((size_t)vocab + 31) / 32 * 4);
    for (int r = 0; r < n_rows; r++) {
        rows[r] = (nrd_sample_row){.slot = r + 1, .temperature = r % 4 == 0 ? 0 : 0.5f + uniform(),
                                   .top_k = r % 3 == 1 ? rnd(1, 60) : r % 7 == 6 ? vocab / 2 : 0,
                                   .top_p = r % 3 == 2 ? uniform() : 0, .min_p = r % 5 == 4 ? 0.05f : 0,
                                   .repetition_penalty = r % 2 ? 1.3f : 1.0f,
                                   .presence_penalty = r % 4 == 1 ? 0.5f : 0,
                                   .frequency_penalty = r % 4 == 2 ? 0.2f : 0, .seed = rng(),
                                   .draw = rng() % 100, .end_id = 3, .n_suppress_end = r % 6 == 5,
                                   .banned_start = r % 10, .n_banned = r % 3 == 0 ? 10 : 0,
                                   .bias = r % 5 == 1 ? d_bias : NULL, .mask = r % 6 == 2 ? d_mask : NULL,
                                   .flags = NRD_SAMPLE_LOGPROB | NRD_SAMPLE_NORMALIZE |
                                            (r % 2 ? NRD_SAMPLE_COUNTS : 0u) |
                                            (r % 8 == 7 ? NRD_SAMPLE_NO_UPDATE : 0u)};
    }
    float *d_logits = dev_put(logits, (size_t)n_rows * (size_t)vocab * 4);
    nrd_sample_row *d_rows = dev_put(rows, (size_t)n_rows * sizeof *rows);
    int32_t *d_banned = dev_put(banned, sizeof banned), *d_ids = poisoned((size_t)n_rows * 4);
    int32_t *d_slots = poisoned((size_t)slots * 4), *d_top = poisoned((size_t)n_rows * 16);
    uint16_t *d_counts = dev_put(counts, (size_t)slots * (size_t)vocab * 2);
    float *d_lp = poisoned((size_t)n_rows * 4), *d_lpn = poisoned((size_t)n_rows * 4);
    float *d_top_lp = poisoned((size_t)n_rows * 16);
    nrd_sample_args a = {.n_rows = n_rows, .vocab = vocab, .logits = d_logits,
                         .logits_stride = vocab, .rows = d_rows, .banned_ids = d_banned,
                         .counts = d_counts, .slot_tokens = d_slots, .out_ids = d_ids,
                         .out_logprob = d_lp, .out_logprob_norm = d_lpn, .n_top = n_top,
                         .out_top_ids = d_top, .out_top_logprobs = d_top_lp};
    OK(dev->ops->sample(st, &a));
    OK(dev->ops->stream_sync(st));
    dev_get(ids, d_ids, (size_t)n_rows * 4);
    dev_get(lp, d_lp, (size_t)n_rows * 4);
    dev_get(lpn, d_lpn, (size_t)n_rows * 4);
    dev_get(top, d_top, (size_t)n_rows * 16);
    dev_get(top_lp, d_top_lp, (size_t)n_rows * 16);
    int32_t *slot_tokens = malloc((size_t)slots * 4);
    uint16_t *after = malloc((size_t)slots * (size_t)vocab * 2);
    dev_get(slot_tokens, d_slots, (size_t)slots * 4);
    dev_get(after, d_counts, (size_t)slots * (size_t)vocab * 2);
    for (int r = 0; r < n_rows; r++) {
        const nrd_sample_row *q = &rows[r];
        uint16_t *n = counts + (size_t)q->slot * (size_t)vocab;
        char name[100];
        for (int i = 0; i < vocab; i++) {
            float v = logits[(size_t)r * (size_t)vocab + (size_t)i] + (q->bias ? bias[i] : 0);
            if ((q->flags & NRD_SAMPLE_COUNTS) && n[i]) {
                v = v > 0 ? v / q->repetition_penalty : v * q->repetition_penalty;
                v -= q->presence_penalty + q->frequency_penalty * (float)n[i];
            }
            if ((q->mask && !(mask[i / 32] >> (i % 32) & 1)) || (q->n_suppress_end && i == q->end_id)) {
                v = -INFINITY;
            }
            c[i] = (candidate){v, i};
        }
        for (int i = 0; i < q->n_banned; i++) {
            c[banned[q->banned_start + i]].v = -INFINITY;
        }
        const float chosen = c[ids[r] >= 0 && ids[r] < vocab ? ids[r] : 0].v;
        qsort(c, (size_t)vocab, sizeof *c, best_first);
        double total = 0, peak = (double)c[0].v, inv_t;
        int kept = 0;
        while (kept < vocab && c[kept].v != -INFINITY) {
            total += exp((double)c[kept++].v - peak);
        }
        const double log_total = peak + log(total);
        for (int i = 0; i < n_top; i++) {
            /* rounding of the adjusted logits may swap near ties: the values must agree */
            snprintf(name, sizeof name, "sample top %d of row %d", i, r);
            verdict(name, fabs((double)top_lp[r * n_top + i] - ((double)c[i].v - log_total)), 2e-4);
        }
        const bool greedy = q->temperature <= 0 || q->top_k == 1;
        inv_t = greedy ? 1 : 1 / (double)q->temperature;
        kept = greedy ? 1 : q->top_k > 0 && q->top_k < kept ? q->top_k : kept;
        total = 0;
        for (int i = 0; i < kept; i++) {
            total += exp(((double)c[i].v - peak) * inv_t);
        }
        if (q->top_p > 0 && q->top_p < 1) {
            double sum = 0;
            int i = 0;
            while (i < kept && sum < (double)q->top_p * total) {
                sum += exp(((double)c[i++].v - peak) * inv_t);
            }
            kept = i;
        }
        if (q->min_p > 0) {
            int i = 0;
            while (i < kept && exp(((double)c[i].v - peak) * inv_t) >= (double)q->min_p) {
                i++;
            }
            kept = i > 0 ? i : 1;
        }
        total = 0;
        for (int i = 0; i < kept; i++) {
            total += exp(((double)c[i].v - peak) * inv_t);
        }
        /* walk in id order; the device sums integers, so a draw on a border may fall to either side */
        memcpy(kept_ids, c, (size_t)kept * sizeof *c);
        double below = 0, upto = 0;
        bool member = false;
        for (int i = 0; i < kept; i++) {
            const double w = exp(((double)c[i].v - peak) * inv_t);
            below += c[i].id < ids[r] ? w : 0;
            upto += c[i].id <= ids[r] ? w : 0;
            member = member || c[i].id == ids[r];
        }
        const double u = kept == 1 ? 0 : (double)nrd_sample_uniform(q->seed, q->draw) * total;
        const double slack = 2e-5 * total;
        snprintf(name, sizeof name, "sample row %d of %d, vocab %d (k %d p %.2f m %.2f t %.2f)", r, n_rows,
                 vocab, q->top_k, (double)q->top_p, (double)q->min_p, (double)q->temperature);
        verdict(name, member && below <= u + slack && upto >= u - slack ? 0 : 1, 0);
        verdict("sample logprob", fabs((double)lp[r] - ((double)chosen - log_total)), 2e-4);
        verdict("sample logprob_norm",
                fabs((double)lpn[r] - (((double)chosen - peak) * inv_t - log(total))), 2e-4);
        if (!(q->flags & NRD_SAMPLE_NO_UPDATE)) {
            verdict("sample slot", slot_tokens[q->slot] == ids[r] ? 0 : 1, 0);
        }
        if ((q->flags & NRD_SAMPLE_COUNTS) && !(q->flags & NRD_SAMPLE_NO_UPDATE)) {
            n[ids[r]]++;
        }
    }
    verdict("sample counts", memcmp(after, counts, (size_t)slots * (size_t)vocab * 2) ? 1 : 0, 0);

    /* counts: a slot starts anew */
    enum { N = 3000 };
    int32_t list[N];
    for (int i = 0; i < N; i++) {
        list[i] = rnd(0, vocab < 50 ? vocab - 1 : 49);
    }
    int32_t *d_list = dev_put(list, sizeof list);
    nrd_counts_args ca = {.slot = 1, .vocab = vocab, .n = N, .ids = d_list,
                          .counts = d_counts};
    OK(dev->ops->counts(st, &ca));
    dev_get(after, d_counts, (size_t)slots * (size_t)vocab * 2);
    memset(counts + vocab, 0, (size_t)vocab * 2);
    for (int i = 0; i < N; i++) {
        counts[vocab + list[i]]++;
    }
    verdict("counts", memcmp(after, counts, (size_t)slots * (size_t)vocab * 2) ? 1 : 0, 0);

    void *gone[] = {d_bias, d_mask, d_logits, d_rows, d_banned, d_ids, d_slots, d_top, d_counts, d_lp,
                    d_lpn, d_top_lp, d_list};
    for (size_t i = 0; i < sizeof gone / sizeof *gone; i++) {
        dev_free(gone[i]);
    }
    free(logits);
    free(bias);
    free(mask);
    free(counts);
    free(ids);
    free(top);
    free(rows);
    free(lp);
    free(lpn);
    free(top_lp);
    free(c);
    free(kept_ids);
    free(slot_tokens);
    free(after);
}

static void check_copy_blocks(void)
{
    enum { BLOCKS = 200, PAIRS = 90 };
    const size_t bytes = dev->ops->kv_block_bytes(dev, NRD_DTYPE_BF16, 16, 2, 64);
    char *a = malloc(bytes * BLOCKS), *b = malloc(bytes * BLOCKS);
    int32_t pairs[2 * PAIRS];

    for (size_t i = 0; i < bytes * BLOCKS; i++) {
        a[i] = (char)rng();
    }
    char *d = dev_put(a, bytes * BLOCKS);
    nrd_kv_layer kv = {.base = d, .dtype = NRD_DTYPE_BF16, .n_blocks = BLOCKS, .block_tokens = 16,
                       .n_kv_heads = 2, .head_dim = 64};
    for (int i = 0; i < PAIRS; i++) {
        pairs[2 * i] = i;
        pairs[2 * i + 1] = BLOCKS - 1 - i;
        memcpy(a + (size_t)(BLOCKS - 1 - i) * bytes, a + (size_t)i * bytes, bytes);
    }
    nrd_copy_blocks_args ca = {.n_layers = 1, .n_pairs = PAIRS, .src = &kv, .dst = &kv,
                               .pairs = pairs};
    OK(dev->ops->copy_blocks(st, &ca));
    dev_get(b, d, bytes * BLOCKS);
    verdict("copy_blocks", memcmp(a, b, bytes * BLOCKS) ? 1 : 0, 0);

    void *h = NULL; /* to a pool in host memory, reversed, and back to where they were */
    OK(dev->ops->alloc(dev, &h, NRD_MEM_HOST, bytes * PAIRS, "check"));
    nrd_kv_layer host = kv;
    host.base = h;
    host.n_blocks = PAIRS;
    for (int i = 0; i < PAIRS; i++) {
        pairs[2 * i] = i;
        pairs[2 * i + 1] = PAIRS - 1 - i;
    }
    ca.dst = &host;
    OK(dev->ops->copy_blocks(st, &ca));
    OK(dev->ops->fill(st, d, 0x5a, bytes * PAIRS));
    ca.src = &host;
    ca.dst = &kv;
    OK(dev->ops->copy_blocks(st, &ca));
    dev_get(b, d, bytes * BLOCKS);
    verdict("copy_blocks to the host and back", memcmp(a, b, bytes * BLOCKS) ? 1 : 0, 0);
    dev->ops->free(dev, NRD_MEM_HOST, h);
    dev_free(d);
    free(a);
    free(b);
}

/* A captured chain of dependent operations must give the same numbers as the calls, every time. */
static void check_graph(void)
{
    enum { N = 5, H = 1024, LAYERS = 6 };
    test_weight w[LAYERS], norm;
    void *x = random_host(NRD_DTYPE_BF16, N * H, 1.0f);
    void *res = dev_put(x, N * H * 2), *h = poisoned(N * H * 2), *y = poisoned(N * H * 2);
    nrd_graph *graph = NULL;

    weight_random(&norm, NRD_DTYPE_F32, H, 1, 1.0f, false);
    for (int i = 0; i < LAYERS; i++) {
        weight_random(&w[i], NRD_DTYPE_BF16, H, H, 0.03f, true);
    }
    OK(dev->ops->reserve(st, 64, 8, H, 1024, 1000));
    float *first = NULL;
    for (int round = 0; round < 12; round++) {
        OK(dev->ops->copy(st, res, x, N * H * 2));
        if (round < 2) {
            if (round == 1) {
                OK(dev->ops->stream_sync(st));
                OK(dev->ops->graph_begin(st));
            }
            for (int i = 0; i < LAYERS; i++) {
                nrd_norm_args na = {.eps = 1e-5f, .n_tokens = N, .hidden = H,
                                    .delta = i ? y : NULL, .residual = res, .weight = &norm.dev, .out = h,
                                    .out_dtype = NRD_DTYPE_BF16, .act_dtype = NRD_DTYPE_BF16};
                nrd_linear_args la = {.n_tokens = N, .x = h, .x_dtype = NRD_DTYPE_BF16,
                                      .n_parts = 1, .w = {&w[i].dev}, .y = y, .y_dtype = NRD_DTYPE_BF16};
                OK(dev->ops->norm(st, &na));
                OK(dev->ops->linear(st, &la));
            }
        }
        if (round == 1) {
            OK(dev->ops->graph_end(st, &graph));
        }
        if (round >= 1) {
            OK(dev->ops->graph_launch(st, graph));
        }
        float *got = fetch(NRD_DTYPE_BF16, y, NULL, N, H);
        if (first) {
            verdict("graph replay", memcmp(first, got, N * H * 4) ? 1 : 0, 0);
            free(got);
        } else {
            first = got;
        }
    }
    dev->ops->graph_free(graph);
    for (int i = 0; i < LAYERS; i++) {
        weight_gone(&w[i]);
    }
    weight_gone(&norm);
    dev_free(res);
    dev_free(h);
    dev_free(y);
    free(x);
    free(first);
}

static const char *only; /* one section; NULL: all */

static bool wanted(const char *name)
{
    return !only || strcmp(only, name) == 0;
}

static void section(const char *name, int *seen_cases, int *seen_failures)
{
    printf("%-12s %5d checks, %d failed\n", name, cases - *seen_cases, failures - *seen_failures);
    fflush(stdout);
    *seen_cases = cases;
    *seen_failures = failures;
}

int main(int argc, char **argv)
{
    int c = 0, f = 0;

    if (argc < 2) {
        fprintf(stderr, "usage: gpu_check nereid_cuda.so [small] [SECTION]\n");
        return 2;
    }
    small_only = argc > 2 && strcmp(argv[2], "small") == 0;
    only = argc > 2 + small_only ? argv[2 + small_only] : NULL;
    gpu_open(argv[1]);
    if (wanted("formats")) {
        check_formats();
    }
    section("formats", &c, &f);
    for (int i = 0; i < 12 && wanted("embed"); i++) {
        static const nrd_dtype t[] = {NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3, NRD_DTYPE_F32, NRD_DTYPE_I8};
        const int hidden = i % 3 ? 8 * rnd(1, 300) : rnd(1, 700);
        check_embed(t[i % 4], i % 3 == 0 ? NRD_DTYPE_F32 : NRD_DTYPE_BF16, rnd(1, 40), rnd(5, 999), hidden,
                    i % 2);
    }
    section("embed", &c, &f);
    if (wanted("norm")) {
        all_norm();
    }
    section("norm", &c, &f);
    if (wanted("act")) {
        all_act();
    }
    section("act", &c, &f);
    for (int i = 0; i < (small_only ? 3 : 12) && wanted("sample"); i++) {
        static const int vocabs[] = {128256, 1000, 33, 151936, 5003, 50257};
        check_sample(i % 6 == 3 ? 9 : 24, small_only ? vocabs[i % 3 + 1] % 9000 : vocabs[i % 6], i);
        /* few: many blocks a row */
        check_sample(rnd(1, 8), small_only ? 4099 + 5 * i : vocabs[i % 6] + 4096, i);
    }
    section("sample", &c, &f);
    if (wanted("copy_blocks")) {
        check_copy_blocks();
    }
    section("copy_blocks", &c, &f);
    if (wanted("linear")) {
        all_linear();
        check_deterministic(NRD_DTYPE_BF16);
    }
    section("linear", &c, &f);
    if (wanted("quantized")) {
        check_deterministic(NRD_DTYPE_Q4_0);
        check_deterministic(NRD_DTYPE_Q4_K);
        check_deterministic(NRD_DTYPE_Q6_K);
        check_deterministic(NRD_DTYPE_I8);
        all_quantized();
    }
    section("quantized", &c, &f);
    if (wanted("attention")) {
        all_attention();
        few_tokens();
        many_pairs();
        long_prompts();
    }
    section("attention", &c, &f);
    if (wanted("ring")) {
        ring();
    }
    section("ring", &c, &f);
    if (wanted("graph")) {
        check_graph();
    }
    section("graph", &c, &f);
    dev->ops->stream_free(st);
    dev->ops->close(dev);
    printf("%s: %d checks, %d failed\n", failures ? "FAILED" : "ok", cases, failures);
    return failures != 0;
}
