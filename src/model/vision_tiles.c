/* SPDX-License-Identifier: Apache-2.0
 * Pictures that are seen as a whole, and as tiles of the tower's size besides (LLaVA-NeXT, LLaVA-OneVision): which sizes there
 * are, which one a picture is brought to, and where its rows are in the tiles. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLACK 1.1 /* lines of states are not shrunk by less */

enum { MAX_TILES = NRD_VISION_MAX_TILES };

static bool is_onevision(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "llava_onevision");
}

bool nrd_vision_is_tiled(const nrd_json *config)
{
    return is_onevision(config) || !strcmp(nrd_json_get_str(config, "model_type", ""), "llava_next");
}

/* ---- configuration ---- */

static nrd_error *add_layout(nrd_vision_spec *s, int64_t high, int64_t wide)
{
    if (high < 1 || wide < 1 || high > MAX_TILES || wide > MAX_TILES || high * wide > MAX_TILES) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'image_grid_pinpoints': %lld x %lld tiles of a picture; at most %d are computed",
                          (long long)high, (long long)wide, (int)MAX_TILES);
    }
    s->layouts[s->n_layouts++] = (nrd_vision_layout){(int16_t)high, (int16_t)wide};
    return NULL;
}

/* Where nothing is said: 1 x 2 to 2 x 2 and three in a row, or all up to 6 x 6. */
static nrd_error *default_layouts(nrd_vision_spec *s, bool onevision)
{
    static const nrd_vision_layout next[] = {{1, 2}, {2, 1}, {2, 2}, {3, 1}, {1, 3}};

    for (int i = 0; i < 36 && onevision; i++) {
        NRD_TRY(add_layout(s, i / 6 + 1, i % 6 + 1));
    }
    for (size_t i = 0; i < sizeof next / sizeof next[0] && !onevision; i++) {
        NRD_TRY(add_layout(s, next[i].high, next[i].wide));
    }
    return NULL;
}

/* Sizes in pixels, [height, width]. */
static nrd_error *read_layouts(nrd_vision_spec *s, const nrd_json *list)
{
    if (!nrd_json_is(list, NRD_JSON_ARRAY) || nrd_json_len(list) < 1 || nrd_json_len(list) > NRD_VISION_MAX_LAYOUTS) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'image_grid_pinpoints' must be a list of 1 to %d sizes", (int)NRD_VISION_MAX_LAYOUTS);
    }
    for (size_t i = 0; i < nrd_json_len(list); i++) {
        const nrd_json *pair = nrd_json_at(list, i);
        const int64_t height = nrd_json_int(nrd_json_at(pair, 0), 0), width = nrd_json_int(nrd_json_at(pair, 1), 0);
        if (nrd_json_len(pair) != 2 || height < 1 || width < 1 || height % s->image_size || width % s->image_size) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'image_grid_pinpoints' has %lld x %lld pixels, expected multiples of the tower's %d",
                              (long long)height, (long long)width, s->image_size);
        }
        NRD_TRY(add_layout(s, height / s->image_size, width / s->image_size));
    }
    return NULL;
}

nrd_error *nrd_vision_read_tiles(nrd_vision_spec *s, const nrd_json *config)
{
    const nrd_json *list = nrd_hf_get(config, "image_grid_pinpoints");
    const bool onevision = is_onevision(config);
    const char *shape = nrd_json_get_str(config, "vision_aspect_ratio", "anyres_max_9");
    char *end = NULL;

    s->tiled = true;
    s->squares_of_several = onevision;
    if (nrd_vision_n_base_rows(s) != nrd_vision_n_patches(s)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'vision_feature_select_strategy' leaves %d of a tile's %d patches; expected all",
                          nrd_vision_n_base_rows(s), nrd_vision_n_patches(s));
    }
    if (onevision) {
        const long most = strncmp(shape, "anyres_max_", 11) ? 0 : strtol(shape + 11, &end, 10);
        if (most < 1 || most > MAX_TILES || *end) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "'vision_aspect_ratio' is '%.40s', expected anyres_max_1 to anyres_max_%d", shape,
                              (int)MAX_TILES);
        }
        s->most_tiles = (int32_t)most;
        s->takes_videos = true;
        s->frames = 1;
        NRD_TRY(nrd_hf_int(config, "video_token_id|video_token_index", 151647, &s->video.token));
        NRD_TRY(nrd_vision_in_range("video_token_id", s->video.token, 0, INT32_MAX));
    }
    return list ? read_layouts(s, list) : default_layouts(s, onevision);
}

