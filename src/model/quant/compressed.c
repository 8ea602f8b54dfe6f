/* SPDX-License-Identifier: Apache-2.0
 * compressed-tensors (llm-compressor, vLLM). Which tensors a module has says how its weight is quantized, so that groups of
 * modules may differ, and `ignore` need not be read:
 *   weight_packed int32 [out, words]  integers of 2 to 8 bits plus 2^(bits - 1), rows begin with a word ("pack-quantized");
 *                                     weight_shape, and weight_zero_point packed alike along the rows
 *   weight int8 [out, in]             "int-quantized", "naive-quantized"; weight_zero_point int8
 *   weight E4M3 [out, in]             "float-quantized", "naive-quantized"; "mxfp8-quantized": weight_scale E8M0 of 32 columns
 *   weight_packed u8 [out, in / 2]    "nvfp4-pack-quantized": weight_scale E4M3, divided by weight_global_scale;
 *                                     "mxfp4-pack-quantized": weight_scale E8M0
 *   compressed, weight_packed and meta  of 2:4 sparse weights: sparse.c
 * weight_scale is one number, [out, 1], [out, groups] or one for each block; weight_g_idx names each column's group.
 * Activations are rounded as a device does for weights of that type; to int8 on a GPU for int8 weights whose group says so. Only
 * where groups differ in that `targets` are read. */
#include "model/quant/quant.h"

#include <string.h>

static void codes_packed(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    for (int64_t r = row0; r < row0 + n; r++, out += w->cols) {
        nrd_quant_row_codes(w->codes.data, r * w->codes.dims[1], w->cols, w->bits, out);
    }
}

static int zero_packed(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return (int)nrd_quant_bits(w->zeros.data, group, w->zeros.dims[1], row, w->bits);
}

/* Columns' groups; -1 in all of them, and groups in order, say nothing. */
static nrd_error *read_order(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_quant_try(q, stem, ".weight_g_idx", w, &w->order);
    if (!w->order.data) {
        return NULL;
    }
    NRD_TRY(nrd_quant_shape(&w->order, NRD_DTYPE_I32, w->cols, -1));
    if ((int32_t)nrd_quant_word(w->order.data, 0) == -1) {
        w->order.data = NULL;
        return NULL;
    }
    return nrd_quant_check_order(w);
}

/* weight_shape [2]: rows and columns, which words at the end of a row hide. */
static nrd_error *read_shape(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_src_tensor shape;
    int64_t dims[2];

    NRD_TRY(nrd_quant_take(q, stem, ".weight_shape", w, &shape));
    nrd_dtype type = shape.dtype == NRD_DTYPE_I32 ? NRD_DTYPE_I32 : NRD_DTYPE_I64;
    NRD_TRY(nrd_quant_shape(&shape, type, 2, -1));
    for (int i = 0; i < 2; i++) {
        if (type == NRD_DTYPE_I32) {
            dims[i] = (int32_t)nrd_quant_word(shape.data, i);
        } else {
            memcpy(&dims[i], (const char *)shape.data + 8 * i, 8);
        }
    }
    int64_t words = w->codes.dims[1];
    w->rows = dims[0];
    w->cols = dims[1];
    w->bits = dims[1] > 0 && words < INT64_MAX / 32 ? (int)(words * 32 / dims[1] > 8 ? 9 : words * 32 / dims[1]) : 0;
    if (w->bits < 2 || w->bits > 8 || dims[0] < 1 || (dims[1] * w->bits + 31) / 32 != words) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' says %lld x %lld; rows of '%s' have %lld words, which is not "
                          "2 to 8 bits a number", shape.name, (long long)dims[0], (long long)dims[1], w->codes.name,
                          (long long)words);
    }
    return nrd_quant_shape(&w->codes, NRD_DTYPE_I32, w->rows, words);
}

/* Where no weight is symmetric, zeros that are missing would be taken for the middle. */
static nrd_error *read_zeros(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    static const char part[] = ".weight_zero_point";
    if (nrd_quant_settings_of(q)->needs_zeros) {
        return nrd_quant_take(q, stem, part, w, &w->zeros);
    }
    nrd_quant_try(q, stem, part, w, &w->zeros);
    return NULL;
}

