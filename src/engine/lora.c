/* SPDX-License-Identifier: Apache-2.0
 * Adapters by id: what is in host memory, who uses it, what leaves when room is needed. The device's side
 * is in lora_device.c. */
#include "engine/lora_internal.h"

#include "base/mem.h"

#include <string.h>

static const uint64_t default_host_bytes = (uint64_t)1 << 30;

nrd_error *nrd_lora_cache_new(nrd_lora_cache **out, const nrd_lora_cache_config *cfg)
{
    nrd_error *err = NULL;
    nrd_lora_cache *c = NULL;
    nrd_device_info info;

    *out = NULL;
    NRD_NEW_GOTO(c, 1, err, fail);
    c->cfg = *cfg;
    c->cfg.optimal_rank = cfg->optimal_rank > 0 ? cfg->optimal_rank : 8;
    c->cfg.mem_fraction = cfg->mem_fraction > 0 ? cfg->mem_fraction : 0.05;
    c->cfg.host_bytes = cfg->host_bytes > 0 ? cfg->host_bytes : default_host_bytes;
    c->own = nrd_spec_of_rank(cfg->spec, 0);
    c->slot_stride = (int64_t)c->own.n_layers * NRD_LORA_POSITIONS;
    cfg->dev->ops->get_info(cfg->dev, &info);
    c->shared = info.host_is_device;
    pthread_mutex_init(&c->mu, NULL);
    pthread_mutex_init(&c->prepare_mu, NULL);
    pthread_cond_init(&c->cv, NULL);
    *out = c;
fail:
    return err;
}

static bool has_ranks(const nrd_lora_cache *c)
{
    return c->cfg.spec->tp_size * c->cfg.spec->pp_size > 1;
}

void nrd_lora_cache_free(nrd_lora_cache *c)
{
    if (!c) {
        return;
    }
    nrd_lora_device_free(c);
    pthread_mutex_lock(&c->mu);
    nrd_lora_cache_unlock(c);
    for (size_t i = 0; i < c->n; i++) {
        NRD_ASSERT(c->all[i]->pins == 0, "requests end before their adapters");
        nrd_adapter_free(c->all[i]);
    }
    free(c->all);
    pthread_cond_destroy(&c->cv);
    pthread_mutex_destroy(&c->prepare_mu);
    pthread_mutex_destroy(&c->mu);
    free(c);
}

const nrd_lora_limits *nrd_lora_cache_limits(const nrd_lora_cache *c)
{
    return &c->cfg.limits;
}

void nrd_adapter_hash(const nrd_adapter *a, uint64_t out[2])
{
    out[0] = a->lora->hash[0];
    out[1] = a->lora->hash[1];
}

/* ---- with mu held ---- */

static size_t find(const nrd_lora_cache *c, uint64_t id)
{
    size_t i = 0;
    while (i < c->n && c->all[i]->id != id) {
        i++;
    }
    return i;
}

/* Out of the table; unused when nobody needs it any more. */
static void forget(nrd_lora_cache *c, size_t i)
{
    nrd_adapter *a = c->all[i];
    c->all[i] = c->all[--c->n];
    a->is_gone = true;
    if (a->pins == 0) {
        nrd_adapter_set_aside(c, a);
    }
}

/* What had this id before. */
static void forget_others(nrd_lora_cache *c, uint64_t id, const nrd_adapter *keep)
{
    for (size_t i = c->n; i-- > 0;) {
        if (c->all[i]->id == id && c->all[i] != keep) {
            forget(c, i);
        }
    }
}

static void pin(nrd_lora_cache *c, nrd_adapter *a)
{
    a->pins++;
    c->n_pinned++;
    a->used = ++c->now;
}

/* Lets adapters go, the one unused for longest first, until `bytes` more fit. */
static nrd_error *make_room(nrd_lora_cache *c, size_t bytes)
{
    while (c->host_bytes + bytes > c->cfg.host_bytes) {
        size_t oldest = c->n;
        for (size_t i = 0; i < c->n; i++) {
            if (c->all[i]->pins == 0 && (oldest == c->n || c->all[i]->used < c->all[oldest]->used)) {
                oldest = i;
            }
        }
        if (oldest == c->n) {
            return nrd_errorf(NRD_ERR_UNAVAILABLE, "Cache is full. There are no done tasks to evict: %zu bytes of a "
                              "LoRA adapter beside %llu in use, lora_cache_host_memory_bytes is %llu", bytes,
                              (unsigned long long)c->host_bytes, (unsigned long long)c->cfg.host_bytes);
        }
        c->n_evicted_host++;
        forget(c, oldest);
    }
    return NULL;
}

