/* SPDX-License-Identifier: Apache-2.0
 * linear_i8: y = x W^T for int8 weights and many rows of x, which are rounded to int8 in front of it; Hopper. The kernel: linear_i8.cuh.
 * Shapes    x [n, K] bf16, K a multiple of 16; W up to 4 parts; y bf16 or fp16.
 * Work      As many tokens at a time as scratch memory has room for: a kernel rounds them, then one launch for all parts. Of the three tiles
 *           a product takes the one that needs less time: rounds of all multiprocessors times what a tile takes.
 */
#include "device/ops/linear_i8.cuh"
#include "device/ops/wq.cuh"

#include <algorithm>

/* The map of chunks of wq.cuh for boxes of 128 columns x `box_rows` rows, in words of eight bytes: a row of the map is 16 rows of W. */
static bool chunk_map(const cuda_device *dev, CUtensorMap *map, const nrd_weight *w, int box_rows)
{
    const int64_t chunks = (w->cols + WQ_COLS - 1) / WQ_COLS, bytes = wq_chunk(8, WQ_ROW);
    const cuuint64_t dims[2] = {(cuuint64_t)(chunks * bytes / 8), (cuuint64_t)((w->rows + WQ_ROWS - 1) / WQ_ROWS)};
    const cuuint64_t strides[1] = {(cuuint64_t)(chunks * bytes)};
    const cuuint32_t box[2] = {256, (cuuint32_t)(box_rows / WQ_ROWS)}, ones[2] = {1, 1};

    return dev->encode(map, CU_TENSOR_MAP_DATA_TYPE_INT64, 2, (void *)w->data, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Parts from .. to of `a`, and x as it lies in p: p without tiles, their maps and their order. */
template <typename S>
static nrd_error *i8_launch(nrd_stream *s, i8_params p, const nrd_linear_args *a, int from, int to, const void *x, bool *done)
{
    int tiles = 0;

    *done = tma_map(s->dev, &p.x, NRD_DTYPE_F8_E4M3 /* a byte a number */, x, p.n_tokens, a->w[from]->cols, S::TOKENS / S::CLUSTER);
    for (int i = from; i < to; i++) {
        *done = *done && chunk_map(s->dev, &p.w[i - from], a->w[i], S::ROWS);
        tiles += (int)((a->w[i]->rows + S::ROWS - 1) / S::ROWS);
        p.tile_end[i - from] = tiles;
    }
    if (!*done) {
        return NULL;
    }
    p.group = 4096 / S::TOKENS;
    const int64_t all = (int64_t)((tiles + S::CLUSTER - 1) / S::CLUSTER) * ((p.n_tokens + S::TOKENS - 1) / S::TOKENS);
    const dim3 grid((unsigned)(std::min<int64_t>(s->dev->n_sm / S::CLUSTER, all) * S::CLUSTER));
    return launch_cluster(s, i8_kernel<S>, dim3(S::CLUSTER), grid, dim3(S::THREADS), S::SMEM, p);
}

/* Time of a product with these tiles, in any unit; `tile` that of one tile and 128 columns. */
template <typename S> static double i8_time(const nrd_stream *s, const nrd_linear_args *a, int from, int to, int64_t n, double tile)
{
    int64_t tiles = 0;
    for (int i = from; i < to; i++) {
        tiles += (a->w[i]->rows + S::ROWS - 1) / S::ROWS;
    }
    const int64_t all = (tiles + S::CLUSTER - 1) / S::CLUSTER * ((n + S::TOKENS - 1) / S::TOKENS), at_once = s->dev->n_sm / S::CLUSTER;
    return (double)((all + at_once - 1) / at_once) * tile;
}

typedef i8_shape<256, 2> i8_large;
typedef i8_shape<128, 3> i8_tall;
typedef i8_shape<128, 2> i8_small;

static nrd_error *i8_run(nrd_stream *s, const i8_params &p, const nrd_linear_args *a, int from, int to, const void *x, bool *done)
{
    const double large = i8_time<i8_large>(s, a, from, to, p.n_tokens, 1.0), tall = i8_time<i8_tall>(s, a, from, to, p.n_tokens, 0.9),
                 small = i8_time<i8_small>(s, a, from, to, p.n_tokens, 0.65);

    return large <= tall && large <= small ? i8_launch<i8_large>(s, p, a, from, to, x, done)
           : tall < small                  ? i8_launch<i8_tall>(s, p, a, from, to, x, done)
                                           : i8_launch<i8_small>(s, p, a, from, to, x, done);
}

/* Whether 16-byte stores can write the parts' columns of y; *ldy: of all parts. */
static bool parts_fit(const nrd_linear_args *a, int from, int to, int64_t *ldy)
{
    bool fit = a->y_dtype != NRD_DTYPE_F32 && aligned16(a->y) && aligned16(a->x);

    *ldy = 0;
    for (int i = 0; i < a->n_parts; i++) {
        fit = fit && (i < from || i >= to || (*ldy % 8 == 0 && a->w[i]->rows % 8 == 0));
        *ldy += a->w[i]->rows;
    }
    return fit && *ldy % 8 == 0;
}

/* What does not depend on tiles and on which tokens. */
static i8_params params_of(const nrd_linear_args *a, int from, int to, int64_t ldy)
{
    i8_params p = {};
    int64_t col = 0;

    for (int i = 0; i < to; i++) {
        if (i >= from) {
            p.w_scale[i - from] = (const float *)a->w[i]->scales;
            p.rows[i - from] = (int)a->w[i]->rows;
            p.y_off[i - from] = (int)col;
        }
        col += a->w[i]->rows;
    }
    p.n_parts = to - from;
    p.k_steps = (int)((a->w[from]->cols + WQ_COLS - 1) / WQ_COLS) * (WQ_COLS / 128);
    p.ldy = ldy;
    p.y_bf16 = a->y_dtype == NRD_DTYPE_BF16;
    return p;
}

/* A block a row: [n][cols] bf16 -> int8 with a scale each, columns in the order of i8_column. cols a multiple of 16; 16 of them wait in a
 * thread's registers for the row's maximum, VPT times. */
template <int VPT> static __global__ void __launch_bounds__(512) i8_quantize_kernel(const bf16 *x, int cols, int8_t *out, float *scales)
{
    __shared__ float red[32];
    const int64_t row = blockIdx.x;
    float v[VPT][16], top = 0.0f;

    pdl_wait();
    pdl_go();
    x += row * cols;
#pragma unroll
    for (int j = 0; j < VPT; j++) {
        const int i = (int)(threadIdx.x + j * blockDim.x) * 16;
        if (i < cols) {
            load8(x + i, v[j]);
            load8(x + i + 8, v[j] + 8);
#pragma unroll
            for (int k = 0; k < 16; k++) {
                top = fmaxf(top, fabsf(v[j][k]));
            }
        }
    }
    top = block_reduce<op_max>(top, red);
    const float scale = top > 0.0f ? top / 127.0f : 1.0f, inverse = fminf(1.0f / scale, 3.4e38f);
    if (threadIdx.x == 0) {
        scales[row] = scale;
    }
#pragma unroll
    for (int j = 0; j < VPT; j++) {
        const int i = (int)(threadIdx.x + j * blockDim.x) * 16;
        int8_t q[16];
        uint4 all;
#pragma unroll
        for (int k = 0; k < 16; k++) {
            q[k] = from_f<int8_t>(v[j][i8_column(k)] * inverse);
        }
        memcpy(&all, q, 16);
        if (i < cols) {
            *(uint4 *)(out + row * cols + i) = all;
        }
    }
}

enum { I8_MOST_COLS = 4 * 512 * 16 };

static nrd_error *i8_quantize(nrd_stream *s, const bf16 *x, int n, int cols, int8_t *out, float *scales)
{
    const int vecs = cols / 16, vpt = vecs <= 512 ? 1 : vecs <= 1024 ? 2 : 4;
    const dim3 grid((unsigned)n), block((unsigned)((vecs + vpt - 1) / vpt + 31) & ~31u);

    return vpt == 1   ? launch(s, i8_quantize_kernel<1>, grid, block, 0, x, cols, out, scales)
           : vpt == 2 ? launch(s, i8_quantize_kernel<2>, grid, block, 0, x, cols, out, scales)
                      : launch(s, i8_quantize_kernel<4>, grid, block, 0, x, cols, out, scales);
}

nrd_error *nrd_cuda_linear_i8(nrd_stream *s, const nrd_linear_args *a, int from, int to, bool *done)
{
    const int64_t cols = a->w[from]->cols, most = (int64_t)(SPLIT_WS_BYTES / (size_t)(cols + 4)) / 256 * 256;
    int64_t ldy;

    *done = false;
    if (!s->dev->hopper || !s->dev->encode || cols > I8_MOST_COLS || cols % 16 != 0 || !parts_fit(a, from, to, &ldy)) {
        return NULL;
    }
    NRD_TRY(nrd_cuda_stream_scratch(s));
    i8_params p = params_of(a, from, to, ldy);
    for (int64_t t = 0; t < a->n_tokens; t += most) {
        p.n_tokens = (int)std::min<int64_t>(most, a->n_tokens - t);
        float *scales = (float *)(s->split_ws + p.n_tokens * cols);
        NRD_TRY(i8_quantize(s, (const bf16 *)a->x + t * cols, p.n_tokens, (int)cols, (int8_t *)s->split_ws, scales));
        p.x_scale = scales;
        p.y = (char *)a->y + t * ldy * 2;
        NRD_TRY(i8_run(s, p, a, from, to, s->split_ws, done));
        if (!*done) {
            return NULL;
        }
    }
    return NULL;
}
