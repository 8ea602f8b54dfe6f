/* SPDX-License-Identifier: Apache-2.0
 * act: out[t,i] = f(x[t,i]) (* x[t, inter+i] if gated), and row_quant: out = x, both optionally
 * quantized to F8 with one scale a row.
 * Shapes    x [n_tokens, inter or 2 inter] act dtype; out [n_tokens, inter].
 *           With an order: out[t,i] = x[t, order[i]], not to F8. With numbers of columns: out[t,i] = x[t,i] * columns[i].
 * Work      F8, up to 64 rows: a row over the blocks of a cluster (cluster.cuh), eight elements a
 *           thread. F8: one block a row, the products wait in registers for the row's maximum, so x is read
 *           once; many long rows on Hopper: a block an SM walks over rows that bulk copies bring to
 *           shared memory two ahead, so that memory does not wait for the maximum. Otherwise a block
 *           takes 2048 columns of a row.
 * Bound     memory: 3 (gated) or 2 values a result; the function is exp or tanh in f32.
 * Measured  NVIDIA H200, SwiGLU 2048 x 14336: bf16 4.08 TB/s (92 %), to F8 3.71 (84 %;
 *           without bulk copies 50 %); one row: bf16 1.13, to F8 1.31 us, in one block 3.1
 *           (2026-11-21, make gpu-bench).
 */
#include "device/ops/cluster.cuh"

#include <algorithm>

struct act_params {
    const void *x;
    void *out;
    float *out_scale;
    int inter, kind, gated;
    const float *in_scale;
    const int32_t *in_scale_id;
    float xielu_p, xielu_n;
    const void *up;
    int64_t up_stride;
    float cutoff;
    const float *columns;
};

/* MORE: xIELU, scales of rows, numbers of columns and factors of their own, which the kernels that are tuned for the usual functions do not have. */
template <bool MORE> static __device__ __forceinline__ float act_value(const act_params &a, float x)
{
    if (MORE && a.kind == NRD_ACT_XIELU) {
        return 0.5f * x + (x > 0.0f ? a.xielu_p * x * x : a.xielu_n * (expm1f(fminf(x, NRD_XIELU_EPS)) - x));
    }
    return act_apply(a.kind, x);
}

/* What a row of x is multiplied by. */
template <bool MORE> static __device__ __forceinline__ float act_mul(const act_params &a, int64_t row)
{
    return MORE && a.in_scale ? a.in_scale[a.in_scale_id[row]] : 1.0f;
}

/* A row of x, and what it is gated by. */
template <bool MORE, typename T> static __device__ __forceinline__ const T *act_row(const act_params &a, int64_t row)
{
    return (const T *)a.x + row * (a.gated && !(MORE && a.up) ? 2 : 1) * a.inter;
}

template <bool MORE, typename T>
static __device__ __forceinline__ const T *act_up(const act_params &a, const T *x, int64_t row)
{
    return MORE && a.up ? (const T *)a.up + row * a.up_stride : x + a.inter;
}

template <bool MORE, typename T>
static __device__ __forceinline__ float act_one(const act_params &a, const T *x, const T *up, int i, float mul)
{
    float v = act_value<MORE>(a, to_f(x[i]) * mul);
    if (MORE && a.columns) {
        return v * a.columns[i];
    }
    return a.gated ? v * act_other(a.kind, to_f(up[i]) * mul) : v;
}

template <bool MORE, typename T>
static __device__ __forceinline__ void act_eight(const act_params &a, const T *x, const T *other, int i, float *v, float mul)
{
    load8(x + i, v);
    if (a.gated) {
        float up[8];
        load8(other + i, up);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = act_value<MORE>(a, v[k] * mul) * act_other(a.kind, up[k] * mul);
        }
    } else {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = act_value<MORE>(a, v[k] * mul);
        }
    }
    if (MORE && a.columns) {
        float by[8];
        load8(a.columns + i, by);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] *= by[k];
        }
    }
}

