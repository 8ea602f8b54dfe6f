/* SPDX-License-Identifier: Apache-2.0
 * Loads an engine's weights in the order of the network, by the names of the table of needs
 * (model/needs.h); what is there and its shapes are checked before the first is loaded. With
 * float32 arithmetic, weights are dequantized on the host first, and the copies live as long as
 * the weights. */
#include "engine/run/weights.h"

#include "base/dtype.h"
#include "base/mem.h"
#include "model/needs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct nrd_loaded {
    nrd_weight w;
    bool owned; /* by the device */
    void *host; /* dequantized copy, or NULL */
} nrd_loaded;

typedef struct loader {
    nrd_weights *ws;
    nrd_stream *stream;
    const nrd_engine *engine;
    const nrd_model_spec *spec;
    int32_t rank, n_layers, n_kv_layers;
    nrd_dtype kv_dtype;
    bool compute_f32;
} loader;

enum { MAX_NAME = 128, LAYER_WEIGHTS = 48 /* at most */ };

/* A float32 copy in host rows, with every scale applied. */
static nrd_error *dequantize(const nrd_weight *w, const char *name, void **out_host,
                             nrd_weight *out)
{
    size_t n = 0, bytes = 0;

    NRD_TRY(nrd_weight_check(w, name));
    if (w->rows < 0 || w->cols <= 0 || !nrd_size_mul((size_t)w->rows, (size_t)w->cols, &n) ||
        !nrd_size_mul(n, sizeof(float), &bytes)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "weight %s has bad sizes", name);
    }
    float *dst = nrd_aligned_zalloc(64, bytes ? bytes : 64);
    if (!dst) {
        return nrd_error_no_memory();
    }
    for (int64_t r = 0; r < w->rows; r++) {
        nrd_weight_row(w, r, dst + (size_t)r * (size_t)w->cols);
    }
    *out = *w;
    out->dtype = NRD_DTYPE_F32;
    out->layout = NRD_LAYOUT_ROWS;
    out->data = dst;
    out->scales = NULL;
    out->scale = 1;
    out->data_bytes = bytes;
    *out_host = dst;
    return NULL;
}

static nrd_error *load_as(loader *l, const char *name, bool is_linear, const nrd_weight **out)
{
    nrd_weights *ws = l->ws;
    const nrd_weight *src = nrd_engine_weight(l->engine, name);
    nrd_weight f32;

    *out = NULL;
    if (!src) {
        return nrd_errorf(NRD_ERR_NOT_FOUND, "the engine has no weight %s", name);
    }
    NRD_ASSERT(ws->n_loaded < ws->cap_loaded, "the bound covers every layer's weights");
    nrd_loaded *slot = &ws->loaded[ws->n_loaded];
    *slot = (nrd_loaded){0};
    if (l->compute_f32 && src->dtype != NRD_DTYPE_F32) {
        NRD_TRY(dequantize(src, name, &slot->host, &f32));
        src = &f32;
    }
    nrd_error *err = ws->dev->ops->weight_load(l->stream, src, is_linear, &slot->w, &slot->owned);
    if (err) {
        free(slot->host);
        return nrd_error_wrap(err, "weight %s", name);
    }
    ws->n_loaded++;
    *out = &slot->w;
    return NULL;
}

/* A weight by its name in the table of needs; NULL where this model or this stage has none. Their presence and
 * their shapes were checked before (nrd_needs_check). */
static nrd_error *load(loader *l, int32_t layer, const char *name, const nrd_weight **out)
{
    const nrd_need *need = nrd_need_of(name);
    char full[MAX_NAME];

    NRD_ASSERT(need, "only weights of the table are asked for");
    *out = NULL;
    const int32_t first = nrd_spec_first_layer(l->spec, l->rank);
    if (!nrd_when_holds(l->spec, need->when) || !nrd_need_is_of(need, l->spec, l->rank) ||
        (need->is_layered && !nrd_need_is_in(need, l->spec, first + layer))) {
        return NULL;
    }
    if (need->is_layered) {
        snprintf(full, sizeof full, NRD_LAYER_PREFIX "%s", layer, name);
        name = full;
    }
    return load_as(l, name, need->is_linear, out);
}

/* Settles the input type of a product whose parts are loaded. */
static void finish_product(loader *l, nrd_product *p)
{
    nrd_device *dev = l->ws->dev;
    p->cols = p->w[0]->cols;
    p->rows = 0;
    for (int32_t i = 0; i < p->n; i++) {
        p->rows += p->w[i]->rows / (p->w[i]->n_stacked > 1 ? p->w[i]->n_stacked : 1);
        size_t row_bytes = 0;
        bool scale = false;
        nrd_dtype in = dev->ops->linear_input(dev, p->w[i], l->ws->act_dtype, &row_bytes, &scale);
        if (i == 0) {
            p->in_dtype = in;
            p->in_row_bytes = row_bytes;
            p->in_row_scale = scale;
        } else if (in != p->in_dtype) {
            /* Parts that want different inputs: plain activations suit them all. */
            p->in_dtype = l->ws->act_dtype;
            p->in_row_bytes = (size_t)p->cols * nrd_dtype_block_bytes(l->ws->act_dtype);
            p->in_row_scale = false;
        }
    }
    if (p->in_row_bytes > l->ws->max_in_row_bytes) {
        l->ws->max_in_row_bytes = p->in_row_bytes;
    }
}

