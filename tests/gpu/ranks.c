/* SPDX-License-Identifier: Apache-2.0
 * Collective operations of 2 to 8 ranks: threads here, each with a device (the first GPU again where there are not as
 * many) and a stream of its own. Sums and what is normed behind them must be right to the bit. Then how long they take.
 * With a GPU for each rank all of it once more through NCCL, whose sums are nearly right; without NCCL, what opening says.
 *
 *   ranks build/lib/nereid_cuda.so [small] [N]     small: without the times; N: an even number of ranks
 */
#include "base/dtype.h"
#include "base/error.h"
#include "nereid/device.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the plug-in ---- */

static nrd_device_plugin_fn open_plugin;

static nrd_error *error_new(int code, const char *message)
{
    return nrd_errorf((nrd_error_code)code, "%s", message);
}

static int error_code(const nrd_error *err)
{
    return (int)nrd_error_get_code(err);
}

static nrd_error *gpu_open_device(int32_t id, nrd_device **out)
{
    static const nrd_device_host host = {error_new, nrd_error_no_memory, error_code, nrd_error_message,
                                         nrd_error_free};
    const nrd_device_config config = {.device_id = id};
    return open_plugin(&host, &config, out);
}

static void open_file(const char *path)
{
    void *dl = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    *(void **)&open_plugin = dl ? dlsym(dl, NRD_DEVICE_PLUGIN_SYMBOL) : NULL;
    if (!open_plugin) {
        fprintf(stderr, "FAILED %s\n", dlerror());
        exit(1);
    }
}

static void ok(nrd_error *err, const char *what)
{
    if (err) {
        fprintf(stderr, "FAILED %s: %s\n", what, nrd_error_message(err));
        exit(1);
    }
}
#define OK(expr) ok(expr, #expr)

/* ---- numbers ---- */

static size_t elem(nrd_dtype t)
{
    return nrd_dtype_block_bytes(t);
}

static void put(nrd_dtype t, void *p, size_t i, float v)
{
    if (t == NRD_DTYPE_BF16) {
        ((uint16_t *)p)[i] = nrd_f32_to_bf16(v);
    } else if (t == NRD_DTYPE_F16) {
        ((uint16_t *)p)[i] = nrd_f32_to_f16(v);
    } else {
        ((float *)p)[i] = v;
    }
}

static float get(nrd_dtype t, const void *p, size_t i)
{
    return t == NRD_DTYPE_BF16  ? nrd_bf16_to_f32(((const uint16_t *)p)[i])
           : t == NRD_DTYPE_F16 ? nrd_f16_to_f32(((const uint16_t *)p)[i])
                                : ((const float *)p)[i];
}

static float round_to(nrd_dtype t, float v)
{
    uint32_t u = 0;
    put(t, &u, 0, v);
    return get(t, &u, 0);
}

/* ---- the ranks ---- */

typedef struct vector {
    nrd_weight dev;
    float *host;
    bool owned;
} vector;

enum { MAX_SIZE = 8, MAX_ROWS = 8192, WIDE = 8192, VOCAB = 32064, TIMED = 64 };

typedef struct rank {
    int32_t id;
    nrd_device *dev;
    nrd_stream *st;
    nrd_comm *comm;
    void *x, *out, *scale, *residual, *part, *slots; /* of comm_alloc */
    void *logits, *out2, *scale2, *residual2;
    vector weight, bias, post;
    int32_t n_cases, n_failures;
    nrd_event *from, *to;
} rank;

static rank ranks[MAX_SIZE];
static int32_t n_ranks = 2;
static bool of_library; /* sums are NCCL's */
static int n_checks, n_failed;
static pthread_barrier_t meet;
static void *shared, *shared_pipes;
static bool small_only;

static void say(rank *r, const char *name, bool good)
{
    r->n_cases++;
    if (!good) {
        r->n_failures++;
        printf("  FAIL ranks: %s, rank %d\n", name, r->id);
    }
}

