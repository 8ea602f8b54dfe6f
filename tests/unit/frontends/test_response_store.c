/* SPDX-License-Identifier: Apache-2.0
 * Kept answers: bounds by number and by bytes, the order in which they go, keys, and conversations whose
 * beginning lives as long as their end. */
#include "frontends/openai/response_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static nrd_response_store *store;

static void open_store(size_t count, size_t bytes)
{
    assert_null(nrd_response_store_new(&store, count, bytes));
}

static void add(const char *id, int key, nrd_kept_response *previous, size_t bytes)
{
    nrd_str input = {0}, answer = {0};
    nrd_str_puts(&input, "[]");
    assert_true(nrd_str_reserve(&answer, bytes));
    nrd_str_puts(&answer, id);
    assert_null(nrd_response_store_add(store, key, id, previous, &input, &answer));
    assert_null(input.data);
    assert_null(answer.data);
}

static bool has(const char *id, int key)
{
    nrd_kept_response *r = nrd_response_store_find(store, key, id);
    const bool is = r && strcmp(r->answer.data, id) == 0;
    nrd_response_store_give_back(store, r);
    return is;
}

/* limits: RESPONSES_KEPT */
static void test_the_longest_unused_goes_first(void **state)
{
    (void)state;
    open_store(3, 1 << 20);
    add("a", -1, NULL, 8);
    add("b", -1, NULL, 8);
    add("c", -1, NULL, 8);
    assert_true(has("a", -1)); /* now b is the oldest */
    add("d", -1, NULL, 8);
    assert_false(has("b", -1));
    assert_true(has("a", -1) && has("c", -1) && has("d", -1));
    nrd_response_store_free(store);
}

/* limits: RESPONSES_KEPT_BYTES */
static void test_bytes_are_bounded(void **state)
{
    (void)state;
    open_store(1000, 40000);
    add("a", -1, NULL, 15000);
    add("b", -1, NULL, 15000);
    add("big", -1, NULL, 50000); /* finds no room, and drives nobody out */
    assert_true(has("a", -1) && has("b", -1));
    assert_false(has("big", -1));
    add("c", -1, NULL, 15000);
    assert_false(has("a", -1));
    assert_true(has("b", -1) && has("c", -1));
    nrd_response_store_free(store);
    open_store(0, 40000);
    add("a", -1, NULL, 8);
    assert_false(has("a", -1));
    nrd_response_store_free(store);
}

static void test_a_key_sees_its_own(void **state)
{
    (void)state;
    open_store(10, 1 << 20);
    add("a", 0, NULL, 8);
    assert_true(has("a", 0));
    assert_false(has("a", 1) || has("a", -1));
    assert_false(nrd_response_store_remove(store, 1, "a"));
    assert_true(nrd_response_store_remove(store, 0, "a"));
    assert_false(nrd_response_store_remove(store, 0, "a"));
    assert_false(has("a", 0));
    nrd_response_store_free(store);
}

/* 20,000 answers in a row: the end of the last one ends all, without a recursion. */
static void test_a_conversation_lives_as_long_as_its_end(void **state)
{
    (void)state;
    char id[16], last[16] = "0";
    size_t n = 0;

    open_store(1, 1 << 30);
    add(last, -1, NULL, 8);
    for (int i = 1; i < 20000; i++) {
        nrd_kept_response *previous = nrd_response_store_find(store, -1, last);
        snprintf(id, sizeof id, "%d", i);
        add(id, -1, previous, 8);
        nrd_response_store_give_back(store, previous);
        assert_false(has(last, -1));
        memcpy(last, id, sizeof last);
    }
    nrd_kept_response *end = nrd_response_store_find(store, -1, last);
    for (const nrd_kept_response *r = end; r; r = r->previous) {
        n++;
    }
    assert_int_equal(n, 20000);
    assert_true(nrd_response_store_remove(store, -1, last));
    assert_string_equal(end->previous->id, "19998"); /* whoever holds it still has it */
    nrd_response_store_give_back(store, end);
    nrd_response_store_free(store);
}

/* What is only part of a later answer counts too. */
static void test_what_came_before_counts(void **state)
{
    (void)state;
    open_store(2, 40000);
    add("a", -1, NULL, 15000);
    nrd_kept_response *a = nrd_response_store_find(store, -1, "a");
    add("b", -1, a, 15000);
    nrd_response_store_give_back(store, a);
    assert_true(nrd_response_store_remove(store, -1, "a"));
    add("c", -1, NULL, 15000); /* a and b leave together */
    assert_false(has("b", -1));
    assert_true(has("c", -1));
    nrd_response_store_free(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_longest_unused_goes_first),
        cmocka_unit_test(test_bytes_are_bounded),
        cmocka_unit_test(test_a_key_sees_its_own),
        cmocka_unit_test(test_a_conversation_lives_as_long_as_its_end),
        cmocka_unit_test(test_what_came_before_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