static __device__ __forceinline__ void store_f8(f8 *out, float *v, float q)
{
#pragma unroll
    for (int k = 0; k < 8; k++) {
        v[k] *= q;
    }
    store8(out, v);
}

/* One row of F8 by a block: `VPT` times eight products a thread wait in registers for the row's maximum.
 * has_read: called by one thread when everybody has read x (the reduction is a barrier). */
template <typename T, int VPT, typename F>
static __device__ __forceinline__ void act_f8_row(const act_params &a, const T *x, int64_t row, float *red,
                                                  F has_read)
{
    const int step = blockDim.x * 8;
    float v[VPT * 8], amax = 0.0f;

#pragma unroll
    for (int j = 0; j < VPT; j++) {
        const int i = threadIdx.x * 8 + j * step;
        if (i < a.inter) {
            act_eight<false>(a, x, x + a.inter, i, v + j * 8, 1.0f);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                amax = fmaxf(amax, fabsf(v[j * 8 + k]));
            }
        }
    }
    const float scale = f8_scale(block_reduce<op_max>(amax, red)), q = 1.0f / scale;
    if (threadIdx.x == 0) {
        a.out_scale[row] = scale;
        has_read();
    }
#pragma unroll
    for (int j = 0; j < VPT; j++) {
        const int i = threadIdx.x * 8 + j * step;
        if (i < a.inter) {
            store_f8((f8 *)a.out + row * a.inter + i, v + j * 8, q);
        }
    }
}

/* What the compiler should know: KIND, gated where it is SILU; -1: as the parameters say. A choice for each element took as long as
 * memory does. */
template <int KIND> static __device__ __forceinline__ act_params act_known(act_params a)
{
    if constexpr (KIND >= 0) {
        a.kind = KIND;
        a.gated = KIND == NRD_ACT_SILU;
    }
    return a;
}

static int known_kind(const act_params &p)
{
    return (p.kind == NRD_ACT_SILU && p.gated) || (p.kind == NRD_ACT_NONE && !p.gated) ? p.kind : -1;
}

template <typename T, int VPT, int KIND>
static __global__ void __launch_bounds__(1024) act_quant_kernel(act_params params)
{
    __shared__ float red[32];
    const act_params a = act_known<KIND>(params);
    const int64_t row = blockIdx.x;

    pdl_wait();
    pdl_go();
    act_f8_row<T, VPT>(a, (const T *)a.x + row * (a.gated ? 2 : 1) * a.inter, row, red, [] {});
}

template <typename T, int VPT> static nrd_error *act_rows(nrd_stream *s, const act_params &p, int rows)
{
    const dim3 grid((unsigned)rows), block((unsigned)((p.inter / 8 + VPT - 1) / VPT + 31) & ~31u);

    switch (known_kind(p)) {
    case NRD_ACT_SILU:
        return launch(s, act_quant_kernel<T, VPT, NRD_ACT_SILU>, grid, block, 0, p);
    case NRD_ACT_NONE:
        return launch(s, act_quant_kernel<T, VPT, NRD_ACT_NONE>, grid, block, 0, p);
    default:
        return launch(s, act_quant_kernel<T, VPT, -1>, grid, block, 0, p);
    }
}

/* The same for few rows, where only latency counts: a row over the blocks of a cluster, eight elements a
 * thread. KIND -1: as the parameters say. */
