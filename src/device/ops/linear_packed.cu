/* SPDX-License-Identifier: Apache-2.0
 * linear_packed: y = x W^T (+ bias, softcap) for weights in the layout of packed.cuh and few rows of x; of experts, for their pairs.
 * Shapes    x [n, K] bf16, K a multiple of 32, of F8_B128 of 128; W up to 4 parts of one type; y bf16, fp16 or f32. Any n.
 * Work      W is the left operand of mma.m16n8k16, read from memory straight into registers: 16 rows x 128 columns a warp and
 *           step, of which lane 4g + t holds of rows g and g + 8 16 columns at 16t and at 64 + 16t, of NVFP4 32 at 32t. Which
 *           column is which k of the product is free as long as x is read the same way. The eight warps of a block share K, step by step in turns,
 *           and add up in order through shared memory, so that a sum depends on K alone. The first steps of W are asked for
 *           before the kernel in front has ended.
 *           E4M3 becomes bf16 by moving bits and one exact product. A float32 scale of 128 columns is applied to the step's sum,
 *           an E8M0 scale to the numbers themselves, exactly.
 * Experts   A block has 16 rows of one expert (or 32) and up to 16 of its pairs, whose rows of x are where `token` says.
 * Bound     up to 8 rows memory; each 16 rows read W again, from the L2 where it fits.
 */
#include "device/ops/linear_rows.cuh"
#include "device/ops/moe_tiles.cuh"
#include "device/ops/packed.cuh"

enum {
    MAX_PARTS = NRD_LINEAR_MAX_PARTS,
    WARPS = 8,
    TABLE_COPIES = 8, /* so that lanes meet less often in a bank */
};

struct packed_params {
    const uint8_t *codes[MAX_PARTS];
    const void *scales[MAX_PARTS];
    int64_t scale_row[MAX_PARTS], scale_block[MAX_PARTS]; /* see unpack_kernel */
    int row_shift[MAX_PARTS];
    const float *row_scale[MAX_PARTS]; /* NULL: none */
    int tile_end[MAX_PARTS];           /* tiles of the parts up to and including this one */
    int rows[MAX_PARTS], y_off[MAX_PARTS];
    const float *bias[MAX_PARTS]; /* of the caller's parts, by column of y */
    int bias_end[MAX_PARTS];
    const bf16 *x;
    void *y;
    int64_t ldy, cols;
    int n_tokens, n_steps, y_dtype;
    float softcap;
    /* Experts, else first is NULL: rows are those of one, tokens are pairs; token NULL: x is sorted. */
    const int32_t *first, *token;
    int n_experts;
};

static __device__ __forceinline__ void mma_16816(float *c, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* What a lane reads of 16 rows x 128 columns. */
struct step_of_w {
    uint4 q[2][2];        /* rows g and g + 8; two runs of 16 columns, of NVFP4 both in the first */
    uint32_t scale[2][2]; /* of each: the bits of a float32, or the file's byte */
};

/* Where lane t's run i of 16 columns begins. */
template <int KIND> static __device__ __forceinline__ int64_t column_of(int step, int t, int i)
{
    return (int64_t)step * 128 + (KIND == NRD_DTYPE_NVFP4 ? t * 32 + i * 16 : i * 64 + t * 16);
}

template <int KIND>
static __device__ __forceinline__ void load_w(const packed_params &a, int part, int base, int row0, int step, int lane, step_of_w *to)
{
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = base + min(row0 + h * 8 + g, a.rows[part] - 1); /* rows behind the last are not stored */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int64_t col = column_of<KIND>(step, t, i);
            const bool in = step < a.n_steps && col < a.cols;
            if constexpr (has_table(KIND)) { /* 16 numbers in x and y */
                const uint2 q = in ? __ldcs((const uint2 *)(a.codes[part] + (row * a.cols + col) / 2)) : make_uint2(0, 0);
                to->q[h][i].x = q.x, to->q[h][i].y = q.y;
            } else if (KIND != NRD_DTYPE_NVFP4 || i == 0) {
                to->q[h][i] = in ? __ldcs((const uint4 *)(a.codes[part] + (row * a.cols + col) * packed_bits(KIND) / 8)) : make_uint4(0, 0, 0, 0);
            }
            if constexpr (KIND == NRD_DTYPE_NVFP4) {
                if (i == 0) { /* two, side by side */
                    const uint32_t two = in ? ((const uint16_t *)a.scales[part])[(row * a.scale_row[part] + col / 16) / 2] : 0;
                    to->scale[h][0] = two & 255;
                    to->scale[h][1] = two >> 8;
                }
            } else if constexpr (has_table(KIND)) {
                to->scale[h][i] = in ? ((const uint32_t *)a.scales[part])[row * a.scale_row[part] + col / 64] : 0;
            } else if constexpr (KIND == NRD_DTYPE_MXFP8) {
                to->scale[h][i] = in ? ((const uint8_t *)a.scales[part])[row * a.scale_row[part] + col / 32] : 0;
            } else if (i == 0) {
                const float *scales = (const float *)a.scales[part];
                to->scale[h][0] = in ? __float_as_uint(scales[(row >> a.row_shift[part]) * a.scale_row[part] +
                                                              step * a.scale_block[part]])
                                     : 0;
            }
        }
    }
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Whether a scale is float32 and meets sums, of 128 or 64 columns; else it is exact in bf16 and meets the numbers. */
static __host__ __device__ constexpr bool scales_sums(int kind)
{
    return kind == NRD_DTYPE_F8_B128 || has_table(kind);
}

