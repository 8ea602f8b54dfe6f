/* SPDX-License-Identifier: Apache-2.0
 * Nodes lie in an array, by the number of their block; children of a node are a list, and a hash table
 * finds the child of a node by its tokens. A hash only chooses the place: tokens are always compared. */
#include "engine/prefix_tree.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

/* Children that a partial search compares; more would make admission slow for popular roots. */
enum { PARTIAL_SCAN_MAX = 64 };

typedef struct node {
    uint64_t hash;
    nrd_prefix_key key;
    int32_t parent, first_child, next, prev; /* -1: none; next/prev link siblings */
    bool used;
} node;

struct nrd_prefix {
    int32_t n_blocks, block_tokens, n_nodes, first_root;
    uint32_t table_mask;
    node *nodes;      /* [n_blocks] */
    int32_t *tokens;  /* [n_blocks, block_tokens] */
    uint64_t *extras; /* [n_blocks]: hash of the extra ids; 0: none */
    int32_t *table;   /* open addressing, linear probing; -1 empty */
};

nrd_error *nrd_prefix_new(nrd_prefix **out, int32_t n_blocks, int32_t block_tokens)
{
    nrd_error *err = NULL;
    nrd_prefix *t = NULL;
    size_t n_tokens = 0;
    uint32_t table = 16;

    *out = NULL;
    if (n_blocks <= 0 || block_tokens <= 0 ||
        !nrd_size_mul((size_t)n_blocks, (size_t)block_tokens, &n_tokens)) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "prefix tree: bad size %d x %d", n_blocks,
                          block_tokens);
    }
    while (table < (uint32_t)n_blocks * 2u) {
        table *= 2;
    }
    NRD_NEW_GOTO(t, 1, err, fail);
    NRD_NEW_GOTO(t->nodes, n_blocks, err, fail);
    NRD_NEW_GOTO(t->tokens, n_tokens, err, fail);
    NRD_NEW_GOTO(t->extras, n_blocks, err, fail);
    NRD_NEW_GOTO(t->table, table, err, fail);
    t->n_blocks = n_blocks;
    t->block_tokens = block_tokens;
    t->first_root = -1;
    t->table_mask = table - 1;
    memset(t->table, 0xff, table * sizeof *t->table);
    *out = t;
    return NULL;

fail:
    nrd_prefix_free(t);
    return err;
}

void nrd_prefix_free(nrd_prefix *t)
{
    if (!t) {
        return;
    }
    free(t->nodes);
    free(t->tokens);
    free(t->extras);
    free(t->table);
    free(t);
}

static uint64_t hash_extra(const nrd_prefix *t, const uint64_t *extra)
{
    bool any = false;
    if (!extra) {
        return 0;
    }
    for (int32_t i = 0; i < t->block_tokens; i++) {
        any |= extra[i] != 0;
    }
    return any ? nrd_hash_bytes(1, extra, (size_t)t->block_tokens * sizeof *extra) | 1u : 0;
}

static uint64_t hash_node(const nrd_prefix *t, int32_t parent, const nrd_prefix_key *key,
                          const int32_t *tokens, uint64_t extra)
{
    uint64_t h = nrd_hash_u64(key->a, key->b);
    h = nrd_hash_u64(h, (uint64_t)(uint32_t)parent);
    h = nrd_hash_u64(h, extra);
    return nrd_hash_bytes(h, tokens, (size_t)t->block_tokens * sizeof *tokens);
}

static const int32_t *node_tokens(const nrd_prefix *t, int32_t block)
{
    return t->tokens + (size_t)block * (size_t)t->block_tokens;
}

static bool same_key(const nrd_prefix_key *a, const nrd_prefix_key *b)
{
    return a->a == b->a && a->b == b->b;
}

/* Position in the table of the node, or of the empty place where it would go. */
static uint32_t table_find(const nrd_prefix *t, uint64_t hash, int32_t parent,
                           const nrd_prefix_key *key, const int32_t *tokens, uint64_t extra)
{
    uint32_t i = (uint32_t)hash & t->table_mask;
    for (;; i = (i + 1) & t->table_mask) {
        int32_t b = t->table[i];
        if (b < 0) {
            return i;
        }
        const node *n = &t->nodes[b];
        if (n->hash == hash && n->parent == parent && same_key(&n->key, key) &&
            t->extras[b] == extra &&
            memcmp(node_tokens(t, b), tokens, (size_t)t->block_tokens * sizeof *tokens) == 0) {
            return i;
        }
    }
}

int32_t nrd_prefix_find(const nrd_prefix *t, int32_t parent, const nrd_prefix_key *key,
                        const int32_t *tokens, const uint64_t *extra)
{
    uint64_t ex = hash_extra(t, extra);
    uint64_t hash = hash_node(t, parent, key, tokens, ex);
    return t->table[table_find(t, hash, parent, key, tokens, ex)];
}

int32_t nrd_prefix_find_partial(const nrd_prefix *t, int32_t parent, const nrd_prefix_key *key,
                                const int32_t *tokens, const uint64_t *extra, int32_t n,
                                int32_t *out_common)
{
    int32_t best = -1, best_n = 0, scanned = 0;
    *out_common = 0;
    if (extra) {
        for (int32_t i = 0; i < n; i++) {
            if (extra[i]) {
                return -1; /* nodes keep a hash of their extra ids only: parts cannot be compared */
            }
        }
    }
    int32_t b = parent < 0 ? t->first_root : t->nodes[parent].first_child;
    for (; b >= 0 && scanned < PARTIAL_SCAN_MAX; b = t->nodes[b].next, scanned++) {
        if (t->extras[b] || !same_key(&t->nodes[b].key, key)) {
            continue;
        }
        const int32_t *have = node_tokens(t, b);
        int32_t i = 0;
        while (i < n && i < t->block_tokens && have[i] == tokens[i]) {
            i++;
        }
        if (i > best_n) {
            best_n = i;
            best = b;
        }
    }
    *out_common = best_n;
    return best;
}

