/* SPDX-License-Identifier: Apache-2.0
 * attention_decode_ring: decode attention that walks through many sequences without a pause, or needs few multiprocessors, so that
 * others have the rest.
 * Shapes    one new token a sequence; cache F8 or int8, head_dim 128, blocks of 64 tokens, up to 8 heads a KV
 *           head; activations bf16 or fp16. Hopper. No window, no softcap, no sink.
 * Work      One block a multiprocessor, RING_WARPS warps, each with a ring of its own of RING_SLOTS
 *           pieces of 8 KB in shared memory: K or V of 64 tokens of a head, both contiguous, brought by
 *           bulk copies that the warp itself asks for, without what lies behind a context's end: no
 *           block-wide waits after the start. All (sequence, head, tile) of the batch are cut into equal
 *           runs, one a warp, so ragged contexts balance; pairs cut by the end of a run are merged by
 *           the last of their warps to arrive, in order. Products are turned round (S^T = K Q^T,
 *           O^T = V^T P^T) as in attention_decode.cu.
 * Bound     memory, from 48 multiprocessors on: 2 x head_dim bytes a token and KV head. A
 *           multiprocessor converts and multiplies 89 GB/s.
 * Measured  NVIDIA H200, 512 sequences x 1,500 tokens, 32 heads over 8: 48 blocks 4.16, 40 3.58, 32
 *           2.90, 132 4.20 TB/s; 64 x 20,000: 48 blocks 4.21, 132 4.41 (2026-11-21). 132 blocks, 1,024 x 64..128: 80 % of memory's
 *           speed, x 128..256 84 % (2026-11-30; attention_decode.cu 56 and 74 %).
 * Tried     8 warps x 3 pieces: 3.50 TB/s on 48 (too few warps to hide conversions), 56 blocks: 4.03.
 * Sources   FlashAttention-2 (Dao 2023), Flash-Decoding (Dao et al. 2023); PTX ISA 9.0 "ldmatrix".
 */
#include "device/ops/attention.cuh"
#include "device/ops/attention_decode.cuh"
#include "device/ops/hopper.cuh"

#include <algorithm>

enum {
    RING_SLOTS = 2,
    PIECE = 8192,
    R_TILE = 64,
    R_HD = 128,
    R_GROUP = 8,
    R_MAX_SEQS = 2048,
    R_SHARE = 32 * 32 + 32 * 4 /* floats of a cut pair's share: o, then m and l */
};

struct ring_params {
    attn_params a;
    float *ws;     /* [run, 2][R_SHARE] */
    int *counters; /* [seq, kv head], zero between launches */
};

static __device__ __forceinline__ void wait_piece(uint32_t bar, uint32_t parity)
{
    mbar_wait(bar, parity);
    __syncwarp(); /* lanes may have seen it at different times; what follows is .aligned */
}

/* A bulk copy of what nobody reads again. */
static __device__ __forceinline__ void bulk_stream(uint32_t dst, const void *src, uint32_t bytes,
                                                   uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(dst),
                 "l"(src), "r"(bytes), "r"(bar), "l"(L2_EVICT_FIRST)
                 : "memory");
#endif
}

static __device__ __forceinline__ void ldsm4(uint32_t *w, uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(addr)
                 : "memory");
}

/* O += P V of one piece; CUT: only the first `left` tokens are ours. */
template <typename C, bool CUT>
static __device__ __forceinline__ void ring_values(float (*o)[4], const uint32_t (*pb)[2], uint32_t piece,
                                                   int lane, int left)
{
#pragma unroll
    for (int v = 0; v < 4; v++) {
        uint32_t mask = 0xffffffffu;
        if (CUT) {
            const int n = left - 16 * v - 4 * (lane & 3);
            mask = n >= 4 ? 0xffffffffu : n <= 0 ? 0 : (1u << (8 * n)) - 1;
        }
#pragma unroll
        for (int dp = 0; dp < 4; dp++) {
            uint32_t w[4], lo[4], hi[4];
            ldsm4(w, piece + v * 2048 + dp * 512 + lane * 16);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                to_f16<C>(CUT ? w[i] & mask : w[i], &lo[i], &hi[i]);
            }
            mma16<false>(o[2 * dp], lo[0], lo[1], hi[0], hi[1], pb[v][0], pb[v][1]);
            mma16<false>(o[2 * dp + 1], lo[2], lo[3], hi[2], hi[3], pb[v][0], pb[v][1]);
        }
    }
}

