/* SPDX-License-Identifier: Apache-2.0
 * The families of models: weight maps, the table with one row for each family, and the readers that
 * turn config.json, GGUF metadata or a TensorRT-LLM configuration into an nrd_model_spec. What no
 * runner can compute is refused here by its name. Called by model/source.c. */
#include "model/arch.h"

#include "base/dtype.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { /* traits of a family */
    T_LAYER_NORM = 1u << 0,
    T_LEARNED_POSITIONS = 1u << 1, /* instead of rotary */
    T_PLAIN_MLP = 1u << 2,         /* not gated */
    T_ALL_BIASES = 1u << 3,
    T_QKV_BIAS = 1u << 4,
    T_QK_NORM = 1u << 5,
    T_GEMMA = 1u << 6,     /* scaled embeddings, GELU, heads of 256 */
    T_TIED = 1u << 7,      /* tied where config.json does not say */
    T_WINDOW_ALL = 1u << 8,         /* every layer slides */
    T_WINDOW_OPT_IN = 1u << 9,      /* only with use_sliding_window, from max_window_layers on */
    T_WINDOW_ALTERNATES = 1u << 10, /* every other layer, beginning with the first */
    T_WINDOW_5_OF_6 = 1u << 11,     /* all but every sixth */
    T_LOCAL_ROPE = 1u << 12,        /* sliding layers have a base of their own */
    T_GEMMA2 = 1u << 14,   /* beside T_GEMMA: post norms, query_pre_attn_scalar, soft caps */
    T_GGUF_INTERLEAVED = 1u << 13,  /* GGUF writers permute the rows of q and k for pairs (2i, 2i+1) */
};

#define L "transformer.layers.*."
#define LINEAR NRD_RULE_LINEAR

/* The parts that all rotary families with gated MLPs share. P1: flag on norms (Gemma keeps w, where
 * the norm multiplies by 1 + w). */