template <typename T, bool GATED, int KIND>
static __global__ void __launch_bounds__(512) act_few_kernel(act_params a)
{
    __shared__ float2 slots[MAX_CLUSTER * 512 / 32];
    __shared__ uint64_t bar;
    const int n_blocks = (int)gridDim.x, n_warps = (int)blockDim.x / 32, all = n_warps * n_blocks;
    const int rank = (int)blockIdx.x, lane = (int)threadIdx.x & 31;
    const int64_t row = (int)blockIdx.y;
    const int i = (rank * (int)blockDim.x + (int)threadIdx.x) * 8;
    float v[8], amax = 0.0f;

    share_begin(&bar, all, n_blocks);
    pdl_wait();
    pdl_go();
    if (i < a.inter) {
        const T *x = (const T *)a.x + row * (GATED ? 2 : 1) * a.inter + i;
        const uint4 first = load_raw(x), second = GATED ? load_raw(x + a.inter) : first;
        float up[8];
        raw_to_f<T>(first, v);
        raw_to_f<T>(second, up);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float y = act_apply(KIND < 0 ? a.kind : KIND, v[k]);
            v[k] = GATED ? y * act_other(KIND < 0 ? a.kind : KIND, up[k]) : y;
            amax = fmaxf(amax, fabsf(v[k]));
        }
    }
    share_put(slots, &bar, rank * n_warps + (int)threadIdx.x / 32,
              make_float2(warp_reduce<op_amax>(amax), 0.0f), n_blocks);
    share_wait(&bar, n_blocks);
    amax = lane < all ? slots[lane].x : 0.0f;
#pragma unroll 1
    for (int w = lane + 32; w < all; w += 32) {
        amax = fmaxf(amax, slots[w].x);
    }
    const float scale = f8_scale(warp_reduce<op_amax>(amax)), q = 1.0f / scale;
    if (i == 0) {
        a.out_scale[row] = scale;
    }
    if (i < a.inter) {
        store_f8((f8 *)a.out + row * a.inter + i, v, q);
    }
}

enum { ACT_STAGES = 3, ACT_FRONT = 128 }; /* the barriers lie in front of the rows */

/* The same for many rows. */
template <typename T, int VPT, int KIND>
static __global__ void __launch_bounds__(1024) act_stream_kernel(act_params params, int rows)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* launched on 9.0 only */
    const act_params a = act_known<KIND>(params);
    extern __shared__ __align__(128) char raw[];
    __shared__ float red[32];
    const uint32_t full = smem_u32(raw);
    const int wide = (a.gated ? 2 : 1) * a.inter;
    const uint32_t row_bytes = (uint32_t)wide * (uint32_t)sizeof(T);
    const T *x = (const T *)a.x;

    auto fetch = [&](int row, int slot) {
        mbar_expect(full + slot * 8, row_bytes);
        bulk_copy(full + ACT_FRONT + (uint32_t)slot * row_bytes, x + (int64_t)row * wide, row_bytes,
                  full + slot * 8);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < ACT_STAGES; i++) {
            mbar_init(full + i * 8, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    pdl_wait();
    pdl_go();
    if (threadIdx.x == 0) {
        for (int i = 0; i < ACT_STAGES && (int)(blockIdx.x + i * gridDim.x) < rows; i++) {
            fetch(blockIdx.x + i * gridDim.x, i);
        }
    }
    int slot = 0;
    uint32_t parity = 0;
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        mbar_wait(full + slot * 8, parity);
        act_f8_row<T, VPT>(a, (const T *)(raw + ACT_FRONT + (size_t)slot * row_bytes), row, red, [&]() {
            const int next = row + ACT_STAGES * gridDim.x;
            if (next < rows) {
                fetch(next, slot);
            }
        });
        if (++slot == ACT_STAGES) {
            slot = 0;
            parity ^= 1;
        }
    }
#else
    (void)params, (void)rows;
#endif
}

template <typename T, int VPT>
static nrd_error *act_stream(nrd_stream *s, const act_params &p, int rows)
{
    const int vecs = p.inter / 8, threads = ((vecs + VPT - 1) / VPT + 31) & ~31;
    const size_t smem = ACT_FRONT + (size_t)ACT_STAGES * (p.gated ? 2 : 1) * p.inter * sizeof(T);
    const int fit = std::min((int)((s->dev->smem_max + 1024) / (smem + 1024)), 1024 / threads);
    const dim3 grid((unsigned)std::min(rows, s->dev->n_sm * std::max(fit, 1))), block((unsigned)threads);

    switch (known_kind(p)) {
    case NRD_ACT_SILU:
        return launch(s, act_stream_kernel<T, VPT, NRD_ACT_SILU>, grid, block, smem, p, rows);
    case NRD_ACT_NONE:
        return launch(s, act_stream_kernel<T, VPT, NRD_ACT_NONE>, grid, block, smem, p, rows);
    default:
        return launch(s, act_stream_kernel<T, VPT, -1>, grid, block, smem, p, rows);
    }
}

