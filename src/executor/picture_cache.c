/* SPDX-License-Identifier: Apache-2.0
 * A list, the last used first: there are as many entries as pictures fit, some hundred, beside towers that take
 * milliseconds at least. */
#include "executor/picture_cache.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    struct entry *next;
    uint64_t hash[2];
    size_t bytes;
    uint8_t rows[];
} entry;

struct nrd_picture_cache {
    uint64_t max_bytes;
    entry *first;
    _Atomic uint64_t n_hits, n_misses, bytes;
};

nrd_picture_cache *nrd_picture_cache_new(uint64_t max_bytes)
{
    nrd_picture_cache *c = calloc(1, sizeof *c);
    if (c) {
        c->max_bytes = max_bytes;
    }
    return c;
}

void nrd_picture_cache_free(nrd_picture_cache *c)
{
    for (entry *e = c ? c->first : NULL, *next; e; e = next) {
        next = e->next;
        free(e);
    }
    free(c);
}

bool nrd_picture_cache_find(nrd_picture_cache *c, const uint64_t hash[2], void *rows, size_t bytes)
{
    for (entry **at = &c->first; *at; at = &(*at)->next) {
        entry *e = *at;
        if (e->hash[0] == hash[0] && e->hash[1] == hash[1] && e->bytes == bytes) {
            *at = e->next;
            e->next = c->first;
            c->first = e;
            memcpy(rows, e->rows, bytes);
            atomic_fetch_add(&c->n_hits, 1);
            return true;
        }
    }
    atomic_fetch_add(&c->n_misses, 1);
    return false;
}

/* Until no more than `bytes` are left: the last entries go. */
static void shrink(nrd_picture_cache *c, uint64_t bytes)
{
    while (c->first && atomic_load(&c->bytes) > bytes) {
        entry **at = &c->first;
        while ((*at)->next) {
            at = &(*at)->next;
        }
        atomic_fetch_sub(&c->bytes, (*at)->bytes);
        free(*at);
        *at = NULL;
    }
}

void nrd_picture_cache_put(nrd_picture_cache *c, const uint64_t hash[2], const void *rows, size_t bytes)
{
    if (bytes == 0 || bytes > c->max_bytes) {
        return;
    }
    shrink(c, c->max_bytes - bytes);
    entry *e = malloc(sizeof *e + bytes);
    if (!e) {
        return;
    }
    e->hash[0] = hash[0];
    e->hash[1] = hash[1];
    e->bytes = bytes;
    memcpy(e->rows, rows, bytes);
    e->next = c->first;
    c->first = e;
    atomic_fetch_add(&c->bytes, bytes);
}

void nrd_picture_cache_get_stats(nrd_picture_cache *c, nrd_picture_cache_stats *out)
{
    *out = (nrd_picture_cache_stats){atomic_load(&c->n_hits), atomic_load(&c->n_misses), atomic_load(&c->bytes)};
}