#define HF_COMMON(norm_flags, mlp_norm)                                                            \
    {"transformer.vocab_embedding.weight", {"model.embed_tokens.weight"}, NRD_DIM_VOCAB,           \
     NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_WHEN_ALWAYS, 0},                                          \
        {L "input_layernorm.weight", {"model.layers.*.input_layernorm.weight"}, NRD_DIM_HIDDEN,    \
         NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_ALWAYS, norm_flags},                                \
        {L "attention.qkv.weight",                                                                 \
         {"model.layers.*.self_attn.q_proj.weight", "model.layers.*.self_attn.k_proj.weight",      \
          "model.layers.*.self_attn.v_proj.weight"},                                               \
         NRD_DIM_QKV, NRD_DIM_HIDDEN, NRD_SHARD_QKV, NRD_WHEN_ALWAYS, LINEAR},                     \
        {L "attention.qkv.bias",                                                                   \
         {"model.layers.*.self_attn.q_proj.bias", "model.layers.*.self_attn.k_proj.bias",          \
          "model.layers.*.self_attn.v_proj.bias"},                                                 \
         NRD_DIM_QKV, NRD_DIM_ONE, NRD_SHARD_QKV, NRD_WHEN_QKV_BIAS, 0},                           \
        {L "attention.q_layernorm.weight", {"model.layers.*.self_attn.q_norm.weight"},             \
         NRD_DIM_HEAD, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_QK_NORM, norm_flags},                 \
        {L "attention.k_layernorm.weight", {"model.layers.*.self_attn.k_norm.weight"},             \
         NRD_DIM_HEAD, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_QK_NORM, norm_flags},                 \
        {L "attention.dense.weight", {"model.layers.*.self_attn.o_proj.weight"}, NRD_DIM_HIDDEN,   \
         NRD_DIM_Q, NRD_SHARD_COLS, NRD_WHEN_ALWAYS, LINEAR},                                      \
        {L "attention.dense.bias", {"model.layers.*.self_attn.o_proj.bias"}, NRD_DIM_HIDDEN,       \
         NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_DENSE_BIAS, 0},                                     \
        {L "post_layernorm.weight", {"model.layers.*." mlp_norm ".weight"}, NRD_DIM_HIDDEN,        \
         NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_ALWAYS, norm_flags},                                \
        {L "mlp.fc.weight", {"model.layers.*.mlp.gate_proj.weight"}, NRD_DIM_INTER,                \
         NRD_DIM_HIDDEN, NRD_SHARD_ROWS, NRD_WHEN_ALWAYS, LINEAR},                                 \
        {L "mlp.fc.bias", {"model.layers.*.mlp.gate_proj.bias"}, NRD_DIM_INTER, NRD_DIM_ONE,       \
         NRD_SHARD_ROWS, NRD_WHEN_MLP_BIAS, 0},                                                    \
        {L "mlp.gate.weight", {"model.layers.*.mlp.up_proj.weight"}, NRD_DIM_INTER,                \
         NRD_DIM_HIDDEN, NRD_SHARD_ROWS, NRD_WHEN_ALWAYS, LINEAR},                                 \
        {L "mlp.gate.bias", {"model.layers.*.mlp.up_proj.bias"}, NRD_DIM_INTER, NRD_DIM_ONE,       \
         NRD_SHARD_ROWS, NRD_WHEN_MLP_BIAS, 0},                                                    \
        {L "mlp.proj.weight", {"model.layers.*.mlp.down_proj.weight"}, NRD_DIM_HIDDEN,             \
         NRD_DIM_INTER, NRD_SHARD_COLS, NRD_WHEN_ALWAYS, LINEAR},                                  \
        {L "mlp.proj.bias", {"model.layers.*.mlp.down_proj.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE,    \
         NRD_SHARD_NONE, NRD_WHEN_MLP_BIAS, 0},                                                    \
        {"transformer.ln_f.weight", {"model.norm.weight"}, NRD_DIM_HIDDEN, NRD_DIM_ONE,            \
         NRD_SHARD_NONE, NRD_WHEN_ALWAYS, norm_flags},                                             \
    {                                                                                              \
        "lm_head.weight", {"lm_head.weight"}, NRD_DIM_VOCAB, NRD_DIM_HIDDEN, NRD_SHARD_VOCAB,      \
            NRD_WHEN_UNTIED, LINEAR                                                                \
    }

static const nrd_weight_rule hf_llama[] = {HF_COMMON(0, "post_attention_layernorm"), {0}};

static const nrd_weight_rule hf_gemma1[] = {
    HF_COMMON(NRD_RULE_ADD_ONE, "post_attention_layernorm"), {0}};

static const nrd_weight_rule hf_gemma[] = {
    HF_COMMON(NRD_RULE_ADD_ONE, "pre_feedforward_layernorm"),
    {L "post_attention_layernorm.weight",
     {"model.layers.*.post_attention_layernorm.weight"},
     NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_POST_NORMS, NRD_RULE_ADD_ONE},
    {L "post_feedforward_layernorm.weight",
     {"model.layers.*.post_feedforward_layernorm.weight"},
     NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_POST_NORMS, NRD_RULE_ADD_ONE},
    {0}};

#define TURN (NRD_RULE_LINEAR | NRD_RULE_TRANSPOSE)
static const nrd_weight_rule hf_gpt2[] = {
    {"transformer.vocab_embedding.weight", {"wte.weight"}, NRD_DIM_VOCAB, NRD_DIM_HIDDEN,
     NRD_SHARD_NONE, NRD_WHEN_ALWAYS, 0},
    {"transformer.position_embedding.weight", {"wpe.weight"}, NRD_DIM_POSITIONS, NRD_DIM_HIDDEN,
     NRD_SHARD_NONE, NRD_WHEN_POSITIONS, 0},
    {L "input_layernorm.weight", {"h.*.ln_1.weight"}, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
     NRD_WHEN_ALWAYS, 0},
    {L "input_layernorm.bias", {"h.*.ln_1.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
     NRD_WHEN_LAYER_NORM, 0},
    {L "attention.qkv.weight", {"h.*.attn.c_attn.weight"}, NRD_DIM_QKV, NRD_DIM_HIDDEN,
     NRD_SHARD_QKV, NRD_WHEN_ALWAYS, TURN},
    {L "attention.qkv.bias", {"h.*.attn.c_attn.bias"}, NRD_DIM_QKV, NRD_DIM_ONE, NRD_SHARD_QKV,
     NRD_WHEN_QKV_BIAS, 0},
    {L "attention.dense.weight", {"h.*.attn.c_proj.weight"}, NRD_DIM_HIDDEN, NRD_DIM_Q,
     NRD_SHARD_COLS, NRD_WHEN_ALWAYS, TURN},
    {L "attention.dense.bias", {"h.*.attn.c_proj.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE,
     NRD_SHARD_NONE, NRD_WHEN_DENSE_BIAS, 0},
    {L "post_layernorm.weight", {"h.*.ln_2.weight"}, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
     NRD_WHEN_ALWAYS, 0},
    {L "post_layernorm.bias", {"h.*.ln_2.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
     NRD_WHEN_LAYER_NORM, 0},
    {L "mlp.fc.weight", {"h.*.mlp.c_fc.weight"}, NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS,
     NRD_WHEN_ALWAYS, TURN},
    {L "mlp.fc.bias", {"h.*.mlp.c_fc.bias"}, NRD_DIM_INTER, NRD_DIM_ONE, NRD_SHARD_ROWS,
     NRD_WHEN_MLP_BIAS, 0},
    {L "mlp.proj.weight", {"h.*.mlp.c_proj.weight"}, NRD_DIM_HIDDEN, NRD_DIM_INTER, NRD_SHARD_COLS,
     NRD_WHEN_ALWAYS, TURN},
    {L "mlp.proj.bias", {"h.*.mlp.c_proj.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
     NRD_WHEN_MLP_BIAS, 0},
    {"transformer.ln_f.weight", {"ln_f.weight"}, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
     NRD_WHEN_ALWAYS, 0},
    {"transformer.ln_f.bias", {"ln_f.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,
     NRD_WHEN_LAYER_NORM, 0},
    {"lm_head.weight", {"lm_head.weight"}, NRD_DIM_VOCAB, NRD_DIM_HIDDEN, NRD_SHARD_VOCAB,
     NRD_WHEN_UNTIED, LINEAR},
    {0}};

/* GGUF names tensors alike in all families. `qkv` and `mlp`: what differs. */
#define GGUF_COMMON                                                                                \
    {"transformer.vocab_embedding.weight", {"token_embd.weight"}, NRD_DIM_VOCAB, NRD_DIM_HIDDEN,   \
     NRD_SHARD_NONE, NRD_WHEN_ALWAYS, 0},                                                          \
        {L "input_layernorm.weight", {"blk.*.attn_norm.weight"}, NRD_DIM_HIDDEN, NRD_DIM_ONE,      \
         NRD_SHARD_NONE, NRD_WHEN_ALWAYS, 0},                                                      \
        {L "input_layernorm.bias", {"blk.*.attn_norm.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE,          \
         NRD_SHARD_NONE, NRD_WHEN_LAYER_NORM, 0},                                                  \
        {L "attention.dense.weight", {"blk.*.attn_output.weight"}, NRD_DIM_HIDDEN, NRD_DIM_Q,      \
         NRD_SHARD_COLS, NRD_WHEN_ALWAYS, LINEAR},                                                 \
        {L "attention.dense.bias", {"blk.*.attn_output.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE,        \
         NRD_SHARD_NONE, NRD_WHEN_DENSE_BIAS, 0},                                                  \
        {L "attention.q_layernorm.weight", {"blk.*.attn_q_norm.weight"}, NRD_DIM_HEAD,             \
         NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_QK_NORM, 0},                                        \
        {L "attention.k_layernorm.weight", {"blk.*.attn_k_norm.weight"}, NRD_DIM_HEAD,             \
         NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_QK_NORM, 0},                                        \
        {L "post_attention_layernorm.weight", {"blk.*.post_attention_norm.weight"},                \
         NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_POST_NORMS, 0},                     \
        {L "post_layernorm.weight", {"blk.*.ffn_norm.weight"}, NRD_DIM_HIDDEN, NRD_DIM_ONE,        \
         NRD_SHARD_NONE, NRD_WHEN_ALWAYS, 0},                                                      \
        {L "post_layernorm.bias", {"blk.*.ffn_norm.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE,            \
         NRD_SHARD_NONE, NRD_WHEN_LAYER_NORM, 0},                                                  \
        {L "mlp.proj.weight", {"blk.*.ffn_down.weight"}, NRD_DIM_HIDDEN, NRD_DIM_INTER,            \
         NRD_SHARD_COLS, NRD_WHEN_ALWAYS, LINEAR},                                                 \
        {L "mlp.proj.bias", {"blk.*.ffn_down.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE, NRD_SHARD_NONE,  \
         NRD_WHEN_MLP_BIAS, 0},                                                                    \
        {L "post_feedforward_layernorm.weight", {"blk.*.post_ffw_norm.weight"}, NRD_DIM_HIDDEN,    \
         NRD_DIM_ONE, NRD_SHARD_NONE, NRD_WHEN_POST_NORMS, 0},                                     \
        {"transformer.ln_f.weight", {"output_norm.weight"}, NRD_DIM_HIDDEN, NRD_DIM_ONE,           \
         NRD_SHARD_NONE, NRD_WHEN_ALWAYS, 0},                                                      \
        {"transformer.ln_f.bias", {"output_norm.bias"}, NRD_DIM_HIDDEN, NRD_DIM_ONE,               \
         NRD_SHARD_NONE, NRD_WHEN_LAYER_NORM, 0},                                                  \
    {                                                                                              \
        "lm_head.weight", {"output.weight"}, NRD_DIM_VOCAB, NRD_DIM_HIDDEN, NRD_SHARD_VOCAB,       \
            NRD_WHEN_UNTIED, LINEAR                                                                \
    }

static const nrd_weight_rule gguf_split[] = {
    GGUF_COMMON,
    {L "attention.qkv.weight",
     {"blk.*.attn_q.weight", "blk.*.attn_k.weight", "blk.*.attn_v.weight"},
     NRD_DIM_QKV, NRD_DIM_HIDDEN, NRD_SHARD_QKV, NRD_WHEN_ALWAYS, LINEAR},
    {L "attention.qkv.bias",
     {"blk.*.attn_q.bias", "blk.*.attn_k.bias", "blk.*.attn_v.bias"},
     NRD_DIM_QKV, NRD_DIM_ONE, NRD_SHARD_QKV, NRD_WHEN_QKV_BIAS, 0},
    {L "mlp.fc.weight", {"blk.*.ffn_gate.weight"}, NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS,
     NRD_WHEN_ALWAYS, LINEAR},
    {L "mlp.fc.bias", {"blk.*.ffn_gate.bias"}, NRD_DIM_INTER, NRD_DIM_ONE, NRD_SHARD_ROWS,
     NRD_WHEN_MLP_BIAS, 0},
    {L "mlp.gate.weight", {"blk.*.ffn_up.weight"}, NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS,
     NRD_WHEN_ALWAYS, LINEAR},
    {L "mlp.gate.bias", {"blk.*.ffn_up.bias"}, NRD_DIM_INTER, NRD_DIM_ONE, NRD_SHARD_ROWS,
     NRD_WHEN_MLP_BIAS, 0},
    {"rope_factors", {"rope_freqs.weight"}, NRD_DIM_ROPE_HALF, NRD_DIM_ONE, NRD_SHARD_NONE,
     NRD_WHEN_ROPE_FACTORS, 0},
    {0}};

static const nrd_weight_rule gguf_gpt2[] = {
    GGUF_COMMON,
    {"transformer.position_embedding.weight", {"position_embd.weight"}, NRD_DIM_POSITIONS,
     NRD_DIM_HIDDEN, NRD_SHARD_NONE, NRD_WHEN_POSITIONS, 0},
    {L "attention.qkv.weight", {"blk.*.attn_qkv.weight"}, NRD_DIM_QKV, NRD_DIM_HIDDEN,
     NRD_SHARD_QKV, NRD_WHEN_ALWAYS, LINEAR},
    {L "attention.qkv.bias", {"blk.*.attn_qkv.bias"}, NRD_DIM_QKV, NRD_DIM_ONE, NRD_SHARD_QKV,
     NRD_WHEN_QKV_BIAS, 0},
    {L "mlp.fc.weight", {"blk.*.ffn_up.weight"}, NRD_DIM_INTER, NRD_DIM_HIDDEN, NRD_SHARD_ROWS,
     NRD_WHEN_ALWAYS, LINEAR},
    {L "mlp.fc.bias", {"blk.*.ffn_up.bias"}, NRD_DIM_INTER, NRD_DIM_ONE, NRD_SHARD_ROWS,
     NRD_WHEN_MLP_BIAS, 0},
    {0}};

#define MODEL_PREFIXES {"", "language_model.", "model.language_model.", NULL}

static const nrd_arch archs[] = {
    {"gpt2", "GPTForCausalLM", {"gpt2"}, {"GPT2LMHeadModel"}, "gpt2", {"transformer.", "", NULL},
     hf_gpt2, gguf_gpt2,
     T_LAYER_NORM | T_LEARNED_POSITIONS | T_PLAIN_MLP | T_ALL_BIASES | T_TIED},
    {"llama", "LlamaForCausalLM", {"llama"}, {"LlamaForCausalLM"}, "llama", MODEL_PREFIXES,
     hf_llama, gguf_split, T_GGUF_INTERLEAVED},
    {"mistral", "MistralForCausalLM", {"mistral"}, {"MistralForCausalLM"}, NULL, MODEL_PREFIXES,
     hf_llama, gguf_split, T_GGUF_INTERLEAVED | T_WINDOW_ALL},
    {"qwen2", "Qwen2ForCausalLM", {"qwen2"}, {"Qwen2ForCausalLM"}, "qwen2", MODEL_PREFIXES,
     hf_llama, gguf_split, T_QKV_BIAS | T_WINDOW_OPT_IN},
    {"qwen3", "Qwen3ForCausalLM", {"qwen3"}, {"Qwen3ForCausalLM"}, "qwen3", MODEL_PREFIXES,
     hf_llama, gguf_split, T_QK_NORM | T_WINDOW_OPT_IN},
    {"gemma", "GemmaForCausalLM", {"gemma"}, {"GemmaForCausalLM"}, "gemma", MODEL_PREFIXES,
     hf_gemma1, gguf_split, T_GEMMA | T_TIED},
    {"gemma2", "Gemma2ForCausalLM", {"gemma2"}, {"Gemma2ForCausalLM"}, "gemma2", MODEL_PREFIXES,
     hf_gemma, gguf_split, T_GEMMA | T_GEMMA2 | T_TIED | T_WINDOW_ALTERNATES},
    {"gemma3_text", "Gemma3ForCausalLM", {"gemma3_text", "gemma3"},
     {"Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"}, "gemma3", MODEL_PREFIXES,
     hf_gemma, gguf_split,
     T_GEMMA | T_GEMMA2 | T_TIED | T_QK_NORM | T_WINDOW_5_OF_6 | T_LOCAL_ROPE},
};
enum { N_ARCHS = (int)(sizeof archs / sizeof archs[0]) };

const nrd_arch *nrd_arch_at(int i)
{
    return i >= 0 && i < N_ARCHS ? &archs[i] : NULL;
}

const nrd_arch *nrd_arch_by_model_type(const char *model_type)
{
    for (int i = 0; i < N_ARCHS; i++) {
        if (!strcmp(archs[i].model_type, model_type)) {
            return &archs[i];
        }
    }
    return NULL;
}

int64_t nrd_dim_of(const nrd_model_spec *s, nrd_dim dim)
{
    switch (dim) {
    case NRD_DIM_ONE:
        return 1;
    case NRD_DIM_HIDDEN:
        return s->hidden;
    case NRD_DIM_QKV:
        return ((int64_t)s->n_heads + 2 * (int64_t)s->n_kv_heads) * s->head_dim;
    case NRD_DIM_Q:
        return (int64_t)s->n_heads * s->head_dim;
    case NRD_DIM_KV:
        return (int64_t)s->n_kv_heads * s->head_dim;
    case NRD_DIM_INTER:
        return s->inter;
    case NRD_DIM_VOCAB:
        return s->vocab;
    case NRD_DIM_VOCAB_PART:
        return ((int64_t)s->vocab + s->tp_size - 1) / s->tp_size;
    case NRD_DIM_HEAD:
        return s->head_dim;
    case NRD_DIM_POSITIONS:
        return s->max_positions;
    case NRD_DIM_ROPE_HALF:
        return s->rope.rotary_dim / 2;
    }
    return 0;
}

bool nrd_when_holds(const nrd_model_spec *s, nrd_when when)
{
    switch (when) {
    case NRD_WHEN_ALWAYS:
        return true;
    case NRD_WHEN_QKV_BIAS:
        return s->qkv_bias;
    case NRD_WHEN_DENSE_BIAS:
        return s->dense_bias;
    case NRD_WHEN_MLP_BIAS:
        return s->mlp_bias;
    case NRD_WHEN_GATED:
        return s->gated_mlp;
    case NRD_WHEN_GATE_BIAS:
        return s->gated_mlp && s->mlp_bias;
    case NRD_WHEN_LAYER_NORM:
        return s->norm == NRD_NORM_LAYER;
    case NRD_WHEN_QK_NORM:
        return s->qk_norm;
    case NRD_WHEN_POST_NORMS:
        return s->post_norms;
    case NRD_WHEN_UNTIED:
        return !s->tied_embeddings;
    case NRD_WHEN_LM_HEAD_BIAS:
        return s->lm_head_bias;
    case NRD_WHEN_POSITIONS:
        return s->learned_positions;
    case NRD_WHEN_ROPE_FACTORS:
        return s->rope.scaling == NRD_ROPE_SCALING_FACTORS;
    }
    return false;
}

static nrd_error *unknown_family(const char *kind, const char *name)
{
    nrd_str list = {0};
    for (int i = 0; i < N_ARCHS; i++) {
        nrd_str_printf(&list, "%s%s", i ? ", " : "", archs[i].model_type);
    }
    nrd_error *err = nrd_errorf(NRD_ERR_UNSUPPORTED, "%s '%s' is not supported; known families: %s",
                                kind, name, nrd_str_cstr(&list));
    nrd_str_fini(&list);
    return err;
}

/* What follows from the family alone. */
static void apply_traits(nrd_model_spec *s, const nrd_arch *a)
{
    snprintf(s->architecture, sizeof s->architecture, "%s", a->architecture);
    snprintf(s->model_type, sizeof s->model_type, "%s", a->model_type);
    s->norm = a->traits & T_LAYER_NORM ? NRD_NORM_LAYER : NRD_NORM_RMS;
    s->gated_mlp = !(a->traits & T_PLAIN_MLP);
    s->learned_positions = (a->traits & T_LEARNED_POSITIONS) != 0;
    s->qk_norm = (a->traits & T_QK_NORM) != 0;
    s->post_norms = (a->traits & T_GEMMA2) != 0;
    s->qkv_bias = (a->traits & (T_ALL_BIASES | T_QKV_BIAS)) != 0;
    s->dense_bias = s->mlp_bias = (a->traits & T_ALL_BIASES) != 0;
    s->act = a->traits & (T_GEMMA | T_PLAIN_MLP) ? NRD_ACT_GELU_TANH : NRD_ACT_SILU;
}

static void sliding_from_traits(nrd_model_spec *s, const nrd_arch *a, int64_t pattern)
{
    for (int32_t i = 0; i < s->n_layers && s->sliding_window > 0; i++) {
        bool on = (a->traits & T_WINDOW_ALL) || ((a->traits & T_WINDOW_ALTERNATES) && i % 2 == 0);
        if (a->traits & T_WINDOW_5_OF_6) {
            on = (i + 1) % pattern != 0;
        }
        s->layer_is_sliding[i] = on;
    }
}

/* sqrt(hidden) in the precision in which the reference multiplies: it casts the factor to the type
 * of the embeddings. */
static float gemma_embed_scale(const nrd_model_spec *s)
{
    float v = (float)sqrt((double)s->hidden);
    if (s->dtype == NRD_DTYPE_BF16) {
        return nrd_bf16_to_f32(nrd_f32_to_bf16(v));
    }
    return s->dtype == NRD_DTYPE_F16 ? nrd_f16_to_f32(nrd_f32_to_f16(v)) : v;
}

/* ---- Hugging Face ---- */

static const nrd_json *first_of(const nrd_json *o, const char *a, const char *b)
{
    const nrd_json *v = nrd_json_get(o, a);
    if ((!v || nrd_json_is(v, NRD_JSON_NULL)) && b) {
        v = nrd_json_get(o, b);
    }
    return v && nrd_json_is(v, NRD_JSON_NULL) ? NULL : v;
}

static nrd_error *hf_int(const nrd_json *o, const char *a, const char *b, int64_t fallback,
                         int32_t *out)
{
    const nrd_json *v = first_of(o, a, b);
    int64_t i = v ? nrd_json_int(v, INT64_MIN) : fallback;
    if (i < INT32_MIN || i > INT32_MAX) {
        if (!v) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is missing", a);
        }
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be a whole number of 32 bits, got %s %g",
                          a, nrd_json_type_name(v), nrd_json_num(v, 0));
    }
    *out = (int32_t)i;
    return NULL;
}

#define REQUIRED INT64_MAX /* as a fallback: outside int32, so that a missing key is an error */

static double yarn_mscale(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

/* `o`: rope_scaling or one entry of rope_parameters. */
static nrd_error *hf_rope_scaling(const nrd_json *o, const nrd_model_spec *s, nrd_rope_spec *r)
{
    const char *type = nrd_json_str(first_of(o, "rope_type", "type"), "default");

    if (!strcmp(type, "default")) {
        return NULL;
    }
    r->factor = nrd_json_get_num(o, "factor", 1);
    r->low_freq_factor = nrd_json_get_num(o, "low_freq_factor", 1);
    r->high_freq_factor = nrd_json_get_num(o, "high_freq_factor", 4);
    r->beta_fast = nrd_json_get_num(o, "beta_fast", 32);
    r->beta_slow = nrd_json_get_num(o, "beta_slow", 1);
    r->attention_factor = nrd_json_get_num(o, "attention_factor", 0);
    NRD_TRY(hf_int(o, "original_max_position_embeddings", NULL, s->max_positions,
                   &r->original_max_positions));
    if (!strcmp(type, "linear")) {
        r->scaling = NRD_ROPE_SCALING_LINEAR;
    } else if (!strcmp(type, "dynamic")) { /* grows from the model's own length on */
        r->scaling = NRD_ROPE_SCALING_DYNAMIC;
        r->original_max_positions = s->max_positions;
    } else if (!strcmp(type, "llama3")) {
        r->scaling = NRD_ROPE_SCALING_LLAMA3;
    } else if (!strcmp(type, "yarn")) {
        r->scaling = NRD_ROPE_SCALING_YARN;
        double m = nrd_json_get_num(o, "mscale", 0), all = nrd_json_get_num(o, "mscale_all_dim", 0);
        if (r->attention_factor <= 0 && m > 0 && all > 0) {
            r->attention_factor = yarn_mscale(r->factor, m) / yarn_mscale(r->factor, all);
        }
    } else {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "rope type '%s' is not supported; known: default, linear, dynamic, llama3, "
                          "yarn",
                          type);
    }
    return NULL;
}

static nrd_error *hf_rope(nrd_model_spec *s, const nrd_arch *a, const nrd_json *c)
{
    /* transformers 5 puts base and scaling into rope_parameters, by kind of layer where they differ */
    const nrd_json *params = nrd_json_get(c, "rope_parameters");
    const nrd_json *full = nrd_json_get(params, "full_attention");
    const nrd_json *local = nrd_json_get(params, "sliding_attention");
    const nrd_json *global = full ? full : params ? params : nrd_json_get(c, "rope_scaling");
    double base = a->traits & T_LOCAL_ROPE ? 1e6 : 1e4;
    double part = nrd_json_get_num(c, "partial_rotary_factor",
                                   nrd_json_get_num(global, "partial_rotary_factor", 1));

    s->rope.kind = NRD_ROPE_NEOX;
    if (!(part > 0 && part <= 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "partial_rotary_factor must be above 0 and at most "
                          "1, got %g", part);
    }
    s->rope.rotary_dim = (int32_t)((double)s->head_dim * part);
    s->rope.base = nrd_json_num(first_of(global, "rope_theta", NULL),
                                nrd_json_get_num(c, "rope_theta", base));
    NRD_TRY(hf_rope_scaling(global, s, &s->rope));
    if (a->traits & T_LOCAL_ROPE) {
        s->rope_local.kind = NRD_ROPE_NEOX;
        s->rope_local.rotary_dim = s->rope.rotary_dim;
        s->rope_local.base = nrd_json_get_num(local, "rope_theta",
                                              nrd_json_get_num(c, "rope_local_base_freq", 1e4));
        NRD_TRY(hf_rope_scaling(local, s, &s->rope_local));
    }
    return NULL;
}

static nrd_error *hf_sliding(nrd_model_spec *s, const nrd_arch *a, const nrd_json *c)
{
    uint32_t any = T_WINDOW_ALL | T_WINDOW_OPT_IN | T_WINDOW_ALTERNATES | T_WINDOW_5_OF_6;
    const nrd_json *window = nrd_json_get(c, "sliding_window");
    const nrd_json *types = nrd_json_get(c, "layer_types");
    int32_t from = 0, pattern = 6;

    if (!(a->traits & any) || (window && nrd_json_is(window, NRD_JSON_NULL)) ||
        ((a->traits & T_WINDOW_OPT_IN) && !nrd_json_get_bool(c, "use_sliding_window", false))) {
        return NULL;
    }
    NRD_TRY(hf_int(c, "sliding_window", NULL, 4096, &s->sliding_window));
    NRD_TRY(hf_int(c, "sliding_window_pattern", "_sliding_window_pattern", 6, &pattern));
    NRD_TRY(hf_int(c, "max_window_layers", NULL, 28, &from));
    if (pattern < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'sliding_window_pattern' must be above 0, got %d",
                          pattern);
    }
    sliding_from_traits(s, a, pattern);
    for (int32_t i = 0; (a->traits & T_WINDOW_OPT_IN) && i < s->n_layers; i++) {
        s->layer_is_sliding[i] = i >= from;
    }
    if (nrd_json_is(types, NRD_JSON_ARRAY)) {
        if (nrd_json_len(types) != (size_t)s->n_layers) {
            return nrd_errorf(NRD_ERR_INVALID_ARG,
                              "'layer_types' has %zu entries, expected one for each of %d layers",
                              nrd_json_len(types), s->n_layers);
        }
        for (int32_t i = 0; i < s->n_layers; i++) {
            const char *t = nrd_json_str(nrd_json_at(types, (size_t)i), "");
            if (strcmp(t, "sliding_attention") && strcmp(t, "full_attention")) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "layer_types[%d]: '%s' is not supported", i,
                                  t);
            }
            s->layer_is_sliding[i] = t[0] == 's';
        }
    }
    return NULL;
}

static nrd_error *hf_sizes(nrd_model_spec *s, const nrd_arch *a, const nrd_json *c)
{
    bool g3 = (a->traits & T_LOCAL_ROPE) != 0, gemma = (a->traits & T_GEMMA) != 0;

    NRD_TRY(hf_int(c, "num_hidden_layers", "n_layer", REQUIRED, &s->n_layers));
    if (s->n_layers < 1 || s->n_layers > NRD_SPEC_MAX_LAYERS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'num_hidden_layers' must be between 1 and %d, got %d",
                          (int)NRD_SPEC_MAX_LAYERS, s->n_layers);
    }
    NRD_TRY(hf_int(c, "hidden_size", "n_embd", REQUIRED, &s->hidden));
    NRD_TRY(hf_int(c, "vocab_size", NULL, g3 ? 262208 : REQUIRED, &s->vocab));
    NRD_TRY(hf_int(c, "num_attention_heads", "n_head", g3 ? 8 : REQUIRED, &s->n_heads));
    if (s->n_heads < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'num_attention_heads' must be above 0, got %d",
                          s->n_heads);
    }
    NRD_TRY(hf_int(c, "num_key_value_heads", NULL, a->traits & T_GEMMA2 ? 4 : s->n_heads, &s->n_kv_heads));
    int64_t head_dim = gemma ? 256 : s->hidden / s->n_heads;
    if (!strcmp(a->model_type, "qwen3")) {
        head_dim = 128;
    }
    NRD_TRY(hf_int(c, "head_dim", NULL, head_dim, &s->head_dim));
    if (s->head_dim < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'head_dim' must be above 0, got %d", s->head_dim);
    }
    int64_t inter = a->traits & T_PLAIN_MLP ? 4 * (int64_t)s->hidden : REQUIRED;
    NRD_TRY(hf_int(c, "intermediate_size", "n_inner", inter, &s->inter));
    return hf_int(c, "max_position_embeddings", "n_positions", g3 ? 131072 : 2048,
                  &s->max_positions);
}

static nrd_error *hf_details(nrd_model_spec *s, const nrd_arch *a, const nrd_json *c)
{
    const char *act = nrd_json_str(first_of(c, "hidden_activation", "hidden_act"),
                                   nrd_json_get_str(c, "activation_function", NULL));
    double eps = a->traits & T_LAYER_NORM ? 1e-5 : 1e-6;
    bool gated;

    if (act && !nrd_act_parse(act, &s->act, &gated)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "activation '%s' is not supported", act);
    }
    s->norm_eps = (float)nrd_json_num(first_of(c, "rms_norm_eps", "layer_norm_epsilon"), eps);
    s->tied_embeddings = nrd_json_get_bool(c, "tie_word_embeddings", (a->traits & T_TIED) != 0);
    if (nrd_json_get_bool(c, "attention_bias", false)) {
        s->qkv_bias = s->dense_bias = true;
    }
    s->mlp_bias = nrd_json_get_bool(c, "mlp_bias", s->mlp_bias);
    s->attn_scale = (float)(1 / sqrt((double)s->head_dim));
    if (nrd_json_get_bool(c, "scale_attn_by_inverse_layer_idx", false) ||
        !nrd_json_get_bool(c, "scale_attn_weights", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "scale_attn_by_inverse_layer_idx = true and "
                          "scale_attn_weights = false are not supported");
    }
    if ((a->traits & T_GEMMA) && !(a->traits & T_GEMMA2)) {
        /* the first files say "gelu" and mean its approximation by tanh */
        s->act = s->act == NRD_ACT_GELU_ERF ? NRD_ACT_GELU_TANH : s->act;
    }
    if (a->traits & T_GEMMA2) {
        double q = nrd_json_get_num(c, "query_pre_attn_scalar", 256);
        bool g2 = !(a->traits & T_LOCAL_ROPE);
        if (!(q > 0)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'query_pre_attn_scalar' must be above 0, got %g",
                              q);
        }
        s->attn_scale = (float)(1 / sqrt(q));
        s->attn_softcap = (float)nrd_json_num(nrd_json_get(c, "attn_logit_softcapping"),
                                              nrd_json_get(c, "attn_logit_softcapping") || !g2
                                                  ? 0 : 50);
        s->logits_softcap = (float)nrd_json_num(nrd_json_get(c, "final_logit_softcapping"),
                                                nrd_json_get(c, "final_logit_softcapping") || !g2
                                                    ? 0 : 30);
    }
    return NULL;
}

