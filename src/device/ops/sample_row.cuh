/* SPDX-License-Identifier: Apache-2.0
 * sample_row.cuh - a row of logits over the N blocks of a cluster (8), or in one block (1): sums and maxima over all of
 * them, its adjusted logits, passes over these (sample.cu).
 *
 * Cluster   Each block has an Nth of the row's ids in shared memory, so that memory is read once. One block: each pass
 *           reads device memory and adjusts again.
 * Order     Threads of a cluster are counted block by block: sums before a thread are in the order of ids where its
 *           tokens are a run.
 */
#ifndef NRD_OPS_SAMPLE_ROW_CUH
#define NRD_OPS_SAMPLE_ROW_CUH

#include "device/ops/cluster.cuh"

#if __CUDA_ARCH__ >= 900
static constexpr bool HAS_CLUSTERS = true;
#else
static constexpr bool HAS_CLUSTERS = false;
#endif

typedef unsigned long long u64;

enum { THREADS = 512, WARPS = THREADS / 32, BINS = 2048, LIST = 2 * THREADS };

struct sample_smem {
    union {
        struct {
            unsigned low[BINS], high[BINS]; /* of a sum */
        };
        u64 list[LIST]; /* of the row, in its first block */
    };
    u64 found[2][LIST];                    /* of this block: in front of a bin, in it */
    u64 slots[2][MAX_CLUSTER * WARPS];     /* of all warps of the row, in turns: who is late may still read */
    u64 own_slots[2][WARPS];               /* of all warps of the block */
    ulonglong2 crossed;                    /* bin, sum before */
    u64 cut;
    int n_found[2], span;
    u64 base, bound;
};

/* A block's view of its row. */
struct row_view {
    const float *logits, *bias;
    const int32_t *bias_ids; /* with n_bias of them `bias` has no others */
    const uint16_t *counts;
    uint32_t *ban;           /* shared memory: bit set = may not be chosen; NULL: all may. Of ids from `first` on */
    float *held;             /* shared memory: adjusted logits from `first` on, -inf behind the last */
    sample_smem *sm;
    float rep, presence, frequency, peak, inv_t;
    int vocab, n_bias, first, n, vector; /* n: tokens of this block, from `first` on */
    int n_held;              /* a multiple of 32 */
    int rank, turn, own_turn;
};

/* ---- the blocks of a row ---- */

/* All threads of the row wait for each other. */
template <int N> static __device__ __forceinline__ void meet()
{
    if constexpr (N == 1) {
        __syncthreads();
    } else {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }
}

/* The same place in the shared memory of another block. */
template <int N, typename T> static __device__ __forceinline__ T *there(T *p, int block)
{
#if __CUDA_ARCH__ >= 900
    if constexpr (N > 1) {
        T *q;
        asm("mapa.u64 %0, %1, %2;" : "=l"(q) : "l"(p), "r"(block));
        return q;
    }
#endif
    (void)block;
    return p;
}

/* A number of each warp (the same in its lanes) to all blocks; then all threads have met. Returns the numbers of all
 * warps, in order of blocks; they stay until the call after the next. */
template <int N> static __device__ __forceinline__ const u64 *exchange(row_view &r, u64 v)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if constexpr (N == 1) {
        u64 *slots = r.sm->own_slots[r.own_turn];
        r.own_turn ^= 1;
        if (lane == 0) {
            slots[warp] = v;
        }
        __syncthreads();
        return slots;
    } else {
        u64 *slots = r.sm->slots[r.turn];
        r.turn ^= 1;
        if (lane < N) {
            *there<N>(slots + r.rank * WARPS + warp, lane) = v;
        }
        meet<N>();
        return slots;
    }
}

static __device__ __forceinline__ u64 warp_max(u64 v)
{
#if __CUDA_ARCH__ >= 800 /* by halves */
    const unsigned high = (unsigned)(v >> 32), best = __reduce_max_sync(0xffffffffu, high);
    return (u64)best << 32 | __reduce_max_sync(0xffffffffu, high == best ? (unsigned)v : 0);
#else
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        const u64 w = __shfl_xor_sync(0xffffffffu, v, o);
        v = w > v ? w : v;
    }
    return v;
#endif
}

