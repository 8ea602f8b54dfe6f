/* SPDX-License-Identifier: Apache-2.0
 * InternVL's tower (Chen et al., 2024) as config.json and preprocessor_config.json describe it, in the form of transformers: squares of
 * patches become rows, and a picture is squeezed into tiles, as many as come nearest to its shape, and seen as a whole besides. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <string.h>

enum { MAX_SHUFFLE = 8 };

bool nrd_vision_is_intern(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "internvl");
}

static nrd_error *read_sizes(nrd_vision_spec *s, const nrd_json *config, const nrd_json *v)
{
    const double ratio = nrd_json_get_num(config, "downsample_ratio", 0.5);
    int32_t n = 0;

    NRD_TRY(nrd_vision_read_sizes(s, v, &(nrd_vision_usual){448, 14, 1024, 4096, 16, 24}, &n));
    s->shuffle = ratio >= 1.0 / MAX_SHUFFLE && ratio <= 1 ? (int32_t)(1 / ratio) : 0;
    if (s->shuffle < 1 || s->image_size / s->patch_size % s->shuffle) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'downsample_ratio' is %g, expected 1 / n of a divisor n of %d patches on a side, at most %d",
                          ratio, s->image_size / s->patch_size, (int)MAX_SHUFFLE);
    }
    s->norm_eps = (float)nrd_json_get_num(v, "layer_norm_eps", 1e-6);
    return nrd_vision_read_layers(s, config, "vision_feature_layer", n, -1);
}

/* What the largest towers of the family have instead is not computed. */
static nrd_error *refuse_others(const nrd_json *config, const nrd_json *v)
{
    static const struct {
        const char *key;
        bool usual, wanted;
    } flags[] = {{"use_qk_norm", false, false}, {"attention_bias", false, true}, {"use_mean_pooling", true, true},
                 {"use_absolute_position_embeddings", true, true}};
    const char *norm = nrd_json_get_str(v, "norm_type", "layer_norm");
    const char *strategy = nrd_json_get_str(config, "vision_feature_select_strategy", "default");

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (nrd_json_get_bool(v, flags[i].key, flags[i].usual) != flags[i].wanted) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: '%s' must be %s", flags[i].key, flags[i].wanted ? "true" : "false");
        }
    }
    if (strcmp(norm, "layer_norm") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: 'norm_type' must be layer_norm, got '%.40s'", norm);
    }
    return strcmp(strategy, "default") ? nrd_errorf(NRD_ERR_UNSUPPORTED, "'vision_feature_select_strategy' must be default before this "
                                                    "tower, got '%.40s'", strategy)
                                       : NULL;
}

/* All shapes of so many tiles, few first. */
static nrd_error *read_layouts(nrd_vision_spec *s, const nrd_json *p)
{
    const int64_t least = nrd_json_get_int(p, "min_patches", 1), most = nrd_json_get_int(p, "max_patches", 12);

    if (least < 1 || most < least || most > NRD_VISION_MAX_TILES) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: 'min_patches' (%lld) must be at least 1, and 'max_patches' (%lld) from "
                          "that to %d", (long long)least, (long long)most, (int)NRD_VISION_MAX_TILES);
    }
    for (int64_t n = least; n <= most; n++) {
        for (int64_t wide = 1; wide <= n; wide++) {
            if (n % wide == 0 && s->n_layouts == NRD_VISION_MAX_LAYOUTS) {
                return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'max_patches' is %lld; at most %d shapes of tiles are computed",
                                  (long long)most, (int)NRD_VISION_MAX_LAYOUTS);
            }
            if (n % wide == 0) {
                s->layouts[s->n_layouts++] = (nrd_vision_layout){(int16_t)(n / wide), (int16_t)wide};
            }
        }
    }
    return NULL;
}

nrd_error *nrd_vision_read_intern(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor)
{
    const nrd_json *v = nrd_json_get(config, "vision_config");

    s->has_class = s->bare_class = s->skips_first = s->tiled = s->tiles_first = s->framed = s->projector_bias = true;
    s->merge_eps = 1e-5f; /* whatever the layers' is */
    NRD_TRY(refuse_others(config, v));
    NRD_TRY(read_sizes(s, config, v));
    NRD_TRY(nrd_vision_get_act(v, "hidden_act", "gelu", &s->act));
    NRD_TRY(nrd_vision_get_act(config, "projector_hidden_act", "gelu", &s->projector_act));
    NRD_TRY(nrd_hf_int(config, "image_token_id|image_token_index", 151667, &s->image_token));
    NRD_TRY(nrd_vision_in_range("image_token_id", s->image_token, 2, INT32_MAX));
    NRD_TRY(nrd_hf_int(config, "image_start_token_id", s->image_token - 2, &s->start_token));
    NRD_TRY(nrd_hf_int(config, "image_end_token_id", s->image_token - 1, &s->end_token));
    NRD_TRY(nrd_vision_in_range("image_start_token_id", s->start_token, 0, INT32_MAX));
    NRD_TRY(nrd_vision_in_range("image_end_token_id", s->end_token, 0, INT32_MAX));
    return read_layouts(s, processor);
}

void nrd_vision_tile_intern(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out)
{
    const int32_t side = s->image_size / s->patch_size;
    const double shape = (double)width / height, area = (double)width * height, tile = (double)s->image_size * s->image_size;
    nrd_vision_layout best = {1, 1};
    nrd_vision_tiles *t = &out->tiles;
    double least = INFINITY;

    *out = (nrd_vision_grid){.height = side, .width = side};
    for (int32_t i = 0; i < s->n_layouts; i++) {
        const nrd_vision_layout l = s->layouts[i];
        const double off = fabs(shape - (double)l.wide / l.high);
        /* of equals the one of more tiles, while these are less than twice the picture */
        if (off < least || (!(off > least) && area > 0.5 * tile * l.wide * l.high)) {
            least = off;
            best = l;
        }
    }
    if (best.high * best.wide > 1) {
        *t = (nrd_vision_tiles){.high = best.high, .wide = best.wide};
        t->kept_high = t->rows_high = best.high * side;
        t->kept_wide = t->rows_wide = best.wide * side;
    }
}
