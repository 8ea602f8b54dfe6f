/* SPDX-License-Identifier: Apache-2.0
 * The tower of Llama 3.2 Vision (Llama team, 2024) as config.json and preprocessor_config.json describe it: a picture keeps its
 * shape in a canvas of tiles, all of which the tower sees at once; its states are read by layers of the decoder. */
#include "base/mem.h"
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <string.h>

enum { MAX_TILES = 8 };

bool nrd_vision_is_mllama(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "mllama");
}

static nrd_error *read_sizes(nrd_vision_spec *s, const nrd_json *v)
{
    NRD_TRY(nrd_vision_read_sizes(s, v, &(nrd_vision_usual){448, 14, 1280, 5120, 16, 32}, &s->n_layers));
    NRD_TRY(nrd_vision_get_int(v, "num_global_layers", 8, 0, NRD_SPEC_MAX_LAYERS - s->n_layers, &s->n_global));
    NRD_TRY(nrd_vision_get_int(v, "max_num_tiles", 4, 1, MAX_TILES, &s->most_tiles));
    NRD_TRY(nrd_vision_in_range("image_size, in patches of all tiles,", (int64_t)s->most_tiles * nrd_vision_n_padded(s), 1, NRD_VISION_MAX_PATCHES));
    s->norm_eps = (float)nrd_json_get_num(v, "norm_eps", 1e-5);
    return NULL;
}

/* The layers whose states, as these read them, stand beside the last one's. */
static nrd_error *read_taken(nrd_vision_spec *s, const nrd_json *v)
{
    static const int32_t usual[] = {3, 7, 15, 23, 30}; /* what transformers means by no list */
    const nrd_json *list = nrd_json_get(v, "intermediate_layers_indices");
    const bool is_list = nrd_json_is(list, NRD_JSON_ARRAY);
    const size_t n = is_list ? nrd_json_len(list) : sizeof usual / sizeof usual[0];
    const int64_t out = nrd_json_get_int(v, "vision_output_dim", (int64_t)s->hidden * (int64_t)(1 + n));

    if (n > NRD_VISION_MAX_DEEP) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: 'intermediate_layers_indices' has %zu layers, at most %d are computed", n,
                          (int)NRD_VISION_MAX_DEEP);
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t layer = is_list ? nrd_json_int(nrd_json_at(list, i), -1) : usual[i];
        if (layer < 0 || layer >= s->n_layers || (i > 0 && layer <= s->taken_layers[i - 1])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'intermediate_layers_indices' must rise from 0 to %d", s->n_layers - 1);
        }
        s->taken_layers[i] = (int32_t)layer;
    }
    s->n_taken = (int32_t)n;
    if (out != (int64_t)s->hidden * (1 + s->n_taken)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'vision_output_dim' is %lld, expected %lld: 'hidden_size' of %d layers",
                          (long long)out, (long long)s->hidden * (1 + s->n_taken), 1 + s->n_taken);
    }
    return NULL;
}

/* All shapes of so many tiles, the low ones first: number i of them has the id 1 + i. */
static nrd_error *read_layouts(nrd_vision_spec *s, const nrd_json *v)
{
    const nrd_json *list = nrd_json_get(v, "supported_aspect_ratios");

    for (int32_t high = 1; high <= s->most_tiles; high++) {
        for (int32_t wide = 1; high * wide <= s->most_tiles; wide++) {
            s->layouts[s->n_layouts++] = (nrd_vision_layout){(int16_t)high, (int16_t)wide};
        }
    }
    for (int32_t i = 0; nrd_json_is(list, NRD_JSON_ARRAY) && i < s->n_layouts; i++) {
        const nrd_json *one = nrd_json_at(list, (size_t)i);
        if ((int32_t)nrd_json_len(list) != s->n_layouts || nrd_json_int(nrd_json_at(one, 0), 0) != s->layouts[i].high ||
            nrd_json_int(nrd_json_at(one, 1), 0) != s->layouts[i].wide) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: 'supported_aspect_ratios' must be all shapes of at most "
                              "'max_num_tiles' (%d) tiles, [1, 1], [1, 2], and so on", s->most_tiles);
        }
    }
    return NULL;
}

