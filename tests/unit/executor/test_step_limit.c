/* SPDX-License-Identifier: Apache-2.0
 * How long a step may take, learned from the steps before. */
#include "executor/step_limit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { MS = 1000000, MOST = 1800000 };

static void hear(nrd_step_limit *l, double work, int64_t ms, int n)
{
    for (int i = 0; i < n; i++) {
        nrd_step_limit_hear(l, work, ms * MS);
    }
}

static void test_nothing_is_known_of_the_first_steps(void **state)
{
    nrd_step_limit l = {0};
    (void)state;
    assert_int_equal(nrd_step_limit_ms(&l, 1e6, MOST), MOST);
    hear(&l, 1e6, 100, 11);
    assert_int_equal(nrd_step_limit_ms(&l, 1e6, MOST), MOST);
    hear(&l, 1e6, 100, 1);
    assert_int_equal(nrd_step_limit_ms(&l, 1e6, MOST), NRD_STEP_LIMIT_FLOOR_MS);
}

static void test_more_work_may_take_longer_and_less_may_not(void **state)
{
    nrd_step_limit l = {0};
    (void)state;
    hear(&l, 1 << 20, 1000, 20);
    assert_int_equal(nrd_step_limit_ms(&l, 1 << 20, MOST), 20000);
    assert_int_equal(nrd_step_limit_ms(&l, 1, MOST), 20000);
    assert_int_equal(nrd_step_limit_ms(&l, 8 << 20, MOST), 160000);
    assert_int_equal(nrd_step_limit_ms(&l, 1e12, MOST), MOST);
}

static void test_the_lowest_bound_counts(void **state)
{
    nrd_step_limit l = {0};
    (void)state;
    hear(&l, 1e3, 20, 20);   /* single tokens: a step of a million would have 400 s by them alone */
    hear(&l, 1e6, 1500, 20); /* prompts */
    assert_int_equal(nrd_step_limit_ms(&l, 1e6, MOST), 30000);
    assert_int_equal(nrd_step_limit_ms(&l, 2e6, MOST), 60000);
    assert_int_equal(nrd_step_limit_ms(&l, 1e3, MOST), NRD_STEP_LIMIT_FLOOR_MS);
}

static void test_the_longest_of_late_counts_but_for_the_first_ones(void **state)
{
    nrd_step_limit l = {0};
    (void)state;
    hear(&l, 1e6, 60000, 4); /* kernels are loaded */
    hear(&l, 1e6, 600, 10);
    assert_int_equal(nrd_step_limit_ms(&l, 1e6, MOST), 12000);
    hear(&l, 1e6, 900, 1);
    assert_int_equal(nrd_step_limit_ms(&l, 1e6, MOST), 18000);
    hear(&l, 1e6, 600, 1);
    assert_in_range(nrd_step_limit_ms(&l, 1e6, MOST), 16000, 17999);
    hear(&l, 1e6, 600, 100);
    assert_int_equal(nrd_step_limit_ms(&l, 1e6, MOST), 12000);
}

static void test_a_limit_below_the_floor_stays_what_it_is(void **state)
{
    nrd_step_limit l = {0};
    (void)state;
    hear(&l, 1e6, 1, 20);
    assert_int_equal(nrd_step_limit_ms(&l, 1e6, 3000), 3000);
}

static void test_work_counts_pairs_and_products(void **state)
{
    nrd_plan_entry entries[] = {{.start = 0, .n = 100}, {.start = 999, .n = 1}};
    const nrd_plan p = {.entries = entries, .n_entries = 2, .n_tokens = 101};
    (void)state;
    assert_true(nrd_step_work(&p, 64) == 100.0 * 100 + 1000 + 6.0 * 64 * 101);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_is_known_of_the_first_steps),
        cmocka_unit_test(test_more_work_may_take_longer_and_less_may_not),
        cmocka_unit_test(test_the_lowest_bound_counts),
        cmocka_unit_test(test_the_longest_of_late_counts_but_for_the_first_ones),
        cmocka_unit_test(test_a_limit_below_the_floor_stays_what_it_is),
        cmocka_unit_test(test_work_counts_pairs_and_products),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
