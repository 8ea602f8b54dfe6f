/* SPDX-License-Identifier: Apache-2.0
 * What towers of all kinds have: keys and sizes within their limits, the numbers of a processor, and how many rows there are. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* OpenAI's pictures: what transformers takes where a file says nothing. */
static const float clip_mean[3] = {0.48145466f, 0.4578275f, 0.40821073f};
static const float clip_deviation[3] = {0.26862954f, 0.26130258f, 0.27577711f};
static const float half[3] = {0.5f, 0.5f, 0.5f}; /* SigLIP's */

nrd_error *nrd_vision_in_range(const char *key, int64_t v, int64_t least, int64_t most)
{
    return v >= least && v <= most ? NULL
                                   : nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: '%.*s' must be between %lld and %lld, got %lld",
                                                (int)strcspn(key, "|"), key, (long long)least, (long long)most, (long long)v);
}

nrd_error *nrd_vision_get_int(const nrd_json *c, const char *key, int64_t fallback, int64_t least, int64_t most, int32_t *out)
{
    NRD_TRY(nrd_error_wrap(nrd_hf_int(c, key, fallback, out), "vision_config"));
    return nrd_vision_in_range(key, *out, least, most);
}

nrd_error *nrd_vision_get_act(const nrd_json *c, const char *key, const char *fallback, nrd_act_kind *out)
{
    const char *name = nrd_json_get_str(c, key, fallback);
    bool gated = false;
    if (!nrd_act_parse(name, out, &gated) || gated) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s': '%.40s' is not supported in a vision tower", key, name);
    }
    return NULL;
}

const nrd_vision_usual nrd_vision_usual_clip = {336, 14, 1024, 4096, 16, 24};
const nrd_vision_usual nrd_vision_usual_siglip = {224, 16, 768, 3072, 12, 12};

nrd_error *nrd_vision_check_heads(const char *of, int32_t hidden, int32_t n_heads)
{
    return hidden % n_heads ? nrd_errorf(NRD_ERR_INVALID_ARG, "%s: 'hidden_size' (%d) must be a multiple of 'num_attention_heads' (%d)",
                                         of, hidden, n_heads)
                            : NULL;
}

/* A side, or two that are the same. */
static nrd_error *read_side(const nrd_json *v, const char *key, int32_t fallback, int64_t most, int32_t *out)
{
    const nrd_json *value = nrd_json_get(v, key);

    if (!nrd_json_is(value, NRD_JSON_ARRAY)) {
        return nrd_vision_get_int(v, key, fallback, 1, most, out);
    }
    const int64_t side = nrd_json_int(nrd_json_at(value, 0), fallback);
    if (nrd_json_len(value) != 2 || nrd_json_int(nrd_json_at(value, 1), -1) != side) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: '%s' must be a square", key);
    }
    *out = (int32_t)side;
    return nrd_vision_in_range(key, side, 1, most);
}

nrd_error *nrd_vision_read_sizes(nrd_vision_spec *s, const nrd_json *v, const nrd_vision_usual *usual, int32_t *out_layers)
{
    int32_t channels = 3;

    NRD_TRY(read_side(v, "image_size", usual->image_size, NRD_VISION_MAX_SIDE, &s->image_size));
    NRD_TRY(read_side(v, "patch_size", usual->patch_size, s->image_size, &s->patch_size));
    NRD_TRY(nrd_vision_get_int(v, "hidden_size", usual->hidden, 1, 1 << 16, &s->hidden));
    NRD_TRY(nrd_vision_get_int(v, "intermediate_size", usual->inter, 1, 1 << 18, &s->inter));
    NRD_TRY(nrd_vision_get_int(v, "num_attention_heads|attention_heads|num_heads", usual->n_heads, 1, s->hidden, &s->n_heads));
    NRD_TRY(nrd_vision_get_int(v, "num_hidden_layers", usual->n_layers, 1, NRD_SPEC_MAX_LAYERS, out_layers));
    NRD_TRY(nrd_vision_get_int(v, "num_channels", 3, 3, 3, &channels));
    NRD_TRY(nrd_vision_check_heads("vision_config", s->hidden, s->n_heads));
    return nrd_vision_in_range("image_size, in patches,", nrd_vision_n_patches(s), 1, NRD_VISION_MAX_PATCHES);
}

