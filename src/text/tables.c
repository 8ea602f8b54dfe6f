/* SPDX-License-Identifier: Apache-2.0
 * The two lookup structures of a vocabulary: whole strings, and prefixes. */
#include "text/internal.h"

#include "base/hash.h"

#include <string.h>

static uint64_t text_hash(const char *s, size_t n)
{
    return nrd_hash_bytes(0x6e7264u, s, n);
}

nrd_error *nrd_strmap_init(nrd_tok_strmap *m, size_t n_expected)
{
    nrd_error *err = NULL;
    size_t cap = 64;
    while (cap < n_expected * 2) {
        cap *= 2;
    }
    NRD_NEW_GOTO(m->slots, cap, err, fail);
    m->mask = cap - 1;
    m->n = 0;
fail:
    return err;
}

void nrd_strmap_put(nrd_tok_strmap *m, const nrd_tok_text *keys, int32_t id)
{
    const nrd_tok_text *key = &keys[id];
    uint64_t h = text_hash(key->s, key->n);
    uint32_t tag = (uint32_t)(h >> 32) | 1u;
    NRD_ASSERT(m->n * 2 <= m->mask + 1, "maps are sized for what is put in");
    for (size_t i = h & m->mask;; i = (i + 1) & m->mask) {
        nrd_tok_strmap_slot *slot = &m->slots[i];
        if (!slot->tag) {
            *slot = (nrd_tok_strmap_slot){tag, id};
            m->n++;
            return;
        }
        if (slot->tag == tag && keys[slot->id].n == key->n &&
            memcmp(keys[slot->id].s, key->s, key->n) == 0) {
            return;
        }
    }
}

int32_t nrd_strmap_get(const nrd_tok_strmap *m, const nrd_tok_text *keys, const char *s, size_t n)
{
    if (!m->slots) {
        return -1;
    }
    uint64_t h = text_hash(s, n);
    uint32_t tag = (uint32_t)(h >> 32) | 1u;
    for (size_t i = h & m->mask;; i = (i + 1) & m->mask) {
        const nrd_tok_strmap_slot *slot = &m->slots[i];
        if (!slot->tag) {
            return -1;
        }
        if (slot->tag == tag && keys[slot->id].n == n && memcmp(keys[slot->id].s, s, n) == 0) {
            return slot->id;
        }
    }
}

void nrd_strmap_fini(nrd_tok_strmap *m)
{
    free(m->slots);
    memset(m, 0, sizeof *m);
}

/* ---- trie ---- */

enum { TRIE_MAX_NODES = 1 << 24 }; /* so that node << 8 | byte fits 32 bits */

nrd_error *nrd_trie_init(nrd_tok_trie *t)
{
    nrd_error *err = NULL;
    memset(t, 0, sizeof *t);
    t->cap_nodes = 256;
    NRD_NEW_GOTO(t->edges, 1024, err, fail);
    NRD_NEW_GOTO(t->value, t->cap_nodes, err, fail);
    t->mask = 1023;
    t->value[0] = -1;
    t->n_nodes = 1;
    return NULL;
fail:
    nrd_trie_fini(t);
    return err;
}

static size_t edge_home(const nrd_tok_trie *t, uint32_t key)
{
    return (size_t)nrd_hash_mix(key) & t->mask;
}

uint32_t nrd_trie_step(const nrd_tok_trie *t, uint32_t node, uint8_t byte)
{
    if (node == 0) {
        return t->root[byte];
    }
    uint32_t key = (node << 8 | byte) + 1;
    for (size_t i = edge_home(t, key);; i = (i + 1) & t->mask) {
        if (t->edges[i].key == key) {
            return t->edges[i].node;
        }
        if (!t->edges[i].key) {
            return 0;
        }
    }
}

static void put_edge(nrd_tok_trie *t, nrd_tok_trie_edge e)
{
    size_t i = edge_home(t, e.key);
    while (t->edges[i].key) {
        i = (i + 1) & t->mask;
    }
    t->edges[i] = e;
}

static nrd_error *grow_edges(nrd_tok_trie *t)
{
    nrd_error *err = NULL;
    nrd_tok_trie_edge *old = t->edges, *grown;
    size_t n_old = t->mask + 1;
    NRD_NEW_GOTO(grown, n_old * 2, err, fail);
    t->edges = grown;
    t->mask = n_old * 2 - 1;
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].key) {
            put_edge(t, old[i]);
        }
    }
    free(old);
fail:
    return err;
}

static nrd_error *new_node(nrd_tok_trie *t, uint32_t *out)
{
    if (t->n_nodes == TRIE_MAX_NODES - 1) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the vocabulary is too large for a prefix tree");
    }
    if (t->n_nodes == t->cap_nodes) {
        int32_t *grown = realloc(t->value, (size_t)t->cap_nodes * 2 * sizeof *grown);
        if (!grown) {
            return nrd_error_no_memory();
        }
        t->value = grown;
        t->cap_nodes *= 2;
    }
    *out = t->n_nodes++;
    t->value[*out] = -1;
    return NULL;
}

nrd_error *nrd_trie_add(nrd_tok_trie *t, const char *s, size_t n, int32_t value)
{
    uint32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)s[i];
        uint32_t next = nrd_trie_step(t, node, byte);
        if (!next) {
            NRD_TRY(new_node(t, &next));
            if (node == 0) {
                t->root[byte] = next;
            } else {
                if ((t->n_edges + 1) * 2 > t->mask) {
                    NRD_TRY(grow_edges(t));
                }
                put_edge(t, (nrd_tok_trie_edge){(node << 8 | byte) + 1, next});
                t->n_edges++;
            }
        }
        node = next;
    }
    if (node && t->value[node] < 0) {
        t->value[node] = value;
    }
    return NULL;
}

size_t nrd_trie_longest(const nrd_tok_trie *t, const char *s, size_t n, int32_t *out_value)
{
    uint32_t node = 0;
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        node = nrd_trie_step(t, node, (uint8_t)s[i]);
        if (!node) {
            break;
        }
        if (t->value[node] >= 0) {
            *out_value = t->value[node];
            found = i + 1;
        }
    }
    return found;
}

void nrd_trie_fini(nrd_tok_trie *t)
{
    free(t->edges);
    free(t->value);
    memset(t, 0, sizeof *t);
}