template <typename T> static __global__ void act_quant_any_kernel(act_params a)
{
    __shared__ float red[32];
    const int64_t row = blockIdx.x;
    float amax = 0.0f;

    pdl_wait();
    pdl_go();
    const T *x = act_row<true, T>(a, row), *up = act_up<true>(a, x, row);
    const float mul = act_mul<true>(a, row);
    for (int i = threadIdx.x; i < a.inter; i += blockDim.x) {
        amax = fmaxf(amax, fabsf(act_one<true>(a, x, up, i, mul)));
    }
    const float scale = f8_scale(block_reduce<op_max>(amax, red));
    if (threadIdx.x == 0) {
        a.out_scale[row] = scale;
    }
    for (int i = threadIdx.x; i < a.inter; i += blockDim.x) {
        ((f8 *)a.out)[row * a.inter + i] = from_f<f8>(act_one<true>(a, x, up, i, mul) / scale);
    }
}

/* What is taken off a row, in all threads. */
template <typename T> static __device__ __forceinline__ float act_cut(const act_params &a, const T *x, float *red)
{
    float sum = 0.0f, square = 0.0f;

    for (int i = threadIdx.x; i < a.inter; i += blockDim.x) {
        sum += to_f(x[i]);
    }
    const float mean = block_reduce<op_sum>(sum, red) / (float)a.inter;
    for (int i = threadIdx.x; i < a.inter; i += blockDim.x) {
        square += (to_f(x[i]) - mean) * (to_f(x[i]) - mean);
    }
    return mean + a.cutoff * sqrtf(block_reduce<op_sum>(square, red) / (float)a.inter);
}

/* With a cutoff, to any type: a block a row, which is read three or four times, all but the first from the L2. */
template <typename T, typename O> static __global__ void __launch_bounds__(1024) act_cut_kernel(act_params a)
{
    __shared__ float red[32];
    const int64_t row = blockIdx.x;

    pdl_wait();
    pdl_go();
    const T *x = act_row<true, T>(a, row), *up = act_up<true>(a, x, row);
    O *out = (O *)a.out + row * a.inter;
    const float cut = act_cut(a, x, red);
    const auto value = [&](int i) {
        return act_apply(a.kind, fmaxf(to_f(x[i]) - cut, 0.0f)) * act_other(a.kind, to_f(up[i]));
    };
    float q = 1.0f;
    if constexpr (sizeof(O) == 1) {
        float amax = 0.0f;
        for (int i = threadIdx.x; i < a.inter; i += blockDim.x) {
            amax = fmaxf(amax, fabsf(value(i)));
        }
        const float scale = f8_scale(block_reduce<op_max>(amax, red));
        q = 1.0f / scale;
        if (threadIdx.x == 0) {
            a.out_scale[row] = scale;
        }
    }
    for (int i = threadIdx.x; i < a.inter; i += blockDim.x) {
        out[i] = from_f<O>(value(i) * q);
    }
}

template <typename T, typename O, bool MORE> static __global__ void act_kernel(act_params a, int vector)
{
    const int64_t row = blockIdx.x;
    const int i = (int)(blockIdx.y * blockDim.x + threadIdx.x) * 8;

    pdl_wait();
    pdl_go();
    const T *x = act_row<MORE, T>(a, row), *up = act_up<MORE>(a, x, row);
    O *out = (O *)a.out + row * a.inter;
    if (i >= a.inter) {
        return;
    }
    const float mul = act_mul<MORE>(a, row);
    if (vector) {
        float v[8];
        act_eight<MORE>(a, x, up, i, v, mul);
        store8(out + i, v);
    } else {
        for (int k = i; k < a.inter && k < i + 8; k++) {
            out[k] = from_f<O>(act_one<MORE>(a, x, up, k, mul));
        }
    }
}

