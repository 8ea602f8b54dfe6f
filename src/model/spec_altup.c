/* SPDX-License-Identifier: Apache-2.0
 * Several states of a token, layers that share keys and values or differ in width: ranges, and reading and writing them as JSON. Called by
 * model/spec.c. */
#include "model/spec_altup.h"

#include <math.h>

enum { MAX_RANK = 1 << 16, MAX_PER_LAYER = 1 << 14, MAX_VOCAB = 1 << 22, MAX_HEAD_DIM = 1024, MAX_INTER = 1 << 20 };

static nrd_error *in_range(const char *field, int32_t v, int32_t lo, int32_t hi)
{
    if (v < lo || v > hi) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be between %d and %d, got %d", field, lo, hi, v);
    }
    return NULL;
}

/* Layers that read the keys and values of others. */
static nrd_error *check_shared(const nrd_model_spec *s)
{
    NRD_TRY(in_range("num_kv_shared_layers", s->n_shared_kv, 0, s->n_layers > 0 ? s->n_layers - 1 : 0));
    for (int32_t i = s->n_layers - s->n_shared_kv; i < s->n_layers; i++) {
        if (nrd_spec_kv_source(s, i) < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "num_kv_shared_layers is %d: layer %d %s, and no layer with keys and values of its "
                              "own does so", s->n_shared_kv, i, s->layer_is_sliding[i] ? "has a window" : "has no window");
        }
    }
    if (s->n_shared_kv > 0 && s->pp_size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "pp_size %d: layers that share keys and values (num_kv_shared_layers) are of one stage",
                          s->pp_size);
    }
    if (s->n_shared_kv > 0 && (s->qkv_bias || nrd_spec_is_latent(s) || nrd_spec_is_recurrent(s) || s->cross_attention || s->encoder ||
                               s->qk_norm_wide || s->mtp || s->attn_gate)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "num_kv_shared_layers with biases of attention, latent attention, a state, an encoder, "
                          "gates or norms over all heads");
    }
    return NULL;
}

/* Layers that differ in the width of their heads or of their MLP. */
static nrd_error *check_mixed(const nrd_model_spec *s)
{
    if (!nrd_spec_is_mixed(s)) {
        return NULL;
    }
    if (s->full_head_dim > 0 || s->full_kv_heads > 0) {
        NRD_TRY(in_range("global_head_dim", s->full_head_dim, 1, MAX_HEAD_DIM));
        NRD_TRY(in_range("num_global_key_value_heads", s->full_kv_heads, 1, s->n_heads));
        if (s->n_heads % s->full_kv_heads) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "num_attention_heads (%d) must be a multiple of num_global_key_value_heads (%d)",
                              s->n_heads, s->full_kv_heads);
        }
    }
    NRD_TRY(in_range("shared_kv_inter", s->shared_kv_inter, 0, MAX_INTER));
    if (s->rope_local.kind == NRD_ROPE_NONE && s->rope.kind != NRD_ROPE_NONE && s->rope.rotary_dim > s->head_dim) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "rope: the rotary dimension is %d, more than the heads of layers with a window have (%d)",
                          s->rope.rotary_dim, s->head_dim);
    }
    if (s->shared_kv_inter % s->tp_size ||
        (s->full_kv_heads > 0 && s->full_kv_heads % s->tp_size && s->tp_size % s->full_kv_heads)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "tp_size %d must divide the width of wider MLPs (%d), and divide or be a multiple of "
                          "num_global_key_value_heads (%d)", s->tp_size, s->shared_kv_inter, s->full_kv_heads);
    }
    if (nrd_spec_is_latent(s) || nrd_spec_is_recurrent(s) || s->cross_attention || s->encoder || s->qk_norm_wide || s->qk_norm_apart ||
        s->mtp || s->attn_gate || nrd_spec_has_gaps(s)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "global_head_dim with latent attention, a state, an encoder, gates, layers that read "
                          "pictures or norms over all heads");
    }
    return NULL;
}

