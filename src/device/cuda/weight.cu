/* SPDX-License-Identifier: Apache-2.0
 * weight.cu - how weights live on the GPU.
 *
 *   bf16, fp16, f32   as they are
 *   F8 (e4m3)         as it is, with a scale for every row (a per-tensor scale is repeated), on Hopper
 *                     (the library scales rows of both sides only there); elsewhere bf16
 *   int8, GGUF blocks on Hopper, for linear(): their integers and scales, exactly, in the layout of
 *                     ops/wq.cuh (Q2_K and Q3_K: bf16); elsewhere, and for embed(), bf16
 *   F8_B128, MXFP8,
 *   NVFP4, NF4, FP4   for linear(): numbers and scales as they are, in the layout of ops/packed.cuh; for embed(), bf16
 *   vectors           f32 (norms and biases: small, and read by every thread)
 */
#include "device/cuda/cuda_dev.cuh"
#include "device/cuda/expand.cuh"
#include "device/ops/mx.cuh"
#include "device/ops/packed.cuh"
#include "device/ops/wq.cuh"

extern "C" {
#include "base/dtype.h"
}

#include <algorithm>
#include <cstring>

static bool is_vector(const nrd_weight *w, bool is_linear)
{
    return w->cols == 1 && !is_linear;
}

static nrd_dtype kept_as(const cuda_device *dev, const nrd_weight *w, bool is_linear)
{
    if (is_vector(w, is_linear)) {
        return NRD_DTYPE_F32;
    }
    switch (w->dtype) {
    case NRD_DTYPE_F32:
    case NRD_DTYPE_F16:
    case NRD_DTYPE_BF16:
        return w->dtype;
    case NRD_DTYPE_F8_E4M3:
        return dev->hopper ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_BF16;
    case NRD_DTYPE_I8:
        return NRD_DTYPE_BF16;
    default:
        return nrd_dtype_is_quant(w->dtype) || nrd_dtype_is_packed(w->dtype) ? NRD_DTYPE_BF16 : NRD_DTYPE_NONE;
    }
}

/* A factor for all of a matrix has no place in the layout; no format of blocks comes with one. */
static bool kept_quantized(const cuda_device *dev, const nrd_weight *w, bool is_linear)
{
    return is_linear && dev->hopper && dev->encode && wq_of(w->dtype).bits > 0 && w->n_stacked == 0 &&
           (w->dtype == NRD_DTYPE_I8 || (!w->scales && (w->scale <= 0.0f || w->scale == 1.0f)));
}

/* Experts of 4 bits: as bf16 a model of them would not fit. */
static bool kept_mx(const nrd_weight *w, bool is_linear)
{
    return is_linear && w->dtype == NRD_DTYPE_MXFP4 && w->n_stacked > 0 && (w->scale <= 0.0f || w->scale == 1.0f);
}

static bool kept_packed(const nrd_weight *w, bool is_linear)
{
    return is_linear && nrd_dtype_is_packed(w->dtype) && (w->scale <= 0.0f || w->scale == 1.0f);
}

/* Whether each 128 rows of blocks of the file have the same scales. */
static bool has_square_blocks(const nrd_weight *w)
{
    const size_t block = nrd_dtype_block_bytes(w->dtype), row = (size_t)(w->cols / 128) * block;
    const char *data = (const char *)w->data;

    for (int64_t r = 0; w->dtype == NRD_DTYPE_F8_B128 && r < w->rows; r++) {
        for (size_t at = 0; at < row; at += block) {
            if (memcmp(data + (size_t)r * row + at, data + (size_t)(r / 128 * 128) * row + at, 4) != 0) {
                return false;
            }
        }
    }
    return true;
}

static uint32_t layout_of_packed(const nrd_weight *w)
{
    return has_square_blocks(w) ? NRD_LAYOUT_PACKED_BLOCKS : NRD_LAYOUT_PACKED_ROWS;
}

static size_t scale_bytes(const nrd_weight *w)
{
    return is_packed_layout(w->layout) ? packed_scale_bytes(w->dtype, w->layout, w->rows, w->cols) : (size_t)w->rows * 4;
}

static nrd_error *source_bytes(nrd_dtype dtype, int64_t rows, int64_t cols, size_t *out)
{
    const int block = nrd_dtype_block(dtype);

    if (nrd_dtype_block_bytes(dtype) == 0 || rows <= 0 || cols <= 0 || cols % block != 0 ||
        rows > ((int64_t)1 << 48) / cols || !nrd_dtype_bytes(dtype, (uint64_t)(rows * cols), out)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: a weight of %lld x %lld in %s",
                          (long long)rows, (long long)cols, nrd_dtype_name(dtype));
    }
    return NULL;
}

