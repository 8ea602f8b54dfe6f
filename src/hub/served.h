/* SPDX-License-Identifier: Apache-2.0
 * hub/served.h - models that clients of servers have pulled: the next server has them too.
 *
 * Purpose   $NEREID_CACHE/served has a small file for each name. What is in the cache of models decides: a name whose files
 *           are gone, or lie in another cache, is not listed.
 * Owner     Stateless; several processes may read and write at once.
 * Errors    Of the disk, with the path.
 */
#ifndef NRD_HUB_SERVED_H
#define NRD_HUB_SERVED_H

#include "hub/settings.h"

#include <stddef.h>

typedef struct nrd_hub_served { /* all owned */
    char *name;   /* ORG/NAME[:QUANT][@REV]; "hf:" and it is the id */
    char *path;   /* what is opened */
    char *record; /* the file that remembers it: without it, it is forgotten */
    bool fetched; /* its files came with the pull, and go with it */
} nrd_hub_served;

typedef struct nrd_hub_served_list {
    nrd_hub_served *v;
    size_t n;
} nrd_hub_served_list;

/* Remembers a name. One that is remembered already stays as it is. *fetched: of this pull; becomes what is
 * remembered. *out_record: its file, owned by the caller. */
nrd_error *nrd_hub_served_add(const nrd_hub_settings *s, const char *name, bool *fetched, char **out_record) NRD_MUST_USE;
/* Sorted by name; asks no hub. */
void nrd_hub_served_read(nrd_hub_served_list *out, const nrd_hub_settings *s);
void nrd_hub_served_fini(nrd_hub_served_list *all);

#endif
