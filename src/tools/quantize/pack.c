/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/quantize/pack.h"

#include "base/dtype.h"
#include "base/json.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static nrd_error *add(nrd_qtensor *t, int *n, const char *module, const char *part, nrd_dtype dtype, int64_t d0, int64_t d1,
                      void *data)
{
    nrd_qtensor *one = &t[*n];
    *one = (nrd_qtensor){.name = nrd_xasprintf("%s.%s", module, part), .dtype = dtype, .n_dims = d1 < 0 ? 1 : 2,
                         .dims = {d0, d1 < 0 ? 1 : d1}, .data = data};
    ++*n;
    return nrd_dtype_bytes(dtype, (uint64_t)(one->dims[0] * one->dims[1]), &one->bytes) ? NULL : nrd_error_no_memory();
}

static void put_bits(uint32_t *words, int64_t first, int64_t stride, int64_t at, int bits, unsigned code)
{
    const int64_t bit = at * bits, word = first + bit / 32 * stride;
    words[word] |= code << (bit % 32); /* 4 and 8 bits never cross a word */
}

nrd_error *nrd_qpack_floats(const float *x, size_t n, nrd_dtype dtype, void **out)
{
    nrd_error *err = NULL;
    uint8_t *data = NULL;
    size_t bytes = 0;
    if (!nrd_dtype_bytes(dtype, n, &bytes)) {
        return nrd_error_no_memory();
    }
    NRD_NEW_GOTO(data, bytes, err, fail);
    if (dtype == NRD_DTYPE_F32) {
        memcpy(data, x, bytes);
    } else {
        nrd_quantize_row(dtype, x, data, (int64_t)n);
    }
    *out = data;
fail:
    return err;
}

static nrd_error *add_scales(const nrd_qresult_module *y, nrd_qtensor *t, int *n)
{
    void *data = NULL;
    const nrd_qrows *q = &y->rows;
    NRD_TRY(nrd_qpack_floats(q->scales, (size_t)(q->rows * q->n_groups), y->grid.scale_dtype, &data));
    return add(t, n, y->module->name, "weight_scale", y->grid.scale_dtype, q->rows, q->n_groups, data);
}

static nrd_error *pack_words(const nrd_qresult_module *y, nrd_qtensor *t, int *n)
{
    nrd_error *err = NULL;
    const nrd_qrows *q = &y->rows;
    const int bits = y->grid.bits;
    const int64_t words = (q->cols * bits + 31) / 32, zero_words = (q->rows * bits + 31) / 32;
    uint32_t *codes = NULL, *zeros = NULL;
    int64_t *shape = NULL;

    NRD_NEW_GOTO(codes, q->rows * words, err, fail);
    for (int64_t i = 0; i < q->rows * q->cols; i++) {
        put_bits(codes, i / q->cols * words, 1, i % q->cols, bits, q->codes[i]);
    }
    NRD_TRY(add(t, n, y->module->name, "weight_packed", NRD_DTYPE_I32, q->rows, words, codes));
    NRD_TRY(add_scales(y, t, n));
    NRD_NEW_GOTO(shape, 2, err, fail);
    shape[0] = q->rows;
    shape[1] = q->cols;
    NRD_TRY(add(t, n, y->module->name, "weight_shape", NRD_DTYPE_I64, 2, -1, shape));
    if (y->grid.symmetric) {
        return NULL;
    }
    NRD_NEW_GOTO(zeros, zero_words * q->n_groups, err, fail);
    for (int64_t i = 0; i < q->rows * q->n_groups; i++) {
        put_bits(zeros, i % q->n_groups, q->n_groups, i / q->n_groups, bits, q->zeros[i]);
    }
    return add(t, n, y->module->name, "weight_zero_point", NRD_DTYPE_I32, zero_words, q->n_groups, zeros);
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
    NRD_TRY(add(t, n, y->module->name, "weight", y->grid.is_float ? NRD_DTYPE_F8_E4M3 : NRD_DTYPE_I8, q->rows, q->cols,
                data));
    return add_scales(y, t, n);
fail:
    return err;
}

nrd_error *nrd_qpack(const nrd_qresult_module *y, const char *format, nrd_qtensor out[NRD_QTENSORS], int *out_n)
{
    *out_n = 0;
    return !strcmp(format, "pack-quantized") ? pack_words(y, out, out_n) : pack_bytes(y, out, out_n);
}

void nrd_qtensors_fini(nrd_qtensor *t, int n)
{
    for (int i = 0; i < n; i++) {
        free(t[i].name);
        free(t[i].data);
    }
}

static void put_group(nrd_str *out, const nrd_qpack_group *p)
{
    const nrd_qgrid *g = &p->grid;
    const char *type = g->is_float ? "float" : "int";

    nrd_str_puts(out, "{\"targets\": [");
    for (size_t i = 0; i < p->n_targets; i++) {
        nrd_str_puts(out, i ? ", " : "");
        nrd_json_put_cstr(out, p->targets[i]);
    }
    nrd_str_printf(out, "%s], \"weights\": {\"num_bits\": %d, \"type\": \"%s\", \"symmetric\": %s, \"strategy\": \"%s\", ",
                   p->n_targets ? "" : "\"Linear\"", g->bits, type, g->symmetric ? "true" : "false",
                   g->group > 0 ? "group" : "channel");
    if (g->group > 0) {
        nrd_str_printf(out, "\"group_size\": %lld, ", (long long)g->group);
    }
    nrd_str_puts(out, "\"dynamic\": false, \"observer\": \"minmax\"}, \"input_activations\": ");
    if (p->rounds_inputs) {
        nrd_str_printf(out, "{\"num_bits\": 8, \"type\": \"%s\", \"symmetric\": true, \"strategy\": \"token\", \"dynamic\": "
                       "true}", type);
    } else {
        nrd_str_puts(out, "null");
    }
    nrd_str_puts(out, ", \"output_activations\": null}");
}

void nrd_qpack_config(nrd_str *out, const char *format, const nrd_qpack_group *groups, size_t n_groups, char *const *ignored,
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
    nrd_str_printf(out, "{\"num_bits\": 8, \"type\": \"%s\", \"strategy\": \"tensor\", \"symmetric\": true, \"dynamic\": false, "
                   "\"observer\": \"minmax\"}}", cache == NRD_DTYPE_I8 ? "int" : "float");
}
