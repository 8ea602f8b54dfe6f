/* SPDX-License-Identifier: Apache-2.0
 * The account of the memory that requests have: its two limits, and that it always comes back to nothing. */
#include "host.h"

#include "core/claim.h"
#include "nereid/server.h"

enum { PIECE = 64 << 10, THREADS = 4, ROUNDS = 20000 };

static int unlimited(void **state)
{
    (void)state;
    nrd_server_limit_memory(0, 0);
    return nrd_server_claimed() == 0 ? 0 : -1;
}

static void without_limits_everything_is_counted(void **state)
{
    nrd_claim c = {0};
    (void)state;

    OK(nrd_server_claim(&c, PIECE, "a test"));
    OK(nrd_server_claim(&c, 2 * PIECE, "a test"));
    OK(nrd_server_claim(NULL, PIECE, "a test"));
    assert_int_equal(c.bytes, 3 * PIECE);
    assert_int_equal(nrd_server_claimed(), 4 * PIECE);
    nrd_server_unclaim(&c, PIECE);
    assert_int_equal(c.bytes, 2 * PIECE);
    nrd_server_unclaim(&c, NRD_CLAIM_ALL);
    nrd_server_unclaim(&c, NRD_CLAIM_ALL); /* nothing is left to give */
    assert_int_equal(c.bytes, 0);
    assert_int_equal(nrd_server_claimed(), PIECE);
    nrd_server_unclaim(NULL, PIECE);
}

static void small_pieces_are_not_counted(void **state)
{
    nrd_claim c = {0};
    (void)state;

    OK(nrd_server_claim(&c, NRD_CLAIM_LEAST - 1, "a test"));
    assert_int_equal(nrd_server_claimed(), 0);
    nrd_server_unclaim(&c, NRD_CLAIM_LEAST - 1);
    assert_int_equal(nrd_server_claimed(), 0);
    OK(nrd_server_claim(&c, NRD_CLAIM_LEAST, "a test"));
    assert_int_equal(nrd_server_claimed(), NRD_CLAIM_LEAST);
    nrd_server_unclaim(&c, NRD_CLAIM_LEAST);
}

static void one_request_has_at_most_its_share(void **state)
{
    nrd_claim c = {0}, other = {0};
    (void)state;

    nrd_server_limit_memory(10 * PIECE, 2 * PIECE);
    OK(nrd_server_claim(&c, 2 * PIECE, "its body"));
    REFUSED(nrd_server_claim(&c, PIECE, "its answer"), INVALID_ARG, "its answer");
    REFUSED(nrd_server_claim(&c, UINT64_MAX, "its answer"), INVALID_ARG, "--max-request-memory-mb");
    REFUSED(nrd_server_claim(NULL, 3 * PIECE, "a tensor"), INVALID_ARG, "--max-request-memory-mb");
    assert_int_equal(c.bytes, 2 * PIECE); /* what was refused is not counted */
    assert_int_equal(nrd_server_claimed(), 2 * PIECE);
    OK(nrd_server_claim(&other, 2 * PIECE, "its body"));
    nrd_server_unclaim(&c, NRD_CLAIM_ALL);
    nrd_server_unclaim(&other, NRD_CLAIM_ALL);
}

static void all_together_have_at_most_theirs(void **state)
{
    nrd_claim a = {0}, b = {0};
    (void)state;

    nrd_server_limit_memory(3 * PIECE, 0);
    OK(nrd_server_claim(&a, 2 * PIECE, "its body"));
    REFUSED(nrd_server_claim(&b, 2 * PIECE, "its body"), UNAVAILABLE, "--max-inflight-memory-mb");
    REFUSED(nrd_server_claim(&b, UINT64_MAX, "its body"), UNAVAILABLE, "--max-inflight-memory-mb");
    assert_int_equal(b.bytes, 0);
    assert_int_equal(nrd_server_claimed(), 2 * PIECE);
    nrd_server_unclaim(&a, NRD_CLAIM_ALL);
    OK(nrd_server_claim(&b, 2 * PIECE, "its body"));
    nrd_server_unclaim(&b, 2 * PIECE);
}

