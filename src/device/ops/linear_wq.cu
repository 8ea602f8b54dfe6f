/* SPDX-License-Identifier: Apache-2.0
 * linear_wq: y = x W^T (+ bias, softcap) for weights of 4 or 8 bits in the layout of wq.cuh and any number
 * of rows of x, on Hopper.
 * Shapes    x [n, K] bf16; W parts of one format; y bf16, fp16 or f32. Any n, K and rows.
 * Work      W is the left operand of wgmma, from registers: a chunk of wq.cuh is what a warp of a
 *           warpgroup multiplies in 16 steps. Its numbers become bf16 there, rounded once: what a
 *           bf16 engine made of the same file multiplies, whatever the number of rows. x, the right
 *           operand, lies in shared memory as the copy engine brings it. A block has 2 to 4 such
 *           warpgroups and two warps that fill a ring of chunks and a ring of x; the first does not
 *           wait for the kernel in front. Tiles of up to 128 or 256 rows x 8 .. 128 tokens; where
 *           these are too few, a cluster of blocks shares K: each sends its sums to the block that adds
 *           them, in order. The cut of K is all that the results depend on besides x and W; with
 *           `deterministic` it comes from the weights alone.
 *           4 bits: 0x4300 | q is 128 + q in bf16. Less 128 and the zero point that is a small
 *           integer u, and u * d + r is two fma in bf16 with d in two pieces: u * (the low piece) + r is
 *           exact or small. An offset leaves r, what is over of it when the zero point has taken a whole
 *           number of steps. 8 bits: 0x4700qq00 is 32768 + q in f32, one fma and one rounding.
 *           Scales of a chunk are made ready by a quarter of the work each lane would have alone and
 *           pass through shared memory.
 *           Up to 4 rows where there are row groups for all multiprocessors: linear_wq_int.cuh.
 *           Up to 16 rows and 4 bits nothing is rounded: 128 + q is multiplied, the accumulators of a group
 *           of 32 columns begin with what is too much, and its sum is scaled in f32 (multiply_few).
 * Bound     few rows: memory: codes and scales, 4.5 bits a number for Q4_0, 5 for Q4_1, 4.6
 *           for Q4_K, 8.5 for Q8_0, 8.6 for Q6_K; from 128 the tensor cores. Issue slots of 16 x 16
 *           numbers: an SM's quarter has 30 (4 bits) or 57 (8 bits) in the time of memory.
 * Measured  NVIDIA H200, a Llama-3.1-8B layer in Q4_0: 46 us for a row, 59 for 8, 70 for 16, 90 for 64, 127 for 128, 343 for 512,
 *           1,294 for 2,048 (2026-11-30, make gpu-bench).
 * Tried     mma.sync, 16 rows a launch, exact products with sums scaled in f32 (H200, a Llama-3.1-8B
 *           layer in Q4_0): 54 us for a row, 71 for 8, 105 for 16, and as much again for each 16 more.
 *           x by the blocks of a cluster to each other: as fast at 64 rows, 5 to 10 % slower from 128 on. What 64 rows wait for:
 *           docs/performance/gpu-kernels.md.
 */
#include "device/ops/linear_wq_int.cuh"
#include "device/ops/linear_wq_kernel.cuh"

#include <algorithm>

/* ---- plans ---- */

enum { HALF_SM = 113 * 1024, WHOLE_SM = 226 * 1024, SMEM_FRONT = 2048 };

struct wq_plan {
    int n, wg, groups, splits, w_stages, x_stages, tables_at; /* wg = 0: none */
    size_t smem;
    double us;
};

