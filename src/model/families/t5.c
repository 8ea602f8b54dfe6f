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

/* In a GGUF file ffn_gate is the part with the activation, where there is one. */
#define GGUF_LAYER(at)                                                                             \
    RULE_QKV(at "attn_q", at "attn_k", at "attn_v"), RULE_WEIGHT("attention.dense", at "attn_o"),  \
        RULE_WEIGHT("input_layernorm", at "attn_norm"), RULE_WEIGHT("post_layernorm", at "ffn_norm"), \
        {"mlp.fc.weight", {at "ffn_gate.weight"}, NRD_RULE_IF_THERE},                              \
        {"mlp.fc.weight", {at "ffn_up.weight"}, NRD_RULE_IF_THERE}, RULE_WEIGHT("mlp.gate", at "ffn_up"), \
        RULE_WEIGHT("mlp.proj", at "ffn_down")
#define GGUF_DECODER "dec.blk.*."

static const nrd_weight_rule gguf_encoder_rules[] = {
    RULE_EMBED("token_embd"), RULE_WEIGHT("transformer.rel_attn_table", "enc.blk.0.attn_rel_b"), GGUF_LAYER("enc.blk.*."),
    RULE_WEIGHT("transformer.ln_f", "enc.output_norm"), {0}};

static const nrd_weight_rule gguf_decoder_rules[] = {
    RULE_EMBED("token_embd"),
    RULE_WEIGHT("transformer.rel_attn_table", "dec.blk.0.attn_rel_b"),
    GGUF_LAYER(GGUF_DECODER),
    RULE_WEIGHT("cross_attention_layernorm", GGUF_DECODER "cross_attn_norm"),
    RULE_WEIGHT("cross_attention.q", GGUF_DECODER "cross_attn_q"),
    RULE_WEIGHT("cross_attention.k", GGUF_DECODER "cross_attn_k"),
    RULE_WEIGHT("cross_attention.v", GGUF_DECODER "cross_attn_v"),
    RULE_WEIGHT("cross_attention.dense", GGUF_DECODER "cross_attn_o"),
    RULE_WEIGHT("transformer.ln_f", "dec.output_norm"),
    RULE_WEIGHT("lm_head", "output"),
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

/* What both networks of a GGUF file have, of which the first says whether MLPs are gated. Files say nothing of the activation and of
 * the largest distance: all published models have these. */
static void gguf_t5(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    s->gated_mlp = nrd_gguf_find_tensor(g, "enc.blk.0.ffn_gate.weight") != NULL;
    s->act = s->gated_mlp ? NRD_ACT_GELU_TANH : NRD_ACT_RELU;
    s->rel_buckets = nrd_family_small(nrd_gguf_key(g, arch, "attention.relative_buckets_count", 32));
    s->rel_distance = 128;
    s->attn_scale = 1;
    s->max_positions = s->max_positions > NO_POSITIONS ? s->max_positions : NO_POSITIONS;
}

static nrd_error *gguf_encoder(nrd_model_spec *s, const nrd_gguf *g)
{
    s->for_decoder = s->tied_embeddings = true;
    gguf_t5(s, g, "t5");
    return NULL;
}

static void scale_tied(nrd_model_spec *s)
{
    if (s->tied_embeddings) { /* the embedding was trained with states of this size */
        s->logits_scale = (float)(1 / sqrt((double)s->hidden));
    }
}

static nrd_error *gguf_decoder(nrd_model_spec *s, const nrd_gguf *g)
{
    s->n_layers = nrd_family_small(nrd_gguf_int(g, "t5.decoder_block_count", s->n_layers));
    if (s->n_layers < 1 || s->n_layers > NRD_SPEC_MAX_LAYERS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'t5.decoder_block_count' must be between 1 and %d", (int)NRD_SPEC_MAX_LAYERS);
    }
    s->start_id = nrd_family_small(nrd_gguf_int(g, "t5.decoder_start_token_id", 0));
    s->cross_attention = true;
    gguf_t5(s, g, "t5");
    s->tied_embeddings = s->tied_embeddings || !s->gated_mlp; /* those of the first T5, also where a file has the head twice */
    scale_tied(s);
    return NULL;
}

static nrd_error *decoder(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_int(c, "num_decoder_layers", s->n_layers, &s->n_layers));
    NRD_TRY(nrd_hf_int(c, "decoder_start_token_id|pad_token_id", 0, &s->start_id));
    s->cross_attention = true;
    scale_tied(s);
    return t5(s, c);
}

/* The encoder of such a model, by itself: its states become a text's vector (Ni et al., Sentence-T5, 2022). */
static nrd_error *vectors(nrd_model_spec *s, const nrd_json *c)
{
    s->tied_embeddings = true;
    s->pooling = NRD_SPEC_POOL_MEAN;
    return t5(s, c);
}

static nrd_error *gguf_vectors(nrd_model_spec *s, const nrd_gguf *g)
{
    s->tied_embeddings = true;
    gguf_t5(s, g, "t5encoder");
    return nrd_gguf_pooling(s, g, "t5encoder", NRD_SPEC_POOL_MEAN);
}

const nrd_arch nrd_arch_t5_vectors = {"t5_vectors", "T5EncoderModel", {"t5", "mt5"}, {"T5EncoderModel", "MT5EncoderModel"}, "t5encoder", {"", NULL},
                                    encoder_rules, gguf_encoder_rules, T_ENCODER | T_PLAIN_MLP | T_TIED, vectors, gguf_vectors};

const nrd_arch nrd_arch_t5_encoder = {"t5_encoder", "EncoderModel", {NULL}, {NULL}, NULL, {"", "language_model.", NULL},
                                    encoder_rules, gguf_encoder_rules, T_ENCODER | T_PLAIN_MLP | T_TIED, encoder, gguf_encoder};

const nrd_arch nrd_arch_t5 = {"t5", "DecoderModel", {"t5", "mt5"},
                              {"T5ForConditionalGeneration", "MT5ForConditionalGeneration"}, "t5", {"", "language_model.", NULL},
                              decoder_rules, gguf_decoder_rules, T_PLAIN_MLP | T_TIED, decoder, gguf_decoder};
