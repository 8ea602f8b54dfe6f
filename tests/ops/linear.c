/* SPDX-License-Identifier: Apache-2.0
 * linear: products of all formats of weights. */
#include "ops/harness.h"

#include "base/clock.h"

/* ---- the table ---- */

/* Types of a row: one type a product, or parts of several as files mix them. */
enum types { EVERY, FLOATS, BLOCKS, F8_BF16, ONE, MIXED };
static const nrd_dtype mixtures[][3] = {
    {NRD_DTYPE_Q4_K, NRD_DTYPE_Q4_K, NRD_DTYPE_Q6_K},
    {NRD_DTYPE_Q4_K, NRD_DTYPE_Q3_K, NRD_DTYPE_Q5_K},
    {NRD_DTYPE_Q2_K, NRD_DTYPE_Q2_K, NRD_DTYPE_Q3_K},
    {NRD_DTYPE_IQ4_XS, NRD_DTYPE_IQ4_NL, NRD_DTYPE_Q5_K},
};
enum { N_MIXTURES = sizeof mixtures / sizeof *mixtures, MAX_COUNTS = 28 };
enum { INT8_X = 8 }; /* beside ON_CUDA: weights that were made for x in int8 */

typedef struct linear_row {
    unsigned on;
    enum types types;
    nrd_dtype one;   /* with ONE */
    int32_t rows[3]; /* of the parts; 0: one part of up to `most_rows` */
    int32_t most_rows;
    int32_t cols, most_cols;    /* cols 0: at random, whole blocks */
    bool plain, deterministic;  /* plain: no bias, no cap; else by turns */
    int32_t counts[MAX_COUNTS]; /* numbers of tokens, one case each */
} linear_row;

/* clang-format off */
#define FEW_AND_MANY {1, 2, 3, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 31, 33, 64, 83}
#define EDGES {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 16, 17, 24, 31, 32, 33, 47, 63, 64, 65, 97, 128, 129, 200, 257, 300}
static const linear_row table[] = {
    {ON_ALL, EVERY, 0, {0}, 100, 0, 600, false, false, FEW_AND_MANY},
    {ON_CPU, EVERY, 0, {16}, 0, 2304, 0, true, false, {5}},
    {ON_CPU, EVERY, 0, {90}, 0, 1536, 0, false, false, {53}}, /* pieces of columns */
    {ON_ALL, MIXED, 0, {512, 128, 136}, 0, 768, 0, false, false, {1, 9, 33, 150}},
    {ON_CUDA, FLOATS, 0, {1024, 256, 256}, 0, 1024, 0, false, false, {1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65, 130, 300}},
    {ON_CUDA, BLOCKS, 0, {1024, 256, 250}, 0, 1024, 0, false, false, EDGES},
    {ON_CUDA, EVERY, 0, {0}, 700, 0, 2560, false, false, EDGES},
    /* row groups for all multiprocessors */
    {ON_CUDA, EVERY, 0, {2100, 1100, 1024}, 0, 1280, 0, false, false, {1, 2, 3, 4, 1, 2, 3, 4}},
    {ON_CUDA, EVERY, 0, {0}, 9000, 0, 2560, false, false, {1, 2, 3, 4, 1, 2, 3, 4}},
    {ON_CUDA, EVERY, 0, {300}, 0, 1280, 0, false, true, {300, 100, 30, 3}},
    /* columns that no wide load divides, rows of y that no wide store divides */
    {ON_ALL, FLOATS, 0, {37}, 0, 35, 0, false, false, {5}},
    {ON_ALL, ONE, NRD_DTYPE_I8, {37}, 0, 35, 0, false, false, {1, 24, 47, 70, 93, 116, 139}},
    /* a large model's */
    {ON_CUDA | LARGE, F8_BF16, 0, {14336, 14336}, 0, 4096, 0, true, false, {1, 4, 16, 64, 256}},
    {ON_CUDA | LARGE, F8_BF16, 0, {4096}, 0, 14336, 0, true, false, {1, 4, 16, 17, 24, 32, 64, 256, 301, 520, 640, 700, 1024}},
    {ON_CUDA, ONE, NRD_DTYPE_F8_E4M3, {0}, 700, 0, 2560, true, false, {256, 257, 301, 600, 1000, 1100}},
    {ON_CUDA | LARGE, BLOCKS, 0, {14336, 14336}, 0, 4096, 0, true, false, {1, 4, 16, 64, 256}},
    {ON_CUDA | LARGE, BLOCKS, 0, {4096}, 0, 14336, 0, true, false, {2, 8, 32, 128, 512}},
    {ON_CUDA, ONE, NRD_DTYPE_F8_B128, {1024, 256, 256}, 0, 1024, 0, false, false, {1, 2, 3, 8, 9, 16, 17, 20, 64, 65, 130, 300, 1557, 1800, 2048}},
    {ON_CUDA, ONE, NRD_DTYPE_F8_B128, {0}, 700, 0, 2560, false, false, {1, 7, 16, 17, 40, 68, 128, 301, 1560, 1715, 1900, 2077}},
    {ON_CUDA, ONE, NRD_DTYPE_F8_B128, {136, 1000, 520}, 0, 384, 0, true, false, {1560, 1601, 1715, 1900, 2077, 2100}},
    {ON_CUDA | LARGE, ONE, NRD_DTYPE_F8_B128, {4096}, 0, 14336, 0, true, false, {1, 8, 64, 512, 4609}},
    /* x in int8: several parts in one launch, rows that no tile divides, tiles of both sizes */
    {ON_CUDA | INT8_X, ONE, NRD_DTYPE_I8, {1160, 136, 8}, 0, 912, 0, false, false, {8, 33, 64, 65, 129, 255, 257, 513, 700}},
    {ON_CUDA | INT8_X, ONE, NRD_DTYPE_I8, {0}, 700, 0, 2560, false, false, {1, 40, 130, 301, 600, 90, 77}},
    {ON_CUDA | INT8_X | LARGE, ONE, NRD_DTYPE_I8, {4096}, 0, 14336, 0, true, false, {64, 512, 4609}},
    {ON_CUDA | LARGE, ONE, NRD_DTYPE_Q4_K, {128256}, 0, 1024, 0, true, false, {9}},
    {ON_CUDA | LARGE, ONE, NRD_DTYPE_Q4_0, {64}, 0, 53248, 0, false, false, {16}},
};
/* clang-format on */

