/* SPDX-License-Identifier: Apache-2.0
 * Errors, strings, memory, files, queues. */
#include "base/base64.h"
#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/names.h"
#include "base/number.h"
#include "base/queue.h"
#include "base/siphash.h"
#include "base/str.h"
#include "comma_locale.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void test_wrapped_error_keeps_code_and_gains_context(void **state)
{
    (void)state;
    nrd_error *err = nrd_errorf(NRD_ERR_NOT_FOUND, "no %s", "file");
    err = nrd_error_wrap(err, "model %d", 3);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_NOT_FOUND);
    assert_string_equal(nrd_error_message(err), "model 3: no file");
    nrd_error_free(err);
    assert_null(nrd_error_wrap(NULL, "nothing"));
    nrd_error_free(nrd_error_no_memory());
}

static void test_an_error_tells_programs_its_field_and_reason(void **state)
{
    (void)state;
    nrd_error *err = nrd_errorf(NRD_ERR_INVALID_ARG, "seed: must be a number");
    assert_null(nrd_error_field(err)); /* not guessed from the message */
    assert_null(nrd_error_reason(err));
    err = nrd_error_at(nrd_error_wrap(nrd_error_at(err, "seed"), "element 3"), "options");
    err = nrd_error_because(err, "too_large");
    assert_string_equal(nrd_error_field(err), "seed");
    assert_string_equal(nrd_error_reason(err), "too_large");
    assert_string_equal(nrd_error_message(err), "element 3: seed: must be a number");
    nrd_error_free(err);
    assert_null(nrd_error_at(NULL, "x"));
    assert_null(nrd_error_because(NULL, "x"));
    err = nrd_error_at(nrd_error_because(nrd_error_no_memory(), "x"), "y");
    assert_null(nrd_error_field(err)); /* shared by all */
    assert_null(nrd_error_reason(err));
}

static void test_number_parsers_refuse_all_but_whole_numbers(void **state)
{
    long long i;
    unsigned long long u;
    double d;
    (void)state;
    assert_true(nrd_parse_i64("-42", &i) && i == -42);
    assert_false(nrd_parse_i64("42x", &i));
    assert_false(nrd_parse_i64("", &i));
    assert_false(nrd_parse_i64(" 1", &i));
    assert_false(nrd_parse_i64("99999999999999999999", &i));
    assert_true(nrd_parse_u64("18446744073709551615", &u) && u == UINT64_MAX);
    assert_false(nrd_parse_u64("-1", &u));
    assert_true(nrd_parse_f64("2.5e-1", &d) && d == 0.25);
    assert_false(nrd_parse_f64("1e999", &d));
}

static void test_string_buffer_is_whole_at_every_length(void **state)
{
    (void)state;
    for (int n = 0; n < 260; n++) { /* the buffer's sizes are 64, 128 and 256 */
        nrd_str by_char = {0}, by_piece = {0};
        for (int i = 0; i < n; i++) {
            nrd_str_putc(&by_char, 'x');
        }
        nrd_str_append(&by_piece, nrd_str_cstr(&by_char), (size_t)n / 2);
        nrd_str_printf(&by_piece, "%.*s", n - n / 2, nrd_str_cstr(&by_char));
        assert_int_equal(strlen(nrd_str_cstr(&by_char)), n);
        assert_int_equal(by_char.len, n);
        assert_string_equal(nrd_str_cstr(&by_piece), nrd_str_cstr(&by_char));
        assert_int_equal(by_piece.len, n);
        nrd_str_printf(&by_piece, "%s", "");
        nrd_str_append(&by_piece, "", 0);
        assert_non_null(by_piece.data);
        assert_int_equal(by_piece.len, n);
        nrd_str_fini(&by_char);
        nrd_str_fini(&by_piece);
    }
}

