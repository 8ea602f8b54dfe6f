/* SPDX-License-Identifier: Apache-2.0
 * Checks of the description of a network: sizes in their ranges, and parts that go together. Called for every spec that was read,
 * from a model's configuration or from an engine's. */
#include "model/arch.h"
#include "model/spec.h"
#include "model/spec_altup.h"
#include "model/spec_classifier.h"
#include "model/spec_latent.h"
#include "model/spec_moe.h"
#include "model/spec_projection.h"
#include "model/spec_recurrent.h"
#include "model/spec_range.h"

#include <math.h>

/* Ranges of what is believed. Far above every published model, low enough that products of any
 * three of them fit int64_t. */
enum {
    MAX_HIDDEN = 1 << 18,
    MAX_HEADS = 4096,
    MAX_HEAD_DIM = 1024,
    MAX_INTER = 1 << 20,
    MAX_VOCAB = 1 << 22,
    MAX_POSITIONS = 1 << 26,
    MAX_TOKEN_TYPES = 1 << 16,
    MAX_MELS = 1024,
    MAX_REL_DISTANCE = 1 << 16,
    MAX_RANKS = 1024,
};

/* Norms, bounds and scales of queries and keys. */
static nrd_error *check_queries(const nrd_model_spec *s)
{
    if (!(s->clip_qkv >= 0) || !isfinite(s->clip_qkv)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "clip_qkv must be above 0, got %g", (double)s->clip_qkv);
    }
    if (!(s->q_scale_beta >= 0) || !isfinite(s->q_scale_beta)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "llama_4_scaling_beta, attn_scale of queries, must not be negative, got %g", (double)s->q_scale_beta);
    }
    if (s->q_scale_beta > 0) {
        NRD_TRY(nrd_spec_in_range("the steps of positions by which queries are scaled", s->q_scale_length, 1, MAX_POSITIONS));
        NRD_TRY(nrd_spec_in_range("the first position of scaled queries", s->q_scale_offset, 0, MAX_POSITIONS));
    }
    if (s->qk_norm_wide && (s->qk_norm_apart || s->qk_norm_center || s->qk_norm_late)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "norms of q and k are of all heads or of each");
    }
    if (s->qk_norm_bias && !s->qk_norm_center) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "biases of norms of q and k that are no layer norms");
    }
    if (s->qk_norm_late && s->clip_qkv > 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "clip_qkv beside norms behind the rotation");
    }
    return NULL;
}

static nrd_error *check_sections(const char *field, const nrd_rope_spec *r)
{
    int64_t sum = 0;
    bool any = false, ok = true;

    for (int a = 0; a < NRD_ROPE_AXES; a++) {
        any = any || r->sections[a] != 0;
        ok = ok && r->sections[a] >= 0;
        sum += r->sections[a];
    }
    if (any && (!ok || sum != r->rotary_dim / 2 || r->kind != NRD_ROPE_NEOX)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: mrope_section is [%d, %d, %d], expected three numbers whose sum is %d, half of "
                          "the rotary dimension", field, r->sections[0], r->sections[1], r->sections[2], r->rotary_dim / 2);
    }
    return NULL;
}

