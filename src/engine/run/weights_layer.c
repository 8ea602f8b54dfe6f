/* SPDX-License-Identifier: Apache-2.0
 * The weights of a layer: attention, states, MLP or experts, and what some families have beside them. */
#include "engine/run/loader.h"

#include "base/dtype.h"
#include "base/hash.h"
#include "base/mem.h"
#include "model/needs.h"

#include <math.h>
#include <stdio.h>

static nrd_error *load_latent(nrd_loader *l, int32_t i, nrd_layer *y)
{
    nrd_latent_layer *x = &y->latent;

    if (l->spec->latent.q_rank > 0) {
        NRD_TRY(nrd_loader_add_part(l, &y->qkv, i, "attention.q_a.weight", NULL));
        NRD_TRY(nrd_loader_get(l, i, "attention.q_a_layernorm.weight", &x->q_norm));
        NRD_TRY(nrd_loader_add_part(l, &x->q_b, i, "attention.q_b.weight", NULL));
        nrd_loader_finish_product(l, &x->q_b);
    } else {
        NRD_TRY(nrd_loader_add_part(l, &y->qkv, i, "attention.q_b.weight", NULL));
    }
    nrd_loader_finish_product(l, &y->qkv);
    NRD_TRY(nrd_loader_add_part(l, &x->kv_a, i, "attention.kv_a.weight", NULL));
    nrd_loader_finish_product(l, &x->kv_a);
    nrd_loader_share_input(l, &y->qkv, &x->kv_a);
    NRD_TRY(nrd_loader_get(l, i, "attention.kv_a_layernorm.weight", &x->kv_norm));
    NRD_TRY(nrd_loader_get(l, i, "attention.k_b.weight", &x->k_b));
    NRD_TRY(nrd_loader_get(l, i, "attention.v_b.weight", &x->v_b));
    NRD_TRY(nrd_loader_add_summed(l, &y->dense, i, "attention.dense.weight", NULL));
    return nrd_loader_add_input(l, &y->dense, i, "attention.dense");
}

/* y->q_only is set. */
static nrd_error *load_attention(nrd_loader *l, int32_t i, nrd_layer *y)
{
    char full[NRD_LOADER_NAME];

    if (nrd_spec_is_latent(l->spec)) {
        return load_latent(l, i, y);
    }
    snprintf(full, sizeof full, NRD_LAYER_PREFIX "attention.qkv.weight", i);
    if (y->q_only) {
        NRD_TRY(nrd_loader_add_part(l, &y->qkv, i, NRD_QUERY, NULL));
    } else if (nrd_engine_weight(l->engine, full)) {
        NRD_TRY(nrd_loader_add_part(l, &y->qkv, i, "attention.qkv.weight", "attention.qkv.bias"));
    } else {
        NRD_TRY(nrd_loader_add_part(l, &y->qkv, i, "attention.q.weight", "attention.q.bias"));
        NRD_TRY(nrd_loader_add_part(l, &y->qkv, i, "attention.k.weight", "attention.k.bias"));
        NRD_TRY(nrd_loader_add_part(l, &y->qkv, i, "attention.v.weight", "attention.v.bias"));
    }
    nrd_loader_finish_product(l, &y->qkv);
    NRD_TRY(y->q_only ? NULL : nrd_loader_add_input(l, &y->qkv, i, "attention.qkv"));
    NRD_TRY(nrd_loader_get(l, i, "attention.q_layernorm.weight", &y->q_norm));
    NRD_TRY(nrd_loader_get(l, i, "attention.k_layernorm.weight", &y->k_norm));
    NRD_TRY(nrd_loader_get(l, i, "attention.q_layernorm.bias", &y->q_norm_bias));
    NRD_TRY(nrd_loader_get(l, i, "attention.k_layernorm.bias", &y->k_norm_bias));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_SINKS, &y->sinks));
    NRD_TRY(nrd_loader_add_part(l, &y->gate, i, "attention.gate.weight", NULL));
    if (y->gate.n > 0) {
        nrd_loader_finish_product(l, &y->gate);
        nrd_loader_share_input(l, &y->qkv, &y->gate);
    }
    NRD_TRY(nrd_loader_add_summed(l, &y->dense, i, "attention.dense.weight", "attention.dense.bias"));
    return nrd_loader_add_input(l, &y->dense, i, "attention.dense");
}