/* Numbers of a vector of the engine as those of columns, behind those of the orders before. */
static nrd_error *read_order(loader *l, const nrd_weight *w, const char *name, int64_t cols)
{
    nrd_weights *ws = l->ws;
    nrd_error *err = NULL;
    uint8_t *seen = NULL;
    float *numbers = NULL;

    NRD_TRY(nrd_weight_check(w, name));
    if (w->dtype != NRD_DTYPE_F32 || w->rows * w->cols != cols) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "weight %s has %lld numbers of type %s, expected %lld of float32", name,
                          (long long)(w->rows * w->cols), nrd_dtype_name(w->dtype), (long long)cols);
    }
    int32_t *grown = realloc(ws->orders, (ws->n_orders + (size_t)cols) * sizeof *grown);
    if (!grown) {
        return nrd_error_no_memory();
    }
    ws->orders = grown;
    NRD_NEW_GOTO(seen, cols, err, done);
    NRD_NEW_GOTO(numbers, cols, err, done);
    for (int64_t r = 0; r < w->rows; r++) {
        nrd_weight_row(w, r, numbers + r * w->cols);
    }
    for (int64_t i = 0; i < cols; i++) {
        const float x = numbers[i];
        if (!(x >= 0 && x < (float)cols) || x > floorf(x) || seen[(int64_t)x]) {
            err = nrd_errorf(NRD_ERR_INVALID_ARG, "weight %s has %g at %lld, expected each column of %lld once", name, (double)x,
                             (long long)i, (long long)cols);
            goto done;
        }
        seen[(int64_t)x] = 1;
        ws->orders[ws->n_orders + (size_t)i] = (int32_t)x;
    }
    ws->n_orders += (size_t)cols;
done:
    free(seen);
    free(numbers);
    return err;
}

/* The order of a product's columns, where the engine has one. The product is finished. */
static nrd_error *add_order(loader *l, nrd_product *p, int32_t layer, const char *name)
{
    nrd_weights *ws = l->ws;
    char full[MAX_NAME];

    snprintf(full, sizeof full, NRD_LAYER_PREFIX "%s", layer, name);
    const nrd_weight *w = p->n > 0 ? nrd_engine_weight(l->engine, full) : NULL;
    if (!w) {
        return NULL;
    }
    if (p->in_row_scale) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "weight %s beside a weight of type %s", full, nrd_dtype_name(p->w[0]->dtype));
    }
    p->order_at = ws->n_orders;
    NRD_TRY(read_order(l, w, full, p->cols));
    p->is_ordered = true;
    p->ordered_dtype = p->in_dtype;
    ws->max_ordered_row_bytes = p->in_row_bytes > ws->max_ordered_row_bytes ? p->in_row_bytes : ws->max_ordered_row_bytes;
    p->in_dtype = ws->act_dtype;
    p->in_row_bytes = (size_t)p->cols * nrd_dtype_block_bytes(ws->act_dtype);
    ws->max_in_row_bytes = p->in_row_bytes > ws->max_in_row_bytes ? p->in_row_bytes : ws->max_in_row_bytes;
    return NULL;
}

/* bias NULL: products of this kind have none. */
static nrd_error *add_part(loader *l, nrd_product *p, int32_t layer, const char *weight,
                           const char *bias)
{
    NRD_TRY(load(l, layer, weight, &p->w[p->n]));
    if (bias) {
        NRD_TRY(load(l, layer, bias, &p->bias[p->n]));
    }
    p->n += p->w[p->n] != NULL;
    return NULL;
}

/* A product whose results are added up over the ranks: the first adds the bias, of experts the first of the ranks that
 * have them. */
static nrd_error *add_summed(loader *l, nrd_product *p, int32_t layer, const char *weight, const char *bias)
{
    const int32_t tp_rank = l->rank % l->spec->tp_size;

    NRD_TRY(add_part(l, p, layer, weight, bias));
    if (p->n > 0 && (nrd_need_of(weight)->is_stacked ? nrd_spec_moe_tp_rank(l->spec, l->rank) : tp_rank) != 0) {
        p->bias[0] = NULL;
    }
    finish_product(l, p);
    return NULL;
}

/* In float32, whatever the engine has. */
static nrd_error *load_f32(loader *l, int32_t layer, const char *name, const nrd_weight **out)
{
    const bool before = l->compute_f32;
    l->compute_f32 = true;
    nrd_error *err = load(l, layer, name, out);
    l->compute_f32 = before;
    return err;
}

/* One type of input for products that read the same: plain activations, where they want different ones. */
static void share_input(const loader *l, nrd_product *a, nrd_product *b)
{
    if (b->n == 0 || a->in_dtype == b->in_dtype) {
        return;
    }
    nrd_product *const both[] = {a, b};
    for (int i = 0; i < 2; i++) {
        both[i]->in_dtype = l->ws->act_dtype;
        both[i]->in_row_bytes = (size_t)a->cols * nrd_dtype_block_bytes(l->ws->act_dtype);
        both[i]->in_row_scale = false;
    }
    l->ws->max_in_row_bytes = a->in_row_bytes > l->ws->max_in_row_bytes ? a->in_row_bytes : l->ws->max_in_row_bytes;
}

