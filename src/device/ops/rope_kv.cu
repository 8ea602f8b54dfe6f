/* SPDX-License-Identifier: Apache-2.0
 * rope_kv: RMS norm of q and k heads (optional; of all heads together: head_norm.cu), rotary embedding (Su et al.
 * 2021), K and V into the paged cache. Norms of other forms, bounds and scales of q by their position are the plain
 * kernel's.
 * Shapes    qkv [n_tokens, (n_heads + 2 n_kv_heads) head_dim] act dtype, q rotated in place; cache
 *           blocks as kv_layout.cuh says, f32, fp16, bf16, F8 or I8.
 * Work      The usual case (pairs (i, i + head_dim / 2) over whole heads of 64 or 128, 16-bit
 *           activations): tokens that stand alone are those of rope_kv_single.cu; else a block takes q and k of four, or V of 16
 *           that follow each other, turned in registers because its tokens are innermost in the cache (of small rows, all of
 *           16 tokens); a lane has eight pairs of a head. Up to eight tokens: a warp a few heads, and the cache that
 *           attention will read is brought to the L2 before the wait. Everything else: blockIdx.x a token, blockIdx.y a slice of its
 *           heads, a warp a head at a time. Cosines and sines are computed once a block.
 * Bound     memory, below 500 tokens the launch.
 * A token goes to the cache slot of its position; in a token tree, where siblings share a position,
 * to ctx_len - q_len + its index.
 * Measured  NVIDIA H200, 2048 tokens of 32 + 2 x 8 heads x 128: 3.00 TB/s (68 %), where the
 *           plain kernel took 1.21 (27 %); 1..16 tokens 2.1 us there (2026-11-21, make gpu-bench).
 */
#include "device/ops/rope_kv.cuh"

/* A head in shared memory, by a warp: a lane has every 32nd number. w, bias: or NULL. */
static __device__ __forceinline__ void norm_row(float *row, const float *w, const float *bias, int n, int lane, bool center, float eps)
{
    float mean = 0.0f, sum = 0.0f;
    if (center) {
        for (int i = lane; i < n; i += 32) {
            mean += row[i];
        }
        mean = warp_reduce<op_sum>(mean) / (float)n;
    }
    for (int i = lane; i < n; i += 32) {
        sum += (row[i] - mean) * (row[i] - mean);
    }
    const float inv = rsqrtf(warp_reduce<op_sum>(sum) / (float)n + eps);
    for (int i = lane; i < n; i += 32) {
        row[i] = (row[i] - mean) * inv * (w ? w[i] : 1.0f) + (bias ? bias[i] : 0.0f);
    }
}

static __device__ __forceinline__ float clipped(const rope_params &a, float v)
{
    return a.clip > 0.0f ? fminf(fmaxf(v, -a.clip), a.clip) : v;
}

