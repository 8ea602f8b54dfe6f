/* SPDX-License-Identifier: Apache-2.0
 * linear_joined: for one row of x: y = act(norm(x) W^T + bias), or added to the residual.
 * Shapes    x [K <= 16384] in 16 bits, or F8 with its scale; W parts [rows_p, K] bf16, fp16 or F8 with row scales; y bf16, fp16 or f32.
 *           K * size and the pointers are multiples of 16 bytes.
 * Work      Nothing but the chain counts: what is between the end of the kernel in front and the last sum. So no tensor cores, no stages that
 *           warps share: a warp has its columns of x' in registers as float32, and brings the same columns of its rows of W, four rows a step,
 *           into a ring of its own by bulk copies. W depends on no kernel, so the ring fills before the wait. Up to eight warps share a
 *           row, 256 columns each where K is short; their sums meet once, in shared memory, when the block's rows are done. x is normed
 *           by every block, run by run as norm.cuh does it. Two rows that are neighbours, or a gate and what it gates, are a unit, whose
 *           results one thread makes.
 * Bound     latency: x, its norm, the last sums. Where W is large linear_skinny.cu behind a norm of its own is faster.
 * Measured  NVIDIA H200, 2026-11-30, gpt2-medium's shape: from the wait to x normed 0.8 to 1.3 us, products 0.5 to 1.5, results 0.5 to 0.8.
 * Tried     docs/performance/gpu-kernels.md, "Small layers of one token".
 */
#include "device/ops/linear_rows.cuh"
#include "device/ops/norm.cuh"

#include <algorithm>

enum { MAX_PARTS = NRD_LINEAR_MAX_PARTS, WARPS = 8, THREADS = WARPS * 32, MAX_SLOTS = 8 };

/* What becomes of x. */
enum { X_AS_IS, X_ROUNDED, X_RMS, X_LAYER };

struct joined_params {
    const void *w[MAX_PARTS];
    const float *row_scale[MAX_PARTS];
    int rows[MAX_PARTS], y_off[MAX_PARTS];
    const float *bias[MAX_PARTS]; /* of the caller's parts, by column of y */
    int bias_end[MAX_PARTS];
    norm_params norm; /* hidden, per, eps, weight, bias */
    const void *x;
    const float *x_scale;
    void *y, *residual;
    float sum_scale;
    int x_form, act, y_dtype, n_parts;
    int cols, run_of_warp, sharing; /* runs of a warp; warps that share a row */
    int n_units, units;             /* of all rows; of a block */
    int slot_bytes, slots;          /* of a warp's ring */
    bool x_bf16, act_bf16, gated;
};

enum { STEP = 4 }; /* rows */

/* The rows of a unit: of which part, and which; second < 0: there is none. */
struct unit_rows {
    int part, first, other_part, second;
};

