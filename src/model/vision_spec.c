/* SPDX-License-Identifier: Apache-2.0
 * The tower as config.json and preprocessor_config.json describe it. */
#include "model/vision.h"

#include "model/families/family.h"
#include "model/vision_internal.h"

#include <string.h>

static bool is_gemma3(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "gemma3");
}

/* Two products, with what lies between, and which states they take. */
static nrd_error *read_products(nrd_vision_spec *s, const nrd_json *config)
{
    const bool onevision = !strcmp(nrd_json_get_str(config, "model_type", ""), "llava_onevision");
    const char *strategy = nrd_json_get_str(config, "vision_feature_select_strategy", onevision ? "full" : "default");

    if (strcmp(strategy, "default") && strcmp(strategy, "full")) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'vision_feature_select_strategy' must be default or full, got '%.40s'", strategy);
    }
    s->skips_first = !strcmp(strategy, "default");
    if (s->skips_first && nrd_vision_n_states(s) < 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'vision_feature_select_strategy' default leaves nothing of a picture");
    }
    NRD_TRY(nrd_vision_get_act(config, "projector_hidden_act", "gelu", &s->projector_act));
    s->projector_bias = nrd_json_get_bool(config, "multimodal_projector_bias", true);
    return NULL;
}

/* mm_tokens_per_image is a square of means of equal squares of patches. */
static nrd_error *read_pool(nrd_vision_spec *s, const nrd_json *config)
{
    const int32_t side = s->image_size / s->patch_size;
    int32_t n = 0, tokens = 1;

    NRD_TRY(nrd_vision_get_int(config, "mm_tokens_per_image", 256, 1, NRD_VISION_MAX_PATCHES, &n));
    while (tokens * tokens < n) {
        tokens++;
    }
    if (tokens * tokens != n || side % tokens) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'mm_tokens_per_image' is %d, expected the square of a divisor of %d patches on a side",
                          n, side);
    }
    s->pool = side / tokens;
    return NULL;
}

static nrd_error *read_tower(nrd_vision_spec *s, const nrd_json *config)
{
    const nrd_json *v = nrd_json_get(config, "vision_config");
    const bool gemma = is_gemma3(config), onevision = !strcmp(nrd_json_get_str(config, "model_type", ""), "llava_onevision");
    const char *type = nrd_json_get_str(v, "model_type", gemma || onevision ? "siglip_vision_model" : "clip_vision_model");

    s->has_class = !strcmp(type, "clip_vision_model");
    if (strcmp(type, "siglip_vision_model") && (!s->has_class || gemma)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: model_type '%.60s' is not supported; known: %ssiglip_vision_model",
                          type, gemma ? "" : "clip_vision_model, ");
    }
    s->both_ways = gemma;
    NRD_TRY(nrd_vision_read_sizes(s, v, s->has_class ? &nrd_vision_usual_clip : &nrd_vision_usual_siglip, &s->n_layers));
    s->norm_eps = (float)nrd_json_get_num(v, "layer_norm_eps", s->has_class ? 1e-5 : 1e-6);
    NRD_TRY(gemma ? read_pool(s, config) : read_products(s, config));
    NRD_TRY(gemma ? NULL : nrd_vision_read_layers(s, config, "vision_feature_layer", s->n_layers, onevision ? -1 : -2));
    NRD_TRY(nrd_vision_get_act(v, "hidden_act", s->has_class ? "quick_gelu" : "gelu_pytorch_tanh", &s->act));
    NRD_TRY(nrd_hf_int(config, "image_token_index|image_token_id", gemma ? 262144 : onevision ? 151646 : 32000, &s->image_token));
    return nrd_vision_in_range("image_token_index", s->image_token, 0, INT32_MAX);
}

