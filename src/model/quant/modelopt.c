/* SPDX-License-Identifier: Apache-2.0
 * NVIDIA ModelOpt: quantization_config, or hf_quant_config.json with the same under `quantization`. What a module has says how
 * it is quantized, also with MIXED_PRECISION:
 *   FP8, FP8_PER_CHANNEL_PER_TOKEN  weight E4M3, weight_scale one number or [out]
 *   MXFP8                           weight E4M3, weight_scale E8M0 [out, in / 32]
 *   NVFP4, W4A16_NVFP4, NVFP4_AWQ   weight U8 [out, in / 2], weight_scale E4M3 [out, in / 16], times weight_scale_2
 *   W4A8_NVFP4_FP8                  likewise with weight_scale [out, in / 32]
 *   W4A8_MXFP4_FP8, mxfp4           weight U8 [out, in / 2], weight_scale E8M0 [out, in / 32]
 *   fp8_pb_wo, fp8_pb_real          weight E4M3, weight_scale [out / 128, 1, in / 128, 1] and [out / 128, in / 128]
 *   W8A16, W8A8_SQ_PER_CHANNEL      weight I8, weight_scale [out]; W8A8 has input_scale, and its inputs are int8
 *   W4A16_AWQ, W4A8_AWQ             weight U8 [out / 2, in]: two rows' signed nibbles, the lower one first; weight_scale
 *                                   [out, groups]; W4A8's weight_scale_2 says how those become FP8, and changes no number
 * Of AWQ pre_quant_scale [in] multiplies the input, where ModelOpt could not make it part of the norm in front or of the matrix
 * behind which the input comes. It stays beside the weight: in a norm's weight or in another matrix it would reach adapters and
 * other readers of the same numbers.
 * ModelOpt's and TensorRT-LLM's checkpoints of TensorRT-LLM hold the same by other names, and besides them:
 *   FP8_PER_CHANNEL_PER_TOKEN       per_channel_scale
 *   NVFP4 of convert_checkpoint.py  weights_block_scaling_factor, weights_global_scaling_factor, and what follows from them
 *   W4A8_QSERVE_PER_GROUP, W4A8_QSERVE_PER_CHANNEL  qserve.c
 *   W8A16, W4A16, W8A16_GPTQ, W4A16_GPTQ, W8A8_SQ_..._PLUGIN  mixed_gemm.c, but for ModelOpt's W8A16
 * Some versions of them keep E4M3 and pairs of nibbles as I8: nrd_quant_open_checkpoint says what they are. */
#include "model/quant/quant.h"

#include <string.h>

#define W8A8 "W8A8_SQ_PER_CHANNEL"
#define REAL_BLOCKS "fp8_pb_real"

/* What each form calls a weight's parts. */
typedef struct {
    const char *scale, *row_scale, *factor, *columns, *input;
} part_names;

static const part_names of_folder = {".weight_scale", NULL, ".weight_scale_2", ".pre_quant_scale", ".input_scale"};
static const part_names of_checkpoint = {".weights_scaling_factor", ".per_channel_scale", ".weights_scaling_factor_2",
                                         ".prequant_scaling_factor", ".activation_scaling_factor"};

/* What convert_checkpoint.py --use_nvfp4 leaves. */
static const part_names of_linear = {".weights_block_scaling_factor", NULL, ".weights_global_scaling_factor",
                                     ".prequant_scaling_factor", ".activation_global_scaling_factor"};

static void codes_of(const nrd_quant_weight *w, int64_t row0, int64_t n, uint8_t *out)
{
    for (int64_t r = row0; r < row0 + n; r++) {
        const uint8_t *pairs = (const uint8_t *)w->codes.data + r / 2 * w->cols;
        for (int64_t c = 0; c < w->cols; c++) {
            *out++ = ((r % 2 ? pairs[c] >> 4 : pairs[c]) & 15) ^ 8; /* plus 8 */
        }
    }
}

static nrd_error *weight_awq(nrd_quant *q, const char *stem, const part_names *names, nrd_quant_weight *w)
{
    nrd_src_tensor of_fp8;

    nrd_quant_try(q, stem, names->factor, w, &of_fp8);
    w->rows = w->codes.dims[0] * 2;
    w->cols = w->codes.dims[1];
    w->bits = 4;
    w->zero_point = 8;
    w->codes_of = codes_of;
    NRD_TRY(nrd_quant_shape(&w->codes, NRD_DTYPE_U8, w->rows / 2, w->cols));
    NRD_TRY(nrd_quant_spread(w, NRD_DTYPE_NONE, nrd_quant_settings_of(q)));
    return nrd_quant_columns(q, stem, names->columns, w);
}

/* weight U8: which of the types of four bits it is, the type of its scales says. */
static nrd_error *weight_4_bits(nrd_quant *q, const char *stem, const part_names *names, nrd_quant_weight *w)
{
    nrd_src_tensor factor;
    float by;

    if (w->scales.dtype == NRD_DTYPE_U8) {
        NRD_TRY(nrd_quant_take_fp4(w));
        return nrd_quant_spread(w, NRD_DTYPE_U8, nrd_quant_settings_of(q));
    }
    if (w->scales.dtype != NRD_DTYPE_F8_E4M3) {
        return weight_awq(q, stem, names, w);
    }
    NRD_TRY(nrd_quant_take_fp4(w));
    NRD_TRY(nrd_quant_take(q, stem, names->factor, w, &factor));
    NRD_TRY(nrd_quant_number(&factor, &by));
    w->scale_factor *= by;
    NRD_TRY(nrd_quant_spread(w, NRD_DTYPE_F8_E4M3, nrd_quant_settings_of(q)));
    return nrd_quant_columns(q, stem, names->columns, w);
}