/* ---- a case ---- */

typedef struct linear_case {
    nrd_dtype types[3];
    int n_parts;
    int64_t rows[3], cols, total;
    int32_t n;
    bool bias, deterministic, packed, plain_x, int8_x;
    float softcap;
    nrd_dtype x_type, y_type;
    nrd_weight w[3], b[3];
    void *x; /* [n, row of x_type] */
    float *x_float, *x_scale;
} linear_case;

static size_t x_row(const linear_case *c)
{
    return nrd_row_bytes(c->x_type, c->cols);
}

/* Weights, bias and rows of x, which have the type that the device asks for. */
static void linear_new(linear_case *c)
{
    size_t row_bytes;
    bool row_scale;

    for (int p = 0; p < c->n_parts; p++) {
        c->w[p] = weight_new(c->types[p], c->rows[p], c->cols, kind->is_exact ? 0.05f : 1.0f);
        c->b[p] = weight_new(NRD_DTYPE_F32, c->rows[p], 1, kind->is_exact ? 0.05f : 10.0f);
        c->total += c->rows[p];
    }
    nrd_weight first = weight_on(&targets[0], &c->w[0], true);
    c->x_type =
        targets[0].ops->linear_input(targets[0].dev, &first, NRD_DTYPE_F32, &row_bytes, &row_scale);
    case_name("linear %s%s -> %s, %d x (%d parts, first %lld) x %lld%s%s%s%s%s",
              nrd_dtype_name(c->types[0]), c->n_parts > 1 ? " .." : "", nrd_dtype_name(c->y_type),
              c->n, c->n_parts, (long long)c->rows[0], (long long)c->cols, c->bias ? " bias" : "",
              c->softcap > 0 ? " cap" : "", c->deterministic ? " det" : "",
              c->packed ? "" : " rows as they are", c->plain_x ? " plain x" : c->int8_x ? " int8 x" : "");
    verdict(&targets[0], "bytes of an input row",
            row_bytes == x_row(c) && row_scale == (c->x_type == NRD_DTYPE_F8_E4M3));
    c->x_float = host_normal(c->n * c->cols, 1);
    c->x = host(x_row(c) * (size_t)c->n + 64);
    c->x_scale = host((size_t)c->n * 4);
    for (int32_t i = 0; i < c->n; i++) {
        nrd_store_row(c->x_type, c->x, i, c->cols, c->x_float + i * c->cols,
                      c->x_type == NRD_DTYPE_F8_E4M3 ? c->x_scale : NULL);
    }
}

/* Weights whose numbers a product takes as the file means them; the others are rounded to bf16 first. */
static bool takes_exact(const linear_case *c, const nrd_weight *loaded, nrd_dtype t)
{
    return kind->is_exact || !is_block_type(t) ||
           (loaded->dtype != NRD_DTYPE_BF16 &&
            (t == NRD_DTYPE_I8 || t == NRD_DTYPE_F8_B128 || t == NRD_DTYPE_MXFP8 ||
             (t == NRD_DTYPE_NVFP4 && (c->n <= 64 || c->deterministic)) ||
             (c->n <= 16 && !c->deterministic &&
              (t == NRD_DTYPE_Q4_0 || t == NRD_DTYPE_Q4_1 || t == NRD_DTYPE_Q4_K))));
}

/* Weights of 8 bits and up to 4 tokens: exact where there are row groups for all multiprocessors, else rounded. */
static bool may_be_exact(const linear_case *c, nrd_dtype t)
{
    return !kind->is_exact && c->n <= 4 && !c->deterministic &&
           (t == NRD_DTYPE_Q5_0 || t == NRD_DTYPE_Q5_1 || t == NRD_DTYPE_Q8_0 || t == NRD_DTYPE_Q8_1 || t == NRD_DTYPE_Q5_K);
}