/* Numbers 4k .. 4k + 3 of run i, as two pairs. table: the type's, of all pairs of codes, TABLE_COPIES times. */
template <int KIND>
static __device__ __forceinline__ void numbers(const uint4 *q, int i, int k, uint32_t scale, const uint32_t *table, uint32_t *pair)
{
    if constexpr (packed_bits(KIND) == 8) {
        e4m3_numbers(word_of(q[i], k), pair);
    } else if constexpr (has_table(KIND)) {
        const uint32_t h = (k < 2 ? q[i].x : q[i].y) >> (k % 2 * 16);
        pair[0] = table[(h & 255) * TABLE_COPIES];
        pair[1] = table[(h >> 8 & 255) * TABLE_COPIES];
    } else {
        const uint32_t w = word_of(q[0], i * 2 + k / 2);
        pair[0] = e2m1_as_bf16(w, k % 2 * 2);
        pair[1] = e2m1_as_bf16(w, k % 2 * 2 + 1);
    }
    if constexpr (!scales_sums(KIND)) {
        pair[0] = mul_bf16x2(pair[0], scale);
        pair[1] = mul_bf16x2(pair[1], scale);
    }
}

template <int KIND> static __device__ __forceinline__ uint32_t scale_pair(uint32_t bits)
{
    return scales_sums(KIND) ? 0 : KIND == NRD_DTYPE_NVFP4 ? e2m1_scale(bits) : e8m0_pair(bits);
}

template <int NT> static __device__ __forceinline__ void add_scaled(float (*acc)[4], float (*sum)[4], uint32_t bits0, uint32_t bits1)
{
    const float s0 = __uint_as_float(bits0), s1 = __uint_as_float(bits1);
#pragma unroll
    for (int n = 0; n < NT; n++) {
        acc[n][0] = fmaf(s0, sum[n][0], acc[n][0]);
        acc[n][1] = fmaf(s0, sum[n][1], acc[n][1]);
        acc[n][2] = fmaf(s1, sum[n][2], acc[n][2]);
        acc[n][3] = fmaf(s1, sum[n][3], acc[n][3]);
        sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0.0f;
    }
}

/* acc += a step of W x its columns of x. NT: eights of tokens; x_row: of experts, this lane's row of x for each. */
template <int KIND, int NT, bool EXPERTS>
static __device__ __forceinline__ void multiply(const packed_params &a, const uint32_t *table, const pair_tile &tile, const int *x_row, int step,
                                                int lane, const step_of_w &w, float (*acc)[4])
{
    const int g = lane >> 2, t = lane & 3;
    float sum[NT][4] = {};

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t col = column_of<KIND>(step, t, i);
        uint4 x[NT][2]; /* 16 columns */
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const int token = tile.from + n * 8 + g;
            const bool in = token < tile.to && col < a.cols;
            const uint4 *from = (const uint4 *)(a.x + (EXPERTS ? x_row[n] : token) * a.cols + col);
            x[n][0] = in ? from[0] : make_uint4(0, 0, 0, 0);
            x[n][1] = in ? from[1] : make_uint4(0, 0, 0, 0);
        }
        const uint32_t scale0 = scale_pair<KIND>(w.scale[0][i]), scale1 = scale_pair<KIND>(w.scale[1][i]);
#pragma unroll
        for (int k = 0; k < 4; k++) { /* 4 columns a lane */
            uint32_t top[2], low[2];
            numbers<KIND>(w.q[0], i, k, scale0, table, top);
            numbers<KIND>(w.q[1], i, k, scale1, table, low);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                mma_16816(scales_sums(KIND) ? sum[n] : acc[n], top[0], low[0], top[1], low[1], word_of(x[n][k / 2], k % 2 * 2),
                          word_of(x[n][k / 2], k % 2 * 2 + 1));
            }
        }
        if constexpr (has_table(KIND)) {
            add_scaled<NT>(acc, sum, w.scale[0][i], w.scale[1][i]);
        }
    }
    if constexpr (KIND == NRD_DTYPE_F8_B128) {
        add_scaled<NT>(acc, sum, w.scale[0][0], w.scale[1][0]);
    }
}

