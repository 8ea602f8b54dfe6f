/* SPDX-License-Identifier: Apache-2.0
 * Families with layers that remember a sequence in a state: some or all of theirs have no attention. */
#include "model/families/recurrent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LAYER "model.layers.*."

/* ---- which layers ---- */

nrd_error *nrd_hf_state_layers(nrd_model_spec *s, const nrd_json *types, const char *name)
{
    if (nrd_json_len(types) != (size_t)s->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'layer_types' has %zu entries, expected one for each of %d layers",
                          nrd_json_len(types), s->n_layers);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        const char *t = nrd_json_str(nrd_json_at(types, (size_t)i), "");
        s->layer_is_recurrent[i] = !strcmp(t, name) || !strcmp(t, "linear_attention");
        if (!s->layer_is_recurrent[i] && strcmp(t, "full_attention") && strcmp(t, "attention")) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "layer_types[%d]: '%.40s' is not supported", i, t);
        }
    }
    return NULL;
}

/* All layers have a state but those of a list of numbers. */
static nrd_error *all_but(nrd_model_spec *s, const nrd_json *list, const char *key)
{
    memset(s->layer_is_recurrent, 1, (size_t)s->n_layers);
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const int64_t at = nrd_json_int(nrd_json_at(list, i), -1);
        if (at < 0 || at >= s->n_layers) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' names layer %lld of %d", key, (long long)at, s->n_layers);
        }
        s->layer_is_recurrent[at] = 0;
    }
    return NULL;
}

/* Models without such a layer are what they are without it. */
static void settle(nrd_model_spec *s)
{
    if (!memchr(s->layer_is_recurrent, 1, (size_t)s->n_layers)) {
        s->recurrent = (nrd_recurrent_spec){.kind = NRD_RECURRENT_NONE};
    }
}

void nrd_gguf_recurrent_layers(nrd_model_spec *s, const nrd_gguf *g, const char *tensor)
{
    char name[64];
    for (int32_t i = 0; i < s->n_layers; i++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", i, tensor);
        s->layer_is_recurrent[i] = nrd_gguf_find_tensor(g, name) != NULL;
    }
    settle(s);
}

/* ---- LFM2: gated convolutions over three tokens, and a few layers with attention ---- */

#define LFM2_RULES                                                                                 \
    RULE_EMBED("model.embed_tokens"), \
    RULE("input_layernorm", LAYER "operator_norm", 0), \
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"), \
    RULE_HEAD_NORMS(LAYER "self_attn.q_layernorm", LAYER "self_attn.k_layernorm"), \
    RULE("attention.dense", LAYER "self_attn.out_proj", 0), \
    RULE(NRD_RECURRENT "in", LAYER "conv.in_proj", 0), \
    RULE(NRD_RECURRENT "conv", LAYER "conv.conv", 0), \
    RULE(NRD_RECURRENT "out", LAYER "conv.out_proj", 0), \
    RULE("post_layernorm", LAYER "ffn_norm", 0), \
    RULE("mlp.fc", LAYER "feed_forward.w1", 0), \
    RULE("mlp.gate", LAYER "feed_forward.w3", 0), \
    RULE("mlp.proj", LAYER "feed_forward.w2", 0), \
    RULE("transformer.ln_f", "model.embedding_norm", 0), \
    RULE("lm_head", "lm_head", 0), \
    {0}
static const nrd_weight_rule lfm2_rules[] = {LFM2_RULES};

static const nrd_weight_rule gguf_lfm2_rules[] = {
    RULE_EMBED("token_embd"),
    RULE("input_layernorm", BLOCK "attn_norm", 0),
    RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v"),
    RULE_HEAD_NORMS(BLOCK "attn_q_norm", BLOCK "attn_k_norm"),
    RULE("attention.dense", BLOCK "attn_output", 0),
    RULE(NRD_RECURRENT "in", BLOCK "shortconv.in_proj", 0),
    RULE(NRD_RECURRENT "conv", BLOCK "shortconv.conv", 0),
    RULE(NRD_RECURRENT "out", BLOCK "shortconv.out_proj", 0),
    RULE("post_layernorm", BLOCK "ffn_norm", 0),
    RULE("mlp.fc", BLOCK "ffn_gate", 0),
    RULE("mlp.gate", BLOCK "ffn_up", 0),
    RULE("mlp.proj", BLOCK "ffn_down", 0),
    RULE_WEIGHT("mlp.router", BLOCK "ffn_gate_inp"),
    {"mlp." NRD_SCORE_BIAS, {BLOCK "exp_probs_b.bias"}, 0},
    RULE_EXPERTS(BLOCK "ffn_gate_exps", BLOCK "ffn_up_exps", BLOCK "ffn_down_exps"),
    RULE_OR("transformer.ln_f", "token_embd_norm", "output_norm"),
    RULE("lm_head", "output", 0),
    {0}};