/* Whether the device rounds a token itself and leaves its largest number as it is. */
static bool is_apart(const linear_case *c)
{
    return c->plain_x && c->n_parts == 1 && c->x_type == NRD_DTYPE_ACT_Q8;
}

static void round_apart(const linear_case *c, const float *x, float *out)
{
    float *rest = host((size_t)c->cols * 4);
    char *row = host(x_row(c) + 64);
    int64_t top = 0;

    for (int64_t i = 0; i < c->cols; i++) {
        top = fabsf(x[i]) > fabsf(x[top]) ? i : top;
        rest[i] = x[i];
    }
    rest[top] = 0;
    nrd_store_row(c->x_type, row, 0, c->cols, rest, NULL);
    nrd_load_row(c->x_type, row, 0, c->cols, NULL, out);
    out[top] = x[top];
}

/* The elements of y that are looked at: all of few, of many those of some tokens and rows, edges among them. */
typedef struct picked {
    int32_t n_tokens, tokens[512];
    int64_t n_rows, *rows[3], n_in_part[3];
    float *want;   /* [n_tokens, n_rows] */
    double w_size; /* the largest weight among them */
    bool same;     /* the device's weights are these to the bit */
} picked;

static int64_t pick_of(int64_t i, int64_t m, int64_t n)
{
    return m == n ? i : i == 0 ? n - 1 : i == 1 ? 0 : rnd_in(0, (int32_t)n - 1);
}

static void pick(const linear_case *c, const target *t, picked *k)
{
    const bool all = (int64_t)c->n * c->total * c->cols <= 3000000;
    int64_t each = all ? 0 : 30000000 / c->cols / 16 / c->n_parts;

    *k = (picked){.n_tokens = all || c->n < 16 ? c->n : 16, .same = true};
    each = each > 64 ? 64 : each;
    for (int32_t i = 0; i < k->n_tokens; i++) {
        k->tokens[i] = (int32_t)pick_of(i, k->n_tokens, c->n);
    }
    const bool apart = is_apart(c);
    char *x = host(x_row(c) * (size_t)k->n_tokens + 64);
    float *scale = host((size_t)k->n_tokens * 4), *x_apart = host(apart ? (size_t)(k->n_tokens * c->cols) * 4 : 4);
    for (int32_t i = 0; i < k->n_tokens; i++) {
        memcpy(x + (size_t)i * x_row(c), (char *)c->x + (size_t)k->tokens[i] * x_row(c), x_row(c));
        scale[i] = c->x_scale[k->tokens[i]];
        if (apart) {
            round_apart(c, c->x_float + k->tokens[i] * c->cols, x_apart + i * c->cols);
        }
    }
    nrd_linear_args a = {.n_tokens = k->n_tokens,
                         .x = apart ? (const void *)x_apart : x,
                         .x_dtype = apart ? NRD_DTYPE_F32 : c->x_type,
                         .n_parts = c->n_parts,
                         .x_row_scale = c->x_type == NRD_DTYPE_F8_E4M3 ? scale : NULL,
                         .y_dtype = NRD_DTYPE_F32,
                         .softcap = c->softcap};
    nrd_weight w[3], b[3];
    for (int p = 0; p < c->n_parts; p++) {
        const nrd_dtype type = c->types[p];
        const nrd_weight loaded = kind->is_exact ? c->w[p] : weight_on(t, &c->w[p], true);
        const bool exact = takes_exact(c, &loaded, type);
        const int64_t m = all || c->rows[p] < each ? c->rows[p] : each;
        float *values = host((size_t)(m * c->cols) * 4), *bias = host((size_t)m * 4);
        k->rows[p] = host((size_t)m * sizeof(int64_t));
        for (int64_t i = 0; i < m; i++) {
            k->rows[p][i] = pick_of(i, m, c->rows[p]);
            nrd_weight_row(&c->w[p], k->rows[p][i], values + i * c->cols);
            bias[i] = nrd_weight_at(&c->b[p], k->rows[p][i]);
            for (int64_t j = i * c->cols; j < (i + 1) * c->cols; j++) {
                values[j] = exact ? values[j] : nrd_bf16_to_f32(nrd_f32_to_bf16(values[j]));
                k->w_size = fmax(k->w_size, fabs((double)values[j]));
            }
        }
        k->same = k->same && !may_be_exact(c, type) &&
                  (exact || type == NRD_DTYPE_Q4_0 || type == NRD_DTYPE_Q5_0 || type == NRD_DTYPE_Q8_0);
        w[p] = (nrd_weight){.dtype = NRD_DTYPE_F32,
                            .rows = m,
                            .cols = c->cols,
                            .data = values,
                            .scale = 1,
                            .data_bytes = (uint64_t)(m * c->cols) * 4};
        b[p] = (nrd_weight){.dtype = NRD_DTYPE_F32,
                            .rows = m,
                            .cols = 1,
                            .data = bias,
                            .scale = 1,
                            .data_bytes = (uint64_t)m * 4};
        a.w[p] = &w[p];
        a.bias[p] = c->bias ? &b[p] : NULL;
        k->n_in_part[p] = m;
        k->n_rows += m;
    }
    a.y = k->want = host((size_t)(k->n_tokens * k->n_rows) * 4);
    ok(nrd_linear_check(&a));
    nrd_linear_ref(&a);
}

