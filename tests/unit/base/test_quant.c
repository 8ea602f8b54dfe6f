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
        {NRD_DTYPE_Q8_0, 0.007f}, {NRD_DTYPE_Q8_1, 0.006f}, {NRD_DTYPE_Q2_K, 0.30f}, {NRD_DTYPE_Q3_K, 0.16f}, {NRD_DTYPE_Q4_K, 0.08f},
        {NRD_DTYPE_Q5_K, 0.042f}, {NRD_DTYPE_Q6_K, 0.02f}, {NRD_DTYPE_F16, 0.0003f}, {NRD_DTYPE_BF16, 0.002f},
        {NRD_DTYPE_F8_E4M3, 0.03f}, {NRD_DTYPE_IQ4_NL, 0.09f}, {NRD_DTYPE_IQ4_XS, 0.09f}, {NRD_DTYPE_MXFP4, 0.14f},
        {NRD_DTYPE_F8_B128, 0.03f}, {NRD_DTYPE_MXFP8, 0.03f}, {NRD_DTYPE_NVFP4, 0.12f},
        {NRD_DTYPE_NF4, 0.1f}, {NRD_DTYPE_FP4, 0.13f},
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

static void test_ternary_blocks_are_the_same_numbers_in_q2_k(void **state)
{
    static const nrd_dtype types[2] = {NRD_DTYPE_TQ1_0, NRD_DTYPE_TQ2_0};
    uint8_t block[66], q2_k[84];
    float want[256], got[256];
    (void)state;
    for (int t = 0; t < 2; t++) {
        const size_t bytes = nrd_dtype_block_bytes(types[t]);
        memset(block, t ? 0x92 : 0xff, bytes); /* digits 2 2 2 2 2 of base 3; codes 2 0 1 2 of two bits, from the lowest up */
        memcpy(block + bytes - 2, "\0\x38", 2); /* 0.5 */
        assert_true(nrd_dequantize_row(types[t], block, want, 256));
        assert_true(want[0] == 0.5f && want[32] == (t ? -0.5f : 0.5f) && want[64] == (t ? 0.0f : 0.5f) && want[255] == 0.5f);
        for (size_t i = 0; i + 2 < bytes; i++) {
            block[i] = (uint8_t)(t ? i * 7 % 3 | i % 3 << 2 | 1 << 4 | (i + 1) % 3 << 6 : i * 5);
        }
        assert_true(nrd_dequantize_row(types[t], block, want, 256));
        assert_true(nrd_ternary_row(types[t], block, q2_k, 256));
        assert_true(nrd_dequantize_row(NRD_DTYPE_Q2_K, q2_k, got, 256));
        assert_memory_equal(got, want, sizeof got);
        assert_false(nrd_ternary_row(types[t], block, q2_k, 255));
    }
    assert_false(nrd_ternary_row(NRD_DTYPE_Q2_K, block, q2_k, 256));
}

static void test_types_of_files_are_computed_in_another_one(void **state)
{
    static const nrd_dtype iq[] = {NRD_DTYPE_IQ1_S, NRD_DTYPE_IQ1_M, NRD_DTYPE_IQ2_XXS, NRD_DTYPE_IQ2_XS, NRD_DTYPE_IQ2_S,
                                   NRD_DTYPE_IQ3_XXS, NRD_DTYPE_IQ3_S};
    (void)state;
    for (size_t i = 0; i < sizeof iq / sizeof *iq; i++) {
        uint8_t block[110];
        float numbers[256];
        assert_int_equal(nrd_dtype_computed(iq[i]), NRD_DTYPE_Q8_0);
        assert_true(nrd_dtype_is_block(iq[i]) && !nrd_dtype_is_quant(iq[i]));
        for (int byte = 0; byte < 256; byte += 85) { /* the last vector of a table is there */
            memset(block, byte, sizeof block);
            assert_true(nrd_dequantize_row(iq[i], block, numbers, 256));
        }
        float one = 0;
        assert_false(nrd_quantize_row(iq[i], numbers, block, 256));
        assert_false(nrd_dequantize_row(iq[i], block, &one, 1));
    }
    assert_int_equal(nrd_dtype_computed(NRD_DTYPE_TQ1_0), NRD_DTYPE_Q2_K);
    assert_int_equal(nrd_dtype_computed(NRD_DTYPE_ACT_Q8), NRD_DTYPE_ACT_Q8);
    assert_int_equal(nrd_dtype_computed(NRD_DTYPE_MXFP4), NRD_DTYPE_MXFP4);
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
        cmocka_unit_test(test_ternary_blocks_are_the_same_numbers_in_q2_k),
        cmocka_unit_test(test_types_of_files_are_computed_in_another_one),
        cmocka_unit_test(test_sizes_and_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