/* An id, or a list of them: the first becomes eos, all become stop ids. */
static void hf_eos(nrd_model_spec *s, const nrd_json *v)
{
    if (nrd_json_is(v, NRD_JSON_ARRAY)) {
        for (size_t i = 0; i < nrd_json_len(v); i++) {
            nrd_model_spec_add_stop_id(s, nrd_json_int(nrd_json_at(v, i), -1));
        }
    } else {
        nrd_model_spec_add_stop_id(s, nrd_json_int(v, -1));
    }
}

static int32_t token_id(const nrd_model_spec *s, int64_t id)
{
    return id >= 0 && id < s->vocab ? (int32_t)id : -1;
}

static const nrd_arch *find_hf(const nrd_json *config)
{
    const char *type = nrd_json_get_str(config, "model_type", "");
    const char *name = nrd_json_str(nrd_json_at(nrd_json_get(config, "architectures"), 0), "");
    for (int i = 0; i < N_ARCHS; i++) {
        for (int k = 0; k < 3; k++) {
            const char *t = archs[i].hf_model_types[k], *n = archs[i].hf_architectures[k];
            if ((t && !strcmp(t, type)) || (!*type && n && !strcmp(n, name))) {
                return &archs[i];
            }
        }
    }
    return NULL;
}

nrd_error *nrd_arch_from_hf(nrd_model_spec *s, const nrd_arch **out_arch, const nrd_json *config,
                            const nrd_json *generation)
{
    nrd_model_spec_init(s);
    *out_arch = NULL;
    const nrd_arch *a = find_hf(config);
    if (!a) {
        const char *type = nrd_json_get_str(config, "model_type", NULL);
        return unknown_family(type ? "model_type" : "architecture",
                              type ? type : nrd_json_str(nrd_json_at(nrd_json_get(config,
                                                         "architectures"), 0), "(none)"));
    }
    /* multimodal configurations keep the decoder under text_config */
    const nrd_json *text = nrd_json_get(config, "text_config");
    const nrd_json *c = nrd_json_is(text, NRD_JSON_OBJECT) ? text : config;
    const char *dtype = nrd_json_str(first_of(c, "dtype", "torch_dtype"),
                                     nrd_json_str(first_of(config, "dtype", "torch_dtype"),
                                                  "float32"));
    apply_traits(s, a);
    if (!nrd_dtype_parse(dtype, &s->dtype)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "dtype '%s' is no known element type", dtype);
    }
    if (!nrd_json_is(first_of(config, "quantization_config", NULL), NRD_JSON_NULL) &&
        first_of(config, "quantization_config", NULL)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "quantization_config (method '%s') is not supported; give the original "
                          "model and --quantize, or a GGUF file",
                          nrd_json_get_str(nrd_json_get(config, "quantization_config"),
                                           "quant_method", "?"));
    }
    NRD_TRY(hf_sizes(s, a, c));
    NRD_TRY(hf_details(s, a, c));
    if (a->traits & T_GEMMA) {
        s->embed_scale = gemma_embed_scale(s);
    }
    if (!s->learned_positions) {
        NRD_TRY(hf_rope(s, a, c));
    }
    NRD_TRY(hf_sliding(s, a, c));
    const nrd_json *eos = first_of(c, "eos_token_id", NULL);
    eos = eos ? eos : first_of(config, "eos_token_id", NULL);
    hf_eos(s, eos);
    hf_eos(s, nrd_json_get(generation, "eos_token_id"));
    s->eos_id = s->n_stop_ids ? s->stop_ids[0] : -1;
    s->bos_id = token_id(s, nrd_json_get_int(c, "bos_token_id",
                                             nrd_json_get_int(config, "bos_token_id", -1)));
    s->pad_id = token_id(s, nrd_json_get_int(c, "pad_token_id",
                                             nrd_json_get_int(config, "pad_token_id", -1)));
    *out_arch = a;
    return nrd_model_spec_check(s);
}

