/* SPDX-License-Identifier: Apache-2.0
 * What the file of a GGUF model's tower says, as a Hugging Face folder would say it. What neither the metadata nor the weights tell is
 * as the published models of the family have it. */
#include "model/mmproj_internal.h"

#include <math.h>
#include <string.h>

enum { MAX_PINPOINTS = 2 * NRD_VISION_MAX_LAYOUTS };

#define KEY "clip.vision."

/* What all of them read. */
typedef struct about {
    const nrd_mmproj *m;
    const nrd_gguf *g, *words;
    const nrd_model_spec *decoder;
    int64_t layers, patch, image; /* image: pixels of a side */
    nrd_str *config, *processor;
} about;

/* ---- small parts ---- */

static nrd_error *put_number(nrd_str *out, const char *key, double v)
{
    if (!isfinite(v)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be a number", key);
    }
    nrd_str_printf(out, ",\"%s\":%.9g", key, v);
    return NULL;
}

/* The id of a word of the decoder's vocabulary; -1: it has no such word. */
static int64_t id_of(const nrd_gguf *g, const char *word)
{
    const nrd_gguf_value *list = nrd_gguf_find(g, "tokenizer.ggml.tokens");
    nrd_gguf_span s;

    for (uint64_t i = 0; list && i < list->n; i++) {
        if (nrd_gguf_arr_str(list, i, &s) && s.n == strlen(word) && !memcmp(s.data, word, s.n)) {
            return (int64_t)i;
        }
    }
    return -1;
}

static nrd_error *put_id(const about *a, const char *key, const char *word)
{
    const int64_t id = id_of(a->words, word);
    if (id < 0 || id >= a->decoder->vocab) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the model's vocabulary has no '%s', which stands for a picture in prompts", word);
    }
    nrd_str_printf(a->config, ",\"%s\":%lld", key, (long long)id);
    return NULL;
}

static nrd_error *put_triple(const about *a, const char *key, const char *name)
{
    const nrd_gguf_value *list = nrd_gguf_find(a->g, key);
    double v[3];

    if (!list) {
        return NULL;
    }
    for (uint64_t i = 0; i < 3; i++) {
        if (list->n != 3 || !nrd_gguf_arr_num(list, i, &v[i]) || !isfinite(v[i])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'%s' must be a list of 3 numbers", key);
        }
    }
    nrd_str_printf(a->processor, ",\"%s\":[%.9g,%.9g,%.9g]", name, v[0], v[1], v[2]);
    return NULL;
}

/* Opens the processor's object. */
static nrd_error *put_means(const about *a, int filter)
{
    nrd_str_printf(a->processor, "{\"resample\":%d", filter);
    NRD_TRY(put_triple(a, KEY "image_mean", "image_mean"));
    return put_triple(a, KEY "image_std", "image_std");
}

static void put_square(const about *a)
{
    nrd_str_printf(a->processor, ",\"size\":{\"height\":%lld,\"width\":%lld}}", (long long)a->image, (long long)a->image);
}

/* The layers' activation, where the flags leave no doubt. */
static const char *act_of(const about *a, const char *gelu, const char *otherwise)
{
    return nrd_gguf_bool(a->g, "clip.use_gelu", false) ? gelu : nrd_gguf_bool(a->g, "clip.use_silu", false) ? "silu" : otherwise;
}

/* Opens vision_config with what all towers have. */
static void put_tower(const about *a, const char *type, const char *act)
{
    nrd_str_printf(a->config, ",\"vision_config\":{\"model_type\":\"%s\",\"hidden_size\":%lld,\"intermediate_size\":%lld,"
                   "\"num_hidden_layers\":%lld,\"num_attention_heads\":%d,\"patch_size\":%lld,\"hidden_act\":\"%s\"", type,
                   (long long)a->m->hidden, (long long)a->m->inter, (long long)a->layers, a->m->heads, (long long)a->patch, act);
}

/* ---- squares of one size ---- */

static nrd_error *put_fixed_tower(const about *a, const char *type, const char *act)
{
    put_tower(a, type, act);
    nrd_str_printf(a->config, ",\"image_size\":%lld", (long long)a->image);
    NRD_TRY(put_number(a->config, "layer_norm_eps", nrd_gguf_num(a->g, KEY "attention.layer_norm_epsilon", 1e-5)));
    nrd_str_puts(a->config, "}}");
    return NULL;
}