static nrd_error *weight_packed(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    NRD_TRY(read_shape(q, stem, w));
    NRD_TRY(nrd_quant_spread(w, NRD_DTYPE_NONE, nrd_quant_settings_of(q)));
    w->codes_of = codes_packed;
    w->zero_point = 1 << (w->bits - 1);
    NRD_TRY(read_zeros(q, stem, w));
    if (w->zeros.data) {
        NRD_TRY(nrd_quant_shape(&w->zeros, NRD_DTYPE_I32, (w->rows * w->bits + 31) / 32, w->n_groups));
        w->zero_of = zero_packed;
    }
    return read_order(q, stem, w);
}

static nrd_error *weight_fp4(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_src_tensor global, input;
    float divisor;

    NRD_TRY(nrd_quant_take_fp4(w));
    nrd_quant_try(q, stem, ".input_global_scale", w, &input);
    if (w->scales.dtype == NRD_DTYPE_U8) {
        return nrd_quant_spread(w, NRD_DTYPE_U8, nrd_quant_settings_of(q));
    }
    NRD_TRY(nrd_quant_take(q, stem, ".weight_global_scale", w, &global));
    NRD_TRY(nrd_quant_number(&global, &divisor));
    w->scale_factor /= divisor;
    return nrd_quant_spread(w, NRD_DTYPE_F8_E4M3, nrd_quant_settings_of(q));
}

static bool is_int8(const nrd_json *args)
{
    return nrd_json_get_int(args, "num_bits", 0) == 8 && !strcmp(nrd_json_get_str(args, "type", "int"), "int");
}

/* W8A8 */
static bool is_for_int8(const nrd_json *group)
{
    return is_int8(nrd_json_get(group, "weights")) && is_int8(nrd_json_get(group, "input_activations"));
}

/* Of groups that name the module itself the first, else the first that has its class. */
static bool has_int8_input(const nrd_json *groups, const char *stem)
{
    const nrd_json *of_class = NULL;

    for (size_t i = 0; i < nrd_json_len(groups); i++) {
        const nrd_json *targets = nrd_json_get(&groups->child[i], "targets");
        for (size_t k = 0; k < nrd_json_len(targets); k++) {
            const char *target = nrd_json_str(nrd_json_at(targets, k), "");
            if (!strncmp(target, "re:", 3) ? nrd_quant_matches(target + 3, stem) : !strcmp(target, stem)) {
                return is_for_int8(&groups->child[i]);
            }
            of_class = of_class || strcmp(target, "Linear") != 0 ? of_class : &groups->child[i];
        }
    }
    return is_for_int8(of_class);
}

static nrd_error *weight_int8(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_src_tensor input;
    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    NRD_TRY(nrd_quant_int8(w, nrd_quant_settings_of(q)));
    w->int8_input = nrd_quant_settings_of(q)->layers && has_int8_input(nrd_quant_settings_of(q)->layers, stem);
    NRD_TRY(read_zeros(q, stem, w));
    nrd_quant_try(q, stem, ".input_scale", w, &input);
    nrd_quant_try(q, stem, ".input_zero_point", w, &input);
    NRD_TRY(nrd_quant_int8_zeros(w));
    return read_order(q, stem, w);
}

static bool has_part(nrd_quant *q, const char *stem, const char *suffix)
{
    nrd_quant_weight seen = {0};
    nrd_src_tensor part;

    nrd_quant_try(q, stem, suffix, &seen, &part);
    return part.data != NULL;
}

static nrd_error *weight_of(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    if (has_part(q, stem, ".scale_packed")) {
        return nrd_quant_marlin_24(q, stem, w);
    }
    if (has_part(q, stem, ".compressed")) {
        nrd_quant_try(q, stem, ".weight_scale", w, &w->scales);
        nrd_quant_try(q, stem, ".weight_zero_point", w, &w->zeros);
        NRD_TRY(nrd_quant_sparse_mask(q, stem, w));
        w->int8_input = w->codes_of && nrd_quant_settings_of(q)->layers && has_int8_input(nrd_quant_settings_of(q)->layers, stem);
        return w->codes_of && w->scales.data ? nrd_quant_int8_zeros(w) : NULL;
    }
    NRD_TRY(nrd_quant_take(q, stem, ".weight_scale", w, &w->scales));
    nrd_quant_try(q, stem, ".weight_packed", w, &w->codes);
    if (w->codes.data) {
        return w->codes.dtype == NRD_DTYPE_U8 ? weight_fp4(q, stem, w) : weight_packed(q, stem, w);
    }
    nrd_quant_weight seen = {0};
    nrd_src_tensor weight;
    nrd_quant_try(q, stem, ".weight", &seen, &weight);
    return weight.dtype == NRD_DTYPE_I8 ? weight_int8(q, stem, w) : nrd_quant_take_fp8(q, stem, w);
}

