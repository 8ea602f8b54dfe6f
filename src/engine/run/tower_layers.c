/* SPDX-License-Identifier: Apache-2.0
 * Layers of a vision transformer, in which every patch sees all others, or those of its window. Keys and values of one layer
 * are kept as a cache keeps them; the next layer overwrites them. */
#include "engine/run/tower_internal.h"

nrd_error *nrd_tower_layer_run(nrd_tower *t, int32_t i, bool has_delta)
{
    const nrd_tower_layer *y = &t->layers[i];
    const nrd_batch_view *view = t->s.window > 0 && !t->s.layer_is_full[i] ? &t->windows : &t->view;

    NRD_TRY(nrd_tower_norm(t, has_delta, &y->norm1, &y->norm1_bias, false, &y->qkv.product));
    NRD_TRY(nrd_tower_multiply(t, &y->qkv, t->normed, t->n, t->qkv));
    NRD_TRY(nrd_tower_attend(t, view, &y->dense.product));
    NRD_TRY(nrd_tower_multiply(t, &y->dense, t->att, t->n, t->delta));
    NRD_TRY(nrd_tower_norm(t, true, &y->norm2, &y->norm2_bias, false, &y->up.product));
    NRD_TRY(nrd_tower_multiply(t, &y->up, t->normed, t->n, t->up));
    NRD_TRY(nrd_tower_activate(t, t->s.act, t->s.gated, t->n, t->s.inter, &y->down.product));
    return nrd_tower_multiply(t, &y->down, t->mid, t->n, t->delta);
}

nrd_error *nrd_tower_layers(nrd_tower *t, bool *has_delta)
{
    int32_t deep = 0;

    for (int32_t i = 0; i < t->s.n_layers; i++) {
        NRD_TRY(nrd_tower_layer_run(t, i, *has_delta));
        *has_delta = deep == t->s.n_deep || t->s.deep_layers[deep] != i;
        if (!*has_delta) {
            NRD_TRY(nrd_tower_norm(t, true, NULL, NULL, false, NULL));
            NRD_TRY(nrd_tower_merge_deep(t, deep++));
        }
    }
    return NULL;
}
