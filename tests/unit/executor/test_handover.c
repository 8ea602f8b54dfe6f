/* SPDX-License-Identifier: Apache-2.0
 * Prompts that one executor computes and another one goes on with: the same answers as from one alone, to the bit, beside
 * other requests; what is refused; and at the end nothing is kept. */
#include "mixed.h"

#include "engine/replay.h"
#include "executor/handover.h"

/* Sorts of requests that are handed over. */
static bool is_plain(const nrd_exec_request *r)
{
    return r->sampling.beam_width == 1 && r->sampling.num_return_sequences == 1 && !r->pooling && !r->n_draft_input_ids;
}

typedef struct ticket {
    uint8_t bytes[NRD_EXEC_PARAMS_BYTES];
    int32_t token; /* that the context answered with; -1: none */
} ticket;

static uint64_t begin_context(nrd_exec *x, const nrd_exec_request *from)
{
    nrd_exec_request r = *from;
    uint64_t id;
    r.kind = NRD_REQUEST_CONTEXT_ONLY;
    must(nrd_exec_enqueue(x, &r, &id));
    return id;
}

static ticket end_context(nrd_exec *x, uint64_t id)
{
    ticket t = {.token = -1};
    nrd_exec_response *r = NULL;
    must(nrd_exec_await_id(x, id, &r, 120 * 1000 * 1000));
    assert_non_null(r);
    must(r->error);
    assert_true(r->is_final);
    assert_int_equal(r->n_context_phase_params, sizeof t.bytes);
    memcpy(t.bytes, r->context_phase_params, sizeof t.bytes);
    t.token = r->beams[0].n_ids > 0 ? r->beams[0].ids[r->beams[0].n_ids - 1] : -1;
    nrd_exec_response_free(r);
    return t;
}

static nrd_error *go_on(nrd_exec *x, const nrd_exec_request *from, const ticket *t, uint64_t *out_id)
{
    nrd_exec_request r = *from;
    r.kind = NRD_REQUEST_GENERATION_ONLY;
    r.context_phase_params = t->bytes;
    r.n_context_phase_params = sizeof t->bytes;
    return nrd_exec_enqueue(x, &r, out_id);
}

static nrd_exec_handover_stats stats_of(nrd_exec *x)
{
    nrd_exec_handover_stats s = {.size = sizeof s};
    nrd_exec_handover_get_stats(x, &s);
    return s;
}

/* ---- the same answers ---- */

/* Closes both. others: what cannot be handed over runs on both meanwhile. */
static void run_handed(nrd_exec *context, nrd_exec *generation, int n, bool others, bool bits)
{
    static ticket tickets[N];
    uint64_t ids[N], beside[N];
    uint64_t n_handed = 0;

    for (int i = 0; i < n; i++) {
        const nrd_exec_request *r = &requests[i].r;
        if (is_plain(r)) {
            ids[i] = begin_context(context, r);
        } else if (others) {
            must(nrd_exec_enqueue(context, r, &ids[i]));
            must(nrd_exec_enqueue(generation, r, &beside[i]));
        }
    }
    for (int i = 0; i < n; i++) {
        if (is_plain(&requests[i].r)) {
            tickets[i] = end_context(context, ids[i]);
            must(go_on(generation, &requests[i].r, &tickets[i], &ids[i]));
            n_handed++;
        }
    }
    for (int i = 0; i < n; i++) {
        sum got = {0};
        const bool handed = is_plain(&requests[i].r);
        if (!handed && !others) {
            continue;
        }
        take(handed ? generation : context, ids[i], i, &got);
        if (!is_same(&got, &alone[i], bits)) {
            fail_msg("request %d says something else when its prompt is %s", i, handed ? "handed over" : "beside others");
        }
        if (!handed) {
            take(generation, beside[i], i, &got);
            assert_true(is_same(&got, &alone[i], bits));
        }
    }
    const nrd_exec_handover_stats given = stats_of(context), taken = stats_of(generation);
    assert_true(n_handed > (uint64_t)n / 4);
    assert_int_equal(given.n_given, n_handed);
    assert_int_equal(taken.n_taken, n_handed);
    assert_int_equal(given.n_bytes, taken.n_bytes);
    assert_true(given.n_bytes > 0);
    assert_int_equal(given.n_kept, 0);
    assert_int_equal(given.n_tokens, 0);
    close_empty(context);
    close_empty(generation);
}

