/* SPDX-License-Identifier: Apache-2.0
 * Who uses an adapter, and what becomes of one that nobody needs. */
#include "engine/lora_internal.h"

#include <stdlib.h>

size_t nrd_adapter_bytes(const nrd_lora *whole, const nrd_lora *part)
{
    return whole->bytes + (part != whole ? part->bytes : 0);
}

void nrd_lora_free_both(nrd_lora *whole, nrd_lora *part)
{
    if (part != whole) {
        nrd_lora_free(part);
    }
    nrd_lora_free(whole);
}

void nrd_adapter_free(nrd_adapter *a)
{
    nrd_lora_free_both(a->lora, a->part);
    free(a->pages);
    free(a);
}

void nrd_lora_put_in_slot(nrd_lora_cache *c, int32_t slot, nrd_adapter *a)
{
    c->slots[slot] = a;
    c->n_changed += !c->changed[slot];
    c->changed[slot] = true;
}

void nrd_lora_evict_locked(nrd_lora_cache *c, nrd_adapter *a)
{
    NRD_ASSERT(a->holds == 0 && a->state != ADAPTER_LOADING, "held adapters stay");
    if (c->n_slots > 0) { /* else the memory is gone already */
        nrd_lora_put_in_slot(c, a->slot, NULL);
        for (int32_t i = 0; i < a->n_pages; i++) {
            c->free_pages[c->n_free++] = a->pages[i];
        }
    }
    free(a->pages);
    a->pages = NULL;
    a->n_pages = 0;
    a->slot = NRD_LORA_NO_SLOT;
    a->state = ADAPTER_AWAY;
}

void nrd_adapter_set_aside(nrd_lora_cache *c, nrd_adapter *a)
{
    if (a->slot != NRD_LORA_NO_SLOT) {
        nrd_lora_evict_locked(c, a);
    }
    c->host_bytes -= nrd_adapter_bytes(a->lora, a->part);
    a->next_load = c->unused;
    c->unused = a;
}

/* Megabytes go back to the system: nobody waits for the lock meanwhile. */
void nrd_lora_cache_unlock(nrd_lora_cache *c)
{
    nrd_adapter *gone = c->unused;
    c->unused = NULL;
    pthread_mutex_unlock(&c->mu);
    for (nrd_adapter *next; gone; gone = next) {
        next = gone->next_load;
        nrd_adapter_free(gone);
    }
}

void nrd_lora_cache_unpin_locked(nrd_lora_cache *c, nrd_adapter *a)
{
    c->n_pinned--;
    if (--a->pins == 0 && a->is_gone) {
        nrd_adapter_set_aside(c, a);
    }
}
