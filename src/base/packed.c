/* SPDX-License-Identifier: Apache-2.0
 * The block types that only GPUs multiply, in plain C: what each byte means, and a quantizer to the nearest.
 * Sources: nereid/dtype.h names them. */
#include "base/dtype.h"

#include <math.h>

enum { LARGEST_E4M3 = 448 };

static float e8m0(uint8_t e) /* 255 is no number; readers refuse it */
{
    return ldexpf(1, e - 127);
}

void nrd_dequantize_packed(nrd_dtype t, const uint8_t *block, float *dst)
{
    const int n = nrd_dtype_block(t), head = t == NRD_DTYPE_F8_B128 ? 4 : 1;
    float scale = 0;

    if (t == NRD_DTYPE_F8_B128) {
        memcpy(&scale, block, 4);
    } else {
        scale = e8m0(block[0]);
    }
    for (int i = 0; i < n; i++) {
        dst[i] = scale * nrd_f8e4m3_to_f32(block[head + i]);
    }
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

void nrd_quantize_packed(nrd_dtype t, const float *src, uint8_t *block)
{
    const int n = nrd_dtype_block(t);

    if (t == NRD_DTYPE_F8_B128) {
        const float scale = nrd_quantize_row_scaled(NRD_DTYPE_F8_E4M3, src, block + 4, n);
        memcpy(block, &scale, 4);
        return;
    }
    float peak = 0;
    for (int i = 0; i < n; i++) {
        peak = fmaxf(peak, fabsf(src[i]));
    }
    block[0] = (uint8_t)e8m0_of(peak);
    for (int i = 0; i < n; i++) {
        block[1 + i] = nrd_f32_to_f8e4m3(ldexpf(src[i], 127 - block[0]));
    }
}
