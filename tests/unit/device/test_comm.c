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
    const nrd_comm_config cc = {.size = size};
    void *memory = nrd_aligned_zalloc(64, (*out_dev)->ops->comm_bytes(*out_dev, &cc));
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
    static const nrd_comm_config bad[] = {{.rank = -1, .size = 2}, {.rank = 2, .size = 2}, {.size = 0}, {.size = 1000}, {.size = 3, .group = 2}};
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

/* ---- send and receive ---- */

enum { STAGES = 3, MAX_WIDTH = 5000, GAP = 3, ROWS = 7 };

typedef struct stage {
    nrd_device *dev;
    nrd_stream *stream;
    nrd_comm *comm;
    int32_t id, n_rounds, n_ahead; /* the first stage sends so many rounds before it hears the first */
    pthread_t thread;
    nrd_error *err;
} stage;

static int32_t width_of(int32_t round)
{
    return 1 + round * 977 % MAX_WIDTH;
}

static nrd_error *pass(const stage *g, bool sends, int32_t round, float *x)
{
    nrd_transfer_args a = {
        .comm = g->comm,
        .peer = (g->id + (sends ? 1 : STAGES - 1)) % STAGES,
        .x = x,
        .row_bytes = width_of(round) * (int64_t)sizeof *x,
        .stride = (width_of(round) + GAP) * (int64_t)sizeof *x,
        .n_rows = round % ROWS,
    };
    NRD_TRY(sends ? g->dev->ops->send(g->stream, &a) : g->dev->ops->receive(g->stream, &a));
    return g->dev->ops->stream_sync(g->stream);
}

static float *row_of(float *x, int32_t round, int32_t row)
{
    return x + (size_t)row * (size_t)(width_of(round) + GAP);
}

static nrd_error *send_first(const stage *g, int32_t round, float *x)
{
    for (int32_t row = 0; row < round % ROWS; row++) {
        for (int32_t i = 0; i < width_of(round); i++) {
            row_of(x, round, row)[i] = (float)(round + row + i);
        }
    }
    return pass(g, true, round, x);
}

/* What it hears went through the stages before, each of which added 1; so does this one. */
static nrd_error *hear(const stage *g, int32_t round, float *x)
{
    const int32_t added = g->id == 0 ? STAGES - 1 : g->id - 1;
    NRD_TRY(pass(g, false, round, x));
    for (int32_t row = 0; row < round % ROWS; row++) {
        for (int32_t i = 0; i < width_of(round); i++) {
            assert_true(row_of(x, round, row)[i] == (float)(round + row + i + added));
            row_of(x, round, row)[i] += 1;
        }
    }
    return g->id > 0 ? pass(g, true, round, x) : NULL;
}

static void *stage_main(void *user)
{
    stage *g = user;
    float *x = calloc(ROWS * (MAX_WIDTH + GAP), sizeof *x);
    const int32_t n_ahead = g->id == 0 ? g->n_ahead : 0;
    for (int32_t round = 0; round < g->n_rounds + n_ahead && !g->err; round++) {
        if (g->id == 0 && round < g->n_rounds) {
            g->err = send_first(g, round, x);
        }
        if (round >= n_ahead && !g->err) {
            g->err = hear(g, round - n_ahead, x);
        }
    }
    free(x);
    return NULL;
}

static void go_round(size_t piece_bytes, int32_t n_ahead)
{
    nrd_comm_config cc = {.size = STAGES, .group = 1, .piece_bytes = piece_bytes, .n_pieces = 3};
    nrd_device_config dc = {.n_threads = 1};
    nrd_device *dev = NULL;
    stage stages[STAGES];

    ok(nrd_cpu_open(&dev, &dc));
    cc.shared = nrd_aligned_zalloc(64, dev->ops->comm_bytes(dev, &cc));
    assert_non_null(cc.shared);
    for (int32_t i = 0; i < STAGES; i++) {
        stage *g = &stages[i];
        *g = (stage){.id = i, .n_rounds = 40, .n_ahead = n_ahead};
        cc.rank = i;
        ok(nrd_cpu_open(&g->dev, &dc));
        ok(g->dev->ops->stream_new(g->dev, &g->stream));
        ok(g->dev->ops->comm_open(g->dev, &cc, &g->comm));
    }
    for (int32_t i = 0; i < STAGES; i++) {
        assert_int_equal(pthread_create(&stages[i].thread, NULL, stage_main, &stages[i]), 0);
    }
    for (int32_t i = 0; i < STAGES; i++) {
        pthread_join(stages[i].thread, NULL);
        ok(stages[i].err);
        stages[i].dev->ops->comm_close(stages[i].comm);
        stages[i].dev->ops->stream_free(stages[i].stream);
        stages[i].dev->ops->close(stages[i].dev);
    }
    free(cc.shared);
    dev->ops->close(dev);
}

static void test_messages_go_from_stage_to_stage_in_order(void **state)
{
    (void)state;
    go_round(4096, 0);                                         /* rows in many pieces */
    go_round(ROWS * (MAX_WIDTH + GAP) * sizeof(float), 2);     /* three messages under way */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums_and_columns_of_every_size),
        cmocka_unit_test(test_many_rounds_in_turn),
        cmocka_unit_test(test_messages_go_from_stage_to_stage_in_order),
        cmocka_unit_test(test_a_lost_rank_ends_the_wait_of_the_others),
        cmocka_unit_test(test_bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
