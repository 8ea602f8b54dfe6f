/* SPDX-License-Identifier: Apache-2.0
 * Lines of batches: cut anywhere, too long, wrong in each field; ids that were seen. */
#include "base/limits.h"
#include "frontends/openai/batch_line.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static int file_of(const char *text, size_t n)
{
    FILE *f = tmpfile();
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fflush(f);
    const int fd = dup(fileno(f));
    fclose(f);
    return fd;
}

static void test_lines_are_found_with_their_places(void **state)
{
    static const char text[] = "a\n\n \t\r\nbb\r\nccc";
    const int fd = file_of(text, sizeof text - 1);
    nrd_batch_reader r = {.fd = fd};
    nrd_batch_text t;
    uint64_t n = 0;
    bool more;
    (void)state;
    const struct { const char *text; uint64_t offset, line; } want[] = {{"a", 0, 1}, {"bb\r", 7, 4}, {"ccc", 11, 5}};
    for (size_t i = 0; i < 3; i++) {
        assert_null(nrd_batch_next(&r, &t, &n, &more));
        assert_true(more);
        assert_int_equal(t.n, strlen(want[i].text));
        assert_memory_equal(t.text, want[i].text, t.n);
        assert_int_equal(t.offset, want[i].offset);
        assert_int_equal(n, want[i].line);
    }
    assert_null(nrd_batch_next(&r, &t, &n, &more));
    assert_false(more);
    nrd_batch_reader_fini(&r);
    close(fd);
}

/* Long lines of many lengths between short ones: each short one is still found where it stands. */
/* limits: BATCH_LINE */
static void test_a_line_that_is_too_long_is_skipped(void **state)
{
    (void)state;
    for (size_t n = 1000; n < 300000; n = n * 3 / 2 + 1) {
        for (int ends = 0; ends < 2; ends++) {
            char *text = malloc(n + 64);
            assert_non_null(text);
            memset(text, 'x', n + 64);
            memcpy(text, "one\n", 4);
            size_t len = 4 + n;
            if (ends) {
                memcpy(text + len, "\ntwo\nthree", 10);
                len += 10;
            }
            const int fd = file_of(text, len);
            nrd_batch_reader r = {.fd = fd, .max_line = 2000};
            nrd_batch_text t;
            uint64_t line = 0;
            bool more;
            assert_null(nrd_batch_next(&r, &t, &line, &more));
            assert_memory_equal(t.text, "one", 3);
            assert_null(nrd_batch_next(&r, &t, &line, &more));
            assert_true(more);
            assert_int_equal(t.too_long, n > 2000);
            assert_int_equal(t.text[0], 'x');
            assert_null(nrd_batch_next(&r, &t, &line, &more));
            assert_int_equal(more, ends);
            if (ends) {
                assert_int_equal(t.offset, 4 + n + 1);
                assert_int_equal(line, 3);
                assert_memory_equal(t.text, "two", 3);
                assert_null(nrd_batch_next(&r, &t, &line, &more));
                assert_memory_equal(t.text, "three", 5);
                assert_null(nrd_batch_next(&r, &t, &line, &more));
                assert_false(more);
            }
            nrd_batch_reader_fini(&r);
            close(fd);
            free(text);
        }
    }
}

static void check(const char *text, const char *code, const char *field)
{
    const nrd_batch_text t = {.text = text, .n = strlen(text)};
    nrd_batch_line l;
    nrd_error *err = nrd_batch_line_read(&l, &t, nrd_batch_endpoint_of("/v1/completions"));
    if (!code) {
        assert_null(err);
        assert_string_equal(l.custom_id, "a");
        assert_string_equal(nrd_batch_endpoint(l.endpoint), "/v1/completions");
    } else {
        assert_non_null(err);
        assert_string_equal(nrd_error_reason(err), code);
        if (field) {
            assert_string_equal(nrd_error_field(err), field);
        } else {
            assert_null(nrd_error_field(err));
        }
    }
    nrd_error_free(err);
    nrd_batch_line_fini(&l);
}

#define LINE(id, method, url, body) "{\"custom_id\":" id ",\"method\":" method ",\"url\":" url ",\"body\":" body "}"
#define URL "\"/v1/completions\""

