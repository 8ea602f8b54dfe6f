/* SPDX-License-Identifier: Apache-2.0
 * HQQ (Badri and Shaji, 2023) as its layers write themselves into safetensors files:
 *   W_q    U8, or I32 for 3 bits: the weight, cut into groups through all of its rows, as a matrix with a group in each row (axis 1) or
 *          column (axis 0). A word holds 8 / bits (3 bits: 10) numbers that lie as many rows apart as W_q has, the first in its upper
 *          bits. 5, 6 and 8 bits have a byte each. With view_as_float the same bytes as floats.
 *   scale, zero   floats [groups, 1] or [1, groups]: a number is (code - zero) * scale
 *   nbits, group_size, axis, channel_wise   one number each; shape [2]: rows and columns
 * What else a layer has says how it was made. Groups along the columns of a row become blocks; all others plain numbers.
 * Source: hqq 0.2.8, core/bitpack.py and core/quantize.py. */
#include "model/quant/quant.h"

#include <math.h>
#include <string.h>

/* weight->more */
enum { SCALE, ZERO };
enum { PER_WORD_OF_3 = 10 };

/* From number `flat` of the weight on, those that lie in one row of the matrix: where their words begin, and how many bits further down. */
static int64_t locate(const nrd_quant_weight *w, int64_t flat, int64_t *out_word, int *out_shift)
{
    const int64_t step = w->codes.dims[0], cols = w->codes.dims[1], row = flat / cols;
    const int part = (int)(row / step), width = w->bits > 4 ? 8 : w->bits;

    *out_word = row % step * cols + flat % cols;
    *out_shift = w->bits == 3 ? 3 * (PER_WORD_OF_3 - 1 - part) : 8 - width * (part + 1);
    return cols - flat % cols;
}

static uint8_t code(const nrd_quant_weight *w, int64_t word, int shift)
{
    const uint32_t v = w->bits == 3 ? nrd_quant_word(w->codes.data, word) : ((const uint8_t *)w->codes.data)[word];
    return (uint8_t)(v >> shift & ((1u << w->bits) - 1));
}

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    int64_t word;
    int shift;

    for (int64_t at = row0 * w->cols, end = at + n * w->cols; at < end;) {
        const int64_t left = locate(w, at, &word, &shift), run = left < end - at ? left : end - at;
        for (int64_t i = 0; i < run; i++) {
            *out++ = code(w, word + i, shift);
        }
        at += run;
    }
}

static nrd_scale_and_min affine_of(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    const int64_t i = row * w->n_groups + group;
    const float scale = nrd_quant_element(&w->more[SCALE], i);
    return (nrd_scale_and_min){scale, -scale * nrd_quant_element(&w->more[ZERO], i)};
}

static void values_of(const nrd_quant_weight *w, int64_t row, float *out)
{
    const bool by_rows = w->more[SCALE].dims[0] != 1; /* axis 1 */
    const int64_t cols = w->codes.dims[1];
    int64_t word;
    int shift;

    for (int64_t at = row * w->cols, end = at + w->cols; at < end;) {
        const int64_t left = locate(w, at, &word, &shift), run = left < end - at ? left : end - at;
        for (int64_t i = 0; i < run; i++) {
            const int64_t group = by_rows ? at / cols : at % cols + i;
            *out++ = ((float)code(w, word + i, shift) - nrd_quant_element(&w->more[ZERO], group)) * nrd_quant_element(&w->more[SCALE], group);
        }
        at += run;
    }
}

/* One number that says how the weight lies, within [low, high]. */
static nrd_error *take_int(nrd_quant *q, const char *stem, const char *suffix, int64_t low, int64_t high, nrd_quant_weight *w, int64_t *out)
{
    nrd_src_tensor t;

    NRD_TRY(nrd_quant_take(q, stem, suffix, w, &t));
    NRD_TRY(nrd_quant_shape(&t, NRD_DTYPE_I32, -1, -1));
    *out = (int32_t)nrd_quant_word(t.data, 0);
    return *out >= low && *out <= high ? NULL : nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s' is %lld, expected %lld to %lld", t.name,
                                                           (long long)*out, (long long)low, (long long)high);
}

