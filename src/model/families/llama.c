/* SPDX-License-Identifier: Apache-2.0
 * Llama and the families that are a Llama with other flags. */
#include "model/families/family.h"

#include <stdio.h>

#define LAYER "model.layers.*."

#define ATTENTION                                                                                  \
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),        \
        RULE_HEAD_NORMS(LAYER "self_attn.q_norm", LAYER "self_attn.k_norm"),                       \
        RULE("attention.dense", LAYER "self_attn.o_proj", 0)
#define MLP                                                                                        \
    RULE("mlp.fc", LAYER "mlp.gate_proj", 0), RULE("mlp.gate", LAYER "mlp.up_proj", 0),            \
        RULE("mlp.proj", LAYER "mlp.down_proj", 0)
#define ENDS RULE("transformer.ln_f", "model.norm", 0), RULE("lm_head", "lm_head", 0)

const nrd_weight_rule nrd_hf_score_rules[] = {RULE_CLASSIFIER("out", "score"), {0}};

const nrd_weight_rule nrd_hf_llama_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    ATTENTION,
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    MLP,
    ENDS,
    {0}};

const nrd_weight_rule nrd_hf_sandwich_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    ATTENTION,
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_attention_layernorm"),
    RULE("post_layernorm", LAYER "pre_feedforward_layernorm", 0),
    MLP,
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_feedforward_layernorm"),
    ENDS,
    {0}};

const nrd_arch nrd_arch_llama = {
    "llama", "LlamaForCausalLM", {"llama"}, {"LlamaForCausalLM"}, "llama", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED | T_TRTLLM, NULL, NULL};

/* Ministral 3 scales queries by their position, which nothing here computes. */
static nrd_error *mistral(nrd_model_spec *s, const nrd_json *c)
{
    (void)s;
    return nrd_hf_refuse(nrd_json_get(c, "rope_parameters"), "llama_4_scaling_beta");
}

