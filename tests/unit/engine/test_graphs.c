/* SPDX-License-Identifier: Apache-2.0
 * Shapes of recorded steps: every step fits the one it is filled up to, and little of it is padding. */
#include "engine/run/graphs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { MOST = 2048 };

static void test_steps_are_filled_up_by_less_than_a_tile(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= MOST; n++) {
        const int32_t rows = nrd_graphs_rows(n, MOST);
        assert_true(rows >= n);
        assert_true(n > 128 ? rows - n < 64 : rows < 2 * n);
    }
}

static void test_no_step_is_filled_up_beyond_the_limit(void **state)
{
    (void)state;
    for (int32_t max = 1; max <= 700; max += 3) {
        for (int32_t n = 1; n <= max; n++) {
            const int32_t rows = nrd_graphs_rows(n, max);
            assert_true(rows >= n && rows <= max);
        }
        assert_int_equal(nrd_graphs_rows(max + 1, max), 0);
    }
    assert_int_equal(nrd_graphs_rows(MOST + 1, 4096), 0);
}

static void test_a_step_of_that_size_stays_as_it_is(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= 300; n++) {
        const int32_t rows = nrd_graphs_rows(n, 300);
        assert_int_equal(nrd_graphs_rows(rows, 300), rows);
    }
}

static void test_contexts_double(void **state)
{
    (void)state;
    assert_int_equal(nrd_graphs_ctx(1, 8192), 256);
    assert_int_equal(nrd_graphs_ctx(256, 8192), 256);
    assert_int_equal(nrd_graphs_ctx(257, 8192), 512);
    assert_int_equal(nrd_graphs_ctx(5000, 6000), 6000);
    assert_int_equal(nrd_graphs_ctx(7, 100), 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_are_filled_up_by_less_than_a_tile),
        cmocka_unit_test(test_no_step_is_filled_up_beyond_the_limit),
        cmocka_unit_test(test_a_step_of_that_size_stays_as_it_is),
        cmocka_unit_test(test_contexts_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
