/* SPDX-License-Identifier: Apache-2.0
 * Running the nodes: sets of places become numbered states, made when first reached and kept.
 *
 * A place is a node that reads a byte and a stack of nodes to return to. Stacks are shared lists, equal
 * ones are the same number, so equal sets are found by their bytes. */
#include "guided/internal.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/limits.h"

#include <string.h>

/* A list gets room for n items. Without memory it stays as it is and the guide is at its end. */
#define RESIZE(g, list, n) resize((g), (void **)&(list), (n), sizeof *(list))
static bool resize(nrd_guide *g, void **list, size_t n, size_t size)
{
    void *more = n > SIZE_MAX / size ? NULL : realloc(*list, n * size);
    if (!more) {
        nrd_guided_pass(g, LIMIT_MEMORY);
        return false;
    }
    *list = more;
    return true;
}

/* 0: none; deeper texts are not offered, and without memory the guide is at its end. */
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
        return 0;
    }
    if (2 * (g->n_stacks + 1) > g->stack_mask) {
        uint32_t mask = 2 * g->stack_mask + 1;
        uint32_t *table = calloc((size_t)mask + 1, sizeof *table);
        if (!table) {
            nrd_guided_pass(g, LIMIT_MEMORY);
            return 0;
        }
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
        if (!RESIZE(g, g->stacks, 2 * (size_t)g->cap_stacks)) {
            return 0;
        }
        g->cap_stacks = 2 * g->cap_stacks;
    }
    g->stacks[g->n_stacks] = (stack_node){ret, parent, depth};
    g->stack_table[k] = g->n_stacks;
    return g->n_stacks++;
}

/* Was this place met while the current state is made? Remembers it. Without memory the guide is at its end. */
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
    g->seen_at[g->n_seen] = k;
    if (2 * ++g->n_seen > g->seen_mask) {
        place *old = g->seen, *table = NULL;
        uint32_t n = g->seen_mask + 1, moved = 0;
        if (!RESIZE(g, g->seen_at, (size_t)n) || !RESIZE(g, table, 2 * (size_t)n)) {
            return false;
        }
        g->seen_mask = 2 * n - 1;
        g->seen = table;
        memset(g->seen, 0xff, 2 * (size_t)n * sizeof *g->seen);
        for (uint32_t i = 0; i < n; i++) {
            if (old[i].node != UINT32_MAX) {
                uint32_t at = (uint32_t)nrd_hash_u64(old[i].node, old[i].stack) & g->seen_mask;
                while (g->seen[at].node != UINT32_MAX) {
                    at = (at + 1) & g->seen_mask;
                }
                g->seen[at] = old[i];
                g->seen_at[moved++] = at;
            }
        }
        free(old);
    }
    return false;
}

static void add_work(nrd_guide *g, uint32_t node, uint32_t stack)
{
    if (g->limit) {
        return; /* `seen` may have been without room */
    }
    if (++g->visited > NRD_LIMIT_GUIDE_WORK) {
        nrd_guided_pass(g, LIMIT_WORK);
        return;
    }
    if (met(g, node, stack)) {
        return;
    }
    if (g->n_seen > 8 * G_MAX_CONFIGS) {
        nrd_guided_pass(g, LIMIT_PLACES);
        return;
    }
    if (g->n_work == g->cap_work) {
        if (!RESIZE(g, g->work, 2 * (size_t)g->cap_work)) {
            return;
        }
        g->cap_work = 2 * g->cap_work;
    }
    g->work[g->n_work++] = (place){node, stack};
}

static void begin_state(nrd_guide *g)
{
    for (uint32_t i = 0; i < g->n_seen; i++) { /* the table may once have been large */
        g->seen[g->seen_at[i]] = (place){UINT32_MAX, UINT32_MAX};
    }
    g->n_seen = g->n_found = g->n_work = 0;
    g->accepting = false;
}

