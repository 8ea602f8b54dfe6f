/* SPDX-License-Identifier: Apache-2.0
 * BART, mBART, Marian, Pegasus, M2M100 and fairseq's translation models (Lewis et al., 2020; Liu et al., 2020; Junczys-Dowmunt et al.,
 * 2018; Zhang et al., 2020; Fan et al., 2021, NLLB is an M2M100; Ng et al., 2019, FSMT at Hugging Face): an encoder and a decoder that reads its states. BART and mBART have learned positions behind two unused rows and a
 * norm of the embeddings, the others sinusoids and no such norm. BART and Marian norm the sums behind their sublayers, the
 * others what goes into them. */
#include "model/families/family.h"

#include <math.h>

/* One embedding for both networks and the LM head. */
#define SHARED_EMBED(at) RULE_EMBED("shared.weight|" at "embed_tokens")
#define SINUSOIDS(kind) {"transformer.position_embedding.weight", {NULL}, kind}
#define BART_ENDS(at)                                                                              \
    SHARED_EMBED(at), RULE_POSITIONS(at "embed_positions", NRD_RULE_SKIP_TWO),                     \
        RULE("transformer.ln_embed", at "layernorm_embedding", 0), RULE("transformer.ln_f", at "layer_norm", 0)
#define BART_LAYER(at)                                                                             \
    RULE_QKV(at "self_attn.q_proj", at "self_attn.k_proj", at "self_attn.v_proj"),                 \
        RULE("attention.dense", at "self_attn.out_proj", 0),                                       \
        RULE("input_layernorm", at "self_attn_layer_norm", 0), RULE("mlp.fc", at "fc1", 0),        \
        RULE("mlp.proj", at "fc2", 0), RULE("post_layernorm", at "final_layer_norm", 0)
#define DECODER "decoder.layers.*."

static const nrd_weight_rule encoder_rules[] = {BART_ENDS("encoder."), BART_LAYER("encoder.layers.*."), {0}};

#define BART_DECODER_LAYER                                                                         \
    BART_LAYER(DECODER), RULE("cross_attention_layernorm", DECODER "encoder_attn_layer_norm", 0),  \
        RULE("cross_attention.q", DECODER "encoder_attn.q_proj", 0),                               \
        RULE("cross_attention.k", DECODER "encoder_attn.k_proj", 0),                               \
        RULE("cross_attention.v", DECODER "encoder_attn.v_proj", 0),                               \
        RULE("cross_attention.dense", DECODER "encoder_attn.out_proj", 0)
#define BART_HEAD {"lm_head.weight", {"lm_head.weight"}, 0}, {"lm_head.bias", {"final_logits_bias"}, 0}

static const nrd_weight_rule decoder_rules[] = {BART_ENDS("decoder."), BART_DECODER_LAYER, BART_HEAD, {0}};

static const nrd_weight_rule marian_encoder_rules[] = {SHARED_EMBED("encoder."), SINUSOIDS(NRD_RULE_SINUSOIDS),
                                                       BART_LAYER("encoder.layers.*."), {0}};
static const nrd_weight_rule marian_rules[] = {SHARED_EMBED("decoder."), SINUSOIDS(NRD_RULE_SINUSOIDS), BART_DECODER_LAYER,
                                               BART_HEAD, {0}};

/* Pegasus: Marian's, with M2M100's norms. */
static const nrd_weight_rule pegasus_encoder_rules[] = {
    SHARED_EMBED("encoder."), SINUSOIDS(NRD_RULE_SINUSOIDS), RULE("transformer.ln_f", "encoder.layer_norm", 0),
    BART_LAYER("encoder.layers.*."), {0}};
static const nrd_weight_rule pegasus_rules[] = {
    SHARED_EMBED("decoder."), SINUSOIDS(NRD_RULE_SINUSOIDS), RULE("transformer.ln_f", "decoder.layer_norm", 0), BART_DECODER_LAYER,
    BART_HEAD, {0}};

static const nrd_weight_rule m2m_100_encoder_rules[] = {
    SHARED_EMBED("encoder."), SINUSOIDS(NRD_RULE_FAIRSEQ_SINUSOIDS), RULE("transformer.ln_f", "encoder.layer_norm", 0),
    BART_LAYER("encoder.layers.*."), {0}};
