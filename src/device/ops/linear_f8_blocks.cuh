/* SPDX-License-Identifier: Apache-2.0
 * linear_f8_blocks.cuh - products of experts' F8 weights in blocks of 128 x 128 with F8 activations in groups of 1 x 128 on Hopper: the kernel.
 *
 * Shapes    x [pairs, K] E4M3 in the order of the operand (f8_blocks_quantize_kernel), a scale for each pair and 128 columns; W parts
 *           [rows, K] E4M3, a scale for each block; y [pairs, all rows] bf16. K a multiple of 128, rows of 8, pointers aligned to 16 bytes.
 *           The matrices of the experts, of whole blocks, are stacked, and the rows of x sorted by expert, each expert's in tiles of their own.
 * Work      A tile is 128 rows of x and 256 of W. A block is two warpgroups of 64 rows of x each and a thread that brings stages of 128
 *           columns. x is the left operand of wgmma and comes from registers, so that shared memory gives W alone. Each 128 columns are
 *           summed from zero, 64 rows of W at a time, and added to float32 registers times both scales; while one sum is added the next
 *           is made. Blocks walk over tiles, those of the same W after each other.
 * Bound     memory, W once; with many rows of x the tensor cores: 128 x 256 x 128 are 1,024 cycles of them. Adding takes a quarter of the issue
 *           slots meanwhile, and shared memory moves 125 bytes a cycle of its 128: what comes (48 KB), x once (16 KB), W for each warpgroup
 *           (64 KB). With x read by wgmma, 64 rows at a time, it would be 172; with tiles of 128 x 128 it is 160.
 * Measured  NVIDIA H200, 2026-11-29: docs/performance/gpu-kernels.md.
 * Tried     One matrix and 2,048 tokens, in clusters of two that bring W to each other, with x of two steps in registers: 825 to 840 us a layer of
 *           Llama-3.1-8B where the library takes 845, at 512 tokens 241 and 222, so the library has these. Without adding 700, int8 in sums of
 *           256 columns 575. Sums of 128 rows of W, one at a time, the other warpgroup's products meanwhile: 844 to 847; the same in tiles of
 *           128 rows of W: 938. Results stored by a warpgroup instead of a warp, warpgroups in turns or not: no difference.
 */
#ifndef NRD_OPS_LINEAR_F8_BLOCKS_CUH
#define NRD_OPS_LINEAR_F8_BLOCKS_CUH

#include "device/ops/hopper.cuh"
#include "device/ops/moe_tiles.cuh"

struct f8_blocks_params {
    CUtensorMap w[NRD_LINEAR_MAX_PARTS], y[NRD_LINEAR_MAX_PARTS];
    const float *w_scale[NRD_LINEAR_MAX_PARTS]; /* [rows / 128 rounded up][scale_pitch] */
    const uint8_t *x;
    const float *x_scale;                   /* [tiles of 128 tokens][k_steps][128] */
    int32_t tile_end[NRD_LINEAR_MAX_PARTS]; /* tiles of rows, up to and with this part */
    int32_t rows[NRD_LINEAR_MAX_PARTS];
    int32_t n_parts, k_steps, scale_pitch; /* k_steps: of 128 columns */
    const int32_t *first; /* where the rows of x of each expert begin, [n_experts + 1]; their matrices are stacked */
    int32_t n_experts, from_tile, n_tiles; /* tiles of tokens from from_tile on, up to n_tiles of them: those that lie at x */
    bf16 *y_rows[NRD_LINEAR_MAX_PARTS];
    int64_t y_stride;
    int32_t add; /* 0: sums begin from nothing, see wgmma_rs_f8_if */
};

struct f8_blocks_tile {
    int part, row, w_row; /* row of y in the part, and of W */
    int tokens, from, to; /* number of the tile of tokens at x; rows of y */
};

enum { F8_BLOCKS_TOKENS = 128, F8_BLOCKS_X = F8_BLOCKS_TOKENS * 128 /* bytes of x of a tile and a step */ };

