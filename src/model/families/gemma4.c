/* SPDX-License-Identifier: Apache-2.0
 * Gemma 4, its text: layers without a window have wider heads and fewer of them for keys and values, which may have one product for
 * both; a number for each layer multiplies its state; a second embedding and shared keys and values as in Gemma 3n; experts may
 * stand beside the MLP. */
#include "model/families/family.h"

#include "model/needs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LAYER "model.layers.*."
/* Values are the keys before their norm and rotation where there is no product for them. */
#define RULE_QKV_OR_QK(q, k, v) {"attention.qkv.weight", {q ".weight", k ".weight", v ".weight|" k ".weight"}, 0}

static const nrd_weight_rule gemma4_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE_WEIGHT("transformer.per_layer_embedding", "model.embed_tokens_per_layer"),
    RULE_WEIGHT("transformer.per_layer.projection", "model.per_layer_model_projection"),
    RULE_WEIGHT("transformer.per_layer.norm", "model.per_layer_projection_norm"),
    RULE_WEIGHT("input_layernorm", LAYER "input_layernorm"),
    RULE_QKV_OR_QK(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    {NRD_QUERY, {LAYER "self_attn.q_proj.weight"}, 0},
    RULE_HEAD_NORMS(LAYER "self_attn.q_norm", LAYER "self_attn.k_norm"),
    RULE_WEIGHT("attention.dense", LAYER "self_attn.o_proj"),
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_attention_layernorm"),
    RULE_WEIGHT("post_layernorm", LAYER "pre_feedforward_layernorm"),
    RULE_WEIGHT("mlp.fc", LAYER "mlp.gate_proj"),
    RULE_WEIGHT("mlp.gate", LAYER "mlp.up_proj"),
    RULE_WEIGHT("mlp.proj", LAYER "mlp.down_proj"),
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_feedforward_layernorm"),
    RULE_WEIGHT("per_layer.gate", LAYER "per_layer_input_gate"),
    RULE_WEIGHT("per_layer.proj", LAYER "per_layer_projection"),
    RULE_WEIGHT("per_layer.post_norm", LAYER "post_per_layer_input_norm"),
    {NRD_LAYER_SCALE, {LAYER "layer_scalar"}, 0},
    RULE_WEIGHT("mlp.router", LAYER "router.proj"),
    {NRD_ROUTER_NORM, {LAYER "router.scale"}, 0},
    {NRD_EXPERT_SCALE, {LAYER "router.per_expert_scale"}, 0},
    RULE_WEIGHT("mlp.experts_norm", LAYER "pre_feedforward_layernorm_2"),
    RULE_WEIGHT("mlp.experts_post_norm", LAYER "post_feedforward_layernorm_2"),
    RULE_WEIGHT("mlp.dense_post_norm", LAYER "post_feedforward_layernorm_1"),
    {"mlp.experts.fc.weight", {LAYER "experts.gate_up_proj"}, NRD_RULE_FIRST_HALF},
    {"mlp.experts.gate.weight", {LAYER "experts.gate_up_proj"}, NRD_RULE_SECOND_HALF},
    {"mlp.experts.proj.weight", {LAYER "experts.down_proj"}, 0},
    RULE_WEIGHT("transformer.ln_f", "model.norm"),
    RULE_WEIGHT("lm_head", "lm_head"),
    {0}};

