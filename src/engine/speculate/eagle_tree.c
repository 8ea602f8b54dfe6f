/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/eagle_tree.h"

#include "base/mem.h"

#include <stdbool.h>

void nrd_eagle_tree_begin(nrd_eagle_tree *t)
{
    t->n = t->given.n = 0;
    for (int32_t i = 0; i < NRD_MAX_TREE; i++) {
        t->chosen[i] = -1;
    }
}

void nrd_eagle_tree_add(nrd_eagle_tree *t, int32_t given, const int32_t *ids, const float *log_probs, int32_t n)
{
    const int32_t parent = given < 0 ? -1 : t->candidate[given];
    for (int32_t i = 0; i < n && t->n < NRD_EAGLE_MAX_CANDIDATES; i++) {
        const int32_t at = t->n++;
        t->ids[at] = ids[i];
        /* never above the parent's, so that parents stay before their children */
        t->likely[at] = (parent < 0 ? 0 : t->likely[parent]) + (log_probs[i] < 0 ? log_probs[i] : 0);
        t->parent[at] = (int16_t)parent;
        t->depth[at] = (int16_t)(parent < 0 ? 1 : t->depth[parent] + 1);
        t->rank[at] = (int16_t)i;
    }
}

static void give(nrd_eagle_tree *t, int32_t candidate)
{
    nrd_token_tree *g = &t->given;
    const int32_t at = g->n++;
    int16_t parent = -1;

    for (int32_t i = 0; i < at; i++) {
        parent = t->candidate[i] == t->parent[candidate] ? (int16_t)i : parent;
    }
    g->ids[at] = t->ids[candidate];
    g->parent[at] = parent;
    g->depth[at] = t->depth[candidate];
    t->candidate[at] = (int16_t)candidate;
}

/* The likeliest that is not among the first n of `taken`; at the same likelihood the older one. depth 0: of any level. */
static int32_t next_best(const nrd_eagle_tree *t, int32_t depth, const bool *taken)
{
    int32_t best = -1;
    for (int32_t i = 0; i < t->n; i++) {
        if (!taken[i] && (depth == 0 || t->depth[i] == depth) && (best < 0 || t->likely[i] > t->likely[best])) {
            best = i;
        }
    }
    return best;
}

int32_t nrd_eagle_tree_give(nrd_eagle_tree *t, int32_t depth, int32_t k)
{
    bool taken[NRD_EAGLE_MAX_CANDIDATES] = {false};
    int32_t n = 0;

    for (int32_t best; n < k && t->given.n < NRD_MAX_TREE && (best = next_best(t, depth, taken)) >= 0; n++) {
        taken[best] = true;
        give(t, best);
    }
    return n;
}

/* Each choice's candidate, as far as its parent's is known and was given. */
static void choose(nrd_eagle_tree *t, const nrd_medusa_choices *c, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const int32_t parent = c->parent[i] < 0 ? -1 : t->chosen[c->parent[i]];
        for (int32_t k = 0; t->chosen[i] < 0 && (c->parent[i] < 0 || parent >= 0) && k < t->n; k++) {
            if (t->parent[k] == parent && t->rank[k] == c->rank[i]) {
                t->chosen[i] = (int16_t)k;
            }
        }
    }
}

int32_t nrd_eagle_tree_give_chosen(nrd_eagle_tree *t, const nrd_medusa_choices *c, int32_t n, int32_t depth)
{
    bool has_child[NRD_MAX_TREE] = {false};
    int32_t given = 0;

    choose(t, c, n);
    for (int32_t i = 0; i < n; i++) {
        if (c->parent[i] >= 0) {
            has_child[c->parent[i]] = true;
        }
    }
    for (int32_t i = 0; i < n; i++) {
        if (c->depth[i] == depth && has_child[i] && t->chosen[i] >= 0) {
            give(t, t->chosen[i]);
            given++;
        }
    }
    return given;
}

static void put(const nrd_eagle_tree *t, int32_t candidate, int32_t parent, nrd_token_tree *out)
{
    const int32_t at = out->n++;
    out->ids[at] = t->ids[candidate];
    out->parent[at] = (int16_t)parent;
    out->depth[at] = t->depth[candidate];
}

void nrd_eagle_tree_best(const nrd_eagle_tree *t, int32_t n, nrd_token_tree *out)
{
    bool taken[NRD_EAGLE_MAX_CANDIDATES] = {false};
    int16_t place[NRD_EAGLE_MAX_CANDIDATES];

    out->n = 0;
    for (int32_t best; out->n < n && (best = next_best(t, 0, taken)) >= 0;) {
        taken[best] = true;
        place[best] = (int16_t)out->n;
        put(t, best, t->parent[best] < 0 ? -1 : place[t->parent[best]], out);
    }
}

void nrd_eagle_tree_chosen(nrd_eagle_tree *t, const nrd_medusa_choices *c, int32_t n, nrd_token_tree *out)
{
    choose(t, c, n);
    out->n = 0;
    for (int32_t i = 0; i < n; i++) {
        NRD_ASSERT(t->chosen[i] >= 0, "the heads named as many candidates as the choices have ranks");
        put(t, t->chosen[i], c->parent[i], out);
    }
}