static nrd_error *load_latent(loader *l, int32_t i, nrd_layer *y)
{
    nrd_latent_layer *x = &y->latent;

    if (l->spec->latent.q_rank > 0) {
        NRD_TRY(add_part(l, &y->qkv, i, "attention.q_a.weight", NULL));
        NRD_TRY(load(l, i, "attention.q_a_layernorm.weight", &x->q_norm));
        NRD_TRY(add_part(l, &x->q_b, i, "attention.q_b.weight", NULL));
        finish_product(l, &x->q_b);
    } else {
        NRD_TRY(add_part(l, &y->qkv, i, "attention.q_b.weight", NULL));
    }
    finish_product(l, &y->qkv);
    NRD_TRY(add_part(l, &x->kv_a, i, "attention.kv_a.weight", NULL));
    finish_product(l, &x->kv_a);
    share_input(l, &y->qkv, &x->kv_a);
    NRD_TRY(load(l, i, "attention.kv_a_layernorm.weight", &x->kv_norm));
    NRD_TRY(load(l, i, "attention.k_b.weight", &x->k_b));
    NRD_TRY(load(l, i, "attention.v_b.weight", &x->v_b));
    NRD_TRY(add_summed(l, &y->dense, i, "attention.dense.weight", NULL));
    return add_order(l, &y->dense, i, NRD_ORDER_DENSE);
}

/* y->q_only is set. */
static nrd_error *load_attention(loader *l, int32_t i, nrd_layer *y)
{
    char full[MAX_NAME];

    if (nrd_spec_is_latent(l->spec)) {
        return load_latent(l, i, y);
    }
    snprintf(full, sizeof full, NRD_LAYER_PREFIX "attention.qkv.weight", i);
    if (y->q_only) {
        NRD_TRY(add_part(l, &y->qkv, i, NRD_QUERY, NULL));
    } else if (nrd_engine_weight(l->engine, full)) {
        NRD_TRY(add_part(l, &y->qkv, i, "attention.qkv.weight", "attention.qkv.bias"));
    } else {
        NRD_TRY(add_part(l, &y->qkv, i, "attention.q.weight", "attention.q.bias"));
        NRD_TRY(add_part(l, &y->qkv, i, "attention.k.weight", "attention.k.bias"));
        NRD_TRY(add_part(l, &y->qkv, i, "attention.v.weight", "attention.v.bias"));
    }
    finish_product(l, &y->qkv);
    NRD_TRY(y->q_only ? NULL : add_order(l, &y->qkv, i, NRD_ORDER_QKV));
    NRD_TRY(load(l, i, "attention.q_layernorm.weight", &y->q_norm));
    NRD_TRY(load(l, i, "attention.k_layernorm.weight", &y->k_norm));
    NRD_TRY(load(l, i, "attention.q_layernorm.bias", &y->q_norm_bias));
    NRD_TRY(load(l, i, "attention.k_layernorm.bias", &y->k_norm_bias));
    NRD_TRY(load_f32(l, i, NRD_SINKS, &y->sinks));
    NRD_TRY(add_part(l, &y->gate, i, "attention.gate.weight", NULL));
    if (y->gate.n > 0) {
        finish_product(l, &y->gate);
        share_input(l, &y->qkv, &y->gate);
    }
    NRD_TRY(add_summed(l, &y->dense, i, "attention.dense.weight", "attention.dense.bias"));
    return add_order(l, &y->dense, i, NRD_ORDER_DENSE);
}

/* softplus of one of xIELU's numbers; `plus` is added. */
static nrd_error *load_xielu(loader *l, int32_t i, const char *name, float plus, float *out)
{
    char full[MAX_NAME];
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
static nrd_error *load_time_steps(loader *l, int32_t i, nrd_recurrent *y)
{
    nrd_product *const products[] = {&y->x_dt, &y->x_bc, &y->dt};
    static const char *const names[] = {NRD_RECURRENT "x_dt.weight", NRD_RECURRENT "x_bc.weight", NRD_RECURRENT "dt.weight"};

    for (int k = 0; k < 3; k++) {
        NRD_TRY(add_part(l, products[k], i, names[k], NULL));
        finish_product(l, products[k]);
    }
    share_input(l, &y->x_dt, &y->x_bc);
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "A_states", &y->a));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "dt_norm.weight", &y->dt_norm));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "c_norm.weight", &y->c_norm));
    return load_f32(l, i, NRD_RECURRENT "bc_norm.weight", &y->bc_norm);
}

static nrd_error *load_recurrent(loader *l, int32_t i, nrd_recurrent *y)
{
    NRD_TRY(add_part(l, &y->in, i, NRD_RECURRENT "in.weight", NRD_RECURRENT "in.bias"));
    NRD_TRY(add_part(l, &y->in, i, NRD_RECURRENT "gate.weight", NRD_RECURRENT "gate.bias"));
    NRD_TRY(add_part(l, &y->in, i, NRD_RECURRENT "beta.weight", NULL));
    NRD_TRY(add_part(l, &y->in, i, NRD_RECURRENT "alpha.weight", NULL));
    finish_product(l, &y->in);
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "conv.weight", &y->conv));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "conv.bias", &y->conv_bias));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "A", &y->a));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "D", &y->d));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "dt_bias", &y->dt_bias));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "norm.weight", &y->norm));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "in_gate.weight", &y->in_gate));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "in_gate.bias", &y->in_gate_bias));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "decay_gate.weight", &y->decay_gate));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "decay_gate.bias", &y->decay_gate_bias));
    NRD_TRY(load_f32(l, i, NRD_RECURRENT "decay", &y->decay));
    if (l->spec->recurrent.kind == NRD_RECURRENT_MAMBA) {
        NRD_TRY(load_time_steps(l, i, y));
    }
    return add_summed(l, &y->out, i, NRD_RECURRENT "out.weight", NRD_RECURRENT "out.bias");
}

