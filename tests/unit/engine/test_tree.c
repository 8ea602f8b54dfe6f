/* SPDX-License-Identifier: Apache-2.0
 * Token trees against the obvious way: what a node sees, which path holds, and what a sequence then says, which is what
 * it says without trees. */
#include "base/hash.h"
#include "engine/decode/decode.h"
#include "engine/speculate/proposer.h"
#include "engine/speculate/verify.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 5, RUNS = 3000, TOTAL = 600 };

static uint64_t dice = 11;

static int32_t roll(int32_t n)
{
    dice = nrd_hash_u64(dice, 3);
    return (int32_t)(dice >> 33) % n;
}

/* Random continuations, of few tokens so that many begin alike. */
static void grow(nrd_token_tree *t, int32_t max)
{
    t->n = 0;
    for (int32_t k = roll(12); k >= 0; k--) {
        for (int32_t node = -1, d = roll(7); d >= 0; d--) {
            const int32_t next = nrd_tree_add(t, max, node, roll(VOCAB));
            if (next < 0) {
                break;
            }
            node = next;
        }
    }
}

/* The tokens from the root down, found from below. */
static int32_t path_of(const nrd_token_tree *t, int32_t node, int32_t *out)
{
    if (node < 0) {
        return 0;
    }
    const int32_t n = path_of(t, t->parent[node], out);
    out[n] = t->ids[node];
    return n + 1;
}

static void test_a_tree_is_sound(void **state)
{
    (void)state;
    for (int run = 0; run < RUNS; run++) {
        nrd_token_tree t;
        const int32_t max = 1 + roll(40);
        grow(&t, max);
        assert_true(t.n > 0 && t.n <= max);
        bool chain = true;
        for (int32_t i = 0; i < t.n; i++) {
            int32_t path[NRD_MAX_TREE], again[NRD_MAX_TREE];
            assert_true(t.parent[i] >= -1 && t.parent[i] < i);
            const int32_t n = path_of(&t, i, path);
            assert_int_equal(t.depth[i], n);
            nrd_tree_path(&t, i, again);
            assert_memory_equal(path, again, (size_t)n * sizeof *path);
            chain = chain && t.parent[i] == i - 1;
            assert_int_equal(nrd_tree_child(&t, t.n, t.parent[i], t.ids[i]), i); /* siblings differ */
            assert_int_equal(nrd_tree_child(&t, i, t.parent[i], t.ids[i]), -1);  /* the first nodes are a tree */
        }
        assert_int_equal(nrd_tree_is_chain(&t, t.n), chain);
        const int32_t before = t.n;
        assert_true(nrd_tree_add(&t, before, -1, VOCAB) == -1 && t.n == before); /* no room: nothing changes */
    }
}

static bool is_above(const nrd_token_tree *t, int32_t a, int32_t node)
{
    while (node >= 0 && node != a) {
        node = t->parent[node];
    }
    return node == a;
}

static void test_a_node_sees_what_leads_to_it(void **state)
{
    (void)state;
    for (int run = 0; run < RUNS / 10; run++) {
        nrd_token_tree t;
        grow(&t, NRD_MAX_TREE);
        const int32_t before = roll(70);
        for (int32_t i = 0; i < t.n; i++) {
            uint32_t row[(NRD_MAX_TREE + 70) / 32 + 1] = {0};
            nrd_tree_see(&t, i, before, row);
            for (int32_t k = 0; k < before + t.n; k++) {
                assert_int_equal(row[k / 32] >> (k % 32) & 1, k < before || is_above(&t, k - before, i));
            }
        }
    }
}

/* What a model says behind a text: any function of all of it. */
static int32_t say(const int32_t *text, int32_t n)
{
    return (int32_t)(nrd_hash_bytes(1, text, (size_t)n * sizeof *text) % VOCAB);
}

typedef struct fixture {
    nrd_seq q;
    int32_t tokens[TOTAL];
    nrd_token_tree tree;
    int32_t choices[NRD_MAX_TREE + 3];
} fixture;

static void begin(fixture *f)
{
    memset(f, 0, sizeof *f);
    f->q.req.width = 1;
    f->q.req.n_prompt = 1 + roll(4);
    f->q.req.max_total = f->q.req.n_prompt + 1 + roll(60);
    f->q.req.end_id = roll(3) ? -1 : roll(VOCAB);
    f->q.req.sampling = (nrd_sampling){.top_k = 1, .top_p_decay = 1, .temperature = 1, .repetition_penalty = 1};
    f->q.dec.tokens = f->tokens;
    for (int32_t i = 0; i < f->q.req.n_prompt; i++) {
        f->tokens[i] = roll(VOCAB);
    }
    nrd_decode_prepare(&f->q);
}

/* The model's choice behind the known tokens, and behind each node as if the nodes above it were right. */
static void choose(fixture *f, int32_t row, int32_t n)
{
    int32_t text[2 * TOTAL];
    memcpy(text, f->tokens, (size_t)f->q.dec.n_known * sizeof *text);
    f->choices[row] = say(text, f->q.dec.n_known);
    for (int32_t i = 0; i < n; i++) {
        f->choices[row + 1 + i] = say(text, f->q.dec.n_known + path_of(&f->tree, i, text + f->q.dec.n_known));
    }
}

