/* SPDX-License-Identifier: Apache-2.0
 * Collective operations of CPU ranks: ranks are threads here, each with a device and a stream of its own. */
#include "base/mem.h"
#include "device/device.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_RANKS = 4 };

typedef struct rank {
    pthread_t thread;
    nrd_device *dev;
    nrd_stream *stream;
    nrd_comm *comm;
    int32_t id, size;
    int64_t n;          /* all_reduce */
    int32_t rows, cols; /* gather */
    int rounds;
    float *x, *part, *all;
    nrd_error *err;
} rank;

static void ok(nrd_error *err)
{
    if (err) {
        fail_msg("%s", nrd_error_message(err));
    }
}

static float number(int32_t id, int64_t i, int round)
{
    uint32_t h = (uint32_t)i * 2654435761u + (uint32_t)id * 40503u + (uint32_t)round * 97u;
    return (float)(h >> 8) * (1.0f / 8388608.0f) - 1.0f;
}

static nrd_error *one_round(rank *r, int round)
{
    for (int64_t i = 0; i < r->n; i++) {
        r->x[i] = number(r->id, i, round);
    }
    for (int64_t i = 0; i < (int64_t)r->rows * r->cols; i++) {
        r->part[i] = number(r->id, i, round + 1);
    }
    nrd_all_reduce_args a = {.comm = r->comm, .x = r->x, .n = r->n, .dtype = NRD_DTYPE_F32};
    nrd_gather_args g = {.comm = r->comm, .x = r->part, .out = r->all, .n_rows = r->rows, .cols = r->cols};
    NRD_TRY(r->dev->ops->all_reduce(r->stream, &a));
    NRD_TRY(r->dev->ops->gather(r->stream, &g));
    return r->dev->ops->stream_sync(r->stream);
}

static int64_t wrong_numbers(const rank *r, int round)
{
    int64_t wrong = 0;
    for (int64_t i = 0; i < r->n; i++) {
        float sum = 0;
        for (int32_t k = 0; k < r->size; k++) {
            sum = k ? sum + number(k, i, round) : number(k, i, round);
        }
        wrong += r->x[i] != sum;
    }
    for (int64_t row = 0; r->id == 0 && row < r->rows; row++) {
        for (int64_t c = 0; c < (int64_t)r->cols * r->size; c++) {
            float want = number((int32_t)(c / r->cols), row * r->cols + c % r->cols, round + 1);
            wrong += r->all[row * r->cols * r->size + c] != want;
        }
    }
    return wrong;
}

static void *run(void *user)
{
    rank *r = user;
    for (int i = 0; i < r->rounds && !r->err; i++) {
        r->err = one_round(r, i);
        if (!r->err && wrong_numbers(r, i) > 0) {
            r->err = nrd_errorf(NRD_ERR_INTERNAL, "rank %d, round %d: wrong numbers", r->id, i);
        }
    }
    return NULL;
}

static void *new_memory(nrd_device **out_dev, int32_t size)
{
    nrd_device_config dc = {.n_threads = 1};
    ok(nrd_cpu_open(out_dev, &dc));
    void *memory = nrd_aligned_zalloc(64, (*out_dev)->ops->comm_bytes(*out_dev, size));
    assert_non_null(memory);
    return memory;
}

static void open_rank(rank *r, void *memory, int32_t id, int32_t size, int threads)
{
    nrd_device_config dc = {.n_threads = threads, .share = id, .n_shares = size};
    nrd_comm_config cc = {.rank = id, .size = size, .shared = memory};
    *r = (rank){.id = id, .size = size};
    ok(nrd_cpu_open(&r->dev, &dc));
    ok(r->dev->ops->stream_new(r->dev, &r->stream));
    ok(r->dev->ops->comm_open(r->dev, &cc, &r->comm));
}

static void close_rank(rank *r)
{
    r->dev->ops->comm_close(r->comm);
    r->dev->ops->stream_free(r->stream);
    r->dev->ops->close(r->dev);
    free(r->x);
    free(r->part);
    free(r->all);
}

