/* SPDX-License-Identifier: Apache-2.0
 * Passes of the network that guesses. The first one of a step computes what the network has missed of each sequence,
 * the others a token each, which the device knows before the host does. */
#include "engine/speculate/drafter.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/speculate/budget.h"
#include "engine/speculate/state_proposer.h"

#include <string.h>

/* Of a network that has guessed nothing yet; and how fast a sequence comes back to what others' guesses are worth. */
static const float FIRST_RATE = 0.7f, FORGET = 0.01f;

/* A sequence as this network sees it: the same tokens in blocks of the same numbers, and a greedy choice. */
typedef struct guesser {
    nrd_proposer base;
    nrd_drafter *from;
    nrd_seq shadow;
    bool has_begun;  /* its rate is its own; before, it is that of all */
    bool is_planned; /* in the pass being made, with its one token */
} guesser;

struct nrd_drafter {
    nrd_runner *runner;
    nrd_drafter_config cfg;
    nrd_step_costs costs;
    float rate;        /* of all sequences */
    int32_t *computed; /* [n_blocks]: of a block's first tokens */
    nrd_plan passes[2]; /* under way, by turns */
};

static int32_t min_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* ---- which tokens are computed ---- */

/* The model writes tokens [start, start + n) of a table: what this network had there is another text's. */
static void forget_tokens(nrd_drafter *d, const nrd_kv_table *t, int32_t start, int32_t n)
{
    const int32_t bt = d->cfg.block_tokens;
    for (int32_t i = start / bt; i < t->n_blocks && i * bt < start + n; i++) {
        if (t->blocks[i] >= 0) {
            int32_t *have = &d->computed[t->blocks[i]];
            *have = min_of(*have, start > i * bt ? start - i * bt : 0);
        }
    }
}

static void forget_written(nrd_drafter *d, const nrd_plan *p)
{
    for (int32_t i = 0; i < p->n_copies; i++) {
        if (p->copies[i][1] < d->cfg.n_blocks) {
            d->computed[p->copies[i][1]] = 0;
        }
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        forget_tokens(d, &e->seq->sched.tables[e->beam], e->start + e->n_again, e->n - e->n_again);
    }
}

/* How many tokens from the first on, of at most `max`. */
static int32_t n_computed(const nrd_drafter *d, const nrd_kv_table *t, int32_t max)
{
    const int32_t bt = d->cfg.block_tokens;
    for (int32_t i = 0; i < t->n_blocks && i * bt < max; i++) {
        const int32_t have = t->blocks[i] >= 0 ? d->computed[t->blocks[i]] : 0;
        if (have < bt) {
            return min_of(i * bt + have, max);
        }
    }
    return max;
}

static void note_computed(nrd_drafter *d, const nrd_kv_table *t, int32_t start, int32_t end)
{
    const int32_t bt = d->cfg.block_tokens;
    for (int32_t i = start / bt; i * bt < end; i++) {
        d->computed[t->blocks[i]] = min_of(end - i * bt, bt);
    }
}

/* ---- the proposer ---- */

static int32_t propose(nrd_proposer *p, const nrd_seq *q, int32_t *out, int32_t max)
{
    guesser *g = (guesser *)(void *)p;
    const nrd_drafter *d = g->from;
    const int32_t last = q->dec.n_known - 1;

    (void)out; /* nrd_drafter_run writes */
    p->rate += (d->rate - p->rate) * (g->has_begun ? FORGET : 1);
    g->has_begun = true;
    max = min_of(min_of(max, d->cfg.max_draft), d->cfg.max_context - q->dec.n_known);
    if (max <= 0) {
        return 0;
    }
    p->lag = last - n_computed(d, &q->sched.tables[0], last);
    return max;
}

static void hear(nrd_proposer *p, const nrd_draft_outcome *o)
{
    nrd_proposer_learn(&p->rate, o->n_proposed, o->n_accepted);
    nrd_proposer_learn(&((guesser *)(void *)p)->from->rate, o->n_proposed, o->n_accepted);
}

static void guesser_free(nrd_proposer *p)
{
    free(p);
}

nrd_error *nrd_proposer_of_drafter(nrd_proposer **out, nrd_drafter *d)
{
    nrd_error *err = NULL;
    guesser *g = NULL;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, fail);
    g->from = d;
    g->base = (nrd_proposer){
        .propose = propose,
        .hear = hear,
        .free = guesser_free,
        .rate = FIRST_RATE,
        .threshold = -1,
        .passes = &d->costs,
        .pass_tokens = d->cfg.pass_tokens,
    };
    g->shadow = (nrd_seq){
        .req = {.width = 1, .end_id = -1, .sampling = {.top_k = 1, .temperature = 1, .repetition_penalty = 1, .top_p_decay = 1}},
        .dec = {.greedy = true},
    };
    *out = &g->base;
fail:
    return err;
}

size_t nrd_proposer_drafter_bytes(void)
{
    return sizeof(guesser);
}

/* ---- passes ---- */

/* NULL: guesses for it come from elsewhere. */
static guesser *guesser_of(const nrd_drafter *d, const nrd_plan_entry *e)
{
    return (guesser *)(void *)nrd_proposer_of_entry(e, &d->costs);
}

/* Tokens [start, start + n) of the sequence of `e`; from_slot: its one token is the last pass's choice. */
static void add(nrd_plan *pass, guesser *g, const nrd_plan_entry *e, int32_t start, int32_t n, bool from_slot, bool chooses)
{
    g->shadow.dec.tokens = e->seq->dec.tokens;
    g->shadow.sched.tables = e->seq->sched.tables;
    pass->entries[pass->n_entries++] = (nrd_plan_entry){
        .seq = &g->shadow,
        .slot = e->slot,
        .start = start,
        .n = n,
        .row = chooses ? pass->n_rows : -1,
        .from_slot = from_slot,
    };
    pass->n_rows += chooses;
    pass->n_tokens += n;
}

