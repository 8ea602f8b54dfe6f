/* SPDX-License-Identifier: Apache-2.0
 * Llama and the families that are a Llama with other flags. */
#include "model/families/family.h"
#include "model/needs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LAYER "model.layers.*."

#define ATTENTION                                                                                  \
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),        \
        RULE_HEAD_NORMS(LAYER "self_attn.q_norm", LAYER "self_attn.k_norm"),                       \
        RULE("attention.dense", LAYER "self_attn.o_proj", 0)
#define MLP                                                                                        \
    RULE("mlp.fc", LAYER "mlp.gate_proj", 0), RULE("mlp.gate", LAYER "mlp.up_proj", 0),            \
        RULE("mlp.proj", LAYER "mlp.down_proj", 0)
#define RULE_OR_WEIGHT(dst, a, b) {dst ".weight", {a ".weight|" b ".weight"}, 0}
#define ENDS RULE("transformer.ln_f", "model.norm", 0), RULE("lm_head", "lm_head", 0)

/* The source calls them so, whatever files they come from. */
const nrd_weight_rule nrd_hf_projection_rules[] = {RULE_OR("projection.1", "projection.1", "dense_2"), RULE_OR("projection.2", "projection.2", "dense_3"), {0}};

const nrd_weight_rule nrd_hf_score_rules[] = {RULE_CLASSIFIER("out", "score"), {0}};

/* In the layer behind the last, or apart (source_mtp.h). */
const nrd_weight_rule nrd_hf_mtp_rules[] = {
    RULE_OR_WEIGHT("mtp.fc", LAYER "eh_proj", "mtp.fc"),
    RULE_OR_WEIGHT("mtp.embed_layernorm", LAYER "enorm", "mtp.pre_fc_norm_embedding"),
    RULE_OR_WEIGHT("mtp.state_layernorm", LAYER "hnorm", "mtp.pre_fc_norm_hidden"),
    RULE_OR_WEIGHT("mtp.final_layernorm", LAYER "shared_head.norm", "mtp.norm"),
    {0}};

const nrd_weight_rule nrd_hf_llama_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    ATTENTION,
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    MLP,
    ENDS,
    {0}};

const nrd_weight_rule nrd_hf_sandwich_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    ATTENTION,
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_attention_layernorm"),
    RULE("post_layernorm", LAYER "pre_feedforward_layernorm", 0),
    MLP,
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_feedforward_layernorm"),
    ENDS,
    {0}};

const nrd_arch nrd_arch_llama = {
    "llama", "LlamaForCausalLM", {"llama", "iquestcoder", "skywork"}, {"LlamaForCausalLM", "IQuestCoderForCausalLM", "SkyworkForCausalLM"}, "llama", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED | T_TRTLLM, NULL, NULL};

/* InternLM 1: all products of attention have a bias. */
static nrd_error *internlm(nrd_model_spec *s, const nrd_json *c)
{
    s->qkv_bias = s->dense_bias = nrd_json_get_bool(c, "bias", true);
    return NULL;
}

