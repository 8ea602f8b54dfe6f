/* SPDX-License-Identifier: Apache-2.0
 * norm.cuh - the kernels of norm (norm.cu), also for a delta that several ranks have parts of
 * (norm_ranks.cu).
 *
 * Template  Ranks says where a delta comes from and where results go: `one_rank`, or the two ways of comm.cuh.
 *           It has begin (behind pdl_wait, by all threads; what it says goes into the others), first_row,
 *           push and delta (eight elements of the delta, rounded to their type), results to all ranks (put,
 *           put_scale, put_residual), end (by all threads).
 */
#ifndef NRD_OPS_NORM_CUH
#define NRD_OPS_NORM_CUH

#include "device/ops/cluster.cuh"

struct norm_params {
    const void *delta;
    void *residual;
    const float *delta_weight, *weight, *bias;
    const float *delta_rows, *delta_columns; /* what the delta is first multiplied by; or NULL */
    const int32_t *row_ids;
    void *out;
    float *out_scale;
    float eps, per, sum_scale; /* per: 1 / hidden */
    int hidden, kind;
    bool to_residual; /* then no row_ids */
};

/* norm.cu: what kernels take, without row_ids. */
nrd_error *nrd_cuda_norm_params(const nrd_norm_args *a, norm_params *p);

static __device__ __forceinline__ float delta_row(const norm_params &a, int64_t row)
{
    return a.delta_rows ? a.delta_rows[row] : 1.0f;
}

/* What element i of the delta is multiplied by; row: what delta_row says. */
static __device__ __forceinline__ float delta_scale(const norm_params &a, float row, int i)
{
    return a.delta_rows ? row * a.delta_columns[i] : 1.0f;
}

/* Sums are taken over runs of 256 elements (eight a lane, a tree over the lanes), then over the runs:
 * in this order for any number of rows, so that a row's result does not depend on the batch. Products and
 * sums are fused where it says so: the compiler would not fuse the same ones in every kernel. */
enum { RUN = 256, MAX_RUNS = 128, SLOTS = MAX_RUNS + MAX_CLUSTER };

/* 1 / the length of a run; all but a row's last are whole. */
static __device__ __forceinline__ float run_per(int run, int hidden)
{
    const int left = hidden - run * RUN;
    return left >= RUN ? 1.0f / RUN : 1.0f / (float)left;
}

/* What a warp finds in its run: RMS: sum of squares; layer: sum, and sum of squared distances to the
 * run's own mean, which cancels nothing. Lanes behind the row hold zeros. */
template <bool LAYER>
static __device__ __forceinline__ float2 run_moments(const float *v, bool in, float per)
{
    float s = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        s = LAYER ? s + v[k] : fmaf(v[k], v[k], s);
    }
    s = warp_reduce<op_sum>(s);
    if constexpr (!LAYER) {
        return make_float2(s, 0.0f);
    }
    const float mean = __fmul_rn(s, per);
    float d = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float x = in ? v[k] - mean : 0.0f;
        d = fmaf(x, x, d);
    }
    return make_float2(s, warp_reduce<op_sum>(d));
}

/* f(slot, run) put together over the runs. Every lane gets the result. */
template <typename Op, typename F>
static __device__ __forceinline__ float over_runs(const float2 *slots, int hidden, F f)
{
    const int lane = (int)threadIdx.x & 31, n_runs = (hidden + RUN - 1) / RUN;
    float s = lane < n_runs ? f(slots[lane], lane) : 0.0f;
#pragma unroll 1
    for (int run = lane + 32; run < n_runs; run += 32) {
        s = Op::of(s, f(slots[run], run));
    }
    return warp_reduce<Op>(s);
}

/* From all runs: mean (0 for RMS) and 1 / deviation. */
template <bool LAYER>
static __device__ __forceinline__ void whole_moments(const norm_params &a, const float2 *slots,
                                                     float *mean, float *inv)
{
    const int hidden = a.hidden;
    float s = over_runs<op_sum>(slots, hidden, [](float2 v, int) { return v.x; });

    *mean = 0.0f;
    if constexpr (LAYER) {
        const float m = __fmul_rn(s, a.per);
        *mean = m;
        s = over_runs<op_sum>(slots, hidden, [=](float2 v, int run) {
            const int left = hidden - run * RUN;
            const float d = __fmul_rn(v.x, run_per(run, hidden)) - m;
            return fmaf(__fmul_rn(left < RUN ? (float)left : (float)RUN, d), d, v.y);
        });
    }
    *inv = rsqrtf(fmaf(s, a.per, a.eps));
}

