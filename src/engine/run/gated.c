/* SPDX-License-Identifier: Apache-2.0
 * The first product of a gated MLP together with its activation, where the device has both in one. */
#include "engine/run/operations.h"

/* Where the result goes: it is in the activation type, which the product behind may want converted. */
static void *result_of(const nrd_runner *r, const nrd_act_args *act)
{
    return act->out_dtype == r->act ? act->out : r->up;
}

/* What is left of `act` when the product has done its function: the conversion. */
static nrd_error *convert(nrd_runner *r, const nrd_act_args *act, const nrd_product *down)
{
    nrd_act_args a = *act;

    a.kind = NRD_ACT_NONE;
    a.gated = false;
    return act->out_dtype == r->act ? NULL : nrd_run_act(r, &a, down);
}

static bool is_plain(const nrd_act_args *act)
{
    return act->gated && !act->in_scale && act->cutoff == 0;
}

nrd_error *nrd_run_gated_product(nrd_runner *r, const nrd_product *up, const nrd_act_args *act, const void *x, const nrd_product *down, bool *done)
{
    *done = false;
    if (!r->dev->ops->linear_gated || !is_plain(act) || up->n != 2 || nrd_product_makes_input(up)) {
        return NULL;
    }
    const nrd_linear_args a = nrd_run_product_args(r, up, x, act->n_tokens, result_of(r, act), r->act, 0);
    NRD_TRY(r->dev->ops->linear_gated(r->stream, &a, act->kind, done));
    if (!*done) {
        return NULL;
    }
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_UP, up, act->n_tokens, r->act));
    return convert(r, act, down);
}

nrd_error *nrd_run_gated_experts(nrd_runner *r, const nrd_product *up, const nrd_moe_linear_args *args, const nrd_act_args *act,
                                 const nrd_product *down, bool *done)
{
    nrd_moe_linear_args a = *args;

    *done = false;
    if (!r->dev->ops->moe_linear_gated || !is_plain(act) || up->n != 2) {
        return NULL;
    }
    a.y = result_of(r, act);
    NRD_TRY(r->dev->ops->moe_linear_gated(r->stream, &a, act->kind, done));
    if (!*done) {
        return NULL;
    }
    NRD_TRY(nrd_run_mark_experts(r, NRD_PROFILE_EXPERTS_UP, up, a.n_tokens));
    return convert(r, act, down);
}
