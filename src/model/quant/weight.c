/* SPDX-License-Identifier: Apache-2.0
 * What a quantized weight becomes: its scales and zeros are looked at once, when the folder is opened,
 * and the type chosen that holds its numbers. Called by quant.c; the readers take their checks from here. */
#include "base/dtype.h"
#include "base/mem.h"
#include "model/quant/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float element(nrd_dtype dtype, const void *data, int64_t i)
{
    const uint8_t *at = data;
    uint16_t half;
    float f;

    switch (dtype) {
    case NRD_DTYPE_F32:
        memcpy(&f, at + i * 4, 4);
        return f;
    case NRD_DTYPE_U8: /* E8M0: an exponent; 255 is no number */
        return at[i] == 255 ? NAN : ldexpf(1, at[i] - 127);
    case NRD_DTYPE_F8_E4M3:
        return nrd_f8e4m3_to_f32(at[i]);
    default:
        memcpy(&half, at + i * 2, 2);
        return dtype == NRD_DTYPE_F16 ? nrd_f16_to_f32(half) : nrd_bf16_to_f32(half);
    }
}

float nrd_quant_element(const nrd_src_tensor *t, int64_t i)
{
    return element(t->dtype, t->data, i);
}

float nrd_quant_scale(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    if (w->affine_of) {
        return w->affine_of(w, row, group).scale;
    }
    const float factor = w->scale_factor != 0 ? w->scale_factor : 1;
    int64_t i = w->scale_at ? w->scale_at(w, row, group) : (w->row_group ? row / w->row_group : row) * w->scale_row + group * w->scale_group;
    return w->scales.data ? element(w->scales.dtype, w->scales.data, i) * factor : factor;
}

int nrd_quant_zero_at(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return w->zero_of ? w->zero_of(w, row, group) : w->zero_point;
}

nrd_error *nrd_quant_shape(const nrd_src_tensor *t, nrd_dtype dtype, int64_t d0, int64_t d1)
{
    bool type_ok = dtype != NRD_DTYPE_NONE ? t->dtype == dtype
                                           : t->dtype == NRD_DTYPE_F32 || t->dtype == NRD_DTYPE_F16 ||
                                                 t->dtype == NRD_DTYPE_BF16;
    size_t bytes;
    if (!type_ok) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has type %s, expected %s", t->name, t->type_name,
                          dtype == NRD_DTYPE_NONE ? "float32, float16 or bfloat16" : nrd_dtype_name(dtype));
    }
    if (d0 < 0) {
        bool one = t->data_bytes == nrd_dtype_block_bytes(t->dtype);
        return one ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %zu bytes, expected one number", t->name,
                                       t->data_bytes);
    }
    if (t->n_dims != (d1 < 0 ? 1 : 2) || t->dims[0] != d0 || (d1 >= 0 && t->dims[1] != d1)) {
        char want[64], got[64];
        snprintf(want, sizeof want, d1 < 0 ? "[%lld]" : "[%lld, %lld]", (long long)d0, (long long)d1);
        snprintf(got, sizeof got, t->n_dims == 1 ? "[%lld]" : "[%lld, %lld]", (long long)t->dims[0],
                 (long long)t->dims[1]);
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has shape %s%s, expected %s by the other parts of its "
                          "weight and quantization_config", t->name, got, t->n_dims > 2 ? " and more" : "", want);
    }
    if (d0 < 1 || d1 == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' is empty", t->name);
    }
    if (!nrd_size_mul((size_t)d0, (size_t)(d1 < 0 ? 1 : d1), &bytes) ||
        !nrd_size_mul(bytes, nrd_dtype_block_bytes(t->dtype), &bytes) || bytes != t->data_bytes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %zu bytes, which its shape does not need", t->name,
                          t->data_bytes);
    }
    return NULL;
}

nrd_error *nrd_quant_groups(nrd_quant_weight *w, int64_t group_size)
{
    if (w->rows < 1 || w->cols < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' is empty", w->codes.name);
    }
    if (group_size == 0 || group_size < -1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "quantization_config: group_size must be -1 or above 0, got %lld",
                          (long long)group_size);
    }
    w->group = group_size < 0 || group_size > w->cols ? w->cols : group_size;
    w->n_groups = (w->cols + w->group - 1) / w->group;
    return NULL;
}

