/* SPDX-License-Identifier: Apache-2.0
 * DeepSeek V2 and V3, and models of the same classes (R1, Moonlight, Kimi K2): latent attention, and experts that are
 * chosen by groups, with experts that all tokens see and an MLP in the first layers. The layer behind the last
 * (multi-token prediction) is planned as a network of its own (nrd_hf_mtp_rules). Then two that have an MLP in every layer:
 * Youtu and MiniCPM3. */
#include "model/families/family.h"
#include "model/needs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LAYER "model.layers.*."
#define ATTN LAYER "self_attn."
#define MLP LAYER "mlp."

/* MLX's folders have the heads' matrices apart, the keys' turned. */
static const nrd_weight_rule rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE_WEIGHT("input_layernorm", LAYER "input_layernorm"),
    RULE_WEIGHT("attention.q_a", ATTN "q_a_proj"),
    RULE_WEIGHT("attention.q_a_layernorm", ATTN "q_a_layernorm"),
    {"attention.q_b.weight", {ATTN "q_b_proj.weight|" ATTN "q_proj.weight"}, 0},
    RULE_WEIGHT("attention.kv_a", ATTN "kv_a_proj_with_mqa"),
    RULE_WEIGHT("attention.kv_a_layernorm", ATTN "kv_a_layernorm"),
    {"attention.k_b.weight", {ATTN "embed_q.weight"}, NRD_RULE_TURNED_HEADS | NRD_RULE_HEADS_APART | NRD_RULE_IF_THERE},
    {"attention.v_b.weight", {ATTN "unembed_out.weight"}, NRD_RULE_HEADS_APART | NRD_RULE_IF_THERE},
    {"attention.k_b.weight", {ATTN "kv_b_proj.weight"}, NRD_RULE_HEAD_KEYS | NRD_RULE_IF_THERE},
    {"attention.v_b.weight", {ATTN "kv_b_proj.weight"}, NRD_RULE_HEAD_VALUES | NRD_RULE_IF_THERE},
    RULE_WEIGHT("attention.dense", ATTN "o_proj"),
    RULE_WEIGHT("post_layernorm", LAYER "post_attention_layernorm"),
    RULE_WEIGHT("mlp.fc", MLP "gate_proj"),
    RULE_WEIGHT("mlp.gate", MLP "up_proj"),
    RULE_WEIGHT("mlp.proj", MLP "down_proj"),
    RULE_WEIGHT("mlp.router", MLP "gate"),
    {"mlp." NRD_SCORE_BIAS, {MLP "gate.e_score_correction_bias"}, 0},
    RULE_EXPERTS(MLP "experts.#.gate_proj", MLP "experts.#.up_proj", MLP "experts.#.down_proj"),
    RULE_SHARED(MLP "shared_experts.gate_proj", MLP "shared_experts.up_proj", MLP "shared_experts.down_proj"),
    RULE_WEIGHT("transformer.ln_f", "model.norm"),
    RULE_WEIGHT("lm_head", "lm_head"),
    {0}};

