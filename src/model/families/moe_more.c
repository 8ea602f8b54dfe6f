/* SPDX-License-Identifier: Apache-2.0
 * Families with experts that differ from those of moe.c in attention, or in what a router's choice does: MiniMax-M2,
 * ERNIE 4.5, Hunyuan, Hy 3, Ling, Command A+, DBRX, Llama 4. */
#include "model/families/family.h"
#include "model/needs.h"

#include <string.h>

#define LAYER "model.layers.*."
#define MLP LAYER "mlp."
#define FRONT RULE_EMBED("model.embed_tokens"), RULE("input_layernorm", LAYER "input_layernorm", 0)
#define ATTENTION                                                                                  \
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),        \
        RULE("attention.dense", LAYER "self_attn.o_proj", 0),                                      \
        RULE("post_layernorm", LAYER "post_attention_layernorm", 0)
#define DENSE(at)                                                                                  \
    RULE("mlp.fc", at "gate_proj", 0), RULE("mlp.gate", at "up_proj", 0), RULE("mlp.proj", at "down_proj", 0)
#define NAMED_EXPERTS RULE_EXPERTS(MLP "experts.#.gate_proj", MLP "experts.#.up_proj", MLP "experts.#.down_proj")
#define ENDS RULE("transformer.ln_f", "model.norm", 0), RULE("lm_head", "lm_head", 0)

/* A number for all layers: a list has it once for each. */
static nrd_error *same_for_all(const nrd_json *c, const char *key, int64_t fallback, int32_t *out)
{
    const nrd_json *v = nrd_hf_get(c, key);

    if (!nrd_json_is(v, NRD_JSON_ARRAY)) {
        return nrd_hf_int(c, key, fallback, out);
    }
    *out = nrd_family_small(nrd_json_int(nrd_json_at(v, 0), -1));
    for (size_t i = 1; i < nrd_json_len(v); i++) {
        if (nrd_json_int(nrd_json_at(v, i), -1) != *out) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' differs between layers", key);
        }
    }
    return NULL;
}

/* n experts of `inter` numbers that all tokens see. */
static nrd_error *shared_experts(nrd_model_spec *s, const char *key, int32_t n, int32_t inter)
{
    if (n < 0 || n > 1024 || inter < 0 || (int64_t)n * inter > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be between 0 and 1024, got %d", key, n);
    }
    s->moe.shared_inter = n * inter;
    return NULL;
}

/* ---- MiniMax-M2: norms over all heads, corrected sigmoid scores ---- */

#define BLOCK LAYER "block_sparse_moe."
static const nrd_weight_rule minimax_m2_rules[] = {
    FRONT,
    ATTENTION,
    RULE_HEAD_NORMS(LAYER "self_attn.q_norm", LAYER "self_attn.k_norm"),
    {"mlp.router.weight", {BLOCK "gate.weight|" MLP "gate.weight"}, 0},
    {"mlp." NRD_SCORE_BIAS, {BLOCK "e_score_correction_bias|" MLP "e_score_correction_bias"}, 0},
    RULE_EXPERTS(BLOCK "experts.#.w1", BLOCK "experts.#.w3", BLOCK "experts.#.w2"),
    ENDS,
    {0}};

static void minimax_m2_routing(nrd_model_spec *s)
{
    s->moe.score = NRD_MOE_SIGMOID;
    s->moe.score_bias = true;
    s->moe.normalize = true;
}

static nrd_error *minimax_m2(nrd_model_spec *s, const nrd_json *c)
{
    minimax_m2_routing(s);
    NRD_TRY(nrd_hf_refuse(c, "shared_intermediate_size"));
    NRD_TRY(nrd_hf_int(c, "rotary_dim", 0, &s->rope.rotary_dim)); /* 0: partial_rotary_factor says it */
    s->rope.base = 5e6;
    NRD_TRY(nrd_hf_experts(s, c));
    nrd_family_settle_inter(s);
    return NULL;
}

static nrd_error *gguf_minimax_m2(nrd_model_spec *s, const nrd_gguf *g)
{
    minimax_m2_routing(s);
    nrd_gguf_experts(s, g, "minimax-m2");
    return NULL;
}

