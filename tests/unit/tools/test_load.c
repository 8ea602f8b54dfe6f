/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/load/api.c"
#include "tools/load/arrivals.c"
#include "tools/load/http_reader.c"
#include "tools/load/samples.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>
#include <unistd.h>

/* ---- HTTP ---- */

static nrd_str got;

static void on_test_piece(void *arg, const char *data, size_t n)
{
    (void)arg;
    nrd_str_append(&got, data, n);
    nrd_str_putc(&got, '|');
}

/* Feeds text in parts of `step` bytes. -1: an error, else how many bytes were used. */
static long feed(nrd_http_reader *r, const char *text, size_t step)
{
    const size_t n = strlen(text);
    size_t at = 0;
    nrd_str_clear(&got);
    nrd_http_reader_begin(r);
    while (at < n && r->state != NRD_HTTP_DONE) {
        size_t used = 0;
        if (!nrd_http_reader_feed(r, text + at, at + step < n ? step : n - at, &used)) {
            return -1;
        }
        at += used;
    }
    return (long)at;
}

static void check_answer(const char *text, int status, const char *pieces, bool ends)
{
    nrd_http_reader r = {.piece = on_test_piece};
    for (size_t step = 1; step <= strlen(text); step++) {
        assert_int_equal(feed(&r, text, step), strlen(text));
        assert_int_equal(r.status, status);
        if (!ends) {
            assert_true(r.state != NRD_HTTP_DONE);
            assert_true(nrd_http_reader_close(&r));
        }
        assert_int_equal(r.state, NRD_HTTP_DONE);
        assert_string_equal(nrd_str_cstr(&got), pieces);
    }
    nrd_http_reader_fini(&r);
}

static void test_answers_are_read_however_they_are_cut(void **state)
{
    (void)state;
    check_answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", 200, "hello|", true);
    check_answer("HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", 200, "|", true);
    check_answer("HTTP/1.1 204 No Content\r\n\r\n", 204, "|", true);
    check_answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nno",
                 503, "no|", true);
    check_answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: "
                 "chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
                 200, "abc0123456789|", true);
    check_answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: y\r\n\r\n",
                 200, "a|", true);
    check_answer("HTTP/1.0 200 OK\r\n\r\nall of it", 200, "all of it|", false);
}

static void test_events_are_told_one_by_one(void **state)
{
    (void)state;
#define EVENTS "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    check_answer(EVENTS "Content-Length: 32\r\n\r\ndata: one\n\ndata: two\n\n: nothing\n", 200,
                 "one|two|", true);
    check_answer(EVENTS "Transfer-Encoding: chunked\r\n\r\n8\r\ndata: "
                        "on\r\n5\r\ne\n\nda\r\n9\r\nta: two\n\n\r\n0\r\n\r\n",
                 200, "one|two|", true);
    check_answer(EVENTS "\r\ndata: two\r\ndata:lines\r\n\r\n", 200, "two\nlines|", false);
    /* a line that only begins like the empty one does not end the event */
    check_answer(EVENTS "Content-Length: 11\r\n\r\ndata: a\n\rx\n", 200, "", true);
}

