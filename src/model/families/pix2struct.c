/* SPDX-License-Identifier: Apache-2.0
 * Pix2Struct, DePlot and MatCha (Lee et al., 2023; Liu et al., 2023): T5's layers under other names. The encoder reads patches, whose places
 * are in their embeddings, so that its scores have no bias. */
#include "model/families/family.h"

#include <string.h>

#define ENCODER "encoder.encoder.layer.*."
#define DECODER "decoder.layer.*."

/* Its embedding is the decoder's: places of patches are looked up in it before their rows are there. */
static const nrd_weight_rule encoder_rules[] = {
    RULE_EMBED("decoder.embed_tokens"),
    RULE_WEIGHT("input_layernorm", ENCODER "pre_attention_layer_norm"),
    RULE_QKV(ENCODER "attention.query", ENCODER "attention.key", ENCODER "attention.value"),
    RULE_WEIGHT("attention.dense", ENCODER "attention.output"),
    RULE_WEIGHT("post_layernorm", ENCODER "pre_mlp_layer_norm"),
    RULE_WEIGHT("mlp.fc", ENCODER "mlp.wi_0"),
    RULE_WEIGHT("mlp.gate", ENCODER "mlp.wi_1"),
    RULE_WEIGHT("mlp.proj", ENCODER "mlp.wo"),
    RULE_WEIGHT("transformer.ln_f", "encoder.layernorm"),
    {0}};

static const nrd_weight_rule decoder_rules[] = {
    RULE_EMBED("decoder.embed_tokens"),
    RULE_WEIGHT("transformer.rel_attn_table", "decoder.layer.0.self_attention.attention.relative_attention_bias"),
    RULE_WEIGHT("input_layernorm", DECODER "self_attention.layer_norm"),
    RULE_QKV(DECODER "self_attention.attention.query", DECODER "self_attention.attention.key", DECODER "self_attention.attention.value"),
    RULE_WEIGHT("attention.dense", DECODER "self_attention.attention.output"),
    RULE_WEIGHT("cross_attention_layernorm", DECODER "encoder_decoder_attention.layer_norm"),
    RULE_WEIGHT("cross_attention.q", DECODER "encoder_decoder_attention.attention.query"),
    RULE_WEIGHT("cross_attention.k", DECODER "encoder_decoder_attention.attention.key"),
    RULE_WEIGHT("cross_attention.v", DECODER "encoder_decoder_attention.attention.value"),
    RULE_WEIGHT("cross_attention.dense", DECODER "encoder_decoder_attention.attention.output"),
    RULE_WEIGHT("post_layernorm", DECODER "mlp.layer_norm"),
    RULE_WEIGHT("mlp.fc", DECODER "mlp.DenseReluDense.wi_0"),
    RULE_WEIGHT("mlp.gate", DECODER "mlp.DenseReluDense.wi_1"),
    RULE_WEIGHT("mlp.proj", DECODER "mlp.DenseReluDense.wo"),
    RULE_WEIGHT("transformer.ln_f", "decoder.final_layer_norm"),
    RULE_WEIGHT("lm_head", "decoder.lm_head"),
    {0}};

enum { MOST_PATCHES = 4096, MOST_TOKENS = 2048 };

static nrd_error *both(nrd_model_spec *s, const nrd_json *c)
{
    const char *act = nrd_json_get_str(c, "dense_act_fn", "gelu_new");
    bool gated = false;

    if (!nrd_act_parse(act, &s->act, &gated) || gated) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "dense_act_fn '%.40s' is not supported", act);
    }
    s->attn_scale = 1;
    return NULL;
}

/* c: vision_config. */
static nrd_error *encoder(nrd_model_spec *s, const nrd_json *c)
{
    s->for_decoder = s->tied_embeddings = true;
    memset(s->layer_has_no_rope, 1, (size_t)s->n_layers);
    NRD_TRY(nrd_hf_int(c, "seq_len", MOST_PATCHES, &s->max_positions));
    return both(s, c);
}

/* c: text_config. */
static nrd_error *decoder(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_int(c, "decoder_start_token_id|pad_token_id", 0, &s->start_id));
    NRD_TRY(nrd_hf_int(c, "relative_attention_num_buckets", 32, &s->rel_buckets));
    NRD_TRY(nrd_hf_int(c, "relative_attention_max_distance", 128, &s->rel_distance));
    s->cross_attention = true;
    s->max_positions = MOST_TOKENS;
    if (!nrd_hf_get(c, "eos_token_id")) {
        nrd_model_spec_add_stop_id(s, 1);
    }
    return both(s, c);
}

const nrd_arch nrd_arch_pix2struct_encoder = {"pix2struct_encoder", "EncoderModel", {NULL}, {NULL}, NULL, {"", NULL},
                                              encoder_rules, NULL, T_ENCODER | T_TIED, encoder, NULL};

const nrd_arch nrd_arch_pix2struct = {"pix2struct", "DecoderModel", {"pix2struct"}, {"Pix2StructForConditionalGeneration"}, NULL,
                                      {"", NULL}, decoder_rules, NULL, 0, decoder, NULL};
