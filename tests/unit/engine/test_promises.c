/* SPDX-License-Identifier: Apache-2.0
 * Text that must come next is computed in few steps, which others who generate can bear. */
#include "engine/decode/decode.h"
#include "engine/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { BT = 4, PROMPT = 2, PROMISED = 40, MAX = 64, MAX_SEQS = 3 };

typedef struct one {
    nrd_seq q;
    int32_t tokens[MAX], slots[1];
    nrd_kv_table tables[1];
    bool promised; /* its text was appended */
} one;

static void begin(one *o, bool may_jump)
{
    o->q = (nrd_seq){.req = {.width = 1, .n_prompt = PROMPT, .max_total = MAX - 1, .end_id = -1, .may_jump = may_jump,
                             .no_reuse = true, .content = {.tokens = o->tokens},
                             .sampling = {.repetition_penalty = 1, .top_p_decay = 1}},
                     .dec = {.tokens = o->tokens},
                     .sched = {.tables = o->tables, .slots = o->slots}};
    assert_null(nrd_kv_table_init(&o->tables[0], MAX / BT + 1));
    nrd_decode_prepare(&o->q);
}

static one *one_of(one *all, const nrd_seq *q)
{
    int i = 0;
    while (&all[i].q != q) {
        i++;
    }
    return &all[i];
}

/* Behind its first token each that may has PROMISED more; every token is computed once, in order. Returns the largest
 * step without a prompt until the last promise was kept; *n_steps: how many these were. */
static int32_t largest_step(int32_t mixed, int n, int n_jumping, int *n_steps)
{
    const nrd_sched_limits lim = {.max_batch_size = 4, .max_beam_width = 1, .max_num_tokens = 200, .chunked_context = true,
                                  .mixed_context_tokens = mixed};
    const nrd_kv_config kc = {.n_blocks = 100, .block_tokens = BT};
    int32_t ids[4] = {1, 1, 1, 1}, promise[PROMISED] = {0}, most = 0, at[MAX_SEQS] = {0};
    float log_probs[4] = {0};
    bool no_choice[4] = {0};
    const nrd_step_result r = {.ids = ids, .log_probs = log_probs, .log_probs_norm = log_probs, .no_choice = no_choice};
    one all[MAX_SEQS] = {0};
    nrd_kv *kv;
    nrd_sched *s;
    nrd_plan p = {0};
    assert_null(nrd_kv_new(&kv, &kc));
    assert_null(nrd_sched_new(&s, &lim, kv));
    assert_null(nrd_plan_init(&p, &lim, kv));
    for (int i = 0; i < n; i++) {
        begin(&all[i], i < n_jumping);
        nrd_sched_add(s, &all[i].q);
    }
    *n_steps = 0;
    for (int kept = 0; kept < n_jumping;) {
        nrd_sched_event events[4];
        int32_t n_events;
        nrd_sched_plan(s, &p);
        assert_true(p.n_entries == n); /* nobody waits for another's promise */
        for (int k = 0; k < p.n_entries; k++) {
            const nrd_plan_entry *e = &p.entries[k];
            const int i = (int)(one_of(all, e->seq) - all);
            assert_int_equal(e->start, at[i]);
            at[i] += e->n;
            assert_true((e->row >= 0) == (at[i] == e->seq->dec.n_known));
        }
        most = p.n_context == 0 && p.n_tokens > most ? p.n_tokens : most;
        *n_steps += p.n_context == 0;
        nrd_sched_commit(s, &p, &r, events, &n_events);
        for (int32_t k = 0; k < n_events; k++) {
            one *o = one_of(all, events[k].seq);
            if (!o->q.req.may_jump) {
                continue;
            }
            kept += o->promised;
            if (!o->promised) {
                nrd_sched_append(s, promise, PROMISED, &events[k]);
                o->promised = true;
            }
        }
        nrd_sched_check(s);
    }
    for (int i = 0; i < n; i++) {
        nrd_sched_end(s, &all[i].q);
        nrd_kv_table_fini(&all[i].tables[0]);
    }
    nrd_plan_fini(&p);
    nrd_sched_free(s);
    nrd_kv_free(kv);
    return most;
}

static void test_beside_others_promises_double_a_step_at_most(void **state)
{
    int n_steps;
    (void)state;
    assert_int_equal(largest_step(8, 2, 1, &n_steps), 4);
    assert_int_equal(n_steps, (PROMISED + 1 + 2) / 3);
    assert_int_equal(largest_step(8, 3, 2, &n_steps), 6);
    assert_int_equal(largest_step(8, 3, 3, &n_steps), 6);
}

static void test_a_promise_to_one_alone_is_one_step(void **state)
{
    int n_steps;
    (void)state;
    assert_int_equal(largest_step(8, 1, 1, &n_steps), PROMISED + 1);
    assert_int_equal(n_steps, 1);
}

static void test_without_a_limit_each_promise_is_one_step(void **state)
{
    int n_steps;
    (void)state;
    assert_int_equal(largest_step(0, 3, 2, &n_steps), 2 * (PROMISED + 1) + 1);
    assert_int_equal(n_steps, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside_others_promises_double_a_step_at_most),
        cmocka_unit_test(test_a_promise_to_one_alone_is_one_step),
        cmocka_unit_test(test_without_a_limit_each_promise_is_one_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
