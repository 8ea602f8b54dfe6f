/* SPDX-License-Identifier: Apache-2.0
 * Every operation of the CPU device against its reference: shapes x types x instruction sets x
 * numbers of threads. Random data; NEREID_TEST_SEED=n repeats a run. The worst error of every group
 * is printed beside what is allowed. */
#include "base/dtype.h"
#include "base/mem.h"
#include "device/device.h"
#include "device/ops/ops.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t rng_state = 88172645463325252u;

static uint64_t rnd(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state;
}

static int32_t rnd_in(int32_t lo, int32_t hi)
{
    return lo + (int32_t)(rnd() % (uint64_t)(hi - lo + 1));
}

static float rnd_f(void) /* about normal, mean 0, deviation 1 */
{
    float s = 0;
    for (int i = 0; i < 6; i++) {
        s += (float)(rnd() >> 40) * 0x1p-24f - 0.5f;
    }
    return s * 1.4142f;
}

static float *rnd_floats(int64_t n, float scale)
{
    float *x = nrd_xmalloc((size_t)(n > 0 ? n : 1) * 4);
    for (int64_t i = 0; i < n; i++) {
        x[i] = rnd_f() * scale;
    }
    return x;
}

static void ok(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
}

/* ---- devices under test: every instruction set that runs here, with 1 and 3 threads ---- */

typedef struct target {
    char name[40];
    nrd_device *dev;
    nrd_stream *s;
} target;
static target targets[12];
static int n_targets;
static const char *only; /* first argument: this instruction set beside avx512vnni */

static int open_targets(void **state)
{
#ifdef NRD_AMX_WORDS /* the matrix unit in plain C beside what it must agree with */
    static const char *const isas[] = {"avx512vnni", "amx"};
#else
    static const char *const isas[] = {"generic", "avx2", "avx512", "avx512vnni", "amx"};
#endif
    (void)state;

    const char *seed = getenv("NEREID_TEST_SEED");
    if (seed) {
        rng_state = strtoull(seed, NULL, 10) | 1u;
    }
    printf("seed %llu\n", (unsigned long long)rng_state);
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        if (only && strcmp(only, isas[i]) != 0 && strcmp("avx512vnni", isas[i]) != 0) {
            continue;
        }
        for (int threads = 1; threads <= 3; threads += 2) {
            nrd_device_config config = {.n_threads = threads, .isa = isas[i]};
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
            bool is_narrow = strcmp(isas[i], "generic") == 0 || strcmp(isas[i], "avx2") == 0;
            if (threads > 1 && is_narrow) { /* slow there; the wide forms keep both */
                continue;
            }
#endif
            target *t = &targets[n_targets];
            nrd_error *err = nrd_device_open(&t->dev, "cpu", &config);
            if (err) {
                printf("left out: %s\n", nrd_error_message(err));
                nrd_error_free(err);
                break;
            }
            snprintf(t->name, sizeof t->name, "%s/%d", isas[i], threads);
            ok(t->dev->ops->stream_new(t->dev, &t->s));
            n_targets++;
        }
    }
    return 0;
}

static int close_targets(void **state)
{
    (void)state;
    for (int i = 0; i < n_targets; i++) {
        targets[i].dev->ops->stream_free(targets[i].s);
        targets[i].dev->ops->close(targets[i].dev);
    }
    return 0;
}

/* Largest |a - b| / allowed, where allowed = absolute + relative * |want|. */
typedef struct worst {
    double ratio, got, want;
    int64_t at;
} worst;

static void compare(worst *w, const float *got, const float *want, int64_t n, double absolute, double relative)
{
    for (int64_t i = 0; i < n; i++) {
        double g = (double)got[i], r = (double)want[i];
        double e = fabs(g - r) / (absolute + relative * fabs(r));
        if (g == r) {
            continue;
        }
        if (!(e <= w->ratio)) {
            *w = (worst){e, g, r, i};
        }
    }
}

static void report(const char *what, const char *where, const worst *w)
{
    printf("  %-28s %-14s worst %.3f of the allowed (%g for %g at %lld)\n", what, where, w->ratio, w->got, w->want,
           (long long)w->at);
    assert_true(w->ratio <= 1.0);
}

/* ---- weights ---- */

static nrd_weight new_weight(nrd_dtype t, int64_t rows, int64_t cols)
{
    nrd_weight w = {.dtype = t, .rows = rows, .cols = cols, .scale = 1};
    uint64_t bytes = nrd_weight_bytes(t, NRD_LAYOUT_ROWS, rows, cols);
    uint8_t *data = nrd_xcalloc(1, (size_t)bytes + 64);
    float *x = rnd_floats(rows * cols, 0.05f);

    if (t == NRD_DTYPE_I8) {
        float *scales = nrd_xmalloc((size_t)rows * 4 + 4);
        for (int64_t i = 0; i < rows * cols; i++) {
            ((int8_t *)data)[i] = (int8_t)rnd_in(-128, 127);
        }
        for (int64_t i = 0; i < rows; i++) {
            scales[i] = 0.0005f + fabsf(rnd_f()) * 0.001f;
        }
        w.scales = scales;
    } else if (t == NRD_DTYPE_F32) {
        memcpy(data, x, (size_t)(rows * cols) * 4);
    } else {
        size_t row_bytes = rows ? (size_t)bytes / (size_t)rows : 0;
        for (int64_t r = 0; r < rows; r++) {
            assert_true(nrd_quantize_row(t, x + r * cols, data + (size_t)r * row_bytes, cols));
        }
        /* Quantizers leave some bit patterns out: integers and scales of other rows at random. */
        if (nrd_dtype_is_quant(t)) {
            size_t block = nrd_dtype_block_bytes(t);
            for (uint64_t b = 0; b < bytes / block; b += 3) {
                uint8_t keep[4] = {data[b * block], data[b * block + 1], data[b * block + 2], data[b * block + 3]};
                uint8_t tail[4];
                memcpy(tail, data + (b + 1) * block - 4, 4);
                for (size_t i = 0; i < block; i++) {
                    data[b * block + i] = (uint8_t)rnd();
                }
                memcpy(data + b * block, keep, 4); /* the f16 scales are first or last */
                memcpy(data + (b + 1) * block - 4, tail, 4);
            }
        }
    }
    free(x);
    w.data = data;
    w.data_bytes = bytes;
    return w;
}

static void free_weight(nrd_weight *w)
{
    free((void *)(uintptr_t)w->data);
    free((void *)(uintptr_t)w->scales);
}

static const nrd_dtype weight_types[] = {
    NRD_DTYPE_F32, NRD_DTYPE_F16, NRD_DTYPE_BF16, NRD_DTYPE_I8, NRD_DTYPE_Q4_0, NRD_DTYPE_Q4_1, NRD_DTYPE_Q5_0,
    NRD_DTYPE_Q5_1, NRD_DTYPE_Q8_0, NRD_DTYPE_Q2_K, NRD_DTYPE_Q3_K, NRD_DTYPE_Q4_K, NRD_DTYPE_Q5_K, NRD_DTYPE_Q6_K,
    NRD_DTYPE_IQ4_NL, NRD_DTYPE_IQ4_XS,
};
enum { N_WEIGHT_TYPES = sizeof weight_types / sizeof weight_types[0] };

