/* SPDX-License-Identifier: Apache-2.0
 * Unigram: the segmentation with the best sum of piece scores, by dynamic programming over byte
 * positions (Kudo 2018). Characters that no piece covers cost unk_score each.
 *
 * Words are searched one by one, which is exact where no piece reaches across (nrd_tok_safe_chunk).
 * The references add up scores over the whole text, in single precision (SentencePiece) or double
 * (tokenizers), and near ties are decided by the rounding. So the sum is carried from word to word,
 * and a word is remembered only if its decisions are clearer than the rounding can be. */
#include "text/internal.h"

#include <math.h>
#include <string.h>

/* Sums up to here have a rounding step of 2^-10 (float) or 2^-39 (double); a remembered word has at
 * most 27 bytes, so less than 27 such steps. Longer texts are searched without the memory. */
static const double sum_limit = 8192, clear_float = 0.05, clear_double = 1e-9;

static bool reserve_best(nrd_tok_scratch *sc, size_t n)
{
    if (n <= sc->cap_best) {
        return true;
    }
    size_t cap = n + n / 2;
    const bool ok = nrd_tok_grow((void **)&sc->best, cap, sizeof *sc->best) &&
                    nrd_tok_grow((void **)&sc->best_id, cap, sizeof *sc->best_id) &&
                    nrd_tok_grow((void **)&sc->best_from, cap, sizeof *sc->best_from);
    sc->cap_best = ok ? cap : sc->cap_best;
    sc->no_memory = sc->no_memory || !ok;
    return ok;
}

static inline double add_scores(const nrd_tokenizer *t, double a, double b)
{
    return t->scores_are_float ? (double)(float)(a + b) : a + b;
}

static double piece_score(const nrd_tokenizer *t, int32_t id, size_t n)
{
    if (t->flags[id] & TOK_USER) { /* SentencePiece makes these win over their own letters */
        return (double)(float)((double)((float)n * (float)t->max_score) - 0.1);
    }
    return t->scores ? t->scores[id] : 0;
}

/* *gap: the closest decision so far. */
static void reach(nrd_tok_scratch *sc, size_t to, double score, int32_t id, size_t from,
                  double *gap)
{
    bool fresh = sc->best_from[to] == UINT32_MAX;
    if (!fresh) {
        *gap = fmin(*gap, fabs(score - sc->best[to]));
    }
    if (fresh || score > sc->best[to]) {
        sc->best[to] = score;
        sc->best_id[to] = id;
        sc->best_from[to] = (uint32_t)from;
    }
}

static void push_unknown(const nrd_tokenizer *t, const char *s, size_t n, nrd_ids *out)
{
    if (t->byte_fallback && t->has_all_bytes) {
        for (size_t i = 0; i < n; i++) {
            nrd_ids_push(out, t->byte_ids[(uint8_t)s[i]]);
        }
        return;
    }
    /* what no piece covers may still be a word of the vocabulary */
    int32_t id = t->n_known > 0 ? nrd_strmap_get(&t->by_token, t->tokens, s, n) : -1;
    id = id >= 0 && (t->flags[id] & TOK_OUTPUT) ? id : t->unk_id;
    if (id >= 0) {
        nrd_ids_push(out, id);
    }
}

/* Returns the closest decision. */
static double search(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s, size_t n,
                     double sum)
{
    double gap = HUGE_VAL;
    sc->best[0] = sum;
    for (size_t i = 0; i <= n; i++) {
        sc->best_from[i] = UINT32_MAX;
    }
    for (size_t at = 0; at < n;) {
        uint32_t cp, node = 0;
        size_t char_n = nrd_utf8_next(s + at, n - at, &cp);
        bool covered = false;
        for (size_t end = at; end < n;) {
            node = nrd_trie_step(&t->pieces, node, (uint8_t)s[end++]);
            if (!node) {
                break;
            }
            int32_t id = t->pieces.value[node];
            if (id >= 0) {
                reach(sc, end, add_scores(t, piece_score(t, id, end - at), sc->best[at]), id, at,
                      &gap);
                covered = covered || end - at == char_n;
            }
        }
        if (!covered) {
            reach(sc, at + char_n, add_scores(t, t->unk_score, sc->best[at]), -1, at, &gap);
        }
        at += char_n;
    }
    return gap;
}

/* Returns the sum of scores up to the end of the chunk. */
static double encode_chunk(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s, size_t n,
                           double sum, nrd_ids *out)
{
    uint64_t hash = 0;
    size_t before = out->n;
    bool all_known = true;

    if (fabs(sum) < sum_limit && nrd_tok_cache_get(sc, t, s, n, &hash, out)) {
        for (size_t i = before; i < out->n; i++) {
            sum = add_scores(t, t->scores ? t->scores[out->ids[i]] : 0, sum);
        }
        return sum;
    }
    if (!reserve_best(sc, n + 1)) {
        return sum;
    }
    double gap = search(t, sc, s, n, sum), end_sum = sc->best[n];
    for (size_t at = n; at > 0; at = sc->best_from[at]) { /* back to front, reversed below */
        int32_t id = sc->best_id[at];
        size_t from = sc->best_from[at];
        if (id >= 0) {
            nrd_ids_push(out, id);
            all_known = all_known && !(t->flags[id] & TOK_USER);
            continue;
        }
        all_known = false;
        while (from > 0 && sc->best_id[from] < 0) { /* unknown neighbours count as one */
            from = sc->best_from[from];
        }
        size_t first = out->n;
        push_unknown(t, s + from, at - from, out);
        for (size_t i = first, j = out->n; j > i + 1; i++) {
            int32_t swap = out->ids[i];
            out->ids[i] = out->ids[--j];
            out->ids[j] = swap;
        }
        sc->best_from[at] = (uint32_t)from;
    }
    for (size_t i = before, j = out->n; j > i + 1; i++) {
        int32_t swap = out->ids[i];
        out->ids[i] = out->ids[--j];
        out->ids[j] = swap;
    }
    sc->no_memory = sc->no_memory || out->no_memory; /* wrong ids must not be remembered */
    if (all_known && fabs(sum) < sum_limit && gap > (t->scores_are_float ? clear_float : clear_double)) {
        nrd_tok_cache_put(sc, t, hash, s, n, out->n > before ? &out->ids[before] : NULL,
                          out->n - before);
    }
    return end_sum;
}

void nrd_tok_unigram_encode(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s, size_t n,
                            nrd_ids *out)
{
    double sum = 0;
    while (n > 0) {
        size_t len = nrd_tok_safe_chunk(t, s, n);
        sum = encode_chunk(t, sc, s, len, sum, out);
        s += len;
        n -= len;
    }
}
