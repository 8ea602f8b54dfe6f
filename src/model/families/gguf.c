/* SPDX-License-Identifier: Apache-2.0
 * Weight maps of GGUF files, which name tensors alike in all families. What a model has not got is
 * ignored, so there are few: q, k, v apart or stacked, with a gated MLP, a plain or a fused one. And single keys that have no name of a family. */
#include "model/families/family.h"
#include "model/needs.h"

#include <stdio.h>

#define LAYER "blk.*."

#define COMMON                                                                                     \
    RULE_EMBED("token_embd"), RULE("transformer.ln_embed", "token_embd_norm", 0),                  \
        RULE("input_layernorm", LAYER "attn_norm", 0),                                             \
        RULE("attention.dense", LAYER "attn_output", 0),                                           \
        RULE_WEIGHT("post_attention_layernorm", LAYER "post_attention_norm"),                          \
        RULE_OR("post_layernorm", LAYER "ffn_norm", LAYER "post_attention_norm"),                                               \
        RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_ffw_norm")
#define HEAD_NORMS RULE_HEAD_NORMS(LAYER "attn_q_norm", LAYER "attn_k_norm")
#define ENDS                                                                                       \
    RULE("mlp.proj", LAYER "ffn_down", 0), RULE("transformer.ln_f", "output_norm", 0),             \
        RULE("lm_head", "output", 0)

const nrd_weight_rule nrd_gguf_rules[] = {
    COMMON,
    HEAD_NORMS,
    RULE_QKV(LAYER "attn_q", LAYER "attn_k", LAYER "attn_v"),
    RULE("mlp.fc", LAYER "ffn_gate", 0),
    RULE("mlp.gate", LAYER "ffn_up", 0),
    ENDS,
    {"rope_factors", {"rope_freqs.weight"}, 0},
    {0}};

const nrd_weight_rule nrd_gguf_bitnet_rules[] = {
    COMMON,
    RULE("attention.inner_layernorm", LAYER "attn_sub_norm", 0),
    RULE_QKV(LAYER "attn_q", LAYER "attn_k", LAYER "attn_v"),
    RULE("mlp.fc", LAYER "ffn_gate", 0),
    RULE("mlp.gate", LAYER "ffn_up", 0),
    RULE("mlp.inner_layernorm", LAYER "ffn_sub_norm", 0),
    ENDS,
    {0}};

#define EXPERTS                                                                                    \
    RULE("mlp.router", LAYER "ffn_gate_inp", 0), RULE("mlp.experts.fc", LAYER "ffn_gate_exps", 0), \
        RULE("mlp.experts.gate", LAYER "ffn_up_exps", 0), RULE("mlp.experts.proj", LAYER "ffn_down_exps", 0)
#define MIXTURE                                                                                    \
    RULE("mlp.fc", LAYER "ffn_gate", 0), RULE("mlp.gate", LAYER "ffn_up", 0), EXPERTS,                                              \
        RULE_SHARED(LAYER "ffn_gate_shexp", LAYER "ffn_up_shexp", LAYER "ffn_down_shexp"), ENDS,   \
        {"rope_factors", {"rope_freqs.weight"}, 0}

const nrd_weight_rule nrd_gguf_experts_rules[] = {
    COMMON,
    HEAD_NORMS,
    {NRD_SINKS, {LAYER "attn_sinks.weight"}, 0},
    {"mlp." NRD_SCORE_BIAS, {LAYER "exp_probs_b.bias"}, 0},
    RULE_WEIGHT("mlp.shared_router", LAYER "ffn_gate_inp_shexp"),
    RULE("attention.qkv", LAYER "attn_qkv", NRD_RULE_IF_THERE), /* Ling 2.0 */
    {"attention.qkv.weight", {LAYER "attn_q.weight", LAYER "attn_k.weight", LAYER "attn_v.weight"}, NRD_RULE_IF_THERE},
    {"attention.qkv.bias", {LAYER "attn_q.bias", LAYER "attn_k.bias", LAYER "attn_v.bias"}, NRD_RULE_IF_THERE},
    MIXTURE,
    {0}};

const nrd_weight_rule nrd_gguf_llama4_rules[] = {
    COMMON, RULE_ONES("attention.q_layernorm"), RULE_ONES("attention.k_layernorm"),
    RULE_QKV(LAYER "attn_q", LAYER "attn_k", LAYER "attn_v"), MIXTURE, {0}};

