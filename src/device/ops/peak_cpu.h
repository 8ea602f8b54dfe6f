/* SPDX-License-Identifier: Apache-2.0
 * What the machine can do, measured with the same instructions as the kernels: the limits that
 * tests/ops/speed.c prints beside its numbers. */
#include "device/cpu/simd.h"

#if NRD_ISA >= 4
/* n x 4 independent tiles of 16 x 16 results, 64 (bfloat16: 32) products each. */
enum { PEAK_DOT_OPS = 4 * 16 * 16 * 64 * 2, PEAK_BF16_OPS = 4 * 16 * 16 * 32 * 2 };
#define PEAK_MX(dot)                                                                               \
    do {                                                                                           \
        static const mx_config config = {.palette = 1,                                             \
                                         .rows = {16, 16, 16, 16, 16, 16, 16, 16},                 \
                                         .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64}};           \
        mx_configure(&config);                                                                     \
        mx_zero(0);                                                                                \
        mx_zero(1);                                                                                \
        mx_zero(2);                                                                                \
        mx_zero(3);                                                                                \
        mx_zero(4);                                                                                \
        mx_zero(5);                                                                                \
        mx_zero(6);                                                                                \
        mx_zero(7);                                                                                \
        for (int64_t k = 0; k < n; k++) {                                                          \
            dot(0, 4, 6);                                                                          \
            dot(1, 4, 7);                                                                          \
            dot(2, 5, 6);                                                                          \
            dot(3, 5, 7);                                                                          \
        }                                                                                          \
        mx_release();                                                                              \
    } while (0)
static int64_t peak_dot(int64_t n)
{
    PEAK_MX(mx_dot_i8);
    return n;
}

static float peak_bf16(int64_t n)
{
    PEAK_MX(mx_dot_bf16);
    return (float)n;
}
#else
/* n x 12 independent integer dots of 64 products. */
enum { PEAK_DOT_OPS = 12 * 64 * 2 };
static int64_t peak_dot(int64_t n)
{
    static const int8_t x[4] = {1, 2, 3, 4};
    vi acc[12], w = vi_set1_8(3);
    float out[16];

    NRD_UNROLL
    for (int i = 0; i < 12; i++) {
        acc[i] = vi_set1_32(i);
    }
    for (int64_t k = 0; k < n; k++) {
        NRD_UNROLL
        for (int i = 0; i < 12; i++) {
            acc[i] = vi_dot(acc[i], w, x, 63);
        }
        __asm__ volatile("" ::: "memory");
    }
    vf sum = vf_zero();
    NRD_UNROLL
    for (int i = 0; i < 12; i++) {
        sum = vf_add(sum, vf_from_vi(acc[i]));
    }
    vf_store(out, sum);
    return (int64_t)out[0];
}
#endif

/* n x 12 independent multiply-adds of 16 floats. */
enum { PEAK_FMA_OPS = 12 * 16 * 2 };
static float peak_fma(int64_t n)
{
    vf acc[12], w = vf_set1(0.999f), v = vf_set1(0.001f);

    NRD_UNROLL
    for (int i = 0; i < 12; i++) {
        acc[i] = vf_set1((float)i);
    }
    for (int64_t k = 0; k < n; k++) {
        NRD_UNROLL
        for (int i = 0; i < 12; i++) {
            acc[i] = vf_fma(acc[i], w, v);
        }
    }
    NRD_UNROLL
    for (int i = 1; i < 12; i++) {
        acc[0] = vf_add(acc[0], acc[i]);
    }
    return vf_sum(acc[0]);
}

/* Four places at once, as linear reads few tokens' weights. n: a multiple of 512. */
static float peak_read(const float *x, int64_t n)
{
    int64_t part = n / 4;
    vf s[8];

    NRD_UNROLL
    for (int i = 0; i < 8; i++) {
        s[i] = vf_zero();
    }
    for (int64_t k = 0; k + 128 <= part; k += 128) {
        NRD_UNROLL
        for (int j = 0; j < 4; j++) {
            const float *at = x + j * part + k;
            NRD_UNROLL
            for (int i = 0; i < 8; i++) {
                __builtin_prefetch(at + 512 + i * 16);
                s[i] = vf_add(s[i], vf_load(at + i * 16));
            }
        }
    }
    NRD_UNROLL
    for (int i = 1; i < 8; i++) {
        s[0] = vf_add(s[0], s[i]);
    }
    return vf_sum(s[0]);
}
