/* SPDX-License-Identifier: Apache-2.0
 * QServe (W4A8_QSERVE_PER_GROUP, W4A8_QSERVE_PER_CHANNEL) as convert_checkpoint.py --use_qserve of TensorRT-LLM leaves it:
 *   weight      I8 [out, in / 2]: pairs of codes of four bits; by tiles of 32 rows and 32 columns, see codes_of
 *   per channel s1_scales, s1_szeros [out]: s1 * code - szero
 *   per group   s1_scales [out], s2_scales, s2_zeros I8 [groups, out], each 32 rows in the order of place_of:
 *               s1 * (s2 * code + s2_zero)
 * Inputs were meant to be int8 with a scale for each token; they keep 16 bits. Sources: Lin et al., QServe, 2024, section 4;
 * tensorrt_llm/quantization/quantize.py. */
#include "base/dtype.h"
#include "model/quant/quant.h"

enum { TILE = 32, TILE_BYTES = TILE * TILE / 2 };

/* A tile is [8 rows][4 columns apart][2 halves of columns][2 octets of rows][4 columns] of bytes, whose nibbles are two rows 16 apart. */
static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const uint8_t *data = w->codes.data;

    for (int64_t r = row0; r < row0 + n; r++) {
        const int64_t in = r % TILE, shift = in / 16 * 4;
        const uint8_t *tiles = data + r / TILE * (w->cols / TILE) * TILE_BYTES + in % 8 * 64 + in / 8 % 2 * 4;
        for (int64_t c = 0; c < w->cols; c++) {
            const int64_t k = c % TILE;
            *out++ = tiles[c / TILE * TILE_BYTES + k / 4 % 4 * 16 + k / 16 * 8 + k % 4] >> shift & 15;
        }
    }
}

static int64_t place_of(int64_t row)
{
    return row - row % TILE + row % 8 * 4 + row % TILE / 8;
}

static nrd_scale_and_min of_group(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const float s1 = nrd_quant_element(&w->scales, row);
    const int64_t at = group * w->rows + place_of(row);
    return (nrd_scale_and_min){s1 * (float)((const int8_t *)w->more[0].data)[at], s1 * (float)((const int8_t *)w->zeros.data)[at]};
}

static nrd_scale_and_min of_channel(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    (void)group;
    return (nrd_scale_and_min){nrd_quant_element(&w->scales, row), -nrd_quant_element(&w->zeros, row)};
}

static nrd_error *take_groups(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_src_tensor *s2 = &w->more[0];

    NRD_TRY(nrd_quant_take(q, stem, ".s2_scales", w, s2));
    NRD_TRY(nrd_quant_take(q, stem, ".s2_zeros", w, &w->zeros));
    if (s2->n_dims != 2 || s2->dims[0] < 1 || w->cols % s2->dims[0]) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %d dimensions and %lld groups, expected two, and groups that divide %lld columns",
                          s2->name, s2->n_dims, (long long)s2->dims[0], (long long)w->cols);
    }
    NRD_TRY(nrd_quant_groups(w, w->cols / s2->dims[0]));
    NRD_TRY(nrd_quant_shape(s2, NRD_DTYPE_I8, w->n_groups, w->rows));
    for (int64_t i = 0; i < w->n_groups * w->rows; i++) {
        const int scale = ((const int8_t *)s2->data)[i];
        if (scale < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has the scale %d for row %lld, group %lld; expected 0 to 127", s2->name, scale,
                              (long long)(i % w->rows), (long long)(i / w->rows));
        }
    }
    NRD_TRY(nrd_quant_shape(&w->zeros, NRD_DTYPE_I8, w->n_groups, w->rows));
    w->affine_of = of_group;
    return NULL;
}

nrd_error *nrd_quant_qserve(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const nrd_src_tensor *t = &w->codes;

    NRD_TRY(nrd_quant_take(q, stem, ".s1_scales", w, &w->scales));
    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    w->rows = t->dims[0];
    w->cols = t->n_dims == 2 ? t->dims[1] * 2 : 0;
    NRD_TRY(nrd_quant_shape(t, NRD_DTYPE_I8, w->rows, w->cols / 2));
    if (w->rows % TILE || w->cols % TILE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' is %lld x %lld, expected multiples of 32", t->name, (long long)w->rows,
                          (long long)w->cols);
    }
    NRD_TRY(nrd_quant_shape(&w->scales, NRD_DTYPE_NONE, w->rows, -1));
    w->bits = 4;
    w->row_group = 1;
    w->codes_of = codes_of;
    if (nrd_quant_settings_of(q)->group_size > 0) {
        return take_groups(q, stem, w);
    }
    NRD_TRY(nrd_quant_take(q, stem, ".s1_szeros", w, &w->zeros));
    NRD_TRY(nrd_quant_shape(&w->zeros, NRD_DTYPE_NONE, w->rows, -1));
    w->affine_of = of_channel;
    return nrd_quant_groups(w, -1);
}