template <int KIND>
static __device__ __forceinline__ void store_one(const packed_params &a, int part, int base, int row, int token, float v)
{
    const row_consts of_row = load_consts(a, part, row, base);
    const int64_t at = (int64_t)token * a.ldy + a.y_off[part] + row;

    v = v * (KIND == NRD_DTYPE_NVFP4 ? of_row.scale * E2M1_UP : of_row.scale) + of_row.bias;
    if (a.softcap > 0.0f) {
        v = a.softcap * tanhf(v / a.softcap);
    }
    store_as(a.y, a.y_dtype, at, v);
}

/* A block has MT x 16 rows of W and NT x 8 tokens; AHEAD steps of W are under way in each warp. */
template <int KIND, int MT, int NT, bool EXPERTS>
static __global__ void __launch_bounds__(WARPS * 32, 2) linear_packed_kernel(const __grid_constant__ packed_params a)
{
    constexpr int AHEAD = 4 / MT, ROWS = MT * 16, TOKENS = NT * 8;
    __shared__ float sums[WARPS][TOKENS][ROWS + 1];
    __shared__ uint32_t table[has_table(KIND) ? 256 * TABLE_COPIES : 1];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    pair_tile tile = {0, (int)blockIdx.y * TOKENS, a.n_tokens};
    int part = 0;
    if (EXPERTS) {
        pdl_wait(); /* who has which pairs was found out by a kernel */
        if (!find_pair_tile(a.first, a.n_experts, (int)blockIdx.y, TOKENS, &tile)) {
            return;
        }
    }
    while ((int)blockIdx.x >= a.tile_end[part]) {
        part++;
    }
    const int row0 = ((int)blockIdx.x - (part ? a.tile_end[part - 1] : 0)) * ROWS;
    const int base = EXPERTS ? tile.expert * a.rows[part] : 0;
    int x_row[NT];
    float acc[MT][NT][4] = {};
    step_of_w w[AHEAD][MT];

#pragma unroll
    for (int n = 0; n < NT; n++) {
        const int token = tile.from + n * 8 + g;
        x_row[n] = EXPERTS && a.token && token < tile.to ? a.token[token] : token;
    }

    if constexpr (has_table(KIND)) {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(table_number(KIND, threadIdx.x & 15), table_number(KIND, threadIdx.x >> 4 & 15));
        for (int i = 0; i < TABLE_COPIES; i++) { /* as many threads as pairs */
            memcpy(&table[threadIdx.x * TABLE_COPIES + i], &pair, 4);
        }
        __syncthreads();
    }
    for (int step = warp; step < a.n_steps; step += WARPS * AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
                load_w<KIND>(a, part, base, row0 + m * 16, step + i * WARPS, lane, &w[i][m]);
            }
        }
        if (step == warp) {
            pdl_wait(); /* W depends on no kernel, x does */
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
                multiply<KIND, NT, EXPERTS>(a, table + lane % TABLE_COPIES, tile, x_row, step + i * WARPS, lane, w[i][m], acc[m]);
            }
        }
    }
    pdl_go();
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sums[warp][n * 8 + 2 * t + i % 2][m * 16 + i / 2 * 8 + g] = acc[m][n][i];
            }
        }
    }
    __syncthreads();
    pdl_wait(); /* warps without a step have not waited yet */
    for (int i = threadIdx.x; i < ROWS * TOKENS; i += WARPS * 32) {
        const int row = i % ROWS, token = i / ROWS;
        float v = 0.0f;
#pragma unroll
        for (int k = 0; k < WARPS; k++) {
            v += sums[k][token][row];
        }
        if (row0 + row < a.rows[part] && tile.from + token < tile.to) {
            store_one<KIND>(a, part, base, row0 + row, tile.from + token, v);
        }
    }
}

template <int KIND, int MT, int NT> static nrd_error *packed_launch(nrd_stream *s, packed_params &p, int n_w)
{
    int tiles = 0;
    for (int i = 0; i < n_w; i++) {
        tiles += (p.rows[i] + MT * 16 - 1) / (MT * 16);
        p.tile_end[i] = tiles;
    }
    const int64_t slots = p.first ? most_pair_tiles(p.n_tokens, p.n_experts, NT * 8) : (p.n_tokens + NT * 8 - 1) / (NT * 8);
    return launch(s, p.first ? linear_packed_kernel<KIND, MT, NT, true> : linear_packed_kernel<KIND, MT, NT, false>,
                  dim3((unsigned)tiles, (unsigned)slots), dim3(WARPS * 32), 0, p);
}

