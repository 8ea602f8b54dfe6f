/* SPDX-License-Identifier: Apache-2.0
 * Requests beside each other get the tokens that each gets alone; what is refused, cancelled or lost with the device ends. */
#include "tiny_exec.h"

#include "base/limits.h"

#include <stdatomic.h>

/* All at once; the same tokens and, bit for bit, the same log probabilities. */
static bool overlapped; /* as with a device that runs beside the host */

static void run_together(const nrd_exec_config *c, const result *want, int32_t *out_paused)
{
    nrd_exec *x = open_exec(c);
    x->overlap = overlapped; /* the loop reads it first when the first request is there */
    uint64_t ids[N_MIXED];
    int32_t n_paused = 0;
    for (int round = 0; round < 2; round++) {
        for (int p = 0; p < N_MIXED; p++) {
            nrd_exec_request r = ask(p);
            must(nrd_exec_enqueue(x, &r, &ids[p]));
        }
        for (int p = 0; p < N_MIXED; p++) {
            result got;
            collect(x, ids[p], &got);
            assert_int_equal(got.n, want[p].n);
            assert_memory_equal(got.ids, want[p].ids, (size_t)got.n * sizeof *got.ids);
            assert_memory_equal(got.log_probs, want[p].log_probs, (size_t)got.n * sizeof(float));
            assert_true(got.cum == want[p].cum);
            n_paused += got.perf.n_paused;
        }
    }
    nrd_exec_close(x);
    if (out_paused) {
        *out_paused = n_paused;
    }
}

static void test_batch_does_not_change_tokens(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    run_together(&c, alone, NULL);
}

/* Without the switch too: a CPU computes every row by itself. So a request may ask for it there. A matrix unit takes many rows
 * otherwise than few, so the model must be loaded for it. */
static void test_a_cpu_is_deterministic_by_itself(void **state)
{
    nrd_exec_config c = config();
    nrd_exec_request r = ask(3);
    result got;
    uint64_t id;
    (void)state;
    c.deterministic = false;
    r.deterministic = true;
    nrd_exec *x = open_exec(&c);
    if (!x->rows_are_alone) {
        must_fail(nrd_exec_enqueue(x, &r, &id), 3, "deterministic: on this device");
        c.cpu_isa = "avx512vnni"; /* as without the unit */
    }
    nrd_exec_close(x);
    for (int mode = 0; mode < 4; mode++) {
        c.enable_chunked_context = mode & 1;
        c.max_num_tokens = mode & 1 ? 40 : 0;
        c.enable_kv_cache_reuse = mode & 2;
        c.n_threads = 1 + mode;
        run_together(&c, alone, NULL);
    }
    x = open_exec(&c);
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    assert_memory_equal(got.ids, alone[3].ids, (size_t)got.n * sizeof *got.ids);
    x->rows_are_alone = false; /* as a device that has to be told */
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "deterministic: on this device");
    nrd_exec_close(x);
}

static void test_chunked_context_does_not_change_tokens(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    c.enable_chunked_context = true;
    c.max_batch_size = 6;
    c.max_beam_width = 1;
    c.max_num_tokens = 20;
    run_together(&c, alone, NULL);
}

static void test_prefix_reuse_does_not_change_tokens(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    c.enable_kv_cache_reuse = true;
    run_together(&c, alone, NULL);
}

static void test_pauses_do_not_change_tokens(void **state)
{
    nrd_exec_config c = config();
    int32_t n_paused = 0;
    (void)state;
    c.policy = NRD_POLICY_MAX_UTILIZATION;
    c.max_tokens_in_paged_kv_cache = 240;
    c.max_beam_width = 1;
    run_together(&c, alone, &n_paused);
    assert_true(n_paused > 0);
    c.enable_kv_cache_reuse = true;
    c.enable_chunked_context = true;
    c.max_num_tokens = 40;
    run_together(&c, alone, &n_paused);
    assert_true(n_paused > 0);
    c.kv_cache_host_memory_bytes = 1 << 20;
    run_together(&c, alone, NULL);
}