/* ---- GGUF ---- */

typedef struct {
    const nrd_gguf *g;
    const char *arch;
    char key[160];
} gguf_keys;

static const char *gguf_key(gguf_keys *k, const char *name)
{
    snprintf(k->key, sizeof k->key, "%s.%s", k->arch, name);
    return k->key;
}

static nrd_error *gguf_int(gguf_keys *k, const char *name, int64_t fallback, int32_t *out)
{
    const char *key = gguf_key(k, name);
    const nrd_gguf_value *v = nrd_gguf_find(k->g, key);
    double each;
    /* some writers give one value for each layer; equal ones mean the same as a single one */
    if (v && v->type == NRD_GGUF_ARRAY) {
        for (uint64_t i = 0; i < v->n; i++) {
            double first;
            if (!nrd_gguf_arr_num(v, 0, &first) || !nrd_gguf_arr_num(v, i, &each) ||
                each < first || each > first) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' differs between layers", key);
            }
            fallback = first > -1e9 && first < 1e9 ? (int64_t)first : INT64_MAX;
        }
    } else {
        fallback = nrd_gguf_int(k->g, key, fallback);
    }
    if (fallback < INT32_MIN || fallback > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, v ? "'%s' must be a whole number of 32 bits" :
                          "'%s' is missing", key);
    }
    *out = (int32_t)fallback;
    return NULL;
}