/* The size of the MLP is two thirds of what the configuration says, times a factor, up to a multiple. */
static nrd_error *lfm2_inter(nrd_model_spec *s, const nrd_json *c)
{
    double factor = 1;
    int32_t multiple = 256;

    NRD_TRY(nrd_hf_int(c, "block_ff_dim|intermediate_size", NRD_HF_REQUIRED, &s->inter));
    if (!nrd_json_get_bool(c, "block_auto_adjust_ff_dim", true)) {
        return NULL;
    }
    NRD_TRY(nrd_hf_int(c, "block_multiple_of", 256, &multiple));
    NRD_TRY(nrd_hf_scale(c, "block_ffn_dim_multiplier", &factor));
    const double wanted = floor(factor * floor(2 * (double)s->inter / 3));
    if (multiple < 1 || s->inter < 1 || wanted + multiple > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'block_ff_dim' (%d), 'block_ffn_dim_multiplier' (%g) and 'block_multiple_of' "
                          "(%d) give no size of an MLP", s->inter, factor, multiple);
    }
    s->inter = ((int32_t)wanted + multiple - 1) / multiple * multiple;
    return NULL;
}

static nrd_error *lfm2_mixers(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "layer_types"), *full = nrd_hf_get(c, "full_attn_idxs");

    s->recurrent.kind = NRD_RECURRENT_SHORT_CONV;
    NRD_TRY(nrd_hf_int(c, "conv_L_cache", 3, &s->recurrent.kernel));
    s->recurrent.conv_bias = s->recurrent.proj_bias = nrd_json_get_bool(c, "conv_bias", false);
    s->tied_embeddings = nrd_json_get_bool(c, "tie_embedding", s->tied_embeddings);
    if (types) {
        NRD_TRY(nrd_hf_state_layers(s, types, "conv"));
    } else if (full) {
        NRD_TRY(all_but(s, full, "full_attn_idxs"));
    }
    settle(s);
    return NULL;
}

static nrd_error *lfm2(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(lfm2_inter(s, c));
    return lfm2_mixers(s, c);
}

static void gguf_lfm2_mixers(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    s->recurrent.kind = NRD_RECURRENT_SHORT_CONV;
    s->recurrent.kernel = nrd_family_small(nrd_gguf_key(g, arch, "shortconv.l_cache", 3));
    nrd_gguf_recurrent_layers(s, g, "shortconv.conv");
}

static nrd_error *gguf_lfm2(nrd_model_spec *s, const nrd_gguf *g)
{
    gguf_lfm2_mixers(s, g, "lfm2");
    return NULL;
}

const nrd_arch nrd_arch_lfm2 = {
    "lfm2", "Lfm2ForCausalLM", {"lfm2"}, {"Lfm2ForCausalLM"}, "lfm2", MODEL_PREFIXES,
    lfm2_rules, gguf_lfm2_rules, T_QK_NORM | T_TIED | T_RECURRENT, lfm2, gguf_lfm2};

/* LFM2 with experts behind the first layers. */
static const nrd_weight_rule lfm2_moe_rules[] = {
    RULE_WEIGHT("mlp.router", LAYER "feed_forward.gate"),
    {"mlp." NRD_SCORE_BIAS, {LAYER "feed_forward.expert_bias"}, 0},
    RULE_EXPERTS(LAYER "feed_forward.experts.#.w1", LAYER "feed_forward.experts.#.w3", LAYER "feed_forward.experts.#.w2"),
    LFM2_RULES};

static nrd_error *lfm2_moe(nrd_model_spec *s, const nrd_json *c)
{
    nrd_moe_spec *m = &s->moe;
    double scale = 1;
    int32_t n_dense = 2;

    NRD_TRY(nrd_hf_int(c, "num_experts", NRD_HF_REQUIRED, &m->n_experts));
    NRD_TRY(nrd_hf_int(c, "num_experts_per_tok", NRD_HF_REQUIRED, &m->top_k));
    NRD_TRY(nrd_hf_int(c, "moe_intermediate_size", NRD_HF_REQUIRED, &m->inter));
    NRD_TRY(nrd_hf_int(c, "intermediate_size", NRD_HF_REQUIRED, &s->inter));
    NRD_TRY(nrd_hf_int(c, "num_dense_layers", 2, &n_dense));
    NRD_TRY(nrd_hf_scale(c, "routed_scaling_factor", &scale));
    m->scale = (float)scale;
    m->score = NRD_MOE_SIGMOID;
    m->score_bias = nrd_json_get_bool(c, "use_expert_bias", true);
    m->normalize = nrd_json_get_bool(c, "norm_topk_prob", true);
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_dense[i] = i < n_dense;
    }
    s->rope.base = 1e6;
    return lfm2_mixers(s, c);
}

