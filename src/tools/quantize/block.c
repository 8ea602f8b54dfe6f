/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/block.h"

void nrd_qblock_take(const float *block, int64_t rows, int64_t row, int64_t n, int64_t width, nrd_qblock_tile out)
{
    for (int64_t i = 0; i < width; i++) {
        for (int64_t k = 0; k < n; k++) {
            out[k][i] = block[i * rows + row + k];
        }
    }
}

void nrd_qblock_put(nrd_qblock_tile x, int64_t rows, int64_t row, int64_t n, int64_t width, float *block)
{
    for (int64_t i = 0; i < width; i++) {
        for (int64_t k = 0; k < n; k++) {
            block[i * rows + row + k] = x[k][i];
        }
    }
}

#define ADD(name)                                                                                  \
    static void name(float *restrict y, const float *restrict x, float by)                         \
    {                                                                                              \
        for (int i = 0; i < NRD_QBLOCK; i++) {                                                     \
            y[i] += by * x[i];                                                                     \
        }                                                                                          \
    }

ADD(add_any)
#if defined(__x86_64__)
__attribute__((target("avx2"))) ADD(add_avx2)
#endif

nrd_qblock_add *nrd_qblock_adder(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        return add_avx2;
    }
#endif
    return add_any;
}
