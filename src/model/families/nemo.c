/* SPDX-License-Identifier: Apache-2.0
 * The GPT models of NeMo's Megatron, which training puts together from settings: norms, positions, activation and biases are keys of
 * the configuration that formats/nemo.c makes. Rows of norms that multiply by 1 + w stand apart. */
#include "model/families/family.h"

#define LAYER "decoder.layers.*."

static const nrd_weight_rule nemo_rules[] = {
    RULE_EMBED("embedding.word_embeddings"),
    RULE_POSITIONS("embedding.position_embeddings", 0),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE("attention.qkv", LAYER "self_attention.linear_qkv", NRD_RULE_GROUPED_QKV),
    RULE("attention.dense", LAYER "self_attention.linear_proj", 0),
    RULE("post_layernorm", LAYER "pre_mlp_layernorm", 0),
    RULE("mlp.fc", LAYER "mlp.linear_fc1", 0),
    RULE("mlp.gate", LAYER "mlp.linear_fc1_up", 0),
    RULE("mlp.proj", LAYER "mlp.linear_fc2", 0),
    RULE("transformer.ln_f", "decoder.final_layernorm", 0),
    RULE("lm_head", "output_layer", 0),
    {0}};

static nrd_error *nemo(nrd_model_spec *s, const nrd_json *c)
{
    s->gated_mlp = nrd_json_get_bool(c, "gated_mlp", false);
    s->dense_bias = s->mlp_bias = nrd_json_get_bool(c, "use_bias", true);
    s->qkv_bias = s->dense_bias || nrd_json_get_bool(c, "qkv_bias", false);
    s->learned_positions = !nrd_json_get_bool(c, "use_rope", false);
    if (nrd_json_get_bool(c, "use_rms_norm", false)) {
        s->norm = NRD_NORM_RMS;
        s->norm_bias = false;
    }
    return NULL;
}

const nrd_arch nrd_arch_nemo_gpt = {
    "nemo_gpt", "NemoGPTForCausalLM", {"nemo_gpt"}, {"MegatronGPTModel"}, NULL, {"", NULL}, nemo_rules, NULL,
    T_LAYER_NORM | T_PLAIN_MLP | T_GELU_TANH | T_TIED, nemo, NULL};

const nrd_arch nrd_arch_nemo_gpt_1p = {
    "nemo_gpt_1p", "NemoGPTForCausalLM", {"nemo_gpt_1p"}, {"MegatronGPTModel"}, NULL, {"", NULL}, nemo_rules, NULL,
    T_LAYER_NORM | T_NORM_PLUS_ONE | T_PLAIN_MLP | T_GELU_TANH | T_TIED, nemo, NULL};
