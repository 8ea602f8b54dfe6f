/* SPDX-License-Identifier: Apache-2.0
 * Families with experts: a Llama whose MLP is many, of which each token takes a few. Others with experts:
 * moe_more.c. */
#include "model/families/family.h"
#include "model/needs.h"

#include <stdio.h>
#include <string.h>

#define LAYER "model.layers.*."
#define MLP LAYER "mlp."
#define BLOCK LAYER "block_sparse_moe."

#define ATTENTION                                                                                  \
    RULE_EMBED("model.embed_tokens"), RULE("input_layernorm", LAYER "input_layernorm", 0),         \
        RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),    \
        RULE_HEAD_NORMS(LAYER "self_attn.q_norm", LAYER "self_attn.k_norm"),                       \
        RULE("attention.dense", LAYER "self_attn.o_proj", 0),                                      \
        RULE("post_layernorm", LAYER "post_attention_layernorm", 0)
#define ENDS RULE("transformer.ln_f", "model.norm", 0), RULE("lm_head", "lm_head", 0)

/* ---- keys ---- */

/* Where no layer has an MLP of its own, its size is that of an expert. */
void nrd_family_settle_inter(nrd_model_spec *s)
{
    bool any = false;
    for (int32_t i = 0; i < s->n_layers; i++) {
        any = any || s->layer_is_dense[i];
    }
    s->inter = any ? s->inter : s->moe.inter;
}

nrd_error *nrd_hf_experts(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_int(c, "num_local_experts|num_experts|n_routed_experts", NRD_HF_REQUIRED, &s->moe.n_experts));
    NRD_TRY(nrd_hf_int(c, "num_experts_per_tok", NRD_HF_REQUIRED, &s->moe.top_k));
    return nrd_hf_int(c, "moe_intermediate_size", s->inter, &s->moe.inter);
}

/* Every decoder_sparse_step-th layer has experts, but those of mlp_only_layers (Qwen). */
static nrd_error *dense_layers(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *list = nrd_hf_get(c, "mlp_only_layers");
    int32_t step = 1;

    NRD_TRY(nrd_hf_int(c, "decoder_sparse_step", 1, &step));
    if (step < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'decoder_sparse_step' must be above 0, got %d", step);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_dense[i] = (i + 1) % step != 0;
    }
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const int64_t at = nrd_json_int(nrd_json_at(list, i), -1);
        if (at < 0 || at >= s->n_layers) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'mlp_only_layers' names layer %lld of %d", (long long)at,
                              s->n_layers);
        }
        s->layer_is_dense[at] = 1;
    }
    nrd_family_settle_inter(s);
    return NULL;
}

/* Layers without a router have an MLP. */
void nrd_gguf_experts(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    char name[64];

    s->moe.n_experts = nrd_family_small(nrd_gguf_key(g, arch, "expert_count", 0));
    s->moe.top_k = nrd_family_small(nrd_gguf_key(g, arch, "expert_used_count", 0));
    s->moe.inter = nrd_family_small(nrd_gguf_key(g, arch, "expert_feed_forward_length", s->inter));
    for (int32_t i = 0; i < s->n_layers; i++) {
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", i);
        s->layer_is_dense[i] = !nrd_gguf_find_tensor(g, name);
    }
    nrd_family_settle_inter(s);
}

/* ---- Mixtral ---- */

static const nrd_weight_rule mixtral_rules[] = {
    ATTENTION,
    RULE_WEIGHT("mlp.router", BLOCK "gate"),
    RULE_EXPERTS(BLOCK "experts.#.w1", BLOCK "experts.#.w3", BLOCK "experts.#.w2"),
    ENDS,
    {0}};

static nrd_error *mixtral(nrd_model_spec *s, const nrd_json *c)
{
    s->moe.normalize = true;
    return nrd_hf_experts(s, c);
}

static nrd_error *gguf_mixtral(nrd_model_spec *s, const nrd_gguf *g)
{
    s->moe.normalize = true;
    nrd_gguf_experts(s, g, "llama");
    return NULL;
}

