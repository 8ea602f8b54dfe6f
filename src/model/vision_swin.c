/* SPDX-License-Identifier: Apache-2.0
 * The Swin transformer of Donut and Nougat (Liu et al., 2021; Kim et al., 2022), as config.json and preprocessor_config.json describe it. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PATCHES = 1 << 20 };

bool nrd_vision_is_swin(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "vision-encoder-decoder");
}

/* Height and width; or one for both. */
static nrd_error *read_pair(const nrd_json *v, const char *key, int32_t fallback, int32_t *out_height, int32_t *out_width)
{
    const nrd_json *value = nrd_json_get(v, key);
    const bool is_list = nrd_json_is(value, NRD_JSON_ARRAY);

    const int64_t height = nrd_json_int(is_list ? nrd_json_at(value, 0) : value, fallback);
    const int64_t width = is_list ? nrd_json_int(nrd_json_at(value, 1), 0) : height;
    NRD_TRY(nrd_vision_in_range(key, height, 1, NRD_VISION_MAX_SIDE));
    NRD_TRY(nrd_vision_in_range(key, width, 1, NRD_VISION_MAX_SIDE));
    *out_height = (int32_t)height;
    *out_width = (int32_t)width;
    return NULL;
}

/* Every stage's patches are whole windows, and each but the last one's whole squares of four. */
static nrd_error *check_stages(const nrd_vision_swin *w)
{
    int32_t high = w->height, wide = w->width, hidden = w->hidden;

    for (int32_t i = 0; i < w->n_stages; i++) {
        const bool last = i + 1 == w->n_stages;
        if (high % w->window || wide % w->window || (!last && (high % 2 || wide % 2))) {
            return nrd_errorf(NRD_ERR_UNSUPPORTED, "encoder: stage %d has %d x %d patches, expected multiples of 'window_size' (%d)%s", i, high,
                              wide, w->window, last ? "" : " and of 2");
        }
        NRD_TRY(nrd_vision_check_heads("encoder", hidden, w->heads[i]));
        high /= last ? 1 : 2;
        wide /= last ? 1 : 2;
        hidden *= last ? 1 : 2;
    }
    return NULL;
}

static nrd_error *read_stages(nrd_vision_spec *s, const nrd_json *v)
{
    const nrd_json *depths = nrd_json_get(v, "depths"), *heads = nrd_json_get(v, "num_heads");
    nrd_vision_swin *w = &s->swin;
    int32_t height = 0, width = 0, channels = 3;
    double ratio = nrd_json_get_num(v, "mlp_ratio", 4);

    NRD_TRY(read_pair(v, "image_size", 224, &height, &width));
    NRD_TRY(nrd_vision_get_int(v, "patch_size", 4, 1, NRD_VISION_MAX_SIDE, &s->patch_size));
    NRD_TRY(nrd_vision_get_int(v, "embed_dim", 96, 1, 1 << 14, &w->hidden));
    NRD_TRY(nrd_vision_get_int(v, "window_size", 7, 2, 64, &w->window));
    NRD_TRY(nrd_vision_get_int(v, "num_channels", 3, 3, 3, &channels));
    w->n_stages = (int32_t)nrd_json_len(depths);
    if (w->n_stages < 1 || w->n_stages > NRD_VISION_MAX_STAGES || nrd_json_len(heads) != (size_t)w->n_stages) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "encoder: 'depths' and 'num_heads' must be lists of as many stages, 1 to %d",
                          (int)NRD_VISION_MAX_STAGES);
    }
    for (int32_t i = 0; i < w->n_stages; i++) {
        w->depths[i] = (int32_t)nrd_json_int(nrd_json_at(depths, (size_t)i), 0);
        w->heads[i] = (int32_t)nrd_json_int(nrd_json_at(heads, (size_t)i), 0);
        NRD_TRY(nrd_vision_in_range("depths", w->depths[i], 1, NRD_SPEC_MAX_LAYERS));
        NRD_TRY(nrd_vision_in_range("num_heads", w->heads[i], 1, 1 << 12));
    }
    if (!(ratio >= 1 && ratio <= 16) || floor(ratio) < ratio || nrd_json_get_bool(v, "use_absolute_embeddings", false) ||
        !nrd_json_get_bool(v, "qkv_bias", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "encoder: 'mlp_ratio' must be a whole number from 1 to 16, 'qkv_bias' true and "
                          "'use_absolute_embeddings' false");
    }
    w->mlp_ratio = (int32_t)ratio;
    if (height % s->patch_size || width % s->patch_size || (int64_t)(height / s->patch_size) * (width / s->patch_size) > MAX_PATCHES) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "encoder: 'image_size' %d x %d must be whole patches of %d, at most %d of them", height, width,
                          s->patch_size, (int)MAX_PATCHES);
    }
    w->height = height / s->patch_size;
    w->width = width / s->patch_size;
    s->merge = 1 << (w->n_stages - 1);
    s->hidden = w->hidden * s->merge;
    s->norm_eps = (float)nrd_json_get_num(v, "layer_norm_eps", 1e-5);
    NRD_TRY(check_stages(w));
    s->most_patches = w->height * w->width;
    NRD_TRY(nrd_vision_in_range("image_size, in rows,", s->most_patches / (s->merge * s->merge), 1, NRD_VISION_MAX_PATCHES));
    return nrd_vision_get_act(v, "hidden_act", "gelu", &s->act);
}

