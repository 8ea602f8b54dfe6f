/* SPDX-License-Identifier: Apache-2.0 */
#include "base/json.h"
#include "comma_locale.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>

static nrd_json_doc *parse_ok(const char *text)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, text, strlen(text), NULL);
    if (err) {
        print_error("%s: %s\n", text, nrd_error_message(err));
    }
    assert_null(err);
    return doc;
}

static void test_faults_are_reported_with_the_known_texts_and_offsets(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } rows[] = {
        {"", "The document is empty. at 0"},
        {"  \n", "The document is empty. at 3"},
        {"{a", "Missing a name for object member. at 1"},
        {"{\"a\":1,}", "Missing a name for object member. at 7"},
        {"{\"a\" 1}", "Missing a colon after a name of object member. at 5"},
        {"{\"a\":1 \"b\":2}", "Missing a comma or '}' after an object member. at 7"},
        {"{\"a\":1", "Missing a comma or '}' after an object member. at 6"},
        {"[1 2]", "Missing a comma or ']' after an array element. at 3"},
        {"[1,]", "Invalid value. at 3"},
        {"{\"a\":nul}", "Invalid value. at 8"},
        {"+1", "Invalid value. at 0"},
        {"-", "Invalid value. at 1"},
        {"1 2", "The document root must not be followed by other values. at 2"},
        {"01", "The document root must not be followed by other values. at 1"},
        {"\"abc", "Missing a closing quotation mark in string. at 4"},
        {"\"a\\xb\"", "Invalid escape character in string. at 2"},
        {"\"\\u12g4\"", "Incorrect hex digit after \\u escape in string. at 1"},
        {"\"\\ud800x\"", "The surrogate pair in string is invalid. at 1"},
        {"\"\\udc00\"", "The surrogate pair in string is invalid. at 1"},
        {"\"\xff\"", "Invalid encoding in string. at 1"},
        {"\"\xed\xa0\x80\"", "Invalid encoding in string. at 1"},
        {"\"\x01\"", "Invalid escape character in string. at 1"},
        {"1.", "Miss fraction part in number. at 2"},
        {"1e", "Miss exponent in number. at 2"},
        {"[1e999]", "Number too big to be stored in double. at 1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nrd_json_doc *doc = NULL;
        nrd_error *err = nrd_json_parse(&doc, rows[i].text, strlen(rows[i].text), NULL);
        assert_non_null(err);
        assert_null(doc);
        assert_int_equal(nrd_error_get_code(err), NRD_ERR_INVALID_ARG);
        assert_string_equal(nrd_error_message(err), rows[i].message);
        nrd_error_free(err);
    }
}

static void test_values_are_read_with_their_types(void **state)
{
    (void)state;
    nrd_json_doc *doc = parse_ok(" { \"i\": -9223372036854775808, \"u\": 18446744073709551615,"
                                 "\"r\":-1.5e2, \"big\": 18446744073709551616, \"t\":true,"
                                 "\"n\":null, \"a\":[1,[2,3],{}], \"i\": 7, \"whole\": 3.0 } ");
    const nrd_json *root = nrd_json_root(doc);
    assert_int_equal(nrd_json_len(root), 9);
    assert_true(nrd_json_at(NULL, 0) == NULL);
    assert_int_equal(nrd_json_get_int(root, "i", 0), 7); /* the last of equal names */
    assert_true(root->child[0].i == INT64_MIN);
    assert_true(nrd_json_is(nrd_json_get(root, "u"), NRD_JSON_UINT));
    assert_true(nrd_json_get(root, "u")->u == UINT64_MAX);
    assert_true(nrd_json_get_num(root, "r", 0) == -150.0);
    assert_true(nrd_json_get_num(root, "big", 0) == 18446744073709551616.0);
    assert_true(nrd_json_get_bool(root, "t", false));
    assert_int_equal(nrd_json_get_int(root, "whole", 0), 3);
    assert_int_equal(nrd_json_get_int(root, "r2", 5), 5);
    const nrd_json *a = nrd_json_get(root, "a");
    assert_int_equal(nrd_json_len(a), 3);
    assert_int_equal(nrd_json_int(nrd_json_at(nrd_json_at(a, 1), 1), 0), 3);
    assert_string_equal(nrd_json_type_name(nrd_json_at(a, 2)), "object");
    assert_string_equal(nrd_json_get_str(a, "x", "none"), "none");
    nrd_json_doc_free(doc);
}

static void test_strings_are_unescaped_and_long_runs_survive(void **state)
{
    (void)state;
    nrd_json_doc *doc = parse_ok("[\"\\u0041\\n\\\"\\\\\\/\\ud83d\\ude00 \\u00e9\", \"a\\u0000b\","
                                 "\"0123456789abcdef0123456789abcdef\xc3\xa9\\t0123456789abcdef\"]");
    const nrd_json *root = nrd_json_root(doc);
    assert_string_equal(root->child[0].str, "A\n\"\\/\xf0\x9f\x98\x80 \xc3\xa9");
    assert_int_equal(root->child[1].n, 3);
    assert_memory_equal(root->child[1].str, "a\0b", 4);
    assert_string_equal(root->child[2].str,
                        "0123456789abcdef0123456789abcdef\xc3\xa9\t0123456789abcdef");
    nrd_json_doc_free(doc);
}

