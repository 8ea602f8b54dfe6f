/* SPDX-License-Identifier: Apache-2.0
 * Keeps states of a step's tokens until the next step (nrd_runner_config.taps). They lie at fixed places, so that recorded
 * steps keep them too. */
#include "engine/run/runner_internal.h"

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
    NRD_ASSERT(!r->comm && !nrd_run_is_staged(r), "states are kept by engines of one rank");
    return nrd_run_alloc(r, &r->taps, (size_t)t->n * (size_t)r->cfg.max_tokens * (size_t)r->spec->hidden, r->act_bytes,
                         "activations");
}

nrd_error *nrd_run_tap(nrd_runner *r, int32_t layer, int32_t n_tokens)
{
    const size_t bytes = (size_t)n_tokens * (size_t)r->spec->hidden * r->act_bytes;

    for (int32_t i = 0; i < r->cfg.taps.n; i++) {
        if (r->cfg.taps.layer[i] == layer) {
            NRD_TRY(r->dev->ops->copy(r->stream, tap_at(r, i), r->x, bytes));
        }
    }
    return NULL;
}

static int32_t final_tap(const nrd_runner *r)
{
    for (int32_t i = 0; i < r->cfg.taps.n; i++) {
        if (r->cfg.taps.layer[i] == r->spec->n_layers) {
            return i;
        }
    }
    return -1;
}

nrd_error *nrd_run_tap_final(nrd_runner *r, int32_t n_tokens)
{
    const int32_t i = final_tap(r);
    const nrd_norm_args a = {
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .delta = r->delta,
        .delta_weight = r->w.layers[r->spec->n_layers - 1].post_mlp_norm,
        .residual = r->x,
        .weight = r->w.final_norm,
        .bias = r->w.final_norm_bias,
        .out = i >= 0 ? tap_at(r, i) : NULL,
        .out_dtype = r->act,
        .act_dtype = r->act,
    };
    return i >= 0 ? r->dev->ops->norm(r->stream, &a) : NULL;
}

bool nrd_run_head_adds_delta(const nrd_runner *r)
{
    return nrd_run_leaves_delta(r) && final_tap(r) < 0;
}