template <typename T, typename C> static __global__ void __launch_bounds__(256) rope_kv_kernel(
    rope_params a)
{
    extern __shared__ float smem[]; /* cos [rot/2], sin [rot/2], a row of head_dim for each warp */
    const int t = blockIdx.x, hd = a.g.hd, half = a.rot / 2;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    float *cs = smem, *sn = smem + half, *row = smem + 2 * half + warp * hd;

    /* The step's arrays were uploaded before any kernel of the step began; only qkv is waited for. */
    const int pos = a.positions[t], seq = a.token_seq[t];
    if (a.rope != NRD_ROPE_NONE) {
        for (int i = threadIdx.x; i < half; i += blockDim.x) {
            float sin_v, cos_v;
            sincosf(place_of(a, t, pos, i) * a.inv_freq[i], &sin_v, &cos_v);
            cs[i] = cos_v * a.rope_scale;
            sn[i] = sin_v * a.rope_scale;
        }
    }
    __syncthreads();

    int slot = pos;
    if (a.tree) {
        const int q0 = a.q_start[seq];
        slot = a.ctx_len[seq] - (a.q_start[seq + 1] - q0) + (t - q0);
    }
    const int64_t block = a.block_table[(int64_t)seq * a.table_stride + slot / a.g.bt];
    const int in_block = slot % a.g.bt, n_kv = a.q_only ? 0 : a.g.n_kv;
    const bool keep = block >= 0 && block < a.n_blocks;
    C *cache = (C *)a.cache + (keep ? block : 0) * a.g.block_elems;
    const float grow = a.q_beta > 0.0f ? 1.0f + a.q_beta * logf(1.0f + (float)((pos + a.q_offset) / a.q_length)) : 1.0f;
    pdl_wait();
    pdl_go();
    T *qkv = (T *)a.qkv + (int64_t)t * (a.n_heads + 2 * n_kv) * hd;

    for (int h = blockIdx.y * n_warps + warp; h < a.n_heads + 2 * n_kv; h += gridDim.y * n_warps) {
        T *x = qkv + (int64_t)h * hd;
        const bool is_q = h < a.n_heads, is_v = h >= a.n_heads + n_kv;
        if (is_v) {
            for (int i = lane; i < hd; i += 32) {
                row[i] = to_f(x[i]);
            }
            if (a.v_norm) {
                norm_row(row, NULL, NULL, hd, lane, false, a.eps);
            }
            const float inv = v_inverse<C>(a, h - a.n_heads - n_kv);
            for (int i = lane; i < hd && keep; i += 32) {
                cache[kv_v_at(a.g, h - a.n_heads - n_kv, in_block, i)] = from_f<C>(clipped(a, row[i]) * inv);
            }
            continue;
        }
        const float *w = is_q ? a.q_norm : a.k_norm, *bias = is_q ? a.q_bias : a.k_bias;
        if (w && a.apart) {
            const int64_t at = (int64_t)(is_q ? h : h - a.n_heads) * hd;
            w += at;
            bias = bias ? bias + at : NULL;
        }
        for (int i = lane; i < hd; i += 32) {
            row[i] = to_f(x[i]);
        }
        if (w && !a.late) {
            norm_row(row, w, bias, hd, lane, a.center, a.eps);
        }
        for (int i = lane; i < hd && a.clip > 0.0f; i += 32) {
            row[i] = clipped(a, row[i]);
        }
        __syncwarp();
        /* a lane turns whole pairs */
        for (int j = lane; j < half && a.rope != NRD_ROPE_NONE; j += 32) {
            const int p = a.rope == NRD_ROPE_NEOX ? j : 2 * j, q = a.rope == NRD_ROPE_NEOX ? j + half : 2 * j + 1;
            const float u = row[p], v = row[q];
            row[p] = u * cs[j] - v * sn[j];
            row[q] = v * cs[j] + u * sn[j];
        }
        __syncwarp();
        if (w && a.late) {
            norm_row(row, w, bias, hd, lane, a.center, a.eps);
        }
        const float inv = is_q ? 1.0f : k_inverse<C>(a, h - a.n_heads);
        for (int i = lane; i < hd; i += 32) {
            if (is_q) {
                x[i] = from_f<T>(row[i] * grow);
            } else if (keep) {
                cache[kv_k_at(a.g, h - a.n_heads, in_block, i)] = from_f<C>(row[i] * inv);
            }
        }
        __syncwarp();
    }
}

enum { RUN = 16, FEW = 4 };  /* tokens of a block: V, q and k */
enum { SMALL_ROW = 2048 };   /* numbers of q and k of a token */

/* Dimensions of V a thread. */
enum { DV = 4 };

template <typename T> static __device__ __forceinline__ void load_dv(const T *p, float *to)
{
    const uint2 u = *(const uint2 *)p;
    T e[DV];
    memcpy(e, &u, sizeof u);
#pragma unroll
    for (int k = 0; k < DV; k++) {
        to[k] = to_f(e[k]);
    }
}

/* A block's work, of the tokens behind the first n_single: blocks take runs of V, then others a few tokens' q and k; or, with
 * `whole`, all of a run. */
