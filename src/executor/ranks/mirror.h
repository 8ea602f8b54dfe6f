/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/mirror.h - what ranks write into shared memory, written on other hosts as well.
 *
 * Purpose   Each host of an engine has memory of the same layout, through which its own ranks meet. Whatever is in it has
 *           one writer. So a rank that has written something there sends it to the hosts whose ranks read it: some bytes, and
 *           then the word (the mark) on which readers wait. There a thread for each rank elsewhere puts the
 *           bytes in their place, stores the mark and wakes who sleeps on it. What one rank writes arrives in its order.
 *           So operations over several hosts are those over one, to the bit.
 * Why TCP   and not MPI: an MPI world does not outlive one of its processes (MPI 4.0, chapter "Error Handling": what happens
 *           after an error is not said), but a model whose rank was lost is loaded again while the others serve on; a cut
 *           network would be noticed after minutes; and processes that wait in MPI calls keep a core busy each.
 * Owner     A mirror is its rank's: any of its threads may write. A listener is the one per host and engine; it has threads of its own.
 * Errors    UNAVAILABLE: a host is not reached. A connection that breaks later is no error here: the ranks' watch
 *           (hosts.h) sees it, and sets the stop word, which ends all waits here as well.
 * Trust     Who connects must know the token, which rank 0 has made for this engine. It is not encrypted: the network
 *           between hosts of ranks must be theirs alone.
 */
#ifndef NRD_EXECUTOR_RANKS_MIRROR_H
#define NRD_EXECUTOR_RANKS_MIRROR_H

#include "base/error.h"
#include "executor/ranks/tcp.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { NRD_HOSTS_MAX = 64, NRD_TOKEN_BYTES = 16 };

/* Where the ranks of an engine are. Host 0 is rank 0's. */
typedef struct nrd_rank_hosts {
    int32_t n; /* 0 or 1: all on one host, and the rest has no meaning */
    uint8_t of[NRD_HOSTS_MAX]; /* each rank's */
    uint8_t token[NRD_TOKEN_BYTES];
    char address[NRD_HOSTS_MAX][NRD_TCP_ADDRESS]; /* of each host, as the others reach it */
    uint16_t port[NRD_HOSTS_MAX];                 /* of its listener */
} nrd_rank_hosts;

/* Of the memory that the ranks of this host share what other hosts may write. Borrowed until close. */
typedef struct nrd_mirror_memory {
    void *base;
    size_t bytes;
    const _Atomic uint32_t *stop; /* not 0: the ranks were stopped */
} nrd_mirror_memory;

typedef struct nrd_mirror nrd_mirror;

/* Connects rank `rank` with the listeners of the other hosts of hosts->n (2 or more); copies `hosts`. */
nrd_error *nrd_mirror_open(nrd_mirror **out, const nrd_mirror_memory *memory, const nrd_rank_hosts *hosts, int32_t rank,
                           int32_t size) NRD_MUST_USE;
void nrd_mirror_close(nrd_mirror *m); /* NULL is fine */
/* To the hosts of ranks first … first + n - 1 but this one: `bytes` at `data`, and then `value` into the word at `mark`; both lie in
 * the memory. Waits while the network is slower than the writer. */
void nrd_mirror_wrote(nrd_mirror *m, int32_t first, int32_t n, const void *data, size_t bytes, const void *mark, uint32_t value);

typedef struct nrd_mirror_listener nrd_mirror_listener;

/* Listens on *port (out) for the ranks elsewhere and does what they send. */
nrd_error *nrd_mirror_listener_open(nrd_mirror_listener **out, const nrd_mirror_memory *memory, const uint8_t token[NRD_TOKEN_BYTES],
                                uint16_t *port) NRD_MUST_USE;
void nrd_mirror_listener_close(nrd_mirror_listener *d); /* ends its threads; NULL is fine */

/* What one rank sends through a connected socket, done until it ends or sends what does not fit the memory. */
void nrd_mirror_hear(const nrd_mirror_memory *memory, int fd);

#endif