static const nrd_weight_rule gguf_gemma4_rules[] = {
    RULE_EMBED("token_embd"),
    RULE_WEIGHT("transformer.per_layer_embedding", "per_layer_token_embd"),
    RULE_WEIGHT("transformer.per_layer.projection", "per_layer_model_proj"),
    RULE_WEIGHT("transformer.per_layer.norm", "per_layer_proj_norm"),
    RULE_WEIGHT("input_layernorm", "blk.*.attn_norm"),
    RULE_QKV_OR_QK("blk.*.attn_q", "blk.*.attn_k", "blk.*.attn_v"),
    {NRD_QUERY, {"blk.*.attn_q.weight"}, 0},
    RULE_HEAD_NORMS("blk.*.attn_q_norm", "blk.*.attn_k_norm"),
    RULE_WEIGHT("attention.dense", "blk.*.attn_output"),
    RULE_WEIGHT("post_attention_layernorm", "blk.*.post_attention_norm"),
    RULE_WEIGHT("post_layernorm", "blk.*.ffn_norm"),
    RULE_WEIGHT("mlp.fc", "blk.*.ffn_gate"),
    RULE_WEIGHT("mlp.gate", "blk.*.ffn_up"),
    RULE_WEIGHT("mlp.proj", "blk.*.ffn_down"),
    RULE_WEIGHT("post_feedforward_layernorm", "blk.*.post_ffw_norm"),
    RULE_WEIGHT("per_layer.gate", "blk.*.inp_gate"),
    RULE_WEIGHT("per_layer.proj", "blk.*.proj"),
    RULE_WEIGHT("per_layer.post_norm", "blk.*.post_norm"),
    {NRD_LAYER_SCALE, {"blk.*.layer_output_scale.weight"}, 0},
    RULE_WEIGHT("mlp.router", "blk.*.ffn_gate_inp"),
    {NRD_ROUTER_NORM, {"blk.*.ffn_gate_inp.scale"}, 0},
    {NRD_EXPERT_SCALE, {"blk.*.ffn_down_exps.scale"}, 0},
    RULE_WEIGHT("mlp.experts_norm", "blk.*.pre_ffw_norm_2"),
    RULE_WEIGHT("mlp.experts_post_norm", "blk.*.post_ffw_norm_2"),
    RULE_WEIGHT("mlp.dense_post_norm", "blk.*.post_ffw_norm_1"),
    {"mlp.experts.fc.weight", {"blk.*.ffn_gate_exps.weight"}, NRD_RULE_IF_THERE},
    {"mlp.experts.gate.weight", {"blk.*.ffn_up_exps.weight"}, NRD_RULE_IF_THERE},
    {"mlp.experts.fc.weight", {"blk.*.ffn_gate_up_exps.weight"}, NRD_RULE_FIRST_HALF | NRD_RULE_IF_THERE},
    {"mlp.experts.gate.weight", {"blk.*.ffn_gate_up_exps.weight"}, NRD_RULE_SECOND_HALF | NRD_RULE_IF_THERE},
    {"mlp.experts.proj.weight", {"blk.*.ffn_down_exps.weight"}, 0},
    RULE_WEIGHT("transformer.ln_f", "output_norm"),
    RULE_WEIGHT("lm_head", "output"),
    {"rope_factors", {"rope_freqs.weight"}, 0},
    {0}};

/* What follows from the family alone. */
static void fixed(nrd_model_spec *s)
{
    s->moe.normalize = s->moe.beside_mlp = s->has_experts;
    s->attn_scale = 1;
    s->v_norm = true;
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_sliding[i] = (i + 1) % 6 != 0 && i < s->n_layers - 1;
    }
}

/* The heads of layers that do not slide, as newer files list them: what differs, under the number of each layer. */
static nrd_error *listed_heads(nrd_model_spec *s, const nrd_json *list)
{
    char key[16];

    s->full_head_dim = s->full_kv_heads = 0;
    for (int32_t i = 0; i < s->n_layers; i++) {
        int32_t dim, heads;
        snprintf(key, sizeof key, "%d", i);
        const nrd_json *o = nrd_json_get(list, key);
        NRD_TRY(nrd_hf_int(o, "head_dim", s->head_dim, &dim));
        NRD_TRY(nrd_hf_int(o, "num_key_value_heads", s->n_kv_heads, &heads));
        const bool is_first = !s->layer_is_sliding[i] && s->full_head_dim == 0;
        const int32_t want_dim = is_first ? dim : nrd_spec_head_dim(s, i), want_heads = is_first ? heads : nrd_spec_own_kv_heads(s, i);
        if (dim != want_dim || heads != want_heads || dim < 1 || heads < 1) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'per_layer_config' has %d heads of %d for layer %d, expected %d of %d, as other layers "
                              "%s a window", heads, dim, i, want_heads, want_dim, s->layer_is_sliding[i] ? "with" : "without");
        }
        s->full_head_dim = is_first ? dim : s->full_head_dim;
        s->full_kv_heads = is_first ? heads : s->full_kv_heads;
    }
    return NULL;
}