template <typename T, typename C, int HD> struct rope_block {
    static constexpr int HALF = HD / 2, LANES = HD / 16, HEADS = 32 / LANES; /* a head's lanes, a warp's heads */
    static constexpr int EW = 4 / (int)sizeof(C), EU = 16 / (int)sizeof(C);

    struct shared {
        float cs[RUN][HALF], sn[RUN][HALF];
        int64_t at[RUN]; /* the token's block in the cache; < 0: not kept */
        int pos[RUN], in[RUN], n[RUN];   /* in: place in the block; n: unit_tokens */
    };

    const rope_params &a;
    shared &sh;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, n_kv, rotated;
    bool do_v, do_qk;
    int first, nt;
    int64_t row; /* of qkv */
    T *qkv;
    C *cache;

    __device__ __forceinline__ rope_block(const rope_params &params, shared &s, int n_tokens, int n_single, bool whole)
        : a(params), sh(s), n_kv(params.g.n_kv), rotated(params.n_heads + params.g.n_kv)
    {
        const int b = (int)blockIdx.x, n_runs = (n_tokens - n_single + RUN - 1) / RUN;
        do_v = b < n_runs;
        do_qk = whole || !do_v;
        const int step = do_v ? (int)RUN : (int)FEW;
        first = n_single + (do_v ? b : b - n_runs) * step;
        nt = n_tokens - first < step ? n_tokens - first : step;
        row = (int64_t)(a.n_heads + 2 * n_kv) * HD;
        qkv = (T *)a.qkv + first * row;
        cache = (C *)a.cache;
    }

    /* kv_layout.cuh, with units of 16 bytes */
    __device__ __forceinline__ int64_t k_at(int h, int tok, int d) const
    {
        return ((int64_t)(h * (HD / EU) + d / EU) * a.g.bt + tok) * EU + d % EU;
    }
    __device__ __forceinline__ int64_t v_at(int h, int tok, int d) const
    {
        return (int64_t)n_kv * a.g.bt * HD + ((int64_t)(h * (a.g.bt / EU) + tok / EU) * HD + d) * EU + tok % EU;
    }

    /* ---- before the product in front is done ---- */

    /* The step's arrays were uploaded before any kernel of the step began; only qkv is waited for. */
    __device__ __forceinline__ void find_tokens() const
    {
        if (tid < nt) {
            const int pos = a.positions[first + tid], seq = a.token_seq[first + tid];
            const int block = a.block_table[(int64_t)seq * a.table_stride + pos / a.g.bt];
            sh.at[tid] = block >= 0 && block < a.n_blocks ? (int64_t)block * a.g.block_elems : -1;
            sh.pos[tid] = pos;
            sh.in[tid] = pos % a.g.bt;
            sh.n[tid] = unit_tokens(tid, pos, seq);
        }
        __syncthreads();
    }

    __device__ __forceinline__ void make_angles() const
    {
        for (int i = tid; i < nt * HALF && do_qk; i += 256) {
            float sin_v, cos_v;
            const float place = place_of(a, first + i / HALF, sh.pos[i / HALF], i % HALF);
            sincosf(place * a.inv_freq[i % HALF], &sin_v, &cos_v);
            sh.cs[i / HALF][i % HALF] = cos_v * a.rope_scale;
            sh.sn[i / HALF][i % HALF] = sin_v * a.rope_scale;
        }
        __syncthreads();
    }

    /* ---- q and k ---- */

    /* Group i of the warps' heads: normed, turned, q to its place, k to the cache. */
    __device__ __forceinline__ void rotate(int i, int groups) const
    {
        const int t = i / groups, h = i % groups * HEADS + lane / LANES, d = lane % LANES * 8;
        const bool in = h < rotated;
        T *x = qkv + t * row + (int64_t)(in ? h : 0) * HD + d;
        float lo[8], hi[8];
        load8(x, lo);
        load8(x + HALF, hi);
        const bool is_k = in && h >= a.n_heads;
        const float inv = is_k ? k_inverse<C>(a, h - a.n_heads) : 1.0f;
        const float *w = h < a.n_heads ? a.q_norm : a.k_norm;
        if (a.q_norm || a.k_norm) {
            norm_heads<HD>(lo, hi, w + d, w + HALF + d, w != NULL, a.eps);
        }
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float c = sh.cs[t][d + k], s = sh.sn[t][d + k], l = lo[k];
            lo[k] = l * c - hi[k] * s;
            hi[k] = hi[k] * c + l * s;
        }
        if (in && h < a.n_heads) {
            store8(x, lo);
            store8(x + HALF, hi);
        } else if (is_k && sh.at[t] >= 0) {
#pragma unroll
            for (int k = 0; k < 8; k++) {
                lo[k] *= inv;
                hi[k] *= inv;
            }
            /* eight dimensions lie together: a unit has 8 or 16 */
            C *to = cache + sh.at[t];
            store8(to + k_at(h - a.n_heads, sh.in[t], d), lo);
            store8(to + k_at(h - a.n_heads, sh.in[t], HALF + d), hi);
        }
    }

    __device__ __forceinline__ void rotate_all() const
    {
        const int groups = (rotated + HEADS - 1) / HEADS;
        for (int i = warp; i < nt * groups && do_qk; i += 8) {
            rotate(i, groups);
        }
    }

    /* ---- V of a run ---- */

    /* How many tokens of this step lie in the unit of V that token t begins; 0: one before it does. */
    __device__ __forceinline__ int unit_tokens(int t, int pos, int seq) const
    {
        const int begin = a.q_start[seq], end = a.q_start[seq + 1], place = pos % EU;
        return place > 0 && first + t > begin ? 0 : min(EU - place, end - first - t);
    }

    /* v[k]: a unit of dimension d + k, of which the n tokens from t on are ours; they may reach into the next block's. WHOLE: all of it. */
    template <bool WHOLE>
    __device__ __forceinline__ void gather(int h, int d, int t, int place, int n, uint32_t (*v)[4]) const
    {
        const T *x = qkv + (t - place) * row + (int64_t)(rotated + h) * HD + d;
        const float inv = v_inverse<C>(a, h);
#pragma unroll
        for (int j = 0; j < EU; j++) {
            float e[DV] = {0.0f};
            if (WHOLE || (j >= place && j < place + n)) {
                load_dv(x + j * row, e);
            }
#pragma unroll
            for (int k = 0; k < DV; k++) {
                const uint32_t bits = bits_of(from_f<C>(e[k] * inv)) << (j % EW * 8 * (int)sizeof(C));
                v[k][j / EW] = j % EW == 0 ? bits : v[k][j / EW] | bits;
            }
        }
    }

    /* Word y of a unit of which the places [from, to) are ours. */
    __device__ __forceinline__ void write_word(C *unit, int y, int from, int to, const uint32_t (*v)[4]) const
    {
        if (y * EW >= from && (y + 1) * EW <= to) {
#pragma unroll
            for (int k = 0; k < DV; k++) {
                *(uint32_t *)(unit + k * EU + y * EW) = v[k][y];
            }
            return;
        }
#pragma unroll
        for (int z = 0; z < EW; z++) {
            if (y * EW + z >= from && y * EW + z < to) {
#pragma unroll
                for (int k = 0; k < DV; k++) {
                    const uint32_t bits = v[k][y] >> (z * 8 * (int)sizeof(C));
                    memcpy(unit + k * EU + y * EW + z, &bits, sizeof(C));
                }
            }
        }
    }

    /* The unit of V that token t begins, of DV dimensions. */
    __device__ __forceinline__ void write_unit(int i, int t) const
    {
        const int h = i / (HD / DV), d = i % (HD / DV) * DV, place = sh.in[t] % EU, n = sh.n[t];
        C *unit = cache + sh.at[t] + v_at(h, sh.in[t] - place, d);
        uint32_t v[DV][4];
        if (n == EU) {
            gather<true>(h, d, t, 0, n, v);
#pragma unroll
            for (int k = 0; k < DV; k++) {
                ((uint4 *)unit)[k] = make_uint4(v[k][0], v[k][1], v[k][2], v[k][3]);
            }
            return;
        }
        gather<false>(h, d, t, place, n, v);
#pragma unroll
        for (int y = 0; y < 4; y++) {
            write_word(unit, y, place, place + n, v);
        }
    }

    /* A unit belongs to the block that has its first token, so that blocks write whole ones wherever prompts begin in the batch. */
    __device__ __forceinline__ void write_all() const
    {
        for (int t = 0; t < nt; t++) {
            if (sh.n[t] > 0 && sh.at[t] >= 0) {
                for (int i = tid; i < n_kv * (HD / DV); i += 256) {
                    write_unit(i, t);
                }
            }
        }
    }
};

