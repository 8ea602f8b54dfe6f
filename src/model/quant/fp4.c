/* SPDX-License-Identifier: Apache-2.0
 * FP4 (E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives) in pairs, the lower nibble first, as MXFP4 (Open Compute
 * Project, Microscaling Formats, 2023) and NVFP4 keep it. Twice a number is an integer from -12 to 12, so that five bits and
 * half the scale hold it exactly. */
#include "model/quant/quant.h"

/* Twice the number, plus 12. */
static const uint8_t code_of[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const uint8_t *pairs = (const uint8_t *)w->codes.data + row0 * (w->cols / 2);
    for (int64_t i = 0; i < n * w->cols / 2; i++) {
        out[2 * i] = code_of[pairs[i] & 15];
        out[2 * i + 1] = code_of[pairs[i] >> 4];
    }
}

nrd_error *nrd_quant_take_fp4(nrd_quant_weight *w)
{
    w->rows = w->codes.dims[0];
    w->cols = w->codes.dims[1] * 2;
    w->bits = 5;
    w->top = 24;
    w->zero_point = 12;
    w->scale_factor = 0.5f;
    w->codes_of = codes_of;
    w->is_fp4 = true;
    return nrd_quant_shape(&w->codes, NRD_DTYPE_U8, w->rows, w->cols / 2);
}
