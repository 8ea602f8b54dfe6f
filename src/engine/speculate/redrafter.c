/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/speculate/redrafter.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/speculate/eagle_tree.h"
#include "engine/speculate/state_proposer.h"
#include "engine/speculate/tree_rates.h"

/* Of a drafter that has guessed nothing yet. */
static const float FIRST_RATE = 0.6f;

typedef struct guesser {
    nrd_state_proposer state;
    nrd_redrafter *from;
    nrd_eagle_tree growing;
    int32_t n_given, first_row; /* nodes given before the pass under way; its first row there */
    int32_t row[NRD_MAX_TREE];  /* of what was given, in the pass that took it further */
} guesser;

struct nrd_redrafter {
    nrd_redrafter_net *net;
    nrd_redrafter_config cfg;
    nrd_step_costs costs;
    nrd_tree_rates rates;
    nrd_state_drafts drafts;
    nrd_redrafter_row *rows; /* [max_rows] of a pass */
    int32_t n_rows;
};

static int32_t min_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- the proposer ---- */

static int32_t propose(nrd_proposer *p, const nrd_seq *q, int32_t *out, int32_t max)
{
    guesser *g = (guesser *)(void *)p;
    const nrd_redrafter_config *c = &g->from->cfg;

    (void)out; /* nrd_redrafter_run writes */
    g->state.tree.n = 0;
    if (!nrd_state_proposer_has_state(&g->state, q, g->from->drafts.last_step)) {
        return 0;
    }
    max = min_of(max, c->max_draft);
    g->state.tree.n = max;
    for (int32_t i = 0; i < max; i++) { /* one beam is a chain; what hangs below what of others is known when the drafter has run */
        g->state.tree.parent[i] = (int16_t)(c->n_beams == 1 ? i - 1 : -1);
        g->state.tree.depth[i] = (int16_t)(c->n_beams == 1 ? i + 1 : 1);
    }
    return max;
}

static void hear(nrd_proposer *p, const nrd_draft_outcome *o)
{
    nrd_tree_rates_hear(&((guesser *)(void *)p)->from->rates, o);
}

nrd_error *nrd_proposer_of_redrafter(nrd_proposer **out, nrd_redrafter *m)
{
    nrd_error *err = NULL;
    guesser *g = NULL;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, fail);
    g->from = m;
    nrd_state_proposer_init(&g->state, m->rates.likely, &m->costs, m->cfg.length);
    g->state.base.propose = propose;
    g->state.base.hear = hear;
    *out = &g->state.base;
fail:
    return err;
}

size_t nrd_proposer_redrafter_bytes(void)
{
    return sizeof(guesser);
}

/* ---- the search ---- */

/* Of the k-th draft. */
static guesser *guesser_of(const nrd_redrafter *m, int32_t k)
{
    return (guesser *)(void *)nrd_proposer_of_entry(m->drafts.entries[k], &m->costs);
}

static void add_row(nrd_redrafter *m, int32_t sequence, int32_t parent, int32_t token)
{
    NRD_ASSERT(m->n_rows < m->cfg.max_rows, "a level has no more beams than the drafts have nodes");
    m->rows[m->n_rows++] = (nrd_redrafter_row){.sequence = sequence, .parent = parent, .token = token};
}

/* The token that the model chose, of each draft. */
static void plan_first(nrd_redrafter *m)
{
    m->n_rows = 0;
    for (int32_t k = 0; k < m->drafts.n; k++) {
        const nrd_seq *q = m->drafts.entries[k]->seq;
        guesser *g = guesser_of(m, k);
        g->first_row = m->n_rows;
        nrd_eagle_tree_begin(&g->growing);
        add_row(m, k, -1, q->dec.tokens[q->dec.n_known - 1]);
    }
}

