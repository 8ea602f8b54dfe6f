/* SPDX-License-Identifier: Apache-2.0
 * moe_linear_hopper: products of sorted pairs with their experts' matrices on Hopper: F8, bf16, fp16, and MXFP4 with bf16.
 * Shapes    x [tokens or pairs, K]; W parts [n_experts * rows_p, K]; y [pairs, sum rows_p] bf16 or fp16. K * size and
 *           pointers are multiples of 16 bytes, rows_p of 8.
 * Work      A tile is 128 rows of an expert and N of its pairs: W is the left operand of wgmma, so that few pairs
 *           cost no padding to 64, and an expert's last pairs take one to four quarters of N. A block is two
 *           warpgroups of 64 rows each and a warp that brings stages of 128 bytes of K: W in one copy, x N / 4
 *           rows at a time. Where x is not sorted a kernel before this one sorts it, or with very few pairs it
 *           comes row by row, as `token` says: one-row copies fall into the swizzle that their address has,
 *           but take 55 clocks each. How many pairs each expert has only the device knows: the blocks count its
 *           tiles into a table and take every so-many-th of them, all of an expert's pairs before its next
 *           rows, so that W comes from memory once. N is 64, or with more pairs an expert 128 with two blocks a
 *           multiprocessor: one multiplies while the other stores. MXFP4 becomes bf16 in registers, in one block.
 * Bound     few pairs: memory, W of the experts that were chosen; many: the tensor cores.
 * Measured  NVIDIA H200, 2026-11-23, make gpu-bench OP=moe: docs/performance/gpu-kernels.md.
 * Tried     N = 256, one block a multiprocessor: 0.9 of the speed with hundreds of pairs an expert, and no other
 *           with clusters of two that share x. The next tile's W to the L2 ahead: 0.7 with few pairs.
 */
#include "device/ops/hopper.cuh"
#include "device/ops/moe_tiles.cuh"
#include "device/ops/mx.cuh"

#include <algorithm>

enum {
    ROWS = 128,
    MOST_N = 128,
    CONSUMERS = 256,
    THREADS = CONSUMERS + 32,
    RING = 192 * 1024, /* bytes of all of a multiprocessor's blocks */
    /* in front of the ring */
    AT_TABLE = 256,
    AT_SCALES = AT_TABLE + NRD_MOE_MAX_EXPERTS * 4,
    AT_STORE = AT_SCALES + 2 * MOST_N * 4,
    CHUNK = 32,  /* pairs on their way to memory at a time */
    PITCH = 144, /* bytes of 64 rows of a pair there: stores to different banks */
    FRONT = (AT_STORE + 2 * CHUNK * PITCH + 1023) / 1024 * 1024,
    FEW = 2,     /* pairs an expert: brought row by row */
    MANY = 32,   /* N = 128 */
    /* MXFP4: of 64 columns of a tile's rows */
    MX_CODES = ROWS * 32,
    MX_SCALES = ROWS * 2,
};

struct grouped_params {
    CUtensorMap w[NRD_LINEAR_MAX_PARTS], x;
    const float *w_scale[NRD_LINEAR_MAX_PARTS], *x_scale; /* or NULL */
    const float *bias[NRD_LINEAR_MAX_PARTS];              /* [n_experts * rows] or NULL */
    int32_t tile_end[NRD_LINEAR_MAX_PARTS]; /* tiles of an expert's rows, up to and with this part */
    int32_t rows[NRD_LINEAR_MAX_PARTS], y_off[NRD_LINEAR_MAX_PARTS];
    const uint8_t *mx_scales[NRD_LINEAR_MAX_PARTS];
    const int32_t *first, *token;  /* token NULL: x is sorted */
    const int32_t *scale_of;       /* of x_scale for each pair, or NULL */
    int32_t n_experts, n_parts, k_blocks;
    void *y;
    int64_t y_stride;
    bool y_bf16;
};

struct grouped_tile {
    int part, row; /* of the expert's matrix */
    int expert, from, to;
};

