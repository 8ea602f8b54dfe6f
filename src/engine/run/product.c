/* SPDX-License-Identifier: Apache-2.0
 * Products with a layer's weights and the activations beside them: what every block of the network is made of.
 * A product says which type it reads (nrd_product.in_dtype); what stands in front of it writes that type, or
 * nrd_run_plain_input() converts. */
#include "engine/run/operations.h"

#include "model/spec_recurrent.h"

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
        .int8_x = p->int8_x,
    };
    memcpy(a.w, p->w, sizeof a.w);
    memcpy(a.bias, p->bias, sizeof a.bias);
    return a;
}

/* A matrix unit rounds float32 itself, with less loss than 8 bits have: x is then left as it is. `deterministic` has one form for any
 * number of rows. */
void nrd_run_init_inputs_of_many(nrd_runner *r)
{
    const nrd_model_spec *m = r->spec;
    nrd_device_info info;

    r->dev->ops->get_info(r->dev, &info);
    if (r->cfg.deterministic || info.f32_rows == 0 || m->has_experts || nrd_spec_is_latent(m) || nrd_spec_has_altup(m) ||
        nrd_recurrent_row(m) > 0) {
        return;
    }
    for (int32_t i = 0; i < m->n_layers; i++) {
        nrd_layer *y = &r->w.layers[i];
        nrd_product *const all[] = {&y->qkv, &y->gate, &y->dense, &y->up, &y->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            all[k]->can_be_plain = all[k]->n > 0 && all[k]->in_dtype == NRD_DTYPE_ACT_Q8;
            all[k]->rounded_row_bytes = all[k]->in_row_bytes;
            r->plain_from = all[k]->can_be_plain ? info.f32_rows : r->plain_from;
        }
    }
}

void nrd_run_choose_inputs(nrd_runner *r, int32_t n_rows)
{
    const bool plain = n_rows >= r->plain_from;

    for (int32_t i = 0; r->plain_from > 0 && i < r->spec->n_layers; i++) {
        nrd_layer *y = &r->w.layers[i];
        nrd_product *const all[] = {&y->qkv, &y->gate, &y->dense, &y->up, &y->down};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
            if (all[k]->can_be_plain) {
                all[k]->in_dtype = plain ? r->act : NRD_DTYPE_ACT_Q8;
                all[k]->in_row_bytes = plain ? (size_t)all[k]->cols * r->act_bytes : all[k]->rounded_row_bytes;
            }
        }
    }
}

nrd_error *nrd_run_init_made_input(nrd_runner *r)
{
    const nrd_weights *w = &r->w;
    nrd_made_input *m = &r->made;
    void *p = NULL;

    if (w->max_made_row_bytes > 0) {
        NRD_TRY(nrd_run_alloc(r, &m->rows, (size_t)r->cfg.max_tokens, w->max_made_row_bytes, "activations"));
    }
    if (w->n_orders > 0) {
        NRD_TRY(nrd_run_alloc(r, &p, w->n_orders, sizeof *m->orders, "weights"));
        m->orders = p;
        NRD_TRY(nrd_run_upload(r, p, w->orders, w->n_orders * sizeof *m->orders));
    }
    if (w->n_scales > 0) {
        NRD_TRY(nrd_run_alloc(r, &p, w->n_scales, sizeof *m->scales, "weights"));
        m->scales = p;
        NRD_TRY(nrd_run_upload(r, p, w->scales, w->n_scales * sizeof *m->scales));
    }
    return NULL;
}

void nrd_run_free_made_input(nrd_runner *r)
{
    nrd_run_free(r, r->made.rows);
    nrd_run_free(r, r->made.orders);
    nrd_run_free(r, r->made.scales);
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
        .out = r->made.rows,
        .out_dtype = p->made_dtype,
        .out_row_scale = p->made_row_scale ? r->row_scale : NULL,
        .order = p->is_ordered ? r->made.orders + p->order_at : NULL,
        .columns = p->is_scaled ? r->made.scales + p->scale_at : NULL,
    };
    *x = r->made.rows;
    NRD_TRY(r->dev->ops->act(r->stream, &a));
    return nrd_run_mark(r, NRD_PROFILE_ACT, n_tokens, 2.0 * (double)p->in_row_bytes, 0);
}

static nrd_error *product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens, void *y, nrd_dtype y_dtype,
                          float softcap, nrd_pending_scales *pending)
{
    NRD_TRY(nrd_product_makes_input(p) ? make_input(r, p, n_tokens, &x) : NULL);
    nrd_linear_args a = nrd_run_product_args(r, p, x, n_tokens, y, y_dtype, softcap);
    a.pending = pending;
    return r->dev->ops->linear(r->stream, &a);
}

nrd_error *nrd_run_product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens,
                           void *y, nrd_dtype y_dtype, float softcap)
{
    return product(r, p, x, n_tokens, y, y_dtype, softcap, NULL);
}

nrd_error *nrd_run_pending_product(nrd_runner *r, const nrd_product *p, const void *x, int32_t n_tokens, void *y, nrd_pending_scales *pending)
{
    return product(r, p, x, n_tokens, y, r->act, 0, pending);
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