static void test_handed_over_as_alone(void **state)
{
    nrd_exec_config c;
    (void)state;
    nrd_exec_config_init(&c);
    nrd_exec *context = open_exec(&c);
    run_handed(context, open_exec(&c), N, true, true);
}

static void test_with_chunks_on_one_side_and_reuse_and_pauses_on_the_other(void **state)
{
    nrd_exec_config c, g;
    (void)state;
    nrd_exec_config_init(&c);
    nrd_exec_config_init(&g);
    c.enable_chunked_context = true;
    c.max_num_tokens = 32;
    g.enable_kv_cache_reuse = true;
    g.policy = NRD_POLICY_MAX_UTILIZATION;
    g.max_tokens_in_paged_kv_cache = 900;
    nrd_exec *context = open_exec(&c);
    run_handed(context, open_exec(&g), N, true, true);
    /* The other way round. */
    g.max_tokens_in_buffer = 1 << 20;
    nrd_exec *reusing = open_exec(&g);
    run_handed(reusing, open_exec(&c), N, false, true);
}

static void test_with_a_window(void **state)
{
    const int32_t window = 24;
    nrd_exec_config c;
    sum whole, handed;
    uint64_t id;
    (void)state;
    nrd_exec_config_init(&c);
    c.max_attention_window = &window;
    c.n_max_attention_window = 1;
    nrd_exec *one = open_exec(&c), *context = open_exec(&c), *generation = open_exec(&c);
    for (int i = 0; i < N; i++) {
        const nrd_exec_request *r = &requests[i].r;
        if (!is_plain(r)) {
            continue;
        }
        must(nrd_exec_enqueue(one, r, &id));
        take(one, id, i, &whole);
        const ticket t = end_context(context, begin_context(context, r));
        must(go_on(generation, r, &t, &id));
        take(generation, id, i, &handed);
        if (!is_same(&whole, &handed, true)) {
            fail_msg("request %d says something else behind a window", i);
        }
    }
    close_empty(one);
    close_empty(context);
    close_empty(generation);
}

/* Who generates guesses; who computes prompts need not know. */
static void test_with_every_way_to_guess(void **state)
{
    (void)state;
    for (size_t i = 0; i < TINY_METHODS; i++) {
        nrd_exec_config c, g;
        nrd_exec_config_init(&c);
        nrd_exec_config_init(&g);
        g.enable_kv_cache_reuse = tiny_methods[i].reuse;
        char *json = tiny_method_json(&tiny_methods[i]);
        g.speculative_config = json;
        nrd_exec *context = open_exec(i % 2 ? &c : &g);
        run_handed(context, open_exec(&g), N_EACH, false, !tiny_methods[i].trees);
        free(json);
    }
}

/* What the scheduler was told is enough to plan the same again. */
static void test_a_record_of_it_is_replayed(void **state)
{
    static const nrd_replay_options quiet;
    char path[] = "/tmp/nrd-handover-XXXXXX";
    nrd_exec_config c, g;
    const nrd_record_head *head = NULL;
    const uint32_t *words[2];
    size_t sizes[2], at = 0, n;
    nrd_replay_result r;
    char *data = NULL;
    (void)state;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    nrd_exec_config_init(&c);
    nrd_exec_config_init(&g);
    g.enable_kv_cache_reuse = true;
    g.policy = NRD_POLICY_MAX_UTILIZATION;
    g.max_tokens_in_paged_kv_cache = 900;
    g.scheduler_record = path;
    nrd_exec *context = open_exec(&c);
    run_handed(context, open_exec(&g), N, false, true);
    must(nrd_file_read(&data, &n, path, 1 << 28));
    must(nrd_replay_find(data, n, &at, &head, words, sizes));
    assert_non_null(head);
    must(nrd_replay_run(head, words, sizes, &quiet, &r));
    if (r.end != NRD_REPLAY_SAME) {
        fail_msg("the replay ends with %d at step %d: %s", (int)r.end, (int)r.step, r.reason);
    }
    assert_true(r.n_sequences > 20);
    free(data);
    unlink(path);
}