static void test_static_batches_do_not_change_tokens(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    c.batching = NRD_BATCHING_STATIC;
    c.max_batch_size = 5;
    run_together(&c, alone, NULL);
}

static void test_steps_enqueued_ahead_do_not_change_tokens(void **state)
{
    int32_t n_paused = 0;
    nrd_exec_config c = config();
    (void)state;
    overlapped = true;
    run_together(&c, alone, NULL);
    c.policy = NRD_POLICY_MAX_UTILIZATION;
    c.max_tokens_in_paged_kv_cache = 240;
    c.max_beam_width = 1;
    c.enable_kv_cache_reuse = true;
    c.enable_chunked_context = true;
    c.max_num_tokens = 40;
    run_together(&c, alone, &n_paused);
    assert_true(n_paused > 0);
    c.kv_cache_host_memory_bytes = 1 << 20;
    run_together(&c, alone, NULL);
    overlapped = false;
}

/* Without log probabilities the device keeps the logits to itself where every row allows it. */
static void test_tokens_without_log_probs_are_those_with_them(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    nrd_exec *x = open_exec(&c);
    for (int whole = 0; whole < 2; whole++) { /* with rows that draw from the whole vocabulary */
        uint64_t ids[N_MIXED];
        for (int p = 0; p < N_MIXED; p++) {
            nrd_exec_request r = ask(p);
            r.return_log_probs = false;
            if (whole || p % 4 != 3) {
                must(nrd_exec_enqueue(x, &r, &ids[p]));
            }
        }
        for (int p = 0; p < N_MIXED; p++) {
            result got;
            if (whole || p % 4 != 3) {
                collect(x, ids[p], &got);
                assert_int_equal(got.n, alone[p].n);
                assert_memory_equal(got.ids, alone[p].ids, (size_t)got.n * sizeof *got.ids);
                assert_int_equal(got.n_log_probs, 0);
            }
        }
    }
    nrd_exec_close(x);
}

static void test_reused_blocks_are_counted(void **state)
{
    nrd_exec_config c = config();
    result a, b;
    uint64_t id;
    (void)state;
    c.enable_kv_cache_reuse = true;
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(0);
    r.n_input_ids = 30; /* one block of 16 and a part */
    r.max_new_tokens = 1;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &a);
    assert_int_equal(a.perf.kv_reused_blocks, 0);
    assert_int_equal(a.perf.kv_new_blocks, 2);
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &b);
    assert_int_equal(b.perf.kv_reused_blocks, 1);
    assert_int_equal(b.perf.kv_new_blocks, 1);
    r.cache_salt = "another tenant";
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &b);
    assert_int_equal(b.perf.kv_reused_blocks, 0);
    nrd_exec_close(x);
}

/* The cache holds four of these prompts, host memory the others: each is computed once, and what
 * comes back is what went. */
static void test_blocks_come_back_from_host_memory(void **state)
{
    enum { N = 12, LONG = 64 };
    nrd_exec_config c = config();
    nrd_exec_info info = {.size = sizeof info};
    result first[N], again;
    uint64_t id;
    (void)state;
    c.enable_kv_cache_reuse = true;
    c.max_batch_size = 1;
    c.max_beam_width = 1;
    c.max_tokens_in_paged_kv_cache = 320;
    c.kv_cache_host_memory_bytes = 4 << 20;
    nrd_exec *x = open_exec(&c);
    nrd_exec_get_info(x, &info);
    assert_true(info.n_kv_blocks < N * LONG / info.tokens_per_block);
    assert_true(info.n_kv_host_blocks > N * LONG / info.tokens_per_block);
    for (int round = 0; round < 3; round++) {
        for (int p = 0; p < N; p++) {
            nrd_exec_request r = ask(p);
            r.n_input_ids = LONG;
            r.max_new_tokens = 8;
            must(nrd_exec_enqueue(x, &r, &id));
            collect(x, id, round ? &again : &first[p]);
            if (round) {
                assert_int_equal(again.perf.kv_reused_blocks, LONG / info.tokens_per_block - 1);
                assert_int_equal(again.n, first[p].n);
                assert_memory_equal(again.ids, first[p].ids, (size_t)again.n * sizeof(int32_t));
                assert_memory_equal(again.log_probs, first[p].log_probs,
                                    (size_t)again.n * sizeof(float));
            }
        }
    }
    nrd_exec_close(x);
}

