/* SPDX-License-Identifier: Apache-2.0
 * Places of EAGLE heads, and their passes. Place j needs the state of token j and token j + 1, so that of n known tokens the
 * first n - 1 can be computed, and the last of them guesses the token that comes. */
#include "engine/speculate/eagle.h"

#include "base/clock.h"
#include "base/mem.h"
#include "engine/speculate/budget.h"
#include "engine/speculate/state_proposer.h"
#include "engine/speculate/tree_rates.h"

#include <string.h>

/* Of heads that have guessed nothing yet; and how fast a sequence comes back to what others' guesses are worth. */
static const float FIRST_RATE = 0.7f, FORGET = 0.01f;

/* A sequence as the heads see it: token j is the one behind place j. */
typedef struct guesser {
    nrd_proposer base;
    nrd_eagle *from;
    nrd_seq shadow;
    bool has_begun;  /* its rate is its own; before, it is that of all */
    bool is_planned; /* in the pass being made, with its one place */
    int32_t output;  /* of its last pass, number of the first one */
    /* ---- of trees ---- */
    nrd_token_tree tree;
    nrd_eagle_tree *growing; /* NULL: drafts are chains */
    int32_t n_given;         /* before the pass under way */
    int32_t outputs[NRD_MAX_TREE]; /* of what was given, each one's; behind the known text: output */
    int32_t first_row, first_token; /* of the step's tree: its packed token, and its place among the sequence's tokens */
    const nrd_seq *seq;
} guesser;

struct nrd_eagle {
    nrd_eagle_net *net;
    nrd_eagle_config cfg;
    nrd_step_costs costs;
    float rate;        /* of all sequences */
    int32_t *kept;     /* [n_blocks] of a block's first tokens there are states, or will be when the step under way is over */
    int32_t *computed; /* [n_blocks] of its first places */
    nrd_eagle_span *spans; /* what the step under way writes */
    int32_t n_spans, cap_spans, n_step_tokens;
    nrd_plan pass;
    int32_t *states, *rows; /* of the pass: [pass_tokens], [max_entries] */
    int32_t n_rows, n_outputs; /* of the pass; of those before it */
    nrd_tree_rates rates; /* of trees */
};