const nrd_arch nrd_arch_internlm = {
    "internlm", "InternLMForCausalLM", {"internlm"}, {"InternLMForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_llama_rules, NULL, 0, internlm, NULL};

/* Ministral 3 scales queries by their position, in steps of the length that it was trained on first. */
static nrd_error *mistral(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *rope = nrd_hf_get(c, "rope_parameters|rope_scaling");

    if (!nrd_hf_get(rope, "llama_4_scaling_beta")) {
        return NULL;
    }
    s->q_scale_beta = (float)nrd_json_get_num(rope, "llama_4_scaling_beta", 0);
    return nrd_hf_int(rope, "original_max_position_embeddings", s->max_positions, &s->q_scale_length);
}

const nrd_arch nrd_arch_mistral = {
    "mistral", "MistralForCausalLM", {"mistral", "mistral3"}, {"MistralForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED | T_WINDOW_ALL | T_TRTLLM, mistral, NULL};

static nrd_error *gguf_mistral3(nrd_model_spec *s, const nrd_gguf *g)
{
    const int64_t length = nrd_gguf_int(g, "mistral3.rope.scaling.original_context_length", s->max_positions);
    const double m = nrd_gguf_num(g, "mistral3.rope.scaling.yarn_log_multiplier", 0);
    const double factor = nrd_gguf_num(g, "mistral3.rope.scaling.factor", 1);

    if (m > 0 && factor > 1) { /* cos and sin are divided by what mscale_all_dim makes them grow */
        s->rope.attention_factor = (0.1 * log(factor) + 1) / (0.1 * m * log(factor) + 1);
    }
    s->q_scale_beta = (float)nrd_gguf_num(g, "mistral3.attention.temperature_scale", 0);
    s->q_scale_length = length > 0 && length <= INT32_MAX ? (int32_t)length : 0;
    return NULL;
}

const nrd_arch nrd_arch_ministral3 = {
    "ministral3", "Ministral3ForCausalLM", {"ministral3"}, {"Ministral3ForCausalLM"}, "mistral3", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED, mistral, gguf_mistral3};

/* Some layers slide: layer_types says which. */
const nrd_arch nrd_arch_ministral = {
    "ministral", "MinistralForCausalLM", {"ministral"}, {"MinistralForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED | T_WINDOW_ALL, NULL, NULL};

/* Qwen2-VL and Qwen2.5-VL: pairs turn by three axes, which differ in pictures (model/vision.h). */
static nrd_error *qwen2(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *rope = nrd_hf_get(c, "rope_parameters|rope_scaling");

    if (!strncmp(nrd_json_get_str(c, "model_type", ""), "qwen2_", 6)) { /* with a tower */
        s->rope.base = 1e6;
    }
    return nrd_rope_read_sections(&s->rope, nrd_json_get(rope, "mrope_section"));
}

void nrd_gguf_axes(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    char key[64];
    snprintf(key, sizeof key, "%s.rope.dimension_sections", arch);
    const nrd_gguf_value *list = nrd_gguf_find(g, key);

    for (uint64_t i = 0; list && i < NRD_ROPE_AXES; i++) {
        double v = 0;
        s->rope.sections[i] = nrd_gguf_arr_num(list, i, &v) && v > 0 && v < NRD_SPEC_MAX_ROTARY ? (int32_t)v : 0;
    }
}

static nrd_error *gguf_qwen2(nrd_model_spec *s, const nrd_gguf *g)
{
    nrd_gguf_axes(s, g, "qwen2vl");
    return NULL;
}

const nrd_arch nrd_arch_qwen2 = {
    "qwen2", "Qwen2ForCausalLM", {"qwen2", "qwen2_vl", "qwen2_5_vl"},
    {"Qwen2ForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"}, "qwen2|qwen2vl", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_QKV_BIAS | T_WINDOW_OPT_IN | T_TRTLLM, qwen2, gguf_qwen2};

/* Qwen3-VL: the axes take turns. */
nrd_error *nrd_hf_qwen3_axes(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *sections = nrd_json_get(nrd_hf_get(c, "rope_parameters|rope_scaling"), "mrope_section");
    static const int32_t by_default[NRD_ROPE_AXES] = {24, 20, 20}; /* of heads of 128 */

    if (strncmp(nrd_json_get_str(c, "model_type", ""), "qwen3_vl", 8) != 0) {
        return NULL;
    }
    s->rope.base = 500000;
    s->rope.sections_by_turns = true;
    for (int32_t i = 0; i < s->head_dim / 2; i++) {
        const int a = i % NRD_ROPE_AXES;
        s->rope.sections[i / NRD_ROPE_AXES < by_default[a] ? a : 0]++;
    }
    return nrd_rope_read_sections(&s->rope, sections);
}

static nrd_error *qwen3(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_int(c, "head_dim", 128, &s->head_dim));
    return nrd_hf_qwen3_axes(s, c);
}

static nrd_error *gguf_qwen3(nrd_model_spec *s, const nrd_gguf *g)
{
    s->rope.sections_by_turns = nrd_gguf_find(g, "qwen3vl.rope.dimension_sections") != NULL;
    nrd_gguf_axes(s, g, "qwen3vl");
    return NULL;
}

const nrd_arch nrd_arch_qwen3 = {
    "qwen3", "Qwen3ForCausalLM", {"qwen3", "qwen3_vl"}, {"Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration"}, "qwen3|qwen3vl", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_QK_NORM | T_WINDOW_OPT_IN | T_TRTLLM, qwen3, gguf_qwen3};

/* A 0 in no_rope_layers marks a layer without positions; where there is no list, every interval-th is one. */
nrd_error *nrd_hf_no_rope_layers(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *list = nrd_hf_get(c, "no_rope_layers");
    int32_t interval = 4;

    list = nrd_json_len(list) > 0 ? list : NULL; /* Llama 4's files have an empty one */
    NRD_TRY(nrd_hf_int(c, "no_rope_layer_interval", 4, &interval));
    if (list && nrd_json_len(list) != (size_t)s->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'no_rope_layers' has %zu entries, expected one for each of %d layers",
                          nrd_json_len(list), s->n_layers);
    }
    if (interval < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'no_rope_layer_interval' must be above 0, got %d", interval);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_has_no_rope[i] = list ? nrd_json_int(nrd_json_at(list, (size_t)i), 1) == 0
                                       : (i + 1) % interval == 0;
    }
    return NULL;
}

static nrd_error *gguf_smollm3(nrd_model_spec *s, const nrd_gguf *g)
{
    (void)g; /* the file does not say it: every fourth */
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_has_no_rope[i] = (i + 1) % 4 == 0;
    }
    return NULL;
}

const nrd_arch nrd_arch_smollm3 = {
    "smollm3", "SmolLM3ForCausalLM", {"smollm3"}, {"SmolLM3ForCausalLM"}, "smollm3", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED | T_WINDOW_OPT_IN | T_TIED,
    nrd_hf_no_rope_layers, gguf_smollm3};

/* ---- Granite: four scales ---- */

nrd_error *nrd_family_scales(nrd_model_spec *s, double embedding, double residual, double attention, double logits)
{
    if (!(embedding > 0) || !(residual > 0) || !(attention >= 0) || !(logits > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "embedding, residual and logits scales must be above 0, got %g, %g "
                          "and %g", embedding, residual, logits);
    }
    s->embed_scale = (float)embedding;
    s->attn_scale = (float)attention;
    s->logits_scale = (float)(1 / logits);
    /* Norms do not see how large the state is: this is the network whose layers add `residual` times as much. */
    s->embed_scale = (float)((double)s->embed_scale / residual);
    s->norm_eps = (float)((double)s->norm_eps / (residual * residual));
    return NULL;
}

nrd_error *nrd_hf_granite(nrd_model_spec *s, const nrd_json *c)
{
    double embedding = 1, residual = 1, attention = 1, logits = 1;
    NRD_TRY(nrd_hf_scale(c, "embedding_multiplier", &embedding));
    NRD_TRY(nrd_hf_scale(c, "residual_multiplier", &residual));
    NRD_TRY(nrd_hf_scale(c, "attention_multiplier", &attention));
    NRD_TRY(nrd_hf_scale(c, "logits_scaling", &logits));
    return nrd_family_scales(s, embedding, residual, attention, logits);
}

nrd_error *nrd_gguf_granite(nrd_model_spec *s, const nrd_gguf *g, const char *arch)
{
    static const char *const names[] = {"embedding_scale", "residual_scale", "attention.scale", "logit_scale"};
    double v[4];
    char key[80];

    for (int i = 0; i < 4; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, names[i]);
        v[i] = nrd_gguf_num(g, key, i == 2 ? 0 : 1);
    }
    return nrd_family_scales(s, v[0], v[1], v[2], v[3]);
}

static nrd_error *gguf_granite(nrd_model_spec *s, const nrd_gguf *g)
{
    return nrd_gguf_granite(s, g, "granite");
}

const nrd_arch nrd_arch_granite = {
    "granite", "GraniteForCausalLM", {"granite"}, {"GraniteForCausalLM"}, "granite", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED, nrd_hf_granite, gguf_granite};

/* Granite SWA: most layers have a window, all have attention sinks. */
static const nrd_weight_rule granite_swa_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    ATTENTION,
    {NRD_SINKS, {LAYER "self_attn.sinks"}, 0},
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    MLP,
    ENDS,
    {0}};

/* A base for each layer: 0: no positions there, else that of all. */
static nrd_error *bases_of_layers(nrd_model_spec *s, const nrd_json *c, const nrd_json *list)
{
    const double plain = nrd_json_get_num(c, "rope_theta", 1e4);
    const double base = nrd_json_get_num(nrd_json_get(c, "rope_parameters"), "rope_theta", plain);

    if (nrd_json_len(list) != (size_t)s->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'layer_rope_theta' has %zu entries, expected one for each of %d layers",
                          nrd_json_len(list), s->n_layers);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        const double each = nrd_json_num(nrd_json_at(list, (size_t)i), -1);
        s->layer_has_no_rope[i] = !(each < 0) && !(each > 0);
        if (!s->layer_has_no_rope[i] && (each < base || each > base)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "layer_rope_theta[%d] is %g, expected 0 or rope_theta (%g)", i, each, base);
        }
    }
    return NULL;
}

