/* SPDX-License-Identifier: Apache-2.0
 * The network, layer by layer: embedding, then for each layer attention (or what stands in its place, recurrent.c) and
 * MLP, mostly with a norm before each.
 *
 * Behind each product of a layer come the low-rank pairs of adapters (adapters.c), where there are any.
 * What a layer adds is not added at once: `delta` goes into the next norm, which adds it to `x`
 * and normalizes in one pass. So behind the last layer a delta is left for the final norm
 * (head.c). Every norm writes the input type that the product behind it wants.
 *
 * With several pipeline stages only the first one embeds, and the others go on with what the one before hands over.
 *
 * With several ranks each has a part of the delta. A device may add the parts up in the norm; then none is left
 * for the final norm.
 *
 * Layers whose attention and MLP stand side by side read the same x twice: what attention adds waits in `delta`
 * until the MLP's input is made. Layers without a norm in front read x itself. */
#include "engine/run/runner_internal.h"

#include <string.h>

nrd_linear_args nrd_run_product_args(const nrd_runner *r, const nrd_product *p, const void *x,
                                     int32_t n_tokens, void *y, nrd_dtype y_dtype, float softcap)
{
    nrd_linear_args a = {
        .n_tokens = n_tokens,
        .x = x,
        .x_dtype = nrd_product_makes_input(p) ? p->made_dtype : p->in_dtype,
        .x_row_scale = p->in_row_scale || p->made_row_scale ? r->row_scale : NULL,
        .n_parts = p->n,
        .y = y,
        .y_dtype = y_dtype,
        .softcap = softcap,
        .deterministic = r->cfg.deterministic,
        .int8_x = !strcmp(r->spec->quant_algo, NRD_ALGO_W8A8),
    };
    memcpy(a.w, p->w, sizeof a.w);
    memcpy(a.bias, p->bias, sizeof a.bias);
    return a;
}

/* x with its columns in the order of the product's, and times its numbers. */
static nrd_error *make_input(nrd_runner *r, const nrd_product *p, int32_t n_tokens, const void **x)
{
    const nrd_act_args a = {
        .kind = NRD_ACT_NONE,
        .n_tokens = n_tokens,
        .inter = (int32_t)p->cols,
        .x = *x,
        .act_dtype = p->in_dtype,
        .out = r->made,
        .out_dtype = p->made_dtype,
        .out_row_scale = p->made_row_scale ? r->row_scale : NULL,
        .order = p->is_ordered ? r->orders + p->order_at : NULL,
        .columns = p->is_scaled ? r->scales + p->scale_at : NULL,
    };
    *x = r->made;
    NRD_TRY(r->dev->ops->act(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_ACT, n_tokens, 2.0 * (double)p->in_row_bytes, 0);
}

nrd_error *nrd_run_product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens,
                           void *y, nrd_dtype y_dtype, float softcap)
{
    NRD_TRY(nrd_product_makes_input(p) ? make_input(r, p, n_tokens, &x) : NULL);
    nrd_linear_args a = nrd_run_product_args(r, p, x, n_tokens, y, y_dtype, softcap);
    return r->dev->ops->linear(r->stream, &a);
}

/* A norm that adds up the ranks' parts may leave each rank with its own rows of x only, until the next norm of
 * all rows; layers that read x in between cannot have that. */
bool nrd_run_leaves_delta(const nrd_runner *r)
{
    if (nrd_spec_has_altup(r->spec)) { /* its layers leave none */
        return false;
    }
    return !r->comm || !r->dev->ops->all_reduce_norm || r->spec->parallel || !r->spec->pre_norms || r->spec->sum_norms ||
           nrd_spec_has_layer_inputs(r->spec) || (r->spec->has_experts && r->spec->moe.beside_mlp);
}

