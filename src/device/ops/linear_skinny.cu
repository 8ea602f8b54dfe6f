/* SPDX-License-Identifier: Apache-2.0
 * linear_skinny: y = x W^T (+ bias, softcap) for 1..64 rows of x on Hopper, at the speed of memory.
 * Shapes    x [n <= 64, K], W parts [rows_p, K], bf16, fp16 or F8 with row scales of both sides;
 *           y [n, sum rows_p] bf16, fp16 or f32. K * size and the pointers are multiples of 16 bytes.
 * Work      W is the left operand of wgmma (64 weight rows x N tokens), so that the padding to 64
 *           costs nothing. A tile of R rows of W is streamed through a ring of TMA stages by one block
 *           or, where x would be read too often, by a cluster of S blocks that share K and add up
 *           through each other's shared memory, in order: the result does not depend on timing. R and
 *           S come from a small cost model so that all tiles run at once.
 *           A block takes less than half of an SM's shared memory, and the ring is filled before
 *           griddepcontrol.wait: weights depend on no kernel, so the next product's first 100 KB an SM
 *           are on their way while this one ends. It may start when the last of this one's W has been
 *           asked for: earlier, its ring would be full and memory idle where the two meet.
 * Bound     memory: rows * K * size bytes.
 * Measured  NVIDIA H200, the four products of a Llama-3.1-8B layer, 8 rows: bf16 113 us (88 % of the
 *           floor), F8 62 us (80 %); LM head at the floor (2026-11-21, make gpu-bench). With 256 bytes of L2
 *           promotion instead of 128 copies are 6-8 % slower.
 * Tried     stream-K (every tile cut at block borders, the last block to arrive adds up from global
 *           memory): 6-7 us more at 8 rows and 20 us at 64, because one block reads all partial sums.
 *           One accumulator and 128 bytes of K a stage: 34 us become 43 for 14336 -> 4096, because
 *           narrow products into one accumulator follow each other only every 80 cycles.
 */
#include "device/ops/hopper.cuh"
#include "device/ops/linear_rows.cuh"

#include <algorithm>

enum { MAX_PARTS = NRD_LINEAR_MAX_PARTS };

struct skinny_params {
    CUtensorMap w[MAX_PARTS], x;
    const float *row_scale[MAX_PARTS];
    int tile_end[MAX_PARTS];    /* tiles of the parts up to and including this one */
    int rows[MAX_PARTS], y_off[MAX_PARTS];
    const float *bias[MAX_PARTS]; /* of the caller's parts, by column of y */
    int bias_end[MAX_PARTS];
    const float *x_scale;
    void *y;
    int64_t ldy;
    int n_tokens, k_blocks, n_tiles, y_dtype;
    int tile_rows, splits, stages;
    float softcap;
};

struct tile_at {
    int part, row; /* first row of the tile in its part */
};

static __device__ __forceinline__ tile_at find_tile(const skinny_params &a, int tile)
{
    tile_at r;
    r.part = 0;
    while (tile >= a.tile_end[r.part]) {
        r.part++;
    }
    r.row = (r.part ? tile - a.tile_end[r.part - 1] : tile) * a.tile_rows;
    return r;
}

static __device__ __forceinline__ float load_x_scale(const skinny_params &a, int token)
{
    return a.x_scale && token < a.n_tokens ? a.x_scale[token] : 1.0f;
}

/* One result: scales, bias, cap, type. */
static __device__ __forceinline__ void store_one(const skinny_params &a, int part, int row, int token,
                                                 const row_consts &of_row, float x_scale, float v)
{
    const int col = a.y_off[part] + row;
    v = v * (of_row.scale * x_scale) + of_row.bias;
    if (a.softcap > 0.0f) {
        v = a.softcap * tanhf(v / a.softcap);
    }
    const int64_t at = (int64_t)token * a.ldy + col;
    if (a.y_dtype == NRD_DTYPE_BF16) {
        ((bf16 *)a.y)[at] = from_f<bf16>(v);
    } else if (a.y_dtype == NRD_DTYPE_F16) {
        ((f16 *)a.y)[at] = from_f<f16>(v);
    } else {
        ((float *)a.y)[at] = v;
    }
}

