/* SPDX-License-Identifier: Apache-2.0
 * pack_packed: conversions around the layout of packed.cuh: weights into it, at load; out of it into bf16, for products of the
 * library with many rows; and rows of x into F8 in blocks of 128 columns.
 * Work      a thread 16 numbers; of x a warp 128.
 * Bound     memory.
 * Sources   base/packed.c is the definition of the types in plain C.
 */
#include "device/ops/packed.cuh"

#include <algorithm>

static unsigned blocks_for(int64_t threads)
{
    return (unsigned)std::min<int64_t>((threads + 255) / 256, 65535);
}

/* One thread a block of the file. */
static __global__ void pack_f8_kernel(const uint8_t *src, uint8_t *codes, float *scales, int64_t row0, int64_t n, int64_t cols,
                                      bool by_blocks, int64_t pitch)
{
    const int64_t per_row = cols / 128;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n * per_row; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = row0 + i / per_row, b = i % per_row;
        const uint32_t *from = (const uint32_t *)(src + i * 132); /* a multiple of 4 */
        uint4 *to = (uint4 *)(codes + row * cols + b * 128);
        for (int k = 0; k < 8; k++) {
            to[k] = make_uint4(from[1 + k * 4], from[2 + k * 4], from[3 + k * 4], from[4 + k * 4]);
        }
        if (!by_blocks) {
            scales[b * pitch + row] = __uint_as_float(from[0]);
        } else if (row % 128 == 0) {
            scales[row / 128 * pitch + b] = __uint_as_float(from[0]);
        }
    }
}

static __global__ void pack_mxfp8_kernel(const uint8_t *src, uint8_t *codes, uint8_t *scales, int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        scales[i] = src[i * 33];
        for (int k = 0; k < 32; k++) {
            codes[i * 32 + k] = src[i * 33 + 1 + k];
        }
    }
}

/* Four bits: one thread a block of the file. row_scale: NVFP4's. */
static __global__ void pack_4_kernel(int dtype, const uint8_t *src, uint8_t *codes, uint8_t *scales, float *row_scale, int64_t n, int64_t per_row)
{
    const int block = dtype == NRD_DTYPE_NVFP4 ? 40 : 36;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const uint32_t *from = (const uint32_t *)(src + i * block); /* a multiple of 4 */
        uint32_t *to = (uint32_t *)(codes + i * 32);
        const int head = block / 4 - 8;
        for (int k = 0; k < 8; k++) {
            to[k] = dtype == NRD_DTYPE_NVFP4 ? e2m1_order(from[head + k]) : from[head + k];
        }
        ((uint32_t *)scales)[i] = from[head - 1];
        if (dtype == NRD_DTYPE_NVFP4 && i % per_row == 0) {
            row_scale[i / per_row] = __uint_as_float(from[0]);
        }
    }
}

nrd_error *nrd_cuda_packed_pack(nrd_stream *s, const void *src, int64_t row0, int64_t n, const nrd_weight *to)
{
    const uint8_t *from = (const uint8_t *)src;
    uint8_t *codes = (uint8_t *)to->data;
    const int64_t cols = to->cols;

    if (packed_bits(to->dtype) == 4) {
        const int64_t per_row = cols / 64;
        uint8_t *scales = codes + to->rows * (cols / 2) + row0 * (cols / 16);
        float *row_scale = to->scales ? (float *)to->scales + row0 : NULL;
        pack_4_kernel<<<blocks_for(n * per_row), 256, 0, s->s>>>((int)to->dtype, from, codes + row0 * (cols / 2), scales, row_scale, n * per_row,
                                                                per_row);
    } else if (to->dtype == NRD_DTYPE_MXFP8) {
        const int64_t per_row = cols / 32;
        pack_mxfp8_kernel<<<blocks_for(n * per_row), 256, 0, s->s>>>(from, codes + row0 * cols,
                                                                     codes + to->rows * cols + row0 * per_row, n * per_row);
    } else {
        const bool by_blocks = to->layout == NRD_LAYOUT_PACKED_BLOCKS;
        pack_f8_kernel<<<blocks_for(n * (cols / 128)), 256, 0, s->s>>>(from, codes, (float *)to->scales, row0, n, cols, by_blocks,
                                                                      round_up4(by_blocks ? cols / 128 : to->rows));
    }
    CUDA_TRY(cudaGetLastError());
    return NULL;
}

/* MX: scales are E8M0 of 32 columns; else float32, scale_row from a row (or 128 of them: row_shift 7) to the next and scale_block
 * from 128 columns to the next. */
template <bool MX>
static __global__ void unpack_kernel(const uint8_t *codes, const void *scales, int64_t scale_row, int64_t scale_block, int row_shift,
                                     int64_t row0, int64_t n, int64_t cols, bf16 *dst)
{
    const int64_t per_row = cols / 16;
    pdl_wait(); /* dst may still be read */
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n * per_row; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = row0 + i / per_row, col = i % per_row * 16;
        const uint4 q = *(const uint4 *)(codes + row * cols + col);
        const uint32_t w[4] = {q.x, q.y, q.z, q.w};
        uint32_t out[8];
        for (int k = 0; k < 4; k++) {
            e4m3_numbers(w[k], out + k * 2);
        }
        if constexpr (MX) {
            const uint32_t scale = e8m0_pair(((const uint8_t *)scales)[row * scale_row + col / 32]);
            for (int k = 0; k < 8; k++) {
                out[k] = mul_bf16x2(out[k], scale);
            }
        } else {
            const float scale = ((const float *)scales)[(row >> row_shift) * scale_row + col / 128 * scale_block];
            for (int k = 0; k < 8; k++) {
                __nv_bfloat162 v;
                memcpy(&v, &out[k], 4);
                const float2 f = __bfloat1622float2(v);
                v = __floats2bfloat162_rn(f.x * scale, f.y * scale);
                memcpy(&out[k], &v, 4);
            }
        }
        uint4 *to = (uint4 *)(dst + i * 16);
        to[0] = make_uint4(out[0], out[1], out[2], out[3]);
        to[1] = make_uint4(out[4], out[5], out[6], out[7]);
    }
}

