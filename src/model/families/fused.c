/* SPDX-License-Identifier: Apache-2.0
 * Gate and up projection, or q, k and v stored as one matrix: Phi-3 and 4, GLM-4, ChatGLM 2 and 3, the first Qwen,
 * Baichuan. */
#include "model/families/family.h"

#include <math.h>
#include <string.h>

#define LAYER "model.layers.*."
#define MLP                                                                                        \
    RULE("mlp.fc", LAYER "mlp.gate_up_proj", NRD_RULE_FIRST_HALF),                                 \
        RULE("mlp.gate", LAYER "mlp.gate_up_proj", NRD_RULE_SECOND_HALF),                          \
        RULE("mlp.proj", LAYER "mlp.down_proj", 0)
#define ENDS RULE("transformer.ln_f", "model.norm", 0), RULE("lm_head", "lm_head", 0)

static const nrd_weight_rule phi3_rules[] = {
    RULE_EMBED_OR("model.embed_tokens", "model.vision_embed_tokens.wte"), /* Phi-3-vision's under either name */
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE("attention.qkv", LAYER "self_attn.qkv_proj", 0),
    RULE("attention.dense", LAYER "self_attn.o_proj", 0),
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    MLP,
    ENDS,
    {0}};

#define GLM_ATTENTION                                                                              \
    RULE("input_layernorm", LAYER "input_layernorm", 0),                                           \
        RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),    \
        RULE("attention.dense", LAYER "self_attn.o_proj", 0),                                      \
        RULE("post_layernorm", LAYER "post_attention_layernorm", 0)

static const nrd_weight_rule glm_rules[] = {
    RULE_EMBED("model.embed_tokens"), GLM_ATTENTION, MLP, ENDS, {0}};

static const nrd_weight_rule glm4_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    GLM_ATTENTION,
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_self_attn_layernorm"),
    MLP,
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_mlp_layernorm"),
    ENDS,
    {0}};

static nrd_error *gguf_factors(const nrd_gguf *g, const char *name, int32_t n, float *out)
{
    const nrd_gguf_tensor *t = nrd_gguf_find_tensor(g, name);
    if (!t || t->dtype != NRD_DTYPE_F32 || t->n_dims != 1 || (int64_t)t->dims[0] != n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tensor '%s' must have %d numbers of float32, half of the rotary "
                          "dimension", name, n);
    }
    memcpy(out, t->data, (size_t)n * sizeof *out);
    return NULL;
}

nrd_error *nrd_gguf_longrope(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    nrd_rope_spec *r = &s->rope;
    int64_t dim = nrd_gguf_key(g, arch, "rope.dimension_count", s->head_dim);
    int64_t original = nrd_gguf_key(g, arch, "rope.scaling.original_context_length", s->max_positions);

    if (!nrd_gguf_find_tensor(g, "rope_factors_long.weight")) {
        return NULL;
    }
    if (dim < 2 || dim > NRD_SPEC_MAX_ROTARY || original < 1 || original > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a rotary dimension of %lld and %lld positions are out of range",
                          (long long)dim, (long long)original);
    }
    r->scaling = NRD_ROPE_SCALING_LONGROPE;
    r->original_max_positions = (int32_t)original;
    NRD_TRY(gguf_factors(g, "rope_factors_long.weight", (int32_t)dim / 2, r->long_factors));
    return gguf_factors(g, "rope_factors_short.weight", (int32_t)dim / 2, r->short_factors);
}

static nrd_error *gguf_phi3(nrd_model_spec *s, const nrd_gguf *g)
{
    return nrd_gguf_longrope(s, g, "phi3");
}

const nrd_arch nrd_arch_phi3 = {
    "phi3", "Phi3ForCausalLM", {"phi3", "phi3_v"}, {"Phi3ForCausalLM", "Phi3VForCausalLM"}, "phi3", MODEL_PREFIXES,
    phi3_rules, nrd_gguf_phi3_rules, T_WINDOW_ALL, NULL, gguf_phi3};

