/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/tree_rates.h"

/* How much less likely each node is right than the one before at first; and how fast that changes. */
static const float NEXT_NODE = 0.85f, NEWEST = 0.02f;

void nrd_tree_rates_init(nrd_tree_rates *r, float first)
{
    for (int32_t i = 0; i < NRD_MAX_TREE; i++) {
        r->right[i] = r->likely[i] = i > 0 ? r->likely[i - 1] * NEXT_NODE : first;
    }
}

void nrd_tree_rates_hear(nrd_tree_rates *r, const nrd_draft_outcome *o)
{
    for (int32_t i = 0, n_held = 0; i < o->n_proposed; i++) {
        const bool holds = n_held < o->n_accepted && i == (o->path ? o->path[n_held] : n_held);
        n_held += holds;
        r->right[i] += ((holds ? 1.0f : 0.0f) - r->right[i]) * NEWEST;
        r->likely[i] = i > 0 && r->likely[i - 1] < r->right[i] ? r->likely[i - 1] : r->right[i];
    }
}