/* Its GGUF files call themselves Llama. */
const nrd_arch nrd_arch_mixtral = {
    "mixtral", "MixtralForCausalLM", {"mixtral"}, {"MixtralForCausalLM"}, "llama", MODEL_PREFIXES,
    mixtral_rules, nrd_gguf_experts_rules, T_EXPERTS | T_GGUF_INTERLEAVED | T_WINDOW_ALL, mixtral, gguf_mixtral};

/* ---- Qwen, OLMoE ---- */

static const nrd_weight_rule qwen_rules[] = {
    ATTENTION,
    RULE("mlp.fc", MLP "gate_proj", 0),
    RULE("mlp.gate", MLP "up_proj", 0),
    RULE("mlp.proj", MLP "down_proj", 0),
    RULE_WEIGHT("mlp.router", MLP "gate"),
    {"mlp." NRD_SCORE_BIAS, {MLP "gate.e_score_correction_bias"}, 0},
    RULE_EXPERTS(MLP "experts.#.gate_proj", MLP "experts.#.up_proj", MLP "experts.#.down_proj"),
    {"mlp.shared.fc.weight", {MLP "shared_expert.gate_proj.weight|" MLP "shared_experts.gate_proj.weight"}, 0},
    {"mlp.shared.gate.weight", {MLP "shared_expert.up_proj.weight|" MLP "shared_experts.up_proj.weight"}, 0},
    {"mlp.shared.proj.weight", {MLP "shared_expert.down_proj.weight|" MLP "shared_experts.down_proj.weight"}, 0},
    RULE_WEIGHT("mlp.shared_router", MLP "shared_expert_gate"),
    ENDS,
    {0}};

static nrd_error *qwen3_moe(nrd_model_spec *s, const nrd_json *c)
{
    s->moe.normalize = nrd_json_get_bool(c, "norm_topk_prob", false);
    NRD_TRY(nrd_hf_experts(s, c));
    return dense_layers(s, c);
}

nrd_error *nrd_hf_qwen_experts(nrd_model_spec *s, const nrd_json *c)
{
    return qwen3_moe(s, c);
}

static nrd_error *gguf_qwen3_moe(nrd_model_spec *s, const nrd_gguf *g)
{
    s->moe.normalize = true;
    nrd_gguf_experts(s, g, "qwen3moe");
    return NULL;
}

const nrd_arch nrd_arch_qwen3_moe = {
    "qwen3_moe", "Qwen3MoeForCausalLM", {"qwen3_moe"}, {"Qwen3MoeForCausalLM"}, "qwen3moe", MODEL_PREFIXES,
    qwen_rules, nrd_gguf_experts_rules, T_EXPERTS | T_QK_NORM | T_WINDOW_OPT_IN, qwen3_moe, gguf_qwen3_moe};

/* Qwen3-VL's: experts stacked as [in, out], their weights always add up to 1. */
#define GATE_UP MLP "experts.gate_up_proj"
static const nrd_weight_rule qwen3_vl_moe_rules[] = {
    ATTENTION,
    RULE("mlp.fc", MLP "gate_proj", 0),
    RULE("mlp.gate", MLP "up_proj", 0),
    RULE("mlp.proj", MLP "down_proj", 0),
    RULE_WEIGHT("mlp.router", MLP "gate"),
    {"mlp.experts.fc.weight", {GATE_UP}, NRD_RULE_TRANSPOSE | NRD_RULE_FIRST_HALF},
    {"mlp.experts.gate.weight", {GATE_UP}, NRD_RULE_TRANSPOSE | NRD_RULE_SECOND_HALF},
    {"mlp.experts.proj.weight", {MLP "experts.down_proj"}, NRD_RULE_TRANSPOSE},
    ENDS,
    {0}};

static nrd_error *qwen3_vl_moe(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_qwen3_axes(s, c));
    NRD_TRY(qwen3_moe(s, c));
    s->moe.normalize = true;
    return NULL;
}