const nrd_weight_rule nrd_gguf_dbrx_rules[] = {
    RULE_EMBED("token_embd"),
    RULE("input_layernorm", LAYER "attn_norm", 0),
    RULE("attention.qkv", LAYER "attn_qkv", 0),
    RULE("attention.dense", LAYER "attn_output", 0),
    RULE("post_layernorm", LAYER "attn_output_norm", 0),
    EXPERTS,
    RULE("transformer.ln_f", "output_norm", 0),
    RULE("lm_head", "output", 0),
    {0}};

/* Where there are two norms, attention's is the second. */
const nrd_weight_rule nrd_gguf_falcon_rules[] = {
    RULE_EMBED("token_embd"),
    RULE_OR("input_layernorm", LAYER "attn_norm_2", LAYER "attn_norm"),
    RULE("attention.qkv", LAYER "attn_qkv", 0),
    RULE("attention.dense", LAYER "attn_output", 0),
    RULE("post_layernorm", LAYER "attn_norm", 0),
    RULE("mlp.fc", LAYER "ffn_up", 0),
    ENDS,
    {0}};

const nrd_weight_rule nrd_gguf_mtp_rules[] = {
    RULE_WEIGHT("mtp.fc", LAYER "nextn.eh_proj"),
    RULE_WEIGHT("mtp.embed_layernorm", LAYER "nextn.enorm"),
    RULE_WEIGHT("mtp.state_layernorm", LAYER "nextn.hnorm"),
    RULE_WEIGHT("mtp.final_layernorm", LAYER "nextn.shared_head_norm"),
    {0}};

const nrd_weight_rule nrd_gguf_plain_rules[] = {
    COMMON,
    RULE_QKV(LAYER "attn_q", LAYER "attn_k", LAYER "attn_v"),
    RULE("mlp.fc", LAYER "ffn_up", 0),
    ENDS,
    {0}};

#define FUSED                                                                                      \
    RULE("mlp.fc", LAYER "ffn_up", NRD_RULE_FIRST_HALF),                                           \
        RULE("mlp.gate", LAYER "ffn_up", NRD_RULE_SECOND_HALF)

const nrd_weight_rule nrd_gguf_fused_rules[] = {
    COMMON, RULE_QKV(LAYER "attn_q", LAYER "attn_k", LAYER "attn_v"), FUSED, ENDS, {0}};

const nrd_weight_rule nrd_gguf_phi3_rules[] = {
    COMMON, RULE("attention.qkv", LAYER "attn_qkv", 0), FUSED, ENDS, {0}};

const nrd_weight_rule nrd_gguf_stacked_rules[] = {
    COMMON,
    RULE_POSITIONS("position_embd", 0),
    RULE("attention.qkv", LAYER "attn_qkv", 0),
    RULE("mlp.fc", LAYER "ffn_up", 0),
    ENDS,
    {0}};

int64_t nrd_gguf_key(const nrd_gguf *g, const char *arch, const char *name, int64_t fallback)
{
    char key[80];
    snprintf(key, sizeof key, "%s.%s", arch, name);
    return nrd_gguf_int(g, key, fallback);
}

int32_t nrd_family_small(int64_t v)
{
    return v < 0 || v > INT32_MAX ? -1 : (int32_t)v;
}

int32_t nrd_gguf_rows_of(const nrd_gguf *g, const char *name)
{
    const nrd_gguf_tensor *t = nrd_gguf_find_tensor(g, name);
    return t && t->n_dims == 2 && t->dims[1] <= INT32_MAX ? (int32_t)t->dims[1] : 0;
}

nrd_error *nrd_gguf_pooling(nrd_model_spec *s, const nrd_gguf *g, const char *arch, nrd_spec_pooling usual)
{
    static const nrd_spec_pooling poolings[] = {[1] = NRD_SPEC_POOL_MEAN, [2] = NRD_SPEC_POOL_FIRST, [3] = NRD_SPEC_POOL_LAST};
    const int64_t pooling = nrd_gguf_key(g, arch, "pooling_type", 0);

    if (pooling < 0 || pooling > 3) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s.pooling_type' %lld: known are 0 (none), 1 (mean), 2 (first) and 3 (last); "
                          "a head for labels in a GGUF file is not supported", arch, (long long)pooling);
    }
    s->pooling = pooling > 0 ? poolings[pooling] : usual;
    return NULL;
}