static double gguf_num(gguf_keys *k, const char *name, double fallback)
{
    return nrd_gguf_num(k->g, gguf_key(k, name), fallback);
}

static nrd_error *gguf_rope(nrd_model_spec *s, const nrd_arch *a, gguf_keys *k)
{
    nrd_rope_spec *r = &s->rope;
    nrd_gguf_span type = {"none", 4};

    r->kind = a->traits & T_GGUF_INTERLEAVED ? NRD_ROPE_INTERLEAVED : NRD_ROPE_NEOX;
    r->base = gguf_num(k, "rope.freq_base", 1e4);
    NRD_TRY(gguf_int(k, "rope.dimension_count", s->head_dim, &r->rotary_dim));
    nrd_gguf_str(k->g, gguf_key(k, "rope.scaling.type"), &type);
    r->factor = gguf_num(k, "rope.scaling.factor", gguf_num(k, "rope.scale_linear", 1));
    r->attention_factor = gguf_num(k, "rope.scaling.attn_factor", 0);
    r->beta_fast = gguf_num(k, "rope.scaling.yarn_beta_fast", 32);
    r->beta_slow = gguf_num(k, "rope.scaling.yarn_beta_slow", 1);
    NRD_TRY(gguf_int(k, "rope.scaling.original_context_length", s->max_positions,
                     &r->original_max_positions));
    if (nrd_gguf_find_tensor(k->g, "rope_freqs.weight")) {
        r->scaling = NRD_ROPE_SCALING_FACTORS;
    } else if (type.n == 6 && !memcmp(type.data, "linear", 6)) {
        r->scaling = NRD_ROPE_SCALING_LINEAR;
    } else if (type.n == 4 && !memcmp(type.data, "yarn", 4)) {
        r->scaling = NRD_ROPE_SCALING_YARN;
    } else if (type.n != 4 || memcmp(type.data, "none", 4)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "rope.scaling.type '%.*s' is not supported; known: "
                          "none, linear, yarn", (int)(type.n < 40 ? type.n : 40), type.data);
    }
    if (a->traits & T_LOCAL_ROPE) { /* not in the files of most writers */
        s->rope_local.kind = r->kind;
        s->rope_local.rotary_dim = r->rotary_dim;
        s->rope_local.base = gguf_num(k, "rope.local_freq_base",
                                      gguf_num(k, "rope.freq_base_swa", 1e4));
    }
    return NULL;
}

