/* SPDX-License-Identifier: Apache-2.0
 * Requests with a random mix of features, one at a time and all together: the same answers to the bit, and at the
 * end nothing is held. */
#include "mixed.h"

enum { ENDS_EARLY = 1, TREES = 2 };

/* The first n of the requests. Some are cancelled, some run out of time: what the others say is the same. Closes x. */
static void run_together(nrd_exec *x, int n, unsigned how)
{
    const bool ends_early = how & ENDS_EARLY;
    uint64_t ids[N];
    for (int i = 0; i < n; i++) {
        nrd_exec_request r = requests[i].r;
        if ((how & TREES) && r.sampling.beam_width > 1) {
            nrd_error *err = nrd_exec_enqueue(x, &r, &ids[i]);
            assert_non_null(err);
            assert_non_null(strstr(nrd_exec_error_message(err), "beam_width"));
            nrd_exec_error_free(err);
            continue;
        }
        if (ends_early && i % 7 == 3) {
            r.deadline_ns = 1 + (i % 2) * (int64_t)1e18;
        }
        must(nrd_exec_enqueue(x, &r, &ids[i]));
        if (ends_early && i % 11 == 5) {
            nrd_exec_cancel(x, ids[i]);
        }
    }
    for (int i = 0; i < n; i++) {
        sum got = {0};
        if ((how & TREES) && requests[i].r.sampling.beam_width > 1) {
            continue;
        }
        if (ends_early && (i % 7 == 3 || i % 11 == 5)) {
            for (bool done = false; !done;) {
                nrd_exec_response *r = NULL;
                must(nrd_exec_await_id(x, ids[i], &r, 120 * 1000 * 1000));
                assert_non_null(r);
                done = r->is_final;
                nrd_exec_response_free(r);
            }
            continue;
        }
        take(x, ids[i], i, &got);
        if (!is_same(&got, &alone[i], !(how & TREES))) {
            fail_msg("request %d says something else beside others", i);
        }
    }
    close_unpinned(x);
}

static void test_together_as_alone(void **state)
{
    nrd_exec_config c;
    (void)state;
    nrd_exec_config_init(&c);
    run_together(open_exec(&c), N, 0);
}

static void test_with_reuse_chunks_and_pauses(void **state)
{
    nrd_exec_config c;
    (void)state;
    nrd_exec_config_init(&c);
    c.enable_kv_cache_reuse = c.enable_chunked_context = true;
    c.max_num_tokens = 96;
    c.policy = NRD_POLICY_MAX_UTILIZATION;
    c.max_tokens_in_paged_kv_cache = 900;
    run_together(open_exec(&c), N, 0);
}

static void test_while_others_end_early(void **state)
{
    nrd_exec_config c;
    (void)state;
    nrd_exec_config_init(&c);
    c.enable_kv_cache_reuse = true;
    run_together(open_exec(&c), N, ENDS_EARLY);
}

static nrd_exec *open_method(const tiny_method *m, nrd_exec_config c)
{
    char *json = tiny_method_json(m);
    c.speculative_config = json;
    nrd_exec *x = open_exec(&c);
    free(json);
    return x;
}

/* Drafts of all lengths, right and wrong, beside whatever a request asks for; pauses and reuse too. */
static void test_with_speculation(void **state)
{
    (void)state;
    for (size_t i = 0; i < TINY_METHODS; i++) {
        nrd_exec_config c;
        nrd_exec_config_init(&c);
        c.enable_kv_cache_reuse = tiny_methods[i].reuse;
        c.enable_chunked_context = true;
        c.max_num_tokens = 96;
        c.policy = tiny_methods[i].pauses ? NRD_POLICY_MAX_UTILIZATION : NRD_POLICY_GUARANTEED_NO_EVICT;
        c.max_tokens_in_paged_kv_cache = tiny_methods[i].pauses ? 900 : 0;
        run_together(open_method(&tiny_methods[i], c), N_EACH, (tiny_methods[i].trees ? TREES : 0) | (i == 0 ? ENDS_EARLY : 0));
    }
}

/* As many executors of one process as there are methods; each request goes to one by chance. */
static void test_each_request_with_a_random_method(void **state)
{
    nrd_exec *each[TINY_METHODS];
    int32_t of[N], drafted[TINY_METHODS] = {0};
    uint64_t ids[N];
    nrd_exec_config c;
    (void)state;
    nrd_exec_config_init(&c);
    c.enable_kv_cache_reuse = c.enable_chunked_context = true;
    c.max_num_tokens = 96;
    for (int i = 0; i < TINY_METHODS; i++) {
        each[i] = open_method(&tiny_methods[i], c);
    }
    state_of_dice = 4711;
    for (int i = 0; i < N; i++) {
        do {
            of[i] = roll(TINY_METHODS);
        } while (tiny_methods[of[i]].trees && requests[i].r.sampling.beam_width > 1);
        must(nrd_exec_enqueue(each[of[i]], &requests[i].r, &ids[i]));
    }
    for (int i = 0; i < N; i++) {
        sum got = {0};
        take(each[of[i]], ids[i], i, &got);
        if (!is_same(&got, &alone[i], !tiny_methods[of[i]].trees)) {
            fail_msg("request %d says something else with %s", i, tiny_methods[of[i]].json);
        }
        drafted[of[i]] += requests[i].r.n_draft_input_ids > 0 ? 0 : got.n_drafted; /* those that it brought are no method's */
    }
    for (int i = 0; i < TINY_METHODS; i++) {
        must(nrd_exec_shutdown(each[i], -1));
        nrd_exec_lora_stats lora = {.size = sizeof lora};
        nrd_exec_lora_get_stats(each[i], &lora);
        assert_int_equal(lora.n_pinned, 0);
        assert_true(drafted[i] > 0 || !strstr(tiny_methods[i].json, "\"adaptive\": false"));
        close_empty(each[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_together_as_alone),
        cmocka_unit_test(test_with_reuse_chunks_and_pauses),
        cmocka_unit_test(test_while_others_end_early),
        cmocka_unit_test(test_with_speculation),
        cmocka_unit_test(test_each_request_with_a_random_method),
    };
    return cmocka_run_group_tests(tests, mixed_setup, mixed_teardown);
}