static nrd_error *check_rope(const char *field, const nrd_rope_spec *r, int32_t head_dim)
{
    if (r->kind == NRD_ROPE_NONE) {
        return NULL;
    }
    int32_t most = head_dim < NRD_SPEC_MAX_ROTARY ? head_dim : (int32_t)NRD_SPEC_MAX_ROTARY;
    if (r->rotary_dim < 2 || r->rotary_dim > most || r->rotary_dim % 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: the rotary dimension must be even and between 2 and %d, got %d",
                          field, most, r->rotary_dim);
    }
    if (!(r->base > 1) || !isfinite(r->base)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: the base must be above 1, got %g", field,
                          r->base);
    }
    NRD_TRY(check_sections(field, r));
    bool scaled = r->scaling == NRD_ROPE_SCALING_LINEAR || r->scaling == NRD_ROPE_SCALING_LLAMA3 ||
                  r->scaling == NRD_ROPE_SCALING_YARN || r->scaling == NRD_ROPE_SCALING_DYNAMIC;
    /* with a linear factor below 0 pairs turn the other way (NanoChat) */
    const bool backwards = r->scaling == NRD_ROPE_SCALING_LINEAR && r->factor < 0;
    if (scaled && ((!(r->factor > 0) && !backwards) || !isfinite(r->factor))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: the scaling factor must be above 0, got %g",
                          field, r->factor);
    }
    if (r->scaling == NRD_ROPE_SCALING_PROPORTIONAL && !(r->factor > 0 && r->factor <= 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: the share of pairs that turn must be above 0 and at most 1, got %g", field,
                          r->factor);
    }
    if (r->scaling == NRD_ROPE_SCALING_LLAMA3 &&
        (!(r->low_freq_factor > 0) || !(r->high_freq_factor > r->low_freq_factor))) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: expected 0 < low_freq_factor < high_freq_factor, got %g and %g",
                          field, r->low_freq_factor, r->high_freq_factor);
    }
    const bool longrope = r->scaling == NRD_ROPE_SCALING_LONGROPE;
    for (int32_t i = 0; longrope && i < r->rotary_dim / 2; i++) {
        if (!(r->short_factors[i] > 0) || !(r->long_factors[i] > 0) || !isfinite(r->short_factors[i]) ||
            !isfinite(r->long_factors[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: short_factor and long_factor must have %d numbers "
                              "above 0, got %g and %g at %d", field, r->rotary_dim / 2,
                              (double)r->short_factors[i], (double)r->long_factors[i], i);
        }
    }
    if ((scaled || longrope) && r->scaling != NRD_ROPE_SCALING_LINEAR &&
        r->original_max_positions < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "%s: original_max_position_embeddings must be above 0, got %d", field,
                          r->original_max_positions);
    }
    return NULL;
}

/* Sizes of the network, and how ranks divide them. */
static nrd_error *check_sizes(const nrd_model_spec *s)
{
    NRD_TRY(nrd_spec_in_range("num_hidden_layers", s->n_layers, s->for_decoder ? 0 : 1, NRD_SPEC_MAX_LAYERS));
    NRD_TRY(nrd_spec_in_range("hidden_size", s->hidden, 1, MAX_HIDDEN));
    NRD_TRY(nrd_spec_in_range("num_attention_heads", s->n_heads, 1, MAX_HEADS));
    NRD_TRY(nrd_spec_in_range("num_key_value_heads", s->n_kv_heads, 1, s->n_heads));
    NRD_TRY(nrd_spec_in_range("head_size", s->head_dim, 1, MAX_HEAD_DIM));
    NRD_TRY(nrd_spec_in_range("intermediate_size", s->inter, 1, MAX_INTER));
    NRD_TRY(nrd_spec_in_range("vocab_size", s->vocab, 1, MAX_VOCAB));
    NRD_TRY(nrd_spec_in_range("max_position_embeddings", s->max_positions, 1, MAX_POSITIONS));
    NRD_TRY(nrd_spec_in_range("type_vocab_size", s->n_token_types, 0, MAX_TOKEN_TYPES));
    NRD_TRY(nrd_spec_in_range("sliding_window", s->sliding_window, 0, MAX_POSITIONS));
    NRD_TRY(nrd_spec_in_range("tp_size", s->tp_size, 1, MAX_RANKS));
    NRD_TRY(nrd_spec_in_range("pp_size", s->pp_size, 1, s->n_layers > 0 ? s->n_layers : 1));
    if (s->n_heads % s->n_kv_heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "num_attention_heads (%d) must be a multiple of num_key_value_heads (%d)",
                          s->n_heads, s->n_kv_heads);
    }
    if (s->n_heads % s->tp_size || s->inter % s->tp_size ||
        (s->n_kv_heads % s->tp_size && s->tp_size % s->n_kv_heads)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "tp_size %d must divide num_attention_heads (%d) and intermediate_size "
                          "(%d), and divide or be a multiple of num_key_value_heads (%d)",
                          s->tp_size, s->n_heads, s->inter, s->n_kv_heads);
    }
    if (s->n_layers % s->pp_size) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "pp_size %d must divide num_hidden_layers (%d)",
                          s->pp_size, s->n_layers);
    }
    return NULL;
}