static __device__ __forceinline__ u64 warp_sum(u64 v)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        v += __shfl_xor_sync(0xffffffffu, v, o);
    }
    return v;
}

/* Inclusive. */
static __device__ __forceinline__ u64 warp_scan(u64 v)
{
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const u64 w = __shfl_up_sync(0xffffffffu, v, o);
        v += (int)(threadIdx.x & 31) >= o ? w : 0;
    }
    return v;
}

template <int N> static __device__ __forceinline__ u64 all_max(row_view &r, u64 v)
{
    const u64 *slots = exchange<N>(r, warp_max(v));
    u64 best = 0;
#pragma unroll
    for (int i = 0; i < N * WARPS; i += 32) {
        const int at = i + (int)(threadIdx.x & 31);
        const u64 w = at < N * WARPS ? slots[at] : 0;
        best = w > best ? w : best;
    }
    return warp_max(best);
}

/* In the same order for every call: the sum does not depend on timing. */
template <int N> static __device__ __forceinline__ float all_sum(row_view &r, float v)
{
    const u64 *slots = exchange<N>(r, __float_as_uint(warp_reduce<op_sum>(v)));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N * WARPS; i += 32) {
        const int at = i + (int)(threadIdx.x & 31);
        sum += at < N * WARPS ? __uint_as_float((uint32_t)slots[at]) : 0.0f;
    }
    return warp_reduce<op_sum>(sum);
}

/* The sum of v over the threads before this one, in order of blocks and threads. *total: over all. */
template <int N> static __device__ __forceinline__ u64 sum_before(row_view &r, u64 v, u64 *total)
{
    const u64 upto = warp_scan(v);
    const int mine = (N > 1 ? r.rank * WARPS : 0) + (int)(threadIdx.x >> 5);
    const u64 *slots = exchange<N>(r, __shfl_sync(0xffffffffu, upto, 31));
    u64 before = 0, all = 0;
#pragma unroll
    for (int i = 0; i < N * WARPS; i += 32) {
        const int at = i + (int)(threadIdx.x & 31);
        const u64 w = at < N * WARPS ? slots[at] : 0;
        all += w;
        before += at < mine ? w : 0;
    }
    *total = warp_sum(all);
    return warp_sum(before) + upto - v;
}

/* ---- tokens ---- */

static __device__ __forceinline__ uint32_t key_of(float v)
{
    const uint32_t u = __float_as_uint(v == 0.0f ? 0.0f : v); /* -0 and 0 are one */
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* A token as one number: the better, the larger. 0: none. */
static __device__ __forceinline__ u64 token_of(float v, int id)
{
    return (u64)key_of(v) << 32 | (uint32_t)~id;
}

static __device__ __forceinline__ float value_of(u64 token)
{
    const uint32_t k = (uint32_t)(token >> 32);
    return __uint_as_float(k & 0x80000000u ? k & 0x7fffffffu : ~k);
}

static __device__ __forceinline__ int id_of(u64 token)
{
    return (int)~(uint32_t)token;
}

/* The ids rise. */
static __device__ __forceinline__ float sparse_bias(const float *bias, const int32_t *ids, int n, int id)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        const int mid = (lo + hi) / 2;
        if (ids[mid] < id) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < n && ids[lo] == id ? bias[lo] : 0.0f;
}

static __device__ __forceinline__ float adjusted(const row_view &r, int i, float v)
{
    if (r.bias) {
        v += r.bias_ids ? sparse_bias(r.bias, r.bias_ids, r.n_bias, i) : r.bias[i];
    }
    if (r.counts) {
        const unsigned n = r.counts[i];
        if (n) {
            v = v > 0.0f ? v / r.rep : v * r.rep;
            v -= r.presence + r.frequency * (float)n;
        }
    }
    if (r.ban) {
        const int at = i - r.first;
        v = r.ban[at >> 5] >> (at & 31) & 1u ? -INFINITY : v;
    }
    return v == v ? v : -INFINITY;
}

static __device__ __forceinline__ u64 mass_of(const row_view &r, float v)
{
    return v == -INFINITY ? 0
                          : (u64)(__expf((v - r.peak) * r.inv_t) * 1099511627776.0f /* 2^40 */);
}

