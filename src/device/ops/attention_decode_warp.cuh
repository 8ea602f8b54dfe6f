/* SPDX-License-Identifier: Apache-2.0
 * attention_decode_warp.cuh - a warp's part of attention_decode.cu: loads, products, softmax, and how warps and splits become one.
 *
 * Purpose   The kernel's steps in their order, one function each, over what a warp holds in registers.
 * Use       find_work and find_q before pdl_wait; load_first, clear_sums, add_tile for each of its tiles; share_sums; then store,
 *           store_f8, or put_part, is_last and merge_parts. All lanes, and where warps share a pair all warps, take part.
 * Sources   PTX ISA 9.0: "mma.sync", fragments of m16n8k16; "movmatrix".
 */
#ifndef NRD_OPS_ATTENTION_DECODE_WARP_CUH
#define NRD_OPS_ATTENTION_DECODE_WARP_CUH

#include "device/ops/attention.cuh"
#include "device/ops/cluster.cuh"

enum { MAX_SPLITS = 64 };

struct decode_params {
    attn_params a;
    int n_splits, min_tiles, bt_shift;
    int alone; /* so many tiles are not split at all */
    int max_rows; /* of a sequence; those with more are left out */
    int n_groups; /* of rows, of the longest sequence */
    float *ws; /* [seq, group, kv head, split][rows][HD + 2] */
    int *counters; /* of a (sequence, group, KV head); behind them of a sequence */
    f8 *q_out;     /* QUANT: rows of F8 and their scales; a.out is scratch */
    float *q_scale;
};

/* out[l] = r[t] of lane l of the quad, t = this lane's place in it. */
static __device__ __forceinline__ void quad_transpose(const uint32_t r[4], uint32_t out[4], int t)
{
#pragma unroll
    for (int x = 0; x < 4; x++) {
        const int j = t ^ x;
        const uint32_t mine = j == 0 ? r[0] : j == 1 ? r[1] : j == 2 ? r[2] : r[3];
        const uint32_t got = __shfl_xor_sync(0xffffffffu, mine, x);
#pragma unroll
        for (int l = 0; l < 4; l++) {
            out[l] = l == j ? got : out[l];
        }
    }
}

/* Word w (of 4) of a 16-byte unit of which the first `bytes` count. */
static __device__ __forceinline__ uint32_t keep_bytes(uint32_t v, int bytes, int w)
{
    const int n = bytes - 4 * w;
    return n >= 4 ? v : n <= 0 ? 0 : v & ((1u << (8 * n)) - 1);
}

/* The operands of product step m (of 2, 8 bits: 4) from 16 bytes along the reduction dimension. */
template <typename C>
static __device__ __forceinline__ void step_of(uint4 v, int m, uint32_t *b0, uint32_t *b1)
{
    const uint32_t w[4] = {v.x, v.y, v.z, v.w};
    if constexpr (sizeof(C) == 1) {
        to_f16<C>(w[m], b0, b1);
    } else {
        *b0 = w[2 * m];
        *b1 = w[2 * m + 1];
    }
}

/* 16 bytes that nobody reads again if n > least, else zeros. A predicate and no branch: loads stay beside each other. */
static __device__ __forceinline__ uint4 load_over(int n, int least, const void *p)
{
    uint4 v;
    asm volatile("{\n.reg .pred p;\nsetp.gt.s32 p, %5, %6;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
                 "@p ld.global.cs.v4.b32 {%0, %1, %2, %3}, [%4];\n}"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(p), "r"(n), "r"(least));
    return v;
}

/* Eight 16-bit elements of q as operands. */
template <typename T, bool BF> static __device__ __forceinline__ uint32_t q_word(uint32_t w)
{
    if constexpr (std::is_same<T, bf16>::value == BF) {
        return w;
    } else {
        T e[2];
        memcpy(e, &w, 4);
        return pack2<BF>(to_f(e[0]), to_f(e[1]));
    }
}

/* A warp's part in softmax(Q K^T) V of one (sequence, group of rows, KV head, split): what it holds in registers, and the
 * steps of its work in their order. WHOLE: a tile lies inside one block. LEAN: in 128 registers a thread, so that sixteen
 * warps are on a multiprocessor: single tokens in eight rows, whole tiles, up to 128 dimensions, no window, no softcap. */