/* ---- what is refused ---- */

enum { UNKNOWN = 2, INVALID = 3, UNAVAILABLE = 4, UNSUPPORTED = 5 }; /* TRITONSERVER_Error_Code */

static int32_t prompt[40];

static nrd_exec_request ask(void)
{
    nrd_exec_request r;
    nrd_exec_request_init(&r);
    for (int i = 0; i < 40; i++) {
        prompt[i] = i * 7 % TINY_VOCAB;
    }
    r.input_ids = prompt;
    r.n_input_ids = 40;
    r.max_new_tokens = 12;
    r.exclude_input_in_output = true;
    return r;
}

static void ends_well(nrd_exec *x, const nrd_exec_request *r, const ticket *t)
{
    uint64_t id;
    sum s;
    must(go_on(x, r, t, &id));
    take(x, id, 0, &s);
}

static void test_parameters_are_good_once_and_for_one_prompt(void **state)
{
    nrd_exec_config c;
    uint64_t id;
    (void)state;
    nrd_exec_config_init(&c);
    nrd_exec *context = open_exec(&c), *generation = open_exec(&c);
    nrd_exec_request r = ask();
    ticket t = end_context(context, begin_context(context, &r)), wrong = t;
    assert_true(t.token >= 0);

    wrong.bytes[20] ^= 1;
    must_fail(go_on(generation, &r, &wrong, &id), UNKNOWN, "nothing waits");
    wrong = t;
    wrong.bytes[0] ^= 1;
    must_fail(go_on(generation, &r, &wrong, &id), INVALID, "do not come from");
    wrong = t;
    wrong.bytes[4]++;
    must_fail(go_on(generation, &r, &wrong, &id), INVALID, "do not come from");

    nrd_exec_request other = r;
    other.n_input_ids--;
    must_fail(go_on(generation, &other, &t, &id), INVALID, "input_ids (39 tokens)");
    other = ask();
    prompt[3]++;
    must_fail(go_on(generation, &other, &t, &id), INVALID, "input_ids");
    other = ask();
    other.cache_salt = "somebody's";
    must_fail(go_on(generation, &other, &t, &id), INVALID, "cache_salt");
    other = ask();
    other.return_log_probs = true;
    must_fail(go_on(generation, &other, &t, &id), INVALID, "return_log_probs");
    other = ask();
    other.n_top_logprobs = 2;
    must_fail(go_on(generation, &other, &t, &id), INVALID, "n_top_logprobs is 2");
    other = ask();
    other.return_generation_logits = true;
    must_fail(go_on(generation, &other, &t, &id), INVALID, "return_generation_logits");

    assert_int_equal(stats_of(context).n_kept, 1); /* none of them has taken it */
    ends_well(generation, &r, &t);
    must_fail(go_on(generation, &r, &t, &id), UNKNOWN, "nothing waits");
    close_empty(context);
    close_empty(generation);
}

