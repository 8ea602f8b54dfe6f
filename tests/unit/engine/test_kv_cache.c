/* SPDX-License-Identifier: Apache-2.0
 * KV bookkeeping and the prefix tree against slow, obvious models of the same. */
#include "engine/kv_cache.h"
#include "engine/prefix_tree.h"

#include "random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { BT = 4, MAX_LEN = 40, N_SEQ = 6 };

/* ---- the tree against a list ---- */

typedef struct naive_node {
    bool used;
    int32_t parent;
    uint64_t key;
    int32_t tokens[BT];
} naive_node;

static int32_t naive_find(const naive_node *n, int32_t count, int32_t parent, uint64_t key,
                          const int32_t *tokens)
{
    for (int32_t i = 0; i < count; i++) {
        if (n[i].used && n[i].parent == parent && n[i].key == key &&
            memcmp(n[i].tokens, tokens, sizeof n[i].tokens) == 0) {
            return i;
        }
    }
    return -1;
}

static bool naive_has_child(const naive_node *n, int32_t count, int32_t b)
{
    for (int32_t i = 0; i < count; i++) {
        if (n[i].used && n[i].parent == b) {
            return true;
        }
    }
    return false;
}

static void tree_round(rng *r)
{
    enum { N = 40 };
    naive_node naive[N] = {0};
    nrd_prefix *t;
    assert_null(nrd_prefix_new(&t, N, BT));
    for (int step = 0; step < 600; step++) {
        int32_t tokens[BT], parent = rng_in(r, -1, N - 1), b = rng_in(r, 0, N - 1);
        uint64_t k = (uint64_t)rng_in(r, 0, 1);
        nrd_prefix_key key = {k, 7};
        for (int i = 0; i < BT; i++) {
            tokens[i] = rng_in(r, 0, 1);
        }
        if (parent >= 0 && !naive[parent].used) {
            parent = -1;
        }
        if (parent >= 0) {
            k = naive[parent].key;
            key.a = k;
        }
        int32_t want = naive_find(naive, N, parent, k, tokens);
        assert_int_equal(nrd_prefix_find(t, parent, &key, tokens, NULL), want);
        /* partial: the longest common beginning among the children */
        int32_t best = 0, got = 0, n = rng_in(r, 1, BT);
        for (int32_t i = 0; i < N; i++) {
            int32_t c = 0;
            while (naive[i].used && naive[i].parent == parent && naive[i].key == k && c < n &&
                   naive[i].tokens[c] == tokens[c]) {
                c++;
            }
            best = c > best ? c : best;
        }
        int32_t p = nrd_prefix_find_partial(t, parent, &key, tokens, NULL, n, &got);
        assert_int_equal(got, best);
        assert_true((p >= 0) == (best > 0));
        if (p >= 0) {
            assert_memory_equal(naive[p].tokens, tokens, (size_t)best * sizeof *tokens);
        }
        if (!naive[b].used && want < 0) {
            nrd_prefix_insert(t, b, parent, &key, tokens, NULL);
            naive[b] = (naive_node){.used = true, .parent = parent, .key = k};
            memcpy(naive[b].tokens, tokens, sizeof tokens);
        } else if (naive[b].used && !naive_has_child(naive, N, b)) {
            nrd_prefix_remove(t, b);
            naive[b].used = false;
        }
        for (int32_t i = 0; i < N; i++) {
            assert_int_equal(nrd_prefix_has(t, i), naive[i].used);
        }
        nrd_prefix_check(t);
    }
    nrd_prefix_free(t);
}

static void test_tree_agrees_with_a_list_under_random_operations(void **state)
{
    uint64_t seed = first_seed();
    (void)state;
    for (uint64_t i = 0; i < 20; i++) {
        rng r = {seed + i};
        tree_round(&r);
    }
}

static void test_extra_ids_and_keys_keep_equal_tokens_apart(void **state)
{
    nrd_prefix *t;
    int32_t tokens[BT] = {1, 2, 3, 4};
    uint64_t picture[BT] = {0, 9, 9, 0}, none[BT] = {0};
    nrd_prefix_key a = {1, 0}, b = {2, 0};
    (void)state;
    assert_null(nrd_prefix_new(&t, 4, BT));
    nrd_prefix_insert(t, 0, -1, &a, tokens, picture);
    assert_int_equal(nrd_prefix_find(t, -1, &a, tokens, picture), 0);
    assert_int_equal(nrd_prefix_find(t, -1, &a, tokens, NULL), -1);
    assert_int_equal(nrd_prefix_find(t, -1, &b, tokens, picture), -1);
    nrd_prefix_insert(t, 1, -1, &a, tokens, NULL);
    assert_int_equal(nrd_prefix_find(t, -1, &a, tokens, none), 1);
    nrd_prefix_free(t);
}