/* Files have the heads' matrices in one as above, or apart, the keys' turned. */
#define BLOCK "blk.*."
static const nrd_weight_rule gguf_rules[] = {
    RULE_EMBED("token_embd"),
    RULE_WEIGHT("input_layernorm", BLOCK "attn_norm"),
    RULE_WEIGHT("attention.q_a", BLOCK "attn_q_a"),
    RULE_WEIGHT("attention.q_a_layernorm", BLOCK "attn_q_a_norm"),
    {"attention.q_b.weight", {BLOCK "attn_q_b.weight|" BLOCK "attn_q.weight"}, 0},
    RULE_WEIGHT("attention.kv_a", BLOCK "attn_kv_a_mqa"),
    RULE_WEIGHT("attention.kv_a_layernorm", BLOCK "attn_kv_a_norm"),
    {"attention.k_b.weight", {BLOCK "attn_kv_b.weight"}, NRD_RULE_HEAD_KEYS | NRD_RULE_IF_THERE},
    {"attention.v_b.weight", {BLOCK "attn_kv_b.weight"}, NRD_RULE_HEAD_VALUES | NRD_RULE_IF_THERE},
    {"attention.k_b.weight", {BLOCK "attn_k_b.weight"}, NRD_RULE_TURNED_HEADS | NRD_RULE_HEADS_APART | NRD_RULE_IF_THERE},
    {"attention.v_b.weight", {BLOCK "attn_v_b.weight"}, NRD_RULE_HEADS_APART | NRD_RULE_IF_THERE},
    RULE_WEIGHT("attention.dense", BLOCK "attn_output"),
    RULE_WEIGHT("post_layernorm", BLOCK "ffn_norm"),
    RULE_WEIGHT("mlp.fc", BLOCK "ffn_gate"),
    RULE_WEIGHT("mlp.gate", BLOCK "ffn_up"),
    RULE_WEIGHT("mlp.proj", BLOCK "ffn_down"),
    RULE_WEIGHT("mlp.router", BLOCK "ffn_gate_inp"),
    {"mlp." NRD_SCORE_BIAS, {BLOCK "exp_probs_b.bias"}, 0},
    RULE_EXPERTS(BLOCK "ffn_gate_exps", BLOCK "ffn_up_exps", BLOCK "ffn_down_exps"),
    RULE_SHARED(BLOCK "ffn_gate_shexp", BLOCK "ffn_up_shexp", BLOCK "ffn_down_shexp"),
    RULE_WEIGHT("transformer.ln_f", "output_norm"),
    RULE_WEIGHT("lm_head", "output"),
    {0}};

/* ---- config.json ---- */

/* What both readers end with: the head's sizes, and the scale of scores, which grows with `mscale` squared. */
static void settle_heads(nrd_model_spec *s, double mscale)
{
    nrd_latent_spec *l = &s->latent;
    const int64_t dim = (int64_t)l->nope_dim + l->rope_dim;

    s->n_kv_heads = s->n_heads;
    s->head_dim = dim > 0 && dim <= INT32_MAX ? (int32_t)dim : 0;
    s->rope.rotary_dim = l->rope_dim;
    s->attn_scale = (float)(mscale * mscale / sqrt((double)(s->head_dim > 0 ? s->head_dim : 1)));
    l->norm_eps = 1e-6f; /* whatever the others have */
}

/* Of YaRN: beside what it does to cos and sin, all of a query's product with a key grows. */
static double score_mscale(const nrd_json *c)
{
    const nrd_json *rope = nrd_hf_get(c, "rope_parameters|rope_scaling");
    const double factor = nrd_json_get_num(rope, "factor", 1), all = nrd_json_get_num(rope, "mscale_all_dim", 0);
    return factor > 1 ? 0.1 * all * log(factor) + 1 : 1;
}

/* v_dim: where no key says it. */
static nrd_error *attention(nrd_model_spec *s, const nrd_json *c, int64_t v_dim)
{
    nrd_latent_spec *l = &s->latent;

    NRD_TRY(nrd_hf_int(c, "kv_lora_rank", NRD_HF_REQUIRED, &l->kv_rank));
    NRD_TRY(nrd_hf_int(c, "q_lora_rank", 0, &l->q_rank));
    NRD_TRY(nrd_hf_int(c, "qk_nope_head_dim", NRD_HF_REQUIRED, &l->nope_dim));
    NRD_TRY(nrd_hf_int(c, "qk_rope_head_dim", NRD_HF_REQUIRED, &l->rope_dim));
    NRD_TRY(nrd_hf_int(c, "v_head_dim", v_dim, &l->v_dim));
    if (l->kv_rank < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'kv_lora_rank' must be above 0, got %d", l->kv_rank);
    }
    NRD_TRY(nrd_hf_refuse(c, "attention_bias"));
    settle_heads(s, score_mscale(c));
    return NULL;
}

static nrd_error *shared_and_dense(nrd_model_spec *s, int32_t n_shared, int32_t n_dense)
{
    nrd_moe_spec *m = &s->moe;

    if (n_shared < 0 || n_shared > 1024 || m->inter < 0 || (int64_t)n_shared * m->inter > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'n_shared_experts' must be between 0 and 1024, got %d", n_shared);
    }
    m->shared_inter = n_shared * m->inter;
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_dense[i] = i < n_dense;
    }
    s->inter = n_dense > 0 ? s->inter : m->inter;
    return NULL;
}

