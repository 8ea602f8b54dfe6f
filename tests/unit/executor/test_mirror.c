/* SPDX-License-Identifier: Apache-2.0
 * Ranks on several hosts: each host has a segment of its own here, in one process, and ranks are threads. */
#include "base/mem.h"
#include "device/device.h"
#include "executor/ranks/segment.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_RANKS = 4, N_MESSAGES = 50, N = 70000 /* more than a room has */, ROWS = 3, COLS = 500, ROUNDS = 5 };

typedef struct rank {
    pthread_t thread;
    int32_t id, size, group;
    nrd_segment *segment;
    nrd_device *dev;
    nrd_stream *stream;
    nrd_comm *comm;
    float *x, *part, *all;
    nrd_error *err;
} rank;

typedef struct world {
    int32_t size, n_hosts;
    nrd_segment *of_host[MAX_RANKS];
    nrd_mirror_listener *listeners[MAX_RANKS];
    rank ranks[MAX_RANKS];
} world;

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

static nrd_comm_config comm_config(int32_t size, int32_t group)
{
    return (nrd_comm_config){.size = size, .group = group, .piece_bytes = 4096, .n_pieces = 2};
}

/* Rank r is on host r / (size / n_hosts). */
static void open_world(world *w, int32_t size, int32_t group, int32_t n_hosts)
{
    static const nrd_rank_config config;
    nrd_rank_hosts *hosts = calloc(1, sizeof *hosts);
    const nrd_comm_config cc = comm_config(size, group);
    nrd_device *dev = NULL;
    int fds[MAX_RANKS];

    *w = (world){.size = size, .n_hosts = n_hosts};
    assert_non_null(hosts);
    hosts->n = n_hosts;
    memset(hosts->token, 7, sizeof hosts->token);
    ok(nrd_cpu_open(&dev, &(nrd_device_config){.n_threads = 1}));
    for (int32_t k = 0; k < n_hosts; k++) {
        ok(nrd_segment_new(&w->of_host[k], size, 3, dev->ops->comm_bytes(dev, &cc), &config, &fds[k]));
        const nrd_mirror_memory memory = nrd_segment_memory(w->of_host[k]);
        ok(nrd_mirror_listener_open(&w->listeners[k], &memory, hosts->token, &hosts->port[k]));
        strcpy(hosts->address[k], "127.0.0.1");
    }
    dev->ops->close(dev);
    for (int32_t r = 0; r < size; r++) {
        hosts->of[r] = (uint8_t)(r / (size / n_hosts));
    }
    for (int32_t k = 0; k < n_hosts; k++) {
        nrd_segment_set_hosts(w->of_host[k], hosts);
    }
    for (int32_t i = 0; i < size; i++) {
        rank *r = &w->ranks[i];
        *r = (rank){.id = i, .size = size, .group = group};
        if (i == 0) {
            r->segment = w->of_host[0];
        } else {
            ok(nrd_segment_open(&r->segment, fds[hosts->of[i]], i));
        }
        ok(nrd_segment_connect(r->segment));
        ok(nrd_cpu_open(&r->dev, &(nrd_device_config){.n_threads = 1, .share = i, .n_shares = size}));
        ok(r->dev->ops->stream_new(r->dev, &r->stream));
        nrd_comm_config own = cc;
        own.rank = i;
        own.shared = nrd_segment_comm(r->segment);
        own.far = nrd_segment_far(r->segment);
        assert_int_equal(own.far.host_of != NULL, n_hosts > 1);
        ok(r->dev->ops->comm_open(r->dev, &own, &r->comm));
        r->x = calloc(N, sizeof(float));
        r->part = calloc((size_t)ROWS * COLS, sizeof(float));
        r->all = calloc((size_t)ROWS * COLS * MAX_RANKS, sizeof(float));
    }
    for (int32_t k = 0; k < n_hosts; k++) {
        close(fds[k]);
    }
    free(hosts);
}

