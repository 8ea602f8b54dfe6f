/* SPDX-License-Identifier: Apache-2.0
 * Plain signed bytes, which compressed-tensors, bitsandbytes, torchao and Quark keep. */
#include "model/quant/quant.h"

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const uint8_t *src = (const uint8_t *)w->codes.data + row0 * w->cols;
    for (int64_t i = 0; i < n * w->cols; i++) {
        out[i] = (uint8_t)(src[i] + (1 << (w->bits - 1)));
    }
}

static int zero_of(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const uint8_t *zeros = w->zeros.data;
    int64_t one = (w->row_group ? row / w->row_group : row) * w->scale_row + group * w->scale_group;
    return (int8_t)zeros[one] + (1 << (w->bits - 1));
}

nrd_error *nrd_quant_int8_zeros(nrd_quant_weight *w)
{
    const int64_t n = (w->rows + w->row_group - 1) / w->row_group * w->n_groups;

    if (w->zeros.data && (w->zeros.dtype != NRD_DTYPE_I8 || w->zeros.data_bytes != (size_t)n)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %zu bytes of type %s, expected %lld of int8", w->zeros.name,
                          w->zeros.data_bytes, w->zeros.type_name, (long long)n);
    }
    w->zero_of = w->zeros.data ? zero_of : NULL;
    return NULL;
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
