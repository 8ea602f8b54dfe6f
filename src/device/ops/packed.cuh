/* SPDX-License-Identifier: Apache-2.0
 * packed.cuh - how weights of the types that only GPUs multiply (nrd_dtype_is_packed) lie on one.
 *
 * Purpose   Codes and scales apart, so that both are read in whole sectors and the library takes the codes as they are.
 * Layout    data: codes [rows][cols], of 8 bits or of 4 in pairs, the lower ones first; of NVFP4 in
 *           eights (e2m1_order). Then
 *             MXFP8, MXFP4  E8M0 scales [rows][cols / 32] behind them
 *             NVFP4     E4M3 scales [rows][cols / 16] behind them; nrd_weight.scales: a factor for each row
 *             NF4, FP4  float32 scales [rows][cols / 64] behind them
 *             F8_B128   nothing; scales are float32, in nrd_weight.scales, in one of the two orders that cuBLASLt reads:
 *                       BLOCKS [rows / 128 rounded up][cols / 128, rounded up to 4], where 128 rows share theirs, else
 *                       ROWS [cols / 128][rows, rounded up to 4]
 * Sources   cuBLAS 13.0 documentation, "1D and 2D block scaling"; base/packed.c for the types. */
#ifndef NRD_OPS_PACKED_CUH
#define NRD_OPS_PACKED_CUH

extern "C" {
#include "base/dtype.h"
}
#include "device/ops/common.cuh"

enum : uint32_t { NRD_LAYOUT_PACKED_BLOCKS = 0x504b42, NRD_LAYOUT_PACKED_ROWS = 0x504b52 }; /* of nrd_weight.layout */

/* Rows of x with which W in its own type is faster than W as bf16 in scratch memory; the library's products of blocks are from
 * fewer rows on. */
enum { PACKED_FEW = 64, PACKED_FEW_BLOCKS = 16 };

static inline bool is_packed_layout(uint32_t layout)
{
    return layout == NRD_LAYOUT_PACKED_BLOCKS || layout == NRD_LAYOUT_PACKED_ROWS;
}

static inline int64_t round_up4(int64_t n)
{
    return (n + 3) / 4 * 4;
}

static __host__ __device__ constexpr int packed_bits(int dtype)
{
    return dtype == NRD_DTYPE_F8_B128 || dtype == NRD_DTYPE_MXFP8 ? 8 : 4;
}

/* Whether the four bits are places in a table, with a float32 scale for each 64. */
static __host__ __device__ constexpr bool has_table(int dtype)
{
    return dtype == NRD_DTYPE_NF4 || dtype == NRD_DTYPE_FP4;
}

/* Bytes of the scales behind the codes of a row. */
static inline int64_t packed_row_scales(int dtype, int64_t cols)
{
    return dtype == NRD_DTYPE_F8_B128 ? 0 : dtype == NRD_DTYPE_NVFP4 || has_table(dtype) ? cols / 16 : cols / 32;
}

/* Of nrd_weight.data. */
static inline size_t packed_bytes(int dtype, int64_t rows, int64_t cols)
{
    return (size_t)(rows * (cols * packed_bits(dtype) / 8 + packed_row_scales(dtype, cols)));
}

/* Of nrd_weight.scales; 0: there are none. */
static inline size_t packed_scale_bytes(int dtype, uint32_t layout, int64_t rows, int64_t cols)
{
    const int64_t blocks = cols / 128;
    return dtype == NRD_DTYPE_NVFP4                ? (size_t)rows * 4
           : dtype != NRD_DTYPE_F8_B128            ? 0
           : layout == NRD_LAYOUT_PACKED_BLOCKS ? (size_t)((rows + 127) / 128 * round_up4(blocks)) * 4
                                                : (size_t)(blocks * round_up4(rows)) * 4;
}

/* pack_packed.cu. Rows [row0, row0 + n) of `to`, in the blocks of their type (device memory), into its data and scales. */
nrd_error *nrd_cuda_packed_pack(nrd_stream *s, const void *src, int64_t row0, int64_t n, const nrd_weight *to);
/* Rows [row0, row0 + n) of `w` as bf16 [n][cols] at dst, times their scales and rounded once. */
nrd_error *nrd_cuda_packed_unpack(nrd_stream *s, const nrd_weight *w, int64_t row0, int64_t n, void *dst);
/* x [n][cols] bf16, cols a multiple of 128 -> F8 at `out` with a float32 scale for each 128 columns of a row, at
 * scales[block * pitch + row]. */
nrd_error *nrd_cuda_packed_quantize(nrd_stream *s, const void *x, int64_t n, int64_t cols, void *out, float *scales, int64_t pitch);

/* linear_f8_blocks.cu: sorted pairs times parts from .. to of `a`, F8_B128 in blocks of 128 x 128, without bias and cap; x, bf16, is rounded to F8 in
 * scratch memory. Columns of part `from` begin at y_off. false in *done: not for these, nothing has happened. */