static void test_string_buffer_grows_and_stays_terminated(void **state)
{
    nrd_str s = {0};
    (void)state;
    assert_string_equal(nrd_str_cstr(&s), "");
    for (int i = 0; i < 1000; i++) {
        nrd_str_printf(&s, "%d,", i);
        assert_int_equal(s.data[s.len], 0);
    }
    assert_memory_equal(s.data, "0,1,2,3,", 8);
    char *text = nrd_str_steal(&s);
    assert_int_equal(strlen(text), 3890);
    assert_null(s.data);
    free(text);
}

static void test_hosts_stand_in_urls_with_brackets_where_they_need_them(void **state)
{
    nrd_str s = {0};
    (void)state;
    nrd_str_put_host(&s, "127.0.0.1");
    nrd_str_put_host(&s, "fe80::1");
    nrd_str_put_host(&s, "[::1]");
    assert_string_equal(nrd_str_cstr(&s), "127.0.0.1[fe80::1][::1]");
    nrd_str_fini(&s);
}

static void test_string_buffer_without_memory_keeps_what_it_has(void **state)
{
    nrd_str s = {0}, whole = {0};
    nrd_error *err;
    (void)state;
    nrd_str_puts(&s, "kept");
    assert_null(nrd_str_error(&s));
    assert_false(nrd_str_reserve(&s, SIZE_MAX)); /* more than there can be */
    nrd_str_puts(&s, " not");
    nrd_str_putc(&s, 'x');
    nrd_str_printf(&s, "%d", 1);
    nrd_str_put_i64(&s, 1);
    assert_string_equal(nrd_str_cstr(&s), "kept");
    err = nrd_str_error(&s);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_NO_MEMORY);
    nrd_error_free(err);
    nrd_str_puts(&whole, "[");
    nrd_str_put(&whole, &s); /* what holds it lacks something, too */
    assert_true(whole.no_memory);
    assert_null(nrd_str_steal(&s)); /* a text that ends early is none */
    assert_false(s.no_memory);
    nrd_str_clear(&whole);
    nrd_str_puts(&whole, "again");
    assert_null(nrd_str_error(&whole));
    assert_string_equal(nrd_str_cstr(&whole), "again");
    nrd_str_spoil(&whole);
    assert_true(whole.no_memory);
    nrd_str_fini(&whole);
}

static void test_arena_gives_aligned_separate_memory(void **state)
{
    nrd_arena a;
    unsigned char *p[300];
    (void)state;
    nrd_arena_init(&a);
    for (size_t i = 0; i < 300; i++) {
        p[i] = nrd_arena_alloc(&a, i * 7);
        assert_non_null(p[i]);
        assert_int_equal((uintptr_t)p[i] % 16, 0);
        memset(p[i], (int)(i & 255), i * 7);
    }
    for (size_t i = 1; i < 300; i++) {
        assert_int_equal(p[i][0], i & 255);
        assert_int_equal(p[i][i * 7 - 1], i & 255);
    }
    assert_null(nrd_arena_alloc(&a, SIZE_MAX - 3));
    nrd_arena_fini(&a);
}

static void test_file_write_replaces_whole_files_or_nothing(void **state)
{
    char dir[] = "/tmp/nereid-test-XXXXXX", *text = NULL, **names = NULL;
    size_t n = 0, n_names = 0;
    nrd_file_writer *w = NULL;
    (void)state;
    assert_non_null(mkdtemp(dir));
    char *path = nrd_path_join(dir, "a");
    assert_null(nrd_file_write(path, "old", 3));
    assert_null(nrd_file_writer_open(&w, path));
    fputs("half", nrd_file_writer_stream(w));
    nrd_file_writer_abort(w);
    assert_null(nrd_file_read(&text, &n, path, 100));
    assert_string_equal(text, "old");
    free(text);
    assert_null(nrd_dir_list(&names, &n_names, dir));
    assert_int_equal(n_names, 1);
    nrd_names_free(names, n_names);
    nrd_error *err = nrd_file_read(&text, &n, path, 2);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_INVALID_ARG);
    nrd_error_free(err);
    unlink(path);
    free(path);
    rmdir(dir);
}

