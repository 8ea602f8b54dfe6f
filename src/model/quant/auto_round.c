/* SPDX-License-Identifier: Apache-2.0
 * AutoRound (Intel) in its own packing. Integers lie as in other formats, floats as compressed-tensors has them:
 *   packing_format "auto_round:auto_gptq", "auto_round:gptq", none, "auto"   GPTQ, zero points less one
 *                  "auto_round:auto_awq", "auto_round:awq"                   AWQ, version "gemm"
 *                  "auto_round" and others without these words               GPTQ's words, zero points as they are
 * Older versions say it in `backend`. `extra_config` gives modules bits, groups and types of their own: what a module has says how it is
 * quantized, and its shapes say the rest. Source: the packing of auto-round 0.16. */
#include "model/quant/quant.h"

#include <string.h>

static nrd_error *check_type(const nrd_json *config)
{
    static const char *const known[] = {"int", "int_sym", "int_asym", "mx_fp", "nv_fp", "fp8", "fp8_sym", "fp8_e4m3", "block_fp8",
                                        "block_fp8_sym", "block_fp8_e4m3"};
    const nrd_json *type = nrd_json_get(config, "data_type");
    const char *name = nrd_json_str(type, "int");

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const size_t n = strlen(known[i]); /* mx_fp4_rceil, nv_fp4_with_static_gs … */
        const bool is_family = !strcmp(known[i], "mx_fp") || !strcmp(known[i], "nv_fp");
        if (is_family ? !strncmp(name, known[i], n) : !strcmp(name, known[i])) {
            return NULL;
        }
    }
    return nrd_quant_refuse("data_type", type, "int, mx_fp, nv_fp, fp8");
}

/* A field that changes what a product reads, and that is not null, false or empty. */
static nrd_error *refuse_if_there(const nrd_json *config, const char *key)
{
    const nrd_json *v = nrd_json_get(config, key);
    const bool is_there = v && !nrd_json_is(v, NRD_JSON_NULL) && nrd_json_len(v) > 0;
    return is_there ? nrd_quant_refuse(key, v, "none") : NULL;
}

static nrd_error *read_packing(const nrd_json *config, nrd_quant_settings *s)
{
    const nrd_json *format = nrd_json_get(config, "packing_format");
    const nrd_json *given = nrd_json_str(format, NULL) ? format : nrd_json_get(config, "backend");
    const char *name = nrd_json_str(given, "auto");

    if (strstr(name, "mlx") || strstr(name, "fake") || strstr(name, "e5m3")) {
        return nrd_quant_refuse("packing_format", given, "auto_round:auto_gptq, auto_round:auto_awq, auto_round");
    }
    s->is_awq = strstr(name, "awq") != NULL;
    s->is_v1 = strstr(name, "gptq") != NULL || !strcmp(name, "auto");
    if (s->is_awq && s->bits != 4) {
        return nrd_quant_refuse("bits", nrd_json_get(config, "bits"), "4, with packing_format auto_round:auto_awq");
    }
    return NULL;
}

static nrd_error *open_auto_round(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_json *extra = nrd_json_get(config, "extra_config"), *fmt = nrd_json_get(config, "fmt"), *group = nrd_json_get(config, "group_size");
    const bool is_int = !strncmp(nrd_json_get_str(config, "data_type", "int"), "int", 3);
    int64_t bits, act_bits;

    NRD_TRY(check_type(config));
    NRD_TRY(refuse_if_there(config, "rotation_config"));
    if (strcmp(nrd_json_str(fmt, "e4m3"), "e4m3") != 0) {
        return nrd_quant_refuse("fmt", fmt, "e4m3");
    }
    NRD_TRY(nrd_quant_int(config, "bits", 4, 2, 8, &bits));
    NRD_TRY(nrd_quant_int(config, "act_bits", 16, 1, 32, &act_bits));
    if (is_int && act_bits <= 8) { /* other tensors, with scales of activations */
        return nrd_quant_refuse("act_bits", nrd_json_get(config, "act_bits"), "16, with data_type int");
    }
    if (nrd_json_is(group, NRD_JSON_ARRAY)) { /* FP8 in blocks */
        s->block_rows = nrd_json_int(nrd_json_at(group, 0), 0);
        s->block_cols = nrd_json_int(nrd_json_at(group, 1), 0);
        if (nrd_json_len(group) != 2 || s->block_rows < 1 || s->block_cols < 1 || s->block_rows > INT32_MAX || s->block_cols > INT32_MAX) {
            return nrd_quant_refuse("group_size", group, "a number, or two above 0");
        }
    } else {
        NRD_TRY(nrd_quant_int(config, "group_size", 128, -1, INT32_MAX, &s->group_size));
    }
    for (size_t i = 0; i < nrd_json_len(extra) && nrd_json_is(extra, NRD_JSON_OBJECT); i++) {
        NRD_TRY(check_type(&extra->child[i]));
    }
    s->bits = (int)bits;
    s->by_shape = nrd_json_len(extra) > 0;
    return read_packing(config, s);
}

static nrd_error *weight_auto_round(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_quant_weight seen = {0};
    nrd_src_tensor words, blocks;

    nrd_quant_try(q, stem, ".qweight", &seen, &words);
    nrd_quant_try(q, stem, ".weight_scale_inv", &seen, &blocks);
    if (words.data) {
        return nrd_quant_settings_of(q)->is_awq ? nrd_quant_awq.weight(q, stem, w) : nrd_quant_gptq.weight(q, stem, w);
    }
    return blocks.data ? nrd_quant_fp8.weight(q, stem, w) : nrd_quant_compressed.weight(q, stem, w);
}

const nrd_quant_reader nrd_quant_auto_round = {"auto-round", {".qweight", ".weight_scale", ".weight_scale_inv"}, open_auto_round,
                                               weight_auto_round};
