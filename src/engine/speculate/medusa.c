/* SPDX-License-Identifier: Apache-2.0
 * Trees of Medusa heads' guesses. All sequences share one order of the choices, the likeliest first, so that the first nodes of
 * a tree are the best tree of their number. */
#include "engine/speculate/medusa.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/speculate/state_proposer.h"

#include <string.h>

/* How fast what is believed of a head's rank changes. */
static const float NEWEST = 0.02f;

typedef struct guesser {
    nrd_state_proposer state;
    nrd_medusa *from;
    int16_t rank[NRD_MAX_TREE]; /* of the tree's nodes */
} guesser;

struct nrd_medusa {
    nrd_extra_heads *heads;
    nrd_medusa_choices choices;
    nrd_step_costs costs;
    int32_t n_heads, n_best;
    float rate[NRD_MEDUSA_MAX_HEADS][NRD_MEDUSA_MAX_RANK]; /* right, where what it stands behind was */
    nrd_state_drafts drafts;
    uint64_t sorted_in; /* the step before whose plan the order was made */
    nrd_medusa_choices sorted;
    float likely[NRD_MAX_TREE]; /* of sorted's nodes */
};

float nrd_medusa_first_rate(int32_t head, int32_t rank)
{
    float p = 0.6f;
    for (int32_t i = 0; i < head; i++) {
        p *= 0.85f;
    }
    for (int32_t i = 0; i < rank; i++) {
        p *= 0.35f;
    }
    return p;
}

/* ---- the order of the choices ---- */

/* A stable sort: a node is never likelier than its parent, so parents stay before their children. */
static void sort(nrd_medusa *m)
{
    const nrd_medusa_choices *c = &m->choices;
    int32_t order[NRD_MAX_TREE];
    int16_t place[NRD_MAX_TREE];
    float p[NRD_MAX_TREE];

    for (int32_t i = 0; i < c->n; i++) {
        int32_t at = i;
        p[i] = (c->parent[i] < 0 ? 1 : p[c->parent[i]]) * m->rate[c->depth[i] - 1][c->rank[i]];
        for (; at > 0 && p[order[at - 1]] < p[i]; at--) {
            order[at] = order[at - 1];
        }
        order[at] = i;
    }
    for (int32_t k = 0; k < c->n; k++) {
        const int32_t i = order[k];
        place[i] = (int16_t)k;
        m->likely[k] = p[i];
        m->sorted.parent[k] = (int16_t)(c->parent[i] < 0 ? -1 : place[c->parent[i]]);
        m->sorted.depth[k] = c->depth[i];
        m->sorted.rank[k] = c->rank[i];
    }
    m->sorted.n = c->n;
}

/* ---- the proposer ---- */

static int32_t propose(nrd_proposer *p, const nrd_seq *q, int32_t *out, int32_t max)
{
    guesser *g = (guesser *)(void *)p;
    nrd_medusa *m = g->from;

    (void)out; /* nrd_medusa_run writes */
    g->state.tree.n = 0;
    if (!nrd_state_proposer_has_state(&g->state, q, m->drafts.last_step)) {
        return 0;
    }
    if (m->sorted_in != m->drafts.last_step) {
        sort(m);
        m->sorted_in = m->drafts.last_step;
    }
    const int32_t n = m->sorted.n < max ? m->sorted.n : max;
    memcpy(g->state.tree.parent, m->sorted.parent, (size_t)n * sizeof *g->state.tree.parent);
    memcpy(g->state.tree.depth, m->sorted.depth, (size_t)n * sizeof *g->state.tree.depth);
    memcpy(g->rank, m->sorted.rank, (size_t)n * sizeof *g->rank);
    g->state.tree.n = n;
    return n;
}

static int32_t held(const nrd_draft_outcome *o, int32_t i)
{
    return i >= o->n_accepted ? -1 : o->path ? o->path[i] : i;
}

