/* SPDX-License-Identifier: Apache-2.0
 * GPT-2: learned positions, layer norms, matrices stored [in, out]. */
#include "model/families/family.h"

#define LAYER "h.*."

static const nrd_weight_rule rules[] = {
    RULE_EMBED("wte"),
    RULE_POSITIONS("wpe", 0),
    RULE("input_layernorm", LAYER "ln_1", 0),
    RULE_TURNED("attention.qkv", LAYER "attn.c_attn"),
    RULE_TURNED("attention.dense", LAYER "attn.c_proj"),
    RULE("post_layernorm", LAYER "ln_2", 0),
    RULE_TURNED("mlp.fc", LAYER "mlp.c_fc"),
    RULE_TURNED("mlp.proj", LAYER "mlp.c_proj"),
    RULE("transformer.ln_f", "ln_f", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

const nrd_arch nrd_arch_gpt2 = {
    "gpt2", "GPTForCausalLM", {"gpt2"}, {"GPT2LMHeadModel"}, "gpt2", {"transformer.", "", NULL},
    rules, nrd_gguf_stacked_rules,
    T_LAYER_NORM | T_LEARNED_POSITIONS | T_PLAIN_MLP | T_GELU_TANH | T_ALL_BIASES | T_TIED |
        T_TRTLLM,
    NULL, NULL};
