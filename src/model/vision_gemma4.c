/* SPDX-License-Identifier: Apache-2.0
 * Gemma 4's tower (2026) as config.json and preprocessor_config.json describe it: a picture keeps its shape and is as large as its tokens
 * allow, and means of squares of patches become rows. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const nrd_vision_bounds[NRD_VISION_N_BOUNDS] = {"input_min", "input_max", "output_min", "output_max"};

enum { MAX_POOL = 8, HEAD_STEP = 4 /* two axes of two halves */ };

bool nrd_vision_is_gemma4(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "gemma4");
}

static nrd_error *read_sizes(nrd_vision_spec *s, const nrd_json *v)
{
    int32_t head = 0, n_kv = 0;

    NRD_TRY(nrd_vision_get_int(v, "num_hidden_layers", 16, 1, NRD_SPEC_MAX_LAYERS, &s->n_layers));
    NRD_TRY(nrd_vision_get_int(v, "hidden_size", 768, 1, 1 << 16, &s->hidden));
    NRD_TRY(nrd_vision_get_int(v, "intermediate_size", 3072, 1, 1 << 18, &s->inter));
    NRD_TRY(nrd_vision_get_int(v, "num_attention_heads", 12, 1, s->hidden, &s->n_heads));
    NRD_TRY(nrd_vision_get_int(v, "num_key_value_heads", s->n_heads, 1, s->hidden, &n_kv));
    NRD_TRY(nrd_vision_get_int(v, "head_dim", 64, 1, NRD_SPEC_MAX_ROTARY, &head));
    NRD_TRY(nrd_vision_get_int(v, "patch_size", 16, 1, NRD_VISION_MAX_SIDE, &s->patch_size));
    NRD_TRY(nrd_vision_get_int(v, "pooling_kernel_size", 3, 1, MAX_POOL, &s->merge));
    NRD_TRY(nrd_vision_get_int(v, "position_embedding_size", 10240, 1, 1 << 20, &s->n_positions));
    if ((int64_t)head * s->n_heads != s->hidden || n_kv != s->n_heads || head % HEAD_STEP) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: %d heads of 'head_dim' %d, %d of keys and values; expected as many of them as "
                          "fill 'hidden_size' (%d), of a multiple of %d", s->n_heads, head, n_kv, s->hidden, (int)HEAD_STEP);
    }
    return NULL;
}

static nrd_error *read_tower(nrd_vision_spec *s, const nrd_json *config)
{
    const nrd_json *v = nrd_json_get(config, "vision_config"), *rope = nrd_json_get(v, "rope_parameters");
    const char *type = nrd_json_get_str(rope, "rope_type", "axial");
    const char *sight = nrd_json_get_str(nrd_json_get(config, "text_config"), "use_bidirectional_attention", "");

    s->any_size = s->gated = s->rms_norm = s->no_biases = s->apart = s->sandwiched = s->framed = true;
    s->frames = 1;
    s->both_ways = !strcmp(sight, "vision");
    NRD_TRY(read_sizes(s, v));
    NRD_TRY(nrd_hf_refuse(v, "attention_bias"));
    if (strcmp(type, "axial") && strcmp(type, "default")) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "vision_config: 'rope_type' must be axial, got '%.40s'", type);
    }
    s->rope_base = nrd_json_get_num(rope, "rope_theta", 100);
    if (!(s->rope_base > 1) || !isfinite(s->rope_base)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "vision_config: 'rope_theta' must be above 1, got %g", s->rope_base);
    }
    s->norm_eps = (float)nrd_json_get_num(v, "rms_norm_eps", 1e-6);
    s->clipped = nrd_json_get_bool(v, "use_clipped_linears", false);
    s->standardized = nrd_json_get_bool(v, "standardize", false);
    NRD_TRY(nrd_vision_get_act(v, "hidden_activation", "gelu_pytorch_tanh", &s->act));
    NRD_TRY(nrd_hf_int(config, "image_token_id", 258880, &s->image_token));
    NRD_TRY(nrd_hf_int(config, "boi_token_id", 255999, &s->start_token));
    NRD_TRY(nrd_hf_int(config, "eoi_token_id", 258882, &s->end_token));
    NRD_TRY(nrd_vision_in_range("image_token_id", s->image_token, 0, INT32_MAX));
    NRD_TRY(nrd_vision_in_range("boi_token_id", s->start_token, 0, INT32_MAX));
    return nrd_vision_in_range("eoi_token_id", s->end_token, 0, INT32_MAX);
}

