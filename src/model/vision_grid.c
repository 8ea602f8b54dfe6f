/* SPDX-License-Identifier: Apache-2.0
 * Towers for pictures that keep their shape, as config.json and preprocessor_config.json describe them (Qwen2-VL,
 * Qwen2.5-VL, Qwen3-VL, Qwen3.5), and the sizes that pictures are brought to. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <string.h>

enum { MAX_MERGE = 8, MAX_FRAMES = 8, MAX_WINDOW = 1 << 16, HEAD_STEP = 4 /* two axes of whole pairs */, MAX_RATE = 1000 };

typedef enum { NO_QWEN, QWEN2, QWEN2_5, QWEN3 } generation;

/* Its tower is Qwen3-VL's, but that nothing of it goes to layers behind the first one. */
static bool is_qwen3_5(const nrd_json *config)
{
    const char *type = nrd_json_get_str(config, "model_type", "");
    return !strcmp(type, "qwen3_5") || !strcmp(type, "qwen3_5_moe");
}

static generation generation_of(const nrd_json *config)
{
    const char *type = nrd_json_get_str(config, "model_type", "");
    const bool is_3 = !strcmp(type, "qwen3_vl") || !strcmp(type, "qwen3_vl_moe") || is_qwen3_5(config);
    return !strcmp(type, "qwen2_vl") ? QWEN2 : !strcmp(type, "qwen2_5_vl") ? QWEN2_5 : is_3 ? QWEN3 : NO_QWEN;
}

bool nrd_vision_is_grid(const nrd_json *config)
{
    return generation_of(config) != NO_QWEN;
}

/* ---- the tower ---- */

/* Layers in which every patch sees all others; the rest has windows. */
static nrd_error *read_windows(nrd_vision_spec *s, const nrd_json *v)
{
    static const int32_t by_default[] = {7, 15, 23, 31};
    const nrd_json *list = nrd_json_get(v, "fullatt_block_indexes");
    int32_t side = 0;

    NRD_TRY(nrd_vision_get_int(v, "window_size", 112, 1, MAX_WINDOW, &side));
    s->window = side / s->merge / s->patch_size;
    if (s->window < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'window_size' must be at least %d, a square of patches, got %d",
                          s->merge * s->patch_size, side);
    }
    if (list && !nrd_json_is(list, NRD_JSON_ARRAY)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'fullatt_block_indexes' must be a list of layers");
    }
    const size_t n = list ? nrd_json_len(list) : sizeof by_default / sizeof by_default[0];
    for (size_t i = 0; i < n; i++) {
        const int64_t layer = list ? nrd_json_int(nrd_json_at(list, i), -1) : by_default[i];
        if (layer < 0 || (list && layer >= s->n_layers)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'fullatt_block_indexes' has %lld, expected layers from 0 to %d",
                              (long long)layer, s->n_layers - 1);
        }
        if (layer < s->n_layers) {
            s->layer_is_full[layer] = 1;
        }
    }
    return NULL;
}

/* Learned positions, and the layers whose states go to layers of the decoder; n_usual: of 8, 16 and 24, where nothing is said. */
static nrd_error *read_deep(nrd_vision_spec *s, const nrd_json *v, size_t n_usual)
{
    const nrd_json *list = nrd_json_get(v, "deepstack_visual_indexes");
    const bool is_list = nrd_json_is(list, NRD_JSON_ARRAY);
    const size_t n = is_list ? nrd_json_len(list) : n_usual;
    int32_t positions = 0, side = 1;

    NRD_TRY(nrd_vision_get_int(v, "num_position_embeddings", 2304, 1, NRD_VISION_MAX_PATCHES, &positions));
    while (side * side < positions) {
        side++;
    }
    if (side * side != positions || side < 2) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: 'num_position_embeddings' is %d, expected the square of 2 or more",
                          positions);
    }
    s->positions_side = side;
    if ((list && !is_list) || n > NRD_VISION_MAX_DEEP) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'deepstack_visual_indexes' must be a list of at most %d layers",
                          (int)NRD_VISION_MAX_DEEP);
    }
    for (size_t i = 0; i < n; i++) {
        const int64_t layer = is_list ? nrd_json_int(nrd_json_at(list, i), -1) : 8 * (int64_t)(i + 1);
        if (layer < 0 || layer >= s->n_layers || (i > 0 && layer <= s->deep_layers[i - 1])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'deepstack_visual_indexes' has %lld, expected layers from 0 to %d "
                              "that rise", (long long)layer, s->n_layers - 1);
        }
        s->deep_layers[i] = (int32_t)layer;
    }
    s->n_deep = (int32_t)n;
    return NULL;
}

