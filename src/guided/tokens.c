/* SPDX-License-Identifier: Apache-2.0
 * States of the automaton and tokens of the vocabulary: masks, steps, text that is forced. */
#include "guided/internal.h"

#include <string.h>

struct nrd_guide_state {
    nrd_guide *g;
    uint32_t at;
};

nrd_guide_state *nrd_guide_state_new(nrd_guide *g)
{
    nrd_guide_state *s = calloc(1, sizeof *s);
    if (!s) {
        return NULL;
    }
    s->g = nrd_guide_ref(g);
    atomic_fetch_add(&g->n_users, 1);
    s->at = g->start;
    return s;
}

nrd_guide_state *nrd_guide_state_copy(const nrd_guide_state *from)
{
    nrd_guide_state *s = nrd_guide_state_new(from->g);
    if (s) {
        s->at = from->at;
    }
    return s;
}

void nrd_guide_state_free(nrd_guide_state *s)
{
    if (s) {
        atomic_fetch_sub(&s->g->n_users, 1);
        nrd_guide_unref(s->g);
        free(s);
    }
}

/* ---- masks ---- */

static void walk_tree(nrd_guide *g, const trie *tree, uint32_t from, uint32_t *restrict mask)
{
    const trie_node *nodes = tree->nodes;
    const int32_t *ids = tree->ids;
    const uint32_t *next = g->next;
    const size_t n_classes = g->p.n_classes;
    uint32_t at = 0, token = 0, *restrict walk = g->walk;
    uint8_t class_of[256];
    memcpy(class_of, g->p.class_of, sizeof class_of);
    walk[0] = from;
    while (at < tree->n_nodes) {
        trie_node t = nodes[at];
        uint32_t to = next[walk[t.depth] * n_classes + class_of[t.byte]];
        if (to == 0) {
            to = nrd_guided_step(g, walk[t.depth], (uint8_t)t.byte) + 1;
            next = g->next; /* a new state may have moved it */
        }
        if (to - 1 == DEAD) {
            token = tree->ends[at].token;
            at = tree->ends[at].node;
            continue;
        }
        walk[t.depth + 1] = to - 1;
        for (uint32_t k = t.n_tokens; k > 0; k--) {
            int32_t id = ids[token++];
            mask[id / 32] |= 1u << (id % 32);
        }
        at++;
    }
}

typedef struct byte_range {
    uint8_t lo, hi;
} byte_range;

/* Do all bytes of the ranges, one after the other, lead to *to? UINT32_MAX: to be found. */
static bool leads_to(nrd_guide *g, uint32_t from, const byte_range *r, uint32_t n, uint32_t *to)
{
    if (n == 0) {
        *to = *to == UINT32_MAX ? from : *to;
        return *to == from;
    }
    for (uint32_t c = r->lo; c <= r->hi; c++) {
        bool known = c > r->lo && g->p.class_of[c] == g->p.class_of[c - 1];
        if (!known && !leads_to(g, nrd_guided_step(g, from, (uint8_t)c), r + 1, n - 1, to)) {
            return false;
        }
    }
    return true;
}

/* Where every plain character leads, as ONE + state, or MANY. */
static uint32_t after_plain(nrd_guide *g, uint32_t at)
{
    static const struct {
        uint32_t n;
        byte_range r[4];
    } forms[] = {
        {1, {{' ', '!'}}},
        {1, {{'#', '['}}},
        {1, {{']', '~'}}},
        {2, {{0xc2, 0xdf}, {0x80, 0xbf}}},
        {3, {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}}},
        {3, {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}}},
        {3, {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}}},
        {3, {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}}},
        {4, {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}},
        {4, {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}}},
        {4, {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}}},
    };
    if (g->states[at].plain == NOT_ASKED) {
        uint32_t to = UINT32_MAX;
        bool one = true;
        for (size_t i = 0; i < sizeof forms / sizeof forms[0] && one; i++) {
            one = leads_to(g, at, forms[i].r, forms[i].n, &to);
        }
        if (g->stopped) {
            return MANY; /* what it leads to is to be found another time */
        }
        g->states[at].plain = one ? ONE + to : MANY;
    }
    return g->states[at].plain;
}

/* How many plain characters may follow, whichever they are, and no more than these; at most
 * PLAIN_CHARS. -1: it depends on the characters. */