nrd_error *nrd_hf_granite_windows(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *types = nrd_hf_get(c, "layer_types"), *bases = nrd_hf_get(c, "layer_rope_theta");

    s->sink_logits = true;
    NRD_TRY(nrd_hf_int(c, "sliding_window", 128, &s->sliding_window));
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_is_sliding[i] = i % 4 != 0;
    }
    NRD_TRY(types ? nrd_hf_layer_types(s, types) : NULL);
    return bases ? bases_of_layers(s, c, bases) : NULL;
}

static nrd_error *granite_swa(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(nrd_hf_granite_windows(s, c));
    return nrd_hf_granite(s, c);
}

const nrd_arch nrd_arch_granite_swa = {
    "granite_swa", "GraniteSWAForCausalLM", {"granite_swa"}, {"GraniteSWAForCausalLM"}, NULL, MODEL_PREFIXES,
    granite_swa_rules, NULL, T_TIED, granite_swa, NULL};

/* HyperCLOVA X: Granite with a norm behind each sublayer, too, and logits that are multiplied by their scale. */
static const nrd_weight_rule hyperclovax_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    ATTENTION,
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_norm1"),
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    MLP,
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_norm2"),
    ENDS,
    {0}};

static nrd_error *hyperclovax(nrd_model_spec *s, const nrd_json *c)
{
    const double head_dim = (double)s->head_dim;
    double embedding = 1, residual = 1, attention = 1 / sqrt(head_dim), logits = 1;

    NRD_TRY(nrd_hf_scale(c, "embedding_multiplier", &embedding));
    NRD_TRY(nrd_hf_scale(c, "residual_multiplier", &residual));
    NRD_TRY(nrd_hf_scale(c, "attention_multiplier", &attention));
    NRD_TRY(nrd_hf_scale(c, "logits_scaling", &logits));
    s->post_norms = nrd_json_get_bool(c, "use_post_norm", true);
    if (s->post_norms && (residual < 1 || residual > 1)) { /* the norm behind a sublayer sees how large its input is */
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'residual_multiplier' %g beside 'use_post_norm', expected 1", residual);
    }
    return nrd_family_scales(s, embedding, residual, attention, 1 / logits);
}

