/* SPDX-License-Identifier: Apache-2.0
 * attention_prefill: softmax(scale q K^T + mask) V for sequences with many new tokens, paged KV,
 * where attention_prefill_hopper.cu does not do it.
 * Shapes    rows = new tokens x heads of a KV head (> 16); head_dim 64, 96, 128, 256; cache bf16, fp16,
 *           F8 (turned into fp16 on its way to shared memory); block_tokens a power of two, 16..64, or
 *           a multiple of 64. Ragged batches, window, first tokens, sink logits, softcap, position biases, tokens ahead.
 * Work      one block (8 warps) takes 128 rows of a (sequence, KV head): tokens x heads of the group
 *           packed, so that all heads share the keys they share. Tiles of 64 tokens, double-buffered.
 *           A block's share of the cache is one run of memory in the layout that ldmatrix wants
 *           (kv_layout.cuh), so loading is a straight copy and there are no bank conflicts.
 *           Tile slot of tile j of sequence s: floor(tokens before s * group / 128) + s + j, which
 *           never collides; a block finds its sequence by bisection. Long rows start first.
 * Bound     tensor cores: 4 * rows * context / 2 * head_dim operations.
 * Measured  NVIDIA H200, one sequence of 8,192 tokens, 32 heads over 8 x 128, causal: bf16 184, F8
 *           cache 222 TFLOP/s (2026-11-21, make gpu-bench). One block an SM: softmax, copies and
 *           products follow each other.
 * Tried     mma.sync with ldmatrix (still the path of other GPUs and of head_dim 256): 150
 *           TFLOP/s at 8,192 tokens on an H200; every warp reads both tiles for 16 rows only.
 * Sources   FlashAttention-2 (Dao 2023), FlashAttention-3 (Shah et al. 2024).
 */
#include "device/ops/attention.cuh"
#include "device/ops/hopper.cuh"

enum { P_WARPS = 8, P_ROWS = 16 * P_WARPS, P_TILE = 64, P_THREADS = 32 * P_WARPS };

static __device__ __forceinline__ void ldsm4(uint32_t *r, const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

static __device__ __forceinline__ void copy16(void *dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(dst)),
                 "l"(src)
                 : "memory");
}

/* Sixteen numbers of 8 bits -> two units of eight fp16. */
template <typename C> static __device__ __forceinline__ void widen(uint4 v, uint4 *lo, uint4 *hi)
{
    to_f16<C>(v.x, &lo->x, &lo->y);
    to_f16<C>(v.y, &lo->z, &lo->w);
    to_f16<C>(v.z, &hi->x, &hi->y);
    to_f16<C>(v.w, &hi->z, &hi->w);
}

