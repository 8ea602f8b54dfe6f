/* SPDX-License-Identifier: Apache-2.0
 * Collective operations of CPU ranks: each rank copies its part into its room of the shared memory, tells
 * the others, and reads theirs.
 *
 * Rooms are two for each rank, used in turn. A rank that writes a room again has passed the exchange in
 * between, for which every other rank had to finish reading: so one exchange an operation is enough. */
#include "device/cpu/comm.h"

#include "base/mem.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    ROOM_BYTES = 256 << 10,
    ROOM_FLOATS = ROOM_BYTES / (int)sizeof(float),
    SPLIT_FLOATS = 8192, /* less is one thread's work */
    SPINS = 4000,        /* pauses, about 100-180 us: longer than ranks differ in a step */
    SLEEP_MS = 50,       /* then the stop word is looked at again */
};

typedef struct rank_mark {
    _Alignas(64) _Atomic uint32_t n; /* exchanges that the rank has come to */
} rank_mark;

typedef struct shared_head {
    _Atomic uint32_t stop; /* first: the stop word */
    _Alignas(64) _Atomic uint32_t sleepers;
    rank_mark marks[NRD_CPU_MAX_RANKS];
} shared_head;

struct nrd_comm {
    shared_head *head;
    uint8_t *rooms; /* [2][size][ROOM_BYTES] */
    int32_t rank, size;
    uint32_t n_commands;
};

_Static_assert(sizeof(rank_mark) == 64, "a line for each rank");

size_t nrd_cpu_comm_bytes(nrd_device *dev, int32_t size)
{
    (void)dev;
    return sizeof(shared_head) + 2u * (size_t)size * ROOM_BYTES;
}

nrd_error *nrd_cpu_comm_open(nrd_device *dev, const nrd_comm_config *config, nrd_comm **out)
{
    nrd_error *err = NULL;
    nrd_comm *c = NULL;

    (void)dev;
    *out = NULL;
    if (config->size < 1 || config->size > NRD_CPU_MAX_RANKS || config->rank < 0 ||
        config->rank >= config->size || !config->shared || (uintptr_t)config->shared % 64 != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cpu: rank %d of %d; ranks are at most %d", config->rank,
                          config->size, NRD_CPU_MAX_RANKS);
    }
    NRD_NEW_GOTO(c, 1, err, fail);
    c->head = config->shared;
    c->rooms = (uint8_t *)config->shared + sizeof(shared_head);
    c->rank = config->rank;
    c->size = config->size;
    *out = c;
fail:
    return err;
}

void nrd_cpu_comm_close(nrd_comm *c)
{
    free(c);
}

nrd_error *nrd_cpu_comm_health(const nrd_comm *c)
{
    uint32_t stop = atomic_load(&c->head->stop);
    return stop == 0 ? NULL
                     : nrd_errorf(NRD_ERR_UNAVAILABLE, "rank %u of %d was lost", stop - 1, c->size);
}

static float *room(const nrd_comm *c, uint32_t seq, int32_t rank)
{
    return (float *)(void *)(c->rooms + ((seq & 1u) * (size_t)c->size + (size_t)rank) * ROOM_BYTES);
}

/* ---- the exchange ---- */