/* norm() of a delta of which every rank has a part. */
static nrd_error *sum_and_norm(nrd_runner *r, const nrd_norm_args *a, bool whole_residual)
{
    nrd_all_reduce_norm_args s = {.comm = r->comm, .norm = *a, .whole_residual = whole_residual};
    return r->dev->ops->all_reduce_norm(r->stream, &s);
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
        .sum_scale = r->sum_scale,
        .residual = r->x,
        .weight = weight,
        .bias = bias,
        .row_ids = row_ids,
        .n_rows = n_rows,
        .to_residual = m->sum_norms && !row_ids,
        .out = r->normed,
        .out_dtype = next->in_dtype,
        .out_row_scale = next->in_row_scale ? r->row_scale : NULL,
        .act_dtype = r->act,
    };
    const bool sums = has_delta && !nrd_run_leaves_delta(r);
    NRD_TRY(sums ? sum_and_norm(r, &a, r->wants_whole_x) : r->dev->ops->norm(r->stream, &a));
    return nrd_run_mark(r, sums ? NRD_PROFILE_ALL_REDUCE : NRD_PROFILE_NORM, n_tokens,
                        (has_delta ? 3.0 : 1.0) * m->hidden * (double)r->act_bytes +
                            (double)next->in_row_bytes * (row_ids ? n_rows : n_tokens) / n_tokens,
                        0);
}

