/* SPDX-License-Identifier: Apache-2.0
 * linear_wq_numbers.cuh - numbers of 4 and 8 bits become bf16 operands; what a warp keeps of a chunk's scales.
 * Part of linear_wq.cu. */
#ifndef NRD_OPS_LINEAR_WQ_NUMBERS_CUH
#define NRD_OPS_LINEAR_WQ_NUMBERS_CUH

#include "device/ops/hopper.cuh"
#include "device/ops/wq.cuh"

static __device__ __forceinline__ uint32_t fma2(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

/* The numbers at bits 0..3 and 16..19 of w, each plus 128, as a pair of bf16. */
static __device__ __forceinline__ uint32_t nibbles(uint32_t w)
{
    uint32_t r;
    asm("lop3.b32 %0, %1, 0x000f000f, 0x43004300, 0xea;" : "=r"(r) : "r"(w)); /* (a & b) | c */
    return r;
}

/* Byte i of w plus 32768; top: 0x47000000. */
static __device__ __forceinline__ float byte_at(uint32_t w, int i, uint32_t top)
{
    return __uint_as_float(__byte_perm(w, top, 0x7404u | (uint32_t)i << 4));
}

static __device__ __forceinline__ uint32_t pack2(float lo, float hi)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
    uint32_t r;
    memcpy(&r, &v, 4);
    return r;
}
static __device__ __forceinline__ uint32_t twice(float v)
{
    return pack2(v, v);
}

/* Sums of x times this are where sums of products with integers of 4 bits begin: 128 comes from the mask, 8
 * is the zero of Q4_0. */
static constexpr __host__ __device__ float sum_factor(int meta)
{
    return meta == WQ_S ? -136.0f : -128.0f;
}

enum : uint32_t { TWO_ONES = 0x3f803f80u, TWO_NONE = 0x80008000u /* -0: leaves a sum as it is */ };

/* 4 bits and few tokens: the integers themselves are multiplied, see multiply_few. */
static constexpr __host__ __device__ bool is_few(int bits, int n)
{
    return bits == 4 && n <= 16;
}

/* What a warp keeps of its chunk's scales: [groups or half groups][16 rows] of entries. */
static constexpr __host__ __device__ int entry_words(int bits, int meta, int n)
{
    return is_few(bits, n) ? (meta == WQ_S ? 1 : 2) : bits == 4 && meta != WQ_S ? 4 : 2;
}
static constexpr __host__ __device__ int table_bytes(int bits, int meta, int n)
{
    const int entries = meta == WQ_K16 ? 256 : meta == WQ_ROW ? 0 : 128;
    const int bytes = entries * entry_words(bits, meta, n) * 4;
    return bytes < 1024 ? 1024 : bytes; /* results pass through it too */
}
/* Sums of x of a chunk: [8 groups][tokens / 2][4], see sum_group. */
static constexpr __host__ __device__ int sums_bytes(int bits, int n)
{
    return is_few(bits, n) ? 8 * n * 8 : 0;
}

template <int W> struct wq_entry {
    uint32_t v[W];
};
/* The entries of rows g and g + 8, of two words side by side. */
template <int W> static __device__ __forceinline__ void load_entries(wq_entry<W> (&e)[2], const char *table, int group, int g)
{
    const uint4 *at = (const uint4 *)table + group * (W == 4 ? 16 : 8) + g;
    const uint4 u = at[0];
    if constexpr (W == 4) {
        const uint4 v = at[8];
        e[0].v[0] = u.x, e[0].v[1] = u.y, e[0].v[2] = u.z, e[0].v[3] = u.w;
        e[1].v[0] = v.x, e[1].v[1] = v.y, e[1].v[2] = v.z, e[1].v[3] = v.w;
    } else {
        e[0].v[0] = u.x, e[0].v[1] = u.y, e[1].v[0] = u.z, e[1].v[1] = u.w;
    }
}

