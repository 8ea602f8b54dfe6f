/* SPDX-License-Identifier: Apache-2.0 */
#include "core/strings.h"

#include "base/mem.h"

#include <stdlib.h>

void nrd_strings_add(nrd_strings *l, const char *s)
{
    l->items = nrd_xrealloc(l->items, (l->n + 1) * sizeof *l->items);
    l->items[l->n++] = nrd_xstrdup(s);
}

void nrd_strings_fini(nrd_strings *l)
{
    for (size_t i = 0; i < l->n; i++) {
        free(l->items[i]);
    }
    free(l->items);
    l->items = NULL;
    l->n = 0;
}