static int32_t min_of(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t max_of(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

/* ---- which places have what ---- */

/* How many of a table's first places have something, of at most `max`. */
static int32_t n_first(const nrd_eagle *e, const int32_t *of_block, const nrd_kv_table *t, int32_t max)
{
    const int32_t bt = e->cfg.block_tokens;
    for (int32_t i = 0; i * bt < max; i++) {
        const int32_t have = i < t->n_blocks && t->blocks[i] >= 0 ? of_block[t->blocks[i]] : 0;
        if (have < bt) {
            return min_of(i * bt + have, max);
        }
    }
    return max;
}

/* What places [start, ...) of a table have is another text's. */
static void forget_from(const nrd_eagle *e, int32_t *of_block, const nrd_kv_table *t, int32_t start)
{
    const int32_t bt = e->cfg.block_tokens;
    for (int32_t i = start / bt; i < t->n_blocks; i++) {
        if (t->blocks[i] >= 0) {
            int32_t *have = &of_block[t->blocks[i]];
            *have = min_of(*have, max_of(start - i * bt, 0));
        }
    }
}

static void note(const nrd_eagle *e, int32_t *of_block, const nrd_kv_table *t, int32_t start, int32_t end)
{
    const int32_t bt = e->cfg.block_tokens;
    for (int32_t i = start / bt; i * bt < end && i < t->n_blocks; i++) {
        int32_t *have = t->blocks[i] >= 0 ? &of_block[t->blocks[i]] : NULL;
        if (have && *have >= start - i * bt) { /* else there is a hole before it */
            *have = max_of(*have, min_of(end - i * bt, bt));
        }
    }
}

static int32_t place_of(const nrd_eagle *e, const nrd_kv_table *t, int32_t j)
{
    return t->blocks[j / e->cfg.block_tokens] * e->cfg.block_tokens + j % e->cfg.block_tokens;
}

/* ---- the proposer ---- */

static int32_t propose(nrd_proposer *p, const nrd_seq *q, int32_t *out, int32_t max)
{
    guesser *g = (guesser *)(void *)p;
    const nrd_eagle *e = g->from;
    const nrd_kv_table *t = &q->sched.tables[0];
    const int32_t end = q->dec.n_known - 1; /* of the places that can be computed; the last one always is */

    (void)out; /* nrd_eagle_run writes */
    p->rate += (e->rate - p->rate) * (g->has_begun ? FORGET : 1);
    g->has_begun = true;
    max = min_of(min_of(max, e->cfg.max_draft), e->cfg.max_context - q->dec.n_known);
    if (max <= 0 || end < 1 || n_first(e, e->kept, t, end) < end) {
        return 0;
    }
    p->lag = end - 1 - n_first(e, e->computed, t, end - 1);
    if (g->growing) { /* what hangs below what is known when the heads have run; that it is no chain, the plan must know now */
        g->tree.n = max;
        for (int32_t i = 0; i < max; i++) {
            g->tree.parent[i] = -1;
            g->tree.depth[i] = 1;
        }
    }
    return max;
}

static void hear(nrd_proposer *p, const nrd_draft_outcome *o)
{
    nrd_proposer_learn(&p->rate, o->n_proposed, o->n_accepted);
    nrd_proposer_learn(&((guesser *)(void *)p)->from->rate, o->n_proposed, o->n_accepted);
}

static void add_span(nrd_eagle *e, int32_t row, int32_t place, int32_t n);

/* The states of the nodes that hold are those of the tokens behind the known ones. */
static void keep_path(guesser *g, const nrd_draft_outcome *o)
{
    nrd_eagle *e = g->from;
    const nrd_kv_table *t = &g->seq->sched.tables[0];

    for (int32_t i = 0; i < o->n_accepted && g->first_token + i < t->n_blocks * e->cfg.block_tokens; i++) {
        add_span(e, g->first_row + o->path[i], place_of(e, t, g->first_token + i), 1);
    }
    note(e, e->kept, t, g->first_token, g->first_token + o->n_accepted);
}

static void hear_tree(nrd_proposer *p, const nrd_draft_outcome *o)
{
    guesser *g = (guesser *)(void *)p;

    nrd_tree_rates_hear(&g->from->rates, o);
    if (o->path) {
        keep_path(g, o);
    }
}

static void guesser_free(nrd_proposer *p)
{
    free(((guesser *)(void *)p)->growing);
    free(p);
}

nrd_error *nrd_proposer_of_eagle(nrd_proposer **out, nrd_eagle *e)
{
    nrd_error *err = NULL;
    guesser *g = NULL;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, fail);
    g->from = e;
    g->base = (nrd_proposer){
        .propose = propose,
        .hear = hear,
        .free = guesser_free,
        .rate = FIRST_RATE,
        .threshold = -1,
        .passes = &e->costs,
        .pass_tokens = e->cfg.pass_tokens,
    };
    g->shadow = (nrd_seq){.req = {.width = 1, .end_id = -1}};
    if (e->cfg.depth > 0) {
        NRD_NEW_GOTO(g->growing, 1, err, fail);
        g->base.hear = hear_tree;
        g->base.tree = &g->tree;
        g->base.likely = e->rates.likely;
        g->base.n_passes = e->cfg.depth;
    }
    *out = &g->base;
    return NULL;

fail:
    free(g);
    return err;
}

size_t nrd_proposer_eagle_bytes(bool trees)
{
    return sizeof(guesser) + (trees ? sizeof(nrd_eagle_tree) : 0);
}

/* ---- states of the model's steps ---- */

static void add_span(nrd_eagle *e, int32_t row, int32_t place, int32_t n)
{
    nrd_eagle_span *last = e->n_spans > 0 ? &e->spans[e->n_spans - 1] : NULL;
    if (last && last->row + last->n == row && last->place + last->n == place) {
        last->n += n;
        return;
    }
    NRD_ASSERT(e->n_spans < e->cap_spans, "a token of a step has one span at most");
    e->spans[e->n_spans++] = (nrd_eagle_span){row, place, n};
}

/* NULL: guesses for it come from elsewhere. */
static guesser *guesser_of(const nrd_eagle *e, const nrd_plan_entry *x)
{
    return (guesser *)(void *)nrd_proposer_of_entry(x, &e->costs);
}

/* What the step of `p` will write, once it is over. Of a tree that is said when it is known what holds (keep_path). Tokens of a draft that do not hold are written over by the next step. */
static void note_step(nrd_eagle *e, const nrd_plan *p)
{
    const int32_t bt = e->cfg.block_tokens;
    int32_t row = 0;

    e->n_spans = 0;
    e->n_step_tokens = p->n_tokens;
    for (int32_t i = 0; i < p->n_entries; row += p->entries[i].n, i++) {
        const nrd_plan_entry *x = &p->entries[i];
        const nrd_kv_table *t = &x->seq->sched.tables[x->beam];
        const int32_t end = x->start + x->n - (x->tree ? x->n_draft : 0);
        guesser *g = x->tree ? guesser_of(e, x) : NULL;
        for (int32_t j = x->start, n; j < end; j += n) {
            n = min_of(bt - j % bt, end - j);
            if (t->blocks[j / bt] >= 0) {
                add_span(e, row + j - x->start, place_of(e, t, j), n);
            }
        }
        note(e, e->kept, t, x->start, end);
        if (g) {
            g->first_row = row + end - x->start;
            g->first_token = end;
            g->seq = x->seq;
        }
    }
}

/* Blocks that a plan copies take their states along; the layer computes them again. */
static nrd_error *copy_blocks(nrd_eagle *e, const nrd_plan *p)
{
    for (int32_t i = 0; i < p->n_copies; i++) {
        const int32_t from = p->copies[i][0], to = p->copies[i][1];
        if (to >= e->cfg.n_blocks) {
            continue;
        }
        e->computed[to] = e->kept[to] = 0;
        if (from < e->cfg.n_blocks) {
            NRD_TRY(nrd_eagle_net_copy_block(e->net, from, to));
            e->kept[to] = e->kept[from];
        }
    }
    return NULL;
}

/* A place depends on the token behind it, too. But not the last one of a block that this step writes nothing of: others may share that
 * block, whose drafts in this step were counted with it. */
static void forget_written(nrd_eagle *e, const nrd_plan *p)
{
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *x = &p->entries[i];
        const nrd_kv_table *t = &x->seq->sched.tables[x->beam];
        const int32_t start = x->start + x->n_again;
        forget_from(e, e->kept, t, start);
        forget_from(e, e->computed, t, start % e->cfg.block_tokens > 0 ? start - 1 : start);
    }
}

