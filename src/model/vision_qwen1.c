/* SPDX-License-Identifier: Apache-2.0
 * The tower of Qwen-VL (Bai et al., 2023) as `visual` of config.json describes it: a square of patches whose learned positions are spread over
 * them, and learned queries that read the states once: what they see are the decoder's rows. */
#include "model/families/family.h"
#include "model/vision_internal.h"

#include <string.h>

enum {
    POSITIONS = 16,  /* on a side, whatever the picture's size */
    QUERY_HEAD = 128,
    START = 151857,  /* <img>; </img> and <imgpad> are behind it */
};

bool nrd_vision_is_qwen1(const nrd_json *config)
{
    return !strcmp(nrd_json_get_str(config, "model_type", ""), "qwen") && nrd_json_is(nrd_json_get(config, "visual"), NRD_JSON_OBJECT);
}

static nrd_error *read_layers(nrd_vision_spec *s, const nrd_json *v)
{
    const double ratio = nrd_json_get_num(v, "mlp_ratio", 4);

    NRD_TRY(nrd_vision_get_int(v, "image_size", 448, 1, NRD_VISION_MAX_SIDE, &s->image_size));
    NRD_TRY(nrd_vision_get_int(v, "patch_size", 14, 1, s->image_size, &s->patch_size));
    NRD_TRY(nrd_vision_get_int(v, "width", 1664, 1, 1 << 16, &s->hidden));
    NRD_TRY(nrd_vision_get_int(v, "heads", 16, 1, s->hidden, &s->n_heads));
    NRD_TRY(nrd_vision_get_int(v, "layers", 48, 1, NRD_SPEC_MAX_LAYERS, &s->n_layers));
    NRD_TRY(nrd_vision_check_heads("visual", s->hidden, s->n_heads));
    if (!(ratio > 0 && ratio * s->hidden >= 1 && ratio * s->hidden <= 1 << 18)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "visual: 'mlp_ratio' is %g, expected an MLP of 1 to %d numbers", ratio, 1 << 18);
    }
    s->inter = (int32_t)(ratio * s->hidden);
    return nrd_vision_in_range("image_size, in patches,", nrd_vision_n_patches(s), 1, NRD_VISION_MAX_PATCHES);
}

static nrd_error *read_queries(nrd_vision_spec *s, const nrd_json *v)
{
    nrd_vision_queries *x = &s->queries;
    int32_t side = 1;

    NRD_TRY(nrd_vision_get_int(v, "n_queries", 256, 1, nrd_vision_n_states(s), &x->n)); /* rows have room where states had it */
    NRD_TRY(nrd_vision_get_int(v, "output_dim", 4096, QUERY_HEAD, 1 << 16, &x->hidden));
    while ((side + 1) * (side + 1) <= x->n) {
        side++;
    }
    if (side * side != x->n) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "visual: 'n_queries' is %d, expected a square", x->n);
    }
    x->n_heads = x->hidden / QUERY_HEAD;
    x->norm_eps = s->norm_eps;
    return nrd_vision_check_heads("visual", x->hidden, x->n_heads);
}

nrd_error *nrd_vision_read_qwen1(nrd_vision_spec *s, const nrd_json *config)
{
    const nrd_json *v = nrd_json_get(config, "visual");
    int32_t start = 0;

    s->resampled = s->pre_norm = true;
    s->positions_side = POSITIONS;
    s->norm_eps = 1e-6f;
    s->act = NRD_ACT_GELU_ERF;
    NRD_TRY(read_layers(s, v));
    NRD_TRY(read_queries(s, v));
    NRD_TRY(nrd_vision_get_int(v, "image_start_id", START, 0, INT32_MAX - 2, &start));
    s->image_token = start + 2;
    NRD_TRY(nrd_vision_read_numbers(s, NULL)); /* the model has no preprocessor_config.json */
    s->input.resize = s->input.to_square = true;
    s->input.size = s->image_size;
    return NULL;
}

nrd_error *nrd_vision_visit_resampler(const nrd_vision_spec *s, int32_t out_hidden, nrd_vision_visitor visit, void *user)
{
    const int64_t n = s->queries.n, hidden = s->queries.hidden;
    const struct {
        const char *name;
        int64_t rows, cols;
    } parts[] = {
        {"attn_pool.pos_embed", n, hidden},
        {"attn_pool.query", n, hidden},
        {"attn_pool.attn.in_proj_weight", 3 * hidden, hidden},
        {"attn_pool.attn.in_proj_bias", 3 * hidden, 0},
        {"proj", hidden, out_hidden},
    };

    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        NRD_TRY(visit(user, parts[i].name, parts[i].rows, parts[i].cols));
    }
    if (s->hidden != s->queries.hidden) {
        NRD_TRY(visit(user, "attn_pool.kv_proj.weight", hidden, s->hidden));
    }
    NRD_TRY(nrd_vision_visit_pair(visit, user, "attn_pool.attn.out_proj", hidden, hidden, true));
    NRD_TRY(nrd_vision_visit_pair(visit, user, "attn_pool.ln_q", hidden, 0, true));
    NRD_TRY(nrd_vision_visit_pair(visit, user, "attn_pool.ln_kv", hidden, 0, true));
    return nrd_vision_visit_pair(visit, user, "post_layernorm", hidden, 0, true);
}