static bool is_rounded(const linear_case *c, const target *t)
{
    bool is = false;
    for (int p = 0; p < c->n_parts; p++) {
        is = is || may_round(t, c->types[p], c->n, c->deterministic);
    }
    return is;
}

/* A sum of `cols` products in float32: each of cols roundings is at most eps / 2 of a partial sum, which
 * grows like the root of its length; as their errors do too, about eps / 2 * cols * |w| |x|. The matrix unit
 * takes x of bfloat16 products, and both of float16's, as two bfloat16: up to 2^-17 is left out, the errors have either sign.
 * Elsewhere F8 products are summed with fewer bits by the tensor cores (fast accumulation), and of weights that
 * are rounded to bf16 a few go to the other neighbour. */
static limit linear_limit(const linear_case *c, const target *t, const picked *k)
{
    const bool rounded = is_rounded(c, t);
    if (rounded && c->types[0] != NRD_DTYPE_F16) { /* `want` has x in 8 bits, which a product of plain x does not round so */
        return (limit){0, 0, c->plain_x ? 1.5e-2 : 4e-3};
    }
    if (kind->is_exact) {
        const bool halves = has_unit(t) && (rounded || c->types[0] == NRD_DTYPE_BF16);
        return (limit){0.5 * 1.2e-7 * (double)c->cols * k->w_size * 3 + 1e-6 +
                           (halves ? 0x1p-17 * sqrt((double)c->cols) * k->w_size * 3 : 0),
                       1e-6, 0};
    }
    double whole = rounding(c->y_type);
    if (c->types[0] == NRD_DTYPE_F8_B128 && c->n > 16 && !c->deterministic) {
        whole = fmax(whole, 4e-2); /* x is rounded to E4M3 in blocks, or W to bf16 */
    }
    if (c->int8_x && c->n > 16) {
        whole = fmax(whole, 1.5e-2); /* x is rounded to 127 steps of a token's largest number, some four deviations */
    }
    whole = fmax(whole, c->x_type == NRD_DTYPE_F8_E4M3 ? 4e-3 : 0);
    whole = fmax(whole, !is_block_type(c->types[0]) && c->n_parts == 1 ? 0
                        : k->same                                      ? 1e-4
                                                                       : 2.5e-3);
    if (c->types[0] == NRD_DTYPE_NF4) { /* the 16 values are rounded by the device, their products with a scale here */
        whole = fmax(whole, 3.5e-3);
    }
    return (limit){0, 0, whole + (c->softcap > 0 ? 2e-3 : 0)};
}

static void compare_picked(const linear_case *c, const target *t, const char *what, const float *y,
                           const picked *k)
{
    float *got = host((size_t)(k->n_tokens * k->n_rows) * 4 + 4);
    bool finite = true;
    int64_t n = 0;

    for (int32_t i = 0; i < k->n_tokens; i++) {
        int64_t at = k->tokens[i] * c->total;
        for (int p = 0; p < c->n_parts; at += c->rows[p++]) {
            for (int64_t r = 0; r < k->n_in_part[p]; r++) {
                got[n++] = y[at + k->rows[p][r]];
            }
        }
    }
    for (int64_t i = 0; i < c->n * c->total; i++) {
        finite = finite && isfinite(y[i]);
    }
    if (!finite) {
        verdict(t, "an element was not written", false);
    }
    compare(t, what, got, k->want, n, linear_limit(c, t, k));
}

/* Runs of tokens alone get the bits that they get together. */
static void check_runs(const linear_case *c, const target *t, const nrd_linear_args *together,
                       const char *y_bytes)
{
    static const int32_t lengths[] = {1, 6, 1, 12, 30, 1, 60, 130};
    const size_t row = nrd_row_bytes(c->y_type, c->total),
                 x_bytes = nrd_row_bytes(together->x_dtype, c->cols);
    char *some = host(row * (size_t)c->n);
    void *y = dev_out(t, row * (size_t)c->n);

    for (int32_t i = 0, at = 0; at < c->n && c->n > 1; at += lengths[i % 8] + c->n / 8, i++) {
        nrd_linear_args a = *together;
        a.n_tokens = c->n - at < lengths[i % 8] ? c->n - at : lengths[i % 8];
        a.x = (const char *)together->x + (size_t)at * x_bytes;
        a.x_row_scale = together->x_row_scale ? together->x_row_scale + at : NULL;
        a.y = y;
        ok(t->ops->linear(t->s, &a));
        dev_get(t, some, y, row * (size_t)a.n_tokens);
        same_bytes(t, "tokens alone", some, y_bytes + (size_t)at * row, row * (size_t)a.n_tokens);
    }
}

