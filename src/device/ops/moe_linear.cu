/* SPDX-License-Identifier: Apache-2.0
 * moe_linear: products of sorted pairs with their experts' matrices.
 *
 * Work      A block takes up to 64 pairs of one expert and 64 of its rows, 32 columns at a time through shared
 *           memory; each of four warps has 32 x 32 results on the tensor cores (wmma), F8 as f16, in
 *           which every e4m3 number is exact. float32: the same tile in plain f32, 32 results a thread. MXFP4: unpacked
 *           on its way to shared memory; every number of it is exact in bf16.
 * Experts   How many pairs each has only the device knows, so the grid is as large as any routing needs:
 *           tile i belongs to the expert that the sum of tiles before reaches i at, found by a scan of
 *           `first`; blocks beyond the last tile end at once.
 * Bound     few pairs: memory, each expert's rows once. Sums do not depend on the other pairs.
 */
#include "device/ops/moe_tiles.cuh"
#include "device/ops/mx.cuh"
#include "device/ops/packed.cuh"

#include <algorithm>
#include <mma.h>

enum { TILE = 64, STEP = 32, THREADS = 128, PAD = 8 };
enum { F8_BLOCKS_PAIRS = 4 }; /* an expert on average, from which on tiles of 128 of them are faster than what reads x in 16 bits */

struct moe_linear_params {
    const int32_t *first, *token;
    int32_t n_experts, x_sorted;
    const void *x, *w;
    const float *x_scale, *w_scale, *bias; /* or NULL */
    void *y;
    int64_t rows, cols, y_stride, y_off;
    bool is_aligned; /* rows of x and w: eight numbers at a time */
};

/* Numbers k .. k + 7 of a row as S; those behind `cols`, or of no row (NULL), are zero. */
template <typename W, typename S>
static __device__ __forceinline__ void load_part(const W *row, int64_t k, int64_t cols, bool is_aligned, S *to)
{
    float v[8] = {};

    if (row && is_aligned && k < cols) {
        if constexpr (sizeof(W) == 1) {
            const uint2 raw = *(const uint2 *)(row + k);
            f8 t[8];
            memcpy(t, &raw, 8);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                v[i] = to_f(t[i]);
            }
        } else {
            load8(row + k, v);
        }
    } else if (row) {
        for (int i = 0; i < 8 && k + i < cols; i++) {
            v[i] = to_f(row[k + i]);
        }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        to[i] = from_f<S>(v[i]);
    }
}

/* 64 rows x 32 columns from column k on; row r of the tile is rows(r), NULL where there is none. */
template <typename W, typename S, typename F>
static __device__ __forceinline__ void load_tile(S (*to)[STEP + PAD], int64_t k, int64_t cols, bool is_aligned, F rows)
{
#pragma unroll
    for (int i = threadIdx.x; i < TILE * STEP / 8; i += THREADS) {
        const int r = i / (STEP / 8), part = i % (STEP / 8) * 8;
        load_part<W, S>(rows(r), k + part, cols, is_aligned, &to[r][part]);
    }
}

/* The same of rows r0 .. r0 + 63, below `rows`, of a matrix of MXFP4. */
template <typename S>
static __device__ __forceinline__ void load_tile_mx(S (*to)[STEP + PAD], const mx_matrix &m, int64_t r0, int64_t rows,
                                                    int64_t k, int64_t cols)
{
#pragma unroll
    for (int i = threadIdx.x; i < TILE * STEP / 8; i += THREADS) {
        const int r = i / (STEP / 8), c = i % (STEP / 8);
        float v[8] = {};
        if (r0 + r < rows) {
            mx_load_word(m, r0 + r, k, c, cols, v);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            to[r][j / 2 * 8 + 2 * c + j % 2] = from_f<S>(v[j]);
        }
    }
}

