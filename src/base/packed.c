/* SPDX-License-Identifier: Apache-2.0
 * The block types that only GPUs multiply, in plain C: what each byte means, and a quantizer to the nearest. Of pairs of four
 * bits the lower ones are the first. Sources: nereid/dtype.h names them. */
#include "base/dtype.h"

#include <math.h>

enum { LARGEST_E4M3 = 448, LARGEST_E2M1 = 6, NV_GROUP = 16 };

static const float nf4_values[16] = NRD_NF4_VALUES, fp4_values[16] = NRD_FP4_VALUES;
static const int8_t e2m1_twice[16] = NRD_MXFP4_VALUES;

static float e8m0(uint8_t e) /* 255 is no number; readers refuse it */
{
    return ldexpf(1, e - 127);
}

static const float *table_of(nrd_dtype t)
{
    return t == NRD_DTYPE_FP4 ? fp4_values : nf4_values;
}

static int nibble(const uint8_t *pairs, int i)
{
    return pairs[i / 2] >> (i % 2 * 4) & 15;
}

void nrd_dequantize_packed(nrd_dtype t, const uint8_t *block, float *dst)
{
    const int n = nrd_dtype_block(t);
    float scale = 0;

    memcpy(&scale, block, 4);
    for (int i = 0; i < n; i++) {
        switch (t) {
        case NRD_DTYPE_F8_B128:
            dst[i] = scale * nrd_f8e4m3_to_f32(block[4 + i]);
            break;
        case NRD_DTYPE_MXFP8:
            dst[i] = e8m0(block[0]) * nrd_f8e4m3_to_f32(block[1 + i]);
            break;
        case NRD_DTYPE_NVFP4:
            dst[i] = scale * (nrd_f8e4m3_to_f32(block[4 + i / NV_GROUP]) * 0.5f * (float)e2m1_twice[nibble(block + 8, i)]);
            break;
        default: /* NF4, FP4 */
            dst[i] = scale * table_of(t)[nibble(block + 4, i)];
        }
    }
}

static float peak_of(const float *x, int n)
{
    float peak = 0;
    for (int i = 0; i < n; i++) {
        peak = fmaxf(peak, fabsf(x[i]));
    }
    return peak;
}

/* The least power of two with which E4M3 reaches `peak`. */
static int e8m0_of(float peak)
{
    int e = 0;

    if (!(peak > 0) || !isfinite(peak)) {
        return 0;
    }
    frexpf(peak / LARGEST_E4M3, &e); /* m 2^e, m in [1/2, 1) */
    e += 127;
    return e < 0 ? 0 : e > 254 ? 254 : e;
}

static void put_nibble(uint8_t *pairs, int i, int v)
{
    pairs[i / 2] = (uint8_t)(i % 2 ? pairs[i / 2] | v << 4 : v);
}

static int nearest_e2m1(float v)
{
    int best = 0;
    for (int i = 1; i < 16; i++) {
        best = fabsf(2 * v - (float)e2m1_twice[i]) < fabsf(2 * v - (float)e2m1_twice[best]) ? i : best;
    }
    return best;
}

static int nearest_of(const float *table, float v)
{
    int best = 0;
    for (int i = 1; i < 16; i++) {
        best = fabsf(v - table[i]) < fabsf(v - table[best]) ? i : best;
    }
    return best;
}

/* A row has one factor in front of its E4M3 scales, which blocks that are quantized alone cannot agree on: 1. */
static void quantize_nvfp4(const float *src, uint8_t *block)
{
    const float one = 1;

    memcpy(block, &one, 4);
    for (int g = 0; g < 4; g++) {
        const float *x = src + g * NV_GROUP;
        block[4 + g] = nrd_f32_to_f8e4m3(peak_of(x, NV_GROUP) / LARGEST_E2M1);
        const float scale = nrd_f8e4m3_to_f32(block[4 + g]), inverse = scale > 0 ? 1 / scale : 0;
        for (int i = 0; i < NV_GROUP; i++) {
            put_nibble(block + 8, g * NV_GROUP + i, nearest_e2m1(x[i] * inverse));
        }
    }
}

void nrd_quantize_packed(nrd_dtype t, const float *src, uint8_t *block)
{
    const int n = nrd_dtype_block(t);
    float scale;

    switch (t) {
    case NRD_DTYPE_F8_B128:
        scale = nrd_quantize_row_scaled(NRD_DTYPE_F8_E4M3, src, block + 4, n);
        memcpy(block, &scale, 4);
        break;
    case NRD_DTYPE_MXFP8:
        block[0] = (uint8_t)e8m0_of(peak_of(src, n));
        for (int i = 0; i < n; i++) {
            block[1 + i] = nrd_f32_to_f8e4m3(ldexpf(src[i], 127 - block[0]));
        }
        break;
    case NRD_DTYPE_NVFP4:
        quantize_nvfp4(src, block);
        break;
    default: /* NF4, FP4 */
        scale = peak_of(src, n) / (t == NRD_DTYPE_FP4 ? 12 : 1);
        memcpy(block, &scale, 4);
        for (int i = 0; i < n; i++) {
            put_nibble(block + 4, i, nearest_of(table_of(t), scale > 0 ? src[i] / scale : 0));
        }
    }
}