/* The sizes of LLaVA-NeXT, which older files have: pairs of a list of numbers. */
static nrd_error *put_pinpoints(const about *a, const nrd_gguf_value *list)
{
    if (list->n < 2 || list->n > MAX_PINPOINTS || list->n % 2) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'" KEY "image_grid_pinpoints' must be a list of 1 to %d pairs", MAX_PINPOINTS / 2);
    }
    nrd_str_puts(a->config, ",\"image_grid_pinpoints\":[");
    for (uint64_t i = 0; i < list->n; i++) {
        double v = 0;
        if (!nrd_gguf_arr_num(list, i, &v) || !(v >= 1) || !(v <= 1 << 20)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "'" KEY "image_grid_pinpoints' must be sizes in pixels");
        }
        nrd_str_printf(a->config, i % 2 ? ",%.0f]" : i ? ",[%.0f" : "[%.0f", v);
    }
    nrd_str_putc(a->config, ']');
    return NULL;
}

/* LLaVA 1.5 and LLaVA-NeXT. The converter leaves out the layers behind the one whose states are taken. */
static nrd_error *describe_mlp(const about *a)
{
    const bool is_clip = nrd_gguf_find_tensor(a->g, "v.class_embd") != NULL;
    const nrd_gguf_value *pinpoints = nrd_gguf_find(a->g, KEY "image_grid_pinpoints"), *taken = nrd_gguf_find(a->g, KEY "feature_layer");
    double layer = (double)a->layers;

    if (taken && (taken->n != 1 || !nrd_gguf_arr_num(taken, 0, &layer) || !(layer >= 1) || !(layer <= (double)a->layers))) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'" KEY "feature_layer' must be one layer, 1 to %lld", (long long)a->layers);
    }
    nrd_str_printf(a->config, "{\"model_type\":\"%s\",\"projector_hidden_act\":\"gelu\",\"vision_feature_layer\":%.0f,"
                   "\"vision_feature_select_strategy\":\"%s\",\"multimodal_projector_bias\":%s", pinpoints ? "llava_next" : "llava", layer,
                   is_clip ? "default" : "full", nrd_gguf_find_tensor(a->g, "mm.0.bias") ? "true" : "false");
    NRD_TRY(pinpoints ? put_pinpoints(a, pinpoints) : NULL);
    NRD_TRY(put_id(a, "image_token_index", "<image>"));
    NRD_TRY(put_fixed_tower(a, is_clip ? "clip_vision_model" : "siglip_vision_model",
                            is_clip ? act_of(a, "gelu", "quick_gelu") : "gelu_pytorch_tanh"));
    NRD_TRY(put_means(a, 3));
    if (!is_clip) {
        put_square(a);
        return NULL;
    }
    nrd_str_printf(a->processor, ",\"size\":{\"shortest_edge\":%lld},\"crop_size\":{\"height\":%lld,\"width\":%lld}}", (long long)a->image,
                   (long long)a->image, (long long)a->image);
    return NULL;
}

static nrd_error *describe_gemma3(const about *a)
{
    const int64_t by = nrd_gguf_int(a->g, KEY "projector.scale_factor", 4), side = a->image / a->patch;

    if (by < 1 || side % by) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "'" KEY "projector.scale_factor' is %lld, expected a divisor of %lld patches on a side",
                          (long long)by, (long long)side);
    }
    nrd_str_printf(a->config, "{\"model_type\":\"gemma3\",\"mm_tokens_per_image\":%lld", (long long)(side / by * (side / by)));
    NRD_TRY(put_id(a, "image_token_index", "<image_soft_token>"));
    NRD_TRY(put_fixed_tower(a, "siglip_vision_model", "gelu_pytorch_tanh"));
    NRD_TRY(put_means(a, 2));
    put_square(a);
    return NULL;
}