/* KIND: of x, and of W unless MX, which is W in MXFP4. */
template <int KIND, int N, int BLOCKS, bool MX> struct grouped_shape {
    static constexpr int AT_W = MX ? N * 128 : 0, AT_X = MX ? 0 : ROWS * 128; /* in a stage; x at a multiple of 1024 */
    static constexpr int STAGE = (N * 128 + (MX ? MX_CODES + MX_SCALES : ROWS * 128) + 1023) / 1024 * 1024;
    static constexpr int STAGES = std::min(RING / BLOCKS / STAGE, 16);
    static constexpr int X_ROWS = N / 4; /* of a copy where x is sorted */
    static constexpr int K_STEP = KIND == NRD_DTYPE_F8_E4M3 ? 128 : 64;
};

template <int KIND, int N, int BLOCKS, bool MX>
struct grouped_block : grouped_shape<KIND, N, BLOCKS, MX>,
                       stage_ring<grouped_shape<KIND, N, BLOCKS, MX>::STAGES, grouped_shape<KIND, N, BLOCKS, MX>::STAGE, FRONT> {
    typedef stage_ring<grouped_shape<KIND, N, BLOCKS, MX>::STAGES, grouped_shape<KIND, N, BLOCKS, MX>::STAGE, FRONT> ring;

    const grouped_params &a;
    int32_t *const table; /* of each expert: tiles of pairs up to and with it */
    int at;               /* this block's next tile */

    __device__ __forceinline__ grouped_block(const grouped_params &params, char *raw)
        : ring(raw), a(params), table((int32_t *)(this->front + AT_TABLE)), at((int)blockIdx.x)
    {
    }

    /* All threads. */
    __device__ __forceinline__ void begin() const
    {
        if (threadIdx.x == 0) {
            this->init(2); /* warpgroups */
        }
        pdl_wait();
        pdl_go();
        if (threadIdx.x < 32) {
            count_pair_tiles(a.first, a.n_experts, N, table);
        }
        __syncthreads();
    }

    /* The next tile; false: there is none. */
    __device__ __forceinline__ bool next(grouped_tile *t)
    {
        const int units = a.tile_end[a.n_parts - 1]; /* tiles of rows */
        int lo = 0, hi = a.n_experts;

        while (lo < hi) {
            const int mid = (lo + hi) / 2;
            if (at < table[mid] * units) {
                hi = mid;
            } else {
                lo = mid + 1;
            }
        }
        if (lo == a.n_experts) {
            return false;
        }
        const int before = lo > 0 ? table[lo - 1] : 0, n = table[lo] - before, here = at - before * units, tile = here / n;
        t->expert = lo;
        t->from = a.first[lo] + here % n * N;
        t->to = min(a.first[lo + 1], t->from + N);
        t->part = 0;
        while (t->part + 1 < a.n_parts && tile >= a.tile_end[t->part]) {
            t->part++;
        }
        t->row = (t->part ? tile - a.tile_end[t->part - 1] : tile) * ROWS;
        at += (int)gridDim.x;
        return true;
    }
};

/* The warp that brings. */
template <int KIND, int N, int BLOCKS, bool MX> struct grouped_bringer {
    typedef grouped_block<KIND, N, BLOCKS, MX> block;
    static constexpr int PER_LANE = N / 32;

    block b;
    const int lane = threadIdx.x % 32;

    __device__ __forceinline__ explicit grouped_bringer(const block &of) : b(of) {}

    /* W of a stage, which expects so many rows of x too. */
    __device__ __forceinline__ void bring_w(int part, int k, int w_row, int x_rows, uint32_t to, uint32_t bar) const
    {
        const grouped_params &a = b.a;

        if constexpr (MX) { /* copies of 32 bytes a row: the rest of a line is for the next stages */
            const int64_t rows = (int64_t)a.n_experts * a.rows[part];
            const uint32_t scales = 2 * (uint32_t)min((int64_t)ROWS, rows - w_row);
            mbar_expect(bar, (uint32_t)(x_rows * 128 + MX_CODES) + scales);
            tma_2d(to, &a.w[part], k * 32, w_row, bar, L2_EVICT_NORMAL);
            bulk_copy(to + MX_CODES, a.mx_scales[part] + mx_scale_at(rows, w_row, (int64_t)k * 64), scales, bar);
        } else {
            mbar_expect(bar, (uint32_t)(ROWS + x_rows) * 128);
            tma_2d(to, &a.w[part], k * block::K_STEP, w_row, bar, N > 64 ? L2_EVICT_NORMAL : L2_EVICT_FIRST);
        }
    }

    __device__ __forceinline__ void run()
    {
        const grouped_params &a = b.a;
        const int each = a.token ? 1 : block::X_ROWS;
        grouped_tile t;

        while (b.next(&t)) {
            const int n_boxes = (t.to - t.from + each - 1) / each;
            const int w_row = t.expert * a.rows[t.part] + t.row;
            int from[PER_LANE]; /* row of x */
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                const int box = i * 32 + lane;
                from[i] = box >= n_boxes ? -1 : a.token ? a.token[t.from + box] : t.from + box * block::X_ROWS;
            }
            for (int k = 0; k < a.k_blocks; k++) {
                const uint32_t to = b.base + b.slot * block::STAGE, bar = b.full + b.slot * 8;
                mbar_wait(b.empty + b.slot * 8, b.parity ^ 1);
                if (lane == 0) {
                    bring_w(t.part, k, w_row, n_boxes * each, to + block::AT_W, bar);
                }
                __syncwarp();
#pragma unroll
                for (int i = 0; i < PER_LANE; i++) {
                    if (from[i] >= 0) {
                        tma_2d(to + (uint32_t)(block::AT_X + (i * 32 + lane) * each * 128), &a.x, k * block::K_STEP, from[i], bar,
                               L2_EVICT_LAST);
                    }
                }
                b.advance();
            }
        }
    }
};