static void keep_message(void *user, nrd_log_level level, const char *file, int line, const char *message)
{
    (void)level, (void)file, (void)line;
    snprintf(user, 128, "%s", message);
}

static void refuses_room(const char *path, const char *at)
{
    nrd_error *err = nrd_file_check_room(path, UINT64_MAX);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNAVAILABLE);
    assert_non_null(strstr(nrd_error_message(err), at));
    nrd_error_free(err);
}

/* The disk of what is not there yet is that of the nearest folder; what is no path is left to who writes. */
static void test_room_on_a_disk_is_asked_before_writing(void **state)
{
    (void)state;
    assert_null(nrd_file_check_room("/tmp", 1));
    assert_null(nrd_file_check_room("/tmp/nereid-none/a/b", 0));
    assert_null(nrd_file_check_room("/dev/null/a", UINT64_MAX));
    assert_null(nrd_file_check_room("", UINT64_MAX));
    refuses_room("/tmp/nereid-none/a/b", "'/tmp' has");
    refuses_room("/nereid-none", "'/' has");
    refuses_room("nereid-none", "'.' has");
    refuses_room("nereid-none/a", "'.' has");
}

static void test_a_log_message_is_one_line_without_control_characters(void **state)
{
    char kept[128] = "";
    (void)state;
    nrd_log_set_sink(keep_message, kept);
    NRD_LOG_INFO_LINES("| a |\n| \x1b[2J |\n");
    assert_string_equal(kept, "\n| a |\n| \\u001b[2J |\n");
    NRD_LOG_ERROR("id '%s'", "a\r\nE1121 00:00 forged]\t\x1b[2J\x7f \xc2\x9b \xc3\xa9 \\n");
    nrd_log_set_sink(NULL, NULL);
    assert_string_equal(kept,
                        "id 'a\\r\\nE1121 00:00 forged]\t\\u001b[2J\\u007f \\u009b \xc3\xa9 \\n'");
}

static void test_missing_file_is_not_found_with_its_path(void **state)
{
    nrd_map m;
    (void)state;
    nrd_error *err = nrd_map_open(&m, "/nonexistent/file");
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_NOT_FOUND);
    assert_non_null(strstr(nrd_error_message(err), "/nonexistent/file"));
    nrd_error_free(err);
}

enum { N_ITEMS = 20000 };

static void *produce(void *arg)
{
    for (uintptr_t i = 1; i <= N_ITEMS; i++) {
        while (!nrd_queue_push(arg, (void *)i)) {
            sched_yield();
        }
    }
    return NULL;
}

static void test_queue_passes_every_item_once_between_threads(void **state)
{
    nrd_queue *q = NULL;
    pthread_t t[2];
    uint64_t sum = 0;
    (void)state;
    assert_null(nrd_queue_new(&q, 64));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&t[i], NULL, produce, q), 0);
    }
    for (int i = 0; i < 2 * N_ITEMS; i++) {
        sum += (uintptr_t)nrd_queue_pop(q, UINT64_MAX);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], NULL);
    }
    assert_int_equal(sum, (uint64_t)N_ITEMS * (N_ITEMS + 1));
    assert_null(nrd_queue_pop(q, 1000));
    nrd_queue_close(q);
    assert_false(nrd_queue_push(q, q));
    assert_null(nrd_queue_pop(q, UINT64_MAX));
    nrd_queue_free(q);
}

