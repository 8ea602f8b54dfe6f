/* SPDX-License-Identifier: Apache-2.0
 * base/names.h - many names, asked for one by one: a list of requests that is searched from its beginning for each member of
 * another one takes minutes where both are long.
 *
 * Owner     One thread at a time.
 * Lifetime  Borrows the texts. All names are added first, then asked for. A zeroed structure is empty; nrd_names_fini at the end. */
#ifndef NRD_BASE_NAMES_H
#define NRD_BASE_NAMES_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct nrd_name {
    const char *s;
    size_t n;
} nrd_name;

typedef struct nrd_names {
    nrd_name *at;
    size_t n, cap;
    bool in_order;
} nrd_names;

nrd_error *nrd_names_add(nrd_names *list, const char *s, size_t n) NRD_MUST_USE;
bool nrd_names_have(nrd_names *list, const char *s, size_t n);
void nrd_names_fini(nrd_names *list);

#endif