static nrd_error *heads(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *list = nrd_json_get(c, "per_layer_config");

    NRD_TRY(nrd_hf_int(c, "head_dim", 256, &s->head_dim));
    NRD_TRY(nrd_hf_int(c, "num_key_value_heads", 4, &s->n_kv_heads));
    s->rope_local.rotary_dim = s->head_dim;
    if (nrd_json_is(list, NRD_JSON_OBJECT)) {
        NRD_TRY(listed_heads(s, list));
    } else {
        NRD_TRY(nrd_hf_int(c, "global_head_dim", 512, &s->full_head_dim));
        NRD_TRY(nrd_hf_int(c, nrd_json_get_bool(c, "attention_k_eq_v", false) ? "num_global_key_value_heads" : "num_key_value_heads",
                           s->n_kv_heads, &s->full_kv_heads));
    }
    s->rope.rotary_dim = s->full_head_dim > 0 ? s->full_head_dim : s->head_dim;
    s->rope.base = 1e6;
    if (!nrd_json_get(c, "rope_parameters")) {
        s->rope.scaling = NRD_ROPE_SCALING_PROPORTIONAL;
        s->rope.factor = 0.25;
    }
    return NULL;
}

static nrd_error *gemma4(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "layer_types"), *all = nrd_json_get(c, "use_bidirectional_attention");
    const nrd_json *second = nrd_json_get(c, "hidden_size_per_layer_input");
    const bool unified = nrd_str_has_prefix(nrd_json_get_str(c, "model_type", ""), "gemma4_unified");

    s->has_experts = nrd_json_get_bool(c, "enable_moe_block", false);
    if (s->has_experts) {
        NRD_TRY(nrd_hf_int(c, "num_experts", NRD_HF_REQUIRED, &s->moe.n_experts));
        NRD_TRY(nrd_hf_int(c, "top_k_experts", NRD_HF_REQUIRED, &s->moe.top_k));
        NRD_TRY(nrd_hf_int(c, "moe_intermediate_size", NRD_HF_REQUIRED, &s->moe.inter));
    }
    NRD_TRY(nrd_hf_refuse(c, "attention_bias"));
    if (!strcmp(nrd_json_str(all, ""), "all")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'use_bidirectional_attention' = \"all\" is not supported");
    }
    fixed(s);
    s->layer_scale = true;
    s->embed_scale = nrd_family_gemma_embed_scale(s);
    s->logits_softcap = (float)nrd_json_get_num(c, "final_logit_softcapping", 0);
    NRD_TRY(nrd_hf_int(c, "sliding_window", unified ? 1024 : 512, &s->sliding_window));
    NRD_TRY(nrd_hf_int(c, "num_kv_shared_layers", 0, &s->n_shared_kv));
    NRD_TRY(types ? nrd_hf_layer_types(s, types) : NULL);
    s->layer_is_sliding[s->n_layers - 1] = 0; /* as the reference has it, whatever the file says */
    s->values_are_keys = nrd_json_get_bool(c, "attention_k_eq_v", false);
    NRD_TRY(heads(s, c));
    if (s->n_shared_kv > 0 && nrd_json_get_bool(c, "use_double_wide_mlp", false)) {
        s->shared_kv_inter = nrd_family_small(2 * (int64_t)s->inter);
    }
    if (!unified && !nrd_json_is(second, NRD_JSON_NULL)) {
        NRD_TRY(nrd_hf_int(c, "hidden_size_per_layer_input", 256, &s->altup.per_layer));
        NRD_TRY(nrd_hf_int(c, "vocab_size_per_layer_input", 262144, &s->altup.per_layer_vocab));
    }
    return NULL;
}

/* A key that has a number for all layers, or one for each: that of `layer`. */
static nrd_error *of_layer(const nrd_gguf *g, const char *name, int32_t layer, int32_t n_layers, int32_t fallback, int32_t *out)
{
    char key[64];
    double v = fallback;

    snprintf(key, sizeof key, "gemma4.%s", name);
    const nrd_gguf_value *x = nrd_gguf_find(g, key);
    if (x && x->type == NRD_GGUF_ARRAY) {
        if (x->n != (uint64_t)n_layers || !nrd_gguf_arr_num(x, (uint64_t)layer, &v)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be a number, or a list of one for each of %d layers", key, n_layers);
        }
    } else {
        v = nrd_gguf_num(g, key, fallback);
    }
    if (!(v >= 0 && v <= INT32_MAX)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' of layer %d is %g", key, layer, v);
    }
    *out = (int32_t)v;
    return NULL;
}

static bool has_values(const nrd_gguf *g, int32_t layer)
{
    char name[48];
    snprintf(name, sizeof name, "blk.%d.attn_v.weight", layer);
    return nrd_gguf_find_tensor(g, name) != NULL;
}

