/* SPDX-License-Identifier: Apache-2.0
 * T5, T5 1.1, Flan-T5 and mT5 (Raffel et al., 2020; Xue et al., 2021): an encoder and a decoder that reads its states.
 * No positions but a bias of attention by distance, which all layers share; RMS norms in front; scores are not scaled. */
#include "model/families/family.h"

#include <math.h>
#include <string.h>

#define ENCODER "encoder.block.*.layer."
#define DECODER "decoder.block.*.layer."
/* In a gated MLP wi_0 is the part with the activation. */
#define T5_MLP(layer)                                                                              \
    {"mlp.fc.weight", {layer "DenseReluDense.wi.weight|" layer "DenseReluDense.wi_0.weight"}, 0},  \
        RULE_WEIGHT("mlp.gate", layer "DenseReluDense.wi_1"),                                      \
        RULE_WEIGHT("mlp.proj", layer "DenseReluDense.wo"),                                        \
        RULE_WEIGHT("post_layernorm", layer "layer_norm")
#define T5_SELF(layer)                                                                             \
    RULE_QKV(layer "SelfAttention.q", layer "SelfAttention.k", layer "SelfAttention.v"),           \
        RULE_WEIGHT("attention.dense", layer "SelfAttention.o"),                                   \
        RULE_WEIGHT("input_layernorm", layer "layer_norm")

static const nrd_weight_rule encoder_rules[] = {
    RULE_EMBED("shared.weight|encoder.embed_tokens"),
    RULE_WEIGHT("transformer.rel_attn_table", "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"),
    T5_SELF(ENCODER "0."),
    T5_MLP(ENCODER "1."),
    RULE_WEIGHT("transformer.ln_f", "encoder.final_layer_norm"),
    {0}};

static const nrd_weight_rule decoder_rules[] = {
    RULE_EMBED("shared.weight|decoder.embed_tokens"),
    RULE_WEIGHT("transformer.rel_attn_table", "decoder.block.0.layer.0.SelfAttention.relative_attention_bias"),
    T5_SELF(DECODER "0."),
    RULE_WEIGHT("cross_attention_layernorm", DECODER "1.layer_norm"),
    RULE_WEIGHT("cross_attention.q", DECODER "1.EncDecAttention.q"),
    RULE_WEIGHT("cross_attention.k", DECODER "1.EncDecAttention.k"),
    RULE_WEIGHT("cross_attention.v", DECODER "1.EncDecAttention.v"),
    RULE_WEIGHT("cross_attention.dense", DECODER "1.EncDecAttention.o"),
    T5_MLP(DECODER "2."),
    RULE_WEIGHT("transformer.ln_f", "decoder.final_layer_norm"),
    RULE_WEIGHT("lm_head", "lm_head"),
    {0}};

/* The longest text where the configuration names a shorter one: distances have no end. */
enum { NO_POSITIONS = 2048 };

static nrd_error *t5(nrd_model_spec *s, const nrd_json *c)
{
    const char *mlp = nrd_json_get_str(c, "feed_forward_proj", "relu"), *act = mlp;
    bool gated = false;

    if (!strncmp(mlp, "gated-", 6)) {
        act = mlp + 6;
        s->gated_mlp = true;
        act = !strcmp(act, "gelu") ? "gelu_new" : act; /* what their authors trained with */
    }
    if (!nrd_act_parse(act, &s->act, &gated) || gated) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "feed_forward_proj '%.40s' is not supported", mlp);
    }
    NRD_TRY(nrd_hf_int(c, "relative_attention_num_buckets", 32, &s->rel_buckets));
    NRD_TRY(nrd_hf_int(c, "relative_attention_max_distance", 128, &s->rel_distance));
    s->attn_scale = 1;
    s->max_positions = s->max_positions > NO_POSITIONS ? s->max_positions : NO_POSITIONS;
    return NULL;
}

static nrd_error *encoder(nrd_model_spec *s, const nrd_json *c)
{
    s->for_decoder = s->tied_embeddings = true;
    return t5(s, c);
}

static nrd_error *decoder(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_int(c, "num_decoder_layers", s->n_layers, &s->n_layers));
    NRD_TRY(nrd_hf_int(c, "decoder_start_token_id|pad_token_id", 0, &s->start_id));
    s->cross_attention = true;
    if (s->tied_embeddings) { /* the embedding was trained with states of this size */
        s->logits_scale = (float)(1 / sqrt((double)s->hidden));
    }
    return t5(s, c);
}

const nrd_arch nrd_arch_t5_encoder = {"t5_encoder", "EncoderModel", {NULL}, {NULL}, NULL, {"", "language_model.", NULL},
                                    encoder_rules, NULL, T_ENCODER | T_PLAIN_MLP | T_TIED, encoder, NULL};

const nrd_arch nrd_arch_t5 = {"t5", "DecoderModel", {"t5", "mt5"},
                              {"T5ForConditionalGeneration", "MT5ForConditionalGeneration"}, NULL, {"", "language_model.", NULL},
                              decoder_rules, NULL, T_PLAIN_MLP | T_TIED, decoder, NULL};
