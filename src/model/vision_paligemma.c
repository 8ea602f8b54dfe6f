/* SPDX-License-Identifier: Apache-2.0
 * The tower of PaliGemma (Beyer et al., 2024) and PaliGemma 2 as config.json and preprocessor_config.json describe it: SigLIP's states
 * become rows of Gemma by one product, and all tokens of a prompt see each other. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <string.h>

enum { IMAGE = 256000 /* where a file says nothing */ };

bool nrd_vision_is_paligemma(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "paligemma");
}

nrd_error *nrd_vision_read_paligemma(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor)
{
    const nrd_json *v = nrd_json_get(config, "vision_config"), *text = nrd_json_get(config, "text_config");
    const char *type = nrd_json_get_str(v, "model_type", "siglip_vision_model");

    if (strcmp(type, "siglip_vision_model")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: model_type '%.60s' is not supported; known: siglip_vision_model", type);
    }
    if (!nrd_json_get_bool(text, "use_bidirectional_attention", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'use_bidirectional_attention' false is not supported in PaliGemma");
    }
    s->both_ways = s->sees_prompt = s->one_product = s->projector_bias = true;
    s->shuffle = 1;
    NRD_TRY(nrd_vision_read_sizes(s, v, &nrd_vision_usual_siglip, &s->n_layers));
    s->norm_eps = (float)nrd_json_get_num(v, "layer_norm_eps", 1e-6);
    NRD_TRY(nrd_vision_get_act(v, "hidden_act", "gelu_pytorch_tanh", &s->act));
    NRD_TRY(nrd_hf_int(config, "image_token_index|image_token_id", IMAGE, &s->image_token));
    NRD_TRY(nrd_vision_in_range("image_token_index", s->image_token, 0, INT32_MAX));
    return nrd_vision_read_input(s, processor);
}