/* Of so many tokens at most; the processor's numbers are scaled to -1 and 1 by the model. */
static nrd_error *read_input(nrd_vision_spec *s, const nrd_json *p)
{
    int32_t tokens = 0, patch = 0, pool = 0;

    NRD_TRY(nrd_vision_read_numbers(s, p));
    NRD_TRY(nrd_hf_refuse(p, "do_normalize"));
    if (!nrd_json_get_bool(p, "do_resize", true)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'do_resize' must be true for this tower");
    }
    s->input.resize = s->input.normalize = true;
    for (int c = 0; c < 3; c++) {
        s->input.mean[c] = s->input.deviation[c] = 0.5f;
    }
    NRD_TRY(nrd_hf_int(p, "patch_size", s->patch_size, &patch));
    NRD_TRY(nrd_hf_int(p, "pooling_kernel_size", s->merge, &pool));
    NRD_TRY(nrd_hf_int(p, "max_soft_tokens", 280, &tokens));
    if (patch != s->patch_size || pool != s->merge) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "preprocessor_config: 'patch_size' is %d and 'pooling_kernel_size' %d, the tower's are %d and %d",
                          patch, pool, s->patch_size, s->merge);
    }
    const int32_t most = NRD_VISION_MAX_PATCHES / (s->merge * s->merge), places = s->n_positions / s->merge;
    if (tokens < 1 || tokens > most || tokens > places) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "preprocessor_config: 'max_soft_tokens' is %d; 1 to %d are computed", tokens,
                          most < places ? most : places);
    }
    s->most_patches = tokens * s->merge * s->merge;
    return NULL;
}

nrd_error *nrd_vision_read_gemma4(nrd_vision_spec *s, const nrd_json *config, const nrd_json *processor)
{
    NRD_TRY(read_tower(s, config));
    return read_input(s, processor);
}

nrd_error *nrd_vision_fit_gemma4(const nrd_vision_spec *s, int32_t width, int32_t height, nrd_vision_grid *out)
{
    const double by = sqrt((double)s->most_patches * s->patch_size * s->patch_size / ((double)height * width));
    const double square = s->patch_size * s->merge, most = s->most_patches / (s->merge * s->merge);
    double tall = floor(by * height / square), wide = floor(by * width / square);

    if (tall < 1 && wide >= 1) {
        tall = 1;
        wide = fmin(floor((double)width / height), most);
    } else if (wide < 1 && tall >= 1) {
        wide = 1;
        tall = fmin(floor((double)height / width), most);
    }
    if (tall < 1 || wide < 1 || tall * wide > most) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a picture of %d x %d pixels fits into no %d squares of %d pixels a side", width, height,
                          (int)most, (int)square);
    }
    *out = (nrd_vision_grid){.height = (int32_t)tall * s->merge, .width = (int32_t)wide * s->merge};
    return NULL;
}

static nrd_error *visit_layer(const nrd_vision_spec *s, int32_t layer, nrd_vision_visitor visit, void *user)
{
    const int64_t hidden = s->hidden, inter = s->inter, head = s->hidden / s->n_heads;
    const struct {
        const char *name;
        int64_t rows, cols;
    } parts[] = {
        {"input_layernorm.weight", hidden, 0},
        {"post_attention_layernorm.weight", hidden, 0},
        {"pre_feedforward_layernorm.weight", hidden, 0},
        {"post_feedforward_layernorm.weight", hidden, 0},
        {"self_attn.q_norm.weight", head, 0},
        {"self_attn.k_norm.weight", head, 0},
        {"self_attn.q_proj.linear.weight", hidden, hidden},
        {"self_attn.k_proj.linear.weight", hidden, hidden},
        {"self_attn.v_proj.linear.weight", hidden, hidden},
        {"self_attn.o_proj.linear.weight", hidden, hidden},
        {"mlp.gate_proj.linear.weight", inter, hidden},
        {"mlp.up_proj.linear.weight", inter, hidden},
        {"mlp.down_proj.linear.weight", hidden, inter},
    };
    char name[NRD_VISION_MAX_NAME];
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        snprintf(name, sizeof name, "encoder.layers.%d.%s", layer, parts[i].name);
        NRD_TRY(visit(user, name, parts[i].rows, parts[i].cols));
        const size_t stem = strlen(name) - strlen("linear.weight");
        for (int k = 0; k < NRD_VISION_N_BOUNDS && s->clipped && parts[i].cols > 0; k++) {
            snprintf(name + stem, sizeof name - stem, "%s", nrd_vision_bounds[k]);
            NRD_TRY(visit(user, name, 1, 0));
        }
    }
    return NULL;
}

nrd_error *nrd_vision_visit_gemma4(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user)
{
    NRD_TRY(visit(user, "patch_embedder.input_proj.weight", s->hidden, 3 * (int64_t)s->patch_size * s->patch_size));
    NRD_TRY(visit(user, "patch_embedder.position_embedding_table", 2, (int64_t)s->n_positions * s->hidden));
    for (int32_t i = 0; i < s->n_layers; i++) {
        NRD_TRY(visit_layer(s, i, visit, user));
    }
    if (s->standardized) {
        NRD_TRY(visit(user, "std_bias", s->hidden, 0));
        NRD_TRY(visit(user, "std_scale", s->hidden, 0));
    }
    return visit(user, NRD_VISION_PROJECTOR "embedding_projection.weight", out_hidden, s->hidden);
}