/* X, W: of x and the weights in memory, W mx_matrix for MXFP4; S: of the tiles in shared memory. */
template <typename X, typename W, typename S, typename Y>
static __global__ void __launch_bounds__(THREADS) moe_linear_kernel(moe_linear_params a)
{
    using namespace nvcuda;
    __shared__ __align__(32) S xs[TILE][STEP + PAD], ws[TILE][STEP + PAD];
    __shared__ __align__(32) float out[TILE][TILE + 4];
    const int warp = threadIdx.x / 32, m0 = warp / 2 * 32, n0 = warp % 2 * 32;
    const int64_t r0 = (int64_t)blockIdx.x * TILE;
    pair_tile t;

    pdl_wait();
    pdl_go();
    if (!find_pair_tile(a.first, a.n_experts, (int32_t)blockIdx.y, TILE, &t)) {
        return;
    }
    const auto x_at = [&](int r) {
        const int64_t i = t.from + r;
        return i < t.to ? (const X *)a.x + (a.x_sorted ? i : a.token[i]) * a.cols : (const X *)NULL;
    };
    float sums[TILE * TILE / THREADS] = {}; /* float32 only: pairs threadIdx / 16 + 8i, rows threadIdx % 16 + 16j */
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc[2][2];
    if constexpr (sizeof(S) == 2) {
        for (int i = 0; i < 4; i++) {
            wmma::fill_fragment(acc[i / 2][i % 2], 0.0f);
        }
    }
    for (int64_t k = 0; k < a.cols; k += STEP) {
        load_tile<X, S>(xs, k, a.cols, a.is_aligned, x_at);
        if constexpr (std::is_same<W, mx_matrix>::value) {
            const int64_t first = (int64_t)t.expert * a.rows;
            load_tile_mx<S>(ws, mx_of(a.w, a.rows * a.n_experts, a.cols), first + r0, first + a.rows, k, a.cols);
        } else {
            const W *w = (const W *)a.w + (int64_t)t.expert * a.rows * a.cols;
            load_tile<W, S>(ws, k, a.cols, a.is_aligned,
                            [&](int r) { return r0 + r < a.rows ? w + (r0 + r) * a.cols : (const W *)NULL; });
        }
        __syncthreads();
        if constexpr (sizeof(S) == 2) {
#pragma unroll
            for (int kk = 0; kk < STEP; kk += 16) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, S, wmma::row_major> xf[2];
                wmma::fragment<wmma::matrix_b, 16, 16, 16, S, wmma::col_major> wf[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    wmma::load_matrix_sync(xf[i], &xs[m0 + 16 * i][kk], STEP + PAD);
                    wmma::load_matrix_sync(wf[i], &ws[n0 + 16 * i][kk], STEP + PAD);
                }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    wmma::mma_sync(acc[i / 2][i % 2], xf[i / 2], wf[i % 2], acc[i / 2][i % 2]);
                }
            }
        } else {
            for (int kk = 0; kk < STEP; kk++) {
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    sums[i] += xs[threadIdx.x / 16 + i / 4 * 8][kk] * ws[threadIdx.x % 16 + i % 4 * 16][kk];
                }
            }
        }
        __syncthreads();
    }
    if constexpr (sizeof(S) == 2) {
        for (int i = 0; i < 4; i++) {
            wmma::store_matrix_sync(&out[m0 + i / 2 * 16][n0 + i % 2 * 16], acc[i / 2][i % 2], TILE + 4,
                                    wmma::mem_row_major);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            out[threadIdx.x / 16 + i / 4 * 8][threadIdx.x % 16 + i % 4 * 16] = sums[i];
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * TILE; i += THREADS) {
        const int64_t pair = t.from + i / TILE, r = r0 + i % TILE;
        if (pair < t.to && r < a.rows) {
            const float ws1 = a.w_scale ? a.w_scale[t.expert * a.rows + r] : 1.0f;
            const float xs1 = a.x_scale ? a.x_scale[a.x_sorted ? pair : a.token[pair]] : 1.0f;
            const float b = a.bias ? a.bias[t.expert * a.rows + r] : 0.0f;
            ((Y *)a.y)[pair * a.y_stride + a.y_off + r] = from_f<Y>(out[i / TILE][i % TILE] * ws1 * xs1 + b);
        }
    }
}

template <typename X, typename W, typename S>
static nrd_error *run(nrd_stream *s, const moe_linear_params *p, nrd_dtype y_dtype, int64_t n_pairs)
{
    const dim3 grid((unsigned)((p->rows + TILE - 1) / TILE), (unsigned)most_pair_tiles(n_pairs, p->n_experts, TILE));

    ACT_TYPE(y_dtype, return launch(s, moe_linear_kernel<X, W, S, T>, grid, dim3(THREADS), 0, *p));
}