template <typename T, typename C, int HD>
static __global__ void __launch_bounds__(256, 3)
    rope_run_kernel(rope_params a, int n_tokens, int n_single, bool whole)
{
    typedef rope_block<T, C, HD> block;
    __shared__ typename block::shared sh;
    block b(a, sh, n_tokens, n_single, whole);

    b.find_tokens();
    b.make_angles();
    pdl_wait();
    pdl_go();
    b.rotate_all();
    if (b.do_v) {
        b.write_all();
    }
}

enum { FEW_THREADS = 128, PREFETCH_BYTES = 16384, PREFETCH_MAX = 4 << 20 };

static __device__ __forceinline__ void prefetch_bulk(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

/* Few tokens, where only latency counts: blockIdx.y a token, a warp a few heads, eight pairs of one a
 * lane. While the product in front still runs, the cache that attention will read is asked for: it has
 * long left the L2. */
template <typename T, typename C, int HD>
static __global__ void __launch_bounds__(FEW_THREADS) rope_few_kernel(rope_params a, int prefetch_blocks)
{
    constexpr int HALF = HD / 2, LANES = HD / 16, HEADS = 32 / LANES; /* a head's lanes, a warp's heads */
    __shared__ float cs[HALF], sn[HALF];
    const int t = (int)blockIdx.y, lane = (int)threadIdx.x & 31, n_kv = a.g.n_kv, rotated = a.n_heads + n_kv;
    const int part = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    const int h = part / 32 * HEADS + lane / LANES, d = lane % LANES * 8;
    const bool in = h < rotated + n_kv, is_q = h < a.n_heads, is_v = h >= rotated;
    const int kvh = is_v ? h - rotated : h - a.n_heads;
    const float *w = is_q ? a.q_norm : is_v ? NULL : a.k_norm;

    /* The step's arrays were uploaded before any kernel of the step began; only qkv is waited for. */
    const int pos = a.positions[t];
    const int32_t *table = a.block_table + (int64_t)a.token_seq[t] * a.table_stride;
    const int64_t block = table[pos / a.g.bt];
    const bool keep = block >= 0 && block < a.n_blocks;
    if (a.rope != NRD_ROPE_NONE && (int)threadIdx.x < HALF) {
        float sin_v, cos_v;
        sincosf(place_of(a, t, pos, (int)threadIdx.x) * a.inv_freq[threadIdx.x], &sin_v, &cos_v);
        cs[threadIdx.x] = cos_v * a.rope_scale;
        sn[threadIdx.x] = sin_v * a.rope_scale;
    }
    {
        const uint32_t bytes = (uint32_t)(a.g.block_elems * (int64_t)sizeof(C));
        const uint32_t per = (bytes + PREFETCH_BYTES - 1) / PREFETCH_BYTES;
        const uint32_t n = (uint32_t)(pos / a.g.bt + 1);
        if (n <= (uint32_t)prefetch_blocks && lane == 0) {
#pragma unroll 1
            for (uint32_t i = (uint32_t)part / 32; i < n * per; i += gridDim.x * (FEW_THREADS / 32)) {
                const int b = table[i / per];
                const uint32_t at = i % per * PREFETCH_BYTES, left = bytes - at;
                if (b >= 0 && b < a.n_blocks) {
                    prefetch_bulk((const char *)a.cache + (int64_t)b * bytes + at,
                                  left < PREFETCH_BYTES ? left : PREFETCH_BYTES);
                }
            }
        }
    }
    __syncthreads();
    float c[8], s[8], lo[8], hi[8], w_lo[8], w_hi[8];
    if (w) {
        load8(w + d, w_lo);
        load8(w + HALF + d, w_hi);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const bool turned = a.rope != NRD_ROPE_NONE && !is_v;
        c[k] = turned ? cs[d + k] : 1.0f;
        s[k] = turned ? sn[d + k] : 0.0f;
    }
    const float mul = is_q || !in ? 1.0f : is_v ? v_inverse<C>(a, kvh) : k_inverse<C>(a, kvh);
    C *to = (C *)a.cache + (keep ? block : 0) * a.g.block_elems;
    const int in_block = pos % a.g.bt;
    T *x = (T *)a.qkv + ((int64_t)t * (rotated + n_kv) + (in ? h : 0)) * HD + d;
    pdl_wait();
    pdl_go();
    const uint4 first = load_raw(x), second = load_raw(x + HALF);
    raw_to_f<T>(first, lo);
    raw_to_f<T>(second, hi);
    if (a.q_norm || a.k_norm) {
        norm_heads<HD>(lo, hi, w_lo, w_hi, w != NULL, a.eps);
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const float l = lo[k];
        lo[k] = (l * c[k] - hi[k] * s[k]) * mul;
        hi[k] = (hi[k] * c[k] + l * s[k]) * mul;
    }
    if (in && is_q) {
        store8(x, lo);
        store8(x + HALF, hi);
    } else if (in && keep && !is_v) { /* eight dimensions lie together: a unit has 8 or 16 */
        store8(to + kv_k_at(a.g, kvh, in_block, d), lo);
        store8(to + kv_k_at(a.g, kvh, in_block, HALF + d), hi);
    } else if (in && keep) {
        constexpr int EU = 16 / (int)sizeof(C); /* dimensions are as far apart */
        C *v = to + kv_v_at(a.g, kvh, in_block, d);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k * EU] = from_f<C>(lo[k]);
            v[(HALF + k) * EU] = from_f<C>(hi[k]);
        }
    }
}

