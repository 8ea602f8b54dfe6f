/* SPDX-License-Identifier: Apache-2.0
 * OLMo Hybrid: layers of OLMo 3, with norms behind attention and MLP, and between them layers of the gated delta rule with norms in
 * front. Mostly without positions. */
#include "model/families/recurrent.h"

#include <math.h>

#define LAYER "model.layers.*."
#define ATTENTION LAYER "self_attn."
#define DELTA LAYER "linear_attn."
#define MLP LAYER "mlp."

/* Names behind '|' are those of the published files. */
static const nrd_weight_rule rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE_OR("input_layernorm", LAYER "input_layernorm", LAYER "attention_layer_norm"),
    RULE_QKV(ATTENTION "q_proj", ATTENTION "k_proj", ATTENTION "v_proj"),
    RULE_HEAD_NORMS(ATTENTION "q_norm", ATTENTION "k_norm"),
    RULE("attention.dense", ATTENTION "o_proj", 0),
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_attention_layernorm"),
    {NRD_RECURRENT "in.weight", {DELTA "q_proj.weight", DELTA "k_proj.weight", DELTA "v_proj.weight"}, 0},
    {NRD_RECURRENT "conv.weight", {DELTA "conv1d.weight"}, NRD_RULE_IF_THERE},
    {NRD_RECURRENT "conv.weight", {DELTA "q_conv1d.weight", DELTA "k_conv1d.weight", DELTA "v_conv1d.weight"}, NRD_RULE_IF_THERE},
    RULE_WEIGHT(NRD_RECURRENT "gate", DELTA "g_proj"),
    RULE_WEIGHT(NRD_RECURRENT "beta", DELTA "b_proj"),
    RULE_WEIGHT(NRD_RECURRENT "alpha", DELTA "a_proj"),
    {NRD_RECURRENT "A", {DELTA "A_log"}, NRD_RULE_NEGATIVE_EXP},
    {NRD_RECURRENT "dt_bias", {DELTA "dt_bias"}, 0},
    RULE_WEIGHT(NRD_RECURRENT "norm", DELTA "o_norm"),
    RULE_WEIGHT(NRD_RECURRENT "out", DELTA "o_proj"),
    RULE_OR("post_layernorm", LAYER "post_attention_layernorm", LAYER "feedforward_layer_norm"),
    RULE("mlp.fc", MLP "gate_proj", 0),
    RULE("mlp.gate", MLP "up_proj", 0),
    RULE("mlp.proj", MLP "down_proj", 0),
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_feedforward_layernorm"),
    RULE("transformer.ln_f", "model.norm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *sizes(nrd_model_spec *s, const nrd_json *c)
{
    nrd_recurrent_spec *r = &s->recurrent;

    r->kind = NRD_RECURRENT_DELTA;
    NRD_TRY(nrd_hf_int(c, "linear_num_key_heads", s->n_heads, &r->n_groups));
    NRD_TRY(nrd_hf_int(c, "linear_num_value_heads", s->n_heads, &r->n_heads));
    if (r->n_groups < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'linear_num_key_heads' must be above 0, got %d", r->n_groups);
    }
    NRD_TRY(nrd_hf_int(c, "linear_key_head_dim", (int64_t)(0.75 * s->hidden / r->n_groups), &r->n_state));
    NRD_TRY(nrd_hf_int(c, "linear_value_head_dim", 2 * (int64_t)r->n_state, &r->head_dim));
    NRD_TRY(nrd_hf_int(c, "linear_conv_kernel_dim", 4, &r->kernel));
    r->beta_twice = nrd_json_get_bool(c, "linear_allow_neg_eigval", true);
    r->norm_groups = r->n_heads;
    r->norm_eps = 1e-5f; /* whatever the file says */
    r->dt_max = INFINITY;
    return NULL;
}

static nrd_error *olmo_hybrid(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "layer_types");
    const nrd_json *base = nrd_json_get(nrd_json_get(c, "rope_parameters"), "rope_theta");
    const bool turns = !base || !nrd_json_is(base, NRD_JSON_NULL); /* null, not missing: no positions */

    NRD_TRY(nrd_hf_refuse(c, "attention_bias"));
    NRD_TRY(sizes(s, c));
    s->norms_by_kind = true;
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_recurrent[i] = i % 4 != 3 && (s->n_layers > 3 || i < s->n_layers - 1);
        s->layer_has_no_rope[i] = !turns;
    }
    return types ? nrd_hf_state_layers(s, types, "linear_attention") : NULL;
}

const nrd_arch nrd_arch_olmo_hybrid = {
    "olmo_hybrid", "OlmoHybridForCausalLM", {"olmo_hybrid"}, {"OlmoHybridForCausalLM"}, NULL, MODEL_PREFIXES, rules, NULL,
    T_QK_NORM | T_QK_NORM_WIDE | T_POST_NORMS | T_RECURRENT, olmo_hybrid, NULL};
