/* SPDX-License-Identifier: Apache-2.0
 * Gemma 3n, its text: tokens with several states, a second embedding for all layers, layers that share keys and values,
 * MLPs of which a share of the numbers stays. */
#include "model/families/family.h"

#include "model/needs.h"

#include <math.h>
#include <stdio.h>

#define LAYER "model.layers.*."

static const nrd_weight_rule gemma3n_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE_WEIGHT("transformer.per_layer_embedding", "model.embed_tokens_per_layer"),
    RULE_WEIGHT("transformer.per_layer.projection", "model.per_layer_model_projection"),
    RULE_WEIGHT("transformer.per_layer.norm", "model.per_layer_projection_norm"),
    RULE_WEIGHT("transformer.altup.in_1", "model.altup_projections.0"),
    RULE_WEIGHT("transformer.altup.in_2", "model.altup_projections.1"),
    RULE_WEIGHT("transformer.altup.in_3", "model.altup_projections.2"),
    RULE_WEIGHT("transformer.altup.out_1", "model.altup_unembed_projections.0"),
    RULE_WEIGHT("transformer.altup.out_2", "model.altup_unembed_projections.1"),
    RULE_WEIGHT("transformer.altup.out_3", "model.altup_unembed_projections.2"),
    RULE_WEIGHT("input_layernorm", LAYER "input_layernorm"),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    {NRD_QUERY, {LAYER "self_attn.q_proj.weight"}, 0},
    RULE_HEAD_NORMS(LAYER "self_attn.q_norm", LAYER "self_attn.k_norm"),
    RULE_WEIGHT("attention.dense", LAYER "self_attn.o_proj"),
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_attention_layernorm"),
    RULE_WEIGHT("altup.router_norm", LAYER "altup.router_norm"),
    RULE_WEIGHT("altup.router", LAYER "altup.modality_router"),
    RULE_WEIGHT("altup.predict", LAYER "altup.prediction_coefs"),
    RULE_WEIGHT("altup.correct", LAYER "altup.correction_coefs"),
    {"altup.scale", {LAYER "altup.correct_output_scale"}, 0},
    RULE_WEIGHT("laurel.left", LAYER "laurel.linear_left"),
    RULE_WEIGHT("laurel.right", LAYER "laurel.linear_right"),
    RULE_WEIGHT("laurel.norm", LAYER "laurel.post_laurel_norm"),
    RULE_WEIGHT("per_layer.gate", LAYER "per_layer_input_gate"),
    RULE_WEIGHT("per_layer.proj", LAYER "per_layer_projection"),
    RULE_WEIGHT("per_layer.post_norm", LAYER "post_per_layer_input_norm"),
    RULE_WEIGHT("post_layernorm", LAYER "pre_feedforward_layernorm"),
    RULE_WEIGHT("mlp.fc", LAYER "mlp.gate_proj"),
    RULE_WEIGHT("mlp.gate", LAYER "mlp.up_proj"),
    RULE_WEIGHT("mlp.proj", LAYER "mlp.down_proj"),
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_feedforward_layernorm"),
    RULE_WEIGHT("transformer.ln_f", "model.norm"),
    RULE_WEIGHT("lm_head", "lm_head"),
    {0}};