/* Which layers slide, and how wide each is: files have lists. */
static nrd_error *gguf_layers(nrd_model_spec *s, const nrd_gguf *g)
{
    int32_t n_kv = 0, full_kv = 0, inter = 0, shared_inter = 0;

    for (int32_t i = 0; i < s->n_layers; i++) {
        int32_t slides, kv, width;
        NRD_TRY(of_layer(g, "attention.sliding_window_pattern", i, s->n_layers, s->layer_is_sliding[i], &slides));
        NRD_TRY(of_layer(g, "attention.head_count_kv", i, s->n_layers, s->n_heads, &kv));
        NRD_TRY(of_layer(g, "feed_forward_length", i, s->n_layers, 0, &width));
        s->layer_is_sliding[i] = slides > 0;
        s->values_are_keys = s->values_are_keys || (!slides && i < s->n_layers - s->n_shared_kv && !has_values(g, i));
        int32_t *heads_of = slides ? &n_kv : &full_kv, *inter_of = i < s->n_layers - s->n_shared_kv ? &inter : &shared_inter;
        if ((*heads_of > 0 && *heads_of != kv) || (*inter_of > 0 && *inter_of != width)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "layer %d has %d heads of keys and values and an MLP of %d, others of its kind %d and %d",
                              i, kv, width, *heads_of, *inter_of);
        }
        *heads_of = kv;
        *inter_of = width;
    }
    s->n_kv_heads = n_kv > 0 ? n_kv : full_kv;
    s->full_kv_heads = full_kv > 0 ? full_kv : n_kv;
    s->inter = inter;
    s->shared_kv_inter = shared_inter != inter ? shared_inter : 0;
    return NULL;
}

static nrd_error *gguf_gemma4(nrd_model_spec *s, const nrd_gguf *g)
{
    s->has_experts = nrd_gguf_key(g, "gemma4", "expert_count", 0) > 0;
    if (s->has_experts) {
        s->moe.n_experts = nrd_family_small(nrd_gguf_key(g, "gemma4", "expert_count", 0));
        s->moe.top_k = nrd_family_small(nrd_gguf_key(g, "gemma4", "expert_used_count", 0));
        s->moe.inter = nrd_family_small(nrd_gguf_key(g, "gemma4", "expert_feed_forward_length", 0));
    }
    fixed(s);
    s->n_shared_kv = nrd_family_small(nrd_gguf_key(g, "gemma4", "attention.shared_kv_layers", 0));
    if (s->n_shared_kv < 0 || s->n_shared_kv >= s->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'gemma4.attention.shared_kv_layers' must be from 0 to %d, got %d", s->n_layers - 1,
                          s->n_shared_kv);
    }
    s->full_head_dim = s->head_dim;
    s->head_dim = nrd_family_small(nrd_gguf_key(g, "gemma4", "attention.key_length_swa", s->head_dim));
    s->rope_local.rotary_dim = nrd_family_small(nrd_gguf_key(g, "gemma4", "rope.dimension_count_swa", s->head_dim));
    s->altup.per_layer = nrd_family_small(nrd_gguf_key(g, "gemma4", "embedding_length_per_layer_input", 0));
    s->altup.per_layer_vocab = s->altup.per_layer > 0 ? nrd_gguf_rows_of(g, "per_layer_token_embd.weight") : 0;
    s->layer_scale = nrd_gguf_find_tensor(g, "blk.0.layer_output_scale.weight") != NULL;
    s->embed_scale = sqrtf((float)s->hidden);
    s->logits_softcap = (float)nrd_gguf_num(g, "gemma4.final_logit_softcapping", 0);
    return gguf_layers(s, g);
}

const nrd_arch nrd_arch_gemma4 = {
    "gemma4_text", "Gemma4ForCausalLM", {"gemma4_text", "gemma4", "gemma4_unified", "gemma4_unified_text"},
    {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration"}, "gemma4", MODEL_PREFIXES,
    gemma4_rules, gguf_gemma4_rules,
    T_GELU_TANH | T_TIED | T_POST_NORMS | T_QK_NORM | T_LOCAL_ROPE | T_WIDTHS_DIFFER |
        T_EXPERTS | T_EXPERTS_OR_NOT, gemma4, gguf_gemma4};
