/* SPDX-License-Identifier: Apache-2.0
 * pack_wq: weights into the layout of wq.cuh at load.
 * Work      one thread a 32-bit word of the chunks.
 * Bound     runs once for each weight, behind the upload over PCIe.
 * Sources   base/dtype.c is the definition of the formats in plain C.
 */
#include "device/ops/wq.cuh"

extern "C" {
#include "base/dtype.h"
}

#include <algorithm>

/* The number at element i of a block as it is stored: 4 bits as they are, 8 bits + 128. */
static __device__ uint32_t code_of(int dtype, const uint8_t *b, int i)
{
    const int lo = i & 15, top = i >> 4 & 1; /* of a 32-block */
    const int l = i & 31, n = i >> 7, j = i >> 5 & 3;

    switch (dtype) {
    case NRD_DTYPE_Q4_0:
        return b[2 + lo] >> (4 * top) & 15;
    case NRD_DTYPE_Q4_1:
        return b[4 + lo] >> (4 * top) & 15;
    case NRD_DTYPE_Q4_K:
        return b[16 + (i >> 6) * 32 + l] >> (4 * (j & 1)) & 15;
    case NRD_DTYPE_Q5_0:
        return (b[6 + lo] >> (4 * top) & 15 | (b[2 + i / 8] >> (i % 8) & 1) << 4) + 112;
    case NRD_DTYPE_Q5_1:
        return (b[8 + lo] >> (4 * top) & 15 | (b[4 + i / 8] >> (i % 8) & 1) << 4) + 128;
    case NRD_DTYPE_Q5_K:
        return (b[48 + (i >> 6) * 32 + l] >> (4 * (j & 1)) & 15 | (b[16 + l] >> (i >> 5) & 1) << 4) + 128;
    case NRD_DTYPE_Q6_K: {
        const int low = b[n * 64 + (j & 1) * 32 + l] >> (4 * (j >> 1)) & 15;
        return (low | (b[128 + n * 32 + l] >> (2 * j) & 3) << 4) + 96;
    }
    case NRD_DTYPE_Q8_0:
        return (uint8_t)(b[2 + i] ^ 0x80);
    case NRD_DTYPE_Q8_1:
        return (uint8_t)(b[4 + i] ^ 0x80);
    default:
        return (uint8_t)(b[0] ^ 0x80);
    }
}