template <typename T, typename C>
static nrd_error *few_launch(nrd_stream *s, const rope_params &p, int n_tokens)
{
    const int heads = p.n_heads + 2 * p.g.n_kv, a_block = FEW_THREADS / 32 * (32 / (p.g.hd / 16));
    const int blocks = (int)(PREFETCH_MAX / ((int64_t)n_tokens * p.g.block_elems * (int)sizeof(C)));

    return launch(s, p.g.hd == 64 ? rope_few_kernel<T, C, 64> : rope_few_kernel<T, C, 128>,
                  dim3((unsigned)((heads + a_block - 1) / a_block), (unsigned)n_tokens), dim3(FEW_THREADS), 0,
                  p, blocks);
}

template <typename T, typename C>
static nrd_error *run_launch(nrd_stream *s, const rope_params &p, int n_tokens, int n_single)
{
    const int in_runs = n_tokens - n_single, n_runs = (in_runs + RUN - 1) / RUN;
    /* Of small rows a block of a few tokens' q and k would do little else than wait, as long as there are runs enough. */
    const bool whole = n_runs >= 2 * s->dev->n_sm && (p.n_heads + p.g.n_kv) * p.g.hd <= SMALL_ROW;
    const dim3 runs((unsigned)(n_runs + (whole ? 0 : (in_runs + FEW - 1) / FEW)));
    if (n_single > 0) {
        NRD_TRY((nrd_cuda_rope_single<T, C>(s, p, n_single)));
    }
    if (in_runs <= 0) {
        return NULL;
    }
    return launch(s, p.g.hd == 64 ? rope_run_kernel<T, C, 64> : rope_run_kernel<T, C, 128>, runs, dim3(256), 0, p, n_tokens,
                  n_single, whole);
}

