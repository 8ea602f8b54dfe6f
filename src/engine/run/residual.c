/* SPDX-License-Identifier: Apache-2.0
 * The residual stream x and its norms. What a sublayer adds is not added at once: `delta` goes into the next norm, which
 * adds it to x and normalizes in one pass. With several ranks each has a part of the delta, which a device may add up in
 * the norm. Every norm writes the input type that the product behind it wants. */
#include "engine/run/blocks.h"
#include "engine/run/operations.h"
#include "model/spec_recurrent.h"

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

/* The scales of the product's x are in row_scale until the next conversion to F8 writes it: in a plain decoder the norm that reads the delta. */
void nrd_run_init_pending(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;

    r->delta_waits = !r->cfg.deterministic && !r->comm && !r->encoder && !m->encoder && !m->parallel && !nrd_spec_has_altup(m) &&
                     !nrd_spec_has_layer_inputs(m) && !m->has_experts && nrd_recurrent_row(m) == 0;
}

/* Adapters and rows of pictures are added to a delta, and the last layer's has readers of its own (head.c, taps.c). */
nrd_error *nrd_run_delta_product(nrd_runner *r, const nrd_batch *b, int32_t layer, const nrd_product *p, const nrd_product *of_picture,
                                 const void *x)
{
    const int32_t n = b->view.n_tokens;

    if (!r->delta_waits || b->token_slot || of_picture->n > 0 || r->n_deep > layer || layer + 1 == r->spec->n_layers) {
        return nrd_run_split_product(r, p, of_picture, x, n, r->delta);
    }
    return nrd_run_pending_product(r, p, x, n, r->delta, &r->delta_pending);
}

/* What is pending of the delta, to its only reader. */
static nrd_pending_scales take_pending(nrd_runner *r)
{
    const nrd_pending_scales pending = r->delta_pending;

    r->delta_pending = (nrd_pending_scales){0};
    return pending;
}

nrd_norm_args nrd_run_norm_args(const nrd_runner *r, nrd_norm_kind kind, float eps, int32_t n_rows, int32_t width, void *x,
                                const nrd_weight *weight, const nrd_product *next, void *out)
{
    return (nrd_norm_args){
        .kind = kind,
        .eps = eps,
        .n_tokens = n_rows,
        .hidden = width,
        .residual = x,
        .weight = weight,
        .out = out,
        .out_dtype = next ? next->in_dtype : r->act,
        .out_row_scale = next && next->in_row_scale ? r->row_scale : NULL,
        .act_dtype = r->act,
    };
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
        .pending = has_delta ? take_pending(r) : (nrd_pending_scales){0},
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

/* x += delta. */
static nrd_norm_args delta_args(nrd_runner *r, int32_t n_tokens, const nrd_weight *delta_weight)
{
    return (nrd_norm_args){
        .kind = r->spec->norm,
        .eps = r->spec->norm_eps,
        .n_tokens = n_tokens,
        .hidden = r->spec->hidden,
        .delta = r->delta,
        .pending = take_pending(r),
        .delta_weight = delta_weight,
        .sum_scale = r->sum_scale,
        .residual = r->x,
        .act_dtype = r->act,
    };
}

nrd_error *nrd_run_add_delta(nrd_runner *r, int32_t n_tokens, const nrd_weight *delta_weight)
{
    const nrd_norm_args a = delta_args(r, n_tokens, delta_weight);
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_NORM, n_tokens, 3.0 * r->spec->hidden * (double)r->act_bytes, 0);
}

/* What the sublayer before left in delta into x, and x as `next` reads it: behind a norm, or as it is. */
nrd_error *nrd_run_input(nrd_runner *r, int32_t n_tokens, bool has_delta, const nrd_weight *delta_weight,
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
nrd_error *nrd_run_finish_delta(nrd_runner *r, int32_t n_tokens)
{
    const nrd_model_spec *m = r->spec;
    const nrd_norm_args a = delta_args(r, n_tokens, nrd_run_last_norm(&r->w.layers[m->n_layers - 1]));
    if (nrd_run_leaves_delta(r)) {
        return r->is_last ? NULL : r->dev->ops->norm(r->stream, &a);
    }
    NRD_TRY(sum_and_norm(r, &a, true));
    return nrd_run_mark(r, NRD_PROFILE_ALL_REDUCE, n_tokens, 3.0 * m->hidden * (double)r->act_bytes, 0);
}

/* What is between attention or an activation and the product behind it: the norm of `from`, [n_tokens, width], as `next` reads it. */
nrd_error *nrd_run_inner_norm(nrd_runner *r, int32_t n_tokens, int32_t width, const nrd_weight *weight, const nrd_weight *bias, void *from,
                             const nrd_product *next, void *to)
{
    nrd_norm_args a = nrd_run_norm_args(r, r->spec->norm, r->spec->norm_eps, n_tokens, width, from, weight, next, to);
    a.bias = bias;
    NRD_TRY(r->dev->ops->norm(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_NORM, n_tokens, width * (double)r->act_bytes + (double)next->in_row_bytes, 0);
}