static void test_packed_rows_read_back_as_the_unpacked_ones(void **state)
{
    (void)state;
    for (int i = 0; i < N_WEIGHT_TYPES; i++) {
        nrd_dtype t = weight_types[i];
        int64_t block = nrd_dtype_block(t), rows = 37, cols = block > 1 ? 3 * block : 67;
        nrd_weight w = new_weight(t, rows, cols), p = w;
        uint32_t layout;
        uint64_t bytes;
        ok(targets[0].dev->ops->weight_plan(targets[0].dev, t, rows, cols, true, &layout, &bytes));
        assert_int_equal(layout, NRD_LAYOUT_TILE16);
        void *data = nrd_xcalloc(1, bytes);
        ok(targets[0].dev->ops->weight_pack(targets[0].dev, &w, layout, data));
        p.data = data;
        p.layout = layout;
        p.data_bytes = bytes;
        float *a = nrd_xmalloc((size_t)cols * 4), *b = nrd_xmalloc((size_t)cols * 4);
        for (int64_t r = 0; r < rows; r++) {
            nrd_weight_row(&w, r, a);
            nrd_weight_row(&p, r, b);
            for (int64_t k = 0; k < cols; k++) { /* fused or not: one rounding apart */
                if (fabsf(a[k] - b[k]) > 1e-6f * (1 + fabsf(a[k]))) {
                    fail_msg("%s row %lld col %lld: %g, packed %g", nrd_dtype_name(t), (long long)r, (long long)k,
                             (double)a[k], (double)b[k]);
                }
            }
        }
        free(a);
        free(b);
        free(data);
        free_weight(&w);
    }
}

/* The CPU device's own layout of w; the caller frees what is returned when `packed` is not used any more. */
static void *pack(const nrd_weight *w, nrd_weight *packed)
{
    const nrd_device_ops *ops = targets[0].dev->ops;
    uint32_t layout;
    uint64_t bytes;

    ok(ops->weight_plan(targets[0].dev, w->dtype, w->rows, w->cols, true, &layout, &bytes));
    void *data = nrd_aligned_zalloc(64, (size_t)bytes + 64);
    ok(ops->weight_pack(targets[0].dev, w, layout, data));
    packed->data = data;
    packed->layout = layout;
    packed->data_bytes = bytes;
    return data;
}

/* A sum of `cols` products in float32: each of cols roundings is at most eps / 2 of a partial sum, which
 * grows like the root of its length; as their errors do too, about eps / 2 * cols * |w| |x|. */
static double linear_allowed(int64_t cols, double w_size, double x_size)
{
    return 0.5 * 1.2e-7 * (double)cols * w_size * x_size + 1e-6;
}

/* The matrix unit takes x as two bfloat16: up to 2^-17 of it is left out, the errors have either sign. */
static double amx_bf16_allowed(int64_t cols, double w_size, double x_size)
{
    return 0x1p-17 * sqrt((double)cols) * w_size * x_size;
}

static bool is_amx(const target *t)
{
    return strncmp(t->name, "amx/", 4) == 0;
}

static void linear_case(nrd_dtype t, int64_t rows, int64_t cols, int32_t n, bool packed, bool q8_input, bool bias,
                        float softcap, worst *w_all)
{
    nrd_weight w = new_weight(t, rows, cols), b = new_weight(NRD_DTYPE_F32, rows, 1), used = w;
    float *x = rnd_floats((int64_t)n * cols, 1.0f);
    bool quant = nrd_dtype_is_quant(t) || t == NRD_DTYPE_I8;
    size_t q8_row = nrd_act_q8_row_bytes(cols);
    uint8_t *xq = nrd_aligned_zalloc(64, q8_row * (size_t)n + 64);
    float *want = nrd_xcalloc((size_t)(rows * n) + 1, 4), *got = nrd_xcalloc((size_t)(rows * n) + 1, 4);
    float *first = nrd_xcalloc((size_t)(rows * n) + 1, 4), *vnni = NULL;
    void *data = NULL;

    for (int32_t i = 0; i < n; i++) {
        nrd_act_q8_quantize(x + (int64_t)i * cols, cols, xq + (size_t)i * q8_row);
    }
    nrd_linear_args a = {.n_tokens = n, .n_parts = 1, .softcap = softcap, .y_dtype = NRD_DTYPE_F32};
    a.x = quant ? (void *)xq : (void *)x; /* the definition for quantized weights: quantized input */
    a.x_dtype = quant ? NRD_DTYPE_ACT_Q8 : NRD_DTYPE_F32;
    a.w[0] = &w;
    a.bias[0] = bias ? &b : NULL;
    a.y = want;
    ok(nrd_linear_check(&a));
    nrd_linear_ref(&a);
    if (!q8_input) {
        a.x = x;
        a.x_dtype = NRD_DTYPE_F32;
    }
    if (packed) {
        data = pack(&w, &used);
        a.w[0] = &used;
    }
    double w_size = 0;
    float *row = nrd_xmalloc((size_t)cols * 4);
    for (int64_t r = 0; r < rows; r++) {
        nrd_weight_row(&w, r, row);
        for (int64_t k = 0; k < cols; k++) {
            w_size = fmax(w_size, fabs((double)row[k]));
        }
    }
    free(row);
    for (int i = 0; i < n_targets; i++) {
        const nrd_device_ops *ops = targets[i].dev->ops;
        worst wst = {0};
        memset(got, 0xff, (size_t)(rows * n) * 4);
        a.y = got;
        ok(ops->linear(targets[i].s, &a));
        ok(ops->stream_sync(targets[i].s));
        compare(&wst, got, want, rows * n, linear_allowed(cols, w_size, 3) +
                (is_amx(&targets[i]) && t == NRD_DTYPE_BF16 ? amx_bf16_allowed(cols, w_size, 3) : 0), 1e-6);
        if (wst.ratio > 1 || wst.ratio != wst.ratio) {
            fail_msg("linear %s %s rows %lld cols %lld tokens %d packed %d q8 %d: %g for %g at %lld", targets[i].name,
                     nrd_dtype_name(t), (long long)rows, (long long)cols, n, packed, q8_input, wst.got, wst.want,
                     (long long)wst.at);
        }
        if (wst.ratio > w_all[i].ratio) {
            w_all[i] = wst;
        }
        /* The same bits for every number of threads ... */
        if (strchr(targets[i].name, '/')[1] == '1') {
            memcpy(first, got, (size_t)(rows * n) * 4);
        } else {
            assert_memory_equal(first, got, (size_t)(rows * n) * 4);
        }
        /* ... on the matrix unit, but for bfloat16, as without it ... */
        if (strcmp(targets[i].name, "avx512vnni/1") == 0) {
            vnni = nrd_xmalloc((size_t)(rows * n) * 4 + 4);
            memcpy(vnni, got, (size_t)(rows * n) * 4);
        } else if (is_amx(&targets[i]) && t != NRD_DTYPE_BF16) {
            assert_non_null(vnni);
            assert_memory_equal(vnni, got, (size_t)(rows * n) * 4);
        }
        /* ... and for every token alone. */
        for (int32_t k = 0; k < n && n > 1; k += n > 8 ? n / 4 : 1) {
            nrd_linear_args one = a;
            one.n_tokens = 1;
            one.x = (const char *)a.x + (size_t)k * nrd_row_bytes(a.x_dtype, cols);
            one.y = got;
            ok(ops->linear(targets[i].s, &one));
            ok(ops->stream_sync(targets[i].s));
            assert_memory_equal(got, first + (int64_t)k * rows, (size_t)rows * 4);
        }
    }
    free(data);
    free(x);
    free(xq);
    free(want);
    free(got);
    free(first);
    free(vnni);
    free_weight(&w);
    free_weight(&b);
}

static void test_linear_matches_the_reference_bit_equal_for_threads_and_batches(void **state)
{
    static const int32_t tokens[] = {1, 2, 3, 8, 16, 17, 31, 33, 64, 83};
    (void)state;

    for (int i = 0; i < N_WEIGHT_TYPES; i++) {
        nrd_dtype t = weight_types[i];
        worst w[12] = {{0}};
        int64_t block = nrd_dtype_block(t);
        for (int k = 0; k < 10; k++) {
            int64_t cols = block > 1 ? block * rnd_in(1, block == 256 ? 3 : 9) : rnd_in(1, 300);
            linear_case(t, rnd_in(1, 100), cols, tokens[k], k % 3 != 0, k % 2 && (block > 1 || t == NRD_DTYPE_I8),
                        k % 4 == 1, k % 4 == 2 ? 0.5f : 0, w);
        }
        linear_case(t, 16, block > 1 ? 2304 : 2048, 5, true, false, false, 0, w);
        linear_case(t, 90, block > 1 ? 1536 : 531, 53, true, true, i % 2, i % 3 == 1 ? 2.0f : 0, w); /* pieces of columns */
        for (int k = 0; k < n_targets; k++) {
            report(nrd_dtype_name(t), targets[k].name, &w[k]);
        }
    }
}

