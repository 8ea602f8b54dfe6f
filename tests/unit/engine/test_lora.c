/* SPDX-License-Identifier: Apache-2.0
 * The caches of adapters: ids, pins, what leaves first; slots and pages, on a device that does not share the
 * host's memory (the CPU device behind a description that says so). */
#include "base/mem.h"
#include "device/device.h"
#include "engine/lora_internal.h"
#include "engine/lora_slots.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, HIDDEN = 32, RANK = 8, ROWS = 3 };

static nrd_device *cpu;
static nrd_model_spec spec;

/* ---- a device with memory of its own ---- */

static nrd_device_ops apart_ops;
static nrd_device apart = {&apart_ops};
static uint64_t free_bytes;

static void apart_info(nrd_device *dev, nrd_device_info *info)
{
    (void)dev;
    cpu->ops->get_info(cpu, info);
    info->host_is_device = false;
    info->mem_free_bytes = free_bytes;
}

static nrd_error *apart_alloc(nrd_device *dev, void **out, nrd_mem_kind kind, size_t bytes, const char *pool)
{
    (void)dev;
    return cpu->ops->alloc(cpu, out, kind, bytes, pool);
}

static void apart_free(nrd_device *dev, nrd_mem_kind kind, void *p)
{
    (void)dev;
    cpu->ops->free(cpu, kind, p);
}

static nrd_error *apart_stream(nrd_device *dev, nrd_stream **out)
{
    (void)dev;
    return cpu->ops->stream_new(cpu, out);
}

static void ok(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
}

static void must_fail(nrd_error *err, nrd_error_code code, const char *words)
{
    assert_non_null(err);
    assert_int_equal(nrd_error_get_code(err), code);
    assert_non_null(strstr(nrd_error_message(err), words));
    nrd_error_free(err);
}

static int open_device(void **state)
{
    nrd_device_config config = {.n_threads = 1};
    (void)state;
    ok(nrd_device_open(&cpu, "cpu", &config));
    apart_ops = *cpu->ops;
    apart_ops.get_info = apart_info;
    apart_ops.alloc = apart_alloc;
    apart_ops.free = apart_free;
    apart_ops.stream_new = apart_stream;
    spec = (nrd_model_spec){.n_layers = LAYERS, .hidden = HIDDEN, .n_heads = 2, .n_kv_heads = 1, .head_dim = 16,
                            .inter = 48, .gated_mlp = true, .tp_size = 1, .pp_size = 1};
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    cpu->ops->close(cpu);
    return 0;
}

/* ---- adapters ---- */

/* attn_q of both layers and mlp_gate of the second; all values are `value`. */
static nrd_lora *new_lora(float value)
{
    static const int32_t places[ROWS][2] = {{1, 0}, {1, 1}, {7, 1}};
    nrd_lora_limits lim = {.max_rank = 8};
    nrd_lora_pair_in pairs[ROWS];
    float x[RANK * 64];
    nrd_lora *l = NULL;

    for (int i = 0; i < RANK * 64; i++) {
        x[i] = value;
    }
    for (int i = 0; i < ROWS; i++) {
        int64_t in, out;
        assert_true(nrd_lora_module_dims(&spec, 0, places[i][0], &in, &out));
        pairs[i] = (nrd_lora_pair_in){.module = places[i][0], .layer = places[i][1], .rank = RANK,
                                      .dtype = NRD_DTYPE_F32, .scale = 1, .in = in, .out = out, .a = x, .b = x};
    }
    ok(nrd_lora_make(&l, &spec, &lim, pairs, ROWS));
    return l;
}