/* A block's piece of 128 rows of one sequence and KV head: what a thread holds, and the steps of the work. */
template <typename T, typename C, int HD> struct prefill_piece {
    static constexpr bool BYTES = sizeof(C) == 1, BF = std::is_same<C, bf16>::value;
#ifdef NRD_SM90A
    static constexpr bool WG = HD == 64 || HD == 128; /* two warpgroups of 64 rows, operands by wgmma */
#else
    static constexpr bool WG = false;
#endif
    static constexpr int ND = HD / 8, NK = HD / 16, NJ = P_TILE / 8;
    static constexpr int TILE_ELEMS = P_TILE * HD; /* of K or of V, 16-bit in shared memory */
    static constexpr int UE = 16 / sizeof(C);
    static constexpr int PIECES = TILE_ELEMS / UE; /* 16-byte pieces of the cache */
    static constexpr int MINE = (PIECES + P_THREADS - 1) / P_THREADS;
    static constexpr float LOG2E = 1.4426950408889634f;

    const attn_params &a;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
    const int kvh = blockIdx.y;
    /* what find_piece finds */
    int q0, row0, n_rows, ctx, all_see, lo, sinks, n_tiles; /* all_see: positions that every row sees, but for a window */
    const int32_t *table;
    int bt, bt_shift, block_shift; /* bt: tokens of a run */
    int64_t v_off;
    float s_mul;
    /* Q in registers: rows g and g + 8 of the warp's sixteen */
    uint32_t q[NK][4];
    int pos[2];
    float slope[2]; /* of their heads, for exp2 */
    const float *rel[2];
    float o[ND][4], m_run[2], l_run[2];
    uint4 kx[MINE], vx[MINE]; /* F8: the next tile waits in registers */

    __device__ __forceinline__ explicit prefill_piece(const attn_params &params) : a(params) {}

    /* ---- which rows and tiles ---- */

    /* The block's slot: sequences from s0 on have as many as they may need, one more than whole pieces. */
    __device__ __forceinline__ bool find_piece(int s0)
    {
        const int slot = (int)gridDim.x - 1 - (int)blockIdx.x;
        /* the last sequence whose first slot is not behind ours */
        int lo_s = s0, hi_s = a.n_seqs - 1;
        const int t0 = s0 > 0 ? s0 : 0; /* sequences before s0 have one token each */
        const int min_rows = s0 > 0 ? 0 : DECODE_ROWS;
        while (lo_s < hi_s) {
            const int mid = (lo_s + hi_s + 1) / 2;
            if ((int)((int64_t)(a.q_start[mid] - t0) * a.group / P_ROWS) + mid - s0 <= slot) {
                lo_s = mid;
            } else {
                hi_s = mid - 1;
            }
        }
        const int seq = lo_s;
        q0 = a.q_start[seq];
        const int rows = (a.q_start[seq + 1] - q0) * a.group;
        row0 = (slot - (int)((int64_t)(q0 - t0) * a.group / P_ROWS) - (seq - s0)) * P_ROWS;
        if (row0 < 0 || row0 >= rows || rows <= min_rows) {
            return false;
        }
        ctx = a.ctx_len[seq];
        n_rows = rows - row0 < P_ROWS ? rows - row0 : P_ROWS;
        table = a.block_table + (int64_t)seq * a.table_stride;
        return true;
    }

    /* Those of the sinks, then from the window's start to the last position of the rows. */
    __device__ __forceinline__ void find_tiles()
    {
        const int first_pos = a.positions[q0 + row0 / a.group];
        all_see = min(first_pos + a.ahead + 1, ctx);
        const int last_pos = a.positions[q0 + (row0 + n_rows - 1) / a.group];
        lo = sinks = 0;
        const int unseen = last_unseen(a, first_pos);
        if (unseen >= 0) {
            lo = (unseen + 1) / P_TILE;
            sinks = (a.n_sink + P_TILE - 1) / P_TILE;
            sinks = sinks < lo ? sinks : lo;
        }
        const int seen_end = min(last_pos + a.ahead + 1, ctx);
        n_tiles = sinks + (seen_end + P_TILE - 1) / P_TILE - lo;
        bt = a.g.bt < P_TILE ? a.g.bt : P_TILE;
        bt_shift = __ffs(bt) - 1;
        block_shift = __ffs(a.g.bt) - 1;
        v_off = (int64_t)a.g.n_kv * a.g.bt * HD;
    }

    __device__ __forceinline__ int tile_start(int i) const
    {
        return (i < sinks ? i : lo + i - sinks) * P_TILE;
    }

    /* ---- loads ---- */

    __device__ __forceinline__ void load_q()
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = warp * 16 + g + 8 * h;
            const bool in = r < n_rows;
            const int tok = q0 + (row0 + (in ? r : 0)) / a.group;
            const int head = kvh * a.group + (row0 + (in ? r : 0)) % a.group;
            const T *src = (const T *)a.q + tok * a.q_stride + (int64_t)head * HD;
            pos[h] = a.positions[tok];
            slope[h] = a.alibi ? a.alibi[head] * LOG2E : 0.0f;
            rel[h] = rel_bias_of(a, head);
#pragma unroll
            for (int k = 0; k < NK; k++) {
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    const T *e = src + 16 * k + 8 * s + 2 * t;
                    q[k][2 * s + h] = in ? pack2<BF>(to_f(e[0]), to_f(e[1])) : 0;
                }
            }
        }
