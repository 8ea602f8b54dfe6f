/* SPDX-License-Identifier: Apache-2.0
 * device/cpu/simd.h - sixteen floats, sixty-four bytes: one vocabulary for every instruction set.
 *
 * Purpose   The kernels (device/ops/<op>_cpu.h) are written once in these words; each
 *           device/cpu/isa_<name>.c picks a meaning with NRD_ISA (0 generic C, 1 AVX2+FMA+F16C,
 *           2 AVX-512 F/BW/VL/DQ, 3 the same with VNNI, 4 that with AMX, see amx.h), includes the
 *           kernels and exports a table.
 * Note      vf_fma is fused except in generic C. vf_sum and vf_hmax reduce in one fixed order.
 */
#ifndef NRD_DEVICE_CPU_SIMD_H
#define NRD_DEVICE_CPU_SIMD_H

#ifndef NRD_ISA
#error "NRD_ISA is set by the isa_<name>.c that includes this"
#endif

#include "base/dtype.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#if NRD_ISA > 0
#include <immintrin.h>
#endif

/* Sanitizers multiply every access: what is unrolled for speed would take minutes to compile. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NRD_SMALL 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define NRD_SMALL 1
#endif
#endif
#ifndef NRD_SMALL
#define NRD_SMALL (NRD_ISA == 0)
#else
#define NRD_CALLS (NRD_ISA == 0) /* plain C: even the words themselves are called, not copied */
#if !defined(__clang__)
#pragma GCC optimize("O1")
#endif
#endif
#if defined(NRD_CALLS) && NRD_CALLS
#define NRD_INLINE static __attribute__((noinline, unused))
#else
#define NRD_INLINE static inline __attribute__((always_inline, unused))
#endif
/* Kernels with sizes as compile-time constants: copied out for each, except where small is better. */
#if NRD_SMALL
#define NRD_KERNEL static __attribute__((noinline, unused))
#else
#define NRD_KERNEL NRD_INLINE
#endif
#if defined(__clang__)
#define NRD_SHIFT(n) ((unsigned)(n)) /* the compilers' headers disagree on the type */
#else
#define NRD_SHIFT(n) (n)
#endif
#if NRD_SMALL
#define NRD_UNROLL
#elif defined(__clang__)
#define NRD_UNROLL _Pragma("clang loop unroll(full)")
#else
#define NRD_UNROLL _Pragma("GCC unroll 16")
#endif

#if NRD_ISA == 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#if !NRD_SMALL
#pragma GCC optimize("O3")
#endif
#pragma GCC target("avx2,fma,f16c")
#endif
#elif NRD_ISA == 2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c"))), apply_to = function)
#else
#if !NRD_SMALL
#pragma GCC optimize("O3")
#endif
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c,prefer-vector-width=512")
#endif
#elif NRD_ISA >= 3
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c"))), apply_to = function)
#else
#if !NRD_SMALL
#pragma GCC optimize("O3")
#endif
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c,prefer-vector-width=512")
#endif
#endif

#if NRD_ISA >= 2
/* ---- AVX-512 ---- */
typedef __m512 vf;
typedef __m512i vi;

