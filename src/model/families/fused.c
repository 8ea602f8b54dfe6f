/* SPDX-License-Identifier: Apache-2.0
 * Phi-3 and 4, GLM-4: gate and up projection stored as one matrix. */
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
    RULE_EMBED("model.embed_tokens"),
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

static nrd_error *gguf_phi3(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_rope_spec *r = &s->rope;
    int64_t dim = nrd_gguf_int(g, "phi3.rope.dimension_count", s->head_dim);
    int64_t original = nrd_gguf_int(g, "phi3.rope.scaling.original_context_length", s->max_positions);

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

const nrd_arch nrd_arch_phi3 = {
    "phi3", "Phi3ForCausalLM", {"phi3"}, {"Phi3ForCausalLM"}, "phi3", MODEL_PREFIXES,
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