/* ---- row-wise operations ---- */

/* An ACT_Q8 row back as floats; two quantizations of nearly equal numbers differ by one step. */
static void rows_of(nrd_dtype t, const void *data, int64_t rows, int64_t cols, float *out)
{
    for (int64_t r = 0; r < rows; r++) {
        nrd_load_row(t, data, r, cols, NULL, out + r * cols);
    }
}

static double q8_step(const float *x, int64_t n)
{
    double peak = 0;
    for (int64_t i = 0; i < n; i++) {
        peak = fmax(peak, fabs((double)x[i]));
    }
    return peak / 127.0 * 1.01;
}

static void test_norm_matches_the_reference(void **state)
{
    static const int32_t sizes[] = {1, 31, 64, 97, 576, 640, 1024};
    (void)state;
    for (int i = 0; i < n_targets; i++) {
        worst w = {0};
        for (int k = 0; k < 28; k++) {
            int32_t h = sizes[k % 7], n = rnd_in(0, 19), n_rows = rnd_in(0, n);
            nrd_dtype out_t = k % 2 ? NRD_DTYPE_ACT_Q8 : NRD_DTYPE_F32;
            nrd_weight wt = new_weight(k % 3 ? NRD_DTYPE_F32 : NRD_DTYPE_BF16, h, 1), bias = new_weight(NRD_DTYPE_F16, h, 1),
                       dw = new_weight(NRD_DTYPE_F32, h, 1);
            float *res = rnd_floats((int64_t)n * h, 2), *res2 = rnd_floats((int64_t)n * h, 1), *delta = rnd_floats((int64_t)n * h, 1);
            int32_t ids[20];
            for (int32_t r = 0; r < n_rows; r++) {
                ids[r] = rnd_in(0, n - 1);
            }
            memcpy(res2, res, (size_t)(n * h) * 4);
            bool sel = n > 0 && k % 5 == 0;
            int32_t n_out = sel ? n_rows : n;
            size_t bytes = nrd_row_bytes(out_t, h) * (size_t)(n + 1);
            void *o1 = nrd_aligned_zalloc(64, bytes), *o2 = nrd_aligned_zalloc(64, bytes);
            nrd_norm_args a = {.kind = k % 4 == 3 ? NRD_NORM_LAYER : NRD_NORM_RMS, .eps = 1e-5f,
                               .n_tokens = n, .hidden = h, .delta = k % 7 < 5 ? delta : NULL,
                               .delta_weight = k % 7 < 2 ? &dw : NULL, .residual = res, .weight = k % 11 == 10 ? NULL : &wt,
                               .bias = k % 4 == 3 ? &bias : NULL, .row_ids = sel ? ids : NULL, .n_rows = n_rows, .out = o1,
                               .out_dtype = out_t, .act_dtype = NRD_DTYPE_F32};
            ok(nrd_norm_check(&a));
            nrd_norm_ref(&a);
            a.residual = res2;
            a.out = o2;
            ok(targets[i].dev->ops->norm(targets[i].s, &a));
            ok(targets[i].dev->ops->stream_sync(targets[i].s));
            compare(&w, res2, res, (int64_t)n * h, 1e-5, 1e-5);
            float *f1 = rnd_floats((int64_t)n_out * h, 1), *f2 = rnd_floats((int64_t)n_out * h, 1);
            rows_of(out_t, o1, n_out, h, f1);
            rows_of(out_t, o2, n_out, h, f2);
            compare(&w, f2, f1, (int64_t)n_out * h, out_t == NRD_DTYPE_F32 ? 1e-6 : q8_step(f1, (int64_t)n_out * h), 1e-5);
            free(f1), free(f2), free(o1), free(o2), free(res), free(res2), free(delta);
            free_weight(&wt), free_weight(&bias), free_weight(&dw);
        }
        report("norm", targets[i].name, &w);
    }
}

static void test_act_matches_the_reference(void **state)
{
    static const int32_t sizes[] = {1, 33, 160, 1536, 2048, 2049, 4500};
    (void)state;
    for (int i = 0; i < n_targets; i++) {
        worst w = {0};
        for (int k = 0; k < 24; k++) {
            int32_t n = rnd_in(0, 9), inter = sizes[k % 7];
            bool gated = k % 2;
            nrd_dtype out_t = k % 3 ? NRD_DTYPE_ACT_Q8 : NRD_DTYPE_F32;
            float *x = rnd_floats((int64_t)n * inter * 2, 3);
            size_t bytes = nrd_row_bytes(out_t, inter) * (size_t)(n + 1);
            void *o1 = nrd_aligned_zalloc(64, bytes), *o2 = nrd_aligned_zalloc(64, bytes);
            float *f1 = rnd_floats((int64_t)n * inter, 1), *f2 = rnd_floats((int64_t)n * inter, 1);
            nrd_act_args a = {.kind = (nrd_act_kind)(k % 6), .gated = gated, .n_tokens = n, .inter = inter,
                              .x = x, .act_dtype = NRD_DTYPE_F32, .out = o1, .out_dtype = out_t};
            ok(nrd_act_check(&a));
            nrd_act_ref(&a);
            a.out = o2;
            ok(targets[i].dev->ops->act(targets[i].s, &a));
            ok(targets[i].dev->ops->stream_sync(targets[i].s));
            rows_of(out_t, o1, n, inter, f1);
            rows_of(out_t, o2, n, inter, f2);
            compare(&w, f2, f1, (int64_t)n * inter, out_t == NRD_DTYPE_F32 ? 1e-5 : q8_step(f1, (int64_t)n * inter), 1e-5);
            free(x), free(f1), free(f2), free(o1), free(o2);
        }
        report("act", targets[i].name, &w);
    }
}

static void test_embed_matches_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < n_targets; i++) {
        worst w = {0};
        for (int k = 0; k < N_WEIGHT_TYPES; k++) {
            nrd_dtype t = weight_types[k];
            int32_t h = nrd_dtype_block(t) > 1 ? 256 : 67, n = rnd_in(0, 33), vocab = 50;
            nrd_weight table = new_weight(t, vocab, h), pos = new_weight(NRD_DTYPE_F16, 20, h), used;
            int32_t ids[33], positions[33], slots[4] = {3, 0, 49, 7};
            float *prompt = rnd_floats(h, 1);
            const void *prompts[33];
            bool owned;
            for (int32_t j = 0; j < n; j++) {
                ids[j] = rnd_in(-4, vocab + 1);
                positions[j] = rnd_in(0, 19);
                prompts[j] = ids[j] == vocab ? prompt : NULL;
            }
            ok(targets[i].dev->ops->weight_load(targets[i].s, &table, k % 2, &used, &owned));
            float *o1 = rnd_floats((int64_t)n * h, 1), *o2 = rnd_floats((int64_t)n * h, 1);
            nrd_embed_args a = {.n_tokens = n, .hidden = h, .ids = ids, .slot_tokens = slots, .table = &table,
                                .scale = k % 3 ? 1.0f : 3.5f, .pos_table = k % 4 ? NULL : &pos, .positions = positions,
                                .prompt_table = k % 2 ? prompts : NULL, .out = o1, .out_dtype = NRD_DTYPE_F32};
            ok(nrd_embed_check(&a));
            nrd_embed_ref(&a);
            a.table = &used;
            a.out = o2;
            ok(targets[i].dev->ops->embed(targets[i].s, &a));
            ok(targets[i].dev->ops->stream_sync(targets[i].s));
            compare(&w, o2, o1, (int64_t)n * h, 1e-6, 2e-6);
            if (owned) {
                targets[i].dev->ops->weight_unload(targets[i].dev, &used);
            }
            free(o1), free(o2), free(prompt);
            free_weight(&table), free_weight(&pos);
        }
        report("embed", targets[i].name, &w);
    }
}