/* SmolVLM too. Older files do not say to which length pictures are brought: it is four tiles in all published models. */
static nrd_error *describe_idefics3(const about *a)
{
    nrd_str_printf(a->config, "{\"model_type\":\"idefics3\",\"scale_factor\":%lld",
                   (long long)nrd_gguf_int(a->g, KEY "projector.scale_factor", 2));
    NRD_TRY(put_id(a, "image_token_id", "<image>"));
    NRD_TRY(put_fixed_tower(a, "idefics3_vision", "gelu_pytorch_tanh"));
    NRD_TRY(put_means(a, 1));
    nrd_str_printf(a->processor, ",\"max_image_size\":{\"longest_edge\":%lld},\"size\":{\"longest_edge\":%lld}}", (long long)a->image,
                   (long long)nrd_gguf_int(a->g, KEY "preproc_image_size", 4 * a->image));
    return NULL;
}

/* ---- pictures that keep their shape ---- */

static nrd_error *describe_pixtral(const about *a)
{
    const bool is_3 = nrd_gguf_find_tensor(a->g, "mm.patch_merger.weight") != NULL;
    const int64_t end = id_of(a->words, "[IMG_END]");

    nrd_str_printf(a->config, "{\"model_type\":\"%s\",\"spatial_merge_size\":%lld,\"projector_hidden_act\":\"gelu\","
                   "\"vision_feature_layer\":-1,\"vision_feature_select_strategy\":\"full\",\"multimodal_projector_bias\":%s",
                   is_3 ? "mistral3" : "llava", (long long)(is_3 ? nrd_gguf_int(a->g, KEY "spatial_merge_size", 2) : 1),
                   nrd_gguf_find_tensor(a->g, "mm.1.bias") ? "true" : "false");
    NRD_TRY(put_id(a, "image_token_index", "[IMG]"));
    NRD_TRY(put_id(a, "image_break_token_id", "[IMG_BREAK]"));
    NRD_TRY(put_id(a, "image_end_token_id", end < 0 ? "[IMG_BREAK]" : "[IMG_END]"));
    nrd_str_puts(a->config, ",\"text_config\":{\"model_type\":\"mistral\"");
    NRD_TRY(put_number(a->config, "rms_norm_eps", (double)a->decoder->norm_eps));
    nrd_str_putc(a->config, '}');
    put_tower(a, "pixtral", act_of(a, "gelu", "silu"));
    nrd_str_puts(a->config, ",\"rope_theta\":10000}}");
    NRD_TRY(put_means(a, 3));
    nrd_str_printf(a->processor, ",\"size\":{\"longest_edge\":%lld}}", (long long)a->image);
    return NULL;
}

static void put_pixels(const about *a, int64_t least, int64_t most)
{
    nrd_str_printf(a->processor, ",\"min_pixels\":%lld,\"max_pixels\":%lld}", (long long)nrd_gguf_int(a->g, KEY "image_min_pixels", least),
                   (long long)nrd_gguf_int(a->g, KEY "image_max_pixels", most));
}

/* The layers in which patches see all others: each n-th. */
static nrd_error *put_windows(const about *a)
{
    const int64_t every = nrd_gguf_int(a->g, KEY "n_wa_pattern", 8);

    if (every < 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'" KEY "n_wa_pattern' must be above 0, got %lld", (long long)every);
    }
    nrd_str_printf(a->config, ",\"window_size\":%lld,\"fullatt_block_indexes\":[", (long long)nrd_gguf_int(a->g, KEY "window_size", 112));
    for (int64_t i = every - 1; i < a->layers; i += every) {
        nrd_str_printf(a->config, i >= every ? ",%lld" : "%lld", (long long)i);
    }
    nrd_str_putc(a->config, ']');
    return NULL;
}

/* Learned positions, and the layers whose states go to the decoder's. */
static nrd_error *put_deep(const about *a)
{
    const nrd_gguf_value *list = nrd_gguf_find(a->g, KEY "is_deepstack_layers");
    const nrd_gguf_tensor *positions;
    bool any = false;

    NRD_TRY(nrd_mmproj_tensor_of(a->m, "v.position_embd.weight", &positions));
    nrd_str_printf(a->config, ",\"num_position_embeddings\":%lld,\"deepstack_visual_indexes\":[",
                   (long long)(positions->n_dims == 2 ? positions->dims[1] : 0));
    for (uint64_t i = 0; list && i < list->n && i < (uint64_t)a->layers; i++) {
        double v = 0;
        if (nrd_gguf_arr_num(list, i, &v) && v > 0) {
            nrd_str_printf(a->config, any ? ",%llu" : "%llu", (unsigned long long)i);
            any = true;
        }
    }
    nrd_str_putc(a->config, ']');
    return NULL;
}

