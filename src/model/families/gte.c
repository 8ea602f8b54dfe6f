/* SPDX-License-Identifier: Apache-2.0
 * Encoders that came after BERT's: GTE (gte-multilingual, gte-v1.5, Snowflake's arctic-embed v2), which is Nomic BERT with biases; ELECTRA,
 * a BERT with another head; ALBERT, one whose layers are all the same; EuroBERT and NeoBERT, Llamas whose tokens see both sides. */
#include "model/families/family.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- GTE, under the names of its own files ("new") or of those that transformers writes ---- */

#define NEW "encoder.layer.*."
#define OWN "layers.*."
#define BOTH(dst, theirs, ours) RULE_OR(dst, NEW theirs, OWN ours)
#define UP_GATE NEW "mlp.up_gate_proj.weight"

static const nrd_weight_rule gte_rules[] = {
    RULE_EMBED("embeddings.word_embeddings"),
    {"transformer.type_embedding.weight", {"embeddings.token_type_embeddings.weight"}, 0},
    RULE("transformer.ln_embed", "embeddings.LayerNorm", 0),
    {"attention.qkv.weight", {NEW "attention.qkv_proj.weight"}, NRD_RULE_IF_THERE},
    {"attention.qkv.bias", {NEW "attention.qkv_proj.bias"}, NRD_RULE_IF_THERE},
    {"attention.qkv.weight", {OWN "self_attn.q_proj.weight", OWN "self_attn.k_proj.weight", OWN "self_attn.v_proj.weight"}, NRD_RULE_IF_THERE},
    {"attention.qkv.bias", {OWN "self_attn.q_proj.bias", OWN "self_attn.k_proj.bias", OWN "self_attn.v_proj.bias"}, NRD_RULE_IF_THERE},
    BOTH("attention.dense", "attention.o_proj", "self_attn.o_proj"),
    BOTH("input_layernorm", "attn_ln", "post_attention_layernorm"),
    {"mlp.fc.weight", {UP_GATE}, NRD_RULE_SECOND_HALF | NRD_RULE_IF_THERE},
    {"mlp.gate.weight", {UP_GATE}, NRD_RULE_FIRST_HALF | NRD_RULE_IF_THERE},
    {"mlp.fc.weight", {OWN "mlp.gate_proj.weight"}, NRD_RULE_IF_THERE},
    {"mlp.gate.weight", {OWN "mlp.up_proj.weight"}, NRD_RULE_IF_THERE},
    {"mlp.fc.bias", {NULL}, NRD_RULE_ZEROS}, /* the last product alone has one */
    {"mlp.gate.bias", {NULL}, NRD_RULE_ZEROS},
    BOTH("mlp.proj", "mlp.down_proj", "mlp.down_proj"),
    BOTH("post_layernorm", "mlp_ln", "post_mlp_layernorm"),
    RULE_CLASSIFIER("dense", "pooler.dense"),
    RULE_CLASSIFIER("out", "classifier"),
    {0}};

/* A fixed factor for all lengths: the base is multiplied by it, and positions are divided by its 2/d-th power (Su, "Transformer
 * upgrade road 12", 2023; the models' own code). */
static nrd_error *ntk(nrd_model_spec *s, const nrd_json *scaling)
{
    double factor = 1;

    if (strcmp(nrd_json_get_str(scaling, "type", nrd_json_get_str(scaling, "rope_type", "")), "ntk") != 0) {
        return NULL;
    }
    NRD_TRY(nrd_hf_refuse(scaling, "mixed_b"));
    NRD_TRY(nrd_hf_scale(scaling, "factor", &factor));
    s->rope.base_scale = factor;
    s->rope.scaling = NRD_ROPE_SCALING_LINEAR;
    s->rope.factor = pow(factor, 2.0 / s->head_dim);
    return NULL;
}

static void labels(nrd_model_spec *s, const char *act)
{
    s->tied_embeddings = true;
    s->classifier.dense = s->classifier.dense_bias = s->classifier.bias = true;
    snprintf(s->classifier.act, sizeof s->classifier.act, "%s", act);
}

