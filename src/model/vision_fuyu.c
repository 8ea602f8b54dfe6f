/* SPDX-License-Identifier: Apache-2.0
 * Fuyu (Bavishi et al., 2023), as config.json and preprocessor_config.json describe it: no tower, patches go through one product. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <string.h>

enum { IMAGE_TOKEN = 71011, NEWLINE_TOKEN = 71019 }; /* |SPEAKER| and |NEWLINE| of the published model */

bool nrd_vision_is_fuyu(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "fuyu");
}

static nrd_error *read_patches(nrd_vision_spec *s, const nrd_json *config)
{
    int32_t channels = 3;

    s->any_size = s->bare = s->breaks = true;
    s->merge = s->frames = 1;
    NRD_TRY(nrd_vision_get_int(config, "patch_size", 30, 1, NRD_VISION_MAX_SIDE, &s->patch_size));
    NRD_TRY(nrd_vision_get_int(config, "num_channels", 3, 3, 3, &channels));
    NRD_TRY(nrd_vision_get_int(config, "image_token_id", IMAGE_TOKEN, 0, INT32_MAX, &s->image_token));
    NRD_TRY(nrd_vision_get_int(config, "image_break_token_id", NEWLINE_TOKEN, 0, INT32_MAX, &s->break_token));
    return nrd_vision_get_int(config, "image_end_token_id", s->break_token, 0, INT32_MAX, &s->end_token);
}

/* The box that pictures are brought into where they are larger: whole patches. */
static nrd_error *read_box(nrd_vision_spec *s, const nrd_json *size)
{
    const int64_t width = nrd_json_get_int(size, "width", size ? -1 : 1920), height = nrd_json_get_int(size, "height", size ? -1 : 1080);
    const int32_t p = s->patch_size;

    if (width < p || height < p || width > NRD_VISION_MAX_SIDE || height > NRD_VISION_MAX_SIDE || width % p || height % p) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'size' must have height and width, multiples of the patches' %d pixels, "
                          "at most %d; got %lld and %lld", p, (int)NRD_VISION_MAX_SIDE, (long long)height, (long long)width);
    }
    s->box_width = (int32_t)width;
    s->box_height = (int32_t)height;
    s->most_patches = (int32_t)(width / p * (height / p));
    return nrd_vision_in_range("size, in patches,", s->most_patches, 1, NRD_VISION_MAX_PATCHES);
}

nrd_error *nrd_vision_read_fuyu(nrd_vision_spec *s, const nrd_json *config, const nrd_json *p)
{
    const nrd_json *patch = nrd_hf_get(p, "patch_size");
    const double padding = nrd_json_get_num(p, "padding_value", 1);

    NRD_TRY(read_patches(s, config));
    NRD_TRY(nrd_vision_read_numbers(s, p));
    NRD_TRY(read_box(s, nrd_hf_get(p, "size")));
    if (!nrd_json_get_bool(p, "do_resize", true) || !nrd_json_get_bool(p, "do_pad", true) ||
        strcmp(nrd_json_get_str(p, "padding_mode", "constant"), "constant") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'do_resize' and 'do_pad' must be true and 'padding_mode' constant for "
                          "this model");
    }
    if (patch && (nrd_json_get_int(patch, "height", -1) != s->patch_size || nrd_json_get_int(patch, "width", -1) != s->patch_size)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: 'patch_size' must have height and width of %d, as the model",
                          s->patch_size);
    }
    if (!(padding >= 0 && padding <= UINT8_MAX) || floor(padding) < padding) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'padding_value' must be a whole number from 0 to 255, got %g", padding);
    }
    s->padding = (uint8_t)padding; /* of pixels as they are before they are scaled */
    return NULL;
}

void nrd_vision_fit_box(const nrd_vision_spec *s, int32_t width, int32_t height, int32_t *out_width, int32_t *out_height)
{
    const double by = fmin((double)s->box_height / height, (double)s->box_width / width);

    *out_width = by < 1 ? (int32_t)(width * by) : width;
    *out_height = by < 1 ? (int32_t)(height * by) : height;
}

nrd_error *nrd_vision_fit_fuyu(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out)
{
    const int32_t p = s->patch_size;
    int32_t w, h;

    nrd_vision_fit_box(s, width, height, &w, &h);
    if (w < 1 || h < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture of %d x %d pixels is nothing once it fits into %d x %d", width, height, s->box_width,
                          s->box_height);
    }
    *out = (nrd_vision_grid){.height = (h - 1) / p + 1, .width = (w - 1) / p + 1};
    return NULL;
}
