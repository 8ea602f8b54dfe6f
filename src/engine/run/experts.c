/* SPDX-License-Identifier: Apache-2.0
 * A layer's mixture of experts: the router's product and the choice, the chosen experts, those that all tokens go
 * through, and the sum. Which experts a step takes only the device knows: a recorded step serves every choice.
 *
 * The router reads what the norm wrote, in full precision; experts of quantized weights get it converted, in the
 * memory that attention's result has left. Every rank makes the same choice and computes the pairs of its own experts, or
 * its part of them; what the ranks give is added up, as behind any MLP. */
#include "base/dtype.h"
#include "base/mem.h"
#include "engine/run/blocks.h"
#include "engine/run/operations.h"
#include "model/needs.h"

#include <stdio.h>
#include <stdlib.h>

static void put(nrd_dtype t, void *out, int64_t i, float v)
{
    if (t == NRD_DTYPE_F32) {
        ((float *)out)[i] = v;
    } else {
        ((uint16_t *)out)[i] = t == NRD_DTYPE_BF16 ? nrd_f32_to_bf16(v) : nrd_f32_to_f16(v);
    }
}

struct nrd_run_expert_memory {
    float *router;              /* [max_tokens, experts and the shared ones' gate] */
    float *pair_scale;          /* [max_tokens * top_k] of rows between experts' products, in F8 */
    void *out;                  /* [max_tokens * top_k, hidden] */
    void *sum_biases;           /* [n_layers, hidden] of what their experts give together, or NULL */
    const void **sum_bias_rows; /* [max_tokens] the first of them, over and over */
};

/* The biases of the sums, for the rank that adds them. */
static nrd_error *init_sum_biases(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    nrd_error *err = NULL;
    char name[96];
    char *host = NULL;
    const void **rows = NULL;
    void *p = NULL;

    if (!m->moe.sum_bias || r->cfg.rank.rank % m->tp_size > 0) {
        return NULL;
    }
    if (!r->dev->ops->add_rows) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "biases of what experts give together, which the device does not add; use --device cpu");
    }
    const size_t n = (size_t)m->n_layers * (size_t)m->hidden, t = (size_t)r->cfg.max_tokens;
    NRD_NEW_GOTO(host, n * r->act_bytes, err, done);
    NRD_NEW_GOTO(rows, t, err, done);
    for (int32_t i = 0; i < m->n_layers; i++) {
        snprintf(name, sizeof name, NRD_LAYER_PREFIX "mlp." NRD_SUM_BIAS, i);
        const nrd_weight *w = nrd_spec_layer_has_experts(m, i) ? nrd_engine_weight(r->engine, name) : NULL;
        NRD_TRY_GOTO(w ? nrd_weight_check(w, name) : NULL, err, done);
        for (int32_t k = 0; w && k < m->hidden; k++) {
            float v = 0;
            nrd_weight_row(w, k, &v);
            put(r->act, host, (int64_t)i * m->hidden + k, v);
        }
    }
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, n, r->act_bytes, "activations"), err, done);
    r->experts->sum_biases = p;
    NRD_TRY_GOTO(nrd_run_upload(r, p, host, n * r->act_bytes), err, done);
    for (size_t i = 0; i < t; i++) {
        rows[i] = r->experts->sum_biases;
    }
    NRD_TRY_GOTO(nrd_run_alloc(r, &p, t, sizeof *rows, "activations"), err, done);
    r->experts->sum_bias_rows = p;
    err = nrd_run_upload(r, p, rows, t * sizeof *rows);
done:
    free(host);
    free(rows);
    return err;
}