static nrd_error *weight_plan(nrd_device *d, nrd_dtype dtype, int64_t rows, int64_t cols,
                              bool is_linear, uint32_t *out_layout, uint64_t *out_bytes)
{
    size_t bytes;

    (void)d;
    (void)is_linear;
    NRD_TRY(source_bytes(dtype, rows, cols, &bytes));
    *out_layout = NRD_LAYOUT_ROWS;
    *out_bytes = bytes;
    return NULL;
}

static nrd_error *weight_pack(nrd_device *d, const nrd_weight *src, uint32_t layout, void *dst)
{
    size_t bytes;

    (void)d;
    if (layout != NRD_LAYOUT_ROWS || src->layout != NRD_LAYOUT_ROWS) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: weight layout %u", layout);
    }
    NRD_TRY(source_bytes(src->dtype, src->rows, src->cols, &bytes));
    memcpy(dst, src->data, bytes);
    return NULL;
}

static void weight_unload(nrd_device *d, nrd_weight *w)
{
    cuda_device *dev = (cuda_device *)d;

    if (w->data) {
        nrd_cuda_slab_free(dev, dev->slabs, (void *)w->data, w->data_bytes);
    }
    if (w->scales) {
        nrd_cuda_slab_free(dev, dev->vslabs, (void *)w->scales, scale_bytes(w));
    }
    w->data = NULL;
    w->scales = NULL;
}

/* Uploads raw rows in pieces through scratch memory and converts them into out->data: numbers of
 * out->dtype, or the layout of quantized ones. */
static nrd_error *load_expanded(nrd_stream *s, const nrd_weight *src, const nrd_weight *out,
                                const float *dev_scales, float scale)
{
    const int block = nrd_dtype_block(src->dtype);
    const int block_bytes = (int)nrd_dtype_block_bytes(src->dtype);
    const size_t row_bytes = (size_t)(src->cols / block) * (size_t)block_bytes;
    const size_t out_row = (size_t)src->cols * (out->dtype == NRD_DTYPE_F32 ? 4 : 2);
    const int64_t step = /* whole groups of rows */
        std::max<int64_t>(1, (int64_t)(((size_t)64 << 20) / row_bytes) / WQ_ROWS) * WQ_ROWS;
    void *raw = NULL;
    nrd_error *err = NULL;

    NRD_TRY(nrd_cuda_pool_alloc(&s->dev->base, &raw, NRD_MEM_DEVICE,
                       (size_t)std::min(step, src->rows) * row_bytes, "load"));
    for (int64_t r = 0; r < src->rows && !err; r += step) {
        const int64_t n = std::min(step, src->rows - r);
        cudaError_t e = cudaMemcpyAsync(raw, (const char *)src->data + (size_t)r * row_bytes,
                                        (size_t)n * row_bytes, cudaMemcpyHostToDevice, s->s);
        if (e != cudaSuccess) {
            err = nrd_cuda_fail(e, "uploading a weight");
        } else if (out->layout == NRD_LAYOUT_MX) {
            err = nrd_cuda_mx_pack(s, raw, r, n, src->rows, src->cols, (void *)out->data);
        } else if (is_packed_layout(out->layout)) {
            err = nrd_cuda_packed_pack(s, raw, r, n, out);
        } else if (out->layout == NRD_LAYOUT_WQ) { /* r is a multiple of 16 */
            err = nrd_cuda_wq_pack(s, src->dtype, raw, (int64_t)row_bytes, n, src->cols,
                          (char *)out->data + wq_bytes(src->dtype, r, src->cols));
        } else {
            err = nrd_cuda_expand_rows(s, src->dtype, block, block_bytes, raw,
                              dev_scales ? dev_scales + r : NULL, scale, out->dtype,
                              (char *)out->data + (size_t)r * out_row, n, src->cols);
        }
    }
    cudaError_t e = cudaStreamSynchronize(s->s);
    nrd_cuda_pool_free(&s->dev->base, NRD_MEM_DEVICE, raw);
    if (!err && e != cudaSuccess) {
        err = nrd_cuda_fail(e, "converting a weight");
    }
    return err;
}

