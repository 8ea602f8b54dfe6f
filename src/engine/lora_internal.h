/* SPDX-License-Identifier: Apache-2.0
 * engine/lora_internal.h - the caches of adapters from the inside.
 *
 *   lora_use.c     pins, and what leaves the device and host memory when nobody needs it
 *   lora_device.c  slots and pages, the thread that brings adapters there
 *   lora.c         ids, what leaves host memory for others
 *
 * One lock guards everything that changes but the content of pages and of the table, which belongs to the
 * loading thread while an adapter is LOADING, and to nobody else afterwards. It is not held during copies. */
#ifndef NRD_ENGINE_LORA_INTERNAL_H
#define NRD_ENGINE_LORA_INTERNAL_H

#include "engine/lora.h"

#include <pthread.h>

enum { NRD_LORA_NO_SLOT = -1, NRD_LORA_MIN_RANK = 8 /* max_rank of a bank, at least */ };

typedef enum { ADAPTER_AWAY, ADAPTER_LOADING, ADAPTER_READY, ADAPTER_FAILED } nrd_adapter_state;

struct nrd_adapter {
    uint64_t id;
    nrd_lora *lora;
    nrd_lora *part;     /* this rank's share of it; with one rank the same */
    int32_t pins;       /* requests, and the loading thread */
    int32_t holds;      /* requests that may be in a step */
    uint64_t used;      /* when it was asked for last */
    bool is_gone;       /* not to be found any more */
    nrd_adapter_state state;
    int32_t slot;
    int32_t *pages;     /* [n_pages] */
    int32_t n_pages;
    nrd_adapter *next_load; /* the next that waits for the loading thread, or of the unused */
};

struct nrd_lora_cache {
    nrd_lora_cache_config cfg;
    nrd_model_spec own; /* of this rank */
    bool shared; /* host memory is device memory: no pages, no thread */
    pthread_mutex_t mu;
    pthread_mutex_t prepare_mu; /* orders those who need the device's memory; taken before mu */
    bool is_prepared;           /* guarded by prepare_mu */

    nrd_adapter **all; /* those that can be found */
    size_t n, cap;
    nrd_adapter *unused; /* neither found nor pinned: freed by who unlocks */
    uint64_t now, host_bytes;
    uint64_t n_evicted_host, n_evicted_device, n_loaded, n_hits, n_misses, n_stored, device_ns;
    int32_t n_pinned; /* sum of pins */

    nrd_lora_pair *pairs; /* device memory */
    int64_t slot_stride;
    nrd_adapter **slots;  /* [n_slots] who is there; NULL: free */
    bool *changed;        /* [n_slots] not told yet (next_change) */
    int32_t n_changed;
    int32_t n_slots, max_rank;
    uint8_t *pool; /* [n_pages, page_bytes] device memory */
    size_t page_bytes;
    int32_t n_pages, n_free;
    int32_t *free_pages; /* [n_pages], the first n_free are free */

    pthread_t thread;
    bool thread_started, stopping;
    pthread_cond_t cv; /* something to load, or the end */
    nrd_adapter *load_head, *load_tail;
    nrd_stream *stream;      /* the thread's */
    nrd_lora_pair *slot_row; /* [slot_stride] the thread's */
};

/* How operations find a pair whose A and B lie there. */
static inline nrd_lora_pair nrd_lora_pair_at(const nrd_lora_row *r, const uint8_t *a, const uint8_t *b)
{
    return (nrd_lora_pair){.a = a,
                           .b = b,
                           .rank = r->rank,
                           .dtype = (int32_t)r->dtype,
                           .scale = r->scale,
                           .gain = nrd_lora_gain(r, b)};
}

/* ---- lora_use.c ---- */

size_t nrd_adapter_bytes(const nrd_lora *whole, const nrd_lora *part); /* of host memory */
void nrd_lora_free_both(nrd_lora *whole, nrd_lora *part);
void nrd_adapter_free(nrd_adapter *a);
/* The others with mu held. a NULL: nobody is there. */
void nrd_lora_put_in_slot(nrd_lora_cache *c, int32_t slot, nrd_adapter *a);
void nrd_lora_evict_locked(nrd_lora_cache *c, nrd_adapter *a); /* nobody holds it */
void nrd_adapter_set_aside(nrd_lora_cache *c, nrd_adapter *a); /* it is not found and not pinned: who unlocks frees it */
void nrd_lora_cache_unpin_locked(nrd_lora_cache *c, nrd_adapter *a);
void nrd_lora_cache_unlock(nrd_lora_cache *c); /* frees what is unused, without the lock */

/* ---- lora_device.c ---- */

void nrd_lora_device_free(nrd_lora_cache *c);
int32_t nrd_lora_device_pages_of(const nrd_lora_cache *c, const nrd_lora *l);

#endif
