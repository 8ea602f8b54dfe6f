/* SPDX-License-Identifier: Apache-2.0
 * The memory file of the Python backend: its heap against a slow model, messages, hostile bytes. */
#include "backends/python/ipc.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { HALF = 64 << 20, N_LIVE = 400, N_STEPS = 60000 };

static uint64_t rng = 1;

static uint32_t rnd(uint32_t n)
{
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 32) % n;
}

static void open_map(nrd_py_map *m)
{
    int fd = nrd_py_map_create(m, "test", HALF);
    assert_true(fd >= 0);
    nrd_py_map other;
    assert_true(nrd_py_map_open(&other, fd));
    assert_int_equal(other.bytes, m->bytes);
    nrd_py_map_close(&other);
    close(fd);
}

static uint64_t some_size(void)
{
    switch (rnd(4)) {
    case 0:
        return rnd(300);
    case 1:
        return rnd(70000);
    case 2:
        return 65000 + rnd(1100); /* where the two kinds of blocks meet */
    default:
        return rnd(600000);
    }
}

static void test_blocks_never_overlap_and_all_come_back(void **state)
{
    (void)state;
    nrd_py_map m;
    struct {
        uint64_t offset, bytes;
        uint8_t mark;
    } live[N_LIVE] = {0};
    nrd_py_returner back;

    open_map(&m);
    nrd_py_control *c = m.ctl;
    nrd_py_heap *h = nrd_py_heap_new(m.base, c->server_base, c->half_bytes, &c->to_server);
    nrd_py_returner_init(&back, &c->to_server);
    for (int step = 0; step < N_STEPS; step++) {
        uint32_t i = rnd(N_LIVE);
        if (live[i].offset) {
            const uint8_t *p = m.base + live[i].offset;
            for (uint64_t k = 0; k < live[i].bytes; k += 509) {
                assert_int_equal(p[k], live[i].mark);
            }
            if (rnd(2)) {
                nrd_py_return(&back, live[i].offset); /* as the other process does */
            } else {
                nrd_py_heap_release(h, live[i].offset);
            }
            live[i].offset = 0;
            continue;
        }
        live[i].bytes = some_size();
        live[i].offset = nrd_py_heap_alloc(h, live[i].bytes);
        if (live[i].offset) {
            assert_true(live[i].offset >= c->server_base);
            assert_true(live[i].offset + live[i].bytes <= c->server_base + c->half_bytes);
            assert_int_equal(live[i].offset % 64, 0);
            live[i].mark = (uint8_t)rnd(256);
            memset(m.base + live[i].offset, live[i].mark, live[i].bytes);
        }
    }
    for (int i = 0; i < N_LIVE; i++) {
        if (live[i].offset) {
            nrd_py_return(&back, live[i].offset);
        }
    }
    assert_int_equal(nrd_py_heap_used(h), 0);
    nrd_py_heap_release(h, c->server_base + 64); /* not ours, twice: nothing happens */
    nrd_py_heap_release(h, c->server_base + 64);
    nrd_py_returner_fini(&back);
    nrd_py_heap_free(h);
    nrd_py_map_close(&m);
}

static void test_a_full_half_refuses_and_recovers(void **state)
{
    (void)state;
    nrd_py_map m;
    open_map(&m);
    nrd_py_heap *h =
        nrd_py_heap_new(m.base, m.ctl->stub_base, m.ctl->half_bytes, &m.ctl->to_stub);
    uint64_t all = nrd_py_heap_alloc(h, m.ctl->half_bytes);
    assert_int_not_equal(all, 0);
    assert_int_equal(nrd_py_heap_alloc(h, 1), 0);
    assert_int_equal(nrd_py_heap_alloc(h, UINT64_MAX), 0);
    nrd_py_heap_release(h, all);
    assert_int_not_equal(nrd_py_heap_alloc(h, m.ctl->half_bytes / 2), 0);
    nrd_py_heap_free(h);
    nrd_py_map_close(&m);
}

static void test_returns_that_do_not_fit_are_kept(void **state)
{
    (void)state;
    enum { N = NRD_PY_RETURNS + 5000 };
    nrd_py_map m;
    nrd_py_returner back;
    static uint64_t offsets[N];

    open_map(&m);
    nrd_py_control *c = m.ctl;
    nrd_py_heap *h = nrd_py_heap_new(m.base, c->server_base, c->half_bytes, &c->to_server);
    nrd_py_returner_init(&back, &c->to_server);
    for (int i = 0; i < N; i++) {
        offsets[i] = nrd_py_heap_alloc(h, 100);
        assert_int_not_equal(offsets[i], 0);
    }
    for (int i = 0; i < N; i++) {
        nrd_py_return(&back, offsets[i]);
    }
    assert_true(nrd_py_heap_used(h) > 0); /* some wait for the next return */
    uint64_t one = nrd_py_heap_alloc(h, 100);
    nrd_py_return(&back, one);
    assert_int_equal(nrd_py_heap_used(h), 0);
    nrd_py_returner_fini(&back);
    nrd_py_heap_free(h);
    nrd_py_map_close(&m);
}