static nrd_error *describe_qwen(const about *a)
{
    static const char *const types[] = {"qwen2_vl", "qwen2_5_vl", "qwen3_vl"}, *const acts[] = {"quick_gelu", "silu", "gelu_pytorch_tanh"};
    const int g = a->m->kind == NRD_MMPROJ_QWEN2 ? 0 : a->m->kind == NRD_MMPROJ_QWEN2_5 ? 1 : 2;

    nrd_str_printf(a->config, "{\"model_type\":\"%s\"", types[g]);
    NRD_TRY(put_id(a, "image_token_id", "<|image_pad|>"));
    NRD_TRY(put_id(a, "video_token_id", "<|video_pad|>"));
    put_tower(a, types[g], acts[g]);
    nrd_str_printf(a->config, ",\"depth\":%lld,\"num_heads\":%d,\"spatial_merge_size\":%lld,\"temporal_patch_size\":2",
                   (long long)a->layers, a->m->heads, (long long)nrd_gguf_int(a->g, KEY "spatial_merge_size", 2));
    if (g == 0) { /* half a number more: what is read is cut off behind the point */
        nrd_str_printf(a->config, ",\"embed_dim\":%lld,\"mlp_ratio\":%.17g", (long long)a->m->hidden,
                       ((double)a->m->inter + 0.5) / (double)a->m->hidden);
    }
    NRD_TRY(g == 1 ? put_windows(a) : g == 2 ? put_deep(a) : NULL);
    nrd_str_puts(a->config, g == 1 ? ",\"tokens_per_second\":2}}" : "}}"); /* of all published ones */
    NRD_TRY(put_means(a, 3));
    if (g == 2) { /* as its video_preprocessor_config.json */
        nrd_str_puts(a->processor, ",\"" NRD_VISION_VIDEO_PROCESSOR "\":{\"size\":{\"shortest_edge\":4096,\"longest_edge\":25165824}}");
    }
    put_pixels(a, g == 2 ? 65536 : 56 * 56, g == 2 ? 16777216 : 12845056);
    return NULL;
}

/* ---- all ---- */

static nrd_error *describe(const about *a)
{
    switch (a->m->kind) {
    case NRD_MMPROJ_MLP:
        return describe_mlp(a);
    case NRD_MMPROJ_GEMMA3:
        return describe_gemma3(a);
    case NRD_MMPROJ_IDEFICS3:
        return describe_idefics3(a);
    case NRD_MMPROJ_PIXTRAL:
        return describe_pixtral(a);
    case NRD_MMPROJ_QWEN2:
    case NRD_MMPROJ_QWEN2_5:
    case NRD_MMPROJ_QWEN3:
        break;
    }
    return describe_qwen(a);
}

nrd_error *nrd_mmproj_describe(const nrd_mmproj *m, const nrd_model_spec *decoder, const nrd_gguf *words, nrd_str *config,
                               nrd_str *processor)
{
    about a = {.m = m, .g = m->file, .words = words, .decoder = decoder, .config = config, .processor = processor};

    a.layers = nrd_gguf_int(a.g, KEY "block_count", 0);
    a.patch = nrd_gguf_int(a.g, KEY "patch_size", 0);
    a.image = nrd_gguf_int(a.g, KEY "image_size", 0);
    if (a.layers < 1 || a.layers > NRD_SPEC_MAX_LAYERS || a.patch < 1 || a.image < a.patch || a.image > NRD_VISION_MAX_SIDE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "'" KEY "block_count' (%lld) must be 1 to %d, and '" KEY "image_size' (%lld) from "
                          "'" KEY "patch_size' (%lld), at least 1, to %d", (long long)a.layers, (int)NRD_SPEC_MAX_LAYERS,
                          (long long)a.image, (long long)a.patch, (int)NRD_VISION_MAX_SIDE);
    }
    NRD_TRY(describe(&a));
    NRD_TRY(nrd_str_error(config));
    return nrd_str_error(processor);
}