static nrd_error *take_floats(nrd_quant *q, const char *stem, const char *suffix, int64_t d0, int64_t d1, nrd_quant_weight *w,
                              nrd_src_tensor *out)
{
    NRD_TRY(nrd_quant_take(q, stem, suffix, w, out));
    NRD_TRY(nrd_quant_shape(out, NRD_DTYPE_NONE, d0, d1));
    for (int64_t i = 0; i < d0 * d1; i++) {
        if (!isfinite(nrd_quant_element(out, i))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' holds %g at %lld, expected a number", out->name,
                              (double)nrd_quant_element(out, i), (long long)i);
        }
    }
    return NULL;
}

static nrd_error *read_shape(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_src_tensor t;
    int64_t dims[2];

    NRD_TRY(nrd_quant_take(q, stem, ".shape", w, &t));
    NRD_TRY(nrd_quant_shape(&t, NRD_DTYPE_I64, 2, -1));
    memcpy(dims, t.data, sizeof dims);
    if (dims[0] < 1 || dims[1] < 1 || dims[0] > INT32_MAX || dims[1] > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' says %lld x %lld, expected two numbers above 0", t.name, (long long)dims[0],
                          (long long)dims[1]);
    }
    w->rows = dims[0];
    w->cols = dims[1];
    return NULL;
}

/* Floats become the words that they are the bytes of; nrd_quant_shape says whether these are as many as there must be. */
static void as_words(nrd_src_tensor *t, bool is_3)
{
    const int64_t size = t->dtype == NRD_DTYPE_F32 ? 4 : t->dtype == NRD_DTYPE_F16 || t->dtype == NRD_DTYPE_BF16 ? 2 : 0, word = is_3 ? 4 : 1;

    if (size && t->n_dims == 2 && t->dims[1] <= INT32_MAX && t->dims[1] * size % word == 0) {
        t->dims[1] = t->dims[1] * size / word;
        t->dtype = is_3 ? NRD_DTYPE_I32 : NRD_DTYPE_U8;
    }
}

static nrd_error *weight_hqq(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    static const char *const unused[] = {".packing", ".unpack_view_dtype", ".view_as_float", ".quant_scale", ".quant_zero", ".compute_dtype",
                                         ".offload_meta", ".encoded_state_dict", ".stores_quant_config", ".optimize", ".round_zero",
                                         ".channel_wise"};
    nrd_src_tensor ignored;
    int64_t bits, axis;

    NRD_TRY(nrd_quant_take(q, stem, ".W_q", w, &w->codes));
    NRD_TRY(read_shape(q, stem, w));
    NRD_TRY(take_int(q, stem, ".nbits", 1, 8, w, &bits));
    NRD_TRY(take_int(q, stem, ".axis", 0, 1, w, &axis));
    NRD_TRY(take_int(q, stem, ".group_size", 1, INT32_MAX, w, &w->flat_block));
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++) {
        nrd_quant_try(q, stem, unused[i], w, &ignored);
    }
    const int64_t n = w->rows * w->cols, groups = n / w->flat_block, rows = axis ? groups : w->flat_block, cols = axis ? w->flat_block : groups;
    const int64_t per_word = bits == 3 ? PER_WORD_OF_3 : bits > 4 ? 1 : 8 / bits;
    if (n % w->flat_block || (bits != 3 && rows % per_word)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s': groups of %lld numbers with %lld bits do not fill %lld x %lld", w->codes.name,
                          (long long)w->flat_block, (long long)bits, (long long)w->rows, (long long)w->cols);
    }
    w->bits = (int)bits;
    as_words(&w->codes, bits == 3);
    NRD_TRY(nrd_quant_shape(&w->codes, bits == 3 ? NRD_DTYPE_I32 : NRD_DTYPE_U8, (rows + per_word - 1) / per_word, cols));
    NRD_TRY(take_floats(q, stem, ".scale", axis ? groups : 1, axis ? 1 : groups, w, &w->more[SCALE]));
    NRD_TRY(take_floats(q, stem, ".zero", axis ? groups : 1, axis ? 1 : groups, w, &w->more[ZERO]));
    if (axis && w->cols % w->flat_block == 0) {
        w->codes_of = codes_of;
        w->affine_of = affine_of;
        w->scales = w->more[SCALE]; /* by which messages name them */
        w->zeros = w->more[ZERO];
        return nrd_quant_groups(w, w->flat_block);
    }
    w->values_of = values_of;
    return nrd_quant_groups(w, -1);
}

static nrd_error *open_hqq(nrd_quant *q, const nrd_json *config)
{
    (void)q;
    (void)config; /* each layer says how it was quantized */
    return NULL;
}

const nrd_quant_reader nrd_quant_hqq = {"hqq", {".W_q"}, open_hqq, weight_hqq};
