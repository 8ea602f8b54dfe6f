/* SPDX-License-Identifier: Apache-2.0
 * comm.cu - ranks on GPUs of one host: they meet through shared memory and open each other's.
 *
 * Each rank leaves in the shared memory a handle for every piece of device memory that the others may reach
 * (CUDA Runtime API, "IPC"), and opens theirs. Ranks of one process, as in tests, take the addresses as they
 * are. The page with the stop word is made visible to kernels. Where GPUs of a stage cannot reach each other's memory, or are on
 * several hosts, all of its ranks exchange through NCCL (nccl.cuh), which they open at once. */
#include "device/cuda/comm.cuh"

#include "device/cuda/comm_choice.h"
#include "device/cuda/nccl.cuh"

#include <cstring>
#include <ctime>
#include <new>
#include <unistd.h>

enum { MAX_ARRAYS = 16, MEET_SECONDS = 60, PAGE = 4096 };
enum : size_t { MIN_PIECE = (size_t)4 << 20 /* a row of logits of any vocabulary */, PIECE_ALIGN = 256 };
enum : size_t { ARRAY_ALIGN = (size_t)2 << 20 }; /* smaller pieces would share what a handle stands for */

struct shared_array {
    cudaIpcMemHandle_t handle;
    uint64_t bytes;
    void *at; /* in the rank's own process */
};

struct shared_rank {
    uint32_t n_arrays; /* atomic: those before it can be read */
    uint32_t has_id;   /* atomic: of a stage's first rank, the id can be read */
    int32_t pid, device;
    char id[NCCL_ID_BYTES];
    shared_array arrays[MAX_ARRAYS];
};

struct shared_head {
    uint32_t stop, pad[15]; /* first: the stop word */
    shared_rank ranks[MAX_GPU_RANKS];
};

struct rank_array {
    size_t bytes;
    char *at[MAX_GPU_RANKS];
    bool opened[MAX_GPU_RANKS];
};

struct nrd_comm {
    cuda_device *dev;
    shared_head *shared;
    bool registered, met, by_library; /* the last: asked for */
    int n_arrays;
    int rank, size, first; /* of all ranks; the first of this one's stage */
    nrd_comm_far far;
    size_t piece_bytes;    /* 0: no pipes */
    uint32_t n_pieces, n_heard, n_said[MAX_GPU_RANKS];
    rank_array arrays[MAX_ARRAYS]; /* [0]: signals, inboxes and slots of the pipe; at[] by rank */
    comm_view view;                /* of the stage's ranks */
    nrd_nccl *library;             /* NULL: kernels over peer memory */
};

static size_t comm_bytes(nrd_device *dev, const nrd_comm_config *config)
{
    (void)dev, (void)config;
    return sizeof(shared_head);
}

static __global__ void empty_kernel(uint4 *inbox, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        inbox[i] = make_uint4(NOT_YET, NOT_YET, NOT_YET, NOT_YET);
    }
}

/* Kernels read the stop word through the address that this gives them. Ranks of one process take turns: a page
 * whose registration is under way counts as registered already, but has no address yet. */
static nrd_error *show_stop_word(nrd_comm *c)
{
    static std::mutex turn;
    std::lock_guard<std::mutex> lock(turn);
    void *page = (void *)((uintptr_t)c->shared & ~(uintptr_t)(PAGE - 1)), *seen = NULL;
    cudaError_t e = cudaHostRegister(page, PAGE, cudaHostRegisterPortable | cudaHostRegisterMapped);

    c->registered = e == cudaSuccess;
    if (e == cudaErrorHostMemoryAlreadyRegistered) { /* by another rank of this process */
        (void)cudaGetLastError();
    } else {
        CUDA_TRY(e);
    }
    CUDA_TRY(cudaHostGetDevicePointer(&seen, &c->shared->stop, 0));
    c->view.stop = (const uint32_t *)seen;
    return NULL;
}