/* ---- the cache against what its blocks contain ---- */

typedef struct sim_seq {
    bool used;
    int32_t tokens[MAX_LEN], n;
    nrd_kv_table table;
    nrd_kv_content content;
} sim_seq;

typedef struct sim {
    nrd_kv *kv;
    int32_t n_blocks;
    uint64_t (*content)[BT]; /* hash of everything up to a position, where that was computed */
    sim_seq seqs[N_SEQ];
    uint64_t published[4096]; /* prefixes that must be found until something is evicted */
    int32_t n_published;
    bool window;
    int64_t evicted, n_moved;
} sim;

static uint64_t prefix_hash(const sim_seq *q, int32_t n)
{
    uint64_t h = nrd_hash_u64(q->content.key.a, 1);
    for (int32_t i = 0; i < n; i++) {
        h = nrd_hash_u64(h, (uint64_t)(uint32_t)q->tokens[i]);
    }
    return h;
}

static void write_tokens(sim *s, sim_seq *q, int32_t from)
{
    for (int32_t i = from; i < q->n; i++) {
        s->content[q->table.blocks[i / BT]][i % BT] = prefix_hash(q, i + 1);
    }
}

static void check_content(const sim *s)
{
    for (int i = 0; i < N_SEQ; i++) {
        const sim_seq *q = &s->seqs[i];
        for (int32_t p = 0; q->used && p < q->n; p++) {
            int32_t b = q->table.blocks[p / BT];
            assert_true(b < 0 || s->content[b][p % BT] == prefix_hash(q, p + 1));
        }
    }
}

static void check_all(const sim *s)
{
    const nrd_kv_table *tables[N_SEQ];
    for (int i = 0; i < N_SEQ; i++) {
        tables[i] = &s->seqs[i].table;
    }
    nrd_kv_check(s->kv, tables, N_SEQ, 0);
    check_content(s);
}

/* Before anything is written, as before a step. */
static void move_content(sim *s)
{
    int32_t n;
    const int32_t(*moves)[2] = nrd_kv_moves(s->kv, &n);
    assert_true(n <= nrd_kv_max_moves(s->kv));
    for (int32_t i = 0; i < n; i++) {
        memcpy(s->content[moves[i][1]], s->content[moves[i][0]], sizeof s->content[0]);
    }
    nrd_kv_moves_done(s->kv);
}

static void note_evictions(sim *s)
{
    nrd_kv_stats st;
    nrd_kv_get_stats(s->kv, &st);
    s->n_moved = st.n_offloaded_total + st.n_onboarded_total;
    assert_int_equal(st.n_free + st.n_cached + st.n_held, st.n_blocks);
    if (st.n_evicted_total != s->evicted) {
        s->evicted = st.n_evicted_total;
        s->n_published = 0;
    }
}

static void start(sim *s, sim_seq *q, rng *r)
{
    nrd_kv_match m;
    q->n = rng_in(r, 1, MAX_LEN - 8);
    for (int32_t i = 0; i < MAX_LEN; i++) {
        q->tokens[i] = i % 7 == 6 ? rng_in(r, 0, 1) : i % 3; /* few different ones: much to share */
    }
    q->content = (nrd_kv_content){.key = {(uint64_t)rng_in(r, 0, 1), 0}, .tokens = q->tokens};
    nrd_kv_find(s->kv, &q->content, q->n - 1, &m);
    int32_t must = 0;
    for (int32_t i = 0; i < s->n_published; i++) {
        for (int32_t k = 1; k * BT <= q->n - 1; k++) {
            must = s->published[i] == prefix_hash(q, k * BT) && k > must ? k : must;
        }
    }
    assert_true(m.n_blocks >= must);
    int32_t need = (q->n + BT - 1) / BT - m.n_blocks;
    if (need + 1 + m.n_cached + m.n_host > nrd_kv_n_available(s->kv)) {
        return;
    }
    q->used = true;
    nrd_kv_attach(s->kv, &q->table, &q->content, &m);
    int32_t done = m.n_blocks * BT;
    assert_true(nrd_kv_extend(s->kv, &q->table, q->n));
    move_content(s);
    if (m.partial_block >= 0) {
        memcpy(s->content[q->table.blocks[m.n_blocks]], s->content[m.partial_block],
               sizeof s->content[0]);
        nrd_kv_unref(s->kv, m.partial_block);
        done += m.n_partial;
    }
    for (int32_t p = 0; p < done; p++) { /* what was reused is what this prompt says */
        assert_true(s->content[q->table.blocks[p / BT]][p % BT] == prefix_hash(q, p + 1));
    }
    write_tokens(s, q, done);
}