static nrd_error *gte(nrd_model_spec *s, const nrd_json *c)
{
    static const char *const refused[] = {"is_decoder", "logn_attention_scale", "logn_attention_clip1"};
    const char *positions = nrd_json_get_str(c, "position_embedding_type", "rope");
    const char *norm = nrd_json_get_str(c, "layer_norm_type", "layer_norm");

    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        NRD_TRY(nrd_hf_refuse(c, refused[i]));
    }
    if (strcmp(positions, "rope") != 0 || strcmp(norm, "layer_norm") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "position_embedding_type '%.40s' and layer_norm_type '%.40s' in this family, expected rope "
                          "and layer_norm", positions, norm);
    }
    NRD_TRY(nrd_hf_int(c, "type_vocab_size", 1, &s->n_token_types));
    s->norm_eps = (float)nrd_json_get_num(c, "layer_norm_eps", 1e-12);
    s->rope.base = 160000;
    labels(s, "tanh");
    return ntk(s, nrd_hf_get(c, "rope_scaling|rope_parameters"));
}

const nrd_arch nrd_arch_gte = {
    "gte", "GteModel", {"gte", "new"}, {"GteModel", "NewModel", "NewForMaskedLM"}, NULL, {"", "new.", "gte.", NULL},
    gte_rules, NULL, T_ENCODER | T_SUM_NORMS | T_EMBED_NORM | T_LAYER_NORM | T_ALL_BIASES | T_TIED, gte, NULL};

/* ---- ELECTRA: the discriminators (Clark et al., 2020) ---- */

static nrd_error *embedding_size(nrd_model_spec *s, const nrd_json *c, bool always)
{
    int32_t width = 0;

    NRD_TRY(nrd_hf_int(c, "embedding_size", 128, &width));
    if (width < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'embedding_size' must be above 0, got %d", width);
    }
    s->embed_width = width != s->hidden || always ? width : 0;
    return NULL;
}

static nrd_error *electra(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(embedding_size(s, c, false));
    NRD_TRY(nrd_hf_int(c, "type_vocab_size", 2, &s->n_token_types));
    NRD_TRY(nrd_hf_refuse(c, "is_decoder"));
    s->norm_eps = (float)nrd_json_get_num(c, "layer_norm_eps", 1e-12);
    labels(s, "gelu");
    return NULL;
}

const nrd_arch nrd_arch_electra = {
    "electra", "ElectraModel", {"electra"}, {"ElectraModel", "ElectraForPreTraining"}, NULL, {"", "electra.", NULL},
    nrd_hf_electra_rules, NULL,
    T_ENCODER | T_SUM_NORMS | T_EMBED_NORM | T_LAYER_NORM | T_LEARNED_POSITIONS | T_PLAIN_MLP | T_ALL_BIASES | T_TIED, electra, NULL};

/* ---- ALBERT: the weights of one layer are those of all (Lan et al., 2019) ---- */

#define ALBERT "encoder.albert_layer_groups.0.albert_layers.0."
static const nrd_weight_rule albert_rules[] = {
    RULE_EMBED("embeddings.word_embeddings"),
    {"transformer.type_embedding.weight", {"embeddings.token_type_embeddings.weight"}, 0},
    RULE("transformer.ln_embed", "embeddings.LayerNorm", 0),
    RULE_POSITIONS("embeddings.position_embeddings", 0),
    RULE("transformer.embed_projection", "encoder.embedding_hidden_mapping_in", 0),
    RULE_QKV(ALBERT "attention.query", ALBERT "attention.key", ALBERT "attention.value"),
    RULE("attention.dense", ALBERT "attention.dense", 0),
    RULE("input_layernorm", ALBERT "attention.LayerNorm", 0),
    RULE("mlp.fc", ALBERT "ffn", 0),
    RULE("mlp.proj", ALBERT "ffn_output", 0),
    RULE("post_layernorm", ALBERT "full_layer_layer_norm", 0),
    RULE_CLASSIFIER("dense", "pooler"),
    RULE_CLASSIFIER("out", "classifier"),
    {0}};

