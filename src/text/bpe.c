/* SPDX-License-Identifier: Apache-2.0
 * Byte-pair encoding: of all neighbouring pairs the one with the lowest rank merges first, the
 * leftmost of equals (Sennrich et al. 2016). Short words are searched linearly, long ones through a
 * heap, so that no input takes quadratic time. */
#include "text/internal.h"

#include "base/hash.h"

#include <string.h>

enum {
    SHORT_WORD = 48, /* symbols; above, the heap is faster */
    NO_RANK = -1,
};

static inline const nrd_tok_pair_slot *find_pair(const nrd_tokenizer *t, int32_t left,
                                                 int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t at = (size_t)nrd_hash_mix(key) & t->pair_mask;
    while (t->pairs[at].key != key) {
        if (t->pairs[at].key == UINT64_MAX) {
            return NULL;
        }
        at = (at + 1) & t->pair_mask;
    }
    return &t->pairs[at];
}

static inline uint32_t look_up(const nrd_tokenizer *t, int32_t left, int32_t right, int32_t *out_id)
{
    const nrd_tok_pair_slot *p = find_pair(t, left, right);
    if (!p) {
        return (uint32_t)NO_RANK;
    }
    *out_id = p->id;
    return p->rank;
}

static void merge_short(const nrd_tokenizer *t, int32_t *sym, size_t n, nrd_ids *out)
{
    uint32_t rank[SHORT_WORD];
    int32_t id[SHORT_WORD];

    for (size_t i = 0; i + 1 < n; i++) {
        rank[i] = look_up(t, sym[i], sym[i + 1], &id[i]);
    }
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            best = rank[i] < rank[best] ? i : best;
        }
        if (rank[best] == (uint32_t)NO_RANK) {
            break;
        }
        sym[best] = id[best];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            sym[i] = sym[i + 1];
        }
        for (size_t i = best + 1; i + 1 < n; i++) {
            rank[i] = rank[i + 1];
            id[i] = id[i + 1];
        }
        if (best + 1 < n) {
            rank[best] = look_up(t, sym[best], sym[best + 1], &id[best]);
        }
        if (best > 0) {
            rank[best - 1] = look_up(t, sym[best - 1], sym[best], &id[best - 1]);
        }
    }
    nrd_ids_append(out, sym, n);
}

/* ---- long words: a linked list of symbols and a binary heap of rank << 32 | position ---- */

static void heap_push(nrd_tok_scratch *sc, size_t *n, uint64_t v)
{
    if (*n == sc->cap_heap) {
        size_t cap = sc->cap_heap ? sc->cap_heap * 2 : 1024;
        if (!nrd_tok_grow((void **)&sc->heap, cap, sizeof *sc->heap)) {
            sc->no_memory = true;
            return;
        }
        sc->cap_heap = cap;
    }
    size_t i = (*n)++;
    while (i > 0 && sc->heap[(i - 1) / 2] > v) {
        sc->heap[i] = sc->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    sc->heap[i] = v;
}

static uint64_t heap_pop(nrd_tok_scratch *sc, size_t *n)
{
    uint64_t top = sc->heap[0], last = sc->heap[--*n];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= *n) {
            break;
        }
        c += c + 1 < *n && sc->heap[c + 1] < sc->heap[c];
        if (sc->heap[c] >= last) {
            break;
        }
        sc->heap[i] = sc->heap[c];
        i = c;
    }
    sc->heap[i] = last;
    return top;
}

static bool reserve_symbols(nrd_tok_scratch *sc, size_t n)
{
    if (n <= sc->cap_sym) {
        return true;
    }
    size_t cap = n + n / 2;
    const bool ok = nrd_tok_grow((void **)&sc->sym, cap, sizeof *sc->sym) &&
                    nrd_tok_grow((void **)&sc->prev, cap, sizeof *sc->prev) &&
                    nrd_tok_grow((void **)&sc->next, cap, sizeof *sc->next) &&
                    nrd_tok_grow((void **)&sc->new_id, cap, sizeof *sc->new_id) &&
                    nrd_tok_grow((void **)&sc->rank, cap, sizeof *sc->rank);
    sc->cap_sym = ok ? cap : sc->cap_sym;
    sc->no_memory = sc->no_memory || !ok;
    return ok;
}

static void offer(const nrd_tokenizer *t, nrd_tok_scratch *sc, size_t *n_heap, int32_t at)
{
    int32_t next = sc->next[at];
    sc->rank[at] = (uint32_t)NO_RANK;
    if (next >= 0) {
        sc->rank[at] = look_up(t, sc->sym[at], sc->sym[next], &sc->new_id[at]);
        if (sc->rank[at] != (uint32_t)NO_RANK) {
            heap_push(sc, n_heap, (uint64_t)sc->rank[at] << 32 | (uint32_t)at);
        }
    }
}