/* softplus of one of xIELU's numbers; `plus` is added. */
static nrd_error *load_xielu(nrd_loader *l, int32_t i, const char *name, float plus, float *out)
{
    char full[NRD_LOADER_NAME];
    float v = 0;

    snprintf(full, sizeof full, NRD_LAYER_PREFIX "%s", i, name);
    const nrd_weight *w = nrd_engine_weight(l->engine, full);
    if (!w) {
        return NULL; /* the table of needs asked for it where the network has it */
    }
    NRD_TRY(nrd_weight_check(w, full));
    nrd_weight_row(w, 0, &v);
    *out = plus + (v > 20 ? v : log1pf(expf(v)));
    return isfinite(*out) ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be a number, got %g", full, (double)v);
}

/* What makes the time steps, b and c of Mamba's channels. */
static nrd_error *load_time_steps(nrd_loader *l, int32_t i, nrd_recurrent *y)
{
    nrd_product *const products[] = {&y->x_dt, &y->x_bc, &y->dt};
    static const char *const names[] = {NRD_RECURRENT "x_dt.weight", NRD_RECURRENT "x_bc.weight", NRD_RECURRENT "dt.weight"};

    for (int k = 0; k < 3; k++) {
        NRD_TRY(nrd_loader_add_part(l, products[k], i, names[k], NULL));
        nrd_loader_finish_product(l, products[k]);
    }
    nrd_loader_share_input(l, &y->x_dt, &y->x_bc);
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "A_states", &y->a));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "dt_norm.weight", &y->dt_norm));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "c_norm.weight", &y->c_norm));
    return nrd_loader_get_f32(l, i, NRD_RECURRENT "bc_norm.weight", &y->bc_norm);
}

static nrd_error *load_recurrent(nrd_loader *l, int32_t i, nrd_recurrent *y)
{
    NRD_TRY(nrd_loader_add_part(l, &y->in, i, NRD_RECURRENT "in.weight", NRD_RECURRENT "in.bias"));
    NRD_TRY(nrd_loader_add_part(l, &y->in, i, NRD_RECURRENT "gate.weight", NRD_RECURRENT "gate.bias"));
    NRD_TRY(nrd_loader_add_part(l, &y->in, i, NRD_RECURRENT "beta.weight", NULL));
    NRD_TRY(nrd_loader_add_part(l, &y->in, i, NRD_RECURRENT "alpha.weight", NULL));
    nrd_loader_finish_product(l, &y->in);
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "conv.weight", &y->conv));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "conv.bias", &y->conv_bias));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "A", &y->a));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "D", &y->d));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "dt_bias", &y->dt_bias));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "norm.weight", &y->norm));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "in_gate.weight", &y->in_gate));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "in_gate.bias", &y->in_gate_bias));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "decay_gate.weight", &y->decay_gate));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "decay_gate.bias", &y->decay_gate_bias));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_RECURRENT "decay", &y->decay));
    if (l->spec->recurrent.kind == NRD_RECURRENT_MAMBA) {
        NRD_TRY(load_time_steps(l, i, y));
    }
    return nrd_loader_add_summed(l, &y->out, i, NRD_RECURRENT "out.weight", NRD_RECURRENT "out.bias");
}

/* The ranges that were calibrated, one for each head of keys and then of values, over the largest code of the cache's type; or one
 * scale for all, as TensorRT-LLM has it. */