static void test_depth_and_size_are_limited(void **state)
{
    (void)state;
    char deep[3000];
    nrd_json_doc *doc = NULL;
    nrd_json_limits limits = {.max_depth = 1000000, .max_bytes = 10};
    memset(deep, '[', sizeof deep);
    nrd_error *err = nrd_json_parse(&doc, deep, sizeof deep, NULL);
    assert_string_equal(nrd_error_message(err), "Nesting is deeper than the limit. at 64");
    nrd_error_free(err);
    err = nrd_json_parse(&doc, deep, sizeof deep, &limits);
    assert_non_null(strstr(nrd_error_message(err), "the limit is 10"));
    nrd_error_free(err);
    limits.max_bytes = 0;
    err = nrd_json_parse(&doc, deep, sizeof deep, &limits);
    assert_string_equal(nrd_error_message(err), "Nesting is deeper than the limit. at 1024");
    nrd_error_free(err);
}

static void test_writing_gives_the_shortest_text_that_reads_back(void **state)
{
    (void)state;
    static const struct {
        double v;
        const char *text;
    } rows[] = {
        {0, "0.0"},        {-0.0, "-0.0"},          {1, "1.0"},       {0.1, "0.1"},
        {1e-7, "1e-7"},    {1.5e-6, "0.0000015"},   {1e21, "1e21"},   {123456.789, "123456.789"},
        {-42, "-42.0"},    {999999999999999, "999999999999999.0"},
        {1e20, "100000000000000000000.0"},          {1.0 / 3, "0.3333333333333333"},
        {1.7976931348623157e308, "1.7976931348623157e308"}, {5e-324, "5e-324"},
    };
    nrd_str s = {0};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        nrd_str_clear(&s);
        nrd_json_put_double(&s, rows[i].v);
        assert_string_equal(s.data, rows[i].text);
    }
    nrd_str_clear(&s);
    nrd_json_put_float(&s, 0.1f);
    nrd_str_putc(&s, ' ');
    nrd_json_put_float(&s, 16777216.0f);
    nrd_str_putc(&s, ' ');
    nrd_json_put_float(&s, -999999.0f);
    nrd_str_putc(&s, ' ');
    nrd_json_put_float(&s, NAN);
    assert_string_equal(s.data, "0.1 16777216.0 -999999.0 null");
    nrd_str_clear(&s);
    nrd_json_put_string(&s, "a\"\\\n\x01\xff\xc3\xa9", 8);
    assert_string_equal(s.data, "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\xc3\xa9\"");
    nrd_str_fini(&s);
}

static void test_random_doubles_survive_writing_and_reading(void **state)
{
    (void)state;
    uint64_t seed = 88172645463325252u;
    nrd_str s = {0};
    for (int i = 0; i < 20000; i++) {
        double v;
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        memcpy(&v, &seed, sizeof v);
        if (!isfinite(v)) {
            continue;
        }
        nrd_str_clear(&s);
        nrd_json_put_double(&s, v);
        nrd_json_doc *doc = parse_ok(s.data);
        double back = nrd_json_num(nrd_json_root(doc), 0);
        assert_memory_equal(&back, &v, sizeof v);
        nrd_json_doc_free(doc);
    }
    nrd_str_fini(&s);
}

static void test_a_tree_is_written_as_it_was_read(void **state)
{
    (void)state;
    const char *text = "{\"a\":[1,-2,{\"b\":null}],\"c\":\"x\",\"d\":[],\"e\":1.5,\"f\":false}";
    nrd_json_doc *doc = parse_ok(text);
    nrd_str s = {0};
    nrd_json_put(&s, nrd_json_root(doc), -1);
    assert_string_equal(s.data, text);
    nrd_str_clear(&s);
    nrd_json_put(&s, nrd_json_get(nrd_json_root(doc), "a"), 2);
    assert_string_equal(s.data, "[\n  1,\n  -2,\n  {\n    \"b\": null\n  }\n]");
    nrd_str_fini(&s);
    nrd_json_doc_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_faults_are_reported_with_the_known_texts_and_offsets),
        cmocka_unit_test(test_values_are_read_with_their_types),
        cmocka_unit_test(test_strings_are_unescaped_and_long_runs_survive),
        cmocka_unit_test(test_depth_and_size_are_limited),
        cmocka_unit_test(test_writing_gives_the_shortest_text_that_reads_back),
        cmocka_unit_test(test_random_doubles_survive_writing_and_reading),
        cmocka_unit_test(test_a_tree_is_written_as_it_was_read),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed + cmocka_run_group_tests_name("with a decimal comma", tests, comma_locale_setup,
                                                comma_locale_teardown);
}