/* Follows what reads no byte. */
static void close_state(nrd_guide *g)
{
    while (g->n_work > 0 && !g->limit) {
        place at = g->work[--g->n_work];
        const gnode *n = &g->p.nodes[at.node];
        switch ((gnode_kind)n->kind) {
        case N_BYTES:
            if (g->n_found == g->cap_found) {
                if (!RESIZE(g, g->found, 2 * (size_t)g->cap_found)) {
                    return;
                }
                g->cap_found = 2 * g->cap_found;
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

void nrd_guided_pass(nrd_guide *g, guide_limit which)
{
    int none = LIMIT_NONE;
    atomic_compare_exchange_strong(&g->limit, &none, which);
}

const char *nrd_guide_limit(const nrd_guide *g)
{
    static const char *const names[] = {
        [LIMIT_NONE] = NULL,
        [LIMIT_WORK] = "GUIDE_WORK (one mask visits more than 4194304 places of the automaton)",
        [LIMIT_BYTES] = "GUIDE_BYTES (its states and masks take more than 128 MiB)",
        [LIMIT_STATES] = "GUIDE_STATES (more than 32768 states)",
        [LIMIT_PLACES] = "GUIDE_PLACES (a state of more than 16384 places)",
        [LIMIT_MEMORY] = "the server's memory",
    };
    _Static_assert(NRD_LIMIT_GUIDE_WORK == 4194304 && NRD_LIMIT_GUIDE_BYTES == 128 << 20 &&
                       NRD_LIMIT_GUIDE_STATES == 32768 && NRD_LIMIT_GUIDE_PLACES == 16384,
                   "the texts above say so");
    return names[atomic_load(&g->limit)];
}

void nrd_guided_count_bytes(nrd_guide *g)
{
    size_t n = sizeof *g + (size_t)g->p.cap * sizeof *g->p.nodes + (size_t)g->cap_stacks * sizeof *g->stacks +
               (size_t)g->stack_mask * sizeof *g->stack_table +
               (size_t)g->cap_states * (sizeof *g->states + g->p.n_classes * sizeof *g->next) +
               (size_t)g->state_mask * sizeof *g->state_table + g->cap_places * sizeof *g->places +
               ((size_t)g->seen_mask + g->cap_work + g->cap_found) * sizeof *g->work + g->mask_bytes;

    atomic_store_explicit(&g->bytes, n, memory_order_relaxed);
    if (n > NRD_LIMIT_GUIDE_BYTES) {
        nrd_guided_pass(g, LIMIT_BYTES);
    }
}

size_t nrd_guide_bytes(const nrd_guide *g)
{
    return atomic_load_explicit(&g->bytes, memory_order_relaxed);
}

/* The number of the set in `found`. DEAD when a limit was passed. */
static uint32_t intern_state(nrd_guide *g)
{
    if (g->n_found > G_MAX_CONFIGS) {
        nrd_guided_pass(g, LIMIT_PLACES);
    }
    if (g->limit) {
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
        nrd_guided_pass(g, LIMIT_STATES);
        return DEAD;
    }
    if (g->n_states == g->cap_states) {
        size_t cap = 2 * (size_t)g->cap_states;
        if (!RESIZE(g, g->states, cap) || !RESIZE(g, g->next, cap * g->p.n_classes)) {
            return DEAD;
        }
        g->cap_states = (uint32_t)cap;
    }
    while (g->n_places + g->n_found > g->cap_places) {
        if (!RESIZE(g, g->places, 2 * g->cap_places)) {
            return DEAD;
        }
        g->cap_places = 2 * g->cap_places;
    }
    if (bytes > 0) {
        memcpy(g->places + g->n_places, g->found, bytes);
    }
    memset(g->next + g->n_states * (size_t)g->p.n_classes, 0, g->p.n_classes * sizeof *g->next);
    g->states[g->n_states] =
        (state){.first = (uint32_t)g->n_places, .n = g->n_found, .accepting = g->accepting,
                .forced = UNKNOWN};
    g->n_places += g->n_found;
    nrd_guided_count_bytes(g);
    g->state_table[k] = ++g->n_states;
    return g->n_states - 1;
}

/* Between two steps: is the work at hand to go on another time? */
static bool must_stop(nrd_guide *g)
{
    if (g->stopped) {
        return true;
    }
    g->stopped = (g->max_visited && g->visited > g->max_visited) || (g->stop && atomic_load(g->stop)) ||
                 (g->until_ns && ++g->n_stepped % 8 == 0 && nrd_now_ns() > g->until_ns);
    return g->stopped;
}

uint32_t nrd_guided_step(nrd_guide *g, uint32_t from, uint8_t byte)
{
    if (from == DEAD) {
        return DEAD;
    }
    size_t edge = from * (size_t)g->p.n_classes + g->p.class_of[byte];
    uint32_t known = g->next[edge];
    if (known) {
        return known - 1;
    }
    if (g->limit || must_stop(g)) {
        return DEAD; /* no more work for a guide that has come to its end */
    }
    g->visited += g->states[from].n / 8; /* looking is quicker than following */
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
    g->next[edge] = to + 1;
    return to;
}

/* ---- life ---- */

static nrd_error *build_program(builder *b, const char *type, const char *text, program *p)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = NULL;
    size_t n = text ? strlen(text) : 0;
    expr *root = NULL;

    if (n > NRD_LIMIT_GUIDE_TEXT) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "a guide of %zu bytes; at most %d (GUIDE_TEXT)", n,
                          NRD_LIMIT_GUIDE_TEXT);
    }
    if (!strcmp(type, "json")) {
        root = nrd_guided_json_object(b);
    } else if (!strcmp(type, "regex")) {
        root = nrd_guided_regex(b, text ? text : "", n, false);
    } else if (!strcmp(type, "ebnf_grammar")) {
        root = nrd_guided_ebnf(b, text ? text : "", n);
    } else if (!strcmp(type, "json_schema") || !strcmp(type, "structural_tag")) {
        const nrd_json_limits limits = {.max_depth = 128};
        const bool tags = *type == 's';
        NRD_TRY(nrd_error_wrap(nrd_json_parse(&doc, text ? text : "", n, &limits), "%s",
                               tags ? "structural tag" : "schema"));
        root = tags ? nrd_guided_tags(b, nrd_json_root(doc)) : nrd_guided_schema(b, nrd_json_root(doc));
    } else {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "guide type '%.40s' is none of json, json_schema, "
                                               "regex, ebnf_grammar, structural_tag", type);
    }
    err = nrd_guided_assemble(b, root, p);
    nrd_json_doc_free(doc);
    return err;
}