static nrd_error *load_kv_scales(nrd_loader *l, int32_t i, nrd_layer *y)
{
    const nrd_model_spec s = nrd_spec_of_rank(l->spec, l->rank);
    const int32_t n = 2 * nrd_spec_kv_heads(&s, i);
    char full[NRD_LOADER_NAME];
    float *host = NULL;

    snprintf(full, sizeof full, NRD_LAYER_PREFIX NRD_KV_RANGE, i);
    const nrd_weight *src = nrd_engine_weight(l->engine, full);
    const float top = !src ? 1.0f : l->kv_dtype == NRD_DTYPE_I8 ? 127.0f : 448.0f;
    const bool is_range = src != NULL;
    if (!src) {
        snprintf(full, sizeof full, NRD_LAYER_PREFIX NRD_KV_SCALE, i);
        src = nrd_engine_weight(l->engine, full);
    }
    if (!src || (l->kv_dtype != NRD_DTYPE_I8 && l->kv_dtype != NRD_DTYPE_F8_E4M3)) {
        return NULL;
    }
    NRD_TRY(nrd_weight_check(src, full));
    host = nrd_aligned_zalloc(64, (size_t)n * sizeof *host);
    if (!host) {
        return nrd_error_no_memory();
    }
    nrd_loaded *slot = &l->ws->loaded[l->ws->n_loaded++];
    *slot = (nrd_loaded){.host = host};
    for (int32_t k = 0; k < n; k++) {
        nrd_weight_row(src, is_range ? k : 0, &host[k]);
        if (!(host[k] > 0) || !isfinite(host[k])) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be above 0, got %g", full, (double)host[k]);
        }
        host[k] /= top;
    }
    y->kv_scales_hash = nrd_hash_bytes(0, host, (size_t)n * sizeof *host);
    const nrd_weight w = {.dtype = NRD_DTYPE_F32, .rows = n, .cols = 1, .data = host, .scale = 1,
                          .data_bytes = (size_t)n * sizeof *host};
    NRD_TRY(l->ws->dev->ops->weight_load(l->stream, &w, false, &slot->w, &slot->owned));
    y->kv_scales = &slot->w;
    return NULL;
}

static nrd_error *add_router(nrd_loader *l, int32_t i, nrd_product *router)
{
    NRD_TRY(nrd_loader_add_part(l, router, i, "mlp.router.weight", "mlp.router.bias"));
    NRD_TRY(nrd_loader_add_part(l, router, i, "mlp.shared_router.weight", NULL));
    nrd_loader_finish_product(l, router);
    return NULL;
}

static nrd_error *load_experts(nrd_loader *l, int32_t i, nrd_experts *x)
{
    NRD_TRY(nrd_loader_add_part(l, &x->up, i, "mlp.experts.fc.weight", "mlp.experts.fc.bias"));
    NRD_TRY(nrd_loader_add_part(l, &x->up, i, "mlp.experts.gate.weight", "mlp.experts.gate.bias"));
    nrd_loader_finish_product(l, &x->up);
    /* Both read the norm's rows. A GPU multiplies float32 by float32 alone, which these are only where experts are of it. */
    l->rounds_f32 = x->up.in_dtype != NRD_DTYPE_F32;
    NRD_TRY(add_router(l, i, &x->router));
    l->rounds_f32 = false;
    NRD_TRY(nrd_loader_get_f32(l, i, "mlp." NRD_SCORE_BIAS, &x->score_bias));
    NRD_TRY(nrd_loader_add_summed(l, &x->down, i, "mlp.experts.proj.weight", "mlp.experts.proj.bias"));
    if (l->spec->moe.shared_inter > 0) {
        NRD_TRY(nrd_loader_add_part(l, &x->shared_up, i, "mlp.shared.fc.weight", NULL));
        NRD_TRY(nrd_loader_add_part(l, &x->shared_up, i, "mlp.shared.gate.weight", NULL));
        nrd_loader_finish_product(l, &x->shared_up);
        NRD_TRY(nrd_loader_add_part(l, &x->shared_down, i, "mlp.shared.proj.weight", NULL));
        nrd_loader_finish_product(l, &x->shared_down);
    }
    nrd_loader_share_input(l, &x->up, &x->shared_up);
    if (x->router.in_dtype != l->ws->act_dtype) { /* what the router reads is converted for the experts */
        nrd_loader_share_input(l, &x->router, &x->up);
        nrd_loader_share_input(l, &x->up, &x->shared_up);
    }
    return NULL;
}

