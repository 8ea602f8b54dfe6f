/* SPDX-License-Identifier: Apache-2.0
 * Which tensors a tower has, by their names in transformers. */
#include "model/vision_internal.h"

#include <stdio.h>
#include <string.h>

static nrd_error *visit_fixed_layer(const nrd_vision_spec *s, int32_t layer, nrd_vision_visitor visit, void *user)
{
    const bool stacked = s->queries.n > 0 && !s->latent;
    const struct {
        const char *name;
        int64_t rows, cols;
    } parts[] = {
        {"layer_norm1", s->hidden, 0},
        {stacked ? "self_attn.qkv" : "self_attn.q_proj", stacked ? 3 * (int64_t)s->hidden : s->hidden, s->hidden},
        {stacked ? NULL : "self_attn.k_proj", s->hidden, s->hidden},
        {stacked ? NULL : "self_attn.v_proj", s->hidden, s->hidden},
        {"self_attn.out_proj", s->hidden, s->hidden},
        {"layer_norm2", s->hidden, 0},
        {"mlp.fc1", s->inter, s->hidden},
        {"mlp.fc2", s->hidden, s->inter},
    };
    char stem[NRD_VISION_MAX_NAME - 16];
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(stem, sizeof stem, "encoder.layers.%d.%s", layer, parts[i].name ? parts[i].name : "");
        NRD_TRY(parts[i].name ? nrd_vision_visit_pair(visit, user, stem, parts[i].rows, parts[i].cols, true) : NULL);
    }
    for (int i = 1; i < 3 && s->bare_class && !s->queries.n; i++) {
        snprintf(stem, sizeof stem, "encoder.layers.%d.lambda_%d", layer, i);
        NRD_TRY(visit(user, stem, s->hidden, 0));
    }
    return NULL;
}

static nrd_error *visit_fixed(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user)
{
    const int64_t patch = 3 * (int64_t)s->patch_size * s->patch_size;

    NRD_TRY(nrd_vision_visit_pair(visit, user, "embeddings.patch_embedding", s->hidden, patch, (!s->has_class && !s->resampled) || s->bare_class));
    NRD_TRY(visit(user, "embeddings.position_embedding.weight", s->positions_side ? s->positions_side * (int64_t)s->positions_side : nrd_vision_n_states(s), s->hidden));
    if (s->has_class) {
        NRD_TRY(visit(user, "embeddings.class_embedding", s->hidden, 0));
    }
    if (s->pre_norm || (s->has_class && !s->bare_class)) {
        NRD_TRY(nrd_vision_visit_pair(visit, user, "pre_layrnorm", s->hidden, 0, true));
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        NRD_TRY(visit_fixed_layer(s, i, visit, user));
    }
    if (s->latent) {
        return nrd_vision_visit_latent(s, out_hidden, visit, user);
    }
    if (s->resampled) {
        return nrd_vision_visit_resampler(s, out_hidden, visit, user);
    }
    if (s->queries.n) {
        return nrd_vision_visit_queries(s, out_hidden, visit, user);
    }
    if (s->pool) {
        NRD_TRY(nrd_vision_visit_pair(visit, user, "post_layernorm", s->hidden, 0, true));
        NRD_TRY(visit(user, NRD_VISION_PROJECTOR "mm_soft_emb_norm.weight", s->hidden, 0));
        return visit(user, NRD_VISION_PROJECTOR "mm_input_projection_weight", s->hidden, out_hidden);
    }
    if (s->one_product) {
        NRD_TRY(nrd_vision_visit_pair(visit, user, "post_layernorm", s->hidden, 0, true));
        if (s->projector_bias) {
            return nrd_vision_visit_pair(visit, user, NRD_VISION_PROJECTOR "linear", out_hidden, s->hidden, true);
        }
        return visit(user, NRD_VISION_PROJECTOR "modality_projection.proj.weight", out_hidden, s->hidden * (int64_t)s->shuffle * s->shuffle);
    }
    const int64_t row = s->hidden * (s->shuffle ? (int64_t)s->shuffle * s->shuffle : 1);
    if (s->separated) {
        NRD_TRY(visit(user, NRD_VISION_LINE_END, row, 0));
        NRD_TRY(visit(user, NRD_VISION_SEPARATOR, row, 0));
    } else if (s->shuffle) {
        NRD_TRY(nrd_vision_visit_pair(visit, user, NRD_VISION_PROJECTOR "layer_norm", row, 0, true));
    }
    if (s->tiled && !s->tiles_first && !s->separated) {
        NRD_TRY(visit(user, NRD_VISION_NEWLINE, out_hidden, 0));
    }
    NRD_TRY(nrd_vision_visit_pair(visit, user, NRD_VISION_PROJECTOR "linear_1", out_hidden, row, s->projector_bias));
    return nrd_vision_visit_pair(visit, user, NRD_VISION_PROJECTOR "linear_2", out_hidden, out_hidden, s->projector_bias);
}

