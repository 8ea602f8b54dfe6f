/* SPDX-License-Identifier: Apache-2.0
 * The tower of Idefics3 (Laurençon et al., 2024) and SmolVLM (Marafioti et al., 2025) as config.json and preprocessor_config.json describe
 * it: SigLIP's, of which all layers and the norm behind them are taken; squares of patches side by side become rows by one product. A picture
 * is cut into tiles, and seen as a whole besides. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <string.h>

enum { MAX_SHUFFLE = 8, MAX_TILES_SIDE = 8 };

_Static_assert((int)MAX_TILES_SIDE * (int)MAX_TILES_SIDE <= (int)NRD_VISION_MAX_TILES, "a picture has no more tiles");

bool nrd_vision_is_idefics3(const nrd_json *config)
{
    const char *type = nrd_json_get_str(config, "model_type", "");
    return !strcmp(type, "idefics3") || !strcmp(type, "smolvlm");
}

/* ---- the tower ---- */

/* Published code puts patch i of n on a side at the place that i / n has among the multiples of 1 / n, in float32: that is i but for sides
 * where rounding makes two patches one, and which these are depends on how many numbers a vector has. `lanes`: of such a vector. */
static bool places_are_plain(int32_t n, int32_t lanes)
{
    const double step = 1.0 / n;

    for (int32_t i = 0; i < n; i++) {
        const float at = fminf((float)i * (1.0f / (float)n), (float)(1.0 - 1e-6));
        int32_t place = 0;
        for (int32_t k = 0; k < n - 1; k++) {
            const float base = (float)(step + step * (k - k % lanes)), bound = (float)((double)base + step * (k % lanes));
            place += bound <= at;
        }
        if (place != i) {
            return false;
        }
    }
    return true;
}

static nrd_error *read_sizes(nrd_vision_spec *s, const nrd_json *config, const nrd_json *v)
{
    NRD_TRY(nrd_vision_read_sizes(s, v, &(nrd_vision_usual){224, 32, 1152, 3072, 16, 12}, &s->n_layers));
    NRD_TRY(nrd_vision_get_int(config, "scale_factor", 2, 1, MAX_SHUFFLE, &s->shuffle));
    const int32_t side = s->image_size / s->patch_size;
    if (side % s->shuffle) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'scale_factor' is %d, expected a divisor of %d patches on a side", s->shuffle, side);
    }
    if (!places_are_plain(side, 1) || !places_are_plain(side, 8) || !places_are_plain(side, 16)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: 'image_size' / 'patch_size' is %d: with so many patches on a side the places "
                          "of patches depend on rounding; those of the published models (26, 27, 32) do not", side);
    }
    s->norm_eps = (float)nrd_json_get_num(v, "layer_norm_eps", 1e-6);
    return NULL;
}

/* ---- pictures ---- */

/* An object with longest_edge. */
static nrd_error *read_longest(const nrd_json *p, const char *key, int32_t fallback, int32_t *out)
{
    const nrd_json *size = nrd_hf_get(p, key);
    const int64_t edge = size ? nrd_json_get_int(size, "longest_edge", -1) : fallback;

    if (edge < 1 || edge > NRD_VISION_MAX_SIDE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: '%s' must have longest_edge, 1 to %d pixels", key,
                          (int)NRD_VISION_MAX_SIDE);
    }
    *out = (int32_t)edge;
    return NULL;
}

static int32_t tiles_along(const nrd_vision_spec *s, int32_t pixels)
{
    return pixels > s->image_size ? (pixels + s->image_size - 1) / s->image_size : 1;
}

static nrd_error *read_input(nrd_vision_spec *s, const nrd_json *p)
{
    int32_t tile = 0;

    s->input.resize = true;
    NRD_TRY(nrd_vision_read_numbers(s, p));
    NRD_TRY(read_longest(p, "size", 4 * 364, &s->longest));
    NRD_TRY(read_longest(p, "max_image_size", 364, &tile));
    s->splits = nrd_json_get_bool(p, "do_image_splitting", true);
    if (!nrd_json_get_bool(p, "do_resize", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'do_resize' must be true for this tower");
    }
    if (tile != s->image_size) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'max_image_size' is %d, and the tower's pictures have %d pixels on a side",
                          tile, s->image_size);
    }
    const int32_t n = s->splits ? tiles_along(s, s->longest + s->longest % 2) : 1; /* the shorter side of a square is made even */
    if (n > MAX_TILES_SIDE) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'size' of %d pixels is %d tiles on a side; at most %d are computed",
                          s->longest, n, (int)MAX_TILES_SIDE);
    }
    s->layouts[s->n_layouts++] = (nrd_vision_layout){(int16_t)n, (int16_t)n};
    return NULL;
}

nrd_error *nrd_vision_read_idefics3(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor)
{
    const nrd_json *v = nrd_json_get(config, "vision_config");
    const char *type = nrd_json_get_str(v, "model_type", "");

    if (*type && strcmp(type, "idefics3_vision") != 0 && strcmp(type, "smolvlm_vision") != 0 && strcmp(type, "idefics3") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: model_type '%.60s' is not supported; known: idefics3_vision, smolvlm_vision",
                          type);
    }
    s->tiled = s->tiles_first = s->in_steps = s->one_product = s->named = true;
    NRD_TRY(read_sizes(s, config, v));
    NRD_TRY(nrd_vision_get_act(v, "hidden_act", "gelu_pytorch_tanh", &s->act));
    NRD_TRY(nrd_hf_int(config, "image_token_id", 128257, &s->image_token));
    NRD_TRY(nrd_vision_in_range("image_token_id", s->image_token, 0, INT32_MAX));
    NRD_TRY(read_input(s, processor));
    NRD_TRY(nrd_vision_read_words(&s->words, config));
    const int32_t most = s->layouts[0].wide;
    if (s->words.side > 0 && s->words.side != most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "there are words for %d x %d tiles, and pictures have %d x %d; build the engine again",
                          s->words.side, s->words.side, most, most);
    }
    return NULL;
}

/* As published: in doubles, each step from what the one before made. */
void nrd_vision_first_size(const nrd_vision_spec *s, int32_t width, int32_t height, int32_t *out_width, int32_t *out_height)
{
    const double shape = (double)width / height;
    int32_t w = s->longest, h = s->longest;

    if (width >= height) {
        h = (int32_t)(w / shape);
        h += h % 2;
    } else {
        w = (int32_t)(h * shape);
        w += w % 2;
    }
    *out_width = w < 1 ? 1 : w;
    *out_height = h < 1 ? 1 : h;
}

void nrd_vision_tile_idefics3(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out)
{
    const int32_t side = s->image_size / s->patch_size;
    nrd_vision_tiles *t = &out->tiles;
    int32_t w, h;

    *out = (nrd_vision_grid){.height = side, .width = side};
    nrd_vision_first_size(s, width, height, &w, &h);
    const double shape = (double)w / h;
    int32_t wide = tiles_along(s, w), high = tiles_along(s, h);
    if (w >= h) { /* the longer side is filled up, and the other one to the same shape first */
        high = tiles_along(s, (int32_t)(wide * s->image_size / shape));
    } else {
        wide = tiles_along(s, (int32_t)(high * s->image_size * shape));
    }
    if (s->splits && high * wide > 1) {
        *t = (nrd_vision_tiles){.high = high, .wide = wide};
        t->kept_high = t->rows_high = high * side;
        t->kept_wide = t->rows_wide = wide * side;
    }
}