static nrd_error *gguf_qwen3_vl_moe(nrd_model_spec *s, const nrd_gguf *g)
{
    s->moe.normalize = s->rope.sections_by_turns = true;
    nrd_gguf_axes(s, g, "qwen3vlmoe");
    nrd_gguf_experts(s, g, "qwen3vlmoe");
    return NULL;
}

const nrd_arch nrd_arch_qwen3_vl_moe = {
    "qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", {"qwen3_vl_moe"}, {"Qwen3VLMoeForConditionalGeneration"}, "qwen3vlmoe", MODEL_PREFIXES,
    qwen3_vl_moe_rules, nrd_gguf_experts_rules, T_EXPERTS | T_QK_NORM, qwen3_vl_moe, gguf_qwen3_vl_moe};

static nrd_error *qwen2_moe(nrd_model_spec *s, const nrd_json *c)
{
    s->qkv_bias = nrd_json_get_bool(c, "qkv_bias", true);
    NRD_TRY(nrd_hf_int(c, "shared_expert_intermediate_size", NRD_HF_REQUIRED, &s->moe.shared_inter));
    s->moe.shared_gate = s->moe.shared_inter > 0;
    return qwen3_moe(s, c);
}

static nrd_error *gguf_qwen2_moe(nrd_model_spec *s, const nrd_gguf *g)
{
    s->moe.shared_inter = nrd_family_small(nrd_gguf_key(g, "qwen2moe", "expert_shared_feed_forward_length", s->inter));
    nrd_gguf_experts(s, g, "qwen2moe");
    s->moe.shared_gate = s->moe.shared_inter > 0;
    return NULL;
}

const nrd_arch nrd_arch_qwen2_moe = {
    "qwen2_moe", "Qwen2MoeForCausalLM", {"qwen2_moe"}, {"Qwen2MoeForCausalLM"}, "qwen2moe", MODEL_PREFIXES,
    qwen_rules, nrd_gguf_experts_rules, T_EXPERTS | T_QKV_BIAS | T_WINDOW_OPT_IN, qwen2_moe, gguf_qwen2_moe};

static nrd_error *olmoe(nrd_model_spec *s, const nrd_json *c)
{
    s->moe.normalize = nrd_json_get_bool(c, "norm_topk_prob", false);
    NRD_TRY(nrd_hf_clip_qkv(s, c));
    return nrd_hf_experts(s, c);
}

static nrd_error *gguf_olmoe(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_gguf_experts(s, g, "olmoe");
    return NULL;
}

const nrd_arch nrd_arch_olmoe = {
    "olmoe", "OlmoeForCausalLM", {"olmoe"}, {"OlmoeForCausalLM"}, "olmoe", MODEL_PREFIXES,
    qwen_rules, nrd_gguf_experts_rules, T_EXPERTS | T_QK_NORM | T_QK_NORM_WIDE, olmoe, gguf_olmoe};

/* FlexOlmo: OLMoE with the norms of OLMo 2, behind attention and experts. */
static const nrd_weight_rule flex_olmo_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE_HEAD_NORMS(LAYER "self_attn.q_norm", LAYER "self_attn.k_norm"),
    RULE("attention.dense", LAYER "self_attn.o_proj", 0),
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_attention_layernorm"),
    RULE_WEIGHT("mlp.router", MLP "gate"),
    RULE_EXPERTS(MLP "experts.#.gate_proj", MLP "experts.#.up_proj", MLP "experts.#.down_proj"),
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_feedforward_layernorm"),
    ENDS,
    {0}};

static nrd_error *flex_olmo(nrd_model_spec *s, const nrd_json *c)
{
    s->rope.base = 5e5;
    return olmoe(s, c);
}

const nrd_arch nrd_arch_flex_olmo = {
    "flex_olmo", "FlexOlmoForCausalLM", {"flex_olmo"}, {"FlexOlmoForCausalLM"}, NULL, MODEL_PREFIXES,
    flex_olmo_rules, NULL, T_EXPERTS | T_NO_PRE_NORMS | T_QK_NORM | T_QK_NORM_WIDE, flex_olmo, NULL};

/* ---- Granite ---- */

