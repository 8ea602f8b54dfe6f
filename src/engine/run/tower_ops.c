/* SPDX-License-Identifier: Apache-2.0
 * What towers' layers are made of. */
#include "engine/run/tower_internal.h"
#include "engine/run/operations.h"

#include <math.h>

nrd_error *nrd_tower_norm(nrd_tower *t, bool has_delta, const nrd_extra_weight *weight, const nrd_extra_weight *bias,
                          bool to_residual, const nrd_product *next)
{
    nrd_norm_args a = {
        .kind = t->s.rms_norm ? NRD_NORM_RMS : NRD_NORM_LAYER,
        .eps = t->s.norm_eps,
        .n_tokens = t->n,
        .hidden = t->s.hidden,
        .delta = has_delta ? t->delta : NULL,
        .residual = t->x,
        .weight = weight ? &weight->w : NULL,
        .bias = bias && bias->w.data ? &bias->w : NULL, /* RMS norms have none */
        .to_residual = to_residual,
        .out = t->normed,
        .out_dtype = next ? next->in_dtype : t->r->act,
        .out_row_scale = next && next->in_row_scale ? t->scale : NULL,
        .act_dtype = t->r->act,
    };
    return t->r->dev->ops->norm(t->r->stream, &a);
}

nrd_error *nrd_tower_activate(nrd_tower *t, nrd_act_kind kind, bool gated, int32_t n, int64_t width, const nrd_product *next)
{
    nrd_act_args a = {
        .kind = kind,
        .gated = gated,
        .n_tokens = n,
        .inter = (int32_t)width,
        .x = t->up,
        .act_dtype = t->r->act,
        .out = t->mid,
        .out_dtype = next->in_dtype,
        .out_row_scale = next->in_row_scale ? t->scale : NULL,
    };
    return t->r->dev->ops->act(t->r->stream, &a);
}

nrd_error *nrd_tower_multiply(nrd_tower *t, const nrd_extra_product *p, const void *x, int32_t n, void *y)
{
    nrd_linear_args l = nrd_run_product_args(t->r, &p->product, x, n, y, t->r->act, 0);
    l.x_row_scale = p->product.in_row_scale ? t->scale : NULL;
    return t->r->dev->ops->linear(t->r->stream, &l);
}

nrd_error *nrd_tower_attend(nrd_tower *t, const nrd_batch_view *view, const nrd_product *next)
{
    nrd_runner *r = t->r;
    nrd_rope_kv_args k = {
        .batch = view,
        .qkv = t->qkv,
        .act_dtype = r->act,
        .n_heads = t->s.n_heads,
        .rope = t->inv_freq ? NRD_ROPE_NEOX : NRD_ROPE_NONE,
        .rotary_dim = t->inv_freq ? t->s.hidden / t->s.n_heads : 0,
        .inv_freq = t->inv_freq,
        .pair_axis = t->pair_axis,
        .rope_scale = 1,
        .kv = t->kv,
    };
    nrd_attention_args a = {
        .batch = t->s.read_by_layers ? &t->seen : view,
        .q = t->qkv,
        .q_stride = 3 * (int64_t)t->s.n_heads * t->head_dim,
        .out = t->att,
        .act_dtype = r->act,
        .out_dtype = next->in_dtype,
        .out_row_scale = next->in_row_scale ? t->scale : NULL,
        .n_heads = t->s.n_heads,
        .scale = (float)(1 / sqrt((double)(t->s.hidden / t->s.n_heads))),
        .ahead = t->s.read_by_layers ? 0 : t->n,
        .kv = t->kv,
        .deterministic = r->cfg.deterministic,
    };
    NRD_TRY(r->dev->ops->rope_kv(r->stream, &k));
    return r->dev->ops->attention(r->stream, &a);
}
