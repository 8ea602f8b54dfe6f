/* SPDX-License-Identifier: Apache-2.0
 * linear_wq_kernel.cuh - the kernel of linear_wq.cu: its parameters, roles of its warps, and results.
 *
 * A block has two warps that copy (fill_w, fill_x), and warpgroups that multiply (wq_consumer); barriers of
 * full and empty stages lie between them. Blocks of a cluster share K and add up at the end (add_up). */
#ifndef NRD_OPS_LINEAR_WQ_KERNEL_CUH
#define NRD_OPS_LINEAR_WQ_KERNEL_CUH

#include "device/ops/linear_rows.cuh"
#include "device/ops/linear_wq_few.cuh"

enum { MAX_PARTS = NRD_LINEAR_MAX_PARTS, MAX_SPLITS = 8, MAX_W_STAGES = 12, MAX_X_STAGES = 12 };
enum { SUM_TABLES = 4 }; /* at most 3 in use: being read, complete, being written */
enum { ITEM_BYTES = 512 }; /* sums of 16 rows and 8 tokens, as a warp's lanes have them */

struct wq_params {
    CUtensorMap x, w_map[MAX_PARTS]; /* x_blocks: x by blocks of 64 columns; W as map_inner() tells */
    const char *w[MAX_PARTS];
    const float *row_scale[MAX_PARTS];
    int tile_end[MAX_PARTS]; /* row tiles of the parts up to and including this one */
    int rows[MAX_PARTS], y_off[MAX_PARTS];
    const float *bias[MAX_PARTS]; /* of the caller's parts, by column of y */
    int bias_end[MAX_PARTS];
    void *y;
    int64_t ldy;
    int n_tokens, k_chunks, y_dtype;
    int tile_groups, token_tiles, n_units; /* units: row tiles x tiles of tokens */
    int splits, w_stages, x_stages;
    int tables_at; /* in shared memory: behind the rings, and behind what comes there in the end */
    float softcap;
    bool again, wide_y, x_blocks;
    const void *x_data; /* what `x` maps */
    int64_t x_cols;
};

/* A chunk as rows of a tensor of 8-byte elements: how many are a row. 0: 32 bytes a row would be all, so that plain copies are as good. */
static constexpr __host__ __device__ int map_inner(int bits, int meta)
{
    const int all = wq_chunk(bits, meta) / 8;
    for (int inner = 256; inner >= 32; inner -= 2) {
        if (all % inner == 0) {
            return inner;
        }
    }
    return 0;
}

/* One row tile x one tile of tokens. */
struct wq_unit {
    int part, group, n_groups, token; /* first row group in the part, how many; first token */

    __device__ __forceinline__ wq_unit(const wq_params &a, int unit, int n)
    {
        const int tile = unit / a.token_tiles;
        token = unit % a.token_tiles * n;
        part = 0;
        while (tile >= a.tile_end[part]) {
            part++;
        }
        group = (part ? tile - a.tile_end[part - 1] : tile) * a.tile_groups;
        n_groups = min(a.tile_groups, (a.rows[part] + WQ_ROWS - 1) / WQ_ROWS - group);
    }
};

/* ---- results ---- */

static __device__ __forceinline__ float finish(const wq_params &a, const row_consts &of_row, float v)
{
    v = fmaf(v, of_row.scale, of_row.bias);
    return a.softcap > 0.0f ? a.softcap * tanhf(v / a.softcap) : v;
}