static void test_a_sequence_says_what_it_says_without_trees(void **state)
{
    int64_t n_steps = 0, n_said = 0;
    (void)state;
    for (int run = 0; run < RUNS; run++) {
        fixture f;
        nrd_seq_finish finish = NRD_SEQ_FINISH_NONE;
        begin(&f);
        while (finish == NRD_SEQ_FINISH_NONE) {
            int32_t kept[TOTAL], path[NRD_MAX_TREE], n_path = 0, n_known = f.q.dec.n_known;
            const int32_t row = roll(2), room = f.q.req.max_total - n_known - 1;
            grow(&f.tree, room > 0 ? room : 1);
            for (int32_t i = 0, node = -1; i < 4 && node < f.tree.n; i++) { /* and a continuation that is right for a while */
                int32_t text[2 * TOTAL];
                memcpy(text, f.tokens, (size_t)n_known * sizeof *text);
                const int32_t next = nrd_tree_add(&f.tree, room > 0 ? room : 1, node,
                                                  say(text, n_known + path_of(&f.tree, node, text + n_known)));
                node = next >= 0 ? next : f.tree.n;
            }
            const int32_t n = room > 0 ? 1 + roll(f.tree.n) : 0;
            choose(&f, row, n);
            memcpy(kept, f.tokens, sizeof kept);
            const nrd_step_result r = {.ids = f.choices};
            /* The path by hand: nodes all of whose ancestors were chosen are one below another. */
            for (int32_t i = 0; i < n; i++) {
                if (nrd_tree_holds(&f.tree, f.choices + row, i)) {
                    assert_true(f.tree.parent[i] == (n_path ? path[n_path - 1] : -1));
                    path[n_path++] = i;
                }
            }
            nrd_draft_accept a;
            finish = nrd_speculate_accept(&f.q, &r, row, n, &f.tree, &a);
            assert_true(a.n_accepted <= n_path && (finish != NRD_SEQ_FINISH_NONE || a.n_accepted == n_path));
            assert_memory_equal(a.path, path, (size_t)a.n_accepted * sizeof *path);
            assert_int_equal(f.q.dec.n_known, n_known + a.n_new);
            for (int32_t i = 0; i < a.n_new; i++) { /* word for word */
                assert_int_equal(f.tokens[n_known + i], say(f.tokens, n_known + i));
                assert_true(f.tokens[n_known + i] != f.q.req.end_id);
            }
            if (finish == NRD_SEQ_FINISH_END_ID) {
                assert_int_equal(say(f.tokens, f.q.dec.n_known), f.q.req.end_id);
            }
            assert_memory_equal(f.tokens, kept, (size_t)n_known * sizeof *kept);
            n_steps++;
            n_said += a.n_new;
        }
        assert_true(finish == NRD_SEQ_FINISH_END_ID || f.q.dec.n_known == f.q.req.max_total);
    }
    assert_true(n_said > n_steps * 3 / 2); /* trees did hold */
}

/* Lookahead's own trees on a text that repeats itself: sound, within the limits, and of use. */
static void test_lookahead_finds_what_comes_again(void **state)
{
    static const nrd_lookahead sizes[] = {{4, 3, 4}, {1, 2, 1}, {7, 5, 7}, {1, 4, 3}, {15, 5, 15}};
    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        fixture f;
        int32_t n_steps = 0, most = nrd_lookahead_nodes(&sizes[s]);
        memset(&f, 0, sizeof f);
        f.q.req.width = 1;
        f.q.req.n_prompt = 3;
        f.q.req.max_total = TOTAL - NRD_MAX_TREE;
        f.q.req.end_id = -1;
        f.q.req.sampling = (nrd_sampling){.top_k = 1, .top_p_decay = 1, .temperature = 1, .repetition_penalty = 1};
        f.q.dec.tokens = f.tokens;
        assert_null(nrd_proposer_lookahead(&f.q.spec.proposer, &sizes[s], f.q.req.max_total));
        nrd_proposer *p = f.q.spec.proposer;
        nrd_decode_prepare(&f.q);
        for (nrd_seq_finish finish = NRD_SEQ_FINISH_NONE; finish == NRD_SEQ_FINISH_NONE; n_steps++) {
            const int32_t left = f.q.req.max_total - f.q.dec.n_known - 1, n_known = f.q.dec.n_known;
            const int32_t n = left > 0 ? p->propose(p, &f.q, f.tokens + n_known, left) : 0;
            assert_true(n >= 0 && n <= most && n <= left + (left < 0));
            if (nrd_seq_n_generated(&f.q) > 0 && left >= most) {
                assert_true(n >= (sizes[s].window - 1) / 4);
            }
            f.tree = *p->tree;
            /* A text of period 11: tokens by their place. */
            f.choices[0] = n_known % 11;
            for (int32_t i = 0; i < n; i++) {
                f.choices[1 + i] = (n_known + f.tree.depth[i]) % 11;
            }
            const nrd_step_result r = {.ids = f.choices};
            nrd_draft_accept a;
            finish = nrd_speculate_accept(&f.q, &r, 0, n, &f.tree, &a);
            if (n > 0) {
                p->hear(p, &(nrd_draft_outcome){n, a.n_accepted, a.path, f.choices});
            }
        }
        for (int32_t i = f.q.req.n_prompt; i < f.q.req.max_total; i++) {
            assert_int_equal(f.tokens[i], i % 11);
        }
        assert_true(n_steps < (f.q.req.max_total - 3) * 3 / (2 * sizes[s].ngram) + 20);
        nrd_proposer_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_tree_is_sound),
        cmocka_unit_test(test_a_node_sees_what_leads_to_it),
        cmocka_unit_test(test_a_sequence_says_what_it_says_without_trees),
        cmocka_unit_test(test_lookahead_finds_what_comes_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