/* ---- passes ---- */

static void begin(nrd_eagle *e)
{
    e->pass.n_entries = e->pass.n_tokens = 0;
    /* a chain's pass reads the outputs of the one before only */
    e->n_outputs = e->cfg.depth > 0 ? e->n_outputs + e->n_rows : e->cfg.max_rows - e->n_outputs;
    e->n_rows = 0;
}

/* Places [start, start + n); state: of the first one where it is no place of the sequence, or -1. */
static void add(nrd_eagle *e, guesser *g, const nrd_plan_entry *x, int32_t start, int32_t n, int32_t state, bool guesses)
{
    nrd_plan *pass = &e->pass;
    const nrd_kv_table *t = &x->seq->sched.tables[0];

    g->shadow.dec.tokens = x->seq->dec.tokens + 1;
    g->shadow.sched.tables = x->seq->sched.tables;
    pass->entries[pass->n_entries++] = (nrd_plan_entry){.seq = &g->shadow, .slot = x->slot, .start = start, .n = n, .row = -1};
    for (int32_t k = 0; k < n; k++) {
        e->states[pass->n_tokens + k] = state >= 0 ? state : place_of(e, t, start + k);
    }
    pass->n_tokens += n;
    if (guesses) {
        g->output = e->n_outputs + e->n_rows;
        e->rows[e->n_rows++] = pass->n_tokens - 1;
    }
}

/* What the layer has missed of the sequences that have a draft, or that catch up. Blocks that two of them share are computed once:
 * by the first. Entries of one place stand first. */
static void plan_first(nrd_eagle *e, const nrd_plan *p)
{
    begin(e);
    for (int longer = 0; longer < 2; longer++) {
        for (int32_t i = 0; i < p->n_entries; i++) {
            const nrd_plan_entry *x = &p->entries[i];
            const nrd_kv_table *t = &x->seq->sched.tables[0];
            guesser *g = guesser_of(e, x);
            if (!g || (x->n_draft == 0 && g->base.catch_up == 0) || (longer && g->is_planned)) {
                continue;
            }
            const int32_t last = x->seq->dec.n_known - 2, start = n_first(e, e->computed, t, last);
            const int32_t n = x->n_draft > 0 ? last + 1 - start : min_of(g->base.catch_up, last - start);
            g->is_planned = n == 1;
            if (n == 1 || (longer && n > 0)) {
                add(e, g, x, start, n, -1, x->n_draft > 0);
                note(e, e->computed, t, start, start + n);
            }
        }
    }
}

/* The guess behind `before` others, of all drafts that are longer: from what the last pass gave. */
static void plan_next(nrd_eagle *e, const nrd_plan *p, int32_t before)
{
    begin(e);
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *x = &p->entries[i];
        guesser *g = guesser_of(e, x);
        if (g && x->n_draft > before) {
            add(e, g, x, x->seq->dec.n_known - 2 + before, 1, nrd_eagle_net_output(e->net, g->output), true);
        }
    }
}