nrd_error *nrd_run_plain_input(nrd_runner *r, int32_t n_tokens, const nrd_product *next, const void *x, void *room,
                               const void **out)
{
    *out = x;
    if (next->in_dtype == r->act) {
        return NULL;
    }
    nrd_act_args a = {
        .kind = NRD_ACT_NONE,
        .n_tokens = n_tokens,
        .inter = (int32_t)next->cols,
        .x = x,
        .act_dtype = r->act,
        .out = room,
        .out_dtype = next->in_dtype,
        .out_row_scale = next->in_row_scale ? r->row_scale : NULL,
    };
    *out = room;
    NRD_TRY(r->dev->ops->act(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_ACT, n_tokens,
                        (double)next->cols * (double)r->act_bytes + (double)next->in_row_bytes, 0);
}

nrd_error *nrd_run_plain_product(nrd_runner *r, int32_t n_tokens, const nrd_product *p, const void *x, void *y)
{
    NRD_TRY(nrd_run_plain_input(r, n_tokens, p, x, r->normed, &x));
    NRD_TRY(nrd_run_product(r, p, x, n_tokens, y, r->act, 0));
    return nrd_run_mark_product(r, NRD_PROFILE_UP, p, n_tokens, r->act);
}

nrd_error *nrd_run_add_delta(nrd_runner *r, int32_t n_tokens, const nrd_weight *delta_weight)
{
    const nrd_model_spec *m = r->spec;
    nrd_norm_args a = {
        .kind = m->norm,
        .eps = m->norm_eps,
        .n_tokens = n_tokens,
        .hidden = m->hidden,
        .delta = r->delta,
        .delta_weight = delta_weight,
        .sum_scale = r->sum_scale,
        .residual = r->x,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_NORM, n_tokens, 3.0 * m->hidden * (double)r->act_bytes, 0);
}

/* What the sublayer before left in delta into x, and x as `next` reads it: behind a norm, or as it is. */
static nrd_error *input_of(nrd_runner *r, int32_t n_tokens, bool has_delta, const nrd_weight *delta_weight,
                           const nrd_weight *weight, const nrd_weight *bias, const nrd_product *next,
                           const void **out)
{
    if (weight) {
        *out = r->normed;
        return nrd_run_norm(r, n_tokens, has_delta, delta_weight, weight, bias, next, NULL, 0);
    }
    if (has_delta) {
        NRD_TRY(nrd_run_add_delta(r, n_tokens, delta_weight));
    }
    return nrd_run_plain_input(r, n_tokens, next, r->x, r->normed, out);
}

nrd_error *nrd_run_all_reduce(nrd_runner *r, void *x, int32_t n_tokens)
{
    nrd_all_reduce_args a = {
        .comm = r->comm,
        .x = x,
        .n = (int64_t)n_tokens * r->spec->hidden,
        .dtype = r->act,
    };
    NRD_TRY(r->dev->ops->all_reduce(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_ALL_REDUCE, n_tokens,
                        2.0 * r->spec->hidden * (double)r->act_bytes, 0);
}

nrd_error *nrd_run_sum_delta(nrd_runner *r, int32_t n_tokens)
{
    return r->comm && nrd_run_leaves_delta(r) ? nrd_run_all_reduce(r, r->delta, n_tokens) : NULL;
}

/* The last layer's delta into the residual, whole in every rank; where no delta is left behind, or another stage
 * goes on. */
static nrd_error *finish_delta(nrd_runner *r, int32_t n_tokens)
{
    const nrd_model_spec *m = r->spec;
    nrd_norm_args a = {
        .kind = m->norm,
        .eps = m->norm_eps,
        .n_tokens = n_tokens,
        .hidden = m->hidden,
        .delta = r->delta,
        .delta_weight = nrd_run_last_norm(&r->w.layers[m->n_layers - 1]),
        .sum_scale = r->sum_scale,
        .residual = r->x,
        .act_dtype = r->act,
    };
    if (nrd_run_leaves_delta(r)) {
        return r->is_last ? NULL : r->dev->ops->norm(r->stream, &a);
    }
    NRD_TRY(sum_and_norm(r, &a, true));
    return nrd_run_mark(r, NRD_PROFILE_ALL_REDUCE, n_tokens, 3.0 * m->hidden * (double)r->act_bytes, 0);
}

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

static nrd_error *attention_of_heads(nrd_runner *r, const nrd_batch_view *v, int32_t layer)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    bool local = m->layer_is_sliding[layer] && m->rope_local.kind != NRD_ROPE_NONE;
    const nrd_rope_spec *rope = local ? &m->rope_local : &m->rope;
    const nrd_rope_kind kind = m->layer_has_no_rope[layer] ? NRD_ROPE_NONE : rope->kind;
    const bool normed = !m->qk_norm_turned || kind != NRD_ROPE_NONE;
    const bool apart = y->gate.n > 0 || y->inner_attn_norm; /* something is between what it gives and the product behind it */
    const nrd_kv_layer *kv = &r->kv_layers[y->kv_layer];
    const int32_t n_kv = y->q_only ? 0 : kv->n_kv_heads;
    nrd_rope_kv_args k = {
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
        .inv_freq = local ? r->inv_freq_local : r->inv_freq,
        .pair_axis = local ? NULL : r->pair_axis,
        .rope_scale = local         ? r->rope_scale_local
                      : r->inv_freq ? r->rope_scale
                                    : 1.0f,
        .kv = *kv,
    };
    if (r->head_squares) {
        NRD_TRY(sum_squares(r, v->n_tokens));
    }
    NRD_TRY(r->dev->ops->rope_kv(r->stream, &k));
    NRD_TRY(y->q_only ? NULL : nrd_run_tell_cache(r, layer, v->n_tokens));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_ROPE_KV, v->n_tokens,
                         (double)(2 * m->n_heads + 2 * n_kv) * kv->head_dim * (double)r->act_bytes +
                             nrd_run_bytes(2.0 * n_kv * kv->head_dim, r->kv_dtype),
                         0));
    nrd_attention_args a = {
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
        .alibi = r->alibi,
        .sink_logits = y->sinks ? y->sinks->data : NULL,
        .window = r->layer_window[layer],
        .rel_bias = r->rel_bias,
        .rel_back = r->rel_back,
        .rel_ahead = r->rel_ahead,
        .ahead = !m->encoder                   ? 0
                 : r->layer_window[layer] > 0 ? r->layer_window[layer] - 1
                                              : NRD_ATTENTION_MAX_AHEAD - 1,
        .chunked = m->window_chunks && m->layer_is_sliding[layer] && r->layer_window[layer] == m->sliding_window,
        .n_sink = r->cfg.n_sink,
        .kv = *kv,
        .deterministic = r->cfg.deterministic,
        .f8_products = nrd_engine_limits(r->engine)->fp8_context_fmha,
    };
    NRD_TRY(r->dev->ops->attention(r->stream, &a));
    return nrd_run_mark_attention(r, layer, &y->dense);
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
    return attention_of_heads(r, &v, i);
}