static nrd_error *gguf_sizes(nrd_model_spec *s, gguf_keys *k)
{
    const nrd_gguf_tensor *embed = nrd_gguf_find_tensor(k->g, "token_embd.weight");

    NRD_TRY(gguf_int(k, "block_count", REQUIRED, &s->n_layers));
    if (s->n_layers < 1 || s->n_layers > NRD_SPEC_MAX_LAYERS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be between 1 and %d, got %d",
                          gguf_key(k, "block_count"), (int)NRD_SPEC_MAX_LAYERS, s->n_layers);
    }
    NRD_TRY(gguf_int(k, "embedding_length", REQUIRED, &s->hidden));
    NRD_TRY(gguf_int(k, "feed_forward_length", REQUIRED, &s->inter));
    NRD_TRY(gguf_int(k, "attention.head_count", REQUIRED, &s->n_heads));
    if (s->n_heads < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be above 0, got %d",
                          gguf_key(k, "attention.head_count"), s->n_heads);
    }
    NRD_TRY(gguf_int(k, "attention.head_count_kv", s->n_heads, &s->n_kv_heads));
    NRD_TRY(gguf_int(k, "attention.key_length", s->hidden / s->n_heads, &s->head_dim));
    if (s->head_dim < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be above 0, got %d",
                          gguf_key(k, "attention.key_length"), s->head_dim);
    }
    int32_t v_dim;
    NRD_TRY(gguf_int(k, "attention.value_length", s->head_dim, &v_dim));
    if (v_dim != s->head_dim) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "value heads of %d differ from key heads of %d",
                          v_dim, s->head_dim);
    }
    NRD_TRY(gguf_int(k, "context_length", 2048, &s->max_positions));
    /* the metadata key is often missing; the embedding always has it */
    return gguf_int(k, "vocab_size", embed && embed->n_dims == 2 ? embed->dims[1] : REQUIRED,
                    &s->vocab);
}