/* Where a run's reader or consumer stands. */
struct ring_at {
    int seq, head, tile, n_tiles;
};

static __device__ __forceinline__ void ring_step(ring_at &c, const int *pre, int n_seqs, int n_kv)
{
    if (++c.tile < c.n_tiles) {
        return;
    }
    c.tile = 0;
    if (++c.head < n_kv) {
        return;
    }
    c.head = 0;
    do {
        c.seq++;
    } while (c.seq < n_seqs - 1 && pre[c.seq + 1] == pre[c.seq]);
    c.seq = c.seq < n_seqs ? c.seq : n_seqs - 1; /* behind the last: never read */
    c.n_tiles = pre[c.seq + 1] - pre[c.seq];
}

static constexpr size_t RING_SMEM =
    (size_t)RING_WARPS * RING_SLOTS * (PIECE + 8) + (R_MAX_SEQS + 1 + RING_WARPS) * 4 + R_MAX_SEQS;

#if __CUDA_ARCH__ >= 900
/* pre[i]: tiles of a head of the sequences before i; tail[i]: tokens in the last tile of i. By the whole block, which meets at
 * the end. */
static __device__ __forceinline__ void ring_prefix(const attn_params &a, int *pre, uint8_t *tail, int *part)
{
    constexpr int NT = RING_WARPS * 32;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, n = a.n_seqs;
    const int per = (n + NT - 1) / NT, base = tid * per;
    int sum = 0;

    for (int i = 0; i < per && base + i < n; i++) {
        sum += (a.ctx_len[base + i] + R_TILE - 1) / R_TILE;
    }
    int incl = sum;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int v = __shfl_up_sync(0xffffffffu, incl, d);
        incl += lane >= d ? v : 0;
    }
    if (lane == 31) {
        part[warp] = incl;
    }
    __syncthreads();
    int at = incl - sum;
    for (int w = 0; w < warp; w++) {
        at += part[w];
    }
    for (int i = 0; i < per && base + i < n; i++) {
        const int ctx = a.ctx_len[base + i];
        pre[base + i] = at;
        tail[base + i] = (uint8_t)((ctx + R_TILE - 1) % R_TILE + 1);
        at += (ctx + R_TILE - 1) / R_TILE;
        if (base + i == n - 1) {
            pre[n] = at;
        }
    }
    __syncthreads();
}

