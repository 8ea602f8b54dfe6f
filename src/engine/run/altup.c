/* SPDX-License-Identifier: Apache-2.0
 * Layers of tokens that have several states (Baykal et al., Alternating Updates, 2023), as Gemma 3n has them.
 *
 * Before a layer all states are predicted. Attention and MLP read and write the first; beside attention stands a product
 * through few numbers. What they made of it corrects all states, and the layer's input (layer_inputs.c), gated by the first state,
 * is added to the others.
 *
 * Where a number is a norm's only reader, its scale goes into the norm's epsilon: norm(x / s) with epsilon e is norm(x) with
 * e s^2. So the sum of attention and what stands beside it is not divided by the root of 2 until it is a state again. */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

enum { STATES = NRD_SPEC_ALTUP_STATES };
#define INV_SQRT2 0.70710678f
#define FLOOR 1e-5f /* of mean squares that are divided by */

nrd_error *nrd_run_init_altup(nrd_runner *r)
{
    const size_t state = (size_t)r->cfg.max_tokens * (size_t)r->spec->hidden;

    if (!nrd_spec_has_altup(r->spec)) {
        return NULL;
    }
    NRD_TRY(nrd_run_alloc(r, &r->token_states, (STATES + 1) * state, r->act_bytes, "activations"));
    return nrd_run_alloc(r, &r->beside, state, r->act_bytes, "activations");
}

void nrd_run_free_altup(nrd_runner *r)
{
    nrd_run_free(r, r->token_states);
    nrd_run_free(r, r->beside);
}

/* State k of a step's n tokens; number STATES is room. */
static void *state_of(const nrd_runner *r, int32_t k, int32_t n)
{
    return (uint8_t *)r->token_states + (size_t)k * (size_t)n * (size_t)r->spec->hidden * r->act_bytes;
}

static nrd_error *mark_states(nrd_runner *r, int32_t n, double rows)
{
    return nrd_run_mark(r, NRD_PROFILE_NORM, n, rows * r->spec->hidden * (double)r->act_bytes, 0);
}