NRD_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
NRD_INLINE vf vf_set1(float x) { return _mm512_set1_ps(x); }
NRD_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
NRD_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
NRD_INLINE __mmask16 vf_first(int n) { return (__mmask16)((1u << n) - 1u); }
NRD_INLINE vf vf_load_n(const float *p, int n) { return _mm512_maskz_loadu_ps(vf_first(n), p); }
NRD_INLINE void vf_store_n(float *p, vf x, int n) { _mm512_mask_storeu_ps(p, vf_first(n), x); }
NRD_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
NRD_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
NRD_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
NRD_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
NRD_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
NRD_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
NRD_INLINE vf vf_abs(vf a) { return _mm512_abs_ps(a); }
NRD_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
NRD_INLINE vf vf_round(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
NRD_INLINE vf vf_scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); } /* a * 2^n, n whole */
/* Lanes where a > b (a >= b) take x, others y; comparisons with NaN are false. */
NRD_INLINE vf vf_gt(vf a, vf b, vf x, vf y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x); }
NRD_INLINE uint32_t vf_gt_bits(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
NRD_INLINE float vf_hmax(vf a) { return _mm512_reduce_max_ps(a); }
NRD_INLINE float vf_sum(vf a)
{
    __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
NRD_INLINE vf vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
NRD_INLINE vf vf_load_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
NRD_INLINE vf vf_load_i8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
NRD_INLINE vf vf_load_u8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
NRD_INLINE void vf_store_f16(void *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
/* Rows of sixteen floats become columns: pairs of rows, then of pairs within 128 bits, then these themselves. */
NRD_INLINE void vf_transpose(vf x[16])
{
    vf y[16];

    NRD_UNROLL
    for (int i = 0; i < 16; i += 2) {
        y[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
    }
    NRD_UNROLL
    for (int i = 0; i < 16; i += 4) { /* x[i + c]: of each 128 bits column c, of rows i to i + 3 */
        for (int h = 0; h < 2; h++) {
            const __m512d a = _mm512_castps_pd(y[i + h]), b = _mm512_castps_pd(y[i + h + 2]);
            x[i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
            x[i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
        }
    }
    NRD_UNROLL
    for (int c = 0; c < 4; c++) {
        const vf even0 = _mm512_shuffle_f32x4(x[c], x[4 + c], 0x88), even1 = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0x88);
        const vf odd0 = _mm512_shuffle_f32x4(x[c], x[4 + c], 0xdd), odd1 = _mm512_shuffle_f32x4(x[8 + c], x[12 + c], 0xdd);
        y[c] = _mm512_shuffle_f32x4(even0, even1, 0x88);
        y[8 + c] = _mm512_shuffle_f32x4(even0, even1, 0xdd);
        y[4 + c] = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
        y[12 + c] = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
    }
    NRD_UNROLL
    for (int i = 0; i < 16; i++) {
        x[i] = y[i];
    }
}
/* Lane i: the largest of x[i]. Halves of two vectors in one, quarters of four, and so on. */
NRD_INLINE vf vf_hmax_16(vf x[16])
{
    NRD_UNROLL
    for (int i = 0; i < 8; i++) {
        x[i] = vf_max(_mm512_shuffle_f32x4(x[i], x[i + 8], 0x44), _mm512_shuffle_f32x4(x[i], x[i + 8], 0xee));
    }
    NRD_UNROLL
    for (int i = 0; i < 4; i++) { /* of each 128 bits: i, i + 8, i + 4, i + 12 */
        x[i] = vf_max(_mm512_shuffle_f32x4(x[i], x[i + 4], 0x88), _mm512_shuffle_f32x4(x[i], x[i + 4], 0xdd));
    }
    NRD_UNROLL
    for (int i = 0; i < 2; i++) { /* of each 64 bits: i, i + 2 */
        const __m512d a = _mm512_castps_pd(x[i]), b = _mm512_castps_pd(x[i + 2]);
        x[i] = vf_max(_mm512_castpd_ps(_mm512_unpacklo_pd(a, b)), _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)));
    }
    x[0] = vf_max(_mm512_shuffle_ps(x[0], x[1], 0x88), _mm512_shuffle_ps(x[0], x[1], 0xdd));
    /* as they lie: 0 2 1 3, 8 10 9 11, 4 6 5 7, 12 14 13 15 */
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15), x[0]);
}
/* Sixteen floats to int8, rounded to nearest even and saturated. */
NRD_INLINE void vf_store_bytes(void *p, vf x)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x)));
}
/* sum[i] = the sum of the signed bytes [16 i, 16 i + 16) at p, for 16 i. */
NRD_INLINE void vi_store_sums(int16_t *sum, const int8_t *p)
{
    __m512i all = _mm512_setzero_si512();

    NRD_UNROLL
    for (int i = 0; i < 4; i++) { /* one instruction sums eight bytes each; they are unsigned. Word i of each 64 bits: of 64 i */
        const __m512i s = _mm512_sad_epu8(_mm512_xor_si512(_mm512_loadu_si512(p + i * 64), _mm512_set1_epi8(-128)),
                                          _mm512_setzero_si512());
        all = _mm512_or_si512(all, _mm512_slli_epi64(s, (unsigned)(16 * i)));
    }
    all = _mm512_sub_epi16(_mm512_add_epi16(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC)), _mm512_set1_epi16(16 * 128));
    /* word i of 128 bits l is sum 4 i + l */
    const __m512i order = _mm512_castsi256_si512(_mm256_setr_epi16(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27));
    _mm256_storeu_si256((__m256i *)(void *)sum, _mm512_castsi512_si256(_mm512_permutexvar_epi16(order, all)));
}
/* Sixteen floats to int8, rounded to nearest even and saturated; gives their sum. */
NRD_INLINE int vf_store_i8(void *p, vf x)
{
    __m128i b = _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x));
    _mm_storeu_si128((__m128i *)p, b);
    /* one instruction sums eight bytes each; they are unsigned */
    __m128i s = _mm_sad_epu8(_mm_xor_si128(b, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(s) + _mm_extract_epi16(s, 4) - 16 * 128;
}
/* Pairs of bf16 as they lie in a tile: even and odd members. */
NRD_INLINE vf vi_bf16_even(vi x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
NRD_INLINE vf vi_bf16_odd(vi x) { return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000u))); }
/* The upper halves of two vectors as such pairs. */
NRD_INLINE vi vi_bf16_pairs(vi even, vi odd)
{
    const vi high = _mm512_broadcast_i32x4(_mm_setr_epi8(2, 3, 2, 3, 6, 7, 6, 7, 10, 11, 10, 11, 14, 15, 14, 15));
    return _mm512_mask_shuffle_epi8(odd, 0x3333333333333333u, even, high);
}