static void fork_one(sim *s, sim_seq *from, sim_seq *to, rng *r)
{
    int32_t src, dst, n = rng_in(r, 0, from->n);
    if (from->table.n_dropped > 0 || !nrd_kv_fork(s->kv, &to->table, &from->table, n, &src, &dst)) {
        return;
    }
    move_content(s);
    if (src >= 0) {
        memcpy(s->content[dst], s->content[src], sizeof s->content[0]);
    }
    memcpy(to->tokens, from->tokens, sizeof to->tokens);
    to->content = from->content;
    to->content.tokens = to->tokens;
    to->n = n;
    to->used = true;
}

static void publish(sim *s, sim_seq *q)
{
    nrd_kv_publish(s->kv, &q->table, &q->content, q->n);
    /* Where windows cut paths, what was published may go without this sequence's doing. */
    for (int32_t k = 1; !s->window && k <= q->table.n_published && s->n_published < 4000; k++) {
        s->published[s->n_published++] = prefix_hash(q, k * BT);
    }
}

static int64_t cache_round(rng *r, bool reuse, bool window, int32_t n_host)
{
    sim s = {.n_blocks = rng_in(r, 12, 40), .window = window};
    nrd_kv_config cfg = {
        .n_blocks = s.n_blocks, .block_tokens = BT, .reuse = reuse, .n_host_blocks = n_host};
    assert_null(nrd_kv_new(&s.kv, &cfg));
    s.content = calloc((size_t)(s.n_blocks + n_host), sizeof *s.content);
    for (int i = 0; i < N_SEQ; i++) {
        assert_null(nrd_kv_table_init(&s.seqs[i].table, MAX_LEN / BT + 2));
    }
    for (int step = 0; step < 800; step++) {
        sim_seq *q = &s.seqs[rng_in(r, 0, N_SEQ - 1)], *o = &s.seqs[rng_in(r, 0, N_SEQ - 1)];
        int op = rng_in(r, 0, 9);
        if (!q->used) {
            if (op < 8) {
                start(&s, q, r);
            } else if (o->used && o != q) {
                fork_one(&s, o, q, r);
            }
        } else if (op < 5 && q->n < MAX_LEN) {
            q->tokens[q->n] = rng_in(r, 0, 2);
            if (nrd_kv_extend(s.kv, &q->table, q->n + 1)) {
                move_content(&s);
                q->n++;
                write_tokens(&s, q, q->n - 1);
            } else {
                assert_int_equal(nrd_kv_n_available(s.kv), 0);
            }
        } else if (op < 7) {
            publish(&s, q);
        } else if (op == 7 && window) {
            nrd_kv_drop_window(s.kv, &q->table, q->n - 6, 2);
        } else if (op >= 8) {
            nrd_kv_release(s.kv, &q->table);
            q->used = false;
        }
        note_evictions(&s);
        check_all(&s);
    }
    for (int i = 0; i < N_SEQ; i++) {
        nrd_kv_release(s.kv, &s.seqs[i].table);
        nrd_kv_table_fini(&s.seqs[i].table);
    }
    assert_int_equal(nrd_kv_n_available(s.kv), s.n_blocks);
    nrd_kv_free(s.kv);
    free(s.content);
    return s.n_moved;
}

static void test_cache_keeps_its_content_under_random_operations(void **state)
{
    uint64_t seed = first_seed();
    (void)state;
    for (uint64_t i = 0; i < 60; i++) {
        rng r = {seed + 1000 * i};
        cache_round(&r, i % 4 != 0, i % 3 == 0, 0);
    }
}

static void test_blocks_move_to_host_memory_and_back(void **state)
{
    uint64_t seed = first_seed();
    int64_t moved = 0;
    (void)state;
    for (uint64_t i = 0; i < 60; i++) {
        rng r = {seed + 1000 * i + 7};
        moved += cache_round(&r, true, i % 3 == 0, rng_in(&r, 1, 60));
    }
    assert_true(moved > 6000);
}

static void publish_line(nrd_kv *kv, nrd_kv_table *t, int32_t first, const nrd_kv_retention *ret)
{
    int32_t tokens[2 * BT];
    for (int32_t i = 0; i < 2 * BT; i++) {
        tokens[i] = first;
    }
    nrd_kv_content c = {.tokens = tokens, .retention = ret};
    assert_true(nrd_kv_extend(kv, t, 2 * BT));
    nrd_kv_publish(kv, t, &c, 2 * BT);
    nrd_kv_release(kv, t);
}

static int32_t n_found(nrd_kv *kv, int32_t first)
{
    int32_t tokens[2 * BT];
    nrd_kv_match m;
    for (int32_t i = 0; i < 2 * BT; i++) {
        tokens[i] = first;
    }
    nrd_kv_content c = {.tokens = tokens};
    nrd_kv_find(kv, &c, 2 * BT, &m);
    return m.n_blocks;
}

