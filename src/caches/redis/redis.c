/* SPDX-License-Identifier: Apache-2.0
 * redis - the response cache in a Redis or Valkey server, which several servers may share.
 *
 * An entry is one value under the prefix and the key that the server gives: a mark of this layout, the
 * number of buffers and their sizes (little-endian, 4 and 8 bytes), and their bytes. Keys and the
 * seal in each buffer are the server's affair (core/cache.c). Trouble with Redis is a miss for the
 * request: it is logged in the pool, at most once in a while, and counted. */
#include "backends/util/error.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/mem.h"
#include "caches/redis/pool.h"
#include "caches/util/figures.h"
#include "triton/core/tritoncache.h"

#include <hiredis/hiredis.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK "NRDRSP1\n"
enum { MARK_BYTES = 8, MAX_BUFFERS = 64, N_FIGURES = 6, HEAD_BYTES = MARK_BYTES + 4 };

static const nrd_cache_figure figures[N_FIGURES] = {
    {"nv_cache_num_hits", "Number of cache hits in response cache"},
    {"nv_cache_num_misses", "Number of cache misses in response cache"},
    {"nv_cache_num_lookups", "Number of cache lookups in response cache"},
    {"nv_cache_lookup_duration", "Total cache lookup duration (hit and miss), in microseconds"},
    {"nv_cache_insertion_duration", "Total cache insertion duration, in microseconds"},
    {"nv_cache_num_failures", "Number of lookups and insertions that the cache did not answer"},
};

typedef struct cache {
    nrd_redis_options options;
    nrd_redis_pool *pool;
    atomic_uint_fast64_t hits, misses, failures, lookup_ns, insert_ns;
    nrd_cache_figures figures;
} cache;

static void note(TRITONSERVER_LogLevel level, const char *text)
{
    TRITONSERVER_ErrorDelete(TRITONSERVER_LogMessage(level, __FILE__, __LINE__, text));
}

/* ---- figures ---- */

static void show(cache *c)
{
    const double hits = (double)c->hits, misses = (double)c->misses;
    const double now[N_FIGURES] = {hits, misses, hits + misses, (double)(c->lookup_ns / 1000u),
                                   (double)(c->insert_ns / 1000u), (double)c->failures};
    nrd_cache_figures_show(&c->figures, now);
}

/* ---- values ---- */

static uint64_t number_at(const char *p, size_t width)
{
    uint64_t v = 0;
    memcpy(&v, p, width); /* little end first */
    return v;
}

/* Puts the buffers of a value into the entry; they borrow from it. false: it is none of ours. */
static bool unpack(const char *value, size_t n, TRITONCACHE_CacheEntry *entry, TRITONSERVER_Error **out_err)
{
    TRITONSERVER_BufferAttributes *attr = NULL;

    if (n < HEAD_BYTES || memcmp(value, MARK, MARK_BYTES) != 0) {
        return false;
    }
    const uint64_t n_buffers = number_at(value + MARK_BYTES, 4);
    if (n_buffers > MAX_BUFFERS || n - HEAD_BYTES < n_buffers * 8) {
        return false;
    }
    size_t at = HEAD_BYTES + (size_t)n_buffers * 8;
    *out_err = TRITONSERVER_BufferAttributesNew(&attr);
    bool ok = true;
    for (uint64_t i = 0; i < n_buffers && ok && !*out_err; i++) {
        const uint64_t size = number_at(value + HEAD_BYTES + i * 8, 8);
        ok = size > 0 && size <= n - at;
        if (ok) {
            *out_err = TRITONSERVER_BufferAttributesSetByteSize(attr, (size_t)size);
            *out_err = *out_err ? *out_err : TRITONCACHE_CacheEntryAddBuffer(entry, (void *)(uintptr_t)(value + at), attr);
            at += (size_t)size;
        }
    }
    if (attr) {
        TRITONSERVER_ErrorDelete(TRITONSERVER_BufferAttributesDelete(attr));
    }
    return ok && at == n;
}

