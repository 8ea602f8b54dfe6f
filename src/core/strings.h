/* SPDX-License-Identifier: Apache-2.0
 * core/strings.h - a growing list of texts, which it owns. For one thread at a time. */
#ifndef NRD_CORE_STRINGS_H
#define NRD_CORE_STRINGS_H

#include <stddef.h>

typedef struct nrd_strings {
    char **items;
    size_t n;
} nrd_strings;

void nrd_strings_add(nrd_strings *l, const char *s);
void nrd_strings_fini(nrd_strings *l);

#endif