const nrd_arch nrd_arch_hyperclovax = {
    "hyperclovax", "HyperCLOVAXForCausalLM", {"hyperclovax"}, {"HyperCLOVAXForCausalLM"}, NULL, MODEL_PREFIXES,
    hyperclovax_rules, NULL, T_POST_NORMS, hyperclovax, NULL};

/* MiniCPM 1 and 2 say them otherwise: of layers by their number, of logits by another model's width. */
static nrd_error *minicpm(nrd_model_spec *s, const nrd_json *c)
{
    double embedding = 1, depth = sqrt((double)s->n_layers), base = s->hidden;

    NRD_TRY(nrd_hf_scale(c, "scale_emb", &embedding));
    NRD_TRY(nrd_hf_scale(c, "scale_depth", &depth));
    NRD_TRY(nrd_hf_scale(c, "dim_model_base", &base));
    return nrd_family_scales(s, embedding, depth / sqrt((double)s->n_layers), 1 / sqrt((double)s->head_dim), s->hidden / base);
}

static nrd_error *gguf_minicpm(nrd_model_spec *s, const nrd_gguf *g)
{
    NRD_TRY(nrd_gguf_granite(s, g, "minicpm"));
    s->attn_scale = (float)(1 / sqrt((double)s->head_dim));
    return NULL;
}