/* Pages become one size: margins off, turned, shorter side to that of the page, within the page, in its middle. */
static nrd_error *read_page(nrd_vision_spec *s, const nrd_json *p)
{
    const nrd_json *size = nrd_hf_get(p, "size");
    const bool nougat = strstr(nrd_json_get_str(p, "image_processor_type", ""), "Nougat") != NULL, is_list = nrd_json_is(size, NRD_JSON_ARRAY);
    const int64_t width = is_list ? nrd_json_int(nrd_json_at(size, 0), -1) : nrd_json_get_int(size, "width", -1);
    const int64_t height = is_list ? nrd_json_int(nrd_json_at(size, 1), -1) : nrd_json_get_int(size, "height", -1);

    s->input.resize = true;
    s->swin.crops = nrd_json_get_bool(p, "do_crop_margin", nougat);
    s->swin.turns = nrd_json_get_bool(p, "do_align_long_axis", false);
    NRD_TRY(nrd_vision_read_numbers(s, p));
    if (!nrd_json_get_bool(p, "do_resize", true) || !nrd_json_get_bool(p, "do_thumbnail", true) || !nrd_json_get_bool(p, "do_pad", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'do_resize', 'do_thumbnail' and 'do_pad' must be true for this tower");
    }
    if (size && (height != (int64_t)s->swin.height * s->patch_size || width != (int64_t)s->swin.width * s->patch_size)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: 'size' is %lld x %lld, and the tower's pages have %d x %d pixels",
                          (long long)height, (long long)width, s->swin.height * s->patch_size, s->swin.width * s->patch_size);
    }
    return NULL;
}

nrd_error *nrd_vision_read_swin(nrd_vision_spec *s, const nrd_json *config, const nrd_json *p)
{
    const nrd_json *v = nrd_json_get(config, "encoder"), *d = nrd_json_get(config, "decoder");
    const char *type = nrd_json_get_str(v, "model_type", "");

    if (strcmp(type, "donut-swin") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision-encoder-decoder: encoder.model_type '%.40s' is not supported; known: donut-swin", type);
    }
    s->any_size = s->alone = true;
    s->frames = 1;
    NRD_TRY(read_stages(s, v));
    if (nrd_json_get_int(d, "d_model", nrd_json_get_int(d, "hidden_size", 1024)) != s->hidden) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "encoder: its states have %d numbers, and decoder.d_model is another", s->hidden);
    }
    NRD_TRY(read_page(s, p));
    return nrd_vision_get_int(nrd_hf_get(d, "pad_token_id") ? d : config, "pad_token_id", 1, 0, INT32_MAX, &s->image_token);
}

static nrd_error *visit_block(const nrd_vision_spec *s, const char *at, int64_t hidden, int32_t heads, nrd_vision_visitor visit, void *user)
{
    const int64_t inter = hidden * s->swin.mlp_ratio, side = 2 * s->swin.window - 1;
    const struct {
        const char *name;
        int64_t rows, cols;
    } parts[] = {
        {"layernorm_before", hidden, 0}, {"attention.self.query", hidden, hidden}, {"attention.self.key", hidden, hidden},
        {"attention.self.value", hidden, hidden}, {"attention.output.dense", hidden, hidden}, {"layernorm_after", hidden, 0},
        {"intermediate.dense", inter, hidden}, {"output.dense", hidden, inter},
    };
    char stem[NRD_VISION_MAX_NAME - 16];
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(stem, sizeof stem, "%s.%s", at, parts[i].name);
        NRD_TRY(nrd_vision_visit_pair(visit, user, stem, parts[i].rows, parts[i].cols, true));
    }
    snprintf(stem, sizeof stem, "%s.attention.self.relative_position_bias_table", at);
    return visit(user, stem, side * side, heads);
}

nrd_error *nrd_vision_visit_swin(const nrd_vision_spec *s, nrd_vision_visitor visit, void *user)
{
    const nrd_vision_swin *w = &s->swin;
    int64_t hidden = w->hidden;
    char at[64];

    NRD_TRY(nrd_vision_visit_pair(visit, user, "embeddings.patch_embeddings.projection", hidden, 3 * (int64_t)s->patch_size * s->patch_size, true));
    NRD_TRY(nrd_vision_visit_pair(visit, user, "embeddings.norm", hidden, 0, true));
    for (int32_t i = 0; i < w->n_stages; i++, hidden *= 2) {
        for (int32_t k = 0; k < w->depths[i]; k++) {
            snprintf(at, sizeof at, "encoder.layers.%d.blocks.%d", i, k);
            NRD_TRY(visit_block(s, at, hidden, w->heads[i], visit, user));
        }
        if (i + 1 < w->n_stages) {
            snprintf(at, sizeof at, "encoder.layers.%d.downsample.norm", i);
            NRD_TRY(nrd_vision_visit_pair(visit, user, at, 4 * hidden, 0, true));
            snprintf(at, sizeof at, "encoder.layers.%d.downsample.reduction", i);
            NRD_TRY(nrd_vision_visit_pair(visit, user, at, 2 * hidden, 4 * hidden, false));
        }
    }
    return NULL;
}
