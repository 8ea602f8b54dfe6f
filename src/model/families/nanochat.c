/* SPDX-License-Identifier: Apache-2.0
 * NanoChat: norms without weights, one of them behind the embeddings; an MLP with ReLU squared that is not gated; rotary positions
 * that turn the other way. */
#include "model/families/family.h"

#include <string.h>

#define LAYER "model.layers.*."

static const nrd_weight_rule rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE_ONES("transformer.ln_embed"),
    RULE_ONES("input_layernorm"),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE_ONES("attention.q_layernorm"),
    RULE_ONES("attention.k_layernorm"),
    RULE("attention.dense", LAYER "self_attn.o_proj", 0),
    RULE_ONES("post_layernorm"),
    RULE("mlp.fc", LAYER "mlp.fc1", 0),
    RULE("mlp.proj", LAYER "mlp.fc2", 0),
    RULE_ONES("transformer.ln_f"),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *nanochat(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *cap = nrd_json_get(c, "final_logit_softcapping"); /* null: none */
    const nrd_json *rope = nrd_json_get(c, "rope_parameters");

    s->act = nrd_hf_get(c, "hidden_act") ? s->act : NRD_ACT_RELU2;
    s->logits_softcap = cap ? (float)nrd_json_num(cap, 0) : 15;
    if (strcmp(nrd_json_get_str(rope ? rope : nrd_json_get(c, "rope_scaling"), "rope_type", "default"), "default")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "nanochat with a rope_type other than default is not supported");
    }
    /* Angles are negative. The norms of q and k, which have no weights, are the same before the rotation as behind it. */
    s->rope.scaling = NRD_ROPE_SCALING_LINEAR;
    s->rope.factor = -1;
    return NULL;
}

const nrd_arch nrd_arch_nanochat = {
    "nanochat", "NanoChatForCausalLM", {"nanochat"}, {"NanoChatForCausalLM"}, NULL, MODEL_PREFIXES,
    rules, NULL, T_EMBED_NORM | T_QK_NORM | T_PLAIN_MLP, nanochat, NULL};
