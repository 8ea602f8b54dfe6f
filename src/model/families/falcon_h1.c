/* SPDX-License-Identifier: Apache-2.0
 * Falcon-H1 (Zuo et al., 2025): each layer has attention and Mamba-2 side by side, which read the same; and numbers of the
 * configuration multiply what products read and give. Those go into weights, as llama.cpp's converter has them in GGUF files. */
#include "model/families/recurrent.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LAYER "model.layers.*."

static const nrd_weight_rule falcon_h1_rules[] = {
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

static const nrd_weight_rule gguf_falcon_h1_rules[] = {
    RULE_EMBED("token_embd"),
    RULE("input_layernorm", BLOCK "attn_norm", 0),
    RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v"),
    RULE("attention.dense", BLOCK "attn_output", 0),
    GGUF_MAMBA2,
    RULE("post_layernorm", BLOCK "ffn_norm", 0),
    RULE("mlp.fc", BLOCK "ffn_gate", 0),
    RULE("mlp.gate", BLOCK "ffn_up", 0),
    RULE("mlp.proj", BLOCK "ffn_down", 0),
    RULE("transformer.ln_f", "output_norm", 0),
    RULE("lm_head", "output", 0),
    {0}};

/* A list of `n` numbers above 0, or none: they are 1. */
static nrd_error *read_list(const nrd_json *c, const char *key, float *out, int n)
{
    const nrd_json *list = nrd_hf_get(c, key);

    for (int i = 0; i < n; i++) {
        const double v = list ? nrd_json_num(nrd_json_at(list, (size_t)i), NAN) : 1;
        if ((list && nrd_json_len(list) != (size_t)n) || !(v > 0) || !isfinite(v)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be a list of %d numbers above 0", key, n);
        }
        out[i] = (float)v;
    }
    return NULL;
}

static nrd_error *multipliers(nrd_model_spec *s, const nrd_json *c)
{
    nrd_multipliers_spec *m = &s->multipliers;
    double attn_in = 1, attn_out = 1, key = 1, state_in = 1, state_out = 1, embed = 1, head = 1;
    float mlp[2];
    const struct {
        const char *key;
        double *out;
    } scales[] = {{"attention_in_multiplier", &attn_in}, {"attention_out_multiplier", &attn_out}, {"key_multiplier", &key},
                  {"ssm_in_multiplier", &state_in},      {"ssm_out_multiplier", &state_out},
                  {"embedding_multiplier", &embed},      {"lm_head_multiplier", &head}};

    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        NRD_TRY(nrd_hf_scale(c, scales[i].key, scales[i].out));
    }
    NRD_TRY(read_list(c, "ssm_multipliers", m->state_in, 5));
    NRD_TRY(read_list(c, "mlp_multipliers", mlp, 2));
    for (int i = 0; i < 5; i++) {
        m->state_in[i] = (float)((double)m->state_in[i] * state_in);
    }
    m->any = true;
    m->state_out = (float)state_out;
    m->attn_out = (float)(attn_in * attn_out); /* of values, and of what attention makes of them */
    m->mlp_gate = mlp[0];
    m->mlp_down = mlp[1];
    s->attn_scale = (float)(attn_in * attn_in * key / sqrt((double)s->head_dim)); /* of queries and keys */
    s->embed_scale = (float)embed;
    s->logits_scale = (float)head;
    return NULL;
}

static nrd_error *falcon_h1(nrd_model_spec *s, const nrd_json *c)
{
    static const char *const biases[] = {"attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"};
    nrd_recurrent_spec *r = &s->recurrent;
    const nrd_json *width = nrd_hf_get(c, "mamba_d_ssm");

    for (size_t i = 0; i < sizeof biases / sizeof biases[0]; i++) {
        NRD_TRY(nrd_hf_refuse(c, biases[i]));
    }
    NRD_TRY(nrd_hf_mamba2(s, c));
    if (width && nrd_json_int(width, 0) != (int64_t)r->n_heads * r->head_dim) {
        const nrd_json *dim = nrd_hf_get(c, "mamba_d_head");
        const int64_t all = nrd_json_int(width, 0);
        if ((dim && !nrd_json_is(dim, NRD_JSON_STRING)) || all < 1 || all % r->n_heads) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'mamba_d_ssm' must be 'mamba_n_heads' (%d) times 'mamba_d_head', got %lld",
                              r->n_heads, (long long)all);
        }
        r->head_dim = nrd_family_small(all / r->n_heads);
    }
    r->no_norm = !nrd_json_get_bool(c, "mamba_rms_norm", false);
    r->norm_first = !r->no_norm && nrd_json_get_bool(c, "mamba_norm_before_gate", true);
    r->beside_attention = true;
    memset(s->layer_is_recurrent, 1, (size_t)s->n_layers);
    return multipliers(s, c);
}

static nrd_error *gguf_falcon_h1(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_gguf_mamba2(s, g, "falcon-h1");
    if (nrd_spec_is_recurrent(s)) {
        s->recurrent.no_norm = !nrd_gguf_find_tensor(g, "blk.0.ssm_norm.weight");
        s->recurrent.beside_attention = true;
    }
    return NULL;
}

const nrd_arch nrd_arch_falcon_h1 = {
    "falcon_h1", "FalconH1ForCausalLM", {"falcon_h1"}, {"FalconH1ForCausalLM"}, "falcon-h1", MODEL_PREFIXES,
    falcon_h1_rules, gguf_falcon_h1_rules, T_RECURRENT | T_STATE_BESIDE, falcon_h1, gguf_falcon_h1};
