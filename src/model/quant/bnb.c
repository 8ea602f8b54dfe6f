/* SPDX-License-Identifier: Apache-2.0
 * bitsandbytes (Dettmers et al., LLM.int8(), 2022; QLoRA, 2023).
 *   4 bits  weight U8 [numbers / 2, 1], the upper nibble first, which names one of weight.quant_map's 16 values (nf4, fp4).
 *           Each `blocksize` numbers, counted through the whole weight, share weight.absmax: float32, or with double
 *           quantization U8, naming one of weight.nested_quant_map's 256 values, times weight.nested_absmax, plus
 *           nested_offset. weight.quant_state.bitsandbytes__nf4 (or fp4) is JSON: shape, blocksize and the like.
 *   8 bits  weight int8 [out, in] and SCB [out]: a number is weight * SCB / 127. Which columns of the input are outliers
 *           is found for each input; here all are multiplied alike. */
#include "base/dtype.h"
#include "model/quant/quant.h"

#include <math.h>
#include <string.h>

enum { FP4_TOP = 12 }; /* the largest of NRD_FP4_VALUES */
static const float TABLE_NOISE = 1e-7f; /* versions may round a table's numbers otherwise */

/* weight->more */
enum { MAP, ABSMAX, NESTED_MAP, NESTED_ABSMAX };

static float f32_at(const nrd_src_tensor *t, int64_t i)
{
    float v;
    memcpy(&v, (const char *)t->data + i * 4, 4);
    return v;
}

static float absmax(const nrd_quant_weight *w, int64_t block)
{
    const nrd_src_tensor *t = &w->more[ABSMAX];
    if (t->dtype == NRD_DTYPE_F32) {
        return f32_at(t, block);
    }
    const uint8_t code = ((const uint8_t *)t->data)[block];
    return f32_at(&w->more[NESTED_MAP], code) * f32_at(&w->more[NESTED_ABSMAX], block / w->nested_block) +
           w->nested_offset;
}

static void values_of(const nrd_quant_weight *w, int64_t row, float *out)
{
    const uint8_t *pairs = w->codes.data;
    float map[16];

    for (int i = 0; i < 16; i++) {
        map[i] = f32_at(&w->more[MAP], i);
    }
    for (int64_t i = row * w->cols, end = i + w->cols; i < end;) {
        const int64_t block = i / w->flat_block, last = (block + 1) * w->flat_block;
        const float top = absmax(w, block);
        for (; i < end && i < last; i++) {
            *out++ = map[i % 2 ? pairs[i / 2] & 15 : pairs[i / 2] >> 4] * top;
        }
    }
}

void nrd_quant_table_row(const nrd_quant_weight *w, int64_t row, uint8_t *dst)
{
    const uint8_t *pairs = (const uint8_t *)w->codes.data + row * (w->cols / 2);
    const int64_t block = nrd_dtype_block(w->table);

    for (int64_t c = 0; c < w->cols; c += block) {
        const float top = absmax(w, (row * w->cols + c) / w->flat_block) / (w->table == NRD_DTYPE_FP4 ? FP4_TOP : 1);
        memcpy(dst, &top, sizeof top);
        dst += sizeof top;
        for (int64_t i = 0; i < block / 2; i++) { /* the upper four bits are the first number's */
            const uint8_t pair = pairs[(c / 2) + i];
            *dst++ = (uint8_t)(pair >> 4 | pair << 4);
        }
    }
}

/* Which type has this table; NONE: another. */
static nrd_dtype type_of(const nrd_src_tensor *map)
{
    static const float nf4[16] = NRD_NF4_VALUES, fp4[16] = NRD_FP4_VALUES;
    bool is_nf4 = true, is_fp4 = true;

    for (int i = 0; i < 16; i++) {
        is_nf4 = is_nf4 && fabsf(f32_at(map, i) - nf4[i]) < TABLE_NOISE;
        is_fp4 = is_fp4 && fabsf(f32_at(map, i) - fp4[i] / FP4_TOP) < TABLE_NOISE;
    }
    return is_nf4 ? NRD_DTYPE_NF4 : is_fp4 ? NRD_DTYPE_FP4 : NRD_DTYPE_NONE;
}

static nrd_error *check_finite(const nrd_src_tensor *t)
{
    for (int64_t i = 0; i < (int64_t)(t->data_bytes / 4); i++) {
        if (!isfinite(f32_at(t, i))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' holds %g at %lld, expected a number", t->name,
                              (double)f32_at(t, i), (long long)i);
        }
    }
    return NULL;
}