static inline void pause_cpu(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

static bool has_come(const nrd_comm *c, int32_t rank, uint32_t seq)
{
    return (int32_t)(atomic_load_explicit(&c->head->marks[rank].n, memory_order_acquire) - seq) >= 0;
}

static void sleep_for(nrd_comm *c, int32_t rank, uint32_t seq)
{
    const struct timespec most = {0, SLEEP_MS * 1000000};
    _Atomic uint32_t *at = &c->head->marks[rank].n;

    atomic_fetch_add(&c->head->sleepers, 1); /* before the last look: who comes looks after its write */
    uint32_t seen = atomic_load(at);
    if ((int32_t)(seen - seq) < 0) {
        syscall(SYS_futex, at, FUTEX_WAIT, seen, &most, NULL, 0);
    }
    atomic_fetch_sub(&c->head->sleepers, 1);
}

/* Says that this rank's room of exchange `seq` is filled, and waits until all others' are. */
static void exchange(nrd_comm *c, uint32_t seq)
{
    atomic_store(&c->head->marks[c->rank].n, seq);
    if (atomic_load(&c->head->sleepers)) {
        syscall(SYS_futex, &c->head->marks[c->rank].n, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
    for (int32_t i = 0; i < c->size; i++) {
        for (int spins = 0; !has_come(c, i, seq); spins++) {
            if (spins < SPINS) {
                pause_cpu();
                continue;
            }
            if (atomic_load_explicit(&c->head->stop, memory_order_relaxed)) {
                return;
            }
            sleep_for(c, i, seq);
        }
    }
}

/* ---- all_reduce ---- */

/* The elements of a piece: pieces of whole cache lines, of nearly the same size. */
static void piece(int64_t n, int32_t i, int32_t n_pieces, int64_t *from, int64_t *to)
{
    int64_t lines = (n + 15) / 16;
    *from = lines * i / n_pieces * 16;
    *to = lines * (i + 1) / n_pieces * 16;
    *to = *to < n ? *to : n;
}

static void put(nrd_cpu_cmd *c, int32_t i)
{
    const nrd_all_reduce_args *a = &c->u.all_reduce;
    int64_t from, to;
    piece(a->n, i, c->i[1], &from, &to);
    memcpy(room(a->comm, (uint32_t)c->i[0], a->comm->rank) + from, (const float *)a->x + from,
           (size_t)(to - from) * sizeof(float));
}

static void add_up(const nrd_cpu_run *r, nrd_cpu_cmd *c, int32_t i)
{
    const nrd_all_reduce_args *a = &c->u.all_reduce;
    float *x = a->x;
    int64_t from, to;
    piece(a->n, i, c->i[1], &from, &to);
    memcpy(x + from, room(a->comm, (uint32_t)c->i[0], 0) + from, (size_t)(to - from) * sizeof(float));
    for (int32_t k = 1; k < a->comm->size; k++) {
        r->k->add_row(x + from, room(a->comm, (uint32_t)c->i[0], k) + from, to - from);
    }
}

static void run_all_reduce(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    bool alone = c->i[1] == 1; /* then one task does it all */
    if (phase == 0) {
        put(c, task);
    }
    if (phase == 1 || alone) {
        exchange(c->u.all_reduce.comm, (uint32_t)c->i[0]);
    }
    if (phase == 2 || alone) {
        add_up(r, c, task);
    }
}

static const nrd_cpu_op op_all_reduce = {run_all_reduce};

static void set_phases(nrd_cpu_cmd *c, nrd_comm *comm, int64_t n_floats, int n_threads)
{
    c->i[0] = (int32_t)++comm->n_commands;
    c->i[1] = n_floats < SPLIT_FLOATS ? 1 : n_threads;
    c->n_tasks[0] = c->i[1];
    if (c->i[1] > 1) {
        c->n_tasks[1] = 1;
        c->n_tasks[2] = c->i[1];
    }
}

bool nrd_all_reduce_cpu(nrd_cpu_cmd *c, nrd_cpu_comm_part *done, int n_threads)
{
    nrd_all_reduce_args *a = &c->u.all_reduce;
    int64_t left = a->n - done->at;

    if (left <= 0) {
        return false;
    }
    a->x = (float *)a->x + done->at;
    a->n = left < ROOM_FLOATS ? left : ROOM_FLOATS;
    done->at += a->n;
    c->op = &op_all_reduce;
    set_phases(c, a->comm, a->n, n_threads);
    return true;
}

/* ---- gather ---- */

/* c->i[2], c->i[3]: first row and column of the tile; c->i[4], c->i[5]: its rows and columns. */
static void put_tile(nrd_cpu_cmd *c, int32_t i)
{
    const nrd_gather_args *a = &c->u.gather;
    float *to = room(a->comm, (uint32_t)c->i[0], a->comm->rank);
    for (int32_t row = i; row < c->i[4]; row += c->i[1]) {
        memcpy(to + (int64_t)row * c->i[5], a->x + (int64_t)(c->i[2] + row) * a->cols + c->i[3],
               (size_t)c->i[5] * sizeof(float));
    }
}

static void take_tiles(nrd_cpu_cmd *c, int32_t i)
{
    const nrd_gather_args *a = &c->u.gather;
    int64_t width = (int64_t)a->cols * a->comm->size;
    for (int32_t k = 0; k < a->comm->size; k++) {
        const float *from = room(a->comm, (uint32_t)c->i[0], k);
        for (int32_t row = i; row < c->i[4]; row += c->i[1]) {
            memcpy(a->out + (c->i[2] + row) * width + (int64_t)k * a->cols + c->i[3],
                   from + (int64_t)row * c->i[5], (size_t)c->i[5] * sizeof(float));
        }
    }
}

static void run_gather(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    bool alone = c->i[1] == 1;
    (void)r;
    if (phase == 0) {
        put_tile(c, task);
    }
    if (phase == 1 || alone) {
        exchange(c->u.gather.comm, (uint32_t)c->i[0]);
    }
    if ((phase == 2 || alone) && c->u.gather.comm->rank == 0) {
        take_tiles(c, task);
    }
}

static const nrd_cpu_op op_gather = {run_gather};

bool nrd_gather_cpu(nrd_cpu_cmd *c, nrd_cpu_comm_part *done, int n_threads)
{
    const nrd_gather_args *a = &c->u.gather;
    int32_t rows = 1, cols = a->cols - done->col;

    if (done->row >= a->n_rows) {
        return false;
    }
    if (done->col == 0 && a->cols <= ROOM_FLOATS) { /* whole rows */
        rows = ROOM_FLOATS / a->cols;
        rows = rows < a->n_rows - done->row ? rows : a->n_rows - done->row;
    } else {
        cols = cols < ROOM_FLOATS ? cols : ROOM_FLOATS;
    }
    c->op = &op_gather;
    set_phases(c, a->comm, (int64_t)rows * cols, n_threads);
    c->i[2] = done->row;
    c->i[3] = done->col;
    c->i[4] = rows;
    c->i[5] = cols;
    done->col += cols;
    if (done->col >= a->cols) {
        done->col = 0;
        done->row += rows;
    }
    return true;
}
