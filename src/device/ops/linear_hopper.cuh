/* SPDX-License-Identifier: Apache-2.0
 * linear_hopper.cuh - products of many rows of x on Hopper, gated ones with their activation, and those of experts: the kernel.
 *
 * Shapes    x [tokens, K] F8, bf16 or fp16, rows of 16 bytes; W [rows, K], or gated G and U [rows, K] each, of the same type, rows a multiple
 *           of 8, scales of rows and of tokens with F8; y [tokens, rows] bf16 or fp16: x W^T, or act(x G^T) * (x U^T). Experts: their matrices
 *           are stacked and the rows of x sorted by expert.
 * Work      A tile is 128 rows of W, or 64 of G and the same of U, and up to 256 tokens. One map sees G and U as eight rows of the one and
 *           eight of the other by turns, so that the two rows of a thread in wgmma are a gate and what it gates: the activation needs
 *           nobody else. W is the left operand. A block is two warpgroups of 64 rows each and a thread that brings stages of 128 bytes of
 *           K. Blocks walk over tiles; the two of a cluster have the same tokens and neighbouring rows, and each brings half of the
 *           tokens to both. Tiles of the same rows follow each other, in groups of tokens that fit the L2. Results go to shared memory
 *           in chunks, and from there by bulk stores while the next chunk is made.
 * Bound     the tensor cores and, over many tiles, power.
 * Measured  NVIDIA H200, 2026-11-29: docs/performance/gpu-kernels.md.
 * Tried     An expert's last tile behind the whole ones of all experts, so that clusters end together: its W comes from memory again, 5 % slower
 *           or the same. W asked for in the L2 six or twelve steps ahead: 2 to 5 % slower. A choice of activation at run time: the end
 *           of a tile took 15 us instead of 4; stores by the threads themselves instead of bulk stores: 4 to 7 % slower.
 */
#ifndef NRD_OPS_LINEAR_HOPPER_CUH
#define NRD_OPS_LINEAR_HOPPER_CUH

#include "device/ops/hopper.cuh"
#include "device/ops/moe_tiles.cuh"

struct wide_params {
    CUtensorMap w, x, y;
    const float *w_scale[2], *x_scale; /* F8: of each of a thread's two rows, and of x */
    const int32_t *first;              /* experts: where the rows of x of each begin, [n_experts + 1]; or NULL */
    const int32_t *scale_of;           /* the scale of each row of x, or NULL: its own */
    int32_t rows, n_tokens, n_experts; /* rows of y; n_experts 1 without `first` */
    int32_t k_steps, group;            /* of 128 bytes; tiles of tokens that are taken together */
    bool y_bf16;
    bool up_first;                     /* U lies before G, and the first of a thread's two rows is of U */
    void *y_rows;
    int64_t y_stride;
};

/* ACT: NRD_ACT_NONE: not gated. */
template <int KIND_, int ACT_> struct wide_shape {
    static constexpr int KIND = KIND_, ACT = ACT_, CLUSTER = 2, TOKENS = 256, ROWS = 128;
    static constexpr bool GATED = ACT != NRD_ACT_NONE, SCALED = KIND == NRD_DTYPE_F8_E4M3;
    static constexpr int Y_ROWS = GATED ? ROWS / 2 : ROWS, WG_ROWS = Y_ROWS / 2; /* of a tile, of a warpgroup */
    static constexpr int K_STEP = SCALED ? 128 : 64;
    static constexpr int CONSUMERS = 256, THREADS = CONSUMERS + 128;
    static constexpr int QUARTER = TOKENS / 4; /* of a tile's tokens: those that there are not are left out in quarters */
    static constexpr int STAGE = (TOKENS + ROWS) * 128, STAGES = 196608 / STAGE;
    /* In a stage: x, and W behind it. Where x is one quarter there is room for two steps of K: x of both, W of the second, W of the first */
    static constexpr int AT_W = TOKENS * 128, AT_SECOND = 2 * QUARTER * 128;
    static constexpr int LINE = WG_ROWS * 2, CHUNK_BYTES = 4096, CHUNK = CHUNK_BYTES / LINE; /* a warpgroup's rows of so many tokens */
    static constexpr int AT_TABLE = 256, AT_SCALES = AT_TABLE + NRD_MOE_MAX_EXPERTS * 4, AT_STORE = AT_SCALES + 2 * TOKENS * 4 + 768;
    static constexpr int FRONT = AT_STORE + 4 * CHUNK_BYTES;
    static constexpr size_t SMEM = (size_t)1024 + FRONT + STAGES * STAGE;

    static_assert(AT_STORE % 1024 == 0, "chunks lie as their swizzle wants");
};