static const nrd_weight_rule gguf_gemma3n_rules[] = {
    RULE_EMBED("token_embd"),
    RULE_WEIGHT("transformer.per_layer_embedding", "per_layer_token_embd"),
    RULE_WEIGHT("transformer.per_layer.projection", "per_layer_model_proj"),
    RULE_WEIGHT("transformer.per_layer.norm", "per_layer_proj_norm"),
    {"transformer.altup.in_1.weight", {"altup_proj.weight[0]"}, 0},
    {"transformer.altup.in_2.weight", {"altup_proj.weight[1]"}, 0},
    {"transformer.altup.in_3.weight", {"altup_proj.weight[2]"}, 0},
    {"transformer.altup.out_1.weight", {"altup_unembd_proj.weight[0]"}, 0},
    {"transformer.altup.out_2.weight", {"altup_unembd_proj.weight[1]"}, 0},
    {"transformer.altup.out_3.weight", {"altup_unembd_proj.weight[2]"}, 0},
    RULE_WEIGHT("input_layernorm", "blk.*.attn_norm"),
    RULE_QKV("blk.*.attn_q", "blk.*.attn_k", "blk.*.attn_v"),
    {NRD_QUERY, {"blk.*.attn_q.weight"}, 0},
    RULE_HEAD_NORMS("blk.*.attn_q_norm", "blk.*.attn_k_norm"),
    RULE_WEIGHT("attention.dense", "blk.*.attn_output"),
    RULE_WEIGHT("post_attention_layernorm", "blk.*.post_attention_norm"),
    RULE_WEIGHT("altup.router_norm", "blk.*.altup_router_norm"),
    RULE_WEIGHT("altup.router", "blk.*.altup_router"),
    RULE_WEIGHT("altup.predict", "blk.*.altup_predict_coef"),
    RULE_WEIGHT("altup.correct", "blk.*.altup_correct_coef"),
    {"altup.scale", {"blk.*.altup_correct_scale.weight"}, 0},
    RULE_WEIGHT("laurel.left", "blk.*.laurel_l"),
    RULE_WEIGHT("laurel.right", "blk.*.laurel_r"),
    RULE_WEIGHT("laurel.norm", "blk.*.laurel_post_norm"),
    RULE_WEIGHT("per_layer.gate", "blk.*.inp_gate"),
    RULE_WEIGHT("per_layer.proj", "blk.*.proj"),
    RULE_WEIGHT("per_layer.post_norm", "blk.*.post_norm"),
    RULE_WEIGHT("post_layernorm", "blk.*.ffn_norm"),
    RULE_WEIGHT("mlp.fc", "blk.*.ffn_gate"),
    RULE_WEIGHT("mlp.gate", "blk.*.ffn_up"),
    RULE_WEIGHT("mlp.proj", "blk.*.ffn_down"),
    RULE_WEIGHT("post_feedforward_layernorm", "blk.*.post_ffw_norm"),
    RULE_WEIGHT("transformer.ln_f", "output_norm"),
    RULE_WEIGHT("lm_head", "output"),
    {0}};

/* How many standard deviations above the mean a number of a normal distribution is with probability 1 - p, by halving. */
static float deviations(double p)
{
    double low = 0, high = 8;

    for (int i = 0; i < 60; i++) {
        const double mid = (low + high) / 2;
        *(0.5 * erfc(-mid / sqrt(2.0)) < p ? &low : &high) = mid;
    }
    return (float)low;
}

/* Shares of the MLP's numbers that become 0: a list, one for all, or by default most of them in the first ten layers. */
static nrd_error *sparsity(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *v = nrd_hf_get(c, "activation_sparsity_pattern");
    const bool is_list = nrd_json_is(v, NRD_JSON_ARRAY);

    if (is_list && nrd_json_len(v) != (size_t)s->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'activation_sparsity_pattern' has %zu entries, expected one for each of %d layers",
                          nrd_json_len(v), s->n_layers);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        const double p = is_list ? nrd_json_num(nrd_json_at(v, (size_t)i), -1)
                         : v     ? nrd_json_num(v, -1)
                                 : (s->n_layers > 10 && i < 10 ? 0.95 : 0);
        if (!(p >= 0 && p <= 0) && !(p > 0.5 && p < 1)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'activation_sparsity_pattern' must be 0, or above 0.5 and below 1, got %g in layer "
                              "%d", p, i);
        }
        s->layer_cutoff[i] = p > 0 ? deviations(p) : 0;
    }
    return NULL;
}

static nrd_error *windows(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "layer_types");

    NRD_TRY(nrd_hf_int(c, "sliding_window", 512, &s->sliding_window));
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_sliding[i] = (i + 1) % 5 != 0;
    }
    return types ? nrd_hf_layer_types(s, types) : NULL;
}

/* What follows from the family alone. */
static void fixed(nrd_model_spec *s)
{
    s->attn_scale = 1;
    s->v_norm = true;
}

