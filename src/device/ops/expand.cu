/* SPDX-License-Identifier: Apache-2.0
 * expand: rows of any weight format -> bf16 or f32, at load; MXFP4 of experts into the layout of mx.cuh.
 * Shapes    src [rows, cols] in the blocks of its format (GGUF; cols a multiple of the block).
 * Work      one thread an element. Runs once for each weight, behind the upload over PCIe.
 * Bound     none that matters: load time is the file's.
 * Sources   GGUF block layouts (ggml-org/ggml docs/gguf.md and the format's published tables);
 *           base/dtype.c is the definition in plain C.
 */
extern "C" {
#include "base/dtype.h"
}

#include "device/cuda/expand.cuh"
#include "device/ops/mx.cuh"
#include "device/ops/packed.cuh"

static __device__ __forceinline__ float half_at(const uint8_t *p)
{
    uint16_t u = (uint16_t)(p[0] | p[1] << 8);
    return __half2float(__ushort_as_half(u));
}

/* 6-bit scale and minimum of group g in Q4_K and Q5_K: groups 4..7 have their top bits in 0..3. */
static __device__ __forceinline__ void k4_scale(const uint8_t *s, int g, float *sc, float *mn)
{
    if (g < 4) {
        *sc = (float)(s[g] & 63);
        *mn = (float)(s[g + 4] & 63);
    } else {
        *sc = (float)((s[g + 4] & 15) | (s[g - 4] >> 6) << 4);
        *mn = (float)((s[g + 4] >> 4) | (s[g] >> 6) << 4);
    }
}

static __constant__ int8_t iq4_values[16] = NRD_IQ4_VALUES, mxfp4_values[16] = NRD_MXFP4_VALUES;

static __device__ float element_of(int dtype, const uint8_t *b, int i)
{
    const int n = i >> 7, j = (i >> 5) & 3, l = i & 31; /* of a 256-block: half, quarter, place */
    const int lo = i & 15, top = i >> 4;                /* of a 32-block */

    switch (dtype) {
    case NRD_DTYPE_Q4_0:
        return (float)((b[2 + lo] >> (4 * top) & 15) - 8) * half_at(b);
    case NRD_DTYPE_Q4_1:
        return (float)(b[4 + lo] >> (4 * top) & 15) * half_at(b) + half_at(b + 2);
    case NRD_DTYPE_Q5_0: {
        const int high = b[2 + i / 8] >> (i % 8) & 1;
        return (float)((b[6 + lo] >> (4 * top) & 15 | high << 4) - 16) * half_at(b);
    }
    case NRD_DTYPE_Q5_1: {
        const int high = b[4 + i / 8] >> (i % 8) & 1;
        return (float)(b[8 + lo] >> (4 * top) & 15 | high << 4) * half_at(b) + half_at(b + 2);
    }
    case NRD_DTYPE_Q8_0:
        return (float)(int8_t)b[2 + i] * half_at(b);
    case NRD_DTYPE_Q8_1:
        return (float)(int8_t)b[4 + i] * half_at(b) + half_at(b + 2);
    case NRD_DTYPE_Q2_K: {
        const int sc = b[n * 8 + j * 2 + l / 16], q = b[16 + n * 32 + l] >> (2 * j) & 3;
        return half_at(b + 80) * (float)(sc & 15) * (float)q - half_at(b + 82) * (float)(sc >> 4);
    }
    case NRD_DTYPE_Q3_K: {
        const int g = n * 8 + j * 2 + l / 16;
        const uint8_t *s = b + 96;
        const int sc = ((g < 8 ? s[g] & 15 : s[g - 8] >> 4) | (s[8 + g % 4] >> (2 * (g / 4)) & 3) << 4) - 32;
        const int q = (b[32 + n * 32 + l] >> (2 * j) & 3) - (b[l] >> (n * 4 + j) & 1 ? 0 : 4);
        return half_at(b + 108) * (float)sc * (float)q;
    }
    case NRD_DTYPE_Q4_K:
    case NRD_DTYPE_Q5_K: {
        const bool five = dtype == NRD_DTYPE_Q5_K;
        const int g = i >> 5;
        const uint8_t *qs = b + (five ? 48 : 16) + (g / 2) * 32;
        float sc, mn;
        k4_scale(b + 4, g, &sc, &mn);
        int q = qs[l] >> (4 * (g & 1)) & 15;
        if (five) {
            q |= (b[16 + l] >> g & 1) << 4;
        }
        return half_at(b) * sc * (float)q - half_at(b + 2) * mn;
    }
    case NRD_DTYPE_Q6_K: {
        const int low = b[n * 64 + (j & 1) * 32 + l] >> (4 * (j >> 1)) & 15;
        const int q = (low | (b[128 + n * 32 + l] >> (2 * j) & 3) << 4) - 32;
        return half_at(b + 208) * (float)(int8_t)b[192 + n * 8 + j * 2 + l / 16] * (float)q;
    }
    case NRD_DTYPE_IQ4_NL:
        return half_at(b) * (float)iq4_values[b[2 + lo] >> (4 * top) & 15];
    case NRD_DTYPE_IQ4_XS: {
        const int g = i >> 5, q = b[8 + g * 16 + (l & 15)] >> (4 * (l >> 4)) & 15;
        const int sc = (b[4 + g / 2] >> (4 * (g & 1)) & 15) | (b[2 + g / 4] >> (2 * (g & 3)) & 3) << 4;
        return half_at(b) * (float)(sc - 32) * (float)iq4_values[q];
    }
    case NRD_DTYPE_MXFP4:
        return ldexpf((float)mxfp4_values[b[1 + lo] >> (4 * top) & 15], b[0] - 128);
    case NRD_DTYPE_F8_B128:
        return *(const float *)b * to_f(((const f8 *)b)[4 + i]);
    case NRD_DTYPE_NVFP4: {
        const int q = b[8 + i / 2] >> (i % 2 * 4) & 15;
        return *(const float *)b * (to_f(((const f8 *)b)[4 + i / 16]) * 0.5f * (float)mxfp4_values[q]);
    }
    case NRD_DTYPE_NF4:
    case NRD_DTYPE_FP4:
        return *(const float *)b * table_number(dtype, b[4 + i / 2] >> (i % 2 * 4) & 15);
    case NRD_DTYPE_MXFP8:
        return ldexpf(to_f(((const f8 *)b)[1 + i]), b[0] - 127);
    case NRD_DTYPE_BF16:
        return to_f(((const bf16 *)b)[0]);
    case NRD_DTYPE_F16:
        return to_f(((const f16 *)b)[0]);
    case NRD_DTYPE_F8_E4M3:
        return to_f(((const f8 *)b)[0]);
    case NRD_DTYPE_I8:
        return (float)(int8_t)b[0];
    default:
        return ((const float *)b)[0];
    }
}