/* C finished results of a token, rows row .. of the part. */
template <int C>
static __device__ __forceinline__ void store_row(const wq_params &a, int part, int row, int token,
                                                 const float (&v)[C])
{
    const int64_t at = (int64_t)token * a.ldy + a.y_off[part] + row;

    if (token >= a.n_tokens) {
        return;
    }
    if (a.wide_y && row + C <= a.rows[part]) {
        if (a.y_dtype == NRD_DTYPE_F32) {
#pragma unroll
            for (int i = 0; i < C; i += 4) {
                *(float4 *)((float *)a.y + at + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
            }
            return;
        }
        uint32_t u[C / 2];
#pragma unroll
        for (int i = 0; i < C / 2; i++) {
            if (a.y_dtype == NRD_DTYPE_BF16) {
                u[i] = pack2(v[2 * i], v[2 * i + 1]);
            } else {
                const __half2 h = __floats2half2_rn(v[2 * i], v[2 * i + 1]);
                memcpy(&u[i], &h, 4);
            }
        }
        if constexpr (C == 8) {
            *(uint4 *)((bf16 *)a.y + at) = make_uint4(u[0], u[1], u[2], u[3]);
        } else {
            *(uint2 *)((bf16 *)a.y + at) = make_uint2(u[0], u[1]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < C; i++) {
        if (row + i < a.rows[part]) {
            if (a.y_dtype == NRD_DTYPE_BF16) {
                ((bf16 *)a.y)[at + i] = from_f<bf16>(v[i]);
            } else if (a.y_dtype == NRD_DTYPE_F16) {
                ((f16 *)a.y)[at + i] = from_f<f16>(v[i]);
            } else {
                ((float *)a.y)[at + i] = v[i];
            }
        }
    }
}

/* The accumulator of a warp to y, 16 tokens at a time through `buf`: [16 tokens in two halves][16 rows][8]. */
template <int N>
static __device__ __forceinline__ void store_tile(const wq_params &a, const wq_unit &u, int row, float *buf,
                                                  const float *acc, const row_consts (&consts)[2], int lane)
{
    const int g = lane >> 2, t = lane & 3;

#pragma unroll
    for (int n = 0; n < N; n += 16) {
        if (u.token + n >= a.n_tokens) {
            break;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < (N < 16 ? 2 : 4); i++) { /* row g + 8 * (i % 2), tokens n + 8 * (i / 2) + 2t, + 1 */
            const float *v = acc + n / 2 + i * 2;
            ((float2 *)buf)[(i / 2 * 128 + (g + i % 2 * 8) * 8 + 2 * t) / 2] =
                make_float2(finish(a, consts[i % 2], v[0]), finish(a, consts[i % 2], v[1]));
        }
        __syncwarp();
        const int token = lane >> 4 << 3 | (lane & 7), rows = lane & 8;
        if (N >= 16 || lane < 16) {
            float v[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = buf[(lane >> 4) * 128 + (rows + i) * 8 + (lane & 7)];
            }
            store_row(a, u.part, row + rows, u.token + n + token, v);
        }
    }
}

/* ---- the kernel ---- */

/* Boxes of 64 columns of x in a stage: barriers cost as much for little x as for much. */
static constexpr __host__ __device__ int boxes(int bits, int n, int wg)
{
    return n <= 32 || (bits == 4 && n == 64 && wg == 4) ? 4 : n == 64 ? 2 : 1;
}
static constexpr __host__ __device__ int x_stage_bytes(int bits, int n, int wg)
{
    return boxes(bits, n, wg) * n * 128;
}

/* A tile's chunks, in whole lines, as copies by a map want them. */
static constexpr __host__ __device__ int w_stage_bytes(int bits, int meta, int groups)
{
    return (groups * wq_chunk(bits, meta) + 127) / 128 * 128;
}

/* Threads that copy. Where accumulators want more registers than an even share, a whole warpgroup copies, for only that can give registers
 * away. */
static constexpr __host__ __device__ int copy_threads(int n, int wg)
{
    return n == 128 && wg == 4 ? 128 : 64;
}

/* Blocks of two warpgroups share an SM. */
static constexpr __host__ __device__ int blocks_of(int wg)
{
    return wg == 2 ? 2 : 1;
}

/* What all warps of a block know: sizes, where things lie in shared memory, which share is theirs. */
template <int BITS, int META, int N, int WG> struct wq_block {
    static constexpr int CHUNK = wq_chunk(BITS, META), INNER = map_inner(BITS, META), CODES = WQ_ROWS * WQ_COLS * BITS / 8;
    static constexpr int CONSUMERS = WG * 128, BOXES = boxes(BITS, N, WG), X_STEPS = BOXES * 4;
    static constexpr int X_BYTES = x_stage_bytes(BITS, N, WG);
    static constexpr int TABLE = table_bytes(BITS, META, N), WORDS = entry_words(BITS, META, N);
    static constexpr bool FEW = is_few(BITS, N);
    static constexpr int SUMS = sums_bytes(BITS, N);
    static constexpr bool GIVES = copy_threads(N, WG) == 128; /* registers */
    static_assert(!FEW || WG == 2, "a warp for each of the 8 groups of a chunk");

    const wq_params &a;
    const uint32_t base; /* of the rings; at least 1024 bytes in front of it hold the barriers */
    char *const at_base;
    const uint32_t full_w, empty_w, full_x, empty_x, full_sums, full_parts; /* parts: the cluster's sums for this block */
    const int w_bytes, w_at;
    const int warp, lane;
    const int rank, cluster, n_clusters, k0, k1;

    __device__ __forceinline__ wq_block(const wq_params &params, char *raw)
        : a(params), base((smem_u32(raw) + 2047) & ~1023u), at_base(raw + (base - smem_u32(raw))),
          full_w(base - 512), empty_w(full_w + 8 * MAX_W_STAGES), full_x(empty_w + 8 * MAX_W_STAGES),
          empty_x(full_x + 8 * MAX_X_STAGES), full_sums(empty_x + 8 * MAX_X_STAGES),
          full_parts(full_sums + 8 * SUM_TABLES),
          w_bytes(w_stage_bytes(BITS, META, a.tile_groups)), w_at(a.x_stages * X_BYTES),
          /* the same in all lanes, and the compiler may know */
          warp(__shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0)), lane((int)threadIdx.x & 31),
          rank((int)blockIdx.x % a.splits), cluster((int)blockIdx.x / a.splits),
          n_clusters((int)gridDim.x / a.splits), k0(a.k_chunks * rank / a.splits),
          k1(a.k_chunks * (rank + 1) / a.splits)
    {
    }

    /* The warp that copies W needs nobody's barriers but its own, and goes on at once. */
    __device__ __forceinline__ void init_barriers() const
    {
        constexpr int THREADS = CONSUMERS + copy_threads(N, WG);
        if (warp == CONSUMERS / 32) {
            if (lane == 0) {
                for (int i = 0; i < a.w_stages; i++) {
                    mbar_init(full_w + i * 8, 1);
                    mbar_init(empty_w + i * 8, CONSUMERS / 32);
                }
                mbar_fence_init();
            }
            __syncwarp();
            asm volatile("bar.arrive 0, %0;" ::"n"(THREADS) : "memory");
            return;
        }
        if (threadIdx.x == 0) {
            for (int i = 0; i < a.x_stages; i++) {
                mbar_init(full_x + i * 8, 1);
                mbar_init(empty_x + i * 8, CONSUMERS / 32);
            }
            for (int i = 0; FEW && i < SUM_TABLES; i++) {
                mbar_init(full_sums + i * 8, CONSUMERS / 32);
            }
            mbar_init(full_parts, 1);
            mbar_fence_init();
            *(volatile uint32_t *)(at_base - 16) = 0x47000000u;
        }
        __syncwarp();
        asm volatile("bar.sync 0, %0;" ::"n"(THREADS) : "memory");
    }

    /* One lane: W into its ring. Depends on no kernel. */
    __device__ __forceinline__ void fill_w() const
    {
        const uint64_t policy = a.again ? L2_EVICT_NORMAL : L2_EVICT_FIRST;
        int slot = 0;
        uint32_t parity = 1;
        for (int unit = cluster; unit < a.n_units; unit += n_clusters) {
            const wq_unit u(a, unit, N);
            const char *from = a.w[u.part] + ((int64_t)u.group * a.k_chunks + k0) * CHUNK;
            for (int k = k0; k < k1; k++, from += CHUNK) {
                const uint32_t to = base + w_at + slot * w_bytes, bar = full_w + slot * 8;
                mbar_wait(empty_w + slot * 8, parity);
                if constexpr (INNER > 0) {
                    mbar_expect(bar, (uint32_t)(a.tile_groups * CHUNK)); /* row groups behind the last are zeros */
                    tma_4d(to, &a.w_map[u.part], 0, 0, k, u.group, bar, policy);
                } else {
                    mbar_expect(bar, u.n_groups * CHUNK);
                    for (int i = 0; i < u.n_groups; i++) {
                        bulk_copy_hint(to + i * CHUNK, from + (int64_t)i * a.k_chunks * CHUNK, CHUNK, bar, policy);
                    }
                }
                if (++slot == a.w_stages) {
                    slot = 0;
                    parity ^= 1;
                }
            }
        }
    }

    /* One lane: x into its ring. */
    __device__ __forceinline__ void fill_x() const
    {
        int slot = 0;
        uint32_t parity = 1;
        for (int unit = cluster; unit < a.n_units; unit += n_clusters) {
            const int token = unit % a.token_tiles * N;
            for (int k = k0 * 4; k < k1 * 4; k += BOXES) {
                const uint32_t to = base + slot * X_BYTES, bar = full_x + slot * 8;
                mbar_wait(empty_x + slot * 8, parity);
                mbar_expect(bar, X_BYTES);
                if (a.x_blocks) {
                    tma_4d(to, &a.x, 0, token, k, 0, bar, L2_EVICT_LAST);
                } else {
                    for (int i = 0; i < BOXES; i++) {
                        tma_2d(to + i * (N * 128), &a.x, (k + i) * 64, token, bar, L2_EVICT_LAST);
                    }
                }
                if (++slot == a.x_stages) {
                    slot = 0;
                    parity ^= 1;
                }
            }
        }
    }
};

/* A warp that multiplies: its accumulators, and where it stands in the rings. */
template <int BITS, int META, int N, int WG> struct wq_consumer {
    typedef wq_block<BITS, META, N, WG> block;
    static constexpr int STEPS = 2;        /* products of 16 columns before one waits */
    static constexpr bool AHEAD = N != 64; /* 96 registers are too few there */

    const block &b;
    const wq_params &a;
    const int lane, warp, g;
    char *const table;
    char *const all_sums; /* of x: of the chunk that comes next each warp makes one group's */
    const uint32_t top;
    float acc[N / 2];
    uint32_t op[2][STEPS * 4] = {};
    uint4 q;
    wq_entry<block::WORDS> e[2];
    int w_slot = 0, x_slot = 0, x_before = 0;
    uint32_t w_parity = 0, x_parity = 0, item = 0;
    uint64_t dx = 0;
    row_consts consts[2] = {};

    __device__ __forceinline__ explicit wq_consumer(const block &of)
        : b(of), a(of.a), lane(of.lane), warp(of.warp), g(of.lane >> 2),
          table(of.at_base + a.tables_at + of.warp * block::TABLE),
          all_sums(of.at_base + a.tables_at + (block::CONSUMERS / 32) * block::TABLE),
          /* from where the compiler cannot know it: a PRMT has room for one constant, and the other would
           * come from a uniform register by a move for every byte */
          top(*(volatile uint32_t *)(of.at_base - 16))
    {
    }

    __device__ __forceinline__ void w_done()
    {
        if (lane == 0) {
            mbar_arrive(b.empty_w + w_slot * 8);
        }
        if (++w_slot == a.w_stages) {
            w_slot = 0;
            w_parity ^= 1;
        }
    }

    /* ---- few tokens ---- */

    __device__ __forceinline__ void make_sums(int slot, uint32_t parity, uint32_t at) const
    {
        mbar_wait(b.full_x + slot * 8, parity);
        sum_group<META, N>(b.at_base + slot * block::X_BYTES,
                           (float *)(all_sums + at % SUM_TABLES * block::SUMS), warp, lane);
        __syncwarp();
        if (lane == 0) {
            mbar_arrive(b.full_sums + at % SUM_TABLES * 8);
        }
    }

    /* is_end: no chunk follows, so that no sums are needed. */
    __device__ __forceinline__ void chunk_few(const uint4 *codes, bool is_end)
    {
        const int next = x_slot + 1 == a.x_stages ? 0 : x_slot + 1;
        mbar_wait(b.full_sums + item % SUM_TABLES * 8, item / SUM_TABLES & 1);
        multiply_few<META, N>(acc, codes, table, (const float *)(all_sums + item % SUM_TABLES * block::SUMS),
                              desc_sw128(b.base + x_slot * block::X_BYTES), lane, [&]() {
                                  if (!is_end) {
                                      make_sums(next, next ? x_parity : x_parity ^ 1, item + 1);
                                  }
                              });
        __syncwarp();
        if (lane == 0) {
            mbar_arrive(b.empty_x + x_slot * 8);
        }
        w_done();
        item++;
        x_slot = next;
        x_parity ^= next ? 0 : 1;
    }

    /* ---- any number of tokens ---- */

    /* What is new in a step. */
    __device__ __forceinline__ void load_step(const uint4 *codes, int step)
    {
        if (step % (BITS == 8 ? 2 : 4) == 0) {
            q = codes[step / (BITS == 8 ? 2 : 4) * 32];
        }
        if (META == WQ_K16 || (META != WQ_ROW && step % 2 == 0)) {
            load_entries<block::WORDS>(e, table, META == WQ_K16 ? step : step / 2, g);
        }
    }

    /* The operands of STEPS steps times their columns of x. is_first: no products of this unit before. */
    __device__ __forceinline__ void multiply(int step, bool is_first)
    {
        const int in_stage = step % block::X_STEPS;
        if (in_stage == STEPS - 1) {
            mbar_wait(b.full_x + x_slot * 8, x_parity);
            dx = desc_sw128(b.base + x_slot * block::X_BYTES);
        }
        wg_hold<STEPS * 4>(op[step / STEPS & 1]);
        wg_fence();
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const int at = in_stage - STEPS + 1 + i;
            const uint32_t *o = op[step / STEPS & 1] + i * 4;
            wgmma_rs<true, N>(acc, o[0], o[1], o[2], o[3], dx + (at / 4 * (N * 128) >> 4) + at % 4 * 2);
        }
        wg_commit();
        wg_wait<1>(); /* the products before are done: their registers, and their x, are free */
        wg_hold<STEPS * 4>(op[~(step / STEPS) & 1]);
        if (in_stage == STEPS - 1) {
            if (!is_first && lane == 0) {
                mbar_arrive(b.empty_x + x_before * 8);
            }
            x_before = x_slot;
            if (++x_slot == a.x_stages) {
                x_slot = 0;
                x_parity ^= 1;
            }
        }
    }

    __device__ __forceinline__ void chunk_many(const uint4 *codes, bool is_first)
    {
        q = {};
        e[0] = e[1] = {};
        wg_hold<N / 2>(acc);
        load_step(codes, 0);
#pragma unroll
        for (int step = 0; step < 16; step++) {
            if (!AHEAD && step > 0) {
                load_step(codes, step);
            }
            to_operand<BITS, META, block::WORDS>(op[step / STEPS & 1] + step % STEPS * 4, q, step / 2, step % 2, e,
                                                 top);
            if (AHEAD && step < 15) {
                load_step(codes, step + 1);
            }
            if (step % STEPS == STEPS - 1) {
                multiply(step, is_first && step < STEPS);
            }
        }
        __syncwarp();
        w_done();
    }

    /* ---- a unit ---- */

    /* acc = W x of this block's share of K. */
    __device__ __forceinline__ void multiply_unit(const wq_unit &u, bool is_last)
    {
        /* warps behind the tile's last row group multiply that one again: never stored */
        const int mine = min(warp, u.n_groups - 1);
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            acc[i] = 0.0f;
        }
        for (int k = b.k0; k < b.k1; k++) {
            const char *chunk = b.at_base + b.w_at + w_slot * b.w_bytes + mine * block::CHUNK;
            const uint4 *codes = (const uint4 *)chunk + lane;
            mbar_wait(b.full_w + w_slot * 8, w_parity);
            if constexpr (META != WQ_ROW) {
                __syncwarp(); /* nobody reads the chunk before's */
                make_table<BITS, META, block::FEW>(table, chunk + block::CODES, lane, top);
                __syncwarp();
            }
            if constexpr (block::FEW) {
                chunk_few(codes, is_last && k + 1 == b.k1);
            } else {
                chunk_many(codes, k == b.k0);
            }
        }
        if constexpr (!block::FEW) {
            wg_wait<0>();
            wg_hold<N / 2>(acc);
            if (b.k1 > b.k0 && lane == 0) {
                mbar_arrive(b.empty_x + x_before * 8);
            }
        }
    }

    /* Which item a block's share of them begins with. */
    static __device__ __forceinline__ int share_begin(const wq_params &a, int items, int rank)
    {
        return (items * rank + a.splits - 1) / a.splits;
    }

    /* Rows of group `of` of the unit, tokens token .. + 7: the blocks' sums, `slots` items from one to the next. */
    __device__ __forceinline__ void add_item(wq_unit u, int of, int token, const char *from, int slots)
    {
        const int row = (u.group + of) * WQ_ROWS;
        const float4 *in = (const float4 *)from + lane;
        float4 v[MAX_SPLITS];

#pragma unroll
        for (int r = 0; r < MAX_SPLITS; r++) {
            if (r < a.splits) {
                v[r] = in[r * slots * (ITEM_BYTES / 16)];
            }
        }
        consts[0] = load_consts(a, u.part, row + g);
        consts[1] = load_consts(a, u.part, row + g + 8);
        float sum[4] = {v[0].x, v[0].y, v[0].z, v[0].w};
#pragma unroll
        for (int r = 1; r < MAX_SPLITS; r++) {
            if (r < a.splits) {
                sum[0] += v[r].x, sum[1] += v[r].y, sum[2] += v[r].z, sum[3] += v[r].w;
            }
        }
        u.token += token;
        store_tile<8>(a, u, row, (float *)table, sum, consts, lane);
    }

    /* The rings have been read to their end, for a cluster has one unit: sums come there. An item is 8 tokens of a warp's 16 rows; each block adds up
     * its share of items, in the order of the blocks. */
    __device__ __forceinline__ void add_up(const wq_unit &u)
    {
        constexpr int WARPS = block::CONSUMERS / 32;
        const int items = min(N / 8, (a.n_tokens - u.token + 7) / 8) * WARPS, slots = (items + a.splits - 1) / a.splits;
        const int first = share_begin(a, items, b.rank), end = share_begin(a, items, b.rank + 1);

        if (threadIdx.x == 0) {
            mbar_expect(b.full_parts, (uint32_t)(a.splits * (end - first) * ITEM_BYTES));
        }
        cluster_meet_relaxed(); /* the others have read their rings, too */
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const int item = j * WARPS + warp;
            if (item < items) {
                const int owner = item * a.splits / items, slot = b.rank * slots + item - share_begin(a, items, owner);
                const float *v = acc + j * 4;
                cluster_send4(b.base + (uint32_t)(slot * ITEM_BYTES + lane * 16), b.full_parts, owner, make_float4(v[0], v[1], v[2], v[3]));
            }
        }
        mbar_wait(b.full_parts, 0); /* nobody else comes to this block's memory any more, so it may end before the others do */
#pragma unroll 1
        for (int item = first + warp; item < end; item += WARPS) {
            if (item % WARPS < u.n_groups) {
                add_item(u, item % WARPS, item / WARPS * 8, b.at_base + (item - first) * ITEM_BYTES, slots);
            }
        }
    }

    __device__ __forceinline__ void run()
    {
        if constexpr (block::FEW) {
            if (b.cluster < a.n_units) {
                make_sums(0, 0, 0);
            }
        }
        for (int unit = b.cluster; unit < a.n_units; unit += b.n_clusters) {
            const wq_unit u(a, unit, N);
            const int row = (u.group + warp) * WQ_ROWS;
            if (a.splits == 1) { /* constants: there before the kernel in front of us */
                consts[0] = load_consts(a, u.part, row + g);
                consts[1] = load_consts(a, u.part, row + g + 8);
            }
            multiply_unit(u, unit + b.n_clusters >= a.n_units);
            pdl_wait(); /* the kernel in front may still read y */
            if (a.splits == 1 && warp < u.n_groups) {
                store_tile<N>(a, u, row, (float *)table, acc, consts, lane);
            }
        }
        if (a.splits > 1) {
            add_up(wq_unit(a, b.cluster, N));
        }
    }
};