static void test_numbers_are_put_as_decimals(void **state)
{
    static const struct {
        int64_t v;
        const char *text;
    } cases[] = {{0, "0"},
                 {7, "7"},
                 {-1, "-1"},
                 {1234567890123, "1234567890123"},
                 {INT64_MAX, "9223372036854775807"},
                 {INT64_MIN, "-9223372036854775808"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        nrd_str s = {0};
        nrd_str_put_i64(&s, cases[i].v);
        assert_string_equal(nrd_str_cstr(&s), cases[i].text);
        nrd_str_fini(&s);
    }
}

static void test_base64_comes_back_and_refuses_what_is_none(void **state)
{
    static const struct {
        const char *text, *bytes; /* NULL: refused */
    } cases[] = {{"", ""},         {"Zg==", "f"},     {"Zm8=", "fo"},  {"Zm9v", "foo"},
                 {"Zm9v\r\nYg==\n", "foob"}, {"Zg", "f"}, {"Z", NULL}, {"Zm9vZ", NULL},
                 {"Zm9!", NULL},   {"Zg==Zg==", NULL}, {"Zg==x", NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char out[32];
        size_t n = 0;
        const char *text = cases[i].text;
        assert_int_equal(nrd_base64_decode(text, strlen(text), out, &n), cases[i].bytes != NULL);
        if (cases[i].bytes) {
            assert_int_equal(n, strlen(cases[i].bytes));
            assert_memory_equal(out, cases[i].bytes, n);
        }
    }
    unsigned char all[256];
    for (int i = 0; i < 256; i++) {
        all[i] = (unsigned char)i;
    }
    for (size_t n = 0; n <= sizeof all; n++) {
        char back[512];
        size_t m = 0;
        nrd_str s = {0};
        nrd_base64_encode((const char *)all, n, &s);
        assert_int_equal(s.len, (n + 2) / 3 * 4);
        assert_true(nrd_base64_decode(nrd_str_cstr(&s), s.len, back, &m));
        assert_int_equal(m, n);
        assert_memory_equal(back, all, n);
        nrd_str_fini(&s);
    }
}

/* Reference: OpenSSL 3's SIPHASH of 16 bytes over 00 01 02 … under the key 00 01 … 0f. */
static void test_siphash_is_that_of_the_paper_however_the_bytes_are_cut(void **state)
{
    static const struct {
        size_t n;
        uint8_t want[16];
    } rows[] = {
        {0, {0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93}},
        {1, {0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45}},
        {7, {0xa1, 0xf1, 0xeb, 0xbe, 0xd8, 0xdb, 0xc1, 0x53, 0xc0, 0xb8, 0x4a, 0xa6, 0x1f, 0xf0, 0x82, 0x39}},
        {8, {0x3b, 0x62, 0xa9, 0xba, 0x62, 0x58, 0xf5, 0x61, 0x0f, 0x83, 0xe2, 0x64, 0xf3, 0x14, 0x97, 0xb4}},
        {15, {0x54, 0x93, 0xe9, 0x99, 0x33, 0xb0, 0xa8, 0x11, 0x7e, 0x08, 0xec, 0x0f, 0x97, 0xcf, 0xc3, 0xd9}},
        {63, {0x51, 0x50, 0xd1, 0x77, 0x2f, 0x50, 0x83, 0x4a, 0x50, 0x3e, 0x06, 0x9a, 0x97, 0x3f, 0xbd, 0x7c}},
    };
    const uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    uint8_t bytes[63];
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)i;
    }
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        for (size_t piece = 1; piece <= sizeof bytes; piece++) {
            nrd_siphash h;
            uint64_t out[2];
            nrd_siphash_init(&h, key);
            for (size_t at = 0; at < rows[r].n; at += piece) {
                nrd_siphash_add(&h, bytes + at, rows[r].n - at < piece ? rows[r].n - at : piece);
            }
            nrd_siphash_end(&h, out);
            assert_memory_equal(out, rows[r].want, 16);
        }
    }
    assert_true(nrd_siphash_process_key()[0] != 0 || nrd_siphash_process_key()[1] != 0);
}

