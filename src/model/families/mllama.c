/* SPDX-License-Identifier: Apache-2.0
 * Llama 3.2 Vision (Llama team, 2024), its text: a Llama with layers between the others that read a picture's states. A text
 * without pictures passes them by: each is counted with the layer behind it, and the others keep the numbers that they have in the
 * file. */
#include "model/families/family.h"
#include "model/needs.h"

#define LAYER "model.layers.*."
#define BEFORE "model.layers.^."

static const nrd_weight_rule rules[] = {
    {"transformer.vocab_embedding.weight", {"model.embed_tokens.weight"}, NRD_RULE_EIGHT_MORE}, /* the picture's token, and no others */
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE("attention.dense", LAYER "self_attn.o_proj", 0),
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    RULE("mlp.fc", LAYER "mlp.gate_proj", 0),
    RULE("mlp.gate", LAYER "mlp.up_proj", 0),
    RULE("mlp.proj", LAYER "mlp.down_proj", 0),
    RULE_WEIGHT(NRD_PICTURE "input_layernorm", BEFORE "input_layernorm"),
    RULE_WEIGHT(NRD_PICTURE "q", BEFORE "cross_attn.q_proj"),
    RULE_WEIGHT(NRD_PICTURE "k", BEFORE "cross_attn.k_proj"),
    RULE_WEIGHT(NRD_PICTURE "v", BEFORE "cross_attn.v_proj"),
    RULE_WEIGHT(NRD_PICTURE "q_layernorm", BEFORE "cross_attn.q_norm"),
    RULE_WEIGHT(NRD_PICTURE "k_layernorm", BEFORE "cross_attn.k_norm"),
    RULE_WEIGHT(NRD_PICTURE "dense", BEFORE "cross_attn.o_proj"),
    {NRD_PICTURE "attention_gate", {BEFORE "cross_attn_attn_gate"}, 0},
    RULE_WEIGHT(NRD_PICTURE "post_layernorm", BEFORE "post_attention_layernorm"),
    RULE_WEIGHT(NRD_PICTURE "fc", BEFORE "mlp.gate_proj"),
    RULE_WEIGHT(NRD_PICTURE "gate", BEFORE "mlp.up_proj"),
    RULE_WEIGHT(NRD_PICTURE "proj", BEFORE "mlp.down_proj"),
    {NRD_PICTURE "mlp_gate", {BEFORE "cross_attn_mlp_gate"}, 0},
    RULE("transformer.ln_f", "model.norm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

/* Takes the layer with this number in the file out of those that are counted. */
static nrd_error *leave_out(uint8_t *is_out, int32_t n_layers, int64_t layer)
{
    if (layer < 0 || layer >= n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'cross_attention_layers' has the layer %lld, expected 0 to %d", (long long)layer,
                          n_layers - 1);
    }
    if (is_out[layer] || (layer > 0 && is_out[layer - 1]) || (layer + 1 < n_layers && is_out[layer + 1])) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'cross_attention_layers' has the layer %lld twice or beside another one, expected "
                          "layers with others between them", (long long)layer);
    }
    is_out[layer] = 1;
    return NULL;
}

static nrd_error *mllama(nrd_model_spec *s, const nrd_json *c)
{
    static const uint8_t usual[] = {3, 8, 13, 18, 23, 28, 33, 38}; /* what transformers means by no list */
    const nrd_json *list = nrd_hf_get(c, "cross_attention_layers");
    const size_t n = list ? nrd_json_len(list) : sizeof usual;
    const int32_t n_file = s->n_layers;
    uint8_t is_out[NRD_SPEC_MAX_LAYERS] = {0};
    int32_t kept = 0;

    for (size_t i = 0; i < n && (list || usual[i] < s->n_layers); i++) {
        NRD_TRY(leave_out(is_out, s->n_layers, list ? nrd_json_int(nrd_json_at(list, i), -1) : usual[i]));
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        if (!is_out[i]) {
            s->layer_is_behind_gap[kept++] = i > 0 && is_out[i - 1];
        }
    }
    if (kept == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'cross_attention_layers' leaves no layer for text");
    }
    s->n_layers = kept;
    s->reads_pictures = n > 0 && !is_out[n_file - 1];
    s->rope.base = 5e5;
    s->norm_eps = nrd_hf_get(c, "rms_norm_eps") ? s->norm_eps : 1e-5f;
    s->tied_embeddings = false; /* the class has two matrices, whatever the configuration says */
    return NULL;
}

/* No GGUF: llama.cpp does not know the family. */
const nrd_arch nrd_arch_mllama = {
    "mllama", "MllamaForConditionalGeneration", {"mllama", "mllama_text_model"},
    {"MllamaForConditionalGeneration", "MllamaForCausalLM"}, NULL, MODEL_PREFIXES, rules, NULL, 0, mllama, NULL};