static nrd_error *gemma3n(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *cap = nrd_json_get(c, "final_logit_softcapping");

    NRD_TRY(nrd_hf_refuse(c, "altup_active_idx"));
    if (!nrd_json_get_bool(c, "altup_correct_scale", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'altup_correct_scale' = false is not supported");
    }
    fixed(s);
    NRD_TRY(nrd_hf_int(c, "head_dim", 256, &s->head_dim));
    NRD_TRY(nrd_hf_int(c, "num_key_value_heads", 2, &s->n_kv_heads));
    NRD_TRY(nrd_hf_int(c, "altup_num_inputs", 4, &s->altup.n_states));
    NRD_TRY(nrd_hf_int(c, "laurel_rank", 64, &s->altup.laurel_rank));
    NRD_TRY(nrd_hf_int(c, "hidden_size_per_layer_input", 256, &s->altup.per_layer));
    NRD_TRY(nrd_hf_int(c, "vocab_size_per_layer_input", 262144, &s->altup.per_layer_vocab));
    NRD_TRY(nrd_hf_int(c, "num_kv_shared_layers", s->n_layers > 15 ? 15 : 0, &s->n_shared_kv));
    s->embed_scale = nrd_family_gemma_embed_scale(s);
    s->logits_softcap = (float)(cap ? nrd_json_num(cap, 0) : 30); /* null: none */
    s->rope.base = 1e6; /* of layers that do not slide */
    NRD_TRY(sparsity(s, c));
    return windows(s, c);
}

static nrd_error *gguf_layers(nrd_model_spec *s, const nrd_gguf *g)
{
    const nrd_gguf_value *cut = nrd_gguf_find(g, "gemma3n.activation_sparsity_scale");
    const nrd_gguf_value *slides = nrd_gguf_find(g, "gemma3n.attention.sliding_window_pattern");
    const nrd_gguf_value *const lists[] = {cut, slides};

    for (int k = 0; k < 2; k++) {
        if (lists[k] && (lists[k]->type != NRD_GGUF_ARRAY || lists[k]->n != (uint64_t)s->n_layers)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'gemma3n.%s' must be a list with one entry for each of %d layers",
                              k ? "attention.sliding_window_pattern" : "activation_sparsity_scale", s->n_layers);
        }
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        double v = 0, on = (i + 1) % 5 != 0;
        if ((cut && !nrd_gguf_arr_num(cut, (uint64_t)i, &v)) || (slides && !nrd_gguf_arr_num(slides, (uint64_t)i, &on))) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'gemma3n.%s' of layer %d is no number", cut ? "activation_sparsity_scale"
                              : "attention.sliding_window_pattern", i);
        }
        if (!cut && s->n_layers > 10 && i < 10) {
            v = (double)deviations(0.95);
        }
        s->layer_cutoff[i] = isinf(v) && v < 0 ? 0 : (float)v; /* no share becomes 0 */
        s->layer_is_sliding[i] = on > 0;
    }
    return NULL;
}

static nrd_error *gguf_gemma3n(nrd_model_spec *s, const nrd_gguf *g)
{
    const int64_t shared = nrd_gguf_key(g, "gemma3n", "attention.shared_kv_layers", s->n_layers > 20 ? s->n_layers - 20 : 0);

    if (nrd_gguf_key(g, "gemma3n", "altup.active_idx", 0) != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'gemma3n.altup.active_idx' other than 0 is not supported");
    }
    fixed(s);
    s->altup.n_states = nrd_family_small(nrd_gguf_key(g, "gemma3n", "altup.num_inputs", 4));
    s->altup.per_layer = nrd_family_small(nrd_gguf_key(g, "gemma3n", "embedding_length_per_layer_input", 256));
    s->altup.laurel_rank = nrd_gguf_rows_of(g, "blk.0.laurel_l.weight");
    s->altup.per_layer_vocab = nrd_gguf_rows_of(g, "per_layer_token_embd.weight");
    s->n_shared_kv = nrd_family_small(shared);
    s->embed_scale = sqrtf((float)s->hidden);
    s->logits_softcap = (float)nrd_gguf_num(g, "gemma3n.final_logit_softcapping", 30);
    return gguf_layers(s, g);
}

const nrd_arch nrd_arch_gemma3n = {
    "gemma3n_text", "Gemma3nForCausalLM", {"gemma3n_text", "gemma3n"},
    {"Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"}, "gemma3n", MODEL_PREFIXES,
    gemma3n_rules, gguf_gemma3n_rules,
    T_GELU_TANH | T_TIED | T_POST_NORMS | T_QK_NORM | T_LOCAL_ROPE | T_ALTUP, gemma3n, gguf_gemma3n};