/* 128-byte columns of K in a stage: a stage should hold some 30 KB, because it costs its barriers. */
static constexpr __host__ __device__ int depth(int n, int wg, int mb)
{
    return mb == 2 ? 1 : wg == 2 ? (n == 64 ? 1 : 2) : n > 16 ? 2 : 4;
}

/* Sums kept apart until a tile's end: products into one accumulator follow each other only every 80
 * cycles or so, whatever their width, and narrow ones would wait for nothing else. */
static constexpr __host__ __device__ int sets(int n, int mb)
{
    return mb * n <= 16 ? 4 : mb * n <= 64 ? 2 : 1;
}

/* The float at `here`, an address of this block, in the shared memory of block `rank` of the cluster. */
static __device__ __forceinline__ float cluster_load(uint32_t here, int rank)
{
    float v = 0.0f;
#if __CUDA_ARCH__ >= 900
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
#endif
    return v;
}

/* What all warps of a block know: sizes, where things lie in shared memory, which share is theirs. */
template <int KIND, int N, int WG, int MB> struct skinny_block {
    static constexpr int CONSUMERS = WG * 128, THREADS = CONSUMERS + 32;
    static constexpr int DEEP = depth(N, WG, MB);
    static constexpr int K_STEP = KIND == NRD_DTYPE_F8_E4M3 ? 128 : 64; /* elements in 128 bytes */

    const skinny_params &a;
    const uint32_t base; /* of the ring; at least 1024 bytes in front of it hold the barriers */
    float *const sums;   /* where the ring is */
    const int w_bytes, stage_bytes, w_at, stages;
    const uint32_t full, empty;
    const int rank, cluster, n_clusters;
    int k0, k1;

    __device__ __forceinline__ skinny_block(const skinny_params &params, char *raw)
        : a(params), base((smem_u32(raw) + 2047) & ~1023u), sums((float *)(raw + (base - smem_u32(raw)))),
          w_bytes(a.tile_rows * 128), stage_bytes(DEEP * (N + a.tile_rows) * 128), w_at(DEEP * N * 128),
          stages(a.stages), full(base - 512), empty(full + 128), rank((int)blockIdx.x % a.splits),
          cluster((int)blockIdx.x / a.splits), n_clusters((int)gridDim.x / a.splits)
    {
        /* whole stages; columns of K behind the last are zeros from the copy engine */
        const int n_stages = (a.k_blocks + DEEP - 1) / DEEP;
        k0 = n_stages * rank / a.splits * DEEP;
        k1 = n_stages * (rank + 1) / a.splits * DEEP;
    }

    __device__ __forceinline__ void init_barriers() const
    {
        if (threadIdx.x == 0) {
            for (int i = 0; i < stages; i++) {
                mbar_init(full + i * 8, 1);
                mbar_init(empty + i * 8, WG);
            }
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncthreads();
    }

    __device__ __forceinline__ void load_w(const tile_at &at, int kb, int slot) const
    {
        const uint32_t to = base + slot * stage_bytes + w_at, bar = full + slot * 8;
        mbar_expect(bar, stage_bytes);
        for (int c = 0; c < DEEP; c++) {
            tma_2d(to + c * w_bytes, &a.w[at.part], (kb + c) * K_STEP, at.row, bar, L2_EVICT_FIRST);
        }
    }

    __device__ __forceinline__ void load_x(int kb, int slot) const
    {
        const uint32_t to = base + slot * stage_bytes, bar = full + slot * 8;
        for (int c = 0; c < DEEP; c++) {
            tma_2d(to + c * N * 128, &a.x, (kb + c) * K_STEP, 0, bar, L2_EVICT_LAST);
        }
    }

    /* W alone, as far as the ring goes: it depends on no kernel. The number of stages filled. */
    __device__ __forceinline__ int fill_ahead() const
    {
        int slot = 0;
        for (int tile = cluster; tile < a.n_tiles; tile += n_clusters) {
            const tile_at at = find_tile(a, tile);
            for (int kb = k0; kb < k1; kb += DEEP) {
                if (slot == stages) {
                    return slot;
                }
                load_w(at, kb, slot++);
            }
        }
        pdl_go(); /* the last of W is under way */
        return slot;
    }

    /* x to the stages that have their W, then both. */
    __device__ __forceinline__ void fill(int ahead) const
    {
        int slot = 0, done = 0;
        uint32_t parity = 1;
        for (int tile = cluster; tile < a.n_tiles; tile += n_clusters) {
            const tile_at at = find_tile(a, tile);
            for (int kb = k0; kb < k1; kb += DEEP) {
                if (done >= ahead) {
                    mbar_wait(empty + slot * 8, parity);
                    load_w(at, kb, slot);
                }
                load_x(kb, slot);
                done++;
                if (++slot == stages) {
                    slot = 0;
                    parity ^= 1;
                }
            }
        }
        pdl_go();
    }

    __device__ __forceinline__ int sums_pitch() const { return a.tile_rows + 4; }

    /* All warps: the sums of the cluster's blocks, in order, a piece a block. */
    __device__ __forceinline__ void merge_splits() const
    {
        const tile_at at = find_tile(a, cluster);
        const int all = a.tile_rows * a.n_tokens, i0 = rank * THREADS + threadIdx.x;
        row_consts of_row = load_consts(a, at.part, at.row + i0 % a.tile_rows);
        pdl_wait(); /* the copying warp's other lanes have not waited yet */
        float of_token = load_x_scale(a, i0 / a.tile_rows);
        cluster_meet();
        for (int i = i0; i < all; i += a.splits * THREADS) {
            const int token = i / a.tile_rows, row = i % a.tile_rows;
            if (i != i0) {
                of_row = load_consts(a, at.part, at.row + row);
                of_token = load_x_scale(a, token);
            }
            const uint32_t mine = base + (uint32_t)(token * sums_pitch() + row) * 4;
            float sum = 0.0f;
            for (int r = 0; r < a.splits; r++) {
                sum += cluster_load(mine, r);
            }
            if (at.row + row < a.rows[at.part]) {
                store_one(a, at.part, at.row + row, token, of_row, of_token, sum);
            }
        }
        cluster_meet(); /* nobody leaves while others still read */
    }
};

/* A thread of the WG warpgroups that multiply, MB x 64 rows each. */
template <int KIND, int N, int WG, int MB> struct skinny_consumer {
    typedef skinny_block<KIND, N, WG, MB> block;
    static constexpr int SETS = sets(N, MB), REGS = SETS * MB * N / 2;

    const block &b;
    const skinny_params &a;
    const int wg = threadIdx.x / 128, tid = threadIdx.x, lane = tid & 31, g = lane >> 2, t = lane & 3;
    float acc[SETS][MB][N / 2];
    row_consts consts[MB][2];
    float x_scale[N / 8][2];
    int slot = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ explicit skinny_consumer(const block &of) : b(of), a(of.a) {}

    /* Row of the tile, of 64-row block mb and half h of this thread's. */
    __device__ __forceinline__ int row_of(int mb, int h) const
    {
        return (wg * MB + mb) * 64 + (tid / 32 % 4) * 16 + h * 8 + g;
    }

    __device__ __forceinline__ void load_rows(const tile_at &at)
    {
#pragma unroll
        for (int mb = 0; mb < MB; mb++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                consts[mb][h] = load_consts(a, at.part, at.row + row_of(mb, h));
            }
        }
    }

    __device__ __forceinline__ void load_tokens()
    {
#pragma unroll
        for (int i = 0; i < N / 4; i++) {
            x_scale[i / 2][i % 2] = load_x_scale(a, i / 2 * 8 + 2 * t + i % 2);
        }
    }

    __device__ __forceinline__ void multiply_stage(bool is_first)
    {
        mbar_wait(b.full + slot * 8, parity);
        const uint32_t x = b.base + slot * b.stage_bytes;
        /* rows behind the tile's last read what follows in the ring: never stored */
        uint64_t dw = desc_sw128(x + b.w_at + wg * (64 * MB * 128)), dx = desc_sw128(x);
        wg_hold<REGS>(&acc[0][0][0]);
        wg_fence();
#pragma unroll
        for (int c = 0; c < block::DEEP; c++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
#pragma unroll
                for (int mb = 0; mb < MB; mb++) {
                    wgmma_ss<KIND, N>(acc[k % SETS][mb], dw + mb * (8192 >> 4) + k * 2, dx + k * 2);
                }
            }
            dw += b.w_bytes >> 4;
            dx += (N * 128) >> 4;
        }
        wg_commit();
        wg_hold<REGS>(&acc[0][0][0]);
        /* one group may run on; the stage of the one before is free */
        wg_wait<1>();
        const int before = slot == 0 ? b.stages - 1 : slot - 1;
        if (!is_first && tid % 128 == 0) {
            mbar_arrive(b.empty + before * 8);
        }
        if (++slot == b.stages) {
            slot = 0;
            parity ^= 1;
        }
    }

    /* acc[0] = W x of this block's share of K. */
    __device__ __forceinline__ void multiply_tile()
    {
#pragma unroll
        for (int i = 0; i < REGS; i++) {
            (&acc[0][0][0])[i] = 0.0f;
        }
        for (int kb = b.k0; kb < b.k1; kb += block::DEEP) {
            multiply_stage(kb == b.k0);
        }
        wg_wait<0>();
        wg_hold<REGS>(&acc[0][0][0]);
        if (b.k1 > b.k0 && tid % 128 == 0) {
            mbar_arrive(b.empty + (slot == 0 ? b.stages - 1 : slot - 1) * 8);
        }
#pragma unroll
        for (int x = 1; x < SETS; x++) {
#pragma unroll
            for (int i = 0; i < REGS / SETS; i++) {
                (&acc[0][0][0])[i] += (&acc[x][0][0])[i];
            }
        }
    }

    /* To y, or where the cluster adds up. */
    __device__ __forceinline__ void store_tile(const tile_at &at) const
    {
        if (a.splits > 1) {
            /* The ring has been read to its end (a cluster has one tile): it holds the sums now,
             * by token. The padding keeps a warp's stores in different banks. */
            asm volatile("bar.sync 1, %0;" ::"n"(block::CONSUMERS) : "memory");
        }
        const int pitch = b.sums_pitch();
#pragma unroll
        for (int mb = 0; mb < MB; mb++) {
#pragma unroll
            for (int i = 0; i < N / 2; i++) {
                const int row = row_of(mb, i / 2 % 2), token = (i / 4) * 8 + 2 * t + i % 2;
                if (row < a.tile_rows && token < a.n_tokens) {
                    if (a.splits > 1) {
                        b.sums[token * pitch + row] = acc[0][mb][i];
                    } else if (at.row + row < a.rows[at.part]) {
                        store_one(a, at.part, at.row + row, token, consts[mb][i / 2 % 2],
                                  x_scale[i / 4][i % 2], acc[0][mb][i]);
                    }
                }
            }
        }
    }

    __device__ __forceinline__ void run()
    {
        if (a.splits == 1 && b.cluster < a.n_tiles) {
            load_rows(find_tile(a, b.cluster)); /* constants: there before the kernel in front of us */
        }
        pdl_wait();
        load_tokens();
        for (int tile = b.cluster; tile < a.n_tiles; tile += b.n_clusters) {
            const tile_at at = find_tile(a, tile);
            if (a.splits == 1 && tile != b.cluster) {
                load_rows(at);
            }
            multiply_tile();
            store_tile(at);
        }
    }
};