/* A thread of the two warpgroups that multiply. */
template <int KIND, int N, int BLOCKS, bool MX> struct grouped_consumer {
    typedef grouped_block<KIND, N, BLOCKS, MX> block;

    block b;
    const grouped_params &a;
    const int wg = threadIdx.x / 128, tid = threadIdx.x % 128, lane = tid & 31, warp = tid / 32;
    float *const x_scale = (float *)(b.front + AT_SCALES) + wg * MOST_N;
    char *const store = b.front + AT_STORE + wg * CHUNK * PITCH;
    grouped_tile t;
    float w_scale[2], bias[2];
    float acc[N / 2];

    __device__ __forceinline__ explicit grouped_consumer(const block &of) : b(of), a(b.a) {}

    __device__ __forceinline__ void meet() const
    {
        if (wg == 0) {
            asm volatile("bar.sync 1, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 2, 128;" ::: "memory");
        }
    }

    __device__ __forceinline__ void load_scales()
    {
        const float *s = MX ? NULL : a.w_scale[t.part], *add = a.bias[t.part];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = t.row + wg * 64 + warp * 16 + h * 8 + lane / 4;
            const int64_t at = (int64_t)t.expert * a.rows[t.part] + row;
            w_scale[h] = s && row < a.rows[t.part] ? s[at] : 1.0f;
            bias[h] = add && row < a.rows[t.part] ? add[at] : 0.0f;
        }
        for (int i = tid; i < t.to - t.from; i += 128) {
            x_scale[i] = a.x_scale ? a.x_scale[a.scale_of ? a.scale_of[t.from + i] : t.from + i] : 1.0f;
        }
    }

    __device__ __forceinline__ void release(int slot) const
    {
        if (tid == 0) {
            mbar_arrive(b.empty + slot * 8);
        }
    }

    template <int V> __device__ __forceinline__ void multiply()
    {
#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            acc[i] = 0.0f;
        }
        for (int k = 0; k < a.k_blocks; k++) {
            mbar_wait(b.full + b.slot * 8, b.parity);
            const uint32_t at = b.base + b.slot * block::STAGE;
            const uint64_t w = desc_sw128(at + block::AT_W + wg * 64 * 128), x = desc_sw128(at + block::AT_X);
            wg_hold<V / 2>(acc);
            wg_fence();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                wgmma_ss<KIND, V>(acc, w + i * 2, x + i * 2);
            }
            wg_commit();
            wg_hold<V / 2>(acc);
            wg_wait<1>(); /* one group may run on; the stage of the one before is free */
            if (k > 0) {
                release(b.before());
            }
            b.advance();
        }
        wg_wait<0>();
        wg_hold<V / 2>(acc);
        release(b.before());
    }

    /* Register j of a word of mx.cuh: two numbers in bf16, times a scale that is given twice. As bf16 E2M1's bits are 2^126 times
     * smaller. */
    __device__ __forceinline__ static uint32_t mx_pair(uint32_t w, int j, uint32_t scale)
    {
        const uint32_t size = j == 0 ? w << 6 : j == 1 ? w << 2 : j == 2 ? w >> 2 : w >> 6, sign = w << (12 - 4 * j);
        uint32_t r = (size & 0x01c001c0u) | (sign & 0x80008000u);
        asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(r) : "r"(0x7e807e80u));
        asm("mul.rn.bf16x2 %0, %0, %1;" : "+r"(r) : "r"(scale));
        return r;
    }

    /* MXFP4: W in registers as the left operand. A stage is two blocks of 32 columns; one is made while the other is multiplied. */
    template <int V> __device__ __forceinline__ void multiply_mx()
    {
        const int row = wg * 64 + warp * 16 + lane / 4;
        const char *const codes = b.front + FRONT + block::AT_W + row * 32 + lane % 4 * 4;
        const char *const scales = b.front + FRONT + block::AT_W + MX_CODES + row * 2;
        uint32_t op[2][8] = {};

#pragma unroll
        for (int i = 0; i < V / 2; i++) {
            acc[i] = 0.0f;
        }
        for (int k = 0; k < a.k_blocks; k++) {
            const int at = b.slot * block::STAGE;
            const uint64_t x = desc_sw128(b.base + at + block::AT_X);

            mbar_wait(b.full + b.slot * 8, b.parity);
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint32_t word = *(const uint32_t *)(codes + at + r * 256 + half * 16);
                    const uint32_t e = *(const uint8_t *)(scales + at + r * 16 + half), scale = e ? e * 0x800080u : 0x400040u;
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        op[half][j / 2 * 4 + j % 2 * 2 + r] = mx_pair(word, j, scale);
                    }
                }
                wg_hold<8>(op[half]);
                wg_hold<V / 2>(acc);
                wg_fence();
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint32_t *o = op[half] + 4 * i;
                    wgmma_rs<true, V>(acc, o[0], o[1], o[2], o[3], x + (half * 2 + i) * 2);
                }
                wg_commit();
                wg_hold<V / 2>(acc);
                wg_wait<1>(); /* the products of the block before are done: their registers, and their stage, are free */
                wg_hold<8>(op[half ^ 1]);
                if (half == 0 && k > 0) {
                    release(b.before());
                }
            }
            b.advance();
        }
        wg_wait<0>();
        wg_hold<V / 2>(acc);
        wg_hold<8>(op[1]);
        release(b.before());
    }

    /* Sixteen pairs from `pair` on, with their scales, by pair to shared memory from row `to` on. */
    __device__ __forceinline__ void put_pairs(int pair, const float *d, int to) const
    {
        const int col = pair + 2 * (lane % 4);
        const float2 s0 = *(const float2 *)(x_scale + col), s1 = *(const float2 *)(x_scale + col + 8);
        const uint32_t r[4] = {
            pack_f16(a.y_bf16, d[0] * (w_scale[0] * s0.x) + bias[0], d[1] * (w_scale[0] * s0.y) + bias[0]),
            pack_f16(a.y_bf16, d[2] * (w_scale[1] * s0.x) + bias[1], d[3] * (w_scale[1] * s0.y) + bias[1]),
            pack_f16(a.y_bf16, d[4] * (w_scale[0] * s1.x) + bias[0], d[5] * (w_scale[0] * s1.y) + bias[0]),
            pack_f16(a.y_bf16, d[6] * (w_scale[1] * s1.x) + bias[1], d[7] * (w_scale[1] * s1.y) + bias[1]),
        };
        const int matrix = lane / 8, at = to + matrix / 2 * 8 + lane % 8;
        stmatrix4_t(smem_u32(store) + (uint32_t)(at * PITCH + warp * 32 + matrix % 2 * 16), r);
    }

    template <int V> __device__ __forceinline__ void store_tile() const
    {
        constexpr int AT_ONCE = V % CHUNK ? 16 : CHUNK;
        const int row = t.row + wg * 64 + tid % 8 * 8;
        uint16_t *const y = (uint16_t *)a.y + a.y_off[t.part] + row;

        meet(); /* the scales are there */
#pragma unroll
        for (int c = 0; c < V; c += AT_ONCE) {
#pragma unroll
            for (int i = 0; i < AT_ONCE; i += 16) {
                put_pairs(c + i, acc + (c + i) / 2, i);
            }
            meet();
#pragma unroll
            for (int i = tid / 8; i < AT_ONCE; i += 16) {
                if (t.from + c + i < t.to && row < a.rows[t.part]) {
                    *(uint4 *)(y + (t.from + c + i) * a.y_stride) = *(const uint4 *)(store + i * PITCH + tid % 8 * 16);
                }
            }
            meet();
        }
    }

    template <int V> __device__ __forceinline__ void tile()
    {
        if constexpr (MX) {
            multiply_mx<V>();
            load_scales(); /* here they take no registers from the products */
        } else {
            multiply<V>();
        }
        store_tile<V>();
    }

    __device__ __forceinline__ void run()
    {
        while (b.next(&t)) {
            const int n = t.to - t.from;
            if constexpr (!MX) {
                load_scales();
            }
            if (n <= N / 4) {
                tile<N / 4>();
            } else if (n <= N / 2) {
                tile<N / 2>();
            } else if (n <= N / 4 * 3) {
                tile<N / 4 * 3>();
            } else {
                tile<N>();
            }
        }
    }
};

