/* SPDX-License-Identifier: Apache-2.0
 * hub/inventory.h - which models are in the cache.
 *
 * Purpose   One entry for each folder of weights and each GGUF file of every snapshot, and for each file of
 *           another address. Their names are ids that mean them.
 * Owner     One thread. What changes meanwhile may be missing.
 */
#ifndef NRD_HUB_INVENTORY_H
#define NRD_HUB_INVENTORY_H

#include "hub/settings.h"

#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct nrd_hub_entry { /* all owned */
    char *name;      /* "ORG/NAME[:QUANT][@REV]", or an address */
    char *path;      /* what is opened */
    char *repo_dir;  /* models--…; NULL: a file of another address */
    char commit[41]; /* "": of another address */
    uint64_t bytes;  /* of the files that it needs */
    time_t modified; /* when the newest of them came */
    time_t used;     /* the last time that this program opened or pulled it; else modified */
    bool is_ours;    /* this program has fetched it */
} nrd_hub_entry;

typedef struct nrd_hub_inventory {
    nrd_hub_entry *v;
    size_t n, cap;
} nrd_hub_inventory;

void nrd_hub_inventory_read(nrd_hub_inventory *out, const nrd_hub_settings *s); /* sorted by name */
void nrd_hub_inventory_fini(nrd_hub_inventory *all);

#endif
