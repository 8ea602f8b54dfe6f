/* SPDX-License-Identifier: Apache-2.0
 * A layer's MLP, or the experts in its place (experts.c). */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

/* What pictures add to the states behind a layer goes into the delta: with ranks into that of the one that has the rows. */
static nrd_error *add_deep_rows(nrd_runner *r, const nrd_batch *b, int32_t layer)
{
    const nrd_model_spec *m = r->spec;
    const nrd_add_rows_args a = {
        .n_tokens = b->view.n_tokens,
        .hidden = m->hidden,
        .rows = b->prompts,
        .skip = (int64_t)(layer + 1) * m->hidden,
        .out = r->delta,
        .dtype = r->act,
    };
    if (layer >= r->n_deep || !b->prompts) {
        return NULL;
    }
    NRD_TRY(r->dev->ops->add_rows(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_EMBED, a.n_tokens, 3.0 * m->hidden * (double)r->act_bytes, 0);
}

nrd_error *nrd_run_mlp(nrd_runner *r, const nrd_batch *b, int32_t layer, const void *x)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    int32_t n_tokens = b->view.n_tokens;
    nrd_act_args act = nrd_run_act_args(r, n_tokens, nrd_spec_inter(m, layer), &y->down, r->row_scale);
    void *mid = r->mid;

    act.xielu_p = y->xielu_p;
    act.xielu_n = y->xielu_n;
    act.cutoff = m->layer_cutoff[layer];
    if (y->up.n == 0) {
        NRD_TRY(nrd_run_experts(r, layer, n_tokens, x));
        NRD_TRY(add_deep_rows(r, b, layer));
        return nrd_run_sum_delta(r, n_tokens);
    }
    if (y->inner_mlp_norm) {
        act.out_dtype = r->act;
        act.out_row_scale = NULL;
        mid = r->up;
    }
    NRD_TRY(nrd_run_tell_input(r, layer, NRD_LORA_AT_UP, &y->up, x, n_tokens));
    bool done = false;
    if (!b->token_slot && y->of_picture.up.n == 0) {
        NRD_TRY(nrd_run_gated_product(r, &y->up, &act, x, &y->down, &done));
    }
    if (!done) {
        NRD_TRY(nrd_run_split_product(r, &y->up, &y->of_picture.up, x, n_tokens, r->up));
        NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_UP, &y->up, n_tokens, r->act));
        NRD_TRY(nrd_run_adapters(r, b, layer, NRD_LORA_AT_UP, &y->up, x, r->up));
        NRD_TRY(nrd_run_act(r, &act, &y->down));
    }
    NRD_TRY(y->inner_mlp_norm ? nrd_run_inner_norm(r, n_tokens, act.inter, y->inner_mlp_norm, y->inner_mlp_bias, r->mid, &y->down, mid) : NULL);
    NRD_TRY(nrd_run_tell_input(r, layer, NRD_LORA_AT_DOWN, &y->down, mid, n_tokens));
    NRD_TRY(nrd_run_delta_product(r, b, layer, &y->down, &y->of_picture.down, mid));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_DOWN, &y->down, n_tokens, r->act));
    NRD_TRY(nrd_run_adapters(r, b, layer, NRD_LORA_AT_DOWN, &y->down, mid, r->delta));
    NRD_TRY(nrd_run_add_experts_before(r, n_tokens));
    NRD_TRY(add_deep_rows(r, b, layer));
    return nrd_run_sum_delta(r, n_tokens);
}