static void test_eviction_takes_low_priority_then_oldest_and_children_first(void **state)
{
    nrd_kv *kv;
    nrd_kv_table t, hog;
    nrd_kv_config cfg = {.n_blocks = 6, .block_tokens = BT, .reuse = true};
    nrd_kv_range high = {0, -1, 90, -1};
    nrd_kv_retention keep = {.ranges = &high,
                             .n_ranges = 1,
                             .n_prompt = 2 * BT,
                             .decode_priority = 35,
                             .decode_duration_ms = -1};
    (void)state;
    assert_null(nrd_kv_new(&kv, &cfg));
    assert_null(nrd_kv_table_init(&t, 8));
    assert_null(nrd_kv_table_init(&hog, 8));
    publish_line(kv, &t, 1, &keep);
    publish_line(kv, &t, 2, NULL);
    publish_line(kv, &t, 3, NULL);
    assert_true(nrd_kv_extend(kv, &hog, BT));
    assert_int_equal(n_found(kv, 2), 1); /* the older one lost its second block first */
    assert_true(nrd_kv_extend(kv, &hog, 3 * BT));
    assert_int_equal(n_found(kv, 2), 0);
    assert_int_equal(n_found(kv, 3), 1);
    assert_int_equal(n_found(kv, 1), 2); /* oldest of all, but worth more */
    assert_true(nrd_kv_extend(kv, &hog, 6 * BT));
    assert_int_equal(n_found(kv, 1), 0);
    assert_false(nrd_kv_extend(kv, &hog, 7 * BT));
    assert_int_equal(hog.n_blocks, 6);
    nrd_kv_release(kv, &hog);
    nrd_kv_table_fini(&hog);
    nrd_kv_table_fini(&t);
    nrd_kv_free(kv);
}

static void test_retention_priority_ends_with_its_duration(void **state)
{
    nrd_kv *kv;
    nrd_kv_table t, hog;
    nrd_kv_config cfg = {.n_blocks = 4, .block_tokens = BT, .reuse = true};
    nrd_kv_range high = {0, -1, 90, 1000};
    nrd_kv_retention keep = {.ranges = &high,
                             .n_ranges = 1,
                             .n_prompt = 2 * BT,
                             .decode_priority = 35,
                             .decode_duration_ms = -1};
    (void)state;
    assert_null(nrd_kv_new(&kv, &cfg));
    assert_null(nrd_kv_table_init(&t, 8));
    assert_null(nrd_kv_table_init(&hog, 8));
    nrd_kv_set_time(kv, 5000);
    publish_line(kv, &t, 1, &keep);
    publish_line(kv, &t, 2, NULL);
    nrd_kv_set_time(kv, 6001);
    assert_true(nrd_kv_extend(kv, &hog, 2 * BT));
    assert_int_equal(n_found(kv, 1), 0); /* expired: now the oldest of equals */
    assert_int_equal(n_found(kv, 2), 2);
    nrd_kv_release(kv, &hog);
    nrd_kv_table_fini(&hog);
    nrd_kv_table_fini(&t);
    nrd_kv_free(kv);
}

static void test_equal_content_computed_twice_is_kept_once(void **state)
{
    nrd_kv *kv;
    nrd_kv_table a, b;
    nrd_kv_config cfg = {.n_blocks = 4, .block_tokens = BT, .reuse = true};
    int32_t tokens[BT] = {1, 2, 3, 4};
    nrd_kv_content c = {.tokens = tokens};
    const nrd_kv_table *both[2] = {&a, &b};
    (void)state;
    assert_null(nrd_kv_new(&kv, &cfg));
    assert_null(nrd_kv_table_init(&a, 4));
    assert_null(nrd_kv_table_init(&b, 4));
    assert_true(nrd_kv_extend(kv, &a, BT) && nrd_kv_extend(kv, &b, BT));
    nrd_kv_publish(kv, &a, &c, BT);
    nrd_kv_publish(kv, &b, &c, BT);
    assert_int_equal(a.blocks[0], b.blocks[0]);
    assert_int_equal(nrd_kv_n_available(kv), 3);
    nrd_kv_check(kv, both, 2, 0);
    nrd_kv_release(kv, &a);
    nrd_kv_release(kv, &b);
    nrd_kv_table_fini(&a);
    nrd_kv_table_fini(&b);
    nrd_kv_free(kv);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tree_agrees_with_a_list_under_random_operations),
        cmocka_unit_test(test_extra_ids_and_keys_keep_equal_tokens_apart),
        cmocka_unit_test(test_cache_keeps_its_content_under_random_operations),
        cmocka_unit_test(test_blocks_move_to_host_memory_and_back),
        cmocka_unit_test(test_eviction_takes_low_priority_then_oldest_and_children_first),
        cmocka_unit_test(test_retention_priority_ends_with_its_duration),
        cmocka_unit_test(test_equal_content_computed_twice_is_kept_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
