/* Running the nodes: sets of places become numbered states, made when first reached and kept.
 *
 * A place is a node that reads a byte and a stack of nodes to return to. Stacks are shared lists, equal
 * ones are the same number, so equal sets are found by their bytes. */
#include "guided/internal.h"

#include "base/hash.h"

#include <stdatomic.h>
#include <string.h>

typedef struct vocab_token {
    int32_t id;
    const char *s;
    uint16_t n, lcp; /* lcp: bytes shared with the token before */
} vocab_token;

struct nrd_guide_vocab {
    int32_t n_tokens;
    vocab_token *sorted;
    size_t n_sorted;
    int32_t *place; /* [n_tokens] in sorted, -1: never allowed */
    char *bytes;
    uint16_t longest;
};

enum { MAX_TOKEN_BYTES = 512 };

static int by_bytes(const void *a, const void *b)
{
    const vocab_token *x = a, *y = b;
    int n = x->n < y->n ? x->n : y->n, c = memcmp(x->s, y->s, (size_t)n);
    return c ? c : x->n != y->n ? (x->n < y->n ? -1 : 1) : x->id < y->id ? -1 : x->id > y->id;
}

nrd_error *nrd_guide_vocab_new(nrd_guide_vocab **out, int32_t n_tokens,
                               const char *(*get)(void *user, int32_t id, size_t *out_n), void *user)
{
    nrd_error *err = NULL;
    nrd_guide_vocab *v = NULL;
    size_t total = 0, n;

    *out = NULL;
    NRD_NEW_GOTO(v, 1, err, fail);
    v->n_tokens = n_tokens;
    NRD_NEW_GOTO(v->sorted, n_tokens, err, fail);
    NRD_NEW_GOTO(v->place, n_tokens, err, fail);
    for (int32_t i = 0; i < n_tokens; i++) {
        n = 0;
        v->place[i] = -1;
        if (get(user, i, &n) && n <= MAX_TOKEN_BYTES) {
            total += n;
        }
    }
    NRD_NEW_GOTO(v->bytes, total, err, fail);
    total = 0;
    for (int32_t i = 0; i < n_tokens; i++) {
        n = 0;
        const char *s = get(user, i, &n);
        if (s && n > 0 && n <= MAX_TOKEN_BYTES) {
            memcpy(v->bytes + total, s, n);
            v->sorted[v->n_sorted++] = (vocab_token){i, v->bytes + total, (uint16_t)n, 0};
            v->longest = n > v->longest ? (uint16_t)n : v->longest;
            total += n;
        }
    }
    qsort(v->sorted, v->n_sorted, sizeof *v->sorted, by_bytes);
    for (size_t i = 0; i < v->n_sorted; i++) {
        vocab_token *t = &v->sorted[i];
        v->place[t->id] = (int32_t)i;
        while (i > 0 && t->lcp < t->n && t->lcp < t[-1].n && t->s[t->lcp] == t[-1].s[t->lcp]) {
            t->lcp++;
        }
    }
    *out = v;
    return NULL;

fail:
    nrd_guide_vocab_free(v);
    return err;
}

void nrd_guide_vocab_free(nrd_guide_vocab *v)
{
    if (v) {
        free(v->sorted);
        free(v->place);
        free(v->bytes);
        free(v);
    }
}

/* ---- the guide ---- */

typedef struct stack_node {
    uint32_t ret, parent, depth;
} stack_node;

typedef struct place {
    uint32_t node, stack;
} place;

typedef struct state {
    uint32_t first, n; /* places */
    bool accepting;
    uint32_t *next; /* [256], 0: not known yet, else state + 1; or NULL */
    uint32_t *mask; /* or NULL */
} state;

enum { DEAD = 0 }; /* the first state: no place, not accepting */

struct nrd_guide {
    atomic_int refs;
    const nrd_guide_vocab *v;
    program p;
    atomic_bool full; /* a limit was passed */