static nrd_error *gguf_lfm2_moe(nrd_model_spec *s, const nrd_gguf *g)
{
    gguf_lfm2_mixers(s, g, "lfm2moe");
    return nrd_gguf_corrected(s, g, "lfm2moe");
}

const nrd_arch nrd_arch_lfm2_moe = {
    "lfm2_moe", "Lfm2MoeForCausalLM", {"lfm2_moe"}, {"Lfm2MoeForCausalLM"}, "lfm2moe", MODEL_PREFIXES,
    lfm2_moe_rules, gguf_lfm2_rules, T_EXPERTS | T_QK_NORM | T_TIED | T_RECURRENT, lfm2_moe, gguf_lfm2_moe};

/* ---- Mamba-2 under the keys of Bamba and Granite 4.0 ---- */

nrd_error *nrd_hf_mamba2(nrd_model_spec *s, const nrd_json *c)
{
    nrd_recurrent_spec *r = &s->recurrent;
    const nrd_json *limit = nrd_hf_get(c, "time_step_limit");
    int32_t expand = 2;

    r->kind = NRD_RECURRENT_MAMBA2;
    NRD_TRY(nrd_hf_int(c, "mamba_n_heads", 128, &r->n_heads));
    NRD_TRY(nrd_hf_int(c, "mamba_expand", 2, &expand));
    if (r->n_heads < 1 || expand < 1 || expand > 64) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'mamba_n_heads' must be above 0 and 'mamba_expand' between 1 and 64, got %d and "
                          "%d", r->n_heads, expand);
    }
    const nrd_json *dim = nrd_hf_get(c, "mamba_d_head");
    const bool is_number = dim && !nrd_json_is(dim, NRD_JSON_STRING); /* that is "auto" */
    NRD_TRY(nrd_hf_int(c, is_number ? "mamba_d_head" : "", (int64_t)expand * s->hidden / r->n_heads, &r->head_dim));
    NRD_TRY(nrd_hf_int(c, "mamba_n_groups", 1, &r->n_groups));
    NRD_TRY(nrd_hf_int(c, "mamba_d_state", 256, &r->n_state));
    NRD_TRY(nrd_hf_int(c, "mamba_d_conv", 4, &r->kernel));
    r->conv_bias = nrd_json_get_bool(c, "mamba_conv_bias", true);
    r->proj_bias = nrd_json_get_bool(c, "mamba_proj_bias", false);
    r->norm_groups = r->n_groups;
    r->norm_eps = s->norm_eps;
    r->dt_min = limit ? (float)nrd_json_num(nrd_json_at(limit, 0), 0) : 0;
    r->dt_max = limit ? (float)nrd_json_num(nrd_json_at(limit, 1), INFINITY) : INFINITY;
    return NULL;
}

void nrd_gguf_mamba2(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    nrd_recurrent_spec *r = &s->recurrent;
    char key[80];
    const struct {
        const char *name;
        int32_t *out;
    } numbers[] = {{"conv_kernel", &r->kernel}, {"state_size", &r->n_state}, {"time_step_rank", &r->n_heads},
                   {"group_count", &r->n_groups}, {"inner_size", &r->head_dim}};

    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        snprintf(key, sizeof key, "%s.ssm.%s", arch, numbers[i].name);
        *numbers[i].out = nrd_family_small(nrd_gguf_int(g, key, 0));
    }
    r->kind = NRD_RECURRENT_MAMBA2;
    r->head_dim = r->n_heads > 0 && r->head_dim % r->n_heads == 0 ? r->head_dim / r->n_heads : 0;
    r->conv_bias = true;
    r->norm_groups = r->n_groups;
    r->norm_eps = s->norm_eps;
    r->dt_max = INFINITY;
    nrd_gguf_recurrent_layers(s, g, "ssm_conv1d");
}

/* ---- Bamba ---- */