nrd_error *nrd_quant_own_groups(nrd_quant_weight *w, const nrd_quant_settings *s)
{
    const int64_t n = w->scales.dims[0];

    NRD_TRY(nrd_quant_groups(w, s->group_size));
    if (!s->by_shape || n == w->n_groups) {
        return NULL;
    }
    if (n < 1 || w->cols % n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld groups, which do not divide %lld columns", w->scales.name, (long long)n,
                          (long long)w->cols);
    }
    return nrd_quant_groups(w, w->cols / n);
}

enum { MX_BLOCK = 32, NV_BLOCK = 16 }; /* columns that share an exponent (OCP Microscaling 1.0), a scale of NVFP4 */

/* One scale is enough where the settings have none for less than the whole weight. */
static nrd_error *check_one(const nrd_quant_weight *w, nrd_dtype dtype, const nrd_quant_settings *s)
{
    const int64_t packed = dtype == NRD_DTYPE_U8 ? MX_BLOCK : dtype == NRD_DTYPE_F8_E4M3 ? NV_BLOCK : 0;
    const int64_t rows = s->block_rows > 0 ? s->block_rows : packed ? 1 : w->rows;
    const int64_t cols = s->block_rows > 0 ? s->block_cols : packed ? packed : w->cols;

    return w->rows <= rows && w->cols <= cols
               ? nrd_quant_shape(&w->scales, dtype, -1, -1)
               : nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' is one number, expected one for each block of %lld x %lld numbers",
                            w->scales.name, (long long)rows, (long long)cols);
}

nrd_error *nrd_quant_spread(nrd_quant_weight *w, nrd_dtype dtype, const nrd_quant_settings *s)
{
    const nrd_src_tensor *t = &w->scales;
    const nrd_dtype given = dtype == NRD_DTYPE_NONE ? t->dtype : dtype;

    w->row_group = 1;
    w->scale_group = 1;
    NRD_TRY(nrd_quant_groups(w, -1));
    if (t->data_bytes == nrd_dtype_block_bytes(given)) {
        w->row_group = w->rows;
        return check_one(w, dtype, s);
    }
    w->scale_row = 1;
    if (t->n_dims == 1) {
        return nrd_quant_shape(t, dtype, w->rows, -1);
    }
    if (t->n_dims == 2 && s->block_rows > 0 && t->dims[0] != w->rows) {
        w->row_group = s->block_rows;
        NRD_TRY(nrd_quant_groups(w, s->block_cols));
        w->scale_row = w->n_groups;
        return nrd_quant_shape(t, dtype, (w->rows + s->block_rows - 1) / s->block_rows, w->n_groups);
    }
    if (t->n_dims == 2 && t->dims[1] > 1) {
        if (s->group_size <= 0 && w->cols % t->dims[1]) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld groups, which do not divide %lld columns",
                              t->name, (long long)t->dims[1], (long long)w->cols);
        }
        NRD_TRY(nrd_quant_groups(w, s->group_size > 0 ? s->group_size : w->cols / t->dims[1]));
        if (dtype == NRD_DTYPE_U8 && w->group != MX_BLOCK) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has an exponent for each %lld columns, expected %d", t->name,
                              (long long)w->group, MX_BLOCK);
        }
        w->scale_row = w->n_groups;
    }
    return nrd_quant_shape(t, dtype, w->rows, w->n_groups);
}

nrd_error *nrd_quant_number(const nrd_src_tensor *t, float *out)
{
    NRD_TRY(nrd_quant_shape(t, NRD_DTYPE_NONE, -1, -1));
    *out = element(t->dtype, t->data, 0);
    return isfinite(*out) && *out > 0 ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' is %g, expected a number "
                                                          "above 0", t->name, (double)*out);
}

void nrd_quant_flatten(nrd_src_tensor *t)
{
    if (t->n_dims == 2 && t->dims[0] == 1) {
        t->n_dims = 1;
        t->dims[0] = t->dims[1];
    }
}

