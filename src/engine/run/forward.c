/* SPDX-License-Identifier: Apache-2.0
 * The network, layer by layer: embedding, then for each layer attention and MLP with a norm before
 * each.
 *
 * Behind each product of a layer come the low-rank pairs of adapters (adapters.c), where there are any.
 * What a layer adds is not added at once: `delta` goes into the next norm, which adds it to `x`
 * and normalizes in one pass. So behind the last layer a delta is left for the final norm
 * (head.c). Every norm writes the input type that the product behind it wants. */
#include "engine/run/runner_internal.h"

#include <string.h>

nrd_linear_args nrd_run_product_args(const nrd_runner *r, const nrd_product *p, const void *x,
                                     int32_t n_tokens, void *y, nrd_dtype y_dtype, float softcap)
{
    nrd_linear_args a = {
        .n_tokens = n_tokens,
        .x = x,
        .x_dtype = p->in_dtype,
        .x_row_scale = p->in_row_scale ? r->row_scale : NULL,
        .n_parts = p->n,
        .y = y,
        .y_dtype = y_dtype,
        .softcap = softcap,
        .deterministic = r->cfg.deterministic,
    };
    memcpy(a.w, p->w, sizeof a.w);
    memcpy(a.bias, p->bias, sizeof a.bias);
    return a;
}

nrd_error *nrd_run_product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens,
                           void *y, nrd_dtype y_dtype, float softcap)
{
    nrd_linear_args a = nrd_run_product_args(r, p, x, n_tokens, y, y_dtype, softcap);
    return r->dev->ops->linear(r->stream, &a);
}

nrd_error *nrd_run_norm(nrd_runner *r, int32_t n_tokens, bool has_delta,
                        const nrd_weight *delta_weight, const nrd_weight *weight,
                        const nrd_weight *bias, const nrd_product *next, const int32_t *row_ids,
                        int32_t n_rows)
{
    const nrd_model_spec *m = r->spec;
    nrd_norm_args a = {
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .delta = has_delta ? r->delta : NULL,
        .delta_weight = has_delta ? delta_weight : NULL,
        .residual = r->x,
        .weight = weight,
        .bias = bias,
        .row_ids = row_ids,
        .n_rows = n_rows,
        .out = r->normed,
        .out_dtype = next->in_dtype,
        .out_row_scale = next->in_row_scale ? r->row_scale : NULL,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_NORM, n_tokens,
                        (has_delta ? 3.0 : 1.0) * m->hidden * (double)r->act_bytes +
                            (double)next->in_row_bytes * (row_ids ? n_rows : n_tokens) / n_tokens,
                        0);
}

nrd_error *nrd_run_all_reduce(nrd_runner *r, void *x, int32_t n_tokens)
{
    nrd_all_reduce_args a = {
        .comm = r->comm,
        .x = x,
        .n = (int64_t)n_tokens * r->spec->hidden,
        .dtype = r->act,
    };
    if (!r->comm) {
        return NULL;
    }
    NRD_TRY(r->dev->ops->all_reduce(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_ALL_REDUCE, n_tokens,
                        2.0 * r->spec->hidden * (double)r->act_bytes, 0);
}

static nrd_error *attention(nrd_runner *r, const nrd_batch_view *v, int32_t layer)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    bool local = m->layer_is_sliding[layer] && m->rope_local.kind != NRD_ROPE_NONE;
    const nrd_rope_spec *rope = local ? &m->rope_local : &m->rope;
    nrd_rope_kv_args k = {
        .batch = v,
        .qkv = r->qkv,
        .act_dtype = r->act,
        .n_heads = m->n_heads,
        .q_norm = y->q_norm,
        .k_norm = y->k_norm,
        .norm_eps = m->norm_eps,
        .rope = rope->kind,
        .rotary_dim = rope->kind == NRD_ROPE_NONE ? 0 : rope->rotary_dim,
        .inv_freq = local ? r->inv_freq_local : r->inv_freq,
        .rope_scale = local         ? r->rope_scale_local
                      : r->inv_freq ? r->rope_scale
                                    : 1.0f,
        .kv = r->kv_layers[layer],
    };
    NRD_TRY(r->dev->ops->rope_kv(r->stream, &k));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_ROPE_KV, v->n_tokens,
                         (double)(2 * m->n_heads + 2 * m->n_kv_heads) * m->head_dim *
                                 (double)r->act_bytes +
                             nrd_run_bytes(2.0 * m->n_kv_heads * m->head_dim, r->kv_dtype),
                         0));
    nrd_attention_args a = {
        .batch = v,
        .q = r->qkv,
        .q_stride = (int64_t)(m->n_heads + 2 * m->n_kv_heads) * m->head_dim,
        .out = r->att,
        .act_dtype = r->act,
        .out_dtype = y->dense.in_dtype,
        .out_row_scale = y->dense.in_row_scale ? r->row_scale : NULL,
        .n_heads = m->n_heads,
        .scale = m->attn_scale,
        .softcap = m->attn_softcap,
        .window = r->layer_window[layer],
        .n_sink = r->cfg.n_sink,
        .kv = r->kv_layers[layer],
        .deterministic = r->cfg.deterministic,
    };
    NRD_TRY(r->dev->ops->attention(r->stream, &a));
    return nrd_run_mark_attention(r, layer, &y->dense);
}