    stack_node *stacks; /* [0] is the empty one */
    uint32_t n_stacks, cap_stacks;
    uint32_t *stack_table;
    uint32_t stack_mask;

    state *states;
    uint32_t n_states, cap_states;
    uint32_t *state_table;
    uint32_t state_mask;
    place *places;
    size_t n_places, cap_places;
    size_t mask_bytes;

    /* while a state is made */
    place *found, *work, *seen;
    uint32_t n_found, n_work, seen_mask, n_seen, cap_work, cap_found;
    bool accepting;
    uint32_t start;
    uint32_t *walk; /* [longest + 1] states along a token */
};

struct nrd_guide_state {
    nrd_guide *g;
    uint32_t at;
};

static uint32_t push_stack(nrd_guide *g, uint32_t ret, uint32_t parent)
{
    uint64_t h = nrd_hash_u64(ret, parent);
    uint32_t k = (uint32_t)h & g->stack_mask;
    while (g->stack_table[k]) {
        const stack_node *s = &g->stacks[g->stack_table[k]];
        if (s->ret == ret && s->parent == parent) {
            return g->stack_table[k];
        }
        k = (k + 1) & g->stack_mask;
    }
    uint32_t depth = g->stacks[parent].depth + 1;
    if (depth > G_MAX_STACK || g->n_stacks >= G_MAX_NODES) {
        return 0; /* deeper texts are not offered */
    }
    if (2 * (g->n_stacks + 1) > g->stack_mask) {
        uint32_t mask = 2 * g->stack_mask + 1;
        uint32_t *table = nrd_xcalloc((size_t)mask + 1, sizeof *table);
        for (uint32_t i = 1; i < g->n_stacks; i++) {
            uint32_t at = (uint32_t)nrd_hash_u64(g->stacks[i].ret, g->stacks[i].parent) & mask;
            while (table[at]) {
                at = (at + 1) & mask;
            }
            table[at] = i;
        }
        free(g->stack_table);
        g->stack_table = table;
        g->stack_mask = mask;
        k = (uint32_t)h & mask;
        while (table[k]) {
            k = (k + 1) & mask;
        }
    }
    if (g->n_stacks == g->cap_stacks) {
        g->cap_stacks = 2 * g->cap_stacks;
        g->stacks = nrd_xrealloc(g->stacks, g->cap_stacks * sizeof *g->stacks);
    }
    g->stacks[g->n_stacks] = (stack_node){ret, parent, depth};
    g->stack_table[k] = g->n_stacks;
    return g->n_stacks++;
}

/* Was this place met while the current state is made? Remembers it. */
static bool met(nrd_guide *g, uint32_t node, uint32_t stack)
{
    uint32_t k = (uint32_t)nrd_hash_u64(node, stack) & g->seen_mask;
    while (g->seen[k].node != UINT32_MAX) {
        if (g->seen[k].node == node && g->seen[k].stack == stack) {
            return true;
        }
        k = (k + 1) & g->seen_mask;
    }
    g->seen[k] = (place){node, stack};
    if (2 * ++g->n_seen > g->seen_mask) {
        place *old = g->seen;
        uint32_t n = g->seen_mask + 1;
        g->seen_mask = 2 * n - 1;
        g->seen = nrd_xmalloc(2 * (size_t)n * sizeof *g->seen);
        memset(g->seen, 0xff, 2 * (size_t)n * sizeof *g->seen);
        for (uint32_t i = 0; i < n; i++) {
            if (old[i].node != UINT32_MAX) {
                uint32_t at = (uint32_t)nrd_hash_u64(old[i].node, old[i].stack) & g->seen_mask;
                while (g->seen[at].node != UINT32_MAX) {
                    at = (at + 1) & g->seen_mask;
                }
                g->seen[at] = old[i];
            }
        }
        free(old);
    }
    return false;
}