#pragma unroll
        for (int n = 0; n < ND; n++) {
            o[n][0] = o[n][1] = o[n][2] = o[n][3] = 0.0f;
        }
        m_run[0] = m_run[1] = -INFINITY;
        l_run[0] = l_run[1] = 0.0f;
        s_mul = a.scale * k_scale_of(a, kvh) * (a.softcap > 0.0f ? 1.0f / a.softcap : LOG2E);
    }

    /* Piece p of a tile: where it comes from and where it goes. K: [chunk][64 tokens][8]; V: [unit]
     * [d][8]. With blocks of up to 64 tokens a run is one piece of memory. */
    __device__ __forceinline__ const C *source(int tok0, int p, bool v, int *dst) const
    {
        const int per_run = bt * HD / UE; /* at most four runs: no division */
        const int run = (p >= per_run) + (p >= 2 * per_run) + (p >= 3 * per_run);
        const int in = p - run * per_run;
        const int tok = tok0 + run * bt;
        const int block = tok < ctx ? table[tok >> block_shift] : -1;
        const C *from = (const C *)a.cache + (int64_t)(block < 0 ? 0 : block) * a.g.block_elems;
        if (a.g.bt <= P_TILE) {
            from += (v ? v_off : 0) + (kvh * bt * HD + in * UE);
        } else {
            const int at = tok & (a.g.bt - 1);
            from += v ? v_off + ((int64_t)(kvh * (a.g.bt / UE) + at / UE + in / HD) * HD + in % HD) * UE
                      : ((int64_t)(kvh * (HD / UE) + (in >> bt_shift)) * a.g.bt + at +
                         (in & (bt - 1))) * UE;
        }
        if (v) {
            *dst = BYTES ? ((run * (bt / 8) + in / HD * 2) * HD + in % HD) * 8 : p * 8;
        } else {
            *dst = ((in >> bt_shift) * (BYTES ? 2 : 1) * P_TILE + run * bt + (in & (bt - 1))) * 8;
        }
        return block < 0 ? NULL : from;
    }

    /* Tile i on its way: to its stage, or in F8 to registers. */
    __device__ __forceinline__ void load(int i, uint16_t *stage)
    {
        const int tok0 = tile_start(i);
#pragma unroll
        for (int x = 0; x < MINE; x++) {
            const int p = tid + x * P_THREADS;
            if (p < PIECES) {
                int dk, dv;
                const C *k = source(tok0, p, false, &dk), *v = source(tok0, p, true, &dv);
                if constexpr (BYTES) {
                    kx[x] = k ? __ldg((const uint4 *)k) : make_uint4(0, 0, 0, 0);
                    vx[x] = v ? __ldg((const uint4 *)v) : make_uint4(0, 0, 0, 0);
                } else {
                    if (k) {
                        copy16(stage + dk, k);
                    } else { /* a sequence may have no memory: a score must be a number there */
                        *(uint4 *)(stage + dk) = make_uint4(0, 0, 0, 0);
                    }
                    if (v) {
                        copy16(stage + TILE_ELEMS + dv, v);
                    } else {
                        *(uint4 *)(stage + TILE_ELEMS + dv) = make_uint4(0, 0, 0, 0);
                    }
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    /* F8: registers -> shared memory. */
    __device__ __forceinline__ void land(int i, uint16_t *stage) const
    {
        const int tok0 = tile_start(i);
#pragma unroll
        for (int x = 0; x < MINE; x++) {
            const int p = tid + x * P_THREADS;
            if (p < PIECES) {
                int dk, dv;
                uint4 first, second;
                (void)source(tok0, p, false, &dk);
                (void)source(tok0, p, true, &dv);
                widen<C>(kx[x], &first, &second);
                *(uint4 *)(stage + dk) = first;
                *(uint4 *)(stage + dk + P_TILE * 8) = second;
                widen<C>(vx[x], &first, &second);
                *(uint4 *)(stage + TILE_ELEMS + dv) = first;
                *(uint4 *)(stage + TILE_ELEMS + dv + HD * 8) = second;
            }
        }
    }

    /* Until tile i is in its stage, and the next one on its way. */
    __device__ __forceinline__ void wait_tile(int i, uint16_t *vs, uint16_t *next)
    {
        const int tok0 = tile_start(i);
        if (i + 1 < n_tiles) {
            load(i + 1, next);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        fence_async_proxy();
        __syncthreads();
        if (tok0 + P_TILE > ctx) { /* what lies behind the context's end may be anything */
            for (int x = tid; x < (tok0 + P_TILE - ctx) * HD; x += P_THREADS) {
                const int tok = ctx - tok0 + x / HD, d = x % HD;
                vs[((tok / 8) * HD + d) * 8 + tok % 8] = 0;
            }
            fence_async_proxy();
            __syncthreads();
        }
    }

    /* ---- a tile ---- */

    /* S = Q K^T */
    __device__ __forceinline__ void scores(float (*s)[4], const uint16_t *ks)
    {
#pragma unroll
        for (int j = 0; j < NJ; j++) {
            s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
        }
        if constexpr (WG) {
            wg_hold<NJ * 4>(&s[0][0]);
            wg_fence();
            const uint64_t dk = desc_plain(smem_u32(ks), P_TILE * 16, 128);
#pragma unroll
            for (int k = 0; k < NK; k++) { /* two chunks of 8 a step */
                wgmma_rs<BF, P_TILE>(&s[0][0], q[k][0], q[k][1], q[k][2], q[k][3],
                                     dk + k * (2 * P_TILE * 16 >> 4));
            }
            wg_commit();
            wg_wait<0>();
            wg_hold<NJ * 4>(&s[0][0]);
        } else {
            /* groups of keys innermost: consecutive products do not wait for each other */
#pragma unroll
            for (int k = 0; k < NK; k += 2) {
#pragma unroll
                for (int j0 = 0; j0 < NJ; j0 += 4) {
                    uint32_t b[4][4]; /* lane l gives the row l % 8 of matrix l / 8 = chunk 2k + l / 8 */
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        ldsm4(b[j], ks + ((2 * k + (lane >> 3)) * P_TILE + 8 * (j0 + j) + (lane & 7)) * 8);
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        mma16<BF>(s[j0 + j], q[k][0], q[k][1], q[k][2], q[k][3], b[j][0], b[j][1]);
                    }
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        mma16<BF>(s[j0 + j], q[k + 1][0], q[k + 1][1], q[k + 1][2], q[k + 1][3], b[j][2],
                                  b[j][3]);
                    }
                }
            }
        }
    }

    /* Scores, scaled, capped and masked, become weights in 16 bits; what was summed before is made to fit the
     * new maximum. */
    __device__ __forceinline__ void softmax(int tok0, float (*s)[4], uint32_t (*pr)[NJ])
    {
        const bool edge = tok0 + P_TILE > all_see || a.window > 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int unseen = last_unseen(a, pos[h]);
            float top = -INFINITY;
#pragma unroll
            for (int j = 0; j < NJ; j++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float v = s[j][2 * h + c] * s_mul;
                    if (a.softcap > 0.0f) {
                        v = a.softcap * LOG2E * tanhf(v);
                    }
                    const int tok = tok0 + 8 * j + 2 * t + c;
                    if (a.alibi) {
                        v -= slope[h] * (float)abs(tok - pos[h]);
                    }
                    if (a.rel_bias) {
                        v += rel_bias_at(a, rel[h], tok - pos[h]) * LOG2E;
                    }
                    if (edge) {
                        const bool seen = tok <= pos[h] + a.ahead && tok < ctx &&
                                          (tok > unseen || tok < a.n_sink);
                        v = seen ? v : -INFINITY;
                    }
                    s[j][2 * h + c] = v;
                    top = fmaxf(top, v);
                }
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            const float m_new = fmaxf(m_run[h], top);
            const float m_use = m_new == -INFINITY ? 0.0f : m_new;
            const float fix = fast_exp2(m_run[h] - m_use);
            m_run[h] = m_new;
            l_run[h] *= fix;
#pragma unroll
            for (int j = 0; j < NJ; j++) {
                const float e0 = fast_exp2(s[j][2 * h] - m_use), e1 = fast_exp2(s[j][2 * h + 1] - m_use);
                l_run[h] += e0 + e1;
                pr[h][j] = pack2<BF>(e0, e1);
            }
#pragma unroll
            for (int n = 0; n < ND; n++) {
                o[n][2 * h] *= fix;
                o[n][2 * h + 1] *= fix;
            }
        }
    }

    /* O += P V: the accumulator layout of S is the operand layout of P. meanwhile: what may run beside. */
    template <typename F>
    __device__ __forceinline__ void add_values(const uint32_t (*pr)[NJ], const uint16_t *vs, F meanwhile)
    {
        if constexpr (WG) {
            wg_hold<ND * 4>(&o[0][0]);
            wg_fence();
            const uint64_t dv = desc_plain(smem_u32(vs), HD * 16, 128);
#pragma unroll
            for (int j = 0; j < NJ; j += 2) { /* two units of 8 tokens a step */
                wgmma_rs<BF, HD>(&o[0][0], pr[0][j], pr[1][j], pr[0][j + 1], pr[1][j + 1],
                                 dv + j * (HD * 16 >> 4));
            }
            wg_commit();
            meanwhile();
            wg_wait<0>();
            wg_hold<ND * 4>(&o[0][0]);
        } else {
#pragma unroll
            for (int j = 0; j < NJ; j += 4) {
#pragma unroll
                for (int n0 = 0; n0 < ND; n0 += 4) {
                    uint32_t b[4][4]; /* matrix l / 8 = unit j + l / 8 */
#pragma unroll
                    for (int n = 0; n < 4; n++) {
                        ldsm4(b[n], vs + ((j + (lane >> 3)) * HD + 8 * (n0 + n) + (lane & 7)) * 8);
                    }
#pragma unroll
                    for (int n = 0; n < 4; n++) {
                        mma16<BF>(o[n0 + n], pr[0][j], pr[1][j], pr[0][j + 1], pr[1][j + 1], b[n][0],
                                  b[n][1]);
                    }
#pragma unroll
                    for (int n = 0; n < 4; n++) {
                        mma16<BF>(o[n0 + n], pr[0][j + 2], pr[1][j + 2], pr[0][j + 3], pr[1][j + 3],
                                  b[n][2], b[n][3]);
                    }
                }
            }
            meanwhile();
        }
    }

    __device__ __forceinline__ void store()
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            l_run[h] += __shfl_xor_sync(0xffffffffu, l_run[h], 1);
            l_run[h] += __shfl_xor_sync(0xffffffffu, l_run[h], 2);
            const int r = warp * 16 + g + 8 * h;
            if (r < n_rows) {
                const int64_t tok = q0 + (row0 + r) / a.group, head = kvh * a.group + (row0 + r) % a.group;
                const float sum = with_sink<true>(a, (int)head, m_run[h], l_run[h]);
                const float inv = l_run[h] > 0.0f ? v_scale_of(a, kvh) / sum : 0.0f;
#pragma unroll
                for (int n = 0; n < ND; n++) {
                    attn_store2(a, (tok * a.n_heads + head) * HD + 8 * n + 2 * t, o[n][2 * h] * inv,
                                o[n][2 * h + 1] * inv);
                }
            }
        }
    }
};