void nrd_prefix_insert(nrd_prefix *t, int32_t block, int32_t parent, const nrd_prefix_key *key,
                       const int32_t *tokens, const uint64_t *extra)
{
    node *n = &t->nodes[block];
    NRD_ASSERT(!n->used, "a block is one node at most");
    NRD_ASSERT(parent < 0 || t->nodes[parent].used, "the parent must be in the tree");
    memcpy(t->tokens + (size_t)block * (size_t)t->block_tokens, tokens,
           (size_t)t->block_tokens * sizeof *tokens);
    t->extras[block] = hash_extra(t, extra);
    n->hash = hash_node(t, parent, key, tokens, t->extras[block]);
    uint32_t at = table_find(t, n->hash, parent, key, tokens, t->extras[block]);
    NRD_ASSERT(t->table[at] < 0, "the prefix must be new");
    t->table[at] = block;
    n->used = true;
    n->key = *key;
    n->parent = parent;
    n->first_child = -1;
    n->prev = -1;
    int32_t *head = parent < 0 ? &t->first_root : &t->nodes[parent].first_child;
    n->next = *head;
    if (*head >= 0) {
        t->nodes[*head].prev = block;
    }
    *head = block;
    t->n_nodes++;
}

static uint32_t table_place(const nrd_prefix *t, int32_t block)
{
    const node *n = &t->nodes[block];
    return table_find(t, n->hash, n->parent, &n->key, node_tokens(t, block), t->extras[block]);
}

static void table_remove(nrd_prefix *t, int32_t block)
{
    /* Linear probing: close the gap so that later entries of the run stay reachable. */
    uint32_t i = table_place(t, block);
    NRD_ASSERT(t->table[i] == block, "the table knows every node");
    t->table[i] = -1;
    for (uint32_t j = (i + 1) & t->table_mask; t->table[j] >= 0; j = (j + 1) & t->table_mask) {
        uint32_t home = (uint32_t)t->nodes[t->table[j]].hash & t->table_mask;
        if (((j - home) & t->table_mask) >= ((j - i) & t->table_mask)) {
            t->table[i] = t->table[j];
            t->table[j] = -1;
            i = j;
        }
    }
}

/* What points at the node from its left or from above. */
static int32_t *link_to(nrd_prefix *t, const node *n)
{
    return n->prev >= 0     ? &t->nodes[n->prev].next
           : n->parent >= 0 ? &t->nodes[n->parent].first_child
                            : &t->first_root;
}

void nrd_prefix_remove(nrd_prefix *t, int32_t block)
{
    node *n = &t->nodes[block];
    NRD_ASSERT(n->used && n->first_child < 0, "only leaves leave the tree");
    *link_to(t, n) = n->next;
    if (n->next >= 0) {
        t->nodes[n->next].prev = n->prev;
    }
    table_remove(t, block);
    n->used = false;
    t->n_nodes--;
}

void nrd_prefix_move(nrd_prefix *t, int32_t from, int32_t to)
{
    node *n = &t->nodes[to];
    NRD_ASSERT(t->nodes[from].used && !n->used, "a node moves to where there is none");
    for (int32_t c = t->nodes[from].first_child; c >= 0; c = t->nodes[c].next) {
        table_remove(t, c); /* their hashes hold the number of their parent */
    }
    table_remove(t, from);
    *n = t->nodes[from];
    memcpy(t->tokens + (size_t)to * (size_t)t->block_tokens, node_tokens(t, from),
           (size_t)t->block_tokens * sizeof *t->tokens);
    t->extras[to] = t->extras[from];
    t->nodes[from].used = false;
    *link_to(t, n) = to;
    if (n->next >= 0) {
        t->nodes[n->next].prev = to;
    }
    t->table[table_place(t, to)] = to;
    for (int32_t c = n->first_child; c >= 0; c = t->nodes[c].next) {
        node *child = &t->nodes[c];
        child->parent = to;
        child->hash = hash_node(t, to, &child->key, node_tokens(t, c), t->extras[c]);
        t->table[table_place(t, c)] = c;
    }
}

bool nrd_prefix_has(const nrd_prefix *t, int32_t block)
{
    return block >= 0 && t->nodes[block].used;
}

int32_t nrd_prefix_parent(const nrd_prefix *t, int32_t block)
{
    return t->nodes[block].parent;
}

int32_t nrd_prefix_first_child(const nrd_prefix *t, int32_t block)
{
    return t->nodes[block].first_child;
}

void nrd_prefix_check(const nrd_prefix *t)
{
    int32_t used = 0, in_table = 0, linked = 0;
    for (int32_t b = 0; b < t->n_blocks; b++) {
        const node *n = &t->nodes[b];
        if (!n->used) {
            continue;
        }
        used++;
        NRD_ASSERT(n->parent < 0 || t->nodes[n->parent].used, "no orphans");
        NRD_ASSERT(t->table[table_place(t, b)] == b, "every node can be found");
        for (int32_t c = n->first_child; c >= 0; c = t->nodes[c].next) {
            NRD_ASSERT(t->nodes[c].parent == b, "children know their parent");
            linked++;
        }
    }
    for (int32_t c = t->first_root; c >= 0; c = t->nodes[c].next) {
        NRD_ASSERT(t->nodes[c].parent < 0, "first blocks have no parent");
        linked++;
    }
    for (uint32_t i = 0; i <= t->table_mask; i++) {
        in_table += t->table[i] >= 0;
    }
    NRD_ASSERT(used == t->n_nodes && in_table == used && linked == used, "counts agree");
}