/* What a token weighs where a cut is looked for: the least weigh one unit, so that the order is kept. */
static __device__ __forceinline__ u64 cut_mass(const row_view &r, float v)
{
    const u64 m = mass_of(r, v);
    return m ? m : 1;
}

/* Its whole part is the token's bin. Monotone in v: float subtraction and multiplication round monotonically. */
static __device__ __forceinline__ float depth_of(const row_view &r, float v)
{
    return fminf((r.peak - v) * 64.0f, (float)(BINS - 1));
}

static __device__ __forceinline__ int bin_of(const row_view &r, float v)
{
    return __float_as_int(__fadd_rz(depth_of(r, v), 8388608.0f /* 2^23 */)) & (BINS - 1); /* conversions are slow */
}

/* A thread's best tokens, and the value behind which all its others are. Equal ones: the lowest ids are in front. */
struct tops {
    float v[4];
    int id[3];
};

#define NO_TOPS {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {0x7fffffff, 0x7fffffff, 0x7fffffff}}

/* id is behind all that were added. */
static __device__ __forceinline__ void add_top(tops *t, int id, float v)
{
    if (v > t->v[3]) {
        const bool a = v > t->v[0], b = v > t->v[1], c = v > t->v[2];
        t->v[3] = c ? t->v[2] : v;
        t->v[2] = b ? t->v[1] : c ? v : t->v[2];
        t->id[2] = b ? t->id[1] : c ? id : t->id[2];
        t->v[1] = a ? t->v[0] : b ? v : t->v[1];
        t->id[1] = a ? t->id[0] : b ? id : t->id[1];
        t->v[0] = a ? v : t->v[0];
        t->id[0] = a ? id : t->id[0];
    }
}

/* many: not just the first. */
static __device__ __forceinline__ void add_tops(tops *t, int id, float4 v, bool many)
{
    if (fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)) > (many ? t->v[3] : t->v[0])) {
        add_top(t, id, v.x);
        add_top(t, id + 1, v.y);
        add_top(t, id + 2, v.z);
        add_top(t, id + 3, v.w);
    }
}

/* f(id, four adjusted logits from id on) for all of the block's tokens, from device memory. Behind the last: -inf.
 * Each thread's ids rise. */
template <int N, typename F> static __device__ __forceinline__ void each_read(const row_view &r, F f)
{
    constexpr int AHEAD = N > 1 ? 8 : 4; /* loads */
    const float *p = r.logits + r.first;
    const int n = (r.n + 3) / 4;
    const bool plain = !r.bias && !r.counts && !r.ban;

    for (int i = (int)threadIdx.x; i < n; i += THREADS * AHEAD) {
        float4 v[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = i + k * THREADS;
            v[k] = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            if (at < n && r.vector) {
                v[k] = ((const float4 *)p)[at];
            } else if (at < n) {
                v[k].x = p[at * 4];
                v[k].y = at * 4 + 1 < r.n ? p[at * 4 + 1] : -INFINITY;
                v[k].z = at * 4 + 2 < r.n ? p[at * 4 + 2] : -INFINITY;
                v[k].w = at * 4 + 3 < r.n ? p[at * 4 + 3] : -INFINITY;
            }
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int at = (i + k * THREADS) * 4, id = r.first + at;
            if (at >= r.n) {
                break;
            }
            if (plain) { /* what is not a number becomes -inf */
                v[k].x = fmaxf(v[k].x, -INFINITY);
                v[k].y = fmaxf(v[k].y, -INFINITY);
                v[k].z = fmaxf(v[k].z, -INFINITY);
                v[k].w = fmaxf(v[k].w, -INFINITY);
            } else {
                v[k].x = adjusted(r, id, v[k].x);
                v[k].y = at + 1 < r.n ? adjusted(r, id + 1, v[k].y) : -INFINITY;
                v[k].z = at + 2 < r.n ? adjusted(r, id + 2, v[k].z) : -INFINITY;
                v[k].w = at + 3 < r.n ? adjusted(r, id + 3, v[k].w) : -INFINITY;
            }
            f(id, v[k]);
        }
    }
}

