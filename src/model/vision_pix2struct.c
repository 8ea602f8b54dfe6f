/* SPDX-License-Identifier: Apache-2.0
 * What Pix2Struct's encoder reads (Lee et al., 2023), as config.json and preprocessor_config.json describe it: patches of a picture that
 * is made as large as there are patches, through one product, with learned rows and columns. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <string.h>

bool nrd_vision_is_pix2struct(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "pix2struct");
}

nrd_error *nrd_vision_read_pix2struct(nrd_vision_spec *s, const nrd_json *config, const nrd_json *p)
{
    const nrd_json *v = nrd_json_get(config, "vision_config"), *text = nrd_json_get(config, "text_config"), *patch = nrd_hf_get(p, "patch_size");
    int32_t numbers = 0, most = 0;

    s->any_size = s->bare = s->seated = s->alone = true;
    s->merge = s->frames = 1;
    NRD_TRY(nrd_vision_get_int(v, "hidden_size", 768, 1, 1 << 16, &s->hidden));
    NRD_TRY(nrd_vision_get_int(v, "seq_len", 4096, 2, NRD_VISION_MAX_PATCHES, &s->n_positions));
    NRD_TRY(nrd_vision_get_int(v, "patch_embed_hidden_size", 768, 3, 3 * 256 * 256, &numbers));
    const int64_t out = nrd_json_get_int(text, "hidden_size", 768);
    if (out != s->hidden) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: 'hidden_size' is %d, and the decoder's is %lld; expected the same", s->hidden,
                          (long long)out);
    }
    s->patch_size = (int32_t)lrint(sqrt(numbers / 3));
    if (3 * s->patch_size * s->patch_size != numbers) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: 'patch_embed_hidden_size' is %d, expected three times the square of a patch's "
                          "side", numbers);
    }
    if (patch && (nrd_json_get_int(patch, "height", -1) != s->patch_size || nrd_json_get_int(patch, "width", -1) != s->patch_size)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: 'patch_size' must have height and width of %d, as the model",
                          s->patch_size);
    }
    if (!nrd_json_get_bool(p, "do_normalize", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'do_normalize' must be true for this model");
    }
    /* a picture's sides have at most so many patches, which rows and columns are counted from 1 for */
    NRD_TRY(nrd_vision_get_int(p, "max_patches", 2048, 1, s->n_positions - 1, &most));
    s->most_patches = most;
    return nrd_vision_get_int(nrd_hf_get(text, "pad_token_id") ? text : config, "pad_token_id", 0, 0, INT32_MAX, &s->image_token);
}

/* The division and the root are those of the processor, in this order. */
nrd_error *nrd_vision_fit_pix2struct(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out)
{
    const double p = s->patch_size, most = s->most_patches, scale = sqrt(most * (p / height) * (p / width));

    *out = (nrd_vision_grid){.height = (int32_t)fmax(fmin(floor(scale * height / p), most), 1),
                             .width = (int32_t)fmax(fmin(floor(scale * width / p), most), 1)};
    if ((int64_t)out->height * out->width > s->most_patches) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture of %d x %d pixels is %d x %d patches; at most %d are computed", width, height,
                          out->width, out->height, s->most_patches);
    }
    return NULL;
}