/* Where tile x of all stands. */
static __device__ __forceinline__ ring_at ring_find(const int *pre, int n, int n_kv, int x)
{
    ring_at at;
    int lo = 0, hi = n; /* pre[lo] * n_kv <= x < pre[hi] * n_kv */
    while (hi - lo > 1) {
        const int mid = (lo + hi) / 2;
        if (pre[mid] * n_kv <= x) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    at.seq = lo;
    at.n_tiles = pre[lo + 1] - pre[lo];
    const int off = x - pre[lo] * n_kv;
    at.head = off / at.n_tiles;
    at.tile = off - at.head * at.n_tiles;
    return at;
}

/* A warp with its ring: what it holds, and the steps of its work. */
template <typename T, typename C> struct ring_warp {
    static constexpr int W = RING_WARPS, S = RING_SLOTS;
    static constexpr bool BF = std::is_same<T, bf16>::value;

    const ring_params &p;
    const attn_params &a;
    const int *pre;
    const uint8_t *tail;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int n, n_kv;
    const uint32_t ring, bar0;
    /* the run: its number, how many there are, all tiles; its own are [r0, r1) */
    int run, n_runs, total, r0, r1;
    /* the reader: pieces still to ask for, and where the next one is */
    ring_at ask;
    int to_ask, block;
    /* the consumer */
    ring_at use;
    int slot;
    uint32_t parity;
    /* Row g of the products is head g of the group; this lane's softmax is of rows 2t and 2t + 1. */
    uint32_t k_at;
    int tok_lo, tok_hi;
    float s_mul, k_scale; /* k_scale: of the pair whose queries were fetched */
    uint32_t q[16];
    uint2 q_raw[8];
    float o[8][4], m_run[2], l_run[2];

    __device__ __forceinline__ ring_warp(const ring_params &params, const int *prefix, const uint8_t *tails, char *smem,
                                         uint64_t *bars)
        : p(params), a(params.a), pre(prefix), tail(tails), n(params.a.n_seqs), n_kv(params.a.g.n_kv),
          ring(smem_u32(smem) + (threadIdx.x >> 5) * S * PIECE),
          bar0(smem_u32(bars + (threadIdx.x >> 5) * S))
    {
    }

    __device__ __forceinline__ void init_bars() const
    {
        if (lane == 0) {
            for (int i = 0; i < S; i++) {
                mbar_init(bar0 + i * 8, 1);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            fence_async_proxy();
        }
    }

    /* The run of tile x: the largest r with begin_of(r) <= x; no run is empty as n_runs <= total. */
    __device__ __forceinline__ int begin_of(int r) const { return (int)((int64_t)r * total / n_runs); }
    __device__ __forceinline__ int run_of(int x) const
    {
        return (int)(((int64_t)(x + 1) * n_runs - 1) / total);
    }

    /* This warp's run; false: there are fewer than warps. */
    __device__ __forceinline__ bool find_run()
    {
        total = pre[n] * n_kv;
        n_runs = min((int)gridDim.x * W, total);
        run = warp * gridDim.x + blockIdx.x;
        if (run >= n_runs) {
            return false;
        }
        r0 = begin_of(run);
        r1 = begin_of(run + 1);
        ask = use = ring_find(pre, n, n_kv, r0);
        return true;
    }

    /* ---- the ring ---- */

    /* The next piece into a slot that nobody reads any more. The table's next entry is looked up as soon
     * as the one before is used: its latency hides behind a tile. */
    __device__ __forceinline__ void ask_next(int to)
    {
        if (to_ask <= 0) {
            return;
        }
        const bool value = to_ask & 1;
        /* of the last tile only what the context has: of keys 16 dimensions of a token lie together, of values 16 tokens of one */
        const int left = ask.tile == ask.n_tiles - 1 ? tail[ask.seq] : R_TILE;
        const bool in_rows = !value && left < R_TILE;
        const uint32_t bytes = (uint32_t)(value ? (left + 15) / 16 * 16 : left) * R_HD;
        const char *src = (const char *)a.cache + (int64_t)max(block, 0) * a.g.block_elems +
                          (value ? (int64_t)n_kv * PIECE : 0) + (int64_t)ask.head * PIECE;
        if (lane == 0) {
            mbar_expect(bar0 + to * 8, bytes);
            if (!in_rows) {
                bulk_stream(ring + to * PIECE, src, bytes, bar0 + to * 8);
            }
        }
        __syncwarp();
        if (in_rows && lane < R_HD / 16) {
            bulk_stream(ring + to * PIECE + lane * (R_TILE * 16), src + lane * (R_TILE * 16), left * 16, bar0 + to * 8);
        }
        __syncwarp();
        to_ask--;
        if (value) {
            ring_step(ask, pre, n, n_kv);
            if (to_ask > 0) {
                block = __ldg(a.block_table + (int64_t)ask.seq * a.table_stride + ask.tile);
            }
        }
    }

    __device__ __forceinline__ void fill_ring()
    {
        to_ask = 2 * (r1 - r0);
        block = a.block_table[(int64_t)ask.seq * a.table_stride + ask.tile];
        for (int i = 0; i < S; i++) {
            ask_next(i);
        }
        slot = 0;
        parity = 0;
    }

    /* The piece in use is read: another one into its place. */
    __device__ __forceinline__ void done_with_piece()
    {
        __syncwarp();
        ask_next(slot);
        if (++slot == S) {
            slot = 0;
            parity ^= 1;
        }
    }

    /* ---- queries ---- */

    /* Keys of 16 go to rows of a product in the order 0 1 4 5 10 11 14 15 | 2 3 6 7 8 9 12 13: no two of
     * eight in the same banks, and P comes out as V's words want it but for a swap. */
    __device__ __forceinline__ void set_order()
    {
        const int half = lane >> 3 & 1, r8 = lane & 7;
        const int k_tok = (r8 >> 1) * 4 + (r8 & 1) + ((r8 >= 4) != (half == 1) ? 2 : 0);
        k_at = (uint32_t)((lane >> 4) * 16 + k_tok) * 16;
        tok_lo = (g >> 1) * 4 + (g & 1) + (g >= 4 ? 2 : 0);
        tok_hi = (g >> 1) * 4 + (g & 1) + (g >= 4 ? 0 : 2);
    }

    __device__ __forceinline__ void fetch_q(const ring_at &c)
    {
        k_scale = k_scale_of(a, c.head);
        const T *src = (const T *)a.q + (int64_t)a.q_start[c.seq] * a.q_stride +
                       (int64_t)(c.head * a.group + g) * R_HD + 4 * t;
#pragma unroll
        for (int u = 0; u < 8; u++) {
            q_raw[u] = make_uint2(0, 0);
            if (g < a.group) {
                q_raw[u] = *(const uint2 *)(src + 16 * u);
            }
        }
    }

    __device__ __forceinline__ void clear_sums()
    {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0.0f;
        }
        m_run[0] = m_run[1] = -INFINITY;
        l_run[0] = l_run[1] = 0.0f;
    }

    __device__ __forceinline__ void start_pair()
    {
#pragma unroll
        for (int u = 0; u < 8; u++) {
            T e[4];
            memcpy(e, &q_raw[u], 8);
            q[2 * u] = pack2<false>(to_f(e[0]), to_f(e[1]));
            q[2 * u + 1] = pack2<false>(to_f(e[2]), to_f(e[3]));
        }
        s_mul = a.scale * k_scale * 1.4426950408889634f;
        clear_sums();
    }

    /* ---- a tile ---- */

    __device__ __forceinline__ void scores(float (*s)[4]) const
    {
        const uint32_t keys = ring + slot * PIECE + k_at;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
        }
        wait_piece(bar0 + slot * 8, parity);
#pragma unroll
        for (int u = 0; u < 8; u++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t w[4], lo[4], hi[4];
                ldsm4(w, keys + u * 1024 + h * 512);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    to_f16<C>(w[i], &lo[i], &hi[i]);
                }
                mma16<false>(s[2 * h], lo[0], lo[1], hi[0], hi[1], q[2 * u], q[2 * u + 1]);
                mma16<false>(s[2 * h + 1], lo[2], lo[3], hi[2], hi[3], q[2 * u], q[2 * u + 1]);
            }
        }
    }

    /* Scores become weights; what was summed before is made to fit the new maximum. */
    __device__ __forceinline__ void softmax(int left, bool cut, float (*s)[4])
    {
        float fix[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = -INFINITY;
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float v = s[j][2 * c + h] * s_mul;
                    if (cut && 16 * j + (c ? tok_hi : tok_lo) >= left) {
                        v = -INFINITY;
                    }
                    s[j][2 * c + h] = v;
                    top = fmaxf(top, v);
                }
            }
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 4));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 8));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 16));
            /* a tile has at least one token of the context: top is finite */
            const float m_new = fmaxf(m_run[h], top);
            fix[h] = fast_exp2(m_run[h] - m_new);
            m_run[h] = m_new;
            l_run[h] *= fix[h];
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const float e = fast_exp2(s[j][2 * c + h] - m_new);
                    s[j][2 * c + h] = e;
                    l_run[h] += e;
                }
            }
        }
        if (__any_sync(0xffffffffu, fix[0] != 1.0f || fix[1] != 1.0f)) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                o[i][0] *= fix[0];
                o[i][1] *= fix[1];
                o[i][2] *= fix[0];
                o[i][3] *= fix[1];
            }
        }
    }

    __device__ __forceinline__ void weights(const float (*s)[4], uint32_t (*pb)[2]) const
    {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t x0 = transpose8(pack2<false>(s[j][0], s[j][1]));
            const uint32_t x1 = transpose8(pack2<false>(s[j][2], s[j][3]));
            pb[j][0] = t < 2 ? x0 : x1;
            pb[j][1] = t < 2 ? x1 : x0;
        }
    }

    __device__ __forceinline__ void add_tile()
    {
        const int left = use.tile == use.n_tiles - 1 ? tail[use.seq] : R_TILE; /* tokens in this tile */
        const bool cut = left < R_TILE;
        float s[4][4];
        uint32_t pb[4][2];

        scores(s);
        done_with_piece();
        softmax(left, cut, s);
        weights(s, pb);
        wait_piece(bar0 + slot * 8, parity);
        if (cut) {
            ring_values<C, true>(o, pb, ring + slot * PIECE, lane, left);
        } else {
            ring_values<C, false>(o, pb, ring + slot * PIECE, lane, 0);
        }
        done_with_piece();
    }

    /* ---- the end of a pair, or of this run's share of it ---- */

    /* Leaves this run's share of a cut pair where its last run finds it; true: that is this one. */
    __device__ __forceinline__ bool leave_share(bool first, int n_shares) const
    {
        float *mine = p.ws + (int64_t)(2 * run + first) * R_SHARE;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            __stcg(mine + i * 32 + lane, o[i / 4][i % 4]);
        }
        __stcg((float4 *)(mine + 1024) + lane, make_float4(m_run[0], m_run[1], l_run[0], l_run[1]));
        __threadfence();
        __syncwarp();
        int before = 0;
        int *counter = p.counters + use.seq * n_kv + use.head;
        if (lane == 0) {
            before = atomicAdd(counter, 1);
        }
        before = __shfl_sync(0xffffffffu, before, 0);
        if (before != n_shares - 1) {
            return false;
        }
        __threadfence();
        if (lane == 0) {
            *counter = 0;
        }
        return true;
    }

    __device__ __forceinline__ void add_share(const float *from)
    {
        const float4 ml = __ldcg((const float4 *)(from + 1024) + lane);
        float v[32];
#pragma unroll
        for (int i = 0; i < 32; i++) {
            v[i] = __ldcg(from + i * 32 + lane);
        }
        const float n0 = fmaxf(m_run[0], ml.x), n1 = fmaxf(m_run[1], ml.y);
        const float f0 = fast_exp2(m_run[0] - n0), f1 = fast_exp2(m_run[1] - n1);
        const float e0 = fast_exp2(ml.x - n0), e1 = fast_exp2(ml.y - n1);
        m_run[0] = n0;
        m_run[1] = n1;
        l_run[0] = l_run[0] * f0 + ml.z * e0;
        l_run[1] = l_run[1] * f1 + ml.w * e1;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            o[i / 4][i % 4] = o[i / 4][i % 4] * (i & 1 ? f1 : f0) + v[i] * (i & 1 ? e1 : e0);
        }
    }

    /* Where runs cut the pair, the last of them to come here has it whole afterwards; false: this one
     * is not the last. */
    __device__ __forceinline__ bool merge_shares()
    {
        const int begin = pre[use.seq] * n_kv + use.head * use.n_tiles, end = begin + use.n_tiles;
        if (begin >= r0 && end <= r1) {
            return true;
        }
        const int w0 = run_of(begin), w1 = run_of(end - 1);
        if (!leave_share(begin > r0, w1 - w0 + 1)) {
            return false;
        }
        clear_sums();
        for (int w = w0; w <= w1; w++) {
            const bool second = w == w0 && begin > begin_of(w0);
            add_share(p.ws + (int64_t)(2 * w + second) * R_SHARE);
        }
        return true;
    }

    __device__ __forceinline__ void store() const
    {
        const float v_scale = v_scale_of(a, use.head), i0 = v_scale / l_run[0], i1 = v_scale / l_run[1];
        /* a sequence without memory fills up a recorded step; what was read is another's */
        const bool none = a.block_table[(int64_t)use.seq * a.table_stride] < 0;
        const int64_t at = ((int64_t)a.q_start[use.seq] * a.n_heads + use.head * a.group + g) * R_HD;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t y0 = transpose8(pack2<BF>(o[i][0] * i0, o[i][1] * i1));
            const uint32_t y1 = transpose8(pack2<BF>(o[i][2] * i0, o[i][3] * i1));
            if (g < a.group) {
                *(uint32_t *)((T *)a.out + at + 16 * i + 2 * t) = none ? 0 : y0;
                *(uint32_t *)((T *)a.out + at + 16 * i + 8 + 2 * t) = none ? 0 : y1;
            }
        }
    }

    __device__ __forceinline__ void finish_pair()
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            l_run[h] += __shfl_xor_sync(0xffffffffu, l_run[h], 4);
            l_run[h] += __shfl_xor_sync(0xffffffffu, l_run[h], 8);
            l_run[h] += __shfl_xor_sync(0xffffffffu, l_run[h], 16);
        }
        if (merge_shares()) {
            store();
        }
    }
};
#endif