static float number(int32_t id, int64_t i, int32_t round)
{
    uint32_t h = (uint32_t)i * 2654435761u + (uint32_t)id * 40503u * 977u + (uint32_t)round * 7919u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    return h % 61 == 0 ? -0.0f : (float)(h >> 8) * (1.0f / 8388608.0f) - 1.0f;
}

static void put_numbers(rank *r, void *to, nrd_dtype t, int32_t id, int64_t n, int32_t round)
{
    char *host = malloc((size_t)n * elem(t) + 16);
    for (int64_t i = 0; i < n; i++) {
        put(t, host, (size_t)i, number(id, i, round));
    }
    OK(r->dev->ops->copy(r->st, to, host, (size_t)n * elem(t)));
    OK(r->dev->ops->stream_sync(r->st));
    free(host);
}

static void *fetch_bytes(rank *r, const void *from, size_t bytes)
{
    void *host = malloc(bytes + 16);
    OK(r->dev->ops->copy(r->st, host, from, bytes));
    OK(r->dev->ops->stream_sync(r->st));
    return host;
}

static bool same_bytes(rank *r, const void *a, const void *b, size_t bytes)
{
    void *x = fetch_bytes(r, a, bytes), *y = fetch_bytes(r, b, bytes);
    bool same = memcmp(x, y, bytes) == 0;
    free(x);
    free(y);
    return same;
}

/* Equal numbers: a zero's sign is not looked at. */
static bool is_sum(nrd_dtype t, float got, float want)
{
    const float off = t == NRD_DTYPE_BF16 ? 0.06f : t == NRD_DTYPE_F16 ? 0.008f : 4e-6f;
    return of_library ? fabsf(got - want) <= off : got == want;
}

static void check_sum(rank *r, nrd_dtype t, int64_t n, int32_t round)
{
    nrd_all_reduce_args a = {.comm = r->comm, .x = r->x, .n = n, .dtype = t};
    char name[64];

    put_numbers(r, r->x, t, r->id, n, round);
    OK(r->dev->ops->all_reduce(r->st, &a));
    char *got = fetch_bytes(r, r->x, (size_t)n * elem(t));
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int32_t k = 0; k < n_ranks; k++) {
            sum += round_to(t, number(k, i, round));
        }
        wrong += !is_sum(t, get(t, got, (size_t)i), round_to(t, sum));
    }
    free(got);
    snprintf(name, sizeof name, "sum of %lld %s: %lld wrong", (long long)n, nrd_dtype_name(t), (long long)wrong);
    say(r, name, wrong == 0);
}

static void check_gather(rank *r, int32_t rows, int32_t cols, int32_t round)
{
    nrd_gather_args a = {.comm = r->comm, .x = r->part, .out = r->logits, .n_rows = rows, .cols = cols};
    int64_t wrong = 0;
    char name[64];

    put_numbers(r, r->part, NRD_DTYPE_F32, r->id, (int64_t)rows * cols, round);
    OK(r->dev->ops->gather(r->st, &a));
    OK(r->dev->ops->stream_sync(r->st));
    float *got = r->id == 0 ? fetch_bytes(r, r->logits, (size_t)rows * (size_t)cols * (size_t)n_ranks * 4) : NULL;
    for (int64_t i = 0; got && i < (int64_t)rows * cols * n_ranks; i++) {
        const int64_t row = i / (cols * n_ranks), c = i % (cols * n_ranks);
        wrong += got[i] != number((int32_t)(c / cols), row * cols + c % cols, round);
    }
    free(got);
    snprintf(name, sizeof name, "gather of %d x %d: %lld wrong", rows, cols, (long long)wrong);
    say(r, name, wrong == 0);
}