static void test_sizes_and_kinds_are_checked(void **state)
{
    nrd_exec_config c;
    uint64_t id;
    uint8_t bytes[64] = {0};
    (void)state;
    nrd_exec_config_init(&c);
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask();
    r.context_phase_params = bytes;
    r.n_context_phase_params = sizeof bytes;
    must_fail(nrd_exec_enqueue(x, &r, &id), INVALID, "need the request type generation_only");
    r.kind = NRD_REQUEST_GENERATION_ONLY;
    for (size_t n = 0; n <= sizeof bytes; n++) {
        r.n_context_phase_params = n;
        must_fail(nrd_exec_enqueue(x, &r, &id), INVALID, n == NRD_EXEC_PARAMS_BYTES ? "do not come from" : "expected 24");
    }
    r.context_phase_params = NULL;
    must_fail(nrd_exec_enqueue(x, &r, &id), INVALID, "needs context_phase_params");
    r.kind = (nrd_request_kind)3;
    must_fail(nrd_exec_enqueue(x, &r, &id), INVALID, "kind is 3");
    r = ask();
    r.kind = NRD_REQUEST_CONTEXT_ONLY;
    r.sampling.beam_width = 2;
    must_fail(nrd_exec_enqueue(x, &r, &id), UNSUPPORTED, "beam_width > 1");
    r.sampling.beam_width = 1;
    r.sampling.num_return_sequences = 2;
    must_fail(nrd_exec_enqueue(x, &r, &id), UNSUPPORTED, "num_return_sequences > 1");
    r.sampling.num_return_sequences = 1;
    r.pooling = NRD_POOLING_LAST;
    must_fail(nrd_exec_enqueue(x, &r, &id), UNSUPPORTED, "pooling");
    assert_int_equal(stats_of(x).n_tokens, 0);
    close_empty(x);
}

static void test_nobody_comes_in_time(void **state)
{
    nrd_exec_config c;
    uint64_t id;
    (void)state;
    nrd_exec_config_init(&c);
    nrd_exec *generation = open_exec(&c);
    c.kv_transfer_timeout_ms = 20;
    nrd_exec *context = open_exec(&c);
    nrd_exec_request r = ask();
    for (int i = 0; i < 3; i++) {
        const ticket t = end_context(context, begin_context(context, &r));
        while (stats_of(context).n_expired <= (uint64_t)i) {
            usleep(1000);
        }
        must_fail(go_on(generation, &r, &t, &id), UNKNOWN, "nothing waits");
    }
    assert_int_equal(stats_of(context).n_kept, 0);
    assert_int_equal(stats_of(context).n_tokens, 0);
    sum s;
    must(nrd_exec_enqueue(context, &r, &id)); /* it still serves */
    take(context, id, 0, &s);
    close_empty(context);
    close_empty(generation);
}

static void test_its_executor_is_gone(void **state)
{
    nrd_exec_config c;
    uint64_t id;
    (void)state;
    nrd_exec_config_init(&c);
    nrd_exec *context = open_exec(&c), *generation = open_exec(&c);
    nrd_exec_request r = ask();
    const ticket t = end_context(context, begin_context(context, &r)), u = end_context(context, begin_context(context, &r));
    must(go_on(generation, &r, &t, &id)); /* what was taken needs nobody */
    close_empty(context);
    sum s;
    take(generation, id, 0, &s);
    must_fail(go_on(generation, &r, &u, &id), UNKNOWN, "nothing waits");
    close_empty(generation);
}

static void test_another_model_or_cache_refuses(void **state)
{
    tiny_engine other, blocks;
    nrd_exec_config c;
    uint64_t id;
    (void)state;
    nrd_exec_config_init(&c);
    nrd_exec *context = open_exec(&c), *x = NULL;
    nrd_exec_request r = ask();
    const ticket t = end_context(context, begin_context(context, &r));
    c.device = "cpu";

    tiny_seed++;
    tiny_build(&other, tiny_llama, 16);
    tiny_seed--;
    must(nrd_exec_open(&x, other.dir, &c));
    must_fail(go_on(x, &r, &t, &id), INVALID, "another model");
    nrd_exec_close(x);
    tiny_build(&blocks, tiny_llama, 8);
    must(nrd_exec_open(&x, blocks.dir, &c));
    must_fail(go_on(x, &r, &t, &id), INVALID, "have 16 tokens, this one's 8");
    nrd_exec_close(x);
    c.kv_dtype = NRD_DTYPE_F32;
    x = open_exec(&c);
    must_fail(go_on(x, &r, &t, &id), INVALID, "this one of float32");
    nrd_exec_close(x);
    c.kv_dtype = NRD_DTYPE_NONE;
    x = open_exec(&c);
    ends_well(x, &r, &t);
    nrd_exec_close(x);
    close_empty(context);
    tiny_remove(&other);
    tiny_remove(&blocks);
}

