/* SPDX-License-Identifier: Apache-2.0 */
#include "base/plugin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void assert_refused(nrd_plugin *p, const char *text)
{
    const void *table = p;
    nrd_error *err = nrd_plugin_open(p, &table);
    assert_non_null(err);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNSUPPORTED);
    assert_non_null(strstr(nrd_error_message(err), text));
    assert_null(table);
    nrd_error_free(err);
}

static void test_what_is_not_there_is_named_with_its_packages(void **state)
{
    nrd_plugin p = NRD_PLUGIN(.file = "nereid_none.so", .symbol = "x", .need = "tests need",
                              .built_with = "libnone-dev");
    (void)state;
    assert_refused(&p, "tests need nereid_none.so, which is built where libnone-dev are (");
    assert_refused(&p, "nereid_none.so");
    p.beside = &p; /* on the stack: in no library */
    assert_refused(&p, "nereid_none.so");
}

static void test_a_library_without_the_table_is_of_another_version(void **state)
{
    nrd_plugin p = NRD_PLUGIN(.file = "libm.so.6", .symbol = "nrd_no_such_table", .need = "",
                              .built_with = "");
    (void)state;
    assert_refused(&p, "libm.so.6 is of another version");
}

static void test_the_table_is_found_once_and_kept(void **state)
{
    nrd_plugin p = NRD_PLUGIN(.file = "libm.so.6", .symbol = "cos", .need = "", .built_with = "");
    const void *first = NULL, *second = NULL;
    (void)state;
    assert_null(nrd_plugin_open(&p, &first));
    assert_non_null(first);
    p.file = "nereid_none.so"; /* not looked at again */
    assert_null(nrd_plugin_open(&p, &second));
    assert_ptr_equal(first, second);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_not_there_is_named_with_its_packages),
        cmocka_unit_test(test_a_library_without_the_table_is_of_another_version),
        cmocka_unit_test(test_the_table_is_found_once_and_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