static nrd_error *run_pass(nrd_eagle *e, nrd_eagle_found *out)
{
    const nrd_eagle_pass pass = {
        .plan = &e->pass, .states = e->states, .rows = e->rows, .n_rows = e->n_rows, .first_output = e->n_outputs};
    const uint64_t started_ns = nrd_now_ns();

    NRD_TRY(nrd_eagle_net_run(e->net, &pass, out));
    if (!out->was_recorded) {
        nrd_costs_hear(&e->costs, e->pass.n_tokens, nrd_now_ns() - started_ns);
    }
    return NULL;
}

/* Where an output's candidates begin. */
static size_t at_output(const nrd_eagle *e, int32_t output)
{
    return (size_t)(output - e->n_outputs) * (size_t)e->cfg.n_best;
}

/* ---- chains ---- */

/* Runs the pass, and puts its guesses behind `before` others. */
static nrd_error *extend(nrd_eagle *e, const nrd_plan *p, int32_t before)
{
    nrd_eagle_found c;

    NRD_TRY(run_pass(e, &c));
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *x = &p->entries[i];
        const guesser *g = guesser_of(e, x);
        if (g && x->n_draft > before) {
            x->seq->dec.tokens[x->seq->dec.n_known + before] = c.ids[at_output(e, g->output)];
        }
    }
    return NULL;
}

static nrd_error *chains(nrd_eagle *e, const nrd_plan *p, int32_t longest)
{
    NRD_TRY(extend(e, p, 0));
    for (int32_t i = 1; i < longest; i++) {
        plan_next(e, p, i);
        NRD_TRY(extend(e, p, i));
    }
    return NULL;
}

/* ---- trees ---- */

/* All that was given so far, below the last place: each sees its path. A node's state is its parent's output. */
static void add_tree(nrd_eagle *e, guesser *g, const nrd_plan_entry *x)
{
    const nrd_token_tree *t = &g->growing->given;
    nrd_plan *pass = &e->pass;

    g->shadow.dec.tokens = x->seq->dec.tokens + 1;
    g->shadow.sched.tables = x->seq->sched.tables;
    pass->entries[pass->n_entries++] = (nrd_plan_entry){.seq = &g->shadow,
                                                        .slot = x->slot,
                                                        .start = x->seq->dec.n_known - 1,
                                                        .n = t->n,
                                                        .n_draft = t->n,
                                                        .tree = t,
                                                        .row = -1};
    for (int32_t k = 0; k < t->n; k++) {
        const int32_t output = t->parent[k] < 0 ? g->output : g->outputs[t->parent[k]];
        e->states[pass->n_tokens] = nrd_eagle_net_output(e->net, output);
        if (k >= g->n_given) {
            g->outputs[k] = e->n_outputs + e->n_rows;
            e->rows[e->n_rows++] = pass->n_tokens;
        }
        pass->n_tokens++;
    }
}

/* How many of a level's candidates are given: as many as leave some for the levels below. The blocks of the draft have room for
 * as many places as it has nodes. */
static int32_t n_of_level(const nrd_eagle *e, const guesser *g, int32_t n_draft, int32_t depth)
{
    const int32_t left = n_draft - g->growing->given.n;
    return min_of(min_of(left, max_of(left / (e->cfg.depth - depth), 1)), e->cfg.top_k);
}

/* What goes into the next pass, of one more level. */
static void plan_level(nrd_eagle *e, const nrd_plan *p, int32_t depth)
{
    begin(e);
    for (int32_t i = 0; i < p->n_entries; i++) {
        const nrd_plan_entry *x = &p->entries[i];
        guesser *g = guesser_of(e, x);
        if (!g || x->n_draft < 2) {
            continue;
        }
        g->n_given = g->growing->given.n;
        const int32_t n = e->cfg.choices ? nrd_eagle_tree_give_chosen(g->growing, e->cfg.choices, x->n_draft, depth)
                                         : nrd_eagle_tree_give(g->growing, depth, n_of_level(e, g, x->n_draft, depth));
        if (n > 0) {
            add_tree(e, g, x);
        }
    }
    e->pass.has_trees = true;
}

/* Candidates behind what the pass was given. */
static void grow(nrd_eagle *e, guesser *g, const nrd_eagle_found *c)
{
    for (int32_t k = g->n_given; k < g->growing->given.n; k++) {
        const size_t at = at_output(e, g->outputs[k]);
        nrd_eagle_tree_add(g->growing, k, c->ids + at, c->log_probs + at, e->cfg.n_best);
    }
}