static void check_broadcast(rank *r, int64_t n, int32_t round)
{
    nrd_broadcast_args a = {.comm = r->comm, .x = r->slots, .bytes = n * 4};
    int64_t wrong = 0;

    put_numbers(r, r->slots, NRD_DTYPE_F32, r->id, n, round);
    pthread_barrier_wait(&meet); /* as in a step: everybody is past what it read there */
    OK(r->dev->ops->broadcast(r->st, &a));
    float *got = fetch_bytes(r, r->slots, (size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        wrong += got[i] != number(0, i, round);
    }
    free(got);
    say(r, "broadcast", wrong == 0);
}

/* ---- all_reduce_norm against all_reduce and norm ---- */

static nrd_norm_args norm_args(rank *r, int32_t rows, int32_t hidden, nrd_dtype act, nrd_dtype out, int kind)
{
    return (nrd_norm_args){
        .kind = kind == 1 ? NRD_NORM_LAYER : NRD_NORM_RMS,
        .eps = 1e-5f,
        .n_tokens = rows,
        .hidden = hidden,
        .delta = r->x,
        .delta_weight = kind == 2 ? &r->post.dev : NULL,
        .residual = r->residual,
        .weight = kind == 3 ? NULL : &r->weight.dev,
        .bias = kind == 1 ? &r->bias.dev : NULL,
        .out = r->out,
        .out_dtype = out,
        .out_row_scale = out == NRD_DTYPE_F8_E4M3 ? r->scale : NULL,
        .act_dtype = act,
    };
}

static void check_norm(rank *r, int32_t rows, int32_t hidden, nrd_dtype act, nrd_dtype out, int kind, bool whole)
{
    const size_t n = (size_t)rows * (size_t)hidden;
    nrd_all_reduce_norm_args both = {
        .comm = r->comm, .norm = norm_args(r, rows, hidden, act, out, kind), .whole_residual = whole};
    nrd_all_reduce_args sum = {.comm = r->comm, .x = r->x, .n = (int64_t)n, .dtype = act};
    nrd_norm_args norm = both.norm;
    char name[128];

    for (vector *w = &r->weight; w <= &r->post; w++) {
        w->dev.rows = hidden;
    }
    put_numbers(r, r->x, act, r->id, (int64_t)n, rows);
    put_numbers(r, r->residual, act, 7, (int64_t)n, rows);
    put_numbers(r, r->residual2, act, 7, (int64_t)n, rows);
    OK(r->dev->ops->fill(r->st, r->out, 0xff, n * elem(out)));
    OK(r->dev->ops->stream_sync(r->st));
    pthread_barrier_wait(&meet); /* the other rank may write here from now on */
    OK(r->dev->ops->all_reduce_norm(r->st, &both));
    OK(r->dev->ops->stream_sync(r->st));
    pthread_barrier_wait(&meet);
    put_numbers(r, r->x, act, r->id, (int64_t)n, rows);
    pthread_barrier_wait(&meet);
    OK(r->dev->ops->all_reduce(r->st, &sum));
    norm.residual = r->residual2;
    norm.out = r->out2;
    norm.out_row_scale = norm.out_row_scale ? r->scale2 : NULL;
    OK(r->dev->ops->norm(r->st, &norm));
    const bool out_same = kind == 3 || same_bytes(r, r->out, r->out2, n * elem(out));
    const bool scale_same = out != NRD_DTYPE_F8_E4M3 || same_bytes(r, r->scale, r->scale2, (size_t)rows * 4);
    /* which rows of the residual are here is the device's affair unless all were asked for */
    const bool residual_same = !whole || same_bytes(r, r->residual, r->residual2, n * elem(act));
    snprintf(name, sizeof name, "norm of %d x %d %s to %s, kind %d: out %d scale %d residual %d", rows, hidden,
             nrd_dtype_name(act), nrd_dtype_name(out), kind, out_same, scale_same, residual_same);
    say(r, name, out_same && scale_same && residual_same);
}

/* ---- pipelines ---- */

/* Rows of even ranks to the odd ones behind them and others back, more than there are slots for. */
static void check_pipes(rank *r)
{
    enum { PIECE = 1 << 20, SLOTS = 2 };
    static const struct {
        int32_t rows, width, stride; /* of 16 bits */
    } cases[] = {{1, 8192, 8192}, {300, 4096, 4096}, {7, 1001, 1003}, {900, 8192, 8192}, {64, 32064, 32064}, {3, 576, 640}};
    nrd_comm_config cc = {
        .rank = r->id, .size = n_ranks, .group = 1, .piece_bytes = PIECE, .n_pieces = SLOTS, .shared = shared_pipes};
    nrd_comm *comm = NULL;
    int64_t wrong = 0;

    for (int32_t i = 0; i < n_ranks; i++) { /* one after the other: all make the same page visible to kernels */
        if (r->id == i) {
            OK(r->dev->ops->comm_open(r->dev, &cc, &comm));
        }
        pthread_barrier_wait(&meet);
    }
    OK(r->dev->ops->comm_meet(comm));
    for (int32_t i = 0; i < 24; i++) {
        const int32_t n = cases[i % 6].rows, width = cases[i % 6].width, stride = cases[i % 6].stride;
        const nrd_transfer_args a = {.comm = comm, .peer = r->id ^ 1, .x = r->x, .row_bytes = 2 * width, .stride = 2 * stride, .n_rows = n};
        const bool sends = (i / 6 + r->id) % 2 == 0;
        put_numbers(r, r->x, NRD_DTYPE_BF16, sends ? i : 99, (int64_t)n * stride, i);
        OK(sends ? r->dev->ops->send(r->st, &a) : r->dev->ops->receive(r->st, &a));
        uint16_t *got = fetch_bytes(r, r->x, (size_t)n * (size_t)stride * 2);
        for (int64_t k = 0; k < (int64_t)n * stride; k++) {
            const bool is_there = k % stride < width; /* between the rows nothing is written */
            wrong += got[k] != nrd_f32_to_bf16(number(sends || is_there ? i : 99, k, i));
        }
        free(got);
    }
    OK(r->dev->ops->stream_sync(r->st));
    pthread_barrier_wait(&meet);
    r->dev->ops->comm_close(comm);
    say(r, "pipes", wrong == 0);
}

/* ---- recorded, lost, timed ---- */

static void check_recorded(rank *r)
{
    nrd_all_reduce_args a = {.comm = r->comm, .x = r->x, .n = 4096, .dtype = NRD_DTYPE_BF16};
    nrd_all_reduce_args big = {.comm = r->comm, .x = r->residual, .n = 3 << 20, .dtype = NRD_DTYPE_BF16};
    nrd_graph *g = NULL;
    int64_t wrong = 0;

    OK(r->dev->ops->fill(r->st, r->residual, 0, (size_t)big.n * 2));
    OK(r->dev->ops->graph_begin(r->st));
    for (int i = 0; i < 2; i++) {
        OK(r->dev->ops->all_reduce(r->st, &a));
        OK(r->dev->ops->all_reduce(r->st, &big));
    }
    OK(r->dev->ops->graph_end(r->st, &g));
    for (int32_t round = 0; round < 5; round++) {
        put_numbers(r, r->x, NRD_DTYPE_BF16, r->id, a.n, round);
        OK(r->dev->ops->graph_launch(r->st, g));
        uint16_t *got = fetch_bytes(r, r->x, (size_t)a.n * 2);
        for (int64_t i = 0; i < a.n; i++) {
            float one = 0;
            for (int32_t k = 0; k < n_ranks; k++) {
                one += round_to(NRD_DTYPE_BF16, number(k, i, round));
            }
            const float want = round_to(NRD_DTYPE_BF16, round_to(NRD_DTYPE_BF16, one) * (float)n_ranks);
            wrong += of_library ? fabsf(get(NRD_DTYPE_BF16, got, (size_t)i) - want) > 0.5f
                                : get(NRD_DTYPE_BF16, got, (size_t)i) != want;
        }
        free(got);
    }
    r->dev->ops->graph_free(g);
    say(r, "recorded", wrong == 0);
}

static double seconds_of(rank *r, nrd_error *(*op)(rank *r, int32_t rows), int32_t rows)
{
    nrd_graph *g = NULL;
    double best = 1e9;

    OK(r->dev->ops->graph_begin(r->st));
    for (int i = 0; i < TIMED; i++) {
        OK(op(r, rows));
    }
    OK(r->dev->ops->graph_end(r->st, &g));
    for (int i = 0; i < 6; i++) {
        double s = 0;
        OK(r->dev->ops->stream_sync(r->st));
        pthread_barrier_wait(&meet);
        OK(r->dev->ops->event_record(r->st, r->from));
        OK(r->dev->ops->graph_launch(r->st, g));
        OK(r->dev->ops->event_record(r->st, r->to));
        OK(r->dev->ops->event_wait(r->to));
        OK(r->dev->ops->event_elapsed(r->from, r->to, &s));
        best = i > 0 && s / TIMED < best ? s / TIMED : best;
    }
    pthread_barrier_wait(&meet);
    r->dev->ops->graph_free(g);
    return best;
}

static nrd_error *only_sum(rank *r, int32_t rows)
{
    nrd_all_reduce_args a = {.comm = r->comm, .x = r->x, .n = (int64_t)rows * WIDE, .dtype = NRD_DTYPE_BF16};
    return r->dev->ops->all_reduce(r->st, &a);
}

static nrd_error *only_norm(rank *r, int32_t rows)
{
    nrd_norm_args n = norm_args(r, rows, WIDE, NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3, 0);
    return r->dev->ops->norm(r->st, &n);
}

static nrd_error *sum_and_norm(rank *r, int32_t rows)
{
    nrd_all_reduce_norm_args a = {.comm = r->comm,
                                  .norm = norm_args(r, rows, WIDE, NRD_DTYPE_BF16, NRD_DTYPE_F8_E4M3, 0)};
    return r->dev->ops->all_reduce_norm(r->st, &a);
}

static void time_all(rank *r)
{
    static const int32_t rows[] = {1, 4, 16, 64, 128, 256, 512, 1024, 2048, 8192};
    for (vector *w = &r->weight; w <= &r->post; w++) {
        w->dev.rows = WIDE;
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const double sum = seconds_of(r, only_sum, rows[i]), norm = seconds_of(r, only_norm, rows[i]);
        const double both = seconds_of(r, sum_and_norm, rows[i]);
        if (r->id == 0) {
            printf("  %5d rows of %d bf16, microseconds: all_reduce %.2f, norm to F8 %.2f, both in one %.2f\n",
                   rows[i], (int)WIDE, sum * 1e6, norm * 1e6, both * 1e6);
        }
    }
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* The other rank does not come: waits end when the stop word is set, and the stream says so. */
static void check_lost(rank *r)
{
    double start = now();

    for (vector *w = &r->weight; w <= &r->post; w++) {
        w->dev.rows = WIDE;
    }
    pthread_barrier_wait(&meet);
    if (r->id == 0) {
        const struct timespec pause = {0, 200000000};
        OK(only_sum(r, 1));
        OK(only_sum(r, 2048));
        OK(sum_and_norm(r, 1));
        nanosleep(&pause, NULL);
        __atomic_store_n(nrd_comm_stop_word(shared), 2, __ATOMIC_RELEASE);
        nrd_error *err = r->dev->ops->stream_sync(r->st);
        say(r, "a lost rank ends the wait", err && nrd_error_get_code(err) == NRD_ERR_UNAVAILABLE &&
                                                strstr(nrd_error_message(err), "rank 1 of "));
        say(r, "soon", now() - start < 2);
        nrd_error_free(err);
    }
    pthread_barrier_wait(&meet);
}

static void open_rank(rank *r)
{
    const size_t bytes = (size_t)MAX_ROWS * WIDE * 2;
    nrd_comm_config cc = {.rank = r->id, .size = n_ranks, .by_library = of_library, .shared = shared};
    const nrd_device_ops *ops;

    nrd_error *err = gpu_open_device(r->id, &r->dev);
    if (err) { /* one GPU for both */
        nrd_error_free(err);
        OK(gpu_open_device(0, &r->dev));
    }
    ops = r->dev->ops;
    OK(ops->stream_new(r->dev, &r->st));
    OK(ops->reserve(r->st, 64, 8, 64, 64, 64));
    OK(ops->comm_open(r->dev, &cc, &r->comm));
    void **common[] = {&r->x, &r->out, &r->residual, &r->scale, &r->part, &r->slots};
    const size_t common_bytes[] = {bytes, bytes, bytes, MAX_ROWS * 4, 64u * VOCAB * 4, 4096 * 4};
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        OK(ops->comm_alloc(r->comm, common[i], common_bytes[i], "test"));
    }
    void **own[] = {&r->out2, &r->residual2, &r->scale2, &r->logits};
    const size_t own_bytes[] = {bytes, bytes, MAX_ROWS * 4, 64u * VOCAB * 4 * (size_t)n_ranks};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        OK(ops->alloc(r->dev, own[i], NRD_MEM_DEVICE, own_bytes[i], "test"));
    }
    for (vector *w = &r->weight; w <= &r->post; w++) {
        float *v = malloc(WIDE * 4);
        for (int i = 0; i < WIDE; i++) {
            v[i] = number(20 + (int32_t)(w - &r->weight), i, 1);
        }
        const nrd_weight host = {
            .dtype = NRD_DTYPE_F32, .rows = WIDE, .cols = 1, .data = v, .scale = 1, .data_bytes = WIDE * 4};
        w->host = v;
        OK(ops->weight_load(r->st, &host, false, &w->dev, &w->owned));
    }
    OK(ops->event_new(r->dev, &r->from));
    OK(ops->event_new(r->dev, &r->to));
    OK(ops->comm_meet(r->comm));
    OK(ops->stream_sync(r->st));
    pthread_barrier_wait(&meet);
}