static void gguf_details(nrd_model_spec *s, const nrd_arch *a, gguf_keys *k)
{
    const nrd_gguf *g = k->g;

    s->norm_eps = (float)gguf_num(k, a->traits & T_LAYER_NORM ? "attention.layer_norm_epsilon"
                                                              : "attention.layer_norm_rms_epsilon",
                                  1e-5);
    s->attn_scale = (float)(1 / sqrt((double)s->head_dim));
    if (a->traits & T_GEMMA) {
        s->embed_scale = (float)sqrt((double)s->hidden);
    }
    if (a->traits & T_GEMMA2) {
        bool g2 = !(a->traits & T_LOCAL_ROPE);
        /* the 27B models scale by the width of a head as if there were no head_dim */
        if (s->n_layers == (g2 ? 46 : 62)) {
            s->attn_scale = (float)(1 / sqrt((double)s->hidden / s->n_heads));
        }
        s->attn_softcap = (float)gguf_num(k, "attn_logit_softcapping", g2 ? 50 : 0);
        s->logits_softcap = (float)gguf_num(k, "final_logit_softcapping", g2 ? 30 : 0);
    }
    s->tied_embeddings = !nrd_gguf_find_tensor(g, "output.weight");
    s->qkv_bias = nrd_gguf_find_tensor(g, "blk.0.attn_q.bias") ||
                  nrd_gguf_find_tensor(g, "blk.0.attn_qkv.bias");
    s->dense_bias = nrd_gguf_find_tensor(g, "blk.0.attn_output.bias") != NULL;
    s->mlp_bias = nrd_gguf_find_tensor(g, "blk.0.ffn_down.bias") != NULL;
    s->dtype = NRD_DTYPE_F32; /* block formats come with norms in float32 */
    const nrd_gguf_tensor *t = nrd_gguf_find_tensor(g, "blk.0.attn_output.weight");
    if (t && (t->dtype == NRD_DTYPE_F16 || t->dtype == NRD_DTYPE_BF16)) {
        s->dtype = t->dtype;
    }
}