static void test_each_field_is_checked(void **state)
{
    (void)state;
    check(LINE("\"a\"", "\"POST\"", URL, "{}"), NULL, NULL);
    check(LINE("\"a\"", "\"POST\"", URL, "{\"stream\":false}"), NULL, NULL);
    check(LINE("\"a\"", "\"POST\"", URL, "{\"stream\":null}"), NULL, NULL);
    check("{", "invalid_json_line", NULL);
    check("[]", "invalid_json_line", NULL);
    check("\xff", "invalid_json_line", NULL);
    check("{}", "invalid_custom_id", "custom_id");
    check(LINE("\"\"", "\"POST\"", URL, "{}"), "invalid_custom_id", "custom_id");
    check(LINE("\"a\\u0000b\"", "\"POST\"", URL, "{}"), "invalid_custom_id", "custom_id");
    check(LINE("7", "\"POST\"", URL, "{}"), "invalid_custom_id", "custom_id");
    check(LINE("\"a\"", "\"GET\"", URL, "{}"), "invalid_method", "method");
    check(LINE("\"a\"", "null", URL, "{}"), "invalid_method", "method");
    check(LINE("\"a\"", "\"POST\"", "\"/v1/models\"", "{}"), "invalid_url", "url");
    check(LINE("\"a\"", "\"POST\"", "7", "{}"), "invalid_url", "url");
    check(LINE("\"a\"", "\"POST\"", "\"/v1/embeddings\"", "{}"), "mismatched_url", "url");
    check(LINE("\"a\"", "\"POST\"", URL, "[]"), "invalid_body", "body");
    check("{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":" URL "}", "invalid_body", "body");
    check(LINE("\"a\"", "\"POST\"", URL, "{\"stream\":true}"), "invalid_body", "body.stream");
    check(LINE("\"a\"", "\"POST\"", URL, "{\"stream\":1}"), "invalid_body", "body.stream");
}

static void test_an_id_is_that_of_the_lines_bytes(void **state)
{
    char a[NRD_BATCH_ID], b[NRD_BATCH_ID];
    nrd_str out = {0};
    (void)state;

    nrd_batch_id_of(a, &(nrd_batch_text){.text = "{} ", .n = 2});
    assert_string_equal(a, "batch_req_07f3de30e1a1bd08b1939e740b75b718"); /* the same on every machine */
    assert_true(nrd_batch_id_is_of_a_line(a));
    nrd_batch_id_of(b, &(nrd_batch_text){.text = "{} ", .n = 3});
    assert_string_not_equal(a, b);
    assert_null(nrd_batch_put_error(&out, a, "z", "c", "m"));
    assert_non_null(strstr(nrd_str_cstr(&out), a));
    nrd_str_clear(&out);
    assert_null(nrd_batch_put_error(&out, NULL, "z", "c", "m"));
    *strchr(out.data + 7, '"') = '\0';
    assert_false(nrd_batch_id_is_of_a_line(out.data + 7)); /* behind {"id":" */
    nrd_str_fini(&out);
}

static void test_answers_are_lines_and_their_ids_are_found_again(void **state)
{
    nrd_batch_ids ids = {.n = 0};
    nrd_str out = {0}, body = {0};
    nrd_batch_counts counts = {0};
    bool fresh;
    (void)state;
    nrd_str_puts(&body, "{\"a\":\n1}");
    assert_null(nrd_batch_put_answer(&out, NULL, "x\n\"", 200, &body));
    assert_null(nrd_batch_put_answer(&out, NULL, "y", 400, &body));
    assert_null(nrd_batch_put_error(&out, NULL, "z", "batch_expired", "late"));
    assert_null(nrd_batch_put_error(&out, NULL, NULL, "invalid_json_line", "no"));
    assert_null(nrd_batch_put_error(&out, NULL, "z", "batch_expired", "twice"));
    nrd_str_puts(&out, "{\"custom_id\":\"half");
    const int fd = file_of(out.data, out.len);
    assert_null(nrd_batch_ids_read(&ids, fd, &counts, NULL, NULL));
    assert_int_equal(counts.ok, 1);
    assert_int_equal(counts.failed, 3);
    assert_int_equal(counts.nameless, 1);
    assert_true(nrd_batch_ids_have(&ids, "x\n\""));
    assert_true(nrd_batch_ids_have(&ids, "y"));
    assert_true(nrd_batch_ids_have(&ids, "z"));
    assert_false(nrd_batch_ids_have(&ids, "half"));
    for (int i = 0; i < 5000; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        assert_null(nrd_batch_ids_add(&ids, id, &fresh));
        assert_true(fresh);
        assert_null(nrd_batch_ids_add(&ids, id, &fresh));
        assert_false(fresh);
    }
    nrd_batch_ids_fini(&ids);
    assert_false(nrd_batch_ids_have(&ids, "x"));
    nrd_str_fini(&out);
    nrd_str_fini(&body);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_id_is_that_of_the_lines_bytes),
        cmocka_unit_test(test_lines_are_found_with_their_places),
        cmocka_unit_test(test_a_line_that_is_too_long_is_skipped),
        cmocka_unit_test(test_each_field_is_checked),
        cmocka_unit_test(test_answers_are_lines_and_their_ids_are_found_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
