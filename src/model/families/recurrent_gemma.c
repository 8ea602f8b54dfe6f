/* SPDX-License-Identifier: Apache-2.0
 * RecurrentGemma (Griffin: De et al., 2024): layers with a gated linear unit, and every third one attention that sees a window.
 * Around them Gemma: scaled embeddings, norms that multiply by 1 + w, GELU, a cap on logits. */
#include "base/dtype.h"
#include "model/families/recurrent.h"

#include <math.h>
#include <string.h>

#define LAYER "model.layers.*."
#define BLOCK_OF LAYER "temporal_block."

static const nrd_weight_rule rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "temporal_pre_norm", 0),
    RULE_QKV(BLOCK_OF "q_proj", BLOCK_OF "k_proj", BLOCK_OF "v_proj"),
    RULE("attention.dense", BLOCK_OF "o_proj", 0),
    RULE(NRD_RECURRENT "in", BLOCK_OF "linear_x", 0),
    RULE(NRD_RECURRENT "gate", BLOCK_OF "linear_y", 0),
    RULE(NRD_RECURRENT "conv", BLOCK_OF "conv_1d", 0),
    {NRD_RECURRENT "in_gate.weight", {BLOCK_OF "rg_lru.input_gate_weight"}, NRD_RULE_HEADS_APART},
    {NRD_RECURRENT "in_gate.bias", {BLOCK_OF "rg_lru.input_gate_bias"}, 0},
    {NRD_RECURRENT "decay_gate.weight", {BLOCK_OF "rg_lru.recurrent_gate_weight"}, NRD_RULE_HEADS_APART},
    {NRD_RECURRENT "decay_gate.bias", {BLOCK_OF "rg_lru.recurrent_gate_bias"}, 0},
    {NRD_RECURRENT "decay", {BLOCK_OF "rg_lru.recurrent_param"}, 0},
    RULE(NRD_RECURRENT "out", BLOCK_OF "linear_out", 0),
    RULE("post_layernorm", LAYER "channel_pre_norm", 0),
    RULE("mlp.fc", LAYER "mlp_block.gate_proj", 0),
    RULE("mlp.gate", LAYER "mlp_block.up_proj", 0),
    RULE("mlp.proj", LAYER "mlp_block.down_proj", 0),
    RULE("transformer.ln_f", "model.final_norm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

/* The kinds of the first layers, over and over. */
static nrd_error *kinds_of_layers(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "block_types|_block_types");
    const size_t n = types ? nrd_json_len(types) : 3;
    bool any_state = false;

    if (n == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'block_types' is empty");
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        const size_t at = (size_t)i % n;
        const char *t = types ? nrd_json_str(nrd_json_at(types, at), "") : at == 2 ? "attention" : "recurrent";
        if (strcmp(t, "recurrent") && strcmp(t, "attention")) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "block_types[%zu]: '%.40s' is not supported", at, t);
        }
        s->layer_is_recurrent[i] = t[0] == 'r';
        s->layer_is_sliding[i] = t[0] == 'a';
        any_state = any_state || t[0] == 'r';
    }
    if (!any_state) {
        s->recurrent = (nrd_recurrent_spec){.kind = NRD_RECURRENT_NONE};
    }
    return NULL;
}

static nrd_error *recurrent_gemma(nrd_model_spec *s, const nrd_json *c)
{
    nrd_recurrent_spec *r = &s->recurrent;
    const nrd_json *cap = nrd_json_get(c, "logits_soft_cap"); /* null: none */
    int32_t width = 0;

    if (s->act != NRD_ACT_GELU_TANH) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'hidden_activation' must be gelu_pytorch_tanh");
    }
    NRD_TRY(nrd_hf_int(c, "lru_width", s->hidden, &width));
    NRD_TRY(nrd_hf_int(c, "conv1d_width", 4, &r->kernel));
    NRD_TRY(nrd_hf_int(c, "attention_window_size|sliding_window", 2048, &s->sliding_window));
    if (width < 1 || width % s->n_heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'lru_width' (%d) must be a multiple of 'num_attention_heads' (%d)", width,
                          s->n_heads);
    }
    r->kind = NRD_RECURRENT_RG_LRU;
    r->n_heads = s->n_heads;
    r->head_dim = width / s->n_heads;
    r->n_groups = r->norm_groups = r->n_state = 1;
    r->dt_max = INFINITY;
    r->conv_bias = r->proj_bias = true;
    s->dense_bias = s->mlp_bias = true;
    s->inter /= 2; /* gate and up together */
    /* the factor has 16 bits in the reference, whatever the embeddings have */
    s->embed_scale = nrd_bf16_to_f32(nrd_f32_to_bf16((float)sqrt((double)s->hidden)));
    s->logits_softcap = cap ? (float)nrd_json_num(cap, 0) : 30;
    if (!nrd_hf_get(c, "partial_rotary_factor") && !nrd_hf_get(nrd_json_get(c, "rope_parameters"), "partial_rotary_factor")) {
        s->rope.rotary_dim = s->head_dim / 2;
    }
    return kinds_of_layers(s, c);
}

const nrd_arch nrd_arch_recurrent_gemma = {
    "recurrent_gemma", "RecurrentGemmaForCausalLM", {"recurrent_gemma"}, {"RecurrentGemmaForCausalLM"}, NULL, MODEL_PREFIXES,
    rules, NULL, T_NORM_PLUS_ONE | T_GELU_TANH | T_TIED | T_RECURRENT, recurrent_gemma, NULL};