static void test_what_is_no_answer_is_refused(void **state)
{
    static const char *const wrong[] = {
        "SSH-2.0-x\r\n",
        "HTTP/2 200\r\n",
        "HTTP/1.1 abc OK\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"};
    nrd_http_reader r = {.piece = on_test_piece};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(feed(&r, wrong[i], 3), -1);
        assert_non_null(r.error);
    }
    assert_true(feed(&r, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel", 4) > 0);
    assert_false(nrd_http_reader_close(&r)); /* cut off */
    nrd_http_reader_fini(&r);
    nrd_str_fini(&got);
}

/* ---- figures and times ---- */

static void test_percentiles_are_values_that_were_measured(void **state)
{
    nrd_samples s = {0};
    (void)state;
    assert_true(nrd_samples_at(&s, 50) == 0);
    for (int i = 100; i >= 1; i--) {
        nrd_samples_add(&s, i);
    }
    assert_true(nrd_samples_at(&s, 50) == 50 && nrd_samples_at(&s, 99) == 99 &&
                nrd_samples_at(&s, 99.9) == 100);
    assert_true(nrd_samples_at(&s, 0) == 1 && nrd_samples_at(&s, 100) == 100);
    assert_true(nrd_samples_mean(&s) == 50.5);
    nrd_samples_add(&s, 1000); /* after sorting */
    assert_true(nrd_samples_at(&s, 100) == 1000);
    nrd_samples_fini(&s);
}

static void test_arrivals_keep_their_rate(void **state)
{
    nrd_arrivals a = {.rate = 50};
    double last = 0, sum = 0, squares = 0;
    (void)state;
    nrd_arrivals_start(&a, 7);
    assert_true(nrd_arrivals_next(&a) == 0);
    for (int i = 0; i < 20000; i++) {
        const double t = nrd_arrivals_next(&a), gap = t - last;
        assert_true(gap >= 0);
        sum += gap;
        squares += gap * gap;
        last = t;
    }
    assert_true(fabs(sum / 20000 * 50 - 1) < 0.03);
    assert_true(fabs(squares / 20000 / (2.0 / 2500) - 1) <
                0.1); /* exponential: E[x^2] = 2 / rate^2 */
    a.is_constant = true;
    nrd_arrivals_start(&a, 7);
    assert_true(nrd_arrivals_next(&a) == 0 && nrd_arrivals_next(&a) == 0.02);
}

static void test_traces_are_read(void **state)
{
    char path[] = "/tmp/nereid-trace-XXXXXX";
    const int fd = mkstemp(path);
    static const char text[] = "{\"timestamp\": 1000, \"output_length\": 9}\n\n{\"timestamp\": "
                               "1500}\n{\"timestamp\": 3000}\n";
    nrd_arrivals a = {0};
    (void)state;
    assert_true(fd >= 0 && write(fd, text, sizeof text - 1) == (ssize_t)sizeof text - 1);
    assert_null(nrd_arrivals_read(&a, path, 2));
    assert_int_equal(a.n_trace, 3);
    assert_int_equal(a.trace[0].n_out, 9);
    assert_true(nrd_arrivals_next(&a) == 0 && nrd_arrivals_next(&a) == 0.25 &&
                nrd_arrivals_next(&a) == 1);
    assert_true(isinf(nrd_arrivals_next(&a)));
    nrd_arrivals_fini(&a);
    assert_true(write(fd, "2\n", 2) == 2);
    a = (nrd_arrivals){0};
    nrd_error *err = nrd_arrivals_read(&a, path, 1);
    assert_non_null(strstr(nrd_error_message(err), "line 5: 2 s comes after 3 s"));
    nrd_error_free(err);
    nrd_arrivals_fini(&a);
    close(fd);
    unlink(path);
}

/* ---- protocols ---- */

static void read_as(nrd_api_kind kind, const char *text, nrd_piece *p)
{
    const nrd_api a = {.kind = kind, .model = "m"};
    nrd_api_read(&a, text, strlen(text), p);
}

static void test_answers_of_each_protocol(void **state)
{
    nrd_piece p = {0};
    (void)state;
    read_as(NRD_API_GENERATE, "{\"text_output\":\"hi\"}", &p);
    assert_true(p.has_tokens && !p.is_error);
    assert_string_equal(nrd_str_cstr(&p.text), "hi");
    read_as(NRD_API_GENERATE, "{\"error\":\"no\"}", &p);
    assert_true(p.is_error);
    assert_string_equal(nrd_str_cstr(&p.text), "no");
    read_as(NRD_API_CHAT, "{\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}",
            &p);
    assert_false(p.has_tokens);
    read_as(NRD_API_CHAT, "{\"choices\":[{\"delta\":{\"content\":\"x\"}}]}", &p);
    assert_true(p.has_tokens);
    read_as(NRD_API_CHAT,
            "{\"choices\":[],\"usage\":{\"completion_tokens\":7,\"prompt_tokens\":3}}", &p);
    assert_true(p.n_tokens == 7 && p.n_in == 3 && !p.has_tokens);
    read_as(NRD_API_CHAT, "[DONE]", &p);
    assert_true(p.is_end && !p.is_error);
    read_as(NRD_API_CHAT, "{\"error\":{\"message\":\"bad\"}}", &p);
    assert_string_equal(nrd_str_cstr(&p.text), "bad");
    read_as(NRD_API_INFER,
            "{\"outputs\":[{\"name\":\"output_ids\",\"data\":[1,2]},{\"name\":\"sequence_length\","
            "\"data\":[5]}]}",
            &p);
    assert_true(p.has_tokens && p.n_tokens == 5);
    read_as(NRD_API_INFER, "no json", &p);
    assert_true(p.is_error);
    nrd_str_fini(&p.text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_are_read_however_they_are_cut),
        cmocka_unit_test(test_events_are_told_one_by_one),
        cmocka_unit_test(test_what_is_no_answer_is_refused),
        cmocka_unit_test(test_percentiles_are_values_that_were_measured),
        cmocka_unit_test(test_arrivals_keep_their_rate),
        cmocka_unit_test(test_traces_are_read),
        cmocka_unit_test(test_answers_of_each_protocol),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