/* Of rows [from, to) of a column; one that is no number or not above 0 goes before all others, so that it is refused. */
static float largest(const nrd_weight *w, int64_t from, int64_t to)
{
    float most = 0, x;

    for (int64_t r = from; r < to; r++) {
        nrd_weight_row(w, r, &x);
        if (!(x > 0)) {
            return x;
        }
        most = x > most ? x : most;
    }
    return most;
}

/* How far heads go, of which the largest is kept since the device's cache has one scale for all, over the largest code of the cache's
 * type; or a scale as TensorRT-LLM has it. */
static nrd_error *load_kv_scales(loader *l, int32_t i, nrd_layer *y)
{
    const float top = l->kv_dtype == NRD_DTYPE_I8 ? 127.0f : 448.0f;
    char full[MAX_NAME];

    y->k_scale = y->v_scale = 1;
    snprintf(full, sizeof full, NRD_LAYER_PREFIX NRD_KV_RANGE, i);
    const nrd_weight *w = nrd_engine_weight(l->engine, full);
    const bool is_range = w != NULL;
    if (!w) {
        snprintf(full, sizeof full, NRD_LAYER_PREFIX NRD_KV_SCALE, i);
        w = nrd_engine_weight(l->engine, full);
    }
    if (w) {
        NRD_TRY(nrd_weight_check(w, full));
        y->k_scale = largest(w, 0, is_range ? w->rows / 2 : 1);
        y->v_scale = largest(w, is_range ? w->rows / 2 : 0, w->rows);
    }
    for (int k = 0; k < 2; k++) {
        const float scale = k ? y->v_scale : y->k_scale;
        if (!(scale > 0) || !isfinite(scale)) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s must be above 0, got %g", full, (double)scale);
        }
    }
    y->k_scale /= is_range ? top : 1;
    y->v_scale /= is_range ? top : 1;
    return NULL;
}

/* A vector by its full name, times a number. */
static nrd_error *load_times(loader *l, const char *name, float factor, const nrd_weight **out)
{
    const nrd_weight *src = nrd_engine_weight(l->engine, name);
    void *host = NULL;
    nrd_weight w;

    NRD_ASSERT(src, "it was checked that it is there");
    NRD_TRY(dequantize(src, name, &host, &w));
    for (int64_t i = 0; i < w.rows * w.cols; i++) {
        ((float *)host)[i] *= factor;
    }
    nrd_loaded *slot = &l->ws->loaded[l->ws->n_loaded];
    *slot = (nrd_loaded){.host = host};
    NRD_TRY(l->ws->dev->ops->weight_load(l->stream, &w, false, &slot->w, &slot->owned));
    l->ws->n_loaded++;
    *out = &slot->w;
    return NULL;
}

static nrd_error *load_experts(loader *l, int32_t i, nrd_experts *x)
{
    NRD_TRY(add_part(l, &x->router, i, "mlp.router.weight", "mlp.router.bias"));
    NRD_TRY(add_part(l, &x->router, i, "mlp.shared_router.weight", NULL));
    finish_product(l, &x->router);
    NRD_TRY(load_f32(l, i, "mlp." NRD_SCORE_BIAS, &x->score_bias));
    NRD_TRY(add_part(l, &x->up, i, "mlp.experts.fc.weight", "mlp.experts.fc.bias"));
    NRD_TRY(add_part(l, &x->up, i, "mlp.experts.gate.weight", "mlp.experts.gate.bias"));
    finish_product(l, &x->up);
    NRD_TRY(add_summed(l, &x->down, i, "mlp.experts.proj.weight", "mlp.experts.proj.bias"));
    if (l->spec->moe.shared_inter > 0) {
        NRD_TRY(add_part(l, &x->shared_up, i, "mlp.shared.fc.weight", NULL));
        NRD_TRY(add_part(l, &x->shared_up, i, "mlp.shared.gate.weight", NULL));
        finish_product(l, &x->shared_up);
        NRD_TRY(add_part(l, &x->shared_down, i, "mlp.shared.proj.weight", NULL));
        finish_product(l, &x->shared_down);
    }
    share_input(l, &x->up, &x->shared_up);
    if (x->router.in_dtype != l->ws->act_dtype) { /* what the router reads is converted for the experts */
        share_input(l, &x->router, &x->up);
        share_input(l, &x->up, &x->shared_up);
    }
    return NULL;
}

/* What experts have that stand beside an MLP. What the router reads is divided by the root of its length: so is the norm's weight. */
static nrd_error *load_beside(loader *l, int32_t i, nrd_experts *x)
{
    char full[MAX_NAME];

    NRD_TRY(load(l, i, "mlp.experts_norm.weight", &x->norm));
    if (l->spec->moe.before_attention) {
        return NULL;
    }
    snprintf(full, sizeof full, NRD_LAYER_PREFIX NRD_ROUTER_NORM, i);
    NRD_TRY(load_times(l, full, 1 / sqrtf((float)l->spec->hidden), &x->router_norm));
    NRD_TRY(load_f32(l, i, NRD_EXPERT_SCALE, &x->scale));
    NRD_TRY(load(l, i, "mlp.experts_post_norm.weight", &x->post_norm));
    return load(l, i, "mlp.dense_post_norm.weight", &x->mlp_post_norm);
}

static nrd_error *load_mlp(loader *l, int32_t i, nrd_layer *y)
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
    NRD_TRY(add_part(l, &y->up, i, "mlp.fc.weight", "mlp.fc.bias"));
    NRD_TRY(add_part(l, &y->up, i, "mlp.gate.weight", "mlp.gate.bias"));
    finish_product(l, &y->up);
    NRD_TRY(add_order(l, &y->up, i, NRD_ORDER_UP));
    NRD_TRY(add_summed(l, &y->down, i, "mlp.proj.weight", "mlp.proj.bias"));
    return add_order(l, &y->down, i, NRD_ORDER_DOWN);
}

