/* SPDX-License-Identifier: Apache-2.0
 * engine/lora.h - adapters by their ids, in host memory and on the device.
 *
 * Purpose   Two caches, one over the other. In host memory adapters stay until others need the room, the one
 *           unused for longest goes first; those that a request names are pinned. On the device adapters lie
 *           in pages of one size; a thread of its own brings them there beside the running step. A device
 *           that shares the host's memory reads them where they lie.
 *           Over several ranks this cache is rank 0's: it keeps adapters whole, computes with its own share, and
 *           tells through next_change which adapter is in which slot, so that the others (engine/lora_slots.h)
 *           have theirs at the same places.
 *           For the operations there is one table of pairs [slots, layers, positions], whose place never
 *           changes, so that recorded steps serve all adapters.
 * Owner     put, get, remove, unpin, stats: any thread. hold, drop, bank, next_change: the engine loop thread.
 * Units     Bytes of weights, as they were given; over several ranks with rank 0's share beside them.
 * Errors    NOT_FOUND: no such id; UNAVAILABLE: no room beside what is in use; INVALID_ARG: would never fit.
 * Lifetime  new -> put/get … -> free, when nothing is pinned any more. Borrows device and spec until free.
 *           An adapter that is replaced or removed lives until its last pin goes.
 */
#ifndef NRD_ENGINE_LORA_H
#define NRD_ENGINE_LORA_H

#include "base/error.h"
#include "model/lora.h"
#include "nereid/device.h"

enum { NRD_LORA_SLOTS = 1024 }; /* of the table */

typedef struct nrd_lora_cache nrd_lora_cache;
typedef struct nrd_adapter nrd_adapter;

typedef struct nrd_lora_cache_config {
    nrd_device *dev;
    const nrd_model_spec *spec; /* of all ranks */
    nrd_lora_limits limits;  /* max_rank above 0 */
    int32_t optimal_rank;    /* a page holds an adapter of this rank of all modules; 0: 8 */
    double mem_fraction;     /* of the device's free memory when the pages are taken; 0: 0.05 */
    uint64_t host_bytes;     /* 0: 1 GiB */
    /* An adapter has come to the device, or could not; from the thread that brings them. */
    void (*on_change)(void *user);
    void *user;
} nrd_lora_cache_config;

nrd_error *nrd_lora_cache_new(nrd_lora_cache **out, const nrd_lora_cache_config *cfg) NRD_MUST_USE;
void nrd_lora_cache_free(nrd_lora_cache *c);
/* Takes the device's memory now; else the first put does. */
nrd_error *nrd_lora_cache_prepare(nrd_lora_cache *c) NRD_MUST_USE;
const nrd_lora_limits *nrd_lora_cache_limits(const nrd_lora_cache *c);

/* Keeps `l` (taken always) under this id and pins it for the caller. Where the id is there with the same
 * content, that one is pinned; with other content, new requests get the new one. */
nrd_error *nrd_lora_cache_put(nrd_lora_cache *c, uint64_t id, nrd_lora *l, nrd_adapter **out) NRD_MUST_USE;
nrd_error *nrd_lora_cache_get(nrd_lora_cache *c, uint64_t id, nrd_adapter **out) NRD_MUST_USE; /* pins */
bool nrd_lora_cache_has(nrd_lora_cache *c, uint64_t id); /* neither a use nor counted */
bool nrd_lora_cache_remove(nrd_lora_cache *c, uint64_t id); /* false: not there */
void nrd_lora_cache_pin(nrd_lora_cache *c, nrd_adapter *a); /* once more */
void nrd_lora_cache_unpin(nrd_lora_cache *c, nrd_adapter *a);
void nrd_adapter_hash(const nrd_adapter *a, uint64_t out[2]);

typedef enum {
    NRD_LORA_READY,   /* on the device */
    NRD_LORA_LOADING, /* on its way */
    NRD_LORA_NO_ROOM, /* all others there are held */
    NRD_LORA_FAILED,  /* the device refused; held nevertheless */
} nrd_lora_hold;

/* Asks for a pinned adapter on the device, where it then stays until drop; but for NO_ROOM each call is
 * one hold. only_there: NO_ROOM also where it is not there yet. *out_slot: its place in the table. */
nrd_lora_hold nrd_lora_cache_hold(nrd_lora_cache *c, nrd_adapter *a, bool only_there, int32_t *out_slot);
nrd_lora_hold nrd_lora_cache_state(nrd_lora_cache *c, nrd_adapter *a); /* of a held one */
void nrd_lora_cache_drop(nrd_lora_cache *c, nrd_adapter *a);

/* The slots whose adapter is another than when this was asked last, one a call, emptied ones first; false: no more.
 * *out_lora: the whole adapter that is there now, which stays as long as it is held; NULL: the slot is empty. */
bool nrd_lora_cache_next_change(nrd_lora_cache *c, int32_t *out_slot, const nrd_lora **out_lora);

/* What operations are told. */
typedef struct nrd_lora_bank {
    const nrd_lora_pair *pairs; /* [slots, layers, NRD_LORA_POSITIONS] device memory */
    int64_t slot_stride;
    int32_t max_rank;           /* of those that were there so far, rounded up to a power of two */
} nrd_lora_bank;
nrd_lora_bank nrd_lora_cache_bank(nrd_lora_cache *c);

typedef struct nrd_lora_stats {
    int32_t n_host, n_device, n_slots, n_pages, n_free_pages;
    uint64_t host_bytes, page_bytes;
    uint64_t n_evicted_host, n_evicted_device, n_loaded;
    int32_t n_pinned;
    uint64_t n_hits, n_misses; /* of ids that were asked for, in host memory */
    uint64_t n_stored;         /* adapters that came to host memory */
    uint64_t device_us;        /* that bringing n_loaded to the device took */
} nrd_lora_stats;
void nrd_lora_cache_get_stats(nrd_lora_cache *c, nrd_lora_stats *out);

#endif
