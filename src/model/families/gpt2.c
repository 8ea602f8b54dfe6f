/* SPDX-License-Identifier: Apache-2.0
 * GPT-2 and SantaCoder: learned positions, layer norms, matrices stored [in, out]. GPT-Neo is like it, but for layers with a window, queries that are
 * not scaled, and matrices as others store them. */
#include "model/families/family.h"

#include <string.h>

#define LAYER "h.*."

static const nrd_weight_rule rules[] = {
    RULE_EMBED("wte"),
    RULE_POSITIONS("wpe", 0),
    RULE("input_layernorm", LAYER "ln_1", 0),
    {"attention.qkv.weight", {LAYER "attn.c_attn.weight"}, NRD_RULE_TRANSPOSE | NRD_RULE_IF_THERE},
    {"attention.qkv.bias", {LAYER "attn.c_attn.bias"}, NRD_RULE_IF_THERE},
    {"attention.qkv.weight", {LAYER "attn.q_attn.weight", LAYER "attn.kv_attn.weight", LAYER "attn.kv_attn.weight"}, NRD_RULE_TRANSPOSE | NRD_RULE_JOINED_KV | NRD_RULE_IF_THERE},
    {"attention.qkv.bias", {LAYER "attn.q_attn.bias", LAYER "attn.kv_attn.bias", LAYER "attn.kv_attn.bias"}, NRD_RULE_JOINED_KV | NRD_RULE_IF_THERE},
    RULE_TURNED("attention.dense", LAYER "attn.c_proj"),
    RULE("post_layernorm", LAYER "ln_2", 0),
    RULE_TURNED("mlp.fc", LAYER "mlp.c_fc"),
    RULE_TURNED("mlp.proj", LAYER "mlp.c_proj"),
    RULE("transformer.ln_f", "ln_f", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

/* SantaCoder calls itself GPT-2: all heads share one key and value, and the queries have a matrix of their own. */
static nrd_error *gpt2(nrd_model_spec *s, const nrd_json *c)
{
    const char *heads = nrd_json_get_str(c, "attention_head_type", "multihead");

    if (strcmp(heads, "multihead") != 0 && strcmp(heads, "multiquery") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'attention_head_type' must be multihead or multiquery, got '%.40s'", heads);
    }
    s->n_kv_heads = !strcmp(heads, "multiquery") ? 1 : s->n_kv_heads;
    return NULL;
}

const nrd_arch nrd_arch_gpt2 = {
    "gpt2", "GPTForCausalLM", {"gpt2"}, {"GPT2LMHeadModel", "GPT2LMHeadCustomModel"}, "gpt2", {"transformer.", "", NULL},
    rules, nrd_gguf_stacked_rules,
    T_LAYER_NORM | T_LEARNED_POSITIONS | T_PLAIN_MLP | T_GELU_TANH | T_ALL_BIASES | T_TIED |
        T_TRTLLM,
    gpt2, NULL};

/* ---- GPT-Neo ---- */

static const nrd_weight_rule neo_rules[] = {
    RULE_EMBED("wte"),
    RULE_POSITIONS("wpe", 0),
    RULE("input_layernorm", LAYER "ln_1", 0),
    RULE_QKV(LAYER "attn.attention.q_proj", LAYER "attn.attention.k_proj", LAYER "attn.attention.v_proj"),
    RULE("attention.dense", LAYER "attn.attention.out_proj", 0),
    RULE("post_layernorm", LAYER "ln_2", 0),
    RULE("mlp.fc", LAYER "mlp.c_fc", 0),
    RULE("mlp.proj", LAYER "mlp.c_proj", 0),
    RULE("transformer.ln_f", "ln_f", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *neo_kind(nrd_model_spec *s, int32_t layer, const char *kind)
{
    s->layer_is_sliding[layer] = !strcmp(kind, "local");
    return s->layer_is_sliding[layer] || !strcmp(kind, "global")
               ? NULL
               : nrd_errorf(NRD_ERR_UNSUPPORTED, "'attention_types': '%.40s' is neither global nor local", kind);
}

/* A list of [kinds, how often they come one after the other]. */
static nrd_error *neo_kinds(nrd_model_spec *s, const nrd_json *list)
{
    int32_t n = 0;

    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *item = nrd_json_at(list, i), *kinds = nrd_json_at(item, 0);
        const int64_t times = nrd_json_int(nrd_json_at(item, 1), 0);
        for (int64_t k = 0; k < times && n < s->n_layers && nrd_json_len(kinds) > 0; k++) {
            for (size_t j = 0; j < nrd_json_len(kinds) && n < s->n_layers; j++) {
                NRD_TRY(neo_kind(s, n++, nrd_json_str(nrd_json_at(kinds, j), "")));
            }
        }
    }
    return n == s->n_layers ? NULL
                            : nrd_errorf(NRD_ERR_INVALID_ARG, "'attention_types' names %d layers, expected %d", n, s->n_layers);
}

static nrd_error *neo(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "attention_types");

    s->qkv_bias = false;
    s->attn_scale = 1;
    NRD_TRY(nrd_hf_int(c, "window_size", 256, &s->sliding_window));
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_sliding[i] = i % 2 == 1;
    }
    return types ? neo_kinds(s, types) : NULL;
}

const nrd_arch nrd_arch_gpt_neo = {
    "gpt_neo", "GPTNeoForCausalLM", {"gpt_neo"}, {"GPTNeoForCausalLM"}, NULL, {"transformer.", "", NULL},
    neo_rules, NULL, T_LAYER_NORM | T_LEARNED_POSITIONS | T_PLAIN_MLP | T_GELU_TANH | T_ALL_BIASES | T_TIED, neo, NULL};
