/* SPDX-License-Identifier: Apache-2.0
 * linear: y = concat over parts of (x W_p^T + b_p), softcapped if asked: which way each shape takes.
 *
 *   weights of 4 and 8 bits on Hopper     linear_wq.cu, a launch for each run of parts of one format; int8 that was made for x in int8, with
 *                                         more than 64 rows: linear_i8.cu
 *   few rows on Hopper                    linear_skinny.cu, one launch for all parts (F8 up to 16, wide ones and
 *                                         those whose tiles of 64 rows run at once up to 32, 16-bit up to 8)
 *   types that only GPUs multiply         few rows, or deterministic: linear_packed.cu. More, on Hopper: F8_B128 by the library's products
 *                                         of blocks, x quantized in front of them; what it refuses, and the others, as bf16 in
 *                                         scratch memory, a piece of W after the other
 *   deterministic                         the same in slices of 64 rows, one tile shape for all
 *   everything else                       cuBLASLt, a call for each run of parts that lie side by side
 *                                         in memory, then bias and softcap in one pass. F8, if the caller takes
 *                                         scales that are pending: the numbers alone, where tiles of other shapes gain
 *   no library, odd alignment, mixed types  the kernel below: plain tiles in f32, slow and right
 *
 * linear_any: 64 x 64 outputs a block, 4 x 4 a thread, 16 columns of K through shared memory.
 */
#include "device/cuda/gemm_cublaslt.cuh"
#include "device/ops/packed.cuh"
#include "device/ops/wq.cuh"

#include <algorithm>
#include <chrono>

template <typename W, typename X, typename Y>
static __global__ void __launch_bounds__(256)
    linear_any_kernel(const W *w, const float *w_scale, const X *x, const float *x_scale, Y *y,
                      int64_t rows, int64_t tokens, int64_t cols, int64_t ldy)
{
    __shared__ float ws[16][65], xs[16][65];
    const int tid = threadIdx.x, tr = tid % 16, tt = tid / 16;
    const int64_t r0 = (int64_t)blockIdx.x * 64, t0 = (int64_t)blockIdx.y * 64;
    float acc[4][4] = {};

    pdl_wait();
    for (int64_t k0 = 0; k0 < cols; k0 += 16) {
        for (int i = tid; i < 64 * 16; i += 256) {
            const int k = i % 16, r = i / 16;
            const bool in = k0 + k < cols;
            ws[k][r] = in && r0 + r < rows ? to_f(w[(r0 + r) * cols + k0 + k]) : 0.0f;
            xs[k][r] = in && t0 + r < tokens ? to_f(x[(t0 + r) * cols + k0 + k]) : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < 16; k++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    acc[i][j] += xs[k][tt + 16 * i] * ws[k][tr + 16 * j];
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) {
            const int64_t t = t0 + tt + 16 * i, r = r0 + tr + 16 * j;
            if (t < tokens && r < rows) {
                const float scale = (w_scale ? w_scale[r] : 1.0f) * (x_scale ? x_scale[t] : 1.0f);
                y[t * ldy + r] = from_f<Y>(acc[i][j] * scale);
            }
        }
    }
}

struct post_params {
    void *y;
    const float *bias[NRD_LINEAR_MAX_PARTS];
    int64_t end[NRD_LINEAR_MAX_PARTS]; /* of each part's columns */
    int64_t cols;
    float softcap;
};

/* y += bias, then the cap: one block takes 1024 columns of a row. */
template <typename T> static __global__ void linear_post_kernel(post_params a)
{
    pdl_wait();
    pdl_go();
    T *y = (T *)a.y + (int64_t)blockIdx.x * a.cols;
    for (int i = 0; i < 4; i++) {
        const int64_t c = (int64_t)blockIdx.y * 1024 + i * 256 + threadIdx.x;
        if (c >= a.cols) {
            return;
        }
        int part = 0;
        while (c >= a.end[part]) {
            part++;
        }
        float v = to_f(y[c]);
        if (a.bias[part]) {
            v += a.bias[part][c - (part ? a.end[part - 1] : 0)];
        }
        if (a.softcap > 0.0f) {
            v = a.softcap * tanhf(v / a.softcap);
        }
        y[c] = from_f<T>(v);
    }
}

template <typename W, typename X>
static nrd_error *any_run(nrd_stream *s, const lt_problem *p)
{
    const dim3 grid((unsigned)((p->m + 63) / 64), (unsigned)((p->n + 63) / 64));
    ACT_TYPE(p->y_dtype,
             return launch(s, linear_any_kernel<W, X, T>, grid, dim3(256), 0, (const W *)p->w,
                           p->w_scale, (const X *)p->x, p->x_scale, (T *)p->y, p->m, p->n, p->k,
                           p->ldy));
}