const nrd_arch nrd_arch_minimax_m2 = {
    "minimax_m2", "MiniMaxM2ForCausalLM", {"minimax_m2"}, {"MiniMaxM2ForCausalLM"}, "minimax-m2", MODEL_PREFIXES,
    minimax_m2_rules, nrd_gguf_experts_rules, T_EXPERTS | T_QK_NORM | T_QK_NORM_WIDE, minimax_m2, gguf_minimax_m2};

/* ---- ERNIE 4.5: corrected softmax scores, pairs (2i, 2i + 1) ---- */

static const nrd_weight_rule ernie_rules[] = {
    FRONT,
    ATTENTION,
    DENSE(MLP),
    RULE_WEIGHT("mlp.router", MLP "gate"),
    {"mlp." NRD_SCORE_BIAS,
     {MLP "moe_statics.e_score_correction_bias|" MLP "gate.moe_statics.e_score_correction_bias"},
     0},
    NAMED_EXPERTS,
    RULE_SHARED(MLP "shared_experts.gate_proj", MLP "shared_experts.up_proj", MLP "shared_experts.down_proj"),
    ENDS,
    {0}};

static nrd_error *ernie4_5_moe(nrd_model_spec *s, const nrd_json *c)
{
    nrd_moe_spec *m = &s->moe;
    int32_t n_shared = 0, start = 0, end = 0, step = 0;

    s->qkv_bias = s->dense_bias = s->mlp_bias = nrd_json_get_bool(c, "use_bias", false);
    s->rope.base = 5e5;
    m->score_bias = true;
    m->normalize = true;
    NRD_TRY(nrd_hf_int(c, "moe_num_experts", 64, &m->n_experts));
    NRD_TRY(nrd_hf_int(c, "moe_k", 6, &m->top_k));
    NRD_TRY(nrd_hf_int(c, "moe_intermediate_size", 1536, &m->inter));
    NRD_TRY(nrd_hf_int(c, "moe_num_shared_experts", 2, &n_shared));
    NRD_TRY(shared_experts(s, "moe_num_shared_experts", n_shared, m->inter));
    NRD_TRY(nrd_hf_int(c, "moe_layer_start_index", 1, &start));
    NRD_TRY(nrd_hf_int(c, "moe_layer_end_index", -1, &end));
    NRD_TRY(nrd_hf_int(c, "moe_layer_interval", 1, &step));
    if (step < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'moe_layer_interval' must be above 0, got %d", step);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_dense[i] = (i + 1) % step != 0 || i < start || (end != -1 && i > end);
    }
    nrd_family_settle_inter(s);
    return NULL;
}

static nrd_error *gguf_ernie4_5_moe(nrd_model_spec *s, const nrd_gguf *g)
{
    s->moe.score_bias = true;
    s->moe.normalize = true;
    nrd_gguf_experts(s, g, "ernie4_5-moe");
    s->moe.shared_inter = nrd_family_small(nrd_gguf_key(g, "ernie4_5-moe", "expert_shared_feed_forward_length", 0));
    return NULL;
}

const nrd_arch nrd_arch_ernie4_5_moe = {
    "ernie4_5_moe", "Ernie4_5_MoeForCausalLM", {"ernie4_5_moe"}, {"Ernie4_5_MoeForCausalLM"}, "ernie4_5-moe", MODEL_PREFIXES,
    ernie_rules, nrd_gguf_experts_rules, T_EXPERTS | T_ROPE_INTERLEAVED | T_TIED, ernie4_5_moe, gguf_ernie4_5_moe};

/* ---- Hunyuan: a shared expert, norms of q and k behind the rotation ---- */

static const nrd_weight_rule hunyuan_rules[] = {
    FRONT,
    ATTENTION,
    RULE_HEAD_NORMS(LAYER "self_attn.query_layernorm", LAYER "self_attn.key_layernorm"),
    RULE_WEIGHT("mlp.router", MLP "gate.wg"),
    NAMED_EXPERTS,
    RULE_SHARED(MLP "shared_mlp.gate_proj", MLP "shared_mlp.up_proj", MLP "shared_mlp.down_proj"),
    ENDS,
    {0}};