nrd_error *nrd_cuda_moe_linear_f8_blocks(nrd_stream *s, const nrd_moe_linear_args *a, int from, int to, int64_t y_stride, int64_t y_off, bool *done);

/* linear_packed.cu: x, bf16, times parts from .. to of `a`, which are of one type in this layout, into their columns of y;
 * `plain`: no bias, no cap. Sums do not depend on the number of tokens. */
nrd_error *nrd_cuda_linear_packed(nrd_stream *s, const nrd_linear_args *a, int from, int to, bool plain);
/* The same of experts: pairs, with bias. Sums do not depend on the other pairs. */
nrd_error *nrd_cuda_moe_linear_packed(nrd_stream *s, const nrd_moe_linear_args *a, int from, int to);

/* ---- numbers ---- */

/* Two E4M3 bytes in the upper bytes of each half: the same numbers as bf16, times 2^-120. */
static __device__ __forceinline__ uint32_t e4m3_as_bf16(uint32_t v)
{
    return (v >> 4 & 0x07f007f0u) | (v & 0x80008000u);
}

static __device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(0x80008000u)); /* - 0: keeps the sign of a zero */
    return r;
}

enum : uint32_t { TWO_TO_120 = 0x7b807b80u }; /* bf16 pair */

/* Four E4M3 numbers, the first in the lowest byte, as two pairs of bf16; exact. */
static __device__ __forceinline__ void e4m3_numbers(uint32_t w, uint32_t *pair)
{
    pair[0] = mul_bf16x2(e4m3_as_bf16(__byte_perm(w, 0, 0x1404)), TWO_TO_120);
    pair[1] = mul_bf16x2(e4m3_as_bf16(__byte_perm(w, 0, 0x3424)), TWO_TO_120);
}

/* Eight E2M1 numbers in four bits each, from their order into that in which number 2p lies 16 bits below 2p + 1, at bit 4p. */
static __device__ __forceinline__ uint32_t e2m1_order(uint32_t w)
{
    uint32_t out = 0;
#pragma unroll
    for (int p = 0; p < 4; p++) {
        out |= (w >> 8 * p & 15) << 4 * p | (w >> (8 * p + 4) & 15) << (4 * p + 16);
    }
    return out;
}

/* Of eight in that order numbers 2p and 2p + 1 as bf16, times 2^-126. */
static __device__ __forceinline__ uint32_t e2m1_as_bf16(uint32_t w, int p)
{
    return (w << (12 - 4 * p) & 0x80008000u) | ((p < 2 ? w << (6 - 4 * p) : w >> (4 * p - 6)) & 0x01c001c0u);
}

enum : uint32_t { TWO_TO_126 = 0x7e807e80u, TWO_TO_118 = 0x7a807a80u }; /* bf16 pairs */

/* What e2m1_as_bf16 is multiplied by to become the number with its E4M3 scale, 2^8 times smaller than it is: the scale itself
 * times 2^126 would be too large. Exact. */
enum { E2M1_UP = 256 };
static __device__ __forceinline__ uint32_t e2m1_scale(uint32_t byte)
{
    return mul_bf16x2(mul_bf16x2(e4m3_as_bf16(byte << 8 | byte << 24), TWO_TO_120), TWO_TO_118);
}

/* Of a group of 128 numbers that eight neighbouring lanes hold, 16 each from x on: this lane's as F8, and the group's scale. */
static __device__ __forceinline__ float f8_group(const bf16 *x, bool is_there, uint32_t *q)
{
    float v[16] = {}, top = 0.0f;

    if (is_there) {
        load8(x, v);
        load8(x + 8, v + 8);
    }
#pragma unroll
    for (int k = 0; k < 16; k++) {
        top = fmaxf(top, fabsf(v[k]));
    }
#pragma unroll
    for (int o = 4; o > 0; o >>= 1) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, o));
    }
    const float scale = f8_scale(top), inverse = fminf(1.0f / scale, 3.4e38f);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const float *f = v + k * 4;
        q[k] = __nv_cvt_float2_to_fp8x2(make_float2(f[0] * inverse, f[1] * inverse), __NV_SATFINITE, __NV_E4M3) |
               (uint32_t)__nv_cvt_float2_to_fp8x2(make_float2(f[2] * inverse, f[3] * inverse), __NV_SATFINITE, __NV_E4M3) << 16;
    }
    return scale;
}

static __constant__ float nf4_table[16] = NRD_NF4_VALUES, fp4_table[16] = NRD_FP4_VALUES;

/* Of a type that has a table: its number at `place`. */
static __device__ __forceinline__ float table_number(int dtype, int place)
{
    return dtype == NRD_DTYPE_FP4 ? fp4_table[place] : nf4_table[place];
}

/* 2^(e - 127) twice, as bf16, which has all of them. */
static __device__ __forceinline__ uint32_t e8m0_pair(uint32_t e)
{
    const uint32_t one = e ? e << 7 : 0x40;
    return one | one << 16;
}

#endif
