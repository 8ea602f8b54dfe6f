/* SPDX-License-Identifier: Apache-2.0
 * Squares of patches as the decoder's rows: behind the last layer, and of layers in between (DeepStack). */
#include "engine/run/tower_internal.h"

#include <string.h>

nrd_error *nrd_tower_merge_part(nrd_tower *t, const void *from, const nrd_extra_product *product1, const nrd_extra_product *product2,
                                int32_t i)
{
    nrd_runner *r = t->r;
    const size_t row = (size_t)r->spec->hidden * r->act_bytes, parts = (size_t)nrd_vision_row_parts(&t->s);
    const int32_t n = t->n / nrd_tower_merged(t);

    NRD_TRY(nrd_extra_multiply(r, &product1->product, &t->in, from, n, t->up, r->act, 0));
    NRD_TRY(nrd_tower_activate(t, t->s.projector_act, false, n, product1->product.rows, &product2->product));
    NRD_TRY(nrd_tower_multiply(t, product2, t->mid, n, t->delta));
    NRD_TRY(r->dev->ops->copy(r->stream, t->rows, t->delta, (size_t)n * row));
    NRD_TRY(r->dev->ops->stream_sync(r->stream));
    for (size_t k = 0; k < (size_t)n; k++) {
        memcpy(t->out + ((size_t)t->order[k] * parts + (size_t)i) * row, t->rows + k * row, row);
    }
    return NULL;
}

nrd_error *nrd_tower_merge_deep(nrd_tower *t, int32_t i)
{
    const nrd_tower_merger *m = &t->deep[i];
    nrd_norm_args a = {
        .kind = NRD_NORM_LAYER,
        .eps = t->s.norm_eps,
        .n_tokens = t->n / nrd_tower_merged(t),
        .hidden = t->s.hidden * nrd_tower_merged(t),
        .residual = t->x, /* a square's patches lie behind each other */
        .weight = &m->norm.w,
        .bias = &m->norm_bias.w,
        .out = t->normed,
        .out_dtype = t->r->act,
        .act_dtype = t->r->act,
    };
    NRD_TRY(t->r->dev->ops->norm(t->r->stream, &a));
    return nrd_tower_merge_part(t, t->normed, &m->product1, &m->product2, 1 + i);
}