static nrd_error *add_sum_bias(nrd_runner *r, int32_t layer, int32_t n_tokens)
{
    const nrd_add_rows_args a = {
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .rows = r->experts->sum_bias_rows,
        .skip = (int64_t)layer * r->spec->hidden,
        .out = r->delta,
        .dtype = r->act,
    };
    if (!r->experts->sum_bias_rows) {
        return NULL;
    }
    NRD_TRY(r->dev->ops->add_rows(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_EXPERTS_SUM, n_tokens, 3.0 * r->spec->hidden * (double)r->act_bytes, 0);
}

nrd_error *nrd_run_init_experts(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    const size_t t = (size_t)r->cfg.max_tokens, pairs = t * (size_t)m->moe.top_k;
    nrd_error *err = NULL;
    void *p = NULL;

    if (!m->has_experts) {
        return NULL;
    }
    NRD_NEW_GOTO(r->experts, 1, err, fail); /* what is allocated is freed with the runner */
    NRD_TRY(init_sum_biases(r));
    r->pairs.n_experts = m->moe.n_experts;
    r->pairs.top_k = m->moe.top_k;
    NRD_TRY(nrd_run_alloc(r, &p, pairs, sizeof(int32_t), "activations"));
    r->pairs.expert = p;
    NRD_TRY(nrd_run_alloc(r, &p, pairs, sizeof(float), "activations"));
    r->pairs.weight = p;
    NRD_TRY(nrd_run_alloc(r, &p, (size_t)m->moe.n_experts + 1, sizeof(int32_t), "activations"));
    r->pairs.first = p;
    NRD_TRY(nrd_run_alloc(r, &p, pairs, sizeof(int32_t), "activations"));
    r->pairs.token = p;
    NRD_TRY(nrd_run_alloc(r, &p, pairs, sizeof(int32_t), "activations"));
    r->pairs.place = p;
    NRD_TRY(nrd_run_alloc(r, &p, t * (size_t)(m->moe.n_experts + 1), sizeof(float), "activations"));
    r->experts->router = p;
    NRD_TRY(nrd_run_alloc(r, &p, pairs, sizeof(float), "activations"));
    r->experts->pair_scale = p;
    if (m->moe.beside_mlp) {
        NRD_TRY(nrd_run_alloc(r, &r->beside, t * (size_t)m->hidden, r->act_bytes, "activations"));
    }
    err = nrd_run_alloc(r, &r->experts->out, pairs * (size_t)m->hidden, r->act_bytes, "activations");
fail:
    return err;
}

void nrd_run_free_experts(nrd_runner *r)
{
    nrd_run_expert_memory *e = r->experts;
    if (!e) {
        return;
    }
    void *mem[] = {r->pairs.expert, r->pairs.weight, r->pairs.first, r->pairs.token, r->pairs.place,
                   e->router,       e->pair_scale,   e->out,         e->sum_biases,  e->sum_bias_rows};
    for (size_t i = 0; i < sizeof mem / sizeof mem[0]; i++) {
        nrd_run_free(r, mem[i]);
    }
    free(e);
}

/* Of what moe_route writes, this rank's experts. */
static nrd_moe_pairs own_pairs(const nrd_runner *r)
{
    nrd_moe_pairs p = r->pairs;
    p.n_experts = nrd_spec_own_experts(r->spec, r->cfg.rank.rank);
    p.first += nrd_spec_first_expert(r->spec, r->cfg.rank.rank);
    return p;
}

nrd_error *nrd_run_route(nrd_runner *r, int32_t layer, int32_t n_tokens, const void *x)
{
    const nrd_experts *y = &r->w.layers[layer].experts;
    const nrd_moe_spec *m = &r->spec->moe;
    nrd_moe_route_args a = {
        .n_tokens = n_tokens,
        .logits = r->experts->router,
        .logits_stride = y->router.rows,
        .score = m->score,
        .bias = y->score_bias ? y->score_bias->data : NULL,
        .n_groups = m->n_groups,
        .top_groups = m->top_groups,
        .group_max = m->group_max,
        .normalize = m->normalize,
        .scale = m->scale,
        .expert_scale = y->scale ? y->scale->data : NULL,
        .jitter = m->jitter,
        .pairs = r->pairs,
    };
    NRD_TRY(nrd_run_product(r, &y->router, x, n_tokens, r->experts->router, NRD_DTYPE_F32, 0));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_ROUTER, &y->router, n_tokens, NRD_DTYPE_F32));
    NRD_TRY(r->dev->ops->moe_route(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_ROUTER, n_tokens,
                        (double)y->router.rows * sizeof(float) + 16.0 * r->pairs.top_k, 0);
}

/* What all tokens go through, into delta. */
static nrd_error *shared(nrd_runner *r, int32_t layer, int32_t n_tokens, const void *x)
{
    const nrd_experts *y = &r->w.layers[layer].experts;
    NRD_TRY(nrd_run_tell_input(r, layer, NRD_LORA_AT_UP, &y->shared_up, x, n_tokens));
    const nrd_act_args act = nrd_run_act_args(r, n_tokens, r->spec->moe.shared_inter, &y->shared_down, r->row_scale);
    bool done;
    NRD_TRY(nrd_run_gated_product(r, &y->shared_up, &act, x, &y->shared_down, &done));
    if (!done) {
        NRD_TRY(nrd_run_product(r, &y->shared_up, x, n_tokens, r->up, r->act, 0));
        NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_UP, &y->shared_up, n_tokens, r->act));
        NRD_TRY(nrd_run_act(r, &act, &y->shared_down));
    }
    NRD_TRY(nrd_run_tell_input(r, layer, NRD_LORA_AT_DOWN, &y->shared_down, r->mid, n_tokens));
    NRD_TRY(nrd_run_product(r, &y->shared_down, r->mid, n_tokens, r->delta, r->act, 0));
    return nrd_run_mark_product(r, NRD_PROFILE_DOWN, &y->shared_down, n_tokens, r->act);
}