template <int KIND, int N, int WG, int MB>
static __global__ void __launch_bounds__(WG * 128 + 32, 2)
    skinny_kernel(const __grid_constant__ skinny_params a)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* launched on 9.0 only */
    extern __shared__ char raw[];
    const skinny_block<KIND, N, WG, MB> b(a, raw);

    b.init_barriers();
    if (threadIdx.x < b.CONSUMERS) {
        skinny_consumer<KIND, N, WG, MB> consumer(b);
        consumer.run();
    } else if (threadIdx.x == b.CONSUMERS) {
        const int ahead = b.fill_ahead();
        pdl_wait();
        b.fill(ahead);
    }
    if (a.splits > 1) {
        b.merge_splits();
    }
#else
    (void)a;
#endif
}

/* Shared memory of a block: alignment and barriers, ring, and what wgmma reads behind the last tile. */
enum { HALF_SM = 113 * 1024, WHOLE_SM = 226 * 1024, SMEM_FRONT = 2048 };

struct skinny_plan {
    int rows, splits, stages;
    size_t smem;
};

static int blocks64(int rows)
{
    const int b = (rows + 63) / 64;
    return b == 3 ? 4 : b; /* two warpgroups of two */
}

/* Stages and bytes for a tile; false: does not fit. */
static bool plan_smem(skinny_plan *p, int n, int k_blocks)
{
    const int column = (p->rows + n) * 128, slack = (blocks64(p->rows) * 64 - p->rows) * 128;
    const int sums = p->splits > 1 ? n * (p->rows + 4) * 4 : 0;
    const int mine = (k_blocks + p->splits - 1) / p->splits;

    const int b64 = blocks64(p->rows), deep = depth(n, b64 == 1 ? 1 : 2, b64 > 2 ? 2 : 1);
    const int stage = deep * column;
    int stages = (HALF_SM - SMEM_FRONT - slack) / stage;
    if (stages < 3) {
        stages = (WHOLE_SM - SMEM_FRONT - slack) / stage;
    }
    stages = std::min(std::min(stages, 14), std::max(2, (mine + deep - 1) / deep));
    p->stages = stages;
    p->smem = (size_t)(SMEM_FRONT + std::max(stages * stage + slack, sums));
    return stages >= 2 && p->smem <= WHOLE_SM;
}