static nrd_error *weight_load(nrd_stream *s, const nrd_weight *src, bool is_linear, nrd_weight *out,
                              bool *out_owned)
{
    cuda_device *dev = s->dev;
    const bool mx = kept_mx(src, is_linear), packed = kept_packed(src, is_linear);
    const bool quantized = mx || packed || kept_quantized(dev, src, is_linear);
    const nrd_dtype kept = quantized ? src->dtype : kept_as(dev, src, is_linear);
    const float scale = src->scale > 0.0f ? src->scale : 1.0f;
    size_t src_size = 0, size = 0;
    nrd_error *err = NULL;
    cudaError_t e = cudaSuccess;
    void *p = NULL;

    *out_owned = false;
    memset(out, 0, sizeof *out);
    if (kept == NRD_DTYPE_NONE || src->layout != NRD_LAYOUT_ROWS) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: weights of type %s in layout %u; `nereid build --device cuda` (or rows) "
                          "writes an engine for GPUs",
                          nrd_dtype_name(src->dtype), src->layout);
    }
    if (src->dtype == NRD_DTYPE_I8 && !src->scales) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: an int8 weight needs a scale for each row");
    }
    NRD_TRY(source_bytes(src->dtype, src->rows, src->cols, &src_size));
    if (mx) {
        size = mx_bytes(src->rows, src->cols);
    } else if (packed) {
        size = packed_bytes(kept, src->rows, src->cols);
    } else if (quantized) {
        size = wq_bytes(kept, src->rows, src->cols);
    } else if (!nrd_dtype_bytes(kept, (uint64_t)(src->rows * src->cols), &size)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: a weight of %lld x %lld",
                          (long long)src->rows, (long long)src->cols);
    }
    CUDA_TRY(cudaSetDevice(dev->id));
    NRD_TRY(nrd_cuda_slab_alloc(dev, dev->slabs, size, &p));
    out->dtype = kept;
    out->layout = mx ? NRD_LAYOUT_MX : packed ? layout_of_packed(src) : quantized ? NRD_LAYOUT_WQ : (uint32_t)NRD_LAYOUT_ROWS;
    out->rows = src->rows;
    out->cols = src->cols;
    out->scale = 1.0f;
    out->data = p;
    out->data_bytes = size;
    out->n_stacked = src->n_stacked;
    if (packed && scale_bytes(out) > 0) {
        NRD_TRY_GOTO(nrd_cuda_slab_alloc(dev, dev->vslabs, scale_bytes(out), &p), err, fail);
        out->scales = p;
    } else if (src->scales || kept == NRD_DTYPE_F8_E4M3) {
        NRD_TRY_GOTO(nrd_cuda_slab_alloc(dev, dev->vslabs, (size_t)src->rows * 4, &p), err, fail);
        out->scales = p;
        if (src->scales) {
            e = cudaMemcpyAsync(p, src->scales, (size_t)src->rows * 4, cudaMemcpyHostToDevice, s->s);
        }
        if (e != cudaSuccess) {
            err = nrd_cuda_fail(e, "uploading scales");
            goto fail;
        }
        NRD_TRY_GOTO(nrd_cuda_expand_scales(s, (float *)p, src->scales ? (const float *)p : NULL, scale,
                                   src->rows), err, fail);
    }
    if (quantized) {
        NRD_TRY_GOTO(load_expanded(s, src, out, NULL, 1.0f), err, fail);
    } else if (kept == src->dtype) {
        e = cudaMemcpyAsync((void *)out->data, src->data, size, cudaMemcpyHostToDevice, s->s);
        if (e == cudaSuccess) {
            e = cudaStreamSynchronize(s->s);
        }
        if (e != cudaSuccess) {
            err = nrd_cuda_fail(e, "uploading a weight");
            goto fail;
        }
    } else {
        NRD_TRY_GOTO(load_expanded(s, src, out, (const float *)out->scales, scale), err, fail);
        if (out->scales) { /* they are in the numbers now */
            nrd_cuda_slab_free(dev, dev->vslabs, (void *)out->scales, (size_t)out->rows * 4);
            out->scales = NULL;
        }
    }
    *out_owned = true;
    return NULL;

fail:
    (void)cudaStreamSynchronize(s->s);
    weight_unload(&dev->base, out);
    return err;
}

static nrd_dtype linear_input(nrd_device *d, const nrd_weight *w, nrd_dtype act_dtype,
                              size_t *out_row_bytes, bool *out_row_scale)
{
    const bool own = w->layout == NRD_LAYOUT_WQ || is_packed_layout(w->layout);
    const nrd_dtype t = own ? NRD_DTYPE_BF16 : kept_as((const cuda_device *)d, w, true);
    size_t bytes = 0;

    (void)act_dtype; /* the tensor cores want both operands in one type: the weight's */
    (void)nrd_dtype_bytes(t, (uint64_t)w->cols, &bytes);
    if (out_row_bytes) {
        *out_row_bytes = bytes;
    }
    if (out_row_scale) {
        *out_row_scale = t == NRD_DTYPE_F8_E4M3;
    }
    return t;
}

void nrd_cuda_weight_fill_ops(nrd_device_ops *ops)
{
    ops->weight_plan = weight_plan;
    ops->weight_pack = weight_pack;
    ops->weight_load = weight_load;
    ops->weight_unload = weight_unload;
    ops->linear_input = linear_input;
}
