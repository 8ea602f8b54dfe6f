/* SPDX-License-Identifier: Apache-2.0
 * Families whose layers are one sublayer each: a state (Mamba, Falcon-Mamba, Mamba-2), or of states, attention, MLPs and
 * experts one (Nemotron-H). */
#include "model/families/recurrent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LAYER "layers.*."
#define MIXER LAYER "mixer."

void nrd_family_states_only(nrd_model_spec *s)
{
    s->n_heads = s->n_kv_heads = s->head_dim = s->inter = 1;
    s->max_positions = 1 << 20; /* a state has no most */
}

/* All layers are a state alone. */
static void only_states(nrd_model_spec *s)
{
    memset(s->layer_is_recurrent, 1, (size_t)s->n_layers);
    memset(s->layer_has_no_mlp, 1, (size_t)s->n_layers);
}

/* These families' files stand behind "backbone.", but for the LM head; transformers 5 calls it "model.". */
#define PREFIXES {"backbone.", "model.", "", NULL}

#define ENDS                                                                                       \
    {"transformer.vocab_embedding.weight", {"embeddings.weight|embedding.weight"}, 0},             \
        RULE("input_layernorm", LAYER "norm", 0), RULE("transformer.ln_f", "norm_f", 0), RULE("lm_head", "lm_head", 0)

#define GGUF_ENDS                                                                                  \
    RULE_EMBED("token_embd"), RULE("input_layernorm", BLOCK "attn_norm", 0), RULE("transformer.ln_f", "output_norm", 0), \
        RULE("lm_head", "output", 0)

/* The activation behind the convolution. */
static nrd_error *only_silu(const nrd_json *c, const char *key)
{
    const char *act = nrd_json_str(nrd_hf_get(c, key), "silu");
    return strcmp(act, "silu") && strcmp(act, "swish")
               ? nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' is '%.40s', expected silu", key, act)
               : NULL;
}

/* What all of them say in the same words. */
static nrd_error *common(nrd_model_spec *s, const nrd_json *c)
{
    nrd_recurrent_spec *r = &s->recurrent;

    s->norm_eps = (float)nrd_json_num(nrd_hf_get(c, "layer_norm_epsilon"), 1e-5);
    NRD_TRY(nrd_hf_int(c, "conv_kernel|mamba_d_conv", 4, &r->kernel));
    r->conv_bias = nrd_json_get_bool(c, "use_conv_bias", nrd_json_get_bool(c, "mamba_conv_bias", true));
    r->proj_bias = nrd_json_get_bool(c, "use_bias", false);
    r->norm_eps = s->norm_eps;
    r->dt_max = INFINITY;
    return NULL;
}

/* ---- Mamba-2 ---- */

static const nrd_weight_rule mamba2_rules[] = {ENDS, MAMBA2(MIXER), {0}};
static const nrd_weight_rule gguf_mamba2_rules[] = {GGUF_ENDS, GGUF_MAMBA2, {0}};

static nrd_error *mamba2(nrd_model_spec *s, const nrd_json *c)
{
    nrd_recurrent_spec *r = &s->recurrent;
    const nrd_json *limit = nrd_hf_get(c, "time_step_limit");

    r->kind = NRD_RECURRENT_MAMBA2;
    NRD_TRY(only_silu(c, "hidden_act"));
    NRD_TRY(common(s, c));
    NRD_TRY(nrd_hf_int(c, "num_heads", 128, &r->n_heads));
    NRD_TRY(nrd_hf_int(c, "head_dim", 64, &r->head_dim));
    NRD_TRY(nrd_hf_int(c, "n_groups", 8, &r->n_groups));
    NRD_TRY(nrd_hf_int(c, "state_size", 128, &r->n_state));
    r->norm_groups = r->n_groups;
    r->dt_min = limit ? (float)nrd_json_num(nrd_json_at(limit, 0), 0) : 0;
    r->dt_max = limit ? (float)nrd_json_num(nrd_json_at(limit, 1), INFINITY) : INFINITY;
    only_states(s);
    return NULL;
}

static nrd_error *gguf_mamba2(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_gguf_mamba2(s, g, "mamba2");
    only_states(s);
    return NULL;
}

const nrd_arch nrd_arch_mamba2 = {
    "mamba2", "Mamba2ForCausalLM", {"mamba2"}, {"Mamba2ForCausalLM"}, "mamba2", PREFIXES,
    mamba2_rules, gguf_mamba2_rules, T_RECURRENT | T_STATES_ONLY, mamba2, gguf_mamba2};

/* ---- Mamba, and Falcon-Mamba, which norms what its channels' time steps, b and c come from ---- */

