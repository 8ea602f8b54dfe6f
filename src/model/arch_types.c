/* SPDX-License-Identifier: Apache-2.0
 * The kinds of values that keys of config.json have. Readers take a key's default where its value is of another kind; a
 * number in quotes would so become a model that answers, and answers wrongly. */
#include "model/arch.h"

#include "model/hf_keys.h"

#include <string.h>

typedef enum { BOOLEAN, NUMBER, STRING, LIST, N_KINDS } kind;

static const char *const kind_names[N_KINDS] = {"true or false", "a number", "a string", "a list"};

/* Keys that families read (tests/model/test_config_kinds.py looks that none is missing). Not here: what is a number in some
 * published files and something else in others (attn_temperature_tuning, logit_scale, use_bidirectional_attention). */
static const char *const keys[N_KINDS] = {
    [BOOLEAN] = "|_remove_final_layer_norm|add_bias_linear|add_cross_attention|add_qkv_bias|alibi|altup_correct_scale|attention_bias|"
                "attention_k_eq_v|attention_out_bias|bias|block_auto_adjust_ff_dim|classifier_bias|conv_bias|do_layer_norm_before|"
                "enable_bias|enable_moe_block|gated_mlp|linear_allow_neg_eigval|lm_head_bias|mamba_conv_bias|mamba_norm_before_gate|"
                "mamba_proj_bias|mamba_rms_norm|mlp_bias|mlp_fc1_bias|mlp_fc2_bias|multi_query|multi_query_attention|mup_enabled|new_decoder_architecture|"
                "no_bias|norm_bias|norm_topk_prob|normalize_before|parallel_attn|parallel_attn_mlp_res|post_layer_norm|"
                "qk_layernorm|qkv_bias|qkv_proj_bias|rmsnorm|rope_interleave|scale_attn_by_inverse_layer_idx|scale_attn_weights|scale_embedding|"
                "share_encoder_decoder_embeddings|tie_embedding|tie_word_embeddings|truncate|use_bias|use_conv_bias|"
                "use_double_wide_mlp|use_dynamic_ntk|use_expert_bias|use_logn_attn|use_parallel_residual|use_post_norm|use_qk_norm|"
                "use_qkv_bias|use_rms_norm|use_rope|use_sliding_window|",
    [NUMBER] = "|alibi_bias_max|alpha|attention_factor|attention_multiplier|attn_output_multiplier|attn_scale|beta_fast|beta_slow|"
               "block_ffn_dim_multiplier|clip_qkv|dim_model_base|embedding_multiplier|embedding_multiplier_scale|expand|"
               "expansion_ratio|factor|final_logit_softcapping|global_rope_theta|high_freq_factor|layer_norm_eps|layer_norm_epsilon|"
               "layernorm_epsilon|llama_4_scaling_beta|local_rope_theta|logits_scaling|long_mscale|low_freq_factor|max_attn_value|"
               "mixer_rms_eps|mscale|mscale_all_dim|norm_eps|norm_epsilon|output_multiplier_scale|partial_rotary_factor|"
               "query_pre_attn_scalar|residual_multiplier|rms_norm_eps|rope_local_base_freq|rope_pct|rope_ratio|rope_theta|"
               "rotary_emb_base|rotary_emb_fraction|rotary_pct|route_scale|routed_scaling_factor|router_jitter_noise|"
               "router_scaling_factor|scale_depth|scale_emb|short_mscale|softmax_scale|swiglu_limit|time_step_min|",
    [STRING] = "|activation|activation_function|dense_act_fn|dtype|feed_forward_proj|hidden_act|hidden_activation|"
               "hybrid_override_pattern|mlp_hidden_act|model_type|position_embedding_type|rope_type|score_function|topk_method|"
               "torch_dtype|type|",
    [LIST] = "|architectures|layer_types|",
};

/* Objects in which they stand too. */
static const char parts[] = "|text_config|decoder|encoder|llm_cfg|rope_scaling|rope_parameters|full_attention|sliding_attention|attn_config|"
                            "ffn_config|";

static bool is_among(const char *list, const nrd_json *member)
{
    char with_bars[66];

    if (member->key_len + 3 > sizeof with_bars) {
        return false;
    }
    with_bars[0] = '|';
    memcpy(with_bars + 1, member->key, member->key_len);
    memcpy(with_bars + 1 + member->key_len, "|", 2);
    return strstr(list, with_bars) != NULL;
}

static bool is_kind(const nrd_json *v, kind k)
{
    return k == BOOLEAN ? nrd_json_is(v, NRD_JSON_BOOL)
           : k == NUMBER ? nrd_json_is_number(v)
                         : nrd_json_is(v, k == STRING ? NRD_JSON_STRING : NRD_JSON_ARRAY);
}

static nrd_error *check_member(const nrd_json *v)
{
    for (kind k = 0; k < N_KINDS; k++) {
        if (!nrd_json_is(v, NRD_JSON_NULL) && is_among(keys[k], v) && !is_kind(v, k)) {
            return nrd_hf_wrong_value(v, kind_names[k]);
        }
    }
    return NULL;
}

/* Bounded by the reader's limit of depth. */
nrd_error *nrd_arch_check_types(const nrd_json *config)
{
    if (!nrd_json_is(config, NRD_JSON_OBJECT)) {
        return NULL;
    }
    for (size_t i = 0; i < nrd_json_len(config); i++) {
        const nrd_json *v = nrd_json_at(config, i);
        NRD_TRY(check_member(v));
        if (is_among(parts, v)) {
            NRD_TRY(nrd_arch_check_types(v));
        }
    }
    return NULL;
}
