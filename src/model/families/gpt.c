/* SPDX-License-Identifier: Apache-2.0
 * Earlier decoders with layer norms and plain MLPs: Phi 1 and 2, GPT-J, CodeGen, GPT-NeoX, Falcon, StarCoder,
 * OPT, XGLM, and with position biases BLOOM and MPT. */
#include "model/families/family.h"

#include <math.h>

#define PLAIN (T_LAYER_NORM | T_PLAIN_MLP)

/* ---- Phi 1, 1.5 and 2, GPT-J: attention and MLP side by side behind one norm ---- */

#define PHI "model.layers.*."
static const nrd_weight_rule phi_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", PHI "input_layernorm", 0),
    RULE_QKV(PHI "self_attn.q_proj", PHI "self_attn.k_proj", PHI "self_attn.v_proj"),
    RULE("attention.dense", PHI "self_attn.dense", 0),
    RULE("mlp.fc", PHI "mlp.fc1", 0),
    RULE("mlp.proj", PHI "mlp.fc2", 0),
    RULE("transformer.ln_f", "model.final_layernorm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *phi(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_refuse(c, "qk_layernorm"));
    if (!nrd_hf_get(c, "partial_rotary_factor") &&
        !nrd_hf_get(nrd_json_get(c, "rope_parameters"), "partial_rotary_factor")) {
        s->rope.rotary_dim = s->head_dim / 2;
    }
    return NULL;
}

const nrd_arch nrd_arch_phi = {
    "phi", "PhiForCausalLM", {"phi", "phi-msft"}, {"PhiForCausalLM"}, "phi2", MODEL_PREFIXES,
    phi_rules, nrd_gguf_plain_rules,
    PLAIN | T_PARALLEL | T_SHARED_NORM | T_GELU_TANH | T_ALL_BIASES | T_LM_HEAD_BIAS, phi, NULL};