static void close_world(world *w)
{
    for (int32_t i = 0; i < w->size; i++) {
        rank *r = &w->ranks[i];
        r->dev->ops->comm_close(r->comm);
        r->dev->ops->stream_free(r->stream);
        r->dev->ops->close(r->dev);
        free(r->x);
        free(r->part);
        free(r->all);
    }
    for (int32_t k = 0; k < w->n_hosts; k++) {
        nrd_mirror_listener_close(w->listeners[k]);
    }
    for (int32_t i = 0; i < w->size; i++) {
        nrd_segment_free(w->ranks[i].segment);
    }
    for (int32_t k = 1; k < w->n_hosts; k++) {
        nrd_segment_free(w->of_host[k]);
    }
}

static void run_all(world *w, void *(*what)(void *))
{
    for (int32_t i = 0; i < w->size; i++) {
        assert_int_equal(pthread_create(&w->ranks[i].thread, NULL, what, &w->ranks[i]), 0);
    }
    for (int32_t i = 0; i < w->size; i++) {
        pthread_join(w->ranks[i].thread, NULL);
        ok(w->ranks[i].err);
    }
}

/* ---- messages ---- */

static size_t message_bytes(int i)
{
    return (size_t)(i * 7919 % 100000);
}

static nrd_error *say_messages(rank *r)
{
    for (int i = 0; i < N_MESSAGES; i++) {
        void *mem = NULL;
        NRD_TRY(nrd_segment_begin(r->segment, &mem));
        memset(mem, i, message_bytes(i));
        nrd_segment_end(r->segment, NRD_MESSAGE_STEP, message_bytes(i));
    }
    return NULL;
}

static nrd_error *hear_messages(rank *r)
{
    for (int i = 0; i < N_MESSAGES; i++) {
        nrd_message_kind kind;
        const void *mem = NULL;
        size_t bytes = 0, wrong = 0;
        NRD_TRY(nrd_segment_next(r->segment, &kind, &mem, &bytes));
        for (size_t k = 0; k < bytes; k++) {
            wrong += ((const uint8_t *)mem)[k] != (uint8_t)i;
        }
        if (kind != NRD_MESSAGE_STEP || bytes != message_bytes(i) || wrong > 0) {
            return nrd_errorf(NRD_ERR_INTERNAL, "rank %d, message %d: %zu bytes, %zu wrong", r->id, i, bytes, wrong);
        }
    }
    return NULL;
}

static void *exchange_messages(void *user)
{
    rank *r = user;
    r->err = r->id == 0 ? say_messages(r) : hear_messages(r);
    return NULL;
}

static void test_ranks_of_all_hosts_hear_every_message_in_order(void **state)
{
    world w;
    (void)state;
    open_world(&w, 4, 4, 2);
    run_all(&w, exchange_messages);
    close_world(&w);
}

/* ---- operations ---- */

/* Sums and gathers in the group, then rows to the next group's rank of the same number. */
static nrd_error *one_round(rank *r, int round)
{
    const nrd_device_ops *ops = r->dev->ops;
    const int32_t first = r->id / r->group * r->group;
    nrd_all_reduce_args a = {.comm = r->comm, .x = r->x, .n = N, .dtype = NRD_DTYPE_F32};
    nrd_gather_args g = {.comm = r->comm, .x = r->part, .out = r->all, .n_rows = ROWS, .cols = COLS};
    nrd_transfer_args t = {.comm = r->comm, .x = r->x, .row_bytes = N * sizeof(float), .stride = N * sizeof(float), .n_rows = 1};
    int64_t wrong = 0;

    for (int64_t i = 0; i < N; i++) {
        r->x[i] = number(r->id, i, round);
    }
    for (int64_t i = 0; i < (int64_t)ROWS * COLS; i++) {
        r->part[i] = number(r->id, i, round + 1);
    }
    NRD_TRY(ops->all_reduce(r->stream, &a));
    NRD_TRY(ops->gather(r->stream, &g));
    if (r->group < r->size) {
        t.peer = (r->id + r->group) % r->size;
        NRD_TRY(r->id < r->group ? ops->send(r->stream, &t) : ops->receive(r->stream, &t));
    }
    NRD_TRY(ops->stream_sync(r->stream));
    const int32_t source = r->group < r->size ? r->id % r->group : first; /* of a sum, any of the group's */
    for (int64_t i = 0; i < N; i++) {
        const int32_t from = source / r->group * r->group;
        float sum = number(from, i, round);
        for (int32_t k = 1; k < r->group; k++) {
            sum += number(from + k, i, round);
        }
        wrong += r->x[i] != sum;
    }
    for (int64_t row = 0; r->id == first && row < ROWS; row++) {
        for (int64_t c = 0; c < (int64_t)COLS * r->group; c++) {
            wrong += r->all[row * COLS * r->group + c] != number(first + (int32_t)(c / COLS), row * COLS + c % COLS, round + 1);
        }
    }
    return wrong ? nrd_errorf(NRD_ERR_INTERNAL, "rank %d, round %d: %lld wrong numbers", r->id, round, (long long)wrong) : NULL;
}

