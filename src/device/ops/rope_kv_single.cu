/* SPDX-License-Identifier: Apache-2.0
 * rope_kv_single: rope_kv of tokens that stand alone, as a step has them in which every sequence makes one.
 * Shapes    the usual case of rope_kv.cu
 * Work      a warp a job: five groups of heads of q and k of a token (a group: 512 numbers), or 256 elements of its V. Warps wait for
 *           no other.
 * Bound     memory. V's elements lie 16 bytes apart, K's units in half sectors: of 8 KV heads of 128 in F8 the memory reads and
 *           writes 16 KB for a token's V and some 2 to 4 KB for its K, beside 20 KB of q, k and v that mostly are in the L2: 36 to 40
 *           KB, 9 us for 1,024 tokens, 18 for 2,048.
 * Measured  NVIDIA H200, 32 + 2 x 8 heads of 128, contexts of 96..256: 256, 512, 1,024, 2,048 tokens in F8 4.2, 8.5, 15.9, 35.7 us,
 *           bf16 5.1, 9.8, 19.6, 44.1 (2026-11-30, make gpu-bench OP=attention); a block a token: 7.8, 12.2, 21.7, 48.5; 7.3, 13.9, 26.3, 54.1.
 * Tried     whole units of V: F8 7.7, 14.9, 28.5, 62.8, bf16 7.3, 12.7, 25.6, 53.0; K in whole sectors, with the neighbour's half read ahead: the same
 *           to 11 % slower.
 */
#include "device/ops/rope_kv.cuh"

enum { JOB_WARPS = 4, JOB_GROUPS = 5, JOB_UNITS = 8 }; /* of a block; groups of heads; units of V a lane */

/* A warp's work without waiting for any other's: some groups of a token's heads of q and k, or some units of its V. All that a job
 * reads is on its way before the first of it is used. */
template <typename T, typename C, int HD> struct rope_job {
    static constexpr int HALF = HD / 2, LANES = HD / 16, HEADS = 32 / LANES; /* a head's lanes, a group's heads */
    static constexpr int EU = 16 / (int)sizeof(C);

    const rope_params &a;
    const int lane = threadIdx.x & 31, n_kv, rotated;
    int t, pos, in; /* the token, its position and place in its block */
    bool keep;
    T *qkv;   /* its row */
    C *cache; /* its block */

    __device__ __forceinline__ rope_job(const rope_params &params, int token)
        : a(params), n_kv(params.g.n_kv), rotated(params.n_heads + params.g.n_kv), t(token)
    {
        /* The step's arrays were uploaded before any kernel of the step began; only qkv is waited for. */
        pos = a.positions[t];
        const int64_t block = a.block_table[(int64_t)a.token_seq[t] * a.table_stride + pos / a.g.bt];
        keep = block >= 0 && block < a.n_blocks;
        in = pos % a.g.bt;
        qkv = (T *)a.qkv + (int64_t)t * (rotated + n_kv) * HD;
        cache = (C *)a.cache + (keep ? block : 0) * a.g.block_elems;
    }

    /* kv_layout.cuh, with units of 16 bytes */
    __device__ __forceinline__ int64_t k_at(int h, int tok, int d) const
    {
        return ((int64_t)(h * (HD / EU) + d / EU) * a.g.bt + tok) * EU + d % EU;
    }

    /* ---- q and k ---- */

    /* Of this lane's eight pairs: each lane makes one or two, and gets the rest from others. */
    __device__ __forceinline__ void angles(float *c, float *s) const
    {
        constexpr int EACH = HALF / 32;
        float mine[2][EACH];
#pragma unroll
        for (int x = 0; x < EACH; x++) {
            const int i = lane * EACH + x;
            sincosf(place_of(a, t, pos, i) * a.inv_freq[i], &mine[1][x], &mine[0][x]);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const int from = (lane % LANES * 8 + k) / EACH;
            c[k] = __shfl_sync(0xffffffffu, mine[0][k % EACH], from) * a.rope_scale;
            s[k] = __shfl_sync(0xffffffffu, mine[1][k % EACH], from) * a.rope_scale;
        }
    }

    __device__ __forceinline__ void rotate(int first)
    {
        const int d = lane % LANES * 8;
        float c[8], s[8];
        uint4 raw[JOB_GROUPS][2];
        angles(c, s);
        pdl_wait();
        pdl_go();
#pragma unroll
        for (int i = 0; i < JOB_GROUPS; i++) {
            const int h = (first + i) * HEADS + lane / LANES;
            raw[i][0] = raw[i][1] = make_uint4(0, 0, 0, 0);
            if (h < rotated) {
                raw[i][0] = load_raw(qkv + (int64_t)h * HD + d);
                raw[i][1] = load_raw(qkv + (int64_t)h * HD + HALF + d);
            }
        }
#pragma unroll
        for (int i = 0; i < JOB_GROUPS; i++) {
            const int h = (first + i) * HEADS + lane / LANES;
            const bool is_k = h >= a.n_heads && h < rotated;
            const float *w = h < a.n_heads ? a.q_norm : a.k_norm;
            const float mul = is_k ? k_inverse<C>(a, h - a.n_heads) : 1.0f;
            float lo[8], hi[8];
            raw_to_f<T>(raw[i][0], lo);
            raw_to_f<T>(raw[i][1], hi);
            if (a.q_norm || a.k_norm) {
                norm_heads<HD>(lo, hi, w + d, w + HALF + d, w != NULL, a.eps);
            }
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const float l = lo[k];
                lo[k] = (l * c[k] - hi[k] * s[k]) * mul;
                hi[k] = (hi[k] * c[k] + l * s[k]) * mul;
            }
            if (h < a.n_heads) {
                store8(qkv + (int64_t)h * HD + d, lo);
                store8(qkv + (int64_t)h * HD + HALF + d, hi);
            } else if (is_k && keep) { /* eight dimensions lie together: a unit has 8 or 16 */
                store8(cache + k_at(h - a.n_heads, in, d), lo);
                store8(cache + k_at(h - a.n_heads, in, HALF + d), hi);
            }
        }
    }

    /* ---- V ---- */

    /* Unit i of the token's, of dimension i % HD of a head. */
    __device__ __forceinline__ C *unit_of(int i) const
    {
        return cache + (int64_t)n_kv * a.g.bt * HD + ((int64_t)(i / HD * (a.g.bt / EU) + in / EU) * HD + i % HD) * EU;
    }

    /* A token's elements of V lie apart, each in a unit with those of the tokens before it. Each is stored alone: the memory reads
     * and writes a sector for it, as it does for a whole unit, but nobody waits for that, and attention behind it, which reads the
     * same sectors, takes as long. */
    __device__ __forceinline__ void insert(int first)
    {
        const int n = n_kv * HD, place = in % EU;
        float inv[JOB_UNITS];
        T e[JOB_UNITS];
#pragma unroll
        for (int k = 0; k < JOB_UNITS; k++) {
            const int i = first + k * 32 + lane;
            inv[k] = i < n ? v_inverse<C>(a, i / HD) : 1.0f;
        }
        pdl_wait();
        pdl_go();
#pragma unroll
        for (int k = 0; k < JOB_UNITS; k++) {
            const int i = first + k * 32 + lane;
            if (i < n) {
                e[k] = qkv[(int64_t)rotated * HD + i];
            }
        }
#pragma unroll
        for (int k = 0; k < JOB_UNITS; k++) {
            const int i = first + k * 32 + lane;
            if (keep && i < n) {
                unit_of(i)[place] = from_f<C>(to_f(e[k]) * inv[k]);
            }
        }
    }
};