/* ---- attention ---- */

typedef struct attn_case {
    int32_t n_heads, n_kv, dim, block_tokens, window, n_sink, n_seqs, max_new, max_old;
    nrd_dtype kv_dtype, out_dtype;
    float softcap;
    bool tree, norms, drop;
    nrd_rope_kind rope;
} attn_case;

static void attention_case(const attn_case *p, int i, worst *w_rope, worst *w_attn)
{
    int32_t q_start[9] = {0}, ctx[8], n = 0, max_q = 0, max_ctx = 0;
    nrd_device *dev = targets[i].dev;
    const nrd_device_ops *ops = dev->ops;

    for (int32_t s = 0; s < p->n_seqs; s++) {
        int32_t fresh = s % 2 ? 1 : rnd_in(1, p->max_new), old = rnd_in(0, p->max_old);
        q_start[s + 1] = n += fresh;
        ctx[s] = old + fresh;
        max_q = fresh > max_q ? fresh : max_q;
        max_ctx = ctx[s] > max_ctx ? ctx[s] : max_ctx;
    }
    int32_t per_seq = (max_ctx + p->block_tokens - 1) / p->block_tokens, stride = per_seq + 2;
    int32_t n_blocks = per_seq * p->n_seqs + 1, words = (max_q + 31) / 32;
    int32_t *table = nrd_xcalloc((size_t)(stride * p->n_seqs), 4), *positions = nrd_xcalloc((size_t)n, 4);
    int32_t *token_seq = nrd_xcalloc((size_t)n, 4);
    uint32_t *mask = nrd_xcalloc((size_t)(n * words), 4);
    for (int32_t s = 0; s < p->n_seqs; s++) {
        for (int32_t k = 0; k < stride; k++) { /* scattered: every second sequence from behind */
            table[s * stride + k] = k < per_seq ? (s % 2 ? n_blocks - 1 - k * p->n_seqs - s : 1 + k * p->n_seqs + s) % n_blocks : -1;
        }
        int32_t fresh = q_start[s + 1] - q_start[s];
        for (int32_t k = 0; k < fresh; k++) {
            int32_t t = q_start[s] + k;
            token_seq[t] = s;
            positions[t] = p->tree ? ctx[s] - fresh + (k + 1) / 2 : ctx[s] - fresh + k;
            for (int32_t j = k; j >= 0; j = j > 0 ? (j - 1) / 2 : -1) { /* a node sees its ancestors */
                mask[t * words + j / 32] |= 1u << (j % 32);
            }
        }
        if (p->drop && p->window > 0) {
            int32_t keep = ctx[s] - fresh - p->window + 1;
            for (int32_t k = 0; k < per_seq; k++) {
                if ((k + 1) * p->block_tokens <= keep && k * p->block_tokens >= p->n_sink) {
                    table[s * stride + k] = -1;
                }
            }
        }
    }
    /* Two sequences must not share a block. */
    for (int32_t s = 0, next = 0; s < p->n_seqs; s++) {
        for (int32_t k = 0; k < per_seq; k++) {
            if (table[s * stride + k] >= 0) {
                table[s * stride + k] = (next++ * 7) % n_blocks;
            }
        }
    }
    while (n_blocks % 7 == 0) {
        n_blocks++;
    }
    for (int32_t s = 0, next = 0; s < p->n_seqs; s++) {
        for (int32_t k = 0; k < per_seq; k++) {
            if (table[s * stride + k] >= 0) {
                table[s * stride + k] = (int32_t)(((int64_t)next++ * 7) % n_blocks);
            }
        }
    }
    size_t block_bytes = ops->kv_block_bytes(dev, p->kv_dtype, p->block_tokens, p->n_kv, p->dim);
    size_t pool = block_bytes * (size_t)n_blocks;
    uint8_t *kv1 = nrd_aligned_zalloc(64, pool), *kv2 = nrd_aligned_zalloc(64, pool);
    nrd_kv_layer kv = {kv1, p->kv_dtype, n_blocks, p->block_tokens, p->n_kv, p->dim, 0.03f, 0.04f};
    /* Old tokens: anything. */
    for (int32_t b = 0; b < n_blocks; b++) {
        for (int64_t e = 0; e < (int64_t)nrd_kv_head_elems(p->block_tokens, p->dim) * 2 * p->n_kv; e++) {
            nrd_kv_store(p->kv_dtype, kv1 + (size_t)b * block_bytes, e, 0.03f, rnd_f());
        }
    }
    memcpy(kv2, kv1, pool);
    int64_t width = (int64_t)p->n_heads * p->dim, row = width + 2 * (int64_t)p->n_kv * p->dim;
    float *qkv1 = rnd_floats(n * row, 1), *qkv2 = rnd_floats(n * row, 1), *inv = rnd_floats(p->dim / 2, 1);
    memcpy(qkv2, qkv1, (size_t)(n * row) * 4);
    for (int32_t k = 0; k < p->dim / 2; k++) {
        inv[k] = powf(10000.0f, -2.0f * (float)k / (float)p->dim);
    }
    nrd_weight qn = new_weight(NRD_DTYPE_F32, p->dim, 1), kn = new_weight(NRD_DTYPE_F16, p->dim, 1);
    for (int32_t k = 0; k < p->dim; k++) {
        ((float *)(uintptr_t)qn.data)[k] += 1.0f;
    }
    nrd_batch_view view = {n, p->n_seqs, max_q, max_ctx, positions, token_seq, q_start, ctx, table, stride,
                           p->tree ? mask : NULL, words, 0, 0, 0};
    nrd_rope_kv_args r = {.batch = &view, .qkv = qkv1, .act_dtype = NRD_DTYPE_F32, .n_heads = p->n_heads,
                          .q_norm = p->norms ? &qn : NULL, .k_norm = p->norms ? &kn : NULL, .norm_eps = 1e-6f, .rope = p->rope,
                          .rotary_dim = p->dim % 32 ? p->dim : p->dim - 8, .inv_freq = inv, .rope_scale = 1.1f, .kv = kv};
    ok(nrd_rope_kv_check(&r));
    nrd_rope_kv_ref(&r);
    r.qkv = qkv2;
    r.kv.base = kv2;
    ok(ops->rope_kv(targets[i].s, &r));
    size_t out_bytes = nrd_row_bytes(p->out_dtype, width) * (size_t)n;
    void *o1 = nrd_aligned_zalloc(64, out_bytes), *o2 = nrd_aligned_zalloc(64, out_bytes);
    nrd_attention_args a = {.batch = &view, .q = qkv1, .q_stride = row, .out = o1, .act_dtype = NRD_DTYPE_F32,
                            .out_dtype = p->out_dtype, .n_heads = p->n_heads, .scale = 1.0f / sqrtf((float)p->dim),
                            .softcap = p->softcap, .window = p->window, .n_sink = p->n_sink, .kv = kv};
    ok(nrd_attention_check(&a));
    nrd_attention_ref(&a);
    a.q = qkv2;
    a.out = o2;
    a.kv.base = kv2;
    ok(ops->attention(targets[i].s, &a));
    ok(ops->stream_sync(targets[i].s));
    for (int32_t t = 0; t < n; t++) {
        compare(w_rope, qkv2 + t * row, qkv1 + t * row, width, 4e-6, 4e-6);
    }
    float *f1 = rnd_floats(n * width, 1), *f2 = rnd_floats(n * width, 1);
    rows_of(p->out_dtype, o1, n, width, f1);
    rows_of(p->out_dtype, o2, n, width, f2);
    /* Softmax weights sum to one: errors of scores (dim roundings) and of e^x enter relatively. The
     * cache may round K and V of this step to the neighbour: half a step of its type. */
    double allowed = 2e-5 + (p->kv_dtype == NRD_DTYPE_F32 ? 0 : p->kv_dtype == NRD_DTYPE_F16 ? 2e-3 : p->kv_dtype == NRD_DTYPE_BF16 ? 1.6e-2 : 4.1e-2);
    compare(w_attn, f2, f1, n * width, allowed + (p->out_dtype == NRD_DTYPE_ACT_Q8 ? q8_step(f1, n * width) : 0), 1e-5);
    /* A token alone (its sequence only, last token only) gives the same bits. */
    if (p->out_dtype == NRD_DTYPE_F32 && !p->tree) {
        int32_t s = rnd_in(0, p->n_seqs - 1), last = q_start[s + 1] - 1, one_start[2] = {0, 1};
        nrd_batch_view one = {1, 1, 1, ctx[s], &positions[last], token_seq, one_start, &ctx[s], table + s * stride, stride, NULL, 0, 0, 0, 0};
        float *alone = rnd_floats(width, 1);
        a.batch = &one;
        a.q = qkv2 + last * row;
        a.out = alone;
        ok(ops->attention(targets[i].s, &a));
        ok(ops->stream_sync(targets[i].s));
        assert_memory_equal(alone, (float *)o2 + last * width, (size_t)width * 4);
        free(alone);
    }
    free(f1), free(f2), free(o1), free(o2), free(qkv1), free(qkv2), free(inv), free(kv1), free(kv2);
    free(table), free(positions), free(token_seq), free(mask);
    free_weight(&qn), free_weight(&kn);
}