static void test_adapters_count_layers_that_are_not_computed(void **state)
{
    (void)state;
    const nrd_lora_limits lim = {.max_rank = 8};
    nrd_model_spec s = spec;
    float x[RANK * 64] = {0};
    nrd_lora_pair_in pair = {.module = 1, .layer = 2, .rank = RANK, .dtype = NRD_DTYPE_F32, .scale = 1, .a = x, .b = x};
    nrd_lora *l = NULL;

    s.layer_is_behind_gap[1] = 1;
    assert_true(nrd_lora_module_dims(&s, 0, pair.module, &pair.in, &pair.out));
    ok(nrd_lora_make(&l, &s, &lim, &pair, 1));
    assert_int_equal(l->rows[0].layer, 1);
    nrd_lora_free(l);
    pair.layer = 1;
    must_fail(nrd_lora_make(&l, &s, &lim, &pair, 1), NRD_ERR_UNSUPPORTED, "layer 1 of this model reads pictures");
    pair.layer = 3;
    must_fail(nrd_lora_make(&l, &s, &lim, &pair, 1), NRD_ERR_INVALID_ARG, "layer 3, but the model has layers 0 to 2");
}

static size_t lora_bytes(void)
{
    nrd_lora *l = new_lora(1);
    size_t n = l->bytes;
    nrd_lora_free(l);
    return n;
}

static void on_change(void *user)
{
    atomic_int *n = user;
    (*n)++;
}

static atomic_int changes;

/* host_adapters: room for so many in host memory; pages: on the device, 0: it shares the host's memory. */
static nrd_lora_cache *new_cache(int host_adapters, int pages)
{
    nrd_lora_cache *c = NULL, *probe = NULL;
    nrd_lora_cache_config cfg = {.dev = pages ? &apart : cpu, .spec = &spec, .limits = {.max_rank = 8},
                                 .optimal_rank = 1, .mem_fraction = 0.5,
                                 .host_bytes = lora_bytes() * (size_t)host_adapters, .on_change = on_change,
                                 .user = &changes};
    if (pages) { /* how large a page is, then so many of them */
        free_bytes = 64 << 20;
        ok(nrd_lora_cache_new(&probe, &cfg));
        ok(nrd_lora_cache_prepare(probe));
        free_bytes = 2 * probe->page_bytes * (size_t)pages;
        nrd_lora_cache_free(probe);
    }
    ok(nrd_lora_cache_new(&c, &cfg));
    return c;
}

static nrd_adapter *put(nrd_lora_cache *c, uint64_t id, float value)
{
    nrd_adapter *a = NULL;
    ok(nrd_lora_cache_put(c, id, new_lora(value), &a));
    return a;
}

static bool there(nrd_lora_cache *c, uint64_t id)
{
    nrd_adapter *a = NULL;
    nrd_error *err = nrd_lora_cache_get(c, id, &a);
    nrd_error_free(err);
    if (a) {
        nrd_lora_cache_unpin(c, a);
    }
    return a != NULL;
}

static nrd_lora_hold wait_for(nrd_lora_cache *c, nrd_adapter *a)
{
    nrd_lora_hold h;
    while ((h = nrd_lora_cache_state(c, a)) == NRD_LORA_LOADING) {
        sched_yield();
    }
    return h;
}

static void test_unused_ones_leave_host_memory_the_oldest_first(void **state)
{
    nrd_lora_cache *c = new_cache(3, 0);
    nrd_adapter *a = NULL;
    (void)state;
    for (uint64_t id = 1; id <= 3; id++) {
        nrd_lora_cache_unpin(c, put(c, id, (float)id));
    }
    assert_true(there(c, 1)); /* used again: 2 is the oldest */
    nrd_lora_cache_unpin(c, put(c, 4, 4));
    assert_false(there(c, 2));
    assert_true(there(c, 1) && there(c, 3) && there(c, 4));
    must_fail(nrd_lora_cache_get(c, 2, &a), NRD_ERR_NOT_FOUND,
              "LoRA task 2 not found in cache. Please send LoRA weights with request");
    nrd_lora_cache_free(c);
}

static void test_pinned_ones_stay_and_full_is_said(void **state)
{
    nrd_lora_cache *c = new_cache(2, 0);
    nrd_adapter *one = put(c, 1, 1), *two = put(c, 2, 2), *a = NULL;
    (void)state;
    must_fail(nrd_lora_cache_put(c, 3, new_lora(3), &a), NRD_ERR_UNAVAILABLE, "lora_cache_host_memory_bytes");
    nrd_lora_cache_unpin(c, one);
    nrd_lora_cache_unpin(c, put(c, 3, 3));
    assert_false(there(c, 1));
    nrd_lora_cache_unpin(c, two);
    nrd_lora_cache_free(c);
}