template <int KIND, int RUNS> struct joined_warp {
    static constexpr bool EIGHT = KIND == NRD_DTYPE_F8_E4M3;
    static constexpr int SIZE = EIGHT ? 1 : 2;

    const joined_params &a;
    float2 *const slots;
    float *const sums; /* [rows of the block's steps][sharing] */
    const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
    const int slice, group, n_groups; /* of K; of the block's steps */
    const int first_run, n_runs;      /* this warp's */
    const uint32_t bars;              /* this warp's barriers */
    const uint32_t ring;              /* and its ring */
    char *const ring_at;
    float x[RUNS][8];
    float x_scale = 1.0f;

    __device__ __forceinline__ joined_warp(const joined_params &params, char *smem, float2 *s, float *q, uint64_t *barriers)
        : a(params), slots(s), sums(q), slice((threadIdx.x >> 5) % params.sharing), group((threadIdx.x >> 5) / params.sharing),
          n_groups(WARPS / params.sharing), first_run(slice * params.run_of_warp),
          n_runs(max(0, min(params.run_of_warp, (params.cols + RUN - 1) / RUN - first_run))),
          bars(smem_u32(barriers) + (threadIdx.x >> 5) * MAX_SLOTS * 8), ring(smem_u32(smem) + (threadIdx.x >> 5) * params.slots * params.slot_bytes),
          ring_at(smem + (threadIdx.x >> 5) * params.slots * params.slot_bytes)
    {
    }

    /* ---- rows ---- */

    /* Unit u of all. */
    __device__ __forceinline__ unit_rows rows_of(int u) const
    {
        unit_rows r = {0, u, 1, u};
        if (a.gated) {
            return r;
        }
        while (r.part + 1 < a.n_parts && r.first >= (a.rows[r.part] + 1) / 2) {
            r.first -= (a.rows[r.part] + 1) / 2;
            r.part++;
        }
        r.other_part = r.part;
        r.first *= 2;
        r.second = r.first + 1 < a.rows[r.part] ? r.first + 1 : -1;
        return r;
    }

    __device__ __forceinline__ int unit_at(int i) const { return (int)blockIdx.x * a.units + i; }
    __device__ __forceinline__ int n_here() const { return max(0, min(a.units, a.n_units - (int)blockIdx.x * a.units)); }
    __device__ __forceinline__ int n_steps() const { return (n_here() * 2 + STEP - 1) / STEP; }

    /* ---- W ---- */

    /* Step i of the block to a slot: each of the first lanes a row. */
    __device__ __forceinline__ void bring(int i, int slot) const
    {
        const int from = first_run * RUN * SIZE, unit = i * (STEP / 2) + lane / 2;
        const uint32_t bytes = (uint32_t)(min((first_run + n_runs) * RUN, a.cols) * SIZE - from), bar = bars + slot * 8;
        const void *row = NULL;
        if (lane < STEP && unit < n_here()) {
            const unit_rows r = rows_of(unit_at(unit));
            const int which = lane % 2 ? r.second : r.first, part = lane % 2 ? r.other_part : r.part;
            row = which < 0 ? NULL : (const char *)a.w[part] + (int64_t)which * a.cols * SIZE + from;
        }
        const uint32_t n = (uint32_t)__popc(__ballot_sync(0xffffffffu, row != NULL));
        if (lane == 0) {
            mbar_expect(bar, n * bytes);
        }
        __syncwarp();
        if (row) {
            bulk_copy_hint(ring + slot * a.slot_bytes + lane * (a.slot_bytes / STEP), row, bytes, bar, L2_EVICT_FIRST);
        }
    }

    __device__ __forceinline__ void fill_ahead() const
    {
        if (lane == 0) {
            for (int k = 0; k < a.slots; k++) {
                mbar_init(bars + k * 8, 1);
            }
            mbar_fence_init();
        }
        __syncwarp();
        if (n_runs > 0) {
            for (int i = group, k = 0; i < n_steps() && k < a.slots; i += n_groups) {
                bring(i, k++);
            }
        }
        if (warp == 0 && a.slots * n_groups >= n_steps()) {
            pdl_go();
        }
    }

    /* Eight numbers of W at `p`. */
    __device__ __forceinline__ static void numbers(const char *p, float *v)
    {
        if constexpr (EIGHT) {
            const uint2 u = *(const uint2 *)p;
            const uint32_t w[2] = {u.x, u.y};
#pragma unroll
            for (int k = 0; k < 2; k++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const __half2 two = __half2(__nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)(w[k] >> (16 * h)), __NV_E4M3));
                    const float2 f = __half22float2(two);
                    v[4 * k + 2 * h] = f.x;
                    v[4 * k + 2 * h + 1] = f.y;
                }
            }
        } else if constexpr (KIND == NRD_DTYPE_BF16) {
            raw_to_f<bf16>(*(const uint4 *)p, v);
        } else {
            raw_to_f<f16>(*(const uint4 *)p, v);
        }
    }

    /* The sum over the lanes of s[row], row = 2 (lane / 16) + lane / 8 % 2. */
    __device__ __forceinline__ float over_lanes(const float *s) const
    {
        const bool upper = lane & 16, odd = lane & 8;
        const float send0 = upper ? s[0] : s[2], send1 = upper ? s[1] : s[3];
        float keep0 = upper ? s[2] : s[0], keep1 = upper ? s[3] : s[1];
        keep0 += __shfl_xor_sync(0xffffffffu, send0, 16);
        keep1 += __shfl_xor_sync(0xffffffffu, send1, 16);
        const float send = odd ? keep0 : keep1;
        float keep = odd ? keep1 : keep0;
        keep += __shfl_xor_sync(0xffffffffu, send, 8);
#pragma unroll
        for (int o = 4; o > 0; o >>= 1) {
            keep += __shfl_xor_sync(0xffffffffu, keep, o);
        }
        return keep;
    }

    __device__ __forceinline__ void multiply() const
    {
        int slot = 0;
        uint32_t parity = 0;
#pragma unroll 1
        for (int i = group; i < n_steps(); i += n_groups) {
            float s[STEP] = {};
            if (n_runs > 0) {
                mbar_wait(bars + slot * 8, parity);
                const char *at = ring_at + slot * a.slot_bytes + lane * 8 * SIZE;
#pragma unroll
                for (int j = 0; j < RUNS; j++) {
                    if (j < n_runs) {
                        float w[STEP][8];
#pragma unroll
                        for (int r = 0; r < STEP; r++) {
                            numbers(at + r * (a.slot_bytes / STEP) + j * RUN * SIZE, w[r]);
                        }
                        if ((first_run + j) * RUN + lane * 8 < a.cols) { /* behind the last column lies anything */
#pragma unroll
                            for (int k = 0; k < 8; k++) {
#pragma unroll
                                for (int r = 0; r < STEP; r++) {
                                    s[r] = fmaf(w[r][k], x[j][k], s[r]);
                                }
                            }
                        }
                    }
                }
                __syncwarp();
                const int next = i + a.slots * n_groups;
                if (next < n_steps()) {
                    bring(next, slot);
                    if (warp == 0 && next + n_groups >= n_steps()) {
                        pdl_go(); /* the last of W is under way */
                    }
                }
                if (++slot == a.slots) {
                    slot = 0;
                    parity ^= 1;
                }
            }
            const float sum = over_lanes(s);
            if (lane % 8 == 0) {
                sums[(STEP * i + lane / 16 * 2 + lane / 8 % 2) * a.sharing + slice] = sum;
            }
        }
    }

    /* ---- x ---- */

    __device__ __forceinline__ int col_of(int j) const { return (first_run + j) * RUN + lane * 8; }

    /* Numbers of activations, 16 bits. */
    __device__ __forceinline__ void load_x()
    {
        uint4 got[RUNS];
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            got[j] = j < n_runs && col_of(j) < a.cols ? __ldcg((const uint4 *)((const uint16_t *)a.x + col_of(j))) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            if (a.x_bf16) {
                raw_to_f<bf16>(got[j], x[j]);
            } else {
                raw_to_f<f16>(got[j], x[j]);
            }
        }
    }

    /* To the type that is multiplied and back. */
    __device__ __forceinline__ void round_x(float by)
    {
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                if constexpr (EIGHT) {
                    x[j][k] = to_f(from_f<f8>(x[j][k] * by));
                } else if constexpr (KIND == NRD_DTYPE_BF16) {
                    x[j][k] = to_f(from_f<bf16>(x[j][k]));
                } else {
                    x[j][k] = to_f(from_f<f16>(x[j][k]));
                }
            }
        }
    }

    /* The row's largest magnitude, of what x has. */
    __device__ __forceinline__ float largest() const
    {
        __syncthreads(); /* slots may still be read */
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            if (j < n_runs) {
                const float m = warp_reduce<op_amax>(col_of(j) < a.cols ? amax8(x[j]) : 0.0f);
                if (lane == 0) {
                    slots[first_run + j].y = m;
                }
            }
        }
        __syncthreads();
        return runs_amax(slots, a.cols);
    }

    /* Weights of the norm: there before the kernel in front of us. */
    struct norm_consts {
        float w[RUNS][8], bias[RUNS][8];
    };

    __device__ __forceinline__ void load_norm(norm_consts *n) const
    {
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            zero8(n->w[j]);
            zero8(n->bias[j]);
            if (a.x_form >= X_RMS && j < n_runs && col_of(j) < a.cols) {
                load8(a.norm.weight + col_of(j), n->w[j]);
                if (a.norm.bias) {
                    load8(a.norm.bias + col_of(j), n->bias[j]);
                }
            }
        }
    }

    template <bool LAYER, bool ONE> __device__ __forceinline__ void normed(const norm_consts &n)
    {
        float mean, inv;
#pragma unroll
        for (int j = 0; j < RUNS; j++) {
            if (j < n_runs) {
                const int run = first_run + j;
                float2 m = run_moments<LAYER>(x[j], col_of(j) < a.cols, LAYER ? run_per(run, a.cols) : 0.0f);
                if constexpr (ONE) {
#pragma unroll
                    for (int k = 0; k < 8; k++) {
                        x[j][k] *= n.w[j][k];
                    }
                    m.y = warp_reduce<op_amax>(amax8(x[j]));
                }
                if (lane == 0) {
                    slots[run] = m; /* several warps: the same */
                }
            }
        }
        __syncthreads();
        whole_moments<LAYER>(a.norm, slots, &mean, &inv);
        if constexpr (ONE) {
            x_scale = f8_scale(inv * runs_amax(slots, a.cols));
            round_x(__fdividef(inv, x_scale));
        } else {
#pragma unroll
            for (int j = 0; j < RUNS; j++) {
                if (j < n_runs) {
                    finish8<false>(x[j], n.w[j], n.bias[j], mean, inv);
                }
            }
            float q = 1.0f;
            if constexpr (EIGHT) {
                x_scale = f8_scale(largest());
                q = 1.0f / x_scale;
            }
            round_x(q);
        }
    }

    __device__ __forceinline__ void make_x(const norm_consts &n)
    {
        if (EIGHT && a.x_form == X_AS_IS) {
            x_scale = __ldcg(a.x_scale);
#pragma unroll
            for (int j = 0; j < RUNS; j++) {
                zero8(x[j]);
                if (j < n_runs && col_of(j) < a.cols) {
                    const uint2 raw8 = __ldcg((const uint2 *)((const char *)a.x + col_of(j)));
                    numbers((const char *)&raw8, x[j]);
                }
            }
            return;
        }
        load_x();
        if (a.x_form == X_LAYER) {
            normed<true, false>(n);
        } else if (a.x_form == X_RMS) {
            if (EIGHT && !a.norm.bias) {
                normed<false, EIGHT>(n);
            } else {
                normed<false, false>(n);
            }
        } else if (EIGHT) {
            x_scale = f8_scale(largest());
            round_x(1.0f / x_scale);
        }
    }

    /* ---- results ---- */

    __device__ __forceinline__ float residual_at(int col) const
    {
        const uint16_t v = __ldcg((const uint16_t *)a.residual + col);
        return a.act_bf16 ? to_f(__ushort_as_bfloat16(v)) : to_f(__ushort_as_half(v));
    }

    template <typename T> __device__ __forceinline__ void add(int col, float v, float to) const
    {
        ((T *)a.residual)[col] = from_f<T>((to + to_f(from_f<T>(v))) * a.sum_scale);
    }

    __device__ __forceinline__ void store_row(int col, float v, float to) const
    {
        v = act_apply(a.act, v);
        if (!a.residual) {
            store_as(a.y, a.y_dtype, col, v);
        } else if (a.act_bf16) {
            add<bf16>(col, v, to);
        } else {
            add<f16>(col, v, to);
        }
    }

    /* What a thread knows of the unit whose results it stores, before its sums are there. */
    struct unit_consts {
        unit_rows r;
        row_consts c[2];
        float was[2];
    };

    __device__ __forceinline__ void load_consts_of(int i, unit_consts *k) const
    {
        k->r = rows_of(unit_at(i));
        k->c[0] = load_consts(a, k->r.part, k->r.first);
        k->c[1] = k->r.second >= 0 ? load_consts(a, k->r.other_part, k->r.second) : k->c[0];
    }

    __device__ __forceinline__ void load_was(unit_consts *k) const
    {
        k->was[0] = k->was[1] = 0.0f;
        if (a.residual) {
            k->was[0] = residual_at(a.y_off[k->r.part] + k->r.first);
            k->was[1] = k->r.second >= 0 ? residual_at(a.y_off[k->r.other_part] + k->r.second) : 0.0f;
        }
    }

    __device__ __forceinline__ void store_unit(int i, const unit_consts &k) const
    {
        float v[2] = {0.0f, 0.0f};
#pragma unroll
        for (int s = 0; s < WARPS; s++) {
            if (s < a.sharing) {
                v[0] += sums[2 * i * a.sharing + s];
                v[1] += sums[(2 * i + 1) * a.sharing + s];
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            v[h] = v[h] * (k.c[h].scale * x_scale) + k.c[h].bias;
        }
        const int col = a.y_off[k.r.part] + k.r.first;
        if (a.gated) {
            store_as(a.y, a.y_dtype, col, act_apply(a.act, v[0]) * act_other(a.act, v[1]));
        } else {
            store_row(col, v[0], k.was[0]);
            if (k.r.second >= 0) {
                store_row(col + 1, v[1], k.was[1]);
            }
        }
    }

    __device__ __forceinline__ void run()
    {
        unit_consts k;
        norm_consts n;

        fill_ahead();
        if (tid < n_here()) {
            load_consts_of(tid, &k);
        }
        load_norm(&n);
        pdl_wait();
        if (tid < n_here()) {
            load_was(&k);
        }
        make_x(n);
        multiply();
        __syncthreads();
        for (int i = tid; i < n_here(); i += THREADS) {
            if (i != tid) {
                load_consts_of(i, &k);
                load_was(&k);
            }
            store_unit(i, k);
        }
    }
};