static nrd_error *comm_alloc(nrd_comm *c, void **out, size_t bytes, const char *pool)
{
    shared_rank *me = &c->shared->ranks[c->rank];
    void *p = NULL;

    *out = NULL;
    if (c->met || c->n_arrays == MAX_ARRAYS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: more memory for ranks than %d arrays, or too late",
                          (int)MAX_ARRAYS);
    }
    bytes = (bytes + ARRAY_ALIGN - 1) / ARRAY_ALIGN * ARRAY_ALIGN;
    NRD_TRY(nrd_cuda_pool_alloc(&c->dev->base, &p, NRD_MEM_DEVICE, bytes, pool));
    rank_array *a = &c->arrays[c->n_arrays];
    shared_array *s = &me->arrays[c->n_arrays];
    *a = rank_array();
    a->bytes = bytes;
    a->at[c->rank] = (char *)p;
    c->n_arrays++;
    CUDA_TRY(cudaIpcGetMemHandle(&s->handle, p));
    s->bytes = bytes;
    s->at = p;
    __atomic_store_n(&me->n_arrays, (uint32_t)c->n_arrays, __ATOMIC_RELEASE);
    *out = p;
    return NULL;
}

static void comm_close(nrd_comm *c)
{
    if (!c) {
        return;
    }
    (void)cudaSetDevice(c->dev->id);
    {
        std::lock_guard<std::mutex> lock(c->dev->mu);
        for (size_t i = 0; i < c->dev->comms.size(); i++) {
            if (c->dev->comms[i] == c) {
                c->dev->comms.erase(c->dev->comms.begin() + (long)i);
                break;
            }
        }
    }
    nrd_nccl_close(c->library);
    for (int i = 0; i < c->n_arrays; i++) {
        for (int p = 0; p < c->size; p++) {
            if (c->arrays[i].opened[p]) {
                (void)cudaIpcCloseMemHandle(c->arrays[i].at[p]);
            }
        }
        nrd_cuda_pool_free(&c->dev->base, NRD_MEM_DEVICE, c->arrays[i].at[c->rank]);
    }
    nrd_cuda_pool_free(&c->dev->base, NRD_MEM_DEVICE, c->view.state);
    if (c->registered) {
        (void)cudaHostUnregister((void *)((uintptr_t)c->shared & ~(uintptr_t)(PAGE - 1)));
    }
    (void)cudaGetLastError();
    delete c;
}

/* Parts of the first array. */
static size_t inboxes_at(void)
{
    return (sizeof(comm_signals) + 255) & ~(size_t)255;
}

static size_t slots_at(const nrd_comm *c)
{
    return inboxes_at() + (size_t)N_INBOXES * (size_t)c->view.size * INBOX_VECS * 16;
}

static nrd_error *init(nrd_comm *c)
{
    const int64_t vecs = (int64_t)N_INBOXES * c->view.size * INBOX_VECS;
    shared_rank *me = &c->shared->ranks[c->rank];
    void *p = NULL;

    if (c->by_library && c->view.size > 1) { /* missing: now, before weights are loaded */
        NRD_TRY(nrd_nccl_find(c->far.host_of != NULL));
    }
    CUDA_TRY(cudaSetDevice(c->dev->id));
    me->pid = (int32_t)getpid();
    me->device = c->dev->id;
    NRD_TRY(show_stop_word(c));
    NRD_TRY(nrd_cuda_pool_alloc(&c->dev->base, &p, NRD_MEM_DEVICE, sizeof(comm_state), "ranks"));
    c->view.state = (comm_state *)p;
    NRD_TRY(comm_alloc(c, &p, slots_at(c) + c->n_pieces * c->piece_bytes, "ranks"));
    empty_kernel<<<(unsigned)((vecs + 511) / 512), 512>>>((uint4 *)((char *)p + inboxes_at()), vecs);
    CUDA_TRY(cudaGetLastError());
    CUDA_TRY(cudaStreamSynchronize(0));
    std::lock_guard<std::mutex> lock(c->dev->mu);
    c->dev->comms.push_back(c);
    return NULL;
}

static nrd_error *comm_open(nrd_device *d, const nrd_comm_config *config, nrd_comm **out)
{
    *out = NULL;
    if (config->size < 2 || config->size > MAX_GPU_RANKS || config->rank < 0 || config->rank >= config->size ||
        !config->shared || (uintptr_t)config->shared % 64 != 0 || config->group < 0 ||
        (config->group > 0 && config->size % config->group != 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: rank %d of %d; there are 2 to %d ranks", config->rank,
                          config->size, (int)MAX_GPU_RANKS);
    }
    if (config->far.host_of && config->group > 0 && config->group < config->size) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: pipeline stages on GPUs must be on one host; over several divide the "
                          "engine with tp_size alone");
    }
    nrd_comm *c = new (std::nothrow) nrd_comm();
    if (!c) {
        return nrd_error_no_memory();
    }
    c->dev = (cuda_device *)d;
    c->shared = (shared_head *)config->shared;
    c->rank = config->rank;
    c->size = config->size;
    c->view.size = config->group > 0 ? config->group : config->size;
    c->far = config->far;
    c->by_library = config->by_library || nrd_nccl_is_asked() || c->far.host_of;
    c->first = config->rank / c->view.size * c->view.size;
    c->view.rank = config->rank - c->first;
    if (c->view.size < c->size) {
        c->piece_bytes = config->piece_bytes > MIN_PIECE ? config->piece_bytes : MIN_PIECE;
        c->piece_bytes = (c->piece_bytes + PIECE_ALIGN - 1) / PIECE_ALIGN * PIECE_ALIGN;
        c->n_pieces = (uint32_t)(config->n_pieces > 1 ? config->n_pieces : 1);
    }
    nrd_error *err = init(c);
    if (err) {
        comm_close(c);
        return err;
    }
    *out = c;
    return NULL;
}