template <typename T, typename C, int HD>
static __global__ void __launch_bounds__(P_THREADS, 1) attention_prefill_kernel(attn_params a, int s0)
{
    typedef prefill_piece<T, C, HD> piece;
    extern __shared__ __align__(128) uint16_t smem[]; /* [2 stages][K tile, V tile] */
    piece w(a);

    pdl_wait();
    pdl_go();
    if (!w.find_piece(s0)) {
        return;
    }
    w.find_tiles();
    w.load_q();
    w.load(0, smem);
    if constexpr (piece::BYTES) {
        w.land(0, smem);
    }
    for (int i = 0; i < w.n_tiles; i++) {
        uint16_t *ks = smem + (i & 1) * 2 * piece::TILE_ELEMS, *vs = ks + piece::TILE_ELEMS;
        uint16_t *next = smem + ((i + 1) & 1) * 2 * piece::TILE_ELEMS;
        float s[piece::NJ][4];
        uint32_t pr[2][piece::NJ];

        w.wait_tile(i, vs, next);
        w.scores(s, ks);
        w.softmax(w.tile_start(i), s, pr);
        w.add_values(pr, vs, [&]() { /* F8: the next tile goes to its stage */
            if (piece::BYTES && i + 1 < w.n_tiles) {
                w.land(i + 1, next);
            }
        });
        __syncthreads();
    }
    w.store();
}

