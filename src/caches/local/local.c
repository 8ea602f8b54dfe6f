/* SPDX-License-Identifier: Apache-2.0
 * local - the response cache inside the server's process: entries under keys, up to a number of
 * bytes; the least recently used one goes first.
 *
 * Setting `size`: bytes, as a number or as text. What an entry takes is its buffers, its key and
 * its own record.
 *
 * Lock: mu guards the table, the order of use and the figures. It is not held while the server
 * copies: an entry that was taken out of the table lives on until its last reader is done. */
#include "backends/util/error.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "caches/util/figures.h"
#include "triton/core/tritoncache.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct part {
    void *base;
    size_t size;
} part;

typedef struct record {
    atomic_int refs;              /* the table's and its readers' */
    struct record *next;          /* of its bucket */
    struct record *newer, *older; /* order of use */
    uint64_t hash;
    size_t size;
    size_t n;
    part *parts;
    char key[]; /* with its NUL */
} record;

enum { N_FIGURES = 8 };

static const nrd_cache_figure figures[N_FIGURES] = {
    {"nv_cache_util", "Cache utilization [0.0 - 1.0]"},
    {"nv_cache_num_entries", "Number of responses stored in response cache"},
    {"nv_cache_num_hits", "Number of cache hits in response cache"},
    {"nv_cache_num_misses", "Number of cache misses in response cache"},
    {"nv_cache_num_lookups", "Number of cache lookups in response cache"},
    {"nv_cache_num_evictions", "Number of cache evictions in response cache"},
    {"nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds"},
    {"nv_cache_insertion_duration", "Total cache insertion duration, in microseconds"},
};

typedef struct cache {
    pthread_mutex_t mu;
    record **buckets;
    size_t n_buckets, n_records;
    record *newest, *oldest;
    size_t used, capacity; /* bytes */
    uint64_t hits, misses, evictions, lookup_ns, insert_ns;
    nrd_cache_figures figures;
} cache;

/* ---- small things ---- */

static void note(TRITONSERVER_LogLevel level, const char *text)
{
    TRITONSERVER_ErrorDelete(TRITONSERVER_LogMessage(level, __FILE__, __LINE__, text));
}

static void record_unref(record *r)
{
    if (atomic_fetch_sub(&r->refs, 1) == 1) {
        for (size_t i = 0; i < r->n; i++) {
            free(r->parts[i].base);
        }
        free(r->parts);
        free(r);
    }
}

/* ---- figures ---- */

/* Takes the figures while locked, shows them afterwards. */
static void unlock_and_show(cache *c)
{
    const double now[N_FIGURES] = {
        (double)c->used / (double)c->capacity,
        (double)c->n_records,
        (double)c->hits,
        (double)c->misses,
        (double)(c->hits + c->misses),
        (double)c->evictions,
        (double)(c->lookup_ns / 1000u),
        (double)(c->insert_ns / 1000u),
    };
    pthread_mutex_unlock(&c->mu);
    nrd_cache_figures_show(&c->figures, now);
}

/* ---- the table ---- */

static uint64_t hash_of(const char *key)
{
    return nrd_hash_bytes(0, key, strlen(key));
}

static record *find_locked(const cache *c, const char *key, uint64_t hash)
{
    record *r = c->buckets[hash & (c->n_buckets - 1)];
    while (r && (r->hash != hash || strcmp(r->key, key) != 0)) {
        r = r->next;
    }
    return r;
}

static void unlink_use_locked(cache *c, record *r)
{
    if (r->newer) {
        r->newer->older = r->older;
    } else {
        c->newest = r->older;
    }
    if (r->older) {
        r->older->newer = r->newer;
    } else {
        c->oldest = r->newer;
    }
    r->newer = r->older = NULL;
}

static void link_newest_locked(cache *c, record *r)
{
    r->older = c->newest;
    if (c->newest) {
        c->newest->newer = r;
    } else {
        c->oldest = r;
    }
    c->newest = r;
}

static void remove_locked(cache *c, record *r)
{
    record **p = &c->buckets[r->hash & (c->n_buckets - 1)];
    while (*p != r) {
        p = &(*p)->next;
    }
    *p = r->next;
    unlink_use_locked(c, r);
    c->n_records--;
    c->used -= r->size;
    record_unref(r);
}

static void grow_locked(cache *c)
{
    size_t n = c->n_buckets * 2;
    record **fresh = calloc(n, sizeof *fresh);
    if (!fresh) {
        return; /* the lists are longer until the next insertion */
    }

    for (size_t i = 0; i < c->n_buckets; i++) {
        for (record *r = c->buckets[i], *next; r; r = next) {
            next = r->next;
            r->next = fresh[r->hash & (n - 1)];
            fresh[r->hash & (n - 1)] = r;
        }
    }
    free(c->buckets);
    c->buckets = fresh;
    c->n_buckets = n;
}

