/* SPDX-License-Identifier: Apache-2.0
 * Layers of one token whose products do what stands in front of them and behind them: norms and roundings, activations, rotation and cache,
 * the sum with x. One sequence alone is bound by the number of its operations where layers are small: of such a layer there are five instead
 * of nine.
 *
 * Only of layers that are attention and an MLP, each with a norm before it, and where nobody else reads what is between the products.
 * Such layers leave no delta. What the device does not take is done one after the other. */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

#include "model/spec_recurrent.h"

/* A product of x, a row of activations. */
typedef struct join {
    const nrd_product *p;
    nrd_profile_op op;
    const void *x;
    const nrd_weight *norm, *norm_bias; /* NULL: none */
    const nrd_product *next; /* of an MLP's first product: the one that reads its activation; NULL: there is none */
    void *y; /* NULL: the result is added to the state */
} join;

/* Weights of the activations' type, and nothing about their input. */
static bool is_plain_product(const nrd_runner *r, const nrd_product *p)
{
    bool plain = p->n > 0 && p->in_dtype == r->act && !nrd_product_makes_input(p) && !p->can_be_plain && !p->rounds_input;
    for (int32_t i = 0; i < p->n; i++) {
        plain = plain && p->w[i]->dtype == r->act;
    }
    return plain;
}

static bool is_plain_layer(const nrd_runner *r, int32_t i)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[i];
    const nrd_picture_weights *of = &y->of_picture;

    return is_plain_product(r, &y->qkv) && is_plain_product(r, &y->dense) && is_plain_product(r, &y->up) && is_plain_product(r, &y->down) &&
           y->attn_norm && y->mlp_norm && !y->post_attn_norm && !y->post_mlp_norm && !y->inner_attn_norm && !y->inner_mlp_norm &&
           y->kv_layer >= 0 && !y->q_only && y->gate.n == 0 && y->recurrent.in.n == 0 && y->experts.router.n == 0 && y->input.gate.n == 0 &&
           y->picture.q.n == 0 && of->qkv.n == 0 && of->dense.n == 0 && of->up.n == 0 && of->down.n == 0 && y->scale == 0 &&
           m->layer_cutoff[i] == 0 && y->up.n == (m->gated_mlp ? 2 : 1);
}

static uint64_t weight_bytes(const nrd_product *p)
{
    uint64_t n = 0;
    for (int32_t i = 0; i < p->n; i++) {
        n += p->w[i]->data_bytes;
    }
    return n;
}

/* Whether they are so small that the device gains. */
static bool is_small_layer(const nrd_layer *y, uint64_t most)
{
    return weight_bytes(&y->qkv) + weight_bytes(&y->dense) + weight_bytes(&y->up) + weight_bytes(&y->down) <= most;
}

void nrd_run_init_joined(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    const nrd_runner_config *c = &r->cfg;
    nrd_device_info info;

    r->dev->ops->get_info(r->dev, &info);
    r->joins = r->dev->ops->linear_joined && !c->deterministic && !r->comm && r->is_first && r->is_last && !c->on_input && !c->on_cache &&
               c->taps.n == 0 && !m->parallel && m->pre_norms && !m->sum_norms && !m->encoder && !m->mtp && !m->has_experts &&
               m->act != NRD_ACT_XIELU && m->embed_width == 0 && m->n_layers > 0 && !nrd_spec_is_latent(m) && !nrd_spec_has_altup(m) &&
               !nrd_spec_has_layer_inputs(m) && nrd_recurrent_row(m) == 0 && !r->convolve;
    for (int32_t i = 0; r->joins && i < m->n_layers; i++) {
        r->joins = is_plain_layer(r, i) && is_small_layer(&r->w.layers[i], info.joined_layer_bytes);
    }
}

