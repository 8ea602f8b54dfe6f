/* SPDX-License-Identifier: Apache-2.0
 * Log probabilities of a prompt's tokens, against the definition in double. */
#include "base/logits.h"
#include "executor/scores.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 3000, TOP = 5 };

static float row[MOST];
static uint32_t state = 1;

static float draw(float width)
{
    state = state * 1664525u + 1013904223u;
    return ((float)(state >> 8) / (float)(1 << 24) - 0.5f) * width;
}

static double exact(int32_t n)
{
    double peak = -INFINITY, sum = 0;
    for (int32_t i = 0; i < n; i++) {
        peak = (double)row[i] > peak ? (double)row[i] : peak;
    }
    for (int32_t i = 0; i < n; i++) {
        sum += exp((double)row[i] - peak);
    }
    return peak + log(sum);
}

static void test_sums_are_those_of_the_definition(void **unused)
{
    (void)unused;
    for (int32_t n = 1; n <= MOST; n += 1 + n / 7) {
        for (float width = 0; width < 400; width = width * 3 + 1) {
            for (int32_t i = 0; i < n; i++) {
                row[i] = draw(width) + (n % 3 == 0 ? 1e4f : 0);
            }
            if (n > 4) {
                row[n / 2] = -INFINITY; /* a token that a mask forbids */
            }
            assert_true(fabs(nrd_log_sum_exp(row, n) - exact(n)) < 1e-6);
        }
    }
}

static void test_ranks_and_the_best(void **unused)
{
    int32_t tokens[4] = {3, 1, 2, 9999};
    nrd_exec_scores *s = NULL;
    nrd_seq q = {.req = {.n_prompt = 4}, .dec = {.tokens = tokens}};
    const int32_t n = 700;
    (void)unused;
    assert_null(nrd_exec_scores_new(&s, 4, TOP));
    for (int32_t pos = 0; pos < 4; pos++) { /* the last position speaks about a token that is not the prompt's */
        for (int32_t i = 0; i < n; i++) {
            row[i] = draw(20);
        }
        nrd_exec_scores_row(s, &q, pos, row, n);
        if (pos >= 2) {
            continue;
        }
        const int32_t id = tokens[pos + 1];
        int32_t above = 0;
        assert_true(fabs((double)s->log_probs[pos + 1] - ((double)row[id] - exact(n))) < 1e-5);
        for (int32_t i = 0; i < n; i++) {
            above += row[i] > row[id];
        }
        assert_int_equal(s->ranks[pos + 1], above + 1);
        for (int32_t k = 0; k < TOP; k++) {
            const int32_t best = s->top_ids[(pos + 1) * TOP + k];
            above = 0;
            for (int32_t i = 0; i < n; i++) {
                above += row[i] > row[best];
            }
            assert_int_equal(above, k);
        }
    }
    assert_int_equal(s->top_ids[0], -1);
    assert_int_equal(s->ranks[0], 0);
    assert_true(isinf(s->log_probs[3]) && s->ranks[3] == 0); /* a row of a prompt table is no token of the vocabulary */
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_are_those_of_the_definition),
        cmocka_unit_test(test_ranks_and_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