/* The keys are those of the generations: hidden_size is the decoder's in the first one. */
static nrd_error *read_sizes(nrd_vision_spec *s, const nrd_json *v, generation g)
{
    const char *width = g == QWEN2 ? "embed_dim" : "hidden_size";
    int32_t channels = 3;

    NRD_TRY(nrd_vision_get_int(v, "depth|num_hidden_layers", g == QWEN3 ? 27 : 32, 1, NRD_SPEC_MAX_LAYERS, &s->n_layers));
    NRD_TRY(nrd_vision_get_int(v, width, g == QWEN2 ? 1280 : g == QWEN2_5 ? 3584 : 1152, 1, 1 << 16, &s->hidden));
    NRD_TRY(nrd_vision_get_int(v, "num_heads|num_attention_heads", 16, 1, s->hidden, &s->n_heads));
    NRD_TRY(nrd_vision_get_int(v, "in_channels|in_chans", 3, 3, 3, &channels));
    NRD_TRY(nrd_vision_get_int(v, "patch_size", g == QWEN3 ? 16 : 14, 1, NRD_VISION_MAX_SIDE, &s->patch_size));
    NRD_TRY(nrd_vision_get_int(v, "spatial_merge_size", 2, 1, MAX_MERGE, &s->merge));
    NRD_TRY(nrd_vision_get_int(v, "temporal_patch_size", 2, 1, MAX_FRAMES, &s->frames));
    if (s->hidden % s->n_heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: '%s' (%d) must be a multiple of 'num_heads' (%d)", width, s->hidden,
                          s->n_heads);
    }
    const int32_t head = s->hidden / s->n_heads;
    if (head % HEAD_STEP || head > NRD_SPEC_MAX_ROTARY) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: heads of %d numbers; expected a multiple of %d, at most %d", head,
                          (int)HEAD_STEP, (int)NRD_SPEC_MAX_ROTARY);
    }
    const double ratio = nrd_json_get_num(v, "mlp_ratio", 4);
    if (g != QWEN2) {
        return nrd_vision_get_int(v, "intermediate_size", g == QWEN3 ? 4304 : 3420, 1, 1 << 18, &s->inter);
    }
    if (!(ratio > 0) || !(ratio * s->hidden < 1 << 18) || (int32_t)(ratio * s->hidden) < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'mlp_ratio' (%g) makes MLPs of other sizes than 1 to %d", ratio,
                          1 << 18);
    }
    s->inter = (int32_t)(ratio * s->hidden);
    return NULL;
}

static nrd_error *read_video_tower(nrd_vision_spec *s, const nrd_json *config, generation g)
{
    const double rate = nrd_json_get_num(nrd_json_get(config, "vision_config"), "tokens_per_second", 4);

    if (!(rate > 0) || rate > MAX_RATE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'tokens_per_second' is %g, expected more than 0 and at most %d", rate, (int)MAX_RATE);
    }
    s->takes_videos = true;
    s->video.apart = g == QWEN3;
    s->video.tokens_per_second = g == QWEN2_5 ? rate : 0;
    NRD_TRY(nrd_hf_int(config, "video_token_id", is_qwen3_5(config) ? 248057 : 151656, &s->video.token));
    return nrd_vision_in_range("video_token_id", s->video.token, 0, INT32_MAX);
}

