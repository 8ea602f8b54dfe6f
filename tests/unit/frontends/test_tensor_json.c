/* SPDX-License-Identifier: Apache-2.0
 * JSON values as tensor bytes and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/limits.h"
#include "comma_locale.h"
#include "frontends/common/tensor_json.h"
#include "frontends/common/tensor_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads JSON as `count` elements; returns the message of an error (free), or NULL and the bytes. */
static char *read_json(const char *text, TRITONSERVER_DataType type, size_t count, char *out,
                       size_t cap, size_t *out_n)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, text, strlen(text), NULL);
    assert_null(err);
    err = nrd_tensor_json_size(nrd_json_root(doc), type, count, out_n);
    if (!err) {
        assert_true(*out_n <= cap);
        err = nrd_tensor_json_read(nrd_json_root(doc), "IN", type, out, *out_n);
    }
    char *message = err ? strdup(nrd_error_message(err)) : NULL;
    nrd_error_free(err);
    nrd_json_doc_free(doc);
    return message;
}

static void round_trip(const char *in, TRITONSERVER_DataType type, size_t count, const char *want)
{
    char bytes[256];
    size_t n;
    nrd_str s = {0};
    assert_null(read_json(in, type, count, bytes, sizeof bytes, &n));
    assert_null(nrd_tensor_json_write(&s, "OUT", type, bytes, n, count, false));
    assert_string_equal(s.data, want);
    nrd_str_fini(&s);
}

static void test_values_survive_both_directions(void **state)
{
    (void)state;
    round_trip("[[1,2],[3,-4]]", TRITONSERVER_TYPE_INT32, 4, "[1,2,3,-4]");
    round_trip("[-128,127]", TRITONSERVER_TYPE_INT8, 2, "[-128,127]");
    round_trip("[-32768]", TRITONSERVER_TYPE_INT16, 1, "[-32768]");
    round_trip("[-9223372036854775808,9223372036854775807]", TRITONSERVER_TYPE_INT64, 2,
               "[-9223372036854775808,9223372036854775807]");
    round_trip("[0,18446744073709551615]", TRITONSERVER_TYPE_UINT64, 2, "[0,18446744073709551615]");
    round_trip("[255]", TRITONSERVER_TYPE_UINT8, 1, "[255]");
    round_trip("[65535]", TRITONSERVER_TYPE_UINT16, 1, "[65535]");
    round_trip("[4294967295]", TRITONSERVER_TYPE_UINT32, 1, "[4294967295]");
    round_trip("[true,false]", TRITONSERVER_TYPE_BOOL, 2, "[true,false]");
    round_trip("[0.1,1,-2.5]", TRITONSERVER_TYPE_FP32, 3, "[0.1,1.0,-2.5]");
    round_trip("[0.1]", TRITONSERVER_TYPE_FP64, 1, "[0.1]");
    round_trip("[\"a\",\"\",\"\\u00e9\\n\"]", TRITONSERVER_TYPE_BYTES, 3,
               "[\"a\",\"\",\"\xc3\xa9\\n\"]");
    round_trip("7", TRITONSERVER_TYPE_INT32, 1, "[7]");
    round_trip("[]", TRITONSERVER_TYPE_INT32, 0, "[]");
}