const nrd_arch nrd_arch_mistral = {
    "mistral", "MistralForCausalLM", {"mistral", "mistral3"}, {"MistralForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED | T_WINDOW_ALL | T_TRTLLM, mistral, NULL};

/* Some layers slide: layer_types says which. */
const nrd_arch nrd_arch_ministral = {
    "ministral", "MinistralForCausalLM", {"ministral"}, {"MinistralForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED | T_WINDOW_ALL, NULL, NULL};

const nrd_arch nrd_arch_qwen2 = {
    "qwen2", "Qwen2ForCausalLM", {"qwen2"}, {"Qwen2ForCausalLM"}, "qwen2", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_QKV_BIAS | T_WINDOW_OPT_IN | T_TRTLLM, NULL, NULL};

static nrd_error *qwen3(nrd_model_spec *s, const nrd_json *c)
{
    return nrd_hf_int(c, "head_dim", 128, &s->head_dim);
}

const nrd_arch nrd_arch_qwen3 = {
    "qwen3", "Qwen3ForCausalLM", {"qwen3"}, {"Qwen3ForCausalLM"}, "qwen3", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_QK_NORM | T_WINDOW_OPT_IN | T_TRTLLM, qwen3, NULL};

/* A 0 in no_rope_layers marks a layer without positions; where there is no list, every interval-th is one. */
static nrd_error *no_rope_layers(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *list = nrd_hf_get(c, "no_rope_layers");
    int32_t interval = 4;

    NRD_TRY(nrd_hf_int(c, "no_rope_layer_interval", 4, &interval));
    if (list && nrd_json_len(list) != (size_t)s->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'no_rope_layers' has %zu entries, expected one for each of %d layers",
                          nrd_json_len(list), s->n_layers);
    }
    if (interval < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'no_rope_layer_interval' must be above 0, got %d", interval);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_has_no_rope[i] = list ? nrd_json_int(nrd_json_at(list, (size_t)i), 1) == 0
                                       : (i + 1) % interval == 0;
    }
    return NULL;
}

static nrd_error *gguf_smollm3(nrd_model_spec *s, const nrd_gguf *g)
{
    (void)g; /* the file does not say it: every fourth */
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_has_no_rope[i] = (i + 1) % 4 == 0;
    }
    return NULL;
}

const nrd_arch nrd_arch_smollm3 = {
    "smollm3", "SmolLM3ForCausalLM", {"smollm3"}, {"SmolLM3ForCausalLM"}, "smollm3", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED | T_WINDOW_OPT_IN | T_TIED, no_rope_layers, gguf_smollm3};

/* ---- Granite: four scales ---- */

static nrd_error *granite_scales(nrd_model_spec *s, double embedding, double residual, double attention,
                                 double logits)
{
    if (!(embedding > 0) || !(residual > 0) || !(attention >= 0) || !(logits > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "embedding, residual and logits scales must be above 0, got %g, %g "
                          "and %g", embedding, residual, logits);
    }
    s->embed_scale = (float)embedding;
    s->attn_scale = (float)attention;
    s->logits_scale = (float)(1 / logits);
    nrd_family_scale_residual(s, residual);
    return NULL;
}

nrd_error *nrd_hf_granite(nrd_model_spec *s, const nrd_json *c)
{
    double embedding = 1, residual = 1, attention = 1, logits = 1;
    NRD_TRY(nrd_hf_scale(c, "embedding_multiplier", &embedding));
    NRD_TRY(nrd_hf_scale(c, "residual_multiplier", &residual));
    NRD_TRY(nrd_hf_scale(c, "attention_multiplier", &attention));
    NRD_TRY(nrd_hf_scale(c, "logits_scaling", &logits));
    return granite_scales(s, embedding, residual, attention, logits);
}

nrd_error *nrd_gguf_granite(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    static const char *const names[] = {"embedding_scale", "residual_scale", "attention.scale", "logit_scale"};
    double v[4];
    char key[80];

    for (int i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, names[i]);
        v[i] = nrd_gguf_num(g, key, i == 2 ? 0 : 1);
    }
    return granite_scales(s, v[0], v[1], v[2], v[3]);
}

static nrd_error *gguf_granite(nrd_model_spec *s, const nrd_gguf *g)
{
    return nrd_gguf_granite(s, g, "granite");
}

const nrd_arch nrd_arch_granite = {
    "granite", "GraniteForCausalLM", {"granite"}, {"GraniteForCausalLM"}, "granite", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED, nrd_hf_granite, gguf_granite};

/* ---- biases of their own ---- */

static nrd_error *seed_oss(nrd_model_spec *s, const nrd_json *c)
{
    s->qkv_bias = nrd_json_get_bool(c, "attention_bias", true);
    s->dense_bias = nrd_json_get_bool(c, "attention_out_bias", false);
    return nrd_hf_int(c, "head_dim", 128, &s->head_dim);
}

const nrd_arch nrd_arch_seed_oss = {
    "seed_oss", "SeedOssForCausalLM", {"seed_oss"}, {"SeedOssForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_QKV_BIAS, seed_oss, NULL};

/* ---- norms behind attention and MLP only ---- */

static const nrd_weight_rule behind_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    ATTENTION,
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_attention_layernorm"),
    MLP,
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_feedforward_layernorm"),
    ENDS,
    {0}};

const nrd_arch nrd_arch_olmo2 = {
    "olmo2", "Olmo2ForCausalLM", {"olmo2"}, {"Olmo2ForCausalLM"}, "olmo2", MODEL_PREFIXES,
    behind_rules, nrd_gguf_rules, T_NO_PRE_NORMS | T_QK_NORM | T_QK_NORM_WIDE, NULL, NULL};

/* Layers that slide keep the rotary positions unscaled. */
static nrd_error *olmo3(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *rope = nrd_hf_get(c, "rope_parameters|rope_scaling");
    const nrd_json *full = nrd_hf_get(rope, "full_attention");
    s->rope_local.kind = NRD_ROPE_NEOX;
    s->rope_local.rotary_dim = s->head_dim;
    s->rope_local.base = nrd_json_num(nrd_hf_get(full ? full : rope, "rope_theta"),
                                      nrd_json_get_num(c, "rope_theta", 1e4));
    return NULL;
}

const nrd_arch nrd_arch_olmo3 = {
    "olmo3", "Olmo3ForCausalLM", {"olmo3"}, {"Olmo3ForCausalLM"}, NULL, MODEL_PREFIXES,
    behind_rules, nrd_gguf_rules, T_NO_PRE_NORMS | T_QK_NORM | T_QK_NORM_WIDE | T_WINDOW_PATTERN | T_WINDOW_4, olmo3,
    NULL};

const nrd_arch nrd_arch_exaone4 = {
    "exaone4", "Exaone4ForCausalLM", {"exaone4"}, {"Exaone4ForCausalLM"}, NULL, MODEL_PREFIXES,
    behind_rules, nrd_gguf_rules, T_NO_PRE_NORMS | T_QK_NORM | T_WINDOW_PATTERN | T_WINDOW_4 | T_NOPE_GLOBAL, NULL,
    NULL};