/* The entry of numbers q * d + m. */
template <int BITS, int META, bool FEW>
static __device__ __forceinline__ void store_entry(char *table, int at, float d, float m)
{
    if constexpr (FEW) {
        if constexpr (META == WQ_S) {
            ((float *)table)[at] = d;
        } else {
            ((float2 *)table)[at] = make_float2(d, m * (1.0f / sum_factor(META)));
        }
    } else if constexpr (BITS == 8) { /* q + 128 + 32768 comes */
        ((float2 *)table)[at] = make_float2(d, fmaf(d, -32896.0f, m));
    } else {
        const uint32_t hi = twice(d), lo = twice(d - __uint_as_float(hi << 16));
        if constexpr (META == WQ_S) {
            ((uint2 *)table)[at] = make_uint2(hi, lo);
        } else {
            /* any whole number would do; this one leaves the least */
            const float z = fminf(fmaxf(rintf(__fdividef(-m, d)), -127.0f), 127.0f);
            ((uint4 *)table)[at] = make_uint4(hi, lo, twice(-128.0f - z), twice(fmaf(z, d, m)));
        }
    }
}

/* The warp's table from what follows a chunk's codes. */
template <int BITS, int META, bool FEW>
static __device__ __forceinline__ void make_table(char *table, const char *meta, int lane, uint32_t top)
{
    const int row = lane & 15, half = lane >> 4;
    const bool pairs = FEW || BITS == 8 || META == WQ_S; /* rows g and g + 8 side by side */
    const int place = pairs ? (row & 7) << 1 | row >> 3 : row, to = half * 64 + place;

    if constexpr (META == WQ_S) {
        const uint2 u = ((const uint2 *)meta)[row * 2 + half];
        const float2 a = wq_halves(u.x), b = wq_halves(u.y);
        const float d[4] = {a.x, a.y, b.x, b.y};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            store_entry<BITS, META, FEW>(table, to + i * 16, d[i], 0.0f);
        }
    } else if constexpr (META == WQ_M) {
        const uint4 u = ((const uint4 *)meta)[row * 2 + half];
        const float2 dm[4] = {wq_halves(u.x), wq_halves(u.y), wq_halves(u.z), wq_halves(u.w)};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            store_entry<BITS, META, FEW>(table, to + i * 16, dm[i].x, dm[i].y);
        }
    } else if constexpr (META == WQ_K) {
        const uint32_t f = ((const uint32_t *)meta)[row * 4 + half];
        const uint32_t fm = ((const uint32_t *)meta)[row * 4 + 2 + half];
        const float2 d = wq_halves(((const uint32_t *)meta)[64 + row]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            store_entry<BITS, META, FEW>(table, to + i * 16, d.x * (byte_at(f, i, top) - 32768.0f),
                                    -d.y * (byte_at(fm, i, top) - 32768.0f));
        }
    } else if constexpr (META == WQ_K16) {
        const uint2 f = ((const uint2 *)meta)[row * 2 + half];
        const float d = __half2float(((const __half *)meta)[128 + row]);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            store_entry<BITS, META, FEW>(table, (half * 8 + i) * 16 + place,
                                    d * (byte_at(i < 4 ? f.x : f.y, i % 4, top) - 32896.0f), 0.0f);
        }
    }
}

/* 16 columns, half group j of a group of 32, as a left operand. q: the lane's codes; e[h]: entries of row
 * g + 8h. */
template <int BITS, int META, int W>
static __device__ __forceinline__ void to_operand(uint32_t *a, const uint4 &q, int group, int j,
                                                  const wq_entry<W> (&e)[2], uint32_t top)
{
    if constexpr (BITS == 4) {
        const uint32_t w = group % 2 ? (j ? q.w : q.z) : (j ? q.y : q.x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const wq_entry<W> &s = e[i & 1];
            const uint32_t v = nibbles(w >> (4 * i));
            if constexpr (META == WQ_S) {
                const uint32_t u = fma2(v, TWO_ONES, 0xc308c308u); /* -136: the zero of Q4_0 is 8 */
                a[i] = fma2(u, s.v[0], fma2(u, s.v[1], TWO_NONE));
            } else {
                const uint32_t u = fma2(v, TWO_ONES, s.v[2]);
                a[i] = fma2(u, s.v[0], fma2(u, s.v[1], s.v[3]));
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) { /* bytes 0, 2 or 1, 3 of a word */
            const uint32_t w = j ? (i < 2 ? q.z : q.w) : (i < 2 ? q.x : q.y);
            const float lo = byte_at(w, i & 1, top), hi = byte_at(w, 2 + (i & 1), top);
            if constexpr (META == WQ_ROW) {
                a[i] = pack2(lo - 32896.0f, hi - 32896.0f);
            } else {
                const float d = __uint_as_float(e[i & 1].v[0]), c = __uint_as_float(e[i & 1].v[1]);
                a[i] = pack2(fmaf(lo, d, c), fmaf(hi, d, c));
            }
        }
    }
}

#endif
