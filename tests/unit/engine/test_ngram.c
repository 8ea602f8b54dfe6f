/* SPDX-License-Identifier: Apache-2.0
 * Drafts from the text itself, and what they are worth to a step. */
#include "engine/sequence.h"
#include "engine/speculate/budget.h"
#include "engine/speculate/proposer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { TOTAL = 256, MAX_DRAFT = 6 };

static nrd_proposer *proposer(int32_t min_match, int32_t max_match)
{
    nrd_proposer *p = NULL;
    assert_null(nrd_proposer_ngram(&p, MAX_DRAFT, min_match, max_match, TOTAL));
    return p;
}

/* What is proposed behind `text`, of which the first token is the prompt. */
static int32_t ask(nrd_proposer *p, const int32_t *text, int32_t n, int32_t max, int32_t *out)
{
    int32_t tokens[TOTAL];
    nrd_seq q = {.req = {.n_prompt = 1, .max_total = TOTAL}, .dec = {.tokens = tokens, .n_known = n}};
    memcpy(tokens, text, (size_t)n * sizeof *text);
    int32_t k = p->propose(p, &q, tokens + n, max);
    memcpy(out, tokens + n, (size_t)k * sizeof *out);
    return k;
}

#define EXPECT(p, text, max, ...)                                                                  \
    do {                                                                                           \
        const int32_t want_[] = {__VA_ARGS__};                                                     \
        int32_t got_[MAX_DRAFT + 2], n_ = ask(p, text, (int32_t)(sizeof(text) / sizeof *(text)), max, got_); \
        assert_int_equal(n_, (int)(sizeof want_ / sizeof *want_));                                 \
        assert_memory_equal(got_, want_, sizeof want_);                                            \
    } while (0)

static void test_what_followed_the_last_time(void **state)
{
    const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3}, cycle[] = {9, 1, 2, 1, 2}, fresh[] = {1, 2, 3, 4, 5, 6};
    int32_t none[MAX_DRAFT];
    (void)state;
    nrd_proposer *p = proposer(2, 4);
    EXPECT(p, text, 64, 4, 5, 6, 7, 8, 9);
    nrd_proposer_free(p);
    p = proposer(2, 4);
    EXPECT(p, text, 2, 4, 5);
    nrd_proposer_free(p);
    p = proposer(2, 4);
    EXPECT(p, cycle, 64, 1, 2, 1, 2, 1, 2); /* goes on into itself */
    nrd_proposer_free(p);
    p = proposer(2, 4);
    assert_int_equal(ask(p, fresh, 6, 64, none), 0);
    nrd_proposer_free(p);
    p = proposer(3, 4); /* two are too few */
    assert_int_equal(ask(p, text, 11, 64, none), 0);
    nrd_proposer_free(p);
}

static void test_the_longest_repeat_counts_then_the_newest(void **state)
{
    const int32_t longest[] = {1, 2, 3, 40, 9, 2, 3, 50, 8, 1, 2, 3}, newest[] = {2, 3, 40, 9, 2, 3, 50, 8, 2, 3};
    (void)state;
    nrd_proposer *p = proposer(2, 4);
    EXPECT(p, longest, 1, 40);
    nrd_proposer_free(p);
    p = proposer(2, 2);
    EXPECT(p, longest, 1, 50); /* more than two are not looked at */
    nrd_proposer_free(p);
    p = proposer(2, 4);
    EXPECT(p, newest, 1, 50);
    nrd_proposer_free(p);
}

static void test_a_text_that_grows_is_followed(void **state)
{
    int32_t text[TOTAL], out[MAX_DRAFT];
    (void)state;
    nrd_proposer *p = proposer(2, 8);
    for (int32_t i = 0; i < TOTAL; i++) {
        text[i] = i % 17;
    }
    for (int32_t n = 2; n < TOTAL - MAX_DRAFT; n++) {
        int32_t k = ask(p, text, n, MAX_DRAFT, out);
        assert_int_equal(k, n < 19 ? 0 : MAX_DRAFT);
        assert_memory_equal(out, text + n, (size_t)k * sizeof *out);
        p->hear(p, &(nrd_draft_outcome){.n_proposed = k, .n_accepted = k});
    }
    assert_true(p->likely[0] > 0.9f && p->likely[MAX_DRAFT - 1] > 0.7f);
    for (int32_t i = 0; i < 40; i++) {
        p->hear(p, &(nrd_draft_outcome){.n_proposed = MAX_DRAFT});
    }
    ask(p, text, TOTAL - MAX_DRAFT, MAX_DRAFT, out);
    assert_true(p->likely[0] < 0.05f && p->likely[1] < p->likely[0]);
    nrd_proposer_free(p);
}

/* A repeat of one token is worth less than one of two, and what is learned of the one changes nothing of the other. */
static void test_one_token_is_enough_and_believed_less(void **state)
{
    const int32_t one[] = {5, 7, 8, 9, 3, 7}, two[] = {5, 7, 8, 9, 3, 5, 7}, newest[] = {7, 1, 7, 2, 3, 7};
    int32_t out[MAX_DRAFT];
    (void)state;
    nrd_proposer *p = proposer(1, 4);
    EXPECT(p, newest, 1, 2);
    nrd_proposer_free(p);
    p = proposer(1, 4);
    EXPECT(p, one, 2, 8, 9);
    const float first = p->likely[0];
    for (int32_t i = 0; i < 40; i++) {
        p->hear(p, &(nrd_draft_outcome){.n_proposed = 2});
    }
    ask(p, one, 6, 2, out);
    assert_true(p->likely[0] < first / 4);
    nrd_proposer *other = proposer(1, 4);
    ask(other, two, 7, 2, out);
    assert_true(other->likely[0] > 2 * first);
    nrd_proposer_free(other);
    nrd_proposer_free(p);
}