/* They have no weights. */
#define MAMBA_NORMS RULE_ONES(NRD_RECURRENT "dt_norm"), RULE_ONES(NRD_RECURRENT "bc_norm")

static const nrd_weight_rule mamba_rules[] = {
    ENDS,
    MAMBA(MIXER, "in_proj", "conv1d", "x_proj", "dt_proj", "A_log", "D", "out_proj"),
    {NRD_RECURRENT "A_states", {MIXER "A_log"}, NRD_RULE_NEGATIVE_EXP},
    MAMBA_NORMS,
    {0}};

static const nrd_weight_rule gguf_mamba_rules[] = {
    GGUF_ENDS,
    MAMBA(BLOCK, "ssm_in", "ssm_conv1d", "ssm_x", "ssm_dt", "ssm_a", "ssm_d", "ssm_out"),
    {NRD_RECURRENT "A_states", {BLOCK "ssm_a"}, 0},
    MAMBA_NORMS,
    {0}};

/* Channels are heads of one number. */
static void channels(nrd_model_spec *s)
{
    nrd_recurrent_spec *r = &s->recurrent;
    r->kind = NRD_RECURRENT_MAMBA;
    r->head_dim = r->n_groups = r->norm_groups = 1;
    only_states(s);
}

static nrd_error *mamba(nrd_model_spec *s, const nrd_json *c)
{
    nrd_recurrent_spec *r = &s->recurrent;
    const nrd_json *rank = nrd_hf_get(c, "time_step_rank");
    const double expand = nrd_json_num(nrd_hf_get(c, "expand"), 2);

    channels(s);
    NRD_TRY(only_silu(c, "hidden_act"));
    NRD_TRY(common(s, c));
    if (!(expand > 0 && expand <= 64)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'expand' must be above 0 and at most 64, got %g", expand);
    }
    r->n_heads = (int32_t)(expand * s->hidden);
    NRD_TRY(nrd_hf_int(c, "state_size", 16, &r->n_state));
    /* else it is "auto" */
    return nrd_hf_int(c, rank && !nrd_json_is(rank, NRD_JSON_STRING) ? "time_step_rank" : "", (s->hidden + 15) / 16, &r->dt_rank);
}

static nrd_error *falcon_mamba(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(mamba(s, c));
    s->recurrent.dt_bc_norms = true;
    s->recurrent.norm_eps = (float)nrd_json_num(nrd_hf_get(c, "mixer_rms_eps"), 1e-6);
    return NULL;
}

/* Files of both families call themselves the same. */
static nrd_error *gguf_mamba(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_recurrent_spec *r = &s->recurrent;

    r->kernel = nrd_family_small(nrd_gguf_int(g, "mamba.ssm.conv_kernel", 4));
    r->n_heads = nrd_family_small(nrd_gguf_int(g, "mamba.ssm.inner_size", 0));
    r->n_state = nrd_family_small(nrd_gguf_int(g, "mamba.ssm.state_size", 0));
    r->dt_rank = nrd_family_small(nrd_gguf_int(g, "mamba.ssm.time_step_rank", 0));
    r->dt_bc_norms = nrd_gguf_bool(g, "mamba.ssm.dt_b_c_rms", false);
    r->conv_bias = nrd_gguf_find_tensor(g, "blk.0.ssm_conv1d.bias") != NULL;
    r->norm_eps = s->norm_eps;
    r->dt_max = INFINITY;
    channels(s);
    if (r->dt_bc_norms) {
        snprintf(s->model_type, sizeof s->model_type, "falcon_mamba");
        snprintf(s->architecture, sizeof s->architecture, "FalconMambaForCausalLM");
    }
    return NULL;
}

const nrd_arch nrd_arch_mamba = {
    "mamba", "MambaForCausalLM", {"mamba"}, {"MambaForCausalLM"}, "mamba", PREFIXES,
    mamba_rules, gguf_mamba_rules, T_TIED | T_RECURRENT | T_STATES_ONLY, mamba, gguf_mamba};

const nrd_arch nrd_arch_falcon_mamba = {
    "falcon_mamba", "FalconMambaForCausalLM", {"falcon_mamba"}, {"FalconMambaForCausalLM"}, "mamba", PREFIXES,
    mamba_rules, gguf_mamba_rules, T_TIED | T_RECURRENT | T_STATES_ONLY, falcon_mamba, gguf_mamba};

/* ---- Nemotron-H, Nemotron 3: layers are a state, attention without positions, an MLP or experts; neither is gated ---- */

