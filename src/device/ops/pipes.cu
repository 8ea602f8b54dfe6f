/* SPDX-License-Identifier: Apache-2.0
 * send, receive: rows from a rank of one pipeline stage to one of another, over peer memory (comm.cuh).
 * Shapes    x [n_rows, row_bytes], rows `stride` bytes apart, on both sides; row_bytes even.
 * Work      A message is cut into pieces of whole rows, the same on both sides. The sender waits until the piece's slot in the
 *           receiver's memory has been emptied, writes it there and counts; the receiver waits for the count, copies the
 *           piece to x and counts what it has emptied. Pieces are numbered by the host, so steps with them are not recorded.
 * Bound     the link, one way.
 */
#include "device/cuda/comm.cuh"

enum : int { PIPE_THREADS = 512 };
static const int64_t PIPE_BLOCKS = 64;

struct piece_params {
    char *from, *to;
    int64_t from_stride, to_stride, row_bytes;
    int n_rows;
    const uint32_t *wait_at; /* until it has come to `wait`; NULL: at once */
    uint32_t wait;
    uint32_t *tell_at;
    uint32_t tell;
    uint32_t *ticket;
    const uint32_t *stop;
};

static __device__ __forceinline__ uint4 load_unit(const uint4 *p)
{
    return load_sys(p);
}

static __device__ __forceinline__ uint16_t load_unit(const uint16_t *p)
{
    return *(const volatile uint16_t *)p;
}

template <typename U> static __global__ void __launch_bounds__(PIPE_THREADS) piece_kernel(piece_params a)
{
    const int64_t width = a.row_bytes / (int64_t)sizeof(U), n = width * a.n_rows;

    pdl_wait();
    pdl_go();
    if (threadIdx.x == 0 && a.wait_at) {
        uint32_t turns = 0;
        while ((int32_t)(load_acquire(a.wait_at) - a.wait) < 0 &&
               (++turns % SPINS_PER_LOOK != 0 || *(const volatile uint32_t *)a.stop == 0)) {
        }
    }
    __syncthreads();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / width, col = i % width;
        ((U *)(a.to + row * a.to_stride))[col] = load_unit((const U *)(a.from + row * a.from_stride) + col);
    }
    __syncthreads();
    if (threadIdx.x != 0) {
        return;
    }
    __threadfence_system();
    if (atomicAdd(a.ticket, 1u) == gridDim.x - 1) { /* all blocks have read and written */
        __threadfence_system();
        *a.ticket = 0;
        store_release(a.tell_at, a.tell);
    }
}

static nrd_error *one_piece(nrd_stream *s, const comm_pipe &p, const nrd_transfer_args *a, bool sends, int32_t at, int32_t n_rows)
{
    const uint32_t number = ++*p.n_done;
    char *slot = p.slots + (size_t)((number - 1) % p.n_pieces) * p.piece_bytes, *x = (char *)a->x + at * a->stride;
    piece_params k = {};

    k.from = sends ? x : slot;
    k.to = sends ? slot : x;
    k.from_stride = sends ? a->stride : a->row_bytes;
    k.to_stride = sends ? a->row_bytes : a->stride;
    k.row_bytes = a->row_bytes;
    k.n_rows = n_rows;
    if (!sends) {
        k.wait_at = &p.own->filled.n;
        k.wait = number;
    } else if (number > p.n_pieces) {
        k.wait_at = &p.own->emptied[p.peer].n;
        k.wait = number - p.n_pieces;
    }
    k.tell_at = sends ? &p.others->filled.n : &p.others->emptied[p.rank].n;
    k.tell = number;
    k.ticket = &p.state->pipe_ticket;
    k.stop = p.stop;
    const bool wide = a->row_bytes % 16 == 0 && a->stride % 16 == 0 && aligned16(a->x);
    const int64_t units = a->row_bytes / (wide ? 16 : 2) * n_rows, blocks = (units + PIPE_THREADS - 1) / PIPE_THREADS;
    const dim3 grid((unsigned)(blocks < PIPE_BLOCKS ? blocks : PIPE_BLOCKS));
    return wide ? launch(s, piece_kernel<uint4>, grid, dim3(PIPE_THREADS), 0, k)
                : launch(s, piece_kernel<uint16_t>, grid, dim3(PIPE_THREADS), 0, k);
}

static nrd_error *transfer(nrd_stream *s, const nrd_transfer_args *a, bool sends)
{
    comm_pipe p;

    if (!a->comm || a->n_rows < 0 || a->row_bytes < 2 || a->row_bytes % 2 != 0 || a->stride < a->row_bytes ||
        (a->n_rows > 0 && !a->x)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: a transfer of %d rows of %lld bytes", a->n_rows, (long long)a->row_bytes);
    }
    NRD_TRY(nrd_cuda_comm_pipe(a->comm, a->peer, sends, &p));
    const int64_t most = (int64_t)p.piece_bytes / a->row_bytes;
    if (most == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: a transfer of rows of %lld bytes; the limit is %zu",
                          (long long)a->row_bytes, p.piece_bytes);
    }
    for (int32_t at = 0; at < a->n_rows; at += (int32_t)most) {
        const int64_t left = a->n_rows - at;
        NRD_TRY(one_piece(s, p, a, sends, at, (int32_t)(left < most ? left : most)));
        if (left <= most) {
            break;
        }
    }
    return NULL;
}

nrd_error *nrd_cuda_send(nrd_stream *s, const nrd_transfer_args *a)
{
    return transfer(s, a, true);
}

nrd_error *nrd_cuda_receive(nrd_stream *s, const nrd_transfer_args *a)
{
    return transfer(s, a, false);
}
