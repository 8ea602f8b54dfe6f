/* SPDX-License-Identifier: Apache-2.0
 * gpu_device_ids and participant_ids: a list for each instance, or one for all. */
#include "backends/tensorrtllm/places.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static char said[512];

TRITONSERVER_Error *nrd_tb_errorf(TRITONSERVER_Error_Code code, const char *fmt, ...)
{
    va_list ap;
    assert_int_equal(code, TRITONSERVER_ERROR_INVALID_ARG);
    va_start(ap, fmt);
    vsnprintf(said, sizeof said, fmt, ap);
    va_end(ap);
    return (TRITONSERVER_Error *)(void *)said;
}

static void assert_list(const char *text, int32_t instance, int32_t n, const int32_t *want)
{
    int32_t got[NRD_LLM_MAX_PLACES], n_got = -1;
    assert_null(nrd_llm_place_list("gpu_device_ids", text, instance, got, &n_got));
    assert_int_equal(n_got, n);
    assert_memory_equal(got, want, (size_t)n * sizeof *want);
}

static void assert_refused(const char *text, int32_t instance, const char *words)
{
    int32_t got[NRD_LLM_MAX_PLACES], n;
    assert_non_null(nrd_llm_place_list("gpu_device_ids", text, instance, got, &n));
    assert_non_null(strstr(said, words));
    assert_non_null(strstr(said, "gpu_device_ids"));
}

static void test_each_instance_has_its_list_and_one_alone_is_everyones(void **state)
{
    (void)state;
    assert_list("0, 1;2 ,3", 0, 2, (const int32_t[]){0, 1});
    assert_list("0, 1;2 ,3", 1, 2, (const int32_t[]){2, 3});
    assert_list("4,5", 0, 2, (const int32_t[]){4, 5});
    assert_list("4,5", 7, 2, (const int32_t[]){4, 5});
    assert_list("", 0, 0, (const int32_t[]){0});
    assert_list(NULL, 3, 0, (const int32_t[]){0});
}

static void test_what_is_no_list_is_named(void **state)
{
    char many[4 * NRD_LLM_MAX_PLACES] = "0";
    (void)state;
    assert_refused("0,1;2,3", 2, "has 2 lists, but instance number 2 needs one");
    assert_refused("0,,1", 0, "expected numbers");
    assert_refused("0 1", 0, "expected numbers");
    assert_refused("0,-1", 0, "expected numbers");
    assert_refused("0;x", 1, "expected numbers");
    assert_refused("0,1;", 1, "expected numbers");
    assert_refused("MIG-41b35014-745c-46ff-b1a3-7d60fa37ba52", 0,
                   "name them by UUID in CUDA_VISIBLE_DEVICES");
    assert_refused("0;GPU-d9a47cfb", 1, "name them by UUID in CUDA_VISIBLE_DEVICES");
    for (int i = 0; i < NRD_LLM_MAX_PLACES; i++) {
        strcat(many, ",1");
    }
    assert_refused(many, 0, "at most 64");
}

static void test_an_instance_s_number_is_in_its_name(void **state)
{
    (void)state;
    assert_int_equal(nrd_llm_instance_number("tensorrt_llm_0"), 0);
    assert_int_equal(nrd_llm_instance_number("tensorrt_llm_0_12"), 12);
    assert_int_equal(nrd_llm_instance_number("model"), 0);
    assert_int_equal(nrd_llm_instance_number("a_b"), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_instance_has_its_list_and_one_alone_is_everyones),
        cmocka_unit_test(test_what_is_no_list_is_named),
        cmocka_unit_test(test_an_instance_s_number_is_in_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
