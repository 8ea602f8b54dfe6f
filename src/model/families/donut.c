/* SPDX-License-Identifier: Apache-2.0
 * Donut and Nougat (Kim et al., 2022; Blecher et al., 2023): mBART's decoder reads what a Swin transformer makes of a page. That is a tower
 * (engine/run/tower_swin.c), whose rows an encoder without layers hands on. */
#include "model/families/family.h"

#include <string.h>

#define LAYER "decoder.layers.*."

static const nrd_weight_rule encoder_rules[] = {RULE_EMBED("decoder.embed_tokens"), {0}};

static const nrd_weight_rule decoder_rules[] = {
    RULE_EMBED("decoder.embed_tokens"),
    RULE_POSITIONS("decoder.embed_positions", NRD_RULE_SKIP_TWO),
    RULE("transformer.ln_embed", "decoder.layernorm_embedding", 0),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE("attention.dense", LAYER "self_attn.out_proj", 0),
    RULE("input_layernorm", LAYER "self_attn_layer_norm", 0),
    RULE("cross_attention_layernorm", LAYER "encoder_attn_layer_norm", 0),
    RULE("cross_attention.q", LAYER "encoder_attn.q_proj", 0),
    RULE("cross_attention.k", LAYER "encoder_attn.k_proj", 0),
    RULE("cross_attention.v", LAYER "encoder_attn.v_proj", 0),
    RULE("cross_attention.dense", LAYER "encoder_attn.out_proj", 0),
    RULE("mlp.fc", LAYER "fc1", 0),
    RULE("mlp.proj", LAYER "fc2", 0),
    RULE("post_layernorm", LAYER "final_layer_norm", 0),
    RULE("transformer.ln_f", "decoder.layer_norm", 0),
    RULE_WEIGHT("lm_head", "lm_head"),
    {0}};

enum { MOST_ROWS = 4800 }; /* of a page, as Donut has them */

/* c, of both: `decoder` of config.json. */
static nrd_error *decoder(nrd_model_spec *s, const nrd_json *c)
{
    const char *type = nrd_json_get_str(c, "model_type", "");

    if (strcmp(type, "mbart") != 0 || !nrd_json_get_bool(c, "add_cross_attention", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision-encoder-decoder: decoder.model_type must be mbart, got '%.40s'", type);
    }
    s->cross_attention = true;
    return nrd_hf_network_of_two(s, c, "decoder_layers", "decoder_attention_heads", "decoder_ffn_dim");
}

static nrd_error *encoder(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(decoder(s, c));
    s->for_decoder = s->tied_embeddings = true;
    s->cross_attention = false;
    s->embed_scale = 1;
    s->n_layers = 0;
    s->max_positions = MOST_ROWS;
    return NULL;
}

const nrd_arch nrd_arch_donut_encoder = {"donut_encoder", "EncoderModel", {NULL}, {NULL}, NULL, {"decoder.model.", NULL},
                                         encoder_rules, NULL, T_LAYER_NORM | T_SUM_NORMS | T_PLAIN_MLP | T_ENCODER | T_TIED, encoder, NULL};

const nrd_arch nrd_arch_donut = {"donut", "DecoderModel", {"vision-encoder-decoder"}, {"VisionEncoderDecoderModel"}, NULL,
                                 {"decoder.model.", "decoder.", NULL}, decoder_rules, NULL,
                                 T_LAYER_NORM | T_LEARNED_POSITIONS | T_EMBED_NORM | T_PLAIN_MLP | T_ALL_BIASES | T_TIED, decoder, NULL};