/* The first target's bits, where others must have the same: for every number of threads, and on the matrix unit,
 * but for bfloat16, as without it. */
static void check_bits(const linear_case *c, const target *t, const char *y, size_t bytes)
{
    static char *threads, *vnni;
    const bool amx = has_unit(t);
    const bool other_form = t == &targets[0] || strncmp(t->name, t[-1].name, strcspn(t->name, "/") + 1) != 0;

    threads = other_form ? NULL : threads;
    if (threads) {
        same_bytes(t, "as with one thread", y, threads, bytes);
    } else {
        threads = memcpy(host(bytes), y, bytes);
    }
    vnni = t == &targets[0] ? NULL : vnni;
    if (strcmp(t->name, "avx512vnni/1") == 0) {
        vnni = threads;
    } else if (amx && vnni && c->types[0] != NRD_DTYPE_BF16) {
        same_bytes(t, "as without the matrix unit", y, vnni, bytes);
    }
}

/* Scales of F8 that wait for y's reader: with them y is what it is else. Those of one large product do wait. */
static void check_pending(const linear_case *c, const target *t, const nrd_linear_args *scaled, const char *what, const picked *k)
{
    const size_t n = (size_t)c->n, width = (size_t)c->total;
    nrd_pending_scales pending = {0};
    nrd_linear_args a = *scaled;

    a.pending = &pending;
    a.y = dev_out(t, nrd_row_bytes(c->y_type, c->total) * n);
    ok(t->ops->linear(t->s, &a));
    float *y = dev_rows(t, c->y_type, a.y, NULL, c->n, c->total);
    if (c->n == 640 && c->total == 4096 && c->y_type == NRD_DTYPE_BF16) {
        verdict(t, "scales are not pending", pending.rows);
    }
    if (pending.rows) {
        float *rows = host(n * 4), *columns = host(width * 4);
        dev_get(t, rows, pending.rows, n * 4);
        dev_get(t, columns, pending.columns, width * 4);
        for (size_t i = 0; i < n * width; i++) {
            y[i] *= rows[i / width] * columns[i % width];
        }
    }
    compare_picked(c, t, what, y, k);
}

static void linear_target(linear_case *c, const target *t, const picked *k)
{
    const bool rounded = is_rounded(c, t);
    const size_t bytes = nrd_row_bytes(c->y_type, c->total) * (size_t)c->n;
    nrd_weight w[3], b[3];
    nrd_linear_args a = {.n_tokens = c->n,
                         .x_dtype = c->plain_x ? NRD_DTYPE_F32 : c->x_type,
                         .n_parts = c->n_parts,
                         .y_dtype = c->y_type,
                         .softcap = c->softcap,
                         .deterministic = c->deterministic,
                         .int8_x = c->int8_x};
    const size_t x_bytes = nrd_row_bytes(a.x_dtype, c->cols) * (size_t)c->n;
    const void *x = c->plain_x ? (const void *)c->x_float : c->x;
    char *y = host(bytes);
    void *dx = dev_put(t, x, x_bytes);
    float *d_scale =
        c->x_type == NRD_DTYPE_F8_E4M3 ? dev_put(t, c->x_scale, (size_t)c->n * 4) : NULL;

    for (int p = 0; p < c->n_parts; p++) {
        w[p] = weight_on(t, &c->w[p], c->packed);
        b[p] = weight_on(t, &c->b[p], false);
        a.w[p] = &w[p];
        a.bias[p] = c->bias ? &b[p] : NULL;
    }
    a.x = dx;
    a.x_row_scale = d_scale;
    a.y = dev_out(t, bytes);
    ok(t->ops->linear(t->s, &a));
    dev_get(t, y, a.y, bytes);
    compare_picked(c, t, "", rows_of(c->y_type, y, NULL, c->n, c->total), k);
    if (c->x_type == NRD_DTYPE_F8_E4M3) {
        check_pending(c, t, &a, "pending", k);
    }
    if (rounded) { /* and as on other processors where that is asked for */
        a.deterministic = c->deterministic = true;
        ok(t->ops->fill(t->s, a.y, 0xff, bytes));
        ok(t->ops->linear(t->s, &a));
        dev_get(t, y, a.y, bytes);
        compare_picked(c, t, "deterministic", rows_of(c->y_type, y, NULL, c->n, c->total), k);
    }
    if (kind->is_exact) {
        check_bits(c, t, y, bytes);
    }
    if (kind->rows_alone || c->deterministic) {
        check_runs(c, t, &a, y);
    }
    c->deterministic = c->deterministic && !rounded;
    if (t->ops->linear_tune && !c->deterministic &&
        !is_block_type(c->types[0])) { /* with the fastest kernels */
        ok(t->ops->linear_tune(t->s, &a, dx, 0.1));
        ok(t->ops->copy(t->s, dx, x, x_bytes));
        if (d_scale) {
            ok(t->ops->copy(t->s, d_scale, c->x_scale, (size_t)c->n * 4));
        }
        ok(t->ops->fill(t->s, a.y, 0xff, bytes));
        ok(t->ops->linear(t->s, &a));
        compare_picked(c, t, "tuned", dev_rows(t, c->y_type, a.y, NULL, c->n, c->total), k);
        if (c->x_type == NRD_DTYPE_F8_E4M3) {
            nrd_pending_scales pending;
            a.pending = &pending;
            ok(t->ops->linear_tune(t->s, &a, dx, 0.1));
            ok(t->ops->copy(t->s, dx, x, x_bytes));
            ok(t->ops->copy(t->s, d_scale, c->x_scale, (size_t)c->n * 4));
            check_pending(c, t, &a, "pending, tuned", k);
        }
    }
}