/* A draft that needs no tree lies behind the known tokens. */
static void take(nrd_eagle *e, guesser *g, const nrd_plan_entry *x)
{
    if (e->cfg.choices) {
        nrd_eagle_tree_chosen(g->growing, e->cfg.choices, x->n_draft, &g->tree);
    } else {
        nrd_eagle_tree_best(g->growing, x->n_draft, &g->tree);
    }
    NRD_ASSERT(g->tree.n == x->n_draft, "there are as many candidates as nodes");
    if (!x->tree) {
        x->seq->dec.tokens[x->seq->dec.n_known] = g->tree.ids[0];
    }
}

static nrd_error *trees(nrd_eagle *e, const nrd_plan *p)
{
    nrd_eagle_found c;

    NRD_TRY(run_pass(e, &c));
    for (int32_t depth = 0; depth < e->cfg.depth && (depth == 0 || e->pass.n_entries > 0); depth++) {
        for (int32_t i = 0; i < p->n_entries; i++) {
            guesser *g = guesser_of(e, &p->entries[i]);
            if (g && p->entries[i].n_draft > 0 && depth == 0) {
                const size_t at = at_output(e, g->output);
                nrd_eagle_tree_begin(g->growing);
                nrd_eagle_tree_add(g->growing, -1, c.ids + at, c.log_probs + at, e->cfg.n_best);
            } else if (g && p->entries[i].n_draft > 1) {
                grow(e, g, &c);
            }
        }
        if (depth + 1 < e->cfg.depth) {
            plan_level(e, p, depth + 1);
            NRD_TRY(e->pass.n_entries > 0 ? run_pass(e, &c) : NULL);
        }
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        guesser *g = guesser_of(e, &p->entries[i]);
        if (g && p->entries[i].n_draft > 0) {
            take(e, g, &p->entries[i]);
        }
    }
    return NULL;
}

/* ---- a step ---- */

static nrd_error *guess(nrd_eagle *e, const nrd_plan *p)
{
    int32_t longest = 0;

    e->n_outputs = e->n_rows = 0;
    e->pass.has_trees = false;
    plan_first(e, p);
    if (e->pass.n_entries == 0) {
        return NULL;
    }
    for (int32_t i = 0; i < p->n_entries; i++) {
        guesser *g = guesser_of(e, &p->entries[i]);
        longest = g ? max_of(p->entries[i].n_draft, longest) : longest;
        if (g) {
            g->base.catch_up = 0;
        }
    }
    return e->cfg.depth > 0 && longest > 0 ? trees(e, p) : chains(e, p, longest);
}

nrd_error *nrd_eagle_keep(nrd_eagle *e, const nrd_plan *p)
{
    NRD_TRY(nrd_eagle_net_keep(e->net, e->n_step_tokens, e->spans, e->n_spans));
    NRD_TRY(copy_blocks(e, p));
    forget_written(e, p);
    return NULL;
}

nrd_error *nrd_eagle_run(nrd_eagle *e, const nrd_plan *p)
{
    NRD_TRY(guess(e, p));
    note_step(e, p);
    return NULL;
}

/* ---- creation ---- */

nrd_error *nrd_eagle_new(nrd_eagle **out, nrd_eagle_net *net, const nrd_eagle_config *cfg)
{
    nrd_error *err = NULL;
    nrd_eagle *e = NULL;

    *out = NULL;
    NRD_NEW_GOTO(e, 1, err, fail);
    e->net = net;
    e->cfg = *cfg;
    e->rate = FIRST_RATE;
    e->costs.like = cfg->model_costs;
    e->costs.share = cfg->share;
    e->cap_spans = cfg->step_tokens;
    nrd_tree_rates_init(&e->rates, FIRST_RATE);
    NRD_NEW_GOTO(e->kept, cfg->n_blocks, err, fail);
    NRD_NEW_GOTO(e->computed, cfg->n_blocks, err, fail);
    NRD_NEW_GOTO(e->spans, cfg->step_tokens, err, fail);
    NRD_NEW_GOTO(e->states, cfg->pass_tokens, err, fail);
    NRD_NEW_GOTO(e->rows, cfg->max_rows, err, fail);
    NRD_NEW_GOTO(e->pass.entries, cfg->max_entries, err, fail);
    e->pass.cap_entries = cfg->max_entries;
    *out = e;
    return NULL;

fail:
    nrd_eagle_free(e);
    return err;
}

void nrd_eagle_free(nrd_eagle *e)
{
    if (!e) {
        return;
    }
    nrd_plan_fini(&e->pass);
    free(e->kept);
    free(e->computed);
    free(e->spans);
    free(e->states);
    free(e->rows);
    free(e);
}
