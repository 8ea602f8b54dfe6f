/* SPDX-License-Identifier: Apache-2.0
 * Lookahead decoding: the model guesses for itself. A window of guesses runs ahead of the text: level 0 has a token for
 * each of the next places, level l the tokens l places further, each of which saw its column's tokens of the levels
 * before. So a column is a chain behind a place of level 0, the window is a part of the step's token tree, and the
 * choices behind its last level are the next level. A column with the choice behind it is an n-gram that the model would
 * write, kept in a pool under its first token, beside those of the text itself; those that begin with the last known token are
 * what a step verifies. */
#include "engine/speculate/proposer.h"

#include "base/hash.h"
#include "base/mem.h"
#include "engine/sequence.h"

#include <string.h>

enum { POOL_BYTES = 1 << 20, MIN_SETS = 16 };

/* Tokens that hold of a draft: before the first one, and how fast the newest change it. */
static const float FIRST_MEAN = 1, NEWEST = 0.1f;

typedef struct ahead {
    nrd_proposer base;
    nrd_lookahead cfg;
    nrd_token_tree tree;
    float likely[NRD_MAX_TREE], mean;
    int32_t *window;  /* [ngram - 1, window] tokens; place 0 of level 0 is the last known token */
    int16_t *node;    /* [ngram - 1, window] of each in the last draft */
    bool has_window;  /* the last draft has it, else there was no room */
    bool is_filled;
    int32_t root;     /* which token of the sequence the window's place 0 is */
    int32_t n_indexed; /* n-grams of the text that begin before are in the pool */
    uint32_t set_mask;
    int32_t *pool;    /* [sets, n_verify, ngram]; -1: nothing there */
    uint16_t *newest; /* [sets] the way that was written last */
} ahead;

int32_t nrd_lookahead_nodes(const nrd_lookahead *l)
{
    return (l->window - 1) + (l->ngram - 2) * l->window + l->n_verify * (l->ngram - 1);
}

static uint32_t n_sets(const nrd_lookahead *l, int32_t max_total)
{
    const size_t set_bytes = (size_t)l->n_verify * (size_t)l->ngram * sizeof(int32_t);
    uint32_t n = MIN_SETS;
    while (n < (uint32_t)max_total && 2 * (size_t)n * set_bytes <= POOL_BYTES) {
        n *= 2;
    }
    return n;
}

static size_t n_guesses(const nrd_lookahead *l)
{
    return (size_t)(l->ngram - 1) * (size_t)l->window;
}

size_t nrd_proposer_lookahead_bytes(const nrd_lookahead *l, int32_t max_total)
{
    return sizeof(ahead) + n_guesses(l) * (sizeof(int32_t) + sizeof(int16_t)) +
           n_sets(l, max_total) * ((size_t)l->n_verify * (size_t)l->ngram * sizeof(int32_t) + sizeof(uint16_t));
}

/* ---- the pool ---- */

static uint32_t set_of(const ahead *g, int32_t token)
{
    return (uint32_t)nrd_hash_u64(0, (uint64_t)(uint32_t)token) & g->set_mask;
}

static int32_t *way_of(const ahead *g, uint32_t set, int32_t way)
{
    return g->pool + ((size_t)set * (size_t)g->cfg.n_verify + (size_t)way) * (size_t)g->cfg.ngram;
}

/* In place of the oldest of its set, unless it is there. */
static void keep(ahead *g, const int32_t *ngram)
{
    const uint32_t set = set_of(g, ngram[0]);
    const size_t bytes = (size_t)g->cfg.ngram * sizeof *ngram;
    for (int32_t way = 0; way < g->cfg.n_verify; way++) {
        if (memcmp(way_of(g, set, way), ngram, bytes) == 0) {
            return;
        }
    }
    g->newest[set] = (uint16_t)((g->newest[set] + 1) % g->cfg.n_verify);
    memcpy(way_of(g, set, g->newest[set]), ngram, bytes);
}

static void index_text(ahead *g, const nrd_seq *q)
{
    for (; g->n_indexed + g->cfg.ngram <= q->dec.n_known; g->n_indexed++) {
        keep(g, q->dec.tokens + g->n_indexed);
    }
}

/* The n-grams that begin with the last known token, newest first. */
static void add_candidates(ahead *g, int32_t last, int32_t max)
{
    const uint32_t set = set_of(g, last);
    for (int32_t i = 0; i < g->cfg.n_verify; i++) {
        const int32_t way = (g->newest[set] - i + g->cfg.n_verify) % g->cfg.n_verify;
        const int32_t *ngram = way_of(g, set, way);
        for (int32_t k = 1, node = -1; ngram[0] == last && k < g->cfg.ngram && (k == 1 || node >= 0); k++) {
            node = nrd_tree_add(&g->tree, max, node, ngram[k]);
        }
    }
}

/* ---- the window ---- */

