/* SPDX-License-Identifier: Apache-2.0
 * Rules by which rotary positions reach further than a model was trained for. */
#include "model/arch_rope.h"

#include "model/hf_keys.h"

#include <math.h>
#include <string.h>

static double yarn_mscale(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

static nrd_error *factors(const nrd_json *o, const char *key, int32_t n, float *out)
{
    const nrd_json *v = nrd_json_get(o, key);
    if (!nrd_json_is(v, NRD_JSON_ARRAY) || nrd_json_len(v) != (size_t)n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be a list of %d numbers, half of the rotary dimension",
                          key, n);
    }
    for (int32_t i = 0; i < n; i++) {
        out[i] = (float)nrd_json_num(nrd_json_at(v, (size_t)i), 0);
    }
    return NULL;
}

/* Two sets of factors, and cos and sin grow with the logarithm of how much longer sequences may be (Ding et
 * al., LongRoPE, 2024). */
static nrd_error *longrope(const nrd_json *o, const nrd_model_spec *s, nrd_rope_spec *r)
{
    r->scaling = NRD_ROPE_SCALING_LONGROPE;
    if (r->rotary_dim > NRD_SPEC_MAX_ROTARY) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "a rotary dimension of %d; at most %d", r->rotary_dim,
                          (int)NRD_SPEC_MAX_ROTARY);
    }
    NRD_TRY(factors(o, "short_factor", r->rotary_dim / 2, r->short_factors));
    NRD_TRY(factors(o, "long_factor", r->rotary_dim / 2, r->long_factors));
    /* Phi 3.5 MoE says what cos and sin are multiplied by, for short and for long sequences */
    const double brief = nrd_json_get_num(o, "short_mscale", 0), lengthy = nrd_json_get_num(o, "long_mscale", brief);
    if (brief < lengthy || brief > lengthy) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'short_mscale' (%g) and 'long_mscale' (%g) must be alike", brief, lengthy);
    }
    r->attention_factor = brief > 0 ? brief : r->attention_factor;
    if (r->original_max_positions > 1 && r->attention_factor <= 0) {
        double scale = nrd_json_num(nrd_hf_get(o, "factor"),
                                    (double)s->max_positions / r->original_max_positions);
        r->attention_factor = scale <= 1 ? 1 : sqrt(1 + log(scale) / log((double)r->original_max_positions));
    }
    return NULL;
}

nrd_error *nrd_arch_rope_scaling(const nrd_json *o, const nrd_json *config, const nrd_model_spec *s,
                                 nrd_rope_spec *r)
{
    const char *type = nrd_json_str(nrd_hf_get(o, "rope_type|type"), "default");
    const nrd_json *original = nrd_hf_get(o, "original_max_position_embeddings");

    if (!strcmp(type, "default") || (!strcmp(type, "mrope") && nrd_rope_has_axes(r))) {
        return NULL;
    }
    r->factor = nrd_json_get_num(o, "factor", 1);
    r->low_freq_factor = nrd_json_get_num(o, "low_freq_factor", 1);
    r->high_freq_factor = nrd_json_get_num(o, "high_freq_factor", 4);
    r->beta_fast = nrd_json_get_num(o, "beta_fast", 32);
    r->beta_slow = nrd_json_get_num(o, "beta_slow", 1);
    r->attention_factor = nrd_json_get_num(o, "attention_factor", 0);
    r->keep_fractions = !nrd_json_get_bool(o, "truncate", true);
    NRD_TRY(nrd_hf_int(original ? o : config, "original_max_position_embeddings", s->max_positions,
                       &r->original_max_positions));
    if (!strcmp(type, "linear")) {
        r->scaling = NRD_ROPE_SCALING_LINEAR;
    } else if (!strcmp(type, "dynamic")) { /* grows from the model's own length on */
        r->scaling = NRD_ROPE_SCALING_DYNAMIC;
        r->original_max_positions = s->max_positions;
    } else if (!strcmp(type, "proportional") && r->factor == 1) {
        r->scaling = NRD_ROPE_SCALING_PROPORTIONAL;
        r->factor = nrd_json_get_num(o, "partial_rotary_factor", 1);
    } else if (!strcmp(type, "llama3")) {
        r->scaling = NRD_ROPE_SCALING_LLAMA3;
    } else if (!strcmp(type, "longrope") || !strcmp(type, "su")) {
        return longrope(o, s, r);
    } else if (!strcmp(type, "yarn")) {
        r->scaling = NRD_ROPE_SCALING_YARN;
        double m = nrd_json_get_num(o, "mscale", 0), all = nrd_json_get_num(o, "mscale_all_dim", 0);
        if (r->attention_factor <= 0 && m > 0 && all > 0) {
            r->attention_factor = yarn_mscale(r->factor, m) / yarn_mscale(r->factor, all);
        }
    } else {
        return nrd_errorf(NRD_ERR_UNSUPPORTED,
                          "rope type '%s' is not supported; known: default, linear, dynamic, llama3, "
                          "yarn, longrope",
                          type);
    }
    return NULL;
}