const nrd_arch nrd_arch_minicpm = {
    "minicpm", "MiniCPMForCausalLM", {"minicpm"}, {"MiniCPMForCausalLM"}, "minicpm", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED | T_TIED, minicpm, gguf_minicpm};

/* ---- pairs (2i, 2i + 1): Helium; windows by layer_types alone: CWM ---- */

static nrd_error *helium(nrd_model_spec *s, const nrd_json *c)
{
    (void)c;
    s->dense_bias = false;
    s->rope.base = 1e5;
    return NULL;
}

const nrd_arch nrd_arch_helium = {
    "helium", "HeliumForCausalLM", {"helium"}, {"HeliumForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_ROPE_INTERLEAVED, helium, NULL};

static nrd_error *cwm(nrd_model_spec *s, const nrd_json *c)
{
    s->rope.base = 1e6;
    return nrd_hf_get(c, "sliding_window") && !nrd_hf_get(c, "layer_types")
               ? nrd_errorf(NRD_ERR_INVALID_ARG, "'layer_types' is missing")
               : NULL;
}

const nrd_arch nrd_arch_cwm = {
    "cwm", "CwmForCausalLM", {"cwm"}, {"CwmForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_WINDOW_ALL, cwm, NULL};

/* ---- a plain MLP: Arcee (ReLU squared), Apertus (xIELU) ---- */

#define PLAIN_MLP RULE("mlp.fc", LAYER "mlp.up_proj", 0), RULE("mlp.proj", LAYER "mlp.down_proj", 0)

/* BitNet b1.58 (Ma et al., 2024): norms in front of the last products, as in MAGNETO. Its weights' three values: quant/bitnet.c. */
static const nrd_weight_rule bitnet_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    ATTENTION,
    RULE("attention.inner_layernorm", LAYER "self_attn.attn_sub_norm", 0),
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    MLP,
    RULE("mlp.inner_layernorm", LAYER "mlp.ffn_sub_norm", 0),
    ENDS,
    {0}};

static nrd_error *bitnet(nrd_model_spec *s, const nrd_json *c)
{
    s->act = nrd_hf_get(c, "hidden_act") ? s->act : NRD_ACT_RELU2;
    s->inner_norms = true;
    return NULL;
}

static nrd_error *gguf_bitnet(nrd_model_spec *s, const nrd_gguf *g)
{
    (void)g;
    s->act = NRD_ACT_RELU2;
    s->inner_norms = true;
    return NULL;
}

const nrd_arch nrd_arch_bitnet = {
    "bitnet", "BitNetForCausalLM", {"bitnet"}, {"BitNetForCausalLM", "BitnetForCausalLM"}, "bitnet-b1.58|bitnet-25", MODEL_PREFIXES,
    bitnet_rules, nrd_gguf_bitnet_rules, 0, bitnet, gguf_bitnet};

static const nrd_weight_rule arcee_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    ATTENTION,
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    PLAIN_MLP,
    ENDS,
    {0}};

static nrd_error *arcee(nrd_model_spec *s, const nrd_json *c)
{
    s->act = nrd_hf_get(c, "hidden_act") ? s->act : NRD_ACT_RELU2;
    return NULL;
}

static nrd_error *gguf_arcee(nrd_model_spec *s, const nrd_gguf *g)
{
    (void)g;
    s->act = NRD_ACT_RELU2;
    return NULL;
}

const nrd_arch nrd_arch_arcee = {
    "arcee", "ArceeForCausalLM", {"arcee"}, {"ArceeForCausalLM"}, "arcee", MODEL_PREFIXES,
    arcee_rules, nrd_gguf_plain_rules, T_GGUF_INTERLEAVED | T_PLAIN_MLP, arcee, gguf_arcee};

static const nrd_weight_rule apertus_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "attention_layernorm", 0),
    ATTENTION,
    RULE("post_layernorm", LAYER "feedforward_layernorm", 0),
    PLAIN_MLP,
    {NRD_XIELU_P, {LAYER "mlp.act_fn.alpha_p"}, 0},
    {NRD_XIELU_N, {LAYER "mlp.act_fn.alpha_n"}, 0},
    ENDS,
    {0}};

