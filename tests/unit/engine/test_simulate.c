/* SPDX-License-Identifier: Apache-2.0
 * The scheduler in counted time, against times that follow from a clock that takes a second for each step. */
#include "engine/simulate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void ok(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
}

static double a_second(void *user, const nrd_sim_step *s)
{
    nrd_sim_step *sum = user;
    sum->n_generation += s->n_generation;
    sum->n_context_tokens += s->n_context_tokens;
    sum->generation_pairs += s->generation_pairs;
    sum->context_pairs += s->context_pairs;
    return 1;
}

static nrd_sim_step seen;

static void simulate_as(nrd_sim_request *r, size_t n, int32_t max_batch, int32_t blocks, int32_t stages,
                        bool max_utilization, nrd_sim_result *out)
{
    const nrd_sched_limits lim = {.max_batch_size = max_batch, .max_beam_width = 1, .max_num_tokens = 64,
                                  .chunked_context = true, .max_utilization = max_utilization,
                                  .n_micro = stages > 1 ? stages : 0};
    const nrd_sim_config c = {.limits = &lim, .n_blocks = blocks, .block_tokens = 16, .n_stages = stages,
                              .step_s = a_second, .user = &seen};
    seen = (nrd_sim_step){0};
    ok(nrd_simulate(&c, r, n, out));
}

static void simulate(nrd_sim_request *r, size_t n, int32_t max_batch, int32_t blocks, int32_t stages, nrd_sim_result *out)
{
    simulate_as(r, n, max_batch, blocks, stages, false, out);
}

static void test_a_request_alone_takes_a_step_for_each_token(void **state)
{
    nrd_sim_request r = {.at_s = 10, .n_in = 20, .n_out = 5};
    nrd_sim_result out;
    (void)state;
    simulate(&r, 1, 4, 100, 1, &out);
    assert_float_equal(r.first_s, 11, 0);
    assert_float_equal(r.end_s, 15, 0);
    assert_int_equal(out.n_steps, 5);
    assert_int_equal(seen.n_context_tokens, 20);
    assert_int_equal(seen.n_generation, 4);
    assert_float_equal(seen.context_pairs, 210, 0);                 /* 1 + 2 + … + 20 */
    assert_float_equal(seen.generation_pairs, 21 + 22 + 23 + 24, 0);
}

static void test_long_prompts_come_in_pieces_and_full_batches_make_others_wait(void **state)
{
    nrd_sim_request r[3] = {{.at_s = 0, .n_in = 128, .n_out = 2}, {.at_s = 0.5, .n_in = 8, .n_out = 2},
                            {.at_s = 0.5, .n_in = 8, .n_out = 1}};
    nrd_sim_result out;
    (void)state;
    simulate(r, 3, 2, 100, 1, &out);
    assert_float_equal(r[0].first_s, 2, 0); /* two pieces of 64 */
    assert_true(r[1].first_s >= 2);
    assert_true(r[2].first_s > r[1].end_s - 1e-9); /* two at a time */
    assert_int_equal(out.most_running, 2);
    assert_float_equal(out.busy_s, out.end_s, 0);
}

static void test_who_starts_where_others_may_be_paused_finds_room_to_go_on(void **state)
{
    enum { N = 32, IN = 32, OUT = 96 };
    nrd_sim_request r[N] = {{0}};
    nrd_sim_result out;
    (void)state;
    for (int i = 0; i < N; i++) {
        r[i] = (nrd_sim_request){.n_in = IN, .n_out = OUT};
    }
    simulate_as(r, N, N, 32, 1, true, &out); /* four whole sequences of eight blocks */
    assert_true(out.n_pauses > 0);
    assert_true(seen.n_context_tokens < N * IN * 5 / 2); /* prompts, and what pauses made compute again */
}

static void test_a_full_cache_makes_requests_wait(void **state)
{
    nrd_sim_request r[2] = {{.n_in = 60, .n_out = 4}, {.n_in = 60, .n_out = 4}};
    nrd_sim_result out;
    (void)state;
    simulate(r, 2, 8, 7, 1, &out); /* each needs four blocks */
    assert_float_equal(r[0].end_s, 4, 0);
    assert_float_equal(r[1].end_s, 8, 0);
    simulate(r, 2, 8, 8, 1, &out);
    assert_float_equal(r[1].end_s, 5, 0); /* its prompt did not fit beside the other's in one step */
}

static void test_stages_work_at_different_sequences(void **state)
{
    nrd_sim_request r[2] = {{.n_in = 8, .n_out = 10}, {.n_in = 8, .n_out = 10}};
    nrd_sim_result one, two;
    (void)state;
    simulate(r, 1, 8, 100, 2, &one);
    assert_float_equal(r[0].end_s, 10, 1e-9); /* alone nothing is gained */
    simulate(r, 2, 8, 100, 2, &two);
    assert_float_equal(r[0].end_s, 10, 1e-9);
    assert_float_equal(r[1].end_s, 10.5, 1e-9); /* half a step behind */
    assert_int_equal(two.n_steps, 20);
}

static void test_what_can_never_run_is_named(void **state)
{
    const nrd_sched_limits lim = {.max_batch_size = 2, .max_beam_width = 1, .max_num_tokens = 16};
    const nrd_sim_config c = {.limits = &lim, .n_blocks = 4, .block_tokens = 16, .n_stages = 1, .step_s = a_second, .user = &seen};
    static const struct {
        nrd_sim_request r;
        const char *words;
    } wrong[] = {{{.n_in = 0, .n_out = 1}, "at least one of each"},
                 {{.n_in = 17, .n_out = 1}, "max_num_tokens"},
                 {{.n_in = 16, .n_out = 100}, "blocks of the KV cache, which has 4"}};
    nrd_sim_result out;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        nrd_sim_request r = wrong[i].r;
        nrd_error *err = nrd_simulate(&c, &r, 1, &out);
        assert_non_null(err);
        assert_non_null(strstr(nrd_error_message(err), wrong[i].words));
        assert_non_null(strstr(nrd_error_message(err), "request 0"));
        nrd_error_free(err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request_alone_takes_a_step_for_each_token),
        cmocka_unit_test(test_long_prompts_come_in_pieces_and_full_batches_make_others_wait),
        cmocka_unit_test(test_a_full_cache_makes_requests_wait),
        cmocka_unit_test(test_who_starts_where_others_may_be_paused_finds_room_to_go_on),
        cmocka_unit_test(test_stages_work_at_different_sequences),
        cmocka_unit_test(test_what_can_never_run_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