/* ---- what the server calls ---- */

static TRITONSERVER_Error *read_size(const char *config, size_t *out)
{
    nrd_json_doc *doc = NULL;
    nrd_error *err = nrd_json_parse(&doc, config, strlen(config), NULL);
    const nrd_json *size;
    unsigned long long v = 0;

    if (err) {
        TRITONSERVER_Error *e =
            nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "Failed to initialize LocalCache: %s",
                          nrd_error_message(err));
        nrd_error_free(err);
        return e;
    }
    size = nrd_json_get(nrd_json_root(doc), "size");
    if (!size) {
        nrd_json_doc_free(doc);
        return nrd_tb_errorf(
            TRITONSERVER_ERROR_INVALID_ARG,
            "Failed to initialize LocalCache: config didn't contain a valid 'size' "
            "field.");
    }
    const char *text = nrd_json_get_str(nrd_json_root(doc), "size", NULL);
    const bool ok =
        text ? nrd_parse_u64(text, &v) : nrd_json_get_int(nrd_json_root(doc), "size", -1) >= 0;
    if (ok && !text) {
        v = (unsigned long long)nrd_json_get_int(nrd_json_root(doc), "size", 0);
    }
    nrd_json_doc_free(doc);
    if (!ok || v == 0) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "Failed to initialize LocalCache: 'size' "
                             "config must be a string or uint type");
    }
    *out = (size_t)v;
    return NULL;
}

TRITONSERVER_Error *TRITONCACHE_CacheInitialize(TRITONCACHE_Cache **out, const char *config)
{
    size_t capacity = 0;
    char *text = nrd_xasprintf("Initializing LocalCache with config: %s", config);

    *out = NULL;
    note(TRITONSERVER_LOG_INFO, text);
    free(text);
    NRD_TB_TRY(read_size(config, &capacity));
    cache *c = nrd_xcalloc(1, sizeof *c);
    pthread_mutex_init(&c->mu, NULL);
    c->capacity = capacity;
    c->n_buckets = 256;
    c->buckets = nrd_xcalloc(c->n_buckets, sizeof *c->buckets);
    nrd_cache_figures_make(&c->figures, figures, N_FIGURES);
    text = nrd_xasprintf("Response Cache is created with size %zu", capacity);
    note(TRITONSERVER_LOG_INFO, text);
    free(text);
    *out = (TRITONCACHE_Cache *)(void *)c;
    return NULL;
}

TRITONSERVER_Error *TRITONCACHE_CacheFinalize(TRITONCACHE_Cache *opaque)
{
    cache *c = (cache *)(void *)opaque;

    if (!c) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "cache was nullptr");
    }
    note(TRITONSERVER_LOG_INFO, "Cleaning up LocalCache");
    while (c->oldest) {
        remove_locked(c, c->oldest);
    }
    nrd_cache_figures_free(&c->figures);
    free(c->buckets);
    pthread_mutex_destroy(&c->mu);
    free(c);
    return NULL;
}

TRITONSERVER_Error *TRITONCACHE_CacheLookup(TRITONCACHE_Cache *opaque, const char *key,
                                            TRITONCACHE_CacheEntry *entry,
                                            TRITONCACHE_Allocator *allocator)
{
    cache *c = (cache *)(void *)opaque;
    TRITONSERVER_BufferAttributes *attr = NULL;
    TRITONSERVER_Error *err = NULL;

    if (!c || !key || !entry || !allocator) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "cache, key, entry or allocator was nullptr");
    }
    const uint64_t start = nrd_now_ns(), hash = hash_of(key);
    pthread_mutex_lock(&c->mu);
    record *r = find_locked(c, key, hash);
    if (r) {
        c->hits++;
        atomic_fetch_add(&r->refs, 1);
        unlink_use_locked(c, r);
        link_newest_locked(c, r);
    } else {
        c->misses++;
        c->lookup_ns += nrd_now_ns() - start;
    }
    unlock_and_show(c);
    if (!r) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_NOT_FOUND, "key [%s] does not exist", key);
    }
    err = TRITONSERVER_BufferAttributesNew(&attr);
    for (size_t i = 0; i < r->n && !err; i++) {
        err = TRITONSERVER_BufferAttributesSetByteSize(attr, r->parts[i].size);
        err = err ? err : TRITONCACHE_CacheEntryAddBuffer(entry, r->parts[i].base, attr);
    }
    err = err ? err : TRITONCACHE_Copy(allocator, entry);
    if (attr) {
        TRITONSERVER_ErrorDelete(TRITONSERVER_BufferAttributesDelete(attr));
    }
    record_unref(r);
    pthread_mutex_lock(&c->mu);
    c->lookup_ns += nrd_now_ns() - start;
    pthread_mutex_unlock(&c->mu);
    return err;
}