static nrd_error *take_floats(nrd_quant *q, const char *stem, const char *suffix, int64_t n, nrd_quant_weight *w,
                              nrd_src_tensor *out)
{
    NRD_TRY(nrd_quant_take(q, stem, suffix, w, out));
    NRD_TRY(nrd_quant_shape(out, NRD_DTYPE_F32, n, -1));
    return check_finite(out);
}

/* The JSON of quant_state: sizes into `w`. */
static nrd_error *read_state(const nrd_src_tensor *t, nrd_quant_weight *w)
{
    nrd_error *err = NULL;
    nrd_json_doc *doc = NULL;
    nrd_json_limits limits = {.max_bytes = 1 << 16};

    NRD_TRY(nrd_quant_shape(t, NRD_DTYPE_U8, t->dims[0], -1));
    NRD_TRY(nrd_error_wrap(nrd_json_parse(&doc, t->data, t->data_bytes, &limits), "tensor '%s'", t->name));
    const nrd_json *o = nrd_json_root(doc), *shape = nrd_json_get(o, "shape");
    w->rows = nrd_json_int(nrd_json_at(shape, 0), 0);
    w->cols = nrd_json_int(nrd_json_at(shape, 1), 0);
    w->flat_block = nrd_json_get_int(o, "blocksize", 0);
    w->nested_block = nrd_json_get_int(o, "nested_blocksize", 256);
    w->nested_offset = (float)nrd_json_get_num(o, "nested_offset", 0);
    if (nrd_json_len(shape) != 2 || w->rows < 1 || w->cols < 1 || w->rows > INT32_MAX || w->cols > INT32_MAX ||
        w->flat_block < 1 || w->flat_block > INT32_MAX || w->nested_block < 1 || !isfinite(w->nested_offset)) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s': shape must be two numbers, blocksize above 0 and nested_offset "
                         "finite, got %lld x %lld and %lld", t->name, (long long)w->rows, (long long)w->cols,
                         (long long)w->flat_block);
    }
    nrd_json_doc_free(doc);
    return err;
}

static nrd_error *weight_4bit(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_src_tensor state, *max = &w->more[ABSMAX];

    NRD_TRY(nrd_quant_take(q, stem, ".weight.absmax", w, max));
    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    nrd_quant_try(q, stem, ".weight.quant_state.bitsandbytes__nf4", w, &state);
    if (!state.data) {
        NRD_TRY(nrd_quant_take(q, stem, ".weight.quant_state.bitsandbytes__fp4", w, &state));
    }
    NRD_TRY(read_state(&state, w));
    const int64_t n = w->rows * w->cols, n_blocks = (n + w->flat_block - 1) / w->flat_block;
    NRD_TRY(take_floats(q, stem, ".weight.quant_map", 16, w, &w->more[MAP]));
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_U8, (n + 1) / 2, 1));
    if (max->dtype == NRD_DTYPE_U8) {
        NRD_TRY(take_floats(q, stem, ".weight.nested_quant_map", 256, w, &w->more[NESTED_MAP]));
        NRD_TRY(take_floats(q, stem, ".weight.nested_absmax", (n_blocks + w->nested_block - 1) / w->nested_block, w,
                            &w->more[NESTED_ABSMAX]));
        NRD_TRY(nrd_quant_shape(max, NRD_DTYPE_U8, n_blocks, -1));
    } else {
        NRD_TRY(nrd_quant_shape(max, NRD_DTYPE_F32, n_blocks, -1));
        NRD_TRY(check_finite(max));
    }
    w->bits = 4;
    w->values_of = values_of;
    w->table = type_of(&w->more[MAP]);
    return nrd_quant_groups(w, -1);
}

static nrd_error *weight_bnb(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_src_tensor format;

    nrd_quant_try(q, stem, ".SCB", w, &w->scales);
    if (!w->scales.data) {
        return weight_4bit(q, stem, w);
    }
    nrd_quant_try(q, stem, ".weight_format", w, &format);
    if (format.data && (format.data_bytes != 1 || *(const uint8_t *)format.data != 0)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s': only the format 0 (rows) is supported", format.name);
    }
    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    w->scale_factor = 1.0f / 127;
    return nrd_quant_int8(w, nrd_quant_settings_of(q));
}

static nrd_error *open_bnb(nrd_quant *q, const nrd_json *config)
{
    (void)q;
    const nrd_json *storage = nrd_json_get(config, "bnb_4bit_quant_storage");
    if (strcmp(nrd_json_str(storage, "uint8"), "uint8") != 0) {
        return nrd_quant_refuse("bnb_4bit_quant_storage", storage, "uint8");
    }
    return NULL;
}

const nrd_quant_reader nrd_quant_bnb = {"bitsandbytes", {".weight.absmax", ".SCB"}, open_bnb, weight_bnb};