static void merge_long(const nrd_tokenizer *t, nrd_tok_scratch *sc, size_t n, nrd_ids *out)
{
    size_t n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        sc->prev[i] = (int32_t)i - 1;
        sc->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i < n; i++) {
        offer(t, sc, &n_heap, (int32_t)i);
    }
    while (n_heap) {
        uint64_t top = heap_pop(sc, &n_heap);
        int32_t at = (int32_t)(uint32_t)top;
        if (sc->rank[at] != (uint32_t)(top >> 32)) {
            continue; /* the pair at this place has changed since */
        }
        int32_t gone = sc->next[at], after = sc->next[gone];
        sc->sym[at] = sc->new_id[at];
        sc->rank[gone] = (uint32_t)NO_RANK;
        sc->next[at] = after;
        if (after >= 0) {
            sc->prev[after] = at;
        }
        offer(t, sc, &n_heap, at);
        if (sc->prev[at] >= 0) {
            offer(t, sc, &n_heap, sc->prev[at]);
        }
    }
    for (int32_t i = 0; i >= 0; i = sc->next[i]) {
        nrd_ids_push(out, sc->sym[i]);
    }
}

/* ---- first symbols ---- */

static size_t byte_symbols(const nrd_tokenizer *t, const char *s, size_t n, int32_t *sym)
{
    size_t n_sym = 0;
    for (size_t i = 0; i < n; i++) {
        int32_t id = t->byte_ids[(uint8_t)s[i]];
        if (id >= 0) {
            sym[n_sym++] = id;
        } else if (t->unk_id >= 0 && !(t->fuse_unk && n_sym && sym[n_sym - 1] == t->unk_id)) {
            sym[n_sym++] = t->unk_id;
        }
    }
    return n_sym;
}

/* The symbol of a character; the last one of a word goes with the mark of its end, where the model has one. */
static int32_t symbol_of(const nrd_tokenizer *t, const char *s, size_t len, uint32_t cp, bool is_last)
{
    char room[4 + sizeof t->word_end];
    const size_t mark = is_last ? strlen(t->word_end) : 0;

    if (mark == 0) {
        return cp < 0x10000 ? t->char_ids[cp] : nrd_strmap_get(&t->by_token, t->tokens, s, len);
    }
    memcpy(room, s, len);
    memcpy(room + len, t->word_end, mark);
    return nrd_strmap_get(&t->by_token, t->tokens, room, len + mark);
}

static size_t char_symbols(const nrd_tokenizer *t, const char *s, size_t n, int32_t *sym)
{
    size_t n_sym = 0;
    bool after_unk = false;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        size_t len = nrd_utf8_next(s + i, n - i, &cp);
        int32_t id = symbol_of(t, s + i, len, cp, i + len == n);
        if (id >= 0) {
            sym[n_sym++] = id;
            after_unk = false;
            i += len;
            continue;
        }
        bool all = t->byte_fallback;
        for (size_t k = 0; k < len && all; k++) {
            all = t->byte_ids[(uint8_t)s[i + k]] >= 0;
        }
        if (all) {
            for (size_t k = 0; k < len; k++) {
                sym[n_sym++] = t->byte_ids[(uint8_t)s[i + k]];
            }
            after_unk = false;
        } else if (t->unk_id >= 0) {
            if (!(t->fuse_unk && after_unk)) {
                sym[n_sym++] = t->unk_id;
            }
            after_unk = true;
        }
        i += len;
    }
    return n_sym;
}

static void encode_chunk(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s, size_t n,
                         nrd_ids *out)
{
    uint64_t hash = 0;
    size_t before = out->n, n_sym;

    if (nrd_tok_cache_get(sc, t, s, n, &hash, out)) {
        return;
    }
    if (t->ignore_merges) {
        int32_t whole = t->byte_level ? nrd_strmap_get(&t->by_bytes, t->bytes, s, n)
                                      : nrd_strmap_get(&t->by_token, t->tokens, s, n);
        if (whole >= 0) {
            nrd_ids_push(out, whole);
            nrd_tok_cache_put(sc, t, hash, s, n, &whole, 1);
            return;
        }
    }
    if (n <= SHORT_WORD) {
        int32_t sym[SHORT_WORD];
        n_sym = t->byte_level ? byte_symbols(t, s, n, sym) : char_symbols(t, s, n, sym);
        merge_short(t, sym, n_sym, out);
    } else {
        if (!reserve_symbols(sc, n)) {
            return;
        }
        n_sym = t->byte_level ? byte_symbols(t, s, n, sc->sym) : char_symbols(t, s, n, sc->sym);
        if (n_sym) {
            merge_long(t, sc, n_sym, out);
        }
    }
    sc->no_memory = sc->no_memory || out->no_memory; /* wrong ids must not be remembered */
    nrd_tok_cache_put(sc, t, hash, s, n, out->n > before ? &out->ids[before] : NULL,
                          out->n - before);
}

void nrd_tok_bpe_encode(const nrd_tokenizer *t, nrd_tok_scratch *sc, const char *s, size_t n,
                        nrd_ids *out)
{
    while (n > 0) {
        size_t len = t->byte_level || t->ignore_merges || t->word_end[0] ? n : nrd_tok_safe_chunk(t, s, n);
        encode_chunk(t, sc, s, len, out);
        s += len;
        n -= len;
    }
}