static const nrd_weight_rule nemotron_h_rules[] = {
    ENDS,
    RULE_QKV(MIXER "q_proj", MIXER "k_proj", MIXER "v_proj"),
    RULE("attention.dense", MIXER "o_proj", 0),
    MAMBA2(MIXER),
    RULE("post_layernorm", LAYER "norm", 0),
    RULE("mlp.fc", MIXER "up_proj", 0),
    RULE("mlp.proj", MIXER "down_proj", 0),
    RULE_WEIGHT("mlp.router", MIXER "gate"),
    {"mlp." NRD_SCORE_BIAS, {MIXER "gate.e_score_correction_bias"}, 0},
    RULE_WEIGHT("mlp.experts.fc", MIXER "experts.#.up_proj"),
    RULE_WEIGHT("mlp.experts.proj", MIXER "experts.#.down_proj"),
    RULE_WEIGHT("mlp.shared.fc", MIXER "shared_experts.up_proj"),
    RULE_WEIGHT("mlp.shared.proj", MIXER "shared_experts.down_proj"),
    {0}};

static const nrd_weight_rule gguf_nemotron_h_rules[] = {
    GGUF_ENDS,
    RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v"),
    RULE("attention.dense", BLOCK "attn_output", 0),
    GGUF_MAMBA2,
    RULE("post_layernorm", BLOCK "attn_norm", 0),
    RULE("mlp.fc", BLOCK "ffn_up", 0),
    RULE("mlp.proj", BLOCK "ffn_down", 0),
    RULE_WEIGHT("mlp.router", BLOCK "ffn_gate_inp"),
    {"mlp." NRD_SCORE_BIAS, {BLOCK "exp_probs_b.bias"}, 0},
    RULE_WEIGHT("mlp.experts.fc", BLOCK "ffn_up_exps"),
    RULE_WEIGHT("mlp.experts.proj", BLOCK "ffn_down_exps"),
    RULE_WEIGHT("mlp.shared.fc", BLOCK "ffn_up_shexp"),
    RULE_WEIGHT("mlp.shared.proj", BLOCK "ffn_down_shexp"),
    {0}};

/* A layer's kind by the letter of hybrid_override_pattern. */
static void set_kind(nrd_model_spec *s, int32_t layer, char kind)
{
    s->layer_is_recurrent[layer] = kind == 'M';
    s->layer_has_no_mlp[layer] = kind == 'M' || kind == '*';
    s->layer_has_no_mixer[layer] = !s->layer_has_no_mlp[layer];
    s->layer_is_dense[layer] = kind != 'E';
}

/* The letter of an entry of layers_block_type; 0: none. */
static char kind_of(const char *name)
{
    static const struct {
        const char *name;
        char kind;
    } kinds[] = {{"mamba", 'M'}, {"linear_attention", 'M'}, {"attention", '*'}, {"full_attention", '*'}, {"mlp", '-'},
                 {"moe", 'E'}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!strcmp(name, kinds[i].name)) {
            return kinds[i].kind;
        }
    }
    return 0;
}

static nrd_error *kinds_of_layers(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "layers_block_type|layer_types");
    const char *letters = nrd_json_str(nrd_hf_get(c, "hybrid_override_pattern"), "");
    const size_t n = types ? nrd_json_len(types) : strlen(letters);

    if (n != (size_t)s->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' names %zu layers, expected %d", types ? "layers_block_type" :
                          "hybrid_override_pattern", n, s->n_layers);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        const char *name = types ? nrd_json_str(nrd_json_at(types, (size_t)i), "") : NULL;
        const char kind = name ? kind_of(name) : letters[i];
        if (!kind || !strchr("M*-E", kind)) {
            return name ? nrd_errorf(NRD_ERR_UNSUPPORTED, "layers_block_type[%d]: '%.40s' is not supported", i, name)
                        : nrd_errorf(NRD_ERR_UNSUPPORTED, "hybrid_override_pattern has '%c' for layer %d, expected M, *, - or E",
                                     kind, i);
        }
        set_kind(s, i, kind);
    }
    return NULL;
}

