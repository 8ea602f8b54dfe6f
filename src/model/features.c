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

static const nrd_feature_row rows[] = {
    {NRD_FEATURE_WIDE_QK_NORM, "a norm over all heads of the queries", asks_wide_norm},
    {NRD_FEATURE_ALIBI, "position biases (ALiBi)", asks_alibi},
    {NRD_FEATURE_SINK_LOGITS, "attention sinks", asks_sink_logits},
    {NRD_FEATURE_EXPERTS, "mixture of experts", asks_experts},
    {NRD_FEATURE_ENCODER, "the layers of an encoder", asks_encoder},
};

const nrd_feature_row *nrd_feature_at(int i)
{
    return i >= 0 && i < (int)(sizeof rows / sizeof rows[0]) ? &rows[i] : NULL;
}