template <typename T, typename C>
static __global__ void __launch_bounds__(RING_WARPS * 32, 1)
    attention_decode_ring_kernel(const ring_params p)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(1024) char smem[];
    uint64_t *bars = (uint64_t *)(smem + RING_WARPS * RING_SLOTS * PIECE);
    int *pre = (int *)(bars + RING_WARPS * RING_SLOTS);
    uint8_t *tail = (uint8_t *)(pre + R_MAX_SEQS + 1 + RING_WARPS);
    ring_warp<T, C> w(p, pre, tail, smem, bars);

    w.init_bars();
    ring_prefix(p.a, pre, tail, pre + R_MAX_SEQS + 1);
    /* the step's arrays were there before (attention_decode.cu); queries, keys and values are new */
    pdl_wait();
    pdl_go();
    if (!w.find_run()) {
        return; /* no block-wide waits from here on */
    }
    w.fill_ring();
    w.set_order();
    w.fetch_q(w.use);
    w.start_pair();
    for (int x = w.r0; x < w.r1; x++) {
        const bool end = x == w.r1 - 1, last = w.use.tile == w.use.n_tiles - 1 || end;
        ring_at next = w.use;
        if (last && !end) {
            ring_step(next, pre, w.n, w.n_kv);
            w.fetch_q(next);
        }
        w.add_tile();
        if (!last) {
            w.use.tile++;
            continue;
        }
        w.finish_pair();
        if (!end) {
            w.use = next;
            w.start_pair();
        }
    }