static void test_values_of_another_kind_are_refused(void **state)
{
    static const struct {
        const char *json;
        TRITONSERVER_DataType type;
        size_t count;
        const char *message;
    } t[] = {
        {"[1]", TRITONSERVER_TYPE_BOOL, 1, "JSON non-boolean as boolean"},
        {"[true]", TRITONSERVER_TYPE_INT32, 1, "JSON non-signed-integer as signed-integer"},
        {"[1.5]", TRITONSERVER_TYPE_INT32, 1, "JSON non-signed-integer as signed-integer"},
        {"[-1]", TRITONSERVER_TYPE_UINT32, 1, "JSON non-unsigned-integer as unsigned-integer"},
        {"[\"1\"]", TRITONSERVER_TYPE_FP32, 1, "JSON non-number as double"},
        {"[1]", TRITONSERVER_TYPE_BYTES, 1, "JSON non-string as string"},
        {"[null]", TRITONSERVER_TYPE_FP32, 1, "JSON non-number as double"},
        {"[{}]", TRITONSERVER_TYPE_INT32, 1, "JSON non-signed-integer"},
        {"[2147483648]", TRITONSERVER_TYPE_INT32, 1, "does not fit INT32"},
        {"[-129]", TRITONSERVER_TYPE_INT8, 1, "does not fit INT8"},
        {"[256]", TRITONSERVER_TYPE_UINT8, 1, "does not fit UINT8"},
        {"[1,2,3]", TRITONSERVER_TYPE_INT32, 2, "Shape does not match true shape of 'data' field"},
        {"[1,2]", TRITONSERVER_TYPE_INT32, 3, "Shape does not match true shape of 'data' field"},
        {"[1.0]", TRITONSERVER_TYPE_FP16, 1, "receiving FP16 data via JSON is not supported"},
        {"[1.0]", TRITONSERVER_TYPE_BF16, 1, "receiving BF16 data via JSON is not supported"},
        {"[1]", TRITONSERVER_TYPE_INVALID, 1, "invalid datatype for input IN"},
    };
    char bytes[64];
    size_t n;
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        char *message = read_json(t[i].json, t[i].type, t[i].count, bytes, sizeof bytes, &n);
        assert_non_null(message);
        if (!strstr(message, t[i].message)) {
            print_error("%s: %s\n", t[i].json, message);
        }
        assert_non_null(strstr(message, t[i].message));
        free(message);
    }
}

static void test_single_value_loses_its_brackets_on_request(void **state)
{
    int32_t v = -5;
    nrd_str s = {0};
    (void)state;
    assert_null(nrd_tensor_json_write(&s, "OUT", TRITONSERVER_TYPE_INT32, &v, 4, 1, true));
    assert_string_equal(s.data, "-5");
    nrd_str_fini(&s);
}