static int plain_run(nrd_guide *g, uint32_t at)
{
    int n = 0;
    for (; n < PLAIN_CHARS; n++) {
        uint32_t next = after_plain(g, at);
        if (next == MANY) {
            return -1;
        }
        if (next - ONE == at) {
            return PLAIN_CHARS;
        }
        if (next - ONE == DEAD) {
            return n;
        }
        at = next - ONE;
    }
    return n;
}

static void fill_mask(nrd_guide *g, uint32_t from, uint32_t *mask)
{
    const nrd_guide_vocab *v = g->v;
    int n = plain_run(g, from);
    if (n >= 0) {
        memcpy(mask, v->plain[n], ((size_t)v->n_tokens + 31) / 32 * sizeof *mask);
    }
    walk_tree(g, n >= 0 ? &v->rest : &v->all, from, mask);
}

bool nrd_guide_has_mask(const nrd_guide_state *s)
{
    return s->g->states[s->at].mask != NULL;
}

const nrd_guide *nrd_guide_state_guide(const nrd_guide_state *s)
{
    return s->g;
}

/* False: stopped before the mask was there. A guide that passed a limit is done with it. */
static bool make_mask(nrd_guide *g, uint32_t at)
{
    size_t bytes = ((size_t)g->v->n_tokens + 31) / 32 * sizeof(uint32_t);
    if (g->limit || g->states[at].mask) {
        return true;
    }
    if (g->mask_bytes + bytes > G_MAX_MASK_BYTES) {
        nrd_guided_drop_masks(g);
    }
    uint32_t *mask = calloc(1, bytes ? bytes : 1);
    if (!mask) {
        nrd_guided_pass(g, LIMIT_MEMORY);
        return true;
    }
    if (g->making != at + 1) {
        g->making = at + 1;
        g->visited = 0;
    }
    fill_mask(g, at, mask);
    if (g->stopped || g->limit) {
        free(mask);
        return !g->stopped;
    }
    g->making = 0;
    g->states[at].mask = mask;
    g->mask_bytes += bytes;
    nrd_guided_count_bytes(g);
    return true;
}

const uint32_t *nrd_guide_mask(nrd_guide_state *s, size_t *out_words)
{
    nrd_guide *g = s->g;
    *out_words = ((size_t)g->v->n_tokens + 31) / 32;
    make_mask(g, s->at);
    return g->limit ? NULL : g->states[s->at].mask;
}

nrd_guide_loan nrd_guide_lend(const nrd_guide_state *s)
{
    atomic_fetch_add(&s->g->n_lent, 1);
    return (nrd_guide_loan){nrd_guide_ref(s->g), s->at};
}

bool nrd_guide_make_mask(const nrd_guide_loan *loan, const atomic_bool *stop, uint64_t until_ns)
{
    nrd_guide *g = loan->guide;
    g->stop = stop;
    g->until_ns = until_ns;
    bool made = make_mask(g, loan->at);
    g->stop = NULL;
    g->until_ns = 0;
    g->stopped = false;
    return made;
}

void nrd_guide_give_back(nrd_guide_loan *loan)
{
    atomic_fetch_sub(&loan->guide->n_lent, 1);
    nrd_guide_unref(loan->guide);
    *loan = (nrd_guide_loan){0};
}

bool nrd_guide_is_lent(const nrd_guide *g)
{
    return atomic_load(&g->n_lent) > 0;
}

bool nrd_guide_is_wanted(const nrd_guide *g)
{
    return atomic_load(&g->n_users) > 0;
}

/* ---- steps ---- */

static uint32_t walk_token(nrd_guide *g, uint32_t from, int32_t token)
{
    const nrd_guide_vocab *v = g->v;
    if (token < 0 || token >= v->n_tokens || v->lengths[token] == 0) {
        return DEAD;
    }
    for (uint16_t k = 0; k < v->lengths[token]; k++) {
        from = nrd_guided_step(g, from, (uint8_t)v->bytes[token][k]);
    }
    return from;
}

bool nrd_guide_accept(nrd_guide_state *s, int32_t token)
{
    s->g->visited = s->g->making = 0;
    uint32_t to = walk_token(s->g, s->at, token);
    if (to == DEAD) {
        return false;
    }
    s->at = to;
    return true;
}

bool nrd_guide_is_complete(const nrd_guide_state *s)
{
    return s->g->states[s->at].accepting;
}