static __device__ __forceinline__ float runs_amax(const float2 *slots, int hidden)
{
    return over_runs<op_amax>(slots, hidden, [](float2 v, int) { return v.y; });
}

/* The results of eight elements. ONE: F8, v holds x w and its magnitude is known. */
template <bool ONE>
static __device__ __forceinline__ void finish8(float *v, const float *w, const float *b, float mean,
                                               float f)
{
#pragma unroll
    for (int k = 0; k < 8; k++) {
        v[k] = ONE ? v[k] * f : fmaf(v[k] - mean, __fmul_rn(f, w[k]), b[k]);
    }
}

static __device__ __forceinline__ float amax8(const float *v)
{
    float m = 0.0f;
#pragma unroll
    for (int k = 0; k < 8; k++) {
        m = fmaxf(m, fabsf(v[k]));
    }
    return m;
}

static __device__ __forceinline__ void zero8(float *v)
{
#pragma unroll
    for (int k = 0; k < 8; k++) {
        v[k] = 0.0f;
    }
}

/* This GPU has all there is. */
struct one_rank {
    enum { PUSHES = 0 };
    struct turn {};
    __device__ __forceinline__ turn begin() const { return turn(); }
    __device__ __forceinline__ int first_row() const { return 0; }
    __device__ __forceinline__ void push(const turn &, const void *, int64_t) const {}
    template <typename T>
    __device__ __forceinline__ void delta(const turn &, const T *at, int64_t i, float *v) const
    {
        load8(at + i, v);
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
    __device__ __forceinline__ void end(const turn &) const {}
};

/* What a thread of a block holds of row `in_row`: the residual, to which the delta (normed first where it has
 * a norm of its own) is added on the way. post: moments of the delta's runs. */
template <typename T, int VPT, typename Ranks>
static __device__ __forceinline__ void norm_load(const norm_params &a, const Ranks &ranks,
                                                 const typename Ranks::turn &turn, int64_t in_row, float2 *post,
                                                 float *v)
{
    const int hidden = a.hidden, step = blockDim.x * 8;
    const int warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const bool first = (threadIdx.x & 31) == 0;
    const int64_t at = in_row * hidden; /* of the row */
    T *res = (T *)a.residual;
    const T *delta = (const T *)a.delta;

    if (delta) {
        float mean = 0.0f, inv = 1.0f;
        const float pending = delta_row(a, in_row);
        uint4 raw[VPT]; /* the residual in 16 bits: asked for before anything waits for the delta */
        if constexpr (sizeof(T) == 2 && VPT <= 2) {
#pragma unroll
            for (int j = 0; j < VPT; j++) {
                const int i = threadIdx.x * 8 + j * step;
                if (i < hidden) {
                    raw[j] = load_raw(res + at + i);
                }
            }
        }
        if constexpr (Ranks::PUSHES) {
#pragma unroll
            for (int j = 0; j < VPT; j++) {
                const int i = threadIdx.x * 8 + j * step;
                if (i < hidden) {
                    ranks.push(turn, delta, at + i);
                }
            }
        }
#pragma unroll
        for (int j = 0; j < VPT; j++) {
            const int i = threadIdx.x * 8 + j * step;
            zero8(v + j * 8);
            if (i < hidden) {
                ranks.delta(turn, delta, at + i, v + j * 8);
                if (a.delta_rows) {
                    float by[8];
                    load8(a.delta_columns + i, by);
#pragma unroll
                    for (int k = 0; k < 8; k++) {
                        v[j * 8 + k] *= pending * by[k];
                    }
                }
            }
        }
        if (a.delta_weight) {
            /* the post-norm is RMS in every model that has one; layer norm takes the odd path */
#pragma unroll
            for (int j = 0; j < VPT; j++) {
                const float2 m = run_moments<false>(v + j * 8, true, 0.0f);
                if (first) {
                    post[j * n_warps + warp] = m;
                }
            }
            __syncthreads();
            whole_moments<false>(a, post, &mean, &inv);
        }
#pragma unroll
        for (int j = 0; j < VPT; j++) {
            const int i = threadIdx.x * 8 + j * step;
            if (i < hidden) {
                float r[8];
                if constexpr (sizeof(T) == 2 && VPT <= 2) {
                    raw_to_f<T>(raw[j], r);
                } else {
                    load8(res + at + i, r);
                }
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    float d = v[j * 8 + k];
                    if (a.delta_weight) {
                        d = d * inv * a.delta_weight[i + k];
                    }
                    v[j * 8 + k] = to_f(from_f<T>((r[k] + d) * a.sum_scale));
                }
                ranks.put_residual(res, at + i, v + j * 8);
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < VPT; j++) {
            const int i = threadIdx.x * 8 + j * step;
            zero8(v + j * 8);
            if (i < hidden) {
                load8(res + at + i, v + j * 8);
            }
        }
    }
}

/* A row whose largest magnitude is known only now, to F8 with its scale. */
template <typename O, int VPT, typename Ranks>
static __device__ __forceinline__ void norm_store_f8(const norm_params &a, const Ranks &ranks, int row, float *v,
                                                     float amax, float *red)
{
    const int hidden = a.hidden, step = blockDim.x * 8;
    const float scale = f8_scale(block_reduce<op_max>(amax, red)), q = 1.0f / scale;

    if (threadIdx.x == 0) {
        ranks.put_scale(a.out_scale, row, scale);
    }
#pragma unroll
    for (int j = 0; j < VPT; j++) {
        const int i = threadIdx.x * 8 + j * step;
        if (i < hidden) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                v[j * 8 + k] *= q;
            }
            ranks.put((O *)a.out, (int64_t)row * hidden + i, v + j * 8);
        }
    }
}