/* Stages and bytes of a block; false: does not fit. */
static bool plan_smem(wq_plan *p, int bits, int meta, int n, int most_chunks)
{
    const int room = (p->wg == 2 ? HALF_SM : WHOLE_SM) - SMEM_FRONT;
    const int tables = p->wg * 4 * table_bytes(bits, meta, n) + SUM_TABLES * sums_bytes(bits, n);
    const int x_stage = x_stage_bytes(bits, n, p->wg);
    const int w_stage = w_stage_bytes(bits, meta, p->groups), per_chunk = 4 / boxes(bits, n, p->wg);
    const int left = room - tables, pair = w_stage + per_chunk * x_stage;
    const int items = n / 8 * p->wg * 4, sums = p->splits > 1 ? (items + p->splits - 1) / p->splits * p->splits * ITEM_BYTES : 0;

    /* as many chunks of W as of x, then what still fits of x, which is used up in pieces */
    p->w_stages = std::min(std::min(left / pair, most_chunks), (int)MAX_W_STAGES);
    if (p->w_stages < 2 && p->w_stages < most_chunks) {
        p->w_stages = 2;
    }
    p->x_stages = std::min((left - p->w_stages * w_stage) / x_stage, std::min(most_chunks * per_chunk, 12));
    if (left < p->w_stages * w_stage || p->x_stages < std::min(2, most_chunks * per_chunk)) {
        return false;
    }
    p->tables_at = std::max(p->w_stages * w_stage + p->x_stages * x_stage, sums);
    p->smem = (size_t)(SMEM_FRONT + p->tables_at + tables);
    return p->tables_at <= left;
}

/* Issue slots that a chunk takes of a warp, waits included, of 1215 a microsecond; what a block spends before its first
 * and behind its last product; and what adding up costs. Fitted to H200 times of Llama-3.1-8B's shapes. */
static double chunk_slots(int bits, int meta, int n)
{
    if (is_few(bits, n)) {
        return n == 8 ? (meta == WQ_S ? 340.0 : 370.0) : (meta == WQ_S ? 455.0 : 495.0);
    }
    const double plain = n <= 16 ? 425.0 : n == 32 ? 500.0 : n == 64 ? 615.0 : 860.0;
    return plain + (meta == WQ_S && bits == 4 ? 0.0 : bits == 4 ? 90.0 : 75.0);
}
static double block_us(int n)
{
    return n == 32 ? 4.0 : 4.5;
}
/* By the sums that a block sends. Clusters of seven take longer than their share says. */
static double add_up_us(const wq_plan &p)
{
    return p.splits == 1 ? 0.0 : 0.1 * p.splits + 0.0125 * p.n * p.wg + (p.splits == 7 ? 0.08 * p.n : 0.0);
}

/* Clusters of 1 .. MAX_SPLITS blocks that the device holds at once with one or two blocks an SM. */
struct wq_room {
    int n[2][MAX_SPLITS + 1];
};

static const wq_room *room_of(const cuda_device *dev)
{
    static wq_room of[64]; /* the same from whoever writes it */
    wq_room *r = &of[dev->id & 63];

    if (r->n[1][1] > 0) {
        return r;
    }
    for (int two = 0; two < 2; two++) {
        const void *kernel = two ? (const void *)linear_wq_kernel<4, WQ_S, 8, 2>
                                 : (const void *)linear_wq_kernel<4, WQ_S, 64, 4>;
        bool known = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, WHOLE_SM) ==
                     cudaSuccess;
        for (int splits = MAX_SPLITS; splits > 0; splits--) {
            cudaLaunchConfig_t cfg = {};
            cudaLaunchAttribute attr = {};
            attr.id = cudaLaunchAttributeClusterDimension;
            attr.val.clusterDim.x = (unsigned)splits;
            attr.val.clusterDim.y = attr.val.clusterDim.z = 1;
            cfg.gridDim = (unsigned)splits;
            cfg.blockDim = two ? 320 : 576;
            cfg.dynamicSmemBytes = two ? HALF_SM : WHOLE_SM;
            cfg.attrs = &attr;
            cfg.numAttrs = 1;
            int n = 0;
            known = known && cudaOccupancyMaxActiveClusters(&n, kernel, &cfg) == cudaSuccess;
            if (!known) { /* powers of two as an H200 was seen to hold them: 30 of 4, not 32; fewer than 16 of 8 */
                (void)cudaGetLastError();
                const int less = splits == 1 ? 0 : splits == 2 ? 4 : splits == 4 ? 12 : 20;
                n = (splits & (splits - 1)) ? 0 : (dev->n_sm - std::min(less, dev->n_sm / 8)) * (two + 1) / splits;
            }
            r->n[two][splits] = n;
        }
    }
    return r;
}

