/* SPDX-License-Identifier: Apache-2.0
 * Answers in the background: their states, what may be asked for, what makes room, and readers of their events. */
#include "frontends/openai/background.h"

#include "base/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static nrd_response_store *kept;
static nrd_background *store;
static int n_cancelled, n_woken;

static void on_cancel(void *handle)
{
    (void)handle;
    n_cancelled++;
}

static void on_wake(nrd_bg_reader *r)
{
    (void)r;
    n_woken++;
}

static void open_store(size_t jobs, size_t bytes)
{
    n_cancelled = n_woken = 0;
    assert_null(nrd_response_store_new(&kept, 100, 4096));
    assert_null(nrd_background_new(&store, kept, jobs, bytes, on_cancel));
}

static void close_store(void)
{
    nrd_background_free(store);
    nrd_response_store_free(kept);
}

static nrd_error *try_add(const char *id, bool with_events, nrd_bg_job **out)
{
    nrd_str object = {0}, input = {0};
    nrd_str_printf(&object, "{\"id\":\"%s\",\"status\":\"queued\",\"output\":[]}", id);
    nrd_str_puts(&input, "[1]");
    nrd_error *err = nrd_background_add(store, 0, id, &object, &input, with_events, out);
    nrd_str_fini(&object);
    nrd_str_fini(&input);
    if (!err) {
        nrd_bg_run(*out, *out);
    }
    return err;
}

static nrd_bg_job *add(const char *id, bool with_events)
{
    nrd_bg_job *j;
    assert_null(try_add(id, with_events, &j));
    return j;
}

static void finish(nrd_bg_job *j)
{
    nrd_bg_over(j);
    nrd_bg_release(j);
}

static void complete(nrd_bg_job *j, size_t bytes)
{
    nrd_str input = {0}, answer = {0};
    nrd_str_puts(&input, "[1]");
    assert_true(nrd_str_reserve(&answer, bytes));
    nrd_str_puts(&answer, "whole");
    nrd_error *err = nrd_bg_complete(j, NULL, &input, &answer);
    assert_int_equal(err != NULL, bytes > 4096);
    nrd_error_free(err);
    nrd_str_fini(&input);
    nrd_str_fini(&answer);
}

static bool status_is(const char *id, int key, const char *status)
{
    nrd_str out = {0}, wanted = {0};
    const bool found = nrd_background_show(store, key, id, &out);
    nrd_str_printf(&wanted, "{\"id\":\"%s\",\"status\":\"%s\",\"output\":[]}", id, status);
    const bool same = found && strcmp(nrd_str_cstr(&out), nrd_str_cstr(&wanted)) == 0;
    nrd_str_fini(&out);
    nrd_str_fini(&wanted);
    return same;
}

static bool has_answer(const char *id)
{
    nrd_kept_response *r = nrd_response_store_find(kept, 0, id);
    nrd_response_store_give_back(kept, r);
    return r != NULL;
}

static void test_states_follow_each_other(void **state)
{
    (void)state;
    open_store(4, 1 << 20);
    nrd_bg_job *j = add("a", false);
    assert_true(status_is("a", 0, "queued"));
    assert_false(status_is("a", 1, "queued")); /* another key's */
    nrd_bg_begun(j);
    assert_true(status_is("a", 0, "in_progress"));
    assert_int_equal(nrd_background_running(store), 1);
    complete(j, 16);
    assert_true(has_answer("a"));
    assert_false(status_is("a", 0, "in_progress")); /* the answer is in the other store */
    finish(j);
    assert_int_equal(nrd_background_running(store), 0);
    assert_false(nrd_background_remove(store, 0, "a"));
    j = add("b", false);
    nrd_str failed = {0};
    nrd_str_puts(&failed, "{\"id\":\"b\",\"status\":\"failed\",\"output\":[]}");
    nrd_bg_fail(j, &failed);
    finish(j);
    assert_true(status_is("b", 0, "failed"));
    close_store();
}

static void test_what_was_cancelled_stays_so(void **state)
{
    (void)state;
    open_store(4, 1 << 20);
    nrd_bg_job *j = add("a", false), *other = add("b", false);
    nrd_str out = {0};
    assert_false(nrd_background_cancel(store, 1, "a", &out));
    assert_true(nrd_background_cancel(store, 0, "a", &out) && nrd_background_cancel(store, 0, "a", &out));
    assert_true(n_cancelled >= 1);
    complete(j, 16); /* it came too late */
    assert_false(has_answer("a"));
    assert_true(status_is("a", 0, "cancelled"));
    finish(j);
    assert_true(nrd_background_remove(store, 0, "b"));
    assert_false(status_is("b", 0, "cancelled"));
    finish(other);
    nrd_bg_job *last = add("c", false);
    const int before = n_cancelled;
    nrd_background_stop(store);
    assert_int_equal(n_cancelled, before + 1);
    finish(last);
    nrd_error *err = try_add("d", false, &last);
    assert_non_null(err);
    nrd_error_free(err);
    nrd_str_fini(&out);
    close_store();
}

/* limits: BACKGROUND */
static void test_the_first_to_end_makes_room_and_none_under_way(void **state)
{
    (void)state;
    open_store(2, 1 << 20);
    nrd_bg_job *a = add("a", true), *b = add("b", true), *c;
    nrd_error *err = try_add("c", true, &c);
    assert_int_equal(nrd_error_get_code(err), NRD_ERR_UNAVAILABLE);
    nrd_error_free(err);
    nrd_str out = {0};
    assert_true(nrd_background_cancel(store, 0, "b", &out) && nrd_background_cancel(store, 0, "a", &out));
    finish(a);
    finish(b);
    c = add("c", true);
    assert_true(status_is("a", 0, "cancelled"));
    assert_false(status_is("b", 0, "cancelled"));
    nrd_str_fini(&out);
    finish(c);
    close_store();
}

