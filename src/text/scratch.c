/* SPDX-License-Identifier: Apache-2.0
 * Memory that encoding needs again and again, one set a thread, and the thread's memory of words. */
#include "text/internal.h"

#include "base/hash.h"
#include "base/limits.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    CACHE_BITS = 14, /* 16384 words of 64 bytes: 1 MiB a thread, the size of an L2 cache */
    CACHE_KEY = 27,
    CACHE_IDS = 7,
};

struct nrd_tok_cache_entry {
    uint32_t serial; /* of the tokenizer; 0 = empty */
    uint8_t key_n, n_ids;
    char key[CACHE_KEY];
    int32_t ids[CACHE_IDS];
};

static pthread_key_t scratch_key;

/* What grows with the text. */
static void buffers_free(nrd_tok_scratch *sc)
{
    nrd_str_fini(&sc->clean);
    for (int i = 0; i < 2; i++) {
        nrd_str_fini(&sc->norm[i]);
        nrd_str_fini(&sc->pre[i]);
        free(sc->cut[i].v);
    }
    free(sc->sym);
    free(sc->prev);
    free(sc->next);
    free(sc->new_id);
    free(sc->rank);
    free(sc->heap);
    free(sc->best);
    free(sc->best_id);
    free(sc->best_from);
}

static void scratch_free(void *p)
{
    nrd_tok_scratch *sc = p;
    if (!sc) {
        return;
    }
    buffers_free(sc);
    free(sc->cache);
    if (sc->match) {
        sc->match_free(sc->match);
    }
    free(sc);
}

static bool key_made;

static void make_key(void)
{
    int rc = pthread_key_create(&scratch_key, scratch_free);
    NRD_ASSERT(rc == 0, "a process has at least 128 keys");
    key_made = true;
}

/* This code may live in a plug-in: when it is unloaded, threads that end later must not call into
 * it. What they hold is lost; plug-ins are unloaded at most a few times in a process. */
__attribute__((destructor)) static void drop_key(void)
{
    if (key_made) {
        scratch_free(pthread_getspecific(scratch_key));
        pthread_setspecific(scratch_key, NULL);
        pthread_key_delete(scratch_key);
    }
}

bool nrd_tok_grow(void **p, size_t n, size_t size)
{
    size_t bytes;
    void *fresh = nrd_size_mul(n, size, &bytes) ? realloc(*p, bytes) : NULL;
    *p = fresh ? fresh : *p;
    return fresh != NULL;
}

nrd_tok_scratch *nrd_tok_scratch_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static _Thread_local nrd_tok_scratch *mine;
    if (!mine) {
        pthread_once(&once, make_key);
        nrd_tok_scratch *sc = calloc(1, sizeof *sc);
        nrd_tok_cache_entry *cache = calloc((size_t)1 << CACHE_BITS, sizeof *cache);
        if (!sc || !cache || pthread_setspecific(scratch_key, sc) != 0) {
            free(sc);
            free(cache);
            return NULL;
        }
        sc->cache = cache;
        mine = sc;
    }
    return mine;
}

static size_t scratch_bytes(const nrd_tok_scratch *sc)
{
    size_t n = sc->clean.cap + sc->cap_heap * sizeof *sc->heap +
               sc->cap_sym * (4 * sizeof *sc->sym + sizeof *sc->rank) +
               sc->cap_best * (sizeof *sc->best + sizeof *sc->best_id + sizeof *sc->best_from);

    for (int i = 0; i < 2; i++) {
        n += sc->norm[i].cap + sc->pre[i].cap + sc->cut[i].cap * sizeof *sc->cut[i].v;
    }
    return n;
}

void nrd_tok_scratch_trim(nrd_tok_scratch *sc)
{
    if (scratch_bytes(sc) <= NRD_LIMIT_TOKENIZER_SCRATCH) {
        return;
    }
    const nrd_tok_scratch kept = {.cache = sc->cache, .match = sc->match, .match_free = sc->match_free};
    buffers_free(sc);
    *sc = kept; /* the call's outcome is read */
}

bool nrd_tok_cache_get(nrd_tok_scratch *sc, const nrd_tokenizer *t, const char *s, size_t n,
                       uint64_t *out_hash, nrd_ids *out)
{
    if (n > CACHE_KEY) {
        return false;
    }
    *out_hash = nrd_hash_bytes(t->serial, s, n);
    const nrd_tok_cache_entry *e = &sc->cache[*out_hash >> (64 - CACHE_BITS)];
    if (e->serial != t->serial || e->key_n != n || memcmp(e->key, s, n) != 0) {
        return false;
    }
    nrd_ids_append(out, e->ids, e->n_ids);
    return true;
}

void nrd_tok_cache_put(nrd_tok_scratch *sc, const nrd_tokenizer *t, uint64_t hash, const char *s,
                       size_t n, const int32_t *ids, size_t n_ids)
{
    if (n > CACHE_KEY || n_ids > CACHE_IDS || sc->no_memory) {
        return;
    }
    nrd_tok_cache_entry *e = &sc->cache[hash >> (64 - CACHE_BITS)];
    e->serial = t->serial;
    e->key_n = (uint8_t)n;
    e->n_ids = (uint8_t)n_ids;
    memcpy(e->key, s, n);
    if (n_ids) {
        memcpy(e->ids, ids, n_ids * sizeof *ids);
    }
}
