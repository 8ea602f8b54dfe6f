/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/tree.h"

int32_t nrd_tree_child(const nrd_token_tree *t, int32_t n, int32_t parent, int32_t id)
{
    for (int32_t i = parent + 1; i < n; i++) {
        if (t->parent[i] == parent && t->ids[i] == id) {
            return i;
        }
    }
    return -1;
}

int32_t nrd_tree_add(nrd_token_tree *t, int32_t max, int32_t parent, int32_t id)
{
    const int32_t have = nrd_tree_child(t, t->n, parent, id);
    if (have >= 0 || t->n >= max || t->n >= NRD_MAX_TREE) {
        return have;
    }
    const int32_t i = t->n++;
    t->ids[i] = id;
    t->parent[i] = (int16_t)parent;
    t->depth[i] = (int16_t)(parent < 0 ? 1 : t->depth[parent] + 1);
    return i;
}

bool nrd_tree_is_chain(const nrd_token_tree *t, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (t->parent[i] != i - 1) {
            return false;
        }
    }
    return true;
}

void nrd_tree_path(const nrd_token_tree *t, int32_t node, int32_t *out_ids)
{
    for (; node >= 0; node = t->parent[node]) {
        out_ids[t->depth[node] - 1] = t->ids[node];
    }
}

static void set_bit(uint32_t *row, int32_t i)
{
    row[i / 32] |= 1u << (i % 32);
}

void nrd_tree_see(const nrd_token_tree *t, int32_t node, int32_t n_before, uint32_t *row)
{
    for (int32_t i = 0; i < n_before; i++) {
        set_bit(row, i);
    }
    for (; node >= 0; node = t->parent[node]) {
        set_bit(row, n_before + node);
    }
}

bool nrd_tree_holds(const nrd_token_tree *t, const int32_t *choices, int32_t node)
{
    for (; node >= 0; node = t->parent[node]) {
        if (choices[1 + t->parent[node]] != t->ids[node]) {
            return false;
        }
    }
    return true;
}
