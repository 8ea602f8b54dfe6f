/* SPDX-License-Identifier: Apache-2.0
 * The table of modes that a device may lack. */
#include "model/features.h"

static bool asks_wide_norm(const nrd_model_spec *m)
{
    return m->qk_norm && m->qk_norm_wide;
}

static bool asks_alibi(const nrd_model_spec *m)
{
    return m->alibi;
}

static bool asks_experts(const nrd_model_spec *m)
{
    return m->has_experts;
}

static bool asks_encoder(const nrd_model_spec *m)
{
    return m->encoder || m->sum_norms || m->n_token_types > 0;
}

static bool asks_sink_logits(const nrd_model_spec *m)
{
    return m->sink_logits;
}

static bool asks_query_forms(const nrd_model_spec *m)
{
    return (m->qk_norm && (m->qk_norm_apart || m->qk_norm_center || m->qk_norm_late)) || m->clip_qkv > 0 ||
           m->q_scale_beta > 0;
}

static bool asks_chunks(const nrd_model_spec *m)
{
    return m->window_chunks && m->sliding_window > 0;
}

static bool asks_xielu(const nrd_model_spec *m)
{
    return m->act == NRD_ACT_XIELU;
}

static bool asks_input_scale(const nrd_model_spec *m)
{
    return m->has_experts && m->moe.scale_input;
}

static bool asks_latent(const nrd_model_spec *m)
{
    return nrd_spec_is_latent(m);
}

static bool asks_rel_bias(const nrd_model_spec *m)
{
    return m->rel_buckets > 0 || m->cross_attention;
}

static bool asks_recurrent(const nrd_model_spec *m)
{
    return nrd_spec_is_recurrent(m) || m->attn_gate;
}

static bool asks_rope_axes(const nrd_model_spec *m)
{
    return nrd_rope_has_axes(&m->rope);
}

static bool asks_altup(const nrd_model_spec *m)
{
    return nrd_spec_has_altup(m);
}

static bool asks_shared_kv(const nrd_model_spec *m)
{
    return m->n_shared_kv > 0 || m->v_norm;
}

static bool asks_embed_columns(const nrd_model_spec *m)
{
    return m->embedding_by_columns;
}

static const nrd_feature_row rows[] = {
    {NRD_FEATURE_WIDE_QK_NORM, "a norm over all heads of the queries", asks_wide_norm},
    {NRD_FEATURE_ALIBI, "position biases (ALiBi)", asks_alibi},
    {NRD_FEATURE_SINK_LOGITS, "attention sinks", asks_sink_logits},
    {NRD_FEATURE_LATENT, "latent attention", asks_latent},
    {NRD_FEATURE_EXPERTS, "mixture of experts", asks_experts},
    {NRD_FEATURE_ENCODER, "the layers of an encoder", asks_encoder},
    {NRD_FEATURE_QUERY_FORMS, "bounds, scales or further norms of queries and keys",
     asks_query_forms},
    {NRD_FEATURE_CHUNKS, "attention within chunks", asks_chunks},
    {NRD_FEATURE_XIELU, "the activation xIELU", asks_xielu},
    {NRD_FEATURE_INPUT_SCALE, "experts whose inputs are scaled", asks_input_scale},
    {NRD_FEATURE_REL_BIAS, "an encoder and a decoder", asks_rel_bias},
    {NRD_FEATURE_RECURRENT, "layers with a recurrent state", asks_recurrent},
    {NRD_FEATURE_ROPE_AXES, "positions on several axes (M-RoPE)", asks_rope_axes},
    {NRD_FEATURE_ALTUP, "several states of each token (AltUp)", asks_altup},
    {NRD_FEATURE_SHARED_KV, "layers that share keys and values, or normed values", asks_shared_kv},
    {NRD_FEATURE_EMBED_COLUMNS, "an embedding divided by columns (embedding_sharding_dim 1)",
     asks_embed_columns},
};

const nrd_feature_row *nrd_feature_at(int i)
{
    return i >= 0 && i < (int)(sizeof rows / sizeof rows[0]) ? &rows[i] : NULL;
}
