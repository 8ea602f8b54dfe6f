/* SPDX-License-Identifier: Apache-2.0
 * Masks made by the worker are those made at once, and nothing is lost when work comes in quick
 * succession or the worker goes while it works. */
#include "engine/run/mask_worker.h"
#include "base/str.h"
#include "guided/guided.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const uint64_t FOR_EVER = 3600ull * 1000000000ull;

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
    assert_null(nrd_mask_worker_new(&w, N_STATES, NULL, NULL));
    nrd_mask_worker_wait(w, FOR_EVER); /* nothing begun */
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
        nrd_mask_worker_wait(w, FOR_EVER);
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
        if (round == 199) { /* it ends while it works, and gives back what it has */
            assert_null(nrd_guide_new(&other, v, "regex", "[a-z]*"));
            s = nrd_guide_state_new(other);
            nrd_mask_worker_begin(w, &s, 1);
            nrd_mask_worker_free(w);
            assert_false(nrd_guide_is_lent(other));
            nrd_guide_state_free(s);
            nrd_guide_unref(other);
        }
    }
    nrd_guide_vocab_free(v);
}

static sem_t ready;

static void on_ready(void *user)
{
    (void)user;
    sem_post(&ready);
}

/* Places whose number of ways on grows with each letter: its first mask passes GUIDE_WORK. */
static nrd_guide_state *slow_state(const nrd_guide_vocab *v)
{
    nrd_guide *g = NULL;
    nrd_str text = {0};
    nrd_str_puts(&text, "(");
    for (char c = 'a'; c <= 'x'; c++) {
        nrd_str_printf(&text, "[%c-%c]?", c, c + 2);
    }
    nrd_str_puts(&text, "){300}");
    assert_null(nrd_guide_new(&g, v, "regex", nrd_str_cstr(&text)));
    nrd_guide_state *s = nrd_guide_state_new(g);
    nrd_guide_unref(g);
    nrd_str_fini(&text);
    return s;
}

/* limits: GUIDE_STEP_MS */
static void test_a_slow_mask_holds_up_no_other(void **state)
{
    nrd_guide_vocab *v = NULL;
    nrd_mask_worker *w = NULL;
    nrd_guide *g = NULL;
    size_t words;
    (void)state;
    assert_int_equal(sem_init(&ready, 0, 0), 0);
    assert_null(nrd_guide_vocab_new(&v, N_TOKENS, get_token, NULL));
    assert_null(nrd_mask_worker_new(&w, N_STATES, on_ready, NULL));
    nrd_guide_state *slow[3] = {slow_state(v), NULL, slow_state(v)};
    slow[1] = nrd_guide_state_copy(slow[0]);
    const nrd_guide *guides[2] = {nrd_guide_state_guide(slow[0]), nrd_guide_state_guide(slow[2])};
    nrd_mask_worker_begin(w, slow, 3);
    nrd_mask_worker_wait(w, 0);
    assert_true(nrd_guide_is_lent(guides[0]) && nrd_guide_is_lent(guides[1]));
    for (int round = 0; round < 50; round++) {
        assert_null(nrd_guide_new(&g, v, "regex", "(ab|cd)+"));
        nrd_guide_state *s = nrd_guide_state_new(g);
        nrd_mask_worker_begin(w, &s, 1);
        nrd_mask_worker_wait(w, FOR_EVER);
        assert_false(nrd_guide_is_lent(g));
        assert_true(nrd_guide_has_mask(s));
        nrd_guide_state_free(s);
        nrd_guide_unref(g);
    }
    while (nrd_guide_is_lent(guides[0]) || nrd_guide_is_lent(guides[1])) {
        sem_wait(&ready);
    }
    for (int i = 0; i < 2; i++) {
        assert_null(nrd_guide_mask(slow[2 * i], &words));
        assert_non_null(strstr(nrd_guide_limit(guides[i]), "GUIDE_WORK"));
    }
    for (int i = 0; i < 3; i++) {
        nrd_guide_state_free(slow[i]);
    }
    nrd_mask_worker_free(w);
    nrd_guide_vocab_free(v);
    sem_destroy(&ready);
}

/* What nobody has a state of any more is given back without more work. */
static void test_a_slow_mask_that_nobody_wants_is_dropped(void **state)
{
    nrd_guide_vocab *v = NULL;
    nrd_mask_worker *w = NULL;
    (void)state;
    assert_int_equal(sem_init(&ready, 0, 0), 0);
    assert_null(nrd_guide_vocab_new(&v, N_TOKENS, get_token, NULL));
    assert_null(nrd_mask_worker_new(&w, 2, on_ready, NULL));
    for (int round = 0; round < 20; round++) { /* more than the worker has room for */
        nrd_guide_state *s[2] = {slow_state(v), slow_state(v)};
        nrd_mask_worker_begin(w, s, 2);
        nrd_mask_worker_wait(w, 0);
        nrd_guide_state_free(s[0]);
        nrd_guide_state_free(s[1]);
    }
    nrd_mask_worker_free(w);
    nrd_guide_vocab_free(v);
    sem_destroy(&ready);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_are_there_after_waiting),
        cmocka_unit_test(test_a_slow_mask_holds_up_no_other),
        cmocka_unit_test(test_a_slow_mask_that_nobody_wants_is_dropped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