static nrd_error *hunyuan_v1_moe(nrd_model_spec *s, const nrd_json *c)
{
    nrd_moe_spec *m = &s->moe;
    int32_t n_shared = 0;

    m->normalize = true;
    NRD_TRY(same_for_all(c, "num_experts", NRD_HF_REQUIRED, &m->n_experts));
    NRD_TRY(same_for_all(c, "moe_topk", 1, &m->top_k));
    NRD_TRY(same_for_all(c, "moe_intermediate_size", s->inter, &m->inter));
    NRD_TRY(same_for_all(c, "num_shared_expert", 1, &n_shared));
    NRD_TRY(nrd_hf_refuse(c, "moe_layer_num_skipped"));
    NRD_TRY(shared_experts(s, "num_shared_expert", n_shared, m->inter));
    nrd_family_settle_inter(s);
    return nrd_hf_hunyuan(s, c);
}

static nrd_error *gguf_hunyuan_moe(nrd_model_spec *s, const nrd_gguf *g)
{
    s->qk_norm_late = true;
    s->moe.normalize = true;
    nrd_gguf_experts(s, g, "hunyuan-moe");
    s->moe.shared_inter = nrd_family_small(nrd_gguf_key(g, "hunyuan-moe", "expert_shared_feed_forward_length", s->moe.inter));
    return NULL;
}

const nrd_arch nrd_arch_hunyuan_v1_moe = {
    "hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", {"hunyuan_v1_moe", "hunyuan"}, {"HunYuanMoEV1ForCausalLM"}, "hunyuan-moe",
    MODEL_PREFIXES, hunyuan_rules, nrd_gguf_experts_rules, T_EXPERTS | T_QK_NORM, hunyuan_v1_moe, gguf_hunyuan_moe};

/* ---- Hy 3: the routing of DeepSeek-V3 without groups; its own files and those of transformers have other names ---- */

#define HY_SHARED(part) {MLP "shared_experts." part ".weight|" MLP "shared_mlp." part ".weight"}
static const nrd_weight_rule hy_v3_rules[] = {
    FRONT,
    ATTENTION,
    RULE_HEAD_NORMS(LAYER "self_attn.q_norm", LAYER "self_attn.k_norm"),
    DENSE(MLP),
    {"mlp.router.weight", {MLP "gate.weight|" MLP "router.gate.weight"}, 0},
    {"mlp." NRD_SCORE_BIAS, {MLP "e_score_correction_bias|" MLP "expert_bias"}, 0},
    NAMED_EXPERTS,
    {"mlp.shared.fc.weight", HY_SHARED("gate_proj"), 0},
    {"mlp.shared.gate.weight", HY_SHARED("up_proj"), 0},
    {"mlp.shared.proj.weight", HY_SHARED("down_proj"), 0},
    ENDS,
    {0}};

static nrd_error *hy_v3(nrd_model_spec *s, const nrd_json *c)
{
    nrd_moe_spec *m = &s->moe;
    double scale = 2.826;
    int32_t n_shared = 0;

    s->rope.base = 11158840;
    m->score = NRD_MOE_SIGMOID;
    m->score_bias = m->normalize = true;
    NRD_TRY(nrd_hf_experts(s, c));
    NRD_TRY(nrd_hf_scale(c, "router_scaling_factor", &scale));
    m->scale = (float)scale;
    NRD_TRY(nrd_hf_int(c, "num_shared_experts", 1, &n_shared));
    NRD_TRY(shared_experts(s, "num_shared_experts", n_shared, m->inter));
    s->layer_is_dense[0] = 1;
    NRD_TRY(nrd_hf_mlp_layer_types(s, c));
    nrd_family_settle_inter(s);
    return NULL;
}

const nrd_arch nrd_arch_hy_v3 = {
    "hy_v3", "HYV3ForCausalLM", {"hy_v3"}, {"HYV3ForCausalLM"}, NULL, MODEL_PREFIXES,
    hy_v3_rules, NULL, T_EXPERTS | T_QK_NORM, hy_v3, NULL};

/* ---- Ling and Ring 2.0, Sarvam: GLM 4.5 under other names. Those on the left are of their own files, of which q, k and v are one ---- */

