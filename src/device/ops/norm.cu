/* SPDX-License-Identifier: Apache-2.0
 * norm: residual[t,:] += delta (or its norm); out[r,:] = norm(residual[row,:]) * w (+ b), RMS
 * (Zhang & Sennrich 2019) or layer norm, optionally quantized to F8 with one scale a row.
 * Shapes    all [rows, hidden] in act dtype; weights f32 [hidden]; out act dtype, other act dtype,
 *           or F8. The residual is rounded to act dtype before it is normed: what is stored is what
 *           is normed. f32 accumulation.
 * Work      one block a row, the row in registers (8 elements x VPT a thread, 16-byte loads), so
 *           every byte moves once; odd sizes take a loop over memory. Sum of squares and, for F8, the
 *           largest |x w| are found in one round: the scale is that over the deviation. Up to 64 rows:
 *           weights are loaded before the wait, wide rows are spread over a cluster.
 * Bound     memory: (delta + 2 residual + out) bytes; below 500 rows the launch (2-3 us).
 * Measured  NVIDIA H200, 2048 x 4096 bf16: 3.34 TB/s (76 %), to F8 3.27 (74 %); one row 1.39, to
 *           F8 1.34 us, where one kernel for any number of rows took 2.1 and 2.5 (2026-11-22, make
 *           gpu-bench).
 * Tried     one row of 4096 over 2 blocks (and row_quant's over 8): a token of Llama-3.1-8B F8 takes 2.58 ms
 *           instead of 2.55; over 4 (and over 2): 2.55.
 */
#include "device/ops/cluster.cuh"

struct norm_params {
    const void *delta;
    void *residual;
    const float *delta_weight, *weight, *bias;
    const int32_t *row_ids;
    void *out;
    float *out_scale;
    float eps, per; /* per: 1 / hidden */
    int hidden, kind;
};

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

/* What a thread of a block holds of row `in_row`: the residual, to which the delta (normed first where it has
 * a norm of its own) is added on the way. post: moments of the delta's runs. */
template <typename T, int VPT>
static __device__ __forceinline__ void norm_load(const norm_params &a, int64_t in_row, float2 *post, float *v)
{
    const int hidden = a.hidden, step = blockDim.x * 8;
    const int warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const bool first = (threadIdx.x & 31) == 0;
    T *res = (T *)a.residual + in_row * hidden;
    const T *delta = (const T *)a.delta;

    if (delta) {
        delta += in_row * hidden;
        float mean = 0.0f, inv = 1.0f;
#pragma unroll
        for (int j = 0; j < VPT; j++) {
            const int i = threadIdx.x * 8 + j * step;
            zero8(v + j * 8);
            if (i < hidden) {
                load8(delta + i, v + j * 8);
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
                load8(res + i, r);
#pragma unroll
                for (int k = 0; k < 8; k++) {
                    float d = v[j * 8 + k];
                    if (a.delta_weight) {
                        d = d * inv * a.delta_weight[i + k];
                    }
                    v[j * 8 + k] = to_f(from_f<T>(r[k] + d));
                }
                store8(res + i, v + j * 8);
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < VPT; j++) {
            const int i = threadIdx.x * 8 + j * step;
            zero8(v + j * 8);
            if (i < hidden) {
                load8(res + i, v + j * 8);
            }
        }
    }
}

/* A row whose largest magnitude is known only now, to F8 with its scale. */
template <typename O, int VPT>
static __device__ __forceinline__ void norm_store_f8(const norm_params &a, float *v, float amax, float *red)
{
    const int row = blockIdx.x, hidden = a.hidden, step = blockDim.x * 8;
    O *out = (O *)a.out + (int64_t)row * hidden;
    const float scale = f8_scale(block_reduce<op_max>(amax, red)), q = 1.0f / scale;

    if (threadIdx.x == 0) {
        a.out_scale[row] = scale;
    }
#pragma unroll
    for (int j = 0; j < VPT; j++) {
        const int i = threadIdx.x * 8 + j * step;
        if (i < hidden) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                v[j * 8 + k] *= q;
            }
            store8(out + i, v + j * 8);
        }
    }
}

/* One block a row. ONE: RMS to F8 without bias; then x w takes the place of x, and sum and largest
 * magnitude are known at once. */