template <int KIND, int N, int BLOCKS, bool MX>
static __global__ void __launch_bounds__(THREADS, BLOCKS) grouped_kernel(const __grid_constant__ grouped_params a)
{
#ifdef NRD_SM90A
    extern __shared__ char raw[];
    const grouped_block<KIND, N, BLOCKS, MX> b(a, raw);

    b.begin();
    if (threadIdx.x < CONSUMERS) {
        grouped_consumer<KIND, N, BLOCKS, MX>(b).run();
    } else {
        grouped_bringer<KIND, N, BLOCKS, MX>(b).run();
    }
#else
    (void)a;
#endif
}

/* y[i] = x[token[i]], rows of so many uint4. A warp a row. */
static __global__ void __launch_bounds__(256) sort_rows_kernel(const uint4 *x, const int32_t *token, uint4 *y,
                                                               int32_t n_pairs, int32_t n)
{
    const int32_t i = (int32_t)blockIdx.x * 8 + (int32_t)threadIdx.x / 32;

    pdl_wait();
    pdl_go();
    if (i < n_pairs) {
        const uint4 *from = x + (int64_t)token[i] * n;
        for (int32_t k = threadIdx.x % 32; k < n; k += 32) {
            y[(int64_t)i * n + k] = from[k];
        }
    }
}