/* A block's 4 + 1 warpgroups start with 96 registers a thread. */
static __device__ __forceinline__ void give_registers()
{
#ifdef NRD_SM90A
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
#endif
}
static __device__ __forceinline__ void take_registers()
{
#ifdef NRD_SM90A
    asm volatile("setmaxnreg.inc.sync.aligned.u32 112;");
#endif
}

template <int BITS, int META, int N, int WG>
static __global__ void __launch_bounds__(WG * 128 + copy_threads(N, WG), blocks_of(WG))
    linear_wq_kernel(const __grid_constant__ wq_params a)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* launched on 9.0 only */
    extern __shared__ char raw[];
    const wq_block<BITS, META, N, WG> b(a, raw);

    b.init_barriers();
    if (b.warp >= b.CONSUMERS / 32) {
        if constexpr (b.GIVES) {
            give_registers();
        }
        if (b.warp == b.CONSUMERS / 32) {
            if (b.lane == 0) {
                b.fill_w();
                pdl_go(); /* the last of W is under way */
            }
        } else if (b.warp == b.CONSUMERS / 32 + 1) {
            pdl_wait();
            if (b.lane == 0) {
                b.fill_x();
            }
        }
        if (a.splits > 1) {
            cluster_meet_relaxed(); /* as those who multiply do */
        }
    } else {
        if constexpr (b.GIVES) {
            take_registers();
        }
        wq_consumer<BITS, META, N, WG> consumer(b);
        consumer.run();
    }
#else
    (void)a;
#endif
}

#endif