static nrd_error *run_part(nrd_stream *s, const nrd_moe_linear_args *a, int part, const moe_linear_params *p,
                           int64_t n_pairs)
{
    if (a->w[part]->dtype == NRD_DTYPE_MXFP4) {
        ACT_TYPE(a->x_dtype, return (run<T, mx_matrix, T>(s, p, a->y_dtype, n_pairs)));
    }
    switch (a->w[part]->dtype) {
    case NRD_DTYPE_BF16:
        return run<bf16, bf16, bf16>(s, p, a->y_dtype, n_pairs);
    case NRD_DTYPE_F16:
        return run<f16, f16, f16>(s, p, a->y_dtype, n_pairs);
    case NRD_DTYPE_F8_E4M3:
        return run<f8, f8, f16>(s, p, a->y_dtype, n_pairs);
    default:
        return run<float, float, float>(s, p, a->y_dtype, n_pairs);
    }
}

static nrd_error *check(const nrd_moe_linear_args *a)
{
    const int64_t n_pairs = (int64_t)a->n_tokens * a->pairs.top_k;

    if (a->n_parts < 1 || a->n_parts > NRD_LINEAR_MAX_PARTS || !is_act_dtype(a->y_dtype) || a->pairs.n_experts < 1 ||
        n_pairs / TILE + a->pairs.n_experts > 65535 || (a->x_dtype == NRD_DTYPE_F8_E4M3 && !a->x_row_scale)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: moe_linear: %d parts, %lld pairs, x of dtype %d, y of dtype %d",
                          a->n_parts, (long long)n_pairs, (int)a->x_dtype, (int)a->y_dtype);
    }
    for (int i = 0; i < a->n_parts; i++) {
        const nrd_weight *w = a->w[i];
        const bool mx = w->layout == NRD_LAYOUT_MX && w->dtype == NRD_DTYPE_MXFP4 && is_act_dtype(a->x_dtype);
        const bool plain = w->layout == NRD_LAYOUT_ROWS && w->dtype == a->x_dtype &&
                           (is_act_dtype(w->dtype) || (w->dtype == NRD_DTYPE_F8_E4M3 && w->scales));
        const bool packed = is_packed_layout(w->layout) && a->x_dtype == NRD_DTYPE_BF16 && w->cols % 32 == 0 && aligned16(a->x);
        if (w->cols != a->w[0]->cols || w->rows % a->pairs.n_experts || !(mx || plain || packed)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: moe_linear: part %d is %lld x %lld in dtype %d, x in dtype %d; "
                              "stacked weights come from weight_load, the type of x from linear_input", i,
                              (long long)w->rows, (long long)w->cols, (int)w->dtype, (int)a->x_dtype);
        }
        const nrd_weight *b = a->bias[i];
        if (b && (b->dtype != NRD_DTYPE_F32 || b->rows * b->cols != w->rows)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: moe_linear: the bias of part %d is %lld numbers in dtype %d; biases "
                              "come from weight_load", i, (long long)(b->rows * b->cols), (int)b->dtype);
        }
    }
    return NULL;
}

/* The parts' columns of y begin at y_off. No weights in the layout of packed.cuh. */
static nrd_error *products(nrd_stream *s, const nrd_moe_linear_args *a, int64_t y_stride, int64_t y_off)
{
    const int64_t n = a->pairs.n_experts, n_pairs = (int64_t)a->n_tokens * a->pairs.top_k;
    moe_linear_params p = {};
    bool done;

    NRD_TRY(nrd_cuda_moe_linear_wide(s, a, NRD_ACT_NONE, y_stride, y_off, &done));
    if (!done) {
        NRD_TRY(nrd_cuda_moe_linear_hopper(s, a, y_stride, y_off, &done));
    }
    if (done) {
        return NULL;
    }
    p.first = a->pairs.first;
    p.token = a->pairs.token;
    p.n_experts = a->pairs.n_experts;
    p.x_sorted = a->x_sorted;
    p.x = a->x;
    p.x_scale = a->x_dtype == NRD_DTYPE_F8_E4M3 ? a->x_row_scale : NULL;
    p.y = a->y;
    p.cols = a->w[0]->cols;
    p.y_stride = y_stride;
    p.y_off = y_off;
    for (int i = 0; i < a->n_parts; i++) {
        p.w = a->w[i]->data;
        p.w_scale = a->w[i]->dtype == NRD_DTYPE_F8_E4M3 ? (const float *)a->w[i]->scales : NULL;
        p.bias = a->bias[i] ? (const float *)a->bias[i]->data : NULL;
        p.rows = a->w[i]->rows / n;
        p.is_aligned = p.cols % 8 == 0 && aligned16(p.x) && aligned16(p.w);
        NRD_TRY(run_part(s, a, i, &p, n_pairs));
        p.y_off += p.rows;
    }
    return NULL;
}