static nrd_error *experts(nrd_model_spec *s, const nrd_json *c, int32_t dense_by_default)
{
    nrd_moe_spec *m = &s->moe;
    int32_t n_shared = 0, n_dense = 0, every = 1;
    double scale = 1;

    NRD_TRY(nrd_hf_int(c, "n_routed_experts", NRD_HF_REQUIRED, &m->n_experts));
    NRD_TRY(nrd_hf_int(c, "num_experts_per_tok", NRD_HF_REQUIRED, &m->top_k));
    NRD_TRY(nrd_hf_int(c, "moe_intermediate_size", NRD_HF_REQUIRED, &m->inter));
    NRD_TRY(nrd_hf_int(c, "n_shared_experts", 0, &n_shared));
    NRD_TRY(nrd_hf_int(c, "first_k_dense_replace", dense_by_default, &n_dense));
    NRD_TRY(nrd_hf_int(c, "moe_layer_freq", 1, &every));
    NRD_TRY(nrd_hf_scale(c, "routed_scaling_factor", &scale));
    if (every != 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'moe_layer_freq' must be 1, got %d", every);
    }
    m->scale = (float)scale;
    return shared_and_dense(s, n_shared, n_dense);
}

/* UNSUPPORTED where a key says something else than `only`. */
static nrd_error *only(const nrd_json *c, const char *key, const char *want)
{
    const char *got = nrd_json_str(nrd_hf_get(c, key), want);
    return strcmp(got, want) ? nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' must be %s in this family, got '%s'", key, want, got)
                             : NULL;
}

static nrd_error *deepseek_v2(nrd_model_spec *s, const nrd_json *c)
{
    const char *method = nrd_json_str(nrd_hf_get(c, "topk_method"), "greedy");

    NRD_TRY(attention(s, c, NRD_HF_REQUIRED));
    NRD_TRY(experts(s, c, 0));
    NRD_TRY(only(c, "scoring_func", "softmax"));
    NRD_TRY(nrd_hf_refuse(c, "norm_topk_prob"));
    if (!strcmp(method, "group_limited_greedy")) {
        s->moe.group_max = true;
        NRD_TRY(nrd_hf_int(c, "n_group", NRD_HF_REQUIRED, &s->moe.n_groups));
        return nrd_hf_int(c, "topk_group", NRD_HF_REQUIRED, &s->moe.top_groups);
    }
    return only(c, "topk_method", "greedy");
}

static nrd_error *v3(nrd_model_spec *s, const nrd_json *c, int32_t dense_by_default)
{
    s->moe.score = NRD_MOE_SIGMOID;
    s->moe.score_bias = true;
    s->moe.normalize = nrd_json_get_bool(c, "norm_topk_prob", true);
    s->rope.kind = nrd_json_get_bool(c, "rope_interleave", true) ? NRD_ROPE_INTERLEAVED : NRD_ROPE_NEOX;
    NRD_TRY(attention(s, c, NRD_HF_REQUIRED));
    NRD_TRY(experts(s, c, dense_by_default));
    NRD_TRY(nrd_hf_int(c, "n_group", 1, &s->moe.n_groups));
    NRD_TRY(nrd_hf_int(c, "topk_group", 1, &s->moe.top_groups));
    NRD_TRY(only(c, "scoring_func", "sigmoid"));
    return only(c, "topk_method", "noaux_tc");
}

static nrd_error *deepseek_v3(nrd_model_spec *s, const nrd_json *c)
{
    return v3(s, c, 3);
}

/* GLM-4.7-Flash: DeepSeek-V3 with one dense layer where no key says how many. */
static nrd_error *glm4_moe_lite(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(v3(s, c, 1));
    return nrd_hf_mlp_layer_types(s, c);
}

/* ---- GGUF ---- */