/* Microseconds by what an SM must bring from memory, what the L2 delivers and issue slots, in waves of blocks;
 * fixed_splits: 0 or the only number allowed. */
static wq_plan choose(const nrd_weight *const *w, int n_w, int bits, int meta, int n, int64_t tokens,
                      int fixed_splits, int n_sm, const wq_room *room)
{
    const int k_chunks = (int)((w[0]->cols + WQ_COLS - 1) / WQ_COLS);
    const int64_t token_tiles = (tokens + n - 1) / n;
    wq_plan best = {};

    best.us = 1e30;
    for (int at = 0; at < 2 * 16 * MAX_SPLITS; at++) {
        const int wg = at & 1 ? 4 : n == 128 ? 3 : 2;
        wq_plan p = {n, wg, (at >> 1 & 15) + 1, (at >> 5) + 1, 0, 0, 0, 0, 0};
        const int most = (k_chunks + p.splits - 1) / p.splits;
        int64_t tiles = 0;
        if (p.groups > p.wg * 4 || (p.wg == 4 && n < 32) || p.splits > k_chunks ||
            (fixed_splits > 0 && p.splits != fixed_splits) || !plan_smem(&p, bits, meta, n, most)) {
            continue;
        }
        for (int i = 0; i < n_w; i++) {
            const int64_t groups = (w[i]->rows + WQ_ROWS - 1) / WQ_ROWS;
            tiles += (groups + p.groups - 1) / p.groups;
        }
        const int resident = blocks_of(p.wg);
        const int64_t blocks = tiles * token_tiles * p.splits;
        const int64_t one_each = (int64_t)room->n[0][p.splits] * p.splits;
        const int64_t at_once = (int64_t)room->n[resident - 1][p.splits] * p.splits;
        if (one_each <= 0 || at_once <= 0) {
            continue;
        }
        const int64_t waves = blocks / at_once, rest = blocks % at_once;
        const double w_mb = p.groups * wq_chunk(bits, meta) * 1e-6, x_mb = n * 512e-6;
        double us = 0.0;
        for (int last = 0; last < 2; last++) {
            const int64_t times = last ? rest > 0 : waves;
            const int b = last && rest <= one_each ? 1 : resident; /* blocks of an SM */
            const double memory = b * w_mb * n_sm / 4.4 / (double)std::min<int64_t>(token_tiles, 4);
            const double l2 = b * (w_mb + x_mb) * n_sm / 7.0;
            /* two warps an SM's quarter do not fill it */
            const double slots = b * p.wg * chunk_slots(bits, meta, n) / (b * p.wg >= 3 ? 1215.0 : 700.0);
            us += (double)times * (block_us(n) + most * std::max(std::max(memory, l2), slots));
        }
        us += add_up_us(p) + 1e-3 * (double)blocks / n_sm;
        if (us < best.us) {
            p.us = us;
            best = p;
        }
    }
    return best;
}