template <typename O>
static __global__ void expand_kernel(int dtype, const uint8_t *src, int block, int block_bytes,
                                     const float *scales, float scale, O *dst, int64_t n, int64_t cols)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float v = element_of(dtype, src + i / block * block_bytes, (int)(i % block));
        dst[i] = from_f<O>(v * (scales ? scales[i / cols] : scale));
    }
}

nrd_error *nrd_cuda_expand_rows(nrd_stream *s, nrd_dtype from, int block, int block_bytes, const void *src,
                       const float *scales, float scale, nrd_dtype to, void *dst, int64_t rows,
                       int64_t cols)
{
    const int64_t n = rows * cols;
    const int64_t blocks = (n + 255) / 256;

    if (n == 0) {
        return NULL;
    }
    ACT_TYPE(to, expand_kernel<T><<<(unsigned)(blocks < 65535 ? blocks : 65535), 256, 0, s->s>>>(
                     (int)from, (const uint8_t *)src, block, block_bytes, scales, scale, (T *)dst, n,
                     cols));
    CUDA_TRY(cudaGetLastError());
    return NULL;
}

/* One thread a block of 32. */
static __global__ void mx_pack_kernel(const uint8_t *src, uint4 *codes, uint8_t *scales, int64_t row0, int64_t rows, int64_t cols,
                                      int64_t n)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const uint8_t *b = src + i * 17;
        const int64_t row = row0 + i / (cols / 32), k = i % (cols / 32) * 32;
        uint32_t w[4] = {};
        scales[mx_scale_at(rows, row, k)] = b[0];
        if (k % 64 == 0 && k + 32 == cols) {
            scales[mx_scale_at(rows, row, k) + 1] = 0; /* of columns that there are not */
        }
#pragma unroll
        for (int l = 0; l < 32; l++) { /* the file has number l beside l + 16 */
            const uint32_t q = b[1 + l % 16] >> (l < 16 ? 0 : 4) & 15;
            w[l % 8 / 2] |= q << (4 * (l / 8 + l % 2 * 4));
        }
        codes[i] = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

nrd_error *nrd_cuda_mx_pack(nrd_stream *s, const void *src, int64_t row0, int64_t n, int64_t rows, int64_t cols, void *dst)
{
    const int64_t n_blocks = n * (cols / 32), grid = (n_blocks + 255) / 256;
    uint8_t *codes = (uint8_t *)dst + row0 * (cols / 2), *scales = (uint8_t *)dst + rows * (cols / 2);

    mx_pack_kernel<<<(unsigned)(grid < 65535 ? grid : 65535), 256, 0, s->s>>>((const uint8_t *)src, (uint4 *)codes, scales, row0,
                                                                              rows, cols, n_blocks);
    CUDA_TRY(cudaGetLastError());
    return NULL;
}

static __global__ void scales_kernel(float *dst, const float *src, float scale, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        dst[i] = src ? src[i] * scale : scale;
    }
}

nrd_error *nrd_cuda_expand_scales(nrd_stream *s, float *dst, const float *src, float scale, int64_t rows)
{
    scales_kernel<<<(unsigned)((rows + 255) / 256), 256, 0, s->s>>>(dst, src, scale, rows);
    CUDA_TRY(cudaGetLastError());
    return NULL;
}