/* fp8_pb_wo: each block of 128 x 128 numbers is a dimension of its scales beside one of 1. */
static nrd_error *weight_fp8_blocks(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    nrd_quant_settings *s = nrd_quant_settings_of(q);

    if (w->scales.dims[1] == 1 && w->scales.dims[3] == 1) {
        w->scales.n_dims = 2;
        w->scales.dims[1] = w->scales.dims[2];
    }
    s->block_rows = s->block_cols = 128; /* for this weight */
    nrd_error *err = nrd_quant_take_fp8(q, stem, w);
    s->block_rows = s->block_cols = 0;
    return err;
}

static nrd_error *weight_by(nrd_quant *q, const char *stem, const part_names *names, nrd_quant_weight *w)
{
    nrd_quant_weight seen = {0};
    nrd_src_tensor weight, input;

    if (names->row_scale) {
        nrd_quant_try(q, stem, names->row_scale, w, &w->scales);
    }
    if (!w->scales.data) {
        NRD_TRY(nrd_quant_take(q, stem, names->scale, w, &w->scales));
    }
    nrd_quant_try(q, stem, names->input, w, &input);
    nrd_quant_try(q, stem, ".weight", &seen, &weight);
    if (weight.dtype != NRD_DTYPE_U8 && weight.dtype != NRD_DTYPE_I8) {
        return w->scales.n_dims == 4 ? weight_fp8_blocks(q, stem, w) : nrd_quant_take_fp8(q, stem, w);
    }
    NRD_TRY(nrd_quant_take(q, stem, ".weight", w, &w->codes));
    if (weight.dtype == NRD_DTYPE_I8) {
        if (!w->scales.name || !nrd_str_has_suffix(w->scales.name, names->scale)) { /* per_channel_scale is for bytes in another order */
            NRD_TRY(nrd_quant_take(q, stem, names->scale, w, &w->scales));
        }
        NRD_TRY(nrd_quant_int8(w, nrd_quant_settings_of(q)));
        w->int8_input = input.data && !nrd_quant_settings_of(q)->int8_inputs; /* W8A8_SQ_PER_CHANNEL, beside others */
        return nrd_quant_columns(q, stem, names->columns, w);
    }
    return weight_4_bits(q, stem, names, w);
}

static nrd_error *weight_modelopt(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    return weight_by(q, stem, &of_folder, w);
}

static nrd_error *weight_checkpoint(nrd_quant *q, const char *stem, nrd_quant_weight *w)
{
    const nrd_quant_settings *s = nrd_quant_settings_of(q);
    nrd_quant_weight seen = {0};
    nrd_src_tensor blocks, rows, ignored;

    nrd_quant_try(q, stem, of_linear.scale, &seen, &blocks);
    nrd_quant_try(q, stem, of_checkpoint.row_scale, &seen, &rows);
    if (blocks.data) {
        nrd_quant_try(q, stem, ".weights_block_scaling_factor_interleaved", w, &ignored);
        nrd_quant_try(q, stem, ".alpha", w, &ignored);
        return weight_by(q, stem, &of_linear, w);
    }
    const bool by_modelopt = !s->whole || (s->whole == nrd_quant_weight_only && !rows.data);
    return by_modelopt ? weight_by(q, stem, &of_checkpoint, w) : s->whole(q, stem, w);
}

static nrd_error *open_modelopt(nrd_quant *q, const nrd_json *config)
{
    static const char *const known[] = {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "fp8_pb_wo", REAL_BLOCKS, "MXFP8", "NVFP4", "W4A16_NVFP4", "NVFP4_AWQ",
                                        "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8", "mxfp4", "W4A16_AWQ", "W4A8_AWQ", "W8A16", W8A8, "MIXED_PRECISION"};
    const nrd_json *algo = nrd_json_get(config, "quant_algo");
    const char *name = nrd_json_str(algo, "");

    nrd_quant_settings *s = nrd_quant_settings_of(q);
    s->int8_inputs = !strcmp(name, W8A8);
    s->block_rows = s->block_cols = !strcmp(name, REAL_BLOCKS) ? 128 : 0;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (!strcmp(name, known[i])) {
            return NULL;
        }
    }
    return nrd_quant_refuse("quant_algo", algo, "FP8, FP8_PER_CHANNEL_PER_TOKEN, fp8_pb_wo, " REAL_BLOCKS ", MXFP8, NVFP4, W4A16_NVFP4, NVFP4_AWQ, "
                            "W4A8_NVFP4_FP8, W4A8_MXFP4_FP8, mxfp4, W4A16_AWQ, W4A8_AWQ, W8A16, " W8A8 ", MIXED_PRECISION");
}

const nrd_quant_reader nrd_quant_modelopt = {"modelopt", {".weight_scale"}, open_modelopt, weight_modelopt};

static nrd_error *open_checkpoint(nrd_quant *q, const nrd_json *config)
{
    const bool has_its_own = nrd_quant_settings_of(q)->whole != NULL; /* GPTQ's zero points are read, and others have none */
    if (!has_its_own && nrd_json_get_bool(config, "has_zero_point", false)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "quantization: has_zero_point of %s is not supported",
                          nrd_json_get_str(config, "quant_algo", ""));
    }
    return NULL;
}

const nrd_quant_reader nrd_quant_checkpoint = {"tensorrt_llm", {".weights_scaling_factor", ".per_channel_scale",
                                               ".weights_block_scaling_factor", ".s1_scales"}, open_checkpoint, weight_checkpoint};