/* The same once the row is loaded. */
template <int N, typename F> static __device__ __forceinline__ void each_four(const row_view &r, F f)
{
    if constexpr (N > 1) {
        for (int i = (int)threadIdx.x * 4; i < r.n_held; i += THREADS * 4) {
            f(r.first + i, *(const float4 *)(r.held + i));
        }
    } else {
        each_read<N>(r, f);
    }
}

/* f(id, adjusted logit) for all of the block's tokens; each thread's ids rise. Ids behind the last have -inf. */
template <int N, typename F> static __device__ __forceinline__ void each(const row_view &r, F f)
{
    each_four<N>(r, [&](int id, float4 v) {
        f(id, v.x);
        f(id + 1, v.y);
        f(id + 2, v.z);
        f(id + 3, v.w);
    });
}

/* Finds the token at which the running sum of weight(id, logit), in order of ids, reaches want(sum of all). The thread
 * that finds it gets *token, the sum *before it and true. */
template <int N, typename W, typename T>
static __device__ __forceinline__ bool walk(row_view &r, W weight, T want, u64 *total, u64 *token)
{
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int from = 0, run = 0;
    u64 sum = 0, before, target;

    if constexpr (N > 1) { /* a run of ids each thread; lanes begin at different banks */
        run = ((r.n_held + THREADS - 1) / THREADS + 31) & ~31;
        from = (int)threadIdx.x * run;
        for (int g = from; g < from + run && g < r.n_held; g += 32) {
#pragma unroll 4
            for (int j = 0; j < 32; j++) {
                const int at = g + ((j + lane) & 31);
                sum += weight(r.first + at, r.held[at]);
            }
        }
        before = sum_before<N>(r, sum, total);
        target = want(*total);
    } else { /* a span each warp; then the threads share the one that is found */
        const int span = ((r.vocab + WARPS - 1) / WARPS + 31) & ~31;
        const int end_span = min((warp + 1) * span, r.vocab);
        for (int i = warp * span + lane; i < end_span; i += 32 * 8) {
            float v[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                v[k] = i + 32 * k < end_span ? r.logits[i + 32 * k] : -INFINITY;
            }
#pragma unroll
            for (int k = 0; k < 8; k++) {
                if (i + 32 * k < end_span) {
                    sum += weight(i + 32 * k, adjusted(r, i + 32 * k, v[k]));
                }
            }
        }
        sum = warp_sum(sum);
        before = __shfl_sync(0xffffffffu, sum_before<1>(r, lane == 0 ? sum : 0, total), 0);
        target = want(*total);
        if (lane == 0 && before < target && before + sum >= target) {
            r.sm->span = warp * span;
            r.sm->base = before;
        }
        __syncthreads();
        u64 all;
        run = (span + THREADS - 1) / THREADS;
        from = r.sm->span + (int)threadIdx.x * run;
        const int end = min(min(from + run, r.sm->span + span), r.vocab);
        sum = 0;
        for (int i = from; i < end; i++) {
            sum += weight(i, adjusted(r, i, r.logits[i]));
        }
        before = r.sm->base + sum_before<1>(r, sum, &all);
        run = end - from;
    }
    const unsigned who = __ballot_sync(0xffffffffu, sum && before < target && before + sum >= target);
    if (!who) {
        return false;
    }
    const int owner = __ffs((int)who) - 1;
    u64 at = __shfl_sync(0xffffffffu, before, owner);
    from = __shfl_sync(0xffffffffu, from, owner);
    run = __shfl_sync(0xffffffffu, run, owner);
    for (int g = from; g < from + run; g += 32) { /* the warp looks at the run together */
        const int i = g + lane;
        float v = -INFINITY;
        if constexpr (N > 1) {
            v = i < r.n_held ? r.held[i] : -INFINITY;
        } else {
            v = i < from + run ? adjusted(r, i, r.logits[i]) : -INFINITY;
        }
        const u64 w = weight((N > 1 ? r.first : 0) + i, v), upto = at + warp_scan(w);
        const bool hit = w && upto - w < target && upto >= target;
        if (__any_sync(0xffffffffu, hit)) {
            *token = token_of(v, (N > 1 ? r.first : 0) + i);
            return hit;
        }
        at = __shfl_sync(0xffffffffu, upto, 31);
    }
    return false;
}

#endif