static const nrd_weight_rule bamba_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE("attention.dense", LAYER "self_attn.o_proj", 0),
    MAMBA2(LAYER "mamba."),
    RULE("post_layernorm", LAYER "pre_ff_layernorm", 0),
    RULE("mlp.fc", LAYER "feed_forward.gate_proj", 0),
    RULE("mlp.gate", LAYER "feed_forward.up_proj", 0),
    RULE("mlp.proj", LAYER "feed_forward.down_proj", 0),
    RULE("transformer.ln_f", "model.final_layernorm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *bamba(nrd_model_spec *s, const nrd_json *c)
{
    s->rope.rotary_dim = s->head_dim / 2; /* whatever the file says */
    NRD_TRY(nrd_hf_mamba2(s, c));
    NRD_TRY(all_but(s, nrd_hf_get(c, "attn_layer_indices"), "attn_layer_indices"));
    settle(s);
    return NULL;
}

const nrd_arch nrd_arch_bamba = {
    "bamba", "BambaForCausalLM", {"bamba"}, {"BambaForCausalLM"}, NULL, MODEL_PREFIXES,
    bamba_rules, nrd_gguf_rules, T_RECURRENT, bamba, NULL};

/* ---- Granite 4.0: with experts or without, the layers with attention mostly without positions ---- */

#define HALF(dst, src, flag) {dst ".weight", {src ".weight"}, flag}
static const nrd_weight_rule granite_hybrid_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE("attention.dense", LAYER "self_attn.o_proj", 0),
    MAMBA2(LAYER "mamba."),
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    HALF("mlp.fc", LAYER "shared_mlp.input_linear", NRD_RULE_FIRST_HALF),
    HALF("mlp.gate", LAYER "shared_mlp.input_linear", NRD_RULE_SECOND_HALF),
    RULE_WEIGHT("mlp.proj", LAYER "shared_mlp.output_linear"),
    RULE_WEIGHT("mlp.router", LAYER "block_sparse_moe.router.layer"),
    HALF("mlp.experts.fc", LAYER "block_sparse_moe.input_linear", NRD_RULE_FIRST_HALF),
    HALF("mlp.experts.gate", LAYER "block_sparse_moe.input_linear", NRD_RULE_SECOND_HALF),
    RULE_WEIGHT("mlp.experts.proj", LAYER "block_sparse_moe.output_linear"),
    HALF("mlp.shared.fc", LAYER "shared_mlp.input_linear", NRD_RULE_FIRST_HALF),
    HALF("mlp.shared.gate", LAYER "shared_mlp.input_linear", NRD_RULE_SECOND_HALF),
    RULE_WEIGHT("mlp.shared.proj", LAYER "shared_mlp.output_linear"),
    RULE("transformer.ln_f", "model.norm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static const nrd_weight_rule gguf_granite_hybrid_rules[] = {
    RULE_EMBED("token_embd"),
    RULE("input_layernorm", BLOCK "attn_norm", 0),
    RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v"),
    RULE("attention.dense", BLOCK "attn_output", 0),
    GGUF_MAMBA2,
    RULE("post_layernorm", BLOCK "ffn_norm", 0),
    RULE("mlp.fc", BLOCK "ffn_gate", 0),
    RULE("mlp.gate", BLOCK "ffn_up", 0),
    RULE("mlp.proj", BLOCK "ffn_down", 0),
    RULE_WEIGHT("mlp.router", BLOCK "ffn_gate_inp"),
    RULE_EXPERTS(BLOCK "ffn_gate_exps", BLOCK "ffn_up_exps", BLOCK "ffn_down_exps"),
    RULE_SHARED(BLOCK "ffn_gate_shexp", BLOCK "ffn_up_shexp", BLOCK "ffn_down_shexp"),
    RULE("transformer.ln_f", "output_norm", 0),
    RULE("lm_head", "output", 0),
    {0}};

/* shared_inter is there. Where there are no experts, the one that all tokens see is a plain MLP. */
static void granite_experts(nrd_model_spec *s)
{
    s->has_experts = s->moe.n_experts > 0;
    s->moe.normalize = true; /* the softmax goes over the chosen logits */
    if (s->has_experts) {
        s->moe.inter = s->inter;
    } else {
        s->inter = s->moe.shared_inter;
        s->moe.shared_inter = 0;
    }
}

static nrd_error *granite_hybrid(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "layer_types|layers_block_type");

    NRD_TRY(nrd_hf_mamba2(s, c));
    NRD_TRY(nrd_hf_int(c, "num_local_experts", 8, &s->moe.n_experts));
    NRD_TRY(nrd_hf_int(c, "num_experts_per_tok", 2, &s->moe.top_k));
    NRD_TRY(nrd_hf_int(c, "shared_intermediate_size", 1024, &s->moe.shared_inter));
    granite_experts(s);
    if (types) {
        NRD_TRY(nrd_hf_state_layers(s, types, "mamba"));
    } else {
        NRD_TRY(all_but(s, NULL, "layer_types"));
    }
    const bool rope = !strcmp(nrd_json_get_str(c, "position_embedding_type", ""), "rope");
    memset(s->layer_has_no_rope, !rope, (size_t)s->n_layers);
    settle(s);
    return nrd_hf_granite(s, c);
}

