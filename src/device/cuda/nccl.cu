/* SPDX-License-Identifier: Apache-2.0
 * nccl.cu - NCCL behind a stage's collective operations. Calls only enqueue; they may be recorded in graphs. */
#include "device/cuda/nccl.cuh"

extern "C" {
#include "base/env.h"
}

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <glob.h>
#include <new>
#include <pthread.h>

enum : size_t { STAGE_BYTES = (size_t)4 << 20 /* of each rank: a row of logits of any vocabulary */ };
static const long LOOK_NS = 50 * 1000000l;

typedef struct nccl_comm *nccl_comm_t; /* the library's */
struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};
enum { NCCL_OK = 0, NCCL_UINT8 = 1, NCCL_F16 = 6, NCCL_F32 = 7, NCCL_BF16 = 9, NCCL_SUM = 0 };

#define NCCL_SYMBOLS(X)                                                                            \
    X(ncclGetUniqueId, int (*)(nccl_id *))                                                         \
    X(ncclCommInitRank, int (*)(nccl_comm_t *, int, nccl_id, int))                                 \
    X(ncclCommDestroy, int (*)(nccl_comm_t))                                                       \
    X(ncclCommAbort, int (*)(nccl_comm_t))                                                         \
    X(ncclGetErrorString, const char *(*)(int))                                                    \
    X(ncclAllReduce, int (*)(const void *, void *, size_t, int, int, nccl_comm_t, cudaStream_t))   \
    X(ncclBroadcast, int (*)(const void *, void *, size_t, int, int, nccl_comm_t, cudaStream_t))   \
    X(ncclSend, int (*)(const void *, size_t, int, int, nccl_comm_t, cudaStream_t))                \
    X(ncclRecv, int (*)(void *, size_t, int, int, nccl_comm_t, cudaStream_t))                      \
    X(ncclGroupStart, int (*)(void))                                                               \
    X(ncclGroupEnd, int (*)(void))

struct nccl_library {
    void *dl; /* NULL: it could not be opened, see why */
    std::string why;
#define X(name, ...) decltype((__VA_ARGS__)nullptr) name;
    NCCL_SYMBOLS(X)
#undef X
};

struct nrd_nccl {
    cuda_device *dev;
    const nccl_library *lib;
    nccl_comm_t comm;
    int rank, size;
    const uint32_t *stop;
    char *stage; /* in the first rank: pieces of the others' rows, STAGE_BYTES each */
    std::mutex mu;
    bool aborted; /* guarded by mu: comm is not to be used any more */
    std::atomic<bool> ends;
    pthread_t watcher;
    bool watches;
};

/* ---- the library ---- */

/* The system's, or that of the package nvidia-nccl-cu13 in a virtual environment or beside the system's Python. */
static void *open_file(void)
{
    static const char *const folders[] = {"/usr/local/cuda/lib64", "/usr/local/lib/python3*/dist-packages/nvidia/nccl/lib",
                                          "/usr/lib/python3*/dist-packages/nvidia/nccl/lib"};
    const char *asked = nrd_env("NEREID_NCCL_LIBRARY", NULL), *venv = nrd_env("VIRTUAL_ENV", NULL);
    void *dl = dlopen(asked ? asked : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);

    for (int i = -1; !dl && !asked && i < (int)(sizeof folders / sizeof folders[0]); i++) {
        if (i < 0 && !venv) {
            continue;
        }
        const std::string folder = i < 0 ? std::string(venv) + "/lib/python3*/site-packages/nvidia/nccl/lib" : folders[i];
        glob_t found = {};
        if (glob((folder + "/libnccl.so.2").c_str(), 0, NULL, &found) == 0) {
            dl = dlopen(found.gl_pathv[0], RTLD_NOW | RTLD_LOCAL);
        }
        globfree(&found);
    }
    return dl;
}