NRD_INLINE vi vi_load(const void *p) { return _mm512_loadu_si512(p); }
NRD_INLINE void vi_store(void *p, vi v) { _mm512_storeu_si512(p, v); }
NRD_INLINE vi vi_set1_8(int v) { return _mm512_set1_epi8((char)v); }
NRD_INLINE vi vi_set1_32(int32_t v) { return _mm512_set1_epi32(v); }
NRD_INLINE vi vi_and(vi a, vi b) { return _mm512_and_si512(a, b); }
NRD_INLINE vi vi_or(vi a, vi b) { return _mm512_or_si512(a, b); }
NRD_INLINE vi vi_srl(vi a, int n) { return _mm512_srli_epi16(a, NRD_SHIFT(n)); }
NRD_INLINE vi vi_sll(vi a, int n) { return _mm512_slli_epi16(a, NRD_SHIFT(n)); }
/* As vi_srl, n known only at run time. */
NRD_INLINE vi vi_srl_by(vi a, int n) { return _mm512_srl_epi16(a, _mm_cvtsi32_si128(n)); }
/* Each byte of `i`, which is 0 to 15, becomes the table's byte of that place. */
NRD_INLINE vi vi_lookup(const uint8_t table[16], vi i)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)), i);
}
NRD_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
NRD_INLINE vf vf_from_vi(vi a) { return _mm512_cvtepi32_ps(a); }
/* `a` as 16 pairs of int16: first * even + second * odd of each, as 32 bits. */
NRD_INLINE vi vi_weigh_pairs(vf a, int even, int odd)
{
    return _mm512_madd_epi16(_mm512_castps_si512(a), _mm512_set1_epi32((int)((uint32_t)odd << 16 | ((uint32_t)even & 0xffffu))));
}
/* acc[row] += sum of 4 products: unsigned bytes of w (below `max`) with the 4 signed bytes at x. */
NRD_INLINE vi vi_dot(vi acc, vi w, const void *x, int max)
{
    int32_t v;
    memcpy(&v, x, 4);
    (void)max;
#if NRD_ISA >= 3
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(v));
#else
    __m512i b = _mm512_set1_epi32(v);
    if (max <= 128) { /* 2 * 127 * 127 fits in 16 bits: no saturation */
        return _mm512_add_epi32(acc, _mm512_madd_epi16(_mm512_maddubs_epi16(w, b), _mm512_set1_epi16(1)));
    }
    __m512i even = _mm512_madd_epi16(_mm512_and_si512(w, _mm512_set1_epi16(0xff)),
                                     _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
    __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(w, 8), _mm512_srai_epi16(b, 8));
    return _mm512_add_epi32(acc, _mm512_add_epi32(even, odd));