static nrd_error *gguf_granite_hybrid(nrd_model_spec *s, const nrd_gguf *g)
{
    const nrd_gguf_tensor *down = nrd_gguf_find_tensor(g, "blk.0.ffn_down.weight");

    s->moe.n_experts = nrd_family_small(nrd_gguf_int(g, "granitehybrid.expert_count", 0));
    s->moe.top_k = nrd_family_small(nrd_gguf_int(g, "granitehybrid.expert_used_count", 0));
    s->moe.shared_inter = nrd_family_small(nrd_gguf_int(g, "granitehybrid.expert_shared_feed_forward_length", 0));
    if (s->moe.n_experts == 0) {
        s->moe.shared_inter = down && down->dims[0] <= INT32_MAX ? (int32_t)down->dims[0] : s->inter;
    }
    granite_experts(s);
    /* this key says for this family whether there are positions */
    const bool rope = nrd_gguf_int(g, "granitehybrid.rope.scaling.finetuned", 1) != 0;
    memset(s->layer_has_no_rope, !rope, (size_t)s->n_layers);
    nrd_gguf_mamba2(s, g, "granitehybrid");
    return nrd_gguf_granite(s, g, "granitehybrid");
}

const nrd_arch nrd_arch_granitemoehybrid = {
    "granitemoehybrid", "GraniteMoeHybridForCausalLM", {"granitemoehybrid"}, {"GraniteMoeHybridForCausalLM"},
    "granitehybrid", MODEL_PREFIXES, granite_hybrid_rules, gguf_granite_hybrid_rules,
    T_EXPERTS | T_EXPERTS_OR_NOT | T_GGUF_INTERLEAVED | T_TIED | T_RECURRENT, granite_hybrid, gguf_granite_hybrid};

/* ---- Qwen3-Next, Qwen3.5: three layers of the gated delta rule, then one of attention whose results are gated ---- */

#define MLP LAYER "mlp."
#define DELTA LAYER "linear_attn."

/* Heads of q_proj are a query and a gate each. */
#define QWEN_ATTENTION                                                                             \
    RULE_EMBED("model.embed_tokens"), RULE("input_layernorm", LAYER "input_layernorm", 0),         \
        {"attention.qkv.weight",                                                                   \
         {LAYER "self_attn.q_proj.weight", LAYER "self_attn.k_proj.weight", LAYER "self_attn.v_proj.weight"}, \
         NRD_RULE_QUERY_ROWS},                                                                     \
        {"attention.gate.weight", {LAYER "self_attn.q_proj.weight"}, NRD_RULE_GATE_ROWS},          \
        RULE_HEAD_NORMS(LAYER "self_attn.q_norm", LAYER "self_attn.k_norm"),                       \
        RULE("attention.dense", LAYER "self_attn.o_proj", 0),                                      \
        RULE("post_layernorm", LAYER "post_attention_layernorm", 0),                               \
        RULE("transformer.ln_f", "model.norm", 0), RULE("lm_head", "lm_head", 0)

#define QWEN_DELTA                                                                                 \
    RULE_WEIGHT(NRD_RECURRENT "conv", DELTA "conv1d"),                                             \
        {NRD_RECURRENT "A", {DELTA "A_log"}, NRD_RULE_NEGATIVE_EXP},                               \
        {NRD_RECURRENT "dt_bias", {DELTA "dt_bias"}, 0}, RULE_WEIGHT(NRD_RECURRENT "norm", DELTA "norm"), \
        RULE_WEIGHT(NRD_RECURRENT "out", DELTA "out_proj")

#define QWEN_DELTA_APART                                                                           \
    RULE_WEIGHT(NRD_RECURRENT "in", DELTA "in_proj_qkv"), RULE_WEIGHT(NRD_RECURRENT "gate", DELTA "in_proj_z"), \
        RULE_WEIGHT(NRD_RECURRENT "beta", DELTA "in_proj_b"), RULE_WEIGHT(NRD_RECURRENT "alpha", DELTA "in_proj_a")