static nrd_error *visit_grid_layer(const nrd_vision_spec *s, int32_t layer, nrd_vision_visitor visit, void *user)
{
    const bool g = s->gated, bias = !s->no_biases;
    const struct {
        const char *name;
        int64_t rows, cols;
        bool is_there, has_bias;
    } parts[] = {
        {"norm1", s->hidden, 0, true, !s->rms_norm},
        {"norm2", s->hidden, 0, true, !s->rms_norm},
        {"attn.qkv", 3 * (int64_t)s->hidden, s->hidden, !s->apart, bias},
        {"attn.q", s->hidden, s->hidden, s->apart, bias},
        {"attn.k", s->hidden, s->hidden, s->apart, bias},
        {"attn.v", s->hidden, s->hidden, s->apart, bias},
        {"attn.proj", s->hidden, s->hidden, true, bias},
        {"mlp.fc1", s->inter, s->hidden, !g, bias},
        {"mlp.fc2", s->hidden, s->inter, !g, bias},
        {"mlp.gate_proj", s->inter, s->hidden, g, bias},
        {"mlp.up_proj", s->inter, s->hidden, g, bias},
        {"mlp.down_proj", s->hidden, s->inter, g, bias},
    };
    char stem[NRD_VISION_MAX_NAME - 16];
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(stem, sizeof stem, "blocks.%d.%s", layer, parts[i].name);
        NRD_TRY(parts[i].is_there ? nrd_vision_visit_pair(visit, user, stem, parts[i].rows, parts[i].cols, parts[i].has_bias) : NULL);
    }
    return NULL;
}

/* The norm of squares of patches, or, deep, of what they are side by side, and two products. */
static nrd_error *visit_merger(const nrd_vision_spec *s, const char *at, bool deep, int32_t out_hidden, nrd_vision_visitor visit,
                               void *user)
{
    const int64_t square = (int64_t)s->merge * s->merge * s->hidden;
    char stem[NRD_VISION_MAX_NAME - 16];

    snprintf(stem, sizeof stem, "%s.ln_q", at);
    NRD_TRY(nrd_vision_visit_pair(visit, user, stem, deep ? square : s->hidden, 0, !s->rms_norm));
    snprintf(stem, sizeof stem, "%s.mlp.0", at);
    NRD_TRY(nrd_vision_visit_pair(visit, user, stem, square, square, true));
    snprintf(stem, sizeof stem, "%s.mlp.2", at);
    return nrd_vision_visit_pair(visit, user, stem, out_hidden, square, true);
}

/* Pixtral: no biases; what its projector has besides is Mistral 3's. */
static nrd_error *visit_plain_end(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user)
{
    const int64_t square = (int64_t)s->merge * s->merge * s->hidden;

    if (s->merge > 1) {
        NRD_TRY(visit(user, NRD_VISION_PROJECTOR "norm.weight", s->hidden, 0));
        NRD_TRY(visit(user, NRD_VISION_PROJECTOR "patch_merger.merging_layer.weight", s->hidden, square));
    }
    NRD_TRY(nrd_vision_visit_pair(visit, user, NRD_VISION_PROJECTOR "linear_1", out_hidden, s->hidden, s->projector_bias));
    return nrd_vision_visit_pair(visit, user, NRD_VISION_PROJECTOR "linear_2", out_hidden, out_hidden, s->projector_bias);
}