/* The maps of x, in boxes of a stage, and of W's parts, in boxes of a tile and a chunk. */
static bool make_maps(const cuda_device *dev, wq_params *p, const nrd_weight *const *w, int n_w, int bits, int meta, const wq_plan &plan)
{
    const cuuint32_t ones[4] = {1, 1, 1, 1};
    const cuuint64_t chunk = (cuuint64_t)wq_chunk(bits, meta), inner = (cuuint64_t)map_inner(bits, meta);
    const cuuint64_t pitch = (cuuint64_t)p->x_cols * 2;

    for (int i = 0; inner > 0 && i < n_w; i++) {
        const cuuint64_t dims[4] = {inner, chunk / 8 / inner, (cuuint64_t)p->k_chunks, (cuuint64_t)((w[i]->rows + WQ_ROWS - 1) / WQ_ROWS)};
        const cuuint64_t strides[3] = {inner * 8, chunk, chunk * (cuuint64_t)p->k_chunks};
        const cuuint32_t box[4] = {(cuuint32_t)dims[0], (cuuint32_t)dims[1], 1, (cuuint32_t)plan.groups};
        if (dev->encode(&p->w_map[i], CU_TENSOR_MAP_DATA_TYPE_UINT64, 4, (void *)p->w[i], dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS) {
            return false;
        }
    }
    p->x_blocks = p->x_cols % 64 == 0;
    if (!p->x_blocks) {
        return tma_map(dev, &p->x, NRD_DTYPE_BF16, p->x_data, p->n_tokens, p->x_cols, plan.n);
    }
    const cuuint64_t dims[4] = {64, (cuuint64_t)p->n_tokens, (cuuint64_t)p->x_cols / 64, 1};
    const cuuint64_t strides[3] = {pitch, 128, pitch * (cuuint64_t)p->n_tokens};
    const cuuint32_t box[4] = {64, (cuuint32_t)plan.n, (cuuint32_t)boxes(bits, plan.n, plan.wg), 1};
    return dev->encode(&p->x, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, (void *)p->x_data, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <int BITS, int META, int N, int WG>
static nrd_error *wq_launch(nrd_stream *s, const wq_params &p, const wq_plan &plan)
{
    const int64_t resident = (int64_t)s->dev->n_sm * blocks_of(WG);
    const int64_t blocks = plan.splits > 1 ? (int64_t)p.n_units * plan.splits
                                           : std::min<int64_t>(resident, p.n_units);
    return launch_cluster(s, linear_wq_kernel<BITS, META, N, WG>, dim3((unsigned)plan.splits),
                          dim3((unsigned)blocks), dim3(WG * 128 + copy_threads(N, WG)), plan.smem, p);
}

/* ---- up to 4 rows: integers ---- */

/* p.n_units: row groups of 16. *done = false: x leaves too little room. */
template <int META, int T> static nrd_error *int_launch(nrd_stream *s, wq_params &p, bool *done)
{
    const int blocks = std::min(s->dev->n_sm, p.n_units);

    p.w_stages = INT_STAGES;
    p.splits = (p.n_units + blocks - 1) / blocks / INT_WARPS + 2;
    const size_t smem = int_smem(wq_chunk(4, META), p.w_stages, p.k_chunks, T, p.splits);
    *done = smem <= WHOLE_SM;
    return *done ? launch_cluster(s, linear_wq_int_kernel<META, T>, dim3(1), dim3((unsigned)blocks), dim3(INT_WARPS * 32), smem, p)
                 : NULL;
}

/* *done = false: not for this shape. */
template <int META> static nrd_error *int_run(nrd_stream *s, wq_params &p, bool *done)
{
    const int n_sm = s->dev->n_sm;
    int tiles = 0;

    for (int i = 0; i < MAX_PARTS && p.rows[i] > 0; i++) {
        tiles += (p.rows[i] + WQ_ROWS - 1) / WQ_ROWS;
        p.tile_end[i] = tiles;
    }
    p.n_units = tiles;
    /* a quarter of the blocks' rounds would be empty; or narrow, and what each block does with x costs more than is won */
    if ((tiles + n_sm - 1) / n_sm * n_sm * 3 > tiles * 4 || (p.n_tokens > 1 && tiles < 4 * n_sm)) {
        return NULL;
    }
    return p.n_tokens == 1   ? int_launch<META, 1>(s, p, done)
           : p.n_tokens == 2 ? int_launch<META, 2>(s, p, done)
                             : int_launch<META, 4>(s, p, done);
}

/* The tile of tokens, and which blocks there are for it. */
static int tokens_of(int64_t n)
{
    return n <= 8 ? 8 : n <= 16 ? 16 : n <= 32 ? 32 : n <= 64 ? 64 : 128;
}

template <int BITS, int META>
static nrd_error *wq_run(nrd_stream *s, wq_params &p, const nrd_weight *const *w, int n_w, bool deterministic)
{
    const int n_sm = s->dev->n_sm;
    const wq_room *room = room_of(s->dev);
    int n = tokens_of(p.n_tokens), splits = 0;
    bool done = false;

    if constexpr (BITS == 4) {
        if (!deterministic && p.n_tokens <= INT_TOKENS) {
            NRD_TRY(int_run<META>(s, p, &done));
        }
    }
    if (done) {
        return NULL;
    }

    if (deterministic) { /* one kind of arithmetic for any number of rows, and one cut of K */
        n = is_few(BITS, n) ? 32 : n;
        splits = choose(w, n_w, BITS, META, 64, 64, 0, n_sm, room).splits;
    }
    wq_plan plan = choose(w, n_w, BITS, META, n, p.n_tokens, splits, n_sm, room);
    if (n == 128) { /* smaller tiles where they come out even */
        const wq_plan small = choose(w, n_w, BITS, META, 64, p.n_tokens, splits, n_sm, room);
        if (small.us < plan.us) {
            plan = small;
            n = 64;
        }
    }
    if (plan.wg == 0) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cuda: no plan for %d tokens x %d chunks", p.n_tokens, p.k_chunks);
    }
    int64_t tiles = 0;
    for (int i = 0; i < n_w; i++) {
        tiles += ((w[i]->rows + WQ_ROWS - 1) / WQ_ROWS + plan.groups - 1) / plan.groups;
        p.tile_end[i] = (int)tiles;
    }
    p.tile_groups = plan.groups;
    p.token_tiles = (p.n_tokens + n - 1) / n;
    p.n_units = (int)(tiles * p.token_tiles);
    p.splits = plan.splits;
    p.w_stages = plan.w_stages;
    p.x_stages = plan.x_stages;
    p.tables_at = plan.tables_at;
    p.again = p.token_tiles > 1;
    if (!make_maps(s->dev, &p, w, n_w, BITS, META, plan)) {
        return nrd_errorf(NRD_ERR_INTERNAL, "cuda: no tensor map for W and x of %d x %lld", p.n_tokens, (long long)p.x_cols);
    }
    switch (n * 8 + plan.wg) {
    case 8 * 8 + 2:
        return wq_launch<BITS, META, 8, 2>(s, p, plan);
    case 16 * 8 + 2:
        return wq_launch<BITS, META, 16, 2>(s, p, plan);
    case 32 * 8 + 2:
        return wq_launch<BITS, META, 32, 2>(s, p, plan);
    case 32 * 8 + 4:
        return wq_launch<BITS, META, 32, 4>(s, p, plan);
    case 64 * 8 + 2:
        return wq_launch<BITS, META, 64, 2>(s, p, plan);
    case 64 * 8 + 4:
        return wq_launch<BITS, META, 64, 4>(s, p, plan);
    case 128 * 8 + 3:
        return wq_launch<BITS, META, 128, 3>(s, p, plan);
    default:
        return wq_launch<BITS, META, 128, 4>(s, p, plan);
    }
}

/* Rows of x whose length the copy engine does not take, with zeros behind them. */
static __global__ void pad_x_kernel(const bf16 *x, bf16 *to, int64_t all, int cols, int pitch)
{
    pdl_wait();
    pdl_go();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * blockDim.x) {
        const int col = (int)(i % pitch);
        to[i] = col < cols ? x[i / pitch * cols + col] : from_f<bf16>(0.0f);
    }
}

nrd_error *nrd_cuda_linear_wq(nrd_stream *s, const nrd_linear_args *a, int from, int to, bool plain)
{
    const nrd_weight *first = a->w[from];
    const wq_format f = wq_of(first->dtype);
    const int y_size = a->y_dtype == NRD_DTYPE_F32 ? 4 : 2;
    nrd_weight merged[MAX_PARTS];
    const nrd_weight *w[MAX_PARTS] = {};
    wq_params p = {};
    int64_t col = 0;
    int n_w = 0;

    if (first->cols > (1 << 24)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: a weight of %lld columns", (long long)first->cols);
    }
    p.wide_y = aligned16(a->y);
    for (int i = 0; i < a->n_parts; i++) {
        const nrd_weight *wi = a->w[i];
        if (i >= from && i < to) {
            nrd_weight *last = &merged[n_w > 0 ? n_w - 1 : 0];
            if (n_w > 0 && last->rows % WQ_ROWS == 0 &&
                (const char *)last->data + wq_bytes(last->dtype, last->rows, last->cols) ==
                    (const char *)wi->data &&
                (f.meta != WQ_ROW || (const float *)last->scales + last->rows == (const float *)wi->scales)) {
                last->rows += wi->rows; /* neighbours in memory are one matrix */
            } else {
                merged[n_w] = *wi;
                w[n_w] = &merged[n_w];
                p.w[n_w] = (const char *)wi->data;
                p.row_scale[n_w] = f.meta == WQ_ROW ? (const float *)wi->scales : NULL;
                p.y_off[n_w] = (int)col;
                p.wide_y = p.wide_y && col * y_size % 16 == 0;
                n_w++;
            }
            p.rows[n_w - 1] = (int)merged[n_w - 1].rows;
        }
        p.bias[i] = a->bias[i] && !plain ? (const float *)a->bias[i]->data : NULL;
        col += wi->rows;
        p.bias_end[i] = (int)col;
    }
    p.y = a->y;
    p.ldy = col;
    p.wide_y = p.wide_y && col * y_size % 16 == 0;
    p.n_tokens = a->n_tokens;
    p.k_chunks = (int)((first->cols + WQ_COLS - 1) / WQ_COLS);
    p.y_dtype = a->y_dtype;
    p.softcap = plain ? 0.0f : a->softcap;
    p.x_data = a->x;
    p.x_cols = first->cols;
    if (first->cols % 8 != 0 || !aligned16(a->x)) {
        void *tmp;
        p.x_cols = (first->cols + 7) / 8 * 8;
        const int64_t all = p.x_cols * a->n_tokens;
        NRD_TRY(nrd_cuda_stream_tmp(s, (size_t)all * 2, &tmp));
        NRD_TRY(launch(s, pad_x_kernel, dim3((unsigned)std::min<int64_t>((all + 255) / 256, 4096)), dim3(256),
                       0, (const bf16 *)a->x, (bf16 *)tmp, all, (int)first->cols, (int)p.x_cols));
        p.x_data = tmp;
    }
    switch (f.bits * 8 + f.meta) {
    case 4 * 8 + WQ_S:
        return wq_run<4, WQ_S>(s, p, w, n_w, a->deterministic);
    case 4 * 8 + WQ_M:
        return wq_run<4, WQ_M>(s, p, w, n_w, a->deterministic);
    case 4 * 8 + WQ_K:
        return wq_run<4, WQ_K>(s, p, w, n_w, a->deterministic);
    case 8 * 8 + WQ_S:
        return wq_run<8, WQ_S>(s, p, w, n_w, a->deterministic);
    case 8 * 8 + WQ_M:
        return wq_run<8, WQ_M>(s, p, w, n_w, a->deterministic);
    case 8 * 8 + WQ_K:
        return wq_run<8, WQ_K>(s, p, w, n_w, a->deterministic);
    case 8 * 8 + WQ_K16:
        return wq_run<8, WQ_K16>(s, p, w, n_w, a->deterministic);
    default:
        return wq_run<8, WQ_ROW>(s, p, w, n_w, a->deterministic);
    }
}
