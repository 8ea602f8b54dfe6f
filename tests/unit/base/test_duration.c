/* SPDX-License-Identifier: Apache-2.0 */
#include "base/duration.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void test_seconds_and_times_of_go_are_read(void **state)
{
    static const struct {
        const char *text;
        uint64_t ns;
    } rows[] = {{"0", 0}, {"300", 300000000000}, {"1.5", 1500000000}, {"5m", 300000000000}, {"1h30m", 5400000000000},
                {"1.5h", 5400000000000}, {"500ms", 500000000}, {"2us", 2000}, {"7ns", 7}, {"0s", 0}, {"+2s", 2000000000},
                {"-1", NRD_DURATION_FOREVER}, {"-1m", NRD_DURATION_FOREVER}, {"-0", 0}, {"999999999999", NRD_DURATION_FOREVER}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t ns = 99;
        assert_true(nrd_parse_duration(rows[i].text, &ns));
        assert_true(ns == rows[i].ns);
    }
}

static void test_what_is_no_time_is_refused_and_nothing_changes(void **state)
{
    static const char *const rows[] = {"", "-", "soon", "m5", "5x", "5 m", "1h30", ".", "1..5", "5m-1s", "1e9", "inf",
                                       "11111111111111111111111111111111111s"};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        uint64_t ns = 99;
        assert_false(nrd_parse_duration(rows[i], &ns));
        assert_true(ns == 99);
    }
}

static void test_numbers_that_are_none_last_for_ever(void **state)
{
    (void)state;
    assert_true(nrd_duration_of(2.5) == 2500000000);
    assert_true(nrd_duration_of(-0.5) == NRD_DURATION_FOREVER);
    assert_true(nrd_duration_of(1e300) == NRD_DURATION_FOREVER);
    assert_true(nrd_duration_of((double)NAN) == NRD_DURATION_FOREVER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seconds_and_times_of_go_are_read),
        cmocka_unit_test(test_what_is_no_time_is_refused_and_nothing_changes),
        cmocka_unit_test(test_numbers_that_are_none_last_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
