/* SPDX-License-Identifier: Apache-2.0
 * Pixtral's tower (Agrawal et al., 2024), which Mistral 3 has too, as config.json and preprocessor_config.json describe it. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <string.h>

enum {
    MAX_MERGE = 8,
    HEAD_STEP = 4,                 /* two axes of whole pairs */
    MAX_TOKENIZER = 64 << 20,      /* bytes of tokenizer.json */
    BREAK_TOKEN = 12, END_TOKEN = 13, /* of all models that Mistral has published */
};

static bool is_mistral3(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "mistral3");
}

bool nrd_vision_is_pixtral(const nrd_json *config)
{
    const char *type = nrd_json_get_str(nrd_json_get(config, "vision_config"), "model_type", is_mistral3(config) ? "pixtral" : "");
    return !strcmp(type, "pixtral") && (is_mistral3(config) || !strcmp(nrd_json_get_str(config, "model_type", ""), "llava"));
}

/* ---- the tower ---- */

static nrd_error *read_sizes(nrd_vision_spec *s, const nrd_json *config, const nrd_json *v)
{
    const bool m3 = is_mistral3(config);
    const nrd_json *rope = nrd_json_get(v, "rope_parameters");
    int32_t channels = 3, n = 0;

    NRD_TRY(nrd_vision_get_int(v, "num_hidden_layers", 24, 1, NRD_SPEC_MAX_LAYERS, &n));
    NRD_TRY(nrd_vision_get_int(v, "hidden_size", 1024, 1, 1 << 16, &s->hidden));
    NRD_TRY(nrd_vision_get_int(v, "intermediate_size", 4096, 1, 1 << 18, &s->inter));
    NRD_TRY(nrd_vision_get_int(v, "num_attention_heads", 16, 1, s->hidden, &s->n_heads));
    NRD_TRY(nrd_vision_get_int(v, "num_channels", 3, 3, 3, &channels));
    NRD_TRY(nrd_vision_get_int(v, "patch_size", m3 ? 14 : 16, 1, NRD_VISION_MAX_SIDE, &s->patch_size));
    NRD_TRY(nrd_vision_get_int(config, "spatial_merge_size", m3 ? 2 : 1, 1, MAX_MERGE, &s->merge));
    const int32_t head = s->hidden / s->n_heads;
    if (s->hidden % s->n_heads || head % HEAD_STEP || head > NRD_SPEC_MAX_ROTARY) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: %d heads of a 'hidden_size' of %d; expected heads of a multiple of %d "
                          "numbers, at most %d", s->n_heads, s->hidden, (int)HEAD_STEP, (int)NRD_SPEC_MAX_ROTARY);
    }
    s->rope_base = nrd_json_num(nrd_hf_get(rope ? rope : v, "rope_theta"), 10000);
    if (!(s->rope_base > 1) || !isfinite(s->rope_base)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'rope_theta' must be above 1, got %g", s->rope_base);
    }
    return nrd_vision_read_layers(s, config, "vision_feature_layer", n, -1);
}

static nrd_error *read_tower(nrd_vision_spec *s, const nrd_json *config)
{
    const nrd_json *v = nrd_json_get(config, "vision_config");
    const bool m3 = is_mistral3(config);
    const char *strategy = nrd_json_get_str(config, "vision_feature_select_strategy", "full");

    s->any_size = s->rms_norm = s->gated = s->no_biases = s->apart = s->pre_norm = s->plain = s->turns_by_turns = s->breaks = true;
    s->frames = 1;
    s->norm_eps = 1e-5f;
    s->merge_eps = (float)nrd_json_get_num(nrd_json_get(config, "text_config"), "rms_norm_eps", m3 ? 1e-5 : 1e-6);
    NRD_TRY(read_sizes(s, config, v));
    if (strcmp(strategy, "full") != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'vision_feature_select_strategy' must be full before this tower, got '%.40s'", strategy);
    }
    NRD_TRY(nrd_vision_get_act(v, "hidden_act", "gelu", &s->act));
    NRD_TRY(nrd_vision_get_act(config, "projector_hidden_act", "gelu", &s->projector_act));
    s->projector_bias = nrd_json_get_bool(config, "multimodal_projector_bias", !m3);
    NRD_TRY(nrd_hf_int(config, "image_token_index|image_token_id", m3 ? 10 : 32000, &s->image_token));
    NRD_TRY(nrd_hf_int(config, "image_break_token_id", BREAK_TOKEN, &s->break_token));
    NRD_TRY(nrd_hf_int(config, "image_end_token_id", END_TOKEN, &s->end_token));
    NRD_TRY(nrd_vision_in_range("image_token_index", s->image_token, 0, INT32_MAX));
    NRD_TRY(nrd_vision_in_range("image_break_token_id", s->break_token, 0, INT32_MAX));
    return nrd_vision_in_range("image_end_token_id", s->end_token, 0, INT32_MAX);
}