/* What the second embedding has for each layer. */
static nrd_error *check_layer_inputs(const nrd_model_spec *s)
{
    NRD_TRY(in_range("hidden_size_per_layer_input", s->altup.per_layer, 1, MAX_PER_LAYER));
    NRD_TRY(in_range("vocab_size_per_layer_input", s->altup.per_layer_vocab, 1, MAX_VOCAB));
    if ((int64_t)s->altup.per_layer * s->n_layers > INT32_MAX) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "hidden_size_per_layer_input (%d) of %d layers are too many numbers", s->altup.per_layer,
                          s->n_layers);
    }
    if (s->pp_size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "pp_size %d: embeddings of each layer are made in one stage", s->pp_size);
    }
    if (!s->pre_norms || !s->post_norms || s->parallel || s->norm != NRD_NORM_RMS || s->norm_bias || !s->gated_mlp ||
        s->act == NRD_ACT_CLAMPED_SWIGLU || nrd_spec_is_recurrent(s) || s->cross_attention || s->encoder) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "hidden_size_per_layer_input %d with another order of a layer's parts than Gemma's, or a "
                          "state", s->altup.per_layer);
    }
    return NULL;
}

nrd_error *nrd_altup_spec_check(const nrd_model_spec *s)
{
    const nrd_altup_spec *a = &s->altup;

    NRD_TRY(check_shared(s));
    NRD_TRY(check_mixed(s));
    if (s->layer_scale && (!s->pre_norms || !s->post_norms || s->parallel || s->sum_norms || nrd_spec_is_recurrent(s) ||
                           nrd_spec_has_altup(s))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "layer_scale with another order of a layer's parts than Gemma 4's");
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        if (!(s->layer_cutoff[i] >= 0) || !isfinite(s->layer_cutoff[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "activation_sparsity_pattern[%d] must be 0, or at least 0.5 and below 1", i);
        }
    }
    if (a->n_states == 0 && a->per_layer == 0) {
        return NULL;
    }
    NRD_TRY(check_layer_inputs(s));
    if (a->n_states == 0) {
        return NULL;
    }
    if (s->tp_size > 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "tp_size %d: a model whose tokens have several states runs as one rank", s->tp_size);
    }
    NRD_TRY(in_range("altup_num_inputs", a->n_states, NRD_SPEC_ALTUP_STATES, NRD_SPEC_ALTUP_STATES));
    NRD_TRY(in_range("laurel_rank", a->laurel_rank, 1, MAX_RANK));
    if (s->sum_norms || s->embed_norm || s->has_experts || s->mlp_bias || s->learned_positions || s->no_first_norm) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "altup_num_inputs %d with another order of a layer's parts than Gemma 3n's, biases "
                          "or experts", a->n_states);
    }
    return NULL;
}

void nrd_altup_spec_put(const nrd_model_spec *s, nrd_str *o)
{
    const nrd_altup_spec *a = &s->altup;

    nrd_str_printf(o, "{\n      \"n_states\": %d,\n      \"laurel_rank\": %d,\n      \"per_layer\": %d,\n", a->n_states,
                   a->laurel_rank, a->per_layer);
    nrd_str_printf(o, "      \"per_layer_vocab\": %d,\n      \"cutoffs\": [", a->per_layer_vocab);
    for (int32_t i = 0; i < s->n_layers; i++) {
        nrd_str_puts(o, i ? ", " : "");
        nrd_json_put_float(o, s->layer_cutoff[i]);
    }
    nrd_str_puts(o, "]\n    }");
}

/* 32 bits, whatever the file says; the ranges are checked later. */
static int32_t size_of(const nrd_json *o, const char *key)
{
    int64_t v = nrd_json_get_int(o, key, 0);
    return v < 0 || v > INT32_MAX ? -1 : (int32_t)v;
}

nrd_error *nrd_altup_spec_read(const nrd_json *o, nrd_model_spec *s)
{
    if (!o) {
        return NULL;
    }
    if (!nrd_json_is(o, NRD_JSON_OBJECT)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "expected an object, got %s", nrd_json_type_name(o));
    }
    s->altup.n_states = size_of(o, "n_states");
    s->altup.laurel_rank = size_of(o, "laurel_rank");
    s->altup.per_layer = size_of(o, "per_layer");
    s->altup.per_layer_vocab = size_of(o, "per_layer_vocab");
    const nrd_json *cutoffs = nrd_json_get(o, "cutoffs");
    if (!nrd_json_is(cutoffs, NRD_JSON_ARRAY) || nrd_json_len(cutoffs) != (size_t)s->n_layers) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "cutoffs must be a list with a number for each of %d layers", s->n_layers);
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        s->layer_cutoff[i] = (float)nrd_json_num(nrd_json_at(cutoffs, (size_t)i), -1);
    }
    return in_range("n_states", s->altup.n_states, 0, NRD_SPEC_ALTUP_STATES);
}