template <typename T, typename C, int HD, int ROWS, bool WHOLE, int WARPS, bool LEAN> struct decode_warp {
    static constexpr bool BF = std::is_same<C, bf16>::value;
    static constexpr int UE = 16 / sizeof(C);         /* elements in 16 bytes */
    static constexpr int TILE = 4 * UE, NJ = UE / 2;  /* tokens; their groups of 8 */
    static constexpr int KC = HD / (4 * UE);          /* 16-byte loads a lane for a group of 8 keys */
    static constexpr int SM = UE / 4;                 /* mma steps in a 16-byte unit */
    static constexpr int ND = HD / 8, HALVES = ROWS / 8;
    static constexpr bool SWAP = HALVES == 1;
    /* Registers in flight. Up to 128: the keys of the next tile are asked for as soon as those of this
     * one are used, the values at the head of the tile. 256: keys in two batches, values in four. */
    static constexpr bool AHEAD = HD <= 128 && !LEAN;
    static constexpr int KB = AHEAD ? 1 : 2, KJ = NJ / KB, VN = AHEAD ? ND : 8, VB = ND / VN;
    /* groups of scores a lane has, in all and a batch of keys */
    static constexpr int NS = NJ * HALVES / 2, SJ = KJ * HALVES / 2;
    /* each warp's sums, where there is room; the pitch keeps a warp's stores in different banks */
    static constexpr bool SLABS = WARPS * ROWS * HD <= 8192;
    static constexpr int PITCH = HD + 4;
    /* LEAN: a tile is so many products of keys, and as many of values, each of two units a lane; WINDOW of them are on their way. */
    static constexpr int STEPS = HD / 16, WINDOW = 4;
    static constexpr float LOG2E = 1.4426950408889634f;

    struct shared {
        __align__(8) float o[(SLABS ? WARPS : 1) * ROWS * PITCH];
        float m[WARPS][ROWS], l[WARPS][ROWS], red[32];
        float w[ROWS][MAX_SPLITS + 1]; /* of each split in the merge */
        int last;
    };

    const decode_params &p;
    const attn_params &a;
    shared &sh;
    /* eight rows are never cut into groups */
    const int split = blockIdx.x, kvh = blockIdx.y, seq = ROWS == 8 ? blockIdx.z : blockIdx.z / p.n_groups;
    const int row0 = ROWS == 8 ? 0 : (int)(blockIdx.z % p.n_groups) * ROWS;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, g = lane >> 2, t = lane & 3;
    /* what find_work finds */
    int q0, ctx, fresh, rows, first_pos, lo, sinks, used, begin, end; /* fresh: the slot of the first new token */
    const int32_t *table;
    const C *cache;
    int bt_mask;
    int64_t v_off;
    /* Q: this lane's rows are g and g + 8 */
    const T *q_src[HALVES];
    int pos[HALVES];
    bool q_in[HALVES];
    uint32_t q[HD / 16][2 * HALVES];
    uint4 kr[LEAN ? 1 : KJ][LEAN ? 1 : KC]; /* keys on their way */
    uint4 win[LEAN ? WINDOW : 1][2];        /* LEAN: keys or values on their way, of step i in slot i % WINDOW */
    int tile_block, next_block;
    /* o: 16 rows: [8 dimensions][row g, g + 8 x 2 columns]; 8 rows: [16 dimensions][the same turned
     * round]. The rows whose softmax this lane computes: g and g + 8, or 2t and 2t + 1. */
    float o[ND * HALVES / 2][4], m_run[2], l_run[2];
    int row_pos[2];
    const uint32_t *row_tree[2]; /* what they see of the new tokens, in a tree */
    float s_mul;

    __device__ __forceinline__ decode_warp(const decode_params &params, shared &s)
        : p(params), a(params.a), sh(s)
    {
    }

    /* ---- which tiles ---- */

    /* Those of the sinks, then from the window's start to the end; of them this split's. The step's
     * arrays were there before the kernel in front of us began (kernels let the next one start only after
     * their own pdl_wait, except products, which write none of these). */
    __device__ __forceinline__ bool find_work()
    {
        q0 = a.q_start[seq];
        ctx = a.ctx_len[seq];
        const int n_new = a.q_start[seq + 1] - q0;
        fresh = ctx - n_new;
        rows = n_new * a.group - row0;
        table = a.block_table + (int64_t)seq * a.table_stride;
        if (n_new * a.group > p.max_rows || rows <= 0) {
            return false;
        }
        rows = rows < ROWS ? rows : ROWS;
        lo = sinks = 0;
        first_pos = LEAN ? fresh : a.positions[q0];
        const int unseen = LEAN ? -1 : last_unseen(a, first_pos);
        if (unseen >= 0) {
            lo = (unseen + 1) / TILE;
            sinks = (a.n_sink + TILE - 1) / TILE;
            sinks = sinks < lo ? sinks : lo;
        }
        const int n_tiles = sinks + (ctx + TILE - 1) / TILE - lo;
        int per = (n_tiles + p.n_splits - 1) / p.n_splits;
        per = n_tiles <= p.alone ? n_tiles : per < p.min_tiles ? p.min_tiles : per;
        used = n_tiles > 0 ? (n_tiles + per - 1) / per : 0;
        if (split >= used) {
            return false;
        }
        begin = split * per;
        end = begin + per < n_tiles ? begin + per : n_tiles;
        bt_mask = a.g.bt - 1;
        cache = (const C *)a.cache;
        v_off = (int64_t)a.g.n_kv * a.g.bt * HD;
        tile_block = WHOLE ? block_of(begin + warp) : -1;
        next_block = WHOLE ? block_of(begin + warp + WARPS) : -1;
        return true;
    }

    __device__ __forceinline__ int tile_start(int idx) const
    {
        return (idx < sinks ? idx : lo + idx - sinks) * TILE;
    }

    __device__ __forceinline__ int block_of(int idx) const
    {
        return idx < end ? table[tile_start(idx) >> p.bt_shift] : -1;
    }

    /* ---- loads ---- */

    /* This lane's keys of a tile inside one block: every eighth token, of which `left` are in the context, from the first on.
     * Groups of eight lie 8 units, chunks 4 bt units apart. */
    struct keys {
        int left;
        const C *src;
    };

    __device__ __forceinline__ keys keys_at(int tok0, int in_block) const
    {
        keys k;
        k.left = in_block < 0 ? 0 : ctx - tok0 - g;
        k.src = cache + (int64_t)(in_block < 0 ? 0 : in_block) * a.g.block_elems +
                ((int64_t)(kvh * (HD / UE) + t) * a.g.bt + (tok0 & bt_mask) + g) * UE;
        return k;
    }

    /* 16 bytes of group j, chunk i. What lies behind the context's end is not asked for: in short contexts that was up to a
     * fifth of all that was read. */
    __device__ __forceinline__ uint4 key_unit(const keys &k, int j, int i) const
    {
        return load_over(k.left, 8 * j, k.src + 8 * j * UE + 4 * i * a.g.bt * UE);
    }

    /* Keys of groups [kb * KJ, + KJ) of a tile. */
    __device__ __forceinline__ void load_k(int tok0, int in_block, int kb)
    {
        const keys whole = keys_at(tok0, in_block);
#pragma unroll
        for (int j = 0; j < KJ; j++) {
            keys k = whole;
            if constexpr (!WHOLE) {
                const int tok = tok0 + 8 * (kb * KJ + j) + g;
                const int block = tok < ctx ? table[tok >> p.bt_shift] : -1;
                k = keys_at(tok - g, block);
            }
#pragma unroll
            for (int i = 0; i < KC; i++) {
                kr[j][i] = key_unit(k, WHOLE ? kb * KJ + j : 0, i);
            }
        }
    }

    /* This lane's values of a tile: tokens from tok0 + UE * t on; block < 0: none of them is in the context. */
    struct values {
        int block;
        const C *src;
    };

    __device__ __forceinline__ values values_at(int tok0) const
    {
        const int tok = tok0 + UE * t;
        values v;
        v.block = tok >= ctx ? -1 : WHOLE ? tile_block : table[tok >> p.bt_shift];
        v.src = cache + (int64_t)(v.block < 0 ? 0 : v.block) * a.g.block_elems + v_off +
                ((int64_t)(kvh * (a.g.bt / UE) + (tok & bt_mask) / UE) * HD + g) * UE;
        return v;
    }

    /* 16 bytes of dimension 8 n + g */
    __device__ __forceinline__ uint4 value_unit(const values &v, int n) const
    {
        return load_over(v.block, -1, v.src + 8 * n * UE);
    }

    __device__ __forceinline__ void load_v(const values &v, int batch, uint4 *to) const
    {
#pragma unroll
        for (int n = 0; n < VN; n++) {
            to[n] = value_unit(v, batch * VN + n);
        }
    }

    /* LEAN: the units of step x into its slot. Groups of keys innermost. */
    __device__ __forceinline__ void ask_keys(const keys &k, int x)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            win[x % WINDOW][h] = key_unit(k, 2 * (x % (NJ / 2)) + h, x / (NJ / 2));
        }
    }

    __device__ __forceinline__ void ask_values(const values &v, int x)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            win[x % WINDOW][h] = value_unit(v, 2 * x + h);
        }
    }

    __device__ __forceinline__ void ask_first(int idx, int in_block)
    {
        if (idx < end) {
            const keys k = keys_at(tile_start(idx), in_block);
#pragma unroll
            for (int x = 0; x < WINDOW; x++) {
                ask_keys(k, x);
            }
        }
    }

    __device__ __forceinline__ void find_q()
    {
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
            const int r = g + 8 * h;
            q_in[h] = r < rows;
            const int tok = q0 + (row0 + (q_in[h] ? r : 0)) / a.group;
            q_src[h] = (const T *)a.q + tok * a.q_stride + (int64_t)head_of(q_in[h] ? r : 0) * HD + UE * t;
            pos[h] = LEAN ? 0 : a.positions[tok];
            row_tree[h] = ROWS == 16 && a.tree_mask ? a.tree_mask + (int64_t)tok * a.tree_words : NULL;
        }
    }

    /* Q and the first keys, all on their way before the first of them is used. */
    __device__ __forceinline__ void load_first()
    {
        uint4 raw[HALVES][KC][UE / 8];
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
#pragma unroll
            for (int i = 0; i < KC; i++) {
#pragma unroll
                for (int x = 0; x < UE / 8; x++) {
                    raw[h][i][x] = make_uint4(0, 0, 0, 0);
                    if (q_in[h]) {
                        raw[h][i][x] = load_raw(q_src[h] + 4 * UE * i + 8 * x);
                    }
                }
            }
        }
        if (AHEAD && begin + warp < end) {
            load_k(tile_start(begin + warp), tile_block, 0);
        }
        if constexpr (LEAN) {
            ask_first(begin + warp, tile_block);
        }
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
#pragma unroll
            for (int i = 0; i < KC; i++) {
#pragma unroll
                for (int m = 0; m < SM; m++) {
                    const uint4 u = raw[h][i][m / 2];
                    q[i * SM + m][h] = q_word<T, BF>(m % 2 ? u.z : u.x);
                    q[i * SM + m][HALVES + h] = q_word<T, BF>(m % 2 ? u.w : u.y);
                }
            }
        }
    }

    __device__ __forceinline__ void clear_sums()
    {
#pragma unroll
        for (int n = 0; n < ND * HALVES / 2; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                o[n][i] = 0.0f;
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            m_run[h] = -INFINITY;
            l_run[h] = 0.0f;
            row_pos[h] = LEAN ? 0 : SWAP ? __shfl_sync(0xffffffffu, pos[0], 4 * (2 * t + h)) : pos[h * (HALVES - 1)];
        }
        s_mul = a.scale * k_scale_of(a, kvh) * (!LEAN && a.softcap > 0.0f ? 1.0f / a.softcap : LOG2E);
    }

    /* ---- a tile ---- */

    /* S = Q K^T of one batch of keys. s: [8 keys][rows x 2 keys], or [16 keys][keys x 2 rows] */
    __device__ __forceinline__ void scores(float (*s)[4]) const
    {
#pragma unroll
        for (int jj = 0; jj < SJ; jj++) {
            s[jj][0] = s[jj][1] = 0.0f;
            s[jj][2] = s[jj][3] = 0.0f;
        }
        /* groups of keys innermost: consecutive products do not wait for each other */
#pragma unroll
        for (int i = 0; i < KC; i++) {
#pragma unroll
            for (int m = 0; m < SM; m++) {
#pragma unroll
                for (int jj = 0; jj < SJ; jj++) {
                    const uint32_t *aq = q[i * SM + m];
                    uint32_t k[2 / HALVES][2];
#pragma unroll
                    for (int x = 0; x < 2 / HALVES; x++) {
                        step_of<C>(kr[jj * 2 / HALVES + x][i], m, &k[x][0], &k[x][1]);
                    }
                    if constexpr (SWAP) {
                        mma16<BF>(s[jj], k[0][0], k[1][0], k[0][1], k[1][1], aq[0], aq[1]);
                    } else {
                        mma16<BF>(s[jj], aq[0], aq[1], aq[2], aq[3], k[0][0], k[0][1]);
                    }
                }
            }
        }
    }

    /* Over the lanes that share a row: F of what they have. */
    template <typename F> __device__ __forceinline__ float over_row(float v) const
    {
        if constexpr (SWAP) {
            v = F::of(v, __shfl_xor_sync(0xffffffffu, v, 4));
            v = F::of(v, __shfl_xor_sync(0xffffffffu, v, 8));
            v = F::of(v, __shfl_xor_sync(0xffffffffu, v, 16));
        } else {
            v = F::of(v, __shfl_xor_sync(0xffffffffu, v, 1));
            v = F::of(v, __shfl_xor_sync(0xffffffffu, v, 2));
        }
        return v;
    }

    /* Whether row h, whose position's window begins behind `unseen`, sees the token in slot tok. */
    __device__ __forceinline__ bool sees(int h, int tok, int unseen) const
    {
        if (ROWS == 16 && a.tree_mask && tok >= fresh) {
            const int j = tok - fresh;
            if (tok >= ctx || !(row_tree[h][j / 32] >> (j % 32) & 1)) {
                return false;
            }
            const int at = a.window > 0 ? a.positions[q0 + j] : tok;
            return at > unseen || at < a.n_sink;
        }
        return LEAN ? tok < ctx : tok <= row_pos[h] && tok < ctx && (tok > unseen || tok < a.n_sink);
    }

    /* Scaled, capped, masked scores of this lane's row h; their maximum. */
    __device__ __forceinline__ float mask_row(int h, int tok0, float (*s)[4]) const
    {
        const bool edge = tok0 + TILE > first_pos + 1 || (!LEAN && a.window > 0), capped = !LEAN && a.softcap > 0.0f;
        const int unseen = LEAN ? -1 : last_unseen(a, row_pos[h]);
        float top = -INFINITY;
#pragma unroll
        for (int j = 0; j < NS; j++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float &at = s[j][SWAP ? 2 * c + h : 2 * h + c];
                float v = at * s_mul;
                if (capped) {
                    v = a.softcap * LOG2E * tanhf(v);
                }
                if (edge) {
                    const int tok = tok0 + (SWAP ? 16 * j + 8 * c + g : 8 * j + 2 * t + c);
                    v = sees(h, tok, unseen) ? v : -INFINITY;
                }
                at = v;
                top = fmaxf(top, v);
            }
        }
        return over_row<op_max>(top);
    }

    /* Scores become weights; what was summed before is made to fit the new maximum. */
    __device__ __forceinline__ void softmax(int tok0, float (*s)[4])
    {
        float fix[2];
#pragma unroll
        for (int h = 0; h < 2; h++) { /* of this lane's rows */
            const float m_new = fmaxf(m_run[h], mask_row(h, tok0, s));
            const float m_use = m_new == -INFINITY ? 0.0f : m_new;
            fix[h] = fast_exp2(m_run[h] - m_use);
            m_run[h] = m_new;
            l_run[h] *= fix[h];
#pragma unroll
            for (int j = 0; j < NS; j++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float &at = s[j][SWAP ? 2 * c + h : 2 * h + c];
                    at = fast_exp2(at - m_use);
                    l_run[h] += at;
                }
            }
        }
