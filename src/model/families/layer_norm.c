/* SPDX-License-Identifier: Apache-2.0
 * Families with layer norms instead of RMS norms and rotary positions: Cohere, Nemotron, StableLM,
 * StarCoder 2, Persimmon. And InternLM 2, a Llama under other names. */
#include "model/families/family.h"

#include <stdio.h>

#define LAYER "model.layers.*."

/* Layer norms of each head of q and k, with weights of its own. */
static void norms_of_heads(nrd_model_spec *s)
{
    s->qk_norm = s->qk_norm_apart = s->qk_norm_center = true;
}

/* ---- Cohere: attention and MLP side by side behind one norm without bias, scaled logits ---- */

static nrd_error *cohere(nrd_model_spec *s, const nrd_json *c)
{
    double scale = 0.0625;
    if (nrd_json_get_bool(c, "use_qk_norm", false)) { /* Command R+ */
        norms_of_heads(s);
    }
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
        norms_of_heads(s);
    }
    return gguf_scale(s, nrd_gguf_num(g, "command-r.logit_scale", 0.0625));
}

static nrd_error *gguf_cohere2(nrd_model_spec *s, const nrd_gguf *g)
{
    return gguf_scale(s, nrd_gguf_num(g, "cohere2.logit_scale", 0.25));
}

#define COHERE (T_LAYER_NORM | T_NO_NORM_BIAS | T_PARALLEL | T_SHARED_NORM | T_ROPE_INTERLEAVED | T_TIED)

const nrd_arch nrd_arch_cohere = {
    "cohere", "CohereForCausalLM", {"cohere"}, {"CohereForCausalLM"}, "command-r", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, COHERE, cohere, gguf_cohere};

const nrd_arch nrd_arch_cohere2 = {
    "cohere2", "Cohere2ForCausalLM", {"cohere2"}, {"Cohere2ForCausalLM"}, "cohere2", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, COHERE | T_WINDOW_PATTERN | T_WINDOW_4 | T_NOPE_GLOBAL, cohere, gguf_cohere2};

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

/* The part of a head that turns where nothing says it. */
static void turning_part(nrd_model_spec *s, const nrd_json *c, int32_t numbers)
{
    if (!nrd_hf_get(c, "partial_rotary_factor|rope_percent|rope_pct") &&
        !nrd_hf_get(nrd_json_get(c, "rope_parameters"), "partial_rotary_factor")) {
        s->rope.rotary_dim = numbers;
    }
}

