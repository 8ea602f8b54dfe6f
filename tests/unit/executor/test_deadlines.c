/* SPDX-License-Identifier: Apache-2.0
 * Requests whose time is over, on a device that is slow enough to see how long they go on. */
#include "exec_checks.h"
#include "tiny_engine.h"

#include "base/clock.h"

#include <stdatomic.h>

enum { STEP_US = 4000, ALL = 140, PROMPT = 5, HOLD_AT = 6, SOON_MS = 600 };

static tiny_engine tiny;

/* ---- a slow device ---- */

static nrd_device_ops slow_ops;
static nrd_error *(*real_embed)(nrd_stream *s, const nrd_embed_args *a);
static _Atomic int64_t deadline;
static atomic_int n_late_steps; /* begun after the deadline */
static atomic_int n_steps;

static nrd_error *slow_embed(nrd_stream *s, const nrd_embed_args *a)
{
    const int64_t at = atomic_load(&deadline);
    if (at > 0 && (int64_t)nrd_now_ns() > at) {
        atomic_fetch_add(&n_late_steps, 1);
    }
    usleep(STEP_US);
    if (at > 0 && atomic_fetch_add(&n_steps, 1) == HOLD_AT) { /* whatever else the machine does */
        while ((int64_t)nrd_now_ns() <= at) {
            usleep(STEP_US);
        }
    }
    return real_embed(s, a);
}

static nrd_exec *open_slow(bool ahead, int32_t max_batch_size)
{
    nrd_exec *x = NULL;
    nrd_exec_config c;
    nrd_exec_config_init(&c);
    c.device = "cpu";
    c.n_threads = 2;
    c.max_batch_size = max_batch_size;
    must(nrd_exec_open(&x, tiny.dir, &c));
    x->overlap = ahead; /* the loop reads it first when the first request is there */
    slow_ops = *x->dev->ops;
    real_embed = slow_ops.embed;
    slow_ops.embed = slow_embed;
    x->dev->ops = &slow_ops;
    n_late_steps = n_steps = 0;
    deadline = 0;
    return x;
}

static nrd_exec_request ask(int64_t in_ms)
{
    static int32_t prompt[PROMPT] = {3, 1, 4, 1, 5};
    nrd_exec_request r;
    nrd_exec_request_init(&r);
    r.input_ids = prompt;
    r.n_input_ids = PROMPT;
    r.max_new_tokens = ALL;
    r.exclude_input_in_output = true;
    r.deadline_ns = in_ms ? (int64_t)nrd_now_ns() + in_ms * 1000000 : 0;
    return r;
}

typedef struct outcome {
    int32_t n[4], n_final, n_beams; /* tokens by sequence or beam */
    nrd_finish_reason reason[4];
    int code; /* of the error; -1: none */
    char message[128];
} outcome;

static outcome take(nrd_exec *x, uint64_t id, bool streaming)
{
    outcome out = {.code = -1};
    for (bool done = false; !done;) {
        nrd_exec_response *r = NULL;
        must(nrd_exec_await_id(x, id, &r, 60 * 1000 * 1000));
        assert_non_null(r);
        for (int32_t b = 0; b < r->n_beams; b++) {
            int32_t at = r->n_beams > 1 ? b : r->sequence_index;
            out.n[at] = (streaming && r->n_beams == 1 ? out.n[at] : 0) + r->beams[b].n_ids;
            out.reason[at] = r->beams[b].finish_reason;
        }
        out.n_beams = r->n_beams;
        if (r->error) {
            out.code = nrd_exec_error_code(r->error);
            snprintf(out.message, sizeof out.message, "%s", nrd_exec_error_message(r->error));
        }
        done = r->is_final;
        out.n_final += done;
        nrd_exec_response_free(r);
    }
    return out;
}

/* Runs one request to its deadline and looks at how it ended. */
static outcome run_late(nrd_exec *x, nrd_exec_request *r)
{
    uint64_t id;
    deadline = r->deadline_ns;
    must(nrd_exec_enqueue(x, r, &id));
    outcome o = take(x, id, r->streaming);
    assert_int_equal(o.code, -1);
    assert_true(n_late_steps <= 2);
    return o;
}

static void test_running_request_ends_with_what_it_has(void **state)
{
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        nrd_exec *x = open_slow(mode & 1, 4);
        nrd_exec_request r = ask(SOON_MS);
        r.streaming = mode & 2;
        outcome o = run_late(x, &r);
        assert_int_equal(o.reason[0], NRD_FINISH_TIMED_OUT);
        assert_true(o.n[0] > 0 && o.n[0] < ALL);
        close_empty(x);
    }
}

static void test_beams_end_with_what_they_have(void **state)
{
    (void)state;
    for (int streaming = 0; streaming < 2; streaming++) {
        nrd_exec *x = open_slow(false, 4);
        nrd_exec_request r = ask(SOON_MS);
        r.sampling.beam_width = 3;
        r.streaming = streaming;
        outcome o = run_late(x, &r);
        assert_int_equal(o.n_beams, 3);
        for (int b = 0; b < 3; b++) {
            assert_int_equal(o.reason[b], NRD_FINISH_TIMED_OUT);
            assert_true(o.n[b] > 0 && o.n[b] < ALL);
        }
        close_empty(x);
    }
}

