/* SPDX-License-Identifier: Apache-2.0
 * comm.cuh - how kernels of several ranks exchange numbers over peer memory.
 *
 * Purpose   Two ways, and every collective operation of a stage's ranks takes one of them; between stages a third:
 *           quick  each rank stores its numbers into the inbox that each other rank has for it, and waits
 *                  until the words of its own inboxes are no longer NOT_YET: the numbers are their own flag,
 *                  so that one trip over the link is all. Three inboxes in turn: one in use, one being
 *                  emptied, one that a quicker rank may already fill.
 *           pipe   from a pipeline stage to the next: slots in the receiver's memory, used in turn (pipes.cu).
 *           bulk   ranks tell each other that their memory is ready, read and write it, and tell each other
 *                  that they are done. Three trips, no copies.
 * State     What counts operations lies in device memory, so that recorded graphs go on where the last
 *           operation ended. The last block of a kernel to come to its ticket advances it.
 * Stop      Who waits looks now and then at a word in host memory, and gives up when it is not 0.
 * Order     Kernels of one rank are in one stream. Stores of numbers need no order among each other; the
 *           signals of bulk operations are released and acquired (PTX ISA 9.0, memory consistency model).
 * Sources   Data that are their own flag: Lamport, 1983; TensorRT-LLM and FlashInfer use them over NVLink
 *           as well. Two steps (each rank sums a share): Thakur et al., 2005.
 */
#ifndef NRD_CUDA_COMM_CUH
#define NRD_CUDA_COMM_CUH

#include "device/ops/common.cuh"

enum : int { MAX_GPU_RANKS = 8, N_INBOXES = 3 };
enum : size_t { INBOX_BYTES = (size_t)2 << 20 }; /* of one rank's message */
enum : int { INBOX_VECS = (int)(INBOX_BYTES / 16), SPINS_PER_LOOK = 1024 };

/* Two 16-bit zeros with a minus sign: senders store +0 instead. */
static const uint32_t NOT_YET = 0x80008000u;

struct comm_state {
    uint32_t inbox;               /* which of the three the next quick operation uses */
    uint32_t n_vecs[N_INBOXES];   /* how much of it was used last */
    uint32_t quick_ticket;
    uint32_t epoch, bulk_ticket;  /* bulk operations so far */
    uint32_t pipe_ticket;
};

struct comm_signals { /* of one rank, written by the others: epochs that they came to */
    struct {
        uint32_t ready, done, pad[30];
    } from[MAX_GPU_RANKS];
    struct {
        uint32_t n, pad[31];
    } filled,                /* pieces that were sent to this rank */
        emptied[MAX_GPU_RANKS]; /* of this one's pieces, by the rank that hears them */
};

/* What a kernel knows of the ranks of its stage. */
struct comm_view {
    int rank, size;
    comm_state *state;
    uint4 *inbox[MAX_GPU_RANKS]; /* of each rank: [N_INBOXES][size][INBOX_VECS] */
    comm_signals *signals[MAX_GPU_RANKS];
    const uint32_t *stop; /* host memory */
};

/* One array in the memory of every rank. */
struct comm_array {
    char *at[MAX_GPU_RANKS];
};

/* ---- host ---- */

struct nrd_comm;
struct nrd_nccl;
const comm_view *nrd_cuda_comm_view(const nrd_comm *c); /* NULL: comm_meet was not called */
/* Not NULL: the stage's collective operations are NCCL's (nccl.cuh), and kernels here must not touch peers' memory. */
nrd_nccl *nrd_cuda_comm_library(const nrd_comm *c);
/* A rank's end of a pipe: pieces in their order, each in the slot that comes next. */
struct comm_pipe {
    comm_state *state;
    const uint32_t *stop;
    comm_signals *own, *others; /* others: of the peer */
    char *slots;                /* of the one that hears */
    size_t piece_bytes;
    uint32_t n_pieces;
    uint32_t *n_done; /* host: pieces so far */
    int rank, peer;
};
nrd_error *nrd_cuda_comm_pipe(nrd_comm *c, int peer, bool sends, comm_pipe *out);
/* Where the other ranks have what this one has at p, which is of comm_alloc; NULL p: nowhere. */
nrd_error *nrd_cuda_comm_array(const nrd_comm *c, const void *p, comm_array *out);