static void *run(void *user)
{
    rank *r = user;
    static const nrd_dtype types[] = {NRD_DTYPE_BF16, NRD_DTYPE_F16, NRD_DTYPE_F32};
    static const int64_t sums[] = {1, 7, 4096, 8192, 33000, 64 * 8192, (1 << 20) + 8, 3000001, 5};
    static const int32_t rows[] = {1, 3, 16, 64, 65, 129, 1, 300}, hiddens[] = {8192, 4096, 576, 2048};

    open_rank(r);
    for (int32_t i = 0; i < (int32_t)(3 * sizeof sums / sizeof sums[0]); i++) {
        check_sum(r, types[i % 3], sums[i / 3], i);
    }
    for (int32_t i = 0; i < 40; i++) { /* quick ones in turn */
        check_sum(r, types[i % 2], 100 + 777 * (i % 7), 100 + i);
    }
    check_gather(r, 1, VOCAB, 1);
    check_gather(r, 5, 1001, 2);
    check_gather(r, 64, VOCAB, 3);
    check_broadcast(r, 3, 1);
    check_broadcast(r, 4096, 2);
    for (int32_t i = 0; i < 32; i++) {
        const nrd_dtype act = types[i / 4 % 2];
        check_norm(r, rows[i % 8], hiddens[(i + i / 4) % 4], act, i % 3 ? NRD_DTYPE_F8_E4M3 : act, i / 2 % 3,
                   i / 8 % 2);
        check_norm(r, rows[i % 8], hiddens[i % 4], act, act, 3, true);
        check_norm(r, rows[i % 8], hiddens[i % 4], act, NRD_DTYPE_F32, i / 2 % 3, true);
    }
    check_recorded(r);
    check_pipes(r);
    if (!small_only) {
        time_all(r);
    }
    check_lost(r);
    return NULL;
}

