/* SPDX-License-Identifier: Apache-2.0
 * Grok-1: norms before and behind attention and experts, scores and embeddings with scales of their own. */
#include "model/families/family.h"
#include "model/needs.h"

#define LAYER "model.layers.*."
#define EXPERT LAYER "moe_block.experts.#."
#define BLOCK "blk.*."
#define RULE_NORM(dst, src) {dst ".weight", {src ".scale|" src ".weight"}, 0}

static const nrd_weight_rule rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE_NORM("input_layernorm", LAYER "pre_attn_norm"),
    RULE_QKV(LAYER "attn.q_proj", LAYER "attn.k_proj", LAYER "attn.v_proj"),
    RULE_WEIGHT("attention.dense", LAYER "attn.o_proj"),
    RULE_NORM("post_attention_layernorm", LAYER "post_attn_norm"),
    RULE_NORM("post_layernorm", LAYER "pre_moe_norm"),
    RULE_WEIGHT("mlp.router", LAYER "moe_block.gate"),
    RULE_EXPERTS(EXPERT "linear", EXPERT "linear_v", EXPERT "linear_1"),
    RULE_NORM("post_feedforward_layernorm", LAYER "post_moe_norm"),
    RULE_NORM("transformer.ln_f", "model.norm"),
    RULE_WEIGHT("lm_head", "lm_head"),
    {0}};

static const nrd_weight_rule gguf_rules[] = {
    RULE_EMBED("token_embd"),
    RULE_WEIGHT("input_layernorm", BLOCK "attn_norm"),
    RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v"),
    RULE_WEIGHT("attention.dense", BLOCK "attn_output"),
    RULE_WEIGHT("post_attention_layernorm", BLOCK "attn_output_norm"),
    RULE_WEIGHT("post_layernorm", BLOCK "ffn_norm"),
    RULE_WEIGHT("mlp.router", BLOCK "ffn_gate_inp"),
    RULE_EXPERTS(BLOCK "ffn_gate_exps", BLOCK "ffn_up_exps", BLOCK "ffn_down_exps"),
    {"post_feedforward_layernorm.weight", {BLOCK "layer_output_norm.weight|" BLOCK "post_ffw_norm.weight"}, 0},
    RULE_WEIGHT("transformer.ln_f", "output_norm"),
    RULE_WEIGHT("lm_head", "output"),
    {0}};

/* The published numbers, where a file leaves them out: sqrt(hidden), 1 / sqrt(3), 1 / sqrt(head_dim), 30. */
typedef struct grok_scales {
    double embedding, output, attention, softcap;
} grok_scales;

static const grok_scales published = {78.38367176906169, 0.5773502691896257, 0.08838834764831845, 30};

/* The norm behind the experts makes it the same whether the weights of the chosen add up to 1: they do not in xAI's code. */
static nrd_error *settle(nrd_model_spec *s, const grok_scales *g)
{
    s->act = NRD_ACT_GELU_TANH; /* as xAI's code, whatever name files give it */
    s->attn_softcap = (float)g->softcap;
    return nrd_family_scales(s, g->embedding, 1, g->attention, 1 / g->output);
}

static nrd_error *grok(nrd_model_spec *s, const nrd_json *c)
{
    grok_scales g = published;

    NRD_TRY(nrd_hf_refuse(c, "residual_moe")); /* Grok-2 */
    NRD_TRY(nrd_hf_experts(s, c));
    NRD_TRY(nrd_hf_scale(c, "embedding_multiplier_scale", &g.embedding));
    NRD_TRY(nrd_hf_scale(c, "output_multiplier_scale", &g.output));
    NRD_TRY(nrd_hf_scale(c, "attn_output_multiplier", &g.attention));
    NRD_TRY(nrd_hf_scale(c, "max_attn_value", &g.softcap));
    s->norm_eps = (float)nrd_json_get_num(c, "rms_norm_eps", 1e-5);
    return settle(s, &g);
}

static nrd_error *gguf_grok(nrd_model_spec *s, const nrd_gguf *file)
{
    const grok_scales g = {
        nrd_gguf_num(file, "grok.embedding_scale", published.embedding),
        nrd_gguf_num(file, "grok.logit_scale", published.output),
        nrd_gguf_num(file, "grok.attention.output_scale", published.attention),
        nrd_gguf_num(file, "grok.attn_logit_softcapping", published.softcap),
    };

    if (nrd_gguf_find_tensor(file, "blk.0.ffn_up.weight")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "this file has an MLP beside the experts ('blk.0.ffn_up.weight'), as Grok-2 has: of this "
                          "family Grok-1 is supported");
    }
    if (!(g.output > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'grok.logit_scale' must be above 0, got %g", g.output);
    }
    s->logits_softcap = (float)nrd_gguf_num(file, "grok.final_logit_softcapping", 0);
    nrd_gguf_experts(s, file, "grok");
    return settle(s, &g);
}

const nrd_arch nrd_arch_grok = {
    "grok-1", "GrokForCausalLM", {"grok-1"}, {"Grok1ModelForCausalLM", "Grok1ForCausalLM"}, "grok", MODEL_PREFIXES, rules, gguf_rules,
    T_EXPERTS | T_POST_NORMS | T_TIED, grok, gguf_grok};