static int32_t kept(nrd_step_costs *c, int32_t n_tokens, float rate, int32_t n, int32_t most)
{
    nrd_draft_offer o = {.rate = rate, .n = n};
    nrd_costs_choose(c, n_tokens, &o, 1, most);
    return o.keep;
}

static void test_drafts_are_weighed_against_time(void **state)
{
    nrd_step_costs flat = {0}, steep = {0}, stair = {0};
    (void)state;
    for (int32_t n = 1; n <= 64; n++) {
        nrd_costs_hear(&flat, n, 1000000 + 1000 * (uint64_t)n);
        nrd_costs_hear(&steep, n, 1000000 * (uint64_t)n);
        nrd_costs_hear(&stair, n, n < 5 ? 1000000 + 1000 * (uint64_t)n : 100000000);
    }
    assert_int_equal(kept(&flat, 1, 0.9f, 8, 64), 8);
    assert_int_equal(kept(&flat, 1, 0.9f, 8, 3), 3);
    assert_int_equal(kept(&flat, 1, 0, 8, 64), 0);
    assert_int_equal(kept(&steep, 1, 0.9f, 8, 64), 0);
    assert_int_equal(kept(&steep, 1, 2, 8, 64), 8); /* asked for */
    assert_int_equal(kept(&stair, 1, 0.9f, 8, 64), 3); /* a step of five is dear: four tokens are kept, not more */
    for (int i = 0; i < 60; i++) { /* what was cheap becomes dear: one step that was held up says nothing, many do */
        for (int32_t n = 5; n <= 64; n++) {
            nrd_costs_hear(&flat, n, 100000000);
        }
        assert_true(i > 0 || kept(&flat, 1, 0.9f, 8, 64) == 8);
    }
    assert_int_equal(kept(&flat, 1, 0.9f, 8, 64), 3);
    int32_t tries = 0;
    for (int i = 0; i < 8000; i++) { /* a size that was dear is tried again for a hundredth of the time: 8 of 800 */
        tries += kept(&steep, 1, 0.9f, 8, 64) > 0;
    }
    assert_in_range(tries, 9, 10);
}

/* A network guesses a token of every draft in a pass, and has to catch up first. */
static void test_guesses_of_a_network_are_weighed_too(void **state)
{
    nrd_step_costs model = {0}, cheap = {.like = &model, .share = 0.01f}, dear = {0};
    (void)state;
    for (int32_t n = 1; n <= 64; n++) {
        nrd_costs_hear(&model, n, 1000000 + 1000 * (uint64_t)n);
        nrd_costs_hear(&dear, n, 900000);
    }
    for (int i = 0; i < 4; i++) {
        const struct {
            const nrd_step_costs *passes;
            int32_t lag, keep;
        } rows[] = {{&cheap, 0, 8}, {&dear, 0, 0}, {&cheap, 500, 8}, {&cheap, 3000000, 0}};
        nrd_draft_offer o = {.rate = 0.9f, .n = 8, .passes = rows[i].passes, .lag = rows[i].lag};
        model.refused_ns = 0;
        nrd_costs_choose(&model, 1, &o, 1, 64);
        assert_int_equal(o.keep, rows[i].keep);
    }
    nrd_draft_offer many[20]; /* a pass serves all drafts at once: what is dear for one is not for twenty */
    for (int i = 0; i < 20; i++) {
        many[i] = (nrd_draft_offer){.rate = 0.8f, .n = 1, .passes = &dear};
    }
    nrd_step_costs slow = {0};
    for (int32_t n = 1; n <= 64; n++) {
        nrd_costs_hear(&slow, n, 2000000);
    }
    nrd_costs_choose(&slow, 20, many, 20, 64);
    assert_int_equal(many[0].keep + many[19].keep, 2);
}

static void test_the_likeliest_tokens_are_kept(void **state)
{
    nrd_draft_offer o[3] = {{.rate = 0.9f, .n = 6}, {.rate = 0.3f, .n = 6}, {.rate = 0.8f, .n = 1}};
    nrd_step_costs c = {0};
    (void)state;
    nrd_costs_hear(&c, 3, 1000000); /* nothing larger ran yet */
    nrd_costs_choose(&c, 3, o, 3, 5);
    assert_int_equal(o[0].keep + o[1].keep + o[2].keep, 5);
    assert_int_equal(o[0].keep, 4);
    assert_int_equal(o[1].keep, 0);
    assert_int_equal(o[2].keep, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_followed_the_last_time),
        cmocka_unit_test(test_the_longest_repeat_counts_then_the_newest),
        cmocka_unit_test(test_a_text_that_grows_is_followed),
        cmocka_unit_test(test_one_token_is_enough_and_believed_less),
        cmocka_unit_test(test_drafts_are_weighed_against_time),
        cmocka_unit_test(test_guesses_of_a_network_are_weighed_too),
        cmocka_unit_test(test_the_likeliest_tokens_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