#else
    (void)p;
#endif
}

bool nrd_cuda_attention_ring_fits(const nrd_stream *s, const nrd_attention_args *a, nrd_dtype o_dtype,
                         int n_seqs)
{
    const nrd_kv_layer *kv = &a->kv;
    const int64_t q_stride = a->q_stride ? a->q_stride : (int64_t)a->n_heads * kv->head_dim;
    const int64_t tiles = (int64_t)n_seqs * ((a->batch->max_ctx_len + R_TILE - 1) / R_TILE);

    return s->dev->hopper && s->dev->smem_max >= RING_SMEM && n_seqs > 0 && n_seqs <= R_MAX_SEQS &&
           (a->act_dtype == NRD_DTYPE_BF16 || a->act_dtype == NRD_DTYPE_F16) &&
           o_dtype == a->act_dtype && (kv->dtype == NRD_DTYPE_F8_E4M3 || kv->dtype == NRD_DTYPE_I8) && kv->head_dim == R_HD &&
           kv->block_tokens == R_TILE && a->n_heads <= R_GROUP * kv->n_kv_heads &&
           (int64_t)n_seqs * kv->n_kv_heads <= N_COUNTERS && tiles * kv->n_kv_heads < INT32_MAX / 2 &&
           a->window <= 0 && a->softcap <= 0.0f && !a->sink_logits && !a->batch->tree_mask && !a->deterministic &&
           aligned16(kv->base) && aligned16(a->q) && q_stride % 8 == 0;
}

nrd_error *nrd_cuda_attention_ring(nrd_stream *s, const nrd_attention_args *a, void *out, nrd_dtype o_dtype,
                          int n_seqs, int n_blocks)
{
    const size_t share = (size_t)2 * RING_WARPS * R_SHARE * sizeof(float); /* of a block */
    ring_params p = {};

    if (!s->split_ws || !s->counters) {
        NRD_TRY(nrd_cuda_stream_scratch(s));
    }
    p.a = attn_params_of(a, out, o_dtype);
    p.a.n_seqs = n_seqs;
    p.ws = (float *)s->split_ws;
    p.counters = s->counters;
    n_blocks = std::max(1, std::min(n_blocks, (int)(SIDE_WS_BYTES / share)));
    const bool bf = a->act_dtype == NRD_DTYPE_BF16, ints = a->kv.dtype == NRD_DTYPE_I8;
    return launch(s,
                  bf ? (ints ? attention_decode_ring_kernel<bf16, int8_t> : attention_decode_ring_kernel<bf16, f8>)
                     : (ints ? attention_decode_ring_kernel<f16, int8_t> : attention_decode_ring_kernel<f16, f8>),
                  dim3((unsigned)n_blocks), dim3(RING_WARPS * 32), RING_SMEM, p);
}
