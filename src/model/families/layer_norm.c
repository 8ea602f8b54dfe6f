/* SPDX-License-Identifier: Apache-2.0
 * Families with layer norms instead of RMS norms and rotary positions: Cohere, Nemotron, StableLM,
 * StarCoder 2. And InternLM 2, a Llama under other names. */
#include "model/families/family.h"

#define LAYER "model.layers.*."

/* ---- Cohere: attention and MLP side by side behind one norm without bias, scaled logits ---- */

static nrd_error *cohere(nrd_model_spec *s, const nrd_json *c)
{
    double scale = 0.0625;
    NRD_TRY(nrd_hf_refuse(c, "use_qk_norm"));
    NRD_TRY(nrd_hf_scale(c, "logit_scale", &scale));
    s->logits_scale = (float)scale;
    return NULL;
}

static nrd_error *gguf_scale(nrd_model_spec *s, double scale)
{
    if (!(scale > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "logit_scale must be above 0, got %g", scale);
    }
    s->logits_scale = (float)scale;
    return NULL;
}

static nrd_error *gguf_cohere(nrd_model_spec *s, const nrd_gguf *g)
{
    if (nrd_gguf_find_tensor(g, "blk.0.attn_q_norm.weight")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "norms of q and k (attn_q_norm) are not supported in command-r models");
    }
    return gguf_scale(s, nrd_gguf_num(g, "command-r.logit_scale", 0.0625));
}

#define COHERE (T_LAYER_NORM | T_NO_NORM_BIAS | T_PARALLEL | T_SHARED_NORM | T_ROPE_INTERLEAVED | T_TIED)

const nrd_arch nrd_arch_cohere = {
    "cohere", "CohereForCausalLM", {"cohere"}, {"CohereForCausalLM"}, "command-r", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, COHERE, cohere, gguf_cohere};

const nrd_arch nrd_arch_cohere2 = {
    "cohere2", "Cohere2ForCausalLM", {"cohere2"}, {"Cohere2ForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, COHERE | T_WINDOW_PATTERN | T_WINDOW_4 | T_NOPE_GLOBAL, cohere, NULL};

/* ---- a plain MLP: Nemotron (ReLU squared, norms that multiply by 1 + w), StarCoder 2 ---- */

#define PLAIN(up, down)                                                                            \
    RULE_EMBED("model.embed_tokens"), RULE("input_layernorm", LAYER "input_layernorm", 0),         \
        RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),    \
        RULE("attention.dense", LAYER "self_attn.o_proj", 0),                                      \
        RULE("post_layernorm", LAYER "post_attention_layernorm", 0),                               \
        RULE("mlp.fc", LAYER "mlp." up, 0), RULE("mlp.proj", LAYER "mlp." down, 0),                \
        RULE("transformer.ln_f", "model.norm", 0), RULE("lm_head", "lm_head", 0)

static const nrd_weight_rule nemotron_rules[] = {PLAIN("up_proj", "down_proj"), {0}};
static const nrd_weight_rule starcoder2_rules[] = {PLAIN("c_fc", "c_proj"), {0}};

static nrd_error *nemotron(nrd_model_spec *s, const nrd_json *c)
{
    s->act = nrd_hf_get(c, "hidden_act") ? s->act : NRD_ACT_RELU2;
    if (!nrd_hf_get(c, "partial_rotary_factor|rope_percent") &&
        !nrd_hf_get(nrd_json_get(c, "rope_parameters"), "partial_rotary_factor")) {
        s->rope.rotary_dim = s->head_dim / 2;
    }
    return NULL;
}

static nrd_error *gguf_nemotron(nrd_model_spec *s, const nrd_gguf *g)
{
    (void)g;
    s->act = NRD_ACT_RELU2;
    return NULL;
}

const nrd_arch nrd_arch_nemotron = {
    "nemotron", "NemotronForCausalLM", {"nemotron"}, {"NemotronForCausalLM"}, "nemotron", MODEL_PREFIXES,
    nemotron_rules, nrd_gguf_plain_rules, T_LAYER_NORM | T_NORM_PLUS_ONE | T_PLAIN_MLP, nemotron, gguf_nemotron};

static nrd_error *starcoder2(nrd_model_spec *s, const nrd_json *c)
{
    s->qkv_bias = s->dense_bias = s->mlp_bias = nrd_json_get_bool(c, "use_bias", true);
    return NULL;
}

const nrd_arch nrd_arch_starcoder2 = {
    "starcoder2", "Starcoder2ForCausalLM", {"starcoder2"}, {"Starcoder2ForCausalLM"}, "starcoder2", MODEL_PREFIXES,
    starcoder2_rules, nrd_gguf_plain_rules,
    T_LAYER_NORM | T_PLAIN_MLP | T_GELU_TANH | T_ALL_BIASES | T_TIED | T_WINDOW_ALL, starcoder2, NULL};

/* ---- StableLM: a quarter of each head turns ---- */

static nrd_error *stablelm(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_refuse(c, "qk_layernorm"));
    s->qkv_bias = nrd_json_get_bool(c, "use_qkv_bias", false);
    s->parallel = s->shared_norm = nrd_json_get_bool(c, "use_parallel_residual", false);
    if (!nrd_hf_get(c, "partial_rotary_factor|rope_pct") &&
        !nrd_hf_get(nrd_json_get(c, "rope_parameters"), "partial_rotary_factor")) {
        s->rope.rotary_dim = s->head_dim / 4;
    }
    return NULL;
}

static nrd_error *gguf_stablelm(nrd_model_spec *s, const nrd_gguf *g)
{
    if (nrd_gguf_find_tensor(g, "blk.0.attn_q_norm.weight")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "norms of q and k (attn_q_norm) are not supported in stablelm models");
    }
    s->parallel = s->shared_norm = !nrd_gguf_find_tensor(g, "blk.0.ffn_norm.weight");
    return NULL;
}

const nrd_arch nrd_arch_stablelm = {
    "stablelm", "StableLmForCausalLM", {"stablelm", "stablelm_epoch"}, {"StableLmForCausalLM"}, "stablelm",
    MODEL_PREFIXES, nrd_hf_llama_rules, nrd_gguf_rules, T_LAYER_NORM, stablelm, gguf_stablelm};

/* ---- InternLM 2: q, k and v of each KV head together ---- */

static const nrd_weight_rule internlm2_rules[] = {
    RULE_EMBED("model.tok_embeddings"),
    RULE("input_layernorm", LAYER "attention_norm", 0),
    RULE("attention.qkv", LAYER "attention.wqkv", NRD_RULE_GROUPED_QKV),
    RULE("attention.dense", LAYER "attention.wo", 0),
    RULE("post_layernorm", LAYER "ffn_norm", 0),
    RULE("mlp.fc", LAYER "feed_forward.w1", 0),
    RULE("mlp.gate", LAYER "feed_forward.w3", 0),
    RULE("mlp.proj", LAYER "feed_forward.w2", 0),
    RULE("transformer.ln_f", "model.norm", 0),
    RULE("lm_head", "output", 0),
    {0}};

static nrd_error *internlm2(nrd_model_spec *s, const nrd_json *c)
{
    s->qkv_bias = s->dense_bias = nrd_json_get_bool(c, "bias", false);
    return NULL;
}

const nrd_arch nrd_arch_internlm2 = {
    "internlm2", "InternLM2ForCausalLM", {"internlm2"}, {"InternLM2ForCausalLM"}, "internlm2", MODEL_PREFIXES,
    internlm2_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED, internlm2, NULL};
