/* SPDX-License-Identifier: Apache-2.0
 * The first number that is NaN or infinite: of each type, at each end of what is looked at together, at any address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/dtype.h"
#include "model/finite.h"

#include <math.h>
#include <string.h>

enum { N = 777 };

/* Numbers of `type`, the largest that are finite; `bad` is put at one place. */
static void check(nrd_dtype type, const void *largest, const void *bad, size_t bytes)
{
    static const uint64_t places[] = {0, 1, 255, 256, 511, 768, N - 1};
    uint8_t room[N * 8 + 1], *numbers = room + 1; /* at an odd address */

    for (size_t i = 0; i < N; i++) {
        memcpy(numbers + i * bytes, largest, bytes);
    }
    assert_int_equal(nrd_find_not_finite(type, numbers, N), N);
    for (size_t i = sizeof places / sizeof places[0]; i-- > 0;) { /* the earlier ones win */
        memcpy(numbers + places[i] * bytes, bad, bytes);
        assert_int_equal(nrd_find_not_finite(type, numbers, N), places[i]);
    }
    assert_int_equal(nrd_find_not_finite(type, numbers, 0), 0);
}

static void test_the_first_number_that_is_not_finite(void **state)
{
    const uint16_t half = 0xfbff, half_infinity = 0xfc00, half_nan = 0x7c01;
    const uint16_t bf16 = 0x7f7f, bf16_infinity = 0x7f80, bf16_nan = 0xffff;
    const float f = -3.4028235e38f, f_infinity = -INFINITY, f_nan = NAN;
    const double d = 1.7976931348623157e308, d_infinity = INFINITY, d_nan = -NAN;
    const uint8_t e4m3 = 0xfe, e4m3_nan = 0x7f;
    (void)state;
    check(NRD_DTYPE_F16, &half, &half_infinity, 2);
    check(NRD_DTYPE_F16, &half, &half_nan, 2);
    check(NRD_DTYPE_BF16, &bf16, &bf16_infinity, 2);
    check(NRD_DTYPE_BF16, &bf16, &bf16_nan, 2);
    check(NRD_DTYPE_F32, &f, &f_infinity, 4);
    check(NRD_DTYPE_F32, &f, &f_nan, 4);
    check(NRD_DTYPE_F64, &d, &d_infinity, 8);
    check(NRD_DTYPE_F64, &d, &d_nan, 8);
    check(NRD_DTYPE_F8_E4M3, &e4m3, &e4m3_nan, 1);
}

/* Where a block's numbers become NaN when every scale that the type has is: what is found agrees with what is read. */
static void test_blocks_are_bad_where_their_numbers_are_read_as_such(void **state)
{
    uint8_t blocks[3 * 256];
    float numbers[256];
    int n_types = 0;
    (void)state;
    for (int t = 0; t < NRD_DTYPE_COUNT_; t++) {
        const nrd_dtype type = (nrd_dtype)t;
        const int block = nrd_dtype_block(type);
        const size_t bytes = nrd_dtype_block_bytes(type);
        if (block == 1 || type == NRD_DTYPE_IQ1_M || type == NRD_DTYPE_MXFP4 || type == NRD_DTYPE_MXFP8) {
            continue; /* scales in pieces; E8M0, of which 255 is read as a number */
        }
        n_types++;
        for (size_t at = 0; at + 4 <= bytes; at += 2) { /* of two or four bytes, at each place of the second block */
            const float nan = NAN;
            const uint16_t half = 0x7e00;
            const bool is_wide = nrd_dtype_is_packed(type);
            memset(blocks, 0, sizeof blocks);
            memcpy(blocks + bytes + at, is_wide ? (const void *)&nan : &half, is_wide ? 4 : 2);
            assert_true(nrd_dequantize_row(type, blocks + bytes, numbers, block));
            bool bad = false;
            for (int i = 0; i < block; i++) {
                bad |= !isfinite(numbers[i]);
            }
            const uint64_t found = nrd_find_not_finite(type, blocks, 3 * (uint64_t)block);
            if (type != NRD_DTYPE_NVFP4 && type != NRD_DTYPE_F8_B128) { /* codes of these can be NaN as well */
                assert_int_equal(found, bad ? block : 3 * block);
            } else if (at == 0) {
                assert_int_equal(found, block);
            }
        }
    }
    assert_true(n_types > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_number_that_is_not_finite),
        cmocka_unit_test(test_blocks_are_bad_where_their_numbers_are_read_as_such),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