template <typename T, typename C, int HD>
static nrd_error *prefill_launch(nrd_stream *s, const attn_params &p, int n_tokens, int s0)
{
    const unsigned slots =
        (unsigned)((int64_t)(n_tokens - s0) * p.group / P_ROWS + (p.n_seqs - s0));
    const size_t smem = (size_t)2 * 2 * P_TILE * HD * 2;
    return launch(s, attention_prefill_kernel<T, C, HD>, dim3(slots, (unsigned)p.g.n_kv),
                  dim3(P_THREADS), smem, p, s0);
}

template <typename T, typename C>
static nrd_error *prefill_dim(nrd_stream *s, const attn_params &p, int n_tokens, int s0, bool *done)
{
    *done = true;
    switch (p.g.hd) {
    case 64:
        return prefill_launch<T, C, 64>(s, p, n_tokens, s0);
    case 96:
        return prefill_launch<T, C, 96>(s, p, n_tokens, s0);
    case 128:
        return prefill_launch<T, C, 128>(s, p, n_tokens, s0);
    case 256:
        if (s->dev->smem_max >= (size_t)2 * 2 * P_TILE * 256 * 2) {
            return prefill_launch<T, C, 256>(s, p, n_tokens, s0);
        }
        break;
    default:
        break;
    }
    *done = false;
    return NULL;
}