nrd_error *nrd_arch_from_gguf(nrd_model_spec *s, const nrd_arch **out_arch, const nrd_gguf *g)
{
    nrd_gguf_span name = {"", 0};
    const nrd_arch *a = NULL;
    char text[64];

    nrd_model_spec_init(s);
    *out_arch = NULL;
    nrd_gguf_str(g, "general.architecture", &name);
    snprintf(text, sizeof text, "%.*s", (int)(name.n < 63 ? name.n : 63), name.data);
    for (int i = 0; i < N_ARCHS && !a; i++) {
        if (archs[i].gguf_arch && !strcmp(archs[i].gguf_arch, text)) {
            a = &archs[i];
        }
    }
    if (!a) {
        return unknown_family("general.architecture", text);
    }
    gguf_keys k = {.g = g, .arch = a->gguf_arch};
    apply_traits(s, a);
    NRD_TRY(gguf_sizes(s, &k));
    gguf_details(s, a, &k);
    if (!s->learned_positions) {
        NRD_TRY(gguf_rope(s, a, &k));
    }
    NRD_TRY(gguf_int(&k, "attention.sliding_window", 0, &s->sliding_window));
    if ((a->traits & T_WINDOW_ALTERNATES) && !s->sliding_window) {
        s->sliding_window = 4096; /* older files leave it out */
    }
    sliding_from_traits(s, a, 6);
    if (s->sliding_window && !memchr(s->layer_is_sliding, 1, sizeof s->layer_is_sliding)) {
        s->sliding_window = 0; /* the family has none, whatever the file says */
    }
    static const char *const stops[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                        "tokenizer.ggml.eom_token_id"};
    for (int i = 0; i < 3; i++) {
        nrd_model_spec_add_stop_id(s, nrd_gguf_int(g, stops[i], -1));
    }
    s->eos_id = token_id(s, nrd_gguf_int(g, stops[0], -1));
    s->bos_id = token_id(s, nrd_gguf_int(g, "tokenizer.ggml.bos_token_id", -1));
    s->pad_id = token_id(s, nrd_gguf_int(g, "tokenizer.ggml.padding_token_id", -1));
    *out_arch = a;
    return nrd_model_spec_check(s);
}

/* ---- checkpoints of TensorRT-LLM's own converters ---- */

nrd_error *nrd_arch_from_trtllm(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_arch *a = NULL;
    for (int i = 0; i < N_ARCHS && !a; i++) {
        if (!strcmp(archs[i].architecture, s->architecture)) {
            a = &archs[i];
        }
        for (int k = 0; k < 3 && !a; k++) {
            const char *n = archs[i].hf_architectures[k];
            a = n && !strcmp(n, s->architecture) ? &archs[i] : NULL;
        }
    }
    if (!a) {
        return unknown_family("architecture", s->architecture);
    }
    if (a->traits & T_GEMMA) { /* its norms, windows and scales are not in such a config */
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a '%s' checkpoint made by another converter cannot "
                          "be read; convert the original model with 'nereid convert'",
                          s->architecture);
    }
    if (s->quant_algo[0]) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "quantization '%s' of a checkpoint made by another "
                          "converter cannot be read; convert the original model with 'nereid "
                          "convert'", s->quant_algo);
    }
    bool qk_norm = s->qk_norm, gated;
    apply_traits(s, a);
    s->qk_norm = qk_norm || s->qk_norm;
    const char *act = nrd_json_get_str(c, "hidden_act", NULL);
    if (act && !nrd_act_parse(act, &s->act, &gated)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "hidden_act '%s' is not supported", act);
    }
    s->qkv_bias = nrd_json_get_bool(c, "attn_bias", s->qkv_bias);
    s->dense_bias = nrd_json_get_bool(c, "dense_bias", s->dense_bias);
    s->mlp_bias = nrd_json_get_bool(c, "mlp_bias", s->mlp_bias);
    s->attn_scale = (float)(1 / sqrt((double)s->head_dim));
    s->learned_positions = !strcmp(nrd_json_get_str(c, "position_embedding_type", ""),
                                   "learned_absolute");
    if (!s->learned_positions) {
        s->rope.kind = !strcmp(nrd_json_get_str(c, "position_embedding_type", ""), "rope_gptj")
                           ? NRD_ROPE_INTERLEAVED : NRD_ROPE_NEOX;
        s->rope.rotary_dim = s->head_dim;
        s->rope.base = nrd_json_get_num(c, "rotary_base", 1e4);
        NRD_TRY(hf_rope_scaling(nrd_json_get(c, "rotary_scaling"), s, &s->rope));
    }
    return NULL;
}