/* Which layer's states are taken; the state behind layer n is number n, that before the first is 0. */
nrd_error *nrd_vision_read_layers(nrd_vision_spec *s, const nrd_json *config, const char *key, int32_t n, int64_t fallback)
{
    const nrd_json *layer = nrd_json_get(config, key);

    if (nrd_json_is(layer, NRD_JSON_ARRAY)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'%s' with several layers is not supported", key);
    }
    const int64_t at = nrd_json_int(layer, fallback);
    const int64_t taken = at < 0 ? n + 1 + at : at;
    if (taken < 1 || taken > n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' is %lld, expected -%d to %d but 0", key, (long long)at, n, n);
    }
    s->n_layers = (int32_t)taken;
    return NULL;
}

/* ---- the processor ---- */

static nrd_error *numbers(const nrd_json *p, const char *key, const float *fallback, float out[3])
{
    const nrd_json *list = nrd_json_get(p, key);

    memcpy(out, fallback, 3 * sizeof *out);
    if (!list || nrd_json_is(list, NRD_JSON_NULL)) {
        return NULL;
    }
    const bool is_number = isfinite(nrd_json_num(list, NAN)); /* Fuyu's */
    if (!is_number && (!nrd_json_is(list, NRD_JSON_ARRAY) || nrd_json_len(list) != 3)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: '%s' must be a number or a list of 3", key);
    }
    for (size_t i = 0; i < 3; i++) {
        out[i] = (float)nrd_json_num(is_number ? list : nrd_json_at(list, i), NAN);
        if (!isfinite(out[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: '%s' must be a number or a list of 3", key);
        }
    }
    return NULL;
}

/* A side, or an object of them: {"shortest_edge"} or {"height", "width"}. square: where there is none. */
static nrd_error *read_size(nrd_vision_input *in, const nrd_json *size, int32_t fallback, bool square)
{
    const nrd_json *edge = nrd_json_is(size, NRD_JSON_OBJECT) ? nrd_json_get(size, "shortest_edge") : size;

    in->to_square = !edge && (square || nrd_json_is(size, NRD_JSON_OBJECT));
    in->size = (int32_t)nrd_json_int(in->to_square ? nrd_json_get(size, "height") : edge, fallback);
    if (in->to_square && size && nrd_json_get_int(size, "width", -1) != in->size) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'size' must have shortest_edge, or height and width of the same "
                          "length");
    }
    return nrd_vision_in_range("size", in->size, 1, NRD_VISION_MAX_SIDE);
}

static nrd_error *read_crop(nrd_vision_input *in, const nrd_json *size, int32_t fallback)
{
    const bool is_object = nrd_json_is(size, NRD_JSON_OBJECT);
    in->crop_width = (int32_t)nrd_json_int(is_object ? nrd_json_get(size, "width") : size, fallback);
    in->crop_height = (int32_t)nrd_json_int(is_object ? nrd_json_get(size, "height") : size, fallback);
    NRD_TRY(nrd_vision_in_range("crop_size", in->crop_width, 1, NRD_VISION_MAX_SIDE));
    return nrd_vision_in_range("crop_size", in->crop_height, 1, NRD_VISION_MAX_SIDE);
}

nrd_error *nrd_vision_read_numbers(nrd_vision_spec *s, const nrd_json *p)
{
    nrd_vision_input *in = &s->input;

    in->rescale = nrd_json_get_bool(p, "do_rescale", true);
    in->normalize = nrd_json_get_bool(p, "do_normalize", true);
    in->factor = nrd_json_get_num(p, "rescale_factor", 1 / 255.0);
    NRD_TRY(nrd_hf_int(p, "resample", s->in_steps ? 1 : s->pool || s->read_by_layers || s->separated || s->bare || s->swin.n_stages ? 2 : 3, &in->filter));
    if (in->filter < 1 || in->filter > 3) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'resample' %d is not supported; 1 is Lanczos, 2 bilinear, 3 bicubic",
                          in->filter);
    }
    NRD_TRY(numbers(p, "image_mean", s->has_class || (s->any_size && !s->bare && !s->swin.n_stages) || s->resampled ? clip_mean : half, in->mean));
    NRD_TRY(numbers(p, "image_std", s->has_class || (s->any_size && !s->bare && !s->swin.n_stages) || s->resampled ? clip_deviation : half, in->deviation));
    for (int c = 0; c < 3; c++) {
        if (!(in->deviation[c] > 0)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: 'image_std' must be above 0");
        }
    }
    return NULL;
}