static const nrd_weight_rule m2m_100_rules[] = {
    SHARED_EMBED("decoder."), SINUSOIDS(NRD_RULE_FAIRSEQ_SINUSOIDS), RULE("transformer.ln_f", "decoder.layer_norm", 0),
    BART_DECODER_LAYER, RULE_WEIGHT("lm_head", "lm_head"), {0}};

/* fairseq's: an embedding for each network, and a head that may be the decoder's. */
static const nrd_weight_rule fsmt_encoder_rules[] = {
    RULE_EMBED("encoder.embed_tokens"), SINUSOIDS(NRD_RULE_FAIRSEQ_SINUSOIDS), RULE("transformer.ln_f", "encoder.layer_norm", 0),
    BART_LAYER("encoder.layers.*."), {0}};
static const nrd_weight_rule fsmt_rules[] = {
    RULE_EMBED("decoder.embed_tokens"), SINUSOIDS(NRD_RULE_FAIRSEQ_SINUSOIDS), RULE("transformer.ln_f", "decoder.layer_norm", 0),
    BART_DECODER_LAYER, RULE_WEIGHT("lm_head", "decoder.output_projection"), {0}};

nrd_error *nrd_hf_network_of_two(nrd_model_spec *s, const nrd_json *c, const char *layers, const char *heads,
                                 const char *inter)
{
    NRD_TRY(nrd_hf_int(c, layers, s->n_layers, &s->n_layers));
    NRD_TRY(nrd_hf_int(c, heads, s->n_heads, &s->n_heads));
    NRD_TRY(nrd_hf_int(c, inter, s->inter, &s->inter));
    if (s->n_heads < 1 || s->hidden % s->n_heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' (%d) must divide d_model (%d)", heads, s->n_heads, s->hidden);
    }
    s->n_kv_heads = s->n_heads;
    s->head_dim = s->hidden / s->n_heads;
    if (nrd_json_get_bool(c, "scale_embedding", false)) {
        s->embed_scale = (float)sqrt((double)s->hidden);
    }
    return NULL;
}

static nrd_error *encoder(nrd_model_spec *s, const nrd_json *c)
{
    s->for_decoder = s->tied_embeddings = true;
    return nrd_hf_network_of_two(s, c, "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim");
}

static nrd_error *decoder(nrd_model_spec *s, const nrd_json *c)
{
    s->cross_attention = true;
    NRD_TRY(nrd_hf_int(c, "decoder_start_token_id|bos_token_id", -1, &s->start_id));
    return nrd_hf_network_of_two(s, c, "decoder_layers", "decoder_attention_heads", "decoder_ffn_dim");
}

/* Two embeddings would be two vocabularies. */
static nrd_error *check_shared(const nrd_json *c)
{
    return nrd_json_get_bool(c, "share_encoder_decoder_embeddings", true)
               ? NULL
               : nrd_errorf(NRD_ERR_UNSUPPORTED, "'share_encoder_decoder_embeddings' false: a vocabulary of the decoder's own is not "
                            "supported");
}

static nrd_error *marian_encoder(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(check_shared(c));
    return encoder(s, c);
}

static nrd_error *marian_decoder(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(check_shared(c));
    return decoder(s, c);
}

/* The sinusoids begin behind pad_token_id, whose default it is here. */
static nrd_error *m2m_100(nrd_model_spec *s, const nrd_json *c)
{
    if (s->hidden < 4) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'d_model' must be at least 4, got %d", s->hidden);
    }
    return nrd_hf_int(c, "pad_token_id", 1, &s->pad_id);
}

static nrd_error *m2m_100_encoder(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(m2m_100(s, c));
    return encoder(s, c);
}

static nrd_error *m2m_100_decoder(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(m2m_100(s, c));
    return decoder(s, c);
}

/* normalize_before is of fairseq's own files: FSMT has norms behind only. The padding is never chosen. */
static nrd_error *fsmt(nrd_model_spec *s, const nrd_json *c)
{
    s->sum_norms = !nrd_json_get_bool(c, "normalize_before", false);
    return m2m_100(s, c);
}

static nrd_error *fsmt_encoder(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(fsmt(s, c));
    NRD_TRY(nrd_hf_int(c, "src_vocab_size", s->vocab, &s->vocab));
    return encoder(s, c);
}

