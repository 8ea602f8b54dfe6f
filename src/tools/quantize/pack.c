/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/pack.h"

#include "base/dtype.h"
#include "base/json.h"
#include "base/mem.h"
#include "tools/quantize/pack_gptq.h"
#include "tools/quantize/pack_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static nrd_error *add_number(const nrd_qresult_module *y, const char *part, float x, nrd_qtensor *t, int *n)
{
    void *data = NULL;
    NRD_TRY(nrd_qpack_floats(&x, 1, NRD_DTYPE_F32, &data));
    return nrd_qpack_add(t, n, y->module->name, part, NRD_DTYPE_F32, 1, -1, data);
}

/* One for each group of rows and columns. */
static nrd_error *add_scales(const nrd_qresult_module *y, nrd_qtensor *t, int *n)
{
    nrd_error *err = NULL;
    const nrd_qrows *q = &y->rows;
    const nrd_dtype type = y->grid.scale_dtype;
    const int64_t step = nrd_qgrid_row_group(&y->grid, q), rows = nrd_qgrid_n_row_groups(&y->grid, q);
    const int64_t count = rows * q->n_groups;
    float *scales = NULL;
    uint8_t *bytes = NULL;
    void *data = NULL;

    NRD_NEW_GOTO(scales, count, err, done);
    for (int64_t i = 0; i < count; i++) {
        scales[i] = q->scales[i / q->n_groups * step * q->n_groups + i % q->n_groups];
    }
    if (type == NRD_DTYPE_U8 || type == NRD_DTYPE_F8_E4M3) {
        NRD_NEW_GOTO(bytes, count, err, done);
        for (int64_t i = 0; i < count; i++) {
            bytes[i] = type == NRD_DTYPE_U8 ? (uint8_t)(127 + ilogbf(scales[i]))
                                            : nrd_f32_to_f8e4m3(scales[i] / y->grid.scale_unit);
        }
        data = bytes;
    } else {
        NRD_TRY_GOTO(nrd_qpack_floats(scales, (size_t)count, type, &data), err, done);
    }
    const bool one = y->grid.row_group == NRD_QGRID_ALL;
    err = nrd_qpack_add(t, n, y->module->name, "weight_scale", type, rows, one ? -1 : q->n_groups, data);
done:
    free(scales);
    return err;
}

typedef struct word_packing {
    const nrd_qrows *q;
    uint32_t *words; /* [rows, n] */
    int64_t n;
    int bits;
} word_packing;

static void pack_rows(void *user, int64_t from, int64_t to)
{
    const word_packing *p = user;
    const int64_t cols = p->q->cols, in_word = 32 / p->bits;
    for (int64_t row = from; row < to; row++) {
        const uint8_t *codes = p->q->codes + row * cols;
        for (int64_t at = 0; at < p->n; at++) {
            const int64_t first = at * in_word, n = cols - first < in_word ? cols - first : in_word;
            uint32_t word = 0;
            for (int64_t i = 0; i < n; i++) {
                word |= (uint32_t)codes[first + i] << (i * p->bits);
            }
            p->words[row * p->n + at] = word;
        }
    }
}

static nrd_error *pack_words(nrd_qmath *m, const nrd_qresult_module *y, nrd_qtensor *t, int *n)
{
    nrd_error *err = NULL;
    const nrd_qrows *q = &y->rows;
    const int bits = y->grid.bits;
    const int64_t words = (q->cols * bits + 31) / 32, zero_words = (q->rows * bits + 31) / 32;
    uint32_t *codes = NULL, *zeros = NULL;
    int64_t *shape = NULL;

    NRD_NEW_GOTO(codes, q->rows * words, err, fail);
    word_packing p = {q, codes, words, bits};
    nrd_qmath_each(m, q->rows, pack_rows, &p);
    NRD_TRY(nrd_qpack_add(t, n, y->module->name, "weight_packed", NRD_DTYPE_I32, q->rows, words, codes));
    NRD_TRY(add_scales(y, t, n));
    NRD_NEW_GOTO(shape, 2, err, fail);
    shape[0] = q->rows;
    shape[1] = q->cols;
    NRD_TRY(nrd_qpack_add(t, n, y->module->name, "weight_shape", NRD_DTYPE_I64, 2, -1, shape));
    if (y->grid.symmetric) {
        return NULL;
    }
    NRD_NEW_GOTO(zeros, zero_words * q->n_groups, err, fail);
    for (int64_t i = 0; i < q->rows * q->n_groups; i++) {
        nrd_qpack_bits(zeros, i % q->n_groups, q->n_groups, i / q->n_groups, bits, q->zeros[i]);
    }
    return nrd_qpack_add(t, n, y->module->name, "weight_zero_point", NRD_DTYPE_I32, zero_words, q->n_groups, zeros);
fail:
    return err;
}

static nrd_error *pack_bytes(const nrd_qresult_module *y, nrd_qtensor *t, int *n)
{
    nrd_error *err = NULL;
    const nrd_qrows *q = &y->rows;
    uint8_t *data = NULL;

    NRD_NEW_GOTO(data, q->rows * q->cols, err, fail);
    for (int64_t i = 0; i < q->rows * q->cols; i++) {
        data[i] = (uint8_t)(y->grid.is_float ? q->codes[i] : q->codes[i] ^ 0x80);
    }
    NRD_TRY(nrd_qpack_add(t, n, y->module->name, "weight", y->grid.is_float ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_I8, q->rows, q->cols,
                data));
    return add_scales(y, t, n);
fail:
    return err;
}