static void test_outputs_whose_size_contradicts_their_shape_are_errors(void **state)
{
    static const char good[] = {1, 0, 0, 0, 'x'}, cut[] = {9, 0, 0, 0, 'x'};
    const struct {
        TRITONSERVER_DataType type;
        const char *data;
        size_t n, count;
    } t[] = {{TRITONSERVER_TYPE_INT32, good, 5, 1},  {TRITONSERVER_TYPE_BYTES, cut, 5, 1},
             {TRITONSERVER_TYPE_BYTES, good, 5, 2},  {TRITONSERVER_TYPE_BYTES, good, 5, 0},
             {TRITONSERVER_TYPE_BYTES, good, 3, 1},  {TRITONSERVER_TYPE_FP16, good, 2, 1},
             {TRITONSERVER_TYPE_INVALID, good, 2, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        nrd_str s = {0};
        nrd_error *err =
            nrd_tensor_json_write(&s, "OUT", t[i].type, t[i].data, t[i].n, t[i].count, false);
        assert_non_null(err);
        nrd_error_free(err);
        nrd_str_fini(&s);
    }
}

static void test_count_detects_overflow_and_negative_dims(void **state)
{
    const int64_t big[] = {INT64_MAX, 3}, negative[] = {2, -1}, fine[] = {2, 3, 0};
    size_t n;
    (void)state;
    assert_false(nrd_tensor_count(big, 2, &n));
    assert_false(nrd_tensor_count(negative, 2, &n));
    assert_true(nrd_tensor_count(fine, 2, &n));
    assert_int_equal(n, 6);
    assert_true(nrd_tensor_count(fine, 3, &n));
    assert_int_equal(n, 0);
    assert_true(nrd_tensor_count(NULL, 0, &n));
    assert_int_equal(n, 1);
}

/* An infer document whose arrays are long enough to be cut out. */
static void put_document(nrd_str *s, int n, const char *first)
{
    nrd_str_puts(
        s, "{\"id\":\"a]\\\"{\",\"inputs\" : [ {\"name\":\"A\",\"x\":{\"data\":[1]},\"data\":[");
    nrd_str_puts(s, first);
    for (int i = 0; i < n; i++) {
        nrd_str_printf(s, ", %d", i - n / 2);
    }
    nrd_str_puts(s, "]},{\"data\":[1],\"name\":\"B\"},{\"data\":[[");
    for (int i = 0; i < n; i++) {
        nrd_str_printf(s, "%s%d.5", i ? "," : "", i);
    }
    nrd_str_puts(s, "]] , \"name\":\"C\"}]}");
}

static void test_long_arrays_are_cut_out_and_read_directly(void **state)
{
    enum { N = 3000 };
    nrd_tensor_slice slices[NRD_TENSOR_TEXT_MAX];
    nrd_str s = {0};
    nrd_json_doc *doc = NULL;
    static int32_t a[N + 1];
    static float c[N];
    (void)state;
    put_document(&s, N, "2147483647");
    char *copy = malloc(s.len);
    assert_int_equal(nrd_tensor_text_cut(s.data, s.len, copy, slices), 2);
    assert_int_equal(slices[0].input, 0);
    assert_int_equal(slices[1].input, 2);
    assert_null(nrd_json_parse(&doc, copy, s.len, NULL));
    const nrd_json *inputs = nrd_json_get(nrd_json_root(doc), "inputs");
    assert_int_equal(nrd_json_len(nrd_json_get(nrd_json_at(inputs, 0), "data")), 0);
    assert_int_equal(nrd_json_len(nrd_json_get(nrd_json_at(inputs, 1), "data")), 1);
    assert_string_equal(nrd_json_get_str(nrd_json_at(inputs, 2), "name", ""), "C");
    assert_null(nrd_tensor_text_read(&slices[0], "A", TRITONSERVER_TYPE_INT32, a, sizeof a));
    assert_null(nrd_tensor_text_read(&slices[1], "C", TRITONSERVER_TYPE_FP32, c, sizeof c));
    assert_int_equal(a[0], INT32_MAX);
    for (int i = 0; i < N; i++) {
        assert_int_equal(a[i + 1], i - N / 2);
        assert_true(c[i] == (float)i + 0.5f);
    }
    nrd_json_doc_free(doc);
    free(copy);
    nrd_str_fini(&s);
}

static void test_unusual_documents_are_left_whole(void **state)
{
    static const char *const t[] = {
        "{\"inputs\":[{\"data\":%s,\"data\":[2]}]}",
        "{\"inputs\":[{\"d\\u0061ta\":[],\"data\":%s}]}",
        "{\"inputs\":[],\"inputs\":[{\"data\":%s}]}",
        "{\"input\":[{\"data\":%s}]}",
        "{\"inputs\":[[{\"data\":%s}]]}",
        "{\"inputs\":[{\"data\":%s}",
        "[{\"inputs\":[{\"data\":%s}]}]",
        "{\"inputs\":[{\"data\":[\"a\",%s]}]}",
    };
    nrd_tensor_slice slices[NRD_TENSOR_TEXT_MAX];
    nrd_str array = {0};
    (void)state;
    nrd_str_puts(&array, "[1");
    for (int i = 0; i < NRD_TENSOR_TEXT_MIN; i++) {
        nrd_str_puts(&array, ",1");
    }
    nrd_str_puts(&array, "]");
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        const char *mark = strstr(t[i], "%s");
        nrd_str s = {0};
        nrd_str_append(&s, t[i], (size_t)(mark - t[i]));
        nrd_str_puts(&s, array.data);
        nrd_str_puts(&s, mark + 2);
        char *copy = malloc(s.len);
        assert_int_equal(nrd_tensor_text_cut(s.data, s.len, copy, slices), 0);
        free(copy);
        nrd_str_fini(&s);
    }
    nrd_str_fini(&array);
}