static void test_rope_and_attention_match_the_reference(void **state)
{
    static const nrd_dtype kvs[] = {NRD_DTYPE_F32, NRD_DTYPE_F16, NRD_DTYPE_BF16, NRD_DTYPE_I8};
    static const attn_case cases[] = {
        /* heads kv dim block window sink seqs new old */
        {9, 3, 64, 32, 0, 0, 3, 20, 50, 0, NRD_DTYPE_F32, 0, false, false, false, NRD_ROPE_NEOX},
        {9, 3, 64, 32, 0, 0, 2, 3, 2500, 0, NRD_DTYPE_F32, 0, false, false, false, NRD_ROPE_NEOX},
        {4, 1, 256, 16, 40, 0, 3, 70, 100, 0, NRD_DTYPE_ACT_Q8, 0, false, true, true, NRD_ROPE_NEOX},
        {4, 4, 32, 8, 0, 0, 4, 5, 40, 0, NRD_DTYPE_F32, 20, false, false, false, NRD_ROPE_INTERLEAVED},
        {20, 1, 16, 24, 100, 4, 2, 9, 300, 0, NRD_DTYPE_ACT_Q8, 0, false, false, true, NRD_ROPE_INTERLEAVED},
        {6, 2, 48, 64, 0, 0, 3, 11, 200, 0, NRD_DTYPE_F32, 0, true, true, false, NRD_ROPE_NEOX},
        {2, 1, 20, 16, 0, 0, 2, 4, 30, 0, NRD_DTYPE_F32, 0, false, false, false, NRD_ROPE_NONE},
        {8, 2, 64, 16, 30, 2, 2, 6, 64, 0, NRD_DTYPE_F32, 0, true, false, false, NRD_ROPE_NEOX},
    };
    (void)state;
    for (int i = 0; i < n_targets; i++) {
        worst rope = {0}, attn = {0};
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            for (int t = 0; t < 4; t++) {
                attn_case c = cases[k];
                c.kv_dtype = kvs[t];
                attention_case(&c, i, &rope, &attn);
                if (attn.ratio > 1 || rope.ratio > 1) {
                    fail_msg("case %zu, kv %s, %s: rope %.3g, attention %.3g of the allowed (%g for %g at %lld)", k,
                             nrd_dtype_name(kvs[t]), targets[i].name, rope.ratio, attn.ratio, attn.got, attn.want,
                             (long long)attn.at);
                }
            }
        }
        report("rope_kv", targets[i].name, &rope);
        report("attention", targets[i].name, &attn);
    }
}

/* Sequences of one new token, two groups of which begin with the same blocks, and one with more. */
static void shared_case(int i, nrd_dtype kv_dtype, int32_t n_heads, int32_t n_kv, int32_t dim, int32_t bt, int32_t n_common,
                        int32_t n_seqs, float softcap)
{
    enum { MAX_SEQS = 12 };
    nrd_device *dev = targets[i].dev;
    const nrd_device_ops *ops = dev->ops;
    int32_t q_start[MAX_SEQS + 1] = {0}, ctx[MAX_SEQS], positions[MAX_SEQS + 4], token_seq[MAX_SEQS + 4], n = 0, most = 0;
    int32_t stride = n_common + 40, next = 2 * n_common;
    int32_t *table = nrd_xcalloc((size_t)(stride * n_seqs), 4);

    for (int32_t s = 0; s < n_seqs; s++) {
        int32_t fresh = s == 2 ? 3 : 1, own = rnd_in(1, 30 * bt);
        int32_t common = s % 3 == 1 ? n_common / 2 : n_common; /* the second group has less in common */
        own = own < fresh ? fresh : own;
        ctx[s] = common * bt + own;
        most = ctx[s] > most ? ctx[s] : most;
        for (int32_t k = 0; k * bt < ctx[s]; k++) {
            table[s * stride + k] = k >= common ? next++ : s % 3 == 1 ? n_common + k : k;
        }
        for (int32_t k = 0; k < fresh; k++, n++) {
            positions[n] = ctx[s] - fresh + k;
            token_seq[n] = s;
        }
        q_start[s + 1] = n;
    }
    size_t block_bytes = ops->kv_block_bytes(dev, kv_dtype, bt, n_kv, dim);
    uint8_t *pool = nrd_aligned_zalloc(64, block_bytes * (size_t)next);
    for (int32_t b = 0; b < next; b++) {
        for (int64_t e = 0; e < (int64_t)nrd_kv_head_elems(bt, dim) * 2 * n_kv; e++) {
            nrd_kv_store(kv_dtype, pool + (size_t)b * block_bytes, e, 0.03f, rnd_f());
        }
    }
    int64_t width = (int64_t)n_heads * dim;
    float *q = rnd_floats(n * width, 1), *out = rnd_floats(n * width, 1), *alone = rnd_floats(4 * width, 1);
    nrd_batch_view view = {n, n_seqs, 3, most, positions, token_seq, q_start, ctx, table, stride, NULL, 0, 0, 0, 0};
    nrd_attention_args a = {.batch = &view, .q = q, .q_stride = width, .out = out, .act_dtype = NRD_DTYPE_F32,
                            .out_dtype = NRD_DTYPE_F32, .n_heads = n_heads, .scale = 0.1f, .softcap = softcap,
                            .kv = {pool, kv_dtype, next, bt, n_kv, dim, 0.03f, 0.04f}};
    ok(ops->attention(targets[i].s, &a));
    ok(ops->stream_sync(targets[i].s));
    for (int32_t s = 0; s < n_seqs; s++) {
        int32_t first = q_start[s], fresh = q_start[s + 1] - first, one_start[2] = {0, fresh}, zeros[4] = {0};
        nrd_batch_view one = {fresh, 1, fresh, ctx[s], &positions[first], zeros, one_start, &ctx[s], table + s * stride,
                              stride, NULL, 0, 0, 0, 0};
        a.batch = &one;
        a.q = q + first * width;
        a.out = alone;
        ok(ops->attention(targets[i].s, &a));
        ok(ops->stream_sync(targets[i].s));
        assert_memory_equal(alone, out + first * width, (size_t)(fresh * width) * 4);
    }
    free(table), free(pool), free(q), free(out), free(alone);
}

