/* SPDX-License-Identifier: Apache-2.0
 * linear_f8_blocks: y = x W^T for F8 weights of experts in blocks of 128 x 128 and sorted pairs, whose rows of x are rounded to F8 in groups of
 * 1 x 128 in front of it; Hopper. The kernel: linear_f8_blocks.cuh.
 * Shapes    x [n, K] bf16, K a multiple of 128; W up to 4 parts; y bf16.
 * Work      As many tiles of pairs at a time as scratch memory has room for: a kernel rounds them, then one launch for all parts.
 */
#include "device/ops/linear_f8_blocks.cuh"
#include "device/ops/packed.cuh"

#include <algorithm>

/* The map of rows of y for what a warp stores at a time. */
static bool y_map(const cuda_device *dev, CUtensorMap *map, void *y, int64_t tokens, int64_t rows, int64_t stride)
{
    const cuuint64_t dims[2] = {(cuuint64_t)rows, (cuuint64_t)tokens}, strides[1] = {(cuuint64_t)stride * 2};
    const cuuint32_t box[2] = {32, 16}, ones[2] = {1, 1};

    return dev->encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, y, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Parts of a product: their columns of y lie side by side. */
struct f8_blocks_parts {
    const nrd_weight *const *w;
    int n;
    int64_t n_experts; /* whose matrices are stacked */
};

/* Tiles of rows of W, of one expert. */
static int64_t tiles_of(const f8_blocks_parts &w, int n_parts)
{
    int64_t tiles = 0;
    for (int i = 0; i < n_parts; i++) {
        tiles += (w.w[i]->rows / w.n_experts + f8_blocks::ROWS - 1) / f8_blocks::ROWS;
    }
    return tiles;
}

/* `tiles`: of pairs. */
static nrd_error *f8_blocks_launch(nrd_stream *s, f8_blocks_params p, const f8_blocks_parts &w, int64_t tiles, bool *done)
{
    *done = true;
    for (int i = 0; i < w.n; i++) {
        *done = *done && tma_map(s->dev, &p.w[i], NRD_DTYPE_F8_E4M3, w.w[i]->data, w.w[i]->rows, w.w[i]->cols, f8_blocks::ROWS);
        p.tile_end[i] = (int32_t)tiles_of(w, i + 1);
    }
    if (!*done) {
        return NULL;
    }
    const dim3 grid((unsigned)std::min<int64_t>(s->dev->n_sm, tiles_of(w, w.n) * tiles));
    return launch_cluster(s, f8_blocks_kernel, dim3(1), grid, dim3(f8_blocks::THREADS), f8_blocks::SMEM, p);
}

/* Whether the kernel can take them, and bulk stores can write to y, rows `stride` numbers apart. */
static bool parts_fit(const nrd_stream *s, const f8_blocks_parts &w, const void *x, const void *y, int64_t stride)
{
    bool fit = s->dev->hopper && s->dev->encode && aligned16(x) && aligned16(y) && stride % 8 == 0;

    for (int i = 0; fit && i < w.n; i++) {
        fit = w.w[i]->rows / w.n_experts % (w.n_experts > 1 ? 128 : 8) == 0 && w.w[i]->dtype == NRD_DTYPE_F8_B128 &&
              w.w[i]->layout == NRD_LAYOUT_PACKED_BLOCKS && aligned16(w.w[i]->data);
    }
    return fit;
}

/* n rows of y; what depends neither on tiles nor on where x is. */
static bool params_of(f8_blocks_params *p, const nrd_stream *s, const f8_blocks_parts &w, char *y, int64_t n, int64_t stride)
{
    const int64_t steps = w.w[0]->cols / 128;
    bool fit = true;

    *p = {};
    for (int i = 0; i < w.n; i++) {
        const int64_t rows = w.w[i]->rows / w.n_experts;
        p->w_scale[i] = (const float *)w.w[i]->scales;
        p->rows[i] = (int32_t)rows;
        p->y_rows[i] = (bf16 *)y;
        fit = fit && y_map(s->dev, &p->y[i], y, n, rows, stride);
        y += rows * 2;
    }
    p->n_parts = w.n;
    p->k_steps = (int32_t)steps;
    p->scale_pitch = (int32_t)round_up4(steps);
    p->y_stride = stride;
    return fit;
}

/* Where the rows of x of a tile of tokens come from. */
struct f8_blocks_rows {
    const int32_t *first, *token; /* experts, and whose row each is, or NULL: itself */
    int n, n_experts, from_tile;  /* n: rows of x; as in f8_blocks_params */
};

/* A warp quantizes 128 columns of four rows, g, g + 8, g + 1 and g + 9 of sixteen, eight lanes a row. The four lanes that hold two neighbouring
 * sixteens of g's columns and of those of g + 8 then swap words, so that each has the 16 bytes of a lane of the product. */
static __global__ void __launch_bounds__(256)
    f8_blocks_quantize_kernel(const bf16 *x, f8_blocks_rows rows, int k_steps, int64_t all, uint8_t *out, float *scales)
{
    const int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32, piece = i / 4; /* of 16 rows and 128 columns */
    const int lane = threadIdx.x % 32, half = lane % 2, is_second = lane / 8 % 2;
    const int g = (int)(i % 4) * 2 + lane / 16, k = (int)(piece % k_steps), row = (int)(piece / k_steps) * 16 + g + is_second * 8;
    int64_t from = row;
    bool is_there = row < rows.n;
    uint32_t q[4];

    pdl_wait();
    pdl_go();
    if (i >= all) {
        return;
    }
    if (rows.first) {
        pair_tile tile;
        if (!find_pair_tile(rows.first, rows.n_experts, rows.from_tile + row / 128, 128, &tile)) {
            return;
        }
        from = tile.from + row % 128;
        is_there = from < tile.to;
        from = is_there && rows.token ? rows.token[from] : from;
    }
    const float scale = f8_group(x + from * k_steps * 128 + k * 128 + lane % 8 * 16, is_there, q);
    /* Lanes of the first sixteen keep words 0 and 1 of both, those of the second words 2 and 3. */
    const uint32_t other0 = __shfl_xor_sync(0xffffffffu, half ? q[0] : q[2], 1), other1 = __shfl_xor_sync(0xffffffffu, half ? q[1] : q[3], 1);
    const uint32_t a0 = half ? other0 : q[0], a1 = half ? other1 : q[1], b0 = half ? q[2] : other0, b1 = half ? q[3] : other1;
    /* Lanes of g keep the first of them, of both rows, those of g + 8 the second. */
    const uint32_t a = __shfl_xor_sync(0xffffffffu, is_second ? a0 : a1, 8), b = __shfl_xor_sync(0xffffffffu, is_second ? b0 : b1, 8);
    uint8_t *const to = out + ((int64_t)(row / 128) * k_steps + k) * F8_BLOCKS_X;
    *(uint4 *)(to + row % 128 / 16 * 2048 + lane % 8 / 2 * 512 + (g * 4 + half * 2 + is_second) * 16) =
        is_second ? make_uint4(a, a1, b, b1) : make_uint4(a0, a, b0, b);
    if (lane % 8 == 0) {
        scales[((int64_t)(row / 128) * k_steps + k) * 128 + row % 128] = scale;
    }
}

/* Tiles of 128 rows of x as F8 in scratch memory; *p: where they lie. */
static nrd_error *f8_blocks_quantize(nrd_stream *s, const void *x, const f8_blocks_rows &rows, int64_t tiles, f8_blocks_params *p)
{
    const int64_t steps = p->k_steps, warps = tiles * 128 / 4 * steps;
    float *const scales = (float *)(s->split_ws + tiles * 128 * steps * 128);

    p->x = (const uint8_t *)s->split_ws;
    p->x_scale = scales;
    return launch(s, f8_blocks_quantize_kernel, dim3((unsigned)((warps + 7) / 8)), dim3(256), 0, (const bf16 *)x, rows, (int)steps, warps,
                  (uint8_t *)s->split_ws, scales);
}

/* Tiles of 128 rows of x that scratch memory has room for. */
static int64_t most_tiles(int64_t cols)
{
    return (int64_t)(SPLIT_WS_BYTES / (size_t)(128 * (cols + cols / 128 * 4)));
}

nrd_error *nrd_cuda_moe_linear_f8_blocks(nrd_stream *s, const nrd_moe_linear_args *a, int from, int to, int64_t y_stride, int64_t y_off, bool *done)
{
    const f8_blocks_parts w = {a->w + from, to - from, a->pairs.n_experts};
    const int64_t n_pairs = (int64_t)a->n_tokens * a->pairs.top_k;
    const int64_t tiles = most_pair_tiles(n_pairs, w.n_experts, 128), most = std::min(tiles, most_tiles(a->w[from]->cols));
    char *const y = (char *)a->y + y_off * 2;
    f8_blocks_rows rows = {};
    f8_blocks_params p;

    *done = false;
    if (a->deterministic || most == 0 || a->y_dtype != NRD_DTYPE_BF16 || !parts_fit(s, w, a->x, y, y_stride)) {
        return NULL;
    }
    for (int i = from; i < to; i++) {
        if (a->bias[i]) {
            return NULL;
        }
    }
    NRD_TRY(nrd_cuda_stream_scratch(s));
    if (!params_of(&p, s, w, y, n_pairs, y_stride)) {
        return NULL;
    }
    p.first = rows.first = a->pairs.first;
    p.n_experts = rows.n_experts = a->pairs.n_experts;
    p.n_tiles = (int32_t)most;
    rows.token = a->x_sorted ? NULL : a->pairs.token;
    for (int64_t t = 0; t < tiles; t += most) { /* tiles that there are not cost next to nothing */
        p.from_tile = rows.from_tile = (int32_t)t;
        NRD_TRY(f8_blocks_quantize(s, a->x, rows, most, &p));
        NRD_TRY(f8_blocks_launch(s, p, w, most, done));
        if (!*done) {
            return NULL;
        }
    }
    return NULL;
}