static void test_the_search_ends_at_any_byte(void **state)
{
    nrd_tensor_slice slices[NRD_TENSOR_TEXT_MAX];
    (void)state;
    alarm(20);
    for (int byte = 0; byte < 256; byte++) {
        char text[64], copy[64];
        const int n = snprintf(text, sizeof text, "{\"a\":[%c,{\"b\":%c}],\"inputs\":[{\"data\":%c", byte, byte, byte);
        assert_int_equal(nrd_tensor_text_cut(text, (size_t)n, copy, slices), 0);
    }
    alarm(0);
}

static void test_direct_reading_refuses_what_the_tree_refuses(void **state)
{
    static const char *const t[] = {"[1,]",     "[,1]",           "[1 2]",    "[01,2]",   "[1.,2]",
                                    "[-,1]",    "[.5,1]",         "[1e,2]",   "[0x1,2]",  "[+1,2]",
                                    "[tru,1]",  "[1,2,3]",        "[1]",      "[null,1]", "[1.5,1]",
                                    "[1,true]", "[2147483648,1]", "[[1,2],]", "[[]1,2]"};
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int32_t out[2];
        nrd_tensor_slice slice = {0, t[i], strlen(t[i]), 100};
        nrd_error *err =
            nrd_tensor_text_read(&slice, "x", TRITONSERVER_TYPE_INT32, out, sizeof out);
        if (!err) {
            print_error("%s was taken\n", t[i]);
        }
        assert_non_null(err);
        nrd_error_free(err);
    }
    int32_t out[2];
    nrd_tensor_slice slice = {0, "[1 2]", 5, 100};
    nrd_error *err = nrd_tensor_text_read(&slice, "x", TRITONSERVER_TYPE_INT32, out, sizeof out);
    assert_string_equal(nrd_error_message(err),
                        "failed to parse the request JSON buffer: Missing a comma or ']' after an "
                        "array element. at 103");
    nrd_error_free(err);
}

/* limits: ANSWER_TEXT */
static void test_an_answer_in_json_has_a_limit(void **state)
{
    const float values[100] = {0};
    const char text[] = "\6\0\0\0abcdef";
    nrd_str s = {0};

    (void)state;
    nrd_str_reserve(&s, NRD_LIMIT_ANSWER_TEXT);
    for (int pass = 0; pass < 2; pass++) {
        s.len = NRD_LIMIT_ANSWER_TEXT - 5; /* as if so much stood there; the memory is not touched */
        nrd_error *err = pass ? nrd_tensor_json_write(&s, "OUT", TRITONSERVER_TYPE_BYTES, text, 10, 1, false)
                              : nrd_tensor_json_write(&s, "OUT", TRITONSERVER_TYPE_FP32, values,
                                                      sizeof values, 100, false);
        assert_non_null(err);
        assert_non_null(strstr(nrd_error_message(err), "'OUT'"));
        assert_non_null(strstr(nrd_error_message(err), "binary data"));
        nrd_error_free(err);
    }
    s.len = NRD_LIMIT_ANSWER_TEXT - 500;
    assert_null(nrd_tensor_json_write(&s, "OUT", TRITONSERVER_TYPE_FP32, values, sizeof values, 100, false));
    nrd_str_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_survive_both_directions),
        cmocka_unit_test(test_values_of_another_kind_are_refused),
        cmocka_unit_test(test_single_value_loses_its_brackets_on_request),
        cmocka_unit_test(test_outputs_whose_size_contradicts_their_shape_are_errors),
        cmocka_unit_test(test_long_arrays_are_cut_out_and_read_directly),
        cmocka_unit_test(test_unusual_documents_are_left_whole),
        cmocka_unit_test(test_the_search_ends_at_any_byte),
        cmocka_unit_test(test_direct_reading_refuses_what_the_tree_refuses),
        cmocka_unit_test(test_count_detects_overflow_and_negative_dims),
        cmocka_unit_test(test_an_answer_in_json_has_a_limit),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed + cmocka_run_group_tests_name("with a decimal comma", tests, comma_locale_setup,
                                                comma_locale_teardown);
}
