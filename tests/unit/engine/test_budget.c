/* SPDX-License-Identifier: Apache-2.0
 * How many drafted tokens a step computes, on machines whose time is a function of the rows and of whether there are drafts: drafts
 * never cost more than a fiftieth of the tokens per second, and give what they can where rows are cheap. Time is the machine's;
 * nothing here depends on the real one. */
#include "engine/speculate/budget.h"
#include "engine/speculate/proposer.h"

#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MAX_SEQS = 256, DRAFT = 4, STEPS = 800, MOST = 128 };

/* Rows are free up to `flat`, where the weights are what is read, and go up in stairs of `stair` rows from there on. */
typedef struct machine {
    const char *name;
    int32_t flat, stair;
    float ns_per_row; /* behind `flat`; and a tenth of it before */
    uint64_t drafted_ns; /* more of a step that has drafts, as where only steps without are recorded */
    uint64_t waits_ns;   /* more of a step that is planned only when the one before has been read */
    int32_t fill;        /* steps are filled up to multiples of so many tokens; 0: they are not */
    float offers;        /* how often a sequence has a draft to offer; 0: always */
} machine;

static int32_t fill; /* of the machine that runs */

static int32_t filled_up(int32_t n_tokens)
{
    return (n_tokens + fill - 1) / fill * fill;
}

static uint64_t cost_of(const machine *m, int32_t n)
{
    n = m->fill > 0 ? filled_up(n) : n;
    const int32_t stairs = (n + m->stair - 1) / m->stair * m->stair;
    const int32_t beyond = stairs > m->flat ? stairs - m->flat : 0;
    return 1000000 + (uint64_t)(m->ns_per_row * ((float)beyond + 0.1f * (float)n));
}

static float dice(uint64_t *state)
{
    *state = nrd_hash_u64(*state, 0x51);
    return (float)(*state >> 40) / (float)(1 << 24);
}

/* What the tokens are worth, in time that they take without drafts, in a unit of time; of at most so many sequences whose drafted tokens hold with
 * this probability each. recomputes: what holds of a draft that does not hold as a whole is computed again. come_and_go: half of the sequences to
 * all of them are there. */
static double speed(const machine *m, int32_t most, float holds, bool drafts, bool recomputes, bool come_and_go)
{
    static nrd_draft_offer offers[MAX_SEQS];
    nrd_step_costs c = {.recomputes = recomputes, .filled_up = m->fill > 0 ? filled_up : NULL};
    float rate[MAX_SEQS];
    uint64_t seed = 11, ns = 0;
    double worth = 0;

    fill = m->fill;
    for (int32_t i = 0; i < most; i++) {
        rate[i] = 0.7f;
    }
    for (int32_t step = 0; step < STEPS; step++) {
        const int32_t n = come_and_go ? most - step * 7 % 97 * most / 194 : most;
        const bool ahead = m->waits_ns > 0 && (!drafts || c.rests); /* the last choices are not known: nobody guesses */
        int32_t rows = n, n_held = 0;
        uint64_t again_ns = 0;
        for (int32_t i = 0; i < n; i++) {
            const bool has_one = drafts && !ahead && (m->offers <= 0 || dice(&seed) < m->offers);
            offers[i] = (nrd_draft_offer){.n = has_one ? DRAFT : 0, .rate = rate[i]};
        }
        nrd_costs_choose(&c, n, offers, n, MOST);
        for (int32_t i = 0; i < n; i++) {
            int32_t held = 0;
            rows += offers[i].keep;
            while (held < offers[i].keep && dice(&seed) < holds) {
                held++;
            }
            nrd_proposer_learn(&rate[i], offers[i].keep, held);
            n_held += held;
            if (recomputes && held < offers[i].keep) {
                again_ns += cost_of(m, n + held) - cost_of(m, n); /* of the next step */
            }
        }
        const uint64_t took = cost_of(m, rows) + (rows > n ? m->drafted_ns : 0) + (ahead ? 0 : m->waits_ns);
        (rows > n ? nrd_costs_hear_drafted : ahead || m->waits_ns == 0 ? nrd_costs_hear : nrd_costs_hear_late)(&c, rows, took);
        nrd_costs_settle(&c, n, n_held, took + again_ns);
        ns += took + again_ns;
        worth += (double)cost_of(m, n) * (n + n_held) / n;
    }
    return worth / (double)ns;
}