static nrd_moe_linear_args product_args(const nrd_runner *r, const nrd_product *p, int32_t n_tokens, const void *x, bool x_sorted, void *y)
{
    nrd_moe_linear_args a = {
        .n_tokens = n_tokens,
        .pairs = own_pairs(r),
        .x = x,
        .x_sorted = x_sorted,
        .x_dtype = p->in_dtype,
        .x_row_scale = !p->in_row_scale ? NULL : x_sorted ? r->experts->pair_scale : r->row_scale,
        .n_parts = p->n,
        .y = y,
        .y_dtype = r->act,
        .deterministic = r->cfg.deterministic,
    };
    for (int32_t i = 0; i < p->n; i++) {
        a.w[i] = p->w[i];
        a.bias[i] = p->bias[i];
    }
    return a;
}

static nrd_error *product(nrd_runner *r, nrd_profile_op op, const nrd_product *p, const nrd_moe_linear_args *a)
{
    NRD_TRY(r->dev->ops->moe_linear(r->stream, a));
    return nrd_run_mark_experts(r, op, p, a->n_tokens);
}

nrd_error *nrd_run_routed(nrd_runner *r, int32_t layer, int32_t n_tokens, const void *x)
{
    const nrd_experts *y = &r->w.layers[layer].experts;
    const nrd_moe_spec *m = &r->spec->moe;
    const bool has_shared = y->shared_up.n > 0;
    nrd_moe_sum_args sum = {
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .pairs = own_pairs(r),
        .y = r->experts->out,
        .shared = has_shared ? r->delta : NULL,
        .shared_gate = m->shared_gate ? r->experts->router + m->n_experts : NULL,
        .gate_stride = y->router.rows,
        .out = r->delta,
        .act_dtype = r->act,
    };
    nrd_act_args act = nrd_run_act_args(r, n_tokens * m->top_k, m->inter, &y->down, r->experts->pair_scale);

    if (m->scale_input) { /* the first product is linear: its result may be scaled in the input's place */
        act.in_scale = r->pairs.weight; /* one expert a token: a pair's weight is its token's */
        act.in_scale_id = r->pairs.token;
        sum.pairs.weight = NULL;
    }
    NRD_TRY(nrd_run_tell_experts(r, layer, NRD_LORA_AT_UP, &y->up, x, n_tokens, r->experts->out));
    const nrd_moe_linear_args up = product_args(r, &y->up, n_tokens, x, false, r->up);
    bool done;
    NRD_TRY(nrd_run_gated_experts(r, &y->up, &up, &act, &y->down, &done));
    if (!done) {
        NRD_TRY(product(r, NRD_PROFILE_EXPERTS_UP, &y->up, &up));
        NRD_TRY(nrd_run_act(r, &act, &y->down));
    }
    NRD_TRY(nrd_run_tell_experts(r, layer, NRD_LORA_AT_DOWN, &y->down, r->mid, n_tokens, NULL));
    const nrd_moe_linear_args down = product_args(r, &y->down, n_tokens, r->mid, true, r->experts->out);
    NRD_TRY(product(r, NRD_PROFILE_EXPERTS_DOWN, &y->down, &down));
    if (has_shared) { /* behind the others: the scales of x's rows give way to those between the two products */
        NRD_TRY(shared(r, layer, n_tokens, x));
    }
    NRD_TRY(r->dev->ops->moe_sum(r->stream, &sum));
    return nrd_run_mark(r, NRD_PROFILE_EXPERTS_SUM, n_tokens,
                        (double)(m->top_k + 1 + has_shared) * r->spec->hidden * (double)r->act_bytes, 0);
}

nrd_error *nrd_run_experts(nrd_runner *r, int32_t layer, int32_t n_tokens, const void *x)
{
    const nrd_experts *y = &r->w.layers[layer].experts;

    NRD_TRY(nrd_run_route(r, layer, n_tokens, x));
    if (y->router.in_dtype != y->up.in_dtype) {
        NRD_TRY(nrd_run_plain_input(r, n_tokens, &y->up, x, r->att, &x));
    }
    NRD_TRY(nrd_run_routed(r, layer, n_tokens, x));
    return add_sum_bias(r, layer, n_tokens);
}