static nrd_error *load_product(loader *l, nrd_product *p, int32_t layer, const char *name)
{
    NRD_TRY(add_part(l, p, layer, name, NULL));
    finish_product(l, p);
    return NULL;
}

static nrd_error *load_altup_layer(loader *l, int32_t i, nrd_altup_layer *y)
{
    if (!nrd_spec_has_altup(l->spec)) {
        return NULL;
    }
    NRD_TRY(load_f32(l, i, "altup.router_norm.weight", &y->router_norm));
    NRD_TRY(load_f32(l, i, "altup.router.weight", &y->router));
    NRD_TRY(load_f32(l, i, "altup.predict.weight", &y->predict));
    NRD_TRY(load_f32(l, i, "altup.correct.weight", &y->correct));
    NRD_TRY(load_f32(l, i, "altup.scale", &y->scale));
    NRD_TRY(load_product(l, &y->laurel_left, i, "laurel.left.weight"));
    NRD_TRY(load_product(l, &y->laurel_right, i, "laurel.right.weight"));
    return load(l, i, "laurel.norm.weight", &y->laurel_norm);
}

static nrd_error *load_layer_input(loader *l, int32_t i, nrd_layer_input *y)
{
    if (!nrd_spec_has_layer_inputs(l->spec)) {
        return NULL;
    }
    NRD_TRY(load_product(l, &y->gate, i, "per_layer.gate.weight"));
    NRD_TRY(load_product(l, &y->proj, i, "per_layer.proj.weight"));
    return load(l, i, "per_layer.post_norm.weight", &y->norm);
}

/* What layers have inputs of their own from. */
static nrd_error *load_layer_inputs(loader *l)
{
    nrd_weights *ws = l->ws;

    if (!nrd_spec_has_layer_inputs(l->spec)) {
        return NULL;
    }
    NRD_TRY(load(l, 0, "transformer.per_layer_embedding.weight", &ws->per_layer_embed));
    NRD_TRY(load_product(l, &ws->per_layer_proj, 0, "transformer.per_layer.projection.weight"));
    return load(l, 0, "transformer.per_layer.norm.weight", &ws->per_layer_norm);
}

/* What stands before the first layer and behind the last where tokens have several states. */
static nrd_error *load_altup(loader *l)
{
    nrd_weights *ws = l->ws;
    char name[MAX_NAME];

    if (!nrd_spec_has_altup(l->spec)) {
        return NULL;
    }
    for (int k = 0; k < NRD_SPEC_ALTUP_STATES - 1; k++) {
        snprintf(name, sizeof name, "transformer.altup.in_%d.weight", k + 1);
        NRD_TRY(load_product(l, &ws->altup_in[k], 0, name));
        snprintf(name, sizeof name, "transformer.altup.out_%d.weight", k + 1);
        NRD_TRY(load_product(l, &ws->altup_out[k], 0, name));
    }
    return NULL;
}

/* The part that reads an encoder's states. */
static nrd_error *load_cross(loader *l, int32_t i, nrd_layer *y)
{
    if (!l->spec->cross_attention) {
        return NULL;
    }
    NRD_TRY(load(l, i, "cross_attention_layernorm.weight", &y->cross_norm));
    NRD_TRY(load(l, i, "cross_attention_layernorm.bias", &y->cross_norm_bias));
    NRD_TRY(add_part(l, &y->cross_q, i, "cross_attention.q.weight", "cross_attention.q.bias"));
    finish_product(l, &y->cross_q);
    NRD_TRY(add_part(l, &y->cross_kv, i, "cross_attention.k.weight", "cross_attention.k.bias"));
    NRD_TRY(add_part(l, &y->cross_kv, i, "cross_attention.v.weight", "cross_attention.v.bias"));
    finish_product(l, &y->cross_kv);
    NRD_TRY(add_part(l, &y->cross_dense, i, "cross_attention.dense.weight", "cross_attention.dense.bias"));
    finish_product(l, &y->cross_dense);
    return NULL;
}

/* A weight that is one number. */
static nrd_error *load_number(const loader *l, int32_t i, const char *name, float *out)
{
    const nrd_weight *w;
    char full[MAX_NAME];

    snprintf(full, sizeof full, NRD_LAYER_PREFIX "%s", i, name);
    w = nrd_engine_weight(l->engine, full);
    NRD_ASSERT(w && w->rows == 1 && w->cols == 1, "it was checked that it is there");
    nrd_weight_row(w, 0, out);
    return isfinite(*out) ? NULL : nrd_errorf(NRD_ERR_INVALID_ARG, "weight %s is no finite number", full);
}

static nrd_error *load_picture_gate(const loader *l, int32_t i, const char *name, float *out)
{
    NRD_TRY(load_number(l, i, name, out));
    *out = tanhf(*out);
    return NULL;
}