static const machine machines[] = {
    {"bound by weights", 4096, 1, 0, 0, 0, 0, 0},
    {"stairs of 16 from 64 rows on", 64, 16, 15000, 0, 0, 0, 0},
    {"stairs of 64 from 128 rows on", 128, 64, 8000, 0, 0, 0, 0},
    {"every row the same", 0, 1, 900000, 0, 0, 0, 0},
    {"only steps without drafts are recorded", 4096, 1, 0, 1000000, 0, 0, 0},
    {"the same, planned ahead", 4096, 1, 0, 1000000, 40000, 0, 0},
    {"filled up to 16, planned ahead", 16, 16, 15000, 200000, 40000, 16, 0},
    {"launches: what is not planned ahead waits long", 4096, 1, 0, 250000, 250000, 16, 0},
    {"the same, some have a draft", 4096, 1, 0, 250000, 250000, 16, 0.1f},
    {"the same, drafts are dear, too", 32, 16, 5000, 200000, 300000, 16, 0.3f},
};
enum { N_MACHINES = sizeof machines / sizeof *machines };

static void test_drafts_never_lose_more_than_a_fiftieth(void **state)
{
    static const int32_t sizes[] = {1, 16, 32, 256};
    (void)state;
    for (int i = 0; i < N_MACHINES; i++) {
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            for (int h = 0; h < 3; h++) {
                const float holds = (const float[]){0.02f, 0.3f, 0.7f}[h];
                for (int how = 0; how < 4; how++) {
                    const bool again = how & 1, come_and_go = how & 2;
                    const double off = speed(&machines[i], sizes[k], holds, false, false, come_and_go);
                    const double on = speed(&machines[i], sizes[k], holds, true, again, come_and_go);
                    if (on < 0.98 * off) {
                        fail_msg("%s, %d sequences%s, %.2f hold%s: %.4f of what it is without drafts", machines[i].name, sizes[k],
                                 come_and_go ? " that come and go" : "", (double)holds, again ? ", states" : "", on / off);
                    }
                }
            }
        }
    }
}

static void test_drafts_win_where_rows_are_cheap(void **state)
{
    (void)state;
    /* 1 + 0.9 + ... + 0.9^4 tokens a step are 4.09, 1 + 0.6 + ... + 0.6^4 are 2.31 */
    assert_true(speed(&machines[0], 1, 0.9f, true, false, false) > 3.7 * speed(&machines[0], 1, 0.9f, false, false, false));
    assert_true(speed(&machines[1], 8, 0.6f, true, false, false) > 2 * speed(&machines[1], 8, 0.6f, false, false, false));
    assert_true(speed(&machines[2], 32, 0.6f, true, false, false) > 1.5 * speed(&machines[2], 32, 0.6f, false, false, false));
}

/* Steps without drafts were held up when they were heard of; later ones, though late, take less. */
static void test_what_was_held_up_is_not_believed_for_long(void **state)
{
    enum { N = 16 };
    nrd_step_costs c = {0};
    nrd_draft_offer offers[N];
    int32_t kept = 0;
    (void)state;
    nrd_costs_hear_late(&c, N, 3000000);
    for (int i = 0; i < 4; i++) {
        nrd_costs_hear(&c, N, 3000000);
        nrd_costs_hear_drafted(&c, N + 16, 1500000);
    }
    for (int i = 0; i < 20; i++) {
        nrd_costs_hear_late(&c, N, 1000000);
    }
    for (int i = 0; i < N; i++) {
        offers[i] = (nrd_draft_offer){.n = 1, .rate = 0.2f};
    }
    nrd_costs_choose(&c, N, offers, N, MOST);
    for (int i = 0; i < N; i++) {
        kept += offers[i].keep;
    }
    assert_int_equal(kept, 0);
}

/* Steps until drafts that are not worth it are tried; such a step was recorded before, where recorded_ns is not 0. */
static int steps_to_a_trial(uint64_t recorded_ns)
{
    enum { N = 16 };
    nrd_step_costs c = {0};
    int steps = 0;
    nrd_costs_hear(&c, N, 1000000);
    nrd_costs_hear_drafted(&c, 2 * N, 2000000);
    nrd_costs_hear_recorded(&c, N, recorded_ns);
    for (bool kept = false; !kept && steps < 10000; steps++) {
        nrd_draft_offer offers[N];
        for (int i = 0; i < N; i++) {
            offers[i] = (nrd_draft_offer){.n = 1, .rate = 0.1f};
        }
        nrd_costs_choose(&c, N, offers, N, MOST);
        kept = offers[0].keep > 0;
    }
    return steps;
}

static void test_trials_wait_for_what_was_recorded(void **state)
{
    (void)state;
    const int none = steps_to_a_trial(0), some = steps_to_a_trial(5000000); /* 4 ms more are a hundredth of 400 steps */
    assert_in_range(none, 50, 150);
    assert_in_range(some - none, 380, 420);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafts_never_lose_more_than_a_fiftieth),
        cmocka_unit_test(test_drafts_win_where_rows_are_cheap),
        cmocka_unit_test(test_what_was_held_up_is_not_believed_for_long),
        cmocka_unit_test(test_trials_wait_for_what_was_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
