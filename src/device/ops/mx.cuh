/* SPDX-License-Identifier: Apache-2.0
 * mx.cuh - how experts' weights of MXFP4 lie on a GPU.
 *
 * Purpose   Four bits a number and eight a block of 32, as in the file, but in runs that 32-bit loads can take: the 17
 *           bytes of a GGUF block are at any address.
 * Layout    Codes of all rows, [rows][cols / 2] bytes. The 16 bytes of a block are four words; word c has the columns 2c and
 *           2c + 1 of each eight: number 8j + 2c + p at bits 4 (j + 4p), so that a mask gives two neighbours, 16 bits apart, and a
 *           lane of four has in its word what it multiplies. Behind the codes the scales of E8M0, [cols / 64, rounded up][rows][2]
 *           bytes: those of 64 columns of many rows are one run. cols is a multiple of 32.
 * Sources   Open Compute Project, Microscaling Formats (2023): E2M1, E8M0.
 */
#ifndef NRD_OPS_MX_CUH
#define NRD_OPS_MX_CUH

#include "device/ops/common.cuh"

enum : uint32_t { NRD_LAYOUT_MX = 0x4d58 }; /* of nrd_weight.layout */

static inline size_t mx_bytes(int64_t rows, int64_t cols)
{
    return (size_t)rows * (size_t)(cols / 2 + (cols + 63) / 64 * 2);
}

/* A weight of this layout. */
struct mx_matrix {
    const uint32_t *codes; /* eight numbers each */
    const uint8_t *scales;
    int64_t rows;
};

static __host__ __device__ __forceinline__ mx_matrix mx_of(const void *data, int64_t rows, int64_t cols)
{
    return {(const uint32_t *)data, (const uint8_t *)data + rows * (cols / 2), rows};
}

static __host__ __device__ __forceinline__ int64_t mx_scale_at(int64_t rows, int64_t r, int64_t k)
{
    return (k / 64 * rows + r) * 2 + k / 32 % 2;
}

/* Word c of the block at column k of row r: v[2j + p] is number 8j + 2c + p of the block. E2M1's bits are those of a half that is
 * 2^14 times smaller. */
static __device__ __forceinline__ void mx_load_word(const mx_matrix &m, int64_t r, int64_t k, int c, int64_t cols, float *v)
{
    const uint32_t w = m.codes[(r * cols + k) / 8 + c];
    const int e = m.scales[mx_scale_at(m.rows, r, k)];
    const float scale = __uint_as_float(e ? (uint32_t)e << 23 : 0x400000u) * 16384.0f;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t n = w >> (4 * (i / 2 + i % 2 * 4));
        v[i] = __half2float(__ushort_as_half((unsigned short)((n & 7) << 9 | (n & 8) << 12))) * scale;
    }
}

/* expand.cu. Rows in GGUF's blocks (device memory) into rows [row0, row0 + n) of a weight of `rows` rows at dst. */
nrd_error *nrd_cuda_mx_pack(nrd_stream *s, const void *src, int64_t row0, int64_t n, int64_t rows, int64_t cols, void *dst);

#endif