#define LING_ATTENTION LAYER "attention."
#define OR(a, b) {a ".weight|" b ".weight"}
static const nrd_weight_rule bailing_rules[] = {
    RULE_EMBED_OR("model.word_embeddings", "model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE("attention.qkv", LING_ATTENTION "query_key_value", NRD_RULE_IF_THERE),
    {"attention.qkv.weight",
     {LAYER "self_attn.q_proj.weight", LAYER "self_attn.k_proj.weight", LAYER "self_attn.v_proj.weight"},
     NRD_RULE_IF_THERE},
    {"attention.q_layernorm.weight", OR(LING_ATTENTION "query_layernorm", LAYER "self_attn.q_norm"), 0},
    {"attention.k_layernorm.weight", OR(LING_ATTENTION "key_layernorm", LAYER "self_attn.k_norm"), 0},
    {"attention.dense.weight", OR(LING_ATTENTION "dense", LAYER "self_attn.o_proj"), 0},
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    DENSE(MLP),
    RULE_WEIGHT("mlp.router", MLP "gate"),
    {"mlp." NRD_SCORE_BIAS, {MLP "gate.expert_bias|" MLP "gate.e_score_correction_bias"}, 0},
    NAMED_EXPERTS,
    RULE_SHARED(MLP "shared_experts.gate_proj", MLP "shared_experts.up_proj", MLP "shared_experts.down_proj"),
    ENDS,
    {0}};

static nrd_error *bailing_moe(nrd_model_spec *s, const nrd_json *c)
{
    const bool is_ling = nrd_str_has_prefix(nrd_json_get_str(c, "model_type", ""), "bailing");
    const char *class = nrd_json_str(nrd_json_at(nrd_json_get(c, "architectures"), 0), "");
    const char *score = nrd_json_get_str(c, "score_function", !strcmp(class, "BailingMoeForCausalLM") ? "softmax" : "sigmoid");
    double scale = 2.5;

    if (strcmp(score, "sigmoid") != 0) { /* Ling 1 has no key for it */
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'score_function' must be sigmoid in this family, got '%.40s'", score);
    }
    NRD_TRY(nrd_hf_refuse(c, "use_bias"));
    NRD_TRY(nrd_hf_refuse(c, "use_qkv_bias"));
    NRD_TRY(nrd_hf_refuse(c, "attention_bias"));
    NRD_TRY(nrd_hf_refuse(c, "norm_head"));
    s->rope.base = is_ling ? 6e5 : 8e6;
    s->qk_norm = nrd_json_get_bool(c, "use_qk_norm", true);
    NRD_TRY(nrd_hf_corrected(s, c, 1));
    NRD_TRY(nrd_hf_scale(c, "routed_scaling_factor", &scale));
    s->moe.scale = (float)scale;
    return nrd_hf_int(c, "moe_shared_expert_intermediate_size", s->moe.shared_inter, &s->moe.shared_inter);
}

static nrd_error *gguf_bailing_moe(nrd_model_spec *s, const nrd_gguf *g)
{
    s->qk_norm = nrd_gguf_find_tensor(g, "blk.0.attn_q_norm.weight") != NULL;
    NRD_TRY(nrd_gguf_corrected(s, g, "bailingmoe2"));
    s->moe.shared_inter = nrd_family_small(nrd_gguf_key(g, "bailingmoe2", "expert_shared_feed_forward_length", s->moe.shared_inter));
    return NULL;
}

const nrd_arch nrd_arch_bailing_moe = {
    "bailing_moe", "BailingMoeV2ForCausalLM", {"bailing_moe", "bailing_moe_v2", "sarvam_moe"}, {"BailingMoeV2ForCausalLM", "SarvamMoEForCausalLM"},
    "bailingmoe2", MODEL_PREFIXES, bailing_rules, nrd_gguf_experts_rules, T_EXPERTS, bailing_moe, gguf_bailing_moe};

/* ---- Command A+: Command A with experts. Dense layers in front have a pattern of windows of their own ---- */

static const nrd_weight_rule cohere2_moe_rules[] = {
    FRONT,
    ATTENTION,
    DENSE(MLP),
    RULE_WEIGHT("mlp.router", MLP "gate"),
    NAMED_EXPERTS,
    RULE_SHARED(MLP "shared_experts.gate_proj", MLP "shared_experts.up_proj", MLP "shared_experts.down_proj"),
    ENDS,
    {0}};

/* Layers that do not slide have no positions, but dense ones where all of them see everything. */
static nrd_error *cohere2_moe_layers(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "layer_types");
    int32_t n_dense = 0, first = 1, rest = 4;

    NRD_TRY(nrd_hf_int(c, "sliding_window", 4096, &s->sliding_window));
    NRD_TRY(nrd_hf_int(c, "first_k_dense_replace", 0, &n_dense));
    NRD_TRY(nrd_hf_int(c, "prefix_dense_sliding_window_pattern", 1, &first));
    NRD_TRY(nrd_hf_int(c, "sliding_window_pattern", 4, &rest));
    if (first < 1 || rest < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be above 0, got %d",
                          first < 1 ? "prefix_dense_sliding_window_pattern" : "sliding_window_pattern", first < 1 ? first : rest);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_dense[i] = i < n_dense;
        const bool is_sliding = i < n_dense ? (i + 1) % first != 0 : (i - n_dense + 1) % rest != 0;
        s->layer_is_sliding[i] = is_sliding;
    }
    NRD_TRY(nrd_hf_mlp_layer_types(s, c));
    NRD_TRY(types ? nrd_hf_layer_types(s, types) : NULL);
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_has_no_rope[i] = !s->layer_is_sliding[i] && !(s->layer_is_dense[i] && first == 1);
    }
    return NULL;
}

