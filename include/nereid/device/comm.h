/* SPDX-License-Identifier: Apache-2.0
 * nereid/device/comm.h - what ranks tell each other.
 * Part of nereid/device.h. */
#ifndef NEREID_DEVICE_COMM_H
#define NEREID_DEVICE_COMM_H

#include "nereid/device/linear.h"

/* ---- ranks: devices that compute one step together ---- */

/* Each rank has a process (or a thread), a device and a stream of its own, and enqueues the same collective
 * operations in the same order with the same sizes. */
typedef struct nrd_comm nrd_comm;

/* Ranks on other hosts, which do not see nrd_comm_config.shared but one of the same layout. */
typedef struct nrd_comm_far {
    const uint8_t *host_of; /* [size]: the host of each rank; outlives the comm. NULL: all are on one, and the rest has no meaning */
    /* What this rank has written to `shared` is written on the hosts of ranks first … first + n - 1 as well: `bytes` at `data`,
     * and behind them `value` into the word at `mark`, whose futex is woken. What one rank writes keeps its order. Any thread. */
    void (*wrote)(void *user, int32_t first, int32_t n, const void *data, size_t bytes, const void *mark, uint32_t value);
    void *user;
} nrd_comm_far;

typedef struct nrd_comm_config {
    int32_t rank, size; /* rank: 0 .. size - 1 */
    /* Ranks g * group to (g + 1) * group - 1 share their layers: all_reduce and gather are theirs alone. 0, or
     * size: all ranks do. */
    int32_t group;
    /* With several groups: the longest message of send in one piece, and how many may be under way to a rank. */
    size_t piece_bytes;
    int32_t n_pieces;
    /* all_reduce, gather and broadcast through the maker's library (CUDA: NCCL), also where ranks reach each other's memory; the
     * same in every rank. comm_open says UNSUPPORTED where the library is not found. The CPU has no other way: no effect. */
    bool by_library;
    /* comm_bytes() of this configuration, of memory that all ranks of this host see, zero before the first one opens, 64-byte
     * aligned; outlives the comm. Its first word is the stop word. */
    void *shared;
    nrd_comm_far far;
} nrd_comm_config;

/* Whoever stores a number other than 0 into the stop word of `shared` (the lost rank + 1) ends all waits of
 * all ranks: what their streams compute from then on is void, and stream_sync says UNAVAILABLE. */
static inline uint32_t *nrd_comm_stop_word(void *shared)
{
    return (uint32_t *)shared;
}

/* x becomes the sum of all ranks' x, added in the order of the ranks: the same bits in every rank. */
typedef struct nrd_all_reduce_args {
    nrd_comm *comm;
    void *x; /* [n], of comm_alloc where there is one */
    int64_t n;
    nrd_dtype dtype;
} nrd_all_reduce_args;

/* all_reduce() of norm.delta and then norm(). The ranks may divide the rows among them: then a rank has the
 * residual of its own rows only, until an operation with as many tokens asks for all of it again. What is in
 * norm.delta afterwards has no meaning. No row_ids; all arrays but the weights are of comm_alloc. */
typedef struct nrd_all_reduce_norm_args {
    nrd_comm *comm;
    nrd_norm_args norm;
    bool whole_residual; /* every rank gets all rows of the residual */
} nrd_all_reduce_norm_args;

/* Columns of all ranks side by side: out[row, rank * cols + c] = that rank's x[row, c], in the group's first. */
typedef struct nrd_gather_args {
    nrd_comm *comm;
    const float *x; /* [n_rows, cols], of comm_alloc where there is one */
    float *out;     /* [n_rows, size * cols]; not read or written by other ranks */
    int32_t n_rows, cols;
} nrd_gather_args;

/* x of rank 0 becomes that of every rank. */
typedef struct nrd_broadcast_args {
    nrd_comm *comm;
    void *x; /* [bytes], of comm_alloc */
    int64_t bytes;
} nrd_broadcast_args;

/* Rows from one rank to another; both name the same numbers. Messages of two ranks arrive in the order in which
 * they were sent. A sender waits only where n_pieces are under way to the same rank. */
typedef struct nrd_transfer_args {
    nrd_comm *comm;
    int32_t peer; /* to whom, or from whom */
    void *x;      /* n_rows rows of row_bytes, `stride` bytes apart; send does not write to it */
    int64_t row_bytes, stride;
    int32_t n_rows;
} nrd_transfer_args;

#endif