#define QWEN_SHARED                                                                                \
    RULE_WEIGHT("mlp.router", MLP "gate"),                                                         \
        RULE_SHARED(MLP "shared_expert.gate_proj", MLP "shared_expert.up_proj", MLP "shared_expert.down_proj"), \
        RULE_WEIGHT("mlp.shared_router", MLP "shared_expert_gate")

#define QWEN_MLP                                                                                   \
    RULE("mlp.fc", MLP "gate_proj", 0), RULE("mlp.gate", MLP "up_proj", 0), RULE("mlp.proj", MLP "down_proj", 0)

static const nrd_weight_rule qwen3_next_rules[] = {
    QWEN_ATTENTION,
    QWEN_DELTA,
    {NRD_RECURRENT "in.weight", {DELTA "in_proj_qkvz.weight"}, NRD_RULE_DELTA_GROUPS},
    {NRD_RECURRENT "gate.weight", {DELTA "in_proj_qkvz.weight"}, NRD_RULE_DELTA_GROUPS},
    {NRD_RECURRENT "beta.weight", {DELTA "in_proj_ba.weight"}, NRD_RULE_DELTA_GROUPS},
    {NRD_RECURRENT "alpha.weight", {DELTA "in_proj_ba.weight"}, NRD_RULE_DELTA_GROUPS},
    QWEN_MLP,
    QWEN_SHARED,
    RULE_EXPERTS(MLP "experts.#.gate_proj", MLP "experts.#.up_proj", MLP "experts.#.down_proj"),
    {0}};

static const nrd_weight_rule qwen3_5_rules[] = {QWEN_ATTENTION, QWEN_DELTA, QWEN_DELTA_APART, QWEN_MLP, {0}};

static const nrd_weight_rule qwen3_5_moe_rules[] = {
    QWEN_ATTENTION,
    QWEN_DELTA,
    QWEN_DELTA_APART,
    QWEN_SHARED,
    {"mlp.experts.fc.weight", {MLP "experts.gate_up_proj"}, NRD_RULE_FIRST_HALF},
    {"mlp.experts.gate.weight", {MLP "experts.gate_up_proj"}, NRD_RULE_SECOND_HALF},
    {"mlp.experts.proj.weight", {MLP "experts.down_proj"}, 0},
    {0}};

static nrd_error *delta(nrd_model_spec *s, const nrd_json *c)
{
    nrd_recurrent_spec *r = &s->recurrent;
    const nrd_json *types = nrd_hf_get(c, "layer_types");
    int32_t interval = 4;

    NRD_TRY(nrd_hf_refuse(c, "attention_bias"));
    NRD_TRY(nrd_hf_int(c, "head_dim", 256, &s->head_dim));
    const double part = nrd_json_num(nrd_hf_get(c, "partial_rotary_factor"),
                                     nrd_json_get_num(nrd_json_get(c, "rope_parameters"), "partial_rotary_factor", 0.25));
    s->rope.rotary_dim = part > 0 && part <= 1 ? (int32_t)((double)s->head_dim * part) : 0;
    s->attn_gate = true;
    r->kind = NRD_RECURRENT_DELTA;
    NRD_TRY(nrd_hf_int(c, "linear_num_value_heads", 32, &r->n_heads));
    NRD_TRY(nrd_hf_int(c, "linear_value_head_dim", 128, &r->head_dim));
    NRD_TRY(nrd_hf_int(c, "linear_num_key_heads", 16, &r->n_groups));
    NRD_TRY(nrd_hf_int(c, "linear_key_head_dim", 128, &r->n_state));
    NRD_TRY(nrd_hf_int(c, "linear_conv_kernel_dim", 4, &r->kernel));
    r->norm_groups = r->n_heads;
    r->norm_eps = s->norm_eps;
    r->dt_max = INFINITY;
    if (types) {
        NRD_TRY(nrd_hf_state_layers(s, types, "linear_attention"));
    } else {
        NRD_TRY(nrd_hf_int(c, "full_attention_interval", 4, &interval));
        if (interval < 1) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'full_attention_interval' must be above 0, got %d", interval);
        }
        for (int32_t i = 0; i < s->n_layers; i++) {
            s->layer_is_recurrent[i] = (i + 1) % interval != 0;
        }
    }
    settle(s);
    return NULL;
}

static nrd_error *delta_moe(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(delta(s, c));
    NRD_TRY(nrd_hf_int(c, "shared_expert_intermediate_size", 512, &s->moe.shared_inter));
    s->moe.shared_gate = s->moe.shared_inter > 0;
    NRD_TRY(nrd_hf_qwen_experts(s, c));
    s->moe.normalize = nrd_json_get_bool(c, "norm_topk_prob", true);
    return NULL;
}