/* The same by operations of their own, where the device does not take it. */
static nrd_error *one_by_one(nrd_runner *r, const join *j)
{
    void *y = j->next ? r->up : j->y ? j->y : r->delta;
    const void *x = j->x;

    if (j->norm) {
        NRD_TRY(nrd_run_norm(r, 1, false, NULL, j->norm, j->norm_bias, j->p, NULL, 0));
        x = r->normed;
    }
    NRD_TRY(nrd_run_product(r, j->p, x, 1, y, r->act, 0));
    NRD_TRY(nrd_run_mark_product(r, j->op, j->p, 1, r->act));
    if (j->next) {
        const nrd_act_args act = nrd_run_act_args(r, 1, (int32_t)j->next->cols, j->next, NULL);
        return nrd_run_act(r, &act, j->next);
    }
    return j->y ? NULL : nrd_run_add_delta(r, 1, NULL);
}

static nrd_error *in_one(nrd_runner *r, const join *j, bool *done)
{
    const nrd_joined_args a = {
        .linear = nrd_run_product_args(r, j->p, j->x, 1, j->y, r->act, 0),
        .act_dtype = r->act,
        .x_is_plain = true,
        .norm = r->spec->norm,
        .norm_eps = r->spec->norm_eps,
        .norm_weight = j->norm,
        .norm_bias = j->norm_bias,
        .act = j->next ? r->spec->act : NRD_ACT_NONE,
        .gated = j->next && r->spec->gated_mlp,
        .residual = j->y ? NULL : r->x,
    };
    NRD_TRY(r->dev->ops->linear_joined(r->stream, &a, done));
    return *done ? nrd_run_mark_product(r, j->op, j->p, 1, r->act) : NULL;
}

static nrd_error *run(nrd_runner *r, const join *j)
{
    bool done;
    NRD_TRY(in_one(r, j, &done));
    return done ? NULL : one_by_one(r, j);
}

/* x = what layer i makes of it. *done false: the device does not take the first product of the first layer, and nothing was done. */
static nrd_error *layer(nrd_runner *r, const nrd_batch *b, int32_t i, bool *done)
{
    const nrd_layer *y = &r->w.layers[i];
    const join qkv = {.p = &y->qkv, .op = NRD_PROFILE_QKV, .x = r->x, .norm = y->attn_norm, .norm_bias = y->attn_norm_bias, .y = r->qkv};
    const join dense = {.p = &y->dense, .op = NRD_PROFILE_DENSE, .x = r->att};
    const join up = {.p = &y->up, .op = NRD_PROFILE_UP, .x = r->x, .norm = y->mlp_norm, .norm_bias = y->mlp_norm_bias,
                     .next = &y->down, .y = r->mid};
    const join down = {.p = &y->down, .op = NRD_PROFILE_DOWN, .x = r->mid};

    NRD_TRY(in_one(r, &qkv, done));
    if (!*done && i == 0) {
        return NULL;
    }
    NRD_TRY(*done ? NULL : one_by_one(r, &qkv));
    *done = true;
    NRD_TRY(nrd_run_attend_heads(r, &b->view, i));
    NRD_TRY(run(r, &dense));
    NRD_TRY(run(r, &up));
    return run(r, &down);
}

static bool takes(const nrd_runner *r, const nrd_batch *b)
{
    return r->joins && b->view.n_tokens == 1 && !b->token_slot && !b->cross_place && !b->prompts && b->n_sight == 0;
}

nrd_error *nrd_run_joined_layers(nrd_runner *r, const nrd_batch *b, bool *done)
{
    *done = takes(r, b);
    for (int32_t i = 0; *done && i < r->spec->n_layers; i++) {
        NRD_TRY(nrd_weight_stream_enter(r->w.streamed, r->stream, i));
        NRD_TRY(layer(r, b, i, done));
        if (*done) {
            NRD_TRY(nrd_weight_stream_leave(r->w.streamed, r->stream, i));
        }
    }
    r->joins = r->joins && (*done || !takes(r, b));
    r->sum_scale = *done ? 0 : r->sum_scale;
    return NULL;
}
