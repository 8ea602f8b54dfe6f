/* SPDX-License-Identifier: Apache-2.0
 * all_reduce, gather, broadcast: between the GPUs of one host, over peer memory (comm.cuh).
 * Shapes    all_reduce x[n]; gather x[n_rows, cols] of every rank -> out[n_rows, size * cols] in rank 0;
 *           broadcast bytes of rank 0.
 * Work      all_reduce: up to INBOX_BYTES every rank sends all it has and sums for itself (quick); more: each
 *           rank sums a share and writes it to all (bulk). Both add in the order of the ranks in f32 and round
 *           once, so that the result does not depend on which it was. gather: rank 0 reads the others' columns.
 *           Between GPUs that do not reach each other's memory NCCL does all three (nccl.cuh).
 * Bound     the link: n bytes each way where there are two ranks; few bytes: the trips over it (about 1 us each).
 */
#include "device/cuda/comm.cuh"
#include "device/cuda/nccl.cuh"

enum { SUM_THREADS = 512, TILE = SUM_THREADS * 4 /* floats of gather */ };

/* Vector i of an array that may end inside it: zeros behind the end. */
static __device__ __forceinline__ uint4 load_part(const void *x, int64_t i, int64_t bytes)
{
    uint4 v = make_uint4(0, 0, 0, 0);
    if (i * 16 + 16 <= bytes) {
        return *((const uint4 *)x + i);
    }
    char t[16] = {};
    for (int k = 0; k < 16 && i * 16 + k < bytes; k++) {
        t[k] = ((const char *)x)[i * 16 + k];
    }
    memcpy(&v, t, 16);
    return v;
}

static __device__ __forceinline__ void store_part(void *x, int64_t i, int64_t bytes, uint4 v)
{
    if (i * 16 + 16 <= bytes) {
        store_sys((uint4 *)x + i, v);
        return;
    }
    char t[16];
    memcpy(t, &v, 16);
    for (int k = 0; k < 16 && i * 16 + k < bytes; k++) {
        ((volatile char *)x)[i * 16 + k] = t[k];
    }
}

template <typename T>
static __global__ void __launch_bounds__(SUM_THREADS) quick_sum_kernel(comm_view c, void *x, int64_t bytes)
{
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * blockDim.x, n = (bytes + 15) / 16;

    pdl_wait();
    pdl_go();
    const quick_turn t = quick_begin(c);
    for (int64_t i = first; i < n; i += step) {
        quick_push(c, t, i, no_flags(load_part(x, i, bytes)));
    }
    quick_clear(c, t, first, step);
    for (int64_t i = first; i < n; i += step) {
        store_part(x, i, bytes, quick_sum<T>(c, t, i, no_flags(load_part(x, i, bytes))));
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        quick_end(c, t, (uint32_t)n, gridDim.x);
    }
}