nrd_act_args nrd_run_act_args(const nrd_runner *r, int32_t n_rows, int32_t inter, const nrd_product *down, float *row_scale)
{
    return (nrd_act_args){
        .kind = r->spec->act,
        .gated = r->spec->gated_mlp,
        .n_tokens = n_rows,
        .inter = inter,
        .x = r->up,
        .act_dtype = r->act,
        .out = r->mid,
        .out_dtype = down->in_dtype,
        .out_row_scale = down->in_row_scale ? row_scale : NULL,
    };
}

nrd_error *nrd_run_act(nrd_runner *r, const nrd_act_args *a, const nrd_product *down)
{
    NRD_TRY(r->dev->ops->act(r->stream, a));
    return nrd_run_mark(r, NRD_PROFILE_ACT, a->n_tokens,
                        (double)(a->gated ? 2 : 1) * a->inter * (double)r->act_bytes + (double)down->in_row_bytes, 0);
}

/* What pictures add to the states behind a layer goes into the delta: with ranks into that of the one that has the rows. */
static nrd_error *add_deep_rows(nrd_runner *r, const nrd_batch *b, int32_t layer)
{
    const nrd_model_spec *m = r->spec;
    const nrd_add_rows_args a = {
        .n_tokens = b->view.n_tokens,
        .hidden = m->hidden,
        .rows = b->prompts,
        .skip = (int64_t)(layer + 1) * m->hidden,
        .out = r->delta,
        .dtype = r->act,
    };
    if (layer >= r->n_deep || !b->prompts) {
        return NULL;
    }
    NRD_TRY(r->dev->ops->add_rows(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_EMBED, a.n_tokens, 3.0 * m->hidden * (double)r->act_bytes, 0);
}

/* What is between attention or an activation and the product behind it: the norm of `from`, [n_tokens, width], as `next` reads it. */
static nrd_error *inner_norm(nrd_runner *r, int32_t n_tokens, int32_t width, const nrd_weight *weight, const nrd_weight *bias, void *from,
                             const nrd_product *next, void *to)
{
    const nrd_norm_args a = {
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n_tokens,
        .hidden = width,
        .residual = from,
        .weight = weight,
        .bias = bias,
        .out = to,
        .out_dtype = next->in_dtype,
        .out_row_scale = next->in_row_scale ? r->row_scale : NULL,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_NORM, n_tokens, width * (double)r->act_bytes + (double)next->in_row_bytes, 0);
}

nrd_error *nrd_run_mlp(nrd_runner *r, const nrd_batch *b, int32_t layer, const void *x)
{
    const nrd_model_spec *m = r->spec;
    const nrd_layer *y = &r->w.layers[layer];
    int32_t n_tokens = b->view.n_tokens;
    nrd_act_args act = nrd_run_act_args(r, n_tokens, nrd_spec_inter(m, layer), &y->down, r->row_scale);
    void *mid = r->mid;

    act.xielu_p = y->xielu_p;
    act.xielu_n = y->xielu_n;
    act.cutoff = m->layer_cutoff[layer];
    if (y->up.n == 0) {
        NRD_TRY(nrd_run_experts(r, layer, n_tokens, x));
        NRD_TRY(add_deep_rows(r, b, layer));
        return nrd_run_sum_delta(r, n_tokens);
    }
    if (y->inner_mlp_norm) {
        act.out_dtype = r->act;
        act.out_row_scale = NULL;
        mid = r->up;
    }
    NRD_TRY(nrd_run_tell_input(r, layer, NRD_LORA_AT_UP, &y->up, x, n_tokens));
    bool done = false;
    if (!b->token_slot && y->of_picture.up.n == 0) {
        NRD_TRY(nrd_run_gated_product(r, &y->up, &act, x, &y->down, &done));
    }
    if (!done) {
        NRD_TRY(nrd_run_split_product(r, &y->up, &y->of_picture.up, x, n_tokens, r->up));
        NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_UP, &y->up, n_tokens, r->act));
        NRD_TRY(nrd_run_adapters(r, b, layer, NRD_LORA_AT_UP, &y->up, x, r->up));
        NRD_TRY(nrd_run_act(r, &act, &y->down));
    }
    NRD_TRY(y->inner_mlp_norm ? inner_norm(r, n_tokens, act.inter, y->inner_mlp_norm, y->inner_mlp_bias, r->mid, &y->down, mid) : NULL);
    NRD_TRY(nrd_run_tell_input(r, layer, NRD_LORA_AT_DOWN, &y->down, mid, n_tokens));
    NRD_TRY(nrd_run_split_product(r, &y->down, &y->of_picture.down, mid, n_tokens, r->delta));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_DOWN, &y->down, n_tokens, r->act));
    NRD_TRY(nrd_run_adapters(r, b, layer, NRD_LORA_AT_DOWN, &y->down, mid, r->delta));
    NRD_TRY(nrd_run_add_experts_before(r, n_tokens));
    NRD_TRY(add_deep_rows(r, b, layer));
    return nrd_run_sum_delta(r, n_tokens);
}