enum { ACT_FEW_THREADS = 128, ACT_FEW_ROWS = 64 }; /* threads of a block, of eight elements each */

template <typename T> static nrd_error *act_few(nrd_stream *s, const act_params &p, int rows)
{
    const int vecs = p.inter / 8, n = cluster_blocks(vecs, ACT_FEW_THREADS);
    const int threads = ((vecs + n - 1) / n + 31) & ~31;

    if (known_kind(p) == NRD_ACT_SILU) {
        return launch_rows(s, act_few_kernel<T, true, NRD_ACT_SILU>, n, rows, threads, p);
    }
    if (known_kind(p) == NRD_ACT_NONE) {
        return launch_rows(s, act_few_kernel<T, false, NRD_ACT_NONE>, n, rows, threads, p);
    }
    return launch_rows(s, p.gated ? act_few_kernel<T, true, -1> : act_few_kernel<T, false, -1>, n, rows,
                       threads, p);
}

static bool has_more(const act_params &p)
{
    return p.in_scale || p.kind == NRD_ACT_XIELU || p.up || p.columns;
}

template <typename T>
static nrd_error *act_quant(nrd_stream *s, const act_params &p, int rows, bool vector)
{
    const dim3 grid((unsigned)rows);
    const int vecs = p.inter / 8;
    const size_t row_bytes = (size_t)(p.gated ? 2 : 1) * p.inter * sizeof(T);

    if (has_more(p)) {
        return launch(s, act_quant_any_kernel<T>, grid, dim3(512), 0, p);
    }
    if (vector && s->dev->hopper && rows >= 2 * s->dev->n_sm && row_bytes >= 16384 && vecs <= 4096 &&
        ACT_FRONT + ACT_STAGES * row_bytes <= s->dev->smem_max) {
        /* one row's bytes leave room for two blocks where nothing is gated */
        return p.gated && vecs <= 2048 ? act_stream<T, 2>(s, p, rows) : act_stream<T, 4>(s, p, rows);
    }
    if constexpr (sizeof(T) == 2) {
        if (vector && s->dev->hopper && rows <= ACT_FEW_ROWS && vecs <= MAX_CLUSTER * 512) {
            return act_few<T>(s, p, rows);
        }
    }
    if (vector && vecs <= 4096) {
        return vecs <= 512 ? act_rows<T, 1>(s, p, rows) : vecs <= 2048 ? act_rows<T, 2>(s, p, rows) : act_rows<T, 4>(s, p, rows);
    }
    return launch(s, act_quant_any_kernel<T>, grid, dim3(512), 0, p);
}

template <typename T, typename O>
static nrd_error *act_plain(nrd_stream *s, const act_params &p, int rows, bool vector)
{
    const unsigned columns = (unsigned)((p.inter + 7) / 8 + 255) / 256;
    return launch(s, has_more(p) ? act_kernel<T, O, true> : act_kernel<T, O, false>, dim3((unsigned)rows, columns), dim3(256),
                  0, p, (int)vector);
}

/* out[t,i] = x[t, order[i]], times columns[i] where they are. Bound: memory, of which a row of x stays in the first cache. */
template <typename T, typename O>
static __global__ void act_order_kernel(const T *x, const int32_t *order, const float *columns, O *out, int inter)
{
    const int i = (int)(blockIdx.y * blockDim.x + threadIdx.x);
    const int64_t row = (int64_t)blockIdx.x * inter;

    pdl_wait();
    pdl_go();
    if (i < inter) {
        out[row + i] = from_f<O>(to_f(x[row + order[i]]) * (columns ? columns[i] : 1.0f));
    }
}

template <typename O>
static nrd_error *act_order_to(nrd_stream *s, const nrd_act_args *a)
{
    const dim3 grid((unsigned)a->n_tokens, (unsigned)(a->inter + 255) / 256);
    ACT_TYPE(a->act_dtype, return launch(s, act_order_kernel<T, O>, grid, dim3(256), 0, (const T *)a->x, a->order, a->columns,
                                         (O *)a->out, (int)a->inter));
}