static nrd_error *load_layer_scale(const loader *l, int32_t i, float *out)
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
static nrd_error *load_picture_layer(loader *l, int32_t i, nrd_picture_layer *y)
{
    if (!nrd_spec_reads_pictures(l->spec) || !l->spec->layer_is_behind_gap[i]) {
        return NULL;
    }
    NRD_TRY(load(l, i, NRD_PICTURE "input_layernorm.weight", &y->attn_norm));
    NRD_TRY(load(l, i, NRD_PICTURE "post_layernorm.weight", &y->mlp_norm));
    NRD_TRY(load(l, i, NRD_PICTURE "q_layernorm.weight", &y->q_norm));
    NRD_TRY(load(l, i, NRD_PICTURE "k_layernorm.weight", &y->k_norm));
    NRD_TRY(add_part(l, &y->q, i, NRD_PICTURE "q.weight", NULL));
    finish_product(l, &y->q);
    NRD_TRY(add_part(l, &y->kv, i, NRD_PICTURE "k.weight", NULL));
    NRD_TRY(add_part(l, &y->kv, i, NRD_PICTURE "v.weight", NULL));
    finish_product(l, &y->kv);
    NRD_TRY(add_part(l, &y->dense, i, NRD_PICTURE "dense.weight", NULL));
    finish_product(l, &y->dense);
    NRD_TRY(add_part(l, &y->up, i, NRD_PICTURE "fc.weight", NULL));
    NRD_TRY(add_part(l, &y->up, i, NRD_PICTURE "gate.weight", NULL));
    finish_product(l, &y->up);
    NRD_TRY(add_part(l, &y->down, i, NRD_PICTURE "proj.weight", NULL));
    finish_product(l, &y->down);
    NRD_TRY(load_picture_gate(l, i, NRD_PICTURE "attention_gate", &y->attn_gate));
    return load_picture_gate(l, i, NRD_PICTURE "mlp_gate", &y->mlp_gate);
}

/* An encoder's states are written once for all layers, in a form that suits them all. */
static void share_states(loader *l)
{
    nrd_product *first = &l->ws->layers[0].cross_kv;
    bool alike = true;

    for (int32_t i = 1; l->spec->cross_attention && i < l->n_layers; i++) {
        alike = alike && l->ws->layers[i].cross_kv.in_dtype == first->in_dtype;
    }
    for (int32_t i = 0; !alike && i < l->n_layers; i++) {
        nrd_product *p = &l->ws->layers[i].cross_kv;
        p->in_dtype = l->ws->act_dtype;
        p->in_row_bytes = (size_t)p->cols * nrd_dtype_block_bytes(l->ws->act_dtype);
        p->in_row_scale = false;
        l->ws->max_in_row_bytes = p->in_row_bytes > l->ws->max_in_row_bytes ? p->in_row_bytes : l->ws->max_in_row_bytes;
    }
}

/* What a picture's embeddings take, behind what others do. */
static nrd_error *load_of_picture(loader *l, int32_t i, nrd_layer *y)
{
    nrd_picture_weights *x = &y->of_picture;
    char full[MAX_NAME];

    if (l->spec->picture_rows == 0) {
        return NULL;
    }
    snprintf(full, sizeof full, NRD_LAYER_PREFIX NRD_OF_PICTURE "qkv.bias", i);
    NRD_TRY(add_part(l, &x->qkv, i, NRD_OF_PICTURE "qkv.weight", nrd_engine_weight(l->engine, full) ? NRD_OF_PICTURE "qkv.bias" : NULL));
    finish_product(l, &x->qkv);
    share_input(l, &y->qkv, &x->qkv);
    NRD_TRY(load_product(l, &x->dense, i, NRD_OF_PICTURE "dense.weight"));
    share_input(l, &y->dense, &x->dense);
    NRD_TRY(add_part(l, &x->up, i, NRD_OF_PICTURE "fc.weight", NULL));
    NRD_TRY(add_part(l, &x->up, i, NRD_OF_PICTURE "gate.weight", NULL));
    finish_product(l, &x->up);
    share_input(l, &y->up, &x->up);
    NRD_TRY(load_product(l, &x->down, i, NRD_OF_PICTURE "proj.weight"));
    share_input(l, &y->down, &x->down);
    return NULL;
}

static nrd_error *load_one_layer(loader *l, int32_t i, nrd_layer *y)
{
    NRD_TRY(load(l, i, "input_layernorm.weight", &y->attn_norm));
    NRD_TRY(load(l, i, "input_layernorm.bias", &y->attn_norm_bias));
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
        NRD_TRY(load_kv_scales(l, y->q_only ? source : i, y));
    }
    NRD_TRY(load(l, i, "attention.inner_layernorm.weight", &y->inner_attn_norm));
    NRD_TRY(load(l, i, "attention.inner_layernorm.bias", &y->inner_attn_bias));
    NRD_TRY(load(l, i, "mlp.inner_layernorm.weight", &y->inner_mlp_norm));
    NRD_TRY(load(l, i, "mlp.inner_layernorm.bias", &y->inner_mlp_bias));
    NRD_TRY(load_altup_layer(l, i, &y->altup));
    NRD_TRY(load_layer_input(l, i, &y->input));
    NRD_TRY(load_layer_scale(l, i, &y->scale));
    NRD_TRY(load(l, i, "post_attention_layernorm.weight", &y->post_attn_norm));
    NRD_TRY((nrd_spec_has_altup(l->spec) ? load_f32 : load)(l, i, "post_feedforward_layernorm.weight", &y->post_mlp_norm));
    NRD_TRY(load_cross(l, i, y));
    NRD_TRY(load_picture_layer(l, i, &y->picture));
    NRD_TRY(load(l, i, "post_layernorm.weight", &y->mlp_norm));
    NRD_TRY(load(l, i, "post_layernorm.bias", &y->mlp_norm_bias));
    NRD_TRY(l->spec->layer_has_no_mlp[layer] ? NULL : load_mlp(l, i, y));
    return load_of_picture(l, i, y);
}

