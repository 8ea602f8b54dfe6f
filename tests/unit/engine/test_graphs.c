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

static void check_shape(int32_t n, int32_t n_tokens, int32_t longest, int32_t max_rows, int32_t max_tokens)
{
    const nrd_graph_shape s = nrd_graphs_shape(n, n_tokens, longest, max_rows, max_tokens);
    const bool uniform = longest == 1 || (n_tokens == n * longest && s.each == longest && s.rows == n);
    if (s.rows == 0) {
        assert_true(n_tokens > max_tokens || n > max_rows || n_tokens > MOST);
        return;
    }
    assert_true(s.each >= longest && s.rows >= n && s.tokens >= n_tokens && s.tokens <= max_tokens);
    assert_true(s.tokens - n_tokens <= (s.rows - n) * s.each);
    assert_true(uniform ? s.rows <= max_rows && s.rows * s.each == s.tokens : s.rows <= max_rows + NRD_GRAPHS_FILL);
}

static void test_shapes_have_room_for_what_fills_up(void **state)
{
    (void)state;
    for (int32_t longest = 1; longest <= 65; longest += longest < 9 ? 1 : 7) {
        for (int32_t n = 1; n <= 96; n++) {
            for (int32_t n_tokens = n + longest - 1; n_tokens <= n * longest; n_tokens += 1 + n_tokens / 50) {
                check_shape(n, n_tokens, longest, 96, 4096);
                check_shape(n, n_tokens, longest, n, n_tokens);
                check_shape(n, n_tokens, longest, n, n_tokens + 5);
            }
        }
    }
    for (int32_t n = 1; n <= 300; n++) { /* single tokens: as many rows as tokens */
        const nrd_graph_shape s = nrd_graphs_shape(n, n, 1, 300, 512);
        assert_true(s.each == 1 && s.rows == s.tokens && s.rows == nrd_graphs_rows(n, 300));
    }
}

/* Drafts of up to 4 tokens: whatever a step of n sequences has, few shapes are recorded for it. */
static void test_shapes_are_few(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= 64; n++) {
        nrd_graph_shape seen[64];
        int32_t n_seen = 0;
        for (int32_t longest = 2; longest <= 5; longest++) {
            for (int32_t n_tokens = n + longest - 1; n_tokens <= n * longest; n_tokens++) {
                const nrd_graph_shape s = nrd_graphs_shape(n, n_tokens, longest, 64, 4096);
                int32_t i = 0;
                while (i < n_seen && !(seen[i].rows == s.rows && seen[i].tokens == s.tokens && seen[i].each == s.each)) {
                    i++;
                }
                if (i == n_seen) {
                    seen[n_seen++] = s;
                }
            }
        }
        assert_true(n_seen <= 18);
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
        cmocka_unit_test(test_shapes_have_room_for_what_fills_up),
        cmocka_unit_test(test_shapes_are_few),
        cmocka_unit_test(test_contexts_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