static nrd_error *visit_grid(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user)
{
    const int64_t patch = 3 * (int64_t)s->frames * s->patch_size * s->patch_size;

    NRD_TRY(nrd_vision_visit_pair(visit, user, "patch_embed.proj", s->hidden, patch, s->patch_bias));
    if (s->positions_side) {
        NRD_TRY(visit(user, "pos_embed.weight", (int64_t)s->positions_side * s->positions_side, s->hidden));
    }
    if (s->pre_norm) {
        NRD_TRY(visit(user, "pre_norm.weight", s->hidden, 0));
    }
    for (int32_t i = 0; i < s->n_layers; i++) {
        NRD_TRY(visit_grid_layer(s, i, visit, user));
    }
    if (s->plain) {
        return visit_plain_end(s, out_hidden, visit, user);
    }
    for (int32_t i = 0; i < s->n_deep; i++) {
        char at[32];
        snprintf(at, sizeof at, "deepstack.%d", i);
        NRD_TRY(visit_merger(s, at, true, out_hidden, visit, user));
    }
    return visit_merger(s, "merger", false, out_hidden, visit, user);
}

static nrd_error *visit_mllama_layer(const nrd_vision_spec *s, const char *stack, int32_t layer, bool gated, nrd_vision_visitor visit,
                                     void *user)
{
    const struct {
        const char *name;
        int64_t rows, cols;
        bool has_bias;
    } parts[] = {
        {"input_layernorm", s->hidden, 0, true},
        {"self_attn.q_proj", s->hidden, s->hidden, false},
        {"self_attn.k_proj", s->hidden, s->hidden, false},
        {"self_attn.v_proj", s->hidden, s->hidden, false},
        {"self_attn.o_proj", s->hidden, s->hidden, false},
        {"post_attention_layernorm", s->hidden, 0, true},
        {"mlp.fc1", s->inter, s->hidden, true},
        {"mlp.fc2", s->hidden, s->inter, true},
    };
    char stem[NRD_VISION_MAX_NAME - 16];
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(stem, sizeof stem, "%s.layers.%d.%s", stack, layer, parts[i].name);
        NRD_TRY(nrd_vision_visit_pair(visit, user, stem, parts[i].rows, parts[i].cols, parts[i].has_bias));
    }
    for (int i = 0; i < 2 && gated; i++) {
        snprintf(stem, sizeof stem, "%s.layers.%d.%s", stack, layer, i ? "gate_ffn" : "gate_attn");
        NRD_TRY(visit(user, stem, 1, 0));
    }
    return NULL;
}

static nrd_error *visit_mllama(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user)
{
    const int64_t patch = 3 * (int64_t)s->patch_size * s->patch_size, ids = 1 + s->n_layouts, tiles = s->most_tiles, states = nrd_vision_n_states(s);
    const struct {
        const char *name;
        int64_t rows, cols;
    } parts[] = {
        {"patch_embedding.weight", s->hidden, patch},
        {"class_embedding", s->hidden, 0},
        {"gated_positional_embedding.gate", 1, 0},
        {"gated_positional_embedding.embedding", states, s->hidden},
        {"gated_positional_embedding.tile_embedding.weight", ids, tiles * states * s->hidden},
        {"pre_tile_positional_embedding.gate", 1, 0},
        {"pre_tile_positional_embedding.embedding.weight", ids, tiles * s->hidden},
        {"post_tile_positional_embedding.gate", 1, 0},
        {"post_tile_positional_embedding.embedding.weight", ids, tiles * s->hidden},
        {NRD_VISION_IMAGE_TOKEN, 1, out_hidden},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        NRD_TRY(visit(user, parts[i].name, parts[i].rows, parts[i].cols));
    }
    NRD_TRY(nrd_vision_visit_pair(visit, user, "layernorm_pre", s->hidden, 0, true));
    NRD_TRY(nrd_vision_visit_pair(visit, user, "layernorm_post", s->hidden, 0, true));
    for (int32_t i = 0; i < s->n_layers + s->n_global; i++) {
        const bool global = i >= s->n_layers;
        NRD_TRY(visit_mllama_layer(s, global ? "global_transformer" : "transformer", global ? i - s->n_layers : i, global, visit, user));
    }
    NRD_TRY(visit(user, NRD_VISION_PROJECTOR "weight", out_hidden, (int64_t)s->hidden * (1 + s->n_taken)));
    return visit(user, NRD_VISION_PROJECTOR "bias", out_hidden, 0);
}