/* What experts have that stand beside an MLP. What the router reads is divided by the root of its length: so is the norm's weight. */
static nrd_error *load_beside(nrd_loader *l, int32_t i, nrd_experts *x)
{
    char full[NRD_LOADER_NAME];

    NRD_TRY(nrd_loader_get(l, i, "mlp.experts_norm.weight", &x->norm));
    if (l->spec->moe.before_attention) {
        return NULL;
    }
    snprintf(full, sizeof full, NRD_LAYER_PREFIX NRD_ROUTER_NORM, i);
    NRD_TRY(nrd_loader_get_times(l, full, 1 / sqrtf((float)l->spec->hidden), &x->router_norm));
    NRD_TRY(nrd_loader_get_f32(l, i, NRD_EXPERT_SCALE, &x->scale));
    NRD_TRY(nrd_loader_get(l, i, "mlp.experts_post_norm.weight", &x->post_norm));
    return nrd_loader_get(l, i, "mlp.dense_post_norm.weight", &x->mlp_post_norm);
}

static nrd_error *load_mlp(nrd_loader *l, int32_t i, nrd_layer *y)
{
    if (nrd_spec_layer_has_experts(l->spec, nrd_spec_first_layer(l->spec, l->rank) + i)) {
        NRD_TRY(load_experts(l, i, &y->experts));
        if (!l->spec->moe.beside_mlp) {
            return NULL;
        }
        NRD_TRY(load_beside(l, i, &y->experts));
    }
    NRD_TRY(load_xielu(l, i, NRD_XIELU_P, 0, &y->xielu_p));
    NRD_TRY(load_xielu(l, i, NRD_XIELU_N, 0.5f, &y->xielu_n));
    NRD_TRY(nrd_loader_add_part(l, &y->up, i, "mlp.fc.weight", "mlp.fc.bias"));
    NRD_TRY(nrd_loader_add_part(l, &y->up, i, "mlp.gate.weight", "mlp.gate.bias"));
    nrd_loader_finish_product(l, &y->up);
    NRD_TRY(nrd_loader_add_input(l, &y->up, i, "mlp.fc"));
    NRD_TRY(nrd_loader_add_summed(l, &y->down, i, "mlp.proj.weight", "mlp.proj.bias"));
    return nrd_loader_add_input(l, &y->down, i, "mlp.proj");
}

static nrd_error *load_altup_layer(nrd_loader *l, int32_t i, nrd_altup_layer *y)
{
    if (!nrd_spec_has_altup(l->spec)) {
        return NULL;
    }
    NRD_TRY(nrd_loader_get_f32(l, i, "altup.router_norm.weight", &y->router_norm));
    NRD_TRY(nrd_loader_get_f32(l, i, "altup.router.weight", &y->router));
    NRD_TRY(nrd_loader_get_f32(l, i, "altup.predict.weight", &y->predict));
    NRD_TRY(nrd_loader_get_f32(l, i, "altup.correct.weight", &y->correct));
    NRD_TRY(nrd_loader_get_f32(l, i, "altup.scale", &y->scale));
    NRD_TRY(nrd_loader_product(l, &y->laurel_left, i, "laurel.left.weight"));
    NRD_TRY(nrd_loader_product(l, &y->laurel_right, i, "laurel.right.weight"));
    return nrd_loader_get(l, i, "laurel.norm.weight", &y->laurel_norm);
}

static nrd_error *load_layer_input(nrd_loader *l, int32_t i, nrd_layer_input *y)
{
    if (!nrd_spec_has_layer_inputs(l->spec)) {
        return NULL;
    }
    NRD_TRY(nrd_loader_product(l, &y->gate, i, "per_layer.gate.weight"));
    NRD_TRY(nrd_loader_product(l, &y->proj, i, "per_layer.proj.weight"));
    return nrd_loader_get(l, i, "per_layer.post_norm.weight", &y->norm);
}

