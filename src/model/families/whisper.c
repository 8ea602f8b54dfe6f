/* SPDX-License-Identifier: Apache-2.0
 * Whisper (Radford et al., 2022): an encoder that reads log-mel features of 30 seconds of sound through two convolutions, and
 * a decoder that reads its states. Norms in front, learned positions, biases but for those of keys. */
#include "model/families/family.h"

#define WHISPER_ENDS(at)                                                                           \
    RULE_POSITIONS(at "embed_positions", 0), RULE("transformer.ln_f", at "layer_norm", 0)
#define WHISPER_LAYER(at)                                                                          \
    {"attention.qkv.weight", {at "self_attn.q_proj.weight", at "self_attn.k_proj.weight", at "self_attn.v_proj.weight"}, 0}, \
        {"attention.qkv.bias", {at "self_attn.q_proj.bias", at "self_attn.k_proj.bias", at "self_attn.v_proj.bias"},         \
         NRD_RULE_NO_KEYS},                                                                        \
        RULE("attention.dense", at "self_attn.out_proj", 0),                                       \
        RULE("input_layernorm", at "self_attn_layer_norm", 0), RULE("mlp.fc", at "fc1", 0),        \
        RULE("mlp.proj", at "fc2", 0), RULE("post_layernorm", at "final_layer_norm", 0)
#define CONVOLUTION(name)                                                                          \
    {"transformer." name ".weight", {"encoder." name ".weight"}, NRD_RULE_KERNEL_LAST},            \
        {"transformer." name ".bias", {"encoder." name ".bias"}, 0}
#define DECODER "decoder.layers.*."

static const nrd_weight_rule encoder_rules[] = {CONVOLUTION("conv1"), CONVOLUTION("conv2"), WHISPER_ENDS("encoder."),
                                                WHISPER_LAYER("encoder.layers.*."), {0}};

static const nrd_weight_rule decoder_rules[] = {
    RULE_EMBED("decoder.embed_tokens"),
    WHISPER_ENDS("decoder."),
    WHISPER_LAYER(DECODER),
    RULE("cross_attention_layernorm", DECODER "encoder_attn_layer_norm", 0),
    RULE("cross_attention.q", DECODER "encoder_attn.q_proj", 0),
    RULE_WEIGHT("cross_attention.k", DECODER "encoder_attn.k_proj"),
    {"cross_attention.k.bias", {NULL}, NRD_RULE_ZEROS},
    RULE("cross_attention.v", DECODER "encoder_attn.v_proj", 0),
    RULE("cross_attention.dense", DECODER "encoder_attn.out_proj", 0),
    RULE_WEIGHT("lm_head", "proj_out"),
    {0}};

/* What both networks have. transformers reads scale_embedding and scales nothing. */
static nrd_error *whisper(nrd_model_spec *s, const nrd_json *c, const char *positions, int64_t usual)
{
    s->embed_scale = 1;
    if (!nrd_hf_get(c, "activation_function")) {
        s->act = NRD_ACT_GELU_ERF;
    }
    return nrd_hf_int(c, positions, usual, &s->max_positions);
}

static nrd_error *encoder(nrd_model_spec *s, const nrd_json *c)
{
    s->for_decoder = s->tied_embeddings = true;
    NRD_TRY(nrd_hf_network_of_two(s, c, "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"));
    NRD_TRY(nrd_hf_int(c, "num_mel_bins", 80, &s->n_mels));
    if (s->n_mels < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'num_mel_bins' must be above 0, got %d", s->n_mels);
    }
    return whisper(s, c, "max_source_positions", 1500);
}

static nrd_error *decoder(nrd_model_spec *s, const nrd_json *c)
{
    s->cross_attention = true;
    NRD_TRY(nrd_hf_int(c, "decoder_start_token_id|bos_token_id", -1, &s->start_id));
    NRD_TRY(nrd_hf_network_of_two(s, c, "decoder_layers", "decoder_attention_heads", "decoder_ffn_dim"));
    return whisper(s, c, "max_target_positions", 448);
}

#define WHISPER (T_LAYER_NORM | T_LEARNED_POSITIONS | T_PLAIN_MLP | T_ALL_BIASES | T_TIED)

const nrd_arch nrd_arch_whisper_encoder = {"whisper_encoder", "WhisperEncoder", {NULL}, {NULL}, NULL, {"model.", "", NULL},
                                           encoder_rules, NULL, WHISPER | T_ENCODER, encoder, NULL};

const nrd_arch nrd_arch_whisper = {"whisper", "DecoderModel", {"whisper"}, {"WhisperForConditionalGeneration"}, NULL,
                                   {"model.", "", NULL}, decoder_rules, NULL, WHISPER, decoder, NULL};
