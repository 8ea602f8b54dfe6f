/* SPDX-License-Identifier: Apache-2.0
 * model/families/family.h - what the rows of the table of families are made of.
 *
 * Purpose   Traits that families share, short forms of weight rules, the list of rows, and helpers
 *           for the keys of config.json that only one family has. For the files of this folder and
 *           the readers (model/arch*.c).
 * Owner     Constant data and pure functions, any thread.
 * Errors    INVALID_ARG names the key and what was expected; UNSUPPORTED what no row computes.
 */
#ifndef NRD_MODEL_FAMILIES_FAMILY_H
#define NRD_MODEL_FAMILIES_FAMILY_H

#include "model/arch.h"
#include "model/hf_keys.h"

/* Where a family differs from Llama: RMS norms before attention and MLP, rotary positions in two
 * halves, a gated MLP with SiLU, no biases, a head of its own. */
enum {
    T_LAYER_NORM = 1u << 0,
    T_NO_NORM_BIAS = 1u << 1,         /* beside T_LAYER_NORM */
    T_NORM_PLUS_ONE = 1u << 2,        /* Hugging Face files keep w of norms that multiply by 1 + w */
    T_LEARNED_POSITIONS = 1u << 3,    /* instead of rotary */
    T_ALIBI = 1u << 4,                /* instead of rotary */
    T_ROPE_INTERLEAVED = 1u << 5,     /* pairs (2i, 2i+1) in Hugging Face files, and so everywhere */
    T_GGUF_INTERLEAVED = 1u << 6,     /* GGUF writers permute the rows of q and k for such pairs */
    T_LOCAL_ROPE = 1u << 7,           /* sliding layers have a base of their own */
    T_PLAIN_MLP = 1u << 8,            /* not gated */
    T_GELU_TANH = 1u << 9,            /* where the configuration names no activation */
    T_QKV_BIAS = 1u << 10,
    T_ALL_BIASES = 1u << 11,
    T_LM_HEAD_BIAS = 1u << 12,
    T_QK_NORM = 1u << 13,
    T_QK_NORM_WIDE = 1u << 14,        /* beside T_QK_NORM: over all heads together */
    T_POST_NORMS = 1u << 15,          /* also behind attention and MLP */
    T_NO_PRE_NORMS = 1u << 16,        /* only behind */
    T_PARALLEL = 1u << 17,            /* attention and MLP side by side */
    T_SHARED_NORM = 1u << 18,         /* beside T_PARALLEL: behind one norm */
    T_EMBED_NORM = 1u << 19,
    T_TIED = 1u << 20,                /* tied where config.json does not say */
    T_WINDOW_ALL = 1u << 21,          /* every layer slides */
    T_WINDOW_OPT_IN = 1u << 22,       /* only with use_sliding_window, from max_window_layers on */
    T_WINDOW_ALTERNATES = 1u << 23,   /* every other layer, beginning with the first */
    T_WINDOW_PATTERN = 1u << 24,      /* all but every sliding_window_pattern-th (6) */
    T_NOPE_GLOBAL = 1u << 25,         /* layers that do not slide have no positions, where others do */
    T_WINDOW_4 = 1u << 27,            /* beside T_WINDOW_PATTERN: all but every fourth */
    T_EXPERTS = 1u << 28,             /* a mixture of experts instead of the MLP, in all layers or some */
    T_ENCODER = 1u << 29,             /* tokens see both sides */
    T_SUM_NORMS = 1u << 30,           /* the sum is normed and goes on so */
    T_TRTLLM = 1u << 26,              /* a config of TensorRT-LLM's own converters says all there is */
};

/* Beside T_EXPERTS: some models of the family have none at all. */
#define T_EXPERTS_OR_NOT (1ull << 40)
/* Layers with a state: the hooks say of which kind. */
#define T_RECURRENT (1ull << 41)
/* Beside T_RECURRENT: layers are a state and nothing else, so that files say nothing of heads and MLPs. */
#define T_STATES_ONLY (1ull << 42)
/* Beside T_RECURRENT: layers have attention and a state side by side. */
#define T_STATE_BESIDE (1ull << 43)
/* Files leave out sizes that are the defaults of Gemma 3's 4B model. */
#define T_GEMMA3_SIZES (1ull << 44)
/* Tokens have several states: the hooks say how many. */
#define T_ALTUP (1ull << 45)
/* Layers differ in the width of heads and MLP: the hooks read how wide each is. */
#define T_WIDTHS_DIFFER (1ull << 46)

/* Rules for a weight and its bias. `dst` and `src` without ".weight"; what a model has not got is
 * ignored, so families that differ in biases and norms can share a map. */