/* The beams of a level. A draft of n nodes is no deeper than that. */
static void plan_level(nrd_redrafter *m, int32_t depth)
{
    m->n_rows = 0;
    for (int32_t k = 0; k < m->drafts.n; k++) {
        const nrd_plan_entry *x = m->drafts.entries[k];
        guesser *g = guesser_of(m, k);
        const nrd_token_tree *t = &g->growing.given;
        const int32_t before = g->first_row;

        g->n_given = t->n;
        g->first_row = m->n_rows;
        if (x->n_draft <= depth) {
            continue;
        }
        nrd_eagle_tree_give(&g->growing, depth, min_of(m->cfg.n_beams, x->n_draft));
        for (int32_t i = g->n_given; i < t->n; i++) {
            g->row[i] = m->n_rows;
            add_row(m, k, t->parent[i] < 0 ? before : g->row[t->parent[i]], t->ids[i]);
        }
    }
}

static nrd_error *run_pass(nrd_redrafter *m, int32_t depth)
{
    const uint64_t started_ns = nrd_now_ns();
    const int32_t *ids;
    const float *log_probs;
    bool was_recorded;

    NRD_TRY(nrd_redrafter_net_run(m->net, m->rows, m->n_rows, &ids, &log_probs, &was_recorded));
    for (int32_t k = 0; k < m->drafts.n; k++) {
        guesser *g = guesser_of(m, k);
        const int32_t n = depth == 0 ? 1 : g->growing.given.n - g->n_given;
        for (int32_t i = 0; i < n; i++) {
            const size_t at = (size_t)(g->first_row + i) * (size_t)m->cfg.n_beams;
            nrd_eagle_tree_add(&g->growing, depth == 0 ? -1 : g->n_given + i, ids + at, log_probs + at, m->cfg.n_beams);
        }
    }
    if (!was_recorded) {
        nrd_costs_hear(&m->costs, m->n_rows, nrd_now_ns() - started_ns);
    }
    return NULL;
}

/* A draft that needs no tree lies behind the known tokens. */
static void take(guesser *g, const nrd_plan_entry *x)
{
    nrd_eagle_tree_best(&g->growing, x->n_draft, &g->state.tree);
    NRD_ASSERT(g->state.tree.n == x->n_draft, "there are as many candidates as nodes");
    for (int32_t i = 0; i < x->n_draft && !x->tree; i++) {
        x->seq->dec.tokens[x->seq->dec.n_known + i] = g->state.tree.ids[i];
    }
}

nrd_error *nrd_redrafter_run(nrd_redrafter *m, const nrd_plan *p)
{
    nrd_state_drafts *d = &m->drafts;

    nrd_state_drafts_collect(d, p, &m->costs);
    if (d->n == 0) {
        return NULL;
    }
    NRD_TRY(nrd_redrafter_net_begin(m->net, d->tokens, d->n));
    plan_first(m);
    NRD_TRY(run_pass(m, 0));
    for (int32_t depth = 1; depth < m->cfg.length; depth++) {
        plan_level(m, depth);
        NRD_TRY(m->n_rows > 0 ? run_pass(m, depth) : NULL);
    }
    for (int32_t k = 0; k < m->drafts.n; k++) {
        take(guesser_of(m, k), m->drafts.entries[k]);
    }
    return NULL;
}

/* ---- creation ---- */

nrd_error *nrd_redrafter_new(nrd_redrafter **out, nrd_redrafter_net *net, const nrd_redrafter_config *cfg)
{
    nrd_error *err = NULL;
    nrd_redrafter *m = NULL;

    *out = NULL;
    NRD_NEW_GOTO(m, 1, err, fail);
    m->net = net;
    m->cfg = *cfg;
    m->costs.like = cfg->model_costs;
    m->costs.share = cfg->share;
    nrd_tree_rates_init(&m->rates, FIRST_RATE);
    NRD_TRY_GOTO(nrd_state_drafts_init(&m->drafts, cfg->max_entries), err, fail);
    NRD_NEW_GOTO(m->rows, cfg->max_rows, err, fail);
    *out = m;
    return NULL;

fail:
    nrd_redrafter_free(m);
    return err;
}

void nrd_redrafter_free(nrd_redrafter *m)
{
    if (m) {
        nrd_state_drafts_fini(&m->drafts);
        free(m->rows);
        free(m);
    }
}