static bool has_mlp(const nrd_layer *y)
{
    return y->up.n > 0 || y->experts.router.n > 0;
}

/* What reads the MLP's input. */
static const nrd_product *mlp_reader(const nrd_layer *y)
{
    return y->up.n > 0 ? &y->up : &y->experts.router;
}

/* The MLP's input, and attention's delta into x: added before, or with attention and MLP side by side behind. */
static nrd_error *between(nrd_runner *r, int32_t n, const nrd_layer *y, const void *attn_in, const void **out)
{
    const nrd_product *next = mlp_reader(y);
    if (!r->spec->parallel) {
        return input_of(r, n, true, y->post_attn_norm, y->mlp_norm, y->mlp_norm_bias, next, out);
    }
    *out = attn_in;
    /* the scales of rows are attention's own by now */
    if (y->mlp_norm || next->in_dtype != y->qkv.in_dtype || next->in_row_scale) {
        const nrd_weight *weight = y->mlp_norm ? y->mlp_norm : y->attn_norm;
        const nrd_weight *bias = y->mlp_norm ? y->mlp_norm_bias : y->attn_norm_bias;
        NRD_TRY(input_of(r, n, false, NULL, weight, bias, next, out));
    }
    return nrd_run_add_delta(r, n, y->post_attn_norm);
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
        NRD_TRY(nrd_run_gate(r, n, &y->dense, &out));
    }
    if (y->inner_attn_norm) {
        NRD_TRY(inner_norm(r, n, (int32_t)y->dense.cols, y->inner_attn_norm, y->inner_attn_bias, r->attn_out, &y->dense, r->att));
    }
    NRD_TRY(nrd_run_tell_input(r, i, NRD_LORA_AT_DENSE, &y->dense, out, n));
    NRD_TRY(nrd_run_split_product(r, &y->dense, &y->of_picture.dense, out, n, r->delta));
    NRD_TRY(nrd_run_mark_product(r, NRD_PROFILE_DENSE, &y->dense, n, r->act));
    return nrd_run_adapters(r, b, i, NRD_LORA_AT_DENSE, &y->dense, out, r->delta);
}

/* What a layer's state made of x waits in the delta: it is added, and delta = what attention makes of the same x. */
static nrd_error *attend_beside(nrd_runner *r, const nrd_batch *b, int32_t i, const void *x)
{
    const nrd_layer *y = &r->w.layers[i];
    const int32_t n = b->view.n_tokens;

    /* the scales of rows are of what the state's last product read by now */
    if (y->qkv.in_dtype != y->recurrent.in.in_dtype || y->qkv.in_row_scale) {
        NRD_TRY(input_of(r, n, false, NULL, y->attn_norm, y->attn_norm_bias, &y->qkv, &x));
    }
    NRD_TRY(nrd_run_add_delta(r, n, NULL));
    return nrd_run_attend(r, b, i, x);
}