static nrd_error *read_input(nrd_vision_spec *s, const nrd_json *p)
{
    static const char *const steps[] = {"do_resize", "do_pad", "do_rescale", "do_normalize"};
    const nrd_json *size = nrd_json_get(p, "size");
    int32_t tiles = 4;

    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (!nrd_json_get_bool(p, steps[i], true)) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: '%s' false is not supported by this tower", steps[i]);
        }
    }
    NRD_TRY(nrd_vision_get_int(p, "max_image_tiles", 4, 1, MAX_TILES, &tiles));
    if (tiles != s->most_tiles || nrd_json_get_int(size, "height", 224) != s->image_size || nrd_json_get_int(size, "width", 224) != s->image_size) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'max_image_tiles' and 'size' must be the tower's: %d tiles of %d x %d "
                          "pixels", s->most_tiles, s->image_size, s->image_size);
    }
    return nrd_vision_read_numbers(s, p);
}

nrd_error *nrd_vision_read_mllama(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor)
{
    const nrd_json *v = nrd_json_get(config, "vision_config");

    s->read_by_layers = true;
    NRD_TRY(read_sizes(s, v));
    NRD_TRY(read_taken(s, v));
    NRD_TRY(nrd_vision_get_act(v, "hidden_act", "gelu", &s->act));
    NRD_TRY(nrd_hf_int(config, "image_token_index|image_token_id", 128256, &s->image_token));
    NRD_TRY(nrd_vision_in_range("image_token_index", s->image_token, 0, INT32_MAX));
    NRD_TRY(read_layouts(s, v));
    return read_input(s, processor);
}

int32_t nrd_vision_n_padded(const nrd_vision_spec *s)
{
    const int32_t side = s->image_size / s->patch_size;
    return (side * side + 1 + 7) / 8 * 8;
}

/* The canvas that makes a picture larger by the least, or, where it is larger than all, smaller by the least; of equals the smallest. */
void nrd_vision_tile_mllama(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out)
{
    const int32_t side = s->image_size / s->patch_size;
    nrd_vision_layout best = s->layouts[0];
    double best_by = 0;

    for (int32_t i = 0; i < s->n_layouts; i++) {
        const nrd_vision_layout l = s->layouts[i];
        const double by_height = (double)(l.high * s->image_size) / height, by_width = (double)(l.wide * s->image_size) / width;
        const double by = by_width > by_height ? by_height : by_width;
        const bool same = !(by < best_by) && !(by > best_by);
        const bool nearer = by >= 1 ? best_by < 1 || by < best_by : best_by < 1 && by > best_by;
        if (i == 0 || (same ? l.high * l.wide < best.high * best.wide : nearer)) {
            best = l;
            best_by = by;
        }
    }
    *out = (nrd_vision_grid){.height = side, .width = side, .tiles = {.high = best.high, .wide = best.wide}};
}

/* A picture's size in its canvas: brought up to a tile's side at least. */
void nrd_vision_fit_canvas(const nrd_vision_spec *s, const nrd_vision_tiles *t, int32_t width, int32_t height, int32_t *out_width,
                           int32_t *out_height)
{
    const int32_t side = s->image_size, wide = t->wide * side, high = t->high * side;
    const int32_t to_width = width < side ? side : width > wide ? wide : width, to_height = height < side ? side : height > high ? high : height;
    const double by_height = (double)to_height / height, by_width = (double)to_width / width;

    *out_width = to_width;
    *out_height = to_height;
    if (by_width < by_height) {
        const double to = floor(height * by_width);
        *out_height = to < 1 ? 1 : to < to_height ? (int32_t)to : to_height;
    } else {
        const double to = floor(width * by_height);
        *out_width = to < 1 ? 1 : to < to_width ? (int32_t)to : to_width;
    }
}