static nrd_error *read_tower(nrd_vision_spec *s, const nrd_json *config)
{
    const nrd_json *v = nrd_json_get(config, "vision_config");
    const generation g = generation_of(config);
    const char *act = g == QWEN2 ? "quick_gelu" : g == QWEN2_5 ? "silu" : "gelu_pytorch_tanh";

    s->any_size = s->axes = true;
    s->rms_norm = s->gated = g == QWEN2_5;
    s->patch_bias = g == QWEN3;
    s->rope_base = 10000;
    s->norm_eps = 1e-6f; /* whatever the decoder's is */
    s->projector_act = NRD_ACT_GELU_ERF;
    s->projector_bias = true;
    NRD_TRY(read_sizes(s, v, g));
    NRD_TRY(g == QWEN2_5 ? read_windows(s, v) : NULL);
    NRD_TRY(g == QWEN3 ? read_deep(s, v, is_qwen3_5(config) ? 0 : 3) : NULL);
    NRD_TRY(nrd_vision_get_act(v, "hidden_act", act, &s->act));
    NRD_TRY(nrd_hf_int(config, "image_token_id", is_qwen3_5(config) ? 248056 : 151655, &s->image_token));
    NRD_TRY(nrd_vision_in_range("image_token_id", s->image_token, 0, INT32_MAX));
    return read_video_tower(s, config, g);
}

/* ---- the processor ---- */

/* A key of the processor that says again what the tower says. */
static nrd_error *same(const nrd_json *p, const char *key, int32_t tower)
{
    const int64_t v = nrd_json_get_int(p, key, tower);
    return v == tower ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: '%s' is %lld, and the tower's is %d", key,
                                          (long long)v, tower);
}

static nrd_error *pixels(const nrd_json *p, const char *key, const char *edge, int64_t fallback, int64_t *out)
{
    const nrd_json *size = nrd_json_get(p, "size"), *v = nrd_hf_get(p, key);

    v = v ? v : nrd_hf_get(size, edge);
    v = v ? v : nrd_hf_get(size, key);
    *out = v ? nrd_json_int(v, -1) : fallback;
    return *out >= 1 ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be a number of pixels, at least 1", key);
}

/* The most patches that fit_between() allows: sides that become one square, or that are rounded up, can take it over `most`. */
static int32_t most_patches(const nrd_vision_spec *s, double least, double most)
{
    const double square = s->patch_size * s->merge, aspect = NRD_VISION_MAX_ASPECT;
    const double one_square = square * sqrt(aspect * most), rounded = least + 2 * square * sqrt(aspect * least) + square * square;
    const double all = fmax(most, fmax(one_square, rounded)) / ((double)s->patch_size * s->patch_size);
    const int32_t n = (int32_t)(all < NRD_VISION_MAX_PATCHES ? all : NRD_VISION_MAX_PATCHES);
    return n - n % (s->merge * s->merge);
}

/* The pixels that the tower takes at most. */
static int64_t pixels_bound(const nrd_vision_spec *s)
{
    return (int64_t)NRD_VISION_MAX_PATCHES * s->patch_size * s->patch_size;
}

/* Between how many pixels the processor p brings what comes, of n pictures together; s->most_patches is enough for that, too. */
static nrd_error *read_bounds(nrd_vision_spec *s, const nrd_json *p, const char *file, int32_t n, int64_t *least, int64_t *most)
{
    const int64_t square = (int64_t)s->patch_size * s->merge, bound = n * pixels_bound(s);

    NRD_TRY(nrd_error_wrap(pixels(p, "min_pixels", "shortest_edge", *least, least), "%s", file));
    NRD_TRY(nrd_error_wrap(pixels(p, "max_pixels", "longest_edge", *most, most), "%s", file));
    *most = *most < bound ? *most : bound;
    if (*least > *most || n * square * square > *most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: 'min_pixels' is %lld and 'max_pixels' %lld, at most %lld here; expected room for a square of "
                          "%lld pixels a side between them", file, (long long)*least, (long long)*most, (long long)bound, (long long)square);
    }
    const int32_t patches = most_patches(s, (double)*least / n, (double)*most / n);
    s->most_patches = s->most_patches > patches ? s->most_patches : patches;
    return NULL;
}

