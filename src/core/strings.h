/* SPDX-License-Identifier: Apache-2.0
 * core/strings.h - a growing list of texts, which it owns. For one thread at a time.
 *
 * Errors    NO_MEMORY. A list that nrd_strings_add fills is as a nrd_str (base/str.h): without memory it keeps
 *           what it has and takes nothing more; who needs all of it asks nrd_strings_error. */
#ifndef NRD_CORE_STRINGS_H
#define NRD_CORE_STRINGS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct nrd_strings {
    char **items;
    size_t n;
    bool no_memory; /* something is missing */
} nrd_strings;

nrd_error *nrd_strings_push(nrd_strings *l, const char *s) NRD_MUST_USE;
void nrd_strings_add(nrd_strings *l, const char *s);
nrd_error *nrd_strings_error(const nrd_strings *l) NRD_MUST_USE; /* NO_MEMORY; NULL: all is there */
void nrd_strings_fini(nrd_strings *l);

#endif