template <typename T>
static __global__ void __launch_bounds__(SUM_THREADS) bulk_sum_kernel(comm_view c, comm_array x, int64_t bytes)
{
    const int64_t n = (bytes + 15) / 16, to = n * (c.rank + 1) / c.size;

    pdl_wait();
    pdl_go();
    const uint32_t epoch = bulk_begin(c, blockIdx.x == 0);
    for (int64_t i = n * c.rank / c.size + (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < to;
         i += (int64_t)gridDim.x * blockDim.x) {
        const uint4 v = bulk_sum<T>(c, x, i * 16); /* arrays are larger than what is used of them */
        for (int p = 0; p < c.size; p++) {
            store_part(x.at[p], i, bytes, v);
        }
    }
    bulk_end(c, epoch, gridDim.x);
}

static __global__ void __launch_bounds__(SUM_THREADS)
    gather_kernel(comm_view c, comm_array x, float *out, int n_rows, int cols)
{
    const int tiles = (cols + TILE - 1) / TILE;
    const int64_t n = (int64_t)n_rows * c.size * tiles, width = (int64_t)cols * c.size;

    pdl_wait();
    pdl_go();
    const uint32_t epoch = bulk_begin(c, blockIdx.x == 0);
    for (int64_t i = blockIdx.x; c.rank == 0 && i < n; i += gridDim.x) {
        const int tile = (int)(i % tiles), p = (int)(i / tiles % c.size);
        const int64_t row = i / tiles / c.size;
        const char *from = x.at[p] + row * cols * 4;
        float *to = out + row * width + (int64_t)p * cols;
        const int col = tile * TILE + (int)threadIdx.x * 4;
        if (cols % 4 == 0) {
            if (col < cols) {
                *(uint4 *)(to + col) = load_sys(from + (int64_t)col * 4);
            }
        } else {
            for (int k = col; k < col + 4 && k < cols; k++) {
                to[k] = ((const volatile float *)from)[k];
            }
        }
    }
    bulk_end(c, epoch, gridDim.x);
}

static __global__ void __launch_bounds__(SUM_THREADS) broadcast_kernel(comm_view c, comm_array x, int64_t bytes)
{
    pdl_wait();
    pdl_go();
    const uint32_t epoch = bulk_begin(c, true);
    for (int64_t i = threadIdx.x; c.rank == 0 && i * 16 < bytes; i += blockDim.x) {
        const uint4 v = load_part(x.at[0], i, bytes);
        for (int p = 1; p < c.size; p++) {
            store_part(x.at[p], i, bytes, v);
        }
    }
    bulk_end(c, epoch, 1);
}

/* ---- host ---- */

static nrd_error *view_of(const nrd_comm *comm, const char *op, const comm_view **out)
{
    *out = nrd_cuda_comm_view(comm);
    return *out ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: %s before comm_meet", op);
}

/* Blocks for so many vectors: small ones, so that all can be there at once beside another rank's. */
static dim3 blocks_for(const nrd_stream *s, int64_t vecs)
{
    const int64_t n = (vecs + SUM_THREADS - 1) / SUM_THREADS;
    return dim3((unsigned)(n < 1 ? 1 : n < s->dev->n_sm ? n : s->dev->n_sm));
}

nrd_error *nrd_cuda_all_reduce(nrd_stream *s, const nrd_all_reduce_args *a)
{
    const comm_view *c = NULL;
    comm_array x;

    if (!a->comm || a->n < 0 || (a->n > 0 && !a->x)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: all_reduce of %lld elements", (long long)a->n);
    }
    NRD_TRY(view_of(a->comm, "all_reduce", &c));
    if (!is_act_dtype(a->dtype) || !aligned16(a->x)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: all_reduce of dtype %d at %p", (int)a->dtype, a->x);
    }
    const int64_t bytes = a->n * (a->dtype == NRD_DTYPE_F32 ? 4 : 2), vecs = (bytes + 15) / 16;
    if (bytes == 0 || c->size == 1) {
        return NULL;
    }
    if (nrd_cuda_comm_library(a->comm)) {
        return nrd_nccl_all_reduce(nrd_cuda_comm_library(a->comm), s, a->x, a->n, a->dtype);
    }
    if (vecs <= INBOX_VECS) {
        ACT_TYPE(a->dtype, return launch(s, quick_sum_kernel<T>, blocks_for(s, vecs), dim3(SUM_THREADS), 0, *c,
                                         a->x, bytes));
    }
    NRD_TRY(nrd_cuda_comm_array(a->comm, a->x, &x));
    ACT_TYPE(a->dtype, return launch(s, bulk_sum_kernel<T>, blocks_for(s, vecs / c->size), dim3(SUM_THREADS), 0,
                                     *c, x, bytes));
}

nrd_error *nrd_cuda_gather(nrd_stream *s, const nrd_gather_args *a)
{
    const comm_view *c = NULL;
    comm_array x;

    if (!a->comm || a->n_rows < 0 || a->cols < 1 || (a->n_rows > 0 && !a->x)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: gather of %d rows of %d", a->n_rows, a->cols);
    }
    NRD_TRY(view_of(a->comm, "gather", &c));
    if (a->n_rows == 0) {
        return NULL;
    }
    if (nrd_cuda_comm_library(a->comm)) {
        return nrd_nccl_gather(nrd_cuda_comm_library(a->comm), s, a->x, a->out, a->n_rows, a->cols);
    }
    NRD_TRY(nrd_cuda_comm_array(a->comm, a->x, &x));
    if (c->rank == 0 && (!aligned16(a->out) || !aligned16(a->x))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: gather to %p", (void *)a->out);
    }
    const int64_t vecs = c->rank == 0 ? (int64_t)a->n_rows * c->size * ((a->cols + TILE - 1) / TILE) * SUM_THREADS : 1;
    return launch(s, gather_kernel, blocks_for(s, vecs), dim3(SUM_THREADS), 0, *c, x, a->out, a->n_rows, a->cols);
}

nrd_error *nrd_cuda_broadcast(nrd_stream *s, const nrd_broadcast_args *a)
{
    const comm_view *c = NULL;
    comm_array x;

    if (!a->comm || a->bytes < 0 || (a->bytes > 0 && !a->x)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: broadcast of %lld bytes", (long long)a->bytes);
    }
    NRD_TRY(view_of(a->comm, "broadcast", &c));
    if (a->bytes == 0) {
        return NULL;
    }
    if (nrd_cuda_comm_library(a->comm)) {
        return nrd_nccl_broadcast(nrd_cuda_comm_library(a->comm), s, a->x, a->bytes);
    }
    NRD_TRY(nrd_cuda_comm_array(a->comm, a->x, &x));
    return launch(s, broadcast_kernel, dim3(1), dim3(SUM_THREADS), 0, *c, x, a->bytes);
}