/* What all tokens' experts and the chosen ones give is added, or half of each: a scale of their last products. */
static nrd_error *cohere2_moe_halves(nrd_model_spec *s, const nrd_json *c)
{
    const char *how = nrd_json_get_str(c, "shared_expert_combination_strategy", "average");

    if (strcmp(how, "average") != 0 && strcmp(how, "sum") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'shared_expert_combination_strategy' must be average or sum, got '%.40s'", how);
    }
    if (how[0] == 'a' && s->moe.shared_inter > 0) {
        s->moe.scale = 0.5f;
        s->multipliers = (nrd_multipliers_spec){.any = true, .state_out = 1, .attn_out = 1, .mlp_gate = 1, .mlp_down = 1,
                                                .shared_down = 0.5f};
    }
    return NULL;
}

static nrd_error *cohere2_moe(nrd_model_spec *s, const nrd_json *c)
{
    const char *choice = nrd_json_get_str(c, "expert_selection_fn", "softmax");
    double scale = 0.0625;
    int32_t n_shared = 0;

    if (strcmp(choice, "softmax") != 0 && strcmp(choice, "sigmoid") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'expert_selection_fn' must be softmax or sigmoid, got '%.40s'", choice);
    }
    s->moe.score = choice[1] == 'i' ? NRD_MOE_SIGMOID : NRD_MOE_SOFTMAX;
    /* a softmax over the chosen logits: the same as one over all, divided by the sum of the chosen */
    s->moe.normalize = s->moe.score == NRD_MOE_SOFTMAX || nrd_json_get_bool(c, "norm_topk_prob", true);
    s->norm = nrd_hf_get(c, "rms_norm_eps") ? NRD_NORM_RMS : NRD_NORM_LAYER;
    NRD_TRY(nrd_hf_scale(c, "logit_scale", &scale));
    s->logits_scale = (float)scale;
    NRD_TRY(nrd_hf_int(c, "num_experts", 8, &s->moe.n_experts));
    NRD_TRY(nrd_hf_int(c, "num_experts_per_tok", 2, &s->moe.top_k));
    s->moe.inter = s->inter;
    NRD_TRY(nrd_hf_int(c, "num_shared_experts", 0, &n_shared));
    NRD_TRY(shared_experts(s, "num_shared_experts", n_shared, s->moe.inter));
    NRD_TRY(nrd_hf_int(c, "prefix_dense_intermediate_size", s->inter, &s->inter));
    NRD_TRY(cohere2_moe_layers(s, c));
    nrd_family_settle_inter(s);
    return cohere2_moe_halves(s, c);
}

const nrd_arch nrd_arch_cohere2_moe = {
    "cohere2_moe", "Cohere2MoeForCausalLM", {"cohere2_moe"}, {"Cohere2MoeForCausalLM"}, NULL, MODEL_PREFIXES,
    cohere2_moe_rules, NULL,
    T_EXPERTS | T_LAYER_NORM | T_NO_NORM_BIAS | T_PARALLEL | T_SHARED_NORM | T_ROPE_INTERLEAVED | T_TIED, cohere2_moe, NULL};

/* ---- DBRX: layer norms, bounds of q, k and v, experts below each other ---- */