static void linear_case_run(linear_case *c)
{
    picked k;

    linear_new(c);
    pick(c, &targets[0], &k);
    for (int i = 0; i < n_targets; i++) {
        linear_target(c, &targets[i], &k);
    }
    case_end();
}

/* ---- all cases of a row ---- */

/* The type of y by turns. Products of 16-bit weights write their own type or float32. */
static nrd_dtype y_of(nrd_dtype t, int k)
{
    static const nrd_dtype kept[] = {NRD_DTYPE_F16, NRD_DTYPE_BF16, NRD_DTYPE_F32, NRD_DTYPE_BF16};
    const bool k_type = t == NRD_DTYPE_Q4_K || t == NRD_DTYPE_Q5_K || t == NRD_DTYPE_Q6_K;

    if (kind->is_exact || t == NRD_DTYPE_F32) {
        return NRD_DTYPE_F32;
    }
    if (k_type || t == NRD_DTYPE_I8 || t == NRD_DTYPE_Q8_1 || (t >= NRD_DTYPE_Q4_0 && t <= NRD_DTYPE_Q8_0)) {
        return kept[k % 4];
    }
    return k % 2 ? NRD_DTYPE_BF16 : t == NRD_DTYPE_F16 && k % 4 ? NRD_DTYPE_F16 : NRD_DTYPE_F32;
}

static void linear_types(const linear_row *row, const nrd_dtype *types, int n_types, int *turn)
{
    const int block = nrd_dtype_block(types[n_types - 1]);

    for (int i = 0; i < MAX_COUNTS && row->counts[i] > 0; i++) {
        const int k = (*turn)++;
        linear_case c = {
            .n = row->counts[i], .n_parts = 1, .deterministic = row->deterministic, .packed = true, .int8_x = row->on & INT8_X};
        c.rows[0] = row->rows[0] ? row->rows[0] : rnd_in(1, row->most_rows);
        while (row->rows[0] && c.n_parts < 3 && row->rows[c.n_parts]) {
            c.rows[c.n_parts] = row->rows[c.n_parts];
            c.n_parts++;
        }
        for (int p = 0; p < 3; p++) {
            c.types[p] = types[n_types == 3 ? p : 0];
        }
        c.cols = row->cols;
        if (c.cols == 0) { /* plain types: any number on the CPU, whole vectors elsewhere */
            const int step = block > 1 ? block : kind->is_exact ? 1 : 16;
            c.cols = step * rnd_in(1, row->most_cols / step < 1 ? 1 : row->most_cols / step);
        }
        c.y_type = y_of(types[0], k);
        c.bias = !row->plain && k % 3 == 0;
        c.softcap = !row->plain && n_types == 1 && k % 4 == 2 ? (kind->is_exact ? 0.5f : 30.0f) : 0;
        if (kind->is_exact) {
            c.packed = k % 3 != 0;
            c.plain_x = is_block_type(types[0]) && k % 2 == 0;
        }
        linear_case_run(&c);
    }
}

void check_linear(void)
{
    for (size_t r = 0; r < sizeof table / sizeof *table; r++) {
        const linear_row *row = &table[r];
        int turn = 0;
        if (!is_here(row->on)) {
            continue;
        }
        for (int i = 0; row->types == MIXED && i < N_MIXTURES; i++) {
            linear_types(row, mixtures[i], 3, &turn);
        }
        for (int i = 0; row->types != MIXED && i < N_LINEAR_TYPES; i++) {
            const nrd_dtype t = weight_types[i];
            const bool wanted =
                row->types == EVERY || (row->types == FLOATS && !is_block_type(t)) ||
                (row->types == BLOCKS && is_block_type(t)) ||
                (row->types == ONE && t == row->one) ||
                (row->types == F8_BF16 && (t == NRD_DTYPE_F8_E4M3 || t == NRD_DTYPE_BF16));
            if (wanted && has_weight(t) &&
                (row->cols == 0 || row->cols % nrd_dtype_block(t) == 0)) {
                linear_types(row, &t, 1, &turn);
            }
        }
    }
}