/* E2M1 in pairs, the lower nibble first. */
static nrd_error *pack_pairs(const nrd_qresult_module *y, nrd_qtensor *t, int *n)
{
    nrd_error *err = NULL;
    const nrd_qrows *q = &y->rows;
    uint8_t *data = NULL;

    NRD_NEW_GOTO(data, q->rows * q->cols / 2, err, fail);
    for (int64_t i = 0; i < q->rows * q->cols / 2; i++) {
        data[i] = (uint8_t)(q->codes[2 * i] | q->codes[2 * i + 1] << 4);
    }
    NRD_TRY(nrd_qpack_add(t, n, y->module->name, "weight_packed", NRD_DTYPE_U8, q->rows, q->cols / 2, data));
    NRD_TRY(add_scales(y, t, n));
    return y->grid.scale_dtype == NRD_DTYPE_F8_E4M3 ? add_number(y, "weight_global_scale", 1 / y->grid.scale_unit, t, n) : NULL;
fail:
    return err;
}

nrd_error *nrd_qpack(nrd_qmath *m, const nrd_qresult_module *y, const char *format, nrd_qtensor out[NRD_QTENSORS], int *out_n)
{
    *out_n = 0;
    if (!strcmp(format, NRD_QPACK_GPTQ)) {
        return nrd_qpack_gptq(y, out, out_n);
    }
    if (y->grid.is_float && y->grid.bits == 4) {
        NRD_TRY(pack_pairs(y, out, out_n));
    } else if (!y->grid.is_float && (!strcmp(format, NRD_QPACK_WORDS) || y->keeps_inputs)) {
        NRD_TRY(pack_words(m, y, out, out_n));
    } else {
        NRD_TRY(pack_bytes(y, out, out_n));
    }
    return y->input_scale > 0 ? add_number(y, "input_scale", y->input_scale, out, out_n) : NULL;
}

static const char *strategy_of(const nrd_qgrid *g)
{
    if (g->row_group == NRD_QGRID_ALL) {
        return "tensor";
    }
    return g->row_group > 0 ? "block" : g->group <= 0 ? "channel" : g->scale_dtype == NRD_DTYPE_F8_E4M3 ? "tensor_group" : "group";
}

static void put_weights(nrd_str *out, const nrd_qgrid *g)
{
    const char *type = g->is_float ? "float" : "int";
    nrd_str_printf(out, "{\"num_bits\": %d, \"type\": \"%s\", \"symmetric\": %s, \"strategy\": \"%s\", ", g->bits, type,
                   g->symmetric ? "true" : "false", strategy_of(g));
    if (g->row_group > 0) {
        nrd_str_printf(out, "\"block_structure\": [%lld, %lld], ", (long long)g->row_group, (long long)g->group);
    } else if (g->group > 0) {
        nrd_str_printf(out, "\"group_size\": %lld, ", (long long)g->group);
    }
    if (g->scale_dtype == NRD_DTYPE_U8 || g->scale_dtype == NRD_DTYPE_F8_E4M3) {
        nrd_str_printf(out, "\"scale_dtype\": \"torch.%s\", ", g->scale_dtype == NRD_DTYPE_U8 ? "uint8" : "float8_e4m3fn");
    }
    nrd_str_puts(out, "\"dynamic\": false, \"observer\": \"minmax\"}");
}

static void put_group(nrd_str *out, const nrd_qpack_group *p)
{
    nrd_str_puts(out, "{\"targets\": [");
    for (size_t i = 0; i < p->n_targets; i++) {
        nrd_str_puts(out, i ? ", " : "");
        nrd_json_put_cstr(out, p->targets[i]);
    }
    nrd_str_printf(out, "%s], \"weights\": ", p->n_targets ? "" : "\"Linear\"");
    put_weights(out, &p->grid);
    nrd_str_puts(out, ", \"input_activations\": ");
    if (p->inputs != NRD_QROUND_NOT) {
        nrd_str_printf(out, "{\"num_bits\": 8, \"type\": \"%s\", \"symmetric\": true, \"strategy\": \"%s\", \"dynamic\": %s}",
                       p->inputs == NRD_QROUND_E4M3 ? "float" : "int", p->static_inputs ? "tensor" : "token",
                       p->static_inputs ? "false" : "true");
    } else {
        nrd_str_puts(out, "null");
    }
    nrd_str_puts(out, ", \"output_activations\": null");
    if (p->format) {
        nrd_str_printf(out, ", \"format\": \"%s\"", p->format);
    }
    nrd_str_putc(out, '}');
}

void nrd_qpack_config(nrd_str *out, const char *format, const nrd_qpack_group *groups, size_t n_groups, const char *const *ignored,
                      size_t n_ignored, bool with_head, nrd_dtype cache)
{
    nrd_str_printf(out, "{\"quant_method\": \"compressed-tensors\", \"format\": \"%s\", \"quantization_status\": "
                   "\"compressed\", \"config_groups\": {", format);
    for (size_t i = 0; i < n_groups; i++) {
        nrd_str_printf(out, "%s\"group_%zu\": ", i ? ", " : "", i);
        put_group(out, &groups[i]);
    }
    nrd_str_printf(out, "}, \"ignore\": [%s", with_head ? "" : "\"lm_head\"");
    for (size_t i = 0, any = !with_head; i < n_ignored; i++) {
        if (strcmp(ignored[i], "lm_head") != 0) {
            nrd_str_puts(out, any++ ? ", " : "");
            nrd_json_put_cstr(out, ignored[i]);
        }
    }
    nrd_str_puts(out, "], \"kv_cache_scheme\": ");
    if (cache == NRD_DTYPE_NONE) {
        nrd_str_puts(out, "null}");
        return;
    }
    nrd_str_printf(out, "{\"num_bits\": 8, \"type\": \"%s\", \"strategy\": \"attn_head\", \"symmetric\": true, \"dynamic\": false, "
                   "\"observer\": \"minmax\"}}", cache == NRD_DTYPE_I8 ? "int" : "float");
}