/* ---- the processor ---- */

/* A side, or an object of both. */
static int64_t side_of(const nrd_json *v, int64_t fallback)
{
    const int64_t height = nrd_json_is(v, NRD_JSON_OBJECT) ? nrd_json_get_int(v, "height", -1) : nrd_json_int(v, fallback);
    return nrd_json_is(v, NRD_JSON_OBJECT) && nrd_json_get_int(v, "width", -1) != height ? -1 : height;
}

static nrd_error *read_input(nrd_vision_spec *s, const nrd_json *p)
{
    const nrd_json *size = nrd_hf_get(p, "size"), *edge = nrd_json_is(size, NRD_JSON_OBJECT) ? nrd_hf_get(size, "longest_edge") : NULL;
    const int64_t patch = side_of(nrd_hf_get(p, "patch_size"), s->patch_size), longest = side_of(edge ? edge : size, 1024);
    const int32_t square = s->patch_size * s->merge;

    s->input.resize = true;
    NRD_TRY(nrd_vision_read_numbers(s, p));
    if (!nrd_json_get_bool(p, "do_resize", true) || nrd_json_get_bool(p, "do_center_crop", false)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'do_resize' must be true and 'do_center_crop' false for this tower");
    }
    if (patch != s->patch_size && patch != square) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: 'patch_size' is %lld, and the tower's is %d", (long long)patch,
                          s->patch_size);
    }
    if (longest < square || longest > NRD_VISION_MAX_SIDE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: 'size' must have longest_edge, %d to %d pixels, got %lld", square,
                          (int)NRD_VISION_MAX_SIDE, (long long)longest);
    }
    s->longest = (int32_t)longest;
    const int64_t side = (longest + square - 1) / square * s->merge, all = side * side;
    s->most_patches = (int32_t)(all < NRD_VISION_MAX_PATCHES ? all : NRD_VISION_MAX_PATCHES);
    s->most_patches -= s->most_patches % (s->merge * s->merge);
    return NULL;
}

nrd_error *nrd_vision_read_pixtral(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor)
{
    NRD_TRY(read_tower(s, config));
    return read_input(s, processor);
}

nrd_error *nrd_vision_fit_longest(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out)
{
    const int32_t square = s->patch_size * s->merge;
    const double by = fmax((double)height / s->longest, (double)width / s->longest);
    const int32_t w = by > 1 ? (int32_t)floor(width / by) : width, h = by > 1 ? (int32_t)floor(height / by) : height;

    if (w < 1 || h < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture of %d x %d pixels is nothing once its longer side is %d", width, height,
                          s->longest);
    }
    const int32_t tall = (h - 1) / square + 1, wide = (w - 1) / square + 1;
    if ((int64_t)tall * wide * s->merge * s->merge > s->most_patches) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture of %d x %d pixels is %lld patches; at most %d are computed", width, height,
                          (long long)tall * wide * s->merge * s->merge, s->most_patches);
    }
    *out = (nrd_vision_grid){.height = tall * s->merge, .width = wide * s->merge};
    return NULL;
}

/* ---- what ends lines ---- */

static int64_t id_of(const nrd_json *added, const char *word, int64_t fallback)
{
    for (size_t i = 0; i < nrd_json_len(added); i++) {
        const nrd_json *t = nrd_json_at(added, i);
        if (!strcmp(nrd_json_get_str(t, "content", ""), word)) {
            return nrd_json_get_int(t, "id", fallback);
        }
    }
    return fallback;
}

nrd_error *nrd_vision_put_breaks(const nrd_vision_spec *s, const char *dir, nrd_str *out)
{
    const nrd_json_limits limits = {.max_bytes = MAX_TOKENIZER, .max_depth = 64};
    nrd_json_doc *doc = NULL;

    NRD_TRY(nrd_json_parse_in(&doc, dir, "tokenizer.json", &limits));
    const nrd_json *added = doc ? nrd_json_get(nrd_json_root(doc), "added_tokens") : NULL;
    if (s->framed) {
        nrd_str_printf(out, ", \"image_start_token_id\": %lld, \"image_end_token_id\": %lld",
                       (long long)id_of(added, s->latent ? "<image>" : "<img>", s->start_token),
                       (long long)id_of(added, s->latent ? "</image>" : "</img>", s->end_token));
    } else {
        nrd_str_printf(out, ", \"image_break_token_id\": %lld, \"image_end_token_id\": %lld",
                       (long long)id_of(added, s->bare ? "|NEWLINE|" : "[IMG_BREAK]", s->break_token),
                       (long long)id_of(added, s->bare ? "|NEWLINE|" : "[IMG_END]", s->end_token));
    }
    nrd_json_doc_free(doc);
    return nrd_str_error(out);
}
