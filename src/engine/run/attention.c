/* SPDX-License-Identifier: Apache-2.0
 * Attention over a layer's heads, with the products in front of it and behind it; and a decoder's over the states of an
 * encoder. Behind each product of a layer come the low-rank pairs of adapters (adapters.c), where there are any. */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"

/* What the norm over all heads needs of the other ranks. */
static nrd_error *sum_squares(nrd_runner *r, int32_t n_tokens)
{
    const nrd_model_spec *m = r->spec;
    const nrd_head_squares_args a = {
        .qkv = r->qkv,
        .act_dtype = r->act,
        .n_tokens = n_tokens,
        .n_heads = m->n_heads,
        .n_kv_heads = m->n_kv_heads,
        .head_dim = m->head_dim,
        .out = r->head_squares,
    };
    const nrd_all_reduce_args sum = {.comm = r->comm, .x = r->head_squares, .n = 2 * (int64_t)n_tokens, .dtype = NRD_DTYPE_F32};

    NRD_TRY(r->dev->ops->head_squares(r->stream, &a));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_ROPE_KV, n_tokens,
                         (double)(m->n_heads + m->n_kv_heads) * m->head_dim * (double)r->act_bytes, 0));
    NRD_TRY(r->dev->ops->all_reduce(r->stream, &sum));
    return nrd_run_mark(r, NRD_PROFILE_ALL_REDUCE, n_tokens, 4.0 * sizeof(float), 0);
}

static nrd_rope_kv_args rope_args(const nrd_runner *r, const nrd_batch_view *v, int32_t layer)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    const bool local = m->layer_is_sliding[layer] && m->rope_local.kind != NRD_ROPE_NONE;
    const nrd_rope_spec *rope = local ? &m->rope_local : &m->rope;
    const nrd_rope_table *table = local ? &r->ropes.local : &r->ropes.all;
    const nrd_rope_kind kind = m->layer_has_no_rope[layer] ? NRD_ROPE_NONE : rope->kind;
    const bool normed = !m->qk_norm_turned || kind != NRD_ROPE_NONE;

    return (nrd_rope_kv_args){
        .batch = v,
        .qkv = r->qkv,
        .act_dtype = r->act,
        .n_heads = m->n_heads,
        .q_norm = normed ? y->q_norm : NULL,
        .k_norm = normed ? y->k_norm : NULL,
        .q_norm_bias = normed ? y->q_norm_bias : NULL,
        .k_norm_bias = normed ? y->k_norm_bias : NULL,
        .norm_eps = m->norm_eps,
        .wide_norm = m->qk_norm_wide,
        .wide_squares = r->head_squares,
        .wide_ranks = r->model->tp_size,
        .apart_norm = m->qk_norm_apart,
        .center_norm = m->qk_norm_center,
        .late_norm = m->qk_norm_late,
        .clip = m->clip_qkv,
        .v_norm = m->v_norm,
        .q_only = y->q_only,
        .q_scale_beta = m->q_scale_nope && kind != NRD_ROPE_NONE ? 0 : m->q_scale_beta,
        .q_scale_length = m->q_scale_length,
        .q_scale_offset = m->q_scale_offset,
        .rope = kind,
        .rotary_dim = kind == NRD_ROPE_NONE ? 0 : rope->rotary_dim,
        .inv_freq = table->inv_freq,
        .pair_axis = local ? NULL : r->ropes.pair_axis,
        .rope_scale = table->scale,
        .kv = r->kv.layers[y->kv_layer],
    };
}

static nrd_error *rope_kv(nrd_runner *r, const nrd_batch_view *v, int32_t layer, const nrd_rope_kv_args *k)
{
    const nrd_model_spec *m = r->spec;
    const int32_t n_kv = k->q_only ? 0 : k->kv.n_kv_heads;

    if (r->head_squares) {
        NRD_TRY(sum_squares(r, v->n_tokens));
    }
    NRD_TRY(r->dev->ops->rope_kv(r->stream, k));
    NRD_TRY(k->q_only ? NULL : nrd_run_tell_cache(r, layer, v));
    return nrd_run_mark(r, NRD_PROFILE_ROPE_KV, v->n_tokens,
                        (double)(2 * m->n_heads + 2 * n_kv) * k->kv.head_dim * (double)r->act_bytes +
                            nrd_run_bytes(2.0 * n_kv * k->kv.head_dim, r->kv_dtype),
                        0);
}

static nrd_attention_args attention_args(const nrd_runner *r, const nrd_batch_view *v, int32_t layer)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    const bool apart = y->gate.n > 0 || y->inner_attn_norm; /* something is between what it gives and the product behind it */
    const nrd_kv_layer *kv = &r->kv.layers[y->kv_layer];
    const int32_t n_kv = y->q_only ? 0 : kv->n_kv_heads;
    return (nrd_attention_args){
        .batch = v,
        .q = r->qkv,
        .q_stride = (int64_t)(m->n_heads + 2 * n_kv) * kv->head_dim,
        .out = apart ? r->attn_out : r->att,
        .act_dtype = r->act,
        .out_dtype = apart ? r->act : y->dense.in_dtype,
        .out_row_scale = !apart && y->dense.in_row_scale ? r->row_scale : NULL,
        .n_heads = m->n_heads,
        .scale = m->attn_scale,
        .softcap = m->attn_softcap,
        .alibi = r->bias.alibi,
        .sink_logits = y->sinks ? y->sinks->data : NULL,
        .window = r->layer_window[layer],
        .rel_bias = r->bias.rel,
        .rel_back = r->bias.back,
        .rel_ahead = r->bias.ahead,
        .ahead = !m->encoder                   ? 0
                 : r->layer_window[layer] > 0 ? r->layer_window[layer] - 1
                                              : NRD_ATTENTION_MAX_AHEAD - 1,
        .chunked = m->window_chunks && m->layer_is_sliding[layer] && r->layer_window[layer] == m->sliding_window,
        .n_sink = r->cfg.n_sink,
        .kv = *kv,
        .deterministic = r->cfg.deterministic,
        .f8_products = nrd_engine_limits(r->engine)->fp8_context_fmha,
    };
}

