/* SPDX-License-Identifier: Apache-2.0
 * What a second embedding of the token has for each layer (Gemma 3n and 4): made once in front of the layers, and behind each of
 * them gated by the state and added to it. */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

#include <math.h>

#define INV_SQRT2 0.70710678f

nrd_error *nrd_run_init_layer_inputs(nrd_runner *r)
{
    const nrd_altup_spec *m = &r->spec->altup;
    const size_t t = (size_t)r->cfg.max_tokens, all = (size_t)m->per_layer * (size_t)r->spec->n_layers;
    const int32_t narrow = m->laurel_rank > m->per_layer ? m->laurel_rank : m->per_layer;

    if (!nrd_spec_has_layer_inputs(r->spec)) {
        return NULL;
    }
    NRD_TRY(nrd_run_alloc(r, &r->per_layer, t * all, r->act_bytes, "activations"));
    NRD_TRY(nrd_run_alloc(r, &r->per_layer_room, t * all, r->act_bytes, "activations"));
    return nrd_run_alloc(r, &r->narrow, t * (size_t)narrow, r->act_bytes, "activations");
}

void nrd_run_free_layer_inputs(nrd_runner *r)
{
    nrd_run_free(r, r->per_layer);
    nrd_run_free(r, r->per_layer_room);
    nrd_run_free(r, r->narrow);
}

nrd_error *nrd_run_embed_layer_inputs(nrd_runner *r, const nrd_batch *b)
{
    const nrd_model_spec *m = r->spec;
    const int32_t n = b->view.n_tokens, width = m->altup.per_layer;
    const nrd_embed_args e = {
        .n_tokens = n,
        .hidden = width * m->n_layers,
        .ids = b->ids,
        .slot_tokens = r->slot_tokens,
        .table = r->w.per_layer_embed,
        .scale = sqrtf((float)width),
        .out = r->per_layer,
        .out_dtype = r->act,
    };
    /* The mean of the token's row and of a normed product of its embedding, times the root of 2. The product is not divided by the
     * root of `hidden`: the norm's epsilon is larger instead. */
    const nrd_norm_args sum = {
        .eps = m->norm_eps * (float)m->hidden,
        .n_tokens = n * m->n_layers,
        .hidden = width,
        .delta = r->per_layer_room,
        .delta_weight = r->w.per_layer_norm,
        .sum_scale = INV_SQRT2,
        .residual = r->per_layer,
        .act_dtype = r->act,
    };

    if (!nrd_spec_has_layer_inputs(m)) {
        return NULL;
    }
    NRD_TRY(r->dev->ops->embed(r->stream, &e));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_EMBED, n, 2.0 * e.hidden * (double)r->act_bytes, 0));
    NRD_TRY(nrd_run_plain_product(r, n, &r->w.per_layer_proj, r->x, r->per_layer_room));
    NRD_TRY(r->dev->ops->norm(r->stream, &sum));
    return nrd_run_mark(r, NRD_PROFILE_NORM, n, 3.0 * e.hidden * (double)r->act_bytes, 0);
}

nrd_error *nrd_run_layer_input(nrd_runner *r, int32_t n_tokens, int32_t layer, const void *x)
{
    const int32_t width = r->spec->altup.per_layer;
    const nrd_layer_input *y = &r->w.layers[layer].input;
    nrd_act_args act = nrd_run_act_args(r, n_tokens, width, &y->proj, r->row_scale);

    NRD_TRY(nrd_run_plain_product(r, n_tokens, &y->gate, x, r->narrow));
    act.x = r->narrow;
    act.gated = true;
    act.up = (const uint8_t *)r->per_layer + (size_t)layer * (size_t)width * r->act_bytes;
    act.up_stride = (int64_t)width * r->spec->n_layers;
    NRD_TRY(nrd_run_act(r, &act, &y->proj));
    NRD_TRY(nrd_run_product(r, &y->proj, r->mid, n_tokens, r->delta, r->act, 0));
    return nrd_run_mark_product(r, NRD_PROFILE_DOWN, &y->proj, n_tokens, r->act);
}