#define RULE(dst, src, flags) {dst ".weight", {src ".weight"}, flags}, {dst ".bias", {src ".bias"}, flags}
#define RULE_WEIGHT(dst, src) {dst ".weight", {src ".weight"}, 0} /* without a bias */
/* Two names for the same, of which a model has one. */
#define RULE_OR(dst, a, b)                                                                         \
    {dst ".weight", {a ".weight|" b ".weight"}, 0}, {dst ".bias", {a ".bias|" b ".bias"}, 0}
#define RULE_TURNED(dst, src)                                                                      \
    {dst ".weight", {src ".weight"}, NRD_RULE_TRANSPOSE}, {dst ".bias", {src ".bias"}, 0}
#define RULE_QKV(q, k, v)                                                                          \
    {"attention.qkv.weight", {q ".weight", k ".weight", v ".weight"}, 0},                          \
    {"attention.qkv.bias", {q ".bias", k ".bias", v ".bias"}, 0}
/* A norm's weights that no file has: all 1. */
#define RULE_ONES(dst) {dst ".weight", {NULL}, NRD_RULE_ONES}
#define RULE_EMBED(src) {"transformer.vocab_embedding.weight", {src ".weight"}, 0}
#define RULE_EMBED_OR(a, b) {"transformer.vocab_embedding.weight", {a ".weight|" b ".weight"}, 0}
#define RULE_POSITIONS(src, flags) {"transformer.position_embedding.weight", {src ".weight"}, flags}
#define RULE_HEAD_NORMS(q, k)                                                                      \
    {"attention.q_layernorm.weight", {q ".weight"}, 0},                                            \
    {"attention.k_layernorm.weight", {k ".weight"}, 0}

/* Parts of a head for labels. */
#define RULE_CLASSIFIER(part, src) RULE("classifier." part, src, 0)

/* Gate (the part with the activation), up and down of experts, and of those that see all tokens. */
#define RULE_EXPERTS(gate, up, down)                                                               \
    RULE_WEIGHT("mlp.experts.fc", gate), RULE_WEIGHT("mlp.experts.gate", up), RULE_WEIGHT("mlp.experts.proj", down)
#define RULE_SHARED(gate, up, down)                                                                \
    RULE_WEIGHT("mlp.shared.fc", gate), RULE_WEIGHT("mlp.shared.gate", up), RULE_WEIGHT("mlp.shared.proj", down)

/* Decoders under a multimodal model keep their names behind one of these. */
#define MODEL_PREFIXES {"", "language_model.", "model.language_model.", "model.text_model.", NULL}

/* The maps that several families share (model/families/llama.c, gguf.c). */
extern const nrd_weight_rule nrd_hf_llama_rules[];
extern const nrd_weight_rule nrd_hf_sandwich_rules[]; /* norms before and behind, as Gemma 2 names them */
extern const nrd_weight_rule nrd_hf_electra_rules[];
extern const nrd_weight_rule nrd_hf_projection_rules[]; /* products behind the pooled state */
extern const nrd_weight_rule nrd_hf_score_rules[];    /* the labels of decoders (...ForSequenceClassification) */
/* What an MTP layer has beside a layer's weights; '*' is its number, the first behind the model's. */
extern const nrd_weight_rule nrd_hf_mtp_rules[];
extern const nrd_weight_rule nrd_gguf_mtp_rules[];
extern const nrd_weight_rule nrd_gguf_rules[];        /* q, k, v and gate apart */
extern const nrd_weight_rule nrd_gguf_bitnet_rules[];  /* the same with norms in front of the last products */
extern const nrd_weight_rule nrd_gguf_plain_rules[];   /* q, k, v apart, a plain MLP */
extern const nrd_weight_rule nrd_gguf_stacked_rules[]; /* attn_qkv, a plain MLP */
extern const nrd_weight_rule nrd_gguf_fused_rules[];   /* gate and up in ffn_up; q, k, v apart */
extern const nrd_weight_rule nrd_gguf_phi3_rules[];    /* the same, and attn_qkv */
extern const nrd_weight_rule nrd_gguf_experts_rules[]; /* nrd_gguf_rules, and stacked experts */
extern const nrd_weight_rule nrd_gguf_llama4_rules[];  /* the same with norms of q and k that have no weights */
extern const nrd_weight_rule nrd_gguf_dbrx_rules[];
extern const nrd_weight_rule nrd_gguf_falcon_rules[];