struct wide_tile {
    int expert, row, from, to; /* row of y within the expert; tokens */
    int quarters;              /* of a tile's tokens */
};

template <typename S> struct wide_block : stage_ring<S::STAGES, S::STAGE, S::FRONT> {
    const wide_params &a;
    int32_t *const table; /* of each expert: tiles of tokens up to and with it */
    const int rank;
    int at; /* this cluster's next pair of tiles */

    __device__ __forceinline__ wide_block(const wide_params &params, char *raw)
        : stage_ring<S::STAGES, S::STAGE, S::FRONT>(raw), a(params), table((int32_t *)(this->front + S::AT_TABLE)), rank((int)cluster_rank()),
          at((int)blockIdx.x / S::CLUSTER)
    {
    }

    /* All threads. */
    __device__ __forceinline__ void begin() const
    {
        if (threadIdx.x == 0) {
            this->init(S::CLUSTER * 8); /* consuming warps of all blocks that the stage's tokens go to */
        }
        pdl_wait();
        pdl_go();
        if (a.first && threadIdx.x < 32) {
            count_pair_tiles(a.first, a.n_experts, S::TOKENS, table);
        }
        __syncthreads();
        cluster_meet();
    }

    /* Whose tile number i is, of `columns` pairs of tiles of rows for each that the table counts. */
    __device__ __forceinline__ int expert_of(int i, int columns) const
    {
        int lo = 0, hi = a.n_experts - 1;
        while (lo < hi) {
            const int mid = (lo + hi) / 2;
            if (i < table[mid] * columns) {
                hi = mid;
            } else {
                lo = mid + 1;
            }
        }
        return lo;
    }

    /* The next tile; false: there is none. Rows behind the last are multiplied and not stored. */
    __device__ __forceinline__ bool next(wide_tile *t)
    {
        const int pair = S::Y_ROWS * S::CLUSTER, columns = (a.rows + pair - 1) / pair;
        int tiles = a.first ? table[a.n_experts - 1] : (a.n_tokens + S::TOKENS - 1) / S::TOKENS, first = 0, i = at;

        if (i >= tiles * columns) {
            return false;
        }
        t->expert = 0;
        t->to = a.n_tokens;
        if (a.first) {
            const int e = expert_of(i, columns), before = e > 0 ? table[e - 1] : 0;
            i -= before * columns;
            tiles = table[e] - before;
            first = a.first[e];
            t->expert = e;
            t->to = a.first[e + 1];
        }
        const int group = i / (a.group * columns) * a.group, here = i - group * columns, n = min(a.group, tiles - group);
        /* turned from column to column: an expert's last tile, which is smaller, is no cluster's alone */
        t->from = first + (group + (here % n + here / n) % n) * S::TOKENS;
        t->to = min(t->to, t->from + S::TOKENS);
        t->quarters = (t->to - t->from + S::QUARTER - 1) / S::QUARTER;
        t->row = (here / n * S::CLUSTER + rank) * S::Y_ROWS;
        at += (int)gridDim.x / S::CLUSTER;
        return true;
    }
};

/* The thread that brings. */
template <typename S> struct wide_bringer {
    static constexpr int BYTES = S::QUARTER * 128;

    wide_block<S> b;
    const wide_params &a;
    wide_tile t;

    __device__ __forceinline__ explicit wide_bringer(const wide_block<S> &of) : b(of), a(b.a) {}

    /* To all of the cluster. */
    __device__ __forceinline__ void bring_x(uint32_t to, int k, int quarter, uint32_t bar) const
    {
        tma_2d_all(to, &a.x, k * S::K_STEP, t.from + quarter * S::QUARTER, bar, (1 << S::CLUSTER) - 1, L2_EVICT_LAST);
    }

    __device__ __forceinline__ void bring_w(uint32_t to, int k, uint32_t bar) const
    {
        const int row = t.expert * a.rows + t.row;
        if constexpr (S::GATED) {
            tma_4d(to, &a.w, k * S::K_STEP, 0, 0, row / 8, bar, L2_EVICT_NORMAL);
        } else {
            tma_2d(to, &a.w, k * S::K_STEP, row, bar, L2_EVICT_NORMAL);
        }
    }

    __device__ __forceinline__ void step(int k, uint32_t to, uint32_t bar) const
    {
        mbar_expect(bar, S::ROWS * 128 + t.quarters * BYTES);
        for (int i = b.rank; i < t.quarters; i += S::CLUSTER) {
            bring_x(to + i * BYTES, k, i, bar);
        }
        bring_w(to + S::AT_W, k, bar);
    }

    /* What lies behind the last column comes as zeros. */
    __device__ __forceinline__ void two_steps(int k, uint32_t to, uint32_t bar) const
    {
        mbar_expect(bar, 2 * (S::ROWS * 128 + BYTES));
        bring_x(to + b.rank * BYTES, k + b.rank, 0, bar);
        bring_w(to + S::AT_W, k, bar);
        bring_w(to + S::AT_SECOND, k + 1, bar);
    }

    __device__ __forceinline__ void run()
    {
        while (b.next(&t)) {
            const int each = t.quarters == 1 ? 2 : 1;
            for (int k = 0; k < a.k_steps; k += each) {
                const uint32_t to = b.base + b.slot * S::STAGE, bar = b.full + b.slot * 8;
                mbar_wait(b.empty + b.slot * 8, b.parity ^ 1);
                if (each == 1) {
                    step(k, to, bar);
                } else {
                    two_steps(k, to, bar);
                }
                b.advance();
            }
        }
    }
};

