/* SPDX-License-Identifier: Apache-2.0
 * Which combinations of the heads' best tokens make the tree. */
#include "engine/speculate/medusa.h"

#include <string.h>

typedef struct path {
    const int32_t *ranks;
    int32_t n;
} path;

static path path_at(const int32_t *ranks, const int32_t *ends, int32_t i)
{
    const int32_t start = i ? ends[i - 1] : 0;
    return (path){ranks + start, ends[i] - start};
}

/* Shorter ones first, then by their ranks: parents before their children. */
static int compare(const path *a, const path *b)
{
    if (a->n != b->n) {
        return a->n < b->n ? -1 : 1;
    }
    for (int32_t i = 0; i < a->n; i++) {
        if (a->ranks[i] != b->ranks[i]) {
            return a->ranks[i] < b->ranks[i] ? -1 : 1;
        }
    }
    return 0;
}

static int32_t child_of(const nrd_medusa_choices *c, int32_t parent, int32_t rank)
{
    for (int32_t i = parent + 1; i < c->n; i++) {
        if (c->parent[i] == parent && c->rank[i] == rank) {
            return i;
        }
    }
    return -1;
}

static void add(nrd_medusa_choices *c, int32_t parent, int32_t rank)
{
    c->parent[c->n] = (int16_t)parent;
    c->depth[c->n] = (int16_t)(parent < 0 ? 1 : c->depth[parent] + 1);
    c->rank[c->n++] = (int16_t)rank;
}

static nrd_error *check(const char *field, const path *p, int32_t i, int32_t n_heads)
{
    if (p->n < 1 || p->n > n_heads) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: choice %d has %d ranks, expected 1 to %d, one for each head at "
                                               "most", field, i, p->n, n_heads);
    }
    for (int32_t k = 0; k < p->n; k++) {
        if (p->ranks[k] < 0 || p->ranks[k] >= NRD_MEDUSA_MAX_RANK) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: choice %d has the rank %d, expected 0 to %d", field, i, p->ranks[k],
                              NRD_MEDUSA_MAX_RANK - 1);
        }
    }
    return NULL;
}

/* Its beginning is there, and it is not. */
static nrd_error *place(nrd_medusa_choices *c, const char *field, const path *p)
{
    int32_t parent = -1;
    for (int32_t k = 0; k + 1 < p->n; k++) {
        parent = child_of(c, parent, p->ranks[k]);
        if (parent < 0) {
            return nrd_errorf(NRD_ERR_INVALID_ARG, "%s are no tree: a choice of %d ranks that begins with %d has no choice "
                                                   "of its first %d ranks", field, p->n, p->ranks[0], k + 1);
        }
    }
    if (child_of(c, parent, p->ranks[p->n - 1]) >= 0) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s: a choice of %d ranks that ends with %d comes twice", field, p->n,
                          p->ranks[p->n - 1]);
    }
    add(c, parent, p->ranks[p->n - 1]);
    return NULL;
}

nrd_error *nrd_medusa_choices_of(nrd_medusa_choices *out, const char *field, const int32_t *ranks, const int32_t *ends, int32_t n,
                                 int32_t n_heads)
{
    path sorted[NRD_MAX_TREE];

    out->n = 0;
    if (n < 1 || n > NRD_MAX_TREE) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "%s has %d choices, expected 1 to %d", field, n, NRD_MAX_TREE);
    }
    for (int32_t i = 0; i < n; i++) {
        const path p = path_at(ranks, ends, i);
        int32_t at = i;
        NRD_TRY(check(field, &p, i, n_heads));
        for (; at > 0 && compare(&sorted[at - 1], &p) > 0; at--) {
            sorted[at] = sorted[at - 1];
        }
        sorted[at] = p;
    }
    for (int32_t i = 0; i < n; i++) {
        NRD_TRY(place(out, field, &sorted[i]));
    }
    return NULL;
}

/* The likeliest path that is not there yet, again and again: it is a child of one that is, or of the root. */
void nrd_medusa_choices_default(nrd_medusa_choices *out, int32_t n_heads, int32_t n)
{
    float likely[NRD_MAX_TREE];
    int16_t n_children[NRD_MAX_TREE + 1] = {0}; /* of the root, then of each */

    out->n = 0;
    n = n < NRD_MAX_TREE ? n : NRD_MAX_TREE;
    while (out->n < n) {
        int32_t best = -2;
        float most = 0;
        for (int32_t i = -1; i < out->n; i++) {
            const int32_t depth = i < 0 ? 0 : out->depth[i], rank = n_children[i + 1];
            if (depth < n_heads && rank < NRD_MEDUSA_MAX_RANK) {
                const float p = (i < 0 ? 1 : likely[i]) * nrd_medusa_first_rate(depth, rank);
                best = p > most ? i : best;
                most = p > most ? p : most;
            }
        }
        if (best == -2) {
            return;
        }
        likely[out->n] = most;
        add(out, best, n_children[best + 1]++);
    }
}
