/* SPDX-License-Identifier: Apache-2.0
 * Tokens that may not come next: n-grams that would come again, found as the definition says and in linear time. */
#include "engine/decode/decode.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 1000 };

/* By the definition. */
static int32_t plain(const int32_t *tokens, int32_t n, int32_t g, int32_t *out)
{
    int32_t k = 0;
    for (int32_t i = 0; i + g <= n; i++) {
        const int32_t next = tokens[i + g - 1];
        if (next >= 0 && next < VOCAB && !memcmp(tokens + i, tokens + n - (g - 1), (size_t)(g - 1) * sizeof *tokens)) {
            out[k++] = next;
        }
    }
    return k;
}

static void test_repeated_n_grams_are_those_of_the_definition(void **state)
{
    int32_t tokens[64], want[64], got[64];
    nrd_seq *q = calloc(1, sizeof *q);
    (void)state;
    srand(5);
    for (int round = 0; round < 20000; round++) {
        const int32_t n = rand() % 64, g = 1 + rand() % 8, letters = 1 + rand() % 3;
        for (int32_t i = 0; i < n; i++) {
            tokens[i] = rand() % 20 == 0 ? VOCAB : rand() % letters; /* some are none of the vocabulary: a prompt table's */
        }
        q->req.sampling.no_repeat_ngram_size = g;
        const int32_t k = nrd_decode_banned(q, tokens, n, VOCAB, got);
        assert_int_equal(k, n >= g - 1 ? plain(tokens, n, g, want) : 0);
        assert_memory_equal(got, want, (size_t)k * sizeof *got);
    }
    free(q);
}

static void test_a_text_that_repeats_itself_takes_no_quadratic_time(void **state)
{
    enum { N = 200000 };
    int32_t *tokens = calloc(N, sizeof *tokens), *out = calloc(N, sizeof *out);
    nrd_seq *q = calloc(1, sizeof *q);
    (void)state;
    q->req.sampling.no_repeat_ngram_size = N / 2;
    const uint64_t begin = nrd_now_ns();
    for (int round = 0; round < 10; round++) {
        tokens[N - 2 - round] = round % 2; /* the last places of long runs are the worst */
        nrd_decode_banned(q, tokens, N, VOCAB, out);
    }
    assert_true(nrd_now_ns() - begin < 5000000000u); /* each of 10^10 comparisons otherwise */
    free(q);
    free(out);
    free(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repeated_n_grams_are_those_of_the_definition),
        cmocka_unit_test(test_a_text_that_repeats_itself_takes_no_quadratic_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