#endif
}

#elif NRD_ISA == 1
/* ---- AVX2: two halves ---- */
typedef struct { __m256 a, b; } vf;
typedef struct { __m256i a, b; } vi;

#define VF2(x, y) ((vf){(x), (y)})
#define VI2(x, y) ((vi){(x), (y)})
NRD_INLINE vf vf_zero(void) { return VF2(_mm256_setzero_ps(), _mm256_setzero_ps()); }
NRD_INLINE vf vf_set1(float x) { return VF2(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
NRD_INLINE vf vf_load(const float *p) { return VF2(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
NRD_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
NRD_INLINE vf vf_load_n(const float *p, int n)
{
    float t[16] = {0};
    memcpy(t, p, (size_t)n * 4);
    return vf_load(t);
}
NRD_INLINE void vf_store_n(float *p, vf x, int n)
{
    float t[16];
    vf_store(t, x);
    memcpy(p, t, (size_t)n * 4);
}
NRD_INLINE vf vf_add(vf x, vf y) { return VF2(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
NRD_INLINE vf vf_sub(vf x, vf y) { return VF2(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
NRD_INLINE vf vf_mul(vf x, vf y) { return VF2(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
NRD_INLINE vf vf_div(vf x, vf y) { return VF2(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
NRD_INLINE vf vf_max(vf x, vf y) { return VF2(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
NRD_INLINE vf vf_min(vf x, vf y) { return VF2(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
NRD_INLINE vf vf_abs(vf x)
{
    __m256 m = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return VF2(_mm256_and_ps(x.a, m), _mm256_and_ps(x.b, m));
}
NRD_INLINE vf vf_fma(vf x, vf y, vf z) { return VF2(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)); }
NRD_INLINE vf vf_round(vf x)
{
    return VF2(_mm256_round_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
               _mm256_round_ps(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
NRD_INLINE __m256 vf_pow2_(__m256 n) /* 2^n; n below -126 gives 0 */
{
    __m256i e = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    e = _mm256_min_epi32(_mm256_max_epi32(e, _mm256_setzero_si256()), _mm256_set1_epi32(255));
    return _mm256_castsi256_ps(_mm256_slli_epi32(e, 23));
}
NRD_INLINE vf vf_scale2(vf x, vf n) { return VF2(_mm256_mul_ps(x.a, vf_pow2_(n.a)), _mm256_mul_ps(x.b, vf_pow2_(n.b))); }
NRD_INLINE vf vf_gt(vf p, vf q, vf x, vf y)
{
    return VF2(_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(p.a, q.a, _CMP_GT_OQ)),
               _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(p.b, q.b, _CMP_GT_OQ)));
}
NRD_INLINE uint32_t vf_gt_bits(vf p, vf q)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(p.a, q.a, _CMP_GT_OQ)) |
           (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(p.b, q.b, _CMP_GT_OQ)) << 8;
}
NRD_INLINE float vf_hmax(vf x)
{
    __m256 m = _mm256_max_ps(x.a, x.b);
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(m), _mm256_extractf128_ps(m, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
NRD_INLINE float vf_sum(vf v)
{
    __m256 x = _mm256_add_ps(v.a, v.b);
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
NRD_INLINE vf vf_load_f16(const void *p)
{
    const __m128i *q = (const __m128i *)p;
    return VF2(_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1)));
}
NRD_INLINE vf vf_load_bf16(const void *p)
{
    const __m128i *q = (const __m128i *)p;
    return VF2(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16)),
               _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16)));
}
NRD_INLINE vf vf_load_i8(const void *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return VF2(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(v, 8))));
}
NRD_INLINE vf vf_load_u8(const void *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)p);
    return VF2(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(v)), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(v, 8))));
}
NRD_INLINE void vf_store_f16(void *p, vf x)
{
    __m128i *q = (__m128i *)p;
    _mm_storeu_si128(q, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(q + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
NRD_INLINE int vf_store_i8(void *p, vf x)
{
    __m256i a = _mm256_cvtps_epi32(x.a), b = _mm256_cvtps_epi32(x.b);
    __m256i h = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
    __m256i s = _mm256_add_epi32(a, b);
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    t = _mm_add_epi32(t, _mm_shuffle_epi32(t, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 0xb1)));
}
NRD_INLINE vf vi_bf16_even(vi x)
{
    return VF2(_mm256_castsi256_ps(_mm256_slli_epi32(x.a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(x.b, 16)));
}
NRD_INLINE vf vi_bf16_odd(vi x)
{
    __m256i m = _mm256_set1_epi32((int)0xffff0000u);
    return VF2(_mm256_castsi256_ps(_mm256_and_si256(x.a, m)), _mm256_castsi256_ps(_mm256_and_si256(x.b, m)));
}

NRD_INLINE vi vi_load(const void *p)
{
    const __m256i *q = (const __m256i *)p;
    return VI2(_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1));
}
NRD_INLINE vi vi_set1_8(int v) { return VI2(_mm256_set1_epi8((char)v), _mm256_set1_epi8((char)v)); }
NRD_INLINE vi vi_set1_32(int32_t v) { return VI2(_mm256_set1_epi32(v), _mm256_set1_epi32(v)); }
NRD_INLINE vi vi_and(vi x, vi y) { return VI2(_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)); }
NRD_INLINE vi vi_or(vi x, vi y) { return VI2(_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)); }
NRD_INLINE vi vi_srl(vi x, int n) { return VI2(_mm256_srli_epi16(x.a, n), _mm256_srli_epi16(x.b, n)); }
NRD_INLINE vi vi_sll(vi x, int n) { return VI2(_mm256_slli_epi16(x.a, n), _mm256_slli_epi16(x.b, n)); }
NRD_INLINE vi vi_srl_by(vi x, int n)
{
    const __m128i by = _mm_cvtsi32_si128(n);
    return VI2(_mm256_srl_epi16(x.a, by), _mm256_srl_epi16(x.b, by));
}
NRD_INLINE vi vi_lookup(const uint8_t table[16], vi i)
{
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    return VI2(_mm256_shuffle_epi8(t, i.a), _mm256_shuffle_epi8(t, i.b));
}
NRD_INLINE vi vi_add(vi x, vi y) { return VI2(_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)); }
NRD_INLINE vf vf_from_vi(vi x) { return VF2(_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)); }
/* Dots of weights below 64 stay in 16 bits for some steps: acc[row] += two sums of two products each, w with the 4
 * signed bytes at x. vi_add_pairs() then adds both to 32 bits. */
#define NRD_DOT_PAIRS 1
NRD_INLINE vi vi_dot_pairs(vi acc, vi w, const void *x)
{
    int32_t v;
    memcpy(&v, x, 4);
    const __m256i b = _mm256_set1_epi32(v);
    acc.a = _mm256_add_epi16(acc.a, _mm256_maddubs_epi16(w.a, b));
    acc.b = _mm256_add_epi16(acc.b, _mm256_maddubs_epi16(w.b, b));
    __asm__("" : "+x"(acc.a), "+x"(acc.b)); /* else gcc sums the products as a tree, and spills them all */
    return acc;
}
NRD_INLINE vi vi_add_pairs(vi acc, vi pairs)
{
    const __m256i one = _mm256_set1_epi16(1);
    return VI2(_mm256_add_epi32(acc.a, _mm256_madd_epi16(pairs.a, one)),
               _mm256_add_epi32(acc.b, _mm256_madd_epi16(pairs.b, one)));
}
NRD_INLINE __m256i vi_dot_(__m256i acc, __m256i w, __m256i b, int max)
{
    if (max <= 128) {
        return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, b), _mm256_set1_epi16(1)));
    }
    __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0xff)),
                                     _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
    __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(b, 8));
    acc = _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
    __asm__("" : "+x"(acc)); /* as in vi_dot_pairs() */
    return acc;
}
NRD_INLINE vi vi_dot(vi acc, vi w, const void *x, int max)
{
    int32_t v;
    memcpy(&v, x, 4);
    __m256i b = _mm256_set1_epi32(v);
    return VI2(vi_dot_(acc.a, w.a, b, max), vi_dot_(acc.b, w.b, b, max));
}