/* Numbers that states and scores are multiplied or bounded by. */
static nrd_error *check_scales(const nrd_model_spec *s)
{
    if (!(s->norm_eps >= 0 && s->norm_eps < 1)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "norm_epsilon must be between 0 and 1, got %g",
                          (double)s->norm_eps);
    }
    const float positive[] = {s->embed_scale, s->attn_scale, s->logits_scale};
    const char *const names[] = {"embed_scale", "attn_scale", "logits_scale"};
    for (int i = 0; i < 3; i++) {
        if (!(positive[i] > 0) || !isfinite(positive[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be above 0, got %g", names[i],
                              (double)positive[i]);
        }
    }
    if (!(s->attn_softcap >= 0) || !(s->logits_softcap >= 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "soft caps must not be negative, got %g and %g",
                          (double)s->attn_softcap, (double)s->logits_softcap);
    }
    return NULL;
}

/* What goes with which activation and with which positions. */
static nrd_error *check_forms(const nrd_model_spec *s)
{
    if (s->act == NRD_ACT_CLAMPED_SWIGLU && !s->gated_mlp) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "hidden_act clamped_swiglu goes with a gated MLP");
    }
    if (s->act == NRD_ACT_XIELU && s->gated_mlp) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "hidden_act xielu goes with an MLP that is not gated");
    }
    if (s->window_chunks && s->encoder) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "an encoder with chunks");
    }
    if (s->alibi && !(s->alibi_max > 0 && s->alibi_max <= 64)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "alibi_bias_max must be above 0 and at most 64, got %g",
                          (double)s->alibi_max);
    }
    return NULL;
}

/* An encoder, by itself or of a decoder. */
static nrd_error *check_encoder(const nrd_model_spec *s)
{
    if (s->encoder && s->max_positions >= NRD_ATTENTION_MAX_AHEAD) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "max_position_embeddings of an encoder must be below %d, got %d",
                          (int)NRD_ATTENTION_MAX_AHEAD, s->max_positions);
    }
    if (s->for_decoder && s->sliding_window > 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "sliding_window %d: the encoder of a decoder has no window", s->sliding_window);
    }
    if ((s->encoder || s->sum_norms) && s->pp_size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "pp_size %d: an encoder cannot be divided into stages", s->pp_size);
    }
    return NULL;
}

/* Where norms stand. */
static nrd_error *check_norms(const nrd_model_spec *s)
{
    if (s->sum_norms && (!s->pre_norms || s->post_norms || s->parallel)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "sum_norms goes with no other norms");
    }
    if (s->no_first_norm && (!s->embed_norm || !s->pre_norms || s->sum_norms || s->parallel || s->post_norms)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "no_first_norm goes with norms of the embeddings and before attention and MLP");
    }
    NRD_TRY(nrd_spec_in_range("embedding_size", s->embed_width, 0, s->hidden)); /* rows have room where states have it */
    if (s->embed_width > 0 && (!s->sum_norms || !s->encoder || s->for_decoder || !s->embed_norm || s->parallel_embedding)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "embedding_size %d: embeddings that are not as wide as the state (%d) go with encoders that norm "
                          "sums, and are whole in every rank", s->embed_width, s->hidden);
    }
    if (!s->pre_norms && (s->parallel || !s->post_norms)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "layers need norms before or behind attention and MLP");
    }
    return NULL;
}

