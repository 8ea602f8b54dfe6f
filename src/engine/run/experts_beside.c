/* SPDX-License-Identifier: Apache-2.0
 * Experts that stand beside an MLP. In Gemma 4 both read the state that attention left, each behind a norm of its own, and so does the
 * router. What each of the two gives is normed before the sum. In Arctic experts and router read the state in front of attention, behind
 * one norm: they run first, and what they give waits in r->beside. */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

/* out = norm(x), as `next` wants it; NULL: activations. */
static nrd_error *norm_of(nrd_runner *r, int32_t n_tokens, void *x, const nrd_weight *weight, const nrd_product *next, void *out)
{
    const nrd_norm_args a = nrd_run_norm_args(r, r->spec->norm, r->spec->norm_eps, n_tokens, r->spec->hidden, x, weight, next, out);
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_NORM, n_tokens, 2.0 * r->spec->hidden * (double)r->act_bytes, 0);
}

nrd_error *nrd_run_experts_beside(nrd_runner *r, int32_t layer, int32_t n_tokens)
{
    const nrd_experts *y = &r->w.layers[layer].experts;
    const size_t bytes = (size_t)n_tokens * (size_t)r->spec->hidden * r->act_bytes;
    const nrd_norm_args sum = {
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .delta = r->delta,
        .delta_weight = y->post_norm,
        .residual = r->beside,
        .act_dtype = r->act,
    };

    NRD_TRY(norm_of(r, n_tokens, r->delta, y->mlp_post_norm, NULL, r->beside));
    NRD_TRY(norm_of(r, n_tokens, r->x, y->router_norm, &y->router, r->normed));
    NRD_TRY(nrd_run_route(r, layer, n_tokens, r->normed));
    NRD_TRY(norm_of(r, n_tokens, r->x, y->norm, &y->up, r->normed));
    NRD_TRY(nrd_run_routed(r, layer, n_tokens, r->normed));
    NRD_TRY(nrd_run_sum_delta(r, n_tokens));
    NRD_TRY(r->dev->ops->norm(r->stream, &sum));
    NRD_TRY(r->dev->ops->copy(r->stream, r->delta, r->beside, bytes));
    return nrd_run_mark(r, NRD_PROFILE_NORM, n_tokens, 5.0 * r->spec->hidden * (double)r->act_bytes, 0);
}

nrd_error *nrd_run_experts_before(nrd_runner *r, int32_t layer, int32_t n_tokens, bool has_delta, const nrd_weight *delta_weight)
{
    const nrd_experts *y = &r->w.layers[layer].experts;
    const size_t bytes = (size_t)n_tokens * (size_t)r->spec->hidden * r->act_bytes;

    NRD_TRY(nrd_run_norm(r, n_tokens, has_delta, delta_weight, y->norm, NULL, &y->router, NULL, 0));
    NRD_TRY(nrd_run_experts(r, layer, n_tokens, r->normed));
    NRD_TRY(r->dev->ops->copy(r->stream, r->beside, r->delta, bytes));
    return nrd_run_mark(r, NRD_PROFILE_NORM, n_tokens, 2.0 * r->spec->hidden * (double)r->act_bytes, 0);
}

nrd_error *nrd_run_add_experts_before(nrd_runner *r, int32_t n_tokens)
{
    const nrd_norm_args sum = {
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .delta = r->beside,
        .residual = r->delta,
        .act_dtype = r->act,
    };

    if (!r->spec->moe.before_attention) {
        return NULL;
    }
    NRD_TRY(r->dev->ops->norm(r->stream, &sum));
    return nrd_run_mark(r, NRD_PROFILE_NORM, n_tokens, 3.0 * r->spec->hidden * (double)r->act_bytes, 0);
}