/* A record with buffers of its own as large as the entry's, which are set in the entry. */
static TRITONSERVER_Error *make_record(record **out, const cache *c, const char *key,
                                       TRITONCACHE_CacheEntry *entry)
{
    TRITONSERVER_BufferAttributes *attr = NULL;
    size_t len = strlen(key) + 1, n = 0;
    TRITONSERVER_Error *err = TRITONCACHE_CacheEntryBufferCount(entry, &n);

    *out = NULL;
    NRD_TB_TRY(err);
    NRD_TB_TRY(TRITONSERVER_BufferAttributesNew(&attr));
    record *r = calloc(1, sizeof *r + len);
    if (!r) {
        TRITONSERVER_ErrorDelete(TRITONSERVER_BufferAttributesDelete(attr));
        return nrd_tb_error(nrd_error_no_memory());
    }
    atomic_init(&r->refs, 1);
    memcpy(r->key, key, len);
    r->hash = hash_of(key);
    r->size = sizeof *r + len + n * sizeof *r->parts;
    r->parts = calloc(n + 1, sizeof *r->parts);
    err = r->parts ? NULL : nrd_tb_error(nrd_error_no_memory());
    for (r->n = 0; r->n < n && !err; r->n++) {
        part *p = &r->parts[r->n];
        void *base = NULL;
        err = TRITONCACHE_CacheEntryGetBuffer(entry, r->n, &base, attr);
        err = err ? err : TRITONSERVER_BufferAttributesByteSize(attr, &p->size);
        if (!err && p->size == 0) {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL, "buffer size was zero");
        }
        if (!err && (p->size > c->capacity || r->size > c->capacity - p->size)) {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_INTERNAL,
                                "Requested byte_size: %zu is greater than total cache size: %zu",
                                p->size, c->capacity);
        }
        p->base = err ? NULL : malloc(p->size);
        if (!err && !p->base) {
            err = nrd_tb_errorf(TRITONSERVER_ERROR_UNAVAILABLE, "no memory for %zu bytes", p->size);
        }
        err = err ? err : TRITONCACHE_CacheEntrySetBuffer(entry, r->n, p->base, NULL);
        r->size += p->size;
    }
    TRITONSERVER_ErrorDelete(TRITONSERVER_BufferAttributesDelete(attr));
    if (err) {
        record_unref(r);
        return err;
    }
    *out = r;
    return NULL;
}

static TRITONSERVER_Error *already_there(const char *key)
{
    return nrd_tb_errorf(TRITONSERVER_ERROR_ALREADY_EXISTS, "key '%s' already exists", key);
}

TRITONSERVER_Error *TRITONCACHE_CacheInsert(TRITONCACHE_Cache *opaque, const char *key,
                                            TRITONCACHE_CacheEntry *entry,
                                            TRITONCACHE_Allocator *allocator)
{
    cache *c = (cache *)(void *)opaque;
    record *r = NULL;
    TRITONSERVER_Error *err;

    if (!c || !key || !entry || !allocator) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                             "cache, key, entry or allocator was nullptr");
    }
    const uint64_t start = nrd_now_ns(), hash = hash_of(key);
    pthread_mutex_lock(&c->mu);
    const bool there = find_locked(c, key, hash) != NULL;
    pthread_mutex_unlock(&c->mu);
    if (there) {
        return already_there(key);
    }
    NRD_TB_TRY(make_record(&r, c, key, entry));
    err = TRITONCACHE_Copy(allocator, entry);
    pthread_mutex_lock(&c->mu);
    if (!err && find_locked(c, key, hash)) { /* another thread was faster */
        err = already_there(key);
    }
    if (err) {
        record_unref(r);
    } else {
        while (c->used + r->size > c->capacity) {
            remove_locked(c, c->oldest);
            c->evictions++;
        }
        if (c->n_records >= c->n_buckets) {
            grow_locked(c);
        }
        r->next = c->buckets[hash & (c->n_buckets - 1)];
        c->buckets[hash & (c->n_buckets - 1)] = r;
        link_newest_locked(c, r);
        c->n_records++;
        c->used += r->size;
    }
    c->insert_ns += nrd_now_ns() - start;
    unlock_and_show(c);
    return err;
}