nrd_error *nrd_cuda_moe_sort_rows(nrd_stream *s, const nrd_moe_linear_args *a, size_t row_bytes, const void **x)
{
    const int64_t n_pairs = (int64_t)a->n_tokens * a->pairs.top_k;
    void *room;

    NRD_TRY(nrd_cuda_stream_tmp(s, (size_t)n_pairs * row_bytes, &room));
    *x = room;
    return launch(s, sort_rows_kernel, dim3((unsigned)((n_pairs + 7) / 8)), dim3(256), 0, (const uint4 *)a->x,
                  (const int32_t *)a->pairs.token, (uint4 *)room, (int32_t)n_pairs, (int32_t)(row_bytes / 16));
}

template <int KIND, int N, int BLOCKS, bool MX>
static nrd_error *grouped_launch(nrd_stream *s, const grouped_params &p, int64_t n_pairs)
{
    const int64_t most = most_pair_tiles(n_pairs, p.n_experts, N);
    const int64_t blocks = std::min<int64_t>(s->dev->n_sm * BLOCKS, most * p.tile_end[p.n_parts - 1]);

    return launch(s, grouped_kernel<KIND, N, BLOCKS, MX>, dim3((unsigned)blocks), dim3(THREADS),
                  (size_t)1024 + FRONT + RING / BLOCKS, p);
}

template <int KIND, bool MX = false>
static nrd_error *grouped_kind(nrd_stream *s, const grouped_params &p, int64_t n_pairs, bool many)
{
    /* two blocks would leave too few registers for what makes MXFP4 an operand */
    return many ? grouped_launch<KIND, 128, MX ? 1 : 2, MX>(s, p, n_pairs) : grouped_launch<KIND, 64, 1, MX>(s, p, n_pairs);
}