nrd_error *nrd_run_attend_heads(nrd_runner *r, const nrd_batch_view *v, int32_t layer)
{
    const nrd_rope_kv_args k = rope_args(r, v, layer);
    const nrd_attention_args a = attention_args(r, v, layer);
    bool done = false;

    if (r->dev->ops->rope_attention && v->n_tokens == 1 && !r->head_squares && !r->cfg.on_cache) {
        NRD_TRY(r->dev->ops->rope_attention(r->stream, &k, &a, &done));
    }
    if (!done) {
        NRD_TRY(rope_kv(r, v, layer, &k));
        NRD_TRY(r->dev->ops->attention(r->stream, &a));
    }
    return nrd_run_mark_attention(r, layer, &r->w.layers[layer].dense);
}

/* att = attention of x, which is behind its norm. */
static nrd_error *attention(nrd_runner *r, const nrd_batch *b, int32_t i, const void *x)
{
    const nrd_layer *y = &r->w.layers[i];
    const int32_t n = b->view.n_tokens;

    if (y->latent.kv_a.n > 0) {
        return nrd_run_latent(r, &b->view, i, x);
    }
    NRD_TRY(nrd_run_tell_input(r, i, NRD_LORA_AT_QKV, &y->qkv, x, n));
    NRD_TRY(nrd_run_split_product(r, &y->qkv, &y->of_picture.qkv, x, n, r->qkv));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_QKV, &y->qkv, n, r->act));
    NRD_TRY(nrd_run_adapters(r, b, i, NRD_LORA_AT_QKV, &y->qkv, x, r->qkv));
    nrd_batch_view v = b->view;
    if (b->n_sight > 0 && nrd_spec_sees_pictures_in_windows(r->spec) && !r->spec->layer_is_sliding[i]) {
        v.tree_mask = NULL;
        v.tree_mask_words = 0;
    }
    return nrd_run_attend_heads(r, &v, i);
}

/* What attention gave (attn_out) times the sigmoids of attn_gates, as product `next` wants it in att. */
static nrd_error *gate(nrd_runner *r, int32_t n_tokens, const nrd_product *next, const void **out)
{
    const int32_t width = r->spec->n_heads * r->spec->head_dim;
    nrd_gated_norm_args a = {
        .n_tokens = n_tokens,
        .width = width,
        .n_groups = 1,
        .x = r->attn_out,
        .gate = r->attn_gates,
        .gate_stride = width,
        .out = r->attn_out,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->gated_norm(r->stream, &a));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_RECURRENT, n_tokens, 3.0 * width * (double)r->act_bytes, 0));
    return nrd_run_plain_input(r, n_tokens, next, r->attn_out, r->att, out);
}

nrd_error *nrd_run_attend(nrd_runner *r, const nrd_batch *b, int32_t i, const void *x)
{
    const nrd_layer *y = &r->w.layers[i];
    const int32_t n = b->view.n_tokens;
    const void *out = r->att;

    if (y->gate.n > 0) {
        NRD_TRY(nrd_run_product(r, &y->gate, x, n, r->attn_gates, r->act, 0));
        NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_QKV, &y->gate, n, r->act));
    }
    NRD_TRY(attention(r, b, i, x));
    if (y->gate.n > 0) {
        NRD_TRY(gate(r, n, &y->dense, &out));
    }
    if (y->inner_attn_norm) {
        NRD_TRY(nrd_run_inner_norm(r, n, (int32_t)y->dense.cols, y->inner_attn_norm, y->inner_attn_bias, r->attn_out, &y->dense, r->att));
    }
    NRD_TRY(nrd_run_tell_input(r, i, NRD_LORA_AT_DENSE, &y->dense, out, n));
    NRD_TRY(nrd_run_delta_product(r, b, i, &y->dense, &y->of_picture.dense, out));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_DENSE, &y->dense, n, r->act));
    return nrd_run_adapters(r, b, i, NRD_LORA_AT_DENSE, &y->dense, out, r->delta);
}

nrd_error *nrd_run_cross_attention(nrd_runner *r, const nrd_batch *b, int32_t layer, const void *x)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    const int32_t n = b->view.n_tokens;
    nrd_attention_args a = {
        .batch = &b->cross,
        .q = r->qkv,
        .q_stride = (int64_t)m->n_heads * m->head_dim,
        .out = r->att,
        .act_dtype = r->act,
        .out_dtype = y->cross_dense.in_dtype,
        .out_row_scale = y->cross_dense.in_row_scale ? r->row_scale : NULL,
        .n_heads = m->n_heads,
        .scale = m->attn_scale,
        .kv = r->kv.layers[layer],
        .deterministic = r->cfg.deterministic,
    };

    NRD_TRY(nrd_run_product(r, &y->cross_q, x, n, r->qkv, r->act, 0));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_QKV, &y->cross_q, n, r->act));
    NRD_TRY(r->dev->ops->attention(r->stream, &a));
    NRD_TRY(nrd_run_product(r, &y->cross_dense, r->att, n, r->delta, r->act, 0));
    return nrd_run_mark_product(r, NRD_PROFILE_DENSE, &y->cross_dense, n, r->act);
}