/* Whether the kernels of the usual case can do it; if so *err is what came of it. */
static bool rope_run(nrd_stream *s, const rope_params &p, const nrd_rope_kv_args *a, nrd_error **err)
{
    const nrd_batch_view *b = a->batch;
    /* few tokens: one token's heads over many blocks are faster */
    const int n_single = b->max_q_len <= 1 ? b->n_tokens
                         : b->n_single > 0 && b->n_single <= b->n_tokens ? b->n_single
                                                                         : 0;
    const bool few = b->n_tokens <= FEW_ROWS && s->dev->hopper;
    if (p.apart || p.center || p.late || p.v_norm || p.q_only || p.clip > 0.0f || p.q_beta > 0.0f) {
        return false;
    }
    if ((p.rope == NRD_ROPE_NONE ? !few : p.rope != NRD_ROPE_NEOX || p.rot != p.g.hd) || p.tree ||
        (p.g.hd != 64 && p.g.hd != 128) || p.g.bt % RUN != 0 ||
        (!few && b->n_tokens < (n_single < b->n_tokens ? 2 : 1) * s->dev->n_sm) || !aligned16(a->qkv) || !aligned16(p.cache)) {
        return false;
    }
    const auto go = [&](auto t, auto c) {
        typedef decltype(t) T;
        typedef decltype(c) C;
        return few ? few_launch<T, C>(s, p, b->n_tokens)
                   : run_launch<T, C>(s, p, b->n_tokens, n_single);
    };
    if (a->act_dtype == NRD_DTYPE_BF16 && a->kv.dtype == NRD_DTYPE_BF16) {
        *err = go(bf16(), bf16());
    } else if (a->act_dtype == NRD_DTYPE_BF16 && a->kv.dtype == NRD_DTYPE_F8_E4M3) {
        *err = go(bf16(), f8());
    } else if (a->act_dtype == NRD_DTYPE_BF16 && a->kv.dtype == NRD_DTYPE_I8) {
        *err = go(bf16(), int8_t());
    } else if (a->act_dtype == NRD_DTYPE_F16 && a->kv.dtype == NRD_DTYPE_I8) {
        *err = go(f16(), int8_t());
    } else if (a->act_dtype == NRD_DTYPE_F16 && a->kv.dtype == NRD_DTYPE_F16) {
        *err = go(f16(), f16());
    } else if (a->act_dtype == NRD_DTYPE_F16 && a->kv.dtype == NRD_DTYPE_F8_E4M3) {
        *err = go(f16(), f8());
    } else {
        return false;
    }
    return true;
}