/* ---- device: words that others write ---- */

static __device__ __forceinline__ uint4 load_sys(const void *p)
{
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

static __device__ __forceinline__ void store_sys(void *p, uint4 v)
{
    asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}

static __device__ __forceinline__ uint32_t load_acquire(const uint32_t *p)
{
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ void store_release(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

/* Whether to give up, asked once a turn of a waiting loop. */
static __device__ __forceinline__ bool gives_up(const comm_view &c, uint32_t *turns)
{
    return ++*turns % SPINS_PER_LOOK == 0 && *(const volatile uint32_t *)c.stop != 0;
}

static __device__ __forceinline__ uint32_t no_flag(uint32_t w)
{
    return w == NOT_YET ? 0 : w;
}

/* Numbers as they are sent; their sum takes the rank's own in the same form. */
static __device__ __forceinline__ uint4 no_flags(uint4 v)
{
    return make_uint4(no_flag(v.x), no_flag(v.y), no_flag(v.z), no_flag(v.w));
}

/* ---- device: sums in the order of the ranks ---- */

/* s += the 16 / sizeof(T) numbers of a vector. */
template <typename T> static __device__ __forceinline__ void add_vec(float *s, uint4 raw)
{
    enum { N = 16 / sizeof(T) };
    T t[N];
    memcpy(t, &raw, 16);
#pragma unroll
    for (int k = 0; k < N; k++) {
        s[k] += to_f(t[k]);
    }
}

template <typename T> static __device__ __forceinline__ uint4 to_vec(const float *s)
{
    enum { N = 16 / sizeof(T) };
    T t[N];
    uint4 raw;
#pragma unroll
    for (int k = 0; k < N; k++) {
        t[k] = from_f<T>(s[k]);
    }
    memcpy(&raw, t, 16);
    return raw;
}

/* ---- device: quick ---- */

struct quick_turn {
    uint32_t inbox, old, old_vecs; /* old: the one to be emptied */
};

/* Behind pdl_wait. */
static __device__ __forceinline__ quick_turn quick_begin(const comm_view &c)
{
    const volatile comm_state *s = c.state;
    quick_turn t;
    t.inbox = s->inbox;
    t.old = t.inbox == 0 ? N_INBOXES - 1 : t.inbox - 1;
    t.old_vecs = s->n_vecs[t.old];
    return t;
}

static __device__ __forceinline__ uint4 *quick_slot(const comm_view &c, int owner, uint32_t inbox, int from)
{
    return c.inbox[owner] + ((size_t)inbox * (size_t)c.size + (size_t)from) * INBOX_VECS;
}

/* Vector i of this rank to all others; v without flags. */
static __device__ __forceinline__ void quick_push(const comm_view &c, const quick_turn &t, int64_t i, uint4 v)
{
    for (int p = 0; p < c.size; p++) {
        if (p != c.rank) {
            store_sys(quick_slot(c, p, t.inbox, c.rank) + i, v);
        }
    }
}

/* Empties what the operation before this one used; thread `first` of `n`. Others write there two operations
 * from now, when this kernel is over. */
static __device__ __forceinline__ void quick_clear(const comm_view &c, const quick_turn &t, int64_t first, int64_t n)
{
    const uint4 empty = make_uint4(NOT_YET, NOT_YET, NOT_YET, NOT_YET);
    for (int p = 0; p < c.size; p++) {
        uint4 *slot = quick_slot(c, c.rank, t.old, p);
        for (int64_t i = first; p != c.rank && i < t.old_vecs; i += n) {
            slot[i] = empty;
        }
    }
}

/* Vector i of rank p, when it is there. */
static __device__ __forceinline__ uint4 quick_take(const comm_view &c, const quick_turn &t, int p, int64_t i)
{
    const uint4 *at = quick_slot(c, c.rank, t.inbox, p) + i;
    uint32_t turns = 0;
    uint4 v = load_sys(at);

    while ((v.x == NOT_YET || v.y == NOT_YET || v.z == NOT_YET || v.w == NOT_YET) && !gives_up(c, &turns)) {
        v = load_sys(at);
    }
    return v;
}

/* The sum of all ranks' vectors i, rounded to T; own: this rank's, without flags. */
template <typename T>
static __device__ __forceinline__ uint4 quick_sum(const comm_view &c, const quick_turn &t, int64_t i, uint4 own)
{
    float s[16 / sizeof(T)] = {};
    for (int p = 0; p < c.size; p++) {
        add_vec<T>(s, p == c.rank ? own : quick_take(c, t, p, i));
    }
    return to_vec<T>(s);
}

/* By one thread of each block when all its threads have come past quick_begin. */
static __device__ __forceinline__ void quick_end(const comm_view &c, const quick_turn &t, uint32_t n_vecs,
                                                 uint32_t n_blocks)
{
    if (atomicAdd(&c.state->quick_ticket, 1u) == n_blocks - 1) {
        c.state->n_vecs[t.inbox] = n_vecs;
        c.state->inbox = t.inbox + 1 == N_INBOXES ? 0 : t.inbox + 1;
        c.state->quick_ticket = 0;
    }
}

/* ---- device: bulk ---- */

static __device__ __forceinline__ void wait_epoch(const comm_view &c, const uint32_t *at, uint32_t epoch)
{
    uint32_t turns = 0;
    while ((int32_t)(load_acquire(at) - epoch) < 0 && !gives_up(c, &turns)) {
    }
}

/* By all threads of all blocks behind pdl_wait; block 0 is the one that tells. Afterwards what the kernels
 * before this one wrote is there in every rank. */
static __device__ __forceinline__ uint32_t bulk_begin(const comm_view &c, bool tells)
{
    const uint32_t epoch = ((const volatile comm_state *)c.state)->epoch + 1;
    const int p = (int)threadIdx.x;

    if (p < c.size && p != c.rank) {
        if (tells) {
            store_release(&c.signals[p]->from[c.rank].ready, epoch);
        }
        wait_epoch(c, &c.signals[c.rank]->from[p].ready, epoch);
    }
    __syncthreads();
    return epoch;
}

/* By all threads. The kernel ends when every rank has written what it writes here. */
static __device__ __forceinline__ void bulk_end(const comm_view &c, uint32_t epoch, uint32_t n_blocks)
{
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    __threadfence_system();
    if (atomicAdd(&c.state->bulk_ticket, 1u) != n_blocks - 1) {
        return;
    }
    __threadfence_system();
    for (int p = 0; p < c.size; p++) {
        if (p != c.rank) {
            store_release(&c.signals[p]->from[c.rank].done, epoch);
        }
    }
    for (int p = 0; p < c.size; p++) {
        if (p != c.rank) {
            wait_epoch(c, &c.signals[c.rank]->from[p].done, epoch);
        }
    }
    c.state->bulk_ticket = 0;
    c.state->epoch = epoch;
}

/* The sum of all ranks' vectors at this place, rounded to T. */
template <typename T>
static __device__ __forceinline__ uint4 bulk_sum(const comm_view &c, const comm_array &x, int64_t byte)
{
    float s[16 / sizeof(T)] = {};
#pragma unroll 1
    for (int p = 0; p < c.size; p += 2) { /* two at a time are under way */
        const bool two = p + 1 < c.size;
        const uint4 a = load_sys(x.at[p] + byte), b = two ? load_sys(x.at[p + 1] + byte) : a;
        add_vec<T>(s, a);
        if (two) {
            add_vec<T>(s, b);
        }
    }
    return to_vec<T>(s);
}

#endif