#define DBRX "transformer.blocks.*."
#define DBRX_EXPERTS DBRX "ffn.experts.mlp."
static const nrd_weight_rule dbrx_rules[] = {
    RULE_EMBED("transformer.wte"),
    RULE("input_layernorm", DBRX "norm_attn_norm.norm_1", 0),
    RULE("attention.qkv", DBRX "norm_attn_norm.attn.Wqkv", 0),
    RULE("attention.dense", DBRX "norm_attn_norm.attn.out_proj", 0),
    RULE("post_layernorm", DBRX "norm_attn_norm.norm_2", 0),
    RULE_WEIGHT("mlp.router", DBRX "ffn.router.layer"),
    {"mlp.experts.fc.weight", {DBRX_EXPERTS "w1"}, 0},
    {"mlp.experts.gate.weight", {DBRX_EXPERTS "v1"}, 0},
    {"mlp.experts.proj.weight", {DBRX_EXPERTS "w2"}, NRD_RULE_TRANSPOSE},
    RULE("transformer.ln_f", "transformer.norm_f", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *dbrx(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *attn = nrd_json_get(c, "attn_config"), *ffn = nrd_json_get(c, "ffn_config");
    const nrd_json *norm = nrd_json_get(ffn, "moe_normalize_expert_weights");
    const char *act = nrd_json_get_str(nrd_json_get(ffn, "ffn_act_fn"), "name", "silu");
    double base = 1e4;

    if (strcmp(act, "silu") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'ffn_act_fn' must be silu in this family, got '%s'", act);
    }
    /* chosen scores are divided by this norm of theirs: 1 is their sum */
    s->moe.normalize = !norm || !nrd_json_is(norm, NRD_JSON_NULL);
    if (norm && s->moe.normalize && nrd_json_int(norm, 0) != 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'moe_normalize_expert_weights' must be 1 or null, got %g", nrd_json_num(norm, 0));
    }
    NRD_TRY(nrd_hf_int(attn, "kv_n_heads", 1, &s->n_kv_heads));
    NRD_TRY(nrd_hf_clip_qkv(s, attn));
    NRD_TRY(nrd_hf_scale(attn, "rope_theta", &base));
    s->rope.base = base;
    s->norm_eps = 1e-5f;
    NRD_TRY(nrd_hf_int(ffn, "moe_num_experts", 4, &s->moe.n_experts));
    NRD_TRY(nrd_hf_int(ffn, "moe_top_k", 1, &s->moe.top_k));
    s->moe.inter = s->inter;
    return NULL;
}

static nrd_error *gguf_dbrx(nrd_model_spec *s, const nrd_gguf *g)
{
    s->moe.normalize = true;
    nrd_gguf_experts(s, g, "dbrx");
    return nrd_gguf_clip_qkv(s, g, "dbrx");
}

const nrd_arch nrd_arch_dbrx = {
    "dbrx", "DbrxForCausalLM", {"dbrx"}, {"DbrxForCausalLM"}, "dbrx", {"", NULL},
    dbrx_rules, nrd_gguf_dbrx_rules, T_EXPERTS | T_LAYER_NORM | T_NO_NORM_BIAS, dbrx, gguf_dbrx};

/* ---- Llama 4: three layers of four see a chunk, the fourth all without positions, with longer queries ---- */

#define FFN LAYER "feed_forward."
#define GATE_UP FFN "experts.gate_up_proj|" FFN "experts.gate_up_proj.weight"
static const nrd_weight_rule llama4_rules[] = {
    FRONT,
    ATTENTION,
    RULE_ONES("attention.q_layernorm"),
    RULE_ONES("attention.k_layernorm"),
    DENSE(FFN),
    RULE_WEIGHT("mlp.router", FFN "router"),
    {"mlp.experts.fc.weight", {GATE_UP}, NRD_RULE_TRANSPOSE | NRD_RULE_FIRST_HALF},
    {"mlp.experts.gate.weight", {GATE_UP}, NRD_RULE_TRANSPOSE | NRD_RULE_SECOND_HALF},
    {"mlp.experts.proj.weight", {FFN "experts.down_proj|" FFN "experts.down_proj.weight"}, NRD_RULE_TRANSPOSE},
    RULE_SHARED(FFN "shared_expert.gate_proj", FFN "shared_expert.up_proj", FFN "shared_expert.down_proj"),
    ENDS,
    {0}};

enum { LLAMA4_CHUNK = 8192, LLAMA4_BIG_EXPERTS = 128 };

/* What layers with and without positions do, once these are known. */
static void llama4_layers(nrd_model_spec *s, int32_t chunk)
{
    s->qk_norm_turned = true;
    s->moe.score = NRD_MOE_SIGMOID;
    s->moe.scale_input = true;
    s->q_scale_nope = true;
    s->q_scale_offset = 1;
    s->sliding_window = chunk;
    s->window_chunks = chunk > 0;
    for (int32_t i = 0; chunk > 0 && i < s->n_layers; i++) {
        s->layer_is_sliding[i] = !s->layer_has_no_rope[i];
    }
}

/* Which layers have experts: a list, or every step-th. */
static nrd_error *llama4_dense_layers(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *list = nrd_hf_get(c, "moe_layers");
    int32_t step = 1;

    NRD_TRY(nrd_hf_int(c, "interleave_moe_layer_step", 1, &step));
    if (step < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'interleave_moe_layer_step' must be above 0, got %d", step);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_dense[i] = list || (i + 1) % step != 0;
    }
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const int64_t at = nrd_json_int(nrd_json_at(list, i), -1);
        if (at < 0 || at >= s->n_layers) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'moe_layers' names layer %lld of %d", (long long)at, s->n_layers);
        }
        s->layer_is_dense[at] = 0;
    }
    return NULL;
}