static void put_three(nrd_py_message *msg, const uint8_t *data)
{
    const int64_t dims[] = {2, 3};
    nrd_py_put_u32(&msg->w, 3);
    nrd_py_message_tensor(msg, "small", 5, 2, dims, 2, 6);
    nrd_py_message_data(msg, data, 2);
    nrd_py_message_data(msg, data + 2, 4);
    nrd_py_message_tensor(msg, "large", 5, 2, dims, 1, 100000);
    nrd_py_message_data(msg, data, 60000);
    nrd_py_message_data(msg, data + 60000, 40000);
    nrd_py_message_tensor(msg, "", 0, 11, NULL, 0, 0);
}

static void test_tensors_come_out_as_they_went_in(void **state)
{
    (void)state;
    nrd_py_map m;
    nrd_py_message msg = {0};
    static uint8_t data[100000];
    uint64_t offset = 0, bytes = 0, data_at;
    nrd_py_reader r;
    nrd_py_tensor t;

    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)(i * 7);
    }
    open_map(&m);
    nrd_py_control *c = m.ctl;
    nrd_py_heap *h = nrd_py_heap_new(m.base, c->server_base, c->half_bytes, &c->to_server);
    nrd_py_message_begin(&msg, h, m.base);
    put_three(&msg, data);
    assert_true(nrd_py_message_finish(&msg, &offset, &bytes));
    nrd_py_reader_begin(&r, &data_at, &m, offset, bytes);
    assert_int_equal(nrd_py_get_u32(&r), 3);
    assert_true(nrd_py_get_tensor(&r, &m, data_at, &t));
    assert_string_equal(t.name, "small");
    assert_int_equal(t.dims[1], 3);
    assert_int_equal(t.how, NRD_PY_DATA_INSIDE);
    assert_memory_equal(m.base + t.where, data, 6);
    assert_true(nrd_py_get_tensor(&r, &m, data_at, &t));
    assert_int_equal(t.how, NRD_PY_DATA_BLOCK);
    assert_memory_equal(m.base + t.where, data, 100000);
    nrd_py_heap_release(h, t.where);
    assert_true(nrd_py_get_tensor(&r, &m, data_at, &t));
    assert_int_equal(t.n_dims, 0);
    assert_false(r.bad);
    nrd_py_heap_release(h, offset);
    assert_int_equal(nrd_py_heap_used(h), 0);

    /* A message that fails gives its blocks back. */
    nrd_py_message_begin(&msg, h, m.base);
    put_three(&msg, data);
    msg.w.failed = true;
    assert_false(nrd_py_message_finish(&msg, &offset, &bytes));
    assert_int_equal(nrd_py_heap_used(h), 0);
    /* More data than announced is refused. */
    nrd_py_message_begin(&msg, h, m.base);
    nrd_py_message_tensor(&msg, "x", 1, 2, NULL, 0, 4);
    nrd_py_message_data(&msg, data, 5);
    assert_false(nrd_py_message_finish(&msg, &offset, &bytes));
    nrd_py_message_fini(&msg);
    nrd_py_heap_free(h);
    nrd_py_map_close(&m);
}

static void test_damaged_messages_are_noticed(void **state)
{
    (void)state;
    nrd_py_map m;
    nrd_py_message msg = {0};
    static uint8_t data[100000], saved[4096];
    uint64_t offset = 0, bytes = 0;

    open_map(&m);
    nrd_py_control *c = m.ctl;
    nrd_py_heap *h = nrd_py_heap_new(m.base, c->server_base, c->half_bytes, &c->to_server);
    nrd_py_message_begin(&msg, h, m.base);
    put_three(&msg, data);
    assert_true(nrd_py_message_finish(&msg, &offset, &bytes));
    assert_true(bytes <= sizeof saved);
    memcpy(saved, m.base + offset, bytes);
    for (int round = 0; round < 20000; round++) {
        nrd_py_reader r;
        nrd_py_tensor t;
        uint64_t data_at, n = bytes;
        memcpy(m.base + offset, saved, bytes);
        for (uint32_t k = rnd(4) + 1; k > 0; k--) {
            m.base[offset + rnd((uint32_t)bytes)] = (uint8_t)rnd(256);
        }
        if (rnd(3) == 0) {
            n = rnd((uint32_t)bytes);
        }
        nrd_py_reader_begin(&r, &data_at, &m, offset, n);
        for (uint32_t i = nrd_py_get_u32(&r); i > 0 && !r.bad; i--) {
            if (nrd_py_get_tensor(&r, &m, data_at, &t) && t.how != NRD_PY_DATA_REMOTE) {
                assert_true(nrd_py_map_has(&m, t.where, t.bytes)); /* what a reader may touch */
                assert_non_null(memchr(t.name, 0, (size_t)(r.end - (const uint8_t *)t.name)));
            }
        }
    }
    nrd_py_message_fini(&msg);
    nrd_py_heap_free(h);
    nrd_py_map_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_never_overlap_and_all_come_back),
        cmocka_unit_test(test_a_full_half_refuses_and_recovers),
        cmocka_unit_test(test_returns_that_do_not_fit_are_kept),
        cmocka_unit_test(test_tensors_come_out_as_they_went_in),
        cmocka_unit_test(test_damaged_messages_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