/* row_scale: NVFP4's; types with a table have their scales alone. */
template <int KIND>
static __global__ void unpack_4_kernel(const uint8_t *codes, const uint8_t *scales, const float *row_scale, int64_t row0, int64_t n,
                                       int64_t cols, bf16 *dst)
{
    __shared__ float table[16]; /* other lanes want other places */
    const int64_t per_row = cols / 16;
    if (has_table(KIND) && threadIdx.x < 16) {
        table[threadIdx.x] = table_number(KIND, threadIdx.x);
    }
    __syncthreads();
    pdl_wait();
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n * per_row; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = row0 + i / per_row, col = i % per_row * 16, at = row * cols + col;
        const uint2 q = *(const uint2 *)(codes + at / 2);
        float scale;
        if constexpr (has_table(KIND)) {
            scale = ((const float *)scales)[at / 64];
        } else {
            f8 small;
            small.v = scales[at / 16];
            scale = to_f(small) * row_scale[row];
        }
        uint32_t out[8];
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint32_t eight = k < 4 ? q.x : q.y, two = eight >> (k % 4 * 8);
            __nv_bfloat162 v;
            float2 f;
            if constexpr (has_table(KIND)) {
                f = make_float2(table[two & 15], table[two >> 4 & 15]);
            } else {
                const uint32_t pair = mul_bf16x2(e2m1_as_bf16(eight, k % 4), TWO_TO_126);
                memcpy(&v, &pair, 4);
                f = __bfloat1622float2(v);
            }
            v = __floats2bfloat162_rn(f.x * scale, f.y * scale);
            memcpy(&out[k], &v, 4);
        }
        uint4 *to = (uint4 *)(dst + i * 16);
        to[0] = make_uint4(out[0], out[1], out[2], out[3]);
        to[1] = make_uint4(out[4], out[5], out[6], out[7]);
    }
}

nrd_error *nrd_cuda_packed_unpack(nrd_stream *s, const nrd_weight *w, int64_t row0, int64_t n, void *dst)
{
    const uint8_t *codes = (const uint8_t *)w->data;
    const dim3 grid(blocks_for(n * (w->cols / 16)));

    if (packed_bits(w->dtype) == 4) {
        return launch(s,
                      w->dtype == NRD_DTYPE_NF4   ? unpack_4_kernel<NRD_DTYPE_NF4>
                      : w->dtype == NRD_DTYPE_FP4 ? unpack_4_kernel<NRD_DTYPE_FP4>
                                                  : unpack_4_kernel<NRD_DTYPE_NVFP4>,
                      grid, dim3(256), 0, codes, codes + w->rows * (w->cols / 2), (const float *)w->scales, row0, n, w->cols, (bf16 *)dst);
    }
    if (w->dtype == NRD_DTYPE_MXFP8) {
        return launch(s, unpack_kernel<true>, grid, dim3(256), 0, codes, (const void *)(codes + w->rows * w->cols), w->cols / 32,
                      (int64_t)0, 0, row0, n, w->cols, (bf16 *)dst);
    }
    const bool by_blocks = w->layout == NRD_LAYOUT_PACKED_BLOCKS;
    return launch(s, unpack_kernel<false>, grid, dim3(256), 0, codes, w->scales, by_blocks ? round_up4(w->cols / 128) : (int64_t)1,
                  by_blocks ? (int64_t)1 : round_up4(w->rows), by_blocks ? 7 : 0, row0, n, w->cols, (bf16 *)dst);
}

/* Eight lanes 128 columns of a row: 16 numbers each. */
static __global__ void __launch_bounds__(256) quantize_kernel(const bf16 *x, int64_t all, int blocks, uint8_t *out, float *scales, int64_t pitch)
{
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, block = i / 8;
    uint32_t q[4];

    pdl_wait();
    pdl_go();
    const float scale = f8_group(x + i * 16, block < all, q);
    if (block < all) {
        *(uint4 *)(out + i * 16) = make_uint4(q[0], q[1], q[2], q[3]);
        if (threadIdx.x % 8 == 0) {
            scales[block % blocks * pitch + block / blocks] = scale;
        }
    }
}

nrd_error *nrd_cuda_packed_quantize(nrd_stream *s, const void *x, int64_t n, int64_t cols, void *out, float *scales, int64_t pitch)
{
    const int64_t all = n * (cols / 128);
    return launch(s, quantize_kernel, dim3((unsigned)((all + 31) / 32)), dim3(256), 0, (const bf16 *)x, all, (int)(cols / 128),
                  (uint8_t *)out, scales, pitch);
}
