/* SPDX-License-Identifier: Apache-2.0
 * Plain signed bytes, which compressed-tensors and bitsandbytes keep. */
#include "model/quant/quant.h"

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const uint8_t *src = (const uint8_t *)w->codes.data + row0 * w->cols;
    for (int64_t i = 0; i < n * w->cols; i++) {
        out[i] = src[i] ^ 0x80; /* plus 128 */
    }
}

nrd_error *nrd_quant_int8(nrd_quant_weight *w, const nrd_quant_settings *s)
{
    w->rows = w->codes.dims[0];
    w->cols = w->codes.dims[1];
    w->bits = 8;
    w->zero_point = 128;
    w->codes_of = codes_of;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_I8, w->rows, w->cols));
    return nrd_quant_spread(w, NRD_DTYPE_NONE, s);
}
