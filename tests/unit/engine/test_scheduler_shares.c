/* SPDX-License-Identifier: Apache-2.0
 * Who gets how much of a step: choices of one request, flows of several users, encoders' inputs beside answers. */
#include "scheduler_sim.h"

/* A cache, a scheduler and a plan for jobs that are made; one plan is enough where steps do not overlap. */
static void open_sim(sim *s, int32_t n_blocks, bool reuse)
{
    const nrd_kv_config kc = {.n_blocks = n_blocks, .block_tokens = BT, .reuse = reuse};
    s->n_blocks = n_blocks;
    assert_null(nrd_kv_new(&s->kv, &kc));
    assert_null(nrd_sched_new(&s->sched, &s->lim, s->kv));
    s->content = calloc((size_t)n_blocks, sizeof *s->content);
    assert_null(nrd_plan_init(&s->plans[0], &s->lim, s->kv));
}

static void close_sim(sim *s)
{
    for (int32_t i = 0; i < s->n_jobs; i++) {
        nrd_kv_table_fini(&s->jobs[i].tables[0]);
    }
    nrd_plan_fini(&s->plans[0]);
    nrd_sched_free(s->sched);
    nrd_kv_free(s->kv);
    free(s->content);
    free(s);
}

/* A request for seven choices, then another request: that one starts in the first step. No step has more than two of
 * the seven beside it, and none more than BOTH without it. */
static void test_choices_of_one_request_leave_room_for_others(void **state)
{
    enum { N = 8, PROMPT = 6, NEW = 5, BOTH = NRD_SCHED_BESIDE + 1 };
    sim *s = calloc(1, sizeof *s);
    rng r = {1};
    int32_t n_steps = 0, most = 0;
    (void)state;
    s->lim = (nrd_sched_limits){.max_batch_size = 16, .max_beam_width = 1, .max_num_tokens = 64,
                                .chunked_context = true, .choices_at_once = BOTH};
    s->n_jobs = N;
    for (int32_t i = 0; i < N; i++) {
        nrd_seq *q = &s->jobs[i].q;
        make_job(s, &s->jobs[i], &r);
        q->req.n_prompt = PROMPT;
        q->req.max_total = PROMPT + NEW;
        for (int32_t t = 0; t < PROMPT; t++) {
            s->jobs[i].tokens[t] = i < N - 1 ? t : t + 1;
        }
        q->req.stop.n = 0;
        q->req.no_reuse = q->req.may_jump = false;
        q->req.priority = 0;
        q->req.leader = i > 0 && i < N - 1 ? &s->jobs[0].q : NULL;
        q->req.group = i < N - 1 ? 7 : 0;
        s->jobs[i].start_step = 0;
        s->jobs[i].cancel_step = -1;
        nrd_decode_prepare(q);
    }
    open_sim(s, 100, true);
    for (feed(s); make_plan(s, 0); s->step++, feed(s)) {
        bool other = false;
        int32_t n_choices = 0;
        for (int32_t k = 0; k < s->plans[0].n_entries; k++) {
            const bool is_other = s->plans[0].entries[k].seq == &s->jobs[N - 1].q;
            other |= is_other;
            n_choices += !is_other;
        }
        assert_true(n_choices <= (other ? 2 : BOTH));
        assert_true(other || n_steps > 0);
        most = n_choices > most ? n_choices : most;
        n_steps++;
        finish_plan(s, 0);
    }
    assert_true(all_idle(s) && most > 2); /* when it had gone, more of them ran */
    close_sim(s);
}

/* A flow has FIRST sequences waiting when three others come with one each: these start with the next starts, whatever came
 * before them. Flow 2 comes back and has saved nothing up; without flows who comes first starts first. */
static void test_a_flow_with_many_waiting_lets_others_start(void **state)
{
    enum { FIRST = 12, N = FIRST + 4, PROMPT = 6, NEW = 2 };
    (void)state;
    for (int with = 0; with < 2; with++) {
        sim *s = calloc(1, sizeof *s);
        rng r = {1};
        int32_t order[N], n_started = 0;
        s->lim = (nrd_sched_limits){.max_batch_size = 1, .max_beam_width = 1, .max_num_tokens = 64};
        s->n_jobs = N;
        for (int32_t i = 0; i < N; i++) {
            nrd_seq *q = &s->jobs[i].q;
            make_job(s, &s->jobs[i], &r);
            q->req.n_prompt = PROMPT;
            q->req.max_total = PROMPT + NEW;
            for (int32_t t = 0; t < PROMPT; t++) {
                s->jobs[i].tokens[t] = (t + i) % VOCAB;
            }
            q->req.stop.n = 0;
            q->req.no_reuse = true;
            q->req.may_jump = false;
            q->req.priority = 0;
            q->req.leader = NULL;
            q->req.group = 0;
            q->req.flow = !with ? 0 : i < FIRST ? 1 : i == N - 1 ? 2 : (uint64_t)(i - FIRST + 2);
            s->jobs[i].start_step = i < FIRST ? 0 : i == N - 1 ? 20 : 2;
            s->jobs[i].cancel_step = -1;
            nrd_decode_prepare(q);
        }
        open_sim(s, 200, false);
        for (feed(s); make_plan(s, 0); s->step++, feed(s)) {
            nrd_sched_check(s->sched);
            for (int32_t k = 0; k < s->plans[0].n_entries; k++) {
                const nrd_plan_entry *e = &s->plans[0].entries[k];
                if (e->is_context && e->start == 0) {
                    order[n_started++] = (int32_t)((job *)(void *)e->seq - s->jobs);
                }
            }
            finish_plan(s, 0);
        }
        assert_true(all_idle(s));
        assert_int_equal(n_started, N);
        int32_t at[N];
        for (int32_t i = 0; i < N; i++) {
            at[order[i]] = i;
        }
        for (int32_t i = FIRST; i < N - 1; i++) {
            assert_true(with ? at[i] <= 4 : at[i] >= FIRST); /* one or two of the first flow were there before */
        }
        assert_true(with ? at[N - 1] < N - 1 && at[N - 1] > at[FIRST] + 1 : at[N - 1] == N - 1);
        close_sim(s);
    }
}