bool nrd_vision_respell(const char *name, int i, char *out, size_t n)
{
    static const char *const qwen3[][2] = {
        {"mlp.fc", "mlp.linear_fc"}, {"mlp.0", "linear_fc1"}, {"mlp.2", "linear_fc2"}, {"ln_q", "norm"},
        {"deepstack.", "deepstack_merger_list."}, {NULL, NULL},
    };
    static const char *const pixtral[][2] = {
        {"patch_embed.proj", "patch_conv"}, {"blocks.", "transformer.layers."}, {"norm1", "attention_norm"}, {"norm2", "ffn_norm"},
        {"attn.proj", "attention.o_proj"}, {"attn.q.", "attention.q_proj."}, {"attn.k.", "attention.k_proj."},
        {"attn.v.", "attention.v_proj."}, {"mlp.", "feed_forward."}, {"pre_norm", "ln_pre"}, {NULL, NULL},
    };
    static const char *const intern[][2] = {
        {"embeddings.class_embedding", "embeddings.cls_token"}, {"embeddings.position_embedding.weight", "embeddings.position_embeddings"},
        {"embeddings.patch_embedding", "embeddings.patch_embeddings.projection"}, {"encoder.layers.", "encoder.layer."},
        {"layer_norm1", "layernorm_before"}, {"layer_norm2", "layernorm_after"}, {"self_attn.out_proj", "attention.projection_layer"},
        {"self_attn.", "attention."}, {NULL, NULL},
    };
    static const char *const blip2[][2] = {
        {"embeddings.position_embedding.weight", "embeddings.position_embedding"}, {"self_attn.out_proj", "self_attn.projection"}, {NULL, NULL},
    };
    static const char *const phi3[][2] = {{"linear_1", "0"}, {"linear_2", "2"}, {NULL, NULL}};
    static const char *const qwen1[][2] = {
        {"embeddings.patch_embedding", "conv1"}, {"embeddings.position_embedding.weight", "positional_embedding"}, {"pre_layrnorm", "ln_pre"},
        {"post_layernorm", "ln_post"}, {"encoder.layers.", "transformer.resblocks."}, {"layer_norm", "ln_"}, {"self_attn.qkv", "attn.in_proj"},
        {"self_attn.", "attn."}, {"mlp.fc1", "mlp.c_fc"}, {"mlp.fc2", "mlp.c_proj"}, {NULL, NULL},
    };
    static const char *const cogvlm[][2] = {
        {"embeddings.patch_embedding", "patch_embedding.proj"}, {"embeddings.class_embedding", "patch_embedding.cls_embedding"},
        {"embeddings.position_embedding", "patch_embedding.position_embedding"}, {NULL, NULL},
    };
    const char *const(*const all[])[2] = {NULL, qwen3, pixtral, intern, blip2, phi3, qwen1, cogvlm};
    const int n_all = (int)(sizeof all / sizeof all[0]);
    const char *const(*spelling)[2] = i < n_all ? all[i] : NULL;

    snprintf(out, n, "%s", name);
    for (; spelling && (*spelling)[0]; spelling++) {
        char rest[2 * NRD_VISION_MAX_NAME];
        char *at = strstr(out, (*spelling)[0]);
        if (at) {
            snprintf(rest, sizeof rest, "%s", at + strlen((*spelling)[0]));
            snprintf(at, n - (size_t)(at - out), "%s%s", (*spelling)[1], rest);
        }
    }
    return i < n_all;
}

nrd_error *nrd_vision_visit(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user)
{
    if (s->swin.n_stages) {
        return nrd_vision_visit_swin(s, visit, user);
    }
    if (s->bare) {
        NRD_TRY(s->seated ? visit(user, "embeddings.row_embedder.weight", s->n_positions, out_hidden) : NULL);
        NRD_TRY(s->seated ? visit(user, "embeddings.column_embedder.weight", s->n_positions, out_hidden) : NULL);
        return nrd_vision_visit_pair(visit, user, s->seated ? "embeddings.patch_projection" : "vision_embed_tokens", out_hidden, 3 * (int64_t)s->patch_size * s->patch_size, true);
    }
    return s->post_normed ? nrd_vision_visit_cogvlm(s, out_hidden, visit, user) : s->read_by_layers ? visit_mllama(s, out_hidden, visit, user) : s->sandwiched ? nrd_vision_visit_gemma4(s, out_hidden, visit, user) : s->any_size ? visit_grid(s, out_hidden, visit, user) : visit_fixed(s, out_hidden, visit, user);
}