static void test_sequences_that_share_blocks_get_the_bits_they_get_alone(void **state)
{
    static const nrd_dtype kvs[] = {NRD_DTYPE_F32, NRD_DTYPE_F16, NRD_DTYPE_BF16, NRD_DTYPE_I8};
    (void)state;
    for (int i = 0; i < n_targets; i++) {
        for (int t = 0; t < 4; t++) {
            shared_case(i, kvs[t], 9, 3, 64, 32, 10, 12, 0);
            shared_case(i, kvs[t], 4, 2, 32, 64, 20, 7, t % 2 ? 5.0f : 0);  /* beyond a split of 1,024 */
            shared_case(i, kvs[t], 8, 1, 16, 16, 64, 12, 0); /* ends where a split ends */
        }
    }
}

/* ---- sampling ---- */

/* At most n ids of a vocabulary, in order, each once. */
static int32_t rising_ids(int32_t *out, int32_t n, int32_t vocab)
{
    int32_t k = 0;
    for (int32_t id = rnd_in(0, (vocab - 1) / n); k < n && id < vocab; id += rnd_in(1, vocab / n + 1)) {
        out[k++] = id;
    }
    return k;
}

static void test_sample_chooses_as_the_reference(void **state)
{
    (void)state;
    for (int i = 0; i < n_targets; i++) {
        worst w = {0};
        int edge = 0, drawn = 0;
        for (int k = 0; k < 120; k++) {
            int32_t vocab = k % 4 == 0 ? rnd_in(1, 40) : rnd_in(41, 5000), n = rnd_in(1, 5), n_top = k % 5 == 0 ? rnd_in(1, vocab < 9 ? vocab : 9) : 0;
            float *logits = rnd_floats((int64_t)n * vocab, k % 3 ? 3.0f : 0.3f), *bias = rnd_floats(vocab, 1);
            int32_t some[7], n_some = rising_ids(some, 7, vocab);
            uint32_t *mask = nrd_xcalloc((size_t)(vocab + 31) / 32, 4);
            uint16_t *counts1 = nrd_xcalloc((size_t)(n * vocab), 2), *counts2 = nrd_xcalloc((size_t)(n * vocab), 2);
            int32_t banned[3], slots1[5] = {0}, slots2[5] = {0}, id1[5], id2[5], t1[45], t2[45];
            float lp1[5] = {0}, lp2[5] = {0}, ln1[5] = {0}, ln2[5] = {0}, tl1[45], tl2[45];
            nrd_sample_row rows[5];
            if (k % 6 == 1) { /* many ties */
                for (int64_t j = 0; j < (int64_t)n * vocab; j++) {
                    logits[j] = roundf(logits[j]);
                }
            }
            if (k % 10 == 9) {
                logits[rnd_in(0, vocab - 1)] = NAN;
                logits[rnd_in(0, vocab - 1)] = -INFINITY;
            }
            for (int32_t j = 0; j < (vocab + 31) / 32; j++) {
                mask[j] = (uint32_t)rnd() | (uint32_t)rnd();
            }
            for (int32_t j = 0; j < n * vocab; j++) {
                counts1[j] = counts2[j] = rnd() % 8 == 0 ? (uint16_t)rnd_in(1, 3) : 0;
            }
            for (int j = 0; j < 3; j++) {
                banned[j] = rnd_in(0, vocab - 1);
            }
            for (int32_t r = 0; r < n; r++) {
                rows[r] = (nrd_sample_row){.slot = r, .top_k = k % 3 == 0 ? rnd_in(0, vocab + 2) : k % 3 == 1 ? 0 : rnd_in(0, 60),
                    .top_p = rnd() % 2 ? 0.1f + 0.85f * (float)(rnd() % 100) / 100.0f : 0, .min_p = rnd() % 4 == 0 ? 0.05f : 0,
                    .temperature = rnd() % 4 == 0 ? 0 : 0.3f + (float)(rnd() % 100) / 60.0f, .repetition_penalty = rnd() % 2 ? 1.2f : 1.0f,
                    .presence_penalty = rnd() % 3 ? 0 : 0.5f, .frequency_penalty = rnd() % 3 ? 0 : 0.25f, .seed = rnd(), .draw = rnd() % 100,
                    .flags = NRD_SAMPLE_LOGPROB | NRD_SAMPLE_NORMALIZE | (rnd() % 2 ? NRD_SAMPLE_COUNTS : 0) | (rnd() % 5 == 0 ? NRD_SAMPLE_NO_UPDATE : 0),
                    .banned_start = 0, .n_banned = rnd() % 2 ? 3 : 0, .n_suppress_end = rnd() % 2, .end_id = rnd_in(-1, vocab - 1),
                    .bias = rnd() % 3 ? NULL : bias, .mask = rnd() % 3 ? NULL : mask};
                if (rows[r].bias && rnd() % 2) {
                    rows[r].bias_ids = some, rows[r].n_bias = n_some;
                }
            }
            nrd_sample_args a = {.n_rows = n, .vocab = vocab, .logits = logits, .rows = rows, .banned_ids = banned,
                                 .counts = counts1, .slot_tokens = slots1, .out_ids = id1, .out_logprob = lp1, .out_logprob_norm = ln1,
                                 .n_top = n_top, .out_top_ids = t1, .out_top_logprobs = tl1};
            ok(nrd_sample_check(&a));
            nrd_sample_ref(&a);
            a.counts = counts2, a.slot_tokens = slots2, a.out_ids = id2, a.out_logprob = lp2, a.out_logprob_norm = ln2, a.out_top_ids = t2, a.out_top_logprobs = tl2;
            ok(targets[i].dev->ops->sample(targets[i].s, &a));
            ok(targets[i].dev->ops->stream_sync(targets[i].s));
            for (int32_t r = 0; r < n; r++) {
                drawn++;
                if (id1[r] != id2[r]) { /* only where the drawn number falls on an edge */
                    assert_true(rows[r].temperature > 0 && rows[r].top_k != 1);
                    edge++;
                    continue;
                }
                compare(&w, &lp2[r], &lp1[r], 1, 1e-4, 1e-5);
                compare(&w, &ln2[r], &ln1[r], 1, 1e-3, 1e-5);
                assert_int_equal(slots1[r], slots2[r]);
            }
            for (int32_t j = 0; j < n * n_top; j++) {
                if (t1[j] != t2[j] && tl1[j] != -INFINITY) {
                    fail_msg("case %d: best %d is %d, not %d", k, j, t2[j], t1[j]);
                }
            }
            compare(&w, tl2, tl1, n * n_top, 1e-4, 1e-5);
            free(logits), free(bias), free(mask), free(counts1), free(counts2);
        }
        printf("  %d of %d draws fell on an edge\n", edge, drawn);
        assert_true(edge * 100 <= drawn);
        report("sample", targets[i].name, &w);
    }
}

enum { FUSED_MAX_ROWS = 70 };

typedef struct choices {
    int32_t ids[FUSED_MAX_ROWS], slots[FUSED_MAX_ROWS];
    float lp[FUSED_MAX_ROWS], norm[FUSED_MAX_ROWS];
    uint16_t *counts; /* [n, vocab] */
} choices;