/* One sequence generates when six inputs of an encoder come: they are taken up one or two a step, as the limit says, and at
 * once where nobody generates. */
static void paced_encoders(int32_t mixed, int32_t most, bool generates)
{
    enum { N = 7, CROSS = 2 * BT, PROMPT = CROSS + 1, NEW = 12 };
    sim *s = calloc(1, sizeof *s);
    rng r = {1};
    int32_t n_taken = 0, n_most = 0;
    s->lim = (nrd_sched_limits){.max_batch_size = 16, .max_beam_width = 1, .max_num_tokens = N * PROMPT, .mixed_context_tokens = mixed};
    s->n_jobs = N;
    for (int32_t i = 0; i < N; i++) {
        nrd_seq *q = &s->jobs[i].q;
        make_job(s, &s->jobs[i], &r);
        q->req.n_prompt = PROMPT;
        q->req.n_cross = q->req.n_encoder = CROSS;
        q->req.max_total = PROMPT + NEW;
        for (int32_t t = 0; t < PROMPT; t++) {
            s->jobs[i].tokens[t] = (t + i) % VOCAB;
        }
        q->req.stop.n = 0;
        q->req.no_reuse = true;
        q->req.may_jump = false;
        q->req.priority = 0;
        q->req.leader = NULL;
        q->req.group = 0;
        s->jobs[i].start_step = i > 0 && generates ? 2 : 0;
        s->jobs[i].cancel_step = -1;
        nrd_decode_prepare(q);
    }
    open_sim(s, 200, false);
    for (feed(s); make_plan(s, 0); s->step++, feed(s)) {
        const nrd_plan *p = &s->plans[0];
        n_taken += p->n_context;
        n_most = p->n_context > n_most ? p->n_context : n_most;
        finish_plan(s, 0);
    }
    assert_true(all_idle(s));
    assert_int_equal(n_taken, N);
    assert_int_equal(n_most, most);
    close_sim(s);
}

static void test_encoders_leave_room_for_those_who_generate(void **state)
{
    (void)state;
    paced_encoders(1, 1, true);
    paced_encoders(2 * (2 * BT + 1), 2, true);
    paced_encoders(0, 6, true);
    paced_encoders(1, 7, false);
}

/* The most tokens of prompts in a step while one sequence generates and so many prompts have come. */
static int32_t most_beside_one(int32_t n_prompts, int32_t even)
{
    enum { PROMPT = 24, NEW = 50 };
    sim *s = calloc(1, sizeof *s);
    rng r = {1};
    int32_t most = 0;
    s->lim = (nrd_sched_limits){.max_batch_size = 16, .max_beam_width = 1, .max_num_tokens = 400, .chunked_context = true, .even_context_tokens = even};
    s->n_jobs = 1 + n_prompts;
    for (int32_t i = 0; i < s->n_jobs; i++) {
        nrd_seq *q = &s->jobs[i].q;
        make_job(s, &s->jobs[i], &r);
        q->req.n_prompt = i == 0 ? 2 : PROMPT;
        q->req.max_total = q->req.n_prompt + (i == 0 ? NEW : 1);
        for (int32_t t = 0; t < q->req.n_prompt; t++) {
            s->jobs[i].tokens[t] = (t + i) % VOCAB;
        }
        q->req.stop.n = q->req.picture_rows = 0;
        q->req.no_reuse = true;
        q->req.may_jump = false;
        q->req.priority = 0;
        q->req.leader = NULL;
        q->req.group = 0;
        s->jobs[i].start_step = i > 0 ? 2 : 0;
        s->jobs[i].cancel_step = -1;
        nrd_decode_prepare(q);
    }
    open_sim(s, 400, false);
    for (feed(s); make_plan(s, 0); s->step++, feed(s)) {
        const nrd_plan *p = &s->plans[0];
        most = p->n_generation > 0 && p->n_context_tokens > most ? p->n_context_tokens : most;
        finish_plan(s, 0);
    }
    assert_true(all_idle(s));
    close_sim(s);
    return most;
}

/* Few prompts are spread over steps; of many a step takes an eighth, for they would wait too long. */
static void test_prompts_are_spread_while_few_wait(void **state)
{
    (void)state;
    assert_int_equal(most_beside_one(2, 0), 48);
    assert_int_equal(most_beside_one(2, 8), 8);
    assert_int_equal(most_beside_one(10, 8), 10 * 24 / NRD_SCHED_EVEN_STEPS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices_of_one_request_leave_room_for_others),
        cmocka_unit_test(test_a_flow_with_many_waiting_lets_others_start),
        cmocka_unit_test(test_prompts_are_spread_while_few_wait),
        cmocka_unit_test(test_encoders_leave_room_for_those_who_generate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
