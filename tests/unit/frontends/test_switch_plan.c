/* SPDX-License-Identifier: Apache-2.0
 * Which models have to go: the rule alone, and against a slow search of all choices. */
#include "frontends/common/switch_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define ABSENT(b) {.state = NRD_SWITCH_ABSENT, .bytes = (b)}
#define IDLE(b, used) {.state = NRD_SWITCH_READY, .bytes = (b), .used_ns = (used)}
#define BUSY(b, used) {.state = NRD_SWITCH_READY, .bytes = (b), .used_ns = (used), .n_leases = 1}
#define PINNED(b) {.state = NRD_SWITCH_READY, .bytes = (b), .pinned = true}
#define N(a) (sizeof(a) / sizeof *(a))

static void test_what_fits_sends_nobody_away(void **state)
{
    nrd_switch_slot s[] = {ABSENT(4), IDLE(3, 1), IDLE(3, 2)};
    uint64_t room = 0;
    (void)state;
    assert_int_equal(nrd_switch_plan(s, N(s), 0, 10, &room), NRD_SWITCH_FITS);
    assert_int_equal(room, 10);
    assert_false(s[1].is_victim || s[2].is_victim);
}

static void test_the_least_recently_used_goes_first(void **state)
{
    nrd_switch_slot s[] = {ABSENT(4), IDLE(3, 9), IDLE(3, 2), IDLE(3, 5)};
    uint64_t room = 0;
    (void)state;
    assert_int_equal(nrd_switch_plan(s, N(s), 0, 10, &room), NRD_SWITCH_EVICT);
    assert_true(s[2].is_victim);
    assert_false(s[1].is_victim || s[3].is_victim);
}

static void test_nobody_goes_in_vain(void **state)
{
    nrd_switch_slot s[] = {ABSENT(8), IDLE(1, 1), IDLE(9, 2)}; /* the large one alone is enough */
    uint64_t room = 0;
    (void)state;
    assert_int_equal(nrd_switch_plan(s, N(s), 0, 10, &room), NRD_SWITCH_EVICT);
    assert_true(s[2].is_victim);
    assert_false(s[1].is_victim);
}

static void test_a_busy_one_goes_after_an_idle_one_and_is_waited_for(void **state)
{
    nrd_switch_slot s[] = {ABSENT(4), BUSY(5, 1), IDLE(5, 2)}, t[] = {ABSENT(8), BUSY(5, 1), IDLE(5, 2)};
    uint64_t room = 0;
    (void)state;
    assert_int_equal(nrd_switch_plan(s, N(s), 0, 10, &room), NRD_SWITCH_EVICT);
    assert_true(s[2].is_victim && !s[1].is_victim);
    assert_int_equal(nrd_switch_plan(t, N(t), 0, 10, &room), NRD_SWITCH_WAIT);
    assert_true(t[2].is_victim && t[1].is_victim); /* both, at once: all or none */
}

static void test_pinned_ones_stay_and_what_does_not_fit_beside_them_never_does(void **state)
{
    nrd_switch_slot s[] = {ABSENT(5), PINNED(6), IDLE(3, 1)}, t[] = {ABSENT(4), PINNED(6), IDLE(3, 1)};
    uint64_t room = 0;
    (void)state;
    assert_int_equal(nrd_switch_plan(s, N(s), 0, 10, &room), NRD_SWITCH_NEVER);
    assert_int_equal(room, 4);
    assert_false(s[1].is_victim || s[2].is_victim); /* and sends nobody away */
    assert_int_equal(nrd_switch_plan(t, N(t), 0, 10, &room), NRD_SWITCH_EVICT);
    assert_true(t[2].is_victim && !t[1].is_victim);
}

static void test_what_is_leaving_is_waited_for_before_others_go(void **state)
{
    nrd_switch_slot s[] = {ABSENT(5), {.state = NRD_SWITCH_LEAVING, .bytes = 6}, IDLE(3, 1)};
    uint64_t room = 0;
    (void)state;
    assert_int_equal(nrd_switch_plan(s, N(s), 0, 10, &room), NRD_SWITCH_WAIT);
    assert_false(s[1].is_victim || s[2].is_victim);
}

