/* SPDX-License-Identifier: Apache-2.0
 * AFMoE (Trinity): norms before and behind attention and MLP, gated attention, corrected sigmoid scores; layers that see everything have
 * no positions. */
#include "model/families/family.h"
#include "model/needs.h"

#include <math.h>

#define LAYER "model.layers.*."
#define ATTENTION LAYER "self_attn."
#define MLP LAYER "mlp."
#define BLOCK "blk.*."

static const nrd_weight_rule rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE_WEIGHT("input_layernorm", LAYER "input_layernorm"),
    RULE_QKV(ATTENTION "q_proj", ATTENTION "k_proj", ATTENTION "v_proj"),
    RULE_HEAD_NORMS(ATTENTION "q_norm", ATTENTION "k_norm"),
    RULE_WEIGHT("attention.gate", ATTENTION "gate_proj"),
    RULE("attention.dense", ATTENTION "o_proj", 0),
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_attention_layernorm"),
    RULE_WEIGHT("post_layernorm", LAYER "pre_mlp_layernorm"),
    RULE_WEIGHT("mlp.fc", MLP "gate_proj"),
    RULE_WEIGHT("mlp.gate", MLP "up_proj"),
    RULE_WEIGHT("mlp.proj", MLP "down_proj"),
    RULE_WEIGHT("mlp.router", MLP "router.gate"),
    {"mlp." NRD_SCORE_BIAS, {MLP "expert_bias"}, 0},
    RULE_EXPERTS(MLP "experts.#.gate_proj", MLP "experts.#.up_proj", MLP "experts.#.down_proj"),
    RULE_SHARED(MLP "shared_experts.gate_proj", MLP "shared_experts.up_proj", MLP "shared_experts.down_proj"),
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_mlp_layernorm"),
    RULE_WEIGHT("transformer.ln_f", "model.norm"),
    RULE_WEIGHT("lm_head", "lm_head"),
    {0}};

static const nrd_weight_rule gguf_rules[] = {
    RULE_EMBED("token_embd"),
    RULE_WEIGHT("input_layernorm", BLOCK "attn_norm"),
    RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v"),
    RULE_HEAD_NORMS(BLOCK "attn_q_norm", BLOCK "attn_k_norm"),
    RULE_WEIGHT("attention.gate", BLOCK "attn_gate"),
    RULE("attention.dense", BLOCK "attn_output", 0),
    RULE_WEIGHT("post_attention_layernorm", BLOCK "post_attention_norm"),
    RULE_WEIGHT("post_layernorm", BLOCK "ffn_norm"),
    RULE_WEIGHT("mlp.fc", BLOCK "ffn_gate"),
    RULE_WEIGHT("mlp.gate", BLOCK "ffn_up"),
    RULE_WEIGHT("mlp.proj", BLOCK "ffn_down"),
    RULE_WEIGHT("mlp.router", BLOCK "ffn_gate_inp"),
    {"mlp." NRD_SCORE_BIAS, {BLOCK "exp_probs_b.bias"}, 0},
    RULE_EXPERTS(BLOCK "ffn_gate_exps", BLOCK "ffn_up_exps", BLOCK "ffn_down_exps"),
    RULE_SHARED(BLOCK "ffn_gate_shexp", BLOCK "ffn_up_shexp", BLOCK "ffn_down_shexp"),
    RULE_WEIGHT("post_feedforward_layernorm", BLOCK "post_ffw_norm"),
    RULE_WEIGHT("transformer.ln_f", "output_norm"),
    RULE_WEIGHT("lm_head", "output"),
    {0}};

/* Every step-th layer sees everything, where no list says which; those have no positions. */
static void layers(nrd_model_spec *s, int32_t step)
{
    s->attn_gate = true;
    for (int32_t i = 0; i < s->n_layers && step > 0; i++) {
        s->layer_is_sliding[i] = s->sliding_window > 0 && (i + 1) % step != 0;
    }
}

static void positions(nrd_model_spec *s)
{
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_has_no_rope[i] = !s->layer_is_sliding[i];
    }
}

static nrd_error *afmoe(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "layer_types");
    double scale = 1;
    int32_t step = 4, n_shared = 2, n_dense = 1;

    NRD_TRY(nrd_hf_refuse(c, "attention_bias"));
    NRD_TRY(nrd_hf_int(c, "sliding_window", 1024, &s->sliding_window));
    NRD_TRY(nrd_hf_int(c, "global_attn_every_n_layers", 4, &step));
    if (step < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'global_attn_every_n_layers' must be above 0, got %d", step);
    }
    layers(s, step);
    NRD_TRY(types ? nrd_hf_layer_types(s, types) : NULL);
    positions(s);
    if (nrd_json_get_bool(c, "mup_enabled", false)) {
        s->embed_scale = (float)sqrt((double)s->hidden);
    }
    NRD_TRY(nrd_hf_int(c, "num_shared_experts", 2, &n_shared));
    NRD_TRY(nrd_hf_int(c, "num_dense_layers", 1, &n_dense));
    NRD_TRY(nrd_hf_corrected(s, c, n_dense));
    s->moe.shared_inter = nrd_family_small(n_shared * (int64_t)s->moe.inter);
    NRD_TRY(nrd_hf_scale(c, "route_scale", &scale));
    s->moe.scale = (float)scale;
    s->moe.normalize = true;
    return NULL;
}

/* Files do not say that embeddings are scaled: those of all published models are. */
static nrd_error *gguf_afmoe(nrd_model_spec *s, const nrd_gguf *g)
{
    s->sliding_window = nrd_family_small(nrd_gguf_key(g, "afmoe", "attention.sliding_window", 0));
    NRD_TRY(nrd_gguf_corrected(s, g, "afmoe"));
    layers(s, 4);
    positions(s);
    s->embed_scale = (float)sqrt((double)s->hidden);
    return NULL;
}

const nrd_arch nrd_arch_afmoe = {
    "afmoe", "AfmoeForCausalLM", {"afmoe"}, {"AfmoeForCausalLM"}, "afmoe", MODEL_PREFIXES, rules, gguf_rules,
    T_EXPERTS | T_QK_NORM | T_POST_NORMS, afmoe, gguf_afmoe};