static nrd_error *run_layer(nrd_runner *r, const nrd_batch *b, int32_t i)
{
    const nrd_layer *y = &r->w.layers[i];
    const bool recurrent = y->recurrent.in.n > 0, pictured = b->cross_place && y->picture.q.n > 0;
    const nrd_weight *post = i > 0 ? nrd_run_last_norm(&r->w.layers[i - 1]) : NULL;
    const void *x = NULL;
    int32_t n = b->view.n_tokens;

    NRD_TRY(pictured ? nrd_run_picture_layer(r, b, i) : NULL);
    r->sum_scale = i > 0 ? r->w.layers[i - 1].scale : 0;
    r->wants_whole_x = nrd_run_is_tapped(r, i);
    if (!recurrent && y->kv_layer < 0) { /* an MLP alone */
        NRD_TRY(input_of(r, n, i > 0, post, y->mlp_norm, y->mlp_norm_bias, mlp_reader(y), &x));
        r->wants_whole_x = false;
        NRD_TRY(nrd_run_tap(r, i, n));
        return nrd_run_mlp(r, b, i, x);
    }
    const bool before = y->experts.norm && r->spec->moe.before_attention;
    NRD_TRY(before ? nrd_run_experts_before(r, i, n, i > 0, post) : NULL);
    NRD_TRY(input_of(r, n, (i > 0 && !before) || pictured, post, y->attn_norm, y->attn_norm_bias, recurrent ? &y->recurrent.in : &y->qkv, &x));
    r->sum_scale = 0;
    r->wants_whole_x = false;
    NRD_TRY(nrd_run_tap(r, i, n));
    NRD_TRY(recurrent ? nrd_run_recurrent(r, &b->view, i, x) : nrd_run_attend(r, b, i, x));
    if (recurrent && y->kv_layer >= 0) {
        NRD_TRY(attend_beside(r, b, i, x));
    }
    NRD_TRY(nrd_run_sum_delta(r, n));
    if (r->encoder) {
        NRD_TRY(input_of(r, n, true, NULL, y->cross_norm, y->cross_norm_bias, &y->cross_q, &x));
        NRD_TRY(nrd_run_cross_attention(r, b, i, x));
    }
    if (!has_mlp(y)) {
        return NULL;
    }
    NRD_TRY(between(r, n, y, x, &x));
    NRD_TRY(nrd_run_mlp(r, b, i, x));
    if (y->experts.norm && !before) {
        NRD_TRY(nrd_run_experts_beside(r, i, n));
    }
    if (y->input.gate.n > 0) {
        NRD_TRY(nrd_run_add_delta(r, n, y->post_mlp_norm));
        NRD_TRY(nrd_run_layer_input(r, n, i, r->x));
    }
    return NULL;
}