static void add_work(nrd_guide *g, uint32_t node, uint32_t stack)
{
    if (met(g, node, stack)) {
        return;
    }
    if (g->n_seen > 8 * G_MAX_CONFIGS) {
        g->full = true;
        return;
    }
    if (g->n_work == g->cap_work) {
        g->cap_work = 2 * g->cap_work;
        g->work = nrd_xrealloc(g->work, g->cap_work * sizeof *g->work);
    }
    g->work[g->n_work++] = (place){node, stack};
}

static void begin_state(nrd_guide *g)
{
    memset(g->seen, 0xff, ((size_t)g->seen_mask + 1) * sizeof *g->seen);
    g->n_seen = g->n_found = g->n_work = 0;
    g->accepting = false;
}

/* Follows what reads no byte. */
static void close_state(nrd_guide *g)
{
    while (g->n_work > 0 && !g->full) {
        place at = g->work[--g->n_work];
        const gnode *n = &g->p.nodes[at.node];
        switch ((gnode_kind)n->kind) {
        case N_BYTES:
            if (g->n_found == g->cap_found) {
                g->cap_found = 2 * g->cap_found;
                g->found = nrd_xrealloc(g->found, g->cap_found * sizeof *g->found);
            }
            g->found[g->n_found++] = at;
            break;
        case N_SPLIT:
            add_work(g, n->a, at.stack);
            add_work(g, n->b, at.stack);
            break;
        case N_CALL:
            if (g->p.nodes[n->b].kind == N_END) { /* a last call returns to its caller's caller */
                add_work(g, n->a, at.stack);
            } else {
                uint32_t stack = push_stack(g, n->b, at.stack);
                if (stack) {
                    add_work(g, n->a, stack);
                }
            }
            break;
        case N_END:
            if (at.stack == 0) {
                g->accepting = true;
            } else {
                add_work(g, g->stacks[at.stack].ret, g->stacks[at.stack].parent);
            }
            break;
        case N_FAIL:
            break;
        }
    }
}

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return x->node != y->node   ? (x->node < y->node ? -1 : 1)
           : x->stack < y->stack ? -1
                                 : x->stack > y->stack;
}

/* The number of the set in `found`. DEAD when a limit was passed. */
static uint32_t intern_state(nrd_guide *g)
{
    if (g->full || g->n_found > G_MAX_CONFIGS) {
        g->full = true;
        return DEAD;
    }
    if (g->n_found > 1) {
        qsort(g->found, g->n_found, sizeof *g->found, by_place);
    }
    size_t bytes = g->n_found * sizeof *g->found;
    uint64_t h = nrd_hash_bytes(g->accepting, g->found, bytes);
    uint32_t k = (uint32_t)h & g->state_mask;
    while (g->state_table[k]) {
        const state *s = &g->states[g->state_table[k] - 1];
        if (s->n == g->n_found && s->accepting == g->accepting &&
            (bytes == 0 || memcmp(g->places + s->first, g->found, bytes) == 0)) {
            return g->state_table[k] - 1;
        }
        k = (k + 1) & g->state_mask;
    }
    if (g->n_states >= G_MAX_STATES || g->n_places + g->n_found > (1u << 24)) {
        g->full = true;
        return DEAD;
    }
    if (g->n_states == g->cap_states) {
        g->cap_states = 2 * g->cap_states;
        g->states = nrd_xrealloc(g->states, g->cap_states * sizeof *g->states);
    }
    while (g->n_places + g->n_found > g->cap_places) {
        g->cap_places = 2 * g->cap_places;
        g->places = nrd_xrealloc(g->places, g->cap_places * sizeof *g->places);
    }
    if (bytes > 0) {
        memcpy(g->places + g->n_places, g->found, bytes);
    }
    g->states[g->n_states] =
        (state){.first = (uint32_t)g->n_places, .n = g->n_found, .accepting = g->accepting};
    g->n_places += g->n_found;
    g->state_table[k] = ++g->n_states;
    return g->n_states - 1;
}