static void test_there_is_a_limit(void **state)
{
    nrd_exec_config c;
    uint64_t id;
    (void)state;
    nrd_exec_config_init(&c);
    c.max_tokens_in_buffer = 90;
    nrd_exec *x = open_exec(&c);
    nrd_exec_request r = ask();
    const ticket a = end_context(x, begin_context(x, &r)), b = end_context(x, begin_context(x, &r));
    nrd_exec_request third = ask();
    third.kind = NRD_REQUEST_CONTEXT_ONLY;
    must_fail(nrd_exec_enqueue(x, &third, &id), UNAVAILABLE, "max_tokens_in_buffer");
    ends_well(x, &r, &a); /* who computes may go on itself */
    must(nrd_exec_enqueue(x, &third, &id));
    end_context(x, id);
    ends_well(x, &r, &b);
    static int32_t longer[100];
    third.input_ids = longer;
    third.n_input_ids = 100;
    must_fail(nrd_exec_enqueue(x, &third, &id), INVALID, "max_tokens_in_buffer is 90");
    close_empty(x);
}

/* Whatever becomes of the requests, room and prompts are given back. */
static void test_cancelled_ones_leave_nothing(void **state)
{
    nrd_exec_config c;
    uint64_t id;
    (void)state;
    nrd_exec_config_init(&c);
    nrd_exec *context = open_exec(&c), *generation = open_exec(&c);
    nrd_exec_request r = ask();
    for (int i = 0; i < 50; i++) {
        nrd_exec_response *o = NULL;
        id = begin_context(context, &r);
        nrd_exec_cancel(context, id);
        must(nrd_exec_await_id(context, id, &o, 60 * 1000 * 1000));
        assert_true(o->is_final);
        const bool is_there = o->n_context_phase_params > 0;
        ticket t = {0};
        memcpy(t.bytes, is_there ? o->context_phase_params : t.bytes, sizeof t.bytes);
        nrd_exec_response_free(o);
        if (!is_there) {
            t = end_context(context, begin_context(context, &r));
        }
        must(go_on(generation, &r, &t, &id));
        nrd_exec_cancel(generation, id);
        for (bool done = false; !done;) {
            must(nrd_exec_await_id(generation, id, &o, 60 * 1000 * 1000));
            done = o->is_final;
            nrd_exec_response_free(o);
        }
    }
    while (stats_of(context).n_tokens > 0) { /* of a request that has answered and is about to be freed */
        usleep(1000);
    }
    assert_int_equal(stats_of(context).n_kept, 0);
    close_empty(context);
    close_empty(generation);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_handed_over_as_alone),
        cmocka_unit_test(test_with_chunks_on_one_side_and_reuse_and_pauses_on_the_other),
        cmocka_unit_test(test_with_a_window),
        cmocka_unit_test(test_with_every_way_to_guess),
        cmocka_unit_test(test_a_record_of_it_is_replayed),
        cmocka_unit_test(test_parameters_are_good_once_and_for_one_prompt),
        cmocka_unit_test(test_sizes_and_kinds_are_checked),
        cmocka_unit_test(test_nobody_comes_in_time),
        cmocka_unit_test(test_its_executor_is_gone),
        cmocka_unit_test(test_another_model_or_cache_refuses),
        cmocka_unit_test(test_there_is_a_limit),
        cmocka_unit_test(test_cancelled_ones_leave_nothing),
    };
    return cmocka_run_group_tests(tests, mixed_setup, mixed_teardown);
}
