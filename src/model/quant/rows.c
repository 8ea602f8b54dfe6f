/* SPDX-License-Identifier: Apache-2.0
 * Rows of quantized weights: codes, scales and zeros as blocks of the type that weight.c chose, or as plain
 * numbers. Called by model/plan.c, from many threads. */
#include "base/dtype.h"
#include "base/mem.h"
#include "model/quant/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One row on its way: its codes, and scale, zero and number of code 0 of each group. */
typedef struct {
    const uint8_t *codes;
    const uint8_t *bytes; /* FP8: the numbers */
    const float *scale, *min;
    const int *zero;
} row_parts;

static void put_half(uint8_t *at, float v)
{
    uint16_t half = nrd_f32_to_f16(v);
    memcpy(at, &half, 2);
}

/* 32 values of four bits: the low nibbles are the first half. */
static void put_nibbles(uint8_t *at, const uint8_t *q, int add)
{
    for (int i = 0; i < 16; i++) {
        at[i] = (uint8_t)(((q[i] + add) & 15) | ((q[i + 16] + add) & 15) << 4);
    }
}

/* 32 values of five bits: the fifths in front. */
static void put_fives(uint8_t *at, const uint8_t *q, int add)
{
    uint32_t high = 0;
    for (int i = 0; i < 32; i++) {
        high |= (uint32_t)((q[i] + add) >> 4 & 1) << i;
    }
    memcpy(at, &high, 4);
    put_nibbles(at + 4, q, add);
}

/* The codes of 32 columns that are neighbours in the sorted order. */
static const uint8_t *gather(const nrd_quant_weight *w, const uint8_t *codes, int64_t from, uint8_t *out)
{
    for (int i = 0; i < 32; i++) {
        out[i] = codes[w->sorted[from + i]];
    }
    return out;
}

static void blocks(const nrd_quant_weight *w, const row_parts *p, uint8_t *dst)
{
    size_t block = nrd_dtype_block_bytes(w->dtype);
    uint8_t block_codes[32];
    for (int64_t c = 0; c < w->cols; c += 32, dst += block) {
        const uint8_t *q = w->sorted ? gather(w, p->codes, c, block_codes) : p->codes + c;
        const int64_t group = w->sorted ? (int32_t)nrd_quant_word(w->order.data, w->sorted[c]) : c / w->group;
        float scale = p->scale[group];
        int zero = p->zero[group];

        put_half(dst, scale);
        switch (w->dtype) {
        case NRD_DTYPE_Q4_0:
            put_nibbles(dst + 2, q, 8 - zero);
            break;
        case NRD_DTYPE_Q4_1:
            put_half(dst + 2, p->min[group]);
            put_nibbles(dst + 4, q, 0);
            break;
        case NRD_DTYPE_Q5_0:
            put_fives(dst + 2, q, 16 - zero);
            break;
        case NRD_DTYPE_Q5_1:
            put_half(dst + 2, p->min[group]);
            put_fives(dst + 4, q, 0);
            break;
        case NRD_DTYPE_Q8_1:
            put_half(dst + 2, nrd_quant_middle(w, scale, p->min[group]));
            for (int i = 0; i < 32; i++) {
                dst[4 + i] = (uint8_t)(int8_t)(q[i] - (1 << (w->bits - 1)));
            }
            break;
        default: /* Q8_0 */
            for (int i = 0; i < 32; i++) {
                dst[2 + i] = (uint8_t)(int8_t)(q[i] - zero);
            }
        }
    }
}

static void numbers(const nrd_quant_weight *w, const row_parts *p, float *dst)
{
    for (int64_t c = 0; c < w->cols; c++) {
        int64_t g = w->order.data ? (int32_t)nrd_quant_word(w->order.data, c) : c / w->group;
        if (w->affine_of) {
            dst[c] = p->scale[g] * (float)p->codes[c] + p->min[g];
        } else {
            dst[c] = p->scale[g] * (w->values_of ? dst[c] : (float)(p->codes[c] - p->zero[g]));
        }
        dst[c] *= w->columns ? w->columns[c] : 1;
    }
    if (w->rotation) {
        nrd_quant_turn(w, dst);
    }
}

/* As the file has it, but for the order of the nibbles. */
static void mxfp4_blocks(const nrd_quant_weight *w, int64_t row, uint8_t *dst)
{
    const uint8_t *pairs = (const uint8_t *)w->codes.data + row * (w->cols / 2);
    const uint8_t *scales = (const uint8_t *)w->scales.data + row * w->scale_row;

    for (int64_t b = 0; b < w->n_groups; b++, pairs += 16, dst += 17) {
        dst[0] = scales[b];
        for (int i = 0; i < 16; i++) { /* numbers i and i + 16 */
            const int shift = i % 2 * 4;
            dst[1 + i] = (uint8_t)((pairs[i / 2] >> shift & 15) | (pairs[8 + i / 2] >> shift & 15) << 4);
        }
    }
}

/* E4M3 numbers with the scale of their block in front: a float32, or the exponent of the file. */
static void fp8_blocks(const nrd_quant_weight *w, const row_parts *p, uint8_t *dst)
{
    const int64_t block = nrd_dtype_block(w->dtype);

    for (int64_t c = 0; c < w->cols; c += block, dst += block) {
        const float scale = p->scale[c / w->group];
        if (w->dtype == NRD_DTYPE_F8_B128) {
            memcpy(dst, &scale, sizeof scale);
            dst += sizeof scale;
        } else {
            *dst++ = (uint8_t)(ilogbf(scale) + 127); /* of a power of two */
        }
        memcpy(dst, p->bytes + c, (size_t)block);
    }
}

