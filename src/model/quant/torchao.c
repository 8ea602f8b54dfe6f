/* SPDX-License-Identifier: Apache-2.0
 * torchao's tensors as it lays them out for safetensors files, a weight's parts beside where the weight would be:
 *   _weight_qdata E4M3 [out, in]   Float8Tensor: _weight_scale [out, 1], one number or one for each block
 *   _weight_qdata I8 [out, in]     Int8Tensor and IntxUnpackedToInt8Tensor: _weight_scale [out, groups], _weight_zero_point alike, I8 or
 *                                  floats. Which bits the numbers have is said by `weight_dtype` in config.json.
 *   _weight_qdata I8 [out, in / 2] Int4Tensor: pairs of numbers from -8 to 7, the lower nibble first; _weight_scale and _weight_zero_point
 *                                  floats [groups, out]: a number is code * scale + zero
 *   _weight_qdata I32 [out / 8, in / (16 t), 32, t / 2]   Int4TilePackedTo4dTensor, t is 2, 4 or 8: codes of 4 bits as the tensor cores' m16n8k16
 *                                  wants its second matrix, two tiles of 16 columns a word; _weight_scale_and_zero floats [groups, out, 2]:
 *                                  a number is (code - 8) * scale + zero. Columns are filled up to 1,024; how many there were is told by the
 *                                  module's name and config.json
 * _weight_act_pre_scale multiplies the input. What is packed for other kernels is refused.
 * Source: torchao 0.18, prototype/safetensors and quantization/quantize_/workflows; pack_int4 of FBGEMM; int4mm.cu of PyTorch. */
#include "model/quant/quant.h"

#include <string.h>

#define PART "._weight_"

enum { MAX_DEPTH = 16 };

/* Scale and zero point that is no whole number. */
static nrd_scale_and_min affine_of(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const int64_t i = (w->row_group ? row / w->row_group : row) * w->scale_row + group * w->scale_group;
    const float scale = nrd_quant_element(&w->scales, i);
    return (nrd_scale_and_min){scale, -scale * (nrd_quant_element(&w->zeros, i) + (float)w->zero_point)};
}

/* ---- Int4Tensor ---- */

static void codes_int4(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const uint8_t *pairs = (const uint8_t *)w->codes.data + row0 * (w->cols / 2);
    for (int64_t i = 0; i < n * w->cols / 2; i++) {
        *out++ = (pairs[i] & 15) ^ 8;
        *out++ = (uint8_t)(pairs[i] >> 4 ^ 8);
    }
}

static nrd_scale_and_min affine_int4(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const int64_t i = group * w->rows + row;
    const float scale = nrd_quant_element(&w->scales, i);
    return (nrd_scale_and_min){scale, nrd_quant_element(&w->zeros, i) - 8 * scale};
}

/* The groups of a weight whose rows and columns are known. */
static nrd_error *set_groups(nrd_quant_weight *w, int64_t n)
{
    if (n < 1 || w->cols % n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld groups, which do not divide %lld columns", w->scales.name, (long long)n,
                          (long long)w->cols);
    }
    w->bits = 4;
    return nrd_quant_groups(w, w->cols / n);
}

static nrd_error *weight_int4(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    NRD_TRY(nrd_quant_take(q, stem, PART "zero_point", w, &w->zeros));
    w->codes_of = codes_int4;
    w->affine_of = affine_int4;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_I8, w->rows, w->cols));
    w->cols *= 2; /* no more than the file's bytes */
    NRD_TRY(set_groups(w, w->scales.dims[0]));
    NRD_TRY(nrd_quant_shape(&w->scales, NRD_DTYPE_NONE, w->n_groups, w->rows));
    return nrd_quant_shape(&w->zeros, NRD_DTYPE_NONE, w->n_groups, w->rows);
}

/* ---- Int4TilePackedTo4dTensor ---- */

enum { LANES = 32, TILE_ROWS = 8, TILE_COLS = 16, PADDING = 1024 };

/* A word has eight numbers of a row: columns c, c + 1, c + 8 and c + 9 of a tile and of the next one, where lane 4 * row + c / 2 has it. */
static void codes_tiles(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    const int64_t per_lane = w->codes.dims[3], wide = per_lane * 2 * TILE_COLS, across = w->codes.dims[1];

    for (int64_t r = row0; r < row0 + n; r++) {
        for (int64_t c = 0; c < w->cols; c++) {
            const int64_t in_pair = c % (2 * TILE_COLS), in_tile = c % TILE_COLS;
            const int64_t lane = r % TILE_ROWS * 4 + in_tile % 8 / 2;
            const int64_t word = ((r / TILE_ROWS * across + c / wide) * LANES + lane) * per_lane + c % wide / (2 * TILE_COLS);
            const int number = (int)(in_pair / TILE_COLS * 4 + in_tile / 8 * 2 + in_tile % 2);
            *out++ = (uint8_t)(nrd_quant_word(w->codes.data, word) >> (number % 2 * 16 + number / 2 * 4) & 15);
        }
    }
}

static nrd_scale_and_min affine_tiles(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const int64_t i = (group * w->rows + row) * 2;
    const float scale = nrd_quant_element(&w->scales, i);
    return (nrd_scale_and_min){scale, nrd_quant_element(&w->scales, i + 1) - 8 * scale};
}