nrd_error *nrd_quant_columns(nrd_quant *q, const char *stem, const char *suffix, nrd_quant_weight *w)
{
    nrd_error *err = NULL;
    nrd_src_tensor t;

    nrd_quant_try(q, stem, suffix, w, &t);
    if (!t.data) {
        return NULL;
    }
    nrd_quant_flatten(&t);
    NRD_TRY(nrd_quant_shape(&t, NRD_DTYPE_NONE, w->cols, -1));
    NRD_NEW_GOTO(w->columns, w->cols, err, done);
    for (int64_t c = 0; c < w->cols; c++) {
        w->columns[c] = element(t.dtype, t.data, c);
        if (!isfinite(w->columns[c])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %g for column %lld, expected a finite number", t.name,
                              (double)w->columns[c], (long long)c);
        }
    }
done:
    return err;
}

nrd_error *nrd_quant_check_order(nrd_quant_weight *w)
{
    bool plain = true;
    if (!w->order.data) {
        return NULL;
    }
    NRD_TRY(nrd_quant_shape(&w->order, NRD_DTYPE_I32, w->cols, -1));
    for (int64_t c = 0; c < w->cols; c++) {
        int32_t group = (int32_t)nrd_quant_word(w->order.data, c);
        if (group < 0 || group >= w->n_groups) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' names group %d for column %lld; '%s' has %lld groups",
                              w->order.name, group, (long long)c, w->scales.name, (long long)w->n_groups);
        }
        plain = plain && group == c / w->group;
    }
    if (plain) {
        w->order.data = NULL;
    }
    return NULL;
}

/* Half precision keeps x to 2^-11 of it, unless it is too large or too small. */
static bool is_half(float x)
{
    float half = nrd_f16_to_f32(nrd_f32_to_f16(x));
    return fabsf(half - x) <= fabsf(x) * 0x1p-11f;
}

/* Of scale and minimum beside each other: what is lost of the smallest numbers is nothing. */
static bool is_half_enough(float x)
{
    return is_half(x) || fabsf(nrd_f16_to_f32(nrd_f32_to_f16(x)) - x) <= 0x1p-24f;
}

/* What the scales and zeros of all groups have in common. */
typedef struct {
    int low, high;   /* of code - zero */
    bool half_scales, half_mins, half_middles;
} range;

static nrd_error *look(const nrd_quant_weight *w, range *out)
{
    int top = w->top ? w->top : (1 << w->bits) - 1;
    int64_t step = w->row_group && !w->zero_of ? w->row_group : 1;
    *out = (range){.low = 255, .high = -255, .half_scales = true, .half_mins = true, .half_middles = true};
    for (int64_t g = 0; g < w->n_groups; g++) {
        for (int64_t r = 0; r < w->rows; r += step) {
            const float scale = nrd_quant_scale(w, r, g);
            const int zero = nrd_quant_zero_at(w, r, g);
            const float min = nrd_quant_min(w, r, g, scale, zero);
            if (!isfinite(scale) || (scale < 0 && !w->codes_of)) { /* AutoRound gives whole numbers the sign of what is largest */
                return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has the scale %g for row %lld, group %lld; expected "
                                  "a number%s", w->scales.name, (double)scale, (long long)r,
                                  (long long)g, w->codes_of ? "" : " that is not below 0");
            }
            if (!isfinite(min)) {
                return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' gives row %lld, group %lld no finite number for code 0", w->zeros.name,
                                  (long long)r, (long long)g);
            }
            out->low = -zero < out->low ? -zero : out->low;
            out->high = top - zero > out->high ? top - zero : out->high;
            out->half_scales = out->half_scales && (w->affine_of ? is_half_enough(scale) : is_half(scale));
            out->half_mins = out->half_mins && (w->affine_of ? is_half_enough(min) : is_half(min));
            out->half_middles = out->half_middles && is_half_enough(nrd_quant_middle(w, scale, min));
        }
    }
    return NULL;
}