/* a has one part. Its weights as bf16 in scratch memory, as many experts at a time as fit there, or rows of one. */
static nrd_error *product_unpacked(nrd_stream *s, const nrd_moe_linear_args *a, int64_t y_stride, int64_t y_off)
{
    const nrd_weight *w = a->w[0], *b = a->bias[0];
    const int64_t n = a->pairs.n_experts, rows = w->rows / n, fit = (int64_t)(SPLIT_WS_BYTES / (size_t)(w->cols * 2));
    const int64_t n_once = std::max<int64_t>(1, std::min(n, fit / rows));
    const int64_t rows_once = fit >= rows ? rows : std::max<int64_t>(1, fit / 128 * 128);

    NRD_TRY(nrd_cuda_stream_scratch(s));
    for (int64_t e = 0; e < n; e += n_once) {
        for (int64_t r = 0; r < rows; r += rows_once) {
            const int64_t n_here = std::min(n_once, n - e), rows_here = std::min(rows_once, rows - r), at = e * rows + r;
            nrd_weight piece = *w, add;
            nrd_moe_linear_args one = *a;
            piece.dtype = NRD_DTYPE_BF16;
            piece.layout = NRD_LAYOUT_ROWS;
            piece.rows = n_here * rows_here;
            piece.data = s->split_ws;
            piece.scales = NULL;
            piece.n_stacked = (int32_t)n_here;
            one.w[0] = &piece;
            if (b) {
                add = *b;
                add.data = (const float *)b->data + at;
                one.bias[0] = &add;
            }
            one.pairs.first += e;
            one.pairs.n_experts = (int32_t)n_here;
            NRD_TRY(nrd_cuda_packed_unpack(s, w, at, piece.rows, s->split_ws));
            NRD_TRY(products(s, &one, y_stride, y_off + r));
        }
    }
    return NULL;
}

/* Where a part's weights are in the layout of packed.cuh: one part after the other, unless the kernel of few or that of F8 in blocks takes several. */
static nrd_error *in_parts(nrd_stream *s, const nrd_moe_linear_args *a, int64_t y_stride)
{
    const int64_t n_pairs = (int64_t)a->n_tokens * a->pairs.top_k;
    const bool few = a->deterministic || n_pairs <= PACKED_FEW * (int64_t)a->pairs.n_experts;
    nrd_moe_linear_args one = *a;
    int64_t y_off = 0;

    one.n_parts = 1;
    for (int i = 0; i < a->n_parts;) {
        const bool packed = is_packed_layout(a->w[i]->layout);
        int to = i + 1;
        bool done = false;
        one.w[0] = a->w[i];
        one.bias[0] = a->bias[i];
        while (packed && to < a->n_parts && is_packed_layout(a->w[to]->layout) && a->w[to]->dtype == a->w[i]->dtype) {
            to++;
        }
        if (packed && n_pairs >= F8_BLOCKS_PAIRS * (int64_t)a->pairs.n_experts) {
            NRD_TRY(nrd_cuda_moe_linear_f8_blocks(s, a, i, to, y_stride, y_off, &done));
        }
        if (!done && packed && few) {
            NRD_TRY(nrd_cuda_moe_linear_packed(s, a, i, to));
            done = true;
        }
        if (!done) {
            to = i + 1;
            if (!few && !one.x_sorted) {
                NRD_TRY(nrd_cuda_moe_sort_rows(s, a, (size_t)a->w[0]->cols * 2, &one.x));
                one.x_sorted = true;
            }
            NRD_TRY(packed ? product_unpacked(s, &one, y_stride, y_off) : products(s, &one, y_stride, y_off));
        }
        while (i < to) {
            y_off += a->w[i++]->rows / a->pairs.n_experts;
        }
    }
    return NULL;
}

nrd_error *nrd_cuda_moe_linear(nrd_stream *s, const nrd_moe_linear_args *a)
{
    bool packed = false;
    int64_t y_stride = 0;

    NRD_TRY(check(a));
    if (a->n_tokens <= 0 || a->pairs.top_k <= 0) {
        return NULL;
    }
    for (int i = 0; i < a->n_parts; i++) {
        packed = packed || is_packed_layout(a->w[i]->layout);
        y_stride += a->w[i]->rows / a->pairs.n_experts;
    }
    return packed ? in_parts(s, a, y_stride) : products(s, a, y_stride, 0);
}