static nrd_error *nemotron(nrd_model_spec *s, const nrd_json *c)
{
    s->act = nrd_hf_get(c, "hidden_act") ? s->act : NRD_ACT_RELU2;
    turning_part(s, c, s->head_dim / 2);
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

/* Jais 2: the same without the 1, and with biases. */
static nrd_error *jais2(nrd_model_spec *s, const nrd_json *c)
{
    s->act = nrd_hf_get(c, "hidden_act") ? s->act : NRD_ACT_RELU2;
    s->qkv_bias = s->dense_bias = nrd_json_get_bool(c, "attention_bias", true);
    return NULL;
}

const nrd_arch nrd_arch_jais2 = {
    "jais2", "Jais2ForCausalLM", {"jais2"}, {"Jais2ForCausalLM"}, NULL, MODEL_PREFIXES,
    nemotron_rules, nrd_gguf_plain_rules, T_LAYER_NORM | T_PLAIN_MLP | T_ALL_BIASES, jais2, NULL};

static nrd_error *starcoder2(nrd_model_spec *s, const nrd_json *c)
{
    s->qkv_bias = s->dense_bias = s->mlp_bias = nrd_json_get_bool(c, "use_bias", true);
    return NULL;
}

const nrd_arch nrd_arch_starcoder2 = {
    "starcoder2", "Starcoder2ForCausalLM", {"starcoder2"}, {"Starcoder2ForCausalLM"}, "starcoder2", MODEL_PREFIXES,
    starcoder2_rules, nrd_gguf_plain_rules,
    T_LAYER_NORM | T_PLAIN_MLP | T_GELU_TANH | T_ALL_BIASES | T_TIED | T_WINDOW_ALL, starcoder2, NULL};

/* ---- Persimmon: the same with q, k and v of each head together, and norms with biases of each head of q and k ---- */

static const nrd_weight_rule persimmon_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE("attention.qkv", LAYER "self_attn.query_key_value", NRD_RULE_GROUPED_QKV),
    RULE("attention.q_layernorm", LAYER "self_attn.q_layernorm", 0),
    RULE("attention.k_layernorm", LAYER "self_attn.k_layernorm", 0),
    RULE("attention.dense", LAYER "self_attn.dense", 0),
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    RULE("mlp.fc", LAYER "mlp.dense_h_to_4h", 0),
    RULE("mlp.proj", LAYER "mlp.dense_4h_to_h", 0),
    RULE("transformer.ln_f", "model.final_layernorm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *persimmon(nrd_model_spec *s, const nrd_json *c)
{
    s->qk_norm = s->qk_norm_center = s->qk_norm_bias = nrd_json_get_bool(c, "qk_layernorm", true);
    s->n_kv_heads = s->n_heads;
    s->act = nrd_hf_get(c, "hidden_act") ? s->act : NRD_ACT_RELU2;
    turning_part(s, c, s->head_dim / 2);
    return NULL;
}

const nrd_arch nrd_arch_persimmon = {
    "persimmon", "PersimmonForCausalLM", {"persimmon", "fuyu"}, {"PersimmonForCausalLM", "FuyuForCausalLM"}, NULL, MODEL_PREFIXES,
    persimmon_rules, NULL, T_LAYER_NORM | T_PLAIN_MLP | T_ALL_BIASES, persimmon, NULL};

/* ---- StableLM: a quarter of each head turns ---- */

static nrd_error *stablelm(nrd_model_spec *s, const nrd_json *c)
{
    if (nrd_json_get_bool(c, "qk_layernorm", false)) { /* StableLM 2 12B */
        norms_of_heads(s);
    }
    s->qkv_bias = nrd_json_get_bool(c, "use_qkv_bias", false);
    s->parallel = s->shared_norm = nrd_json_get_bool(c, "use_parallel_residual", false);
    turning_part(s, c, s->head_dim / 4);
    return NULL;
}

static nrd_error *gguf_stablelm(nrd_model_spec *s, const nrd_gguf *g)
{
    if (nrd_gguf_find_tensor(g, "blk.0.attn_q_norm.weight")) {
        norms_of_heads(s);
    }
    s->parallel = s->shared_norm = !nrd_gguf_find_tensor(g, "blk.0.ffn_norm.weight");
    return NULL;
}

static const nrd_weight_rule stablelm_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE_HEAD_NORMS(LAYER "self_attn.q_layernorm.norms.#", LAYER "self_attn.k_layernorm.norms.#"),
    RULE("attention.dense", LAYER "self_attn.o_proj", 0),
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    RULE("mlp.fc", LAYER "mlp.gate_proj", 0),
    RULE("mlp.gate", LAYER "mlp.up_proj", 0),
    RULE("mlp.proj", LAYER "mlp.down_proj", 0),
    RULE("transformer.ln_f", "model.norm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

const nrd_arch nrd_arch_stablelm = {
    "stablelm", "StableLmForCausalLM", {"stablelm", "stablelm_epoch"}, {"StableLmForCausalLM"}, "stablelm",
    MODEL_PREFIXES, stablelm_rules, nrd_gguf_rules, T_LAYER_NORM, stablelm, gguf_stablelm};

/* ---- OLMo 1: layer norms without weights, bounds of q, k and v ---- */

static const nrd_weight_rule olmo_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE_ONES("input_layernorm"),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE("attention.dense", LAYER "self_attn.o_proj", 0),
    RULE_ONES("post_layernorm"),
    RULE("mlp.fc", LAYER "mlp.gate_proj", 0),
    RULE("mlp.gate", LAYER "mlp.up_proj", 0),
    RULE("mlp.proj", LAYER "mlp.down_proj", 0),
    RULE_ONES("transformer.ln_f"),
    RULE("lm_head", "lm_head", 0),
    {0}};

static const nrd_weight_rule gguf_olmo_rules[] = {
    RULE_EMBED("token_embd"),
    RULE_ONES("input_layernorm"),
    RULE_QKV("blk.*.attn_q", "blk.*.attn_k", "blk.*.attn_v"),
    RULE("attention.dense", "blk.*.attn_output", 0),
    RULE_ONES("post_layernorm"),
    RULE("mlp.fc", "blk.*.ffn_gate", 0),
    RULE("mlp.gate", "blk.*.ffn_up", 0),
    RULE("mlp.proj", "blk.*.ffn_down", 0),
    RULE_ONES("transformer.ln_f"),
    RULE("lm_head", "output", 0),
    {0}};

nrd_error *nrd_hf_clip_qkv(nrd_model_spec *s, const nrd_json *c)
{
    double clip = 0;

    if (nrd_hf_get(c, "clip_qkv")) {
        NRD_TRY(nrd_hf_scale(c, "clip_qkv", &clip));
    }
    s->clip_qkv = (float)clip;
    return NULL;
}

nrd_error *nrd_gguf_clip_qkv(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    char key[80];

    snprintf(key, sizeof key, "%s.attention.clamp_kqv", arch);
    s->clip_qkv = (float)nrd_gguf_num(g, key, 0);
    return NULL;
}

static nrd_error *olmo(nrd_model_spec *s, const nrd_json *c)
{
    s->norm_eps = 1e-5f;
    return nrd_hf_clip_qkv(s, c);
}

static nrd_error *gguf_olmo(nrd_model_spec *s, const nrd_gguf *g)
{
    return nrd_gguf_clip_qkv(s, g, "olmo");
}

const nrd_arch nrd_arch_olmo = {
    "olmo", "OlmoForCausalLM", {"olmo"}, {"OlmoForCausalLM"}, "olmo", MODEL_PREFIXES,
    olmo_rules, gguf_olmo_rules, T_LAYER_NORM | T_NO_NORM_BIAS | T_GGUF_INTERLEAVED, olmo, gguf_olmo};

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
