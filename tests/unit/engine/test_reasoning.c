/* SPDX-License-Identifier: Apache-2.0
 * When the budget of a reasoning is used up, and what is counted. */
#include "engine/decode/decode.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { PROMPT = 2, MAX = 64, BEGIN = 50, END_A = 51, END_B = 52 };

static const nrd_reasoning rule = {.budget = 3, .begin = {BEGIN}, .n_begin = 1, .end = {END_A, END_B}, .n_end = 2,
                                   .close = {9, END_A, END_B}, .n_close = 3};

/* Tokens behind the prompt; which of them is the last before the end is forced, or -1. */
static int forced_behind(const nrd_reasoning *r, const int32_t *ids, int n)
{
    int32_t tokens[MAX] = {BEGIN, BEGIN}; /* a prompt that speaks of it is not the reasoning */
    nrd_seq q = {.req = {.n_prompt = PROMPT, .max_total = MAX, .end_id = -1, .reasoning = r, .may_jump = true,
                         .sampling = {.repetition_penalty = 1, .top_p_decay = 1, .temperature = 1}},
                 .dec = {.tokens = tokens}};
    const int32_t *close = NULL;

    nrd_decode_prepare(&q);
    for (int i = 0; i < n; i++) {
        int32_t n_new;
        assert_int_equal(nrd_decode_accept(&q, ids[i], &n_new), NRD_SEQ_FINISH_NONE);
        if (nrd_decode_reasoning_close(&q, &close) > 0) {
            assert_ptr_equal(close, r->close);
            n_new = 0;
            assert_int_equal(nrd_decode_append(&q, close, r->n_close, &n_new), NRD_SEQ_FINISH_NONE);
            assert_int_equal(n_new, r->n_close);
            assert_int_equal(nrd_decode_reasoning_close(&q, &close), 0); /* it is over */
            return i;
        }
    }
    return -1;
}

static void test_the_budget_counts_what_stands_between_the_marks(void **state)
{
    static const struct {
        const char *what;
        bool open;
        int32_t ids[12];
        int n, want;
    } table[] = {
        {"it begins with its mark", false, {1, 2, BEGIN, 3, 4, 5, 6}, 7, 5},
        {"or in the prompt", true, {1, 2, 3, 4}, 4, 2},
        {"its own end comes first", true, {1, END_A, END_B, 4, 5, 6, 7}, 7, -1},
        {"half an end is none", true, {1, END_A, 2, END_B, 4, 5}, 6, 2},
        {"never begun", false, {1, 2, 3, 4, 5, 6}, 6, -1},
        {"what a first one used is gone for a second", false, {BEGIN, 1, END_A, END_B, 8, BEGIN, 2, 3}, 8, 6},
    };
    (void)state;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        nrd_reasoning r = rule;
        r.open = table[i].open;
        const int got = forced_behind(&r, table[i].ids, table[i].n);
        if (got != table[i].want) {
            fail_msg("%s: forced behind %d, expected %d", table[i].what, got, table[i].want);
        }
    }
}

static void test_no_budget_forces_nothing(void **state)
{
    const int32_t ids[] = {BEGIN, 1, 2, 3, 4, 5, 6, 7};
    (void)state;
    assert_int_equal(forced_behind(NULL, ids, 8), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_budget_counts_what_stands_between_the_marks),
                                       cmocka_unit_test(test_no_budget_forces_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