/* Two names that anyone can find to share a place under a hash without a key. */
static void test_names_that_strangers_choose_do_not_share_a_place(void **state)
{
    static const uint64_t one[2] = {1, 2}, other[2] = {3, 0x255c18cce20fea4cu};
    (void)state;
    assert_true(nrd_hash_bytes(0, one, sizeof one) == nrd_hash_bytes(0, other, sizeof other));
    assert_true(nrd_siphash_bytes(one, sizeof one) != nrd_siphash_bytes(other, sizeof other));
    assert_true(nrd_siphash_bytes(one, sizeof one) == nrd_siphash_bytes(one, sizeof one));
    assert_true(nrd_siphash_bytes(one, sizeof one) != nrd_siphash_bytes(one, sizeof one - 1));
}

static void test_numbers_have_a_point_where_the_locale_has_a_comma(void **state)
{
    char text[40], *end;
    double v = 0;
    (void)state;
    assert_true(comma_locale_begin());
    assert_true(nrd_number_read("2.5,1", &end) == 2.5);
    assert_string_equal(end, ",1");
    assert_true(nrd_parse_f64("-0.25", &v) && v == -0.25);
    assert_false(nrd_parse_f64("0,25", &v));
    assert_int_equal(nrd_number_print(text, sizeof text, "%.2f %s", 1.5, "x"), 6);
    assert_string_equal(text, "1.50 x");
    snprintf(text, sizeof text, "%.1f", 1.5); /* the caller's locale is as it was */
    assert_string_equal(text, "1,5");
    comma_locale_end();
    snprintf(text, sizeof text, "%.1f", 1.5);
    assert_string_equal(text, "1.5");
}

static void test_names_are_found_in_whatever_order_they_came(void **state)
{
    nrd_names list = {0};
    char text[100][8];
    (void)state;

    assert_false(nrd_names_have(&list, "", 0));
    for (int i = 0; i < 100; i++) {
        const int n = snprintf(text[i], sizeof text[i], "%d", i * 37 % 100);
        assert_null(nrd_names_add(&list, text[i], (size_t)n));
    }
    assert_true(nrd_names_have(&list, "7", 1) && nrd_names_have(&list, "99", 2) && nrd_names_have(&list, "421", 2));
    assert_false(nrd_names_have(&list, "100", 3) || nrd_names_have(&list, "", 0) || nrd_names_have(&list, "4 ", 2));
    assert_null(nrd_names_add(&list, "", 0)); /* also behind the first question */
    assert_true(nrd_names_have(&list, "", 0) && nrd_names_have(&list, "42", 2));
    nrd_names_fini(&list);
    assert_false(nrd_names_have(&list, "42", 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers_have_a_point_where_the_locale_has_a_comma),
        cmocka_unit_test(test_siphash_is_that_of_the_paper_however_the_bytes_are_cut),
        cmocka_unit_test(test_names_that_strangers_choose_do_not_share_a_place),
        cmocka_unit_test(test_base64_comes_back_and_refuses_what_is_none),
        cmocka_unit_test(test_numbers_are_put_as_decimals),
        cmocka_unit_test(test_an_error_tells_programs_its_field_and_reason),
        cmocka_unit_test(test_wrapped_error_keeps_code_and_gains_context),
        cmocka_unit_test(test_number_parsers_refuse_all_but_whole_numbers),
        cmocka_unit_test(test_string_buffer_grows_and_stays_terminated),
        cmocka_unit_test(test_hosts_stand_in_urls_with_brackets_where_they_need_them),
        cmocka_unit_test(test_string_buffer_without_memory_keeps_what_it_has),
        cmocka_unit_test(test_string_buffer_is_whole_at_every_length),
        cmocka_unit_test(test_arena_gives_aligned_separate_memory),
        cmocka_unit_test(test_file_write_replaces_whole_files_or_nothing),
        cmocka_unit_test(test_room_on_a_disk_is_asked_before_writing),
        cmocka_unit_test(test_a_log_message_is_one_line_without_control_characters),
        cmocka_unit_test(test_missing_file_is_not_found_with_its_path),
        cmocka_unit_test(test_names_are_found_in_whatever_order_they_came),
        cmocka_unit_test(test_queue_passes_every_item_once_between_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