static nrd_error *mlp(nrd_runner *r, const nrd_batch *b, int32_t layer)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    int32_t n_tokens = b->view.n_tokens;
    NRD_TRY(nrd_run_product(r, &y->up, r->normed, n_tokens, r->up, r->act, 0));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_UP, &y->up, n_tokens, r->act));
    NRD_TRY(nrd_run_adapters(r, b, layer, NRD_LORA_AT_UP, &y->up, r->normed, r->up));
    nrd_act_args a = {
        .kind = m->act,
        .gated = m->gated_mlp,
        .n_tokens = n_tokens,
        .inter = m->inter,
        .x = r->up,
        .act_dtype = r->act,
        .out = r->mid,
        .out_dtype = y->down.in_dtype,
        .out_row_scale = y->down.in_row_scale ? r->row_scale : NULL,
    };
    NRD_TRY(r->dev->ops->act(r->stream, &a));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_ACT, n_tokens,
                         (double)(m->gated_mlp ? 2 : 1) * m->inter * (double)r->act_bytes +
                             (double)y->down.in_row_bytes,
                         0));
    NRD_TRY(nrd_run_product(r, &y->down, r->mid, n_tokens, r->delta, r->act, 0));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_DOWN, &y->down, n_tokens, r->act));
    NRD_TRY(nrd_run_adapters(r, b, layer, NRD_LORA_AT_DOWN, &y->down, r->mid, r->delta));
    return nrd_run_all_reduce(r, r->delta, n_tokens);
}

nrd_error *nrd_run_layers(nrd_runner *r, const nrd_batch *b)
{
    const nrd_model_spec *m = r->spec;
    int32_t n = b->view.n_tokens;
    nrd_embed_args e = {
        .n_tokens = n,
        .hidden = m->hidden,
        .ids = b->ids,
        .slot_tokens = r->slot_tokens,
        .table = r->w.embed,
        .scale = m->embed_scale == 0 ? 1.0f : m->embed_scale,
        .pos_table = r->w.pos_embed,
        .positions = b->view.positions,
        .prompt_table = b->prompts,
        .out = r->x,
        .out_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->embed(r->stream, &e));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_EMBED, n, 2.0 * m->hidden * (double)r->act_bytes, 0));
    for (int32_t i = 0; i < m->n_layers; i++) {
        const nrd_layer *y = &r->w.layers[i];
        const nrd_weight *post = i > 0 ? r->w.layers[i - 1].post_mlp_norm : NULL;
        NRD_TRY(nrd_run_norm(r, n, i > 0, post, y->attn_norm, y->attn_norm_bias, &y->qkv, NULL, 0));
        NRD_TRY(nrd_run_product(r, &y->qkv, r->normed, n, r->qkv, r->act, 0));
        NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_QKV, &y->qkv, n, r->act));
        NRD_TRY(nrd_run_adapters(r, b, i, NRD_LORA_AT_QKV, &y->qkv, r->normed, r->qkv));
        NRD_TRY(attention(r, &b->view, i));
        NRD_TRY(nrd_run_product(r, &y->dense, r->att, n, r->delta, r->act, 0));
        NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_DENSE, &y->dense, n, r->act));
        NRD_TRY(nrd_run_adapters(r, b, i, NRD_LORA_AT_DENSE, &y->dense, r->att, r->delta));
        NRD_TRY(nrd_run_all_reduce(r, r->delta, n));
        NRD_TRY(nrd_run_norm(r, n, true, y->post_attn_norm, y->mlp_norm, y->mlp_norm_bias, &y->up,
                             NULL, 0));
        NRD_TRY(mlp(r, b, i));
    }
    return NULL;
}