/* More rows of W a block where x weighs as much as W. */
template <int KIND> static nrd_error *packed_run(nrd_stream *s, packed_params &p, int n_w)
{
    const int each = p.first ? p.n_tokens / p.n_experts : p.n_tokens;
    return each <= 2   ? packed_launch<KIND, 1, 1>(s, p, n_w)
           : each <= 8 ? packed_launch<KIND, 2, 1>(s, p, n_w)
                       : packed_launch<KIND, 2, 2>(s, p, n_w);
}

static nrd_error *run_kind(nrd_stream *s, packed_params &p, int kind, int n_w)
{
    return kind == NRD_DTYPE_MXFP8   ? packed_run<NRD_DTYPE_MXFP8>(s, p, n_w)
           : kind == NRD_DTYPE_NVFP4 ? packed_run<NRD_DTYPE_NVFP4>(s, p, n_w)
           : kind == NRD_DTYPE_NF4   ? packed_run<NRD_DTYPE_NF4>(s, p, n_w)
           : kind == NRD_DTYPE_FP4   ? packed_run<NRD_DTYPE_FP4>(s, p, n_w)
                                     : packed_run<NRD_DTYPE_F8_B128>(s, p, n_w);
}

/* Part k of the launch: w, whose columns of y begin at y_off. rows: of w, or of one of its experts. */
static void set_part(packed_params *p, int k, const nrd_weight *w, int64_t rows, int64_t y_off)
{
    const int kind = (int)w->dtype;
    const bool by_blocks = w->layout == NRD_LAYOUT_PACKED_BLOCKS;
    const int64_t codes = w->cols * packed_bits(kind) / 8, behind = packed_row_scales(kind, w->cols);

    p->codes[k] = (const uint8_t *)w->data;
    p->scales[k] = behind ? (const void *)((const uint8_t *)w->data + w->rows * codes) : w->scales;
    p->scale_row[k] = behind ? (has_table(kind) ? behind / 4 : behind) : by_blocks ? round_up4(w->cols / 128) : 1;
    p->scale_block[k] = by_blocks ? 1 : round_up4(w->rows);
    p->row_scale[k] = kind == NRD_DTYPE_NVFP4 ? (const float *)w->scales : NULL;
    p->row_shift[k] = by_blocks ? 7 : 0;
    p->rows[k] = (int)rows;
    p->y_off[k] = (int)y_off;
}

static void set_x(packed_params *p, const void *x, int64_t cols, int n_tokens, void *y, int64_t ldy, nrd_dtype y_dtype)
{
    p->x = (const bf16 *)x;
    p->y = y;
    p->ldy = ldy;
    p->cols = cols;
    p->n_tokens = n_tokens;
    p->n_steps = (int)((cols + 127) / 128);
    p->y_dtype = y_dtype;
}

nrd_error *nrd_cuda_linear_packed(nrd_stream *s, const nrd_linear_args *a, int from, int to, bool plain)
{
    const nrd_weight *first = a->w[from];
    packed_params p = {};
    int64_t col = 0;

    if (!aligned16(a->x) || first->cols % 32 != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: linear: x of %lld columns at an odd address", (long long)first->cols);
    }
    for (int i = 0; i < a->n_parts; i++) {
        if (i >= from && i < to) {
            set_part(&p, i - from, a->w[i], a->w[i]->rows, col);
        }
        p.bias[i] = a->bias[i] && !plain ? (const float *)a->bias[i]->data : NULL;
        col += a->w[i]->rows;
        p.bias_end[i] = (int)col;
    }
    set_x(&p, a->x, first->cols, a->n_tokens, a->y, col, a->y_dtype);
    p.softcap = plain ? 0.0f : a->softcap;
    return run_kind(s, p, (int)first->dtype, to - from);
}

nrd_error *nrd_cuda_moe_linear_packed(nrd_stream *s, const nrd_moe_linear_args *a, int from, int to)
{
    const nrd_weight *first = a->w[from];
    packed_params p = {};
    int64_t col = 0;

    for (int i = 0; i < a->n_parts; i++) {
        const int64_t rows = a->w[i]->rows / a->pairs.n_experts;
        if (i >= from && i < to) {
            set_part(&p, i - from, a->w[i], rows, col);
        }
        p.bias[i] = a->bias[i] ? (const float *)a->bias[i]->data : NULL;
        col += rows;
        p.bias_end[i] = (int)col;
    }
    set_x(&p, a->x, first->cols, a->n_tokens * a->pairs.top_k, a->y, col, a->y_dtype);
    p.first = a->pairs.first;
    p.token = a->x_sorted ? NULL : a->pairs.token;
    p.n_experts = a->pairs.n_experts;
    return run_kind(s, p, (int)first->dtype, to - from);
}