#define HALF(dst, src, flag) {dst ".weight", {src ".weight"}, flag}
static const nrd_weight_rule granite_rules[] = {
    ATTENTION,
    RULE_WEIGHT("mlp.router", BLOCK "router.layer"),
    HALF("mlp.experts.fc", BLOCK "input_linear", NRD_RULE_FIRST_HALF),
    HALF("mlp.experts.gate", BLOCK "input_linear", NRD_RULE_SECOND_HALF),
    RULE_WEIGHT("mlp.experts.proj", BLOCK "output_linear"),
    HALF("mlp.shared.fc", LAYER "shared_mlp.input_linear", NRD_RULE_FIRST_HALF),
    HALF("mlp.shared.gate", LAYER "shared_mlp.input_linear", NRD_RULE_SECOND_HALF),
    RULE_WEIGHT("mlp.shared.proj", LAYER "shared_mlp.output_linear"),
    ENDS,
    {0}};

static const nrd_weight_rule granite_swa_rules[] = {
    ATTENTION,
    {NRD_SINKS, {LAYER "self_attn.sinks"}, 0},
    RULE_WEIGHT("mlp.router", BLOCK "router"),
    {"mlp.experts.fc.weight", {BLOCK "experts.gate_up_proj"}, NRD_RULE_FIRST_HALF},
    {"mlp.experts.gate.weight", {BLOCK "experts.gate_up_proj"}, NRD_RULE_SECOND_HALF},
    {"mlp.experts.proj.weight", {BLOCK "experts.down_proj"}, 0},
    HALF("mlp.shared.fc", LAYER "shared_mlp.input_linear", NRD_RULE_FIRST_HALF),
    HALF("mlp.shared.gate", LAYER "shared_mlp.input_linear", NRD_RULE_SECOND_HALF),
    RULE_WEIGHT("mlp.shared.proj", LAYER "shared_mlp.output_linear"),
    ENDS,
    {0}};

/* The softmax goes over the chosen logits: the same as one over all, divided by the sum of the chosen. */
static nrd_error *granitemoe(nrd_model_spec *s, const nrd_json *c)
{
    s->moe.normalize = true;
    NRD_TRY(nrd_hf_experts(s, c));
    return nrd_hf_granite(s, c);
}

static nrd_error *granitemoeshared(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_int(c, "shared_intermediate_size", 0, &s->moe.shared_inter));
    return granitemoe(s, c);
}

static nrd_error *granitemoe_swa(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_granite_windows(s, c));
    return granitemoeshared(s, c);
}

static nrd_error *gguf_granitemoe(nrd_model_spec *s, const nrd_gguf *g)
{
    s->moe.normalize = true;
    nrd_gguf_experts(s, g, "granitemoe");
    s->moe.shared_inter = nrd_family_small(nrd_gguf_key(g, "granitemoe", "expert_shared_feed_forward_length", 0));
    return nrd_gguf_granite(s, g, "granitemoe");
}

const nrd_arch nrd_arch_granitemoe = {
    "granitemoe", "GraniteMoeForCausalLM", {"granitemoe"}, {"GraniteMoeForCausalLM"}, "granitemoe", MODEL_PREFIXES,
    granite_rules, nrd_gguf_experts_rules, T_EXPERTS | T_GGUF_INTERLEAVED, granitemoe, gguf_granitemoe};

/* The same in GGUF files, which say whether there is a shared expert. */
const nrd_arch nrd_arch_granitemoeshared = {
    "granitemoeshared", "GraniteMoeSharedForCausalLM", {"granitemoeshared"}, {"GraniteMoeSharedForCausalLM"}, NULL,
    MODEL_PREFIXES, granite_rules, nrd_gguf_experts_rules, T_EXPERTS | T_GGUF_INTERLEAVED, granitemoeshared, NULL};

const nrd_arch nrd_arch_granitemoe_swa = {
    "granitemoe_swa", "GraniteMoeSWAForCausalLM", {"granitemoe_swa"}, {"GraniteMoeSWAForCausalLM"}, NULL,
    MODEL_PREFIXES, granite_swa_rules, NULL, T_EXPERTS, granitemoe_swa, NULL};

