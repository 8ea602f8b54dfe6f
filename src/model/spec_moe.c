/* SPDX-License-Identifier: Apache-2.0
 * Sizes and rules of experts: ranges, and reading and writing them as JSON. Called by model/spec.c. */
#include "model/spec_moe.h"
#include "model/spec_range.h"

#include <math.h>
#include <string.h>

enum { MAX_EXPERT_INTER = 1 << 20 };

static const char *const score_names[] = {[NRD_MOE_SOFTMAX] = "softmax", [NRD_MOE_SIGMOID] = "sigmoid",
                                           [NRD_MOE_SPARSEMIXER] = "sparsemixer"};
enum { N_SCORES = (int)(sizeof score_names / sizeof score_names[0]) };

static nrd_error *check_ranks(const nrd_model_spec *s)
{
    const nrd_moe_spec *m = &s->moe;

    if (m->ep_size < 1 || s->tp_size % m->ep_size || m->ep_size > m->n_experts) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "moe_ep_size %d must divide tp_size (%d) and be at most the number of experts (%d)",
                          m->ep_size, s->tp_size, m->n_experts);
    }
    if (m->inter % nrd_spec_moe_tp(s) || m->shared_inter % s->tp_size) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "tp_size %d / moe_ep_size %d must divide the size of an expert (%d), and tp_size that of the shared "
                          "experts (%d)", s->tp_size, m->ep_size, m->inter, m->shared_inter);
    }
    return NULL;
}

nrd_error *nrd_moe_spec_check(const nrd_model_spec *s)
{
    const nrd_moe_spec *m = &s->moe;

    if (!s->has_experts) {
        return m->ep_size <= 1 ? NULL
                               : nrd_errorf(NRD_ERR_INVALID_ARG, "moe_ep_size %d: the model has no experts", m->ep_size);
    }
    NRD_TRY(nrd_spec_in_range("num_experts", m->n_experts, 1, NRD_MOE_MAX_EXPERTS));
    NRD_TRY(nrd_spec_in_range("num_experts_per_tok", m->top_k, 1,
                     m->n_experts < NRD_MOE_MAX_TOP_K ? m->n_experts : (int32_t)NRD_MOE_MAX_TOP_K));
    NRD_TRY(nrd_spec_in_range("moe_intermediate_size", m->inter, 1, MAX_EXPERT_INTER));
    NRD_TRY(nrd_spec_in_range("shared_expert_intermediate_size", m->shared_inter, 0, MAX_EXPERT_INTER));
    NRD_TRY(nrd_spec_in_range("n_group", m->n_groups, 1, m->n_experts));
    NRD_TRY(nrd_spec_in_range("topk_group", m->top_groups, 1, m->n_groups));
    if (m->n_experts % m->n_groups || m->n_experts / m->n_groups * m->top_groups < m->top_k) {
        return nrd_errorf(NRD_ERR_INVALID_ARG,
                          "n_group (%d) must divide num_experts (%d), and topk_group (%d) of them must have "
                          "num_experts_per_tok (%d) experts",
                          m->n_groups, m->n_experts, m->top_groups, m->top_k);
    }
    if (m->shared_gate && m->shared_inter == 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a gate of shared experts without shared experts");
    }
    if (!(m->scale > 0) || !isfinite(m->scale)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "routed_scaling_factor must be above 0, got %g", (double)m->scale);
    }
    if (m->score == NRD_MOE_SPARSEMIXER && (!(m->jitter >= 0 && m->jitter < 1) || m->score_bias || m->n_groups > 1 ||
                                            m->normalize)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "router_jitter_noise must be at least 0 and below 1, got %g; sparsemixer has "
                          "no groups and corrections", (double)m->jitter);
    }
    if ((s->mlp_bias && (s->gated_mlp || m->beside_mlp || m->shared_inter > 0)) || (m->bias && !s->gated_mlp)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "experts beside a gated MLP with biases, or with biases and not gated");
    }
    if (m->scale_input && m->top_k != 1) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "num_experts_per_tok must be 1 where experts' inputs are scaled, got %d",
                          m->top_k);
    }
    if (m->before_attention && (!m->beside_mlp || m->shared_inter > 0 || nrd_spec_is_recurrent(s))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "experts that read what attention reads stand beside an MLP, without shared ones or states");
    }
    if (m->beside_mlp && (!s->pre_norms || s->post_norms == m->before_attention || s->parallel || s->norm != NRD_NORM_RMS || s->norm_bias || m->shared_inter > 0 ||
                          m->score == NRD_MOE_SPARSEMIXER || m->bias || m->sum_bias)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "experts beside an MLP need RMS norms before and behind, no shared experts and no biases");
    }
    return check_ranks(s);
}

