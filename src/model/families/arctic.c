/* SPDX-License-Identifier: Apache-2.0
 * Snowflake Arctic: a Llama with an MLP as wide as the state, and experts that read what attention reads, behind a norm of their own. */
#include "model/families/family.h"
#include "model/needs.h"

#define LAYER "model.layers.*."
#define EXPERT LAYER "block_sparse_moe.experts.#."
#define BLOCK "blk.*."

static const nrd_weight_rule rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE_WEIGHT("input_layernorm", LAYER "input_layernorm"),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE_WEIGHT("attention.dense", LAYER "self_attn.o_proj"),
    RULE_WEIGHT("post_layernorm", LAYER "residual_layernorm"),
    RULE_WEIGHT("mlp.fc", LAYER "residual_mlp.w1"),
    RULE_WEIGHT("mlp.gate", LAYER "residual_mlp.w3"),
    RULE_WEIGHT("mlp.proj", LAYER "residual_mlp.w2"),
    RULE_WEIGHT("mlp.experts_norm", LAYER "post_attention_layernorm"),
    RULE_WEIGHT("mlp.router", LAYER "block_sparse_moe.gate"),
    RULE_EXPERTS(EXPERT "w1", EXPERT "w3", EXPERT "w2"),
    RULE_WEIGHT("transformer.ln_f", "model.norm"),
    RULE_WEIGHT("lm_head", "lm_head"),
    {0}};

static const nrd_weight_rule gguf_rules[] = {
    RULE_EMBED("token_embd"),
    RULE_WEIGHT("input_layernorm", BLOCK "attn_norm"),
    RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v"),
    RULE_WEIGHT("attention.dense", BLOCK "attn_output"),
    RULE_WEIGHT("post_layernorm", BLOCK "ffn_norm"),
    RULE_WEIGHT("mlp.fc", BLOCK "ffn_gate"),
    RULE_WEIGHT("mlp.gate", BLOCK "ffn_up"),
    RULE_WEIGHT("mlp.proj", BLOCK "ffn_down"),
    RULE_WEIGHT("mlp.experts_norm", BLOCK "ffn_norm_exps"),
    RULE_WEIGHT("mlp.router", BLOCK "ffn_gate_inp"),
    RULE_EXPERTS(BLOCK "ffn_gate_exps", BLOCK "ffn_up_exps", BLOCK "ffn_down_exps"),
    RULE_WEIGHT("transformer.ln_f", "output_norm"),
    RULE_WEIGHT("lm_head", "output"),
    {0}};

/* intermediate_size is that of an expert. */
static void settle(nrd_model_spec *s)
{
    s->moe.normalize = s->moe.beside_mlp = s->moe.before_attention = true;
    s->inter = s->hidden;
}

static nrd_error *arctic(nrd_model_spec *s, const nrd_json *c)
{
    int32_t step = 2;

    NRD_TRY(nrd_hf_int(c, "moe_layer_frequency", 2, &step));
    if (step != 1 || !nrd_json_get_bool(c, "parallel_attn_mlp_res", false)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'moe_layer_frequency' must be 1 and 'parallel_attn_mlp_res' true, as in the published "
                          "models; got %d and %s", step, nrd_json_get_bool(c, "parallel_attn_mlp_res", false) ? "true" : "false");
    }
    s->norm_eps = (float)nrd_json_get_num(c, "rms_norm_eps", 1e-5);
    NRD_TRY(nrd_hf_experts(s, c));
    settle(s);
    return NULL;
}

static nrd_error *gguf_arctic(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_gguf_experts(s, g, "arctic");
    settle(s);
    return NULL;
}

const nrd_arch nrd_arch_arctic = {
    "arctic", "ArcticForCausalLM", {"arctic"}, {"ArcticForCausalLM"}, "arctic", MODEL_PREFIXES, rules, gguf_rules,
    T_EXPERTS | T_GGUF_INTERLEAVED | T_WINDOW_ALL, arctic, gguf_arctic};