static nrd_error *llama4(nrd_model_spec *s, const nrd_json *c)
{
    double beta = 0.1;
    int32_t chunk = 0;
    const nrd_json *size = nrd_json_get(c, "attention_chunk_size");

    s->moe.inter = s->moe.shared_inter = s->inter;
    NRD_TRY(nrd_hf_int(c, "intermediate_size_mlp", 16384, &s->inter));
    NRD_TRY(nrd_hf_int(c, "num_local_experts", 16, &s->moe.n_experts));
    NRD_TRY(nrd_hf_int(c, "num_experts_per_tok", 1, &s->moe.top_k));
    NRD_TRY(nrd_hf_no_rope_layers(s, c));
    NRD_TRY(llama4_dense_layers(s, c));
    if (!size || !nrd_json_is(size, NRD_JSON_NULL)) {
        NRD_TRY(nrd_hf_int(c, "attention_chunk_size", LLAMA4_CHUNK, &chunk));
    }
    llama4_layers(s, chunk);
    s->qk_norm = nrd_json_get_bool(c, "use_qk_norm", true);
    s->rope.base = 5e5;
    if (nrd_json_get_bool(c, "attn_temperature_tuning", true)) {
        NRD_TRY(nrd_hf_scale(c, "attn_scale", &beta));
        NRD_TRY(nrd_hf_int(c, "floor_scale", LLAMA4_CHUNK, &s->q_scale_length));
        s->q_scale_beta = (float)beta;
    }
    nrd_family_settle_inter(s);
    return NULL;
}

/* Its files say little: chunks unless there is a window of 0, and norms of q and k but in the large model. */
static nrd_error *gguf_llama4(nrd_model_spec *s, const nrd_gguf *g)
{
    const bool chunks = nrd_gguf_key(g, "llama4", "attention.sliding_window", LLAMA4_CHUNK) != 0;

    nrd_gguf_experts(s, g, "llama4");
    s->moe.shared_inter = s->moe.inter;
    for (int32_t i = 0; chunks && i < s->n_layers; i++) {
        s->layer_has_no_rope[i] = (i + 1) % 4 == 0;
    }
    llama4_layers(s, chunks ? LLAMA4_CHUNK : 0);
    s->qk_norm = s->moe.n_experts != LLAMA4_BIG_EXPERTS;
    s->q_scale_beta = chunks ? 0.1f : 0;
    s->q_scale_length = LLAMA4_CHUNK;
    return NULL;
}

const nrd_arch nrd_arch_llama4 = {
    "llama4_text", "Llama4ForCausalLM", {"llama4_text", "llama4"}, {"Llama4ForCausalLM", "Llama4ForConditionalGeneration"},
    "llama4", MODEL_PREFIXES, llama4_rules, nrd_gguf_llama4_rules, T_EXPERTS | T_ROPE_INTERLEAVED, llama4, gguf_llama4};
