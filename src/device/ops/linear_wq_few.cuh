/* SPDX-License-Identifier: Apache-2.0
 * linear_wq_few.cuh - few tokens and weights of 4 bits: the integers themselves are multiplied, group by group.
 * Part of linear_wq.cu. */
#ifndef NRD_OPS_LINEAR_WQ_FEW_CUH
#define NRD_OPS_LINEAR_WQ_FEW_CUH

#include "device/ops/linear_wq_numbers.cuh"

static __device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%5,%6}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a), "r"(b0), "r"(b1));
}

/* Sums over 32 columns of x, a group of a chunk, times -128 or -136: products with a matrix of nothing else, for
 * which the order of columns is the same. x: the chunk as it lies in the ring; to: of a pair of tokens
 * {a, b, a, b}, which is how an accumulator's rows g and g + 8 begin. */
template <int META, int N>
static __device__ __forceinline__ void sum_group(const char *x, float *to, int group, int lane)
{
#pragma unroll
    for (int n = 0; n < N; n += 8) {
        const int token = n + lane / 4, unit = (group % 2 * 4 + lane % 4) ^ (lane / 4);
        const uint4 v = *(const uint4 *)(x + group / 2 * (N * 128) + token * 128 + unit * 16);
        const uint32_t factor = META == WQ_S ? 0xc308c308u : 0xc300c300u;
        float c[4] = {};
        mma_bf16(c, factor, v.x, v.y);
        mma_bf16(c, factor, v.z, v.w);
        if (lane < 4) { /* all rows are the same */
            ((float4 *)to)[group * (N / 2) + n / 2 + lane] = make_float4(c[0], c[1], c[2], c[3]);
        }
    }
}

/* acc += a chunk x its columns of x: 0x4300 | q is multiplied as it is, exactly. A group's 32 columns have
 * an accumulator of their own, which begins with -128 or -136 times the sum of x and is scaled in f32; the
 * groups in front of it are still being multiplied. half_way: called once when there is work under way. */
template <int META, int N, typename F>
static __device__ __forceinline__ void multiply_few(float *acc, const uint4 *codes, const char *table,
                                                    const float *sums, uint64_t dx, int lane, F half_way)
{
    constexpr int DEEP = N == 8 ? 3 : 2; /* groups under way */
    const int g = lane >> 2, t = lane & 3;
    uint32_t op[DEEP][8];
    float c[DEEP][N / 2];
    uint4 q = codes[0];

#pragma unroll
    for (int i = 0; i < 8 + DEEP - 1; i++) {
        const int done = i - (DEEP - 1); /* the group to be added up */
        float s[2] = {}, o[2] = {};
        float2 x_sums[N / 8];
        if (i < 8) {
            float *ci = c[i % DEEP];
#pragma unroll
            for (int j = 0; j < N / 8; j++) {
                const float4 v = ((const float4 *)sums)[i * (N / 2) + j * 4 + t];
                ci[j * 4] = v.x, ci[j * 4 + 1] = v.y, ci[j * 4 + 2] = v.z, ci[j * 4 + 3] = v.w;
            }
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const uint32_t w = i % 2 ? (j / 4 ? q.w : q.z) : (j / 4 ? q.y : q.x);
                op[i % DEEP][j] = nibbles(w >> (j % 4 * 4));
            }
            if (i % 2 && i < 7) {
                q = codes[(i + 1) / 2 * 32];
            }
        }
        if (done >= 0) {
            if constexpr (META == WQ_S) {
                const float2 e = ((const float2 *)table)[done * 8 + g];
                s[0] = e.x, s[1] = e.y;
            } else {
                const float4 e = ((const float4 *)table)[done * 8 + g];
                s[0] = e.x, o[0] = e.y, s[1] = e.z, o[1] = e.w;
#pragma unroll
                for (int j = 0; j < N / 8; j++) {
                    x_sums[j] = ((const float2 *)sums)[(done * (N / 2) + j * 4 + t) * 2];
                }
            }
        }
        if (i < 8) {
            wg_hold<8>(op[i % DEEP]);
            wg_hold<N / 2>(c[i % DEEP]);
            wg_fence();
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t *a = op[i % DEEP] + j * 4;
                const int at = i * 2 + j;
                wgmma_rs<true, N>(c[i % DEEP], a[0], a[1], a[2], a[3],
                                  dx + (at / 4 * (N * 128) >> 4) + at % 4 * 2);
            }
            wg_commit();
        }
        if (i == 3) {
            half_way();
        }
        if (done >= 0) {
            if (i < 8) {
                wg_wait<DEEP - 1>();
            } else {
                wg_wait<0>();
            }
            float *cd = c[done % DEEP];
            wg_hold<8>(op[done % DEEP]);
            wg_hold<N / 2>(cd);
#pragma unroll
            for (int j = 0; j < N / 2; j++) {
                acc[j] = fmaf(s[j / 2 % 2], cd[j], acc[j]);
                if constexpr (META != WQ_S) {
                    acc[j] = fmaf(o[j / 2 % 2], j % 2 ? x_sums[j / 4].y : x_sums[j / 4].x, acc[j]);
                }
            }
        }
    }
}

#endif
