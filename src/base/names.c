/* SPDX-License-Identifier: Apache-2.0 */
#include "base/names.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
    const nrd_name *x = a, *y = b;
    return x->n != y->n ? (x->n < y->n ? -1 : 1) : memcmp(x->s, y->s, x->n);
}

nrd_error *nrd_names_add(nrd_names *list, const char *s, size_t n)
{
    if (list->n == list->cap) {
        const size_t cap = list->cap ? 2 * list->cap : 16;
        nrd_name *at = realloc(list->at, cap * sizeof *at);
        if (!at) {
            return nrd_error_no_memory();
        }
        list->at = at;
        list->cap = cap;
    }
    list->at[list->n++] = (nrd_name){s, n};
    list->in_order = false;
    return NULL;
}

bool nrd_names_have(nrd_names *list, const char *s, size_t n)
{
    const nrd_name x = {s, n};

    if (list->n == 0) {
        return false;
    }
    if (!list->in_order) {
        qsort(list->at, list->n, sizeof *list->at, compare);
        list->in_order = true;
    }
    return bsearch(&x, list->at, list->n, sizeof *list->at, compare) != NULL;
}

void nrd_names_fini(nrd_names *list)
{
    free(list->at);
    *list = (nrd_names){0};
}