static nrd_error *apertus(nrd_model_spec *s, const nrd_json *c)
{
    const char *act = nrd_json_get_str(c, "hidden_act", "xielu");

    if (strcmp(act, "xielu") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'hidden_act' must be xielu in this family, got '%s'", act);
    }
    s->act = NRD_ACT_XIELU;
    s->rope.base = 12e6;
    if (!nrd_hf_get(c, "rope_parameters|rope_scaling")) { /* what the family means by nothing */
        s->rope.scaling = NRD_ROPE_SCALING_LLAMA3;
        s->rope.factor = 8;
        s->rope.low_freq_factor = 1;
        s->rope.high_freq_factor = 4;
        s->rope.original_max_positions = 8192;
    }
    return NULL;
}

#define BLOCK "blk.*."
static const nrd_weight_rule gguf_apertus_rules[] = {
    RULE_EMBED("token_embd"),
    RULE("input_layernorm", BLOCK "attn_norm", 0),
    RULE_QKV(BLOCK "attn_q", BLOCK "attn_k", BLOCK "attn_v"),
    RULE_HEAD_NORMS(BLOCK "attn_q_norm", BLOCK "attn_k_norm"),
    RULE("attention.dense", BLOCK "attn_output", 0),
    RULE("post_layernorm", BLOCK "ffn_norm", 0),
    RULE("mlp.fc", BLOCK "ffn_up", 0),
    RULE("mlp.proj", BLOCK "ffn_down", 0),
    {NRD_XIELU_P, {BLOCK "xielu.alpha_p"}, 0}, /* from the file's metadata (model/source_numbers.c) */
    {NRD_XIELU_N, {BLOCK "xielu.alpha_n"}, 0},
    RULE("transformer.ln_f", "output_norm", 0),
    RULE("lm_head", "output", 0),
    {"rope_factors", {"rope_freqs.weight"}, 0},
    {0}};

/* The third number of the activation is the same in all models; what the fourth bounds is below the precision. */
static nrd_error *gguf_apertus(nrd_model_spec *s, const nrd_gguf *g)
{
    const nrd_gguf_value *list = nrd_gguf_find(g, "xielu.beta");
    double beta = 0.5;

    for (uint64_t i = 0; list && i < list->n; i++) {
        if (!nrd_gguf_arr_num(list, i, &beta) || beta < 0.499 || beta > 0.501) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'xielu.beta' of layer %llu is %g, expected 0.5", (unsigned long long)i, beta);
        }
    }
    s->act = NRD_ACT_XIELU;
    return NULL;
}

const nrd_arch nrd_arch_apertus = {
    "apertus", "ApertusForCausalLM", {"apertus"}, {"ApertusForCausalLM"}, "apertus", MODEL_PREFIXES,
    apertus_rules, gguf_apertus_rules, T_PLAIN_MLP | T_QK_NORM, apertus, gguf_apertus};

/* ---- the same under other names: EXAONE 3, XVERSE ---- */