static nrd_error *any_x(nrd_stream *s, const lt_problem *p, nrd_dtype w)
{
    if (p->in_dtype == NRD_DTYPE_F8_E4M3 && w == NRD_DTYPE_F8_E4M3) {
        return any_run<f8, f8>(s, p);
    }
    if (p->in_dtype == w && w == NRD_DTYPE_BF16) {
        return any_run<bf16, bf16>(s, p);
    }
    if (p->in_dtype == w && w == NRD_DTYPE_F16) {
        return any_run<f16, f16>(s, p);
    }
    if (p->in_dtype == w && w == NRD_DTYPE_F32) {
        return any_run<float, float>(s, p);
    }
    return nrd_errorf(NRD_ERR_UNSUPPORTED,
                      "cuda: linear of input dtype %d with weights of dtype %d; ask linear_input()",
                      (int)p->in_dtype, (int)w);
}

static nrd_error *linear_check(const nrd_linear_args *a)
{
    if (a->n_parts < 1 || a->n_parts > NRD_LINEAR_MAX_PARTS || !is_act_dtype(a->y_dtype) ||
        (a->x_dtype == NRD_DTYPE_F8_E4M3 && !a->x_row_scale)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cuda: linear: %d parts, x of dtype %d, y of dtype %d",
                          a->n_parts, (int)a->x_dtype, (int)a->y_dtype);
    }
    for (int i = 0; i < a->n_parts; i++) {
        const nrd_weight *w = a->w[i], *b = a->bias[i];
        if (w->cols != a->w[0]->cols ||
            (w->layout != NRD_LAYOUT_ROWS && w->layout != NRD_LAYOUT_WQ && !is_packed_layout(w->layout)) ||
            (w->dtype == NRD_DTYPE_F8_E4M3 && !w->scales) ||
            (b && (b->dtype != NRD_DTYPE_F32 || b->rows * b->cols != w->rows))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "cuda: linear: part %d is %lld x %lld in dtype %d; weights and biases "
                              "must come from weight_load and share their columns",
                              i, (long long)w->rows, (long long)w->cols, (int)w->dtype);
        }
        if ((w->layout == NRD_LAYOUT_ROWS ? w->dtype : NRD_DTYPE_BF16) != a->x_dtype) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED,
                              "cuda: linear: x of dtype %d, part %d of dtype %d; ask linear_input()",
                              (int)a->x_dtype, i, (int)w->dtype);
        }
    }
    return NULL;
}

static bool adjacent(const nrd_weight *a, const nrd_weight *b)
{
    return (const char *)a->data + a->data_bytes == (const char *)b->data && a->dtype == b->dtype &&
           b->layout == NRD_LAYOUT_ROWS &&
           (!a->scales || (const float *)a->scales + a->rows == (const float *)b->scales);
}

/* By the library. UNSUPPORTED: it does not take this product. */
static nrd_error *library_product(nrd_stream *s, const lt_problem *p)
{
    return s->tuning ? nrd_cuda_lt_tune(s, p) : nrd_cuda_lt_run(s, p);
}

/* x times `rows` rows of a weight in `p`, by the library or the kernel above. */
static nrd_error *product(nrd_stream *s, const nrd_linear_args *a, const lt_problem *p)
{
    const int x_size = a->x_dtype == NRD_DTYPE_F8_E4M3 ? 1 : a->x_dtype == NRD_DTYPE_F32 ? 4 : 2;
    const int y_size = a->y_dtype == NRD_DTYPE_F32 ? 4 : 2;
    const bool library = !a->deterministic && p->k * x_size % 16 == 0 && aligned16(p->w) &&
                         aligned16(p->x) && aligned16(p->y) && p->ldy * y_size % 16 == 0 &&
                         (a->x_dtype != NRD_DTYPE_F32 || a->y_dtype == NRD_DTYPE_F32);
    nrd_error *err = library ? library_product(s, p) : nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: not for cuBLASLt");

    if (err && nrd_error_get_code(err) == NRD_ERR_UNSUPPORTED) {
        nrd_error_free(err);
        err = any_x(s, p, a->x_dtype);
    }
    return err;
}