/* limits: BACKGROUND_BYTES */
static void test_an_answer_that_finds_no_place_is_told(void **state)
{
    (void)state;
    open_store(2, 1 << 20);
    nrd_bg_job *a = add("a", false);
    complete(a, 8192); /* an error */
    assert_true(status_is("a", 0, "queued"));
    finish(a);
    close_store();
}

static void read_is(nrd_bg_reader *r, const char *text, bool last)
{
    nrd_str out = {0};
    assert_int_equal(nrd_bg_read(r, &out), last);
    assert_string_equal(nrd_str_cstr(&out), text);
    nrd_str_fini(&out);
}

static void test_readers_get_events_from_where_they_want(void **state)
{
    (void)state;
    open_store(2, 1 << 20);
    nrd_bg_job *a = add("a", true);
    nrd_bg_reader all = {.wake = on_wake}, some = {.wake = on_wake};
    bool found;
    assert_null(nrd_background_attach(store, 1, "a", 0, &all, &found));
    assert_false(found);
    assert_null(nrd_background_attach(store, 0, "a", 0, &all, &found));
    assert_null(nrd_background_attach(store, 0, "a", 2, &some, &found));
    assert_int_equal(n_woken, 2);
    read_is(&all, "", false);
    nrd_bg_write(a, "0\n\n", 3);
    assert_int_equal(n_woken, 3); /* the other was not read since */
    read_is(&all, "0\n\n", false);
    read_is(&some, "", false);
    nrd_bg_write(a, "1\n\n2\n\n", 6);
    read_is(&all, "1\n\n2\n\n", false);
    read_is(&some, "2\n\n", false);
    complete(a, 16);
    nrd_bg_write(a, "3\n\n", 3); /* the last one tells of the end */
    read_is(&all, "3\n\n", false);
    nrd_bg_over(a);
    read_is(&all, "", true);
    read_is(&some, "3\n\n", true);
    assert_false(nrd_bg_detach(&all));
    assert_false(nrd_bg_detach(&some));
    assert_null(nrd_background_attach(store, 0, "a", 3, &all, &found)); /* events outlive the answer's making */
    assert_true(found);
    read_is(&all, "3\n\n", true);
    nrd_bg_detach(&all);
    nrd_bg_release(a);
    close_store();
}

static void test_events_that_take_too_much_are_lost_alone(void **state)
{
    (void)state;
    static char big[20000];
    open_store(2, 24000);
    nrd_bg_job *a = add("a", true), *b = add("b", true);
    nrd_bg_reader r = {.wake = on_wake};
    bool found;
    memset(big, 'x', sizeof big);
    nrd_bg_write(a, big, 8000);
    complete(a, 16);
    finish(a);
    assert_null(nrd_background_attach(store, 0, "b", 0, &r, &found));
    nrd_bg_write(b, big, 14000); /* a's go */
    assert_false(nrd_background_remove(store, 0, "a"));
    nrd_bg_write(b, big, sizeof big);
    nrd_str out = {0};
    assert_true(nrd_bg_read(&r, &out));
    assert_non_null(strstr(nrd_str_cstr(&out), "events_lost"));
    assert_false(nrd_bg_detach(&r));
    nrd_error *err = nrd_background_attach(store, 0, "b", 0, &r, &found);
    assert_string_equal(nrd_error_field(err), "stream");
    nrd_error_free(err);
    complete(b, 16);
    assert_true(has_answer("a") && has_answer("b"));
    finish(b);
    nrd_str_fini(&out);
    close_store();
}

/* limits: BACKGROUND_EVENTS */
static void test_one_answer_may_not_have_all_the_room_for_events(void **state)
{
    enum { PIECE = 1 << 20 };
    nrd_bg_reader r = {.wake = on_wake};
    char *piece = calloc(1, PIECE);
    bool found;
    (void)state;
    open_store(2, 64 << 20);
    nrd_bg_job *a = add("a", true), *b = add("b", true);
    memset(piece, 'x', PIECE);
    nrd_bg_write(b, piece, PIECE);
    for (int i = 0; i <= NRD_LIMIT_BACKGROUND_EVENTS / PIECE; i++) {
        nrd_bg_write(a, piece, PIECE);
    }
    nrd_error *err = nrd_background_attach(store, 0, "a", 0, &r, &found);
    assert_string_equal(nrd_error_field(err), "stream");
    nrd_error_free(err);
    assert_null(nrd_background_attach(store, 0, "b", 0, &r, &found)); /* its events are there */
    nrd_bg_detach(&r);
    complete(a, 16);
    assert_true(has_answer("a"));
    finish(a);
    finish(b);
    free(piece);
    close_store();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_follow_each_other),
        cmocka_unit_test(test_what_was_cancelled_stays_so),
        cmocka_unit_test(test_the_first_to_end_makes_room_and_none_under_way),
        cmocka_unit_test(test_an_answer_that_finds_no_place_is_told),
        cmocka_unit_test(test_readers_get_events_from_where_they_want),
        cmocka_unit_test(test_events_that_take_too_much_are_lost_alone),
        cmocka_unit_test(test_one_answer_may_not_have_all_the_room_for_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