template <int KIND, int RUNS>
static __global__ void __launch_bounds__(THREADS, RUNS == 1 ? 3 : RUNS == 2 ? 2 : 1) joined_kernel(const __grid_constant__ joined_params a)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* launched on 9.0 only */
    extern __shared__ __align__(128) char raw[];
    __shared__ uint64_t bars[WARPS * MAX_SLOTS];
    __shared__ float2 slots[SLOTS];
    joined_warp<KIND, RUNS> w(a, raw, slots, (float *)(raw + WARPS * a.slots * a.slot_bytes), bars);
    w.run();
#else
    (void)a;
#endif
}

/* ---- the launch ---- */

static bool is_half(nrd_dtype t)
{
    return t == NRD_DTYPE_BF16 || t == NRD_DTYPE_F16;
}

static bool fits(const nrd_stream *s, const nrd_joined_args *a)
{
    const nrd_linear_args *l = &a->linear;
    const nrd_dtype dtype = l->w[0]->dtype;
    const int64_t cols = l->w[0]->cols;
    const bool eight = dtype == NRD_DTYPE_F8_E4M3;
    bool fit = s->dev->hopper && l->n_tokens == 1 && !l->deterministic && !l->int8_x && l->softcap <= 0.0f && (eight || is_half(dtype)) &&
               l->x_dtype == dtype && cols * (eight ? 1 : 2) % 16 == 0 && cols <= 8 * 8 * RUN && aligned16(l->x) && is_act_dtype(l->y_dtype) &&
               (!a->x_is_plain || is_half(a->act_dtype)) && (!a->residual || is_half(a->act_dtype)) && a->act != NRD_ACT_XIELU &&
               (a->gated ? l->n_parts == 2 && !a->residual && l->w[1]->rows == l->w[0]->rows : true);

    fit = fit && (a->x_is_plain ? a->norm_weight || eight || dtype == a->act_dtype : !a->norm_weight && (!eight || l->x_row_scale));
    for (int i = 0; fit && i < l->n_parts; i++) {
        fit = l->w[i]->layout == NRD_LAYOUT_ROWS && l->w[i]->dtype == dtype && l->w[i]->cols == cols && aligned16(l->w[i]->data) &&
              (!eight || l->w[i]->scales);
    }
    return fit;
}