static void begin(nrd_plan *pass)
{
    pass->n_entries = pass->n_tokens = pass->n_rows = 0;
}

/* What this network has missed of the sequences that have a draft, or that catch up. Blocks that two of them share are
 * computed once: by the first. Entries of one token stand first. */
static void plan_first(nrd_drafter *d, const nrd_plan *p, nrd_plan *pass)
{
    begin(pass);
    for (int longer = 0; longer < 2; longer++) {
        for (int32_t i = 0; i < p->n_entries; i++) {
            const nrd_plan_entry *e = &p->entries[i];
            const nrd_kv_table *t = &e->seq->sched.tables[0];
            guesser *g = guesser_of(d, e);
            if (!g || (e->n_draft == 0 && g->base.catch_up == 0) || (longer && g->is_planned)) {
                continue;
            }
            const int32_t last = e->seq->dec.n_known - 1, start = n_computed(d, t, last);
            const int32_t n = e->n_draft > 0 ? last + 1 - start : min_of(g->base.catch_up, last - start);
            g->is_planned = n == 1;
            if (n == 1 || (longer && n > 0)) {
                add(pass, g, e, start, n, false, e->n_draft > 0);
                note_computed(d, t, start, start + n);
            }
        }
    }
}

/* The guess after `before` others, of all drafts that are longer. */
static void plan_next(nrd_drafter *d, const nrd_plan *p, int32_t before, nrd_plan *pass)
{
    begin(pass);
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *e = &p->entries[i];
        guesser *g = guesser_of(d, e);
        if (g && e->n_draft > before) {
            const int32_t at = e->seq->dec.n_known + before - 1;
            add(pass, g, e, at, 1, true, true);
            note_computed(d, &e->seq->sched.tables[0], at, at + 1);
        }
    }
}

static nrd_error *submit(nrd_drafter *d, int32_t i)
{
    return nrd_runner_submit(d->runner, &d->passes[i % 2], i % 2);
}

/* Waits for a pass, and puts its guesses behind the tokens that it was given. */
static nrd_error *finish(nrd_drafter *d, int32_t i, uint64_t *started_ns)
{
    const nrd_plan *pass = &d->passes[i % 2];
    nrd_step_result r;

    NRD_TRY(nrd_runner_wait(d->runner, i % 2, &r));
    const uint64_t now = nrd_now_ns();
    if (!r.was_recorded) {
        nrd_costs_hear(&d->costs, pass->n_tokens, now - *started_ns);
    }
    *started_ns = now;
    for (int32_t k = 0; k < pass->n_entries; k++) {
        const nrd_plan_entry *e = &pass->entries[k];
        if (e->row >= 0) {
            const int32_t id = r.ids[e->row];
            e->seq->dec.tokens[e->start + e->n] = id == NRD_SAMPLE_NO_NUMBERS ? 0 : id; /* a guess may be wrong */
        }
    }
    return NULL;
}

nrd_error *nrd_drafter_run(nrd_drafter *d, const nrd_plan *p)
{
    uint64_t started_ns = nrd_now_ns();
    int32_t longest = 0, n_done = 0;

    forget_written(d, p);
    for (int32_t i = 0; i < p->n_entries; i++) {
        longest = guesser_of(d, &p->entries[i]) && p->entries[i].n_draft > longest ? p->entries[i].n_draft : longest;
    }
    plan_first(d, p, &d->passes[0]);
    if (d->passes[0].n_entries == 0) {
        return NULL;
    }
    NRD_TRY(submit(d, 0));
    for (int32_t i = 1; i < longest; i++) {
        if (!d->cfg.ahead) {
            NRD_TRY(finish(d, n_done++, &started_ns));
        }
        plan_next(d, p, i, &d->passes[i % 2]);
        NRD_TRY(submit(d, i));
        if (d->cfg.ahead) {
            NRD_TRY(finish(d, n_done++, &started_ns));
        }
    }
    NRD_TRY(finish(d, n_done, &started_ns));
    for (int32_t i = 0; i < p->n_entries; i++) {
        if (p->entries[i].seq->spec.proposer) {
            p->entries[i].seq->spec.proposer->catch_up = 0;
        }
    }
    return NULL;
}

/* ---- creation ---- */

nrd_error *nrd_drafter_new(nrd_drafter **out, nrd_runner *runner, const nrd_drafter_config *cfg)
{
    nrd_error *err = NULL;
    nrd_drafter *d = NULL;

    *out = NULL;
    NRD_NEW_GOTO(d, 1, err, fail);
    d->runner = runner;
    d->cfg = *cfg;
    d->rate = FIRST_RATE;
    d->costs.like = cfg->model_costs;
    d->costs.share = cfg->share;
    NRD_NEW_GOTO(d->computed, cfg->n_blocks, err, fail);
    for (int i = 0; i < 2; i++) {
        NRD_NEW_GOTO(d->passes[i].entries, cfg->max_entries, err, fail);
        d->passes[i].cap_entries = cfg->max_entries;
    }
    *out = d;
    return NULL;

fail:
    nrd_drafter_free(d);
    return err;
}

void nrd_drafter_free(nrd_drafter *d)
{
    if (!d) {
        return;
    }
    nrd_plan_fini(&d->passes[0]);
    nrd_plan_fini(&d->passes[1]);
    free(d->computed);
    free(d);
}