template <typename T, typename C>
static nrd_error *rope_launch(nrd_stream *s, const rope_params &p, int n_tokens)
{
    const int heads = p.n_heads + (p.q_only ? 0 : 2 * p.g.n_kv);
    /* Few tokens: spread a token's heads over blocks. 8 warps a block. */
    int slices = (heads + 7) / 8;
    while (slices > 1 && (int64_t)slices * n_tokens > 8 * s->dev->n_sm) {
        slices = (slices + 1) / 2;
    }
    const size_t smem = sizeof(float) * ((size_t)(p.rot / 2) * 2 + (size_t)p.g.hd * 8);
    return launch(s, rope_kv_kernel<T, C>, dim3((unsigned)n_tokens, (unsigned)slices), dim3(256), smem,
                  p);
}

nrd_error *nrd_cuda_rope_params(const nrd_rope_kv_args *a, rope_params *out)
{
    const nrd_batch_view *b = a->batch;
    rope_params p = {};

    p.g = kv_geom_of(&a->kv);
    if (!is_act_dtype(a->act_dtype) || p.g.block_elems == 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: rope_kv of dtype %d into a cache of dtype %d",
                          (int)a->act_dtype, (int)a->kv.dtype);
    }
    if ((a->rope != NRD_ROPE_NONE &&
         (!a->inv_freq || a->rotary_dim > a->kv.head_dim || a->rotary_dim % 2 != 0)) ||
        (a->pair_axis && !b->axes) || (a->q_norm && a->q_norm->dtype != NRD_DTYPE_F32) ||
        (a->k_norm && a->k_norm->dtype != NRD_DTYPE_F32) || (a->q_norm_bias && a->q_norm_bias->dtype != NRD_DTYPE_F32) ||
        (a->k_norm_bias && a->k_norm_bias->dtype != NRD_DTYPE_F32) || a->kv.block_tokens <= 0 || a->kv.head_dim <= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: rope_kv: rotary_dim %d of head_dim %d, norms "
                                               "must come from weight_load",
                          a->rotary_dim, a->kv.head_dim);
    }
    p.qkv = a->qkv;
    p.positions = b->positions;
    p.token_seq = b->token_seq;
    p.q_start = b->q_start;
    p.ctx_len = b->ctx_len;
    p.block_table = b->block_table;
    p.table_stride = b->block_table_stride;
    p.tree = b->tree_mask != NULL;
    if (!a->wide_norm) {
        p.q_norm = a->q_norm ? (const float *)a->q_norm->data : NULL;
        p.k_norm = a->k_norm ? (const float *)a->k_norm->data : NULL;
        p.q_bias = a->q_norm_bias ? (const float *)a->q_norm_bias->data : NULL;
        p.k_bias = a->k_norm_bias ? (const float *)a->k_norm_bias->data : NULL;
    }
    p.apart = a->apart_norm;
    p.center = a->center_norm;
    p.late = a->late_norm;
    p.v_norm = a->v_norm;
    p.q_only = a->q_only;
    p.clip = a->clip;
    p.q_beta = a->q_scale_beta;
    p.q_length = a->q_scale_length > 0 ? a->q_scale_length : 1;
    p.q_offset = a->q_scale_offset;
    p.axes = b->axes;
    p.pair_axis = a->rope == NRD_ROPE_NONE ? NULL : a->pair_axis;
    p.inv_freq = a->inv_freq;
    p.cache = a->kv.base;
    p.n_heads = a->n_heads;
    p.rope = a->rope;
    p.rot = a->rope == NRD_ROPE_NONE ? 0 : a->rotary_dim;
    p.n_blocks = a->kv.n_blocks;
    p.eps = a->norm_eps;
    p.rope_scale = a->rope_scale;
    p.kv_scales = kv_scales_of(&a->kv);
    *out = p;
    return NULL;
}