/* A value with room for the entry's buffers, which are set in the entry. NULL in *out_value: too large. */
static TRITONSERVER_Error *make_value(char **out_value, size_t *out_n, const cache *c, TRITONCACHE_CacheEntry *entry)
{
    TRITONSERVER_BufferAttributes *attr = NULL;
    size_t n = 0, sizes[MAX_BUFFERS], total;
    void *base = NULL;
    TRITONSERVER_Error *err;

    *out_value = NULL;
    NRD_TB_TRY(TRITONCACHE_CacheEntryBufferCount(entry, &n));
    if (n > MAX_BUFFERS) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "an entry has %zu buffers, at most %d are kept", n,
                             (int)MAX_BUFFERS);
    }
    total = HEAD_BYTES + n * 8;
    NRD_TB_TRY(TRITONSERVER_BufferAttributesNew(&attr));
    err = NULL;
    for (size_t i = 0; i < n && !err; i++) {
        err = TRITONCACHE_CacheEntryGetBuffer(entry, i, &base, attr);
        err = err ? err : TRITONSERVER_BufferAttributesByteSize(attr, &sizes[i]);
        if (!err && !nrd_size_add(total, sizes[i], &total)) {
            total = SIZE_MAX;
            break;
        }
    }
    TRITONSERVER_ErrorDelete(TRITONSERVER_BufferAttributesDelete(attr));
    *out_n = total;
    if (err || total > c->options.max_value_bytes) {
        return err;
    }
    char *value = malloc(total), *at = value;
    if (!value) {
        return nrd_tb_error(nrd_error_no_memory());
    }
    const uint32_t n32 = (uint32_t)n;
    memcpy(at, MARK, MARK_BYTES);
    memcpy(at + MARK_BYTES, &n32, 4);
    at += HEAD_BYTES;
    for (size_t i = 0; i < n; i++, at += 8) {
        const uint64_t size = sizes[i];
        memcpy(at, &size, 8);
    }
    for (size_t i = 0; i < n && !err; i++) {
        err = TRITONCACHE_CacheEntrySetBuffer(entry, i, at, NULL);
        at += sizes[i];
    }
    if (err) {
        free(value);
        return err;
    }
    *out_value = value;
    return NULL;
}

/* ---- what the server calls ---- */

TRITONSERVER_Error *TRITONCACHE_CacheInitialize(TRITONCACHE_Cache **out, const char *config)
{
    char text[512];
    nrd_error *err = NULL;
    cache *c = NULL;

    *out = NULL;
    NRD_NEW_GOTO(c, 1, err, fail);
    NRD_TRY_GOTO(nrd_redis_options_read(&c->options, config), err, fail);
    NRD_TRY_GOTO(nrd_error_wrap(nrd_redis_pool_new(&c->pool, &c->options), "Failed to initialize RedisCache"), err,
                 fail);
    nrd_cache_figures_make(&c->figures, figures, N_FIGURES);
    snprintf(text, sizeof text, "Response Cache is in Redis at %s:%s, database %u%s", c->options.host, c->options.port,
             c->options.db, c->options.tls ? ", over TLS" : "");
    note(TRITONSERVER_LOG_INFO, text);
    *out = (TRITONCACHE_Cache *)(void *)c;
    return NULL;

fail:
    if (c) {
        nrd_redis_options_fini(&c->options);
        free(c);
    }
    return nrd_tb_error(err);
}

TRITONSERVER_Error *TRITONCACHE_CacheFinalize(TRITONCACHE_Cache *opaque)
{
    cache *c = (cache *)(void *)opaque;

    if (!c) {
        return nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG, "cache was nullptr");
    }
    nrd_redis_pool_free(c->pool);
    nrd_cache_figures_free(&c->figures);
    nrd_redis_options_fini(&c->options);
    free(c);
    return NULL;
}

static TRITONSERVER_Error *check(cache *c, const char *key, TRITONCACHE_CacheEntry *entry, TRITONCACHE_Allocator *a)
{
    return c && key && entry && a ? NULL
                                  : nrd_tb_errorf(TRITONSERVER_ERROR_INVALID_ARG,
                                                  "cache, key, entry or allocator was nullptr");
}