struct f8_blocks {
    static constexpr int TOKENS = F8_BLOCKS_TOKENS, ROWS = 256, CHUNKS = ROWS / 64;
    static constexpr int CONSUMERS = 256, THREADS = CONSUMERS + 128;
    static constexpr int AT_X = ROWS * 128, STAGE = AT_X + F8_BLOCKS_X, STAGES = 196608 / STAGE;
    static constexpr int LINE = 64, CHUNK_BYTES = 16 * LINE, CHUNKS_BEFORE = 2; /* a warp's 16 tokens x 32 rows on their way to memory */
    static constexpr int SCALES = TOKENS * 4, AT_SCALES = 256, AT_TABLE = AT_SCALES + STAGES * SCALES;
    static constexpr int AT_STORE = (AT_TABLE + NRD_MOE_MAX_EXPERTS * 4 + 1023) / 1024 * 1024;
    static constexpr int FRONT = AT_STORE + 8 * (CHUNKS_BEFORE + 1) * CHUNK_BYTES;
    static constexpr size_t SMEM = (size_t)1024 + FRONT + STAGES * STAGE;
};

struct f8_blocks_block : stage_ring<f8_blocks::STAGES, f8_blocks::STAGE, f8_blocks::FRONT> {
    const f8_blocks_params &a;
    int32_t *const table; /* of each expert: tiles of tokens up to and with it */
    int at; /* this block's next tile */

    __device__ __forceinline__ f8_blocks_block(const f8_blocks_params &params, char *raw)
        : stage_ring(raw), a(params), table((int32_t *)(front + f8_blocks::AT_TABLE)), at((int)blockIdx.x)
    {
    }

    /* All threads. */
    __device__ __forceinline__ void begin() const
    {
        if (threadIdx.x == 0) {
            init(8); /* consuming warps */
        }
        cluster_meet();
        pdl_wait();
        pdl_go();
        if (threadIdx.x < 32) {
            count_pair_tiles(a.first, a.n_experts, f8_blocks::TOKENS, table);
        }
        __syncthreads();
    }

    __device__ __forceinline__ int tiles_before(int expert) const
    {
        return expert > 0 ? table[expert - 1] : 0;
    }

    /* Of those that lie at x. */
    __device__ __forceinline__ int tiles_here_before(int expert) const
    {
        return min(max(tiles_before(expert) - a.from_tile, 0), a.n_tiles);
    }

    /* Sets t->tokens, from and to, and w_row to the first of the expert's: as if there were one part. Returns the tile of rows, -1: there is none. */
    __device__ __forceinline__ int tile_of_next(f8_blocks_tile *t, int columns) const
    {
        int lo = 0, hi = a.n_experts - 1;

        if (at >= tiles_here_before(a.n_experts) * columns) {
            return -1;
        }
        while (lo < hi) {
            const int mid = (lo + hi) / 2;
            if (at < tiles_here_before(mid + 1) * columns) {
                hi = mid;
            } else {
                lo = mid + 1;
            }
        }
        const int before = tiles_here_before(lo), n = tiles_here_before(lo + 1) - before, i = at - before * columns;
        t->tokens = before + i % n;
        t->from = a.first[lo] + (a.from_tile + t->tokens - tiles_before(lo)) * f8_blocks::TOKENS;
        t->to = min(a.first[lo + 1], t->from + f8_blocks::TOKENS);
        t->w_row = lo;
        return i / n;
    }

    /* The next tile; false: there is none. Tokens behind the last are multiplied and not stored. */
    __device__ __forceinline__ bool next(f8_blocks_tile *t)
    {
        const int tile = tile_of_next(t, a.tile_end[a.n_parts - 1]);

        if (tile < 0) {
            return false;
        }
        t->part = 0;
        while (t->part + 1 < a.n_parts && tile >= a.tile_end[t->part]) {
            t->part++;
        }
        t->row = (t->part ? tile - a.tile_end[t->part - 1] : tile) * f8_blocks::ROWS;
        t->w_row = t->w_row * a.rows[t->part] + t->row;
        at += (int)gridDim.x;
        return true;
    }

    __device__ __forceinline__ float *scales_of(int stage) const
    {
        return (float *)(front + f8_blocks::AT_SCALES + stage * f8_blocks::SCALES);
    }
};