/* All checks, with kernels of the plug-in's own or with NCCL. */
static void run_ranks(size_t shared_bytes)
{
    pthread_t threads[MAX_SIZE];

    printf("%d ranks, %s\n", n_ranks, of_library ? "NCCL" : "own kernels");
    memset(shared, 0, shared_bytes);
    memset(shared_pipes, 0, shared_bytes);
    for (int32_t i = 0; i < n_ranks; i++) {
        ranks[i] = (rank){.id = i};
        pthread_create(&threads[i], NULL, run, &ranks[i]);
    }
    for (int32_t i = 0; i < n_ranks; i++) {
        pthread_join(threads[i], NULL);
        n_checks += ranks[i].n_cases;
        n_failed += ranks[i].n_failures;
    }
    for (int32_t i = 0; i < n_ranks; i++) { /* what a device still has goes with it */
        rank *r = &ranks[i];
        r->dev->ops->event_free(r->from);
        r->dev->ops->event_free(r->to);
        r->dev->ops->comm_close(r->comm);
        r->dev->ops->stream_free(r->st);
        r->dev->ops->close(r->dev);
        for (vector *w = &r->weight; w <= &r->post; w++) {
            free(w->host);
        }
    }
}

/* Whether NCCL opens; where it is missing the message must say what to install. */
static bool opens_library(nrd_device *dev)
{
    const nrd_comm_config config = {.size = n_ranks, .by_library = true, .shared = shared};
    nrd_comm *comm = NULL;
    nrd_error *err = dev->ops->comm_open(dev, &config, &comm);
    const bool opens = !err;

    if (err) {
        n_checks++;
        n_failed += nrd_error_get_code(err) != NRD_ERR_UNSUPPORTED || !strstr(nrd_error_message(err), "nvidia-nccl-cu13");
        printf("NCCL: %s\n", nrd_error_message(err));
        nrd_error_free(err);
    }
    dev->ops->comm_close(comm);
    return opens;
}