/* Every row, in the order in which names are looked up and listed. */
#define NRD_FAMILIES(ROW)                                                                          \
    ROW(llama) ROW(mllama) ROW(cogvlm) ROW(qwen2) ROW(qwen3) ROW(mixtral) ROW(qwen3_moe) ROW(qwen3_vl_moe) ROW(qwen2_moe) ROW(mellum) ROW(olmoe) ROW(flex_olmo) ROW(granitemoe)        \
    ROW(granitemoeshared) ROW(granitemoe_swa) ROW(glm4_moe) ROW(deepseek_v2) ROW(deepseek_v3) ROW(glm4_moe_lite) ROW(youtu) ROW(minicpm3) ROW(dots1) ROW(solar_open) ROW(exaone_moe) \
    ROW(minimax_m2) ROW(ernie4_5_moe) ROW(hunyuan_v1_moe) ROW(hy_v3) ROW(bailing_moe) ROW(afmoe) ROW(dbrx)   \
    ROW(llama4) ROW(grok) ROW(arctic) ROW(phimoe) ROW(gpt_oss) ROW(mistral) ROW(ministral) ROW(ministral3) ROW(gemma) ROW(gemma2) ROW(vaultgemma) ROW(gemma3) ROW(gemma3n) ROW(gemma4)               \
    ROW(phi3) ROW(smollm3) ROW(granite) ROW(granite_swa) ROW(hyperclovax) ROW(minicpm) ROW(helium) ROW(cwm) ROW(nanochat) ROW(bitnet) ROW(arcee) ROW(apertus) ROW(exaone) ROW(xverse) ROW(hunyuan_v1_dense)       \
    ROW(ernie4_5) ROW(internlm) ROW(internlm3) ROW(olmo) ROW(olmo2) ROW(olmo3) ROW(chatglm) ROW(glm) ROW(glm4) ROW(exaone4) ROW(seed_oss)       \
    ROW(cohere) ROW(cohere2) ROW(cohere2_moe) ROW(nemotron) ROW(nemo_gpt) ROW(nemo_gpt_1p) ROW(jais2) ROW(persimmon) ROW(stablelm) ROW(starcoder2) ROW(internlm2) ROW(qwen) ROW(baichuan)     \
    ROW(phi) ROW(gpt2) ROW(gpt_neo) ROW(gpt_bigcode) ROW(gptj) ROW(codegen) ROW(gpt_neox) ROW(falcon) ROW(opt) ROW(xglm) ROW(kosmos2) ROW(bloom) ROW(mpt) \
    ROW(lfm2) ROW(lfm2_moe) ROW(granitemoehybrid) ROW(bamba) ROW(falcon_h1) ROW(nemotron_h) ROW(mamba2) ROW(mamba) ROW(falcon_mamba) ROW(jamba) ROW(qwen3_next) ROW(qwen3_5) ROW(qwen3_5_moe) ROW(olmo_hybrid) ROW(recurrent_gemma) ROW(bert) ROW(roberta) ROW(distilbert) ROW(mpnet) ROW(nomic_bert) ROW(jina_v2) ROW(jina_v3) ROW(modernbert) ROW(gte) ROW(electra) ROW(albert) ROW(eurobert) ROW(neobert) ROW(t5_vectors) ROW(t5) ROW(pix2struct) ROW(donut) ROW(bart) ROW(mbart) ROW(marian) ROW(pegasus) ROW(m2m_100) ROW(fsmt) ROW(whisper)

/* Encoders that belong to a decoder of the list: (decoder, encoder). */
#define NRD_ENCODERS(ROW) ROW(t5, t5_encoder) ROW(pix2struct, pix2struct_encoder) ROW(donut, donut_encoder) ROW(bart, bart_encoder) ROW(mbart, mbart_encoder) \
    ROW(marian, marian_encoder) ROW(pegasus, pegasus_encoder) ROW(m2m_100, m2m_100_encoder) ROW(fsmt, fsmt_encoder) ROW(whisper, whisper_encoder)

#define NRD_FAMILY_DECLARE(name) extern const nrd_arch nrd_arch_##name;
NRD_FAMILIES(NRD_FAMILY_DECLARE)
#define NRD_ENCODER_DECLARE(decoder, name) NRD_FAMILY_DECLARE(name)
NRD_ENCODERS(NRD_ENCODER_DECLARE)
#undef NRD_ENCODER_DECLARE
#undef NRD_FAMILY_DECLARE

/* ---- for the readers ---- */

/* Which layers slide, by the family's pattern, once sliding_window is known. */
void nrd_family_sliding(nrd_model_spec *spec, const nrd_arch *arch, int32_t pattern);
int32_t nrd_family_token_id(const nrd_model_spec *spec, int64_t id); /* -1: no token */