#define GPTJ "transformer.h.*."
static const nrd_weight_rule gptj_rules[] = {
    RULE_EMBED("transformer.wte"),
    RULE("input_layernorm", GPTJ "ln_1", 0),
    RULE_QKV(GPTJ "attn.q_proj", GPTJ "attn.k_proj", GPTJ "attn.v_proj"),
    RULE("attention.dense", GPTJ "attn.out_proj", 0),
    RULE("mlp.fc", GPTJ "mlp.fc_in", 0),
    RULE("mlp.proj", GPTJ "mlp.fc_out", 0),
    RULE("transformer.ln_f", "transformer.ln_f", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *gptj(nrd_model_spec *s, const nrd_json *c)
{
    s->mlp_bias = true;
    return nrd_hf_int(c, "rotary_dim", s->head_dim, &s->rope.rotary_dim);
}

const nrd_arch nrd_arch_gptj = {
    "gptj", "GPTJForCausalLM", {"gptj"}, {"GPTJForCausalLM"}, NULL, {"", NULL}, gptj_rules, nrd_gguf_plain_rules,
    PLAIN | T_PARALLEL | T_SHARED_NORM | T_ROPE_INTERLEAVED | T_GELU_TANH | T_LM_HEAD_BIAS, gptj, NULL};

/* CodeGen: the same, but the rows of q, k and v lie as four devices had them in training. */
static const nrd_weight_rule codegen_rules[] = {
    RULE_EMBED("transformer.wte"),
    RULE("input_layernorm", GPTJ "ln_1", 0),
    RULE("attention.qkv", GPTJ "attn.qkv_proj", NRD_RULE_QVK_QUARTERS),
    RULE("attention.dense", GPTJ "attn.out_proj", 0),
    RULE("mlp.fc", GPTJ "mlp.fc_in", 0),
    RULE("mlp.proj", GPTJ "mlp.fc_out", 0),
    RULE("transformer.ln_f", "transformer.ln_f", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *codegen(nrd_model_spec *s, const nrd_json *c)
{
    if (s->hidden % 4) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'n_embd' must be a multiple of 4 in this family, got %d", s->hidden);
    }
    return gptj(s, c);
}

const nrd_arch nrd_arch_codegen = {
    "codegen", "CodeGenForCausalLM", {"codegen"}, {"CodeGenForCausalLM"}, NULL, {"", NULL}, codegen_rules, NULL,
    PLAIN | T_PARALLEL | T_SHARED_NORM | T_ROPE_INTERLEAVED | T_GELU_TANH | T_LM_HEAD_BIAS, codegen, NULL};

/* ---- GPT-NeoX and Pythia: side by side, each behind a norm of its own ---- */

#define NEOX "gpt_neox.layers.*."
static const nrd_weight_rule neox_rules[] = {
    RULE_EMBED("gpt_neox.embed_in"),
    RULE("input_layernorm", NEOX "input_layernorm", 0),
    RULE("attention.qkv", NEOX "attention.query_key_value", NRD_RULE_GROUPED_QKV),
    RULE("attention.dense", NEOX "attention.dense", 0),
    RULE("post_layernorm", NEOX "post_attention_layernorm", 0),
    RULE("mlp.fc", NEOX "mlp.dense_h_to_4h", 0),
    RULE("mlp.proj", NEOX "mlp.dense_4h_to_h", 0),
    RULE("transformer.ln_f", "gpt_neox.final_layer_norm", 0),
    RULE_OR("lm_head", "embed_out", "lm_head"),
    {0}};

static nrd_error *gpt_neox(nrd_model_spec *s, const nrd_json *c)
{
    s->parallel = nrd_json_get_bool(c, "use_parallel_residual", true);
    s->qkv_bias = s->dense_bias = nrd_json_get_bool(c, "attention_bias", true);
    if (!nrd_hf_get(c, "hidden_act")) {
        s->act = NRD_ACT_GELU_ERF;
    }
    if (!nrd_hf_get(c, "partial_rotary_factor|rotary_pct") &&
        !nrd_hf_get(nrd_json_get(c, "rope_parameters"), "partial_rotary_factor")) {
        s->rope.rotary_dim = s->head_dim / 4;
    }
    return NULL;
}

static nrd_error *gguf_neox(nrd_model_spec *s, const nrd_gguf *g)
{
    s->parallel = nrd_gguf_int(g, "gptneox.use_parallel_residual", 1) != 0;
    s->act = NRD_ACT_GELU_ERF;
    return NULL;
}

const nrd_arch nrd_arch_gpt_neox = {
    "gpt_neox", "GPTNeoXForCausalLM", {"gpt_neox"}, {"GPTNeoXForCausalLM"}, "gptneox", {"", NULL},
    neox_rules, nrd_gguf_stacked_rules, PLAIN | T_PARALLEL | T_ALL_BIASES, gpt_neox, gguf_neox};

/* ---- Falcon: 7B with one norm and one KV head, 40B with two norms ---- */

#define FALCON "transformer.h.*."
#define FALCON_ATTENTION                                                                           \
    RULE("attention.qkv", FALCON "self_attention.query_key_value", NRD_RULE_GROUPED_QKV),          \
        RULE("attention.dense", FALCON "self_attention.dense", 0)
#define FALCON_REST                                                                                \
    RULE("mlp.fc", FALCON "mlp.dense_h_to_4h", 0), RULE("mlp.proj", FALCON "mlp.dense_4h_to_h", 0), \
        RULE("transformer.ln_f", "transformer.ln_f", 0), RULE("lm_head", "lm_head", 0)

/* Where a model has two norms they are called otherwise than where it has one. */
static const nrd_weight_rule falcon_rules[] = {
    RULE_EMBED("transformer.word_embeddings"),
    RULE_OR("input_layernorm", FALCON "input_layernorm", FALCON "ln_attn"),
    FALCON_ATTENTION,
    RULE_OR("post_layernorm", FALCON "post_attention_layernorm", FALCON "ln_mlp"),
    FALCON_REST,
    {0}};

static nrd_error *falcon(nrd_model_spec *s, const nrd_json *c)
{
    bool multi_query = nrd_json_get_bool(c, "multi_query", true), two = false;
    int32_t n_norms = 0;

    /* The first models (falcon-rw) add position biases to the scores before these are scaled. */
    s->alibi = nrd_json_get_bool(c, "alibi", false);
    s->alibi_scaled = s->alibi;
    s->n_kv_heads = multi_query ? 1 : s->n_heads;
    if (nrd_json_get_bool(c, "new_decoder_architecture", false)) {
        NRD_TRY(nrd_hf_int(c, "num_kv_heads|n_head_kv", s->n_heads, &s->n_kv_heads));
        NRD_TRY(nrd_hf_int(c, "num_ln_in_parallel_attn", 2, &n_norms));
        two = n_norms == 2;
        s->parallel = true;
    } else {
        s->parallel = nrd_json_get_bool(c, "parallel_attn", true);
    }
    s->shared_norm = s->parallel && !two;
    s->qkv_bias = s->dense_bias = s->mlp_bias = nrd_json_get_bool(c, "bias", false);
    if (!nrd_hf_get(c, "activation")) {
        s->act = NRD_ACT_GELU_ERF;
    }
    return NULL;
}

static nrd_error *gguf_falcon(nrd_model_spec *s, const nrd_gguf *g)
{
    s->shared_norm = !nrd_gguf_find_tensor(g, "blk.0.attn_norm_2.weight");
    s->act = NRD_ACT_GELU_ERF;
    return NULL;
}

const nrd_arch nrd_arch_falcon = {
    "falcon", "FalconForCausalLM", {"falcon", "RefinedWeb", "RefinedWebModel"}, {"FalconForCausalLM"}, "falcon",
    {"", NULL}, falcon_rules, nrd_gguf_falcon_rules, PLAIN | T_PARALLEL | T_TIED, falcon, gguf_falcon};

/* ---- learned positions: StarCoder (GPT-2 with one KV head), OPT ---- */

#define BIGCODE "transformer.h.*."
static const nrd_weight_rule bigcode_rules[] = {
    RULE_EMBED("transformer.wte"),
    RULE_POSITIONS("transformer.wpe", 0),
    RULE("input_layernorm", BIGCODE "ln_1", 0),
    RULE("attention.qkv", BIGCODE "attn.c_attn", NRD_RULE_GROUPED_QKV),
    RULE("attention.dense", BIGCODE "attn.c_proj", 0),
    RULE("post_layernorm", BIGCODE "ln_2", 0),
    RULE("mlp.fc", BIGCODE "mlp.c_fc", 0),
    RULE("mlp.proj", BIGCODE "mlp.c_proj", 0),
    RULE("transformer.ln_f", "transformer.ln_f", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *gpt_bigcode(nrd_model_spec *s, const nrd_json *c)
{
    s->n_kv_heads = nrd_json_get_bool(c, "multi_query", true) ? 1 : s->n_heads;
    return NULL;
}

const nrd_arch nrd_arch_gpt_bigcode = {
    "gpt_bigcode", "GPTBigCodeForCausalLM", {"gpt_bigcode"}, {"GPTBigCodeForCausalLM"}, "starcoder", {"", NULL},
    bigcode_rules, nrd_gguf_stacked_rules, PLAIN | T_LEARNED_POSITIONS | T_GELU_TANH | T_ALL_BIASES | T_TIED,
    gpt_bigcode, NULL};

#define OPT "decoder.layers.*."
/* OPT-350m: the embedding is narrower than the state, with a matrix in front of the layers and one behind them. */
#define OPT_TIMES(dst, matrix)                                                                     \
    {dst ".weight", {"decoder." matrix ".weight", "decoder.embed_tokens.weight"}, NRD_RULE_TIMES | NRD_RULE_IF_THERE}
static const nrd_weight_rule opt_rules[] = {
    OPT_TIMES("transformer.vocab_embedding", "project_in"),
    {"transformer.vocab_embedding.weight", {"decoder.embed_tokens.weight"}, NRD_RULE_IF_THERE},
    RULE_POSITIONS("decoder.embed_positions", NRD_RULE_SKIP_TWO),
    RULE("input_layernorm", OPT "self_attn_layer_norm", 0),
    RULE_QKV(OPT "self_attn.q_proj", OPT "self_attn.k_proj", OPT "self_attn.v_proj"),
    RULE("attention.dense", OPT "self_attn.out_proj", 0),
    RULE("post_layernorm", OPT "final_layer_norm", 0),
    RULE("mlp.fc", OPT "fc1", 0),
    RULE("mlp.proj", OPT "fc2", 0),
    RULE("transformer.ln_f", "decoder.final_layer_norm", 0),
    OPT_TIMES("lm_head", "project_out"),
    {"lm_head.weight", {"lm_head.weight"}, NRD_RULE_IF_THERE},
    {0}};

static nrd_error *opt(nrd_model_spec *s, const nrd_json *c)
{
    int32_t width = s->hidden;
    NRD_TRY(nrd_hf_int(c, "word_embed_proj_dim", s->hidden, &width));
    s->sum_norms = !nrd_json_get_bool(c, "do_layer_norm_before", true);
    if (!s->sum_norms && nrd_json_get_bool(c, "_remove_final_layer_norm", false)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "_remove_final_layer_norm = true is not supported where do_layer_norm_before is");
    }
    s->tied_embeddings = s->tied_embeddings && width == s->hidden;
    s->qkv_bias = s->dense_bias = s->mlp_bias = nrd_json_get_bool(c, "enable_bias", true);
    if (!nrd_hf_get(c, "activation_function")) {
        s->act = NRD_ACT_RELU;
    }
    return NULL;
}

const nrd_arch nrd_arch_opt = {
    "opt", "OPTForCausalLM", {"opt"}, {"OPTForCausalLM"}, NULL, {"model.", "", "language_model.model.", "language_model.", NULL},
    opt_rules, nrd_gguf_plain_rules, PLAIN | T_LEARNED_POSITIONS | T_ALL_BIASES | T_TIED, opt, NULL};

/* XGLM: as OPT, but positions are sines and cosines, and embeddings are scaled. */
#define XGLM "layers.*."
static const nrd_weight_rule xglm_rules[] = {
    RULE_EMBED("embed_tokens"),
    {"transformer.position_embedding.weight", {NULL}, NRD_RULE_FAIRSEQ_SINUSOIDS},
    RULE("input_layernorm", XGLM "self_attn_layer_norm", 0),
    RULE_QKV(XGLM "self_attn.q_proj", XGLM "self_attn.k_proj", XGLM "self_attn.v_proj"),
    RULE("attention.dense", XGLM "self_attn.out_proj", 0),
    RULE("post_layernorm", XGLM "final_layer_norm", 0),
    RULE("mlp.fc", XGLM "fc1", 0),
    RULE("mlp.proj", XGLM "fc2", 0),
    RULE("transformer.ln_f", "layer_norm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *xglm(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_refuse(c, "add_cross_attention"));
    NRD_TRY(nrd_hf_int(c, "pad_token_id", 1, &s->pad_id));
    if (s->pad_id > 1 || s->hidden < 4) { /* the row with the number of the padding is 0, and positions begin at row 2 */
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'pad_token_id' must be at most 1 and 'd_model' at least 4, got %d and %d", s->pad_id,
                          s->hidden);
    }
    s->embed_scale = nrd_json_get_bool(c, "scale_embedding", true) ? (float)sqrt((double)s->hidden) : 1;
    return NULL;
}

const nrd_arch nrd_arch_xglm = {
    "xglm", "XGLMForCausalLM", {"xglm"}, {"XGLMForCausalLM"}, NULL, {"model.", "", NULL},
    xglm_rules, NULL, PLAIN | T_LEARNED_POSITIONS | T_ALL_BIASES | T_TIED, xglm, NULL};

/* Kosmos-2 (Peng et al., 2023): XGLM with norms inside attention and MLP (Wang et al., MAGNETO, 2022). */
static const nrd_weight_rule kosmos2_rules[] = {
    RULE_EMBED("embed_tokens"),
    {"transformer.position_embedding.weight", {NULL}, NRD_RULE_FAIRSEQ_SINUSOIDS},
    RULE("input_layernorm", XGLM "self_attn_layer_norm", 0),
    RULE_QKV(XGLM "self_attn.q_proj", XGLM "self_attn.k_proj", XGLM "self_attn.v_proj"),
    RULE("attention.inner_layernorm", XGLM "self_attn.inner_attn_ln", 0),
    RULE("attention.dense", XGLM "self_attn.out_proj", 0),
    RULE("post_layernorm", XGLM "final_layer_norm", 0),
    RULE("mlp.fc", XGLM "ffn.fc1", 0),
    RULE("mlp.inner_layernorm", XGLM "ffn.ffn_layernorm", 0),
    RULE("mlp.proj", XGLM "ffn.fc2", 0),
    RULE("transformer.ln_f", "layer_norm", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *kosmos2(nrd_model_spec *s, const nrd_json *c)
{
    s->inner_norms = true;
    return xglm(s, c);
}

const nrd_arch nrd_arch_kosmos2 = {
    "kosmos2", "Kosmos2ForConditionalGeneration", {"kosmos-2", "kosmos_2_text_model"}, {"Kosmos2ForConditionalGeneration"}, NULL,
    {"text_model.model.", "text_model.", NULL}, kosmos2_rules, NULL, PLAIN | T_LEARNED_POSITIONS | T_ALL_BIASES | T_TIED, kosmos2, NULL};

/* ---- position biases: BLOOM, MPT ---- */

#define BLOOM "h.*."
static const nrd_weight_rule bloom_rules[] = {
    RULE_EMBED("word_embeddings"),
    RULE("transformer.ln_embed", "word_embeddings_layernorm", 0),
    RULE("input_layernorm", BLOOM "input_layernorm", 0),
    RULE("attention.qkv", BLOOM "self_attention.query_key_value", NRD_RULE_GROUPED_QKV),
    RULE("attention.dense", BLOOM "self_attention.dense", 0),
    RULE("post_layernorm", BLOOM "post_attention_layernorm", 0),
    RULE("mlp.fc", BLOOM "mlp.dense_h_to_4h", 0),
    RULE("mlp.proj", BLOOM "mlp.dense_4h_to_h", 0),
    RULE("transformer.ln_f", "ln_f", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

static nrd_error *bloom(nrd_model_spec *s, const nrd_json *c)
{
    s->inter = s->hidden <= INT32_MAX / 4 ? 4 * s->hidden : 0;
    return nrd_hf_refuse(c, "apply_residual_connection_post_layernorm");
}

const nrd_arch nrd_arch_bloom = {
    "bloom", "BloomForCausalLM", {"bloom"}, {"BloomForCausalLM"}, "bloom", {"transformer.", "", NULL},
    bloom_rules, nrd_gguf_stacked_rules,
    PLAIN | T_ALIBI | T_EMBED_NORM | T_GELU_TANH | T_ALL_BIASES | T_TIED, bloom, NULL};

#define MPT "transformer.blocks.*."
static const nrd_weight_rule mpt_rules[] = {
    RULE_EMBED("transformer.wte"),
    RULE("input_layernorm", MPT "norm_1", 0),
    RULE("attention.qkv", MPT "attn.Wqkv", 0),
    RULE("attention.dense", MPT "attn.out_proj", 0),
    RULE("post_layernorm", MPT "norm_2", 0),
    RULE("mlp.fc", MPT "ffn.up_proj", 0),
    RULE("mlp.proj", MPT "ffn.down_proj", 0),
    RULE("transformer.ln_f", "transformer.norm_f", 0),
    {0}};

static nrd_error *mpt(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *attn = nrd_json_get(c, "attn_config");
    double ratio = nrd_json_get_num(c, "expansion_ratio", 4), scale = 0, most = 8;

    s->inter = ratio > 0 && ratio < 1024 ? (int32_t)(ratio * s->hidden) : 0;
    NRD_TRY(nrd_hf_refuse(attn, "qk_ln"));
    NRD_TRY(nrd_hf_clip_qkv(s, attn));
    NRD_TRY(nrd_hf_refuse(attn, "prefix_lm"));
    NRD_TRY(nrd_hf_refuse(c, "logit_scale"));
    if (!nrd_json_get_bool(attn, "alibi", true) || !nrd_json_get_bool(c, "no_bias", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "alibi = false and no_bias = false are not supported in mpt models");
    }
    NRD_TRY(nrd_hf_int(attn, "kv_n_heads", s->n_heads, &s->n_kv_heads));
    if (nrd_hf_get(attn, "softmax_scale")) {
        NRD_TRY(nrd_hf_scale(attn, "softmax_scale", &scale));
        s->attn_scale = (float)scale;
    }
    NRD_TRY(nrd_hf_scale(attn, "alibi_bias_max", &most));
    s->alibi_max = (float)most;
    s->act = NRD_ACT_GELU_ERF;
    return NULL;
}

static nrd_error *gguf_mpt(nrd_model_spec *s, const nrd_gguf *g)
{
    const double most = nrd_gguf_num(g, "mpt.attention.max_alibi_bias", 0);

    if (!(most > 0) || nrd_gguf_find_tensor(g, "blk.0.attn_q_norm.weight") || nrd_gguf_find_tensor(g, "position_embd.weight") ||
        nrd_gguf_find_tensor(g, "output_norm.bias")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "mpt models with biases, norms of q and k or without alibi are not supported");
    }
    s->alibi_max = (float)most;
    s->act = NRD_ACT_GELU_ERF;
    return nrd_gguf_clip_qkv(s, g, "mpt");
}

const nrd_arch nrd_arch_mpt = {
    "mpt", "MPTForCausalLM", {"mpt"}, {"MPTForCausalLM", "MptForCausalLM"}, "mpt", {"", NULL},
    mpt_rules, nrd_gguf_stacked_rules, PLAIN | T_NO_NORM_BIAS | T_ALIBI | T_TIED, mpt, gguf_mpt};
