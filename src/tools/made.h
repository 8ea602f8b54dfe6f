/* SPDX-License-Identifier: Apache-2.0
 * tools/made.h - engines, tokenizers and repositories in $NEREID_CACHE, for the verbs that remove them.
 *
 * Purpose   Lists them, and tells which of them running servers use.
 * Owner     One thread. What changes meanwhile may be missing.
 * Errors    None: what cannot be read is not there; without memory the program ends. */
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

/* The repositories of running servers with their configurations, which name engines and tokenizers. */
void nrd_made_in_use(nrd_str *out);
bool nrd_made_is_used(const nrd_str *in_use, const char *path);

#endif