template <typename T, typename O, int VPT, bool LAYER, bool ONE>
static __global__ void __launch_bounds__(1024) norm_kernel(norm_params a)
{
    __shared__ float red[32];
    __shared__ float2 slots[SLOTS], post[SLOTS];
    const int row = blockIdx.x, hidden = a.hidden, step = blockDim.x * 8;
    const int warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    const bool first = (threadIdx.x & 31) == 0;
    float v[VPT * 8];

    pdl_wait();
    pdl_go();
    const int64_t in_row = a.row_ids ? a.row_ids[row] : row;
    norm_load<T, VPT>(a, in_row, post, v);
    if (!a.weight) {
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
            a.out_scale[row] = scale;
        }
    }
    O *out = (O *)a.out + (int64_t)row * hidden;
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
            if constexpr (sizeof(O) == 1 && !ONE) {
                amax = fmaxf(amax, amax8(v + j * 8));
            } else {
                store8(out + i, v + j * 8);
            }
        }
    }
    if constexpr (sizeof(O) == 1 && !ONE) {
        norm_store_f8<O, VPT>(a, v, amax, red);
    }
}

/* The same for few rows, where only latency counts: a row over the blocks of a cluster, eight elements a
 * thread, weights in registers before the wait, delta and residual asked for together. No post-norm. */
template <typename T, typename O, bool LAYER, bool ONE>
static __global__ void __launch_bounds__(1024) norm_few_kernel(norm_params a)
{
    __shared__ float2 slots[SLOTS];
    __shared__ uint64_t bar;
    const int hidden = a.hidden, row = (int)blockIdx.y, n_blocks = (int)gridDim.x;
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
    const int64_t in_row = a.row_ids ? a.row_ids[row] : row;
    T *res = (T *)a.residual + in_row * hidden + i;
    if (in && a.delta) {
        const uint4 x = load_raw(res), y = load_raw((const T *)a.delta + in_row * hidden + i);
        raw_to_f<T>(x, v);
        raw_to_f<T>(y, d);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = to_f(from_f<T>(v[k] + d[k]));
        }
        store8(res, v);
    } else if (in) {
        load8(res, v);
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
            a.out_scale[row] = scale;
        }
    }
    if (in) {
        finish8<ONE>(v, w, b, mean, f);
        store8((O *)a.out + (int64_t)row * hidden + i, v);
    }
}

/* Any hidden, any alignment: loops over memory. */
template <typename T, typename O> static __global__ void norm_any_kernel(norm_params a)
{
    __shared__ float red[32];
    const int row = blockIdx.x, hidden = a.hidden;

    pdl_wait();
    pdl_go();
    const int64_t in_row = a.row_ids ? a.row_ids[row] : row;
    T *res = (T *)a.residual + in_row * hidden;

    if (a.delta) {
        const T *delta = (const T *)a.delta + in_row * hidden;
        float inv = 1.0f;
        if (a.delta_weight) {
            float s = 0.0f;
            for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
                s += to_f(delta[i]) * to_f(delta[i]);
            }
            inv = rsqrtf(block_reduce<op_sum>(s, red) / (float)hidden + a.eps);
        }
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
            float d = to_f(delta[i]);
            if (a.delta_weight) {
                d *= inv * a.delta_weight[i];
            }
            res[i] = from_f<T>(to_f(res[i]) + d);
        }
    }
    if (!a.weight) {
        return;
    }
    float mean = 0.0f, s = 0.0f, amax = 0.0f;
    if (a.kind == NRD_NORM_LAYER) { /* each thread reads back only what it wrote itself */
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
            s += to_f(res[i]);
        }
        mean = block_reduce<op_sum>(s, red) / (float)hidden;
        s = 0.0f;
    }
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float d = to_f(res[i]) - mean;
        s += d * d;
    }
    const float inv = rsqrtf(block_reduce<op_sum>(s, red) / (float)hidden + a.eps);
    float q = 1.0f;
    if constexpr (sizeof(O) == 1) {
        for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
            amax = fmaxf(amax, fabsf((to_f(res[i]) - mean) * inv * a.weight[i] +
                                     (a.bias ? a.bias[i] : 0.0f)));
        }
        const float scale = f8_scale(block_reduce<op_max>(amax, red));
        q = 1.0f / scale;
        if (threadIdx.x == 0) {
            a.out_scale[row] = scale;
        }
    }
    O *out = (O *)a.out + (int64_t)row * hidden;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float v =
            (to_f(res[i]) - mean) * inv * a.weight[i] + (a.bias ? a.bias[i] : 0.0f);
        out[i] = from_f<O>(v * q);
    }
}

enum { NORM_FEW_THREADS = 512, NORM_FEW_ROWS = 64 }; /* threads of a block, of eight elements each */