static uint32_t step(nrd_guide *g, uint32_t from, uint8_t byte)
{
    if (from == DEAD) {
        return DEAD;
    }
    if (!g->states[from].next) {
        g->states[from].next = nrd_xcalloc(256, sizeof(uint32_t));
    } else if (g->states[from].next[byte]) {
        return g->states[from].next[byte] - 1;
    }
    begin_state(g);
    for (uint32_t i = 0; i < g->states[from].n; i++) {
        place at = g->places[g->states[from].first + i];
        const gnode *n = &g->p.nodes[at.node];
        if (g->p.sets[n->a].bits[byte / 64] >> (byte % 64) & 1) {
            add_work(g, n->b, at.stack);
        }
    }
    close_state(g);
    uint32_t to = intern_state(g);
    g->states[from].next[byte] = to + 1;
    return to;
}

/* ---- life ---- */

static nrd_error *build_program(builder *b, const char *type, const char *text, program *p)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;
    size_t n = text ? strlen(text) : 0;
    expr *root = NULL;

    if (n > G_MAX_TEXT) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a guide of %zu bytes; at most %d", n, G_MAX_TEXT);
    }
    if (!strcmp(type, "json")) {
        root = g_json_object(b);
    } else if (!strcmp(type, "regex")) {
        root = g_regex(b, text ? text : "", n, false);
    } else if (!strcmp(type, "ebnf_grammar")) {
        root = g_ebnf(b, text ? text : "", n);
    } else if (!strcmp(type, "json_schema")) {
        const nrd_json_limits limits = {.max_depth = 128};
        NRD_TRY(nrd_error_wrap(nrd_json_parse(&doc, text ? text : "", n, &limits), "schema"));
        root = g_schema(b, nrd_json_root(doc));
    } else {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "guide type '%.40s' is none of json, json_schema, "
                                               "regex, ebnf_grammar", type);
    }
    err = g_assemble(b, root, p);
    nrd_json_doc_free(doc);
    return err;
}

nrd_error *nrd_guide_new(nrd_guide **out, const nrd_guide_vocab *v, const char *type, const char *text)
{
    builder b = {0};
    nrd_error *err = NULL;
    nrd_guide *g = NULL;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, done);
    atomic_init(&g->refs, 1);
    g->v = v;
    nrd_arena_init(&b.arena);
    NRD_TRY_GOTO(build_program(&b, type, text, &g->p), err, done);
    g->cap_stacks = g->cap_states = g->cap_work = g->cap_found = 64;
    g->cap_places = 256;
    g->stack_mask = g->seen_mask = 127;
    g->state_mask = 4 * G_MAX_STATES - 1;
    g->stacks = nrd_xcalloc(g->cap_stacks, sizeof *g->stacks);
    g->n_stacks = 1;
    g->states = nrd_xcalloc(g->cap_states, sizeof *g->states);
    g->work = nrd_xcalloc(g->cap_work, sizeof *g->work);
    g->found = nrd_xcalloc(g->cap_found, sizeof *g->found);
    g->places = nrd_xcalloc(g->cap_places, sizeof *g->places);
    g->stack_table = nrd_xcalloc((size_t)g->stack_mask + 1, sizeof *g->stack_table);
    g->seen = nrd_xcalloc((size_t)g->seen_mask + 1, sizeof *g->seen);
    g->state_table = nrd_xcalloc((size_t)g->state_mask + 1, sizeof *g->state_table);
    g->walk = nrd_xcalloc((size_t)v->longest + 1, sizeof *g->walk);
    begin_state(g);
    intern_state(g); /* DEAD */
    begin_state(g);
    add_work(g, g->p.start, 0);
    close_state(g);
    g->start = intern_state(g);
    if (g->full || g->start == DEAD) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, g->full ? "the guide is too large to run"
                                                      : "no text fits this guide");
    }
done:
    nrd_arena_fini(&b.arena);
    free(b.sets);
    free(b.rules);
    if (err) {
        nrd_guide_unref(g);
        return err;
    }
    *out = g;
    return NULL;
}

