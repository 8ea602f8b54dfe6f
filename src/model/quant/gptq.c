/* SPDX-License-Identifier: Apache-2.0
 * GPTQ (Frantar et al., 2023) as AutoGPTQ and GPTQModel write it, with 2, 3, 4 or 8 bits:
 *   qweight int32 [in * bits / 32, out]   codes along the columns of a weight, lowest bits first
 *   qzeros  int32 [groups, out * bits / 32]
 *   scales  [groups, out]
 *   g_idx   int32 [in]                    the group of each column; may be missing
 * checkpoint_format "gptq" keeps zero points less one, "gptq_v2" as they are. */
#include "model/quant/quant.h"

#include <string.h>

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    for (int64_t c = 0; c < w->cols; c++) { /* neighbouring rows lie side by side */
        for (int64_t r = 0; r < n; r++) {
            out[r * w->cols + c] = (uint8_t)nrd_quant_bits(w->codes.data, row0 + r, w->rows, c, w->bits);
        }
    }
}

static int zero_as_is(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return (int)nrd_quant_bits(w->zeros.data, group * w->zeros.dims[1], 1, row, w->bits);
}

static int zero_less_one(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return (zero_as_is(w, row, group) + 1) & ((1 << w->bits) - 1); /* zero - 1 was cut to `bits` bits */
}

/* GPTQModel's rules for single modules: those that only leave modules out ("-:") need nothing here. */
static nrd_error *check_dynamic(const nrd_json *rules)
{
    for (size_t i = 0; i < nrd_json_len(rules); i++) {
        const char *rule = nrd_json_is(rules, NRD_JSON_OBJECT) ? rules->child[i].key : "";
        if (strncmp(rule, "-:", 2) != 0) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "quantization_config: the rule '%s' of 'dynamic' is not "
                              "supported; only rules that leave modules out (\"-:\") are", rule);
        }
    }
    return NULL;
}

static nrd_error *open_gptq(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_json *format = nrd_json_get(config, "checkpoint_format");
    const nrd_json *pack = nrd_json_get(config, "pack_dtype");
    int64_t bits;

    format = nrd_json_str(format, NULL) ? format : nrd_json_get(config, "format");
    const char *name = nrd_json_str(format, "gptq");
    NRD_TRY(nrd_quant_int(config, "bits", 4, 2, 8, &bits));
    if (bits != 2 && bits != 3 && bits != 4 && bits != 8) {
        return nrd_quant_refuse("bits", nrd_json_get(config, "bits"), "2, 3, 4, 8");
    }
    NRD_TRY(nrd_quant_int(config, "group_size", 128, -1, INT32_MAX, &s->group_size));
    if (strcmp(name, "gptq") != 0 && strcmp(name, "gptq_v2") != 0) {
        return nrd_quant_refuse("checkpoint_format", format, "gptq, gptq_v2");
    }
    if (strcmp(nrd_json_str(pack, "int32"), "int32") != 0) {
        return nrd_quant_refuse("pack_dtype", pack, "int32");
    }
    s->bits = (int)bits;
    s->is_v1 = !strcmp(name, "gptq");
    return check_dynamic(nrd_json_get(config, "dynamic"));
}

static nrd_error *weight_gptq(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const nrd_quant_settings *s = nrd_quant_settings_of(q);

    NRD_TRY(nrd_quant_take(q, stem, ".qweight", w, &w->codes));
    NRD_TRY(nrd_quant_take(q, stem, ".qzeros", w, &w->zeros));
    NRD_TRY(nrd_quant_take(q, stem, ".scales", w, &w->scales));
    nrd_quant_try(q, stem, ".g_idx", w, &w->order);
    w->bits = s->bits;
    w->rows = w->codes.dims[1];
    w->cols = w->codes.dims[0] * 32 / s->bits;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_I32, w->cols * s->bits / 32, w->rows));
    NRD_TRY(nrd_quant_groups(w, s->group_size));
    NRD_TRY(nrd_quant_shape(&w->zeros, NRD_DTYPE_I32, w->n_groups, w->rows * s->bits / 32));
    if (w->rows * s->bits % 32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s': %lld rows of %d bits do not fill whole words of 'qzeros'",
                          w->codes.name, (long long)w->rows, s->bits);
    }
    NRD_TRY(nrd_quant_shape(&w->scales, NRD_DTYPE_NONE, w->n_groups, w->rows));
    w->scale_row = 1;
    w->scale_group = w->rows;
    w->codes_of = codes_of;
    w->zero_of = s->is_v1 ? zero_less_one : zero_as_is;
    return nrd_quant_check_order(w);
}

const nrd_quant_reader nrd_quant_gptq = {"gptq", {".qweight"}, open_gptq, weight_gptq};