/* The part that reads an encoder's states. */
static nrd_error *load_cross(nrd_loader *l, int32_t i, nrd_layer *y)
{
    if (!l->spec->cross_attention) {
        return NULL;
    }
    NRD_TRY(nrd_loader_get(l, i, "cross_attention_layernorm.weight", &y->cross_norm));
    NRD_TRY(nrd_loader_get(l, i, "cross_attention_layernorm.bias", &y->cross_norm_bias));
    NRD_TRY(nrd_loader_add_part(l, &y->cross_q, i, "cross_attention.q.weight", "cross_attention.q.bias"));
    nrd_loader_finish_product(l, &y->cross_q);
    NRD_TRY(nrd_loader_add_part(l, &y->cross_kv, i, "cross_attention.k.weight", "cross_attention.k.bias"));
    NRD_TRY(nrd_loader_add_part(l, &y->cross_kv, i, "cross_attention.v.weight", "cross_attention.v.bias"));
    nrd_loader_finish_product(l, &y->cross_kv);
    NRD_TRY(nrd_loader_add_part(l, &y->cross_dense, i, "cross_attention.dense.weight", "cross_attention.dense.bias"));
    nrd_loader_finish_product(l, &y->cross_dense);
    return NULL;
}

/* A weight that is one number. */
static nrd_error *load_number(const nrd_loader *l, int32_t i, const char *name, float *out)
{
    const nrd_weight *w;
    char full[NRD_LOADER_NAME];

    snprintf(full, sizeof full, NRD_LAYER_PREFIX "%s", i, name);
    w = nrd_engine_weight(l->engine, full);
    NRD_ASSERT(w && w->rows == 1 && w->cols == 1, "it was checked that it is there");
    nrd_weight_row(w, 0, out);
    return isfinite(*out) ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "weight %s is no finite number", full);
}

static nrd_error *load_picture_gate(const nrd_loader *l, int32_t i, const char *name, float *out)
{
    NRD_TRY(load_number(l, i, name, out));
    *out = tanhf(*out);
    return NULL;
}

static nrd_error *load_layer_scale(const nrd_loader *l, int32_t i, float *out)
{
    if (!l->spec->layer_scale) {
        return NULL;
    }
    NRD_TRY(load_number(l, i, NRD_LAYER_SCALE, out));
    return *out == 0 ? nrd_errorf(NRD_ERR_INVALID_ARG, "weight " NRD_LAYER_PREFIX NRD_LAYER_SCALE " is 0: nothing would be left of the "
                                  "state", i)
                     : NULL;
}

/* The layer in front that reads pictures. */
static nrd_error *load_picture_layer(nrd_loader *l, int32_t i, nrd_picture_layer *y)
{
    if (!nrd_spec_reads_pictures(l->spec) || !l->spec->layer_is_behind_gap[i]) {
        return NULL;
    }
    NRD_TRY(nrd_loader_get(l, i, NRD_PICTURE "input_layernorm.weight", &y->attn_norm));
    NRD_TRY(nrd_loader_get(l, i, NRD_PICTURE "post_layernorm.weight", &y->mlp_norm));
    NRD_TRY(nrd_loader_get(l, i, NRD_PICTURE "q_layernorm.weight", &y->q_norm));
    NRD_TRY(nrd_loader_get(l, i, NRD_PICTURE "k_layernorm.weight", &y->k_norm));
    NRD_TRY(nrd_loader_add_part(l, &y->q, i, NRD_PICTURE "q.weight", NULL));
    nrd_loader_finish_product(l, &y->q);
    NRD_TRY(nrd_loader_add_part(l, &y->kv, i, NRD_PICTURE "k.weight", NULL));
    NRD_TRY(nrd_loader_add_part(l, &y->kv, i, NRD_PICTURE "v.weight", NULL));
    nrd_loader_finish_product(l, &y->kv);
    NRD_TRY(nrd_loader_add_part(l, &y->dense, i, NRD_PICTURE "dense.weight", NULL));
    nrd_loader_finish_product(l, &y->dense);
    NRD_TRY(nrd_loader_add_part(l, &y->up, i, NRD_PICTURE "fc.weight", NULL));
    NRD_TRY(nrd_loader_add_part(l, &y->up, i, NRD_PICTURE "gate.weight", NULL));
    nrd_loader_finish_product(l, &y->up);
    NRD_TRY(nrd_loader_add_part(l, &y->down, i, NRD_PICTURE "proj.weight", NULL));
    nrd_loader_finish_product(l, &y->down);
    NRD_TRY(load_picture_gate(l, i, NRD_PICTURE "attention_gate", &y->attn_gate));
    return load_picture_gate(l, i, NRD_PICTURE "mlp_gate", &y->mlp_gate);
}