static lt_problem problem_at(const nrd_linear_args *a, int part, int64_t col, int64_t y_cols)
{
    const int y_size = a->y_dtype == NRD_DTYPE_F32 ? 4 : 2;
    lt_problem p = {};

    p.w = a->w[part]->data;
    p.w_scale = a->x_dtype == NRD_DTYPE_F8_E4M3 ? (const float *)a->w[part]->scales : NULL;
    p.k = a->w[part]->cols;
    p.n = a->n_tokens;
    p.x = a->x;
    p.x_scale = a->x_dtype == NRD_DTYPE_F8_E4M3 ? a->x_row_scale : NULL;
    p.in_dtype = a->x_dtype;
    p.y_dtype = a->y_dtype;
    p.y = (char *)a->y + col * y_size;
    p.ldy = y_cols;
    return p;
}

static bool same_format(const nrd_weight *a, const nrd_weight *b)
{
    const wq_format f = wq_of(a->dtype), g = wq_of(b->dtype);
    return b->layout == NRD_LAYOUT_WQ && f.bits == g.bits && f.meta == g.meta;
}

/* Rows of x up to which int8 weights are faster with x in 16 bits. */
enum { INT8_FEW = 64 };

/* May x be rounded to int8 for a part, and does it pay? */
static bool by_integers(const nrd_linear_args *a, const nrd_weight *w)
{
    return a->int8_x && w->dtype == NRD_DTYPE_I8 && w->layout == NRD_LAYOUT_WQ && !a->deterministic && a->n_tokens > INT8_FEW;
}

static bool blocks_by_library(const nrd_stream *s, const nrd_weight *w)
{
    return w->dtype == NRD_DTYPE_F8_B128 && s->dev->hopper && s->dev->lt && w->rows % 16 == 0;
}

static bool packed_alone(const nrd_stream *s, const nrd_linear_args *a, const nrd_weight *w)
{
    return is_packed_layout(w->layout) &&
           (a->deterministic || a->n_tokens <= (blocks_by_library(s, w) ? PACKED_FEW_BLOCKS : PACKED_FEW));
}

/* W in blocks of 128 x 128 or 1 x 128 numbers, x quantized in scratch memory: as many tokens at a time as fit there. The library
 * wants their number to be a multiple of 4: up to three are left to linear_packed.cu. */
static nrd_error *product_of_blocks(nrd_stream *s, const nrd_linear_args *a, const lt_problem *whole, int part)
{
    const nrd_weight *w = a->w[part];
    const int64_t blocks = w->cols / 128, all = a->n_tokens / 4 * 4;
    const int64_t most = (int64_t)(SPLIT_WS_BYTES / (size_t)(w->cols + blocks * 4)) / 128 * 128;
    const int y_size = a->y_dtype == NRD_DTYPE_F32 ? 4 : 2;

    if (most == 0 || !aligned16(a->x) || !aligned16(whole->y) || whole->ldy * y_size % 16 != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: not for cuBLASLt");
    }
    NRD_TRY(nrd_cuda_stream_scratch(s));
    for (int64_t t = 0; t < all; t += most) {
        lt_problem p = *whole;
        p.n = std::min(most, all - t);
        float *scales = (float *)(s->split_ws + p.n * w->cols);
        NRD_TRY(nrd_cuda_packed_quantize(s, (const char *)a->x + t * w->cols * 2, p.n, w->cols, s->split_ws, scales, p.n));
        p.m = w->rows;
        p.w_scale = (const float *)w->scales;
        p.x = s->split_ws;
        p.x_scale = scales;
        p.in_dtype = NRD_DTYPE_F8_B128;
        p.square_blocks = w->layout == NRD_LAYOUT_PACKED_BLOCKS;
        p.y = (char *)whole->y + t * whole->ldy * y_size;
        NRD_TRY(library_product(s, &p));
    }
    if (all == a->n_tokens) {
        return NULL;
    }
    nrd_linear_args rest = *a;
    rest.n_tokens = (int32_t)(a->n_tokens - all);
    rest.x = (const char *)a->x + all * w->cols * 2;
    rest.y = (char *)a->y + all * whole->ldy * y_size;
    return nrd_cuda_linear_packed(s, &rest, part, part + 1, true);
}

/* W as bf16 in scratch memory, as many rows at a time as fit there. */
static nrd_error *product_unpacked(nrd_stream *s, const nrd_linear_args *a, const lt_problem *whole, int part)
{
    const nrd_weight *w = a->w[part];
    const int64_t most = std::max<int64_t>(1, (int64_t)(SPLIT_WS_BYTES / (size_t)(w->cols * 2)) / 128 * 128);
    const int y_size = a->y_dtype == NRD_DTYPE_F32 ? 4 : 2;

    NRD_TRY(nrd_cuda_stream_scratch(s));
    for (int64_t r = 0; r < w->rows; r += most) {
        lt_problem p = *whole;
        p.m = std::min(most, w->rows - r);
        p.w = s->split_ws;
        p.y = (char *)whole->y + r * y_size;
        NRD_TRY(nrd_cuda_packed_unpack(s, w, r, p.m, s->split_ws));
        NRD_TRY(product(s, a, &p));
    }
    return NULL;
}

