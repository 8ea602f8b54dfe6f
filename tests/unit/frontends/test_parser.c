/* SPDX-License-Identifier: Apache-2.0
 * HTTP heads and chunked bodies: what is taken, and what two parsers could read differently and is
 * therefore refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "frontends/http/parser.h"

#include <string.h>

static int parse(const char *text, nrd_http_head *h)
{
    const char *why = NULL;
    size_t scanned = 0, n = strlen(text);
    assert_int_equal(nrd_http_find_head(text, n, &scanned), n);
    int status = nrd_http_parse_head(h, text, n, &why);
    if (status) {
        assert_non_null(why);
    }
    return status;
}

static void test_plain_request_is_read(void **state)
{
    nrd_http_head h;
    (void)state;
    assert_int_equal(parse("POST /v2/models/a%20b/infer?x=1 HTTP/1.1\r\nHost: h\r\n"
                           "content-length:  12 \r\nX-A: b c\r\n\r\n",
                           &h),
                     0);
    assert_int_equal(h.method, NRD_HTTP_POST);
    assert_true(nrd_view_is(h.path, "/v2/models/a%20b/infer"));
    assert_true(nrd_view_is(h.query, "x=1"));
    assert_true(h.has_length && h.content_length == 12 && h.keep_alive && !h.chunked);
    assert_true(nrd_view_is(*nrd_http_find_field(&h, "x-a"), "b c"));
    assert_null(nrd_http_find_field(&h, "x-b"));
}

static void test_connection_persistence_follows_version_and_field(void **state)
{
    nrd_http_head h;
    (void)state;
    assert_int_equal(parse("GET / HTTP/1.1\r\nHost: h\r\nConnection: foo, Close\r\n\r\n", &h), 0);
    assert_false(h.keep_alive);
    assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n", &h), 0);
    assert_false(h.keep_alive);
    assert_int_equal(parse("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", &h), 0);
    assert_true(h.keep_alive);
}

static void test_absolute_form_is_accepted(void **state)
{
    nrd_http_head h;
    (void)state;
    assert_int_equal(parse("GET http://x:1/v2 HTTP/1.1\r\nHost: h\r\n\r\n", &h), 0);
    assert_true(nrd_view_is(h.path, "/v2"));
}

static void test_ambiguous_or_malformed_heads_are_refused(void **state)
{
    static const struct {
        const char *text;
        int status;
    } t[] = {
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
         400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: -1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1,1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x1\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551616\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nContent-Length:\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: xchunked\r\n\r\n", 501},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n"
         "Transfer-Encoding: chunked\r\n\r\n",
         400},
        {"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding : chunked\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nX: a\r\n folded\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nX: a\nY: b\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\n: a\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nno colon\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nHost: h\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\n\r\n", 400},
        {"POST  / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"POST / x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"POST /\r\nHost: h\r\n\r\n", 400},
        {"POST x HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"POST /a#b HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"PO(ST / HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        {"POST / HTTP/2.0\r\nHost: h\r\n\r\n", 505},
        {"POST / HTTP/1.2\r\nHost: h\r\n\r\n", 505},
        {"POST / HTTP/11\r\nHost: h\r\n\r\n", 400},
        {"POST / http/1.1\r\nHost: h\r\n\r\n", 400},
        {"POST / HTTP/1.1\r\nHost: h\r\nExpect: tea\r\n\r\n", 417},
    };
    nrd_http_head h;
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        int got = parse(t[i].text, &h);
        if (got != t[i].status) {
            print_error("%s-> %d, expected %d\n", t[i].text, got, t[i].status);
        }
        assert_int_equal(got, t[i].status);
    }
}

static void test_head_is_found_in_pieces(void **state)
{
    static const char text[] = "GET / HTTP/1.1\r\nHost: h\r\n\r\nrest";
    const size_t head = sizeof text - 1 - 4;
    size_t scanned = 0;
    (void)state;
    for (size_t n = 0; n < head; n++) {
        assert_int_equal(nrd_http_find_head(text, n, &scanned), 0);
    }
    assert_int_equal(nrd_http_find_head(text, sizeof text - 1, &scanned), head);
}

/* limits: HTTP_HEADERS */
static void test_too_many_fields_are_refused(void **state)
{
    char text[4096] = "GET / HTTP/1.1\r\nHost: h\r\n";
    nrd_http_head h;
    (void)state;
    for (int i = 0; i < NRD_HTTP_MAX_HEADERS; i++) {
        strcat(text, "a: b\r\n");
    }
    strcat(text, "\r\n");
    assert_int_equal(parse(text, &h), 431);
}

