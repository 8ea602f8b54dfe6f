/* SPDX-License-Identifier: Apache-2.0
 * tools/made.h - engines, tokenizers and repositories in $NEREID_CACHE, for the verbs that show and remove them.
 *
 * Purpose   Lists and removes them; base/cache_entry.h tells which of them are used.
 * Owner     One thread. What changes meanwhile may be missing.
 * Errors    What cannot be read is not there; without memory the program ends. */
#ifndef NRD_TOOLS_MADE_H
#define NRD_TOOLS_MADE_H

#include "base/str.h"

#include <time.h>

typedef struct nrd_made {
    char *name, *path; /* "engines/NAME"; owned */
    uint64_t bytes;
    time_t used;       /* their date is their last use */
} nrd_made;

typedef struct nrd_made_list {
    nrd_made *v;
    size_t n, cap;
} nrd_made_list;

void nrd_made_list_read(nrd_made_list *out, const char *own); /* own: $NEREID_CACHE; leftovers in it are swept */
void nrd_made_list_fini(nrd_made_list *all);

/* UNAVAILABLE: somebody uses it. What is not there is removed. */
nrd_error *nrd_made_remove(const char *path) NRD_MUST_USE;

#endif
