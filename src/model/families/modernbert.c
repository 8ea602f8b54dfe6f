/* SPDX-License-Identifier: Apache-2.0
 * ModernBERT: an encoder with rotary positions, norms before attention and MLP, a gated MLP, and windows in most layers
 * (Warner et al., "Smarter, Better, Faster, Longer", 2024, arXiv:2412.13663). */
#include "model/families/family.h"

#include <stdio.h>
#include <string.h>

#define LAYER "layers.*."
static const nrd_weight_rule modernbert_rules[] = {
    RULE_EMBED("embeddings.tok_embeddings"),
    RULE("transformer.ln_embed", "embeddings.norm", 0),
    RULE("input_layernorm", LAYER "attn_norm", 0),
    RULE("attention.qkv", LAYER "attn.Wqkv", 0),
    RULE("attention.dense", LAYER "attn.Wo", 0),
    RULE("post_layernorm", LAYER "mlp_norm", 0),
    RULE("mlp.fc", LAYER "mlp.Wi", NRD_RULE_FIRST_HALF),
    RULE("mlp.gate", LAYER "mlp.Wi", NRD_RULE_SECOND_HALF),
    RULE("mlp.proj", LAYER "mlp.Wo", 0),
    RULE("transformer.ln_f", "final_norm", 0),
    RULE_CLASSIFIER("dense", "head.dense"),
    RULE_CLASSIFIER("norm", "head.norm"),
    RULE_CLASSIFIER("out", "classifier"),
    {0}};

#define BLOCK "blk.*."
static const nrd_weight_rule gguf_rules[] = {
    RULE_EMBED("token_embd"),
    RULE("transformer.ln_embed", "token_embd_norm", 0),
    RULE("input_layernorm", BLOCK "attn_norm", 0),
    RULE("attention.qkv", BLOCK "attn_qkv", 0),
    RULE("attention.dense", BLOCK "attn_output", 0),
    RULE("post_layernorm", BLOCK "ffn_norm", 0),
    RULE("mlp.fc", BLOCK "ffn_up", NRD_RULE_FIRST_HALF),
    RULE("mlp.gate", BLOCK "ffn_up", NRD_RULE_SECOND_HALF),
    RULE("mlp.proj", BLOCK "ffn_down", 0),
    RULE("transformer.ln_f", "output_norm", 0),
    {0}};

/* A token sees local_attention / 2 others on each side in layers that slide: all but every global_attn_every_n_layers-th. */
static nrd_error *windows(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_json_get(c, "layer_types");
    int32_t width = 128, every = 3;

    NRD_TRY(nrd_hf_int(c, "local_attention", 128, &width));
    NRD_TRY(nrd_hf_int(c, "global_attn_every_n_layers", 3, &every));
    if (width < 2 || every < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "local_attention (%d) must be at least 2, global_attn_every_n_layers (%d) at least 1",
                          width, every);
    }
    s->sliding_window = width / 2 + 1;
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_sliding[i] = i % every != 0;
    }
    return nrd_json_is(types, NRD_JSON_ARRAY) ? nrd_hf_layer_types(s, types) : NULL;
}

static nrd_error *modernbert(nrd_model_spec *s, const nrd_json *c)
{
    nrd_classifier_spec *head = &s->classifier;

    s->tied_embeddings = s->no_first_norm = true;
    s->norm_bias = nrd_json_get_bool(c, "norm_bias", false);
    s->rope.base = 160000;
    NRD_TRY(nrd_hf_int(c, "max_position_embeddings", 8192, &s->max_positions));
    head->dense = head->norm = head->bias = true;
    head->dense_bias = nrd_json_get_bool(c, "classifier_bias", false);
    head->norm_bias = s->norm_bias;
    snprintf(head->act, sizeof head->act, "%s", nrd_json_get_str(c, "classifier_activation", "gelu"));
    head->pooling = strcmp(nrd_json_get_str(c, "classifier_pooling", "cls"), "mean") ? NRD_SPEC_POOL_FIRST : NRD_SPEC_POOL_MEAN;
    return windows(s, c);
}

/* Files name the whole width of a window, as the folders do. */
static nrd_error *gguf_modernbert(nrd_model_spec *s, const nrd_gguf *g)
{
    s->tied_embeddings = s->no_first_norm = true;
    s->norm_bias = nrd_gguf_find_tensor(g, "output_norm.bias") != NULL;
    s->act = NRD_ACT_GELU_ERF;
    s->sliding_window = 128;
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_sliding[i] = i % 3 != 0;
    }
    return nrd_gguf_pooling(s, g, "modern-bert", s->pooling);
}

const nrd_arch nrd_arch_modernbert = {
    "modernbert", "ModernBertModel", {"modernbert"}, {"ModernBertModel", "ModernBertForMaskedLM"}, "modern-bert", {"", "model.", NULL},
    modernbert_rules, gguf_rules, T_ENCODER | T_EMBED_NORM | T_LAYER_NORM | T_NO_NORM_BIAS | T_LOCAL_ROPE | T_TIED, modernbert, gguf_modernbert};