#define EXAONE "transformer.h.*."
static const nrd_weight_rule exaone_rules[] = {
    RULE_EMBED("transformer.wte"),
    RULE("input_layernorm", EXAONE "ln_1", 0),
    RULE_QKV(EXAONE "attn.attention.q_proj", EXAONE "attn.attention.k_proj", EXAONE "attn.attention.v_proj"),
    RULE("attention.dense", EXAONE "attn.attention.out_proj", 0),
    RULE("post_layernorm", EXAONE "ln_2", 0),
    RULE("mlp.fc", EXAONE "mlp.c_fc_0", 0),
    RULE("mlp.gate", EXAONE "mlp.c_fc_1", 0),
    RULE("mlp.proj", EXAONE "mlp.c_proj", 0),
    RULE("transformer.ln_f", "transformer.ln_f", 0),
    RULE("lm_head", "lm_head", 0),
    {0}};

const nrd_arch nrd_arch_exaone = {
    "exaone", "ExaoneForCausalLM", {"exaone"}, {"ExaoneForCausalLM"}, "exaone", {"", NULL},
    exaone_rules, nrd_gguf_rules, 0, NULL, NULL};

const nrd_arch nrd_arch_xverse = {
    "xverse", "XverseForCausalLM", {"xverse"}, {"XverseForCausalLM"}, "xverse", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_GGUF_INTERLEAVED, NULL, NULL};

/* ---- Hunyuan: norms of q and k behind the rotation ---- */

static const nrd_weight_rule hunyuan_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    RULE("input_layernorm", LAYER "input_layernorm", 0),
    RULE_QKV(LAYER "self_attn.q_proj", LAYER "self_attn.k_proj", LAYER "self_attn.v_proj"),
    RULE_HEAD_NORMS(LAYER "self_attn.query_layernorm", LAYER "self_attn.key_layernorm"),
    RULE("attention.dense", LAYER "self_attn.o_proj", 0),
    RULE("post_layernorm", LAYER "post_attention_layernorm", 0),
    MLP,
    ENDS,
    {0}};

/* Its rope type "dynamic" has a fixed alpha, which makes the base larger once and for all. */
nrd_error *nrd_hf_hunyuan(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *rope = nrd_hf_get(c, "rope_parameters|rope_scaling");
    double alpha = 1;

    if (!nrd_json_get_bool(c, "use_qk_norm", true)) {
        s->qk_norm = false;
    }
    NRD_TRY(nrd_hf_refuse(c, "use_cla"));
    s->qk_norm_late = s->qk_norm;
    if (!nrd_hf_get(rope, "alpha")) {
        return NULL;
    }
    NRD_TRY(nrd_hf_scale(rope, "alpha", &alpha));
    if (s->head_dim <= 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'head_dim' must be above 2, got %d", s->head_dim);
    }
    s->rope.base_scale = pow(alpha, (double)s->head_dim / (s->head_dim - 2));
    return NULL;
}

static nrd_error *gguf_hunyuan(nrd_model_spec *s, const nrd_gguf *g)
{
    (void)g; /* the base in the file has grown already */
    s->qk_norm_late = true;
    return NULL;
}

const nrd_arch nrd_arch_hunyuan_v1_dense = {
    "hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", {"hunyuan_v1_dense"}, {"HunYuanDenseV1ForCausalLM"}, "hunyuan-dense",
    MODEL_PREFIXES, hunyuan_rules, nrd_gguf_rules, T_QK_NORM, nrd_hf_hunyuan, gguf_hunyuan};

/* ---- biases of their own ---- */

/* Pairs (2i, 2i + 1) in its own files as well. */
static nrd_error *ernie4_5(nrd_model_spec *s, const nrd_json *c)
{
    s->qkv_bias = s->dense_bias = s->mlp_bias = nrd_json_get_bool(c, "use_bias", false);
    s->rope.base = 5e5;
    return NULL;
}

const nrd_arch nrd_arch_ernie4_5 = {
    "ernie4_5", "Ernie4_5ForCausalLM", {"ernie4_5"}, {"Ernie4_5ForCausalLM"}, "ernie4_5", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_ROPE_INTERLEAVED | T_TIED, ernie4_5, NULL};

static nrd_error *internlm3(nrd_model_spec *s, const nrd_json *c)
{
    s->qkv_bias = nrd_json_bool(nrd_hf_get(c, "qkv_bias|attention_bias"), false);
    s->dense_bias = s->mlp_bias = nrd_json_bool(nrd_hf_get(c, "bias|mlp_bias"), false);
    return NULL;
}