/* A packed weight reads back as the rows that were packed. */
void check_packed(void)
{
    const target *t = &targets[0];

    for (int i = 0; i < N_WEIGHT_TYPES; i++) {
        const nrd_dtype type = weight_types[i];
        const int64_t block = nrd_dtype_block(type), rows = 37, cols = block > 1 ? 3 * block : 67;
        uint32_t layout;
        uint64_t bytes;
        if (!has_weight(type)) {
            continue;
        }
        nrd_weight w = weight_new(type, rows, cols, 0.05f), p = w;
        ok(t->ops->weight_plan(t->dev, type, rows, cols, true, &layout, &bytes));
        void *data = host(bytes);
        ok(t->ops->weight_pack(t->dev, &w, layout, data));
        p.data = data;
        p.layout = layout;
        p.data_bytes = bytes;
        float *a = host((size_t)(rows * cols) * 4), *b = host((size_t)(rows * cols) * 4);
        for (int64_t r = 0; r < rows; r++) {
            nrd_weight_row(&w, r, a + r * cols);
            nrd_weight_row(&p, r, b + r * cols);
        }
        case_name("packed %s", nrd_dtype_name(type));
        verdict(t, "layout", !kind->is_exact || layout == NRD_LAYOUT_TILE16);
        compare(t, "", b, a, rows * cols,
                (limit){1e-6, 1e-6, 0}); /* fused or not: one rounding apart */
        case_end();
    }
}

/* ---- speed ---- */

/* clang-format off */
#define UP_TO_2048 {1, 4, 8, 16, 32, 64, 128, 256, 512, 2048}
#define UP_TO_512 {1, 4, 8, 16, 32, 64, 512}
#define UP_TO_32 {1, 4, 8, 16, 32}
/* clang-format on */
typedef struct linear_speed {
    unsigned on;
    const char *model;
    nrd_dtype types[16];
    int32_t shapes[5][2]; /* rows, cols */
    const char *names[5];
    nrd_dtype y;
    int32_t counts[10];
} linear_speed;

/* clang-format off */
#define LAYER_8B {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}}, {"qkv", "o", "gate_up", "down"}
static const linear_speed speeds[] = {
    {ON_CPU, "SmolLM2-135M", {NRD_DTYPE_Q4_0, NRD_DTYPE_Q4_1, NRD_DTYPE_Q5_0, NRD_DTYPE_Q8_0, NRD_DTYPE_I8, NRD_DTYPE_BF16,
      NRD_DTYPE_F16, NRD_DTYPE_IQ4_NL}, {{960, 576}, {3072, 576}, {576, 1536}}, {"qkv", "gate_up", "down"}, NRD_DTYPE_F32,
      UP_TO_512},
    {ON_CPU, "heads", {NRD_DTYPE_Q4_1, NRD_DTYPE_Q8_0}, {{49152, 576}}, {"head"}, NRD_DTYPE_F32, UP_TO_32},
    {ON_CPU, "Gemma 3 270M", {NRD_DTYPE_Q8_0}, {{262144, 640}}, {"head"}, NRD_DTYPE_F32, UP_TO_32},
    {ON_CPU, "K types", {NRD_DTYPE_Q2_K, NRD_DTYPE_Q3_K, NRD_DTYPE_Q4_K, NRD_DTYPE_Q5_K, NRD_DTYPE_Q6_K, NRD_DTYPE_IQ4_XS},
      {{2048, 2048}}, {""}, NRD_DTYPE_F32, UP_TO_512},
    /* how many tokens a form needs: every kind of type, one shape */
    {ON_CPU, "3072 x 2048", {NRD_DTYPE_Q4_0, NRD_DTYPE_Q4_1, NRD_DTYPE_Q8_0, NRD_DTYPE_I8, NRD_DTYPE_Q4_K, NRD_DTYPE_Q6_K,
      NRD_DTYPE_BF16}, {{3072, 2048}}, {""}, NRD_DTYPE_F32, UP_TO_512},
    {ON_CUDA, "Llama-3.1-8B", {NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3}, LAYER_8B, NRD_DTYPE_BF16, UP_TO_2048},
    {ON_CUDA, "its head", {NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3}, {{128256, 4096}}, {"head"}, NRD_DTYPE_F32,
      {1, 4, 8, 16, 32, 64, 128, 256, 512}},
    {ON_CUDA, "Llama-3.1-8B", {NRD_DTYPE_Q4_0, NRD_DTYPE_Q4_K, NRD_DTYPE_Q8_0, NRD_DTYPE_Q8_1, NRD_DTYPE_I8}, LAYER_8B, NRD_DTYPE_BF16,
      UP_TO_2048},
    {ON_CUDA, "Llama-3.1-8B", {NRD_DTYPE_F8_B128, NRD_DTYPE_MXFP8, NRD_DTYPE_NVFP4, NRD_DTYPE_NF4}, LAYER_8B, NRD_DTYPE_BF16, UP_TO_2048},
    {ON_CUDA | INT8_X, "Llama-3.1-8B, x in int8", {NRD_DTYPE_I8}, LAYER_8B, NRD_DTYPE_BF16, UP_TO_2048},
    {ON_CUDA, "its head", {NRD_DTYPE_Q4_0, NRD_DTYPE_Q4_K, NRD_DTYPE_Q8_0, NRD_DTYPE_I8}, {{128256, 4096}}, {"head"},
      NRD_DTYPE_F32, UP_TO_32},
};
/* clang-format on */