static nrd_error *packed_product(nrd_stream *s, const nrd_linear_args *a, const lt_problem *p, int part)
{
    nrd_error *err = blocks_by_library(s, a->w[part]) ? product_of_blocks(s, a, p, part)
                                                       : nrd_errorf(NRD_ERR_UNSUPPORTED, "cuda: not for cuBLASLt");
    if (err && nrd_error_get_code(err) == NRD_ERR_UNSUPPORTED) {
        nrd_error_free(err);
        err = product_unpacked(s, a, p, part);
    }
    return err;
}

static bool same_packed(const nrd_weight *a, const nrd_weight *b)
{
    return is_packed_layout(b->layout) && a->dtype == b->dtype;
}

/* Fewer: kernels with scales have small tiles, too; more: nothing gains. */
enum { PENDING_FROM = 257, PENDING_TO = 1024 };

/* Whether y is the product of the numbers alone. */
static bool leaves_scales(const nrd_stream *s, const nrd_linear_args *a)
{
    return a->pending && a->n_parts == 1 && a->x_dtype == NRD_DTYPE_F8_E4M3 && a->w[0]->layout == NRD_LAYOUT_ROWS && !a->bias[0] &&
           a->y_dtype == NRD_DTYPE_BF16 && a->softcap <= 0.0f && !a->deterministic && a->n_tokens >= PENDING_FROM &&
           a->n_tokens <= PENDING_TO && s->dev->lt && s->dev->hopper && nrd_cuda_tiles_idle(s->dev, a->w[0]->rows, a->n_tokens);
}

/* Every part by the library, or as its weight wants it; then bias and cap, where they are still due. */
static nrd_error *in_parts(nrd_stream *s, const nrd_linear_args *a)
{
    int64_t y_cols = 0, col = 0;
    bool post = a->softcap > 0.0f, fused = true; /* linear_wq and linear_packed add bias and cap by themselves */
    post_params pp = {};

    for (int i = 0; i < a->n_parts; i++) {
        y_cols += a->w[i]->rows;
        pp.bias[i] = a->bias[i] ? (const float *)a->bias[i]->data : NULL;
        pp.end[i] = y_cols;
        post = post || a->bias[i];
        fused = fused && ((a->w[i]->layout == NRD_LAYOUT_WQ && !by_integers(a, a->w[i])) || packed_alone(s, a, a->w[i]));
    }
    for (int i = 0; i < a->n_parts;) {
        int to = i + 1;
        if (a->w[i]->layout == NRD_LAYOUT_WQ) {
            while (to < a->n_parts && same_format(a->w[i], a->w[to])) {
                to++;
            }
            bool done = false;
            if (by_integers(a, a->w[i])) {
                NRD_TRY(nrd_cuda_linear_i8(s, a, i, to, &done));
            }
            if (!done) {
                NRD_TRY(nrd_cuda_linear_wq(s, a, i, to, !fused));
            }
        } else if (packed_alone(s, a, a->w[i])) {
            while (to < a->n_parts && same_packed(a->w[i], a->w[to])) {
                to++;
            }
            NRD_TRY(nrd_cuda_linear_packed(s, a, i, to, !fused));
        } else if (is_packed_layout(a->w[i]->layout)) {
            const lt_problem p = problem_at(a, i, col, y_cols);
            NRD_TRY(packed_product(s, a, &p, i));
        } else {
            lt_problem p = problem_at(a, i, col, y_cols);
            p.m = a->w[i]->rows;
            while (to < a->n_parts && adjacent(a->w[to - 1], a->w[to])) {
                p.m += a->w[to++]->rows;
            }
            if (leaves_scales(s, a)) {
                NRD_TRY(s->tuning ? product(s, a, &p) : NULL); /* as it is wanted elsewhere */
                *a->pending = (nrd_pending_scales){p.x_scale, p.w_scale};
                p.x_scale = p.w_scale = NULL;
            }
            NRD_TRY(product(s, a, &p));
        }
        while (i < to) {
            col += a->w[i++]->rows;
        }
    }
    if (post && !fused) {
        pp.y = a->y;
        pp.cols = y_cols;
        pp.softcap = a->softcap;
        const dim3 grid((unsigned)a->n_tokens, (unsigned)((y_cols + 1023) / 1024));
        ACT_TYPE(a->y_dtype, return launch(s, linear_post_kernel<T>, grid, dim3(256), 0, pp));
    }
    return NULL;
}