/* The thread that brings. */
static __device__ __forceinline__ void f8_blocks_bring(f8_blocks_block b)
{
    const f8_blocks_params &a = b.a;
    f8_blocks_tile t;

    while (b.next(&t)) {
        for (int k = 0; k < a.k_steps; k++) {
            const uint32_t to = b.base + b.slot * f8_blocks::STAGE, bar = b.full + b.slot * 8;
            const int64_t step = (int64_t)t.tokens * a.k_steps + k;
            mbar_wait(b.empty + b.slot * 8, b.parity ^ 1);
            mbar_expect(bar, f8_blocks::STAGE + f8_blocks::SCALES);
            tma_2d(to, &a.w[t.part], k * 128, t.w_row, bar, L2_EVICT_NORMAL);
            bulk_copy_hint(to + f8_blocks::AT_X, a.x + step * F8_BLOCKS_X, F8_BLOCKS_X, bar, L2_EVICT_LAST);
            bulk_copy_hint(smem_u32(b.scales_of(b.slot)), a.x_scale + step * f8_blocks::TOKENS, f8_blocks::SCALES, bar, L2_EVICT_LAST);
            b.advance();
        }
    }
}

/* A thread of the two warpgroups that multiply. */
struct f8_blocks_consumer {
    f8_blocks_block b;
    const f8_blocks_params &a;
    const int wg = threadIdx.x / 128, tid = threadIdx.x % 128, warp = tid / 32, lane = threadIdx.x % 32;
    char *const store = b.front + f8_blocks::AT_STORE + (wg * 4 + warp) * (f8_blocks::CHUNKS_BEFORE + 1) * f8_blocks::CHUNK_BYTES;
    f8_blocks_tile t;
    float acc[f8_blocks::ROWS / 2], sum0[32], sum1[32], scale[f8_blocks::ROWS / 128][2];
    const float *w_scale;
    int pitch;
    bool is_ahead; /* the other warpgroup waits for this one */

    __device__ __forceinline__ explicit f8_blocks_consumer(const f8_blocks_block &of) : b(of), a(b.a) {}