#else
/* ---- plain C: loops that a compiler may vectorize for the baseline ---- */
typedef struct { float v[16]; } vf;
typedef struct { int32_t v[16]; } vi;

#define VF_EACH(expr)                                                                              \
    do {                                                                                           \
        vf o_;                                                                                     \
        for (int i = 0; i < 16; i++) {                                                             \
            o_.v[i] = (expr);                                                                      \
        }                                                                                          \
        return o_;                                                                                 \
    } while (0)
#define VI_EACH(expr)                                                                              \
    do {                                                                                           \
        vi o_;                                                                                     \
        for (int i = 0; i < 16; i++) {                                                             \
            o_.v[i] = (int32_t)(expr);                                                             \
        }                                                                                          \
        return o_;                                                                                 \
    } while (0)
NRD_INLINE vf vf_set1(float x) { VF_EACH(x); }
NRD_INLINE vf vf_zero(void) { return vf_set1(0); }
NRD_INLINE vf vf_load(const float *p) { VF_EACH(p[i]); }
NRD_INLINE void vf_store(float *p, vf x) { memcpy(p, x.v, 64); }
NRD_INLINE vf vf_load_n(const float *p, int n) { VF_EACH(i < n ? p[i] : 0); }
NRD_INLINE void vf_store_n(float *p, vf x, int n) { memcpy(p, x.v, (size_t)n * 4); }
NRD_INLINE vf vf_add(vf a, vf b) { VF_EACH(a.v[i] + b.v[i]); }
NRD_INLINE vf vf_sub(vf a, vf b) { VF_EACH(a.v[i] - b.v[i]); }
NRD_INLINE vf vf_mul(vf a, vf b) { VF_EACH(a.v[i] * b.v[i]); }
NRD_INLINE vf vf_div(vf a, vf b) { VF_EACH(a.v[i] / b.v[i]); }
NRD_INLINE vf vf_max(vf a, vf b) { VF_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
NRD_INLINE vf vf_min(vf a, vf b) { VF_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
NRD_INLINE vf vf_abs(vf a) { VF_EACH(fabsf(a.v[i])); }
NRD_INLINE vf vf_fma(vf a, vf b, vf c) { VF_EACH(a.v[i] * b.v[i] + c.v[i]); }
NRD_INLINE vf vf_round(vf a) { VF_EACH(rintf(a.v[i])); }
NRD_INLINE vf vf_scale2(vf a, vf n) { VF_EACH(n.v[i] < -200.0f ? 0.0f : ldexpf(a.v[i], (int)n.v[i])); }
NRD_INLINE vf vf_gt(vf a, vf b, vf x, vf y) { VF_EACH(a.v[i] > b.v[i] ? x.v[i] : y.v[i]); }
NRD_INLINE uint32_t vf_gt_bits(vf a, vf b)
{
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++) {
        bits |= (uint32_t)(a.v[i] > b.v[i]) << i;
    }
    return bits;
}
NRD_INLINE float vf_hmax(vf a)
{
    float m = a.v[0];
    for (int i = 1; i < 16; i++) {
        m = a.v[i] > m ? a.v[i] : m;
    }
    return m;
}
NRD_INLINE float vf_sum(vf a)
{
    for (int n = 8; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) {
            a.v[i] += a.v[i + n];
        }
    }
    return a.v[0];
}
NRD_INLINE uint16_t u16_at_(const void *p, int i)
{
    uint16_t h;
    memcpy(&h, (const char *)p + i * 2, 2);
    return h;
}
NRD_INLINE vf vf_load_f16(const void *p) { VF_EACH(nrd_f16_to_f32(u16_at_(p, i))); }
NRD_INLINE vf vf_load_bf16(const void *p) { VF_EACH(nrd_bf16_to_f32(u16_at_(p, i))); }
NRD_INLINE vf vf_load_i8(const void *p) { VF_EACH((float)((const int8_t *)p)[i]); }
NRD_INLINE vf vf_load_u8(const void *p) { VF_EACH((float)((const uint8_t *)p)[i]); }
NRD_INLINE void vf_store_f16(void *p, vf x)
{
    for (int i = 0; i < 16; i++) {
        uint16_t h = nrd_f32_to_f16(x.v[i]);
        memcpy((char *)p + i * 2, &h, 2);
    }
}
NRD_INLINE int vf_store_i8(void *p, vf x)
{
    int sum = 0;
    for (int i = 0; i < 16; i++) {
        float v = x.v[i];
        int q = v >= 127.0f ? 127 : v <= -128.0f ? -128 : v == v ? (int)lrintf(v) : -128;
        ((int8_t *)p)[i] = (int8_t)q;
        sum += q;
    }
    return sum;
}
NRD_INLINE float f32_of_(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
NRD_INLINE vf vi_bf16_even(vi x) { VF_EACH(f32_of_((uint32_t)x.v[i] << 16)); }
NRD_INLINE vf vi_bf16_odd(vi x) { VF_EACH(f32_of_((uint32_t)x.v[i] & 0xffff0000u)); }
NRD_INLINE vi vi_load(const void *p)
{
    vi o;
    memcpy(o.v, p, 64);
    return o;
}
NRD_INLINE vi vi_set1_32(int32_t x) { VI_EACH(x); }
NRD_INLINE vi vi_set1_8(int x) { return vi_set1_32((int32_t)((uint32_t)(x & 255) * 0x01010101u)); }
NRD_INLINE vi vi_and(vi a, vi b) { VI_EACH(a.v[i] & b.v[i]); }
NRD_INLINE vi vi_or(vi a, vi b) { VI_EACH(a.v[i] | b.v[i]); }
NRD_INLINE vi vi_srl(vi a, int n)
{
    uint32_t m = 0xffffu >> n;
    VI_EACH(((uint32_t)a.v[i] >> n) & (m | m << 16));
}
NRD_INLINE vi vi_srl_by(vi a, int n) { return vi_srl(a, n); }
NRD_INLINE vi vi_sll(vi a, int n)
{
    uint32_t m = (0xffffu << n) & 0xffffu;
    VI_EACH(((uint32_t)a.v[i] << n) & (m | m << 16));
}
NRD_INLINE vi vi_lookup(const uint8_t table[16], vi a)
{
    VI_EACH((int32_t)((uint32_t)table[a.v[i] & 15] | (uint32_t)table[a.v[i] >> 8 & 15] << 8 |
                      (uint32_t)table[a.v[i] >> 16 & 15] << 16 | (uint32_t)table[a.v[i] >> 24 & 15] << 24));
}
NRD_INLINE vi vi_add(vi a, vi b) { VI_EACH(a.v[i] + b.v[i]); }
NRD_INLINE vf vf_from_vi(vi a) { VF_EACH((float)a.v[i]); }
NRD_INLINE vi vi_dot(vi acc, vi w, const void *x, int max)
{
    const int8_t *p = x;
    (void)max;
    VI_EACH(acc.v[i] + (w.v[i] & 255) * p[0] + ((w.v[i] >> 8) & 255) * p[1] +
            ((w.v[i] >> 16) & 255) * p[2] + (int)((uint32_t)w.v[i] >> 24) * p[3]);
}
#endif

#if NRD_ISA < 2
NRD_INLINE void vf_transpose(vf x[16])
{
    float rows[16][16], column[16];

    for (int i = 0; i < 16; i++) {
        vf_store(rows[i], x[i]);
    }
    for (int i = 0; i < 16; i++) {
        for (int r = 0; r < 16; r++) {
            column[r] = rows[r][i];
        }
        x[i] = vf_load(column);
    }
}
#endif

/* e^x, relative error below 3e-7 in [-87, 88]; 0 far below and for NaN, saturated above. Cody-Waite reduction and
 * a degree-6 Taylor-like polynomial on [-ln2/2, ln2/2]. */
NRD_INLINE vf vf_exp(vf x)
{
    x = vf_min(vf_max(x, vf_set1(-110.0f)), vf_set1(88.7f));
    vf n = vf_round(vf_mul(x, vf_set1(1.44269504f)));
    vf r = vf_fma(n, vf_set1(-0.693145752f), x);
    r = vf_fma(n, vf_set1(-1.42860677e-6f), r);
    vf p = vf_set1(1.0f / 720.0f);
    p = vf_fma(p, r, vf_set1(1.0f / 120.0f));
    p = vf_fma(p, r, vf_set1(1.0f / 24.0f));
    p = vf_fma(p, r, vf_set1(1.0f / 6.0f));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(p, r, vf_set1(1.0f));
    p = vf_fma(p, r, vf_set1(1.0f));
    return vf_scale2(p, n);
}

/* sin and cos of x up to 2^17, absolute error below 2e-7: reduction by pi/2 in two fused steps (the
 * first is exact), then Taylor polynomials on [-pi/4, pi/4]. */
NRD_INLINE void vf_sincos(vf x, vf *sin_out, vf *cos_out)
{
#if NRD_ISA == 0 /* without fused operations the reduction would lose the low digits */
    for (int i = 0; i < 16; i++) {
        float v = x.v[i];
        sin_out->v[i] = sinf(v);
        cos_out->v[i] = cosf(v);
    }
#else
    vf n = vf_round(vf_mul(x, vf_set1(0.636619772f)));
    vf r = vf_fma(n, vf_set1(-1.57079637050628662109375f), x);
    r = vf_fma(n, vf_set1(4.37113900018624283e-8f), r);
    vf r2 = vf_mul(r, r);
    vf s = vf_set1(2.75573192e-6f);
    s = vf_fma(s, r2, vf_set1(-1.98412698e-4f));
    s = vf_fma(s, r2, vf_set1(8.33333333e-3f));
    s = vf_fma(s, r2, vf_set1(-1.66666667e-1f));
    s = vf_fma(vf_mul(s, r2), r, r);
    vf c = vf_set1(2.48015873e-5f);
    c = vf_fma(c, r2, vf_set1(-1.38888889e-3f));
    c = vf_fma(c, r2, vf_set1(4.16666667e-2f));
    c = vf_fma(c, r2, vf_set1(-0.5f));
    c = vf_fma(c, r2, vf_set1(1.0f));
    /* quadrant k = n mod 4: sin is s, c, -s, -c */
    vf k = vf_fma(vf_round(vf_fma(n, vf_set1(0.25f), vf_set1(-0.375f))), vf_set1(-4.0f), n);
    vf half = vf_set1(0.5f), zero = vf_zero();
    vf parity = vf_fma(vf_round(vf_fma(k, half, vf_set1(-0.25f))), vf_set1(-2.0f), k);
    vf a = vf_gt(parity, half, c, s), b = vf_gt(parity, half, s, c);
    *sin_out = vf_gt(k, vf_set1(1.5f), vf_sub(zero, a), a);
    vf flip = vf_abs(vf_sub(k, vf_set1(1.5f))); /* cos is negative for k = 1, 2 */
    *cos_out = vf_gt(vf_set1(1.0f), flip, vf_sub(zero, b), b);
#endif
}

NRD_INLINE vf vf_tanh(vf x) /* 1 - 2 / (e^2x + 1); absolute error below 1e-6 */
{
    vf e = vf_exp(vf_min(vf_add(x, x), vf_set1(80.0f)));
    return vf_sub(vf_set1(1.0f), vf_div(vf_set1(2.0f), vf_add(e, vf_set1(1.0f))));
}

#endif