/* Experts as in DeepSeek-V3, but not gated. */
static nrd_error *nemotron_experts(nrd_model_spec *s, const nrd_json *c)
{
    double scale = 1;

    s->has_experts = memchr(s->layer_is_dense, 0, (size_t)s->n_layers) != NULL;
    if (!s->has_experts) {
        return NULL;
    }
    NRD_TRY(nrd_hf_refuse(c, "moe_latent_size"));
    NRD_TRY(nrd_hf_experts(s, c));
    NRD_TRY(nrd_hf_int(c, "moe_shared_expert_intermediate_size", NRD_HF_REQUIRED, &s->moe.shared_inter));
    NRD_TRY(nrd_hf_int(c, "n_group", 1, &s->moe.n_groups));
    NRD_TRY(nrd_hf_int(c, "topk_group", 1, &s->moe.top_groups));
    NRD_TRY(nrd_hf_scale(c, "routed_scaling_factor", &scale));
    s->moe.score = NRD_MOE_SIGMOID;
    s->moe.score_bias = true;
    s->moe.normalize = nrd_json_get_bool(c, "norm_topk_prob", true);
    s->moe.scale = (float)scale;
    bool any = false;
    for (int32_t i = 0; i < s->n_layers; i++) {
        any = any || (s->layer_has_no_mixer[i] && s->layer_is_dense[i]);
    }
    s->inter = any ? s->inter : s->moe.inter; /* no layer has an MLP of its own */
    return NULL;
}

static nrd_error *nemotron_h(nrd_model_spec *s, const nrd_json *c)
{
    nrd_recurrent_spec *r = &s->recurrent;
    const char *act = nrd_json_str(nrd_hf_get(c, "mlp_hidden_act"), "relu2");
    bool gated;

    r->kind = NRD_RECURRENT_MAMBA2;
    NRD_TRY(nrd_hf_refuse(c, "attention_bias"));
    NRD_TRY(only_silu(c, "mamba_hidden_act"));
    if (!nrd_act_parse(act, &s->act, &gated)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "activation '%.40s' is not supported", act);
    }
    NRD_TRY(common(s, c));
    NRD_TRY(nrd_hf_int(c, "head_dim|attention_head_dim", 128, &s->head_dim));
    NRD_TRY(nrd_hf_int(c, "mamba_num_heads", 128, &r->n_heads));
    NRD_TRY(nrd_hf_int(c, "mamba_head_dim", 64, &r->head_dim));
    NRD_TRY(nrd_hf_int(c, "n_groups|mamba_n_groups", 8, &r->n_groups));
    NRD_TRY(nrd_hf_int(c, "ssm_state_size", 128, &r->n_state));
    r->norm_groups = r->n_groups;
    r->dt_min = (float)nrd_json_num(nrd_hf_get(c, "time_step_min"), 0.001);
    NRD_TRY(kinds_of_layers(s, c));
    memset(s->layer_has_no_rope, 1, (size_t)s->n_layers);
    if (!memchr(s->layer_is_recurrent, 1, (size_t)s->n_layers)) {
        s->recurrent = (nrd_recurrent_spec){.kind = NRD_RECURRENT_NONE};
    }
    return nemotron_experts(s, c);
}

static bool has_block(const nrd_gguf *g, int32_t layer, const char *tensor)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, tensor);
    return nrd_gguf_find_tensor(g, name) != NULL;
}

/* Files with experts have a name of their own. */
static nrd_error *gguf_nemotron_h(nrd_model_spec *s, const nrd_gguf *g)
{
    static const char moe[] = "nemotron_h_moe";
    bool any = false;

    s->act = NRD_ACT_RELU2;
    s->has_experts = nrd_gguf_key(g, moe, "expert_count", 0) > 0;
    if (s->has_experts) {
        if (nrd_gguf_key(g, moe, "moe_latent_size", 0) > 0) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s.moe_latent_size' is not supported", moe);
        }
        NRD_TRY(nrd_gguf_corrected(s, g, moe));
        s->moe.score_bias = true;
        s->moe.shared_inter = nrd_family_small(nrd_gguf_key(g, moe, "expert_shared_feed_forward_length", s->moe.shared_inter));
    }
    nrd_gguf_mamba2(s, g, s->has_experts ? moe : "nemotron_h");
    memset(s->layer_has_no_rope, 1, (size_t)s->n_layers);
    for (int32_t i = 0; i < s->n_layers; i++) {
        set_kind(s, i, s->layer_is_recurrent[i] ? 'M' : has_block(g, i, "ffn_up") ? '-' : has_block(g, i, "ffn_up_exps") ? 'E' : '*');
        any = any || (s->layer_has_no_mixer[i] && s->layer_is_dense[i]);
    }
    s->inter = any || !s->has_experts ? s->inter : s->moe.inter; /* no layer has an MLP of its own */
    return NULL;
}

const nrd_arch nrd_arch_nemotron_h = {
    "nemotron_h", "NemotronHForCausalLM", {"nemotron_h"}, {"NemotronHForCausalLM"}, "nemotron_h|nemotron_h_moe", PREFIXES,
    nemotron_h_rules, gguf_nemotron_h_rules, T_PLAIN_MLP | T_EXPERTS | T_EXPERTS_OR_NOT | T_RECURRENT, nemotron_h,
    gguf_nemotron_h};