static void test_an_id_with_other_content_is_replaced_and_with_the_same_kept(void **state)
{
    nrd_lora_cache *c = new_cache(3, 0);
    nrd_adapter *old = put(c, 7, 1), *same = put(c, 7, 1), *new = put(c, 7, 2);
    uint64_t h[3][2];
    nrd_lora_stats st;
    (void)state;
    assert_ptr_equal(old, same);
    assert_ptr_not_equal(old, new);
    nrd_adapter_hash(old, h[0]);
    nrd_adapter_hash(new, h[1]);
    assert_memory_not_equal(h[0], h[1], sizeof h[0]);
    nrd_lora_cache_unpin(c, old);
    nrd_lora_cache_unpin(c, same);
    assert_true(nrd_lora_cache_remove(c, 7)); /* pinned still */
    assert_false(nrd_lora_cache_remove(c, 7));
    nrd_lora_cache_unpin(c, new);
    nrd_lora_cache_get_stats(c, &st);
    assert_int_equal(st.n_host, 0);
    assert_int_equal(st.host_bytes, 0);
    assert_int_equal(st.n_pinned, 0);
    nrd_lora_cache_free(c);
}

static void check_table(nrd_lora_cache *c, int32_t slot, float value)
{
    nrd_lora_bank b = nrd_lora_cache_bank(c);
    const nrd_lora_pair *row = b.pairs + slot * b.slot_stride;
    int n = 0;
    for (int i = 0; i < LAYERS * NRD_LORA_POSITIONS; i++) {
        if (row[i].rank == 0) {
            continue;
        }
        assert_int_equal(row[i].rank, RANK);
        for (int k = 0; k < RANK * HIDDEN; k++) {
            assert_true(((const float *)row[i].a)[k] == value && ((const float *)row[i].b)[k] == value);
        }
        n++;
    }
    assert_int_equal(n, ROWS);
    assert_int_equal(row[NRD_LORA_AT_QKV].rank, RANK);
    assert_int_equal(row[NRD_LORA_POSITIONS + NRD_LORA_AT_UP + 1].rank, RANK);
    assert_true(b.max_rank >= RANK);
}

static void test_on_a_shared_device_an_adapter_is_ready_at_once(void **state)
{
    nrd_lora_cache *c = new_cache(2, 0);
    nrd_adapter *a = put(c, 1, 5);
    int32_t slot = -1;
    (void)state;
    assert_int_equal(nrd_lora_cache_hold(c, a, true, &slot), NRD_LORA_NO_ROOM);
    assert_int_equal(nrd_lora_cache_hold(c, a, false, &slot), NRD_LORA_READY);
    check_table(c, slot, 5);
    nrd_lora_cache_drop(c, a);
    nrd_lora_cache_unpin(c, a);
    nrd_lora_cache_free(c);
}

