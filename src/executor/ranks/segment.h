/* SPDX-License-Identifier: Apache-2.0
 * executor/ranks/segment.h - the memory that the ranks of one executor share.
 *
 * Purpose   What rank 0 tells the others: their configuration, and one message after the other (steps, sizes
 *           of the cache, adapters) through a few slots used in turn. Behind it lies the device's own part
 *           (nrd_comm_config.shared).
 *           Ranks on other hosts have a segment of the same layout there; what a rank writes for them goes through a mirror.
 * Owner     Rank 0 makes it (memfd) and alone writes messages; a worker maps it and reads them in their order.
 * Errors    UNAVAILABLE: no memory, or a rank was lost while one waits.
 * Trust     Both sides are the same build of this program; the first bytes are checked for that.
 */
#ifndef NRD_EXECUTOR_RANKS_SEGMENT_H
#define NRD_EXECUTOR_RANKS_SEGMENT_H

#include "base/error.h"
#include "executor/ranks/mirror.h"
#include "nereid/device.h"
#include "nereid/dtype.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    NRD_RANKS_MAX = 64,
    NRD_RANKS_MAX_TAPS = 4,
    NRD_RANKS_MAX_WINDOWS = 512,
    NRD_RANKS_MESSAGE_BYTES = 64 << 20, /* address space; what is not used takes no memory */
};

typedef enum {
    NRD_MESSAGE_ALLOC_KV = 1, /* nrd_rank_kv */
    NRD_MESSAGE_STEP = 2,     /* what nrd_runner_follow takes */
    NRD_MESSAGE_ADAPTER = 3,  /* ranks/adapters.h */
    NRD_MESSAGE_GIVE = 4,     /* nrd_give_order */
} nrd_message_kind;

typedef struct nrd_rank_kv {
    int32_t n_blocks, n_host_blocks;
} nrd_rank_kv;

/* What every rank opens its engine, device and runner with. */
typedef struct nrd_rank_config {
    char engine_dir[4096], device[64], cpu_isa[32];
    uint64_t engine_mark;              /* of rank 0's files, nrd_engine_mark */
    int32_t device_ids[NRD_RANKS_MAX]; /* of each rank; -1: its number among those of its host */
    int32_t launched[NRD_RANKS_MAX];   /* which of the launcher's ranks starts each */
    int32_t n_threads;                 /* of each rank; 0: its share of the cores */
    bool verify_checksums, compute_f32, deterministic;
    double streamed_share;
    nrd_dtype kv_dtype;
    int32_t max_tokens, max_entries, max_draft_rows, max_context, block_tokens, max_picture_states, n_sink;
    int32_t n_windows, windows[NRD_RANKS_MAX_WINDOWS];
    int32_t n_taps, taps[NRD_RANKS_MAX_TAPS]; /* layers whose input rank 0 keeps */
    nrd_rank_hosts hosts;
} nrd_rank_config;

typedef struct nrd_segment nrd_segment; /* a mapping of the memory */

/* n_ahead: so many messages may be there that not all have read. comm_bytes: of the device's part. *out_fd stays the caller's. */
nrd_error *nrd_segment_new(nrd_segment **out, int32_t size, int32_t n_ahead, size_t comm_bytes,
                           const nrd_rank_config *config, int *out_fd) NRD_MUST_USE;
nrd_error *nrd_segment_open(nrd_segment **out, int fd, int32_t rank) NRD_MUST_USE;
void nrd_segment_free(nrd_segment *s); /* unmaps; NULL is fine */

int32_t nrd_segment_size(const nrd_segment *s);
const nrd_rank_config *nrd_segment_config(const nrd_segment *s);
void *nrd_segment_comm(const nrd_segment *s); /* 64-byte aligned */

/* Where the ranks are, before any of them is started. */
void nrd_segment_set_hosts(nrd_segment *s, const nrd_rank_hosts *hosts);
/* Each rank, before it writes anything: connects with the other hosts, if there are any. UNAVAILABLE. */
nrd_error *nrd_segment_connect(nrd_segment *s) NRD_MUST_USE;
nrd_comm_far nrd_segment_far(nrd_segment *s); /* of the device's part; behind connect */
nrd_mirror_memory nrd_segment_memory(const nrd_segment *s);

/* Ends all waits of all ranks of this host, for ever. */
void nrd_segment_stop(nrd_segment *s, int32_t lost_rank);
bool nrd_segment_is_stopped(const nrd_segment *s);

/* A sign of life, which a thread of each worker gives while others compute. */
typedef struct nrd_rank_life {
    int32_t process, thread; /* of who gives it; 0: nobody has yet */
    uint32_t n_beats;
    int64_t still_ms; /* for how long none of the threads that compute has run (pulse.h) */
} nrd_rank_life;

void nrd_segment_beat(nrd_segment *s, int32_t rank, int64_t still_ms); /* by the thread that it names */
nrd_rank_life nrd_segment_life(const nrd_segment *s, int32_t rank);

/* Rank 0: room for the next message; waits until all have read the one that was there. */
nrd_error *nrd_segment_begin(nrd_segment *s, void **out) NRD_MUST_USE;
void nrd_segment_end(nrd_segment *s, nrd_message_kind kind, size_t bytes);
/* Rank 0: waits until all are done with all messages. */
nrd_error *nrd_segment_drain(nrd_segment *s) NRD_MUST_USE;
/* Others: the next message, which stays until the next call. UNAVAILABLE once the segment is stopped. */
nrd_error *nrd_segment_next(nrd_segment *s, nrd_message_kind *kind, const void **out,
                            size_t *out_bytes) NRD_MUST_USE;

#endif