static nrd_error *read_input(nrd_vision_spec *s, const nrd_json *p)
{
    const nrd_json *own = nrd_json_get(p, NRD_VISION_VIDEO_PROCESSOR);

    s->input.resize = true;
    NRD_TRY(nrd_vision_read_numbers(s, p));
    if (!nrd_json_get_bool(p, "do_resize", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'do_resize' must be true for this tower");
    }
    NRD_TRY(same(p, "patch_size", s->patch_size));
    NRD_TRY(same(p, "merge_size", s->merge));
    NRD_TRY(same(p, "temporal_patch_size", s->frames));
    s->min_pixels = 56 * 56;
    s->max_pixels = 28 * 28 * 1280;
    NRD_TRY(read_bounds(s, p, "preprocessor_config", 1, &s->min_pixels, &s->max_pixels));
    NRD_TRY(nrd_vision_read_video_numbers(s, p));
    const int64_t side = s->video.apart ? 32 : 28, usual = 128 * side * side;
    s->video.min_pixels = own || usual < s->max_pixels ? usual : s->max_pixels; /* pictures may be smaller than videos usually are */
    s->video.max_pixels = 768 * side * side;
    return read_bounds(s, own ? own : p, own ? "video_preprocessor_config" : "preprocessor_config", s->video.apart ? s->frames : 1,
                       &s->video.min_pixels, &s->video.max_pixels);
}

nrd_error *nrd_vision_read_grid(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor)
{
    NRD_TRY(read_tower(s, config));
    return read_input(s, processor);
}

/* The nearest size of whole squares with `least` to `most` pixels, of n together; counted: n as the processor counts them first. */
static nrd_error *fit_between(const nrd_vision_spec *s, double w, double h, double n, double counted, double least, double most, nrd_vision_grid *out)
{
    const double square = s->patch_size * s->merge;
    double tall = rint(h / square), wide = rint(w / square); /* to even, as Python rounds */

    if (fmax(w, h) > NRD_VISION_MAX_ASPECT * fmin(w, h)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture of %.0f x %.0f pixels; one side may be %d times the other", w, h,
                          (int)NRD_VISION_MAX_ASPECT);
    }
    if (counted * tall * wide * square * square > most) {
        const double by = sqrt(n * h * w / most);
        tall = fmax(1, floor(h / by / square));
        wide = fmax(1, floor(w / by / square));
    } else if (counted * tall * wide * square * square < least) {
        const double by = sqrt(least / (n * h * w));
        tall = ceil(h * by / square);
        wide = ceil(w * by / square);
    }
    if (tall * wide * s->merge * s->merge > s->most_patches) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture of %.0f x %.0f pixels is %.0f patches; at most %d are computed", w, h,
                          tall * wide * s->merge * s->merge, s->most_patches);
    }
    *out = (nrd_vision_grid){.height = (int32_t)tall * s->merge, .width = (int32_t)wide * s->merge};
    return NULL;
}

nrd_error *nrd_vision_fit(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out)
{
    if (s->swin.n_stages) {
        *out = (nrd_vision_grid){.height = s->swin.height, .width = s->swin.width};
        return NULL;
    }
    if (s->bare) {
        return (s->seated ? nrd_vision_fit_pix2struct : nrd_vision_fit_fuyu)(s, width, height, out);
    }
    if (s->sandwiched) {
        return nrd_vision_fit_gemma4(s, width, height, out);
    }
    if (s->longest > 0) {
        return nrd_vision_fit_longest(s, width, height, out);
    }
    return fit_between(s, width, height, 1, 1, (double)s->min_pixels, (double)s->max_pixels, out);
}

nrd_error *nrd_vision_fit_frame(const nrd_vision_spec *s, int32_t n_frames, int32_t width, int32_t height, nrd_vision_grid *out)
{
    const double square = s->patch_size * s->merge, least = (double)s->video.min_pixels, most = (double)s->video.max_pixels;
    double w = width, h = height;

    if (s->tiled) { /* it keeps no shape */
        *out = (nrd_vision_grid){.height = s->image_size / s->patch_size, .width = s->image_size / s->patch_size, .frames = s->frames};
        return NULL;
    }
    if (s->video.apart) {
        const double n = n_frames < s->frames ? s->frames : n_frames, up = fmax(square / h, square / w);
        if (up > 1) {
            w = trunc(w * up);
            h = trunc(h * up);
        }
        NRD_TRY(fit_between(s, w, h, n, rint(n / s->frames) * s->frames, least, fmin(most, n * (double)pixels_bound(s)), out));
    } else {
        NRD_TRY(fit_between(s, w, h, 1, 1, least, most, out));
    }
    out->frames = s->frames;
    return NULL;
}