static nrd_error *append(nrd_lora_cache *c, uint64_t id, nrd_lora *l, nrd_lora *part, nrd_adapter **out)
{
    nrd_error *err = NULL;
    nrd_adapter *a = NULL;

    NRD_TRY(make_room(c, nrd_adapter_bytes(l, part)));
    if (c->n == c->cap) {
        size_t cap = c->cap ? c->cap * 2 : 64;
        nrd_adapter **all = realloc(c->all, cap * sizeof *all);
        if (!all) {
            return nrd_error_no_memory();
        }
        c->all = all;
        c->cap = cap;
    }
    NRD_NEW_GOTO(a, 1, err, fail);
    a->id = id;
    a->lora = l;
    a->part = part;
    a->slot = NRD_LORA_NO_SLOT;
    c->host_bytes += nrd_adapter_bytes(l, part);
    c->all[c->n++] = a;
    *out = a;
fail:
    return err;
}

/* ---- any thread ---- */

static nrd_error *check_size(const nrd_lora_cache *c, const nrd_lora *l, const nrd_lora *part)
{
    if (nrd_adapter_bytes(l, part) > c->cfg.host_bytes) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the LoRA adapter has %zu bytes, more than lora_cache_host_memory_bytes "
                          "(%llu)", nrd_adapter_bytes(l, part), (unsigned long long)c->cfg.host_bytes);
    }
    int32_t pages = nrd_lora_device_pages_of(c, part);
    if (!c->shared && pages > c->n_pages) {
        return nrd_errorf(NRD_ERR_INVALID_ARG, "the LoRA adapter needs %d pages of the device's cache, which has %d "
                          "(lora_cache_gpu_memory_fraction)", pages, c->n_pages);
    }
    return NULL;
}

nrd_error *nrd_lora_cache_put(nrd_lora_cache *c, uint64_t id, nrd_lora *l, nrd_adapter **out)
{
    nrd_adapter *a = NULL;
    nrd_lora *part = l;

    *out = NULL;
    nrd_error *err = nrd_lora_cache_prepare(c);
    err = err || !has_ranks(c) ? err : nrd_lora_cut(&part, l, c->cfg.spec, 0);
    err = err ? err : check_size(c, l, part);
    if (err) {
        nrd_lora_free_both(l, part);
        return err;
    }
    pthread_mutex_lock(&c->mu);
    size_t i = find(c, id);
    if (i < c->n && !memcmp(c->all[i]->lora->hash, l->hash, sizeof l->hash)) {
        a = c->all[i];
        c->n_hits++;
    } else {
        err = append(c, id, l, part, &a);
        if (a) {
            l = part = NULL;
            c->n_stored++;
            forget_others(c, id, a);
        }
    }
    if (a) {
        pin(c, a);
    }
    nrd_lora_cache_unlock(c);
    nrd_lora_free_both(l, part);
    *out = a;
    return err;
}

nrd_error *nrd_lora_cache_get(nrd_lora_cache *c, uint64_t id, nrd_adapter **out)
{
    pthread_mutex_lock(&c->mu);
    size_t i = find(c, id);
    *out = i < c->n ? c->all[i] : NULL;
    c->n_hits += *out != NULL;
    c->n_misses += *out == NULL;
    if (*out) {
        pin(c, *out);
    }
    pthread_mutex_unlock(&c->mu);
    return *out ? NULL
                : nrd_errorf(NRD_ERR_NOT_FOUND, "LoRA task %llu not found in cache. Please send LoRA weights with "
                             "request", (unsigned long long)id);
}

bool nrd_lora_cache_has(nrd_lora_cache *c, uint64_t id)
{
    pthread_mutex_lock(&c->mu);
    bool there = find(c, id) < c->n;
    pthread_mutex_unlock(&c->mu);
    return there;
}

bool nrd_lora_cache_remove(nrd_lora_cache *c, uint64_t id)
{
    pthread_mutex_lock(&c->mu);
    size_t i = find(c, id);
    bool there = i < c->n;
    if (there) {
        forget(c, i);
    }
    nrd_lora_cache_unlock(c);
    return there;
}

void nrd_lora_cache_pin(nrd_lora_cache *c, nrd_adapter *a)
{
    pthread_mutex_lock(&c->mu);
    pin(c, a);
    pthread_mutex_unlock(&c->mu);
}

void nrd_lora_cache_unpin(nrd_lora_cache *c, nrd_adapter *a)
{
    pthread_mutex_lock(&c->mu);
    nrd_lora_cache_unpin_locked(c, a);
    nrd_lora_cache_unlock(c);
}

void nrd_lora_cache_get_stats(nrd_lora_cache *c, nrd_lora_stats *out)
{
    pthread_mutex_lock(&c->mu);
    *out = (nrd_lora_stats){
        .n_host = (int32_t)c->n,
        .n_slots = c->n_slots,
        .n_pages = c->n_pages,
        .n_free_pages = c->n_free,
        .host_bytes = c->host_bytes,
        .page_bytes = c->page_bytes,
        .n_evicted_host = c->n_evicted_host,
        .n_evicted_device = c->n_evicted_device,
        .n_loaded = c->n_loaded,
        .n_pinned = c->n_pinned,
        .n_hits = c->n_hits,
        .n_misses = c->n_misses,
        .n_stored = c->n_stored,
        .device_us = c->device_ns / 1000u,
    };
    for (int32_t i = 0; i < c->n_slots; i++) {
        out->n_device += c->slots[i] != NULL;
    }
    pthread_mutex_unlock(&c->mu);
}
