/* SPDX-License-Identifier: Apache-2.0
 * Collective operations of CPU ranks: each rank copies its part into its room of the shared memory, tells
 * the others, and reads theirs.
 *
 * Pipes, one for each rank that hears from another: slots used in turn, with a count of those filled and a
 * count of those emptied.
 *
 * Ranks on other hosts get what is written here by nrd_comm_far.wrote; the rules below hold there as well, since what a rank
 * writes arrives in its order.
 *
 * Rooms are two for each rank, used in turn. A rank that writes a room again has passed the exchange in
 * between, for which every other rank had to finish reading: so one exchange an operation is enough. */
#include "device/cpu/comm.h"

#include "base/mem.h"
#include "base/spin.h"

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

/* What a rank hears. */
typedef struct pipe_marks {
    rank_mark filled, emptied;
} pipe_marks;

typedef struct shared_head {
    _Atomic uint32_t stop; /* first: the stop word */
    _Alignas(64) _Atomic uint32_t sleepers;
    rank_mark marks[NRD_CPU_MAX_RANKS];
    pipe_marks pipes[NRD_CPU_MAX_RANKS];
} shared_head;

struct nrd_comm {
    shared_head *head;
    uint8_t *rooms; /* [2][size][ROOM_BYTES] */
    uint8_t *slots; /* [size][n_pieces][piece_bytes] of pipes */
    size_t piece_bytes;
    int32_t n_pieces;
    int32_t rank, size; /* of all ranks */
    int32_t first, group; /* the ranks of this one's group */
    nrd_comm_far far;
    uint32_t n_commands;
    uint32_t n_heard, n_said[NRD_CPU_MAX_RANKS]; /* pieces */
};

_Static_assert(sizeof(rank_mark) == 64, "a line for each rank");

static size_t rooms_bytes(const nrd_comm_config *c)
{
    return 2u * (size_t)c->size * ROOM_BYTES;
}

size_t nrd_cpu_comm_bytes(nrd_device *dev, const nrd_comm_config *c)
{
    const bool pipes = c->group > 0 && c->group < c->size;
    (void)dev;
    return sizeof(shared_head) + rooms_bytes(c) +
           (pipes ? (size_t)c->size * (size_t)c->n_pieces * c->piece_bytes : 0);
}

