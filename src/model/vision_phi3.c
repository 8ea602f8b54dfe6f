/* SPDX-License-Identifier: Apache-2.0
 * The tower of Phi-3-vision and Phi-3.5-vision (Abdin et al., 2024) as config.json and preprocessor_config.json describe it: CLIP's sees
 * tiles of a picture and the whole of it; squares of patches become rows, each line of which ends with one that is learned. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <string.h>

enum { MERGE = 2, IMAGE_TOKEN = 32044 /* <|image|>; config.json does not name it */ };

bool nrd_vision_is_phi3(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "phi3_v");
}

/* What published code has for other towers and other ways to put tiles together. */
static nrd_error *refuse_others(const nrd_json *config)
{
    const nrd_json *img = nrd_json_get(config, "img_processor"), *embd = nrd_json_get(config, "embd_layer");
    const struct {
        const nrd_json *in;
        const char *at, *key, *usual, *wanted;
    } words[] = {
        {img, "img_processor", "name", "clip_vision_model", "clip_vision_model"},
        {img, "img_processor", "type_feature", "patch", "patch"},
        {embd, "embd_layer", "hd_transform_order", "glb_sub", "sub_glb"},
        {embd, "embd_layer", "projection_cls", "linear", "mlp"},
    };
    static const char *const flags[] = {"use_hd_transform", "with_learnable_separator"};

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        const char *got = nrd_json_get_str(words[i].in, words[i].key, words[i].usual);
        if (strcmp(got, words[i].wanted) != 0) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "%s: '%s' must be %s, got '%.40s'", words[i].at, words[i].key, words[i].wanted, got);
        }
    }
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (!nrd_json_get_bool(embd, flags[i], false)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "embd_layer: '%s' must be true", flags[i]);
        }
    }
    return NULL;
}

/* Published folders do not say how large the tower is: it is ViT-L/14 for 336 pixels. A `vision_config` says it. */
static nrd_error *read_tower(nrd_vision_spec *s, const nrd_json *config)
{
    const nrd_json *v = nrd_json_get(config, "vision_config"), *img = nrd_json_get(config, "img_processor");
    int32_t n = 0;

    NRD_TRY(nrd_vision_read_sizes(s, v, &nrd_vision_usual_clip, &n));
    const int32_t side = s->image_size / s->patch_size, out = (int32_t)nrd_json_get_int(img, "image_dim_out", s->hidden);
    const int64_t layer = nrd_json_get_int(img, "layer_idx", -2), taken = layer < 0 ? n + 1 + layer : layer;
    if (side % MERGE) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: 'image_size' / 'patch_size' is %d, expected an even number", side);
    }
    if (out != s->hidden) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "img_processor: 'image_dim_out' is %d, and the tower's states have %d numbers", out, s->hidden);
    }
    if (taken < 1 || taken > n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "img_processor: 'layer_idx' is %lld, expected -%d to %d but 0", (long long)layer, n, n);
    }
    s->n_layers = (int32_t)taken;
    s->norm_eps = (float)nrd_json_get_num(v, "layer_norm_eps", 1e-5);
    return nrd_vision_get_act(v, "hidden_act", "quick_gelu", &s->act);
}

nrd_error *nrd_vision_read_phi3(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor)
{
    s->has_class = s->skips_first = s->tiled = s->separated = s->projector_bias = true;
    s->shuffle = MERGE;
    s->projector_act = NRD_ACT_GELU_ERF;
    NRD_TRY(refuse_others(config));
    NRD_TRY(read_tower(s, config));
    NRD_TRY(nrd_hf_int(config, "image_token_id|image_token_index", IMAGE_TOKEN, &s->image_token));
    NRD_TRY(nrd_vision_in_range("image_token_id", s->image_token, 0, INT32_MAX));
    NRD_TRY(nrd_hf_int(processor, "num_crops", 1, &s->most_tiles));
    if (s->most_tiles < 1 || s->most_tiles > NRD_VISION_MAX_TILES) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'num_crops' is %d; 1 to %d are computed", s->most_tiles,
                          (int)NRD_VISION_MAX_TILES);
    }
    s->layouts[s->n_layouts++] = (nrd_vision_layout){(int16_t)s->most_tiles, 1}; /* the one with most lines */
    return nrd_vision_read_numbers(s, processor);
}

/* As published, in doubles: as many tiles along the longer side as there may be. */
void nrd_vision_long_size(const nrd_vision_spec *s, int32_t width, int32_t height, int32_t *out_long, int32_t *out_short)
{
    const double shape = width < height ? (double)height / width : (double)width / height;
    int32_t n = 1;

    while ((n + 1) * ceil((n + 1) / shape) <= s->most_tiles) {
        n++;
    }
    *out_long = n * s->image_size;
    *out_short = (int32_t)(*out_long / shape);
}

nrd_error *nrd_vision_tile_phi3(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out)
{
    const int32_t side = s->image_size / s->patch_size, rows = side / s->shuffle;
    nrd_vision_tiles *t = &out->tiles;
    int32_t to_long, to_short;

    *out = (nrd_vision_grid){.height = side, .width = side};
    nrd_vision_long_size(s, width, height, &to_long, &to_short);
    if (to_short < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture of %d x %d pixels is nothing once its longer side is %d", width, height, to_long);
    }
    const int32_t along = to_long / s->image_size, across = (to_short + s->image_size - 1) / s->image_size;
    t->high = width < height ? along : across;
    t->wide = width < height ? across : along;
    t->kept_high = t->rows_high = t->high * rows;
    t->kept_wide = t->rows_wide = t->wide * rows;
    return NULL;
}

int32_t nrd_vision_phi3_rows(const nrd_vision_spec *s, int32_t high, int32_t wide)
{
    const int32_t rows = s->image_size / s->patch_size / s->shuffle;
    return high * rows * (wide * rows + 1) + 1 + rows * (rows + 1);
}