/* The layer that guesses. */
static nrd_error *check_mtp(const nrd_model_spec *s)
{
    if (s->mtp && (s->n_layers != 1 || s->tp_size * s->pp_size > 1 || s->encoder || s->cross_attention || s->sum_norms || s->parallel ||
                   s->embed_norm || s->learned_positions || !s->pre_norms || s->norm_bias || s->norm != NRD_NORM_RMS || s->post_norms ||
                   nrd_spec_is_recurrent(s))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "mtp: an MTP layer is one layer of a decoder with RMS norms before attention and MLP, on "
                          "one rank");
    }
    return NULL;
}

/* A norm of numbers that ranks divide. */
static nrd_error *check_inner_norms(const nrd_model_spec *s)
{
    return s->inner_norms && s->tp_size > 1
               ? nrd_errorf(NRD_ERR_UNSUPPORTED, "tp_size %d: norms inside attention and MLP need all heads: use pp_size", s->tp_size)
               : NULL;
}

/* The two networks of an encoder-decoder model. */
static nrd_error *check_two_networks(const nrd_model_spec *s)
{
    if (s->cross_attention && (s->encoder || s->tp_size * s->pp_size > 1)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tp_size %d, pp_size %d: a decoder that reads an encoder's states runs as "
                          "one rank", s->tp_size, s->pp_size);
    }
    if (s->for_decoder && (!s->encoder || s->tp_size > 1)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tp_size %d: the encoder of a decoder runs as one rank", s->tp_size);
    }
    NRD_TRY(nrd_spec_in_range("num_mel_bins", s->n_mels, 0, MAX_MELS));
    if (s->n_mels > 0 && (!s->for_decoder || !s->learned_positions || s->embed_norm || s->n_token_types > 0)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "num_mel_bins goes with the encoder of a decoder, learned positions and no norm "
                          "of the embeddings");
    }
    if (s->cross_attention && (s->has_experts || s->parallel || s->post_norms || s->sliding_window > 0)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "cross_attention goes with neither experts nor windows, norms behind "
                          "sublayers or sublayers side by side");
    }
    NRD_TRY(nrd_spec_in_range("relative_attention_num_buckets", s->rel_buckets, 0, NRD_SPEC_MAX_REL_BUCKETS));
    if (s->rel_buckets > 0 && (s->rel_buckets % 4 || s->rel_distance <= s->rel_buckets || s->rel_distance > MAX_REL_DISTANCE ||
                               s->alibi)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "relative_attention_num_buckets (%d) must be a multiple of 4 below "
                          "relative_attention_max_distance (%d, at most %d)", s->rel_buckets, s->rel_distance,
                          (int)MAX_REL_DISTANCE);
    }
    if (s->cross_attention && (s->start_id < -1 || s->start_id >= s->vocab || s->first_id < -1 || s->first_id >= s->vocab)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "decoder_start_token_id (%d) and forced_bos_token_id (%d) must be below "
                          "vocab_size (%d)", s->start_id, s->first_id, s->vocab);
    }
    return NULL;
}

nrd_error *nrd_model_spec_check(const nrd_model_spec *s)
{
    NRD_TRY(check_sizes(s));
    NRD_TRY(nrd_moe_spec_check(s));
    NRD_TRY(nrd_latent_spec_check(s));
    NRD_TRY(nrd_classifier_spec_check(s));
    NRD_TRY(nrd_projection_spec_check(s));
    NRD_TRY(nrd_recurrent_spec_check(s));
    NRD_TRY(nrd_altup_spec_check(s));
    NRD_TRY(check_scales(s));
    NRD_TRY(check_queries(s));
    NRD_TRY(check_forms(s));
    NRD_TRY(check_encoder(s));
    NRD_TRY(check_norms(s));
    NRD_TRY(check_mtp(s));
    NRD_TRY(check_inner_norms(s));
    NRD_TRY(check_two_networks(s));
    NRD_TRY(check_rope("rope", &s->rope, s->full_head_dim > 0 ? s->full_head_dim : s->head_dim));
    return check_rope("rope_local", &s->rope_local, s->head_dim);
}