nrd_error *nrd_cuda_attention_prefill(nrd_stream *s, const nrd_attention_args *a, void *out,
                             nrd_dtype o_dtype, int n_single, bool *done)
{
    const nrd_batch_view *b = a->batch;
    const attn_params p = attn_params_of(a, out, o_dtype);
    const int bt = a->kv.block_tokens, n = b->n_tokens;

    NRD_TRY(nrd_cuda_attention_prefill_hopper(s, a, out, o_dtype, n_single, 0, done));
    if (*done) {
        return NULL;
    }
    if (a->act_dtype == NRD_DTYPE_F32 || bt < 16 || (bt & (bt - 1)) != 0 || !aligned16(a->kv.base)) {
        return NULL;
    }
    if (a->act_dtype == NRD_DTYPE_BF16) {
        switch (a->kv.dtype) {
        case NRD_DTYPE_BF16:
            return prefill_dim<bf16, bf16>(s, p, n, n_single, done);
        case NRD_DTYPE_F8_E4M3:
            return prefill_dim<bf16, f8>(s, p, n, n_single, done);
        case NRD_DTYPE_I8:
            return prefill_dim<bf16, int8_t>(s, p, n, n_single, done);
        default:
            return NULL;
        }
    }
    switch (a->kv.dtype) {
    case NRD_DTYPE_F16:
        return prefill_dim<f16, f16>(s, p, n, n_single, done);
    case NRD_DTYPE_F8_E4M3:
        return prefill_dim<f16, f8>(s, p, n, n_single, done);
    case NRD_DTYPE_I8:
        return prefill_dim<f16, int8_t>(s, p, n, n_single, done);
    default:
        return NULL;
    }
}