/* Microseconds by a simple model: what an SM must bring from memory, what the L2 must deliver, and the
 * costs of adding up and of a second round. Constants fitted on an H200 (docs/performance). */
static skinny_plan choose(const nrd_weight *const *w, int n_w, int n, int size, int n_sm)
{
    const int64_t cols = w[0]->cols;
    const int k_blocks = (int)((cols * size + 127) / 128);
    skinny_plan best = {};
    double best_us = 1e30;
    int64_t of_64 = 0;

    for (int i = 0; i < n_w; i++) {
        of_64 += (w[i]->rows + 63) / 64;
    }
    /* More than 8 rows of F8: where tiles of 64 rows all run at once, on about half of the SMs or more, none is split. x is read by few
     * blocks then, and so many keep memory busy (17 rows, 14336 -> 4096: 18.9 us, what the model below chooses 20.0, cuBLASLt 26.5). */
    if (size == 1 && n > 8 && n <= 32 && of_64 <= n_sm && of_64 * 9 >= n_sm * 4) {
        best = {64, 1, 0, 0};
        return plan_smem(&best, n, k_blocks) ? best : skinny_plan{};
    }
    for (int rows = 16; rows <= 256; rows += 16) {
        for (int splits = 1; splits <= 4; splits *= 2) {
            skinny_plan p = {rows, splits, 0, 0};
            int64_t tiles = 0;
            if (splits * 4 > k_blocks || !plan_smem(&p, n, k_blocks)) {
                continue;
            }
            for (int i = 0; i < n_w; i++) {
                tiles += (w[i]->rows + rows - 1) / rows;
            }
            const int resident = p.smem <= HALF_SM ? 2 : 1;
            const int64_t blocks = tiles * splits;
            if (splits > 1 && blocks > (int64_t)resident * n_sm * 31 / 33) {
                continue; /* clusters must all fit at once, and not every SM can be part of one */
            }
            const double w_mb = (double)rows * (double)cols * size / splits * 1e-6;
            const double x_mb = (double)n * (double)cols * size / splits * 1e-6;
            const double rounds = (double)((blocks + n_sm - 1) / n_sm);
            const double memory = rounds * w_mb * n_sm / 4.4, l2 = rounds * (w_mb + x_mb) * n_sm / 5.5;
            /* stages of one column of 128 bytes: 13 % slower (DRAM pages) */
            const double narrow = blocks64(rows) > 2 ? 1.13 : 1.0;
            double us = narrow * std::max(memory, l2) + (splits > 1 ? 1.0 : 0.0) + 0.15 * rounds +
                        (resident == 1 ? 1.5 : 0.0) + (blocks64(rows) * 64 > rows ? 0.05 : 0.0);
            if (us < best_us) {
                best_us = us;
                best = p;
            }
        }
    }
    return best;
}