static int32_t *guess_at(const ahead *g, int32_t level, int32_t place)
{
    return &g->window[level * g->cfg.window + place];
}

/* A guess where there is none: some token of the text. */
static int32_t any_token(const nrd_seq *q, int32_t level, int32_t place)
{
    const uint64_t h = nrd_hash_u64((uint64_t)q->dec.n_known, (uint64_t)level << 32 | (uint64_t)place);
    return q->dec.tokens[h % (uint64_t)q->dec.n_known];
}

/* The text went on: guesses are of the places where they were. */
static void follow_text(ahead *g, const nrd_seq *q)
{
    const int32_t root = q->dec.n_known - 1, by = g->is_filled ? root - g->root : g->cfg.window;
    for (int32_t level = 0; level < g->cfg.ngram - 1; level++) {
        for (int32_t place = 0; place < g->cfg.window; place++) {
            *guess_at(g, level, place) =
                place + by < g->cfg.window ? *guess_at(g, level, place + by) : any_token(q, level, place);
        }
    }
    *guess_at(g, 0, 0) = q->dec.tokens[root];
    g->root = root;
    g->is_filled = true;
}

static void add_window(ahead *g)
{
    const int32_t wide = g->cfg.window;
    for (int32_t level = 0; level < g->cfg.ngram - 1; level++) {
        for (int32_t place = 0; place < wide; place++) {
            const int32_t at = level * wide + place, before = level == 0 ? at - 1 : at - wide;
            g->node[at] = (int16_t)(at == 0 ? -1 : nrd_tree_add(&g->tree, NRD_MAX_TREE, g->node[before], g->window[at]));
        }
    }
}

/* Each level becomes the one before it, a place further in the text; the choices behind the last level come new. */
static void turn_window(ahead *g, const int32_t *choices)
{
    const int32_t wide = g->cfg.window, levels = g->cfg.ngram - 1;
    int32_t ngram[NRD_MAX_TREE + 2];

    for (int32_t place = 0; place < wide; place++) {
        for (int32_t level = 0; level < levels; level++) {
            ngram[level] = *guess_at(g, level, place);
        }
        ngram[levels] = choices[1 + g->node[(levels - 1) * wide + place]];
        keep(g, ngram);
        for (int32_t level = 0; level < levels; level++) {
            *guess_at(g, level, place) = ngram[level + 1];
        }
    }
    g->root++;
}

/* ---- the proposer ---- */

static int32_t propose(nrd_proposer *p, const nrd_seq *q, int32_t *out, int32_t max)
{
    ahead *g = (ahead *)(void *)p;

    (void)out; /* the tree has the tokens */
    g->tree.n = 0;
    if (nrd_seq_n_generated(q) == 0) {
        return 0; /* the prompt's own step is long enough */
    }
    index_text(g, q);
    follow_text(g, q);
    add_candidates(g, q->dec.tokens[q->dec.n_known - 1], max);
    g->has_window = max >= nrd_lookahead_nodes(&g->cfg);
    if (g->has_window) {
        add_window(g);
    }
    for (int32_t i = 0; i < g->tree.n; i++) {
        g->likely[i] = g->mean / (float)g->tree.n;
    }
    return g->tree.n;
}

static void hear(nrd_proposer *p, const nrd_draft_outcome *o)
{
    ahead *g = (ahead *)(void *)p;
    g->mean += ((float)o->n_accepted - g->mean) * NEWEST;
    if (g->has_window && o->n_proposed == g->tree.n) {
        turn_window(g, o->choices);
    }
}

static void ahead_free(nrd_proposer *p)
{
    ahead *g = (ahead *)(void *)p;
    free(g->window);
    free(g->node);
    free(g->pool);
    free(g->newest);
    free(g);
}

nrd_error *nrd_proposer_lookahead(nrd_proposer **out, const nrd_lookahead *l, int32_t max_total)
{
    nrd_error *err = NULL;
    ahead *g = NULL;
    const size_t sets = n_sets(l, max_total), n = sets * (size_t)l->n_verify * (size_t)l->ngram;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, fail);
    g->base = (nrd_proposer){.propose = propose,
                             .hear = hear,
                             .free = ahead_free,
                             .rate = 0,
                             .threshold = -1,
                             .tree = &g->tree,
                             .likely = g->likely,
                             .whole = true};
    g->cfg = *l;
    g->mean = FIRST_MEAN;
    g->set_mask = (uint32_t)sets - 1;
    NRD_NEW_GOTO(g->window, n_guesses(l), err, fail);
    NRD_NEW_GOTO(g->node, n_guesses(l), err, fail);
    NRD_NEW_GOTO(g->newest, sets, err, fail);
    NRD_NEW_GOTO(g->pool, n, err, fail);
    for (size_t i = 0; i < n; i++) {
        g->pool[i] = -1;
    }
    *out = &g->base;
    return NULL;

fail:
    if (g) {
        ahead_free(&g->base);
    }
    return err;
}