static void test_pages_are_brought_and_given_up_by_those_not_held(void **state)
{
    nrd_lora_cache *c = new_cache(8, 8);
    nrd_adapter *a[4];
    nrd_lora_stats st;
    int32_t slot[4];
    (void)state;
    for (int i = 0; i < 4; i++) {
        a[i] = put(c, (uint64_t)i + 1, (float)i + 1);
    }
    int32_t per = nrd_lora_device_pages_of(c, a[0]->lora), fit = c->n_pages / per;
    assert_true(per > 1 && fit == 2);
    for (int i = 0; i < fit; i++) {
        assert_int_not_equal(nrd_lora_cache_hold(c, a[i], false, &slot[i]), NRD_LORA_NO_ROOM);
        assert_int_equal(wait_for(c, a[i]), NRD_LORA_READY);
        check_table(c, slot[i], (float)i + 1);
    }
    assert_int_equal(nrd_lora_cache_hold(c, a[3], false, &slot[3]), NRD_LORA_NO_ROOM);
    assert_int_equal(nrd_lora_cache_hold(c, a[0], true, &slot[0]), NRD_LORA_READY); /* it is there */
    nrd_lora_cache_drop(c, a[0]);
    nrd_lora_cache_drop(c, a[1]);
    assert_int_not_equal(nrd_lora_cache_hold(c, a[3], false, &slot[3]), NRD_LORA_NO_ROOM);
    assert_int_equal(wait_for(c, a[3]), NRD_LORA_READY);
    check_table(c, slot[3], 4);
    check_table(c, slot[0], 1);
    nrd_lora_cache_drop(c, a[3]);
    for (int i = 0; i < fit; i++) {
        if (i != 1) {
            nrd_lora_cache_drop(c, a[i]);
        }
    }
    for (int i = 0; i < 4; i++) {
        nrd_lora_cache_unpin(c, a[i]);
    }
    nrd_lora_cache_get_stats(c, &st);
    assert_int_equal(st.n_evicted_device, 1);
    assert_int_equal(st.n_loaded, (unsigned)fit + 1);
    assert_int_equal(st.n_free_pages + st.n_device * per, st.n_pages);
    nrd_lora_cache_free(c);
}

static void test_an_adapter_that_can_never_fit_is_refused(void **state)
{
    nrd_lora_cache *c = new_cache(4, 1);
    nrd_adapter *a = NULL;
    (void)state;
    must_fail(nrd_lora_cache_put(c, 1, new_lora(1), &a), NRD_ERR_INVALID_ARG, "lora_cache_gpu_memory_fraction");
    nrd_lora_cache_free(c);
    c = new_cache(1, 0);
    c->cfg.host_bytes = 100;
    must_fail(nrd_lora_cache_put(c, 1, new_lora(1), &a), NRD_ERR_INVALID_ARG, "more than lora_cache_host_memory_bytes");
    nrd_lora_cache_free(c);
    free_bytes = 10;
    nrd_lora_cache_config cfg = {.dev = &apart, .spec = &spec, .limits = {.max_rank = 8}, .on_change = on_change,
                                 .user = &changes};
    ok(nrd_lora_cache_new(&c, &cfg));
    must_fail(nrd_lora_cache_put(c, 1, new_lora(1), &a), NRD_ERR_UNAVAILABLE, "no room for LoRA adapters");
    nrd_lora_cache_free(c);
}

/* ---- over two ranks ---- */

/* What rank 1 has at a slot: for its share of attn_q (half of the outputs) `value`, or no adapter. */
static void check_rank(const nrd_lora_slots *s, int32_t slot, float value)
{
    const nrd_lora_bank b = nrd_lora_slots_bank(s);
    const nrd_lora_pair *p = &b.pairs[slot * b.slot_stride + nrd_lora_position(1)];
    assert_int_equal(b.slot_stride, LAYERS * NRD_LORA_POSITIONS);
    assert_int_equal(p->rank, RANK);
    assert_true(((const float *)p->b)[RANK * 16 - 1] == value);
}

