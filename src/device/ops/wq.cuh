/* SPDX-License-Identifier: Apache-2.0
 * wq.cuh - how weights of 4 and 8 bits lie on a Hopper GPU.
 *
 * Purpose   One layout for the formats that weight_load keeps as they are: integers with a scale, and
 *           an offset where the format has one, for each group of a row. Nothing is rounded: every
 *           number of the file can be had back.
 * Layout    Rows and columns are padded to multiples of 16 and 256 with zeros. A chunk holds 16 rows x
 *           256 columns: the codes, then what scales them. Chunks of the same 16 rows follow each
 *           other along the columns, so that a warp reads one stream.
 *           Codes: 8 groups of 32 columns. Lane 4g + t of a warp owns rows g and g + 8 and of each half
 *           group j the columns 16j + 2t, + 1, + 8 and + 9: the left operand of two mma.m16n8k16, and
 *           of wgmma, whose four warps have 16 rows each. 4 bits: a word a half group; its bits 4i and
 *           16 + 4i are the two numbers of the operand's register i. 8 bits: two words, for registers
 *           0, 1 and 2, 3, in whose bytes 0, 2 and 1, 3 they are; a byte is the number + 128. A lane's
 *           16 bytes are two groups (4 bits) or one (8 bits), and lanes follow each other.
 *           Scales: see wq_meta.
 * Sources   PTX ISA 9.0, "Matrix Fragments for mma.m16n8k16"; base/dtype.c for the formats.
 */
#ifndef NRD_OPS_WQ_CUH
#define NRD_OPS_WQ_CUH

#include "device/ops/common.cuh"

/* What follows the codes of a chunk. */
enum wq_meta {
    WQ_S,   /* f16 [16 rows][8 groups]: scale */
    WQ_M,   /* f16 pairs [16][8]: scale, offset */
    WQ_K,   /* bytes [16][2][8]: factors of scale and of minimum; f16 pairs [16]: what they multiply */
    WQ_K16, /* bytes [16][16 half groups]: factor + 128; f16 [16]: what it multiplies */
    WQ_ROW, /* nothing: a scale for each row, nrd_weight.scales */
};

enum { WQ_ROWS = 16, WQ_COLS = 256 };
enum : uint32_t { NRD_LAYOUT_WQ = 0x5751 }; /* of nrd_weight.layout */

static __host__ __device__ constexpr int wq_meta_bytes(int meta)
{
    return meta == WQ_S ? 256 : meta == WQ_M ? 512 : meta == WQ_K ? 320 : meta == WQ_K16 ? 288 : 0;
}

static __host__ __device__ constexpr int wq_chunk(int bits, int meta)
{
    return WQ_ROWS * WQ_COLS * bits / 8 + wq_meta_bytes(meta);
}

struct wq_format {
    int bits; /* 0: not kept in this layout */
    int meta;
};

static __host__ __device__ inline wq_format wq_of(int dtype)
{
    switch (dtype) {
    case NRD_DTYPE_Q4_0:
        return {4, WQ_S};
    case NRD_DTYPE_Q4_1:
        return {4, WQ_M};
    case NRD_DTYPE_Q4_K:
        return {4, WQ_K};
    case NRD_DTYPE_Q5_0:
    case NRD_DTYPE_Q8_0:
        return {8, WQ_S};
    case NRD_DTYPE_Q5_1:
    case NRD_DTYPE_Q8_1:
        return {8, WQ_M};
    case NRD_DTYPE_Q5_K:
        return {8, WQ_K};
    case NRD_DTYPE_Q6_K:
        return {8, WQ_K16};
    case NRD_DTYPE_I8:
        return {8, WQ_ROW};
    default:
        return {0, 0};
    }
}

static inline size_t wq_bytes(int dtype, int64_t rows, int64_t cols)
{
    const wq_format f = wq_of(dtype);
    return (size_t)((rows + WQ_ROWS - 1) / WQ_ROWS) * (size_t)((cols + WQ_COLS - 1) / WQ_COLS) *
           (size_t)wq_chunk(f.bits, f.meta);
}

/* pack_wq.cu. Rows in the blocks of their format (device memory) -> chunks at dst; `rows` that start
 * a group of 16 of the matrix. */
nrd_error *nrd_cuda_wq_pack(nrd_stream *s, nrd_dtype dtype, const void *src, int64_t row_bytes, int64_t rows,
                   int64_t cols, void *dst);
/* linear_wq.cu: x times parts from .. to of `a`, which are in this layout and of one format, into their
 * columns of y. `plain`: no bias, no cap. */
nrd_error *nrd_cuda_linear_wq(nrd_stream *s, const nrd_linear_args *a, int from, int to, bool plain);

/* linear_i8.cu: parts from .. to of int8 times x rounded to int8 with a scale for each token; no bias, no cap. *done = false: not for
 * this shape. */
nrd_error *nrd_cuda_linear_i8(nrd_stream *s, const nrd_linear_args *a, int from, int to, bool *done);

static __device__ __forceinline__ float2 wq_halves(uint32_t w)
{
    __half2 h;
    memcpy(&h, &w, 4);
    return __half22float2(h);
}

#endif