template <int KIND, int N, int WG, int MB>
static nrd_error *skinny_launch(nrd_stream *s, const skinny_params &p, unsigned grid, size_t smem)
{
    return launch_cluster(s, skinny_kernel<KIND, N, WG, MB>, dim3((unsigned)p.splits), dim3(grid),
                          dim3(WG * 128 + 32), smem, p);
}

template <int KIND, int N>
static nrd_error *skinny_run(nrd_stream *s, const nrd_linear_args *a, int32_t t0, int32_t nt,
                             bool *done)
{
    const cuda_device *dev = s->dev;
    const int64_t cols = a->w[0]->cols;
    const int size = KIND == NRD_DTYPE_F8_E4M3 ? 1 : 2;
    nrd_weight merged[MAX_PARTS];
    const nrd_weight *w[MAX_PARTS] = {};
    skinny_params p = {};
    int64_t y_cols = 0;
    int n_w = 0;

    for (int i = 0; i < a->n_parts; i++) { /* neighbours in memory become one matrix */
        if (i > 0 && (const char *)merged[n_w - 1].data + merged[n_w - 1].data_bytes ==
                         (const char *)a->w[i]->data &&
            (KIND != NRD_DTYPE_F8_E4M3 || (const float *)merged[n_w - 1].scales +
                                              merged[n_w - 1].rows == a->w[i]->scales)) {
            merged[n_w - 1].rows += a->w[i]->rows;
            merged[n_w - 1].data_bytes += a->w[i]->data_bytes;
        } else {
            merged[n_w] = *a->w[i];
            w[n_w] = &merged[n_w];
            n_w++;
        }
        y_cols += a->w[i]->rows;
        p.bias[i] = a->bias[i] ? (const float *)a->bias[i]->data : NULL;
        p.bias_end[i] = (int)y_cols;
    }
    const skinny_plan plan = choose(w, n_w, N, size, dev->n_sm);
    if (plan.rows == 0) {
        return NULL;
    }
    y_cols = 0;
    for (int i = 0; i < n_w; i++) {
        if (!tma_map(dev, &p.w[i], w[i]->dtype, w[i]->data, w[i]->rows, cols, plan.rows)) {
            return NULL;
        }
        p.n_tiles += (int)((w[i]->rows + plan.rows - 1) / plan.rows);
        p.tile_end[i] = p.n_tiles;
        p.rows[i] = (int)w[i]->rows;
        p.y_off[i] = (int)y_cols;
        p.row_scale[i] = KIND == NRD_DTYPE_F8_E4M3 ? (const float *)w[i]->scales : NULL;
        y_cols += w[i]->rows;
    }
    if (!tma_map(dev, &p.x, (nrd_dtype)KIND, (const char *)a->x + (int64_t)t0 * cols * size, nt, cols, N)) {
        return NULL;
    }
    const int y_size = a->y_dtype == NRD_DTYPE_F32 ? 4 : 2;
    p.x_scale = KIND == NRD_DTYPE_F8_E4M3 ? a->x_row_scale + t0 : NULL;
    p.y = (char *)a->y + (int64_t)t0 * y_cols * y_size;
    p.ldy = y_cols;
    p.n_tokens = nt;
    p.k_blocks = (int)((cols * size + 127) / 128);
    p.y_dtype = a->y_dtype;
    p.softcap = a->softcap;
    p.tile_rows = plan.rows;
    p.splits = plan.splits;
    p.stages = plan.stages;
    const int64_t resident = (int64_t)dev->n_sm * (plan.smem <= HALF_SM ? 2 : 1);
    const unsigned grid = (unsigned)(plan.splits > 1 ? (int64_t)p.n_tiles * plan.splits
                                                     : std::min<int64_t>(resident, p.n_tiles));
    *done = true;
    switch (blocks64(plan.rows)) {
    case 1:
        return skinny_launch<KIND, N, 1, 1>(s, p, grid, plan.smem);
    case 2:
        return skinny_launch<KIND, N, 2, 1>(s, p, grid, plan.smem);
    default:
        return skinny_launch<KIND, N, 2, 2>(s, p, grid, plan.smem);
    }
}