static nrd_error *weight_compressed(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    NRD_TRY(weight_of(q, stem, w));
    return nrd_quant_read_rotation(q, stem, w);
}

static nrd_error *check_format(const nrd_json *format)
{
    static const char *const known[] = {"pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
                                        "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision", "marlin-24", "dense"};
    const char *name = nrd_json_str(format, "dense");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (!strcmp(name, known[i])) {
            return NULL;
        }
    }
    return nrd_quant_refuse("format", format, "pack-quantized, int-quantized, float-quantized, naive-quantized, "
                            "nvfp4-pack-quantized, mxfp4-pack-quantized, mxfp8-quantized, mixed-precision, marlin-24");
}

/* What the groups say of inputs: all are for int8, or `layers` are looked at for each weight. */
static void read_inputs(nrd_quant_settings *s, const nrd_json *groups)
{
    const size_t n = nrd_json_is(groups, NRD_JSON_OBJECT) ? nrd_json_len(groups) : 0;
    size_t n_int8 = 0;

    for (size_t i = 0; i < n; i++) {
        n_int8 += is_for_int8(&groups->child[i]);
    }
    s->int8_inputs = n > 0 && n_int8 == n;
    s->layers = n_int8 > 0 && n_int8 < n ? groups : NULL;
}

static nrd_error *open_compressed(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_json *groups = nrd_json_get(config, "config_groups");
    const nrd_json *status = nrd_json_get(config, "quantization_status");
    const nrd_json *sparsity = nrd_json_get(nrd_json_get(config, "sparsity_config"), "format");

    NRD_TRY(check_format(nrd_json_get(config, "format")));
    if (strcmp(nrd_json_str(status, "compressed"), "compressed") != 0) {
        return nrd_quant_refuse("quantization_status", status, "compressed");
    }
    if (strcmp(nrd_json_str(sparsity, "dense"), "dense") != 0 && strcmp(nrd_json_str(sparsity, ""), "sparse-24-bitmask") != 0) {
        return nrd_quant_refuse("sparsity_config.format", sparsity, "dense, sparse-24-bitmask");
    }
    NRD_TRY(nrd_quant_check_rotations(q, config));
    read_inputs(s, groups);
    s->needs_zeros = nrd_json_is(groups, NRD_JSON_OBJECT) && nrd_json_len(groups) > 0;
    for (size_t i = 0; i < nrd_json_len(groups) && nrd_json_is(groups, NRD_JSON_OBJECT); i++) {
        const nrd_json *weights = nrd_json_get(&groups->child[i], "weights");
        const nrd_json *block = nrd_json_get(weights, "block_structure");
        int64_t group_size;
        s->needs_zeros = s->needs_zeros && !nrd_json_get_bool(weights, "symmetric", true);
        NRD_TRY(nrd_quant_int(weights, "group_size", 0, -1, INT32_MAX, &group_size));
        if (group_size > 0) { /* of several sizes, a weight's own scales say which */
            s->group_size = s->group_size && s->group_size != group_size ? -1 : group_size;
        }
        NRD_TRY(check_format(nrd_json_get(&groups->child[i], "format")));
        if (nrd_json_len(block) == 2) {
            s->block_rows = nrd_json_int(nrd_json_at(block, 0), 0);
            s->block_cols = nrd_json_int(nrd_json_at(block, 1), 0);
        }
        if (s->block_rows < 0 || s->block_cols < 0 || s->block_rows > INT32_MAX || s->block_cols > INT32_MAX ||
            !s->block_rows != !s->block_cols) {
            return nrd_quant_refuse("block_structure", block, "two numbers above 0");
        }
    }
    return NULL;
}

const nrd_quant_reader nrd_quant_compressed = {"compressed-tensors", {".weight_scale", ".compressed", ".scale_packed"}, open_compressed,
                                               weight_compressed};
