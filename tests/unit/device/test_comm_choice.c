/* SPDX-License-Identifier: Apache-2.0
 * How ranks on GPUs exchange numbers: NCCL where it is asked for, and where some GPU does not reach another. */
#include "device/cuda/comm_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { N = 4 };

/* One pair that does not reach each other; from -1: all do. */
typedef struct gap {
    int32_t from, to;
} gap;

static bool reaches(void *user, int32_t from, int32_t to)
{
    const gap *g = user;
    return from == to || from != g->from || to != g->to;
}

static void test_own_kernels_where_all_reach_each_other(void **state)
{
    const int32_t gpus[N] = {0, 1, 2, 3}, one[N] = {5, 5, 5, 5};
    gap none = {-1, -1};
    (void)state;
    assert_false(nrd_comm_needs_library(gpus, N, false, reaches, &none));
    assert_false(nrd_comm_needs_library(one, N, false, reaches, &none));
}

static void test_the_library_where_it_is_asked_for(void **state)
{
    const int32_t gpus[N] = {0, 1, 2, 3};
    gap none = {-1, -1};
    (void)state;
    assert_true(nrd_comm_needs_library(gpus, N, true, reaches, &none));
    assert_true(nrd_comm_needs_library(gpus, 2, true, reaches, &none));
    assert_false(nrd_comm_needs_library(gpus, 1, true, reaches, &none));
}

static void test_the_library_where_one_pair_of_the_stage_does_not_reach(void **state)
{
    const int32_t gpus[N] = {4, 2, 7, 0};
    (void)state;
    for (int32_t p = 0; p < N; p++) {
        for (int32_t q = 0; q < N; q++) {
            gap g = {gpus[p], gpus[q]};
            assert_int_equal(nrd_comm_needs_library(gpus, N, false, reaches, &g), p != q);
        }
    }
    gap elsewhere = {1, 4}; /* GPU 1 is of no rank here */
    assert_false(nrd_comm_needs_library(gpus, N, false, reaches, &elsewhere));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_kernels_where_all_reach_each_other),
        cmocka_unit_test(test_the_library_where_it_is_asked_for),
        cmocka_unit_test(test_the_library_where_one_pair_of_the_stage_does_not_reach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
