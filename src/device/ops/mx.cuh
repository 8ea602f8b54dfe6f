/* SPDX-License-Identifier: Apache-2.0
 * mx.cuh - how experts' weights of MXFP4 lie on a GPU.
 *
 * Purpose   Four bits a number and eight a block of 32, as in the file, but in runs that 32-bit loads can take: the 17
 *           bytes of a GGUF block are at any address.
 * Layout    Codes of all rows, [rows][cols / 2] bytes, number 2i in the low half of byte i; behind them the scales,
 *           [rows][cols / 32] bytes of E8M0. cols is a multiple of 32.
 * Sources   Open Compute Project, Microscaling Formats (2023): E2M1, E8M0.
 */
#ifndef NRD_OPS_MX_CUH
#define NRD_OPS_MX_CUH

#include "device/ops/common.cuh"

enum : uint32_t { NRD_LAYOUT_MX = 0x4d58 }; /* of nrd_weight.layout */

static inline size_t mx_bytes(int64_t rows, int64_t cols)
{
    return (size_t)rows * (size_t)(cols / 2 + cols / 32);
}

/* A weight of this layout. */
struct mx_matrix {
    const uint32_t *codes; /* eight numbers each */
    const uint8_t *scales;
};

static __host__ __device__ __forceinline__ mx_matrix mx_of(const void *data, int64_t rows, int64_t cols)
{
    return {(const uint32_t *)data, (const uint8_t *)data + rows * (cols / 2)};
}

/* Numbers k .. k + 7 of row r; k is a multiple of 8. E2M1's bits are those of a half that is 2^14 times smaller. */
static __device__ __forceinline__ void mx_load8(const mx_matrix &m, int64_t r, int64_t k, int64_t cols, float *v)
{
    const uint32_t w = m.codes[(r * cols + k) / 8];
    const int e = m.scales[(r * cols + k) / 32];
    const float scale = __uint_as_float(e ? (uint32_t)e << 23 : 0x400000u) * 16384.0f;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t n = w >> (4 * i);
        v[i] = __half2float(__ushort_as_half((unsigned short)((n & 7) << 9 | (n & 8) << 12))) * scale;
    }
}

/* expand.cu. Rows in GGUF's blocks (device memory) into rows [row0, row0 + n) of a weight of `rows` rows at dst. */
nrd_error *nrd_cuda_mx_pack(nrd_stream *s, const void *src, int64_t row0, int64_t n, int64_t rows, int64_t cols, void *dst);

#endif