nrd_error *nrd_vision_spec_read(nrd_vision_spec *out, bool *out_any, const nrd_json *config, const nrd_json *processor)
{
    *out = (nrd_vision_spec){0};
    if (nrd_vision_is_phi3(config)) {
        *out_any = true;
        return nrd_vision_read_phi3(out, config, processor);
    }
    if (nrd_vision_is_vila(config)) {
        *out_any = true;
        return nrd_vision_read_vila(out, config, processor);
    }
    if (nrd_vision_is_kosmos2(config)) {
        *out_any = true;
        return nrd_vision_read_kosmos2(out, config, processor);
    }
    if (nrd_vision_is_cogvlm(config)) {
        *out_any = true;
        return nrd_vision_read_cogvlm(out, config);
    }
    if (nrd_vision_is_qwen1(config)) {
        *out_any = true;
        return nrd_vision_read_qwen1(out, config);
    }
    if (nrd_vision_is_swin(config)) {
        *out_any = true;
        return nrd_vision_read_swin(out, config, processor);
    }
    if (nrd_vision_is_pix2struct(config)) {
        *out_any = true;
        return nrd_vision_read_pix2struct(out, config, processor);
    }
    if (nrd_vision_is_fuyu(config)) {
        *out_any = true;
        return nrd_vision_read_fuyu(out, config, processor);
    }
    *out_any = nrd_json_is(nrd_json_get(config, "vision_config"), NRD_JSON_OBJECT) &&
               (is_gemma3(config) || nrd_vision_is_paligemma(config) || nrd_vision_is_gemma4(config) || nrd_vision_is_mllama(config) || nrd_vision_is_intern(config) || nrd_vision_is_idefics3(config) || nrd_vision_is_grid(config) || nrd_vision_is_tiled(config) || nrd_vision_is_pixtral(config) ||
                nrd_vision_is_blip2(config) || !strcmp(nrd_json_get_str(config, "model_type", ""), "llava"));
    if (!*out_any) {
        return NULL;
    }
    if (nrd_vision_is_paligemma(config)) {
        return nrd_vision_read_paligemma(out, config, processor);
    }
    if (nrd_vision_is_mllama(config)) {
        return nrd_vision_read_mllama(out, config, processor);
    }
    if (nrd_vision_is_gemma4(config)) {
        return nrd_vision_read_gemma4(out, config, processor);
    }
    if (nrd_vision_is_grid(config)) {
        return nrd_vision_read_grid(out, config, processor);
    }
    if (nrd_vision_is_pixtral(config)) {
        return nrd_vision_read_pixtral(out, config, processor);
    }
    if (nrd_vision_is_idefics3(config)) {
        return nrd_vision_read_idefics3(out, config, processor);
    }
    if (nrd_vision_is_intern(config)) {
        NRD_TRY(nrd_vision_read_intern(out, config, processor));
        return nrd_vision_read_input(out, processor);
    }
    if (nrd_vision_is_blip2(config)) {
        NRD_TRY(nrd_vision_read_blip2(out, config));
        return nrd_vision_read_input(out, processor);
    }
    NRD_TRY(read_tower(out, config));
    NRD_TRY(nrd_vision_is_tiled(config) ? nrd_vision_read_tiles(out, config) : NULL);
    NRD_TRY(nrd_vision_read_input(out, processor));
    return out->takes_videos ? nrd_vision_read_video_numbers(out, processor) : NULL;
}

int32_t nrd_vision_n_rows(const nrd_vision_spec *s)
{
    if (s->any_size) {
        return s->most_patches / (s->merge * s->merge);
    }
    if (s->read_by_layers) {
        return 1 + s->most_tiles * nrd_vision_n_states(s);
    }
    return s->tiled ? nrd_vision_most_tiled_rows(s) : nrd_vision_n_base_rows(s);
}

int32_t nrd_vision_most_tokens(const nrd_vision_spec *s)
{
    const int32_t n = s->named ? s->layouts[0].wide : 0;
    if (s->read_by_layers) {
        return 1;
    }
    const nrd_vision_grid most = {.tiles = {.high = n > 1 ? n : 0, .wide = n > 1 ? n : 0}};
    return nrd_vision_n_rows(s) + nrd_vision_words_around(s, most);
}

int32_t nrd_vision_tokens_of(const nrd_vision_spec *s, nrd_vision_grid grid)
{
    if (s->read_by_layers) {
        return 1;
    }
    return nrd_vision_rows_of(s, grid) + (s->breaks ? grid.height / s->merge : 0) + (s->framed ? 2 : 0) + nrd_vision_words_around(s, grid);
}

int32_t nrd_vision_rows_of(const nrd_vision_spec *s, nrd_vision_grid grid)
{
    const nrd_vision_tiles *t = &grid.tiles;

    if (s->read_by_layers) {
        return 1 + t->high * t->wide * nrd_vision_n_states(s);
    }
    if (s->separated) {
        return nrd_vision_phi3_rows(s, t->high, t->wide);
    }
    if (s->tiles_first) {
        return nrd_vision_n_base_rows(s) * (1 + t->high * t->wide);
    }
    if (s->tiled && grid.frames > 0) {
        const int32_t side = nrd_vision_frame_side(s);
        return side * side + grid.ends;
    }
    if (s->tiled) {
        return nrd_vision_n_base_rows(s) + (t->high ? t->rows_high * (t->rows_wide + 1) : 1);
    }
    return s->any_size ? grid.height * grid.width / (s->merge * s->merge) : nrd_vision_n_rows(s);
}