    __device__ __forceinline__ void load_x(uint32_t *to) const
    {
        const char *from = b.front + f8_blocks::FRONT + b.slot * f8_blocks::STAGE + f8_blocks::AT_X + (wg * 4 + warp) * 2048 + lane * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 v = *(const uint4 *)(from + i * 512);
            to[i * 4] = v.x, to[i * 4 + 1] = v.y, to[i * 4 + 2] = v.z, to[i * 4 + 3] = v.w;
        }
    }

    /* The sum of 64 rows of W is under way. */
    __device__ __forceinline__ void begin_sum(float *sum, const uint32_t *x, uint64_t w) const
    {
        wg_fence();
        wgmma_rs_f8_if(sum, x, w, a.add);
#pragma unroll
        for (int i = 1; i < 4; i++) {
            wgmma_rs_f8<64>(sum, x + i * 4, w + i * 2);
        }
        wg_commit();
    }

    template <int C> __device__ __forceinline__ void add_sum(float *sum, const float *scale)
    {
        wg_hold<32>(sum);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            acc[C * 32 + i] = fmaf(sum[i], scale[i / 2 % 2], acc[C * 32 + i]);
        }
        wg_hold<32>(acc + C * 32);
    }

    /* The warpgroups take the tensor cores by turns: one begins a tile half a step later, so that they do not come to the ends of their steps
     * at once. */
    __device__ __forceinline__ void let_other_go()
    {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p bar.arrive 1, 256;\n}" ::"r"((int)is_ahead) : "memory");
        is_ahead = false;
    }

    /* Each sum but the first of a step is begun, and then the one before it added; the last one is left under way. */
    template <int C> __device__ __forceinline__ void sums(const uint32_t *x, uint64_t w)
    {
        float *const sum = C % 2 ? sum1 : sum0, *const before = C % 2 ? sum0 : sum1;

        begin_sum(sum, x, w + C * 512);
        if constexpr (C == 1) {
            let_other_go();
        }
        wg_wait<1>();
        add_sum<C - 1>(before, scale[(C - 1) / 2]);
        if constexpr (C + 1 < f8_blocks::CHUNKS) {
            sums<C + 1>(x, w);
        }
    }

    /* The next stage is there; its x in registers, and its scales. */
    __device__ __forceinline__ void take(uint32_t *x)
    {
        const float *const from = b.scales_of(b.slot) + wg * 64 + warp * 16 + lane / 4;

        mbar_wait(b.full + b.slot * 8, b.parity);
        load_x(x);
#pragma unroll
        for (int i = 0; i < f8_blocks::ROWS / 128; i++) {
            const float of_w = __ldg(w_scale + i * pitch);
            scale[i][0] = of_w * from[0];
            scale[i][1] = of_w * from[8];
        }
        w_scale++;
    }

    __device__ __forceinline__ void step()
    {
        uint32_t x[16];
        const uint64_t w = desc_sw128(b.base + b.slot * f8_blocks::STAGE);

        take(x);
        begin_sum(sum0, x, w);
        sums<1>(x, w);
        wg_wait<0>();
        b.release<1>(b.slot, lane);
        add_sum<f8_blocks::CHUNKS - 1>(sum1, scale[f8_blocks::ROWS / 128 - 1]);
        b.advance();
    }

    __device__ __forceinline__ void multiply()
    {
        w_scale = a.w_scale[t.part] + t.w_row / 128 * a.scale_pitch;
        pitch = t.row + 128 < a.rows[t.part] ? a.scale_pitch : 0; /* rows behind the last have no block */
        is_ahead = wg == 0;
#pragma unroll
        for (int i = 0; i < f8_blocks::ROWS / 2; i++) {
            acc[i] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 32; i++) {
            sum0[i] = sum1[i] = 0.0f; /* nobody looks at it */
        }
        if (wg == 1) {
            asm volatile("bar.sync 1, 256;" ::: "memory");
        }
#pragma unroll 1
        for (int k = a.k_steps; k > 0; k--) { /* two at a time would take more registers than there are */
            step();
        }
    }

    /* 16 of a chunk's rows, from sums AT on, to pieces `piece` and `piece` + 1 of their lines, in the order of the swizzle of 64 bytes. */
    template <int AT> __device__ __forceinline__ void put(char *chunk, int piece) const
    {
        const int line = lane % 16, to = (piece + lane / 16) ^ (line / 2 % 4);
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            r[i] = pack_f16(true, acc[AT + i * 2], acc[AT + i * 2 + 1]);
        }
        stmatrix4(smem_u32(chunk) + (uint32_t)(line * f8_blocks::LINE + to * 16), r);
    }

    /* A chunk whose last tokens are another expert's. */
    __device__ __forceinline__ void store_lines(const char *chunk, int token, int row) const
    {
        const int piece = lane % 4;

        for (int i = lane / 4; i < 16; i += 8) {
            if (token + i < t.to && row + piece * 8 < a.rows[t.part]) {
                *(uint4 *)(a.y_rows[t.part] + (token + i) * a.y_stride + row + piece * 8) =
                    *(const uint4 *)(chunk + i * f8_blocks::LINE + (piece ^ (i / 2 % 4)) * 16);
            }
        }
    }

    /* The tile's rows of W from ROW on. */
    template <int ROW> __device__ __forceinline__ void store_from() const
    {
        char *const chunk = store + ROW / 32 % (f8_blocks::CHUNKS_BEFORE + 1) * f8_blocks::CHUNK_BYTES;

        if (lane == 0) {
            bulk_read_wait<f8_blocks::CHUNKS_BEFORE>(); /* what was in this chunk is on its way */
        }
        __syncwarp();
        put<ROW / 2>(chunk, 0);
        put<ROW / 2 + 8>(chunk, 2);
        fence_async_proxy();
        __syncwarp();
        const int token = t.from + wg * 64 + warp * 16;
        if (token + 16 > t.to) {
            store_lines(chunk, token, t.row + ROW);
            __syncwarp();
        } else if (lane == 0) {
            tma_store_2d(&a.y[t.part], t.row + ROW, token, smem_u32(chunk));
        }
        bulk_end_group();
        if constexpr (ROW + 32 < f8_blocks::ROWS) {
            store_from<ROW + 32>();
        }
    }

    __device__ __forceinline__ void run()
    {
        while (b.next(&t)) {
            multiply();
            store_from<0>();
        }
        bulk_read_wait<0>();
    }
};

static __global__ void __launch_bounds__(f8_blocks::THREADS, 1) f8_blocks_kernel(const __grid_constant__ f8_blocks_params a)
{
#ifdef NRD_SM90A
    extern __shared__ char raw[];
    const f8_blocks_block b(a, raw);

    b.begin();
    if (threadIdx.x >= f8_blocks::CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == f8_blocks::CONSUMERS) {
            f8_blocks_bring(b);
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        f8_blocks_consumer(b).run();
    }
    cluster_meet(); /* what releases a stage arrives before the block ends */
#else
    (void)a;
#endif
}

#endif
