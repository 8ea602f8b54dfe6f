/* SPDX-License-Identifier: Apache-2.0
 * GPTQ (Frantar et al., 2023) as AutoGPTQ and GPTQModel write it:
 *   qweight int32 [in * bits / 32, out]   codes along the columns of a weight, lowest bits first
 *   qzeros  int32 [groups, out * bits / 32]
 *   scales  [groups, out]
 *   g_idx   int32 [in]                    the group of each column; may be missing
 * checkpoint_format "gptq" keeps zero points less one, "gptq_v2" as they are; both have 2, 3, 4 or 8 bits. "gptq_p" (GPTQModel 7) has
 * 2 to 8, zero points as they are, and each 32 codes as planes of 8, 4, 2 or 1 bits, the low bits first, so that no code lies in
 * two words. Rules for single modules (`dynamic`) may change their bits and groups, which the shapes say: zero points have
 * out * bits bits for each group. */
#include "model/quant/quant.h"

#include <string.h>

/* Code number `at` of planes. Of 32 codes a plane has as many words as a code has bits in it. */
static unsigned plane_bits(const void *words, int64_t first, int64_t stride, int64_t at, int bits)
{
    const int place = (int)(at % 32);
    unsigned code = 0;
    for (int done = 0, width = bits == 8 ? 8 : bits >= 4 ? 4 : 2; done < bits; done += width) {
        width = done == 0 ? width : bits - done >= 2 ? 2 : 1;
        const uint32_t word = nrd_quant_word(words, first + (at / 32 * bits + done + place * width / 32) * stride);
        code |= (word >> (place * width % 32) & ((1u << width) - 1)) << done;
    }
    return code;
}

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    for (int64_t c = 0; c < w->cols; c++) { /* neighbouring rows lie side by side */
        for (int64_t r = 0; r < n; r++) {
            out[r * w->cols + c] = (uint8_t)nrd_quant_bits(w->codes.data, row0 + r, w->rows, c, w->bits);
        }
    }
}

static void codes_of_planes(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    for (int64_t c = 0; c < w->cols; c++) {
        for (int64_t r = 0; r < n; r++) {
            out[r * w->cols + c] = (uint8_t)plane_bits(w->codes.data, row0 + r, w->rows, c, w->bits);
        }
    }
}

static int zero_of_planes(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return (int)plane_bits(w->zeros.data, group * w->zeros.dims[1], 1, row, w->bits);
}

static int zero_as_is(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return (int)nrd_quant_bits(w->zeros.data, group * w->zeros.dims[1], 1, row, w->bits);
}

static int zero_less_one(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return (zero_as_is(w, row, group) + 1) & ((1 << w->bits) - 1); /* zero - 1 was cut to `bits` bits */
}

/* GPTQModel's rules for single modules: those that leave modules out ("-:") need nothing here, and others must not change how codes lie. */
static nrd_error *check_dynamic(const nrd_json *rules, nrd_quant_settings *s)
{
    static const char *const layout[] = {"format", "checkpoint_format", "method", "quant_method", "pack_dtype"};

    for (size_t i = 0; i < nrd_json_len(rules) && nrd_json_is(rules, NRD_JSON_OBJECT); i++) {
        const nrd_json *rule = &rules->child[i];
        if (!strncmp(rule->key, "-:", 2)) {
            continue;
        }
        s->by_shape = true;
        for (size_t k = 0; k < sizeof layout / sizeof layout[0]; k++) {
            if (nrd_json_get(rule, layout[k])) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "quantization_config: the rule '%s' of 'dynamic' has '%s', which is not supported for "
                                  "single modules", rule->key, layout[k]);
            }
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
    s->has_planes = !strcmp(name, "gptq_p");
    if (!s->has_planes && bits != 2 && bits != 3 && bits != 4 && bits != 8) {
        return nrd_quant_refuse("bits", nrd_json_get(config, "bits"), "2, 3, 4, 8");
    }
    NRD_TRY(nrd_quant_int(config, "group_size", 128, -1, INT32_MAX, &s->group_size));
    if (!s->has_planes && strcmp(name, "gptq") != 0 && strcmp(name, "gptq_v2") != 0) {
        return nrd_quant_refuse("checkpoint_format", format, "gptq, gptq_v2, gptq_p");
    }
    if (strcmp(nrd_json_str(pack, "int32"), "int32") != 0) {
        return nrd_quant_refuse("pack_dtype", pack, "int32");
    }
    s->bits = (int)bits;
    s->is_v1 = !strcmp(name, "gptq");
    return check_dynamic(nrd_json_get(config, "dynamic"), s);
}

/* Bits of a module that may have its own; 0: its parts do not say. */
static int own_bits(const nrd_quant_weight *w)
{
    const int64_t words = w->zeros.dims[1], rows = w->codes.dims[1];
    const bool is_whole = rows > 0 && words > 0 && words <= rows && words * 32 % rows == 0;
    const int64_t bits = is_whole ? words * 32 / rows : 0;
    return bits >= 2 && bits <= 8 ? (int)bits : 0;
}

static nrd_error *weight_gptq(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const nrd_quant_settings *s = nrd_quant_settings_of(q);

    NRD_TRY(nrd_quant_take(q, stem, ".qweight", w, &w->codes));
    NRD_TRY(nrd_quant_take(q, stem, ".qzeros", w, &w->zeros));
    NRD_TRY(nrd_quant_take(q, stem, ".scales", w, &w->scales));
    nrd_quant_try(q, stem, ".g_idx", w, &w->order);
    const int own = s->by_shape ? own_bits(w) : 0;
    w->bits = own ? own : s->bits;
    w->rows = w->codes.dims[1];
    w->cols = w->codes.dims[0] * 32 / w->bits;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_I32, w->cols * w->bits / 32, w->rows));
    NRD_TRY(nrd_quant_own_groups(w, s));
    NRD_TRY(nrd_quant_shape(&w->zeros, NRD_DTYPE_I32, w->n_groups, w->rows * w->bits / 32));
    if (w->rows * w->bits % 32) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s': %lld rows of %d bits do not fill whole words of 'qzeros'",
                          w->codes.name, (long long)w->rows, w->bits);
    }
    if (s->has_planes && (w->rows % 32 || w->cols % 32)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tensor '%s': %lld rows of %lld columns; 'gptq_p' has 32 of both at a time",
                          w->codes.name, (long long)w->rows, (long long)w->cols);
    }
    NRD_TRY(nrd_quant_shape(&w->scales, NRD_DTYPE_NONE, w->n_groups, w->rows));
    w->scale_row = 1;
    w->scale_group = w->rows;
    w->codes_of = s->has_planes ? codes_of_planes : codes_of;
    w->zero_of = s->has_planes ? zero_of_planes : s->is_v1 ? zero_less_one : zero_as_is;
    return nrd_quant_check_order(w);
}

const nrd_quant_reader nrd_quant_gptq = {"gptq", {".qweight"}, open_gptq, weight_gptq};
