/* SPDX-License-Identifier: Apache-2.0
 * Element types: conversions of single numbers, block formats there and back. The bytes of the block
 * formats were compared with the gguf package's dequantizers when this was written. */
#include "base/dtype.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static void test_every_half_survives_the_way_to_float_and_back(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float f = nrd_f16_to_f32((uint16_t)h);
        if (isnan(f)) {
            assert_true(isnan(nrd_f16_to_f32(nrd_f32_to_f16(f))));
        } else {
            assert_int_equal(nrd_f32_to_f16(f), h);
        }
    }
    assert_int_equal(nrd_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(nrd_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(nrd_f32_to_f16(0x1p-25f), 0);      /* half of the smallest: to even */
    assert_int_equal(nrd_f32_to_f16(0x1.8p-25f), 1);
    assert_int_equal(nrd_f32_to_f16(1.0f + 0x1p-11f), 0x3c00);
}

static void test_every_fp8_survives_and_large_numbers_saturate(void **state)
{
    (void)state;
    for (int v = 0; v < 256; v++) {
        float f = nrd_f8e4m3_to_f32((uint8_t)v);
        if ((v & 0x7f) == 0x7f) {
            assert_true(isnan(f));
        } else {
            assert_int_equal(nrd_f32_to_f8e4m3(f), v);
        }
    }
    assert_int_equal(nrd_f32_to_f8e4m3(1e9f), 0x7e);
    assert_int_equal(nrd_f32_to_f8e4m3(-INFINITY), 0xfe);
}

static void test_block_formats_keep_what_their_bits_allow(void **state)
{
    static const struct {
        nrd_dtype type;
        float rel; /* root mean square error over that of the data, normal numbers */
    } rows[] = {
        {NRD_DTYPE_Q4_0, 0.09f}, {NRD_DTYPE_Q4_1, 0.08f}, {NRD_DTYPE_Q5_0, 0.045f}, {NRD_DTYPE_Q5_1, 0.04f},
        {NRD_DTYPE_Q8_0, 0.007f}, {NRD_DTYPE_Q2_K, 0.30f}, {NRD_DTYPE_Q3_K, 0.16f}, {NRD_DTYPE_Q4_K, 0.08f},
        {NRD_DTYPE_Q5_K, 0.042f}, {NRD_DTYPE_Q6_K, 0.02f}, {NRD_DTYPE_F16, 0.0003f}, {NRD_DTYPE_BF16, 0.002f},
        {NRD_DTYPE_F8_E4M3, 0.03f}, {NRD_DTYPE_IQ4_NL, 0.09f}, {NRD_DTYPE_IQ4_XS, 0.09f}, {NRD_DTYPE_MXFP4, 0.14f},
    };
    float x[2048], y[2048];
    uint8_t bytes[8192];
    uint32_t s = 1;
    (void)state;
    for (int i = 0; i < 2048; i++) {
        float sum = 0;
        for (int k = 0; k < 6; k++) {
            s = s * 1664525u + 1013904223u;
            sum += (float)(s >> 8) * 0x1p-24f - 0.5f;
        }
        x[i] = sum;
    }
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        double err = 0, all = 0;
        assert_true(nrd_quantize_row(rows[r].type, x, bytes, 2048));
        assert_true(nrd_dequantize_row(rows[r].type, bytes, y, 2048));
        for (int i = 0; i < 2048; i++) {
            err += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
            all += (double)x[i] * (double)x[i];
        }
        printf("  %-8s %.4f of %.4f\n", nrd_dtype_name(rows[r].type), sqrt(err / all), (double)rows[r].rel);
        assert_true(sqrt(err / all) < (double)rows[r].rel);
        for (int i = 0; i < 2048; i++) { /* zeros stay zeros */
            y[i] = 0;
        }
        assert_true(nrd_quantize_row(rows[r].type, y, bytes, 2048));
        assert_true(nrd_dequantize_row(rows[r].type, bytes, y, 2048));
        for (int i = 0; i < 2048; i++) {
            assert_true(y[i] == 0);
        }
    }
}

static void test_sizes_and_names(void **state)
{
    size_t n;
    nrd_dtype t;
    (void)state;
    assert_true(nrd_dtype_bytes(NRD_DTYPE_Q6_K, 512, &n));
    assert_int_equal(n, 420);
    assert_false(nrd_dtype_bytes(NRD_DTYPE_Q6_K, 500, &n));
    assert_false(nrd_dtype_bytes(NRD_DTYPE_F64, UINT64_MAX / 2, &n));
    assert_true(nrd_dtype_parse("Q4_1", &t));
    assert_int_equal(t, NRD_DTYPE_Q4_1);
    assert_true(nrd_dtype_parse("BF16", &t));
    assert_int_equal(t, NRD_DTYPE_BF16);
    assert_true(nrd_dtype_parse(nrd_dtype_name(NRD_DTYPE_F8_E4M3), &t));
    assert_int_equal(t, NRD_DTYPE_F8_E4M3);
    assert_false(nrd_dtype_parse("q9", &t));
    assert_false(nrd_dequantize_row(NRD_DTYPE_Q4_0, "", NULL, 31));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_half_survives_the_way_to_float_and_back),
        cmocka_unit_test(test_every_fp8_survives_and_large_numbers_saturate),
        cmocka_unit_test(test_block_formats_keep_what_their_bits_allow),
        cmocka_unit_test(test_sizes_and_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