static nrd_error *embed(nrd_runner *r, const nrd_batch *b)
{
    const nrd_model_spec *m = r->spec;
    const int32_t n = b->view.n_tokens;
    const int32_t width = m->embed_width > 0 ? m->embed_width : m->hidden;
    const nrd_product *next = m->embed_width > 0 ? &r->w.embed_proj : NULL;
    nrd_embed_args e = {
        .n_tokens = n,
        .hidden = width,
        .ids = b->ids,
        .slot_tokens = r->slot_tokens,
        .table = r->w.embed,
        .scale = m->embed_scale == 0 ? 1.0f : m->embed_scale,
        .pos_table = r->w.pos_embed,
        .positions = b->view.positions,
        .type_table = r->w.type_embed,
        .types = b->types,
        .prompt_table = b->prompts,
        .out = r->w.embed_norm ? r->delta : r->x,
        .out_dtype = r->act,
    };
    if (r->convolve || m->mtp) { /* x is made already (convolve.c, eagle_net.c) */
        return NULL;
    }
    const int32_t part = r->cfg.rank.rank % m->tp_size;
    if (m->parallel_embedding) {
        e.first_id = m->embedding_by_columns ? 0 : (int32_t)r->w.embed->rows * part;
        e.first_col = m->embedding_by_columns ? (int32_t)r->w.embed->cols * part : 0;
        e.n_ids = m->vocab;
    }
    NRD_TRY(r->dev->ops->embed(r->stream, &e));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_EMBED, n, 2.0 * m->hidden * (double)r->act_bytes, 0));
    NRD_TRY(m->parallel_embedding ? nrd_run_all_reduce(r, e.out, n) : NULL);
    if (!r->w.embed_norm) {
        return NULL;
    }
    nrd_norm_args a = {
        .kind = m->norm,
        .eps = m->norm_eps,
        .n_tokens = n,
        .hidden = width,
        .residual = r->delta,
        .weight = r->w.embed_norm,
        .bias = r->w.embed_norm_bias,
        .out = next ? r->normed : r->x,
        .out_dtype = next ? next->in_dtype : r->act,
        .out_row_scale = next && next->in_row_scale ? r->row_scale : NULL,
        .act_dtype = r->act,
    };
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    NRD_TRY(nrd_run_mark(r, NRD_PROFILE_NORM, n, 2.0 * width * (double)r->act_bytes, 0));
    if (!next) {
        return NULL;
    }
    NRD_TRY(nrd_run_product(r, next, r->normed, n, r->x, r->act, 0));
    return nrd_run_mark_product(r, NRD_PROFILE_UP, next, n, r->act);
}

/* What goes into this stage's first layer. */
static nrd_error *enter(nrd_runner *r, const nrd_batch *b)
{
    const nrd_model_spec *m = r->spec;
    const int32_t n = b->view.n_tokens;

    if (!r->is_first) {
        return nrd_run_take_over(r, n);
    }
    if (!b->from_tables || m->tp_size == 1 || m->parallel_embedding) {
        return embed(r, b);
    }
    /* Rows of prompt tables are in rank 0's memory only: it gives all it has embedded to its group, as a sum with
     * nothing. A divided embedding is a sum anyway. */
    NRD_TRY(r->cfg.rank.rank > 0
                ? r->dev->ops->fill(r->stream, r->x, 0, (size_t)n * (size_t)m->hidden * r->act_bytes)
                : embed(r, b));
    return nrd_run_all_reduce(r, r->x, n);
}

nrd_error *nrd_run_layers(nrd_runner *r, const nrd_batch *b)
{
    nrd_run_find_pictures(r, b);
    NRD_TRY(nrd_weight_stream_begin(r->w.streamed, r->stream));
    NRD_TRY(enter(r, b));
    if (r->spec->n_layers == 0) { /* an encoder that hands rows of a tower on */
        return NULL;
    }
    if (nrd_spec_has_altup(r->spec)) {
        return nrd_run_altup_layers(r, b);
    }
    NRD_TRY(nrd_run_embed_layer_inputs(r, b));
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        NRD_TRY(nrd_weight_stream_enter(r->w.streamed, r->stream, i));
        NRD_TRY(run_layer(r, b, i));
        NRD_TRY(nrd_weight_stream_leave(r->w.streamed, r->stream, i));
    }
    r->sum_scale = r->w.layers[r->spec->n_layers - 1].scale;
    if (nrd_run_leaves_delta(r)) {
        NRD_TRY(nrd_run_tap_final(r, b->view.n_tokens));
    }
    NRD_TRY(finish_delta(r, b->view.n_tokens));
    if (!nrd_run_leaves_delta(r)) {
        NRD_TRY(nrd_run_tap_final(r, b->view.n_tokens));
    }
    return r->is_last ? NULL : nrd_run_hand_over(r, b->view.n_tokens);
}