static void test_all_sequences_of_a_request_end(void **state)
{
    (void)state;
    nrd_exec *x = open_slow(true, 4);
    nrd_exec_request r = ask(SOON_MS);
    r.sampling.num_return_sequences = 3;
    r.sampling.top_k = 8;
    outcome o = run_late(x, &r);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(o.reason[i], NRD_FINISH_TIMED_OUT);
        assert_true(o.n[i] > 0 && o.n[i] < ALL);
    }
    close_empty(x);
}

/* With room for one: the second waits behind the first. */
static void test_waiting_request_ends_at_its_time_and_others_go_on(void **state)
{
    nrd_exec *x = open_slow(true, 1);
    nrd_exec_request first = ask(0), late = ask(60), refused = ask(0);
    uint64_t ids[3];
    (void)state;
    refused.start_by_ns = (int64_t)nrd_now_ns() + 60 * 1000000;
    first.max_new_tokens = 60;
    must(nrd_exec_enqueue(x, &first, &ids[0]));
    must(nrd_exec_enqueue(x, &late, &ids[1]));
    must(nrd_exec_enqueue(x, &refused, &ids[2]));
    outcome o = take(x, ids[1], false);
    assert_int_equal(o.code, -1);
    assert_int_equal(o.n[0], 0);
    assert_int_equal(o.reason[0], NRD_FINISH_TIMED_OUT);
    o = take(x, ids[2], false);
    assert_int_equal(o.code, 4);
    assert_string_equal(o.message, "Request timeout expired");
    o = take(x, ids[0], false);
    assert_int_equal(o.reason[0], NRD_FINISH_LENGTH);
    assert_int_equal(o.n[0], 60);
    close_empty(x);
}

static void test_request_that_began_in_time_runs_on_to_its_deadline(void **state)
{
    nrd_exec *x = open_slow(false, 4);
    nrd_exec_request r = ask(SOON_MS);
    (void)state;
    r.start_by_ns = r.deadline_ns - 100 * 1000000;
    outcome o = run_late(x, &r);
    assert_int_equal(o.reason[0], NRD_FINISH_TIMED_OUT);
    assert_true(o.n[0] > 0);
    deadline = 0;
    r = ask(0);
    r.start_by_ns = (int64_t)nrd_now_ns() + 400 * 1000000;
    r.max_new_tokens = 30;
    o = run_late(x, &r);
    assert_int_equal(o.reason[0], NRD_FINISH_LENGTH);
    close_empty(x);
}

static void test_deadline_of_the_past_generates_nothing(void **state)
{
    nrd_exec *x = open_slow(false, 4);
    nrd_exec_request r = ask(1);
    (void)state;
    r.deadline_ns -= 2 * 1000000;
    outcome o = run_late(x, &r);
    assert_int_equal(o.n[0], 0);
    assert_int_equal(o.reason[0], NRD_FINISH_TIMED_OUT);
    r = ask(-5);
    r.pooling = NRD_POOLING_MEAN;
    uint64_t id;
    must(nrd_exec_enqueue(x, &r, &id));
    o = take(x, id, false); /* half a vector is of no use */
    assert_int_equal(o.code, 4);
    assert_string_equal(o.message, "Request timeout expired");
    close_empty(x);
}

/* One that came later and had to end earlier has no more tokens, however late the machine looks. */
static void test_deadlines_of_many_requests_come_in_their_order(void **state)
{
    enum { N = 12 };
    static const int ms[N] = {90, 30, 150, 60, 0, 120, 30, 0, 75, 45, 105, 135};
    nrd_exec *x = open_slow(true, 16);
    uint64_t ids[N];
    int64_t ends[N];
    outcome o[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        nrd_exec_request r = ask(ms[i]);
        r.streaming = i % 2;
        ends[i] = r.deadline_ns;
        must(nrd_exec_enqueue(x, &r, &ids[i]));
    }
    for (int i = 0; i < N; i++) {
        o[i] = take(x, ids[i], i % 2);
        assert_int_equal(o[i].reason[0], ms[i] ? NRD_FINISH_TIMED_OUT : NRD_FINISH_LENGTH);
        assert_int_equal(o[i].n_final, 1);
    }
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < i; k++) {
            assert_true(!ms[i] || !ms[k] || ends[i] >= ends[k] || o[i].n[0] <= o[k].n[0]);
        }
    }
    close_empty(x);
}

static int setup(void **state)
{
    (void)state;
    tiny_build(&tiny, tiny_llama, 16);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tiny_remove(&tiny);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_running_request_ends_with_what_it_has),
        cmocka_unit_test(test_beams_end_with_what_they_have),
        cmocka_unit_test(test_all_sequences_of_a_request_end),
        cmocka_unit_test(test_waiting_request_ends_at_its_time_and_others_go_on),
        cmocka_unit_test(test_request_that_began_in_time_runs_on_to_its_deadline),
        cmocka_unit_test(test_deadline_of_the_past_generates_nothing),
        cmocka_unit_test(test_deadlines_of_many_requests_come_in_their_order),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