static void *run_rounds(void *user)
{
    rank *r = user;
    for (int i = 0; i < ROUNDS && !r->err; i++) {
        r->err = one_round(r, i);
    }
    return NULL;
}

static void test_operations_over_hosts_are_those_of_one_to_the_bit(void **state)
{
    static const struct {
        int32_t size, group, n_hosts;
    } cases[] = {{2, 2, 2}, {4, 4, 2}, {4, 4, 4}, {4, 2, 2}, {4, 2, 4}, {2, 1, 2}, {4, 2, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w;
        open_world(&w, cases[i].size, cases[i].group, cases[i].n_hosts);
        run_all(&w, run_rounds);
        close_world(&w);
    }
}

/* ---- who is not let in ---- */

typedef struct frame {
    uint64_t at, bytes, mark;
    uint32_t value, pad;
} frame;

/* Whether the listener of a memory of 4096 bytes ends the connection without writing anything. */
static bool is_refused(uint8_t token, frame f)
{
    uint8_t own[NRD_TOKEN_BYTES], theirs[NRD_TOKEN_BYTES], rest[64] = {1};
    _Alignas(64) uint8_t memory[4096] = {0};
    static const uint8_t nothing[4096];
    _Atomic uint32_t stop = 0;
    const nrd_mirror_memory m = {.base = memory, .bytes = sizeof memory, .stop = &stop};
    nrd_mirror_listener *listener = NULL;
    uint16_t port = 0;
    int fd = -1;
    char byte;

    memset(own, 7, sizeof own);
    memset(theirs, token, sizeof theirs);
    ok(nrd_mirror_listener_open(&listener, &m, own, &port));
    ok(nrd_tcp_connect("127.0.0.1", port, 1000, &fd));
    nrd_tcp_limit(fd, 10000);
    (void)nrd_tcp_send(fd, theirs, sizeof theirs);
    (void)nrd_tcp_send(fd, &f, sizeof f);
    (void)nrd_tcp_send(fd, rest, sizeof rest);
    bool ended = !nrd_tcp_receive(fd, &byte, 1);
    close(fd);
    nrd_mirror_listener_close(listener);
    return ended && memcmp(memory, nothing, sizeof memory) == 0;
}

static void test_what_does_not_know_the_token_or_does_not_fit_is_refused(void **state)
{
    (void)state;
    assert_true(is_refused(8, (frame){.at = 0, .bytes = 64, .mark = 128, .value = 1}));
    assert_true(is_refused(7, (frame){.at = 4096 - 63, .bytes = 64, .mark = 128, .value = 1}));
    assert_true(is_refused(7, (frame){.at = UINT64_MAX - 10, .bytes = 64, .mark = 128, .value = 1}));
    assert_true(is_refused(7, (frame){.at = 0, .bytes = UINT64_MAX, .mark = 128, .value = 1}));
    assert_true(is_refused(7, (frame){.at = 0, .bytes = 0, .mark = 4094, .value = 1}));
    assert_true(is_refused(7, (frame){.at = 0, .bytes = 0, .mark = 4096, .value = 1}));
    assert_true(is_refused(7, (frame){.at = 0, .bytes = 0, .mark = UINT64_MAX - 3, .value = 1}));
}

static void test_other_hosts_write_behind_what_says_where_things_are(void **state)
{
    static const nrd_rank_config config;
    nrd_segment *s = NULL;
    int fd = -1;

    (void)state;
    ok(nrd_segment_new(&s, 2, 2, 4096, &config, &fd));
    const nrd_mirror_memory memory = nrd_segment_memory(s);
    assert_true((const uint8_t *)memory.base >= (const uint8_t *)(nrd_segment_config(s) + 1));
    const nrd_rank_life before = nrd_segment_life(s, 1);
    memset(memory.base, 1, 64 * (size_t)NRD_RANKS_MAX); /* all of the counters */
    const nrd_rank_life after = nrd_segment_life(s, 1);
    assert_int_equal(after.process, before.process); /* it would be ended, were the rank lost */
    assert_int_equal(nrd_segment_size(s), 2);
    close(fd);
    nrd_segment_free(s);
}

static void *send_slowly(void *user)
{
    for (int i = 0; i < 20; i++) {
        if (!nrd_tcp_send(*(int *)user, "x", 1)) {
            break;
        }
        usleep(50000);
    }
    return NULL;
}

static void test_a_time_limit_holds_for_all_bytes_together(void **state)
{
    pthread_t thread;
    char bytes[20];
    int pair[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    nrd_tcp_limit(pair[0], 200);
    assert_int_equal(pthread_create(&thread, NULL, send_slowly, &pair[1]), 0);
    assert_false(nrd_tcp_receive(pair[0], bytes, sizeof bytes));
    close(pair[0]);
    pthread_join(thread, NULL);
    close(pair[1]);
}

/* ---- a host that does not take any more ---- */

static void *stop_soon(void *user)
{
    usleep(200000);
    atomic_store((_Atomic uint32_t *)user, 1);
    return NULL;
}

static void test_a_writer_whose_peer_does_not_read_goes_on_when_ranks_are_stopped(void **state)
{
    enum { BYTES = 64 << 20 };
    _Atomic uint32_t stop = 0;
    nrd_rank_hosts *hosts = calloc(1, sizeof *hosts);
    uint8_t *memory = calloc(1, BYTES);
    const nrd_mirror_memory m = {.base = memory, .bytes = BYTES, .stop = &stop};
    nrd_mirror *mirror = NULL;
    pthread_t thread;
    int listens = -1;

    (void)state;
    assert_non_null(hosts);
    assert_non_null(memory);
    hosts->n = 2;
    hosts->of[1] = 1;
    strcpy(hosts->address[1], "127.0.0.1");
    ok(nrd_tcp_listen(&hosts->port[1], &listens)); /* it is never read there */
    ok(nrd_mirror_open(&mirror, &m, hosts, 0, 2));
    assert_int_equal(pthread_create(&thread, NULL, stop_soon, &stop), 0);
    nrd_mirror_wrote(mirror, 1, 1, memory + 64, BYTES - 64, memory, 1);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&stop), 1);
    nrd_mirror_wrote(mirror, 1, 1, memory + 64, BYTES - 64, memory, 2); /* half a frame is under way: nothing follows */
    nrd_mirror_close(mirror);
    close(listens);
    free(memory);
    free(hosts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_of_all_hosts_hear_every_message_in_order),
        cmocka_unit_test(test_operations_over_hosts_are_those_of_one_to_the_bit),
        cmocka_unit_test(test_what_does_not_know_the_token_or_does_not_fit_is_refused),
        cmocka_unit_test(test_other_hosts_write_behind_what_says_where_things_are),
        cmocka_unit_test(test_a_time_limit_holds_for_all_bytes_together),
        cmocka_unit_test(test_a_writer_whose_peer_does_not_read_goes_on_when_ranks_are_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