/* The prefix and the key; NULL: no memory. */
static char *full_key(const cache *c, const char *key)
{
    char *name = NULL;
    return asprintf(&name, "%s%s", c->options.prefix, key) < 0 ? NULL : name;
}

/* The reply to a command; NULL: there is none, which was counted and told. */
static redisReply *ask(cache *c, int n, const char **words, const size_t *sizes)
{
    redisReply *reply = NULL;
    nrd_error *err = nrd_redis_call(&reply, c->pool, n, words, sizes);

    if (err) {
        atomic_fetch_add(&c->failures, 1);
        /* What Redis refuses it refuses each time: no room, no right, another kind of value. */
        if (nrd_error_get_code(err) == NRD_ERR_INVALID_ARG) {
            nrd_redis_warn(c->pool, err);
        } else {
            nrd_error_free(err);
        }
    }
    return reply;
}

TRITONSERVER_Error *TRITONCACHE_CacheLookup(TRITONCACHE_Cache *opaque, const char *key, TRITONCACHE_CacheEntry *entry,
                                            TRITONCACHE_Allocator *allocator)
{
    cache *c = (cache *)(void *)opaque;
    TRITONSERVER_Error *err = NULL;
    bool found = false;

    NRD_TB_TRY(check(c, key, entry, allocator));
    const uint64_t start = nrd_now_ns();
    char *name = full_key(c, key);
    const char *words[] = {"GET", name};
    const size_t sizes[] = {3, name ? strlen(name) : 0};
    redisReply *reply = name ? ask(c, 2, words, sizes) : NULL;
    if (reply && reply->type == REDIS_REPLY_STRING) {
        found = unpack(reply->str, (size_t)reply->len, entry, &err);
        err = err || !found ? err : TRITONCACHE_Copy(allocator, entry);
    }
    nrd_redis_reply_free(reply);
    free(name);
    found = found && !err;
    atomic_fetch_add(found ? &c->hits : &c->misses, 1);
    atomic_fetch_add(&c->lookup_ns, nrd_now_ns() - start);
    show(c);
    return found || err ? err : nrd_tb_errorf(TRITONSERVER_ERROR_NOT_FOUND, "key [%s] does not exist", key);
}

static void store(cache *c, const char *key, const char *value, size_t n)
{
    char ttl[16];
    char *name = full_key(c, key);

    if (name) {
        const int n_ttl = snprintf(ttl, sizeof ttl, "%u", c->options.ttl_s);
        const char *words[] = {"SET", name, value, "EX", ttl};
        const size_t sizes[] = {3, strlen(name), n, 2, (size_t)n_ttl};
        nrd_redis_reply_free(ask(c, c->options.ttl_s ? 5 : 3, words, sizes));
    }
    free(name);
}

TRITONSERVER_Error *TRITONCACHE_CacheInsert(TRITONCACHE_Cache *opaque, const char *key, TRITONCACHE_CacheEntry *entry,
                                            TRITONCACHE_Allocator *allocator)
{
    cache *c = (cache *)(void *)opaque;
    char *value = NULL;
    size_t n = 0;

    NRD_TB_TRY(check(c, key, entry, allocator));
    const uint64_t start = nrd_now_ns();
    NRD_TB_TRY(make_value(&value, &n, c, entry));
    if (!value) {
        nrd_redis_warn(c->pool, nrd_errorf(NRD_ERR_INVALID_ARG,
                                           "redis cache: a request with its response, %zu bytes, is larger than "
                                           "'max_value_size' (%zu): not kept",
                                           n, c->options.max_value_bytes));
        return NULL;
    }
    TRITONSERVER_Error *err = TRITONCACHE_Copy(allocator, entry);
    if (!err) {
        store(c, key, value, n);
    }
    free(value);
    atomic_fetch_add(&c->insert_ns, nrd_now_ns() - start);
    show(c);
    return err;
}