static void test_unescape_refuses_bad_escapes_and_nul(void **state)
{
    char out[8];
    (void)state;
    assert_true(nrd_http_unescape((nrd_view){"a%20%2Fb", 8}, out, sizeof out));
    assert_string_equal(out, "a /b");
    assert_false(nrd_http_unescape((nrd_view){"a%2", 3}, out, sizeof out));
    assert_false(nrd_http_unescape((nrd_view){"%zz", 3}, out, sizeof out));
    assert_false(nrd_http_unescape((nrd_view){"%00", 3}, out, sizeof out));
    assert_false(nrd_http_unescape((nrd_view){"12345678", 8}, out, sizeof out));
}

/* Feeds `text` in pieces of `step` bytes; the body goes to out. */
static nrd_http_chunks_result run_chunks(const char *text, size_t step, char *out, size_t *left)
{
    nrd_http_chunks c = {0};
    nrd_http_chunks_result r = NRD_CHUNKS_MORE;
    size_t n = strlen(text), o = 0;
    for (size_t at = 0; at < n && r == NRD_CHUNKS_MORE; at += step) {
        const char *p = text + at, *data;
        size_t m = n - at < step ? n - at : step, data_n;
        while ((r = nrd_http_chunks_next(&c, &p, &m, &data, &data_n)) == NRD_CHUNKS_DATA) {
            memcpy(out + o, data, data_n);
            o += data_n;
        }
        *left = (size_t)(text + n - p);
    }
    out[o] = '\0';
    return r;
}

static void test_chunks_are_joined_at_any_cut(void **state)
{
    static const char text[] = "4;ext=1\r\nabcd\r\nA\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\nNEXT";
    char out[64];
    (void)state;
    for (size_t step = 1; step < sizeof text; step++) {
        size_t left;
        assert_int_equal(run_chunks(text, step, out, &left), NRD_CHUNKS_DONE);
        assert_string_equal(out, "abcd0123456789");
        assert_int_equal(left, 4);
    }
}

static void test_malformed_chunks_are_refused(void **state)
{
    static const char *const t[] = {
        "x\r\n",          "\r\n",
        "4\nabcd\r\n",    "4\r\nabcdX\r\n0\r\n\r\n",
        "4 \r\nabcd\r\n", "FFFFFFFFFFFFFFFFF\r\n",
        "-1\r\n",         "0x4\r\nabcd",
        "0\r\n\n",
    };
    char out[64];
    size_t left;
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        assert_int_equal(run_chunks(t[i], 3, out, &left), NRD_CHUNKS_ERROR);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_request_is_read),
        cmocka_unit_test(test_connection_persistence_follows_version_and_field),
        cmocka_unit_test(test_absolute_form_is_accepted),
        cmocka_unit_test(test_ambiguous_or_malformed_heads_are_refused),
        cmocka_unit_test(test_head_is_found_in_pieces),
        cmocka_unit_test(test_too_many_fields_are_refused),
        cmocka_unit_test(test_unescape_refuses_bad_escapes_and_nul),
        cmocka_unit_test(test_chunks_are_joined_at_any_cut),
        cmocka_unit_test(test_malformed_chunks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