template <typename T, typename O, bool LAYER, bool ONE>
static nrd_error *norm_vector(nrd_stream *s, const norm_params &p, int rows)
{
    const dim3 grid((unsigned)rows);
    const int vecs = p.hidden / 8;
    const auto threads = [=](int vpt) { return dim3((unsigned)((vecs + vpt - 1) / vpt + 31) & ~31u); };

    if constexpr (sizeof(T) == 2 && (sizeof(O) == 2 || ONE)) {
        if (rows <= NORM_FEW_ROWS && s->dev->hopper && p.weight && !p.delta_weight) {
            const int n_blocks = cluster_blocks(vecs, NORM_FEW_THREADS);
            return launch_rows(s, norm_few_kernel<T, O, LAYER, ONE>, n_blocks, rows,
                               (int)threads(n_blocks).x, p);
        }
    }
    if (vecs <= 256) {
        return launch(s, norm_kernel<T, O, 1, LAYER, ONE>, grid, threads(1), 0, p);
    }
    if (vecs <= 1024) {
        return launch(s, norm_kernel<T, O, 2, LAYER, ONE>, grid, threads(2), 0, p);
    }
    return launch(s, norm_kernel<T, O, 4, LAYER, ONE>, grid, threads(4), 0, p);
}

template <typename T, typename O>
static nrd_error *norm_launch(nrd_stream *s, const norm_params &p, int rows, bool vector)
{
    if (rows <= 0) {
        return NULL;
    }
    if (!vector || p.hidden / 8 > 4096) {
        return launch(s, norm_any_kernel<T, O>, dim3((unsigned)rows), dim3(512), 0, p);
    }
    if (p.kind == NRD_NORM_LAYER) {
        return norm_vector<T, O, true, false>(s, p, rows);
    }
    if (sizeof(O) == 1 && !p.bias) {
        return norm_vector<T, O, false, sizeof(O) == 1>(s, p, rows);
    }
    return norm_vector<T, O, false, false>(s, p, rows);
}

template <typename T>
static nrd_error *norm_out(nrd_stream *s, nrd_dtype out, const norm_params &p, int rows, bool vector)
{
    switch (out) {
    case NRD_DTYPE_BF16:
        return norm_launch<T, bf16>(s, p, rows, vector);
    case NRD_DTYPE_F16:
        return norm_launch<T, f16>(s, p, rows, vector);
    case NRD_DTYPE_F32:
        return norm_launch<T, float>(s, p, rows, vector);
    default:
        return norm_launch<T, f8>(s, p, rows, vector);
    }
}

static bool f32_vector(const nrd_weight *w, int n)
{
    return !w || (w->dtype == NRD_DTYPE_F32 && w->rows * w->cols == n);
}

nrd_error *nrd_cuda_norm(nrd_stream *s, const nrd_norm_args *a)
{
    norm_params p = {};

    if (!f32_vector(a->weight, a->hidden) || !f32_vector(a->bias, a->hidden) ||
        !f32_vector(a->delta_weight, a->hidden)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "cuda: norm: weights must be vectors of %d loaded by weight_load", a->hidden);
    }
    const bool quant = a->out_dtype == NRD_DTYPE_F8_E4M3;
    if (!is_act_dtype(a->act_dtype) ||
        (a->weight && !is_act_dtype(a->out_dtype) && !(quant && a->out_row_scale))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: norm of dtype %d to dtype %d",
                          (int)a->act_dtype, (int)a->out_dtype);
    }
    if (a->delta_weight && a->kind != NRD_NORM_RMS) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: norm: a post-norm that is not RMS");
    }
    p.delta = a->delta;
    p.residual = a->residual;
    p.delta_weight = a->delta_weight ? (const float *)a->delta_weight->data : NULL;
    p.weight = a->weight ? (const float *)a->weight->data : NULL;
    p.bias = a->bias ? (const float *)a->bias->data : NULL;
    p.out = a->out;
    p.out_scale = a->out_row_scale;
    p.eps = a->eps;
    p.per = 1.0f / (float)a->hidden;
    p.hidden = a->hidden;
    p.kind = a->kind;
    const nrd_dtype out = a->weight ? a->out_dtype : a->act_dtype;
    const bool vector = a->hidden % 8 == 0 && aligned16(a->delta) && aligned16(a->residual) &&
                        aligned_store8(a->out, out);
    if (a->row_ids && (a->n_tokens != 1 || a->n_rows != 1)) { /* of one row the ids say nothing */
        if (a->delta) {
            norm_params add = p;
            add.weight = NULL;
            ACT_TYPE(a->act_dtype,
                     NRD_TRY((norm_launch<T, T>(s, add, a->n_tokens, vector))));
            p.delta = NULL;
        }
        p.row_ids = a->row_ids;
    }
    if (!a->weight && !p.delta) {
        return NULL;
    }
    const int rows = p.row_ids ? a->n_rows : a->n_tokens;
    ACT_TYPE(a->act_dtype, return norm_out<T>(s, out, p, rows, vector));
}