static void claims_that_have_joined_have_one_share_together(void **state)
{
    nrd_claim whole = {0}, part = {0}, other = {0};
    (void)state;

    nrd_server_limit_memory(10 * PIECE, 3 * PIECE);
    OK(nrd_server_claim(&whole, PIECE, "its body"));
    OK(nrd_server_claim(&part, PIECE, "an input"));
    nrd_server_claim_join(&part, &whole); /* with what they have */
    nrd_server_claim_join(&part, &other); /* once is enough: other stays apart */
    OK(nrd_server_claim(&part, PIECE, "its answer"));
    REFUSED(nrd_server_claim(&whole, PIECE, "its answer"), INVALID_ARG, "--max-request-memory-mb");
    REFUSED(nrd_server_claim(&part, PIECE, "its answer"), INVALID_ARG, "has 196608 already");
    OK(nrd_server_claim(&other, 3 * PIECE, "its body"));
    assert_int_equal(whole.bytes, PIECE);
    assert_int_equal(part.bytes, 2 * PIECE);
    assert_int_equal(nrd_server_claimed(), 6 * PIECE);
    nrd_server_unclaim(&whole, NRD_CLAIM_ALL); /* the account lives on with the part */
    OK(nrd_server_claim(&part, PIECE, "its answer"));
    REFUSED(nrd_server_claim(&part, PIECE, "its answer"), INVALID_ARG, "has 196608 already");
    nrd_server_unclaim(&part, PIECE);
    nrd_server_unclaim(&part, NRD_CLAIM_ALL);
    nrd_server_unclaim(&other, NRD_CLAIM_ALL);
}

static void what_all_may_not_have_is_in_no_account(void **state)
{
    nrd_claim whole = {0}, part = {0};
    (void)state;

    nrd_server_limit_memory(2 * PIECE, 2 * PIECE);
    nrd_server_claim_join(&part, &whole);
    OK(nrd_server_claim(NULL, PIECE, "another's"));
    REFUSED(nrd_server_claim(&part, 2 * PIECE, "its body"), UNAVAILABLE, "--max-inflight-memory-mb");
    nrd_server_unclaim(NULL, PIECE);
    OK(nrd_server_claim(&part, 2 * PIECE, "its body")); /* nothing was left behind */
    nrd_server_unclaim(&part, NRD_CLAIM_ALL);
    nrd_server_unclaim(&whole, NRD_CLAIM_ALL);
}

static void tokens_are_those_of_all_that_have_joined(void **state)
{
    nrd_claim whole = {0}, part = {0}, apart = {0};
    (void)state;

    nrd_server_claim_join(&whole, &whole);
    nrd_server_claim_join(&part, &whole);
    nrd_server_count_tokens(&part, 5);
    nrd_server_count_tokens(&whole, 2);
    nrd_server_count_tokens(&apart, 9); /* of no account */
    assert_int_equal(nrd_server_tokens(&whole), 7);
    assert_int_equal(nrd_server_tokens(&apart), 0);
    nrd_server_unclaim(&part, NRD_CLAIM_ALL);
    assert_int_equal(nrd_server_tokens(&whole), 7); /* what was used stays used */
    nrd_server_unclaim(&whole, NRD_CLAIM_ALL);
}

/* ---- threads ---- */

static nrd_claim shared;

static void *take_and_give(void *arg)
{
    uint64_t *most = arg;
    for (int i = 0; i < ROUNDS; i++) {
        nrd_error *err = nrd_claim_take(i % 2 ? &shared : NULL, PIECE, "a test");
        const uint64_t sum = nrd_server_claimed();
        *most = sum > *most ? sum : *most;
        if (!err) {
            nrd_server_unclaim(i % 2 ? &shared : NULL, PIECE);
        }
        nrd_error_free(err);
    }
    return NULL;
}

static void threads_never_have_more_together(void **state)
{
    pthread_t threads[THREADS];
    uint64_t most[THREADS] = {0};
    (void)state;

    nrd_server_limit_memory(2 * PIECE, 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &most[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_in_range(most[i], PIECE, 2 * PIECE);
    }
    assert_int_equal(shared.bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_limits_everything_is_counted, unlimited, unlimited),
        cmocka_unit_test_setup_teardown(small_pieces_are_not_counted, unlimited, unlimited),
        cmocka_unit_test_setup_teardown(one_request_has_at_most_its_share, unlimited, unlimited),
        cmocka_unit_test_setup_teardown(all_together_have_at_most_theirs, unlimited, unlimited),
        cmocka_unit_test_setup_teardown(claims_that_have_joined_have_one_share_together, unlimited, unlimited),
        cmocka_unit_test_setup_teardown(what_all_may_not_have_is_in_no_account, unlimited, unlimited),
        cmocka_unit_test_setup_teardown(tokens_are_those_of_all_that_have_joined, unlimited, unlimited),
        cmocka_unit_test_setup_teardown(threads_never_have_more_together, unlimited, unlimited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