/* ---- GLM 4.5: the routing of DeepSeek-V3 ---- */

nrd_error *nrd_hf_corrected(nrd_model_spec *s, const nrd_json *c, int32_t dense)
{
    nrd_moe_spec *m = &s->moe;
    double scale = 1;
    int32_t n_shared = 0, first = 0;

    m->score = NRD_MOE_SIGMOID;
    m->score_bias = true;
    m->normalize = nrd_json_get_bool(c, "norm_topk_prob", true);
    NRD_TRY(nrd_hf_experts(s, c));
    NRD_TRY(nrd_hf_scale(c, "routed_scaling_factor", &scale));
    NRD_TRY(nrd_hf_int(c, "n_group", 1, &m->n_groups));
    NRD_TRY(nrd_hf_int(c, "topk_group", 1, &m->top_groups));
    NRD_TRY(nrd_hf_int(c, "n_shared_experts|num_shared_experts", 1, &n_shared));
    NRD_TRY(nrd_hf_int(c, "first_k_dense_replace", dense, &first));
    if (n_shared < 0 || n_shared > 1024 || m->inter < 0 || (int64_t)n_shared * m->inter > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'n_shared_experts' must be between 0 and 1024, got %d", n_shared);
    }
    m->scale = (float)scale;
    m->shared_inter = n_shared * m->inter;
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_dense[i] = i < first;
    }
    nrd_family_settle_inter(s);
    return NULL;
}

static nrd_error *glm4_moe(nrd_model_spec *s, const nrd_json *c)
{
    s->dense_bias = false; /* attention_bias is about q, k and v */
    s->qk_norm = nrd_json_get_bool(c, "use_qk_norm", false);
    return nrd_hf_corrected(s, c, 1);
}

nrd_error *nrd_gguf_corrected(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    nrd_moe_spec *m = &s->moe;
    char key[80];

    snprintf(key, sizeof key, "%s.expert_weights_scale", arch);
    m->scale = (float)nrd_gguf_num(g, key, 1);
    m->score = NRD_MOE_SIGMOID;
    m->normalize = nrd_gguf_key(g, arch, "expert_weights_norm", 1) != 0;
    /* behind the last layer there may be one that guesses further tokens */
    s->n_layers -= nrd_family_small(nrd_gguf_key(g, arch, "nextn_predict_layers", 0));
    if (s->n_layers < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s.nextn_predict_layers' leaves no layers", arch);
    }
    nrd_gguf_experts(s, g, arch);
    m->shared_inter = nrd_family_small(nrd_gguf_key(g, arch, "expert_shared_count", 0));
    m->shared_inter = nrd_family_small(m->shared_inter * (int64_t)m->inter);
    snprintf(key, sizeof key, "blk.%d.exp_probs_b.bias", s->n_layers - 1);
    m->score_bias = nrd_gguf_find_tensor(g, key) != NULL;
    m->n_groups = nrd_family_small(nrd_gguf_key(g, arch, "expert_group_count", 1));
    m->top_groups = nrd_family_small(nrd_gguf_key(g, arch, "expert_group_used_count", 1));
    return NULL;
}

static nrd_error *gguf_glm4_moe(nrd_model_spec *s, const nrd_gguf *g)
{
    s->qk_norm = nrd_gguf_find_tensor(g, "blk.0.attn_q_norm.weight") != NULL;
    return nrd_gguf_corrected(s, g, "glm4moe");
}

const nrd_arch nrd_arch_glm4_moe = {
    "glm4_moe", "Glm4MoeForCausalLM", {"glm4_moe"}, {"Glm4MoeForCausalLM"}, "glm4moe", MODEL_PREFIXES,
    qwen_rules, nrd_gguf_experts_rules, T_EXPERTS, glm4_moe, gguf_glm4_moe};