static bool has_gpus(int32_t n)
{
    nrd_device *last = NULL;
    nrd_error *err = gpu_open_device(n - 1, &last);
    const bool has = !err;

    if (last) {
        last->ops->close(last);
    }
    nrd_error_free(err);
    return has;
}

int main(int argc, char **argv)
{
    nrd_device *dev = NULL;

    if (argc < 2) {
        fprintf(stderr, "usage: ranks nereid_cuda.so [small] [N]\n");
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        small_only = small_only || strcmp(argv[i], "small") == 0;
        n_ranks = strcmp(argv[i], "small") ? atoi(argv[i]) : n_ranks;
    }
    if (n_ranks < 2 || n_ranks > MAX_SIZE || n_ranks % 2) {
        fprintf(stderr, "ranks: N must be 2, 4, 6 or 8\n");
        return 2;
    }
    open_file(argv[1]);
    OK(gpu_open_device(0, &dev));
    const nrd_comm_config config = {.size = n_ranks};
    const size_t bytes = (dev->ops->comm_bytes(dev, &config) + 8191) / 4096 * 4096;
    if (posix_memalign(&shared, 4096, bytes) != 0 || posix_memalign(&shared_pipes, 4096, bytes) != 0) {
        return 1;
    }
    pthread_barrier_init(&meet, NULL, (unsigned)n_ranks);
    run_ranks(bytes);
    memset(shared, 0, bytes);
    of_library = opens_library(dev) && has_gpus(n_ranks);
    if (of_library) {
        run_ranks(bytes);
    } else {
        printf("NCCL: not tried; it needs to be installed, and a GPU for each rank\n");
    }
    free(shared);
    free(shared_pipes);
    dev->ops->close(dev);
    printf("%s: %d checks, %d failed\n", n_failed ? "FAILED" : "ok", n_checks, n_failed);
    return n_failed != 0;
}
