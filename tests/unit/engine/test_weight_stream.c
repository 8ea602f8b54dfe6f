/* SPDX-License-Identifier: Apache-2.0
 * Weights that come to the device layer by layer: which layers, and that each layer finds its own numbers in every step, on
 * the CPU device, which keeps the order of two streams like any other. */
#include "base/mem.h"
#include "device/device.h"
#include "engine/run/weight_stream.h"
#include "random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_LAYERS = 9, PER_LAYER = 3, STEPS = 3, ROUNDS = 40 };

static nrd_device *cpu;

static void ok(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
}

static int open_cpu(void **state)
{
    const nrd_device_config config = {.n_threads = 2};
    (void)state;
    ok(nrd_device_open(&cpu, "cpu", &config));
    return 0;
}

/* ---- which layers ---- */

static void test_a_share_of_one_keeps_nothing_away(void **state)
{
    const uint64_t bytes[4] = {10, 10, 10, 10};
    bool streamed[4];
    (void)state;
    assert_int_equal(nrd_weight_stream_choose(bytes, 4, 50, 0, streamed), 0);
}

static void test_what_cannot_be_held_streams_all(void **state)
{
    const uint64_t bytes[4] = {10, 10, 10, 10};
    bool streamed[4];
    (void)state;
    assert_int_equal(nrd_weight_stream_choose(bytes, 4, 50, 1, streamed), 4);
    for (int i = 0; i < 4; i++) {
        assert_true(streamed[i]);
    }
}

static void test_the_share_is_held_with_no_layer_too_many(void **state)
{
    uint64_t bytes[80];
    bool streamed[80];
    rng r = {first_seed()};

    (void)state;
    for (int round = 0; round < 500; round++) {
        const int32_t n_layers = rng_in(&r, 3, 80);
        const double share = rng_in(&r, 1, 100) / 100.0;
        const uint64_t size = (uint64_t)rng_in(&r, 1, 1000);
        const uint64_t total = size * (uint64_t)n_layers + (uint64_t)rng_in(&r, 0, 3000);
        for (int32_t i = 0; i < n_layers; i++) {
            bytes[i] = size;
        }
        const int32_t n = nrd_weight_stream_choose(bytes, n_layers, total, share, streamed);
        int32_t counted = 0, gap = 0, widest = 0;
        for (int32_t i = 0; i < n_layers; i++) {
            counted += streamed[i];
            gap = streamed[i] ? 0 : gap + 1;
            widest = gap > widest ? gap : widest;
        }
        assert_int_equal(counted, n);
        assert_true(widest <= (n_layers + n - 1) / n); /* evenly */
        if (n < n_layers) {
            assert_true((double)(size * (uint64_t)(n - 2)) >= share * (double)total - 1e-6);
        }
        if (n > 3) { /* with one less it is not held */
            assert_true((double)(size * (uint64_t)(n - 3)) < share * (double)total + 1e-6);
        }
    }
}

/* ---- steps ---- */

typedef struct model {
    int32_t n_layers;
    nrd_weight w[MAX_LAYERS][PER_LAYER];
    uint8_t *expected[MAX_LAYERS][PER_LAYER], *got[MAX_LAYERS][PER_LAYER];
} model;

static void make(model *m, rng *r, nrd_stream *on)
{
    m->n_layers = rng_in(r, 1, MAX_LAYERS);
    for (int32_t i = 0; i < m->n_layers; i++) {
        for (int k = 0; k < PER_LAYER; k++) {
            const size_t bytes = (size_t)rng_in(r, 1, 3000);
            void *p = NULL;
            m->expected[i][k] = malloc(bytes);
            m->got[i][k] = malloc(bytes);
            assert_true(m->expected[i][k] && m->got[i][k]);
            for (size_t b = 0; b < bytes; b++) {
                m->expected[i][k][b] = (uint8_t)rng_next(r);
            }
            ok(cpu->ops->alloc(cpu, &p, NRD_MEM_DEVICE, bytes, "weights"));
            ok(cpu->ops->copy(on, p, m->expected[i][k], bytes));
            m->w[i][k] = (nrd_weight){.data = p, .data_bytes = bytes, .rows = 1, .cols = (int64_t)bytes};
        }
    }
    ok(cpu->ops->stream_sync(on));
}

static void drop(model *m)
{
    for (int32_t i = 0; i < m->n_layers; i++) {
        for (int k = 0; k < PER_LAYER; k++) {
            if (m->w[i][k].data) {
                cpu->ops->weight_unload(cpu, &m->w[i][k]);
            }
            free(m->expected[i][k]);
            free(m->got[i][k]);
        }
    }
}

static void step(model *m, nrd_weight_stream *s, nrd_stream *on)
{
    ok(nrd_weight_stream_begin(s, on));
    for (int32_t i = 0; i < m->n_layers; i++) {
        ok(nrd_weight_stream_enter(s, on, i));
        for (int k = 0; k < PER_LAYER; k++) {
            memset(m->got[i][k], 0, (size_t)m->w[i][k].data_bytes);
            ok(cpu->ops->copy(on, m->got[i][k], m->w[i][k].data, (size_t)m->w[i][k].data_bytes));
        }
        ok(nrd_weight_stream_leave(s, on, i));
    }
    ok(cpu->ops->stream_sync(on));
    for (int32_t i = 0; i < m->n_layers; i++) {
        for (int k = 0; k < PER_LAYER; k++) {
            assert_memory_equal(m->got[i][k], m->expected[i][k], (size_t)m->w[i][k].data_bytes);
        }
    }
}

static void test_each_layer_finds_its_own_numbers(void **state)
{
    rng r = {first_seed()};
    nrd_stream *on = NULL;

    (void)state;
    ok(cpu->ops->stream_new(cpu, &on));
    for (int round = 0; round < ROUNDS; round++) {
        model m;
        nrd_weight_stream *s = NULL;
        make(&m, &r, on);
        ok(nrd_weight_stream_new(&s, cpu, m.n_layers));
        for (int32_t i = 0; i < m.n_layers; i++) {
            nrd_weight *w[PER_LAYER] = {&m.w[i][0], &m.w[i][1], &m.w[i][2]};
            const int32_t n = rng_in(&r, -1, PER_LAYER); /* -1: the layer stays whole; 0: it has no matrix */
            ok(n < 0 ? NULL : nrd_weight_stream_take(s, on, i, w, n));
        }
        ok(nrd_weight_stream_finish(s, on));
        for (int i = 0; i < STEPS; i++) {
            step(&m, s, on);
        }
        nrd_weight_stream_free(s);
        drop(&m);
    }
    cpu->ops->stream_free(on);
}

static void test_without_a_stream_nothing_is_done(void **state)
{
    (void)state;
    ok(nrd_weight_stream_begin(NULL, NULL));
    ok(nrd_weight_stream_enter(NULL, NULL, 0));
    ok(nrd_weight_stream_leave(NULL, NULL, 0));
    nrd_weight_stream_free(NULL);
}

static int close_cpu(void **state)
{
    (void)state;
    cpu->ops->close(cpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_share_of_one_keeps_nothing_away),
        cmocka_unit_test(test_what_cannot_be_held_streams_all),
        cmocka_unit_test(test_the_share_is_held_with_no_layer_too_many),
        cmocka_unit_test(test_each_layer_finds_its_own_numbers),
        cmocka_unit_test(test_without_a_stream_nothing_is_done),
    };
    return cmocka_run_group_tests(tests, open_cpu, close_cpu);
}