static int32_t gguf_size(const nrd_gguf *g, const char *name, int64_t fallback)
{
    char key[80];
    snprintf(key, sizeof key, "deepseek2.%s", name);
    const int64_t v = nrd_gguf_int(g, key, fallback);
    return v < 0 || v > INT32_MAX ? -1 : (int32_t)v; /* the checks of the spec refuse that */
}

/* The family of V3 by what is done with the router's numbers, which older files leave out. */
enum { GATING_SOFTMAX = 1, GATING_SIGMOID = 2 };

static nrd_error *gguf_experts(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_moe_spec *m = &s->moe;
    const int32_t gating = gguf_size(g, "expert_gating_func", 0);

    if (gating == GATING_SIGMOID) {
        m->score = NRD_MOE_SIGMOID;
        snprintf(s->model_type, sizeof s->model_type, "deepseek_v3");
        snprintf(s->architecture, sizeof s->architecture, "DeepseekV3ForCausalLM");
    } else if (gating != 0 && gating != GATING_SOFTMAX) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'deepseek2.expert_gating_func' must be 1 or 2, got %d", gating);
    }
    m->n_experts = gguf_size(g, "expert_count", 0);
    m->top_k = gguf_size(g, "expert_used_count", 0);
    m->inter = gguf_size(g, "expert_feed_forward_length", 0);
    m->n_groups = gguf_size(g, "expert_group_count", 1);
    m->top_groups = gguf_size(g, "expert_group_used_count", 1);
    m->group_max = gating != GATING_SIGMOID && m->n_groups > 1;
    m->scale = (float)nrd_gguf_num(g, "deepseek2.expert_weights_scale", 1);
    m->normalize = nrd_gguf_bool(g, "deepseek2.expert_weights_norm", false);
    for (int32_t i = 0; i < s->n_layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.exp_probs_b.bias", i);
        m->score_bias = m->score_bias || nrd_gguf_find_tensor(g, name);
    }
    return shared_and_dense(s, gguf_size(g, "expert_shared_count", 0), gguf_size(g, "leading_dense_block_count", 0));
}

static nrd_error *gguf_deepseek(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_latent_spec *l = &s->latent;
    const double factor = nrd_gguf_num(g, "deepseek2.rope.scaling.factor", 1);
    const double log_mul = nrd_gguf_num(g, "deepseek2.rope.scaling.yarn_log_multiplier", 0);
    /* newer files say the lengths of heads under other names, and those of the cached row under these */
    const int32_t key = gguf_size(g, "attention.key_length_mla", gguf_size(g, "attention.key_length", 0));

    l->kv_rank = gguf_size(g, "attention.kv_lora_rank", 0);
    l->q_rank = gguf_size(g, "attention.q_lora_rank", 0);
    l->rope_dim = gguf_size(g, "rope.dimension_count", 0);
    l->v_dim = gguf_size(g, "attention.value_length_mla", gguf_size(g, "attention.value_length", 0));
    l->nope_dim = key > l->rope_dim ? key - l->rope_dim : 0;
    if (l->kv_rank < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'deepseek2.attention.kv_lora_rank' must be above 0, got %d", l->kv_rank);
    }
    settle_heads(s, factor > 1 ? 1 + log_mul * log(factor) : 1);
    s->rope.attention_factor = 1; /* cos and sin are not scaled where both scales of YaRN are alike: files have one */
    return gguf_experts(s, g);
}

/* Files of both families call themselves the same. */
const nrd_arch nrd_arch_deepseek_v2 = {
    "deepseek_v2", "DeepseekV2ForCausalLM", {"deepseek_v2"}, {"DeepseekV2ForCausalLM"}, "deepseek2", MODEL_PREFIXES,
    rules, gguf_rules, T_EXPERTS | T_ROPE_INTERLEAVED, deepseek_v2, gguf_deepseek};

const nrd_arch nrd_arch_deepseek_v3 = {
    "deepseek_v3", "DeepseekV3ForCausalLM", {"deepseek_v3", "kimi_k2"}, {"DeepseekV3ForCausalLM"}, "deepseek2",
    MODEL_PREFIXES, rules, gguf_rules, T_EXPERTS | T_ROPE_INTERLEAVED, deepseek_v3, gguf_deepseek};

