/* SPDX-License-Identifier: Apache-2.0
 * Fields of a specification as config.json calls them. */
#include "model/hf_names.h"

#include "base/str.h"
#include "model/hf_keys.h"

#include <ctype.h>
#include <string.h>

/* What messages of nrd_model_spec_check call a number, and the keys that it can have come from. */
static const struct {
    const char *field, *keys;
} rows[] = {
    {"norm_epsilon", "rms_norm_eps|layer_norm_epsilon|layer_norm_eps|norm_epsilon|norm_eps|layernorm_epsilon"},
    {"num_hidden_layers", "num_hidden_layers|n_layer|n_layers|num_layers"},
    {"hidden_size", "hidden_size|n_embd|d_model"},
    {"num_attention_heads", "num_attention_heads|n_head|n_heads|num_heads"},
    {"head_size", "head_dim|d_kv|kv_channels"},
    {"intermediate_size", "intermediate_size|ffn_dim|n_inner|d_ff|ffn_hidden_size"},
    {"max_position_embeddings", "max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length"},
    {"embed_scale", "embedding_multiplier|scale_emb"},
    {"attn_scale", "attention_multiplier|query_pre_attn_scalar"},
    {"logits_scale", "logits_scaling|logit_scale|lm_head_multiplier|output_multiplier_scale"},
    {"num_experts", "num_experts|num_local_experts|n_routed_experts|moe_num_experts"},
    {"num_experts_per_tok", "num_experts_per_tok|num_experts_per_token|moe_topk|moe_top_k"},
    {"moe_intermediate_size", "moe_intermediate_size|expert_intermediate_size|moe_ffn_hidden_size"},
    {"rope: the base", "rope_theta|rotary_emb_base|global_rope_theta"},
    {"rope_local: the base", "rope_local_base_freq|local_rope_theta"},
    {"rope: the scaling factor", "factor"},
    {"recurrent.n_heads", "mamba_num_heads|mamba_n_heads|linear_num_value_heads|num_heads"},
    {"recurrent.head_dim", "mamba_head_dim|mamba_d_head|linear_value_head_dim|head_dim"},
    {"recurrent.n_groups", "mamba_n_groups|linear_num_key_heads|n_groups"},
    {"recurrent.n_state", "mamba_d_state|ssm_state_size|state_size|linear_key_head_dim"},
    {"recurrent.kernel", "mamba_d_conv|conv_kernel|linear_conv_kernel_dim|conv_L_cache"},
    {"recurrent.norm_eps", "rms_norm_eps|layer_norm_epsilon|layer_norm_eps|norm_epsilon|norm_eps|layernorm_epsilon"},
};

/* In the configuration or in what it has of rotary positions. *out_parent: "" or the object with a point behind its name. */
static const nrd_json *find(const nrd_json *c, const char *keys, const char **out_parent)
{
    static const char *const parents[] = {"rope_parameters", "rope_scaling"};
    static const char *const points[] = {"rope_parameters.", "rope_scaling."};
    const nrd_json *v = nrd_hf_get(c, keys);

    *out_parent = "";
    for (int i = 0; i < 2 && !v; i++) {
        v = nrd_hf_get(nrd_json_get(c, parents[i]), keys);
        *out_parent = points[i];
    }
    return v;
}

static bool is_inside(char ch)
{
    return isalnum((unsigned char)ch) || ch == '_' || ch == '.';
}

/* The row whose field stands at `at` as a whole, else -1. Behind "recurrent." of a message its other fields have no prefix. */
static int field_at(const char *text, const char *at, size_t *out_n)
{
    static const char prefix[] = "recurrent.";
    const bool is_word = at == text || !is_inside(at[-1]);

    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && is_word; i++) {
        const char *bare = rows[i].field + (strncmp(rows[i].field, prefix, sizeof prefix - 1) == 0 ? sizeof prefix - 1 : 0);
        const char *const forms[] = {rows[i].field, strncmp(text, prefix, sizeof prefix - 1) == 0 ? bare : rows[i].field};
        for (int k = 0; k < 2; k++) {
            const size_t n = strlen(forms[k]);
            if (strncmp(at, forms[k], n) == 0 && !is_inside(at[n])) {
                *out_n = n;
                return (int)i;
            }
        }
    }
    return -1;
}

nrd_error *nrd_hf_name_fields(nrd_error *err, const nrd_json *config)
{
    const char *text = err ? nrd_error_message(err) : "";
    nrd_str out = {0};

    for (const char *at = text; *at;) {
        size_t n = 0;
        const char *parent = "";
        const int row = field_at(text, at, &n);
        const nrd_json *v = row >= 0 ? find(config, rows[row].keys, &parent) : NULL;
        if (v) {
            nrd_str_printf(&out, "%s%s", parent, v->key);
        } else {
            nrd_str_append(&out, at, row >= 0 ? n : 1);
        }
        at += row >= 0 ? n : 1;
    }
    if (err && !out.no_memory) {
        nrd_error *named = nrd_errorf(nrd_error_get_code(err), "%s", nrd_str_cstr(&out));
        nrd_error_free(err);
        err = named;
    }
    nrd_str_fini(&out);
    return err;
}