nrd_error *nrd_cpu_comm_open(nrd_device *dev, const nrd_comm_config *config, nrd_comm **out)
{
    nrd_error *err = NULL;
    nrd_comm *c = NULL;

    (void)dev;
    *out = NULL;
    if (config->size < 1 || config->size > NRD_CPU_MAX_RANKS || config->rank < 0 ||
        config->rank >= config->size || !config->shared || (uintptr_t)config->shared % 64 != 0 ||
        config->group < 0 || (config->group > 0 && config->size % config->group != 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cpu: rank %d of %d; ranks are at most %d", config->rank,
                          config->size, NRD_CPU_MAX_RANKS);
    }
    NRD_NEW_GOTO(c, 1, err, fail);
    c->head = config->shared;
    c->rooms = (uint8_t *)config->shared + sizeof(shared_head);
    c->slots = c->rooms + rooms_bytes(config);
    c->piece_bytes = config->piece_bytes;
    c->n_pieces = config->n_pieces;
    c->rank = config->rank;
    c->size = config->size;
    c->group = config->group > 0 ? config->group : config->size;
    c->first = config->rank / c->group * c->group;
    c->far = config->far;
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

static void sleep_for(nrd_comm *c, _Atomic uint32_t *at, uint32_t seq)
{
    const struct timespec most = {0, SLEEP_MS * 1000000};

    atomic_fetch_add(&c->head->sleepers, 1); /* before the last look: who comes looks after its write */
    uint32_t seen = atomic_load(at);
    if ((int32_t)(seen - seq) < 0) {
        syscall(SYS_futex, at, FUTEX_WAIT, seen, &most, NULL, 0);
    }
    atomic_fetch_sub(&c->head->sleepers, 1);
}

/* Until *at has come to seq; false: a rank was lost. */
static bool wait_for(nrd_comm *c, rank_mark *mark, uint32_t seq)
{
    _Atomic uint32_t *at = &mark->n;
    for (int spins = 0; (int32_t)(atomic_load_explicit(at, memory_order_acquire) - seq) < 0; spins++) {
        if (spins < SPINS) {
            nrd_spin_pause();
            continue;
        }
        if (atomic_load_explicit(&c->head->stop, memory_order_relaxed)) {
            return false;
        }
        sleep_for(c, at, seq);
    }
    return true;
}

/* Tells n ranks from `first` on, here and elsewhere, that what they wait for is there: `bytes` at `data`. */
static void tell(nrd_comm *c, int32_t first, int32_t n, const void *data, size_t bytes, rank_mark *mark, uint32_t seq)
{
    atomic_store(&mark->n, seq);
    if (atomic_load(&c->head->sleepers)) {
        syscall(SYS_futex, &mark->n, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    }
    if (c->far.host_of) {
        c->far.wrote(c->far.user, first, n, data, bytes, &mark->n, seq);
    }
}

/* Says that n floats of this rank's room of exchange `seq` are filled, and waits until all others' of its group are.
 * The first n_readers ranks of the group read them. */
static void exchange(nrd_comm *c, uint32_t seq, int64_t n, int32_t n_readers)
{
    rank_mark *mark = &c->head->marks[c->rank];

    tell(c, c->first, n_readers, room(c, seq, c->rank), (size_t)n * sizeof(float), mark, seq);
    if (n_readers < c->group && c->far.host_of) {
        tell(c, c->first + n_readers, c->group - n_readers, NULL, 0, mark, seq);
    }
    for (int32_t i = c->first; i < c->first + c->group; i++) {
        if (!wait_for(c, &c->head->marks[i], seq)) {
            return;
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
    const int32_t first = a->comm->first;
    memcpy(x + from, room(a->comm, (uint32_t)c->i[0], first) + from, (size_t)(to - from) * sizeof(float));
    for (int32_t k = 1; k < a->comm->group; k++) {
        r->k->add_row(x + from, room(a->comm, (uint32_t)c->i[0], first + k) + from, to - from);
    }
}

static void run_all_reduce(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    bool alone = c->i[1] == 1; /* then one task does it all */
    if (phase == 0) {
        put(c, task);
    }
    if (phase == 1 || alone) {
        exchange(c->u.all_reduce.comm, (uint32_t)c->i[0], c->u.all_reduce.n, c->u.all_reduce.comm->group);
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
    int64_t width = (int64_t)a->cols * a->comm->group;
    for (int32_t k = 0; k < a->comm->group; k++) {
        const float *from = room(a->comm, (uint32_t)c->i[0], a->comm->first + k);
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
        exchange(c->u.gather.comm, (uint32_t)c->i[0], (int64_t)c->i[4] * c->i[5], 1);
    }
    if ((phase == 2 || alone) && c->u.gather.comm->rank == c->u.gather.comm->first) {
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

/* ---- send, receive ---- */

/* c->i[0]: the piece's number in its pipe; c->i[1], c->i[2]: first row and how many; c->at[0], c->at[1]: bytes
 * [at, at + n) of each. */
static void run_transfer(nrd_cpu_cmd *c, bool sends)
{
    const nrd_transfer_args *a = &c->u.transfer;
    nrd_comm *comm = a->comm;
    const int32_t to = sends ? a->peer : comm->rank;
    const uint32_t n = (uint32_t)c->i[0];
    pipe_marks *marks = &comm->head->pipes[to];
    size_t number = (size_t)to * (size_t)comm->n_pieces + (n - 1) % (uint32_t)comm->n_pieces;
    uint8_t *slot = comm->slots + number * comm->piece_bytes;

    if (sends ? n > (uint32_t)comm->n_pieces && !wait_for(comm, &marks->emptied, n - (uint32_t)comm->n_pieces)
              : !wait_for(comm, &marks->filled, n)) {
        return;
    }
    for (int32_t i = 0; i < c->i[2]; i++) {
        uint8_t *row = (uint8_t *)a->x + (int64_t)(c->i[1] + i) * a->stride + c->at[0];
        uint8_t *there = slot + (size_t)i * c->at[1];
        memcpy(sends ? there : row, sends ? row : there, c->at[1]);
    }
    tell(comm, a->peer, 1, slot, sends ? (size_t)c->i[2] * c->at[1] : 0, sends ? &marks->filled : &marks->emptied, n);
}

static void run_send(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    (void)r;
    (void)phase;
    (void)task;
    run_transfer(c, true);
}

static void run_receive(nrd_cpu_run *r, nrd_cpu_cmd *c, int phase, int32_t task)
{
    (void)r;
    (void)phase;
    (void)task;
    run_transfer(c, false);
}

static const nrd_cpu_op op_send = {run_send}, op_receive = {run_receive};

bool nrd_transfer_cpu(nrd_cpu_cmd *c, nrd_cpu_comm_part *done, bool sends)
{
    const nrd_transfer_args *a = &c->u.transfer;
    const int64_t piece = (int64_t)a->comm->piece_bytes;
    int64_t rows = 1, bytes = a->row_bytes - done->byte;

    if (done->row >= a->n_rows) {
        return false;
    }
    if (done->byte == 0 && bytes <= piece) { /* whole rows */
        rows = piece / bytes;
        rows = rows < a->n_rows - done->row ? rows : a->n_rows - done->row;
    } else {
        bytes = bytes < piece ? bytes : piece;
    }
    c->op = sends ? &op_send : &op_receive;
    c->n_tasks[0] = 1;
    c->i[0] = (int32_t)(sends ? ++a->comm->n_said[a->peer] : ++a->comm->n_heard);
    c->i[1] = done->row;
    c->i[2] = (int32_t)rows;
    c->at[0] = (size_t)done->byte;
    c->at[1] = (size_t)bytes;
    done->byte += bytes;
    if (done->byte >= a->row_bytes) {
        done->byte = 0;
        done->row += (int32_t)rows;
    }
    return true;
}