/* The map of MXFP4's codes for boxes of 64 columns of ROWS rows. */
static bool codes_map(const cuda_device *dev, CUtensorMap *map, const nrd_weight *w)
{
    const cuuint64_t dims[2] = {(cuuint64_t)w->cols / 2, (cuuint64_t)w->rows}, strides[1] = {(cuuint64_t)w->cols / 2};
    const cuuint32_t box[2] = {32, ROWS}, ones[2] = {1, 1};

    return dev->encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, (void *)w->data, dims, strides, box, ones,
                       CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

nrd_error *nrd_cuda_moe_linear_hopper(nrd_stream *s, const nrd_moe_linear_args *a, int64_t y_stride, int64_t y_off, bool *done)
{
    const int64_t n_pairs = (int64_t)a->n_tokens * a->pairs.top_k, cols = a->w[0]->cols;
    const bool is_f8 = a->x_dtype == NRD_DTYPE_F8_E4M3, mx = a->w[0]->dtype == NRD_DTYPE_MXFP4;
    const int size = is_f8 ? 1 : 2;
    grouped_params p = {};

    *done = false;
    if (!s->dev->hopper || !s->dev->encode || (a->y_dtype != NRD_DTYPE_BF16 && a->y_dtype != NRD_DTYPE_F16) ||
        a->x_dtype == NRD_DTYPE_F32 || (mx && a->x_dtype != NRD_DTYPE_BF16) || cols * size % 16 != 0 || !aligned16(a->x) ||
        !aligned16(a->y) || y_stride % 8 != 0 || y_off % 8 != 0) {
        return NULL;
    }
    for (int i = 0; i < a->n_parts; i++) {
        const nrd_weight *w = a->w[i];
        const int64_t rows = w->rows / a->pairs.n_experts;
        if (w->dtype != (mx ? NRD_DTYPE_MXFP4 : a->x_dtype) || rows % 8 != 0 || !aligned16(w->data) ||
            !(mx ? codes_map(s->dev, &p.w[i], w) : tma_map(s->dev, &p.w[i], w->dtype, w->data, w->rows, cols, ROWS))) {
            return NULL;
        }
        p.mx_scales[i] = mx ? mx_of(w->data, w->rows, cols).scales : NULL;
        p.w_scale[i] = is_f8 ? (const float *)w->scales : NULL;
        p.bias[i] = a->bias[i] ? (const float *)a->bias[i]->data : NULL;
        p.rows[i] = (int32_t)rows;
        p.y_off[i] = (int32_t)y_off;
        y_off += rows;
        p.tile_end[i] = (i ? p.tile_end[i - 1] : 0) + (int32_t)((rows + ROWS - 1) / ROWS);
    }
    const bool one_by_one = !a->x_sorted && n_pairs <= FEW * a->pairs.n_experts;
    const void *x = a->x;
    if (!a->x_sorted && !one_by_one) {
        void *room;
        NRD_TRY(nrd_cuda_stream_tmp(s, (size_t)(n_pairs * cols * size), &room));
        x = room;
    }
    const bool many = n_pairs > MANY * std::min<int64_t>(n_pairs, a->pairs.n_experts);
    if (!tma_map(s->dev, &p.x, a->x_dtype, x, one_by_one ? a->n_tokens : n_pairs, cols, one_by_one ? 1 : many ? 32 : 16)) {
        return NULL;
    }
    if (x != a->x) {
        NRD_TRY(nrd_cuda_moe_sort_rows(s, a, (size_t)(cols * size), &x));
    }
    p.x_scale = is_f8 ? a->x_row_scale : NULL;
    p.first = a->pairs.first;
    p.token = one_by_one ? a->pairs.token : NULL;
    p.scale_of = a->x_sorted ? NULL : a->pairs.token;
    p.n_experts = a->pairs.n_experts;
    p.n_parts = a->n_parts;
    p.k_blocks = (int32_t)((cols * size + 127) / 128);
    p.y = a->y;
    p.y_stride = y_stride;
    p.y_bf16 = a->y_dtype == NRD_DTYPE_BF16;
    *done = true;
    if (mx) {
        return grouped_kind<NRD_DTYPE_BF16, true>(s, p, n_pairs, many);
    }
    switch (a->x_dtype) {
    case NRD_DTYPE_BF16:
        return grouped_kind<NRD_DTYPE_BF16>(s, p, n_pairs, many);
    case NRD_DTYPE_F16:
        return grouped_kind<NRD_DTYPE_F16>(s, p, n_pairs, many);
    default:
        return grouped_kind<NRD_DTYPE_F8_E4M3>(s, p, n_pairs, many);
    }
}