/* Which layers are streamed, by the engine file's bytes. */
static nrd_error *choose_streamed(const loader *l, double share, bool *streamed)
{
    uint64_t *bytes = NULL, total = 0;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(bytes, l->n_layers, err, done);
    for (size_t i = 0; i < nrd_engine_n_weights(l->engine); i++) {
        const char *name;
        int layer = -1;
        const uint64_t n = nrd_engine_weight_at(l->engine, i, &name)->data_bytes;
        total += n;
        if (sscanf(name, NRD_LAYER_PREFIX, &layer) == 1 && layer >= 0 && layer < l->n_layers) {
            bytes[layer] += n;
        }
    }
    if (nrd_weight_stream_choose(bytes, l->n_layers, total, share, streamed) > 0) {
        err = nrd_weight_stream_new(&l->ws->streamed, l->ws->dev, l->n_layers);
    }
done:
    free(bytes);
    return err;
}

/* The matrices among those that were loaded from number `first` on. The states of an encoder or a picture are multiplied before the
 * layers run: those matrices stay. */
static nrd_error *stream_layer(loader *l, int32_t i, size_t first)
{
    const nrd_layer *y = &l->ws->layers[i];
    const nrd_product *stays = y->picture.kv.n > 0 ? &y->picture.kv : &y->cross_kv; /* no layer has both */
    nrd_weight *w[LAYER_WEIGHTS];
    int32_t n = 0;

    for (size_t k = first; k < l->ws->n_loaded; k++) {
        nrd_loaded *x = &l->ws->loaded[k];
        if (x->owned && x->w.cols > 1 && &x->w != stays->w[0] && &x->w != stays->w[1]) {
            w[n++] = &x->w;
        }
    }
    return nrd_weight_stream_take(l->ws->streamed, l->stream, i, w, n);
}

static nrd_error *load_layers(loader *l, double streamed_share)
{
    bool *streamed = NULL;
    nrd_error *err = NULL;

    NRD_NEW_GOTO(streamed, l->n_layers, err, done);
    if (streamed_share > 0) {
        NRD_TRY_GOTO(choose_streamed(l, streamed_share, streamed), err, done);
    }
    for (int32_t i = 0; i < l->n_layers; i++) {
        const size_t first = l->ws->n_loaded;
        NRD_TRY_GOTO(load_one_layer(l, i, &l->ws->layers[i]), err, done);
        NRD_ASSERT(l->ws->n_loaded - first <= LAYER_WEIGHTS, "the bound covers each layer, not their sum alone");
        NRD_TRY_GOTO(streamed[i] ? stream_layer(l, i, first) : NULL, err, done);
    }
    err = l->ws->streamed ? nrd_weight_stream_finish(l->ws->streamed, l->stream) : NULL;
done:
    free(streamed);
    return err;
}

static nrd_error *load_rope_factors(loader *l)
{
    const nrd_weight *f = nrd_engine_weight(l->engine, "rope_factors");
    void *host = NULL;
    nrd_weight w;
    if (!f) {
        return NULL;
    }
    NRD_TRY(dequantize(f, "rope_factors", &host, &w));
    l->ws->rope_factors = host;
    return NULL;
}

/* The convolutions of an encoder that hears, as products over three rows. */
static nrd_error *load_convolutions(loader *l)
{
    nrd_weights *ws = l->ws;

    if (l->spec->n_mels == 0) {
        return NULL;
    }
    NRD_TRY(add_part(l, &ws->conv1, 0, "transformer.conv1.weight", "transformer.conv1.bias"));
    finish_product(l, &ws->conv1);
    NRD_TRY(add_part(l, &ws->conv2, 0, "transformer.conv2.weight", "transformer.conv2.bias"));
    finish_product(l, &ws->conv2);
    return NULL;
}

/* What an MTP layer has around its layer. */
static nrd_error *load_mtp(loader *l)
{
    nrd_weights *ws = l->ws;

    NRD_TRY(add_part(l, &ws->mtp_fc, 0, "mtp.fc.weight", NULL));
    finish_product(l, &ws->mtp_fc);
    NRD_TRY(load(l, 0, "mtp.embed_layernorm.weight", &ws->mtp_embed_norm));
    NRD_TRY(load(l, 0, "mtp.state_layernorm.weight", &ws->mtp_state_norm));
    return load(l, 0, "mtp.final_layernorm.weight", &ws->final_norm);
}

static nrd_error *load_head(loader *l)
{
    nrd_weights *ws = l->ws;
    const nrd_model_spec *m = l->spec;
    const char *head = nrd_engine_weight(l->engine, "lm_head.weight")
                           ? "lm_head.weight"
                           : "transformer.vocab_embedding.weight";

    if (m->n_mels > 0 || m->mtp || m->embed_width > 0) { /* knows no tokens, has its model's, or none that is as wide as the state */
        return NULL;
    }
    NRD_TRY(load_as(l, head, true, &ws->lm_head.w[0]));
    NRD_TRY(load(l, 0, "lm_head.bias", &ws->lm_head.bias[0]));
    if (ws->lm_head.bias[0] && m->logits_scale != 1.0f && m->logits_scale != 0) {
        return nrd_errorf(NRD_ERR_UNSUPPORTED, "logits_scale together with a bias on lm_head");
    }
    ws->lm_head.n = 1;
    finish_product(l, &ws->lm_head);
    return NULL;
}

