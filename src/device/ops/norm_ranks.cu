/* SPDX-License-Identifier: Apache-2.0
 * all_reduce_norm: the joint between two sublayers where each rank has a part of the delta.
 * Shapes    as norm (norm.cu), without row_ids; activations of 16 bits.
 * Work      Up to NORM_FEW_ROWS rows every rank sends its delta to all and does all rows (quick): one kernel,
 *           one trip over the link. More: each rank reads the others' delta of its share of rows, adds, norms,
 *           quantizes, and writes the result to all (bulk): of F8 results that is 3/4 of the bytes of an
 *           all_reduce, and each row is normed once. The residual stays where its rows are. (Sequence
 *           parallelism: Korthikanti et al., 2022.)
 * Rounding  The sum in the order of the ranks, rounded to the activation type, as all_reduce leaves it: all
 *           ways give the same bits.
 * Bound     the link.
 * Measured  2 x NVIDIA H200, 18 NVLinks, rows of 8,192 bf16 to F8: one row 3.6 us (of norm alone 1.4), 64 rows 6.9,
 *           1,024 rows 49.5, 8,192 rows 341 (2026-11-22, tests/gpu/ranks.c). Three blocks of 512 threads a multiprocessor
 *           instead of two made no difference to steps of a 70B shape.
 */
#include "device/cuda/comm.cuh"
#include "device/ops/norm.cuh"

struct quick_ranks {
    enum { PUSHES = 1 };
    typedef quick_turn turn;
    comm_view c;
    uint32_t n_vecs; /* of the delta */

    __device__ __forceinline__ turn begin() const { return quick_begin(c); }
    __device__ __forceinline__ int first_row() const { return 0; }
    __device__ __forceinline__ void push(const turn &t, const void *delta, int64_t i) const
    {
        quick_push(c, t, i / 8, no_flags(load_raw((const uint4 *)delta + i / 8)));
    }
    template <typename T> __device__ __forceinline__ void delta(const turn &t, const T *at, int64_t i, float *v) const
    {
        raw_to_f<T>(quick_sum<T>(c, t, i / 8, no_flags(load_raw(at + i))), v);
    }
    template <typename O> __device__ __forceinline__ void put(O *out, int64_t i, const float *v) const
    {
        store8(out + i, v);
    }
    __device__ __forceinline__ void put_scale(float *out, int64_t row, float v) const { out[row] = v; }
    template <typename T> __device__ __forceinline__ void put_residual(T *res, int64_t i, const float *v) const
    {
        store8(res + i, v);
    }
    __device__ __forceinline__ void end(const turn &t) const
    {
        const int64_t block = (int64_t)blockIdx.y * gridDim.x + blockIdx.x, n_blocks = (int64_t)gridDim.x * gridDim.y;
        quick_clear(c, t, block * blockDim.x + threadIdx.x, n_blocks * blockDim.x);
        __syncthreads();
        if (threadIdx.x == 0) {
            quick_end(c, t, n_vecs, (uint32_t)n_blocks);
        }
    }
};

/* Eight results for every rank. */
template <typename O>
static __device__ __forceinline__ void put_all(const comm_view &c, const comm_array &out, int64_t i, const float *v)
{
    O t[8];
    store8(t, v);
    for (int p = 0; p < c.size; p++) {
        if constexpr (sizeof(O) == 1) {
            *(volatile uint64_t *)((O *)out.at[p] + i) = *(const uint64_t *)t;
        } else {
            store_sys((O *)out.at[p] + i, *(const uint4 *)t);
        }
    }
}

struct bulk_ranks {
    enum { PUSHES = 0 };
    struct turn {
        uint32_t epoch;
    };
    comm_view c;
    comm_array x, out, scale, residual; /* x: the delta */
    int row0;                           /* of this rank's share */
    int whole;                          /* the residual to all */

    __device__ __forceinline__ turn begin() const
    {
        turn t;
        t.epoch = bulk_begin(c, blockIdx.x == 0 && blockIdx.y == 0);
        return t;
    }
    __device__ __forceinline__ int first_row() const { return row0; }
    __device__ __forceinline__ void push(const turn &, const void *, int64_t) const {}
    template <typename T> __device__ __forceinline__ void delta(const turn &, const T *, int64_t i, float *v) const
    {
        raw_to_f<T>(bulk_sum<T>(c, x, i * (int64_t)sizeof(T)), v);
    }
    template <typename O> __device__ __forceinline__ void put(O *, int64_t i, const float *v) const
    {
        put_all<O>(c, out, i, v);
    }
    __device__ __forceinline__ void put_scale(float *, int64_t row, float v) const
    {
        for (int p = 0; p < c.size; p++) {
            ((volatile float *)scale.at[p])[row] = v;
        }
    }
    template <typename T> __device__ __forceinline__ void put_residual(T *res, int64_t i, const float *v) const
    {
        if (whole) {
            put_all<T>(c, residual, i, v);
        } else {
            store8(res + i, v);
        }
    }
    __device__ __forceinline__ void end(const turn &t) const { bulk_end(c, t.epoch, gridDim.x * gridDim.y); }
};