/* As the file has it: the weight's factor, a scale for each 16 numbers, 64 numbers. */
static void nvfp4_blocks(const nrd_quant_weight *w, int64_t row, uint8_t *dst)
{
    const uint8_t *pairs = (const uint8_t *)w->codes.data + row * (w->cols / 2);
    const uint8_t *scales = (const uint8_t *)w->scales.data + row * w->scale_row;
    const float factor = 2 * w->scale_factor;

    for (int64_t b = 0; b < w->cols / 64; b++, dst += 40) {
        memcpy(dst, &factor, sizeof factor);
        for (int i = 0; i < 4; i++) {
            dst[4 + i] = scales[(b * 4 + i) * 16 / w->group];
        }
        memcpy(dst + 8, pairs + b * 32, 32);
    }
}

/* A device would make nonsense of a whole row where one number is none. */
static nrd_error *check_fp8(const nrd_quant_weight *w, int64_t row, const uint8_t *src)
{
    bool nan = false;

    for (int64_t c = 0; c < w->cols; c++) {
        nan |= (src[c] & 0x7f) == 0x7f;
    }
    return nan ? nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has a NaN in row %lld", w->codes.name, (long long)row)
               : NULL;
}

static nrd_error *emit(const nrd_quant_weight *w, nrd_dtype dtype, int64_t row, const row_parts *p, uint8_t *dst,
                       float *out_scale, float *buf)
{
    if (w->is_fp8) {
        NRD_TRY(check_fp8(w, row, p->bytes));
    }
    if (dtype == NRD_DTYPE_F8_E4M3) {
        memcpy(dst, p->bytes, (size_t)w->cols);
        *out_scale = p->scale[0];
    } else if (dtype == NRD_DTYPE_I8) {
        for (int64_t c = 0; c < w->cols; c++) {
            dst[c] = (uint8_t)(int8_t)(p->codes[c] - p->zero[0]);
        }
        *out_scale = p->scale[0];
    } else if (dtype == NRD_DTYPE_MXFP4) {
        mxfp4_blocks(w, row, dst);
    } else if (dtype == NRD_DTYPE_NVFP4) {
        nvfp4_blocks(w, row, dst);
    } else if (dtype == NRD_DTYPE_NF4 || dtype == NRD_DTYPE_FP4) {
        nrd_quant_table_row(w, row, dst);
    } else if (nrd_dtype_is_packed(dtype)) {
        fp8_blocks(w, p, dst);
    } else if (nrd_dtype_is_quant(dtype)) {
        blocks(w, p, dst);
    } else {
        if (w->values_of) {
            w->values_of(w, row, buf);
        }
        numbers(w, p, buf);
        if (dtype == NRD_DTYPE_F32) {
            memcpy(dst, buf, (size_t)w->cols * 4);
        } else {
            nrd_quantize_row(dtype, buf, dst, w->cols);
        }
    }
    return NULL;
}

nrd_error *nrd_quant_rows(const nrd_quant_weight *w, nrd_dtype dtype, int64_t row0, int64_t n, void *dst,
                          float *scales)
{
    nrd_error *err = NULL;
    uint8_t *codes = NULL, *out = dst;
    float *scale = NULL, *min = NULL, *buf = NULL;
    int *zero = NULL;
    size_t row_bytes = (size_t)(w->cols / nrd_dtype_block(dtype)) * nrd_dtype_block_bytes(dtype);

    NRD_ASSERT(dtype == w->dtype || dtype == NRD_DTYPE_F32, "rows are made in a type that holds their numbers");
    NRD_NEW_GOTO(codes, (size_t)n * (size_t)w->cols, err, done);
    NRD_NEW_GOTO(scale, w->n_groups, err, done);
    NRD_NEW_GOTO(min, w->n_groups, err, done);
    NRD_NEW_GOTO(zero, w->n_groups, err, done);
    NRD_NEW_GOTO(buf, w->cols, err, done);
    if (w->codes_of) {
        w->codes_of(w, row0, n, codes);
    }
    for (int64_t r = 0; r < n && !err; r++) {
        uint8_t *own = codes + (size_t)r * (size_t)w->cols;
        const bool fits = !w->is_sparse || (w->is_fp8 ? nrd_quant_fill(w, row0 + r, own) : nrd_quant_mask_fits(w, row0 + r));
        if (!fits) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' does not have half of its columns in row %lld of its bitmask", w->name, (long long)(row0 + r));
            goto done;
        }
        for (int64_t g = 0; g < w->n_groups; g++) {
            scale[g] = nrd_quant_scale(w, row0 + r, g);
            zero[g] = nrd_quant_zero_at(w, row0 + r, g);
            min[g] = nrd_quant_min(w, row0 + r, g, scale[g], zero[g]);
        }
        const row_parts p = {.codes = own, .scale = scale, .min = min, .zero = zero,
                             .bytes = w->is_sparse ? own : (const uint8_t *)w->codes.data + (row0 + r) * w->cols};
        err = emit(w, dtype, row0 + r, &p, out + (size_t)r * row_bytes, scales ? scales + r : NULL, buf);
    }
done:
    free(codes);
    free(scale);
    free(min);
    free(zero);
    free(buf);
    return err;
}