bool nrd_guide_is_final(nrd_guide_state *s)
{
    return s->g->states[s->at].accepting && s->g->states[s->at].n == 0;
}

/* ---- forced text ---- */

/* The one byte that may follow, or FREE. */
static int forced_byte(nrd_guide *g, uint32_t at)
{
    if (g->states[at].forced == UNKNOWN) {
        int found = FREE;
        bool single = !g->states[at].accepting;
        for (uint32_t c = 0; c < g->p.n_classes && single; c++) {
            if (nrd_guided_step(g, at, g->p.first_of[c]) != DEAD) {
                single = found == FREE && g->p.class_size[c] == 1;
                found = g->p.first_of[c];
            }
        }
        if (g->stopped) {
            return FREE;
        }
        g->states[at].forced = (int16_t)(single ? found : FREE);
    }
    return g->states[at].forced;
}

size_t nrd_guide_forced(nrd_guide_state *s, char *out, size_t cap, bool *out_final)
{
    nrd_guide *g = s->g;
    uint32_t at = s->at;
    size_t n = 0;
    int byte;

    *out_final = false;
    if (g->no_jump) {
        return 0;
    }
    g->visited = g->making = 0;
    g->max_visited = G_MAX_JUMP_WORK;
    while (n < cap && !g->limit && (byte = forced_byte(g, at)) >= 0) {
        uint32_t to = nrd_guided_step(g, at, (uint8_t)byte);
        if (to == DEAD) {
            break; /* stopped: a forced byte leads on */
        }
        out[n++] = (char)byte;
        at = to;
    }
    *out_final = !g->limit && g->states[at].accepting && g->states[at].n == 0;
    g->no_jump = g->stopped;
    g->max_visited = 0;
    g->stopped = false;
    return n;
}

/* Do these tokens spell the text's beginning? */
static bool spells(const nrd_guide_vocab *v, const int32_t *ids, size_t n, const char *text, size_t len)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k = ids[i] >= 0 && ids[i] < v->n_tokens ? v->lengths[ids[i]] : 0;
        if (k == 0 || k > len - at || memcmp(text + at, v->bytes[ids[i]], k) != 0) {
            return false;
        }
        at += k;
    }
    return true;
}

enum { MAX_FORCED = 512, MAX_BEFORE = 8, MAX_TEXT = MAX_FORCED + MAX_BEFORE * 64 };

/* Tokens of "before + forced" that lie behind those of before; 0 when the text's own tokens would cut
 * it elsewhere. */
static size_t encode_behind(const nrd_guide_vocab *v, const int32_t *before, size_t n_before,
                            const char *forced, size_t n_forced, int32_t *out, size_t cap)
{
    char text[MAX_TEXT];
    int32_t ids[MAX_TEXT];
    size_t len = 0;
    for (size_t i = 0; i < n_before; i++) {
        size_t k = before[i] >= 0 && before[i] < v->n_tokens ? v->lengths[before[i]] : 0;
        if (k == 0 || k > 64) {
            return 0;
        }
        memcpy(text + len, v->bytes[before[i]], k);
        len += k;
    }
    memcpy(text + len, forced, n_forced);
    size_t n = v->encode(v->user, text, len + n_forced, ids, MAX_TEXT);
    if (n <= n_before || (n_before > 0 && memcmp(ids, before, n_before * sizeof *ids) != 0)) {
        return 0;
    }
    n = n - n_before < cap ? n - n_before : cap;
    memcpy(out, ids + n_before, n * sizeof *out);
    return spells(v, out, n, forced, n_forced) ? n : 0;
}

size_t nrd_guide_jump(nrd_guide_state *s, const int32_t *before, size_t n_before, int32_t *out, size_t cap)
{
    const nrd_guide_vocab *v = s->g->v;
    char text[MAX_FORCED];
    bool final = false;
    size_t len = v->encode ? nrd_guide_forced(s, text, sizeof text, &final) : 0, n = 0;

    if (len < 2 && !(len == 1 && final)) {
        return 0;
    }
    for (size_t k = n_before < MAX_BEFORE ? n_before : MAX_BEFORE; n == 0; k = 0) {
        n = encode_behind(v, k > 0 ? before + n_before - k : NULL, k, text, len, out, cap);
        if (k == 0) {
            break;
        }
    }
    if (n == cap || n == 0) {
        return n > 0 ? n - 1 : 0;
    }
    return final ? n : n - 1; /* what comes behind it may belong to the last one */
}