/* ---- for hooks: keys that several families have ---- */

/* Numbers and sizes of experts under their common keys; `arch`: of a GGUF file, before its keys. */
nrd_error *nrd_hf_experts(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;
/* The routing of DeepSeek-V3. `dense`: how many layers in front have no experts where the configuration does not say; `arch`: of a
 * GGUF file, before its keys. */
nrd_error *nrd_hf_corrected(nrd_model_spec *spec, const nrd_json *config, int32_t dense) NRD_MUST_USE;
nrd_error *nrd_gguf_corrected(nrd_model_spec *spec, const nrd_gguf *file, const char *arch) NRD_MUST_USE;
/* Which layers have experts: "sparse" in a list of all. Without mlp_layer_types nothing changes. */
nrd_error *nrd_hf_mlp_layer_types(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;
void nrd_gguf_experts(nrd_model_spec *spec, const nrd_gguf *file, const char *arch); /* layers without a router have an MLP */
int64_t nrd_gguf_key(const nrd_gguf *file, const char *arch, const char *name, int64_t fallback);
/* Where no layer has an MLP of its own, its size becomes that of an expert. */
void nrd_family_settle_inter(nrd_model_spec *spec);
/* Sizes that are not used, where layers are a state and nothing else: no memory is taken for heads and MLPs. */
void nrd_family_states_only(nrd_model_spec *spec);
/* sqrt(hidden) in the type of the embeddings, as Gemma's reference multiplies. */
float nrd_family_gemma_embed_scale(const nrd_model_spec *spec);
/* Rows of a tensor, for what its file has no key for; 0: no matrix of this name. */
int32_t nrd_gguf_rows_of(const nrd_gguf *file, const char *name);
/* pooling_type; `usual`: where it is none or not there. */
nrd_error *nrd_gguf_pooling(nrd_model_spec *spec, const nrd_gguf *file, const char *arch, nrd_spec_pooling usual) NRD_MUST_USE;
/* A number that the checks of the spec then refuse, where it has no 32 bits. */
int32_t nrd_family_small(int64_t v);

/* A 0 in no_rope_layers marks a layer without positions; where there is no list, every interval-th is one. */
/* Of decoders behind Qwen3-VL's tower: which pairs turn by which axis. */
/* LongRoPE's two sets of factors, where the file has any; without a key for it, the model's own length is the one up to
 * which the short ones hold. */
nrd_error *nrd_gguf_longrope(nrd_model_spec *spec, const nrd_gguf *file, const char *arch) NRD_MUST_USE;
/* The axes of M-RoPE, where the file of this family has any. */
void nrd_gguf_axes(nrd_model_spec *spec, const nrd_gguf *file, const char *arch);
nrd_error *nrd_hf_qwen3_axes(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;
nrd_error *nrd_hf_no_rope_layers(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;

/* clip_qkv, which may be missing or null; `arch`: of a GGUF file, before its key. */
nrd_error *nrd_hf_clip_qkv(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;
nrd_error *nrd_gguf_clip_qkv(nrd_model_spec *spec, const nrd_gguf *file, const char *arch) NRD_MUST_USE;

/* Norms of q and k, and the base of the rotation, of Hunyuan's families. */
nrd_error *nrd_hf_hunyuan(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;
/* One network of an encoder-decoder model, whose sizes stand behind keys of its own; and scale_embedding. */
nrd_error *nrd_hf_network_of_two(nrd_model_spec *spec, const nrd_json *config, const char *layers, const char *heads,
                                 const char *inter) NRD_MUST_USE;
/* Keys of Qwen's experts, and which layers have an MLP instead. */
nrd_error *nrd_hf_qwen_experts(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;

/* Embeddings times `embedding`, what a layer adds times `residual`, scores times `attention` (0: by the width of a
 * head), logits divided by `logits`. INVALID_ARG where one is not above 0. Last in a hook. */
nrd_error *nrd_family_scales(nrd_model_spec *spec, double embedding, double residual, double attention,
                             double logits) NRD_MUST_USE;
/* The four scales of Granite; `arch`: general.architecture, before the keys. */
nrd_error *nrd_hf_granite(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;
/* Windows, sinks and layers without positions of granite_swa and granitemoe_swa. */
nrd_error *nrd_hf_granite_windows(nrd_model_spec *spec, const nrd_json *config) NRD_MUST_USE;
nrd_error *nrd_gguf_granite(nrd_model_spec *spec, const nrd_gguf *file, const char *arch) NRD_MUST_USE;

#endif
