/* Every operation of the CPU device against its reference: shapes x types x instruction sets x
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

static int open_targets(void **state)
{
    static const char *const isas[] = {"generic", "avx2", "avx512", "avx512vnni"};
    (void)state;

    const char *seed = getenv("NEREID_TEST_SEED");
    if (seed) {
        rng_state = strtoull(seed, NULL, 10) | 1u;
    }
    printf("seed %llu\n", (unsigned long long)rng_state);
    for (int i = 0; i < 4; i++) {
        for (int threads = 1; threads <= 3; threads += 2) {
            nrd_device_config config = {.size = sizeof config, .n_threads = threads, .isa = isas[i], .world_size = 1};
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

/* Sums of `cols` products in float32, each rounding at most eps/2 of the partial sum; partial sums
 * stay below sqrt(cols) * |w| |x| by far: 4 eps sqrt(cols) per unit of the product's size. */
static double linear_allowed(int64_t cols, double w_size, double x_size)
{
    return 4.0 * 1.2e-7 * (double)cols * w_size * x_size + 1e-6;
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
    float *first = nrd_xcalloc((size_t)(rows * n) + 1, 4);
    void *data = NULL;

    for (int32_t i = 0; i < n; i++) {
        nrd_act_q8_quantize(x + (int64_t)i * cols, cols, xq + (size_t)i * q8_row);
    }
    nrd_linear_args a = {.size = sizeof a, .n_tokens = n, .n_parts = 1, .softcap = softcap, .y_dtype = NRD_DTYPE_F32};
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
        uint32_t layout;
        uint64_t bytes;
        ok(targets[0].dev->ops->weight_plan(targets[0].dev, t, rows, cols, true, &layout, &bytes));
        data = nrd_aligned_zalloc(64, (size_t)bytes + 64);
        ok(targets[0].dev->ops->weight_pack(targets[0].dev, &w, layout, data));
        used.data = data;
        used.layout = layout;
        used.data_bytes = bytes;
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
        compare(&wst, got, want, rows * n, linear_allowed(cols, w_size, 3), 1e-6);
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
    free_weight(&w);
    free_weight(&b);
}

static void test_linear_matches_the_reference_bit_equal_for_threads_and_batches(void **state)
{
    static const int32_t tokens[] = {1, 2, 3, 7, 16, 17, 31, 64};
    (void)state;

    for (int i = 0; i < N_WEIGHT_TYPES; i++) {
        nrd_dtype t = weight_types[i];
        worst w[12] = {{0}};
        int64_t block = nrd_dtype_block(t);
        for (int k = 0; k < 8; k++) {
            int64_t cols = block > 1 ? block * rnd_in(1, block == 256 ? 3 : 9) : rnd_in(1, 300);
            linear_case(t, rnd_in(1, 100), cols, tokens[k], k % 3 != 0, k % 2 && (block > 1 || t == NRD_DTYPE_I8),
                        k % 4 == 1, k % 4 == 2 ? 0.5f : 0, w);
        }
        linear_case(t, 16, block > 1 ? 2304 : 2048, 5, true, false, false, 0, w);
        for (int k = 0; k < n_targets; k++) {
            report(nrd_dtype_name(t), targets[k].name, &w[k]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_rows_read_back_as_the_unpacked_ones),
        cmocka_unit_test(test_linear_matches_the_reference_bit_equal_for_threads_and_batches),
    };
    return cmocka_run_group_tests(tests, open_targets, close_targets);
}