static nrd_error *act_order(nrd_stream *s, const nrd_act_args *a)
{
    if (!is_act_dtype(a->act_dtype) || !is_act_dtype(a->out_dtype)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: columns of dtype %d in another order to dtype %d", (int)a->act_dtype,
                          (int)a->out_dtype);
    }
    return a->n_tokens <= 0                     ? NULL
           : a->out_dtype == NRD_DTYPE_BF16 ? act_order_to<bf16>(s, a)
           : a->out_dtype == NRD_DTYPE_F16  ? act_order_to<f16>(s, a)
                                            : act_order_to<float>(s, a);
}

static nrd_error *act_cut_run(nrd_stream *s, const act_params &p, nrd_dtype in, nrd_dtype out, int rows)
{
    const dim3 grid((unsigned)rows), block(1024);

    if (out == NRD_DTYPE_F8_E4M3) {
        ACT_TYPE(in, return launch(s, act_cut_kernel<T, f8>, grid, block, 0, p));
    } else if (out == NRD_DTYPE_BF16) {
        ACT_TYPE(in, return launch(s, act_cut_kernel<T, bf16>, grid, block, 0, p));
    } else if (out == NRD_DTYPE_F16) {
        ACT_TYPE(in, return launch(s, act_cut_kernel<T, f16>, grid, block, 0, p));
    }
    ACT_TYPE(in, return launch(s, act_cut_kernel<T, float>, grid, block, 0, p));
}

static nrd_error *act_run(nrd_stream *s, const act_params &p, nrd_dtype in, nrd_dtype out, int rows)
{
    const bool vector = p.inter % 8 == 0 && aligned16(p.x) && aligned_store8(p.out, out) &&
                        (!p.up || (aligned16(p.up) && p.up_stride % 8 == 0)) && (!p.columns || aligned16(p.columns));

    if (!is_act_dtype(in) ||
        !(is_act_dtype(out) || (out == NRD_DTYPE_F8_E4M3 && p.out_scale))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: act of dtype %d to dtype %d", (int)in, (int)out);
    }
    if (rows <= 0) {
        return NULL;
    }
    if (p.cutoff > 0.0f) {
        return act_cut_run(s, p, in, out, rows);
    }
    if (out == NRD_DTYPE_F8_E4M3) {
        ACT_TYPE(in, return act_quant<T>(s, p, rows, vector));
    } else if (out == NRD_DTYPE_BF16) {
        ACT_TYPE(in, return (act_plain<T, bf16>(s, p, rows, vector)));
    } else if (out == NRD_DTYPE_F16) {
        ACT_TYPE(in, return (act_plain<T, f16>(s, p, rows, vector)));
    }
    ACT_TYPE(in, return (act_plain<T, float>(s, p, rows, vector)));
}

nrd_error *nrd_cuda_act(nrd_stream *s, const nrd_act_args *a)
{
    act_params p = {};

    if (a->order) {
        return act_order(s, a);
    }
    p.x = a->x;
    p.out = a->out;
    p.out_scale = a->out_row_scale;
    p.inter = a->inter;
    p.kind = a->kind;
    p.gated = a->gated;
    p.in_scale = a->in_scale;
    p.in_scale_id = a->in_scale_id;
    p.xielu_p = a->xielu_p;
    p.xielu_n = a->xielu_n;
    p.up = a->up;
    p.up_stride = a->up_stride;
    p.cutoff = a->cutoff;
    p.columns = a->columns;
    return act_run(s, p, a->act_dtype, a->out_dtype, a->n_tokens);
}

nrd_error *nrd_cuda_row_quant(nrd_stream *s, const void *x, nrd_dtype dtype, int32_t n_rows, int32_t cols,
                     void *out, float *out_scale)
{
    act_params p = {};

    p.x = x;
    p.out = out;
    p.out_scale = out_scale;
    p.inter = cols;
    p.kind = NRD_ACT_NONE;
    return act_run(s, p, dtype, NRD_DTYPE_F8_E4M3, n_rows);
}