/* dots.llm1: the same, but for biases of attention and norms of q and k. */
static nrd_error *dots1(nrd_model_spec *s, const nrd_json *c)
{
    int32_t from = s->n_layers;

    NRD_TRY(nrd_hf_int(c, "max_window_layers", s->n_layers, &from));
    if (nrd_hf_get(c, "sliding_window") && from < s->n_layers) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'max_window_layers' %d of %d: layers with a window are not supported in dots1 "
                          "models", from, s->n_layers);
    }
    NRD_TRY(nrd_hf_corrected(s, c, 0));
    s->moe.normalize = nrd_json_get_bool(c, "norm_topk_prob", false);
    return NULL;
}

static nrd_error *gguf_dots1(nrd_model_spec *s, const nrd_gguf *g)
{
    return nrd_gguf_corrected(s, g, "dots1");
}

const nrd_arch nrd_arch_dots1 = {
    "dots1", "Dots1ForCausalLM", {"dots1"}, {"Dots1ForCausalLM"}, "dots1", MODEL_PREFIXES,
    qwen_rules, nrd_gguf_experts_rules, T_EXPERTS | T_QK_NORM, dots1, gguf_dots1};

/* Solar Open: experts in all layers. */
static nrd_error *solar_open(nrd_model_spec *s, const nrd_json *c)
{
    s->dense_bias = false;
    s->rope.base = 1e6;
    return nrd_hf_corrected(s, c, 0);
}

const nrd_arch nrd_arch_solar_open = {
    "solar_open", "SolarOpenForCausalLM", {"solar_open"}, {"SolarOpenForCausalLM"}, NULL, MODEL_PREFIXES,
    qwen_rules, nrd_gguf_experts_rules, T_EXPERTS, solar_open, NULL};

nrd_error *nrd_hf_mlp_layer_types(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "mlp_layer_types");

    if (types && nrd_json_len(types) != (size_t)s->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'mlp_layer_types' has %zu entries, expected one for each of %d layers",
                          nrd_json_len(types), s->n_layers);
    }
    for (int32_t i = 0; types && i < s->n_layers; i++) {
        s->layer_is_dense[i] = strcmp(nrd_json_str(nrd_json_at(types, (size_t)i), ""), "sparse") != 0;
    }
    return NULL;
}

/* K-EXAONE: the attention of EXAONE 4. */
static nrd_error *exaone_moe(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_corrected(s, c, 1));
    return nrd_hf_mlp_layer_types(s, c);
}

static nrd_error *gguf_exaone_moe(nrd_model_spec *s, const nrd_gguf *g)
{
    return nrd_gguf_corrected(s, g, "exaone-moe");
}

const nrd_arch nrd_arch_exaone_moe = {
    "exaone_moe", "ExaoneMoeForCausalLM", {"exaone_moe"}, {"ExaoneMoeForCausalLM", "ExaoneMoEForCausalLM"}, "exaone-moe",
    MODEL_PREFIXES, qwen_rules, nrd_gguf_experts_rules,
    T_EXPERTS | T_QK_NORM | T_WINDOW_PATTERN | T_WINDOW_4 | T_NOPE_GLOBAL, exaone_moe, gguf_exaone_moe};

/* Mellum 2: Qwen3's experts; layers that slide have a rotary base of their own. */
static nrd_error *mellum(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "layer_types"); /* without, no layer slides */

    s->rope.base = 5e5;
    NRD_TRY(nrd_hf_int(c, "max_position_embeddings", 131072, &s->max_positions));
    if (types) {
        NRD_TRY(nrd_hf_int(c, "sliding_window", 1024, &s->sliding_window));
        NRD_TRY(nrd_hf_layer_types(s, types));
    }
    s->moe.normalize = nrd_json_get_bool(c, "norm_topk_prob", true);
    NRD_TRY(nrd_hf_experts(s, c));
    NRD_TRY(nrd_hf_mlp_layer_types(s, c));
    nrd_family_settle_inter(s);
    return NULL;
}

