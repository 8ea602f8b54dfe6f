/* SPDX-License-Identifier: Apache-2.0
 * The tower of CogVLM (Wang et al., 2023) and CogVLM2 (Hong et al., 2024) as config.json describes it: EVA-02's transformer sees a square, and
 * a gated MLP makes rows of its patches; in CogVLM2 of squares of 2 x 2. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <stdio.h>
#include <string.h>

bool nrd_vision_is_cogvlm(const nrd_json *config)
{
    const char *name = nrd_json_str(nrd_json_at(nrd_json_get(config, "architectures"), 0), "");
    return (!strcmp(nrd_json_get_str(config, "model_type", ""), "cogvlm") || !strcmp(name, "CogVLMForCausalLM")) &&
           nrd_json_is(nrd_json_get(config, "vision_config"), NRD_JSON_OBJECT);
}

nrd_error *nrd_vision_read_cogvlm(nrd_vision_spec *s, const nrd_json *config)
{
    const nrd_json *v = nrd_json_get(config, "vision_config");

    s->has_class = s->post_normed = s->axes = true;
    NRD_TRY(nrd_vision_read_sizes(s, v, &(nrd_vision_usual){490, 14, 1792, 15360, 16, 63}, &s->n_layers));
    s->shuffle = nrd_hf_get(config, "num_multi_query_heads") ? 2 : 0;
    if (s->shuffle && s->image_size / s->patch_size % s->shuffle) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: %d patches on a side, expected an even number", s->image_size / s->patch_size);
    }
    s->norm_eps = (float)nrd_json_get_num(v, "layer_norm_eps", 1e-6);
    NRD_TRY(nrd_vision_get_act(v, "hidden_act", "gelu", &s->act));
    NRD_TRY(nrd_vision_get_int(config, "intermediate_size", 11008, 1, 1 << 18, &s->projector_inter));
    NRD_TRY(nrd_hf_int(config, "pad_token_id", 0, &s->image_token)); /* fills a picture's places in the published code */
    NRD_TRY(nrd_vision_in_range("pad_token_id", s->image_token, 0, INT32_MAX));
    NRD_TRY(nrd_vision_read_numbers(s, NULL)); /* the model has no preprocessor_config.json */
    s->input.resize = s->input.to_square = true;
    s->input.size = s->image_size;
    return NULL;
}

static nrd_error *visit_layer(const nrd_vision_spec *s, int32_t layer, nrd_vision_visitor visit, void *user)
{
    const struct {
        const char *name;
        int64_t rows, cols;
    } parts[] = {
        {"attention.query_key_value", 3 * (int64_t)s->hidden, s->hidden}, {"attention.dense", s->hidden, s->hidden},
        {"input_layernorm", s->hidden, 0}, {"mlp.fc1", s->inter, s->hidden}, {"mlp.fc2", s->hidden, s->inter},
        {"post_attention_layernorm", s->hidden, 0},
    };
    char stem[NRD_VISION_MAX_NAME - 16];

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(stem, sizeof stem, "transformer.layers.%d.%s", layer, parts[i].name);
        NRD_TRY(nrd_vision_visit_pair(visit, user, stem, parts[i].rows, parts[i].cols, true));
    }
    return NULL;
}

nrd_error *nrd_vision_visit_cogvlm(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user)
{
    NRD_TRY(nrd_vision_visit_pair(visit, user, "embeddings.patch_embedding", s->hidden, 3 * (int64_t)s->patch_size * s->patch_size, true));
    NRD_TRY(visit(user, "embeddings.class_embedding", s->hidden, 0));
    NRD_TRY(visit(user, "embeddings.position_embedding.weight", nrd_vision_n_states(s), s->hidden));
    for (int32_t i = 0; i < s->n_layers; i++) {
        NRD_TRY(visit_layer(s, i, visit, user));
    }
    if (s->shuffle) {
        NRD_TRY(nrd_vision_visit_pair(visit, user, "conv", s->hidden, (int64_t)s->hidden * s->shuffle * s->shuffle, true));
    }
    const struct {
        const char *name;
        int64_t rows, cols;
    } parts[] = {
        {"linear_proj.linear_proj.weight", out_hidden, s->hidden}, {"linear_proj.norm1.weight", out_hidden, 0},
        {"linear_proj.norm1.bias", out_hidden, 0}, {"linear_proj.gate_proj.weight", s->projector_inter, out_hidden},
        {"linear_proj.dense_h_to_4h.weight", s->projector_inter, out_hidden}, {"linear_proj.dense_4h_to_h.weight", out_hidden, s->projector_inter},
        {"boi", out_hidden, 0}, {"eoi", out_hidden, 0},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        NRD_TRY(visit(user, parts[i].name, parts[i].rows, parts[i].cols));
    }
    return NULL;
}