template <int KIND>
static nrd_error *skinny_kind(nrd_stream *s, const nrd_linear_args *a, int32_t t0, int32_t nt,
                              bool *done)
{
    if (a->deterministic || nt > 32) { /* one shape for every batch where rows must not change */
        return skinny_run<KIND, 64>(s, a, t0, nt, done);
    }
    if constexpr (KIND == NRD_DTYPE_F8_E4M3) { /* other types have so many rows only where rows must not change */
        if (nt > 16 && nt <= 24) {
            return skinny_run<KIND, 24>(s, a, t0, nt, done);
        }
    }
    if (nt > 16) {
        return skinny_run<KIND, 32>(s, a, t0, nt, done);
    }
    if (nt > 8) {
        return skinny_run<KIND, 16>(s, a, t0, nt, done);
    }
    return skinny_run<KIND, 8>(s, a, t0, nt, done);
}

nrd_error *nrd_cuda_linear_skinny(nrd_stream *s, const nrd_linear_args *a, int32_t t0, int32_t nt, bool *done)
{
    const nrd_dtype dtype = a->w[0]->dtype;
    const int size = dtype == NRD_DTYPE_F8_E4M3 ? 1 : 2;

    *done = false;
    if (!s->dev->hopper || !s->dev->encode || nt > 64 || a->w[0]->cols * size % 16 != 0 ||
        !aligned16(a->x) || !is_act_dtype(a->y_dtype)) {
        return NULL;
    }
    for (int i = 0; i < a->n_parts; i++) {
        if (a->w[i]->dtype != dtype || !aligned16(a->w[i]->data)) {
            return NULL;
        }
    }
    switch (dtype) {
    case NRD_DTYPE_BF16:
        return skinny_kind<NRD_DTYPE_BF16>(s, a, t0, nt, done);
    case NRD_DTYPE_F16:
        return skinny_kind<NRD_DTYPE_F16>(s, a, t0, nt, done);
    case NRD_DTYPE_F8_E4M3:
        return skinny_kind<NRD_DTYPE_F8_E4M3>(s, a, t0, nt, done);
    default:
        return NULL;
    }
}