enum { MAX_COPIES = 64, MAX_SPEED_TOKENS = 2048 };
typedef struct linear_run {
    nrd_linear_args a;
    nrd_weight w[MAX_COPIES];
    int n_copies;
} linear_run;

static void linear_call(const target *t, int i, void *user)
{
    linear_run *r = user;
    r->a.w[0] = &r->w[i % r->n_copies];
    ok(t->ops->linear(t->s, &r->a));
}

static int peak_of(const nrd_linear_args *a)
{
    return a->x_dtype == NRD_DTYPE_ACT_Q8 || a->x_dtype == NRD_DTYPE_F8_E4M3 ? PEAK_EIGHT
           : kind->is_exact && a->w[0]->dtype == NRD_DTYPE_BF16              ? PEAK_BF16
                                                                             : PEAK_FLOAT;
}

/* One shape at all numbers of tokens; adds each to layer[]. Copies of the weight are walked through, so that a
 * product reads memory as a model does: more than the caches hold. */
static void speed_shape(const target *t, const linear_speed *s, nrd_dtype type, int shape,
                        double *layer)
{
    const int64_t rows = s->shapes[shape][0], cols = s->shapes[shape][1];
    const nrd_weight w = weight_new(type, rows, cols, 0.05f);
    const double bytes = (double)nrd_weight_bytes(type, NRD_LAYOUT_ROWS, rows, cols);
    linear_run r = {.a = {.n_parts = 1, .y_dtype = s->y, .int8_x = s->on & INT8_X}};
    size_t row_bytes;
    bool row_scale;

    r.n_copies = (int)((kind->is_exact ? 128e6 : 512e6) / bytes) + 1;
    r.n_copies = r.n_copies > MAX_COPIES ? MAX_COPIES : r.n_copies;
    uint64_t load_ns = UINT64_MAX;
    for (int i = 0; i < r.n_copies; i++) {
        const uint64_t from = nrd_now_ns();
        r.w[i] = weight_on(t, &w, true);
        load_ns = nrd_now_ns() - from < load_ns ? nrd_now_ns() - from : load_ns;
    }
    printf("%s %s packed and loaded at %.0f MB/s\n", s->names[shape], nrd_dtype_name(type),
           bytes * 1e3 / (double)load_ns);
    r.a.w[0] = &r.w[0];
    r.a.x_dtype = t->ops->linear_input(t->dev, &r.w[0], NRD_DTYPE_F32, &row_bytes, &row_scale);
    char *x = host(row_bytes * MAX_SPEED_TOKENS);
    float *scale = host(MAX_SPEED_TOKENS * 4), *row = host_normal(cols, 1);
    for (int32_t i = 0; i < MAX_SPEED_TOKENS; i++) {
        row[i % cols] += 0.1f;
        nrd_store_row(r.a.x_dtype, x, i, cols, row, row_scale ? scale : NULL);
    }
    r.a.x = dev_put(t, x, row_bytes * MAX_SPEED_TOKENS);
    r.a.x_row_scale = row_scale ? dev_put(t, scale, MAX_SPEED_TOKENS * 4) : NULL;
    r.a.y = dev_out(t, nrd_row_bytes(s->y, rows) * (rows > 60000 ? 512 : MAX_SPEED_TOKENS));
    void *noise =
        dev_out(t, row_bytes * MAX_SPEED_TOKENS); /* activations while kernels are tried */
    for (int i = 0; i < 10 && s->counts[i] > 0; i++) {
        const int32_t n = r.a.n_tokens = s->counts[i];
        if (small_only && n > 8) {
            continue;
        }
        if (t->ops->linear_tune) {
            ok(t->ops->linear_tune(t->s, &r.a, noise, 10));
        }
        const double sec = measure(t, linear_call, &r, r.n_copies < 16 ? 16 : r.n_copies);
        layer[i] += sec;
        speed_row(sec,
                  (work){bytes + n * ((double)row_bytes + (double)nrd_row_bytes(s->y, rows)),
                         2.0 * n * (double)rows * (double)cols, peak_of(&r.a)},
                  "%-8s %s %4d x %lld -> %lld", s->names[shape], nrd_dtype_name(type), n,
                  (long long)cols, (long long)rows);
    }
    case_end();
}

/* Several shapes of one row are a layer: their sum, too. */
void speed_linear(void)
{
    const target *t = &targets[0];

    for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++) {
        const linear_speed *s = &speeds[i];
        if (is_here(s->on)) {
            printf("%s\n", s->model);
        }
        for (int k = 0; is_here(s->on) && k < 16 && s->types[k]; k++) {
            double layer[10] = {0};
            int shape = 0;
            for (; shape < 5 && s->shapes[shape][0] > 0; shape++) {
                speed_shape(t, s, s->types[k], shape, layer);
            }
            for (int c = 0; shape > 1 && c < 10 && s->counts[c] > 0; c++) {
                printf("%-44s %9.2f us\n", "  all of them", layer[c] * 1e6);
            }
        }
    }
}