/* Warps take the jobs of the first n_tokens tokens in their order, V of a token first. */
template <typename T, typename C, int HD>
static __global__ void __launch_bounds__(JOB_WARPS * 32, 4) rope_single_kernel(rope_params a, int n_tokens, int v_jobs, int jobs)
{
    const int id = (int)blockIdx.x * JOB_WARPS + ((int)threadIdx.x >> 5), t = id / jobs, job = id - t * jobs;

    if (t >= n_tokens) {
        pdl_wait();
        return;
    }
    rope_job<T, C, HD> j(a, t);
    if (job < v_jobs) {
        j.insert(job * JOB_UNITS * 32);
    } else {
        j.rotate((job - v_jobs) * JOB_GROUPS);
    }
}

template <typename T, typename C> nrd_error *nrd_cuda_rope_single(nrd_stream *s, const rope_params &p, int n)
{
    const int heads = 512 / p.g.hd, groups = (p.n_heads + p.g.n_kv + heads - 1) / heads; /* a group: 32 lanes, 16 numbers each */
    const int v_jobs = (p.g.n_kv * p.g.hd + JOB_UNITS * 32 - 1) / (JOB_UNITS * 32);
    const int jobs = v_jobs + (groups + JOB_GROUPS - 1) / JOB_GROUPS;

    return launch(s, p.g.hd == 64 ? rope_single_kernel<T, C, 64> : rope_single_kernel<T, C, 128>,
                  dim3((unsigned)(((int64_t)n * jobs + JOB_WARPS - 1) / JOB_WARPS)), dim3(JOB_WARPS * 32), 0, p, n, v_jobs, jobs);
}

#define SINGLE(T, C) template nrd_error *nrd_cuda_rope_single<T, C>(nrd_stream *, const rope_params &, int)
SINGLE(bf16, bf16);
SINGLE(bf16, f8);
SINGLE(bf16, int8_t);
SINGLE(f16, f16);
SINGLE(f16, f8);
SINGLE(f16, int8_t);