nrd_error *nrd_cuda_rope_kv(nrd_stream *s, const nrd_rope_kv_args *a)
{
    const nrd_batch_view *b = a->batch;
    rope_params p;
    nrd_error *err = NULL;

    NRD_TRY(nrd_cuda_rope_params(a, &p));
    if (b->n_tokens <= 0) {
        return NULL;
    }
    NRD_TRY(a->wide_norm ? nrd_cuda_head_norm(s, a) : NULL);
    if (rope_run(s, p, a, &err)) {
        return err;
    }
    switch (a->kv.dtype) {
    case NRD_DTYPE_F32:
        ACT_TYPE(a->act_dtype, return (rope_launch<T, float>(s, p, b->n_tokens)));
    case NRD_DTYPE_F16:
        ACT_TYPE(a->act_dtype, return (rope_launch<T, f16>(s, p, b->n_tokens)));
    case NRD_DTYPE_BF16:
        ACT_TYPE(a->act_dtype, return (rope_launch<T, bf16>(s, p, b->n_tokens)));
    case NRD_DTYPE_F8_E4M3:
        ACT_TYPE(a->act_dtype, return (rope_launch<T, f8>(s, p, b->n_tokens)));
    default:
        ACT_TYPE(a->act_dtype, return (rope_launch<T, int8_t>(s, p, b->n_tokens)));
    }
}