template <int KIND> static nrd_error *joined_launch(nrd_stream *s, const joined_params &p, int blocks, size_t smem)
{
    const auto launch_of = [&](void (*kernel)(joined_params)) {
        return launch_cluster(s, kernel, dim3(1), dim3((unsigned)blocks), dim3(THREADS), smem, p);
    };
    return p.run_of_warp <= 1   ? launch_of(joined_kernel<KIND, 1>)
           : p.run_of_warp <= 2 ? launch_of(joined_kernel<KIND, 2>)
           : p.run_of_warp <= 4 ? launch_of(joined_kernel<KIND, 4>)
                                : launch_of(joined_kernel<KIND, 8>);
}

nrd_error *nrd_cuda_linear_joined(nrd_stream *s, const nrd_joined_args *a, bool *done)
{
    const nrd_linear_args *l = &a->linear;
    joined_params p = {};
    int cols = 0;

    *done = false;
    if (!fits(s, a)) {
        return NULL;
    }
    const nrd_dtype dtype = l->w[0]->dtype;
    const bool eight = dtype == NRD_DTYPE_F8_E4M3;
    p.gated = a->gated;
    p.n_parts = l->n_parts;
    for (int i = 0; i < l->n_parts; i++) {
        p.w[i] = l->w[i]->data;
        p.rows[i] = (int)l->w[i]->rows;
        p.y_off[i] = cols;
        p.row_scale[i] = eight ? (const float *)l->w[i]->scales : NULL;
        cols += p.rows[i];
        p.bias[i] = l->bias[i] ? (const float *)l->bias[i]->data : NULL;
        p.bias_end[i] = cols;
        p.n_units += a->gated ? 0 : (p.rows[i] + 1) / 2;
    }
    p.n_units = a->gated ? p.rows[0] : p.n_units;
    p.x = l->x;
    p.x_scale = l->x_row_scale;
    p.x_bf16 = (a->x_is_plain ? a->act_dtype : dtype) == NRD_DTYPE_BF16;
    p.cols = (int)l->w[0]->cols;
    p.x_form = !a->x_is_plain || (!a->norm_weight && l->x_dtype == a->act_dtype) ? X_AS_IS : !a->norm_weight ? X_ROUNDED
               : a->norm == NRD_NORM_LAYER                                                                  ? X_LAYER
                                                                                                            : X_RMS;
    if (p.x_form >= X_RMS) {
        float none = 0.0f;
        nrd_norm_args n = {};
        n.kind = a->norm;
        n.eps = a->norm_eps;
        n.hidden = p.cols;
        n.weight = a->norm_weight;
        n.bias = a->norm_bias;
        n.out_dtype = l->x_dtype;
        n.out_row_scale = &none;
        n.act_dtype = a->act_dtype;
        NRD_TRY(nrd_cuda_norm_params(&n, &p.norm));
    }
    const int runs = (p.cols + RUN - 1) / RUN;
    p.sharing = 1;
    while (p.sharing < WARPS && runs > p.sharing) {
        p.sharing *= 2;
    }
    p.run_of_warp = (runs + p.sharing - 1) / p.sharing;
    p.units = (p.n_units + s->dev->n_sm - 1) / s->dev->n_sm;
    p.slot_bytes = STEP * p.run_of_warp * RUN * (eight ? 1 : 2);
    const int steps = (p.units * 2 + STEP - 1) / STEP, of_warp = (steps + WARPS / p.sharing - 1) / (WARPS / p.sharing);
    p.slots = std::max(1, std::min(std::min((int)MAX_SLOTS, of_warp), 96 * 1024 / (WARPS * p.slot_bytes)));
    p.y = l->y;
    p.y_dtype = l->y_dtype;
    p.act = a->act;
    p.residual = a->residual;
    p.act_bf16 = a->act_dtype == NRD_DTYPE_BF16;
    p.sum_scale = a->sum_scale == 0.0f ? 1.0f : a->sum_scale;
    const size_t smem = (size_t)WARPS * p.slots * p.slot_bytes + (size_t)STEP * steps * p.sharing * 4;
    if (smem > 200 * 1024) {
        return NULL;
    }
    const int blocks = (p.n_units + p.units - 1) / p.units;
    *done = true;
    switch (dtype) {
    case NRD_DTYPE_BF16:
        return joined_launch<NRD_DTYPE_BF16>(s, p, blocks, smem);
    case NRD_DTYPE_F16:
        return joined_launch<NRD_DTYPE_F16>(s, p, blocks, smem);
    default:
        return joined_launch<NRD_DTYPE_F8_E4M3>(s, p, blocks, smem);
    }
}
