/* SPDX-License-Identifier: Apache-2.0
 * linear_hopper: which products of many rows linear_hopper.cuh takes, and its launch.
 *   gated     gate, up and activation in one, of 16 bits, where whole rounds of tiles have little to spare: it saves what would be written and
 *             read again between product and activation. Where nothing is gated the library is as fast
 *   experts   from some 160 rows an expert on, gated or not; fewer are left to moe_linear_hopper.cu
 * Tried       F8 outside of experts: right, and no faster than the library's product and act(), which also converts to F8 (Llama-3.1-8B, 128
 *             in and out, two runs by turns: 29,530 and 29,624 tokens/s with it, 29,665 and 29,583 without).
 *             With x as the left operand, rows of W in an order that lets a tile end in registers, and the conversion by idle warps of the
 *             same launch: 29,655 and 29,682, 30,614 and 30,560 without (docs/performance/gpu-kernels.md, "F8 products of our own, tried").
 */
#include "device/ops/linear_hopper.cuh"

#include <algorithm>

enum { SHORT_COLS = 1024 };
enum { WIDE_TILE = 256, WIDE_GROUP = 16, WIDE_EXPERT = 160 /* rows of x an expert, on average */ };

/* The map of eight rows of one matrix and eight of another that lies behind it by turns, for boxes of 64 rows of each. */
static bool pair_map(const cuda_device *dev, CUtensorMap *map, const nrd_weight *g, const nrd_weight *u)
{
    const int size = g->dtype == NRD_DTYPE_F8_E4M3 ? 1 : 2;
    const cuuint64_t row = (cuuint64_t)g->cols * (cuuint64_t)size, apart = (cuuint64_t)((const char *)u->data - (const char *)g->data);
    const cuuint64_t dims[4] = {(cuuint64_t)g->cols, 8, 2, (cuuint64_t)g->rows / 8}, strides[3] = {row, apart, 8 * row};
    const cuuint32_t box[4] = {(cuuint32_t)(128 / size), 8, 2, 8}, ones[4] = {1, 1, 1, 1};

    return dev->encode(map, tma_type(g->dtype), 4, (void *)g->data, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* The map of y [tokens, rows] for the chunks of a warpgroup. */
template <typename S>
static bool chunk_map(const cuda_device *dev, CUtensorMap *map, nrd_dtype dtype, void *y, int64_t tokens, int64_t rows, int64_t stride)
{
    const cuuint64_t dims[2] = {(cuuint64_t)rows, (cuuint64_t)tokens}, strides[1] = {(cuuint64_t)stride * 2};
    const cuuint32_t box[2] = {S::WG_ROWS, S::CHUNK}, ones[2] = {1, 1};

    return dev->encode(map, tma_type(dtype), 2, y, dims, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       S::GATED ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                       CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* A product as linear() and moe_linear() have it. */
struct wide_product {
    const nrd_weight *w[2]; /* or G and U */
    const void *x;
    nrd_dtype y_dtype;
    int64_t n_tokens, most_tiles; /* of rows of x */
};

template <typename S> static nrd_error *wide_launch(nrd_stream *s, wide_params p, const wide_product *w, bool *done)
{
    const cuda_device *dev = s->dev;
    const nrd_weight *first = w->w[0], *second = w->w[S::GATED ? 1 : 0];

    p.up_first = second->data < first->data;
    if (p.up_first) {
        std::swap(first, second);
    }
    *done = tma_map(dev, &p.x, first->dtype, w->x, w->n_tokens, first->cols, S::QUARTER) &&
            chunk_map<S>(dev, &p.y, w->y_dtype, p.y_rows, w->n_tokens, p.rows, p.y_stride) &&
            (S::GATED ? pair_map(dev, &p.w, first, second)
                      : tma_map(dev, &p.w, first->dtype, first->data, first->rows, first->cols, S::ROWS));
    if (!*done) {
        return NULL;
    }
    p.w_scale[0] = (const float *)first->scales;
    p.w_scale[1] = (const float *)second->scales;
    p.k_steps = (int32_t)((first->cols + S::K_STEP - 1) / S::K_STEP);
    p.group = WIDE_GROUP;
    p.y_bf16 = w->y_dtype == NRD_DTYPE_BF16;
    const int64_t pair = S::Y_ROWS * S::CLUSTER, all = (p.rows + pair - 1) / pair * w->most_tiles;
    const dim3 grid((unsigned)(std::min<int64_t>(dev->n_sm / S::CLUSTER, all) * S::CLUSTER));
    return launch_cluster(s, wide_kernel<S>, dim3(S::CLUSTER), grid, dim3(S::THREADS), S::SMEM, p);
}

template <int KIND> static nrd_error *wide_act(nrd_stream *s, const wide_params &p, const wide_product *w, nrd_act_kind act, bool *done)
{
    switch (act) {
    case NRD_ACT_NONE:
        return wide_launch<wide_shape<KIND, NRD_ACT_NONE>>(s, p, w, done);
    case NRD_ACT_SILU:
        return wide_launch<wide_shape<KIND, NRD_ACT_SILU>>(s, p, w, done);
    default:
        return wide_launch<wide_shape<KIND, NRD_ACT_GELU_TANH>>(s, p, w, done);
    }
}

static nrd_error *wide_run(nrd_stream *s, const wide_params &p, const wide_product *w, nrd_act_kind act, bool *done)
{
    switch (w->w[0]->dtype) {
    case NRD_DTYPE_BF16:
        return wide_act<NRD_DTYPE_BF16>(s, p, w, act, done);
    case NRD_DTYPE_F16:
        return wide_act<NRD_DTYPE_F16>(s, p, w, act, done);
    default:
        return wide_act<NRD_DTYPE_F8_E4M3>(s, p, w, act, done);
    }
}

/* Types and alignments that the kernel can take; `rows` of y. */
static bool fits(const nrd_stream *s, const nrd_weight *const *w, int n_parts, nrd_dtype x_dtype, const void *x, nrd_dtype y_dtype, const void *y,
                 int64_t rows, nrd_act_kind act)
{
    const bool f8 = x_dtype == NRD_DTYPE_F8_E4M3;
    bool fit = s->dev->hopper && s->dev->encode && (f8 || x_dtype == NRD_DTYPE_BF16 || x_dtype == NRD_DTYPE_F16) && aligned16(x) && aligned16(y) &&
               (y_dtype == NRD_DTYPE_BF16 || y_dtype == NRD_DTYPE_F16) && rows % 8 == 0 && w[0]->cols * (f8 ? 1 : 2) % 16 == 0 &&
               (act == NRD_ACT_NONE ? n_parts == 1 : n_parts == 2 && (act == NRD_ACT_SILU || act == NRD_ACT_GELU_TANH));

    for (int i = 0; fit && i < n_parts; i++) {
        fit = w[i]->layout == NRD_LAYOUT_ROWS && w[i]->dtype == x_dtype && aligned16(w[i]->data) && w[i]->rows == w[0]->rows && (!f8 || w[i]->scales);
    }
    return fit;
}

static bool has_bias(const nrd_weight *const *bias, int n_parts)
{
    return bias[0] || (n_parts > 1 && bias[1]);
}

nrd_error *nrd_cuda_linear_gated(nrd_stream *s, const nrd_linear_args *a, nrd_act_kind act, bool *done)
{
    const int64_t rows = a->w[0]->rows, at_once = s->dev->n_sm / 2;
    const int64_t tiles = (a->n_tokens + WIDE_TILE - 1) / WIDE_TILE, all = (rows + 127) / 128 * tiles;
    const double full = (double)a->n_tokens / WIDE_TILE * (double)rows / 128; /* of `all`, what is no padding */
    /* Few columns, and all tiles at once: what counts is that one kernel stands for two. */
    const bool is_short = a->w[0]->cols <= SHORT_COLS && a->n_tokens >= WIDE_TILE && all <= at_once;

    *done = false;
    if (a->deterministic || has_bias(a->bias, a->n_parts) || a->softcap > 0.0f || a->x_dtype == NRD_DTYPE_F8_E4M3 ||
        !fits(s, a->w, a->n_parts, a->x_dtype, a->x, a->y_dtype, a->y, rows, act)) {
        return NULL;
    }
    if (!is_short && full < 0.88 * (double)((all + at_once - 1) / at_once * at_once)) {
        return NULL;
    }
    const wide_product w = {.w = {a->w[0], a->w[1]}, .x = a->x, .y_dtype = a->y_dtype, .n_tokens = a->n_tokens, .most_tiles = tiles};
    wide_params p = {};
    p.rows = (int32_t)rows;
    p.n_tokens = a->n_tokens;
    p.n_experts = 1;
    p.y_rows = a->y;
    p.y_stride = rows;
    return wide_run(s, p, &w, act, done);
}

nrd_error *nrd_cuda_moe_linear_wide(nrd_stream *s, const nrd_moe_linear_args *a, nrd_act_kind act, int64_t y_stride, int64_t y_off, bool *done)
{
    const int64_t n_pairs = (int64_t)a->n_tokens * a->pairs.top_k, n_experts = a->pairs.n_experts, rows = a->w[0]->rows / n_experts;
    char *const y = (char *)a->y + y_off * 2;

    *done = false;
    if (a->deterministic || has_bias(a->bias, a->n_parts) || n_pairs < WIDE_EXPERT * n_experts || y_stride % 8 != 0 ||
        !fits(s, a->w, a->n_parts, a->x_dtype, a->x, a->y_dtype, y, rows, act)) {
        return NULL;
    }
    wide_product w = {.w = {a->w[0], a->n_parts > 1 ? a->w[1] : NULL},
                      .x = a->x,
                      .y_dtype = a->y_dtype,
                      .n_tokens = n_pairs,
                      .most_tiles = most_pair_tiles(n_pairs, n_experts, WIDE_TILE)};
    if (!a->x_sorted) {
        NRD_TRY(nrd_cuda_moe_sort_rows(s, a, (size_t)a->w[0]->cols * (a->x_dtype == NRD_DTYPE_F8_E4M3 ? 1 : 2), &w.x));
    }
    wide_params p = {};
    p.x_scale = a->x_row_scale;
    p.first = a->pairs.first;
    p.scale_of = a->x_sorted ? NULL : a->pairs.token;
    p.rows = (int32_t)rows;
    p.n_tokens = (int32_t)n_pairs;
    p.n_experts = (int32_t)n_experts;
    p.y_rows = y;
    p.y_stride = y_stride;
    return wide_run(s, p, &w, act, done);
}

nrd_error *nrd_cuda_moe_linear_gated(nrd_stream *s, const nrd_moe_linear_args *a, nrd_act_kind act, bool *done)
{
    *done = false;
    return act == NRD_ACT_NONE || a->n_tokens <= 0 || a->pairs.n_experts <= 0
               ? NULL
               : nrd_cuda_moe_linear_wide(s, a, act, a->w[0]->rows / a->pairs.n_experts, 0, done);
}
