/* SPDX-License-Identifier: Apache-2.0
 * Drafts from the text itself. Every place is kept under the hash of the min_match tokens that end there, at least two, places of
 * one hash as a chain from the newest; a draft is looked for where the newest tokens stood before. Where one token is enough, only its
 * newest place is known: chains of frequent tokens are long.
 * How likely a guess is right depends most on how long the repeat is that it goes on (of 24 answers that repeat their prompt: 0.3 behind
 * one token, 0.6 behind two or three, above 0.9 from seven on), so this is learned for each length; a guess that holds makes the
 * repeat longer for the next one. */
#include "engine/speculate/proposer.h"

#include "base/hash.h"
#include "base/mem.h"
#include "engine/sequence.h"
#include "engine/speculate/budget.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LOOKS = 32 }; /* at places of one chain: texts of few tokens have long ones */

enum { LENGTHS = 9 }; /* of repeats; longer ones are as good as the last */

/* What is believed of a text that has proved nothing yet, behind a repeat of so many tokens; one that disappoints is left alone, but not for
 * ever. */
static const float FIRST_RATE[LENGTHS] = {0, 0.2f, 0.5f, 0.55f, 0.75f, 0.85f, 0.85f, 0.9f, 0.9f}, FORGET = 0.01f;

typedef struct ngram {
    nrd_proposer base;
    int32_t max_draft, min_match, max_match;
    int32_t n_hashed;   /* tokens of a hash */
    int32_t matched;    /* tokens of the repeat that the last draft goes on */
    float rates[LENGTHS], likely[NRD_MAX_PASSES]; /* of the last draft's tokens */
    int32_t n_indexed;  /* the tokens before are in the index */
    uint32_t head_mask;
    int32_t *heads;     /* [head_mask + 1]: the newest place + 1 of a hash; 0: none */
    int32_t *before;    /* [max_total]: the next older place + 1 of the same hash */
    int32_t *newest;    /* [head_mask + 1]: as heads, of single tokens; NULL: one is too few */
} ngram;

static uint32_t heads_for(int32_t max_total)
{
    uint32_t n = 64;
    while (n < (uint32_t)max_total && n < 1u << 30) {
        n *= 2;
    }
    return n;
}

size_t nrd_proposer_ngram_bytes(int32_t max_total)
{
    return sizeof(ngram) + (2 * (size_t)heads_for(max_total) + (size_t)max_total) * sizeof(int32_t);
}

/* Of the n tokens that end at `last`. */
static uint32_t hash_at(const ngram *g, const int32_t *tokens, int32_t last, int32_t n)
{
    return (uint32_t)nrd_hash_bytes(0, tokens + last + 1 - n, (size_t)n * sizeof *tokens) & g->head_mask;
}

static void index_up_to(ngram *g, const int32_t *tokens, int32_t n)
{
    for (int32_t at = g->n_indexed; at < n; at++) {
        if (at + 1 >= g->n_hashed) {
            uint32_t h = hash_at(g, tokens, at, g->n_hashed);
            g->before[at] = g->heads[h];
            g->heads[h] = at + 1;
        }
        if (g->newest) {
            g->newest[hash_at(g, tokens, at, 1)] = at + 1;
        }
    }
    g->n_indexed = n > g->n_indexed ? n : g->n_indexed;
}

/* How many tokens that end at `a` are those that end at `b`, b > a; at most max_match. */
static int32_t n_same(const ngram *g, const int32_t *tokens, int32_t a, int32_t b)
{
    int32_t n = 0;
    while (n < g->max_match && n <= a && tokens[a - n] == tokens[b - n]) {
        n++;
    }
    return n;
}

/* Where the repeat of the last of n tokens ends, and its length; -1: there is none. */
static int32_t find(const ngram *g, const int32_t *tokens, int32_t n, int32_t *length)
{
    int32_t best = -1, longest = g->min_match - 1, looks = 0;

    for (int32_t at = n < g->n_hashed ? -1 : g->heads[hash_at(g, tokens, n - 1, g->n_hashed)] - 1;
         at >= 0 && looks < MAX_LOOKS && longest < g->max_match; at = g->before[at] - 1, looks++) {
        if (at < longest || tokens[at - longest] != tokens[n - 1 - longest]) {
            continue; /* no longer than what was found */
        }
        int32_t same = n_same(g, tokens, at, n - 1);
        if (same > longest) {
            best = at;
            longest = same;
        }
    }
    if (best < 0 && g->newest) {
        best = g->newest[hash_at(g, tokens, n - 1, 1)] - 1;
        longest = best >= 0 ? n_same(g, tokens, best, n - 1) : 0;
        best = longest > 0 ? best : -1;
    }
    *length = longest;
    return best;
}

static float *rate_behind(ngram *g, int32_t matched)
{
    return &g->rates[matched < LENGTHS ? matched : LENGTHS - 1];
}

static int32_t propose(nrd_proposer *p, const nrd_seq *q, int32_t *out, int32_t max)
{
    ngram *g = (ngram *)(void *)p;
    const int32_t *tokens = q->dec.tokens, n = q->dec.n_known;
    float likely = 1;

    for (int i = 0; i < LENGTHS; i++) {
        g->rates[i] += (FIRST_RATE[i] - g->rates[i]) * FORGET;
    }
    if (nrd_seq_n_generated(q) == 0 || n <= g->min_match) {
        return 0; /* the prompt's own step is long enough */
    }
    index_up_to(g, tokens, n - 1); /* but for the place that is looked for */
    const int32_t best = find(g, tokens, n, &g->matched);
    if (best < 0) {
        return 0;
    }
    max = max < g->max_draft ? max : g->max_draft;
    for (int32_t i = 0; i < max; i++) { /* `out` lies behind the tokens: a short repeat goes on into itself */
        out[i] = tokens[best + 1 + i];
        likely *= *rate_behind(g, g->matched + i);
        g->likely[i] = likely;
    }
    return max;
}

static void hear(nrd_proposer *p, const nrd_draft_outcome *o)
{
    ngram *g = (ngram *)(void *)p;
    for (int32_t i = 0; i < o->n_proposed && i <= o->n_accepted; i++) {
        nrd_proposer_learn(rate_behind(g, g->matched + i), 1, i < o->n_accepted);
    }
}

static void ngram_free(nrd_proposer *p)
{
    ngram *g = (ngram *)(void *)p;
    free(g->heads);
    free(g->before);
    free(g->newest);
    free(g);
}

nrd_error *nrd_proposer_ngram(nrd_proposer **out, int32_t max_draft, int32_t min_match, int32_t max_match,
                              int32_t max_total)
{
    nrd_error *err = NULL;
    ngram *g = NULL;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, fail);
    g->base = (nrd_proposer){
        .propose = propose, .hear = hear, .free = ngram_free, .likely = g->likely, .threshold = -1};
    memcpy(g->rates, FIRST_RATE, sizeof g->rates);
    g->max_draft = max_draft;
    g->n_hashed = min_match > 1 ? min_match : 2;
    g->min_match = min_match;
    g->max_match = max_match;
    g->head_mask = heads_for(max_total) - 1;
    NRD_NEW_GOTO(g->heads, (size_t)g->head_mask + 1, err, fail);
    NRD_NEW_GOTO(g->before, (size_t)max_total, err, fail);
    if (min_match == 1) {
        NRD_NEW_GOTO(g->newest, (size_t)g->head_mask + 1, err, fail);
    }
    *out = &g->base;
    return NULL;

fail:
    if (g) {
        ngram_free(&g->base);
    }
    return err;
}
