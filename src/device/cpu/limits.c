/* SPDX-License-Identifier: Apache-2.0
 * The CPU's limits, measured with the instructions that the kernels use. */
#include "device/cpu/cpu.h"

#include "base/clock.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

enum {
    READ_BYTES = 256 << 20,
    PIECE_BYTES = 8 << 20, /* read at a time, so that some pieces fall between others' time slices */
    N_PIECES = READ_BYTES / PIECE_BYTES,
    ROUNDS = 100000, /* of a peak function: 4 (AMX) or 12 instructions each */
};

typedef struct limits {
    const nrd_cpu_kernels *k;
    const float *memory;
    int piece;
    volatile float sink;
} limits;

static void read_piece(void *user, nrd_thread *self)
{
    limits *l = user;
    int64_t n = PIECE_BYTES / (int64_t)sizeof(float) / self->n;
    const float *at = l->memory + (int64_t)l->piece * (PIECE_BYTES / (int64_t)sizeof(float));
    float sum = l->k->peak_read(at + n * self->id, n);
    if (self->id == 0) {
        l->sink = sum;
    }
}

static void dots(void *user, nrd_thread *self)
{
    limits *l = user;
    int64_t sum = l->k->peak_dot(ROUNDS);
    if (self->id == 0) {
        l->sink = (float)sum;
    }
}

static void fmas(void *user, nrd_thread *self)
{
    limits *l = user;
    float sum = l->k->peak_fma(ROUNDS);
    if (self->id == 0) {
        l->sink = sum;
    }
}

static void bf16(void *user, nrd_thread *self)
{
    limits *l = user;
    float sum = l->k->peak_bf16(ROUNDS);
    if (self->id == 0) {
        l->sink = sum;
    }
}

static double best_seconds(limits *l, nrd_threads *pool, int runs, nrd_threads_fn fn)
{
    double best = 0;
    for (int i = 0; i < runs; i++) {
        l->piece = i % N_PIECES;
        uint64_t start = nrd_now_ns();
        nrd_threads_run(pool, fn, l);
        double s = (double)(nrd_now_ns() - start) / 1e9;
        best = i == 0 || s < best ? s : best;
    }
    return best;
}

nrd_error *nrd_cpu_limits(const nrd_cpu_kernels *k, nrd_threads *pool, nrd_device_limits *out)
{
    float *memory = mmap(NULL, READ_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    limits l = {.k = k, .memory = memory};
    int n = nrd_threads_size(pool);

    if (memory == MAP_FAILED) {
        return nrd_error_no_memory();
    }
    (void)madvise(memory, READ_BYTES, MADV_HUGEPAGE); /* as weights lie */
    memset(memory, 1, READ_BYTES); /* pages of its own, not the one page of zeros */
    *out = (nrd_device_limits){
        .read_bytes_per_s = PIECE_BYTES / best_seconds(&l, pool, 4 * N_PIECES, read_piece),
        .float_ops_per_s = (double)ROUNDS * k->fma_ops * n / best_seconds(&l, pool, 50, fmas),
        .eight_bit_ops_per_s = (double)ROUNDS * k->dot_ops * n / best_seconds(&l, pool, 50, dots),
        .bf16_ops_per_s = k->peak_bf16 ? (double)ROUNDS * k->bf16_ops * n / best_seconds(&l, pool, 50, bf16) : 0,
    };
    munmap(memory, READ_BYTES);
    return NULL;
}