/* residual += norm(delta) */
static nrd_error *add_normed(nrd_runner *r, int32_t n, void *residual, const void *delta, const nrd_weight *weight)
{
    const nrd_norm_args a = {
        .eps = r->spec->norm_eps,
        .n_tokens = n,
        .hidden = r->spec->hidden,
        .delta = delta,
        .delta_weight = weight,
        .residual = residual,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return mark_states(r, n, 3);
}

/* out = norm(x), as activations or as `next` wants them. */
static nrd_error *norm_into(nrd_runner *r, int32_t n, const nrd_weight *weight, float eps, const nrd_product *next, void *out)
{
    const nrd_norm_args a = nrd_run_norm_args(r, NRD_NORM_RMS, eps, n, r->spec->hidden, r->x, weight, next, out);
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return mark_states(r, n, 2);
}

/* The states of a token before the first layer: its embedding, which is in x, and products of it that are as large. */
static nrd_error *make_states(nrd_runner *r, int32_t n)
{
    const nrd_altup_match_args a = {
        .n_tokens = n,
        .hidden = r->spec->hidden,
        .n = STATES - 1,
        .like = r->x,
        .x = state_of(r, 1, n),
        .floor = FLOOR,
        .act_dtype = r->act,
    };
    for (int32_t k = 1; k < STATES; k++) {
        NRD_TRY(nrd_run_plain_product(r, n, &r->w.altup_in[k - 1], r->x, state_of(r, k, n)));
    }
    NRD_TRY(r->dev->ops->copy(r->stream, state_of(r, 0, n), r->x, (size_t)n * (size_t)r->spec->hidden * r->act_bytes));
    NRD_TRY(r->dev->ops->altup_match(r->stream, &a));
    return mark_states(r, n, 2 * STATES + 1);
}

/* x = the mean of the first state and of products of the others that are as large. A product goes to the place behind what it
 * reads, from the last to the first. */
static nrd_error *join_states(nrd_runner *r, int32_t n)
{
    const nrd_altup_match_args a = {
        .n_tokens = n,
        .hidden = r->spec->hidden,
        .n = STATES - 1,
        .like = state_of(r, 0, n),
        .x = state_of(r, 2, n),
        .floor = FLOOR,
        .mean = r->x,
        .act_dtype = r->act,
    };
    for (int32_t k = STATES - 1; k > 0; k--) {
        NRD_TRY(nrd_run_plain_product(r, n, &r->w.altup_out[k - 1], state_of(r, k, n), state_of(r, k + 1, n)));
    }
    NRD_TRY(r->dev->ops->altup_match(r->stream, &a));
    return mark_states(r, n, 2 * STATES);
}

static nrd_altup_router router_of(const nrd_runner *r, const nrd_altup_layer *y)
{
    return (nrd_altup_router){.norm = y->router_norm->data, .router = y->router->data, .eps = r->spec->norm_eps};
}

static nrd_error *predict(nrd_runner *r, int32_t n, const nrd_altup_layer *y)
{
    const nrd_altup_predict_args a = {
        .n_tokens = n,
        .hidden = r->spec->hidden,
        .n_states = STATES,
        .states = r->token_states,
        .router = router_of(r, y),
        .coefs = y->predict->data,
        .active = r->x,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->altup_predict(r->stream, &a));
    return mark_states(r, n, 2 * STATES + 1);
}

/* x = the root of 2 times the state behind attention: x + norm(attention) + what stands beside it. */
static nrd_error *attend(nrd_runner *r, const nrd_batch *b, int32_t layer)
{
    const nrd_layer *y = &r->w.layers[layer];
    const int32_t n = b->view.n_tokens;
    const float eps = r->spec->norm_eps;
    const void *x;

    NRD_TRY(norm_into(r, n, y->attn_norm, eps, NULL, r->beside));
    NRD_TRY(nrd_run_plain_input(r, n, &y->qkv, r->beside, r->normed, &x));
    NRD_TRY(nrd_run_attend(r, b, layer, x));
    NRD_TRY(add_normed(r, n, r->x, r->delta, y->post_attn_norm));
    NRD_TRY(nrd_run_plain_product(r, n, &y->altup.laurel_left, r->beside, r->narrow));
    NRD_TRY(nrd_run_plain_product(r, n, &y->altup.laurel_right, r->narrow, r->delta));
    NRD_TRY(add_normed(r, n, r->beside, r->delta, y->altup.laurel_norm));
    return add_normed(r, n, r->x, r->beside, NULL);
}

/* All states, by what attention and the MLP (in delta) made; beside = the first one, scaled. */
static nrd_error *correct(nrd_runner *r, int32_t n, const nrd_layer *y)
{
    const nrd_altup_correct_args a = {
        .n_tokens = n,
        .hidden = r->spec->hidden,
        .n_states = STATES,
        .states = r->token_states,
        .x = r->x,
        .delta = r->delta,
        .x_scale = INV_SQRT2,
        .delta_weight = y->post_mlp_norm->data,
        .router = router_of(r, &y->altup),
        .coefs = y->altup.correct->data,
        .scale = y->altup.scale->data,
        .out = r->beside,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->altup_correct(r->stream, &a));
    return mark_states(r, n, 2 * STATES + 3);
}

/* The layer's input, gated by beside, to all states but the first. */
static nrd_error *add_layer_input(nrd_runner *r, int32_t n, int32_t layer)
{
    NRD_TRY(nrd_run_layer_input(r, n, layer, r->beside));
    for (int32_t k = 1; k < STATES; k++) {
        NRD_TRY(add_normed(r, n, state_of(r, k, n), r->delta, r->w.layers[layer].input.norm));
    }
    return NULL;
}

nrd_error *nrd_run_altup_layers(nrd_runner *r, const nrd_batch *b)
{
    const int32_t n = b->view.n_tokens;

    NRD_TRY(nrd_run_embed_layer_inputs(r, b));
    NRD_TRY(make_states(r, n));
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        const nrd_layer *y = &r->w.layers[i];
        NRD_TRY(nrd_weight_stream_enter(r->w.streamed, r->stream, i));
        NRD_TRY(predict(r, n, &y->altup));
        NRD_TRY(attend(r, b, i));
        NRD_TRY(norm_into(r, n, y->mlp_norm, 2 * r->spec->norm_eps, &y->up, r->normed));
        NRD_TRY(nrd_run_mlp(r, b, i, r->normed));
        NRD_TRY(correct(r, n, y));
        NRD_TRY(add_layer_input(r, n, i));
        NRD_TRY(nrd_weight_stream_leave(r->w.streamed, r->stream, i));
    }
    return join_states(r, n);
}