#define QWEN_TRAITS (T_QK_NORM | T_NORM_PLUS_ONE | T_RECURRENT)

/* The axes of pictures' positions take turns, of the pairs that turn at all. */
static nrd_error *delta_axes(nrd_model_spec *s, const nrd_json *c)
{
    static const int32_t usual[NRD_ROPE_AXES] = {11, 11, 10};
    const nrd_json *sections = nrd_json_get(nrd_hf_get(c, "rope_parameters|rope_scaling"), "mrope_section");

    if (sections || s->rope.rotary_dim == 2 * (usual[0] + usual[1] + usual[2])) {
        memcpy(s->rope.sections, usual, sizeof usual);
        s->rope.sections_by_turns = true;
    }
    return nrd_rope_read_sections(&s->rope, sections);
}

#define GGUF_QWEN_DELTA                                                                            \
    RULE_EMBED("token_embd"), RULE("input_layernorm", BLOCK "attn_norm", 0),                       \
        {"attention.qkv.weight", {BLOCK "attn_q.weight", BLOCK "attn_k.weight", BLOCK "attn_v.weight"}, NRD_RULE_QUERY_ROWS}, \
        {"attention.gate.weight", {BLOCK "attn_q.weight"}, NRD_RULE_GATE_ROWS},                    \
        RULE_HEAD_NORMS(BLOCK "attn_q_norm", BLOCK "attn_k_norm"), RULE("attention.dense", BLOCK "attn_output", 0), \
        RULE("post_layernorm", BLOCK "post_attention_norm", 0), RULE_WEIGHT(NRD_RECURRENT "conv", BLOCK "ssm_conv1d"), \
        {NRD_RECURRENT "A", {BLOCK "ssm_a"}, 0}, {NRD_RECURRENT "dt_bias", {BLOCK "ssm_dt.bias"}, 0}, \
        RULE_WEIGHT(NRD_RECURRENT "norm", BLOCK "ssm_norm"), RULE_WEIGHT(NRD_RECURRENT "out", BLOCK "ssm_out"), \
        RULE("transformer.ln_f", "output_norm", 0), RULE("lm_head", "output", 0)

#define GGUF_QWEN_DELTA_APART                                                                      \
    RULE_WEIGHT(NRD_RECURRENT "in", BLOCK "attn_qkv"), RULE_WEIGHT(NRD_RECURRENT "gate", BLOCK "attn_gate"), \
        RULE_WEIGHT(NRD_RECURRENT "beta", BLOCK "ssm_beta"), RULE_WEIGHT(NRD_RECURRENT "alpha", BLOCK "ssm_alpha")

#define GGUF_QWEN_EXPERTS                                                                          \
    RULE_WEIGHT("mlp.router", BLOCK "ffn_gate_inp"),                                               \
        RULE_SHARED(BLOCK "ffn_gate_shexp", BLOCK "ffn_up_shexp", BLOCK "ffn_down_shexp"),         \
        RULE_WEIGHT("mlp.shared_router", BLOCK "ffn_gate_inp_shexp"),                              \
        {"mlp.experts.fc.weight", {BLOCK "ffn_gate_exps.weight"}, NRD_RULE_IF_THERE},              \
        {"mlp.experts.gate.weight", {BLOCK "ffn_up_exps.weight"}, NRD_RULE_IF_THERE},              \
        {"mlp.experts.fc.weight", {BLOCK "ffn_gate_up_exps.weight"}, NRD_RULE_FIRST_HALF | NRD_RULE_IF_THERE}, \
        {"mlp.experts.gate.weight", {BLOCK "ffn_gate_up_exps.weight"}, NRD_RULE_SECOND_HALF | NRD_RULE_IF_THERE}, \
        {"mlp.experts.proj.weight", {BLOCK "ffn_down_exps.weight"}, 0}

/* Older files have q, k, v and the gate in one, by key heads; beta and alpha are so in all. */
static const nrd_weight_rule gguf_qwen3_next_rules[] = {
    GGUF_QWEN_DELTA,
    {NRD_RECURRENT "in.weight", {BLOCK "attn_qkv.weight"}, NRD_RULE_IF_THERE},
    {NRD_RECURRENT "gate.weight", {BLOCK "attn_gate.weight"}, NRD_RULE_IF_THERE},
    {NRD_RECURRENT "in.weight", {BLOCK "ssm_in.weight"}, NRD_RULE_DELTA_GROUPS | NRD_RULE_IF_THERE},
    {NRD_RECURRENT "gate.weight", {BLOCK "ssm_in.weight"}, NRD_RULE_DELTA_GROUPS | NRD_RULE_IF_THERE},
    {NRD_RECURRENT "beta.weight", {BLOCK "ssm_ba.weight"}, NRD_RULE_DELTA_GROUPS},
    {NRD_RECURRENT "alpha.weight", {BLOCK "ssm_ba.weight"}, NRD_RULE_DELTA_GROUPS},
    GGUF_QWEN_EXPERTS,
    {0}};