/* One block a row. ONE: RMS to F8 without bias; then x w takes the place of x, and sum and largest
 * magnitude are known at once. */
template <typename T, typename O, int VPT, bool LAYER, bool ONE, typename Ranks>
static __global__ void __launch_bounds__(VPT == 1 ? 512 : 1024, VPT == 1 ? 4 : 1)
    norm_kernel(norm_params a, Ranks ranks)
{
    __shared__ float red[32];
    __shared__ float2 slots[SLOTS], post[SLOTS];
    const int row = (int)blockIdx.x + ranks.first_row(), hidden = a.hidden, step = blockDim.x * 8;
    const int warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const bool first = (threadIdx.x & 31) == 0;
    float v[VPT * 8];

    pdl_wait();
    pdl_go();
    const auto turn = ranks.begin();
    const int64_t in_row = a.row_ids ? a.row_ids[row] : row;
    norm_load<T, VPT>(a, ranks, turn, in_row, post, v);
    if (!a.weight) {
        ranks.end(turn);
        return;
    }
#pragma unroll
    for (int j = 0; j < VPT; j++) {
        const int i = threadIdx.x * 8 + j * step, run = j * n_warps + warp;
        float2 m = run_moments<LAYER>(v + j * 8, i < hidden, LAYER ? run_per(run, hidden) : 0.0f);
        if constexpr (ONE) {
            float w[8];
            zero8(w);
            if (i < hidden) {
                load8(a.weight + i, w);
            }
#pragma unroll
            for (int k = 0; k < 8; k++) {
                v[j * 8 + k] *= w[k];
            }
            m.y = warp_reduce<op_amax>(amax8(v + j * 8));
        }
        if (first) {
            slots[run] = m;
        }
    }
    __syncthreads();
    float mean, inv, f = 0.0f, amax = 0.0f;
    whole_moments<LAYER>(a, slots, &mean, &inv);
    if constexpr (ONE) {
        const float scale = f8_scale(inv * runs_amax(slots, hidden));
        f = __fdividef(inv, scale);
        if (threadIdx.x == 0) {
            ranks.put_scale(a.out_scale, row, scale);
        }
    }
#pragma unroll
    for (int j = 0; j < VPT; j++) {
        const int i = threadIdx.x * 8 + j * step;
        if (i < hidden) {
            float w[8], b[8];
            if constexpr (!ONE) {
                load8(a.weight + i, w);
                zero8(b);
                if (a.bias) {
                    load8(a.bias + i, b);
                }
            }
            finish8<ONE>(v + j * 8, w, b, mean, ONE ? f : inv);
            if constexpr (!ONE) {
                if (a.to_residual) {
                    ranks.put_residual((T *)a.residual, in_row * hidden + i, v + j * 8);
                }
            }
            if constexpr (sizeof(O) == 1 && !ONE) {
                amax = fmaxf(amax, amax8(v + j * 8));
            } else {
                ranks.put((O *)a.out, (int64_t)row * hidden + i, v + j * 8);
            }
        }
    }
    if constexpr (sizeof(O) == 1 && !ONE) {
        norm_store_f8<O, VPT>(a, ranks, row, v, amax, red);
    }
    ranks.end(turn);
}