const nrd_arch nrd_arch_glm4_moe_lite = {
    "glm4_moe_lite", "Glm4MoeLiteForCausalLM", {"glm4_moe_lite"}, {"Glm4MoeLiteForCausalLM"}, NULL,
    MODEL_PREFIXES, rules, NULL, T_EXPERTS | T_ROPE_INTERLEAVED, glm4_moe_lite, NULL};

/* Youtu: the attention of DeepSeek-V3, and an MLP. */
static nrd_error *youtu(nrd_model_spec *s, const nrd_json *c)
{
    s->rope.kind = nrd_json_get_bool(c, "rope_interleave", true) ? NRD_ROPE_INTERLEAVED : NRD_ROPE_NEOX;
    return attention(s, c, NRD_HF_REQUIRED);
}

const nrd_arch nrd_arch_youtu = {
    "youtu", "YoutuForCausalLM", {"youtu"}, {"YoutuForCausalLM"}, NULL,
    MODEL_PREFIXES, rules, NULL, T_ROPE_INTERLEAVED | T_TIED, youtu, NULL};

/* ---- MiniCPM3: positions in two halves, and the scales of MiniCPM ---- */

/* What its first model has. GGUF files say none of them: readers know them. */
static const double minicpm3_embedding = 12, minicpm3_depth = 1.4, minicpm3_base = 256;

/* A layer adds depth / sqrt(layers) of what it computes; logits are those of a model `base` wide. */
static nrd_error *minicpm3_scales(nrd_model_spec *s, double embedding, double depth, double base)
{
    return nrd_family_scales(s, embedding, depth / sqrt((double)s->n_layers), s->attn_scale, s->hidden / base);
}

/* A key that is null: no scale, which `none` stands for. */
static nrd_error *scale_or_none(const nrd_json *c, const char *key, double none, double *out)
{
    if (nrd_json_is(nrd_json_get(c, key), NRD_JSON_NULL)) {
        *out = none;
    }
    return nrd_hf_scale(c, key, out);
}

static nrd_error *minicpm3(nrd_model_spec *s, const nrd_json *c)
{
    double embedding = minicpm3_embedding, depth = minicpm3_depth, base = minicpm3_base;

    NRD_TRY(attention(s, c, s->hidden / s->n_heads));
    NRD_TRY(nrd_hf_scale(c, "scale_emb", &embedding));
    NRD_TRY(scale_or_none(c, "scale_depth", sqrt((double)s->n_layers), &depth));
    NRD_TRY(scale_or_none(c, "dim_model_base", s->hidden, &base));
    return minicpm3_scales(s, embedding, depth, base);
}

static nrd_error *gguf_minicpm3(nrd_model_spec *s, const nrd_gguf *g)
{
    static const char arch[] = "minicpm3";
    nrd_latent_spec *l = &s->latent;
    const int32_t key = nrd_family_small(nrd_gguf_key(g, arch, "attention.key_length", 0));

    l->kv_rank = nrd_family_small(nrd_gguf_key(g, arch, "attention.kv_lora_rank", 0));
    l->q_rank = nrd_family_small(nrd_gguf_key(g, arch, "attention.q_lora_rank", 0));
    l->rope_dim = nrd_family_small(nrd_gguf_key(g, arch, "rope.dimension_count", 0));
    l->v_dim = nrd_family_small(nrd_gguf_key(g, arch, "attention.value_length", s->hidden / s->n_heads));
    l->nope_dim = key > l->rope_dim ? key - l->rope_dim : 0;
    if (l->kv_rank < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'minicpm3.attention.kv_lora_rank' must be above 0, got %d", l->kv_rank);
    }
    settle_heads(s, 1);
    NRD_TRY(nrd_gguf_longrope(s, g, arch));
    return minicpm3_scales(s, minicpm3_embedding, minicpm3_depth, minicpm3_base);
}

const nrd_arch nrd_arch_minicpm3 = {
    "minicpm3", "MiniCPM3ForCausalLM", {"minicpm3"}, {"MiniCPM3ForCausalLM"}, "minicpm3", MODEL_PREFIXES,
    rules, gguf_rules, T_TIED, minicpm3, gguf_minicpm3};