static void together(int32_t size, int threads, int64_t n, int32_t rows, int32_t cols, int rounds)
{
    nrd_device *dev = NULL;
    void *memory = new_memory(&dev, size);
    rank ranks[MAX_RANKS];

    for (int32_t i = 0; i < size; i++) {
        rank *r = &ranks[i];
        open_rank(r, memory, i, size, threads);
        r->n = n;
        r->rows = rows;
        r->cols = cols;
        r->rounds = rounds;
        r->x = calloc((size_t)n + 1, sizeof *r->x);
        r->part = calloc((size_t)rows * (size_t)cols + 1, sizeof *r->part);
        r->all = i ? NULL : calloc((size_t)rows * (size_t)cols * (size_t)size + 1, sizeof *r->all);
    }
    for (int32_t i = 0; i < size; i++) {
        assert_int_equal(pthread_create(&ranks[i].thread, NULL, run, &ranks[i]), 0);
    }
    for (int32_t i = 0; i < size; i++) {
        pthread_join(ranks[i].thread, NULL);
        ok(ranks[i].err);
    }
    for (int32_t i = 0; i < size; i++) {
        close_rank(&ranks[i]);
    }
    dev->ops->close(dev);
    free(memory);
}

static void test_sums_and_columns_of_every_size(void **state)
{
    static const struct {
        int64_t n;
        int32_t rows, cols;
    } cases[] = {{1, 1, 1},       {15, 1, 17},    {576, 3, 1000},    {8192, 1, 65536},
                 {65536, 2, 7},   {65537, 1, 65537}, {200003, 5, 20000}, {0, 0, 3}};
    (void)state;
    for (int32_t size = 1; size <= MAX_RANKS; size++) {
        for (int threads = 1; threads <= 2; threads++) {
            for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
                together(size, threads, cases[i].n, cases[i].rows, cases[i].cols, 3);
            }
        }
    }
}

static void test_many_rounds_in_turn(void **state)
{
    (void)state;
    together(2, 1, 300, 2, 33, 2000);
    together(3, 2, 9000, 1, 9000, 50);
}

static void test_a_lost_rank_ends_the_wait_of_the_others(void **state)
{
    nrd_device *dev = NULL;
    void *memory = new_memory(&dev, 2);
    rank alone;
    (void)state;
    open_rank(&alone, memory, 0, 2, 1);
    alone.n = 100;
    alone.rows = alone.cols = alone.rounds = 1;
    alone.x = calloc(100, sizeof *alone.x);
    alone.part = calloc(1, sizeof *alone.part);
    alone.all = calloc(2, sizeof *alone.all);
    assert_int_equal(pthread_create(&alone.thread, NULL, run, &alone), 0);
    atomic_store((_Atomic uint32_t *)(void *)nrd_comm_stop_word(memory), 2);
    pthread_join(alone.thread, NULL);
    assert_non_null(alone.err);
    assert_int_equal(nrd_error_get_code(alone.err), NRD_ERR_UNAVAILABLE);
    assert_non_null(strstr(nrd_error_message(alone.err), "rank 1 of 2 was lost"));
    nrd_error_free(alone.err);
    close_rank(&alone);
    dev->ops->close(dev);
    free(memory);
}

static void test_bad_arguments_are_refused(void **state)
{
    nrd_device *dev = NULL;
    void *memory = new_memory(&dev, 2);
    nrd_comm *comm = NULL;
    static const nrd_comm_config bad[] = {{-1, 2, NULL}, {2, 2, NULL}, {0, 0, NULL}, {0, 1000, NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        nrd_comm_config cc = bad[i];
        cc.shared = memory;
        nrd_error *err = dev->ops->comm_open(dev, &cc, &comm);
        assert_non_null(err);
        assert_null(comm);
        nrd_error_free(err);
    }
    dev->ops->close(dev);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_and_columns_of_every_size),
        cmocka_unit_test(test_many_rounds_in_turn),
        cmocka_unit_test(test_a_lost_rank_ends_the_wait_of_the_others),
        cmocka_unit_test(test_bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