/* Columns by their groups, which must be whole blocks; else *out NULL. */
static nrd_error *sort_columns(const nrd_quant_weight *w, int32_t **out)
{
    nrd_error *err = NULL;
    int64_t *at = NULL; /* where a group's next column goes */

    *out = NULL;
    NRD_NEW_GOTO(at, w->n_groups + 1, err, done);
    for (int64_t c = 0; c < w->cols; c++) {
        at[nrd_quant_word(w->order.data, c) + 1]++;
    }
    for (int64_t g = 0; g < w->n_groups; g++) {
        if (at[g + 1] % 32) {
            goto done;
        }
        at[g + 1] += at[g];
    }
    NRD_NEW_GOTO(*out, w->cols, err, done);
    for (int64_t c = 0; c < w->cols; c++) {
        (*out)[at[nrd_quant_word(w->order.data, c)]++] = (int32_t)c;
    }
done:
    free(at);
    return err;
}

nrd_error *nrd_quant_settle(nrd_quant_weight *w, nrd_dtype plain, const char **out_why)
{
    range is;

    NRD_TRY(look(w, &is));
    if (w->order.data && !w->values_of) {
        NRD_TRY(sort_columns(w, &w->sorted));
    }
    bool in_blocks = w->sorted || (w->cols % 32 == 0 && (w->n_groups == 1 || w->group % 32 == 0));
    bool bytes = is.low >= -128 && is.high <= 127;
    *out_why = NULL;
    w->dtype = plain;
    if (w->rotation) {
        *out_why = "their inputs are turned (transform_config)";
    } else if (w->is_mxfp4) {
        w->dtype = NRD_DTYPE_MXFP4;
    } else if (w->is_fp8 && w->n_groups == 1) {
        w->dtype = NRD_DTYPE_F8_E4M3;
    } else if (w->is_fp8 && w->group % 128 == 0 && w->cols % 128 == 0) {
        w->dtype = NRD_DTYPE_F8_B128;
    } else if (w->is_fp8 && w->group == 32 && w->cols % 32 == 0 && w->scales.dtype == NRD_DTYPE_U8 && !(w->scale_factor != 0)) {
        w->dtype = NRD_DTYPE_MXFP8;
    } else if (w->table != NRD_DTYPE_NONE && w->flat_block % 64 == 0 && w->cols % 64 == 0) {
        w->dtype = w->table;
    } else if (w->is_fp4 && w->scales.dtype == NRD_DTYPE_F8_E4M3 && w->row_group == 1 && w->group % 16 == 0 && w->cols % 64 == 0) {
        w->dtype = NRD_DTYPE_NVFP4;
    } else if (w->values_of) {
        *out_why = w->is_fp8      ? "their scales are those of blocks, not of rows"
                   : w->is_sparse ? "two of four columns alone are kept"
                                  : "they are no multiples of a step";
    } else if (w->order.data && !w->sorted) {
        *out_why = "their columns are in another order (desc_act, actorder)";
    } else if (bytes && w->bits == 8 && w->n_groups == 1 && !w->affine_of) {
        w->dtype = NRD_DTYPE_I8;
    } else if (!in_blocks) {
        *out_why = "their groups are no multiples of 32 columns";
    } else if (!is.half_scales) {
        *out_why = "half precision cannot hold their scales";
    } else if (w->affine_of ? w->bits > 5 && is.half_middles : !bytes && w->bits > 4 && is.half_middles) {
        w->dtype = NRD_DTYPE_Q8_1;
    } else if (w->affine_of && (w->bits > 5 || !is.half_mins)) {
        *out_why = "half precision cannot hold their zero points";
    } else if (w->affine_of && w->bits == 5) {
        w->dtype = NRD_DTYPE_Q5_1;
    } else if (is.low >= -8 && is.high <= 7 && !w->affine_of) {
        w->dtype = NRD_DTYPE_Q4_0;
    } else if (w->bits <= 4 && is.half_mins) {
        w->dtype = NRD_DTYPE_Q4_1;
    } else if (is.low >= -16 && is.high <= 15) {
        w->dtype = NRD_DTYPE_Q5_0;
    } else if (bytes) {
        w->dtype = NRD_DTYPE_Q8_0;
    } else {
        *out_why = "half precision cannot hold their zero points";
    }
    if (*out_why) {
        free(w->sorted);
        w->sorted = NULL;
    }
    return NULL;
}