/* Multiplying the last norm's output scales the logits: logits_scale costs nothing this way. */
static nrd_error *load_final_norm(loader *l, const char *name, const nrd_weight **out)
{
    if (!nrd_engine_weight(l->engine, name) || l->spec->logits_scale == 1.0f || l->spec->logits_scale == 0) {
        return load(l, 0, name, out);
    }
    return load_times(l, name, l->spec->logits_scale, out);
}

/* Norms of the sum stand behind attention and MLP. What stands behind a sublayer stands before the next one: so
 * the forward pass knows one order only, and the last norm is the final one. */
static void chain_norms(loader *l)
{
    nrd_weights *ws = l->ws;
    const bool first_is_normed = ws->embed_proj.n == 0; /* else a product stands between the embeddings' norm and it */
    const nrd_weight *before = first_is_normed ? ws->embed_norm : NULL, *before_bias = first_is_normed ? ws->embed_norm_bias : NULL;

    for (int32_t i = 0; i < l->n_layers; i++) {
        nrd_layer *y = &ws->layers[i];
        const nrd_weight *behind = y->mlp_norm, *behind_bias = y->mlp_norm_bias;
        y->mlp_norm = y->cross_norm ? y->cross_norm : y->attn_norm;
        y->mlp_norm_bias = y->cross_norm ? y->cross_norm_bias : y->attn_norm_bias;
        if (y->cross_norm) {
            y->cross_norm = y->attn_norm;
            y->cross_norm_bias = y->attn_norm_bias;
        }
        y->attn_norm = before;
        y->attn_norm_bias = before_bias;
        before = behind;
        before_bias = behind_bias;
    }
    if (first_is_normed) {
        ws->embed_norm = ws->embed_norm_bias = NULL;
    }
    ws->final_norm = before;
    ws->final_norm_bias = before_bias;
}

static nrd_error *load_all(loader *l, double streamed_share)
{
    nrd_weights *ws = l->ws;
    const nrd_model_spec *m = l->spec;

    NRD_TRY(load_convolutions(l));
    NRD_TRY(load(l, 0, "transformer.vocab_embedding.weight", &ws->embed));
    NRD_TRY(load(l, 0, "transformer.position_embedding.weight", &ws->pos_embed));
    NRD_TRY(load(l, 0, "transformer.type_embedding.weight", &ws->type_embed));
    NRD_TRY(load(l, 0, "transformer.ln_embed.weight", &ws->embed_norm));
    NRD_TRY(load(l, 0, "transformer.ln_embed.bias", &ws->embed_norm_bias));
    if (m->embed_width > 0) {
        NRD_TRY(add_part(l, &ws->embed_proj, 0, "transformer.embed_projection.weight", "transformer.embed_projection.bias"));
        finish_product(l, &ws->embed_proj);
    }
    NRD_TRY(load_layer_inputs(l));
    NRD_TRY(load_altup(l));
    NRD_TRY(load_layers(l, streamed_share));
    share_states(l);
    if (!nrd_spec_is_last(m, l->rank)) {
        return load_rope_factors(l);
    }
    if (m->mtp) {
        NRD_TRY(load_mtp(l));
    } else if (m->sum_norms) {
        chain_norms(l);
    } else {
        NRD_TRY(load_final_norm(l, "transformer.ln_f.weight", &ws->final_norm));
        NRD_TRY(load_final_norm(l, "transformer.ln_f.bias", &ws->final_norm_bias));
    }
    NRD_TRY(load_head(l));
    return load_rope_factors(l);
}

static bool engine_shape(const void *engine, const char *name, int64_t *rows, int64_t *cols)
{
    const nrd_weight *w = nrd_engine_weight(engine, name);
    if (w) {
        *rows = w->rows;
        *cols = w->cols;
    }
    return w != NULL;
}

nrd_error *nrd_weights_load(nrd_weights *out, nrd_stream *s, nrd_device *dev, const nrd_engine *e,
                            const nrd_weights_config *config)
{
    nrd_error *err = NULL;
    const nrd_model_spec *m = nrd_engine_spec(e);
    loader l = {.ws = out,
                .stream = s,
                .engine = e,
                .spec = m,
                .rank = config->rank,
                .n_layers = nrd_spec_of_rank(m, config->rank).n_layers,
                .kv_dtype = config->kv_dtype,
                .compute_f32 = config->compute_f32};

    *out = (nrd_weights){.dev = dev, .act_dtype = config->act_dtype};
    NRD_TRY(nrd_needs_check(m, config->rank, engine_shape, e));
    NRD_TRY(nrd_needs_kv_scales(m, config->rank, config->kv_dtype, engine_shape, e));
    out->cap_loaded = (size_t)l.n_layers * LAYER_WEIGHTS + 32;
    NRD_NEW_GOTO(out->layers, l.n_layers, err, fail);
    NRD_NEW_GOTO(out->loaded, out->cap_loaded, err, fail);
    NRD_TRY_GOTO(load_all(&l, config->streamed_share), err, fail);
    NRD_TRY_GOTO(dev->ops->stream_sync(s), err, fail);
    return NULL;

fail:
    nrd_weights_unload(out);
    return err;
}

void nrd_weights_unload(nrd_weights *w)
{
    nrd_weight_stream_free(w->streamed);
    for (size_t i = 0; i < w->n_loaded; i++) {
        if (w->loaded[i].owned) {
            w->dev->ops->weight_unload(w->dev, &w->loaded[i].w);
        }
        free(w->loaded[i].host);
    }
    free(w->loaded);
    free(w->layers);
    free(w->rope_factors);
    free(w->orders);
    *w = (nrd_weights){0};
}