void nrd_moe_spec_put(const nrd_moe_spec *m, nrd_str *o)
{
    nrd_str_printf(o, "{\n      \"num_experts\": %d,\n      \"top_k\": %d,\n", m->n_experts, m->top_k);
    nrd_str_printf(o, "      \"intermediate_size\": %d,\n      \"shared_intermediate_size\": %d,\n", m->inter,
                   m->shared_inter);
    nrd_str_printf(o, "      \"shared_gate\": %s,\n      \"score\": \"%s\",\n", m->shared_gate ? "true" : "false",
                   score_names[m->score]);
    nrd_str_printf(o, "      \"score_bias\": %s,\n      \"num_groups\": %d,\n      \"top_groups\": %d,\n",
                   m->score_bias ? "true" : "false", m->n_groups, m->top_groups);
    nrd_str_printf(o, "      \"group_max\": %s,\n", m->group_max ? "true" : "false");
    nrd_str_printf(o, "      \"normalize\": %s,\n      \"scale\": ", m->normalize ? "true" : "false");
    nrd_json_put_float(o, m->scale);
    nrd_str_puts(o, ",\n      \"jitter\": ");
    nrd_json_put_float(o, m->jitter);
    nrd_str_printf(o, ",\n      \"bias\": %s", m->bias ? "true" : "false");
    nrd_str_printf(o, ",\n      \"scale_input\": %s", m->scale_input ? "true" : "false");
    nrd_str_puts(o, m->sum_bias ? ",\n      \"sum_bias\": true" : "");
    nrd_str_puts(o, m->beside_mlp ? ",\n      \"beside_mlp\": true" : "");
    nrd_str_puts(o, m->before_attention ? ",\n      \"before_attention\": true" : "");
    nrd_str_puts(o, "\n    }");
}

/* 32 bits, whatever the file says; the ranges are checked later. */
static int32_t size_of(const nrd_json *o, const char *key, int32_t fallback)
{
    int64_t v = nrd_json_get_int(o, key, fallback);
    return v < 0 || v > INT32_MAX ? -1 : (int32_t)v;
}

nrd_error *nrd_moe_spec_read(const nrd_json *o, nrd_model_spec *s)
{
    nrd_moe_spec *m = &s->moe;
    const char *score = nrd_json_get_str(o, "score", score_names[NRD_MOE_SOFTMAX]);

    s->has_experts = nrd_json_is(o, NRD_JSON_OBJECT);
    if (!s->has_experts) {
        return NULL;
    }
    m->n_experts = size_of(o, "num_experts", 0);
    m->top_k = size_of(o, "top_k", 0);
    m->inter = size_of(o, "intermediate_size", 0);
    m->shared_inter = size_of(o, "shared_intermediate_size", 0);
    m->n_groups = size_of(o, "num_groups", 1);
    m->top_groups = size_of(o, "top_groups", 1);
    m->group_max = nrd_json_get_bool(o, "group_max", false);
    m->shared_gate = nrd_json_get_bool(o, "shared_gate", false);
    m->score_bias = nrd_json_get_bool(o, "score_bias", false);
    m->normalize = nrd_json_get_bool(o, "normalize", false);
    m->scale = (float)nrd_json_get_num(o, "scale", 1);
    m->jitter = (float)nrd_json_get_num(o, "jitter", 0);
    m->bias = nrd_json_get_bool(o, "bias", false);
    m->scale_input = nrd_json_get_bool(o, "scale_input", false);
    m->sum_bias = nrd_json_get_bool(o, "sum_bias", false);
    m->beside_mlp = nrd_json_get_bool(o, "beside_mlp", false);
    m->before_attention = nrd_json_get_bool(o, "before_attention", false);
    for (int i = 0; i < N_SCORES; i++) {
        if (!strcmp(score, score_names[i])) {
            m->score = (nrd_moe_score)i;
            return NULL;
        }
    }
    return nrd_errorf(NRD_ERR_INVALID_ARG, "score must be softmax, sigmoid or sparsemixer, got '%s'",
                      score);
}
