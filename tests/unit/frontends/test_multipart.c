/* SPDX-License-Identifier: Apache-2.0
 * Forms with files, cut in every place; and what is no form. */
#include "base/str.h"
#include "frontends/openai/multipart.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define TYPE "multipart/form-data; boundary=XX"

/* What the reader is told, as text: <name|file>bytes; */
static nrd_error *on_begin(void *arg, const char *name, const char *filename)
{
    nrd_str_printf(arg, "<%s|%s>", name, filename ? filename : "-");
    return NULL;
}

static nrd_error *on_data(void *arg, const char *data, size_t n)
{
    nrd_str_append(arg, data, n);
    return NULL;
}

static nrd_error *on_end(void *arg)
{
    nrd_str_putc(arg, ';');
    return NULL;
}

static nrd_error *on_full(void *arg, const char *data, size_t n)
{
    (void)arg;
    (void)data;
    (void)n;
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "full");
}

static nrd_error *read_form(const char *type, const char *text, size_t n, size_t piece, nrd_str *out)
{
    const nrd_multipart_reader reader = {on_begin, on_data, on_end, out};
    nrd_multipart m;

    NRD_TRY(nrd_multipart_init(&m, type, strlen(type), &reader));
    for (size_t at = 0; at < n; at += piece) {
        NRD_TRY(nrd_multipart_feed(&m, text + at, n - at < piece ? n - at : piece));
    }
    return nrd_multipart_end(&m);
}

static void expect(const char *type, const char *text, const char *want)
{
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        nrd_str out = {0};
        nrd_error *err = read_form(type, text, strlen(text), piece, &out);
        assert_null(err);
        assert_string_equal(nrd_str_cstr(&out), want);
        nrd_str_fini(&out);
    }
}

static void refuse(const char *type, const char *text, const char *why)
{
    nrd_str out = {0};
    nrd_error *err = read_form(type, text, strlen(text), 7, &out);
    assert_non_null(err);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_INVALID_ARG);
    if (!strstr(nrd_error_message(err), why)) {
        fail_msg("'%s' is not in '%s'", why, nrd_error_message(err));
    }
    nrd_error_free(err);
    nrd_str_fini(&out);
}

#define PART(disposition, data) "--XX\r\nContent-Disposition: " disposition "\r\n\r\n" data "\r\n"

static void test_parts_are_the_same_however_they_are_cut(void **state)
{
    (void)state;
    expect(TYPE, PART("form-data; name=\"purpose\"", "batch") PART("form-data; name=\"file\"; filename=\"a.jsonl\"", "{}\n\r\n{}")
                 "--XX--\r\n", "<purpose|->batch;<file|a.jsonl>{}\n\r\n{};");
    expect("Multipart/Form-Data; charset=x; boundary=\"XX\";", "before\r\n" PART("form-data; name=a", "") "--XX-- \r\nbehind", "<a|->;");
    expect(TYPE, "--XX--", "");
    expect(TYPE, "--XX  \r\nX-Y: z\r\ncontent-disposition:form-data;name=\"a\\\"b\\\\\";filename=\"\"\r\nContent-Type: t\r\n\r\n1\r\n--XX--",
           "<a\"b\\|>1;");
}

static void test_what_looks_like_a_delimiter_is_data(void **state)
{
    (void)state;
    expect(TYPE, PART("form-data; name=a", "\r\r\n\r\n-\r\n--X\r\n--\r\n--XY--XX\n--XX") "--XX--",
           "<a|->\r\r\n\r\n-\r\n--X\r\n--\r\n--XY--XX\n--XX;");
    expect("multipart/form-data; boundary=----b", "------b\r\nContent-Disposition: form-data; name=a\r\n\r\n\r\n-----b\r\n------\r\n------b--",
           "<a|->\r\n-----b\r\n------;");
}

static void test_what_is_no_form_is_refused_with_the_reason(void **state)
{
    (void)state;
    refuse("text/plain", "", "must be multipart/form-data");
    refuse("multipart/form-data", "", "names no boundary");
    refuse("multipart/form-data; boundary=", "", "a boundary that is none");
    refuse("multipart/form-data; boundary=\"a", "", "cannot be read");
    refuse("multipart/form-data; boundary=a{b", "", "a boundary that is none");
    refuse("multipart/form-data boundary=a", "", "cannot be read");
    refuse(TYPE, "", "ends before its last delimiter");
    refuse(TYPE, PART("form-data; name=a", "b"), "ends before its last delimiter");
    refuse(TYPE, "--XX\r\n\r\nb\r\n--XX--", "has no name");
    refuse(TYPE, PART("attachment; name=a", "b"), "is not form-data");
    refuse(TYPE, PART("form-data; name=\"a", "b"), "cannot be read");
    refuse(TYPE, "--XXY", "end of its line");
    refuse(TYPE, "--XX-Y", "end of its line");
    refuse(TYPE, "--XX\rY", "end of its line");
}

/* limits: FORM_HEAD */
static void test_limits_hold(void **state)
{
    nrd_str text = {0};
    (void)state;
    for (int i = 0; i < 33; i++) {
        nrd_str_puts(&text, PART("form-data; name=a", "b"));
    }
    nrd_str_puts(&text, "--XX--");
    refuse(TYPE, text.data, "more than 32 parts");
    nrd_str_clear(&text);
    nrd_str_puts(&text, "--XX\r\nX: ");
    for (int i = 0; i < NRD_MULTIPART_HEAD; i++) {
        nrd_str_putc(&text, 'x');
    }
    refuse(TYPE, text.data, "more than 4096 bytes");
    nrd_str_clear(&text);
    nrd_str_puts(&text, "multipart/form-data; boundary=");
    for (int i = 0; i < 71; i++) {
        nrd_str_putc(&text, 'x');
    }
    refuse(text.data, "", "a boundary that is none");
    nrd_str_fini(&text);
}

static void test_an_error_of_the_reader_comes_back(void **state)
{
    const char *text = PART("form-data; name=a", "b") "--XX--";
    nrd_str out = {0};
    const nrd_multipart_reader reader = {on_begin, on_full, on_end, &out};
    nrd_multipart m;
    (void)state;
    assert_null(nrd_multipart_init(&m, TYPE, strlen(TYPE), &reader));
    nrd_error *err = nrd_multipart_feed(&m, text, strlen(text));
    assert_string_equal(nrd_error_message(err), "full");
    nrd_error_free(err);
    nrd_str_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_are_the_same_however_they_are_cut),
        cmocka_unit_test(test_what_looks_like_a_delimiter_is_data),
        cmocka_unit_test(test_what_is_no_form_is_refused_with_the_reason),
        cmocka_unit_test(test_limits_hold),
        cmocka_unit_test(test_an_error_of_the_reader_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
