/* SPDX-License-Identifier: Apache-2.0
 * Keeps states of a step's tokens until the next step (nrd_runner_config.taps). They lie at fixed places, so that recorded
 * steps keep them too. */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

/* Where tap i begins. */
static void *tap_at(const nrd_runner *r, int32_t i)
{
    return (uint8_t *)r->taps + (size_t)i * (size_t)r->cfg.max_tokens * (size_t)r->spec->hidden * r->act_bytes;
}

nrd_error *nrd_run_init_taps(nrd_runner *r)
{
    const nrd_runner_taps *t = &r->cfg.taps;

    if (t->n == 0) {
        return NULL;
    }
    if (nrd_spec_has_altup(r->spec)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "these heads read the state behind some layers: tokens of this model (%s) have %d states "
                          "(AltUp)", r->spec->model_type, r->spec->altup.n_states);
    }
    if (nrd_run_is_staged(r)) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "these heads need states of all layers on rank 0: pp_size is %d; use tp_size",
                          r->model->pp_size);
    }
    return r->cfg.rank.rank > 0 ? NULL
                                : nrd_run_alloc(r, &r->taps, (size_t)t->n * (size_t)r->cfg.max_tokens * (size_t)r->spec->hidden,
                                                r->act_bytes, "activations");
}

/* The first tap of a layer, or -1. */
static int32_t tap_of(const nrd_runner *r, int32_t layer)
{
    for (int32_t i = 0; i < r->cfg.taps.n; i++) {
        if (r->cfg.taps.layer[i] == layer) {
            return i;
        }
    }
    return -1;
}

bool nrd_run_is_tapped(const nrd_runner *r, int32_t layer)
{
    return tap_of(r, layer) >= 0;
}

nrd_error *nrd_run_tap(nrd_runner *r, int32_t layer, int32_t n_tokens)
{
    const size_t bytes = (size_t)n_tokens * (size_t)r->spec->hidden * r->act_bytes;

    for (int32_t i = 0; i < r->cfg.taps.n && r->taps; i++) {
        if (r->cfg.taps.layer[i] == layer) {
            NRD_TRY(r->dev->ops->copy(r->stream, tap_at(r, i), r->x, bytes));
        }
    }
    return NULL;
}

nrd_error *nrd_run_tap_final(nrd_runner *r, int32_t n_tokens)
{
    const int32_t i = tap_of(r, r->spec->n_layers);
    const bool keeps = r->taps != NULL; /* the other ranks add the delta only, as rank 0 does here */
    const nrd_norm_args a = {
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .delta = nrd_run_leaves_delta(r) ? r->delta : NULL,
        .delta_weight = nrd_run_leaves_delta(r) ? nrd_run_last_norm(&r->w.layers[r->spec->n_layers - 1]) : NULL,
        .sum_scale = r->sum_scale,
        .residual = r->x,
        .weight = keeps ? r->w.final_norm : NULL,
        .bias = keeps ? r->w.final_norm_bias : NULL,
        .out = i >= 0 && keeps ? tap_at(r, i) : NULL,
        .out_dtype = r->act,
        .act_dtype = r->act,
    };
    return i >= 0 && (keeps || a.delta) ? r->dev->ops->norm(r->stream, &a) : NULL;
}

bool nrd_run_head_adds_delta(const nrd_runner *r)
{
    return nrd_run_leaves_delta(r) && !r->left_no_delta && !nrd_run_is_tapped(r, r->spec->n_layers);
}