/* The same for few rows, where only latency counts: a row over the blocks of a cluster, eight elements a
 * thread, weights in registers before the wait, delta and residual asked for together. No post-norm. */
template <typename T, typename O, bool LAYER, bool ONE, typename Ranks>
static __global__ void __launch_bounds__(1024) norm_few_kernel(norm_params a, Ranks ranks)
{
    __shared__ float2 slots[SLOTS];
    __shared__ uint64_t bar;
    const int hidden = a.hidden, row = (int)blockIdx.y + ranks.first_row(), n_blocks = (int)gridDim.x;
    const int i = ((int)blockIdx.x * (int)blockDim.x + (int)threadIdx.x) * 8, run = i / RUN;
    const bool in = i < hidden;
    const float per = LAYER ? run_per(run, hidden) : 0.0f;
    float w[8], b[8], v[8], d[8];

    zero8(w);
    zero8(b);
    zero8(v);
    if (in) {
        load8(a.weight + i, w);
        if (!ONE && a.bias) {
            load8(a.bias + i, b);
        }
    }
    share_begin(&bar, (int)(blockDim.x / 32) * n_blocks, n_blocks);
    pdl_wait();
    pdl_go();
    const auto turn = ranks.begin();
    const int64_t at = (a.row_ids ? a.row_ids[row] : row) * (int64_t)hidden + i;
    T *res = (T *)a.residual;
    if (in && a.delta) {
        ranks.push(turn, a.delta, at);
        const uint4 x = load_raw(res + at);
        ranks.delta(turn, (const T *)a.delta, at, d);
        raw_to_f<T>(x, v);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = to_f(from_f<T>((v[k] + d[k]) * a.sum_scale));
        }
        ranks.put_residual(res, at, v);
    } else if (in) {
        load8(res + at, v);
    }
    float2 m = run_moments<LAYER>(v, in, per);
    if constexpr (ONE) {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] *= w[k];
        }
        m.y = warp_reduce<op_amax>(amax8(v));
    }
    share_put(slots, &bar, run, m, n_blocks);
    share_wait(&bar, n_blocks);
    float mean, inv, f;
    whole_moments<LAYER>(a, slots, &mean, &inv);
    f = inv;
    if constexpr (ONE) {
        const float scale = f8_scale(inv * runs_amax(slots, hidden));
        f = __fdividef(inv, scale);
        if (i == 0) {
            ranks.put_scale(a.out_scale, row, scale);
        }
    }
    if (in) {
        finish8<ONE>(v, w, b, mean, f);
        ranks.put((O *)a.out, (int64_t)row * hidden + i, v);
        if constexpr (!ONE) {
            if (a.to_residual) {
                ranks.put_residual(res, at, v);
            }
        }
    }
    ranks.end(turn);
}

enum { NORM_FEW_THREADS = 512, NORM_FEW_ROWS = 64 }; /* threads of a block, of eight elements each */

template <typename T, typename O, bool LAYER, bool ONE, typename Ranks>
static nrd_error *norm_vector(nrd_stream *s, const norm_params &p, const Ranks &ranks, int rows)
{
    const dim3 grid((unsigned)rows);
    const int vecs = p.hidden / 8;
    const auto threads = [=](int vpt) { return dim3((unsigned)((vecs + vpt - 1) / vpt + 31) & ~31u); };

    if constexpr (sizeof(T) == 2 && (sizeof(O) == 2 || ONE)) {
        if (rows <= NORM_FEW_ROWS && s->dev->hopper && p.weight && !p.delta_weight && !p.delta_rows) {
            const int n_blocks = cluster_blocks(vecs, NORM_FEW_THREADS);
            return launch_rows(s, norm_few_kernel<T, O, LAYER, ONE, Ranks>, n_blocks, rows,
                               (int)threads(n_blocks).x, p, ranks);
        }
    }
    if (vecs <= 512) {
        return launch(s, norm_kernel<T, O, 1, LAYER, ONE, Ranks>, grid, threads(1), 0, p, ranks);
    }
    if (vecs <= 1024) {
        return launch(s, norm_kernel<T, O, 2, LAYER, ONE, Ranks>, grid, threads(2), 0, p, ranks);
    }
    return launch(s, norm_kernel<T, O, 4, LAYER, ONE, Ranks>, grid, threads(4), 0, p, ranks);
}

#endif