/* Rank 1 holds at each slot what rank 0 holds there, whatever comes and goes; its memory is that of those. */
static void test_another_rank_has_the_same_adapters_at_the_same_slots(void **state)
{
    nrd_model_spec two = spec;
    nrd_lora_slots *rank1 = NULL;
    const nrd_lora *l = NULL;
    int32_t slot;
    (void)state;
    two.tp_size = 2;
    nrd_lora_cache_config cfg = {.dev = cpu, .spec = &two, .limits = {.max_rank = 8}, .optimal_rank = 1,
                                 .host_bytes = lora_bytes() * 5, .on_change = on_change, .user = &changes};
    nrd_lora_cache *c = NULL;
    ok(nrd_lora_cache_new(&c, &cfg));
    ok(nrd_lora_slots_new(&rank1, cpu, LAYERS));
    assert_false(nrd_lora_cache_next_change(c, &slot, &l));
    int n_emptied = 0;
    for (uint64_t i = 0; i < 60; i++) {
        const uint64_t id = 1 + i * 7 % 9;
        nrd_adapter *a = put(c, id, (float)id);
        int32_t at;
        assert_int_equal(nrd_lora_cache_hold(c, a, false, &at), NRD_LORA_READY);
        while (nrd_lora_cache_next_change(c, &slot, &l)) {
            nrd_lora *share = NULL;
            n_emptied += l == NULL;
            if (l) {
                ok(nrd_lora_cut(&share, l, &two, 1));
            }
            ok(nrd_lora_slots_put(rank1, slot, share));
        }
        check_rank(rank1, at, (float)id);
        nrd_lora_cache_drop(c, a);
        nrd_lora_cache_unpin(c, a);
        for (uint64_t gone = 1; i % 10 == 9 && gone <= 9; gone++) {
            (void)nrd_lora_cache_remove(c, gone);
        }
    }
    assert_true(n_emptied > 0);
    nrd_lora_slots_free(rank1);
    nrd_lora_cache_free(c);
}

/* ---- many threads ---- */

typedef struct crowd {
    nrd_lora_cache *c;
    uint64_t seed;
} crowd;

static void *ask_for_adapters(void *user)
{
    crowd *w = user;
    for (int i = 0; i < 300; i++) {
        w->seed = w->seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t id = 1 + (w->seed >> 33) % 20;
        nrd_adapter *a = NULL;
        nrd_error *err = nrd_lora_cache_get(w->c, id, &a);
        if (err) {
            nrd_error_free(err);
            err = nrd_lora_cache_put(w->c, id, new_lora((float)id), &a);
        }
        if (i % 50 == 49) {
            (void)nrd_lora_cache_remove(w->c, id);
        }
        if (a) {
            nrd_lora_cache_unpin(w->c, a);
        }
        nrd_error_free(err);
    }
    return NULL;
}

static void test_requests_of_many_threads_while_adapters_come_and_go(void **state)
{
    nrd_lora_cache *c = new_cache(6, 9);
    pthread_t t[3];
    crowd w[3];
    nrd_lora_stats st;
    (void)state;
    ok(nrd_lora_cache_prepare(c));
    for (int i = 0; i < 3; i++) {
        w[i] = (crowd){c, (uint64_t)i + 1};
        assert_int_equal(pthread_create(&t[i], NULL, ask_for_adapters, &w[i]), 0);
    }
    for (int i = 0; i < 400; i++) { /* the engine loop */
        nrd_adapter *a = NULL;
        uint64_t id = 1 + (uint64_t)i % 20;
        int32_t slot;
        nrd_error *err = nrd_lora_cache_get(c, id, &a);
        nrd_error_free(err);
        if (a && nrd_lora_cache_hold(c, a, false, &slot) != NRD_LORA_NO_ROOM) {
            assert_int_equal(wait_for(c, a), NRD_LORA_READY);
            check_table(c, slot, (float)id);
            nrd_lora_cache_drop(c, a);
        }
        if (a) {
            nrd_lora_cache_unpin(c, a);
        }
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(t[i], NULL);
    }
    nrd_lora_cache_get_stats(c, &st);
    assert_int_equal(st.n_pinned, 0);
    assert_true(st.n_evicted_host > 0);
    nrd_lora_cache_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adapters_count_layers_that_are_not_computed),
        cmocka_unit_test(test_unused_ones_leave_host_memory_the_oldest_first),
        cmocka_unit_test(test_pinned_ones_stay_and_full_is_said),
        cmocka_unit_test(test_an_id_with_other_content_is_replaced_and_with_the_same_kept),
        cmocka_unit_test(test_on_a_shared_device_an_adapter_is_ready_at_once),
        cmocka_unit_test(test_pages_are_brought_and_given_up_by_those_not_held),
        cmocka_unit_test(test_an_adapter_that_can_never_fit_is_refused),
        cmocka_unit_test(test_another_rank_has_the_same_adapters_at_the_same_slots),
        cmocka_unit_test(test_requests_of_many_threads_while_adapters_come_and_go),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