nrd_error *nrd_vision_read_video_numbers(nrd_vision_spec *s, const nrd_json *p)
{
    const nrd_json *own = nrd_json_get(p, NRD_VISION_VIDEO_PROCESSOR);
    const nrd_vision_input pictures = s->input;

    NRD_TRY(own ? nrd_error_wrap(nrd_vision_read_numbers(s, own), NRD_VISION_VIDEO_PROCESSOR) : NULL);
    nrd_vision_input *in = &s->video.input;
    *in = s->input;
    s->input = pictures;
    if (!nrd_json_get(own, "image_mean")) {
        memcpy(in->mean, pictures.mean, sizeof in->mean);
    }
    if (!nrd_json_get(own, "image_std")) {
        memcpy(in->deviation, pictures.deviation, sizeof in->deviation);
    }
    in->filter = nrd_json_get(own, "resample") ? in->filter : pictures.filter;
    return NULL;
}

nrd_error *nrd_vision_read_input(nrd_vision_spec *s, const nrd_json *p)
{
    nrd_vision_input *in = &s->input;

    in->resize = nrd_json_get_bool(p, "do_resize", true);
    in->crop = nrd_json_get_bool(p, "do_center_crop", s->has_class && (!s->queries.n || s->latent)) && !s->tiled; /* tiles have their size already */
    NRD_TRY(nrd_vision_read_numbers(s, p));
    NRD_TRY(s->tiled ? NULL : nrd_hf_refuse(p, "do_pad"));
    NRD_TRY(nrd_hf_refuse(p, "do_pan_and_scan"));
    NRD_TRY(read_size(in, nrd_json_get(p, "size"), s->image_size, !s->has_class || (s->queries.n > 0 && !s->latent)));
    in->to_square = in->to_square || s->tiled;
    NRD_TRY(read_crop(in, nrd_json_get(p, "crop_size"), s->image_size));
    const int32_t width = in->crop ? in->crop_width : in->size, height = in->crop ? in->crop_height : in->size;
    if (width != s->image_size || height != s->image_size || (!in->crop && !(in->resize && in->to_square))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config gives pictures that are not the tower's %d x %d pixels",
                          s->image_size, s->image_size);
    }
    return NULL;
}

/* ---- rows and weights ---- */

int32_t nrd_vision_n_patches(const nrd_vision_spec *s)
{
    const int32_t side = s->any_size ? 0 : s->image_size / s->patch_size;
    return s->any_size ? s->most_patches : side * side;
}

int32_t nrd_vision_n_states(const nrd_vision_spec *s)
{
    return nrd_vision_n_patches(s) + (s->has_class || s->read_by_layers ? 1 : 0);
}

bool nrd_vision_varies(const nrd_vision_spec *s)
{
    return s->any_size || s->tiled || s->read_by_layers;
}

int32_t nrd_vision_n_base_rows(const nrd_vision_spec *s)
{
    if (s->queries.n) {
        return s->queries.n;
    }
    if (s->post_normed) {
        return nrd_vision_n_patches(s) / (s->shuffle ? s->shuffle * s->shuffle : 1) + 2;
    }
    if (s->shuffle) {
        const int32_t side = (s->image_size / s->patch_size + s->shuffle - 1) / s->shuffle;
        return side * side;
    }
    return s->pool ? nrd_vision_n_patches(s) / (s->pool * s->pool) : nrd_vision_n_states(s) - (s->skips_first ? 1 : 0);
}

int32_t nrd_vision_row_parts(const nrd_vision_spec *s)
{
    return 1 + s->n_deep;
}

int32_t nrd_vision_frame_side(const nrd_vision_spec *s)
{
    return (s->image_size / s->patch_size + 1) / 2;
}

nrd_error *nrd_vision_visit_pair(nrd_vision_visitor visit, void *user, const char *stem, int64_t rows, int64_t cols, bool has_bias)
{
    char name[NRD_VISION_MAX_NAME];
    snprintf(name, sizeof name, "%s.weight", stem);
    NRD_TRY(visit(user, name, rows, cols));
    snprintf(name, sizeof name, "%s.bias", stem);
    return has_bias ? visit(user, name, rows, 0) : NULL;
}