/* Of the nodes behind those that held, which was right and which were not: paths are in the order of the nodes. */
static void hear(nrd_proposer *p, const nrd_draft_outcome *o)
{
    const guesser *g = (const guesser *)(const void *)p;
    bool holds[NRD_MAX_TREE] = {false};

    for (int32_t i = 0, n_held = 0; i < o->n_proposed; i++) {
        const int32_t parent = g->state.tree.parent[i];
        holds[i] = i == held(o, n_held);
        n_held += holds[i];
        if (parent < 0 || holds[parent]) {
            float *rate = &g->from->rate[g->state.tree.depth[i] - 1][g->rank[i]];
            *rate += ((holds[i] ? 1.0f : 0.0f) - *rate) * NEWEST;
        }
    }
}

nrd_error *nrd_proposer_of_medusa(nrd_proposer **out, nrd_medusa *m)
{
    nrd_error *err = NULL;
    guesser *g = NULL;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, fail);
    g->from = m;
    nrd_state_proposer_init(&g->state, m->likely, &m->costs, 1);
    g->state.base.propose = propose;
    g->state.base.hear = hear;
    *out = &g->state.base;
fail:
    return err;
}

size_t nrd_proposer_medusa_bytes(void)
{
    return sizeof(guesser);
}

/* ---- passes ---- */

/* ids: [n_heads, n_best] of this sequence. A draft that needs no tree lies behind the known tokens. */
static void fill(const nrd_medusa *m, const nrd_plan_entry *e, guesser *g, const int32_t *ids)
{
    for (int32_t i = 0; i < e->n_draft; i++) {
        g->state.tree.ids[i] = ids[(g->state.tree.depth[i] - 1) * m->n_best + g->rank[i]];
        if (!e->tree) {
            e->seq->dec.tokens[e->seq->dec.n_known + i] = g->state.tree.ids[i];
        }
    }
}

nrd_error *nrd_medusa_run(nrd_medusa *m, const nrd_plan *p)
{
    const uint64_t started_ns = nrd_now_ns();
    const int32_t *ids = NULL;
    bool was_recorded;
    nrd_state_drafts *d = &m->drafts;

    nrd_state_drafts_collect(d, p, &m->costs);
    if (d->n == 0) {
        return NULL;
    }
    NRD_TRY(nrd_extra_heads_run(m->heads, d->tokens, d->n, &ids, &was_recorded));
    for (int32_t k = 0; k < d->n; k++) {
        fill(m, d->entries[k], (guesser *)(void *)nrd_proposer_of_entry(d->entries[k], &m->costs), ids + (size_t)k * (size_t)(m->n_heads * m->n_best));
    }
    if (!was_recorded) {
        nrd_costs_hear(&m->costs, d->n, nrd_now_ns() - started_ns);
    }
    return NULL;
}

/* ---- creation ---- */

nrd_error *nrd_medusa_new(nrd_medusa **out, nrd_extra_heads *heads, const nrd_medusa_choices *choices, int32_t max_entries,
                          const nrd_step_costs *model_costs, float share)
{
    nrd_error *err = NULL;
    nrd_medusa *m = NULL;

    *out = NULL;
    NRD_NEW_GOTO(m, 1, err, fail);
    m->heads = heads;
    m->choices = *choices;
    m->n_heads = nrd_extra_heads_n(heads);
    m->n_best = nrd_extra_heads_n_best(heads);
    m->costs.like = model_costs;
    m->costs.share = share;
    m->sorted_in = UINT64_MAX;
    for (int32_t h = 0; h < NRD_MEDUSA_MAX_HEADS; h++) {
        for (int32_t r = 0; r < NRD_MEDUSA_MAX_RANK; r++) {
            m->rate[h][r] = nrd_medusa_first_rate(h, r);
        }
    }
    NRD_TRY_GOTO(nrd_state_drafts_init(&m->drafts, max_entries), err, fail);
    *out = m;
    return NULL;

fail:
    nrd_medusa_free(m);
    return err;
}

void nrd_medusa_free(nrd_medusa *m)
{
    if (m) {
        nrd_state_drafts_fini(&m->drafts);
        free(m);
    }
}
