/* SPDX-License-Identifier: Apache-2.0
 * AWQ (Lin et al., 2023) as AutoAWQ writes it, 4 bits. Version "gemm" (which "exllama" and "ipex" files are too):
 *   qweight int32 [in, out / 8]      eight rows in a word, in the order 0 2 4 6 1 3 5 7
 *   qzeros  int32 [groups, out / 8]  alike
 *   scales  f16   [groups, out]
 * Version "gemv": qweight int32 [out, in / 8], columns in their order, qzeros int32 [out, words] and scales
 * f16 [out, 8 * words] alike, padded at the end of a row. */
#include "model/quant/quant.h"

#include <string.h>

/* Where in a word the row with this number within eight lies. */
static const uint8_t place[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static unsigned at_row(const void *words, int64_t first, int64_t row)
{
    return nrd_quant_word(words, first + row / 8) >> (4 * place[row % 8]) & 15;
}

static void codes_gemm(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    for (int64_t c = 0; c < w->cols; c++) {
        for (int64_t r = 0; r < n; r++) {
            out[r * w->cols + c] = (uint8_t)at_row(w->codes.data, c * (w->rows / 8), row0 + r);
        }
    }
}

static int zero_gemm(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return (int)at_row(w->zeros.data, group * (w->rows / 8), row);
}

static void codes_gemv(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    for (int64_t i = 0; i < n * w->cols; i++) { /* a row fills its words, so rows follow each other */
        out[i] = (uint8_t)nrd_quant_bits(w->codes.data, row0 * (w->cols / 8), 1, i, 4);
    }
}

static int zero_gemv(const nrd_quant_weight *w, int64_t row, int64_t group)
{
    return (int)nrd_quant_bits(w->zeros.data, row * w->zeros.dims[1], 1, group, 4);
}

static nrd_error *open_awq(nrd_quant *q, const nrd_json *config)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);
    const nrd_json *version = nrd_json_get(config, "version"), *backend = nrd_json_get(config, "backend");
    const char *v = nrd_json_str(version, "gemm");
    const char *bits_key = nrd_json_get(config, "w_bit") ? "w_bit" : "bits";
    const char *group_key = nrd_json_get(config, "q_group_size") ? "q_group_size" : "group_size";
    int64_t bits;

    NRD_TRY(nrd_quant_int(config, bits_key, 4, 1, 16, &bits));
    if (bits != 4) {
        return nrd_quant_refuse(bits_key, nrd_json_get(config, bits_key), "4");
    }
    NRD_TRY(nrd_quant_int(config, group_key, 128, -1, INT32_MAX, &s->group_size));
    bool gemm = !strcasecmp(v, "gemm") || !strcasecmp(v, "exllama") || !strcasecmp(v, "ipex");
    if (!gemm && strcasecmp(v, "gemv") != 0) {
        return nrd_quant_refuse("version", version, "gemm, gemv, exllama, ipex");
    }
    const nrd_json *order = nrd_json_get(config, "pack_method"); /* written by Quark */
    if (strcmp(nrd_json_str(order, "reorder"), "reorder") != 0) {
        return nrd_quant_refuse("pack_method", order, "reorder");
    }
    if (!strcasecmp(nrd_json_str(backend, "autoawq"), "llm-awq")) {
        return nrd_quant_refuse("backend", backend, "autoawq");
    }
    s->by_rows = !gemm;
    return NULL;
}

static nrd_error *weight_gemm(nrd_quant_weight *w, const nrd_quant_settings *s)
{
    w->cols = w->codes.dims[0];
    w->rows = w->codes.dims[1] * 8;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_I32, w->cols, w->rows / 8));
    NRD_TRY(nrd_quant_own_groups(w, s));
    NRD_TRY(nrd_quant_shape(&w->zeros, NRD_DTYPE_I32, w->n_groups, w->rows / 8));
    NRD_TRY(nrd_quant_shape(&w->scales, NRD_DTYPE_NONE, w->n_groups, w->rows));
    w->scale_row = 1;
    w->scale_group = w->rows;
    w->codes_of = codes_gemm;
    w->zero_of = zero_gemm;
    return NULL;
}

static nrd_error *weight_gemv(nrd_quant_weight *w, const nrd_quant_settings *s)
{
    w->rows = w->codes.dims[0];
    w->cols = w->codes.dims[1] * 8;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_I32, w->rows, w->cols / 8));
    NRD_TRY(nrd_quant_groups(w, s->group_size));
    int64_t words = w->zeros.dims[1]; /* more than the groups need */
    if (words < (w->n_groups + 7) / 8) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' has %lld words a row; %lld groups need %lld",
                          w->zeros.name, (long long)words, (long long)w->n_groups,
                          (long long)((w->n_groups + 7) / 8));
    }
    NRD_TRY(nrd_quant_shape(&w->zeros, NRD_DTYPE_I32, w->rows, words));
    NRD_TRY(nrd_quant_shape(&w->scales, NRD_DTYPE_NONE, w->rows, words * 8));
    w->scale_row = words * 8;
    w->scale_group = 1;
    w->codes_of = codes_gemv;
    w->zero_of = zero_gemv;
    return NULL;
}

static nrd_error *weight_awq(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const nrd_quant_settings *s = nrd_quant_settings_of(q);

    NRD_TRY(nrd_quant_take(q, stem, ".qweight", w, &w->codes));
    NRD_TRY(nrd_quant_take(q, stem, ".qzeros", w, &w->zeros));
    NRD_TRY(nrd_quant_take(q, stem, ".scales", w, &w->scales));
    w->bits = 4;
    return s->by_rows ? weight_gemv(w, s) : weight_gemm(w, s);
}

const nrd_quant_reader nrd_quant_awq = {"awq", {".qweight"}, open_awq, weight_awq};