static void test_numbers_at_the_end_of_their_range_do_not_start_anew(void **state)
{
    nrd_switch_slot s[] = {ABSENT(UINT64_MAX), IDLE(UINT64_MAX, 1)};
    uint64_t room = 0;
    (void)state;
    assert_int_equal(nrd_switch_plan(s, N(s), 0, 10, &room), NRD_SWITCH_NEVER);
    assert_int_equal(nrd_switch_plan(s, N(s), 0, UINT64_MAX, &room), NRD_SWITCH_EVICT);
}

/* The newest use that any choice of victims could spare is what the plan's does, and none is superfluous. */
static void check_against_search(const nrd_switch_slot *s, size_t n, uint64_t budget, nrd_switch_verdict verdict)
{
    uint64_t held = 0, pinned = 0, freed = 0;
    bool busy = false, any = false;
    for (size_t i = 1; i < n; i++) {
        held += s[i].state == NRD_SWITCH_ABSENT ? 0 : s[i].bytes;
        pinned += s[i].state != NRD_SWITCH_ABSENT && s[i].pinned ? s[i].bytes : 0;
        freed += s[i].is_victim ? s[i].bytes : 0;
        busy = busy || (s[i].is_victim && s[i].n_leases > 0);
        any = any || s[i].is_victim;
        assert_false(s[i].is_victim && (s[i].pinned || s[i].state != NRD_SWITCH_READY));
    }
    assert_int_equal(verdict == NRD_SWITCH_NEVER, pinned > budget || s[0].bytes > budget - pinned);
    if (verdict == NRD_SWITCH_NEVER) {
        assert_false(any);
        return;
    }
    assert_int_equal(verdict == NRD_SWITCH_FITS, held + s[0].bytes <= budget);
    assert_true(held - freed + s[0].bytes <= budget);
    assert_int_equal(verdict == NRD_SWITCH_WAIT, busy);
    for (size_t i = 1; i < n; i++) {
        assert_false(s[i].is_victim && held - freed + s[i].bytes + s[0].bytes <= budget);
    }
    bool fits_without_busy = false; /* then no busy one is a victim */
    for (uint32_t set = 0; set < 1u << (n - 1); set++) {
        uint64_t left = held;
        bool allowed = true;
        for (size_t i = 1; i < n; i++) {
            if (set >> (i - 1) & 1) {
                allowed = allowed && s[i].state == NRD_SWITCH_READY && !s[i].pinned && s[i].n_leases == 0;
                left -= s[i].state == NRD_SWITCH_ABSENT ? 0 : s[i].bytes;
            }
        }
        fits_without_busy = fits_without_busy || (allowed && left + s[0].bytes <= budget);
    }
    assert_int_equal(fits_without_busy, !busy);
}

static void test_random_choices_are_as_a_search_of_all_finds_them(void **state)
{
    unsigned seed = 20261123;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        nrd_switch_slot s[7] = {{0}};
        const size_t n = 2 + (size_t)(rand_r(&seed) % 6);
        uint64_t room = 0;
        const uint64_t budget = (uint64_t)(rand_r(&seed) % 40);
        s[0].bytes = (uint64_t)(rand_r(&seed) % 20);
        for (size_t i = 1; i < n; i++) {
            s[i].bytes = (uint64_t)(rand_r(&seed) % 12);
            s[i].state = rand_r(&seed) % 3 ? NRD_SWITCH_READY : NRD_SWITCH_ABSENT;
            s[i].used_ns = (uint64_t)(rand_r(&seed) % 100);
            s[i].pinned = rand_r(&seed) % 5 == 0;
            s[i].n_leases = rand_r(&seed) % 3 == 0;
            s[i].is_victim = rand_r(&seed) % 2; /* what an earlier plan left */
        }
        const nrd_switch_verdict v = nrd_switch_plan(s, n, 0, budget, &room);
        check_against_search(s, n, budget, v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_fits_sends_nobody_away),
        cmocka_unit_test(test_the_least_recently_used_goes_first),
        cmocka_unit_test(test_nobody_goes_in_vain),
        cmocka_unit_test(test_a_busy_one_goes_after_an_idle_one_and_is_waited_for),
        cmocka_unit_test(test_pinned_ones_stay_and_what_does_not_fit_beside_them_never_does),
        cmocka_unit_test(test_what_is_leaving_is_waited_for_before_others_go),
        cmocka_unit_test(test_numbers_at_the_end_of_their_range_do_not_start_anew),
        cmocka_unit_test(test_random_choices_are_as_a_search_of_all_finds_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
