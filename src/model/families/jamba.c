/* SPDX-License-Identifier: Apache-2.0
 * Jamba: layers of Mamba with norms of the time steps, b and c, a few of attention without positions; every other one has experts
 * instead of an MLP. */
#include "model/families/recurrent.h"

#include <math.h>
#include <string.h>

#define LAYER "model.layers.*."
#define MAMBA_AT LAYER "mamba."
#define FF LAYER "feed_forward."

static const nrd_weight_rule jamba_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE("attention.dense", LAYER "self_attn.o_proj", 0),
    MAMBA(MAMBA_AT, "in_proj", "conv1d", "x_proj", "dt_proj", "A_log", "D", "out_proj"),
    {NRD_RECURRENT "A_states", {MAMBA_AT "A_log"}, NRD_RULE_NEGATIVE_EXP},
    RULE_WEIGHT(NRD_RECURRENT "dt_norm", MAMBA_AT "dt_layernorm"),
    RULE_WEIGHT(NRD_RECURRENT "bc_norm", MAMBA_AT "b_layernorm"),
    RULE_WEIGHT(NRD_RECURRENT "c_norm", MAMBA_AT "c_layernorm"),
    RULE("post_layernorm", LAYER "pre_ff_layernorm", 0),
    RULE("mlp.fc", FF "gate_proj", 0),
    RULE("mlp.gate", FF "up_proj", 0),
    RULE("mlp.proj", FF "down_proj", 0),
    RULE_WEIGHT("mlp.router", FF "router"),
    RULE_EXPERTS(FF "experts.#.gate_proj", FF "experts.#.up_proj", FF "experts.#.down_proj"),
    RULE("transformer.ln_f", "model.final_layernorm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static const nrd_weight_rule gguf_jamba_rules[] = {
    RULE_EMBED("token_embd"),
    RULE("input_layernorm", BLOCK "attn_norm", 0),
    RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v"),
    RULE("attention.dense", BLOCK "attn_output", 0),
    MAMBA(BLOCK, "ssm_in", "ssm_conv1d", "ssm_x", "ssm_dt", "ssm_a", "ssm_d", "ssm_out"),
    {NRD_RECURRENT "A_states", {BLOCK "ssm_a"}, 0},
    RULE_WEIGHT(NRD_RECURRENT "dt_norm", BLOCK "ssm_dt_norm"),
    RULE_WEIGHT(NRD_RECURRENT "bc_norm", BLOCK "ssm_b_norm"),
    RULE_WEIGHT(NRD_RECURRENT "c_norm", BLOCK "ssm_c_norm"),
    RULE("post_layernorm", BLOCK "ffn_norm", 0),
    RULE("mlp.fc", BLOCK "ffn_gate", 0),
    RULE("mlp.gate", BLOCK "ffn_up", 0),
    RULE("mlp.proj", BLOCK "ffn_down", 0),
    RULE_WEIGHT("mlp.router", BLOCK "ffn_gate_inp"),
    RULE_EXPERTS(BLOCK "ffn_gate_exps", BLOCK "ffn_up_exps", BLOCK "ffn_down_exps"),
    RULE("transformer.ln_f", "output_norm", 0),
    RULE("lm_head", "output", 0),
    {0}};

/* Channels are heads of one number. */
static void mixer(nrd_model_spec *s)
{
    nrd_recurrent_spec *r = &s->recurrent;

    r->kind = NRD_RECURRENT_MAMBA;
    r->head_dim = r->n_groups = r->norm_groups = 1;
    r->dt_bc_norms = r->c_norm = true;
    r->norm_eps = s->norm_eps;
    r->dt_max = INFINITY;
    memset(s->layer_has_no_rope, 1, (size_t)s->n_layers);
}

/* Every `period`-th layer from `offset` on. */
static nrd_error *period(const nrd_json *c, const char *period_key, int64_t usual, const char *offset_key, int64_t first, int32_t out[2])
{
    NRD_TRY(nrd_hf_int(c, period_key, usual, &out[0]));
    NRD_TRY(nrd_hf_int(c, offset_key, first, &out[1]));
    return out[0] > 0 && out[1] >= 0 && out[1] < out[0]
               ? NULL
               : nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be above 0 and '%s' below it, got %d and %d", period_key, offset_key, out[0],
                            out[1]);
}

static nrd_error *jamba(nrd_model_spec *s, const nrd_json *c)
{
    nrd_recurrent_spec *r = &s->recurrent;
    const nrd_json *rank = nrd_hf_get(c, "mamba_dt_rank");
    int32_t expand = 2, experts[2], attention[2];

    mixer(s);
    NRD_TRY(nrd_hf_int(c, "mamba_expand", 2, &expand));
    if (expand < 1 || expand > 64) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'mamba_expand' must be between 1 and 64, got %d", expand);
    }
    r->n_heads = nrd_family_small((int64_t)expand * s->hidden);
    NRD_TRY(nrd_hf_int(c, "mamba_d_state", 16, &r->n_state));
    NRD_TRY(nrd_hf_int(c, "mamba_d_conv", 4, &r->kernel));
    NRD_TRY(nrd_hf_int(c, rank && !nrd_json_is(rank, NRD_JSON_STRING) ? "mamba_dt_rank" : "", (s->hidden + 15) / 16, &r->dt_rank));
    r->conv_bias = nrd_json_get_bool(c, "mamba_conv_bias", true);
    r->proj_bias = nrd_json_get_bool(c, "mamba_proj_bias", false);
    NRD_TRY(nrd_hf_refuse(c, "sliding_window"));
    NRD_TRY(period(c, "attn_layer_period", 8, "attn_layer_offset", 4, attention));
    NRD_TRY(period(c, "expert_layer_period", 2, "expert_layer_offset", 1, experts));
    NRD_TRY(nrd_hf_int(c, "num_experts", 16, &s->moe.n_experts));
    NRD_TRY(nrd_hf_int(c, "num_experts_per_tok", 2, &s->moe.top_k));
    s->moe.inter = s->inter;
    s->has_experts = s->moe.n_experts > 1; /* a single one is an MLP */
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_recurrent[i] = i % attention[0] != attention[1];
        s->layer_is_dense[i] = s->has_experts && i % experts[0] != experts[1];
    }
    return NULL;
}

static nrd_error *gguf_jamba(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_recurrent_spec *r = &s->recurrent;

    mixer(s);
    r->kernel = nrd_family_small(nrd_gguf_int(g, "jamba.ssm.conv_kernel", 4));
    r->n_heads = nrd_family_small(nrd_gguf_int(g, "jamba.ssm.inner_size", 0));
    r->n_state = nrd_family_small(nrd_gguf_int(g, "jamba.ssm.state_size", 0));
    r->dt_rank = nrd_family_small(nrd_gguf_int(g, "jamba.ssm.time_step_rank", 0));
    r->conv_bias = nrd_gguf_find_tensor(g, "blk.0.ssm_conv1d.bias") != NULL;
    nrd_gguf_recurrent_layers(s, g, "ssm_conv1d");
    nrd_gguf_experts(s, g, "jamba");
    s->has_experts = s->moe.n_experts > 1;
    for (int32_t i = 0; !s->has_experts && i < s->n_layers; i++) {
        s->layer_is_dense[i] = 0;
    }
    return NULL;
}

const nrd_arch nrd_arch_jamba = {
    "jamba", "JambaForCausalLM", {"jamba"}, {"JambaForCausalLM"}, "jamba", MODEL_PREFIXES,
    jamba_rules, gguf_jamba_rules, T_EXPERTS | T_EXPERTS_OR_NOT | T_RECURRENT, jamba, gguf_jamba};