nrd_error *nrd_cuda_linear(nrd_stream *s, const nrd_linear_args *a)
{
    bool done = false;

    NRD_TRY(linear_check(a));
    if (a->n_tokens <= 0) {
        return NULL;
    }
    /* Beyond these rows x weighs as much as W in the L2 and the library is faster. */
    int64_t w_rows = 0, of_64 = 0;
    for (int i = 0; i < a->n_parts; i++) {
        w_rows += a->w[i]->rows;
        of_64 += (a->w[i]->rows + 63) / 64;
    }
    const int64_t n_sm = s->dev->n_sm;
    const bool at_once = of_64 <= n_sm && of_64 * 9 >= n_sm * 4; /* linear_skinny.cu: tiles of 64 rows, none split */
    const int32_t few = a->x_dtype != NRD_DTYPE_F8_E4M3 ? 8 : w_rows >= 16384 || at_once ? 32 : 16;
    const int32_t skinny_rows = a->deterministic ? 64 : few;
    if (a->n_tokens <= skinny_rows) {
        NRD_TRY(nrd_cuda_linear_skinny(s, a, 0, a->n_tokens, &done));
        if (done) {
            return NULL;
        }
    } else if (a->deterministic) {
        for (int32_t t = 0; t < a->n_tokens; t += 64) {
            NRD_TRY(nrd_cuda_linear_skinny(s, a, t, a->n_tokens - t < 64 ? a->n_tokens - t : 64, &done));
            if (!done) {
                break; /* refused for the first slice already: all slices are alike */
            }
        }
        if (done) {
            return NULL;
        }
    }
    return in_parts(s, a);
}

/* Numbers of both signs and several magnitudes below 2, in any of the types: on zeros, or on numbers alike,
 * the GPU would run faster than on real activations. */
static __global__ void noise_kernel(uint32_t *x, int64_t n_words, uint32_t keep, uint32_t base)
{
    pdl_wait();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n_words;
         i += (int64_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 0x9E3779B9u;
        h = (h ^ h >> 15) * 0x85EBCA6Bu;
        h = (h ^ h >> 13) * 0xC2B2AE35u;
        x[i] = ((h ^ h >> 16) & keep) | base;
    }
}

static nrd_error *fill_noise(nrd_stream *s, const nrd_linear_args *a, void *x)
{
    const bool f8_x = a->x_dtype == NRD_DTYPE_F8_E4M3, f32_x = a->x_dtype == NRD_DTYPE_F32;
    const int64_t n = (int64_t)a->n_tokens * a->w[0]->cols;
    const bool f16_x = a->x_dtype == NRD_DTYPE_F16;
    /* sign, mantissa and the low bits of the exponent are random */
    const uint32_t keep = f8_x ? 0xbfbfbfbfu : f32_x ? 0x81ffffffu : f16_x ? 0x8fff8fffu : 0x81ff81ffu;
    const uint32_t base = f8_x ? 0u : f32_x ? 0x3e000000u : f16_x ? 0x30003000u : 0x3e003e00u;

    NRD_TRY(launch(s, noise_kernel, dim3(256), dim3(256), 0, (uint32_t *)x,
                   n / (f8_x ? 4 : f32_x ? 1 : 2), keep, base));
    return a->x_row_scale ? launch(s, noise_kernel, dim3(8), dim3(256), 0, (uint32_t *)a->x_row_scale,
                                   (int64_t)a->n_tokens, 0u, 0x3f800000u)
                          : NULL;
}

nrd_error *nrd_cuda_linear_tune(nrd_stream *s, const nrd_linear_args *a, void *x, double seconds)
{
    const auto start = std::chrono::steady_clock::now();
    nrd_linear_args at = *a;
    nrd_error *err = linear_check(a);

    if (err || a->n_tokens <= 0) {
        return err;
    }
    NRD_TRY(fill_noise(s, a, x));
    at.x = x;
    s->tuning = true;
    /* Even where nothing is to be tried each number of rows runs once: that loads its kernels. */
    for (int32_t n = 1; !err && n <= a->n_tokens; n++) {
        const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start;
        n = (int32_t)std::min<int64_t>(nrd_cuda_token_class(n), a->n_tokens);
        at.n_tokens = n;
        if (passed.count() > seconds) {
            break;
        }
        err = nrd_cuda_linear(s, &at);
    }
    s->tuning = false;
    if (s->dev->lt) {
        nrd_cuda_lt_save(s->dev->lt);
    }
    CUDA_TRY(cudaStreamSynchronize(s->s));
    return err;
}