static __device__ __forceinline__ uint32_t u16_at(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

/* 6-bit factors of group g in Q4_K and Q5_K: groups 4..7 have their top bits in 0..3. */
static __device__ uint32_t k4_factor(const uint8_t *s, int g, bool of_min)
{
    if (g < 4) {
        return s[g + (of_min ? 4 : 0)] & 63;
    }
    return of_min ? s[g + 4] >> 4 | (s[g] >> 6) << 4 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
}

struct pack_params {
    const uint8_t *src;
    uint32_t *dst;
    int64_t row_bytes, rows, cols, words; /* words: all of dst */
    int k_chunks, block, block_bytes, dtype;
};

struct pack_at {
    const pack_params *a;
    int64_t r0, c0; /* of the chunk */

    /* The block of an element, NULL in the padding. */
    __device__ const uint8_t *block(int row, int col) const
    {
        const int64_t r = r0 + row, c = c0 + col;
        return r < a->rows && c < a->cols ? a->src + r * a->row_bytes + c / a->block * a->block_bytes : NULL;
    }
};

static __device__ uint32_t code_at(const pack_at &at, int row, int col, uint32_t zero)
{
    const uint8_t *b = at.block(row, col);
    return b ? code_of(at.a->dtype, b, (int)((at.c0 + col) % at.a->block)) : zero;
}

/* Register i of the operand: rows g, g + 8, g, g + 8; the later ones hold the columns + 8. */
static __device__ uint32_t code_word(const pack_at &at, int bits, int w)
{
    const int lane = w / 4 % 32, g = lane >> 2, t = lane & 3;
    uint32_t r = 0;

    if (bits == 4) {
        const int group = w / 128 * 2 + w % 4 / 2, col = group * 32 + w % 2 * 16 + 2 * t;
        for (int i = 0; i < 4; i++) {
            const int row = g + 8 * (i & 1), c = col + (i & 2) * 4;
            r |= code_at(at, row, c, 0) << (4 * i) | code_at(at, row, c + 1, 0) << (16 + 4 * i);
        }
    } else {
        const int group = w / 128, col = group * 32 + w % 4 / 2 * 16 + 2 * t + w % 2 * 8;
        for (int i = 0; i < 2; i++) {
            r |= code_at(at, g + 8 * i, col, 128) << (8 * i) |
                 code_at(at, g + 8 * i, col + 1, 128) << (16 + 8 * i);
        }
    }
    return r;
}

static __device__ uint32_t meta_word(const pack_at &at, int meta, int w)
{
    const uint8_t *b;
    uint32_t r = 0;

    switch (meta) {
    case WQ_S:
        for (int i = 0; i < 2; i++) {
            b = at.block(w / 4, (w % 4 * 2 + i) * 32);
            r |= b ? u16_at(b) << (16 * i) : 0;
        }
        return r;
    case WQ_M:
        b = at.block(w / 8, w % 8 * 32);
        return b ? u16_at(b) | u16_at(b + 2) << 16 : 0;
    case WQ_K:
        b = at.block(w < 64 ? w / 4 : w - 64, 0);
        if (w >= 64) {
            return b ? u16_at(b) | u16_at(b + 2) << 16 : 0;
        }
        for (int i = 0; i < 4; i++) {
            r |= b ? k4_factor(b + 4, w % 2 * 4 + i, w % 4 >= 2) << (8 * i) : 0;
        }
        return r;
    default: /* WQ_K16 */
        if (w >= 64) {
            for (int i = 0; i < 2; i++) {
                b = at.block((w - 64) * 2 + i, 0);
                r |= b ? u16_at(b + 208) << (16 * i) : 0;
            }
            return r;
        }
        b = at.block(w / 4, 0);
        for (int i = 0; i < 4; i++) {
            r |= (b ? (uint32_t)(b[192 + w % 4 * 4 + i] ^ 0x80) : 0x80u) << (8 * i);
        }
        return r;
    }
}

static __device__ uint32_t pack_word(const pack_params &a, int64_t i)
{
    const wq_format f = wq_of(a.dtype);
    const int chunk_words = wq_chunk(f.bits, f.meta) / 4, code_words = WQ_ROWS * WQ_COLS * f.bits / 32;
    const int64_t chunk = i / chunk_words;
    const int w = (int)(i % chunk_words);
    const pack_at at = {&a, chunk / a.k_chunks * WQ_ROWS, chunk % a.k_chunks * WQ_COLS};

    return w < code_words ? code_word(at, f.bits, w) : meta_word(at, f.meta, w - code_words);
}

static __global__ void pack_kernel(pack_params a)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.words;
         i += (int64_t)gridDim.x * blockDim.x) {
        a.dst[i] = pack_word(a, i);
    }
}

nrd_error *nrd_cuda_wq_pack(nrd_stream *s, nrd_dtype dtype, const void *src, int64_t row_bytes, int64_t rows,
                   int64_t cols, void *dst)
{
    pack_params p = {};

    p.src = (const uint8_t *)src;
    p.dst = (uint32_t *)dst;
    p.row_bytes = row_bytes;
    p.rows = rows;
    p.cols = cols;
    p.words = (int64_t)(wq_bytes(dtype, rows, cols) / 4);
    p.k_chunks = (int)((cols + WQ_COLS - 1) / WQ_COLS);
    p.dtype = dtype;
    p.block = nrd_dtype_block(dtype);
    p.block_bytes = (int)nrd_dtype_block_bytes(dtype);
    const int64_t blocks = std::min<int64_t>((p.words + 255) / 256, 65535);
    pack_kernel<<<(unsigned)blocks, 256, 0, s->s>>>(p);
    CUDA_TRY(cudaGetLastError());
    return NULL;
}