/* Rows that a fused choice takes; those that it does not take, with `plain`. */
static nrd_sample_row fused_row(int32_t slot, int32_t vocab, bool plain, const float *bias, const uint32_t *mask)
{
    nrd_sample_row row = {.slot = slot, .top_k = rnd() % 3 ? rnd_in(0, vocab < 129 ? vocab - 1 : 128) : 1,
        .top_p = rnd() % 2 ? 0.1f + 0.85f * (float)(rnd() % 100) / 100.0f : 0, .min_p = rnd() % 4 == 0 ? 0.05f : 0,
        .temperature = rnd() % 3 == 0 ? 0 : 0.3f + (float)(rnd() % 100) / 60.0f, .repetition_penalty = rnd() % 2 ? 1.2f : 1.0f,
        .presence_penalty = rnd() % 3 ? 0 : 0.5f, .frequency_penalty = rnd() % 3 ? 0 : 0.25f, .seed = rnd(), .draw = rnd() % 100,
        .flags = (rnd() % 3 ? 0 : NRD_SAMPLE_COUNTS) | (rnd() % 5 == 0 ? NRD_SAMPLE_NO_UPDATE : 0),
        .n_banned = rnd() % 3 ? 0 : 3, .n_suppress_end = rnd() % 2, .end_id = rnd_in(-1, vocab - 1),
        .bias = rnd() % 4 ? NULL : bias, .mask = rnd() % 4 ? NULL : mask};
    row.top_k = row.top_k < 1 ? 1 : row.top_k;
    if (plain) {
        switch (rnd() % 3) {
        case 0: row.flags |= NRD_SAMPLE_LOGPROB | NRD_SAMPLE_NORMALIZE; break;
        case 1: row.top_k = 0, row.temperature = 1; break;
        default: row.top_k = 129, row.temperature = 1; break;
        }
    }
    return row;
}

/* One random head: what linear_sample chooses is what linear and sample choose on the same device. */
static void fused_case(int k)
{
    static const int32_t n_rows[] = {1, 2, 5, 8, 16, 17, 33, 64, FUSED_MAX_ROWS};
    nrd_dtype type = weight_types[rnd_in(0, N_WEIGHT_TYPES - 1)];
    int64_t rows = k % 5 == 0 ? rnd_in(1, 60) : rnd_in(61, 1500), cols = nrd_dtype_block(type) > 1 ? nrd_dtype_block(type) : rnd_in(1, 40);
    int32_t n = n_rows[rnd_in(0, 8)], vocab = rnd() % 3 ? (int32_t)rows : rnd_in(1, (int32_t)rows), n_top = k % 16 == 7 ? 1 : 0;
    bool ties = k % 3 == 1, plain = k % 8 == 3, packed = rnd() % 2;
    nrd_weight w = new_weight(type, rows, cols), b = new_weight(NRD_DTYPE_F32, rows, 1), used = w;
    float *x = rnd_floats(n * cols, 1), *y = nrd_xcalloc((size_t)(n * rows), 4), *bias = rnd_floats(vocab, 1);
    int32_t some[9], n_some = rising_ids(some, 9, vocab);
    float *b_data = (float *)(uintptr_t)b.data, top_lp[FUSED_MAX_ROWS];
    uint32_t *mask = nrd_xcalloc((size_t)(vocab + 31) / 32, 4);
    int32_t banned[3] = {rnd_in(0, vocab - 1), rnd_in(0, vocab - 1), rnd_in(0, vocab - 1)}, top_ids[FUSED_MAX_ROWS];
    nrd_sample_row row[FUSED_MAX_ROWS];
    choices want = {0}, got = {0};
    void *data = NULL;

    for (int64_t i = 0; ties && i < rows; i++) {
        b_data[i] = roundf(b_data[i] * 40);
    }
    for (int64_t i = 0; ties && i < n * cols; i++) {
        x[i] = 0;
    }
    if (k % 7 == 6) {
        b_data[rnd_in(0, (int32_t)rows - 1)] = NAN;
        b_data[rnd_in(0, (int32_t)rows - 1)] = -INFINITY;
    }
    for (int i = 0; k % 14 == 13 && i < 3; i++) {
        b_data[rnd_in(0, (int32_t)rows - 1)] = INFINITY;
    }
    for (int64_t i = 0; k % 28 == 27 && i < rows; i++) {
        b_data[i] = k % 56 == 55 ? NAN : -INFINITY; /* nothing can be chosen */
    }
    for (int32_t j = 0; j < (vocab + 31) / 32; j++) {
        mask[j] = k % 9 == 8 ? 0 : (uint32_t)rnd() | (uint32_t)rnd();
    }
    for (int32_t i = 0; i < n; i++) {
        row[i] = fused_row(i, vocab, plain && i == n / 2, bias, mask);
        if (row[i].bias && rnd() % 2) {
            row[i].bias_ids = some, row[i].n_bias = n_some;
        }
    }
    if (packed) {
        data = pack(&w, &used);
    }
    want.counts = nrd_xcalloc((size_t)(n * vocab), 2);
    got.counts = nrd_xcalloc((size_t)(n * vocab), 2);
    bool kept = !plain && n_top == 0; /* top_k of the whole vocabulary is for sample, too */
    for (int32_t i = 0; i < n; i++) {
        kept = kept && (row[i].temperature <= 0 || row[i].top_k == 1 || row[i].top_k < vocab);
    }
    nrd_linear_args l = {.n_tokens = n, .x = x, .x_dtype = NRD_DTYPE_F32, .n_parts = 1, .w = {&used},
                         .bias = {ties || k % 7 == 6 ? &b : NULL}, .y = y, .y_dtype = NRD_DTYPE_F32,
                         .softcap = k % 4 == 2 ? 2.0f : 0};
    nrd_sample_args a = {.n_rows = n, .vocab = vocab, .logits = y, .logits_stride = rows, .rows = row,
                         .banned_ids = banned, .n_top = n_top, .out_top_ids = top_ids, .out_top_logprobs = top_lp};
    for (const target *t = targets; t < targets + n_targets; t++) {
        for (int32_t j = 0; j < n * vocab; j++) {
            want.counts[j] = got.counts[j] = rnd() % 8 == 0 ? (uint16_t)rnd_in(1, 3) : 0;
        }
        a.counts = want.counts, a.slot_tokens = want.slots, a.out_ids = want.ids, a.out_logprob = want.lp, a.out_logprob_norm = want.norm;
        ok(t->dev->ops->linear(t->s, &l));
        ok(t->dev->ops->sample(t->s, &a));
        ok(t->dev->ops->stream_sync(t->s));
        memset(y, 0xff, (size_t)(n * rows) * 4);
        a.counts = got.counts, a.slot_tokens = got.slots, a.out_ids = got.ids, a.out_logprob = got.lp, a.out_logprob_norm = got.norm;
        ok(t->dev->ops->linear_sample(t->s, &l, &a));
        ok(t->dev->ops->stream_sync(t->s));
        for (int32_t i = 0; i < n; i++) {
            if (want.ids[i] != got.ids[i]) {
                fail_msg("case %d on %s: row %d of %d, top_k %d of %d: %d, not %d", k, t->name, i, n, row[i].top_k, vocab,
                         got.ids[i], want.ids[i]);
            }
        }
        assert_memory_equal(want.slots, got.slots, sizeof want.slots);
        assert_memory_equal(want.lp, got.lp, sizeof want.lp);
        assert_memory_equal(want.norm, got.norm, sizeof want.norm);
        assert_memory_equal(want.counts, got.counts, (size_t)(n * vocab) * 2);
        uint32_t untouched;
        memcpy(&untouched, y, 4);
        assert_int_equal(untouched == UINT32_MAX, kept);
    }
    free(x), free(y), free(bias), free(mask), free(data), free(want.counts), free(got.counts);
    free_weight(&w), free_weight(&b);
}

static void test_linear_sample_chooses_as_linear_and_sample_and_stores_no_logits(void **state)
{
    (void)state;
    for (int k = 0; k < 112; k++) {
        fused_case(k);
    }
}

/* ---- low-rank pairs ---- */

