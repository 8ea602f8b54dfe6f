/* SPDX-License-Identifier: Apache-2.0
 * Masks made by the worker are those made at once, and nothing is lost when work comes in quick
 * succession or the worker goes while it works. */
#include "engine/run/mask_worker.h"
#include "guided/guided.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { N_TOKENS = 26 * 26, N_STATES = 8 };

static const char *get_token(void *user, int32_t id, size_t *out_n)
{
    static char bytes[2];
    (void)user;
    bytes[0] = (char)('a' + id / 26);
    bytes[1] = (char)('a' + id % 26);
    *out_n = 2;
    return bytes;
}

static void test_masks_are_there_after_waiting(void **state)
{
    nrd_guide_vocab *v = NULL;
    nrd_mask_worker *w = NULL;
    (void)state;
    assert_null(nrd_guide_vocab_new(&v, N_TOKENS, get_token, NULL));
    assert_null(nrd_mask_worker_new(&w));
    nrd_mask_worker_wait(w); /* nothing begun */
    for (int round = 0; round < 200; round++) {
        nrd_guide *made[N_STATES], *other = NULL;
        nrd_guide_state *states[N_STATES], *s;
        for (int i = 0; i < N_STATES; i++) {
            static const char *const texts[] = {"[a-f]*", "(ab|cd)+", "a[b-y]{3,9}", "zz|za"};
            assert_null(nrd_guide_new(&made[i], v, "regex", texts[i % 4]));
            states[i] = nrd_guide_state_new(made[i]);
            assert_false(nrd_guide_has_mask(states[i]));
        }
        nrd_mask_worker_begin(w, states, N_STATES);
        nrd_mask_worker_wait(w);
        for (int i = 0; i < N_STATES; i++) {
            size_t words, n = 0;
            assert_true(nrd_guide_has_mask(states[i]));
            const uint32_t *mask = nrd_guide_mask(states[i], &words);
            for (size_t k = 0; k < words; k++) {
                n += (size_t)__builtin_popcount(mask[k]);
            }
            static const size_t want[] = {36, 2, 24, 2};
            assert_int_equal(n, want[i % 4]);
            nrd_guide_state_free(states[i]);
            nrd_guide_unref(made[i]);
        }
        if (round == 199) { /* it ends when its work is done */
            assert_null(nrd_guide_new(&other, v, "regex", "[a-z]*"));
            s = nrd_guide_state_new(other);
            nrd_mask_worker_begin(w, &s, 1);
            nrd_mask_worker_free(w);
            assert_true(nrd_guide_has_mask(s));
            nrd_guide_state_free(s);
            nrd_guide_unref(other);
        }
    }
    nrd_guide_vocab_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_masks_are_there_after_waiting)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