#pragma unroll
        for (int n = 0; n < ND * HALVES / 2; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                o[n][i] *= fix[SWAP ? i % 2 : i / 2];
            }
        }
    }

    /* P in 16 bits, on the lanes that hold its tokens of V: step m, pair s. */
    __device__ __forceinline__ void weights(const float (*s)[4], uint32_t (*pa)[SM][2]) const
    {
        uint32_t pr[HALVES][NJ];
#pragma unroll
        for (int j = 0; j < NS; j++) {
            const uint32_t first = pack2<BF>(s[j][0], s[j][1]), second = pack2<BF>(s[j][2], s[j][3]);
            if constexpr (SWAP) { /* rows to the lanes' rows, as they are without turning */
                pr[0][2 * j] = transpose8(first);
                pr[0][2 * j + 1] = transpose8(second);
            } else {
                pr[0][j] = first;
                pr[HALVES - 1][j] = second;
            }
        }
#pragma unroll
        for (int h = 0; h < HALVES; h++) {
#pragma unroll
            for (int x = 0; x < NJ / 4; x++) {
                uint32_t in[4], out[4] = {0, 0, 0, 0};
#pragma unroll
                for (int l = 0; l < 4; l++) {
                    in[l] = pr[h][l * (NJ / 4) + x];
                }
                quad_transpose(in, out, t);
#pragma unroll
                for (int l = 0; l < 4; l++) {
                    pa[h][2 * x + l / 2][l % 2] = out[l];
                }
            }
        }
    }

    /* O += P V of one batch of dimensions. */
    __device__ __forceinline__ void add_values(const uint32_t (*pa)[SM][2], const uint4 *v, int vb)
    {
        /* Dimensions innermost: consecutive products do not wait for each other. Sixteen rows have
         * no registers left for that. */
        constexpr int ON = VN * HALVES / 2;
#pragma unroll
        for (int outer = 0; outer < (SWAP ? SM : ON); outer++) {
#pragma unroll
            for (int inner = 0; inner < (SWAP ? ON : SM); inner++) {
                const int m = SWAP ? outer : inner, n = SWAP ? inner : outer;
                uint32_t w[2 / HALVES][2];
#pragma unroll
                for (int x = 0; x < 2 / HALVES; x++) {
                    step_of<C>(v[n * 2 / HALVES + x], m, &w[x][0], &w[x][1]);
                }
                if constexpr (SWAP) {
                    mma16<BF>(o[vb * ON + n], w[0][0], w[1][0], w[0][1], w[1][1], pa[0][m][0],
                              pa[0][m][1]);
                } else {
                    mma16<BF>(o[vb * ON + n], pa[0][m][0], pa[HALVES - 1][m][0], pa[0][m][1],
                              pa[HALVES - 1][m][1], w[0][0], w[0][1]);
                }
            }
        }
    }

    /* What lies behind the context's end is not ours and may be anything. */
    template <int N> __device__ __forceinline__ void cut_values(int tok0, uint4 *v) const
    {
        const int bytes = (ctx - tok0 - UE * t) * (int)sizeof(C);
#pragma unroll
        for (int n = 0; n < N; n++) {
            v[n].x = keep_bytes(v[n].x, bytes, 0);
            v[n].y = keep_bytes(v[n].y, bytes, 1);
            v[n].z = keep_bytes(v[n].z, bytes, 2);
            v[n].w = keep_bytes(v[n].w, bytes, 3);
        }
    }

    __device__ __forceinline__ void add_tile(int idx)
    {
        const int tok0 = tile_start(idx);
        const values at = values_at(tok0);
        uint4 vr[AHEAD ? 1 : 2][VN];
        float s[NS][4];
        uint32_t pa[HALVES][SM][2];

        if constexpr (AHEAD) {
            load_v(at, 0, vr[0]);
        }
#pragma unroll
        for (int kb = 0; kb < KB; kb++) {
            if constexpr (!AHEAD) {
                load_k(tok0, tile_block, kb);
                if (kb == KB - 1) {
                    load_v(at, 0, vr[0]);
                }
            }
            scores(s + kb * SJ);
        }
        if constexpr (AHEAD) {
            if (idx + WARPS < end) {
                load_k(tile_start(idx + WARPS), next_block, 0);
            }
        } else {
            load_v(at, 1, vr[1]);
        }
        softmax(tok0, s);
        weights(s, pa);
#pragma unroll
        for (int vb = 0; vb < VB; vb++) {
            uint4 *v = vr[AHEAD ? 0 : vb & 1];
            if (tok0 + TILE > ctx) {
                cut_values<VN>(tok0, v);
            }
            add_values(pa, v, vb);
            if (vb + 2 < VB) {
                load_v(at, vb + 2, vr[vb & 1]);
            }
        }
        tile_block = next_block;
        next_block = WHOLE ? block_of(idx + 2 * WARPS) : -1;
    }

    /* LEAN: the product of step x, of keys ... */
    __device__ __forceinline__ void score_step(int x, float (*s)[4]) const
    {
        const int jj = x % (NJ / 2), i = x / (NJ / 2);
#pragma unroll
        for (int m = 0; m < SM; m++) {
            const uint32_t *aq = q[i * SM + m];
            uint32_t k[2][2];
            step_of<C>(win[x % WINDOW][0], m, &k[0][0], &k[0][1]);
            step_of<C>(win[x % WINDOW][1], m, &k[1][0], &k[1][1]);
            mma16<BF>(s[jj], k[0][0], k[1][0], k[0][1], k[1][1], aq[0], aq[1]);
        }
    }

    /* ... and of values. */
    __device__ __forceinline__ void value_step(int x, const uint32_t (*pa)[2])
    {
#pragma unroll
        for (int m = 0; m < SM; m++) {
            uint32_t w[2][2];
            step_of<C>(win[x % WINDOW][0], m, &w[0][0], &w[0][1]);
            step_of<C>(win[x % WINDOW][1], m, &w[1][0], &w[1][1]);
            mma16<BF>(o[x], w[0][0], w[1][0], w[0][1], w[1][1], pa[m][0], pa[m][1]);
        }
    }

    /* The same as add_tile, with as much on its way at all times as fits: a step's registers are asked for again as soon as
     * they are used, for keys, then values, then the next tile's keys. */
    __device__ __forceinline__ void add_tile_lean(int idx)
    {
        const int tok0 = tile_start(idx);
        const values at = values_at(tok0);
        const keys now = keys_at(tok0, tile_block);
        float s[NS][4];
        uint32_t pa[1][SM][2];

#pragma unroll
        for (int j = 0; j < NS; j++) {
            s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
        }
#pragma unroll
        for (int x = 0; x < STEPS; x++) {
            score_step(x, s);
            if (x + WINDOW < STEPS) {
                ask_keys(now, x + WINDOW);
            } else {
                ask_values(at, x + WINDOW - STEPS);
            }
        }
        softmax(tok0, s);
        weights(s, pa);
        const keys then = keys_at(tile_start(idx + WARPS), next_block); /* of no tile: nothing is left */
#pragma unroll
        for (int x = 0; x < STEPS; x++) {
            if (tok0 + TILE > ctx) {
                cut_values<2>(tok0, win[x % WINDOW]);
            }
            value_step(x, pa[0]);
            if (x + WINDOW < STEPS) {
                ask_values(at, x + WINDOW);
            } else {
                ask_keys(then, x + WINDOW - STEPS);
            }
        }
        tile_block = next_block;
        next_block = block_of(idx + 2 * WARPS);
    }

    /* ---- the warps into one, in order ---- */

    __device__ __forceinline__ int active() const { return end - begin < WARPS ? end - begin : WARPS; }

    __device__ __forceinline__ void put_sums(int slab, bool first, const float *fix)
    {
#pragma unroll
        for (int n = 0; n < ND * HALVES / 2; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = SWAP ? 2 * t + i % 2 : g + 8 * (i / 2);
                const int d = SWAP ? 16 * n + 8 * (i / 2) + g : 8 * n + 2 * t + i % 2;
                float *at = &sh.o[(slab * ROWS + row) * PITCH + d];
                *at = (first ? 0.0f : *at) + o[n][i] * fix[SWAP ? i % 2 : i / 2];
            }
        }
    }

    __device__ __forceinline__ void share_sums()
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            l_run[h] = over_row<op_sum>(l_run[h]);
            if ((SWAP ? g : t) == 0) {
                sh.m[warp][SWAP ? 2 * t + h : g + 8 * h] = m_run[h];
                sh.l[warp][SWAP ? 2 * t + h : g + 8 * h] = l_run[h];
            }
        }
        if constexpr (SLABS) {
            const float ones[2] = {1.0f, 1.0f};
            if (warp < active()) {
                put_sums(warp, true, ones);
            }
            __syncthreads();
        } else {
            __syncthreads();
            float fix[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float top = -INFINITY;
                for (int w = 0; w < WARPS; w++) {
                    top = fmaxf(top, sh.m[w][SWAP ? 2 * t + h : g + 8 * h]);
                }
                fix[h] = m_run[h] == -INFINITY ? 0.0f : fast_exp2(m_run[h] - top);
            }
            for (int w = 0; w < WARPS; w++) {
                if (warp == w) {
                    put_sums(0, w == 0, fix);
                }
                __syncthreads();
            }
        }
    }

    /* Elements i and i + 1 of the block's sums, their row's maximum and sum of weights. */
    __device__ __forceinline__ float2 merged(int i, float *m, float *l) const
    {
        const int r = i / HD, d = i % HD;
        float2 v = make_float2(0.0f, 0.0f);
        *m = sh.m[0][r];
        *l = 0.0f;
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            *m = fmaxf(*m, sh.m[w][r]);
        }
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            if (w < active()) {
                const float f = sh.m[w][r] == -INFINITY ? 0.0f : fast_exp2(sh.m[w][r] - *m);
                *l += f * sh.l[w][r];
                if constexpr (SLABS) {
                    const float2 x = *(const float2 *)&sh.o[(w * ROWS + r) * PITCH + d];
                    v.x += f * x.x;
                    v.y += f * x.y;
                }
            }
        }
        if constexpr (!SLABS) {
            v = *(const float2 *)&sh.o[r * PITCH + d];
        }
        return v;
    }

    /* ---- results ---- */

    __device__ __forceinline__ int head_of(int row) const { return kvh * a.group + (row0 + row) % a.group; }

    __device__ __forceinline__ int64_t out_at(int i) const
    {
        const int r = i / HD;
        const int64_t tok = q0 + (row0 + r) / a.group;
        return (tok * a.n_heads + head_of(r)) * HD + i % HD;
    }

    __device__ __forceinline__ float2 result(int i) const
    {
        float m, l;
        float2 v = merged(i, &m, &l);
        const float inv = l > 0.0f ? fast_div(v_scale_of(a, kvh), with_sink<true>(a, head_of(i / HD), m, l)) : 0.0f;
        v.x *= inv;
        v.y *= inv;
        return v;
    }

    __device__ __forceinline__ void store() const
    {
        for (int i = tid * 2; i < rows * HD; i += WARPS * 64) {
            const float2 v = result(i);
            attn_store2(a, out_at(i), v.x, v.y);
        }
    }

    /* The same in F8: the blocks of a cluster tell each other their largest magnitudes. */
    __device__ __forceinline__ void store_f8(float2 *slots, uint64_t *bar) const
    {
        constexpr int STEPS = ROWS * HD / (WARPS * 64);
        float2 v[STEPS];
        float amax = 0.0f;
#pragma unroll
        for (int x = 0; x < STEPS; x++) {
            const int i = (x * WARPS * 32 + tid) * 2;
            v[x] = make_float2(0.0f, 0.0f);
            if (i < rows * HD) {
                v[x] = result(i);
                amax = fmaxf(amax, fmaxf(fabsf(v[x].x), fabsf(v[x].y)));
            }
        }
        share_put(slots, bar, kvh * WARPS + warp, make_float2(warp_reduce<op_amax>(amax), 0.0f), a.g.n_kv);
        share_wait(bar, a.g.n_kv);
        amax = lane < a.g.n_kv * WARPS ? slots[lane].x : 0.0f;
        const float scale = f8_scale(warp_reduce<op_amax>(amax)), f = 1.0f / scale;
#pragma unroll
        for (int x = 0; x < STEPS; x++) {
            const int i = (x * WARPS * 32 + tid) * 2;
            if (i < rows * HD) {
                *(uint16_t *)(p.q_out + out_at(i)) = __nv_cvt_float2_to_fp8x2(
                    make_float2(v[x].x * f, v[x].y * f), __NV_SATFINITE, __NV_E4M3);
            }
        }
        if (kvh == 0 && tid == 0) {
            p.q_scale[q0] = scale;
        }
    }

    /* ---- the splits into one: the last block to arrive ---- */

    static constexpr int PART = ROWS * (HD + 2); /* floats of a split: sums, then (maximum, sum) a row */

    __device__ __forceinline__ float *part_of(int i) const
    {
        return p.ws + (((int64_t)blockIdx.z * a.g.n_kv + kvh) * p.n_splits + i) * PART;
    }

    __device__ __forceinline__ void put_part() const
    {
        float *part = part_of(split);
        for (int i = tid * 2; i < rows * HD; i += WARPS * 64) {
            float m, l;
            const float2 v = merged(i, &m, &l);
            __stcg((float2 *)(part + i), v);
            if (i % HD == 0) {
                __stcg((float2 *)(part + ROWS * HD + 2 * (i / HD)), make_float2(m, l));
            }
        }
    }

    /* Whether this block is the last of n to come here. */
    __device__ __forceinline__ bool is_last(int *counter, int n)
    {
        __threadfence();
        __syncthreads();
        if (tid == 0) {
            sh.last = atomicAdd(counter, 1) == n - 1;
            if (sh.last) {
                *counter = 0;
            }
            __threadfence();
        }
        __syncthreads();
        return sh.last;
    }

    __device__ __forceinline__ void merge_parts()
    {
        const float *part = part_of(0);
        /* all loads at once: one after the other they would cost 0.6 us each */
        for (int i = tid; i < rows * used; i += WARPS * 32) {
            sh.w[i % rows][i / rows] = __ldcg(part + (i / rows) * PART + ROWS * HD + 2 * (i % rows));
        }
        __syncthreads();
        if (tid < rows) { /* rows <= 16 < threads */
            float m_row = -INFINITY, l_row = 0.0f;
            for (int i = 0; i < used; i++) {
                m_row = fmaxf(m_row, sh.w[tid][i]);
            }
#pragma unroll 8
            for (int i = 0; i < used; i++) {
                const float m = sh.w[tid][i];
                const float w = m == -INFINITY ? 0.0f : fast_exp2(m - m_row);
                sh.w[tid][i] = w;
                l_row += w * __ldcg(part + i * PART + ROWS * HD + 2 * tid + 1);
            }
            sh.l[0][tid] = l_row > 0.0f ? v_scale_of(a, kvh) / with_sink<true>(a, head_of(tid), m_row, l_row) : 0.0f;
        }
        __syncthreads();
        for (int i = tid * 2; i < rows * HD; i += WARPS * 64) {
            const int r = i / HD;
            float v0 = 0.0f, v1 = 0.0f;
#pragma unroll 8
            for (int k = 0; k < used; k++) {
                const float2 v = __ldcg((const float2 *)(part + k * PART + i));
                v0 += sh.w[r][k] * v.x;
                v1 += sh.w[r][k] * v.y;
            }
            attn_store2(a, out_at(i), v0 * sh.l[0][r], v1 * sh.l[0][r]);
        }
    }
};

#endif
