/* SPDX-License-Identifier: Apache-2.0
 * The tower of VILA 1.5 (Lin et al., 2024) as config.json and the tower's preprocessor_config.json describe it: SigLIP's or CLIP's sees a
 * picture as a square, and squares of 2 x 2 patches become rows; where patches on a side are odd, what is missing is zero. */
#include "base/str.h"
#include "model/arch.h"
#include "model/families/family.h"
#include "model/vision_internal.h"
#include "text/tokenizer.h"

#include <string.h>

#define IMAGE "<image>"
#define KEY "image_token_index"

enum { SHUFFLE = 2, BICUBIC = 3 };

bool nrd_vision_is_vila(const nrd_json *config)
{
    return nrd_arch_decoder_config(config) != config;
}

/* What other models of the same code have. */
static nrd_error *refuse_others(const nrd_vision_spec *s, const nrd_json *config)
{
    const char *aspect = nrd_json_get_str(config, "image_aspect_ratio", "square");
    const char *feature = nrd_json_get_str(config, "mm_vision_select_feature", "patch"), *wanted = s->has_class ? "patch" : "cls_patch";
    const int64_t side = nrd_json_get_int(config, "vision_resolution", -1);

    if (nrd_json_get_bool(config, "s2", false)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'s2', pictures that are seen in several sizes, is not supported");
    }
    if (nrd_hf_get(config, "image_encoder")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'image_encoder' (NVILA) is not supported");
    }
    if (strcmp(aspect, "resize") && strcmp(aspect, "pad") && strcmp(aspect, "square")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'image_aspect_ratio' must be resize, pad or square, got '%.40s'", aspect);
    }
    if (strcmp(feature, wanted) != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'mm_vision_select_feature' must be %s for this tower, got '%.40s'", wanted, feature);
    }
    return side != -1 && side != s->image_size
               ? nrd_errorf(NRD_ERR_UNSUPPORTED, "'vision_resolution' is %lld, and the tower's pictures have %d pixels a side", (long long)side,
                            s->image_size)
               : NULL;
}

static nrd_error *read_tower(nrd_vision_spec *s, const nrd_json *config)
{
    const nrd_json *v = nrd_json_get(config, "vision_tower_cfg");
    const char *type = nrd_json_get_str(v, "model_type", "");
    int32_t n = 0;

    s->has_class = s->skips_first = !strcmp(type, "clip_vision_model");
    if (!s->has_class && strcmp(type, "siglip_vision_model") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_tower_cfg: model_type '%.60s' is not supported; known: clip_vision_model, "
                          "siglip_vision_model", type);
    }
    NRD_TRY(nrd_vision_read_sizes(s, v, s->has_class ? &nrd_vision_usual_clip : &nrd_vision_usual_siglip, &n));
    s->norm_eps = (float)nrd_json_get_num(v, "layer_norm_eps", s->has_class ? 1e-5 : 1e-6);
    NRD_TRY(nrd_vision_get_act(v, "hidden_act", s->has_class ? "quick_gelu" : "gelu_pytorch_tanh", &s->act));
    return nrd_vision_read_layers(s, config, "mm_vision_select_layer", n, -2);
}

nrd_error *nrd_vision_read_vila(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor)
{
    s->shuffle = SHUFFLE;
    s->projector_bias = true;
    s->projector_act = NRD_ACT_GELU_ERF;
    s->merge_eps = 1e-5f;
    NRD_TRY(read_tower(s, config));
    NRD_TRY(refuse_others(s, config));
    s->image_token = (int32_t)nrd_json_get_int(config, KEY, -1); /* a folder of Hugging Face does not say it */
    NRD_TRY(nrd_vision_read_input(s, processor));
    const char *aspect = nrd_json_get_str(config, "image_aspect_ratio", "square");
    s->padded = !strcmp(aspect, "pad");
    if (!strcmp(aspect, "resize")) { /* as Pillow does where it is not told how; to the processor it has its size already */
        s->input.resize = s->input.to_square = true;
        s->input.crop = false;
        s->input.size = s->image_size;
        s->input.filter = BICUBIC;
    }
    return NULL;
}

nrd_error *nrd_vision_put_vila(const char *path, nrd_str *out)
{
    nrd_tokenizer *t = NULL;

    NRD_TRY(nrd_tokenizer_open(&t, path)); /* which adds the word where it is missing */
    nrd_str_printf(out, ", \"" KEY "\": %d", nrd_tokenizer_token_id(t, IMAGE, strlen(IMAGE)));
    nrd_tokenizer_close(t);
    return nrd_str_error(out);
}