static nrd_error *albert(nrd_model_spec *s, const nrd_json *c)
{
    int32_t n_groups = 1, n_inner = 1;

    NRD_TRY(embedding_size(s, c, true));
    NRD_TRY(nrd_hf_int(c, "num_hidden_groups", 1, &n_groups));
    NRD_TRY(nrd_hf_int(c, "inner_group_num", 1, &n_inner));
    if (n_groups != 1 || n_inner != 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'num_hidden_groups' and 'inner_group_num' must be 1, got %d and %d", n_groups, n_inner);
    }
    NRD_TRY(nrd_hf_int(c, "type_vocab_size", 2, &s->n_token_types));
    NRD_TRY(nrd_hf_refuse(c, "is_decoder"));
    s->norm_eps = (float)nrd_json_get_num(c, "layer_norm_eps", 1e-12);
    labels(s, "tanh");
    return NULL;
}

const nrd_arch nrd_arch_albert = {
    "albert", "AlbertModel", {"albert"}, {"AlbertModel", "AlbertForMaskedLM", "AlbertForPreTraining"}, NULL, {"", "albert.", NULL},
    albert_rules, NULL,
    T_ENCODER | T_SUM_NORMS | T_EMBED_NORM | T_LAYER_NORM | T_LEARNED_POSITIONS | T_PLAIN_MLP | T_ALL_BIASES | T_GELU_TANH | T_TIED, albert, NULL};

/* ---- EuroBERT ---- */

static nrd_error *eurobert(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_refuse(c, "is_decoder"));
    s->tied_embeddings = true;
    s->norm_eps = (float)nrd_json_get_num(c, "rms_norm_eps", 1e-5);
    s->rope.base = 250000;
    return nrd_hf_int(c, "max_position_embeddings", 8192, &s->max_positions);
}

static nrd_error *gguf_eurobert(nrd_model_spec *s, const nrd_gguf *g)
{
    s->tied_embeddings = true;
    return nrd_gguf_pooling(s, g, "eurobert", NRD_SPEC_POOL_MEAN);
}

const nrd_arch nrd_arch_eurobert = {
    "eurobert", "EuroBertModel", {"eurobert"}, {"EuroBertModel", "EuroBertForMaskedLM"}, "eurobert", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_ENCODER | T_TIED, eurobert, gguf_eurobert};

/* ---- NeoBERT (Le Breton et al., 2025, arXiv:2502.19587): each head has its query, key and value together ---- */

#define NEO "transformer_encoder.*."
static const nrd_weight_rule neobert_rules[] = {
    RULE_EMBED("encoder"),
    RULE("input_layernorm", NEO "attention_norm", 0),
    RULE("attention.qkv", NEO "qkv", NRD_RULE_GROUPED_QKV),
    RULE("attention.dense", NEO "wo", 0),
    RULE("post_layernorm", NEO "ffn_norm", 0),
    RULE("mlp.fc", NEO "ffn.w12", NRD_RULE_FIRST_HALF),
    RULE("mlp.gate", NEO "ffn.w12", NRD_RULE_SECOND_HALF),
    RULE("mlp.proj", NEO "ffn.w3", 0),
    RULE("transformer.ln_f", "layer_norm", 0),
    {0}};

/* The key counts the width of an MLP that is not gated: of a gated one it is two thirds, in whole eights. */
static nrd_error *neobert(nrd_model_spec *s, const nrd_json *c)
{
    if (!nrd_json_get_bool(c, "rope", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'rope' false in this configuration (learned positions) is not supported");
    }
    NRD_TRY(nrd_hf_refuse(c, "ngpt"));
    s->inter = nrd_family_small(((int64_t)s->inter * 2 / 3 + 7) / 8 * 8);
    s->tied_embeddings = true;
    s->norm_eps = (float)nrd_json_get_num(c, "norm_eps", 1e-6);
    s->rope.base = 10000;
    return nrd_hf_int(c, "max_length", 1024, &s->max_positions);
}

const nrd_arch nrd_arch_neobert = {
    "neobert", "NeoBERT", {"neobert"}, {"NeoBERT", "NeoBERTLMHead"}, NULL, {"", "model.", NULL},
    neobert_rules, NULL, T_ENCODER | T_ROPE_INTERLEAVED | T_TIED, neobert, NULL};