nrd_error *nrd_guide_new(nrd_guide **out, const nrd_guide_vocab *v, const char *type, const char *text)
{
    return nrd_guide_new_unless(out, v, type, text, NULL);
}

nrd_error *nrd_guide_new_unless(nrd_guide **out, const nrd_guide_vocab *v, const char *type,
                                const char *text, const atomic_bool *stop)
{
    builder b = {.stop = stop};
    nrd_error *err = NULL;
    nrd_guide *g = NULL;

    *out = NULL;
    NRD_NEW_GOTO(g, 1, err, done);
    atomic_init(&g->refs, 1);
    g->v = v;
    nrd_arena_init(&b.arena);
    b.deadline_ns = nrd_now_ns() + NRD_LIMIT_GUIDE_COMPILE_MS * 1000000ull;
    NRD_TRY_GOTO(build_program(&b, type, text, &g->p), err, done);
    g->cap_stacks = g->cap_states = g->cap_work = g->cap_found = 64;
    g->cap_places = 256;
    g->stack_mask = g->seen_mask = 127;
    g->state_mask = 4 * G_MAX_STATES - 1;
    NRD_NEW_GOTO(g->stacks, g->cap_stacks, err, done);
    g->n_stacks = 1;
    NRD_NEW_GOTO(g->states, g->cap_states, err, done);
    NRD_NEW_GOTO(g->next, g->cap_states * (size_t)g->p.n_classes, err, done);
    NRD_NEW_GOTO(g->work, g->cap_work, err, done);
    NRD_NEW_GOTO(g->found, g->cap_found, err, done);
    NRD_NEW_GOTO(g->places, g->cap_places, err, done);
    NRD_NEW_GOTO(g->stack_table, (size_t)g->stack_mask + 1, err, done);
    NRD_NEW_GOTO(g->seen, (size_t)g->seen_mask + 1, err, done);
    memset(g->seen, 0xff, ((size_t)g->seen_mask + 1) * sizeof *g->seen);
    NRD_NEW_GOTO(g->seen_at, ((size_t)g->seen_mask + 1) / 2, err, done);
    NRD_NEW_GOTO(g->state_table, (size_t)g->state_mask + 1, err, done);
    NRD_NEW_GOTO(g->walk, (size_t)v->longest + 1, err, done);
    begin_state(g);
    intern_state(g); /* DEAD */
    begin_state(g);
    add_work(g, g->p.start, 0);
    close_state(g);
    g->start = intern_state(g);
    if (g->limit == LIMIT_MEMORY) {
        err = nrd_error_no_memory();
    } else if (g->limit) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "the guide passes the limit %s", nrd_guide_limit(g));
    } else if (g->start == DEAD) {
        err = nrd_errorf(NRD_ERR_INVALID_ARG, "no text fits this guide");
    }
done:
    nrd_arena_fini(&b.arena);
    free(b.sets);
    free(b.rules);
    free(b.rule_table);
    if (err) {
        nrd_guide_unref(g);
        return err;
    }
    *out = g;
    return NULL;
}

void nrd_guided_drop_masks(nrd_guide *g)
{
    for (uint32_t i = 0; i < g->n_states; i++) {
        free(g->states[i].mask);
        g->states[i].mask = NULL;
    }
    g->mask_bytes = 0;
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
    nrd_guided_drop_masks(g);
    free(g->next);
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
    free(g->seen_at);
    free(g->walk);
    free(g);
}

bool nrd_guide_matches(nrd_guide *g, const char *text, size_t n)
{
    uint32_t at = g->start;
    for (size_t i = 0; i < n; i++) {
        at = nrd_guided_step(g, at, (uint8_t)text[i]);
    }
    return g->states[at].accepting;
}