const nrd_arch nrd_arch_internlm3 = {
    "internlm3", "InternLM3ForCausalLM", {"internlm3"}, {"InternLM3ForCausalLM"}, NULL, MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, 0, internlm3, NULL};

static nrd_error *seed_oss(nrd_model_spec *s, const nrd_json *c)
{
    s->qkv_bias = nrd_json_get_bool(c, "attention_bias", true);
    s->dense_bias = nrd_json_get_bool(c, "attention_out_bias", false);
    return nrd_hf_int(c, "head_dim", 128, &s->head_dim);
}

const nrd_arch nrd_arch_seed_oss = {
    "seed_oss", "SeedOssForCausalLM", {"seed_oss"}, {"SeedOssForCausalLM"}, "seed_oss", MODEL_PREFIXES,
    nrd_hf_llama_rules, nrd_gguf_rules, T_QKV_BIAS, seed_oss, NULL};

/* ---- norms behind attention and MLP only ---- */

static const nrd_weight_rule behind_rules[] = {
    RULE_EMBED("model.embed_tokens"),
    ATTENTION,
    RULE_WEIGHT("post_attention_layernorm", LAYER "post_attention_layernorm"),
    MLP,
    RULE_WEIGHT("post_feedforward_layernorm", LAYER "post_feedforward_layernorm"),
    ENDS,
    {0}};

/* Files of OLMo 3 call themselves so, too: with a window, which three layers of four have, with unscaled positions. */
static nrd_error *gguf_olmo2(nrd_model_spec *s, const nrd_gguf *g)
{
    const bool slides = nrd_gguf_int(g, "olmo2.attention.sliding_window", 0) > 0;

    for (int32_t i = 0; slides && i < s->n_layers; i++) {
        s->layer_is_sliding[i] = (i + 1) % 4 != 0;
    }
    if (slides) {
        s->rope_local.kind = NRD_ROPE_NEOX;
        s->rope_local.rotary_dim = s->head_dim;
        s->rope_local.base = nrd_gguf_num(g, "olmo2.rope.freq_base", 1e4);
    }
    return NULL;
}

const nrd_arch nrd_arch_olmo2 = {
    "olmo2", "Olmo2ForCausalLM", {"olmo2"}, {"Olmo2ForCausalLM"}, "olmo2", MODEL_PREFIXES,
    behind_rules, nrd_gguf_rules, T_NO_PRE_NORMS | T_QK_NORM | T_QK_NORM_WIDE, NULL, gguf_olmo2};

/* Layers that slide keep the rotary positions unscaled. */
static nrd_error *olmo3(nrd_model_spec *s, const nrd_json *c)
{
    const nrd_json *rope = nrd_hf_get(c, "rope_parameters|rope_scaling");
    const nrd_json *full = nrd_hf_get(rope, "full_attention");
    s->rope_local.kind = NRD_ROPE_NEOX;
    s->rope_local.rotary_dim = s->head_dim;
    s->rope_local.base = nrd_json_num(nrd_hf_get(full ? full : rope, "rope_theta"),
                                      nrd_json_get_num(c, "rope_theta", 1e4));
    return NULL;
}

const nrd_arch nrd_arch_olmo3 = {
    "olmo3", "Olmo3ForCausalLM", {"olmo3"}, {"Olmo3ForCausalLM"}, NULL, MODEL_PREFIXES,
    behind_rules, nrd_gguf_rules, T_NO_PRE_NORMS | T_QK_NORM | T_QK_NORM_WIDE | T_WINDOW_PATTERN | T_WINDOW_4, olmo3,
    NULL};

const nrd_arch nrd_arch_exaone4 = {
    "exaone4", "Exaone4ForCausalLM", {"exaone4"}, {"Exaone4ForCausalLM"}, "exaone4", MODEL_PREFIXES,
    behind_rules, nrd_gguf_rules, T_NO_PRE_NORMS | T_QK_NORM | T_WINDOW_PATTERN | T_WINDOW_4 | T_NOPE_GLOBAL, NULL,
    NULL};