/* A rank without rows: the others wait for its word. */
static __global__ void no_rows_kernel(comm_view c)
{
    pdl_wait();
    pdl_go();
    bulk_end(c, bulk_begin(c, true), 1);
}

template <typename T, typename O, typename Ranks>
static nrd_error *norm_kind(nrd_stream *s, const norm_params &p, const Ranks &ranks, int rows)
{
    if (p.kind == NRD_NORM_LAYER) {
        return norm_vector<T, O, true, false>(s, p, ranks, rows);
    }
    if (sizeof(O) == 1 && !p.bias) {
        return norm_vector<T, O, false, sizeof(O) == 1>(s, p, ranks, rows);
    }
    return norm_vector<T, O, false, false>(s, p, ranks, rows);
}

template <typename Ranks>
static nrd_error *norm_types(nrd_stream *s, const nrd_norm_args *a, const norm_params &p, const Ranks &ranks, int rows)
{
    const bool f8_out = a->weight && a->out_dtype == NRD_DTYPE_F8_E4M3;
    if (a->act_dtype == NRD_DTYPE_BF16) {
        return f8_out ? norm_kind<bf16, f8>(s, p, ranks, rows) : norm_kind<bf16, bf16>(s, p, ranks, rows);
    }
    return f8_out ? norm_kind<f16, f8>(s, p, ranks, rows) : norm_kind<f16, f16>(s, p, ranks, rows);
}

static nrd_error *in_bulk(nrd_stream *s, const nrd_all_reduce_norm_args *a, const comm_view *c, const norm_params &p)
{
    const nrd_norm_args *n = &a->norm;
    const int64_t rows = n->n_tokens;
    bulk_ranks r = {};

    r.c = *c;
    NRD_TRY(nrd_cuda_comm_array(a->comm, n->delta, &r.x));
    NRD_TRY(nrd_cuda_comm_array(a->comm, n->weight ? n->out : NULL, &r.out));
    NRD_TRY(nrd_cuda_comm_array(a->comm, n->weight ? n->out_row_scale : NULL, &r.scale));
    NRD_TRY(nrd_cuda_comm_array(a->comm, a->whole_residual ? n->residual : NULL, &r.residual));
    r.row0 = (int)(rows * c->rank / c->size);
    r.whole = a->whole_residual;
    const int mine = (int)(rows * (c->rank + 1) / c->size) - r.row0;
    return mine > 0 ? norm_types(s, n, p, r, mine) : launch(s, no_rows_kernel, dim3(1), dim3(32), 0, *c);
}

/* The two calls, of shapes and types that have no kernel here, and where NCCL sums. */
static nrd_error *apart(nrd_stream *s, const nrd_all_reduce_norm_args *a)
{
    const nrd_norm_args *n = &a->norm;
    nrd_all_reduce_args sum = {};

    sum.comm = a->comm;
    sum.x = (void *)(uintptr_t)n->delta;
    sum.n = (int64_t)n->n_tokens * n->hidden;
    sum.dtype = n->act_dtype;
    NRD_TRY(nrd_cuda_all_reduce(s, &sum));
    return nrd_cuda_norm(s, n);
}

nrd_error *nrd_cuda_all_reduce_norm(nrd_stream *s, const nrd_all_reduce_norm_args *a)
{
    const nrd_norm_args *n = &a->norm;
    const comm_view *c = a->comm ? nrd_cuda_comm_view(a->comm) : NULL;
    norm_params p = {};

    if (!c || !n->delta || n->row_ids) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: all_reduce_norm before comm_meet, without delta, or of some rows");
    }
    if (c->size == 1) { /* a pipeline stage of one rank */
        return nrd_cuda_norm(s, n);
    }
    const nrd_dtype out = n->weight ? n->out_dtype : n->act_dtype;
    /* All ranks and all operations of a step must come to the same answer: by sizes and types alone. */
    if (nrd_cuda_comm_library(a->comm) || (n->act_dtype != NRD_DTYPE_BF16 && n->act_dtype != NRD_DTYPE_F16) ||
        (out != n->act_dtype && out != NRD_DTYPE_F8_E4M3) || n->hidden % 8 != 0 || n->hidden / 8 > 4096) {
        return apart(s, a);
    }
    NRD_TRY(nrd_cuda_norm_params(n, &p));
    if (!aligned16(n->delta) || !aligned16(n->residual) || (n->weight && !aligned_store8(n->out, out))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: all_reduce_norm of rows that do not begin at 16 bytes");
    }
    const int64_t vecs = (int64_t)n->n_tokens * n->hidden / 8;
    if (vecs == 0) {
        return NULL;
    }
    if (n->n_tokens <= NORM_FEW_ROWS && vecs <= INBOX_VECS) {
        quick_ranks r = {};
        r.c = *c;
        r.n_vecs = (uint32_t)vecs;
        return norm_types(s, n, p, r, n->n_tokens);
    }
    return in_bulk(s, a, c, p);
}
