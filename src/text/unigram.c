/* Unigram: the segmentation with the best sum of piece scores, by dynamic programming over byte
 * positions (Kudo 2018). Characters that no piece covers cost unk_score each. */
#include "text/internal.h"

#include <string.h>

static void reserve_best(tok_scratch *sc, size_t n)
{
    if (n > sc->cap_best) {
        size_t cap = n + n / 2;
        sc->best = nrd_xrealloc(sc->best, cap * sizeof *sc->best);
        sc->best_id = nrd_xrealloc(sc->best_id, cap * sizeof *sc->best_id);
        sc->best_from = nrd_xrealloc(sc->best_from, cap * sizeof *sc->best_from);
        sc->cap_best = cap;
    }
}

static inline double add_scores(const nrd_tokenizer *t, double a, double b)
{
    return t->scores_are_float ? (double)((float)a + (float)b) : a + b;
}

static double piece_score(const nrd_tokenizer *t, int32_t id, size_t n)
{
    if (t->flags[id] & TOK_USER) { /* SentencePiece makes these win over their own letters */
        return t->scores_are_float ? (double)((float)n * (float)t->max_score - 0.1f)
                                   : (double)n * t->max_score - 0.1;
    }
    return t->scores ? t->scores[id] : 0;
}

static void reach(tok_scratch *sc, size_t to, double score, int32_t id, size_t from)
{
    if (sc->best_from[to] == UINT32_MAX || score > sc->best[to]) {
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
    } else if (t->unk_id >= 0) {
        nrd_ids_push(out, t->unk_id);
    }
}

static void search(const nrd_tokenizer *t, tok_scratch *sc, const char *s, size_t n)
{
    sc->best[0] = 0;
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
                reach(sc, end, add_scores(t, piece_score(t, id, end - at), sc->best[at]), id, at);
                covered = covered || end - at == char_n;
            }
        }
        if (!covered) {
            reach(sc, at + char_n, add_scores(t, t->unk_score, sc->best[at]), -1, at);
        }
        at += char_n;
    }
}

static void encode_chunk(const nrd_tokenizer *t, tok_scratch *sc, const char *s, size_t n,
                         nrd_ids *out)
{
    uint64_t hash = 0;
    size_t before = out->n;

    if (nrd_tok_cache_get(sc, t, s, n, &hash, out)) {
        return;
    }
    reserve_best(sc, n + 1);
    search(t, sc, s, n);
    for (size_t at = n; at > 0; at = sc->best_from[at]) { /* back to front, reversed below */
        int32_t id = sc->best_id[at];
        size_t from = sc->best_from[at];
        if (id >= 0) {
            nrd_ids_push(out, id);
            continue;
        }
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
    nrd_tok_cache_put(sc, t, hash, s, n, out->ids + before, out->n - before);
}

void nrd_tok_unigram_encode(const nrd_tokenizer *t, tok_scratch *sc, const char *s, size_t n, nrd_ids *out)
{
    while (n > 0) {
        size_t len = nrd_tok_safe_chunk(t, s, n);
        encode_chunk(t, sc, s, len, out);
        s += len;
        n -= len;
    }
}