typedef struct lora_case {
    nrd_lora_args a;
    int32_t n_slots;
    nrd_lora_pair *pairs;
    int32_t *slots;
    float *x, *y;
    void *x_row;
    double size; /* of what the pairs add, about */
} lora_case;

static void *as_type(nrd_dtype t, int64_t n, float scale)
{
    float *x = rnd_floats(n, scale);
    uint8_t *out = nrd_aligned_zalloc(64, (size_t)(n + 1) * 4);
    for (int64_t i = 0; i < n; i++) {
        nrd_store_f32(t, out, i, x[i]);
    }
    free(x);
    return out;
}

/* Adapters of mixed ranks and types, some parts left out; runs of tokens of one adapter, of others, of none. */
static void lora_new(lora_case *c, bool q8)
{
    static const nrd_dtype types[] = {NRD_DTYPE_F32, NRD_DTYPE_F16, NRD_DTYPE_BF16};
    static const int32_t columns[] = {1, 15, 64, 127, 576, 1024};
    nrd_lora_args *a = &c->a;
    int32_t at = 0;

    *c = (lora_case){.n_slots = rnd_in(1, 5)};
    a->n_tokens = rnd_in(0, 40);
    a->cols = q8 ? 32 * rnd_in(1, 20) : columns[rnd_in(0, 5)];
    a->n_parts = rnd_in(1, NRD_LORA_MAX_PARTS);
    a->max_rank = rnd_in(1, 70);
    a->slot_stride = a->n_parts + rnd_in(0, 3);
    for (int32_t p = 0; p < a->n_parts; p++) { /* the last may lie over the others */
        a->part[p].n_rows = rnd_in(1, 900);
        a->part[p].row0 = p == 3 ? 0 : at;
        at += p == 3 ? 0 : a->part[p].n_rows;
        a->y_stride = a->part[p].row0 + a->part[p].n_rows > a->y_stride ? a->part[p].row0 + a->part[p].n_rows
                                                                        : a->y_stride;
    }
    a->y_stride += rnd_in(0, 9);
    c->pairs = nrd_xcalloc((size_t)(c->n_slots * a->slot_stride), sizeof *c->pairs);
    for (int32_t s = 0; s < c->n_slots; s++) {
        for (int32_t p = 0; p < a->n_parts; p++) {
            nrd_dtype t = types[rnd_in(0, 2)];
            int32_t rank = rnd_in(0, 3) ? rnd_in(1, a->max_rank) : 0;
            nrd_lora_pair *w = &c->pairs[s * a->slot_stride + p];
            *w = (nrd_lora_pair){.rank = rank, .dtype = (int32_t)t, .scale = 0.25f * (float)rnd_in(1, 9)};
            w->a = rank ? as_type(t, rank * a->cols, 0.1f) : NULL;
            w->b = rank ? as_type(t, (int64_t)rank * a->part[p].n_rows, 0.1f) : NULL;
        }
    }
    c->slots = nrd_xcalloc((size_t)a->n_tokens + 1, sizeof *c->slots);
    for (int32_t t = 0; t < a->n_tokens;) {
        int32_t slot = rnd_in(-1, c->n_slots - 1);
        for (int32_t n = rnd_in(1, 9); n > 0 && t < a->n_tokens; n--) {
            c->slots[t++] = slot;
        }
    }
    c->x = rnd_floats(a->n_tokens * a->cols, 1);
    c->y = rnd_floats(a->n_tokens * a->y_stride, 1);
    size_t row = nrd_row_bytes(NRD_DTYPE_ACT_Q8, a->cols);
    c->x_row = nrd_aligned_zalloc(64, row * (size_t)(a->n_tokens + 1));
    for (int32_t t = 0; t < a->n_tokens; t++) {
        nrd_act_q8_quantize(c->x + t * a->cols, a->cols, (uint8_t *)c->x_row + (size_t)t * row);
    }
    a->x = q8 ? c->x_row : c->x;
    a->x_dtype = q8 ? NRD_DTYPE_ACT_Q8 : NRD_DTYPE_F32;
    a->y_dtype = NRD_DTYPE_F32;
    a->token_slot = c->slots;
    a->pairs = c->pairs;
    a->hidden = rnd_floats((int64_t)a->n_tokens * a->n_parts * a->max_rank, 1e20f); /* what lies there does not count */
    c->size = 2.25 * 0.01 * sqrt((double)a->cols) * sqrt((double)a->max_rank) * 4;
}

static void lora_free(lora_case *c)
{
    for (int32_t i = 0; i < c->n_slots * c->a.slot_stride; i++) {
        free((void *)(uintptr_t)c->pairs[i].a);
        free((void *)(uintptr_t)c->pairs[i].b);
    }
    free(c->pairs), free(c->slots), free(c->x), free(c->y), free(c->x_row), free(c->a.hidden);
}

/* Also each token alone: the same bits as in the batch. */
static void lora_target(const lora_case *c, const target *t, const float *want, worst *w)
{
    nrd_lora_args a = c->a;
    size_t bytes = (size_t)(a.n_tokens * a.y_stride) * sizeof(float);
    float *together = nrd_xmalloc(bytes + 4), *alone = nrd_xmalloc(bytes + 4);

    memcpy(together, c->y, bytes);
    memcpy(alone, c->y, bytes);
    a.y = together;
    ok(t->dev->ops->lora(t->s, &a));
    ok(t->dev->ops->stream_sync(t->s));
    compare(w, together, want, a.n_tokens * a.y_stride, 1e-5 + 2e-6 * c->size * sqrt((double)a.cols), 1e-5);
    for (int32_t i = 0; i < c->a.n_tokens; i++) {
        nrd_lora_args one = c->a;
        one.n_tokens = 1;
        one.token_slot = c->slots + i;
        one.x = (const uint8_t *)c->a.x + (size_t)i * nrd_row_bytes(one.x_dtype, one.cols);
        one.y = alone + i * one.y_stride;
        ok(t->dev->ops->lora(t->s, &one));
        ok(t->dev->ops->stream_sync(t->s));
    }
    assert_memory_equal(together, alone, bytes);
    free(together), free(alone);
}

static void test_lora_matches_the_reference_bit_equal_for_threads_and_batches(void **state)
{
    worst w[12] = {0};
    (void)state;
    for (int k = 0; k < 80; k++) {
        lora_case c;
        lora_new(&c, k % 2);
        size_t bytes = (size_t)(c.a.n_tokens * c.a.y_stride) * sizeof(float);
        float *want = nrd_xmalloc(bytes + 4);
        memcpy(want, c.y, bytes);
        c.a.y = want;
        ok(nrd_lora_check(&c.a));
        nrd_lora_ref(&c.a);
        for (int i = 0; i < n_targets; i++) {
            lora_target(&c, &targets[i], want, &w[i]);
        }
        free(want);
        lora_free(&c);
    }
    for (int i = 0; i < n_targets; i++) {
        report("lora", targets[i].name, &w[i]);
    }
}

int main(int argc, char **argv)
{
    only = argc > 1 ? argv[1] : NULL;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_rows_read_back_as_the_unpacked_ones),
        cmocka_unit_test(test_linear_matches_the_reference_bit_equal_for_threads_and_batches),
        cmocka_unit_test(test_norm_matches_the_reference),
        cmocka_unit_test(test_act_matches_the_reference),
        cmocka_unit_test(test_embed_matches_the_reference),
        cmocka_unit_test(test_rope_and_attention_match_the_reference),
        cmocka_unit_test(test_sequences_that_share_blocks_get_the_bits_they_get_alone),
        cmocka_unit_test(test_sample_chooses_as_the_reference),
        cmocka_unit_test(test_linear_sample_chooses_as_linear_and_sample_and_stores_no_logits),
        cmocka_unit_test(test_lora_matches_the_reference_bit_equal_for_threads_and_batches),
    };
    return cmocka_run_group_tests(tests, open_targets, close_targets);
}
