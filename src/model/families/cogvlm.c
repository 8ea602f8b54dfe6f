/* SPDX-License-Identifier: Apache-2.0
 * CogVLM (Wang et al., 2023) and CogVLM2 (Hong et al., 2024): Llamas in which a picture's embeddings take weights of their own, and all
 * stand at one place. */
#include "model/families/family.h"
#include "model/needs.h"

#define LAYER "model.layers.*."

static const nrd_weight_rule rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE("attention.qkv", LAYER "self_attn.language_expert_query_key_value", 0),
    RULE("attention.dense", LAYER "self_attn.language_expert_dense", 0),
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    RULE("mlp.fc", LAYER "mlp.language_mlp.gate_proj", 0),
    RULE("mlp.gate", LAYER "mlp.language_mlp.up_proj", 0),
    RULE("mlp.proj", LAYER "mlp.language_mlp.down_proj", 0),
    RULE_WEIGHT(NRD_OF_PICTURE "qkv", LAYER "self_attn.vision_expert_query_key_value"),
    {NRD_OF_PICTURE "qkv.bias", {LAYER "self_attn.vision_expert_query_key_value.bias"}, NRD_RULE_IF_THERE},
    RULE_WEIGHT(NRD_OF_PICTURE "dense", LAYER "self_attn.vision_expert_dense"),
    RULE_WEIGHT(NRD_OF_PICTURE "fc", LAYER "mlp.vision_mlp.gate_proj"),
    RULE_WEIGHT(NRD_OF_PICTURE "gate", LAYER "mlp.vision_mlp.up_proj"),
    RULE_WEIGHT(NRD_OF_PICTURE "proj", LAYER "mlp.vision_mlp.down_proj"),
    RULE("transformer.ln_f", "model.norm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *cogvlm(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *v = nrd_json_get(c, "vision_config");
    const bool second = nrd_hf_get(c, "num_multi_query_heads") != NULL;
    int32_t size = 0, patch = 0;

    NRD_TRY(nrd_hf_int(c, "num_multi_query_heads", s->n_kv_heads, &s->n_kv_heads));
    NRD_TRY(nrd_hf_int(v, "image_size", 490, &size));
    NRD_TRY(nrd_hf_int(v, "patch_size", 14, &patch));
    const int32_t square = second ? 2 : 1, side = patch > 0 ? size / patch / square : 0; /* the tower checks both */
    if (side < 1 || side > 1 << 12) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'image_size' is %d and 'patch_size' %d, expected at least %d patches on a side",
                          size, patch, square);
    }
    s->picture_rows = side * side + 2;
    s->rope.base = second ? 5e5 : 1e4;
    s->rope.sections[0] = s->head_dim / 2; /* one axis: places of a picture are told for each token */
    return NULL;
}

/* No GGUF: llama.cpp has the tower, and a decoder without the picture's weights. */
const nrd_arch nrd_arch_cogvlm = {
    "cogvlm", "CogVLMForCausalLM", {"cogvlm"}, {"CogVLMForCausalLM"}, NULL, {"", NULL}, rules, NULL, 0, cogvlm, NULL};