/* attention_bias is about q, k and v only; half of each head turns. */
static nrd_error *glm(nrd_model_spec *s, const nrd_json *c)
{
    s->qkv_bias = nrd_json_get_bool(c, "attention_bias", true);
    s->dense_bias = false;
    NRD_TRY(nrd_hf_int(c, "head_dim", 128, &s->head_dim));
    if (!nrd_hf_get(c, "partial_rotary_factor") &&
        !nrd_hf_get(nrd_json_get(c, "rope_parameters"), "partial_rotary_factor")) {
        s->rope.rotary_dim = s->head_dim / 2;
    }
    return NULL;
}

const nrd_arch nrd_arch_glm = {
    "glm", "GlmForCausalLM", {"glm"}, {"GlmForCausalLM"}, NULL, MODEL_PREFIXES,
    glm_rules, nrd_gguf_fused_rules, T_ROPE_INTERLEAVED | T_QKV_BIAS, glm, NULL};

const nrd_arch nrd_arch_glm4 = {
    "glm4", "Glm4ForCausalLM", {"glm4"}, {"Glm4ForCausalLM"}, "glm4", MODEL_PREFIXES,
    glm4_rules, nrd_gguf_fused_rules, T_ROPE_INTERLEAVED | T_QKV_BIAS | T_POST_NORMS, glm, NULL};

/* ---- ChatGLM 2 and 3, and GLM-4 under its first names ---- */

#define CHATGLM "transformer.encoder.layers.*."
static const nrd_weight_rule chatglm_rules[] = {
    RULE_EMBED("transformer.embedding.word_embeddings"),
    RULE("input_layernorm", CHATGLM "input_layernorm", 0),
    RULE("attention.qkv", CHATGLM "self_attention.query_key_value", 0),
    RULE("attention.dense", CHATGLM "self_attention.dense", 0),
    RULE("post_layernorm", CHATGLM "post_attention_layernorm", 0),
    RULE("mlp.fc", CHATGLM "mlp.dense_h_to_4h", NRD_RULE_FIRST_HALF),
    RULE("mlp.gate", CHATGLM "mlp.dense_h_to_4h", NRD_RULE_SECOND_HALF),
    RULE("mlp.proj", CHATGLM "mlp.dense_4h_to_h", 0),
    RULE("transformer.ln_f", "transformer.encoder.final_layernorm", 0),
    RULE("lm_head", "transformer.output_layer", 0),
    {0}};

static nrd_error *chatglm(nrd_model_spec *s, const nrd_json *c)
{
    double ratio = 1;

    NRD_TRY(nrd_hf_refuse(c, "position_encoding_2d")); /* ChatGLM 1, another network */
    NRD_TRY(nrd_hf_refuse(c, "apply_residual_connection_post_layernorm"));
    if (!nrd_json_get_bool(c, "rmsnorm", true) || !nrd_json_get_bool(c, "post_layer_norm", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "rmsnorm = false and post_layer_norm = false are not supported in chatglm "
                          "models");
    }
    if (nrd_json_get_bool(c, "multi_query_attention", false)) {
        NRD_TRY(nrd_hf_int(c, "multi_query_group_num", 1, &s->n_kv_heads));
    }
    NRD_TRY(nrd_hf_int(c, "kv_channels", s->head_dim, &s->head_dim));
    NRD_TRY(nrd_hf_scale(c, "rope_ratio", &ratio));
    s->rope.rotary_dim = s->head_dim / 2;
    s->rope.base = 1e4 * ratio;
    s->dense_bias = s->mlp_bias = nrd_json_get_bool(c, "add_bias_linear", false);
    s->qkv_bias = s->dense_bias || nrd_json_get_bool(c, "add_qkv_bias", false);
    return NULL;
}

const nrd_arch nrd_arch_chatglm = {
    "chatglm", "ChatGLMForCausalLM", {"chatglm"}, {"ChatGLMModel", "ChatGLMForConditionalGeneration"}, "chatglm", {"", NULL},
    chatglm_rules, nrd_gguf_phi3_rules, T_ROPE_INTERLEAVED | T_QKV_BIAS, chatglm, NULL};

/* ---- the first Qwen: the activation is applied to its w2 ---- */