/* ---- meeting ---- */

static nrd_error *lost(const nrd_comm *c)
{
    const uint32_t stop = __atomic_load_n(&c->shared->stop, __ATOMIC_ACQUIRE);
    return stop == 0 ? NULL : nrd_errorf(NRD_ERR_UNAVAILABLE, "rank %u of %d was lost", stop - 1, c->size);
}

/* What this rank reaches of rank p: all arrays in its own stage, elsewhere the first; nothing on another host. */
static int n_reached(const nrd_comm *c, int p)
{
    if (c->far.host_of && c->far.host_of[p] != c->far.host_of[c->rank]) {
        return 0;
    }
    return p >= c->first && p < c->first + c->view.size ? c->n_arrays : 1;
}

/* Until a word of rank p, which others write, has come to `least`. */
static nrd_error *wait_for(const nrd_comm *c, int p, const uint32_t *word, uint32_t least)
{
    const struct timespec pause = {0, 1000000};

    for (int i = 0; __atomic_load_n(word, __ATOMIC_ACQUIRE) < least; i++) {
        NRD_TRY(lost(c));
        if (i > MEET_SECONDS * 1000) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "cuda: rank %d of %d did not come within %d s", p,
                              c->size, (int)MEET_SECONDS);
        }
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* Memory of rank p in this process. */
static nrd_error *reach(nrd_comm *c, int p, int i)
{
    const shared_rank *r = &c->shared->ranks[p];
    rank_array *a = &c->arrays[i];
    void *at = NULL;

    if (r->arrays[i].bytes != a->bytes) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cuda: array %d of rank %d has %llu bytes, rank %d's %llu", i, p,
                          (unsigned long long)r->arrays[i].bytes, c->rank, (unsigned long long)a->bytes);
    }
    if (r->pid == c->shared->ranks[c->rank].pid) {
        cudaError_t e = r->device == c->dev->id ? cudaSuccess : cudaDeviceEnablePeerAccess(r->device, 0);
        if (e != cudaErrorPeerAccessAlreadyEnabled) {
            CUDA_TRY(e);
        }
        (void)cudaGetLastError();
        a->at[p] = (char *)r->arrays[i].at;
        return NULL;
    }
    cudaError_t e = cudaIpcOpenMemHandle(&at, r->arrays[i].handle, cudaIpcMemLazyEnablePeerAccess);
    if (e != cudaSuccess) {
        return nrd_error_wrap(nrd_cuda_fail(e, "cudaIpcOpenMemHandle"),
                              "GPU %d cannot reach the memory of GPU %d (rank %d); ranks need GPUs with peer "
                              "access (nvidia-smi topo -p2p r)",
                              c->dev->id, r->device, p);
    }
    a->at[p] = (char *)at;
    a->opened[p] = true;
    return NULL;
}

static nrd_error *reach_all(nrd_comm *c)
{
    for (int p = 0; p < c->size; p++) {
        for (int i = 0; p != c->rank && i < n_reached(c, p); i++) {
            NRD_TRY(reach(c, p, i));
        }
    }
    for (int p = 0; p < c->view.size; p++) {
        char *at = c->arrays[0].at[c->first + p];
        c->view.signals[p] = (comm_signals *)at;
        c->view.inbox[p] = (uint4 *)(at + inboxes_at());
    }
    return NULL;
}

/* False only where the driver says so. */
static bool reaches(void *n_gpus, int32_t from, int32_t to)
{
    const int n = *(const int *)n_gpus;
    int can = 1;

    return from == to || from >= n || to >= n || cudaDeviceCanAccessPeer(&can, from, to) != cudaSuccess || can;
}