static const nrd_weight_rule gguf_qwen3_5_rules[] = {
    GGUF_QWEN_DELTA,
    GGUF_QWEN_DELTA_APART,
    RULE("mlp.fc", BLOCK "ffn_gate", 0),
    RULE("mlp.gate", BLOCK "ffn_up", 0),
    RULE("mlp.proj", BLOCK "ffn_down", 0),
    {0}};

static const nrd_weight_rule gguf_qwen3_5_moe_rules[] = {GGUF_QWEN_DELTA, GGUF_QWEN_DELTA_APART, GGUF_QWEN_EXPERTS, {0}};

static nrd_error *gguf_delta(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    nrd_recurrent_spec *r = &s->recurrent;

    /* behind the last layer there may be one that guesses further tokens */
    s->n_layers -= nrd_family_small(nrd_gguf_key(g, arch, "nextn_predict_layers", 0));
    if (s->n_layers < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s.nextn_predict_layers' leaves no layers", arch);
    }
    nrd_gguf_mamba2(s, g, arch); /* the keys are the same */
    if (nrd_spec_is_recurrent(s)) {
        r->kind = NRD_RECURRENT_DELTA;
        r->norm_groups = r->n_heads;
        r->conv_bias = false;
        /* llama.cpp's writer turns the order of value heads, so that key heads take turns; not Qwen3-Next's */
        r->keys_by_turns = strcmp(arch, "qwen3next") != 0;
    }
    s->attn_gate = true;
    s->rope.sections_by_turns = true;
    nrd_gguf_axes(s, g, arch);
    return NULL;
}

static nrd_error *gguf_qwen3_5(nrd_model_spec *s, const nrd_gguf *g)
{
    return gguf_delta(s, g, "qwen35");
}

static nrd_error *gguf_delta_moe(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    NRD_TRY(gguf_delta(s, g, arch));
    nrd_gguf_experts(s, g, arch);
    s->moe.shared_inter = nrd_family_small(nrd_gguf_key(g, arch, "expert_shared_feed_forward_length", 0));
    s->moe.shared_gate = s->moe.shared_inter > 0;
    s->moe.normalize = true;
    return NULL;
}

static nrd_error *gguf_qwen3_next(nrd_model_spec *s, const nrd_gguf *g)
{
    return gguf_delta_moe(s, g, "qwen3next");
}

static nrd_error *gguf_qwen3_5_moe(nrd_model_spec *s, const nrd_gguf *g)
{
    return gguf_delta_moe(s, g, "qwen35moe");
}

static nrd_error *qwen3_5(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(delta(s, c));
    return delta_axes(s, c);
}

static nrd_error *qwen3_5_moe(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(delta_moe(s, c));
    return delta_axes(s, c);
}

const nrd_arch nrd_arch_qwen3_next = {
    "qwen3_next", "Qwen3NextForCausalLM", {"qwen3_next"}, {"Qwen3NextForCausalLM"}, "qwen3next", MODEL_PREFIXES,
    qwen3_next_rules, gguf_qwen3_next_rules, QWEN_TRAITS | T_EXPERTS, delta_moe, gguf_qwen3_next};

const nrd_arch nrd_arch_qwen3_5 = {
    "qwen3_5", "Qwen3_5ForCausalLM", {"qwen3_5_text", "qwen3_5"}, {"Qwen3_5ForCausalLM"}, "qwen35", MODEL_PREFIXES,
    qwen3_5_rules, gguf_qwen3_5_rules, QWEN_TRAITS, qwen3_5, gguf_qwen3_5};

const nrd_arch nrd_arch_qwen3_5_moe = {
    "qwen3_5_moe", "Qwen3_5MoeForCausalLM", {"qwen3_5_moe_text", "qwen3_5_moe"}, {"Qwen3_5MoeForCausalLM"}, "qwen35moe",
    MODEL_PREFIXES, qwen3_5_moe_rules, gguf_qwen3_5_moe_rules, QWEN_TRAITS | T_EXPERTS, qwen3_5_moe, gguf_qwen3_5_moe};