/* ---- one picture ---- */

/* The size that keeps most of the picture, and of those the one with the least around it. */
static nrd_vision_layout choose(const nrd_vision_spec *s, int32_t width, int32_t height)
{
    int64_t most = 0, least = INT64_MAX;
    nrd_vision_layout best = s->layouts[0];

    for (int32_t i = 0; i < s->n_layouts; i++) {
        const int64_t wide = (int64_t)s->layouts[i].wide * s->image_size, high = (int64_t)s->layouts[i].high * s->image_size;
        const double scale = fmin((double)wide / width, (double)high / height);
        const int64_t scaled = (int64_t)(width * scale) * (int64_t)(height * scale), all = (int64_t)width * height;
        const int64_t used = scaled < all ? scaled : all, wasted = wide * high - used;
        if (used > most || (used == most && wasted < least)) {
            most = used;
            least = wasted;
            best = s->layouts[i];
        }
    }
    return best;
}

/* Rounded to seven digits first, so that what is nearly whole is whole. */
static int32_t whole(double v)
{
    return (int32_t)(rint(v * 1e7) / 1e7);
}

/* The rows of the tiles that show the picture; the others show what is around it. */
static void keep(nrd_vision_tiles *t, int32_t side, int32_t width, int32_t height)
{
    const int32_t wide = t->wide * side, high = t->high * side;

    t->kept_wide = wide;
    t->kept_high = high;
    if ((double)width / height > (double)wide / high) {
        t->top = (high - whole(height * ((double)wide / width))) / 2;
        t->kept_high = high - 2 * t->top;
    } else {
        t->left = (wide - whole(width * ((double)high / height))) / 2;
        t->kept_wide = wide - 2 * t->left;
    }
}

nrd_error *nrd_vision_tile(const nrd_vision_spec *s, int32_t width, int32_t height, bool alone, nrd_vision_grid *out)
{
    const int32_t side = s->image_size / s->patch_size;
    nrd_vision_tiles *t = &out->tiles;

    if (s->separated) {
        return nrd_vision_tile_phi3(s, width, height, out);
    }
    if (s->tiles_first) {
        (s->in_steps ? nrd_vision_tile_idefics3 : nrd_vision_tile_intern)(s, width, height, out);
        return NULL;
    }
    *out = (nrd_vision_grid){.height = side, .width = side};
    if (s->squares_of_several && !alone) {
        return NULL;
    }
    const nrd_vision_layout best = choose(s, width, height);
    t->high = best.high;
    t->wide = best.wide;
    keep(t, side, width, height);
    t->rows_high = t->kept_high;
    t->rows_wide = t->kept_wide;
    const double by = s->most_tiles ? sqrt((double)t->kept_high * t->kept_wide / ((double)s->most_tiles * side * side)) : 0;
    if (by > SLACK) {
        t->rows_high = (int32_t)(t->kept_high / by);
        t->rows_wide = (int32_t)(t->kept_wide / by);
    }
    if (t->rows_high < 1 || t->rows_wide < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture of %d x %d pixels is too narrow for the tower's tiles", width, height);
    }
    return NULL;
}

int32_t nrd_vision_most_tiled_rows(const nrd_vision_spec *s)
{
    const int32_t side = s->image_size / s->patch_size;
    int32_t most = 0;

    if (s->separated) {
        return nrd_vision_phi3_rows(s, s->layouts[0].high, s->layouts[0].wide);
    }
    if (s->tiles_first) {
        const int32_t n = nrd_vision_most_tiles(s);
        return nrd_vision_n_base_rows(s) * (n > 1 ? 1 + n : 1);
    }
    for (int32_t i = 0; i < s->n_layouts; i++) {
        const int32_t high = s->layouts[i].high * side, area = high * s->layouts[i].wide * side;
        const int32_t few = s->most_tiles ? (int32_t)(SLACK * SLACK * s->most_tiles * side * side) : area;
        const int32_t n = (few < area ? few : area) + high;
        most = n > most ? n : most;
    }
    return nrd_vision_n_base_rows(s) + most;
}

int32_t nrd_vision_most_tiles(const nrd_vision_spec *s)
{
    int32_t most = 0;

    for (int32_t i = 0; i < s->n_layouts; i++) {
        const int32_t n = s->layouts[i].high * s->layouts[i].wide;
        most = n > most ? n : most;
    }
    return most;
}