/* A thread of the two warpgroups that multiply. */
template <typename S> struct wide_consumer {
    wide_block<S> b;
    const wide_params &a;
    const int wg = threadIdx.x / 128, tid = threadIdx.x % 128, warp = tid / 32, lane = threadIdx.x % 32;
    float *const x_scale = (float *)(b.front + S::AT_SCALES) + wg * S::TOKENS;
    char *const store = b.front + S::AT_STORE + wg * 2 * S::CHUNK_BYTES;
    wide_tile t;
    float acc[S::TOKENS / 2], w_scale[2], own_scale[2];

    __device__ __forceinline__ explicit wide_consumer(const wide_block<S> &of) : b(of), a(b.a) {}

    template <int V> __device__ __forceinline__ void multiply_step(uint32_t at_x, uint32_t at_w)
    {
        const uint64_t x = desc_sw128(at_x), w = desc_sw128(at_w + wg * 64 * 128);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            wgmma_ss<S::KIND, V>(acc, w + i * 2, x + i * 2);
        }
    }

    /* V: tokens of the tile. */
    template <int V> __device__ __forceinline__ void multiply()
    {
        constexpr int EACH = V == S::QUARTER ? 2 : 1;

#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            acc[i] = 0.0f;
        }
        for (int k = 0; k < a.k_steps; k += EACH) {
            const int before = b.before();
            mbar_wait(b.full + b.slot * 8, b.parity);
            const uint32_t at = b.base + b.slot * S::STAGE;
            wg_hold<V / 2>(acc);
            wg_fence();
            multiply_step<V>(at, at + S::AT_W);
            if constexpr (EACH == 2) {
                multiply_step<V>(at + S::QUARTER * 128, at + S::AT_SECOND);
            }
            wg_commit();
            wg_hold<V / 2>(acc);
            wg_wait<1>(); /* one group may run on; the stage of the one before is free */
            if (k > 0) {
                b.template release<S::CLUSTER>(before, lane);
            }
            b.advance();
        }
        wg_wait<0>();
        wg_hold<V / 2>(acc);
        b.template release<S::CLUSTER>(b.before(), lane);
    }

    /* Of this thread's two rows and of two of the tile's tokens; keep_scales() gives those to the warpgroup, behind the product, so that
     * nobody waits for memory. */
    __device__ __forceinline__ void load_scales()
    {
        const int row = t.row + wg * S::WG_ROWS + (S::GATED ? warp * 8 : warp * 16) + lane / 4;
        const int64_t at = (int64_t)t.expert * a.rows;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int token = min(t.from + tid + i * 128, t.to - 1);
            w_scale[i] = __ldg(a.w_scale[i] + at + min(S::GATED ? row : row + i * 8, a.rows - 1));
            own_scale[i] = __ldg(a.x_scale + (a.scale_of ? __ldg(a.scale_of + token) : token));
        }
    }

    __device__ __forceinline__ void keep_scales() const
    {
        x_scale[tid] = own_scale[0];
        x_scale[tid + 128] = own_scale[1];
    }

    /* Sums AT and AT + 1 of the row `half` of the two, scaled. */
    template <int AT> __device__ __forceinline__ float2 sums(int half) const
    {
        float2 v = {acc[AT + half * 2], acc[AT + half * 2 + 1]};
        if constexpr (S::SCALED) {
            const float2 s = *(const float2 *)(x_scale + AT * 2 + 2 * (lane % 4));
            v.x *= w_scale[half] * s.x;
            v.y *= w_scale[half] * s.y;
        }
        return v;
    }

    /* The tokens of eight sums from AT on, sixteen, or 32 of sixteen sums gated, by token to shared memory from line `to` on, in the order of
     * the swizzle of 64 or 128 bytes. */
    template <int AT> __device__ __forceinline__ void put(char *chunk, int to) const
    {
        uint32_t r[4];
        int line, piece;

        if constexpr (S::GATED) {
            r[0] = gated<AT>(), r[1] = gated<AT + 4>(), r[2] = gated<AT + 8>(), r[3] = gated<AT + 12>();
            line = to + lane;
            piece = warp ^ (lane / 2 % 4);
        } else {
            r[0] = plain<AT>(0), r[1] = plain<AT>(1), r[2] = plain<AT + 4>(0), r[3] = plain<AT + 4>(1);
            line = to + lane / 16 * 8 + lane % 8;
            piece = (warp * 2 + lane / 8 % 2) ^ (lane % 8);
        }
        stmatrix4_t(smem_u32(chunk) + (uint32_t)(line * S::LINE + piece * 16), r);
    }

    template <int AT> __device__ __forceinline__ uint32_t gated() const
    {
        const float2 v = sums<AT>(0), w = sums<AT>(1);
        const float2 g = {a.up_first ? w.x : v.x, a.up_first ? w.y : v.y}, u = {a.up_first ? v.x : w.x, a.up_first ? v.y : w.y};
        return pack_f16(a.y_bf16, act_apply(S::ACT, g.x) * u.x, act_apply(S::ACT, g.y) * u.y);
    }

    template <int AT> __device__ __forceinline__ uint32_t plain(int half) const
    {
        const float2 v = sums<AT>(half);
        return pack_f16(a.y_bf16, v.x, v.y);
    }

    __device__ __forceinline__ void meet() const
    {
        if (wg == 0) {
            asm volatile("bar.sync 1, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 2, 128;" ::: "memory");
        }
    }

    /* A chunk whose last tokens are another expert's. */
    __device__ __forceinline__ void store_lines(const char *chunk, int token, int row) const
    {
        constexpr int PIECES = S::LINE / 16, TURN = 128 / S::LINE; /* lines that the swizzle turns alike */
        const int piece = tid % PIECES;

        for (int i = tid / PIECES; i < S::CHUNK; i += 128 / PIECES) {
            if (token + i < t.to && row + piece * 8 < a.rows) {
                *(uint4 *)((uint16_t *)a.y_rows + (token + i) * a.y_stride + row + piece * 8) =
                    *(const uint4 *)(chunk + i * S::LINE + (piece ^ (i / TURN % PIECES)) * 16);
            }
        }
    }

    /* The tile's tokens from TOKEN on, V in all. */
    template <int TOKEN, int V> __device__ __forceinline__ void store_from() const
    {
        char *const chunk = store + TOKEN / S::CHUNK % 2 * S::CHUNK_BYTES;
        const int token = t.from + TOKEN, row = t.row + wg * S::WG_ROWS;

        if (tid == 0) {
            bulk_read_wait<1>(); /* what was in this chunk is on its way */
        }
        meet();
        put<TOKEN / 2>(chunk, 0);
        put<TOKEN / 2 + S::CHUNK / 4>(chunk, S::CHUNK / 2);
        fence_async_proxy();
        meet();
        if (token + S::CHUNK > t.to) {
            store_lines(chunk, token, row);
        } else if (tid == 0 && row < a.rows) {
            tma_store_2d(&a.y, row, token, smem_u32(chunk));
        }
        bulk_end_group();
        if constexpr (TOKEN + S::CHUNK < V) {
            store_from<TOKEN + S::CHUNK, V>();
        }
    }

    template <int V> __device__ __forceinline__ void tile()
    {
        if constexpr (S::SCALED) {
            load_scales();
        }
        multiply<V>();
        if constexpr (S::SCALED) {
            keep_scales(); /* the barrier before the first chunk makes them everybody's */
        }
        store_from<0, V>();
    }

    __device__ __forceinline__ void run()
    {
        while (b.next(&t)) {
            switch (t.quarters) {
            case 1:
                tile<S::QUARTER>();
                break;
            case 2:
                tile<S::QUARTER * 2>();
                break;
            case 3:
                tile<S::QUARTER * 3>();
                break;
            default:
                tile<S::TOKENS>();
            }
        }
        bulk_read_wait<0>();
    }
};

template <typename S> static __global__ void __launch_bounds__(S::THREADS, 1) wide_kernel(const __grid_constant__ wide_params a)
{
#ifdef NRD_SM90A
    extern __shared__ char raw[];
    const wide_block<S> b(a, raw);

    b.begin();
    if (threadIdx.x >= S::CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == S::CONSUMERS) {
            wide_bringer<S>(b).run();
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        wide_consumer<S>(b).run();
    }
    cluster_meet(); /* the other block may still arrive here */
#else
    (void)a;
#endif
}

#endif