/* ---- refusing, cancelling, ending ---- */

static void test_bad_requests_are_refused_by_name(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(2);
    uint64_t id;
    int32_t negative[2] = {1, -5};
    (void)state;
    r.n_input_ids = TINY_MAX_SEQ;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3,
              "Prompt length (160) exceeds maximum input length (159). Set log level to info and "
              "check TRTLLM logs for how maximum input length is set");
    r = ask(2);
    r.input_ids = negative;
    r.n_input_ids = 2;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "input_ids[1] is -5");
    r = ask(2);
    r.bias_ids = negative;
    r.bias_values = (const float[2]){1, 1};
    r.n_bias = 2;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "logit_bias has the token id -5");
    r.n_bias = NRD_LIMIT_LOGIT_BIAS + 1;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "logit_bias has 4097 entries, at most 4096");
    r.n_bias = 1;
    r.embedding_bias = r.bias_values;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "logit_bias and embedding_bias are both given");
    r = ask(2);
    r.sampling.temperature = -1;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "temperature");
    r = ask(2);
    r.sampling.beam_width = 9;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "beam_width (9) exceeds max_beam_width (4)");
    r = ask(2);
    r.max_new_tokens = 0;
    must_fail(nrd_exec_enqueue(x, &r, &id), 3, "max_new_tokens");
    r = ask(2);
    r.lora_task_id = 3;
    must_fail(nrd_exec_enqueue(x, &r, &id), 2, "LoRA task 3 not found in cache. Please send LoRA weights with request");
    r = ask(2);
    r.guide_type = "json";
    must_fail(nrd_exec_enqueue(x, &r, &id), 5, "guided decoding");
    r = ask(2); /* too long together: cut, no error */
    r.n_input_ids = 150;
    r.max_new_tokens = 1000;
    result got;
    must(nrd_exec_enqueue(x, &r, &id));
    collect(x, id, &got);
    assert_int_equal(got.n, 10);
    assert_int_equal(got.finish, NRD_FINISH_LENGTH);
    nrd_exec_response *o;
    must_fail(nrd_exec_await_id(x, 12345, &o, -1), 2, "12345");
    nrd_exec_close(x);
}

static void test_cache_too_small_for_one_sequence_is_refused_at_open(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = NULL;
    (void)state;
    c.max_tokens_in_paged_kv_cache = 64;
    must_fail(nrd_exec_open(&x, tiny.dir, &c), 3, "max_tokens_in_paged_kv_cache 64");
    assert_null(x);
    c = config();
    c.decoding_mode = NRD_DECODING_MEDUSA;
    must_fail(nrd_exec_open(&x, tiny.dir, &c), 2, "medusa"); /* an engine without heads */
    must_fail(nrd_exec_open(&x, "/nonexistent", NULL), 2, "/nonexistent");
}

/* Asks for 150 tokens and cancels at the third. False where the engine, which waits for nobody, had made
 * all of them before the cancellation came. */
static bool is_cancelled_in_time(nrd_exec *x)
{
    nrd_exec_request r = ask(0);
    nrd_exec_response *o;
    uint64_t id;
    int32_t n = 0;
    nrd_finish_reason reason = NRD_FINISH_LENGTH;
    bool done = false;
    r.n_input_ids = 5;
    r.max_new_tokens = 150;
    r.streaming = true;
    must(nrd_exec_enqueue(x, &r, &id));
    while (!done) {
        must(nrd_exec_await_id(x, id, &o, -1));
        n += o->beams[0].n_ids;
        done = o->is_final;
        reason = o->beams[0].finish_reason;
        nrd_exec_response_free(o);
        if (n == 3) {
            nrd_exec_cancel(x, id);
        }
    }
    nrd_exec_cancel(x, id); /* over: no effect */
    if (n == 150) {
        assert_int_equal(reason, NRD_FINISH_LENGTH);
        return false;
    }
    assert_int_equal(reason, NRD_FINISH_CANCELLED);
    assert_true(n >= 3 && n < 150);
    return true;
}