static nrd_error *weight_tiles(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const int64_t *d = w->codes.dims;
    nrd_src_tensor flat = w->codes;

    NRD_TRY(nrd_quant_take(q, stem, PART "scale_and_zero", w, &w->scales));
    w->zeros = w->scales; /* by which messages name them */
    if (d[2] != LANES || (d[3] != 1 && d[3] != 2 && d[3] != 4) || d[0] > INT32_MAX / TILE_ROWS || d[1] > INT32_MAX / 128) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' is [%lld, %lld, %lld, %lld], expected tiles [out / 8, in / (16 t), 32, t / 2] with t 2, 4 "
                          "or 8", w->codes.name, (long long)d[0], (long long)d[1], (long long)d[2], (long long)d[3]);
    }
    w->rows = d[0] * TILE_ROWS;
    w->cols = d[1] * d[3] * 2 * TILE_COLS;
    w->codes_of = codes_tiles;
    w->affine_of = affine_tiles;
    flat.n_dims = 2;
    flat.dims[1] = d[1] * d[2] * d[3];
    NRD_TRY(nrd_quant_shape(&flat, NRD_DTYPE_I32, d[0], flat.dims[1]));
    NRD_TRY(set_groups(w, w->scales.dims[0]));
    if (w->scales.n_dims != 3 || w->scales.dims[2] != 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %d dimensions, expected [groups, out, 2]", w->scales.name, w->scales.n_dims);
    }
    const int64_t cols = nrd_quant_columns_by_name(q, stem), padded = w->cols, groups = w->n_groups;
    flat = w->scales;
    flat.n_dims = 2;
    flat.dims[1] = w->scales.dims[1] > INT32_MAX ? 0 : 2 * w->scales.dims[1];
    if (cols > 0 && cols < padded && cols + PADDING > padded && cols % w->group == 0) {
        w->cols = cols;
        NRD_TRY(nrd_quant_groups(w, w->group));
    }
    return nrd_quant_shape(&flat, NRD_DTYPE_NONE, groups, 2 * w->rows);
}

/* ---- the others ---- */

static bool is_float(const nrd_src_tensor *t)
{
    return t->dtype == NRD_DTYPE_F32 || t->dtype == NRD_DTYPE_F16 || t->dtype == NRD_DTYPE_BF16;
}

static nrd_error *weight_integers(nrd_quant_weight *w, const nrd_quant_settings *s)
{
    NRD_TRY(nrd_quant_int8(w, s));
    w->bits = s->bits;
    w->zero_point = 1 << (s->bits - 1);
    if (!w->zeros.data || !is_float(&w->zeros)) {
        return nrd_quant_int8_zeros(w);
    }
    if (w->zeros.n_dims != w->scales.n_dims || memcmp(w->zeros.dims, w->scales.dims, sizeof w->zeros.dims) != 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has another shape than '%s'", w->zeros.name, w->scales.name);
    }
    w->affine_of = affine_of;
    return NULL;
}

static nrd_error *weight_torchao(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_quant_settings s = *nrd_quant_settings_of(q);
    nrd_src_tensor ignored;

    NRD_TRY(nrd_quant_take(q, stem, PART "qdata", w, &w->codes));
    if (w->codes.dtype == NRD_DTYPE_I32 && w->codes.n_dims == 4) {
        NRD_TRY(weight_tiles(q, stem, w));
        return nrd_quant_columns(q, stem, PART "act_pre_scale", w);
    }
    if (w->codes.dtype != NRD_DTYPE_I8 && w->codes.dtype != NRD_DTYPE_F8_E4M3) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s' has type %s; of torchao int8, float8_e4m3fn and int32 in tiles are read, not what "
                          "is packed for another kernel", w->codes.name, w->codes.type_name);
    }
    NRD_TRY(nrd_quant_take(q, stem, PART "scale", w, &w->scales));
    nrd_quant_try(q, stem, PART "zero_point", w, &w->zeros);
    nrd_quant_try(q, stem, PART "act_quant_scale", w, &ignored);
    nrd_quant_try(q, stem, PART "act_quant_zero_point", w, &ignored);
    w->rows = w->codes.dims[0];
    w->cols = w->codes.dims[1];
    if (w->codes.dtype == NRD_DTYPE_F8_E4M3) {
        s.block_rows = s.block_cols = w->scales.dims[0] > 0 && w->rows % w->scales.dims[0] == 0 ? w->rows / w->scales.dims[0] : 0;
        NRD_TRY(nrd_quant_fp8_values(w, &s));
    } else if (w->scales.n_dims == 2 && w->scales.dims[0] != w->rows && w->scales.dims[1] == w->rows) {
        NRD_TRY(weight_int4(q, stem, w));
    } else {
        NRD_TRY(weight_integers(w, &s));
    }
    return nrd_quant_columns(q, stem, PART "act_pre_scale", w);
}

/* The most bits that any configuration in it gives whole numbers; 0: none does. */
static int most_bits(const nrd_json *o, int depth)
{
    const nrd_json *data = nrd_json_get(o, "_data");
    const char *type = nrd_json_get_str(o, "_type", ""), *dtype = nrd_json_get_str(nrd_json_get(data, "weight_dtype"), "_data", "");
    const bool is_int = !strncmp(dtype, "int", 3) && dtype[3] >= '1' && dtype[3] <= '8' && !dtype[4];
    int most = strstr(type, "Int8Weight") ? 8 : is_int ? dtype[3] - '0' : 0;

    for (size_t i = 0; i < nrd_json_len(o) && depth < MAX_DEPTH; i++) {
        const int bits = most_bits(&o->child[i], depth + 1);
        most = bits > most ? bits : most;
    }
    return most;
}

static nrd_error *open_torchao(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_json *type = nrd_json_get(config, "quant_type");
    const int bits = most_bits(type, 0);

    s->bits = bits ? bits : 8;
    s->int8_inputs = !strcmp(nrd_json_get_str(nrd_json_get(type, "default"), "_type", ""), "Int8DynamicActivationInt8WeightConfig");
    return NULL;
}

const nrd_quant_reader nrd_quant_torchao = {"torchao", {PART "qdata"}, open_torchao, weight_torchao};