#define QWEN "transformer.h.*."
static const nrd_weight_rule qwen_rules[] = {
    RULE_EMBED("transformer.wte"),
    RULE("input_layernorm", QWEN "ln_1", 0),
    RULE("attention.qkv", QWEN "attn.c_attn", 0),
    RULE("attention.dense", QWEN "attn.c_proj", 0),
    RULE("post_layernorm", QWEN "ln_2", 0),
    RULE("mlp.fc", QWEN "mlp.w2", 0),
    RULE("mlp.gate", QWEN "mlp.w1", 0),
    RULE("mlp.proj", QWEN "mlp.c_proj", 0),
    RULE("transformer.ln_f", "transformer.ln_f", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

/* Beyond seq_length it changes the rotation's base and the scale of queries with the length of the text; up to there
 * neither does anything. */
static nrd_error *qwen(nrd_model_spec *s, const nrd_json *c)
{
    int32_t trained = s->max_positions;

    s->inter /= 2;
    NRD_TRY(nrd_hf_int(c, "kv_channels", s->head_dim, &s->head_dim));
    NRD_TRY(nrd_hf_int(c, "seq_length", s->max_positions, &trained));
    if (!nrd_json_get_bool(c, "no_bias", true)) {
        s->dense_bias = s->mlp_bias = true;
    }
    if ((nrd_json_get_bool(c, "use_dynamic_ntk", false) || nrd_json_get_bool(c, "use_logn_attn", false)) &&
        trained < s->max_positions) {
        s->max_positions = trained;
    }
    return NULL;
}

static nrd_error *gguf_qwen(nrd_model_spec *s, const nrd_gguf *g)
{
    (void)g;
    s->inter /= 2;
    return NULL;
}

static const nrd_weight_rule gguf_qwen_rules[] = {
    RULE_EMBED("token_embd"),
    RULE("input_layernorm", "blk.*.attn_norm", 0),
    RULE("attention.qkv", "blk.*.attn_qkv", 0),
    RULE("attention.dense", "blk.*.attn_output", 0),
    RULE("post_layernorm", "blk.*.ffn_norm", 0),
    RULE("mlp.fc", "blk.*.ffn_gate", 0),
    RULE("mlp.gate", "blk.*.ffn_up", 0),
    RULE("mlp.proj", "blk.*.ffn_down", 0),
    RULE("transformer.ln_f", "output_norm", 0),
    RULE("lm_head", "output", 0),
    {0}};

const nrd_arch nrd_arch_qwen = {
    "qwen", "QWenForCausalLM", {"qwen"}, {"QWenLMHeadModel"}, "qwen", {"", NULL},
    qwen_rules, gguf_qwen_rules, T_QKV_BIAS, qwen, gguf_qwen};

/* ---- Baichuan 1 and 2: 7B with rotary positions, 13B with position biases ---- */

#define BAICHUAN "model.layers.*."
static const nrd_weight_rule baichuan_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", BAICHUAN "input_layernorm", 0),
    RULE("attention.qkv", BAICHUAN "self_attn.W_pack", 0),
    RULE("attention.dense", BAICHUAN "self_attn.o_proj", 0),
    RULE("post_layernorm", BAICHUAN "post_attention_layernorm", 0),
    RULE("mlp.fc", BAICHUAN "mlp.gate_proj", 0),
    RULE("mlp.gate", BAICHUAN "mlp.up_proj", 0),
    RULE("mlp.proj", BAICHUAN "mlp.down_proj", 0),
    RULE("transformer.ln_f", "model.norm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

enum { BAICHUAN_13B_LAYERS = 40, BAICHUAN_2_VOCAB = 125696 };

static nrd_error *baichuan(nrd_model_spec *s, const nrd_json *c)
{
    s->alibi = !nrd_hf_get(c, "max_position_embeddings"); /* 13B says model_max_length only */
    /* Baichuan 2 takes rows of the head that are divided by their length */
    s->unit_head = nrd_hf_get(c, "z_loss_weight") || s->vocab == BAICHUAN_2_VOCAB;
    return NULL;
}

/* Writers of Baichuan 2 divide the head's rows themselves. */
static nrd_error *gguf_baichuan(nrd_model_spec *s, const nrd_gguf *g)
{
    (void)g;
    s->alibi = s->n_layers == BAICHUAN_13B_LAYERS;
    return NULL;
}

const nrd_arch nrd_arch_baichuan = {
    "baichuan", "BaichuanForCausalLM", {"baichuan"}, {"BaichuanForCausalLM", "BaiChuanForCausalLM"}, "baichuan",
    MODEL_PREFIXES, baichuan_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED, baichuan, gguf_baichuan};