static void test_cancelled_request_ends_with_what_it_has(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    bool cancelled = false;
    (void)state;
    for (int round = 0; round < 100 && !cancelled; round++) {
        cancelled = is_cancelled_in_time(x);
    }
    assert_true(cancelled);
    nrd_exec_close(x);
}

static void test_stopped_requests_end_with_nothing(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    (void)state;
    for (int round = 0; round < 100; round++) { /* the engine would have made the one token before any word of it */
        nrd_exec_request r = ask(0);
        nrd_exec_response *o;
        uint64_t id;
        r.max_new_tokens = 1;
        r.is_stopped = round % 2 == 0;
        must(nrd_exec_enqueue(x, &r, &id));
        must(nrd_exec_await_id(x, id, &o, -1));
        assert_true(o->is_final);
        assert_int_equal(o->beams[0].finish_reason, r.is_stopped ? NRD_FINISH_CANCELLED : NRD_FINISH_LENGTH);
        assert_int_equal(o->beams[0].n_ids, r.is_stopped ? 0 : 1);
        nrd_exec_response_free(o);
    }
    nrd_exec_close(x);
}

static void test_queue_limit_and_shutdown(void **state)
{
    nrd_exec_config c = config();
    (void)state;
    c.max_batch_size = 1;
    c.max_queue_size = 4;
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask(0);
    uint64_t id;
    int n_accepted = 0, n_final = 0;
    nrd_error *err = NULL;
    r.n_input_ids = 5;
    r.max_new_tokens = 100;
    r.streaming = false;
    while (!(err = nrd_exec_enqueue(x, &r, &id))) {
        n_accepted++;
        assert_true(n_accepted < 1000);
    }
    must_fail(err, 4, "Maximum queue size of 4 has been reached, please try again later");
    must(nrd_exec_shutdown(x, -1));
    must_fail(nrd_exec_enqueue(x, &r, &id), 4, "shutting down");
    while (!nrd_exec_is_done(x)) {
        nrd_exec_response *out[8];
        int32_t n;
        must(nrd_exec_await(x, out, 8, -1, &n));
        for (int32_t i = 0; i < n; i++) {
            n_final += out[i]->is_final;
            assert_int_equal(out[i]->beams[0].n_ids, 100);
            nrd_exec_response_free(out[i]);
        }
    }
    assert_int_equal(n_final, n_accepted);
    nrd_exec_close(x);
}

static void test_shutdown_in_time_cuts_what_runs(void **state)
{
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    uint64_t id;
    int n_final = 0;
    (void)state;
    for (int p = 0; p < 30; p++) {
        nrd_exec_request r = ask(p);
        must(nrd_exec_enqueue(x, &r, &id));
    }
    must(nrd_exec_shutdown(x, 1000));
    while (!nrd_exec_is_done(x)) {
        nrd_exec_response *out[4];
        int32_t n;
        must(nrd_exec_await(x, out, 4, 0, &n));
        for (int32_t i = 0; i < n; i++) {
            n_final += out[i]->is_final;
            nrd_exec_response_free(out[i]);
        }
    }
    assert_int_equal(n_final, 30);
    nrd_exec_close(x);
}

/* ---- a device that dies ---- */

static nrd_device_ops dying_ops;
static nrd_error *(*real_linear)(nrd_stream *s, const nrd_linear_args *a);
static atomic_int linears_left;

static nrd_error *dying_linear(nrd_stream *s, const nrd_linear_args *a)
{
    if (atomic_fetch_sub(&linears_left, 1) <= 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "the device fell off the bus");
    }
    return real_linear(s, a);
}