nrd_guide *nrd_guide_ref(nrd_guide *g)
{
    atomic_fetch_add(&g->refs, 1);
    return g;
}

void nrd_guide_unref(nrd_guide *g)
{
    if (!g || atomic_fetch_sub(&g->refs, 1) != 1) {
        return;
    }
    for (uint32_t i = 0; i < g->n_states; i++) {
        free(g->states[i].next);
        free(g->states[i].mask);
    }
    free(g->p.nodes);
    free(g->p.sets);
    free(g->stacks);
    free(g->stack_table);
    free(g->states);
    free(g->state_table);
    free(g->places);
    free(g->found);
    free(g->work);
    free(g->seen);
    free(g->walk);
    free(g);
}

bool nrd_guide_is_full(const nrd_guide *g)
{
    return atomic_load(&g->full);
}

nrd_guide_state *nrd_guide_state_new(nrd_guide *g)
{
    nrd_guide_state *s = nrd_xcalloc(1, sizeof *s);
    s->g = nrd_guide_ref(g);
    s->at = g->start;
    return s;
}

void nrd_guide_state_free(nrd_guide_state *s)
{
    if (s) {
        nrd_guide_unref(s->g);
        free(s);
    }
}

/* ---- tokens ---- */

/* The sorted vocabulary is walked once; tokens that share a beginning share its steps, and what a dead
 * beginning begins is skipped. */
static void fill_mask(nrd_guide *g, uint32_t from, uint32_t *mask)
{
    const nrd_guide_vocab *v = g->v;
    size_t dead = SIZE_MAX; /* beginnings of this many bytes lead nowhere */
    g->walk[0] = from;
    for (size_t i = 0; i < v->n_sorted; i++) {
        const vocab_token *t = &v->sorted[i];
        if (dead <= t->lcp) {
            continue;
        }
        dead = SIZE_MAX;
        for (size_t k = t->lcp; k < t->n; k++) {
            uint32_t to = step(g, g->walk[k], (uint8_t)t->s[k]);
            g->walk[k + 1] = to;
            if (to == DEAD) {
                dead = k + 1;
                break;
            }
        }
        if (dead == SIZE_MAX) {
            mask[t->id / 32] |= 1u << (t->id % 32);
        }
    }
}

static void drop_masks(nrd_guide *g)
{
    for (uint32_t i = 0; i < g->n_states; i++) {
        free(g->states[i].mask);
        g->states[i].mask = NULL;
    }
    g->mask_bytes = 0;
}

const uint32_t *nrd_guide_mask(nrd_guide_state *s, size_t *out_words)
{
    nrd_guide *g = s->g;
    *out_words = ((size_t)g->v->n_tokens + 31) / 32;
    size_t bytes = *out_words * sizeof(uint32_t);
    if (!g->states[s->at].mask) {
        if (g->mask_bytes + bytes > G_MAX_MASK_BYTES) {
            drop_masks(g);
        }
        uint32_t *mask = nrd_xcalloc(1, bytes ? bytes : 1);
        fill_mask(g, s->at, mask);
        g->states[s->at].mask = mask;
        g->mask_bytes += bytes;
    }
    return g->full ? NULL : g->states[s->at].mask;
}

bool nrd_guide_accept(nrd_guide_state *s, int32_t token)
{
    const nrd_guide_vocab *v = s->g->v;
    int32_t at = token >= 0 && token < v->n_tokens ? v->place[token] : -1;
    uint32_t to = at < 0 ? DEAD : s->at;
    for (size_t k = 0; at >= 0 && k < v->sorted[at].n; k++) {
        to = step(s->g, to, (uint8_t)v->sorted[at].s[k]);
    }
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

bool nrd_guide_matches(nrd_guide *g, const char *text, size_t n)
{
    uint32_t at = g->start;
    for (size_t i = 0; i < n; i++) {
        at = step(g, at, (uint8_t)text[i]);
    }
    return g->states[at].accepting;
}