/* What a picture's embeddings take, behind what others do. */
static nrd_error *load_of_picture(nrd_loader *l, int32_t i, nrd_layer *y)
{
    nrd_picture_weights *x = &y->of_picture;
    char full[NRD_LOADER_NAME];

    if (l->spec->picture_rows == 0) {
        return NULL;
    }
    snprintf(full, sizeof full, NRD_LAYER_PREFIX NRD_OF_PICTURE "qkv.bias", i);
    NRD_TRY(nrd_loader_add_part(l, &x->qkv, i, NRD_OF_PICTURE "qkv.weight", nrd_engine_weight(l->engine, full) ? NRD_OF_PICTURE "qkv.bias" : NULL));
    nrd_loader_finish_product(l, &x->qkv);
    nrd_loader_share_input(l, &y->qkv, &x->qkv);
    NRD_TRY(nrd_loader_product(l, &x->dense, i, NRD_OF_PICTURE "dense.weight"));
    nrd_loader_share_input(l, &y->dense, &x->dense);
    NRD_TRY(nrd_loader_add_part(l, &x->up, i, NRD_OF_PICTURE "fc.weight", NULL));
    NRD_TRY(nrd_loader_add_part(l, &x->up, i, NRD_OF_PICTURE "gate.weight", NULL));
    nrd_loader_finish_product(l, &x->up);
    nrd_loader_share_input(l, &y->up, &x->up);
    NRD_TRY(nrd_loader_product(l, &x->down, i, NRD_OF_PICTURE "proj.weight"));
    nrd_loader_share_input(l, &y->down, &x->down);
    return NULL;
}

nrd_error *nrd_loader_layer(nrd_loader *l, int32_t i, nrd_layer *y)
{
    NRD_TRY(nrd_loader_get(l, i, "input_layernorm.weight", &y->attn_norm));
    NRD_TRY(nrd_loader_get(l, i, "input_layernorm.bias", &y->attn_norm_bias));
    const int32_t layer = nrd_spec_first_layer(l->spec, l->rank) + i;
    y->kv_layer = -1;
    if (l->spec->layer_is_recurrent[layer]) {
        NRD_TRY(load_recurrent(l, i, &y->recurrent));
    }
    if (nrd_spec_layer_has_attention(l->spec, layer)) {
        const int32_t source = nrd_spec_kv_source(l->spec, layer);
        y->q_only = source != layer;
        y->kv_layer = y->q_only ? l->ws->layers[source].kv_layer : l->n_kv_layers++;
        NRD_TRY(load_attention(l, i, y));
        NRD_TRY(y->q_only ? NULL : load_kv_scales(l, i, y));
    }
    NRD_TRY(nrd_loader_get(l, i, "attention.inner_layernorm.weight", &y->inner_attn_norm));
    NRD_TRY(nrd_loader_get(l, i, "attention.inner_layernorm.bias", &y->inner_attn_bias));
    NRD_TRY(nrd_loader_get(l, i, "mlp.inner_layernorm.weight", &y->inner_mlp_norm));
    NRD_TRY(nrd_loader_get(l, i, "mlp.inner_layernorm.bias", &y->inner_mlp_bias));
    NRD_TRY(load_altup_layer(l, i, &y->altup));
    NRD_TRY(load_layer_input(l, i, &y->input));
    NRD_TRY(load_layer_scale(l, i, &y->scale));
    NRD_TRY(nrd_loader_get(l, i, "post_attention_layernorm.weight", &y->post_attn_norm));
    NRD_TRY((nrd_spec_has_altup(l->spec) ? nrd_loader_get_f32 : nrd_loader_get)(l, i, "post_feedforward_layernorm.weight", &y->post_mlp_norm));
    NRD_TRY(load_cross(l, i, y));
    NRD_TRY(load_picture_layer(l, i, &y->picture));
    NRD_TRY(nrd_loader_get(l, i, "post_layernorm.weight", &y->mlp_norm));
    NRD_TRY(nrd_loader_get(l, i, "post_layernorm.bias", &y->mlp_norm_bias));
    NRD_TRY(l->spec->layer_has_no_mlp[layer] ? NULL : load_mlp(l, i, y));
    return load_of_picture(l, i, y);
}