static nccl_library open_library(bool over_hosts)
{
    nccl_library lib = {};

    /* What the user has set stays. Multicast over NVLink is not used; ranks of one host need no other interface; what would be
     * connected at an operation's first call could not be while a graph is recorded. */
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
    if (!over_hosts) {
        (void)setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    }
    (void)setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    lib.dl = open_file();
    if (!lib.dl) {
        const char *why = dlerror();
        lib.why = std::string("NCCL is not installed (") + (why ? why : "libnccl.so.2") +
                  "); install nvidia-nccl-cu13, or name the file in NEREID_NCCL_LIBRARY";
        return lib;
    }
#define X(name, ...)                                                                               \
    lib.name = (decltype(lib.name))dlsym(lib.dl, #name);                                           \
    if (!lib.name) {                                                                               \
        lib.why = "NCCL lacks " #name ": it is older than 2.7";                                    \
        lib.dl = NULL;                                                                             \
        return lib;                                                                                \
    }
    NCCL_SYMBOLS(X)
#undef X
    return lib;
}

static nrd_error *get_library(const nccl_library **out, bool over_hosts = false)
{
    static const nccl_library lib = open_library(over_hosts); /* stays mapped: its kernels may still be registered */
    *out = &lib;
    return lib.dl ? NULL : nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: %s", lib.why.c_str());
}

nrd_error *nrd_nccl_find(bool over_hosts)
{
    const nccl_library *lib;
    return get_library(&lib, over_hosts);
}

bool nrd_nccl_is_asked(void)
{
    return strcmp(nrd_env("NEREID_ALL_REDUCE", ""), "nccl") == 0;
}

static nrd_error *fail(const nccl_library *lib, int code, const char *what)
{
    return nrd_errorf(NRD_ERR_UNAVAILABLE, "cuda: %s: %s", what, lib->ncclGetErrorString(code));
}

nrd_error *nrd_nccl_make_id(char id[NCCL_ID_BYTES])
{
    const nccl_library *lib;
    nccl_id made;

    NRD_TRY(get_library(&lib));
    const int code = lib->ncclGetUniqueId(&made);
    memcpy(id, made.bytes, NCCL_ID_BYTES);
    return code == NCCL_OK ? NULL : fail(lib, code, "ncclGetUniqueId");
}

/* ---- a stage's ranks ---- */

/* Kernels of the library wait for ever for a rank that is lost, but for this. */
static void *watch(void *user)
{
    nrd_nccl *n = (nrd_nccl *)user;
    const struct timespec pause = {0, LOOK_NS};

    while (!n->ends.load()) {
        if (__atomic_load_n(n->stop, __ATOMIC_ACQUIRE) != 0) {
            n->mu.lock();
            n->aborted = true;
            n->mu.unlock(); /* an operation is enqueued by now, or sees that it must not */
            (void)n->lib->ncclCommAbort(n->comm);
            return NULL;
        }
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* One of each kind: ways between ranks are made at the first use. */
static nrd_error *warm_up(nrd_nccl *n, float *x)
{
    nrd_stream s = {};
    cudaStream_t stream = NULL;

    s.dev = n->dev;
    CUDA_TRY(cudaMemset(x, 0, 256 * sizeof(float)));
    CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    s.s = stream;
    nrd_error *err = nrd_nccl_all_reduce(n, &s, x, 64, NRD_DTYPE_F32);
    err = err ? err : nrd_nccl_broadcast(n, &s, x, 64);
    err = err ? err : nrd_nccl_gather(n, &s, x, x + 64, 1, 4);
    const cudaError_t e = cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
    return err ? err : e == cudaSuccess ? NULL : nrd_cuda_fail(e, "NCCL's first operations");
}

static nrd_error *begin(nrd_nccl *n, const char id[NCCL_ID_BYTES])
{
    nccl_id told;
    void *p = NULL;

    NRD_TRY(get_library(&n->lib));
    memcpy(told.bytes, id, NCCL_ID_BYTES);
    CUDA_TRY(cudaSetDevice(n->dev->id));
    NRD_TRY(nrd_cuda_pool_alloc(&n->dev->base, &p, NRD_MEM_DEVICE, (size_t)n->size * STAGE_BYTES, "ranks"));
    n->stage = (char *)p;
    const int code = n->lib->ncclCommInitRank(&n->comm, n->size, told, n->rank);
    if (code != NCCL_OK) {
        n->comm = NULL;
        return fail(n->lib, code, "ncclCommInitRank");
    }
    if (pthread_create(&n->watcher, NULL, watch, n) != 0) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cuda: no thread to watch over NCCL");
    }
    n->watches = true;
    return warm_up(n, (float *)(n->stage + (size_t)(n->size - 1) * STAGE_BYTES)); /* the last piece: no rank's */
}

nrd_error *nrd_nccl_open(nrd_nccl **out, cuda_device *dev, const uint32_t *stop, int rank, int size,
                         const char id[NCCL_ID_BYTES])
{
    *out = NULL;
    nrd_nccl *n = new (std::nothrow) nrd_nccl();
    if (!n) {
        return nrd_error_no_memory();
    }
    n->dev = dev;
    n->stop = stop;
    n->rank = rank;
    n->size = size;
    nrd_error *err = begin(n, id);
    if (err) {
        nrd_nccl_close(n);
        return err;
    }
    *out = n;
    return NULL;
}

void nrd_nccl_close(nrd_nccl *n)
{
    if (!n) {
        return;
    }
    if (n->watches) {
        n->ends.store(true);
        pthread_join(n->watcher, NULL);
    }
    if (n->comm && !n->aborted) {
        (void)n->lib->ncclCommDestroy(n->comm);
    }
    nrd_cuda_pool_free(&n->dev->base, NRD_MEM_DEVICE, n->stage);
    delete n;
}

/* ---- operations ---- */

/* What `call` enqueues, between two looks at whether the ranks are still there. The next kernel waits for all of it. */
template <typename F> static nrd_error *enqueue(nrd_nccl *n, nrd_stream *s, const char *what, F call)
{
    std::lock_guard<std::mutex> lock(n->mu);
    if (n->aborted) {
        return nrd_errorf(NRD_ERR_UNAVAILABLE, "cuda: %s: a rank was lost", what);
    }
    s->joined = true;
    const int code = call();
    return code == NCCL_OK ? NULL : fail(n->lib, code, what);
}

nrd_error *nrd_nccl_all_reduce(nrd_nccl *n, nrd_stream *s, void *x, int64_t count, nrd_dtype dtype)
{
    const int type = dtype == NRD_DTYPE_F32 ? NCCL_F32 : dtype == NRD_DTYPE_BF16 ? NCCL_BF16 : NCCL_F16;
    return enqueue(n, s, "all_reduce", [&] {
        return n->lib->ncclAllReduce(x, x, (size_t)count, type, NCCL_SUM, n->comm, s->s);
    });
}

nrd_error *nrd_nccl_broadcast(nrd_nccl *n, nrd_stream *s, void *x, int64_t bytes)
{
    return enqueue(n, s, "broadcast", [&] {
        return n->lib->ncclBroadcast(x, x, (size_t)bytes, NCCL_UINT8, 0, n->comm, s->s);
    });
}

/* Rows of all ranks into the first one's pieces, or there from here. */
static int exchange_rows(nrd_nccl *n, nrd_stream *s, const float *x, size_t count)
{
    if (n->rank != 0) {
        return n->lib->ncclSend(x, count, NCCL_F32, 0, n->comm, s->s);
    }
    int code = n->lib->ncclGroupStart();
    for (int p = 1; p < n->size && code == NCCL_OK; p++) {
        code = n->lib->ncclRecv(n->stage + (size_t)(p - 1) * STAGE_BYTES, count, NCCL_F32, p, n->comm, s->s);
    }
    const int ended = n->lib->ncclGroupEnd();
    return code == NCCL_OK ? ended : code;
}

nrd_error *nrd_nccl_gather(nrd_nccl *n, nrd_stream *s, const float *x, float *out, int n_rows, int cols)
{
    const size_t row = (size_t)cols * sizeof(float), width = row * (size_t)n->size;
    const int most = (int)(STAGE_BYTES / row < (size_t)n_rows ? STAGE_BYTES / row : (size_t)n_rows);

    if (most == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: gather of rows of %d numbers; the limit is %zu", cols,
                          (size_t)STAGE_BYTES / sizeof(float));
    }
    for (int at = 0; at < n_rows; at += most) {
        const int rows = n_rows - at < most ? n_rows - at : most;
        const float *from = x + (int64_t)at * cols;
        NRD_TRY(enqueue(n, s, "gather", [&] { return exchange_rows(n, s, from, (size_t)rows * (size_t)cols); }));
        for (int p = 0; n->rank == 0 && p < n->size; p++) {
            const void *piece = p == 0 ? (const void *)from : n->stage + (size_t)(p - 1) * STAGE_BYTES;
            char *to = (char *)out + (size_t)at * width + (size_t)p * row;
            CUDA_TRY(cudaMemcpy2DAsync(to, width, piece, row, row, (size_t)rows, cudaMemcpyDeviceToDevice, s->s));
        }
    }
    return NULL;
}