static nrd_error *fsmt_decoder(nrd_model_spec *s, const nrd_json *c)
{
    NRD_TRY(fsmt(s, c));
    NRD_TRY(nrd_model_spec_ban(s, s->pad_id));
    return decoder(s, c);
}

#define MBART (T_LAYER_NORM | T_LEARNED_POSITIONS | T_EMBED_NORM | T_PLAIN_MLP | T_ALL_BIASES | T_TIED)
#define BART (MBART | T_SUM_NORMS)

const nrd_arch nrd_arch_bart_encoder = {"bart_encoder", "EncoderModel", {NULL}, {NULL}, NULL, {"model.", "", NULL},
                                        encoder_rules, NULL, BART | T_ENCODER, encoder, NULL};

const nrd_arch nrd_arch_bart = {"bart", "DecoderModel", {"bart"}, {"BartForConditionalGeneration"}, NULL,
                                {"model.", "", NULL}, decoder_rules, NULL, BART | T_LM_HEAD_BIAS, decoder, NULL};

const nrd_arch nrd_arch_mbart_encoder = {"mbart_encoder", "EncoderModel", {NULL}, {NULL}, NULL, {"model.", "", NULL},
                                         encoder_rules, NULL, MBART | T_ENCODER, encoder, NULL};

const nrd_arch nrd_arch_mbart = {"mbart", "DecoderModel", {"mbart"}, {"MBartForConditionalGeneration"}, NULL,
                                 {"model.", "", NULL}, decoder_rules, NULL, MBART | T_LM_HEAD_BIAS, decoder, NULL};

#define SINUSOIDAL (T_LAYER_NORM | T_LEARNED_POSITIONS | T_PLAIN_MLP | T_ALL_BIASES | T_TIED)

const nrd_arch nrd_arch_marian_encoder = {"marian_encoder", "EncoderModel", {NULL}, {NULL}, NULL, {"model.", "", NULL},
                                          marian_encoder_rules, NULL, SINUSOIDAL | T_SUM_NORMS | T_ENCODER, marian_encoder, NULL};

const nrd_arch nrd_arch_marian = {"marian", "DecoderModel", {"marian"}, {"MarianMTModel"}, NULL, {"model.", "", NULL}, marian_rules,
                                  NULL, SINUSOIDAL | T_SUM_NORMS | T_LM_HEAD_BIAS, marian_decoder, NULL};

const nrd_arch nrd_arch_pegasus_encoder = {"pegasus_encoder", "EncoderModel", {NULL}, {NULL}, NULL, {"model.", "", NULL},
                                           pegasus_encoder_rules, NULL, SINUSOIDAL | T_ENCODER, encoder, NULL};

const nrd_arch nrd_arch_pegasus = {"pegasus", "DecoderModel", {"pegasus"}, {"PegasusForConditionalGeneration"}, NULL,
                                   {"model.", "", NULL}, pegasus_rules, NULL, SINUSOIDAL | T_LM_HEAD_BIAS, decoder, NULL};

const nrd_arch nrd_arch_m2m_100_encoder = {"m2m_100_encoder", "EncoderModel", {NULL}, {NULL}, NULL, {"model.", "", NULL},
                                           m2m_100_encoder_rules, NULL, SINUSOIDAL | T_ENCODER, m2m_100_encoder, NULL};

const nrd_arch nrd_arch_m2m_100 = {"m2m_100", "DecoderModel", {"m2m_100"}, {"M2M100ForConditionalGeneration"}, NULL,
                                   {"model.", "", NULL}, m2m_100_rules, NULL, SINUSOIDAL, m2m_100_decoder, NULL};

const nrd_arch nrd_arch_fsmt_encoder = {"fsmt_encoder", "EncoderModel", {NULL}, {NULL}, NULL, {"model.", "", NULL}, fsmt_encoder_rules,
                                        NULL, SINUSOIDAL | T_SUM_NORMS | T_ENCODER, fsmt_encoder, NULL};

const nrd_arch nrd_arch_fsmt = {"fsmt", "DecoderModel", {"fsmt"}, {"FSMTForConditionalGeneration"}, NULL, {"model.", "", NULL},
                                fsmt_rules, NULL, SINUSOIDAL | T_SUM_NORMS, fsmt_decoder, NULL};