const nrd_arch nrd_arch_mellum = {
    "mellum", "MellumForCausalLM", {"mellum"}, {"MellumForCausalLM"}, NULL, MODEL_PREFIXES,
    qwen_rules, NULL, T_EXPERTS | T_QK_NORM | T_LOCAL_ROPE, mellum, NULL};

/* ---- Phi 3.5 MoE ---- */

static nrd_error *phimoe(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_experts(s, c));
    if (s->moe.top_k != 2) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'num_experts_per_tok' must be 2 in this family, got %d", s->moe.top_k);
    }
    s->moe.score = NRD_MOE_SPARSEMIXER;
    s->moe.jitter = (float)nrd_json_get_num(c, "router_jitter_noise", 0.01);
    s->lm_head_bias = nrd_json_get_bool(c, "lm_head_bias", false);
    return NULL;
}

/* No GGUF: files of this family are read by others with a softmax over all experts, another network. */
const nrd_arch nrd_arch_phimoe = {
    "phimoe", "PhimoeForCausalLM", {"phimoe"}, {"PhimoeForCausalLM"}, NULL, MODEL_PREFIXES,
    mixtral_rules, nrd_gguf_experts_rules, T_EXPERTS | T_LAYER_NORM | T_WINDOW_ALL, phimoe, NULL};

/* ---- GPT-OSS ---- */

/* Unquantized matrices lie as [in, out], those of MXFP4 have a reader's names; gate and up by turns. */
static const nrd_weight_rule gpt_oss_rules[] = {
    ATTENTION,
    {NRD_SINKS, {LAYER "self_attn.sinks"}, 0},
    RULE("mlp.router", MLP "router", 0),
    {"mlp.experts.fc.weight", {GATE_UP "|" GATE_UP ".weight"}, NRD_RULE_TRANSPOSE | NRD_RULE_EVEN_ROWS},
    {"mlp.experts.gate.weight", {GATE_UP "|" GATE_UP ".weight"}, NRD_RULE_TRANSPOSE | NRD_RULE_ODD_ROWS},
    {"mlp.experts.proj.weight", {MLP "experts.down_proj|" MLP "experts.down_proj.weight"}, NRD_RULE_TRANSPOSE},
    {"mlp.experts.fc.bias", {GATE_UP "_bias"}, NRD_RULE_EVEN_ROWS},
    {"mlp.experts.gate.bias", {GATE_UP "_bias"}, NRD_RULE_ODD_ROWS},
    {"mlp.experts.proj.bias", {MLP "experts.down_proj_bias"}, 0},
    ENDS,
    {0}};

/* The softmax goes over the chosen logits, as in Granite. */
static void gpt_oss_parts(nrd_model_spec *s)
{
    s->act = NRD_ACT_CLAMPED_SWIGLU;
    s->sink_logits = true;
    s->moe.bias = true;
    s->moe.normalize = true;
    s->rope.keep_fractions = true;
}

static nrd_error *gpt_oss(nrd_model_spec *s, const nrd_json *c)
{
    const double limit = nrd_json_get_num(c, "swiglu_limit", (double)NRD_SWIGLU_LIMIT);

    if (limit < (double)NRD_SWIGLU_LIMIT || limit > (double)NRD_SWIGLU_LIMIT) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'swiglu_limit' must be %g, got %g", (double)NRD_SWIGLU_LIMIT, limit);
    }
    gpt_oss_parts(s);
    s->qkv_bias = s->dense_bias = nrd_json_get_bool(c, "attention_bias", true);
    return nrd_hf_experts(s, c);
}

static nrd_error *gguf_gpt_oss(nrd_model_spec *s, const nrd_gguf *g)
{
    gpt_oss_parts(s);
    nrd_gguf_experts(s, g, "gpt-oss");
    return NULL;
}

const nrd_arch nrd_arch_gpt_oss = {
    "gpt_oss", "GptOssForCausalLM", {"gpt_oss"}, {"GptOssForCausalLM"}, "gpt-oss", MODEL_PREFIXES,
    gpt_oss_rules, nrd_gguf_experts_rules, T_EXPERTS | T_WINDOW_ALTERNATES, gpt_oss, gguf_gpt_oss};
