/* SPDX-License-Identifier: Apache-2.0
 * The network, layer by layer: embedding, then for each layer attention (or what stands in its place, recurrent.c) and
 * MLP, mostly with a norm before each. Behind the last layer a delta is left for the final norm (head.c).
 *
 * With several pipeline stages only the first one embeds, and the others go on with what the one before hands over.
 *
 * Layers whose attention and MLP stand side by side read the same x twice: what attention adds waits in `delta`
 * until the MLP's input is made. Layers without a norm in front read x itself. */
#include "engine/run/blocks.h"
#include "engine/run/network.h"
#include "engine/run/operations.h"
#include "engine/run/steps.h"

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
        return nrd_run_input(r, n, true, y->post_attn_norm, y->mlp_norm, y->mlp_norm_bias, next, out);
    }
    *out = attn_in;
    /* the scales of rows are attention's own by now */
    if (y->mlp_norm || next->in_dtype != y->qkv.in_dtype || next->in_row_scale) {
        const nrd_weight *weight = y->mlp_norm ? y->mlp_norm : y->attn_norm;
        const nrd_weight *bias = y->mlp_norm ? y->mlp_norm_bias : y->attn_norm_bias;
        NRD_TRY(nrd_run_input(r, n, false, NULL, weight, bias, next, out));
    }
    return nrd_run_add_delta(r, n, y->post_attn_norm);
}

/* What a layer's state made of x waits in the delta: it is added, and delta = what attention makes of the same x. */
static nrd_error *attend_beside(nrd_runner *r, const nrd_batch *b, int32_t i, const void *x)
{
    const nrd_layer *y = &r->w.layers[i];
    const int32_t n = b->view.n_tokens;

    /* the scales of rows are of what the state's last product read by now */
    if (y->qkv.in_dtype != y->recurrent.in.in_dtype || y->qkv.in_row_scale) {
        NRD_TRY(nrd_run_input(r, n, false, NULL, y->attn_norm, y->attn_norm_bias, &y->qkv, &x));
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
        NRD_TRY(nrd_run_input(r, n, i > 0, post, y->mlp_norm, y->mlp_norm_bias, mlp_reader(y), &x));
        r->wants_whole_x = false;
        NRD_TRY(nrd_run_tap(r, i, n));
        return nrd_run_mlp(r, b, i, x);
    }
    const bool before = y->experts.norm && r->spec->moe.before_attention;
    NRD_TRY(before ? nrd_run_experts_before(r, i, n, i > 0, post) : NULL);
    NRD_TRY(nrd_run_input(r, n, (i > 0 && !before) || pictured, post, y->attn_norm, y->attn_norm_bias, recurrent ? &y->recurrent.in : &y->qkv, &x));
    r->sum_scale = 0;
    r->wants_whole_x = false;
    NRD_TRY(nrd_run_tap(r, i, n));
    NRD_TRY(recurrent ? nrd_run_recurrent(r, &b->view, i, x) : nrd_run_attend(r, b, i, x));
    if (recurrent && y->kv_layer >= 0) {
        NRD_TRY(attend_beside(r, b, i, x));
    }
    NRD_TRY(nrd_run_sum_delta(r, n));
    if (r->encoder) {
        NRD_TRY(nrd_run_input(r, n, true, NULL, y->cross_norm, y->cross_norm_bias, &y->cross_q, &x));
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
    nrd_norm_args a = nrd_run_norm_args(r, m->norm, m->norm_eps, n, width, r->delta, r->w.embed_norm, next, next ? r->normed : r->x);
    a.bias = r->w.embed_norm_bias;
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
    r->delta_pending = (nrd_pending_scales){0}; /* of a step that failed */
    nrd_run_find_pictures(r, b);
    nrd_run_choose_inputs(r, b->view.n_tokens);
    NRD_TRY(nrd_weight_stream_begin(r->w.streamed, r->stream));
    NRD_TRY(enter(r, b));
    if (r->spec->n_layers == 0) { /* an encoder that hands rows of a tower on */
        return NULL;
    }
    if (nrd_spec_has_altup(r->spec)) {
        return nrd_run_altup_layers(r, b);
    }
    NRD_TRY(nrd_run_embed_layer_inputs(r, b));
    NRD_TRY(nrd_run_joined_layers(r, b, &r->left_no_delta));
    if (r->left_no_delta) {
        return NULL;
    }
    for (int32_t i = 0; i < r->spec->n_layers; i++) {
        NRD_TRY(nrd_weight_stream_enter(r->w.streamed, r->stream, i));
        NRD_TRY(run_layer(r, b, i));
        NRD_TRY(nrd_weight_stream_leave(r->w.streamed, r->stream, i));
    }
    r->sum_scale = r->w.layers[r->spec->n_layers - 1].scale;
    if (nrd_run_leaves_delta(r)) {
        NRD_TRY(nrd_run_tap_final(r, b->view.n_tokens));
    }
    NRD_TRY(nrd_run_finish_delta(r, b->view.n_tokens));
    if (!nrd_run_leaves_delta(r)) {
        NRD_TRY(nrd_run_tap_final(r, b->view.n_tokens));
    }
    return r->is_last ? NULL : nrd_run_hand_over(r, b->view.n_tokens);
}
