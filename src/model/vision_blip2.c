/* SPDX-License-Identifier: Apache-2.0
 * BLIP-2's tower (Li et al., 2023) as config.json and preprocessor_config.json describe it: EVA's vision transformer sees a square, and a
 * few learned queries read its states (Q-Former): what they become are the decoder's rows. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <stdio.h>
#include <string.h>

bool nrd_vision_is_blip2(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "blip-2");
}

static nrd_error *read_tower(nrd_vision_spec *s, const nrd_json *v)
{
    NRD_TRY(nrd_vision_read_sizes(s, v, &(nrd_vision_usual){224, 14, 1408, 6144, 16, 39}, &s->n_layers));
    if (!nrd_json_get_bool(v, "qkv_bias", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: 'qkv_bias' must be true");
    }
    s->norm_eps = (float)nrd_json_get_num(v, "layer_norm_eps", 1e-6);
    return nrd_vision_get_act(v, "hidden_act", "gelu", &s->act);
}

static nrd_error *read_queries(nrd_vision_spec *s, const nrd_json *config)
{
    const nrd_json *q = nrd_json_get(config, "qformer_config");
    nrd_vision_queries *x = &s->queries;

    NRD_TRY(nrd_vision_get_int(config, "num_query_tokens", 32, 1, nrd_vision_n_states(s), &x->n)); /* rows have room where states had it */
    NRD_TRY(nrd_vision_get_int(q, "hidden_size", 768, 1, 1 << 16, &x->hidden));
    NRD_TRY(nrd_vision_get_int(q, "intermediate_size", 3072, 1, 1 << 18, &x->inter));
    NRD_TRY(nrd_vision_get_int(q, "num_attention_heads", 12, 1, x->hidden, &x->n_heads));
    NRD_TRY(nrd_vision_get_int(q, "num_hidden_layers", 12, 1, NRD_SPEC_MAX_LAYERS, &x->n_layers));
    NRD_TRY(nrd_vision_get_int(q, "cross_attention_frequency", 2, 1, NRD_SPEC_MAX_LAYERS, &x->every));
    NRD_TRY(nrd_vision_check_heads("qformer_config", x->hidden, x->n_heads));
    if (nrd_json_get_bool(q, "use_qformer_text_input", false)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "qformer_config: 'use_qformer_text_input' is not supported: queries that read the text");
    }
    x->norm_eps = (float)nrd_json_get_num(q, "layer_norm_eps", 1e-12);
    return nrd_vision_get_act(q, "hidden_act", "gelu", &x->act);
}

nrd_error *nrd_vision_read_blip2(nrd_vision_spec *s, const nrd_json *config)
{
    s->has_class = s->bare_class = true;
    NRD_TRY(read_tower(s, nrd_json_get(config, "vision_config")));
    NRD_TRY(read_queries(s, config));
    NRD_TRY(nrd_hf_int(config, "image_token_index|image_token_id", -1, &s->image_token));
    if (s->image_token < 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "config.json has no 'image_token_index': the id of the token that stands for a picture, "
                          "as newer versions of the model's folder have it");
    }
    return NULL;
}

static nrd_error *visit_attention(const nrd_vision_queries *x, const char *at, int64_t from, nrd_vision_visitor visit, void *user)
{
    const struct {
        const char *name;
        int64_t cols;
    } parts[] = {{"attention.query", x->hidden}, {"attention.key", from}, {"attention.value", from}, {"output.dense", x->hidden},
                 {"output.LayerNorm", 0}};
    char stem[NRD_VISION_MAX_NAME - 16];

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(stem, sizeof stem, "%s.%s", at, parts[i].name);
        NRD_TRY(nrd_vision_visit_pair(visit, user, stem, x->hidden, parts[i].cols, true));
    }
    return NULL;
}

nrd_error *nrd_vision_visit_queries(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user)
{
    const nrd_vision_queries *x = &s->queries;
    char at[64], stem[NRD_VISION_MAX_NAME - 16];

    NRD_TRY(nrd_vision_visit_pair(visit, user, "post_layernorm", s->hidden, 0, true));
    NRD_TRY(visit(user, "query_tokens", x->n, x->hidden));
    NRD_TRY(nrd_vision_visit_pair(visit, user, "qformer.layernorm", x->hidden, 0, true));
    for (int32_t i = 0; i < x->n_layers; i++) {
        const struct {
            const char *name;
            int64_t rows, cols;
        } parts[] = {{"intermediate_query.dense", x->inter, x->hidden}, {"output_query.dense", x->hidden, x->inter},
                     {"output_query.LayerNorm", x->hidden, 0}};
        snprintf(at, sizeof at, "qformer.encoder.layer.%d.attention", i);
        NRD_TRY(visit_attention(x, at, x->hidden, visit, user));
        snprintf(at, sizeof at, "qformer.encoder.layer.%d.crossattention", i);
        NRD_TRY(i % x->every ? NULL : visit_attention(x, at, s->hidden, visit, user));
        for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
            snprintf(stem, sizeof stem, "qformer.encoder.layer.%d.%s", i, parts[k].name);
            NRD_TRY(nrd_vision_visit_pair(visit, user, stem, parts[k].rows, parts[k].cols, true));
        }
    }
    return nrd_vision_visit_pair(visit, user, "language_projection", out_hidden, x->hidden, true);
}