static void test_lost_device_fails_what_is_in_flight_and_nothing_hangs(void **state)
{
    (void)state;
    for (int ahead = 0; ahead < 2; ahead++) {
        nrd_exec_config c = config();
        c.max_batch_size = 4;
        nrd_exec *x = open_exec(&c);
        uint64_t ids[10];
        nrd_error *err = NULL;
        x->overlap = ahead;
        dying_ops = *x->dev->ops;
        real_linear = dying_ops.linear;
        dying_ops.linear = dying_linear;
        linears_left = 400;
        x->dev->ops = &dying_ops;
        int n_accepted = 0;
        for (; n_accepted < 10; n_accepted++) {
            nrd_exec_request r = ask(n_accepted);
            r.streaming = false;
            err = nrd_exec_enqueue(x, &r, &ids[n_accepted]);
            if (err) {
                break; /* it died already */
            }
        }
        int n_failed = 0;
        for (int i = 0; i < n_accepted; i++) {
            nrd_exec_response *o = NULL;
            must(nrd_exec_await_id(x, ids[i], &o, 60 * 1000 * 1000));
            assert_non_null(o);
            assert_true(o->is_final);
            if (o->error) {
                assert_int_equal(nrd_exec_error_code(o->error), 4);
                assert_non_null(strstr(nrd_exec_error_message(o->error), "fell off the bus"));
                n_failed++;
            }
            nrd_exec_response_free(o);
        }
        assert_true(n_failed > 0);
        nrd_exec_error_free(err);
        nrd_exec_request r = ask(1);
        must_fail(nrd_exec_enqueue(x, &r, &ids[0]), 4, "the engine was lost");
        nrd_exec_close(x);
    }
}

static nrd_error *dying_copy(nrd_stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    (void)dst;
    (void)src;
    (void)bytes;
    return nrd_errorf(NRD_ERR_INTERNAL, "the device fell off the bus");
}

static void test_device_lost_before_a_step_is_lost_too(void **state)
{
    (void)state;
    nrd_exec_config c = config();
    nrd_exec *x = open_exec(&c);
    nrd_exec_response *o = NULL;
    float bias[TINY_VOCAB] = {1};
    uint64_t id = 0;
    assert_null(nrd_exec_health(x));
    dying_ops = *x->dev->ops;
    dying_ops.copy = dying_copy;
    x->dev->ops = &dying_ops;
    nrd_exec_request r = ask(1);
    r.embedding_bias = bias; /* uploaded before its first step */
    must(nrd_exec_enqueue(x, &r, &id));
    must(nrd_exec_await_id(x, id, &o, 60 * 1000 * 1000));
    assert_non_null(o);
    assert_true(o->is_final && o->error);
    nrd_exec_response_free(o);
    must_fail(nrd_exec_health(x), 4, "the engine was lost: the device fell off the bus");
    must_fail(nrd_exec_enqueue(x, &r, &id), 4, "the engine was lost");
    nrd_exec_close(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_does_not_change_tokens),
        cmocka_unit_test(test_a_cpu_is_deterministic_by_itself),
        cmocka_unit_test(test_chunked_context_does_not_change_tokens),
        cmocka_unit_test(test_prefix_reuse_does_not_change_tokens),
        cmocka_unit_test(test_pauses_do_not_change_tokens),
        cmocka_unit_test(test_static_batches_do_not_change_tokens),
        cmocka_unit_test(test_steps_enqueued_ahead_do_not_change_tokens),
        cmocka_unit_test(test_tokens_without_log_probs_are_those_with_them),
        cmocka_unit_test(test_reused_blocks_are_counted),
        cmocka_unit_test(test_blocks_come_back_from_host_memory),
        cmocka_unit_test(test_bad_requests_are_refused_by_name),
        cmocka_unit_test(test_cache_too_small_for_one_sequence_is_refused_at_open),
        cmocka_unit_test(test_cancelled_request_ends_with_what_it_has),
        cmocka_unit_test(test_stopped_requests_end_with_nothing),
        cmocka_unit_test(test_queue_limit_and_shutdown),
        cmocka_unit_test(test_shutdown_in_time_cuts_what_runs),
        cmocka_unit_test(test_lost_device_fails_what_is_in_flight_and_nothing_hangs),
        cmocka_unit_test(test_device_lost_before_a_step_is_lost_too),
    };
    return cmocka_run_group_tests(tests, tiny_exec_setup, tiny_exec_teardown);
}