static bool needs_library(const nrd_comm *c)
{
    int32_t gpus[MAX_GPU_RANKS];
    int n = 0;

    (void)cudaGetDeviceCount(&n);
    for (int p = 0; p < c->view.size; p++) {
        gpus[p] = c->shared->ranks[c->first + p].device;
    }
    return nrd_comm_needs_library(gpus, c->view.size, c->by_library, reaches, &n);
}

static nrd_error *open_library(nrd_comm *c)
{
    shared_rank *first = &c->shared->ranks[c->first];

    if (c->view.rank == 0) {
        NRD_TRY(nrd_nccl_make_id(first->id));
        __atomic_store_n(&first->has_id, 1u, __ATOMIC_RELEASE);
        if (c->far.host_of) {
            c->far.wrote(c->far.user, c->first, c->view.size, first->id, sizeof first->id, &first->has_id, 1);
        }
    }
    NRD_TRY(wait_for(c, c->first, &first->has_id, 1));
    return nrd_nccl_open(&c->library, c->dev, &c->shared->stop, c->view.rank, c->view.size, first->id);
}

/* Pipes between stages need each other's memory in any case. */
static nrd_error *comm_meet(nrd_comm *c)
{
    if (c->met) {
        return NULL;
    }
    CUDA_TRY(cudaSetDevice(c->dev->id));
    for (int p = 0; p < c->size; p++) {
        NRD_TRY(wait_for(c, p, &c->shared->ranks[p].n_arrays, (uint32_t)n_reached(c, p)));
    }
    const bool by_library = needs_library(c);
    if (!by_library || c->n_pieces > 0) {
        NRD_TRY(reach_all(c));
    }
    if (by_library) {
        NRD_TRY(open_library(c));
    }
    c->met = true;
    return NULL;
}

/* ---- what operations ask ---- */

const comm_view *nrd_cuda_comm_view(const nrd_comm *c)
{
    return c->met ? &c->view : NULL;
}

nrd_nccl *nrd_cuda_comm_library(const nrd_comm *c)
{
    return c->library;
}

nrd_error *nrd_cuda_comm_array(const nrd_comm *c, const void *p, comm_array *out)
{
    *out = comm_array();
    for (int i = 0; p && i < c->n_arrays; i++) {
        const rank_array *a = &c->arrays[i];
        const char *mine = a->at[c->rank];
        if ((const char *)p < mine || (const char *)p >= mine + a->bytes) {
            continue;
        }
        for (int k = 0; k < c->view.size; k++) {
            out->at[k] = a->at[c->first + k] + ((const char *)p - mine);
        }
        return NULL;
    }
    return p ? nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: memory that other ranks do not reach: use comm_alloc") : NULL;
}

nrd_error *nrd_cuda_comm_pipe(nrd_comm *c, int peer, bool sends, comm_pipe *out)
{
    if (!c->met || c->n_pieces == 0 || peer < 0 || peer >= c->size || peer == c->rank) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: rank %d of %d has no pipe to rank %d", c->rank, c->size, peer);
    }
    *out = comm_pipe();
    out->state = c->view.state;
    out->stop = c->view.stop;
    out->own = (comm_signals *)c->arrays[0].at[c->rank];
    out->others = (comm_signals *)c->arrays[0].at[peer];
    out->slots = c->arrays[0].at[sends ? peer : c->rank] + slots_at(c);
    out->piece_bytes = c->piece_bytes;
    out->n_pieces = c->n_pieces;
    out->n_done = sends ? &c->n_said[peer] : &c->n_heard;
    out->rank = c->rank;
    out->peer = peer;
    return NULL;
}

nrd_error *nrd_cuda_comm_health(cuda_device *dev)
{
    std::lock_guard<std::mutex> lock(dev->mu);
    for (const nrd_comm *c : dev->comms) {
        NRD_TRY(lost(c));
    }
    return NULL;
}

void nrd_cuda_comm_fill_ops(nrd_device_ops *ops)
{
    ops->comm_bytes = comm_bytes;
    ops->comm_open = comm_open;
    ops->comm_close = comm_close;
    ops->comm_alloc = comm_alloc;
    ops->comm_meet = comm_meet;
    ops->all_reduce = nrd_cuda_all_reduce;
    ops->gather = nrd_cuda_gather;
    ops->broadcast = nrd_cuda_broadcast;
    ops->all_reduce_norm = nrd_cuda_all_reduce_norm;
    ops->send = nrd_cuda_send;
    ops->receive = nrd_cuda_receive;
}
